/* create.c - reads the parts of a create's body that all dialects share and starts the sandbox. */
#include "api/create.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/reply.h"
#include "api/sandbox-json.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "network/networks.h"
#include "volumes/volumes.h"

/* Reads a map of strings: into NAME=VALUE strings if env, else into keys and values in turn. */
static int api_read_map(json_t *root, const char *field, size_t max, size_t key_max, size_t value_max, size_t total_max,
                        struct strv *ret, bool env, struct err *err)
{
    json_t *map, *v;
    const char *key;
    size_t total = 0;
    int have = field_obj(root, field, &map, err);
    if (have <= 0)
        return have;
    if (json_object_size(map) > max)
        return err_set(err, ERR_USAGE, 0, "field '%s' has %zu entries; at most %zu are allowed", field,
                       json_object_size(map), max);
    json_object_foreach(map, key, v)
    {
        _cleanup_buf_ struct buf shown = {0};
        text_add_safe(&shown, key, 64);
        if (!json_is_string(v))
            return err_set(err, ERR_USAGE, 0, "field '%s': the value of '%s' must be a string, not %s", field,
                           buf_str(&shown), field_type_name(v));
        const char *value = json_string_value(v);
        size_t kn = strlen(key), vn = json_string_length(v);
        if (strlen(value) != vn)
            return err_set(err, ERR_USAGE, 0, "field '%s': the value of '%s' must not contain NUL", field,
                           buf_str(&shown));
        if (kn > key_max || vn > value_max)
            return err_set(err, ERR_USAGE, 0, "field '%s': '%s' is too long; keys have at most %zu bytes, values %zu",
                           field, buf_str(&shown), key_max, value_max);
        if ((total += kn + vn) > total_max)
            return err_set(err, ERR_USAGE, 0, "field '%s' is larger than %zu bytes", field, total_max);
        if (env && (kn == 0 || strchr(key, '=')))
            return err_set(err, ERR_USAGE, 0,
                           "field '%s': '%s' is not a valid name of a variable: it must not be empty or contain '='",
                           field, buf_str(&shown));
        if (env) {
            strv_take(ret, xasprintf("%s=%s", key, value));
        } else {
            strv_add(ret, key);
            strv_add(ret, value);
        }
    }
    return 0;
}

/* Checks a mount path and normalises it to the form that keeper accepts. */
static int api_read_mount_path(const char *place, size_t i, const char *field, struct sandbox_mount *ret,
                               struct err *err)
{
    static const char *const kernels[] = {"/proc", "/dev", "/sys"};
    if (!place || place[0] != '/' || strlen(place) >= sizeof ret->place)
        return err_set(err, ERR_USAGE, 0, "field '%s[%zu].path' must be an absolute path of at most %zu bytes", field,
                       i, sizeof ret->place - 1);
    for (const char *p = place; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f ||
            (p[0] == '/' && p[1] == '.' && p[2] == '.' && (!p[3] || p[3] == '/')))
            return err_set(err, ERR_USAGE, 0, "field '%s[%zu].path' must not contain '..' or control characters", field,
                           i);
    _cleanup_free_ char *clean = path_clean("/", place);
    bool bad = strcmp(clean, "/") == 0;
    for (size_t k = 0; k < ARRAY_LEN(kernels); k++)
        bad |= path_under(clean, kernels[k]);
    if (bad)
        return err_set(err, ERR_USAGE, 0, "field '%s[%zu].path' must not be / or in /proc, /dev or /sys", field, i);
    memcpy(ret->place, clean, strlen(clean) + 1);
    return 0;
}

static int api_read_mount(json_t *m, size_t i, const char *field, struct sandbox_mount *ret, struct err *err)
{
    const char *name = NULL, *place = NULL;
    bool read_only = false;
    if (!json_is_object(m))
        return err_set(err, ERR_USAGE, 0, "field '%s[%zu]' must be an object, not %s", field, i, field_type_name(m));
    if (field_str(m, "name", &name, err) < 0 || field_str(m, "path", &place, err) < 0 ||
        field_bool(m, "readOnly", &read_only, err) < 0)
        return err_wrap(err, "%s", field);
    if (!name || !*name || strlen(name) >= sizeof ret->name)
        return err_set(err, ERR_USAGE, 0, "field '%s[%zu].name' must be the name of a volume", field, i);
    memcpy(ret->name, name, strlen(name) + 1);
    ret->flags = read_only ? KEEPER_VOLUME_RO : 0;
    return api_read_mount_path(place, i, field, ret, err);
}

