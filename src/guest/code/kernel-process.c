#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "guest/code/kernel-int.h"
#include "os/wipe.h"

enum { REMOVE_S = 20 };

extern char **environ;

/* A filter cannot tell connections to files from others. So a kernel that has the network, but not every unix socket, makes
 * none at all and uses ports. */
bool kernel_uses_ipc(const struct kernel *k)
{
    return k->language->ipc && (!k->rights->limit_write || k->rights->no_network);
}

int kernel_may_have(const struct language *l, const struct kernel_rights *r, struct err *err)
{
    if (r->no_network && !l->ipc)
        return err_set(
            err, ERR_USAGE, 0,
            "rights: a cell of %s cannot have network off, as its kernel talks over ports; python and bash can",
            l->name);
    if (r->limit_write && l->terminal)
        return err_set(err, ERR_USAGE, 0,
                       "rights: a cell of %s cannot have write limited, as its kernel opens a terminal; python can",
                       l->name);
    return 0;
}

/* Ports that are free now. Another process may take one before the kernel does; the kernel then ends, and is started again
 * with the next request. */
static int kernel_choose_ports(struct kernel *k, struct err *err)
{
    int fd[PORTS], result = 0;
    for (int i = 0; i < PORTS; i++) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t n = sizeof a;
        k->port[i] = (unsigned)i + 1;
        fd[i] = -1;
        if (kernel_uses_ipc(k))
            continue;
        fd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd[i] < 0 || bind(fd[i], (void *)&a, n) < 0 || getsockname(fd[i], (void *)&a, &n) < 0)
            result = err_set(err, ERR_SETUP, errno, "find a free port for the kernel");
        k->port[i] = ntohs(a.sin_port);
    }
    for (int i = 0; i < PORTS; i++)
        if (fd[i] >= 0)
            (void)close(fd[i]);
    return result;
}

static void kernel_add_ip(const struct kernel *k, struct buf *b)
{
    if (kernel_uses_ipc(k))
        buf_addf(b, "%.*s", (int)(strlen(k->file) - strlen(".json")), k->file);
    else
        buf_adds(b, "127.0.0.1");
}

void kernel_add_address(const struct kernel *k, int which, struct buf *b)
{
    buf_adds(b, kernel_uses_ipc(k) ? "ipc://" : "tcp://");
    kernel_add_ip(k, b);
    buf_addf(b, kernel_uses_ipc(k) ? "-%u" : ":%u", k->port[which]);
}

int kernel_write_file(struct kernel *k, struct err *err)
{
    _cleanup_buf_ struct buf ip = {0};
    if (kernel_choose_ports(k, err) < 0)
        return -1;
    kernel_add_ip(k, &ip);
    json_t *o = json_pack("{sI sI sI sI sI ss ss ss ss ss}", "shell_port", (json_int_t)k->port[SHELL], "iopub_port",
                          (json_int_t)k->port[IOPUB], "stdin_port", (json_int_t)k->port[STDIN], "control_port",
                          (json_int_t)k->port[CONTROL], "hb_port", (json_int_t)k->port[HEARTBEAT], "ip", buf_str(&ip),
                          "transport", kernel_uses_ipc(k) ? "ipc" : "tcp", "key", k->key, "signature_scheme",
                          "hmac-sha256", "kernel_name", k->language->name);
    _cleanup_free_ char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    _cleanup_close_ int fd = open(k->file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || !text || fd_write_all(fd, text, strlen(text)) < 0)
        return err_set(err, ERR_SETUP, errno, "write %s", k->file);
    return 0;
}

/* A word of the kernelspec with its placeholders filled in. */
static char *kernel_word(const struct kernel *k, const char *word, const char *resources)
{
    static const char file[] = "{connection_file}", dir[] = "{resource_dir}";
    struct buf b = {0};
    while (*word)
        if (strncmp(word, file, sizeof file - 1) == 0) {
            buf_adds(&b, k->file);
            word += sizeof file - 1;
        } else if (strncmp(word, dir, sizeof dir - 1) == 0) {
            buf_adds(&b, resources);
            word += sizeof dir - 1;
        } else {
            buf_addc(&b, *word++);
        }
    return b.p ? b.p : xstrdup("");
}

static char **kernel_argv(const struct kernel *k, json_t *spec)
{
    json_t *argv = json_object_get(spec, "argv");
    const char *resources = json_string_value(json_object_get(spec, "resource_dir"));
    char **v = xcalloc(json_array_size(argv) + 1, sizeof *v);
    for (size_t i = 0; i < json_array_size(argv); i++)
        v[i] = kernel_word(k, json_string_value(json_array_get(argv, i)), resources ? resources : "");
    return v;
}

/* PATH with the programs beside the kernelspec first: the "python" and "pip" of a kernel are those of its own installation. */
static char *kernel_path(json_t *spec)
{
    static const char place[] = "/share/jupyter/kernels/";
    const char *dir = json_string_value(json_object_get(spec, "resource_dir")), *path = getenv("PATH");
    const char *at = dir ? strstr(dir, place) : NULL;
    path = path ? path : "/usr/local/bin:/usr/bin:/bin";
    return at ? xasprintf("PATH=%.*s/bin:%s", (int)(at - dir), dir, path) : xasprintf("PATH=%s", path);
}

/* Where a kernel that may write nowhere else puts its own files. */
static const char *const kernel_places[] = {"TMPDIR", "IPYTHONDIR", "MPLCONFIGDIR", "JUPYTER_RUNTIME_DIR"};

