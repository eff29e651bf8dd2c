#include "guest/code/lines.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

const char lines_keepalive[] = "{\"type\":\"keepalive\"}\n";
const char lines_end[] = "{\"type\":\"end_of_execution\"}\n";

static const struct {
    const char *mime, *key;
} known_types[] = {
    {"text/plain", "text"},        {"text/html", "html"},
    {"text/markdown", "markdown"}, {"image/svg+xml", "svg"},
    {"image/png", "png"},          {"image/jpeg", "jpeg"},
    {"application/pdf", "pdf"},    {"text/latex", "latex"},
    {"application/json", "json"},  {"application/javascript", "javascript"},
    {"e2b/data", "data"},          {"e2b/chart", "chart"},
};

static int line_append(const char *p, size_t n, void *arg)
{
    buf_add(arg, p, n);
    return 0;
}

/* Writes one line, takes `o` over. Above the limit the line is dropped and an error takes its place. */
static void line_write(struct lines *l, json_t *o, struct buf *out)
{
    size_t before = out->n;
    if (!l->full) {
        (void)json_dump_callback(o, line_append, out, JSON_COMPACT);
        buf_addc(out, '\n');
    }
    json_decref(o);
    l->bytes += out->n - before;
    bool own = l->most > 0 && l->most < LINES_OUTPUT_MAX;
    if (l->full || l->bytes <= (own ? l->most : LINES_OUTPUT_MAX))
        return;
    out->n = before;
    char why[160];
    if (own) {
        (void)snprintf(why, sizeof why,
                       "the cell wrote more than its %llu bytes; the rest was dropped and it was interrupted",
                       (unsigned long long)l->most);
        lines_stop_too_large(l, why);
        return;
    }
    (void)snprintf(why, sizeof why,
                   "the cell wrote more than %d MiB; the rest was dropped and the cell interrupted: write it to a file",
                   LINES_OUTPUT_MAX >> 20);
    lines_stop_too_large(l, why);
}

static void line_add_error(struct lines *l, json_t *name, json_t *value, json_t *traceback, struct buf *out)
{
    if (!l->failed)
        line_write(l, json_pack("{ss sO sO sO}", "type", "error", "name", name, "value", value, "traceback", traceback),
                   out);
    l->failed = true;
}

void lines_add_error(struct lines *l, const char *name, const char *value, struct buf *out)
{
    json_t *n = json_string(name), *v = json_string(value), *t = json_string("");
    line_add_error(l, n, v ? v : t, t, out);
    json_decref(n);
    json_decref(v);
    json_decref(t);
}

void lines_stop(struct lines *l, const char *name, const char *why)
{
    if (l->failed)
        return;
    l->failed = true;
    l->stop = name;
    (void)snprintf(l->why, sizeof l->why, "%s", why);
}

void lines_stop_too_large(struct lines *l, const char *why)
{
    lines_stop(l, "OutputLimitExceeded", why);
    l->full = true;
}

void lines_add_stop(struct lines *l, const char *more, struct buf *out)
{
    char why[sizeof l->why + 256];
    if (!l->stop)
        return;
    (void)snprintf(why, sizeof why, "%s%s%.200s", l->why, more ? "; " : "", more ? more : "");
    const char *name = l->stop;
    l->failed = l->full = false;
    l->stop = NULL;
    l->bytes = 0;
    lines_add_error(l, name, why, out);
}

/* The text of a value: strings as they are, other things empty. */
static json_t *line_text(json_t *v) { return json_is_string(v) ? json_incref(v) : json_string(""); }

/* Appends text without the sequences that colour a terminal: tracebacks are read by programs. */
static void line_add_plain(struct buf *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] != '\x1b' || i + 1 == n || s[i + 1] != '[') {
            buf_addc(b, s[i]);
            continue;
        }
        for (i += 2; i < n && (s[i] < '@' || s[i] > '~'); i++)
            ;
    }
}

static json_t *line_joined(json_t *list)
{
    _cleanup_buf_ struct buf b = {0};
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item)
    {
        if (!json_is_string(item))
            continue;
        if (b.n > 0 && b.p[b.n - 1] != '\n')
            buf_addc(&b, '\n');
        line_add_plain(&b, json_string_value(item), json_string_length(item));
    }
    json_t *s = json_stringn(buf_str(&b), b.n);
    return s ? s : json_string("");
}

