#include "init-world.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "await.h"
#include "base/fd.h"
#include "init/init.h"
#include "os/landlock.h"
#include "policy/run/filter.h"

#define MUST(e)                                                            \
    do {                                                                   \
        if ((e) < 0) {                                                     \
            (void)fprintf(stderr, "world: %s: %s\n", #e, strerror(errno)); \
            _exit(99);                                                     \
        }                                                                  \
    } while (0)

static void put_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    MUST(fd);
    MUST(fd_write_all(fd, text, strlen(text)));
    (void)close(fd);
}

static void bind_node(const char *name)
{
    char from[64], to[64];
    (void)snprintf(from, sizeof from, "/dev/%s", name);
    (void)snprintf(to, sizeof to, "root/dev/%s", name);
    put_file(to, "");
    MUST(mount(from, to, NULL, MS_BIND, NULL));
}

static void make_root(void)
{
    static const char *const nodes[] = {"null", "zero", "full", "random", "urandom", "tty"};
    static const char *const dirs[] = {"root/usr",  "root/proc", "root/dev", "root/tmp",      "root/etc",
                                       "root/root", "root/home", "root/run", "root/home/user"};
    MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    MUST(mkdir("root", 0755));
    MUST(mount("tmpfs", "root", "tmpfs", 0, "mode=0755"));
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++)
        MUST(mkdir(dirs[i], 0755));
    MUST(chmod("root/tmp", 01777));
    MUST(chown("root/home/user", 1000, 1000));
    MUST(mount("/usr", "root/usr", NULL, MS_BIND | MS_REC, NULL));
    MUST(symlink("usr/bin", "root/bin"));
    MUST(symlink("usr/sbin", "root/sbin"));
    MUST(symlink("usr/lib", "root/lib"));
    MUST(symlink("usr/lib64", "root/lib64"));
    put_file("root/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\n");
    put_file("root/etc/group", "root:x:0:\nuser:x:1000:\nextra:x:1234:user\n");
    MUST(mount("tmpfs", "root/dev", "tmpfs", MS_NOSUID, "mode=0755"));
    for (size_t i = 0; i < sizeof nodes / sizeof nodes[0]; i++)
        bind_node(nodes[i]);
    MUST(mkdir("root/dev/pts", 0755));
    MUST(mkdir("root/dev/shm", 01777));
    MUST(mount("devpts", "root/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"));
    MUST(symlink("pts/ptmx", "root/dev/ptmx"));
    MUST(mount("proc", "root/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
    MUST(mount("tmpfs", "root/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=32m"));
    MUST(chdir("root"));
    MUST((int)syscall(SYS_pivot_root, ".", "."));
    MUST(umount2(".", MNT_DETACH));
    MUST(chdir("/"));
}

static void loopback_up(void)
{
    struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    MUST(s);
    MUST(ioctl(s, SIOCSIFFLAGS, &ifr));
    (void)close(s);
}

static struct init_place places[] = {
    {"/", LANDLOCK_READ | LANDLOCK_WRITE}, {"/dev", LANDLOCK_READ | LANDLOCK_DEVICE}, {"/dev/shm", LANDLOCK_WRITE}};

static void child(struct world *w, int listener, int sync, int go, bool strict, uint32_t ring)
{
    static struct filter f;
    static struct policy p;
    static struct err err;
    char c;
    MUST(filter_build(&p, FILTER_NOTIFY | (strict ? 0U : FILTER_COMPUTER), &f, &err));
    if (read(go, &c, 1) != 1)
        _exit(98);
    MUST(setresgid(0, 0, 0));
    MUST(setresuid(0, 0, 0));
    MUST(chdir(w->dir));
    (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    make_root();
    int score = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    MUST(score);
    loopback_up();
    static struct init_args a;
    a = (struct init_args){.listener = listener,
                           .sync = sync,
                           .oom = -1,
                           .score = score,
                           .flags = strict ? INIT_STRICT : 0U,
                           .filter = f.insns,
                           .nfilter = f.n,
                           .filter_flags = f.flags,
                           .places = places,
                           .nplaces = landlock_abi() ? 3 : 0,
                           .open_files = 1024,
                           .ring_size = ring};
    init_main(&a);
}

int world_socket_type = SOCK_SEQPACKET;

static int listen_at(struct world *w)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, world_socket_type | SOCK_CLOEXEC, 0);
    (void)snprintf(sa.sun_path, sizeof sa.sun_path, "%s/%s.sock", w->dir, WORLD_ID);
    if (bind(fd, (struct sockaddr *)&sa, sizeof sa) < 0 || listen(fd, 16) < 0)
        return -1;
    return fd;
}

static bool write_map(pid_t pid, const char *name)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    return fd_put(AT_FDCWD, path, "0 0 65536") == 0;
}

