/* redact.c - removes from an answer the secrets that were put into its request.
 *
 * A set (shared, reference counted, in locked memory) is an Aho-Corasick automaton over every form in which a value may
 * come back: as it is, base64 at the three alignments it can have inside something longer (both alphabets),
 * percent-encoded, as a JSON string, and the exact "user:value" of Basic. Only the first PREFIX bytes of a form are in
 * the automaton, so that no more than that is ever held back; the rest of a long form is compared byte by byte after
 * its prefix and removed as far as it matches.
 *
 * A redactor is one stream. `pos` is the number of bytes seen; bytes before pos - depth(state) can no longer begin a
 * match and are passed on. Matches become spans [from, to); overlapping spans are merged. Every byte costs a bounded
 * number of steps, amortised: the automaton follows failure links, a span is merged once, and at most TAILS forms are
 * compared at a time.
 */
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/strv.h"
#include "egress/secrets/lockmem.h"
#include "egress/secrets/secrets-int.h"
#include "http/url.h"

enum { PREFIX = 256, FORMS = 14 /* of one value */, TAILS = FORMS * REDACT_VALUES_MAX, PENDING = 4 * PREFIX };

struct form {
    char *p; /* in locked memory */
    size_t n;
    unsigned who;  /* index of the value */
    unsigned same; /* the next form with the same prefix, + 1; 0: none */
};
struct state {
    uint32_t child, next; /* 0: none */
    uint32_t fail;
    uint32_t match; /* the nearest node, from here along `fail`, at which a form ends; 0: none */
    uint32_t form;  /* + 1; 0: no form ends here */
    uint16_t depth;
    uint8_t c;
};
struct redact_set {
    unsigned refs;
    struct form forms[TAILS];
    size_t nforms, text;
    struct state *nodes; /* in locked memory; [0] is the root */
    size_t nnodes, room;
    uint32_t root[256];
};

struct span {
    uint64_t from, to;
    unsigned who;
};
struct tail {
    unsigned form;
    size_t at;
};
struct redactor {
    struct redact_set *set;
    struct strv with; /* per value */
    uint32_t at;
    uint64_t pos, base; /* base: of pending */
    struct buf pending;
    struct span *spans;
    size_t nspans, cap;
    struct tail tails[TAILS];
    size_t ntails;
    uint64_t count;
};

/* ---- forms ---- */

static void redact_add_form(struct redact_set *s, unsigned who, const char *p, size_t n)
{
    if (n < REDACT_MIN || s->nforms == TAILS)
        return;
    for (size_t i = 0; i < s->nforms; i++)
        if (s->forms[i].n == n && memcmp(s->forms[i].p, p, n) == 0)
            return;
    struct form *f = &s->forms[s->nforms++];
    *f = (struct form){.p = lockmem_new(n), .n = n, .who = who};
    memcpy(f->p, p, n);
    s->text += n;
}

static void redact_add_and_wipe(struct redact_set *s, unsigned who, struct buf *b)
{
    redact_add_form(s, who, buf_str(b), b->n);
    buf_wipe(b);
}

/* Adds the base64 of the value at offset `before` modulo three: only the characters that depend on nothing but the
 * value. */
static void redact_add_base64(struct redact_set *s, unsigned who, const char *p, size_t n, size_t before)
{
    static const char nothing[2];
    _cleanup_buf_wipe_ struct buf plain = {0}, text = {0}, url = {0};
    buf_room(&plain, before + n);
    buf_room(&text, (before + n) / 3 * 4 + 8);
    buf_room(&url, (before + n) / 3 * 4 + 8);
    buf_add(&plain, nothing, before);
    buf_add(&plain, p, n);
    base64_encode(&text, plain.p, plain.n);
    size_t from = (before * 8 + 5) / 6, to = plain.n * 8 / 6;
    buf_add(&url, text.p, text.n);
    for (size_t i = 0; i < url.n; i++)
        url.p[i] = url.p[i] == '+' ? '-' : url.p[i] == '/' ? '_' : url.p[i];
    redact_add_form(s, who, text.p + from, to - from);
    redact_add_form(s, who, url.p + from, to - from);
}

