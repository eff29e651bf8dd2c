/* watch.c - a watch over any engine: it reads the state page by page at one revision, then follows the changes from
 * there. When the engine has forgotten the position, it begins again.
 *
 *     LISTING --last page--> FOLLOWING --position lost--> LISTING
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "facts/facts-int.h"

enum { WATCH_PAGE = 200 };

struct facts_watch {
    struct facts_watch *next;
    struct facts *facts;
    char *prefix;
    const struct facts_events *events;
    void *arg;
    bool told;         /* on_restart of this listing */
    uint64_t revision; /* of the listing */
    char *after;       /* last key of the page before; NULL: none yet */
    void *follow;      /* the engine's; NULL: not following */
    bool asked;        /* a page is on its way */
    bool freed, in_callback;
    bool stale;
    loop_id again, stale_timer;
};

static void watch_list(struct facts_watch *w);

static void watch_release(struct facts_watch *w)
{
    for (struct facts_watch **at = &w->facts->watches; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    free(w->prefix);
    free(w->after);
    free(w);
}

/* Frees it once neither a page nor a callback needs it. */
static void watch_release_if_unused(struct facts_watch *w)
{
    if (w->freed && !w->asked && !w->in_callback)
        watch_release(w);
}

static void watch_on_stale_timer(void *arg)
{
    struct facts_watch *w = arg;
    w->stale_timer = 0;
    w->stale = true;
    if (w->events->on_stale)
        w->events->on_stale(w->arg, w->facts->engine);
}

/* Begins to count how long nothing could be learned. */
static void watch_worry(struct facts_watch *w)
{
    if (!w->stale_timer && !w->stale)
        w->stale_timer = loop_timer(w->facts->loop, FACTS_STALE_MS, watch_on_stale_timer, w);
}

static void watch_calm(struct facts_watch *w)
{
    loop_timer_del(w->facts->loop, w->stale_timer);
    w->stale_timer = 0;
    w->stale = false;
}

/* --- following
 * -------------------------------------------------------------------------------------------------------- */

static void watch_tell(struct facts_watch *w, const struct facts_rows *rows)
{
    for (size_t i = 0; i < rows->n && !w->freed; i++)
        if (rows->v[i].value)
            w->events->on_put(w->arg, &rows->v[i]);
        else
            w->events->on_remove(w->arg, rows->v[i].key, rows->v[i].revision);
}

static void watch_on_changes(void *arg, const struct facts_rows *rows, uint64_t revision)
{
    struct facts_watch *w = arg;
    bool quiet = rows->n == 0 && !w->stale && !w->stale_timer;
    w->in_callback = true;
    watch_tell(w, rows);
    if (!w->freed)
        watch_calm(w);
    if (!w->freed && !quiet)
        w->events->on_current(w->arg, revision);
    w->in_callback = false;
    watch_release_if_unused(w);
}

static void watch_stop_following(struct facts_watch *w)
{
    if (w->follow)
        w->facts->ops->unfollow(w->facts, w->follow);
    w->follow = NULL;
}

static void watch_on_again(void *arg)
{
    struct facts_watch *w = arg;
    w->again = 0;
    watch_stop_following(w);
    free(w->after);
    w->after = NULL;
    w->told = false;
    w->revision = 0;
    watch_list(w);
}

static void watch_restart(struct facts_watch *w, uint64_t after_ms)
{
    if (!w->again)
        w->again = loop_timer(w->facts->loop, after_ms, watch_on_again, w);
}

/* The follow may not be ended from inside its own callback: the timer does that. */
static void watch_on_lost(void *arg) { watch_restart(arg, 0); }

static void watch_on_trouble(void *arg, const char *why)
{
    (void)why; /* the engine logs it */
    watch_worry(arg);
}

static const struct facts_follow_events follow_events = {watch_on_changes, watch_on_lost, watch_on_trouble};

/* --- listing
 * ---------------------------------------------------------------------------------------------------------- */

static void watch_take_page(struct facts_watch *w, const struct facts_answer *a)
{
    if (!w->told) {
        w->told = true;
        w->events->on_restart(w->arg);
    }
    for (size_t i = 0; i < a->n && !w->freed; i++)
        w->events->on_put(w->arg, &a->v[i]);
    if (w->freed)
        return;
    if (!w->revision)
        w->revision = a->revision;
    if (a->more && a->n > 0) {
        free(w->after);
        w->after = xstrdup(a->v[a->n - 1].key);
        watch_list(w);
        return;
    }
    watch_calm(w);
    w->events->on_current(w->arg, w->revision);
    if (!w->freed)
        w->follow = w->facts->ops->follow(w->facts, w->prefix, w->revision + 1, &follow_events, w);
}

static void watch_on_page(void *arg, const struct facts_answer *a)
{
    struct facts_watch *w = arg;
    w->asked = false;
    w->in_callback = true;
    if (!w->freed && a->result == FACTS_OK)
        watch_take_page(w, a);
    else if (!w->freed) {
        watch_worry(w);
        watch_restart(w, a->result == FACTS_COMPACTED ? 0 : FACTS_AGAIN_MS);
    }
    w->in_callback = false;
    watch_release_if_unused(w);
}

static void watch_list(struct facts_watch *w)
{
    const struct facts_page p = {.prefix = w->prefix, .after = w->after, .limit = WATCH_PAGE, .revision = w->revision};
    w->asked = true;
    facts_range(w->facts, &p, watch_on_page, w);
}

/* --- life
 * ------------------------------------------------------------------------------------------------------------- */

struct facts_watch *facts_watch(struct facts *f, const char *prefix, uint64_t from, const struct facts_events *events,
                                void *arg)
{
    if (f->nwatches == FACTS_WATCHES_MAX || (prefix[0] && !facts_key_is_valid(prefix, strlen(prefix))))
        return NULL;
    struct facts_watch *w = xcalloc(1, sizeof *w);
    *w = (struct facts_watch){.next = f->watches, .facts = f, .prefix = xstrdup(prefix), .events = events, .arg = arg};
    f->watches = w;
    f->nwatches++;
    if (from)
        w->follow = f->ops->follow(f, w->prefix, from, &follow_events, w);
    else
        watch_list(w);
    return w;
}

void facts_watch_free(struct facts_watch *w)
{
    if (!w || w->freed)
        return;
    w->facts->nwatches--;
    w->freed = true;
    loop_timer_del(w->facts->loop, w->again);
    loop_timer_del(w->facts->loop, w->stale_timer);
    watch_stop_following(w);
    watch_release_if_unused(w);
}

void facts_watches_free(struct facts *f)
{
    while (f->watches) {
        f->watches->asked = false; /* the engine will not answer it any more */
        if (f->watches->freed)
            watch_release(f->watches);
        else
            facts_watch_free(f->watches);
    }
}
