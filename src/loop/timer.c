/* timer.c - timers in a binary heap of slot numbers, ordered by due time and then by age. */
#include <limits.h>

#include "base/mem.h"
#include "loop/loop-int.h"

static bool heap_before(const struct loop *l, uint32_t a, uint32_t b)
{
    const struct slot *x = &l->slots[a], *y = &l->slots[b];
    return x->u.timer.due != y->u.timer.due ? x->u.timer.due < y->u.timer.due : x->u.timer.seq < y->u.timer.seq;
}

static void heap_put(struct loop *l, uint32_t at, uint32_t slot)
{
    l->heap[at] = slot;
    l->slots[slot].u.timer.heap = at;
}

static void heap_sift_up(struct loop *l, uint32_t at, uint32_t slot)
{
    for (uint32_t up; at > 0 && heap_before(l, slot, l->heap[up = (at - 1) / 2]); at = up)
        heap_put(l, at, l->heap[up]);
    heap_put(l, at, slot);
}

static void heap_sift_down(struct loop *l, uint32_t at, uint32_t slot)
{
    for (uint32_t child; (child = 2 * at + 1) < l->nheap; at = child) {
        if (child + 1 < l->nheap && heap_before(l, l->heap[child + 1], l->heap[child]))
            child++;
        if (!heap_before(l, l->heap[child], slot))
            break;
        heap_put(l, at, l->heap[child]);
    }
    heap_put(l, at, slot);
}

static void heap_remove(struct loop *l, uint32_t at)
{
    uint32_t last = l->heap[--l->nheap];
    if (at == l->nheap)
        return;
    if (at > 0 && heap_before(l, last, l->heap[(at - 1) / 2]))
        heap_sift_up(l, at, last);
    else
        heap_sift_down(l, at, last);
}

loop_id loop_timer(struct loop *l, uint64_t after_ms, loop_fn *fn, void *arg)
{
    struct slot *s;
    loop_id id = loop_slot_new(l, SLOT_TIMER, arg, &s);
    s->u.timer.fn = fn;
    s->u.timer.due = after_ms > UINT64_MAX - l->now ? UINT64_MAX : l->now + after_ms;
    s->u.timer.seq = l->timer_seq++;
    MEM_GROW(l->heap, l->nheap, l->cap_heap);
    l->nheap++;
    heap_sift_up(l, l->nheap - 1, (uint32_t)id);
    return id;
}

void loop_timer_del(struct loop *l, loop_id id)
{
    struct slot *s = loop_slot_get(l, id, SLOT_TIMER);
    if (!s)
        return;
    heap_remove(l, s->u.timer.heap);
    loop_slot_free(l, s);
}

/* How long epoll may wait: until the first timer is due. */
int timers_wait(const struct loop *l, int max_wait_ms)
{
    if (l->nheap == 0)
        return max_wait_ms;
    uint64_t due = l->slots[l->heap[0]].u.timer.due, now = l->clock(l->clock_arg);
    uint64_t wait = due > now ? due - now : 0;
    if (max_wait_ms >= 0 && wait > (uint64_t)max_wait_ms)
        return max_wait_ms;
    return wait > INT_MAX ? INT_MAX : (int)wait;
}

/* Timers that these callbacks set wait for the next round, even with 0 ms. */
void timers_run(struct loop *l)
{
    uint64_t newest = l->timer_seq;
    while (l->nheap > 0) {
        struct slot *s = &l->slots[l->heap[0]];
        if (s->u.timer.due > l->now || s->u.timer.seq >= newest)
            return;
        loop_fn *fn = s->u.timer.fn;
        void *arg = s->arg;
        heap_remove(l, 0);
        loop_slot_free(l, s);
        fn(arg);
    }
}
