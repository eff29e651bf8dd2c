/* dockerfile-stages.c - stages of a Dockerfile: FROM, the ARG before and in them, COPY --from, and which the result needs. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/files/dockerfile-int.h"

void dockerfile_made_done(struct dockerfile_made *m)
{
    strv_done(&m->env);
    strv_done(&m->entry);
    strv_done(&m->cmd);
    *m = (struct dockerfile_made){0};
}

static void copy_strv(struct strv *to, const struct strv *from)
{
    for (size_t i = 0; i < from->n; i++)
        strv_add(to, from->v[i]);
}

static void made_copy(struct dockerfile_made *to, const struct dockerfile_made *from)
{
    *to = *from;
    to->env = to->entry = to->cmd = (struct strv){0};
    copy_strv(&to->env, &from->env);
    copy_strv(&to->entry, &from->entry);
    copy_strv(&to->cmd, &from->cmd);
}

/* --- names -------------------------------------------------------------------------------------------------------- */

bool dockerfile_is_name(const char *s, size_t n)
{
    if (n == 0 || isdigit((unsigned char)s[0]))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && s[i] != '_')
            return false;
    return true;
}

char *dockerfile_unescape(const char *s)
{
    _cleanup_buf_ struct buf out = {0};
    for (; *s; s++) {
        if (s[0] == '\\' && s[1] == '$')
            s++;
        buf_addc(&out, *s);
    }
    return xstrdup(buf_str(&out));
}

static bool is_stage_name(const char *s)
{
    return isalpha((unsigned char)s[0]) && strlen(s) <= 64 &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == strlen(s);
}

/* A stage with a FROM, by its name. -1: none. */
static int stage_by_name(const struct dockerfile *d, const char *name)
{
    for (size_t i = 0; i < d->nstages; i++)
        if (d->stages[i].name && strcasecmp(d->stages[i].name, name) == 0)
            return (int)i;
    return -1;
}

/* Counts stages with a FROM, from 0. -1: there are fewer. */
static int stage_by_number(const struct dockerfile *d, uint64_t number)
{
    for (size_t i = 0; i < d->nstages; i++)
        if (!d->stages[i].image && number-- == 0)
            return (int)i;
    return -1;
}

static struct dockerfile_stage *add_stage(struct reader *r, struct err *err)
{
    struct dockerfile *d = r->d;
    if (d->nstages >= DOCKERFILE_STAGES_MAX) {
        (void)err_set(err, ERR_USAGE, 0, "more than %d stages, images of COPY --from included", DOCKERFILE_STAGES_MAX);
        return NULL;
    }
    MEM_GROW(d->stages, d->nstages, d->stages_cap);
    struct dockerfile_stage *s = &d->stages[d->nstages++];
    *s = (struct dockerfile_stage){.from_stage = -1, .line = r->line, .end = d->nsteps};
    return s;
}

/* --- FROM --------------------------------------------------------------------------------------------------------- */

/* The stage that was being read is complete. */
static void close_stage(struct reader *r)
{
    if (r->d->nstages == 0)
        return;
    struct dockerfile_stage *s = &r->d->stages[r->stage];
    s->end = r->d->nsteps;
    s->made = r->made;
    s->made.env = r->vars.env;
    r->made = (struct dockerfile_made){0};
    r->vars.env = (struct strv){0};
    strv_done(&r->vars.args);
}

static int stage_check_name(const struct reader *r, const char *name, struct err *err)
{
    int same = stage_by_name(r->d, name);
    if (!is_stage_name(name))
        return err_set(
            err, ERR_USAGE, 0,
            "'%.64s' is not a name for a stage: a letter, then letters, digits, '-', '_' and '.', 64 at most", name);
    if (same >= 0)
        return err_set(err, ERR_USAGE, 0, "a second stage '%s' (the first is on line %u)", name,
                       r->d->stages[same].line);
    for (size_t i = 0; i < r->d->nstages; i++)
        if (r->d->stages[i].image && strcasecmp(r->d->stages[i].from, name) == 0)
            return err_set(err, ERR_USAGE, 0, "line %u copies from stage '%s', which starts only here: put it before",
                           r->d->stages[i].line, name);
    return 0;
}

static int check_from(const char *from, struct err *err)
{
    if (strcmp(from, "scratch") == 0)
        return err_set(
            err, ERR_USAGE, 0,
            "FROM scratch has nothing that could run a command, and sandboxes are for running commands; start "
            "from an image");
    if (strchr(from, '$'))
        return err_set(err, ERR_USAGE, 0,
                       "a variable in '%.80s' has no value: declare it with ARG NAME=VALUE before the first FROM",
                       from);
    return 0;
}

