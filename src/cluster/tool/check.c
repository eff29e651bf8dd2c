/* check.c - `hutch cluster check`: does this engine keep the promises of facts.h? */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/random.h"
#include "cluster/tool/tool.h"

enum { CHECK_MS = 20 * 1000, CHECK_KEYS = 3, CHECK_TTL_S = 10 };

struct check {
    struct loop *loop;
    struct facts *facts;
    char prefix[32], key[CHECK_KEYS][40];
    bool late;
    /* The last answer. */
    bool answered, more;
    enum facts_result result;
    char why[1024];
    uint64_t revision, lease;
    size_t n;
    /* What the watch told. */
    unsigned puts, removes;
    uint64_t current;
};

static void check_on_answer(void *arg, const struct facts_answer *a)
{
    struct check *c = arg;
    c->answered = true;
    c->result = a->result;
    (void)snprintf(c->why, sizeof c->why, "%s", a->why);
    c->revision = a->revision;
    c->lease = a->lease;
    c->n = a->n;
    c->more = a->more;
}

static void check_on_late(void *arg) { ((struct check *)arg)->late = true; }

/* Runs the loop until there is an answer, or until the watch has told a revision. False: it did not come in time. */
static bool check_wait(struct check *c, const bool *answered, uint64_t current)
{
    struct err err = {0};
    loop_id timer = loop_timer(c->loop, CHECK_MS, check_on_late, c);
    c->late = false;
    while (!c->late && !(answered ? *answered : c->current >= current))
        if (loop_step(c->loop, -1, &err) < 0) {
            (void)snprintf(c->why, sizeof c->why, "%s", err.msg);
            return false;
        }
    loop_timer_del(c->loop, timer);
    if (c->late)
        (void)snprintf(c->why, sizeof c->why, "%s: nothing came within %d s", facts_engine(c->facts), CHECK_MS / 1000);
    return !c->late;
}

/* Whether the call that was just made ended like this. */
static bool check_ends(struct check *c, enum facts_result want)
{
    bool ended = check_wait(c, &c->answered, 0);
    c->answered = false;
    if (!ended || c->result == want)
        return ended;
    if (!c->why[0])
        (void)snprintf(c->why, sizeof c->why, "%s: answered \"%s\" where \"%s\" is right", facts_engine(c->facts),
                       facts_result_name(c->result), facts_result_name(want));
    return false;
}

static bool check_put(struct check *c, unsigned key, const char *value, uint64_t lease, const struct facts_test *test,
                      enum facts_result want)
{
    const struct facts_write w = {c->key[key], value, value ? strlen(value) : 0, lease};
    facts_change(c->facts, test, test ? 1 : 0, &w, 1, check_on_answer, c);
    return check_ends(c, want);
}

static bool check_present(struct check *c, unsigned key, size_t want)
{
    facts_get(c->facts, c->key[key], 0, check_on_answer, c);
    if (!check_ends(c, FACTS_OK))
        return false;
    if (c->n != want)
        (void)snprintf(c->why, sizeof c->why, "%s: a fact is %s", facts_engine(c->facts),
                       want ? "not there after it was written" : "still there after it was removed");
    return c->n == want;
}

/* --- the promises
 * ----------------------------------------------------------------------------------------------------- */

static bool check_facts(struct check *c)
{
    for (unsigned i = 0; i < CHECK_KEYS; i++)
        if (!check_put(c, i, "a value", 0, NULL, FACTS_OK) || !check_present(c, i, 1))
            return false;
    return true;
}

static bool check_tests(struct check *c)
{
    uint64_t revision;
    if (!check_put(c, 0, "one", 0, NULL, FACTS_OK))
        return false;
    revision = c->revision;
    return check_put(c, 0, "two", 0, &(struct facts_test){c->key[0], revision}, FACTS_OK) &&
           check_put(c, 0, "late", 0, &(struct facts_test){c->key[0], revision}, FACTS_DIFFERS) &&
           check_put(c, 0, "late", 0, &(struct facts_test){c->key[0], 0}, FACTS_DIFFERS);
}

