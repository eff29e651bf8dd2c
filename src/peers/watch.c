/* watch.c - watches a directory of a sandbox for changes. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "peers/files-int.h"
#include "peers/link-conn.h"

_Static_assert((int)FILE_CHMOD == (int)INIT_EV_CHMOD && (int)FILE_RENAMED == (int)INIT_EV_RENAMED,
               "events are the same numbers");

struct file_watch {
    struct call *call; /* NULL: gone */
    const struct file_watch_ops *ops;
    void *arg;
    bool started, dead;
    unsigned busy;
};

static void file_watch_free(struct file_watch *w)
{
    if (w->busy == 0)
        free(w);
}

static void watch_fail(struct file_watch *w, const struct link_status *st)
{
    w->dead = true;
    w->call = NULL;
    w->ops->failed(w->arg, st);
    file_watch_free(w);
}

static enum call_next watch_on_event(struct file_watch *w, struct link_msg *m)
{
    struct init_info i;
    struct file_info info;
    struct file_meta meta[FILES_META_MAX];
    uint32_t type = wire_u32(&m->in);
    const char *name = wire_str(&m->in, 2 * INIT_PATH_MAX);
    bool have = wire_bool(&m->in);
    if (have) {
        init_get_info(&m->in, &i);
        if (!m->in.bad)
            files_convert(&i, &info, meta);
    }
    if (!w->started || !wire_done(&m->in) || type == 0 || type >= INIT_EV_MAX)
        return CALL_BROKEN;
    w->busy++;
    w->ops->event(w->arg, (enum file_event)type, name, have ? &info : NULL);
    w->busy--;
    if (w->dead)
        file_watch_free(w);
    return CALL_KEEP;
}

static enum call_next watch_on_message(struct call *c, struct link_msg *m)
{
    struct file_watch *w = c->object;
    struct link_status st;
    if (m->nfds)
        return CALL_BROKEN;
    if (m->type == INIT_WATCH_EVENT)
        return watch_on_event(w, m);
    if ((m->type != INIT_REPLY && m->type != INIT_WATCH_FAILED) || !link_call_status(&m->in, &st) ||
        !wire_done(&m->in) || (m->type == INIT_REPLY) == w->started ||
        (m->type == INIT_WATCH_FAILED && st.code == LINK_OK))
        return CALL_BROKEN;
    if (st.code != LINK_OK) {
        watch_fail(w, &st);
        return CALL_DONE;
    }
    w->started = true;
    w->busy++;
    w->ops->started(w->arg);
    w->busy--;
    if (w->dead)
        file_watch_free(w);
    return CALL_KEEP;
}

static void watch_on_failed(struct call *c, const struct link_status *st) { watch_fail(c->object, st); }

struct params {
    const char *user, *path;
    uint32_t flags;
};

static void watch_put_request(struct wire_out *o, const void *arg)
{
    const struct params *p = arg;
    wire_put_str(o, p->user);
    wire_put_str(o, p->path);
    wire_put_u32(o, p->flags);
}

struct file_watch *files_watch(struct links *ls, const char *id, const char *user, const char *path, bool recursive,
                               bool with_info, bool network_mounts, const struct file_watch_ops *ops, void *arg)
{
    struct params p = {.user = user, .path = path};
    p.flags = (recursive ? INIT_WATCH_RECURSIVE : 0U) | (with_info ? INIT_WATCH_INFO : 0U) |
              (network_mounts ? INIT_WATCH_NETWORK : 0U);
    struct file_watch *w = xcalloc(1, sizeof *w);
    w->ops = ops;
    w->arg = arg;
    bool fits = strlen(path) < INIT_PATH_MAX && (!user || strlen(user) <= INIT_USER_MAX);
    w->call = fits ? link_call_new(ls, id, INIT_WATCH, watch_put_request, &p)
                   : link_call_refused(ls, INIT_WATCH, LINK_INVALID, "the path or the user's name is too long");
    w->call->message = watch_on_message;
    w->call->failed = watch_on_failed;
    w->call->object = w;
    return w;
}

void files_unwatch(struct file_watch *w)
{
    if (w->dead)
        return;
    w->dead = true;
    link_call_drop(w->call, INIT_UNWATCH, NULL, NULL);
    w->call = NULL;
    file_watch_free(w);
}

bool files_are_watched(struct links *ls, const char *id)
{
    const struct link *l = map_get(&ls->map, id);
    for (const struct call *c = l ? l->calls : NULL; c; c = c->next)
        if (c->type == INIT_WATCH && !c->zombie)
            return true;
    return false;
}

link_call files_settle(struct links *ls, const char *id, link_done *done, void *arg)
{
    struct call *c = link_call_new(ls, id, INIT_SETTLE, NULL, NULL);
    c->message = link_call_message_done;
    c->failed = link_call_failed_done;
    c->fn = CALL_FN(done);
    c->arg = arg;
    return c->id;
}
