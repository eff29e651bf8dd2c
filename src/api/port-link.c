/* port-link.c - signed links to one port. A token is "<expiry>.<HMAC-SHA256>" over the sandbox, the port, the expiry
 * and the sandbox's generation of links, with a key that only this node has and keeps over restarts. The node stores
 * nothing about a link; a higher generation invalidates all earlier links.
 */
#include "api/port-link.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/num.h"
#include "base/sha256.h"

static void port_link_sign(const struct api *api, const struct sandbox *b, uint32_t port, uint64_t expires_unix,
                           uint8_t ret[SHA256_BYTES])
{
    _cleanup_buf_ struct buf text = {0};
    unsigned n = 0;
    /* The first line separates links from everything else that this key signs. */
    buf_addf(&text, "port link 1\n%s\n%u\n%llu\n%llu\n", b->id, port, (unsigned long long)expires_unix,
             (unsigned long long)b->desc.ports.links);
    if (!HMAC(EVP_sha256(), api->link_key, sizeof api->link_key, (const uint8_t *)text.p, text.n, ret, &n) ||
        n != SHA256_BYTES)
        abort();
}

void port_link_make(const struct api *api, const struct sandbox *b, uint32_t port, uint64_t expires_unix,
                    struct buf *out)
{
    uint8_t mac[SHA256_BYTES];
    port_link_sign(api, b, port, expires_unix, mac);
    buf_addf(out, "%llu.", (unsigned long long)expires_unix);
    size_t from = out->n;
    base64_encode(out, mac, sizeof mac);
    while (out->n > from && out->p[out->n - 1] == '=')
        out->p[--out->n] = 0;
    for (size_t i = from; i < out->n; i++)
        out->p[i] = out->p[i] == '+' ? '-' : out->p[i] == '/' ? '_' : out->p[i];
}

enum port_link port_link_check(const struct api *api, const struct sandbox *b, uint32_t port, const char *token,
                               uint64_t now_unix, uint64_t *ret_expires)
{
    _cleanup_buf_ struct buf given = {0};
    uint8_t mac[SHA256_BYTES];
    char number[24];
    uint64_t expires;
    const char *dot = strchr(token, '.');
    if (!dot || strlen(token) > PORT_LINK_MAX || (size_t)(dot - token) >= sizeof number)
        return PORT_LINK_BAD;
    memcpy(number, token, (size_t)(dot - token));
    number[dot - token] = 0;
    if (!num_u64(number, &expires) || !base64_decode(&given, dot + 1, strlen(dot + 1)) || given.n != sizeof mac)
        return PORT_LINK_BAD;
    port_link_sign(api, b, port, expires, mac);
    if (CRYPTO_memcmp(mac, given.p, sizeof mac) != 0)
        return PORT_LINK_BAD;
    *ret_expires = expires;
    return expires > now_unix ? PORT_LINK_GOOD : PORT_LINK_EXPIRED;
}

void port_link_url(const struct api *api, const char *id, uint32_t port, struct buf *out)
{
    bool tls = api->config->tls_dev || api->config->tls_cert;
    buf_adds(out, tls ? "https://" : "http://");
    if (port)
        buf_addf(out, "%u", port);
    else
        buf_adds(out, "{port}");
    buf_addf(out, "-%s.%s", id, api->config->domain);
}
