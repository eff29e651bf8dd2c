#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "front/e2b/e2b.h"
#include "front/nets.h"
#include "front/reply.h"
#include "front/state.h"
#include "http/body.h"

/* What a field of a create is to us. */
enum kind {
    KNOWN,       /* read below */
    UNSUPPORTED, /* refused unless it says what happens anyway (null, false, empty) */
};
static const struct {
    const char *name;
    enum kind kind;
} fields[] =
    {
        {"templateID", KNOWN},   {"timeout", KNOWN},   {"metadata", KNOWN},
        {"envVars", KNOWN},      {"secure", KNOWN},    {"allow_internet_access", KNOWN},
        {"network", KNOWN},      {"autoPause", KNOWN}, {"autoPauseMemory", KNOWN},
        {"autoResume", KNOWN},   {"iam", UNSUPPORTED}, {"mcp", KNOWN},
        {"volumeMounts", KNOWN},
},
  network_fields[] = {
      {"allowPublicTraffic", KNOWN}, {"maskRequestHost", KNOWN}, {"httpsPorts", KNOWN},
      {"allowOut", KNOWN},           {"denyOut", KNOWN},         {"rules", KNOWN},
      {"egressProxy", KNOWN},        {"refusals", KNOWN},
};

static bool says_nothing(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) || (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static int unsupported(const char *name, struct err *err)
{
    return err_set(err, ERR_USAGE, 0, "field '%s' is not supported by this node", name);
}

/* Checks the names of all members: unsupported ones with a meaning are refused, unknown ones noted. */
static int check_names(json_t *o, bool network, struct strv *ignored, struct err *err)
{
    const char *name;
    json_t *v;
    size_t n = network ? ARRAY_LEN(network_fields) : ARRAY_LEN(fields);
    json_object_foreach(o, name, v)
    {
        size_t i = 0;
        while (i < n && strcmp(name, network ? network_fields[i].name : fields[i].name) != 0)
            i++;
        _cleanup_free_ char *full = network ? xasprintf("network.%s", name) : xstrdup(name);
        if (i == n)
            strv_add(ignored, full);
        else if ((network ? network_fields[i].kind : fields[i].kind) == UNSUPPORTED && !says_nothing(v))
            return unsupported(full, err);
    }
    return 0;
}

/* A map of strings; `each` adds one pair. */
static int read_map(json_t *root, const char *field, size_t max, size_t key_max, size_t value_max, size_t total_max,
                    struct strv *ret, bool env, struct err *err)
{
    json_t *map, *v;
    const char *key;
    size_t total = 0;
    int have = e2b_field_obj(root, field, &map, err);
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
                           buf_str(&shown), e2b_type_name(v));
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
                           "field '%s': '%s' is no name of a variable: it must not be empty or contain '='", field,
                           buf_str(&shown));
        if (env) {
            strv_take(ret, xasprintf("%s=%s", key, value));
        } else {
            strv_add(ret, key);
            strv_add(ret, value);
        }
    }
    return 0;
}

static int read_https_ports(json_t *net, struct e2b_create *ret, struct err *err)
{
    json_t *ports;
    int have = e2b_field_arr(net, "httpsPorts", &ports, err);
    if (have <= 0)
        return have < 0 ? err_wrap(err, "network") : 0;
    if (json_array_size(ports) > ARRAY_LEN(ret->https_ports))
        return err_set(err, ERR_USAGE, 0, "field 'network.httpsPorts' has %zu entries; at most %zu are allowed",
                       json_array_size(ports), ARRAY_LEN(ret->https_ports));
    for (size_t i = 0; i < json_array_size(ports); i++) {
        const json_t *p = json_array_get(ports, i);
        if (!json_is_integer(p) || json_integer_value(p) < 1 || json_integer_value(p) > 65535)
            return err_set(err, ERR_USAGE, 0, "field 'network.httpsPorts[%zu]' must be a port from 1 to 65535", i);
        ret->https_ports[i] = (uint32_t)json_integer_value(p);
    }
    ret->spec.https_ports = ret->https_ports;
    ret->spec.nhttps_ports = json_array_size(ports);
    return 0;
}

