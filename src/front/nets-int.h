/* nets-int.h - inside of nets*.c and approvals.c. */
#ifndef HUTCH_FRONT_NETS_INT_H
#define HUTCH_FRONT_NETS_INT_H

#include "base/map.h"
#include "front/nets.h"

/* Headers that sandboxes of a tenant have set, as egress knows them: one secret for all who set the same. */
struct net_headers {
    char *key; /* "tenant/name" */
    char *tenant;
    struct net_header h;
    size_t uses;
};
struct nets {
    struct front *front;
    struct egressc *client; /* NULL: there is no egress */
    struct map headers;     /* key -> struct net_headers */
    /* what the egress that has just come must be told: keys of secrets, keys of headers, ids of boxes */
    struct strv to_tell[3];
    size_t told[3];
    struct approval_item *approvals; /* oldest first */
    size_t napprovals;
    struct map usage;    /* tenant -> struct net_usage */
    uint64_t connection; /* how often egress has come */
};

json_t *net_message(const struct box *b);
void net_send(struct nets *n, json_t *message); /* to egress, if there is one; takes it */
/* Both ways of a use of headers by a box's document. */
void net_headers_take(struct nets *n, const char *tenant, const struct net_doc *doc);
void net_headers_drop(struct nets *n, const char *tenant, const struct net_doc *doc);
/* Calls done with that, from the loop. */
void net_refuse(struct front *f, unsigned status, const char *text, net_done *done, void *arg);
/* A question that waits; NULL: there is none (any more). And the smallest rule that allows it, without an id; a new
 * reference. */
const struct approval *approval_find(struct front *f, const char *tenant, const char *id);
json_t *approval_grant(const struct approval *a);
/* nets-usage.c: counters that outlive egress and front. An event of egress's about a box, or (NULL) about a tenant; and what a
 * new egress must hear before a policy of the box (or before a question about the tenant). */
int net_usage_load(struct front *f, struct err *err);
void net_usage_free(struct nets *n);
void net_usage_event(struct front *f, struct box *b, const json_t *message);
void net_usage_tell(struct front *f, const char *tenant, struct box *b);
/* Events of egress. */
void net_event(void *arg, const char *type, json_t *message);

#endif
