/* shell.c - sessions of the toolbox: a shell in the sandbox that keeps its directory and variables from command to command.
 *
 * A session is a directory below /tmp/.daytona in the sandbox: `in`, a fifo from which its shell reads the directories of its
 * commands, and one directory for each command with `command`, `stdout`, `stderr`, `input` (a fifo, of commands that run
 * in the background) and, once it has ended, `exit`. Front remembers nothing, so sessions outlive it.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/daytona/shell.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/mem.h"
#include "base/num.h"
#include "http/ws-serve.h"

enum { NAME_MAX_BYTES = 128, COMMAND_ID_BYTES = 16, SYNC_S = 3600 };

/* The shell itself. `exit` in a command ends the session, and its code is still recorded. */
#define SHELL                                                                                                \
    "trap 'e=$?; [ -z \"$HUTCH_C\" ] || [ -e \"$HUTCH_C/exit\" ] || { echo $e >\"$HUTCH_C/exit.new\" && mv " \
    "\"$HUTCH_C/exit.new\" \"$HUTCH_C/exit\"; }' EXIT\n"                                                     \
    "while IFS= read -r HUTCH_C <&3; do\n"                                                                   \
    "if [ -p \"$HUTCH_C/input\" ]; then eval \"$(cat \"$HUTCH_C/command\")\" <>\"$HUTCH_C/input\" "          \
    ">\"$HUTCH_C/stdout\" 2>\"$HUTCH_C/stderr\" 3<&-\n"                                                      \
    "else eval \"$(cat \"$HUTCH_C/command\")\" </dev/null >\"$HUTCH_C/stdout\" 2>\"$HUTCH_C/stderr\" 3<&-\n" \
    "fi\n"                                                                                                   \
    "echo $? >\"$HUTCH_C/exit.new\"; mv \"$HUTCH_C/exit.new\" \"$HUTCH_C/exit\"\n"                           \
    "done\n"

static const char script_make[] =
    "d=" DAYTONA_SESSIONS "/s-$1\n" DAYTONA_ALIVE DAYTONA_MAKE_OURS
    "mkdir \"$d\" 2>/dev/null || { echo \"CONFLICT session '$1' exists already\" >&2; exit 1; }\n"
    "mkfifo \"$d/in\" || exit 1\n"
    "sh=$(command -v bash || echo /bin/sh)\n" DAYTONA_MARK
    " setsid \"$sh\" -c \"$2\" 3<>\"$d/in\" </dev/null >/dev/null 2>&1 &\n"
    "echo $! >\"$d/pid\"; n=0\n"
    "until alive || [ $n -ge 250 ]; do sleep 0.02; n=$((n+1)); done\n";

static const char script_exec[] = DAYTONA_FIND_SESSION DAYTONA_ALIVE
    "alive || { echo \"SESSION_ENDED session '$1' has ended: its shell exited\" >&2; exit 1; }\n"
    "c=$d/c-$2\n"
    "mkdir \"$c\" && printf %s \"$3\" >\"$c/command\" && : >\"$c/stdout\" && : >\"$c/stderr\" || exit 1\n"
    "[ \"$4\" = sync ] || mkfifo \"$c/input\"\n"
    "date +%s >\"$c/begun\"\n"
    "printf '%s\\n' \"$c\" >\"$d/in\"\n"
    "[ \"$4\" = sync ] || exit 0\n"
    "until [ -e \"$c/exit\" ]; do\n"
    "alive || { sleep 0.1; [ -e \"$c/exit\" ] || echo 137 >\"$c/exit\"; }\n"
    "sleep 0.02; done\n"
    "cat \"$c/stderr\" >&2; cat \"$c/exit\" \"$c/stdout\"\n";

#define PRINT_COMMAND                                                                                           \
    "e=; [ ! -e \"$c/exit\" ] || e=$(cat \"$c/exit\"); printf '%s\\0%s\\0%s\\0' \"${c##*/c-}\" \"$e\" \"$(cat " \
    "\"$c/command\")\"\n"
/* A session whose shell was killed leaves commands without an end. */
#define SETTLE \
    DAYTONA_ALIVE "[ -e \"$c/exit\" ] || alive || { sleep 0.1; [ -e \"$c/exit\" ] || echo 137 >\"$c/exit\"; }\n"

static const char script_command[] = DAYTONA_FIND_COMMAND SETTLE PRINT_COMMAND;
static const char script_find[] = DAYTONA_FIND_COMMAND;
static const char script_logs[] = DAYTONA_FIND_COMMAND "cat \"$c/stdout\"; cat \"$c/stderr\" >&2\n";
static const char script_input[] = DAYTONA_FIND_COMMAND
    "[ ! -e \"$c/exit\" ] || { echo \"COMMAND_ALREADY_COMPLETED command '$2' has ended\" >&2; exit 1; }\n"
    "[ -p \"$c/input\" ] || { echo \"command '$2' takes no input: start it with runAsync\" >&2; exit 1; }\n"
    "printf %s \"$3\" >\"$c/input\"\n";
