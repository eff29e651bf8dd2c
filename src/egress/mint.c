/* mint.c - makes the root, and signs a leaf for each name that sandboxes connect to.
 *
 * A leaf is signed once and cached; the cache drops the least recently used of MINT_CACHE entries. A leaf is signed
 * anew when half of its life is over. Extensions are built as objects, not from configuration text: that is several
 * times faster, and no name can be mistaken for syntax.
 */
#include "egress/mint.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/map.h"
#include "base/mem.h"
#include "http/tls.h"
#include "http/x509.h"

enum { HOUR = 3600, ROOT_DAYS = 3650, SERIAL_BITS = 127, CN_MAX = 64, HOST_MAX = 254 };

struct leaf {
    struct leaf *newer, *older;
    X509 *cert;
    time_t until; /* made anew from then on */
    char host[];
};

struct mint {
    X509 *ca;
    EVP_PKEY *ca_key, *key; /* key: of all leaves */
    struct map leaves;      /* host -> struct leaf */
    struct leaf *newest, *oldest;
};

/* ---- parts of a certificate ---- */

static bool mint_add_serial(X509 *c)
{
    BIGNUM *bn = BN_new();
    /* The top bit is set, so that the serial is neither zero nor short. */
    bool good = bn && BN_rand(bn, SERIAL_BITS, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
                BN_to_ASN1_INTEGER(bn, X509_get_serialNumber(c));
    BN_free(bn);
    return good;
}

static bool mint_add_times(X509 *c, long before, long after)
{
    return X509_gmtime_adj(X509_getm_notBefore(c), before) && X509_gmtime_adj(X509_getm_notAfter(c), after);
}

static bool mint_add_constraints(X509 *c, bool ca)
{
    BASIC_CONSTRAINTS *b = BASIC_CONSTRAINTS_new();
    bool good = b != NULL;
    if (good && ca) {
        b->ca = 0xff;
        b->pathlen = ASN1_INTEGER_new();
        good = b->pathlen && ASN1_INTEGER_set(b->pathlen, 0) == 1;
    }
    good = good && X509_add1_ext_i2d(c, NID_basic_constraints, b, 1, X509V3_ADD_DEFAULT) == 1;
    BASIC_CONSTRAINTS_free(b);
    return good;
}

static bool mint_add_usage(X509 *c, const int *bits, size_t n)
{
    ASN1_BIT_STRING *s = ASN1_BIT_STRING_new();
    bool good = s != NULL;
    for (size_t i = 0; i < n && good; i++)
        good = ASN1_BIT_STRING_set_bit(s, bits[i], 1) == 1;
    good = good && X509_add1_ext_i2d(c, NID_key_usage, s, 1, X509V3_ADD_DEFAULT) == 1;
    ASN1_BIT_STRING_free(s);
    return good;
}

static bool mint_add_server_auth(X509 *c)
{
    EXTENDED_KEY_USAGE *u = sk_ASN1_OBJECT_new_null();
    bool good = u && sk_ASN1_OBJECT_push(u, OBJ_nid2obj(NID_server_auth)) > 0 &&
                X509_add1_ext_i2d(c, NID_ext_key_usage, u, 0, X509V3_ADD_DEFAULT) == 1;
    sk_ASN1_OBJECT_pop_free(u, ASN1_OBJECT_free);
    return good;
}

/* The identifiers of the subject's and of the issuer's key. */
static bool mint_add_key_ids(X509 *c, X509 *issuer)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    ASN1_OCTET_STRING *own = ASN1_OCTET_STRING_new();
    bool good = own && X509_pubkey_digest(c, EVP_sha1(), digest, &n) == 1 &&
                ASN1_OCTET_STRING_set(own, digest, (int)n) == 1 &&
                X509_add1_ext_i2d(c, NID_subject_key_identifier, own, 0, X509V3_ADD_DEFAULT) == 1;
    ASN1_OCTET_STRING_free(own);
    const ASN1_OCTET_STRING *theirs = X509_get0_subject_key_id(issuer);
    if (!good || !theirs)
        return good;
    AUTHORITY_KEYID *a = AUTHORITY_KEYID_new();
    good = a && (a->keyid = ASN1_OCTET_STRING_dup(theirs)) &&
           X509_add1_ext_i2d(c, NID_authority_key_identifier, a, 0, X509V3_ADD_DEFAULT) == 1;
    AUTHORITY_KEYID_free(a);
    return good;
}

