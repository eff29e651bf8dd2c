/* Every route of the table, asked by those who may not: each is answered once, whatever the body is, and the call is not used
 * after its answer (a sanitizer build stops there). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "front-world.h"
#include "front/api.h"
#include "front/volumes.h"

/* ---- one volume, whose turn never comes ---- */

#define TOKEN "vol-token-0123456789"

static struct volume volume = {.id = "vol-1", .name = "v", .token = TOKEN};
static int turns;

struct volume *volume_by_id(struct front *f, const char *id)
{
    (void)f;
    volume.tenant = &world.tenant[0];
    return strcmp(id, volume.id) == 0 ? &volume : NULL;
}
struct volume_turn *volume_turn(struct front *f, const struct volume *v, volume_turn_fn *fn, void *arg)
{
    (void)f, (void)v, (void)fn, (void)arg;
    turns++;
    return (struct volume_turn *)&turns;
}
void volume_turn_end(struct volume_turn *t) { assert_ptr_equal(t, &turns); }

/* ---- asking ---- */

/* The pattern with its parameters filled in. */
static void fill_path(const char *pattern, const char *id, struct buf *out)
{
    out->n = 0;
    for (const char *p = pattern; *p; p++) {
        if (*p != '{') {
            buf_addc(out, *p);
            continue;
        }
        buf_adds(out, id);
        p = strchr(p, '}');
    }
}

/* The status of a request that is answered, with one field more if name is not NULL; 0: it waits, and its client leaves. */
static unsigned status_for(const struct api_route *route, const char *id, const char *name, const char *value,
                           const char *body)
{
    _cleanup_buf_ struct buf path = {0};
    const char *fields[] = {"content-type", "application/json", name, value, NULL};
    fill_path(route->pattern, id, &path);
    struct asked *a = ask(route->method, buf_str(&path), fields, body, body ? strlen(body) : 0);
    unsigned status = a->ended ? a->status : 0;
    asked_free(a);
    return status;
}

static const char *const bodies[] = {NULL, "", "x", "{", "[]", "{}", "null", "{\"a\":{\"a\":[[[]]]}}", "\"\\u0000\""};

static void test_without_a_key(void **state)
{
    size_t n;
    const struct api_route *routes = api_routes(&n);
    (void)state;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof bodies / sizeof *bodies; k++) {
            unsigned none = status_for(&routes[i], "vol-1", NULL, NULL, bodies[k]);
            unsigned wrong = status_for(&routes[i], "vol-1", "x-api-key", "e2b_wrong", bodies[k]);
            bool open = routes[i].flags & API_OPEN, contents = strncmp(routes[i].pattern, "/volumecontent", 14) == 0;
            if (none == 0 || wrong == 0 || (!open && (none != 401 || wrong != 401)) ||
                (contents && (none != 401 || wrong != 404)))
                fail_msg("%s %s, body %zu: %u without a key, %u with a wrong one", routes[i].method, routes[i].pattern,
                         k, none, wrong);
        }
    assert_int_equal(turns, 0);
}

/* A sandbox and a volume of another tenant, and ones that never were. Routes without a parameter are not about those. */
static void test_with_a_foreign_key(void **state)
{
    static const char *const ids[] = {"i0abc", "vol-1", "nothing"};
    size_t n;
    const struct api_route *routes = api_routes(&n);
    (void)state;
    world_box("i0abc", 0, 1000);
    for (size_t i = 0; i < n; i++) {
        bool content = strncmp(routes[i].pattern, "/volumecontent/", 15) == 0;
        bool box = strncmp(routes[i].pattern, "/v1/sandboxes/{", 15) == 0 && !(routes[i].flags & API_CHANGES);
        for (size_t k = 0; (content || box) && k < sizeof ids / sizeof *ids; k++) {
            unsigned status = status_for(&routes[i], ids[k], "x-api-key", KEY_B, NULL);
            if (status != 404 && status != 400)
                fail_msg("%s %s of '%s': %u", routes[i].method, routes[i].pattern, ids[k], status);
        }
    }
    assert_int_equal(turns, 0);
}

static int walk_start(void **state)
{
    turns = 0;
    return world_start(state);
}

#define WALK(name) cmocka_unit_test_setup_teardown(name, walk_start, world_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WALK(test_without_a_key),
        WALK(test_with_a_foreign_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
