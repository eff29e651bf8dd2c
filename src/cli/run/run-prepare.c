#include "cli/run/run-prepare.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/steps.h"
#include "cli/cli.h"
#include "cli/run/hostexec.h"
#include "cli/run/run-preset.h"
#include "cli/run/scope.h"
#include "cli/run/tx.h"
#include "os/landlock.h"
#include "policy/net/netpol.h"
#include "wall/layers.h"

extern char **environ;

static bool best_effort(const struct prepared *p) { return p->policy->enforcement == ENFORCE_BEST_EFFORT; }
static bool container(const struct prepared *p) { return p->args->root != NULL; }

static int find_caller(struct prepared *p, struct err *err)
{
    const char *home = getenv("HOME");
    p->cwd = realpath(".", NULL);
    if (!p->cwd)
        return err_set(err, ERR_USAGE, errno, "the current directory cannot be resolved");
    if (home && home[0] == '/') {
        p->home = realpath(home, NULL);
        if (!p->home)
            p->home = path_clean("/", home);
    }
    p->spec.who = (struct plan_caller){.uid = geteuid(),
                                       .gid = getegid(),
                                       .root = geteuid() == 0,
                                       .cwd = p->cwd,
                                       .home = p->home,
                                       .chdir = p->args->chdir,
                                       .rootdir = p->args->root};
    return 0;
}

static int load_policy(struct prepared *p, struct err *err)
{
    const struct run_args *a = p->args;
    struct policy_where where = {.cwd = p->cwd, .home = p->home, .container = container(p), .no_workspace = a->no_cwd};
    size_t n = a->nflags;
    if (run_secrets_parse(a, &p->secrets, err) < 0 || run_audit_open(a, &p->audit, err) < 0)
        return -1;
    /* Transactions wait there, whose word `hutch apply` takes. Where it is without the variable is built in. */
    const char *xdg = getenv("XDG_STATE_HOME");
    _cleanup_free_ char *state = xdg && xdg[0] == '/' ? path_join(xdg, "hutch") : NULL;
    struct policy_flag *flags = xcalloc(n + 3 + run_secrets_nflags(&p->secrets), sizeof *flags);
    if (n > 0)
        memcpy(flags, a->flags, n * sizeof *flags);
    /* Not writable does not mean gone: the command still starts here, also in /tmp or as a foreign uid. */
    if (a->no_cwd && !container(p) && !a->chdir && strcmp(p->cwd, "/") != 0)
        flags[n++] = (struct policy_flag){
            .key = "files.read_only", .value = p->cwd, .text = "--no-cwd", .flags = FILE_TRY | FILE_LITERAL};
    run_secrets_flags(&p->secrets, flags, &n);
    if (p->audit.path && !container(p))
        flags[n++] = (struct policy_flag){
            .key = "files.deny_write", .value = p->audit.path, .text = "--audit", .flags = FILE_LITERAL};
    if (state && !container(p))
        flags[n++] = (struct policy_flag){
            .key = "files.deny_write", .value = state, .text = "XDG_STATE_HOME", .flags = FILE_LITERAL};
    int r = policy_load(&where, (const char *const *)a->policies.v, a->settings, flags, n, &p->policy, err);
    free(flags);
    if (r < 0)
        return -1;
    if (p->policy->privilege == PRIVILEGE_COMPUTER && !container(p))
        return err_set(err, ERR_POLICY, 0,
                       "privilege computer needs a root of its own: give --root DIR, or --privilege strict");
    return 0;
}

static bool shares_writable(const struct plan *plan)
{
    for (size_t i = 0; i < plan->nops; i++)
        if (plan->ops[i].kind == OP_BIND_RW)
            return true;
    return false;
}

static bool is_there(const char *dir, const char *name)
{
    _cleanup_free_ char *path = path_join(dir, name);
    struct stat st;
    return lstat(path, &st) == 0 && !plan_is_stub(&st);
}

/* A repository without submodules and worktrees seldom has others below it. There the search continues while init is
 * being built; if it finds any, run.c starts again with the whole plan. */
static bool may_search_later(const struct prepared *p)
{
    if (p->args->learn || p->args->tx || container(p) || p->spec.nested)
        return false;
    return is_there(p->cwd, ".git") && !is_there(p->cwd, ".gitmodules") && !is_there(p->cwd, ".git/modules") &&
           !is_there(p->cwd, ".git/worktrees");
}

