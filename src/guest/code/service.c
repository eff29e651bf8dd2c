#include "guest/code/service.h"

#include <string.h>

#include "base/cleanup.h"
#include "http/body.h"
#include "http/router.h"

static void service_say(struct http_req *r, unsigned status, const char *text)
{
    _cleanup_buf_ struct buf b = {0};
    buf_addf(&b, "%s\n", text);
    http_reply(r, status, "text/plain; charset=utf-8", buf_str(&b), b.n);
}

/* With a word for programs. Clients of E2B read the status and the text, the node reads the word. */
static void service_refuse(struct http_req *r, unsigned status, const char *code, const char *text)
{
    http_set(r, "hutch-error", code);
    service_say(r, status, text);
}

static void service_fail(struct http_req *r, const struct err *err)
{
    if (err->code == ERR_USAGE)
        service_refuse(r, 400, "bad_request", err->msg);
    else if (err->code == ERR_LIMIT)
        service_refuse(r, 429, "too_many_contexts", err->msg);
    else
        service_refuse(r, 500, err->code == ERR_HOST ? "language_not_installed" : "kernel_start_failed", err->msg);
}

/* A member that is absent or null is NULL; one of another type fails. */
static int service_text(json_t *root, const char *key, const char **ret, struct err *err)
{
    json_t *v = json_object_get(root, key);
    *ret = json_string_value(v);
    if (!*ret && v && !json_is_null(v))
        return err_set(err, ERR_USAGE, 0, "%s must be a string", key);
    return 0;
}

static void service_refuse_language(struct http_req *r)
{
    _cleanup_buf_ struct buf text = {0};
    buf_adds(&text, "the language is not known; choose ");
    language_add_names(&text);
    service_refuse(r, 400, "unknown_language", buf_str(&text));
}

static int service_env(json_t *root, json_t **ret, struct err *err)
{
    json_t *env = json_object_get(root, "env_vars"), *value;
    const char *name;
    *ret = NULL;
    if (!env || json_is_null(env))
        return 0;
    if (!json_is_object(env) || json_object_size(env) > SERVICE_ENV_MAX)
        return err_set(err, ERR_USAGE, 0, "env_vars must be an object of at most %d strings", SERVICE_ENV_MAX);
    json_object_foreach(env, name, value) if (!language_is_variable(name) || !json_is_string(value)) return err_set(
        err, ERR_USAGE, 0, "env_vars: names have letters, digits and _, values are strings");
    *ret = env;
    return 0;
}

static int service_timeout(json_t *root, uint64_t *ret, struct err *err)
{
    json_t *v = json_object_get(root, "timeout");
    *ret = 0;
    if (!v || json_is_null(v))
        return 0;
    double seconds = json_number_value(v);
    if (!json_is_number(v) || !(seconds >= 0 && seconds <= 86400))
        return err_set(err, ERR_USAGE, 0, "timeout is a number of seconds from 0 (none) to 86400");
    *ret = (uint64_t)(seconds * 1000);
    return 0;
}

/* The shorter one of two times, of which 0 is none. */
static uint64_t service_shorter(uint64_t a, uint64_t b) { return a == 0 || (b > 0 && b < a) ? b : a; }

/* Of the member `rights`, or of a variable, for clients that have nothing else; it is taken out. */
static int service_rights(json_t *root, json_t *env, struct cell_rights *ret, struct err *err)
{
    static const char name[] = "HUTCH_RIGHTS";
    const char *text = json_string_value(json_object_get(env, name));
    json_t *o = json_object_get(root, "rights");
    *ret = (struct cell_rights){0};
    if (text && o && !json_is_null(o))
        return err_set(err, ERR_USAGE, 0, "rights are given twice: as a member, and as the variable %s", name);
    int result = text ? cell_rights_read_text(text, ret, err) : cell_rights_read(o, ret, err);
    if (text)
        (void)json_object_del(env, name);
    return result;
}

static void service_refuse_rights(struct http_req *r, const struct context *c, const struct kernel_rights *asked)
{
    _cleanup_buf_ struct buf text = {0};
    _cleanup_free_ char *has = c->rights.said ? json_dumps(c->rights.said, JSON_COMPACT | JSON_SORT_KEYS) : NULL,
                        *wants = json_dumps(asked->said, JSON_COMPACT | JSON_SORT_KEYS);
    buf_addf(
        &text,
        "the kernel of this context has the rights %.160s for its whole life, not %.160s; name no context, or make one "
        "with these rights: POST .../contexts",
        has ? has : "of the sandbox", wants ? wants : "others");
    service_refuse(r, 409, "rights_differ", buf_str(&text));
}

static void service_run_with(struct contexts *all, struct http_req *r, json_t *root, json_t *env,
                             const struct cell_rights *rights);

static void service_run(struct contexts *all, struct http_req *r, json_t *root)
{
    struct cell_rights rights;
    struct err err;
    json_t *env;
    if (service_env(root, &env, &err) < 0 || service_rights(root, env, &rights, &err) < 0) {
        service_fail(r, &err);
        return;
    }
    service_run_with(all, r, root, env, &rights);
    cell_rights_done(&rights);
}

