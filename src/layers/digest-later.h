/* digest-later.h - the digest of a layer that may not have one yet. */
#ifndef HUTCH_LAYERS_DIGEST_LATER_H
#define HUTCH_LAYERS_DIGEST_LATER_H

#include "layers/jobs.h"

/* Reads what is known of the layer; if it has no digest yet, computes it, which reads all its files, and notes it. */
int layer_digest(struct job *j, const char *name, struct layer_meta *ret, struct err *err);

#endif
