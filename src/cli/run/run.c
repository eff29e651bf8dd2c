#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/steps.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/run/denials.h"
#include "cli/run/hostexec.h"
#include "cli/run/options.h"
#include "cli/run/record-sink.h"
#include "cli/run/record.h"
#include "cli/run/run-hints.h"
#include "cli/run/run-prepare.h"
#include "cli/run/run-preset.h"
#include "cli/run/scope.h"
#include "cli/run/supervise.h"
#include "cli/run/term.h"
#include "cli/run/tx.h"

/* The record would take the place of a log, or of a secret. */
static int check_sink(const struct record_sink *s, const struct prepared *p, struct err *err)
{
    struct stat st;
    if (p->audit.fd >= 0 && fstat(p->audit.fd, &st) == 0 && record_sink_is(s, &st))
        return err_set(err, ERR_USAGE, 0, "--json %s is also the file of --audit; give another", p->args->json);
    for (size_t i = 0; i < p->secrets.n; i++)
        if (p->secrets.v[i].hide && stat(p->secrets.v[i].file, &st) == 0 && record_sink_is(s, &st))
            return err_set(err, ERR_USAGE, 0, "--json %s is also the --secret-file of %s; give another", p->args->json,
                           p->secrets.v[i].name);
    return 0;
}

static bool is_file(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

/* An open directory would lead around every rule about paths. */
static bool is_directory(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
}

static int check_args(const struct run_args *a, struct err *err)
{
    if (!a->command)
        return err_set(err, ERR_USAGE, 0, "no command given; usage: hutch run [options] [--] COMMAND [ARG...]");
    if (a->command[0][0] == '\0')
        return err_set(err, ERR_USAGE, 0, "the command is an empty word");
    for (size_t i = 0; i < a->nkeep; i++) {
        if (fcntl(a->keep_fds[i], F_GETFD) < 0)
            return err_set(err, ERR_USAGE, errno, "--fd %d: the descriptor is not open", a->keep_fds[i]);
        if (is_directory(a->keep_fds[i]))
            return err_set(err, ERR_USAGE, 0, "--fd %d is a directory; give it with --rw or --ro", a->keep_fds[i]);
    }
    int json;
    if (a->json && num_int(a->json, 1, 1023, &json) && fcntl(json, F_GETFD) < 0)
        return err_set(err, ERR_USAGE, errno, "--json %d: the descriptor is not open", json);
    layer_set off;
    if (layers_removed(&off, err) < 0)
        return -1;
    for (int fd = 0; fd <= 2 && !LAYER_OFF(off, FDS); fd++)
        if (is_directory(fd))
            return err_set(err, ERR_USAGE, 0, "standard %s is a directory; give it with --rw or --ro",
                           fd == 0   ? "input"
                           : fd == 1 ? "output"
                                     : "error");
    if (a->hostname && (strlen(a->hostname) > 64 || a->hostname[0] == '\0'))
        return err_set(err, ERR_USAGE, 0, "--hostname: from 1 to 64 characters");
    return 0;
}

static const int handled[] = {SIGINT,   SIGTERM, SIGHUP,  SIGQUIT, SIGUSR1, SIGUSR2,
                              SIGWINCH, SIGCONT, SIGTSTP, SIGCHLD, SIGALRM};

static void block_signals(sigset_t *ours, sigset_t *before, bool *pipe_ignored)
{
    (void)sigemptyset(ours);
    for (size_t i = 0; i < ARRAY_LEN(handled); i++)
        (void)sigaddset(ours, handled[i]);
    (void)sigprocmask(SIG_BLOCK, ours, before);
    *pipe_ignored = signal(SIGPIPE, SIG_IGN) == SIG_IGN;
}

/* Limited output goes through pipes of our own: the command gets their ends as 1 and 2 when it is cloned. */
struct piped {
    int saved[2], read_end[2];
};

static int pipe_output(struct piped *p, struct err *err)
{
    for (int i = 0; i < 2; i++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) < 0)
            return err_set(err, ERR_SETUP, errno, "make a pipe for the output");
        p->saved[i] = fcntl(i + 1, F_DUPFD_CLOEXEC, 3);
        (void)dup2(ends[1], i + 1);
        (void)close(ends[1]);
        p->read_end[i] = ends[0];
    }
    return 0;
}

static void restore_output(struct piped *p)
{
    for (int i = 0; i < 2; i++)
        if (p->saved[i] >= 0) {
            (void)dup2(p->saved[i], i + 1);
            (void)close(TAKE_FD(p->saved[i]));
        }
}

