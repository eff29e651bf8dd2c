/* pty.c - makes, lists, resizes and ends terminals. */
#include "api/daytona/pty.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/mem.h"
#include "base/num.h"

enum { USUAL_COLS = 80, USUAL_ROWS = 24, ENVS_MAX = 256, ENVS_TEXT_MAX = 64 * 1024 };

/* $1: name. Sets $d; a terminal whose shell has ended is removed. `gone` is true of such a one. */
#define PTYS                                                                                                      \
    DAYTONA_ALIVE                                                                                                 \
    "gone() { [ -e \"$d/pid\" ] && ! alive && rm -rf \"$d\"; }\n"                                                 \
    "print() { p=; [ ! -e \"$d/pid\" ] || read -r p <\"$d/pid\"; printf '%s\\0%s\\0%s\\0' \"${d##*/p-}\" \"$p\" " \
    "\"$(cat "                                                                                                    \
    "\"$d/size\")\"; cat \"$d/info\"; }\n"
#define FIND_PTY                                      \
    "d=" DAYTONA_SESSIONS "/p-$1\n" PTYS DAYTONA_OURS \
    " && [ -d \"$d\" ] && ! gone || { echo \"PROCESS_NOT_FOUND terminal '$1' not found\" >&2; exit 1; }\n"

/* $2: size, $3: time made, $4: lazy, $5: cwd, $6: environment, $7: how many there may be. */
static const char script_make[] =
    "d=" DAYTONA_SESSIONS "/p-$1\n" PTYS DAYTONA_MAKE_OURS
    "! [ -d \"$d\" ] || gone || { echo \"CONFLICT terminal '$1' exists already\" >&2; exit 1; }\n"
    "[ -z \"$5\" ] || [ -d \"$5\" ] || { echo \"FILE_NOT_FOUND the directory '$5' is not there\" >&2; exit 1; }\n"
    "n=0; me=$d; for d in " DAYTONA_SESSIONS "/p-*; do ! [ -d \"$d\" ] || gone || n=$((n+1)); done; d=$me\n"
    "[ $n -lt $7 ] || { echo \"CONFLICT the sandbox has $n terminals, which is the limit\" >&2; exit 1; }\n"
    "mkdir \"$d\" && printf %s \"$2\" >\"$d/size\" && printf '%s\\0%s\\0%s\\0%s\\0' \"$3\" \"$4\" \"$5\" \"$6\" "
    ">\"$d/info\" && print\n";
static const char script_find[] = FIND_PTY "print\n";
static const char script_list[] = PTYS "for d in " DAYTONA_SESSIONS "/p-*; do ! [ -d \"$d\" ] || gone || print; done\n";
static const char script_resize[] =
    FIND_PTY "printf %s \"$2\" >\"$d/size\"\n"
             "[ ! -e \"$d/pid\" ] || { read -r p <\"$d/pid\"; "
             "stty cols \"${2%% *}\" rows \"${2##* }\" <\"/proc/$p/fd/0\" || exit 1; }\n"
             "print\n";
/* What began in the terminal has its mark, as long as it kept its environment. */
static const char script_end[] = FIND_PTY "for e in $(grep -lsF \"" DAYTONA_MARK "\" /proc/[0-9]*/environ); do\n"
                                          "p=${e#/proc/}; kill -9 \"${p%%/*}\" 2>/dev/null\n"
                                          "done\n"
                                          "rm -rf \"$d\"\n";

/* --- what one is made with ------------------------------------------------------------------------------------------ */

void daytona_pty_done(struct daytona_pty *t)
{
    free(t->name);
    free(t->cwd);
    json_decref(t->envs);
}

bool daytona_pty_set_size(struct daytona_pty *t, int64_t cols, int64_t rows, struct err *err)
{
    if (cols < 0 || cols > DAYTONA_PTY_SIZE_MAX || rows < 0 || rows > DAYTONA_PTY_SIZE_MAX) {
        (void)err_set(err, ERR_USAGE, 0, "'cols' and 'rows' are from 1 to %d", DAYTONA_PTY_SIZE_MAX);
        return false;
    }
    t->cols = (uint16_t)(cols ? cols : USUAL_COLS);
    t->rows = (uint16_t)(rows ? rows : USUAL_ROWS);
    return true;
}

