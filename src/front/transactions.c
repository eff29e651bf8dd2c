#include "front/transactions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"
#include "front/boxes-int.h"
#include "front/idseal.h"
#include "front/nets.h"
#include "sandbox/exec.h"
#include "sandbox/stockc.h"

enum { COMMIT_AGAIN_MS = 2000, COMMIT_AGAIN_MAX_MS = 60000, COMMIT_TOLD_AFTER = 10, COMMIT_FAILS_MAX = 5 };

struct transactions {
    struct map by_id;
    loop_id timer;
};

/* One that is being made. */
struct run {
    struct front *front;
    struct transaction *t;
    char copy[SANDBOX_ID_MAX]; /* the hidden sandbox; "" none */
    char *command, *user, *cwd;
    struct strv env;
    uint64_t timeout_s;
    struct exec *x;
    transaction_done *done;
    void *arg;
    struct state_failure failure;
};

/* One that is being decided. */
struct committing {
    struct front *front;
    struct transaction *t;
    unsigned tries, fails;
    uint64_t wait_ms; /* until the next try */
    loop_id timer;
    transaction_committed *done; /* NULL: nobody waits, or it was told that it takes longer */
    void *arg;
};

static void transaction_free(struct front *f, struct transaction *t)
{
    if (t->commit)
        loop_timer_del(f->loop, t->commit->timer);
    free(t->commit);
    buf_done(&t->out[1]);
    buf_done(&t->out[2]);
    free(t);
}

/* Takes it out of the table and lets go of its stacks. */
static void forget(struct front *f, struct transaction *t)
{
    (void)map_del(&f->transactions->by_id, t->id);
    if (t->written)
        store_transaction_del(f->store, t->id, NULL, NULL);
    char *stacks[] = {t->base, t->result};
    for (size_t i = 0; i < ARRAY_LEN(stacks); i++)
        if (stacks[i][0]) {
            state_release(f, stacks[i]);
            state_drop(f, stacks[i]);
        }
    transaction_free(f, t);
}

/* --- the table ------------------------------------------------------------------------------------------------------ */

static void sweep(struct front *f, const char *box, uint64_t before_ms)
{
    for (bool again = true; again;) {
        size_t at = 0;
        again = false;
        for (struct transaction *t; (t = map_next(&f->transactions->by_id, &at));)
            if (t->open && !t->busy && (box ? strcmp(t->box, box) == 0 : t->at_unix_ms < before_ms)) {
                forget(f, t);
                again = true; /* the map changed */
                break;
            }
    }
}

static void tick(void *arg)
{
    struct front *f = arg;
    uint64_t now = boxes_unix_ms(), kept = (uint64_t)TRANSACTION_KEPT_S * 1000;
    sweep(f, NULL, now > kept ? now - kept : 0);
    f->transactions->timer = loop_timer(f->loop, 60000, tick, f);
}

static void box_ended(void *arg, struct box *b, const char *cause, const struct keeper_usage *u)
{
    struct front *f = arg;
    (void)cause, (void)u;
    if (f->transactions)
        sweep(f, b->id, 0);
}

static const char *busy_with(const struct transaction *t) { return t->undo ? TRANSACTION_UNDO : TRANSACTION_COMMIT; }

static void load_one(void *arg, const struct store_transaction *row)
{
    struct front *f = arg;
    struct box *b = box_find(f, row->sandbox);
    if (!idseal_check(f->ids, row->sandbox, NULL)) { /* of a paused one that is kept until its key is back */
        state_hold(f, row->base);
        state_hold(f, row->result);
        return;
    }
    if (!b || !stack_id_valid(row->base) || !stack_id_valid(row->result)) { /* it ended without a word */
        store_transaction_del(f->store, row->id, NULL, NULL);
        return;
    }
    struct transaction *t = xcalloc(1, sizeof *t);
    (void)snprintf(t->id, sizeof t->id, "%s", row->id);
    (void)snprintf(t->box, sizeof t->box, "%s", row->sandbox);
    (void)snprintf(t->tenant, sizeof t->tenant, "%s", row->tenant);
    (void)snprintf(t->base, sizeof t->base, "%s", row->base);
    (void)snprintf(t->result, sizeof t->result, "%s", row->result);
    (void)snprintf(t->command, sizeof t->command, "%s", row->command);
    t->at_unix_ms = row->at_unix_ms;
    t->exited = row->exited;
    t->code = row->code;
    t->wall_ms = row->wall_ms;
    t->omitted[1] = row->omitted;
    buf_add(&t->out[1], row->out, row->nout);
    buf_add(&t->out[2], row->err, row->nerr);
    t->written = true;
    t->undo = row->state == STORE_TRANSACTION_UNDOING;
    t->open = !t->undo;
    t->busy = row->state != STORE_TRANSACTION_OPEN;
    if (t->busy)
        b->busy = busy_with(t);
    state_hold_for(f, t->base, b->tenant);
    state_hold_for(f, t->result, b->tenant);
    (void)map_put(&f->transactions->by_id, t->id, t);
}

