#include "tenants/tenants.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/random.h"
#include "base/sha256.h"
#include "db/db.h"

enum {
    SECRET_LEN = 44, /* "e2b_" and 40 digits */
    TENANTS_MAX = 10000,
    KEYS_MAX = 50000,
    USED_EVERY_MS = 60 * 1000, /* how often the times of last use are written */
    TENANTS_ON_GONE_MAX = 8,
};

struct key {
    struct key_info info;
    char digest[SHA256_HEX];
    struct tenant *tenant;
    bool used; /* since the last write */
};
struct tenants {
    struct map by_id;
    struct map keys_by_digest, keys_by_id;
    struct tenant *gone;
    loop_id timer;
    struct tenants_deps d;
    struct gone_fn {
        tenant_gone_fn *fn;
        void *arg;
    } on_gone[TENANTS_ON_GONE_MAX];
    size_t non_gone;
};

static uint64_t tenants_unix_now(void) { return (uint64_t)time(NULL); }

/* --- asking ------------------------------------------------------------------------------------------------------- */

struct tenant *tenants_find(struct tenants *ts, const char *id) { return map_get(&ts->by_id, id); }

static const char *request_key(const struct http_req *r)
{
    const char *secret = http_field(&r->fields, "x-api-key");
    const char *bearer = http_field(&r->fields, "authorization");
    if (!secret && bearer && strncasecmp(bearer, "bearer ", 7) == 0)
        for (secret = bearer + 7; *secret == ' ';)
            secret++;
    return secret;
}

bool tenants_auth(struct tenants *ts, const struct http_req *r, struct principal *ret)
{
    return tenants_auth_key(ts, request_key(r), ret);
}

bool tenants_auth_key(struct tenants *ts, const char *secret, struct principal *ret)
{
    if (!secret || strlen(secret) != SECRET_LEN)
        return false;
    char digest[SHA256_HEX];
    sha256_hex(secret, SECRET_LEN, digest);
    /* The time of the lookup may reveal something about a digest, but a digest does not reveal the key. */
    struct key *k = map_get(&ts->keys_by_digest, digest);
    if (!k)
        return false;
    uint64_t now = tenants_unix_now();
    if (k->tenant->closing || (k->info.expires_unix && now >= k->info.expires_unix))
        return false;
    k->used = k->used || k->info.used_unix / 60 != now / 60;
    k->info.used_unix = now;
    *ret = (struct principal){.tenant = k->tenant, .scopes = k->info.scopes};
    (void)snprintf(ret->key_id, sizeof ret->key_id, "%s", k->info.id);
    return true;
}

/* The generic cell rate algorithm: one number per tenant. */
unsigned tenants_throttle(struct tenants *ts, struct tenant *t)
{
    if (t->quota.requests_per_second == 0)
        return 0;
    uint64_t now = loop_now(ts->d.loop) * 1000, step = 1000000 / t->quota.requests_per_second;
    uint64_t room = step * (t->quota.burst ? t->quota.burst : t->quota.requests_per_second);
    uint64_t at = t->tat_us > now ? t->tat_us : now;
    if (at - now > room)
        return (unsigned)((at - now - room + 999999) / 1000000);
    t->tat_us = at + step;
    return 0;
}

/* --- quotas ------------------------------------------------------------------------------------------------------- */

static void quota_size_text(char *out, size_t n, uint64_t bytes)
{
    struct buf b = {0};
    num_add_size(&b, bytes);
    (void)snprintf(out, n, "%s", buf_str(&b));
    buf_done(&b);
}

static bool quota_exceeded(const char *what, uint64_t used, uint64_t need, uint64_t limit, char why[200])
{
    char limit_text[40], used_text[40];
    if (limit == 0 || (used <= limit && need <= limit - used))
        return false;
    quota_size_text(limit_text, sizeof limit_text, limit);
    quota_size_text(used_text, sizeof used_text, used);
    (void)snprintf(why, 200, "the tenant's quota of %s is used up: %s of %s in use", what, used_text, limit_text);
    return true;
}

