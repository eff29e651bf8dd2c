/* queue.h - creates that wait for room, in a fair order.
 *
 * One queue for each orchestrator. Each tenant has a line of its own, first come, first served; among the lines that one is
 * served next whose tenant has the smallest share of the cluster (dominant resource, divided by its weight). Lines with
 * equal shares take turns, as often as their weights say. A tenant that floods its line makes itself wait.
 *
 * The caller owns lines and items, which are parts of its tenants and requests: an item is in the queue from queue_push()
 * until queue_next(), queue_overdue() or queue_remove() hands it back, and must not move meanwhile.
 *
 * Limits: a line may have as many items as the queue has free places, so one tenant fills half of the queue at most and
 * there is always a place for those who have few. Nothing waits longer than QUEUE_WAIT_MS. A line whose first item has
 * waited longer than QUEUE_TARGET_MS for QUEUE_OVERLOAD_MS is overloaded: what waited longer than that is given up when its
 * turn comes, so that work is not done for clients that are about to leave.
 */
#ifndef HUTCH_CLUSTER_QUEUE_H
#define HUTCH_CLUSTER_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cluster/amount.h"
#include "cluster/meter.h"

enum {
    QUEUE_WAIT_MS = 2000,
    QUEUE_TARGET_MS = 100,
    QUEUE_OVERLOAD_MS = 1000,
    QUEUE_RETRY_MAX_S = 30,
};

struct queue_line;
struct queue_item {
    struct amount need;    /* filled in by the caller */
    uint64_t remaining_ms; /* of the client's patience; by the caller */
    /* kept by queue.c */
    struct queue_line *line; /* NULL: not in a queue */
    struct queue_item *before, *after;
    uint64_t pushed_ms, until_ms, order;
    size_t at; /* in the heap of deadlines */
};
struct queue_line {
    uint32_t weight; /* 1 or more; by the caller, while nothing waits */
    /* kept by queue.c */
    struct amount held; /* by the tenant's sandboxes, those on their way included */
    struct queue_item *first, *last;
    size_t n, at;
    double share, turn;
    uint64_t slow_since_ms; /* since when the first item was late; 0: it was not */
    bool passed;            /* its first item found no room in this round */
};
struct queue {
    size_t limit;
    struct amount capacity;    /* of all nodes */
    struct queue_line **lines; /* owned array: those with items, a heap */
    size_t n_lines, cap_lines;
    struct queue_item **items; /* owned array: a heap, by until_ms */
    size_t n_items, cap_items;
    uint64_t order;
    double turn; /* of the line that was served last */
    bool passed; /* any line was */
    struct meter served;
};

/* limit: twice the start slots of the cluster is sensible. */
void queue_start(struct queue *q, size_t limit, const struct amount *capacity);
void queue_done(struct queue *q); /* frees the arrays; items that wait are the caller's */
void queue_set_capacity(struct queue *q, size_t limit, const struct amount *capacity);

/* False: full, for this tenant at least; 503. */
bool queue_push(struct queue *q, struct queue_line *line, struct queue_item *item, uint64_t now_ms);
/* The client has gone. */
void queue_remove(struct queue *q, struct queue_item *item);
/* The next item to place, charged to its tenant; *ret_late: give it up instead (503), it is not charged. NULL: nothing
 * waits, or all lines were passed in this round. */
struct queue_item *queue_next(struct queue *q, uint64_t now_ms, bool *ret_late);
/* It found no room: it is the first of its line again, and the line is passed over until queue_round(). */
void queue_put_back(struct queue *q, struct queue_line *line, struct queue_item *item);
/* Something became free: all lines may try again. */
void queue_round(struct queue *q);
/* An item that has waited for too long (503), handed back; NULL: none. */
struct queue_item *queue_overdue(struct queue *q, uint64_t now_ms);
/* When queue_overdue() has something next; UINT64_MAX: nothing waits. */
uint64_t queue_due_ms(const struct queue *q);

/* A sandbox of the tenant was made without waiting; or has ended; or this is what the view says it has. */
void queue_charge(struct queue *q, struct queue_line *line, const struct amount *need);
void queue_release(struct queue *q, struct queue_line *line, const struct amount *need);
void queue_set_held(struct queue *q, struct queue_line *line, const struct amount *held);

/* Seconds until the queue is likely to have been served, and a fifth more or less, so that those who were refused together
 * do not come back together. */
unsigned queue_retry_after(const struct queue *q, uint64_t now_ms, uint64_t random);

#endif
