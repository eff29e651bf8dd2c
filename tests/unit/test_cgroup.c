/* Real cgroups of whatever kind this host has. HUTCH_EXPECT_BACKEND=v2|hybrid|v1 makes another kind a failure; with
 * --without-v2 the cgroup2 mount is hidden in a private mount namespace first, so that a hybrid host also tests v1
 * alone. */
#include "await.h"
#include "tests/lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "base/fd.h"
#include "os/cgroup-int.h"
#include "os/memory.h"
#include "os/oom.h"

enum { MIB = 1 << 20, NOBODY = 65534 };

/* A name made to confuse readers of the kernel's log. */
#define HOSTILE_NAME "a),pid=7 (b"

static struct cgroup_info host;

static void nap_ms(long ms)
{
    (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* Starts fn inside the cgroup the way the wall does; returns when the child is in all leaves. */
static pid_t start_with(uint64_t flags, const struct cgroup *cg, int (*fn)(void *), void *arg)
{
    struct clone_args ca = {.exit_signal = SIGCHLD, .flags = flags};
    int into = cgroup_into_fd(cg), ready[2];
    char c;
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    if (into >= 0) {
        ca.flags |= CLONE_INTO_CGROUP;
        ca.cgroup = (uint64_t)into;
    }
    pid_t pid = (pid_t)syscall(SYS_clone3, &ca, sizeof ca);
    if (pid == 0) {
        if (cgroup_enter(cg) < 0 || write(ready[1], "x", 1) != 1)
            _exit(99);
        (void)close(ready[0]);
        (void)close(ready[1]);
        _exit(fn(arg));
    }
    assert_true(pid > 0);
    (void)close(ready[1]);
    assert_int_equal(read(ready[0], &c, 1), 1);
    (void)close(ready[0]);
    return pid;
}

static pid_t start_in(const struct cgroup *cg, int (*fn)(void *), void *arg) { return start_with(0, cg, fn, arg); }

static int wait_for(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void make(const struct cgroup_limits *lim, unsigned want, struct cgroup *cg)
{
    struct err err = {0};
    if (cgroup_create(&host, lim, want, cg, &err) < 0)
        fail_msg("cgroup_create: %s", err.msg);
}

/* A directory whose last process has ended; the kernel may need a moment to see that. */
static void removed(const char *dir)
{
    int r = -1;
    AWAIT ((r = rmdir(dir)) == 0)
        nap_ms(1);
    assert_int_equal(r, 0);
}

static void assert_gone(const struct cgroup *before)
{
    for (unsigned i = 0; i < CGROUP_HIER_MAX; i++)
        if (before->leaf[i].dir[0] && access(before->leaf[i].dir, F_OK) == 0)
            fail_msg("%s is still there", before->leaf[i].dir);
}

static void destroy(struct cgroup *cg)
{
    struct cgroup before = *cg;
    assert_int_equal(cgroup_destroy(cg), 0);
    assert_gone(&before);
}

/* --- texts -------------------------------------------------------------------------------------------------------- */

static void parser_finds_own_directories_in_each_layout(void **state)
{
    (void)state;
    struct cgroup_info i;
    cgroup_parse_hosts("29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n",
                       "0::/user.slice/user-1000.slice/session-2.scope\n", &i);
    assert_int_equal(i.nhier, 1);
    assert_true(i.hier[0].v2);
    assert_string_equal(i.hier[0].own, "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope");

    cgroup_parse_hosts("1 2 0:1 / / rw - ext4 /dev/vda rw\n"
                       "32 31 0:29 / /cg/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                       "33 31 0:30 / /cg/systemd rw - cgroup cgroup rw,name=systemd\n"
                       "34 31 0:31 / /cg/my\\040memory rw - cgroup cgroup rw,memory\n"
                       "41 31 0:38 / /cg/unified rw - cgroup2 cgroup2 rw\n",
                       "5:name=systemd:/x\n4:memory:/a/b\n1:cpu,cpuacct:/\n0::/\n", &i);
    assert_int_equal(i.nhier, 3);
    assert_string_equal(i.hier[0].own, "/cg/cpu,cpuacct");
    assert_int_equal(i.hier[0].has, CGROUP_CPU | CGROUP_CPUACCT);
    assert_string_equal(i.hier[1].own, "/cg/my memory/a/b");
    assert_int_equal(i.hier[1].has, CGROUP_MEMORY);
    assert_string_equal(i.hier[2].own, "/cg/unified");
}

static void parser_maps_a_mounted_subtree_and_refuses_what_lies_outside(void **state)
{
    (void)state;
    struct cgroup_info i;
    cgroup_parse_hosts("9 8 0:7 /docker/abc /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids\n", "8:pids:/docker/abc/x\n",
                       &i);
    assert_int_equal(i.nhier, 1);
    assert_string_equal(i.hier[0].own, "/sys/fs/cgroup/pids/x");
    cgroup_parse_hosts("9 8 0:7 /docker/abc /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids\n", "8:pids:/docker/abcd\n",
                       &i);
    assert_int_equal(i.nhier, 0);
    cgroup_parse_hosts("9 8 0:7 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/../outside\n", &i);
    assert_int_equal(i.nhier, 0);
    cgroup_parse_hosts("", "", &i);
    assert_int_equal(i.nhier, 0);
    cgroup_parse_hosts("garbage - cgroup\n - cgroup2", ":::\n::", &i);
    assert_int_equal(i.nhier, 0);
}

static void leaf_names_carry_their_owner(void **state)
{
    (void)state;
    char name[CGROUP_NAME_MAX];
    uint64_t ns, start, own;
    pid_t pid;
    struct stat st;
    cgroup_make_name(name);
    assert_true(cgroup_parse_name(name, &ns, &pid, &start));
    assert_int_equal(pid, getpid());
    assert_true(cgroup_start_time(getpid(), &own) && own == start && start > 0);
    assert_int_equal(stat("/proc/self/ns/pid", &st), 0);
    assert_true(ns == st.st_ino);
    static const char *const others[] = {"hutch-",        "hutch-x",        "hutch-1-2-3",
                                         "hutch-1-0-3-4", "hutch-1-2-3-4x", "user.slice"};
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        assert_false(cgroup_parse_name(others[i], &ns, &pid, &start));
}

/* --- limits ------------------------------------------------------------------------------------------------------- */

static void probe_sees_what_the_host_has(void **state)
{
    (void)state;
    const char *expect = getenv("HUTCH_EXPECT_BACKEND");
    print_message("backend %s, why \"%s\"\n", cgroup_backend_name(host.backend), host.why);
    if (expect)
        assert_string_equal(cgroup_backend_name(host.backend), expect);
    assert_int_not_equal(host.backend, CGROUP_NONE);
    assert_true(host.can_memory && host.can_pids && host.can_cpu && host.can_kill && host.can_freeze &&
                host.can_cpuacct);
    assert_string_equal(host.why, "");
}

static int eat_64_mib(void *arg)
{
    (void)arg;
    (void)prctl(PR_SET_NAME, HOSTILE_NAME);
    char *p = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; p != MAP_FAILED && i < 64 * MIB; i += 4096)
        p[i] = 1;
    return p == MAP_FAILED;
}

static void memory_limit_kills_and_names_the_victim(void **state)
{
    (void)state;
    struct cgroup cg;
    struct cgroup_stat st;
    struct oom_kill kill;
    _cleanup_close_ int log = oom_open();
    make(&(struct cgroup_limits){.memory = 24 * MIB}, CGROUP_KILL, &cg);
    pid_t pid = start_in(&cg, eat_64_mib, NULL);
    int status = wait_for(pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    cgroup_stat(&cg, &st);
    assert_true(st.have & CGROUP_HAVE_OOM_KILLS);
    assert_true(st.oom_kills >= 1);
    assert_true(st.have & CGROUP_HAVE_MEMORY_PEAK);
    assert_in_range(st.memory_peak, 16 * MIB, 24 * MIB);
    assert_true(log >= 0);
    assert_int_equal(oom_read(log, cg.name, &kill), 0);
    assert_int_equal(kill.count, 1);
    assert_int_equal(kill.last.kind, OOM_KILLED);
    assert_int_equal(kill.last.pid, pid);
    assert_string_equal(kill.last.comm, HOSTILE_NAME);
    assert_in_range(kill.last.anon_rss_kb, 16 << 10, 32 << 10); /* counts pages shared with the parent, too */
    destroy(&cg);
}

static void the_same_allocation_passes_without_the_limit(void **state)
{
    (void)state;
    struct cgroup cg;
    struct cgroup_stat st;
    make(&(struct cgroup_limits){0}, CGROUP_ACCOUNT | CGROUP_KILL, &cg);
    int status = wait_for(start_in(&cg, eat_64_mib, NULL));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cgroup_stat(&cg, &st);
    assert_true((st.have & CGROUP_HAVE_OOM_KILLS) && st.oom_kills == 0);
    assert_true(st.memory_peak >= 64 * MIB);
    assert_true((st.have & CGROUP_HAVE_CPU_TIME) && st.user_us + st.system_us > 0);
    assert_false(st.have & CGROUP_HAVE_THROTTLED);
    destroy(&cg);
}

/* Forks up to 20 children and reports how many there were when the first fork failed with EAGAIN; 100 if none failed.
 */
static int fork_until_refused(void *arg)
{
    (void)arg;
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            (void)pause();
            _exit(0);
        }
        if (pid < 0)
            return errno == EAGAIN ? i : 50;
    }
    return 100;
}

static int forks_with(uint64_t limit, struct cgroup_stat *st)
{
    struct cgroup cg;
    struct err err = {0};
    make(&(struct cgroup_limits){.pids = limit}, CGROUP_PIDS | CGROUP_KILL, &cg);
    int status = wait_for(start_in(&cg, fork_until_refused, NULL));
    assert_true(WIFEXITED(status));
    cgroup_stat(&cg, st);
    assert_int_equal(cgroup_populated(&cg), 1);
    assert_int_equal(cgroup_kill(&cg, AWAIT_MS, &err), 0);
    assert_int_equal(cgroup_populated(&cg), 0);
    destroy(&cg);
    return WEXITSTATUS(status);
}

static int memory_room_is_small(void *arg)
{
    uint64_t room = memory_room();
    (void)arg;
    return room > 0 && room <= 40 * (uint64_t)MIB ? 0 : 1;
}

static void memory_that_can_be_had_ends_at_a_limit_around_the_caller(void **state)
{
    (void)state;
    if (!host.can_memory)
        skip();
    struct cgroup cg = CGROUP_INIT;
    assert_true(memory_room() > 40 * (uint64_t)MIB);
    make(&(struct cgroup_limits){.memory = 40 * MIB}, 0, &cg);
    assert_int_equal(wait_for(start_in(&cg, memory_room_is_small, NULL)), 0);
    destroy(&cg);
}

static void pids_limit_refuses_the_fork_above_it(void **state)
{
    (void)state;
    struct cgroup_stat st;
    assert_int_equal(forks_with(6, &st), 5);
    assert_true((st.have & CGROUP_HAVE_PIDS_HITS) && st.pids_max_hits >= 1);
    if (st.have & CGROUP_HAVE_PIDS_PEAK)
        assert_int_equal(st.pids_peak, 6);
    assert_int_equal(forks_with(0, &st), 100);
    assert_true((st.have & CGROUP_HAVE_PIDS_HITS) && st.pids_max_hits == 0);
}

static int spin(void *arg)
{
    (void)arg;
    for (volatile unsigned long i = 0;; i++)
        ;
    return 0;
}

static void cpu_quota_throttles(void **state)
{
    (void)state;
    struct err err = {0};
    static const uint64_t quotas[] = {100, 5, 0}; /* 5: below the kernel's smallest quota for the usual period */
    for (size_t q = 0; q < ARRAY_LEN(quotas); q++) {
        struct cgroup cg;
        struct cgroup_stat st;
        make(&(struct cgroup_limits){.cpu_milli = quotas[q]}, CGROUP_CPU | CGROUP_CPUACCT | CGROUP_KILL, &cg);
        pid_t pid = start_in(&cg, spin, NULL);
        AWAIT ((cgroup_stat(&cg, &st), quotas[q] ? st.nr_throttled >= 2 : st.user_us >= 50000))
            nap_ms(10);
        print_message("quota %d/1000: throttled in %d periods, %d us; ran for %d us\n", (int)quotas[q],
                      (int)st.nr_throttled, (int)st.throttled_us, (int)st.user_us);
        assert_true(st.have & CGROUP_HAVE_THROTTLED);
        if (quotas[q])
            assert_true(st.nr_throttled >= 2);
        else
            assert_true(st.user_us >= 50000 && st.nr_throttled == 0);
        assert_int_equal(cgroup_kill(&cg, AWAIT_MS, &err), 0);
        (void)wait_for(pid);
        destroy(&cg);
    }
}

/* --- kill, freeze ------------------------------------------------------------------------------------------------- */

/* A chain of 20 processes that all hold the write end of a pipe; the last one writes a byte when all are there. */
static int chain_of_20(void *arg)
{
    const int *fds = arg;
    for (int i = 0; i < 19; i++) {
        pid_t pid = fork();
        if (pid < 0)
            return 1;
        if (pid > 0) {
            (void)pause();
            return 0;
        }
    }
    (void)!write(fds[1], "x", 1);
    (void)pause();
    return 0;
}

static void kill_ends_a_tree_of_20(bool frozen)
{
    struct cgroup cg;
    struct err err = {0};
    int fds[2];
    char c;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    make(&(struct cgroup_limits){.pids = 100}, CGROUP_KILL, &cg);
    pid_t pid = start_in(&cg, chain_of_20, fds);
    (void)close(fds[1]);
    assert_int_equal(read(fds[0], &c, 1), 1);
    assert_int_equal(cgroup_populated(&cg), 1);
    if (frozen && cgroup_freeze(&cg, true, AWAIT_MS, &err) < 0)
        fail_msg("freeze: %s", err.msg);
    if (cgroup_kill(&cg, AWAIT_MS, &err) < 0)
        fail_msg("kill: %s", err.msg);
    assert_int_equal(cgroup_populated(&cg), 0);
    /* End of file: nobody holds the write end any more, so all twenty are dead whatever the cgroup says. */
    assert_int_equal(read(fds[0], &c, 1), 0);
    (void)close(fds[0]);
    assert_true(WIFSIGNALED(wait_for(pid)));
    destroy(&cg);
}

static void kill_ends_a_running_tree_of_20(void **state)
{
    (void)state;
    kill_ends_a_tree_of_20(false);
}

static void kill_ends_a_frozen_tree_of_20(void **state)
{
    (void)state;
    kill_ends_a_tree_of_20(true);
}

static int fork_bomb(void *arg)
{
    (void)arg;
    (void)signal(SIGCHLD, SIG_IGN);
    for (;;)
        if (fork() < 0)
            (void)sched_yield();
    return 0;
}

static void kill_outruns_a_fork_bomb(void **state)
{
    (void)state;
    struct cgroup cg;
    struct cgroup_stat st;
    struct err err = {0};
    make(&(struct cgroup_limits){.pids = 32}, CGROUP_KILL, &cg);
    pid_t pid = start_in(&cg, fork_bomb, NULL);
    AWAIT ((cgroup_stat(&cg, &st), st.pids_max_hits > 0))
        nap_ms(5);
    assert_true(st.pids_max_hits > 0);
    if (cgroup_kill(&cg, AWAIT_MS, &err) < 0)
        fail_msg("kill: %s", err.msg);
    (void)wait_for(pid);
    destroy(&cg);
}

static int count_up(void *arg)
{
    volatile unsigned long *n = arg;
    for (;; (*n)++)
        ;
    return 0;
}

static void frozen_means_no_progress_and_thawed_means_progress(void **state)
{
    (void)state;
    struct cgroup cg;
    struct err err = {0};
    volatile unsigned long *n = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    make(&(struct cgroup_limits){0}, CGROUP_KILL, &cg);
    pid_t pid = start_in(&cg, count_up, (void *)(uintptr_t)n);
    while (*n == 0)
        nap_ms(1);
    assert_int_equal(cgroup_freeze(&cg, true, AWAIT_MS, &err), 0);
    unsigned long at = *n;
    nap_ms(30);
    assert_int_equal(*n, at);
    assert_int_equal(cgroup_freeze(&cg, false, AWAIT_MS, &err), 0);
    AWAIT (*n != at)
        nap_ms(1);
    assert_true(*n > at);
    assert_int_equal(cgroup_kill(&cg, AWAIT_MS, &err), 0);
    (void)wait_for(pid);
    destroy(&cg);
    (void)munmap((void *)(uintptr_t)n, 4096);
}

static void a_freeze_in_two_parts_is_asked_for_and_looked_at(void **state)
{
    (void)state;
    struct cgroup cg, none = CGROUP_INIT;
    struct err err = {0};
    volatile unsigned long *n = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    make(&(struct cgroup_limits){0}, CGROUP_KILL, &cg);
    pid_t pid = start_in(&cg, count_up, (void *)(uintptr_t)n);
    assert_int_equal(cgroup_frozen(&cg), 0);
    assert_int_equal(cgroup_freeze_ask(&cg, true, &err), 0);
    AWAIT (cgroup_frozen(&cg) != 0)
        nap_ms(1);
    assert_int_equal(cgroup_frozen(&cg), 1);
    assert_int_equal(cgroup_freeze_ask(&cg, true, &err), 0); /* done twice it is done */
    assert_int_equal(cgroup_frozen(&cg), 1);
    assert_int_equal(cgroup_freeze_ask(&cg, false, &err), 0);
    AWAIT (cgroup_frozen(&cg) != 1)
        nap_ms(1);
    assert_int_equal(cgroup_frozen(&cg), 0);
    assert_int_equal(cgroup_kill(&cg, AWAIT_MS, &err), 0);
    (void)wait_for(pid);
    destroy(&cg);
    (void)munmap((void *)(uintptr_t)n, 4096);
    assert_int_equal(cgroup_frozen(&none), -1);
    assert_int_equal(cgroup_freeze_ask(&none, true, &err), -1);
    assert_int_equal(err.code, ERR_HOST);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static int wait_for_ever(void *arg)
{
    (void)arg;
    (void)pause();
    return 0;
}

static void a_child_in_new_namespaces_enters_and_is_killed(void **state)
{
    (void)state;
    struct cgroup cg;
    struct err err = {0};
    make(&(struct cgroup_limits){.memory = 64 * MIB, .pids = 10, .cpu_milli = 500}, CGROUP_ACCOUNT | CGROUP_KILL, &cg);
    /* Its user namespace has no map: it has no id and no right of its own outside. */
    pid_t pid = start_with(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS, &cg, wait_for_ever, NULL);
    for (unsigned i = 0; i < cg.nleaf; i++) {
        _cleanup_buf_ struct buf b = {0};
        char want[16];
        (void)snprintf(want, sizeof want, "%d\n", (int)pid);
        assert_int_equal(fd_read_file(cg.leaf[i].fd, "cgroup.procs", 4096, &b), 0);
        assert_string_equal(buf_str(&b), want);
    }
    assert_int_equal(cgroup_kill(&cg, AWAIT_MS, &err), 0);
    assert_true(WIFSIGNALED(wait_for(pid)));
    destroy(&cg);
}

static void attach_from_outside_works_too(void **state)
{
    (void)state;
    struct cgroup cg;
    struct err err = {0};
    make(&(struct cgroup_limits){.memory = 64 * MIB, .pids = 10}, CGROUP_KILL, &cg);
    pid_t pid = fork();
    if (pid == 0)
        _exit(wait_for_ever(NULL));
    if (cgroup_attach(&cg, pid, false, &err) < 0)
        fail_msg("attach: %s", err.msg);
    assert_int_equal(cgroup_populated(&cg), 1);
    assert_int_equal(cgroup_kill(&cg, AWAIT_MS, &err), 0);
    assert_true(WIFSIGNALED(wait_for(pid)));
    destroy(&cg);
}

static int join_memory(void *arg) { return cgroup_enter_memory(arg) == 0 ? 0 : 7; }

/* Whoever writes for a sandbox that stands still counts as one of it and does not stand still himself. */
static void a_helper_joins_the_memory_of_a_frozen_leaf(void **state)
{
    (void)state;
    struct cgroup cg;
    struct err err = {0};
    struct cgroup_leaf *memory = NULL;
    make(&(struct cgroup_limits){.memory = 64 * MIB}, CGROUP_KILL, &cg);
    assert_int_equal(cgroup_freeze(&cg, true, AWAIT_MS, &err), 0);
    for (unsigned i = 0; i < cg.nleaf; i++)
        if (cg.leaf[i].has & CGROUP_MEMORY)
            memory = &cg.leaf[i];
    assert_non_null(memory);
    bool apart = !memory->v2 && !(memory->has & CGROUP_FREEZER);
    pid_t pid = fork();
    if (pid == 0)
        _exit(join_memory(&cg));
    int status = wait_for(pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), apart ? 0 : 7);
    assert_int_equal(cgroup_freeze(&cg, false, AWAIT_MS, &err), 0);
    struct cgroup none = CGROUP_INIT;
    assert_int_equal(cgroup_enter_memory(&none), 1);
    destroy(&cg);
}

static void a_saved_cgroup_is_ended_by_another_process(void **state)
{
    (void)state;
    struct cgroup cg, copy;
    struct err err = {0};
    _cleanup_buf_ struct buf text = {0};
    make(&(struct cgroup_limits){.pids = 10}, CGROUP_ACCOUNT | CGROUP_KILL, &cg);
    pid_t pid = start_in(&cg, wait_for_ever, NULL);
    cgroup_save(&cg, &text);
    pid_t other = fork();
    if (other == 0)
        _exit(cgroup_load(buf_str(&text), &copy, &err) < 0 || strcmp(copy.name, cg.name) != 0 ||
              cgroup_kill(&copy, AWAIT_MS, &err) < 0 || cgroup_destroy(&copy) < 0);
    assert_int_equal(wait_for(other), 0);
    assert_true(WIFSIGNALED(wait_for(pid)));
    assert_gone(&cg);
    assert_int_equal(cgroup_load(buf_str(&text), &copy, &err), 0); /* all gone: loads as empty */
    assert_int_equal(copy.nleaf, 0);
    assert_int_equal(cgroup_destroy(&cg), 0);
}

static void load_refuses_what_is_not_a_leaf_of_ours(void **state)
{
    (void)state;
    struct cgroup cg;
    struct err err = {0};
    char dir[] = "/tmp/hutch-1-2-3-4", line[64];
    static const char *const bad[] = {"1 /sys/fs/cgroup\n", "1\n", "zz /x\n", "\n", "1 relative/hutch-1-2-3-4\n"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(cgroup_load(bad[i], &cg, &err), -1);
    assert_int_equal(mkdir(dir, 0700), 0);
    (void)snprintf(line, sizeof line, "1 %s\n", dir);
    assert_int_equal(cgroup_load(line, &cg, &err), -1);
    assert_int_equal(rmdir(dir), 0);
}

static void a_limit_that_cannot_be_had_is_an_error_with_its_remedy(void **state)
{
    (void)state;
    struct cgroup_info none = {.why = "mount it"};
    struct cgroup cg;
    struct err err = {0};
    assert_int_equal(cgroup_create(&none, &(struct cgroup_limits){.memory = MIB}, 0, &cg, &err), -1);
    assert_int_equal(err.code, ERR_HOST);
    assert_non_null(strstr(err.msg, "memory"));
    assert_non_null(strstr(err.msg, "mount it"));
    assert_int_equal(cgroup_create(&none, &(struct cgroup_limits){0}, CGROUP_ACCOUNT, &cg, &err), 0);
    assert_int_equal(cg.nleaf, 0);
    assert_int_equal(cgroup_into_fd(&cg), -1);
    assert_int_equal(cgroup_kill(&cg, 10, &err), 0);
    assert_int_equal(cgroup_destroy(&cg), 0);
    assert_int_equal(cgroup_create(&host, &(struct cgroup_limits){.cpu_milli = UINT64_MAX}, 0, &cg, &err), -1);
    assert_int_equal(err.code, ERR_POLICY);
}

/* --- groups below a leaf ------------------------------------------------------------------------------------------ */

/* Joins with no privileges of its own, as a command inside does. */
static int join_and_eat(void *arg)
{
    const struct cgroup_sub *s = arg;
    if (setresgid(NOBODY, NOBODY, NOBODY) < 0 || setresuid(NOBODY, NOBODY, NOBODY) < 0)
        return 2;
    return write(s->enter, "0", 1) != 1 ? 3 : eat_64_mib(NULL);
}

static int join_and_leave_a_daemon(void *arg)
{
    const struct cgroup_sub *s = arg;
    if (write(s->enter, "0", 1) != 1)
        return 3;
    pid_t pid = fork();
    if (pid == 0) {
        (void)setsid();
        return wait_for_ever(NULL);
    }
    return pid < 0;
}

static void a_group_of_one_command_has_its_own_limit(void **state)
{
    (void)state;
    struct cgroup cg;
    struct cgroup_sub s;
    struct err err = {0};
    char text[512] = "";
    make(&(struct cgroup_limits){.memory = 256 * MIB}, CGROUP_ACCOUNT | CGROUP_KILL | CGROUP_INNER, &cg);
    pid_t other = start_in(&cg, wait_for_ever, NULL);
    assert_int_equal(cgroup_sub_make(&cg, 7, 24 * MIB, &s, &err), 0);
    assert_int_equal(cgroup_sub_sweep(&cg), 1); /* new: its process is on its way */
    int status = wait_for(start_in(&cg, join_and_eat, &s));
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_true(pread(s.events, text, sizeof text - 1, 0) > 0);
    assert_non_null(strstr(text, "oom_kill "));
    assert_null(strstr(text, "oom_kill 0")); /* v2 counts a victim again when it ends the rest of its group */
    status = wait_for(start_in(&cg, eat_64_mib, NULL)); /* beside it there is room */
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    unsigned left = 1;
    AWAIT ((left = cgroup_sub_sweep(&cg)) == 0) /* used, and its last process has ended */
        nap_ms(1);
    assert_int_equal(left, 0);
    status = wait_for(start_in(&cg, join_and_eat, &s));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3); /* gone: there is no way into another one */
    cgroup_sub_close(&s);

    assert_int_equal(cgroup_sub_make(&cg, 8, 24 * MIB, &s, &err), 0);
    status = wait_for(start_in(&cg, join_and_leave_a_daemon, &s));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (int i = 0; i < 20; i++)
        assert_int_equal(cgroup_sub_sweep(&cg), 1); /* what a command left is still limited */
    cgroup_sub_close(&s);
    assert_int_equal(cgroup_kill(&cg, AWAIT_MS, &err), 0);
    assert_true(WIFSIGNALED(wait_for(other)));
    destroy(&cg);
}

static void a_leaf_takes_its_empty_groups_along(void **state)
{
    (void)state;
    struct cgroup cg, none = CGROUP_INIT;
    struct cgroup_sub s[2];
    struct err err = {0};
    make(&(struct cgroup_limits){.memory = 256 * MIB}, CGROUP_ACCOUNT | CGROUP_KILL | CGROUP_INNER, &cg);
    for (uint64_t i = 0; i < 2; i++)
        assert_int_equal(cgroup_sub_make(&cg, i + 1, 24 * MIB, &s[i], &err), 0);
    assert_int_equal(cgroup_sub_sweep(&cg), 2);
    for (int i = 0; i < 2; i++)
        cgroup_sub_close(&s[i]);
    destroy(&cg);
    assert_int_equal(cgroup_sub_make(&none, 1, 24 * MIB, &s[0], &err), -1);
    assert_int_equal(err.code, ERR_HOST);
    assert_non_null(strstr(err.msg, "memory"));
    assert_int_equal(cgroup_sub_sweep(&none), 0);
}

static void sweep_takes_dead_owners_leaves_only(void **state)
{
    (void)state;
    struct cgroup mine,
        *theirs = mmap(NULL, sizeof *theirs * 2, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct err err = {0};
    make(&(struct cgroup_limits){.pids = 10}, CGROUP_ACCOUNT | CGROUP_KILL, &mine);
    pid_t owner = fork();
    if (owner == 0) {
        make(&(struct cgroup_limits){.pids = 10}, CGROUP_ACCOUNT | CGROUP_KILL, &theirs[0]);
        make(&(struct cgroup_limits){.pids = 10}, CGROUP_ACCOUNT | CGROUP_KILL, &theirs[1]);
        (void)start_in(&theirs[1], wait_for_ever, NULL);
        (void)raise(SIGKILL);
    }
    assert_true(WIFSIGNALED(wait_for(owner)));
    assert_int_equal(access(theirs[0].leaf[0].dir, F_OK), 0);
    assert_true(cgroup_sweep(&host) >= theirs[0].nleaf);
    assert_gone(&theirs[0]);
    for (unsigned i = 0; i < mine.nleaf; i++)
        assert_int_equal(access(mine.leaf[i].dir, F_OK), 0);
    /* The second one still holds a process: it stays until somebody ends it. */
    struct cgroup left;
    _cleanup_buf_ struct buf text = {0};
    cgroup_save(&theirs[1], &text);
    assert_int_equal(cgroup_load(buf_str(&text), &left, &err), 0);
    assert_int_equal(left.nleaf, theirs[1].nleaf);
    assert_int_equal(cgroup_populated(&left), 1);
    assert_int_equal(cgroup_kill(&left, AWAIT_MS, &err), 0);
    destroy(&left);
    destroy(&mine);
    /* The marks of the dead stay for the next run that sweeps; here none may come. Without /dev/shm there are none. */
    for (unsigned i = 0; i < 2; i++) {
        theirs[i].marked = false;
        cgroup_mark(&theirs[i]);
        cgroup_unmark(&theirs[i], true);
    }
    (void)munmap(theirs, sizeof *theirs * 2);
}

/* --- without root ------------------------------------------------------------------------------------------------- */

static int become_nobody(void)
{
    return setgroups(0, NULL) < 0 || setresgid(NOBODY, NOBODY, NOBODY) < 0 || setresuid(NOBODY, NOBODY, NOBODY) < 0;
}

static void a_user_without_delegation_gets_nothing_and_is_told_why(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        struct cgroup_info i;
        struct cgroup cg;
        struct err err = {0};
        if (become_nobody() || cgroup_probe(&i) < 0)
            _exit(1);
        if (i.backend != CGROUP_NONE || i.can_memory || i.can_kill)
            _exit(2);
        if (!strstr(i.why, host.backend == CGROUP_V2 ? "Delegate=yes" : "only root"))
            _exit(3);
        if (cgroup_create(&i, &(struct cgroup_limits){.pids = 5}, 0, &cg, &err) == 0 || err.code != ERR_HOST)
            _exit(4);
        _exit(0);
    }
    assert_int_equal(wait_for(pid), 0);
}

/* In the child, as nobody, inside <delegated>/inner. */
static int use_delegation(bool controllers)
{
    struct cgroup_info i;
    struct cgroup cg;
    struct err err = {0};
    struct cgroup_limits lim = {.pids = controllers ? 5 : 0, .memory = controllers ? 24 * MIB : 0};
    if (become_nobody() || cgroup_probe(&i) < 0)
        return 1;
    if (!i.can_kill || !i.can_freeze || i.backend != CGROUP_V2 || i.can_memory != controllers)
        return 2;
    if (cgroup_create(&i, &lim, CGROUP_KILL, &cg, &err) < 0)
        return 3;
    struct clone_args ca = {
        .exit_signal = SIGCHLD, .flags = CLONE_INTO_CGROUP, .cgroup = (uint64_t)cgroup_into_fd(&cg)};
    pid_t pid = (pid_t)syscall(SYS_clone3, &ca, sizeof ca);
    if (pid == 0)
        _exit(controllers ? eat_64_mib(NULL) : wait_for_ever(NULL));
    int status;
    if (pid < 0 || (!controllers && cgroup_kill(&cg, AWAIT_MS, &err) < 0) || waitpid(pid, &status, 0) != pid)
        return 4;
    if (!WIFSIGNALED(status))
        return 5;
    return cgroup_destroy(&cg) < 0 ? 6 : 0;
}

static void a_delegated_v2_subtree_serves_an_ordinary_user(void **state)
{
    (void)state;
    const struct cgroup_hier *h = NULL;
    char top[CGROUP_DIR_MAX + 32], inner[CGROUP_DIR_MAX + 64], file[CGROUP_DIR_MAX + 96];
    static const char *const files[] = {"", "/cgroup.procs", "/cgroup.subtree_control"};
    for (unsigned i = 0; i < host.nhier; i++)
        if (host.hier[i].v2)
            h = &host.hier[i];
    if (!h) {
        print_message("no v2 hierarchy here: nothing can be delegated\n");
        skip();
        return;
    }
    bool controllers = host.backend == CGROUP_V2;
    (void)snprintf(top, sizeof top, "%s/delegation-test", h->mount);
    (void)snprintf(inner, sizeof inner, "%s/inner", top);
    assert_int_equal(mkdir(top, 0755), 0);
    if (controllers) {
        (void)snprintf(file, sizeof file, "%s/cgroup.subtree_control", top);
        assert_int_equal(fd_put(AT_FDCWD, file, "+pids +memory +cpu"), 0);
    }
    assert_int_equal(mkdir(inner, 0755), 0);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        (void)snprintf(file, sizeof file, "%s%s", top, files[i]);
        assert_int_equal(chown(file, NOBODY, NOBODY), 0);
        (void)snprintf(file, sizeof file, "%s%s", inner, files[i]);
        assert_int_equal(chown(file, NOBODY, NOBODY), 0);
    }
    _cleanup_close_ int fd = open(inner, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct clone_args ca = {.exit_signal = SIGCHLD, .flags = CLONE_INTO_CGROUP, .cgroup = (uint64_t)fd};
    pid_t pid = (pid_t)syscall(SYS_clone3, &ca, sizeof ca);
    if (pid == 0)
        _exit(use_delegation(controllers));
    int status = wait_for(pid);
    removed(inner);
    removed(top);
    assert_int_equal(status, 0);
}

/* --- inside other cgroups ----------------------------------------------------------------------------------------- */

/* In the child, in its own cgroup and mount namespace: the cgroup it is in looks like the root, but is not. */
static int use_container(const char *mount_point)
{
    struct cgroup_info i;
    struct cgroup cg;
    struct err err = {0};
    if (unshare(CLONE_NEWCGROUP | CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        umount2(mount_point, MNT_DETACH) < 0 || mount("none", mount_point, "cgroup2", 0, NULL) < 0)
        return 1;
    if (cgroup_probe(&i) < 0 || i.backend != CGROUP_V2)
        return 2;
    if (i.can_memory || i.can_pids || i.can_cpu || !i.can_kill || !i.can_cpuacct || !strstr(i.why, "Delegate=yes"))
        return 3;
    if (cgroup_create(&i, &(struct cgroup_limits){.pids = 5}, CGROUP_KILL, &cg, &err) == 0 || err.code != ERR_HOST)
        return 4;
    if (cgroup_create(&i, &(struct cgroup_limits){0}, CGROUP_ACCOUNT | CGROUP_KILL, &cg, &err) < 0 || cg.nleaf != 1)
        return 5;
    pid_t pid = start_in(&cg, wait_for_ever, NULL);
    if (cgroup_kill(&cg, AWAIT_MS, &err) < 0 || waitpid(pid, NULL, 0) != pid)
        return 6;
    return cgroup_destroy(&cg) < 0 ? 7 : 0;
}

static void a_container_without_delegation_keeps_kill_and_is_told_why(void **state)
{
    (void)state;
    char sandbox[CGROUP_DIR_MAX + 32];
    if (host.backend != CGROUP_V2) {
        print_message("backend %s: limits do not depend on the v2 tree\n", cgroup_backend_name(host.backend));
        skip();
        return;
    }
    (void)snprintf(sandbox, sizeof sandbox, "%s/box-test", host.hier[0].mount);
    assert_int_equal(mkdir(sandbox, 0755), 0);
    _cleanup_close_ int fd = open(sandbox, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct clone_args ca = {.exit_signal = SIGCHLD, .flags = CLONE_INTO_CGROUP, .cgroup = (uint64_t)fd};
    pid_t pid = (pid_t)syscall(SYS_clone3, &ca, sizeof ca);
    if (pid == 0)
        _exit(use_container(host.hier[0].mount));
    int status = wait_for(pid);
    removed(sandbox);
    assert_int_equal(status, 0);
}

/* In the child, in a v1 cgroup that has half a CPU. */
static int ask_for_more_and_less(const char *outer)
{
    static const uint64_t quotas[] = {1000, 200};
    char file[CGROUP_DIR_MAX + 64];
    struct cgroup_info i;
    (void)snprintf(file, sizeof file, "%s/cgroup.procs", outer);
    if (fd_put(AT_FDCWD, file, "0") < 0 || cgroup_probe(&i) < 0)
        return 1;
    for (size_t q = 0; q < ARRAY_LEN(quotas); q++) {
        struct cgroup cg;
        struct err err = {0};
        uint64_t us;
        if (cgroup_create(&i, &(struct cgroup_limits){.cpu_milli = quotas[q]}, 0, &cg, &err) < 0)
            return 2;
        if (strncmp(cg.leaf[0].dir, outer, strlen(outer)) != 0)
            return 3;
        /* More than the outer quota cannot be written and need not be; less is. */
        bool written = fd_read_u64(cg.leaf[0].fd, "cpu.cfs_quota_us", &us) == 0 && us == quotas[q] * 100;
        if (written != (quotas[q] < 500) || cgroup_destroy(&cg) < 0)
            return 4;
    }
    return 0;
}

static void a_tighter_quota_around_the_caller_holds(void **state)
{
    (void)state;
    char outer[CGROUP_DIR_MAX + 32], file[CGROUP_DIR_MAX + 64];
    const struct cgroup_hier *h = NULL;
    for (unsigned i = 0; i < host.nhier; i++)
        if (!host.hier[i].v2 && (host.hier[i].has & CGROUP_CPU))
            h = &host.hier[i];
    if (!h) {
        print_message("the cpu controller is in v2, which accepts any quota\n");
        skip();
        return;
    }
    (void)snprintf(outer, sizeof outer, "%s/outer-test", h->own);
    (void)snprintf(file, sizeof file, "%s/cpu.cfs_quota_us", outer);
    assert_int_equal(mkdir(outer, 0755), 0);
    assert_int_equal(fd_put(AT_FDCWD, file, "50000"), 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(ask_for_more_and_less(outer));
    int status = wait_for(pid);
    removed(outer);
    assert_int_equal(status, 0);
}

/* --- v1 alone ----------------------------------------------------------------------------------------------------- */

static void hide_v2(void)
{
    struct cgroup_info i;
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || cgroup_probe(&i) < 0)
        _exit(98);
    for (unsigned k = 0; k < i.nhier; k++)
        if (i.hier[k].v2 && umount2(i.hier[k].mount, MNT_DETACH) < 0)
            _exit(97);
}

static void everything_also_holds_with_v1_alone(void **state)
{
    (void)state;
    if (host.backend != CGROUP_HYBRID) {
        print_message("backend %s: there is no v2 mount to hide\n", cgroup_backend_name(host.backend));
        skip();
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        (void)setenv("HUTCH_EXPECT_BACKEND", "v1", 1);
        (void)execl("/proc/self/exe", "test_cgroup", "--without-v2", (char *)NULL);
        _exit(96);
    }
    assert_int_equal(wait_for(pid), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--without-v2") == 0)
        hide_v2();
    if (cgroup_probe(&host) < 0)
        return 1;
    (void)cgroup_sweep(&host); /* what a failed run before this one left */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parser_finds_own_directories_in_each_layout),
        cmocka_unit_test(parser_maps_a_mounted_subtree_and_refuses_what_lies_outside),
        cmocka_unit_test(leaf_names_carry_their_owner),
        cmocka_unit_test(probe_sees_what_the_host_has),
        cmocka_unit_test(memory_limit_kills_and_names_the_victim),
        cmocka_unit_test(the_same_allocation_passes_without_the_limit),
        cmocka_unit_test(memory_that_can_be_had_ends_at_a_limit_around_the_caller),
        cmocka_unit_test(pids_limit_refuses_the_fork_above_it),
        cmocka_unit_test(cpu_quota_throttles),
        cmocka_unit_test(kill_ends_a_running_tree_of_20),
        cmocka_unit_test(kill_ends_a_frozen_tree_of_20),
        cmocka_unit_test(kill_outruns_a_fork_bomb),
        cmocka_unit_test(frozen_means_no_progress_and_thawed_means_progress),
        cmocka_unit_test(a_freeze_in_two_parts_is_asked_for_and_looked_at),
        cmocka_unit_test(a_child_in_new_namespaces_enters_and_is_killed),
        cmocka_unit_test(attach_from_outside_works_too),
        cmocka_unit_test(a_helper_joins_the_memory_of_a_frozen_leaf),
        cmocka_unit_test(a_saved_cgroup_is_ended_by_another_process),
        cmocka_unit_test(load_refuses_what_is_not_a_leaf_of_ours),
        cmocka_unit_test(a_limit_that_cannot_be_had_is_an_error_with_its_remedy),
        cmocka_unit_test(a_group_of_one_command_has_its_own_limit),
        cmocka_unit_test(a_leaf_takes_its_empty_groups_along),
        cmocka_unit_test(sweep_takes_dead_owners_leaves_only),
        cmocka_unit_test(a_user_without_delegation_gets_nothing_and_is_told_why),
        cmocka_unit_test(a_delegated_v2_subtree_serves_an_ordinary_user),
        cmocka_unit_test(a_container_without_delegation_keeps_kill_and_is_told_why),
        cmocka_unit_test(a_tighter_quota_around_the_caller_holds),
        cmocka_unit_test(everything_also_holds_with_v1_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