unsigned tenant_take(struct tenants *ts, struct tenant *t, const struct tenant_need *n, char why[200])
{
    const struct quota *q = &t->quota;
    bool over = false;
    if (t->closing) {
        (void)snprintf(why, 200, "the tenant is being removed");
        return 1;
    }
    if (q->sandboxes && t->sandboxes >= q->sandboxes) {
        over = true;
        (void)snprintf(why, 200, "the tenant's quota of sandboxes is used up: %u of %u are running", t->sandboxes,
                       q->sandboxes);
    } else if (q->cpu_milli && (uint64_t)t->cpu_milli + n->cpu_milli > q->cpu_milli) {
        over = true;
        (void)snprintf(why, 200, "the tenant's quota of CPUs is used up: %u.%u of %u.%u in use", t->cpu_milli / 1000,
                       t->cpu_milli % 1000 / 100, q->cpu_milli / 1000, q->cpu_milli % 1000 / 100);
    } else
        over = quota_exceeded("memory", t->memory, n->memory, q->memory, why) ||
               quota_exceeded("disk", t->disk, n->disk, q->disk, why);
    if (!over) {
        tenant_count(t, n);
        return 0;
    }
    /* Probably one of its sandboxes ends within that time. */
    uint64_t wait = (t->end_gap_ms + 999) / 1000;
    (void)ts;
    return wait < 1 ? 1 : wait > 30 ? 30 : (unsigned)wait;
}

void tenant_count(struct tenant *t, const struct tenant_need *n)
{
    t->sandboxes++;
    t->cpu_milli += n->cpu_milli;
    t->memory += n->memory;
    t->disk += n->disk;
}

