/* gateway-link.c - signed links to one port. A token is "<expiry>.<HMAC-SHA256>" over the sandbox, the port, the expiry and
 * the sandbox's generation of links, with a key that only this node has and keeps over restarts. Nothing is stored for a
 * link; a higher generation makes all earlier ones worthless.
 */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/num.h"
#include "base/sha256.h"
#include "front/gateway.h"

static void sign(const struct front *f, const struct box *b, uint32_t port, uint64_t expires_unix,
                 uint8_t ret[SHA256_BYTES])
{
    _cleanup_buf_ struct buf text = {0};
    unsigned n = 0;
    /* The first line keeps these apart from whatever else the key may ever sign. */
    buf_addf(&text, "port link 1\n%s\n%u\n%llu\n%llu\n", b->id, port, (unsigned long long)expires_unix,
             (unsigned long long)b->ports.links);
    if (!HMAC(EVP_sha256(), f->link_key, sizeof f->link_key, (const uint8_t *)text.p, text.n, ret, &n) ||
        n != SHA256_BYTES)
        abort();
}

void gateway_link_make(const struct front *f, const struct box *b, uint32_t port, uint64_t expires_unix,
                       struct buf *out)
{
    uint8_t mac[SHA256_BYTES];
    sign(f, b, port, expires_unix, mac);
    buf_addf(out, "%llu.", (unsigned long long)expires_unix);
    size_t from = out->n;
    base64_encode(out, mac, sizeof mac);
    while (out->n > from && out->p[out->n - 1] == '=')
        out->p[--out->n] = 0;
    for (size_t i = from; i < out->n; i++)
        out->p[i] = out->p[i] == '+' ? '-' : out->p[i] == '/' ? '_' : out->p[i];
}

enum gateway_link gateway_link_check(const struct front *f, const struct box *b, uint32_t port, const char *token,
                                     uint64_t now_unix, uint64_t *ret_expires)
{
    _cleanup_buf_ struct buf given = {0};
    uint8_t mac[SHA256_BYTES];
    char number[24];
    uint64_t expires;
    const char *dot = strchr(token, '.');
    if (!dot || strlen(token) > GATEWAY_LINK_MAX || (size_t)(dot - token) >= sizeof number)
        return GATEWAY_LINK_BAD;
    memcpy(number, token, (size_t)(dot - token));
    number[dot - token] = 0;
    if (!num_u64(number, &expires) || !base64_decode(&given, dot + 1, strlen(dot + 1)) || given.n != sizeof mac)
        return GATEWAY_LINK_BAD;
    sign(f, b, port, expires, mac);
    if (CRYPTO_memcmp(mac, given.p, sizeof mac) != 0)
        return GATEWAY_LINK_BAD;
    *ret_expires = expires;
    return expires > now_unix ? GATEWAY_LINK_GOOD : GATEWAY_LINK_EXPIRED;
}

void gateway_url(const struct front *f, const char *id, uint32_t port, struct buf *out)
{
    bool tls = f->config->tls_dev || f->config->tls_cert;
    buf_adds(out, tls ? "https://" : "http://");
    if (port)
        buf_addf(out, "%u", port);
    else
        buf_adds(out, "{port}");
    buf_addf(out, "-%s.%s", id, f->config->domain);
}
