/* Rates and quotas of a tenant at several orchestrators: what is admitted stays below the quota, whatever fails. */
#include "cluster-world.h"

#include "cluster/admit.h"

static const struct admit_limits hundred = {.most = {{100, 0, 0, 0}}};

static void says(const struct admit *a, const struct admit_answer *answer, const char *text)
{
    _cleanup_buf_ struct buf b = {0};
    admit_say(a, answer, &b);
    assert_string_equal(buf_str(&b), text);
}

/* --- rate ----------------------------------------------------------------------------------------------------------- */

static void a_rate_admits_its_burst_and_then_one_after_the_other(void **state)
{
    (void)state;
    struct admit a;
    struct admit_limits limits = {.per_second = 10, .burst = 20};
    admit_start(&a, &limits, 1);
    uint64_t now = 5000000;
    for (int i = 0; i < 20; i++)
        assert_int_equal(admit_rate(&a, now), 0);
    assert_int_equal(admit_rate(&a, now), 1);
    assert_int_equal(admit_rate(&a, now + 100000), 0);
    assert_int_equal(admit_rate(&a, now + 100001), 1);
    uint32_t admitted = 0;
    for (uint64_t t = now + 200000; t < now + 200000 + 60 * 1000000ULL; t += 10000)
        admitted += admit_rate(&a, t) == 0;
    assert_in_range(admitted, 599, 601);
}

static void orchestrators_share_a_rate_and_each_has_one_a_second_at_least(void **state)
{
    (void)state;
    for (uint32_t per_second = 1; per_second <= 12; per_second += 11) {
        uint32_t admitted = 0;
        for (int o = 0; o < 3; o++) {
            struct admit a;
            struct admit_limits limits = {.per_second = per_second, .burst = 1};
            admit_start(&a, &limits, 3);
            for (uint64_t t = 1000000; t < 61000000; t += 5000)
                admitted += admit_rate(&a, t) == 0;
        }
        assert_in_range(admitted, per_second == 1 ? 180 : 720, per_second == 1 ? 183 : 723);
    }
}

static void the_wait_that_a_rate_names_is_long_enough(void **state)
{
    (void)state;
    struct admit a;
    struct admit_limits limits = {.per_second = 3, .burst = 5};
    admit_start(&a, &limits, 2);
    struct draw d = {1};
    uint64_t now = 1000000;
    for (int i = 0; i < 10000; i++) {
        now += draw_below(&d, 700000);
        unsigned wait = admit_rate(&a, now);
        if (wait) {
            now += wait * 1000000ULL;
            assert_int_equal(admit_rate(&a, now), 0);
        }
    }
}

/* --- one orchestrator ----------------------------------------------------------------------------------------------- */

static void a_grant_is_asked_for_in_chunks_and_used_without_asking(void **state)
{
    (void)state;
    struct admit a;
    struct escrow e = {0};
    admit_start(&a, &hundred, 2);
    struct amount one = amount_make(1, 0, 0, 0);
    uint32_t asked = 0, admitted = 0;
    for (int i = 0; i < 200; i++) {
        struct admit_answer answer = admit_take(&a, &one, false, 1000);
        if (answer.code == ADMIT_ASK) {
            struct amount given = escrow_grant(&e, &hundred.most, &answer);
            amount_add(&a.granted, &given);
            asked += given.of[AMOUNT_SANDBOXES] > 0;
            answer = admit_take(&a, &one, true, 1000);
        }
        admitted += answer.code == ADMIT_OK;
    }
    assert_int_equal(admitted, 100);
    assert_int_equal(asked, 9); /* 12 at a time: a quarter of its half */
}

