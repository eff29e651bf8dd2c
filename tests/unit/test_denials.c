/* Refusals: what the plan makes of an attempt, compared with what the kernel makes of it behind the same mounts. */
#include "denials-world.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "policy/run/syscalls.h"

/* --- the table: each attempt is judged by the plan and made behind real mounts ------------------------------------ */

enum how { OPEN, OPENAT_FD, IN_CWD, MKDIR, UNLINK, RMDIR, RENAME, CHMOD, LINK, SYMLINK, TRUNCATE };

struct attempt {
    enum how how;
    const char *path, *path2;
    int flags;
    int eno;             /* what the kernel says; 0 = success */
    const char *subject; /* recorded as refused, NULL = not recorded */
    int recorded_eno;
};

#define CREATE (O_WRONLY | O_CREAT)

static const struct attempt attempts[] = {
    {OPEN, "etc/exists", NULL, O_WRONLY, EROFS, "etc/exists", EROFS},
    {OPEN, "etc/new", NULL, CREATE, EROFS, "etc/new", EROFS},
    {OPEN, "etc/read", NULL, O_RDONLY | O_CREAT, 0, NULL, 0},
    {OPEN, "etc/read", NULL, O_RDONLY | O_TRUNC, EROFS, "etc/read", EROFS},
    {OPEN, "etc/read", NULL, CREATE | O_EXCL, EEXIST, NULL, 0},
    {OPEN, "etc", NULL, O_WRONLY, EISDIR, NULL, 0},
    {OPEN, "etc/absent", NULL, O_WRONLY, ENOENT, NULL, 0},
    {OPEN, "nowhere/new", NULL, CREATE, ENOENT, NULL, 0},
    {OPEN, "etc/fifo", NULL, O_RDWR | O_NONBLOCK, 0, NULL, 0},
    {OPEN, "/dev/null", NULL, O_WRONLY, 0, NULL, 0},
    {OPEN, "work/new", NULL, CREATE, 0, NULL, 0},
    {OPEN, "work/link", NULL, O_WRONLY, EROFS, "etc/linked", EROFS},
    {OPEN, "work/../etc/dotdot", NULL, CREATE, EROFS, "etc/dotdot", EROFS},
    {OPEN, "work/.bashrc", NULL, O_WRONLY, EROFS, "work/.bashrc", EROFS},
    {OPEN, "work/.git/config", NULL, CREATE, 0, NULL, 0},
    {OPENAT_FD, "viafd", NULL, CREATE, EROFS, "etc/viafd", EROFS},
    {IN_CWD, "relative", NULL, CREATE, EROFS, "etc/relative", EROFS},
    {MKDIR, "etc", NULL, 0, EEXIST, NULL, 0},
    {MKDIR, "etc/newdir", NULL, 0, EROFS, "etc/newdir", EROFS},
    {MKDIR, "work/newdir/", NULL, 0, 0, NULL, 0},
    {MKDIR, "work/.git/hooks/d", NULL, 0, EROFS, "work/.git/hooks/d", EROFS},
    {MKDIR, "work/.vscode", NULL, 0, EEXIST, "work/.vscode", 0},
    {UNLINK, "etc/absent", NULL, 0, EROFS, NULL, 0}, /* with every grant it would be ENOENT */
    {UNLINK, "etc/removed", NULL, 0, EROFS, "etc/removed", EROFS},
    {UNLINK, "work/a", NULL, 0, 0, NULL, 0},
    {UNLINK, "work/.env", NULL, 0, EBUSY, "work/.env", EBUSY},
    {UNLINK, "work/.git/hooks/old", NULL, 0, EROFS, "work/.git/hooks/old", EROFS},
    {RMDIR, "work/sub", NULL, 0, 0, NULL, 0},
    {RENAME, "work/.git", "work/git", 0, EBUSY, "work/.git", EBUSY},
    {RENAME, "work/moves", "work/moved", 0, 0, NULL, 0},
    {RENAME, "work/moved", "etc/moved-in", 0, EXDEV, NULL, 0},
    {RENAME, "etc/moved", "etc/elsewhere", 0, EROFS, "etc/moved", EROFS},
    {RENAME, "etc/absent", "etc/elsewhere", 0, EROFS, NULL, 0},
    {CHMOD, "etc/changed", NULL, 0, EROFS, "etc/changed", EROFS},
    {CHMOD, "etc/absent", NULL, 0, ENOENT, NULL, 0},
    {LINK, "etc/exists", "etc/hard", 0, EROFS, "etc/hard", EROFS},
    {SYMLINK, "target", "etc/soft", 0, EROFS, "etc/soft", EROFS},
    {SYMLINK, "target", "work/soft", 0, 0, NULL, 0},
    {TRUNCATE, "etc/exists", NULL, 0, EROFS, "etc/exists", EROFS},
};

