#include "tests/lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "http/devca.h"
#include "http/tls.h"
#include "loop/loop.h"

static struct err err;
static char dir[64];
static int dirfd_ = -1;

static int make_dir(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/hutch-test-tls-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    dirfd_ = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return dirfd_ < 0 ? -1 : 0;
}

static int remove_dir(void **state)
{
    (void)state;
    static const char *const names[] = {DEVCA_CA_CERT, DEVCA_CA_KEY, DEVCA_CERT, DEVCA_KEY};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        (void)unlinkat(dirfd_, names[i], 0);
    (void)close(dirfd_);
    return rmdir(dir);
}

static const char *at(const char *name)
{
    static char path[4][128];
    static unsigned turn;
    char *p = path[turn++ % 4];
    (void)snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static struct tls_server *server(bool h2)
{
    struct tls_server *s = NULL;
    if (devca_ensure(dirfd_, "e2b.localhost", time(NULL), &err) < 0 ||
        tls_server_new(at(DEVCA_CERT), at(DEVCA_KEY), h2, &s, &err) < 0)
        fail_msg("%s", err.msg);
    return s;
}

static void pair(struct tls_server *s, struct transport **server_side, struct transport **client_side)
{
    int fds[2];
    struct tls_client *c;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(tls_client_new(&c, &err), 0);
    *server_side = tls_server_accept(s, fds[0]);
    *client_side = tls_client_connect(c, fds[1], "x.e2b.localhost");
    tls_client_free(c);
    assert_non_null(*server_side);
    assert_non_null(*client_side);
}

static void shake(struct transport *a, struct transport *b)
{
    int da = 0, db = 0;
    for (int i = 0; i < 20 && !(da && db); i++) {
        if (!db)
            db = b->ops->handshake(b);
        if (!da)
            da = a->ops->handshake(a);
        assert_true(da >= 0 && db >= 0);
    }
    assert_true(da == 1 && db == 1);
}

static X509 *read_cert(const char *name)
{
    FILE *f = fopen(at(name), "re");
    X509 *cert = PEM_read_X509(f, NULL, NULL, NULL);
    (void)fclose(f);
    assert_non_null(cert);
    return cert;
}

/* ---- the development CA ---- */

static void the_authority_is_made_once_and_kept(void **state)
{
    (void)state;
    struct stat st;
    _cleanup_buf_ struct buf first = {0}, second = {0};
    time_t now = time(NULL);
    assert_int_equal(devca_ensure(dirfd_, "e2b.localhost", now, &err), DEVCA_ALL);
    assert_int_equal(fd_read_file(dirfd_, DEVCA_CA_CERT, 65536, &first), 0);
    assert_int_equal(devca_ensure(dirfd_, "e2b.localhost", now, &err), DEVCA_SAME);
    assert_int_equal(fd_read_file(dirfd_, DEVCA_CA_CERT, 65536, &second), 0);
    assert_string_equal(first.p, second.p);
    assert_int_equal(fstatat(dirfd_, DEVCA_CA_KEY, &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(fstatat(dirfd_, DEVCA_KEY, &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(fstatat(dirfd_, DEVCA_CA_CERT, &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0644);
}

static void the_leaf_speaks_for_the_domain_and_verifies(void **state)
{
    (void)state;
    static const char *const good[] = {"e2b.localhost", "api.e2b.localhost", "49983-abc.e2b.localhost", "localhost"};
    assert_true(devca_ensure(dirfd_, "e2b.localhost", time(NULL), &err) >= 0);
    X509 *ca = read_cert(DEVCA_CA_CERT), *leaf = read_cert(DEVCA_CERT);
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        assert_int_equal(X509_check_host(leaf, good[i], 0, 0, NULL), 1);
    assert_int_equal(X509_check_host(leaf, "example.com", 0, 0, NULL), 0);
    assert_int_equal(X509_check_ip_asc(leaf, "127.0.0.1", 0), 1);
    assert_int_equal(X509_check_ip_asc(leaf, "::1", 0), 1);
    /* The whole chain with the name constraints, as a client checks it. */
    X509_STORE *db = X509_STORE_new();
    X509_STORE_CTX *ctx = X509_STORE_CTX_new();
    assert_int_equal(X509_STORE_add_cert(db, ca), 1);
    assert_int_equal(X509_STORE_CTX_init(ctx, db, leaf, NULL), 1);
    if (X509_verify_cert(ctx) != 1)
        fail_msg("%s", X509_verify_cert_error_string(X509_STORE_CTX_get_error(ctx)));
    X509_STORE_CTX_free(ctx);
    X509_STORE_free(db);
    int days = 0, seconds = 0;
    assert_int_equal(ASN1_TIME_diff(&days, &seconds, X509_get0_notBefore(leaf), X509_get0_notAfter(leaf)), 1);
    assert_true(days < 397 || (days == 397 && seconds == 0));
    int critical = -1;
    NAME_CONSTRAINTS *nc = X509_get_ext_d2i(ca, NID_name_constraints, &critical, NULL);
    assert_non_null(nc);
    assert_int_equal(critical, 1);
    NAME_CONSTRAINTS_free(nc);
    X509_free(ca);
    X509_free(leaf);
}

static void a_leaf_is_renewed_before_it_ends(void **state)
{
    (void)state;
    time_t now = time(NULL), day = 86400;
    assert_true(devca_ensure(dirfd_, "e2b.localhost", now, &err) >= 0);
    assert_int_equal(devca_ensure(dirfd_, "e2b.localhost", now + 366 * day, &err), DEVCA_SAME);
    assert_int_equal(devca_ensure(dirfd_, "e2b.localhost", now + 368 * day, &err), DEVCA_LEAF);
    assert_int_equal(devca_ensure(dirfd_, "e2b.localhost", now + 368 * day, &err), DEVCA_SAME);
    /* Near its own end the authority is replaced too; and back in time for the tests that follow. */
    assert_int_equal(devca_ensure(dirfd_, "e2b.localhost", now + 3640 * day, &err), DEVCA_ALL);
    assert_int_equal(devca_ensure(dirfd_, "e2b.localhost", now, &err), DEVCA_ALL);
}

static void another_domain_needs_another_authority(void **state)
{
    (void)state;
    time_t now = time(NULL);
    assert_int_equal(devca_ensure(dirfd_, "hutch.test", now, &err), DEVCA_ALL);
    assert_int_equal(devca_ensure(dirfd_, "hutch.test", now, &err), DEVCA_SAME);
    assert_int_equal(devca_ensure(dirfd_, "e2b.localhost", now, &err), DEVCA_ALL);
}

static void a_damaged_leaf_is_replaced_and_a_damaged_authority_is_an_error(void **state)
{
    (void)state;
    time_t now = time(NULL);
    assert_true(devca_ensure(dirfd_, "e2b.localhost", now, &err) >= 0);
    assert_int_equal(truncate(at(DEVCA_CERT), 100), 0);
    assert_int_equal(devca_ensure(dirfd_, "e2b.localhost", now, &err), DEVCA_LEAF);
    assert_int_equal(truncate(at(DEVCA_CA_CERT), 100), 0);
    assert_int_equal(devca_ensure(dirfd_, "e2b.localhost", now, &err), -1);
    assert_non_null(strstr(err.msg, "ca.crt"));
    assert_int_equal(unlinkat(dirfd_, DEVCA_CA_CERT, 0), 0);
    assert_int_equal(devca_ensure(dirfd_, "e2b.localhost", now, &err), DEVCA_ALL);
}

static void bad_domains_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",     "a b",  "e2b.localhost:8443", ".x", "x.", "a..b",
                                      "-a.b", "a-.b", "x,DNS:evil.com",     "A.b"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (devca_ensure(dirfd_, bad[i], time(NULL), &err) != -1)
            fail_msg("accepted '%s'", bad[i]);
}

/* ---- transports ---- */

static void bytes_go_through_whole_in_both_directions(void **state)
{
    (void)state;
    struct tls_server *s = server(true);
    struct transport *a, *b;
    pair(s, &a, &b);
    assert_null(a->ops->protocol(a));
    shake(a, b);
    assert_string_equal(a->ops->protocol(a), "http/1.1"); /* our client offers no more */
    enum { SIZE = 3000000 };
    _cleanup_free_ char *out = malloc(SIZE), *in = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++)
        out[i] = (char)(i * 2654435761U >> 13);
    size_t sent = 0, got = 0;
    unsigned stalls = 0;
    while (got < SIZE) {
        /* Uneven pieces, so that records are gathered from several; the rest is what is asked again after EAGAIN. */
        struct iovec v[3];
        size_t left = SIZE - sent, one = left < 5000 ? left : 5000, two = left - one < 70 ? left - one : 70;
        v[0] = (struct iovec){out + sent, one};
        v[1] = (struct iovec){out + sent + one, two};
        v[2] = (struct iovec){out + sent + one + two, left - one - two};
        ssize_t n = left ? b->ops->writev(b, v, 3) : 0;
        if (n < 0) {
            assert_int_equal(errno, EAGAIN);
            assert_int_equal(b->ops->wants_write(b), LOOP_OUT);
            n = 0;
        }
        stalls += (size_t)n < left;
        sent += (size_t)n;
        while (got < SIZE && (n = a->ops->read(a, in + got, 7777 < SIZE - got ? 7777 : SIZE - got)) > 0)
            got += (size_t)n;
        assert_true(got == SIZE || (n < 0 && errno == EAGAIN));
        assert_false(a->ops->pending(a));
    }
    assert_true(stalls > 0);
    assert_memory_equal(in, out, SIZE);
    b->ops->shutdown(b);
    assert_int_equal(a->ops->read(a, in, 10), 0);
    struct iovec last = {"bye", 3};
    assert_int_equal(a->ops->writev(a, &last, 1), 3); /* half-closed, not closed */
    assert_int_equal(b->ops->read(b, in, 10), 3);
    a->ops->free(a);
    errno = 0;
    assert_int_equal(b->ops->read(b, in, 10), -1); /* no farewell: might have been cut */
    assert_int_equal(errno, ECONNRESET);
    b->ops->free(b);
    tls_server_free(s);
}

static void what_was_decrypted_but_not_read_is_pending(void **state)
{
    (void)state;
    struct tls_server *s = server(false);
    struct transport *a, *b;
    char in[10];
    pair(s, &a, &b);
    shake(a, b);
    struct iovec v = {"0123456789", 10};
    assert_int_equal(b->ops->writev(b, &v, 1), 10);
    assert_int_equal(a->ops->read(a, in, 4), 4);
    assert_true(a->ops->pending(a));
    assert_int_equal(a->ops->read(a, in, 10), 6);
    assert_false(a->ops->pending(a));
    a->ops->free(a);
    b->ops->free(b);
    tls_server_free(s);
}

static void noise_fails_the_handshake_with_a_reason(void **state)
{
    (void)state;
    struct tls_server *s = server(true);
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    struct transport *a = tls_server_accept(s, fds[0]);
    assert_int_equal(a->ops->handshake(a), 0);
    assert_int_equal(a->ops->wants_read(a), LOOP_IN);
    assert_int_equal(write(fds[1], "GET / HTTP/1.1\r\n\r\n", 18), 18);
    assert_int_equal(a->ops->handshake(a), -1);
    assert_string_not_equal(tls_failure(a), "");
    assert_int_equal(a->ops->handshake(a), -1);
    a->ops->free(a);
    (void)close(fds[1]);
    tls_server_free(s);
}

static void a_peer_that_is_gone_raises_no_signal(void **state)
{
    (void)state;
    struct tls_server *s = server(true);
    struct transport *a, *b;
    pair(s, &a, &b);
    shake(a, b);
    b->ops->free(b);
    struct iovec v = {"x", 1};
    errno = 0;
    assert_int_equal(a->ops->writev(a, &v, 1), -1);
    assert_int_equal(errno, EPIPE);
    a->ops->free(a);
    tls_server_free(s);
}

static void a_handshake_may_outlive_its_server(void **state)
{
    (void)state;
    struct tls_server *s = server(true);
    struct transport *a, *b;
    pair(s, &a, &b);
    assert_int_equal(b->ops->handshake(b), 0);
    tls_server_free(s);
    shake(a, b);
    assert_string_equal(a->ops->protocol(a), "http/1.1");
    a->ops->free(a);
    b->ops->free(b);
}

static void a_key_with_a_passphrase_is_refused_without_asking(void **state)
{
    (void)state;
    struct tls_server *s = server(true), *other;
    FILE *f = fopen(at(DEVCA_KEY), "re");
    EVP_PKEY *key = PEM_read_PrivateKey(f, NULL, NULL, NULL);
    (void)fclose(f);
    f = fopen(at(DEVCA_KEY), "we");
    assert_int_equal(PEM_write_PrivateKey(f, key, EVP_aes_128_cbc(), (const unsigned char *)"secret", 6, NULL, NULL),
                     1);
    (void)fclose(f);
    EVP_PKEY_free(key);
    assert_int_equal(tls_server_new(at(DEVCA_CERT), at(DEVCA_KEY), true, &other, &err), -1);
    assert_non_null(strstr(err.msg, "read the private key"));
    assert_int_equal(devca_ensure(dirfd_, "e2b.localhost", time(NULL), &err), DEVCA_LEAF);
    tls_server_free(s);
}

/* Fills it until it takes no more; the same bytes again each time. */
static void fill(struct transport *t)
{
    static char bytes[16384];
    const struct iovec v = {bytes, sizeof bytes};
    while (t->ops->writev(t, &v, 1) > 0)
        ;
    assert_int_equal(errno, EAGAIN);
}

/* A socket from a sandbox is held there as well; whoever took that over clears O_NONBLOCK after we set it. */
static void a_socket_that_somebody_made_blocking_is_not_waited_for(void **state)
{
    struct transport *a, *b;
    char byte;
    int plain[2];
    (void)state;
    (void)alarm(20);
    struct tls_server *s = server(false);
    pair(s, &a, &b);
    for (int i = 0; i < 2; i++) { /* before the handshake and after it */
        int theirs = dup(b->fd);
        assert_int_equal(fcntl(theirs, F_SETFL, 0), 0);
        (void)close(theirs);
        if (i == 0) {
            assert_int_equal(b->ops->handshake(b), 0);
            shake(a, b);
        }
    }
    assert_int_equal(b->ops->read(b, &byte, 1), -1);
    assert_int_equal(errno, EAGAIN);
    fill(b);
    a->ops->free(a);
    b->ops->free(b);
    tls_server_free(s);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, plain), 0);
    struct transport *p = transport_plain(plain[0]);
    assert_int_equal(p->ops->read(p, &byte, 1), -1);
    assert_int_equal(errno, EAGAIN);
    fill(p);
    p->ops->free(p);
    (void)close(plain[1]);
    (void)alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_authority_is_made_once_and_kept),
        cmocka_unit_test(the_leaf_speaks_for_the_domain_and_verifies),
        cmocka_unit_test(a_leaf_is_renewed_before_it_ends),
        cmocka_unit_test(another_domain_needs_another_authority),
        cmocka_unit_test(a_damaged_leaf_is_replaced_and_a_damaged_authority_is_an_error),
        cmocka_unit_test(bad_domains_are_refused),
        cmocka_unit_test(bytes_go_through_whole_in_both_directions),
        cmocka_unit_test(what_was_decrypted_but_not_read_is_pending),
        cmocka_unit_test(noise_fails_the_handshake_with_a_reason),
        cmocka_unit_test(a_peer_that_is_gone_raises_no_signal),
        cmocka_unit_test(a_handshake_may_outlive_its_server),
        cmocka_unit_test(a_key_with_a_passphrase_is_refused_without_asking),
        cmocka_unit_test(a_socket_that_somebody_made_blocking_is_not_waited_for),
    };
    return cmocka_run_group_tests_name("http/tls", tests, make_dir, remove_dir);
}
