/* random.h - bytes nobody can guess, from the kernel. A kernel that cannot give them ends the program: nothing that needs
 * them has a safe way on.
 */
#ifndef HUTCH_BASE_RANDOM_H
#define HUTCH_BASE_RANDOM_H

#include <stddef.h>

void random_bytes(void *p, size_t n);
/* 2 * bytes lower-case hexadecimal digits and a NUL. */
void random_hex(char *ret, size_t bytes);

#endif
