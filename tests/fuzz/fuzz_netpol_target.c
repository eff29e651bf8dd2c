/* fuzz_netpol_target.c - any bytes as a path and query, a name and an authority. What is taken is in its only form: taking it again
 * changes nothing; every reading of a path is a clean path; a grant for it allows it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "policy/net/netpol.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_form(const char *path)
{
    if (!path)
        return;
    if (path[0] != '/' || strstr(path, "//") || strstr(path, "/./") || strstr(path, "/../"))
        abort();
    for (const char *s = path; *s; s++)
        if (*s <= 0x20 || *s >= 0x7f || *s == '\\' || *s == '#' || *s == '?')
            abort();
}

static void check_grant(const struct netpol_target *t)
{
    _cleanup_buf_ struct buf grant = {0}, doc = {0};
    _cleanup_netpol_ struct netpol *p = NULL;
    struct netpol_flow f = {.host = "a.test", .port = 443, .tls = true};
    struct netpol_request q = {.method = "GET", .target = t};
    struct netpol_decision d;
    struct netpol_error e;
    netpol_grant(&f, &q, &grant);
    buf_addf(&doc, "{\"rules\":[%s]}", buf_str(&grant));
    if (netpol_parse_json(buf_str(&doc), doc.n, NULL, NULL, &p, &e) < 0)
        abort();
    netpol_request(p, &f, &q, 0, &d);
    if (d.verdict != NETPOL_ALLOW)
        abort();
}

static void check_target(const char *path, const char *query)
{
    struct netpol_target t, again;
    const char *why;
    if (!netpol_target(path, query, &t, &why)) {
        if (!why || t.text)
            abort();
        return;
    }
    _cleanup_free_ char *canonical = xstrndup(t.text, t.path_len);
    const char *q = t.text[t.path_len] == '?' ? t.text + t.path_len + 1 : NULL;
    if (!netpol_target(canonical, q, &again, &why)) {
        if (strlen(t.text) <= NETPOL_TARGET_MAX) /* escapes may have made it longer than what is taken */
            abort();
    } else {
        if (strcmp(t.text, again.text) != 0 || t.path_len != again.path_len)
            abort();
        netpol_target_done(&again);
    }
    if (t.text[0] == '/') {
        check_form(canonical);
        check_grant(&t);
    }
    check_form(t.judged);
    check_form(t.decoded);
    check_form(t.bare);
    check_form(t.both);
    netpol_target_done(&t);
}

static void check_name(const char *text, size_t n)
{
    char name[NETPOL_NAME_MAX], again[NETPOL_NAME_MAX], host[NETPOL_NAME_MAX];
    struct in6_addr a;
    bool literal;
    uint16_t port = 443;
    struct netpol_cidr c;
    if (netpol_name(text, n, name)) {
        if (netpol_literal(text, n, &a) || !netpol_name(name, strlen(name), again) || strcmp(name, again) != 0)
            abort();
    }
    if (netpol_authority(text, host, &a, &literal, &port)) {
        if (port == 0 || (literal ? !netpol_literal(host, strlen(host), &a) : !netpol_name(host, strlen(host), again)))
            abort();
    }
    if (netpol_cidr_parse(text, &c) && (c.bits > 128 || !netpol_cidr_has(&c, &c.addr)))
        abort();
    if (netpol_literal(text, n, &a))
        (void)netpol_address_kind(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_free_ char *text = xstrndup((const char *)data, size);
    check_name(text, strlen(text));
    char *query = strchr(text, '?');
    if (query)
        *query++ = '\0';
    check_target(text, query);
    return 0;
}
