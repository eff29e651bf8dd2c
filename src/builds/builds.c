/* The builds of this node: ids, table, queue. */
#include "builds/builds.h"
#include "base/clock.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "builds/builds-int.h"

enum { SWEEP_MS = 60 * 1000, ID_RANDOM = 6, ID_SUM = 10 };

static void builds_schedule(struct builds *bs);

/* --- ids ---------------------------------------------------------------------------------------------------------- */

/* A UUID in the form of version 4: six random bytes, then ten bytes of an HMAC over these, the tenant and the
 * template. */
static void build_spell_id(const struct builds *bs, const struct tenant *t, const char *template,
                           const uint8_t salt[ID_RANDOM], char ret[40])
{
    _cleanup_buf_ struct buf text = {0};
    uint8_t sum[SHA256_BYTES], id[ID_RANDOM + ID_SUM];
    unsigned n = 0;
    buf_addf(&text, "build id 1\n%s\n%s\n", t->id, template);
    buf_add(&text, salt, ID_RANDOM);
    if (!HMAC(EVP_sha256(), bs->id_key, BUILDS_KEY, (const uint8_t *)text.p, text.n, sum, &n) || n != SHA256_BYTES)
        abort();
    memcpy(id, salt, ID_RANDOM);
    memcpy(id + ID_RANDOM, sum, ID_SUM);
    id[6] = (uint8_t)((id[6] & 0x0f) | 0x40);
    id[8] = (uint8_t)((id[8] & 0x3f) | 0x80);
    for (size_t i = 0, at = 0; i < sizeof id; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            ret[at++] = '-';
        (void)snprintf(ret + at, 3, "%02x", id[i]);
        at += 2;
    }
}

bool build_id_ours(const struct builds *bs, const struct tenant *t, const char *template, const char *id)
{
    uint8_t salt[ID_RANDOM];
    unsigned v[ID_RANDOM];
    char again[40];
    if (strlen(id) != 36 || sscanf(id, "%2x%2x%2x%2x-%2x%2x-", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5]) != ID_RANDOM)
        return false;
    for (size_t i = 0; i < ID_RANDOM; i++)
        salt[i] = (uint8_t)v[i];
    build_spell_id(bs, t, template, salt, again);
    return CRYPTO_memcmp(again, id, 36) == 0;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static void build_free(struct build_own *b)
{
    build_start_drop(b);
    build_sandbox_drop(b);
    build_stages_drop(b);
    build_plan_done(&b->plan);
    build_context_done(&b->ctx);
    build_log_done(&b->b.log);
    strv_done(&b->b.tags);
    free(b->b.reason);
    free(b->start);
    free(b->ready);
    free(b);
}

static bool build_is_idle(const struct build_own *b) { return !b->running && !b->capturing && !b->opening; }

/* Forgets builds that ended long ago or were never started. If the table is full, also the oldest that can go, to
 * make room for a build of `maker` (NULL: no build is made); one of the same tenant is preferred. */
static void builds_sweep(struct builds *bs, const struct tenant *maker)
{
    struct build_own **oldest = NULL;
    bool own = false;
    uint64_t now = clock_unix_ms();
    for (struct build_own **p = &bs->first; *p;) {
        struct build_own *b = *p;
        uint64_t since = b->over ? b->b.ended_unix_ms : b->b.made_unix_ms;
        if ((b->over || !b->started) && build_is_idle(b) && now - since > BUILDS_KEPT_S * 1000ULL) {
            *p = b->next;
            bs->n--;
            build_free(b);
            continue;
        }
        if ((b->over || !b->started) && build_is_idle(b) && (b->b.tenant == maker || !own)) {
            oldest = p;
            own = b->b.tenant == maker;
        }
        p = &b->next;
    }
    if (maker && bs->n >= BUILDS_MAX && oldest) {
        struct build_own *b = *oldest;
        *oldest = b->next;
        bs->n--;
        build_free(b);
    }
}

static void builds_on_sweep_timer(void *arg)
{
    struct builds *bs = arg;
    builds_sweep(bs, NULL);
    build_cache_sweep(bs);
    bs->timer = loop_timer(bs->loop, SWEEP_MS, builds_on_sweep_timer, bs);
}

int builds_open(const struct builds_deps *d, struct builds **ret, struct err *err)
{
    struct builds *bs = *ret = xcalloc(1, sizeof *bs);
    bs->loop = d->loop;
    bs->config = d->config;
    bs->db = d->db;
    bs->peers = d->peers;
    bs->tenants = d->tenants;
    bs->stacks = d->stacks;
    bs->templates = d->templates;
    bs->sandboxes = d->sandboxes;
    bs->own_dir = d->own_dir;
    bs->id_key = d->id_key;
    if (!bs->config->build_offline && d->network) {
        if (net_doc_text("\"public\"", 8, &bs->network, err) < 0)
            return -1;
        bs->have_network = true;
    }
    bs->timer = loop_timer(bs->loop, SWEEP_MS, builds_on_sweep_timer, bs);
    return build_cache_load(bs, err);
}