static void redact_add_percent(struct redact_set *s, unsigned who, const char *p, size_t n, const char *keep)
{
    _cleanup_buf_wipe_ struct buf upper = {0}, lower = {0};
    buf_room(&upper, 3 * n);
    buf_room(&lower, 3 * n);
    url_encode(&upper, p, n, keep);
    buf_add(&lower, buf_str(&upper), upper.n);
    for (size_t i = 0; i + 2 < lower.n; i++)
        if (lower.p[i] == '%') {
            lower.p[i + 1] |= 0x20; /* digits have that bit already */
            lower.p[i + 2] |= 0x20;
            i += 2;
        }
    redact_add_form(s, who, buf_str(&upper), upper.n);
    redact_add_form(s, who, buf_str(&lower), lower.n);
}

void json_escape(struct buf *out, const char *p, size_t n, bool slash)
{
    static const char from[] = "\b\f\n\r\t\"\\/", to[] = "bfnrt\"\\/";
    for (size_t i = 0; i < n; i++) {
        const char *c = p[i] ? memchr(from, p[i], sizeof from - (slash ? 1 : 2)) : NULL;
        if (c)
            buf_addf(out, "\\%c", to[c - from]);
        else if ((unsigned char)p[i] < 0x20)
            buf_addf(out, "\\u%04x", (unsigned char)p[i]);
        else
            buf_addc(out, p[i]);
    }
}

static void redact_add_value(struct redact_set *s, unsigned who, const struct redact_value *v)
{
    struct buf b = {0};
    if (v->n < REDACT_MIN)
        return;
    redact_add_form(s, who, v->p, v->n);
    if (v->user) {
        _cleanup_buf_wipe_ struct buf both = {0};
        buf_room(&both, strlen(v->user) + 1 + v->n);
        buf_room(&b, (strlen(v->user) + 1 + v->n) / 3 * 4 + 8);
        buf_addf(&both, "%s:", v->user);
        buf_add(&both, v->p, v->n);
        base64_encode(&b, both.p, both.n);
        redact_add_and_wipe(s, who, &b);
    }
    for (size_t before = 0; before < 3; before++)
        redact_add_base64(s, who, v->p, v->n, before);
    redact_add_percent(s, who, v->p, v->n, "");
    redact_add_percent(s, who, v->p, v->n, "/");
    for (unsigned slash = 0; slash < 2; slash++) {
        buf_room(&b, 6 * v->n);
        json_escape(&b, v->p, v->n, slash);
        redact_add_and_wipe(s, who, &b);
    }
}

/* ---- the automaton ---- */

static uint32_t trie_child(const struct redact_set *s, uint32_t node, uint8_t c)
{
    if (node == 0)
        return s->root[c];
    uint32_t k = s->nodes[node].child;
    while (k && s->nodes[k].c != c)
        k = s->nodes[k].next;
    return k;
}

static uint32_t trie_add_child(struct redact_set *s, uint32_t node, uint8_t c)
{
    uint32_t k = (uint32_t)s->nnodes++;
    struct state *parent = &s->nodes[node];
    s->nodes[k] = (struct state){.c = c, .depth = (uint16_t)(parent->depth + 1), .next = parent->child};
    parent->child = k;
    if (node == 0)
        s->root[c] = k;
    return k;
}

static void trie_add_form(struct redact_set *s, unsigned form)
{
    struct form *f = &s->forms[form];
    uint32_t at = 0;
    for (size_t i = 0; i < f->n && i < PREFIX; i++) {
        uint32_t k = trie_child(s, at, (uint8_t)f->p[i]);
        at = k ? k : trie_add_child(s, at, (uint8_t)f->p[i]);
    }
    f->same = s->nodes[at].form;
    s->nodes[at].form = form + 1;
}

static uint32_t trie_step(const struct redact_set *s, uint32_t state, uint8_t c)
{
    uint32_t k;
    while (!(k = trie_child(s, state, c)) && state != 0)
        state = s->nodes[state].fail;
    return k;
}