static void a_refusal_names_what_is_used_up_and_when_to_try_again(void **state)
{
    (void)state;
    struct admit a;
    struct admit_limits limits = {.most = amount_make(10, 8000, 4 * GIB, 0), .per_second = 7};
    admit_start(&a, &limits, 1);
    a.granted = limits.most;
    struct amount need = amount_make(1, 1000, 3 * GIB, 5 * GIB);
    assert_int_equal(admit_take(&a, &need, false, 1000).code, ADMIT_OK);
    struct admit_answer answer = admit_take(&a, &need, true, 1000);
    assert_int_equal(answer.code, ADMIT_QUOTA);
    says(&a, &answer, "this tenant has no memory left: 4 GiB are in use or promised; try again in 30 s");
    /* One ends every four seconds. */
    for (uint64_t t = 4000; t <= 200000; t += 4000)
        admit_give_back(&a, &(struct amount){0}, true, t);
    answer = admit_take(&a, &need, true, 201000);
    says(&a, &answer, "this tenant has no memory left: 4 GiB are in use or promised; try again in 4 s");
    answer = admit_take(&a, &need, true, 212000); /* and then none for a while */
    assert_int_equal(answer.retry_after_s, 12);
    need = amount_make(1, 9000, GIB, 0);
    answer = admit_take(&a, &need, false, 1000);
    says(&a, &answer, "this sandbox needs more processors than the tenant may have: 8");
    answer = (struct admit_answer){.code = ADMIT_RATE, .retry_after_s = 1};
    says(&a, &answer, "this tenant may make 7 sandboxes a second; try again in 1 s");
}

static void a_tenant_without_limits_asks_nobody(void **state)
{
    (void)state;
    struct admit a;
    admit_start(&a, &(struct admit_limits){0}, 3);
    struct amount need = amount_make(1, 1000, GIB, GIB), back;
    for (int i = 0; i < 100000; i++)
        assert_int_equal(admit_take(&a, &need, false, 1000).code, ADMIT_OK);
    assert_false(admit_surplus(&a, 100000, &back));
    assert_int_equal(admit_rate(&a, 1), 0);
}

static void what_is_not_used_goes_back_after_a_while(void **state)
{
    (void)state;
    struct admit a;
    struct escrow e = {.sum = hundred.most};
    admit_start(&a, &hundred, 2);
    a.granted = hundred.most;
    struct amount some = amount_make(30, 0, 0, 0), back;
    assert_int_equal(admit_take(&a, &some, false, 1000).code, ADMIT_OK);
    struct amount was = a.granted;
    assert_true(admit_surplus(&a, 2000, &back)); /* more than two chunks at once */
    assert_int_equal(a.granted.of[AMOUNT_SANDBOXES], 42);
    assert_false(admit_surplus(&a, 3000, &back));
    assert_true(admit_surplus(&a, 1001 + ADMIT_IDLE_MS, &back));
    assert_int_equal(a.granted.of[AMOUNT_SANDBOXES], 30);
    escrow_return(&e, &was, &a.granted);
    assert_int_equal(e.sum.of[AMOUNT_SANDBOXES], 30);
}

/* --- several orchestrators, an engine, and everything that fails
 * ------------------------------------------------------- */

enum { ORCHESTRATORS = 3, RUNNING_MAX = 400 };

struct running {
    bool there, on_its_way;
    uint32_t owner; /* number of its orchestrator's life */
    struct amount need;
    uint64_t arrives_ms;
};
struct orchestrator {
    struct admit admit;
    uint32_t life;
    bool unsure;  /* the engine did not answer: its record of this grant is not known */
    bool telling; /* the engine's record is still to be set to what is left */
};
struct world {
    struct draw d;
    uint64_t now;
    struct admit_limits limits;
    struct escrow sum;                  /* in the engine */
    struct amount grant[ORCHESTRATORS]; /* in the engine, of those that live */
    struct orchestrator o[ORCHESTRATORS];
    uint32_t lives;
    uint64_t recount_ms; /* 0: no one died */
    struct running all[RUNNING_MAX];
    uint32_t admitted, refused, crashed;
};

static bool world_alive(const struct world *w, uint32_t life)
{
    for (int i = 0; i < ORCHESTRATORS; i++)
        if (w->o[i].life == life)
            return true;
    return false;
}

/* Each of these is one transaction; it may happen and look as if it had not. */
static void world_settle(struct world *w, int i)
{
    struct orchestrator *o = &w->o[i];
    if (o->unsure) {
        o->admit.granted = w->grant[i];
        o->unsure = false;
    }
    if (o->telling) {
        escrow_return(&w->sum, &w->grant[i], &o->admit.granted);
        w->grant[i] = o->admit.granted;
        o->telling = draw_below(&w->d, 5) == 0; /* the answer was lost: told once more */
    }
}

