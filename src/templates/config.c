/* The configuration of a template in its row: one JSON object. It contains texts of a build, so it is checked again
 * when it is read.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "templates/templates-int.h"

enum { ENV_MAX = 1024, CPU_MILLI_MAX = 1000000 };

static char *text_copy(const char *s) { return s ? xstrdup(s) : NULL; }

void template_config_copy(struct template_config *to, const struct template_config *from)
{
    *to = *from;
    to->user = text_copy(from->user);
    to->workdir = text_copy(from->workdir);
    to->start = text_copy(from->start);
    to->ready = text_copy(from->ready);
    to->env = (struct strv){0};
    for (size_t i = 0; i < from->env.n; i++)
        strv_add(&to->env, from->env.v[i]);
}

void template_config_done(struct template_config *c)
{
    free(c->user);
    free(c->workdir);
    free(c->start);
    free(c->ready);
    strv_done(&c->env);
    *c = (struct template_config){0};
}

static void template_config_add_text(struct json *j, const char *key, const char *s)
{
    if (s)
        json_str(j, key, s);
}

static void template_config_add_number(struct json *j, const char *key, uint64_t n)
{
    if (n)
        json_u64(j, key, n);
}

void template_config_add(struct json *j, const char *key, const struct template_config *c)
{
    json_obj(j, key);
    template_config_add_text(j, "user", c->user);
    template_config_add_text(j, "workdir", c->workdir);
    if (c->env.n) {
        json_arr(j, "env");
        for (size_t i = 0; i < c->env.n; i++)
            json_str(j, NULL, c->env.v[i]);
        json_end_arr(j);
    }
    template_config_add_text(j, "start", c->start);
    template_config_add_text(j, "ready", c->ready);
    template_config_add_number(j, "cpuMilli", c->cpu_milli);
    template_config_add_number(j, "memory", c->memory);
    template_config_add_number(j, "disk", c->disk);
    if (c->history)
        json_bool(j, "history", true);
    json_end_obj(j);
}

char *template_config_json(const struct template_config *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    template_config_add(&j, NULL, c);
    return xstrdup(buf_str(&out));
}

char *template_config_text(const struct template *t, const struct template_tag *tag)
{
    struct template_config c = *template_config_of(t, tag); /* borrowed */
    c.history = t->config.history;
    return template_config_json(&c);
}

static int template_config_read_text(json_t *o, const char *name, char **ret, struct err *err)
{
    const json_t *v = json_object_get(o, name);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return err_set(err, ERR_SETUP, 0, "a template's '%s' must be a string without NUL", name);
    *ret = xstrdup(json_string_value(v));
    return 0;
}

static int template_config_read_number(json_t *o, const char *name, uint64_t max, uint64_t *ret, struct err *err)
{
    const json_t *v = json_object_get(o, name);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) > max)
        return err_set(err, ERR_SETUP, 0, "a template's '%s' must be a number up to %llu", name,
                       (unsigned long long)max);
    *ret = (uint64_t)json_integer_value(v);
    return 0;
}

static int template_config_read_env(json_t *o, struct strv *ret, struct err *err)
{
    json_t *list = json_object_get(o, "env");
    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list) || json_array_size(list) > ENV_MAX)
        return err_set(err, ERR_SETUP, 0, "a template's 'env' must be an array of at most %d variables", ENV_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const char *s = json_string_value(v);
        if (!s || strlen(s) != json_string_length(v) || s[0] == '=' || !strchr(s, '='))
            return err_set(err, ERR_SETUP, 0, "a template's 'env[%zu]' must be NAME=VALUE without NUL", i);
        strv_add(ret, s);
    }
    return 0;
}

int template_config_read(json_t *o, struct template_config *ret, struct err *err)
{
    uint64_t cpu = 0;
    int rc = 0;
    *ret = (struct template_config){0};
    if (!json_is_object(o))
        return err_set(err, ERR_SETUP, 0, "a template's configuration must be a JSON object");
    if (template_config_read_text(o, "user", &ret->user, err) < 0 ||
        template_config_read_text(o, "workdir", &ret->workdir, err) < 0 ||
        template_config_read_text(o, "start", &ret->start, err) < 0 ||
        template_config_read_text(o, "ready", &ret->ready, err) < 0 ||
        template_config_read_env(o, &ret->env, err) < 0 ||
        template_config_read_number(o, "cpuMilli", CPU_MILLI_MAX, &cpu, err) < 0 ||
        template_config_read_number(o, "memory", INT64_MAX, &ret->memory, err) < 0 ||
        template_config_read_number(o, "disk", INT64_MAX, &ret->disk, err) < 0)
        rc = -1;
    ret->cpu_milli = (uint32_t)cpu;
    ret->history = json_is_true(json_object_get(o, "history"));
    if (rc < 0)
        template_config_done(ret);
    return rc;
}

int template_config_parse(const char *text, struct template_config *ret, struct err *err)
{
    json_error_t where;
    *ret = (struct template_config){0};
    if (!*text)
        return 0;
    if (strlen(text) > TEMPLATE_CONFIG_MAX)
        return err_set(err, ERR_SETUP, 0, "a template's configuration is larger than %d bytes", TEMPLATE_CONFIG_MAX);
    json_t *o = json_loads(text, 0, &where);
    int rc = template_config_read(o, ret, err);
    json_decref(o);
    return rc;
}
