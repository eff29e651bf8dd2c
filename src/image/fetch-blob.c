/* fetch-blob.c - fetches one manifest or blob of a registry: follows redirects, checks the digest, writes it to the
 * archive. */
#include <archive_entry.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "image/fetch-int.h"

#define ACCEPT_MANIFEST                                                                     \
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, " \
    "application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json"

static int fetch_status_error(const struct fetch *f, const char *kind, const char *what, unsigned status,
                              struct err *err)
{
    const char *host = image_shown(f->ref.host);
    if (status == 404)
        return image_fail(err, IMAGE_NOT_FOUND, "the registry %s has no %s:%s (%s)", host, f->ref.name,
                          f->ref.tag[0] ? f->ref.tag : f->ref.digest, strcmp(kind, "blobs") == 0 ? what : "404");
    if (status == 401 || status == 403)
        return image_fail(
            err, IMAGE_DENIED, "the registry %s refuses %s: %s (%u)", host, f->ref.name,
            f->credentials[0] ? "these credentials do not suffice" : "it may not exist, or needs credentials", status);
    if (status == 429)
        return image_fail(err, IMAGE_DENIED,
                          "the registry %s has had too many requests from here (429); try later or with "
                          "credentials",
                          host);
    return image_fail(err, IMAGE_NETWORK, "the registry %s answered %u for %s of %s", host, status, kind, f->ref.name);
}

/* Never sends credentials to a host we were redirected to. */
static int fetch_follow(struct fetch *f, struct web_url *u, const char *accept, struct web *w, struct err *err)
{
    struct web_url next;
    if (!w->location[0])
        return image_fail(err, IMAGE_NETWORK, "%s sends us elsewhere, but not where", w->where);
    if (web_url_parse(w->location, u, &next, err) < 0)
        return err_wrap(err, "%s sends us elsewhere", w->where);
    if (u->tls && !next.tls)
        return image_fail(err, IMAGE_DENIED, "%s sends us to %s, where there is no TLS", w->where,
                          image_shown(next.authority));
    web_close(w);
    bool home = strcmp(next.authority, f->registry.authority) == 0 && next.tls == f->registry.tls;
    *u = next;
    return web_get(w, u, accept, home ? buf_str(&f->authorization) : NULL, home, &f->reach, err);
}

static bool fetch_is_redirect(unsigned s) { return s == 301 || s == 302 || s == 303 || s == 307 || s == 308; }

int fetch_open(struct fetch *f, const char *kind, const char *what, const char *accept, struct web *ret,
               struct err *err)
{
    struct web_url u = f->registry;
    int n = snprintf(u.target, sizeof u.target, "/v2/%s/%s/%s", f->ref.name, kind, what);
    if (n < 0 || (size_t)n >= sizeof u.target)
        return image_fail(err, IMAGE_BAD_DATA, "the name is too long");
    if (web_get(ret, &u, accept, buf_str(&f->authorization), true, &f->reach, err) < 0)
        return -1;
    /* A token may expire while a large layer is fetched, so a 401 may come for any request; answered once per
     * request. */
    if (ret->status == 401) {
        if (fetch_authorize(f, ret->challenge, err) < 0)
            return -1;
        web_close(ret);
        if (web_get(ret, &u, accept, buf_str(&f->authorization), true, &f->reach, err) < 0)
            return -1;
    }
    for (unsigned hops = 0; fetch_is_redirect(ret->status); hops++) {
        if (hops == WEB_REDIRECTS_MAX)
            return image_fail(err, IMAGE_NETWORK, "the registry %s sends us in circles", image_shown(f->ref.host));
        if (fetch_follow(f, &u, accept, ret, err) < 0)
            return -1;
    }
    return ret->status != 200 ? fetch_status_error(f, kind, what, ret->status, err) : 0;
}

