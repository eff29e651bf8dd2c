#include "init/work.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "os/caps.h"

enum { SOCK = 3 };
static struct work the_work;

struct wire_out work_begin(struct work *w)
{
    return (struct wire_out){.p = w->out + sizeof(struct init_head), .cap = sizeof w->out - sizeof(struct init_head)};
}

struct wire_out work_begin_ok(struct work *w)
{
    struct wire_out o = work_begin(w);
    wire_put_u32(&o, INIT_OK);
    wire_put_str(&o, "");
    return o;
}

void work_put_info(const struct work *w, struct wire_out *o, const struct init_info *i)
{
    init_put_info(o, i);
    if (w->root >= 0)
        init_put_facts(o, &i->facts);
}

int work_send(struct work *w, uint16_t type, const struct wire_out *o, int fd)
{
    struct init_head h = {.version = INIT_VERSION, .type = type, .request = w->r->id, .length = (uint32_t)o->n};
    if (o->bad)
        _exit(1);
    memcpy(w->out, &h, sizeof h);
    return fd_send(w->sock, w->out, sizeof h + o->n, &fd, fd >= 0);
}

void work_end(struct work *w, uint16_t type, enum init_code code, const char *fmt, va_list ap)
{
    char text[INIT_TEXT_MAX];
    (void)vsnprintf(text, sizeof text, fmt, ap);
    struct wire_out o = work_begin(w);
    wire_put_u32(&o, code);
    wire_put_str(&o, text);
    (void)work_send(w, type, &o, -1);
    _exit(0);
}

void work_fail(struct work *w, enum init_code code, const char *fmt, ...)
{
    va_list ap;
    if (w->half)
        (void)unlinkat(w->half_dir, w->half, 0);
    va_start(ap, fmt);
    work_end(w, INIT_REPLY, code, fmt, ap);
}

void work_fail_errno(struct work *w, int eno, const char *path)
{
    switch (eno) {
    case ENOENT:
        work_fail(w, INIT_NOT_FOUND, "path '%.200s' does not exist", path);
    case EEXIST:
        work_fail(w, INIT_EXISTS, "path '%.200s' already exists", path);
    case ENOTDIR:
        work_fail(w, INIT_NOT_DIR, "path '%.200s' is not a directory", path);
    case EISDIR:
        work_fail(w, INIT_IS_DIR, "path '%.200s' is a directory", path);
    case EACCES:
    case EPERM:
        work_fail(w, INIT_DENIED, "permission denied for user '%s': '%.160s'", w->user.name, path);
    case EROFS:
        work_fail(w, INIT_DENIED, "'%.200s' is on a read-only file system", path);
    case ENOSPC:
    case EDQUOT:
        work_fail(w, INIT_NO_SPACE, "not enough space for '%.200s'", path);
    case ELOOP:
        work_fail(w, INIT_INVALID, "'%.180s' leads through too many or forbidden links", path);
    case ENAMETOOLONG:
        work_fail(w, INIT_INVALID, "a name in '%.180s' is too long", path);
    case EXDEV:
        work_fail(w, INIT_INVALID, "'%.180s' leads out of the directory it must be in", path);
    case EINVAL:
    case EILSEQ:
        work_fail(w, INIT_INVALID, "'%.180s' cannot be a path here", path);
    case EOPNOTSUPP:
        work_fail(w, INIT_STATE, "the file system of '%.160s' cannot keep metadata (user xattrs)", path);
    case E2BIG:
        work_fail(w, INIT_LIMIT, "'%.180s' is nested too deeply or too large", path);
    default:
        work_fail(w, INIT_IO, "'%.180s': %s", path, strerror(eno));
    }
}

void work_reply_info(struct work *w, const struct init_info *i, int fd)
{
    struct wire_out o = work_begin_ok(w);
    work_put_info(w, &o, i);
    (void)work_send(w, INIT_REPLY, &o, fd);
}

void work_reply_ok(struct work *w, int fd)
{
    struct wire_out o = work_begin_ok(w);
    (void)work_send(w, INIT_REPLY, &o, fd);
}

static void be_someone(struct work *w)
{
    const struct init *g = w->g;
    const char *name = w->r->user[0] ? w->r->user : g->user, *step = "?";
    if (!users_find(name, &w->user))
        work_fail(w, INIT_NO_USER, "invalid username: '%s'", name);
    if ((g->args->flags & INIT_ONE_ID) && w->user.uid != g->args->uid)
        work_fail(w, INIT_DENIED, "user '%s' has uid %u, but only uid %u exists in this sandbox", name, w->user.uid,
                  g->args->uid);
    if (g->args->flags & INIT_ONE_ID)
        w->user.gid = g->args->gid;
    w->passwd = users_read("/etc/passwd");
    w->group = users_read("/etc/group");
    if (!w->strict)
        return;
    if (lock_open_places(g) < 0)
        work_fail(w, INIT_IO, "open the places for Landlock: %s", strerror(errno));
    if (lock_become(g, &w->user, &step) < 0)
        work_fail(w, INIT_DENIED, "become user '%s': %s: %s", name, step, strerror(errno));
    if (lock_strict(g, &step) < 0)
        work_fail(w, INIT_IO, "%s: %s", step, strerror(errno));
}

static void work_resolve_path(struct work *w, char *ret, const char *path)
{
    paths_resolve(ret, w->user.home, w->g->workdir, path);
    if (ret[0] == '\0')
        work_fail(w, INIT_INVALID, "path is longer than %d bytes", INIT_PATH_MAX - 1);
}

static void work_serve(struct work *w)
{
    const struct init_request *r = w->r;
    if (r->type == INIT_DIAL) {
        work_dial(w);
        return;
    }
    be_someone(w);
    if (r->root.path) {
        w->root = open(r->root.path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (w->root < 0)
            work_fail(w, INIT_IO, "'%.180s' is not there: %s", r->root.path, strerror(errno));
    }
    if (r->path)
        work_resolve_path(w, w->path, r->path);
    if (r->to)
        work_resolve_path(w, w->to, r->to);
    switch (r->type) {
    case INIT_OPEN:
        work_file_open(w);
        break;
    case INIT_CREATE:
        work_file_create(w);
        break;
    case INIT_STAT:
        work_file_stat(w);
        break;
    case INIT_LIST_DIR:
        work_list(w);
        break;
    case INIT_MAKE_DIR:
        work_make_dir(w);
        break;
    case INIT_MOVE:
        work_move(w);
        break;
    case INIT_REMOVE:
        work_remove(w);
        break;
    case INIT_SET:
        work_set(w);
        break;
    case INIT_COMPOSE:
        work_file_compose(w);
        break;
    case INIT_WATCH:
        work_watch(w);
        break;
    default:
        work_fail(w, INIT_STATE, "this request is not known to the helper");
    }
}

void work_main(struct init *g, const struct init_request *r, int sock)
{
    struct work *w = &the_work;
    w->g = g;
    w->r = r;
    w->root = -1;
    w->strict = g->args->flags & INIT_STRICT;
    /* Close init's connections and its listener: a long-lived helper would keep them open. */
    if (sock != SOCK && dup3(sock, SOCK, O_CLOEXEC) < 0)
        _exit(1);
    w->sock = SOCK;
    (void)fd_close_range(SOCK + 1, ~0U, 0);
    (void)umask(022);
    work_serve(w);
    _exit(0);
}
