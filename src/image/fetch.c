/* fetch.c - writes an image of a registry as an OCI layout into one tar: manifest, configuration and layers unchanged,
 * each checked against its digest. Another worker, without a network, unpacks them.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/mem.h"
#include "image/fetch-int.h"

int image_fetch_prepare(struct err *err) { return web_prepare(err); }

/* Reads "user\npassword" from the memfd. A user of Basic cannot contain ':', so "aws:" is never a user
 * (fetch-cloud.c). */
static int fetch_read_credentials(struct fetch *f, struct err *err)
{
    ssize_t n = pread(IMAGE_FD_IN, f->credentials, sizeof f->credentials - 1, 0);
    if (n <= 0)
        return 0; /* closed or empty: none */
    f->credentials[n] = '\0';
    if (strncmp(f->credentials, "aws:", 4) == 0 && strlen(f->credentials) == (size_t)n) {
        char text[sizeof f->credentials];
        memcpy(text, f->credentials, sizeof text);
        f->credentials[0] = '\0';
        int rc = fetch_ecr(f, text, err);
        explicit_bzero(text, sizeof text);
        return rc;
    }
    char *line = strchr(f->credentials, '\n');
    if (!line || strlen(f->credentials) != (size_t)n || (size_t)n == sizeof f->credentials - 1 ||
        memchr(f->credentials, ':', (size_t)(line - f->credentials)))
        return image_fail(err, IMAGE_DENIED, "the credentials for the registry are not a user and a password");
    *line = ':';
    size_t end = strlen(f->credentials);
    while (end > 0 && (f->credentials[end - 1] == '\n' || f->credentials[end - 1] == '\r'))
        f->credentials[--end] = '\0';
    if (end == 1)
        f->credentials[0] = '\0';
    return 0;
}

static ssize_t fetch_on_write(struct archive *a, void *arg, const void *p, size_t n)
{
    (void)arg;
    if (fd_write_all(IMAGE_FD_OUT, p, n) == 0)
        return (ssize_t)n;
    archive_set_error(a, errno, "%s", strerror(errno));
    return -1;
}

static int fetch_open_archive(struct fetch *f, struct err *err)
{
    f->out = archive_write_new();
    if (!f->out || archive_write_set_format_pax_restricted(f->out) != ARCHIVE_OK ||
        archive_write_set_bytes_per_block(f->out, IMAGE_BLOCK) != ARCHIVE_OK ||
        archive_write_set_bytes_in_last_block(f->out, 1) != ARCHIVE_OK ||
        archive_write_open(f->out, f, NULL, fetch_on_write, NULL) != ARCHIVE_OK)
        return image_fail(err, IMAGE_HOST, "cannot start an archive");
    return 0;
}

/* Finds the manifest of the image for linux/amd64, through up to IMAGE_NEST_MAX indexes. */
static int fetch_find_manifest(struct fetch *f, struct buf *text, uint8_t digest[SHA256_BYTES], struct err *err)
{
    char what[REF_TAG_MAX + REF_DIGEST_MAX], media[128];
    bool known = f->ref.digest[0] != '\0';
    (void)snprintf(what, sizeof what, "%s", known ? f->ref.digest : f->ref.tag);
    if (known)
        (void)hash_from_digest(f->ref.digest, digest);
    for (unsigned depth = 0; depth <= IMAGE_NEST_MAX; depth++) {
        struct manifest_list list = {0};
        const struct descriptor *d = NULL;
        if (fetch_manifest(f, what, known ? digest : NULL, text, media, err) < 0)
            return -1;
        int kind = manifest_kind(buf_str(text), text->n, media, err);
        if (kind != MANIFEST_LIST)
            return kind < 0 ? -1 : 0;
        int rc = manifest_list(buf_str(text), text->n, &list, err);
        if (rc == 0)
            rc = manifest_choose(&list, "", &d, err);
        if (rc == 0) {
            memcpy(digest, d->digest, SHA256_BYTES);
            known = true;
            memcpy(what, "sha256:", 7);
            hash_hex(digest, what + 7);
        }
        manifest_list_done(&list);
        if (rc < 0)
            return -1;
    }
    return image_fail(err, IMAGE_BAD_DATA, "the index holds an index %d times over", IMAGE_NEST_MAX);
}

