/* egress-http-world.h - an egress with two sandboxes, servers on the loopback that it reaches by name, and clients that stand
 * where a sandbox's programs would: everything in one thread on one loop, everything over real sockets and real TLS.
 *
 * A name server of our own answers 127.0.0.1 for every name, and the ports of requests are those of the servers.
 */
#ifndef HUTCH_TESTS_UNIT_EGRESS_HTTP_WORLD_H
#define HUTCH_TESTS_UNIT_EGRESS_HTTP_WORLD_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <sys/socket.h>
#include <unistd.h>

#include "await.h"
#include "base/mem.h"
#include "egress-http-app.h"
#include "egress/flow-int.h"
#include "egress/http-int.h"
#include "egress/mint.h"
#include "http/h2.h"
#include "http/http1.h"
#include "http/outq.h"
#include "http/tls.h"

#define UNUSED __attribute__((unused))

static struct loop *loop;
static struct egress egress;
static struct esb *sandbox, *other; /* the sandboxes */
static char *root_pem;              /* what sandboxes trust */
static bool root_trusted = true;
static struct mint *origin;         /* the authority that servers have their certificates from */
static SSL_SESSION *client_session; /* that clients try to resume; then the newest */
static int client_newest;           /* version of TLS that clients know; 0: what the library knows */
static int dns_fd = -1;
static loop_id dns_watch;

/* ---- turning ---- */

UNUSED static void turn(int rounds)
{
    struct err err = {0};
    for (int i = 0; i < rounds; i++)
        if (loop_step(loop, 0, &err) < 0)
            fail_msg("%s", err.msg);
}

/* Turns until it is so; a test that waits for ever has failed. */
#define UNTIL(condition) AWAIT_STEPS(loop, condition)

/* ---- names ---- */

static void on_question(void *arg, int fd, unsigned events)
{
    unsigned char q[512];
    struct sockaddr_in from;
    socklen_t n = sizeof from;
    (void)arg;
    (void)events;
    ssize_t got = recvfrom(fd, q, sizeof q - 32, MSG_DONTWAIT, (struct sockaddr *)&from, &n);
    if (got < 17)
        return;
    size_t end = 12;
    while (end < (size_t)got && q[end])
        end += q[end] + 1u;
    end += 5;
    bool a = q[end - 4] == 0 && q[end - 3] == 1;
    q[2] = 0x84;
    q[3] = 0;
    memset(q + 4, 0, 8);
    q[5] = 1;
    q[7] = a;
    static const unsigned char answer[] = {0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1};
    if (a)
        memcpy(q + end, answer, sizeof answer);
    (void)sendto(fd, q, end + (a ? sizeof answer : 0), 0, (struct sockaddr *)&from, n);
}

static int listen_here(int type, uint16_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, n), 0);
    if (type == SOCK_STREAM)
        assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

/* ---- servers ---- */

struct upstream {
    struct http_server *server;
    SSL_CTX *ctx; /* NULL: in the clear */
    int fd;
    uint16_t port;
    struct mint *mint;
    const char *host; /* of its certificate */
    bool h2;
    struct upstream *next;
};
static struct upstream *upstreams; /* that end with the test */

