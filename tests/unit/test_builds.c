/* Builds, in the world of builds-world.h. */
#include "builds/builds.h"

#include "builds-world.h"

/* --- tests -------------------------------------------------------------------------------------------------------- */

#define STEPS                                                                                               \
    "{\"fromImage\":\"e2bdev/base\",\"steps\":[{\"type\":\"ENV\",\"args\":[\"A\",\"1\",\"B\",\"$HOME2\"]}," \
    "{\"type\":\"USER\",\"args\":[\"agent\"]},{\"type\":\"WORKDIR\",\"args\":[\"app\"]},"                   \
    "{\"type\":\"RUN\",\"args\":[\"make it\"]},{\"type\":\"RUN\",\"args\":[\"as root\",\"root\"]},"         \
    "{\"type\":\"COPY\",\"args\":[\"src\",\"dst/\",\"\",\"644\"],\"filesHash\":\"" HASH "\"}]}"

static void steps_run_one_after_the_other_and_the_template_gets_its_row(void **state)
{
    (void)state;
    const struct build *b = run("my-Agent:v1", STEPS);
    assert_int_equal(b->status, BUILD_READY);
    assert_string_equal(w.made_from[0], "base");
    assert_int_equal(w.creates, 6); /* one per step that changes files, and the last look */
    assert_int_equal(w.kills, 6);
    assert_int_equal(w.captures, 6);
    assert_string_equal(w.ran[1].user, "root");
    assert_non_null(strstr(w.ran[1].args, "/home/user/app"));
    assert_string_equal(w.ran[2].user, "agent");
    assert_string_equal(w.ran[2].cwd, "/home/user/app");
    assert_string_equal(w.ran[2].env, "A=1 B=");
    assert_string_equal(w.ran[3].user, "root");
    assert_string_equal(w.ran[4].cmd, "/.hutch/hutch");
    assert_string_equal(w.ran[4].args, "lay --src src --dest /home/user/app/dst/ --owner agent --mode 644");
    assert_string_equal(buf_str(&w.input), "lay stream");
    const struct template *t = row("my-agent");
    assert_int_equal(t->builds, 1);
    assert_int_equal(t->ntags, 1);
    assert_string_equal(t->name, "my-agent");
    assert_string_equal(t->tags[0].tag, "v1");
    assert_string_equal(t->tags[0].build, b->id);
    assert_string_equal(t->config.user, "agent");
    assert_string_equal(t->config.workdir, "/home/user/app");
    assert_int_equal(t->config.cpu_milli, 2000);
    assert_int_equal(t->bytes, STACK_BYTES);
    assert_int_equal(holds(), 0);
}

static void the_same_steps_are_not_run_again(void **state)
{
    (void)state;
    (void)run("one", STEPS);
    int creates = w.creates;
    const struct build *b = run("two", STEPS);
    assert_int_equal(b->status, BUILD_READY);
    assert_int_equal(w.creates - creates, 1); /* the last look only */
    assert_true(said(b, "CACHED [builder 4/6] RUN make it"));
    assert_int_equal(holds(), 0);
}

static void steps_are_remembered_as_far_as_the_quota_has_room(void **state)
{
    (void)state;
    w.tenant[0]->quota.state_bytes = UINT64_C(3) * STACK_BYTES;
    assert_int_equal(run("one", STEPS)->status, BUILD_READY);
    assert_int_equal(w.captures, 6); /* the last is the template's own */
    /* Three of the five steps; two, if one went whose stack the sandbox of the step under way still had. */
    int kept = steps_kept();
    assert_in_range(kept, 2, 3);
    assert_int_equal(drops(), 5 - kept);
    assert_true(state_kept(rooms.stacks, w.tenant[0]).size.bytes <= UINT64_C(3) * STACK_BYTES);
    assert_int_equal(holds(), 0);
    w.tenant[0]->quota.state_bytes = STACK_BYTES - 1; /* less than the rows have: the step under way is kept */
    w.capture_bytes = 0;                              /* and adds nothing */
    assert_int_equal(run("two", "{\"steps\":[{\"type\":\"RUN\",\"args\":[\"x\"]}]}")->status, BUILD_READY);
    assert_int_equal(steps_kept(), 1);
}