static int make_attempt(const struct world *w, const struct attempt *a)
{
    _cleanup_free_ char *p = in(w, a->path), *q = a->path2 ? in(w, a->path2) : NULL, *etc = in(w, "etc");
    long r = -1;
    switch (a->how) {
    case OPEN:
        r = open(p, a->flags | O_CLOEXEC, 0644);
        break;
    case OPENAT_FD:
        r = openat(open(etc, O_PATH | O_CLOEXEC), a->path, a->flags | O_CLOEXEC, 0644);
        break;
    case IN_CWD:
        r = chdir(etc) < 0 ? -1 : open(a->path, a->flags | O_CLOEXEC, 0644);
        break;
    case MKDIR:
        r = mkdir(p, 0755);
        break;
    case UNLINK:
        r = unlink(p);
        break;
    case RMDIR:
        r = rmdir(p);
        break;
    case RENAME:
        r = rename(p, q);
        break;
    case CHMOD:
        r = chmod(p, 0600);
        break;
    case LINK:
        r = link(p, q);
        break;
    case SYMLINK:
        r = symlink(a->path, q);
        break;
    case TRUNCATE:
        r = truncate(p, 0);
        break;
    }
    return r < 0 ? errno : 0;
}

static int bind_mount(const struct world *w, const char *from, const char *to, unsigned long flags)
{
    _cleanup_free_ char *src = in(w, from), *dest = in(w, to);
    return mount(src, dest, NULL, MS_BIND, NULL) < 0 ||
                   (flags && mount(NULL, dest, NULL, MS_BIND | MS_REMOUNT | flags, NULL) < 0)
               ? -1
               : 0;
}

static int enter_namespaces(void)
{
    char map[64];
    uid_t uid = geteuid();
    gid_t gid = getegid();
    if (uid == 0)
        return unshare(CLONE_NEWNS);
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0 || fd_put(AT_FDCWD, "/proc/self/setgroups", "deny") < 0)
        return -1;
    (void)snprintf(map, sizeof map, "%u %u 1", uid, uid);
    if (fd_put(AT_FDCWD, "/proc/self/uid_map", map) < 0)
        return -1;
    (void)snprintf(map, sizeof map, "%u %u 1", gid, gid);
    /* As after an exec in the namespace: its maker may look at the process. */
    return fd_put(AT_FDCWD, "/proc/self/gid_map", map) < 0 ? -1 : prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

