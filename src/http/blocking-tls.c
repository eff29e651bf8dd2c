#include "http/blocking-tls.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"

enum { NAMES_SHOWN = 5 };

/* --- what is trusted ---------------------------------------------------------------------------------------------- */

static int blocking_tls_trust_text(SSL_CTX *ctx, const char *text, struct err *err)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    X509 *cert;
    unsigned n = 0;
    while (bio && (cert = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
        n += X509_STORE_add_cert(SSL_CTX_get_cert_store(ctx), cert) == 1;
        X509_free(cert);
    }
    BIO_free(bio);
    ERR_clear_error(); /* the end of the text is one, too */
    return n ? 0 : err_set(err, ERR_USAGE, 0, "it has no certificate in PEM (-----BEGIN CERTIFICATE-----)");
}

/* Whether a directory has its certificates by the hash of their names, as OpenSSL looks for them ("a94d09e5.0"). */
static bool blocking_tls_is_hashed(const char *path)
{
    DIR *d = opendir(path);
    const struct dirent *e;
    bool found = false;
    while (d && !found && (e = readdir(d)))
        found = strspn(e->d_name, "0123456789abcdef") == 8 && strcmp(e->d_name + 8, ".0") == 0;
    if (d)
        (void)closedir(d);
    return found;
}

static int blocking_tls_trust_system(SSL_CTX *ctx, enum blocking_tls_when when, struct err *err)
{
    static const char dir[] = "/etc/ssl/certs";
    static const char *const places[] = {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                         "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};
    const char *own = getenv("SSL_CERT_FILE");
    bool usual = !own || !own[0] || strcmp(own, places[0]) == 0; /* that bundle has what the directory has */
    bool found = !usual && SSL_CTX_load_verify_file(ctx, own) == 1;
    if (!found && own && own[0] &&
        (!usual || access(own, R_OK) < 0)) { /* authorities outside that file are not trusted */
        ERR_clear_error();
        return err_set(
            err, ERR_USAGE, 0,
            "SSL_CERT_FILE: %.200s cannot be read, or has no certificate in PEM; name another file, or unset "
            "the variable for the system's authorities",
            own);
    }
    if (!found && when == BLOCKING_TLS_ON_DEMAND && blocking_tls_is_hashed(dir))
        found = SSL_CTX_load_verify_dir(ctx, dir) == 1;
    for (size_t i = 0; !found && i < ARRAY_LEN(places); i++)
        found = SSL_CTX_load_verify_file(ctx, places[i]) == 1;
    ERR_clear_error();
    return 0;
}

/* --- what was wrong ----------------------------------------------------------------------------------------------- */

static void blocking_tls_note_time(struct blocking_tls_trouble *t, const ASN1_TIME *at)
{
    struct tm tm;
    if (ASN1_TIME_to_tm(at, &tm) == 1)
        (void)strftime(t->about, sizeof t->about, "%Y-%m-%d %H:%M UTC", &tm);
}

static void blocking_tls_note_issuer(struct blocking_tls_trouble *t, X509 *cert)
{
    (void)X509_NAME_oneline(X509_get_issuer_name(cert), t->about, sizeof t->about);
}

static void blocking_tls_add_name(struct blocking_tls_trouble *t, const char *name, size_t n)
{
    size_t at = strlen(t->about);
    if (n < sizeof t->about - at - 3)
        (void)snprintf(t->about + at, sizeof t->about - at, "%s%.*s", at ? ", " : "", (int)n, name);
}

static void blocking_tls_note_names(struct blocking_tls_trouble *t, X509 *cert)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    int n = names ? sk_GENERAL_NAME_num(names) : 0;
    for (int i = 0; i < n && i < NAMES_SHOWN; i++) {
        const GENERAL_NAME *g = sk_GENERAL_NAME_value(names, i);
        char text[INET6_ADDRSTRLEN];
        if (g->type == GEN_DNS)
            blocking_tls_add_name(t, (const char *)ASN1_STRING_get0_data(g->d.dNSName),
                                  (size_t)ASN1_STRING_length(g->d.dNSName));
        int bytes = g->type == GEN_IPADD ? ASN1_STRING_length(g->d.iPAddress) : 0;
        if ((bytes == 4 || bytes == 16) &&
            inet_ntop(bytes == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(g->d.iPAddress), text, sizeof text))
            blocking_tls_add_name(t, text, strlen(text));
    }
    GENERAL_NAMES_free(names);
    if (n > NAMES_SHOWN)
        blocking_tls_add_name(t, "...", 3);
    if (!t->about[0])
        blocking_tls_add_name(t, "no name", strlen("no name"));
}

