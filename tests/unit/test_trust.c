/* Files that make programs trust one more certificate, from roots of all kinds. */
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "tests/lib/unit.h"
#include "wall/sandbox-trust.h"

#define BUNDLE "etc/ssl/certs/ca-certificates.crt"

static const char ca[] = "-----BEGIN CERTIFICATE-----\nbm90IHJlYWxseSBhIGNlcnRpZmljYXRl\n-----END CERTIFICATE-----\n";
static const struct wall_trust trust = {.ca = ca, .n = sizeof ca - 1, .below = ""};

struct scene {
    char path[64];
    int root, to;
};

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st, (void)kind, (void)where;
    return remove(path);
}

static int begin(void **state)
{
    static struct scene s;
    (void)snprintf(s.path, sizeof s.path, "/tmp/hutch-trust-XXXXXX");
    if (!mkdtemp(s.path))
        return -1;
    int dir = open(s.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (mkdirat(dir, "root", 0755) < 0 || mkdirat(dir, "to", 0755) < 0 || mkdirat(dir, "outside", 0755) < 0)
        return -1;
    s.root = openat(dir, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);
    s.to = openat(dir, "to", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)close(dir);
    *state = &s;
    return 0;
}

static int end(void **state)
{
    struct scene *s = *state;
    (void)close(s->root);
    (void)close(s->to);
    return nftw(s->path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void dirs(const struct scene *s, const char *path)
{
    char part[128];
    for (size_t n = 0; n <= strlen(path); n++) {
        if (path[n] != '/' && path[n] != '\0')
            continue;
        (void)snprintf(part, sizeof part, "%.*s", (int)n, path);
        (void)mkdirat(s->root, part, 0755);
    }
}

static void file(const struct scene *s, const char *path, const void *bytes, size_t n)
{
    int fd = openat(s->root, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, bytes, n), 0);
    (void)close(fd);
}

static void make(const struct scene *s)
{
    struct err err = {0};
    if (wall_trust_make(s->root, &trust, s->to, &err) < 0)
        fail_msg("%s", err.msg);
}

static void made_is(const struct scene *s, const char *path, const char *want)
{
    _cleanup_buf_ struct buf b = {0};
    if (fd_read_file(s->to, path, 1 << 20, &b) < 0)
        fail_msg("%s was not made", path);
    assert_string_equal(buf_str(&b), want);
}

static void not_made(const struct scene *s, const char *path)
{
    assert_int_equal(faccessat(s->to, path, F_OK, AT_SYMLINK_NOFOLLOW), -1);
}

static void an_empty_root_gets_a_bundle_of_ours_alone(void **state)
{
    const struct scene *s = *state;
    make(s);
    made_is(s, BUNDLE, ca);
    made_is(s, "etc/hutch/ca.pem", ca);
    not_made(s, "usr");
}

static void every_bundle_that_is_there_is_extended(void **state)
{
    const struct scene *s = *state;
    dirs(s, "etc/ssl/certs");
    dirs(s, "etc/pki/tls/certs");
    file(s, BUNDLE, "one\n", 4);
    file(s, "etc/pki/tls/certs/ca-bundle.crt", "two", 3);
    make(s);
    _cleanup_buf_ struct buf one = {0}, two = {0};
    buf_addf(&one, "one\n%s", ca);
    buf_addf(&two, "two\n%s", ca);
    made_is(s, BUNDLE, buf_str(&one));
    made_is(s, "etc/pki/tls/certs/ca-bundle.crt", buf_str(&two));
    not_made(s, "etc/ssl/cert.pem");
}

/* Absolute links and ".." end at the root's own top. */
static void links_lead_nowhere_but_into_the_root(void **state)
{
    const struct scene *s = *state;
    char outside[128];
    dirs(s, "etc/ssl");
    dirs(s, "real");
    (void)snprintf(outside, sizeof outside, "%s/outside", s->path);
    assert_int_equal(symlinkat("../../../../../../real", s->root, "etc/ssl/certs"), 0);
    assert_int_equal(symlinkat(outside, s->root, "etc/hutch"), 0);
    file(s, "real/ca-certificates.crt", "x\n", 2);
    make(s);
    _cleanup_buf_ struct buf want = {0};
    buf_addf(&want, "x\n%s", ca);
    made_is(s, "real/ca-certificates.crt", buf_str(&want));
    not_made(s, "etc/ssl/certs");
    int dir = open(outside, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(faccessat(dir, "ca.pem", F_OK, 0), -1);
    (void)close(dir);
}

static void large(const struct scene *s, const char *path, off_t size)
{
    file(s, path, "", 0);
    int fd = openat(s->root, path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(ftruncate(fd, size), 0);
    (void)close(fd);
}

static unsigned left(const struct scene *s)
{
    struct sha256 h;
    sha256_start(&h);
    return wall_trust_stamp(s->root, &trust, &h);
}

static void bundles_together_have_a_limit_and_what_is_over_it_is_counted(void **state)
{
    static const char *const paths[] = {BUNDLE, "etc/pki/tls/certs/ca-bundle.crt",
                                        "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "etc/ssl/ca-bundle.pem",
                                        "etc/ssl/cert.pem"};
    const struct scene *s = *state;
    dirs(s, "etc/ssl/certs/java");
    dirs(s, "etc/pki/tls/certs");
    dirs(s, "etc/pki/ca-trust/extracted/pem");
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        large(s, paths[i], TRUST_FILE_MAX);
    file(s, "etc/ssl/certs/java/cacerts", "x", 1);
    assert_int_equal(left(s), 2); /* the fifth, and a store that would be made from the first */
    make(s);
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        assert_int_equal(faccessat(s->to, paths[i], F_OK, AT_SYMLINK_NOFOLLOW), i < 4 ? 0 : -1);
    not_made(s, "etc/ssl/certs/java/cacerts");
}

static void what_is_not_a_file_of_reasonable_size_is_left_out(void **state)
{
    const struct scene *s = *state;
    dirs(s, "etc/ssl/certs");
    dirs(s, "etc/pki/tls/certs/ca-bundle.crt");
    assert_int_equal(mkfifoat(s->root, "etc/ssl/cert.pem", 0644), 0);
    large(s, BUNDLE, (off_t)TRUST_FILE_MAX + 1);
    make(s);
    not_made(s, BUNDLE); /* neither copied nor covered */
    made_is(s, "etc/hutch/ca.pem", ca);
    not_made(s, "etc/ssl/cert.pem");
    not_made(s, "etc/pki");
}

static void directories_are_as_the_root_has_them(void **state)
{
    const struct scene *s = *state;
    struct stat st;
    dirs(s, "etc/ssl/certs");
    assert_int_equal(fchmodat(s->root, "etc/ssl", 0711, 0), 0);
    make(s);
    assert_int_equal(fstatat(s->to, "etc/ssl", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0711);
}

static void the_tools_of_the_system_find_it_too(void **state)
{
    const struct scene *s = *state;
    dirs(s, "usr/local");
    dirs(s, "etc/pki/ca-trust/source/anchors");
    make(s);
    made_is(s, "usr/local/share/ca-certificates/hutch.crt", ca);
    made_is(s, "etc/pki/ca-trust/source/anchors/hutch.pem", ca);
}

static void stamp(const struct scene *s, uint8_t ret[SHA256_BYTES])
{
    struct sha256 h;
    sha256_start(&h);
    wall_trust_stamp(s->root, &trust, &h);
    sha256_end(&h, ret);
}

static void the_stamp_changes_with_a_bundle(void **state)
{
    const struct scene *s = *state;
    uint8_t before[SHA256_BYTES], same[SHA256_BYTES], after[SHA256_BYTES];
    dirs(s, "etc/ssl/certs");
    file(s, BUNDLE, "one\n", 4);
    stamp(s, before);
    stamp(s, same);
    assert_memory_equal(before, same, sizeof before);
    file(s, BUNDLE, "longer\n", 7);
    stamp(s, after);
    assert_memory_not_equal(before, after, sizeof before);
}

/* Made by another program from the same certificate. */
enum { DB_BODY = 66 };
static const unsigned char db_digest[] = {0xc3, 0xa7, 0xd7, 0xad, 0x63, 0x5b, 0xd2, 0xfb, 0xb7, 0x5f,
                                          0xca, 0xb3, 0x5b, 0xd6, 0x98, 0x4a, 0x13, 0x4e, 0x01, 0x1c};

static void a_new_store_has_the_digest_that_java_checks(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    assert_int_equal(jks_make("no store", 8, NULL, 0, ca, sizeof ca - 1, &b), 0);
    assert_int_equal(b.n, DB_BODY + 20);
    assert_memory_equal(b.p + DB_BODY, db_digest, 20);
}

static void an_old_store_keeps_its_entries(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf one = {0}, two = {0};
    assert_int_equal(jks_make(NULL, 0, NULL, 0, ca, sizeof ca - 1, &one), 0);
    assert_int_equal(jks_make(one.p, one.n, NULL, 0, ca, sizeof ca - 1, &two), 0);
    assert_int_equal((unsigned char)two.p[11], 2);
    assert_int_equal(two.n - one.n, one.n - 12 - 20);
    assert_memory_equal(two.p + 12, one.p + 12, one.n - 12 - 20);
}

static void a_store_of_another_kind_is_made_from_the_bundle(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0}, bundle = {0};
    buf_addf(&bundle, "# two roots\n%s%s-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n", ca, ca);
    assert_int_equal(jks_make("\x30\x82", 2, bundle.p, bundle.n, ca, sizeof ca - 1, &b), 0);
    assert_int_equal((unsigned char)b.p[11], 3);
}

static void a_certificate_that_is_none_is_refused(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    assert_int_equal(jks_make(NULL, 0, NULL, 0, "hello", 5, &b), -1);
    assert_int_equal(b.n, 0);
}

int main(void)
{
#define IN_SCENE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        IN_SCENE(an_empty_root_gets_a_bundle_of_ours_alone),
        IN_SCENE(every_bundle_that_is_there_is_extended),
        IN_SCENE(links_lead_nowhere_but_into_the_root),
        IN_SCENE(what_is_not_a_file_of_reasonable_size_is_left_out),
        IN_SCENE(bundles_together_have_a_limit_and_what_is_over_it_is_counted),
        IN_SCENE(directories_are_as_the_root_has_them),
        IN_SCENE(the_tools_of_the_system_find_it_too),
        IN_SCENE(the_stamp_changes_with_a_bundle),
        cmocka_unit_test(a_new_store_has_the_digest_that_java_checks),
        cmocka_unit_test(an_old_store_keeps_its_entries),
        cmocka_unit_test(a_store_of_another_kind_is_made_from_the_bundle),
        cmocka_unit_test(a_certificate_that_is_none_is_refused),
    };
    return cmocka_run_group_tests_name("trust", tests, NULL, NULL);
}