bool world_start(struct world *w, bool strict, uint32_t ring)
{
    struct err err = {0};
    int go[2], sync[2];
    memset(w, 0, sizeof *w);
    if (geteuid() != 0)
        return false;
    (void)snprintf(w->dir, sizeof w->dir, "/tmp/hutch-world-XXXXXX");
    if (!mkdtemp(w->dir) || chmod(w->dir, 0755) < 0)
        return false;
    int listener = listen_at(w);
    w->run_dir = open(w->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (listener < 0 || w->run_dir < 0 || pipe2(go, O_CLOEXEC) < 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sync) < 0)
        return false;
    struct clone_args ca = {.flags =
                                CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC,
                            .exit_signal = SIGCHLD};
    w->pid = (pid_t)syscall(SYS_clone3, &ca, sizeof ca);
    if (w->pid == 0)
        child(w, listener, sync[1], go[0], strict, ring);
    (void)close(listener);
    (void)close(sync[1]);
    (void)close(go[0]);
    w->sync = sync[0];
    bool ok = w->pid > 0 && write_map(w->pid, "uid_map") && write_map(w->pid, "gid_map") && write(go[1], "x", 1) == 1;
    (void)close(go[1]);
    unsigned char ready = 0;
    ok = ok && recv(w->sync, &ready, 1, 0) == 1 && ready == INIT_SYNC_READY;
    ok = ok && loop_new(&w->loop, &err) == 0 && links_new(w->loop, w->run_dir, &w->links, &err) == 0;
    if (!ok)
        (void)fprintf(stderr, "world: no sandbox can be made here\n");
    return ok;
}

void world_commit(struct world *w)
{
    unsigned char go = INIT_SYNC_COMMIT;
    (void)!send(w->sync, &go, 1, MSG_NOSIGNAL);
    (void)close(w->sync);
    w->sync = -1;
}

bool world_wait(struct world *w, const bool *flag, unsigned ms)
{
    struct err err = {0};
    struct timespec a, b;
    (void)clock_gettime(CLOCK_MONOTONIC, &a);
    while (!*flag) {
        if (loop_step(w->loop, 50, &err) < 0)
            return false;
        (void)clock_gettime(CLOCK_MONOTONIC, &b);
        if ((b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000 > (long)ms)
            return *flag;
    }
    return true;
}

void status_done(void *arg, const struct link_status *st)
{
    struct status_sandbox *b = arg;
    b->st = *st;
    b->done = true;
}

void world_bind(struct world *w)
{
    static const char *const env[] = {"E2B_SANDBOX=true", "FROM_BIND=1", NULL};
    struct link_bind b = {.hostname = "box", .env = env, .user = "user"};
    struct status_sandbox s = {0};
    (void)link_bind(w->links, WORLD_ID, &b, status_done, &s);
    if (!world_wait(w, &s.done, AWAIT_MS) || s.st.code != LINK_OK)
        (void)fprintf(stderr, "world: bind: %d %s\n", (int)s.st.code, s.st.text);
}

void world_stop(struct world *w)
{
    links_free(w->links);
    loop_free(w->loop);
    if (w->sync >= 0)
        (void)close(w->sync);
    if (w->pid > 0) {
        (void)kill(w->pid, SIGKILL);
        (void)waitpid(w->pid, NULL, 0);
    }
    (void)unlinkat(w->run_dir, WORLD_ID ".sock", 0);
    (void)close(w->run_dir);
    char root[80];
    (void)snprintf(root, sizeof root, "%s/root", w->dir);
    (void)rmdir(root);
    (void)rmdir(w->dir);
}

static void on_started(void *arg, uint32_t pid, const char *tag)
{
    struct capture *c = arg;
    (void)tag;
    c->started = true;
    c->pid = pid;
}

static bool on_output(void *arg, enum exec_stream s, uint64_t offset, const void *p, size_t n)
{
    struct capture *c = arg;
    if (c->total[s] == 0)
        c->first[s] = c->next[s] = offset;
    c->gap += offset - c->next[s];
    c->next[s] = offset + n;
    c->total[s] += n;
    size_t room = sizeof c->text[s] - 1 - c->n[s], take = n < room ? n : room;
    memcpy(c->text[s] + c->n[s], p, take);
    c->n[s] += take;
    c->text[s][c->n[s]] = '\0';
    if (c->pause_after && c->total[s] >= c->pause_after) {
        c->paused = true;
        return false;
    }
    return true;
}

static void on_ended(void *arg, const struct exec_end *end)
{
    struct capture *c = arg;
    c->end = *end;
    c->ended = c->over = true;
    c->x = NULL;
}

static void on_failed(void *arg, const struct link_status *st)
{
    struct capture *c = arg;
    c->st = *st;
    c->failed = c->over = true;
    c->x = NULL;
}

const struct exec_ops capture_ops = {on_started, on_output, on_ended, on_failed};

void world_sh(struct world *w, const char *script, struct capture *ret)
{
    const char *const args[] = {"-c", script, NULL};
    struct exec_spec s = {.cmd = "sh", .args = args};
    memset(ret, 0, sizeof *ret);
    ret->x = exec_start(w->links, WORLD_ID, &s, &capture_ops, ret);
    (void)world_wait(w, &ret->over, 5 * AWAIT_MS); /* some say a lot */
}

int world_up(struct world *w, bool strict)
{
    if (!world_start(w, strict, 0))
        return -1;
    world_commit(w);
    world_bind(w);
    return 0;
}

int world_run_twice(int (*run_all)(void))
{
    int status = 0;
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        world_socket_type = SOCK_STREAM;
        exit(run_all() > 0);
    }
    bool failed = pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
    return failed + run_all();
}
