/* store.c - hutch store: measures, checks and cleans what a node keeps on disk. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fields.h"
#include "base/num.h"
#include "base/text.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"

enum { LINE_MAX_BYTES = 16 << 20 };

static uint64_t store_number(const json_t *o, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(o, key));
}

static void print_lines(const json_t *list)
{
    size_t i;
    const json_t *line;
    json_array_foreach(list, i, line)
    {
        _cleanup_buf_ struct buf safe = {0};
        text_add_safe(&safe, json_string_value(line) ? json_string_value(line) : "", 2000);
        (void)printf("%s\n", buf_str(&safe));
    }
}

/* --- answers in lines --------------------------------------------------------------------------------------------- */

static void store_show_progress(const json_t *p, bool *shown)
{
    _cleanup_buf_ struct buf text = {0};
    uint64_t done = store_number(p, "done"), total = store_number(p, "total");
    if (!isatty(STDERR_FILENO))
        return;
    num_add_size(&text, done);
    if (total) {
        buf_adds(&text, " of ");
        num_add_size(&text, total);
    }
    (void)fprintf(stderr, "\r\033[K%s", buf_str(&text));
    *shown = true;
}

/* The last line of the answer that is neither progress nor an error. */
static int store_take_line(const char *text, json_t **last, bool *shown, struct err *err)
{
    json_error_t where;
    _cleanup_json_ json_t *j = json_loads(text, 0, &where);
    if (!j)
        return err_set(err, ERR_INTERNAL, 0, "the node's answer is not JSON: %s", where.text);
    const json_t *progress = json_object_get(j, "progress"), *error = json_object_get(j, "error");
    if (error)
        return err_set(err, ERR_SETUP, 0, "%s", field_text(error, "message"));
    if (progress) {
        store_show_progress(progress, shown);
        return 0;
    }
    json_decref(*last);
    *last = json_incref(j);
    return 0;
}

static int read_lines(struct blocking *s, json_t **ret, bool *shown, struct err *err)
{
    _cleanup_buf_ struct buf in = {0};
    char part[16 << 10];
    for (;;) {
        ssize_t n = api_read(s, part, sizeof part, -1, NULL, err);
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        buf_add(&in, part, (size_t)n);
        for (char *end; in.p && (end = memchr(in.p, '\n', in.n));) {
            *end = '\0';
            if (store_take_line(in.p, ret, shown, err) < 0)
                return -1;
            size_t used = (size_t)(end - in.p) + 1;
            memmove(in.p, in.p + used, in.n - used);
            in.n -= used;
            in.p[in.n] = '\0';
        }
        if (in.n > LINE_MAX_BYTES)
            return err_set(err, ERR_INTERNAL, 0, "a line of the node's answer is longer than %d bytes", LINE_MAX_BYTES);
    }
    return *ret ? 0 : err_set(err, ERR_HOST, 0, "the node ended before it answered");
}

static int call_lines(const struct api *api, const char *path, json_t **ret, struct err *err)
{
    const struct api_request q = {.method = "POST", .path = path, .body_fd = -1};
    struct blocking s;
    bool shown = false;
    if (api_send(api, &q, &s, err) < 0)
        return -1;
    int r = s.answer.status >= 400 ? api_refused(&s, err) : read_lines(&s, ret, &shown, err);
    if (shown)
        (void)fputs("\r\033[K", stderr);
    blocking_close(&s);
    return r;
}

/* --- the three ---------------------------------------------------------------------------------------------------- */

static void size_cell(struct node_table *t, uint64_t bytes)
{
    _cleanup_buf_ struct buf text = {0};
    num_add_size(&text, bytes);
    node_cell(t, "%s", buf_str(&text));
}

static void store_add_part(struct buf *text, const char *before, const json_t *o, const char *key)
{
    buf_adds(text, before);
    num_add_size(text, store_number(o, key));
}

/* Where sandboxes write and why there; how full the pool is. */
static void store_print_files(const json_t *j)
{
    _cleanup_buf_ struct buf text = {0};
    const json_t *files = json_object_get(j, "files"), *pool = json_object_get(j, "pool");
    if (files) {
        buf_adds(&text, "files of sandboxes: ");
        text_add_safe(&text, field_text(files, "driver"), 40);
        buf_adds(&text, "; ");
        text_add_safe(&text, field_text(files, "why"), 700);
        buf_adds(&text, "\n");
    }
    if (pool) {
        store_add_part(&text, "pool: ", pool, "usedBytes");
        store_add_part(&text, " used, ", pool, "freeBytes");
        store_add_part(&text, " free of ", pool, "maxBytes");
        store_add_part(&text, "; its file occupies ", pool, "diskBytes");
        if (store_number(pool, "heldBytes"))
            store_add_part(&text, "; the disk has too little room for ", pool, "heldBytes");
        buf_adds(&text, json_is_true(json_object_get(pool, "readOnly")) ? "; READ-ONLY after an error\n" : "\n");
    }
    (void)fputs(buf_str(&text), stdout);
}

