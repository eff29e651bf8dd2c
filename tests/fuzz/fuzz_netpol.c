/* fuzz_netpol.c - any bytes as a network document: no crash, no leak; an error says where and what; what was accepted shows itself
 * as a document that says the same, and decides without falling over. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/net/netpol.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int preset(void *arg, const char *name, struct node **ret, struct err *err)
{
    static const char text[] = "rules: [{id: one, hosts: [preset.test], access: read-only}]\n";
    (void)arg;
    (void)name;
    return node_read(text, sizeof text - 1, "preset", 0, ret, err);
}

static void decide(const struct netpol *p)
{
    static const char *const hosts[] = {"a.test", "x.a.test", "preset.test", "b.example.com", NULL};
    static const struct netpol_field fields[] = {
        {"content-type", "application/json; x"}, {"x-http-method-override", "delete"}, {"x-api", "v1"}};
    struct netpol_target t;
    const char *why;
    if (!netpol_target("/v1/a%2fb;c/..;/d", "q=1&q=2;ref=main", &t, &why))
        abort();
    for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
        struct netpol_flow f = {.host = hosts[i], .port = i % 2 ? 443 : 80, .tls = i % 2};
        f.addr.s6_addr[0] = 0x26;
        struct netpol_request q = {
            .method = "POST", .target = &t, .fields = fields, .nfields = ARRAY_LEN(fields), .length = 7};
        struct netpol_decision c, r, d;
        netpol_connect(p, &f, 1000, &c);
        netpol_relay(p, &f, 1000, &r);
        netpol_request(p, &f, &q, 1000, &d);
        /* Nothing goes through that the connection was refused for. */
        if (c.verdict == NETPOL_DENY && (r.verdict != NETPOL_DENY || d.verdict != NETPOL_DENY))
            abort();
        if ((d.verdict == NETPOL_ALLOW && !d.would_deny) != (d.reason == NETPOL_R_NONE))
            abort();
        if (f.host)
            (void)netpol_name_possible(p, f.host, 1000);
        (void)netpol_resolved(p, &f, &f.addr, 1000);
    }
    netpol_target_done(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_node_ struct node *doc = NULL;
    _cleanup_netpol_ struct netpol *p = NULL, *again = NULL;
    _cleanup_buf_ struct buf first = {0}, second = {0};
    struct netpol_error e = {0};
    struct err err;
    if (node_read((const char *)data, size, "fuzz", 0, &doc, &err) < 0)
        return 0;
    if (netpol_parse(doc, preset, NULL, &p, &e) < 0) {
        if (e.text[0] == '\0' || strchr(e.text, '\n') || strchr(e.path, '\n'))
            abort();
        return 0;
    }
    netpol_show(p, &first);
    if (netpol_parse_json(buf_str(&first), first.n, NULL, NULL, &again, &e) < 0)
        abort();
    netpol_show(again, &second);
    if (strcmp(buf_str(&first), buf_str(&second)) != 0)
        abort();
    netpol_show_lines(p, "  ", &second);
    decide(p);
    return 0;
}
