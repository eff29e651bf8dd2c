#include "http/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "loop/loop.h"

enum { RECORD = 16 * 1024 /* what one TLS record carries */ };

struct tls {
    struct transport t; /* first */
    SSL *ssl;
    struct buf before; /* bytes that were read before, for OpenSSL to read first */
    size_t given;      /* of them */
    unsigned wants_read, wants_write;
    bool done;   /* handshake */
    bool broken; /* a fatal error was seen; OpenSSL forbids going on */
    char failure[160];
};

struct tls_server {
    SSL_CTX *ctx;
    char *cert_path, *key_path;
    bool h2;
};

struct tls_client {
    SSL_CTX *ctx;
};

/* ---- the socket below: like OpenSSL's own, but a closed peer gives EPIPE instead of a signal, and no call waits
 * ---- */

static int tls_give_before(struct tls *t, char *p, size_t n)
{
    size_t left = t->before.n - t->given, some = n < left ? n : left;
    memcpy(p, t->before.p + t->given, some);
    t->given += some;
    if (t->given == t->before.n)
        buf_done(&t->before);
    return (int)some;
}

static int bio_read(BIO *b, char *p, int n)
{
    struct tls *t = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    if (t->before.n > 0 && n > 0)
        return tls_give_before(t, p, (size_t)n);
    ssize_t got = recv(t->t.fd, p, (size_t)n, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_read(b);
    if (got == 0)
        BIO_set_flags(b, BIO_FLAGS_IN_EOF);
    return (int)got;
}

static int bio_write(BIO *b, const char *p, int n)
{
    ssize_t sent = send(((struct tls *)BIO_get_data(b))->t.fd, p, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    BIO_clear_retry_flags(b);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_write(b);
    return (int)sent;
}

static long bio_ctrl(BIO *b, int cmd, long num, void *p)
{
    (void)num;
    (void)p;
    if (cmd == BIO_CTRL_FLUSH)
        return 1;
    return cmd == BIO_CTRL_EOF ? BIO_test_flags(b, BIO_FLAGS_IN_EOF) != 0 : 0;
}

static BIO_METHOD *method; /* made once, for all threads */

static void make_method(void)
{
    method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without signals");
    if (!method)
        return;
    (void)BIO_meth_set_read(method, bio_read);
    (void)BIO_meth_set_write(method, bio_write);
    (void)BIO_meth_set_ctrl(method, bio_ctrl);
}

static BIO *bio_new(struct tls *t)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, make_method);
    BIO *b = method ? BIO_new(method) : NULL;
    if (b) {
        BIO_set_data(b, t);
        BIO_set_init(b, 1);
    }
    return b;
}

/* ---- transport ---- */

static void tls_keep_failure(struct tls *t)
{
    unsigned long code = ERR_peek_last_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    if (reason)
        (void)snprintf(t->failure, sizeof t->failure, "%s", reason);
    else if (errno != 0)
        (void)snprintf(t->failure, sizeof t->failure, "%s", strerror(errno));
    else
        (void)snprintf(t->failure, sizeof t->failure, "the peer closed the connection");
    ERR_clear_error();
}

/* Turns OpenSSL's answer to a call that moved nothing into the transport's: 0 end of stream, -1 with errno. */
static ssize_t tls_outcome(struct tls *t, int result, unsigned *wants)
{
    int eno = errno;
    switch (SSL_get_error(t->ssl, result)) {
    case SSL_ERROR_WANT_READ:
        *wants = LOOP_IN;
        errno = EAGAIN;
        return -1;
    case SSL_ERROR_WANT_WRITE:
        *wants = LOOP_OUT;
        errno = EAGAIN;
        return -1;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    case SSL_ERROR_SYSCALL:
        errno = eno;
        tls_keep_failure(t);
        t->broken = true;
        errno = eno ? eno : ECONNRESET;
        return -1;
    default:
        errno = 0;
        tls_keep_failure(t);
        t->broken = true;
        errno = eno == EPIPE || eno == ECONNRESET ? eno : ECONNRESET;
        return -1;
    }
}

