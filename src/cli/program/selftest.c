/* selftest.c - `hutch selftest`: attacks a sandbox of this host, made by this very binary, and reports what holds.
 *
 * The attacker is hutch-probe, a program of its own, started through `hutch run` in a temporary directory that looks like a
 * project: a repository, a home with a key in it, a listener on the loopback. Each observation of the probe is compared
 * with the one it expects. The full suite, with positive controls and layer removal, is tests/redteam/run.py.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/path.h"
#include "base/strv.h"
#include "base/text.h"
#include "cli/cli.h"

/* Bits of an attempt's "flags" in the probe's list. */
enum {
    FLAGS_ELSEWHERE = 0x1ff & ~0x80 /* needs a special start, which tests/redteam gives it */,
    FLAG_LIMITATION = 0x80
};

struct row {
    char *id, *topic, *what, *expected, *observed;
    bool limitation;
};

struct selftest {
    bool json;
    const char *groups; /* "F,P", or NULL for all */
    char *probe;        /* path of hutch-probe */
    char *dir;          /* temporary directory: work, home */
    int listener;       /* -1 or a socket on 127.0.0.1 that must stay silent */
    struct row *rows;
    size_t n, cap;
};

static void row_done(struct row *r)
{
    free(r->id);
    free(r->topic);
    free(r->what);
    free(r->expected);
    free(r->observed);
}

/* --- the probe's output ----------------------------------------------------------------------------------------------- */

/* The string value of a key in one line of the probe, which writes flat objects and escapes only " and \. NULL if absent. */
static char *probe_line_field(const char *line, const char *key)
{
    _cleanup_free_ char *start = xasprintf("\"%s\":\"", key);
    _cleanup_buf_ struct buf out = {0};
    const char *p = strstr(line, start);
    if (!p)
        return NULL;
    for (p += strlen(start); *p && *p != '"'; p++) {
        if (*p == '\\' && p[1])
            p++;
        buf_addc(&out, *p);
    }
    return xstrdup(buf_str(&out));
}

static bool group_wanted(const struct selftest *t, const char *id)
{
    size_t n = strcspn(id, "-");
    if (!t->groups)
        return true;
    for (const char *g = t->groups; *g; g += strspn(g, ",")) {
        size_t len = strcspn(g, ",");
        if (len == n && strncmp(g, id, n) == 0)
            return true;
        g += len;
    }
    return false;
}

static void take_listed(struct selftest *t, const char *line)
{
    const char *flags = strstr(line, "\"flags\":");
    uint64_t bits = 0;
    _cleanup_free_ char *digits = flags ? xstrndup(flags + 8, strspn(flags + 8, "0123456789")) : NULL;
    if (digits)
        (void)num_u64(digits, &bits);
    _cleanup_free_ char *expected = probe_line_field(line, "strict"), *control = probe_line_field(line, "control"),
                        *id = probe_line_field(line, "id");
    if (!id || !expected || !control || strcmp(control, "host") == 0 || bits & FLAGS_ELSEWHERE || !group_wanted(t, id))
        return;
    MEM_GROW(t->rows, t->n, t->cap);
    t->rows[t->n++] = (struct row){.id = TAKE_PTR(id),
                                   .topic = probe_line_field(line, "topic"),
                                   .what = probe_line_field(line, "attempt"),
                                   .expected = TAKE_PTR(expected),
                                   .limitation = bits & FLAG_LIMITATION};
}

static void take_observed(struct selftest *t, const char *line)
{
    _cleanup_free_ char *id = probe_line_field(line, "id");
    for (size_t i = 0; id && i < t->n; i++)
        if (strcmp(t->rows[i].id, id) == 0 && !t->rows[i].observed)
            t->rows[i].observed = probe_line_field(line, "observed");
}