bool daytona_pty_set_envs(struct daytona_pty *t, json_t *envs, struct err *err)
{
    const char *name;
    json_t *v;
    if (envs && (!json_is_object(envs) || json_object_size(envs) > ENVS_MAX)) {
        (void)err_set(err, ERR_USAGE, 0, "'envs' must be an object of at most %d variables", ENVS_MAX);
        return false;
    }
    json_object_foreach(envs, name, v)
    {
        if (!json_is_string(v) || !*name || strchr(name, '=')) {
            (void)err_set(err, ERR_USAGE, 0, "'envs.%.40s' must be a string, with a name without '='", name);
            return false;
        }
    }
    t->envs = envs ? json_incref(envs) : json_object();
    return true;
}

/* False: it answered. */
static bool daytona_pty_may_be_made(struct api_call *c, const struct daytona_pty *t, const char *envs)
{
    if (!daytona_name_is_good(t->name))
        daytona_error(c->req, 400, NULL, "'id' is required: up to 128 letters, digits, dots, dashes and underscores");
    else if (!envs || strlen(envs) > ENVS_TEXT_MAX)
        daytona_error(c->req, 400, NULL, "'envs' is too long: at most %d bytes as JSON", ENVS_TEXT_MAX);
    else
        return true;
    return false;
}

void daytona_pty_make(struct api_call *c, struct sandbox *b, const struct daytona_pty *t, daytona_ran_fn *then)
{
    char size[16], when[24], most[8];
    _cleanup_free_ char *envs = json_dumps(t->envs, JSON_COMPACT);
    if (!daytona_pty_may_be_made(c, t, envs))
        return;
    (void)snprintf(size, sizeof size, "%u %u", t->cols, t->rows);
    (void)snprintf(when, sizeof when, "%llu", (unsigned long long)t->made_unix_ms);
    (void)snprintf(most, sizeof most, "%d", DAYTONA_PTYS_MAX);
    const char *const args[] = {t->name, size, when, t->lazy ? "1" : "0", t->cwd, envs, most, NULL};
    daytona_shell_script(c, b, script_make, args, DAYTONA_SCRIPT_S, then);
}

/* False: it answered. */
static bool daytona_pty_is_named(struct api_call *c)
{
    bool good = daytona_name_is_good(c->param[1]);
    if (!good)
        daytona_error(c->req, 404, "PROCESS_NOT_FOUND", "terminal '%.80s' not found", c->param[1]);
    return good;
}

void daytona_pty_find(struct api_call *c, struct sandbox *b, daytona_ran_fn *then)
{
    const char *const args[] = {c->param[1], NULL};
    if (daytona_pty_is_named(c))
        daytona_shell_script(c, b, script_find, args, DAYTONA_SCRIPT_S, then);
}

/* The files belong to the sandbox: what is wrong in them is left out. */
bool daytona_pty_read(const struct buf *out, size_t *at, struct daytona_pty *ret)
{
    const char *text[7] = {NULL};
    struct err err;
    int64_t cols = 0, rows = 0;
    int pid = 0;
    *ret = (struct daytona_pty){0};
    for (size_t i = 0; i < ARRAY_LEN(text); i++)
        if (!(text[i] = daytona_next_text(out, at)))
            return false;
    ret->name = xstrdup(text[0]);
    ret->pid = num_int(text[1], 1, INT32_MAX, &pid) ? (uint32_t)pid : 0;
    int c, r;
    const char *space = strchr(text[2], ' ');
    _cleanup_free_ char *first = xstrndup(text[2], space ? (size_t)(space - text[2]) : 0);
    if (space && num_int(first, 1, DAYTONA_PTY_SIZE_MAX, &c) && num_int(space + 1, 1, DAYTONA_PTY_SIZE_MAX, &r)) {
        cols = c;
        rows = r;
    }
    (void)daytona_pty_set_size(ret, cols, rows, &err);
    (void)num_u64(text[3], &ret->made_unix_ms);
    ret->lazy = strcmp(text[4], "1") == 0;
    ret->cwd = xstrdup(text[5]);
    json_t *envs = json_loads(text[6], 0, NULL);
    if (!daytona_pty_set_envs(ret, envs, &err))
        ret->envs = json_object();
    json_decref(envs);
    return true;
}

/* --- answers -------------------------------------------------------------------------------------------------------- */

