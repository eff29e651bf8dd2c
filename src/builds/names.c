/* Parses names of templates, tags and images, and the configuration of an image. Pure. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/text.h"
#include "builds/builds.h"
#include "http/body.h"

#define NAME_CHARS "abcdefghijklmnopqrstuvwxyz0123456789-_"

static bool name_is_uuid(const char *s)
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

static bool name_is_nodes(const char *name) { return strcmp(name, "base") == 0 || strcmp(name, "host") == 0; }

bool build_tag_ok(const char *tag)
{
    size_t n = strlen(tag);
    return n > 0 && n < TEMPLATE_TAG_MAX && strspn(tag, NAME_CHARS ".") == n && !name_is_uuid(tag);
}

bool build_name_parse(const char *text, char name[TEMPLATE_NAME_MAX], char tag[TEMPLATE_TAG_MAX], struct err *err)
{
    char lower[TEMPLATE_NAME_MAX + TEMPLATE_TAG_MAX + 80];
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
    if (len == 0 || len >= TEMPLATE_NAME_MAX || strspn(at, NAME_CHARS) < len)
        return err_set(err, ERR_USAGE, 0,
                       "'%.80s' is no name of a template: letters, digits, '-' and '_', at most %d, then perhaps :TAG",
                       text, TEMPLATE_NAME_MAX - 1),
               false;
    (void)snprintf(name, TEMPLATE_NAME_MAX, "%.*s", (int)len, at);
    if (colon && !build_tag_ok(colon + 1))
        return err_set(err, ERR_USAGE, 0, "'%.80s' is no tag: letters, digits, '-', '_' and '.', and no UUID",
                       colon + 1),
               false;
    (void)snprintf(tag, TEMPLATE_TAG_MAX, "%s", colon ? colon + 1 : "");
    if (name_is_nodes(name))
        return err_set(err, ERR_USAGE, 0, "the name '%s' belongs to the node; take another", name), false;
    if (template_id_shaped(name))
        return err_set(err, ERR_USAGE, 0, TEMPLATE_ID_SHAPED_TEXT, name), false;
    return true;
}

/* --- images ------------------------------------------------------------------------------------------------------- */

enum { MARK_DIGITS = 12, MARK_MAX = 2 + MARK_DIGITS };

/* Whether it already ends like a name with a mark. */
static bool name_is_marked(const char *s)
{
    size_t n = strlen(s);
    return n > MARK_MAX && s[n - MARK_MAX] == '-' && s[n - MARK_MAX + 1] == '-' &&
           strspn(s + n - MARK_DIGITS, "0123456789abcdef") == MARK_DIGITS;
}

/* Appends digits of the SHA-256 of the original to a name that had to be changed, so that different originals stay
 * different. */
static void name_add_mark(char *name, size_t room, const char *whole, size_t n)
{
    char hex[SHA256_HEX];
    size_t len = strlen(name);
    sha256_hex(whole, n, hex);
    if (len > room - 1 - MARK_MAX)
        len = room - 1 - MARK_MAX;
    (void)snprintf(name + len, room - len, "--%.*s", MARK_DIGITS, hex);
}

/* The first part is a registry if it has a dot or a colon in it, or is "localhost". */
static bool ref_has_host(const char *ref)
{
    size_t n = strcspn(ref, "/");
    return ref[n] && (memchr(ref, '.', n) || memchr(ref, ':', n) || strncmp(ref, "localhost/", 10) == 0);
}

/* Skips what may be left out: docker://, the host of Docker Hub, and library/ there. */
static const char *ref_shorten(const char *ref)
{
    static const char *const hub[] = {"docker.io/", "index.docker.io/"};
    static const char scheme[] = "docker://", library[] = "library/";
    if (strncmp(ref, scheme, sizeof scheme - 1) == 0)
        ref += sizeof scheme - 1;
    for (size_t i = 0; i < ARRAY_LEN(hub); i++) {
        size_t n = strlen(hub[i]);
        if (strncmp(ref, hub[i], n) == 0 && !ref_has_host(ref + n)) {
            ref += n;
            break;
        }
    }
    bool official = strncmp(ref, library, sizeof library - 1) == 0 && !strchr(ref + sizeof library - 1, '/');
    return official ? ref + sizeof library - 1 : ref;
}

static void image_set_name(struct build_image *i)
{
    char whole[LAYERS_REF_MAX];
    bool changed = i->repo >= TEMPLATE_NAME_MAX;
    size_t n = changed ? TEMPLATE_NAME_MAX - 1 : i->repo;
    memcpy(whole, i->ref, i->repo);
    for (size_t k = 0; k < n; k++) {
        char c = (char)tolower((unsigned char)whole[k]);
        i->name[k] = strchr(NAME_CHARS, c) ? c : '-';
        changed |= i->name[k] != whole[k];
    }
    i->name[n] = '\0';
    if (i->repo < TEMPLATE_NAME_MAX && !template_id_shaped(i->name))
        memcpy(i->loose_name, i->name, sizeof i->name);
    if (changed || name_is_marked(i->name) || template_id_shaped(i->name) || name_is_nodes(i->name))
        name_add_mark(i->name, sizeof i->name, whole, i->repo);
}

static bool image_set_tag(struct build_image *i, const char *tag)
{
    size_t n = strlen(tag), k = 0;
    bool changed = n >= TEMPLATE_TAG_MAX;
    if (n == 0 || strspn(tag, NAME_CHARS ".ABCDEFGHIJKLMNOPQRSTUVWXYZ") != n)
        return false;
    for (; k < n && k < TEMPLATE_TAG_MAX - 1; k++) {
        i->tag[k] = (char)tolower((unsigned char)tag[k]);
        changed |= i->tag[k] != tag[k];
    }
    i->tag[k] = '\0';
    if (n < TEMPLATE_TAG_MAX && !name_is_uuid(i->tag))
        memcpy(i->loose_tag, i->tag, sizeof i->tag);
    if (changed || name_is_marked(i->tag) || name_is_uuid(i->tag))
        name_add_mark(i->tag, sizeof i->tag, tag, n);
    return true;
}