static void add_plan_notes(struct prepared *p)
{
    for (size_t i = 0; i < p->plan->notes.n; i++)
        if (!strv_has(&p->notes, p->plan->notes.v[i]))
            strv_add(&p->notes, p->plan->notes.v[i]);
}

struct plan_facts prepare_facts(struct prepared *p)
{
    struct plan_facts facts = plan_host_facts;
    facts.ctx = &p->seen;
    return facts;
}

int prepare_plan_again(struct prepared *p, struct err *err)
{
    struct plan *whole = NULL;
    struct plan_facts facts = prepare_facts(p);
    p->spec.who.search_later = false;
    if (plan_make(p->policy, &p->spec.who, &facts, &whole, err) < 0)
        return -1;
    struct plan first = *p->plan;
    *p->plan = *whole;
    *whole = first;
    plan_free(whole);
    add_plan_notes(p);
    return 0;
}

static int make_plan(struct prepared *p, struct err *err)
{
    struct plan_facts facts = prepare_facts(p);
    p->spec.who.search_later = may_search_later(p);
    hostexec_begin(p->policy, &p->seen);
    if (plan_make(p->policy, &p->spec.who, &facts, &p->plan, err) < 0)
        return -1;
    bool shared = shares_writable(p->plan);
    if (shared && p->policy->privilege == PRIVILEGE_COMPUTER)
        return err_set(err, ERR_POLICY, 0,
                       "privilege computer never gets a host directory to write to, because root inside "
                       "could leave a set-uid file in it; use --ro, or --privilege strict");
    const struct limit *disk = &p->policy->limits[LIMIT_DISK];
    if (shared && disk->typed && !best_effort(p) && !p->args->tx) {
        _cleanup_buf_ struct buf where = {0};
        origin_add(&where, &disk->origin);
        return err_set(err, ERR_HOST, 0,
                       "%s: a disk limit cannot be enforced on a writable host directory; add --no-cwd, or "
                       "--enforcement best-effort to limit only /tmp",
                       buf_str(&where));
    }
    if (shared && disk->typed && !p->args->tx)
        strv_add(&p->notes, "the disk limit holds for /tmp and /dev/shm, not for writable host directories");
    add_plan_notes(p);
    unsigned flags = p->spec.nested ? 0U
                                    : FILTER_NOTIFY | (p->args->explain ? FILTER_EXPLAIN : 0U) |
                                          (p->args->learn ? FILTER_LEARN : 0U);
    flags |= p->policy->privilege == PRIVILEGE_COMPUTER ? FILTER_COMPUTER : 0U;
    flags |= shared || !container(p) ? FILTER_HOST_IDS : 0U;
    return filter_build(p->policy, flags, &p->filter, err);
}

static void add_exec_paths(struct prepared *p)
{
    const char *name = p->args->command[0], *path = "/usr/local/bin:/usr/bin:/bin";
    for (size_t i = 0; i < p->env.n; i++)
        if (strncmp(p->env.v[i], "PATH=", 5) == 0)
            path = p->env.v[i] + 5;
    if (strchr(name, '/')) {
        strv_add(&p->exec_paths, name);
        return;
    }
    while (*path && p->exec_paths.n < WALL_EXEC_MAX) {
        size_t n = strcspn(path, ":");
        _cleanup_free_ char *dir = n ? xstrndup(path, n) : xstrdup(".");
        strv_take(&p->exec_paths, path_join(dir, name));
        path += n + (path[n] == ':');
    }
}

static int make_environment(struct prepared *p, struct err *err)
{
    if (LAYER_OFF(p->spec.without, ENV)) {
        for (char **e = environ; *e; e++)
            strv_add(&p->env, *e);
    } else if (policy_environment(p->policy, environ, &p->env, &p->env_dropped) < 0) {
        return err_set(err, ERR_POLICY, errno, "the environment set by the policy is too large");
    }
    if (!p->env.v)
        p->env.v = xcalloc(1, sizeof *p->env.v);
    add_exec_paths(p);
    return 0;
}