/* The pipes on 0 and 1 are the command's: their other ends must see it close them, or end. */
static void let_streams_go(void)
{
    _cleanup_close_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null <= 2)
        return; /* they are closed anyway */
    (void)dup2(null, 0);
    (void)dup2(null, 1);
}

/* A terminal that is passed through (only one of stdin and stdout is one) comes back in the modes it had. */
static struct modes {
    int stream; /* -1 if there is none */
    int tty;    /* a descriptor of our own for it */
    pid_t group;
    struct termios was;
} modes = {.stream = -1, .tty = -1};

static void modes_before(void)
{
    for (int fd = 0; fd <= 2 && modes.stream < 0; fd++)
        if (tcgetattr(fd, &modes.was) == 0) {
            modes.tty = fcntl(fd, F_DUPFD_CLOEXEC, 3);
            modes.group = getpgrp();
            modes.stream = fd;
        }
}

static void modes_restore(void)
{
    sigset_t stop, old;
    if (modes.tty < 0)
        return;
    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGTTOU); /* from the background this would stop us */
    (void)sigprocmask(SIG_BLOCK, &stop, &old);
    (void)tcsetattr(modes.tty, TCSANOW, &modes.was);
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
    (void)close(TAKE_FD(modes.tty));
}

/* In the guard, after the caller was killed: a terminal left in raw mode shows nothing of what is typed. A shell that has
 * taken the foreground back meanwhile has set the modes that it wants. */
static void terminal_last(void)
{
    if (modes.stream < 0)
        term_after_death(0, 1);
    else if (tcgetpgrp(modes.stream) == modes.group)
        (void)tcsetattr(modes.stream, TCSANOW, &modes.was);
}

/* Everything that exists while the command runs. */
struct running {
    struct wall wall;
    struct guard guard;
    struct hostexec *before;
    struct covers *covers;
};

/* Everything that start() did is taken back. */
static void start_undone(struct prepared *p, struct running *r)
{
    struct err ignored;
    wall_kill(&r->wall);
    covers_leave(r->covers);
    guard_drop_mounts(&r->guard);
    (void)wall_finish(&r->wall, &ignored);
    covers_free(TAKE_PTR(r->covers));
    stubs_remove(p->stubs);
    guard_dismiss(&r->guard);
    stubs_free(TAKE_PTR(p->stubs));
    hostexec_drop(TAKE_PTR(r->before));
}

/* Gives init the plan. While init builds the part that does not need us, starts the guard and makes the stubs; then lets
 * init continue. */
static int start_init(struct prepared *p, struct running *r, struct err *err)
{
    if (wall_start(&p->spec, &r->wall, err) < 0)
        return -1;
    steps_mark("start");
    r->before = hostexec_before(p->policy, p->plan, p->home, &p->seen);
    r->covers = covers_new(&p->spec, &r->wall);
    bool stubs = p->spec.wait_release && !p->args->learn && !LAYER_OFF(p->spec.without, STUBS);
    if (guard_start(stubs ? &p->stubs : NULL, p->has_cgroup ? &p->cgroup : NULL,
                    p->spec.tty || modes.stream >= 0 ? terminal_last : NULL, &r->wall, &r->guard, err) < 0 ||
        (stubs && stubs_make(p->plan, &p->stubs, r->wall.shared->skipped, err) < 0)) {
        struct err ignored;
        wall_kill(&r->wall);
        (void)wall_finish(&r->wall, &ignored);
        return -1;
    }
    steps_mark("stubs");
    if (p->spec.wait_release)
        (void)wall_release(&r->wall); /* if init is gone already, its own words come with wall_finish() */
    return 0;
}

/* Searches for repositories while init builds what does not depend on them, if that was put off. If there are any, init is let
 * go before there is a command, and cloned again with the whole plan. */
static int start(struct prepared *p, struct running *r, struct err *err)
{
    if (start_init(p, r, err) < 0)
        return -1;
    if (p->spec.who.search_later) {
        struct plan_facts facts = prepare_facts(p);
        bool found = plan_has_repos(p->plan, p->policy, &facts);
        steps_mark("search");
        if (found) {
            start_undone(p, r);
            if (prepare_plan_again(p, err) < 0 || start_init(p, r, err) < 0)
                return -1;
        } else {
            (void)wall_release(&r->wall);
        }
    }
    seen_read(&p->seen, HOSTEXEC_THOROUGH);
    return 0;
}