static int fetch_put_index(struct fetch *f, const struct buf *manifest, struct err *err)
{
    static const char layout[] = "{\"imageLayoutVersion\":\"1.0.0\"}";
    _cleanup_buf_ struct buf text = {0};
    struct json j;
    char name[13 + SHA256_HEX] = "blobs/sha256/", digest[7 + SHA256_HEX] = "sha256:";
    sha256_hex(buf_str(manifest), manifest->n, digest + 7);
    memcpy(name + 13, digest + 7, SHA256_HEX);
    json_start(&j, &text);
    json_obj(&j, NULL);
    json_u64(&j, "schemaVersion", 2);
    json_arr(&j, "manifests");
    json_obj(&j, NULL);
    json_str(&j, "mediaType", "application/vnd.oci.image.manifest.v1+json");
    json_str(&j, "digest", digest);
    json_u64(&j, "size", manifest->n);
    json_end_obj(&j);
    json_end_arr(&j);
    json_end_obj(&j);
    if (fetch_put(f, name, manifest->p, manifest->n, err) < 0 || fetch_put(f, "index.json", text.p, text.n, err) < 0)
        return -1;
    return fetch_put(f, "oci-layout", layout, sizeof layout - 1, err);
}

static bool fetch_is_repeated(const struct manifest *m, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (memcmp(m->layer[k].digest, m->layer[i].digest, SHA256_BYTES) == 0)
            return true;
    return memcmp(m->config.digest, m->layer[i].digest, SHA256_BYTES) == 0;
}

static int fetch_all(struct fetch *f, const struct manifest *m, struct err *err)
{
    _cleanup_buf_ struct buf config = {0};
    uint8_t ids[IMAGE_LAYERS_MAX][SHA256_BYTES];
    char what[64];
    f->total = m->config.size;
    for (size_t i = 0; i < m->n; i++) {
        if (f->total > f->max || m->layer[i].size > f->max - f->total)
            return image_fail(err, IMAGE_TOO_LARGE, "the image has more than %llu bytes", (unsigned long long)f->max);
        f->total += fetch_is_repeated(m, i) ? 0 : m->layer[i].size;
    }
    /* The configuration first: do not fetch the layers of an image for another machine. */
    if (fetch_blob(f, &m->config, "configuration", &config, err) < 0 ||
        manifest_config(buf_str(&config), config.n, ids, m->n, err) < 0)
        return -1;
    for (size_t i = 0; i < m->n; i++) {
        (void)snprintf(what, sizeof what, "layer %zu of %zu", i + 1, m->n);
        if (!fetch_is_repeated(m, i) && fetch_blob(f, &m->layer[i], what, NULL, err) < 0)
            return -1;
    }
    return 0;
}

/* "ADDR/BITS,..." as the supervisor passes it on. */
static int fetch_set_reach(struct fetch *f, const struct image_options *o, struct err *err)
{
    static struct netpol_cidr infra[NETPOL_INFRA_MAX];
    _cleanup_free_ char *copy = xstrdup(o->infra ? o->infra : "");
    char *save = NULL;
    size_t n = 0;
    for (char *one = strtok_r(copy, ",", &save); one; one = strtok_r(NULL, ",", &save))
        if (n == NETPOL_INFRA_MAX || !netpol_cidr_parse(one, &infra[n++]))
            return image_fail(err, IMAGE_HOST, "--infra is not a list of at most %d networks", NETPOL_INFRA_MAX);
    f->reach = (struct web_reach){.private = o->private, .registries = o->registries};
    f->reach.machine.infra = infra;
    f->reach.machine.ninfra = n;
    web_reach_own(&f->reach);
    return 0;
}

int image_fetch(const struct image_options *o, struct err *err)
{
    static struct fetch f;
    struct manifest m = {0};
    _cleanup_buf_ struct buf text = {0};
    uint8_t digest[SHA256_BYTES];
    char url[REF_HOST_MAX + 16];
    f.max = o->max_bytes ? o->max_bytes : IMAGE_BYTES_MAX;
    if (fetch_set_reach(&f, o, err) < 0 || ref_parse(o->ref, &f.ref, err) < 0 || fetch_read_credentials(&f, err) < 0)
        return -1;
    (void)snprintf(url, sizeof url, "%s://%s/", f.ref.plain ? "http" : "https", f.ref.host);
    if (f.ref.plain && !o->private)
        return image_fail(err, IMAGE_DENIED,
                          "the registry %s would be asked without TLS; only the operator may do that, unless the "
                          "registry is listed in the node's configuration (images.registries)",
                          image_shown(f.ref.host));
    if (web_url_parse(url, NULL, &f.registry, err) < 0 || fetch_open_archive(&f, err) < 0)
        return -1;
    int rc = fetch_find_manifest(&f, &text, digest, err);
    if (rc == 0)
        rc = manifest_image(buf_str(&text), text.n, &m, err);
    if (rc == 0)
        rc = fetch_all(&f, &m, err);
    if (rc == 0)
        rc = fetch_put_index(&f, &text, err);
    manifest_done(&m);
    if (rc < 0)
        return -1;
    if (archive_write_close(f.out) != ARCHIVE_OK)
        return image_fail(err, IMAGE_HOST, "cannot store the image: %s", archive_error_string(f.out));
    struct image_message done = {.done = f.done, .total = f.total};
    sha256_hex(buf_str(&text), text.n, done.text);
    return say_done(&done, err);
}
