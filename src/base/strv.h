/* strv.h - a growing vector of owned strings, always NULL-terminated so that it can be an argv or an environment. Out
 * of memory ends the process (mem.h); no function fails. */
#ifndef HUTCH_BASE_STRV_H
#define HUTCH_BASE_STRV_H

#include <stdbool.h>
#include <stddef.h>

struct strv {
    char **v; /* owned, NULL-terminated; NULL while empty */
    size_t n, cap;
};

void strv_add(struct strv *s, const char *str); /* copies */
void strv_take(struct strv *s, char *str);      /* takes ownership */
bool strv_has(const struct strv *s, const char *str);
/* By bytes. strv_compare() is for qsort(3) and bsearch(3) on a sorted vector. */
void strv_sort(struct strv *s);
int strv_compare(const void *a, const void *b);
void strv_done(struct strv *s);

#define _cleanup_strv_ __attribute__((cleanup(strv_done)))

#endif
