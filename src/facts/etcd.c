/* etcd.c - facts in etcd: opens it, and makes its calls of ours. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "facts/etcd-int.h"

enum { PREFIX_MAX = 100 };

static void etcd_get(struct facts *f, const char *key, unsigned flags, struct facts_call_in in)
{
    struct etcd *e = (struct etcd *)f;
    struct etcd_call *c = etcd_call_new("/v3/kv/range", false, in, etcd_parse_rows);
    c->page = (struct facts_page){.prefix = xstrdup(key), .flags = flags};
    etcd_json_range(e, c);
    etcd_send(e, c);
}

static void etcd_range(struct facts *f, const struct facts_page *p, struct facts_call_in in)
{
    struct etcd *e = (struct etcd *)f;
    struct etcd_call *c = etcd_call_new("/v3/kv/range", false, in, etcd_parse_rows);
    c->page = *p;
    c->page.prefix = xstrdup(p->prefix);
    c->page.after = p->after ? xstrdup(p->after) : NULL;
    c->limit = p->limit < ETCD_PAGE ? p->limit : ETCD_PAGE;
    etcd_json_range(e, c);
    etcd_send(e, c);
}

static void etcd_change(struct facts *f, const struct facts_test *tests, size_t ntests,
                        const struct facts_write *writes, size_t nwrites, struct facts_call_in in)
{
    struct etcd *e = (struct etcd *)f;
    struct etcd_call *c = etcd_call_new("/v3/kv/txn", true, in, etcd_parse_change);
    etcd_json_change(e, tests, ntests, writes, nwrites, &c->body);
    etcd_send(e, c);
}

/* A call whose body is one number. */
static void etcd_call_number(struct facts *f, const char *path, bool changes, const char *name, uint64_t n,
                             etcd_parse_fn *parse, struct facts_call_in in)
{
    struct etcd_call *c = etcd_call_new(path, changes, in, parse);
    buf_addf(&c->body, "{\"%s\":\"%llu\"}", name, (unsigned long long)n);
    etcd_send((struct etcd *)f, c);
}

static void etcd_lease(struct facts *f, unsigned ttl_s, struct facts_call_in in)
{
    etcd_call_number(f, "/v3/lease/grant", true, "TTL", ttl_s, etcd_parse_lease, in);
}
static void etcd_lease_keep(struct facts *f, uint64_t lease, struct facts_call_in in)
{
    etcd_call_number(f, "/v3/lease/keepalive", false, "ID", lease, etcd_parse_kept, in);
}
static void etcd_lease_end(struct facts *f, uint64_t lease, struct facts_call_in in)
{
    etcd_call_number(f, "/v3/lease/revoke", true, "ID", lease, etcd_parse_nothing, in);
}
static void etcd_compact(struct facts *f, uint64_t revision, struct facts_call_in in)
{
    etcd_call_number(f, "/v3/kv/compaction", false, "revision", revision, etcd_parse_nothing, in);
}

static void etcd_free(struct etcd *e)
{
    loop_timer_del(e->head.loop, e->pulse_timer);
    etcd_net_close(e);
    tls_peer_free(e->tls);
    free(e->prefix);
    free(e->user);
    if (e->password)
        explicit_bzero(e->password, strlen(e->password));
    free(e->password);
    free(e->token);
    free(e->trouble);
    facts_head_done(&e->head);
    free(e);
}

static void etcd_close(struct facts *f) { etcd_free((struct etcd *)f); }

/* --- opening -------------------------------------------------------------------------------------------------------- */

static int etcd_read_endpoints(struct etcd *e, const char *urls, struct buf *shown, struct err *err)
{
    bool tls = false;
    for (const char *p = urls + strspn(urls, ","); *p; p += strspn(p, ",")) {
        size_t n = strcspn(p, ",");
        _cleanup_free_ char *one = xstrndup(p, n);
        struct config_url *u = &e->endpoint[e->nendpoints];
        if (e->nendpoints == ETCD_ENDPOINTS_MAX)
            return err_set(err, ERR_USAGE, 0, "etcd: more than %d endpoints", ETCD_ENDPOINTS_MAX);
        if (!config_url(one, u) || strcmp(u->target, "/") != 0)
            return err_set(err, ERR_USAGE, 0,
                           "etcd: '%.200s' is no endpoint; write http://HOST:PORT or https://HOST:PORT, and several of "
                           "them with commas",
                           one);
        if (e->nendpoints > 0 && u->tls != tls)
            return err_set(err, ERR_USAGE, 0, "etcd: endpoints are all http or all https");
        tls = u->tls;
        buf_addf(shown, "%s%s", e->nendpoints ? "," : "", u->authority);
        e->nendpoints++;
        p += n;
    }
    return e->nendpoints ? 0 : err_set(err, ERR_USAGE, 0, "etcd: no endpoint is named");
}

static int etcd_read_spec(struct etcd *e, const struct facts_etcd *spec, struct err *err)
{
    _cleanup_buf_ struct buf shown = {0};
    const char *prefix = spec->prefix ? spec->prefix : FACTS_ETCD_PREFIX;
    if (etcd_read_endpoints(e, spec->urls, &shown, err) < 0)
        return -1;
    bool tls = e->endpoint[0].tls;
    if (!facts_key_is_valid(prefix, strlen(prefix)) || strlen(prefix) > PREFIX_MAX)
        return err_set(err, ERR_USAGE, 0, "etcd: the prefix has 1 to %d printable ASCII characters, without space",
                       PREFIX_MAX);
    if ((spec->cert != NULL) != (spec->key != NULL))
        return err_set(err, ERR_USAGE, 0, "etcd: a certificate and its key are given together");
    if (!tls && (spec->authorities || spec->cert))
        return err_set(err, ERR_USAGE, 0, "etcd: authorities and certificates need endpoints with https");
    if ((spec->user != NULL) != (spec->password != NULL))
        return err_set(err, ERR_USAGE, 0, "etcd: a user and a password are given together");
    e->prefix = xstrdup(prefix);
    e->user = spec->user ? xstrdup(spec->user) : NULL;
    e->password = spec->password ? xstrdup(spec->password) : NULL;
    e->head.engine = xasprintf("etcd at %s", buf_str(&shown));
    return tls ? tls_peer_new(spec->authorities, spec->cert, spec->key, &e->tls, err) : 0;
}

int facts_etcd_open(struct loop *l, const struct facts_etcd *spec, struct facts **ret, struct err *err)
{
    static const struct facts_ops ops = {.close = etcd_close,
                                         .get = etcd_get,
                                         .range = etcd_range,
                                         .change = etcd_change,
                                         .lease = etcd_lease,
                                         .lease_keep = etcd_lease_keep,
                                         .lease_end = etcd_lease_end,
                                         .compact = etcd_compact,
                                         .follow = etcd_follow,
                                         .unfollow = etcd_unfollow};
    struct etcd *e = xcalloc(1, sizeof *e);
    e->head.ops = &ops;
    e->head.loop = l;
    e->last = &e->first;
    if (etcd_read_spec(e, spec, err) < 0) {
        etcd_free(e);
        return -1;
    }
    *ret = &e->head;
    return 0;
}
