/* wipe.c - free() and realloc() of the program hutch-node, which overwrite memory before they release it.
 *
 * Clients send values of secrets to front; egress puts them into requests and removes them from answers. So they pass
 * through buffers of HTTP, TLS and JSON, ours and those of libraries, which are freed after each request. Overwriting
 * them protects the values from later leaks, by a bug or in a core dump. The functions are replaced for the whole
 * program, because libraries free such buffers too. With a sanitizer its own functions stay.
 */
#include <errno.h>
#include <malloc.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WATCHED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer) || __has_feature(thread_sanitizer)
#define WATCHED 1
#endif
#endif

#ifndef WATCHED
#define EXPORTED __attribute__((visibility("default")))

extern void __libc_free(void *p);

EXPORTED void free(void *p)
{
    int eno = errno;
    if (p)
        explicit_bzero(p, malloc_usable_size(p));
    __libc_free(p);
    errno = eno;
}

/* The C library's realloc() moves a block without calling our free(), so the old place would keep its bytes. */
EXPORTED void *realloc(void *p, size_t n)
{
    size_t have = p ? malloc_usable_size(p) : 0;
    if (!p)
        return malloc(n);
    if (n == 0) {
        free(p);
        return NULL;
    }
    if (n <= have && n >= have / 2)
        return p;
    void *moved = malloc(n);
    if (!moved)
        return NULL;
    memcpy(moved, p, n < have ? n : have);
    free(p);
    return moved;
}

EXPORTED void *reallocarray(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(p, bytes);
}
#endif