/* Only what Landlock, seccomp and rlimits can do; everything else of the plan is dropped, and said. */
static int check_nested(struct prepared *p, struct err *err)
{
    if (!wall_only_nested())
        return 0;
    if (!best_effort(p))
        return err_set(err, ERR_HOST, 0,
                       "this process is already in a sandbox that forbids namespaces; only the nested tier "
                       "(Landlock, seccomp, rlimits) is possible: give --enforcement best-effort");
    if (container(p))
        return err_set(err, ERR_HOST, 0, "--root needs namespaces, which the sandbox around this process forbids");
    p->spec.nested = true;
    strv_add(&p->notes,
             "nested tier: no namespaces of its own; hidden files, protected names, private /tmp and cgroup limits "
             "are those of the sandbox around it; netlink sockets are refused (--allow-syscall netlink)");
    return 0;
}

static int check_second_wall(struct prepared *p, struct err *err)
{
    if (landlock_abi() >= LANDLOCK_ABI_FLOOR)
        return 0;
    if (!best_effort(p))
        return err_set(err, ERR_HOST, 0,
                       "this kernel has no Landlock (ABI %d or newer); enable it with lsm=landlock,... on the "
                       "kernel command line, or give --enforcement best-effort",
                       LANDLOCK_ABI_FLOOR);
    p->spec.skip_landlock = true;
    strv_add(&p->notes, "no Landlock on this kernel: mounts are the only wall around files");
    return 0;
}

/* Learns host names without a network: a proxy refuses every connection with an answer and contacts no server. Where the
 * proxy is not installed, the command has no network, as in any run. */
static int learn_names(struct prepared *p, struct err *err)
{
    static const char nothing[] = "{\"version\":1}";
    _cleanup_free_ char *path = NULL;
    struct netpol_error bad;
    struct err ignored = {0};
    if (p->policy->network != NETWORK_OFF || cli_find_program("hutch-node", &path, &ignored) < 0)
        return 0;
    netpol_unref(p->policy->netpol);
    p->policy->netpol = NULL;
    if (netpol_parse_json(nothing, strlen(nothing), NULL, NULL, &p->policy->netpol, &bad) < 0)
        return err_set(err, ERR_INTERNAL, 0, "%s", bad.text);
    p->policy->network = NETWORK_RULES;
    p->no_network = true;
    return 0;
}

/* Nothing is refused while learning, so nothing can be contained either. */
static int prepare_learn(struct prepared *p, struct err *err)
{
    if (container(p))
        return err_set(err, ERR_USAGE, 0, "--learn works on the host's root; leave --root out");
    if (p->spec.nested)
        return err_set(err, ERR_HOST, 0, "--learn needs namespaces, which are not to be had here");
    if (learn_begin(p->args->learn, &p->places, p->plan, &p->spec.who, &p->learn, err) < 0 ||
        learn_find(p->plan, &p->spec.who, &p->places, err) < 0)
        return -1;
    for (size_t i = 0; i < p->places.notes.n; i++)
        strv_add(&p->notes, p->places.notes.v[i]);
    strv_add(&p->notes,
             "learning: nothing the command wrote was kept, and what is listed as refused for a file or by a rule "
             "that can be lifted was let pass");
    p->policy->on_denial.after = 0;
    p->spec.learn = &p->places;
    return learn_names(p, err);
}

/* Writes to shared directories go to private layers; what the command may read and write stays the same. */
static int prepare_tx(struct prepared *p, struct err *err)
{
    if (p->args->learn)
        return err_set(err, ERR_USAGE, 0, "--tx and --learn exclude each other: with --learn nothing is kept");
    if (container(p))
        return err_set(err, ERR_USAGE, 0,
                       "--tx works on the host's directories; changes under --root are private already");
    if (p->spec.nested)
        return err_set(err, ERR_HOST, 0, "--tx needs namespaces, which are not to be had here");
    if (tx_room(err) < 0 || learn_find_tx(p->plan, &p->places, err) < 0)
        return -1;
    if (p->places.n == 0)
        return err_set(err, ERR_USAGE, 0, "--tx: the command may write to no directory, so there is nothing to keep");
    p->spec.learn = &p->places;
    return 0;
}

void prepare_init(struct prepared *p, const struct run_args *args)
{
    struct err ignored = {0};
    bool root = geteuid() == 0;
    /* A root of its own and layers are mounted from the start. A record as root comes with a cgroup to be cloned into. */
    if (args->root || args->learn || args->tx || (args->json && root) || wall_only_nested() ||
        layers_removed(&p->spec.without, &ignored) < 0)
        return;
    p->spec.who = (struct plan_caller){.uid = geteuid(), .gid = getegid(), .root = root};
    if (root && idrange_take(&p->range, &ignored) < 0)
        return;
    p->spec.range = root ? &p->range : NULL;
    (void)wall_begin(&p->spec, &p->wall, &ignored);
}

