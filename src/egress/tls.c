/* tls.c - see etls.h. The transports are those of http/tls.h. */
#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "egress/etls.h"
#include "egress/mint.h"
#include "http/tls.h"

struct etls {
    SSL_CTX *front, *upstream;
};

static void etls_ctx_free_p(SSL_CTX **c) { SSL_CTX_free(*c); }
static void bio_free_p(BIO **b) { (void)BIO_free(*b); }
static void store_free_p(X509_STORE **s) { X509_STORE_free(*s); }

void etls_address(const struct in6_addr *a, char ret[INET6_ADDRSTRLEN])
{
    if (IN6_IS_ADDR_V4MAPPED(a))
        (void)inet_ntop(AF_INET, a->s6_addr + 12, ret, INET6_ADDRSTRLEN);
    else
        (void)inet_ntop(AF_INET6, a, ret, INET6_ADDRSTRLEN);
}

/* Refuses a client that offers neither h2 nor http/1.1: it does not speak HTTP. */
static int etls_select_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_n, const unsigned char *in,
                                unsigned in_n, void *arg)
{
    static const unsigned char known[] = "\x02h2\x08http/1.1";
    unsigned char *chosen = NULL;
    (void)ssl;
    (void)arg;
    if (SSL_select_next_proto(&chosen, out_n, known, sizeof known - 1, in, in_n) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

/* Notes the client's fatal alert: it tells that the client does not trust the installation's root. */
static void etls_on_info(const SSL *ssl, int where, int value)
{
    struct etls_front *f = SSL_get_app_data(ssl);
    if (f && (where & SSL_CB_READ_ALERT) == SSL_CB_READ_ALERT && value >> 8 == SSL3_AL_FATAL)
        f->alert = value & 0xff;
}

const char *etls_distrust(const struct etls_front *f)
{
    switch (f->alert) {
    case SSL_AD_UNKNOWN_CA:
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_CERTIFICATE_UNKNOWN:
        return SSL_alert_desc_string_long(f->alert);
    default:
        return NULL;
    }
}

static int make_front(SSL_CTX **ret, struct err *err)
{
    _cleanup_(etls_ctx_free_p) SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx)
        return tls_error(err, "TLS context for sandboxes", NULL);
    tls_common_options(ctx);
    (void)SSL_CTX_clear_options(ctx, SSL_OP_NO_TICKET);
    (void)SSL_CTX_set_num_tickets(ctx, 1);
    /* Requests delimit themselves, so a missing close_notify hides nothing. */
    (void)SSL_CTX_set_options(ctx, SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_alpn_select_cb(ctx, etls_select_protocol, NULL);
    SSL_CTX_set_info_callback(ctx, etls_on_info);
    *ret = TAKE_PTR(ctx);
    return 0;
}

static int make_upstream(SSL_CTX **ret, struct err *err)
{
    _cleanup_(etls_ctx_free_p) SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    if (!ctx)
        return tls_error(err, "TLS context for upstreams", NULL);
    tls_common_options(ctx);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    *ret = TAKE_PTR(ctx);
    return 0;
}

int etls_new(struct etls **ret, struct err *err)
{
    struct etls *e = xcalloc(1, sizeof *e);
    if (make_front(&e->front, err) < 0 || make_upstream(&e->upstream, err) < 0) {
        etls_free(e);
        return -1;
    }
    *ret = e;
    return 0;
}

void etls_free(struct etls *e)
{
    if (!e)
        return;
    SSL_CTX_free(e->front);
    SSL_CTX_free(e->upstream);
    free(e);
}

int etls_trust(struct etls *e, const char *pem, size_t n, struct err *err)
{
    if (n > INT32_MAX)
        return err_set(err, ERR_SETUP, 0, "the bundle of roots is too long");
    _cleanup_(bio_free_p) BIO *bio = BIO_new_mem_buf(pem, (int)n);
    _cleanup_(store_free_p) X509_STORE *db = X509_STORE_new();
    size_t count = 0;
    if (!bio || !db)
        return tls_error(err, "read the bundle of roots", NULL);
    for (X509 *c; (c = PEM_read_bio_X509(bio, NULL, NULL, NULL)); X509_free(c))
        count += X509_STORE_add_cert(db, c) == 1;
    /* At the end of the text OpenSSL reports NO_START_LINE. Any other error is a broken certificate: refuse the whole
     * list. */
    if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE)
        return tls_error(err, "read the bundle of roots", NULL);
    ERR_clear_error();
    if (count == 0)
        return err_set(err, ERR_SETUP, 0, "the bundle of roots holds no certificate");
    SSL_CTX_set_cert_store(e->upstream, TAKE_PTR(db));
    return 0;
}

/* ---- the sandbox's side ---- */

/* Serves only the name that was judged, also if the client sends another one in a second ClientHello. */
static bool etls_is_judged_name(SSL *ssl, const struct etls_front *f)
{
    char name[NETPOL_NAME_MAX] = "";
    const char *sent = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
    if (sent && !netpol_name(sent, strlen(sent), name))
        name[0] = '\0';
    return strcmp(name, f->sni) == 0;
}

static int etls_on_certificate(SSL *ssl, void *arg)
{
    const struct etls_front *f = arg;
    struct err err;
    return etls_is_judged_name(ssl, f) && mint_use(f->mint, ssl, f->host, &err) == 0;
}

/* Binds session tickets to this sandbox and host: they cannot be used by another sandbox or for another host. */
static bool etls_set_session_context(SSL *ssl, const struct flow *f, const char *host)
{
    uint8_t digest[SHA256_BYTES];
    struct sha256 h;
    sha256_start(&h);
    sha256_add(&h, f->sb->id, strlen(f->sb->id) + 1);
    sha256_add(&h, host, strlen(host) + 1);
    sha256_end(&h, digest);
    return SSL_set_session_id_context(ssl, digest, sizeof digest) == 1;
}

struct transport *etls_accept(struct etls *e, const struct flow *f, int fd, struct etls_front *front)
{
    const struct netpol_settings *set = f->sb->policy ? netpol_settings(f->sb->policy) : NULL;
    SSL *ssl = SSL_new(e->front);
    front->mint = f->sb->g->mint;
    (void)snprintf(front->sni, sizeof front->sni, "%s", f->sni);
    (void)snprintf(front->host, sizeof front->host, "%s", f->sni[0] ? f->sni : f->host);
    if (front->host[0] == '\0')
        etls_address(&f->literal, front->host);
    if (!ssl || !etls_set_session_context(ssl, f, front->host)) {
        ERR_clear_error();
        SSL_free(ssl);
        (void)close(fd);
        return NULL;
    }
    if (set && set->tls13_only)
        (void)SSL_set_min_proto_version(ssl, TLS1_3_VERSION);
    (void)SSL_set_app_data(ssl, front);
    SSL_set_cert_cb(ssl, etls_on_certificate, front);
    SSL_set_accept_state(ssl);
    return tls_wrap(ssl, fd, f->head.p, f->head.n);
}

/* ---- upstreams ---- */

static bool etls_expect_peer(SSL *ssl, const char *name, const struct in6_addr *literal)
{
    X509_VERIFY_PARAM *p = SSL_get0_param(ssl);
    if (name) {
        SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
        return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
    }
    return IN6_IS_ADDR_V4MAPPED(literal) ? X509_VERIFY_PARAM_set1_ip(p, literal->s6_addr + 12, 4) == 1
                                         : X509_VERIFY_PARAM_set1_ip(p, literal->s6_addr, 16) == 1;
}

struct transport *etls_connect(struct etls *e, int fd, const char *name, const struct in6_addr *literal,
                               enum etls_alpn alpn, bool tls13_only)
{
    static const unsigned char any[] = "\x02h2\x08http/1.1", one[] = "\x08http/1.1", two[] = "\x02h2";
    SSL *ssl = SSL_new(e->upstream);
    int failed = 1; /* SSL_set_alpn_protos() returns 0 on success, unlike other calls */
    if (ssl)
        failed = alpn == ETLS_ANY     ? SSL_set_alpn_protos(ssl, any, sizeof any - 1)
                 : alpn == ETLS_HTTP1 ? SSL_set_alpn_protos(ssl, one, sizeof one - 1)
                                      : SSL_set_alpn_protos(ssl, two, sizeof two - 1);
    if (failed || !etls_expect_peer(ssl, name, literal)) {
        ERR_clear_error();
        SSL_free(ssl);
        (void)close(fd);
        return NULL;
    }
    if (tls13_only)
        (void)SSL_set_min_proto_version(ssl, TLS1_3_VERSION);
    SSL_set_connect_state(ssl);
    return tls_wrap(ssl, fd, NULL, 0);
}

bool etls_refused(const struct transport *t, const char *host, struct buf *out)
{
    long result = SSL_get_verify_result(tls_ssl(t));
    switch (result) {
    case X509_V_OK:
        return false;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        buf_addf(out, "the certificate of the server is not for %s", host);
        return true;
    default:
        buf_addf(out, "the certificate of the server for %s was refused: %s", host,
                 X509_verify_cert_error_string(result));
        return true;
    }
}