static bool world_ask(struct world *w, int i, const struct admit_answer *asked)
{
    struct orchestrator *o = &w->o[i];
    bool happens = draw_below(&w->d, 8), seen = draw_below(&w->d, 8);
    struct amount given = {0};
    if (happens) {
        given = escrow_grant(&w->sum, &w->limits.most, asked);
        amount_add(&w->grant[i], &given);
    }
    if (!seen)
        o->unsure = true;
    else
        amount_add(&o->admit.granted, &given);
    return seen;
}

static void world_create(struct world *w, int i)
{
    struct orchestrator *o = &w->o[i];
    struct amount need = amount_make(1, 1000ULL * (1 + draw_below(&w->d, 4)), (1 + draw_below(&w->d, 4)) * GIB, 0);
    struct running *r = w->all;
    while (r < w->all + RUNNING_MAX && r->there)
        r++;
    if (r == w->all + RUNNING_MAX)
        return;
    world_settle(w, i);
    if (o->telling)
        return;
    struct admit_answer answer = admit_take(&o->admit, &need, false, w->now);
    if (answer.code == ADMIT_ASK && world_ask(w, i, &answer))
        answer = admit_take(&o->admit, &need, true, w->now);
    w->refused += answer.code == ADMIT_QUOTA;
    if (answer.code != ADMIT_OK)
        return;
    w->admitted++;
    *r = (struct running){true, true, o->life, need, w->now + draw_below(&w->d, 30000)};
}

static void world_end(struct world *w)
{
    struct running *r = &w->all[draw_below(&w->d, RUNNING_MAX)];
    if (!r->there || r->on_its_way)
        return;
    r->there = false;
    for (int i = 0; i < ORCHESTRATORS; i++)
        if (w->o[i].life == r->owner)
            admit_give_back(&w->o[i].admit, &r->need, true, w->now);
}

static void world_return(struct world *w, int i)
{
    struct amount back;
    world_settle(w, i);
    if (admit_surplus(&w->o[i].admit, w->now, &back))
        w->o[i].telling = true;
}

static void world_crash(struct world *w, int i)
{
    w->crashed++;
    w->grant[i] = (struct amount){0}; /* its key goes with its lease; the sum stays */
    w->o[i] = (struct orchestrator){.life = ++w->lives};
    admit_start(&w->o[i].admit, &w->limits, ORCHESTRATORS);
    w->recount_ms = w->now + ADMIT_RECOUNT_MS;
}

static void world_recount(struct world *w)
{
    struct amount left = {0};
    for (struct running *r = w->all; r < w->all + RUNNING_MAX; r++)
        if (r->there && !r->on_its_way && !world_alive(w, r->owner))
            amount_add(&left, &r->need);
    escrow_recount(&w->sum, w->grant, ORCHESTRATORS, &left);
}

static struct amount world_running(const struct world *w)
{
    struct amount sum = {0};
    for (const struct running *r = w->all; r < w->all + RUNNING_MAX; r++)
        if (r->there)
            amount_add(&sum, &r->need);
    return sum;
}

static void world_step(struct world *w)
{
    int i = (int)draw_below(&w->d, ORCHESTRATORS);
    w->now += draw_below(&w->d, 200);
    for (struct running *r = w->all; r < w->all + RUNNING_MAX; r++)
        if (r->on_its_way && r->arrives_ms <= w->now)
            r->on_its_way = false;
    switch (draw_below(&w->d, 16)) {
    case 0:
    case 1:
        world_return(w, i);
        break;
    case 2:
    case 3:
    case 4:
    case 5:
        for (int n = 0; n < 12; n++)
            world_end(w);
        break;
    case 6:
        if (draw_below(&w->d, 60) == 0)
            world_crash(w, i);
        break;
    default:
        world_create(w, i);
    }
    if (w->recount_ms && w->now >= w->recount_ms) {
        world_recount(w);
        w->recount_ms = w->now + 15000;
    }
}

static void world_start(struct world *w, uint64_t seed)
{
    *w = (struct world){.d = {seed}, .now = 1000000, .limits = {.most = amount_make(150, 200000, 300 * GIB, 0)}};
    for (int i = 0; i < ORCHESTRATORS; i++) {
        w->o[i].life = ++w->lives;
        admit_start(&w->o[i].admit, &w->limits, ORCHESTRATORS);
    }
}

