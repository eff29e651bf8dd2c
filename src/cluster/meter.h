/* meter.h - averages that forget: after one half-life the past weighs half. Time is an argument. */
#ifndef HUTCH_CLUSTER_METER_H
#define HUTCH_CLUSTER_METER_H

#include <stdint.h>

struct meter {
    double value;
    uint64_t at_ms; /* of the last sample; 0: none yet */
};

/* 2^(-elapsed / half_life), to a thousandth; without libm, which no program of ours links. */
static inline double meter_decay(uint64_t elapsed_ms, uint64_t half_life_ms)
{
    uint64_t whole = elapsed_ms / half_life_ms;
    if (whole >= 50)
        return 0;
    double y = 0.6931471805599453 * (double)(elapsed_ms % half_life_ms) / (double)half_life_ms;
    return (1 - y * (1 - y / 2 * (1 - y / 3 * (1 - y / 4)))) / (double)(1ULL << whole);
}
/* The value was x since the last sample. The first sample is the average. */
static inline void meter_sample(struct meter *m, uint64_t now_ms, uint64_t half_life_ms, double x)
{
    double keep = m->at_ms && now_ms >= m->at_ms ? meter_decay(now_ms - m->at_ms, half_life_ms) : 0;
    m->value = x + keep * (m->value - x);
    m->at_ms = now_ms;
}
/* Counts events: the value is how many there are in a second. */
static inline void meter_count(struct meter *m, uint64_t now_ms, uint64_t half_life_ms, double events)
{
    if (m->at_ms && now_ms > m->at_ms)
        m->value *= meter_decay(now_ms - m->at_ms, half_life_ms);
    if (!m->at_ms || now_ms > m->at_ms)
        m->at_ms = now_ms;
    m->value += events * 693.1471805599453 / (double)half_life_ms;
}
static inline double meter_rate(const struct meter *m, uint64_t now_ms, uint64_t half_life_ms)
{
    return now_ms > m->at_ms ? m->value * meter_decay(now_ms - m->at_ms, half_life_ms) : m->value;
}

#endif