/* Breadth first: the failure link of a node needs those of all shorter ones. */
static void trie_link_nodes(struct redact_set *s)
{
    _cleanup_free_ uint32_t *queue = xcalloc(s->nnodes, sizeof *queue);
    size_t head = 0, tail = 1;
    while (head < tail) {
        uint32_t at = queue[head++];
        for (uint32_t k = s->nodes[at].child; k; k = s->nodes[k].next) {
            struct state *n = &s->nodes[k];
            n->fail = at == 0 ? 0 : trie_step(s, s->nodes[at].fail, n->c);
            n->match = n->form ? k : s->nodes[n->fail].match;
            queue[tail++] = k;
        }
    }
}

struct redact_set *redact_set_new(const struct redact_value *values, size_t n)
{
    struct redact_set *s = xcalloc(1, sizeof *s);
    s->refs = 1;
    for (unsigned i = 0; i < n && i < REDACT_VALUES_MAX; i++)
        redact_add_value(s, i, &values[i]);
    if (n > REDACT_VALUES_MAX || s->text > REDACT_TEXT_MAX) {
        redact_set_unref(s);
        return NULL;
    }
    s->room = 1;
    for (size_t i = 0; i < s->nforms; i++)
        s->room += s->forms[i].n < PREFIX ? s->forms[i].n : PREFIX;
    s->nodes = lockmem_new(s->room * sizeof *s->nodes);
    s->nnodes = 1;
    for (unsigned i = 0; i < s->nforms; i++)
        trie_add_form(s, i);
    trie_link_nodes(s);
    return s;
}

struct redact_set *redact_set_ref(struct redact_set *s)
{
    s->refs++;
    return s;
}

void redact_set_unref(struct redact_set *s)
{
    if (!s || --s->refs > 0)
        return;
    for (size_t i = 0; i < s->nforms; i++)
        lockmem_free(s->forms[i].p, s->forms[i].n);
    lockmem_free(s->nodes, s->room * sizeof *s->nodes);
    free(s);
}

bool redact_set_empty(const struct redact_set *s) { return s->nforms == 0; }

/* ---- one stream ---- */

struct redactor *redactor_new(struct redact_set *s, const char *const *with, size_t n)
{
    struct redactor *r = xcalloc(1, sizeof *r);
    r->set = redact_set_ref(s);
    buf_room(&r->pending, PENDING); /* never more, so it never moves */
    for (size_t i = 0; i < n; i++)
        strv_add(&r->with, with[i]);
    return r;
}

void redactor_free(struct redactor *r)
{
    if (!r)
        return;
    redact_set_unref(r->set);
    strv_done(&r->with);
    buf_wipe(&r->pending);
    free(r->spans);
    free(r);
}

uint64_t redact_count(const struct redactor *r) { return r->count; }

/* Passes on the bytes [from, to) of the stream, which are all pending. */
static void redact_pass_on(struct redactor *r, uint64_t from, uint64_t to, struct buf *out)
{
    if (from < to)
        buf_add(out, r->pending.p + (from - r->base), (size_t)(to - from));
}

/* Passes on or replaces everything before `safe`, where no match can begin or grow any more. */
static void redact_flush(struct redactor *r, uint64_t safe, struct buf *out)
{
    uint64_t at = r->base;
    size_t i = 0;
    while (i < r->nspans && r->spans[i].from < safe) {
        struct span *s = &r->spans[i];
        redact_pass_on(r, at, s->from, out);
        if (s->to > safe || (r->ntails > 0 && i + 1 == r->nspans)) {
            at = safe; /* the span may still grow; its bytes so far are removed in any case */
            break;
        }
        buf_adds(out, s->who < r->with.n ? r->with.v[s->who] : "[redacted]");
        r->count++;
        at = at > s->to ? at : s->to;
        i++;
    }
    redact_pass_on(r, at, safe, out);
    if (i > 0) {
        r->nspans -= i;
        memmove(r->spans, r->spans + i, r->nspans * sizeof *r->spans);
    }
    size_t gone = (size_t)(safe - r->base), left = r->pending.n - gone;
    if (gone > 0) {
        memmove(r->pending.p, r->pending.p + gone, left);
        explicit_bzero(r->pending.p + left, gone);
        r->pending.n = left;
        r->base = safe;
    }
}

static void grow_tails(struct redactor *r, char c)
{
    size_t kept = 0;
    for (size_t i = 0; i < r->ntails; i++) {
        struct tail *t = &r->tails[i];
        const struct form *f = &r->set->forms[t->form];
        if (f->p[t->at] != c)
            continue;
        r->spans[r->nspans - 1].to = r->pos; /* a tail is always that of the newest span */
        if (++t->at < f->n)
            r->tails[kept++] = *t;
    }
    r->ntails = kept;
}

