/* setup.c - prepares the daemon before the first request: namespaces, lock, directories; drops unneeded privileges. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/random.h"
#include "keeper/outer.h"
#include "layers/layers-int.h"
#include "layers/numbers.h"
#include "os/caps.h"
#include "wall/sandbox.h"

enum { KEEPER_WAIT_MS = 30000, KEEPER_LOOK_MS = 20 };

#define CAP(c) (UINT64_C(1) << (c))
/* Files of any owner with everything that belongs to them, device nodes (whiteouts), mounts, loop devices and quotas;
 * descriptors of a sandbox's first process; to make an image worker an ordinary user and to end it. */
#define CAPS_OF_LAYERS                                                                                       \
    (CAP(CAP_CHOWN) | CAP(CAP_DAC_OVERRIDE) | CAP(CAP_DAC_READ_SEARCH) | CAP(CAP_FOWNER) | CAP(CAP_FSETID) | \
     CAP(CAP_SETFCAP) | CAP(CAP_MKNOD) | CAP(CAP_SYS_ADMIN) | CAP(CAP_SYS_CHROOT) | CAP(CAP_SYS_PTRACE) |    \
     CAP(CAP_KILL) | CAP(CAP_SETUID) | CAP(CAP_SETGID) | CAP(CAP_SETPCAP))

static int setup_check_fds(struct err *err)
{
    struct stat st;
    if (fstat(LAYERS_FD_SOCKET, &st) < 0 || !S_ISSOCK(st.st_mode) || fstat(LAYERS_FD_RUN, &st) < 0 ||
        !S_ISDIR(st.st_mode) || fstat(LAYERS_FD_STATE, &st) < 0 || !S_ISDIR(st.st_mode))
        return err_set(
            err, ERR_USAGE, 0,
            "stock is started by `hutch serve`, with descriptors %d (listening socket), %d (run directory) and "
            "%d (state directory)",
            LAYERS_FD_SOCKET, LAYERS_FD_RUN, LAYERS_FD_STATE);
    return 0;
}

/* Without root: enters keeper's user namespace. keeper may still be starting: wait for it. */
static int setup_join_keeper(struct err *err)
{
    for (int waited = 0;; waited += KEEPER_LOOK_MS) {
        _cleanup_close_ int ns = outer_of_lock(LAYERS_FD_STATE, KEEPER_LOCK);
        if (ns >= 0 && setns(ns, CLONE_NEWUSER) < 0)
            return err_set(err, ERR_SETUP, errno, "enter the user namespace of keeper");
        if (ns >= 0)
            break;
        if (waited >= KEEPER_WAIT_MS)
            return err_set(err, ERR_SETUP, errno, "find keeper, whose user namespace the store is in");
        (void)nanosleep(&(struct timespec){.tv_nsec = KEEPER_LOOK_MS * 1000000L}, NULL);
    }
    if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "become root of the user namespace of keeper");
    /* The change of ids cleared the dumpable flag; without it our own /proc entries belong to another user. */
    (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    return 0;
}

/* keeper may have died while we joined, and its successor may have made another namespace. */
static int setup_check_keeper(struct err *err)
{
    struct stat own, theirs;
    _cleanup_close_ int ns = outer_of_lock(LAYERS_FD_STATE, KEEPER_LOCK);
    if (ns < 0 && errno == ESRCH)
        return 0; /* the next keeper joins us */
    if (ns < 0 || fstat(ns, &theirs) < 0 || stat("/proc/self/ns/user", &own) < 0 || own.st_ino != theirs.st_ino)
        return err_set(err, ERR_SETUP, 0,
                       "keeper has moved to another user namespace; the layer store must start again");
    return 0;
}

static void setup_own_process(void)
{
    struct rlimit files;
    setup_tie();
    (void)fd_close_range(LAYERS_FD_STATE + 1, ~0U, 0);
    for (int fd = LAYERS_FD_SOCKET; fd <= LAYERS_FD_STATE; fd++)
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    (void)fcntl(LAYERS_FD_SOCKET, F_SETFL, O_RDWR | O_NONBLOCK);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)umask(022);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    (void)prctl(PR_SET_NAME, "hutch-stock", 0, 0, 0);
}

/* Opens a directory that came as a descriptor again in our own mount namespace: only then can it be mounted. */
static int setup_reopen(int fd, struct err *err)
{
    char link[32], path[4096];
    struct stat a, b;
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0 || path[0] != '/')
        return err_set(err, ERR_SETUP, n < 0 ? errno : EINVAL, "find the path of descriptor %d", fd);
    path[n] = '\0';
    _cleanup_close_ int again = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (again < 0 || fstat(fd, &a) < 0 || fstat(again, &b) < 0)
        return err_set(err, ERR_SETUP, errno, "open %s", path);
    if (a.st_dev != b.st_dev || a.st_ino != b.st_ino)
        return err_set(err, ERR_SETUP, 0, "%s is not the directory that was handed over", path);
    return TAKE_FD(again);
}