static int begin_stage(struct reader *r, const char *from, const char *name, struct err *err)
{
    int parent = stage_by_name(r->d, from);
    close_stage(r);
    struct dockerfile_stage *s = add_stage(r, err);
    if (!s)
        return -1;
    r->stage = r->d->nstages - 1;
    s->name = name ? xstrdup(name) : NULL;
    s->from_stage = parent;
    if (parent < 0) { /* Docker's default */
        s->from = xstrdup(from);
        return dockerfile_add_one(r, DOCKERFILE_USER, "root", err) < 0
                   ? -1
                   : dockerfile_add_one(r, DOCKERFILE_WORKDIR, "/", err);
    }
    made_copy(&r->made, &r->d->stages[parent].made);
    r->vars.env = r->made.env;
    r->made.env = (struct strv){0};
    return 0;
}

int dockerfile_from(struct reader *r, const char *text, struct err *err)
{
    char flag[256];
    const char *value;
    int rc;
    _cleanup_strv_ struct strv words = {0};
    const struct dockerfile_vars outer = {.args = r->outer}; /* borrowed */
    while ((rc = dockerfile_flag(&text, flag, sizeof flag, err)) > 0) {
        if (!dockerfile_is_flag(flag, "--platform", &value))
            return err_set(err, ERR_USAGE, 0, "FROM has no option %s; --platform is the only one", flag);
        dockerfile_note(r, "FROM --platform is ignored: the image is taken for this machine");
    }
    if (rc < 0 || dockerfile_words(text, r->escape, &outer, &words, err) < 0)
        return -1;
    if ((words.n != 1 && !(words.n == 3 && strcasecmp(words.v[1], "AS") == 0)) || !*words.v[0])
        return err_set(err, ERR_USAGE, 0, "FROM has one image, like FROM debian:bookworm, and perhaps AS NAME");
    const char *name = words.n == 3 ? words.v[2] : NULL;
    if (check_from(words.v[0], err) < 0 || (name && stage_check_name(r, name, err) < 0))
        return -1;
    return begin_stage(r, words.v[0], name, err);
}

int dockerfile_arg(struct reader *r, const char *text, struct err *err)
{
    _cleanup_strv_ struct strv words = {0};
    bool inside = r->d->nstages > 0;
    struct strv *to = inside ? &r->vars.args : &r->outer;
    const struct dockerfile_vars outer = {.args = r->outer};
    if (dockerfile_words(text, r->escape, inside ? &r->vars : &outer, &words, err) < 0)
        return -1;
    if (words.n == 0)
        return err_set(err, ERR_USAGE, 0, "ARG has NAME or NAME=VALUE");
    for (size_t i = 0; i < words.n; i++) {
        const char *w = words.v[i], *eq = strchr(w, '=');
        size_t n = eq ? (size_t)(eq - w) : strlen(w);
        if (!dockerfile_is_name(w, n))
            return err_set(err, ERR_USAGE, 0, "'%.64s' is not a name for a variable: letters, digits and '_'", w);
        const char *given = dockerfile_vars_get(r->given, w, n), *before = dockerfile_vars_get(&r->outer, w, n);
        _cleanup_free_ char *standard = eq ? dockerfile_unescape(eq + 1) : NULL;
        const char *value = given ? given : standard ? standard : inside ? before : NULL;
        if (value)
            dockerfile_vars_set(to, w, n, value);
    }
    return 0;
}

/* --- COPY --from -------------------------------------------------------------------------------------------------- */

int dockerfile_copy_from(struct reader *r, const char *value, int *ret, struct err *err)
{
    struct dockerfile *d = r->d;
    uint64_t number;
    bool numbered = num_u64(value, &number);
    int stage = numbered ? stage_by_number(d, number) : stage_by_name(d, value);
    if (!*value)
        return err_set(err, ERR_USAGE, 0, "COPY --from needs a stage or an image, like --from=build");
    if (stage == (int)r->stage)
        return err_set(err, ERR_USAGE, 0, "COPY --from=%.80s names the stage it stands in; name an earlier one", value);
    if (numbered && stage < 0)
        return err_set(err, ERR_USAGE, 0, "COPY --from=%.20s: no earlier stage has this number; the first one is 0",
                       value);
    if (stage < 0 && strchr(value, '$'))
        return err_set(err, ERR_USAGE, 0,
                       "COPY --from=%.80s: no variables here; name a stage that is FROM the variable", value);
    if (stage < 0 && check_from(value, err) < 0)
        return -1;
    for (size_t i = 0; stage < 0 && i < d->nstages; i++)
        if (d->stages[i].image && strcmp(d->stages[i].from, value) == 0)
            stage = (int)i;
    if (stage < 0) {
        struct dockerfile_stage *s = add_stage(r, err);
        if (!s)
            return -1;
        s->image = true;
        s->from = xstrdup(value);
        stage = (int)d->nstages - 1;
    }
    *ret = stage;
    return 0;
}

