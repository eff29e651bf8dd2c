/* alloc.h - the allocator of the static program: starts fast and checks every block.
 *
 * musl's allocator takes every few objects from a mapping of their own. A program that lives for two milliseconds and
 * makes a thousand small strings then spends a tenth of its time in page faults. Here they come from one piece of memory,
 * by size; what is freed waits for the next object of its size. Every block has a seal that depends on its address, its
 * size, whether it is in use and a secret of the process: an overflow that reaches the next block, a block that is freed
 * twice and a pointer that never was one end the program.
 *
 * One thread only: what shares the program's memory (guard, network helper) does not allocate. With HUTCH_OWN_MALLOC these
 * functions are malloc(), free() and so on of the whole program.
 */
#ifndef HUTCH_BASE_ALLOC_H
#define HUTCH_BASE_ALLOC_H

#include <stddef.h>

/* At least n bytes, aligned to 16; not cleared. NULL with ENOMEM. */
void *alloc_get(size_t n);
/* The same bytes in a block for n; p may be NULL. NULL with ENOMEM, then p is as it was. */
void *alloc_resize(void *p, size_t n);
/* Gives a block back; NULL is ignored. Keeps errno. */
void alloc_put(void *p);
/* How many bytes may be used behind p. */
size_t alloc_room(const void *p);

#endif
