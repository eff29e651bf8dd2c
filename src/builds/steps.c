/* Reads and checks the plan of a build, and computes what single steps mean. Pure: runs nothing. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "builds/builds.h"

enum { TEXT_MAX = 200, SECRET_MAX = 16384, REGION_MAX = 40 };
enum { FROM_MAX = LAYERS_REF_MAX - 1 }; /* an image is fetched as it is named */

static const char *const types[] = {"COPY", "RUN", "ENV", "WORKDIR", "USER"};

const char *build_type_name(enum build_type t) { return types[t]; }

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* 1: present, 0: absent, null or empty, -1: not a string, or too long. */
static int plan_member_text(json_t *o, const char *name, size_t max, char **ret, struct err *err)
{
    const json_t *v = json_object_get(o, name);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return err_set(err, ERR_USAGE, 0, "field '%s' must be a string without NUL", name);
    if (json_string_length(v) > max)
        return err_set(err, ERR_USAGE, 0, "field '%s' has %zu bytes; at most %zu are allowed", name,
                       json_string_length(v), max);
    if (json_string_length(v) == 0)
        return 0;
    *ret = xstrdup(json_string_value(v));
    return 1;
}

static int plan_member_bool(const json_t *o, const char *name, bool *ret, struct err *err)
{
    const json_t *v = json_object_get(o, name);
    if (v && !json_is_null(v) && !json_is_boolean(v))
        return err_set(err, ERR_USAGE, 0, "field '%s' must be true or false", name);
    *ret = json_is_true(v);
    return 0;
}

static bool plan_hash_valid(const char *s)
{
    return strlen(s) == SHA256_HEX - 1 && strspn(s, "0123456789abcdef") == SHA256_HEX - 1;
}

static bool plan_user_valid(const char *s)
{
    return *s && strlen(s) <= BUILD_USER_MAX && *s != '-' &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-:") == strlen(s);
}

static int plan_check_copy(const struct build_step *s, struct err *err)
{
    if (s->args.n < 2 || s->args.n > 4)
        return err_set(err, ERR_USAGE, 0, "COPY has the arguments source, destination, owner and mode, not %zu",
                       s->args.n);
    if (!*s->args.v[0] || !*s->args.v[1])
        return err_set(err, ERR_USAGE, 0, "COPY needs a source and a destination");
    for (size_t i = 0; i < 2; i++)
        if (strlen(s->args.v[i]) > BUILD_PATH_MAX)
            return err_set(err, ERR_USAGE, 0, "a path of COPY is longer than %d bytes", BUILD_PATH_MAX);
    const char *owner = s->args.n > 2 ? s->args.v[2] : "", *mode = s->args.n > 3 ? s->args.v[3] : "";
    if (*owner && !plan_user_valid(owner))
        return err_set(err, ERR_USAGE, 0, "the owner of a COPY must be USER or USER:GROUP, not '%.64s'", owner);
    if (strspn(mode, "01234567") != strlen(mode) || strlen(mode) > 5)
        return err_set(err, ERR_USAGE, 0, "the mode of a COPY must be octal, like 0644, not '%.20s'", mode);
    if (s->from < 0 && !plan_hash_valid(s->hash))
        return err_set(err, ERR_USAGE, 0, "COPY needs 'filesHash': the name of its upload, 64 hexadecimal digits");
    return 0;
}

static int plan_check_step(const struct build_step *s, struct err *err)
{
    const struct strv *a = &s->args;
    switch (s->type) {
    case BUILD_COPY:
        return plan_check_copy(s, err);
    case BUILD_RUN:
        if (a->n < 1 || a->n > 2 || !*a->v[0])
            return err_set(err, ERR_USAGE, 0, "RUN has the arguments command and, perhaps, user");
        if (strlen(a->v[0]) > BUILD_COMMAND_MAX)
            return err_set(err, ERR_USAGE, 0, "the command of a RUN has %zu bytes; at most %d are allowed",
                           strlen(a->v[0]), BUILD_COMMAND_MAX);
        return 0;
    case BUILD_ENV:
        return a->n && a->n % 2 == 0 ? 0 : err_set(err, ERR_USAGE, 0, "ENV has pairs of arguments: name, value");
    case BUILD_WORKDIR:
        return a->n == 1 && *a->v[0] && strlen(a->v[0]) <= BUILD_PATH_MAX
                   ? 0
                   : err_set(err, ERR_USAGE, 0, "WORKDIR has one argument: a path");
    case BUILD_USER:
        return a->n == 1 && plan_user_valid(a->v[0]) && !strchr(a->v[0], ':') && !isdigit((unsigned char)a->v[0][0])
                   ? 0
                   : err_set(err, ERR_USAGE, 0, "USER has one argument: the name of a user, no number and no group");
    }
    return -1;
}

