/* resolve.h - asks the node's resolvers for the addresses of a name, without blocking. Answers are cached for their
 * time to live; equal questions are asked once. Decides nothing: dial_check() judges the addresses.
 */
#ifndef HUTCH_EGRESS_RESOLVE_H
#define HUTCH_EGRESS_RESOLVE_H

#include "egress/core/egress.h"

enum {
    RESOLVE_ADDRS_MAX = 16,
    RESOLVE_TTL_MAX_S = 300,
    RESOLVE_NEGATIVE_S = 5,
    RESOLVE_CACHE = 8192,   /* names of the process */
    RESOLVE_PENDING = 4096, /* unanswered questions of the process */
    RESOLVE_CNAMES_MAX = 8,
};
enum resolve_status { RESOLVE_OK, RESOLVE_NO_NAME, RESOLVE_FAILED };
struct resolve_answer {
    enum resolve_status status;
    uint32_t ttl; /* seconds left */
    size_t n;
    struct in6_addr addrs[RESOLVE_ADDRS_MAX]; /* IPv4 mapped */
    const char *text;                         /* not OK: what the resolver said */
};

struct resolve;
typedef void resolve_done(void *arg, const struct resolve_answer *r);
/* The callback never comes from inside the call. `name` is canonical. */
struct resolve *resolve_start(struct egress *g, const char *name, resolve_done *done, void *arg);
void resolve_cancel(struct resolve *r); /* NULL is fine */

int resolve_setup(struct egress *g, struct err *err);
void resolve_teardown(struct egress *g);

#endif
