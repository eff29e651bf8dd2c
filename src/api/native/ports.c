/* native-ports.c - settings of a sandbox's ports: which are public, which Host a service gets, and signed links. */
#include <string.h>

#include "api/native/native.h"
#include "api/port-link.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/num.h"
#include "base/text.h"
#include "http/body.h"

enum { LINK_STANDARD_S = 3600, LINK_MAX_S = 7 * 24 * 3600, PATH_BYTES_MAX = 2048 };

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Clears a flag of all ports and removes ports without flags. */
static void native_ports_clear_flag(struct sandbox_ports *p, uint32_t flag)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        p->v[i].flags &= ~flag;
        if (p->v[i].flags)
            p->v[n++] = p->v[i];
    }
    memset(p->v + n, 0, (p->n - n) * sizeof *p->v);
    p->n = n;
}

static int native_ports_set_flag(struct sandbox_ports *p, uint32_t port, uint32_t flag, const char *field,
                                 struct err *err)
{
    size_t i = 0;
    if (port == API_ENVD_PORT)
        return err_set(err, ERR_USAGE, 0, "field '%s': port %d is the sandbox's own agent, which has its own token",
                       field, API_ENVD_PORT);
    while (i < p->n && p->v[i].port != port)
        i++;
    if (i == SANDBOX_PORTS_MAX)
        return err_set(err, ERR_USAGE, 0, "field '%s': at most %d ports can have settings", field, SANDBOX_PORTS_MAX);
    p->n += i == p->n;
    p->v[i].port = port;
    p->v[i].flags |= flag;
    return 0;
}

static int native_ports_read_public(json_t *root, struct sandbox_ports *p, struct err *err)
{
    json_t *list;
    int have = field_arr(root, "publicPorts", &list, err);
    if (have <= 0)
        return have;
    native_ports_clear_flag(p, SANDBOX_PORT_PUBLIC);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > 65535)
            return err_set(err, ERR_USAGE, 0, "field 'publicPorts[%zu]' must be a port from 1 to 65535", i);
        if (native_ports_set_flag(p, (uint32_t)json_integer_value(v), SANDBOX_PORT_PUBLIC, "publicPorts", err) < 0)
            return -1;
    }
    return 0;
}

static int native_ports_read_hosts(json_t *root, struct sandbox_ports *p, struct err *err)
{
    json_t *hosts, *v;
    const char *name;
    int port, have = field_obj(root, "portHosts", &hosts, err);
    if (have <= 0)
        return have;
    native_ports_clear_flag(p, SANDBOX_PORT_LOCALHOST);
    native_ports_clear_flag(p, SANDBOX_PORT_PRESERVE);
    json_object_foreach(hosts, name, v)
    {
        _cleanup_buf_ struct buf shown = {0};
        const char *how = json_is_string(v) ? json_string_value(v) : "";
        text_add_safe(&shown, name, 40);
        if (!num_int(name, 1, 65535, &port))
            return err_set(err, ERR_USAGE, 0, "field 'portHosts': '%s' is not a port from 1 to 65535", buf_str(&shown));
        if (strcmp(how, "preserve") != 0 && strcmp(how, "localhost") != 0)
            return err_set(err, ERR_USAGE, 0, "field 'portHosts': '%s' must be \"preserve\" or \"localhost\"",
                           buf_str(&shown));
        uint32_t flag = how[0] == 'l' ? SANDBOX_PORT_LOCALHOST : SANDBOX_PORT_PRESERVE;
        if (native_ports_set_flag(p, (uint32_t)port, flag, "portHosts", err) < 0)
            return -1;
    }
    return 0;
}

int native_read_ports(json_t *root, struct sandbox_ports *ports, struct err *err)
{
    return native_ports_read_public(root, ports, err) < 0 || native_ports_read_hosts(root, ports, err) < 0 ? -1 : 0;
}

/* --- ports -------------------------------------------------------------------------------------------------------- */

static void native_ports_add(struct json *j, const struct api *api, const struct sandbox *b)
{
    _cleanup_buf_ struct buf url = {0};
    port_link_url(api, b->id, 0, &url);
    json_str(j, "sandboxID", b->id);
    json_bool(j, "publicTraffic", b->desc.allow_public_traffic);
    json_arr(j, "publicPorts");
    for (size_t i = 0; i < b->desc.ports.n; i++)
        if (b->desc.ports.v[i].flags & SANDBOX_PORT_PUBLIC)
            json_u64(j, NULL, b->desc.ports.v[i].port);
    json_end_arr(j);
    json_obj(j, "portHosts");
    for (size_t i = 0; i < b->desc.ports.n; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%u", b->desc.ports.v[i].port);
        if (b->desc.ports.v[i].flags & SANDBOX_PORT_LOCALHOST)
            json_str(j, name, "localhost");
        else if (b->desc.ports.v[i].flags & SANDBOX_PORT_PRESERVE)
            json_str(j, name, "preserve");
    }
    json_end_obj(j);
    json_str(j, "url", buf_str(&url));
}

static void native_ports_answer(struct http_req *r, const struct sandbox *b, bool token)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    native_ports_add(&j, api_call_of(r)->api, b);
    if (token && !b->desc.allow_public_traffic)
        json_str(&j, "trafficAccessToken", b->traffic_token);
    json_end_obj(&j);
    reply_json(r, 200, &out);
}

