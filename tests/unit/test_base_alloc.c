/* The allocator of the static program: blocks do not overlap, keep what is in them, and misuse ends the program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"

enum { SLOTS = 400, STEPS = 200000 };

static void fill(unsigned char *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)(seed + i * 7);
}

static void check_filled(const unsigned char *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(p[i], (unsigned char)(seed + i * 7));
}

static size_t some_size(void)
{
    static const size_t most[] = {40, 200, 1100, 5000, 40000, 300000};
    unsigned r = (unsigned)rand() % 100;
    return (size_t)rand() % most[r < 60 ? 0 : r < 85 ? 1 : r < 95 ? 2 : r < 98 ? 3 : r < 99 ? 4 : 5];
}

static void blocks_keep_what_is_in_them(void **state)
{
    static struct {
        unsigned char *p;
        size_t n;
        unsigned seed;
    } slot[SLOTS];
    (void)state;
    srand(1);
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned i = (unsigned)rand() % SLOTS;
        if (!slot[i].p || rand() % 4 == 0) {
            size_t keep = slot[i].p ? slot[i].n : 0, n = some_size();
            slot[i].p = alloc_resize(slot[i].p, n);
            assert_non_null(slot[i].p);
            assert_int_equal((uintptr_t)slot[i].p % 16, 0);
            assert_true(alloc_room(slot[i].p) >= n);
            check_filled(slot[i].p, keep < n ? keep : n, slot[i].seed);
            slot[i].n = n;
            slot[i].seed = step;
            fill(slot[i].p, n, step);
        } else {
            check_filled(slot[i].p, slot[i].n, slot[i].seed);
            alloc_put(slot[i].p);
            slot[i].p = NULL;
        }
    }
    for (unsigned i = 0; i < SLOTS; i++) {
        if (slot[i].p)
            check_filled(slot[i].p, slot[i].n, slot[i].seed);
        alloc_put(slot[i].p);
    }
}

static void empty_huge_and_missing_blocks(void **state)
{
    (void)state;
    alloc_put(NULL);
    assert_int_equal(alloc_room(NULL), 0);
    void *a = alloc_get(0), *b = alloc_get(0);
    assert_true(a && b && a != b);
    alloc_put(a);
    alloc_put(b);
    errno = 0;
    assert_null(alloc_get(SIZE_MAX));
    assert_int_equal(errno, ENOMEM);
    void *c = alloc_get(10);
    errno = 0;
    assert_null(alloc_resize(c, PTRDIFF_MAX));
    assert_int_equal(errno, ENOMEM);
    alloc_put(c);
    void *d = alloc_get(100000);
    errno = EXDEV;
    alloc_put(d);
    assert_int_equal(errno, EXDEV);
}

static void twice(void)
{
    void *p = alloc_get(24);
    alloc_put(p);
    alloc_put(p);
}

static void overflow(void)
{
    char *p = alloc_get(32), *q = alloc_get(32);
    memset(p, 'x', 33 + 15);
    alloc_put(q);
}

static void written_after(void)
{
    char *p = alloc_get(48);
    alloc_put(p);
    memset(p - 16, 0, 16);
    (void)alloc_get(48);
}

static void never_was(void)
{
    char *p = alloc_get(64);
    memset(p, 0, 64);
    alloc_put(p + 16);
}

static void misuse_ends_the_program(void **state)
{
    static void (*const misuse[])(void) = {twice, overflow, written_after, never_was};
    (void)state;
    for (size_t i = 0; i < sizeof misuse / sizeof misuse[0]; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            (void)signal(SIGABRT, SIG_DFL);
            (void)close(2);
            misuse[i]();
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(misuse_ends_the_program), /* first, while neighbours are neighbours */
        cmocka_unit_test(blocks_keep_what_is_in_them),
        cmocka_unit_test(empty_huge_and_missing_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
