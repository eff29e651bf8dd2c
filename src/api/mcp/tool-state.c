/* tool-state.c - copies of a sandbox's files: forks, snapshots, history, and changes that are tried before they count. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/mcp/mcp.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "peers/layersc.h"
#include "snapshots/changes.h"
#include "snapshots/generations.h"
#include "snapshots/transactions.h"

enum { FORK_S = 3600, FORKS_MAX = 16, CONFLICTS_MAX = 16 << 10 };

/* --- fork ----------------------------------------------------------------------------------------------------------- */

struct forking {
    size_t left, made;
    char ids[FORKS_MAX][SANDBOX_ID_MAX];
    char why[200];
};

static void mcp_fork_on_child(void *arg, unsigned index, struct sandbox *b, const struct state_cost *cost,
                              const struct sandbox_failure *failure)
{
    struct mcp_call *k = arg;
    struct forking *w = k->own;
    (void)index, (void)cost;
    if (b)
        memcpy(w->ids[w->made++], b->id, sizeof b->id);
    else
        (void)memccpy(w->why, failure->text, 0, sizeof w->why - 1);
    if (--w->left)
        return;
    if (!w->made) {
        mcp_fail(k, "fork: %s", w->why);
        return;
    }
    struct json *j = mcp_data(k);
    json_arr(j, "sandboxes");
    for (size_t i = 0; i < w->made; i++)
        json_str(j, NULL, w->ids[i]);
    json_end_arr(j);
    if (w->why[0])
        json_str(j, "failed", w->why);
    mcp_done(k, NULL);
}

void mcp_fork(struct mcp_call *k)
{
    struct sandbox *b = mcp_sandbox(k);
    if (!b)
        return;
    struct forking *w = xcalloc(1, sizeof *w);
    w->left = (size_t)mcp_arg_int(k, "count", 1);
    k->own = w;
    k->own_done = free;
    const struct fork_spec spec = {.count = (unsigned)w->left,
                                   .timeout_s = (uint32_t)mcp_arg_int(k, "timeout_s", FORK_S)};
    sandbox_fork(k->api->snapshots, b, &spec, mcp_fork_on_child, k);
}

/* --- snapshot ------------------------------------------------------------------------------------------------------- */

static void mcp_snapshot_on_made(void *arg, const struct template *t, const struct state_cost *cost,
                                 const struct state_failure *failure)
{
    struct mcp_call *k = arg;
    if (failure) {
        mcp_fail(k, "snapshot: %s", failure->text);
        return;
    }
    _cleanup_free_ char *id = xasprintf("%s:%s", t->id, t->tags[0].tag);
    struct json *j = mcp_data(k);
    json_str(j, "template", id);
    json_u64(j, "bytes", cost->bytes);
    json_u64(j, "frozen_us", cost->frozen_us);
    json_bool(j, "memory", false);
    mcp_done(k, NULL);
}

void mcp_snapshot(struct mcp_call *k)
{
    struct sandbox *b = mcp_sandbox(k);
    if (b)
        sandbox_snapshot(k->api->snapshots, b, NULL, mcp_snapshot_on_made, k);
}

/* --- history -------------------------------------------------------------------------------------------------------- */

static void mcp_history_add(void *arg, const struct generation *g)
{
    char at[REPLY_TIME_MAX];
    reply_time(g->at_unix_ms, at);
    json_obj(arg, NULL);
    json_u64(arg, "number", g->number);
    json_str(arg, "at", at);
    json_str(arg, "command", g->command);
    json_end_obj(arg);
}

static void mcp_history_show(struct mcp_call *k, const char *id)
{
    struct json *j = mcp_data(k);
    json_arr(j, "generations");
    generations_each(k->api->snapshots, id, mcp_history_add, j);
    json_end_arr(j);
    mcp_done(k, NULL);
}

void mcp_history(struct mcp_call *k)
{
    const struct sandbox *b = mcp_sandbox(k);
    if (b)
        mcp_history_show(k, b->id);
}