/* Removes what runs left that were killed together with their guard, or before it started. */
static void sweep(struct prepared *p)
{
    bool leaves = !p->spec.nested && stubs_sweep();
    if (p->used_cgroup || (leaves && cgroup_probe(&p->cgroup_info) == 0))
        (void)cgroup_sweep(&p->cgroup_info);
}

/* After the command. `dying`: nothing inside can act, but the kernel is still removing init. out: NULL if no command
 * ran. */
static int wind_up(struct prepared *p, struct running *r, bool dying, const struct outcome *out, struct strv *born,
                   struct err *err)
{
    int ret = 0;
    covers_leave(r->covers);
    guard_drop_mounts(&r->guard);
    bool settle = out && (covers_last_look(r->covers) || out->cause == END_COVER);
    if (dying && settle)
        ret = wall_finish(&r->wall, err);
    if (settle)
        covers_settle(r->covers);
    covers_notes(r->covers, &p->replaced);
    covers_free(r->covers);
    hostexec_after(r->before, born); /* while init dies, and the guard lets go of the mount namespace */
    steps_mark("list");
    if (dying && !settle)
        ret = wall_finish(&r->wall, err);
    steps_mark("reap");
    bool swept = !p->has_cgroup;
    if (swept)
        sweep(p); /* meanwhile the guard begins */
    /* A stub that is still mounted on would have to be taken from under its mounts by the kernel, which waits for all
     * processors, one name after the other. */
    stubs_remove(p->stubs);
    if (p->has_cgroup)
        (void)cgroup_destroy(&p->cgroup);
    p->has_cgroup = false;
    guard_tell(&r->guard); /* it ends while we go on */
    if (!swept)
        sweep(p);
    steps_mark("clean-up");
    guard_dismiss(&r->guard);
    stubs_free(TAKE_PTR(p->stubs));
    return ret;
}

static void look_around(void *arg) { hostexec_look(arg); }

static int start_and_supervise(struct prepared *p, struct denials *denials, const sigset_t *signals,
                               struct outcome *out, struct strv *born, struct err *err)
{
    struct running running = {.guard = GUARD_NONE, .wall = WALL_NONE};
    struct piped piped = {{-1, -1}, {-1, -1}};
    bool limited = p->policy->limits[LIMIT_OUTPUT].set, dying = false;
    _cleanup_close_ int input = is_file(0) ? fcntl(0, F_DUPFD_CLOEXEC, 3) : -1;
    _cleanup_close_ int oom = p->has_cgroup && p->policy->limits[LIMIT_MEMORY].set ? oom_open() : -1;
    if (limited) {
        wall_drop(&p->wall); /* it has the other output */
        if (pipe_output(&piped, err) < 0)
            return -1;
    }
    running.wall = p->wall;
    p->wall = (struct wall)WALL_NONE;
    p->spec.tty = !limited && term_wanted(0, 1);
    p->spec.tty_stderr = p->spec.tty && isatty(2);
    if (!p->spec.tty)
        modes_before();
    int r = start(p, &running, err);
    restore_output(&piped);
    if (r == 0 && !limited && !p->spec.tty)
        let_streams_go();
    if (r == 0) {
        struct supervise s = {
            .wall = &running.wall,
            .cgroup = p->has_cgroup ? &p->cgroup : NULL,
            .policy = p->policy,
            .spec = &p->spec,
            .denials = denials,
            .covers = running.covers,
            .egress = p->egress.pid > 0 ? &p->egress : NULL,
            .watch_memory = p->watch_memory && !LAYER_OFF(p->spec.without, WATCH),
            .out_pipe = piped.read_end[0],
            .err_pipe = piped.read_end[1],
            .oom_log = oom,
            .input = input,
            .signals = signals,
            .idle = look_around,
            .idle_arg = running.before,
        };
        r = supervise(&s, out, err);
        steps_mark("command");
        piped.read_end[0] = piped.read_end[1] = -1;
        p->vault = s.vault;
        dying = s.dying;
    }
    for (int i = 0; i < 2; i++)
        if (piped.read_end[i] >= 0)
            (void)close(piped.read_end[i]);
    modes_restore();
    return wind_up(p, &running, dying, r == 0 ? out : NULL, born, err) < 0 ? -1 : r;
}

