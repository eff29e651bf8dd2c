/* secrets-spec.c - parses the spec of a secret from JSON: strict, with errors that name the path.
 *
 * Bindings become a small policy with one allow rule each, so that hosts, ports, methods and paths mean exactly what
 * they mean in rules.
 */
#include <ctype.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/random.h"
#include "base/text.h"
#include "egress/secrets/secrets-int.h"

#define USUAL_SHAPE "sbx-{rand:32}"
#define REFERENCE   "${e2b."
#define SECRETS_REF "${e2b.secrets."

enum { RANDOM_MIN = 22 /* letters and digits: 131 bits */, RANDOM_MAX = 128 };

static int spec_wrong(struct err *err, const char *path, const char *what)
{
    return err_set(err, ERR_POLICY, 0, "%s: %s", path, what);
}

static int spec_unknown_key(struct err *err, const char *path, const char *key, const char *const *known)
{
    _cleanup_buf_ struct buf safe = {0}, list = {0};
    text_add_safe(&safe, key, 60);
    const char *near = text_nearest(key, known);
    for (size_t i = 0; known[i]; i++)
        buf_addf(&list, "%s%s", i > 0 ? ", " : "", known[i]);
    return err_set(err, ERR_POLICY, 0, "%s%s%s: unknown key%s%s%s; known: %s", path, *path ? "." : "", safe.p,
                   near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "", buf_str(&list));
}

static int spec_check_keys(const json_t *obj, const char *path, const char *const *known, struct err *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(obj))
        return spec_wrong(err, *path ? path : "spec", "expected an object");
    json_object_foreach((json_t *)obj, key, value)
    {
        size_t i = 0;
        while (known[i] && strcmp(known[i], key) != 0)
            i++;
        if (!known[i])
            return spec_unknown_key(err, path, key, known);
    }
    return 0;
}

/* Takes a text without control characters; *ret stays NULL if it is missing and not needed. */
static int spec_take_text(const json_t *obj, const char *path, const char *key, size_t max, bool needed, char **ret,
                          struct err *err)
{
    char at[SECRET_WORD_MAX];
    const json_t *v = json_object_get(obj, key);
    (void)snprintf(at, sizeof at, "%s%s%s", path, *path ? "." : "", key);
    if (!v && !needed)
        return 0;
    if (!v)
        return spec_wrong(err, at, "missing");
    if (!json_is_string(v))
        return spec_wrong(err, at, "expected a text");
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    if (n > max)
        return err_set(err, ERR_POLICY, 0, "%s: %zu bytes; at most %zu", at, n, max);
    if (strlen(s) != n || !secret_fits_header(s, n))
        return spec_wrong(err, at, "holds a control character");
    *ret = xstrdup(s);
    return 0;
}

static int spec_take_bool(const json_t *obj, const char *key, bool *ret, struct err *err)
{
    const json_t *v = json_object_get(obj, key);
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return spec_wrong(err, key, "expected true or false");
    *ret = json_is_true(v);
    return 0;
}

bool secret_name_valid(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n >= SECRET_NAME_MAX || name[0] == '-' || name[0] == '.')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("_-.", name[i]))
            return false;
    return true;
}

bool secret_fits_header(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)p[i] < 0x20 && p[i] != '\t') || p[i] == 0x7f)
            return false;
    return true;
}

/* ---- headers ---- */

bool secret_header_reserved(const char *name)
{
    static const char *const exact[] = {
        "host",    "content-length", "transfer-encoding", "connection",     "keep-alive", "upgrade", "te",
        "trailer", "expect",         "forwarded",         "accept-encoding"};
    for (size_t i = 0; i < ARRAY_LEN(exact); i++)
        if (strcmp(name, exact[i]) == 0)
            return true;
    return strncmp(name, "proxy-", 6) == 0 || strncmp(name, "x-forwarded-", 12) == 0 ||
           strncmp(name, "sec-websocket-", 14) == 0;
}

static bool spec_is_token(const char *s)
{
    if (!*s)
        return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("!#$%&'*+-.^_`|~", *s))
            return false;
    return true;
}