/* The mounts that the plan describes. */
static int build_wall(const struct world *w)
{
    _cleanup_free_ char *stub = in(w, "work/.vscode");
    if (enter_namespaces() < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return 1;
    if (mkdir(stub, 01755) < 0 || bind_mount(w, "", "", MS_RDONLY) < 0)
        return 2;
    /* Below the new mount the old one still shows, so each bind is made from inside it. */
    if (bind_mount(w, "work", "work", 0) < 0)
        return 3;
    _cleanup_free_ char *work = in(w, "work");
    if (mount(NULL, work, NULL, MS_BIND | MS_REMOUNT, NULL) < 0)
        return 4;
    static const char *const read_only[] = {"work/.bashrc", "work/.env", "work/.vscode"};
    for (size_t i = 0; i < ARRAY_LEN(read_only); i++)
        if (bind_mount(w, read_only[i], read_only[i], MS_RDONLY) < 0)
            return 5;
    if (bind_mount(w, "work/.git", "work/.git", 0) < 0 ||
        bind_mount(w, "work/.git/hooks", "work/.git/hooks", MS_RDONLY) < 0)
        return 6;
    return 0;
}

static int try_attempts(const struct world *w, int sock)
{
    int r = build_wall(w), bad = 0;
    if (r != 0 || lock_in(sock, FLAGS) < 0) {
        fprintf(stderr, "set-up failed at %d: %s\n", r, strerror(errno));
        return 100;
    }
    for (size_t i = 0; i < ARRAY_LEN(attempts); i++) {
        int eno = make_attempt(w, &attempts[i]);
        if (eno == attempts[i].eno)
            continue;
        fprintf(stderr, "attempt %zu on %s: %s, expected %s\n", i, attempts[i].path, strerrorname_np(eno),
                attempts[i].eno ? strerrorname_np(attempts[i].eno) : "success");
        bad = 1;
    }
    return bad;
}

static void records_agree_with_the_kernel_about_every_attempt(void **state)
{
    struct world *w = *state;
    size_t expected = 0;
    assert_int_equal(supervised(w, try_attempts), 0);
    for (size_t i = 0; i < ARRAY_LEN(attempts); i++) {
        const struct attempt *a = &attempts[i];
        if (!a->subject)
            continue;
        _cleanup_free_ char *subject = in(w, a->subject);
        const struct denial *x = find(w, "file", subject);
        if (!x)
            fail_msg("attempt %zu: no record of %s", i, subject);
        assert_true(x->probable);
        assert_int_equal(x->eno, a->recorded_eno);
        bool first = true;
        for (size_t k = 0; k < i; k++)
            first = first && (!attempts[k].subject || strcmp(attempts[k].subject, a->subject) != 0);
        expected += first;
    }
    for (size_t i = 0; i < w->d->n; i++) {
        bool known = false;
        for (size_t k = 0; k < ARRAY_LEN(attempts); k++) {
            _cleanup_free_ char *s = attempts[k].subject ? in(w, attempts[k].subject) : NULL;
            known = known || (s && strcmp(s, w->d->items[i]->subject) == 0);
        }
        if (!known)
            fail_msg("recorded without reason: %s (%s)", w->d->items[i]->subject, buf_str(&w->d->items[i]->hint));
    }
    assert_int_equal(w->d->n, expected);
    _cleanup_free_ char *twice = in(w, "etc/exists");
    assert_int_equal(find(w, "file", twice)->count, 2);
}

/* --- what a record says ------------------------------------------------------------------------------------------- */

static const struct denial *judged(struct world *w, enum path_intent intent, const char *path, int flags)
{
    struct path_attempt a = {.intent = intent, .flags = flags};
    _cleanup_free_ char *full = in(w, path);
    (void)snprintf(a.path, sizeof a.path, "%s", full);
    denials_open_root(w->d, getpid(), getpid());
    denials_judge(w->d, &a);
    return find(w, "file", full);
}

static void assert_says(const struct world *w, const struct denial *x, const char *rule, const char *hint,
                        const char *flag)
{
    _cleanup_free_ char *path = *flag ? in(w, flag) : NULL, *want = path ? xasprintf("--rw %s", path) : xstrdup("");
    assert_non_null(x);
    assert_string_equal(x->rule, rule);
    assert_non_null(strstr(buf_str(&x->hint), hint));
    assert_string_equal(buf_str(&x->grant_flag), want);
}

static void the_grant_is_the_smallest_that_works(void **state)
{
    struct world *w = *state;
    assert_says(w, judged(w, INTENT_OPEN, "etc/exists", O_WRONLY), "default", "root is read-only", "etc/exists");
    assert_says(w, judged(w, INTENT_OPEN, "etc/new", CREATE), "default", "root is read-only", "etc");
    assert_says(w, judged(w, INTENT_REMOVE, "etc/removed", 0), "default", "root is read-only", "etc");
    assert_says(w, judged(w, INTENT_OPEN, "work/.bashrc", O_WRONLY), "files.deny_write[0]", "protected",
                "work/.bashrc");
    assert_says(w, judged(w, INTENT_REMOVE, "work/.git", 0), "builtin.git-hooks", "cannot be moved", "");
    const struct denial *x = find(w, "file", "/nowhere");
    assert_null(x);
    x = judged(w, INTENT_OPEN, "/proc/sys/kernel/x", O_WRONLY);
    assert_says(w, x, "builtin.kernel-files", "read-only", "");
    assert_string_equal(w->d->items[3]->source, "p.yaml:7");
}

static void no_grant_opens_a_home_and_what_is_missing_is_made(void **state)
{
    struct world *w = *state;
    _cleanup_free_ char *home = in(w, "etc"), *dir = in(w, "etc/newdir"), *make = xasprintf("--rw-make %s", dir);
    strv_add(&w->policy->homes, home);
    assert_says(w, judged(w, INTENT_OPEN, "etc/new", CREATE), "default", "make the file outside first", "etc/new");
    assert_says(w, judged(w, INTENT_REMOVE, "etc/removed", 0), "default", "root is read-only", "");
    assert_says(w, judged(w, INTENT_CHANGE, "etc", 0), "default", "root is read-only", "");
    struct path_attempt a = {.intent = INTENT_CREATE, .nofollow = true, .directory = true};
    (void)snprintf(a.path, sizeof a.path, "%s", dir);
    denials_judge(w->d, &a);
    const struct denial *x = find(w, "file", dir);
    assert_non_null(x);
    assert_string_equal(buf_str(&x->grant_flag), make);
    const char *flags[8];
    assert_int_equal(denials_grants(w->d, flags, 8), 2); /* each once, those without a grant left out */
    assert_string_equal(flags[1], make);
}

static void what_a_private_directory_covers_is_shown_and_what_is_hidden_is_not(void **state)
{
    struct world *w = *state;
    _cleanup_free_ char *exists = in(w, "etc/exists"), *show = xasprintf("--ro %s", exists);
    add_op(w, OP_TMPFS, "etc", "builtin.tmp");
    struct path_attempt a = {.intent = INTENT_OPEN};
    (void)snprintf(a.path, sizeof a.path, "%s", exists);
    denials_judge(w->d, &a); /* without a root of the sandbox nothing exists inside */
    const struct denial *x = find(w, "file", exists);
    assert_non_null(x);
    assert_string_equal(buf_str(&x->grant_flag), show);
    _cleanup_free_ char *absent = in(w, "etc/absent");
    (void)snprintf(a.path, sizeof a.path, "%s", absent);
    denials_judge(w->d, &a);
    assert_null(find(w, "file", absent));
}

static void reading_a_hidden_place_is_recorded_as_a_read(void **state)
{
    struct world *w = *state;
    const struct denial *x = judged(w, INTENT_OPEN, "private/x", O_RDONLY);
    assert_non_null(x);
    assert_string_equal(x->access, "read");
    assert_int_equal(x->eno, EACCES);
    assert_string_equal(x->rule, "files.deny_read[0]");
    assert_non_null(judged(w, INTENT_OPEN, "private/absent", O_RDONLY));
    assert_null(judged(w, INTENT_OPEN, "etc/exists", O_RDONLY));
    assert_null(judged(w, INTENT_EXEC, "etc/exists", 0));
    assert_non_null(judged(w, INTENT_EXEC, "work/.env", 0));
}

static void open_files_and_devices_are_never_refusals(void **state)
{
    struct world *w = *state;
    static const char *const fine[] = {"/proc/self/fd/1", "/dev/null", "/dev/shm/x", "/dev/pts/0",
                                       "/proc/1/task/1/fd/2"};
    for (size_t i = 0; i < ARRAY_LEN(fine); i++)
        assert_null(judged(w, INTENT_OPEN, fine[i], CREATE));
    assert_int_equal(denials_total(w->d), 0);
}

static void a_root_of_its_own_is_writable(void **state)
{
    struct world *w = *state;
    strv_add(&w->plan.layers, "/layer");
    assert_null(judged(w, INTENT_OPEN, "etc/new", CREATE));
    assert_null(judged(w, INTENT_REMOVE, "etc/removed", 0));
    assert_non_null(judged(w, INTENT_OPEN, "work/.bashrc", O_WRONLY));
}

static void a_private_directory_is_writable_and_its_scaffold_is_not(void **state)
{
    struct world *w = *state;
    add_op(w, OP_TMPFS, "etc", "builtin.tmp");
    w->plan.ops[w->plan.nops - 1].writable = true;
    assert_null(judged(w, INTENT_OPEN, "etc/new", CREATE));
    w->plan.ops[w->plan.nops - 1].writable = false;
    assert_non_null(judged(w, INTENT_OPEN, "etc/new", CREATE));
}

/* --- refused calls ------------------------------------------------------------------------------------------------ */

static int try_calls(const struct world *w, int sock)
{
    _cleanup_free_ char *target = in(w, "etc");
    if (lock_in(sock, FLAGS) < 0)
        return 100;
    if (mount("none", target, "tmpfs", 0, NULL) == 0 || errno != EPERM)
        return 1;
    if (socket(40 /* AF_VSOCK */, SOCK_STREAM, 0) >= 0 || errno != EAFNOSUPPORT)
        return 2;
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 || errno != EPERM)
        return 3;
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0 || errno != EPERM)
        return 4;
    if (mount("none", (const char *)1, "tmpfs", 0, NULL) == 0 || errno != EPERM)
        return 5;
    if (socket(AF_INET, SOCK_RAW, 255) >= 0 || errno != EPERM)
        return 6;
    return mount("none", target, "tmpfs", 0, NULL) == 0;
}

