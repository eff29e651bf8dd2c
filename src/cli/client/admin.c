/* admin.c - hutch key, tenant, env: who may use a node, and how a client finds it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/num.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"

/* A column of a table: its heading, and where its value lies in an object ("quota.sandboxes"). */
struct column {
    const char *head, *path;
    enum { AS_IS, SIZE, MIB, CPUS, LIMIT /* 0 is none */, SIZE_LIMIT, CPUS_LIMIT } form;
};

static const json_t *at_path(const json_t *o, const char *path)
{
    char name[64];
    for (const char *dot; o && (dot = strchr(path, '.')); path = dot + 1) {
        (void)snprintf(name, sizeof name, "%.*s", (int)(dot - path), path);
        o = json_object_get(o, name);
    }
    return json_object_get(o, path);
}

static void add_value(struct buf *out, const struct column *c, const json_t *v)
{
    long long n = (long long)json_integer_value(v);
    size_t i;
    const json_t *word;
    if (!v || json_is_null(v) || (c->form >= LIMIT && n == 0))
        buf_addc(out, '-');
    else if (json_is_string(v))
        buf_adds(out, json_string_value(v));
    else if (json_is_array(v))
        json_array_foreach(v, i, word) buf_addf(out, "%s%s", i ? "," : "", json_string_value(word));
    else if (c->form == SIZE || c->form == SIZE_LIMIT)
        num_add_size(out, (uint64_t)n);
    else if (c->form == MIB)
        num_add_size(out, (uint64_t)n << 20);
    else if (c->form == CPUS || c->form == CPUS_LIMIT)
        buf_addf(out, "%g", (double)n / 1000);
    else
        buf_addf(out, "%lld", n);
}

static void print_list(const json_t *list, const struct column *columns, size_t n)
{
    struct node_table t = {.columns = n};
    for (size_t i = 0; i < n; i++)
        node_cell(&t, "%s", columns[i].head);
    for (size_t i = 0; i < json_array_size(list); i++)
        for (size_t k = 0; k < n; k++) {
            _cleanup_buf_ struct buf text = {0};
            add_value(&text, &columns[k], at_path(json_array_get(list, i), columns[k].path));
            node_cell(&t, "%s", buf_str(&text));
        }
    node_print_table(&t);
}

/* `inside`: the member of the answer that holds the array; NULL: the answer is the array. */
static int show_list(const struct node_call *call, const char *path, const char *inside, const struct column *columns,
                     size_t n)
{
    struct err err;
    _cleanup_json_ json_t *j = NULL;
    if (api_call(&call->api, "GET", path, NULL, &j, NULL, &err) < 0)
        return cli_fail(&err);
    if (call->json)
        node_print_json(j);
    else
        print_list(inside ? json_object_get(j, inside) : j, columns, n);
    return 0;
}

