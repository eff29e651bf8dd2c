/* Templates as rows: who finds which, tags, what is dropped, and their configuration. */
#include "await.h"
#include "snapshots/snapshots.h"

#include "sandboxes-world.h"
#include "sandboxes/sandboxes-int.h"

struct put {
    int calls;
    unsigned status;
    char id[40];
};
static void was_put(void *arg, const struct template *t, const struct state_failure *failure)
{
    struct put *p = arg;
    p->calls++;
    p->status = failure ? failure->status : 0;
    if (t)
        (void)snprintf(p->id, sizeof p->id, "%s", t->id);
}
static void was_stored(void *arg, const struct err *err)
{
    assert_null(err);
    *(bool *)arg = true;
}
/* The node starts again and finds such a row. */
static void start_with(struct db_template *row, const char *const *tags, size_t n)
{
    bool done = false;
    for (size_t i = 0; i < n; i++)
        strv_add(&row->tags, tags[i]);
    db_template_put(rooms.db, row, was_stored, &done);
    AWAIT (done)
        step(1);
    strv_done(&row->tags);
    stop();
    start();
}
static void await(struct put *p)
{
    AWAIT (p->calls)
        step(1);
    assert_int_equal(p->calls, 1);
}
static struct put add(struct tenant *t, const char *name, const char *tag, const char *stack)
{
    struct put p = {0};
    struct template_new n = {
        .name = name, .tag = tag, .stack = stack, .tenant = t, .kind = TEMPLATE_BUILT, .bytes = 10};
    template_put(rooms.templates, &n, was_put, &p);
    assert_int_equal(p.calls, 0);
    await(&p);
    return p;
}
static const char *stack_of(const struct tenant *t, const char *name)
{
    const struct template_tag *tag;
    return template_find(rooms.templates, t, name, &tag) && tag ? tag->stack : "";
}

