/* secret.c - hutch secret: values that sandboxes use without ever holding them. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/fields.h"
#include "base/mem.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"

enum { VALUE_MAX = 64 * 1024, SPEC_MAX = 32 * 1024 };

/* What the options say; NULL: not given. */
struct said {
    const char *value_file, *spec_file, *header, *format, *basic, *query, *env, *placeholder;
    struct strv hosts, paths, methods;
    bool bearer, keep;
};

static int secret_check_name(const char *name, struct err *err)
{
    if (*name && strlen(name) < 64 &&
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == strlen(name))
        return 0;
    return err_set(err, ERR_USAGE, 0,
                   "'%.80s' is not a name for a secret: letters, digits, '_', '-' and '.', at most 63", name);
}

/* From a file or standard input; one newline at the end is not part of it. */
static int secret_read_value(const char *path, struct buf *out, struct err *err)
{
    char room[4096];
    ssize_t n;
    if (path && strcmp(path, "-") != 0) {
        if (fd_read_file(AT_FDCWD, path, VALUE_MAX + 1, out) < 0)
            return err_set(err, ERR_USAGE, errno, "cannot read %s", path);
    } else {
        if (isatty(STDIN_FILENO))
            (void)fputs("hutch: type the value, then Ctrl-D\n", stderr);
        while ((n = read(STDIN_FILENO, room, sizeof room)) > 0 && out->n <= VALUE_MAX)
            buf_add(out, room, (size_t)n);
        explicit_bzero(room, sizeof room);
    }
    if (out->n && out->p[out->n - 1] == '\n')
        out->p[--out->n] = '\0';
    if (out->n == 0 || out->n > VALUE_MAX)
        return err_set(err, ERR_USAGE, 0, "a secret's value has 1 to %d bytes, not %zu", VALUE_MAX, out->n);
    return strlen(out->p) == out->n ? 0 : err_set(err, ERR_USAGE, 0, "a secret's value cannot hold a NUL byte");
}

/* Where the value goes in a request: one way at most; with none, the placeholder is replaced wherever it stands. */
static json_t *inject_of(const struct said *s, struct err *err)
{
    int ways = !!s->header + !!s->basic + !!s->query + s->bearer;
    if (ways > 1 || (s->format && !s->header)) {
        (void)err_set(err, ERR_USAGE, 0,
                      ways > 1 ? "secret: give one of --bearer, --header, --basic and --query"
                               : "secret: --format belongs to --header");
        return NULL;
    }
    if (s->bearer)
        return json_pack("{s:s}", "type", "bearer");
    if (s->basic)
        return json_pack("{s:s, s:s}", "type", "basic", "user", s->basic);
    if (s->query)
        return json_pack("{s:s, s:s}", "type", "query", "param", s->query);
    if (!s->header)
        return json_pack("{s:s}", "type", "replace");
    json_t *set = json_pack("{s:s, s:s}", "type", "set", "header", s->header);
    if (s->format)
        (void)json_object_set_new(set, "format", json_string(s->format));
    return set;
}

static json_t *read_spec(const struct said *s, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    json_error_t bad;
    if (s->spec_file) {
        if (fd_read_file(AT_FDCWD, s->spec_file, SPEC_MAX, &text) < 0) {
            (void)err_set(err, ERR_USAGE, errno, "cannot read %s", s->spec_file);
            return NULL;
        }
        json_t *spec = json_loadb(buf_str(&text), text.n, JSON_REJECT_DUPLICATES, &bad);
        if (!spec)
            (void)err_set(err, ERR_USAGE, 0, "%s:%d: not JSON: %s", s->spec_file, bad.line, bad.text);
        return spec;
    }
    if (s->hosts.n == 0) {
        (void)err_set(err, ERR_USAGE, 0, "secret: --host is needed: where the value may go (or --spec FILE)");
        return NULL;
    }
    json_t *inject = inject_of(s, err);
    if (!inject)
        return NULL;
    json_t *bind = json_pack("{s:o}", "hosts", node_json_strings(&s->hosts));
    if (s->paths.n)
        (void)json_object_set_new(bind, "paths", node_json_strings(&s->paths));
    if (s->methods.n)
        (void)json_object_set_new(bind, "methods", node_json_strings(&s->methods));
    json_t *spec = json_pack("{s:[o], s:o}", "bind", bind, "inject", inject);
    if (s->env)
        (void)json_object_set_new(spec, "env", json_string(s->env));
    if (s->placeholder)
        (void)json_object_set_new(spec, "placeholder", json_string(s->placeholder));
    return spec;
}

/* A value alone is a new version; everything else stays. */
static bool says_spec(const struct said *s)
{
    return s->spec_file || s->header || s->format || s->basic || s->query || s->env || s->placeholder || s->hosts.n ||
           s->paths.n || s->methods.n || s->bearer;
}

static int secret_set(const struct node_call *call, const struct said *s, struct err *err)
{
    _cleanup_buf_ struct buf value = {0};
    _cleanup_json_ json_t *answer = NULL, *body = json_object();
    _cleanup_free_ char *path = xasprintf("/v1/secrets/%s", call->args[0]);
    if (secret_check_name(call->args[0], err) < 0)
        return -1;
    if (says_spec(s)) {
        json_t *spec = read_spec(s, err);
        if (!spec)
            return -1;
        (void)json_object_set_new(body, "spec", spec);
    }
    if (!s->keep) {
        if (secret_read_value(s->value_file, &value, err) < 0)
            return -1;
        if (json_object_set_new(body, "value", json_stringn(buf_str(&value), value.n)) < 0)
            return err_set(err, ERR_USAGE, 0, "a secret's value must be UTF-8; encode others as base64");
    }
    char *text = json_dumps(body, JSON_COMPACT);
    int rc = api_call(&call->api, "PUT", path, text, &answer, NULL, err);
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
    if (value.p)
        explicit_bzero(value.p, value.n);
    if (rc < 0)
        return -1;
    if (call->json)
        node_print_json(answer);
    else
        (void)printf("%s, revision %lld\n", field_text(answer, "name"),
                     (long long)json_integer_value(json_object_get(answer, "revision")));
    return 0;
}