/* "/v1/WHAT/ID", or "/v1/WHAT" if id is NULL. */
static int admin_path(const char *what, const char *id, char ret[128], struct err *err)
{
    if (id && (strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789-_") != strlen(id) || strlen(id) > 64))
        return err_set(err, ERR_USAGE, 0, "'%.80s' is not an id", id);
    (void)snprintf(ret, 128, "/v1/%s%s%s", what, id ? "/" : "", id ? id : "");
    return 0;
}

static int remove_one(const struct node_call *call, const char *what, const char *id)
{
    struct err err;
    char path[128];
    if (admin_path(what, id, path, &err) < 0)
        return cli_fail(&err);
    return api_call(&call->api, "DELETE", path, NULL, NULL, NULL, &err) < 0 ? cli_fail(&err) : 0;
}

int cmd_key(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch key create [--tenant ID] [--name TEXT] [--scope NAME]... [--expires TIME]\n"
        "       hutch key ls | rm ID\n\n"
        "API keys (needs an administrator's key). The secret is shown once, at creation; the node keeps its hash.\n\n"
        "  --tenant ID    the tenant it belongs to (default)\n"
        "  --scope NAME   sandboxes, templates, files, read, admin; may be repeated (sandboxes, templates)\n"
        "  --expires TIME 30d, 12h (never)\n\n"
        "A key with `read` changes nothing and sees no contents; with `read` and `files` it sees contents: files, "
        "output,\n"
        "logs. The operator's own key lies in STATE/admin.key.\n\n"
        "examples:\n"
        "  hutch key create --tenant acme --name ci --expires 30d\n"
        "  hutch key ls\n";
    const char *tenant = NULL, *name = NULL, *expires = NULL;
    struct strv scopes __attribute__((cleanup(strv_done))) = {0};
    const struct node_option options[] = {{"tenant", 't', NULL, &tenant, NULL},
                                          {"name", 'n', NULL, &name, NULL},
                                          {"scope", 's', NULL, NULL, &scopes},
                                          {"expires", 'e', NULL, &expires, NULL},
                                          {0}};
    const struct node_command c = {"key", usage, options, 0, 1, false};
    const char *verb = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
    struct node_call call;
    struct err err;
    int code;
    uint64_t ms = 0;
    if (node_begin(&c, *verb ? argc - 1 : argc, *verb ? argv + 1 : argv, &call, &code))
        return code;
    if (strcmp(verb, "ls") == 0) {
        static const struct column m[] = {{"ID", "id", AS_IS},
                                          {"TENANT", "tenant", AS_IS},
                                          {"NAME", "name", AS_IS},
                                          {"SCOPES", "scopes", AS_IS},
                                          {"ENDS IN", "hint", AS_IS},
                                          {"CREATED", "createdAt", AS_IS},
                                          {"EXPIRES", "expiresAt", AS_IS},
                                          {"USED", "usedAt", AS_IS}};
        return show_list(&call, "/v1/keys", "keys", m, ARRAY_LEN(m));
    }
    if (strcmp(verb, "rm") == 0 && call.nargs == 1)
        return remove_one(&call, "keys", call.args[0]);
    if (strcmp(verb, "create") != 0 || call.nargs)
        return err_set(&err, ERR_USAGE, 0, "key: say create, ls or rm ID; see hutch key --help"), cli_fail(&err);
    if (expires && !num_duration(expires, &ms))
        return err_set(&err, ERR_USAGE, 0, "key: --expires wants a time like 30d, not '%.40s'", expires),
               cli_fail(&err);
    _cleanup_buf_ struct buf body = {0};
    struct json j;
    json_start(&j, &body);
    json_obj(&j, NULL);
    json_str(&j, "tenant", tenant ? tenant : "default");
    if (name)
        json_str(&j, "name", name);
    if (scopes.n) {
        json_arr(&j, "scopes");
        for (size_t i = 0; i < scopes.n; i++)
            json_str(&j, NULL, scopes.v[i]);
        json_end_arr(&j);
    }
    if (expires) {
        char when[32];
        time_t at = time(NULL) + (time_t)(ms / 1000);
        struct tm tm;
        (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&at, &tm));
        json_str(&j, "expiresAt", when);
    }
    json_end_obj(&j);
    _cleanup_json_ json_t *answer = NULL;
    if (api_call(&call.api, "POST", "/v1/keys", buf_str(&body), &answer, NULL, &err) < 0)
        return cli_fail(&err);
    cli_if_lost("the key was made, but is shown only once; remove it with: hutch key rm %.80s",
                field_text(answer, "id"));
    if (call.json)
        node_print_json(answer);
    else
        (void)printf("%s\n", field_text(answer, "key"));
    return 0;
}

struct quota_option {
    const char *member, *text;
    bool size; /* bytes; otherwise a plain number */
};

static int add_quota(struct json *j, const struct quota_option *q, struct err *err)
{
    uint64_t v;
    if (!q->text)
        return 0;
    if (!(q->size ? num_size(q->text, &v) : num_u64(q->text, &v)))
        return err_set(err, ERR_USAGE, 0, "tenant: '%.40s' is not a valid value for %s", q->text, q->member);
    json_u64(j, q->member, v);
    return 0;
}

struct tenant_options {
    const char *name, *sandboxes, *memory, *disk, *cpus, *rate, *storage, *files;
};

static int tenant_list(const struct node_call *call)
{
    static const struct column m[] = {{"ID", "id", AS_IS},
                                      {"NAME", "name", AS_IS},
                                      {"SANDBOXES", "used.sandboxes", AS_IS},
                                      {"OF", "quota.sandboxes", LIMIT},
                                      {"CPUS", "used.cpuMilli", CPUS},
                                      {"OF", "quota.cpuMilli", CPUS_LIMIT},
                                      {"MEMORY", "used.memoryBytes", SIZE},
                                      {"OF", "quota.memoryBytes", SIZE_LIMIT},
                                      {"DISK", "used.diskBytes", SIZE},
                                      {"OF", "quota.diskBytes", SIZE_LIMIT},
                                      {"STORAGE", "limits.storageBytes", SIZE_LIMIT},
                                      {"RATE", "quota.requestsPerSecond", LIMIT}};
    return show_list(call, "/v1/tenants", "tenants", m, ARRAY_LEN(m));
}

static int tenant_info(struct node_call *call, const char *id)
{
    static const struct {
        const char *label;
        struct column used, limit;
    } rows[] = {{"sandboxes", {"", "used.sandboxes", AS_IS}, {"", "quota.sandboxes", LIMIT}},
                {"cpus", {"", "used.cpuMilli", CPUS}, {"", "quota.cpuMilli", CPUS_LIMIT}},
                {"memory", {"", "used.memoryBytes", SIZE}, {"", "quota.memoryBytes", SIZE_LIMIT}},
                {"disk", {"", "used.diskBytes", SIZE}, {"", "quota.diskBytes", SIZE_LIMIT}},
                {"snapshots", {"", "used.snapshots", AS_IS}, {"", "quota.snapshots", LIMIT}},
                {"storage", {"", "used.storageBytes", SIZE}, {"", "limits.storageBytes", SIZE_LIMIT}},
                {"files", {"", "used.storageEntries", AS_IS}, {"", "limits.storageEntries", LIMIT}}};
    _cleanup_json_ json_t *t = NULL;
    char path[128];
    struct err err;
    if (admin_path("tenants", id, path, &err) < 0 || api_call(&call->api, "GET", path, NULL, &t, NULL, &err) < 0)
        return cli_fail(&err);
    if (call->json) {
        node_print_json(t);
        return 0;
    }
    (void)printf("%s (%s)\n", field_text(t, "id"), field_text(t, "name"));
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        _cleanup_buf_ struct buf used = {0}, limit = {0};
        add_value(&used, &rows[i].used, at_path(t, rows[i].used.path));
        add_value(&limit, &rows[i].limit, at_path(t, rows[i].limit.path));
        (void)printf("  %-10s %s of %s\n", rows[i].label, buf_str(&used),
                     strcmp(buf_str(&limit), "-") == 0 ? "no limit" : buf_str(&limit));
    }
    return 0;
}

