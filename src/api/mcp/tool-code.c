/* tool-code.c - run_code: a cell in the sandbox's interpreter; its lines become text, pictures and a structured result. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/interpreter.h"
#include "api/mcp/mcp.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/mem.h"

enum {
    CELL_S = 60,
    CELL_GRACE_S = 45, /* a kernel may have to start first, or to be killed */
    CELL_TELL_MS = 1000,
    CELL_LINE_MAX = 8 << 20,    /* bytes of one line; longer ones are left out */
    CELL_PICTURES_MAX = 4,      /* of a result */
    CELL_PICTURE_MAX = 1 << 20, /* bytes of base64 */
    CELL_RESULTS_MAX = 50,
    CELL_CHART_MAX = 16 << 10, /* bytes of JSON: larger chart data is left out */
    CELL_VALUES_MAX = 20000,   /* of one line, and its levels: lines with more are left out */
    CELL_LEVELS_MAX = 64,
    CELL_NAME_MAX = 1000 /* bytes of an error's name and value */
};

/* A cell under way; it is the call's `own`. */
struct mcp_cell {
    struct mcp_call *k;
    struct interpreter *x;
    char sandbox[SANDBOX_ID_MAX];
    uint64_t begun, limit_ms;
    struct buf line;
    bool skipping; /* a line that is too long */
    unsigned left_out;
    struct buf out[3]; /* stdout, stderr, texts of results */
    uint64_t dropped[2];
    json_t *results, *pictures, *error;
    int64_t count;
};
enum { CELL_OUT, CELL_ERR, CELL_TEXT };

static void mcp_cell_free(void *own)
{
    struct mcp_cell *w = own;
    interpreter_cancel(w->x);
    buf_done(&w->line);
    for (size_t i = 0; i < ARRAY_LEN(w->out); i++)
        buf_done(&w->out[i]);
    json_decref(w->results);
    json_decref(w->pictures);
    json_decref(w->error);
    free(w);
}

static void mcp_cell_cancel(struct mcp_call *k) { mcp_fail(k, "cancelled: the cell was interrupted"); }

static void mcp_cell_tell(void *arg)
{
    struct mcp_call *k = arg;
    struct mcp_cell *w = k->own;
    uint64_t ms = loop_now(k->api->loop) - w->begun;
    char text[80];
    k->ping = 0;
    if (ms >= w->limit_ms + CELL_GRACE_S * 1000) {
        mcp_fail(k, "the code interpreter did not end the cell in time; run it again, or make another sandbox");
        return;
    }
    (void)snprintf(text, sizeof text, "running for %llu s", (unsigned long long)(ms / 1000));
    mcp_progress(k, ms / 1000, 0, text);
    mcp_keep_alive(k);
    k->ping = loop_timer(k->api->loop, CELL_TELL_MS, mcp_cell_tell, k);
}

/* --- lines ---------------------------------------------------------------------------------------------------------- */

static void mcp_cell_add_stream(struct mcp_cell *w, int which, const json_t *o)
{
    const char *text = json_string_value(json_object_get(o, "text"));
    size_t n = json_string_length(json_object_get(o, "text")), room = MCP_KEPT_MAX - w->out[which].n;
    size_t fits = n < room ? n : room;
    if (text)
        buf_add(&w->out[which], text, fits);
    w->dropped[which] += n - fits;
}

static void mcp_cell_add_picture(struct mcp_cell *w, const json_t *o, const char *key, const char *mime)
{
    json_t *data = json_object_get(o, key);
    if (!json_is_string(data))
        return;
    if (json_array_size(w->pictures) >= CELL_PICTURES_MAX || json_string_length(data) > CELL_PICTURE_MAX) {
        w->left_out++;
        return;
    }
    /* Base64 as kernels write it may have newlines. */
    _cleanup_buf_ struct buf plain = {0};
    for (const char *p = json_string_value(data); *p; p++)
        if (*p > ' ')
            buf_addc(&plain, *p);
    (void)json_array_append_new(
        w->pictures, json_pack("{s:s,s:o,s:s}", "type", "image", "data", mcp_text(plain.p, plain.n), "mimeType", mime));
}

/* A chart as it came, unless it is large or has a NUL, which few clients can read. */
static void mcp_cell_add_chart(json_t *r, json_t *chart)
{
    _cleanup_free_ char *text = chart ? json_dumps(chart, JSON_COMPACT) : NULL;
    if (text && strlen(text) <= CELL_CHART_MAX && !strstr(text, "\\u0000"))
        (void)json_object_set(r, "chart", chart);
}

