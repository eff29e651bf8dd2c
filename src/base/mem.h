/* mem.h - allocation that does not fail halfway.
 *
 * Out of memory ends the process with ERR_INTERNAL and one line on stderr, unless a program installed another handler
 * (it must not return). Nothing is set up by then that the kernel or the guard does not take back, so callers need no
 * error path. `mem_fail_at(n)` makes the n-th allocation from now fail: the fault tests use it.
 */
#ifndef HUTCH_BASE_MEM_H
#define HUTCH_BASE_MEM_H

#include <stdarg.h>
#include <stddef.h>

void *xmalloc(size_t n) __attribute__((malloc, returns_nonnull));
void *xcalloc(size_t n, size_t size) __attribute__((malloc, returns_nonnull));
void *xreallocarray(void *p, size_t n, size_t size) __attribute__((returns_nonnull));
char *xstrdup(const char *s) __attribute__((malloc, returns_nonnull));
char *xstrndup(const char *s, size_t n) __attribute__((malloc, returns_nonnull));
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2), returns_nonnull));

/* Installs the handler called when memory is out; NULL restores the default. */
void mem_on_failure(void (*handler)(void));
/* The n-th allocation from now (1 = the next) fails; 0 switches this off. Test builds only use it. */
void mem_fail_at(unsigned long n);

/* Grows `arr` (with `n` used of `cap`) so that one more element fits. */
#define MEM_GROW(arr, n, cap)                                   \
    do {                                                        \
        if ((n) == (cap)) {                                     \
            (cap) = (cap) ? (cap)*2 : 8;                        \
            (arr) = xreallocarray((arr), (cap), sizeof *(arr)); \
        }                                                       \
    } while (0)

/* Makes room for `more` elements at once. */
#define MEM_RESERVE(arr, n, cap, more)                          \
    do {                                                        \
        if ((cap) - (n) < (more)) {                             \
            (cap) = (n) + (more);                               \
            (arr) = xreallocarray((arr), (cap), sizeof *(arr)); \
        }                                                       \
    } while (0)

#endif
