#include "cluster/queue.h"

#include <stdlib.h>

#include "base/mem.h"
#include "cluster/draw.h"

#define SERVED_HALF_LIFE_MS 10000

/* Two heaps: lines by share, items by deadline. Both keep each element's place in it, because elements change and leave. */

static bool queue_line_before(const struct queue_line *a, const struct queue_line *b)
{
    if (a->passed != b->passed)
        return b->passed;
    if (a->share != b->share)
        return a->share < b->share;
    if (a->turn != b->turn)
        return a->turn < b->turn;
    return a->first->order < b->first->order;
}

static void queue_set_line(struct queue *q, size_t i, struct queue_line *line)
{
    q->lines[i] = line;
    line->at = i;
}

static void queue_sink_line(struct queue *q, struct queue_line *line)
{
    size_t i = line->at;
    for (size_t child; (child = 2 * i + 1) < q->n_lines; i = child) {
        if (child + 1 < q->n_lines && queue_line_before(q->lines[child + 1], q->lines[child]))
            child++;
        if (!queue_line_before(q->lines[child], line))
            break;
        queue_set_line(q, i, q->lines[child]);
    }
    queue_set_line(q, i, line);
}

/* The line's key changed, or it was just put into its place: moves it to where it belongs. */
static void queue_sift_line(struct queue *q, struct queue_line *line)
{
    size_t i = line->at;
    for (; i > 0 && queue_line_before(line, q->lines[(i - 1) / 2]); i = (i - 1) / 2)
        queue_set_line(q, i, q->lines[(i - 1) / 2]);
    queue_set_line(q, i, line);
    queue_sink_line(q, line);
}

static void queue_set_item(struct queue *q, size_t i, struct queue_item *item)
{
    q->items[i] = item;
    item->at = i;
}

static void queue_sift_item(struct queue *q, struct queue_item *item)
{
    size_t i = item->at;
    for (; i > 0 && item->until_ms < q->items[(i - 1) / 2]->until_ms; i = (i - 1) / 2)
        queue_set_item(q, i, q->items[(i - 1) / 2]);
    for (size_t child; (child = 2 * i + 1) < q->n_items; i = child) {
        if (child + 1 < q->n_items && q->items[child + 1]->until_ms < q->items[child]->until_ms)
            child++;
        if (q->items[child]->until_ms >= item->until_ms)
            break;
        queue_set_item(q, i, q->items[child]);
    }
    queue_set_item(q, i, item);
}

static void queue_compute_share(const struct queue *q, struct queue_line *line)
{
    line->share = 0;
    for (int k = 0; k < AMOUNT_N; k++) {
        double share = q->capacity.of[k] ? (double)line->held.of[k] / (double)q->capacity.of[k] : 0;
        if (share > line->share)
            line->share = share;
    }
    line->share /= line->weight ? line->weight : 1;
}

static void queue_weigh(struct queue *q, struct queue_line *line)
{
    queue_compute_share(q, line);
    if (line->n > 0)
        queue_sift_line(q, line);
}

void queue_start(struct queue *q, size_t limit, const struct amount *capacity)
{
    *q = (struct queue){.limit = limit, .capacity = *capacity};
}

void queue_done(struct queue *q)
{
    free(q->lines);
    free(q->items);
    *q = (struct queue){0};
}

/* All keys may have changed: from the last line that has one below it to the first. */
static void queue_order_lines(struct queue *q)
{
    for (size_t i = q->n_lines / 2; i-- > 0;)
        queue_sink_line(q, q->lines[i]);
}

void queue_set_capacity(struct queue *q, size_t limit, const struct amount *capacity)
{
    q->limit = limit;
    q->capacity = *capacity;
    for (size_t i = 0; i < q->n_lines; i++)
        queue_compute_share(q, q->lines[i]);
    queue_order_lines(q);
}

static void queue_add_line(struct queue *q, struct queue_line *line)
{
    MEM_GROW(q->lines, q->n_lines, q->cap_lines);
    q->n_lines++;
    queue_set_line(q, q->n_lines - 1, line);
    queue_sift_line(q, line);
}

static void queue_drop_line(struct queue *q, struct queue_line *line)
{
    struct queue_line *last = q->lines[--q->n_lines];
    line->passed = false;
    if (last == line)
        return;
    queue_set_line(q, line->at, last);
    queue_sift_line(q, last);
}

/* Puts the item into its line, at the end or as the first, and into the heap of deadlines. */
static void queue_enter(struct queue *q, struct queue_line *line, struct queue_item *item, bool as_first)
{
    item->line = line;
    item->before = as_first ? NULL : line->last;
    item->after = as_first ? line->first : NULL;
    *(item->before ? &item->before->after : &line->first) = item;
    *(item->after ? &item->after->before : &line->last) = item;
    MEM_GROW(q->items, q->n_items, q->cap_items);
    q->n_items++;
    queue_set_item(q, q->n_items - 1, item);
    queue_sift_item(q, item);
    if (line->n++ == 0)
        queue_add_line(q, line);
    else
        queue_sift_line(q, line); /* its first item may be another */
}

