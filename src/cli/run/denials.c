/* denials.c - keeps the list of refusals, and answers the seccomp listener. */
#include "cli/run/denials.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/run/denials-int.h"
#include "os/seccomp.h"
#include "policy/run/filter.h"
#include "policy/run/syscalls.h"

enum { TAIL_ITEMS = 4, TAIL_SUBJECT = 160, PAGE = 4096 };

struct denials *denials_new(const struct policy *policy, const struct plan *plan, unsigned filter_flags)
{
    struct denials *d = xcalloc(1, sizeof *d);
    d->policy = policy;
    d->plan = plan;
    d->flags = filter_flags;
    d->root = d->netns = -1;
    d->notified = NOTIFIED_INIT;
    return d;
}

void denials_set_network(struct denials *d, int netns) { d->netns = netns; }

void denials_set_watch(struct denials *d, const struct denials_watch *watch) { d->watch = *watch; }

static void denial_free(struct denial *x)
{
    free(x->subject);
    free(x->rule);
    free(x->source);
    buf_done(&x->hint);
    buf_done(&x->grant_policy);
    buf_done(&x->grant_flag);
    free(x);
}

void denials_free(struct denials *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->n; i++)
        denial_free(d->items[i]);
    for (size_t i = 0; i < PARENT_CACHE; i++) {
        free(d->parents[i].named);
        free(d->parents[i].real);
    }
    if (d->root >= 0)
        (void)close(d->root);
    if (d->netns >= 0)
        (void)close(d->netns);
    free(d);
}

/* FNV-1a. */
uint64_t denials_hash(uint64_t seed, const char *s)
{
    uint64_t h = seed ^ 0xcbf29ce484222325ULL;
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3ULL;
    return h;
}

struct denial *denials_count(struct denials *d, const char *kind, const char *access, const char *subject,
                             uint64_t count)
{
    char cut[DENIALS_SUBJECT_MAX + 1];
    (void)snprintf(cut, sizeof cut, "%s", subject);
    uint64_t hash = denials_hash(denials_hash(denials_hash(0, kind), access), cut);
    d->total += count;
    for (size_t i = 0; i < d->n; i++) {
        struct denial *x = d->items[i];
        if (x->hash == hash && strcmp(x->subject, cut) == 0 && strcmp(x->kind, kind) == 0 &&
            strcmp(x->access, access) == 0) {
            x->count += count;
            return NULL;
        }
    }
    if (d->n == DENIALS_MAX) {
        d->omitted += count;
        return NULL;
    }
    struct denial *x = xcalloc(1, sizeof *x);
    *x = (struct denial){.hash = hash, .count = count, .kind = kind, .access = access, .category = ""};
    x->subject = xstrdup(cut);
    d->items[d->n++] = x;
    return x;
}

uint64_t denials_total(const struct denials *d) { return d->total; }

/* --- the caller's memory ------------------------------------------------------------------------------------------ */

/* process_vm_readv() stops between remote pieces, never inside one, so let each piece end with its page. */
static ssize_t read_pages(pid_t pid, uint64_t addr, void *ret, size_t n)
{
    struct iovec local = {ret, n}, remote[2];
    size_t first = PAGE - (size_t)(addr % PAGE);
    if (first > n)
        first = n;
    remote[0] = (struct iovec){(void *)(uintptr_t)addr, first};
    remote[1] = (struct iovec){(void *)(uintptr_t)(addr + first), n - first};
    return process_vm_readv(pid, &local, 1, remote, first < n ? 2 : 1, 0);
}

bool denials_read_string(pid_t pid, uint64_t addr, char *ret, size_t max)
{
    ssize_t n = addr == 0 ? -1 : read_pages(pid, addr, ret, max - 1 < PAGE ? max - 1 : PAGE);
    if (n <= 0)
        return false;
    ret[n] = '\0';
    return true;
}

bool denials_read_bytes(pid_t pid, uint64_t addr, void *ret, size_t n)
{
    return addr != 0 && read_pages(pid, addr, ret, n) == (ssize_t)n;
}

/* --- notifications ------------------------------------------------------------------------------------------------ */

/* While learning, allow what a policy could grant, to see what the command does next. */
static bool grants_for_now(const struct denials *d, const struct seccomp_data *call)
{
    struct filter_denial why;
    return (d->flags & FILTER_LEARN) && filter_denial_of(d->flags, call, &why) &&
           (why.grant == GRANT_ALLOW || why.grant == GRANT_DEBUGGER);
}