void native_ports(struct api_call *c)
{
    const struct sandbox *b = api_sandbox_of(c);
    if (b)
        native_ports_answer(c->req, b, false);
}

/* A change under way. */
struct changing {
    struct api_wait wait;
    char id[SANDBOX_ID_MAX];
    bool empty; /* the answer has no body */
};

static void native_ports_on_changed(void *arg, bool ok)
{
    struct changing w = *(struct changing *)arg;
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    const struct sandbox *b = sandbox_find(api_call_of(r)->api->sandboxes, w.id);
    if (!b)
        api_no_sandbox(api_call_of(r));
    else if (!ok)
        reply_not_stored(r, api_call_of(r)->api->db);
    else if (w.empty)
        reply_empty(r, 204);
    else
        native_ports_answer(r, b, true);
}

static void native_ports_change(struct api_call *c, struct sandbox *b, const struct sandbox_ports *ports,
                                bool public_traffic, bool empty)
{
    struct changing *w = api_wait_for(c->req, sizeof *w);
    w->empty = empty;
    memcpy(w->id, b->id, sizeof w->id);
    sandbox_set_ports(c->api->sandboxes, b, ports, public_traffic, native_ports_on_changed, w);
}

static void native_ports_on_put_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    static const char *const known[] = {"publicTraffic", "publicPorts", "portHosts", NULL};
    struct api_call *c = api_call_of(r);
    struct err err;
    json_t *tmp = NULL;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    struct sandbox *b = api_sandbox_of(c);
    if (!b)
        return;
    struct sandbox_ports ports = b->desc.ports;
    bool traffic = b->desc.allow_public_traffic;
    json_t *o = fields_root(root, &tmp, &err);
    /* Refuse unknown fields: a misspelled field could leave a port public that the caller wants to close. */
    if (!o || fields_check_known(o, "this route", known, &err) < 0 ||
        field_bool(o, "publicTraffic", &traffic, &err) < 0 || native_read_ports(o, &ports, &err) < 0)
        reply_error(r, 400, "%s", err.msg);
    else
        native_ports_change(c, b, &ports, traffic, false);
    json_decref(tmp);
}
void native_ports_put(struct api_call *c) { body_json(c->req, 0, native_ports_on_put_body); }

/* --- links -------------------------------------------------------------------------------------------------------- */

struct link_words {
    int64_t seconds;
    const char *path; /* borrowed from the body */
    uint32_t port;
};

static int native_link_read(struct api_call *c, json_t *o, struct link_words *ret, struct err *err)
{
    static const char *const known[] = {"expiresIn", "path", NULL};
    int port;
    *ret = (struct link_words){.seconds = LINK_STANDARD_S, .path = "/"};
    if (!num_int(c->param[1], 1, 65535, &port) || port == API_ENVD_PORT)
        return err_set(err, ERR_USAGE, 0,
                       "the port in the path must be a number from 1 to 65535, and not %d, the sandbox's own agent",
                       API_ENVD_PORT);
    ret->port = (uint32_t)port;
    if (fields_check_known(o, "this route", known, err) < 0 ||
        field_int(o, "expiresIn", 1, LINK_MAX_S, &ret->seconds, err) < 0 || field_str(o, "path", &ret->path, err) < 0)
        return -1;
    size_t n = strlen(ret->path);
    bool plain = n > 0 && n <= PATH_BYTES_MAX && ret->path[0] == '/';
    for (size_t i = 0; plain && i < n; i++)
        plain = ret->path[i] > ' ' && ret->path[i] <= '~' && ret->path[i] != '#';
    return plain ? 0
                 : err_set(err, ERR_USAGE, 0,
                           "field 'path' must begin with '/' and be printable, percent-encoded and at most %d bytes",
                           PATH_BYTES_MAX);
}

static void native_link_answer(struct http_req *r, const struct sandbox *b, const struct link_words *l)
{
    _cleanup_buf_ struct buf out = {0}, url = {0};
    const struct api *api = api_call_of(r)->api;
    uint64_t expires = clock_unix_ms() / 1000 + (uint64_t)l->seconds;
    char when[REPLY_TIME_MAX];
    struct json j;
    port_link_url(api, b->id, l->port, &url);
    buf_addf(&url, "%s%c" PORT_LINK_PARAM "=", l->path, strchr(l->path, '?') ? '&' : '?');
    port_link_make(api, b, l->port, expires, &url);
    reply_time(expires * 1000, when);
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "url", buf_str(&url));
    json_str(&j, "expiresAt", when);
    json_end_obj(&j);
    http_set(r, "cache-control", "no-store");
    reply_json(r, 201, &out);
}

static void native_link_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    struct link_words words;
    struct err err;
    json_t *tmp = NULL;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    const struct sandbox *b = api_sandbox_of(c);
    if (!b)
        return;
    json_t *o = fields_root(root, &tmp, &err);
    if (!o || native_link_read(c, o, &words, &err) < 0)
        reply_error(r, 400, "%s", err.msg);
    else
        native_link_answer(r, b, &words);
    json_decref(tmp);
}
void native_link(struct api_call *c) { body_json(c->req, 0, native_link_on_body); }

void native_links_revoke(struct api_call *c)
{
    struct sandbox *b = api_sandbox_of(c);
    if (!b)
        return;
    struct sandbox_ports ports = b->desc.ports;
    ports.links++;
    native_ports_change(c, b, &ports, b->desc.allow_public_traffic, true);
}
