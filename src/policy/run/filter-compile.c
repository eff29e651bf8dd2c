/* filter-compile.c - the filter's tables as a classic BPF program.
 *
 *     architecture other than x86-64: kill
 *     openat, when it needs its arguments: answered at once, it is the hottest of the checked calls
 *     binary search over ranges of numbers with the same leaf
 *     leaves: RET, or the checks of one call in order, each falling through to the next, then RET
 *
 * Jumps only go forward, so the program is built from its end: every target exists, at a known distance, before the
 * jump to it, and leaves share their RETs. Its length and the steps to a leaf count: the kernel compiles the program
 * each time a sandbox starts, and walks it once for every number to fill its bitmap of allowed calls.
 */
#include <assert.h>
#include <errno.h>
#include <linux/audit.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "policy/run/filter-int.h"

enum { X32_BIT = 0x40000000, JUMP_MAX = 255 };
enum { COND_HIGH = 6 }; /* argument COND_HIGH + n: the high half of n */

/* Instructions in reverse; a place in the program is an index here, and stays valid while the program grows. */
struct prog {
    struct sock_filter *v;
    size_t n, cap;
};

/* Neighbouring numbers with the same leaf, up to the first of the next range: an action, or the checks of one call. */
struct range {
    uint32_t first;
    bool checked;
    uint32_t action; /* if not checked */
};

struct ranges {
    struct range *v;
    size_t n, cap;
};

struct compiler {
    unsigned flags;
    const struct overrides *o;
    struct prog prog;
};

/* --- instructions ------------------------------------------------------------------------------------------------- */

static size_t put_insn(struct prog *p, uint16_t code, uint32_t k, size_t jt, size_t jf)
{
    MEM_GROW(p->v, p->n, p->cap);
    p->v[p->n] = (struct sock_filter){code, (uint8_t)jt, (uint8_t)jf, k};
    return p->n++;
}

/* The distance that the next instruction would have to jump to reach `place`. */
static size_t jump_distance(const struct prog *p, size_t place) { return p->n - place - 1; }

