/* Templates in our own words: what there is, what is in one, images that are brought in. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "front/builds.h"
#include "front/e2b/e2b.h"
#include "front/native.h"
#include "front/reply.h"
#include "front/spool.h"
#include "http/body.h"
#include "http/url.h"
#include "sandbox/stockc.h"

static const char *const kinds[] = {[TMPL_BUILT] = "built", [TMPL_IMPORTED] = "imported", [TMPL_SNAPSHOT] = "snapshot"};

/* The object stays open. */
static void add_row(struct json *j, const struct tmpl *t)
{
    char when[REPLY_TIME_MAX];
    json_obj(j, NULL);
    json_str(j, "id", t->id);
    json_str(j, "name", t->name);
    json_str(j, "kind", kinds[t->kind]);
    json_str(j, "owner", t->tenant ? t->tenant->id : "node");
    json_bool(j, "public", t->public || !t->tenant);
    json_u64(j, "bytes", t->bytes);
    json_u64(j, "spawned", t->spawned);
    reply_time(t->created_unix_ms, when);
    json_str(j, "createdAt", when);
    json_arr(j, "tags");
    for (size_t i = 0; i < t->ntags; i++) {
        reply_time(t->tags[i].created_unix_ms, when);
        json_obj(j, NULL);
        json_str(j, "tag", t->tags[i].tag);
        json_str(j, "buildID", t->tags[i].build);
        json_str(j, "createdAt", when);
        if (tmpl_fetched(&t->tags[i])[0])
            json_str(j, "image", tmpl_fetched(&t->tags[i]));
        json_end_obj(j);
    }
    json_end_arr(j);
}

static void add_directory(struct json *j, const struct template_info *t)
{
    json_obj(j, NULL);
    json_str(j, "id", t->name);
    json_str(j, "name", t->name);
    json_str(j, "kind", "directory");
    json_str(j, "owner", "node");
    json_bool(j, "public", true);
    json_str(j, "state", t->state);
    if (t->text[0])
        json_str(j, "text", t->text);
    json_u64(j, "spawned", t->spawned);
}

static void list_row(void *arg, const struct tmpl *t)
{
    if (tmpl_only_snapshots(t))
        return;
    add_row(arg, t);
    json_end_obj(arg);
}
static void list_directory(void *arg, const struct template_info *t)
{
    add_directory(arg, t);
    json_end_obj(arg);
}

