/* create.c - creates a sandbox through Hutch's own API: without network and public traffic unless the body
 * asks. */
#include <errno.h>
#include <string.h>

#include "api/create.h"
#include "api/native/native.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/ids.h"
#include "base/json.h"
#include "http/body.h"
#include "network/networks.h"

enum {
    STANDARD_TIMEOUT_S = 300,
    NAME_MAX_BYTES = 63,
    MEMORY_MIN_MB = 16,
    MEMORY_MAX_MB = 1 << 20, /* 1 TiB */
    DISK_MAX_MB = 64 << 20,  /* 64 TiB */
    CPUS_MAX = 256
};

static int native_create_read_life(json_t *root, struct api_create *ret, struct err *err)
{
    struct sandbox_desc *d = &ret->spec.desc;
    return native_read_life(root, &d->life, err) < 0 || api_read_history(root, d, err) < 0 ||
                   api_read_mounts(root, "volumes", ret, err) < 0 || api_read_host_dirs(root, "hostDirs", ret, err) < 0
               ? -1
               : 0;
}

/* "timeout": 0 means until killed, the longest life there is. */
static int native_create_read_timeout(const struct api_call *c, json_t *root, uint32_t *ret, struct err *err)
{
    int64_t standard = c->api->config->default_timeout_s ? c->api->config->default_timeout_s : STANDARD_TIMEOUT_S;
    const json_t *given = json_object_get(root, "timeout");
    uint32_t longest = api_longest_life(c);
    if (!json_is_integer(given) || json_integer_value(given) != 0)
        return api_read_timeout(root, standard, longest, ret, err);
    if (longest && longest < CONFIG_UNTIL_KILLED_S)
        return err_set(err, ERR_USAGE, 0,
                       "field 'timeout': 0, until killed, is not allowed here; at most %u seconds are "
                       "(sandboxes.max_timeout, or the tenant's quota)",
                       longest);
    *ret = CONFIG_UNTIL_KILLED_S;
    return 0;
}

/* "memoryMB", "diskSizeMB" and "cpus"; the tenant's quota counts them. */
static int native_create_read_limits(json_t *root, struct sandbox_desc *d, struct err *err)
{
    int64_t memory = 0, disk = 0;
    const json_t *cpus = json_object_get(root, "cpus");
    double n = json_number_value(cpus);
    if (field_int(root, "memoryMB", MEMORY_MIN_MB, MEMORY_MAX_MB, &memory, err) < 0 ||
        field_int(root, "diskSizeMB", 1, DISK_MAX_MB, &disk, err) < 0)
        return -1;
    if (cpus && !json_is_null(cpus) && (!json_is_number(cpus) || n < 0.01 || n > CPUS_MAX))
        return err_set(err, ERR_USAGE, 0, "field 'cpus' must be a number from 0.01 to %d", CPUS_MAX);
    d->memory = (uint64_t)memory << 20;
    d->disk = (uint64_t)disk << 20;
    d->cpu_milli = (uint32_t)(n * 1000 + 0.5);
    return 0;
}

/* "name" becomes the metadata `name`: so E2B's lists find it, too. It must not look like an id. */
static int native_create_read_name(json_t *root, struct api_create *ret, struct err *err)
{
    struct sandbox_desc *d = &ret->spec.desc;
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    const char *name = NULL;
    int have = field_str(root, "name", &name, err);
    if (have <= 0 || !name)
        return have;
    size_t n = strlen(name);
    if (n == 0 || n > NAME_MAX_BYTES || strchr("_.-", name[0]) ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") != n)
        return err_set(err, ERR_USAGE, 0,
                       "field 'name' has 1 to %d letters, digits, dots, dashes and underscores, and begins with a "
                       "letter or digit",
                       NAME_MAX_BYTES);
    if (n == ID_TEXT && strspn(name, letters) == n)
        return err_set(err, ERR_USAGE, 0, "field 'name' must not look like an id");
    if (sandbox_desc_label(d, "name"))
        return err_set(err, ERR_USAGE, 0, "give the name as 'name' or in 'metadata', not in both");
    strv_add(&d->metadata, "name");
    strv_add(&d->metadata, name);
    ret->spec.unique = "name";
    return 0;
}

static int native_create_read_body(struct api_call *c, json_t *root, struct api_create *ret, struct err *err)
{
    const char *template = "base";
    json_t *network = json_object_get(root, "network"), *secrets = json_object_get(root, "secrets");
    struct sandbox_desc *d = &ret->spec.desc;
    d->secure = true;
    if (field_str(root, "template", &template, err) < 0 ||
        native_create_read_timeout(c, root, &d->timeout_s, err) < 0 ||
        field_bool(root, "publicTraffic", &d->allow_public_traffic, err) < 0 ||
        native_read_ports(root, &d->ports, err) < 0 || api_read_metadata(root, &d->metadata, err) < 0 ||
        api_read_env(root, "env", &d->env, err) < 0 || native_create_read_name(root, ret, err) < 0 ||
        native_create_read_limits(root, d, err) < 0 || native_create_read_life(root, ret, err) < 0)
        return -1;
    if (!*template || strlen(template) >= sizeof d->template)
        return err_set(err, ERR_USAGE, 0, "field 'template' must be the name of a template, e.g. \"base\"");
    memcpy(d->template, template, strlen(template) + 1);
    network = json_is_null(network) ? NULL : network;
    secrets = json_is_null(secrets) ? NULL : secrets;
    ret->refusals_given =
        !json_array_size(secrets) && json_object_size(network) == 1 && json_object_get(network, "refusals");
    ret->net_given = (network && !ret->refusals_given) || json_array_size(secrets);
    if (native_read_network(c, network, secrets, &ret->net, err) < 0)
        return err_wrap(err, "network");
    ret->spec.net = &ret->net;
    d->allow_internet = ret->net_given && !(json_is_string(network) && strcmp(json_string_value(network), "off") == 0);
    return 0;
}

static void native_create_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    static const char *const known[] = {"template",    "timeout",     "metadata",   "env",     "publicTraffic",
                                        "publicPorts", "portHosts",   "network",    "secrets", "onTimeout",
                                        "autoResume",  "idleTimeout", "volumes",    "history", "hostDirs",
                                        "name",        "memoryMB",    "diskSizeMB", "cpus",    NULL};
    struct api_call *c = api_call_of(r);
    struct api_create what = {0};
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    json_t *tmp = NULL, *o = fields_root(root, &tmp, &err);
    int rc =
        o && fields_check_known(o, "this route", known, &err) == 0 ? native_create_read_body(c, o, &what, &err) : -1;
    json_decref(tmp);
    if (rc < 0) {
        reply_error(r, err.eno == EAGAIN ? 503 : 400, "%s", err.msg);
        api_create_done(&what);
        return;
    }
    api_create_sandbox(c, &what, api_answer_created);
}
void native_create(struct api_call *c) { body_json(c->req, 0, native_create_on_body); }
