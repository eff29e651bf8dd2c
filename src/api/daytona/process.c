/* process.c - POST /process/execute and /process/code-run. */
#include <stdlib.h>
#include <string.h>

#include "api/daytona/daytona.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/strv.h"

enum { TIMEOUT_MAX_S = 24 * 3600, ENV_MAX = 256, ARGS_MAX = 64 };

/* What execute and code-run share. */
struct command {
    struct strv argv, env; /* owned */
    const char *cwd;       /* borrowed from the body */
    uint64_t timeout_ms;
};

static void daytona_command_done(struct command *m)
{
    strv_done(&m->argv);
    strv_done(&m->env);
}

static int daytona_command_read(json_t *body, struct command *ret, struct err *err)
{
    json_t *envs = NULL, *v;
    const char *name;
    int64_t seconds = 0;
    if (field_str(body, "cwd", &ret->cwd, err) < 0 || field_int(body, "timeout", 0, TIMEOUT_MAX_S, &seconds, err) < 0 ||
        field_obj(body, "envs", &envs, err) < 0)
        return -1;
    if (json_object_size(envs) > ENV_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'envs' has %zu variables; at most %d are allowed",
                       json_object_size(envs), ENV_MAX);
    json_object_foreach(envs, name, v)
    {
        _cleanup_buf_ struct buf one = {0};
        if (!json_is_string(v) || !*name || strchr(name, '='))
            return err_set(err, ERR_USAGE, 0, "field 'envs.%.40s' must be a string, with a name without '='", name);
        buf_addf(&one, "%s=%s", name, json_string_value(v));
        strv_add(&ret->env, buf_str(&one));
    }
    if (ret->cwd && !*ret->cwd)
        ret->cwd = NULL;
    ret->timeout_ms = (uint64_t)seconds * 1000;
    return 0;
}

/* Both streams come through standard output, in the order in which they were written. */
static void daytona_add_result(struct json *j, const struct daytona_ran *ran)
{
    json_i64(j, "exitCode", ran->code);
    _cleanup_buf_ struct buf text = {0};
    buf_add(&text, ran->out->p, ran->out->n);
    daytona_add_omitted(&text, ran->omitted_out);
    json_text(j, "result", buf_str(&text), text.n);
}

static void daytona_execute_answer(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (ran->late) {
        daytona_error(r, 408, "PROCESS_EXECUTION_TIMEOUT",
                      "command execution timeout: it did not end in time and was killed");
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    daytona_add_result(&j, ran);
    json_end_obj(&j);
    reply_json(r, 200, &out);
}

static void daytona_code_answer(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (ran->late) {
        daytona_execute_answer(r, ran);
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    daytona_add_result(&j, ran);
    json_obj(&j, "artifacts");
    json_arr(&j, "charts");
    json_end_arr(&j);
    json_end_obj(&j);
    json_end_obj(&j);
    reply_json(r, 200, &out);
}

static void daytona_command_start(struct api_call *c, struct command *m, daytona_ran_fn *then)
{
    struct sandbox *b = daytona_same_sandbox(c);
    const struct daytona_run what = {.argv = (const char *const *)m->argv.v,
                                     .env = (const char *const *)m->env.v,
                                     .cwd = m->cwd,
                                     .timeout_ms = m->timeout_ms,
                                     .recorded = true};
    if (b)
        daytona_run(c, b, &what, then);
}

static void daytona_execute_on_body(struct api_call *c, json_t *body)
{
    struct command m = {0};
    struct err err;
    const char *command = daytona_text(body, "command");
    if (!command || !*command || strlen(command) > DAYTONA_TEXT_MAX)
        daytona_error(c->req, 400, NULL, "field 'command' is required: a command line for sh of at most %d bytes",
                      DAYTONA_TEXT_MAX);
    else if (daytona_command_read(body, &m, &err) < 0)
        daytona_error(c->req, 400, NULL, "%s", err.msg);
    else {
        static const char *const shell[] = {"/bin/sh", "-c", "exec 2>&1; eval \"$1\"", "sh"};
        for (size_t i = 0; i < ARRAY_LEN(shell); i++)
            strv_add(&m.argv, shell[i]);
        strv_add(&m.argv, command);
        daytona_command_start(c, &m, daytona_execute_answer);
    }
    daytona_command_done(&m);
}

/* Runs inside, so that the program and the language of the image decide. */
static int daytona_code_argv(json_t *body, struct strv *argv, struct err *err)
{
    static const struct {
        const char *language, *program, *option;
    } known[] = {{"python", "python3", "-c"}, {"javascript", "node", "-e"}, {"typescript", "ts-node", "-e"}};
    const char *code = daytona_text(body, "code"), *language = daytona_text(body, "language");
    json_t *args = NULL, *v;
    size_t i, k = 0;
    if (!code || strlen(code) > DAYTONA_TEXT_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'code' is required: the text of a program, of at most %d bytes",
                       DAYTONA_TEXT_MAX);
    while (k < ARRAY_LEN(known) && language && strcmp(language, known[k].language) != 0)
        k++;
    if (k == ARRAY_LEN(known))
        return err_set(err, ERR_USAGE, 0, "field 'language' must be python, javascript or typescript");
    if (field_arr(body, "argv", &args, err) < 0)
        return -1;
    if (json_array_size(args) > ARGS_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'argv' has more than %d entries", ARGS_MAX);
    static const char *const shell[] = {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"};
    for (i = 0; i < ARRAY_LEN(shell); i++)
        strv_add(argv, shell[i]);
    strv_add(argv, known[k].program);
    if (k == 0)
        strv_add(argv, "-u");
    strv_add(argv, known[k].option);
    strv_add(argv, code);
    json_array_foreach(args, i, v)
    {
        if (!json_is_string(v))
            return err_set(err, ERR_USAGE, 0, "field 'argv[%zu]' must be a string", i);
        strv_add(argv, json_string_value(v));
    }
    return 0;
}

static void daytona_code_on_body(struct api_call *c, json_t *body)
{
    struct command m = {0};
    struct err err;
    if (daytona_command_read(body, &m, &err) < 0 || daytona_code_argv(body, &m.argv, &err) < 0)
        daytona_error(c->req, 400, NULL, "%s", err.msg);
    else
        daytona_command_start(c, &m, daytona_code_answer);
    daytona_command_done(&m);
}

static void daytona_execute_in(struct api_call *c, struct sandbox *b)
{
    (void)b;
    daytona_body(c, daytona_execute_on_body);
}
static void daytona_code_in(struct api_call *c, struct sandbox *b)
{
    (void)b;
    daytona_body(c, daytona_code_on_body);
}
void daytona_execute(struct api_call *c) { daytona_toolbox(c, daytona_execute_in); }
void daytona_code_run(struct api_call *c) { daytona_toolbox(c, daytona_code_in); }
