/* Tags of templates in memory and as text: arrays of them share what is known about the builds they name. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "front/templates-int.h"

static void set_config(struct tmpl_origin *o, enum tmpl_kind kind, const struct tmpl_config *c)
{
    _cleanup_free_ char *text = tmpl_config_json(c);
    tmpl_config_copy(&o->config, c);
    o->bytes = strlen(text);
    o->with_config = true;
    o->kind = kind;
}

struct tmpl_origin *tmpl_origin_new(const struct tmpl_new *n)
{
    bool image = n->image && *n->image;
    if (!image && !n->config)
        return NULL;
    struct tmpl_origin *o = xcalloc(1, sizeof *o);
    o->holders = 1;
    o->image = image ? xstrdup(n->image) : NULL;
    (void)snprintf(o->manifest, sizeof o->manifest, "%s", image && n->manifest ? n->manifest : "");
    if (n->config)
        set_config(o, n->kind, n->config);
    return o;
}

struct tmpl_origin *tmpl_origin_hold(struct tmpl_origin *o)
{
    if (o)
        o->holders++;
    return o;
}

void tmpl_origin_drop(struct tmpl_origin *o)
{
    if (!o || --o->holders)
        return;
    tmpl_config_done(&o->config);
    free(o->image);
    free(o);
}

void tmpl_tags_free(struct tmpl_tag *v, size_t n)
{
    for (size_t i = 0; v && i < n; i++)
        tmpl_origin_drop(v[i].origin);
    free(v);
}

struct tmpl_tag *tmpl_tags_without(const struct tmpl_tag *v, size_t n, const char *tag, size_t *ret_n)
{
    struct tmpl_tag *ret = xcalloc(n + 1, sizeof *ret);
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (!tag || strcmp(v[i].tag, tag) != 0) {
            ret[k] = v[i];
            (void)tmpl_origin_hold(ret[k++].origin);
        }
    *ret_n = k;
    return ret;
}

/* --- as text ------------------------------------------------------------------------------------------------------ */

char *tmpl_tag_text(const struct tmpl_tag *g)
{
    _cleanup_buf_ struct buf out = {0};
    const struct tmpl_origin *o = g->origin;
    struct json j;
    buf_addf(&out, "%llu %llu", (unsigned long long)g->created_unix_ms, (unsigned long long)g->bytes);
    if (!o)
        return xstrdup(buf_str(&out));
    buf_addc(&out, ' ');
    json_start(&j, &out);
    json_obj(&j, NULL);
    if (o->image)
        json_str(&j, "image", o->image);
    if (o->manifest[0])
        json_str(&j, "manifest", o->manifest);
    if (o->with_config) {
        json_u64(&j, "kind", (uint64_t)o->kind);
        tmpl_config_add(&j, "config", &o->config);
    }
    if (g->given)
        json_bool(&j, "given", true);
    json_end_obj(&j);
    return xstrdup(buf_str(&out));
}

static void parse_origin(const char *text, struct tmpl_tag *g)
{
    json_error_t where;
    json_t *o = json_loads(text, 0, &where);
    const char *manifest = json_string_value(json_object_get(o, "manifest"));
    json_t *config = json_object_get(o, "config");
    json_int_t kind = json_integer_value(json_object_get(o, "kind"));
    struct tmpl_config c = {0};
    struct err err;
    bool known = kind >= TMPL_BUILT && kind <= TMPL_SNAPSHOT && config;
    if (known && tmpl_config_read(config, &c, &err) < 0) {
        log_text(LOG_LEVEL_ERROR, "tag %s of a template: %s; it starts as the template", g->tag, err.msg);
        known = false;
    }
    const struct tmpl_new n = {.image = json_string_value(json_object_get(o, "image")),
                               .manifest = manifest && strlen(manifest) == SHA256_HEX - 1 ? manifest : NULL,
                               .kind = known ? (enum tmpl_kind)kind : 0,
                               .config = known ? &c : NULL};
    g->origin = tmpl_origin_new(&n);
    tmpl_config_done(&c);
    g->given = json_is_true(json_object_get(o, "given"));
    json_decref(o);
}

/* The number at the beginning; returns what comes after the space behind it. */
static const char *take_number(const char *text, uint64_t *ret)
{
    char digits[24];
    size_t n = strcspn(text, " ");
    (void)snprintf(digits, sizeof digits, "%.*s", (int)(n < sizeof digits ? n : 0), text);
    (void)num_u64(digits, ret);
    return text + n + (text[n] == ' ');
}

void tmpl_tag_parse(const char *text, struct tmpl_tag *g)
{
    text = take_number(text, &g->created_unix_ms);
    if (*text)
        text = take_number(text, &g->bytes);
    if (*text)
        parse_origin(text, g);
}

void tmpl_tags_complete(struct tmpl *t)
{
    struct tmpl_origin *plain = NULL;
    for (size_t i = 0; i < t->ntags; i++) {
        struct tmpl_tag *g = &t->tags[i];
        const struct tmpl_new n = {.kind = t->kind, .config = &t->config};
        if (g->origin && !g->origin->with_config)
            set_config(g->origin, t->kind, &t->config);
        else if (!g->origin && plain)
            g->origin = tmpl_origin_hold(plain);
        else if (!g->origin)
            g->origin = plain = tmpl_origin_new(&n);
    }
}
