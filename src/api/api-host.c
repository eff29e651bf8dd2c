/* api-host.c - finds what a request is for: this node's API, a port of a sandbox, or neither. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/api.h"
#include "base/num.h"
#include "base/text.h"

enum { HOST_MAX = 254 };

/* The name of "name:port", "[v6]:port" or "name", in lower case, without a last dot. False: not a host. */
static bool api_host_name(const char *authority, char ret[HOST_MAX])
{
    size_t n;
    if (authority[0] == '[') {
        const char *end = strchr(authority, ']');
        if (!end || (end[1] != 0 && end[1] != ':'))
            return false;
        authority++;
        n = (size_t)(end - authority);
    } else {
        n = strcspn(authority, ":");
    }
    while (n > 0 && authority[n - 1] == '.')
        n--;
    if (n == 0 || n >= HOST_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = authority[i];
        ret[i] = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
    }
    ret[n] = 0;
    return true;
}

static bool api_host_is_address(const char *host)
{
    struct in6_addr a;
    return inet_pton(AF_INET, host, &a) == 1 || inet_pton(AF_INET6, host, &a) == 1;
}

/* The labels before ".<domain>" in host (*n bytes, 0 for the domain itself); NULL if host is not in the domain. */
static const char *api_host_label(const char *domain, const char *host, size_t *n)
{
    char own[HOST_MAX];
    if (!domain || !api_host_name(domain, own))
        return NULL;
    size_t hn = strlen(host), dn = strlen(own);
    if (strcmp(host, own) == 0) {
        *n = 0;
        return host;
    }
    if (hn <= dn + 1 || host[hn - dn - 1] != '.' || strcmp(host + hn - dn, own) != 0)
        return NULL;
    *n = hn - dn - 1;
    return host;
}

static bool api_host_is_own(const char *domain, const char *host)
{
    size_t n;
    if (strcmp(host, "localhost") == 0 || api_host_is_address(host))
        return true;
    const char *label = api_host_label(domain, host, &n);
    return label &&
           (n == 0 || (n == 3 && memcmp(label, "api", 3) == 0) || (n == 7 && memcmp(label, "sandbox", 7) == 0));
}

bool api_own_host(const char *domain, const char *authority)
{
    char host[HOST_MAX];
    return api_host_name(authority, host) && api_host_is_own(domain, host);
}

bool api_sandbox_id(const char *s, size_t n, char ret[SANDBOX_ID_MAX])
{
    size_t i = 0;
    for (; i < n && s[i] != '-'; i++) {
        if (i >= SANDBOX_ID_MAX - 1 || !((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9')))
            return false;
        ret[i] = s[i];
    }
    ret[i] = 0;
    return i > 0;
}

static bool api_target_read_port(const char *s, size_t n, uint32_t *ret)
{
    char text[8];
    int v;
    if (n == 0 || n >= sizeof text)
        return false;
    memcpy(text, s, n);
    text[n] = 0;
    if (!num_int(text, 1, 65535, &v))
        return false;
    *ret = (uint32_t)v;
    return true;
}

static void api_target_refuse(struct api_target *t, const char *what)
{
    t->kind = API_BAD_TARGET;
    (void)snprintf(t->text, sizeof t->text, "%s", what);
}

/* "<port>-<id>", the left-most label. */
static void api_target_from_label(const char *label, size_t n, struct api_target *t)
{
    const char *dash = memchr(label, '-', n);
    if (!dash || memchr(label, '.', n)) {
        api_target_refuse(t, "the host must be <port>-<sandbox id>.<domain>");
        return;
    }
    if (!api_target_read_port(label, (size_t)(dash - label), &t->port)) {
        api_target_refuse(
            t, "the host names no valid port: it must be <port>-<sandbox id>.<domain> with a port from 1 to 65535");
        return;
    }
    if (!api_sandbox_id(dash + 1, n - (size_t)(dash + 1 - label), t->sandbox)) {
        api_target_refuse(t, "the host names no valid sandbox id: lower-case letters and digits, at most 39");
        return;
    }
    t->kind = API_SANDBOX;
}

bool api_host_sandbox(const char *domain, const char *authority, char ret[SANDBOX_ID_MAX])
{
    char host[HOST_MAX];
    size_t n = 0;
    const char *label = api_host_name(authority, host) ? api_host_label(domain, host, &n) : NULL;
    struct api_target t = {0};
    if (label)
        api_target_from_label(label, n, &t);
    if (!label || t.kind != API_SANDBOX)
        return false;
    memcpy(ret, t.sandbox, SANDBOX_ID_MAX);
    return true;
}

static void api_target_from_headers(const char *id, const char *port, struct api_target *t)
{
    if (!id || !port)
        api_target_refuse(t, "the headers E2b-Sandbox-Id and E2b-Sandbox-Port go together; one is missing");
    else if (!api_target_read_port(port, strlen(port), &t->port))
        api_target_refuse(t, "the header E2b-Sandbox-Port must be a number from 1 to 65535");
    else if (!api_sandbox_id(id, strlen(id), t->sandbox))
        api_target_refuse(t, "the header E2b-Sandbox-Id must be lower-case letters and digits, at most 39");
    else
        t->kind = API_SANDBOX;
}

static bool api_query_has_signature(const char *query)
{
    for (const char *p = query; p && *p; p = strchr(p, '&'), p = p ? p + 1 : NULL)
        if (strncmp(p, "signature=", 10) == 0)
            return true;
    return false;
}

void api_classify(const char *domain, const struct http_req *r, struct api_target *ret)
{
    char host[HOST_MAX];
    size_t n = 0;
    memset(ret, 0, sizeof *ret);
    if (!r->authority || !api_host_name(r->authority, host)) {
        api_target_refuse(ret, "the request names no host");
        return;
    }
    if (api_host_is_own(domain, host)) {
        const char *id = http_field(&r->fields, "e2b-sandbox-id"), *port = http_field(&r->fields, "e2b-sandbox-port");
        if (id || port)
            api_target_from_headers(id, port, ret);
        else if (strcmp(r->path, "/files") == 0 && api_query_has_signature(r->query))
            ret->kind = API_SIGNED;
        else
            ret->kind = API_CONTROL;
        return;
    }
    const char *label = api_host_label(domain, host, &n);
    if (label) {
        api_target_from_label(label, n, ret);
        return;
    }
    ret->kind = API_MISDIRECTED;
    struct buf shown = {0};
    text_add_safe(&shown, host, 80);
    (void)snprintf(ret->text, sizeof ret->text, "this node does not answer for the host '%s'; it is '%s'",
                   buf_str(&shown), domain ? domain : "localhost");
    buf_done(&shown);
}