static void service_run_with(struct contexts *all, struct http_req *r, json_t *root, json_t *env,
                             const struct cell_rights *rights)
{
    const char *code, *id, *word;
    const struct language *language;
    struct context *c = NULL;
    struct err err;
    uint64_t timeout;
    if (service_text(root, "code", &code, &err) < 0 || service_text(root, "context_id", &id, &err) < 0 ||
        service_text(root, "language", &word, &err) < 0 || service_timeout(root, &timeout, &err) < 0) {
        service_fail(r, &err);
    } else if (!code) {
        service_refuse(r, 400, "bad_request", "code is missing: {\"code\": \"1 + 1\"}");
    } else if (id && word) {
        service_refuse(r, 400, "bad_request", "Only one of context_id or language can be provided");
    } else if (id && !(c = context_find(all, id))) {
        service_refuse(r, 404, "context_not_found",
                       "the context is not known; it may have been lost when the service was restarted");
    } else if (!(language = language_find(word ? word : "python"))) {
        service_refuse_language(r);
    } else if (c && rights->kernel.said && !kernel_rights_equal(&c->rights, &rights->kernel)) {
        service_refuse_rights(r, c, &rights->kernel);
    } else if (!c && context_default(all, language, &rights->kernel, &c, &err) < 0) {
        service_fail(r, &err);
    } else if (!context_run(c, r, code, env, service_shorter(timeout, rights->time_ms), rights->output_max)) {
        service_refuse(r, 429, "too_many_cells",
                       "64 cells wait in this context, which is the limit; wait for one of them");
    }
}

static void service_make(struct contexts *all, struct http_req *r, json_t *root)
{
    const char *word, *cwd;
    const struct language *language;
    struct cell_rights rights;
    struct context *c;
    struct err err;
    if (service_text(root, "language", &word, &err) < 0 || service_text(root, "cwd", &cwd, &err) < 0 ||
        cell_rights_read(json_object_get(root, "rights"), &rights, &err) < 0) {
        service_fail(r, &err);
        return;
    }
    if (rights.time_ms || rights.output_max)
        service_refuse(r, 400, "bad_request", "rights: limits of time and output are a cell's, not a context's");
    else if (!(language = language_find(word ? word : "python")))
        service_refuse_language(r);
    else if (context_new(all, language, cwd, &rights.kernel, &c, &err) < 0)
        service_fail(r, &err);
    else
        context_reply_when_ready(c, r, true);
    cell_rights_done(&rights);
}

static void service_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct contexts *all = r->user;
    if (status != 0)
        service_refuse(r, status, status == 413 ? "too_large" : "bad_request", error);
    else if (root && !json_is_object(root))
        service_refuse(r, 400, "bad_request", "the body must be a JSON object");
    else if (strcmp(r->path, "/execute") == 0 || strcmp(r->path, "/rights/execute") == 0)
        service_run(all, r, root);
    else
        service_make(all, r, root);
}

static void service_post(void *ctx, struct http_req *r, const struct route_params *params)
{
    (void)params;
    r->user = ctx;
    body_json(r, SERVICE_BODY_MAX, service_on_body);
}

static void service_health(void *ctx, struct http_req *r, const struct route_params *params)
{
    struct contexts *all = ctx;
    (void)params;
    for (struct context *c = all->first; c; c = c->next)
        if (c->is_default && c->language == all->warm && c->state != CONTEXT_READY) {
            service_say(r, 503, c->state == CONTEXT_FAILED ? c->why : "the first kernel is starting");
            return;
        }
    if (all->why[0]) {
        service_say(r, 503, all->why);
        return;
    }
    http_reply(r, 200, "application/json", "\"OK\"", 4);
}

static void service_list(void *ctx, struct http_req *r, const struct route_params *params)
{
    struct contexts *all = ctx;
    _cleanup_buf_ struct buf b = {0};
    (void)params;
    buf_addc(&b, '[');
    for (struct context *c = all->first; c; c = c->next) {
        context_add_json(c, &b);
        if (c->next)
            buf_addc(&b, ',');
    }
    buf_addc(&b, ']');
    http_reply(r, 200, "application/json", buf_str(&b), b.n);
}

static void service_restart(void *ctx, struct http_req *r, const struct route_params *params)
{
    struct context *c = context_find(ctx, route_param(params, "id"));
    if (!c) {
        service_refuse(r, 404, "context_not_found", "the context is not known");
        return;
    }
    context_restart(c, "a client asked for it");
    c->notice[0] = '\0'; /* the client who asked knows */
    context_reply_when_ready(c, r, false);
}

static void service_delete(void *ctx, struct http_req *r, const struct route_params *params)
{
    struct context *c = context_find(ctx, route_param(params, "id"));
    if (!c) {
        service_refuse(r, 404, "context_not_found", "the context is not known");
        return;
    }
    context_free(c);
    http_reply(r, 200, "application/json", "null", 4);
}

void service_handle(void *ctx, struct http_req *r)
{
    static const struct route table[] = {
        {"GET", "/health", service_health, 0},
        {"POST", "/execute", service_post, 0},
        {"POST", "/contexts", service_post, 0},
        /* A service that does not know rights does not know these paths, so it cannot run a cell with all of them. */
        {"POST", "/rights/execute", service_post, 0},
        {"POST", "/rights/contexts", service_post, 0},
        {"GET", "/contexts", service_list, 0},
        {"POST", "/contexts/{id}/restart", service_restart, 0},
        {"DELETE", "/contexts/{id}", service_delete, 0},
    };
    struct route_match m;
    struct route_params params;
    route_find(table, ARRAY_LEN(table), r->method, r->path, &m, &params);
    if (m.result == ROUTE_FOUND)
        m.route->fn(ctx, r, &params);
    else if (m.result == ROUTE_METHOD)
        service_say(r, 405, "the path does not have this method");
    else
        service_say(r, m.result == ROUTE_BAD ? 400 : 404, m.why ? m.why : "there is no such path");
}
