#include "snapshots/transactions.h"
#include "network/networks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"
#include "peers/layersc.h"
#include "sandboxes/idseal.h"
#include "snapshots/snapshots-int.h"

enum { COMMIT_AGAIN_MS = 2000, COMMIT_AGAIN_MAX_MS = 60000, COMMIT_TOLD_AFTER = 10, COMMIT_FAILS_MAX = 5 };

struct transactions {
    struct map by_id;
    loop_id timer;
};

/* A transaction that is being made. */
struct run {
    struct snapshots *snapshots;
    struct transaction *t;
    char copy[SANDBOX_ID_MAX]; /* the hidden sandbox; "" none */
    char *command, *user, *cwd;
    struct strv env;
    uint64_t timeout_s;
    transaction_done *done;
    void *arg;
    struct state_failure failure;
    struct rights rights;
};

/* A transaction that is being committed. */
struct committing {
    struct snapshots *snapshots;
    struct transaction *t;
    unsigned tries, fails;
    uint64_t wait_ms; /* until the next try */
    loop_id timer;
    transaction_committed *done; /* NULL: no client waits, or it was answered with 503 or 507 */
    void *arg;
};

static void transaction_free(struct snapshots *sn, struct transaction *t)
{
    if (t->commit)
        loop_timer_del(sn->loop, t->commit->timer);
    free(t->commit);
    session_output_done(&t->output);
    free(t);
}