static int store_df(const struct node_call *call)
{
    struct err err;
    _cleanup_json_ json_t *j = NULL;
    if (api_call(&call->api, "GET", "/v1/store", NULL, &j, NULL, &err) < 0)
        return cli_fail(&err);
    if (call->json) {
        node_print_json(j);
        return 0;
    }
    struct node_table t = {.columns = 4};
    static const char *const heads[] = {"STACK", "OWN", "SHARED", "FILES"};
    for (size_t i = 0; i < ARRAY_LEN(heads); i++)
        node_cell(&t, "%s", heads[i]);
    size_t i;
    const json_t *s;
    json_array_foreach(json_object_get(j, "stacks"), i, s)
    {
        node_cell(&t, "%s", field_text(s, "id"));
        size_cell(&t, store_number(s, "ownBytes"));
        size_cell(&t, store_number(s, "sharedBytes"));
        unsigned long long files = store_number(s, "ownEntries") + store_number(s, "sharedEntries");
        node_cell(&t, "%llu", files);
    }
    node_print_table(&t);
    _cleanup_buf_ struct buf text = {0};
    const json_t *layers = json_object_get(j, "layers");
    buf_adds(&text, "layers ");
    num_add_size(&text, store_number(layers, "bytes"));
    buf_adds(&text, ", of which several stacks share ");
    num_add_size(&text, store_number(layers, "sharedBytes"));
    buf_adds(&text, " and no stack needs ");
    num_add_size(&text, store_number(json_object_get(j, "unused"), "bytes"));
    buf_adds(&text, "; uploads ");
    num_add_size(&text, store_number(json_object_get(j, "uploads"), "bytes"));
    (void)printf("%s\n", buf_str(&text));
    store_print_files(j);
    return 0;
}

static int store_gc(const struct node_call *call, bool dry)
{
    struct err err;
    _cleanup_json_ json_t *j = NULL;
    if (call_lines(&call->api, dry ? "/v1/store/gc?dryRun=true" : "/v1/store/gc", &j, &err) < 0)
        return cli_fail(&err);
    if (call->json) {
        node_print_json(j);
        return 0;
    }
    const json_t *removed = json_object_get(j, "removed"), *later = json_object_get(j, "later");
    _cleanup_buf_ struct buf text = {0};
    print_lines(json_object_get(j, "lines"));
    num_add_size(&text, store_number(removed, "bytes"));
    buf_addf(&text, " in %llu parts %s", (unsigned long long)store_number(removed, "entries"),
             dry ? "would be removed" : "removed");
    if (store_number(later, "entries")) {
        buf_adds(&text, "; ");
        num_add_size(&text, store_number(later, "bytes"));
        buf_adds(&text, " follow in half a minute, unless something needs them by then");
    }
    (void)printf("%s\n", buf_str(&text));
    return 0;
}

static int store_verify(const struct node_call *call, const char *stack)
{
    struct err err;
    char path[160];
    _cleanup_json_ json_t *j = NULL;
    if (stack && (strspn(stack, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(stack) || strlen(stack) > 64))
        return err_set(&err, ERR_USAGE, 0, "store: '%.80s' is not the id of a stack", stack), cli_fail(&err);
    (void)snprintf(path, sizeof path, stack ? "/v1/store/verify?stack=%s" : "/v1/store/verify", stack ? stack : "");
    if (call_lines(&call->api, path, &j, &err) < 0)
        return cli_fail(&err);
    uint64_t problems = store_number(j, "problemCount"), digested = store_number(j, "digestedLayers");
    if (call->json) {
        node_print_json(j);
    } else {
        _cleanup_buf_ struct buf text = {0};
        print_lines(json_object_get(j, "problems"));
        num_add_size(&text, store_number(j, "checkedBytes"));
        if (digested)
            (void)printf("%llu layer%s had no digest yet, and %s one now\n", (unsigned long long)digested,
                         digested == 1 ? "" : "s", digested == 1 ? "has" : "have");
        if (problems)
            (void)printf("%llu problem%s in %s\n", (unsigned long long)problems, problems == 1 ? "" : "s",
                         buf_str(&text));
        else
            (void)printf("everything is as it was written (%s)\n", buf_str(&text));
    }
    return problems ? 1 : 0;
}

int cmd_store(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch store df | gc [--dry-run] | verify [STACK] | grow SIZE | shrink SIZE | check\n\n"
        "What a node keeps on disk: layers of images, snapshots, paused sandboxes (needs an administrator's key).\n\n"
        "df       what every stack of layers needs, by itself and shared with others\n"
        "gc       removes what nothing needs any more; the node does so by itself every ten minutes\n"
        "verify   reads everything and compares it with its digests; digests what has none yet\n"
        "grow, shrink, check   the pool file on this machine; see `hutch store check --help`\n\n"
        "  --dry-run   only say what would be removed\n"
        "  --json      the node's answer\n\n"
        "Exit code of verify: 0 everything is as it was written, 1 there are problems (one line each).\n\n"
        "examples:\n"
        "  hutch store df\n"
        "  hutch store gc --dry-run\n"
        "  hutch store verify || mail -s 'store damaged' root\n";
    bool dry = false;
    const struct node_option options[] = {{"dry-run", 0, &dry, NULL, NULL}, {0}};
    const struct node_command c = {"store", usage, options, 0, 1, false};
    const char *verb = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
    struct node_call call;
    struct err err;
    int code;
    if (node_begin(&c, *verb ? argc - 1 : argc, *verb ? argv + 1 : argv, &call, &code))
        return code;
    if (strcmp(verb, "df") == 0 && !dry && call.nargs == 0)
        return store_df(&call);
    if (strcmp(verb, "gc") == 0 && call.nargs == 0)
        return store_gc(&call, dry);
    if (strcmp(verb, "verify") == 0 && !dry)
        return store_verify(&call, call.nargs ? call.args[0] : NULL);
    return err_set(&err, ERR_USAGE, 0,
                   "store: say df, gc [--dry-run], verify [STACK], grow SIZE, shrink SIZE or check; see hutch store "
                   "--help"),
           cli_fail(&err);
}
