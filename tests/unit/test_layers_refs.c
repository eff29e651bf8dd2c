/* Names in stacks/, and who names which layer. */
#include "tests/lib/unit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "keeper/keeper-int.h"
#include "layers/refs.h"

static void assert_kind(const char *name, enum stack_name_kind kind)
{
    if (stack_name_parse(name).kind != kind)
        fail_msg("%s", name);
}

static void names_say_what_a_file_is(void **state)
{
    (void)state;
    assert_kind("st-abcdefgh", STACK_NAME_STACK);
    assert_kind("st-abcdefgh.drop", STACK_NAME_DROP);
    assert_kind("st-abcdefgh.gone-01234567-8", STACK_NAME_GONE);
    assert_kind("st-abcdefgh.was-01234567-8", STACK_NAME_WAS);
    static const char *const others[] = {"",
                                         "x",
                                         "st-",
                                         "st-ABCDEFGH",
                                         "st-abcdefgh.",
                                         "st-abcdefgh.dropped",
                                         "st-abcdefgh.gone-",
                                         "st-abcdefgh.gone-0123-8",
                                         "st-abcdefgh.was-01234567-",
                                         "st-abcdefgh.was-01234567-8x",
                                         "st-abcdefgh.was-01234567-99999999999999999999999",
                                         "stack-0123456789abcdef0123456789abcdef0123456789abcdef"};
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        assert_kind(others[i], STACK_NAME_OTHER);
}

static void a_name_of_now_is_read_back(void **state)
{
    (void)state;
    char name[REFS_NAME_MAX], boot[REFS_BOOT];
    uint64_t before = refs_now(boot);
    stack_name_now(STACK_NAME_WAS, "st-abcdefgh", name);
    struct stack_name n = stack_name_parse(name);
    assert_int_equal(n.kind, STACK_NAME_WAS);
    assert_string_equal(n.id, "st-abcdefgh");
    assert_string_equal(n.boot, boot);
    assert_in_range(n.ticks, before, refs_now(boot));
}

/* What a create is about to use, its upper layer included, has no record until then. */
static void the_grace_is_longer_than_a_create(void **state)
{
    (void)state;
    assert_true(REFS_GRACE_S * 1000 > KEEPER_START_MS + KEEPER_CHECK_MS);
}

struct db {
    char path[40];
    struct layers_place p;
};

static void db_open(struct db *s)
{
    (void)snprintf(s->path, sizeof s->path, "/tmp/hutch-refs-XXXXXX");
    assert_non_null(mkdtemp(s->path));
    s->p = (struct layers_place)LAYERS_PLACE_INIT;
    s->p.stacks = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(s->p.stacks >= 0);
}

static void db_close(struct db *s, const char *const *names)
{
    for (; *names; names++)
        assert_int_equal(unlinkat(s->p.stacks, *names, 0), 0);
    (void)close(s->p.stacks);
    assert_int_equal(rmdir(s->path), 0);
}

static void put(const struct db *s, const char *name, uint8_t first, uint8_t second)
{
    struct stack_file f = {.n = 2, .layer = {{first}, {second}}};
    stack_file_seal(&f);
    int fd = openat(s->p.stacks, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, &f, sizeof f), sizeof f);
    (void)close(fd);
}

static const struct refs_layer *get(const struct refs *r, uint8_t first)
{
    uint8_t digest[SHA256_BYTES] = {first};
    char name[LAYER_NAME];
    sha256_text(digest, name);
    assert_true(layer_name_valid(name));
    return refs_get(r, name);
}

static void layers_are_counted_by_stack_and_held_by_anything(void **state)
{
    (void)state;
    struct db s;
    struct refs r;
    struct err err = {0};
    db_open(&s);
    put(&s, "st-abcdefgh", 1, 2);
    put(&s, "st-ijklmnop", 2, 2);
    put(&s, "st-qrstuvwx.gone-01234567-8", 3, 1);
    put(&s, "st-ijklmnop.was-01234567-8", 4, 2);
    put(&s, "note", 5, 5);
    assert_int_equal(refs_read(&s.p, &r, &err), 0);
    assert_int_equal(get(&r, 1)->stacks, 1);
    assert_int_equal(get(&r, 2)->stacks, 2);
    assert_int_equal(get(&r, 3)->stacks, 0);
    assert_true(get(&r, 3)->held && get(&r, 4)->held);
    assert_null(get(&r, 5));
    assert_int_equal(r.damaged[0], 0);
    refs_done(&r);
    db_close(&s, (const char *const[]){"st-abcdefgh", "st-ijklmnop", "st-qrstuvwx.gone-01234567-8",
                                       "st-ijklmnop.was-01234567-8", "note", NULL});
}

static void a_file_that_cannot_be_read_is_named(void **state)
{
    (void)state;
    struct db s;
    struct refs r;
    struct err err = {0};
    db_open(&s);
    put(&s, "st-abcdefgh", 1, 2);
    put(&s, "st-ijklmnop.was-01234567-8", 3, 4);
    int fd = openat(s.p.stacks, "st-ijklmnop.was-01234567-8", O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "x", 1, 200), 1);
    (void)close(fd);
    assert_int_equal(refs_read(&s.p, &r, &err), 0);
    assert_string_equal(r.damaged, "st-ijklmnop.was-01234567-8");
    assert_non_null(get(&r, 1));
    refs_done(&r);
    db_close(&s, (const char *const[]){"st-abcdefgh", "st-ijklmnop.was-01234567-8", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_say_what_a_file_is),
        cmocka_unit_test(a_name_of_now_is_read_back),
        cmocka_unit_test(the_grace_is_longer_than_a_create),
        cmocka_unit_test(layers_are_counted_by_stack_and_held_by_anything),
        cmocka_unit_test(a_file_that_cannot_be_read_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