void native_templates(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_arr(&j, "templates");
    templates_each(c->front, list_directory, &j);
    tmpl_each(c->front, c->who.tenant, list_row, &j);
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

/* --- one ---------------------------------------------------------------------------------------------------------- */

struct inspecting {
    struct http_req *r; /* NULL: the client left */
    char id[40], stack[STACK_ID_MAX], tag[TMPL_TAG_MAX];
    uint64_t bytes, entries;
};

static void left(struct http_req *r) { ((struct inspecting *)r->user)->r = NULL; }

/* Of the tag, or of the newest build if it is gone meanwhile. */
static void add_tag(struct json *j, const struct tmpl *t, const char *tag)
{
    const struct tmpl_tag none = {0}, *at = &none;
    for (size_t i = 0; i < t->ntags; i++)
        if (strcmp(t->tags[i].tag, tag) == 0)
            at = &t->tags[i];
    _cleanup_free_ char *text = tmpl_config_text(t, at);
    reply_add_text(j, "config", text);
    json_str(j, "tag", tag);
    if (tmpl_fetched(at)[0])
        json_str(j, "image", tmpl_fetched(at));
}

static void inspected(void *arg, const struct stock_item *v, size_t n, const struct stock_reply *failed)
{
    struct inspecting *w = arg;
    struct http_req *r = w->r;
    const struct tmpl *t = r ? tmpl_find(api_call_of(r)->front, api_call_of(r)->who.tenant, w->id, NULL) : NULL;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (r)
        api_on_closed(r, NULL);
    if (t) {
        json_start(&j, &out);
        add_row(&j, t);
        add_tag(&j, t, w->tag);
        for (size_t i = 0; !failed && i < n; i++)
            if (strcmp(v[i].id, w->stack) == 0)
                json_u64(&j, "layers", v[i].nlayers);
        json_u64(&j, "ownBytes", w->bytes);
        json_u64(&j, "ownEntries", w->entries);
        json_end_obj(&j);
        reply_json(r, 200, &out);
    } else if (r)
        reply_error(r, 404, "the template was removed meanwhile");
    free(w);
}

static void measured(void *arg, const struct stock_reply *r, int fd)
{
    struct inspecting *w = arg;
    if (fd >= 0)
        (void)close(fd);
    w->bytes = r->error == STOCK_OK ? r->bytes : 0;
    w->entries = r->error == STOCK_OK ? r->entries : 0;
    if (w->r)
        stockc_list(api_call_of(w->r)->front->stock, inspected, w);
    else
        free(w);
}

static void show_directory(struct api_call *c)
{
    struct template_info info = {0};
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!template_resolve(c->front, c->param[0], &info)) {
        reply_error(c->req, 404, "template '%.80s' not found", c->param[0]);
        return;
    }
    json_start(&j, &out);
    add_directory(&j, &info);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

void native_template(struct api_call *c)
{
    const struct tmpl_tag *tag = NULL;
    const struct tmpl *t = tmpl_find(c->front, c->who.tenant, c->param[0], &tag);
    struct stock_request q = stockc_request(STOCK_USAGE);
    if (!t) {
        show_directory(c);
        return;
    }
    if (!tag && !strchr(c->param[0], ':') && t->ntags)
        tag = &t->tags[0];
    if (!tag || !c->front->stock) {
        reply_error(c->req, tag ? 503 : 404,
                    tag ? "the process that keeps files is not there; try again" : "template '%.80s' has no such tag",
                    c->param[0]);
        return;
    }
    struct inspecting *w = xcalloc(1, sizeof *w);
    w->r = c->req;
    memcpy(w->id, t->id, sizeof w->id);
    memcpy(w->stack, tag->stack, sizeof w->stack);
    memcpy(w->tag, tag->tag, sizeof w->tag);
    memcpy(q.stack, tag->stack, sizeof q.stack);
    c->req->user = w;
    api_on_closed(c->req, left);
    (void)stockc_ask_for(c->front->stock, c->who.tenant->id, &q, NULL, 0, NULL, measured, w);
}

/* --- changing and removing ---------------------------------------------------------------------------------------- */

static void changed(void *arg, const struct tmpl *t, const struct state_failure *failure)
{
    struct http_req *r = api_wait_over(arg);
    (void)t;
    if (!r)
        return;
    if (failure)
        reply_error(r, failure->status, "%s", failure->text);
    else
        reply_empty(r, 204);
}

/* The row that the path names, if whoever asks may change it. NULL: answered. */
static const struct tmpl *own_row(struct api_call *c, const struct tmpl_tag **tag)
{
    struct template_info info = {0};
    const struct tmpl *t = tmpl_find(c->front, c->who.tenant, c->param[0], tag);
    bool mine = t && (t->tenant == c->who.tenant || (!t->tenant && (c->who.scopes & SCOPE_ADMIN)));
    if (mine)
        return t;
    if (t)
        reply_error(c->req, 403, "template '%.80s' belongs to %s", c->param[0],
                    t->tenant ? "another tenant" : "the node: its operator may change or remove it");
    else if (template_resolve(c->front, c->param[0], &info))
        reply_error(c->req, 403, "template '%.80s' is a directory of the node, which is not changed from here",
                    c->param[0]);
    else
        reply_error(c->req, 404, "template '%.80s' not found", c->param[0]);
    return NULL;
}

static int read_switch(json_t *root, const char *name, enum tmpl_switch *ret, struct err *err)
{
    bool on = false;
    int have = e2b_field_bool(root, name, &on, err);
    if (have > 0)
        *ret = on ? TMPL_ON : TMPL_OFF;
    return have;
}

static void set_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    static const char *const known[] = {"public", "history", NULL};
    struct api_call *c = api_call_of(r);
    struct tmpl_settings s = {0};
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    if (!json_is_object(root)) {
        reply_error(r, 400, "the body must be an object");
        return;
    }
    if (e2b_only_fields(root, "this route", known, &err) < 0 || read_switch(root, "public", &s.public, &err) < 0 ||
        read_switch(root, "history", &s.history, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    if (!s.public && !s.history) {
        reply_error(r, 400, "nothing to change: name 'public' or 'history', true or false");
        return;
    }
    if (strchr(c->param[0], ':')) {
        reply_error(r, 400, "settings hold for all tags of a template: name it without ':TAG'");
        return;
    }
    const struct tmpl *t = own_row(c, NULL);
    if (t && !t->tenant && s.public == TMPL_OFF)
        reply_error(r, 400, "template '%.80s' is the node's own, and those are for everybody", c->param[0]);
    else if (t)
        tmpl_set(c->front, t, &s, changed, api_wait_for(r, sizeof(struct api_wait)));
}
void native_template_set(struct api_call *c) { body_json(c->req, 0, set_body); }

void native_template_remove(struct api_call *c)
{
    const struct tmpl_tag *tag = NULL;
    const char *colon = strrchr(c->param[0], ':');
    const struct tmpl *t = own_row(c, &tag);
    if (!t)
        return;
    if (colon && !tag) {
        reply_error(c->req, 404, "template '%.80s' not found", c->param[0]);
        return;
    }
    tmpl_remove(c->front, t, colon ? tag->tag : NULL, changed, api_wait_for(c->req, sizeof(struct api_wait)));
}

/* --- imports ------------------------------------------------------------------------------------------------------ */

struct importing {
    struct http_req *r; /* NULL: the client left */
    struct api_call *c;
    struct image_call *call;
    char name[TMPL_NAME_MAX], tag[TMPL_TAG_MAX], image[STOCK_REF_MAX];
    bool head, restore, given; /* given: the name is not the image's */
    struct buf config;         /* restore: as it stood in the archive */
    struct spool *spool;       /* the archive */
};

static void importing_free(struct importing *w)
{
    buf_done(&w->config);
    spool_free(w->spool);
    free(w);
}

/* Whoever imports wants to see it through: without the client it ends. */
static void importer_left(struct http_req *r)
{
    struct importing *w = r->user;
    if (w->call)
        image_cancel(w->call);
    importing_free(w);
}

static void write_line(struct importing *w, const struct buf *line)
{
    if (!w->head) {
        http_set(w->r, "content-type", "application/x-ndjson");
        http_head(w->r, 200, HTTP_UNKNOWN);
        w->head = true;
    }
    (void)http_write(w->r, line->p, line->n);
    (void)http_write(w->r, "\n", 1);
}

static void progressed(void *arg, uint64_t done, uint64_t total, const char *text)
{
    struct importing *w = arg;
    _cleanup_buf_ struct buf line = {0};
    struct json j;
    if (http_queued(w->r) > HTTP_LOW_WATER)
        return; /* one that does not read needs no more of it */
    json_start(&j, &line);
    json_obj(&j, NULL);
    json_obj(&j, "progress");
    json_u64(&j, "done", done);
    json_u64(&j, "total", total);
    if (text[0])
        json_str(&j, "text", text);
    json_end_obj(&j);
    json_end_obj(&j);
    write_line(w, &line);
}

static void imported(void *arg, const struct tmpl *t, const struct state_failure *failure)
{
    struct importing *w = arg;
    struct http_req *r = w->r;
    bool head = w->head;
    _cleanup_buf_ struct buf line = {0};
    struct json j;
    w->call = NULL;
    api_on_closed(r, NULL);
    if (failure && !head) {
        importing_free(w);
        e2b_refuse_state(r, failure);
        return;
    }
    json_start(&j, &line);
    json_obj(&j, NULL);
    if (failure) {
        json_obj(&j, "error");
        json_u64(&j, "code", failure->status);
        json_str(&j, "message", failure->text);
        json_end_obj(&j);
    } else {
        json_obj(&j, "template");
        json_str(&j, "id", t->id);
        json_str(&j, "name", t->name);
        json_str(&j, "tag", w->tag);
        json_u64(&j, "bytes", t->bytes);
        json_end_obj(&j);
    }
    json_end_obj(&j);
    write_line(w, &line);
    importing_free(w);
    http_end(r);
}

static void begin(struct importing *w, int fd, const char *ref, const char *user, const char *password)
{
    struct api_call *c = w->c;
    struct tmpl_config config = {0};
    struct tenant *owner = c->who.scopes & SCOPE_ADMIN ? NULL : c->who.tenant;
    struct state_failure full = {0};
    struct err err;
    if (owner && (!state_room(c->front, owner, 0, STATE_SOME, &full) || !tmpl_room(c->front, owner, w->name, &full))) {
        if (fd >= 0)
            (void)close(fd);
        api_on_closed(w->r, NULL);
        e2b_refuse_state(w->r, &full);
        importing_free(w);
        return;
    }
    if (w->restore && (tmpl_config_parse(buf_str(&w->config), &config, &err) < 0 ||
                       build_config_limit(&config, &err) < 0)) { /* whoever uploads it wrote it */
        (void)close(fd);
        tmpl_config_done(&config);
        api_on_closed(w->r, NULL);
        reply_error(w->r, 400, "the configuration in the archive: %s", err.msg);
        importing_free(w);
        return;
    }
    struct image_import i = {.name = w->name,
                             .tag = w->tag,
                             .tenant = owner,
                             .archive = fd,
                             .ref = ref,
                             .image = w->image,
                             .given = w->given,
                             .user = user,
                             .password = password,
                             .restore = w->restore,
                             .config = w->restore ? &config : NULL};
    w->call = image_import(c->front, &i, progressed, imported, w);
    tmpl_config_done(&config);
}

static void spooled(struct http_req *r, struct spool *s, int fd, unsigned status, const char *error, bool more)
{
    struct importing *w = r->user;
    w->spool = s;
    if (status == 0 && fd >= 0 && spool_bytes(s) > 0) {
        begin(w, fd, NULL, NULL, NULL);
        return;
    }
    if (fd >= 0)
        (void)close(fd);
    api_on_closed(r, NULL);
    importing_free(w);
    if (status && more)
        api_refuse_body(r, status, error);
    else
        reply_error(r, status ? status : 400, "%s", status ? error : "the body must be an archive");
}

/* Name and tag of the query; false: answered. */
static bool read_name(struct api_call *c, const char *name_given, const char *tag_given, struct importing *w)
{
    _cleanup_buf_ struct buf full = {0};
    struct err err;
    buf_addf(&full, "%s%s%s", name_given, *tag_given ? ":" : "", tag_given);
    if (build_name_parse(buf_str(&full), w->name, w->tag, &err)) {
        if (!w->tag[0])
            (void)snprintf(w->tag, sizeof w->tag, "default");
        return true;
    }
    api_on_closed(c->req, NULL);
    api_refuse_body(c->req, 400, err.msg);
    importing_free(w);
    return false;
}

static struct importing *importing(struct api_call *c)
{
    struct importing *w = xcalloc(1, sizeof *w);
    w->r = c->req;
    w->c = c;
    c->req->user = w;
    api_on_closed(c->req, importer_left);
    return w;
}

static void import_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct importing *w = r->user;
    struct api_call *c = w->c;
    const char *ref = NULL, *name = NULL, *tag = NULL, *user = NULL, *password = NULL;
    struct build_image image = {0};
    struct err err;
    bool known = false;
    if (!status && (!json_is_object(root) || e2b_field_str(root, "image", &ref, &err) <= 0 || !*ref ||
                    strlen(ref) >= STOCK_REF_MAX || e2b_field_str(root, "name", &name, &err) < 0 ||
                    e2b_field_str(root, "tag", &tag, &err) < 0 || e2b_field_str(root, "username", &user, &err) < 0 ||
                    e2b_field_str(root, "password", &password, &err) < 0)) {
        status = 400;
        error = "the body must be an object with 'image': a reference like ubuntu:22.04, and perhaps 'name', 'tag', "
                "'username' and 'password'";
    } else if (!status && !c->front->config->image_pull && !(c->who.scopes & SCOPE_ADMIN)) {
        status = 403;
        error = "this node fetches no images for its tenants (images.pull): upload the archive instead";
    } else if (!status && !(known = build_image_parse(ref, &image)) && !name) {
        status = 400;
        error = "'image' must be a reference like ubuntu:22.04 or ubuntu@sha256: and 64 digits";
    } else if (known) {
        memcpy(w->name, image.name, sizeof w->name);
        memcpy(w->tag, image.tag, sizeof w->tag);
        memcpy(w->image, image.ref, sizeof w->image);
        w->given = name != NULL;
    }
    if (status) {
        api_on_closed(r, NULL);
        reply_error(r, status, "%s", error);
        importing_free(w);
        return;
    }
    if (!name || read_name(c, name, tag ? tag : "", w))
        begin(w, -1, ref, user, password);
}

static void take(struct api_call *c, bool restore)
{
    _cleanup_buf_ struct buf name = {0}, tag = {0};
    struct err err;
    struct importing *w = importing(c);
    const char *type = http_field(&c->req->fields, "content-type");
    w->restore = restore;
    if (!restore && type && strncmp(type, "application/json", 16) == 0) {
        body_json(c->req, 0, import_body);
        return;
    }
    if (url_query_get(c->req->query, "name", URL_PLUS_SPACE, &name, &err) < 0 ||
        url_query_get(c->req->query, "tag", URL_PLUS_SPACE, &tag, &err) < 0)
        name.n = 0;
    if (read_name(c, buf_str(&name), buf_str(&tag), w))
        spool_body(c->req, c->who.tenant->id, restore ? &w->config : NULL, spooled);
}

void native_template_import(struct api_call *c) { take(c, false); }
void native_template_restore(struct api_call *c) { take(c, true); }