static int plan_read_args(const json_t *list, struct build_step *s, struct err *err)
{
    size_t bytes = 0;
    if (list && !json_is_null(list) && !json_is_array(list))
        return err_set(err, ERR_USAGE, 0, "'args' must be an array of strings");
    if (json_array_size(list) > BUILD_ARGS_MAX)
        return err_set(err, ERR_USAGE, 0, "%zu arguments; at most %d are allowed", json_array_size(list),
                       BUILD_ARGS_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
            return err_set(err, ERR_USAGE, 0, "'args[%zu]' must be a string without NUL", i);
        if ((bytes += json_string_length(v)) > BUILD_ARG_BYTES_MAX)
            return err_set(err, ERR_USAGE, 0, "its arguments have more than %d bytes", BUILD_ARG_BYTES_MAX);
        strv_add(&s->args, json_string_value(v));
    }
    return 0;
}

/* "fromStage": the number of one of the `before` earlier stages. */
static int plan_read_stage_number(const json_t *o, size_t before, int *ret, struct err *err)
{
    const json_t *v = json_object_get(o, "fromStage");
    *ret = -1;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= (json_int_t)before)
        return err_set(err, ERR_USAGE, 0, "field 'fromStage' must be the number of a stage before this one, from 0 on");
    *ret = (int)json_integer_value(v);
    return 0;
}

static int plan_read_step(json_t *o, size_t stage, struct build_step *s, struct err *err)
{
    const char *type = json_string_value(json_object_get(o, "type")), *hash;
    size_t i = 0;
    if (!json_is_object(o) || !type)
        return err_set(err, ERR_USAGE, 0, "must be an object with 'type' and 'args'");
    while (i < ARRAY_LEN(types) && strcmp(types[i], type) != 0)
        i++;
    if (i == ARRAY_LEN(types))
        return err_set(err, ERR_USAGE, 0, "type '%.32s' is not one of COPY, RUN, ENV, WORKDIR, USER", type);
    s->type = (enum build_type)i;
    hash = json_string_value(json_object_get(o, "filesHash"));
    (void)snprintf(s->hash, sizeof s->hash, "%s", hash && plan_hash_valid(hash) ? hash : "");
    if (plan_member_bool(o, "force", &s->force, err) < 0 || plan_read_args(json_object_get(o, "args"), s, err) < 0 ||
        plan_read_stage_number(o, stage, &s->from, err) < 0)
        return -1;
    if (s->from >= 0 && s->type != BUILD_COPY)
        return err_set(err, ERR_USAGE, 0, "field 'fromStage' is for COPY, not for %s", types[s->type]);
    if (s->from >= 0)
        s->hash[0] = '\0';
    return plan_check_step(s, err);
}

/* Appends the steps of one stage to those of the stages before. */
static int plan_read_steps(json_t *root, size_t stage, struct build_plan *ret, struct err *err)
{
    json_t *list = json_object_get(root, "steps");
    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list))
        return err_set(err, ERR_USAGE, 0, "field 'steps' must be an array");
    size_t n = ret->nsteps + json_array_size(list);
    if (n > BUILD_STEPS_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'steps' has %zu entries%s; at most %d are allowed", n,
                       ret->nsteps ? ", with those of the stages before" : "", BUILD_STEPS_MAX);
    if (!ret->steps)
        ret->steps = xcalloc(BUILD_STEPS_MAX, sizeof *ret->steps);
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct build_step *s = &ret->steps[ret->nsteps++];
        *s = (struct build_step){.from = -1};
        if (plan_read_step(json_array_get(list, i), stage, s, err) < 0)
            return err_wrap(err, "steps[%zu]", i);
    }
    return 0;
}

