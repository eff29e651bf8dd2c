/* create.c - POST /sandbox: what Daytona's clients ask for, as a description of a sandbox. */
#include <stdio.h>
#include <string.h>

#include "api/create.h"
#include "api/daytona/daytona.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/mem.h"
#include "config/config.h"

enum {
    AUTO_STOP_MIN = 15,
    AUTO_STOP_MAX = 7 * 24 * 60,
    MINUTE_S = 60,
    CPU_MAX = 256,
    GIB_MAX = 65536,
    NAME_MAX_BYTES = 63
};
#define STANDARD_TEMPLATE "base"

/* Fields that a node cannot serve, refused by name if they ask for something. */
static const char *const absent[] = {"secrets", "linkedSandboxId", "warmPoolId"};

static bool daytona_create_asks(const json_t *v)
{
    return v && !json_is_null(v) && !json_is_false(v) && !(json_is_array(v) && json_array_size(v) == 0) &&
           !(json_is_integer(v) && json_integer_value(v) == 0);
}

/* "FROM NAME" and nothing else is the template NAME; a file with steps is built by `hutch template build`. */
static int daytona_create_read_build(json_t *info, char *ret, size_t max, struct err *err)
{
    const char *text = json_string_value(json_object_get(info, "dockerfileContent"));
    const char *from = text ? text + strspn(text, " \t\r\n") : "";
    size_t n = strncmp(from, "FROM ", 5) == 0 ? strcspn(from + 5, " \t\r\n") : 0;
    if (n == 0 || n >= max || from[5 + n + strspn(from + 5 + n, " \t\r\n")])
        return err_set(
            err, ERR_USAGE, 0,
            "field 'buildInfo.dockerfileContent' must be one line 'FROM TEMPLATE' here; build other files with "
            "`hutch template build -t NAME DIR` and create from the snapshot NAME");
    (void)snprintf(ret, max, "%.*s", (int)n, from + 5);
    return 0;
}

static int daytona_create_read_template(json_t *body, struct sandbox_desc *d, struct err *err)
{
    const char *snapshot = NULL;
    json_t *info = NULL;
    int have = field_str(body, "snapshot", &snapshot, err);
    if (have < 0 || field_obj(body, "buildInfo", &info, err) < 0)
        return -1;
    if (info)
        return daytona_create_read_build(info, d->template, sizeof d->template, err);
    if (have && (!*snapshot || strlen(snapshot) >= sizeof d->template))
        return err_set(err, ERR_USAGE, 0, "field 'snapshot' must be the name of a template, e.g. \"base\"");
    (void)snprintf(d->template, sizeof d->template, "%s", have ? snapshot : STANDARD_TEMPLATE);
    return 0;
}

static int daytona_create_read_limits(json_t *body, struct sandbox_desc *d, struct err *err)
{
    int64_t cpu = 0, memory = 0, disk = 0, gpu = 0;
    if (field_int(body, "cpu", 0, CPU_MAX, &cpu, err) < 0 || field_int(body, "memory", 0, GIB_MAX, &memory, err) < 0 ||
        field_int(body, "disk", 0, GIB_MAX, &disk, err) < 0 || field_int(body, "gpu", 0, 0, &gpu, err) < 0)
        return -1;
    d->cpu_milli = (uint32_t)cpu * 1000;
    d->memory = (uint64_t)memory << 30;
    d->disk = (uint64_t)disk << 30;
    return 0;
}

static int daytona_create_read_life(const struct api_call *c, json_t *body, struct sandbox_desc *d, struct err *err)
{
    int64_t stop = AUTO_STOP_MIN, archive = 0, delete = -1;
    uint32_t longest = api_longest_life(c);
    if (field_int(body, "autoStopInterval", 0, AUTO_STOP_MAX, &stop, err) < 0 ||
        field_int(body, "autoArchiveInterval", INT32_MIN, INT32_MAX, &archive, err) < 0 ||
        field_int(body, "autoDeleteInterval", INT32_MIN, INT32_MAX, &delete, err) < 0)
        return -1;
    d->life.idle_s = (uint32_t)stop * MINUTE_S;
    d->life.auto_pause_files = true;
    d->timeout_s = longest && longest < CONFIG_UNTIL_KILLED_S ? longest : CONFIG_UNTIL_KILLED_S;
    if (delete == 0) {
        strv_add(&d->metadata, DAYTONA_EPHEMERAL);
        strv_add(&d->metadata, "1");
    }
    return 0;
}

/* A label must not pass for one of ours, nor for the name. */
int daytona_read_labels(json_t *body, struct strv *ret, struct err *err)
{
    json_t *labels = NULL, *v;
    const char *name;
    if (field_obj(body, "labels", &labels, err) < 0)
        return -1;
    json_object_foreach(labels, name, v)
    {
        if (daytona_label_is_own(name))
            return err_set(err, ERR_USAGE, 0, "field 'labels': the label '%.40s' is reserved", name);
    }
    json_t *root = json_pack("{s:O?}", "metadata", labels);
    int rc = api_read_metadata(root, ret, err);
    json_decref(root);
    return rc < 0 ? -1 : 0;
}

