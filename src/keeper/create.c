/* create.c - turns a request into a parked sandbox. Nothing here waits: the child reports over its sync socket when it
 * is ready. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "keeper/keeper-int.h"

static enum keeper_error error_of(const struct err *err)
{
    switch (err->code) {
    case ERR_USAGE:
        return KEEPER_BAD_REQUEST;
    case ERR_POLICY:
        return KEEPER_NO_TEMPLATE;
    case ERR_HOST:
        return KEEPER_HOST;
    case ERR_LIMIT:
        return KEEPER_CAPACITY;
    default:
        return err->eno == EMFILE || err->eno == ENFILE || err->eno == ENOMEM ? KEEPER_CAPACITY : KEEPER_FAILED;
    }
}

/* Fills the reply about a live sandbox. */
static void describe(const struct entry *e, struct keeper_reply *r)
{
    r->init_pid = (uint32_t)e->pid;
    (void)snprintf(r->tier, sizeof r->tier, "%s", e->own_root ? e->tier->name : "process");
    memcpy(r->degraded, e->degraded, sizeof r->degraded);
    memcpy(r->driver, e->driver, sizeof r->driver);
    memcpy(r->quota, e->quota, sizeof r->quota);
}

static void answer_known(struct keeper *k, struct entry *e, const struct waiter *w)
{
    struct keeper_reply r = {.error = KEEPER_EXISTS};
    if (e->life == LIFE_STARTING) { /* the client reconnected and asked again: the answer goes to the new connection */
        e->creator = *w;
        return;
    }
    if (e->life != LIFE_LIVE) {
        r.error = KEEPER_FAILED;
        (void)snprintf(r.text, sizeof r.text, "a sandbox with this id has ended; ids are used once");
    } else {
        describe(e, &r);
    }
    asker_answer(k, w, &r);
}

static void later(struct keeper *k, struct entry *e, const struct keeper_create *ask)
{
    e->waiting = true;
    k->pending[k->npending++] = (struct pending){.index = entry_index(k, e), .ask = *ask};
    pool_watch(k);
    keeper_wake_at(k, entry_start_end(e));
}

void create_forget(struct keeper *k, struct entry *e)
{
    uint32_t i = 0;
    e->waiting = false;
    if (e->checking)
        checks_forget(k, e);
    while (i < k->npending && k->pending[i].index != entry_index(k, e))
        i++;
    if (i == k->npending)
        return;
    k->npending--;
    memmove(&k->pending[i], &k->pending[i + 1], (k->npending - i) * sizeof k->pending[0]);
    pool_watch(k);
}

static void fail_create(struct keeper *k, struct entry *e, const struct err *err)
{
    e->failure_code = error_of(err);
    (void)snprintf(e->failure, sizeof e->failure, "%.*s", (int)sizeof e->failure - 1, err->msg);
    if (e->pidfd >= 0) {
        end_begin(k, e, KEEPER_DIED_KILLED);
        return;
    }
    struct keeper_reply reply = {.error = e->failure_code};
    memcpy(reply.text, e->failure, sizeof reply.text);
    asker_answer(k, &e->creator, &reply);
    entry_free(k, e);
}

/* Queues the create behind a check of its images. False: the queue is full. */
static bool check_first(struct keeper *k, struct entry *e, const struct keeper_create *ask)
{
    if (!checks_begin(k, e, ask))
        return false;
    e->waiting = true;
    return true;
}

/* Continues a create as far as possible. False: it has to wait. */
static bool go_on(struct keeper *k, struct entry *e, const struct keeper_create *ask)
{
    struct err err = {0};
    switch (e->tier->start(k, e, ask, &err)) {
    case TIER_LATER:
        return false;
    case TIER_STARTED:
        keeper_wake_at(k, entry_start_end(e));
        return true;
    case TIER_UNREADY: /* an image stopped being ready since checks_needed(): check again */
        if (e->checked < KEEPER_CHECK_ROUNDS && check_first(k, e, ask))
            return true;
        break;
    default:
        break;
    }
    fail_create(k, e, &err);
    return true;
}

void create_resume(struct keeper *k)
{
    while (k->npending > 0) {
        struct pending p = k->pending[0];
        struct entry *e = &k->entries[p.index];
        create_forget(k, e); /* first: go_on() may queue the create again, and that entry must stay */
        if (go_on(k, e, &p.ask))
            continue;
        memmove(&k->pending[1], &k->pending[0], k->npending++ * sizeof k->pending[0]);
        k->pending[0] = p;
        e->waiting = true;
        pool_watch(k);
        return;
    }
}

