/* facts-suite.c - what every engine promises. */
#include "facts-suite.h"

#include "base/mem.h"
#include "base/random.h"

struct loop *loop;
struct facts *facts;

/* --- a call at a time
 * ------------------------------------------------------------------------------------------------- */

void reply_start(struct reply *r)
{
    facts_rows_done(&r->rows);
    *r = (struct reply){0};
}

void reply_done(void *arg, const struct facts_answer *a)
{
    struct reply *r = arg;
    r->calls++;
    r->result = a->result;
    r->revision = a->revision;
    r->lease = a->lease;
    r->ttl_s = a->ttl_s;
    r->more = a->more;
    (void)snprintf(r->why, sizeof r->why, "%s", a->why);
    for (size_t i = 0; i < a->n; i++)
        facts_rows_add(&r->rows, &a->v[i]);
}

void reply_wait(struct reply *r)
{
    WAIT_UNTIL(r->calls > 0);
    assert_int_equal(r->calls, 1);
}

void reply_free(struct reply *r) { facts_rows_done(&r->rows); }

static unsigned test_number;
static char test_run[9]; /* an engine may hold the keys of an earlier run */

void new_keys(void)
{
    if (!test_run[0])
        random_hex(test_run, 4);
    test_number++;
}

const char *key_of(const char *name)
{
    static char ring[16][128];
    static unsigned at;
    char *ret = ring[at++ % 16];
    (void)snprintf(ret, sizeof ring[0], "test/%s/%u/%s", test_run, test_number, name);
    return ret;
}

static enum facts_result write_one(const struct facts_test *test, const char *key, const char *value, uint64_t *ret)
{
    _cleanup_reply_ struct reply r = {0};
    struct facts_write w = {key, value, value ? strlen(value) : 0, 0};
    facts_change(facts, test, test ? 1 : 0, &w, 1, reply_done, &r);
    reply_wait(&r);
    if (ret)
        *ret = r.revision;
    if (r.result == FACTS_OK)
        assert_string_equal(r.why, "");
    else
        assert_true(r.why[0] != 0);
    return r.result;
}

enum facts_result put(const char *key, const char *value) { return write_one(NULL, key, value, NULL); }

enum facts_result put_if(const char *key, uint64_t revision, const char *value)
{
    return write_one(&(struct facts_test){key, revision}, key, value, NULL);
}

uint64_t put_ok(const char *key, const char *value)
{
    uint64_t revision = 0;
    assert_int_equal(write_one(NULL, key, value, &revision), FACTS_OK);
    assert_true(revision > 0);
    return revision;
}

void remove_ok(const char *key) { assert_int_equal(write_one(NULL, key, NULL, NULL), FACTS_OK); }

static struct reply got;

static const struct facts_fact *get_fact(const char *key)
{
    reply_start(&got);
    facts_get(facts, key, 0, reply_done, &got);
    reply_wait(&got);
    if (got.result != FACTS_OK)
        fail_msg("get %s: %s", key, got.why);
    assert_true(got.rows.n <= 1);
    return got.rows.n ? &got.rows.v[0] : NULL;
}

const char *get(const char *key)
{
    const struct facts_fact *f = get_fact(key);
    return f ? f->value : "";
}

uint64_t revision_of(const char *key)
{
    const struct facts_fact *f = get_fact(key);
    return f ? f->revision : 0;
}

/* --- a watch that keeps what it was told
 * ------------------------------------------------------------------------------ */

static struct facts_fact *mirror_find(const struct mirror *m, const char *key)
{
    for (size_t i = 0; i < m->rows.n; i++)
        if (strcmp(m->rows.v[i].key, key) == 0)
            return &m->rows.v[i];
    return NULL;
}

static void mirror_drop(struct mirror *m, const char *key)
{
    struct facts_fact *f = mirror_find(m, key);
    if (!f)
        return;
    free((char *)(uintptr_t)f->key);
    *f = m->rows.v[--m->rows.n];
}

/* A test may want the watch gone in the middle of a callback. */
static void mirror_count(struct mirror *m)
{
    if (++m->told == m->free_at) {
        facts_watch_free(m->watch);
        m->watch = NULL;
    }
}

static void mirror_on_restart(void *arg)
{
    struct mirror *m = arg;
    m->restarts++;
    facts_rows_done(&m->rows);
    buf_adds(&m->log, "! ");
    m->last = 0;
    mirror_count(m);
}

