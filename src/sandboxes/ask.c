/* The request for a sandbox: copied, checked, compared with earlier requests of the same idempotency key, and held
 * until its template is ready.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "sandboxes/creation.h"
#include "sandboxes/sandboxes-int.h"

enum {
    TEMPLATE_WAIT_MS = 55 * 1000, /* for a template that is being built */
    TEMPLATE_POLL_MS = 500,
    TEMPLATE_WAITERS_MAX = 256,
    MEET_WAIT_MS = 10 * 1000, /* until keeper has said whether the sandbox of an earlier create lives */
    MEET_POLL_MS = 50,
    IDEM_KEY_MAX = 255,
};

static unsigned waiting_for_template; /* of this process */

static void creation_poll_template(void *arg)
{
    struct creation *c = arg;
    c->timer = 0;
    bool known = template_resolve(c->sandboxes->templates, c->template, &c->info);
    if (known && strcmp(c->info.state, "building") == 0 && loop_now(c->sandboxes->loop) < c->wait_until) {
        c->timer = loop_timer(c->sandboxes->loop, TEMPLATE_POLL_MS, creation_poll_template, c);
        return;
    }
    waiting_for_template--;
    if (known && strcmp(c->info.state, "ready") == 0) {
        creation_start(c);
        return;
    }
    creation_refuse(c, 503, known ? 10 : 0, NULL, "template '%s' is not ready: %s%s", c->template, c->info.text,
                    strcmp(c->info.state, "building") == 0 ? " (hutch template wait shows when it is)" : "");
    creation_fail(c);
}

static void creation_begin(void *arg);

static void creation_begin_again(void *arg)
{
    struct creation *c = arg;
    c->timer = 0;
    creation_begin(c);
}

/* The sandbox is known only from its row: the answer waits until keeper says whether it lives. */
static void creation_answer_when_met(struct creation *c)
{
    uint64_t now = loop_now(c->sandboxes->loop);
    if (c->wait_until == 0)
        c->wait_until = now + MEET_WAIT_MS;
    if (now < c->wait_until) {
        c->timer = loop_timer(c->sandboxes->loop, MEET_POLL_MS, creation_begin_again, c);
        return;
    }
    creation_refuse(c, 503, 1, NULL,
                    "the node was started again and does not know yet whether the sandbox of this idempotency key "
                    "lives; try again");
    creation_fail(c);
}

/* A request with an idempotency key that was used before: joins the create under way, answers with the existing
 * sandbox, or refuses. False: the key is new. */
static bool creation_answer_repeated(struct creation *c)
{
    struct sandboxes *sb = c->sandboxes;
    struct idem *i = c->idem_key ? idem_find(sb, c->tenant->id, c->idem_key) : NULL;
    if (!i)
        return false;
    if (strcmp(i->digest, c->digest) != 0)
        creation_refuse(c, 422, 0, "idempotency_key_reused", "this idempotency key was used for a different request");
    else {
        struct sandbox_own *o = map_get(&sb->by_id, i->sandbox);
        if (o && o->creation) {
            struct asker *a = c->askers;
            a->next = o->creation->askers;
            o->creation->askers = a;
            c->askers = NULL;
            c->over = true;
            creation_maybe_free(c);
            return true;
        }
        if (o && o->met != SANDBOX_MET && sandbox_is_there(&o->b)) {
            creation_answer_when_met(c);
            return true;
        }
        if (o && sandbox_is_there(&o->b)) {
            creation_tell(c, &o->b, NULL);
            creation_maybe_free(c);
            return true;
        }
        creation_refuse(c, 409, 0, "sandbox_ended", "the sandbox of this idempotency key, %s, has ended", i->sandbox);
    }
    creation_fail(c);
    return true;
}

/* Checks that do not depend on the state of the node. */
static bool creation_check_request(struct creation *c)
{
    const struct config *cfg = c->sandboxes->config;
    uint32_t longest = cfg->max_timeout_s;
    if (c->tenant->quota.max_timeout_s && c->tenant->quota.max_timeout_s < longest)
        longest = c->tenant->quota.max_timeout_s;
    if (c->desc.timeout_s == 0 || (c->desc.timeout_s > longest && !c->desc.hidden))
        creation_refuse(c, 400, 0, NULL, "timeout must be between 1 and %u seconds, not %u", longest,
                        c->desc.timeout_s);
    else if (c->idem_key && (!*c->idem_key || strlen(c->idem_key) > IDEM_KEY_MAX))
        creation_refuse(c, 400, 0, NULL, "an idempotency key has 1 to %d bytes", IDEM_KEY_MAX);
    return c->failure.status == 0;
}

static bool creation_check_source(struct creation *c)
{
    if (!sandbox_source_find(c->sandboxes, c->tenant, &c->desc, &c->info))
        creation_refuse(c, 404, 0, NULL, "template '%.100s' not found", c->template);
    else if (strcmp(c->info.state, "error") == 0 || strcmp(c->info.state, "missing") == 0)
        creation_refuse(c, 503, 0, NULL, "template '%s' is not ready: %s", c->info.name, c->info.text);
    return c->failure.status == 0;
}

/* Called from the loop, so that `done` is never called before sandbox_create() has returned. */
static void creation_begin(void *arg)
{
    struct creation *c = arg;
    if (!creation_check_request(c)) {
        creation_fail(c);
        return;
    }
    if (creation_answer_repeated(c)) /* its template may be gone by now */
        return;
    if (!creation_check_source(c)) {
        creation_fail(c);
        return;
    }
    if (strcmp(c->info.state, "ready") == 0) {
        creation_start(c);
        return;
    }
    if (waiting_for_template >= TEMPLATE_WAITERS_MAX) {
        creation_refuse(c, 503, 10, NULL, "template '%s' is not ready: %s", c->info.name, c->info.text);
        creation_fail(c);
        return;
    }
    waiting_for_template++;
    c->wait_until = loop_now(c->sandboxes->loop) + TEMPLATE_WAIT_MS;
    creation_poll_template(c);
}

void sandbox_create(struct sandboxes *sb, const struct principal *p, const struct sandbox_spec *spec,
                    sandbox_created *done, void *arg)
{
    struct creation *c = xcalloc(1, sizeof *c);
    struct asker *a = xcalloc(1, sizeof *a);
    *a = (struct asker){.done = done, .arg = arg};
    c->sandboxes = sb;
    c->link = &sb->creations;
    c->next = sb->creations;
    if (c->next)
        c->next->link = &c->next;
    sb->creations = c;
    c->tenant = p->tenant;
    c->askers = a;
    sandbox_desc_copy(&c->desc, &spec->desc);
    c->template = xstrdup(c->desc.template);
    c->idem_key = spec->idempotency_key ? xstrdup(spec->idempotency_key) : NULL;
    c->unique = spec->unique;
    if (spec->net)
        net_doc_copy(&c->net, spec->net);
    idem_digest(spec, c->digest);
    loop_defer(sb->loop, creation_begin, c);
}
