/* Rows of volumes and the hidden sandboxes for their files, with a layer store and a keeper that do what the test says. */
#include "await.h"
#include "sandboxes-world.h"

#include <sqlite3.h>

#include "stacks/stacks-int.h"
#include "volumes/volumes.h"

struct told {
    int calls;
    char id[LAYERS_SANDBOX_MAX], code[32], text[512];
    unsigned status;
};

static void told(void *arg, const struct volume *v, const struct state_failure *failure)
{
    struct told *t = arg;
    t->calls++;
    if (v)
        (void)snprintf(t->id, sizeof t->id, "%s", v->id);
    if (failure) {
        t->status = failure->status;
        (void)snprintf(t->text, sizeof t->text, "%s", failure->text);
        (void)snprintf(t->code, sizeof t->code, "%s", failure->error_code ? failure->error_code : "");
    }
}

static void wait_told(const struct told *t)
{
    AWAIT (t->calls != 0)
        step(1);
    assert_int_equal(t->calls, 1);
}

static struct told ask_quota(struct tenant *t, const char *name, struct volume_quota q)
{
    static struct told answer;
    answer = (struct told){0};
    volume_create(rooms.volumes, t, name, &q, told, &answer);
    wait_told(&answer);
    return answer;
}

static struct told ask(const char *name)
{
    return ask_quota(who.tenant, name, (struct volume_quota){.bytes = 1 << 30});
}

static struct told del(const char *name)
{
    static struct told answer;
    answer = (struct told){0};
    volume_delete(rooms.volumes, volume_find(rooms.volumes, who.tenant, name), told, &answer);
    wait_told(&answer);
    return answer;
}

static void restart_front(void)
{
    stop();
    if (k.held_resize) /* a call that was not answered ends with the front that made it */
        free(k.held_resize_arg);
    k.held_resize = NULL;
    start();
}

/* What volumes count for, and how they are compared with what the layer store has, the room tells the stacks only. */
static struct state_size volumes_size(void) { return state_kept(rooms.stacks, who.tenant).size; }
static size_t volumes_meet(const struct layers_item *v, size_t n, int64_t born, struct strv *foreign)
{
    size_t young = 0;
    for (size_t i = 0; i < rooms.stacks->nowners; i++)
        if (rooms.stacks->owners[i].owner->meet)
            young += rooms.stacks->owners[i].owner->meet(rooms.stacks->owners[i].ctx, v, n, born, foreign);
    return young;
}

static struct told resize(const char *name, struct volume_size size)
{
    static struct told answer;
    answer = (struct told){0};
    volume_resize(rooms.volumes, volume_find(rooms.volumes, who.tenant, name), &size, told, &answer);
    wait_told(&answer);
    return answer;
}

static void test_another_quota_is_kept_when_layers_has_it(void **state)
{
    (void)state;
    assert_int_equal(ask("data").status, 0);
    assert_int_equal(resize("data", (struct volume_size){.has_bytes = true, .bytes = 512 << 20}).status, 0);
    assert_int_equal(k.volume_resizes, 1);
    assert_int_equal(k.volume_bytes, 512 << 20);
    restart_front();
    assert_int_equal(volume_find(rooms.volumes, who.tenant, "data")->bytes, 512 << 20);
    k.volume_error = LAYERS_CONFLICT;
    struct told t = resize("data", (struct volume_size){.has_bytes = true, .bytes = 64 << 20});
    assert_int_equal(t.status, 409);
    assert_string_equal(t.code, "quota_below_use");
    assert_int_equal(volume_find(rooms.volumes, who.tenant, "data")->bytes, 512 << 20);
    assert_int_equal(volumes_size().bytes, 512 << 20);
    k.volume_error = 0;
    /* More than the node gives to others than administrators. */
    t = resize("data", (struct volume_size){.has_bytes = true, .bytes = UINT64_C(1) << 44});
    assert_int_equal(t.status, 403);
    assert_int_equal(k.volume_resizes, 2);
    assert_int_equal(resize("data", (struct volume_size){.has_entries = true, .entries = 100}).status, 0);
    assert_int_equal(volume_find(rooms.volumes, who.tenant, "data")->entries, 100);
    assert_int_equal(k.volume_bytes, 512 << 20);
    assert_int_equal(k.volume_flags, 0);
    /* What is left out stays. */
    assert_int_equal(resize("data", (struct volume_size){.has_bytes = true, .bytes = 256 << 20}).status, 0);
    assert_int_equal(k.volume_entries, 100);
    assert_int_equal(k.volume_flags, LAYERS_KEEP);
    assert_int_equal(volume_find(rooms.volumes, who.tenant, "data")->entries, 100);
}