/* Lower case, in place. */
static int spec_check_header(char *name, const char *path, struct err *err)
{
    for (char *p = name; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    if (!spec_is_token(name) || strlen(name) > 64)
        return spec_wrong(err, path, "not a header name; letters, digits and '-', at most 64");
    if (secret_header_reserved(name))
        return err_set(err, ERR_POLICY, 0, "%s: '%s' belongs to the connection and cannot be set", path, name);
    return 0;
}

bool secret_reference(const char *text, size_t *from, size_t *to, char name[SECRET_NAME_MAX])
{
    const char *at = strstr(text, SECRETS_REF), *word = at ? at + strlen(SECRETS_REF) : NULL;
    const char *end = at ? strchr(at, '}') : NULL;
    if (!end || (size_t)(end - word) >= SECRET_NAME_MAX)
        return false;
    for (size_t i = 0; word + i <= end; i++)
        name[i] = word + i < end ? word[i] : '\0';
    *from = (size_t)(at - text);
    *to = (size_t)(end + 1 - text);
    return true;
}

static int spec_check_references(const char *text, const char *path, struct err *err)
{
    char name[SECRET_NAME_MAX];
    size_t from, to;
    for (const char *at; (at = strstr(text, REFERENCE)); text = at + to) {
        if (!secret_reference(at, &from, &to, name) || from != 0 || !secret_name_valid(name))
            return spec_wrong(err, path,
                              "a reference has to be ${e2b.secrets.NAME}; nothing else of ${e2b...} is known");
    }
    return 0;
}

static int spec_parse_headers(const json_t *inject, struct secret_spec *s, struct err *err)
{
    const json_t *map = json_object_get(inject, "headers");
    const char *key;
    json_t *value;
    if (!json_is_object(map) || json_object_size(map) == 0 || json_object_size(map) > SECRET_HEADERS_MAX)
        return err_set(err, ERR_POLICY, 0, "inject.headers: expected an object with 1 to %d headers",
                       SECRET_HEADERS_MAX);
    json_object_foreach((json_t *)map, key, value)
    {
        char path[SECRET_WORD_MAX];
        char *text = NULL, *name = xstrdup(key);
        _cleanup_buf_ struct buf safe = {0};
        text_add_safe(&safe, key, 70);
        (void)snprintf(path, sizeof path, "inject.headers.%s", buf_str(&safe));
        strv_take(&s->names, name);
        if (spec_check_header(name, path, err) < 0 ||
            spec_take_text(map, "inject.headers", key, SECRET_TEXT_MAX, true, &text, err) < 0)
            return -1;
        strv_take(&s->values, text);
        for (size_t i = 0; i + 1 < s->names.n; i++)
            if (strcmp(s->names.v[i], name) == 0)
                return spec_wrong(err, path, "named twice");
        if (spec_check_references(text, path, err) < 0)
            return -1;
    }
    return 0;
}

static int spec_parse_set(const json_t *inject, struct secret_spec *s, bool format, struct err *err)
{
    if (spec_take_text(inject, "inject", "header", SECRET_WORD_MAX, true, &s->header, err) < 0 ||
        spec_check_header(s->header, "inject.header", err) < 0 ||
        (format && spec_take_text(inject, "inject", "format", SECRET_TEXT_MAX, false, &s->format, err) < 0))
        return -1;
    if (!s->format)
        s->format = xstrdup("{value}");
    const char *at = strstr(s->format, "{value}");
    if (!at || strstr(at + 1, "{value}"))
        return spec_wrong(err, "inject.format", "has to hold {value}, once");
    return 0;
}

static int spec_parse_bearer(const json_t *inject, struct secret_spec *s, struct err *err)
{
    (void)inject;
    (void)err;
    s->header = xstrdup("authorization");
    s->format = xstrdup("Bearer {value}");
    return 0;
}

static int spec_parse_basic(const json_t *inject, struct secret_spec *s, struct err *err)
{
    if (spec_take_text(inject, "inject", "user", SECRET_WORD_MAX, true, &s->user, err) < 0)
        return -1;
    return strchr(s->user, ':') ? spec_wrong(err, "inject.user", "a user of Basic authentication cannot hold ':'") : 0;
}

static int spec_parse_query(const json_t *inject, struct secret_spec *s, struct err *err)
{
    if (spec_take_text(inject, "inject", "param", SECRET_WORD_MAX, true, &s->param, err) < 0)
        return -1;
    return *s->param ? 0 : spec_wrong(err, "inject.param", "empty");
}

static int spec_parse_sigv4(const json_t *inject, struct secret_spec *s, struct err *err)
{
    const struct {
        const char *key;
        char **ret;
    } words[] = {{"region", &s->region}, {"service", &s->service}, {"access_key_id", &s->access_key_id}};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (spec_take_text(inject, "inject", words[i].key, SECRET_WORD_MAX, true, words[i].ret, err) < 0)
            return -1;
        const char *word = *words[i].ret;
        if (!spec_is_token(word))
            return err_set(err, ERR_POLICY, 0, "inject.%s: letters, digits and '-' only", words[i].key);
    }
    if (spec_take_text(inject, "inject", "session_token", SECRET_WORD_MAX, false, &s->session_token, err) < 0)
        return -1;
    if (s->session_token && !secret_name_valid(s->session_token))
        return spec_wrong(err, "inject.session_token",
                          "expected the name of the secret that holds the token, not the token");
    return 0;
}