static ssize_t tls_read(struct transport *base, void *p, size_t n)
{
    struct tls *t = (struct tls *)base;
    size_t got;
    t->wants_read = LOOP_IN;
    if (t->broken) {
        errno = ECONNRESET;
        return -1;
    }
    ERR_clear_error();
    errno = 0;
    int result = SSL_read_ex(t->ssl, p, n, &got);
    return result == 1 ? (ssize_t)got : tls_outcome(t, result, &t->wants_read);
}

/* Returns up to one record of the vector as one piece: its only buffer, or a copy. After EAGAIN OpenSSL needs the
 * same bytes again, or more of them; the callers' queues only grow, so they give them. */
static const void *tls_gather(const struct iovec *v, int n, size_t *size)
{
    static _Thread_local char record[RECORD];
    size_t used = 0;
    if (n == 1 || v[0].iov_len >= RECORD) {
        *size = v[0].iov_len < RECORD ? v[0].iov_len : RECORD;
        return v[0].iov_base;
    }
    for (int i = 0; i < n && used < RECORD; i++) {
        size_t take = v[i].iov_len < RECORD - used ? v[i].iov_len : RECORD - used;
        if (take > 0)
            memcpy(record + used, v[i].iov_base, take);
        used += take;
    }
    *size = used;
    return record;
}

static ssize_t tls_write_record(struct tls *t, const struct iovec *v, int n)
{
    size_t size, sent;
    const void *p = tls_gather(v, n, &size);
    if (size == 0)
        return 0;
    ERR_clear_error();
    errno = 0;
    int result = SSL_write_ex(t->ssl, p, size, &sent);
    if (p != v[0].iov_base)
        explicit_bzero((void *)(uintptr_t)p, size); /* the copy, which may hold a secret, would stay */
    if (result == 1)
        return (ssize_t)sent;
    ssize_t status = tls_outcome(t, result, &t->wants_write);
    if (status == 0) {
        errno = EPIPE;
        return -1;
    }
    return status;
}

static ssize_t tls_writev(struct transport *base, const struct iovec *v, int n)
{
    struct tls *t = (struct tls *)base;
    size_t total = 0, skip = 0; /* skip: bytes of v[0] already sent */
    t->wants_write = LOOP_OUT;
    if (t->broken) {
        errno = EPIPE;
        return -1;
    }
    while (n > 0) {
        struct iovec rest[8];
        int used = n < 8 ? n : 8;
        if (v[0].iov_len == skip) {
            v++, n--, skip = 0;
            continue;
        }
        memcpy(rest, v, (size_t)used * sizeof *v);
        rest[0].iov_base = (char *)rest[0].iov_base + skip;
        rest[0].iov_len -= skip;
        ssize_t sent = tls_write_record(t, rest, used);
        if (sent < 0)
            return total > 0 && errno == EAGAIN ? (ssize_t)total : -1;
        total += (size_t)sent;
        for (skip += (size_t)sent; n > 0 && skip >= v[0].iov_len; v++, n--)
            skip -= v[0].iov_len;
    }
    return (ssize_t)total;
}

static unsigned tls_wants_read(const struct transport *base) { return ((const struct tls *)base)->wants_read; }
static unsigned tls_wants_write(const struct transport *base) { return ((const struct tls *)base)->wants_write; }
static bool tls_pending(const struct transport *base)
{
    const struct tls *t = (const struct tls *)base;
    return !t->broken && (t->before.n > 0 || SSL_pending(t->ssl) > 0);
}

static void tls_shutdown(struct transport *base)
{
    struct tls *t = (struct tls *)base;
    if (t->broken || !t->done)
        return;
    ERR_clear_error();
    (void)SSL_shutdown(t->ssl); /* close_notify; left out if the socket is full */
    ERR_clear_error();
    (void)shutdown(base->fd, SHUT_WR);
}