static void mirror_on_put(void *arg, const struct facts_fact *f)
{
    struct mirror *m = arg;
    _cleanup_free_ char *key = xstrdup(f->key);
    const char *name = strrchr(key, '/');
    assert_non_null(f->value);
    mirror_drop(m, key);
    facts_rows_add(&m->rows, f);
    buf_addf(&m->log, "+%s=%.20s ", name ? name + 1 : key, (const char *)m->rows.v[m->rows.n - 1].value);
    mirror_count(m);
}

static void mirror_on_remove(void *arg, const char *key, uint64_t revision)
{
    struct mirror *m = arg;
    const char *name = strrchr(key, '/');
    assert_true(revision >= m->last);
    m->last = revision;
    mirror_drop(m, key);
    buf_addf(&m->log, "-%s ", name ? name + 1 : key);
    mirror_count(m);
}

static void mirror_on_current(void *arg, uint64_t revision)
{
    struct mirror *m = arg;
    m->currents++;
    assert_true(revision >= m->revision);
    m->revision = revision;
    buf_adds(&m->log, "| ");
    mirror_count(m);
}

static void mirror_on_stale(void *arg, const char *why)
{
    (void)why;
    ((struct mirror *)arg)->stales++;
}

const struct facts_events mirror_events = {mirror_on_restart, mirror_on_put, mirror_on_remove, mirror_on_current,
                                           mirror_on_stale};

void mirror_start(struct mirror *m, const char *prefix, uint64_t from)
{
    m->watch = facts_watch(facts, prefix, from, &mirror_events, m);
    assert_non_null(m->watch);
    if (from == 0)
        WAIT_UNTIL(m->currents > 0);
}

void mirror_free(struct mirror *m)
{
    facts_watch_free(m->watch);
    facts_rows_done(&m->rows);
    buf_done(&m->log);
}

const char *mirror_value(const struct mirror *m, const char *key)
{
    const struct facts_fact *f = mirror_find(m, key);
    return f ? f->value : NULL;
}

void mirror_assert_true(struct mirror *m, const char *prefix)
{
    _cleanup_reply_ struct reply r = {0};
    struct facts_page p = {.prefix = prefix, .limit = FACTS_PAGE_MAX};
    facts_range(facts, &p, reply_done, &r);
    reply_wait(&r);
    assert_int_equal(r.result, FACTS_OK);
    assert_false(r.more);
    for (size_t i = 0; i < r.rows.n; i++) {
        const struct facts_fact *a = &r.rows.v[i], *b = mirror_find(m, a->key);
        assert_non_null(b);
        assert_true(b->revision == a->revision && b->created == a->created && b->lease == a->lease && b->n == a->n);
        assert_memory_equal(a->value, b->value, a->n);
    }
    assert_int_equal(m->rows.n, r.rows.n);
}

/* --- facts and changes
 * ------------------------------------------------------------------------------------------------ */

static void a_fact_is_written_read_and_removed(void **state)
{
    (void)state;
    new_keys();
    const char *k = key_of("k");
    assert_string_equal(get(k), "");
    uint64_t first = put_ok(k, "one");
    const struct facts_fact *f = get_fact(k);
    assert_non_null(f);
    assert_string_equal(f->key, k);
    assert_string_equal(f->value, "one");
    assert_true(f->n == 3 && f->revision == first && f->created == first && f->lease == 0);
    uint64_t second = put_ok(k, "two");
    assert_true(second > first);
    f = get_fact(k);
    assert_true(f->revision == second && f->created == first);
    remove_ok(k);
    assert_null(get_fact(k));
    uint64_t third = put_ok(k, "three");
    f = get_fact(k);
    assert_true(f->created == third && third > second);
    assert_int_equal(put(k, ""), FACTS_OK);
    f = get_fact(k);
    assert_non_null(f);
    assert_int_equal(f->n, 0);
}

static void a_value_has_any_bytes_up_to_the_limit(void **state)
{
    (void)state;
    new_keys();
    _cleanup_reply_ struct reply r = {0};
    _cleanup_free_ char *big = xmalloc(FACTS_VALUE_MAX);
    random_bytes(big, FACTS_VALUE_MAX);
    big[0] = 0;
    struct facts_write w = {key_of("big"), big, FACTS_VALUE_MAX, 0};
    facts_change(facts, NULL, 0, &w, 1, reply_done, &r);
    reply_wait(&r);
    assert_int_equal(r.result, FACTS_OK);
    const struct facts_fact *f = get_fact(w.key);
    assert_non_null(f);
    assert_int_equal(f->n, FACTS_VALUE_MAX);
    assert_memory_equal(f->value, big, FACTS_VALUE_MAX);
}