static void measured(void *arg, const struct layers_reply *r)
{
    assert_int_equal(r->error, LAYERS_OK);
    *(bool *)arg = true;
}

static void test_a_volume_is_made_measured_and_resized_at_the_turn_of_its_tenant(void **state)
{
    (void)state;
    bool told_size = false;
    assert_int_equal(ask("data").status, 0);
    assert_string_equal(k.owner, who.tenant->id);
    k.owner[0] = '\0';
    volume_measure(rooms.volumes, volume_find(rooms.volumes, who.tenant, "data"), measured, &told_size);
    AWAIT (told_size)
        step(1);
    assert_true(told_size);
    assert_string_equal(k.owner, who.tenant->id);
    k.owner[0] = '\0';
    assert_int_equal(resize("data", (struct volume_size){.has_bytes = true, .bytes = 512 << 20}).status, 0);
    assert_string_equal(k.owner, who.tenant->id);
}

/* A resize that the layer store has, and its answer. */
static void resize_held(struct told *t, uint64_t bytes)
{
    struct volume_size size = {.has_bytes = true, .bytes = bytes};
    *t = (struct told){0};
    k.hold_resize = true;
    k.held_resize = NULL;
    volume_resize(rooms.volumes, volume_find(rooms.volumes, who.tenant, "data"), &size, told, t);
    AWAIT (k.held_resize)
        step(1);
    assert_non_null(k.held_resize);
}

static void answer_resize(uint32_t error)
{
    struct layers_reply r = {.error = error, .text = "because"};
    layersc_done *done = k.held_resize;
    k.held_resize = NULL;
    done(k.held_resize_arg, &r, -1);
}

static void test_no_more_is_in_force_than_counts_whatever_ends_front(void **state)
{
    (void)state;
    struct told t;
    assert_int_equal(ask("data").status, 0);
    resize_held(&t, UINT64_C(2) << 30);
    restart_front(); /* the layer store may have done it */
    assert_int_equal(volumes_size().bytes, UINT64_C(2) << 30);
    resize_held(&t, UINT64_C(2) << 30); /* the client asks again */
    answer_resize(LAYERS_OK);
    wait_told(&t);
    resize_held(&t, UINT64_C(3) << 30);
    answer_resize(LAYERS_NO_SPACE);
    wait_told(&t);
    assert_int_equal(t.status, 507);
    assert_int_equal(volumes_size().bytes, UINT64_C(2) << 30);
    restart_front();
    assert_int_equal(volumes_size().bytes, UINT64_C(2) << 30);
    resize_held(&t, 1 << 30);
    restart_front(); /* or not */
    assert_int_equal(volumes_size().bytes, UINT64_C(2) << 30);
    resize_held(&t, 1 << 30);
    answer_resize(LAYERS_OK);
    wait_told(&t);
    assert_int_equal(volumes_size().bytes, 1 << 30);
}

