/* history.c - hutch history and hutch try: earlier generations of a sandbox's files, and commands whose changes are
 * applied only after a look at them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/text.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"
#include "cli/textdiff.h"
#include "http/url.h"

enum { TEXT_MAX = 256 << 10 };

/* --- parts ---------------------------------------------------------------------------------------------------------- */

static int history_check_id(const char *id, struct err *err)
{
    if (!*id || strlen(id) > 64 ||
        strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != strlen(id))
        return err_set(err, ERR_USAGE, 0, "'%.80s' is not an id; hutch ls shows them", id);
    return 0;
}

static void print_changes(const json_t *j)
{
    const json_t *all = json_object_get(j, "changes");
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *c = json_array_get(all, i);
        const char *how = field_text(c, "change"), *before = field_text(c, "modeBefore"),
                   *after = field_text(c, "mode");
        _cleanup_buf_ struct buf path = {0};
        text_add_safe(&path, field_text(c, "path"), 4096);
        printf("%c %s%s",
               how[0] == 'a'   ? 'A'
               : how[0] == 'r' ? 'D'
                               : 'M',
               buf_str(&path), strcmp(field_text(c, "type"), "directory") == 0 ? "/" : "");
        if (how[0] == 'c' && strcmp(before, after) != 0)
            printf(" (mode %s -> %s)", before, after);
        putchar('\n');
    }
    if (json_is_true(json_object_get(j, "truncated")))
        printf("... and %lld more\n",
               (long long)(json_integer_value(json_object_get(j, "total")) - (json_int_t)json_array_size(all)));
}

/* Reads a file of a generation (0: the present one) into memory. 1: read; 0: it does not exist or is too large. */
static int history_fetch_file(const struct node_call *call, const char *id, uint64_t number, const char *path,
                              struct buf *ret)
{
    _cleanup_buf_ struct buf query = {0};
    struct blocking s;
    struct err err;
    char piece[16384];
    struct api api = call->api;
    url_encode(&query, path, strlen(path), "");
    _cleanup_free_ char *url = number ? xasprintf("/v1/sandboxes/%s/history/%llu/file?path=%s", id,
                                                  (unsigned long long)number, buf_str(&query))
                                      : xasprintf("/files?path=%s", buf_str(&query));
    if (!number && api_sandbox(&api, id, &err) < 0)
        return 0;
    const struct api_request q = {.method = "GET", .path = url, .body_fd = -1};
    if (api_send(&api, &q, &s, &err) < 0)
        return 0;
    bool ok = s.answer.status == 200;
    for (ssize_t n; ok && (n = api_read(&s, piece, sizeof piece, -1, NULL, &err)) != 0;) {
        ok = n > 0 && ret->n + (size_t)n <= TEXT_MAX;
        if (ok)
            buf_add(ret, piece, (size_t)n);
    }
    blocking_close(&s);
    return ok;
}

/* --- history -------------------------------------------------------------------------------------------------------- */

static int history_list(const struct node_call *call, const char *id, struct err *err)
{
    _cleanup_json_ json_t *j = NULL;
    _cleanup_free_ char *path = xasprintf("/v1/sandboxes/%s/history", id);
    int rc = node_get(call, path, &j, err);
    if (rc <= 0)
        return rc;
    struct node_table t = node_table_with("GENERATION", "AGE", "BYTES", "AFTER", NULL);
    const json_t *all = json_object_get(j, "generations");
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *g = json_array_get(all, i);
        char age[24];
        node_age(field_text(g, "at"), false, age);
        node_cell(&t, "%lld", (long long)json_integer_value(json_object_get(g, "number")));
        node_cell(&t, "%s", age);
        node_cell(&t, "%lld", (long long)json_integer_value(json_object_get(g, "bytes")));
        node_cell(&t, "%s", field_text(g, "command"));
    }
    node_print_table(&t);
    return 0;
}

static int history_save(const struct node_call *call, const char *id, struct err *err)
{
    _cleanup_json_ json_t *j = NULL;
    _cleanup_free_ char *path = xasprintf("/v1/sandboxes/%s/history", id);
    if (api_call(&call->api, "POST", path, "{}", &j, NULL, err) < 0)
        return -1;
    if (call->json)
        node_print_json(j);
    else
        printf("%lld\n", (long long)json_integer_value(json_object_get(j, "number")));
    return 0;
}

