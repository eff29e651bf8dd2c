#include "http/devca.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/text.h"
#include "http/tls.h"
#include "http/x509.h"

enum { PEM_MAX = 64 * 1024, DAY = 86400 };

static int devca_crypto_error(struct err *err, const char *what)
{
    (void)tls_error(err, what, NULL);
    return err_wrap(err, "development CA");
}

static int devca_check_domain(const char *domain, struct err *err)
{
    size_t n = strlen(domain), label = 0;
    bool good = n > 0 && n <= 200;
    for (size_t i = 0; good && i <= n; i++) {
        char c = domain[i];
        if (c == '.' || c == '\0') {
            good = label > 0 && label <= 63 && domain[i - 1] != '-';
            label = 0;
        } else {
            good = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c == '-' && label > 0);
            label++;
        }
    }
    if (good)
        return 0;
    _cleanup_buf_ struct buf shown = {0};
    text_add_safe(&shown, domain, 80);
    return err_set(err, ERR_USAGE, 0,
                   "'%s' is not a domain for certificates; expected labels of a-z, 0-9 and '-', without a port",
                   buf_str(&shown));
}

/* ---- files ---- */

/* 1 read, 0 not there, -1. */
static int devca_read_pem(int dirfd, const char *name, struct buf *b, struct err *err)
{
    if (fd_read_file(dirfd, name, PEM_MAX, b) == 0)
        return 1;
    if (errno == ENOENT)
        return 0;
    return err_set(err, ERR_SETUP, errno, "development CA: read %s", name);
}

static int devca_load_cert(int dirfd, const char *name, X509 **ret, struct err *err)
{
    _cleanup_buf_ struct buf b = {0};
    int got = devca_read_pem(dirfd, name, &b, err);
    if (got <= 0)
        return got;
    _cleanup_bio_ BIO *bio = BIO_new_mem_buf(b.p, (int)b.n);
    *ret = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    return *ret ? 1 : devca_crypto_error(err, name);
}

static int devca_load_key(int dirfd, const char *name, EVP_PKEY **ret, struct err *err)
{
    _cleanup_buf_ struct buf b = {0};
    int got = devca_read_pem(dirfd, name, &b, err);
    if (got <= 0)
        return got;
    _cleanup_bio_ BIO *bio = BIO_new_mem_buf(b.p, (int)b.n);
    *ret = bio ? PEM_read_bio_PrivateKey(bio, NULL, tls_no_passphrase, NULL) : NULL;
    OPENSSL_cleanse(b.p, b.n);
    return *ret ? 1 : devca_crypto_error(err, name);
}

static int devca_write_file(int dirfd, const char *name, mode_t mode, BIO *pem, struct err *err)
{
    char fresh[32];
    char *p;
    long n = BIO_get_mem_data(pem, &p);
    (void)snprintf(fresh, sizeof fresh, ".%s.new", name);
    (void)unlinkat(dirfd, fresh, 0);
    _cleanup_close_ int fd = openat(dirfd, fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0 || fchmod(fd, mode) < 0 || fd_write_all(fd, p, (size_t)n) < 0 || fsync(fd) < 0 ||
        renameat(dirfd, fresh, dirfd, name) < 0) {
        int eno = errno;
        (void)unlinkat(dirfd, fresh, 0);
        return err_set(err, ERR_SETUP, eno, "development CA: write %s", name);
    }
    return 0;
}

static int devca_save_key(int dirfd, const char *name, EVP_PKEY *key, struct err *err)
{
    /* Secure memory would gain nothing: the key is about to be written to a file. */
    _cleanup_bio_ BIO *bio = BIO_new(BIO_s_mem());
    if (!bio || PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL) != 1)
        return devca_crypto_error(err, name);
    return devca_write_file(dirfd, name, 0600, bio, err);
}

/* `issuer` follows the certificate in the file; may be NULL. */
static int devca_save_cert(int dirfd, const char *name, X509 *cert, X509 *issuer, struct err *err)
{
    _cleanup_bio_ BIO *bio = BIO_new(BIO_s_mem());
    if (!bio || PEM_write_bio_X509(bio, cert) != 1 || (issuer && PEM_write_bio_X509(bio, issuer) != 1))
        return devca_crypto_error(err, name);
    return devca_write_file(dirfd, name, 0644, bio, err);
}

/* ---- certificates ---- */

static int devca_add_extension(X509 *cert, X509 *issuer, int nid, const char *value, struct err *err)
{
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    int added = e ? X509_add_ext(cert, e, -1) : 0;
    X509_EXTENSION_free(e);
    return added == 1 ? 0 : devca_crypto_error(err, OBJ_nid2sn(nid));
}

