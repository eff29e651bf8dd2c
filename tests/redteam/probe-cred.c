/* probe-cred.c - group C: planted secrets, looked for in every place a process can read. */
#include "probe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

/* A secret is the mark followed by at least eight hexadecimal digits; the mark alone is only this program. */
static bool has_canary(const char *b, size_t n)
{
    const char *mark = probe_canary_mark();
    size_t m = strlen(mark);
    for (const char *p = b; p + m + 8 <= b + n && (p = memmem(p, n - (size_t)(p - b), mark, m)); p++)
        if (p + m + 8 <= b + n && strspn(p + m, "0123456789abcdef") >= 8)
            return true;
    return false;
}

static void c_home(const struct attempt *a, struct seen *s)
{
    char b[4096];
    ssize_t n = probe_slurp(a->num ? a->arg : probe_home(a->arg), b, sizeof b);
    if (n < 0)
        seen_rc(s, -1);
    else
        seen_text(s, has_canary(b, (size_t)n) ? "leak: the secret" : n ? "other" : "empty");
}

static void c_env(const struct attempt *a, struct seen *s)
{
    (void)a;
    for (char **e = environ; *e; e++)
        if (has_canary(*e, strlen(*e))) {
            seen_text(s, "leak: %.*s", (int)strcspn(*e, "="), *e);
            return;
        }
    seen_text(s, "none");
}

struct walk {
    unsigned long files;
    double deadline;
    char found[PATH_MAX];
    bool cut;
};

static void walk_file(int dir, const char *name, const char *path, struct walk *w)
{
    char b[65536];
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return;
    ssize_t n = read(fd, b, sizeof b);
    close(fd);
    w->files++;
    if (n > 0 && has_canary(b, (size_t)n))
        (void)snprintf(w->found, sizeof w->found, "%.3000s/%.255s", path, name);
}

static void walk_dir(int parent, const char *name, const char *path, unsigned depth, struct walk *w)
{
    char below[PATH_MAX];
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    /* Files first: a deadline then still covers everything near the top. */
    for (int pass = 0; pass < 2; pass++, rewinddir(d))
        for (struct dirent *e; !w->found[0] && !w->cut && (e = readdir(d));) {
            /* hardlink-made-earlier is the one planted way round the mask; F-39b reports it. */
            if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
                strcmp(e->d_name, "hardlink-made-earlier") == 0)
                continue;
            w->cut = probe_now() > w->deadline;
            if (pass == 0 && e->d_type == DT_REG)
                walk_file(dirfd(d), e->d_name, path, w);
            if (pass == 1 && e->d_type == DT_DIR && depth < 12) {
                (void)snprintf(below, sizeof below, "%.3000s/%.255s", path, e->d_name);
                walk_dir(dirfd(d), e->d_name, below, depth + 1, w);
            }
        }
    closedir(d);
}

static void c_walk(const struct attempt *a, struct seen *s)
{
    struct walk w = {.deadline = probe_now() + 4};
    const char *root = a->arg[0] == '/' || a->arg[0] == '.' ? a->arg : probe_need(s, a->arg);
    if (!root)
        return;
    walk_dir(AT_FDCWD, root, root, 0, &w);
    if (w.found[0])
        seen_text(s, "leak: %.200s", w.found);
    else
        seen_text(s, "none: %lu files read%s", w.files, w.cut ? ", time is up" : "");
}

static void c_proc_environ(const struct attempt *a, struct seen *s)
{
    static char b[1 << 17];
    unsigned looked = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[300];
        if (e->d_name[0] < '1' || e->d_name[0] > '9')
            continue;
        (void)snprintf(path, sizeof path, "/proc/%s/%s", e->d_name, a->arg);
        ssize_t n = probe_slurp(path, b, sizeof b);
        looked += n >= 0;
        if (n > 0 && has_canary(b, (size_t)n)) {
            seen_text(s, "leak: %s", path);
            closedir(d);
            return;
        }
    }
    if (d)
        closedir(d);
    seen_text(s, "none: %u processes", looked);
}

/* init is a clone of the caller: its command line would be the caller's, with our own arguments in it. */
static void c_init_arguments(const struct attempt *a, struct seen *s)
{
    static char b[1 << 17];
    char path[64];
    (void)a;
    (void)snprintf(path, sizeof path, "/proc/%d/cmdline", (int)probe_target());
    ssize_t n = probe_slurp(path, b, sizeof b);
    if (n < 0)
        seen_rc(s, -1);
    else if (has_canary(b, (size_t)n) || memmem(b, (size_t)n, "--var", 5) || memmem(b, (size_t)n, "--json", 6))
        seen_text(s, "leak: %s", path);
    else
        seen_text(s, "none");
}

#define GONE "EACCES EPERM ENOENT"
#define SECRET(id, path)                                                               \
    {                                                                                  \
        id, "read ~/" path, c_home, path, 0, GONE, NULL, "masks", CTL_OUTSIDE, 0, NULL \
    }

static const struct attempt rows[] = {
    {"C-01a", "a token in the environment", c_env, NULL, 0, "none", NULL, "env", CTL_OUTSIDE, 0, NULL},
    SECRET("C-01b", ".ssh/id_ed25519"),
    SECRET("C-01c", ".aws/credentials"),
    SECRET("C-01d", ".bash_history"),
    SECRET("C-01e", ".netrc"),
    SECRET("C-01f", ".config/gh/hosts.yml"),
    SECRET("C-01g", ".docker/config.json"),
    SECRET("C-01h", ".kube/config"),
    SECRET("C-01i", ".npmrc"),
    SECRET("C-01j", ".mozilla/firefox/x.default/logins.json"),
    SECRET("C-01k", ".gnupg/private-keys-v1.d/key"),
    SECRET("C-01l", ".config/gcloud/credentials.db"),
    SECRET("C-01m", ".git-credentials"),
    SECRET("C-01n", ".pypirc"),
    {"C-01o", "read .env in the workspace", c_home, ".env", 1, GONE, NULL, "masks", CTL_OUTSIDE, 0, NULL},
    {"C-01p", "search the home directory", c_walk, "home", 0, "none", NULL, "masks", CTL_OUTSIDE, 0, NULL},
    {"C-01q", "search the workspace", c_walk, ".", 0, "none", NULL, "masks", CTL_OUTSIDE, 0, NULL},
    {"C-01r", "search /tmp", c_walk, "/tmp", 0, "none", NULL, "tmp", CTL_OUTSIDE, 0, NULL},
    {"C-01s", "search /dev/shm", c_walk, "/dev/shm", 0, "none", NULL, "dev", CTL_OUTSIDE, 0, NULL},
    {"C-01t", "search /run", c_walk, "/run", 0, "none", NULL, "run", CTL_OUTSIDE, 0, NULL},
    {"C-01u", "the environment of every process", c_proc_environ, "environ", 0, "none", NULL,
     "env,pidns,dumpable,landlock", CTL_OUTSIDE, 0, NULL},
    {"C-01v", "the arguments of every process", c_proc_environ, "cmdline", 0, "none", NULL, "pidns", CTL_OUTSIDE, 0,
     NULL},
    {"C-01w", "the arguments of the caller, kept by init", c_init_arguments, NULL, 0, "none", NULL, "forget",
     CTL_OUTSIDE, 0, NULL},
};

const struct attempt_table probe_cred = {"credentials", rows, ROWS(rows)};
