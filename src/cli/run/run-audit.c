#include "cli/run/run-audit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "cli/cli.h"

int run_audit_open(const struct run_args *args, struct run_audit *ret, struct err *err)
{
    enum { FLAGS = O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK };
    const char *given = args->audit;
    if (!given)
        return 0;
    _cleanup_free_ char *clean = given[0] == '/' ? xstrdup(given) : path_join(".", given);
    const char *name = path_name(clean);
    _cleanup_free_ char *parent = xstrndup(clean, (size_t)(name - clean));
    _cleanup_free_ char *real = *name ? realpath(parent, NULL) : NULL;
    ret->dir = real ? open(real, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (ret->dir < 0)
        return err_set(err, ERR_USAGE, *name ? errno : EISDIR, "--audit %s", given);
    ret->path = path_join(real, name);
    ret->fd = openat(ret->dir, name, FLAGS | O_CLOEXEC | O_CREAT | O_EXCL, 0640);
    ret->created = ret->fd >= 0;
    if (ret->fd < 0 && errno == EEXIST)
        ret->fd = openat(ret->dir, name, FLAGS | O_CLOEXEC);
    if (ret->fd < 0)
        return err_set(err, ERR_USAGE, errno, "--audit %s", given);
    return cli_audit_usable(ret->fd, given, err);
}

/* The path at which an op shows the file inside; NULL: it does not. */
static char *seen_at(const struct plan_op *op, const char *path)
{
    if (op->kind != OP_BIND_RW || !op->src || !path_under(path, op->src))
        return NULL;
    const char *rest = path + (strcmp(op->src, "/") == 0 ? 0 : strlen(op->src));
    return xasprintf("%s%s", strcmp(op->path, "/") == 0 ? "" : op->path, rest);
}

static bool is_protected(const struct plan *plan, const char *inside)
{
    for (size_t i = 0; i < plan->nops; i++)
        if (plan->ops[i].kind == OP_PROTECT && strcmp(plan->ops[i].path, inside) == 0)
            return true;
    return false;
}

int run_audit_check(const struct run_audit *a, const struct run_args *args, const struct plan *plan, struct err *err)
{
    struct stat own, st;
    if (a->fd < 0)
        return 0;
    bool given = fstat(a->fd, &own) < 0;
    for (int fd = 0; fd <= 2; fd++)
        given |= fstat(fd, &st) == 0 && st.st_dev == own.st_dev && st.st_ino == own.st_ino;
    for (size_t i = 0; i < args->nkeep; i++)
        given |= fstat(args->keep_fds[i], &st) == 0 && st.st_dev == own.st_dev && st.st_ino == own.st_ino;
    if (given)
        return err_set(err, ERR_USAGE, 0, "--audit %s is also a standard stream or a --fd of the command", args->audit);
    for (size_t i = 0; i < plan->nops; i++) {
        _cleanup_free_ char *inside = seen_at(&plan->ops[i], a->path);
        if (inside && !is_protected(plan, inside))
            return err_set(err, ERR_USAGE, 0,
                           "--audit %s: the command could write to it at %s; keep it outside of what is writable",
                           args->audit, inside);
    }
    return 0;
}

bool run_audit_there(const struct run_audit *a)
{
    struct stat own, st;
    return a->fd >= 0 && fstat(a->fd, &own) == 0 && lstat(a->path, &st) == 0 && st.st_dev == own.st_dev &&
           st.st_ino == own.st_ino;
}

void run_audit_done(struct run_audit *a)
{
    struct stat st;
    if (a->fd >= 0 && a->created && fstat(a->fd, &st) == 0 && st.st_size == 0)
        (void)unlinkat(a->dir, path_name(a->path), 0);
    if (a->fd >= 0)
        (void)close(TAKE_FD(a->fd));
    if (a->dir >= 0)
        (void)close(TAKE_FD(a->dir));
}