/* Serial, validity and names. `now` less an hour, for clocks that disagree. */
static X509 *devca_blank_cert(EVP_PKEY *key, const char *common_name, time_t now, time_t until)
{
    unsigned char serial[16];
    _cleanup_cert_ X509 *cert = X509_new();
    BIGNUM *number = NULL;
    if (!cert || RAND_bytes(serial, sizeof serial) != 1)
        return NULL;
    serial[0] = (unsigned char)((serial[0] & 0x3f) | 0x40); /* positive, always 16 bytes */
    number = BN_bin2bn(serial, sizeof serial, NULL);
    bool good = number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert)) && X509_set_version(cert, 2) == 1 &&
                ASN1_TIME_set(X509_getm_notBefore(cert), now - 3600) &&
                ASN1_TIME_set(X509_getm_notAfter(cert), until) && X509_set_pubkey(cert, key) == 1;
    BN_free(number);
    X509_NAME *name = X509_get_subject_name(cert);
    good = good &&
           X509_NAME_add_entry_by_txt(name, "O", MBSTRING_UTF8, (const unsigned char *)"Hutch", -1, -1, 0) == 1 &&
           X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)common_name, -1, -1, 0) == 1;
    return good ? TAKE_PTR(cert) : NULL;
}

static int devca_make_ca(int dirfd, const char *domain, time_t now, X509 **ret, EVP_PKEY **ret_key, struct err *err)
{
    char common_name[64], names[512];
    _cleanup_key_ EVP_PKEY *key = EVP_EC_gen("P-256");
    (void)snprintf(common_name, sizeof common_name, "Hutch development CA (%.36s)", domain);
    _cleanup_cert_ X509 *cert = key ? devca_blank_cert(key, common_name, now, now + (time_t)DEVCA_CA_DAYS * DAY) : NULL;
    if (!cert)
        return devca_crypto_error(err, "make the authority");
    (void)snprintf(names, sizeof names,
                   "critical,permitted;DNS:%s,permitted;DNS:localhost,permitted;IP:127.0.0.1/255.255.255.255,"
                   "permitted;IP:::1/ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
                   domain);
    if (X509_set_issuer_name(cert, X509_get_subject_name(cert)) != 1)
        return devca_crypto_error(err, "make the authority");
    if (devca_add_extension(cert, cert, NID_basic_constraints, "critical,CA:TRUE,pathlen:0", err) < 0 ||
        devca_add_extension(cert, cert, NID_key_usage, "critical,keyCertSign,cRLSign", err) < 0 ||
        devca_add_extension(cert, cert, NID_subject_key_identifier, "hash", err) < 0 ||
        devca_add_extension(cert, cert, NID_name_constraints, names, err) < 0)
        return -1;
    if (X509_sign(cert, key, EVP_sha256()) == 0)
        return devca_crypto_error(err, "sign the authority");
    /* The key first: a certificate without its key would be trusted and useless. */
    if (devca_save_key(dirfd, DEVCA_CA_KEY, key, err) < 0 || devca_save_cert(dirfd, DEVCA_CA_CERT, cert, NULL, err) < 0)
        return -1;
    *ret = TAKE_PTR(cert);
    *ret_key = TAKE_PTR(key);
    return 0;
}

static int devca_make_leaf(int dirfd, const char *domain, time_t now, X509 *ca, EVP_PKEY *ca_key, struct err *err)
{
    char names[1024];
    time_t until = now + (time_t)DEVCA_LEAF_DAYS * DAY - 3600; /* with the hour before `now`: 397 days */
    _cleanup_key_ EVP_PKEY *key = EVP_EC_gen("P-256");
    char common_name[64];
    (void)snprintf(common_name, sizeof common_name, "%.63s", domain);
    _cleanup_cert_ X509 *cert = key ? devca_blank_cert(key, common_name, now, until) : NULL;
    if (!cert || X509_set_issuer_name(cert, X509_get_subject_name(ca)) != 1)
        return devca_crypto_error(err, "make the leaf");
    if (X509_cmp_time(X509_get0_notAfter(ca), &until) < 0 && X509_set1_notAfter(cert, X509_get0_notAfter(ca)) != 1)
        return devca_crypto_error(err, "make the leaf");
    (void)snprintf(names, sizeof names, "DNS:%s,DNS:*.%s,DNS:api.%s,DNS:localhost,IP:127.0.0.1,IP:::1", domain, domain,
                   domain);
    if (devca_add_extension(cert, ca, NID_basic_constraints, "critical,CA:FALSE", err) < 0 ||
        devca_add_extension(cert, ca, NID_key_usage, "critical,digitalSignature", err) < 0 ||
        devca_add_extension(cert, ca, NID_ext_key_usage, "serverAuth", err) < 0 ||
        devca_add_extension(cert, ca, NID_subject_key_identifier, "hash", err) < 0 ||
        devca_add_extension(cert, ca, NID_authority_key_identifier, "keyid", err) < 0 ||
        devca_add_extension(cert, ca, NID_subject_alt_name, names, err) < 0)
        return -1;
    if (X509_sign(cert, ca_key, EVP_sha256()) == 0)
        return devca_crypto_error(err, "sign the leaf");
    if (devca_save_key(dirfd, DEVCA_KEY, key, err) < 0)
        return -1;
    return devca_save_cert(dirfd, DEVCA_CERT, cert, ca, err);
}

