/* probe-main.c - command line, the forked child around each attempt, JSON output and what attempts share. */
#include "probe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct attempt_table *const tables[] = {
    &probe_files,  &probe_names, &probe_proc, &probe_ns,  &probe_sys,  &probe_sock,
    &probe_kernfs, &probe_dev,   &probe_net,  &probe_res, &probe_cred, &probe_catalog,
};

enum { MAX_VARS = 32 };
static const char *vars[MAX_VARS];
static size_t nvars;
static char first_fds[256];

/* --- shared by attempts ------------------------------------------------------------------------------------------------ */

void seen_text(struct seen *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(s->text, sizeof s->text, fmt, ap);
    va_end(ap);
}

static const char *errno_name(int eno)
{
    const char *name = strerrorname_np(eno);
    return name ? name : "E?";
}

void seen_rc(struct seen *s, long rc) { seen_text(s, "%s", rc >= 0 ? "success" : errno_name(errno)); }

void seen_past(struct seen *s, long rc, const int *past, size_t npast)
{
    if (rc < 0)
        for (size_t i = 0; i < npast; i++)
            if (errno == past[i]) {
                seen_text(s, "reached: %s", errno_name(errno));
                return;
            }
    seen_rc(s, rc);
}

const char *probe_var(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < nvars; i++)
        if (strncmp(vars[i], name, n) == 0 && vars[i][n] == '=')
            return vars[i] + n + 1;
    return NULL;
}

long probe_var_num(const char *name)
{
    const char *v = probe_var(name);
    char *end;
    if (!v || !*v)
        return -1;
    errno = 0;
    long n = strtol(v, &end, 0);
    return errno || *end ? -1 : n;
}

const char *probe_need(struct seen *s, const char *name)
{
    const char *v = probe_var(name);
    if (!v)
        seen_text(s, "skipped: no --var %s given", name);
    return v;
}

bool probe_is_computer(void)
{
    const char *tier = probe_var("privilege");
    return tier && strcmp(tier, "computer") == 0;
}

const char *probe_home(const char *suffix)
{
    static char path[4096];
    const char *home = probe_var("home");
    if (!home)
        home = getenv("HOME");
    (void)snprintf(path, sizeof path, "%s/%s", home ? home : "/nonexistent", suffix);
    return path;
}

pid_t probe_target(void)
{
    long n = probe_var_num("target");
    return n > 0 ? (pid_t)n : 1;
}

const char *probe_first_fds(void) { return first_fds; }

ssize_t probe_slurp(const char *path, char *buf, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -1;
    size_t got = 0;
    ssize_t r = 0;
    while (got < n - 1 && (r = read(fd, buf + got, n - 1 - got)) > 0)
        got += (size_t)r;
    int eno = errno;
    close(fd);
    buf[got] = '\0';
    errno = eno;
    return got == 0 && r < 0 ? -1 : (ssize_t)got;
}

int probe_put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    ssize_t n = write(fd, text, strlen(text));
    int eno = errno;
    close(fd);
    errno = eno;
    return n < 0 ? -1 : 0;
}

int probe_exec(char *const argv[], char *out, size_t n)
{
    int p[2];
    if (pipe2(p, O_CLOEXEC) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(p[1], 1);
        execv(argv[0], argv);
        (void)dprintf(1, "%s", errno_name(errno));
        _exit(127);
    }
    close(p[1]);
    size_t got = 0;
    ssize_t r;
    while (pid > 0 && got < n - 1 && (r = read(p[0], out + got, n - 1 - got)) > 0)
        got += (size_t)r;
    out[got] = '\0';
    close(p[0]);
    int st = 0;
    if (pid > 0)
        (void)waitpid(pid, &st, 0);
    return pid < 0 ? -1 : WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
}