static int read_mask_host(json_t *net, struct e2b_create *ret, struct err *err)
{
    const char *mask = NULL;
    int have = e2b_field_str(net, "maskRequestHost", &mask, err);
    if (have <= 0)
        return have < 0 ? err_wrap(err, "network") : 0;
    size_t n = strlen(mask);
    if (n >= sizeof ret->mask_host)
        return err_set(err, ERR_USAGE, 0, "field 'network.maskRequestHost' has %zu bytes; at most %zu are allowed", n,
                       sizeof ret->mask_host - 1);
    for (size_t i = 0; i < n; i++)
        if (mask[i] <= ' ' || mask[i] > '~' || strchr("/\\@\"<>,;", mask[i]))
            return err_set(
                err, ERR_USAGE, 0,
                "field 'network.maskRequestHost' must be a host with an optional port, e.g. localhost:${PORT}");
    memcpy(ret->mask_host, mask, n + 1);
    ret->spec.mask_host = ret->mask_host;
    return 0;
}

/* The way out: everything public unless something else was said. */
static int read_way_out(json_t *root, json_t *net, struct e2b_create *ret, struct err *err)
{
    static const char *const ways[] = {"allowOut", "denyOut", "rules", "egressProxy"};
    int have = e2b_field_bool(root, "allow_internet_access", &ret->spec.allow_internet, err);
    if (have < 0)
        return -1;
    ret->net_given = have > 0;
    for (size_t i = 0; net && i < ARRAY_LEN(ways); i++)
        ret->net_given |= !says_nothing(json_object_get(net, ways[i]));
    if (net_doc_e2b(net, have ? ret->spec.allow_internet : -1, NULL, &ret->net, err) < 0)
        return -1;
    ret->spec.net = &ret->net;
    ret->dialect = NET_E2B;
    ret->refusals_given = net && !says_nothing(json_object_get(net, "refusals"));
    return 0;
}

static int read_network(json_t *root, struct e2b_create *ret, struct err *err)
{
    json_t *net = NULL;
    int have = e2b_field_obj(root, "network", &net, err);
    if (have < 0 || (have && check_names(net, true, &ret->ignored, err) < 0))
        return -1;
    if (read_way_out(root, net, ret, err) < 0)
        return -1;
    if (!have)
        return 0;
    if (e2b_field_bool(net, "allowPublicTraffic", &ret->spec.allow_public_traffic, err) < 0)
        return err_wrap(err, "network");
    if (read_mask_host(net, ret, err) < 0)
        return -1;
    return read_https_ports(net, ret, err);
}

int e2b_read_life(json_t *root, struct box_life *life, struct err *err)
{
    bool memory = !life->auto_pause_files;
    json_t *resume = NULL;
    if (e2b_field_bool(root, "autoPause", &life->auto_pause, err) < 0 ||
        e2b_field_bool(root, "autoPauseMemory", &memory, err) < 0 ||
        e2b_field_obj(root, "autoResume", &resume, err) < 0)
        return -1;
    if (resume && e2b_field_bool(resume, "enabled", &life->auto_resume, err) < 0)
        return err_wrap(err, "autoResume");
    if (!memory && !life->auto_pause)
        return err_set(err, ERR_USAGE, 0, "field 'autoPauseMemory' says how to pause and needs 'autoPause'");
    if (!memory && life->auto_resume)
        return err_set(err, ERR_USAGE, 0,
                       "field 'autoPauseMemory' must not be false together with 'autoResume': a sandbox that traffic "
                       "wakes must still run its server");
    life->auto_pause_files = !memory;
    return 0;
}

/* What a client wrote, in the one spelling that keeper takes. */
static int read_place(const char *place, size_t i, const char *field, struct box_mount *ret, struct err *err)
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

