/* dockerfile.c - reads the instructions of a Dockerfile. */
#include "cli/files/dockerfile-int.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"

static const char *const types[] = {"RUN", "COPY", "ENV", "WORKDIR", "USER"};
const char *dockerfile_type_name(enum dockerfile_type t) { return types[t]; }

struct dockerfile_step *dockerfile_add(struct reader *r, enum dockerfile_type type, struct err *err)
{
    struct dockerfile *d = r->d;
    if (d->nsteps >= DOCKERFILE_STEPS_MAX) {
        (void)err_set(err, ERR_USAGE, 0, "more than %d steps", DOCKERFILE_STEPS_MAX);
        return NULL;
    }
    MEM_GROW(d->steps, d->nsteps, d->cap);
    struct dockerfile_step *s = &d->steps[d->nsteps++];
    *s = (struct dockerfile_step){.type = type, .line = r->line, .from = -1};
    return s;
}

int dockerfile_add_one(struct reader *r, enum dockerfile_type type, const char *arg, struct err *err)
{
    struct dockerfile_step *s = dockerfile_add(r, type, err);
    if (!s)
        return -1;
    strv_add(&s->args, arg);
    return 0;
}

void dockerfile_note(struct reader *r, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (r->d->notes.n < DOCKERFILE_WORDS_MAX)
        strv_take(&r->d->notes, xasprintf("line %u: %s", r->line, text));
}

/* Takes "--name=value" off the beginning. 1 there was one, 0 none. */
int dockerfile_flag(const char **text, char *flag, size_t room, struct err *err)
{
    while (**text == ' ' || **text == '\t')
        (*text)++;
    if (strncmp(*text, "--", 2) != 0)
        return 0;
    size_t n = strcspn(*text, " \t");
    if (n >= room)
        return err_set(err, ERR_USAGE, 0, "an option longer than %zu bytes", room - 1);
    memcpy(flag, *text, n);
    flag[n] = '\0';
    *text += n;
    return 1;
}

bool dockerfile_is_flag(const char *flag, const char *name, const char **value)
{
    size_t n = strlen(name);
    if (strncmp(flag, name, n) != 0 || (flag[n] != '\0' && flag[n] != '='))
        return false;
    *value = flag[n] == '=' ? flag + n + 1 : "";
    return true;
}

static int no_heredoc(const char *text, struct err *err)
{
    const char *at = strstr(text, "<<");
    if (!at)
        return 0;
    at += 2 + (at[2] == '-');
    if (*at == '"' || *at == '\'')
        at++;
    if (isalpha((unsigned char)*at) || *at == '_')
        return err_set(err, ERR_USAGE, 0,
                       "heredocs are not supported: write a file and COPY it, or join commands with &&");
    return 0;
}

/* --- RUN, CMD, ENTRYPOINT ----------------------------------------------------------------------------------------- */

/* ARG values are exported to the commands, but not kept in the template's environment. */
static void add_args(const struct reader *r, struct buf *out)
{
    bool any = false;
    for (size_t i = 0; i < r->vars.args.n; i++) {
        const char *a = r->vars.args.v[i], *eq = strchr(a, '=');
        if (dockerfile_vars_get(&r->vars.env, a, (size_t)(eq - a)))
            continue;
        struct strv one = {0};
        strv_add(&one, eq + 1);
        buf_addf(out, "%s %.*s=", any ? "" : "export", (int)(eq - a), a);
        dockerfile_quote(&one, out);
        strv_done(&one);
        any = true;
    }
    if (any)
        buf_adds(out, "; ");
}

static int run_flags(struct reader *r, const char **text, struct err *err)
{
    char flag[512];
    const char *value;
    int rc;
    while ((rc = dockerfile_flag(text, flag, sizeof flag, err)) > 0) {
        if (dockerfile_is_flag(flag, "--mount", &value) && strstr(value, "type=cache"))
            dockerfile_note(r, "RUN --mount=type=cache is ignored: steps are cached as a whole");
        else if (dockerfile_is_flag(flag, "--network", &value) && strcmp(value, "default") == 0)
            continue;
        else
            return err_set(err, ERR_USAGE, 0, "RUN %.100s is not supported: COPY what the command needs", flag);
    }
    return rc;
}