static void a_change_happens_as_a_whole_or_not_at_all(void **state)
{
    (void)state;
    new_keys();
    const char *a = key_of("a"), *b = key_of("b"), *c = key_of("c");
    uint64_t revision = put_ok(a, "1");
    put_ok(b, "1");
    for (int good = 0; good < 2; good++) {
        _cleanup_reply_ struct reply r = {0};
        struct facts_test tests[] = {{a, revision}, {c, good ? 0 : 7}};
        struct facts_write writes[] = {{a, "2", 1, 0}, {b, NULL, 0, 0}, {c, "2", 1, 0}};
        facts_change(facts, tests, 2, writes, 3, reply_done, &r);
        reply_wait(&r);
        assert_int_equal(r.result, good ? FACTS_OK : FACTS_DIFFERS);
        assert_string_equal(get(a), good ? "2" : "1");
        assert_string_equal(get(b), good ? "" : "1");
        assert_string_equal(get(c), good ? "2" : "");
        if (good) {
            assert_true(revision_of(a) == r.revision);
            assert_true(revision_of(c) == r.revision);
        }
    }
}

static void tests_compare_revisions(void **state)
{
    (void)state;
    new_keys();
    const char *k = key_of("k");
    assert_int_equal(put_if(k, 1, "x"), FACTS_DIFFERS);
    assert_int_equal(put_if(k, 0, "one"), FACTS_OK);
    assert_int_equal(put_if(k, 0, "again"), FACTS_DIFFERS);
    uint64_t revision = revision_of(k);
    assert_int_equal(put_if(k, revision, "two"), FACTS_OK);
    assert_int_equal(put_if(k, revision, "late"), FACTS_DIFFERS);
    assert_string_equal(get(k), "two");
    assert_int_equal(put_if(k, revision_of(k), NULL), FACTS_OK);
    assert_int_equal(put_if(k, 0, "three"), FACTS_OK);
}

static void of_many_changes_from_one_revision_one_is_made(void **state)
{
    (void)state;
    new_keys();
    enum { RIVALS = 40 };
    struct reply r[RIVALS] = {0};
    const char *k = key_of("k");
    uint64_t revision = put_ok(k, "0");
    int won = 0, winner = -1;
    for (int i = 0; i < RIVALS; i++) {
        char value[12];
        (void)snprintf(value, sizeof value, "%d", i);
        struct facts_test t = {k, revision};
        struct facts_write w = {k, value, strlen(value), 0};
        facts_change(facts, &t, 1, &w, 1, reply_done, &r[i]);
    }
    for (int i = 0; i < RIVALS; i++) {
        reply_wait(&r[i]);
        assert_true(r[i].result == FACTS_OK || r[i].result == FACTS_DIFFERS);
        won += r[i].result == FACTS_OK;
        winner = r[i].result == FACTS_OK ? i : winner;
    }
    assert_int_equal(won, 1);
    char value[12];
    (void)snprintf(value, sizeof value, "%d", winner);
    assert_string_equal(get(k), value);
}

static void removing_nothing_changes_nothing(void **state)
{
    (void)state;
    new_keys();
    uint64_t before = put_ok(key_of("other"), "1"), after;
    assert_int_equal(write_one(NULL, key_of("k"), NULL, &after), FACTS_OK);
    assert_true(after == before);
}

/* --- limits
 * ----------------------------------------------------------------------------------------------------------- */

static void assert_refused(struct reply *r, const char *why)
{
    assert_int_equal(r->calls, 0); /* never from inside the call */
    reply_wait(r);
    assert_int_equal(r->result, FACTS_REFUSED);
    if (!strstr(r->why, why))
        fail_msg("\"%s\" does not say \"%s\"", r->why, why);
    reply_start(r);
}

