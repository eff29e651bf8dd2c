/* events.h - what happened to each sandbox, numbered from 1 without gaps. The newest EVENTS_KEPT of every sandbox are in
 * memory, those of ended ones too until there are more than EVENTS_ENDED_KEPT: then the tenant that has the most gives its
 * oldest; all of it is also written to the store and found
 * again after a restart. Types in use: "created", "timeout_changed", "exec_ended", "denial", "died", "killed"; the last two end
 * a sandbox and are its last event.
 */
#ifndef HUTCH_FRONT_EVENTS_H
#define HUTCH_FRONT_EVENTS_H

#include "front/front.h"

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

int events_load(struct front *f, struct err *err);
void events_free(struct front *f);

/* json: a complete object, "{}" if there is nothing to say; longer than EVENT_JSON_MAX it is replaced by {"cut":true}. */
void events_publish(struct front *f, const char *sandbox, const char *tenant, const char *type, const char *json);
/* Nothing will follow: every subscriber is told with a NULL event and is gone. */
void events_end(struct front *f, const char *sandbox);

/* The history of a sandbox of that tenant, ended ones too; NULL if there is none. Valid until the loop goes round. */
struct event_log *events_find(struct front *f, const char *tenant, const char *sandbox);
bool events_ended(const struct event_log *log);
/* Calls fn for every kept event after that number, oldest first. */
typedef void event_fn(void *arg, const struct event *e /* NULL: the end; the subscription is gone */);
void events_replay(const struct event_log *log, uint64_t after, event_fn *fn, void *arg);
/* Replays at once, then calls fn for each new one, until events_unsubscribe() (allowed inside fn) or the end. NULL: too many
 * subscribers, or the sandbox has ended (replay is all there is). */
struct event_sub *events_subscribe(struct event_log *log, uint64_t after, event_fn *fn, void *arg);
void events_unsubscribe(struct event_sub *s);

#endif
