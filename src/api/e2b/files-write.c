/* files-write.c - POST /files: writes uploaded files into a sandbox; POST /files/compose joins files there. */
#include <string.h>

#include "api/e2b/envd.h"
#include "api/reply.h"
#include "api/upload.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/strv.h"
#include "http/body.h"

enum { NAME_MAX_META = 246, META_TOTAL_MAX = 4096 };

struct writing {
    struct envd *e;
    struct upload *upload;
    struct strv meta; /* key, value, ... */
    struct buf out;
    struct json j;
};

static void writing_on_drop(struct envd *e)
{
    struct writing *w = e->data;
    upload_free(w->upload);
    strv_done(&w->meta);
    buf_done(&w->out);
    free(w);
}

static void writing_on_opened(void *arg, const struct file_info *info)
{
    struct writing *w = arg;
    json_obj(&w->j, NULL);
    json_str(&w->j, "name", info->name);
    json_str(&w->j, "path", info->path);
    json_str(&w->j, "type", "file");
    if (w->meta.n) {
        json_obj(&w->j, "metadata");
        for (size_t i = 0; i + 1 < w->meta.n; i += 2)
            json_str(&w->j, w->meta.v[i], w->meta.v[i + 1]);
        json_end_obj(&w->j);
    }
    json_end_obj(&w->j);
}

static void writing_on_done(void *arg)
{
    struct writing *w = arg;
    struct http_req *r = w->e->r;
    json_end_arr(&w->j);
    struct buf out = w->out;
    w->out = (struct buf){0};
    envd_free(w->e);
    reply_json(r, 200, &out);
    buf_done(&out);
}

static void writing_on_failed(void *arg, unsigned status, const char *text, bool more)
{
    struct writing *w = arg;
    struct http_req *r = w->e->r;
    _cleanup_free_ char *copy = xstrdup(text);
    envd_free(w->e);
    if (more)
        api_refuse_body(r, status, copy);
    else
        reply_error(r, status, "%s", copy);
}

static void writing_on_sandbox_failed(void *arg, const struct link_status *st, bool more)
{
    struct writing *w = arg;
    if (st->code == LINK_GONE) {
        envd_http_fail(w->e, st);
        return;
    }
    if (st->code == LINK_PAUSED)
        http_set(w->e->r, "retry-after", "1");
    writing_on_failed(w, envd_http_status(st), st->text, more);
}

static void writing_on_data(struct http_req *r, const void *p, size_t n)
{
    upload_feed(((struct writing *)((struct envd *)r->user)->data)->upload, p, n);
}

static void writing_on_end(struct http_req *r)
{
    upload_end(((struct writing *)((struct envd *)r->user)->data)->upload);
}

/* X-Metadata-<k>: <v> becomes the attribute user.e2b.<k>. */
static int writing_read_metadata(const struct http_req *r, struct strv *ret, struct err *err)
{
    size_t total = 0;
    for (size_t i = 0; i < r->fields.n; i++) {
        const char *key = r->fields.v[i].name, *value = r->fields.v[i].value;
        if (strncmp(key, "x-metadata-", 11) != 0)
            continue;
        key += 11;
        if (!*key || strlen(key) > NAME_MAX_META)
            return err_set(err, ERR_USAGE, 0, "a metadata key must have 1 to %d bytes", NAME_MAX_META);
        for (const char *c = value; *c; c++)
            if (*c < ' ' || *c > '~')
                return err_set(err, ERR_USAGE, 0, "the metadata value of '%s' must be printable ASCII", key);
        if ((total += strlen(key) + strlen(value)) > META_TOTAL_MAX || ret->n >= 2 * FILES_META_MAX)
            return err_set(err, ERR_USAGE, 0, "metadata must be at most %d bytes and %d keys", META_TOTAL_MAX,
                           FILES_META_MAX);
        strv_add(ret, key);
        strv_add(ret, value);
    }
    return 0;
}

void files_write(struct envd *e, const char *path)
{
    static const struct upload_ops ops = {writing_on_opened, writing_on_done, writing_on_failed,
                                          writing_on_sandbox_failed};
    struct http_req *r = e->r;
    struct err err;
    struct writing *w = xcalloc(1, sizeof *w);
    struct upload_spec spec = {.links = e->api->peers->links,
                               .sandbox = e->id,
                               .user = e->user,
                               .path = path,
                               .part = "file",
                               .meta = &w->meta,
                               .file_max = e->api->config->max_upload};
    w->e = e;
    json_start(&w->j, &w->out);
    json_arr(&w->j, NULL);
    e->data = w;
    e->drop = writing_on_drop;
    if (writing_read_metadata(r, &w->meta, &err) < 0 || !(w->upload = upload_new(r, &spec, &ops, w, &err))) {
        writing_on_failed(w, 400, err.msg, true);
        return;
    }
    r->on_data = writing_on_data;
    r->on_end = writing_on_end;
}

/* POST /files/compose */
static void compose_on_done(void *arg, const struct link_status *st, const struct file_info *info)
{
    struct envd *e = arg;
    struct http_req *r = e->r;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    e->call = 0;
    if (st->code != LINK_OK) {
        envd_http_fail(e, st);
        return;
    }
    json_start(&j, &out);
    fs_add_entry(&j, NULL, info);
    envd_free(e);
    reply_json(r, 200, &out);
}

static int compose_read(json_t *root, struct strv *from, const char **to, const char **user, struct err *err)
{
    json_t *list = NULL;
    if (!json_is_object(root))
        return err_set(err, ERR_USAGE, 0, "the body must be an object");
    if (field_arr(root, "source_paths", &list, err) < 0 || field_str(root, "destination", to, err) < 0 ||
        field_str(root, "username", user, err) < 0)
        return -1;
    if (!list || json_array_size(list) == 0 || json_array_size(list) > 256)
        return err_set(err, ERR_USAGE, 0, "field 'source_paths' must have 1 to 256 paths");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *path = json_string_value(json_array_get(list, i));
        if (!path || !*path || strlen(path) >= FILES_PATH_MAX)
            return err_set(err, ERR_USAGE, 0, "field 'source_paths[%zu]' must be a path", i);
        strv_add(from, path);
    }
    if (!*to || !**to || strlen(*to) >= FILES_PATH_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'destination' is required: a path");
    return 0;
}

static void compose_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct envd *e = r->user;
    _cleanup_strv_ struct strv from = {0};
    const char *to = NULL, *user = NULL;
    struct err err;
    if (status) {
        envd_free(e);
        reply_error(r, status, "%s", error);
    } else if (compose_read(root, &from, &to, &user, &err) < 0) {
        envd_free(e);
        reply_error(r, 400, "%s", err.msg);
    } else {
        e->call = files_compose(e->api->peers->links, e->id, user, (const char *const *)from.v, from.n, to,
                                compose_on_done, e);
    }
}

void files_compose_route(struct envd *e) { body_json(e->r, 0, compose_on_body); }
