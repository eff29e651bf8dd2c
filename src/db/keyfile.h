/* keyfile.h - a secret key of this node: random bytes in a file of its state directory, made at the first start and
 * never replaced.
 */
#ifndef HUTCH_DB_KEYFILE_H
#define HUTCH_DB_KEYFILE_H

#include <stddef.h>

#include "base/err.h"

/* Reads the n bytes of DIR/name, or makes them if there is no such file. A file of another size is an error, because
 * a new key would silently make everything useless that depends on the old one. */
int keyfile_open(int dir, const char *name, void *ret, size_t n, struct err *err);

#endif