static void start_tails(struct redactor *r, const struct state *n)
{
    for (unsigned k = n->form; k; k = r->set->forms[k - 1].same) {
        bool there = r->set->forms[k - 1].n <= n->depth;
        for (size_t i = 0; i < r->ntails; i++)
            there |= r->tails[i].form == k - 1;
        if (!there)
            r->tails[r->ntails++] = (struct tail){k - 1, n->depth};
    }
}

static void redact_on_match(struct redactor *r, const struct state *n)
{
    struct span s = {r->pos - n->depth, r->pos, r->set->forms[n->form - 1].who};
    while (r->nspans > 0 && r->spans[r->nspans - 1].to > s.from) {
        const struct span *before = &r->spans[--r->nspans];
        if (before->from <= s.from) {
            s.from = before->from;
            s.who = before->who;
        }
    }
    MEM_GROW(r->spans, r->nspans, r->cap);
    r->spans[r->nspans++] = s;
    start_tails(r, n);
}

/* With nothing pending: passes on the bytes that cannot begin a match. */
static size_t redact_skip(const struct redactor *r, const char *p, size_t n, struct buf *out)
{
    size_t i = 0;
    while (i < n && !r->set->root[(uint8_t)p[i]])
        i++;
    if (i > 0)
        buf_add(out, p, i);
    return i;
}

void redact_feed(struct redactor *r, const void *p, size_t n, struct buf *out)
{
    const char *text = p;
    for (size_t i = 0; i < n;) {
        if (r->at == 0 && r->ntails == 0) {
            redact_flush(r, r->pos, out);
            size_t k = redact_skip(r, text + i, n - i, out);
            r->pos += k;
            r->base += k;
            i += k;
            if (i == n)
                break;
        }
        buf_addc(&r->pending, text[i]);
        r->pos++;
        grow_tails(r, text[i]);
        r->at = trie_step(r->set, r->at, (uint8_t)text[i++]);
        const struct state *at = &r->set->nodes[r->at];
        if (at->match)
            redact_on_match(r, &r->set->nodes[at->match]);
        if (r->pending.n == PENDING)
            redact_flush(r, r->pos - r->set->nodes[r->at].depth, out);
    }
    redact_flush(r, r->pos - r->set->nodes[r->at].depth, out);
}

void redact_end(struct redactor *r, struct buf *out)
{
    r->ntails = 0;
    r->at = 0;
    redact_flush(r, r->pos, out);
}

/* Redacts another text with the same secrets; the stream is not touched. */
static uint64_t redact_beside(struct redactor *r, const void *p, size_t n, struct buf *out)
{
    struct redactor *one = redactor_new(r->set, (const char *const *)r->with.v, r->with.n);
    redact_feed(one, p, n, out);
    redact_end(one, out);
    uint64_t count = one->count;
    redactor_free(one);
    r->count += count;
    return count;
}

bool redact_value(struct redactor *r, const char *value, char **ret)
{
    _cleanup_buf_ struct buf out = {0};
    uint64_t count = redact_beside(r, value, strlen(value), &out);
    if (count > 0)
        *ret = xstrdup(buf_str(&out));
    return count > 0;
}

bool redact_finds(struct redactor *r, const void *p, size_t n)
{
    _cleanup_buf_ struct buf out = {0};
    return redact_beside(r, p, n, &out) > 0;
}

/* ---- messages of a WebSocket ---- */

static void redact_on_data(void *arg, const void *p, size_t n, bool last, struct buf *out)
{
    if (n > 0)
        redact_feed(arg, p, n, out);
    if (last)
        redact_end(arg, out);
}

/* A control frame has no room for a replacement: if its payload contains a secret, it is left out (a close keeps its
 * code). */
static size_t redact_on_control(void *arg, uint8_t opcode, const void *p, size_t n)
{
    if (!redact_finds(arg, p, n))
        return n;
    return opcode == WS_CLOSE ? 2 : 0;
}

const struct ws_server_events redact_messages = {.on_data = redact_on_data, .on_control = redact_on_control};