static int secret_list(const struct node_call *call, struct err *err)
{
    _cleanup_json_ json_t *j = NULL;
    int rc = node_get(call, "/v1/secrets", &j, err);
    if (rc <= 0)
        return rc;
    struct node_table t = node_table_with("NAME", "REVISION", "HOSTS", "VARIABLE", "UPDATED", NULL);
    const json_t *all = json_object_get(j, "secrets");
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *s = json_array_get(all, i), *spec = json_object_get(s, "spec"),
                     *bind = json_object_get(spec, "bind");
        _cleanup_buf_ struct buf hosts = {0};
        for (size_t b = 0; b < json_array_size(bind); b++) {
            const json_t *names = json_object_get(json_array_get(bind, b), "hosts");
            for (size_t k = 0; k < json_array_size(names); k++)
                buf_addf(&hosts, "%s%s", hosts.n ? "," : "", json_string_value(json_array_get(names, k)));
        }
        node_cell(&t, "%s", field_text(s, "name"));
        node_cell(&t, "%lld", (long long)json_integer_value(json_object_get(s, "revision")));
        node_cell(&t, "%s", hosts.n ? buf_str(&hosts) : "-");
        node_cell(&t, "%s", *field_text(spec, "env") ? field_text(spec, "env") : "-");
        node_cell(&t, "%s", field_text(s, "updatedAt"));
    }
    node_print_table(&t);
    return 0;
}

int cmd_secret(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch secret set NAME [--value-file FILE] --host HOST... [where it goes] [options]\n"
        "       hutch secret set NAME [--value-file FILE]       a new value for one that is there\n"
        "       hutch secret ls | rm NAME\n\n"
        "A value that sandboxes use and cannot read: inside is a placeholder, which is replaced in requests to the "
        "hosts\n"
        "that the value is bound to. It is read from standard input unless --value-file says otherwise.\n\n"
        "      --host HOST        where it may go; may be repeated\n"
        "      --path PATTERN     and only there, like /v1/**; may be repeated\n"
        "      --method METHOD    and only so; may be repeated\n"
        "      --bearer           goes into Authorization: Bearer\n"
        "      --header NAME      goes into that header; --format 'token {value}' around it\n"
        "      --basic USER       is the password of that user\n"
        "      --query PARAM      goes into that query parameter\n"
        "                         without these four, the placeholder is replaced wherever it stands\n"
        "      --env VARIABLE     the variable that holds the placeholder inside\n"
        "      --placeholder TEXT its shape, like sk-sbx-{rand:40}\n"
        "      --spec FILE        all of that as JSON: docs/secrets.md\n"
        "      --keep-value       change only where it goes\n"
        "      --json             the node's whole answer\n\n"
        "examples:\n"
        "  printf %s \"$OPENAI_API_KEY\" | hutch secret set openai --host api.openai.com --bearer --env "
        "OPENAI_API_KEY\n"
        "  id=$(hutch create --secret openai)\n";
    struct said s = {0};
    const struct node_option options[] = {{"value-file", 0, NULL, &s.value_file, NULL},
                                          {"spec", 0, NULL, &s.spec_file, NULL},
                                          {"host", 0, NULL, NULL, &s.hosts},
                                          {"path", 0, NULL, NULL, &s.paths},
                                          {"method", 0, NULL, NULL, &s.methods},
                                          {"bearer", 0, &s.bearer, NULL, NULL},
                                          {"header", 0, NULL, &s.header, NULL},
                                          {"format", 0, NULL, &s.format, NULL},
                                          {"basic", 0, NULL, &s.basic, NULL},
                                          {"query", 0, NULL, &s.query, NULL},
                                          {"env", 0, NULL, &s.env, NULL},
                                          {"placeholder", 0, NULL, &s.placeholder, NULL},
                                          {"keep-value", 0, &s.keep, NULL, NULL},
                                          {0}};
    const struct node_command c = {"secret", usage, options, 0, 1, false};
    const char *verb = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
    struct node_call call;
    struct err err;
    int code, rc = -1;
    if (node_begin(&c, *verb ? argc - 1 : argc, *verb ? argv + 1 : argv, &call, &code))
        return code;
    if (strcmp(verb, "set") == 0 && call.nargs == 1)
        rc = secret_set(&call, &s, &err);
    else if (strcmp(verb, "ls") == 0 && call.nargs == 0)
        rc = secret_list(&call, &err);
    else if (strcmp(verb, "rm") == 0 && call.nargs == 1) {
        _cleanup_free_ char *path = xasprintf("/v1/secrets/%s", call.args[0]);
        rc = secret_check_name(call.args[0], &err) < 0 ? -1
                                                       : api_call(&call.api, "DELETE", path, NULL, NULL, NULL, &err);
    } else
        (void)err_set(&err, ERR_USAGE, 0, "secret: say set NAME, ls or rm NAME; see hutch secret --help");
    strv_done(&s.hosts);
    strv_done(&s.paths);
    strv_done(&s.methods);
    return rc < 0 ? cli_fail(&err) : 0;
}