/* "A..B", "A..", "A" */
static int read_range(const char *text, uint64_t *from, uint64_t *to, struct err *err)
{
    const char *dots = strstr(text, "..");
    _cleanup_free_ char *left = dots ? xstrndup(text, (size_t)(dots - text)) : xstrdup(text);
    *to = 0;
    if (!num_u64(left, from) || *from == 0 || (dots && dots[2] && (!num_u64(dots + 2, to) || *to == 0)))
        return err_set(err, ERR_USAGE, 0,
                       "'%.60s' is not a range of generations; say 3..5, or 3 to compare with the present files", text);
    return 0;
}

static void print_text(const struct node_call *call, const char *id, const json_t *j, uint64_t from, uint64_t to)
{
    const json_t *all = json_object_get(j, "changes");
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *c = json_array_get(all, i);
        const char *path = field_text(c, "path"), *how = field_text(c, "change");
        _cleanup_buf_ struct buf a = {0}, b = {0}, name = {0}, out = {0};
        text_add_safe(&name, path + 1, 4096);
        if (strcmp(field_text(c, "type"), "file") != 0 ||
            (how[0] != 'a' && !history_fetch_file(call, id, from, path, &a)) ||
            (how[0] != 'r' && !history_fetch_file(call, id, to, path, &b)))
            buf_addf(&out, "%s %s\n", how, buf_str(&name));
        else
            (void)textdiff_add(buf_str(&name), buf_str(&a), a.n, buf_str(&b), b.n, &out);
        (void)fd_write_all(1, buf_str(&out), out.n);
    }
}

static int history_diff(const struct node_call *call, const char *id, const char *range, bool text, struct err *err)
{
    _cleanup_json_ json_t *j = NULL;
    uint64_t from = 0, to = 0;
    if (range && read_range(range, &from, &to, err) < 0)
        return -1;
    _cleanup_buf_ struct buf path = {0};
    buf_addf(&path, "/v1/sandboxes/%s/history/diff", id);
    if (from)
        buf_addf(&path, "?from=%llu", (unsigned long long)from);
    if (to)
        buf_addf(&path, "&to=%llu", (unsigned long long)to);
    if (api_call(&call->api, "GET", buf_str(&path), NULL, &j, NULL, err) < 0)
        return -1;
    if (call->json)
        node_print_json(j);
    else if (text)
        print_text(call, id, j, (uint64_t)json_integer_value(json_object_get(j, "from")), to);
    else
        print_changes(j);
    return 0;
}

static int read_generation(const char *text, const char *id, uint64_t *ret, struct err *err)
{
    return num_u64(text, ret) && *ret > 0
               ? 0
               : err_set(err, ERR_USAGE, 0, "'%.40s' is not a generation; hutch history ls %s shows them", text, id);
}

static int history_cat(const struct node_call *call, const char *id, const char *number, const char *file,
                       struct err *err)
{
    _cleanup_buf_ struct buf query = {0};
    struct blocking s;
    uint64_t n;
    char piece[65536];
    if (read_generation(number, id, &n, err) < 0)
        return -1;
    url_encode(&query, file, strlen(file), "");
    _cleanup_free_ char *path =
        xasprintf("/v1/sandboxes/%s/history/%llu/file?path=%s", id, (unsigned long long)n, buf_str(&query));
    const struct api_request q = {.method = "GET", .path = path, .body_fd = -1};
    if (api_send(&call->api, &q, &s, err) < 0)
        return -1;
    int rc = s.answer.status >= 400 ? api_refused(&s, err) : 0;
    for (ssize_t got; rc == 0 && (got = api_read(&s, piece, sizeof piece, -1, NULL, err)) != 0;)
        rc = got < 0                                   ? -1
             : fd_write_all(1, piece, (size_t)got) < 0 ? err_set(err, ERR_SETUP, errno, "cannot write to stdout")
                                                       : 0;
    blocking_close(&s);
    return rc;
}