static void report(const struct prepared *p, const struct outcome *out, const struct denials *denials,
                   const struct strv *born, const struct record_sink *sink)
{
    struct record_in in = {.outcome = out,
                           .denials = denials,
                           .policy = p->policy,
                           .plan = p->plan,
                           .spec = &p->spec,
                           .host_may_execute = born,
                           .notes = &p->notes,
                           .tx = p->tx_end,
                           .replaced = &p->replaced,
                           .env_dropped = &p->env_dropped,
                           .egress = p->policy->network == NETWORK_RULES ? &p->egress : NULL,
                           .argv = p->args->command,
                           .memory_watched = p->watch_memory,
                           .nested = p->spec.nested,
                           .cgroup_backend = p->used_cgroup ? cgroup_backend_name(p->cgroup_info.backend) : NULL};
    if (p->args->json) {
        _cleanup_buf_ struct buf json = {0};
        record_json(&in, &json);
        buf_addc(&json, '\n');
        if (record_sink_write(sink, &json) < 0)
            fprintf(stderr, "hutch: the record could not be written: %s\n", strerror(errno));
    }
    if (out->cause == END_NOT_RUN) {
        _cleanup_buf_ struct buf name = {0};
        text_add_safe(&name, p->args->command[0], 200);
        fprintf(stderr, "hutch: %s: %s\n", buf_str(&name),
                out->exec_errno == ENOENT ? "command not found" : strerror(out->exec_errno));
    }
    if (!p->args->quiet && !p->learn) {
        _cleanup_buf_ struct buf tail = {0};
        record_tail(&in, &tail);
        run_hints(p, out, denials, &tail);
        (void)fd_write_all(2, buf_str(&tail), tail.n);
    }
}

static void print_step(const char *name, uint64_t begin, uint64_t end, uint64_t zero)
{
    fprintf(stderr, "hutch: trace %8.1f %8.1f %s\n", (double)(begin - zero) / 1000, (double)(end - begin) / 1000, name);
}

/* --trace-start: what init did comes in between, with its own clock marks: both go on at the same time. */
static void print_steps(const struct outcome *out)
{
    size_t n;
    uint64_t zero;
    const struct step *s = steps_taken(&n, &zero);
    uint64_t last_clone = 0;
    for (size_t i = 0; i < n; i++)
        if (strcmp(s[i].name, "clone") == 0)
            last_clone = s[i].end_ns;
    fprintf(stderr, "hutch: trace %8s %8s\n", "at us", "took us");
    for (size_t i = 0; i < n; i++) {
        print_step(s[i].name, i ? s[i - 1].end_ns : zero, s[i].end_ns, zero);
        for (int k = STAGE_CLONE + 1; s[i].end_ns == last_clone && k + 1 < STAGE_MAX; k++) {
            _cleanup_free_ char *name = xasprintf("  inside: %s", wall_stage_name((enum wall_stage)k));
            int next = k + 1;
            while (next + 1 < STAGE_MAX && out->stage_ns[next] == 0)
                next++;
            if (out->stage_ns[k] && out->stage_ns[next] >= out->stage_ns[k])
                print_step(name, out->stage_ns[k], out->stage_ns[next], zero);
        }
    }
}

static void begin_learning(const struct prepared *p, struct denials *denials)
{
    learn_watch(p->learn, denials);
    if (!p->args->quiet)
        fprintf(stderr,
                "hutch: learning: rules that hide files are lifted for this run; there is %s network and nothing is "
                "kept\n",
                p->spec.network == NETWORK_HOST                      ? "the host's"
                : p->spec.network == NETWORK_RULES && !p->no_network ? "the policy's"
                                                                     : "no");
}

/* Merges what was learnt into the policy, so it comes after everything that reports about the run's own. */
static int finish_learning(struct prepared *p, const struct outcome *out, struct err *err)
{
    _cleanup_buf_ struct buf summary = {0};
    struct policy_where where = {.cwd = p->cwd, .home = p->home, .no_workspace = p->args->no_cwd};
    learn_hosts(p->learn, &p->egress.wanted, &p->egress.missing);
    learn_leave_out(p->learn, p->audit.path);
    if (learn_end(p->learn, p->vault, p->policy, &where, out, p->args->command, &summary, err) < 0)
        return -1;
    if (!p->args->quiet)
        (void)fd_write_all(2, buf_str(&summary), summary.n);
    return 0;
}