const char *probe_canary_mark(void)
{
    /* Kept encoded, so that a search of this program's own file and memory image does not find itself. */
    static const unsigned char coded[] = {0x12, 0x0f, 0x0e, 0x19, 0x12, 0x77, 0x19, 0x1b, 0x14, 0x1b, 0x08, 0x03, 0x77};
    static char mark[sizeof coded + 1];
    for (size_t i = 0; i < sizeof coded; i++)
        mark[i] = (char)(coded[i] ^ 0x5a);
    return mark;
}

double probe_now(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

long probe_i386(long nr, long a, long b, long c)
{
    int ret;
    __asm__ volatile("int $0x80"
                     : "=a"(ret)
                     : "a"((int)nr), "b"((int)a), "c"((int)b), "d"((int)c)
                     : "memory", "r8", "r9", "r10", "r11");
    return ret;
}

long probe_x32(long nr, long a, long b, long c) { return syscall(nr | 0x40000000, a, b, c); }

bool probe_runnable(pid_t pid)
{
    char path[64], text[512] = "";
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    const char *end = probe_slurp(path, text, sizeof text) > 0 ? strrchr(text, ')') : NULL;
    return end && end[1] == ' ' && end[2] == 'R';
}

/* --- running one attempt ------------------------------------------------------------------------------------------------ */

static void child_run(const struct attempt *a, int out)
{
    struct seen s = {""};
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)signal(SIGPIPE, SIG_IGN);
    a->run(a, &s);
    (void)!write(out, s.text, strlen(s.text) + 1);
    _exit(0);
}

static void reap_group(pid_t pid)
{
    (void)kill(-pid, SIGKILL);
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

static void observe_status(int st, struct seen *s)
{
    if (WIFSIGNALED(st)) {
        const char *name = sigabbrev_np(WTERMSIG(st));
        seen_text(s, "signal SIG%s", name ? name : "?");
    } else {
        seen_text(s, "exit %d without a word", WEXITSTATUS(st));
    }
}

static void attempt_observe(const struct attempt *a, struct seen *s)
{
    int p[2], st = 0;
    if (pipe2(p, O_CLOEXEC) < 0) {
        seen_text(s, "skipped: pipe: %s", errno_name(errno));
        return;
    }
    pid_t pid = fork();
    if (pid == 0)
        child_run(a, p[1]);
    close(p[1]);
    if (pid < 0) {
        seen_text(s, "skipped: fork: %s", errno_name(errno));
        close(p[0]);
        return;
    }
    struct pollfd pf = {.fd = p[0], .events = POLLIN};
    bool may_work = a->flags & (A_LIMITS | A_ALONE);
    int ready = poll(&pf, 1, may_work ? 20000 : 8000);
    /* On a machine with much to do: one that waits for a processor does not hang. */
    for (int i = 0; ready == 0 && !may_work && i < 8 && probe_runnable(pid); i++)
        ready = poll(&pf, 1, 8000);
    ssize_t n = ready > 0 ? read(p[0], s->text, sizeof s->text - 1) : -1;
    if (ready == 0)
        (void)kill(pid, SIGKILL);
    close(p[0]);
    (void)waitpid(pid, &st, 0);
    if (ready == 0)
        seen_text(s, "hang");
    else if (n <= 0)
        observe_status(st, s);
    reap_group(pid);
}

/* --- output ------------------------------------------------------------------------------------------------------------- */

static void put_json_str(const char *key, const char *v, bool last)
{
    printf("\"%s\":", key);
    if (!v) {
        printf("null%s", last ? "" : ",");
        return;
    }
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)v; *c; c++) {
        if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else if (*c < 0x20 || *c > 0x7e)
            printf("\\u%04x", *c);
        else
            putchar(*c);
    }
    printf("\"%s", last ? "" : ",");
}

static const char *control_name(enum control c)
{
    static const char *const names[] = {"outside", "root", "ns", "kernel", "allowed", "host", "none"};
    return names[c];
}

