/* filter.c - the program for a policy, the supervisor's answers, and words about both. */
#include "policy/run/filter.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/text.h"
#include "policy/run/filter-int.h"

/* Made after the filter is loaded, by us or by any program at all: denying one means that nothing starts or ends. */
static const int indispensable[] = {NR_execve, NR_execveat, NR_close_range, NR_exit, NR_exit_group, NR_rt_sigreturn};

static unsigned flags_of(const struct policy *p, unsigned flags)
{
    if (p && p->profile && strcmp(p->profile, "debugger") == 0)
        flags |= FILTER_DEBUGGER;
    if (p && p->profile && strcmp(p->profile, "no-unix") == 0)
        flags |= FILTER_NO_UNIX;
    return rules_complete_flags(flags);
}

/* The call is refused whatever its arguments: denying it again changes nothing, and its refusal stays recorded. */
static bool refused_anyway(int nr, unsigned flags)
{
    for (size_t i = 0; i < nchecks; i++)
        if (rules_applies(&checks[i], nr, flags))
            return false;
    return rules_plain(nr, flags, NULL).eno > 0;
}

const char *const filter_words[] = {"netlink", "socket-filters", "leases", NULL};

bool filter_is_word(const char *name)
{
    for (const char *const *w = filter_words; *w; w++)
        if (strcmp(*w, name) == 0)
            return true;
    return false;
}

/* A document names a word once, the lowest level last: parse.c keeps one rule of each. */
static void override_word(struct overrides *o, const struct syscall_rule *r)
{
    for (int cat = 0; cat < CAT_MAX; cat++)
        if (category_words[cat] && strcmp(category_words[cat], r->name) == 0)
            o->word[cat] = r->allow ? OVERRIDE_ALLOW : OVERRIDE_DENY;
}

static bool answer_is_grantable(struct answer a)
{
    return categories[a.cat].grant == GRANT_ALLOW || categories[a.cat].grant == GRANT_DEBUGGER;
}

/* A call with argument checks cannot be opened further, except where the rest of it may be granted (personality). */
static enum override override_of(const struct syscall_rule *r, int nr, unsigned flags)
{
    if (!r->allow)
        return refused_anyway(nr, flags) ? OVERRIDE_NONE : OVERRIDE_DENY;
    struct answer a = rules_plain(nr, flags, NULL);
    return a.eno > 0 && answer_is_grantable(a) ? OVERRIDE_ALLOW : OVERRIDE_NONE;
}

static int refuse_rule(const struct syscall_rule *r, struct err *err, const char *why, const char *detail)
{
    _cleanup_buf_ struct buf where = {0}, name = {0};
    origin_add(&where, &r->origin);
    text_add_safe(&name, r->name, 64);
    return err_set(err, ERR_POLICY, 0, "%s: syscalls.%s: \"%s\" %s%s", buf_str(&where), r->allow ? "allow" : "deny",
                   buf_str(&name), why, detail);
}

static int filter_check_rule(const struct syscall_rule *r, int nr, unsigned flags, struct err *err)
{
    if (nr < 0 && filter_is_word(r->name))
        return 0;
    if (nr < 0) {
        const char *near = text_nearest(r->name, syscall_names);
        return near ? refuse_rule(r, err, "is not a system call of x86-64; the nearest is ", near)
                    : refuse_rule(r, err, "is not a system call of x86-64", "");
    }
    for (size_t i = 0; !r->allow && i < ARRAY_LEN(indispensable); i++)
        if (nr == indispensable[i])
            return refuse_rule(r, err, "cannot be denied: no command could start or end without it", "");
    struct answer a = rules_plain(nr, flags, NULL);
    if (r->allow && refused_anyway(nr, flags) && !answer_is_grantable(a))
        return refuse_rule(r, err, "can never be allowed: ", categories[a.cat].reason);
    return 0;
}

/* Deny wins over allow, whichever comes first. Returns whether anything differs from the profile, -1 on error. */
static int collect_overrides(const struct policy *p, unsigned flags, struct overrides *o, struct err *err)
{
    bool any = false;
    for (size_t i = 0; i < p->nsyscalls; i++) {
        const struct syscall_rule *r = &p->syscalls[i];
        int nr = syscall_number(r->name);
        if (filter_check_rule(r, nr, flags, err) < 0)
            return -1;
        if (nr < 0) {
            override_word(o, r);
            any = true;
            continue;
        }
        enum override v = override_of(r, nr, flags);
        if (v > o->of[nr])
            o->of[nr] = (unsigned char)v;
        any = any || v != OVERRIDE_NONE;
    }
    /* allow: [X] and deny: [X] for a call the profile refuses: the deny alone would be redundant, together it wins. */
    for (size_t i = 0; i < p->nsyscalls; i++) {
        int nr = syscall_number(p->syscalls[i].name);
        if (!p->syscalls[i].allow && nr >= 0 && o->of[nr] == OVERRIDE_ALLOW)
            o->of[nr] = OVERRIDE_NONE;
    }
    return any;
}

static bool find_builtin(unsigned flags, struct filter *ret)
{
    for (size_t i = 0; i < nfilter_builtins; i++)
        if (filter_builtins[i].flags == flags) {
            *ret = (struct filter){filter_builtins[i].insns, filter_builtins[i].n, flags, false};
            return true;
        }
    return false;
}