/* With --tx: shows the changes and asks what to do. Files that are applied to the host are listed as after any run. */
static int finish_tx(struct prepared *p, const struct outcome *out, struct strv *born, enum tx_end *end,
                     struct err *err)
{
    static struct tx tx; /* large */
    _cleanup_buf_ struct buf command = {0};
    tx = (struct tx){.root = p->spec.who.root,
                     .shift = p->spec.range ? p->range.base : 0,
                     .started_ns = p->started_ns,
                     .policy = p->policy};
    for (char *const *a = p->args->command; *a && command.n < 200; a++)
        buf_addf(&command, "%s%s", command.n ? " " : "", *a);
    tx.command = xstrdup(buf_str(&command));
    if (p->vault < 0) /* it never came to the command */
        return 0;
    if (tx_open_vault(&tx, &p->places, p->vault, err) < 0 || tx_compare(&tx, err) < 0) {
        int r = tx_rescue(&tx, end, err);
        tx_done(&tx);
        return r;
    }
    for (size_t i = 0; i < tx.notes.n; i++)
        strv_add(&p->notes, tx.notes.v[i]);
    struct hostexec *before = hostexec_before(p->policy, p->plan, p->home, NULL);
    hostexec_look(before);
    int r = tx_decide(&tx, p->args->commit && out->exit_code == 0, p->args->quiet, end, err);
    hostexec_after(before, born);
    tx_done(&tx);
    return r;
}

/* The log is protected like what programs outside may run, and changes. Another file at its name is not the log. */
static void leave_out(struct strv *born, const struct run_audit *log)
{
    size_t kept = 0;
    bool there = run_audit_there(log);
    for (size_t i = 0; there && i < born->n; i++) {
        if (strcmp(born->v[i], log->path) == 0)
            free(born->v[i]);
        else
            born->v[kept++] = born->v[i];
    }
    if (there && born->v) {
        born->n = kept;
        born->v[kept] = NULL;
    }
}

static int run(const struct run_args *args, struct prepared *p, char *const *argv, struct err *err)
{
    bool tried = scope_tried();
    struct outcome out = {0};
    sigset_t signals;
    _cleanup_(record_sink_done) struct record_sink sink = RECORD_SINK_NONE;
    _cleanup_strv_ struct strv born = {0};
    steps_mark("options");
    if (check_args(args, err) < 0)
        return -1;
    prepare_init(p, args); /* after check_args(), so that it takes none of the descriptors that the caller was given */
    steps_mark("clone");
    if (prepare_plan(p, args, err) < 0)
        return -1;
    prepare_scope(p, tried, argv);
    if (args->json && (record_sink_open(args->json, &sink, err) < 0 || check_sink(&sink, p, err) < 0))
        return -1;
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    p->started_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    block_signals(&signals, &p->spec.sigmask, &p->spec.ignore_sigpipe);
    if (prepare_host(p, err) < 0)
        return -1;
    steps_mark("host");
    if (prepare_network(p, err) < 0)
        return -1;
    steps_mark("egress");
    struct denials *denials = denials_new(p->policy, p->plan, p->filter.flags);
    p->egress.denials = denials;
    if (p->learn)
        begin_learning(p, denials);
    int r = start_and_supervise(p, denials, &signals, &out, &born, err);
    run_egress_finish(&p->egress);
    enum tx_end end = TX_END_NOTHING;
    int tx = r == 0 && args->tx ? finish_tx(p, &out, &born, &end, err) : 0;
    if (args->tx)
        p->tx_end = tx_end_name(end);
    leave_out(&born, &p->audit);
    run_preset_leave_out(p->policy, &born);
    if (r == 0) {
        report(p, &out, denials, &born, &sink);
        if (args->trace_start)
            print_steps(&out);
        r = (p->learn && finish_learning(p, &out, err) < 0) || tx < 0 ? -1 : out.exit_code;
    }
    denials_free(denials);
    return r;
}

int cmd_run(int argc, char **argv)
{
    static struct run_args args;
    static struct prepared p = PREPARED_INIT;
    struct err err = {0};
    steps_begin();
    int r = run_args_parse(argc, argv, &args, &err);
    if (r == 0 && args.help) {
        run_help();
    } else if (r == 0 && run_preset_wants_list(args.flags, args.nflags)) {
        run_preset_list(getenv("HOME"));
    } else if (r == 0 && args.version) {
        puts("hutch " HUTCH_VERSION);
    } else if (r == 0) {
        r = run(&args, &p, argv - 1, &err);
    }
    prepared_release(&p);
    return r < 0 ? cli_fail(&err) : r;
}