int fetch_manifest(struct fetch *f, const char *what, const uint8_t *digest, struct buf *ret, char media[128],
                   struct err *err)
{
    struct web w = WEB_INIT;
    char real[SHA256_HEX], said[SHA256_HEX];
    int rc = fetch_open(f, "manifests", what, ACCEPT_MANIFEST, &w, err);
    if (rc == 0)
        rc = web_read_all(&w, IMAGE_MANIFEST_MAX, "the manifest", ret, err);
    (void)snprintf(media, 128, "%.*s", (int)strcspn(w.media, "; "), w.media);
    web_close(&w);
    if (rc < 0 || !digest)
        return rc;
    hash_hex(digest, said);
    sha256_hex(buf_str(ret), ret->n, real);
    if (strcmp(real, said) != 0)
        return image_fail(err, IMAGE_BAD_DATA,
                          "the registry %s gave another manifest than sha256:%s (it has sha256:%s)",
                          image_shown(f->ref.host), said, real);
    return 0;
}

/* --- the archive -------------------------------------------------------------------------------------------------- */

static int fetch_put_header(struct fetch *f, const char *name, uint64_t size, struct err *err)
{
    struct archive_entry *e = archive_entry_new();
    archive_entry_copy_pathname(e, name);
    archive_entry_set_filetype(e, AE_IFREG);
    archive_entry_set_perm(e, 0644);
    archive_entry_set_size(e, (int64_t)size);
    int rc = archive_write_header(f->out, e);
    archive_entry_free(e);
    return rc < ARCHIVE_WARN ? image_fail(err, IMAGE_HOST, "cannot store %s: %s", name, archive_error_string(f->out))
                             : 0;
}
static int fetch_put_bytes(struct fetch *f, const void *p, size_t n, struct err *err)
{
    if (archive_write_data(f->out, p, n) != (ssize_t)n)
        return image_fail(err, archive_errno(f->out) == ENOSPC ? IMAGE_TOO_LARGE : IMAGE_HOST,
                          "cannot store the image: %s", archive_error_string(f->out));
    return 0;
}
int fetch_put(struct fetch *f, const char *name, const void *p, size_t n, struct err *err)
{
    return fetch_put_header(f, name, n, err) < 0 || fetch_put_bytes(f, p, n, err) < 0 ? -1 : 0;
}

static int fetch_receive(struct fetch *f, struct web *w, const struct descriptor *d, const char *what, struct buf *keep,
                         struct err *err)
{
    struct hash h = {0};
    uint8_t real[SHA256_BYTES];
    uint64_t got = 0;
    const void *p;
    ssize_t n;
    hash_start(&h);
    while ((n = web_read(w, &p, err)) > 0) {
        got += (uint64_t)n;
        if (got > d->size || fetch_put_bytes(f, p, (size_t)n, err) < 0)
            break;
        hash_add(&h, p, (size_t)n);
        if (keep)
            buf_add(keep, p, (size_t)n);
        f->done += (uint64_t)n;
        say_progress(f->done, f->total, what);
    }
    hash_end(&h, real);
    hash_done(&h);
    if (n < 0 || err->code)
        return -1;
    if (got != d->size)
        return image_fail(err, IMAGE_BAD_DATA, "%s: the registry gave %s than the %llu bytes that the manifest says",
                          what, got > d->size ? "more" : "less", (unsigned long long)d->size);
    if (memcmp(real, d->digest, SHA256_BYTES) != 0)
        return image_fail(err, IMAGE_BAD_DATA, "%s: the registry gave other bytes than its digest says", what);
    return 0;
}

int fetch_blob(struct fetch *f, const struct descriptor *d, const char *what, struct buf *keep, struct err *err)
{
    char digest[7 + SHA256_HEX] = "sha256:", name[13 + SHA256_HEX] = "blobs/sha256/";
    struct web w = WEB_INIT;
    hash_hex(d->digest, digest + 7);
    memcpy(name + 13, digest + 7, SHA256_HEX);
    int rc = fetch_open(f, "blobs", digest, NULL, &w, err);
    if (rc == 0 && w.length != HTTP_UNKNOWN && w.length != d->size)
        rc = image_fail(err, IMAGE_BAD_DATA, "%s has %llu bytes in the registry, the manifest says %llu", what,
                        (unsigned long long)w.length, (unsigned long long)d->size);
    if (rc == 0)
        rc = fetch_put_header(f, name, d->size, err);
    if (rc == 0)
        rc = fetch_receive(f, &w, d, what, keep, err);
    web_close(&w);
    return rc;
}
