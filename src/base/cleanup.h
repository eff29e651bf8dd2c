/* cleanup.h - scope-bound release of memory, descriptors and streams.
 *
 *     _cleanup_free_ char *s = NULL;     freed when the scope ends
 *     _cleanup_close_ int fd = -1;       closed when the scope ends, if >= 0
 *     return TAKE_PTR(s);                hands ownership out: a visible act
 */
#ifndef HUTCH_BASE_CLEANUP_H
#define HUTCH_BASE_CLEANUP_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free_p(void *p) { free(*(void **)p); }
static inline void cleanup_close_p(const int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
}
static inline void cleanup_fclose_p(FILE **f)
{
    if (*f)
        (void)fclose(*f);
}
static inline void cleanup_closedir_p(DIR **d)
{
    if (*d)
        (void)closedir(*d);
}

#define _cleanup_(fn)      __attribute__((cleanup(fn)))
#define _cleanup_free_     _cleanup_(cleanup_free_p)
#define _cleanup_close_    _cleanup_(cleanup_close_p)
#define _cleanup_fclose_   _cleanup_(cleanup_fclose_p)
#define _cleanup_closedir_ _cleanup_(cleanup_closedir_p)

#define TAKE_PTR(p)                  \
    __extension__({                  \
        __typeof__(p) take_p_ = (p); \
        (p) = NULL;                  \
        take_p_;                     \
    })
#define TAKE_FD(fd)          \
    __extension__({          \
        int take_fd_ = (fd); \
        (fd) = -1;           \
        take_fd_;            \
    })

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#endif