static int plan_read_stage(json_t *o, size_t number, struct build_plan *plan, struct build_stage *ret, struct err *err)
{
    *ret = (struct build_stage){.from_stage = -1};
    if (!json_is_object(o))
        return err_set(err, ERR_USAGE, 0, "must be an object");
    if (plan_member_text(o, "fromImage", FROM_MAX, &ret->from_image, err) < 0 ||
        plan_member_text(o, "fromTemplate", FROM_MAX, &ret->from_template, err) < 0 ||
        plan_read_stage_number(o, number, &ret->from_stage, err) < 0)
        return -1;
    if ((ret->from_image != NULL) + (ret->from_template != NULL) + (ret->from_stage >= 0) > 1)
        return err_set(err, ERR_USAGE, 0,
                       "give one of 'fromImage' and 'fromTemplate' (or 'fromStage'), not more than one");
    if (!ret->from_image && !ret->from_template && ret->from_stage < 0)
        ret->from_image = xstrdup("e2bdev/base");
    int rc = plan_read_steps(o, number, plan, err);
    ret->end = plan->nsteps;
    return rc;
}

/* "stages": our extension, for COPY from one stage into another. */
static int plan_read_stages(json_t *root, struct build_plan *ret, struct err *err)
{
    const json_t *list = json_object_get(root, "stages");
    if (list && !json_is_null(list) && !json_is_array(list))
        return err_set(err, ERR_USAGE, 0, "field 'stages' must be an array");
    size_t n = json_array_size(list);
    if (n > BUILD_STAGES_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'stages' has %zu entries; at most %d are allowed", n,
                       BUILD_STAGES_MAX);
    ret->stages = xcalloc(n + 1, sizeof *ret->stages);
    for (size_t i = 0; i < n; i++)
        if (plan_read_stage(json_array_get(list, i), i, ret, &ret->stages[ret->nstages++], err) < 0)
            return err_wrap(err, "stages[%zu]", i);
    return plan_read_stage(root, n, ret, &ret->last, err);
}

static int plan_registry_basic(json_t *r, struct build_registry *ret, struct err *err)
{
    if (plan_member_text(r, "username", FROM_MAX, &ret->user, err) < 0 ||
        plan_member_text(r, "password", SECRET_MAX, &ret->password, err) < 0)
        return -1;
    return ret->user && strpbrk(ret->user, ":\n")
               ? err_set(err, ERR_USAGE, 0, "field 'username' has a ':' or a new line")
               : 0;
}

/* Google's registries take the key of a service account as the password of the user _json_key. */
static int plan_registry_gcp(json_t *r, struct build_registry *ret, struct err *err)
{
    int rc = plan_member_text(r, "serviceAccountJson", SECRET_MAX, &ret->password, err);
    if (rc < 0)
        return -1;
    json_t *key = rc ? json_loads(ret->password, JSON_REJECT_DUPLICATES, NULL) : NULL;
    bool good = json_is_string(json_object_get(key, "private_key"));
    json_decref(key);
    if (!good)
        return err_set(
            err, ERR_USAGE, 0,
            "field 'serviceAccountJson' must be the key of a service account, a JSON object with private_key");
    ret->user = xstrdup("_json_key");
    return 0;
}

static int plan_registry_aws(json_t *r, struct build_registry *ret, struct err *err)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/+=_-";
    if (plan_member_text(r, "awsAccessKeyId", BUILD_USER_MAX * 2, &ret->user, err) < 0 ||
        plan_member_text(r, "awsSecretAccessKey", FROM_MAX, &ret->password, err) < 0 ||
        plan_member_text(r, "awsRegion", REGION_MAX, &ret->region, err) < 0)
        return -1;
    if (!ret->user || strspn(ret->user, plain) != strlen(ret->user))
        return err_set(err, ERR_USAGE, 0, "field 'awsAccessKeyId' must be the id of an access key");
    if (!ret->password || strspn(ret->password, plain) != strlen(ret->password))
        return err_set(err, ERR_USAGE, 0, "field 'awsSecretAccessKey' must be a secret access key");
    if (!ret->region || strspn(ret->region, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(ret->region))
        return err_set(err, ERR_USAGE, 0, "field 'awsRegion' must be a region, like eu-central-1");
    return 0;
}

