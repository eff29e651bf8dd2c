#include "tests/lib/unit.h"

#include "base/num.h"

static void u64_accepts_digits_only_and_never_wraps(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        uint64_t value;
    } cases[] = {
        {"0", true, 0},     {"18446744073709551615", true, UINT64_MAX}, {"007", true, 7},  {"", false, 0},
        {"-1", false, 0},   {"18446744073709551616", false, 0},         {"1 ", false, 0},  {" 1", false, 0},
        {"0x10", false, 0}, {"99999999999999999999999", false, 0},      {"1.0", false, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t v = 4711;
        assert_int_equal(num_u64(cases[i].text, &v), cases[i].ok);
        assert_int_equal(v, cases[i].ok ? cases[i].value : 4711);
    }
}

static void int_keeps_to_its_range(void **state)
{
    (void)state;
    int v = 99;
    assert_true(num_int("-5", -5, 5, &v) && v == -5);
    assert_true(num_int("5", -5, 5, &v) && v == 5);
    assert_false(num_int("6", -5, 5, &v));
    assert_false(num_int("-6", -5, 5, &v));
    assert_false(num_int("4294967297", 0, 5, &v));
    assert_false(num_int("--1", -5, 5, &v));
    assert_int_equal(v, 5);
}

static void sizes_are_powers_of_1024(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        uint64_t value;
    } cases[] = {
        {"4096", true, 4096},
        {"512M", true, 512ULL << 20},
        {"512MiB", true, 512ULL << 20},
        {"512mB", true, 512ULL << 20},
        {"1.5G", true, 3ULL << 29},
        {"64k", true, 65536},
        {"10B", true, 10},
        {"1T", true, 1ULL << 40},
        {"1.5", false, 0},
        {"1.5B", false, 0},
        {"M", false, 0},
        {"512X", false, 0},
        {"512Mi", false, 0},
        {"1.0001G", false, 0},
        {"-1M", false, 0},
        {"16777216T", false, 0},
        {"1.M", false, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t v = 4711;
        if (num_size(cases[i].text, &v) != cases[i].ok || v != (cases[i].ok ? cases[i].value : 4711))
            fail_msg("num_size(\"%s\") = %llu", cases[i].text, (unsigned long long)v);
    }
}

static void durations_are_in_milliseconds(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        uint64_t value;
    } cases[] = {
        {"30s", true, 30000},   {"1.5s", true, 1500},  {"200ms", true, 200},   {"5m", true, 300000},
        {"5min", true, 300000}, {"2h", true, 7200000}, {"1d", true, 86400000}, {"3", true, 3000},
        {"s", false, 0},        {"1w", false, 0},      {"1 s", false, 0},      {"999999999999999999d", false, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t v = 4711;
        if (num_duration(cases[i].text, &v) != cases[i].ok || v != (cases[i].ok ? cases[i].value : 4711))
            fail_msg("num_duration(\"%s\") = %llu", cases[i].text, (unsigned long long)v);
    }
}

static void cpus_are_thousandths_or_percent(void **state)
{
    (void)state;
    uint64_t v = 0;
    assert_true(num_cpus("1.5", &v) && v == 1500);
    assert_true(num_cpus("0.25", &v) && v == 250);
    assert_true(num_cpus("150%", &v) && v == 1500);
    assert_true(num_cpus("2", &v) && v == 2000);
    assert_false(num_cpus("2c", &v));
    assert_false(num_cpus("", &v));
    assert_int_equal(v, 2000);
}

static void people_see_short_sizes_and_durations(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    static const uint64_t sizes[] = {100, 1024, 512ULL << 20, 3ULL << 29, 1ULL << 50};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        num_add_size(&b, sizes[i]);
        buf_addc(&b, '|');
    }
    assert_string_equal(buf_str(&b), "100 B|1 KiB|512 MiB|1.5 GiB|1024 TiB|");
    buf_done(&b);
    static const uint64_t times[] = {200, 30000, 300000, 1500};
    for (size_t i = 0; i < ARRAY_LEN(times); i++) {
        num_add_duration(&b, times[i]);
        buf_addc(&b, '|');
    }
    assert_string_equal(buf_str(&b), "200 ms|30 s|5 min|1.5 s|");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(u64_accepts_digits_only_and_never_wraps),
        cmocka_unit_test(int_keeps_to_its_range),
        cmocka_unit_test(sizes_are_powers_of_1024),
        cmocka_unit_test(durations_are_in_milliseconds),
        cmocka_unit_test(cpus_are_thousandths_or_percent),
        cmocka_unit_test(people_see_short_sizes_and_durations),
    };
    return cmocka_run_group_tests_name("base/num", tests, NULL, NULL);
}
