/* Tags of templates in memory and as text. Tags of the same build share a struct template_origin. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "templates/templates-int.h"

static void template_origin_set_config(struct template_origin *o, enum template_kind kind,
                                       const struct template_config *c)
{
    _cleanup_free_ char *text = template_config_json(c);
    template_config_copy(&o->config, c);
    o->bytes = strlen(text);
    o->with_config = true;
    o->kind = kind;
}

struct template_origin *template_origin_new(const struct template_new *n)
{
    bool image = n->image && *n->image;
    if (!image && !n->config)
        return NULL;
    struct template_origin *o = xcalloc(1, sizeof *o);
    o->holders = 1;
    o->image = image ? xstrdup(n->image) : NULL;
    (void)snprintf(o->manifest, sizeof o->manifest, "%s", image && n->manifest ? n->manifest : "");
    if (n->config)
        template_origin_set_config(o, n->kind, n->config);
    return o;
}

struct template_origin *template_origin_hold(struct template_origin *o)
{
    if (o)
        o->holders++;
    return o;
}

void template_origin_drop(struct template_origin *o)
{
    if (!o || --o->holders)
        return;
    template_config_done(&o->config);
    free(o->image);
    free(o);
}

void template_tags_free(struct template_tag *v, size_t n)
{
    for (size_t i = 0; v && i < n; i++)
        template_origin_drop(v[i].origin);
    free(v);
}

struct template_tag *template_tags_without(const struct template_tag *v, size_t n, const char *tag, size_t *ret_n)
{
    struct template_tag *ret = xcalloc(n + 1, sizeof *ret);
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (!tag || strcmp(v[i].tag, tag) != 0) {
            ret[k] = v[i];
            (void)template_origin_hold(ret[k++].origin);
        }
    *ret_n = k;
    return ret;
}

/* --- as text ------------------------------------------------------------------------------------------------------ */

char *template_tag_text(const struct template_tag *g)
{
    _cleanup_buf_ struct buf out = {0};
    const struct template_origin *o = g->origin;
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
        template_config_add(&j, "config", &o->config);
    }
    if (g->given)
        json_bool(&j, "given", true);
    json_end_obj(&j);
    return xstrdup(buf_str(&out));
}

static void template_origin_parse(const char *text, struct template_tag *g)
{
    json_error_t where;
    json_t *o = json_loads(text, 0, &where);
    const char *manifest = json_string_value(json_object_get(o, "manifest"));
    json_t *config = json_object_get(o, "config");
    json_int_t kind = json_integer_value(json_object_get(o, "kind"));
    struct template_config c = {0};
    struct err err;
    bool known = kind >= TEMPLATE_BUILT && kind <= TEMPLATE_SNAPSHOT && config;
    if (known && template_config_read(config, &c, &err) < 0) {
        log_text(LOG_LEVEL_ERROR, "tag %s of a template: %s; it starts as the template", g->tag, err.msg);
        known = false;
    }
    const struct template_new n = {.image = json_string_value(json_object_get(o, "image")),
                                   .manifest = manifest && strlen(manifest) == SHA256_HEX - 1 ? manifest : NULL,
                                   .kind = known ? (enum template_kind)kind : 0,
                                   .config = known ? &c : NULL};
    g->origin = template_origin_new(&n);
    template_config_done(&c);
    g->given = json_is_true(json_object_get(o, "given"));
    json_decref(o);
}

/* Reads the number at the beginning; returns the text after the space that follows it. */
static const char *template_tag_take_number(const char *text, uint64_t *ret)
{
    char digits[24];
    size_t n = strcspn(text, " ");
    (void)snprintf(digits, sizeof digits, "%.*s", (int)(n < sizeof digits ? n : 0), text);
    (void)num_u64(digits, ret);
    return text + n + (text[n] == ' ');
}

void template_tag_parse(const char *text, struct template_tag *g)
{
    text = template_tag_take_number(text, &g->created_unix_ms);
    if (*text)
        text = template_tag_take_number(text, &g->bytes);
    if (*text)
        template_origin_parse(text, g);
}

void template_tags_complete(struct template *t)
{
    struct template_origin *plain = NULL;
    for (size_t i = 0; i < t->ntags; i++) {
        struct template_tag *g = &t->tags[i];
        const struct template_new n = {.kind = t->kind, .config = &t->config};
        if (g->origin && !g->origin->with_config)
            template_origin_set_config(g->origin, t->kind, &t->config);
        else if (!g->origin && plain)
            g->origin = template_origin_hold(plain);
        else if (!g->origin)
            g->origin = plain = template_origin_new(&n);
    }
}