/* Renames each entry of tmp/ by itself, which needs no new directory. Usually tmp/ is empty. */
static int setup_put_pieces_away(int root)
{
    int tmp = openat(root, "tmp", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = tmp < 0 ? NULL : fdopendir(tmp);
    const struct dirent *e;
    if (!d)
        return -1;
    while ((e = readdir(d)) != NULL) {
        char gone[sizeof LAYERS_GONE + 16] = LAYERS_GONE;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        random_hex(gone + sizeof LAYERS_GONE - 1, 8);
        if (renameat(dirfd(d), e->d_name, root, gone) < 0)
            return -1;
    }
    return 0;
}

/* Renames the previous daemon's tmp/ away; a job removes it later. tmp/ exists at every moment, because keeper,
 * which starts at the same time, opens it. */
static int setup_put_tmp_away(int root)
{
    char gone[sizeof LAYERS_GONE + 16] = LAYERS_GONE;
    random_hex(gone + sizeof LAYERS_GONE - 1, 8);
    if (mkdirat(root, gone, 0700) < 0) /* start even on a full disk, so that the operator can delete something */
        return errno == ENOSPC || errno == EDQUOT ? setup_put_pieces_away(root) : -1;
    if (syscall(SYS_renameat2, root, "tmp", root, gone, RENAME_EXCHANGE) == 0)
        return 0;
    if (errno == ENOENT)
        return renameat(root, gone, root, "tmp");
    (void)unlinkat(root, gone, AT_REMOVEDIR); /* a file system that cannot exchange */
    return renameat(root, "tmp", root, gone);
}

static int setup_open_store(const struct layers_config *c, int state, struct layers *s, struct err *err)
{
    _cleanup_close_ int root = openat(state, LAYERS_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root < 0 || setup_put_tmp_away(root) < 0)
        return err_set(err, ERR_SETUP, errno, "put away what the layer store before was doing");
    if (!c->templates && mkdirat(state, "templates", 0755) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "make the directory of templates");
    _cleanup_close_ int templates =
        openat(state, c->templates ? c->templates : "templates", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (templates < 0)
        return err_set(err, ERR_SETUP, errno, "open the directory of templates %s", c->templates ? c->templates : "");
    return layers_place_open(state, templates, &s->place, err);
}

static int setup_own_mounts(struct err *err)
{
    /* Our mounts are not seen outside. The operator's mounts and unmounts propagate here, so that we keep none busy. */
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
        return err_set(err, ERR_SETUP, errno, "make the mount namespace of the store");
    return 0;
}

/* Makes an empty network namespace for jobs, in a child: without root the daemon itself could not return from it. */
static int setup_empty_network(int *ret, struct err *err)
{
    int begun[2], end[2];
    char byte = 0, path[64];
    if (pipe2(begun, O_CLOEXEC) < 0)
        return err_set(err, ERR_SETUP, errno, "make a pipe");
    if (pipe2(end, O_CLOEXEC) < 0) {
        (void)close(begun[0]), (void)close(begun[1]);
        return err_set(err, ERR_SETUP, errno, "make a pipe");
    }
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(end[1]);
        byte = unshare(CLONE_NEWNET) < 0 ? (char)errno : 0;
        if (write(begun[1], &byte, 1) == 1)
            (void)read(end[0], &byte, 1);
        _exit(0);
    }
    (void)close(begun[1]), (void)close(end[0]);
    ssize_t n = pid < 0 ? -1 : read(begun[0], &byte, 1);
    (void)snprintf(path, sizeof path, "/proc/%d/ns/net", (int)pid);
    *ret = n == 1 && byte == 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    int saved = n == 1 && byte != 0 ? byte : errno;
    (void)close(begun[0]), (void)close(end[1]);
    if (pid > 0)
        (void)waitpid(pid, NULL, 0);
    return *ret < 0 ? err_set(err, ERR_HOST, saved, "make a network namespace for jobs") : 0;
}

static int setup_drop_capabilities(struct err *err)
{
    if (caps_bound(CAPS_OF_LAYERS) < 0 || caps_set(CAPS_OF_LAYERS) < 0)
        return err_set(err, ERR_SETUP, errno, "give up the capabilities that the store does not need");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "set no_new_privs");
    /* A changed set of capabilities takes the death signal away. */
    setup_tie();
    return 0;
}

int layers_setup(const struct layers_config *c, struct layers *s, struct err *err)
{
    struct wall_sandbox_world world;
    s->config = c;
    s->place = (struct layers_place)LAYERS_PLACE_INIT;
    if (setup_check_fds(err) < 0)
        return -1;
    bool joined = geteuid() != 0;
    if (joined && setup_join_keeper(err) < 0)
        return -1;
    setup_own_process();
    log_open("layers", LOG_LEVEL_INFO, STDERR_FILENO);
    if (wall_sandbox_rootless(&world, err) < 0)
        return -1;
    s->rootless = world.rootless;
    if (mkdirat(LAYERS_FD_STATE, LAYERS_DIR, 0700) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "make the directory of the store");
    if (outer_take_lock(LAYERS_FD_STATE, LAYERS_LOCK, "layer store", err) < 0 ||
        (joined && setup_check_keeper(err) < 0))
        return -1;
    if (setup_own_mounts(err) < 0 || setup_empty_network(&s->no_net, err) < 0)
        return -1;
    _cleanup_close_ int state = setup_reopen(LAYERS_FD_STATE, err);
    if (state < 0 || setup_open_store(c, state, s, err) < 0 || (s->run = setup_reopen(LAYERS_FD_RUN, err)) < 0)
        return -1;
    s->listener = LAYERS_FD_SOCKET;
    numbers_begin(&s->place);
    return setup_drop_capabilities(err);
}