/* "sha256:" and 64 digits; the tag of the row shows the first ones. */
static bool image_set_digest(struct build_image *i, const char *digest)
{
    static const char kind[] = "sha256:";
    const char *hex = digest + sizeof kind - 1;
    if (strncmp(digest, kind, sizeof kind - 1) != 0 || strlen(hex) != SHA256_HEX - 1 ||
        strspn(hex, "0123456789abcdef") != SHA256_HEX - 1)
        return false;
    memcpy(i->digest, hex, sizeof i->digest);
    (void)snprintf(i->tag, sizeof i->tag, "%.*s", MARK_DIGITS, hex);
    name_add_mark(i->tag, sizeof i->tag, digest, strlen(digest));
    return true;
}

bool build_image_parse(const char *text, struct build_image *ret)
{
    const char *ref = ref_shorten(text), *at = strchr(ref, '@');
    size_t end = at ? (size_t)(at - ref) : strlen(ref);
    const char *slash = memrchr(ref, '/', end), *from = slash ? slash : ref;
    const char *colon = memchr(from, ':', end - (size_t)(from - ref));
    *ret = (struct build_image){.repo = colon ? (size_t)(colon - ref) : end, .plain = !at && !colon};
    if (ret->repo == 0 || strlen(ref) + sizeof ":latest" > sizeof ret->ref)
        return false;
    const char *rest = at ? at : colon ? colon : ":latest"; /* a digest makes the tag irrelevant */
    memcpy(ret->ref, ref, ret->repo);
    memcpy(ret->ref + ret->repo, rest, strlen(rest) + 1);
    image_set_name(ret);
    return at ? image_set_digest(ret, at + 1) : image_set_tag(ret, ret->ref + ret->repo + 1);
}

bool build_image_same_repo(const struct build_image *i, const char *ref)
{
    return strncmp(ref, i->ref, i->repo) == 0 && (ref[i->repo] == ':' || ref[i->repo] == '@') &&
           !strchr(ref + i->repo, '/'); /* with a '/' after it, the apparent tag was a port */
}

bool build_image_is(const struct build_image *i, const char *ref, const char *manifest)
{
    if (strcmp(ref, i->ref) == 0)
        return true;
    return i->digest[0] && strcmp(manifest, i->digest) == 0 && build_image_same_repo(i, ref);
}

/* --- imports ------------------------------------------------------------------------------------------------------ */

int build_config_limit(struct template_config *c, struct err *err)
{
    size_t bytes = 0;
    for (size_t i = 0; i < c->env.n; i++)
        bytes += strlen(c->env.v[i]) + 1;
    if (bytes > BUILD_ENV_BYTES_MAX)
        return err_set(err, ERR_USAGE, 0, "its variables together have more than %d bytes", BUILD_ENV_BYTES_MAX);
    if ((c->start && strlen(c->start) > BUILD_COMMAND_MAX) || (c->ready && strlen(c->ready) > BUILD_COMMAND_MAX))
        return err_set(err, ERR_USAGE, 0, "one of its commands has more than %d bytes", BUILD_COMMAND_MAX);
    if ((c->user && strlen(c->user) > BUILD_USER_MAX) || (c->workdir && strlen(c->workdir) > BUILD_PATH_MAX))
        return err_set(err, ERR_USAGE, 0, "its user has more than %d bytes, or its directory more than %d",
                       BUILD_USER_MAX, BUILD_PATH_MAX);
    uint64_t least = (uint64_t)BUILD_MEMORY_MIN << 20, most = (uint64_t)BUILD_MEMORY_MAX << 20;
    c->disk = 0;
    if (c->memory)
        c->memory = c->memory < least ? least : c->memory > most ? most : c->memory;
    if (c->cpu_milli > BUILD_CPU_MAX * 1000)
        c->cpu_milli = BUILD_CPU_MAX * 1000;
    return 0;
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
    if (ref[n] != '/' || (!memchr(ref, '.', n) && !memchr(ref, ':', n) && strncmp(ref, "localhost/", 10) != 0))
        return false; /* no host: Docker Hub */
    return text_listed(list, ref, n);
}

void build_image_config(const char *json, size_t n, struct template_config *ret)
{
    struct err err;
    json_t *root = body_parse(json, n, &err);
    const json_t *c = json_object_get(root, "config"), *env = json_object_get(c, "Env");
    const char *user = json_string_value(json_object_get(c, "User")),
               *workdir = json_string_value(json_object_get(c, "WorkingDir"));
    size_t bytes = 0;
    *ret = (struct template_config){0};
    for (size_t i = 0; i < json_array_size(env) && i < BUILD_ARGS_MAX; i++) {
        const char *v = json_string_value(json_array_get(env, i));
        if (v && strchr(v, '=') && *v != '=' && (bytes += strlen(v) + 1) <= BUILD_ENV_BYTES_MAX)
            strv_add(&ret->env, v);
    }
    if (workdir && workdir[0] == '/' && strlen(workdir) < 4096)
        ret->workdir = xstrdup(workdir);
    /* Of "user:group" take the user, because commands here cannot choose a group. Numeric users are not supported. */
    size_t len = user ? strcspn(user, ":") : 0;
    ret->user = len > 0 && len < 64 && !isdigit((unsigned char)user[0]) ? xstrndup(user, len) : xstrdup("root");
    json_decref(root);
}