static void what_cannot_be_right_is_refused(void **state)
{
    (void)state;
    new_keys();
    _cleanup_reply_ struct reply r = {0};
    _cleanup_free_ char *big = xcalloc(1, FACTS_VALUE_MAX + 1), *longkey = xcalloc(1, FACTS_KEY_MAX + 2);
    struct facts_write many[FACTS_WRITES_MAX + 1] = {0};
    struct facts_test tests[FACTS_TESTS_MAX + 1] = {0};
    memset(longkey, 'k', FACTS_KEY_MAX + 1);
    const char *const bad[] = {"", "a b", "a\nb", "\xc3\xa4", longkey};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        facts_get(facts, bad[i], 0, reply_done, &r);
        assert_refused(&r, "a key has 1 to 512");
    }
    facts_change(facts, NULL, 0, &(struct facts_write){"k", big, FACTS_VALUE_MAX + 1, 0}, 1, reply_done, &r);
    assert_refused(&r, "the value of k has 393217 bytes");
    for (size_t i = 0; i < ARRAY_LEN(many); i++)
        many[i] = (struct facts_write){key_of("k"), "", 0, 0}; /* a ring: some of them are the same */
    facts_change(facts, NULL, 0, many, ARRAY_LEN(many), reply_done, &r);
    assert_refused(&r, "1 to 32 writes");
    facts_change(facts, NULL, 0, many, 0, reply_done, &r);
    assert_refused(&r, "1 to 32 writes");
    facts_change(facts, tests, ARRAY_LEN(tests), many, 1, reply_done, &r);
    assert_refused(&r, "up to 32 tests");
    facts_change(facts, NULL, 0, many, 2, reply_done, &r);
    assert_refused(&r, "twice");
    const struct facts_write three[] = {
        {"a", big, FACTS_VALUE_MAX, 0}, {"b", big, FACTS_VALUE_MAX, 0}, {"c", big, FACTS_VALUE_MAX, 0}};
    facts_change(facts, NULL, 0, three, 3, reply_done, &r);
    assert_refused(&r, "and can write 1048576");
    facts_range(facts, &(struct facts_page){.prefix = "a", .limit = FACTS_PAGE_MAX + 1}, reply_done, &r);
    assert_refused(&r, "1 to 500 facts");
    facts_range(facts, &(struct facts_page){.prefix = "a", .limit = 0}, reply_done, &r);
    assert_refused(&r, "1 to 500 facts");
    facts_range(facts, &(struct facts_page){.prefix = "a", .after = "b", .limit = 1}, reply_done, &r);
    assert_refused(&r, "does not begin with");
    facts_lease(facts, 1, reply_done, &r);
    assert_refused(&r, "2 to 604800 seconds");
    assert_null(facts_watch(facts, "a b", 0, &mirror_events, NULL));
}

/* --- pages
 * ------------------------------------------------------------------------------------------------------------ */

static void take_page(struct reply *r, struct facts_page *p)
{
    reply_start(r);
    facts_range(facts, p, reply_done, r);
    reply_wait(r);
}

static void pages_show_one_moment(void **state)
{
    (void)state;
    new_keys();
    enum { FACTS = 25 };
    _cleanup_reply_ struct reply r = {0};
    _cleanup_free_ char *prefix = xstrdup(key_of("p/")), *after = NULL;
    int seen = 0;
    for (int i = 0; i < FACTS; i++) {
        char name[20];
        (void)snprintf(name, sizeof name, "p/%02d", i);
        put_ok(key_of(name), "old");
    }
    put_ok(key_of("p"), "before the prefix");
    put_ok(key_of("p0"), "behind it");
    struct facts_page p = {.prefix = prefix, .limit = 10};
    do {
        take_page(&r, &p);
        assert_int_equal(r.result, FACTS_OK);
        assert_int_equal(r.rows.n, seen < 20 ? 10 : 5);
        for (size_t i = 0; i < r.rows.n; i++, seen++) {
            char name[20];
            (void)snprintf(name, sizeof name, "p/%02d", seen);
            assert_string_equal(r.rows.v[i].key, key_of(name));
            assert_string_equal(r.rows.v[i].value, "old");
        }
        p.revision = p.revision ? p.revision : r.revision;
        assert_true(r.revision >= p.revision);
        free(after);
        p.after = after = xstrdup(r.rows.v[r.rows.n - 1].key);
        put_ok(key_of("p/00"), "new"); /* behind us */
        put_ok(key_of("p/24"), "new"); /* before us */
        put_ok(key_of("p/245"), "new");
        remove_ok(key_of("p/15"));
        put_ok(key_of("p/15"), "new");
    } while (r.more);
    assert_int_equal(seen, FACTS);
    take_page(&r, &(struct facts_page){.prefix = prefix, .limit = 500, .flags = FACTS_MAY_BE_OLD});
    assert_int_equal(r.rows.n, FACTS + 1);
    assert_false(r.more);
}

