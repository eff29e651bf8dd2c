/* plan-int.h - shared by plan.c and plan-protect.c only. */
#ifndef HUTCH_POLICY_PLAN_INT_H
#define HUTCH_POLICY_PLAN_INT_H

#include "policy/plan.h"

struct planner {
    const struct policy *p;
    const struct plan_caller *who;
    const struct plan_facts *facts;
    struct plan *plan;
    struct err *err;
    bool failed;
};

/* Where a rule came from, for an op. */
struct plan_why {
    const char *rule;
    const struct origin *origin;
};

/* Adds an op, or replaces the one at the same path if the new kind outranks it (deny wins). NULL when the plan is full;
 * then pl->failed is set. `path` is copied. */
struct plan_op *plan_put(struct planner *pl, enum plan_op_kind kind, const char *path, struct plan_why why);
/* The op exactly at path, or NULL. */
struct plan_op *plan_at(const struct plan *plan, const char *path);
/* The writable host tree that `path` lies in, or NULL: the deepest bind above it decides. */
const struct plan_op *plan_writable_root(const struct plan *plan, const char *path);

/* Protected names and deny_write rules inside writable trees: read-only binds, stubs and pins. */
int plan_protect(struct planner *pl);

#endif
