#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/sha256.h"

static void digests_of_the_standard_are_met(void **state)
{
    static const struct {
        const char *text, *digest;
    } vectors[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqr"
         "stu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    char hex[SHA256_HEX];
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(vectors); i++) {
        sha256_hex(vectors[i].text, strlen(vectors[i].text), hex);
        assert_string_equal(hex, vectors[i].digest);
    }
}

static void a_million_bytes_in_uneven_pieces_give_the_known_digest(void **state)
{
    static const uint8_t want[SHA256_BYTES] = {0xcd, 0xc7, 0x6e, 0x5c, 0x99, 0x14, 0xfb, 0x92, 0x81, 0xa1, 0xc7,
                                               0xe2, 0x84, 0xd7, 0x3e, 0x67, 0xf1, 0x80, 0x9a, 0x48, 0xa4, 0x97,
                                               0x20, 0x0e, 0x04, 0x6d, 0x39, 0xcc, 0xc7, 0x11, 0x2c, 0xd0};
    static char piece[997];
    uint8_t got[SHA256_BYTES];
    struct sha256 h;
    (void)state;
    memset(piece, 'a', sizeof piece);
    sha256_start(&h);
    for (size_t left = 1000000; left > 0;) {
        size_t n = left < sizeof piece ? left : sizeof piece;
        sha256_add(&h, piece, n);
        left -= n;
    }
    sha256_end(&h, got);
    assert_memory_equal(got, want, sizeof want);
}

static void a_digest_does_not_depend_on_which_instructions_made_it(void **state)
{
    enum { MOST = 70000 };
    _cleanup_free_ uint8_t *bytes = xmalloc(MOST);
    uint64_t x = 88172645463325252u;
    (void)state;
    if (!sha256_by_processor())
        print_message("this processor has no instructions for SHA-256: the portable code is compared with itself\n");
    for (unsigned round = 0; round < 200; round++) {
        uint8_t whole[SHA256_BYTES], pieces[SHA256_BYTES];
        struct sha256 h;
        for (size_t i = 0; i < MOST; i += 8) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            memcpy(bytes + i, &x, MOST - i < 8 ? MOST - i : 8);
        }
        size_t n = SHA256_BULK + x % (MOST - SHA256_BULK - 63), from = x >> 40 & 63; /* unaligned too */
        sha256_start(&h);
        sha256_add(&h, bytes + from, n);
        sha256_end(&h, whole);
        sha256_start(&h);
        for (size_t at = 0, step = 1 + (x >> 20) % (SHA256_BULK - 1); at < n; at += step)
            sha256_add(&h, bytes + from + at, n - at < step ? n - at : step); /* below SHA256_BULK: portable */
        sha256_end(&h, pieces);
        assert_memory_equal(whole, pieces, sizeof whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_of_the_standard_are_met),
        cmocka_unit_test(a_million_bytes_in_uneven_pieces_give_the_known_digest),
        cmocka_unit_test(a_digest_does_not_depend_on_which_instructions_made_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
