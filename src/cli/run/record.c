#include "cli/run/record.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/num.h"
#include "base/text.h"

enum { RECORD_VERSION = 1, TAIL_HOSTEXEC = 2, TAIL_TEXT = 200 };

/* --- how it ended ------------------------------------------------------------------------------------------------- */

/* A command that failed with a full disk most likely failed because of it; one that succeeded did not. */
static bool died_of_full_disk(const struct outcome *o)
{
    return o->cause == END_EXIT && (o->disk_full || o->inodes_full) && WEXITSTATUS(o->status) != 0;
}

static const char *cause_name(const struct outcome *o)
{
    static const char *const names[] = {
        [END_EXIT] = "exit",         [END_SIGNAL] = "signal", [END_OOM] = "oom",         [END_DEADLINE] = "deadline",
        [END_CPU_TIME] = "cpu_time", [END_OUTPUT] = "output", [END_DENIALS] = "denials", [END_NOT_RUN] = "not_run",
        [END_UNKNOWN] = "unknown",   [END_COVER] = "cover",
    };
    return died_of_full_disk(o) ? "disk_full" : names[o->cause];
}

static void add_signal(struct buf *b, int sig)
{
    const char *name = text_signal(sig);
    if (name)
        buf_addf(b, "SIG%s", name);
    else
        buf_addf(b, "signal %d", sig);
}

/* Whether the kernel log named the killed process; else only a counter changed. */
static bool oom_named(const struct outcome *o)
{
    return o->oom_seen && o->oom.count > 0 && o->oom.last.kind == OOM_KILLED;
}

static uint64_t oom_rss(const struct outcome *o)
{
    const struct oom_line *l = &o->oom.last;
    return (l->anon_rss_kb + l->file_rss_kb + l->shmem_rss_kb) * 1024;
}

static void add_limit(struct buf *b, const struct policy *p, enum limit_id id)
{
    if (p->limits[id].set) {
        buf_addc(b, ' ');
        limit_add_value(b, id, p->limits[id].value);
    }
}

static void add_oom(struct buf *b, const struct record_in *in)
{
    const struct outcome *o = in->outcome;
    buf_adds(b, "memory limit");
    add_limit(b, in->policy, LIMIT_MEMORY);
    buf_adds(b, " reached");
    if (oom_named(o)) {
        buf_adds(b, ": ");
        text_add_safe(b, o->oom.last.comm, sizeof o->oom.last.comm);
        buf_addf(b, " (pid %d) had ", (int)o->oom.last.pid);
        num_add_size(b, oom_rss(o));
    }
    if (o->cg.have & CGROUP_HAVE_MEMORY_PEAK) {
        buf_adds(b, oom_named(o) ? "; peak " : ": peak ");
        num_add_size(b, o->cg.memory_peak);
    }
}

static void add_full_disk(struct buf *b, const struct record_in *in)
{
    enum limit_id id = in->outcome->disk_full ? LIMIT_DISK : LIMIT_INODES;
    buf_adds(b, id == LIMIT_DISK ? "the private writable parts are full: disk limit" : "no inode is left: inode limit");
    add_limit(b, in->policy, id);
    buf_adds(b, " reached");
}

static void add_not_run(struct buf *b, const struct record_in *in)
{
    buf_adds(b, "the command could not be executed: ");
    buf_adds(b, strerror(in->outcome->exec_errno));
}