static void steps_have_the_limits_of_the_build(void **state)
{
    (void)state;
    rooms.config.default_cpu_milli = 2000;
    rooms.config.default_memory = 512 << 20;
    assert_int_equal(run("a", "{}")->status, BUILD_READY);
    assert_string_equal(w.limits, "2000 512");
    rooms.config.default_memory = 256 << 20; /* now it is more than others have */
    assert_int_equal(run("a", "{}")->status, BUILD_READY);
    assert_string_equal(w.limits, "2000 512 counted");
    (void)snprintf(w.degraded, sizeof w.degraded, "memory: not limited");
    const struct build *b = run("a", STEPS);
    assert_true(said(b, "this host cannot hold the commands of builds to their limits: memory: not limited"));
}

static void force_runs_everything_again(void **state)
{
    (void)state;
    static const char again[] = "{\"force\":true,\"steps\":[{\"type\":\"RUN\",\"args\":[\"x\"]}]}";
    (void)run("one", again);
    int creates = w.creates;
    const struct build *b = run("two", again);
    assert_int_equal(w.creates - creates, 2);
    assert_false(said(b, "CACHED"));
    assert_int_equal(drops(), 1); /* of the stack that the step made before */
}

static void a_step_whose_stack_is_gone_is_run_again(void **state)
{
    (void)state;
    static const char plan[] = "{\"steps\":[{\"type\":\"RUN\",\"args\":[\"x\"]}]}";
    (void)run("one", plan);
    w.gone = true;
    const struct build *b = run("two", plan);
    assert_int_equal(b->status, BUILD_READY);
    assert_false(said(b, "CACHED"));
}

static void a_command_that_fails_is_named_with_its_step(void **state)
{
    (void)state;
    w.fail = "make it";
    const struct build *b = run("x", STEPS);
    assert_int_equal(b->status, BUILD_FAILED);
    assert_string_equal(b->reason, "failed to run command 'make it': exit status 7");
    assert_string_equal(b->reason_step, "4");
    assert_true(said(b, "said"));
    assert_null(template_find(rooms.templates, w.tenant[0], "x", NULL));
    assert_int_equal(w.creates, w.kills);
    assert_int_equal(holds(), 0);
}

static void an_unknown_user_is_named_as_e2b_names_it(void **state)
{
    (void)state;
    const struct build *b = run("x", "{\"steps\":[{\"type\":\"RUN\",\"args\":[\"id\",\"nobody123\"]}]}");
    assert_string_equal(b->reason, "failed to run command 'whoami': command failed: unauthenticated: invalid username: "
                                   "'nobody123'");
    assert_string_equal(b->reason_step, "1");
}

static void a_copy_without_its_upload_fails(void **state)
{
    (void)state;
    w.no_blob = true;
    const struct build *b =
        run("x", "{\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"b\",\"\",\"\"],\"filesHash\":\"" HASH "\"}]}");
    assert_string_equal(b->reason, "the files of this step were not uploaded: filesHash " HASH);
}

static void a_sandbox_that_cannot_be_made_fails_the_build(void **state)
{
    (void)state;
    w.no_create = "no room";
    const struct build *b = run("x", "{\"steps\":[{\"type\":\"RUN\",\"args\":[\"a\"]}]}");
    assert_string_equal(b->reason, "the sandbox of the build cannot be made: the sandbox cannot be made: no room");
}

static void an_image_that_is_not_here_says_how_to_get_it(void **state)
{
    (void)state;
    const struct build *b = run("x", "{\"fromImage\":\"ubuntu:22.04\"}");
    assert_int_equal(b->status, BUILD_FAILED);
    assert_string_equal(b->reason_step, "base");
    assert_non_null(strstr(b->reason, "hutch template import ubuntu:22.04"));
}

/* A row "NAME:TAG", fetched as `image`, or (NULL) called so by a person. given: that name is a person's all the same. */
static void put_image(struct tenant *t, const char *name_tag, const char *image, bool given)
{
    _cleanup_free_ char *name = xstrndup(name_tag, strcspn(name_tag, ":"));
    put(&(struct template_new){.name = name,
                               .tag = name_tag + strlen(name) + 1,
                               .build = "b",
                               .stack = "st-imageimage",
                               .tenant = t,
                               .kind = TEMPLATE_IMPORTED,
                               .image = image,
                               .manifest = image ? HASH : NULL,
                               .given = given,
                               .bytes = 1});
}

static void an_image_gets_its_user_once(void **state)
{
    (void)state;
    static const char plan[] = "{\"fromImage\":\"docker.io/library/ubuntu:22.04\"}";
    put_image(NULL, "ubuntu:22.04", NULL, false);
    assert_int_equal(run("x", plan)->status, BUILD_READY);
    assert_string_equal(w.made_from[0], "st-imageimage");
    assert_int_equal(w.nran, 1);
    assert_int_equal(run("y", plan)->status, BUILD_READY);
    assert_int_equal(w.nran, 1);
    assert_int_equal(holds(), 0);
}