static bool check_pages(struct check *c)
{
    struct facts_page p = {.prefix = c->prefix, .limit = CHECK_KEYS - 1};
    facts_range(c->facts, &p, check_on_answer, c);
    if (!check_ends(c, FACTS_OK))
        return false;
    bool first = c->n == p.limit && c->more;
    p.revision = c->revision;
    p.after = c->key[CHECK_KEYS - 2];
    if (!check_put(c, CHECK_KEYS - 1, NULL, 0, NULL, FACTS_OK)) /* the first page showed a moment before this */
        return false;
    facts_range(c->facts, &p, check_on_answer, c);
    if (!check_ends(c, FACTS_OK))
        return false;
    if (!first || c->n != 1 || c->more)
        (void)snprintf(c->why, sizeof c->why, "%s: two pages do not show the facts of one moment",
                       facts_engine(c->facts));
    return first && c->n == 1 && !c->more;
}

static void check_on_restart(void *arg) { ((struct check *)arg)->puts = 0; }
static void check_on_put(void *arg, const struct facts_fact *f)
{
    (void)f;
    ((struct check *)arg)->puts++;
}
static void check_on_remove(void *arg, const char *key, uint64_t revision)
{
    (void)key, (void)revision;
    ((struct check *)arg)->removes++;
}
static void check_on_current(void *arg, uint64_t revision) { ((struct check *)arg)->current = revision; }
static const struct facts_events check_events = {.on_restart = check_on_restart,
                                                 .on_put = check_on_put,
                                                 .on_remove = check_on_remove,
                                                 .on_current = check_on_current};

static bool check_watch(struct check *c)
{
    struct facts_watch *w = facts_watch(c->facts, c->prefix, 0, &check_events, c);
    bool good = w && check_wait(c, NULL, 1) && check_put(c, 1, "told", 0, NULL, FACTS_OK) &&
                check_put(c, 1, NULL, 0, NULL, FACTS_OK) && check_wait(c, NULL, c->revision);
    facts_watch_free(w);
    if (good && (c->puts != CHECK_KEYS || c->removes != 1)) { /* two were there: the third was removed before */
        (void)snprintf(c->why, sizeof c->why, "%s: a watch told %u writes and %u removals, not %d and 1",
                       facts_engine(c->facts), c->puts, c->removes, CHECK_KEYS);
        return false;
    }
    return good;
}

static bool check_lease(struct check *c)
{
    facts_lease(c->facts, CHECK_TTL_S, check_on_answer, c);
    if (!check_ends(c, FACTS_OK))
        return false;
    uint64_t lease = c->lease;
    if (!check_put(c, 2, "leased", lease, NULL, FACTS_OK))
        return false;
    facts_lease_keep(c->facts, lease, check_on_answer, c);
    if (!check_ends(c, FACTS_OK))
        return false;
    facts_lease_end(c->facts, lease, check_on_answer, c);
    return check_ends(c, FACTS_OK) && check_present(c, 2, 0);
}

static bool check_clean(struct check *c)
{
    for (unsigned i = 0; i < CHECK_KEYS; i++)
        if (!check_put(c, i, NULL, 0, NULL, FACTS_OK) || !check_present(c, i, 0))
            return false;
    return true;
}

int cluster_check(struct loop *l, struct facts *f)
{
    static const struct {
        const char *what;
        bool (*run)(struct check *c);
    } steps[] = {
        {"writes and reads facts", check_facts},
        {"makes a change only if its tests hold", check_tests},
        {"shows the facts of one moment page by page", check_pages},
        {"tells changes to a watch", check_watch},
        {"ends a lease and removes its facts", check_lease},
        {"removes facts", check_clean},
    };
    struct check c = {.loop = l, .facts = f};
    char random[17];
    int failed = 0;
    random_hex(random, 8);
    (void)snprintf(c.prefix, sizeof c.prefix, "check/%s/", random);
    for (unsigned i = 0; i < CHECK_KEYS; i++)
        (void)snprintf(c.key[i], sizeof c.key[i], "%s%u", c.prefix, i);
    for (size_t i = 0; i < ARRAY_LEN(steps) && !c.late; i++) { /* an answer may come when it is not expected any more */
        uint64_t begin = clock_boot_ms();
        c.why[0] = 0;
        bool good = steps[i].run(&c);
        failed += !good;
        if (good)
            printf("ok      %5llu ms  %s\n", (unsigned long long)(clock_boot_ms() - begin), steps[i].what);
        else
            printf("FAILED            %s: %s\n", steps[i].what, c.why);
        (void)fflush(stdout);
    }
    return failed;
}