static void mcp_cell_add_result(struct mcp_cell *w, json_t *o)
{
    const char *text = field_text(o, "text"); /* may have NUL */
    size_t room = MCP_KEPT_MAX - w->out[CELL_TEXT].n, n = json_string_length(json_object_get(o, "text"));
    mcp_cell_add_picture(w, o, "png", "image/png");
    mcp_cell_add_picture(w, o, "jpeg", "image/jpeg");
    if (n > 0 && n + 1 <= room) {
        buf_add(&w->out[CELL_TEXT], text, n);
        buf_addc(&w->out[CELL_TEXT], '\n');
    } else if (n > 0) {
        w->left_out++;
    }
    if (json_array_size(w->results) >= CELL_RESULTS_MAX)
        return;
    json_t *r = json_pack("{s:b}", "main", json_is_true(json_object_get(o, "is_main_result")));
    if (n > 0 && n <= MCP_TEXT_MAX)
        (void)json_object_set_new(r, "text", mcp_text(text, n));
    mcp_cell_add_chart(r, json_object_get(o, "chart"));
    (void)json_array_append_new(w->results, r);
}

/* The first `most` bytes of a member, or the last ones. */
static json_t *mcp_cell_cut(const json_t *o, const char *name, size_t most, bool end)
{
    const char *text = field_text(o, name);
    size_t n = json_string_length(json_object_get(o, name)), kept = n < most ? n : most;
    return mcp_text(text + (end ? n - kept : 0), kept);
}

/* Keeps what is shown of an error: the service may send more members. */
static void mcp_cell_add_failure(struct mcp_cell *w, const json_t *o)
{
    w->error = json_pack("{s:o,s:o,s:o}", "name", mcp_cell_cut(o, "name", CELL_NAME_MAX, false), "value",
                         mcp_cell_cut(o, "value", CELL_NAME_MAX, false), "traceback",
                         mcp_cell_cut(o, "traceback", MCP_TEXT_MAX, true)); /* the end says what happened */
}

static void mcp_cell_on_line(struct mcp_cell *w, const char *p, size_t n)
{
    if (!fields_text_is_small(p, n, CELL_VALUES_MAX, CELL_LEVELS_MAX)) {
        w->left_out++;
        return;
    }
    json_t *o = json_loadb(p, n, JSON_ALLOW_NUL, NULL);
    const char *type = field_text(o, "type");
    if (strcmp(type, "stdout") == 0)
        mcp_cell_add_stream(w, CELL_OUT, o);
    else if (strcmp(type, "stderr") == 0)
        mcp_cell_add_stream(w, CELL_ERR, o);
    else if (strcmp(type, "result") == 0)
        mcp_cell_add_result(w, o);
    else if (strcmp(type, "number_of_executions") == 0)
        w->count = field_number(o, "execution_count");
    else if (strcmp(type, "error") == 0 && !w->error)
        mcp_cell_add_failure(w, o);
    json_decref(o);
}

static void mcp_cell_on_data(void *arg, const void *data, size_t n)
{
    struct mcp_cell *w = arg;
    const char *p = data, *end = p + n;
    while (p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t part = (size_t)((nl ? nl : end) - p);
        if (!w->skipping && w->line.n + part > CELL_LINE_MAX) {
            w->skipping = true;
            w->left_out++;
            buf_done(&w->line);
        }
        if (!w->skipping)
            buf_add(&w->line, p, part);
        if (nl && !w->skipping)
            mcp_cell_on_line(w, w->line.p, w->line.n);
        if (nl) {
            w->skipping = false;
            w->line.n = 0;
        }
        p += part + (nl != NULL);
    }
}

/* --- the end -------------------------------------------------------------------------------------------------------- */

/* Adds a stream to the structured result and to the text, shortened, with a handle if it does not fit. */
static void mcp_cell_show(struct mcp_cell *w, int which, struct buf *text)
{
    static const char *const names[] = {"stdout", "stderr"};
    struct json *j = mcp_data(w->k);
    char handle[MCP_HANDLE_MAX] = "", key[32];
    struct buf *b = &w->out[which];
    for (size_t i = 0; i < b->n; i++)
        if (b->p[i] == '\0')
            b->p[i] = (char)0xff; /* becomes U+FFFD */
    if (b->n > MCP_TEXT_MAX)
        mcp_output_keep(w->k, w->sandbox, b, handle);
    if (text->n && text->p[text->n - 1] != '\n' && b->n)
        buf_addc(text, '\n');
    size_t before = text->n;
    mcp_output_shorten(b, handle, text);
    if (which == CELL_TEXT)
        return;
    json_str(j, names[which], buf_str(text) + before);
    if (handle[0]) {
        (void)snprintf(key, sizeof key, "%s_handle", names[which]);
        json_str(j, key, handle);
    }
    if (w->dropped[which]) {
        (void)snprintf(key, sizeof key, "%s_dropped", names[which]);
        json_u64(j, key, w->dropped[which]);
    }
}