void queue_remove(struct queue *q, struct queue_item *item)
{
    struct queue_line *line = item->line;
    if (!line)
        return;
    *(item->before ? &item->before->after : &line->first) = item->after;
    *(item->after ? &item->after->before : &line->last) = item->before;
    item->line = NULL;
    struct queue_item *last = q->items[--q->n_items];
    if (last != item) {
        queue_set_item(q, item->at, last);
        queue_sift_item(q, last);
    }
    if (--line->n == 0)
        queue_drop_line(q, line);
    else
        queue_sift_line(q, line);
}

bool queue_push(struct queue *q, struct queue_line *line, struct queue_item *item, uint64_t now_ms)
{
    if (q->n_items >= q->limit || line->n >= q->limit - q->n_items)
        return false;
    uint64_t patience = item->remaining_ms / 4;
    item->pushed_ms = now_ms;
    item->until_ms = now_ms + (patience < QUEUE_WAIT_MS ? patience : QUEUE_WAIT_MS);
    item->order = q->order++;
    if (line->n == 0) {
        line->slow_since_ms = 0;
        if (line->turn < q->turn)
            line->turn = q->turn; /* who was away has no turns to make up for */
        queue_compute_share(q, line);
    }
    queue_enter(q, line, item, false);
    return true;
}

/* Whether the item is to be given up: its line has been slow for a while, and it is one of those that waited for long. */
static bool queue_is_late(struct queue_line *line, const struct queue_item *item, uint64_t now_ms)
{
    if (now_ms - item->pushed_ms <= QUEUE_TARGET_MS) {
        line->slow_since_ms = 0;
        return false;
    }
    if (!line->slow_since_ms)
        line->slow_since_ms = now_ms;
    return now_ms - line->slow_since_ms >= QUEUE_OVERLOAD_MS;
}

struct queue_item *queue_next(struct queue *q, uint64_t now_ms, bool *ret_late)
{
    *ret_late = false;
    if (q->n_lines == 0 || q->lines[0]->passed)
        return NULL;
    struct queue_line *line = q->lines[0];
    struct queue_item *item = line->first;
    *ret_late = queue_is_late(line, item, now_ms);
    queue_remove(q, item);
    if (*ret_late)
        return item;
    q->turn = line->turn;
    line->turn += 1.0 / (line->weight ? line->weight : 1);
    queue_charge(q, line, &item->need);
    meter_count(&q->served, now_ms, SERVED_HALF_LIFE_MS, 1);
    return item;
}

void queue_put_back(struct queue *q, struct queue_line *line, struct queue_item *item)
{
    line->turn -= 1.0 / (line->weight ? line->weight : 1);
    queue_release(q, line, &item->need);
    line->passed = q->passed = true;
    q->served.value -= 693.1471805599453 / SERVED_HALF_LIFE_MS; /* it was not */
    queue_enter(q, line, item, true);
}

void queue_round(struct queue *q)
{
    if (!q->passed)
        return;
    for (size_t i = 0; i < q->n_lines; i++)
        q->lines[i]->passed = false;
    q->passed = false;
    queue_order_lines(q);
}

struct queue_item *queue_overdue(struct queue *q, uint64_t now_ms)
{
    struct queue_item *item = q->n_items ? q->items[0] : NULL;
    if (!item || item->until_ms > now_ms)
        return NULL;
    queue_remove(q, item);
    return item;
}

uint64_t queue_due_ms(const struct queue *q) { return q->n_items ? q->items[0]->until_ms : UINT64_MAX; }

void queue_charge(struct queue *q, struct queue_line *line, const struct amount *need)
{
    amount_add(&line->held, need);
    queue_weigh(q, line);
}

void queue_release(struct queue *q, struct queue_line *line, const struct amount *need)
{
    amount_take(&line->held, need);
    queue_weigh(q, line);
}

void queue_set_held(struct queue *q, struct queue_line *line, const struct amount *held)
{
    line->held = *held;
    amount_cut(&line->held);
    queue_weigh(q, line);
}

unsigned queue_retry_after(const struct queue *q, uint64_t now_ms, uint64_t random)
{
    double rate = meter_rate(&q->served, now_ms, SERVED_HALF_LIFE_MS);
    double wait = rate > 0.001 ? (double)(q->n_items + 1) / rate : QUEUE_RETRY_MAX_S;
    if (wait < 1)
        wait = 1;
    if (wait > QUEUE_RETRY_MAX_S)
        wait = QUEUE_RETRY_MAX_S;
    struct draw d = {random};
    wait *= 0.8 + 0.4 * draw_below(&d, 1001) / 1000;
    unsigned seconds = (unsigned)(wait + 0.5);
    return seconds ? seconds : 1;
}