/* create replaces all quotas, set changes only the given ones. */
static int tenant_write(struct node_call *call, const char *id, const struct tenant_options *o, bool create)
{
    const struct quota_option quotas[] = {{"sandboxes", o->sandboxes, false},  {"memoryBytes", o->memory, true},
                                          {"diskBytes", o->disk, true},        {"storageBytes", o->storage, true},
                                          {"storageEntries", o->files, false}, {"requestsPerSecond", o->rate, false}};
    _cleanup_buf_ struct buf body = {0};
    char path[128];
    struct json j;
    struct err err;
    uint64_t milli;
    if (admin_path("tenants", create ? NULL : id, path, &err) < 0)
        return cli_fail(&err);
    json_start(&j, &body);
    json_obj(&j, NULL);
    if (create)
        json_str(&j, "id", id);
    if (create || o->name)
        json_str(&j, "name", o->name ? o->name : id);
    json_obj(&j, "quota");
    for (size_t i = 0; i < sizeof quotas / sizeof quotas[0]; i++)
        if (add_quota(&j, &quotas[i], &err) < 0)
            return cli_fail(&err);
    if (o->cpus && !num_cpus(o->cpus, &milli))
        return err_set(&err, ERR_USAGE, 0, "tenant: --cpus wants a number like 4 or 1.5, not '%.40s'", o->cpus),
               cli_fail(&err);
    if (o->cpus)
        json_u64(&j, "cpuMilli", milli);
    json_end_obj(&j);
    json_end_obj(&j);
    return api_call(&call->api, create ? "POST" : "PATCH", path, buf_str(&body), NULL, NULL, &err) < 0 ? cli_fail(&err)
                                                                                                       : 0;
}