static int read_mount(json_t *m, size_t i, const char *field, struct box_mount *ret, struct err *err)
{
    const char *name = NULL, *place = NULL;
    bool read_only = false;
    if (!json_is_object(m))
        return err_set(err, ERR_USAGE, 0, "field '%s[%zu]' must be an object, not %s", field, i, e2b_type_name(m));
    if (e2b_field_str(m, "name", &name, err) < 0 || e2b_field_str(m, "path", &place, err) < 0 ||
        e2b_field_bool(m, "readOnly", &read_only, err) < 0)
        return err_wrap(err, "%s", field);
    if (!name || !*name || strlen(name) >= sizeof ret->name)
        return err_set(err, ERR_USAGE, 0, "field '%s[%zu].name' must be the name of a volume", field, i);
    memcpy(ret->name, name, strlen(name) + 1);
    ret->flags = read_only ? KEEPER_VOLUME_RO : 0;
    return read_place(place, i, field, ret, err);
}

/* One inside another, or one where another is. */
static int check_apart(const struct box_mount *v, size_t n, const char *field, struct err *err)
{
    for (size_t k = 0; k + 1 < n; k++)
        if (path_under(v[k].place, v[n - 1].place) || path_under(v[n - 1].place, v[k].place))
            return err_set(err, ERR_USAGE, 0, "field '%s': %s and %s are one inside the other", field, v[k].place,
                           v[n - 1].place);
    return 0;
}

int e2b_read_mounts(json_t *root, const char *field, struct e2b_create *ret, struct err *err)
{
    json_t *list = NULL;
    int have = e2b_field_arr(root, field, &list, err);
    if (have <= 0)
        return have;
    size_t n = ret->spec.nmounts;
    if (n + json_array_size(list) > BOX_MOUNTS_MAX)
        return err_set(err, ERR_USAGE, 0, "field '%s' has %zu entries; at most %d are allowed%s", field,
                       json_array_size(list), BOX_MOUNTS_MAX, n ? " with all others together" : "");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (read_mount(json_array_get(list, i), i, field, &ret->mounts[n + i], err) < 0 ||
            check_apart(ret->mounts, n + i + 1, field, err) < 0)
            return -1;
    ret->spec.mounts = ret->mounts;
    ret->spec.nmounts = n + json_array_size(list);
    return 0;
}

int e2b_read_host_dirs(json_t *root, const char *field, struct e2b_create *ret, struct err *err)
{
    size_t before = ret->spec.nmounts;
    if (e2b_read_mounts(root, field, ret, err) < 0)
        return -1;
    for (size_t i = before; i < ret->spec.nmounts; i++) {
        struct box_mount *m = &ret->mounts[i];
        if (strlen(m->name) + strlen("host-") >= sizeof m->volume)
            return err_set(err, ERR_USAGE, 0, "field '%s': there is no directory '%.64s'", field, m->name);
        (void)snprintf(m->volume, sizeof m->volume, "host-%s", m->name);
    }
    return 0;
}

/* The client starts the gateway itself, with a token of its own, by running `mcp-gateway` inside: the node has nothing to do,
 * and one that it had started would be in the way. */
static int check_mcp(json_t *root, struct err *err)
{
    json_t *servers = NULL;
    return e2b_field_obj(root, "mcp", &servers, err) < 0 ? -1 : 0;
}

static int read_lives(json_t *root, struct e2b_create *ret, struct err *err)
{
    struct box_life life = {0};
    if (e2b_read_life(root, &life, err) < 0)
        return -1;
    ret->spec.auto_pause = life.auto_pause;
    ret->spec.auto_pause_files = life.auto_pause_files;
    ret->spec.auto_resume = life.auto_resume;
    return e2b_read_mounts(root, "volumeMounts", ret, err);
}

