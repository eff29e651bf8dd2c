/* native-tx.c - transactions over HTTP: start, show, commit or discard one. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/native/native.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "http/body.h"
#include "peers/layersc.h"
#include "snapshots/changes.h"
#include "snapshots/transactions.h"

enum { COMMAND_MAX = 64 << 10, CONFLICTS_BYTES_MAX = 1 << 20, CONFLICTS_SHOWN = 1000 };

/* A request that waits; r is NULL once the client left. */
struct waiting {
    struct http_req *r;
    struct api *api;
    char sandbox[SANDBOX_ID_MAX], id[24];
    unsigned status;   /* HTTP status of success */
    layersc_call call; /* cancelled when the client leaves */
};

static void native_tx_on_client_left(struct http_req *r)
{
    struct waiting *w = r->user;
    w->r = NULL;
    if (!w->call)
        return;
    layersc_cancel(w->api->peers->layers, w->call);
    free(w);
}

static struct waiting *native_tx_wait_new(struct api_call *c, const struct sandbox *b, unsigned status)
{
    struct waiting *w = xcalloc(1, sizeof *w);
    *w = (struct waiting){.r = c->req, .api = c->api, .status = status};
    memcpy(w->sandbox, b->id, sizeof w->sandbox);
    c->req->user = w;
    api_on_closed(c->req, native_tx_on_client_left);
    return w;
}

static struct http_req *native_tx_wait_over(struct waiting *w)
{
    struct http_req *r = w->r;
    free(w);
    if (r)
        api_on_closed(r, NULL);
    return r;
}

/* --- showing one ---------------------------------------------------------------------------------------------------- */

static void native_tx_add_head(struct json *j, const struct transaction *t)
{
    char at[REPLY_TIME_MAX];
    reply_time(t->at_unix_ms, at);
    json_str(j, "id", t->id);
    json_str(j, "sandboxID", t->sandbox);
    json_str(j, "command", t->command);
    json_str(j, "at", at);
    json_i64(j, t->exited ? "exitCode" : "signal", t->code);
    json_u64(j, "wallMs", t->wall_ms);
    json_str(j, "state", t->busy ? "committing" : "open");
}

/* Adds output as text: the JSON writer replaces what is not UTF-8, and each NUL becomes such a byte. */
static void native_tx_add_stream(struct json *j, const char *key, const struct buf *out)
{
    _cleanup_buf_ struct buf text = {0};
    buf_add(&text, out->p, out->n);
    for (size_t i = 0; i < text.n; i++)
        if (text.p[i] == '\0')
            text.p[i] = (char)0xff;
    json_str(j, key, buf_str(&text));
}

static void native_tx_add_output(struct json *j, const struct transaction *t)
{
    native_tx_add_stream(j, "stdout", &t->output.kept[EXEC_STDOUT]);
    native_tx_add_stream(j, "stderr", &t->output.kept[EXEC_STDERR]);
    uint64_t omitted = t->output.omitted[EXEC_STDOUT] + t->output.omitted[EXEC_STDERR];
    if (omitted)
        json_u64(j, "outputOmitted", omitted);
}

static void native_tx_on_compared(void *arg, const struct layers_reply *reply, int fd)
{
    struct waiting *w = arg;
    struct transaction *t = transaction_find(w->api->snapshots, w->sandbox, w->id);
    unsigned status = w->status;
    struct http_req *r = native_tx_wait_over(w);
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
    if (reply->error != LAYERS_OK || records < 0) {
        state_layers_failure(reply, "the comparison", &failure);
        reply_state_failure(r, &failure);
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    native_tx_add_head(&j, t);
    native_tx_add_output(&j, t);
    int rc = changes_add(&j, records, "", &err);
    json_bool(&j, "memory", false); /* files only: what ran in the copy is gone */
    json_end_obj(&j);
    if (rc < 0)
        reply_error(r, 500, "%s", err.msg);
    else
        reply_json(r, status, &out);
}

static void native_tx_show(struct waiting *w, const struct transaction *t)
{
    if (!w->r) { /* the client left while the command ran; the transaction stays open */
        free(w);
        return;
    }
    (void)memccpy(w->id, t->id, 0, sizeof w->id - 1);
    const struct layersc_to to = {.owner = t->tenant, .done = native_tx_on_compared, .arg = w};
    w->call = layersc_diff(w->api->peers->layers, &to, t->base, t->result, NULL);
}

/* --- starting ------------------------------------------------------------------------------------------------------- */

static void native_tx_on_ran(void *arg, const struct transaction *t, const struct state_failure *failure)
{
    struct waiting *w = arg;
    if (!failure) {
        native_tx_show(w, t);
        return;
    }
    struct http_req *r = native_tx_wait_over(w);
    if (r)
        reply_state_failure(r, failure);
}

static int native_tx_read_env(json_t *root, struct strv *ret, struct err *err)
{
    json_t *map = NULL, *v;
    const char *name;
    if (field_obj(root, "envs", &map, err) < 0)
        return -1;
    json_object_foreach(map, name, v)
    {
        if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v) || !*name || strchr(name, '='))
            return err_set(err, ERR_USAGE, 0, "field 'envs': names without '=' and strings without NUL");
        strv_take(ret, xasprintf("%s=%s", name, json_string_value(v)));
    }
    return 0;
}

