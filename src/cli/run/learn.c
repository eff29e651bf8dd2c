/* learn.c - watches a run with --learn and writes the policy file. */
#include "cli/run/learn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/path.h"
#include "base/text.h"
#include "policy/run/syscalls.h"

static const char header[] = "# Learnt by hutch run --learn";

enum { COMMAND_MAX = 300 };

struct learn {
    const char *file;
    const struct wall_learn *places;
    const struct plan *plan;
    bool root;
    const char *guard;
    struct learn_seen seen;
};

/* --- the host ------------------------------------------------------------------------------------------------------- */

static enum plan_type host_type(void *ctx, const char *path)
{
    struct plan_fact f = {0};
    (void)ctx;
    if (plan_host_facts.look(plan_host_facts.ctx, path, &f) < 0)
        return TYPE_NONE;
    free(f.target);
    return f.type;
}

/* Whether any user could reach and read it. */
static bool host_open_to_all(void *ctx, const char *path)
{
    (void)ctx;
    struct stat st;
    if (lstat(path, &st) < 0)
        return true; /* does not exist: nothing to grant */
    if (!S_ISLNK(st.st_mode) && !(st.st_mode & (S_ISDIR(st.st_mode) ? S_IXOTH : S_IROTH)))
        return false;
    if (S_ISDIR(st.st_mode) && !(st.st_mode & S_IROTH))
        return false;
    for (_cleanup_free_ char *up = path_parent(path); strcmp(up, "/") != 0;) {
        if (stat(up, &st) == 0 && !(st.st_mode & S_IXOTH))
            return false;
        char *next = path_parent(up);
        free(up);
        up = next;
    }
    return true;
}

static const struct learn_host host = {.type = host_type, .open_to_all = host_open_to_all};

/* --- while it runs -------------------------------------------------------------------------------------------------- */

/* Keeps only reads that the policy would refuse; others need no grant. */
static bool would_be_hidden(const struct learn *l, const char *path)
{
    const struct plan_op *op = plan_op_for(l->plan, path);
    if (op && op->kind == OP_MASK)
        return op->type != TYPE_SOCKET;
    if (op && op->kind == OP_TMPFS && !op->writable) /* a directory made only as parent of visible ones */
        return true;
    return l->root && !op && !host_open_to_all(NULL, path);
}

static void saw_path(void *ctx, const char *path, bool write)
{
    struct learn *l = ctx;
    if (write || path_under(path, "/proc") || path_under(path, "/sys") || path_under(path, "/dev") ||
        !would_be_hidden(l, path) || strv_has(&l->seen.reads, path))
        return;
    if (l->seen.reads.n < LEARN_READS_MAX)
        strv_add(&l->seen.reads, path);
    else
        l->seen.truncated = true;
}

static void saw_move(void *ctx, const char *to)
{
    struct learn *l = ctx;
    if (l->seen.moved.n < LEARN_MOVED_MAX && !strv_has(&l->seen.moved, to))
        strv_add(&l->seen.moved, to);
}

static void saw_call(void *ctx, const char *name, const char *subject, bool grantable)
{
    struct learn *l = ctx;
    const char *what = grantable && name ? name : subject;
    struct strv *list = grantable && name ? &l->seen.calls : &l->seen.refused;
    if (list->n < LEARN_GRANTS_MAX && !strv_has(list, what))
        strv_add(list, what);
}

void learn_watch(struct learn *l, struct denials *d)
{
    const struct denials_watch watch = {.ctx = l, .path = saw_path, .move = saw_move, .call = saw_call};
    denials_set_watch(d, &watch);
}

static void take_sorted(struct strv *to, struct strv *from)
{
    *to = *from;
    *from = (struct strv){0};
    strv_sort(to); /* so that equal runs give equal files */
}

void learn_hosts(struct learn *l, struct strv *hosts, struct strv *missing)
{
    take_sorted(&l->seen.hosts, hosts);
    take_sorted(&l->seen.missing, missing);
}

void learn_leave_out(struct learn *l, const char *path) { l->guard = path; }

/* --- the file ------------------------------------------------------------------------------------------------------- */

static int learn_check_file(const char *file, struct err *err)
{
    char first[sizeof header] = "";
    _cleanup_close_ int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(err, ERR_USAGE, errno, "--learn %s", file);
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_USAGE, 0, "--learn %s: not a regular file; name one that can be replaced", file);
    ssize_t n = read(fd, first, sizeof first - 1);
    if (n == 0 || (n == (ssize_t)sizeof header - 1 && strcmp(first, header) == 0))
        return 0;
    return err_set(err, ERR_USAGE, 0, "--learn %s: the file exists and was not written by --learn; choose another name",
                   file);
}

/* By rename: a reader sees the old document or the new one. */
static int write_file(const char *file, const struct buf *text, struct err *err)
{
    if (learn_check_file(file, err) < 0)
        return -1;
    _cleanup_free_ char *temp = xasprintf("%s.XXXXXX", file);
    _cleanup_close_ int fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_USAGE, errno, "--learn %s: make a file beside it", file);
    if (fd_write_all(fd, text->p, text->n) == 0 && fchmod(fd, 0644) == 0 && fsync(fd) == 0 && rename(temp, file) == 0)
        return 0;
    int eno = errno;
    (void)unlink(temp);
    return err_set(err, ERR_SETUP, eno, "--learn %s: write it", file);
}