static void an_image_of_another_tenant_is_not_taken(void **state)
{
    (void)state;
    put_image(w.tenant[1], "ubuntu:22.04", NULL, false);
    const struct build *b = run("x", "{\"fromImage\":\"ubuntu:22.04\"}");
    assert_int_equal(b->status, BUILD_FAILED);
    assert_non_null(strstr(b->reason, "is not in the store of this node"));
}

/* Whether a build that says FROM `ref` finds the row `name_tag`, which put_image() made. */
static bool found_as(const char *ref, const char *name_tag, const char *image, bool given)
{
    _cleanup_free_ char *plan = xasprintf("{\"fromImage\":\"%s\"}", ref);
    bool gone = false;
    put_image(NULL, name_tag, image, given);
    bool ok = run("x", plan)->status == BUILD_READY;
    template_remove(rooms.templates, row(name_tag), NULL, was_put, &gone);
    AWAIT (gone)
        turn();
    assert_true(gone);
    return ok;
}
static bool found(const char *ref, const char *name_tag, const char *image)
{
    return found_as(ref, name_tag, image, false);
}

static void an_image_is_not_taken_for_another_one(void **state)
{
    (void)state;
    struct build_image b, pin;
    assert_true(build_image_parse("ghcr.io/a/b:1", &b) && build_image_parse("ubuntu@sha256:" HASH, &pin));
    _cleanup_free_ char *named = xasprintf("%s:%s", b.name, b.tag), *pinned = xasprintf("%s:%s", pin.name, pin.tag);
    assert_true(found("ghcr.io/a/b:1", named, "ghcr.io/a/b:1"));
    assert_false(found("ghcr.io/a/b:1", named, "ghcr.io/a-b:1"));
    assert_false(found("ghcr.io/a/b:1", "ghcr-io-a-b:1", "ghcr-io-a-b:1"));
    assert_true(found("ghcr.io/a/b:1", "ghcr-io-a-b:1", NULL)); /* as people were told to call it */
    assert_true(found("ubuntu@sha256:" HASH, pinned, "ubuntu@sha256:" HASH));
    assert_true(found("ubuntu@sha256:" HASH, "ubuntu:22.04", "ubuntu:22.04")); /* its manifest has that digest */
    assert_false(found("ubuntu@sha256:" HASH, pinned, NULL));
    assert_false(found("ubuntu@sha256:" HASH, "ubuntu:aaaaaaaaaaaa", NULL));
    assert_true(found("ubuntu", "ubuntu:default", "ubuntu:22.04"));
    assert_false(found("ubuntu:default", "ubuntu:default", "ubuntu:22.04"));
    /* Where it came from is shown, and the name is what counts. */
    assert_true(found_as("ghcr.io/a/b:1", "ghcr-io-a-b:1", "ubuntu:22.04", true));
    assert_false(found_as("ubuntu@sha256:" HASH, "ubuntu:22.04", "ubuntu:22.04", true));
}

static void an_image_that_no_template_may_be_made_of_is_not_fetched(void **state)
{
    (void)state;
    rooms.config.image_pull = true;
    assert_int_equal(run("one", "{}")->status, BUILD_READY);
    const struct build *b = make("x");
    rooms.config.templates_per_tenant = 1;
    start(b, "{\"fromImage\":\"toomany:1\"}");
    finish(b);
    assert_int_equal(b->status, BUILD_FAILED);
    assert_non_null(strstr(b->reason, "image 'toomany:1' cannot be kept: the tenant has 1 templates"));
}

static void host_cannot_be_built_upon(void **state)
{
    (void)state;
    assert_non_null(strstr(run("x", "{\"fromTemplate\":\"host\"}")->reason, "cannot be built upon"));
    assert_non_null(strstr(run("y", "{\"fromTemplate\":\"nothing\"}")->reason, "template 'nothing' not found"));
}

static void a_template_starts_from_another_with_its_settings(void **state)
{
    (void)state;
    (void)run("parent", STEPS);
    char stack[STACK_ID_MAX];
    memcpy(stack, tag("parent")->stack, sizeof stack);
    forget_commands();
    int creates = w.creates;
    (void)run("child", "{\"fromTemplate\":\"parent\",\"steps\":[{\"type\":\"RUN\",\"args\":[\"x\"]}]}");
    assert_string_equal(w.made_from[creates % 16], stack);
    assert_string_equal(w.ran[0].user, "agent");
    assert_string_equal(w.ran[0].env, "A=1 B=");
    assert_string_not_equal(tag("child")->stack, stack);
}