/* Reads the caller's memory before answering, while it waits; does everything else afterwards. */
static void denials_refuse_call(struct denials *d, int listener, const struct seccomp_notif *n, int eno)
{
    _cleanup_buf_ struct buf subject = {0};
    denials_call_subject(&n->data, (pid_t)n->pid, &subject);
    bool still_there = seccomp_id_valid(listener, n->id);
    bool granted = grants_for_now(d, &n->data);
    (void)(granted ? seccomp_continue(listener, n->id) : seccomp_refuse(listener, n->id, eno));
    if (!still_there) { /* the caller is gone: the memory may be another process's */
        buf_done(&subject);
        denials_call_subject(&n->data, 0, &subject);
    }
    denials_call_refused(d, &n->data, buf_str(&subject));
    struct filter_denial why = {0};
    const char *word = filter_denial_of(d->flags, &n->data, &why) && why.word ? why.word : syscall_name(n->data.nr);
    if (d->watch.call)
        d->watch.call(d->watch.ctx, word, buf_str(&subject), granted);
}

static void make_netlink(struct denials *d, int listener, const struct seccomp_notif *n)
{
    _cleanup_close_ int fd = notified_make_netlink_in(&d->notified, d->netns, &n->data);
    if (fd < 0)
        denials_refuse_call(d, listener, n, errno);
    else
        notified_give(listener, n, fd, 0);
}

static void let_pass(struct denials *d, int listener, const struct seccomp_notif *n, pid_t init)
{
    struct path_attempt a;
    bool known = denials_read_attempt(&n->data, (pid_t)n->pid, &a);
    if (known)
        denials_open_root(d, init, (pid_t)n->pid);
    if (!seccomp_id_valid(listener, n->id)) { /* the caller is gone: the pid may be another process's */
        known = false;
        if (d->root >= 0)
            (void)close(TAKE_FD(d->root));
    }
    (void)seccomp_continue(listener, n->id);
    if (known)
        denials_judge(d, &a);
}

void denials_notified(struct denials *d, int listener, pid_t init)
{
    struct seccomp_notif n;
    if (seccomp_receive(listener, &n) <= 0)
        return;
    int eno = filter_answer(d->flags, &n.data);
    if (eno > 0)
        denials_refuse_call(d, listener, &n, eno);
    else if (eno == FILTER_MAKE_NETLINK)
        make_netlink(d, listener, &n);
    else if (eno == FILTER_SET_BUFFER)
        notified_set_buffer(&d->notified, listener, &n);
    else
        let_pass(d, listener, &n, init);
}

/* --- limits ------------------------------------------------------------------------------------------------------- */

static const char *const limit_flags[LIMIT_MAX] = {
    [LIMIT_CPU] = "--cpus",          [LIMIT_MEMORY] = "--memory",     [LIMIT_PIDS] = "--pids",
    [LIMIT_DISK] = "--disk",         [LIMIT_INODES] = "--inodes",     [LIMIT_OPEN_FILES] = "--open-files",
    [LIMIT_WALL_TIME] = "--timeout", [LIMIT_CPU_TIME] = "--cpu-time", [LIMIT_OUTPUT] = "--output-bytes",
};

/* Writes the value as documents and flags take it. */
static void add_limit_word(struct buf *b, enum limit_id id, uint64_t v)
{
    switch (id) {
    case LIMIT_CPU:
        buf_addf(b, "%llu.%03llu", (unsigned long long)(v / 1000), (unsigned long long)(v % 1000));
        return;
    case LIMIT_MEMORY:
    case LIMIT_DISK:
    case LIMIT_OUTPUT:
        if (v % (1 << 20) == 0)
            buf_addf(b, "%lluM", (unsigned long long)(v >> 20));
        else
            buf_addf(b, "%llu", (unsigned long long)v);
        return;
    case LIMIT_WALL_TIME:
    case LIMIT_CPU_TIME:
        buf_addf(b, v % 1000 ? "%llums" : "%llus", (unsigned long long)(v % 1000 ? v : v / 1000));
        return;
    default:
        buf_addf(b, "%llu", (unsigned long long)v);
    }
}

