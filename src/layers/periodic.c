/* periodic.c - starts collections (gc.c) by itself: every ten minutes, and twice after something was dropped, because
 * removing an unused layer takes two (refs.h).
 */
#include "layers/layers-int.h"
#include "layers/refs.h"

enum { EVERY_MS = 600000, SOON_MS = (REFS_GRACE_S + 5) * 1000, SOON_TIMES = 2, PUT_OFF_MAX = 20 };

int periodic_wait_ms(const struct layers *s)
{
    uint64_t now = job_now_ms();
    return s->gc.at_ms > now ? (int)(s->gc.at_ms - now) : 0;
}

void periodic_soon(struct layers *s)
{
    uint64_t soon = job_now_ms() + SOON_MS;
    s->gc.more = SOON_TIMES;
    if (s->gc.at_ms > soon)
        s->gc.at_ms = soon;
}

/* A collection and jobs that add layers wait for each other, so it is put off while such jobs run; but only PUT_OFF_MAX
 * times, or continuous imports would prevent it for ever. */
static bool periodic_must_wait(const struct layers *s)
{
    for (int i = 0; i < LAYERS_TASKS; i++)
        if (s->tasks[i].state != TASK_FREE && job_type_of(s->tasks[i].ask.type)->adds)
            return true;
    return false;
}

void periodic_step(struct layers *s)
{
    uint64_t now = job_now_ms();
    if (s->gc.at_ms == 0) { /* first call: collect soon what the previous daemon left */
        s->gc.at_ms = UINT64_MAX;
        periodic_soon(s);
    }
    if (now < s->gc.at_ms)
        return;
    s->gc.at_ms = now + SOON_MS;
    if (periodic_must_wait(s) && s->gc.put_off++ < PUT_OFF_MAX)
        return;
    static const struct layers_request ask = {.version = LAYERS_VERSION, .type = LAYERS_GC, .request = UINT64_MAX};
    if (!task_new(s, -1, &ask, NULL, 0))
        return;
    s->gc.put_off = 0;
    if (s->gc.more > 0)
        s->gc.more--;
    if (s->gc.more == 0)
        s->gc.at_ms = now + EVERY_MS;
}