/* Adds the only alternative name: an address if host is the canonical text of one, else a DNS name. */
static bool mint_add_name(X509 *c, const char *host)
{
    unsigned char addr[16];
    int addr_n = inet_pton(AF_INET, host, addr) == 1 ? 4 : inet_pton(AF_INET6, host, addr) == 1 ? 16 : 0;
    GENERAL_NAMES *names = GENERAL_NAMES_new();
    GENERAL_NAME *name = GENERAL_NAME_new();
    ASN1_STRING *text = addr_n ? ASN1_OCTET_STRING_new() : ASN1_IA5STRING_new();
    bool good = names && name && text &&
                ASN1_STRING_set(text, addr_n ? (const void *)addr : host, addr_n ? addr_n : (int)strlen(host)) == 1;
    if (good) {
        GENERAL_NAME_set0_value(name, addr_n ? GEN_IPADD : GEN_DNS, text);
        text = NULL;
        good = sk_GENERAL_NAME_push(names, name) > 0;
        if (good)
            name = NULL;
    }
    /* RFC 5280: critical if there is no subject. */
    int critical = X509_NAME_entry_count(X509_get_subject_name(c)) == 0;
    good = good && X509_add1_ext_i2d(c, NID_subject_alt_name, names, critical, X509V3_ADD_DEFAULT) == 1;
    ASN1_STRING_free(text);
    GENERAL_NAME_free(name);
    GENERAL_NAMES_free(names);
    return good;
}

static bool mint_add_common_name(X509_NAME *n, const char *text)
{
    return X509_NAME_add_entry_by_NID(n, NID_commonName, MBSTRING_UTF8, (const unsigned char *)text, (int)strlen(text),
                                      -1, 0) == 1;
}

/* ---- the root ---- */

static char *pem_text(BIO *bio)
{
    char *p;
    long n = BIO_get_mem_data(bio, &p);
    return xstrndup(p, (size_t)n);
}

int mint_root(const char *common_name, char **ret_cert, char **ret_key, struct err *err)
{
    static const int usage[] = {5, 6}; /* keyCertSign, cRLSign */
    _cleanup_key_ EVP_PKEY *key = EVP_EC_gen("P-256");
    _cleanup_cert_ X509 *c = X509_new();
    _cleanup_bio_ BIO *cert_pem = BIO_new(BIO_s_mem());
    _cleanup_bio_ BIO *key_pem = BIO_new(BIO_s_secmem());
    if (common_name[0] == '\0' || strlen(common_name) > CN_MAX)
        return err_set(err, ERR_USAGE, 0, "the name of a root must have 1 to %d bytes", CN_MAX);
    bool good = key && c && cert_pem && key_pem && X509_set_version(c, X509_VERSION_3) == 1 && mint_add_serial(c) &&
                mint_add_times(c, -HOUR, (long)ROOT_DAYS * 24 * HOUR) && X509_set_pubkey(c, key) == 1 &&
                mint_add_common_name(X509_get_subject_name(c), common_name) &&
                X509_set_issuer_name(c, X509_get_subject_name(c)) == 1 && mint_add_constraints(c, true) &&
                mint_add_usage(c, usage, ARRAY_LEN(usage)) && mint_add_key_ids(c, c) &&
                X509_sign(c, key, EVP_sha256()) > 0 && PEM_write_bio_X509(cert_pem, c) == 1 &&
                PEM_write_bio_PrivateKey(key_pem, key, NULL, NULL, 0, NULL, NULL) == 1;
    if (!good)
        return tls_error(err, "make a root certificate", NULL);
    *ret_cert = pem_text(cert_pem);
    *ret_key = pem_text(key_pem);
    return 0;
}

/* ---- leaves ---- */

static X509 *sign_leaf(const struct mint *m, const char *host)
{
    static const int usage[] = {0}; /* digitalSignature */
    _cleanup_cert_ X509 *c = X509_new();
    bool good = c && X509_set_version(c, X509_VERSION_3) == 1 && mint_add_serial(c) &&
                mint_add_times(c, -HOUR, (long)MINT_HOURS * HOUR) && X509_set_pubkey(c, m->key) == 1 &&
                (strlen(host) > CN_MAX || mint_add_common_name(X509_get_subject_name(c), host)) &&
                X509_set_issuer_name(c, X509_get_subject_name(m->ca)) == 1 && mint_add_constraints(c, false) &&
                mint_add_usage(c, usage, ARRAY_LEN(usage)) && mint_add_server_auth(c) && mint_add_key_ids(c, m->ca) &&
                mint_add_name(c, host) && X509_sign(c, m->ca_key, EVP_sha256()) > 0;
    return good ? TAKE_PTR(c) : NULL;
}