/* The same for the number of files, of which one may grow while the other shrinks. */
static void test_entries_count_before_they_are_in_force(void **state)
{
    (void)state;
    static struct told t;
    assert_int_equal(ask("data").status, 0);
    const uint64_t gib = UINT64_C(1) << 30, standard = gib / 16384;
    assert_int_equal(volumes_size().entries, standard);
    assert_int_equal(resize("data", (struct volume_size){.has_entries = true, .entries = 1000}).status, 0);
    assert_int_equal(volumes_size().entries, 1000);
    struct volume_size size = {.has_bytes = true, .bytes = gib / 2, .has_entries = true, .entries = 5000};
    k.hold_resize = true;
    t = (struct told){0};
    volume_resize(rooms.volumes, volume_find(rooms.volumes, who.tenant, "data"), &size, told, &t);
    AWAIT (k.held_resize)
        step(1);
    restart_front(); /* the layer store may have done it, or not */
    assert_int_equal(volumes_size().entries, 5000);
    assert_int_equal(volumes_size().bytes, gib);
    k.hold_resize = false;
    assert_int_equal(resize("data", size).status, 0); /* the client asks again */
    assert_int_equal(volumes_size().entries, 5000);
    assert_int_equal(volumes_size().bytes, gib / 2);
    /* More is refused where there is no room, and what is not changed is no reason to. */
    who.tenant->quota.state_entries = 4000;
    struct told full = resize("data", (struct volume_size){.has_entries = true, .entries = 6000});
    assert_int_equal(full.status, 429);
    assert_string_equal(full.code, "quota_exceeded");
    assert_int_equal(resize("data", (struct volume_size){.has_entries = true, .entries = 3000}).status, 0);
    /* An image's would follow its bytes. */
    full = resize("data", (struct volume_size){.has_bytes = true, .bytes = gib});
    assert_int_equal(full.status, 429);
    who.tenant->quota.state_entries = 6000;
    assert_int_equal(resize("data", (struct volume_size){.has_bytes = true, .bytes = gib}).status, 0);
    assert_int_equal(volumes_size().entries, 3000);
    who.tenant->quota.state_entries = 0;
}

