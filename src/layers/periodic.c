/* periodic.c - starts collections (gc.c) by itself: every ten minutes, and twice after something was dropped, because
 * removing an unused layer takes two (refs.h). And starts to digest new layers (digest-later.c) when no capture has been
 * under way for a moment, a minute after the first at the latest.
 */
#include "layers/layers-int.h"
#include "layers/refs.h"

enum { EVERY_MS = 600000, SOON_MS = (REFS_GRACE_S + 5) * 1000, SOON_TIMES = 2, PUT_OFF_MAX = 20 };
enum { DIGEST_AFTER_MS = 2000, DIGEST_BY_MS = 60000 };

int periodic_wait_ms(const struct layers *s)
{
    uint64_t now = job_now_ms(), at = s->gc.at_ms;
    if (s->digest.wanted && s->digest.at_ms < at)
        at = s->digest.at_ms;
    return at > now ? (int)(at - now) : 0;
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

static bool periodic_has_task(const struct layers *s, enum layers_type type)
{
    for (int i = 0; i < LAYERS_TASKS; i++)
        if (s->tasks[i].state != TASK_FREE && !s->tasks[i].sweeper && s->tasks[i].ask.type == type)
            return true;
    return false;
}

static void periodic_step_digest(struct layers *s, uint64_t now)
{
    static const struct layers_request ask = {.version = LAYERS_VERSION, .type = LAYERS_DIGEST, .request = UINT64_MAX};
    if (periodic_has_task(s, LAYERS_CAPTURE)) {
        if (!s->digest.wanted)
            s->digest.since_ms = now;
        s->digest.wanted = true;
        s->digest.at_ms = now + DIGEST_AFTER_MS;
        if (now - s->digest.since_ms < DIGEST_BY_MS)
            return;
    }
    if (!s->digest.wanted || (now < s->digest.at_ms && now - s->digest.since_ms < DIGEST_BY_MS))
        return;
    /* Again later: the present one may have passed the new layers already. */
    s->digest.at_ms = now + DIGEST_AFTER_MS;
    if (!periodic_has_task(s, LAYERS_DIGEST) && task_new(s, -1, &ask, NULL, 0))
        s->digest.wanted = false;
}

void periodic_step(struct layers *s)
{
    uint64_t now = job_now_ms();
    if (s->gc.at_ms == 0) { /* first call: collect soon what the previous daemon left */
        s->gc.at_ms = UINT64_MAX;
        periodic_soon(s);
        s->digest.wanted = true;
        s->digest.since_ms = now;
        s->digest.at_ms = now + DIGEST_AFTER_MS;
    }
    periodic_step_digest(s, now);
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
