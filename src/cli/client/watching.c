/* watching.c - hutch logs, top: what sandboxes did and what they use. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fields.h"
#include "base/num.h"
#include "base/text.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"

enum { LINE_MAX_BYTES = 4096 };

/* One event of the stream, as "data: {...}" lines came in. */
static void print_event(const char *text, bool as_json)
{
    if (as_json) {
        (void)printf("%s\n", text);
        return;
    }
    _cleanup_json_ json_t *e = json_loads(text, 0, NULL);
    _cleanup_buf_ struct buf rest = {0}, line = {0};
    const char *key;
    json_t *v;
    if (!e)
        return;
    json_object_foreach(json_object_get(e, "data"), key, v)
    {
        char *dumped = json_is_string(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        buf_addf(&rest, " %s=%s", key, dumped ? dumped : json_string_value(v));
        free(dumped);
    }
    text_add_safe(&line, buf_str(&rest), LINE_MAX_BYTES);
    (void)printf("%s %-15s%s\n", field_text(e, "time"), field_text(e, "type"), buf_str(&line));
    (void)fflush(stdout);
}

/* Reads server-sent events; `data:` lines of one event are joined. */
static int follow(struct blocking *s, bool as_json, struct err *err)
{
    char room[8192];
    _cleanup_buf_ struct buf line = {0}, data = {0};
    ssize_t n;
    while ((n = api_read(s, room, sizeof room, -1, NULL, err)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            if (room[i] != '\n') {
                if (line.n < API_BODY_MAX)
                    buf_addc(&line, room[i]);
                continue;
            }
            if (strncmp(buf_str(&line), "data: ", 6) == 0)
                buf_adds(&data, buf_str(&line) + 6);
            else if (line.n == 0 && data.n > 0) {
                print_event(buf_str(&data), as_json);
                buf_done(&data);
                if (ferror(stdout))
                    return 0; /* told when the program ends */
            }
            buf_done(&line);
        }
    return n < 0 ? -1 : 0;
}

int cmd_logs(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch logs [-f] ID\n\nWhat happened to a sandbox: its creation, changes of its end, commands that were "
        "killed, its death.\n\n"
        "  -f, --follow   go on as it happens\n      --json     one object per line\n\nexample: hutch logs -f $id\n";
    bool on = false;
    const struct node_option options[] = {{"follow", 'f', &on, NULL, NULL}, {0}};
    const struct node_command c = {"logs", usage, options, 1, 1, false};
    struct node_call call;
    struct err err;
    struct blocking s;
    int code;
    char path[160];
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    if (node_take_id(&call, 0, &err) < 0) /* a whole id may be of one that ended: its events are kept */
        return cli_fail(&err);
    (void)snprintf(path, sizeof path, "/v1/sandboxes/%s/events%s", call.args[0], on ? "" : "?follow=false");
    const struct api_request q = {.method = "GET", .path = path, .body_fd = -1};
    if (api_send(&call.api, &q, &s, &err) < 0)
        return cli_fail(&err);
    int r = s.answer.status == 200 ? follow(&s, call.json, &err) : api_refused(&s, &err);
    blocking_close(&s);
    return r < 0 ? cli_fail(&err) : 0;
}

static const char *size_text(struct buf *b, const json_t *v)
{
    buf_done(b);
    num_add_size(b, (uint64_t)json_integer_value(v));
    return buf_str(b);
}

static int top_once(const struct node_call *call, struct err *err)
{
    _cleanup_json_ json_t *list = NULL, *all = NULL;
    _cleanup_buf_ struct buf ids = {0}, b = {0};
    if (api_call(&call->api, "GET", "/v2/sandboxes?limit=100", NULL, &list, NULL, err) < 0)
        return -1;
    buf_adds(&ids, "/sandboxes/metrics?sandbox_ids=");
    for (size_t i = 0; i < json_array_size(list); i++)
        buf_addf(&ids, "%s%s", i ? "," : "", field_text(json_array_get(list, i), "sandboxID"));
    if (json_array_size(list) > 0 && api_call(&call->api, "GET", buf_str(&ids), NULL, &all, NULL, err) < 0)
        return -1;
    if (call->json) {
        if (all)
            node_print_json(all);
        return 0;
    }
    struct node_table t = node_table_with("ID", "TEMPLATE", "CPU %", "MEMORY", "DISK", NULL);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *s = json_array_get(list, i);
        const json_t *m = json_object_get(json_object_get(all, "sandboxes"), field_text(s, "sandboxID"));
        node_cell(&t, "%s", field_text(s, "sandboxID"));
        node_cell(&t, "%s", field_text(s, "templateID"));
        for (size_t k = 2; !m && k < t.columns; k++) /* too young for a sample */
            node_cell(&t, "-");
        if (!m)
            continue;
        node_cell(&t, "%.1f", json_number_value(json_object_get(m, "cpuUsedPct")));
        node_cell(&t, "%s", size_text(&b, json_object_get(m, "memUsed")));
        node_cell(&t, "%s", size_text(&b, json_object_get(m, "diskUsed")));
    }
    node_print_table(&t);
    return 0;
}

int cmd_top(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch top [--once]\n\nWhat the running sandboxes use, every two seconds until Ctrl-C; once if\n"
        "standard output is not a terminal. Figures are up to five seconds old.\n\nexample: hutch top --once\n";
    bool once = !isatty(STDOUT_FILENO);
    const struct node_option options[] = {{"once", '1', &once, NULL, NULL}, {0}};
    const struct node_command c = {"top", usage, options, 0, 0, false};
    struct node_call call;
    struct err err;
    int code;
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    for (;;) {
        if (!once && !call.json)
            (void)printf("\033[H\033[2J");
        if (top_once(&call, &err) < 0)
            return cli_fail(&err);
        (void)fflush(stdout);
        if (once || call.json || ferror(stdout))
            return 0;
        (void)sleep(2);
    }
}