static void mcp_undo_on_undone(void *arg, const struct layers_reply *reply, const struct state_failure *failure)
{
    struct mcp_call *k = arg;
    if (failure) {
        mcp_fail(k, "undo: %s", failure->text);
        return;
    }
    struct json *j = mcp_data(k);
    json_u64(j, "added", reply->entries);
    json_u64(j, "changed", reply->entries2);
    json_u64(j, "removed", reply->bytes2);
    mcp_done(k, NULL);
}

void mcp_undo(struct mcp_call *k)
{
    struct sandbox *b = mcp_sandbox(k);
    struct state_failure full = {0};
    uint64_t to = (uint64_t)mcp_arg_int(k, "to", 0);
    if (!b)
        return;
    const struct generation *newest = generation_newest(k->api->snapshots, b->id, UINT64_MAX);
    const struct generation *g = to       ? generation_find(k->api->snapshots, b->id, to)
                                 : newest ? generation_newest(k->api->snapshots, b->id, newest->number - 1)
                                          : NULL;
    if (!g)
        mcp_fail(
            k,
            "undo: there is no such generation; `history` lists them, and create_sandbox with history true keeps one "
            "after each command");
    else if (state_crowded(k->api->stacks, k->who.tenant, &full))
        mcp_fail(k, "undo: %s", full.text);
    else
        generation_undo(k->api->snapshots, b, g->number, mcp_undo_on_undone, k);
}

/* --- try and commit ------------------------------------------------------------------------------------------------- */

/* A transaction that is shown. */
struct trying {
    char sandbox[SANDBOX_ID_MAX], id[24];
};

/* Copies one change, whose members are all plain. */
static void mcp_try_add_change(struct json *j, json_t *change)
{
    const char *name;
    json_t *v;
    json_obj(j, NULL);
    json_object_foreach(change, name, v)
    {
        if (json_is_string(v))
            json_str(j, name, json_string_value(v));
        else if (json_is_integer(v))
            json_i64(j, name, json_integer_value(v));
        else if (json_is_boolean(v))
            json_bool(j, name, json_is_true(v));
    }
    json_end_obj(j);
}

/* Adds the first changes only: a model reads them, and a build may make thousands. */
static int mcp_try_add_changes(struct mcp_call *k, int records)
{
    struct json *j = mcp_data(k), all;
    _cleanup_buf_ struct buf text = {0};
    struct err err;
    json_start(&all, &text);
    json_obj(&all, NULL);
    int rc = changes_add(&all, records, "", &err);
    json_end_obj(&all);
    json_t *root = json_loadb(buf_str(&text), text.n, 0, NULL), *list = json_object_get(root, "changes");
    size_t n = 0, before = k->data.n;
    json_arr(j, "changes");
    for (; n < json_array_size(list) && n < MCP_CHANGES_MAX && k->data.n - before < MCP_TEXT_MAX; n++)
        mcp_try_add_change(j, json_array_get(list, n));
    json_end_arr(j);
    json_i64(j, "total", json_integer_value(json_object_get(root, "total")));
    json_bool(j, "truncated", n < json_array_size(list) || json_is_true(json_object_get(root, "truncated")));
    json_decref(root);
    return root ? rc : -1;
}

static void mcp_try_on_compared(void *arg, const struct layers_reply *reply, int fd)
{
    struct mcp_call *k = arg;
    const struct trying *w = k->own;
    const struct transaction *t = transaction_find(k->api->snapshots, w->sandbox, w->id);
    _cleanup_close_ int records = fd;
    _cleanup_buf_ struct buf text = {0};
    char handle[MCP_HANDLE_MAX] = "";
    if (!t || reply->error != LAYERS_OK || records < 0) {
        mcp_fail(k, "try: the changes cannot be shown; run it again");
        return;
    }
    struct json *j = mcp_data(k);
    const struct buf *out = &t->output.kept[EXEC_STDOUT], *wrong = &t->output.kept[EXEC_STDERR];
    _cleanup_buf_ struct buf both = {0};
    buf_add(&both, out->p, out->n);
    buf_add(&both, wrong->p, wrong->n);
    for (size_t i = 0; i < both.n; i++)
        if (both.p[i] == '\0')
            both.p[i] = (char)0xff;
    if (both.n > MCP_TEXT_MAX)
        mcp_output_keep(k, w->sandbox, &both, handle);
    mcp_output_shorten(&both, handle, &text);
    json_str(j, "transaction", t->id);
    json_i64(j, t->exited ? "exit_code" : "signal", t->code);
    json_str(j, "output", buf_str(&text));
    if (handle[0])
        json_str(j, "output_handle", handle);
    if (mcp_try_add_changes(k, records) < 0)
        mcp_fail(k, "try: the changes cannot be shown; run it again");
    else
        mcp_done(k, NULL);
}