static void a_page_of_a_forgotten_or_future_moment_is_not_given(void **state)
{
    (void)state;
    new_keys();
    _cleanup_reply_ struct reply r = {0};
    _cleanup_free_ char *prefix = xstrdup(key_of(""));
    uint64_t first = put_ok(key_of("k"), "1"), second = put_ok(key_of("k"), "2"), last = put_ok(key_of("k"), "3");
    facts_compact(facts, second, reply_done, &r);
    reply_wait(&r);
    assert_int_equal(r.result, FACTS_OK);
    take_page(&r, &(struct facts_page){.prefix = prefix, .limit = 5, .revision = first});
    assert_int_equal(r.result, FACTS_COMPACTED);
    take_page(&r, &(struct facts_page){.prefix = prefix, .limit = 5, .revision = last + 1000});
    assert_int_equal(r.result, FACTS_COMPACTED);
    take_page(&r, &(struct facts_page){.prefix = prefix, .limit = 5, .revision = second});
    assert_int_equal(r.result, FACTS_OK);
    assert_string_equal(r.rows.v[0].value, "2");
    reply_start(&r);
    facts_compact(facts, first, reply_done, &r);
    reply_wait(&r);
    assert_int_equal(r.result, FACTS_COMPACTED);
    assert_string_equal(get(key_of("k")), "3");
}

/* --- leases
 * ----------------------------------------------------------------------------------------------------------- */

static uint64_t new_lease(unsigned ttl_s)
{
    _cleanup_reply_ struct reply r = {0};
    facts_lease(facts, ttl_s, reply_done, &r);
    reply_wait(&r);
    assert_int_equal(r.result, FACTS_OK);
    assert_true(r.lease != 0 && r.ttl_s >= ttl_s);
    return r.lease;
}

static enum facts_result put_leased(const char *key, uint64_t lease)
{
    _cleanup_reply_ struct reply r = {0};
    facts_change(facts, NULL, 0, &(struct facts_write){key, "leased", 6, lease}, 1, reply_done, &r);
    reply_wait(&r);
    return r.result;
}

static enum facts_result lease_call(void (*call)(struct facts *, uint64_t, facts_done *, void *), uint64_t lease)
{
    _cleanup_reply_ struct reply r = {0};
    call(facts, lease, reply_done, &r);
    reply_wait(&r);
    if (r.result == FACTS_OK && call == facts_lease_keep)
        assert_true(r.ttl_s >= FACTS_TTL_MIN);
    return r.result;
}

static void the_end_of_a_lease_removes_what_was_written_with_it(void **state)
{
    (void)state;
    new_keys();
    uint64_t lease = new_lease(60), other = new_lease(60);
    const char *a = key_of("a"), *b = key_of("b"), *c = key_of("c"), *d = key_of("d");
    assert_int_equal(put_leased(a, lease), FACTS_OK);
    assert_int_equal(put_leased(b, lease), FACTS_OK);
    assert_int_equal(put_leased(c, other), FACTS_OK);
    assert_int_equal(put_leased(d, lease), FACTS_OK);
    put_ok(b, "no longer leased");
    assert_int_equal(put_leased(d, other), FACTS_OK);
    assert_true(get_fact(a)->lease == lease);
    assert_true(get_fact(b)->lease == 0);
    assert_int_equal(lease_call(facts_lease_keep, lease), FACTS_OK);
    assert_int_equal(lease_call(facts_lease_end, lease), FACTS_OK);
    assert_string_equal(get(a), "");
    assert_string_equal(get(b), "no longer leased");
    assert_string_equal(get(c), "leased");
    assert_string_equal(get(d), "leased");
    assert_int_equal(lease_call(facts_lease_keep, lease), FACTS_GONE);
    assert_int_equal(lease_call(facts_lease_end, lease), FACTS_GONE);
    assert_int_equal(put_leased(a, lease), FACTS_GONE);
    assert_string_equal(get(a), "");
    assert_int_equal(lease_call(facts_lease_end, other), FACTS_OK);
}

