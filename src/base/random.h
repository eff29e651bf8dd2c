/* random.h - unpredictable bytes from the kernel. If the kernel cannot give them the program ends: no caller has a safe
 * way to go on without.
 */
#ifndef HUTCH_BASE_RANDOM_H
#define HUTCH_BASE_RANDOM_H

#include <stddef.h>

void random_bytes(void *p, size_t n);
/* 2 * bytes lower-case hexadecimal digits and a NUL. */
void random_hex(char *ret, size_t bytes);

#endif
