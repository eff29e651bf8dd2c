#include "cli/client/node.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/text.h"
#include "config/config.h"

enum { TABLE_COLUMNS = 16, TABLE_NARROW = 6 };
enum { OPTIONS_MAX = 24, OPT_FIRST = 256, OPT_URL = 300, OPT_PROFILE, OPT_CA, OPT_CERT, OPT_KEY, OPT_JSON, OPT_HELP };

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
    list[n++] = (struct option){"profile", required_argument, NULL, OPT_PROFILE};
    list[n++] = (struct option){"ca", required_argument, NULL, OPT_CA};
    list[n++] = (struct option){"cert", required_argument, NULL, OPT_CERT};
    list[n++] = (struct option){"key", required_argument, NULL, OPT_KEY};
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

static int node_unknown_option(const struct node_command *c, const struct option *list, const char *word, int *ret_code)
{
    const char *known[OPTIONS_MAX + 8] = {0}, *near = NULL;
    char name[64];
    for (size_t i = 0; list[i].name; i++)
        known[i] = list[i].name;
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(word + strspn(word, "-"), "="), word + strspn(word, "-"));
    if (strncmp(word, "--", 2) == 0)
        near = text_nearest(name, known);
    if (near && strcmp(near, name) == 0)
        return node_usage_error(c, ret_code, "option '--%s' takes no value", name);
    return node_usage_error(c, ret_code, "unknown option '%s'%s%s%s", word, near ? " (did you mean --" : "",
                            near ? near : "", near ? "?)" : "");
}

static struct node_choice choice_before; /* given before the command */

int node_take_choice(int argc, char **argv, struct err *err)
{
    int n = cli_count_choice(argc, argv);
    if (n > argc)
        return err_set(err, ERR_USAGE, 0, "option '%s' needs a value", argv[argc - 1]);
    for (int i = 0; i < n; i++) {
        const char *equals = strchr(argv[i], '='), *value = equals ? equals + 1 : argv[i + 1];
        *(strncmp(argv[i], "--url", 5) == 0       ? &choice_before.url
          : strncmp(argv[i], "--profile", 9) == 0 ? &choice_before.profile
          : strncmp(argv[i], "--cert", 6) == 0    ? &choice_before.cert
          : strncmp(argv[i], "--key", 5) == 0     ? &choice_before.key
                                                  : &choice_before.ca) = value;
        i += !equals;
    }
    return n;
}

int node_begin_local(const struct node_command *c, int argc, char **argv, struct node_call *ret, int *ret_code)
{
    struct option list[OPTIONS_MAX + 8];
    char shorts[2 * OPTIONS_MAX + 4];
    *ret = (struct node_call){.choice = choice_before};
    fill_options(c, list, shorts);
    opterr = 0;
    optind = 0;
    for (int got; (got = getopt_long(argc, argv, shorts, list, NULL)) != -1;) {
        if (got == 'h' || got == OPT_HELP) {
            (void)fputs(c->usage, stdout);
            *ret_code = 0;
            return 1;
        }
        if (got == '?')
            return node_unknown_option(c, list, argv[optind - 1], ret_code);
        if (got == ':')
            return node_usage_error(c, ret_code, "option '%s' needs a value", argv[optind - 1]);
        if (got == OPT_URL) {
            ret->choice.url = optarg;
        } else if (got == OPT_PROFILE) {
            ret->choice.profile = optarg;
        } else if (got == OPT_CA) {
            ret->choice.ca = optarg;
        } else if (got == OPT_CERT) {
            ret->choice.cert = optarg;
        } else if (got == OPT_KEY) {
            ret->choice.key = optarg;
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
    return 0;
}

int node_begin(const struct node_command *c, int argc, char **argv, struct node_call *ret, int *ret_code)
{
    struct err err;
    if (node_begin_local(c, argc, argv, ret, ret_code) != 0)
        return 1;
    if (node_choose(&ret->api, &ret->choice, &err) == 0)
        return 0;
    *ret_code = cli_fail(&err);
    return 1;
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

void node_print_state(const struct node_call *call, const char *id, const char *state)
{
    if (!call->json) {
        (void)printf("%s\n", id);
        return;
    }
    _cleanup_json_ json_t *j = json_pack("{s:s, s:s}", "sandboxID", id, "state", state);
    _cleanup_free_ char *text = json_dumps(j, JSON_COMPACT);
    (void)printf("%s\n", text ? text : "");
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
    t.head = true;
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
    t->whole = true;
    strv_add(&t->cells, buf_str(&safe));
}

/* Makes columns narrower, the widest first, until a row fits the terminal; never the first one, which is the id. */
static void table_fit(const struct node_table *t, size_t width[TABLE_COLUMNS])
{
    struct winsize w;
    if (t->whole || ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) < 0 || w.ws_col == 0)
        return;
    for (;;) {
        size_t sum = 2 * (t->columns - 1), widest = 0;
        for (size_t c = 0; c < t->columns; c++) {
            sum += width[c];
            if (c > 0 && (widest == 0 || width[c] > width[widest]))
                widest = c;
        }
        if (sum <= w.ws_col || widest == 0 || width[widest] <= TABLE_NARROW)
            return;
        size_t over = sum - w.ws_col, most = width[widest] - TABLE_NARROW;
        width[widest] -= over < most ? over : most;
    }
}

void node_print_table(struct node_table *t)
{
    size_t width[TABLE_COLUMNS] = {0};
    for (size_t i = 0; i < t->cells.n; i++) {
        size_t n = strlen(t->cells.v[i]), c = i % t->columns;
        if (n > width[c])
            width[c] = n;
    }
    bool bold = t->head && isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
    table_fit(t, width);
    for (size_t i = 0; i < t->cells.n; i++) {
        size_t c = i % t->columns;
        bool last = c + 1 == t->columns;
        const char *cell = t->cells.v[i];
        size_t n = strlen(cell);
        if (bold && i == 0)
            (void)fputs("\033[1m", stdout);
        if (n > width[c]) /* cut: a dot says so */
            (void)printf("%.*s.", (int)width[c] - 1, cell);
        else
            (void)printf("%s", cell);
        if (!last)
            (void)printf("%*s", (int)(n < width[c] ? width[c] - n : 0) + 2, "");
        if (bold && i + 1 == t->columns)
            (void)fputs("\033[0m", stdout);
        if (last)
            (void)putchar('\n');
    }
    strv_done(&t->cells);
}

int node_read_timeout(const char *command, const char *text, uint64_t *ret_seconds, struct err *err)
{
    uint64_t ms;
    if (!num_duration(text, &ms) || (ms > 0 && ms < 1000))
        return err_set(err, ERR_USAGE, 0, "%s: a timeout is at least 1s, like 10m, or 0 (until killed), not '%.40s'",
                       command, text);
    *ret_seconds = ms ? (ms + 999) / 1000 : CONFIG_UNTIL_KILLED_S;
    return 0;
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
    if (s > CONFIG_UNTIL_KILLED_S / 2) /* no other life is as long */
        (void)snprintf(ret, 24, "until killed");
    else if (s < 120)
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
        const struct api_request q = {.method = "GET", .path = page_path, .body_fd = -1, .keep = true};
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
        api_end(a, &s);
        _cleanup_json_ json_t *page = n == 0 ? json_loadb(buf_str(&text), text.n, 0, NULL) : NULL;
        if (!json_is_array(page))
            return n < 0 ? -1 : err_set(err, ERR_HOST, 0, "the node's list is not an array");
        (void)json_array_extend(*ret, page);
    } while (*next);
    return 0;
}
