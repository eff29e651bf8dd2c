/* paths.c - turns a path as written in a document into the path of a rule. Works on text only, without the file
 * system. */
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "policy/run/doc.h"

static bool has_glob(const char *s)
{
    for (; *s; s++) {
        if (*s == '\\' && s[1])
            s++;
        else if (*s == '*' || *s == '?' || *s == '[')
            return true;
    }
    return false;
}

static void glob_add_escaped(struct buf *b, const char *s)
{
    for (; *s; s++) {
        if (strchr("*?[\\", *s))
            buf_addc(b, '\\');
        buf_addc(b, *s);
    }
}

static void glob_add_unescaped(struct buf *b, const char *s)
{
    for (; *s; s++) {
        if (*s == '\\' && s[1])
            s++;
        buf_addc(b, *s);
    }
}

static int path_check_text(struct doc *d, unsigned line, const char *key, const char *text, bool literal)
{
    size_t n = strlen(text);
    if (n == 0)
        return doc_fail(d, line, "%s: an empty path", key);
    if (n > DOC_PATH_MAX)
        return doc_fail(d, line, "%s: a path of %zu bytes; at most %d are possible", key, n, DOC_PATH_MAX);
    for (const char *s = text; *s; s++) {
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            return doc_fail(d, line, "%s: control character in path \"%s\"", key, doc_safe(text));
        if (!literal && *s == '\\') {
            if (s[1] == '\0' || s[1] == '/')
                return doc_fail(d, line, "%s: \"\\\" in \"%s\" must stand before the character it protects", key,
                                doc_safe(text));
            s++;
        }
    }
    return 0;
}

/* Where the path starts: *rest is what follows `start`, which may be NULL for an absolute path. */
static int find_start(struct doc *d, unsigned line, const char *key, const char *text, const char **start,
                      const char **rest)
{
    size_t skip = text[0] == '~' ? 1 : strncmp(text, "$HOME", 5) == 0 ? 5 : 0;
    *start = NULL;
    *rest = text;
    if (text[0] == '/')
        return 0;
    if (skip > 0 && (text[skip] == '/' || text[skip] == '\0')) {
        if (!d->where->home)
            return doc_fail(d, line, "%s: \"%s\" needs a home directory, and HOME is not set", key, doc_safe(text));
        *start = d->where->home;
        *rest = text + skip;
        return 0;
    }
    if (text[0] == '~' || text[0] == '$')
        return doc_fail(d, line, "%s: \"%s\": only ~ and $HOME are replaced; write ./%s for a name that starts so", key,
                        doc_safe(text), doc_safe(text));
    if (!d->base)
        return doc_fail(d, line, "%s: \"%s\" is relative; this document needs absolute paths or ~", key,
                        doc_safe(text));
    *start = d->base;
    return 0;
}

/* Globs are expanded by a walk from their fixed part, so they need one, and "**" multiplies the work. */
static int check_glob(struct doc *d, unsigned line, const char *key, const char *path)
{
    _cleanup_free_ char *first = xstrndup(path + 1, strcspn(path + 1, "/"));
    unsigned stars = 0;
    for (const char *s = strstr(path, "**"); s; s = strstr(s + 2, "**"))
        stars++;
    if (has_glob(first))
        return doc_fail(d, line, "%s: the glob \"%s\" must start with a fixed directory, as in /srv/**/*.pem", key,
                        doc_safe(path));
    if (stars > DOC_GLOB_STARS_MAX)
        return doc_fail(d, line, "%s: more than %d \"**\" in \"%s\"", key, DOC_GLOB_STARS_MAX, doc_safe(path));
    return 0;
}

int doc_path(struct doc *d, unsigned line, const char *key, const char *text, unsigned flags, char **ret,
             bool *ret_glob)
{
    bool literal = flags & DOC_PATH_LITERAL;
    const char *start, *rest;
    _cleanup_buf_ struct buf full = {0};
    bool glob = !literal && has_glob(text);
    if (glob && !(flags & DOC_PATH_GLOB))
        return doc_fail(d, line,
                        "%s: \"%s\" is a glob, which only deny rules may be; put \"\\\" before * ? [ in a name", key,
                        doc_safe(text));
    if (path_check_text(d, line, key, text, literal) < 0 || find_start(d, line, key, text, &start, &rest) < 0)
        return -1;
    if (start) {
        if (glob)
            glob_add_escaped(&full, start);
        else
            buf_adds(&full, start);
        buf_addc(&full, '/');
    }
    if (glob || literal)
        buf_adds(&full, rest);
    else
        glob_add_unescaped(&full, rest);
    _cleanup_free_ char *clean = path_clean("/", buf_str(&full));
    if (strlen(clean) > DOC_PATH_MAX)
        return doc_fail(d, line, "%s: \"%s\" is longer than %d bytes once resolved", key, doc_safe(text), DOC_PATH_MAX);
    if (glob && check_glob(d, line, key, clean) < 0)
        return -1;
    *ret = TAKE_PTR(clean);
    *ret_glob = glob;
    return 0;
}
