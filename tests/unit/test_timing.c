/* Whether the way that a comparison takes through the program depends on the secret: every instruction is stepped through. */
#include <signal.h>
#include <string.h>
#include <ucontext.h>

#include "api/e2b/envd.h"
#include "base/cleanup.h"
#include "base/sha256.h"
#include "tests/lib/unit.h"

enum { SECRET = 44 };

/* The same addresses in every run, so that only their bytes can make a difference. */
static char given[SECRET + 1], secret[SECRET + 1], digest[SHA256_HEX];
static volatile bool equal;

static void compare_tokens(void) { equal = sha256_equal_text(given, secret); }
static void digest_key(void) { sha256_hex(given, SECRET, digest); }
static void compare_naively(void)
{
    size_t i = 0;
    while (((volatile char *)given)[i] == secret[i] && secret[i])
        i++;
    equal = i == SECRET;
}

struct path {
    uint64_t steps, hash;
};

static struct path now;

/* After every instruction while the processor's trap flag is set. */
static void on_step(int sig, siginfo_t *info, void *context)
{
    (void)sig;
    (void)info;
    now.steps++;
    now.hash = (now.hash ^ (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP]) * 0x100000001b3;
}

/* One copy of it, or its own addresses would make a difference. */
__attribute__((noinline)) static struct path walk(void (*fn)(void))
{
    fn(); /* the first call also finds the library's functions */
    now = (struct path){0};
    __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
    fn();
    __asm__ volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc");
    return now;
}

/* The secret is what is given, but for `wrong` bytes from `at` on. */
static struct path walk_with(void (*fn)(void), size_t at, size_t wrong)
{
    for (size_t i = 0; i < SECRET; i++) {
        given[i] = "0123456789abcdef"[i * 7 % 16];
        secret[i] = i >= at && i < at + wrong ? 'x' : given[i];
    }
    return walk(fn);
}

static void test_a_naive_comparison_is_seen(void **state)
{
    (void)state;
    struct path early = walk_with(compare_naively, 0, 1), late = walk_with(compare_naively, SECRET - 1, 1);
    assert_true(early.steps > 0);
    assert_true(early.steps < late.steps);
}

static void test_tokens_and_signatures_are_compared_on_one_path(void **state)
{
    (void)state;
    static const struct {
        size_t at, wrong;
    } cases[] = {{0, 1}, {SECRET / 2, 1}, {SECRET - 1, 1}, {0, SECRET}};
    struct path same = walk_with(compare_tokens, 0, 0);
    assert_true(equal);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct path other = walk_with(compare_tokens, cases[i].at, cases[i].wrong);
        assert_false(equal);
        assert_true(other.steps == same.steps && other.hash == same.hash);
    }
}

static void test_a_key_is_digested_on_one_path(void **state)
{
    (void)state;
    memset(given, 'a', SECRET);
    struct path first = walk(digest_key);
    memset(given, 0xff, SECRET);
    struct path second = walk(digest_key);
    assert_true(first.steps == second.steps && first.hash == second.hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_naive_comparison_is_seen),
        cmocka_unit_test(test_tokens_and_signatures_are_compared_on_one_path),
        cmocka_unit_test(test_a_key_is_digested_on_one_path),
    };
    struct sigaction step = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO};
    if (sigaction(SIGTRAP, &step, NULL) < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