static void refused_calls_get_their_errno_and_a_record(void **state)
{
    struct world *w = *state;
    _cleanup_free_ char *etc = in(w, "etc"), *mount_etc = xasprintf("mount %s", etc);
    assert_int_equal(supervised(w, try_calls), 0);
    const struct denial *x = find(w, "syscall", mount_etc);
    assert_non_null(x);
    assert_int_equal(x->count, 2);
    assert_int_equal(x->eno, EPERM);
    assert_string_equal(x->category, "mount");
    assert_int_equal(x->grant_flag.n, 0);
    assert_false(x->probable);
    assert_non_null(find(w, "syscall", "socket AF_VSOCK"));
    assert_int_equal(find(w, "syscall", "socket AF_VSOCK")->eno, EAFNOSUPPORT);
    assert_int_equal(find(w, "syscall", "socket AF_VSOCK")->grant_policy.n, 0);
    assert_non_null(find(w, "syscall", "unshare CLONE_NEWUSER|CLONE_NEWNS"));
    assert_non_null(find(w, "syscall", "socket AF_INET SOCK_RAW"));
    assert_non_null(find(w, "syscall", "mount")); /* the one whose memory could not be read */
    x = find(w, "syscall", "ptrace PTRACE_TRACEME");
    assert_non_null(x);
    assert_string_equal(buf_str(&x->grant_flag), "--allow-syscall ptrace");
    assert_string_equal(buf_str(&x->grant_policy), "syscalls: {allow: [ptrace]}");
    assert_int_equal(denials_total(w->d), 7);
}