static int plan_read_registry(json_t *root, struct build_plan *ret, struct err *err)
{
    static const struct {
        const char *type;
        int (*read)(json_t *r, struct build_registry *ret, struct err *err);
    } kinds[] = {{"registry", plan_registry_basic}, {"aws", plan_registry_aws}, {"gcp", plan_registry_gcp}};
    json_t *r = json_object_get(root, "fromImageRegistry");
    if (!r || json_is_null(r))
        return 0;
    const char *type = json_string_value(json_object_get(r, "type"));
    for (size_t i = 0; type && i < ARRAY_LEN(kinds); i++)
        if (strcmp(kinds[i].type, type) == 0)
            return kinds[i].read(r, &ret->registry, err) < 0 ? err_wrap(err, "fromImageRegistry") : 0;
    return err_set(err, ERR_USAGE, 0,
                   "field 'fromImageRegistry' has the type 'registry' (username, password), 'aws' (awsAccessKeyId, "
                   "awsSecretAccessKey, awsRegion) or 'gcp' (serviceAccountJson)");
}

int build_plan_parse(json_t *root, struct build_plan *ret, struct err *err)
{
    memset(ret, 0, sizeof *ret);
    if (!json_is_object(root))
        return err_set(err, ERR_USAGE, 0, "the body must be an object with 'fromImage' or 'fromTemplate' and 'steps'");
    if (plan_member_text(root, "startCmd", BUILD_COMMAND_MAX, &ret->start, err) < 0 ||
        plan_member_text(root, "readyCmd", BUILD_COMMAND_MAX, &ret->ready, err) < 0 ||
        plan_member_bool(root, "force", &ret->force, err) < 0 || plan_read_registry(root, ret, err) < 0)
        return -1;
    return plan_read_stages(root, ret, err);
}

static void plan_stage_done(struct build_stage *s)
{
    free(s->from_image);
    free(s->from_template);
}

void build_plan_done(struct build_plan *p)
{
    if (p->registry.password)
        explicit_bzero(p->registry.password, strlen(p->registry.password));
    free(p->registry.password);
    free(p->registry.user);
    free(p->registry.region);
    plan_stage_done(&p->last);
    for (size_t i = 0; i < p->nstages; i++)
        plan_stage_done(&p->stages[i]);
    free(p->stages);
    free(p->start);
    free(p->ready);
    for (size_t i = 0; i < p->nsteps; i++)
        strv_done(&p->steps[i].args);
    free(p->steps);
    *p = (struct build_plan){0};
}

void build_step_text(const struct build_step *s, struct buf *out)
{
    _cleanup_buf_ struct buf text = {0};
    for (size_t i = 0; i < s->args.n; i++)
        if (s->type == BUILD_ENV)
            buf_addf(&text, "%s%s", i == 0 ? "" : i % 2 ? "=" : " ", s->args.v[i]);
        else if (*s->args.v[i] && !(s->type == BUILD_RUN && i > 0) && !(s->type == BUILD_COPY && i > 1))
            buf_addf(&text, "%s%s", i ? " " : "", s->args.v[i]);
    buf_addf(out, "%s ", types[s->type]);
    if (s->from >= 0)
        buf_adds(out, "--from ");
    text_add_safe(out, buf_str(&text), TEXT_MAX);
}

/* --- what steps run with ------------------------------------------------------------------------------------------ */

void build_context_done(struct build_context *c)
{
    free(c->user);
    free(c->workdir);
    strv_done(&c->env);
    *c = (struct build_context){0};
}

void build_context_set(struct build_context *c, const char *name, const char *value)
{
    size_t n = strlen(name);
    char *text = xasprintf("%s=%s", name, value);
    for (size_t i = 0; i < c->env.n; i++)
        if (strncmp(c->env.v[i], name, n) == 0 && c->env.v[i][n] == '=') {
            free(c->env.v[i]);
            c->env.v[i] = text;
            return;
        }
    strv_take(&c->env, text);
}

const char *build_context_get(const struct build_context *c, const char *name, size_t n)
{
    for (size_t i = 0; i < c->env.n; i++)
        if (strncmp(c->env.v[i], name, n) == 0 && c->env.v[i][n] == '=')
            return c->env.v[i] + n + 1;
    return NULL;
}

static size_t variable_name_length(const char *s)
{
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || s[n] == '_')
        n++;
    return n && !isdigit((unsigned char)s[0]) ? n : 0;
}

