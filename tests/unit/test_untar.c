/* What a sandbox sends as an archive is unpacked below one directory, whatever it says. */
#include "cli/files/untar.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "tests/lib/unit.h"

static char top[64];
static int dir = -1;
static struct err err;

static int start(void **state)
{
    (void)state;
    (void)snprintf(top, sizeof top, "/tmp/hutch-untar-XXXXXX");
    assert_non_null(mkdtemp(top));
    assert_int_equal(chdir(top), 0);
    assert_int_equal(mkdir("in", 0755), 0);
    dir = open("in", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(dir >= 0);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    (void)close(dir);
    _cleanup_free_ char *command = xasprintf("rm -rf '%s'", top);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(system(command), 0); // NOLINT(cert-env33-c): a path of our own
    return 0;
}

/* Adds an entry: head, content, zeros up to a block. */
static void add(struct buf *to, const char *name, char type, unsigned mode, const char *target, const char *content)
{
    static const char zeros[UNTAR_BLOCK];
    char block[UNTAR_BLOCK] = {0};
    size_t n = strlen(content);
    unsigned sum = 0;
    memcpy(block, name, strnlen(name, 100));
    (void)snprintf(block + 100, 8, "%07o", mode);
    (void)snprintf(block + 124, 12, "%011o", (unsigned)n);
    (void)snprintf(block + 136, 12, "%011o", 1000000000U);
    memset(block + 148, ' ', 8);
    block[156] = type;
    memcpy(block + 157, target, strnlen(target, 100));
    memcpy(block + 257, "ustar  ", 8);
    for (size_t i = 0; i < sizeof block; i++)
        sum += (unsigned char)block[i];
    (void)snprintf(block + 148, 8, "%06o", sum);
    buf_add(to, block, sizeof block);
    buf_add(to, content, n);
    if (n % UNTAR_BLOCK)
        buf_add(to, zeros, UNTAR_BLOCK - n % UNTAR_BLOCK);
}

/* Unpacks an archive in pieces of that size, with its end or without. */
static int unpack(struct buf *archive, size_t piece, bool end, uint64_t *left_out)
{
    static const char zeros[2 * UNTAR_BLOCK];
    struct untar u;
    int r = 0;
    if (end)
        buf_add(archive, zeros, sizeof zeros);
    untar_start(&u, dir);
    for (size_t at = 0; r == 0 && at < archive->n; at += piece)
        r = untar_feed(&u, archive->p + at, archive->n - at < piece ? archive->n - at : piece, &err);
    if (r == 0)
        r = untar_end(&u, &err);
    if (left_out)
        *left_out = u.left_out;
    untar_done(&u);
    buf_done(archive);
    return r;
}

static void expect_file(const char *path, const char *content, unsigned mode)
{
    _cleanup_buf_ struct buf text = {0};
    struct stat st;
    assert_int_equal(fd_read_file(AT_FDCWD, path, 1 << 16, &text), 0);
    assert_string_equal(buf_str(&text), content);
    assert_int_equal(lstat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, mode);
    assert_int_equal(st.st_mtime, 1000000000);
}

static void files_directories_and_links_come_whole_in_pieces_of_any_size(void **state)
{
    (void)state;
    static const size_t pieces[] = {1, 7, 512, 513, 1 << 20};
    char target[16] = {0};
    (void)umask(022);
    for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
        struct buf b = {0};
        char longer[200];
        memset(longer, 'n', sizeof longer - 1);
        longer[sizeof longer - 1] = '\0';
        add(&b, "./", '5', 0755, "", "");
        add(&b, "./d/", '5', 0755, "", "");
        add(&b, "./d/run", '0', 04755, "", "#!/bin/sh\n");
        add(&b, "./d/link", '2', 0777, "../x", "");
        add(&b, "./d/hard", '1', 0644, "./d/run", "");
        add(&b, "././@LongLink", 'L', 0, "", longer);
        add(&b, "cut", '0', 0600, "", "long");
        add(&b, "pax", 'x', 0, "", "16 path=e/f/pax\n");
        add(&b, "cut", '0', 0644, "", "pax");
        assert_int_equal(unpack(&b, pieces[i], true, NULL), 0);
        expect_file("in/d/run", "#!/bin/sh\n", 0755); /* without the set-id bit */
        expect_file("in/d/hard", "#!/bin/sh\n", 0755);
        expect_file("in/e/f/pax", "pax", 0644);
        _cleanup_free_ char *path = xasprintf("in/%s", longer);
        expect_file(path, "long", 0600);
        assert_int_equal(readlink("in/d/link", target, sizeof target - 1), 4);
        assert_string_equal(target, "../x");
    }
}

