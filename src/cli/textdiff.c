/* textdiff.c - Myers' greedy algorithm on lines. It keeps the trace of each round, so the number of edits bounds the work. */
#include "cli/textdiff.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

struct line {
    const char *p;
    size_t n;  /* without the newline */
    bool open; /* the last one, without a newline */
};
struct text {
    struct line *v;
    size_t n, cap;
};

struct edit {
    char kind;   /* ' ', '-', '+' */
    size_t a, b; /* line numbers from 0 */
};
struct edits {
    struct edit *v;
    size_t n, cap;
};

bool textdiff_is_text(const char *p, size_t n) { return !n || !memchr(p, '\0', n); }

static bool text_split_lines(const char *p, size_t n, struct text *t)
{
    for (size_t at = 0; at < n;) {
        const char *nl = memchr(p + at, '\n', n - at);
        size_t len = nl ? (size_t)(nl - p) - at : n - at;
        if (t->n == TEXTDIFF_LINES_MAX)
            return false;
        MEM_GROW(t->v, t->n, t->cap);
        t->v[t->n++] = (struct line){.p = p + at, .n = len, .open = !nl};
        at += len + (nl != NULL);
    }
    return true;
}

static bool line_is_same(const struct line *x, const struct line *y)
{
    return x->n == y->n && x->open == y->open && memcmp(x->p, y->p, x->n) == 0;
}

static void add_edit(struct edits *e, char kind, size_t a, size_t b)
{
    MEM_GROW(e->v, e->n, e->cap);
    e->v[e->n++] = (struct edit){.kind = kind, .a = a, .b = b};
}

/* Walks the rounds backwards; the edits come out in reverse. */
static void trace_back(long **rounds, long d, long x, long y, struct edits *ret)
{
    for (; d > 0; d--) {
        const long *v = rounds[d - 1] + d; /* index by k: -d .. d */
        long k = x - y;
        bool down = k == -d || (k != d && v[k - 1] < v[k + 1]);
        long from = down ? k + 1 : k - 1, px = v[from], py = px - from;
        for (; x > px + !down && y > py + down; x--, y--)
            add_edit(ret, ' ', (size_t)x - 1, (size_t)y - 1);
        if (down)
            add_edit(ret, '+', (size_t)x, (size_t)--y);
        else
            add_edit(ret, '-', (size_t)--x, (size_t)y);
    }
    for (; x > 0 && y > 0; x--, y--)
        add_edit(ret, ' ', (size_t)x - 1, (size_t)y - 1);
}

/* rounds[d] holds the furthest points before round d + 1, for k = -(d+1) .. d+1. False: too different. */
static bool text_compare(const struct text *a, const struct text *b, struct edits *ret)
{
    long n = (long)a->n, m = (long)b->n;
    long *rounds[TEXTDIFF_EDITS_MAX + 1], *v = xcalloc(2 * TEXTDIFF_EDITS_MAX + 5, sizeof *v);
    long *mid = v + TEXTDIFF_EDITS_MAX + 2, d = 0;
    bool found = false;
    for (; d <= TEXTDIFF_EDITS_MAX && !found; d++) {
        for (long k = -d; k <= d; k += 2) {
            long x = d == 0 ? 0 : (k == -d || (k != d && mid[k - 1] < mid[k + 1])) ? mid[k + 1] : mid[k - 1] + 1;
            long y = x - k;
            while (x < n && y < m && line_is_same(&a->v[x], &b->v[y]))
                x++, y++;
            mid[k] = x;
            if (x >= n && y >= m) {
                found = true;
                break;
            }
        }
        if (found)
            break;
        rounds[d] = xcalloc((size_t)(2 * d + 3), sizeof *rounds[d]);
        memcpy(rounds[d], mid - d - 1, (size_t)(2 * d + 3) * sizeof *rounds[d]);
    }
    if (found)
        trace_back(rounds, d, n, m, ret);
    for (long i = 0; i < d && i <= TEXTDIFF_EDITS_MAX; i++)
        free(rounds[i]);
    free(v);
    return found;
}

static void put_line(struct buf *out, char kind, const struct line *l)
{
    char *copy = xstrndup(l->p, l->n);
    buf_addc(out, kind);
    for (char *p = copy; *p;) { /* tabs are shown as they are */
        size_t n = strcspn(p, "\t");
        bool tab = p[n] == '\t';
        p[n] = '\0';
        text_add_safe(out, p, l->n + 1);
        p += n + tab;
        if (tab)
            buf_addc(out, '\t');
    }
    buf_addc(out, '\n');
    if (l->open)
        buf_adds(out, "\\ No newline at end of file\n");
    free(copy);
}

/* One hunk of the edits from..to (in order; they are stored in reverse). */
static void put_hunk(struct buf *out, const struct edits *e, size_t from, size_t to, const struct text *a,
                     const struct text *b)
{
    size_t na = 0, nb = 0;
    const struct edit *first = &e->v[e->n - 1 - from];
    for (size_t i = from; i < to; i++) {
        na += e->v[e->n - 1 - i].kind != '+';
        nb += e->v[e->n - 1 - i].kind != '-';
    }
    buf_addf(out, "@@ -%zu,%zu +%zu,%zu @@\n", first->a + (na > 0), na, first->b + (nb > 0), nb);
    for (size_t i = from; i < to; i++) {
        const struct edit *x = &e->v[e->n - 1 - i];
        put_line(out, x->kind, x->kind == '+' ? &b->v[x->b] : &a->v[x->a]);
    }
}

static void put_hunks(struct buf *out, const struct edits *e, const struct text *a, const struct text *b)
{
    for (size_t i = 0; i < e->n;) {
        while (i < e->n && e->v[e->n - 1 - i].kind == ' ')
            i++;
        if (i == e->n)
            return;
        size_t from = i > TEXTDIFF_CONTEXT ? i - TEXTDIFF_CONTEXT : 0, to = i, quiet = 0;
        for (; to < e->n && quiet <= 2 * TEXTDIFF_CONTEXT; to++)
            quiet = e->v[e->n - 1 - to].kind == ' ' ? quiet + 1 : 0;
        size_t end = to - (quiet > TEXTDIFF_CONTEXT ? quiet - TEXTDIFF_CONTEXT : 0);
        put_hunk(out, e, from, end, a, b);
        i = to;
    }
}

bool textdiff_add(const char *name, const char *a, size_t na, const char *b, size_t nb, struct buf *out)
{
    struct text ta = {0}, tb = {0};
    struct edits e = {0};
    bool text = textdiff_is_text(a, na) && textdiff_is_text(b, nb);
    bool ok = text && text_split_lines(a, na, &ta) && text_split_lines(b, nb, &tb) && text_compare(&ta, &tb, &e);
    if (ok) {
        buf_addf(out, "--- a/%s\n+++ b/%s\n", name, name);
        put_hunks(out, &e, &ta, &tb);
    } else {
        buf_addf(out, "%s differs (%s)\n", name, text ? "too much to be shown line by line" : "not text");
    }
    free(ta.v);
    free(tb.v);
    free(e.v);
    return ok;
}