char *build_expand(const struct build_context *c, const char *text)
{
    _cleanup_buf_ struct buf out = {0};
    for (const char *p = text; *p; p++) {
        if (p[0] == '\\' && p[1] == '$') {
            buf_addc(&out, *++p);
            continue;
        }
        bool braces = p[0] == '$' && p[1] == '{';
        size_t n = p[0] == '$' ? variable_name_length(p + 1 + braces) : 0;
        if (n == 0 || (braces && p[2 + n] != '}')) {
            buf_addc(&out, *p);
            continue;
        }
        const char *value = build_context_get(c, p + 1 + braces, n);
        buf_adds(&out, value ? value : "");
        p += n + (braces ? 2 : 0);
        if (out.n > BUILD_ENV_BYTES_MAX) /* a few variables can expand to very long texts */
            return NULL;
    }
    return xstrdup(buf_str(&out));
}

char *build_path(const struct build_context *c, const char *text)
{
    _cleanup_free_ char *path = build_expand(c, text);
    size_t n = path ? strlen(path) : SIZE_MAX;
    if (n > BUILD_PATH_MAX)
        return NULL;
    bool slash = n && path[n - 1] == '/';
    bool dot = strcmp(path, ".") == 0 || (n > 1 && strcmp(path + n - 2, "/.") == 0);
    _cleanup_free_ char *clean = path_clean(c->workdir ? c->workdir : "/", path);
    return (slash || dot) && strcmp(clean, "/") != 0 ? xasprintf("%s/", clean) : TAKE_PTR(clean);
}

int build_env_step(struct build_context *c, const struct build_step *s, struct err *err)
{
    struct build_context before = {0};
    size_t bytes = 0;
    for (size_t i = 0; i < c->env.n; i++)
        strv_add(&before.env, c->env.v[i]);
    for (size_t i = 0; i + 1 < s->args.n; i += 2) {
        const char *name = s->args.v[i];
        if (!*name || variable_name_length(name) != strlen(name)) {
            build_context_done(&before);
            return err_set(err, ERR_USAGE, 0, "'%.64s' is no name of a variable: letters, digits and '_'", name);
        }
        /* All values of one ENV see the variables from before it, as in a Dockerfile. */
        _cleanup_free_ char *value = build_expand(&before, s->args.v[i + 1]);
        if (!value) {
            build_context_done(&before);
            return err_set(err, ERR_USAGE, 0, "the value of %.64s has more than %d bytes", name, BUILD_ENV_BYTES_MAX);
        }
        build_context_set(c, name, value);
    }
    build_context_done(&before);
    for (size_t i = 0; i < c->env.n; i++)
        bytes += strlen(c->env.v[i]) + 1;
    if (bytes > BUILD_ENV_BYTES_MAX)
        return err_set(err, ERR_USAGE, 0, "all variables together have more than %d bytes", BUILD_ENV_BYTES_MAX);
    return 0;
}

static void step_key_add(struct sha256 *h, const char *s)
{
    uint64_t n = s ? strlen(s) : UINT64_MAX;
    sha256_add(h, &n, sizeof n); /* the lengths keep different lists of words different */
    if (s)
        sha256_add(h, s, strlen(s));
}

void build_step_key(const char *parent, const struct build_step *s, const struct build_context *c, char ret[SHA256_HEX])
{
    struct sha256 h;
    uint8_t digest[SHA256_BYTES];
    sha256_start(&h);
    step_key_add(&h, "step 1");
    step_key_add(&h, parent);
    step_key_add(&h, types[s->type]);
    for (size_t i = 0; i < s->args.n; i++)
        step_key_add(&h, s->args.v[i]);
    step_key_add(&h, NULL);
    step_key_add(&h, c->user);
    step_key_add(&h, c->workdir);
    for (size_t i = 0; i < c->env.n; i++)
        step_key_add(&h, c->env.v[i]);
    step_key_add(&h, NULL);
    step_key_add(&h, s->hash);
    if (s->from >= 0)
        step_key_add(&h, "stage"); /* s->hash is the key of a stage, not an upload's name */
    sha256_end(&h, digest);
    for (size_t i = 0; i < SHA256_BYTES; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", digest[i]);
}