static void a_lease_that_is_not_kept_ends_and_a_kept_one_does_not(void **state)
{
    (void)state;
    new_keys();
    _cleanup_mirror_ struct mirror m = {0};
    _cleanup_free_ char *prefix = xstrdup(key_of("")), *kept = xstrdup(key_of("kept")), *left = xstrdup(key_of("left"));
    uint64_t a = new_lease(FACTS_TTL_MIN), b = new_lease(60);
    assert_int_equal(put_leased(left, a), FACTS_OK);
    assert_int_equal(put_leased(kept, b), FACTS_OK);
    mirror_start(&m, prefix, 0);
    assert_string_equal(mirror_value(&m, left), "leased");
    WAIT_UNTIL(!mirror_value(&m, left));
    assert_string_equal(mirror_value(&m, kept), "leased");
    WAIT_UNTIL(lease_call(facts_lease_keep, a) == FACTS_GONE);
    assert_int_equal(lease_call(facts_lease_keep, b), FACTS_OK);
    mirror_assert_true(&m, prefix);
}

/* --- watches
 * ---------------------------------------------------------------------------------------------------------- */

static void a_watch_tells_the_state_and_then_each_change_in_order(void **state)
{
    (void)state;
    new_keys();
    _cleanup_mirror_ struct mirror m = {0};
    _cleanup_free_ char *prefix = xstrdup(key_of("p/"));
    put_ok(key_of("p/a"), "1");
    put_ok(key_of("p/b"), "1");
    put_ok(key_of("q"), "1");
    mirror_start(&m, prefix, 0);
    assert_string_equal(buf_str(&m.log), "! +a=1 +b=1 | ");
    put_ok(key_of("p/b"), "2");
    put_ok(key_of("q"), "2");
    remove_ok(key_of("p/a"));
    put_ok(key_of("p/c"), "");
    WAIT_UNTIL(mirror_value(&m, key_of("p/c")));
    assert_int_equal(m.restarts, 1);
    assert_null(strstr(buf_str(&m.log), "q"));
    const char *b = strstr(buf_str(&m.log), "+b=2"), *a = strstr(buf_str(&m.log), "-a"),
               *c = strstr(buf_str(&m.log), "+c=");
    assert_true(b && a && c && b < a && a < c);
    WAIT_UNTIL(buf_str(&m.log)[m.log.n - 2] == '|');
    mirror_assert_true(&m, prefix);
}

static void a_change_is_told_as_a_whole(void **state)
{
    (void)state;
    new_keys();
    _cleanup_mirror_ struct mirror m = {0};
    _cleanup_free_ char *prefix = xstrdup(key_of("p/"));
    mirror_start(&m, prefix, 0);
    assert_string_equal(buf_str(&m.log), "! | ");
    for (int i = 0; i < 20; i++) {
        _cleanup_reply_ struct reply r = {0};
        const struct facts_write w[] = {{key_of("p/a"), i % 2 ? NULL : "x", i % 2 ? 0 : 1, 0},
                                        {key_of("p/b"), i % 2 ? "y" : NULL, i % 2 ? 1 : 0, 0},
                                        {key_of("p/c"), "z", 1, 0}};
        facts_change(facts, NULL, 0, w, 3, reply_done, &r);
        reply_wait(&r);
        assert_int_equal(r.result, FACTS_OK);
        WAIT_UNTIL(m.revision >= r.revision);
        mirror_assert_true(&m, prefix);
    }
    /* Between two bars there are whole changes: each has a c. */
    _cleanup_free_ char *log = xstrdup(buf_str(&m.log) + 4);
    for (char *part = log, *bar; *part; part = bar + 2) {
        bar = strstr(part, "| ");
        assert_non_null(bar);
        *bar = 0;
        assert_non_null(strstr(part, "+c=z"));
        assert_true(strstr(part, "+a") || strstr(part, "+b"));
    }
}

