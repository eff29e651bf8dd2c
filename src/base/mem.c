#include "base/mem.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"

static void (*failure_handler)(void);
static unsigned long fail_countdown;

void mem_on_failure(void (*handler)(void)) { failure_handler = handler; }
void mem_fail_at(unsigned long n) { fail_countdown = n; }

static __attribute__((noreturn)) void out_of_memory(void)
{
    static const char msg[] = "hutch: out of memory\n";
    if (failure_handler)
        failure_handler();
    (void)!write(2, msg, sizeof msg - 1);
    _exit(ERR_INTERNAL);
}

static void *mem_checked(void *p)
{
    if (fail_countdown != 0 && --fail_countdown == 0) {
        free(p);
        p = NULL;
    }
    if (!p)
        out_of_memory();
    return p;
}

void *xmalloc(size_t n) { return mem_checked(malloc(n ? n : 1)); }
void *xcalloc(size_t n, size_t size) { return mem_checked(calloc(n ? n : 1, size ? size : 1)); }

void *xreallocarray(void *p, size_t n, size_t size)
{
    if (fail_countdown == 1) /* do not lose the old block to the injected failure */
        out_of_memory();
    return mem_checked(reallocarray(p, n ? n : 1, size ? size : 1));
}

char *xstrdup(const char *s) { return mem_checked(strdup(s)); }
char *xstrndup(const char *s, size_t n)
{
    size_t len = strnlen(s, n);
    char *copy = xmalloc(len + 1);
    memcpy(copy, s, len);
    copy[len] = '\0';
    return copy;
}

char *xasprintf(const char *fmt, ...)
{
    char *out = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&out, fmt, ap);
    va_end(ap);
    return mem_checked(n < 0 ? NULL : out);
}