static int spec_parse_replace(const json_t *inject, struct secret_spec *s, struct err *err)
{
    static const char *const words[] = {"header", "basic", "query", "body", "ws_text"};
    const json_t *in = json_object_get(inject, "in"), *v;
    size_t i;
    s->in = SECRET_IN_HEADER | SECRET_IN_BASIC | SECRET_IN_QUERY;
    if (!in)
        return 0;
    if (!json_is_array(in) || json_array_size(in) == 0)
        return spec_wrong(err, "inject.in", "expected a list of header, basic, query, body, ws_text");
    s->in = 0;
    json_array_foreach(in, i, v)
    {
        size_t k = 0;
        while (k < ARRAY_LEN(words) && (!json_is_string(v) || strcmp(json_string_value(v), words[k]) != 0))
            k++;
        if (k == ARRAY_LEN(words))
            return err_set(err, ERR_POLICY, 0, "inject.in[%zu]: expected header, basic, query, body or ws_text", i);
        s->in |= 1U << k;
    }
    return 0;
}

static int spec_parse_set_format(const json_t *inject, struct secret_spec *s, struct err *err)
{
    return spec_parse_set(inject, s, true, err);
}
static int spec_parse_set_plain(const json_t *inject, struct secret_spec *s, struct err *err)
{
    return spec_parse_set(inject, s, false, err);
}

static int spec_parse_inject(const json_t *inject, struct secret_spec *s, struct err *err)
{
    static const struct {
        const char *word;
        enum secret_type type;
        int (*parse)(const json_t *inject, struct secret_spec *s, struct err *err);
        const char *keys[6];
    } types[] = {
        {"replace", SECRET_REPLACE, spec_parse_replace, {"type", "in"}},
        {"set", SECRET_SET, spec_parse_set_format, {"type", "header", "format"}},
        {"header", SECRET_SET, spec_parse_set_plain, {"type", "header"}},
        {"bearer", SECRET_SET, spec_parse_bearer, {"type"}},
        {"basic", SECRET_BASIC, spec_parse_basic, {"type", "user"}},
        {"query", SECRET_QUERY, spec_parse_query, {"type", "param"}},
        {"headers", SECRET_HEADERS, spec_parse_headers, {"type", "headers"}},
        {"sigv4", SECRET_SIGV4, spec_parse_sigv4, {"type", "region", "service", "access_key_id", "session_token"}},
    };
    const char *word = json_string_value(json_object_get(inject, "type"));
    if (inject && !json_is_object(inject))
        return spec_wrong(err, "inject", "expected an object");
    size_t i = 0;
    if (inject)
        while (i < ARRAY_LEN(types) && (!word || strcmp(word, types[i].word) != 0))
            i++;
    if (i == ARRAY_LEN(types))
        return spec_wrong(err, "inject.type", "expected replace, set, header, bearer, basic, query, headers or sigv4");
    s->type = types[i].type;
    if (inject && spec_check_keys(inject, "inject", types[i].keys, err) < 0)
        return -1;
    return types[i].parse(inject, s, err);
}

