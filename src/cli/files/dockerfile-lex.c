/* dockerfile-lex.c - lines, words and variables of a Dockerfile. */
#include <ctype.h>
#include <jansson.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/files/dockerfile.h"

/* --- lines -------------------------------------------------------------------------------------------------------- */

static const char *line_end(const char *p, const char *end)
{
    const char *nl = memchr(p, '\n', (size_t)(end - p));
    return nl ? nl : end;
}

static const char *skip_blank(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r'))
        p++;
    return p;
}

/* Reads "# escape=`" from the directives at the top of the file. */
void dockerfile_lines_start(struct dockerfile_lines *l, const char *text, size_t n)
{
    *l = (struct dockerfile_lines){.at = text, .end = text + n, .line = 1, .escape = '\\'};
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        l->at += 3;
    for (const char *p = l->at; p < l->end;) {
        const char *end = line_end(p, l->end), *at = skip_blank(p, end);
        if (at == end || *at != '#')
            return;
        at = skip_blank(at + 1, end);
        size_t key = 0;
        while (at + key < end && isalpha((unsigned char)at[key]))
            key++;
        const char *eq = skip_blank(at + key, end);
        if (key == 0 || eq == end || *eq != '=')
            return;
        const char *value = skip_blank(eq + 1, end);
        if (key == 6 && strncasecmp(at, "escape", 6) == 0 && value < end && (*value == '`' || *value == '\\'))
            l->escape = *value;
        p = end < l->end ? end + 1 : end;
    }
}

/* Whether the line is continued; then *n is its length without the escape. */
static bool line_continues(const char *p, size_t *n, char escape)
{
    size_t at = *n;
    while (at > 0 && (p[at - 1] == ' ' || p[at - 1] == '\t' || p[at - 1] == '\r'))
        at--;
    if (at == 0 || p[at - 1] != escape)
        return false;
    *n = at - 1;
    return true;
}

int dockerfile_lines_next(struct dockerfile_lines *l, struct buf *ret, unsigned *line, struct err *err)
{
    bool begun = false;
    ret->n = 0;
    while (l->at < l->end) {
        const char *end = line_end(l->at, l->end), *at = skip_blank(l->at, end);
        unsigned here = l->line++;
        const char *text = begun ? l->at : at;
        size_t n = (size_t)(end - text);
        l->at = end < l->end ? end + 1 : end;
        if (at == end || *at == '#')
            continue; /* also between continued lines */
        if (!begun)
            *line = here;
        begun = true;
        bool more = line_continues(text, &n, l->escape);
        while (!more && n && (text[n - 1] == '\r' || text[n - 1] == ' ' || text[n - 1] == '\t'))
            n--;
        if (memchr(text, '\0', n))
            return err_set(err, ERR_USAGE, 0, "a NUL byte in the file");
        if (ret->n + n > DOCKERFILE_LINE_MAX)
            return err_set(err, ERR_USAGE, 0, "an instruction longer than %d bytes", DOCKERFILE_LINE_MAX);
        buf_add(ret, text, n);
        if (!more)
            return 1;
    }
    return begun;
}

/* --- variables ---------------------------------------------------------------------------------------------------- */

void dockerfile_vars_set(struct strv *v, const char *name, size_t n, const char *value)
{
    char *text = xasprintf("%.*s=%s", (int)n, name, value);
    for (size_t i = 0; i < v->n; i++)
        if (strncmp(v->v[i], name, n) == 0 && v->v[i][n] == '=') {
            free(v->v[i]);
            v->v[i] = text;
            return;
        }
    strv_take(v, text);
}

const char *dockerfile_vars_get(const struct strv *v, const char *name, size_t n)
{
    for (size_t i = 0; v && i < v->n; i++)
        if (strncmp(v->v[i], name, n) == 0 && v->v[i][n] == '=')
            return v->v[i] + n + 1;
    return NULL;
}

static const char *vars_lookup(const struct dockerfile_vars *vars, const char *name, size_t n)
{
    const char *v = dockerfile_vars_get(&vars->env, name, n);
    return v ? v : dockerfile_vars_get(&vars->args, name, n);
}

static size_t name_length(const char *s)
{
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || s[n] == '_')
        n++;
    return n && !isdigit((unsigned char)s[0]) ? n : 0;
}

/* Escapes dollars: the node expands variables once more. */
static void add_literal(struct buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '$')
            buf_addc(out, '\\');
        buf_addc(out, s[i]);
    }
}

/* --- words -------------------------------------------------------------------------------------------------------- */

struct lexer {
    const char *p;
    char escape;
    const struct dockerfile_vars *vars;
    struct buf word;
    bool begun; /* a word, perhaps an empty one in quotes */
};

