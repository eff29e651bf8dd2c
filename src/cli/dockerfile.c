/* The instructions of a Dockerfile. */
#include "cli/dockerfile.h"

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

enum { FLAGS_MAX = 16 };

static const char *const types[] = {"RUN", "COPY", "ENV", "WORKDIR", "USER"};
const char *dockerfile_type_name(enum dockerfile_type t) { return types[t]; }

/* A file that is being read. */
struct reader {
    struct dockerfile *d;
    const char *name; /* of the file */
    const struct strv *given;
    struct dockerfile_vars vars;
    struct strv outer; /* ARG before FROM */
    char escape;
    unsigned line;
    const char *word; /* the instruction */
    bool user_set, workdir_set;
    struct strv entry, cmd;
    bool entry_shell, cmd_shell, has_entry, has_cmd;
};

static struct dockerfile_step *add(struct reader *r, enum dockerfile_type type, struct err *err)
{
    struct dockerfile *d = r->d;
    if (d->nsteps >= DOCKERFILE_STEPS_MAX) {
        (void)err_set(err, ERR_USAGE, 0, "more than %d steps", DOCKERFILE_STEPS_MAX);
        return NULL;
    }
    MEM_GROW(d->steps, d->nsteps, d->cap);
    struct dockerfile_step *s = &d->steps[d->nsteps++];
    *s = (struct dockerfile_step){.type = type, .line = r->line};
    return s;
}

static int add_one(struct reader *r, enum dockerfile_type type, const char *arg, struct err *err)
{
    struct dockerfile_step *s = add(r, type, err);
    if (!s)
        return -1;
    strv_add(&s->args, arg);
    return 0;
}

static void note(struct reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct reader *r, const char *fmt, ...)
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
static int next_flag(const char **text, char *flag, size_t room, struct err *err)
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

static bool is_flag(const char *flag, const char *name, const char **value)
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

/* --- FROM and ARG ------------------------------------------------------------------------------------------------- */

static int read_from(struct reader *r, const char *text, struct err *err)
{
    char flag[256];
    const char *value;
    int rc;
    _cleanup_strv_ struct strv words = {0};
    const struct dockerfile_vars outer = {.args = r->outer}; /* borrowed */
    if (r->d->from)
        return err_set(err, ERR_USAGE, 0,
                       "a second FROM (the first is on line %u): templates have one stage; build the other one as a "
                       "template of its own and start FROM hutch/NAME",
                       r->d->from_line);
    while ((rc = next_flag(&text, flag, sizeof flag, err)) > 0) {
        if (!is_flag(flag, "--platform", &value))
            return err_set(err, ERR_USAGE, 0, "FROM has no option %s; --platform is the only one", flag);
        note(r, "FROM --platform is ignored: the image is taken for this machine");
    }
    if (rc < 0 || dockerfile_words(text, r->escape, &outer, &words, err) < 0)
        return -1;
    if (words.n != 1 && !(words.n == 3 && strcasecmp(words.v[1], "AS") == 0))
        return err_set(err, ERR_USAGE, 0, "FROM has one image, like FROM debian:bookworm, and perhaps AS NAME");
    if (strcmp(words.v[0], "scratch") == 0)
        return err_set(err, ERR_USAGE, 0, "FROM scratch has nothing that could run a command; start from an image");
    if (strchr(words.v[0], '$'))
        return err_set(err, ERR_USAGE, 0,
                       "a variable in '%.80s' has no value: declare it with ARG NAME=VALUE before FROM", words.v[0]);
    r->d->from = xstrdup(words.v[0]);
    r->d->from_line = r->line;
    /* What Docker starts with. */
    return add_one(r, DOCKERFILE_USER, "root", err) < 0 ? -1 : add_one(r, DOCKERFILE_WORKDIR, "/", err);
}

static bool is_name(const char *s, size_t n)
{
    if (n == 0 || isdigit((unsigned char)s[0]))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && s[i] != '_')
            return false;
    return true;
}

/* The node reads "\$" as a dollar; here the value itself is wanted. */
static char *unescape(const char *s)
{
    _cleanup_buf_ struct buf out = {0};
    for (; *s; s++) {
        if (s[0] == '\\' && s[1] == '$')
            s++;
        buf_addc(&out, *s);
    }
    return xstrdup(buf_str(&out));
}

static int read_arg(struct reader *r, const char *text, struct err *err)
{
    _cleanup_strv_ struct strv words = {0};
    struct strv *to = r->d->from ? &r->vars.args : &r->outer;
    const struct dockerfile_vars outer = {.args = r->outer};
    if (dockerfile_words(text, r->escape, r->d->from ? &r->vars : &outer, &words, err) < 0)
        return -1;
    if (words.n == 0)
        return err_set(err, ERR_USAGE, 0, "ARG has NAME or NAME=VALUE");
    for (size_t i = 0; i < words.n; i++) {
        const char *w = words.v[i], *eq = strchr(w, '=');
        size_t n = eq ? (size_t)(eq - w) : strlen(w);
        if (!is_name(w, n))
            return err_set(err, ERR_USAGE, 0, "'%.64s' is no name of a variable: letters, digits and '_'", w);
        const char *given = dockerfile_vars_get(r->given, w, n), *before = dockerfile_vars_get(&r->outer, w, n);
        _cleanup_free_ char *standard = eq ? unescape(eq + 1) : NULL;
        const char *value = given ? given : standard ? standard : r->d->from ? before : NULL;
        if (value)
            dockerfile_vars_set(to, w, n, value);
    }
    return 0;
}

