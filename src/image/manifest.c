/* manifest.c - the JSON around an image: OCI and Docker manifests, indexes, `docker save`'s manifest.json,
 * configurations and the hutch.json of an export. Pure functions of bytes; every list has a limit, and every digest
 * must be 64 digits of SHA-256.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fields.h"
#include "base/mem.h"
#include "image/image-int.h"

enum { IMAGES_MAX = 256 /* in one manifest.json */, NAMES_SHOWN = 300 };

static json_t *manifest_parse(const char *text, size_t n, const char *what, struct err *err)
{
    json_error_t e;
    json_t *j = n > IMAGE_MANIFEST_MAX ? NULL : json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (n > IMAGE_MANIFEST_MAX)
        (void)image_fail(err, IMAGE_TOO_LARGE, "the %s is larger than %d MiB", what, IMAGE_MANIFEST_MAX >> 20);
    else if (!j)
        (void)image_fail(err, IMAGE_BAD_DATA, "the %s is not JSON: line %d: %s", what, e.line, image_shown(e.text));
    return j;
}
static const char *manifest_string(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

/* A text that does not fit becomes "": a truncated name would be another name. */
static void manifest_copy(char *ret, size_t room, const char *s)
{
    if (s && strlen(s) < room)
        memcpy(ret, s, strlen(s) + 1);
    else
        ret[0] = '\0';
}

static bool manifest_is_index(const char *media)
{
    return strcmp(media, "application/vnd.oci.image.index.v1+json") == 0 ||
           strcmp(media, "application/vnd.docker.distribution.manifest.list.v2+json") == 0;
}

static int manifest_read_descriptor(const json_t *j, const char *what, struct descriptor *ret, struct err *err)
{
    const char *digest = manifest_string(j, "digest"), *media = manifest_string(j, "mediaType");
    const json_t *size = json_object_get(j, "size"), *platform = json_object_get(j, "platform");
    *ret = (struct descriptor){0};
    if (!hash_from_digest(digest, ret->digest))
        return image_fail(err, IMAGE_BAD_DATA, "%s has the digest \"%s\"; sha256: and 64 digits are expected", what,
                          image_shown(digest));
    if (!json_is_integer(size) || json_integer_value(size) < 0)
        return image_fail(err, IMAGE_BAD_DATA, "%s has no size", what);
    ret->size = (uint64_t)json_integer_value(size);
    manifest_copy(ret->media, sizeof ret->media, media);
    manifest_copy(ret->os, sizeof ret->os, manifest_string(platform, "os"));
    manifest_copy(ret->arch, sizeof ret->arch, manifest_string(platform, "architecture"));
    manifest_copy(ret->variant, sizeof ret->variant, manifest_string(platform, "variant"));
    manifest_copy(ret->name, sizeof ret->name,
                  manifest_string(json_object_get(j, "annotations"), "org.opencontainers.image.ref.name"));
    ret->index = manifest_is_index(ret->media);
    return 0;
}

int manifest_kind(const char *text, size_t n, const char *media, struct err *err)
{
    _cleanup_json_ json_t *j = manifest_parse(text, n, "manifest", err);
    if (!j)
        return -1;
    const char *own = manifest_string(j, "mediaType");
    int64_t schema = json_integer_value(json_object_get(j, "schemaVersion"));
    if (own)
        media = own;
    if (schema == 1)
        return image_fail(
            err, IMAGE_BAD_DATA,
            "the image has a manifest of schema 1, which registries gave up in 2017; push it again with a "
            "current tool");
    if (manifest_is_index(media) || (!own && json_is_array(json_object_get(j, "manifests"))))
        return MANIFEST_LIST;
    if (json_is_object(json_object_get(j, "config")) && json_is_array(json_object_get(j, "layers")))
        return MANIFEST_IMAGE;
    return image_fail(err, IMAGE_BAD_DATA, "this is neither an image manifest nor an index (media type \"%s\")",
                      image_shown(media));
}

int manifest_image(const char *text, size_t n, struct manifest *ret, struct err *err)
{
    _cleanup_json_ json_t *j = manifest_parse(text, n, "manifest", err);
    const json_t *layers = json_object_get(j, "layers"), *layer;
    char what[64];
    size_t i;
    *ret = (struct manifest){0};
    if (!j ||
        manifest_read_descriptor(json_object_get(j, "config"), "the image's configuration", &ret->config, err) < 0)
        return -1;
    if (ret->config.size > IMAGE_CONFIG_MAX)
        return image_fail(err, IMAGE_TOO_LARGE, "the image's configuration has %llu bytes; at most %d are taken",
                          (unsigned long long)ret->config.size, IMAGE_CONFIG_MAX);
    size_t count = json_array_size(layers);
    if (!json_is_array(layers) || count == 0)
        return image_fail(err, IMAGE_BAD_DATA, "the image has no layers");
    if (count > IMAGE_LAYERS_MAX)
        return image_fail(err, IMAGE_TOO_LARGE, "the image has %zu layers; at most %d are taken", count,
                          IMAGE_LAYERS_MAX);
    ret->layer = xcalloc(count, sizeof *ret->layer);
    json_array_foreach(layers, i, layer)
    {
        struct descriptor *d = &ret->layer[ret->n++];
        (void)snprintf(what, sizeof what, "layer %zu", i + 1);
        if (manifest_read_descriptor(layer, what, d, err) < 0)
            return -1;
        if (strstr(d->media, "foreign") || strstr(d->media, "nondistributable") || strstr(d->media, "encrypted"))
            return image_fail(err, IMAGE_BAD_DATA, "layer %zu is of the type %s, which is not in the image itself",
                              i + 1, image_shown(d->media));
    }
    return 0;
}

int manifest_list(const char *text, size_t n, struct manifest_list *ret, struct err *err)
{
    _cleanup_json_ json_t *j = manifest_parse(text, n, "index", err);
    const json_t *list = json_object_get(j, "manifests"), *one;
    size_t i, count = json_array_size(list);
    *ret = (struct manifest_list){0};
    if (!j)
        return -1;
    if (!json_is_array(list))
        return image_fail(err, IMAGE_BAD_DATA, "the index has no list of manifests");
    if (count > IMAGE_PLATFORMS_MAX)
        return image_fail(err, IMAGE_TOO_LARGE, "the index has %zu manifests; at most %d are taken", count,
                          IMAGE_PLATFORMS_MAX);
    ret->v = xcalloc(count ? count : 1, sizeof *ret->v);
    json_array_foreach(list, i, one) if (manifest_read_descriptor(one, "a manifest in the index", &ret->v[ret->n++],
                                                                  err) < 0) return -1;
    return 0;
}

/* Whether `select` is the name, or its tag. */
static bool manifest_is_selected(const char *name, const char *select)
{
    const char *colon = strrchr(name, ':');
    return strcmp(name, select) == 0 || (colon && strcmp(colon + 1, select) == 0);
}
static bool manifest_runs_here(const struct descriptor *d)
{
    return (d->os[0] == '\0' && d->arch[0] == '\0') || (strcmp(d->os, "linux") == 0 && strcmp(d->arch, "amd64") == 0);
}

/* Not every processor runs all variants of amd64; the lowest runs everywhere. */
static unsigned manifest_variant(const struct descriptor *d)
{
    const char *v = d->variant;
    return !v[0] ? 1 : v[0] == 'v' && v[1] >= '1' && v[1] <= '9' && !v[2] ? (unsigned)(v[1] - '0') : 10;
}
/* With the same name the user cannot choose between the two. */
static bool manifest_named_alike(const struct descriptor *a, const struct descriptor *b)
{
    return strcmp(a->name, b->name) == 0;
}

static void manifest_add_shown(char *names, const char *name)
{
    size_t n = strlen(names);
    if (name[0] && n < NAMES_SHOWN - 4)
        (void)snprintf(names + n, NAMES_SHOWN - n, "%s%s", n ? ", " : "", image_shown(name));
}

int manifest_choose(const struct manifest_list *l, const char *select, const struct descriptor **ret, struct err *err)
{
    char names[NAMES_SHOWN] = "", platforms[NAMES_SHOWN] = "";
    size_t found = 0, named = 0;
    for (size_t i = 0; i < l->n; i++) {
        const struct descriptor *d = &l->v[i];
        char platform[80];
        (void)snprintf(platform, sizeof platform, "%s%s%s%s%s", d->os, d->os[0] ? "/" : "", d->arch,
                       d->variant[0] ? "/" : "", d->variant);
        manifest_add_shown(platforms, platform);
        manifest_add_shown(names, d->name);
        if (select[0] && !manifest_is_selected(d->name, select))
            continue;
        named++;
        if (!manifest_runs_here(d))
            continue;
        /* The same image under two names is one image. */
        if (found > 0 && memcmp((*ret)->digest, d->digest, SHA256_BYTES) == 0)
            continue;
        /* An image that names its platform goes before one that does not. */
        if (found > 0 && ((*ret)->arch[0] != '\0') != (d->arch[0] != '\0')) {
            *ret = d->arch[0] ? d : *ret;
            continue;
        }
        /* Variants of one image: take the lowest, and the first of equal ones, as the specification says. */
        if (found > 0 && d->arch[0] && manifest_named_alike(*ret, d)) {
            *ret = manifest_variant(d) < manifest_variant(*ret) ? d : *ret;
            continue;
        }
        *ret = d;
        found++;
    }
    if (found == 1)
        return 0;
    if (found > 1)
        return image_fail(err, IMAGE_BAD_DATA, "there are several images (%s); say which one is meant",
                          names[0] ? names : "without names");
    if (select[0] && named == 0)
        return image_fail(err, IMAGE_NOT_FOUND, "there is no image called \"%s\"; there are: %s", image_shown(select),
                          names[0] ? names : "none with a name");
    return image_fail(err, IMAGE_NOT_FOUND, "there is no image for linux/amd64; there are: %s",
                      platforms[0] ? platforms : "none");
}

/* --- docker save -------------------------------------------------------------------------------------------------- */

static bool docker_is_tagged(const json_t *image, const char *select)
{
    const json_t *tags = json_object_get(image, "RepoTags"), *tag;
    size_t i;
    if (select[0] == '\0')
        return true;
    json_array_foreach(tags, i, tag) if (json_is_string(tag) &&
                                         manifest_is_selected(json_string_value(tag), select)) return true;
    return false;
}

static int docker_take_names(const json_t *image, struct docker_manifest *ret, struct err *err)
{
    const char *config = manifest_string(image, "Config");
    const json_t *layers = json_object_get(image, "Layers"), *name;
    size_t i, count = json_array_size(layers);
    if (!config || !json_is_array(layers) || count == 0)
        return image_fail(err, IMAGE_BAD_DATA, "manifest.json names no configuration or no layers");
    if (count > IMAGE_LAYERS_MAX)
        return image_fail(err, IMAGE_TOO_LARGE, "the image has %zu layers; at most %d are taken", count,
                          IMAGE_LAYERS_MAX);
    ret->config = xstrdup(config);
    ret->layer = xcalloc(count, sizeof *ret->layer);
    json_array_foreach(layers, i, name)
    {
        if (!json_is_string(name))
            return image_fail(err, IMAGE_BAD_DATA, "manifest.json: the name of layer %zu is no text", i + 1);
        ret->layer[ret->n++] = xstrdup(json_string_value(name));
    }
    return 0;
}

int manifest_docker(const char *text, size_t n, const char *select, struct docker_manifest *ret, struct err *err)
{
    _cleanup_json_ json_t *j = manifest_parse(text, n, "manifest.json", err);
    const json_t *image, *found = NULL;
    char names[NAMES_SHOWN] = "";
    size_t i, several = 0;
    *ret = (struct docker_manifest){0};
    if (!j)
        return -1;
    if (!json_is_array(j) || json_array_size(j) > IMAGES_MAX)
        return image_fail(err, IMAGE_BAD_DATA, "manifest.json is not a list of up to %d images", IMAGES_MAX);
    json_array_foreach(j, i, image)
    {
        const char *tag = json_string_value(json_array_get(json_object_get(image, "RepoTags"), 0));
        manifest_add_shown(names, tag ? tag : "");
        if (!docker_is_tagged(image, select))
            continue;
        several++;
        found = image;
    }
    if (several > 1)
        return image_fail(err, IMAGE_BAD_DATA, "there are several images (%s); say which one is meant",
                          names[0] ? names : "without names");
    if (!found)
        return image_fail(err, IMAGE_NOT_FOUND, "there is no image called \"%s\"; there are: %s", image_shown(select),
                          names[0] ? names : "none with a name");
    return docker_take_names(found, ret, err);
}

/* --- configuration ------------------------------------------------------------------------------------------------ */

int manifest_config(const char *text, size_t len, uint8_t (*ret)[SHA256_BYTES], size_t n, struct err *err)
{
    if (len > IMAGE_CONFIG_MAX)
        return image_fail(err, IMAGE_TOO_LARGE, "the image's configuration has %zu bytes; at most %d are taken", len,
                          IMAGE_CONFIG_MAX);
    _cleanup_json_ json_t *j = manifest_parse(text, len, "image's configuration", err);
    const json_t *ids = json_object_get(json_object_get(j, "rootfs"), "diff_ids"), *id;
    const char *os = manifest_string(j, "os"), *arch = manifest_string(j, "architecture");
    size_t i;
    if (!j)
        return -1;
    if ((os && strcmp(os, "linux") != 0) || (arch && strcmp(arch, "amd64") != 0))
        return image_fail(err, IMAGE_BAD_DATA, "the image is for %s/%s; this node runs linux/amd64",
                          os ? image_shown(os) : "?", arch ? image_shown(arch) : "?");
    if (!json_is_array(ids) || json_array_size(ids) != n)
        return image_fail(err, IMAGE_BAD_DATA,
                          "the image has %zu layers, its configuration names %zu (rootfs.diff_ids)", n,
                          json_array_size(ids));
    json_array_foreach(ids, i, id) if (!hash_from_digest(json_string_value(id), ret[i])) return image_fail(
        err, IMAGE_BAD_DATA, "the image's configuration: the diff_id of layer %zu is not sha256: and 64 digits", i + 1);
    return 0;
}

int manifest_hutch(const char *text, size_t len, const uint8_t sum[SHA256_BYTES], size_t n, struct err *err)
{
    _cleanup_json_ json_t *j = manifest_parse(text, len, "hutch.json", err);
    uint8_t said[SHA256_BYTES];
    if (!j)
        return -1;
    const char *format = manifest_string(j, "format");
    if (!format || strcmp(format, "hutch-export-1") != 0)
        return image_fail(err, IMAGE_BAD_DATA, "hutch.json is of the format \"%s\"; this node reads hutch-export-1",
                          image_shown(format));
    size_t layers = json_array_size(json_object_get(j, "layers"));
    if (layers != n)
        return image_fail(err, IMAGE_BAD_DATA, "the export has %zu layers, its hutch.json names %zu", n, layers);
    if (!hash_from_digest(manifest_string(j, "sum"), said) || memcmp(said, sum, SHA256_BYTES) != 0)
        return image_fail(err, IMAGE_BAD_DATA,
                          "the export was changed: the sum in hutch.json is not that of its configuration and layers");
    return 0;
}

void manifest_done(struct manifest *m)
{
    free(m->layer);
    *m = (struct manifest){0};
}
void manifest_list_done(struct manifest_list *l)
{
    free(l->v);
    *l = (struct manifest_list){0};
}
void docker_manifest_done(struct docker_manifest *d)
{
    for (size_t i = 0; i < d->n; i++)
        free(d->layer[i]);
    free(d->layer);
    free(d->config);
    *d = (struct docker_manifest){0};
}