static void the_ready_command_decides_when_a_start_command_is_up(void **state)
{
    (void)state;
    const struct build *b = run("x", "{\"startCmd\":\"serve\",\"readyCmd\":\"probe\"}");
    assert_int_equal(b->status, BUILD_READY);
    assert_true(said(b, "the ready command succeeded"));
    assert_true(said(b, "memory is not part of a template here"));
    assert_string_equal(row("x")->config.start, "serve");
    assert_string_equal(row("x")->config.ready, "probe");
}

static void a_start_command_that_fails_fails_the_build(void **state)
{
    (void)state;
    w.fail = "broken";
    const struct build *b = run("x", "{\"startCmd\":\"broken\"}");
    assert_int_equal(b->status, BUILD_FAILED);
    assert_string_equal(b->reason, "the start command ended before the template was ready: exit status 7");
    assert_string_equal(b->reason_step, "finalize");
    assert_int_equal(drops(), 1);
    assert_int_equal(holds(), 0);
}

#define STAGES                                                                                  \
    "\"stages\":[{\"fromTemplate\":\"base\",\"steps\":[{\"type\":\"RUN\",\"args\":[\"x\"]}]}]," \
    "\"steps\":[{\"type\":\"COPY\",\"args\":[\"/a\",\"/b\",\"\",\"\"],\"fromStage\":0}]}"

static void files_of_a_stage_are_written_a_piece_at_a_time(void **state)
{
    (void)state;
    w.much = 20;
    rooms.config.build_upload_max = 1 << 20;
    const struct build *b = run("x", "{" STAGES);
    assert_int_equal(b->status, BUILD_READY);
    assert_int_equal(w.input.n, 20 * EXEC_CHUNK_MAX);
    assert_int_equal(w.resumes, 2);
    w.sent = 0;
    w.much = 33;
    b = run("y", "{\"force\":true," STAGES);
    assert_int_equal(b->status, BUILD_FAILED);
    assert_non_null(strstr(b->reason, "the files have more than 1048576 bytes (builds.upload_max)"));
    assert_int_equal(holds(), 0);
}

static void nobody_told(void *arg, const struct template *t, const struct state_failure *failure)
{
    (void)arg, (void)t, (void)failure;
    fail_msg("an import ended");
}

static void front_ends_while_an_import_is_recorded(void **state)
{
    (void)state;
    struct image_import i = {.name = "x", .tag = "v1", .tenant = w.tenant[0], .archive = -1, .ref = "x:v1"};
    w.hold_layers = true;
    (void)image_import(w.builds, &i, NULL, nobody_told, NULL);
    AWAIT (w.held_layers_arg)
        turn();
    assert_non_null(w.held_layers_arg);
    end_builds();
    assert_int_equal(holds(), 0);
}

static void a_build_id_is_known_after_everything_was_forgotten(void **state)
{
    (void)state;
    const struct build *b = make("x");
    assert_true(build_id_ours(w.builds, w.tenant[0], b->template, b->id));
    assert_false(build_id_ours(w.builds, w.tenant[1], b->template, b->id));
    assert_false(build_id_ours(w.builds, w.tenant[0], "other", b->id));
    assert_false(build_id_ours(w.builds, w.tenant[0], b->template, "00000000-0000-4000-8000-000000000000"));
    assert_null(build_find(w.builds, w.tenant[1], b->template, b->id));
}

static void a_build_starts_once(void **state)
{
    (void)state;
    struct build_plan plan;
    struct err err;
    unsigned status = 0;
    const struct build *b = run("x", "{}");
    assert_int_equal(plan_of("{}", &plan, &err), 0);
    assert_int_equal(build_start(w.builds, w.tenant[0], b->template, b->id, &plan, &status, &err), -1);
    assert_int_equal(status, 409);
    assert_int_equal(plan_of("{}", &plan, &err), 0);
    assert_int_equal(build_start(w.builds, w.tenant[1], b->template, b->id, &plan, &status, &err), -1);
    assert_int_equal(status, 404);
}

static void several_tags_name_one_build(void **state)
{
    (void)state;
    struct strv tags = {0};
    strv_add(&tags, "v2");
    strv_add(&tags, "stable");
    struct build_new n = {.name = "x", .tags = &tags};
    unsigned status;
    struct err err;
    const struct build *b = build_make(w.builds, w.tenant[0], &n, &status, &err);
    start(b, "{}");
    finish(b);
    assert_int_equal(row("x")->ntags, 2);
    assert_string_equal(tag("x:v2")->build, b->id);
    assert_string_equal(tag("x:stable")->build, b->id);
    assert_string_equal(tag("x:stable")->stack, tag("x:v2")->stack);
    strv_done(&tags);
}