/* ---- bindings ---- */

/* Copies a list of texts or numbers into the rule; netpol_parse_json() checks its values. */
static int spec_copy_list(const json_t *bind, const char *path, const char *key, struct json *j, struct err *err)
{
    const json_t *list = json_object_get(bind, key), *v;
    char at[SECRET_WORD_MAX];
    size_t i;
    if (!list)
        return 0;
    (void)snprintf(at, sizeof at, "%s.%s", path, key);
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > NETPOL_LIST_MAX)
        return err_set(err, ERR_POLICY, 0, "%s: expected a list of 1 to %d", at, NETPOL_LIST_MAX);
    json_arr(j, key);
    json_array_foreach(list, i, v)
    {
        if (json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v))
            json_str(j, NULL, json_string_value(v));
        else if (json_is_integer(v) && json_integer_value(v) >= 0)
            json_u64(j, NULL, (uint64_t)json_integer_value(v));
        else
            return err_set(err, ERR_POLICY, 0, "%s[%zu]: expected a text%s", at, i, *key == 'p' ? " or a number" : "");
    }
    json_end_arr(j);
    return 0;
}

static int spec_add_binding(const json_t *bind, size_t i, bool plaintext, struct json *j, struct err *err)
{
    static const char *const keys[] = {"hosts", "ports", "methods", "paths", NULL};
    char path[32], id[32];
    (void)snprintf(path, sizeof path, "bind[%zu]", i);
    (void)snprintf(id, sizeof id, "bind-%zu", i);
    if (spec_check_keys(bind, path, keys, err) < 0)
        return -1;
    if (!json_object_get(bind, "hosts"))
        return err_set(err, ERR_POLICY, 0, "%s.hosts: missing; a secret has to be bound to the hosts it is for", path);
    json_obj(j, NULL);
    json_str(j, "id", id);
    if (spec_copy_list(bind, path, "hosts", j, err) < 0 || spec_copy_list(bind, path, "ports", j, err) < 0)
        return -1;
    if (!json_object_get(bind, "ports")) {
        json_arr(j, "ports");
        json_u64(j, NULL, 443);
        if (plaintext)
            json_u64(j, NULL, 80);
        json_end_arr(j);
    }
    if (json_object_get(bind, "methods") || json_object_get(bind, "paths")) {
        json_arr(j, "http");
        json_obj(j, NULL);
        if (spec_copy_list(bind, path, "methods", j, err) < 0 || spec_copy_list(bind, path, "paths", j, err) < 0)
            return -1;
        json_end_obj(j);
        json_end_arr(j);
    }
    json_end_obj(j);
    return 0;
}

/* Turns the path "rules[1].http[0].paths[2]" into the user's bind[1].paths[2], and drops hints that only rules can
 * follow. */
static int spec_binding_error(const struct netpol_error *e, struct err *err)
{
    const char *rest = strncmp(e->path, "rules", 5) == 0 ? e->path + 5 : "", *http = strstr(rest, ".http[0]");
    const char *broad = strstr(e->text, "say broad");
    int before = http ? (int)(http - rest) : (int)strlen(rest), text = (int)strlen(e->text);
    if (broad) /* "...; say broad ..." or "..., or say broad ..." */
        for (text = (int)(broad - e->text); text > 0 && e->text[text] != ';' && e->text[text] != ',';)
            text--;
    return err_set(err, ERR_POLICY, 0, "bind%.*s%s: %.*s", before, rest, http ? http + strlen(".http[0]") : "", text,
                   e->text);
}