/* Is it good at that time? */
static bool devca_is_valid_at(const X509 *cert, time_t when)
{
    return X509_cmp_time(X509_get0_notBefore(cert), &when) < 0 && X509_cmp_time(X509_get0_notAfter(cert), &when) > 0;
}

/* An authority made for another domain cannot sign for this one. */
static bool devca_permits(X509 *ca, const char *domain)
{
    bool found = false;
    NAME_CONSTRAINTS *nc = X509_get_ext_d2i(ca, NID_name_constraints, NULL, NULL);
    if (!nc)
        return true; /* the operator's own */
    for (int i = 0; i < sk_GENERAL_SUBTREE_num(nc->permittedSubtrees); i++) {
        const GENERAL_NAME *name = sk_GENERAL_SUBTREE_value(nc->permittedSubtrees, i)->base;
        if (name->type == GEN_DNS && (size_t)ASN1_STRING_length(name->d.dNSName) == strlen(domain) &&
            memcmp(ASN1_STRING_get0_data(name->d.dNSName), domain, strlen(domain)) == 0)
            found = true;
    }
    NAME_CONSTRAINTS_free(nc);
    return found;
}

static bool devca_leaf_fits(X509 *leaf, EVP_PKEY *key, X509 *ca, const char *domain, time_t now)
{
    char below[256];
    (void)snprintf(below, sizeof below, "x.%s", domain);
    time_t later = now + (time_t)DEVCA_RENEW_DAYS * DAY;
    return devca_is_valid_at(leaf, now) && devca_is_valid_at(leaf, later) &&
           X509_verify(leaf, X509_get0_pubkey(ca)) == 1 && X509_check_private_key(leaf, key) == 1 &&
           X509_check_host(leaf, domain, 0, 0, NULL) == 1 && X509_check_host(leaf, below, 0, 0, NULL) == 1;
}

/* DEVCA_SAME if there is a usable authority, DEVCA_ALL after making one. */
static int devca_ensure_ca(int dirfd, const char *domain, time_t now, X509 **ca, EVP_PKEY **key, struct err *err)
{
    int have_cert = devca_load_cert(dirfd, DEVCA_CA_CERT, ca, err);
    int have_key = have_cert < 0 ? -1 : devca_load_key(dirfd, DEVCA_CA_KEY, key, err);
    if (have_cert < 0 || have_key < 0)
        return -1;
    if (have_cert && have_key && X509_check_private_key(*ca, *key) == 1 && devca_permits(*ca, domain) &&
        devca_is_valid_at(*ca, now) && devca_is_valid_at(*ca, now + (time_t)DEVCA_RENEW_DAYS * DAY))
        return DEVCA_SAME;
    ERR_clear_error();
    X509_free(TAKE_PTR(*ca));
    EVP_PKEY_free(TAKE_PTR(*key));
    return devca_make_ca(dirfd, domain, now, ca, key, err) < 0 ? -1 : DEVCA_ALL;
}

int devca_ensure(int dirfd, const char *domain, time_t now, struct err *err)
{
    _cleanup_cert_ X509 *ca = NULL, *leaf = NULL;
    _cleanup_key_ EVP_PKEY *ca_key = NULL, *key = NULL;
    struct err ignored;
    if (devca_check_domain(domain, err) < 0)
        return -1;
    int change = devca_ensure_ca(dirfd, domain, now, &ca, &ca_key, err);
    if (change < 0)
        return -1;
    /* A leaf is cheap: if anything is wrong with this one, replace it. */
    if (devca_load_cert(dirfd, DEVCA_CERT, &leaf, &ignored) == 1 &&
        devca_load_key(dirfd, DEVCA_KEY, &key, &ignored) == 1 && devca_leaf_fits(leaf, key, ca, domain, now)) {
        ERR_clear_error();
        return change;
    }
    ERR_clear_error();
    if (devca_make_leaf(dirfd, domain, now, ca, ca_key, err) < 0)
        return -1;
    return change == DEVCA_SAME ? DEVCA_LEAF : change;
}