static void a_watch_from_a_revision_has_no_gap(void **state)
{
    (void)state;
    new_keys();
    enum { BEFORE = 60, BEHIND = 60, FROM = 13 };
    _cleanup_mirror_ struct mirror m = {0};
    _cleanup_free_ char *prefix = xstrdup(key_of(""));
    uint64_t from = 0;
    for (int i = 0; i < BEFORE; i++) {
        char value[20];
        (void)snprintf(value, sizeof value, "%d.", i);
        uint64_t revision = put_ok(key_of("k"), value);
        from = i == FROM ? revision : from;
    }
    mirror_start(&m, prefix, from);
    struct reply r[BEHIND] = {0};
    for (int i = 0; i < BEHIND; i++) {
        char value[20];
        (void)snprintf(value, sizeof value, "%d.", BEFORE + i);
        facts_change(facts, NULL, 0, &(struct facts_write){key_of("k"), value, strlen(value), 0}, 1, reply_done, &r[i]);
        reply_wait(&r[i]); /* one after the other, so that their order is known */
    }
    WAIT_UNTIL(m.revision >= r[BEHIND - 1].revision);
    assert_int_equal(m.restarts, 0);
    const char *at = buf_str(&m.log);
    for (int i = FROM; i < BEFORE + BEHIND; i++) {
        char want[20];
        (void)snprintf(want, sizeof want, "+k=%d.", i);
        at = strchr(at, '+');
        assert_non_null(at);
        assert_memory_equal(at, want, strlen(want));
        at++;
    }
    assert_null(strchr(at, '+'));
}

static void a_watch_that_is_behind_the_history_begins_anew(void **state)
{
    (void)state;
    new_keys();
    _cleanup_mirror_ struct mirror m = {0};
    _cleanup_reply_ struct reply r = {0};
    _cleanup_free_ char *prefix = xstrdup(key_of(""));
    uint64_t from = put_ok(key_of("a"), "1");
    put_ok(key_of("b"), "1");
    remove_ok(key_of("a"));
    uint64_t last = put_ok(key_of("c"), "1");
    facts_compact(facts, last, reply_done, &r);
    reply_wait(&r);
    assert_int_equal(r.result, FACTS_OK);
    mirror_start(&m, prefix, from);
    WAIT_UNTIL(m.currents > 0);
    assert_int_equal(m.restarts, 1);
    assert_string_equal(buf_str(&m.log), "! +b=1 +c=1 | ");
    put_ok(key_of("d"), "1");
    WAIT_UNTIL(mirror_value(&m, key_of("d")));
    assert_int_equal(m.restarts, 1);
    /* A position that the engine has not reached: it was put back from an older copy. */
    _cleanup_mirror_ struct mirror future = {0};
    mirror_start(&future, prefix, last + 100000);
    WAIT_UNTIL(future.currents > 0);
    assert_int_equal(future.restarts, 1);
    mirror_assert_true(&future, prefix);
}

static void a_mirror_stays_true_through_many_changes(void **state)
{
    (void)state;
    new_keys();
    enum { CHANGES = 400, AT_ONCE = 40 };
    _cleanup_mirror_ struct mirror whole = {0}, late = {0};
    _cleanup_free_ char *prefix = xstrdup(key_of(""));
    static struct reply r[AT_ONCE];
    uint64_t last = 0;
    mirror_start(&whole, prefix, 0);
    for (int i = 0; i < CHANGES; i += AT_ONCE) {
        for (int j = 0; j < AT_ONCE; j++) {
            unsigned char dice[4];
            char a[20], b[20], value[20];
            random_bytes(dice, sizeof dice);
            (void)snprintf(a, sizeof a, "%u", dice[0] % 12);
            (void)snprintf(b, sizeof b, "%u", 12 + dice[1] % 12);
            (void)snprintf(value, sizeof value, "%d", i + j);
            const struct facts_write w[] = {
                {key_of(a), dice[2] % 3 ? value : NULL, dice[2] % 3 ? strlen(value) : 0, 0},
                {key_of(b), dice[3] % 3 ? value : NULL, dice[3] % 3 ? strlen(value) : 0, 0}};
            reply_start(&r[j]);
            facts_change(facts, NULL, 0, w, 2, reply_done, &r[j]);
        }
        for (int j = 0; j < AT_ONCE; j++) {
            reply_wait(&r[j]);
            assert_int_equal(r[j].result, FACTS_OK);
            last = r[j].revision > last ? r[j].revision : last;
        }
        if (i == CHANGES / 2)
            mirror_start(&late, prefix, 0);
    }
    last = put_ok(key_of("end"), "1");
    WAIT_UNTIL(whole.revision >= last && late.revision >= last);
    mirror_assert_true(&whole, prefix);
    mirror_assert_true(&late, prefix);
    assert_int_equal(whole.restarts, 1);
}