void create_begin(struct keeper *k, const struct keeper_create *ask, const struct waiter *w)
{
    struct entry *e = entry_find(k, ask->id);
    if (e) {
        answer_known(k, e, w);
        return;
    }
    if (k->nlive + k->nstarting + k->nending >= k->config->max_sandboxes || k->npending >= KEEPER_STARTING_MAX ||
        !(e = entry_new(k, ask->id))) {
        asker_refuse(k, w, KEEPER_CAPACITY, "this node is full: no more sandboxes may run");
        return;
    }
    entry_set(k, e, LIFE_STARTING);
    e->creator = *w;
    e->deadline_ms = ask->deadline_ms;
    e->own_root = strcmp(ask->template, "host") != 0;
    e->tier = tier_of(ask->tier);
    if (checks_needed(k, ask)) {
        struct err full = {0};
        if (!check_first(k, e, ask)) {
            (void)err_set(&full, ERR_LIMIT, 0,
                          "too many sandboxes wait for images of volumes that are checked or resized; try again");
            fail_create(k, e, &full);
        }
        return;
    }
    if (k->npending > 0 || !go_on(k, e, ask))
        later(k, e, ask);
}

void create_checked(struct keeper *k, struct entry *e, const struct keeper_create *ask, const struct err *err)
{
    e->waiting = false;
    if (err)
        fail_create(k, e, err);
    else if (k->npending > 0 || !go_on(k, e, ask))
        later(k, e, ask);
}

/* Sends the commit together with the descriptors that init keeps for later keepers. */
static int send_commit(const struct keeper *k, const struct entry *e, const struct journal_record *r, struct err *err)
{
    unsigned char go = INIT_SYNC_COMMIT;
    _cleanup_close_ int life = keepsake_make(k, r, err);
    if (life < 0)
        return -1;
    const int fds[] = {life, e->sandbox.sync};
    if (fcntl(e->sandbox.sync, F_SETFL, O_NONBLOCK) < 0 || fd_send(e->sandbox.sync, &go, 1, fds, ARRAY_LEN(fds)) < 0)
        return err_set(err, ERR_SETUP, errno, "commit the sandbox");
    return 0;
}

/* Fails if the client that asked for the sandbox is gone: no answer and no list would ever name it. */
static int create_commit(struct keeper *k, struct entry *e, struct err *err)
{
    struct journal_record r;
    if (!asker_waits(k, &e->creator))
        return err_set(err, ERR_SETUP, 0, "the client that asked for the sandbox is gone");
    if (journal_read(k->journal, e->id, &r) < 0)
        return err_set(err, ERR_SETUP, errno, "read the journal record of %s", e->id);
    r.state = JOURNAL_LIVE;
    if (send_commit(k, e, &r, err) < 0)
        return -1;
    return journal_update(k->journal, &r, err);
}

/* Called when the sync socket is readable or the create has timed out. */
void create_sync(struct keeper *k, struct entry *e)
{
    unsigned char said = 0;
    struct err err = {0};
    ssize_t n = e->waiting ? 0 : recv(e->sandbox.sync, &said, 1, MSG_DONTWAIT);
    int r = -1;
    if (e->checking) {
        (void)err_set(&err, ERR_SETUP, 0,
                      "an image is made, checked or resized, which has taken %d s and goes on; try again later",
                      KEEPER_CHECK_MS / 1000);
    } else if (e->waiting) {
        (void)err_set(&err, ERR_SETUP, 0, "there was no network namespace for it within %d s", KEEPER_START_MS / 1000);
    } else if (n < 0 && errno == EAGAIN) {
        if (keeper_now_ms() < entry_start_end(e))
            return;
        const char *stage = wall_stage_name((enum wall_stage)e->sandbox.shared->stage);
        (void)err_set(&err, ERR_SETUP, 0, "the sandbox was not ready within %d s; it stands at stage %s",
                      KEEPER_START_MS / 1000, stage);
    } else if (n == 1 && said == INIT_SYNC_READY) {
        r = create_commit(k, e, &err);
    } else {
        (void)wall_sandbox_why(&e->sandbox, &err);
    }
    keeper_settle(k, e);
    if (r < 0) {
        e->failure_code = error_of(&err);
        (void)snprintf(e->failure, sizeof e->failure, "%.*s", (int)sizeof e->failure - 1, err.msg);
        end_begin(k, e, KEEPER_DIED_KILLED);
        return;
    }
    struct waiter w = e->creator;
    e->creator = (struct waiter){0};
    entry_set(k, e, LIFE_LIVE);
    keeper_wake_at(k, e->deadline_ms);
    struct keeper_reply reply = {.error = KEEPER_OK};
    describe(e, &reply);
    asker_answer(k, &w, &reply);
    attach_live(k, e);
}