static void a_build_is_found_by_the_template_it_was_promised_for(void **state)
{
    (void)state;
    const struct build *b = make("x");
    char promised[40];
    (void)snprintf(promised, sizeof promised, "%s", b->template);
    start(b, "{}");
    put(&(struct template_new){.name = "x", .stack = "st-snapshot", .tenant = w.tenant[0], .kind = TEMPLATE_SNAPSHOT});
    finish(b);
    assert_int_equal(b->status, BUILD_READY);
    assert_string_not_equal(row("x")->id, promised);
    assert_string_equal(tag("x")->build, b->id);
    assert_ptr_equal(build_find(w.builds, w.tenant[0], promised, b->id), b);
}

/* --- pure parts --------------------------------------------------------------------------------------------------- */

static void wrong_plans_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *json, *want;
    } wrong[] = {
        {"[]", "the body must be an object"},
        {"{\"fromImage\":5}", "field 'fromImage' must be a string"},
        {"{\"fromImage\":\"a\",\"fromTemplate\":\"b\"}", "give one of"},
        {"{\"steps\":5}", "field 'steps' must be an array"},
        {"{\"steps\":[{\"type\":\"FLY\"}]}", "steps[0]: type 'FLY' is not one of"},
        {"{\"steps\":[{\"type\":\"RUN\",\"args\":[5]}]}", "steps[0]: 'args[0]' must be a string"},
        {"{\"steps\":[{\"type\":\"RUN\",\"args\":[]}]}", "steps[0]: RUN has the arguments"},
        {"{\"steps\":[{\"type\":\"ENV\",\"args\":[\"a\"]}]}", "steps[0]: ENV has pairs"},
        {"{\"steps\":[{\"type\":\"USER\",\"args\":[\"a b\"]}]}", "steps[0]: USER has one argument"},
        {"{\"steps\":[{\"type\":\"USER\",\"args\":[\"-x\"]}]}", "steps[0]: USER has one argument"},
        {"{\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"b\",\"\",\"\"]}]}", "steps[0]: COPY needs 'filesHash'"},
        {"{\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"b\",\"\",\"u+x\"],\"filesHash\":\"" HASH "\"}]}",
         "steps[0]: the mode of a COPY must be octal"},
        {"{\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"b\",\"a b\",\"\"],\"filesHash\":\"" HASH "\"}]}",
         "steps[0]: the owner of a COPY"},
        {"{\"fromImageRegistry\":{\"type\":\"azure\"}}", "field 'fromImageRegistry'"},
        {"{\"fromImageRegistry\":{\"type\":\"registry\",\"username\":\"aws:a\"}}",
         "fromImageRegistry: field 'username'"},
        {"{\"fromImageRegistry\":{\"type\":\"gcp\",\"serviceAccountJson\":\"x\"}}",
         "fromImageRegistry: field 'serviceAccountJson'"},
        {"{\"fromImageRegistry\":{\"type\":\"aws\",\"awsAccessKeyId\":\"a\",\"awsSecretAccessKey\":\"b\"}}",
         "fromImageRegistry: field 'awsRegion'"},
        {"{\"fromImageRegistry\":{\"type\":\"aws\",\"awsAccessKeyId\":\"a\\nb\",\"awsSecretAccessKey\":\"b\"}}",
         "fromImageRegistry: field 'awsAccessKeyId'"},
        {"{\"fromImageRegistry\":{\"type\":\"aws\",\"awsAccessKeyId\":\"a\",\"awsSecretAccessKey\":\"b\","
         "\"awsRegion\":\"x.test/\"}}",
         "fromImageRegistry: field 'awsRegion'"},
        {"{\"stages\":{}}", "field 'stages' must be an array"},
        {"{\"stages\":[5]}", "stages[0]: must be an object"},
        {"{\"stages\":[{\"fromStage\":0}]}", "stages[0]: field 'fromStage' must be the number of a stage before"},
        {"{\"fromStage\":1,\"stages\":[{}]}", "field 'fromStage' must be the number of a stage before"},
        {"{\"fromStage\":0,\"fromImage\":\"a\",\"stages\":[{}]}", "give one of"},
        {"{\"stages\":[{\"steps\":[{\"type\":\"RUN\"}]}]}", "stages[0]: steps[0]: RUN has the arguments"},
        {"{\"stages\":[{}],\"steps\":[{\"type\":\"RUN\",\"args\":[\"a\"],\"fromStage\":0}]}",
         "steps[0]: field 'fromStage' is for COPY, not for RUN"},
        {"{\"force\":1}", "field 'force' must be true or false"},
    };
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct build_plan plan;
        struct err err;
        assert_int_equal(plan_of(wrong[i].json, &plan, &err), -1);
        if (strncmp(err.msg, wrong[i].want, strlen(wrong[i].want)) != 0)
            fail_msg("%s gives '%s', not '%s'", wrong[i].json, err.msg, wrong[i].want);
        build_plan_done(&plan);
    }
}