/* Notes the first refusal: after the handshake OpenSSL has forgotten the certificate. */
static int blocking_tls_on_verify(int ok, X509_STORE_CTX *store)
{
    const SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct blocking_tls_trouble *t = SSL_get_app_data(ssl);
    X509 *cert = X509_STORE_CTX_get_current_cert(store);
    if (ok || !t || t->verify)
        return ok;
    t->verify = X509_STORE_CTX_get_error(store);
    if (!cert)
        return ok;
    if (t->verify == X509_V_ERR_CERT_HAS_EXPIRED)
        blocking_tls_note_time(t, X509_get0_notAfter(cert));
    else if (t->verify == X509_V_ERR_CERT_NOT_YET_VALID)
        blocking_tls_note_time(t, X509_get0_notBefore(cert));
    else if (t->verify == X509_V_ERR_HOSTNAME_MISMATCH || t->verify == X509_V_ERR_IP_ADDRESS_MISMATCH)
        blocking_tls_note_names(t, cert);
    else
        blocking_tls_note_issuer(t, cert);
    return ok;
}

int blocking_tls_new(const char *authorities, enum blocking_tls_when when, SSL_CTX **ret, struct err *err)
{
    static const unsigned char alpn[] = "\x08http/1.1";
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    if (!ctx || SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_alpn_protos(ctx, alpn, sizeof alpn - 1) != 0) {
        SSL_CTX_free(ctx);
        return err_set(err, ERR_HOST, 0, "cannot set TLS up");
    }
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, blocking_tls_on_verify);
    if ((authorities ? blocking_tls_trust_text(ctx, authorities, err) : blocking_tls_trust_system(ctx, when, err)) <
        0) {
        SSL_CTX_free(ctx);
        return -1;
    }
    *ret = ctx;
    return 0;
}

/* --- who we are --------------------------------------------------------------------------------------------------- */

/* No passphrase is asked for: notes that there is one. */
static int blocking_tls_on_passphrase(char *p, int n, int write, void *arg)
{
    (void)write;
    if (n > 0)
        *p = '\0';
    *(bool *)arg = true;
    return -1;
}

static int blocking_tls_use_chain(SSL_CTX *ctx, const char *text)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    X509 *cert = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    bool ok = cert && SSL_CTX_use_certificate(ctx, cert) == 1;
    X509_free(cert);
    while (ok && (cert = PEM_read_bio_X509(bio, NULL, NULL, NULL)) && !(ok = SSL_CTX_add0_chain_cert(ctx, cert) == 1))
        X509_free(cert);
    BIO_free(bio);
    ERR_clear_error();
    return ok ? 0 : -1;
}

int blocking_tls_identify(SSL_CTX *ctx, const char *cert, const char *key, struct err *err)
{
    bool locked = false;
    BIO *bio = BIO_new_mem_buf(key, -1);
    EVP_PKEY *own = bio ? PEM_read_bio_PrivateKey(bio, NULL, blocking_tls_on_passphrase, &locked) : NULL;
    BIO_free(bio);
    ERR_clear_error();
    int r = -1;
    if (locked)
        (void)err_set(err, ERR_USAGE, 0,
                      "the key has a passphrase; give one without (openssl pkey -in FILE -out FILE2)");
    else if (!own)
        (void)err_set(err, ERR_USAGE, 0, "there is no private key in PEM (-----BEGIN PRIVATE KEY-----)");
    else if (blocking_tls_use_chain(ctx, cert) < 0)
        (void)err_set(err, ERR_USAGE, 0, "the certificate cannot be used; it must be one in PEM, and those above it");
    else if (X509_check_private_key(SSL_CTX_get0_certificate(ctx), own) != 1 || SSL_CTX_use_PrivateKey(ctx, own) != 1)
        (void)err_set(err, ERR_USAGE, 0, "the key is not the certificate's: it belongs to another one");
    else
        r = 0;
    EVP_PKEY_free(own);
    ERR_clear_error();
    return r;
}