static void add_header(struct buf *out, char *const *argv)
{
    char when[32] = "?";
    time_t now = time(NULL);
    struct tm tm;
    if (gmtime_r(&now, &tm))
        (void)strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", &tm);
    _cleanup_buf_ struct buf command = {0};
    for (size_t i = 0; argv[i] && command.n < COMMAND_MAX; i++)
        buf_addf(&command, "%s%s", i ? " " : "", argv[i]);
    buf_addf(out,
             "%s, %s. The smallest additions to the policy of that run under which it would have passed.\n# Command: ",
             header, when);
    text_add_safe(out, buf_str(&command), COMMAND_MAX);
    buf_adds(out, "\n# Read it before you use it: it grants what the command did, wanted or not.\n");
}

/* As comments: the run shows only what was enough once. */
static void add_usage(struct buf *out, const struct outcome *o)
{
    uint64_t memory = o->cg.have & CGROUP_HAVE_MEMORY_PEAK ? o->cg.memory_peak : o->max_rss;
    buf_adds(out, "# Used in this run; limits should leave room above it:\n#   memory: ");
    num_add_size(out, memory);
    buf_adds(out, o->cg.have & CGROUP_HAVE_MEMORY_PEAK ? " at most" : " in the biggest process");
    if (o->cg.have & CGROUP_HAVE_PIDS_PEAK)
        buf_addf(out, "\n#   pids: %llu at most", (unsigned long long)o->cg.pids_peak);
    buf_adds(out, "\n#   cpu_time: ");
    num_add_duration(out, (o->user_us + o->system_us) / 1000);
    buf_adds(out, "\n#   wall_time: ");
    num_add_duration(out, o->wall_us / 1000);
    buf_addc(out, '\n');
}

/* --- before and after ----------------------------------------------------------------------------------------------- */

int learn_begin(const char *file, const struct wall_learn *places, const struct plan *plan,
                const struct plan_caller *who, struct learn **ret, struct err *err)
{
    if (learn_check_file(file, err) < 0)
        return -1;
    struct learn *l = xcalloc(1, sizeof *l);
    *l = (struct learn){.file = file, .places = places, .plan = plan, .root = who->root};
    *ret = l;
    return 0;
}

static void read_layers(struct learn *l, int vault)
{
    for (size_t i = 0; i < l->places->n; i++) {
        char name[32];
        const char *path = l->places->place[i].path;
        (void)snprintf(name, sizeof name, "L%zu/u", i);
        _cleanup_close_ int dir = openat(vault, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (dir >= 0) {
            learn_read_layer(dir, path, &host, &l->seen);
            continue;
        }
        _cleanup_buf_ struct buf note = {0};
        text_add_safe(&note, path, 200);
        buf_adds(&note, " stayed read-only while learning, because no layer could be put over it");
        strv_add(&l->seen.notes, buf_str(&note));
    }
}

/* Fails unless the text is a valid document. */
static int learn_check_document(const struct buf *text, const struct policy_where *where, struct err *err)
{
    struct policy *p = policy_new();
    int r = policy_parse(buf_str(text), text->n, "what was learnt", LEVEL_FLAGS, where, p, err);
    policy_free(p);
    if (r < 0)
        err->code = ERR_INTERNAL;
    return r;
}

int learn_end(struct learn *l, int vault, struct policy *policy, const struct policy_where *where,
              const struct outcome *outcome, char *const *argv, struct buf *summary, struct err *err)
{
    _cleanup_buf_ struct buf text = {0}, body = {0};
    if (vault >= 0)
        read_layers(l, vault);
    struct learn_in in = {
        .seen = &l->seen, .policy = policy, .where = *where, .host = &host, .root = l->root, .guard = l->guard};
    add_header(&text, argv);
    if (outcome->cause != END_EXIT || outcome->exit_code != 0)
        buf_addf(&text, "# The command ended with %d, so it may need more than it could show.\n", outcome->exit_code);
    if (l->seen.truncated)
        buf_adds(&text, "# It did more than could be looked at; this is a part of it.\n");
    for (size_t i = 0; i < l->places->notes.n; i++)
        buf_addf(&text, "# %s\n", l->places->notes.v[i]);
    for (size_t i = 0; i < l->seen.notes.n; i++)
        buf_addf(&text, "# %s\n", l->seen.notes.v[i]);
    add_usage(&text, outcome);
    if (learn_document(&in, &body, err) < 0)
        return -1;
    buf_add(&text, body.p, body.n);
    if (learn_check_document(&text, where, err) < 0 || write_file(l->file, &text, err) < 0)
        return -1;
    buf_addf(summary, "hutch: learnt %s: %zu changes, %zu hidden files read, %zu calls refused otherwise, %zu hosts\n",
             l->file, l->seen.n, l->seen.reads.n, l->seen.calls.n, l->seen.hosts.n);
    return 0;
}