static int native_tx_read_spec(json_t *root, struct transaction_spec *s, struct err *err)
{
    static const char *const known[] = {"command", "user", "cwd", "envs", "timeout", "rights", NULL};
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
                           "this route knows no field '%.64s'; there are command, user, cwd, envs, timeout, rights",
                           name);
    }
    if (field_str(root, "command", &s->command, err) < 0 || field_str(root, "user", &s->user, err) < 0 ||
        field_str(root, "cwd", &s->cwd, err) < 0 || native_tx_read_env(root, &s->env, err) < 0 ||
        field_int(root, "timeout", 1, TRANSACTION_TIME_MAX_S, &timeout, err) < 0 ||
        rights_read(json_object_get(root, "rights"), s->rights, err) < 0)
        return -1;
    if (!s->command || !*s->command || strlen(s->command) > COMMAND_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'command' must be a command for a shell, at most %d bytes",
                       COMMAND_MAX);
    s->timeout_s = (uint64_t)timeout;
    return 0;
}

static void native_tx_on_start_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    _cleanup_rights_ struct rights rights = {0};
    struct transaction_spec spec = {.rights = &rights};
    struct err err;
    struct sandbox *b = status ? NULL : api_sandbox_of(c);
    if (status)
        reply_error(r, status, "%s", error);
    if (!b)
        return;
    if (native_tx_read_spec(root, &spec, &err) < 0)
        reply_error(r, 400, "%s", err.msg);
    else
        transaction_start(c->api->snapshots, b, &spec, native_tx_on_ran, native_tx_wait_new(c, b, 201));
    strv_done(&spec.env);
}

void native_tx_start(struct api_call *c) { body_json(c->req, 0, native_tx_on_start_body); }

/* --- looking -------------------------------------------------------------------------------------------------------- */

static void native_tx_add_listed(void *arg, const struct transaction *t)
{
    json_obj(arg, NULL);
    native_tx_add_head(arg, t);
    json_end_obj(arg);
}

void native_txs(struct api_call *c)
{
    const struct sandbox *b = api_sandbox_of(c);
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!b)
        return;
    json_start(&j, &out);
    json_arr(&j, NULL);
    transactions_each(c->api->snapshots, b->id, native_tx_add_listed, &j);
    json_end_arr(&j);
    reply_json(c->req, 200, &out);
}

static struct transaction *native_tx_find(struct api_call *c, const struct sandbox *b)
{
    struct transaction *t = b ? transaction_find(c->api->snapshots, b->id, c->param[1]) : NULL;
    if (b && !t)
        reply_error(c->req, 404,
                    "this sandbox has no open transaction '%.24s'; it was committed, discarded or has expired",
                    c->param[1]);
    return t;
}

void native_tx(struct api_call *c)
{
    struct sandbox *b = api_sandbox_of(c);
    struct transaction *t = native_tx_find(c, b);
    if (t && !native_crowded(c))
        native_tx_show(native_tx_wait_new(c, b, 200), t);
}

/* --- deciding ------------------------------------------------------------------------------------------------------- */

static void native_tx_add_conflicts(struct json *j, int fd)
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

static void native_tx_on_committed(void *arg, const struct layers_reply *reply, const struct state_failure *failure,
                                   int conflicts)
{
    _cleanup_close_ int fd = conflicts;
    struct http_req *r = native_tx_wait_over(arg);
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!r)
        return;
    if (failure && failure->status != 409) {
        reply_state_failure(r, failure);
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    if (failure) {
        json_u64(&j, "code", 409);
        json_str(&j, "message", failure->text);
        native_tx_add_conflicts(&j, fd);
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
    struct sandbox *b = api_sandbox_of(c);
    struct transaction *t = native_tx_find(c, b);
    if (t && !native_crowded(c))
        transaction_commit(c->api->snapshots, b, t, native_tx_on_committed, native_tx_wait_new(c, b, 200));
}

void native_tx_discard(struct api_call *c)
{
    const struct sandbox *b = api_sandbox_of(c);
    struct transaction *t = native_tx_find(c, b);
    if (!t)
        return;
    if (t->busy) {
        reply_refuse(c->req, 503, NULL, 1, "the transaction is being committed; look again later");
        return;
    }
    transaction_discard(c->api->snapshots, t);
    reply_empty(c->req, 204);
}
