/* events.h - the events of each sandbox, numbered from 1 without gaps. The newest EVENTS_KEPT events of a sandbox are
 * in memory. Ended sandboxes keep theirs until there are more than EVENTS_ENDED_KEPT of them: then the tenant with the
 * most ended sandboxes loses its oldest. All events are also written to the database and loaded after a restart. Types:
 * "created", "timeout_changed", "exec_ended", "denial", "died", "killed"; the last two are the last event of a sandbox.
 * Publishing never waits for the disk.
 */
#ifndef HUTCH_SANDBOXES_EVENTS_H
#define HUTCH_SANDBOXES_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/ids.h"

enum {
    EVENTS_KEPT = 256,
    EVENTS_ENDED_KEPT = 512,
    EVENTS_SUBSCRIBERS_MAX = 64 /* of one sandbox */,
    EVENT_JSON_MAX = 4096
};

struct event {
    uint64_t seq, at_unix_ms;
    const char *type;
    const char *json; /* one object */
};
struct event_log; /* of one sandbox */
struct event_sub; /* one subscriber */

struct db;
struct events;
/* Reads what the database has. On failure *ret is to be freed all the same. */
int events_open(struct db *db, struct events **ret, struct err *err);
void events_free(struct events *ev);

/* json: a complete object, perhaps "{}"; one longer than EVENT_JSON_MAX is replaced by {"cut":true}. */
void events_publish(struct events *ev, const char *sandbox, const char *tenant, const char *type, const char *json);
/* No event follows: every subscriber gets a NULL event, and its subscription ends. */
void events_end(struct events *ev, const char *sandbox);

/* The events of a sandbox of that tenant, also of an ended one; NULL: none. Valid until the caller returns to the
 * loop. */
struct event_log *events_find(struct events *ev, const char *tenant, const char *sandbox);
bool events_ended(const struct event_log *log);
/* Calls fn for every kept event after that number, oldest first. */
typedef void event_fn(void *arg, const struct event *e /* NULL: the end; the subscription is gone */);
void events_replay(const struct event_log *log, uint64_t after, event_fn *fn, void *arg);
/* Replays at once, then calls fn for each new event, until events_unsubscribe() (allowed inside fn) or the end.
 * NULL: too many subscribers, or the sandbox has ended and no event follows. */
struct event_sub *events_subscribe(struct event_log *log, uint64_t after, event_fn *fn, void *arg);
void events_unsubscribe(struct event_sub *s);

#endif