static int read_run(struct reader *r, const char *text, struct err *err)
{
    _cleanup_strv_ struct strv words = {0};
    _cleanup_buf_ struct buf command = {0};
    if (run_flags(r, &text, err) < 0 || no_heredoc(text, err) < 0)
        return -1;
    add_args(r, &command);
    struct err not_json;
    int json = dockerfile_json(text, &words, &not_json);
    if (json > 0 && words.n == 0)
        return err_set(err, ERR_USAGE, 0, "RUN needs a command");
    if (json > 0)
        dockerfile_quote(&words, &command);
    else /* a malformed exec form is a shell command, as with Docker */
        buf_adds(&command, text);
    if (!*text)
        return err_set(err, ERR_USAGE, 0, "RUN needs a command");
    return dockerfile_add_one(r, DOCKERFILE_RUN, buf_str(&command), err);
}

static int read_command(struct reader *r, const char *text, bool entry, struct err *err)
{
    struct strv *to = entry ? &r->made.entry : &r->made.cmd;
    strv_done(to);
    if (no_heredoc(text, err) < 0)
        return -1;
    struct err not_json;
    int json = dockerfile_json(text, to, &not_json);
    if (json < 0)
        strv_done(to);
    if (json <= 0)
        strv_add(to, text);
    *(entry ? &r->made.entry_shell : &r->made.cmd_shell) = json <= 0;
    *(entry ? &r->made.has_entry : &r->made.has_cmd) = to->n > 0 && *to->v[0];
    return 0;
}

/* ENTRYPOINT with CMD as its arguments; a shell form takes none. */
static void set_start(struct reader *r)
{
    _cleanup_buf_ struct buf out = {0};
    if (r->made.has_entry && r->made.entry_shell)
        buf_adds(&out, r->made.entry.v[0]);
    else if (r->made.has_entry) {
        dockerfile_quote(&r->made.entry, &out);
        if (r->made.has_cmd) {
            struct strv shell = {0};
            if (r->made.cmd_shell) {
                strv_add(&shell, "/bin/sh");
                strv_add(&shell, "-c");
                strv_add(&shell, r->made.cmd.v[0]);
            }
            buf_addc(&out, ' ');
            dockerfile_quote(r->made.cmd_shell ? &shell : &r->made.cmd, &out);
            strv_done(&shell);
        }
    } else if (r->made.has_cmd && r->made.cmd_shell)
        buf_adds(&out, r->made.cmd.v[0]);
    else if (r->made.has_cmd)
        dockerfile_quote(&r->made.cmd, &out);
    if (out.n)
        r->d->start = xstrdup(buf_str(&out));
}

/* --- COPY and ADD ------------------------------------------------------------------------------------------------- */

struct copy {
    char owner[256], mode[256];
    int from;
};

static int copy_flags(struct reader *r, const char **text, struct copy *c, struct err *err)
{
    char flag[256];
    const char *value;
    int rc;
    while ((rc = dockerfile_flag(text, flag, sizeof flag, err)) > 0) {
        if (dockerfile_is_flag(flag, "--chown", &value))
            (void)snprintf(c->owner, sizeof c->owner, "%s", value);
        else if (dockerfile_is_flag(flag, "--chmod", &value)) {
            if (!*value || strspn(value, "01234567") != strlen(value) || strlen(value) > 4)
                return err_set(err, ERR_USAGE, 0, "--chmod must be octal, like --chmod=755, not '%.40s'", value);
            (void)snprintf(c->mode, sizeof c->mode, "%s", value);
        } else if (dockerfile_is_flag(flag, "--link", &value))
            dockerfile_note(r, "%s --link is ignored", r->word);
        else if (dockerfile_is_flag(flag, "--from", &value)) {
            if (strcmp(r->word, "COPY") != 0)
                return err_set(err, ERR_USAGE, 0, "ADD has no --from: write COPY --from=%.80s", value);
            if (dockerfile_copy_from(r, value, &c->from, err) < 0)
                return -1;
        } else
            return err_set(err, ERR_USAGE, 0,
                           "%s: unknown option %.80s; expected --chown, --chmod or, with COPY, --from", r->word, flag);
    }
    return rc;
}