void tenant_give_back(struct tenants *ts, struct tenant *t, const struct tenant_need *n, bool ended)
{
    uint64_t now = loop_now(ts->d.loop);
    t->sandboxes--;
    t->cpu_milli -= n->cpu_milli;
    t->memory -= n->memory;
    t->disk -= n->disk;
    if (!ended)
        return;
    if (t->last_end_ms && now > t->last_end_ms)
        t->end_gap_ms = t->end_gap_ms ? (t->end_gap_ms * 7 + (now - t->last_end_ms)) / 8 : now - t->last_end_ms;
    t->last_end_ms = now;
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

static struct tenant *tenants_put_tenant(struct tenants *ts, const char *id, const char *name, const struct quota *q)
{
    struct tenant *t = map_get(&ts->by_id, id);
    if (!t) {
        t = xcalloc(1, sizeof *t);
        (void)snprintf(t->id, sizeof t->id, "%s", id);
        (void)map_put(&ts->by_id, t->id, t);
    }
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    t->quota = *q;
    return t;
}

static void tenants_drop_key(struct tenants *ts, struct key *k)
{
    (void)map_del(&ts->keys_by_id, k->info.id);
    (void)map_del(&ts->keys_by_digest, k->digest);
    free(k);
}

static void tenants_put_key(struct tenants *ts, const struct key *from)
{
    struct key *old = map_get(&ts->keys_by_id, from->info.id);
    if (old)
        tenants_drop_key(ts, old);
    struct key *k = xmalloc(sizeof *k);
    *k = *from;
    (void)map_put(&ts->keys_by_id, k->info.id, k);
    (void)map_put(&ts->keys_by_digest, k->digest, k);
}

static void tenants_load_tenant(void *arg, const struct db_tenant *t)
{
    struct quota q = {.sandboxes = t->sandboxes,
                      .cpu_milli = t->cpu_milli,
                      .memory = t->memory,
                      .disk = t->disk,
                      .requests_per_second = t->requests_per_second,
                      .burst = t->burst,
                      .max_timeout_s = t->max_timeout_s,
                      .snapshots = t->snapshots,
                      .state_bytes = t->state_bytes,
                      .state_entries = t->state_entries};
    (void)tenants_put_tenant(arg, t->id, t->name, &q);
}

static void tenants_load_key(void *arg, const struct db_key *row)
{
    struct tenants *ts = arg;
    struct key k = {.tenant = map_get(&ts->by_id, row->tenant)};
    if (!k.tenant)
        return;
    (void)snprintf(k.info.id, sizeof k.info.id, "%s", row->id);
    (void)snprintf(k.info.tenant, sizeof k.info.tenant, "%s", row->tenant);
    (void)snprintf(k.info.name, sizeof k.info.name, "%s", row->name);
    (void)snprintf(k.info.hint, sizeof k.info.hint, "%s", row->hint);
    (void)snprintf(k.digest, sizeof k.digest, "%s", row->digest);
    k.info.scopes = row->scopes;
    k.info.created_unix = row->created_unix;
    k.info.expires_unix = row->expires_unix;
    k.info.used_unix = row->used_unix;
    tenants_put_key(ts, &k);
}

static void tenants_write_tenant(struct tenants *ts, const char *id, const char *name, const struct quota *q,
                                 db_done *done, void *arg)
{
    struct db_tenant row = {.id = id,
                            .name = name,
                            .sandboxes = q->sandboxes,
                            .cpu_milli = q->cpu_milli,
                            .memory = q->memory,
                            .disk = q->disk,
                            .requests_per_second = q->requests_per_second,
                            .burst = q->burst,
                            .max_timeout_s = q->max_timeout_s,
                            .snapshots = q->snapshots,
                            .state_bytes = q->state_bytes,
                            .state_entries = q->state_entries};
    db_tenant_put(ts->d.db, &row, done, arg);
}

static void tenants_write_key(struct tenants *ts, const struct key *k, db_done *done, void *arg)
{
    struct db_key row = {.id = k->info.id,
                         .tenant = k->info.tenant,
                         .name = k->info.name,
                         .hint = k->info.hint,
                         .digest = k->digest,
                         .scopes = k->info.scopes,
                         .created_unix = k->info.created_unix,
                         .expires_unix = k->info.expires_unix,
                         .used_unix = k->info.used_unix};
    db_key_put(ts->d.db, &row, done, arg);
}

static void tenants_on_row_stored(void *arg, const struct err *err)
{
    (void)arg;
    if (err)
        log_text(LOG_LEVEL_ERROR, "%s", err->msg);
}

/* The operator's tenant and key always exist; the key follows STATE/admin.key. */
static void tenants_ensure_admin(struct tenants *ts)
{
    struct tenant *t = map_get(&ts->by_id, TENANT_DEFAULT);
    if (!t) {
        t = tenants_put_tenant(ts, TENANT_DEFAULT, "default", &(struct quota){0});
        tenants_write_tenant(ts, t->id, t->name, &t->quota, tenants_on_row_stored, NULL);
    }
    struct key *old = map_get(&ts->keys_by_id, KEY_ADMIN);
    if (!*ts->d.admin_digest || (old && strcmp(old->digest, ts->d.admin_digest) == 0))
        return;
    struct key k = {.tenant = t};
    (void)snprintf(k.info.id, sizeof k.info.id, "%s", KEY_ADMIN);
    (void)snprintf(k.info.tenant, sizeof k.info.tenant, "%s", t->id);
    (void)snprintf(k.info.name, sizeof k.info.name, "%s", "admin");
    (void)snprintf(k.info.hint, sizeof k.info.hint, "%s", ts->d.admin_hint);
    (void)snprintf(k.digest, sizeof k.digest, "%.*s", SHA256_HEX - 1, ts->d.admin_digest);
    k.info.scopes = SCOPE_SANDBOXES | SCOPE_TEMPLATES | SCOPE_ADMIN;
    k.info.created_unix = tenants_unix_now();
    tenants_put_key(ts, &k);
    tenants_write_key(ts, &k, tenants_on_row_stored, NULL);
}

static void tenants_write_used(void *arg)
{
    struct tenants *ts = arg;
    size_t at = 0;
    for (struct key *k; (k = map_next(&ts->keys_by_id, &at));)
        if (k->used) {
            db_key_used(ts->d.db, k->info.id, k->info.used_unix);
            k->used = false;
        }
    ts->timer = loop_timer(ts->d.loop, USED_EVERY_MS, tenants_write_used, ts);
}

struct tenants *tenants_new(const struct tenants_deps *d)
{
    struct tenants *ts = xcalloc(1, sizeof *ts);
    ts->d = *d;
    return ts;
}

void tenants_on_gone(struct tenants *ts, tenant_gone_fn *fn, void *arg)
{
    assert(ts->non_gone < TENANTS_ON_GONE_MAX);
    ts->on_gone[ts->non_gone++] = (struct gone_fn){fn, arg};
}

int tenants_load(struct tenants *ts, struct err *err)
{
    if (db_tenants(ts->d.db, tenants_load_tenant, ts, err) < 0 || db_keys(ts->d.db, tenants_load_key, ts, err) < 0)
        return -1;
    tenants_ensure_admin(ts);
    ts->timer = loop_timer(ts->d.loop, USED_EVERY_MS, tenants_write_used, ts);
    return 0;
}

void tenants_free(struct tenants *ts)
{
    if (!ts)
        return;
    size_t at = 0;
    for (struct key *k; (k = map_next(&ts->keys_by_id, &at));)
        free(k);
    at = 0;
    for (struct tenant *t; (t = map_next(&ts->by_id, &at));)
        free(t);
    for (struct tenant *t = ts->gone, *next; t; t = next) {
        next = t->next_gone;
        free(t);
    }
    map_done(&ts->by_id);
    map_done(&ts->keys_by_id);
    map_done(&ts->keys_by_digest);
    loop_timer_del(ts->d.loop, ts->timer);
    free(ts);
}

/* --- administration ----------------------------------------------------------------------------------------------- */

struct change {
    struct tenants *tenants;
    tenants_done *done;
    void *arg;
    struct err err; /* of a change that is refused at once */
    char id[40], name[64];
    struct quota quota;
    struct key key;
};

static struct change *tenant_change_new(struct tenants *ts, const char *id, tenants_done *done, void *arg)
{
    struct change *c = xcalloc(1, sizeof *c);
    c->tenants = ts;
    c->done = done;
    c->arg = arg;
    (void)snprintf(c->id, sizeof c->id, "%s", id);
    return c;
}

static void tenant_change_finish(struct change *c, const struct err *err)
{
    if (c->done)
        c->done(c->arg, err);
    free(c);
}

static void tenant_change_on_refused(void *arg)
{
    struct change *c = arg;
    tenant_change_finish(c, &c->err);
}

static void tenant_change_refuse(struct change *c) { loop_defer(c->tenants->d.loop, tenant_change_on_refused, c); }

/* Ids of tenants are used in paths and logs. */
static bool tenant_id_valid(const char *id)
{
    size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789-_");
    return n > 0 && n < 40 && id[n] == '\0' && isalnum((unsigned char)id[0]);
}

static void tenant_on_put(void *arg, const struct err *err)
{
    struct change *c = arg;
    if (!err)
        (void)tenants_put_tenant(c->tenants, c->id, c->name, &c->quota);
    tenant_change_finish(c, err);
}

void tenant_put(struct tenants *ts, const char *id, const char *name, const struct quota *q, tenants_done *done,
                void *arg)
{
    struct change *c = tenant_change_new(ts, id, done, arg);
    (void)snprintf(c->name, sizeof c->name, "%s", name && *name ? name : id);
    c->quota = *q;
    int rc = 0;
    if (!tenant_id_valid(id))
        rc = err_set(&c->err, ERR_USAGE, EINVAL,
                     "a tenant's id is 1 to 39 of a-z, 0-9, - and _, beginning with a letter or digit");
    else if (name && strlen(name) >= sizeof c->name)
        rc = err_set(&c->err, ERR_USAGE, EINVAL, "a tenant's name has at most %zu bytes", sizeof c->name - 1);
    else if (!tenants_find(ts, id) && ts->by_id.n >= TENANTS_MAX)
        rc = err_set(&c->err, ERR_USAGE, ENOSPC, "this node is full: it has %d tenants", TENANTS_MAX);
    if (rc < 0)
        tenant_change_refuse(c);
    else
        tenants_write_tenant(ts, c->id, c->name, q, tenant_on_put, c);
}

static void tenant_on_removed(void *arg, const struct err *err)
{
    struct change *c = arg;
    struct tenants *ts = c->tenants;
    struct tenant *t = map_get(&ts->by_id, c->id);
    if (t && err)
        t->closing = false;
    else if (t) {
        for (size_t at = 0;;) {
            struct key *k = map_next(&ts->keys_by_id, &at);
            if (!k)
                break;
            if (k->tenant == t) {
                tenants_drop_key(ts, k);
                at = 0;
            }
        }
        (void)map_del(&ts->by_id, t->id);
        t->next_gone = ts->gone;
        ts->gone = t;
        for (size_t i = 0; i < ts->non_gone; i++)
            ts->on_gone[i].fn(ts->on_gone[i].arg, t);
    }
    tenant_change_finish(c, err);
}

void tenant_remove(struct tenants *ts, const char *id, tenants_done *done, void *arg)
{
    struct change *c = tenant_change_new(ts, id, done, arg);
    struct tenant *t = tenants_find(ts, id);
    int rc = 0;
    if (!t)
        rc = err_set(&c->err, ERR_USAGE, ENOENT, "there is no such tenant");
    else if (strcmp(id, TENANT_DEFAULT) == 0)
        rc = err_set(&c->err, ERR_USAGE, EPERM, "the tenant " TENANT_DEFAULT " is the operator's own and stays");
    else if (t->sandboxes || t->closing)
        rc = err_set(&c->err, ERR_USAGE, EBUSY, "the tenant has %u sandboxes; end them first", t->sandboxes);
    else if (t->stored)
        rc = err_set(&c->err, ERR_USAGE, EBUSY, "the tenant has %u paused sandboxes; end them first", t->stored);
    if (rc < 0 || !t)
        tenant_change_refuse(c);
    else {
        t->closing = true;
        db_tenant_del(ts->d.db, id, tenant_on_removed, c);
    }
}

static void key_on_created(void *arg, const struct err *err)
{
    struct change *c = arg;
    c->key.tenant = map_get(&c->tenants->by_id, c->key.info.tenant);
    if (!err && c->key.tenant)
        tenants_put_key(c->tenants, &c->key);
    tenant_change_finish(c, err);
}

void key_create(struct tenants *ts, const char *tenant, const char *name, unsigned scopes, uint64_t expires_unix,
                char ret_secret[64], char ret_id[24], tenants_done *done, void *arg)
{
    struct change *c = tenant_change_new(ts, "", done, arg);
    struct key_info *i = &c->key.info;
    char digits[41];
    random_hex(digits, 20);
    (void)snprintf(ret_secret, 64, "e2b_%s", digits);
    sha256_hex(ret_secret, SECRET_LEN, c->key.digest);
    (void)snprintf(i->hint, sizeof i->hint, "%s", ret_secret + SECRET_LEN - 4);
    random_hex(digits, 8);
    (void)snprintf(i->id, sizeof i->id, "key_%.16s", digits);
    (void)snprintf(ret_id, 24, "%s", i->id);
    (void)snprintf(i->tenant, sizeof i->tenant, "%s", tenant);
    (void)snprintf(i->name, sizeof i->name, "%s", name);
    i->scopes = scopes;
    i->created_unix = tenants_unix_now();
    i->expires_unix = expires_unix;
    const unsigned all = SCOPE_SANDBOXES | SCOPE_TEMPLATES | SCOPE_ADMIN | SCOPE_READ | SCOPE_FILES;
    int rc = 0;
    if (!tenants_find(ts, tenant))
        rc = err_set(&c->err, ERR_USAGE, ENOENT, "there is no such tenant");
    else if (scopes == 0 || (scopes & ~all))
        rc = err_set(&c->err, ERR_USAGE, EINVAL,
                     "a key needs at least one scope: sandboxes, templates, files, read or "
                     "admin");
    else if (expires_unix && expires_unix <= i->created_unix)
        rc = err_set(&c->err, ERR_USAGE, EINVAL, "the key's expiry lies in the past");
    else if (strlen(name) >= sizeof i->name)
        rc = err_set(&c->err, ERR_USAGE, EINVAL, "a key's name has at most %zu bytes", sizeof i->name - 1);
    else if (ts->keys_by_id.n >= KEYS_MAX)
        rc = err_set(&c->err, ERR_USAGE, ENOSPC, "this node is full: it has %d keys", KEYS_MAX);
    if (rc < 0)
        tenant_change_refuse(c);
    else
        tenants_write_key(ts, &c->key, key_on_created, c);
}

static void key_on_removed(void *arg, const struct err *err)
{
    struct change *c = arg;
    tenant_change_finish(c, err);
}

void key_remove(struct tenants *ts, const char *id, tenants_done *done, void *arg)
{
    struct change *c = tenant_change_new(ts, id, done, arg);
    struct key *k = map_get(&ts->keys_by_id, id);
    if (!k || strcmp(id, KEY_ADMIN) == 0) {
        (void)err_set(
            &c->err, ERR_USAGE, k ? EPERM : ENOENT, "%s",
            k ? "the operator's key stays; to change it, remove admin.key from the state directory and start again"
              : "there is no such key");
        tenant_change_refuse(c);
        return;
    }
    /* The key stops working now, before the commit: refusing it too early is safer than accepting it too late. */
    tenants_drop_key(ts, k);
    db_key_del(ts->d.db, c->id, key_on_removed, c);
}

void tenants_each(struct tenants *ts, void (*each)(void *arg, const struct tenant *t), void *arg)
{
    size_t at = 0;
    for (struct tenant *t; (t = map_next(&ts->by_id, &at));)
        each(arg, t);
}

void keys_each(struct tenants *ts, void (*each)(void *arg, const struct key_info *k), void *arg)
{
    size_t at = 0;
    for (struct key *k; (k = map_next(&ts->keys_by_id, &at));)
        each(arg, &k->info);
}