/* --- the layer ---------------------------------------------------------------------------------------------------- */

/* True if a call that failed is worth repeating once the socket can be read or written. */
static bool blocking_tls_waits(const SSL *ssl, int rc, bool *ret_out)
{
    int what = SSL_get_error(ssl, rc);
    *ret_out = what == SSL_ERROR_WANT_WRITE;
    return *ret_out || what == SSL_ERROR_WANT_READ;
}

static int blocking_tls_size(size_t n) { return n > 1 << 30 ? 1 << 30 : (int)n; }

static ssize_t blocking_tls_read(void *arg, void *p, size_t n, bool *ret_out)
{
    ERR_clear_error();
    int rc = SSL_read(arg, p, blocking_tls_size(n));
    if (rc > 0 || SSL_get_error(arg, rc) == SSL_ERROR_ZERO_RETURN)
        return rc > 0 ? rc : 0;
    if (blocking_tls_waits(arg, rc, ret_out))
        errno = EAGAIN;
    return -1;
}

static ssize_t blocking_tls_write(void *arg, const void *p, size_t n, bool *ret_out)
{
    ERR_clear_error();
    int rc = SSL_write(arg, p, blocking_tls_size(n));
    if (rc <= 0 && blocking_tls_waits(arg, rc, ret_out))
        errno = EAGAIN;
    return rc > 0 ? rc : -1;
}

static bool blocking_tls_pending(void *arg) { return SSL_pending(arg) > 0; }

static void blocking_tls_free(void *arg) { SSL_free(arg); }

static const struct blocking_layer blocking_tls = {
    .read = blocking_tls_read, .write = blocking_tls_write, .pending = blocking_tls_pending, .free = blocking_tls_free};

bool blocking_tls_expect(SSL *ssl, const char *host)
{
    struct in6_addr a;
    char name[256];
    size_t n = strlen(host);
    if (inet_pton(AF_INET, host, &a) == 1 || inet_pton(AF_INET6, host, &a) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    n -= n > 1 && host[n - 1] == '.'; /* certificates have no last dot */
    (void)snprintf(name, sizeof name, "%.*s", (int)n, host);
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return n < sizeof name && SSL_set_tlsext_host_name(ssl, name) == 1 && SSL_set1_host(ssl, name) == 1;
}

const char *blocking_tls_reason(void) { return ERR_reason_error_string(ERR_peek_error()); }

int blocking_tls_start(struct blocking *b, SSL_CTX *ctx, const char *host, struct blocking_tls_trouble *ret)
{
    SSL *ssl = SSL_new(ctx);
    *ret = (struct blocking_tls_trouble){.why = "TLS cannot be set up for this host"};
    b->failure = 0;
    b->layer = &blocking_tls;
    b->arg = ssl;
    if (!ssl || SSL_set_fd(ssl, b->fd) != 1 || !blocking_tls_expect(ssl, host))
        return -1;
    SSL_set_app_data(ssl, ret);
    ERR_clear_error();
    int rc;
    bool out;
    while ((rc = SSL_connect(ssl)) != 1 && blocking_tls_waits(ssl, rc, &out))
        if (blocking_wait(b, out) < 0)
            return -1;
    SSL_set_app_data(ssl, NULL);
    if (rc == 1)
        return 0;
    const char *why = ERR_reason_error_string(ERR_get_error());
    (void)snprintf(ret->why, sizeof ret->why, "%s", why ? why : "it was closed");
    ERR_clear_error();
    return -1;
}