int prepare_plan(struct prepared *p, const struct run_args *args, struct err *err)
{
    p->args = args;
    if (layers_removed(&p->spec.without, err) < 0 || find_caller(p, err) < 0 || load_policy(p, err) < 0)
        return -1;
    steps_mark("policy");
    if (run_preset_make(p->policy, p->home, err) < 0 || check_nested(p, err) < 0 || make_plan(p, err) < 0)
        return -1;
    steps_mark("filter");
    if (make_environment(p, err) < 0 || check_second_wall(p, err) < 0)
        return -1;
    steps_mark("environment");
    if (args->learn && !args->tx && prepare_learn(p, err) < 0)
        return -1;
    if (args->tx && prepare_tx(p, err) < 0)
        return -1;
    const struct limit *l = p->policy->limits;
    struct wall_spec *s = &p->spec;
    s->plan = p->plan;
    s->filter = &p->filter;
    s->privilege = p->policy->privilege;
    s->network = p->policy->network;
    s->disk_bytes = l[LIMIT_DISK].set ? l[LIMIT_DISK].value : 0;
    if (!l[LIMIT_DISK].typed && l[LIMIT_MEMORY].set &&
        (s->disk_bytes == 0 || s->disk_bytes > l[LIMIT_MEMORY].value / 2))
        s->disk_bytes = l[LIMIT_MEMORY].value / 2; /* files in memory count as memory: leave room for the command */
    s->disk_inodes = l[LIMIT_INODES].set ? l[LIMIT_INODES].value : 0;
    s->open_files = l[LIMIT_OPEN_FILES].set ? l[LIMIT_OPEN_FILES].value : 0;
    s->pids = l[LIMIT_PIDS].set ? l[LIMIT_PIDS].value : 0;
    /* A copy: init forgets the caller's command line before it starts the command. */
    for (char *const *a = args->command; a && *a; a++)
        strv_add(&p->argv, *a);
    s->argv = p->argv.v;
    s->env = p->env.v;
    s->exec_paths = (const char *const *)p->exec_paths.v;
    s->hostname = args->hostname ? args->hostname : "hutch";
    s->nkeep = args->nkeep;
    memcpy(s->keep_fds, args->keep_fds, sizeof args->keep_fds);
    return 0;
}

static int take_ids(struct prepared *p, struct err *err)
{
    if (p->spec.who.root) {
        if (p->range.fd < 0 && idrange_take(&p->range, err) < 0)
            return -1;
        p->spec.range = &p->range;
        return 0;
    }
    if (!container(p))
        return 0;
    if (idmap_subids(p->spec.who.uid, 65535, &p->subids, err) < 0)
        return err_wrap(err, "--root needs a range of user ids");
    p->spec.subids = &p->subids;
    strv_add(&p->notes, "the user id range comes from /etc/subuid and is shared by all your sandboxes");
    return 0;
}

/* A limit that the user typed and nothing here can enforce is an error; a default one degrades with a note. */
static int without_cgroup(struct prepared *p, const struct cgroup_limits *want, struct err *err)
{
    const struct limit *l = p->policy->limits;
    if (want->cpu_milli && l[LIMIT_CPU].typed && !best_effort(p))
        return err_set(err, ERR_HOST, 0, "a processor limit needs a cgroup: %s", p->cgroup_info.why);
    if (l[LIMIT_CPU_TIME].set && l[LIMIT_CPU_TIME].typed && !best_effort(p))
        return err_set(err, ERR_HOST, 0, "a limit on processor time needs a cgroup: %s", p->cgroup_info.why);
    if (want->cpu_milli)
        strv_add(&p->notes, "no cgroup: the processor limit is not enforced");
    if (want->memory) {
        p->watch_memory = true;
        strv_add(&p->notes, "no cgroup: the memory limit is enforced by a watcher that samples every 20 ms");
    }
    if (want->pids)
        strv_add(&p->notes, "no cgroup: the process limit is enforced by RLIMIT_NPROC in the sandbox's user namespace");
    return 0;
}