int e2b_read_timeout(json_t *root, int64_t otherwise, uint32_t max, uint32_t *ret, struct err *err)
{
    int64_t timeout = otherwise;
    int have = e2b_field_int(root, "timeout", INT64_MIN, INT64_MAX, &timeout, err);
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

int e2b_read_metadata(json_t *root, struct strv *ret, struct err *err)
{
    return read_map(root, "metadata", E2B_METADATA_MAX, E2B_METADATA_KEY_MAX, E2B_METADATA_VALUE_MAX,
                    E2B_METADATA_TOTAL_MAX, ret, false, err);
}

int e2b_read_env(json_t *root, const char *field, struct strv *ret, struct err *err)
{
    return read_map(root, field, E2B_ENV_MAX, E2B_ENV_NAME_MAX, E2B_ENV_TOTAL_MAX, E2B_ENV_TOTAL_MAX, ret, true, err);
}

int e2b_read_history(json_t *root, struct box_spec *ret, struct err *err)
{
    int have = e2b_field_bool(root, "history", &ret->history, err);
    ret->no_history = have > 0 && !ret->history;
    return have;
}

int e2b_create_parse(json_t *root, bool v2, uint32_t max_timeout, struct e2b_create *ret, struct err *err)
{
    const char *template = NULL;
    bool secure = v2;
    memset(ret, 0, sizeof *ret);
    ret->spec.allow_public_traffic = true;
    ret->spec.allow_internet = true;
    if (!json_is_object(root))
        return err_set(err, ERR_USAGE, 0, "the body must be an object with at least 'templateID'");
    if (check_names(root, false, &ret->ignored, err) < 0)
        return -1;
    int have = e2b_field_str(root, "templateID", &template, err);
    if (have < 0)
        return -1;
    if (have == 0 || !*template)
        return err_set(err, ERR_USAGE, 0, "field 'templateID' is required: the name of a template, e.g. \"base\"");
    if (strlen(template) >= sizeof ret->template)
        return err_set(err, ERR_USAGE, 0, "field 'templateID' is longer than %zu bytes", sizeof ret->template - 1);
    memcpy(ret->template, template, strlen(template) + 1);
    ret->spec.template = ret->template;
    if (e2b_read_timeout(root, v2 ? 300 : 15, max_timeout, &ret->spec.timeout_s, err) < 0 ||
        e2b_field_bool(root, "secure", &secure, err) < 0 || e2b_read_history(root, &ret->spec, err) < 0 ||
        read_lives(root, ret, err) < 0 || check_mcp(root, err) < 0 || read_network(root, ret, err) < 0)
        return -1;
    if (v2 && !secure)
        strv_add(&ret->ignored, "secure");
    ret->spec.secure = v2 || secure;
    if (e2b_read_metadata(root, &ret->spec.metadata, err) < 0)
        return -1;
    return e2b_read_env(root, "envVars", &ret->spec.env, err);
}

void e2b_create_done(struct e2b_create *c)
{
    strv_done(&c->spec.metadata);
    strv_done(&c->spec.env);
    strv_done(&c->ignored);
    net_doc_done(&c->net);
}

/* A create under way. */
struct creating {
    struct api_wait wait;
    void (*answer)(struct http_req *r, struct box *b);
};

static void created(void *arg, struct box *b, const struct box_failure *failure)
{
    void (*answer)(struct http_req *, struct box *) = ((struct creating *)arg)->answer;
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    if (!b) {
        reply_refuse(r, failure->status, failure->error_code, failure->retry_after, failure->text);
        return;
    }
    api_note_sandbox(r, b->id);
    answer(r, b);
}

static void answer_sandbox(struct http_req *r, struct box *b)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    e2b_add_sandbox(&j, api_call_of(r), b);
    reply_json(r, 201, &out);
}

static void name_ignored(struct http_req *r, const struct strv *ignored)
{
    _cleanup_buf_ struct buf names = {0};
    for (size_t i = 0; i < ignored->n && names.n < 512; i++)
        buf_addf(&names, "%s%.64s", i ? ", " : "", ignored->v[i]);
    if (names.n)
        reply_set_safe(r, "hutch-ignored-fields", buf_str(&names));
}

