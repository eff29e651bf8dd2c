/* Transactions over HTTP: start one, look at it, commit or discard it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "front/changes.h"
#include "front/e2b/e2b.h"
#include "front/native.h"
#include "front/reply.h"
#include "front/transactions.h"
#include "http/body.h"
#include "sandbox/stockc.h"

enum { COMMAND_MAX = 64 << 10, CONFLICTS_BYTES_MAX = 1 << 20, CONFLICTS_SHOWN = 1000 };

/* A request that waits; r is NULL once the client left. */
struct waiting {
    struct http_req *r;
    struct front *f;
    char box[SANDBOX_ID_MAX], id[24];
    unsigned status;  /* of a good answer */
    stockc_call call; /* one that ends when nobody waits for it */
};

static void client_left(struct http_req *r)
{
    struct waiting *w = r->user;
    w->r = NULL;
    if (!w->call)
        return;
    stockc_cancel(w->f->stock, w->call);
    free(w);
}

static struct waiting *wait_for(struct api_call *c, const struct box *b, unsigned status)
{
    struct waiting *w = xcalloc(1, sizeof *w);
    *w = (struct waiting){.r = c->req, .f = c->front, .status = status};
    memcpy(w->box, b->id, sizeof w->box);
    c->req->user = w;
    api_on_closed(c->req, client_left);
    return w;
}

static struct http_req *waited(struct waiting *w)
{
    struct http_req *r = w->r;
    free(w);
    if (r)
        api_on_closed(r, NULL);
    return r;
}

/* --- showing one ---------------------------------------------------------------------------------------------------- */

static void add_head(struct json *j, const struct transaction *t)
{
    char at[REPLY_TIME_MAX];
    reply_time(t->at_unix_ms, at);
    json_str(j, "id", t->id);
    json_str(j, "sandboxID", t->box);
    json_str(j, "command", t->command);
    json_str(j, "at", at);
    json_i64(j, t->exited ? "exitCode" : "signal", t->code);
    json_u64(j, "wallMs", t->wall_ms);
    json_str(j, "state", t->busy ? "committing" : "open");
}

/* The output as text: what is not UTF-8 is replaced by the writer, and a NUL ends nothing. */
static void add_stream(struct json *j, const char *key, const struct buf *out)
{
    _cleanup_buf_ struct buf text = {0};
    buf_add(&text, out->p, out->n);
    for (size_t i = 0; i < text.n; i++)
        if (text.p[i] == '\0')
            text.p[i] = (char)0xff;
    json_str(j, key, buf_str(&text));
}

static void add_output(struct json *j, const struct transaction *t)
{
    add_stream(j, "stdout", &t->out[1]);
    add_stream(j, "stderr", &t->out[2]);
    if (t->omitted[1] || t->omitted[2])
        json_u64(j, "outputOmitted", t->omitted[1] + t->omitted[2]);
}

static void compared(void *arg, const struct stock_reply *reply, int fd)
{
    struct waiting *w = arg;
    struct transaction *t = transaction_find(w->f, w->box, w->id);
    unsigned status = w->status;
    struct http_req *r = waited(w);
    _cleanup_close_ int records = fd;
    _cleanup_buf_ struct buf out = {0};
    struct state_failure failure = {0};
    struct err err = {0};
    struct json j;
    if (!r)
        return;
    if (!t) {
        reply_error(r, 404, "the transaction ended meanwhile");
        return;
    }
    if (reply->error != STOCK_OK || records < 0) {
        state_stock_failure(reply, "the comparison", &failure);
        e2b_refuse_state(r, &failure);
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    add_head(&j, t);
    add_output(&j, t);
    int rc = changes_add(&j, records, "", &err);
    json_bool(&j, "memory", false); /* files only: what ran in the copy is gone */
    json_end_obj(&j);
    if (rc < 0)
        reply_error(r, 500, "%s", err.msg);
    else
        reply_json(r, status, &out);
}

static void show(struct waiting *w, const struct transaction *t)
{
    struct stock_request q = stockc_request(STOCK_DIFF);
    if (!w->r) { /* the client left while it ran; it can be looked at later */
        free(w);
        return;
    }
    (void)memccpy(w->id, t->id, 0, sizeof w->id - 1);
    (void)memccpy(q.stack, t->base, 0, sizeof q.stack - 1);
    (void)memccpy(q.other, t->result, 0, sizeof q.other - 1);
    w->call = stockc_ask_for(w->f->stock, t->tenant, &q, NULL, 0, NULL, compared, w);
}

/* --- starting ------------------------------------------------------------------------------------------------------- */

static void ran(void *arg, const struct transaction *t, const struct state_failure *failure)
{
    struct waiting *w = arg;
    if (!failure) {
        show(w, t);
        return;
    }
    struct http_req *r = waited(w);
    if (r)
        e2b_refuse_state(r, failure);
}

static int read_env(json_t *root, struct strv *ret, struct err *err)
{
    json_t *map = NULL, *v;
    const char *name;
    if (e2b_field_obj(root, "envs", &map, err) < 0)
        return -1;
    json_object_foreach(map, name, v)
    {
        if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v) || !*name || strchr(name, '='))
            return err_set(err, ERR_USAGE, 0, "field 'envs': names without '=' and strings without NUL");
        strv_take(ret, xasprintf("%s=%s", name, json_string_value(v)));
    }
    return 0;
}

