#include "policy/node.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/text.h"

struct source {
    yaml_parser_t parser;
    const char *name;
    unsigned flags;
    size_t total;                      /* nodes made so far */
    struct node *open[NODE_DEPTH_MAX]; /* borrowed: containers around the current position */
    unsigned depth;
    struct node *root;
    struct err *err;
};

struct node *node_new(enum node_kind kind, const char *text, unsigned line)
{
    struct node *node = xcalloc(1, sizeof *node);
    node->kind = kind;
    node->line = line;
    if (text)
        node->text = xstrdup(text);
    return node;
}

void node_take(struct node *parent, struct node *child)
{
    MEM_GROW(parent->items, parent->n, parent->cap);
    parent->items[parent->n++] = child;
}

void node_free(struct node *node)
{
    if (!node)
        return;
    for (size_t i = 0; i < node->n; i++)
        node_free(node->items[i]); /* bounded by NODE_DEPTH_MAX */
    free(node->items);
    free(node->text);
    free(node);
}

bool node_is_empty(const struct node *node)
{
    return node->kind == NODE_SCALAR && !node->quoted && node->text[0] == '\0';
}

static int source_fail(struct source *s, size_t line, const char *what)
{
    _cleanup_buf_ struct buf name = {0};
    text_add_safe(&name, s->name, 256);
    return err_set(s->err, ERR_POLICY, 0, "%s:%zu: %s", buf_str(&name), line, what);
}

static int fail_key(struct source *s, unsigned line, const char *key, unsigned first)
{
    _cleanup_buf_ struct buf msg = {0};
    buf_adds(&msg, "key \"");
    text_add_safe(&msg, key, 64);
    buf_addf(&msg, "\" is given twice, first in line %u", first);
    return source_fail(s, line, buf_str(&msg));
}

/* Checks for duplicates when a mapping is complete: mappings are short, and sorting would lose the first line. */
static int source_check_keys(struct source *s, const struct node *map)
{
    for (size_t i = 0; i < map->n; i += 2)
        for (size_t j = 0; j < i; j += 2)
            if (strcmp(map->items[i]->text, map->items[j]->text) == 0)
                return fail_key(s, map->items[i]->line, map->items[i]->text, map->items[j]->line);
    return 0;
}

static bool is_json_number(const char *s)
{
    s += *s == '-';
    size_t whole = strspn(s, "0123456789");
    if (whole == 0 || (whole > 1 && s[0] == '0'))
        return false;
    s += whole;
    if (*s == '.') {
        size_t digits = strspn(++s, "0123456789");
        if (digits == 0)
            return false;
        s += digits;
    }
    if (*s == 'e' || *s == 'E') {
        s++;
        s += *s == '+' || *s == '-';
        size_t digits = strspn(s, "0123456789");
        if (digits == 0)
            return false;
        s += digits;
    }
    return *s == '\0';
}

static bool is_json_scalar(const yaml_event_t *e, const char *text)
{
    if (e->data.scalar.style == YAML_DOUBLE_QUOTED_SCALAR_STYLE)
        return true;
    if (e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return false;
    return strcmp(text, "true") == 0 || strcmp(text, "false") == 0 || strcmp(text, "null") == 0 || is_json_number(text);
}

/* Puts a node where the position is. Takes ownership, also on failure. */
static int source_place_node(struct source *s, struct node *node)
{
    if (s->depth == 0) {
        s->root = node;
        return 0;
    }
    struct node *parent = s->open[s->depth - 1];
    bool is_key = parent->kind == NODE_MAP && parent->n % 2 == 0;
    node_take(parent, node);
    if (is_key && node->kind != NODE_SCALAR)
        return source_fail(s, node->line, "a key must be a word, not a list or a mapping");
    if (is_key && (s->flags & NODE_JSON) && !node->quoted)
        return source_fail(s, node->line, "a key must stand in double quotes");
    if (is_key && !node->quoted && strcmp(node->text, "<<") == 0)
        return source_fail(s, node->line, "merge keys are not supported; write the values out");
    if (parent->n > (parent->kind == NODE_MAP ? 2 * (size_t)NODE_ITEMS_MAX : (size_t)NODE_ITEMS_MAX))
        return source_fail(s, node->line, "more than 4096 entries in one list or mapping");
    return 0;
}

static int add_scalar(struct source *s, const yaml_event_t *e)
{
    size_t line = e->start_mark.line + 1, n = e->data.scalar.length;
    const char *text = (const char *)e->data.scalar.value;
    if (n > NODE_SCALAR_MAX)
        return source_fail(s, line, "a value is longer than 32768 bytes");
    if (memchr(text, '\0', n))
        return source_fail(s, line, "a value contains a NUL byte");
    if ((s->flags & NODE_JSON) && !is_json_scalar(e, text))
        return source_fail(s, line,
                           "not valid JSON: expected a string in double quotes, a number, true, false or null");
    struct node *node = node_new(NODE_SCALAR, text, (unsigned)line);
    node->quoted = e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    return source_place_node(s, node);
}

static int open_container(struct source *s, const yaml_event_t *e, enum node_kind kind, bool flow)
{
    size_t line = e->start_mark.line + 1;
    if (s->depth == NODE_DEPTH_MAX)
        return source_fail(s, line, "nested deeper than 8 levels");
    if ((s->flags & NODE_JSON) && !flow)
        return source_fail(s, line, "not valid JSON: expected { or [");
    struct node *node = node_new(kind, NULL, (unsigned)line);
    int r = source_place_node(s, node);
    if (r == 0)
        s->open[s->depth++] = node;
    return r;
}

static int close_container(struct source *s)
{
    const struct node *node = s->open[--s->depth];
    return node->kind == NODE_MAP ? source_check_keys(s, node) : 0;
}

static bool has_decoration(const yaml_event_t *e)
{
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        return e->data.scalar.anchor || e->data.scalar.tag;
    case YAML_SEQUENCE_START_EVENT:
        return e->data.sequence_start.anchor || e->data.sequence_start.tag;
    case YAML_MAPPING_START_EVENT:
        return e->data.mapping_start.anchor || e->data.mapping_start.tag;
    default:
        return e->type == YAML_ALIAS_EVENT;
    }
}