static bool kernel_is_place(const char *name)
{
    bool found = false;
    for (size_t i = 0; i < ARRAY_LEN(kernel_places); i++)
        found |= strcmp(kernel_places[i], name) == 0;
    return found;
}

/* Our environment, PATH, what the kernelspec adds, and the places. */
static char **kernel_env(const struct kernel *k, json_t *spec)
{
    json_t *add = json_object_get(spec, "env"), *value;
    const char *name;
    size_t n = 0, at = 0;
    while (environ[n])
        n++;
    char **v = xcalloc(n + json_object_size(add) + ARRAY_LEN(kernel_places) + 2, sizeof *v);
    for (size_t i = 0; k->rights->limit_write && i < ARRAY_LEN(kernel_places); i++)
        v[at++] = xasprintf("%s=%s", kernel_places[i], k->own);
    json_object_foreach(add, name, value)
    {
        if (json_is_string(value) && !(k->rights->limit_write && kernel_is_place(name)))
            v[at++] = xasprintf("%s=%s", name, json_string_value(value));
    }
    if (!json_object_get(add, "PATH"))
        v[at++] = kernel_path(spec);
    size_t added = at;
    for (size_t i = 0; i < n; i++) {
        bool wins = true;
        for (size_t j = 0; j < added; j++)
            wins &= strncmp(v[j], environ[i], strcspn(v[j], "=") + 1) != 0;
        if (wins)
            v[at++] = xstrdup(environ[i]);
    }
    return v;
}

static void kernel_free_words(char **v)
{
    for (char **p = v; *p; p++)
        free(*p);
    free(v);
}

/* After fork(), while other threads of libzmq may have held locks: only calls that need none. */
static _Noreturn void kernel_become(const struct kernel *k, char **argv, char **env, const char *cwd, int said,
                                    pid_t parent)
{
    static const char lost[] = "its directory is gone\n", missing[] = "its program cannot be started\n";
    sigset_t none;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)setsid();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    (void)dup2(null, 0);
    (void)dup2(said, 1);
    (void)dup2(said, 2);
    if (chdir(cwd) < 0) {
        (void)write(2, lost, sizeof lost - 1);
        _exit(126);
    }
    /* A fork bomb leaves room for what ends it. */
    unsigned processes = k->world->processes;
    if (processes > 0)
        (void)setrlimit(RLIMIT_NPROC, &(struct rlimit){processes, processes});
    /* If memory runs out the kernel is ended, not the service. */
    int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (score >= 0)
        (void)write(score, "500", 3);
    (void)syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
    if (k->rights->said && kernel_rights_apply(k->rights, k->own) < 0)
        _exit(126);
    environ = env;
    (void)execvp(argv[0], argv);
    (void)write(2, missing, sizeof missing - 1);
    _exit(127);
}

int kernel_spawn(struct kernel *k, json_t *spec, const char *cwd, struct err *err)
{
    int said[2];
    pid_t parent = getpid();
    if (pipe2(said, O_CLOEXEC | O_NONBLOCK) < 0)
        return err_set(err, ERR_SETUP, errno, "make a pipe for the kernel");
    char **argv = kernel_argv(k, spec), **env = kernel_env(k, spec);
    k->pid = fork();
    if (k->pid == 0)
        kernel_become(k, argv, env, cwd, said[1], parent);
    int eno = errno;
    (void)close(said[1]);
    kernel_free_words(argv);
    kernel_free_words(env);
    k->said = said[0];
    if (k->pid < 0)
        return err_set(err, ERR_SETUP, eno, "start the kernel");
    k->pidfd = (int)syscall(SYS_pidfd_open, k->pid, 0);
    return k->pidfd < 0 ? err_set(err, ERR_SETUP, errno, "pidfd_open") : 0;
}

struct reaping {
    struct loop *loop;
    loop_id watch;
    pid_t pid;
    int pidfd;
};

static void kernel_on_reapable(void *arg, int fd, unsigned events)
{
    struct reaping *r = arg;
    (void)events;
    if (waitpid(r->pid, NULL, WNOHANG) == 0)
        return;
    loop_fd_del(r->loop, r->watch);
    (void)close(fd);
    free(r);
}

/* Waits for a process of ours that ends by itself. */
static void kernel_reap(struct kernel_world *w, pid_t pid, int pidfd)
{
    if (pidfd < 0 || w->ending) {
        if (pid > 0)
            (void)waitpid(pid, NULL, 0);
        if (pidfd >= 0)
            (void)close(pidfd);
        return;
    }
    struct reaping *r = xcalloc(1, sizeof *r);
    *r = (struct reaping){.loop = w->loop, .pid = pid, .pidfd = pidfd};
    r->watch = loop_fd_add(r->loop, r->pidfd, LOOP_IN, kernel_on_reapable, r);
}

void kernel_remove_own(struct kernel *k)
{
    struct err err;
    pid_t pid = fork();
    if (pid == 0) {
        (void)alarm(REMOVE_S);
        _exit(wipe_tree(AT_FDCWD, k->own, &err) < 0 ? 1 : 0);
    }
    kernel_reap(k->world, pid, pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1);
}

void kernel_end_process(struct kernel *k)
{
    if (k->pid > 0) {
        (void)kill(-k->pid, SIGKILL);
        (void)kill(k->pid, SIGKILL);
    }
    if (k->said >= 0)
        (void)close(k->said);
    kernel_reap(k->world, k->pid, k->pidfd);
}