int filter_build(const struct policy *p, unsigned flags, struct filter *ret, struct err *err)
{
    flags = flags_of(p, flags);
    if (!rules_builtin_flags(flags))
        return err_set(err, ERR_INTERNAL, 0, "filter flags %#x contradict each other", flags);
    struct overrides o = {0};
    int custom = p ? collect_overrides(p, flags, &o, err) : 0;
    if (custom < 0)
        return -1;
    if (!custom && find_builtin(flags, ret))
        return 0;
    *ret = (struct filter){.flags = flags, .owned = true};
    ret->insns = filter_compile(flags, &o, &ret->n);
    return 0;
}

void filter_done(struct filter *f)
{
    if (f->owned)
        free((void *)f->insns);
    *f = (struct filter){0};
}

/* Calls of custom rules are never notified, so the policy's own rules are not needed here. Any unexpected call is
 * refused. */
int filter_answer(unsigned flags, const struct seccomp_data *d)
{
    struct answer a = rules_decide(d, rules_complete_flags(flags), NULL);
    switch (a.eno) {
    case ANSWER_TELL:
        return FILTER_CONTINUE;
    case ANSWER_NETLINK:
        return FILTER_MAKE_NETLINK;
    case ANSWER_BUFFER:
        return FILTER_SET_BUFFER;
    default:
        return a.eno == ANSWER_ALLOW ? EPERM : a.eno;
    }
}

size_t filter_set_key(struct sock_filter *insns, size_t n, const uint32_t key[2])
{
    size_t done = 0;
    for (size_t i = 0; i < n; i++) {
        bool first = insns[i].k == FILTER_KEY_FIRST;
        if (insns[i].code != (BPF_ALU | BPF_XOR | BPF_K) || (!first && insns[i].k != FILTER_KEY_SECOND))
            continue;
        insns[i].k = key[first ? 0 : 1];
        done++;
    }
    return done;
}

bool filter_denial_of(unsigned flags, const struct seccomp_data *d, struct filter_denial *ret)
{
    struct answer a = rules_decide(d, rules_complete_flags(flags), NULL);
    if (a.eno == ANSWER_NETLINK)
        a.eno = rules_complete_flags(flags) & FILTER_NOTIFY ? ENOBUFS : EAFNOSUPPORT;
    if (a.eno <= 0)
        return false;
    const struct category_info *c = &categories[a.cat];
    *ret = (struct filter_denial){a.eno, c->name, c->reason, c->grant, category_words[a.cat]};
    if (a.cat == CAT_NONE)
        *ret = (struct filter_denial){a.eno, "unknown", "this build does not know the call", GRANT_NEVER, NULL};
    return true;
}

static const struct syscall_rule *rule_for(const struct policy *p, int nr)
{
    const struct syscall_rule *found = NULL;
    for (size_t i = 0; p && nr >= 0 && i < p->nsyscalls; i++) {
        if (syscall_number(p->syscalls[i].name) != nr)
            continue;
        if (!found || found->allow)
            found = &p->syscalls[i];
    }
    return found;
}

/* The verdict of the tables alone. Rows that only tell the supervisor do not make a call depend on its arguments. */
static enum filter_verdict builtin_verdict(unsigned flags, int nr, struct answer *ret)
{
    *ret = rules_plain(nr, flags, NULL);
    for (size_t i = 0; i < nchecks; i++) {
        if (!rules_applies(&checks[i], nr, flags) || !checks[i].text)
            continue;
        if (checks[i].conds[0].op == COND_END) {
            *ret = checks[i].answer;
            return FILTER_REFUSED;
        }
        if (ret->eno == ANSWER_ALLOW)
            *ret = checks[i].answer;
        return FILTER_CHECKED;
    }
    return ret->eno == ANSWER_ALLOW ? FILTER_ALLOWED : FILTER_REFUSED;
}

enum filter_verdict filter_verdict_of(const struct policy *p, unsigned flags, int nr, const char **reason, int *eno,
                                      const struct syscall_rule **rule)
{
    flags = flags_of(p, flags);
    struct answer a = {ENOSYS, CAT_NONE};
    enum filter_verdict v = FILTER_UNKNOWN;
    const struct syscall_rule *own = NULL;
    if (syscall_name(nr)) {
        v = builtin_verdict(flags, nr, &a);
        own = rule_for(p, nr);
        switch (own ? override_of(own, nr, flags) : OVERRIDE_NONE) {
        case OVERRIDE_ALLOW:
            v = FILTER_ALLOWED;
            a = (struct answer){ANSWER_ALLOW, CAT_NONE};
            break;
        case OVERRIDE_DENY:
            v = FILTER_REFUSED;
            a = (struct answer){EPERM, CAT_CUSTOM};
            break;
        case OVERRIDE_NONE:
            own = NULL;
            break;
        }
    }
    if (reason)
        *reason = v == FILTER_UNKNOWN ? "this build does not know the call" : categories[a.cat].reason;
    if (eno)
        *eno = a.eno > 0 ? a.eno : 0;
    if (rule)
        *rule = own;
    return v;
}
