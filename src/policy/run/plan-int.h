/* plan-int.h - a plan while it is made, shared by plan.c, plan-look.c, plan-mask.c and plan-protect.c only. Only reads
 * the host, and only through struct plan_facts. */
#ifndef HUTCH_POLICY_RUN_PLAN_INT_H
#define HUTCH_POLICY_RUN_PLAN_INT_H

#include "policy/run/plan.h"

enum { PLAN_OPS_USUAL = 128 }; /* room from the start */

/* Where a rule came from, for an op. */
struct plan_why {
    const char *rule;
    const struct origin *origin;
};

/* A path of the host that may not be read and does not exist yet. */
struct plan_absent {
    char *host;
    struct plan_why why;
};

/* The names in a directory, as bits: see plan-look.c. */
enum { PLAN_LISTINGS = 12, PLAN_LISTING_BITS = 4096 };
struct plan_listing {
    char *dir;
    unsigned asked;
    enum { LISTING_UNREAD, LISTING_WHOLE, LISTING_UNKNOWN } state;
    uint64_t bits[PLAN_LISTING_BITS / 64];
};

struct planner {
    const struct policy *p;
    const struct plan_caller *who;
    const struct plan_facts *facts;
    struct plan *plan;
    struct err *err;
    bool failed;
    bool moves;                 /* something is shown at another place than on the host; set by plan_mask */
    struct plan_absent *absent; /* filled by plan_mask, for plan_protect */
    size_t nabsent, absent_cap;
    char *memo_dir, *memo_real; /* the last directory that was resolved: rules come in groups */
    struct plan_listing listings[PLAN_LISTINGS];
    size_t nlistings;
    struct strv plain_dirs; /* directories in a home that are no links */
    size_t linked;          /* protected files that have further names */
    char *linked_first;     /* one of them */
};

/* Adds an op, or replaces the one at the same path if the new kind outranks it (deny wins). NULL when the plan is full;
 * then pl->failed is set. `path` is copied. */
struct plan_op *plan_put(struct planner *pl, enum plan_op_kind kind, const char *path, struct plan_why why);
/* facts->look() with fewer system calls. */
int plan_look(struct planner *pl, const char *path, struct plan_fact *ret);
void plan_look_done(struct planner *pl);
/* The op exactly at path, or NULL. */
struct plan_op *plan_at(const struct plan *plan, const char *path);
/* The writable host tree that `path` lies in, or NULL: the deepest bind above it decides. */
const struct plan_op *plan_writable_root(const struct plan *plan, const char *path);

/* Records what the plan saw at src; takes the string, which may be NULL. */
void plan_identify(struct plan_op *op, const struct plan_fact *f, char *src);
/* Whether the wall itself provides this place: /proc, /sys, /dev. */
bool plan_own_tree(const char *path);
/* The host path that is shown at `path` inside: through the deepest bind above it, in a container else through the
 * uppermost layer that has it, else the same path. New string. */
char *plan_host_path(const struct planner *pl, const char *path);
/* Every other place at which the host path `host` is shown, because a directory above it is bound elsewhere. */
void plan_other_places(const struct planner *pl, const char *host, struct strv *ret);
/* The directory with every link resolved, or NULL. Borrowed until the next call. */
const char *plan_real_dir(struct planner *pl, const char *dir);
/* Fails the plan: "origin: path what; remedy". Returns -1. */
int plan_refuse(struct planner *pl, const struct file_rule *r, const char *what, const char *remedy);

/* Masks what may not be read: deny_read rules and the host's sockets. */
int plan_mask(struct planner *pl);
/* Protected names and deny_write rules inside writable trees: read-only binds, stubs and pins. */
int plan_protect(struct planner *pl);

#endif
