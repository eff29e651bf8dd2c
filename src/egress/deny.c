/* deny.c - counts the refusals of a sandbox, keeps them in a ring, tells front and the listeners inside, and writes the
 * audit log.
 *
 * A refused client may try a thousand times a second. Equal refusals (host, port, method, path, reason) within
 * DENY_SAME_MS are one record: told when the first comes, and once more with the count when the time is over.
 */
#include "egress/deny.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/random.h"
#include "egress/audit/audit.h"
#include "egress/deny-int.h"

bool deny_bucket_take(struct deny_bucket *b, uint32_t per_s, uint64_t now_ms)
{
    uint64_t full = (uint64_t)per_s * 1000;
    uint64_t have = b->used ? b->milli + (now_ms - b->at_ms) * per_s : full;
    b->used = true;
    b->at_ms = now_ms;
    if (have > full)
        have = full;
    bool ok = have >= 1000;
    b->milli = (uint32_t)(have - (ok ? 1000 : 0));
    return ok;
}

struct denials *denials_of(struct esb *s)
{
    if (!s->denials)
        s->denials = xcalloc(1, sizeof(struct denials));
    return s->denials;
}

static void denial_destroy(struct denial *d)
{
    if (!d)
        return;
    free(d->host);
    free(d->method);
    free(d->path);
    free(d->rule);
    free(d->text);
    free(d->approval);
    free(d);
}

void deny_forget(struct esb *s)
{
    struct denials *k = s->denials;
    if (!k)
        return;
    s->denials = NULL;
    internal_calls_abort(k);
    loop_timer_del(s->g->loop, k->timer);
    for (size_t i = 0; i < DENIALS_KEPT; i++)
        denial_destroy(k->ring[i]);
    free(k);
}

/* --- telling
 * -------------------------------------------------------------------------------------------------------- */

static void denial_add_time(struct json *j, uint64_t unix_ms)
{
    char text[48], whole[80];
    time_t at = (time_t)(unix_ms / 1000);
    struct tm tm;
    (void)gmtime_r(&at, &tm);
    (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(whole, sizeof whole, "%s.%03uZ", text, (unsigned)(unix_ms % 1000));
    json_str(j, "at", whole);
}

void denial_fields(struct json *j, const struct denial *d)
{
    json_u64(j, "seq", d->seq);
    json_str(j, "id", d->id);
    denial_add_time(j, d->unix_ms);
    json_str(j, "reason", netpol_reason_name(d->reason));
    json_str(j, "layer", d->layer);
    json_str(j, "host", d->host);
    json_u64(j, "port", d->port);
    json_str(j, "method", d->method);
    json_str(j, "path", d->path);
    json_str(j, "rule", d->rule);
    json_str(j, "text", d->text);
    json_str(j, "approval", d->approval);
    json_u64(j, "count", d->count);
    _cleanup_buf_ struct buf grant = {0};
    if (denial_grant(d, &grant))
        buf_addf(j->out, ",\"grant\":%s", buf_str(&grant)); /* JSON already */
}

static void denial_tell_front(struct esb *s, struct denials *k, const struct denial *d)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!deny_bucket_take(&k->tells, DENY_TELL_PER_S, loop_now(s->g->loop))) {
        k->untold++;
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "type", "denied");
    json_str(&j, "sandbox", s->id);
    denial_fields(&j, d);
    if (k->untold > 0)
        json_u64(&j, "dropped", k->untold);
    json_end_obj(&j);
    k->untold = 0;
    control_tell(s->g, &out);
}

static void denial_tell(struct esb *s, struct denials *k, struct denial *d, const struct flow *flow)
{
    struct audit_record r = {
        .kind = strcmp(d->layer, "dns") == 0 ? "dns" : "deny",
        .sandbox = s,
        .flow = flow,
        .request_id = d->id,
        .host = d->host,
        .port = d->port,
        .method = d->method,
        .path = d->path,
        .status = d->method ? deny_status(d->reason) : 0,
        .verdict = "deny",
        .rule = d->rule,
        .reason = netpol_reason_name(d->reason),
        .layer = d->layer,
        .count = d->count - d->told,
    };
    audit_write(s->g->audit, &r);
    denial_tell_front(s, k, d);
    internal_events_tell(s, d);
    d->told = d->count;
}

/* Tells the records whose count grew since they were last told. */
static void denials_on_repeat_timer(void *arg)
{
    struct esb *s = arg;
    struct denials *k = s->denials;
    uint64_t now = loop_now(s->g->loop), wait = 0;
    k->timer = 0;
    for (size_t i = 0; i < DENIALS_KEPT; i++) {
        struct denial *d = k->ring[i];
        if (!d || d->count == d->told)
            continue;
        if (now - d->first_ms >= DENY_SAME_MS)
            denial_tell(s, k, d, NULL);
        else if (wait == 0 || d->first_ms + DENY_SAME_MS - now < wait)
            wait = d->first_ms + DENY_SAME_MS - now;
    }
    if (wait > 0)
        k->timer = loop_timer(s->g->loop, wait, denials_on_repeat_timer, s);
}

