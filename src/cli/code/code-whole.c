/* code-whole.c - whether what was typed is a whole cell. A guess from brackets, quotes and Python's blocks: an empty line
 * always ends a cell, so a wrong one costs a key.
 */
#include <string.h>

#include "cli/code/code.h"

struct scan {
    int open;          /* brackets */
    const char *quote; /* an open string: ', ", ` or a tripled one; NULL: none */
};

static const char *code_scan_quote(const char *p, bool python)
{
    if (python && strncmp(p, "\"\"\"", 3) == 0)
        return "\"\"\"";
    if (python && strncmp(p, "'''", 3) == 0)
        return "'''";
    return *p == '"' ? "\"" : *p == '\'' ? "'" : *p == '`' && !python ? "`" : NULL;
}

static bool code_scan_is_comment(const char *p, const char *language)
{
    bool slashes = strcmp(language, "java") == 0 || strstr(language, "script");
    return slashes ? p[0] == '/' && p[1] == '/' : p[0] == '#';
}

static void code_scan(const char *language, const char *p, struct scan *s)
{
    bool python = strcmp(language, "python") == 0;
    while (*p) {
        if (s->quote) {
            size_t n = strlen(s->quote);
            if (*p == '\\' && p[1])
                p++;
            else if (strncmp(p, s->quote, n) == 0)
                p += n - 1, s->quote = NULL;
            else if (*p == '\n' && python && n == 1)
                s->quote = NULL; /* an error of its own */
        } else if (code_scan_is_comment(p, language)) {
            p += strcspn(p, "\n");
            continue;
        } else if ((s->quote = code_scan_quote(p, python))) {
            p += strlen(s->quote) - 1;
        } else {
            s->open += strchr("([{", *p) ? 1 : strchr(")]}", *p) ? -1 : 0;
        }
        p++;
    }
}

bool code_is_whole(const char *language, const char *text)
{
    struct scan s = {0};
    size_t n = strlen(text);
    const char *last = strrchr(text, '\n');
    last = last ? last + 1 : text;
    if (last != text && last[strspn(last, " \t")] == '\0')
        return true;
    if (n > 0 && text[n - 1] == '\\')
        return false;
    code_scan(language, text, &s);
    if (s.open > 0 || s.quote)
        return false;
    if (strcmp(language, "python") != 0)
        return true;
    while (n > 0 && strchr(" \t", text[n - 1]))
        n--;
    bool block = (n > 0 && text[n - 1] == ':') || text[0] == '@';
    /* Inside a block: only an empty line ends it. */
    return !block && !(last != text && (last[0] == ' ' || last[0] == '\t'));
}