static void line_on_error(struct lines *l, json_t *content, struct buf *out)
{
    json_t *name = line_text(json_object_get(content, "ename")), *value = line_text(json_object_get(content, "evalue"));
    json_t *traceback = line_joined(json_object_get(content, "traceback"));
    /* bash_kernel's errors have the exit code and no name. */
    if (json_string_length(name) == 0) {
        json_decref(name);
        name = json_string("ExitCode");
    }
    line_add_error(l, name, value, traceback, out);
    json_decref(name);
    json_decref(value);
    json_decref(traceback);
}

static void line_add_stream(struct lines *l, const char *type, json_t *text, struct buf *out)
{
    struct timespec now;
    struct tm tm;
    char stamp[64];
    (void)clock_gettime(CLOCK_REALTIME, &now);
    size_t n = strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &tm));
    (void)snprintf(stamp + n, sizeof stamp - n, ".%06uZ", (unsigned)now.tv_nsec / 1000);
    line_write(l, json_pack("{ss sO ss}", "type", type, "text", text, "timestamp", stamp), out);
}

void lines_add_text(struct lines *l, const char *type, const char *text, struct buf *out)
{
    json_t *t = json_string(text);
    if (t)
        line_add_stream(l, type, t, out);
    json_decref(t);
}

static void line_on_stream(struct lines *l, json_t *content, struct buf *out)
{
    const char *name = json_string_value(json_object_get(content, "name"));
    json_t *text = json_object_get(content, "text");
    if (json_is_string(text))
        line_add_stream(l, name && strcmp(name, "stderr") == 0 ? "stderr" : "stdout", text, out);
}

static const char *line_key_of(const char *mime)
{
    for (size_t i = 0; i < sizeof known_types / sizeof known_types[0]; i++)
        if (strcmp(known_types[i].mime, mime) == 0)
            return known_types[i].key;
    return NULL;
}

/* text/plain of a string is its representation; clients expect it without its quotes. */
static json_t *line_unquoted(json_t *text)
{
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    if (s && n >= 2 && (s[0] == '\'' || s[0] == '"') && s[n - 1] == s[0])
        return json_stringn(s + 1, n - 2);
    return json_incref(text);
}

static void line_on_result(struct lines *l, json_t *content, bool is_main, struct buf *out)
{
    json_t *data = json_object_get(content, "data"), *value;
    json_t *o = json_pack("{ss sb}", "type", "result", "is_main_result", is_main), *extra = json_object();
    const char *mime;
    json_object_foreach(data, mime, value)
    {
        const char *key = line_key_of(mime);
        if (json_is_null(value))
            continue;
        if (key) {
            (void)json_object_set_new(o, key, strcmp(key, "text") == 0 ? line_unquoted(value) : json_incref(value));
        } else {
            /* The Python client reads `extra`, the JavaScript one the top. */
            (void)json_object_set(extra, mime, value);
            if (!json_object_get(o, mime))
                (void)json_object_set(o, mime, value);
        }
    }
    (void)json_object_set_new(o, "extra", extra);
    line_write(l, o, out);
}

static void line_on_reply(struct lines *l, json_t *content, struct buf *out)
{
    const char *status = json_string_value(json_object_get(content, "status"));
    l->replied = true;
    if (status && strcmp(status, "error") == 0)
        line_on_error(l, content, out);
    else if (status && strncmp(status, "abort", 5) == 0)
        lines_add_error(l, "ExecutionAborted", "Execution was aborted", out);
}

void lines_add_message(struct lines *l, const struct wire_msg *m, struct buf *out)
{
    if (strcmp(m->type, "stream") == 0) {
        line_on_stream(l, m->content, out);
    } else if (strcmp(m->type, "execute_result") == 0 || strcmp(m->type, "display_data") == 0) {
        line_on_result(l, m->content, m->type[0] == 'e', out);
    } else if (strcmp(m->type, "error") == 0) {
        line_on_error(l, m->content, out);
    } else if (strcmp(m->type, "execute_reply") == 0) {
        line_on_reply(l, m->content, out);
    } else if (strcmp(m->type, "execute_input") == 0) {
        json_t *count = json_object_get(m->content, "execution_count");
        if (json_is_integer(count))
            line_write(l, json_pack("{ss sO}", "type", "number_of_executions", "execution_count", count), out);
    } else if (strcmp(m->type, "status") == 0) {
        const char *state = json_string_value(json_object_get(m->content, "execution_state"));
        l->idle |= state && strcmp(state, "idle") == 0;
    }
}