static int spec_parse_bind(const json_t *list, struct secret_spec *s, struct err *err)
{
    _cleanup_buf_ struct buf doc = {0};
    struct netpol_error e = {0};
    const json_t *v;
    struct json j;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > SECRET_BINDS_MAX)
        return err_set(err, ERR_POLICY, 0, "bind: expected a list of 1 to %d objects with hosts", SECRET_BINDS_MAX);
    json_start(&j, &doc);
    json_obj(&j, NULL);
    json_arr(&j, "rules");
    json_array_foreach(list, i, v)
    {
        if (spec_add_binding(v, i, s->plaintext, &j, err) < 0)
            return -1;
    }
    json_end_arr(&j);
    json_end_obj(&j);
    if (netpol_parse_json(doc.p, doc.n, NULL, NULL, &s->bind, &e) < 0)
        return spec_binding_error(&e, err);
    return 0;
}

/* Whether the secret is bound to this request. The caller checks TLS separately, so the flow counts as TLS here. */
enum secret_bound secret_spec_bound(const struct secret_spec *s, const struct inject_request *q,
                                    const struct netpol_target *target)
{
    struct netpol_flow flow = *q->flow;
    struct netpol_decision d;
    if (!s->bind || !flow.host || !netpol_name_possible(s->bind, flow.host, q->unix_time))
        return SECRET_OTHER_HOST;
    _cleanup_free_ struct netpol_field *fields = xcalloc(q->fields->n + 1, sizeof *fields);
    for (size_t i = 0; i < q->fields->n; i++)
        fields[i] = (struct netpol_field){q->fields->v[i].name, q->fields->v[i].value};
    const struct netpol_request r = {
        .method = q->method, .target = target, .fields = fields, .nfields = q->fields->n, .length = UINT64_MAX};
    flow.tls = true;
    netpol_request(s->bind, &flow, &r, q->unix_time, &d);
    return d.verdict == NETPOL_ALLOW ? SECRET_BOUND : SECRET_OTHER_REQUEST;
}

/* ---- placeholders ---- */

static bool plain_shape(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)p[i]) && (!p[i] || !strchr("_-.", p[i])))
            return false;
    return true;
}

/* Splits "sk-{rand:40}-x"; false: not a shape. */
static bool read_shape(const char *shape, size_t *ret_before, int *ret_random, const char **ret_after)
{
    static const char mark[] = "{rand:";
    const char *open = strstr(shape, mark), *number = open ? open + strlen(mark) : NULL;
    const char *close = open ? strchr(open, '}') : NULL;
    char digits[8];
    if (!close || (size_t)(close - number) >= sizeof digits)
        return false;
    memcpy(digits, number, (size_t)(close - number));
    digits[close - number] = '\0';
    *ret_before = (size_t)(open - shape);
    *ret_after = close + 1;
    return num_int(digits, RANDOM_MIN, RANDOM_MAX, ret_random) && plain_shape(shape, *ret_before) &&
           plain_shape(*ret_after, strlen(*ret_after)) &&
           *ret_before + (size_t)*ret_random + strlen(*ret_after) < SECRET_PLACEHOLDER_MAX;
}

void secret_placeholder(const char *shape, char *ret, size_t cap)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    const char *after;
    size_t before;
    int n;
    if (!shape || !*shape || !read_shape(shape, &before, &n, &after) || before + (size_t)n + strlen(after) >= cap) {
        shape = USUAL_SHAPE;
        (void)read_shape(shape, &before, &n, &after);
    }
    if (before + (size_t)n + strlen(after) >= cap)
        abort(); /* cap is too small even for the default shape: a bug of the caller */
    memcpy(ret, shape, before);
    for (int i = 0; i < n;) {
        unsigned char c;
        random_bytes(&c, 1);
        if (c < 248) /* the largest multiple of 62: every letter is as likely */
            ret[before + (size_t)i++] = letters[c % 62];
    }
    memcpy(ret + before + (size_t)n, after, strlen(after) + 1);
}

/* ---- the whole ---- */

static int spec_parse_inside(const json_t *spec, struct secret_spec *s, struct err *err)
{
    if (spec_take_text(spec, "", "env", SECRET_WORD_MAX, false, &s->env, err) < 0 ||
        spec_take_text(spec, "", "placeholder", SECRET_PLACEHOLDER_MAX, false, &s->placeholder, err) < 0)
        return -1;
    for (const char *p = s->env; p && (*p || p == s->env); p++)
        if (!isalpha((unsigned char)*p) && *p != '_' && (p == s->env || !isdigit((unsigned char)*p)))
            return spec_wrong(err, "env", "not the name of an environment variable; letters, digits and '_'");
    size_t before;
    int n;
    const char *after;
    if (s->placeholder && !read_shape(s->placeholder, &before, &n, &after))
        return err_set(err, ERR_POLICY, 0,
                       "placeholder: expected letters, digits, '_', '-', '.' around one {rand:N} with N from %d to %d",
                       RANDOM_MIN, RANDOM_MAX);
    return 0;
}