int daytona_check_name(const char *name, struct err *err)
{
    size_t n = strlen(name);
    if (n > 0 && n <= NAME_MAX_BYTES && !strchr("_.-", name[0]) &&
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == n)
        return 0;
    return err_set(
        err, ERR_USAGE, 0,
        "field 'name' has 1 to %d letters, digits, dots, dashes and underscores, and begins with a letter or "
        "digit",
        NAME_MAX_BYTES);
}

static int daytona_create_read_name(json_t *body, struct sandbox_desc *d, struct err *err)
{
    const char *name = NULL;
    int have = field_str(body, "name", &name, err);
    if (have <= 0)
        return have;
    if (daytona_check_name(name, err) < 0)
        return -1;
    strv_add(&d->metadata, "name");
    strv_add(&d->metadata, name);
    return 0;
}

/* networkAllowList: "CIDR,CIDR"; domainAllowList: "name,name". */
int daytona_read_network(json_t *body, const struct net_doc *before, struct net_doc *ret, bool *ret_internet,
                         bool *ret_given, struct err *err)
{
    const char *lists[] = {NULL, NULL};
    bool block = false;
    if (field_bool(body, "networkBlockAll", &block, err) < 0 ||
        field_str(body, "networkAllowList", &lists[0], err) < 0 ||
        field_str(body, "domainAllowList", &lists[1], err) < 0)
        return -1;
    json_t *allow = json_array();
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        for (const char *p = lists[i]; p && *p; p += strspn(p, ", ")) {
            size_t n = strcspn(p, ", ");
            (void)json_array_append_new(allow, json_stringn(p, n));
            p += n;
        }
    bool some = json_array_size(allow) > 0;
    json_t *doc = some ? json_pack("{s:O,s:[s]}", "allowOut", allow, "denyOut", "0.0.0.0/0") : NULL;
    json_decref(allow);
    *ret_internet = !block;
    *ret_given = block || some;
    int rc = net_doc_e2b(doc, block ? 0 : -1, before, ret, err);
    json_decref(doc);
    return rc;
}

static int daytona_create_read_network(json_t *body, struct api_create *ret, struct err *err)
{
    int rc = daytona_read_network(body, NULL, &ret->net, &ret->spec.desc.allow_internet, &ret->net_given, err);
    ret->spec.net = &ret->net;
    ret->dialect = NET_E2B;
    return rc;
}

/* [{"volumeId","mountPath","subpath"}]: the id is looked up as a name, too. */
static int daytona_create_read_volumes(json_t *body, struct api_create *ret, struct err *err)
{
    json_t *list = NULL, *v;
    size_t i;
    if (field_arr(body, "volumes", &list, err) < 0)
        return -1;
    json_t *mounts = json_array();
    json_array_foreach(list, i, v)
    {
        const char *id = json_string_value(json_object_get(v, "volumeId"));
        const char *place = json_string_value(json_object_get(v, "mountPath"));
        if (daytona_create_asks(json_object_get(v, "subpath"))) {
            json_decref(mounts);
            return err_set(err, ERR_USAGE, 0, "field 'volumes[%zu].subpath' is not supported by this node", i);
        }
        (void)json_array_append_new(mounts, json_pack("{s:s?,s:s?}", "name", id, "path", place));
    }
    json_t *root = json_pack("{s:o}", "volumes", mounts);
    int rc = api_read_mounts(root, "volumes", ret, err);
    json_decref(root);
    return rc;
}

static int daytona_create_read(const struct api_call *c, json_t *body, struct api_create *ret, struct err *err)
{
    struct sandbox_desc *d = &ret->spec.desc;
    d->secure = true;
    for (size_t i = 0; i < ARRAY_LEN(absent); i++)
        if (daytona_create_asks(json_object_get(body, absent[i])))
            return err_set(err, ERR_USAGE, 0, "field '%s' is not supported by this node", absent[i]);
    if (daytona_create_read_template(body, d, err) < 0 || daytona_create_read_limits(body, d, err) < 0 ||
        daytona_read_labels(body, &d->metadata, err) < 0 || daytona_create_read_name(body, d, err) < 0 ||
        daytona_create_read_life(c, body, d, err) < 0 ||
        field_bool(body, "public", &d->allow_public_traffic, err) < 0 || api_read_env(body, "env", &d->env, err) < 0 ||
        daytona_create_read_volumes(body, ret, err) < 0)
        return -1;
    return daytona_create_read_network(body, ret, err);
}

void daytona_create_refuse(struct http_req *r, const struct sandbox_failure *failure)
{
    daytona_refuse(r, failure->status, failure->retry_after, failure->text);
}

static void daytona_create_on_body(struct api_call *c, json_t *body)
{
    struct api_create what = {.spec.unique = "name", .refuse = daytona_create_refuse};
    struct err err;
    const char *name = daytona_text(body, "name");
    if (daytona_create_read(c, body, &what, &err) < 0) {
        daytona_error(c->req, 400, NULL, "%s", err.msg);
        api_create_done(&what);
    } else if (name && c->api->domain->sandboxes.find(c->api->sandboxes, &c->who, name)) {
        daytona_error(c->req, 409, NULL, "the name '%s' is the id of a sandbox", name);
        api_create_done(&what);
    } else
        api_create_sandbox(c, &what, daytona_answer_sandbox);
}

void daytona_create(struct api_call *c) { daytona_body(c, daytona_create_on_body); }