static const char script_session[] = DAYTONA_FIND_SESSION
    "for c in \"$d\"/c-*; do [ -d \"$c\" ] || continue; printf '%s\\0' \"$(cat \"$c/begun\")\"; " PRINT_COMMAND
    "done\n";
static const char script_list[] =
    "for d in " DAYTONA_SESSIONS "/s-*; do [ -d \"$d\" ] || continue; printf '%s\\0%s\\0\\0\\0' s \"${d##*/s-}\"\n"
    "for c in \"$d\"/c-*; do [ -d \"$c\" ] || continue; printf '%s\\0' \"$(cat \"$c/begun\")\"; " PRINT_COMMAND
    "done; done\n";
/* The shell leads a session of its own: its commands are in its group, unless they left it. Some may outlive the shell. */
static const char script_remove[] = DAYTONA_FIND_SESSION "read -r p <\"$d/pid\" && [ -n \"$(grep -lsF \"" DAYTONA_MARK
                                                         "\" /proc/[0-9]*/environ)\" ] && kill -9 \"-$p\" 2>/dev/null\n"
                                                         "rm -rf \"$d\"\n";

/* --- arguments ------------------------------------------------------------------------------------------------------ */

bool daytona_name_is_good(const char *s)
{
    size_t n = s ? strlen(s) : 0;
    return n > 0 && n <= NAME_MAX_BYTES && s[0] != '.' &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == n;
}

/* Checks the names in the path. False: it answered. */
static bool daytona_names_are_good(struct api_call *c, size_t n)
{
    for (size_t i = 1; i <= n; i++)
        if (!daytona_name_is_good(c->param[i])) {
            daytona_error(c->req, 404, "PROCESS_NOT_FOUND", "%s '%.80s' not found", i == 1 ? "session" : "command",
                          c->param[i]);
            return false;
        }
    return true;
}

void daytona_shell_script(struct api_call *c, struct sandbox *b, const char *script, const char *const *args,
                          uint64_t seconds, daytona_ran_fn *then)
{
    const char *argv[16] = {"/bin/sh", "-c", script, "hutch"};
    for (size_t i = 0, n = 4; args && args[i] && n < ARRAY_LEN(argv) - 1; i++)
        argv[n++] = args[i];
    const struct daytona_run what = {.argv = argv, .timeout_ms = seconds * 1000};
    daytona_run(c, b, &what, then);
}

/* --- answers -------------------------------------------------------------------------------------------------------- */

static void daytona_shell_add_command(struct json *j, const struct buf *b, size_t *at)
{
    const char *id = daytona_next_text(b, at), *code = daytona_next_text(b, at), *command = daytona_next_text(b, at);
    int number;
    json_obj(j, NULL);
    json_str(j, "id", id ? id : "");
    json_str(j, "command", command ? command : "");
    if (code && num_int(code, 0, INT_MAX, &number))
        json_i64(j, "exitCode", number);
    json_end_obj(j);
}

static void daytona_answer_empty_201(struct http_req *r, const struct daytona_ran *ran)
{
    if (!daytona_script_failed(r, ran))
        reply_empty(r, 201);
}
static void daytona_answer_empty_204(struct http_req *r, const struct daytona_ran *ran)
{
    if (!daytona_script_failed(r, ran))
        reply_empty(r, 204);
}

static void daytona_command_answer(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    size_t at = 0;
    if (daytona_script_failed(r, ran))
        return;
    json_start(&j, &out);
    daytona_shell_add_command(&j, ran->out, &at);
    reply_json(r, 200, &out);
}

/* Older clients (0.143) read one text with marks before the bytes of each stream; newer ones read JSON. */
static bool daytona_shell_wants_marks(const struct http_req *r)
{
    const char *version = http_field(&r->fields, "x-daytona-sdk-version"),
               *source = http_field(&r->fields, "x-daytona-source");
    return source && strcmp(source, "typescript-sdk") == 0 && version && strncmp(version, "0.1", 3) == 0;
}

static void daytona_shell_mark(struct buf *out, const struct daytona_ran *ran, size_t skip)
{
    if (ran->out->n > skip)
        buf_adds(out, "\x01\x01\x01");
    buf_add(out, buf_str(ran->out) + skip, ran->out->n - skip);
    daytona_add_omitted(out, ran->omitted_out);
    if (ran->err->n)
        buf_adds(out, "\x02\x02\x02");
    buf_add(out, ran->err->p, ran->err->n);
    daytona_add_omitted(out, ran->omitted_err);
}

