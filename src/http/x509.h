/* x509.h - frees OpenSSL's objects when their variables go out of scope. For hutch-node only. */
#ifndef HUTCH_HTTP_X509_H
#define HUTCH_HTTP_X509_H

#include <openssl/bio.h>
#include <openssl/x509.h>

#include "base/cleanup.h"

static inline void x509_cert_free_p(X509 **c) { X509_free(*c); }
static inline void x509_key_free_p(EVP_PKEY **k) { EVP_PKEY_free(*k); }
static inline void x509_bio_free_p(BIO **b) { (void)BIO_free(*b); }
#define _cleanup_cert_ _cleanup_(x509_cert_free_p)
#define _cleanup_key_  _cleanup_(x509_key_free_p)
#define _cleanup_bio_  _cleanup_(x509_bio_free_p)

#endif