/* --- RUN, CMD, ENTRYPOINT ----------------------------------------------------------------------------------------- */

/* Values of ARG hold for the commands, not for what is made. */
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
    while ((rc = next_flag(text, flag, sizeof flag, err)) > 0) {
        if (is_flag(flag, "--mount", &value) && strstr(value, "type=cache"))
            note(r, "RUN --mount=type=cache is ignored: steps are cached as a whole");
        else if (is_flag(flag, "--network", &value) && strcmp(value, "default") == 0)
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
    else /* what only looks like an exec form is for the shell, as Docker has it */
        buf_adds(&command, text);
    if (!*text)
        return err_set(err, ERR_USAGE, 0, "RUN needs a command");
    return add_one(r, DOCKERFILE_RUN, buf_str(&command), err);
}

static int read_command(struct reader *r, const char *text, bool entry, struct err *err)
{
    struct strv *to = entry ? &r->entry : &r->cmd;
    strv_done(to);
    if (no_heredoc(text, err) < 0)
        return -1;
    struct err not_json;
    int json = dockerfile_json(text, to, &not_json);
    if (json < 0)
        strv_done(to);
    if (json <= 0)
        strv_add(to, text);
    *(entry ? &r->entry_shell : &r->cmd_shell) = json <= 0;
    *(entry ? &r->has_entry : &r->has_cmd) = to->n > 0 && *to->v[0];
    return 0;
}

/* ENTRYPOINT with CMD as its arguments; a shell form takes none. */
static void set_start(struct reader *r)
{
    _cleanup_buf_ struct buf out = {0};
    if (r->has_entry && r->entry_shell)
        buf_adds(&out, r->entry.v[0]);
    else if (r->has_entry) {
        dockerfile_quote(&r->entry, &out);
        if (r->has_cmd) {
            struct strv shell = {0};
            if (r->cmd_shell) {
                strv_add(&shell, "/bin/sh");
                strv_add(&shell, "-c");
                strv_add(&shell, r->cmd.v[0]);
            }
            buf_addc(&out, ' ');
            dockerfile_quote(r->cmd_shell ? &shell : &r->cmd, &out);
            strv_done(&shell);
        }
    } else if (r->has_cmd && r->cmd_shell)
        buf_adds(&out, r->cmd.v[0]);
    else if (r->has_cmd)
        dockerfile_quote(&r->cmd, &out);
    if (out.n)
        r->d->start = xstrdup(buf_str(&out));
}

/* --- COPY and ADD ------------------------------------------------------------------------------------------------- */

struct copy {
    char owner[256], mode[256];
};