static int upstream_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_n, const unsigned char *in,
                         unsigned in_n, void *arg)
{
    static const unsigned char both[] = "\x02h2\x08http/1.1", one[] = "\x08http/1.1";
    const struct upstream *u = arg;
    unsigned char *chosen = NULL;
    (void)ssl;
    int got = u->h2 ? SSL_select_next_proto(&chosen, out_n, both, sizeof both - 1, in, in_n)
                    : SSL_select_next_proto(&chosen, out_n, one, sizeof one - 1, in, in_n);
    *out = chosen;
    return got == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

static struct transport *upstream_accept(void *ctx, int fd)
{
    struct upstream *u = ctx;
    struct err err;
    app_connections++;
    if (!u->ctx)
        return transport_plain(fd);
    SSL *ssl = SSL_new(u->ctx);
    SSL_set_accept_state(ssl);
    if (u->mint && mint_use(u->mint, ssl, u->host, &err) < 0)
        fail_msg("%s", err.msg);
    return tls_wrap(ssl, fd, NULL, 0);
}

/* host NULL: in the clear. `m` NULL: the certificate is set by the test. */
UNUSED static void upstream_start(struct upstream *u, struct mint *m, const char *host, bool h2)
{
    struct err err = {0};
    *u = (struct upstream){.mint = m, .host = host, .h2 = h2};
    u->fd = listen_here(SOCK_STREAM, &u->port);
    if (host) {
        u->ctx = SSL_CTX_new(TLS_server_method());
        SSL_CTX_set_mode(u->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        SSL_CTX_set_alpn_select_cb(u->ctx, upstream_alpn, u);
    }
    assert_int_equal(http_server_new(loop, NULL, app, NULL, &u->server, &err), 0);
    http_server_set_h2(u->server, h2_serve);
    assert_int_equal(http_server_listen(u->server, u->fd, upstream_accept, u, &err), 0);
}

UNUSED static void upstream_stop(struct upstream *u)
{
    http_server_free(u->server);
    turn(2);
    SSL_CTX_free(u->ctx);
    (void)close(u->fd);
}

/* One that ends with the test. */
UNUSED static struct upstream *upstream_new(struct mint *m, const char *host, bool h2)
{
    struct upstream *u = xcalloc(1, sizeof *u);
    upstream_start(u, m, host, h2);
    u->next = upstreams;
    upstreams = u;
    return u;
}

static void upstreams_stop(void)
{
    turn(5);
    for (struct upstream *u; (u = upstreams); free(u)) {
        upstreams = u->next;
        upstream_stop(u);
    }
}

/* ---- the world ---- */

static uint64_t epoch;

UNUSED static void policy(struct esb *s, const char *text)
{
    struct netpol *p = NULL;
    struct netpol_error e = {0};
    if (netpol_parse_json(text, strlen(text), NULL, NULL, &p, &e) < 0)
        fail_msg("%s: %s\n%s", e.path, e.text, text);
    esb_set_policy(s, p, ++epoch);
}

/* Everything of these hosts on this port, looked into. */
UNUSED static void allow(struct esb *s, uint16_t port, const char *hosts)
{
    _cleanup_buf_ struct buf b = {0};
    buf_addf(&b,
             "{\"tls\":{\"intercept\":\"always\"},\"rules\":[{\"id\":\"r\",\"hosts\":[%s],\"ports\":[%u],\"cleartext\":"
             "true}]}",
             hosts, port);
    policy(s, buf_str(&b));
}

static int world_setup(void **state)
{
    struct err err = {0};
    uint16_t port;
    char *cert, *key;
    (void)state;
    assert_int_equal(loop_new(&loop, &err), 0);
    egress = (struct egress){.loop = loop, .config = {.connections = 10000}};
    dns_fd = listen_here(SOCK_DGRAM, &port);
    dns_watch = loop_fd_add(loop, dns_fd, LOOP_IN, on_question, NULL);
    (void)snprintf(egress.config.servers, sizeof egress.config.servers, "127.0.0.1:%u", port);
    egress.config.loopback_ok[0] = (struct netpol_cidr){.bits = 128};
    assert_true(netpol_cidr_parse("127.0.0.0/8", &egress.config.loopback_ok[0]));
    egress.config.nloopback_ok = 1;
    assert_int_equal(mint_root("Test sandbox root", &root_pem, &key, &err), 0);
    assert_int_equal(mint_new(root_pem, strlen(root_pem), key, strlen(key), &egress.mint, &err), 0);
    free(key);
    assert_int_equal(mint_root("Test internet root", &cert, &key, &err), 0);
    assert_int_equal(mint_new(cert, strlen(cert), key, strlen(key), &origin, &err), 0);
    buf_adds(&egress.trust, cert);
    free(cert);
    free(key);
    if (dial_setup(&egress, &err) < 0 || http_start(&egress, &err) < 0)
        fail_msg("%s", err.msg);
    sandbox = esb_get(&egress, "box");
    other = esb_get(&egress, "other");
    app_requests = app_connections = 0;
    app_stopped = false;
    app_stream = NULL;
    return 0;
}

static int world_teardown(void **state)
{
    (void)state;
    upstreams_stop();
    esb_drop_all(&egress);
    turn(3);
    http_stop(&egress);
    dial_teardown(&egress);
    turn(3);
    mint_free(egress.mint);
    mint_free(origin);
    loop_fd_del(loop, dns_watch);
    (void)close(dns_fd);
    loop_free(loop);
    map_done(&egress.sandboxes);
    buf_done(&egress.trust);
    buf_done(&app_seen);
    buf_done(&app_trailers);
    buf_done(&app_frames);
    free(root_pem);
    SSL_SESSION_free(client_session);
    client_session = NULL;
    client_newest = 0;
    return 0;
}

/* ---- clients inside ---- */

/* A connection of a program in the sandbox to an address; `gate`: to the platform's own. */
UNUSED static int dial_to(struct esb *s, const struct in6_addr *dst, uint16_t port, bool gate)
{
    int sv[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv), 0);
    struct flow *f = flow_new(s, sv[0], dst, port);
    f->gate = gate;
    sniff_start(f);
    return sv[1];
}

/* The same to `host` as the sandbox's resolver knows it. */
UNUSED static int dial_out(struct esb *s, const char *host, uint16_t port)
{
    uint32_t v4 = htonl(names_address(s->names, host, true));
    struct in6_addr dst = {0};
    dst.s6_addr[10] = dst.s6_addr[11] = 0xff;
    memcpy(dst.s6_addr + 12, &v4, 4);
    return dial_to(s, &dst, port, false);
}

static int keep_session(SSL *ssl, SSL_SESSION *session)
{
    (void)ssl;
    SSL_SESSION_free(client_session);
    client_session = SSL_SESSION_dup(session); /* the connection spoils its own when it is cut */
    return 0;
}

/* A handshake over `fd` that trusts the sandbox's root only. NULL: it failed. */
UNUSED static struct transport *tls_over(int fd, const char *sni, bool h2)
{
    static const unsigned char one[] = "\x08http/1.1", both[] = "\x02h2\x08http/1.1";
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    BIO *bio = BIO_new_mem_buf(root_pem, -1);
    X509 *root = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    if (root_trusted)
        (void)X509_STORE_add_cert(SSL_CTX_get_cert_store(ctx), root);
    X509_free(root);
    BIO_free(bio);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    (void)SSL_CTX_set_max_proto_version(ctx, client_newest);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(ctx, keep_session);
    (void)(h2 ? SSL_CTX_set_alpn_protos(ctx, both, sizeof both - 1)
              : SSL_CTX_set_alpn_protos(ctx, one, sizeof one - 1));
    SSL *ssl = SSL_new(ctx);
    SSL_CTX_free(ctx);
    SSL_set_connect_state(ssl);
    if (client_session)
        (void)SSL_set_session(ssl, client_session);
    if (sni)
        assert_int_equal(SSL_set_tlsext_host_name(ssl, sni) && SSL_set1_host(ssl, sni), 1);
    struct transport *t = tls_wrap(ssl, fd, NULL, 0);
    int done = 0;
    AWAIT ((done = t->ops->handshake(t)) != 0) {
        struct err err = {0};
        assert_int_equal(loop_step(loop, 1, &err), 0);
    }
    if (done > 0)
        return t;
    t->ops->free(t);
    return NULL;
}

UNUSED static struct transport *tls_out_to(struct esb *s, const char *host, uint16_t port, const char *sni, bool h2)
{
    return tls_over(dial_out(s, host, port), sni, h2);
}

UNUSED static struct transport *tls_out(struct esb *s, const char *host, uint16_t port, bool h2)
{
    struct transport *t = tls_out_to(s, host, port, host, h2);
    assert_non_null(t);
    return t;
}

/* What has come of an answer. */
struct answer {
    unsigned status;
    uint64_t length;
    struct buf fields, body, trailers, error;
    bool head, ended, failed;
    size_t chunks;
};

static void got_head(void *arg, unsigned status, const struct http_fields *f, uint64_t length)
{
    struct answer *a = arg;
    a->head = true;
    a->status = status;
    a->length = length;
    for (size_t i = 0; i < f->n; i++)
        buf_addf(&a->fields, "%s: %s\n", f->v[i].name, f->v[i].value);
}
static void got_data(void *arg, const void *p, size_t n)
{
    struct answer *a = arg;
    buf_add(&a->body, p, n);
    a->chunks++;
}
static void got_end(void *arg) { ((struct answer *)arg)->ended = true; }
static void got_room(void *arg) { (void)arg; }
static void got_error(void *arg, enum client_failure failure, const char *text)
{
    struct answer *a = arg;
    (void)failure;
    a->failed = true;
    buf_adds(&a->error, text);
}
static void got_trailer(void *arg, const char *name, const char *value)
{
    buf_addf(&((struct answer *)arg)->trailers, "%s: %s\n", name, value);
}
UNUSED static const struct h2up_events answer_events = {{got_head, got_data, got_end, got_room, got_error},
                                                        got_trailer};

UNUSED static void answer_done(struct answer *a)
{
    buf_done(&a->fields);
    buf_done(&a->body);
    buf_done(&a->trailers);
    buf_done(&a->error);
    *a = (struct answer){0};
}
#define _cleanup_answer_ __attribute__((cleanup(answer_done)))

/* A request of one connection's client, to its end. */
UNUSED static void ask_on(struct client *c, struct answer *a, const char *method, const char *target, const char *host,
                          const char *body)
{
    struct client_request q = {.method = method, .target = target, .host = host, .length = body ? strlen(body) : 0};
    client_start(c, &q, &answer_events.answer, a);
    if (body) {
        (void)client_write(c, body, strlen(body));
        client_end(c);
    }
    UNTIL(a->ended || a->failed);
    if (a->failed)
        fail_msg("%s", buf_str(&a->error));
}

UNUSED static void client_free_p(struct client **c) { client_free(*c); }
#define _cleanup_client_ __attribute__((cleanup(client_free_p), unused))

/* Begins a request to `host` over a new TLS connection with HTTP/1.1. */
UNUSED static struct client *begin_tls(struct esb *s, struct answer *a, const char *host, uint16_t port,
                                       struct client_request q)
{
    char authority[300];
    (void)snprintf(authority, sizeof authority, "%s:%u", host, port);
    q.host = authority;
    struct client *c = client_new(loop, tls_out(s, host, port, false));
    client_start(c, &q, &answer_events.answer, a);
    return c;
}

/* Over a new TLS connection with HTTP/1.1. */
UNUSED static void ask_tls(struct esb *s, struct answer *a, const char *method, const char *host, uint16_t port,
                           const char *target, const char *body)
{
    char authority[300];
    (void)snprintf(authority, sizeof authority, "%s:%u", host, port);
    struct client *c = client_new(loop, tls_out(s, host, port, false));
    ask_on(c, a, method, target, authority, body);
    client_free(c);
    turn(3);
}

UNUSED static void gone_nothing(void *arg) { (void)arg; }

#define assert_has(b, part)                                     \
    do {                                                        \
        if (!strstr(buf_str(&(b)), (part)))                     \
            fail_msg("no '%s' in:\n%s", (part), buf_str(&(b))); \
    } while (0)
#define assert_has_not(b, part)                                       \
    do {                                                              \
        if (strstr(buf_str(&(b)), (part)))                            \
            fail_msg("there is '%s' in:\n%s", (part), buf_str(&(b))); \
    } while (0)

#endif
