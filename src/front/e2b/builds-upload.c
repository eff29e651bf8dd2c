/* The files of COPY steps: where they are to be uploaded, and the upload itself. Whoever uploads shows no key: the address is
 * signed, for one upload of one tenant, and expires.
 */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "front/builds.h"
#include "front/e2b/e2b.h"
#include "front/reply.h"
#include "front/spool.h"
#include "http/url.h"
#include "sandbox/stockc.h"

enum { URL_LIFE_S = 3600 };

static bool is_hash(const char *s)
{
    return strlen(s) == SHA256_HEX - 1 && strspn(s, "0123456789abcdef") == SHA256_HEX - 1;
}

static void sign(const struct front *f, const char *tenant, const char *blob, uint64_t expires_unix,
                 char ret[SHA256_HEX])
{
    _cleanup_buf_ struct buf text = {0};
    uint8_t mac[SHA256_BYTES];
    unsigned n = 0;
    buf_addf(&text, "template upload 1\n%s\n%s\n%llu\n", tenant, blob, (unsigned long long)expires_unix);
    if (!HMAC(EVP_sha256(), f->link_key, sizeof f->link_key, (const uint8_t *)text.p, text.n, mac, &n) ||
        n != SHA256_BYTES)
        abort();
    for (size_t i = 0; i < SHA256_BYTES; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", mac[i]);
}

/* --- where to ----------------------------------------------------------------------------------------------------- */

/* A question or an upload under way; r is NULL once the client left. */
struct asking {
    struct http_req *r;
    char blob[SHA256_HEX];
    struct spool *spool; /* of an upload */
};

static void left(struct http_req *r) { ((struct asking *)r->user)->r = NULL; }

static struct asking *asking(struct http_req *r, const char *blob)
{
    struct asking *a = xcalloc(1, sizeof *a);
    a->r = r;
    memcpy(a->blob, blob, sizeof a->blob);
    r->user = a;
    api_on_closed(r, left);
    return a;
}

static void answer_place(struct http_req *r, const char *blob, bool present)
{
    const struct api_call *c = api_call_of(r);
    const char *tenant = c->who.tenant->id;
    bool may = !api_scope_lacking(c->who.scopes, SCOPE_TEMPLATES, API_CHANGES);
    uint64_t expires = reply_now_ms() / 1000 + URL_LIFE_S;
    char signature[SHA256_HEX];
    _cleanup_buf_ struct buf out = {0}, url = {0};
    struct json j;
    sign(c->front, tenant, blob, expires, signature);
    /* The host that the client used reaches us: it was checked to be ours. */
    buf_addf(&url, "%s://%s/v1/uploads/%s?tenant=", r->tls ? "https" : "http", r->authority, blob);
    url_encode(&url, tenant, strlen(tenant), "");
    buf_addf(&url, "&expires=%llu&signature=%s", (unsigned long long)expires, signature);
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_bool(&j, "present", present);
    if (may) /* the address alone lets its holder write */
        json_str(&j, "url", buf_str(&url));
    json_end_obj(&j);
    reply_json(r, 201, &out);
}

static void looked(void *arg, const struct stock_reply *r, int fd)
{
    struct asking *a = arg;
    struct http_req *req = a->r;
    char blob[SHA256_HEX];
    memcpy(blob, a->blob, sizeof blob);
    free(a);
    if (fd >= 0)
        (void)close(fd);
    if (!req)
        return;
    api_on_closed(req, NULL);
    if (r->error == STOCK_OK || r->error == STOCK_NOT_FOUND)
        answer_place(req, blob, r->error == STOCK_OK);
    else
        reply_error(req, stock_http_status(r->error), "the node cannot look for uploads: %.*s", STOCK_TEXT_MAX - 1,
                    r->text);
}

void e2b_build_files(struct api_call *c)
{
    struct front *f = c->front;
    struct stock_request q = stockc_request(STOCK_BLOB);
    const struct tmpl *t = tmpl_find(f, c->who.tenant, c->param[0], NULL);
    if (!(t && t->tenant == c->who.tenant) && !build_template_known(f, c->who.tenant, c->param[0])) {
        reply_error(c->req, 404, "template '%.80s' not found", c->param[0]);
    } else if (!is_hash(c->param[1])) {
        reply_error(c->req, 400, "'%.80s' is no hash of files: 64 hexadecimal digits in lower case", c->param[1]);
    } else if (!f->stock) {
        reply_error(c->req, 503, "the process that keeps files is not there; try again");
    } else {
        build_blob_name(c->who.tenant, c->param[1], q.blob);
        (void)stockc_ask_for(f->stock, c->who.tenant->id, &q, NULL, 0, NULL, looked, asking(c->req, q.blob));
    }
}

/* --- the upload --------------------------------------------------------------------------------------------------- */

static void converted(void *arg, const struct stock_reply *r, int fd)
{
    struct asking *a = arg;
    struct http_req *req = a->r;
    spool_free(a->spool);
    free(a);
    if (fd >= 0)
        (void)close(fd);
    if (!req)
        return;
    api_on_closed(req, NULL);
    if (r->error == STOCK_OK)
        reply_empty(req, 200);
    else
        reply_error(req, stock_http_status(r->error), "the upload cannot be used: %.*s", STOCK_TEXT_MAX - 1, r->text);
}

static void spooled(struct http_req *r, struct spool *s, int fd, unsigned status, const char *error, bool more)
{
    struct api_call *c = api_call_of(r);
    struct stock_request q = stockc_request(STOCK_CONVERT);
    if (status && more)
        api_refuse_body(r, status, error);
    else if (status || fd < 0) {
        spool_free(s);
        reply_error(r, status ? status : 500, "%s", status ? error : "the upload cannot be read again");
    } else if (!c->front->stock) {
        (void)close(fd);
        spool_free(s);
        reply_error(r, 503, "the process that keeps files is not there; try again");
    } else {
        _cleanup_buf_ struct buf tenant = {0};
        struct err err;
        (void)url_query_get(r->query, "tenant", URL_PLUS_LITERAL, &tenant, &err); /* the address was checked */
        q.bytes = config_uploads_bytes(c->front->config);
        memcpy(q.blob, c->param[0], sizeof q.blob);
        struct asking *a = asking(r, c->param[0]);
        a->spool = s;
        (void)stockc_ask_for(c->front->stock, buf_str(&tenant), &q, &fd, 1, NULL, converted, a);
    }
}

/* Whether the address is one that we gave, and to whom. */
static bool allowed(const struct api_call *c, struct buf *tenant)
{
    _cleanup_buf_ struct buf until = {0}, given = {0};
    char want[SHA256_HEX];
    uint64_t expires;
    struct err err;
    if (!is_hash(c->param[0]) || url_query_get(c->req->query, "expires", URL_PLUS_LITERAL, &until, &err) != 1 ||
        url_query_get(c->req->query, "signature", URL_PLUS_LITERAL, &given, &err) != 1 ||
        url_query_get(c->req->query, "tenant", URL_PLUS_LITERAL, tenant, &err) != 1 ||
        !num_u64(buf_str(&until), &expires))
        return false;
    sign(c->front, buf_str(tenant), c->param[0], expires, want);
    return given.n == SHA256_HEX - 1 && CRYPTO_memcmp(want, given.p, SHA256_HEX - 1) == 0 &&
           expires > reply_now_ms() / 1000;
}

void e2b_build_upload(struct api_call *c)
{
    _cleanup_buf_ struct buf tenant = {0};
    if (!allowed(c, &tenant))
        api_refuse_body(c->req, 403, "this upload address was not given by this node or has expired");
    else
        spool_body(c->req, buf_str(&tenant), NULL, spooled);
}
