#include "front/metrics.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/strv.h"

enum { TICK_MS = 100, FLYING_MAX = 64 };

struct box_metrics {
    struct metric *ring; /* grows to METRICS_KEPT, then wraps */
    size_t cap, n, next;
    uint64_t cpu_us, cpu_at_ms; /* counter and time of the sample before; cpu_at_ms 0: none */
};
struct metrics {
    struct front *front;
    loop_id timer;
    struct strv round; /* ids still to be asked in this round */
    uint64_t round_started_ms;
    size_t at, flying;
};
struct question {
    struct front *front;
    char id[SANDBOX_ID_MAX];
};

static uint64_t unix_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void keep(struct box_metrics *m, const struct metric *sample)
{
    if (m->n == m->cap && m->cap < METRICS_KEPT) {
        m->cap = m->cap ? m->cap * 2 : 12;
        if (m->cap > METRICS_KEPT)
            m->cap = METRICS_KEPT;
        m->ring = xreallocarray(m->ring, m->cap, sizeof *m->ring);
        m->next = m->n;
    }
    m->ring[m->next % m->cap] = *sample;
    m->next = (m->next + 1) % METRICS_KEPT;
    if (m->n < m->cap)
        m->n++;
}

static void answered(void *arg, const struct keeper_reply *r)
{
    struct question *q = arg;
    struct front *f = q->front;
    if (f->metrics)
        f->metrics->flying--;
    struct box *b = f->boxes ? box_find(f, q->id) : NULL;
    free(q);
    if (!b || b->state != BOX_RUNNING || r->error != KEEPER_OK)
        return;
    struct box_metrics *m = b->metrics;
    if (!m)
        b->metrics = m = xcalloc(1, sizeof *m);
    uint64_t now = loop_now(f->loop), cpu = r->usage.cpu_user_us + r->usage.cpu_system_us;
    struct metric s = {.at_unix_ms = unix_ms(),
                       .memory = r->usage.memory,
                       .disk = r->usage.disk_used,
                       .pids = (uint32_t)r->usage.pids};
    if (m->cpu_at_ms && now > m->cpu_at_ms && cpu >= m->cpu_us)
        s.cpu_milli_used = (uint32_t)((cpu - m->cpu_us) / (now - m->cpu_at_ms)); /* us per ms = thousandths */
    m->cpu_us = cpu;
    m->cpu_at_ms = now;
    keep(m, &s);
}

static void collect(void *arg, struct box *b)
{
    if (b->state == BOX_RUNNING)
        strv_add(arg, b->id);
}

static void tick(void *arg)
{
    struct front *f = arg;
    struct metrics *m = f->metrics;
    uint64_t now = loop_now(f->loop);
    if (m->at == m->round.n && now - m->round_started_ms >= METRICS_PERIOD_MS) {
        strv_done(&m->round);
        m->at = 0;
        m->round_started_ms = now;
        boxes_each(f, collect, &m->round);
    }
    /* A round is spread over its period; what does not fit makes it longer. */
    size_t share = m->round.n / (METRICS_PERIOD_MS / TICK_MS) + 1;
    if (share > METRICS_PER_SECOND * TICK_MS / 1000)
        share = METRICS_PER_SECOND * TICK_MS / 1000;
    for (; share > 0 && m->at < m->round.n && m->flying < FLYING_MAX; share--, m->at++) {
        struct question *q = xcalloc(1, sizeof *q);
        q->front = f;
        (void)memccpy(q->id, m->round.v[m->at], '\0', sizeof q->id - 1);
        m->flying++;
        keeperc_usage(f->keeper, q->id, answered, q);
    }
    m->timer = loop_timer(f->loop, TICK_MS, tick, f);
}

void metrics_start(struct front *f)
{
    f->metrics = xcalloc(1, sizeof *f->metrics);
    f->metrics->front = f;
    f->metrics->timer = loop_timer(f->loop, TICK_MS, tick, f);
}

void metrics_free(struct front *f)
{
    if (!f->metrics)
        return;
    loop_timer_del(f->loop, f->metrics->timer);
    strv_done(&f->metrics->round);
    free(f->metrics);
    f->metrics = NULL;
}

static const struct metric *sample_at(const struct box_metrics *m, size_t i)
{
    size_t first = m->n == METRICS_KEPT ? m->next : 0;
    return &m->ring[(first + i) % m->cap];
}

void metrics_each(const struct box *b, uint64_t from_ms, uint64_t to_ms,
                  void (*each)(void *arg, const struct metric *m), void *arg)
{
    const struct box_metrics *m = b->metrics;
    for (size_t i = 0; m && i < m->n; i++) {
        const struct metric *s = sample_at(m, i);
        if (s->at_unix_ms >= from_ms && s->at_unix_ms <= to_ms)
            each(arg, s);
    }
}

bool metrics_last(const struct box *b, struct metric *ret)
{
    const struct box_metrics *m = b->metrics;
    if (!m || m->n == 0)
        return false;
    *ret = *sample_at(m, m->n - 1);
    return true;
}

void metrics_forget(struct box *b)
{
    struct box_metrics *m = b->metrics;
    if (m)
        free(m->ring);
    free(m);
    b->metrics = NULL;
}