/* --- keeping
 * -------------------------------------------------------------------------------------------------------- */

static bool same_text(const char *kept, const char *given, size_t cut)
{
    return !kept || !given ? kept == given : strncmp(kept, given, cut) == 0;
}

/* FNV-1a is enough: matches are compared in full, so a sandbox that provokes collisions only causes a few
 * comparisons. */
static uint64_t deny_hash(const struct deny *d)
{
    const char *texts[] = {d->host, d->method, d->path};
    uint64_t h = 0xcbf29ce484222325ull ^ ((uint64_t)d->port << 16 | (uint64_t)d->reason);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        for (const char *p = texts[i]; p && *p && p < texts[i] + DENY_PATH_KEPT; p++)
            h = (h ^ (unsigned char)*p) * 0x100000001b3ull;
        h = (h ^ 0xff) * 0x100000001b3ull;
    }
    return h;
}

static struct denial *denials_find_same(struct denials *k, const struct deny *d, uint64_t hash, uint64_t now)
{
    uint64_t oldest = k->last_seq > DENIALS_KEPT ? k->last_seq - DENIALS_KEPT : 0;
    for (uint64_t seq = k->last_seq; seq > oldest; seq--) {
        struct denial *e = k->ring[seq % DENIALS_KEPT];
        if (now - e->first_ms >= DENY_SAME_MS)
            return NULL;
        if (e->hash == hash && e->port == d->port && e->reason == d->reason &&
            same_text(e->host, d->host, NETPOL_NAME_MAX) && same_text(e->method, d->method, 64) &&
            same_text(e->path, d->path, DENY_PATH_KEPT) && same_text(e->approval, d->approval, 64))
            return e;
    }
    return NULL;
}

static char *deny_copy_text(const char *text, size_t max) { return text ? xstrndup(text, strnlen(text, max)) : NULL; }

static struct denial *denials_append(struct esb *s, struct denials *k, const struct deny *d, uint64_t hash)
{
    struct timespec now;
    struct denial **at = &k->ring[(k->last_seq + 1) % DENIALS_KEPT], *e = xcalloc(1, sizeof *e);
    if (*at && (*at)->count != (*at)->told)
        denial_tell(s, k, *at, NULL);
    denial_destroy(*at);
    *at = e;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    *e = (struct denial){
        .seq = ++k->last_seq,
        .unix_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000,
        .first_ms = loop_now(s->g->loop),
        .count = 1,
        .hash = hash,
        .reason = d->reason,
        .port = d->port,
        .tls = deny_over_tls(d),
        .host = deny_copy_text(d->host, NETPOL_NAME_MAX),
        .method = deny_copy_text(d->method, 64),
        .path = deny_copy_text(d->path, DENY_PATH_KEPT),
        .rule = deny_copy_text(d->rule, NETPOL_ID_MAX),
        .text = deny_copy_text(d->text, DENY_TEXT_KEPT),
        .approval = deny_copy_text(d->approval, 64),
    };
    (void)snprintf(e->layer, sizeof e->layer, "%s", d->layer ? d->layer : "http");
    memcpy(e->id, "dn_", 3);
    random_hex(e->id + 3, 8);
    return e;
}

void deny_record(struct esb *s, struct deny *d)
{
    struct denials *k = denials_of(s);
    uint64_t now = loop_now(s->g->loop), hash = deny_hash(d);
    struct denial *e = denials_find_same(k, d, hash, now);
    s->counts.denied++;
    if (d->host)
        esb_host(s, d->host)->denied++;
    if (e) {
        e->count++;
        if (!k->timer)
            k->timer = loop_timer(s->g->loop, DENY_SAME_MS, denials_on_repeat_timer, s);
    } else {
        e = denials_append(s, k, d, hash);
        denial_tell(s, k, e, d->flow);
    }
    memcpy(d->id, e->id, sizeof d->id);
    d->seq = e->seq;
}

void deny_list(const struct esb *s, uint64_t since, unsigned limit, struct buf *out)
{
    const struct denials *k = s->denials;
    uint64_t last = k ? k->last_seq : 0, next = since < last ? since : last;
    uint64_t first = last > DENIALS_KEPT ? last - DENIALS_KEPT + 1 : 1;
    struct json j;
    json_start(&j, out);
    json_obj(&j, NULL);
    json_arr(&j, "denials");
    for (uint64_t seq = since < first ? first : since + 1; k && seq <= last && limit > 0; seq++, limit--) {
        json_obj(&j, NULL);
        denial_fields(&j, k->ring[seq % DENIALS_KEPT]);
        json_end_obj(&j);
        next = seq;
    }
    json_end_arr(&j);
    json_u64(&j, "next", next);
    json_end_obj(&j);
}
