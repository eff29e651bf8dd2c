/* fetch-auth.c - authenticates to a registry: Basic, or a token from the server that its challenge names. */
#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/base64.h"
#include "http/url.h"
#include "image/fetch-int.h"

/* Reads name=token or name="text" with '\' as escape. Moves *p behind it. */
static bool auth_next_param(const char **p, char *name, size_t name_room, char *value, size_t value_room)
{
    size_t n = 0;
    *p += strspn(*p, " \t,");
    size_t len = strcspn(*p, "=, \t");
    if (len == 0 || len >= name_room || (*p)[len] != '=')
        return false;
    memcpy(name, *p, len);
    name[len] = '\0';
    *p += len + 1;
    bool quoted = **p == '"';
    if (quoted)
        (*p)++;
    for (; **p && (quoted ? **p != '"' : !strchr(", \t", **p)); (*p)++) {
        if (quoted && **p == '\\' && (*p)[1])
            (*p)++;
        if (n + 1 >= value_room)
            return false;
        value[n++] = **p;
    }
    value[n] = '\0';
    if (quoted && **p != '"')
        return false;
    *p += quoted;
    return true;
}

void auth_parse(const char *value, struct auth_challenge *ret)
{
    char name[32], text[1024];
    const char *p = value + strspn(value, " \t");
    *ret = (struct auth_challenge){0};
    size_t n = strcspn(p, " \t");
    if (n == 5 && strncasecmp(p, "Basic", n) == 0)
        ret->scheme = AUTH_BASIC;
    else if (n == 6 && strncasecmp(p, "Bearer", n) == 0)
        ret->scheme = AUTH_BEARER;
    else
        return;
    p += n;
    while (auth_next_param(&p, name, sizeof name, text, sizeof text)) {
        if (strcasecmp(name, "realm") == 0)
            (void)snprintf(ret->realm, sizeof ret->realm, "%s", text);
        else if (strcasecmp(name, "service") == 0 && strlen(text) < sizeof ret->service)
            memcpy(ret->service, text, strlen(text) + 1);
        else if (strcasecmp(name, "scope") == 0 && strlen(text) < sizeof ret->scope)
            memcpy(ret->scope, text, strlen(text) + 1);
    }
}

static void auth_set_basic(const struct fetch *f, struct buf *ret)
{
    ret->n = 0;
    buf_adds(ret, "Basic ");
    base64_encode(ret, f->credentials, strlen(f->credentials));
}

static int auth_take_token(struct fetch *f, const struct buf *body, struct err *err)
{
    json_t *j = json_loadb(buf_str(body), body->n, JSON_REJECT_DUPLICATES, NULL);
    const char *token = json_string_value(json_object_get(j, "token"));
    if (!token)
        token = json_string_value(json_object_get(j, "access_token"));
    /* The token goes into a header field: only printable characters. */
    bool good = token && token[0] && strlen(token) < WEB_TOKEN_MAX / 2;
    for (const char *c = token; good && *c; c++)
        good = *c > ' ' && *c < 0x7f;
    if (good) {
        f->authorization.n = 0;
        buf_addf(&f->authorization, "Bearer %s", token);
    }
    json_decref(j);
    return good ? 0 : image_fail(err, IMAGE_BAD_DATA, "the registry %s gave no token", image_shown(f->ref.host));
}

static int auth_ask_token(struct fetch *f, const struct auth_challenge *c, struct err *err)
{
    _cleanup_buf_ struct buf url = {0}, body = {0}, basic = {0};
    struct web w = WEB_INIT;
    struct web_url u;
    buf_addf(&url, "%s%cscope=", c->realm, strchr(c->realm, '?') ? '&' : '?');
    if (c->scope[0])
        url_encode(&url, c->scope, strlen(c->scope), "");
    else
        buf_addf(&url, "repository%%3A%s%%3Apull", f->ref.name);
    if (c->service[0]) {
        buf_adds(&url, "&service=");
        url_encode(&url, c->service, strlen(c->service), "");
    }
    if (web_url_parse(buf_str(&url), NULL, &u, err) < 0)
        return err_wrap(err, "the registry %s wants a token from elsewhere", image_shown(f->ref.host));
    if (!u.tls && f->registry.tls)
        return image_fail(err, IMAGE_DENIED, "the registry %s wants a token asked for without TLS, at %s",
                          image_shown(f->ref.host), image_shown(u.authority));
    if (f->credentials[0] && !u.tls && !ref_loopback(u.authority))
        return image_fail(err, IMAGE_DENIED, "the registry %s wants a password sent to %s without TLS; it is not sent",
                          image_shown(f->ref.host), image_shown(u.authority));
    if (f->credentials[0])
        auth_set_basic(f, &basic);
    int rc = web_get(&w, &u, "application/json", buf_str(&basic), false, &f->reach, err);
    if (rc == 0 && (w.status == 401 || w.status == 403))
        rc = image_fail(err, IMAGE_DENIED, "%s refuses %s", image_shown(u.authority),
                        f->credentials[0] ? "these credentials" : "those who give no credentials");
    else if (rc == 0 && w.status != 200)
        rc = image_fail(err, IMAGE_NETWORK, "%s answered %u when it was asked for a token", image_shown(u.authority),
                        w.status);
    if (rc == 0)
        rc = web_read_all(&w, WEB_TOKEN_MAX, "the token", &body, err);
    if (rc == 0)
        rc = auth_take_token(f, &body, err);
    web_close(&w);
    return rc;
}

int fetch_authorize(struct fetch *f, const char *challenge, struct err *err)
{
    struct auth_challenge c;
    auth_parse(challenge, &c);
    if (c.scheme == AUTH_BEARER && c.realm[0])
        return auth_ask_token(f, &c, err);
    if (c.scheme != AUTH_BASIC)
        return image_fail(err, IMAGE_DENIED,
                          "the registry %s wants to be asked in a way that is not known here (\"%s\")",
                          image_shown(f->ref.host), image_shown(challenge));
    if (!f->credentials[0])
        return image_fail(err, IMAGE_DENIED, "the registry %s wants credentials", image_shown(f->ref.host));
    if (!f->registry.tls && !f->ref.loopback)
        return image_fail(err, IMAGE_DENIED, "the registry %s wants a password without TLS; it is not sent",
                          image_shown(f->ref.host));
    auth_set_basic(f, &f->authorization);
    return 0;
}