/* ${NAME}, ${NAME:-word}, ${NAME:+word}; p is behind "${". */
static int lex_braces(struct lexer *l, struct err *err)
{
    const char *name = l->p;
    size_t n = name_length(name);
    const char *value = n ? vars_lookup(l->vars, name, n) : NULL;
    const char *close = strchr(name, '}');
    if (!n || !close)
        return err_set(err, ERR_USAGE, 0, "'${%.20s' is not a variable: write ${NAME}, ${NAME:-WORD} or ${NAME:+WORD}",
                       name);
    const char *rest = name + n;
    l->p = close + 1;
    if (rest == close) {
        if (value)
            add_literal(&l->word, value, strlen(value));
        else
            buf_addf(&l->word, "${%.*s}", (int)n, name);
        return 0;
    }
    if (rest[0] != ':' || (rest[1] != '-' && rest[1] != '+'))
        return err_set(err, ERR_USAGE, 0, "'${%.*s}': only :- and :+ may follow a name", (int)(close - name), name);
    bool set = value && *value;
    if (rest[1] == '-' && set)
        add_literal(&l->word, value, strlen(value));
    else if ((rest[1] == '-') != set)
        add_literal(&l->word, rest + 2, (size_t)(close - rest - 2));
    return 0;
}

static int lex_dollar(struct lexer *l, struct err *err)
{
    if (!l->vars) {
        buf_addc(&l->word, *l->p++);
        return 0;
    }
    if (l->p[1] == '{') {
        l->p += 2;
        return lex_braces(l, err);
    }
    size_t n = name_length(l->p + 1);
    const char *value = n ? vars_lookup(l->vars, l->p + 1, n) : NULL;
    if (value)
        add_literal(&l->word, value, strlen(value));
    else if (n)
        buf_addf(&l->word, "${%.*s}", (int)n, l->p + 1);
    else
        add_literal(&l->word, "$", 1);
    l->p += 1 + n;
    return 0;
}

static void lex_literal(struct lexer *l, const char *s)
{
    if (l->vars)
        add_literal(&l->word, s, 1);
    else
        buf_addc(&l->word, *s);
}

/* Reads up to the closing quote. */
static int lex_quoted(struct lexer *l, struct err *err)
{
    char q = *l->p++;
    l->begun = true;
    while (*l->p && *l->p != q) {
        if (q == '"' && *l->p == l->escape && l->p[1] && strchr("\"$`\\", l->p[1])) {
            lex_literal(l, l->p + 1);
            l->p += 2;
        } else if (q == '"' && *l->p == '$') {
            if (lex_dollar(l, err) < 0)
                return -1;
        } else
            lex_literal(l, l->p++);
    }
    if (!*l->p)
        return err_set(err, ERR_USAGE, 0, "an unclosed %c", q);
    l->p++;
    return 0;
}

static int lex_end_word(struct lexer *l, struct strv *ret, struct err *err)
{
    if (!l->begun)
        return 0;
    if (ret->n >= DOCKERFILE_WORDS_MAX)
        return err_set(err, ERR_USAGE, 0, "more than %d words", DOCKERFILE_WORDS_MAX);
    strv_add(ret, buf_str(&l->word));
    l->word.n = 0;
    if (l->word.p)
        l->word.p[0] = '\0';
    l->begun = false;
    return 0;
}

static int lex_words(struct lexer *l, struct strv *ret, struct err *err)
{
    while (*l->p) {
        int rc = 0;
        if (*l->p == ' ' || *l->p == '\t') {
            rc = lex_end_word(l, ret, err);
            l->p++;
        } else if (*l->p == '"' || *l->p == '\'') {
            rc = lex_quoted(l, err);
        } else if (*l->p == l->escape && l->p[1]) {
            l->begun = true;
            lex_literal(l, l->p + 1);
            l->p += 2;
        } else if (*l->p == '$') {
            l->begun = true;
            rc = lex_dollar(l, err);
        } else {
            l->begun = true;
            lex_literal(l, l->p++);
        }
        if (rc < 0)
            return -1;
    }
    return lex_end_word(l, ret, err);
}

int dockerfile_words(const char *text, char escape, const struct dockerfile_vars *vars, struct strv *ret,
                     struct err *err)
{
    struct lexer l = {.p = text, .escape = escape, .vars = vars};
    int rc = lex_words(&l, ret, err);
    buf_done(&l.word);
    return rc;
}

int dockerfile_json(const char *text, struct strv *ret, struct err *err)
{
    while (*text == ' ' || *text == '\t')
        text++;
    if (*text != '[')
        return 0;
    json_error_t bad;
    json_t *j = json_loads(text, 0, &bad);
    bool ok = json_is_array(j) && json_array_size(j) <= DOCKERFILE_WORDS_MAX;
    for (size_t i = 0; ok && i < json_array_size(j); i++) {
        const char *s = json_string_value(json_array_get(j, i));
        ok = s != NULL;
        if (ok)
            strv_add(ret, s);
    }
    json_decref(j);
    return ok ? 1 : err_set(err, ERR_USAGE, 0, "an exec form must be a JSON array of strings, like [\"ls\", \"-l\"]");
}

void dockerfile_quote(const struct strv *words, struct buf *out)
{
    for (size_t i = 0; i < words->n; i++) {
        const char *w = words->v[i];
        if (i)
            buf_addc(out, ' ');
        if (*w && strspn(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%") == strlen(w)) {
            buf_adds(out, w);
            continue;
        }
        buf_addc(out, '\'');
        for (; *w; w++)
            if (*w == '\'')
                buf_adds(out, "'\\''");
            else
                buf_addc(out, *w);
        buf_addc(out, '\'');
    }
}
