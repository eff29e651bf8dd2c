/* http-tunnel.c - a request that becomes a WebSocket. http-body.c moves its bytes; if secrets go in or must not come
 * back, the messages pass through http/ws.c one by one. */
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "egress/http-int.h"
#include "egress/secrets/secrets-int.h"

#define EXTENSIONS "sec-websocket-extensions"

/* Whether egress reads the messages, to insert or to redact secrets. */
static bool tunnel_is_read(const struct exchange *x) { return x->injected.ws_text || x->injected.redact; }

void tunnel_prepare(struct exchange *x)
{
    size_t kept = 0;
    if (!x->websocket || !tunnel_is_read(x))
        return;
    for (size_t i = 0; i < x->fields.n; i++)
        if (strcmp(x->storage[i].name, EXTENSIONS) != 0)
            x->storage[kept++] = x->storage[i];
    x->fields.n = kept;
}

/* RFC 6455: the answer proves that the server understood the key as that of a WebSocket. */
static bool tunnel_is_accepted(const struct exchange *x, const struct http_fields *f)
{
    const char *key = http_field(&x->fields, "sec-websocket-key"), *got = http_field(f, "sec-websocket-accept");
    const char *protocol = http_field(f, "upgrade");
    _cleanup_buf_ struct buf expected = {0};
    if (!key || !got || !protocol || strcasecmp(protocol, "websocket") != 0)
        return false;
    return ws_accept_key(key, &expected) && strcmp(buf_str(&expected), got) == 0;
}

/* Collects the uses of all messages for the audit line; at most as many as one request may have. */
static void tunnel_note_uses(struct inject_result *all, const struct inject_result *one)
{
    for (size_t i = 0; i < one->nused; i++) {
        bool known = false;
        for (size_t k = 0; k < all->nused; k++)
            known |= memcmp(&all->used[k], &one->used[i], sizeof all->used[k]) == 0;
        if (!known && all->nused < ARRAY_LEN(all->used))
            all->used[all->nused++] = one->used[i];
    }
    all->violation |= one->violation;
}

static bool tunnel_put_secrets(void *arg, const char *p, size_t n, struct buf *out)
{
    struct exchange *x = arg;
    struct netpol_flow f = exchange_flow(x);
    struct inject_request q = exchange_injection(x, &f);
    struct inject_result got;
    _cleanup_buf_wipe_ struct buf new = {0};
    inject_message(x->e->g->vault, &q, p, n, &new, &got);
    tunnel_note_uses(&x->injected, &got);
    if (got.reason == NETPOL_R_NONE) {
        ws_add_text(out, buf_str(&new), new.n);
        return true;
    }
    x->injected.reason = got.reason;
    memcpy(x->injected.text, got.text, sizeof got.text);
    return false;
}

void tunnel_open(struct exchange *x, const struct http_fields *f)
{
    if (!tunnel_is_accepted(x, f)) {
        exchange_refuse(x, NETPOL_R_UNREACHABLE, "http", "the server switched protocols, but not to this WebSocket");
        return;
    }
    if (tunnel_is_read(x) && http_field(f, EXTENSIONS)) {
        exchange_refuse(x, NETPOL_R_CODED, "secret", "the server answered with an extension that was not requested");
        return;
    }
    exchange_copy_fields(x, f);
    http_set(x->r, "upgrade", "websocket");
    x->tunnel = x->head = http_upgrade(x->r);
    if (!x->tunnel) {
        exchange_refuse(x, NETPOL_R_UNREACHABLE, "http", "the upgrade came at a moment when it cannot be passed on");
        return;
    }
    x->ws_up = x->injected.ws_text ? ws_client_new(SECRET_BODY_MAX, tunnel_put_secrets, x) : NULL;
    x->ws_down = x->injected.redact ? ws_server_new(&redact_messages, x->injected.redact) : NULL;
}
