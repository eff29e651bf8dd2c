/* fetch-cloud.c - exchanges AWS keys for registry credentials: asks Amazon's ECR for a user and a password. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "http/sigv4.h"
#include "image/fetch-int.h"

static const char body[] = "{}";
static const char media[] = "application/x-amz-json-1.1";
static const char what[] = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken";

struct ecr {
    char *region, *endpoint, *key, *secret; /* into one text */
    struct web_url url;
    struct web_reach reach;
};

/* Cuts a text at the first `end` and moves *p behind it. NULL: there is none. */
static char *ecr_cut(char **p, char end)
{
    char *at = *p, *stop = strchr(at, end);
    if (!stop)
        return NULL;
    *stop = '\0';
    *p = stop + 1;
    return at;
}

static int ecr_parse(const struct fetch *f, struct ecr *e, char *text, struct err *err)
{
    char *p = text + 4; /* "aws:" */
    char url[WEB_HOST_MAX + 40];
    e->region = ecr_cut(&p, ':');
    e->endpoint = e->region ? ecr_cut(&p, '\n') : NULL;
    e->key = e->endpoint ? ecr_cut(&p, '\n') : NULL;
    e->secret = p;
    if (!e->key || !*e->key || !*e->secret || !*e->region || strlen(e->region) > 40 ||
        strspn(e->region, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(e->region))
        return image_fail(err, IMAGE_DENIED, "the credentials for AWS are not a region, a key id and a secret key");
    bool own = *e->endpoint != '\0';
    (void)snprintf(url, sizeof url, "https://api.ecr.%s.amazonaws.com%s/", e->region,
                   strncmp(e->region, "cn-", 3) == 0 ? ".cn" : "");
    e->reach = (struct web_reach){.machine = f->reach.machine, .registries = own ? e->url.authority : NULL};
    return web_url_parse(own ? e->endpoint : url, NULL, &e->url, err);
}

static int ecr_ask(const struct ecr *e, struct web_reach *reach, struct web *w, struct err *err)
{
    _cleanup_buf_ struct buf authorization = {0};
    char when[SIGV4_TIME], hash[SHA256_HEX];
    uint64_t now = (uint64_t)time(NULL);
    sigv4_time(now, when);
    sha256_hex(body, sizeof body - 1, hash);
    struct http_field fields[] = {{"host", e->url.authority},
                                  {"content-type", media},
                                  {"x-amz-date", when},
                                  {"x-amz-target", what},
                                  {NULL, NULL}};
    const struct sigv4 sign = {.access_key_id = e->key,
                               .region = e->region,
                               .service = "ecr",
                               .secret = e->secret,
                               .secret_n = strlen(e->secret),
                               .unix_time = now,
                               .method = "POST",
                               .target = e->url.target,
                               .signed_fields = fields,
                               .nfields = ARRAY_LEN(fields) - 1,
                               .payload = hash};
    if (!sigv4_authorization(&sign, &authorization))
        return image_fail(err, IMAGE_HOST, "the request to %s cannot be signed", image_shown(e->url.authority));
    fields[ARRAY_LEN(fields) - 1] = (struct http_field){"authorization", buf_str(&authorization)};
    return web_post(w, &e->url, fields + 1, ARRAY_LEN(fields) - 1, body, reach, err); /* host is sent anyway */
}

/* {"authorizationData": [{"authorizationToken": base64 of "AWS:PASSWORD"}]} */
static int ecr_take_token(struct fetch *f, const struct ecr *e, const struct buf *text, struct err *err)
{
    _cleanup_buf_ struct buf plain = {0};
    json_t *j = json_loadb(buf_str(text), text->n, JSON_REJECT_DUPLICATES, NULL);
    const char *token = json_string_value(
        json_object_get(json_array_get(json_object_get(j, "authorizationData"), 0), "authorizationToken"));
    bool good = token && base64_decode(&plain, token, strlen(token)) && plain.n < sizeof f->credentials &&
                memchr(plain.p, ':', plain.n) && !memchr(plain.p, '\0', plain.n);
    if (good)
        memcpy(f->credentials, buf_str(&plain), plain.n + 1);
    if (plain.n)
        explicit_bzero(plain.p, plain.n);
    json_decref(j);
    return good ? 0 : image_fail(err, IMAGE_BAD_DATA, "%s gave no token", image_shown(e->url.authority));
}

int fetch_ecr(struct fetch *f, const char *text, struct err *err)
{
    _cleanup_free_ char *copy = xstrdup(text);
    _cleanup_buf_ struct buf answer = {0};
    struct web w = WEB_INIT;
    struct ecr e = {0};
    size_t n = strlen(copy);
    int rc = ecr_parse(f, &e, copy, err);
    if (rc == 0)
        rc = ecr_ask(&e, &e.reach, &w, err);
    if (rc == 0 && (w.status == 400 || w.status == 401 || w.status == 403))
        rc = image_fail(err, IMAGE_DENIED, "%s refuses these credentials for AWS", image_shown(e.url.authority));
    else if (rc == 0 && w.status != 200)
        rc = image_fail(err, IMAGE_NETWORK, "%s answered %u when it was asked for a token",
                        image_shown(e.url.authority), w.status);
    if (rc == 0)
        rc = web_read_all(&w, WEB_TOKEN_MAX, "the token", &answer, err);
    if (rc == 0)
        rc = ecr_take_token(f, &e, &answer, err);
    explicit_bzero(copy, n);
    if (answer.n)
        explicit_bzero(answer.p, answer.n);
    web_close(&w);
    return rc;
}
