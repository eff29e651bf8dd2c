/* builds-upload.c - files of COPY steps: the address to upload them to, and the upload itself. An upload needs no API
 * key: its address is signed for one upload of one tenant, and it expires.
 */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/reply.h"
#include "api/spool.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "builds/builds.h"
#include "http/url.h"
#include "peers/layersc.h"

enum { URL_LIFE_S = 3600 };

static bool build_upload_is_hash(const char *s)
{
    return strlen(s) == SHA256_HEX - 1 && strspn(s, "0123456789abcdef") == SHA256_HEX - 1;
}

static void build_upload_sign(const struct api *api, const char *tenant, const char *blob, uint64_t expires_unix,
                              char ret[SHA256_HEX])
{
    _cleanup_buf_ struct buf text = {0};
    uint8_t mac[SHA256_BYTES];
    unsigned n = 0;
    buf_addf(&text, "template upload 1\n%s\n%s\n%llu\n", tenant, blob, (unsigned long long)expires_unix);
    if (!HMAC(EVP_sha256(), api->link_key, sizeof api->link_key, (const uint8_t *)text.p, text.n, mac, &n) ||
        n != SHA256_BYTES)
        abort();
    for (size_t i = 0; i < SHA256_BYTES; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", mac[i]);
}

/* --- the address ----------------------------------------------------------------------------------------------------- */

/* A lookup or an upload under way; r is NULL once the client left. */
struct asking {
    struct http_req *r;
    char blob[SHA256_HEX];
    struct spool *spool; /* of an upload */
};

static void build_upload_on_client_left(struct http_req *r) { ((struct asking *)r->user)->r = NULL; }

static struct asking *build_upload_wait_new(struct http_req *r, const char *blob)
{
    struct asking *a = xcalloc(1, sizeof *a);
    a->r = r;
    memcpy(a->blob, blob, sizeof a->blob);
    r->user = a;
    api_on_closed(r, build_upload_on_client_left);
    return a;
}

static void build_upload_answer_place(struct http_req *r, const char *blob, bool present)
{
    const struct api_call *c = api_call_of(r);
    const char *tenant = c->who.tenant->id;
    bool may = !api_scope_lacking(c->who.scopes, SCOPE_TEMPLATES, API_CHANGES);
    uint64_t expires = clock_unix_ms() / 1000 + URL_LIFE_S;
    char signature[SHA256_HEX];
    _cleanup_buf_ struct buf out = {0}, url = {0};
    struct json j;
    build_upload_sign(c->api, tenant, blob, expires, signature);
    /* The host that the client used reaches us: it was checked to be ours. */
    buf_addf(&url, "%s://%s/v1/uploads/%s?tenant=", r->tls ? "https" : "http", r->authority, blob);
    url_encode(&url, tenant, strlen(tenant), "");
    buf_addf(&url, "&expires=%llu&signature=%s", (unsigned long long)expires, signature);
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_bool(&j, "present", present);
    if (may) /* the address alone is enough to upload */
        json_str(&j, "url", buf_str(&url));
    json_end_obj(&j);
    reply_json(r, 201, &out);
}

static void build_upload_on_looked_up(void *arg, const struct layers_reply *r, int fd)
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
    if (r->error == LAYERS_OK || r->error == LAYERS_NOT_FOUND)
        build_upload_answer_place(req, blob, r->error == LAYERS_OK);
    else
        reply_error(req, layers_http_status(r->error), "the node cannot look for uploads: %.*s", LAYERS_TEXT_MAX - 1,
                    r->text);
}

void e2b_build_files(struct api_call *c)
{
    struct api *api = c->api;
    const struct template *t = api->domain->templates.find(api->templates, c->who.tenant, c->param[0], NULL);
    if (!(t && t->tenant == c->who.tenant) && !build_template_known(api->builds, c->who.tenant, c->param[0])) {
        reply_error(c->req, 404, "template '%.80s' not found", c->param[0]);
    } else if (!build_upload_is_hash(c->param[1])) {
        reply_error(c->req, 400, "'%.80s' is no hash of files: 64 hexadecimal digits in lower case", c->param[1]);
    } else if (!api->peers->layers) {
        reply_error(c->req, 503, "the process that keeps files is not there; try again");
    } else {
        char blob[SHA256_HEX];
        build_blob_name(c->who.tenant, c->param[1], blob);
        const struct layersc_to to = {
            .owner = c->who.tenant->id, .done = build_upload_on_looked_up, .arg = build_upload_wait_new(c->req, blob)};
        (void)layersc_blob(api->peers->layers, &to, blob);
    }
}

/* --- the upload --------------------------------------------------------------------------------------------------- */

static void build_upload_on_converted(void *arg, const struct layers_reply *r, int fd)
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
    if (r->error == LAYERS_OK)
        reply_empty(req, 200);
    else
        reply_error(req, layers_http_status(r->error), "the upload cannot be used: %.*s", LAYERS_TEXT_MAX - 1, r->text);
}

static void build_upload_on_spooled(struct http_req *r, struct spool *s, int fd, unsigned status, const char *error,
                                    bool more)
{
    struct api_call *c = api_call_of(r);
    if (status && more)
        api_refuse_body(r, status, error);
    else if (status || fd < 0) {
        spool_free(s);
        reply_error(r, status ? status : 500, "%s", status ? error : "the upload cannot be read again");
    } else if (!c->api->peers->layers) {
        (void)close(fd);
        spool_free(s);
        reply_error(r, 503, "the process that keeps files is not there; try again");
    } else {
        _cleanup_buf_ struct buf tenant = {0};
        struct err err;
        (void)url_query_get(r->query, "tenant", URL_PLUS_LITERAL, &tenant, &err); /* the address was checked */
        struct asking *a = build_upload_wait_new(r, c->param[0]);
        a->spool = s;
        const struct layersc_to to = {.owner = buf_str(&tenant), .done = build_upload_on_converted, .arg = a};
        (void)layersc_convert(c->api->peers->layers, &to, c->param[0], config_uploads_bytes(c->api->config), fd);
    }
}

/* Whether this node signed the address and it has not expired; appends the tenant it is for. */
static bool build_upload_is_allowed(const struct api_call *c, struct buf *tenant)
{
    _cleanup_buf_ struct buf until = {0}, given = {0};
    char want[SHA256_HEX];
    uint64_t expires;
    struct err err;
    if (!build_upload_is_hash(c->param[0]) ||
        url_query_get(c->req->query, "expires", URL_PLUS_LITERAL, &until, &err) != 1 ||
        url_query_get(c->req->query, "signature", URL_PLUS_LITERAL, &given, &err) != 1 ||
        url_query_get(c->req->query, "tenant", URL_PLUS_LITERAL, tenant, &err) != 1 ||
        !num_u64(buf_str(&until), &expires))
        return false;
    build_upload_sign(c->api, buf_str(tenant), c->param[0], expires, want);
    return given.n == SHA256_HEX - 1 && CRYPTO_memcmp(want, given.p, SHA256_HEX - 1) == 0 &&
           expires > clock_unix_ms() / 1000;
}

void e2b_build_upload(struct api_call *c)
{
    _cleanup_buf_ struct buf tenant = {0};
    if (!build_upload_is_allowed(c, &tenant))
        api_refuse_body(c->req, 403, "this upload address was not given by this node or has expired");
    else
        spool_body(c->req, buf_str(&tenant), NULL, build_upload_on_spooled);
}
