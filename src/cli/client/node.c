#include "cli/client/node.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/text.h"

enum { OPTIONS_MAX = 16, OPT_FIRST = 256, OPT_URL = 300, OPT_JSON, OPT_HELP };

void node_state_dir(char *ret, size_t room)
{
    const char *given = getenv("HUTCH_STATE"), *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (given && *given)
        (void)snprintf(ret, room, "%s", given);
    else if (geteuid() == 0)
        (void)snprintf(ret, room, "/var/lib/hutch");
    else if (xdg && *xdg)
        (void)snprintf(ret, room, "%s/hutch", xdg);
    else
        (void)snprintf(ret, room, "%s/.local/state/hutch", home ? home : "");
}

void node_find_key(char *ret, size_t room)
{
    char dir[4096];
    _cleanup_buf_ struct buf b = {0}, path = {0};
    const char *key = getenv("HUTCH_API_KEY");
    ret[0] = '\0';
    if (!key || !*key)
        key = getenv("E2B_API_KEY");
    if (!key || !*key) {
        node_state_dir(dir, sizeof dir);
        buf_addf(&path, "%s/admin.key", dir);
        if (fd_read_file(AT_FDCWD, buf_str(&path), 128, &b) < 0)
            return;
        key = buf_str(&b);
    }
    (void)snprintf(ret, room, "%.*s", (int)strcspn(key, "\r\n "), key);
}

static int node_usage_error(const struct node_command *c, int *ret_code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int node_usage_error(const struct node_command *c, int *ret_code, const char *fmt, ...)
{
    char text[400];
    struct err err;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)err_set(&err, ERR_USAGE, 0, "%s: %s; see hutch %s --help", c->name, text, c->name);
    *ret_code = cli_fail(&err);
    return 1;
}

static void fill_options(const struct node_command *c, struct option *list, char *shorts)
{
    size_t n = 0, at = 0;
    if (c->rest_is_command)
        shorts[at++] = '+';
    shorts[at++] = ':';
    shorts[at++] = 'h';
    for (const struct node_option *o = c->options; o && o->name && n < OPTIONS_MAX; o++, n++) {
        list[n] = (struct option){o->name, o->flag ? no_argument : required_argument, NULL, OPT_FIRST + (int)n};
        if (o->short_name) {
            shorts[at++] = o->short_name;
            if (!o->flag)
                shorts[at++] = ':';
        }
    }
    shorts[at] = '\0';
    list[n++] = (struct option){"url", required_argument, NULL, OPT_URL};
    list[n++] = (struct option){"json", no_argument, NULL, OPT_JSON};
    list[n++] = (struct option){"help", no_argument, NULL, OPT_HELP};
    list[n] = (struct option){0};
}

static const struct node_option *option_of(const struct node_command *c, int got)
{
    if (got >= OPT_FIRST)
        return &c->options[got - OPT_FIRST];
    for (const struct node_option *o = c->options; o && o->name; o++)
        if (o->short_name == got)
            return o;
    return NULL;
}

int node_begin(const struct node_command *c, int argc, char **argv, struct node_call *ret, int *ret_code)
{
    struct option list[OPTIONS_MAX + 4];
    char shorts[2 * OPTIONS_MAX + 4];
    const char *url = NULL;
    struct err err;
    *ret = (struct node_call){0};
    fill_options(c, list, shorts);
    opterr = 0;
    optind = 0;
    for (int got; (got = getopt_long(argc, argv, shorts, list, NULL)) != -1;) {
        if (got == 'h' || got == OPT_HELP) {
            (void)fputs(c->usage, stdout);
            *ret_code = 0;
            return 1;
        }
        if (got == '?' || got == ':')
            return node_usage_error(c, ret_code, got == '?' ? "unknown option '%s'" : "option '%s' needs a value",
                                    argv[optind - 1]);
        if (got == OPT_URL) {
            url = optarg;
        } else if (got == OPT_JSON) {
            ret->json = true;
        } else {
            const struct node_option *o = option_of(c, got);
            if (o->flag)
                *o->flag = true;
            else if (o->text)
                *o->text = optarg;
            else
                strv_add(o->many, optarg);
        }
    }
    ret->args = argv + optind;
    ret->nargs = argc - optind;
    if (ret->nargs < c->min)
        return node_usage_error(c, ret_code, "an argument is missing");
    if (c->max >= 0 && ret->nargs > c->max)
        return node_usage_error(c, ret_code, "'%s' is one argument too many", ret->args[c->max]);
    if (api_reach(&ret->api, url, &err) < 0) {
        *ret_code = cli_fail(&err);
        return 1;
    }
    return 0;
}

