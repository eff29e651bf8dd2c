#include "front/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/map.h"
#include "base/mem.h"
#include "store/store.h"

struct event_sub {
    struct event_sub *next;
    struct event_log *log;
    event_fn *fn; /* NULL: gone, freed when nobody walks the list */
    void *arg;
};
struct event_log {
    char sandbox[SANDBOX_ID_MAX];
    char tenant[40];
    struct event *ring; /* strings owned; seq - 1 modulo EVENTS_KEPT */
    size_t cap;
    uint64_t last; /* newest number */
    struct event_sub *subs;
    size_t nsubs;
    unsigned walking;
    bool ended;
    struct event_log *next_ended; /* of the same tenant */
};
/* Histories of a tenant's ended sandboxes; stays when none is left. */
struct event_share {
    char tenant[40];
    struct event_log *first, **last; /* oldest first */
    size_t n;
};
struct events {
    struct front *front;
    struct map logs;
    struct map shares; /* tenant -> struct event_share */
    size_t nended;
};

static void free_log(struct event_log *log)
{
    for (size_t i = 0; i < log->cap; i++) {
        free((char *)log->ring[i].type);
        free((char *)log->ring[i].json);
    }
    while (log->subs) {
        struct event_sub *s = log->subs;
        log->subs = s->next;
        free(s);
    }
    free(log->ring);
    free(log);
}

static struct event_log *log_of(struct events *ev, const char *sandbox, const char *tenant)
{
    struct event_log *log = map_get(&ev->logs, sandbox);
    if (log)
        return log;
    log = xcalloc(1, sizeof *log);
    (void)snprintf(log->sandbox, sizeof log->sandbox, "%s", sandbox);
    (void)snprintf(log->tenant, sizeof log->tenant, "%s", tenant);
    (void)map_put(&ev->logs, log->sandbox, log);
    return log;
}

/* The ring starts small: most sandboxes have a handful of events. */
static void keep(struct event_log *log, const struct event *e)
{
    if (log->last >= log->cap && log->cap < EVENTS_KEPT) {
        size_t cap = log->cap ? log->cap * 4 : 4;
        log->ring = xreallocarray(log->ring, cap, sizeof *log->ring);
        memset(log->ring + log->cap, 0, (cap - log->cap) * sizeof *log->ring);
        log->cap = cap;
    }
    struct event *slot = &log->ring[(e->seq - 1) % log->cap];
    free((char *)slot->type);
    free((char *)slot->json);
    *slot =
        (struct event){.seq = e->seq, .at_unix_ms = e->at_unix_ms, .type = xstrdup(e->type), .json = xstrdup(e->json)};
    log->last = e->seq;
}

static void sweep(struct event_log *log)
{
    if (log->walking)
        return;
    for (struct event_sub **at = &log->subs; *at;) {
        struct event_sub *s = *at;
        if (s->fn) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        log->nsubs--;
        free(s);
    }
}

static void tell(struct event_log *log, const struct event *e)
{
    log->walking++;
    for (struct event_sub *s = log->subs; s; s = s->next)
        if (s->fn) {
            event_fn *fn = s->fn;
            if (!e)
                s->fn = NULL;
            fn(s->arg, e);
        }
    log->walking--;
    sweep(log);
}

/* The time of the next event: never before the last one, though the wall clock may be set back; clients go on reading from a
 * time. */
static uint64_t time_after(const struct event_log *log)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    uint64_t ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    uint64_t last = log->last ? log->ring[(log->last - 1) % log->cap].at_unix_ms : 0;
    return ms > last ? ms : last;
}

void events_publish(struct front *f, const char *sandbox, const char *tenant, const char *type, const char *json)
{
    struct event_log *log = log_of(f->events, sandbox, tenant);
    if (log->ended)
        return;
    struct event e = {.seq = log->last + 1,
                      .at_unix_ms = time_after(log),
                      .type = type,
                      .json = strlen(json) > EVENT_JSON_MAX ? "{\"cut\":true}" : json};
    keep(log, &e);
    struct store_event row = {.sandbox = sandbox,
                              .tenant = log->tenant,
                              .type = type,
                              .json = e.json,
                              .seq = e.seq,
                              .at_unix_ms = e.at_unix_ms};
    store_event_add(f->store, &row);
    tell(log, &e);
}