void builds_free(struct builds *bs)
{
    if (!bs)
        return;
    loop_timer_del(bs->loop, bs->timer);
    for (struct build_own *b = bs->first, *next; b; b = next) {
        next = b->next;
        build_free(b);
    }
    image_calls_free(bs);
    build_cache_free(bs);
    net_doc_done(&bs->network);
    free(bs);
}

static struct build_own *build_find_own(struct builds *bs, const struct tenant *t, const char *template, const char *id)
{
    for (struct build_own *b = bs->first; b; b = b->next)
        if (b->b.tenant == t && strcmp(b->b.id, id) == 0 && strcmp(b->b.template, template) == 0)
            return b;
    return NULL;
}

const struct build *build_find(struct builds *bs, const struct tenant *t, const char *template, const char *id)
{
    struct build_own *b = build_find_own(bs, t, template, id);
    return b ? &b->b : NULL;
}

/* The id of the template of that name: from its row, else from a build of that name, else a new one. */
static void build_template_of(struct builds *bs, const struct tenant *t, const char *name, char ret[40])
{
    const struct template *row = template_find(bs->templates, t, name, NULL);
    if (row && row->tenant == t && strcmp(row->name, name) == 0) {
        (void)snprintf(ret, 40, "%s", row->id);
        return;
    }
    for (const struct build_own *b = bs->first; b; b = b->next)
        if (b->b.tenant == t && strcmp(b->b.name, name) == 0) {
            (void)snprintf(ret, 40, "%s", b->b.template);
            return;
        }
    template_id_new(ret);
}

bool build_template_known(struct builds *bs, const struct tenant *t, const char *template)
{
    for (const struct build_own *b = bs->first; b; b = b->next)
        if (b->b.tenant == t && strcmp(b->b.template, template) == 0)
            return true;
    return false;
}

static bool build_read_tags(const struct build_new *n, const char *tag, struct strv *ret, struct err *err)
{
    if (tag[0])
        strv_add(ret, tag);
    for (size_t i = 0; n->tags && i < n->tags->n; i++) {
        if (!build_tag_ok(n->tags->v[i]))
            return err_set(err, ERR_USAGE, 0, "'%.80s' is no tag: letters, digits, '-', '_' and '.', and no UUID",
                           n->tags->v[i]),
                   false;
        if (!strv_has(ret, n->tags->v[i]))
            strv_add(ret, n->tags->v[i]);
        if (ret->n > BUILD_TAGS_MAX)
            return err_set(err, ERR_USAGE, 0, "a build has at most %d tags", BUILD_TAGS_MAX), false;
    }
    if (ret->n == 0)
        strv_add(ret, "default");
    return true;
}

static bool builds_have_room(struct builds *bs, const struct tenant *t, struct err *err)
{
    size_t promised = 0;
    for (const struct build_own *b = bs->first; b; b = b->next)
        promised += b->b.tenant == t && !b->started && clock_unix_ms() - b->b.made_unix_ms <= BUILDS_KEPT_S * 1000ULL;
    if (promised >= BUILDS_PROMISED_PER_TENANT)
        return err_set(err, ERR_LIMIT, 0, "%zu builds of this tenant were asked for and not started; start those first",
                       promised),
               false;
    builds_sweep(bs, t);
    if (bs->n >= BUILDS_MAX)
        return err_set(err, ERR_LIMIT, 0, "this node has %d builds under way; try again later", BUILDS_MAX), false;
    return true;
}

const struct build *build_make(struct builds *bs, struct tenant *t, const struct build_new *n, unsigned *status,
                               struct err *err)
{
    char name[TEMPLATE_NAME_MAX], tag[TEMPLATE_TAG_MAX];
    struct strv tags = {0};
    uint8_t salt[ID_RANDOM];
    *status = 400;
    if (!build_name_parse(n->name, name, tag, err))
        return NULL;
    if (!build_read_tags(n, tag, &tags, err)) {
        strv_done(&tags);
        return NULL;
    }
    if (!builds_have_room(bs, t, err)) {
        strv_done(&tags);
        *status = 429;
        return NULL;
    }
    struct build_own *b = xcalloc(1, sizeof *b);
    b->builds = bs;
    b->read_fd = -1;
    b->b.tenant = t;
    b->b.tags = tags;
    b->b.cpu_milli = n->cpu_milli;
    b->b.memory = n->memory;
    b->b.made_unix_ms = clock_unix_ms();
    (void)snprintf(b->b.name, sizeof b->b.name, "%s", name);
    (void)snprintf(b->step, sizeof b->step, "base");
    build_template_of(bs, t, name, b->b.template);
    random_bytes(salt, sizeof salt);
    build_spell_id(bs, t, b->b.template, salt, b->b.id);
    b->next = bs->first;
    bs->first = b;
    bs->n++;
    return &b->b;
}