void denials_limit(struct denials *d, enum limit_id limit, uint64_t count)
{
    const struct limit *l = &d->policy->limits[limit];
    struct denial *x = denials_count(d, "limit", "", limit_id_name(limit), count);
    if (!x)
        return;
    _cleanup_buf_ struct buf source = {0}, more = {0};
    origin_add(&source, &l->origin);
    x->rule = xasprintf("limits.%s", limit_id_name(limit));
    x->source = xstrdup(buf_str(&source));
    x->eno = limit == LIMIT_PIDS ? EAGAIN : limit == LIMIT_DISK || limit == LIMIT_INODES ? ENOSPC : 0;
    buf_adds(&x->hint, "the limit of ");
    limit_add_value(&x->hint, limit, l->value);
    buf_adds(&x->hint, " was reached");
    if (l->value == 0 || l->value > UINT64_MAX / 2)
        return;
    add_limit_word(&more, limit, l->value * 2);
    buf_addf(&x->grant_policy, "limits: {%s: %s}", limit_id_name(limit), buf_str(&more));
    buf_addf(&x->grant_flag, "%s %s", limit_flags[limit], buf_str(&more));
}

/* --- output ------------------------------------------------------------------------------------------------------- */

static void item_json(const struct denial *x, struct json *j)
{
    json_obj(j, NULL);
    json_str(j, "kind", x->kind);
    json_str(j, "subject", x->subject);
    if (*x->access)
        json_str(j, "access", x->access);
    if (*x->category)
        json_str(j, "category", x->category);
    json_str(j, "rule", x->rule);
    json_str(j, "source", x->source);
    json_u64(j, "count", x->count);
    if (x->eno)
        json_str(j, "errno", text_errno(x->eno));
    json_bool(j, "probable", x->probable);
    json_str(j, "hint", buf_str(&x->hint));
    if (x->grant_policy.n == 0) {
        json_none(j, "grant");
    } else {
        json_obj(j, "grant");
        json_str(j, "policy", buf_str(&x->grant_policy));
        json_str(j, "flag", x->grant_flag.n ? buf_str(&x->grant_flag) : NULL);
        json_end_obj(j);
    }
    json_end_obj(j);
}

void denials_json(const struct denials *d, struct json *j)
{
    json_arr(j, "denials");
    for (size_t i = 0; i < d->n; i++)
        item_json(d->items[i], j);
    json_end_arr(j);
    json_u64(j, "denials_omitted", d->omitted);
}

static void item_tail(const struct denial *x, struct buf *out)
{
    buf_adds(out, strcmp(x->kind, "limit") == 0        ? "hutch: limit: "
                  : strcmp(x->category, "failed") == 0 ? "hutch: unreachable: "
                                                       : "hutch: refused: ");
    if (strcmp(x->kind, "file") == 0)
        buf_addf(out, "%s ", strcmp(x->access, "read") == 0 ? "read of" : "write to");
    text_add_safe(out, x->subject, TAIL_SUBJECT);
    if (x->count > 1)
        buf_addf(out, ", %llu times", (unsigned long long)x->count);
    buf_adds(out, " (");
    text_add_safe(out, buf_str(&x->hint), 2 * TAIL_SUBJECT);
    buf_adds(out, ")\n");
    if (x->grant_flag.n == 0)
        return;
    buf_adds(out, "hutch:   allow it with ");
    text_add_safe(out, buf_str(&x->grant_flag), 4 * TAIL_SUBJECT);
    buf_addc(out, '\n');
}

size_t denials_grants(const struct denials *d, const char **ret, size_t max)
{
    size_t n = 0;
    for (size_t i = 0; i < d->n && n < max; i++) {
        const struct denial *x = d->items[i];
        bool had = x->grant_flag.n == 0 || strcmp(x->kind, "limit") == 0;
        for (size_t k = 0; k < n && !had; k++)
            had = strcmp(ret[k], buf_str(&x->grant_flag)) == 0;
        if (!had)
            ret[n++] = buf_str(&x->grant_flag);
    }
    return n;
}

void denials_tail(const struct denials *d, struct buf *out)
{
    size_t shown = d->n < TAIL_ITEMS ? d->n : TAIL_ITEMS;
    uint64_t told = 0;
    for (size_t i = 0; i < shown; i++) {
        item_tail(d->items[i], out);
        told += d->items[i]->count;
    }
    if (d->total > told)
        buf_addf(out, "hutch: and %llu other refusals; --json FILE records them\n",
                 (unsigned long long)(d->total - told));
}