static void print_counts(const char *what, const json_t *j)
{
    long long n[3] = {0};
    static const char *const members[] = {"added", "changed", "removed"};
    for (size_t i = 0; i < 3; i++)
        n[i] = (long long)json_integer_value(json_object_get(j, members[i]));
    printf("%s: %lld added, %lld changed, %lld removed\n", what, n[0], n[1], n[2]);
}

static int history_undo(const struct node_call *call, const char *id, const char *number, struct err *err)
{
    _cleanup_json_ json_t *j = NULL;
    uint64_t n = 0;
    if (number && read_generation(number, id, &n, err) < 0)
        return -1;
    _cleanup_free_ char *path = xasprintf("/v1/sandboxes/%s/history/undo", id);
    _cleanup_free_ char *body = n ? xasprintf("{\"to\":%llu}", (unsigned long long)n) : xstrdup("{}");
    if (api_call(&call->api, "POST", path, body, &j, NULL, err) < 0)
        return -1;
    if (call->json)
        node_print_json(j);
    else {
        _cleanup_free_ char *what =
            xasprintf("files are as in generation %lld again", (long long)json_integer_value(json_object_get(j, "to")));
        print_counts(what, j);
    }
    return 0;
}

int cmd_history(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch history ls ID\n"
        "       hutch history save ID               make a generation now\n"
        "       hutch history diff ID [A[..B]]      what changed from A to B, or from A until now\n"
        "       hutch history cat ID GENERATION PATH\n"
        "       hutch history undo ID [GENERATION]  go back to it, or to before the last command\n\n"
        "Generations of a sandbox's files. A sandbox that was made with \"history\": true keeps a generation after "
        "each "
        "command\n"
        "(the newest 32, 1 GiB of changes at most); `save` makes one in any sandbox with files of its own.\n\n"
        "      --text   diff: line by line\n"
        "      --json   the node's whole answer\n\n"
        "example: hutch history diff $ID 2..3 --text && hutch history undo $ID 2\n";
    bool text = false;
    const struct node_option options[] = {{"text", 0, &text, NULL, NULL}, {0}};
    const struct node_command c = {"history", usage, options, 0, 3, false};
    const char *verb = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
    struct node_call call;
    struct err err;
    int code, rc;
    if (node_begin(&c, *verb ? argc - 1 : argc, *verb ? argv + 1 : argv, &call, &code))
        return code;
    int n = call.nargs;
    if (n > 0 && node_take_id(&call, 0, &err) < 0)
        rc = -1;
    else if (strcmp(verb, "ls") == 0 && n == 1)
        rc = history_list(&call, call.args[0], &err);
    else if (strcmp(verb, "save") == 0 && n == 1)
        rc = history_save(&call, call.args[0], &err);
    else if (strcmp(verb, "diff") == 0 && (n == 1 || n == 2))
        rc = history_diff(&call, call.args[0], n == 2 ? call.args[1] : NULL, text, &err);
    else if (strcmp(verb, "cat") == 0 && n == 3)
        rc = history_cat(&call, call.args[0], call.args[1], call.args[2], &err);
    else if (strcmp(verb, "undo") == 0 && (n == 1 || n == 2))
        rc = history_undo(&call, call.args[0], n == 2 ? call.args[1] : NULL, &err);
    else
        rc = err_set(&err, ERR_USAGE, 0, "history: say ls, save, diff, cat or undo; see hutch history --help");
    return rc < 0 ? cli_fail(&err) : 0;
}

/* --- try ------------------------------------------------------------------------------------------------------------ */