static void mcp_cell_add_error(struct mcp_cell *w, struct buf *text)
{
    struct json *j = mcp_data(w->k);
    const char *name = field_text(w->error, "name"), *value = field_text(w->error, "value"),
               *trace = field_text(w->error, "traceback");
    json_obj(j, "error");
    json_str(j, "name", name);
    json_str(j, "value", value);
    json_end_obj(j);
    buf_addf(text, "%s%s", text->n && text->p[text->n - 1] != '\n' ? "\n" : "", trace);
    if (!strstr(trace, name) || !trace[0])
        buf_addf(text, "%s%s: %s", trace[0] ? "\n" : "", name, value);
}

static void mcp_cell_finish(struct mcp_cell *w)
{
    struct mcp_call *k = w->k;
    struct json *j = mcp_data(k);
    _cleanup_buf_ struct buf text = {0};
    json_str(j, "sandbox", w->sandbox);
    if (w->count)
        json_i64(j, "execution_count", w->count);
    for (int i = CELL_OUT; i <= CELL_TEXT; i++)
        mcp_cell_show(w, i, &text);
    _cleanup_free_ char *results = json_dumps(w->results, JSON_COMPACT);
    if (w->error)
        mcp_cell_add_error(w, &text);
    if (w->left_out)
        buf_addf(&text,
                 "\n[%u outputs were left out: at most %d pictures of 1 MiB are shown; write large ones to files]",
                 w->left_out, CELL_PICTURES_MAX);
    if (!text.n && !json_array_size(w->pictures))
        buf_adds(&text, "[no output]");
    json_none(j, "results");
    k->data.n -= strlen("null"); /* the text as it is: a chart has numbers that the writer would round */
    buf_adds(&k->data, results ? results : "[]");
    json_t *content = json_pack("[{s:s,s:o}]", "type", "text", "text", mcp_text(buf_str(&text), text.n));
    (void)json_array_extend(content, w->pictures);
    mcp_done_with(k, content, w->error != NULL);
}

static void mcp_cell_on_ended(void *arg)
{
    struct mcp_cell *w = arg;
    w->x = NULL;
    mcp_cell_finish(w);
}

static void mcp_cell_on_failed(void *arg, const struct interpreter_failure *f)
{
    struct mcp_cell *w = arg;
    w->x = NULL;
    mcp_fail(w->k, "%s: %s", f->code, f->text);
}

void mcp_run_code(struct mcp_call *k)
{
    static const struct interpreter_ops ops = {mcp_cell_on_data, mcp_cell_on_ended, mcp_cell_on_failed};
    struct sandbox *b = mcp_sandbox(k);
    _cleanup_buf_ struct buf body = {0};
    struct json j;
    struct err err;
    if (!b)
        return;
    struct mcp_cell *w = xcalloc(1, sizeof *w);
    int64_t seconds = mcp_arg_int(k, "timeout_s", CELL_S);
    *w = (struct mcp_cell){.k = k, .begun = loop_now(k->api->loop), .limit_ms = (uint64_t)seconds * 1000};
    memcpy(w->sandbox, b->id, sizeof w->sandbox);
    w->results = json_array();
    w->pictures = json_array();
    k->own = w;
    k->own_done = mcp_cell_free;
    k->cancel = mcp_cell_cancel;
    json_start(&j, &body);
    json_obj(&j, NULL);
    json_str(&j, "code", mcp_arg(k, "code"));
    json_str(&j, "language", mcp_arg(k, "language") ? mcp_arg(k, "language") : "python");
    json_i64(&j, "timeout", seconds);
    int given = interpreter_add_rights(json_object_get(k->args, "rights"), &j, &body, &err);
    json_end_obj(&j);
    if (given < 0) {
        mcp_fail(k, "%s", err.msg);
        return;
    }
    w->x = interpreter_ask(k->api, b, "POST", given ? INTERPRETER_RIGHTS "/execute" : "/execute", &body, &ops, w);
    k->ping = loop_timer(k->api->loop, CELL_TELL_MS, mcp_cell_tell, k);
}
