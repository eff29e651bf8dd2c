#include "sandboxes/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "db/db.h"

struct event_sub {
    struct event_sub *next;
    struct event_log *log;
    event_fn *fn; /* NULL: unsubscribed; freed when the list is not being walked */
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
/* The logs of a tenant's ended sandboxes. Not freed when the last log goes. */
struct event_share {
    char tenant[40];
    struct event_log *first, **last; /* oldest first */
    size_t n;
};
struct events {
    struct db *db; /* borrowed */
    struct events *events;
    struct map logs;
    struct map shares; /* tenant -> struct event_share */
    size_t nended;
};

static void event_log_free(struct event_log *log)
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

static struct event_log *event_log_of(struct events *ev, const char *sandbox, const char *tenant)
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

/* The ring starts small, because most sandboxes have few events. */
static void event_log_keep(struct event_log *log, const struct event *e)
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

static void event_log_sweep(struct event_log *log)
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

static void event_log_tell(struct event_log *log, const struct event *e)
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
    event_log_sweep(log);
}

/* The time of the next event: never before the last one, even if the wall clock was set back, because clients
 * continue reading from a time. */
static uint64_t event_log_next_time(const struct event_log *log)
{
    uint64_t ms = clock_unix_ms();
    uint64_t last = log->last ? log->ring[(log->last - 1) % log->cap].at_unix_ms : 0;
    return ms > last ? ms : last;
}

void events_publish(struct events *ev, const char *sandbox, const char *tenant, const char *type, const char *json)
{
    struct event_log *log = event_log_of(ev, sandbox, tenant);
    if (log->ended)
        return;
    struct event e = {.seq = log->last + 1,
                      .at_unix_ms = event_log_next_time(log),
                      .type = type,
                      .json = strlen(json) > EVENT_JSON_MAX ? "{\"cut\":true}" : json};
    event_log_keep(log, &e);
    struct db_event row = {.sandbox = sandbox,
                           .tenant = log->tenant,
                           .type = type,
                           .json = e.json,
                           .seq = e.seq,
                           .at_unix_ms = e.at_unix_ms};
    db_event_add(ev->db, &row);
    event_log_tell(log, &e);
}

static struct event_share *event_share_of(struct events *ev, const char *tenant)
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

/* Drops the oldest log of the tenant with the most, so that no tenant can push out logs of tenants with fewer. */
static void events_drop_oldest_ended(struct events *ev)
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
    event_log_free(oldest);
}

static void events_retire(struct events *ev, struct event_log *log)
{
    if (log->ended)
        return;
    struct event_share *s = event_share_of(ev, log->tenant);
    log->ended = true;
    *s->last = log;
    s->last = &log->next_ended;
    s->n++;
    if (++ev->nended > EVENTS_ENDED_KEPT)
        events_drop_oldest_ended(ev);
}

void events_end(struct events *ev, const char *sandbox)
{
    struct event_log *log = map_get(&ev->logs, sandbox);
    if (!log || log->ended)
        return;
    event_log_tell(log, NULL);
    events_retire(ev, log);
}

struct event_log *events_find(struct events *ev, const char *tenant, const char *sandbox)
{
    struct event_log *log = map_get(&ev->logs, sandbox);
    return log && strcmp(log->tenant, tenant) == 0 ? log : NULL;
}

bool events_ended(const struct event_log *log) { return log->ended; }

void events_replay(const struct event_log *log, uint64_t after, event_fn *fn, void *arg)
{
    uint64_t oldest = log->last > log->cap ? log->last - log->cap + 1 : 1;
    for (uint64_t seq = after + 1 > oldest ? after + 1 : oldest; seq <= log->last && seq != 0; seq++) {
        const struct event *e = &log->ring[(seq - 1) % log->cap];
        if (e->seq == seq) /* missing after a restart if the database was too slow and dropped the event */
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
    event_log_sweep(s->log);
}

static void event_load(void *arg, const struct db_event *e)
{
    struct events *ev = arg;
    struct event_log *log = event_log_of(ev, e->sandbox, e->tenant);
    if (log->ended || e->seq <= log->last)
        return;
    /* Slots of missing numbers stay empty. */
    struct event copy = {.seq = e->seq, .at_unix_ms = e->at_unix_ms, .type = e->type, .json = e->json};
    while (log->cap < EVENTS_KEPT && e->seq > log->cap) {
        size_t cap = log->cap ? log->cap * 4 : 4;
        log->ring = xreallocarray(log->ring, cap, sizeof *log->ring);
        memset(log->ring + log->cap, 0, (cap - log->cap) * sizeof *log->ring);
        log->cap = cap;
    }
    event_log_keep(log, &copy);
    if (strcmp(e->type, "died") == 0 || strcmp(e->type, "killed") == 0)
        events_retire(ev, log);
}

int events_open(struct db *db, struct events **ret, struct err *err)
{
    struct events *ev = *ret = xcalloc(1, sizeof *ev);
    ev->db = db;
    return db_events(db, DB_EVENTS_MAX / 2, event_load, ev, err);
}

void events_free(struct events *ev)
{
    if (!ev)
        return;
    size_t at = 0;
    for (struct event_log *log; (log = map_next(&ev->logs, &at));)
        event_log_free(log);
    at = 0;
    for (struct event_share *s; (s = map_next(&ev->shares, &at));)
        free(s);
    map_done(&ev->logs);
    map_done(&ev->shares);
    free(ev);
}