static int spec_parse_switches(const json_t *spec, struct secret_spec *s, struct err *err)
{
    const json_t *v = json_object_get(spec, "on_violation");
    const char *word = json_string_value(v);
    if (v && (!word || (strcmp(word, "block") != 0 && strcmp(word, "log") != 0)))
        return spec_wrong(err, "on_violation", "expected block or log");
    s->log_only = word && strcmp(word, "log") == 0;
    s->redact = true;
    if (spec_take_bool(spec, "redact_response", &s->redact, err) < 0)
        return -1;
    return spec_take_bool(spec, "allow_plaintext", &s->plaintext, err);
}

static int spec_parse_all(const json_t *spec, struct secret_spec *s, struct err *err)
{
    static const char *const keys[] = {
        "bind", "inject", "env", "placeholder", "on_violation", "redact_response", "allow_plaintext", NULL};
    const json_t *bind = json_object_get(spec, "bind"), *inject = json_object_get(spec, "inject");
    if (spec_check_keys(spec, "", keys, err) < 0 || spec_parse_switches(spec, s, err) < 0 ||
        spec_parse_inside(spec, s, err) < 0)
        return -1;
    if (!bind && inject)
        return spec_wrong(err, "bind", "missing; a secret that is put into requests has to be bound to hosts");
    if (!bind) {
        s->type = SECRET_REFERRED;
        return s->env ? spec_wrong(err, "env",
                                   "a secret without bind is never put in for a placeholder; leave env out or add bind")
                      : 0;
    }
    return spec_parse_inject(inject, s, err) < 0 || spec_parse_bind(bind, s, err) < 0 ? -1 : 0;
}

int secret_spec_parse(const json_t *spec, struct secret_spec *ret, struct err *err)
{
    *ret = (struct secret_spec){0};
    if (spec_parse_all(spec, ret, err) == 0)
        return 0;
    secret_spec_done(ret);
    return -1;
}

void secret_spec_done(struct secret_spec *s)
{
    char *const texts[] = {s->header,  s->format,        s->user,          s->param, s->region,
                           s->service, s->access_key_id, s->session_token, s->env,   s->placeholder};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        free(texts[i]);
    netpol_unref(s->bind);
    strv_done(&s->names);
    strv_done(&s->values);
    *s = (struct secret_spec){0};
}

int secret_spec_check(const json_t *spec, struct err *err)
{
    struct secret_spec s;
    if (secret_spec_parse(spec, &s, err) < 0)
        return -1;
    secret_spec_done(&s);
    return 0;
}

int secret_value_check(const json_t *spec, const char *value, size_t n, struct err *err)
{
    struct secret_spec s;
    if (secret_spec_parse(spec, &s, err) < 0)
        return -1;
    enum secret_type type = s.type;
    secret_spec_done(&s);
    if (type == SECRET_HEADERS)
        return n == 0 ? 0
                      : spec_wrong(err, "value",
                                   "inject.type headers has no value of its own; it refers to other secrets");
    if (n == 0)
        return spec_wrong(err, "value", "empty");
    if (n > SECRET_VALUE_MAX)
        return err_set(err, ERR_POLICY, 0, "value: %zu bytes; at most %d", n, SECRET_VALUE_MAX);
    if (type != SECRET_REFERRED && type != SECRET_SET && type != SECRET_SIGV4)
        return 0;
    if (value[n - 1] == '\n')
        return spec_wrong(err, "value",
                          "ends with a newline, which cannot stand in a header; remove it (printf instead of echo)");
    return secret_fits_header(value, n)
               ? 0
               : spec_wrong(err, "value", "holds a control character, which cannot stand in a header");
}
