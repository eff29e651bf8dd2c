#include "cluster/admit.h"

#include "base/cleanup.h"
#include "base/num.h"

#define GAP_HALF_LIFE_MS 60000

void admit_start(struct admit *a, const struct admit_limits *limits, uint32_t members)
{
    *a = (struct admit){.limits = *limits, .members = members ? members : 1};
    amount_cut(&a->limits.most);
}

unsigned admit_rate(struct admit *a, uint64_t now_us)
{
    if (!a->limits.per_second)
        return 0;
    uint64_t period = 1000000ULL * a->members / a->limits.per_second;
    if (period > 1000000)
        period = 1000000; /* one a second at least */
    uint64_t burst = a->limits.burst / a->members;
    uint64_t tolerance = period * (burst > 1 ? burst : 1);
    if (a->tat_us < now_us)
        a->tat_us = now_us;
    /* The next one may come `tolerance` early, and itself takes one period. */
    if (a->tat_us + period - now_us > tolerance) {
        uint64_t wait = a->tat_us + period - now_us - tolerance;
        return (unsigned)((wait + 999999) / 1000000);
    }
    a->tat_us += period;
    return 0;
}

/* When a place is likely to be free: as long as it takes until one sandbox ends, as far as that is known. */
static unsigned admit_retry_after(const struct admit *a, uint64_t now_ms)
{
    if (!a->ended_ms)
        return ADMIT_RETRY_MAX_S;
    double gap = a->gap_ms.value, silence = (double)(now_ms - a->ended_ms);
    if (gap < silence)
        gap = silence;
    if (gap <= 1000)
        return 1;
    return gap >= ADMIT_RETRY_MAX_S * 1000.0 ? ADMIT_RETRY_MAX_S : (unsigned)((gap + 999) / 1000);
}

/* What to ask for where `lacking` is missing: a share that makes asking rare, or no more than that if the quota has room
 * for few such requests only. */
static uint64_t admit_chunk(const struct admit *a, int k, uint64_t need, uint64_t lacking)
{
    uint64_t most = a->limits.most.of[k], chunk = most / (4ULL * a->members);
    return most / 8 / a->members < need || chunk < lacking ? lacking : chunk;
}

struct admit_answer admit_take(struct admit *a, const struct amount *need, bool asked, uint64_t now_ms)
{
    struct admit_answer answer = {.code = ADMIT_OK};
    for (int k = AMOUNT_N - 1; k >= 0; k--) {
        uint64_t most = a->limits.most.of[k], wanted = a->used.of[k] + need->of[k];
        if (!most)
            continue;
        if (need->of[k] > most)
            return (struct admit_answer){.code = ADMIT_NEVER, .lacks = (enum amount_of)k};
        if (wanted <= a->granted.of[k])
            continue;
        answer.code = asked ? ADMIT_QUOTA : ADMIT_ASK;
        answer.lacks = (enum amount_of)k;
        answer.least.of[k] = wanted - a->granted.of[k];
        answer.ask.of[k] = admit_chunk(a, k, need->of[k], answer.least.of[k]);
    }
    if (answer.code == ADMIT_QUOTA)
        answer.retry_after_s = admit_retry_after(a, now_ms);
    if (answer.code == ADMIT_OK) {
        amount_add(&a->used, need);
        a->asked_ms = now_ms;
    }
    return answer;
}

void admit_give_back(struct admit *a, const struct amount *need, bool ended, uint64_t now_ms)
{
    amount_take(&a->used, need);
    if (!ended)
        return;
    if (a->ended_ms && now_ms >= a->ended_ms)
        meter_sample(&a->gap_ms, now_ms, GAP_HALF_LIFE_MS, (double)(now_ms - a->ended_ms));
    a->ended_ms = now_ms;
}

bool admit_surplus(struct admit *a, uint64_t now_ms, struct amount *ret)
{
    bool idle = now_ms - a->asked_ms > ADMIT_IDLE_MS, any = false;
    *ret = (struct amount){0};
    for (int k = 0; k < AMOUNT_N; k++) {
        if (a->granted.of[k] <= a->used.of[k])
            continue;
        uint64_t spare = a->granted.of[k] - a->used.of[k], most = a->limits.most.of[k],
                 chunk = most / (4ULL * a->members);
        /* One chunk is kept while there is something to do, so that a request now and then does not ask the engine each
         * time; and only what is more than two goes back, so that the engine is not told of each that ends. A quota of
         * which there is not that much for each orchestrator is not kept at all. */
        bool few = most / 8 / a->members == 0;
        if (!idle && !few && spare <= 2 * chunk)
            continue;
        uint64_t keep = idle || few ? 0 : chunk;
        ret->of[k] = spare - keep;
        a->granted.of[k] -= ret->of[k];
        any = true;
    }
    return any;
}

static const char *const amount_name[AMOUNT_N] = {"sandboxes", "processors", "memory", "disk"};

static void admit_say_amount(enum amount_of k, uint64_t value, struct buf *b)
{
    if (k == AMOUNT_MEMORY || k == AMOUNT_DISK)
        num_add_size(b, value);
    else if (k == AMOUNT_CPU_MILLI)
        buf_addf(b, "%g", (double)value / 1000);
    else
        buf_addf(b, "%llu", (unsigned long long)value);
}

void admit_say(const struct admit *a, const struct admit_answer *answer, struct buf *b)
{
    switch (answer->code) {
    case ADMIT_NEVER:
        buf_addf(b, "this sandbox needs more %s than the tenant may have: ", amount_name[answer->lacks]);
        admit_say_amount(answer->lacks, a->limits.most.of[answer->lacks], b);
        return;
    case ADMIT_QUOTA:
        buf_addf(b, "this tenant has no %s left: ", amount_name[answer->lacks]);
        admit_say_amount(answer->lacks, a->limits.most.of[answer->lacks], b);
        buf_addf(b, " are in use or promised; try again in %u s", answer->retry_after_s);
        return;
    case ADMIT_RATE:
        buf_addf(b, "this tenant may make %u sandboxes a second; try again in %u s", a->limits.per_second,
                 answer->retry_after_s);
        return;
    case ADMIT_OK:
    case ADMIT_ASK:
        break;
    }
    buf_adds(b, "admitted");
}

struct amount escrow_grant(struct escrow *e, const struct amount *most, const struct admit_answer *asked)
{
    struct amount given = {0};
    for (int k = 0; k < AMOUNT_N; k++) {
        uint64_t rest = e->sum.of[k] < most->of[k] ? most->of[k] - e->sum.of[k] : 0;
        if (rest < asked->least.of[k])
            return (struct amount){0};
        given.of[k] = asked->ask.of[k] < rest ? asked->ask.of[k] : rest;
    }
    amount_add(&e->sum, &given);
    return given;
}

void escrow_return(struct escrow *e, const struct amount *was, const struct amount *is)
{
    struct amount less = *was;
    amount_take(&less, is);
    amount_take(&e->sum, &less);
}

void escrow_recount(struct escrow *e, const struct amount *grants, uint32_t n, const struct amount *left)
{
    e->sum = *left;
    for (uint32_t i = 0; i < n; i++)
        amount_add(&e->sum, &grants[i]);
}