static void tls_free(struct transport *base)
{
    struct tls *t = (struct tls *)base;
    SSL_free(t->ssl);
    fd_close_foreign(base->fd);
    buf_done(&t->before);
    free(t);
}

static const char *tls_protocol(const struct transport *base)
{
    const struct tls *t = (const struct tls *)base;
    const unsigned char *name = NULL;
    unsigned n = 0;
    if (!t->done)
        return NULL;
    SSL_get0_alpn_selected(t->ssl, &name, &n);
    if (n == 2 && memcmp(name, "h2", 2) == 0)
        return "h2";
    return n == 8 && memcmp(name, "http/1.1", 8) == 0 ? "http/1.1" : NULL;
}

static int tls_handshake(struct transport *base)
{
    struct tls *t = (struct tls *)base;
    if (t->done)
        return 1;
    if (t->broken)
        return -1;
    ERR_clear_error();
    errno = 0;
    int result = SSL_do_handshake(t->ssl);
    if (result == 1) {
        t->done = true;
        t->wants_read = LOOP_IN;
        t->wants_write = LOOP_OUT;
        return 1;
    }
    unsigned wants = 0;
    ssize_t status = tls_outcome(t, result, &wants);
    if (status < 0 && errno == EAGAIN) {
        t->wants_read = t->wants_write = wants;
        return 0;
    }
    t->broken = true;
    return -1;
}

static const struct transport_ops tls_ops = {
    .read = tls_read,
    .writev = tls_writev,
    .wants_read = tls_wants_read,
    .wants_write = tls_wants_write,
    .pending = tls_pending,
    .shutdown = tls_shutdown,
    .free = tls_free,
    .protocol = tls_protocol,
    .handshake = tls_handshake,
};

const char *tls_failure(const struct transport *t) { return ((const struct tls *)t)->failure; }

struct transport *tls_wrap(SSL *ssl, int fd, const void *p, size_t n)
{
    struct tls *t = xcalloc(1, sizeof *t);
    *t = (struct tls){.t = {&tls_ops, fd}, .wants_read = LOOP_IN, .wants_write = LOOP_OUT, .ssl = ssl};
    BIO *bio = ssl ? bio_new(t) : NULL;
    if (bio) {
        SSL_set_bio(ssl, bio, bio);
        if (n > 0)
            buf_add(&t->before, p, n);
        return &t->t;
    }
    ERR_clear_error();
    SSL_free(ssl);
    free(t);
    fd_close_foreign(fd);
    return NULL;
}

SSL *tls_ssl(const struct transport *t) { return ((const struct tls *)t)->ssl; }

static struct tls *tls_new(SSL_CTX *ctx, int fd) { return (struct tls *)tls_wrap(SSL_new(ctx), fd, NULL, 0); }

/* ---- contexts ---- */

int tls_error(struct err *err, const char *what, const char *which)
{
    unsigned long code = ERR_peek_last_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    int status = err_set(err, ERR_SETUP, 0, "%s%s%s: %s", what, which ? " " : "", which ? which : "",
                         reason ? reason : "unknown error of the TLS library");
    ERR_clear_error();
    return status;
}

void tls_common_options(SSL_CTX *ctx)
{
    (void)SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    (void)SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    (void)SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                    SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    (void)SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
}

int tls_no_passphrase(char *p, int n, int writing, void *arg)
{
    (void)p, (void)n, (void)writing, (void)arg;
    return -1;
}

/* Chooses by our preference; `arg` is not NULL if HTTP/2 is served. A client that offers no protocol of ours gets no
 * ALPN and HTTP/1.1. */