static void test_names_tags_and_ids_find_it(void **state)
{
    (void)state;
    struct put p = add(who.tenant, "web", "v1", "st-aaaaaaaa"), q = add(who.tenant, "web", NULL, "st-bbbbbbbb");
    assert_string_equal(p.id, q.id);
    assert_string_equal(stack_of(who.tenant, "web"), "st-bbbbbbbb");
    assert_string_equal(stack_of(who.tenant, "web:v1"), "st-aaaaaaaa");
    assert_string_equal(stack_of(who.tenant, "default/web:v1"), "st-aaaaaaaa");
    assert_string_equal(stack_of(who.tenant, p.id), "st-bbbbbbbb");
    assert_string_equal(stack_of(who.tenant, "web:v9"), "");
    static const char *const bad[] = {"", "/", "/web", ":v1", "nobody/web", "we", "web/v1/x"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_null(template_find(rooms.templates, who.tenant, bad[i], NULL));
    stop();
    start();
    assert_string_equal(stack_of(who.tenant, "web:v1"), "st-aaaaaaaa");
    assert_int_equal(template_find(rooms.templates, who.tenant, "web", NULL)->builds, 2);
}

static void test_others_find_what_is_public_and_nothing_else(void **state)
{
    (void)state;
    struct tenant *o = new_tenant("other");
    struct put p = add(who.tenant, "web", NULL, "st-aaaaaaaa"), done = {0};
    assert_null(template_find(rooms.templates, o, "web", NULL));
    assert_null(template_find(rooms.templates, o, p.id, NULL));
    assert_null(template_find(rooms.templates, o, "default/web", NULL));
    template_set(rooms.templates, template_find(rooms.templates, who.tenant, "web", NULL),
                 &(struct template_settings){.public = TEMPLATE_ON}, was_put, &done);
    await(&done);
    assert_null(template_find(rooms.templates, o, "web", NULL)); /* a plain name is never another tenant's */
    assert_string_equal(stack_of(o, p.id), "st-aaaaaaaa");
    assert_string_equal(stack_of(o, "default/web"), "st-aaaaaaaa");
    (void)add(o, "web", NULL, "st-bbbbbbbb");
    assert_string_equal(stack_of(o, "web"), "st-bbbbbbbb"); /* one's own first */
    (void)add(NULL, "shared", NULL, "st-cccccccc");         /* the node's own is everybody's */
    assert_string_equal(stack_of(o, "shared"), "st-cccccccc");
}

/* What was switched stays through builds with another configuration and through a restart; what is not named stays, too. */
static void test_settings_outlive_builds_and_restarts(void **state)
{
    (void)state;
    struct put p = add(who.tenant, "web", NULL, "st-aaaaaaaa"), done = {0};
    template_set(rooms.templates, template_find(rooms.templates, who.tenant, "web", NULL),
                 &(struct template_settings){.history = TEMPLATE_ON}, was_put, &done);
    await(&done);
    assert_true(template_find(rooms.templates, who.tenant, p.id, NULL)->config.history);
    assert_false(template_find(rooms.templates, who.tenant, p.id, NULL)->public);
    struct template_config as_web = {.user = (char[]){"web"}};
    struct template_new n = {.name = "web",
                             .stack = "st-bbbbbbbb",
                             .tenant = who.tenant,
                             .kind = TEMPLATE_BUILT,
                             .config = &as_web,
                             .bytes = 1};
    done = (struct put){0};
    template_put(rooms.templates, &n, was_put, &done);
    await(&done);
    assert_string_equal(template_find(rooms.templates, who.tenant, "web", NULL)->config.user, "web");
    assert_true(template_find(rooms.templates, who.tenant, "web", NULL)->config.history);
    done = (struct put){0};
    template_set(rooms.templates, template_find(rooms.templates, who.tenant, "web", NULL),
                 &(struct template_settings){.public = TEMPLATE_ON}, was_put, &done);
    await(&done);
    stop();
    start();
    const struct template *t = template_find(rooms.templates, who.tenant, "web", NULL);
    assert_non_null(t);
    assert_true(t->config.history && t->public);
    assert_string_equal(t->config.user, "web");
    done = (struct put){0};
    template_set(rooms.templates, t, &(struct template_settings){.history = TEMPLATE_OFF}, was_put, &done);
    await(&done);
    t = template_find(rooms.templates, who.tenant, "web", NULL);
    assert_true(!t->config.history && t->public);
    assert_string_equal(t->config.user, "web");
}

static void test_nobody_takes_over_the_name_of_a_nodes_template(void **state)
{
    (void)state;
    struct tenant *o = new_tenant("other");
    struct put done = {0};
    (void)mkdirat(rooms.dir_fd, "base", 0755);
    (void)add(o, "base", NULL, "st-aaaaaaaa");
    template_set(rooms.templates, template_find(rooms.templates, o, "base", NULL),
                 &(struct template_settings){.public = TEMPLATE_ON}, was_put, &done);
    await(&done);
    assert_null(template_find(rooms.templates, who.tenant, "base", NULL));
    assert_string_equal(stack_of(who.tenant, "other/base"), "st-aaaaaaaa");
}

static void test_a_name_cannot_stand_in_for_an_id(void **state)
{
    (void)state;
    struct tenant *o = new_tenant("other");
    struct put p = add(who.tenant, "web", NULL, "st-aaaaaaaa"), q = add(o, p.id, NULL, "st-bbbbbbbb");
    assert_int_equal(q.status, 400);
    q = add(who.tenant, p.id, NULL, "st-bbbbbbbb");
    assert_int_equal(q.status, 400);
    assert_string_equal(stack_of(who.tenant, p.id), "st-aaaaaaaa");
    /* A row of that name, from before they were refused. */
    struct db_template row = {.id = "bbbbbbbbbbbbbbbbbbbb",
                              .name = p.id,
                              .tenant = "default",
                              .source = "",
                              .config = "",
                              .kind = TEMPLATE_BUILT,
                              .public = true};
    static const char *const tags[] = {"default", "b", "st-cccccccc", "5"};
    start_with(&row, tags, ARRAY_LEN(tags));
    assert_string_equal(stack_of(who.tenant, "bbbbbbbbbbbbbbbbbbbb"), "st-cccccccc");
    assert_string_equal(stack_of(who.tenant, p.id), "st-aaaaaaaa");
}

static void test_a_queued_tag_keeps_its_stack(void **state)
{
    (void)state;
    struct put a = {0}, b = {0};
    (void)add(who.tenant, "web", "v1", "st-aaaaaaaa");
    (void)add(who.tenant, "web", NULL, "st-bbbbbbbb");
    const struct template_tag *from = NULL;
    const struct template *t = template_find(rooms.templates, who.tenant, "web:v1", &from);
    template_remove(rooms.templates, t, "v1", was_put, &a);
    template_tag(rooms.templates, t, from, "v2", was_put, &b);
    state_drop(rooms.stacks, "st-aaaaaaaa");
    await(&a);
    await(&b);
    step(5);
    assert_int_equal(b.status, 0);
    assert_false(was_dropped("st-aaaaaaaa"));
    assert_string_equal(stack_of(who.tenant, "web:v2"), "st-aaaaaaaa");
    /* The whole row goes before it: so does the stack. */
    struct put c = {0}, d = {0};
    t = template_find(rooms.templates, who.tenant, "web:v2", &from);
    template_remove(rooms.templates, t, NULL, was_put, &c);
    template_tag(rooms.templates, t, from, "v3", was_put, &d);
    await(&c);
    await(&d);
    assert_int_equal(d.status, 404);
    AWAIT (was_dropped("st-aaaaaaaa"))
        step(1);
    assert_true(was_dropped("st-aaaaaaaa"));
}

static void test_bytes_of_all_tags_count(void **state)
{
    (void)state;
    struct put a = {0};
    (void)add(who.tenant, "web", "v1", "st-aaaaaaaa");
    (void)add(who.tenant, "web", NULL, "st-bbbbbbbb");
    const struct template *t = template_find(rooms.templates, who.tenant, "web", NULL);
    template_tag(rooms.templates, t, &t->tags[0], "again", was_put, &a);
    await(&a);
    assert_int_equal(state_kept(rooms.stacks, who.tenant).size.bytes, 20);
    stop();
    start();
    assert_int_equal(state_kept(rooms.stacks, who.tenant).size.bytes, 20);
    assert_true(template_find(rooms.templates, who.tenant, "web", NULL)->tags[0].created_unix_ms > 0);
}

static void test_stacks_go_when_their_last_tag_does(void **state)
{
    (void)state;
    struct put a = {0}, b = {0}, c = {0};
    (void)add(who.tenant, "web", NULL, "st-aaaaaaaa");
    const struct template *t = template_find(rooms.templates, who.tenant, "web", NULL);
    template_tag(rooms.templates, t, &t->tags[0], "v1", was_put, &a);
    await(&a);
    assert_string_equal(stack_of(who.tenant, "web:v1"), "st-aaaaaaaa");
    template_remove(rooms.templates, template_find(rooms.templates, who.tenant, "web", NULL), "default", was_put, &b);
    await(&b);
    step(5);
    assert_false(was_dropped("st-aaaaaaaa"));
    assert_string_equal(stack_of(who.tenant, "web"), "");
    template_remove(rooms.templates, template_find(rooms.templates, who.tenant, "web", NULL), "v1", was_put, &c);
    await(&c);
    step(5);
    assert_true(was_dropped("st-aaaaaaaa"));
    assert_null(template_find(rooms.templates, who.tenant, "web", NULL));
}

static void test_changes_at_once_all_hold(void **state)
{
    (void)state;
    struct put p[8] = {{0}}, gone[2] = {{0}};
    for (int i = 0; i < 8; i++) {
        char tag[8], stack[STACK_ID_MAX];
        (void)snprintf(tag, sizeof tag, "v%d", i);
        (void)snprintf(stack, sizeof stack, "st-aaaaaaa%d", i);
        struct template_new n = {
            .name = "web", .tag = tag, .stack = stack, .tenant = who.tenant, .kind = TEMPLATE_BUILT};
        template_put(rooms.templates, &n, was_put, &p[i]);
    }
    for (int i = 0; i < 8; i++)
        await(&p[i]);
    const struct template *t = template_find(rooms.templates, who.tenant, "web", NULL);
    assert_int_equal(t->ntags, 8);
    assert_string_equal(t->tags[0].tag, "v7");
    template_remove(rooms.templates, t, NULL, was_put, &gone[0]);
    template_remove(rooms.templates, t, NULL, was_put, &gone[1]);
    await(&gone[0]);
    await(&gone[1]);
    assert_int_equal(gone[0].status, 0);
    assert_int_equal(gone[1].status, 404);
}

static void test_a_tenants_templates_go_with_it(void **state)
{
    (void)state;
    struct tenant *o = new_tenant("other");
    (void)add(o, "web", NULL, "st-aaaaaaaa");
    tenant_remove(rooms.tenants, "other", NULL, NULL);
    AWAIT (was_dropped("st-aaaaaaaa"))
        step(1);
    assert_true(was_dropped("st-aaaaaaaa"));
    stop();
    start();
    assert_null(template_find(rooms.templates, who.tenant, "other/web", NULL));
}

static void test_changes_of_a_tenant_that_goes_are_refused(void **state)
{
    (void)state;
    struct tenant *o = new_tenant("other");
    struct template_config with = {.user = (char *)"somebody"};
    struct put p[5] = {{0}};
    struct template_new n = {
        .name = "web", .stack = "st-aaaaaaaa", .tenant = o, .kind = TEMPLATE_BUILT, .config = &with};
    template_put(rooms.templates, &n, was_put, &p[0]);
    await(&p[0]);
    const struct template *t = template_find(rooms.templates, o, "web", NULL);
    tenant_remove(rooms.tenants, "other", NULL, NULL);
    template_tag(rooms.templates, t, &t->tags[0], "v1", was_put, &p[1]);
    template_set(rooms.templates, t, &(struct template_settings){.public = TEMPLATE_ON}, was_put, &p[2]);
    n.stack = "st-bbbbbbbb";
    template_put(rooms.templates, &n, was_put, &p[3]);
    n.name = "fresh";
    template_put(rooms.templates, &n, was_put, &p[4]);
    for (size_t i = 1; i < ARRAY_LEN(p); i++) {
        await(&p[i]);
        assert_int_equal(p[i].status, 404);
    }
    AWAIT (was_dropped("st-aaaaaaaa"))
        step(1);
    assert_true(was_dropped("st-aaaaaaaa"));
    o = new_tenant("other"); /* another of the same id gets nothing of it */
    stop();
    start();
    assert_null(template_find(rooms.templates, tenants_find(rooms.tenants, "other"), "web", NULL));
    assert_null(template_find(rooms.templates, tenants_find(rooms.tenants, "other"), "fresh", NULL));
}

static struct put add_with(const char *tag, const char *stack, enum template_kind kind, const struct template_config *c)
{
    struct put p = {0};
    struct template_new n = {
        .name = "web", .tag = tag, .stack = stack, .tenant = who.tenant, .kind = kind, .config = c, .bytes = 1};
    template_put(rooms.templates, &n, was_put, &p);
    await(&p);
    return p;
}
/* What a sandbox of it is made from and with: "STACK USER ENV CPU". */
static void expect_source(const char *name, const char *wanted)
{
    struct sandbox_desc s = {0};
    struct template_info info;
    (void)snprintf(s.template, sizeof s.template, "%s", name);
    char text[200];
    assert_true(sandbox_source_find(rooms.sandboxes, who.tenant, &s, &info));
    (void)snprintf(text, sizeof text, "%s %s %s %u", s.stack, s.config->user,
                   s.config->env.n ? s.config->env.v[0] : "-", info.cpu_milli);
    assert_string_equal(text, wanted);
    sandbox_desc_done(&s);
}

static void test_each_tag_keeps_the_configuration_of_its_build(void **state)
{
    (void)state;
    struct put p = {0}, q = {0};
    struct template_config one = {.user = (char[]){"one"}, .cpu_milli = 1000},
                           two = {.user = (char[]){"two"}, .cpu_milli = 2000};
    strv_add(&one.env, "A=1");
    strv_add(&two.env, "A=2");
    (void)add_with("v1", "st-aaaaaaaa", TEMPLATE_IMPORTED, &one);
    (void)add_with("v2", "st-bbbbbbbb", TEMPLATE_BUILT, &two);
    const struct template_tag *tag = NULL;
    const struct template *t = template_find(rooms.templates, who.tenant, "web:v1", &tag);
    template_tag(rooms.templates, t, tag, "stable", was_put, &p);
    await(&p);
    for (int round = 0; round < 2; round++) {
        expect_source("web:v1", "st-aaaaaaaa one A=1 1000");
        expect_source("web:stable", "st-aaaaaaaa one A=1 1000");
        expect_source("web:v2", "st-bbbbbbbb two A=2 2000");
        t = template_find(rooms.templates, who.tenant, "web:v1", &tag);
        assert_int_equal(template_kind_of(t, tag), TEMPLATE_IMPORTED);
        (void)template_find(rooms.templates, who.tenant, "web:v2", &tag);
        assert_int_equal(template_kind_of(t, tag), TEMPLATE_BUILT);
        stop();
        start();
    }
    template_set(rooms.templates, template_find(rooms.templates, who.tenant, "web", NULL),
                 &(struct template_settings){.history = TEMPLATE_ON}, was_put, &q);
    await(&q);
    t = template_find(rooms.templates, who.tenant, "web:v1", &tag); /* a setting holds for all of them */
    _cleanup_free_ char *text = template_config_text(t, tag);
    assert_string_equal(text, "{\"user\":\"one\",\"env\":[\"A=1\"],\"cpuMilli\":1000,\"history\":true}");
    (void)add_with("v1", "st-cccccccc", TEMPLATE_BUILT, &two);
    expect_source("web:v1", "st-cccccccc two A=2 2000");
    expect_source("web:stable", "st-aaaaaaaa one A=1 1000");
    strv_done(&one.env);
    strv_done(&two.env);
}

/* A row from before tags had one: they keep what the template has, whatever is built next. */
static void test_tags_of_older_stores_have_the_configuration_of_their_template(void **state)
{
    (void)state;
    struct db_template row = {.id = "bbbbbbbbbbbbbbbbbbbb",
                              .name = "web",
                              .tenant = "default",
                              .source = "",
                              .config = "{\"user\":\"old\",\"cpuMilli\":500}",
                              .kind = TEMPLATE_BUILT};
    static const char *const tags[] = {"v0", "b", "st-aaaaaaaa", "5", "v1", "c", "st-bbbbbbbb", "6 7"};
    start_with(&row, tags, ARRAY_LEN(tags));
    struct template_config two = {.user = (char[]){"two"}, .cpu_milli = 2000};
    (void)add_with("v2", "st-cccccccc", TEMPLATE_BUILT, &two);
    for (int round = 0; round < 2; round++) {
        expect_source("web:v0", "st-aaaaaaaa old - 500");
        expect_source("web:v1", "st-bbbbbbbb old - 500");
        expect_source("web:v2", "st-cccccccc two - 2000");
        stop();
        start();
    }
}

static void test_configurations_of_tags_are_bounded(void **state)
{
    (void)state;
    char *large = xcalloc(1, 250001), tag[8], stack[STACK_ID_MAX];
    memset(large, 'x', 250000);
    struct template_config c = {.user = (char[]){"u"}, .start = large};
    unsigned i = 0, status = 0;
    for (; i < 20 && !status; i++) {
        (void)snprintf(tag, sizeof tag, "v%u", i);
        (void)snprintf(stack, sizeof stack, "st-aaaaaa%02u", i);
        status = add_with(tag, stack, TEMPLATE_BUILT, &c).status;
    }
    assert_int_equal(status, 400);
    assert_int_equal(i, TEMPLATE_CONFIGS_MAX / 250000 + 1);
    assert_int_equal(add_with("v0", "st-bbbbbbbb", TEMPLATE_BUILT, &c).status, 0); /* in place of another one */
    free(large);
}

static struct put add_kind(struct tenant *t, const char *name, const char *tag, enum template_kind kind)
{
    static unsigned n;
    char stack[STACK_ID_MAX];
    struct put p = {0};
    (void)snprintf(stack, sizeof stack, "st-%08u", n++);
    struct template_new what = {.name = name, .tag = tag, .stack = stack, .tenant = t, .kind = kind, .bytes = 1};
    template_put(rooms.templates, &what, was_put, &p);
    await(&p);
    return p;
}

static void test_templates_of_a_tenant_are_bounded(void **state)
{
    (void)state;
    struct tenant *o = new_tenant("other");
    struct state_failure full = {0};
    struct put gone = {0};
    rooms.config.templates_per_tenant = 2;
    assert_int_equal(add_kind(who.tenant, "one", NULL, TEMPLATE_BUILT).status, 0);
    assert_int_equal(add_kind(who.tenant, "snap", NULL, TEMPLATE_SNAPSHOT).status, 0); /* counted otherwise */
    assert_true(template_room(rooms.templates, who.tenant, "three", &full));
    assert_int_equal(add_kind(who.tenant, "two", NULL, TEMPLATE_IMPORTED).status, 0);
    assert_int_equal(add_kind(who.tenant, "three", NULL, TEMPLATE_BUILT).status, 429);
    assert_null(template_find(rooms.templates, who.tenant, "three", NULL));
    assert_false(template_room(rooms.templates, who.tenant, "three", &full));
    assert_int_equal(full.status, 429);
    assert_string_equal(full.error_code, "quota_exceeded");
    assert_non_null(strstr(full.text, "has 2 templates; the limit is 2 (templates.per_tenant)"));
    assert_int_equal(add_kind(who.tenant, "two", "v2", TEMPLATE_BUILT).status, 0); /* what is there may grow */
    assert_int_equal(add_kind(who.tenant, "snap", "v1", TEMPLATE_BUILT).status, 429);
    assert_int_equal(add_kind(who.tenant, "snap", NULL, TEMPLATE_SNAPSHOT).status, 0);
    assert_int_equal(add_kind(o, "three", NULL, TEMPLATE_BUILT).status, 0);
    assert_int_equal(add_kind(NULL, "four", NULL, TEMPLATE_BUILT).status, 0); /* the node's own */
    template_remove(rooms.templates, template_find(rooms.templates, who.tenant, "one", NULL), NULL, was_put, &gone);
    await(&gone);
    assert_int_equal(add_kind(who.tenant, "three", NULL, TEMPLATE_BUILT).status, 0);
}

/* However many were begun while there was room for one. */
static void test_snapshots_are_counted_when_they_are_put(void **state)
{
    (void)state;
    rooms.config.state_snapshots = 2;
    assert_int_equal(add_kind(who.tenant, NULL, NULL, TEMPLATE_SNAPSHOT).status, 0);
    assert_int_equal(add_kind(who.tenant, "snap", NULL, TEMPLATE_SNAPSHOT).status, 0);
    assert_int_equal(add_kind(who.tenant, NULL, NULL, TEMPLATE_SNAPSHOT).status, 429);
    assert_int_equal(add_kind(who.tenant, "snap", NULL, TEMPLATE_SNAPSHOT).status, 0);
}

static void test_configurations_of_a_tenant_are_bounded(void **state)
{
    (void)state;
    enum { ONE = 4 << 20 }; /* all that a template may have; rows of that size come from one build */
    struct tenant *o = new_tenant("other");
    char *large = xcalloc(1, ONE), name[16], stack[STACK_ID_MAX];
    memset(large, 'x', ONE - 100);
    struct template_config c = {.start = large};
    struct put p = {0};
    unsigned i = 0;
    for (; i < 20 && !p.status; i++) {
        (void)snprintf(name, sizeof name, "t%u", i);
        (void)snprintf(stack, sizeof stack, "st-aaaaaa%02u", i);
        struct template_new n = {
            .name = name, .stack = stack, .tenant = who.tenant, .kind = TEMPLATE_BUILT, .config = &c, .bytes = 1};
        p = (struct put){0};
        template_put(rooms.templates, &n, was_put, &p);
        await(&p);
    }
    assert_int_equal(p.status, 429);
    assert_int_equal(i, TEMPLATE_CONFIGS_TENANT_MAX / ONE + 1);
    struct template_new n = {.name = "x", .stack = "st-bbbbbbbb", .tenant = o, .kind = TEMPLATE_BUILT, .config = &c};
    p = (struct put){0};
    template_put(rooms.templates, &n, was_put, &p);
    await(&p);
    assert_int_equal(p.status, 0); /* others have their own */
    free(large);
}

/* The name was free when the snapshot began. */
static void test_a_snapshot_does_not_replace_a_template_that_came_meanwhile(void **state)
{
    (void)state;
    struct template_new n = {.name = "web", .stack = "st-snapsnap", .tenant = who.tenant, .kind = TEMPLATE_SNAPSHOT};
    struct put p = {0};
    (void)add(who.tenant, "web", NULL, "st-aaaaaaaa");
    template_put(rooms.templates, &n, was_put, &p);
    await(&p);
    assert_int_equal(p.status, 409);
    assert_string_equal(stack_of(who.tenant, "web"), "st-aaaaaaaa");
    assert_int_equal(template_find(rooms.templates, who.tenant, "web", NULL)->kind, TEMPLATE_BUILT);
    assert_false(was_dropped("st-aaaaaaaa"));
}

static void test_a_snapshot_stays_one_beside_builds(void **state)
{
    (void)state;
    struct template_config c = {.user = (char[]){"u"}};
    struct template_new n = {.name = "web",
                             .stack = "st-snapsnap",
                             .source = "i0box",
                             .tenant = who.tenant,
                             .kind = TEMPLATE_SNAPSHOT,
                             .config = &c};
    struct put p = {0};
    template_put(rooms.templates, &n, was_put, &p);
    await(&p);
    assert_int_equal(state_kept(rooms.stacks, who.tenant).count, 1);
    assert_int_equal(add_with("v1", "st-aaaaaaaa", TEMPLATE_BUILT, &c).status, 0);
    assert_int_equal(state_kept(rooms.stacks, who.tenant).count, 1);
    const struct template *t = template_find(rooms.templates, who.tenant, "web", NULL);
    assert_false(template_only_snapshots(t));
    assert_string_equal(t->source, "i0box");
    stop();
    start();
    assert_int_equal(state_kept(rooms.stacks, who.tenant).count, 1);
    p = (struct put){0};
    template_remove(rooms.templates, template_find(rooms.templates, who.tenant, "web", NULL), "v1", was_put, &p);
    await(&p);
    assert_true(template_only_snapshots(template_find(rooms.templates, who.tenant, "web", NULL)));
    p = (struct put){0};
    n.tenant = who.tenant;                          /* a new one since the restart */
    template_put(rooms.templates, &n, was_put, &p); /* and may be made again */
    await(&p);
    assert_int_equal(p.status, 0);
}

/* A tag that was given is somebody's word, and the one that a name alone means is not. */
static void test_what_an_image_was_fetched_as_stays_with_its_tags(void **state)
{
    (void)state;
    static const char digest[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    static const char *const tags[] = {"default", "again"};
    struct put p[5] = {{0}};
    struct template_new n = {.name = "web",
                             .tag = "1",
                             .stack = "st-aaaaaaaa",
                             .tenant = who.tenant,
                             .kind = TEMPLATE_IMPORTED,
                             .image = "ghcr.io/a/\"b:1",
                             .manifest = digest};
    template_put(rooms.templates, &n, was_put, &p[0]);
    await(&p[0]);
    const struct template_tag *tag = NULL;
    const struct template *t = template_find(rooms.templates, who.tenant, "web:1", &tag);
    for (size_t i = 0; i < ARRAY_LEN(tags); i++) {
        template_tag(rooms.templates, t, tag, tags[i], was_put, &p[1 + i]);
        await(&p[1 + i]);
        t = template_find(rooms.templates, who.tenant, "web:1", &tag);
    }
    (void)add(who.tenant, "web", "own", "st-bbbbbbbb");
    struct template_new mine = {.name = "mine",
                                .stack = "st-cccccccc",
                                .tenant = who.tenant,
                                .kind = TEMPLATE_IMPORTED,
                                .image = n.image,
                                .given = true};
    template_put(rooms.templates, &mine, was_put, &p[4]);
    await(&p[4]);
    for (int round = 0; round < 2; round++) {
        (void)template_find(rooms.templates, who.tenant, "web:1", &tag);
        assert_string_equal(template_image(tag), n.image);
        assert_string_equal(tag->origin->manifest, digest);
        assert_true(tag->bytes == 0 && tag->created_unix_ms > 0);
        (void)template_find(rooms.templates, who.tenant, "web", &tag);
        assert_string_equal(template_image(tag), n.image);
        (void)template_find(rooms.templates, who.tenant, "web:again", &tag);
        assert_string_equal(template_image(tag), "");
        assert_string_equal(template_fetched(tag), n.image);
        (void)template_find(rooms.templates, who.tenant, "web:own", &tag);
        assert_string_equal(template_fetched(tag), "");
        assert_int_equal(tag->bytes, 10);
        (void)template_find(rooms.templates, who.tenant, "mine", &tag);
        assert_string_equal(template_image(tag), "");
        assert_string_equal(template_fetched(tag), n.image);
        stop();
        start();
    }
    template_remove(rooms.templates, template_find(rooms.templates, who.tenant, "web", NULL), "1", was_put, &p[3]);
    await(&p[3]);
    (void)template_find(rooms.templates, who.tenant, "web", &tag);
    assert_string_equal(template_image(tag), n.image);
}

static void test_configuration_as_text_and_back(void **state)
{
    (void)state;
    struct err err;
    struct template_config c = {.user = (char *)"a\"b",
                                .start = (char *)"x\n",
                                .cpu_milli = 1500,
                                .memory = 1,
                                .history = true},
                           back;
    strv_add(&c.env, "A=\xc3\xa4");
    char *text = template_config_json(&c);
    assert_int_equal(template_config_parse(text, &back, &err), 0);
    assert_string_equal(back.user, c.user);
    assert_string_equal(back.start, c.start);
    assert_string_equal(back.env.v[0], c.env.v[0]);
    assert_null(back.ready);
    assert_int_equal(back.cpu_milli, 1500);
    assert_true(back.history);
    template_config_done(&back);
    free(text);
    strv_done(&c.env);
    assert_int_equal(template_config_parse("", &back, &err), 0);
    static const char *const bad[] = {"[]",
                                      "{",
                                      "{\"user\":1}",
                                      "{\"start\":\"a\\u0000b\"}",
                                      "{\"env\":{}}",
                                      "{\"env\":[\"A\"]}",
                                      "{\"env\":[\"=x\"]}",
                                      "{\"memory\":-1}",
                                      "{\"cpuMilli\":99999999}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(template_config_parse(bad[i], &back, &err), -1);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_names_tags_and_ids_find_it),
        T(test_others_find_what_is_public_and_nothing_else),
        T(test_settings_outlive_builds_and_restarts),
        T(test_nobody_takes_over_the_name_of_a_nodes_template),
        T(test_a_name_cannot_stand_in_for_an_id),
        T(test_a_queued_tag_keeps_its_stack),
        T(test_bytes_of_all_tags_count),
        T(test_changes_of_a_tenant_that_goes_are_refused),
        T(test_stacks_go_when_their_last_tag_does),
        T(test_changes_at_once_all_hold),
        T(test_a_tenants_templates_go_with_it),
        T(test_each_tag_keeps_the_configuration_of_its_build),
        T(test_tags_of_older_stores_have_the_configuration_of_their_template),
        T(test_configurations_of_tags_are_bounded),
        T(test_configurations_of_a_tenant_are_bounded),
        T(test_templates_of_a_tenant_are_bounded),
        T(test_snapshots_are_counted_when_they_are_put),
        T(test_a_snapshot_stays_one_beside_builds),
        T(test_a_snapshot_does_not_replace_a_template_that_came_meanwhile),
        T(test_what_an_image_was_fetched_as_stays_with_its_tags),
        T(test_configuration_as_text_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