static void daytona_shell_add_streams(struct json *j, const struct http_req *r, const struct daytona_ran *ran,
                                      size_t skip)
{
    _cleanup_buf_ struct buf both = {0}, text = {0};
    buf_add(&text, buf_str(ran->out) + skip, ran->out->n - skip);
    daytona_add_omitted(&text, ran->omitted_out);
    size_t n = text.n;
    buf_add(&text, ran->err->p, ran->err->n);
    daytona_add_omitted(&text, ran->omitted_err);
    if (daytona_shell_wants_marks(r)) {
        daytona_shell_mark(&both, ran, skip);
        json_text(j, "output", both.p, both.n);
    } else
        json_text(j, "output", buf_str(&text), text.n);
    json_text(j, "stdout", buf_str(&text), n);
    json_text(j, "stderr", buf_str(&text) + n, text.n - n);
}

static void daytona_logs_answer(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (daytona_script_failed(r, ran))
        return;
    if (daytona_shell_wants_marks(r)) {
        daytona_shell_mark(&out, ran, 0);
        http_reply(r, 200, "text/plain; charset=utf-8", out.p, out.n);
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    daytona_shell_add_streams(&j, r, ran, 0);
    json_end_obj(&j);
    reply_json(r, 200, &out);
}

/* The id of a new command is made from the request, so that the answer knows it. */
static void daytona_shell_command_id(const struct http_req *r, char ret[2 * COMMAND_ID_BYTES + 1])
{
    (void)snprintf(ret, 2 * COMMAND_ID_BYTES + 1, "%s", r->id);
}

static void daytona_exec_answer(struct http_req *r, const struct daytona_ran *ran, bool sync)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    char id[2 * COMMAND_ID_BYTES + 1];
    size_t n = ran->out->n;
    if (daytona_script_failed(r, ran))
        return;
    daytona_shell_command_id(r, id);
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "cmdId", id);
    if (sync) { /* the first line is the exit code */
        _cleanup_free_ char *line = xstrndup(buf_str(ran->out), strcspn(buf_str(ran->out), "\n"));
        size_t head = strlen(line) + 1 < n ? strlen(line) + 1 : n;
        int number = 0;
        (void)num_int(line, 0, INT_MAX, &number);
        json_i64(&j, "exitCode", number);
        daytona_shell_add_streams(&j, r, ran, head);
    }
    json_end_obj(&j);
    reply_json(r, sync ? 200 : 202, &out);
}
static void daytona_exec_answer_sync(struct http_req *r, const struct daytona_ran *ran)
{
    daytona_exec_answer(r, ran, true);
}
static void daytona_exec_answer_async(struct http_req *r, const struct daytona_ran *ran)
{
    daytona_exec_answer(r, ran, false);
}

static void daytona_session_answer(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    size_t at = 0;
    if (daytona_script_failed(r, ran))
        return;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "sessionId", api_call_of(r)->param[1]);
    json_arr(&j, "commands");
    while (daytona_next_text(ran->out, &at)) /* when it began */
        daytona_shell_add_command(&j, ran->out, &at);
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(r, 200, &out);
}

static void daytona_sessions_answer(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    size_t at = 0;
    const char *word;
    bool open = false;
    if (daytona_script_failed(r, ran))
        return;
    json_start(&j, &out);
    json_arr(&j, NULL);
    while ((word = daytona_next_text(ran->out, &at))) {
        if (strcmp(word, "s") != 0) {
            daytona_shell_add_command(&j, ran->out, &at);
            continue;
        }
        const char *id = daytona_next_text(ran->out, &at);
        (void)daytona_next_text(ran->out, &at);
        (void)daytona_next_text(ran->out, &at);
        if (open) {
            json_end_arr(&j);
            json_end_obj(&j);
        }
        json_obj(&j, NULL);
        json_str(&j, "sessionId", id ? id : "");
        json_arr(&j, "commands");
        open = true;
    }
    if (open) {
        json_end_arr(&j);
        json_end_obj(&j);
    }
    json_end_arr(&j);
    reply_json(r, 200, &out);
}

/* --- routes --------------------------------------------------------------------------------------------------------- */

static void daytona_session_make_on_body(struct api_call *c, json_t *body)
{
    const char *id = daytona_text(body, "sessionId");
    struct sandbox *b = daytona_same_sandbox(c);
    if (!b)
        return;
    if (!daytona_name_is_good(id)) {
        daytona_error(c->req, 400, NULL, "field 'sessionId' has 1 to %d letters, digits, dots, dashes and underscores",
                      NAME_MAX_BYTES);
        return;
    }
    const char *const args[] = {id, SHELL, NULL};
    daytona_shell_script(c, b, script_make, args, DAYTONA_SCRIPT_S, daytona_answer_empty_201);
}