int transactions_load(struct front *f, struct err *err)
{
    f->transactions = xcalloc(1, sizeof *f->transactions);
    f->transactions->timer = loop_timer(f->loop, 60000, tick, f);
    boxes_on_end(f, box_ended, f);
    return store_transactions(f->store, load_one, f, err);
}

uint64_t transactions_bytes(struct front *f, const struct tenant *t)
{
    uint64_t sum = 0;
    size_t at = 0;
    for (struct transaction *x; f->transactions && (x = map_next(&f->transactions->by_id, &at));)
        sum += strcmp(x->tenant, t->id) == 0 ? x->out[1].n + x->out[2].n : 0;
    return sum;
}

void transactions_free(struct front *f)
{
    size_t at = 0;
    if (!f->transactions)
        return;
    for (struct transaction *t; (t = map_next(&f->transactions->by_id, &at));)
        transaction_free(f, t);
    map_done(&f->transactions->by_id);
    loop_timer_del(f->loop, f->transactions->timer);
    free(f->transactions);
    f->transactions = NULL;
}

struct transaction *transaction_find(struct front *f, const char *box, const char *id)
{
    struct transaction *t = map_get(&f->transactions->by_id, id);
    return t && t->open && strcmp(t->box, box) == 0 ? t : NULL;
}

void transactions_each(struct front *f, const char *box, transaction_each_fn *fn, void *arg)
{
    size_t at = 0;
    for (struct transaction *t; (t = map_next(&f->transactions->by_id, &at));)
        if (t->open && strcmp(t->box, box) == 0)
            fn(arg, t);
}

/* --- making one ----------------------------------------------------------------------------------------------------- */

static void end_copy(struct run *r)
{
    struct box *copy = r->copy[0] ? box_find(r->front, r->copy) : NULL;
    r->copy[0] = '\0';
    if (copy)
        box_kill(r->front, copy, "transaction", NULL, NULL);
}

/* Of its output the beginning is stored; all of it is here as long as this front lives. */
static void write_row(struct front *f, struct transaction *t, uint32_t state, store_done *done, void *arg)
{
    size_t n[3];
    uint64_t omitted = t->omitted[1] + t->omitted[2];
    for (int i = 1; i < 3; i++) {
        n[i] = t->out[i].n < TRANSACTION_STORED_MAX ? t->out[i].n : TRANSACTION_STORED_MAX;
        omitted += t->out[i].n - n[i];
    }
    struct store_transaction row = {.id = t->id,
                                    .sandbox = t->box,
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
                                    .out = t->out[1].p,
                                    .err = t->out[2].p,
                                    .nout = n[1],
                                    .nerr = n[2]};
    t->written = true;
    store_transaction_put(f->store, &row, done, arg);
}

static void run_over(struct run *r)
{
    end_copy(r);
    bool ok = r->failure.status == 0;
    r->t->open = ok;
    r->done(r->arg, ok ? r->t : NULL, ok ? NULL : &r->failure);
    if (!ok || !box_find(r->front, r->t->box))
        forget(r->front, r->t);
    free(r->command);
    free(r->user);
    free(r->cwd);
    strv_done(&r->env);
    free(r);
}

static void row_written(void *arg, const struct err *err)
{
    struct run *r = arg;
    if (err)
        state_fail_write(&r->failure, err, "the transaction cannot be recorded");
    run_over(r);
}