static int try_run(const struct node_call *call, struct err *err)
{
    _cleanup_json_ json_t *j = NULL;
    _cleanup_buf_ struct buf command = {0}, body = {0};
    for (int i = 1; i < call->nargs; i++)
        buf_addf(&command, "%s%s", i > 1 ? " " : "", call->args[i]);
    struct json w;
    json_start(&w, &body);
    json_obj(&w, NULL);
    json_str(&w, "command", buf_str(&command));
    json_end_obj(&w);
    _cleanup_free_ char *path = xasprintf("/v1/sandboxes/%s/tx", call->args[0]);
    if (api_call(&call->api, "POST", path, buf_str(&body), &j, NULL, err) < 0)
        return -1;
    if (call->json) {
        node_print_json(j);
        return 0;
    }
    fputs(field_text(j, "stdout"), stdout);
    fputs(field_text(j, "stderr"), stderr);
    print_changes(j);
    (void)fflush(stdout);
    fprintf(stderr,
            "hutch: exit code %lld, nothing applied yet: `hutch try commit %s %s` or `hutch try discard %s %s`\n",
            (long long)json_integer_value(json_object_get(j, "exitCode")), call->args[0], field_text(j, "id"),
            call->args[0], field_text(j, "id"));
    return 0;
}

static int try_list(const struct node_call *call, struct err *err)
{
    _cleanup_json_ json_t *j = NULL;
    _cleanup_free_ char *path = xasprintf("/v1/sandboxes/%s/tx", call->args[0]);
    int rc = node_get(call, path, &j, err);
    if (rc <= 0)
        return rc;
    struct node_table t = node_table_with("ID", "AGE", "COMMAND", NULL);
    for (size_t i = 0; i < json_array_size(j); i++) {
        const json_t *x = json_array_get(j, i);
        char age[24];
        node_age(field_text(x, "at"), false, age);
        node_cell(&t, "%s", field_text(x, "id"));
        node_cell(&t, "%s", age);
        node_cell(&t, "%s", field_text(x, "command"));
    }
    node_print_table(&t);
    return 0;
}

static int try_decide(const struct node_call *call, const char *verb, struct err *err)
{
    _cleanup_json_ json_t *j = NULL;
    if (history_check_id(call->args[1], err) < 0)
        return -1;
    bool commit = strcmp(verb, "commit") == 0, look = strcmp(verb, "show") == 0;
    _cleanup_free_ char *path =
        xasprintf("/v1/sandboxes/%s/tx/%s%s", call->args[0], call->args[1], commit ? "/commit" : "");
    if (api_call(&call->api, commit ? "POST" : look ? "GET" : "DELETE", path, commit ? "{}" : NULL, &j, NULL, err) < 0)
        return -1;
    if (call->json && j)
        node_print_json(j);
    else if (look)
        print_changes(j);
    else if (commit)
        print_counts("applied", j);
    return 0;
}

int cmd_try(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch try run ID COMMAND...       on a private copy of the sandbox's files; shows what changed\n"
        "       hutch try ls ID\n"
        "       hutch try show ID TX\n"
        "       hutch try commit ID TX           apply the changes to the sandbox\n"
        "       hutch try discard ID TX\n\n"
        "The copy has the files of the sandbox, not its processes. Several can wait side by side, an hour at most. A "
        "commit\n"
        "is refused if one of the changed files was changed in the sandbox since.\n\n"
        "      --json   the node's whole answer\n\n"
        "example: hutch try run $ID 'sed -i s/a/b/ *.txt && make test'\n";
    const struct node_option options[] = {{0}};
    const char *verb = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
    const struct node_command c = {"try", usage, options, 0, -1, strcmp(verb, "run") == 0};
    struct node_call call;
    struct err err;
    int code, rc;
    if (node_begin(&c, *verb ? argc - 1 : argc, *verb ? argv + 1 : argv, &call, &code))
        return code;
    int n = call.nargs;
    bool decide = strcmp(verb, "commit") == 0 || strcmp(verb, "discard") == 0 || strcmp(verb, "show") == 0;
    if (n > 0 && node_take_id(&call, 0, &err) < 0)
        rc = -1;
    else if (strcmp(verb, "run") == 0 && n >= 2)
        rc = try_run(&call, &err);
    else if (strcmp(verb, "ls") == 0 && n == 1)
        rc = try_list(&call, &err);
    else if (decide && n == 2)
        rc = try_decide(&call, verb, &err);
    else
        rc = err_set(&err, ERR_USAGE, 0,
                     "try: say run ID COMMAND, ls ID, show, commit or discard ID TX; see hutch try --help");
    return rc < 0 ? cli_fail(&err) : 0;
}
