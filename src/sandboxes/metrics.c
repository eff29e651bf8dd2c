#include "sandboxes/metrics.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/strv.h"
#include "sandboxes/sandboxes-int.h"

enum { TICK_MS = 100, FLYING_MAX = 64 };

struct sandbox_metrics {
    struct metric *ring; /* grows to METRICS_KEPT, then wraps */
    size_t cap, n, next;
    uint64_t cpu_us, cpu_at_ms; /* counter and time of the sample before; cpu_at_ms 0: none */
};
struct metrics {
    struct sandboxes *sandboxes;
    loop_id timer;
    struct strv round; /* ids still to be asked in this round */
    uint64_t round_started_ms;
    size_t at, flying;
};
struct question {
    struct sandboxes *sandboxes;
    char id[SANDBOX_ID_MAX];
};

static void metrics_keep(struct sandbox_metrics *m, const struct metric *sample)
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

static void metrics_on_usage(void *arg, const struct keeper_reply *r)
{
    struct question *q = arg;
    struct sandboxes *sb = q->sandboxes;
    if (sb->metrics)
        sb->metrics->flying--;
    struct sandbox *b = sandbox_lookup(sb, q->id);
    free(q);
    if (!b || b->state != SANDBOX_RUNNING || r->error != KEEPER_OK)
        return;
    struct sandbox_metrics *m = b->metrics;
    if (!m)
        b->metrics = m = xcalloc(1, sizeof *m);
    uint64_t now = loop_now(sb->loop), cpu = r->usage.cpu_user_us + r->usage.cpu_system_us;
    struct metric s = {.at_unix_ms = clock_unix_ms(),
                       .memory = r->usage.memory,
                       .disk = r->usage.disk_used,
                       .pids = (uint32_t)r->usage.pids};
    if (m->cpu_at_ms && now > m->cpu_at_ms && cpu >= m->cpu_us)
        s.cpu_milli_used = (uint32_t)((cpu - m->cpu_us) / (now - m->cpu_at_ms)); /* us per ms = thousandths */
    m->cpu_us = cpu;
    m->cpu_at_ms = now;
    metrics_keep(m, &s);
}

static void metrics_collect(void *arg, struct sandbox *b)
{
    if (b->state == SANDBOX_RUNNING)
        strv_add(arg, b->id);
}

static void metrics_tick(void *arg)
{
    struct sandboxes *sb = arg;
    struct metrics *m = sb->metrics;
    uint64_t now = loop_now(sb->loop);
    if (m->at == m->round.n && now - m->round_started_ms >= METRICS_PERIOD_MS) {
        strv_done(&m->round);
        m->at = 0;
        m->round_started_ms = now;
        sandboxes_each(sb, metrics_collect, &m->round);
    }
    /* Spread a round over its period; with too many sandboxes the round becomes longer. */
    size_t share = m->round.n / (METRICS_PERIOD_MS / TICK_MS) + 1;
    if (share > METRICS_PER_SECOND * TICK_MS / 1000)
        share = METRICS_PER_SECOND * TICK_MS / 1000;
    for (; share > 0 && m->at < m->round.n && m->flying < FLYING_MAX; share--, m->at++) {
        struct question *q = xcalloc(1, sizeof *q);
        q->sandboxes = sb;
        (void)memccpy(q->id, m->round.v[m->at], '\0', sizeof q->id - 1);
        m->flying++;
        keeperc_usage(sb->peers->keeper, q->id, metrics_on_usage, q);
    }
    m->timer = loop_timer(sb->loop, TICK_MS, metrics_tick, sb);
}

void metrics_start(struct sandboxes *sb)
{
    sb->metrics = xcalloc(1, sizeof *sb->metrics);
    sb->metrics->sandboxes = sb;
    sb->metrics->timer = loop_timer(sb->loop, TICK_MS, metrics_tick, sb);
}

void metrics_free(struct sandboxes *sb)
{
    if (!sb->metrics)
        return;
    loop_timer_del(sb->loop, sb->metrics->timer);
    strv_done(&sb->metrics->round);
    free(sb->metrics);
    sb->metrics = NULL;
}

static const struct metric *metrics_sample_at(const struct sandbox_metrics *m, size_t i)
{
    size_t first = m->n == METRICS_KEPT ? m->next : 0;
    return &m->ring[(first + i) % m->cap];
}

void metrics_each(const struct sandbox *b, uint64_t from_ms, uint64_t to_ms,
                  void (*each)(void *arg, const struct metric *m), void *arg)
{
    const struct sandbox_metrics *m = b->metrics;
    for (size_t i = 0; m && i < m->n; i++) {
        const struct metric *s = metrics_sample_at(m, i);
        if (s->at_unix_ms >= from_ms && s->at_unix_ms <= to_ms)
            each(arg, s);
    }
}

bool metrics_last(const struct sandbox *b, struct metric *ret)
{
    const struct sandbox_metrics *m = b->metrics;
    if (!m || m->n == 0)
        return false;
    *ret = *metrics_sample_at(m, m->n - 1);
    return true;
}

void metrics_forget(struct sandbox *b)
{
    struct sandbox_metrics *m = b->metrics;
    if (m)
        free(m->ring);
    free(m);
    b->metrics = NULL;
}
