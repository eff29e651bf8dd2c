/* covers-int.h - shared by covers.c (outside: watches) and covers-inside.c (the child that enters the sandbox) only. */
#ifndef HUTCH_WALL_COVERS_INT_H
#define HUTCH_WALL_COVERS_INT_H

#include "wall/covers.h"

/* Which ops of the plan are to be looked at. */
struct covers_set {
    uint64_t bits[PLAN_OPS_MAX / 64];
    bool any;
};
static inline bool covers_has(const struct covers_set *s, size_t i) { return s->bits[i / 64] >> i % 64 & 1; }
static inline void covers_add(struct covers_set *s, size_t i)
{
    s->bits[i / 64] |= 1ULL << i % 64;
    s->any = true;
}

/* What the child did about one op: eno is 0 if it was covered again. Ops that needed nothing are not reported. */
struct covers_report {
    uint32_t op;
    int32_t eno;
};

struct covers_place {
    const struct wall_spec *spec;
    int userns, mntns, cover_file, cover_dir;
};

/* The child: enters the sandbox, covers what of the set is open, writes reports to `out`. */
void covers_inside(const struct covers_place *p, const struct covers_set *set, int out) __attribute__((noreturn));

#endif