static void list_one(const char *topic, const struct attempt *a, bool json)
{
    if (!json) {
        printf("%-7s %-70s strict: %-24s layers: %s\n", a->id, a->what, a->strict ? a->strict : "-", a->layers);
        return;
    }
    printf("{");
    put_json_str("id", a->id, false);
    put_json_str("topic", topic, false);
    put_json_str("attempt", a->what, false);
    put_json_str("strict", a->strict, false);
    put_json_str("computer", a->computer ? a->computer : a->strict, false);
    put_json_str("layers", a->layers, false);
    put_json_str("control", control_name(a->control), false);
    put_json_str("why", a->why, false);
    printf("\"flags\":%u}\n", a->flags);
}

static void show_one(const struct attempt *a, const struct seen *s, bool json)
{
    if (!json) {
        printf("%-7s %-70s %s\n", a->id, a->what, s->text);
    } else {
        printf("{");
        put_json_str("id", a->id, false);
        put_json_str("attempt", a->what, false);
        put_json_str("observed", s->text, true);
        printf("}\n");
    }
    (void)fflush(stdout);
}

/* --- command line --------------------------------------------------------------------------------------------------------- */

static bool wanted(const struct attempt *a, char **ids, int nids, bool all)
{
    if (!a->run)
        return false;
    for (int i = 0; i < nids; i++)
        if (strcmp(ids[i], a->id) == 0)
            return true;
    return all && !(a->flags & (A_LIMITS | A_ALONE | A_STDIN_FILE | A_STDIN_DIR | A_TTY));
}

static void note_first_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));) {
        char *end;
        long n = strtol(e->d_name, &end, 10);
        if (*end || n <= 2 || n == dirfd(d))
            continue;
        size_t used = strlen(first_fds);
        (void)snprintf(first_fds + used, sizeof first_fds - used, "%s%ld", used ? "," : "", n);
    }
    closedir(d);
}

static int usage(void)
{
    (void)fprintf(
        stderr,
        "usage: hutch-probe --list [--json]\n"
        "       hutch-probe [--json] [--var NAME=VALUE]... --all | ID...\n"
        "       hutch-probe --syscalls native|i386|x32 zeros|ones\n"
        "       hutch-probe --swap PATH PATH SECONDS | --fuzz SECONDS SEED | --flood SECONDS PROCS | --whoami\n");
    return 120;
}

static int other_mode(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--syscalls") == 0)
        return mode_syscalls(argv[2], strcmp(argv[3], "ones") == 0 ? -1 : 0);
    if (argc == 5 && strcmp(argv[1], "--swap") == 0)
        return mode_swap(argv[2], argv[3], strtod(argv[4], NULL));
    if (argc == 4 && strcmp(argv[1], "--fuzz") == 0)
        return mode_fuzz(strtod(argv[2], NULL), (unsigned)strtoul(argv[3], NULL, 10));
    if (argc == 4 && strcmp(argv[1], "--flood") == 0)
        return mode_flood(strtod(argv[2], NULL), (int)strtol(argv[3], NULL, 10));
    if (argc == 2 && strcmp(argv[1], "--whoami") == 0)
        return mode_whoami();
    return -1;
}

int main(int argc, char **argv)
{
    bool list = false, json = false, all = false;
    int first_id = argc, rc;

    note_first_fds();
    if ((rc = other_mode(argc, argv)) >= 0)
        return rc;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--list") == 0)
            list = true;
        else if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--all") == 0)
            all = true;
        else if (strcmp(argv[i], "--var") == 0 && i + 1 < argc && nvars < MAX_VARS)
            vars[nvars++] = argv[++i];
        else if (argv[i][0] == '-')
            return usage();
        else {
            first_id = i;
            break;
        }
    }
    if (!list && !all && first_id == argc)
        return usage();
    for (size_t t = 0; t < ROWS(tables); t++)
        for (size_t i = 0; i < tables[t]->n; i++) {
            const struct attempt *a = &tables[t]->rows[i];
            struct seen s = {""};
            if (list) {
                list_one(tables[t]->topic, a, json);
            } else if (wanted(a, argv + first_id, argc - first_id, all)) {
                attempt_observe(a, &s);
                show_one(a, &s, json);
            }
        }
    return 0;
}