static void run_sql(const char *sql)
{
    sqlite3 *db = NULL;
    char path[sizeof rooms.dir + 16];
    (void)snprintf(path, sizeof path, "%s/" DB_FILE, rooms.dir);
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    (void)sqlite3_busy_timeout(db, 60000);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void test_a_volume_that_could_not_be_removed_gets_its_new_quota(void **state)
{
    (void)state;
    struct told t, gone = {0};
    assert_int_equal(ask("data").status, 0);
    run_sql("CREATE TRIGGER no BEFORE DELETE ON volumes BEGIN SELECT RAISE(ABORT, 'no'); END");
    resize_held(&t, 512 << 20);
    volume_delete(rooms.volumes, volume_find(rooms.volumes, who.tenant, "data"), told, &gone);
    answer_resize(LAYERS_OK);
    wait_told(&t);
    assert_int_equal(t.status, 404);
    wait_told(&gone);
    assert_int_equal(gone.status, 503);
    assert_int_equal(volumes_size().bytes, 1 << 30);
    resize_held(&t, UINT64_C(2) << 30);
    answer_resize(LAYERS_OK);
    wait_told(&t);
    assert_int_equal(t.status, 0);
    assert_int_equal(volumes_size().bytes, UINT64_C(2) << 30);
}

static void test_a_volume_is_there_once_layers_has_made_it(void **state)
{
    (void)state;
    k.volume_error = LAYERS_NO_SPACE;
    struct told t = ask("data");
    assert_int_equal(t.status, 507);
    assert_null(volume_find(rooms.volumes, who.tenant, "data"));
    k.volume_error = 0;
    t = ask("data");
    assert_int_equal(t.status, 0);
    const struct volume *v = volume_find(rooms.volumes, who.tenant, "data");
    assert_ptr_equal(v, volume_find(rooms.volumes, who.tenant, t.id));
    assert_int_equal(strlen(v->id), 24);
    assert_int_equal(strlen(v->token), VOLUME_TOKEN);
    assert_int_equal(volumes_size().bytes, 1 << 30);
    char token[VOLUME_TOKEN + 1];
    memcpy(token, v->token, sizeof token);
    restart_front();
    v = volume_find(rooms.volumes, who.tenant, "data");
    assert_non_null(v);
    assert_string_equal(v->token, token);
    assert_int_equal(v->bytes, 1 << 30);
}

static void test_names_are_checked_and_taken_once_per_tenant(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "a b", "a/b", "../x", "\xc3\xbc", "a.b"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(ask(bad[i]).status, 400);
    char longest[130];
    memset(longest, 'x', sizeof longest);
    longest[128] = '\0';
    assert_int_equal(ask(longest).status, 400);
    longest[127] = '\0';
    assert_int_equal(ask(longest).status, 0);
    assert_int_equal(ask("data").status, 0);
    assert_int_equal(ask("data").status, 409);
    assert_int_equal(k.volume_makes, 2);
    struct tenant other = {.id = "other"};
    assert_null(volume_find(rooms.volumes, &other, "data"));
    assert_null(volume_find(rooms.volumes, &other, volume_find(rooms.volumes, who.tenant, "data")->id));
    rooms.config.volumes_per_tenant = 2;
    struct told t = ask("third");
    assert_int_equal(t.status, 429);
    assert_string_equal(t.code, "quota_exceeded");
}

static void test_quotas_of_volumes_count_against_what_a_tenant_may_keep(void **state)
{
    (void)state;
    rooms.config.state_bytes = UINT64_C(3) << 30;
    assert_int_equal(ask_quota(who.tenant, "a", (struct volume_quota){.bytes = UINT64_C(2) << 30}).status, 0);
    struct told t = ask_quota(who.tenant, "b", (struct volume_quota){.bytes = UINT64_C(2) << 30});
    assert_int_equal(t.status, 429);
    assert_int_equal(ask_quota(who.tenant, "b", (struct volume_quota){.bytes = UINT64_C(1) << 30}).status, 0);
    assert_int_equal(del("a").status, 0);
    assert_int_equal(volumes_size().bytes, 1 << 30);
}

static void test_a_quota_somebody_chose_is_enforced_or_refused(void **state)
{
    (void)state;
    k.quota_error = LAYERS_HOST;
    struct told t = ask_quota(who.tenant, "chosen", (struct volume_quota){.given = true, .bytes = 1 << 30});
    assert_int_equal(t.status, 501);
    assert_string_equal(t.code, "quota_unavailable");
    assert_non_null(strstr(t.text, "because"));
    assert_null(volume_find(rooms.volumes, who.tenant, "chosen"));
    assert_int_equal(ask("default").status, 0);
    assert_int_equal(volume_find(rooms.volumes, who.tenant, "default")->bytes, 0);
    assert_int_equal(k.volume_bytes, 0);
}

static void test_a_tenant_cannot_choose_more_than_it_was_given(void **state)
{
    (void)state;
    struct volume_quota none = {.given = true}, more = {.given = true, .bytes = UINT64_C(20) << 30};
    rooms.config.volume_bytes = UINT64_C(10) << 30;
    struct told t = ask_quota(who.tenant, "a", none);
    assert_int_equal(t.status, 403);
    assert_non_null(strstr(t.text, "volumes.quota"));
    assert_int_equal(ask_quota(who.tenant, "a", more).status, 403);
    rooms.config.volume_bytes = 0;
    assert_int_equal(ask_quota(who.tenant, "more", more).status, 0);
    assert_int_equal(ask_quota(who.tenant, "none", none).status, 0);
    who.tenant->quota.state_bytes = UINT64_C(100) << 30;
    assert_int_equal(ask_quota(who.tenant, "a", none).status, 403);
    none.admin = true;
    assert_int_equal(ask_quota(who.tenant, "a", none).status, 0);
    rooms.config.volume_bytes = UINT64_C(10) << 30;
    more.admin = true;
    assert_int_equal(ask_quota(who.tenant, "b", more).status, 0);
}

static struct answer sandbox_with(const char *name)
{
    struct sandbox_mount m = {.place = "/data"};
    (void)snprintf(m.name, sizeof m.name, "%s", name);
    assert_true(volume_find_mount(rooms.volumes, who.tenant, &m));
    struct sandbox_spec s = host_spec();
    s.desc.mounts = &m;
    s.desc.nmounts = 1;
    return make(&s);
}

static void test_a_volume_that_a_sandbox_has_stays(void **state)
{
    (void)state;
    assert_int_equal(ask("data").status, 0);
    struct answer a = sandbox_with("data");
    char users[2][SANDBOX_ID_MAX];
    assert_int_equal(volume_users(rooms.volumes, volume_find(rooms.volumes, who.tenant, "data"), users, 2), 1);
    assert_string_equal(users[0], a.id);
    assert_string_equal(k.last.volume[0].place, "/data");
    struct told t = del("data");
    assert_int_equal(t.status, 409);
    assert_non_null(strstr(t.text, a.id));
    k.items[0] = (struct keeper_item){.alive = 1, .deadline_ms = UINT64_MAX};
    (void)snprintf(k.items[0].id, sizeof k.items[0].id, "%s", a.id);
    k.nitems = 1;
    restart_front();
    sandboxes_keeper_up(rooms.sandboxes);
    step(5);
    assert_int_equal(del("data").status, 409);
    sandbox_kill(rooms.sandboxes, sandbox_find(rooms.sandboxes, a.id), "test", NULL, NULL);
    step(5);
    assert_int_equal(del("data").status, 0);
    assert_int_equal(k.volume_drops, 1);
    assert_null(volume_find(rooms.volumes, who.tenant, "data"));
    restart_front();
    assert_null(volume_find(rooms.volumes, who.tenant, "data"));
    struct sandbox_mount m = {.name = "data"};
    assert_false(volume_find_mount(rooms.volumes, who.tenant, &m));
}

/* Its template may be built for minutes. */
static void test_a_volume_that_went_while_a_sandbox_waited_is_not_given_to_it(void **state)
{
    (void)state;
    struct sandbox_mount m = {.name = "data", .place = "/data"};
    struct sandbox_spec s = host_spec();
    struct answer a = {0};
    struct told gone = {0};
    assert_int_equal(ask("data").status, 0);
    assert_true(volume_find_mount(rooms.volumes, who.tenant, &m));
    s.desc.mounts = &m;
    s.desc.nmounts = 1;
    sandbox_create(rooms.sandboxes, &who, &s, created, &a);
    volume_delete(rooms.volumes, volume_find(rooms.volumes, who.tenant, "data"), told, &gone);
    wait_for(&a);
    assert_int_equal(a.status, 404);
    assert_non_null(strstr(a.text, "data"));
    assert_int_equal(k.creates, 0);
    wait_told(&gone);
    assert_int_equal(gone.status, 0);
}

/* Another tenant may be given the same name. The tenant goes while the layer store makes the volume, or while its row is on
 * the way to the database. */
static void test_nothing_is_left_of_a_volume_whose_tenant_went_while_it_was_made(void **state)
{
    (void)state;
    k.hold_volume_make = true;
    for (int row = 0; row < 2; row++) {
        struct told t = {0};
        k.volume_drops = 0;
        volume_create(rooms.volumes, new_tenant("acme"), "data", &(struct volume_quota){.bytes = 1 << 30}, told, &t);
        tenant_remove(rooms.tenants, "acme", NULL, NULL);
        AWAIT (row || !tenants_find(rooms.tenants, "acme"))
            step(1);
        k.held_volume_make(k.held_volume_make_arg, &(struct layers_reply){0}, -1);
        wait_told(&t);
        assert_int_equal(t.status, 503);
        assert_null(tenants_find(rooms.tenants, "acme"));
        assert_int_equal(k.volume_drops, 1);
        restart_front();
        assert_null(volume_find(rooms.volumes, new_tenant("acme"), "data"));
    }
}

static void test_places_without_a_row_are_dropped_when_they_are_old(void **state)
{
    (void)state;
    _cleanup_strv_ struct strv foreign = {0};
    struct told t = ask("data");
    int64_t now = (int64_t)time(NULL);
    struct layers_item items[] = {{.id = "vol-aaaaaaaaaaaaaaaaaaaa", .created_unix = now - 120},
                                  {.id = "vol-bbbbbbbbbbbbbbbbbbbb", .created_unix = now - 5},
                                  {.id = "st-cccccccccccc", .created_unix = now - 120},
                                  {.created_unix = now - 120}};
    (void)snprintf(items[3].id, sizeof items[3].id, "%s", t.id);
    assert_int_equal(volumes_meet(items, 4, now - 60, &foreign), 1);
    assert_int_equal(foreign.n, 1); /* older than the database itself: kept, and told */
    assert_string_equal(foreign.v[0], "vol-aaaaaaaaaaaaaaaaaaaa");
    assert_int_equal(k.volume_drops, 0);
    assert_int_equal(volumes_meet(items, 4, now - 3600, &foreign), 1);
    assert_int_equal(foreign.n, 1);
    assert_int_equal(k.volume_drops, 1);
    assert_string_equal(k.volume, "vol-aaaaaaaaaaaaaaaaaaaa");
}

/* --- turns ----------------------------------------------------------------------------------------------------------- */

struct turned {
    int calls;
    char sandbox[SANDBOX_ID_MAX];
    unsigned status;
    struct volume_turn *turn;
};

static void turned(void *arg, const char *sandbox, const struct state_failure *failure)
{
    struct turned *t = arg;
    t->calls++;
    if (sandbox)
        (void)snprintf(t->sandbox, sizeof t->sandbox, "%s", sandbox);
    t->status = failure ? failure->status : 0;
}

static void take_of(struct turned *t, struct tenant *of, const char *name)
{
    *t = (struct turned){0};
    t->turn = volume_turn(rooms.volumes, volume_find(rooms.volumes, of, name), turned, t);
    assert_int_equal(t->calls, 0);
}

static void take(struct turned *t, const char *name) { take_of(t, who.tenant, name); }

/* Volumes "v0" and so on, so many per tenant as may be open at once. */
static struct tenant tenants[VOLUME_SANDBOXES_MAX / VOLUME_SANDBOXES_PER_TENANT + 1];

static struct tenant *tenant_of(int i)
{
    struct tenant *t = &tenants[i / VOLUME_SANDBOXES_PER_TENANT];
    (void)snprintf(t->id, sizeof t->id, "t%d", i / VOLUME_SANDBOXES_PER_TENANT);
    return t;
}

static void make_volume(int i)
{
    char name[8];
    (void)snprintf(name, sizeof name, "v%d", i);
    assert_int_equal(ask_quota(tenant_of(i), name, (struct volume_quota){.bytes = 1 << 30}).status, 0);
}

static void take_volume(struct turned *t, int i)
{
    char name[8];
    (void)snprintf(name, sizeof name, "v%d", i);
    take_of(t, tenant_of(i), name);
}

static void test_who_works_on_a_volume_shares_a_hidden_sandbox(void **state)
{
    (void)state;
    struct turned a, b;
    rooms.config.strict = true;
    assert_int_equal(ask("data").status, 0);
    take(&a, "data");
    take(&b, "data");
    step(20);
    assert_int_equal(a.calls, 1);
    assert_int_equal(b.calls, 1);
    assert_string_equal(a.sandbox, b.sandbox);
    assert_int_equal(k.creates, 1);
    assert_string_equal(k.template, STACK_EMPTY);
    assert_string_equal(k.user, "root");
    assert_string_equal(k.last.volume[0].place, VOLUME_PLACE);
    assert_true(k.last.flags & KEEPER_BUILD);
    assert_false(k.last.flags & KEEPER_STRICT);
    /* It counts for nobody, and does not keep the volume. */
    assert_int_equal(volume_users(rooms.volumes, volume_find(rooms.volumes, who.tenant, "data"), NULL, 0), 0);
    volume_turn_end(a.turn);
    step(5);
    clock_add += VOLUME_SANDBOX_IDLE_MS * 5; /* one at work is kept, and its end put off */
    step(5);
    assert_int_equal(k.kills, 0);
    assert_int_equal(k.deadlines, 1);
    volume_turn_end(b.turn);
    step(5);
    assert_int_equal(k.kills, 0);
    clock_add += VOLUME_SANDBOX_IDLE_MS + 1000;
    step(10);
    assert_int_equal(k.kills, 1);
    take(&a, "data");
    step(20);
    assert_int_equal(k.creates, 2);
    volume_turn_end(a.turn);
}

static void test_a_hidden_sandbox_that_dies_is_made_again(void **state)
{
    (void)state;
    struct turned a, b;
    assert_int_equal(ask("data").status, 0);
    take(&a, "data");
    step(20);
    struct keeper_death d = {.cause = KEEPER_DIED_OOM};
    (void)snprintf(d.id, sizeof d.id, "%s", a.sandbox);
    sandboxes_keeper_died(rooms.sandboxes, &d);
    take(&b, "data");
    step(20);
    assert_int_equal(b.calls, 1);
    assert_string_not_equal(a.sandbox, b.sandbox);
    volume_turn_end(a.turn);
    volume_turn_end(b.turn);
}

static void test_more_volumes_than_hidden_sandboxes_wait_for_idle_ones(void **state)
{
    (void)state;
    struct turned t[VOLUME_SANDBOXES_MAX], more;
    for (int i = 0; i <= VOLUME_SANDBOXES_MAX; i++)
        make_volume(i);
    for (int i = 0; i < VOLUME_SANDBOXES_MAX; i++)
        take_volume(&t[i], i);
    step(60);
    assert_int_equal(k.creates, VOLUME_SANDBOXES_MAX);
    take_volume(&more, VOLUME_SANDBOXES_MAX);
    step(10);
    assert_int_equal(more.calls, 0);
    volume_turn_end(t[3].turn);
    step(20);
    assert_int_equal(more.calls, 1);
    assert_int_equal(more.status, 0);
    assert_string_equal(k.killed, t[3].sandbox);
    volume_turn_end(more.turn);
    for (int i = 0; i < VOLUME_SANDBOXES_MAX; i++)
        if (i != 3)
            volume_turn_end(t[i].turn);
}

static void test_a_busy_hidden_sandbox_gives_its_place_to_who_waits(void **state)
{
    (void)state;
    struct turned t[VOLUME_SANDBOXES_MAX], late, more;
    for (int i = 0; i <= VOLUME_SANDBOXES_MAX; i++) {
        make_volume(i);
        if (i < VOLUME_SANDBOXES_MAX)
            take_volume(&t[i], i);
    }
    step(60);
    take_volume(&more, VOLUME_SANDBOXES_MAX);
    clock_add += 1100;
    step(10);
    /* One of them begins nothing more: what comes for it waits, and goes on when the other had its turn. */
    for (int i = 0; i < VOLUME_SANDBOXES_MAX; i++)
        volume_turn_end(t[i].turn);
    take_volume(&late, 0);
    step(30);
    assert_int_equal(more.calls, 1);
    assert_int_equal(more.status, 0);
    volume_turn_end(more.turn);
    clock_add += 1100;
    step(30);
    assert_int_equal(late.calls, 1);
    assert_int_equal(late.status, 0);
    volume_turn_end(late.turn);
}

static void test_work_without_end_does_not_keep_a_place_that_others_wait_for(void **state)
{
    (void)state;
    struct turned t[VOLUME_SANDBOXES_MAX], more;
    for (int i = 0; i <= VOLUME_SANDBOXES_MAX; i++) {
        make_volume(i);
        if (i < VOLUME_SANDBOXES_MAX)
            take_volume(&t[i], i);
    }
    step(60);
    clock_add += 1100;
    take_volume(&more, VOLUME_SANDBOXES_MAX);
    step(10);
    assert_int_equal(k.kills, 0);
    clock_add += VOLUME_YIELD_MS;
    step(20);
    assert_int_equal(k.kills, 1);
    assert_int_equal(more.calls, 1);
    assert_int_equal(more.status, 0);
    volume_turn_end(more.turn);
    for (int i = 0; i < VOLUME_SANDBOXES_MAX; i++)
        volume_turn_end(t[i].turn);
}

static void test_a_tenant_has_its_share_of_hidden_sandboxes(void **state)
{
    (void)state;
    struct turned a[VOLUME_SANDBOXES_PER_TENANT + 1], other;
    static const char *const names[] = {"a", "b", "c"};
    make_volume(0);
    for (int i = 0; i <= VOLUME_SANDBOXES_PER_TENANT; i++) {
        assert_int_equal(ask(names[i]).status, 0);
        take(&a[i], names[i]);
    }
    step(30);
    assert_int_equal(k.creates, VOLUME_SANDBOXES_PER_TENANT);
    assert_int_equal(a[VOLUME_SANDBOXES_PER_TENANT].calls, 0);
    take_volume(&other, 0); /* it does not stand in the line of somebody who has enough */
    step(20);
    assert_int_equal(other.calls, 1);
    volume_turn_end(a[0].turn);
    clock_add += 1100;
    step(20);
    assert_int_equal(a[VOLUME_SANDBOXES_PER_TENANT].calls, 1);
    assert_int_equal(a[VOLUME_SANDBOXES_PER_TENANT].status, 0);
    volume_turn_end(other.turn);
    for (int i = 1; i <= VOLUME_SANDBOXES_PER_TENANT; i++)
        volume_turn_end(a[i].turn);
}

static void test_who_waits_too_long_or_for_nothing_is_told(void **state)
{
    (void)state;
    struct turned a;
    assert_int_equal(ask("data").status, 0);
    k.create_error = KEEPER_FAILED;
    take(&a, "data");
    step(20);
    assert_int_equal(a.calls, 1);
    assert_int_equal(a.status, 500);
    k.create_error = 0;
    k.hold_create = true;
    take(&a, "data");
    step(10);
    assert_int_equal(a.calls, 0);
    clock_add += VOLUME_WAIT_MS;
    step(20);
    assert_int_equal(a.calls, 1);
    assert_int_equal(a.status, 503);
}

static void test_a_volume_under_work_can_be_removed(void **state)
{
    (void)state;
    struct turned a;
    assert_int_equal(ask("data").status, 0);
    take(&a, "data");
    step(20);
    assert_int_equal(a.calls, 1);
    struct told t = del("data");
    assert_int_equal(t.status, 0);
    assert_string_equal(k.killed, a.sandbox);
    assert_int_equal(k.volume_drops, 1);
    volume_turn_end(a.turn);
}

static void test_who_comes_while_the_size_changes_has_his_turn_after_that(void **state)
{
    (void)state;
    struct turned a, b;
    struct told t;
    assert_int_equal(ask("data").status, 0);
    take(&a, "data");
    step(20);
    volume_turn_end(a.turn);
    resize_held(&t, UINT64_C(2) << 30);
    answer_resize(LAYERS_BUSY); /* the hidden sandbox has it, and ends */
    take(&b, "data");
    step(20);
    assert_int_equal(k.kills, 1);
    answer_resize(LAYERS_OK);
    wait_told(&t);
    assert_int_equal(t.status, 0);
    step(20);
    assert_int_equal(b.calls, 1);
    assert_int_equal(b.status, 0);
    volume_turn_end(b.turn);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_a_volume_is_there_once_layers_has_made_it),
        TEST(test_another_quota_is_kept_when_layers_has_it),
        TEST(test_a_volume_is_made_measured_and_resized_at_the_turn_of_its_tenant),
        TEST(test_entries_count_before_they_are_in_force),
        TEST(test_no_more_is_in_force_than_counts_whatever_ends_front),
        TEST(test_a_volume_that_could_not_be_removed_gets_its_new_quota),
        TEST(test_names_are_checked_and_taken_once_per_tenant),
        TEST(test_quotas_of_volumes_count_against_what_a_tenant_may_keep),
        TEST(test_a_quota_somebody_chose_is_enforced_or_refused),
        TEST(test_a_tenant_cannot_choose_more_than_it_was_given),
        TEST(test_a_volume_that_a_sandbox_has_stays),
        TEST(test_a_volume_that_went_while_a_sandbox_waited_is_not_given_to_it),
        TEST(test_nothing_is_left_of_a_volume_whose_tenant_went_while_it_was_made),
        TEST(test_places_without_a_row_are_dropped_when_they_are_old),
        TEST(test_who_works_on_a_volume_shares_a_hidden_sandbox),
        TEST(test_a_hidden_sandbox_that_dies_is_made_again),
        TEST(test_more_volumes_than_hidden_sandboxes_wait_for_idle_ones),
        TEST(test_a_busy_hidden_sandbox_gives_its_place_to_who_waits),
        TEST(test_work_without_end_does_not_keep_a_place_that_others_wait_for),
        TEST(test_a_tenant_has_its_share_of_hidden_sandboxes),
        TEST(test_who_waits_too_long_or_for_nothing_is_told),
        TEST(test_a_volume_under_work_can_be_removed),
        TEST(test_who_comes_while_the_size_changes_has_his_turn_after_that),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