int build_start(struct builds *bs, struct tenant *t, const char *template, const char *id, struct build_plan *plan,
                unsigned *status, struct err *err)
{
    struct build_own *b = build_find_own(bs, t, template, id);
    size_t waiting = 0;
    int rc = 0;
    for (const struct build_own *o = bs->first; o; o = o->next)
        waiting += o->b.tenant == t && o->started && !o->over && !o->running;
    if (!b) {
        *status = 404;
        rc = err_set(err, ERR_USAGE, 0, "build '%.40s' of template '%.40s' not found", id, template);
    } else if (b->started) {
        *status = 409;
        rc = err_set(err, ERR_USAGE, 0, "build '%s' was started already; ask for a new one", b->b.id);
    } else if (waiting >= BUILDS_WAITING_PER_TENANT) {
        *status = 429;
        rc = err_set(err, ERR_LIMIT, 0, "%zu builds of this tenant wait already", waiting);
    }
    if (rc < 0) {
        build_plan_done(plan);
        return -1;
    }
    b->plan = *plan;
    *plan = (struct build_plan){0};
    b->started = true;
    b->b.status = BUILD_BUILDING;
    builds_schedule(bs);
    if (!b->running)
        build_log_add(&b->b.log, "base", BUILD_INFO, "waiting for other builds of this node");
    return 0;
}

int build_cancel(struct builds *bs, const struct tenant *t, const char *template, const char *id, unsigned *status,
                 struct err *err)
{
    struct build_own *b = build_find_own(bs, t, template, id);
    if (!b) {
        *status = 404;
        return err_set(err, ERR_USAGE, 0, "build '%.40s' of template '%.40s' not found", id, template);
    }
    if (b->over || b->recording) {
        *status = 409;
        return err_set(err, ERR_USAGE, 0, "build '%s' has ended and cannot be cancelled", b->b.id);
    }
    if (!b->running) { /* not started, or queued: count it as running, because build_ended() subtracts it */
        b->running = b->started = true;
        bs->running++;
        (void)snprintf(b->step, sizeof b->step, "base");
    }
    build_stop(b);
    return 0;
}

/* --- the queue ---------------------------------------------------------------------------------------------------- */

/* The longest waiting build of the tenant with the fewest running builds. */
static struct build_own *builds_choose_next(struct builds *bs)
{
    struct build_own *best = NULL;
    size_t best_running = SIZE_MAX;
    for (struct build_own *b = bs->first; b; b = b->next) {
        size_t running = 0;
        if (!b->started || b->running || b->over)
            continue;
        for (const struct build_own *o = bs->first; o; o = o->next)
            running += o->running && o->b.tenant == b->b.tenant;
        if (running <= best_running) { /* the list has the newest first: later entries are older */
            best = b;
            best_running = running;
        }
    }
    return best;
}

static void builds_schedule(struct builds *bs)
{
    while (bs->running < bs->config->build_max) {
        struct build_own *b = builds_choose_next(bs);
        if (!b)
            return;
        b->running = true;
        bs->running++;
        loop_defer(bs->loop, build_begin, b);
    }
}

/* Bounds the sum of all logs of a tenant by removing logs of ended builds. A running build has a bound of its own. */
static void builds_trim_logs(struct builds *bs, const struct tenant *t)
{
    for (;;) {
        struct build_own *oldest = NULL;
        size_t bytes = 0;
        for (struct build_own *b = bs->first; b; b = b->next) {
            if (b->b.tenant != t)
                continue;
            bytes += build_log_size(&b->b.log);
            if (b->over && b->b.log.n > 1 && (!oldest || b->b.ended_unix_ms <= oldest->b.ended_unix_ms))
                oldest = b;
        }
        if (bytes <= BUILD_LOGS_BYTES || !oldest)
            return;
        build_log_done(&oldest->b.log);
        build_log_add(&oldest->b.log, "finalize", BUILD_WARN,
                      "the log of this build is gone: the logs of a tenant's builds have %d MiB together",
                      BUILD_LOGS_BYTES >> 20);
    }
}

void build_ended(struct build_own *b)
{
    builds_trim_logs(b->builds, b->b.tenant);
    b->running = false;
    b->builds->running--;
    builds_schedule(b->builds);
}
