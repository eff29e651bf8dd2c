/* native-templates.c - lists, shows, changes and removes templates, and imports images and exported templates. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/native/native.h"
#include "api/reply.h"
#include "api/spool.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "builds/builds.h"
#include "http/body.h"
#include "http/url.h"
#include "peers/layersc.h"

static const char *const kinds[] = {
    [TEMPLATE_BUILT] = "built", [TEMPLATE_IMPORTED] = "imported", [TEMPLATE_SNAPSHOT] = "snapshot"};

/* The caller closes the object. */
static void native_template_add_row(struct json *j, const struct template *t)
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
        if (template_fetched(&t->tags[i])[0])
            json_str(j, "image", template_fetched(&t->tags[i]));
        json_end_obj(j);
    }
    json_end_arr(j);
}

static void native_template_add_directory(struct json *j, const struct template_info *t)
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

static void native_template_list_row(void *arg, const struct template *t)
{
    if (template_only_snapshots(t))
        return;
    native_template_add_row(arg, t);
    json_end_obj(arg);
}
static void native_template_list_directory(void *arg, const struct template_info *t)
{
    native_template_add_directory(arg, t);
    json_end_obj(arg);
}

void native_templates(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_arr(&j, "templates");
    c->api->domain->templates.each_directory(c->api->templates, native_template_list_directory, &j);
    c->api->domain->templates.each(c->api->templates, c->who.tenant, native_template_list_row, &j);
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

/* --- one ---------------------------------------------------------------------------------------------------------- */

struct inspecting {
    struct http_req *r; /* NULL: the client left */
    char id[40], stack[STACK_ID_MAX], tag[TEMPLATE_TAG_MAX];
    uint64_t bytes, entries;
};

static void native_template_on_client_left(struct http_req *r) { ((struct inspecting *)r->user)->r = NULL; }

/* Shows the configuration of the tag, or of the newest build if the tag was removed meanwhile. */
static void native_template_add_tag(struct json *j, const struct template *t, const char *tag)
{
    const struct template_tag none = {0}, *at = &none;
    for (size_t i = 0; i < t->ntags; i++)
        if (strcmp(t->tags[i].tag, tag) == 0)
            at = &t->tags[i];
    _cleanup_free_ char *text = template_config_text(t, at);
    reply_add_text(j, "config", text);
    json_str(j, "tag", tag);
    if (template_fetched(at)[0])
        json_str(j, "image", template_fetched(at));
}

static void native_template_on_inspected(void *arg, const struct layers_item *v, size_t n,
                                         const struct layers_reply *failed)
{
    struct inspecting *w = arg;
    struct http_req *r = w->r;
    const struct template *t = r ? api_call_of(r)->api->domain->templates.find(api_call_of(r)->api->templates,
                                                                               api_call_of(r)->who.tenant, w->id, NULL)
                                 : NULL;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (r)
        api_on_closed(r, NULL);
    if (t) {
        json_start(&j, &out);
        native_template_add_row(&j, t);
        native_template_add_tag(&j, t, w->tag);
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

static void native_template_on_measured(void *arg, const struct layers_reply *r, int fd)
{
    struct inspecting *w = arg;
    if (fd >= 0)
        (void)close(fd);
    w->bytes = r->error == LAYERS_OK ? r->bytes : 0;
    w->entries = r->error == LAYERS_OK ? r->entries : 0;
    if (w->r)
        layersc_list(api_call_of(w->r)->api->peers->layers, native_template_on_inspected, w);
    else
        free(w);
}

static void native_template_show_directory(struct api_call *c)
{
    struct template_info info = {0};
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!c->api->domain->templates.find_directory(c->api->templates, c->param[0], &info)) {
        reply_error(c->req, 404, "template '%.80s' not found", c->param[0]);
        return;
    }
    json_start(&j, &out);
    native_template_add_directory(&j, &info);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

void native_template(struct api_call *c)
{
    const struct template_tag *tag = NULL;
    const struct template *t = c->api->domain->templates.find(c->api->templates, c->who.tenant, c->param[0], &tag);
    if (!t) {
        native_template_show_directory(c);
        return;
    }
    if (!tag && !strchr(c->param[0], ':') && t->ntags)
        tag = &t->tags[0];
    if (!tag || !c->api->peers->layers) {
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
    c->req->user = w;
    api_on_closed(c->req, native_template_on_client_left);
    const struct layersc_to to = {.owner = c->who.tenant->id, .done = native_template_on_measured, .arg = w};
    (void)layersc_usage(c->api->peers->layers, &to, tag->stack);
}

/* --- changing and removing ---------------------------------------------------------------------------------------- */

static void native_template_on_changed(void *arg, const struct template *t, const struct state_failure *failure)
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

/* The template that the path names, if the caller may change it. NULL: it has answered. */
static const struct template *native_template_find_own(struct api_call *c, const struct template_tag **tag)
{
    struct template_info info = {0};
    const struct template *t = c->api->domain->templates.find(c->api->templates, c->who.tenant, c->param[0], tag);
    bool mine = t && (t->tenant == c->who.tenant || (!t->tenant && (c->who.scopes & SCOPE_ADMIN)));
    if (mine)
        return t;
    if (t)
        reply_error(c->req, 403, "template '%.80s' belongs to %s", c->param[0],
                    t->tenant ? "another tenant" : "the node: its operator may change or remove it");
    else if (c->api->domain->templates.find_directory(c->api->templates, c->param[0], &info))
        reply_error(c->req, 403, "template '%.80s' is a directory of the node, which is not changed from here",
                    c->param[0]);
    else
        reply_error(c->req, 404, "template '%.80s' not found", c->param[0]);
    return NULL;
}

static int native_template_read_switch(json_t *root, const char *name, enum template_switch *ret, struct err *err)
{
    bool on = false;
    int have = field_bool(root, name, &on, err);
    if (have > 0)
        *ret = on ? TEMPLATE_ON : TEMPLATE_OFF;
    return have;
}

static void native_template_on_set_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    static const char *const known[] = {"public", "history", NULL};
    struct api_call *c = api_call_of(r);
    struct template_settings s = {0};
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    if (!json_is_object(root)) {
        reply_error(r, 400, "the body must be an object");
        return;
    }
    if (fields_check_known(root, "this route", known, &err) < 0 ||
        native_template_read_switch(root, "public", &s.public, &err) < 0 ||
        native_template_read_switch(root, "history", &s.history, &err) < 0) {
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
    const struct template *t = native_template_find_own(c, NULL);
    if (t && !t->tenant && s.public == TEMPLATE_OFF)
        reply_error(r, 400, "template '%.80s' belongs to the node, and such templates are always public", c->param[0]);
    else if (t)
        c->api->domain->templates.set(c->api->templates, t, &s, native_template_on_changed,
                                      api_wait_for(r, sizeof(struct api_wait)));
}
void native_template_set(struct api_call *c) { body_json(c->req, 0, native_template_on_set_body); }

void native_template_remove(struct api_call *c)
{
    const struct template_tag *tag = NULL;
    const char *colon = strrchr(c->param[0], ':');
    const struct template *t = native_template_find_own(c, &tag);
    if (!t)
        return;
    if (colon && !tag) {
        reply_error(c->req, 404, "template '%.80s' not found", c->param[0]);
        return;
    }
    c->api->domain->templates.remove(c->api->templates, t, colon ? tag->tag : NULL, native_template_on_changed,
                                     api_wait_for(c->req, sizeof(struct api_wait)));
}

/* --- imports ------------------------------------------------------------------------------------------------------ */

struct importing {
    struct http_req *r; /* NULL: the client left */
    struct api_call *c;
    struct image_call *call;
    char name[TEMPLATE_NAME_MAX], tag[TEMPLATE_TAG_MAX], image[LAYERS_REF_MAX];
    bool head, restore, given; /* given: the caller chose the name */
    struct buf config;         /* restore: from the head of the archive */
    struct spool *spool;       /* the archive */
};

static void native_import_free(struct importing *w)
{
    buf_done(&w->config);
    spool_free(w->spool);
    free(w);
}

/* An import ends when its client leaves. */
static void native_import_on_client_left(struct http_req *r)
{
    struct importing *w = r->user;
    if (w->call)
        image_cancel(w->call);
    native_import_free(w);
}

static void native_import_write_line(struct importing *w, const struct buf *line)
{
    if (!w->head) {
        http_set(w->r, "content-type", "application/x-ndjson");
        http_head(w->r, 200, HTTP_UNKNOWN);
        w->head = true;
    }
    (void)http_write(w->r, line->p, line->n);
    (void)http_write(w->r, "\n", 1);
}

static void native_import_on_progress(void *arg, uint64_t done, uint64_t total, const char *text)
{
    struct importing *w = arg;
    _cleanup_buf_ struct buf line = {0};
    struct json j;
    if (http_queued(w->r) > HTTP_LOW_WATER)
        return; /* a client that does not read gets no more progress */
    json_start(&j, &line);
    json_obj(&j, NULL);
    json_obj(&j, "progress");
    json_u64(&j, "done", done);
    json_u64(&j, "total", total);
    if (text[0])
        json_str(&j, "text", text);
    json_end_obj(&j);
    json_end_obj(&j);
    native_import_write_line(w, &line);
}

static void native_import_on_done(void *arg, const struct template *t, const struct state_failure *failure)
{
    struct importing *w = arg;
    struct http_req *r = w->r;
    bool head = w->head;
    _cleanup_buf_ struct buf line = {0};
    struct json j;
    w->call = NULL;
    api_on_closed(r, NULL);
    if (failure && !head) {
        native_import_free(w);
        reply_state_failure(r, failure);
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
    native_import_write_line(w, &line);
    native_import_free(w);
    http_end(r);
}

static void native_import_begin(struct importing *w, int fd, const char *ref, const char *user, const char *password)
{
    struct api_call *c = w->c;
    struct template_config config = {0};
    struct tenant *owner = c->who.scopes & SCOPE_ADMIN ? NULL : c->who.tenant;
    struct state_failure full = {0};
    struct err err;
    if (owner && (!state_room(c->api->stacks, owner, 0, STATE_SOME, &full) ||
                  !c->api->domain->templates.room(c->api->templates, owner, w->name, &full))) {
        if (fd >= 0)
            (void)close(fd);
        api_on_closed(w->r, NULL);
        reply_state_failure(w->r, &full);
        native_import_free(w);
        return;
    }
    if (w->restore && (template_config_parse(buf_str(&w->config), &config, &err) < 0 ||
                       build_config_limit(&config, &err) < 0)) { /* untrusted: the uploader may have written it */
        (void)close(fd);
        template_config_done(&config);
        api_on_closed(w->r, NULL);
        reply_error(w->r, 400, "the configuration in the archive: %s", err.msg);
        native_import_free(w);
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
    w->call = image_import(c->api->builds, &i, native_import_on_progress, native_import_on_done, w);
    template_config_done(&config);
}

static void native_import_on_spooled(struct http_req *r, struct spool *s, int fd, unsigned status, const char *error,
                                     bool more)
{
    struct importing *w = r->user;
    w->spool = s;
    if (status == 0 && fd >= 0 && spool_bytes(s) > 0) {
        native_import_begin(w, fd, NULL, NULL, NULL);
        return;
    }
    if (fd >= 0)
        (void)close(fd);
    api_on_closed(r, NULL);
    native_import_free(w);
    if (status && more)
        api_refuse_body(r, status, error);
    else
        reply_error(r, status ? status : 400, "%s", status ? error : "the body must be an archive");
}

/* Checks name and tag and stores them in w. False: it has answered and freed w. */
static bool native_import_read_name(struct api_call *c, const char *name_given, const char *tag_given,
                                    struct importing *w)
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
    native_import_free(w);
    return false;
}

static struct importing *native_import_new(struct api_call *c)
{
    struct importing *w = xcalloc(1, sizeof *w);
    w->r = c->req;
    w->c = c;
    c->req->user = w;
    api_on_closed(c->req, native_import_on_client_left);
    return w;
}

static void native_import_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct importing *w = r->user;
    struct api_call *c = w->c;
    const char *ref = NULL, *name = NULL, *tag = NULL, *user = NULL, *password = NULL;
    struct build_image image = {0};
    struct err err;
    bool known = false;
    if (!status &&
        (!json_is_object(root) || field_str(root, "image", &ref, &err) <= 0 || !*ref || strlen(ref) >= LAYERS_REF_MAX ||
         field_str(root, "name", &name, &err) < 0 || field_str(root, "tag", &tag, &err) < 0 ||
         field_str(root, "username", &user, &err) < 0 || field_str(root, "password", &password, &err) < 0)) {
        status = 400;
        error = "the body must be an object with 'image': a reference like ubuntu:22.04, and perhaps 'name', 'tag', "
                "'username' and 'password'";
    } else if (!status && !c->api->config->image_pull && !(c->who.scopes & SCOPE_ADMIN)) {
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
        native_import_free(w);
        return;
    }
    if (!name || native_import_read_name(c, name, tag ? tag : "", w))
        native_import_begin(w, -1, ref, user, password);
}

static void native_import_start(struct api_call *c, bool restore)
{
    _cleanup_buf_ struct buf name = {0}, tag = {0};
    struct err err;
    struct importing *w = native_import_new(c);
    const char *type = http_field(&c->req->fields, "content-type");
    w->restore = restore;
    if (!restore && type && strncmp(type, "application/json", 16) == 0) {
        body_json(c->req, 0, native_import_on_body);
        return;
    }
    if (url_query_get(c->req->query, "name", URL_PLUS_SPACE, &name, &err) < 0 ||
        url_query_get(c->req->query, "tag", URL_PLUS_SPACE, &tag, &err) < 0)
        name.n = 0;
    if (native_import_read_name(c, buf_str(&name), buf_str(&tag), w))
        spool_body(c->req, c->who.tenant->id, restore ? &w->config : NULL, native_import_on_spooled);
}

void native_template_import(struct api_call *c) { native_import_start(c, false); }
void native_template_restore(struct api_call *c) { native_import_start(c, true); }