json_t *node_json_strings(const struct strv *v)
{
    json_t *list = json_array();
    for (size_t i = 0; i < v->n; i++)
        (void)json_array_append_new(list, json_string(v->v[i]));
    return list;
}

void node_print_json(const json_t *j)
{
    _cleanup_free_ char *text = json_dumps(j, JSON_INDENT(2) | JSON_ENCODE_ANY);
    if (text)
        (void)printf("%s\n", text);
}

int node_get(const struct node_call *call, const char *path, json_t **ret, struct err *err)
{
    if (api_call(&call->api, "GET", path, NULL, ret, NULL, err) < 0)
        return -1;
    if (call->json)
        node_print_json(*ret);
    return !call->json;
}

struct node_table node_table_with(const char *first, ...)
{
    struct node_table t = {0};
    va_list ap;
    va_start(ap, first);
    for (const char *name = first; name; name = va_arg(ap, const char *)) {
        node_cell(&t, "%s", name);
        t.columns++;
    }
    va_end(ap);
    return t;
}

void node_cell(struct node_table *t, const char *fmt, ...)
{
    char text[512];
    _cleanup_buf_ struct buf safe = {0};
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    text_add_safe(&safe, text, 120);
    strv_add(&t->cells, buf_str(&safe));
}

void node_cell_whole(struct node_table *t, const char *text)
{
    _cleanup_buf_ struct buf safe = {0};
    text_add_safe(&safe, text, SIZE_MAX);
    strv_add(&t->cells, buf_str(&safe));
}

void node_print_table(struct node_table *t)
{
    size_t width[16] = {0};
    for (size_t i = 0; i < t->cells.n; i++) {
        size_t n = strlen(t->cells.v[i]), c = i % t->columns;
        if (n > width[c])
            width[c] = n;
    }
    for (size_t i = 0; i < t->cells.n; i++) {
        size_t c = i % t->columns;
        if (c + 1 == t->columns)
            (void)printf("%s\n", t->cells.v[i]);
        else
            (void)printf("%-*s  ", (int)width[c], t->cells.v[i]);
    }
    strv_done(&t->cells);
}

void node_age(const char *rfc3339, bool until, char ret[24])
{
    struct tm tm = {0};
    (void)snprintf(ret, 24, "-");
    if (!strptime(rfc3339, "%Y-%m-%dT%H:%M:%S", &tm))
        return;
    long long s = (long long)(timegm(&tm) - time(NULL)) * (until ? 1 : -1);
    if (s < 0)
        s = 0;
    if (s < 120)
        (void)snprintf(ret, 24, "%llds", s);
    else if (s < 7200)
        (void)snprintf(ret, 24, "%lldm %llds", s / 60, s % 60);
    else
        (void)snprintf(ret, 24, "%lldh %lldm", s / 3600, s / 60 % 60);
}

int node_pages(const struct api *a, const char *path, json_t **ret, struct err *err)
{
    char next[512] = "";
    *ret = json_array();
    do {
        char page_path[1024];
        struct blocking s;
        (void)snprintf(page_path, sizeof page_path, "%.480s%s%s", path, *next ? "&nextToken=" : "", next);
        const struct api_request q = {.method = "GET", .path = page_path, .body_fd = -1};
        if (api_send(a, &q, &s, err) < 0)
            return -1;
        if (s.answer.status != 200) {
            (void)api_refused(&s, err);
            blocking_close(&s);
            return -1;
        }
        const char *token = http_field(&s.answer.fields, "x-next-token");
        (void)snprintf(next, sizeof next, "%s", token ? token : "");
        _cleanup_buf_ struct buf text = {0};
        char room[16 * 1024];
        ssize_t n;
        while ((n = api_read(&s, room, sizeof room, -1, NULL, err)) > 0)
            buf_add(&text, room, (size_t)n);
        blocking_close(&s);
        _cleanup_json_ json_t *page = n == 0 ? json_loadb(buf_str(&text), text.n, 0, NULL) : NULL;
        if (!json_is_array(page))
            return n < 0 ? -1 : err_set(err, ERR_HOST, 0, "the node's list is not an array");
        (void)json_array_extend(*ret, page);
    } while (*next);
    return 0;
}