/* Refuses the last mount if its path contains another mount's path or lies within it. */
static int api_create_check_mounts_apart(const struct sandbox_mount *v, size_t n, const char *field, struct err *err)
{
    for (size_t k = 0; k + 1 < n; k++)
        if (path_under(v[k].place, v[n - 1].place) || path_under(v[n - 1].place, v[k].place))
            return err_set(err, ERR_USAGE, 0, "field '%s': one of the paths %s and %s lies within the other", field,
                           v[k].place, v[n - 1].place);
    return 0;
}

int api_read_mounts(json_t *root, const char *field, struct api_create *ret, struct err *err)
{
    json_t *list = NULL;
    int have = field_arr(root, field, &list, err);
    if (have <= 0)
        return have;
    struct sandbox_desc *d = &ret->spec.desc;
    size_t n = d->nmounts;
    if (n + json_array_size(list) > SANDBOX_MOUNTS_MAX)
        return err_set(err, ERR_USAGE, 0, "field '%s' has %zu entries; at most %d are allowed%s", field,
                       json_array_size(list), SANDBOX_MOUNTS_MAX, n ? " with all others together" : "");
    if (!d->mounts)
        d->mounts = xcalloc(SANDBOX_MOUNTS_MAX, sizeof *d->mounts);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (api_read_mount(json_array_get(list, i), i, field, &d->mounts[n + i], err) < 0 ||
            api_create_check_mounts_apart(d->mounts, n + i + 1, field, err) < 0)
            return -1;
    d->nmounts = n + json_array_size(list);
    return 0;
}

int api_read_host_dirs(json_t *root, const char *field, struct api_create *ret, struct err *err)
{
    struct sandbox_desc *d = &ret->spec.desc;
    size_t before = d->nmounts;
    if (api_read_mounts(root, field, ret, err) < 0)
        return -1;
    for (size_t i = before; i < d->nmounts; i++) {
        struct sandbox_mount *m = &d->mounts[i];
        if (strlen(m->name) + strlen("host-") >= sizeof m->volume)
            return err_set(err, ERR_USAGE, 0, "field '%s': there is no directory '%.64s'", field, m->name);
        (void)snprintf(m->volume, sizeof m->volume, "host-%s", m->name);
    }
    return 0;
}

int api_read_timeout(json_t *root, int64_t otherwise, uint32_t max, uint32_t *ret, struct err *err)
{
    int64_t timeout = otherwise;
    int have = field_int(root, "timeout", INT64_MIN, INT64_MAX, &timeout, err);
    if (have < 0)
        return -1;
    if (timeout <= 0)
        return err_set(err, ERR_USAGE, 0, "field 'timeout' must be a positive number of seconds, not %lld",
                       (long long)timeout);
    if (max && timeout > max) {
        if (have)
            return err_set(err, ERR_USAGE, 0, "field 'timeout' must be at most %u seconds here, not %lld", max,
                           (long long)timeout);
        timeout = max;
    }
    if (timeout > UINT32_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'timeout' is out of range");
    *ret = (uint32_t)timeout;
    return 0;
}

int api_read_metadata(json_t *root, struct strv *ret, struct err *err)
{
    return api_read_map(root, "metadata", API_METADATA_MAX, API_METADATA_KEY_MAX, API_METADATA_VALUE_MAX,
                        API_METADATA_TOTAL_MAX, ret, false, err);
}

int api_read_env(json_t *root, const char *field, struct strv *ret, struct err *err)
{
    return api_read_map(root, field, API_ENV_MAX, API_ENV_NAME_MAX, API_ENV_TOTAL_MAX, API_ENV_TOTAL_MAX, ret, true,
                        err);
}

int api_read_history(json_t *root, struct sandbox_desc *ret, struct err *err)
{
    int have = field_bool(root, "history", &ret->history, err);
    ret->no_history = have > 0 && !ret->history;
    return have;
}

void api_create_done(struct api_create *c)
{
    sandbox_desc_done(&c->spec.desc);
    strv_done(&c->ignored);
    net_doc_done(&c->net);
}

/* A create under way. */
struct creating {
    struct api_wait wait;
    api_create_refuse_fn *refuse;
    void (*answer)(struct http_req *r, struct sandbox *b);
};

static void api_create_answer_refusal(struct http_req *r, const struct sandbox_failure *failure)
{
    reply_refuse(r, failure->status, failure->error_code, failure->retry_after, failure->text);
}

__attribute__((format(printf, 4, 5))) static void api_create_refuse(struct http_req *r, const struct api_create *what,
                                                                    unsigned status, const char *fmt, ...)
{
    struct sandbox_failure failure = {.status = status};
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(failure.text, sizeof failure.text, fmt, ap);
    va_end(ap);
    (what->refuse ? what->refuse : api_create_answer_refusal)(r, &failure);
}

static void api_create_on_created(void *arg, struct sandbox *b, const struct sandbox_failure *failure)
{
    void (*answer)(struct http_req *, struct sandbox *) = ((struct creating *)arg)->answer;
    api_create_refuse_fn *refuse = ((struct creating *)arg)->refuse;
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    if (!b) {
        refuse(r, failure);
        return;
    }
    api_note_sandbox(r, b->id);
    answer(r, b);
}

static void api_create_set_ignored_header(struct http_req *r, const struct strv *ignored)
{
    _cleanup_buf_ struct buf names = {0};
    for (size_t i = 0; i < ignored->n && names.n < 512; i++)
        buf_addf(&names, "%s%.64s", i ? ", " : "", ignored->v[i]);
    if (names.n)
        reply_set_safe(r, "hutch-ignored-fields", buf_str(&names));
}

uint32_t api_longest_life(const struct api_call *c)
{
    uint32_t node = c->api->config->max_timeout_s, tenant = c->who.tenant->quota.max_timeout_s;
    return tenant && (!node || tenant < node) ? tenant : node;
}

static bool api_create_key_is_valid(const char *key)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < n; i++)
        if (key[i] < '!' || key[i] > '~')
            return false;
    return n > 0 && n <= API_IDEMPOTENCY_KEY_MAX;
}

