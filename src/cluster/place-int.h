/* place-int.h - the view as the files of the scheduler see it. */
#ifndef HUTCH_CLUSTER_PLACE_INT_H
#define HUTCH_CLUSTER_PLACE_INT_H

#include "cluster/place.h"

struct place_template {
    uint32_t template, warm;
};
struct place_node {
    struct place_info info;
    struct place_report report;
    enum place_state state;
    bool silent;
    uint32_t pending_starts;
    struct amount pending;
    struct amount limit;           /* the capacity with what may be promised beyond it */
    uint64_t rank;                 /* its number, mixed */
    struct place_template *cached; /* owned; sorted by template */
    uint32_t n_cached, cap_cached;
};
/* A home set that was computed: it holds until a node joins or leaves. */
struct place_set {
    uint64_t key;
    uint32_t epoch; /* 0: empty */
    uint32_t used;  /* when it was asked for, in decisions */
    uint32_t n;
    uint32_t at[PLACE_HOMES_MAX]; /* into nodes, nearest first */
};
/* Sets that are remembered: 8192 in groups of four; a group forgets the one that was not asked for longest. */
enum { PLACE_GROUPS = 2048, PLACE_GROUP = 4 };

struct place {
    struct place_rules rules;
    struct place_node **nodes; /* owned; sorted by number, so that the order does not depend on who joined first */
    size_t n_nodes, cap_nodes;
    uint64_t cache_slots; /* of all nodes */
    uint32_t active;      /* templates in use */
    uint32_t epoch, asked;
    uint32_t n_kept;        /* nodes that are kept for one tenant */
    struct place_set *sets; /* owned; PLACE_GROUPS * PLACE_GROUP */
};

/* The node with this number, or NULL. */
struct place_node *place_find(const struct place *p, int64_t node);
/* What the node lacks for the request; nothing: it can take it. */
enum place_lack place_lacks(const struct place *p, const struct place_node *n, const struct place_request *r);
/* The first of these lacks, which depend on the kind of request only and decide about home sets. */
enum place_lack place_lacks_kind(const struct place *p, const struct place_node *n, const struct place_request *r);
const struct place_template *place_find_cached(const struct place_node *n, uint32_t template);
/* The homes for this kind of request; borrowed until the next call. */
const struct place_set *place_set_of(struct place *p, const struct place_request *r);

#endif
