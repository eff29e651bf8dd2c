/* denials-world.h - what the tests of denials share: a small tree with a policy and a plan for it, and a child behind a
 * filter whose notifications are answered. */
#ifndef HUTCH_TESTS_DENIALS_WORLD_H
#define HUTCH_TESTS_DENIALS_WORLD_H

#include "tests/lib/unit.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "cli/run/denials-int.h"
#include "os/seccomp.h"
#include "policy/run/filter.h"

enum { FLAGS = FILTER_HOST_IDS | FILTER_NOTIFY | FILTER_EXPLAIN };

/* --- a small world: BASE is the host's root, read-only; BASE/work is writable ------------------------------------- */

struct world {
    char base[64];
    struct policy *policy;
    struct plan plan;
    struct denials *d;
    struct origin origin;
};

static inline char *in(const struct world *w, const char *path)
{
    return path[0] == '/' ? xstrdup(path) : path_join(w->base, path);
}

static inline void make(const struct world *w, const char *path, mode_t type)
{
    _cleanup_free_ char *full = in(w, path);
    if (type == S_IFDIR)
        assert_int_equal(mkdir(full, 0755), 0);
    else if (type == S_IFLNK)
        assert_int_equal(symlink("../etc/linked", full), 0);
    else
        assert_int_equal(mknod(full, type | 0644, 0), 0);
}

static inline void add_op(struct world *w, enum plan_op_kind kind, const char *path, const char *rule)
{
    MEM_GROW(w->plan.ops, w->plan.nops, w->plan.ops_cap);
    w->plan.ops[w->plan.nops++] =
        (struct plan_op){.kind = kind, .path = in(w, path), .rule = rule, .origin = &w->origin, .type = TYPE_DIR};
}

static inline void make_tree(const struct world *w)
{
    static const char *const dirs[] = {"etc", "work", "work/.git", "work/.git/hooks", "work/sub", "private"};
    static const char *const files[] = {
        "etc/exists", "etc/removed",  "etc/changed", "etc/moved",  "etc/linked",          "etc/read",
        "work/a",     "work/.bashrc", "work/.env",   "work/moves", "work/.git/hooks/old", "private/x",
    };
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        make(w, dirs[i], S_IFDIR);
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        make(w, files[i], S_IFREG);
    make(w, "etc/fifo", S_IFIFO);
    make(w, "work/link", S_IFLNK);
}

static inline int set_up(void **state)
{
    struct world *w = xcalloc(1, sizeof *w);
    struct err err = {0};
    (void)snprintf(w->base, sizeof w->base, "/var/tmp/denials.XXXXXX");
    assert_non_null(mkdtemp(w->base));
    assert_int_equal(chmod(w->base, 0755), 0);
    make_tree(w);
    struct policy_where where = {.cwd = w->base};
    _cleanup_free_ char *text =
        xasprintf("files: {allow_write: ['%s/work'], deny_read: ['%s/private', '%s/work/.env'], "
                  "deny_write: ['%s/work/.bashrc']}\nlimits: {pids: 12}\n",
                  w->base, w->base, w->base, w->base);
    w->policy = policy_new();
    if (policy_parse(text, strlen(text), "p.yaml", LEVEL_FLAGS, &where, w->policy, &err) < 0)
        fail_msg("%s", err.msg);
    w->origin = (struct origin){.level = LEVEL_USER, .file = "p.yaml", .line = 7};
    add_op(w, OP_BIND_RW, "work", "files.allow_write[0]");
    add_op(w, OP_PROTECT, "work/.bashrc", "files.deny_write[0]");
    add_op(w, OP_MASK, "work/.env", "files.deny_read[1]");
    add_op(w, OP_PIN, "work/.git", "builtin.git-hooks");
    add_op(w, OP_PROTECT, "work/.git/hooks", "builtin.git-hooks");
    add_op(w, OP_STUB, "work/.vscode", "builtin.editor");
    add_op(w, OP_MASK, "private", "files.deny_read[0]");
    w->d = denials_new(w->policy, &w->plan, FLAGS);
    *state = w;
    return 0;
}

static inline int tear_down(void **state)
{
    struct world *w = *state;
    _cleanup_free_ char *rm = xasprintf("rm -rf -- '%s'", w->base);
    denials_free(w->d);
    policy_free(w->policy);
    for (size_t i = 0; i < w->plan.nops; i++)
        free(w->plan.ops[i].path);
    free(w->plan.ops);
    strv_done(&w->plan.layers);
    assert_int_equal(system(rm), 0);
    free(w);
    return 0;
}

static inline const struct denial *find(const struct world *w, const char *kind, const char *subject)
{
    for (size_t i = 0; i < w->d->n; i++)
        if (strcmp(w->d->items[i]->kind, kind) == 0 && strcmp(w->d->items[i]->subject, subject) == 0)
            return w->d->items[i];
    return NULL;
}

static inline int lock_in(int sock, unsigned flags)
{
    struct filter f;
    struct err err;
    int listener = -1;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || filter_build(NULL, flags, &f, &err) < 0 ||
        seccomp_load(f.insns, f.n, SECCOMP_LOAD_LISTENER, &listener, &err) < 0)
        return -1;
    int r = fd_send(sock, "L", 1, &listener, 1);
    (void)close(listener);
    return r;
}

/* Runs fn in a child behind a filter and answers its notifications until it ends. Returns its exit code. */
static inline int supervised(struct world *w, int (*fn)(const struct world *, int))
{
    int pair[2], listener = -1, status = 0;
    size_t nfds = 1;
    char c;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(fn(w, pair[1]));
    (void)close(pair[1]);
    assert_int_equal(fd_recv(pair[0], &c, 1, &listener, &nfds), 1);
    (void)seccomp_sync_wake(listener);
    struct pollfd p = {.fd = listener, .events = POLLIN};
    while (poll(&p, 1, 60000) > 0 && (p.revents & POLLIN))
        denials_notified(w->d, listener, pid);
    (void)close(listener);
    (void)close(pair[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define WORLD(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

#endif