static void no_failure_lets_a_tenant_have_more_than_its_quota(void **state)
{
    (void)state;
    struct world w;
    uint32_t admitted = 0, refused = 0, crashed = 0;
    for (uint64_t seed = 0; seed < 8; seed++) {
        world_start(&w, seed);
        for (int i = 0; i < 4000; i++) {
            world_step(&w);
            struct amount sum = world_running(&w);
            for (int k = 0; k < AMOUNT_DISK; k++)
                assert_true(sum.of[k] <= w.limits.most.of[k]);
        }
        admitted += w.admitted;
        refused += w.refused;
        crashed += w.crashed;
    }
    assert_true(admitted > 5000 && refused > 1000 && crashed > 8);
}

static void after_failures_the_whole_quota_is_there_again(void **state)
{
    (void)state;
    struct world w;
    world_start(&w, 99);
    for (int i = 0; i < 6000; i++)
        world_step(&w);
    for (struct running *r = w.all; r < w.all + RUNNING_MAX; r++)
        if (r->there) {
            r->there = false;
            for (int i = 0; i < ORCHESTRATORS; i++)
                if (w.o[i].life == r->owner)
                    admit_give_back(&w.o[i].admit, &r->need, true, w.now);
        }
    w.now += ADMIT_IDLE_MS + ADMIT_RECOUNT_MS + 1;
    for (int i = 0; i < ORCHESTRATORS; i++)
        for (int n = 0; n < 50; n++)
            world_return(&w, i);
    world_recount(&w);
    for (int i = 0; i < ORCHESTRATORS; i++)
        assert_int_equal(w.o[i].admit.used.of[AMOUNT_SANDBOXES], 0);
    assert_int_equal(w.sum.sum.of[AMOUNT_SANDBOXES], 0);
    assert_int_equal(w.sum.sum.of[AMOUNT_MEMORY], 0);
    /* One orchestrator can have all of it. */
    uint32_t got = 0;
    struct amount one = amount_make(1, 1000, GIB, 0);
    for (int n = 0; n < 400; n++) {
        struct admit_answer answer = admit_take(&w.o[0].admit, &one, false, w.now);
        if (answer.code == ADMIT_ASK) {
            struct amount given = escrow_grant(&w.sum, &w.limits.most, &answer);
            amount_add(&w.o[0].admit.granted, &given);
            answer = admit_take(&w.o[0].admit, &one, true, w.now);
        }
        got += answer.code == ADMIT_OK;
    }
    assert_int_equal(got, 150);
}

/* The same world with a recount that does not wait: what is on its way of a dead orchestrator is then admitted twice. */
static void a_recount_that_does_not_wait_is_caught(void **state)
{
    (void)state;
    struct world w;
    for (uint64_t seed = 0; seed < 50; seed++) {
        world_start(&w, seed);
        for (int i = 0; i < 4000; i++) {
            world_step(&w);
            if (w.recount_ms > w.now + 15000)
                w.recount_ms = w.now;
            struct amount sum = world_running(&w);
            for (int k = 0; k < AMOUNT_DISK; k++)
                if (sum.of[k] > w.limits.most.of[k])
                    return;
        }
    }
    fail_msg("the quota held without the wait; the world is too kind");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rate_admits_its_burst_and_then_one_after_the_other),
        cmocka_unit_test(orchestrators_share_a_rate_and_each_has_one_a_second_at_least),
        cmocka_unit_test(the_wait_that_a_rate_names_is_long_enough),
        cmocka_unit_test(a_grant_is_asked_for_in_chunks_and_used_without_asking),
        cmocka_unit_test(a_refusal_names_what_is_used_up_and_when_to_try_again),
        cmocka_unit_test(a_tenant_without_limits_asks_nobody),
        cmocka_unit_test(what_is_not_used_goes_back_after_a_while),
        cmocka_unit_test(no_failure_lets_a_tenant_have_more_than_its_quota),
        cmocka_unit_test(after_failures_the_whole_quota_is_there_again),
        cmocka_unit_test(a_recount_that_does_not_wait_is_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