/* On a node without a network, refuse a network that the body asks for; the default network is dropped silently. */
static bool api_create_network_is_there(struct api_call *c, const struct api_create *what)
{
    if (c->api->domain->sandboxes.have_network(c->api->network) || !what->net_given || !what->spec.desc.allow_internet)
        return true;
    api_create_refuse(c->req, what, 400,
                      "field 'network' is not supported: this node has no network (see its log, or egress.enabled)");
    return false;
}

static bool api_create_template_is_known(struct api_call *c, const char *name)
{
    const struct template_tag *tag = NULL;
    return (c->api->domain->templates.find(c->api->templates, c->who.tenant, name, &tag) && tag) ||
           c->api->domain->templates.find_directory(c->api->templates, name, &(struct template_info){0});
}

static bool api_create_find_mounts(struct api_call *c, struct api_create *what)
{
    for (size_t i = 0; i < what->spec.desc.nmounts; i++) {
        struct sandbox_mount *m = &what->spec.desc.mounts[i];
        if (!m->volume[0] && !c->api->domain->volumes.find_mount(c->api->volumes, c->who.tenant, m)) {
            api_create_refuse(c->req, what, 404, "volume '%s' not found", m->name);
            return false;
        }
    }
    return true;
}

/* A create without a network of its own gets the one the operator configured. False: it answered with an error. */
static bool api_create_take_default_network(struct api_call *c, struct api_create *what)
{
    const struct net_doc *standard = what->dialect == NET_E2B ? c->api->default_net_e2b : c->api->default_net;
    struct net_doc worded = {0};
    struct err err;
    if (what->net_given || !standard)
        return true;
    what->spec.net = standard;
    if (!what->refusals_given)
        return true;
    if (net_doc_reword(standard, what->net.closed, &worded, &err) < 0) {
        api_create_refuse(c->req, what, 400, "field 'network.refusals': %s", err.msg);
        return false;
    }
    net_doc_done(&what->net);
    what->net = worded;
    what->spec.net = &what->net;
    return true;
}

void api_create_sandbox(struct api_call *c, struct api_create *what,
                        void (*answer)(struct http_req *r, struct sandbox *b))
{
    struct http_req *r = c->req;
    what->spec.idempotency_key = http_field(&r->fields, "idempotency-key");
    if (what->spec.idempotency_key && !api_create_key_is_valid(what->spec.idempotency_key)) {
        api_create_refuse(r, what, 400, "the header Idempotency-Key must be 1 to %d printable characters",
                          API_IDEMPOTENCY_KEY_MAX);
    } else if (!what->spec.idempotency_key &&
               !api_create_template_is_known(
                   c, what->spec.desc
                          .template)) { /* a repeated create must find its sandbox even if the template is gone */
        api_create_refuse(r, what, 404, "template '%s' not found", what->spec.desc.template);
    } else if (api_create_network_is_there(c, what) && api_create_find_mounts(c, what) &&
               api_create_take_default_network(c, what)) {
        api_create_set_ignored_header(r, &what->ignored);
        struct creating *w = api_wait_for(r, sizeof *w);
        w->answer = answer;
        w->refuse = what->refuse ? what->refuse : api_create_answer_refusal;
        c->api->domain->sandboxes.create(c->api->sandboxes, &c->who, &what->spec, api_create_on_created, w);
    }
    api_create_done(what);
}

void api_answer_created(struct http_req *r, struct sandbox *b)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    api_add_sandbox(&j, api_call_of(r), b);
    reply_json(r, 201, &out);
}
