/* lockmem.h - memory for values that must not leave the process: kept out of swap (mlock), out of core files
 * (MADV_DONTDUMP), not given to children (MADV_WIPEONFORK), and wiped before it is used again.
 *
 * Small pieces are cut from chunks by size class and go back to a list of their class; a large piece is a mapping of
 * its own. One thread. If the kernel refuses to lock (RLIMIT_MEMLOCK), the memory is used all the same and
 * lockmem_unlocked() tells.
 */
#ifndef HUTCH_EGRESS_LOCKMEM_H
#define HUTCH_EGRESS_LOCKMEM_H

#include <stdbool.h>
#include <stddef.h>

enum { LOCKMEM_CHUNK = 256 * 1024, LOCKMEM_SMALL = 32, LOCKMEM_LARGE = 32 * 1024 };

/* Zeroed, at least n bytes, aligned for any object. Never NULL: out of memory ends the process like xmalloc(). */
void *lockmem_new(size_t n) __attribute__((returns_nonnull));
/* Wipes and gives back; n as it was asked for. NULL is fine. */
void lockmem_free(void *p, size_t n);
/* Bytes in use, rounded up to what they take. */
size_t lockmem_used(void);
/* Some of it could not be locked. */
bool lockmem_unlocked(void);

#endif