static void result_captured(void *arg, const struct stock_reply *reply)
{
    struct run *r = arg;
    if (reply->error == STOCK_OK) {
        write_row(r->front, r->t, STORE_TRANSACTION_OPEN, row_written, r);
        return;
    }
    state_stock_failure(reply, "the result of the transaction", &r->failure);
    run_over(r);
}

static bool output(void *arg, enum exec_stream s, uint64_t offset, const void *p, size_t n)
{
    struct run *r = arg;
    (void)offset;
    struct buf *b = &r->t->out[s == EXEC_STDERR ? 2 : 1];
    size_t room = TRANSACTION_OUTPUT_MAX - b->n, take = n < room ? n : room;
    buf_add(b, p, take);
    r->t->omitted[s == EXEC_STDERR ? 2 : 1] += n - take;
    return true;
}

static void ended(void *arg, const struct exec_end *end)
{
    struct run *r = arg;
    r->x = NULL;
    r->t->exited = end->exited;
    r->t->code = end->code;
    r->t->wall_ms = end->wall_ms;
    stack_id_new(r->t->result);
    state_capture(r->front, r->copy, r->t->result, true, result_captured, r);
}

static void exec_failed(void *arg, const struct link_status *st)
{
    struct run *r = arg;
    r->x = NULL;
    state_fail(&r->failure,
               st->code == LINK_INVALID || st->code == LINK_NOT_FOUND || st->code == LINK_NO_USER ? 400 : 502,
               "the command could not be run: %s", st->text);
    run_over(r);
}

static void started(void *arg, uint32_t pid, const char *tag) { (void)arg, (void)pid, (void)tag; }

static const struct exec_ops ops = {.started = started, .output = output, .ended = ended, .failed = exec_failed};

static void copied(void *arg, struct box *copy, const struct box_failure *failure)
{
    struct run *r = arg;
    if (failure) {
        state_fail(&r->failure, failure->status, "%s", failure->text);
        r->failure.error_code = failure->error_code;
        run_over(r);
        return;
    }
    (void)snprintf(r->copy, sizeof r->copy, "%s", copy->id);
    const char *args[] = {"-c", r->command, NULL};
    static const char *const none[] = {NULL};
    struct exec_spec spec = {.cmd = "/bin/sh",
                             .args = args,
                             .env = r->env.n ? (const char *const *)r->env.v : none,
                             .cwd = r->cwd,
                             .user = r->user,
                             .timeout_ms = r->timeout_s * 1000,
                             .keep_output = true};
    r->x = exec_start(r->front->links, copy->id, &spec, &ops, r);
}

/* The original stood still for its capture only; from here on it is not touched. */
static void base_captured(void *arg, const struct stock_reply *reply)
{
    struct run *r = arg;
    struct front *f = r->front;
    struct box *b = box_find(f, r->t->box);
    box_finish(f, r->t->box);
    if (reply->error != STOCK_OK)
        state_stock_failure(reply, "the copy", &r->failure);
    else if (!b || !box_is_there(b))
        state_fail(&r->failure, 404, "the sandbox ended meanwhile");
    if (r->failure.status) {
        run_over(r);
        return;
    }
    struct principal who = {.tenant = b->tenant};
    _cleanup_strv_ struct strv env = {0};
    box_variables(b, &env);
    struct box_spec spec = {.template = r->t->base,
                            .timeout_s = (uint32_t)(r->timeout_s + 60),
                            .env = env,
                            .secure = true,
                            .net = b->net ? &b->net->doc : NULL,
                            .build = true,
                            .counted = true};
    box_create(f, &who, &spec, copied, r);
}

static void fail_later(void *arg) { run_over(arg); }

static bool admit(struct front *f, const struct box *b, struct state_failure *ret)
{
    size_t at = 0, of_box = 0, of_tenant = 0;
    for (struct transaction *t; (t = map_next(&f->transactions->by_id, &at));) {
        of_box += strcmp(t->box, b->id) == 0;
        of_tenant += strcmp(t->tenant, b->tenant->id) == 0;
    }
    if (of_box >= TRANSACTIONS_PER_BOX || of_tenant >= TRANSACTIONS_PER_TENANT)
        state_fail(
            ret, 429,
            "too many transactions wait for a decision: %d per sandbox and %d per tenant; commit or discard some",
            TRANSACTIONS_PER_BOX, TRANSACTIONS_PER_TENANT);
    else
        state_crowded(f, b->tenant, ret);
    return ret->status == 0;
}

