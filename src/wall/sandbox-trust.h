/* sandbox-trust.h - files that make programs in a sandbox trust one more root certificate.
 *
 * Copies the certificate bundles of a root with ours added into a directory that is then laid over that root; never
 * changes the root itself. Contents are copied unread: only the frame of PEM and of a Java trust store is parsed.
 */
#ifndef HUTCH_WALL_SANDBOX_TRUST_H
#define HUTCH_WALL_SANDBOX_TRUST_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/sha256.h"

/* The author of a root chooses the size of its bundles, so they are limited: real ones are a quarter of this. */
enum { TRUST_FILE_MAX = 1 << 20, TRUST_ALL_MAX = 4 << 20, TRUST_CA_MAX = 8 << 20, TRUST_CERTS_MAX = 2000 };

struct wall_trust {
    const void *ca; /* PEM */
    size_t n;
    const char *below; /* "/etc": only files there; "": everywhere */
    bool merged;       /* the root is an overlay that was mounted for this: its device number says nothing */
};

/* Adds to the hash what the files in `root` (O_PATH) would be made from; the same hash, the same files. Nothing is
 * read but names, sizes and times. Tells how many bundles stay as they are, because they are larger than
 * TRUST_FILE_MAX or all of them together than TRUST_ALL_MAX. */
unsigned wall_trust_stamp(int root, const struct wall_trust *t, struct sha256 *h);
/* Makes them in the empty directory `to`. Nothing in `root` is followed out of it. */
int wall_trust_make(int root, const struct wall_trust *t, int to, struct err *err);

/* sandbox-jks.c: a Java trust store (password "changeit") that holds what `old` holds and the certificate; if `old` is not of
 * that kind, what `bundle` (PEM) holds instead. Appends to *out. -1: the certificate is not PEM. */
int jks_make(const void *old, size_t nold, const void *bundle, size_t nbundle, const void *ca, size_t nca,
             struct buf *out);

#endif