static void unlink_leaf(struct mint *m, struct leaf *l)
{
    *(l->newer ? &l->newer->older : &m->newest) = l->older;
    *(l->older ? &l->older->newer : &m->oldest) = l->newer;
    l->newer = l->older = NULL;
}

static void put_newest(struct mint *m, struct leaf *l)
{
    l->older = m->newest;
    if (m->newest)
        m->newest->newer = l;
    m->newest = l;
    if (!m->oldest)
        m->oldest = l;
}

static void drop_leaf(struct mint *m, struct leaf *l)
{
    (void)map_del(&m->leaves, l->host);
    unlink_leaf(m, l);
    X509_free(l->cert);
    free(l);
}

static struct leaf *find_leaf(struct mint *m, const char *host)
{
    struct leaf *l = map_get(&m->leaves, host);
    if (l && l->until <= time(NULL)) {
        drop_leaf(m, l);
        l = NULL;
    }
    if (l && m->newest != l) {
        unlink_leaf(m, l);
        put_newest(m, l);
    }
    return l;
}

static struct leaf *mint_make_leaf(struct mint *m, const char *host)
{
    X509 *cert = sign_leaf(m, host);
    if (!cert)
        return NULL;
    if (m->leaves.n >= MINT_CACHE)
        drop_leaf(m, m->oldest);
    size_t n = strlen(host) + 1;
    struct leaf *l = xmalloc(sizeof *l + n);
    *l = (struct leaf){.cert = cert, .until = time(NULL) + (time_t)MINT_HOURS * HOUR / 2};
    memcpy(l->host, host, n);
    (void)map_put(&m->leaves, l->host, l);
    put_newest(m, l);
    return l;
}

int mint_use(struct mint *m, SSL *ssl, const char *host, struct err *err)
{
    if (host[0] == '\0' || strlen(host) >= HOST_MAX)
        return err_set(err, ERR_SETUP, 0, "no certificate for a name of %zu bytes; 1 to %d are possible", strlen(host),
                       HOST_MAX - 1);
    struct leaf *l = find_leaf(m, host);
    if (!l)
        l = mint_make_leaf(m, host);
    if (!l || SSL_use_certificate(ssl, l->cert) != 1 || SSL_use_PrivateKey(ssl, m->key) != 1)
        return tls_error(err, "make a certificate", NULL);
    return 0;
}

/* ---- life ---- */

/* Refuses a key with a passphrase: there is no terminal to ask on. */
static int mint_no_passphrase(char *p, int n, int writing, void *arg)
{
    (void)p, (void)n, (void)writing, (void)arg;
    return -1;
}

int mint_new(const char *ca_pem, size_t ca_n, const char *key_pem, size_t key_n, struct mint **ret, struct err *err)
{
    if (ca_n > INT32_MAX || key_n > INT32_MAX)
        return err_set(err, ERR_SETUP, 0, "the root certificate or its key is too long");
    _cleanup_bio_ BIO *ca_bio = BIO_new_mem_buf(ca_pem, (int)ca_n);
    _cleanup_bio_ BIO *key_bio = BIO_new_mem_buf(key_pem, (int)key_n);
    _cleanup_cert_ X509 *ca = ca_bio ? PEM_read_bio_X509(ca_bio, NULL, NULL, NULL) : NULL;
    if (!ca)
        return tls_error(err, "read the root certificate", NULL);
    _cleanup_key_ EVP_PKEY *ca_key = key_bio ? PEM_read_bio_PrivateKey(key_bio, NULL, mint_no_passphrase, NULL) : NULL;
    if (!ca_key)
        return tls_error(err, "read the key of the root certificate", NULL);
    if (X509_check_private_key(ca, ca_key) != 1)
        return tls_error(err, "the key does not belong to the root certificate", NULL);
    if (X509_check_ca(ca) < 1)
        return err_set(err, ERR_SETUP, 0, "the root certificate is not one of a CA (basicConstraints CA:TRUE)");
    EVP_PKEY *key = EVP_EC_gen("P-256");
    if (!key)
        return tls_error(err, "make a key for certificates", NULL);
    struct mint *m = xcalloc(1, sizeof *m);
    m->ca = TAKE_PTR(ca);
    m->ca_key = TAKE_PTR(ca_key);
    m->key = key;
    *ret = m;
    return 0;
}

void mint_free(struct mint *m)
{
    if (!m)
        return;
    while (m->oldest)
        drop_leaf(m, m->oldest);
    map_done(&m->leaves);
    X509_free(m->ca);
    EVP_PKEY_free(m->ca_key);
    EVP_PKEY_free(m->key);
    free(m);
}