static bool is_archive(const char *name)
{
    static const char *const ends[] = {".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst"};
    size_t n = strlen(name);
    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        if (n > strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

/* A source, from the root of the context or the stage, without "." and "..". NULL with *err. */
static char *copy_source_path(struct reader *r, const char *given, bool is_add, const char *of, struct err *err)
{
    _cleanup_free_ char *plain = dockerfile_unescape(given);
    unsigned depth = 0;
    if (is_add && (strstr(plain, "://") || strncmp(plain, "git@", 4) == 0)) {
        (void)err_set(err, ERR_USAGE, 0, "ADD of %.100s: only files of the context; fetch it with RUN curl", plain);
        return NULL;
    }
    if (is_add && is_archive(plain)) {
        (void)err_set(err, ERR_USAGE, 0, "ADD would unpack %.100s: write COPY, then RUN tar -x", plain);
        return NULL;
    }
    for (const char *p = plain; *p;) { /* refuse ".." above the root, also in the middle */
        size_t n = strcspn(p, "/");
        if (n == 2 && strncmp(p, "..", 2) == 0) {
            if (depth-- == 0) {
                (void)err_set(err, ERR_USAGE, 0, "%s of '%.100s' leads out of %s", r->word, plain, of);
                return NULL;
            }
        } else if (n > 0 && !(n == 1 && *p == '.'))
            depth++;
        p += n + (p[n] == '/');
    }
    _cleanup_free_ char *clean = path_clean("/", plain);
    return xstrdup(clean[1] ? clean + 1 : ".");
}

static int read_copy(struct reader *r, const char *text, bool is_add, struct err *err)
{
    struct copy c = {.from = -1};
    _cleanup_strv_ struct strv words = {0};
    if (copy_flags(r, &text, &c, err) < 0 || no_heredoc(text, err) < 0)
        return -1;
    int json = dockerfile_json(text, &words, err);
    if (json < 0 || (json == 0 && dockerfile_words(text, r->escape, &r->vars, &words, err) < 0))
        return -1;
    if (words.n < 2)
        return err_set(err, ERR_USAGE, 0, "%s has one source or more, then the destination", r->word);
    const char *dest = words.v[words.n - 1];
    if (!*dest)
        return err_set(err, ERR_USAGE, 0, "the destination of %s is empty", r->word);
    if (words.n > 2 && dest[strlen(dest) - 1] != '/' && strcmp(dest, ".") != 0)
        return err_set(err, ERR_USAGE, 0, "with several sources the destination is a directory: write %.100s/", dest);
    for (size_t i = 0; i + 1 < words.n; i++) {
        _cleanup_free_ char *from =
            copy_source_path(r, words.v[i], is_add, c.from < 0 ? "the context" : "the stage", err);
        struct dockerfile_step *s = from ? dockerfile_add(r, DOCKERFILE_COPY, err) : NULL;
        if (!s)
            return -1;
        s->from = c.from;
        strv_add(&s->args, from);
        strv_add(&s->args, dest);
        strv_add(&s->args, c.owner[0] ? c.owner : "root"); /* as Docker does, whatever USER says */
        strv_add(&s->args, c.mode);
    }
    return 0;
}

/* --- ENV, WORKDIR, USER ------------------------------------------------------------------------------------------- */

static void vars_forget(struct strv *v, const char *name)
{
    size_t n = strlen(name), kept = 0;
    for (size_t i = 0; i < v->n; i++)
        if (strncmp(v->v[i], name, n) == 0 && v->v[i][n] == '=')
            free(v->v[i]);
        else
            v->v[kept++] = v->v[i];
    if (v->v)
        v->v[kept] = NULL;
    v->n = kept;
}

static int env_pair(struct strv *to, const char *name, size_t n, const char *value, struct err *err)
{
    if (!dockerfile_is_name(name, n))
        return err_set(err, ERR_USAGE, 0, "'%.*s' is not a name for a variable: letters, digits and '_'",
                       (int)(n > 64 ? 64 : n), name);
    strv_take(to, xstrndup(name, n));
    strv_add(to, value);
    return 0;
}

static int read_env(struct reader *r, const char *text, struct err *err)
{
    _cleanup_strv_ struct strv words = {0}, pairs = {0};
    size_t n = strcspn(text, " \t=");
    if (text[n] != '=') { /* ENV NAME the rest of the line */
        const char *rest = text + n + strspn(text + n, " \t");
        _cleanup_buf_ struct buf value = {0};
        if (!*rest)
            return err_set(err, ERR_USAGE, 0, "ENV has NAME=VALUE");
        if (dockerfile_words(rest, r->escape, &r->vars, &words, err) < 0)
            return -1;
        for (size_t i = 0; i < words.n; i++)
            buf_addf(&value, "%s%s", i ? " " : "", words.v[i]);
        if (env_pair(&pairs, text, n, buf_str(&value), err) < 0)
            return -1;
    } else {
        if (dockerfile_words(text, r->escape, &r->vars, &words, err) < 0)
            return -1;
        for (size_t i = 0; i < words.n; i++) {
            const char *eq = strchr(words.v[i], '=');
            if (!eq)
                return err_set(err, ERR_USAGE, 0, "'%.64s' has no '=': ENV has NAME=VALUE, with quotes around spaces",
                               words.v[i]);
            if (env_pair(&pairs, words.v[i], (size_t)(eq - words.v[i]), eq + 1, err) < 0)
                return -1;
        }
    }
    struct dockerfile_step *s = dockerfile_add(r, DOCKERFILE_ENV, err);
    if (!s)
        return -1;
    s->args = pairs;
    pairs = (struct strv){0};
    for (size_t i = 0; i + 1 < s->args.n; i += 2) {
        _cleanup_free_ char *value = dockerfile_unescape(s->args.v[i + 1]);
        const char *name = s->args.v[i];
        vars_forget(&r->vars.args, name);
        if (strstr(s->args.v[i + 1], "${")) /* only the node can expand it: later uses are left to the node, too */
            vars_forget(&r->vars.env, name);
        else
            dockerfile_vars_set(&r->vars.env, name, strlen(name), value);
    }
    return 0;
}

static int read_workdir(struct reader *r, const char *text, struct err *err)
{
    _cleanup_strv_ struct strv words = {0};
    if (dockerfile_words(text, r->escape, &r->vars, &words, err) < 0)
        return -1;
    if (words.n != 1 || !*words.v[0])
        return err_set(err, ERR_USAGE, 0, "WORKDIR has one path");
    r->made.workdir_set = true;
    return dockerfile_add_one(r, DOCKERFILE_WORKDIR, words.v[0], err);
}

static int read_user(struct reader *r, const char *text, struct err *err)
{
    _cleanup_strv_ struct strv words = {0};
    if (dockerfile_words(text, r->escape, &r->vars, &words, err) < 0)
        return -1;
    if (words.n != 1 || !*words.v[0] || strchr(words.v[0], '$'))
        return err_set(err, ERR_USAGE, 0, "USER has one name");
    char *colon = strchr(words.v[0], ':');
    if (colon) {
        dockerfile_note(r, "USER: the group %.60s is ignored; the user's own groups hold", colon + 1);
        *colon = '\0';
    }
    if (isdigit((unsigned char)words.v[0][0])) {
        if (strcmp(words.v[0], "0") != 0)
            return err_set(err, ERR_USAGE, 0, "USER %.20s: a number names no user here; write its name", words.v[0]);
        r->made.user_set = true;
        return dockerfile_add_one(r, DOCKERFILE_USER, "root", err);
    }
    r->made.user_set = true;
    return dockerfile_add_one(r, DOCKERFILE_USER, words.v[0], err);
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

static const char *const known[] = {
    "FROM",   "ARG",   "RUN",    "CMD",        "ENTRYPOINT", "COPY",        "ADD",   "ENV",     "WORKDIR", "USER",
    "EXPOSE", "LABEL", "VOLUME", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK", "SHELL", "ONBUILD", NULL};

static int read_instruction(struct reader *r, const char *text, struct err *err)
{
    const char *w = r->word;
    if (strcmp(w, "FROM") == 0)
        return dockerfile_from(r, text, err);
    if (strcmp(w, "ARG") == 0)
        return dockerfile_arg(r, text, err);
    if (r->d->nstages == 0)
        return err_set(err, ERR_USAGE, 0, "%s before FROM: the first instruction is FROM IMAGE", w);
    if (strcmp(w, "RUN") == 0)
        return read_run(r, text, err);
    if (strcmp(w, "CMD") == 0 || strcmp(w, "ENTRYPOINT") == 0)
        return read_command(r, text, w[0] == 'E', err);
    if (strcmp(w, "COPY") == 0 || strcmp(w, "ADD") == 0)
        return read_copy(r, text, w[0] == 'A', err);
    if (strcmp(w, "ENV") == 0)
        return read_env(r, text, err);
    if (strcmp(w, "WORKDIR") == 0)
        return read_workdir(r, text, err);
    if (strcmp(w, "USER") == 0)
        return read_user(r, text, err);
    if (strcmp(w, "SHELL") == 0)
        return err_set(err, ERR_USAGE, 0, "SHELL is not supported: commands run in bash, or sh; name another in RUN");
    if (strcmp(w, "ONBUILD") == 0)
        return err_set(err, ERR_USAGE, 0, "ONBUILD is not supported: put the instruction where it is to run");
    dockerfile_note(r, "%s has no meaning for a template and is ignored", w);
    return 0;
}

static int read_line(struct reader *r, const char *line, struct err *err)
{
    char word[24];
    size_t n = strcspn(line, " \t");
    if (n == 0 || n >= sizeof word)
        return err_set(err, ERR_USAGE, 0, "'%.40s' is not an instruction", line);
    for (size_t i = 0; i < n; i++)
        word[i] = (char)toupper((unsigned char)line[i]);
    word[n] = '\0';
    r->word = NULL;
    for (size_t i = 0; known[i]; i++)
        if (strcmp(known[i], word) == 0)
            r->word = known[i];
    if (!r->word) {
        const char *near = text_nearest(word, known);
        _cleanup_buf_ struct buf safe = {0};
        text_add_safe(&safe, word, sizeof word);
        return err_set(err, ERR_USAGE, 0, "%s is not an instruction%s%s%s", buf_str(&safe),
                       near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    return read_instruction(r, line + n + strspn(line + n, " \t"), err);
}

static int read_instructions(struct reader *r, const char *text, size_t n, const char *target, struct err *err)
{
    struct dockerfile_lines lines;
    _cleanup_buf_ struct buf line = {0};
    int rc;
    dockerfile_lines_start(&lines, text, n);
    r->escape = lines.escape;
    while ((rc = dockerfile_lines_next(&lines, &line, &r->line, err)) > 0)
        if (read_line(r, buf_str(&line), err) < 0)
            return -1;
    if (rc < 0)
        return -1;
    r->line = lines.line;
    if (r->d->nstages == 0)
        return err_set(err, ERR_USAGE, 0, "there is no FROM: the first instruction is FROM IMAGE");
    if (dockerfile_choose(r, target, err) < 0)
        return -1;
    /* Commands in sandboxes run as `user`, unless the file names another. */
    if (!r->made.user_set && dockerfile_add_one(r, DOCKERFILE_USER, "user", err) < 0)
        return -1;
    if (!r->made.workdir_set && dockerfile_add_one(r, DOCKERFILE_WORKDIR, "/home/user", err) < 0)
        return -1;
    r->d->stages[r->d->nstages - 1].end = r->d->nsteps;
    set_start(r);
    return 0;
}

int dockerfile_parse(const char *text, size_t n, const char *name, const struct strv *args, const char *target,
                     struct dockerfile *ret, struct err *err)
{
    struct reader r = {.d = ret, .given = args, .line = 1};
    *ret = (struct dockerfile){0};
    int rc = n > DOCKERFILE_MAX ? err_set(err, ERR_USAGE, 0, "the file is larger than %d bytes", DOCKERFILE_MAX)
                                : read_instructions(&r, text, n, target, err);
    strv_done(&r.vars.env);
    strv_done(&r.vars.args);
    strv_done(&r.outer);
    dockerfile_made_done(&r.made);
    return rc < 0 ? err_wrap(err, "%s:%u", name, r.line) : 0;
}

void dockerfile_done(struct dockerfile *d)
{
    for (size_t i = 0; i < d->nsteps; i++)
        strv_done(&d->steps[i].args);
    for (size_t i = 0; i < d->nstages; i++) {
        free(d->stages[i].name);
        free(d->stages[i].from);
        dockerfile_made_done(&d->stages[i].made);
    }
    free(d->stages);
    free(d->steps);
    free(d->start);
    strv_done(&d->notes);
    *d = (struct dockerfile){0};
}