/* Runs argv in dir with HOME set, hands each line of its stdout to `each`. Returns the exit status of waitpid. */
static int each_line(struct selftest *t, char *const *argv, const char *dir,
                     void (*each)(struct selftest *, const char *), int *ret_status, struct err *err)
{
    int p[2];
    char *line = NULL;
    size_t cap = 0;
    if (pipe2(p, O_CLOEXEC) < 0)
        return err_set(err, ERR_INTERNAL, errno, "pipe");
    pid_t pid = fork();
    if (pid < 0) {
        int eno = errno;
        close(p[0]);
        close(p[1]);
        return err_set(err, ERR_INTERNAL, eno, "fork");
    }
    if (pid == 0) {
        _cleanup_free_ char *home = path_join(t->dir, "home");
        if (dup2(p[1], STDOUT_FILENO) < 0 || (dir && chdir(dir) < 0) || setenv("HOME", home, 1) < 0)
            _exit(ERR_INTERNAL);
        execv(argv[0], argv);
        _exit(127);
    }
    close(p[1]);
    FILE *in = fdopen(p[0], "r");
    while (in && getline(&line, &cap, in) > 0)
        each(t, line);
    free(line);
    if (in)
        (void)fclose(in);
    while (waitpid(pid, ret_status, 0) < 0 && errno == EINTR)
        ;
    return 0;
}

/* --- the stage ---------------------------------------------------------------------------------------------------------- */

static int find_probe(struct selftest *t, struct err *err)
{
    static const char *const places[] = {"hutch-probe", "../libexec/hutch/hutch-probe", "tests/redteam/hutch-probe"};
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return err_set(err, ERR_INTERNAL, errno, "readlink /proc/self/exe");
    self[n] = '\0';
    _cleanup_free_ char *dir = path_parent(self);
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        _cleanup_free_ char *at = path_clean(dir, places[i]);
        if (access(at, X_OK) == 0) {
            t->probe = TAKE_PTR(at);
            return 0;
        }
    }
    return err_set(err, ERR_HOST, 0,
                   "hutch-probe is neither beside %s nor in ../libexec/hutch; `make` and `make install` put it there",
                   self);
}

static int selftest_plant_file(const char *dir, const char *name, const char *text, struct err *err)
{
    _cleanup_free_ char *path = path_join(dir, name);
    for (char *slash = path + strlen(dir) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        int rc = mkdir(path, 0755);
        *slash = '/';
        if (rc < 0 && errno != EEXIST)
            return err_set(err, ERR_SETUP, errno, "mkdir for %s", path);
    }
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        return err_set(err, ERR_SETUP, errno, "write %s", path);
    return 0;
}

/* A project and a home, as the attempts expect them; the mark of a planted secret is spelled in two parts on purpose. */
static int make_stage(struct selftest *t, struct err *err)
{
    static const char *const repos[] = {"work/", "work/a/b/repo/", "work/nohooks/"};
    static const char secret[] = "HUTCH-"
                                 "CANARY-0123456789abcdef\n";
    /* Not /tmp or /var/tmp: the sandbox has private ones and would not see the planted files. */
    const char *home = getenv("HOME"), *base = geteuid() == 0 ? "/var/lib" : home && home[0] == '/' ? home : "/var/tmp";
    _cleanup_free_ char *name = xasprintf("%s/.hutch-selftest-XXXXXX", base);
    if (!mkdtemp(name))
        return err_set(err, ERR_SETUP, errno, "make a temporary directory in %s", base);
    t->dir = TAKE_PTR(name);
    (void)chmod(t->dir, 0755);
    for (size_t i = 0; i < ARRAY_LEN(repos); i++) {
        _cleanup_free_ char *head = xasprintf("%s.git/HEAD", repos[i]), *config = xasprintf("%s.git/config", repos[i]);
        _cleanup_free_ char *hook = xasprintf("%s.git/hooks/sample", repos[i]);
        if (selftest_plant_file(t->dir, head, "ref: refs/heads/main\n", err) < 0 ||
            selftest_plant_file(t->dir, config, "[core]\n", err) < 0)
            return -1;
        if (i < 2 && selftest_plant_file(t->dir, hook, "", err) < 0)
            return -1;
    }
    if (selftest_plant_file(t->dir, "work/.git/modules/sub/config", "[core]\n", err) < 0 ||
        selftest_plant_file(t->dir, "work/.git/modules/sub/HEAD", "ref: refs/heads/main\n", err) < 0 ||
        selftest_plant_file(t->dir, "work/.git/modules/sub/hooks/sample", "", err) < 0 ||
        selftest_plant_file(t->dir, "work/dotfiles/zshrc", "", err) < 0 ||
        selftest_plant_file(t->dir, "work/.env", secret, err) < 0 ||
        selftest_plant_file(t->dir, "home/.ssh/id_ed25519", secret, err) < 0 ||
        selftest_plant_file(t->dir, "home/.aws/credentials", secret, err) < 0 ||
        selftest_plant_file(t->dir, "outside/canary", "host file\n", err) < 0 ||
        selftest_plant_file(t->dir, "outside/victim", "victim\n", err) < 0)
        return -1;
    _cleanup_free_ char *link = path_join(t->dir, "work/.zshrc"), *outside = path_join(t->dir, "outside");
    _cleanup_free_ char *canary = path_join(outside, "canary"), *victim = path_join(outside, "victim");
    if (symlink("dotfiles/zshrc", link) < 0 || chmod(outside, 0777) < 0 || chmod(canary, 0666) < 0 ||
        chmod(victim, 0666) < 0)
        return err_set(err, ERR_SETUP, errno, "set up %s", t->dir);
    return 0;
}