/* --- which are needed --------------------------------------------------------------------------------------------- */

static int find_target(struct reader *r, const char *target, struct err *err)
{
    uint64_t number;
    if (!target)
        return (int)r->stage;
    int stage = num_u64(target, &number) ? stage_by_number(r->d, number) : stage_by_name(r->d, target);
    if (stage >= 0)
        return stage;
    _cleanup_buf_ struct buf names = {0};
    for (size_t i = 0; i < r->d->nstages; i++)
        if (r->d->stages[i].name)
            buf_addf(&names, "%s%s", names.n ? ", " : "", r->d->stages[i].name);
    return err_set(err, ERR_USAGE, 0, "there is no stage '%.64s' (--target); %s%.200s", target,
                   names.n ? "there are " : "no stage has a name: write FROM IMAGE AS NAME", buf_str(&names));
}

/* Steps of stage i: an image has none, stages with a FROM follow each other. */
static size_t first_step(const struct dockerfile *d, size_t i)
{
    while (i-- > 0)
        if (!d->stages[i].image)
            return d->stages[i].end;
    return 0;
}

static void stage_mark_needed(const struct dockerfile *d, int stage, bool needed[DOCKERFILE_STAGES_MAX])
{
    const struct dockerfile_stage *s = &d->stages[stage];
    if (needed[stage])
        return;
    needed[stage] = true;
    if (s->from_stage >= 0)
        stage_mark_needed(d, s->from_stage, needed); /* always an earlier one, so the recursion ends */
    for (size_t i = s->image ? s->end : first_step(d, (size_t)stage); i < s->end; i++)
        if (d->steps[i].from >= 0)
            stage_mark_needed(d, d->steps[i].from, needed);
}

/* Moves stage i with its steps to the end of `to`. */
static void move_stage(struct dockerfile *d, size_t i, const int number[], struct dockerfile *to)
{
    struct dockerfile_stage *s = &d->stages[i];
    for (size_t k = s->image ? s->end : first_step(d, i); k < s->end; k++) {
        MEM_GROW(to->steps, to->nsteps, to->cap);
        struct dockerfile_step *step = &to->steps[to->nsteps++];
        *step = d->steps[k];
        step->from = step->from >= 0 ? number[step->from] : -1;
        d->steps[k].args = (struct strv){0};
    }
    MEM_GROW(to->stages, to->nstages, to->stages_cap);
    struct dockerfile_stage *made = &to->stages[to->nstages++];
    *made = *s;
    made->from_stage = s->from_stage >= 0 ? number[s->from_stage] : -1;
    made->end = to->nsteps;
    s->name = s->from = NULL;
    s->made = (struct dockerfile_made){0};
}

int dockerfile_choose(struct reader *r, const char *target, struct err *err)
{
    struct dockerfile *d = r->d, kept = {0};
    bool needed[DOCKERFILE_STAGES_MAX] = {false};
    int number[DOCKERFILE_STAGES_MAX], n = 0;
    int stage = find_target(r, target, err);
    if (stage < 0)
        return -1;
    close_stage(r);
    stage_mark_needed(d, stage, needed);
    for (int pass = 0; pass < 2; pass++) /* images first: a stage copies only from what is before it */
        for (size_t i = 0; i < d->nstages; i++)
            if (needed[i] && d->stages[i].image == (pass == 0))
                number[i] = n++;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < d->nstages; i++)
            if (needed[i] && d->stages[i].image == (pass == 0))
                move_stage(d, i, number, &kept);
    kept.notes = d->notes;
    d->notes = (struct strv){0};
    dockerfile_done(d);
    *d = kept;
    r->stage = d->nstages - 1;
    made_copy(&r->made, &d->stages[r->stage].made);
    return 0;
}
