/* keyfile.h - secret bytes of this node in a file of its state directory, made at the first start. */
#ifndef HUTCH_FRONT_KEYFILE_H
#define HUTCH_FRONT_KEYFILE_H

#include <stddef.h>

#include "base/err.h"

/* Reads the n bytes of DIR/name, or makes them if there is no such file. A file of another size is an error: what was made
 * with the key would be lost without a word. */
int keyfile_open(int dir, const char *name, void *ret, size_t n, struct err *err);

#endif