static void mcp_try_on_ran(void *arg, const struct transaction *t, const struct state_failure *failure)
{
    struct mcp_call *k = arg;
    if (failure || !k->r) {
        mcp_fail(k, "try: %s", failure ? failure->text : "the client left");
        return;
    }
    struct trying *w = k->own;
    (void)memccpy(w->id, t->id, 0, sizeof w->id - 1);
    const struct layersc_to to = {.owner = t->tenant, .done = mcp_try_on_compared, .arg = k};
    (void)layersc_diff(k->api->peers->layers, &to, t->base, t->result, NULL);
}

void mcp_try(struct mcp_call *k)
{
    struct sandbox *b = mcp_sandbox(k);
    if (!b)
        return;
    _cleanup_rights_ struct rights rights = {0};
    struct err err;
    if (rights_read(json_object_get(k->args, "rights"), &rights, &err) < 0) {
        mcp_fail(k, "try: %s", err.msg);
        return;
    }
    struct trying *w = xcalloc(1, sizeof *w);
    memcpy(w->sandbox, b->id, sizeof w->sandbox);
    k->own = w;
    k->own_done = free;
    const struct transaction_spec spec = {.command = mcp_arg(k, "command"),
                                          .cwd = mcp_arg(k, "cwd"),
                                          .timeout_s = (uint64_t)mcp_arg_int(k, "timeout_s", TRANSACTION_TIME_S),
                                          .rights = &rights};
    transaction_start(k->api->snapshots, b, &spec, mcp_try_on_ran, k);
}

static void mcp_commit_on_committed(void *arg, const struct layers_reply *reply, const struct state_failure *failure,
                                    int conflicts)
{
    struct mcp_call *k = arg;
    _cleanup_close_ int fd = conflicts;
    if (failure) {
        char paths[CONFLICTS_MAX + 1];
        ssize_t n = fd < 0 ? 0 : pread(fd, paths, CONFLICTS_MAX, 0);
        paths[n > 0 ? n : 0] = 0;
        mcp_fail(k, "commit: %s%s%.600s", failure->text, n > 0 ? "; changed meanwhile:\n" : "", paths);
        return;
    }
    struct json *j = mcp_data(k);
    json_bool(j, "committed", true);
    json_u64(j, "added", reply->entries);
    json_u64(j, "changed", reply->entries2);
    json_u64(j, "removed", reply->bytes2);
    mcp_done(k, NULL);
}

void mcp_commit(struct mcp_call *k)
{
    struct sandbox *b = mcp_sandbox(k);
    struct state_failure full = {0};
    if (!b)
        return;
    struct transaction *t = transaction_find(k->api->snapshots, b->id, mcp_arg(k, "transaction"));
    if (!t || t->busy) {
        mcp_fail(
            k,
            "commit: there is no open transaction '%.24s': it was committed, discarded or has expired; `try` makes one",
            mcp_arg(k, "transaction"));
    } else if (mcp_arg_bool(k, "discard")) {
        transaction_discard(k->api->snapshots, t);
        json_bool(mcp_data(k), "discarded", true);
        mcp_done(k, NULL);
    } else if (state_crowded(k->api->stacks, k->who.tenant, &full)) {
        mcp_fail(k, "commit: %s", full.text);
    } else {
        transaction_commit(k->api->snapshots, b, t, mcp_commit_on_committed, k);
    }
}