static void nothing_is_written_outside(void **state)
{
    (void)state;
    static const char *const names[] = {"../out", "a/../../out", "link/out", "./link/out", "deep/link/out"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct buf b = {0};
        add(&b, "link", '2', 0777, "..", "");
        add(&b, "deep/link", '2', 0777, top, "");
        add(&b, names[i], '0', 0644, "", "evil");
        assert_int_equal(unpack(&b, 512, true, NULL), -1);
        assert_int_equal(access("out", F_OK), -1);
    }
    struct buf b = {0};
    _cleanup_free_ char *absolute = xasprintf("%s/out", top);
    add(&b, absolute, '0', 0644, "", "evil"); /* as if it were relative */
    assert_int_equal(unpack(&b, 512, true, NULL), 0);
    assert_int_equal(access("out", F_OK), -1);
    /* A file over a link replaces the link; a hard link to a file outside is refused. */
    assert_int_equal(symlink("../out", "in/over"), 0);
    add(&b, "over", '0', 0644, "", "fine");
    assert_int_equal(unpack(&b, 512, true, NULL), 0);
    assert_int_equal(access("out", F_OK), -1);
    expect_file("in/over", "fine", 0644);
    add(&b, "h", '1', 0644, "../in/over", "");
    assert_int_equal(unpack(&b, 512, true, NULL), -1);
    add(&b, "h", '1', 0644, "link/in/over", "");
    assert_int_equal(unpack(&b, 512, true, NULL), -1);
}

static void devices_are_left_out_and_damage_is_an_error(void **state)
{
    (void)state;
    struct buf b = {0};
    uint64_t left_out = 0;
    add(&b, "null", '3', 0666, "", "");
    add(&b, "pipe", '6', 0666, "", "");
    add(&b, "after", '0', 0644, "", "x");
    assert_int_equal(unpack(&b, 100, true, &left_out), 0);
    assert_int_equal(left_out, 2);
    assert_int_equal(access("in/null", F_OK), -1);
    assert_int_equal(access("in/pipe", F_OK), -1);
    expect_file("in/after", "x", 0644);
    add(&b, "f", '0', 0644, "", "content");
    assert_int_equal(unpack(&b, 512, false, NULL), -1);
    assert_non_null(strstr(err.msg, "not complete"));
    add(&b, "f", '0', 0644, "", "content");
    b.p[3] ^= 1;
    assert_int_equal(unpack(&b, 512, true, NULL), -1);
    assert_non_null(strstr(err.msg, "damaged"));
    static const char *const lists[] = {"9999 path=x\n", "0 path=x\n", "x", "11 path=x\n"};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        add(&b, "pax", 'x', 0, "", lists[i]);
        assert_int_equal(unpack(&b, 512, true, NULL), -1);
    }
    char *deep = xcalloc(1, 2 * (UNTAR_DEPTH_MAX + 2) + 1);
    for (unsigned i = 0; i < UNTAR_DEPTH_MAX + 2; i++)
        memcpy(deep + 2 * (size_t)i, "d/", 2);
    add(&b, "././@LongLink", 'L', 0, "", deep);
    add(&b, "cut", '5', 0755, "", "");
    assert_int_equal(unpack(&b, 512, true, NULL), -1);
    free(deep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_directories_and_links_come_whole_in_pieces_of_any_size, start, stop),
        cmocka_unit_test_setup_teardown(nothing_is_written_outside, start, stop),
        cmocka_unit_test_setup_teardown(devices_are_left_out_and_damage_is_an_error, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
