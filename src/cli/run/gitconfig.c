#include "cli/run/gitconfig.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

enum { NAME_MAX_BYTES = 64, VALUE_MAX_BYTES = 4096 };

enum section { SECTION_OTHER, SECTION_CORE, SECTION_INCLUDE };

struct reader {
    const char *at, *end;
    enum section section;
};

static int peek(const struct reader *r) { return r->at < r->end ? (unsigned char)*r->at : -1; }

static void skip_blanks(struct reader *r)
{
    while (peek(r) == ' ' || peek(r) == '\t' || peek(r) == '\r')
        r->at++;
}

static void skip_line(struct reader *r)
{
    while (r->at < r->end && *r->at++ != '\n') {
    }
}

static void read_name(struct reader *r, char *name)
{
    size_t n = 0;
    for (; isalnum(peek(r)) || peek(r) == '-'; r->at++)
        if (n < NAME_MAX_BYTES - 1)
            name[n++] = *r->at;
    name[n] = '\0';
}

/* "[name]", "[name "sub"]" or the old "[name.sub]"; a variable may follow on the same line. */
static void read_section(struct reader *r)
{
    char name[NAME_MAX_BYTES];
    bool quoted = false, sub = false;
    r->at++;
    read_name(r, name);
    for (; r->at < r->end && *r->at != '\n' && (quoted || *r->at != ']'); r->at++) {
        sub = sub || *r->at == '"' || *r->at == '.';
        if (*r->at == '\\' && quoted && r->at + 1 < r->end && r->at[1] != '\n')
            r->at++;
        else if (*r->at == '"')
            quoted = !quoted;
    }
    if (peek(r) == ']')
        r->at++;
    r->section = SECTION_OTHER;
    if (strcasecmp(name, "core") == 0 && !sub)
        r->section = SECTION_CORE;
    else if ((strcasecmp(name, "include") == 0 && !sub) || (strcasecmp(name, "includeIf") == 0 && sub))
        r->section = SECTION_INCLUDE;
}

/* The character that a backslash in a value means; -1: none, the value continues on the next line. */
static int escaped(int c)
{
    if (c == '\n')
        return -1;
    return c == 'n' ? '\n' : c == 't' ? '\t' : c == 'b' ? '\b' : c;
}

/* Up to the end of the line; blanks around it and comments do not count unless quoted. False if it is too long. */
static bool read_value(struct reader *r, char *value)
{
    size_t n = 0, kept = 0; /* `kept`: up to here no blank may be cut off */
    bool quoted = false;
    skip_blanks(r);
    for (; r->at < r->end && *r->at != '\n'; r->at++) {
        int c = (unsigned char)*r->at;
        if (!quoted && (c == '#' || c == ';'))
            break;
        if (c == '"') {
            quoted = !quoted;
            kept = n;
            continue;
        }
        if (c == '\r' && r->at + 1 < r->end && r->at[1] == '\n')
            continue;
        bool blank = !quoted && (c == ' ' || c == '\t');
        if (c == '\\' && r->at + 1 < r->end) {
            r->at++;
            c = escaped((unsigned char)*r->at);
            if (c < 0)
                continue;
        }
        if (n == VALUE_MAX_BYTES - 1)
            return false;
        value[n++] = (char)c;
        kept = blank ? kept : n;
    }
    value[kept] = '\0';
    return kept > 0;
}

static void read_variable(struct reader *r, struct gitconfig *ret)
{
    char name[NAME_MAX_BYTES], value[VALUE_MAX_BYTES];
    read_name(r, name);
    skip_blanks(r);
    bool hooks = r->section == SECTION_CORE && strcasecmp(name, "hooksPath") == 0;
    bool include = r->section == SECTION_INCLUDE && strcasecmp(name, "path") == 0;
    if (peek(r) == '=') {
        r->at++;
        /* Reads values of other variables, too: one may continue on a line that looks like a section. */
        if (read_value(r, value) && (hooks || include)) {
            struct strv *list = hooks ? &ret->hooks : &ret->includes;
            if (list->n < GITCONFIG_VALUES_MAX)
                strv_add(list, value);
        }
    }
    skip_line(r);
}

void gitconfig_read(const char *text, size_t n, struct gitconfig *ret)
{
    struct reader r = {.at = text, .end = text + n};
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) /* git skips a byte order mark, too */
        r.at += 3;
    while (r.at < r.end) {
        skip_blanks(&r);
        int c = peek(&r);
        if (c == '[')
            read_section(&r);
        else if (isalpha(c))
            read_variable(&r, ret);
        else
            skip_line(&r);
    }
}

void gitconfig_done(struct gitconfig *g)
{
    strv_done(&g->hooks);
    strv_done(&g->includes);
}