uint32_t e2b_longest_life(const struct api_call *c)
{
    uint32_t node = c->front->config->max_timeout_s, tenant = c->who.tenant->quota.max_timeout_s;
    return tenant && (!node || tenant < node) ? tenant : node;
}

static bool good_key(const char *key)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < n; i++)
        if (key[i] < '!' || key[i] > '~')
            return false;
    return n > 0 && n <= E2B_IDEMPOTENCY_KEY_MAX;
}

/* A way out that was asked for and is not there is an error; one that is only the default is not. */
static bool network_ok(struct api_call *c, const struct e2b_create *what)
{
    if (nets_on(c->front) || !what->net_given || !what->spec.allow_internet)
        return true;
    reply_error(c->req, 400,
                "field 'network' is not supported: this node has no network (see its log, or egress.enabled)");
    return false;
}

static bool known_template(struct api_call *c, const char *name)
{
    const struct tmpl_tag *tag = NULL;
    return (tmpl_find(c->front, c->who.tenant, name, &tag) && tag) ||
           template_resolve(c->front, name, &(struct template_info){0});
}

static bool mounts_ok(struct api_call *c, struct e2b_create *what)
{
    for (size_t i = 0; i < what->spec.nmounts; i++)
        if (!what->mounts[i].volume[0] && !box_mount_find(c->front, c->who.tenant, &what->mounts[i])) {
            reply_error(c->req, 404, "volume '%s' not found", what->mounts[i].name);
            return false;
        }
    return true;
}

/* A create that says nothing about the way out gets what the operator set. */
static bool take_standard(struct api_call *c, struct e2b_create *what)
{
    const struct net_doc *standard = what->dialect == NET_E2B ? c->front->network_e2b : c->front->network;
    struct net_doc worded = {0};
    struct err err;
    if (what->net_given || !standard)
        return true;
    what->spec.net = standard;
    if (!what->refusals_given)
        return true;
    if (net_doc_reword(standard, what->net.closed, &worded, &err) < 0) {
        reply_error(c->req, 400, "field 'network.refusals': %s", err.msg);
        return false;
    }
    net_doc_done(&what->net);
    what->net = worded;
    what->spec.net = &what->net;
    return true;
}

void e2b_create_box(struct api_call *c, struct e2b_create *what, void (*answer)(struct http_req *r, struct box *b))
{
    struct http_req *r = c->req;
    what->spec.idempotency_key = http_field(&r->fields, "idempotency-key");
    if (what->spec.idempotency_key && !good_key(what->spec.idempotency_key)) {
        reply_error(r, 400, "the header Idempotency-Key must be 1 to %d printable characters", E2B_IDEMPOTENCY_KEY_MAX);
    } else if (!what->spec.idempotency_key &&
               !known_template(c, what->spec.template)) { /* one asked for before may be gone */
        reply_error(r, 404, "template '%s' not found", what->spec.template);
    } else if (network_ok(c, what) && mounts_ok(c, what) && take_standard(c, what)) {
        name_ignored(r, &what->ignored);
        struct creating *w = api_wait_for(r, sizeof *w);
        w->answer = answer;
        box_create(c->front, &c->who, &what->spec, created, w);
    }
    e2b_create_done(what);
}

static void create(struct http_req *r, json_t *root, unsigned status, const char *error, bool v2)
{
    struct api_call *c = api_call_of(r);
    struct e2b_create what;
    struct err err;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    if (e2b_create_parse(root, v2, e2b_longest_life(c), &what, &err) < 0) {
        reply_error(r, err.eno == EAGAIN ? 503 : 400, "%s", err.msg);
        e2b_create_done(&what);
        return;
    }
    e2b_create_box(c, &what, answer_sandbox);
}

static void create_v1(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    create(r, root, status, error, false);
}
static void create_v2(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    create(r, root, status, error, true);
}

void e2b_create_v1(struct api_call *c) { body_json(c->req, 0, create_v1); }
void e2b_create_v2(struct api_call *c) { body_json(c->req, 0, create_v2); }
