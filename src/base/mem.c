#include "base/mem.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/num.h"

static void (*failure_handler)(void);
static unsigned long fail_countdown;

void mem_on_failure(void (*handler)(void)) { failure_handler = handler; }
void mem_fail_at(unsigned long n) { fail_countdown = n; }

#ifdef HUTCH_LAYER_REMOVAL
/* Fault tests count the allocations of a whole run, so the countdown starts before main. */
static __attribute__((constructor)) void read_fail_at(void)
{
    const char *text = getenv("HUTCH_MEM_FAIL_AT");
    uint64_t n;
    if (text && num_u64(text, &n))
        mem_fail_at(n);
}
#endif

static __attribute__((noreturn)) void out_of_memory(void)
{
    static const char msg[] = "hutch: out of memory\n";
    if (failure_handler)
        failure_handler();
    (void)!write(2, msg, sizeof msg - 1);
    _exit(ERR_INTERNAL);
}

static void *checked(void *p)
{
    if (fail_countdown != 0 && --fail_countdown == 0) {
        free(p);
        p = NULL;
    }
    if (!p)
        out_of_memory();
    return p;
}

void *xmalloc(size_t n) { return checked(malloc(n ? n : 1)); }
void *xcalloc(size_t n, size_t size) { return checked(calloc(n ? n : 1, size ? size : 1)); }

void *xreallocarray(void *p, size_t n, size_t size)
{
    if (fail_countdown == 1) /* do not lose the old block to the injected failure */
        out_of_memory();
    return checked(reallocarray(p, n ? n : 1, size ? size : 1));
}

char *xstrdup(const char *s) { return checked(strdup(s)); }
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
    return checked(n < 0 ? NULL : out);
}
