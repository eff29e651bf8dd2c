#include "peers/files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "peers/files-int.h"

_Static_assert((int)FILE_SYMLINK == (int)INIT_FILE_SYMLINK && (int)FILE_DIRECTORY == (int)INIT_FILE_DIRECTORY,
               "types of files are the same numbers");
_Static_assert((int)FILES_LIST_MAX == (int)INIT_LIST_MAX && (int)FILES_META_MAX == (int)INIT_META_MAX &&
                   (int)FILES_PATH_MAX == (int)INIT_PATH_MAX,
               "limits are the same numbers");

struct params {
    const char *user, *path, *to;
    const char *const *from;
    const struct file_meta *meta;
    size_t n;
    uint32_t number;
    const struct files_root *root; /* NULL: none */
};

void files_convert(const struct init_info *i, struct file_info *ret, struct file_meta *meta)
{
    *ret = (struct file_info){
        .name = i->name,
        .path = i->path,
        .type = (enum file_type)i->type,
        .size = i->size,
        .mode = (mode_t)i->mode,
        .owner = i->owner,
        .group = i->group,
        .mtime = {.tv_sec = (time_t)i->mtime_s, .tv_nsec = (long)i->mtime_ns},
        .target = i->target,
        .meta = meta,
        .nmeta = i->nmeta,
    };
    ret->uid = i->facts.uid;
    ret->gid = i->facts.gid;
    ret->atime = (struct timespec){.tv_sec = (time_t)i->facts.atime_s, .tv_nsec = (long)i->facts.atime_ns};
    ret->ctime = (struct timespec){.tv_sec = (time_t)i->facts.ctime_s, .tv_nsec = (long)i->facts.ctime_ns};
    for (uint32_t m = 0; m < i->nmeta; m++)
        meta[m] = (struct file_meta){.key = i->meta[m].key, .value = i->meta[m].value};
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static void files_put_root(struct wire_out *o, const struct files_root *root)
{
    struct init_root r = {.path = root->path,
                          .flags = root->force ? INIT_ROOT_FORCE : 0U,
                          .uid = root->uid,
                          .gid = root->gid,
                          .mode = root->mode};
    init_put_root(o, &r);
}

static void files_put_names(struct wire_out *o, const struct params *p)
{
    wire_put_str(o, p->root ? "root" : p->user);
    wire_put_str(o, p->path);
}

static void files_put_path(struct wire_out *o, const void *arg)
{
    const struct params *p = arg;
    files_put_names(o, p);
    if (p->root)
        files_put_root(o, p->root);
}

static void files_put_create(struct wire_out *o, const void *arg)
{
    const struct params *p = arg;
    files_put_names(o, p);
    wire_put_u32(o, (uint32_t)p->n);
    for (size_t i = 0; i < p->n; i++) {
        wire_put_str(o, p->meta[i].key);
        wire_put_str(o, p->meta[i].value);
    }
    if (p->root)
        files_put_root(o, p->root);
}

static void files_put_two_paths(struct wire_out *o, const void *arg)
{
    const struct params *p = arg;
    files_put_names(o, p);
    wire_put_str(o, p->to);
}

static void files_put_number(struct wire_out *o, const void *arg)
{
    const struct params *p = arg;
    files_put_names(o, p);
    wire_put_u32(o, p->number);
    if (p->root)
        files_put_root(o, p->root);
}

static void files_put_compose(struct wire_out *o, const void *arg)
{
    const struct params *p = arg;
    wire_put_str(o, p->user);
    wire_put_strv(o, p->from, p->n);
    wire_put_str(o, p->to);
}

static const char *files_check_params(const struct params *p)
{
    if (p->user && strlen(p->user) > INIT_USER_MAX)
        return "the user's name is longer than 64 bytes";
    if ((p->path && strlen(p->path) >= INIT_PATH_MAX) || (p->to && strlen(p->to) >= INIT_PATH_MAX))
        return "the path is longer than 4095 bytes";
    if (p->meta && p->n > INIT_META_MAX)
        return "more than 32 metadata entries";
    for (size_t i = 0; p->meta && i < p->n; i++)
        if (strlen(p->meta[i].key) > 246 || strlen(p->meta[i].value) > INIT_META_BYTES)
            return "a metadata key has at most 246 bytes, all metadata at most 4096";
    if (p->from && p->n > INIT_SOURCES_MAX)
        return "more than 256 sources";
    return NULL;
}

static struct call *files_ask_call(struct links *ls, const char *id, uint16_t type, call_put *put,
                                   const struct params *p, call_message *message, call_failed *failed, void (*fn)(void),
                                   void *arg)
{
    const char *wrong = files_check_params(p);
    struct call *c = wrong ? link_call_refused(ls, type, LINK_INVALID, wrong) : link_call_new(ls, id, type, put, p);
    c->message = message;
    c->failed = failed;
    c->fn = fn;
    c->arg = arg;
    if (p->root)
        link_call_set_rooted(c);
    return c;
}

static link_call files_ask(struct links *ls, const char *id, uint16_t type, call_put *put, const struct params *p,
                           call_message *message, call_failed *failed, void (*fn)(void), void *arg)
{
    return files_ask_call(ls, id, type, put, p, message, failed, fn, arg)->id;
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

static void files_take_entry(const struct call *c, struct wire_in *in, struct init_info *ret)
{
    init_get_info(in, ret);
    if (c->rooted)
        init_get_facts(in, &ret->facts);
}

/* Reads the status and, for LINK_OK, one info. False: malformed. */
static bool files_take_info(const struct call *c, struct link_msg *m, struct link_status *st, struct file_info *ret,
                            struct file_meta *meta)
{
    struct init_info i;
    if (m->type != INIT_REPLY || !link_call_status(&m->in, st))
        return false;
    if (st->code == LINK_OK) {
        files_take_entry(c, &m->in, &i);
        if (!m->in.bad)
            files_convert(&i, ret, meta);
    }
    return wire_done(&m->in);
}

static bool files_fd_is_readable(const struct link_msg *m)
{
    struct stat st;
    int fd = m->fds[0];
    if (m->relay)
        return m->relay == INIT_TICKET_FILE || m->relay == INIT_TICKET_PIPE;
    int mode = fcntl(fd, F_GETFL);
    if (mode < 0 || fstat(fd, &st) < 0)
        return false;
    mode &= O_ACCMODE | O_PATH;
    return (S_ISREG(st.st_mode) || S_ISFIFO(st.st_mode)) && mode == O_RDONLY;
}

static enum call_next files_on_opened(struct call *c, struct link_msg *m)
{
    struct link_status st;
    struct file_info info;
    struct file_meta meta[FILES_META_MAX];
    if (!files_take_info(c, m, &st, &info, meta) || m->nfds != (st.code == LINK_OK ? 1U : 0U) ||
        (m->nfds && !files_fd_is_readable(m)))
        return CALL_BROKEN;
    bool ok = st.code == LINK_OK;
    info.sized = ok && m->relay == INIT_TICKET_FILE;
    ((files_opened *)c->fn)(c->arg, &st, ok ? TAKE_FD(m->fds[0]) : -1, ok ? &info : NULL);
    return CALL_DONE;
}
static void files_on_open_failed(struct call *c, const struct link_status *st)
{
    ((files_opened *)c->fn)(c->arg, st, -1, NULL);
}

static enum call_next files_on_created(struct call *c, struct link_msg *m)
{
    struct link_status st;
    struct file_info info;
    struct file_meta meta[FILES_META_MAX];
    if (c->object || !files_take_info(c, m, &st, &info, meta) || m->nfds != (st.code == LINK_OK ? 1U : 0U) ||
        (m->nfds && m->relay != INIT_TICKET_SOCKET && !sink_socket_ok(m->fds[0])))
        return CALL_BROKEN;
    bool ok = st.code == LINK_OK;
    if (ok)
        c->object = sink_new(c, c->owned, TAKE_FD(m->fds[0]));
    ((files_created *)c->fn)(c->arg, &st, c->object, ok ? &info : NULL);
    return ok ? CALL_KEEP : CALL_DONE;
}
static void files_on_create_failed(struct call *c, const struct link_status *st)
{
    if (c->object)
        sink_lost(c->object);
    else
        ((files_created *)c->fn)(c->arg, st, NULL, NULL);
}

static enum call_next files_on_info(struct call *c, struct link_msg *m)
{
    struct link_status st;
    struct file_info info;
    struct file_meta meta[FILES_META_MAX];
    if (!files_take_info(c, m, &st, &info, meta) || m->nfds)
        return CALL_BROKEN;
    ((files_info *)c->fn)(c->arg, &st, st.code == LINK_OK ? &info : NULL);
    return CALL_DONE;
}
static void files_on_info_failed(struct call *c, const struct link_status *st)
{
    ((files_info *)c->fn)(c->arg, st, NULL);
}

struct entries {
    struct file_info *v;
    struct file_meta *meta;
    size_t n, nmeta, cap_meta;
};

static bool files_parse_entries(const struct call *c, struct wire_in *in, struct entries *e)
{
    struct init_info i;
    struct file_meta meta[FILES_META_MAX];
    for (size_t k = 0; k < e->n; k++) {
        files_take_entry(c, in, &i);
        if (in->bad)
            return false;
        files_convert(&i, &e->v[k], meta);
        for (size_t m = 0; m < e->v[k].nmeta; m++) {
            MEM_GROW(e->meta, e->nmeta, e->cap_meta);
            e->meta[e->nmeta++] = meta[m];
        }
    }
    size_t at = 0;
    for (size_t k = 0; k < e->n; k++) { /* only now: e->meta moves while it grows */
        e->v[k].meta = e->v[k].nmeta ? e->meta + at : NULL;
        at += e->v[k].nmeta;
    }
    return wire_done(in);
}

static enum call_next files_on_listed(struct call *c, struct link_msg *m)
{
    struct link_status st;
    struct entries e = {0};
    if (m->type != INIT_REPLY || m->nfds || !link_call_status(&m->in, &st))
        return CALL_BROKEN;
    if (st.code == LINK_OK)
        e.n = wire_u32(&m->in);
    /* An entry takes at least 50 bytes: allocate no more entries than the message can hold. */
    if (e.n > FILES_LIST_MAX || e.n > m->in.n / 50)
        return CALL_BROKEN;
    e.v = xcalloc(e.n, sizeof *e.v);
    bool ok = files_parse_entries(c, &m->in, &e);
    if (ok)
        ((files_listed *)c->fn)(c->arg, &st, st.code == LINK_OK ? e.v : NULL, e.n);
    free(e.v);
    free(e.meta);
    return ok ? CALL_DONE : CALL_BROKEN;
}
static void files_on_list_failed(struct call *c, const struct link_status *st)
{
    ((files_listed *)c->fn)(c->arg, st, NULL, 0);
}

/* --- the calls ---------------------------------------------------------------------------------------------------- */

static link_call files_ask_open(struct links *ls, const char *id, const struct params *p, files_opened *done, void *arg)
{
    return files_ask(ls, id, INIT_OPEN, files_put_path, p, files_on_opened, files_on_open_failed, CALL_FN(done), arg);
}

static link_call files_ask_create(struct links *ls, const char *id, const struct params *p, files_created *done,
                                  void *arg)
{
    struct call *c = files_ask_call(ls, id, INIT_CREATE, files_put_create, p, files_on_created, files_on_create_failed,
                                    CALL_FN(done), arg);
    c->owned = xstrdup(id);
    return c->id;
}

static link_call files_ask_info(struct links *ls, const char *id, uint16_t type, call_put *put, const struct params *p,
                                files_info *done, void *arg)
{
    return files_ask(ls, id, type, put, p, files_on_info, files_on_info_failed, CALL_FN(done), arg);
}

static link_call files_ask_remove(struct links *ls, const char *id, const struct params *p, link_done *done, void *arg)
{
    return files_ask(ls, id, INIT_REMOVE, files_put_path, p, link_call_message_done, link_call_failed_done,
                     CALL_FN(done), arg);
}

static link_call files_ask_list(struct links *ls, const char *id, const struct params *p, files_listed *done, void *arg)
{
    return files_ask(ls, id, INIT_LIST_DIR, files_put_number, p, files_on_listed, files_on_list_failed, CALL_FN(done),
                     arg);
}

link_call files_open(struct links *ls, const char *id, const char *user, const char *path, files_opened *done,
                     void *arg)
{
    return files_ask_open(ls, id, &(struct params){.user = user, .path = path}, done, arg);
}

link_call files_create(struct links *ls, const char *id, const char *user, const char *path,
                       const struct file_meta *meta, size_t nmeta, files_created *done, void *arg)
{
    struct params p = {.user = user, .path = path, .meta = meta, .n = nmeta};
    return files_ask_create(ls, id, &p, done, arg);
}

link_call files_stat(struct links *ls, const char *id, const char *user, const char *path, files_info *done, void *arg)
{
    struct params p = {.user = user, .path = path};
    return files_ask_info(ls, id, INIT_STAT, files_put_path, &p, done, arg);
}

link_call files_mkdir(struct links *ls, const char *id, const char *user, const char *path, files_info *done, void *arg)
{
    struct params p = {.user = user, .path = path};
    return files_ask_info(ls, id, INIT_MAKE_DIR, files_put_path, &p, done, arg);
}

link_call files_move(struct links *ls, const char *id, const char *user, const char *from, const char *to,
                     files_info *done, void *arg)
{
    struct params p = {.user = user, .path = from, .to = to};
    return files_ask_info(ls, id, INIT_MOVE, files_put_two_paths, &p, done, arg);
}

link_call files_remove(struct links *ls, const char *id, const char *user, const char *path, link_done *done, void *arg)
{
    return files_ask_remove(ls, id, &(struct params){.user = user, .path = path}, done, arg);
}

link_call files_compose(struct links *ls, const char *id, const char *user, const char *const *from, size_t n,
                        const char *to, files_info *done, void *arg)
{
    struct params p = {.user = user, .from = from, .n = n, .to = to};
    return files_ask_info(ls, id, INIT_COMPOSE, files_put_compose, &p, done, arg);
}

link_call files_list(struct links *ls, const char *id, const char *user, const char *path, unsigned depth,
                     files_listed *done, void *arg)
{
    return files_ask_list(ls, id, &(struct params){.user = user, .path = path, .number = depth}, done, arg);
}

link_call files_open_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                           files_opened *done, void *arg)
{
    return files_ask_open(ls, id, &(struct params){.root = root, .path = path}, done, arg);
}

link_call files_create_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                             files_created *done, void *arg)
{
    return files_ask_create(ls, id, &(struct params){.root = root, .path = path}, done, arg);
}

link_call files_stat_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                           files_info *done, void *arg)
{
    struct params p = {.root = root, .path = path};
    return files_ask_info(ls, id, INIT_STAT, files_put_path, &p, done, arg);
}

link_call files_mkdir_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                            files_info *done, void *arg)
{
    struct params p = {.root = root, .path = path};
    return files_ask_info(ls, id, INIT_MAKE_DIR, files_put_path, &p, done, arg);
}

link_call files_set_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                          files_info *done, void *arg)
{
    struct params p = {.root = root, .path = path};
    return files_ask_info(ls, id, INIT_SET, files_put_path, &p, done, arg);
}

link_call files_remove_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                             link_done *done, void *arg)
{
    return files_ask_remove(ls, id, &(struct params){.root = root, .path = path}, done, arg);
}

link_call files_list_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                           unsigned depth, files_listed *done, void *arg)
{
    return files_ask_list(ls, id, &(struct params){.root = root, .path = path, .number = depth}, done, arg);
}