/* Cut by a byte it would be the name of another one. */
static void an_image_has_a_name_that_layers_can_be_told(void **state)
{
    (void)state;
    for (int more = 0; more < 2; more++) {
        _cleanup_buf_ struct buf json = {0};
        struct build_plan plan;
        struct err err;
        buf_adds(&json, "{\"fromImage\":\"docker://docker.io/library/");
        for (int i = 0; i < LAYERS_REF_MAX - 1 - 27 + more; i++)
            buf_addc(&json, 'x');
        buf_adds(&json, "\"}");
        assert_int_equal(plan_of(buf_str(&json), &plan, &err), more ? -1 : 0);
        build_plan_done(&plan);
    }
}

static void variables_are_put_in_and_nothing_is_run(void **state)
{
    (void)state;
    struct build_context c = {0};
    static const struct {
        const char *text, *want;
    } cases[] = {{"$A", "1"},      {"${A}b", "1b"}, {"$AB", ""},    {"\\$A", "$A"}, {"$(id)", "$(id)"},
                 {"`id`", "`id`"}, {"$", "$"},      {"${A", "${A"}, {"$1", "$1"},   {"a$A-$B", "a1-x y"}};
    build_context_set(&c, "A", "0");
    build_context_set(&c, "A", "1");
    build_context_set(&c, "B", "x y");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_free_ char *got = build_expand(&c, cases[i].text);
        assert_string_equal(got, cases[i].want);
    }
    build_context_done(&c);
}

/* Names of two bytes stand for values of thousands, thousands of times. */
static void variables_do_not_make_much_of_little(void **state)
{
    (void)state;
    struct build_context c = {0};
    struct build_step s = {.type = BUILD_ENV, .from = -1};
    _cleanup_buf_ struct buf long_one = {0}, names = {0};
    struct err err;
    for (int i = 0; i < 30000; i++)
        buf_addc(&long_one, 'x');
    for (int i = 0; i < 16000; i++)
        buf_adds(&names, "$A");
    build_context_set(&c, "A", buf_str(&long_one));
    assert_null(build_expand(&c, buf_str(&names)));
    assert_null(build_path(&c, "$A")); /* it is good for a variable, not for a path */
    strv_add(&s.args, "B");
    strv_add(&s.args, buf_str(&names));
    assert_int_equal(build_env_step(&c, &s, &err), -1);
    assert_non_null(strstr(err.msg, "the value of B has more than 32768 bytes"));
    assert_int_equal(c.env.n, 1);
    strv_done(&s.args);
    build_context_done(&c);
}

static void a_path_that_is_too_long_with_its_variables_fails_the_build(void **state)
{
    (void)state;
    static const char *const steps[] = {
        "{\"type\":\"WORKDIR\",\"args\":[\"/$A\"]}",
        "{\"type\":\"COPY\",\"args\":[\"a\",\"$A/\"],\"filesHash\":\"" HASH "\"}",
    };
    _cleanup_buf_ struct buf value = {0};
    for (int i = 0; i < 5000; i++)
        buf_addc(&value, 'x');
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        _cleanup_buf_ struct buf plan = {0};
        buf_addf(&plan, "{\"steps\":[{\"type\":\"ENV\",\"args\":[\"A\",\"%s\"]},%s]}", buf_str(&value), steps[i]);
        const struct build *b = run("x", buf_str(&plan));
        assert_int_equal(b->status, BUILD_FAILED);
        assert_string_equal(b->reason, "the path of this step, with its variables, is too long for a path");
        assert_string_equal(b->reason_step, "2");
        assert_int_equal(w.creates, w.kills);
        assert_int_equal(holds(), 0);
    }
}

