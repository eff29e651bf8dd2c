/* The log of a build: a bounded list of lines, which clients read by offset. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mem.h"
#include "builds/builds.h"

static const char *const levels[] = {"debug", "info", "warn", "error"};

const char *build_level_name(enum build_level level) { return levels[level]; }

bool build_level_of(const char *name, enum build_level *ret)
{
    for (size_t i = 0; i < ARRAY_LEN(levels); i++)
        if (strcmp(levels[i], name) == 0) {
            *ret = (enum build_level)i;
            return true;
        }
    return false;
}

void build_log_done(struct build_log *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i].text);
    free(l->v);
    buf_done(&l->part[0]);
    buf_done(&l->part[1]);
    *l = (struct build_log){0};
}

size_t build_log_size(const struct build_log *l) { return l->bytes + l->n * sizeof *l->v; }

static void build_log_put(struct build_log *l, const char *step, enum build_level level, const char *text, size_t n)
{
    MEM_GROW(l->v, l->n, l->cap);
    struct build_entry *e = &l->v[l->n++];
    *e = (struct build_entry){.at_unix_ms = clock_unix_ms(), .level = level, .text = xstrndup(text, n)};
    (void)snprintf(e->step, sizeof e->step, "%s", step);
    l->bytes += n;
}

/* Whether there is room for output of a command. The builder's own messages are few and always kept. */
static bool build_log_has_room(struct build_log *l, const char *step, size_t n)
{
    if (l->full)
        return false;
    if (l->n < BUILD_LOG_LINES && l->bytes + n <= BUILD_LOG_BYTES)
        return true;
    l->full = true;
    static const char text[] = "the log of this build is full: further output is not kept";
    build_log_put(l, step, BUILD_WARN, text, sizeof text - 1);
    return false;
}

void build_log_add(struct build_log *l, const char *step, enum build_level level, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    build_log_put(l, step, level, text, strlen(text));
}

static void build_log_line(struct build_log *l, const char *step, unsigned which, const char *p, size_t n)
{
    while (n && (p[n - 1] == '\r' || p[n - 1] == '\n'))
        n--;
    const char *cr = n ? memrchr(p, '\r', n) : NULL; /* of a progress bar keep the last state */
    if (cr) {
        n -= (size_t)(cr + 1 - p);
        p = cr + 1;
    }
    if (build_log_has_room(l, step, n))
        build_log_put(l, step, which ? BUILD_WARN : BUILD_INFO, p, n);
}

void build_log_output(struct build_log *l, const char *step, unsigned which, const void *p, size_t n)
{
    struct buf *part = &l->part[which ? 1 : 0];
    const char *at = p, *end = at + n;
    while (at < end) {
        const char *nl = memchr(at, '\n', (size_t)(end - at));
        size_t take = nl ? (size_t)(nl - at) : (size_t)(end - at);
        bool cut = part->n + take > BUILD_LINE_MAX;
        if (cut)
            take = BUILD_LINE_MAX - part->n;
        buf_add(part, at, take);
        at += take;
        if (cut || (nl && at == nl)) {
            build_log_line(l, step, which, buf_str(part), part->n);
            part->n = 0;
            at += at < end && *at == '\n';
        }
    }
}

void build_log_flush(struct build_log *l, const char *step)
{
    for (unsigned i = 0; i < 2; i++) {
        if (l->part[i].n)
            build_log_line(l, step, i, buf_str(&l->part[i]), l->part[i].n);
        l->part[i].n = 0;
    }
}