static struct transaction *transaction_new(const struct box *b)
{
    struct transaction *t = xcalloc(1, sizeof *t);
    (void)snprintf(t->id, sizeof t->id, "tx-");
    random_hex(t->id + 3, 8);
    (void)snprintf(t->box, sizeof t->box, "%s", b->id);
    (void)snprintf(t->tenant, sizeof t->tenant, "%s", b->tenant->id);
    t->at_unix_ms = boxes_unix_ms();
    return t;
}

void transaction_start(struct front *f, struct box *b, const struct transaction_spec *spec, transaction_done *done,
                       void *arg)
{
    struct run *r = xcalloc(1, sizeof *r);
    struct transaction *t = transaction_new(b);
    const char *user = spec->user ? spec->user : b->config && b->config->user ? b->config->user : "user";
    const char *cwd = spec->cwd ? spec->cwd : b->config ? b->config->workdir : NULL;
    *r = (struct run){.front = f, .t = t, .timeout_s = spec->timeout_s, .done = done, .arg = arg};
    r->command = xstrdup(spec->command);
    r->user = xstrdup(user);
    r->cwd = cwd ? xstrdup(cwd) : NULL;
    for (size_t i = 0; i < spec->env.n; i++)
        strv_add(&r->env, spec->env.v[i]);
    (void)snprintf(t->command, sizeof t->command, "%s", spec->command);
    bool ok = admit(f, b, &r->failure);
    (void)map_put(&f->transactions->by_id, t->id, t);
    if (ok && b->state != BOX_RUNNING && b->state != BOX_FROZEN)
        state_fail(&r->failure, 409, "the sandbox is not running");
    else if (ok && !box_begin(b, "the copy for a transaction"))
        state_fail(&r->failure, 503, "%s of the sandbox is under way; try again",
                   b->busy ? b->busy : "a pause or resume");
    if (r->failure.status) {
        (void)loop_defer(f->loop, fail_later, r);
        return;
    }
    stack_id_new(t->base);
    state_capture(f, b->id, t->base, b->state == BOX_RUNNING, base_captured, r);
}

/* --- deciding ------------------------------------------------------------------------------------------------------- */

/* It is decided: applied, or nothing of it. */
static void settled(struct committing *c, const struct stock_reply *r, const struct state_failure *failure, int fd)
{
    struct front *f = c->front;
    struct transaction *t = c->t;
    box_finish(f, t->box);
    t->busy = false;
    t->commit = NULL;
    if (failure && t->written && !t->undo)
        write_row(f, t, STORE_TRANSACTION_OPEN, NULL, NULL);
    if (c->done)
        c->done(c->arg, failure ? NULL : r, failure, fd);
    else if (fd >= 0)
        (void)close(fd);
    if (!failure || t->undo || !box_find(f, t->box))
        forget(f, t);
    loop_timer_del(f->loop, c->timer);
    free(c);
}

static void ask_apply(struct committing *c);

static void again(void *arg)
{
    struct committing *c = arg;
    struct box *b = box_find(c->front, c->t->box);
    c->timer = 0;
    if (b && box_own(b)->change) { /* somebody resumes it: after that */
        c->timer = loop_timer(c->front->loop, COMMIT_AGAIN_MS, again, c);
        return;
    }
    if (b)
        b->busy_waits = false;
    ask_apply(c);
}

/* Stock did not come to an end, or died with its job: it goes on with what it has begun as soon as it is asked again. It may be
 * that the disk of a paused sandbox is full: until the next try it can be resumed, and room be made. */
static void not_yet(struct committing *c)
{
    struct state_failure failure = {0};
    struct box *b = box_find(c->front, c->t->box);
    if (b)
        b->busy_waits = true;
    if (c->done && ++c->tries > COMMIT_TOLD_AFTER) {
        state_fail(&failure, 503, "%s is under way, and goes on by itself; look again later", busy_with(c->t));
        c->done(c->arg, NULL, &failure, -1);
        c->done = NULL;
    }
    c->timer = loop_timer(c->front->loop, c->wait_ms, again, c);
    if (!c->done && (c->wait_ms *= 2) > COMMIT_AGAIN_MAX_MS) /* nobody waits for it any more */
        c->wait_ms = COMMIT_AGAIN_MAX_MS;
}

