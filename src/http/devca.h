/* devca.h - makes a certificate authority for development, so that HTTPS works on one machine without an outside one.
 *
 * Made once in a state directory: ca.key (0600), ca.crt (0644), and a leaf for the node, tls.key (0600) and tls.crt
 * (0644, leaf first, then the authority). A critical constraint limits the authority to the domain and this machine's
 * own names: even with a leaked key it can never vouch for any other name.
 */
#ifndef HUTCH_HTTP_DEVCA_H
#define HUTCH_HTTP_DEVCA_H

#include <time.h>

#include "base/err.h"

#define DEVCA_CA_CERT "ca.crt"
#define DEVCA_CA_KEY  "ca.key"
#define DEVCA_CERT    "tls.crt"
#define DEVCA_KEY     "tls.key"

enum {
    DEVCA_CA_DAYS = 3650,
    DEVCA_LEAF_DAYS = 397,
    DEVCA_RENEW_DAYS = 30, /* a leaf with less is replaced */
};

enum devca_change { DEVCA_SAME = 0, DEVCA_LEAF = 1, DEVCA_ALL = 2 /* a new authority: clients must trust it anew */ };

/* Makes, if needed, an authority for `domain` (no port) and a leaf for <domain>, *.<domain>, localhost, 127.0.0.1
 * and ::1 that is valid for DEVCA_RENEW_DAYS from `now`. Returns enum devca_change, or -1. Files are replaced by
 * renames; on failure the existing ones are untouched. An existing but unreadable authority is an error and never
 * replaced. Blocks for some milliseconds. */
int devca_ensure(int dirfd, const char *domain, time_t now, struct err *err);

#endif