/* Continues with what was put last. */
static size_t put_load(struct prog *p, size_t offset)
{
    return put_insn(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static size_t put_ret(struct prog *p, uint32_t action)
{
    const uint16_t code = BPF_RET | BPF_K;
    for (size_t i = p->n; i-- > 0 && jump_distance(p, i) < JUMP_MAX / 2;)
        if (p->v[i].code == code && p->v[i].k == action)
            return i;
    return put_insn(p, code, action, 0, 0);
}

/* Returns `place`, or a copy of it that a conditional jump can reach, even with one more instruction in between. */
static size_t jump_make_reachable(struct prog *p, size_t place)
{
    if (jump_distance(p, place) < JUMP_MAX)
        return place;
    if (p->v[place].code == (BPF_RET | BPF_K))
        return put_insn(p, BPF_RET | BPF_K, p->v[place].k, 0, 0);
    return put_insn(p, BPF_JMP | BPF_JA, (uint32_t)jump_distance(p, place), 0, 0);
}

static size_t put_jump(struct prog *p, uint16_t op, uint32_t k, size_t yes, size_t no)
{
    yes = jump_make_reachable(p, yes);
    no = jump_make_reachable(p, no);
    return put_insn(p, (uint16_t)(BPF_JMP | BPF_K | op), k, jump_distance(p, yes), jump_distance(p, no));
}

/* --- leaves ------------------------------------------------------------------------------------------------------- */

/* Little endian: the low half of an argument comes first. */
static size_t arg_offset(unsigned arg)
{
    size_t half = arg >= COND_HIGH ? sizeof(uint32_t) : 0;
    return offsetof(struct seccomp_data, args) + arg % COND_HIGH * sizeof(uint64_t) + half;
}

/* Always compares both words: if the time revealed when the first one is right, guessing would take 2^32 attempts for
 * each instead of 2^64 for both. */
static size_t put_key_check(struct prog *p, size_t yes, size_t no)
{
    (void)put_jump(p, BPF_JEQ, 0, yes, no);
    (void)put_insn(p, BPF_ALU | BPF_OR | BPF_X, 0, 0, 0);
    (void)put_insn(p, BPF_ALU | BPF_XOR | BPF_K, FILTER_KEY_SECOND, 0, 0);
    (void)put_load(p, arg_offset(COND_HIGH + 1));
    (void)put_insn(p, BPF_MISC | BPF_TAX, 0, 0, 0);
    (void)put_insn(p, BPF_ALU | BPF_XOR | BPF_K, FILTER_KEY_FIRST, 0, 0);
    return put_load(p, arg_offset(COND_HIGH + 0));
}

static size_t put_cond(struct prog *p, const struct cond *c, size_t yes, size_t no)
{
    if (c->op == COND_KEY)
        return put_key_check(p, yes, no);
    if (c->op == COND_BITS) {
        (void)put_jump(p, BPF_JSET, c->mask, yes, no);
    } else {
        for (size_t i = c->nvalues; i-- > 0;)
            no = put_jump(p, BPF_JEQ, c->values[i], yes, no);
        if (c->mask != UINT32_MAX)
            (void)put_insn(p, BPF_ALU | BPF_AND | BPF_K, c->mask, 0, 0);
    }
    return put_load(p, arg_offset(c->arg));
}

static size_t put_check(struct compiler *c, const struct check *check, size_t next)
{
    size_t n = 0, yes = put_ret(&c->prog, rules_action(rules_answer(check, c->o), c->flags));
    while (check->conds[n].op != COND_END)
        n++;
    while (n-- > 0)
        yes = put_cond(&c->prog, &check->conds[n], yes, next);
    return yes;
}

/* A row without conditions is the end: neither later rows nor the plain answer are reached. */
static size_t put_checks(struct compiler *c, int nr)
{
    const struct check *rows[16];
    size_t n = 0;
    bool closed = false;
    for (size_t i = 0; i < nchecks && !closed; i++) {
        if (!rules_applies(&checks[i], nr, c->flags))
            continue;
        assert(n < ARRAY_LEN(rows));
        rows[n++] = &checks[i];
        closed = checks[i].conds[0].op == COND_END;
    }
    size_t next = closed ? 0 : put_ret(&c->prog, rules_action(rules_plain(nr, c->flags, c->o), c->flags));
    while (n-- > 0)
        next = put_check(c, rows[n], next);
    return next;
}

/* --- search ------------------------------------------------------------------------------------------------------- */

/* A first row without conditions makes a call as plain as one without rows. */
static struct range range_of(const struct compiler *c, int nr)
{
    if (rules_checked(nr, c->o))
        for (size_t i = 0; i < nchecks; i++) {
            if (!rules_applies(&checks[i], nr, c->flags))
                continue;
            if (checks[i].conds[0].op == COND_END)
                return (struct range){(uint32_t)nr, false, rules_action(rules_answer(&checks[i], c->o), c->flags)};
            return (struct range){(uint32_t)nr, true, 0};
        }
    return (struct range){(uint32_t)nr, false, rules_action(rules_plain(nr, c->flags, c->o), c->flags)};
}

static bool openat_first(const struct compiler *c) { return range_of(c, NR_openat).checked; }

static void ranges_add(struct ranges *r, struct range next)
{
    const struct range *last = r->n ? &r->v[r->n - 1] : NULL;
    if (last && !last->checked && !next.checked && last->action == next.action)
        return;
    MEM_GROW(r->v, r->n, r->cap);
    r->v[r->n++] = next;
}

static void ranges_collect(const struct compiler *c, struct ranges *r)
{
    for (int nr = 0; nr <= SYSCALL_MAX + 1; nr++)
        if (nr != NR_openat ||
            !openat_first(c)) /* it is answered before the search, and may share its neighbour's range */
            ranges_add(r, range_of(c, nr));
    ranges_add(r, (struct range){X32_BIT, false, SECCOMP_RET_KILL_PROCESS});
    /* A tracer skips a call by making its number -1, which must not look like an x32 call. */
    ranges_add(r, (struct range){UINT32_MAX, false, SECCOMP_RET_ERRNO | ENOSYS});
}

/* Where to cut [lo, hi): in the middle of the known numbers, so that long ranges are found in few steps. */
static size_t ranges_middle(const struct range *v, size_t lo, size_t hi)
{
    uint32_t end = v[hi - 1].first > SYSCALL_MAX ? SYSCALL_MAX + 1 : v[hi - 1].first, want = (v[lo].first + end) / 2;
    size_t mid = lo + 1;
    while (mid + 1 < hi && v[mid].first < want)
        mid++;
    return mid;
}

/* The number is in A. */
static size_t put_search(struct compiler *c, const struct range *v, size_t lo, size_t hi)
{
    if (hi - lo == 1)
        return v[lo].checked ? put_checks(c, (int)v[lo].first) : put_ret(&c->prog, v[lo].action);
    size_t mid = ranges_middle(v, lo, hi);
    size_t high = put_search(c, v, mid, hi), low = put_search(c, v, lo, mid);
    return put_jump(&c->prog, BPF_JGE, v[mid].first, high, low);
}

static void put_program(struct compiler *c, const struct ranges *r)
{
    struct prog *p = &c->prog;
    size_t search = put_search(c, r->v, 0, r->n);
    if (openat_first(c)) {
        size_t leaf = put_checks(c, NR_openat);
        (void)put_jump(p, BPF_JEQ, NR_openat, leaf, search);
    }
    size_t number = put_load(p, offsetof(struct seccomp_data, nr));
    size_t kill = put_ret(p, SECCOMP_RET_KILL_PROCESS);
    (void)put_jump(p, BPF_JEQ, AUDIT_ARCH_X86_64, number, kill);
    (void)put_load(p, offsetof(struct seccomp_data, arch));
}

struct sock_filter *filter_compile(unsigned flags, const struct overrides *o, size_t *ret_n)
{
    struct compiler c = {.flags = rules_complete_flags(flags), .o = o};
    struct ranges ranges = {0};
    ranges_collect(&c, &ranges);
    put_program(&c, &ranges);
    free(ranges.v);
    struct prog *p = &c.prog;
    for (size_t i = 0; i < p->n / 2; i++) {
        struct sock_filter swap = p->v[i];
        p->v[i] = p->v[p->n - 1 - i];
        p->v[p->n - 1 - i] = swap;
    }
    *ret_n = p->n;
    return p->v;
}