static int tls_select_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_n, const unsigned char *in,
                               unsigned in_n, void *arg)
{
    static const unsigned char both[] = "\x02h2\x08http/1.1", one[] = "\x08http/1.1";
    unsigned char *chosen = NULL;
    (void)ssl;
    int got = arg ? SSL_select_next_proto(&chosen, out_n, both, sizeof both - 1, in, in_n)
                  : SSL_select_next_proto(&chosen, out_n, one, sizeof one - 1, in, in_n);
    *out = chosen;
    return got == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

static void tls_ctx_free_p(SSL_CTX **ctx) { SSL_CTX_free(*ctx); }

static int tls_load(struct tls_server *s, SSL_CTX **ret, struct err *err)
{
    _cleanup_(tls_ctx_free_p) SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx)
        return tls_error(err, "TLS context", NULL);
    tls_common_options(ctx);
    (void)SSL_CTX_set_num_tickets(ctx, 0);
    /* Requests mark their own end, so a missing close_notify cannot hide a cut. */
    (void)SSL_CTX_set_options(ctx, SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
    /* Handshakes may outlive `s`, so they are not given it. */
    SSL_CTX_set_alpn_select_cb(ctx, tls_select_protocol, (void *)(intptr_t)s->h2);
    SSL_CTX_set_default_passwd_cb(ctx, tls_no_passphrase);
    if (SSL_CTX_use_certificate_chain_file(ctx, s->cert_path) != 1)
        return tls_error(err, "read the certificate", s->cert_path);
    if (SSL_CTX_use_PrivateKey_file(ctx, s->key_path, SSL_FILETYPE_PEM) != 1)
        return tls_error(err, "read the private key", s->key_path);
    if (SSL_CTX_check_private_key(ctx) != 1)
        return tls_error(err, "the key does not belong to the certificate", s->cert_path);
    *ret = TAKE_PTR(ctx);
    return 0;
}

int tls_server_new(const char *cert_path, const char *key_path, bool h2, struct tls_server **ret, struct err *err)
{
    struct tls_server *s = xcalloc(1, sizeof *s);
    *s = (struct tls_server){.cert_path = xstrdup(cert_path), .key_path = xstrdup(key_path), .h2 = h2};
    if (tls_load(s, &s->ctx, err) < 0) {
        tls_server_free(s);
        return -1;
    }
    *ret = s;
    return 0;
}

struct transport *tls_server_accept(void *server, int fd)
{
    struct tls *t = tls_new(((struct tls_server *)server)->ctx, fd);
    if (!t)
        return NULL;
    SSL_set_accept_state(t->ssl);
    return &t->t;
}

void tls_server_free(struct tls_server *s)
{
    if (!s)
        return;
    SSL_CTX_free(s->ctx);
    free(s->cert_path);
    free(s->key_path);
    free(s);
}

int tls_client_new(struct tls_client **ret, struct err *err)
{
    static const unsigned char protocols[] = "\x08http/1.1";
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    if (!ctx)
        return tls_error(err, "TLS context", NULL);
    tls_common_options(ctx);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_NONE, NULL);
    (void)SSL_CTX_set_alpn_protos(ctx, protocols, sizeof protocols - 1);
    *ret = xcalloc(1, sizeof **ret);
    (*ret)->ctx = ctx;
    return 0;
}

static bool tls_name_is_address(const char *name)
{
    struct in6_addr a;
    return inet_pton(AF_INET, name, &a) == 1 || inet_pton(AF_INET6, name, &a) == 1;
}

struct transport *tls_client_connect(struct tls_client *c, int fd, const char *name)
{
    struct tls *t = tls_new(c->ctx, fd);
    if (!t)
        return NULL;
    SSL_set_connect_state(t->ssl);
    if (name && !tls_name_is_address(name) && SSL_set_tlsext_host_name(t->ssl, name) != 1) {
        ERR_clear_error();
        tls_free(&t->t);
        return NULL;
    }
    return &t->t;
}

void tls_client_free(struct tls_client *c)
{
    if (!c)
        return;
    SSL_CTX_free(c->ctx);
    free(c);
}