static int call_and_wait(const struct world *w, int sock)
{
    (void)w;
    return lock_in(sock, FLAGS) < 0 || mount("none", "/mnt", "tmpfs", 0, NULL) == 0;
}

static void a_caller_that_dies_while_it_waits_holds_nobody_up(void **state)
{
    struct world *w = *state;
    int pair[2], listener = -1, status = 0;
    size_t nfds = 1;
    char c;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(call_and_wait(w, pair[1]));
    assert_int_equal(fd_recv(pair[0], &c, 1, &listener, &nfds), 1);
    struct pollfd p = {.fd = listener, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 60000), 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    (void)alarm(60); /* a call that blocks here ends the test */
    denials_notified(w->d, listener, pid);
    (void)alarm(0);
    assert_int_equal(denials_total(w->d), 0);
    (void)close(listener);
    (void)close(pair[0]);
    (void)close(pair[1]);
}

/* A string that ends just before a page that is not there. */
static void a_path_at_the_edge_of_memory_is_read(void **state)
{
    (void)state;
    char got[PATH_MAX + 1];
    long page = sysconf(_SC_PAGESIZE);
    char *p = aligned_alloc((size_t)page, 2 * (size_t)page);
    memset(p, 'x', 2 * (size_t)page);
    assert_int_equal(syscall(SYS_mprotect, p + page, page, 0), 0);
    memcpy(p + page - 4, "abc", 4);
    assert_true(denials_read_string(getpid(), (uint64_t)(uintptr_t)(p + page - 4), got, sizeof got));
    assert_string_equal(got, "abc");
    assert_false(denials_read_string(getpid(), (uint64_t)(uintptr_t)(p + page), got, sizeof got));
    assert_false(denials_read_string(getpid(), 0, got, sizeof got));
    assert_int_equal(syscall(SYS_mprotect, p + page, page, 3), 0);
    free(p);
}

/* --- bounds ------------------------------------------------------------------------------------------------------- */

