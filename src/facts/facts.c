/* facts.c - what all engines share: arguments are checked, answers that need no engine are given. */
#include "facts/facts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/text.h"
#include "facts/facts-int.h"

const char *facts_result_name(enum facts_result r)
{
    static const char *const names[] = {
        [FACTS_OK] = "ok",           [FACTS_DIFFERS] = "differs",
        [FACTS_GONE] = "gone",       [FACTS_COMPACTED] = "compacted",
        [FACTS_REFUSED] = "refused", [FACTS_FULL] = "full",
        [FACTS_DENIED] = "denied",   [FACTS_DOWN] = "down",
        [FACTS_UNKNOWN] = "unknown",
    };
    return names[r];
}

const char *facts_engine(const struct facts *f) { return f->engine; }

/* --- answers without the engine
 * --------------------------------------------------------------------------------------- */

struct facts_later {
    struct facts_later *next;
    enum facts_result result;
    char *why;
    struct facts_call_in in;
};

static void facts_on_later(void *arg)
{
    struct facts *f = arg;
    struct facts_later *list = f->later;
    f->later = NULL;
    f->later_timer = 0;
    while (list) {
        struct facts_later *l = list;
        struct facts_answer a = {.result = l->result, .why = l->why};
        list = l->next;
        l->in.done(l->in.arg, &a);
        free(l->why);
        free(l);
    }
}

void facts_answer_later(struct facts *f, enum facts_result result, const char *why, struct facts_call_in in)
{
    struct facts_later *l = xcalloc(1, sizeof *l), **end = &f->later;
    *l = (struct facts_later){.result = result, .why = xstrdup(why), .in = in};
    while (*end)
        end = &(*end)->next;
    *end = l;
    if (!f->later_timer)
        f->later_timer = loop_timer(f->loop, 0, facts_on_later, f);
}

void facts_head_done(struct facts *f)
{
    loop_timer_del(f->loop, f->later_timer);
    for (struct facts_later *l = f->later, *next; l; l = next) {
        next = l->next;
        free(l->why);
        free(l);
    }
    free(f->engine);
}

void facts_close(struct facts *f)
{
    if (!f)
        return;
    facts_watches_free(f);
    f->ops->close(f);
}

/* --- arguments
 * -------------------------------------------------------------------------------------------------------- */

/* Whether the call can go on; else it is answered. */
static bool facts_check_key(struct facts *f, const char *key, struct facts_call_in in)
{
    if (facts_key_is_valid(key, strlen(key)))
        return true;
    _cleanup_buf_ struct buf why = {0};
    buf_adds(&why, "the key \"");
    text_add_safe(&why, key, 80);
    buf_addf(&why, "\" cannot be kept: a key has 1 to %d printable ASCII characters, without space", FACTS_KEY_MAX);
    facts_answer_later(f, FACTS_REFUSED, buf_str(&why), in);
    return false;
}

static bool facts_refuse(struct facts *f, struct facts_call_in in, char *why)
{
    facts_answer_later(f, FACTS_REFUSED, why, in);
    free(why);
    return false;
}

void facts_get(struct facts *f, const char *key, unsigned flags, facts_done *done, void *arg)
{
    struct facts_call_in in = {done, arg};
    if (facts_check_key(f, key, in))
        f->ops->get(f, key, flags, in);
}

void facts_range(struct facts *f, const struct facts_page *p, facts_done *done, void *arg)
{
    struct facts_call_in in = {done, arg};
    if ((p->prefix[0] && !facts_check_key(f, p->prefix, in)) || (p->after && !facts_check_key(f, p->after, in)))
        return;
    if (p->limit < 1 || p->limit > FACTS_PAGE_MAX)
        (void)facts_refuse(f, in, xasprintf("a page has 1 to %d facts, not %zu", FACTS_PAGE_MAX, p->limit));
    else if (p->after && strncmp(p->after, p->prefix, strlen(p->prefix)) != 0)
        (void)facts_refuse(f, in, xasprintf("the key %s does not begin with %s", p->after, p->prefix));
    else
        f->ops->range(f, p, in);
}

/* Checks one write and the keys before it. */
static bool facts_check_write(struct facts *f, const struct facts_write *writes, size_t at, struct facts_call_in in)
{
    const struct facts_write *w = &writes[at];
    if (!facts_check_key(f, w->key, in))
        return false;
    if (w->n > FACTS_VALUE_MAX)
        return facts_refuse(f, in,
                            xasprintf("the value of %s has %zu bytes, and can have %d", w->key, w->n, FACTS_VALUE_MAX));
    for (size_t i = 0; i < at; i++)
        if (strcmp(writes[i].key, w->key) == 0)
            return facts_refuse(f, in, xasprintf("one change writes %s twice", w->key));
    return true;
}

static bool facts_check_change(struct facts *f, const struct facts_test *tests, size_t ntests,
                               const struct facts_write *writes, size_t nwrites, struct facts_call_in in)
{
    size_t bytes = 0;
    if (ntests > FACTS_TESTS_MAX || nwrites < 1 || nwrites > FACTS_WRITES_MAX)
        return facts_refuse(f, in,
                            xasprintf("a change has up to %d tests and 1 to %d writes, not %zu and %zu",
                                      FACTS_TESTS_MAX, FACTS_WRITES_MAX, ntests, nwrites));
    for (size_t i = 0; i < ntests; i++)
        if (!facts_check_key(f, tests[i].key, in))
            return false;
    for (size_t i = 0; i < nwrites; i++) {
        if (!facts_check_write(f, writes, i, in))
            return false;
        bytes += strlen(writes[i].key) + writes[i].n;
    }
    return bytes <= FACTS_CHANGE_MAX ||
           facts_refuse(f, in, xasprintf("one change writes %zu bytes, and can write %d", bytes, FACTS_CHANGE_MAX));
}

void facts_change(struct facts *f, const struct facts_test *tests, size_t ntests, const struct facts_write *writes,
                  size_t nwrites, facts_done *done, void *arg)
{
    struct facts_call_in in = {done, arg};
    if (facts_check_change(f, tests, ntests, writes, nwrites, in))
        f->ops->change(f, tests, ntests, writes, nwrites, in);
}

void facts_lease(struct facts *f, unsigned ttl_s, facts_done *done, void *arg)
{
    struct facts_call_in in = {done, arg};
    if (ttl_s < FACTS_TTL_MIN || ttl_s > FACTS_TTL_MAX)
        (void)facts_refuse(f, in,
                           xasprintf("a lease has %d to %d seconds, not %u", FACTS_TTL_MIN, FACTS_TTL_MAX, ttl_s));
    else
        f->ops->lease(f, ttl_s, in);
}

void facts_lease_keep(struct facts *f, uint64_t lease, facts_done *done, void *arg)
{
    f->ops->lease_keep(f, lease, (struct facts_call_in){done, arg});
}

void facts_lease_end(struct facts *f, uint64_t lease, facts_done *done, void *arg)
{
    f->ops->lease_end(f, lease, (struct facts_call_in){done, arg});
}

void facts_compact(struct facts *f, uint64_t revision, facts_done *done, void *arg)
{
    f->ops->compact(f, revision, (struct facts_call_in){done, arg});
}
