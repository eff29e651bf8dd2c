/* Names: of templates, tags and images; and what an image says about itself. Pure. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "front/builds.h"
#include "http/body.h"

#define NAME_CHARS "abcdefghijklmnopqrstuvwxyz0123456789-_"

static bool is_uuid(const char *s)
{
    static const unsigned dashes[] = {8, 13, 18, 23};
    if (strlen(s) != 36)
        return false;
    for (unsigned i = 0, d = 0; i < 36; i++)
        if (d < ARRAY_LEN(dashes) && i == dashes[d]) {
            if (s[i] != '-')
                return false;
            d++;
        } else if (!isxdigit((unsigned char)s[i]))
            return false;
    return true;
}

bool build_tag_ok(const char *tag)
{
    size_t n = strlen(tag);
    return n > 0 && n < TMPL_TAG_MAX && strspn(tag, NAME_CHARS ".") == n && !is_uuid(tag);
}

bool build_name_parse(const char *text, char name[TMPL_NAME_MAX], char tag[TMPL_TAG_MAX], struct err *err)
{
    char lower[TMPL_NAME_MAX + TMPL_TAG_MAX + 80];
    if (strlen(text) >= sizeof lower)
        return err_set(err, ERR_USAGE, 0, "the name of the template is too long"), false;
    size_t n = 0;
    for (; text[n]; n++)
        lower[n] = (char)tolower((unsigned char)text[n]);
    lower[n] = '\0';
    const char *slash = strchr(lower, '/'); /* "team/name": there is one team */
    const char *at = slash && strspn(lower, NAME_CHARS) == (size_t)(slash - lower) ? slash + 1 : lower;
    const char *colon = strchr(at, ':');
    size_t len = colon ? (size_t)(colon - at) : strlen(at);
    if (len == 0 || len >= TMPL_NAME_MAX || strspn(at, NAME_CHARS) < len)
        return err_set(err, ERR_USAGE, 0,
                       "'%.80s' is no name of a template: letters, digits, '-' and '_', at most %d, then perhaps :TAG",
                       text, TMPL_NAME_MAX - 1),
               false;
    (void)snprintf(name, TMPL_NAME_MAX, "%.*s", (int)len, at);
    if (colon && !build_tag_ok(colon + 1))
        return err_set(err, ERR_USAGE, 0, "'%.80s' is no tag: letters, digits, '-', '_' and '.', and no UUID",
                       colon + 1),
               false;
    (void)snprintf(tag, TMPL_TAG_MAX, "%s", colon ? colon + 1 : "");
    if (strcmp(name, "base") == 0 || strcmp(name, "host") == 0)
        return err_set(err, ERR_USAGE, 0, "the name '%s' belongs to the node; take another", name), false;
    if (tmpl_id_shaped(name))
        return err_set(err, ERR_USAGE, 0, TMPL_ID_SHAPED_TEXT, name), false;
    return true;
}

bool build_image_name(const char *ref, char name[TMPL_NAME_MAX], char tag[TMPL_TAG_MAX])
{
    static const char *const prefixes[] = {"docker.io/", "index.docker.io/", "library/"};
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++)
        if (strncmp(ref, prefixes[i], strlen(prefixes[i])) == 0)
            ref += strlen(prefixes[i]);
    const char *end = strchr(ref, '@'), *slash = strrchr(ref, '/'), *colon = strrchr(slash ? slash : ref, ':');
    if (end && colon && colon > end)
        colon = NULL; /* that of the digest: what is before it may still have one, which then says nothing */
    size_t n = colon ? (size_t)(colon - ref) : end ? (size_t)(end - ref) : strlen(ref);
    if (n == 0 || n >= TMPL_NAME_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = (char)tolower((unsigned char)ref[i]);
        name[i] = strchr(NAME_CHARS, c) ? c : '-';
    }
    name[n] = '\0';
    if (end)
        (void)snprintf(tag, TMPL_TAG_MAX, "%.12s", strchr(end, ':') ? strchr(end, ':') + 1 : end + 1);
    else
        (void)snprintf(tag, TMPL_TAG_MAX, "%s", colon ? colon + 1 : "latest");
    for (char *t = tag; *t; t++)
        *t = (char)tolower((unsigned char)*t);
    return build_tag_ok(tag) && !tmpl_id_shaped(name);
}

bool build_image_plain(const char *ref)
{
    const char *slash = strrchr(ref, '/');
    return !strchr(ref, '@') && !strchr(slash ? slash : ref, ':');
}

void build_config_limit(struct tmpl_config *c)
{
    uint64_t least = (uint64_t)BUILD_MEMORY_MIN << 20, most = (uint64_t)BUILD_MEMORY_MAX << 20;
    c->disk = 0;
    if (c->memory)
        c->memory = c->memory < least ? least : c->memory > most ? most : c->memory;
    if (c->cpu_milli > BUILD_CPU_MAX * 1000)
        c->cpu_milli = BUILD_CPU_MAX * 1000;
}

bool build_registry_listed(const char *list, const char *ref)
{
    static const char *const schemes[] = {"http://", "https://", "docker://"};
    for (size_t i = 0; i < ARRAY_LEN(schemes); i++)
        if (strncmp(ref, schemes[i], strlen(schemes[i])) == 0) {
            ref += strlen(schemes[i]);
            break;
        }
    size_t n = strcspn(ref, "/");
    if (!list || ref[n] != '/' || (!memchr(ref, '.', n) && !memchr(ref, ':', n) && strncmp(ref, "localhost/", 10) != 0))
        return false; /* no host in it: that of everybody */
    for (const char *p = list; *p;) {
        size_t k = strcspn(p, ",");
        if (k == n && strncasecmp(p, ref, n) == 0)
            return true;
        p += k + (p[k] == ',');
    }
    return false;
}

void build_image_config(const char *json, size_t n, struct tmpl_config *ret)
{
    struct err err;
    json_t *root = body_parse(json, n, &err);
    const json_t *c = json_object_get(root, "config"), *env = json_object_get(c, "Env");
    const char *user = json_string_value(json_object_get(c, "User")),
               *workdir = json_string_value(json_object_get(c, "WorkingDir"));
    size_t bytes = 0;
    *ret = (struct tmpl_config){0};
    for (size_t i = 0; i < json_array_size(env) && i < BUILD_ARGS_MAX; i++) {
        const char *v = json_string_value(json_array_get(env, i));
        if (v && strchr(v, '=') && *v != '=' && (bytes += strlen(v) + 1) <= BUILD_ENV_BYTES_MAX)
            strv_add(&ret->env, v);
    }
    if (workdir && workdir[0] == '/' && strlen(workdir) < 4096)
        ret->workdir = xstrdup(workdir);
    /* "user:group" names a group too, which commands here do not choose; a number names nobody. */
    size_t len = user ? strcspn(user, ":") : 0;
    ret->user = len > 0 && len < 64 && !isdigit((unsigned char)user[0]) ? xstrndup(user, len) : xstrdup("root");
    json_decref(root);
}
