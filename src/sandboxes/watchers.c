#include "sandboxes/watchers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "sandboxes/sandboxes-int.h"

struct watcher {
    struct watcher *next, **list; /* list: of its sandbox */
    char id[WATCHER_ID_MAX];
    struct file_watch *watch; /* NULL: ended, `st` says why */
    watcher_made *done;       /* NULL: was called */
    void *arg;
    watcher_write_fn *write;
    struct link_status st;
    struct buf events; /* joined by commas */
    bool overflow;
};

void watcher_remove(struct watcher *w)
{
    struct watcher **at = w->list;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    if (w->watch)
        files_unwatch(w->watch);
    buf_done(&w->events);
    free(w);
}

static void watcher_on_started(void *arg)
{
    struct watcher *w = arg;
    watcher_made *done = w->done;
    w->done = NULL;
    if (done)
        done(w->arg, w->id, &(struct link_status){.code = LINK_OK});
}

static void watcher_on_event(void *arg, enum file_event type, const char *name, const struct file_info *info)
{
    struct watcher *w = arg;
    if (w->overflow || w->events.n > WATCHER_BYTES_MAX) {
        w->overflow = true;
        return;
    }
    if (w->events.n)
        buf_addc(&w->events, ',');
    w->write(&w->events, type, name, info);
}

/* Removes a watcher whose id no client knows yet. */
static void watcher_fail(struct watcher *w, const struct link_status *st)
{
    watcher_made *done = w->done;
    void *arg = w->arg;
    watcher_remove(w);
    done(arg, NULL, st);
}

static void watcher_on_failed(void *arg, const struct link_status *st)
{
    struct watcher *w = arg;
    w->watch = NULL;
    if (w->done)
        watcher_fail(w, st);
    else
        w->st = *st; /* the next watcher_take() reports it */
}

static const struct file_watch_ops watch_ops = {
    .started = watcher_on_started, .event = watcher_on_event, .failed = watcher_on_failed};

static void watchers_on_sandbox_end(void *arg, struct sandbox *b, const char *cause, const struct keeper_usage *u)
{
    (void)arg, (void)cause, (void)u;
    for (struct watcher *w; (w = b->watchers);)
        if (w->done)
            watcher_fail(w, &(struct link_status){.code = LINK_GONE});
        else
            watcher_remove(w);
}

struct watcher *watcher_make(struct sandboxes *sb, const char *sandbox, const struct watcher_spec *spec,
                             watcher_made *done, void *arg, struct link_status *why)
{
    struct sandbox *b = sandbox_lookup(sb, sandbox);
    size_t n = 0;
    *why = (struct link_status){.code = LINK_GONE};
    if (!b)
        return NULL;
    for (const struct watcher *w = b->watchers; w; w = w->next)
        n++;
    if (n >= WATCHERS_MAX) {
        why->code = LINK_LIMIT;
        (void)snprintf(why->text, sizeof why->text, "this sandbox has %d watchers already; remove one first",
                       WATCHERS_MAX);
        return NULL;
    }
    if (!sb->has_watchers)
        sandboxes_on_end(sb, watchers_on_sandbox_end, NULL);
    sb->has_watchers = true;
    struct watcher *w = xcalloc(1, sizeof *w);
    *w = (struct watcher){.next = b->watchers, .list = &b->watchers, .done = done, .arg = arg, .write = spec->write};
    random_hex(w->id, 8);
    b->watchers = w;
    w->watch = files_watch(sb->peers->links, b->id, spec->user, spec->path, spec->recursive, spec->with_info,
                           spec->network_mounts, &watch_ops, w);
    return w;
}

struct watcher *watcher_find(struct sandboxes *sb, const char *sandbox, const char *id)
{
    const struct sandbox *b = sandbox_lookup(sb, sandbox);
    for (struct watcher *w = b ? b->watchers : NULL; w; w = w->next)
        if (strcmp(w->id, id) == 0 && !w->done)
            return w;
    return NULL;
}

bool watcher_is_live(const struct watcher *w) { return w->watch && !w->overflow; }

bool watcher_take(struct watcher *w, struct buf *ret, struct link_status *why)
{
    if (!w->watch && w->events.n == 0) {
        *why = w->st;
        watcher_remove(w);
        return false;
    }
    *ret = (struct buf){0};
    if (w->overflow) {
        why->code = LINK_LIMIT;
        (void)snprintf(why->text, sizeof why->text,
                       "more than %d bytes of events were not fetched in time; they were dropped", WATCHER_BYTES_MAX);
        buf_done(&w->events);
        w->overflow = false;
        return false;
    }
    *ret = w->events;
    w->events = (struct buf){0};
    return true;
}