static void a_flood_of_different_refusals_costs_flat_memory(void **state)
{
    struct world *w = *state;
    struct seccomp_data call = {.nr = NR_mount};
    size_t used = 0;
    for (unsigned i = 0; i < 1000000; i++) {
        char subject[64];
        (void)snprintf(subject, sizeof subject, "mount /%u", i);
        denials_call_refused(w->d, &call, subject);
        if (i == 1000)
            used = mallinfo2().uordblks;
    }
    assert_int_equal(mallinfo2().uordblks, used);
    assert_int_equal(w->d->n, DENIALS_MAX);
    assert_int_equal(denials_total(w->d), 1000000);
    assert_int_equal(w->d->omitted, 1000000 - DENIALS_MAX);
    _cleanup_buf_ struct buf tail = {0};
    denials_tail(w->d, &tail);
    size_t lines = 0;
    for (size_t i = 0; i < tail.n; i++)
        lines += tail.p[i] == '\n';
    assert_in_range(lines, 2, 9);
    assert_non_null(strstr(tail.p, "999996 other refusals"));
}

static int many_attempts(const struct world *w, int sock)
{
    if (lock_in(sock, FLAGS) < 0)
        return 100;
    for (int i = 0; i < 20000; i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "%s/etc/%d", w->base, i);
        (void)open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_DIRECTORY, 0600); /* fails: nothing is made */
        (void)mount("none", path, "tmpfs", 0, NULL);
    }
    return 0;
}

static void a_flood_of_notifications_leaves_no_descriptor_behind(void **state)
{
    struct world *w = *state;
    int before = dup(0);
    (void)close(before);
    assert_int_equal(supervised(w, many_attempts), 0);
    assert_in_range(denials_total(w->d), 20000, 40000);
    int after = dup(0);
    (void)close(after);
    assert_in_range(after, before, before + 1); /* the sandbox's root is kept open */
}

static void a_limit_is_recorded_with_twice_its_value_as_grant(void **state)
{
    struct world *w = *state;
    denials_limit(w->d, LIMIT_PIDS, 12);
    const struct denial *x = find(w, "limit", "pids");
    assert_non_null(x);
    assert_int_equal(x->count, 12);
    assert_string_equal(buf_str(&x->grant_flag), "--pids 24");
    assert_string_equal(buf_str(&x->grant_policy), "limits: {pids: 24}");
    assert_string_equal(x->rule, "limits.pids");
}

static void subjects_are_cut_and_safe_to_print(void **state)
{
    struct world *w = *state;
    char subject[3000];
    memset(subject, 'a', sizeof subject);
    memcpy(subject, "mount \x1b[2J\n\xff", 12);
    subject[sizeof subject - 1] = '\0';
    struct seccomp_data call = {.nr = NR_mount};
    denials_call_refused(w->d, &call, subject);
    assert_int_equal(strlen(w->d->items[0]->subject), DENIALS_SUBJECT_MAX);
    _cleanup_buf_ struct buf tail = {0};
    denials_tail(w->d, &tail);
    assert_null(strchr(tail.p, '\x1b'));
    assert_non_null(strstr(tail.p, "\\x1b[2J\\n"));
    assert_int_equal(strchr(tail.p, '\n') - tail.p, (long)tail.n - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WORLD(records_agree_with_the_kernel_about_every_attempt),
        WORLD(the_grant_is_the_smallest_that_works),
        WORLD(no_grant_opens_a_home_and_what_is_missing_is_made),
        WORLD(what_a_private_directory_covers_is_shown_and_what_is_hidden_is_not),
        WORLD(reading_a_hidden_place_is_recorded_as_a_read),
        WORLD(open_files_and_devices_are_never_refusals),
        WORLD(a_root_of_its_own_is_writable),
        WORLD(a_private_directory_is_writable_and_its_scaffold_is_not),
        WORLD(refused_calls_get_their_errno_and_a_record),
        WORLD(a_caller_that_dies_while_it_waits_holds_nobody_up),
        cmocka_unit_test(a_path_at_the_edge_of_memory_is_read),
        WORLD(a_flood_of_different_refusals_costs_flat_memory),
        WORLD(a_flood_of_notifications_leaves_no_descriptor_behind),
        WORLD(a_limit_is_recorded_with_twice_its_value_as_grant),
        WORLD(subjects_are_cut_and_safe_to_print),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
