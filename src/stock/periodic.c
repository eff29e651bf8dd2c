/* periodic.c - the collection that nobody asks for: every ten minutes, and twice after something was dropped, which
 * is how long it takes until a layer that nobody needs is gone (refs.h).
 */
#include <time.h>

#include "stock/refs.h"
#include "stock/stock-int.h"

enum { EVERY_MS = 600000, SOON_MS = (REFS_GRACE_S + 5) * 1000, SOON_TIMES = 2, PUT_OFF_MAX = 20 };

static uint64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

int periodic_wait_ms(const struct stock *s)
{
    uint64_t now = now_ms();
    return s->gc.at_ms > now ? (int)(s->gc.at_ms - now) : 0;
}

void periodic_soon(struct stock *s)
{
    uint64_t soon = now_ms() + SOON_MS;
    s->gc.more = SOON_TIMES;
    if (s->gc.at_ms > soon)
        s->gc.at_ms = soon;
}

/* A collection waits for those that add layers, and they for it; whoever imports all day must not keep it away for
 * ever. */
static bool is_in_the_way(const struct stock *s)
{
    for (int i = 0; i < STOCK_TASKS; i++)
        if (s->tasks[i].state != TASK_FREE && job_type_of(s->tasks[i].ask.type)->adds)
            return true;
    return false;
}

void periodic_step(struct stock *s)
{
    uint64_t now = now_ms();
    if (s->gc.at_ms == 0) { /* what the one before did not get to */
        s->gc.at_ms = UINT64_MAX;
        periodic_soon(s);
    }
    if (now < s->gc.at_ms)
        return;
    s->gc.at_ms = now + SOON_MS;
    if (is_in_the_way(s) && s->gc.put_off++ < PUT_OFF_MAX)
        return;
    static const struct stock_request ask = {.version = STOCK_VERSION, .type = STOCK_GC, .request = UINT64_MAX};
    if (!task_new(s, -1, &ask, NULL, 0))
        return;
    s->gc.put_off = 0;
    if (s->gc.more > 0)
        s->gc.more--;
    if (s->gc.more == 0)
        s->gc.at_ms = now + EVERY_MS;
}