/* Values of the environment may be secrets. */
static void daytona_pty_add(struct json *j, const struct api_call *c, const struct daytona_pty *t)
{
    char when[REPLY_TIME_MAX];
    const char *name;
    json_t *v;
    reply_time(t->made_unix_ms, when);
    json_obj(j, NULL);
    json_str(j, "id", t->name);
    json_bool(j, "active", t->pid != 0);
    json_u64(j, "cols", t->cols);
    json_u64(j, "rows", t->rows);
    json_str(j, "createdAt", when);
    json_str(j, "cwd", t->cwd[0] ? t->cwd : DAYTONA_HOME);
    json_obj(j, "envs");
    json_object_foreach(t->envs, name, v)
    {
        if (api_sees_contents(c))
            json_str(j, name, json_string_value(v));
    }
    json_end_obj(j);
    json_bool(j, "lazyStart", t->lazy);
    json_end_obj(j);
}

bool daytona_pty_take(struct http_req *r, const struct daytona_ran *ran, struct daytona_pty *ret)
{
    size_t at = 0;
    if (daytona_script_failed(r, ran))
        return false;
    if (daytona_pty_read(ran->out, &at, ret))
        return true;
    daytona_error(r, 409, NULL,
                  "the files of the terminal were changed inside the sandbox; end it and make another one");
    return false;
}

static void daytona_pty_answer_one(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_daytona_pty_ struct daytona_pty t = {0};
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!daytona_pty_take(r, ran, &t))
        return;
    json_start(&j, &out);
    daytona_pty_add(&j, api_call_of(r), &t);
    reply_json(r, 200, &out);
}

static void daytona_pty_answer_list(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    size_t at = 0;
    if (daytona_script_failed(r, ran))
        return;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_arr(&j, "sessions");
    for (struct daytona_pty t = {0}; daytona_pty_read(ran->out, &at, &t); daytona_pty_done(&t))
        daytona_pty_add(&j, api_call_of(r), &t);
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(r, 200, &out);
}

static void daytona_pty_answer_end(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_buf_ struct buf out = {0};
    buf_adds(&out, "{\"message\":\"the terminal was ended\"}");
    if (!daytona_script_failed(r, ran))
        reply_json(r, 200, &out);
}

/* --- routes --------------------------------------------------------------------------------------------------------- */

static void daytona_pty_resize_on_body(struct api_call *c, json_t *body)
{
    int64_t cols = 0, rows = 0;
    char size[16];
    struct daytona_pty t = {0};
    struct err err;
    struct sandbox *b = daytona_same_sandbox(c);
    if (!b)
        return;
    if (field_int(body, "cols", 1, DAYTONA_PTY_SIZE_MAX, &cols, &err) < 0 ||
        field_int(body, "rows", 1, DAYTONA_PTY_SIZE_MAX, &rows, &err) < 0 ||
        !daytona_pty_set_size(&t, cols, rows, &err)) {
        daytona_error(c->req, 400, NULL, "%s", err.msg);
        return;
    }
    (void)snprintf(size, sizeof size, "%u %u", t.cols, t.rows);
    const char *const args[] = {c->param[1], size, NULL};
    daytona_shell_script(c, b, script_resize, args, DAYTONA_SCRIPT_S, daytona_pty_answer_one);
}

static void daytona_pty_resize_in(struct api_call *c, struct sandbox *b)
{
    (void)b;
    if (daytona_pty_is_named(c))
        daytona_body(c, daytona_pty_resize_on_body);
}
static void daytona_pty_list_in(struct api_call *c, struct sandbox *b)
{
    daytona_shell_script(c, b, script_list, NULL, DAYTONA_SCRIPT_S, daytona_pty_answer_list);
}
static void daytona_pty_in(struct api_call *c, struct sandbox *b) { daytona_pty_find(c, b, daytona_pty_answer_one); }
static void daytona_pty_end_in(struct api_call *c, struct sandbox *b)
{
    const char *const args[] = {c->param[1], NULL};
    if (daytona_pty_is_named(c))
        daytona_shell_script(c, b, script_end, args, DAYTONA_SCRIPT_S, daytona_pty_answer_end);
}

void daytona_ptys(struct api_call *c) { daytona_toolbox(c, daytona_pty_list_in); }
void daytona_pty_info(struct api_call *c) { daytona_toolbox(c, daytona_pty_in); }
void daytona_pty_resize(struct api_call *c) { daytona_toolbox(c, daytona_pty_resize_in); }
void daytona_pty_end(struct api_call *c) { daytona_toolbox(c, daytona_pty_end_in); }