static int listen_loopback(struct selftest *t)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    t->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (t->listener < 0 || bind(t->listener, (struct sockaddr *)&at, sizeof at) < 0 || listen(t->listener, 8) < 0 ||
        getsockname(t->listener, (struct sockaddr *)&at, &n) < 0)
        return -1;
    return ntohs(at.sin_port);
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    (void)remove(path);
    return 0;
}

static void selftest_done(struct selftest *t)
{
    if (t->dir)
        (void)nftw(t->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    if (t->listener >= 0)
        close(t->listener);
    for (size_t i = 0; i < t->n; i++)
        row_done(&t->rows[i]);
    free(t->rows);
    free(t->probe);
    free(t->dir);
}

/* --- the run -------------------------------------------------------------------------------------------------------------- */

static void add_var(struct strv *argv, const char *name, const char *value)
{
    strv_add(argv, "--var");
    strv_take(argv, xasprintf("%s=%s", name, value));
}

static int selftest_attack(struct selftest *t, struct err *err)
{
    _cleanup_strv_ struct strv list = {0}, argv = {0};
    _cleanup_free_ char *work = path_join(t->dir, "work"), *home = path_join(t->dir, "home");
    _cleanup_free_ char *outside = path_join(t->dir, "outside"), *canary = path_join(outside, "canary");
    int status = 0, port = listen_loopback(t);

    strv_add(&list, t->probe);
    strv_add(&list, "--list");
    strv_add(&list, "--json");
    if (each_line(t, list.v, NULL, take_listed, &status, err) < 0)
        return -1;
    if (t->n == 0)
        return err_set(err, ERR_USAGE, 0, "--group %s: no such attempts; the groups are F, P, N, S, K, D, W, R, C",
                       t->groups ? t->groups : "");
    const char *const front[] = {"/proc/self/exe", "run", "--quiet", "--", t->probe, "--json"};
    for (size_t i = 0; i < ARRAY_LEN(front); i++)
        strv_add(&argv, front[i]);
    add_var(&argv, "home", home);
    add_var(&argv, "wwdir", outside);
    add_var(&argv, "rofile", canary);
    if (port > 0) {
        _cleanup_free_ char *text = xasprintf("%d", port);
        add_var(&argv, "tcpport", text);
    }
    for (size_t i = 0; i < t->n; i++)
        strv_add(&argv, t->rows[i].id);
    if (each_line(t, argv.v, work, take_observed, &status, err) < 0)
        return -1;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : ERR_INTERNAL;
        return err_set(err, code >= ERR_USAGE && code <= ERR_INTERNAL ? (enum err_code)code : ERR_INTERNAL, 0,
                       "the sandbox for the self-test ended with %d before it was finished", code);
    }
    return 0;
}

/* --- the report --------------------------------------------------------------------------------------------------- */

enum verdict { HOLDS, FAILS, SKIPPED, LIMITATION };