/* One sentence part, without a full stop. */
static void add_message(struct buf *b, const struct record_in *in)
{
    const struct outcome *o = in->outcome;
    if (died_of_full_disk(o)) {
        add_full_disk(b, in);
        return;
    }
    switch (o->cause) {
    case END_EXIT:
        buf_addf(b, "the command exited with %d", WEXITSTATUS(o->status));
        return;
    case END_SIGNAL:
        buf_adds(b, "the command was ended by ");
        add_signal(b, o->signal);
        if (o->sender[0]) {
            buf_adds(b, ", sent by ");
            text_add_safe(b, o->sender, sizeof o->sender);
        }
        return;
    case END_OOM:
        add_oom(b, in);
        return;
    case END_DEADLINE:
        buf_adds(b, "time limit");
        add_limit(b, in->policy, LIMIT_WALL_TIME);
        buf_adds(b, " reached");
        return;
    case END_CPU_TIME:
        buf_adds(b, "processor time limit");
        add_limit(b, in->policy, LIMIT_CPU_TIME);
        buf_adds(b, " reached");
        return;
    case END_OUTPUT:
        buf_adds(b, "output limit");
        add_limit(b, in->policy, LIMIT_OUTPUT);
        buf_adds(b, " reached");
        return;
    case END_DENIALS:
        buf_addf(b, "ended after %llu refusals (on_denial)", (unsigned long long)denials_total(in->denials));
        return;
    case END_COVER:
        buf_adds(
            b, "ended because a hidden or protected name was replaced from outside and stayed open to it (see notes)");
        return;
    case END_NOT_RUN:
        add_not_run(b, in);
        return;
    case END_UNKNOWN:
        buf_adds(b, "the sandbox was killed from outside; how the command ended is not known");
    }
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

static void put_strings(struct json *j, const char *key, const struct strv *v, const struct strv *more)
{
    json_arr(j, key);
    for (size_t i = 0; v && i < v->n; i++)
        json_str(j, NULL, v->v[i]);
    for (size_t i = 0; more && i < more->n; i++)
        json_str(j, NULL, more->v[i]);
    json_end_arr(j);
}

static void put_exit(struct json *j, const struct outcome *o)
{
    _cleanup_buf_ struct buf sig = {0};
    bool ran = o->cause != END_NOT_RUN && o->cause != END_UNKNOWN;
    json_i64(j, "exit_code", o->exit_code);
    if (ran && o->signal == 0 && WIFEXITED(o->status))
        json_i64(j, "exit", WEXITSTATUS(o->status));
    else
        json_none(j, "exit");
    if (o->signal)
        add_signal(&sig, o->signal);
    json_str(j, "signal", o->signal ? buf_str(&sig) : NULL);
}

static void put_usage(struct json *j, const struct outcome *o, const struct policy *p)
{
    const struct cgroup_stat *cg = &o->cg;
    bool cpu = cg->have & CGROUP_HAVE_CPU_TIME;
    json_obj(j, "usage");
    json_fixed(j, "wall_ms", o->wall_us, 3);
    json_fixed(j, "user_ms", cpu ? cg->user_us : o->user_us, 3);
    json_fixed(j, "system_ms", cpu ? cg->system_us : o->system_us, 3);
    if (cg->have & CGROUP_HAVE_MEMORY_PEAK)
        json_u64(j, "memory_peak_bytes", cg->memory_peak);
    if (o->max_rss)
        json_u64(j, "max_rss_bytes", o->max_rss);
    if (cg->have & CGROUP_HAVE_IO) {
        json_u64(j, "io_read_bytes", cg->io_read_bytes);
        json_u64(j, "io_write_bytes", cg->io_write_bytes);
    }
    if (cg->have & CGROUP_HAVE_PIDS_PEAK)
        json_u64(j, "pids_peak", cg->pids_peak);
    if (cg->have & CGROUP_HAVE_THROTTLED)
        json_fixed(j, "throttled_ms", cg->throttled_us, 3);
    if (p->limits[LIMIT_OUTPUT].set) /* counted only when limited */
        json_u64(j, "output_bytes", o->output_bytes);
    json_end_obj(j);
}

static void put_death(struct json *j, const struct record_in *in)
{
    const struct outcome *o = in->outcome;
    _cleanup_buf_ struct buf text = {0}, sig = {0};
    add_message(&text, in);
    json_obj(j, "death");
    json_str(j, "cause", cause_name(o));
    if (o->signal) {
        add_signal(&sig, o->signal);
        json_str(j, "signal", buf_str(&sig));
    }
    if (o->sender[0])
        json_str(j, "sender", o->sender);
    if (o->oom_seen) {
        json_obj(j, "oom");
        if (o->cg.have & CGROUP_HAVE_MEMORY_PEAK)
            json_u64(j, "peak", o->cg.memory_peak);
        if (in->policy->limits[LIMIT_MEMORY].set)
            json_u64(j, "limit", in->policy->limits[LIMIT_MEMORY].value);
        if (o->cg.have & CGROUP_HAVE_OOM_KILLS)
            json_u64(j, "kills", o->cg.oom_kills);
        if (oom_named(o)) {
            json_str(j, "process", o->oom.last.comm);
            json_i64(j, "pid", o->oom.last.pid);
            json_u64(j, "rss", oom_rss(o));
        }
        json_end_obj(j);
    }
    json_str(j, "message", buf_str(&text));
    json_end_obj(j);
}

/* What enforced a limit. A cgroup counter exists only if its controller is enabled. */
static const char *limit_enforcer(const struct record_in *in, enum limit_id id)
{
    const struct outcome *o = in->outcome;
    switch (id) {
    case LIMIT_CPU:
        return o->cg.have & CGROUP_HAVE_THROTTLED ? "cgroup" : "none";
    case LIMIT_MEMORY:
        if (o->cg.have & CGROUP_HAVE_MEMORY_PEAK)
            return "cgroup";
        return in->memory_watched ? "watcher" : "none";
    case LIMIT_PIDS:
        /* A cgroup always counts processes, but has a limit only if the policy sets one. */
        if (in->policy->limits[id].typed && (o->cg.have & (CGROUP_HAVE_PIDS_PEAK | CGROUP_HAVE_PIDS_HITS)))
            return "cgroup";
        return in->spec && in->spec->pids ? "rlimit" : "none";
    case LIMIT_DISK:
        return in->spec && in->spec->disk_bytes ? "tmpfs" : "none";
    case LIMIT_INODES:
        return in->spec && in->spec->disk_inodes ? "tmpfs" : "none";
    case LIMIT_OPEN_FILES:
        return in->spec && in->spec->open_files ? "rlimit" : "none";
    default:
        return "supervisor";
    }
}

static void put_limits(struct json *j, const struct record_in *in)
{
    json_obj(j, "limits");
    for (int i = 0; i < LIMIT_MAX; i++) {
        const struct limit *l = &in->policy->limits[i];
        _cleanup_buf_ struct buf source = {0}, text = {0};
        if (!l->set)
            continue;
        origin_add(&source, &l->origin);
        limit_add_value(&text, (enum limit_id)i, l->value);
        json_obj(j, limit_id_name((enum limit_id)i));
        json_u64(j, "value", l->value);
        json_str(j, "text", buf_str(&text));
        json_str(j, "enforced_by", limit_enforcer(in, (enum limit_id)i));
        json_str(j, "source", buf_str(&source));
        json_end_obj(j);
    }
    json_end_obj(j);
}

static const char *seccomp_word(const struct wall_spec *s)
{
    unsigned flags = s && s->filter ? s->filter->flags : 0;
    if (!s || !s->filter)
        return "off";
    return flags & FILTER_LEARN     ? "learn"
           : flags & FILTER_EXPLAIN ? "explain"
           : flags & FILTER_NOTIFY  ? "notify"
                                    : "on";
}

static void put_layers(struct json *j, const struct record_in *in)
{
    const struct wall_spec *s = in->spec;
    json_obj(j, "layers");
    json_str(j, "userns", in->nested || !s ? "none" : s->range ? "range" : s->subids ? "subids" : "single");
    json_u64(j, "landlock_abi", in->outcome->landlock_abi);
    json_str(j, "seccomp", seccomp_word(s));
    json_str(j, "cgroup", in->cgroup_backend ? in->cgroup_backend : in->outcome->cg.have ? "on" : "none");
    json_str(j, "network", network_name(s ? s->network : in->policy->network));
    json_end_obj(j);
}

/* A stage lasts until the next one that was reached. */
static void put_stages(struct json *j, const struct outcome *o)
{
    json_obj(j, "stages_us");
    for (int i = 0; i + 1 < STAGE_MAX; i++) {
        int next = i + 1;
        while (next + 1 < STAGE_MAX && o->stage_ns[next] == 0)
            next++;
        if (o->stage_ns[i] && o->stage_ns[next] >= o->stage_ns[i])
            json_fixed(j, wall_stage_name((enum wall_stage)i), (o->stage_ns[next] - o->stage_ns[i]) / 100, 1);
    }
    json_end_obj(j);
}

void record_json(const struct record_in *in, struct buf *out)
{
    struct json j;
    json_start(&j, out);
    json_obj(&j, NULL);
    json_u64(&j, "version", RECORD_VERSION);
    json_str(&j, "hutch", HUTCH_VERSION);
    json_arr(&j, "command");
    for (char *const *a = in->argv; a && *a; a++)
        json_str(&j, NULL, *a);
    json_end_arr(&j);
    if (in->tx)
        json_str(&j, "tx", in->tx);
    json_str(&j, "tier", in->nested ? "nested" : in->plan->layers.n > 0 ? "container" : "process");
    put_exit(&j, in->outcome);
    put_usage(&j, in->outcome, in->policy);
    put_death(&j, in);
    put_limits(&j, in);
    denials_json(in->denials, &j);
    put_strings(&j, "host_may_execute", in->host_may_execute, NULL);
    put_strings(&j, "env_dropped", in->env_dropped, NULL);
    put_strings(&j, "notes", in->notes, in->replaced);
    put_layers(&j, in);
    if (in->egress)
        run_egress_json(in->egress, &j);
    put_stages(&j, in->outcome);
    json_end_obj(&j);
}

/* --- the tail ----------------------------------------------------------------------------------------------------- */

static void tail_death(const struct record_in *in, struct buf *out)
{
    const struct outcome *o = in->outcome;
    bool full = died_of_full_disk(o);
    /* The shell reports signals and exit codes, and our caller a command that could not be executed. */
    bool plain = o->cause == END_EXIT || o->cause == END_SIGNAL || o->cause == END_NOT_RUN;
    if (!plain || full) {
        buf_adds(out, "hutch: ");
        add_message(out, in);
        buf_addc(out, '\n');
    }
    if (o->oom_seen && o->cause != END_OOM) { /* the kernel killed a child, and the command went on */
        buf_adds(out, "hutch: ");
        add_oom(out, in);
        buf_addc(out, '\n');
    }
}

static void tail_hostexec(const struct strv *v, struct buf *out)
{
    for (size_t i = 0; v && i < v->n; i++) {
        if (i == TAIL_HOSTEXEC && v->n > TAIL_HOSTEXEC + 1) {
            buf_addf(out, "hutch: and %zu others\n", v->n - i);
            return;
        }
        buf_adds(out, "hutch: new or changed: ");
        text_add_safe(out, v->v[i], TAIL_TEXT);
        buf_adds(out, " (programs outside may run what it says)\n");
    }
}

void record_tail(const struct record_in *in, struct buf *out)
{
    denials_tail(in->denials, out);
    tail_death(in, out);
    tail_hostexec(in->host_may_execute, out);
    /* Report uncovered names in every run: an earlier one may have prepared them. */
    for (size_t i = 0; i < in->plan->notes.n; i++)
        buf_addf(out, "hutch: note: %s\n", in->plan->notes.v[i]);
    for (size_t i = 0; in->replaced && i < in->replaced->n; i++)
        buf_addf(out, "hutch: note: %s\n", in->replaced->v[i]);
}
