#include "tests/lib/unit.h"

#include "http/router.h"

static void nothing(void *ctx, struct http_req *r, const struct route_params *p)
{
    (void)ctx;
    (void)r;
    (void)p;
}

static const struct route table[] = {
    {"GET", "/", nothing, 0},
    {"GET", "/sandboxes", nothing, 1},
    {"POST", "/sandboxes", nothing, 2},
    {"GET", "/sandboxes/metrics", nothing, 3},
    {"GET", "/sandboxes/{id}", nothing, 4},
    {"DELETE", "/sandboxes/{id}", nothing, 5},
    {"POST", "/sandboxes/{id}/timeout", nothing, 6},
    {"GET", "/a/{x}/{y}/{xy}", nothing, 7},
};

static struct route_match find(const char *method, const char *path, struct route_params *params)
{
    struct route_match m;
    route_find(table, ARRAY_LEN(table), method, path, &m, params);
    return m;
}

static void found(const char *method, const char *path, unsigned flags)
{
    struct route_params p;
    struct route_match m = find(method, path, &p);
    if (m.result != ROUTE_FOUND || m.route->flags != flags)
        fail_msg("%s %s: result %d, route %d", method, path, (int)m.result, m.route ? (int)m.route->flags : -1);
}

static void paths_find_their_route(void **state)
{
    (void)state;
    found("GET", "/", 0);
    found("GET", "/sandboxes", 1);
    found("HEAD", "/sandboxes", 1);
    found("POST", "/sandboxes", 2);
    found("GET", "/sandboxes/metrics", 3);
    found("GET", "/sandboxes/metric", 4);
    found("HEAD", "/sandboxes/x", 4);
    found("DELETE", "/sandboxes/metrics", 5);
    found("POST", "/sandboxes/i/timeout", 6);
}

static void others_do_not(void **state)
{
    static const char *const missing[] = {"/sandboxes/",           "//sandboxes", "/sandboxes//timeout",
                                          "/sandboxes/a/b",        "/Sandboxes",  "/sandboxe",
                                          "/sandboxes/i/timeout/", "*",           ""};
    struct route_params p;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(missing); i++)
        if (find("GET", missing[i], &p).result != ROUTE_NOT_FOUND)
            fail_msg("'%s' was found", missing[i]);
    /* Fixed segments are compared as they came: no second spelling of a route. */
    assert_int_equal(find("GET", "/%73andboxes", &p).result, ROUTE_NOT_FOUND);
}

static void a_wrong_method_learns_the_right_ones(void **state)
{
    struct route_params p;
    (void)state;
    struct route_match m = find("PUT", "/sandboxes", &p);
    assert_int_equal(m.result, ROUTE_METHOD);
    assert_string_equal(m.allow, "GET, HEAD, POST");
    m = find("PUT", "/sandboxes/metrics", &p); /* {id} fits as well, and is not what was asked */
    assert_int_equal(m.result, ROUTE_METHOD);
    assert_string_equal(m.allow, "GET, HEAD");
    m = find("PUT", "/sandboxes/metric", &p);
    assert_string_equal(m.allow, "GET, HEAD, DELETE");
    m = find("OPTIONS", "/sandboxes/x/timeout", &p);
    assert_int_equal(m.result, ROUTE_METHOD);
    assert_string_equal(m.allow, "POST");
    m = find("GET", "/sandboxes/x/timeout", &p);
    assert_int_equal(m.result, ROUTE_METHOD);
}

static void parameters_are_split_then_decoded(void **state)
{
    struct route_params p;
    (void)state;
    assert_int_equal(find("GET", "/a/b%2Fc/%3A%20/d%25e", &p).result, ROUTE_FOUND);
    assert_string_equal(route_param(&p, "x"), "b/c");
    assert_string_equal(route_param(&p, "y"), ": ");
    assert_string_equal(route_param(&p, "xy"), "d%e");
    assert_null(route_param(&p, "z"));
}

static void bad_paths_are_refused(void **state)
{
    static const char *const bad[] = {"/sandboxes/%00", "/sandboxes/%", "/sandboxes/%1",
                                      "/sandboxes/%zz", "/x%0",         "/%00"};
    struct route_params p;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct route_match m = find("GET", bad[i], &p);
        assert_int_equal(m.result, ROUTE_BAD);
        assert_non_null(m.why);
    }
    char path[ROUTER_PATH_MAX + 2] = "/sandboxes/";
    memset(path + 11, 'x', sizeof path - 12);
    path[sizeof path - 1] = '\0';
    assert_int_equal(find("GET", path, &p).result, ROUTE_BAD);
    path[ROUTER_PATH_MAX] = '\0';
    assert_int_equal(find("GET", path, &p).result, ROUTE_FOUND);
    assert_int_equal(strlen(route_param(&p, "id")), ROUTER_PATH_MAX - 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_find_their_route),
        cmocka_unit_test(others_do_not),
        cmocka_unit_test(a_wrong_method_learns_the_right_ones),
        cmocka_unit_test(parameters_are_split_then_decoded),
        cmocka_unit_test(bad_paths_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