int cmd_tenant(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch tenant create|set ID [--name TEXT] [--sandboxes N] [--memory SIZE] [--disk SIZE] [--cpus N]\n"
        "                                  [--storage SIZE] [--files N] [--rate N]\n"
        "       hutch tenant info ID | ls | rm ID\n\n"
        "Tenants and their quotas (needs an administrator's key). `create` (or `add`) makes one or replaces all its\n"
        "quotas: one that is not given is not limited. `set` changes only what is given; 0 is no limit.\n"
        "--rate is requests per second.\n"
        "Memory, disk and processors are counted as what its sandboxes may use, not as what they do use.\n"
        "--storage is what it keeps: snapshots, paused sandboxes, templates, histories, and quotas of volumes;\n"
        "--files limits the number of files, directories and links in it.\n"
        "A tenant that has sandboxes cannot be removed.\n\n"
        "examples: hutch tenant create acme --sandboxes 20 --memory 64G --cpus 16 --rate 50\n"
        "          hutch tenant set acme --storage 10G && hutch tenant info acme\n";
    struct tenant_options o = {0};
    const struct node_option options[] = {{"name", 'n', NULL, &o.name, NULL},
                                          {"sandboxes", 0, NULL, &o.sandboxes, NULL},
                                          {"memory", 0, NULL, &o.memory, NULL},
                                          {"disk", 0, NULL, &o.disk, NULL},
                                          {"cpus", 0, NULL, &o.cpus, NULL},
                                          {"storage", 0, NULL, &o.storage, NULL},
                                          {"files", 0, NULL, &o.files, NULL},
                                          {"rate", 0, NULL, &o.rate, NULL},
                                          {0}};
    const struct node_command c = {"tenant", usage, options, 0, 1, false};
    const char *verb = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
    /* The id may stand before the options, as people write it. */
    char *id = argc > 2 && argv[2][0] != '-' ? argv[2] : NULL;
    int shift = (*verb ? 1 : 0) + (id ? 1 : 0);
    struct node_call call;
    struct err err;
    int code;
    if (node_begin(&c, argc - shift, argv + shift, &call, &code))
        return code;
    if (!id && call.nargs)
        id = call.args[0];
    if (strcmp(verb, "ls") == 0)
        return tenant_list(&call);
    if (strcmp(verb, "rm") == 0 && id)
        return remove_one(&call, "tenants", id);
    if (strcmp(verb, "info") == 0 && id)
        return tenant_info(&call, id);
    bool create = strcmp(verb, "create") == 0 || strcmp(verb, "add") == 0;
    if (id && (create || strcmp(verb, "set") == 0))
        return tenant_write(&call, id, &o, create);
    (void)err_set(&err, ERR_USAGE, 0, "tenant: say create ID, set ID, info ID, ls or rm ID; see hutch tenant --help");
    return cli_fail(&err);
}
