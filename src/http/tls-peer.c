#include "http/tls-peer.h"

#include <openssl/err.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "http/blocking-tls.h"
#include "http/tls.h"

struct tls_peer {
    SSL_CTX *ctx;
};

static int tls_peer_load(SSL_CTX *ctx, const char *cert, const char *key, struct err *err)
{
    SSL_CTX_set_default_passwd_cb(ctx, tls_no_passphrase);
    if (SSL_CTX_use_certificate_chain_file(ctx, cert) != 1)
        return tls_error(err, "certificate", cert);
    if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
        return tls_error(err, "key", key);
    if (SSL_CTX_check_private_key(ctx) != 1)
        return tls_error(err, "this key is not that of the certificate:", key);
    return 0;
}

int tls_peer_new(const char *authorities, const char *cert, const char *key, struct tls_peer **ret, struct err *err)
{
    struct tls_peer *p = xcalloc(1, sizeof *p);
    if (blocking_tls_new(authorities, BLOCKING_TLS_NOW, &p->ctx, err) < 0) {
        free(p);
        return -1;
    }
    tls_common_options(p->ctx);
    if (cert && tls_peer_load(p->ctx, cert, key, err) < 0) {
        tls_peer_free(p);
        return -1;
    }
    *ret = p;
    return 0;
}

struct transport *tls_peer_connect(struct tls_peer *p, int fd, const char *host)
{
    SSL *ssl = SSL_new(p->ctx);
    if (!ssl || !blocking_tls_expect(ssl, host)) {
        SSL_free(ssl);
        ERR_clear_error();
        (void)close(fd);
        return NULL;
    }
    SSL_set_connect_state(ssl);
    return tls_wrap(ssl, fd, NULL, 0);
}

const char *tls_peer_trouble(const struct transport *t)
{
    long why = SSL_get_verify_result(tls_ssl(t));
    return why == X509_V_OK ? NULL : X509_verify_cert_error_string(why);
}

void tls_peer_free(struct tls_peer *p)
{
    if (p)
        SSL_CTX_free(p->ctx);
    free(p);
}