static void applied(void *arg, const struct stock_reply *r, int fd)
{
    struct committing *c = arg;
    struct state_failure failure = {0};
    bool unsure = r->error == STOCK_BUSY || r->error == STOCK_CANCELLED ||
                  (r->error == STOCK_FAILED && ++c->fails < COMMIT_FAILS_MAX);
    if (unsure && box_find(c->front, c->t->box)) {
        if (fd >= 0)
            (void)close(fd);
        not_yet(c);
        return;
    }
    if (r->error == STOCK_CONFLICT)
        state_fail(&failure, 409,
                   "files of the transaction were changed in the sandbox since it began; nothing was applied");
    else if (r->error != STOCK_OK)
        state_stock_failure(r, c->t->undo ? "the change back" : "the commit", &failure);
    settled(c, r, failure.status ? &failure : NULL, fd);
}

static void ask_apply(struct committing *c)
{
    struct transaction *t = c->t;
    struct stock_request q = stockc_request(STOCK_APPLY);
    (void)snprintf(q.box, sizeof q.box, "%s", t->box);
    (void)snprintf(q.stack, sizeof q.stack, "%s", t->result);
    (void)snprintf(q.other, sizeof q.other, "%s", t->base);
    q.flags = t->undo ? STOCK_BACK : 0;
    (void)stockc_ask_for(c->front->stock, t->tenant, &q, NULL, 0, NULL, applied, c);
}

static void committing_written(void *arg, const struct err *err)
{
    struct committing *c = arg;
    struct state_failure failure = {0};
    if (!err) {
        ask_apply(c);
        return;
    }
    _cleanup_free_ char *what = xasprintf("%s cannot be recorded", busy_with(c->t));
    state_fail_write(&failure, err, what);
    settled(c, NULL, &failure, -1);
}

static struct committing *committing_new(struct front *f, struct transaction *t)
{
    struct committing *c = xcalloc(1, sizeof *c);
    *c = (struct committing){.front = f, .t = t, .wait_ms = COMMIT_AGAIN_MS};
    t->commit = c;
    t->busy = true;
    return c;
}

/* False: somebody was told why not. */
static bool may_begin(struct box *b, const char *what, transaction_committed *done, void *arg)
{
    struct state_failure failure = {0};
    if (b->state != BOX_RUNNING && b->state != BOX_FROZEN)
        state_fail(&failure, 409, "the sandbox does not run");
    else if (!box_begin(b, what))
        state_fail(&failure, 503, "%s of the sandbox is under way; try again", b->busy ? b->busy : "a pause or resume");
    else
        return true;
    done(arg, NULL, &failure, -1);
    return false;
}

/* It is written down before anything is done. */
static void commit(struct front *f, struct transaction *t, transaction_committed *done, void *arg)
{
    struct committing *c = committing_new(f, t);
    c->done = done;
    c->arg = arg;
    write_row(f, t, t->undo ? STORE_TRANSACTION_UNDOING : STORE_TRANSACTION_COMMITTING, committing_written, c);
}

void transaction_commit(struct front *f, struct box *b, struct transaction *t, transaction_committed *done, void *arg)
{
    if (may_begin(b, TRANSACTION_COMMIT, done, arg))
        commit(f, t, done, arg);
}

void transaction_undo(struct front *f, struct box *b, const char *from, const char *to, transaction_committed *done,
                      void *arg)
{
    if (!may_begin(b, TRANSACTION_UNDO, done, arg))
        return;
    struct transaction *t = transaction_new(b);
    t->undo = true;
    (void)snprintf(t->base, sizeof t->base, "%s", from);
    (void)snprintf(t->result, sizeof t->result, "%s", to);
    state_hold_for(f, t->base, b->tenant);
    state_hold_for(f, t->result, b->tenant);
    (void)map_put(&f->transactions->by_id, t->id, t);
    commit(f, t, done, arg);
}

void transactions_resume(struct front *f)
{
    size_t at = 0;
    for (struct transaction *t; (t = map_next(&f->transactions->by_id, &at));)
        if (t->busy && !t->commit)
            ask_apply(committing_new(f, t));
}

void transaction_discard(struct front *f, struct transaction *t) { forget(f, t); }