static enum verdict selftest_judge(const struct row *r)
{
    if (!r->observed)
        return FAILS;
    size_t n = strcspn(r->observed, ": ");
    if (strncmp(r->observed, "skipped", 7) == 0)
        return SKIPPED;
    for (const char *e = r->expected; *e; e += strspn(e, " ")) {
        size_t len = strcspn(e, " ");
        if (len == n && strncmp(e, r->observed, n) == 0)
            return HOLDS;
        e += len;
    }
    return r->limitation ? LIMITATION : FAILS;
}

static bool listener_heard(const struct selftest *t)
{
    int fd = t->listener < 0 ? -1 : accept4(t->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static const char *const verdict_names[] = {"ok", "FAIL", "skipped", "limit"};

static void selftest_print_table(const struct selftest *t, const size_t count[4])
{
    const char *topic = "";
    for (size_t i = 0; i < t->n; i++) {
        const struct row *r = &t->rows[i];
        _cleanup_buf_ struct buf seen = {0};
        if (r->topic && strcmp(topic, r->topic) != 0)
            printf("\n%s\n", topic = r->topic);
        text_add_safe(&seen, r->observed ? r->observed : "no answer", 28);
        printf("  %-7s %-60.60s %-30s %-28.28s %s\n", r->id, r->what ? r->what : "", buf_str(&seen), r->expected,
               verdict_names[selftest_judge(r)]);
    }
    printf("\n%zu hold, %zu fail, %zu skipped, %zu known limitations\n", count[HOLDS], count[FAILS], count[SKIPPED],
           count[LIMITATION]);
}

static void selftest_print_json(const struct selftest *t, const size_t count[4])
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_arr(&j, "attempts");
    for (size_t i = 0; i < t->n; i++) {
        const struct row *r = &t->rows[i];
        json_obj(&j, NULL);
        json_str(&j, "id", r->id);
        json_str(&j, "topic", r->topic);
        json_str(&j, "attempt", r->what);
        json_str(&j, "observed", r->observed);
        json_str(&j, "expected", r->expected);
        json_str(&j, "verdict", verdict_names[selftest_judge(r)]);
        json_end_obj(&j);
    }
    json_end_arr(&j);
    json_u64(&j, "hold", count[HOLDS]);
    json_u64(&j, "fail", count[FAILS]);
    json_u64(&j, "skipped", count[SKIPPED]);
    json_u64(&j, "limitations", count[LIMITATION]);
    json_end_obj(&j);
    puts(buf_str(&out));
}

static int selftest_report(const struct selftest *t)
{
    size_t count[4] = {0};
    for (size_t i = 0; i < t->n; i++)
        count[selftest_judge(&t->rows[i])]++;
    if (t->json)
        selftest_print_json(t, count);
    else
        selftest_print_table(t, count);
    if (listener_heard(t)) {
        fputs("hutch: a listener on the host's loopback was reached from inside\n", stderr);
        return 1;
    }
    return count[FAILS] ? 1 : 0;
}

static int selftest_parse_options(int argc, char **argv, struct selftest *t, struct err *err)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            t->json = true;
        else if (strcmp(argv[i], "--group") == 0 && i + 1 < argc)
            t->groups = argv[++i];
        else if (strncmp(argv[i], "--group=", 8) == 0)
            t->groups = argv[i] + 8;
        else
            return err_set(err, ERR_USAGE, 0,
                           "selftest: unknown or incomplete option %s; it takes --json and --group F,P", argv[i]);
    }
    return 0;
}

int cmd_selftest(int argc, char **argv)
{
    struct err err = {0};
    struct selftest t = {.listener = -1};
    int rc;
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        puts("usage: hutch selftest [--json] [--group F,P,...]\n\n"
             "Attacks a sandbox of this host and prints what was tried, observed and expected.\n"
             "Groups: F files, P processes, N namespaces, S system calls, K /proc and /sys, D devices,\n"
             "W network, R resources, C credentials. Exit code 0 if everything holds, 1 if something gets through.\n"
             "\n"
             "examples: hutch selftest\n"
             "          hutch selftest --group F,P --json");
        return 0;
    }
    if (selftest_parse_options(argc, argv, &t, &err) < 0 || find_probe(&t, &err) < 0 || make_stage(&t, &err) < 0 ||
        selftest_attack(&t, &err) < 0)
        rc = cli_fail(&err);
    else
        rc = selftest_report(&t);
    selftest_done(&t);
    return rc;
}