/* The answer does not wait until each of many was compared with all others. */
static void tags_are_not_looked_at_beyond_their_number(void **state)
{
    (void)state;
    _cleanup_strv_ struct strv tags = {0};
    unsigned status = 0;
    struct err err;
    for (int i = 0; i <= BUILD_TAGS_MAX; i++)
        strv_take(&tags, xasprintf("v%d", i));
    strv_add(&tags, "not a tag");
    struct build_new n = {.name = "x", .tags = &tags};
    assert_null(build_make(w.builds, w.tenant[0], &n, &status, &err));
    assert_int_equal(status, 400);
    assert_string_equal(err.msg, "a build has at most 16 tags");
}

static void a_key_depends_on_everything_that_goes_in(void **state)
{
    (void)state;
    char key[8][SHA256_HEX];
    struct build_context c = {.user = (char *)"u", .workdir = (char *)"/w"},
                         other = {.user = (char *)"v", .workdir = (char *)"/w"};
    struct build_step one = {.type = BUILD_RUN}, two = {.type = BUILD_RUN}, copy = {.type = BUILD_COPY};
    one.from = two.from = copy.from = -1;
    strv_add(&one.args, "ab");
    strv_add(&two.args, "a");
    strv_add(&two.args, "b");
    strv_add(&copy.args, "ab");
    build_step_key("p", &one, &c, key[0]);
    build_step_key("q", &one, &c, key[1]);
    build_step_key("p", &two, &c, key[2]);
    build_step_key("p", &one, &other, key[3]);
    build_step_key("p", &copy, &c, key[4]);
    (void)snprintf(copy.hash, sizeof copy.hash, "%s", HASH);
    build_step_key("p", &copy, &c, key[5]);
    build_context_set(&c, "A", "1");
    build_step_key("p", &one, &c, key[6]);
    strv_done(&c.env);
    build_step_key("p", &one, &c, key[7]);
    for (size_t i = 0; i < 7; i++)
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(key[i], key[k]);
    assert_string_equal(key[0], key[7]);
    strv_done(&one.args);
    strv_done(&two.args);
    strv_done(&copy.args);
}

static const struct build *promise(struct tenant *t, unsigned *status)
{
    struct build_new n = {.name = "x"};
    struct err err;
    return build_make(w.builds, t, &n, status, &err);
}

static void promises_of_one_tenant_do_not_take_the_room_of_others(void **state)
{
    (void)state;
    enum { OTHERS = BUILDS_MAX / BUILDS_PROMISED_PER_TENANT };
    static struct tenant many[OTHERS];
    char first[40], first_template[40], mine[40], mine_template[40];
    unsigned status = 0;
    for (int i = 0; i < OTHERS; i++) {
        (void)snprintf(many[i].id, sizeof many[i].id, "t%d", i);
        for (int k = 0; k < BUILDS_PROMISED_PER_TENANT; k++) {
            const struct build *b = promise(&many[i], &status);
            assert_non_null(b);
            if (i == 0 && k == 0) {
                memcpy(first, b->id, sizeof first);
                memcpy(first_template, b->template, sizeof first_template);
            }
        }
    }
    assert_null(promise(&many[0], &status));
    assert_int_equal(status, 429);
    for (int i = 0; i < BUILDS_MAX % BUILDS_PROMISED_PER_TENANT; i++) {
        const struct build *b = promise(w.tenant[0], &status);
        assert_non_null(b);
        if (i == 0) {
            memcpy(mine, b->id, sizeof mine);
            memcpy(mine_template, b->template, sizeof mine_template);
        }
    }
    assert_non_null(promise(w.tenant[0], &status)); /* in place of its own oldest */
    assert_null(build_find(w.builds, w.tenant[0], mine_template, mine));
    assert_non_null(build_find(w.builds, &many[0], first_template, first));
}

static void a_log_is_made_of_lines_and_bounded(void **state)
{
    (void)state;
    struct build_log l = {0};
    build_log_output(&l, "1", 0, "a\nb", 3);
    build_log_output(&l, "1", 1, "err\n", 4);
    build_log_output(&l, "1", 0, "c\n10%\r20%\r\n", 11);
    build_log_flush(&l, "1");
    assert_int_equal(l.n, 4);
    assert_string_equal(l.v[0].text, "a");
    assert_int_equal(l.v[1].level, BUILD_WARN);
    assert_string_equal(l.v[2].text, "bc");
    assert_string_equal(l.v[3].text, "20%");
    build_log_done(&l);
    char wide[3 * BUILD_LINE_MAX];
    memset(wide, 'x', sizeof wide);
    build_log_output(&l, "1", 0, wide, sizeof wide);
    build_log_output(&l, "1", 0, "\n", 1);
    assert_int_equal(l.n, 3);
    assert_int_equal(strlen(l.v[0].text), BUILD_LINE_MAX);
    for (int i = 0; i < 2 * BUILD_LOG_LINES; i++)
        build_log_output(&l, "1", 0, "y\n", 2);
    assert_true(l.n <= BUILD_LOG_LINES + 1);
    assert_non_null(strstr(l.v[l.n - 1].text, "the log of this build is full"));
    build_log_done(&l);
}