/* Removes it from the table and the database and drops its stacks. */
static void transaction_forget(struct snapshots *sn, struct transaction *t)
{
    (void)map_del(&sn->transactions->by_id, t->id);
    if (t->written)
        db_transaction_del(sn->db, t->id, NULL, NULL);
    char *stacks[] = {t->base, t->result};
    for (size_t i = 0; i < ARRAY_LEN(stacks); i++)
        if (stacks[i][0]) {
            state_release(sn->stacks, stacks[i]);
            state_drop(sn->stacks, stacks[i]);
        }
    transaction_free(sn, t);
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static void transactions_sweep(struct snapshots *sn, const char *sandbox, uint64_t before_ms)
{
    for (bool again = true; again;) {
        size_t at = 0;
        again = false;
        for (struct transaction *t; (t = map_next(&sn->transactions->by_id, &at));)
            if (t->open && !t->busy && (sandbox ? strcmp(t->sandbox, sandbox) == 0 : t->at_unix_ms < before_ms)) {
                transaction_forget(sn, t);
                again = true; /* the map changed */
                break;
            }
    }
}

static void transactions_tick(void *arg)
{
    struct snapshots *sn = arg;
    uint64_t now = clock_unix_ms(), kept = (uint64_t)TRANSACTION_KEPT_S * 1000;
    transactions_sweep(sn, NULL, now > kept ? now - kept : 0);
    sn->transactions->timer = loop_timer(sn->loop, 60000, transactions_tick, sn);
}

static void transactions_on_sandbox_end(void *arg, struct sandbox *b, const char *cause, const struct keeper_usage *u)
{
    struct snapshots *sn = arg;
    (void)cause, (void)u;
    if (sn->transactions)
        transactions_sweep(sn, b->id, 0);
}

static const char *transaction_busy_text(const struct transaction *t)
{
    return t->undo ? TRANSACTION_UNDO : TRANSACTION_COMMIT;
}

static void transaction_load(void *arg, const struct db_transaction *row)
{
    struct snapshots *sn = arg;
    struct sandbox *b = sandbox_find(sn->sandboxes, row->sandbox);
    if (!idseal_check(sn->ids, row->sandbox, NULL)) { /* of a paused one that is kept until its key is back */
        state_hold(sn->stacks, row->base);
        state_hold(sn->stacks, row->result);
        return;
    }
    if (!b || !stack_id_valid(row->base) || !stack_id_valid(row->result)) { /* its sandbox has ended */
        db_transaction_del(sn->db, row->id, NULL, NULL);
        return;
    }
    struct transaction *t = xcalloc(1, sizeof *t);
    (void)snprintf(t->id, sizeof t->id, "%s", row->id);
    (void)snprintf(t->sandbox, sizeof t->sandbox, "%s", row->sandbox);
    (void)snprintf(t->tenant, sizeof t->tenant, "%s", row->tenant);
    (void)snprintf(t->base, sizeof t->base, "%s", row->base);
    (void)snprintf(t->result, sizeof t->result, "%s", row->result);
    (void)snprintf(t->command, sizeof t->command, "%s", row->command);
    t->at_unix_ms = row->at_unix_ms;
    t->exited = row->exited;
    t->code = row->code;
    t->wall_ms = row->wall_ms;
    t->output.omitted[EXEC_STDOUT] = row->omitted;
    buf_add(&t->output.kept[EXEC_STDOUT], row->out, row->nout);
    buf_add(&t->output.kept[EXEC_STDERR], row->err, row->nerr);
    t->written = true;
    t->undo = row->state == DB_TRANSACTION_UNDOING;
    t->open = !t->undo;
    t->busy = row->state != DB_TRANSACTION_OPEN;
    if (t->busy)
        b->busy = transaction_busy_text(t);
    state_hold_for(sn->stacks, t->base, b->tenant);
    state_hold_for(sn->stacks, t->result, b->tenant);
    (void)map_put(&sn->transactions->by_id, t->id, t);
}

int transactions_load(struct snapshots *sn, struct err *err)
{
    sn->transactions = xcalloc(1, sizeof *sn->transactions);
    sn->transactions->timer = loop_timer(sn->loop, 60000, transactions_tick, sn);
    sandboxes_on_end(sn->sandboxes, transactions_on_sandbox_end, sn);
    return db_transactions(sn->db, transaction_load, sn, err);
}

uint64_t transactions_bytes(struct snapshots *sn, const struct tenant *t)
{
    uint64_t sum = 0;
    size_t at = 0;
    for (struct transaction *x; sn->transactions && (x = map_next(&sn->transactions->by_id, &at));)
        sum += strcmp(x->tenant, t->id) == 0 ? x->output.kept[EXEC_STDOUT].n + x->output.kept[EXEC_STDERR].n : 0;
    return sum;
}

void transactions_free(struct snapshots *sn)
{
    size_t at = 0;
    if (!sn->transactions)
        return;
    for (struct transaction *t; (t = map_next(&sn->transactions->by_id, &at));)
        transaction_free(sn, t);
    map_done(&sn->transactions->by_id);
    loop_timer_del(sn->loop, sn->transactions->timer);
    free(sn->transactions);
    sn->transactions = NULL;
}

struct transaction *transaction_find(struct snapshots *sn, const char *sandbox, const char *id)
{
    struct transaction *t = map_get(&sn->transactions->by_id, id);
    return t && t->open && strcmp(t->sandbox, sandbox) == 0 ? t : NULL;
}

void transactions_each(struct snapshots *sn, const char *sandbox, transaction_each_fn *fn, void *arg)
{
    size_t at = 0;
    for (struct transaction *t; (t = map_next(&sn->transactions->by_id, &at));)
        if (t->open && strcmp(t->sandbox, sandbox) == 0)
            fn(arg, t);
}

/* --- making one --------------------------------------------------------------------------------------------------- */

static void run_end_copy(struct run *r)
{
    struct sandbox *copy = r->copy[0] ? sandbox_find(r->snapshots->sandboxes, r->copy) : NULL;
    r->copy[0] = '\0';
    if (copy)
        sandbox_kill(r->snapshots->sandboxes, copy, "transaction", NULL, NULL);
}

/* Stores only the beginning of the output; memory keeps all of it until front ends. */
static void transaction_write_row(struct snapshots *sn, struct transaction *t, uint32_t state, db_done *done, void *arg)
{
    const struct buf *out = t->output.kept;
    size_t n[3];
    uint64_t omitted = t->output.omitted[EXEC_STDOUT] + t->output.omitted[EXEC_STDERR];
    for (int i = EXEC_STDOUT; i <= EXEC_STDERR; i++) {
        n[i] = out[i].n < TRANSACTION_STORED_MAX ? out[i].n : TRANSACTION_STORED_MAX;
        omitted += out[i].n - n[i];
    }
    struct db_transaction row = {.id = t->id,
                                 .sandbox = t->sandbox,
                                 .tenant = t->tenant,
                                 .base = t->base,
                                 .result = t->result,
                                 .command = t->command,
                                 .at_unix_ms = t->at_unix_ms,
                                 .wall_ms = t->wall_ms,
                                 .omitted = omitted,
                                 .state = state,
                                 .exited = t->exited,
                                 .code = t->code,
                                 .out = out[EXEC_STDOUT].p,
                                 .err = out[EXEC_STDERR].p,
                                 .nout = n[EXEC_STDOUT],
                                 .nerr = n[EXEC_STDERR]};
    t->written = true;
    db_transaction_put(sn->db, &row, done, arg);
}

static void run_finish(struct run *r)
{
    run_end_copy(r);
    bool ok = r->failure.status == 0;
    r->t->open = ok;
    r->done(r->arg, ok ? r->t : NULL, ok ? NULL : &r->failure);
    if (!ok || !sandbox_find(r->snapshots->sandboxes, r->t->sandbox))
        transaction_forget(r->snapshots, r->t);
    free(r->command);
    free(r->user);
    free(r->cwd);
    strv_done(&r->env);
    rights_done(&r->rights);
    free(r);
}

static void run_on_row_stored(void *arg, const struct err *err)
{
    struct run *r = arg;
    if (err)
        state_fail_write(&r->failure, err, "the transaction cannot be recorded");
    run_finish(r);
}

static void run_on_result_captured(void *arg, const struct layers_reply *reply)
{
    struct run *r = arg;
    if (reply->error == LAYERS_OK) {
        transaction_write_row(r->snapshots, r->t, DB_TRANSACTION_OPEN, run_on_row_stored, r);
        return;
    }
    state_layers_failure(reply, "the result of the transaction", &r->failure);
    run_finish(r);
}

static void run_on_end(void *arg, const struct session_end *end)
{
    struct run *r = arg;
    r->t->exited = end->exec->exited;
    r->t->code = end->exec->code;
    r->t->wall_ms = end->exec->wall_ms;
    stack_id_new(r->t->result);
    const struct sandbox *copy = sandbox_find(r->snapshots->sandboxes, r->copy);
    state_capture(r->snapshots->stacks, r->copy, copy ? copy->tenant : NULL, r->t->result, true, run_on_result_captured,
                  r);
}

static void run_on_exec_failure(void *arg, const struct link_status *st)
{
    struct run *r = arg;
    state_fail(&r->failure,
               st->code == LINK_INVALID || st->code == LINK_NOT_FOUND || st->code == LINK_NO_USER ? 400 : 502,
               "the command could not be run: %s", st->text);
    run_finish(r);
}

static const struct session_ops run_ops = {.ended = run_on_end, .failed = run_on_exec_failure};

static void run_on_copy_created(void *arg, struct sandbox *copy, const struct sandbox_failure *failure)
{
    struct run *r = arg;
    if (failure) {
        state_fail(&r->failure, failure->status, "%s", failure->text);
        r->failure.error_code = failure->error_code;
        run_finish(r);
        return;
    }
    (void)snprintf(r->copy, sizeof r->copy, "%s", copy->id);
    const char *args[] = {"-c", r->command, NULL};
    struct session_spec spec = {.exec = {.cmd = "/bin/sh",
                                         .args = args,
                                         .env = r->env.n ? (const char *const *)r->env.v : NULL,
                                         .cwd = r->cwd,
                                         .user = r->user,
                                         .rights = rights_of(&r->rights),
                                         .timeout_ms = r->timeout_s * 1000,
                                         .keep_output = true},
                                .collect = &r->t->output};
    (void)session_start(r->snapshots->sandboxes, copy->id, &spec, &run_ops, r);
}

/* The original is captured and runs again; it is not touched from here on. */
static void run_on_base_captured(void *arg, const struct layers_reply *reply)
{
    struct run *r = arg;
    struct snapshots *sn = r->snapshots;
    struct sandbox *b = sandbox_find(sn->sandboxes, r->t->sandbox);
    sandbox_finish(sn->sandboxes, r->t->sandbox);
    if (reply->error != LAYERS_OK)
        state_layers_failure(reply, "the copy", &r->failure);
    else if (!b || !sandbox_is_there(b))
        state_fail(&r->failure, 404, "the sandbox ended meanwhile");
    if (r->failure.status) {
        run_finish(r);
        return;
    }
    struct principal who = {.tenant = b->tenant};
    _cleanup_strv_ struct strv env = {0};
    sandbox_variables(b, &env);
    struct sandbox_spec spec = {.desc = {.timeout_s = (uint32_t)(r->timeout_s + 60),
                                         .env = env,
                                         .secure = true,
                                         .hidden = true,
                                         .counted = true},
                                .net = b->net ? &b->net->doc : NULL};
    (void)snprintf(spec.desc.template, sizeof spec.desc.template, "%s", r->t->base);
    sandbox_create(sn->sandboxes, &who, &spec, run_on_copy_created, r);
}

static void run_on_refused(void *arg) { run_finish(arg); }

static bool transaction_admit(struct snapshots *sn, const struct sandbox *b, struct state_failure *ret)
{
    size_t at = 0, of_sandbox = 0, of_tenant = 0;
    for (struct transaction *t; (t = map_next(&sn->transactions->by_id, &at));) {
        of_sandbox += strcmp(t->sandbox, b->id) == 0;
        of_tenant += strcmp(t->tenant, b->tenant->id) == 0;
    }
    if (of_sandbox >= TRANSACTIONS_PER_SANDBOX || of_tenant >= TRANSACTIONS_PER_TENANT)
        state_fail(
            ret, 429,
            "too many transactions wait for a decision: %d per sandbox and %d per tenant; commit or discard some",
            TRANSACTIONS_PER_SANDBOX, TRANSACTIONS_PER_TENANT);
    else
        state_crowded(sn->stacks, b->tenant, ret);
    return ret->status == 0;
}

static struct transaction *transaction_new(const struct sandbox *b)
{
    struct transaction *t = xcalloc(1, sizeof *t);
    (void)snprintf(t->id, sizeof t->id, "tx-");
    random_hex(t->id + 3, 8);
    (void)snprintf(t->sandbox, sizeof t->sandbox, "%s", b->id);
    (void)snprintf(t->tenant, sizeof t->tenant, "%s", b->tenant->id);
    t->at_unix_ms = clock_unix_ms();
    t->output.max = TRANSACTION_OUTPUT_MAX;
    return t;
}

void transaction_start(struct snapshots *sn, struct sandbox *b, const struct transaction_spec *spec,
                       transaction_done *done, void *arg)
{
    struct run *r = xcalloc(1, sizeof *r);
    struct transaction *t = transaction_new(b);
    const char *user = spec->user ? spec->user : b->desc.config && b->desc.config->user ? b->desc.config->user : "user";
    const char *cwd = spec->cwd ? spec->cwd : b->desc.config ? b->desc.config->workdir : NULL;
    *r = (struct run){.snapshots = sn, .t = t, .timeout_s = spec->timeout_s, .done = done, .arg = arg};
    r->command = xstrdup(spec->command);
    if (spec->rights)
        r->rights = rights_take(spec->rights);
    r->user = xstrdup(user);
    r->cwd = cwd ? xstrdup(cwd) : NULL;
    for (size_t i = 0; i < spec->env.n; i++)
        strv_add(&r->env, spec->env.v[i]);
    (void)snprintf(t->command, sizeof t->command, "%s", spec->command);
    bool ok = transaction_admit(sn, b, &r->failure);
    (void)map_put(&sn->transactions->by_id, t->id, t);
    if (ok && b->state != SANDBOX_RUNNING && b->state != SANDBOX_FROZEN)
        state_fail(&r->failure, 409, "the sandbox is not running");
    else if (ok && !sandbox_begin(b, "the copy for a transaction"))
        state_fail(&r->failure, 503, "%s of the sandbox is under way; try again",
                   b->busy ? b->busy : "a pause or resume");
    if (r->failure.status) {
        (void)loop_defer(sn->loop, run_on_refused, r);
        return;
    }
    stack_id_new(t->base);
    state_capture(sn->stacks, b->id, b->tenant, t->base, b->state == SANDBOX_RUNNING, run_on_base_captured, r);
}

/* --- deciding ----------------------------------------------------------------------------------------------------- */

/* Ends a commit: it is applied completely or not at all. */
static void commit_settle(struct committing *c, const struct layers_reply *r, const struct state_failure *failure,
                          int fd)
{
    struct snapshots *sn = c->snapshots;
    struct transaction *t = c->t;
    sandbox_finish(sn->sandboxes, t->sandbox);
    t->busy = false;
    t->commit = NULL;
    if (failure && t->written && !t->undo)
        transaction_write_row(sn, t, DB_TRANSACTION_OPEN, NULL, NULL);
    if (c->done)
        c->done(c->arg, failure ? NULL : r, failure, fd);
    else if (fd >= 0)
        (void)close(fd);
    if (!failure || t->undo || !sandbox_find(sn->sandboxes, t->sandbox))
        transaction_forget(sn, t);
    loop_timer_del(sn->loop, c->timer);
    free(c);
}

static void commit_ask_apply(struct committing *c);

static void commit_try_again(void *arg)
{
    struct committing *c = arg;
    struct sandbox *b = sandbox_find(c->snapshots->sandboxes, c->t->sandbox);
    c->timer = 0;
    if (b && sandbox_is_changing(b)) { /* the sandbox is being resumed: try again after that */
        c->timer = loop_timer(c->snapshots->loop, COMMIT_AGAIN_MS, commit_try_again, c);
        return;
    }
    if (b)
        b->busy_waits = false;
    commit_ask_apply(c);
}

/* The layer store did not finish, or died during the job; it continues when it is asked again. The disk of a paused
 * sandbox may be full, so the sandbox can be resumed before the next try to make room. */
static void commit_wait(struct committing *c, const struct layers_reply *r)
{
    struct state_failure failure = {0};
    struct sandbox *b = sandbox_find(c->snapshots->sandboxes, c->t->sandbox);
    if (b)
        b->busy_waits = true;
    bool full = r->error == LAYERS_HALF;
    if (c->done && (++c->tries > COMMIT_TOLD_AFTER || full)) {
        if (full)
            state_fail(&failure, 507,
                       "%s has changed a part of the files, and goes on by itself when there is room: remove files, "
                       "snapshots or sandboxes. %.*s",
                       transaction_busy_text(c->t), (int)sizeof r->text, r->text);
        else
            state_fail(&failure, 503, "%s is under way, and goes on by itself; look again later",
                       transaction_busy_text(c->t));
        c->done(c->arg, NULL, &failure, -1);
        c->done = NULL;
    }
    c->timer = loop_timer(c->snapshots->loop, c->wait_ms, commit_try_again, c);
    if (!c->done && (c->wait_ms *= 2) > COMMIT_AGAIN_MAX_MS) /* no client waits any more: back off */
        c->wait_ms = COMMIT_AGAIN_MAX_MS;
}

static void commit_on_applied(void *arg, const struct layers_reply *r, int fd)
{
    struct committing *c = arg;
    struct state_failure failure = {0};
    bool unsure = r->error == LAYERS_BUSY || r->error == LAYERS_HALF || r->error == LAYERS_CANCELLED ||
                  (r->error == LAYERS_FAILED && ++c->fails < COMMIT_FAILS_MAX);
    if (unsure && sandbox_find(c->snapshots->sandboxes, c->t->sandbox)) {
        if (fd >= 0)
            (void)close(fd);
        commit_wait(c, r);
        return;
    }
    if (r->error == LAYERS_CONFLICT)
        state_fail(&failure, 409,
                   "files of the transaction were changed in the sandbox since it began; nothing was applied");
    else if (r->error != LAYERS_OK)
        state_layers_failure(r, c->t->undo ? "the change back" : "the commit", &failure);
    commit_settle(c, r, failure.status ? &failure : NULL, fd);
}

static void commit_ask_apply(struct committing *c)
{
    struct transaction *t = c->t;
    const struct layersc_to to = {.owner = t->tenant, .done = commit_on_applied, .arg = c};
    (void)layersc_apply(c->snapshots->peers->layers, &to, t->sandbox, t->result, t->base, t->undo);
}

static void commit_on_row_stored(void *arg, const struct err *err)
{
    struct committing *c = arg;
    struct state_failure failure = {0};
    if (!err) {
        commit_ask_apply(c);
        return;
    }
    _cleanup_free_ char *what = xasprintf("%s cannot be recorded", transaction_busy_text(c->t));
    state_fail_write(&failure, err, what);
    commit_settle(c, NULL, &failure, -1);
}

static struct committing *committing_new(struct snapshots *sn, struct transaction *t)
{
    struct committing *c = xcalloc(1, sizeof *c);
    *c = (struct committing){.snapshots = sn, .t = t, .wait_ms = COMMIT_AGAIN_MS};
    t->commit = c;
    t->busy = true;
    return c;
}

/* False: `done` was called with the reason. */
static bool commit_may_begin(struct sandbox *b, const char *what, transaction_committed *done, void *arg)
{
    struct state_failure failure = {0};
    if (b->state != SANDBOX_RUNNING && b->state != SANDBOX_FROZEN)
        state_fail(&failure, 409, "the sandbox does not run");
    else if (!sandbox_begin(b, what))
        state_fail(&failure, 503, "%s of the sandbox is under way; try again", b->busy ? b->busy : "a pause or resume");
    else
        return true;
    done(arg, NULL, &failure, -1);
    return false;
}

/* Records the commit in the row before it begins. */
static void commit_start(struct snapshots *sn, struct transaction *t, transaction_committed *done, void *arg)
{
    struct committing *c = committing_new(sn, t);
    c->done = done;
    c->arg = arg;
    transaction_write_row(sn, t, t->undo ? DB_TRANSACTION_UNDOING : DB_TRANSACTION_COMMITTING, commit_on_row_stored, c);
}

void transaction_commit(struct snapshots *sn, struct sandbox *b, struct transaction *t, transaction_committed *done,
                        void *arg)
{
    if (commit_may_begin(b, TRANSACTION_COMMIT, done, arg))
        commit_start(sn, t, done, arg);
}

void transaction_undo(struct snapshots *sn, struct sandbox *b, const char *from, const char *to,
                      transaction_committed *done, void *arg)
{
    if (!commit_may_begin(b, TRANSACTION_UNDO, done, arg))
        return;
    struct transaction *t = transaction_new(b);
    t->undo = true;
    (void)snprintf(t->base, sizeof t->base, "%s", from);
    (void)snprintf(t->result, sizeof t->result, "%s", to);
    state_hold_for(sn->stacks, t->base, b->tenant);
    state_hold_for(sn->stacks, t->result, b->tenant);
    (void)map_put(&sn->transactions->by_id, t->id, t);
    commit_start(sn, t, done, arg);
}

void transactions_resume(struct snapshots *sn)
{
    size_t at = 0;
    for (struct transaction *t; (t = map_next(&sn->transactions->by_id, &at));)
        if (t->busy && !t->commit)
            commit_ask_apply(committing_new(sn, t));
}

void transaction_discard(struct snapshots *sn, struct transaction *t) { transaction_forget(sn, t); }