static void daytona_exec_on_body(struct api_call *c, json_t *body)
{
    const char *command = daytona_text(body, "command");
    bool async = false, old = false;
    char id[2 * COMMAND_ID_BYTES + 1];
    struct err err;
    struct sandbox *b = daytona_same_sandbox(c);
    if (!b)
        return;
    if (!command || !*command || strlen(command) > DAYTONA_TEXT_MAX) {
        daytona_error(c->req, 400, NULL, "field 'command' is required: a command line of at most %d bytes",
                      DAYTONA_TEXT_MAX);
        return;
    }
    if (field_bool(body, "runAsync", &async, &err) < 0 || field_bool(body, "async", &old, &err) < 0) {
        daytona_error(c->req, 400, NULL, "%s", err.msg);
        return;
    }
    async |= old;
    daytona_shell_command_id(c->req, id);
    const char *const args[] = {c->param[1], id, command, async ? "async" : "sync", NULL};
    daytona_shell_script(c, b, script_exec, args, async ? DAYTONA_SCRIPT_S : SYNC_S,
                         async ? daytona_exec_answer_async : daytona_exec_answer_sync);
}

static void daytona_input_on_body(struct api_call *c, json_t *body)
{
    const char *data = daytona_text(body, "data");
    struct sandbox *b = daytona_same_sandbox(c);
    if (!b)
        return;
    if (!data || strlen(data) > DAYTONA_TEXT_MAX) {
        daytona_error(c->req, 400, NULL, "field 'data' is required: a text of at most %d bytes", DAYTONA_TEXT_MAX);
        return;
    }
    const char *const args[] = {c->param[1], c->param[2], data, NULL};
    daytona_shell_script(c, b, script_input, args, DAYTONA_SCRIPT_S, daytona_answer_empty_204);
}

static void daytona_shell_simple(struct api_call *c, struct sandbox *b, size_t names, const char *script,
                                 daytona_ran_fn *then)
{
    const char *const args[] = {names > 0 ? c->param[1] : NULL, names > 1 ? c->param[2] : NULL, NULL};
    if (daytona_names_are_good(c, names))
        daytona_shell_script(c, b, script, args, DAYTONA_SCRIPT_S, then);
}

void daytona_find_command(struct api_call *c, struct sandbox *b, daytona_ran_fn *then)
{
    daytona_shell_simple(c, b, 2, script_find, then);
}

static void daytona_session_make_in(struct api_call *c, struct sandbox *b)
{
    (void)b, daytona_body(c, daytona_session_make_on_body);
}
static void daytona_exec_in(struct api_call *c, struct sandbox *b)
{
    (void)b;
    if (daytona_names_are_good(c, 1))
        daytona_body(c, daytona_exec_on_body);
}
static void daytona_input_in(struct api_call *c, struct sandbox *b)
{
    (void)b;
    if (daytona_names_are_good(c, 2))
        daytona_body(c, daytona_input_on_body);
}
static void daytona_sessions_in(struct api_call *c, struct sandbox *b)
{
    daytona_shell_simple(c, b, 0, script_list, daytona_sessions_answer);
}
static void daytona_session_in(struct api_call *c, struct sandbox *b)
{
    daytona_shell_simple(c, b, 1, script_session, daytona_session_answer);
}
static void daytona_session_remove_in(struct api_call *c, struct sandbox *b)
{
    daytona_shell_simple(c, b, 1, script_remove, daytona_answer_empty_204);
}
static void daytona_command_in(struct api_call *c, struct sandbox *b)
{
    daytona_shell_simple(c, b, 2, script_command, daytona_command_answer);
}
static void daytona_logs_in(struct api_call *c, struct sandbox *b)
{
    daytona_shell_simple(c, b, 2, script_logs, daytona_logs_answer);
}

void daytona_session_make(struct api_call *c) { daytona_toolbox(c, daytona_session_make_in); }
void daytona_session_exec(struct api_call *c) { daytona_toolbox(c, daytona_exec_in); }
void daytona_command_input(struct api_call *c) { daytona_toolbox(c, daytona_input_in); }
void daytona_sessions(struct api_call *c) { daytona_toolbox(c, daytona_sessions_in); }
void daytona_session(struct api_call *c) { daytona_toolbox(c, daytona_session_in); }
void daytona_session_remove(struct api_call *c) { daytona_toolbox(c, daytona_session_remove_in); }
void daytona_command(struct api_call *c) { daytona_toolbox(c, daytona_command_in); }

void daytona_command_logs(struct api_call *c)
{
    daytona_toolbox(c, ws_is_wanted(c->req) ? daytona_follow : daytona_logs_in);
}