static void logs_of_a_tenant_together_are_bounded(void **state)
{
    (void)state;
    static char line[BUILD_LINE_MAX];
    enum { N = BUILD_LOGS_BYTES / BUILD_LOG_BYTES + 2 };
    const struct build *b[N];
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '\n';
    for (int i = 0; i < N; i++) {
        b[i] = run("a", "{}");
        assert_int_equal(b[i]->status, BUILD_READY);
        for (int k = 0; k < BUILD_LOG_BYTES / BUILD_LINE_MAX; k++)
            build_log_output((struct build_log *)&b[i]->log, "1", 0, line, sizeof line);
        assert_true(build_log_size(&b[i]->log) > BUILD_LOG_BYTES / 2);
    }
    size_t bytes = 0;
    (void)run("a", "{}");
    for (int i = 0; i < N; i++)
        bytes += build_log_size(&b[i]->log);
    assert_true(bytes <= BUILD_LOGS_BYTES);
    assert_int_equal(b[0]->log.n, 1);
    assert_true(said(b[0], "the log of this build is gone"));
    assert_true(b[N - 1]->log.n > 100);
}

static void uploads_of_two_tenants_have_two_names(void **state)
{
    (void)state;
    char a[SHA256_HEX], b[SHA256_HEX];
    build_blob_name(w.tenant[0], HASH, a);
    build_blob_name(w.tenant[1], HASH, b);
    assert_string_not_equal(a, b);
    assert_string_not_equal(a, HASH);
}

#define WORLD(fn) cmocka_unit_test_setup_teardown(fn, start_world, end_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WORLD(steps_run_one_after_the_other_and_the_template_gets_its_row),
        WORLD(the_same_steps_are_not_run_again),
        WORLD(steps_are_remembered_as_far_as_the_quota_has_room),
        WORLD(steps_have_the_limits_of_the_build),
        WORLD(force_runs_everything_again),
        WORLD(a_step_whose_stack_is_gone_is_run_again),
        WORLD(a_command_that_fails_is_named_with_its_step),
        WORLD(an_unknown_user_is_named_as_e2b_names_it),
        WORLD(a_copy_without_its_upload_fails),
        WORLD(a_sandbox_that_cannot_be_made_fails_the_build),
        WORLD(an_image_that_is_not_here_says_how_to_get_it),
        WORLD(an_image_that_no_template_may_be_made_of_is_not_fetched),
        WORLD(an_image_gets_its_user_once),
        WORLD(host_cannot_be_built_upon),
        WORLD(a_template_starts_from_another_with_its_settings),
        WORLD(the_ready_command_decides_when_a_start_command_is_up),
        WORLD(a_start_command_that_fails_fails_the_build),
        WORLD(files_of_a_stage_are_written_a_piece_at_a_time),
        WORLD(front_ends_while_an_import_is_recorded),
        WORLD(a_build_id_is_known_after_everything_was_forgotten),
        WORLD(a_build_starts_once),
        WORLD(several_tags_name_one_build),
        WORLD(a_build_is_found_by_the_template_it_was_promised_for),
        cmocka_unit_test(wrong_plans_are_refused_by_name),
        cmocka_unit_test(an_image_has_a_name_that_layers_can_be_told),
        cmocka_unit_test(variables_are_put_in_and_nothing_is_run),
        cmocka_unit_test(variables_do_not_make_much_of_little),
        WORLD(a_path_that_is_too_long_with_its_variables_fails_the_build),
        WORLD(tags_are_not_looked_at_beyond_their_number),
        cmocka_unit_test(a_key_depends_on_everything_that_goes_in),
        WORLD(promises_of_one_tenant_do_not_take_the_room_of_others),
        WORLD(an_image_of_another_tenant_is_not_taken),
        WORLD(an_image_is_not_taken_for_another_one),
        cmocka_unit_test(a_log_is_made_of_lines_and_bounded),
        WORLD(logs_of_a_tenant_together_are_bounded),
        WORLD(uploads_of_two_tenants_have_two_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