static struct event_share *share_of(struct events *ev, const char *tenant)
{
    struct event_share *s = map_get(&ev->shares, tenant);
    if (s)
        return s;
    s = xcalloc(1, sizeof *s);
    (void)snprintf(s->tenant, sizeof s->tenant, "%s", tenant);
    s->last = &s->first;
    (void)map_put(&ev->shares, s->tenant, s);
    return s;
}

/* The tenant that has the most gives its oldest, so that no tenant pushes out those of one that has fewer. */
static void drop_oldest_ended(struct events *ev)
{
    struct event_share *most = NULL;
    size_t at = 0;
    for (struct event_share *s; (s = map_next(&ev->shares, &at));)
        if (!most || s->n > most->n)
            most = s;
    struct event_log *oldest = most ? most->first : NULL;
    if (!oldest)
        return;
    most->first = oldest->next_ended;
    if (!most->first)
        most->last = &most->first;
    most->n--;
    ev->nended--;
    (void)map_del(&ev->logs, oldest->sandbox);
    free_log(oldest);
}

static void retire(struct events *ev, struct event_log *log)
{
    if (log->ended)
        return;
    struct event_share *s = share_of(ev, log->tenant);
    log->ended = true;
    *s->last = log;
    s->last = &log->next_ended;
    s->n++;
    if (++ev->nended > EVENTS_ENDED_KEPT)
        drop_oldest_ended(ev);
}

void events_end(struct front *f, const char *sandbox)
{
    struct event_log *log = map_get(&f->events->logs, sandbox);
    if (!log || log->ended)
        return;
    tell(log, NULL);
    retire(f->events, log);
}

struct event_log *events_find(struct front *f, const char *tenant, const char *sandbox)
{
    struct event_log *log = map_get(&f->events->logs, sandbox);
    return log && strcmp(log->tenant, tenant) == 0 ? log : NULL;
}

bool events_ended(const struct event_log *log) { return log->ended; }

void events_replay(const struct event_log *log, uint64_t after, event_fn *fn, void *arg)
{
    uint64_t oldest = log->last > log->cap ? log->last - log->cap + 1 : 1;
    for (uint64_t seq = after + 1 > oldest ? after + 1 : oldest; seq <= log->last && seq != 0; seq++) {
        const struct event *e = &log->ring[(seq - 1) % log->cap];
        if (e->seq == seq) /* a number may be missing after a restart: the store drops events when it is behind */
            fn(arg, e);
    }
}

struct event_sub *events_subscribe(struct event_log *log, uint64_t after, event_fn *fn, void *arg)
{
    events_replay(log, after, fn, arg);
    if (log->ended || log->nsubs >= EVENTS_SUBSCRIBERS_MAX)
        return NULL;
    struct event_sub *s = xcalloc(1, sizeof *s);
    *s = (struct event_sub){.next = log->subs, .log = log, .fn = fn, .arg = arg};
    log->subs = s;
    log->nsubs++;
    return s;
}

void events_unsubscribe(struct event_sub *s)
{
    if (!s)
        return;
    s->fn = NULL;
    sweep(s->log);
}

static void load_one(void *arg, const struct store_event *e)
{
    struct events *ev = arg;
    struct event_log *log = log_of(ev, e->sandbox, e->tenant);
    if (log->ended || e->seq <= log->last)
        return;
    /* Numbers that are missing leave their slots empty. */
    struct event copy = {.seq = e->seq, .at_unix_ms = e->at_unix_ms, .type = e->type, .json = e->json};
    while (log->cap < EVENTS_KEPT && e->seq > log->cap) {
        size_t cap = log->cap ? log->cap * 4 : 4;
        log->ring = xreallocarray(log->ring, cap, sizeof *log->ring);
        memset(log->ring + log->cap, 0, (cap - log->cap) * sizeof *log->ring);
        log->cap = cap;
    }
    keep(log, &copy);
    if (strcmp(e->type, "died") == 0 || strcmp(e->type, "killed") == 0)
        retire(ev, log);
}

int events_load(struct front *f, struct err *err)
{
    struct events *ev = f->events = xcalloc(1, sizeof *ev);
    ev->front = f;
    return store_events(f->store, STORE_EVENTS_MAX / 2, load_one, ev, err);
}

void events_free(struct front *f)
{
    struct events *ev = f->events;
    if (!ev)
        return;
    size_t at = 0;
    for (struct event_log *log; (log = map_next(&ev->logs, &at));)
        free_log(log);
    at = 0;
    for (struct event_share *s; (s = map_next(&ev->shares, &at));)
        free(s);
    map_done(&ev->logs);
    map_done(&ev->shares);
    free(ev);
    f->events = NULL;
}