/* What a cgroup is needed for. */
static struct cgroup_limits limits_asked(const struct prepared *p)
{
    const struct limit *l = p->policy->limits;
    return (struct cgroup_limits){
        .cpu_milli = l[LIMIT_CPU].set ? l[LIMIT_CPU].value : 0,
        .memory = l[LIMIT_MEMORY].set ? l[LIMIT_MEMORY].value : 0,
        .pids = l[LIMIT_PIDS].set && l[LIMIT_PIDS].typed ? l[LIMIT_PIDS].value : 0,
    };
}

static bool cpu_time_asked(const struct prepared *p)
{
    return p->policy->limits[LIMIT_CPU_TIME].set && p->policy->limits[LIMIT_CPU_TIME].typed;
}

void prepare_scope(struct prepared *p, bool tried, char *const *argv)
{
    struct cgroup_limits want = limits_asked(p);
    struct cgroup_info have;
    struct scope_facts f = {.root = p->spec.who.root,
                            .nested = p->spec.nested,
                            .tried = tried,
                            .cpu_time = cpu_time_asked(p),
                            .want = &want,
                            .have = &have};
    f.available = !f.root && cgroup_systemd_run_available();
    if (f.available && cgroup_probe(&have) == 0 && scope_wanted(&f)) {
        wall_drop(&p->wall);
        scope_enter(argv);
    }
}

static int take_cgroup(struct prepared *p, struct err *err)
{
    struct cgroup_limits want = limits_asked(p);
    bool typed = want.cpu_milli || want.memory || want.pids || cpu_time_asked(p);
    bool account = p->args->json && p->spec.who.root;
    if (!typed && !account)
        return 0;
    if (cgroup_probe(&p->cgroup_info) < 0)
        return err_set(err, ERR_HOST, errno, "look for cgroups");
    const struct cgroup_info *info = &p->cgroup_info;
    struct cgroup_limits have = want;
    if (!info->can_memory || !info->can_pids || (want.cpu_milli && !info->can_cpu)) {
        if (without_cgroup(p, &want, err) < 0)
            return -1;
        have = (struct cgroup_limits){0};
    }
    if (cgroup_create(info, &have, CGROUP_ACCOUNT | CGROUP_KILL, &p->cgroup, err) < 0)
        return -1;
    p->has_cgroup = p->used_cgroup = p->cgroup.nleaf > 0;
    if (have.pids && p->has_cgroup)
        p->spec.pids = 0; /* the cgroup counts what it refuses, an rlimit of the same size would be silent */
    p->spec.cgroup = p->has_cgroup ? &p->cgroup : NULL;
    return 0;
}

int prepare_host(struct prepared *p, struct err *err)
{
    if (p->spec.nested)
        return 0;
    p->spec.wait_release = true;
    return take_ids(p, err) < 0 || take_cgroup(p, err) < 0 ? -1 : 0;
}

int prepare_network(struct prepared *p, struct err *err)
{
    if (p->policy->network != NETWORK_RULES && p->audit.fd >= 0)
        return err_set(
            err, ERR_USAGE, 0,
            "--audit writes down what network rules let out, and there are none: give --allow-host, --network "
            "public or a policy with rules");
    if (p->policy->network != NETWORK_RULES && p->secrets.n > 0)
        return err_set(err, ERR_POLICY, 0, "--secret needs network rules, which the policy does not allow here");
    if (p->policy->network != NETWORK_RULES)
        return 0;
    if (p->spec.nested)
        return err_set(err, ERR_HOST, 0,
                       "network rules need a network namespace, which the sandbox around this process forbids; give "
                       "--network off");
    if (run_audit_check(&p->audit, p->args, p->plan, err) < 0)
        return -1;
    int r = run_secrets_take(&p->secrets, p->policy, p->plan, p->args->command, &p->env, &p->notes, err);
    if (r == 0)
        r = run_egress_start(&p->egress, p->policy, &p->secrets, p->audit.fd, &p->env, err);
    run_secrets_forget(&p->secrets); /* nothing that is cloned from here has them */
    if (r < 0)
        return -1;
    p->spec.files = p->egress.files;
    p->spec.nfiles = p->egress.nfiles;
    p->spec.env = p->env.v; /* it may have moved */
    return 0;
}

void prepared_release(struct prepared *p)
{
    wall_drop(&p->wall);
    stubs_remove(p->stubs);
    if (p->has_cgroup)
        (void)cgroup_destroy(&p->cgroup);
    idrange_release(&p->range);
    run_egress_finish(&p->egress);
    run_audit_done(&p->audit);
}
