/* lockmem.h - memory for values that must not leave the process: kept out of swap (mlock) and core files
 * (MADV_DONTDUMP), not inherited by children (MADV_WIPEONFORK), and wiped before it is used again.
 *
 * Small pieces are cut from chunks by size class and go back to a list of their class; a large piece is a mapping of
 * its own. Not thread-safe. If the kernel refuses to lock (RLIMIT_MEMLOCK), the memory is used nevertheless and
 * lockmem_unlocked() says so.
 */
#ifndef HUTCH_EGRESS_SECRETS_LOCKMEM_H
#define HUTCH_EGRESS_SECRETS_LOCKMEM_H

#include <stdbool.h>
#include <stddef.h>

enum { LOCKMEM_CHUNK = 256 * 1024, LOCKMEM_SMALL = 32, LOCKMEM_LARGE = 32 * 1024 };

/* Zeroed, at least n bytes, aligned for any object. Never NULL: out of memory ends the process like xmalloc(). */
void *lockmem_new(size_t n) __attribute__((returns_nonnull));
/* Wipes and frees; n as given to lockmem_new(). NULL is fine. */
void lockmem_free(void *p, size_t n);
/* For tests: bytes in use, rounded up to size classes and pages. */
size_t lockmem_used(void);
/* Whether some of it could not be locked. */
bool lockmem_unlocked(void);

#endif