static void a_watch_may_be_freed_in_any_of_its_callbacks(void **state)
{
    (void)state;
    new_keys();
    _cleanup_free_ char *prefix = xstrdup(key_of(""));
    put_ok(key_of("a"), "1");
    put_ok(key_of("b"), "1");
    for (int at = 1; at <= 7; at++) { /* restart, a, b, current, a, b removed ... */
        _cleanup_mirror_ struct mirror m = {.free_at = at};
        put_ok(key_of("a"), "1");
        put_ok(key_of("b"), "1");
        m.watch = facts_watch(facts, prefix, 0, &mirror_events, &m);
        if (at > 3) /* else the state may be read after the changes that follow, and lack b */
            WAIT_UNTIL(m.currents > 0);
        put_ok(key_of("a"), "2");
        remove_ok(key_of("b"));
        WAIT_UNTIL(!m.watch);
        int told = m.told;
        put_ok(key_of("a"), "3");
        assert_int_equal(m.told, told);
    }
}

static void watches_have_a_limit(void **state)
{
    (void)state;
    struct facts_watch *w[FACTS_WATCHES_MAX];
    struct mirror m = {0};
    for (int i = 0; i < FACTS_WATCHES_MAX; i++) {
        w[i] = facts_watch(facts, "none/", 1u << 30, &mirror_events, &m);
        assert_non_null(w[i]);
    }
    assert_null(facts_watch(facts, "none/", 0, &mirror_events, &m));
    for (int i = 0; i < FACTS_WATCHES_MAX; i++)
        facts_watch_free(w[i]);
    mirror_start(&m, "none/", 0);
    mirror_free(&m);
}

/* --- the end
 * ---------------------------------------------------------------------------------------------------------- */

static void closing_makes_no_further_call(void **state)
{
    (void)state;
    new_keys();
    struct mirror m = {0};
    struct reply r[5] = {0};
    m.watch = facts_watch(facts, key_of(""), 0, &mirror_events, &m);
    facts_change(facts, NULL, 0, &(struct facts_write){key_of("k"), "1", 1, 0}, 1, reply_done, &r[0]);
    facts_get(facts, key_of("k"), 0, reply_done, &r[1]);
    facts_get(facts, "a b", 0, reply_done, &r[2]);
    facts_lease(facts, 5, reply_done, &r[3]);
    facts_close(facts);
    facts_world_open();
    (void)get(key_of("k"));
    for (size_t i = 0; i < ARRAY_LEN(r); i++)
        assert_int_equal(r[i].calls, 0);
    assert_int_equal(m.told, 0);
    buf_done(&m.log);
    reply_free(&got);
    got = (struct reply){0};
}

const struct CMUnitTest facts_suite[] = {
    cmocka_unit_test(a_fact_is_written_read_and_removed),
    cmocka_unit_test(a_value_has_any_bytes_up_to_the_limit),
    cmocka_unit_test(a_change_happens_as_a_whole_or_not_at_all),
    cmocka_unit_test(tests_compare_revisions),
    cmocka_unit_test(of_many_changes_from_one_revision_one_is_made),
    cmocka_unit_test(removing_nothing_changes_nothing),
    cmocka_unit_test(what_cannot_be_right_is_refused),
    cmocka_unit_test(pages_show_one_moment),
    cmocka_unit_test(a_page_of_a_forgotten_or_future_moment_is_not_given),
    cmocka_unit_test(the_end_of_a_lease_removes_what_was_written_with_it),
    cmocka_unit_test(a_lease_that_is_not_kept_ends_and_a_kept_one_does_not),
    cmocka_unit_test(a_watch_tells_the_state_and_then_each_change_in_order),
    cmocka_unit_test(a_change_is_told_as_a_whole),
    cmocka_unit_test(a_watch_from_a_revision_has_no_gap),
    cmocka_unit_test(a_watch_that_is_behind_the_history_begins_anew),
    cmocka_unit_test(a_mirror_stays_true_through_many_changes),
    cmocka_unit_test(a_watch_may_be_freed_in_any_of_its_callbacks),
    cmocka_unit_test(watches_have_a_limit),
    cmocka_unit_test(closing_makes_no_further_call),
};
const size_t facts_suite_n = ARRAY_LEN(facts_suite);