static int read_spec(json_t *root, struct transaction_spec *s, struct err *err)
{
    static const char *const known[] = {"command", "user", "cwd", "envs", "timeout", NULL};
    int64_t timeout = TRANSACTION_TIME_S;
    const char *name;
    json_t *v;
    if (!json_is_object(root))
        return err_set(err, ERR_USAGE, 0, "the body must be an object with a field 'command'");
    json_object_foreach(root, name, v)
    {
        size_t i = 0;
        while (known[i] && strcmp(known[i], name) != 0)
            i++;
        if (!known[i])
            return err_set(err, ERR_USAGE, 0,
                           "this route knows no field '%.64s'; there are command, user, cwd, envs, timeout", name);
    }
    if (e2b_field_str(root, "command", &s->command, err) < 0 || e2b_field_str(root, "user", &s->user, err) < 0 ||
        e2b_field_str(root, "cwd", &s->cwd, err) < 0 || read_env(root, &s->env, err) < 0 ||
        e2b_field_int(root, "timeout", 1, TRANSACTION_TIME_MAX_S, &timeout, err) < 0)
        return -1;
    if (!s->command || !*s->command || strlen(s->command) > COMMAND_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'command' must be a command for a shell, at most %d bytes",
                       COMMAND_MAX);
    s->timeout_s = (uint64_t)timeout;
    return 0;
}

static void start_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    struct transaction_spec spec = {0};
    struct err err;
    struct box *b = status ? NULL : api_box(c);
    if (status)
        reply_error(r, status, "%s", error);
    if (!b)
        return;
    if (read_spec(root, &spec, &err) < 0)
        reply_error(r, 400, "%s", err.msg);
    else
        transaction_start(c->front, b, &spec, ran, wait_for(c, b, 201));
    strv_done(&spec.env);
}

void native_tx_start(struct api_call *c) { body_json(c->req, 0, start_body); }

/* --- looking -------------------------------------------------------------------------------------------------------- */

static void list_one(void *arg, const struct transaction *t)
{
    json_obj(arg, NULL);
    add_head(arg, t);
    json_end_obj(arg);
}

void native_txs(struct api_call *c)
{
    const struct box *b = api_box(c);
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!b)
        return;
    json_start(&j, &out);
    json_arr(&j, NULL);
    transactions_each(c->front, b->id, list_one, &j);
    json_end_arr(&j);
    reply_json(c->req, 200, &out);
}

static struct transaction *find(struct api_call *c, const struct box *b)
{
    struct transaction *t = b ? transaction_find(c->front, b->id, c->param[1]) : NULL;
    if (b && !t)
        reply_error(c->req, 404,
                    "no transaction '%.24s' waits in this sandbox; decided ones are gone, and so are those of the "
                    "hour before",
                    c->param[1]);
    return t;
}

void native_tx(struct api_call *c)
{
    struct box *b = api_box(c);
    struct transaction *t = find(c, b);
    if (t && !native_crowded(c))
        show(wait_for(c, b, 200), t);
}

/* --- deciding ------------------------------------------------------------------------------------------------------- */

static void add_conflicts(struct json *j, int fd)
{
    _cleanup_free_ char *text = xcalloc(1, CONFLICTS_BYTES_MAX + 1);
    ssize_t n = fd < 0 ? -1 : pread(fd, text, CONFLICTS_BYTES_MAX, 0);
    json_arr(j, "conflicts");
    char *save = NULL;
    size_t shown = 0;
    for (char *line = n > 0 ? strtok_r(text, "\n", &save) : NULL; line && shown < CONFLICTS_SHOWN;
         line = strtok_r(NULL, "\n", &save), shown++) {
        _cleanup_free_ char *path = xasprintf("/%s", line);
        json_str(j, NULL, path);
    }
    json_end_arr(j);
}

static void committed(void *arg, const struct stock_reply *reply, const struct state_failure *failure, int conflicts)
{
    _cleanup_close_ int fd = conflicts;
    struct http_req *r = waited(arg);
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!r)
        return;
    if (failure && failure->status != 409) {
        e2b_refuse_state(r, failure);
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    if (failure) {
        json_u64(&j, "code", 409);
        json_str(&j, "message", failure->text);
        add_conflicts(&j, fd);
    } else {
        json_bool(&j, "committed", true);
        json_u64(&j, "added", reply->entries);
        json_u64(&j, "changed", reply->entries2);
        json_u64(&j, "removed", reply->bytes2);
        json_u64(&j, "frozenUs", reply->frozen_us);
    }
    json_end_obj(&j);
    reply_json(r, failure ? 409 : 200, &out);
}

void native_tx_commit(struct api_call *c)
{
    struct box *b = api_box(c);
    struct transaction *t = find(c, b);
    if (t && !native_crowded(c))
        transaction_commit(c->front, b, t, committed, wait_for(c, b, 200));
}

void native_tx_discard(struct api_call *c)
{
    const struct box *b = api_box(c);
    struct transaction *t = find(c, b);
    if (!t)
        return;
    if (t->busy) {
        reply_refuse(c->req, 503, NULL, 1, "the transaction is being committed; look again later");
        return;
    }
    transaction_discard(c->front, t);
    reply_empty(c->req, 204);
}
