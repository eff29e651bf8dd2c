#include "tests/lib/unit.h"

#include "base/sha256.h"
#include "http/sigv4.h"

#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define SCOPE "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders="

static const struct http_field suite_host = {"host", "example.amazonaws.com"},
                               suite_date = {"x-amz-date", "20150830T123600Z"};

static void sign(const char *method, const char *target, const struct http_field *more, size_t nmore, const char *body,
                 struct buf *canonical, struct buf *authorization)
{
    struct http_field fields[8] = {suite_host, suite_date};
    char hash[SHA256_HEX];
    sha256_hex(body, strlen(body), hash);
    for (size_t i = 0; i < nmore; i++)
        fields[2 + i] = more[i];
    const struct sigv4 s = {
        .access_key_id = "AKIDEXAMPLE",
        .region = "us-east-1",
        .service = "service",
        .secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        .secret_n = 40,
        .unix_time = 1440938160,
        .method = method,
        .target = target,
        .signed_fields = fields,
        .nfields = 2 + nmore,
        .payload = hash,
    };
    if (canonical)
        assert_true(sigv4_canonical(&s, canonical));
    assert_true(sigv4_authorization(&s, authorization));
}

/* AWS's published test suite: these requests with these credentials have these signatures. */
static const struct {
    const char *name, *method, *target;
    struct http_field more[4];
    size_t nmore;
    const char *body, *names, *signature;
} suite[] = {
    {"get-vanilla",
     "GET",
     "/",
     {{0}},
     0,
     "",
     "host;x-amz-date",
     "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
    {"post-vanilla",
     "POST",
     "/",
     {{0}},
     0,
     "",
     "host;x-amz-date",
     "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
    {"get-unreserved",
     "GET",
     "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
     {{0}},
     0,
     "",
     "host;x-amz-date",
     "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"},
    {"get-vanilla-query-order-key-case",
     "GET",
     "/?Param2=value2&Param1=value1",
     {{0}},
     0,
     "",
     "host;x-amz-date",
     "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
    {"get-vanilla-query-order-value",
     "GET",
     "/?Param1=value2&Param1=value1",
     {{0}},
     0,
     "",
     "host;x-amz-date",
     "5772eed61e12b33fae39ee5e7012498b51d56abc0abb7c60486157bd471c4694"},
    {"get-vanilla-utf8-query",
     "GET",
     "/?\xe1\x88\xb4=bar",
     {{0}},
     0,
     "",
     "host;x-amz-date",
     "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"},
    {"get-header-value-order",
     "GET",
     "/",
     {{"my-header1", "value4"}, {"my-header1", "value1"}, {"my-header1", "value3"}, {"my-header1", "value2"}},
     4,
     "",
     "host;my-header1;x-amz-date",
     "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01"},
    {"get-header-key-duplicate",
     "GET",
     "/",
     {{"my-header1", "value2"}, {"my-header1", "value2"}, {"my-header1", "value1"}},
     3,
     "",
     "host;my-header1;x-amz-date",
     "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea"},
    {"get-header-value-trim",
     "GET",
     "/",
     {{"my-header1", " value1"}, {"my-header2", " \"a   b   c\""}},
     2,
     "",
     "host;my-header1;my-header2;x-amz-date",
     "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
    {"post-x-www-form-urlencoded",
     "POST",
     "/",
     {{"content-type", "application/x-www-form-urlencoded"}},
     1,
     "Param1=value1",
     "content-type;host;x-amz-date",
     "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"},
    {"post-sts-header-before",
     "POST",
     "/",
     {{"x-amz-security-token",
       "AQoDYXdzEPT//////////"
       "wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKP"
       "i/"
       "kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+"
       "xo0rKwT38xVqr7ZD0u0iPP"
       "kUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="}},
     1,
     "",
     "host;x-amz-date;x-amz-security-token",
     "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead"},
};

static void the_published_suite_is_signed_as_published(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(suite); i++) {
        _cleanup_buf_ struct buf got = {0}, want = {0};
        sign(suite[i].method, suite[i].target, suite[i].more, suite[i].nmore, suite[i].body, NULL, &got);
        buf_addf(&want, SCOPE "%s, Signature=%s", suite[i].names, suite[i].signature);
        if (strcmp(buf_str(&got), buf_str(&want)) != 0)
            fail_msg("%s: %s, not %s", suite[i].name, buf_str(&got), buf_str(&want));
    }
}

static void the_canonical_request_of_the_suite_is_byte_for_byte_the_same(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf canonical = {0}, authorization = {0};
    char hash[SHA256_HEX];
    sign("GET", "/?Param2=value2&Param1=value1", NULL, 0, "", &canonical, &authorization);
    assert_string_equal(buf_str(&canonical), "GET\n/\nParam1=value1&Param2=value2\nhost:example.amazonaws.com\n"
                                             "x-amz-date:20150830T123600Z\n\nhost;x-amz-date\n" EMPTY);
    buf_done(&canonical);
    sign("GET", "/", NULL, 0, "", &canonical, &authorization);
    sha256_hex(canonical.p, canonical.n, hash);
    assert_string_equal(hash, "bb579772317eb040ac9ed261061d46c1f17a8133879d6129b6e1c25292927e63");
}

/* The examples of S3's documentation: GET with a range, PUT, a subresource, a listing. */
static void the_documented_examples_of_s3_are_signed_as_documented(void **state)
{
    (void)state;
    static const struct {
        const char *method, *target;
        struct http_field more[3];
        size_t nmore;
        const char *payload, *names, *signature;
    } examples[] = {
        {"GET",
         "/test.txt",
         {{"range", "bytes=0-9"}},
         1,
         EMPTY,
         "host;range;x-amz-content-sha256;x-amz-date",
         "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
        {"PUT",
         "/test$file.text",
         {{"date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
         2,
         "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
         "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
         "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"},
        {"GET",
         "/?lifecycle",
         {{0}},
         0,
         EMPTY,
         "host;x-amz-content-sha256;x-amz-date",
         "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"},
        {"GET",
         "/?max-keys=2&prefix=J",
         {{0}},
         0,
         EMPTY,
         "host;x-amz-content-sha256;x-amz-date",
         "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
    };
    for (size_t i = 0; i < ARRAY_LEN(examples); i++) {
        struct http_field fields[6] = {{"host", "examplebucket.s3.amazonaws.com"},
                                       {"x-amz-content-sha256", examples[i].payload},
                                       {"x-amz-date", "20130524T000000Z"}};
        _cleanup_buf_ struct buf got = {0}, want = {0};
        for (size_t k = 0; k < examples[i].nmore; k++)
            fields[3 + k] = examples[i].more[k];
        const struct sigv4 s = {"AKIAIOSFODNN7EXAMPLE",
                                "us-east-1",
                                "s3",
                                "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                                40,
                                1369353600,
                                examples[i].method,
                                examples[i].target,
                                fields,
                                3 + examples[i].nmore,
                                examples[i].payload};
        assert_true(sigv4_authorization(&s, &got));
        buf_addf(&want,
                 "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
                 "SignedHeaders=%s, Signature=%s",
                 examples[i].names, examples[i].signature);
        assert_string_equal(buf_str(&got), buf_str(&want));
    }
}

static void canonical_is(const char *service, const char *target, const char *path, const char *query)
{
    struct http_field host = {"host", "h"};
    _cleanup_buf_ struct buf got = {0}, want = {0};
    const struct sigv4 s = {"A", "r", service, "k", 1, 0, "GET", target, &host, 1, "UNSIGNED-PAYLOAD"};
    assert_true(sigv4_canonical(&s, &got));
    buf_addf(&want, "GET\n%s\n%s\nhost:h\n\nhost\nUNSIGNED-PAYLOAD", path, query);
    assert_string_equal(buf_str(&got), buf_str(&want));
}

static void s3_signs_the_path_encoded_once_and_all_others_twice(void **state)
{
    (void)state;
    canonical_is("s3", "/a%20b/c", "/a%20b/c", "");
    canonical_is("execute-api", "/a%20b/c", "/a%2520b/c", "");
    canonical_is("s3", "/a(1)+%28", "/a%281%29%2B%28", "");
    canonical_is("s3", "/a%2Fb/c%2fd", "/a%2Fb/c%2Fd", "");
    canonical_is("lambda", "/functions/arn:aws:x/invoke", "/functions/arn%253Aaws%253Ax/invoke", "");
    canonical_is("s3", "", "/", "");
}

static void a_query_is_decoded_encoded_and_sorted(void **state)
{
    (void)state;
    canonical_is("s3", "/?b=2&a=1&a=0&a", "/", "a=&a=0&a=1&b=2");
    canonical_is("s3", "/?k=a%2Fb&k=a/a&x=%e4&y=1+2", "/", "k=a%2Fa&k=a%2Fb&x=%E4&y=1%2B2");
    canonical_is("s3", "/?a-b=1&a=2&a.b=3", "/", "a=2&a-b=1&a.b=3");
    canonical_is("s3", "/?&&a==b&", "/", "a=%3Db");
    canonical_is("s3", "/?a=%zz", "/", "a=%25zz");
}

static void a_broken_path_or_too_many_fields_are_not_signed(void **state)
{
    (void)state;
    struct http_field fields[SIGV4_FIELDS_MAX + 1];
    _cleanup_buf_ struct buf out = {0};
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        fields[i] = (struct http_field){"host", "h"};
    struct sigv4 s = {"A", "r", "s3", "k", 1, 0, "GET", "/%zz", fields, 1, "UNSIGNED-PAYLOAD"};
    assert_false(sigv4_authorization(&s, &out));
    s.target = "/";
    s.nfields = ARRAY_LEN(fields);
    assert_false(sigv4_authorization(&s, &out));
    s.nfields = 0;
    assert_false(sigv4_authorization(&s, &out));
    assert_int_equal(out.n, 0);
}

static void times_are_in_utc_and_have_four_digits_of_a_year(void **state)
{
    (void)state;
    char t[SIGV4_TIME];
    sigv4_time(0, t);
    assert_string_equal(t, "19700101T000000Z");
    sigv4_time(1440938160, t);
    assert_string_equal(t, "20150830T123600Z");
    sigv4_time(UINT64_MAX, t);
    assert_string_equal(t, "99991231T235959Z");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_suite_is_signed_as_published),
        cmocka_unit_test(the_canonical_request_of_the_suite_is_byte_for_byte_the_same),
        cmocka_unit_test(the_documented_examples_of_s3_are_signed_as_documented),
        cmocka_unit_test(s3_signs_the_path_encoded_once_and_all_others_twice),
        cmocka_unit_test(a_query_is_decoded_encoded_and_sorted),
        cmocka_unit_test(a_broken_path_or_too_many_fields_are_not_signed),
        cmocka_unit_test(times_are_in_utc_and_have_four_digits_of_a_year),
    };
    return cmocka_run_group_tests_name("egress/sigv4", tests, NULL, NULL);
}