static int document_start(struct source *s, const yaml_event_t *e)
{
    size_t line = e->start_mark.line + 1;
    if (s->root)
        return source_fail(s, line, "a second document starts here; a file holds one document");
    if (e->data.document_start.version_directive ||
        e->data.document_start.tag_directives.start != e->data.document_start.tag_directives.end)
        return source_fail(s, line, "YAML directives are not supported");
    return 0;
}

static int take_event(struct source *s, const yaml_event_t *e)
{
    size_t line = e->start_mark.line + 1;
    if (has_decoration(e))
        return source_fail(s, line, "anchors, aliases and tags are not supported; write the value out");
    if (++s->total > NODE_TOTAL_MAX)
        return source_fail(s, line, "more than 32768 values in the document");
    switch (e->type) {
    case YAML_DOCUMENT_START_EVENT:
        return document_start(s, e);
    case YAML_SCALAR_EVENT:
        return add_scalar(s, e);
    case YAML_SEQUENCE_START_EVENT:
        return open_container(s, e, NODE_LIST, e->data.sequence_start.style == YAML_FLOW_SEQUENCE_STYLE);
    case YAML_MAPPING_START_EVENT:
        return open_container(s, e, NODE_MAP, e->data.mapping_start.style == YAML_FLOW_MAPPING_STYLE);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return close_container(s);
    default:
        return 0;
    }
}

static int fail_syntax(struct source *s)
{
    const yaml_parser_t *p = &s->parser;
    if (p->error == YAML_MEMORY_ERROR)
        return err_set(s->err, ERR_INTERNAL, 0, "out of memory while reading a policy document");
    _cleanup_buf_ struct buf msg = {0};
    buf_addf(&msg, "not valid %s: %s", s->flags & NODE_JSON ? "JSON" : "YAML", p->problem ? p->problem : "unreadable");
    if (p->context && p->error != YAML_READER_ERROR)
        buf_addf(&msg, " %s", p->context);
    return source_fail(s, p->problem_mark.line + 1, buf_str(&msg));
}

static int source_read_events(struct source *s)
{
    for (;;) {
        yaml_event_t e;
        if (!yaml_parser_parse(&s->parser, &e))
            return fail_syntax(s);
        bool end = e.type == YAML_STREAM_END_EVENT;
        int r = take_event(s, &e);
        yaml_event_delete(&e);
        if (r < 0 || end)
            return r;
    }
}

int node_read(const char *text, size_t n, const char *name, unsigned flags, struct node **ret, struct err *err)
{
    struct source s = {.name = name, .flags = flags, .err = err};
    if (n > NODE_TEXT_MAX)
        return source_fail(&s, 1, "the document is larger than 1 MiB");
    if (!yaml_parser_initialize(&s.parser))
        return err_set(err, ERR_INTERNAL, 0, "out of memory while reading a policy document");
    yaml_parser_set_encoding(&s.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&s.parser, (const unsigned char *)text, n);
    int r = source_read_events(&s);
    yaml_parser_delete(&s.parser);
    if (r == 0 && (!s.root || node_is_empty(s.root))) {
        node_free(s.root);
        s.root = node_new(NODE_MAP, NULL, 1);
    }
    if (r == 0 && s.root->kind != NODE_MAP)
        r = source_fail(&s, s.root->line, "the document must be a mapping of keys to values");
    if (r < 0) {
        node_free(s.root);
        return -1;
    }
    *ret = s.root;
    return 0;
}

void node_add_scalar(struct buf *b, const char *s)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-~+=$";
    size_t n = strlen(s);
    if (n > 0 && strspn(s, plain) == n && !strchr("-=~", s[0])) {
        buf_adds(b, s);
        return;
    }
    buf_addc(b, '"');
    for (const unsigned char *p = (const unsigned char *)s; *p; p++) {
        if (*p == '"' || *p == '\\')
            buf_addf(b, "\\%c", *p);
        else if (*p < 0x20 || *p == 0x7f)
            buf_addf(b, "\\x%02x", *p);
        else
            buf_addc(b, (char)*p);
    }
    buf_addc(b, '"');
}