static int copy_flags(struct reader *r, const char **text, struct copy *c, struct err *err)
{
    char flag[256];
    const char *value;
    int rc;
    while ((rc = next_flag(text, flag, sizeof flag, err)) > 0) {
        if (is_flag(flag, "--chown", &value))
            (void)snprintf(c->owner, sizeof c->owner, "%s", value);
        else if (is_flag(flag, "--chmod", &value)) {
            if (!*value || strspn(value, "01234567") != strlen(value) || strlen(value) > 4)
                return err_set(err, ERR_USAGE, 0, "--chmod must be octal, like --chmod=755, not '%.40s'", value);
            (void)snprintf(c->mode, sizeof c->mode, "%s", value);
        } else if (is_flag(flag, "--link", &value))
            note(r, "%s --link is ignored", r->word);
        else if (is_flag(flag, "--from", &value))
            return err_set(err, ERR_USAGE, 0,
                           "%s --from=%.80s: templates have one stage; copy from the context, or start FROM hutch/NAME",
                           r->word, value);
        else
            return err_set(err, ERR_USAGE, 0, "%s has no option %.80s here; --chown and --chmod are known", r->word,
                           flag);
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

/* A source, from the context's root, without "." and "..". NULL with *err. */
static char *source(struct reader *r, const char *given, bool is_add, struct err *err)
{
    _cleanup_free_ char *plain = unescape(given);
    unsigned depth = 0;
    if (is_add && (strstr(plain, "://") || strncmp(plain, "git@", 4) == 0)) {
        (void)err_set(err, ERR_USAGE, 0, "ADD of %.100s: only files of the context; fetch it with RUN curl", plain);
        return NULL;
    }
    if (is_add && is_archive(plain)) {
        (void)err_set(err, ERR_USAGE, 0, "ADD would unpack %.100s: write COPY, then RUN tar -x", plain);
        return NULL;
    }
    for (const char *p = plain; *p;) { /* ".." may not lead out, however it is mixed */
        size_t n = strcspn(p, "/");
        if (n == 2 && strncmp(p, "..", 2) == 0) {
            if (depth-- == 0) {
                (void)err_set(err, ERR_USAGE, 0, "%s of '%.100s' leads out of the context", r->word, plain);
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
    struct copy c = {0};
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
        _cleanup_free_ char *from = source(r, words.v[i], is_add, err);
        struct dockerfile_step *s = from ? add(r, DOCKERFILE_COPY, err) : NULL;
        if (!s)
            return -1;
        strv_add(&s->args, from);
        strv_add(&s->args, dest);
        strv_add(&s->args, c.owner[0] ? c.owner : "root"); /* as Docker has it, whoever USER is */
        strv_add(&s->args, c.mode);
    }
    return 0;
}

/* --- ENV, WORKDIR, USER ------------------------------------------------------------------------------------------- */

static void forget(struct strv *v, const char *name)
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
    if (!is_name(name, n))
        return err_set(err, ERR_USAGE, 0, "'%.*s' is no name of a variable: letters, digits and '_'",
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
    struct dockerfile_step *s = add(r, DOCKERFILE_ENV, err);
    if (!s)
        return -1;
    s->args = pairs;
    pairs = (struct strv){0};
    for (size_t i = 0; i + 1 < s->args.n; i += 2) {
        _cleanup_free_ char *value = unescape(s->args.v[i + 1]);
        const char *name = s->args.v[i];
        forget(&r->vars.args, name);
        if (strstr(s->args.v[i + 1], "${")) /* the node has to complete it: it is left to it from now on */
            forget(&r->vars.env, name);
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
    r->workdir_set = true;
    return add_one(r, DOCKERFILE_WORKDIR, words.v[0], err);
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
        note(r, "USER: the group %.60s is ignored; the user's own groups hold", colon + 1);
        *colon = '\0';
    }
    if (isdigit((unsigned char)words.v[0][0])) {
        if (strcmp(words.v[0], "0") != 0)
            return err_set(err, ERR_USAGE, 0, "USER %.20s: a number names no user here; write its name", words.v[0]);
        r->user_set = true;
        return add_one(r, DOCKERFILE_USER, "root", err);
    }
    r->user_set = true;
    return add_one(r, DOCKERFILE_USER, words.v[0], err);
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

static const char *const known[] = {
    "FROM",   "ARG",   "RUN",    "CMD",        "ENTRYPOINT", "COPY",        "ADD",   "ENV",     "WORKDIR", "USER",
    "EXPOSE", "LABEL", "VOLUME", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK", "SHELL", "ONBUILD", NULL};

static int instruction(struct reader *r, const char *text, struct err *err)
{
    const char *w = r->word;
    if (strcmp(w, "FROM") == 0)
        return read_from(r, text, err);
    if (strcmp(w, "ARG") == 0)
        return read_arg(r, text, err);
    if (!r->d->from)
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
    note(r, "%s has no meaning for a template and is ignored", w);
    return 0;
}

static int read_line(struct reader *r, const char *line, struct err *err)
{
    char word[24];
    size_t n = strcspn(line, " \t");
    if (n == 0 || n >= sizeof word)
        return err_set(err, ERR_USAGE, 0, "'%.40s' is no instruction", line);
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
        return err_set(err, ERR_USAGE, 0, "%s is no instruction%s%s%s", buf_str(&safe), near ? "; did you mean " : "",
                       near ? near : "", near ? "?" : "");
    }
    return instruction(r, line + n + strspn(line + n, " \t"), err);
}

static int read_all(struct reader *r, const char *text, size_t n, struct err *err)
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
    if (!r->d->from)
        return err_set(err, ERR_USAGE, 0, "there is no FROM: the first instruction is FROM IMAGE");
    /* Sandboxes are used by `user`, unless the file says otherwise. */
    if (!r->user_set && add_one(r, DOCKERFILE_USER, "user", err) < 0)
        return -1;
    if (!r->workdir_set && add_one(r, DOCKERFILE_WORKDIR, "/home/user", err) < 0)
        return -1;
    set_start(r);
    return 0;
}

int dockerfile_parse(const char *text, size_t n, const char *name, const struct strv *args, struct dockerfile *ret,
                     struct err *err)
{
    struct reader r = {.d = ret, .name = name, .given = args, .line = 1};
    *ret = (struct dockerfile){0};
    int rc = n > DOCKERFILE_MAX ? err_set(err, ERR_USAGE, 0, "the file is larger than %d bytes", DOCKERFILE_MAX)
                                : read_all(&r, text, n, err);
    strv_done(&r.vars.env);
    strv_done(&r.vars.args);
    strv_done(&r.outer);
    strv_done(&r.entry);
    strv_done(&r.cmd);
    return rc < 0 ? err_wrap(err, "%s:%u", name, r.line) : 0;
}

void dockerfile_done(struct dockerfile *d)
{
    for (size_t i = 0; i < d->nsteps; i++)
        strv_done(&d->steps[i].args);
    free(d->steps);
    free(d->from);
    free(d->start);
    strv_done(&d->notes);
    *d = (struct dockerfile){0};
}
