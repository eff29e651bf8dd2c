/* code.c - hutch code: runs cells in the interpreter of a sandbox, from a file, an argument, or typed one after the other. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/strv.h"
#include "cli/client/commands.h"
#include "cli/client/exec.h"
#include "cli/client/node.h"
#include "cli/code/code.h"

enum {
    CODE_MAX = 4 << 20,       /* bytes of a cell */
    CODE_LINE_MAX = 16 << 20, /* of an answer's line */
    CODE_INTERRUPTED = 128 + SIGINT
};

struct coder {
    struct api *api;
    const char *id, *language, *context, *timeout;
    const struct strv *env;
    const char *rights; /* JSON; NULL: those of the sandbox */
    int signals;
    struct code_view view;
};

static int code_add_request(const struct coder *c, const char *code, struct buf *out, struct err *err)
{
    struct json j;
    char *end = NULL;
    double seconds = c->timeout ? strtod(c->timeout, &end) : 0;
    if (!json_may_hold(code))
        return err_set(err, ERR_USAGE, 0, "code: the cell is not UTF-8 text");
    if (strlen(code) > CODE_MAX)
        return err_set(err, ERR_USAGE, 0, "code: a cell has at most %d MiB; copy data in with `hutch cp`",
                       CODE_MAX >> 20);
    if (c->timeout && (end == c->timeout || *end || !(seconds >= 0.001 && seconds <= 86400)))
        return err_set(err, ERR_USAGE, 0, "code: --timeout is a number of seconds up to 86400");
    json_start(&j, out);
    json_obj(&j, NULL);
    json_str(&j, "code", code);
    if (c->context)
        json_str(&j, "contextID", c->context);
    else
        json_str(&j, "language", c->language);
    if (c->timeout)
        json_fixed(&j, "timeout", (uint64_t)(seconds * 1000), 3);
    json_obj(&j, "env");
    for (size_t i = 0; i < c->env->n; i++) {
        const char *equals = strchr(c->env->v[i], '=');
        if (!equals || equals == c->env->v[i] || !json_may_hold(c->env->v[i]))
            return err_set(err, ERR_USAGE, 0, "code: --env takes NAME=VALUE, as UTF-8 text");
        _cleanup_free_ char *name = xstrndup(c->env->v[i], (size_t)(equals - c->env->v[i]));
        json_str(&j, name, equals + 1);
    }
    json_end_obj(&j);
    if (c->rights) {
        json_none(&j, "rights");
        out->n -= strlen("null");
        buf_adds(out, c->rights);
    }
    json_end_obj(&j);
    return 0;
}

/* Shows the whole lines of `in` and keeps the rest, whose first *seen bytes have no newline. */
static int code_show_lines(struct coder *c, struct buf *in, size_t *seen, struct err *err)
{
    size_t used = 0;
    for (char *e; (e = memchr(in->p + *seen, '\n', in->n - *seen)); *seen = used = (size_t)(e - in->p) + 1)
        if (code_view_line(&c->view, in->p + used, (size_t)(e - in->p) - used, err) < 0)
            return -1;
    in->n -= used;
    *seen = in->n;
    if (used > 0)
        memmove(in->p, in->p + used, in->n);
    if (in->n > CODE_LINE_MAX)
        return err_set(
            err, ERR_HOST, 0,
            "one output of the cell is longer than %d MiB; write it to a file, and copy that with `hutch cp`",
            CODE_LINE_MAX >> 20);
    return 0;
}

/* Follows a cell to its end. Returns its exit code, or -1. A signal of ours closes the connection, which interrupts it. */
static int code_follow(struct coder *c, struct blocking *stream, struct err *err)
{
    _cleanup_buf_ struct buf in = {0};
    char room[64 * 1024];
    size_t seen = 0;
    for (;;) {
        bool woken = false;
        ssize_t n = api_read(stream, room, sizeof room, c->signals, &woken, err);
        if (woken) {
            struct signalfd_siginfo s;
            return read(c->signals, &s, sizeof s) == sizeof s ? 128 + (int)s.ssi_signo : CODE_INTERRUPTED;
        }
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        buf_add(&in, room, (size_t)n);
        if (code_show_lines(c, &in, &seen, err) < 0)
            return -1;
    }
    if (!c->view.ended)
        return err_set(err, ERR_HOST, 0, "the cell's output ends in the middle; run it again");
    return c->view.failed ? 1 : 0;
}

static int code_run(struct coder *c, const char *code, struct err *err)
{
    _cleanup_buf_ struct buf body = {0};
    struct blocking stream = BLOCKING_INIT;
    char path[128];
    if (code_add_request(c, code, &body, err) < 0)
        return -1;
    (void)snprintf(path, sizeof path, "/v1/sandboxes/%s/code", c->id);
    code_view_begin(&c->view);
    const struct api_request q = {.method = "POST",
                                  .path = path,
                                  .type = "application/json",
                                  .body = buf_str(&body),
                                  .length = body.n,
                                  .body_fd = -1};
    if (api_send(c->api, &q, &stream, err) < 0)
        return -1;
    int r = stream.answer.status == 200 ? code_follow(c, &stream, err) : api_refused(&stream, err);
    blocking_close(&stream);
    return r;
}

/* --- typed cells ---------------------------------------------------------------------------------------------------- */

/* Reads one cell. False: the end. */
static bool code_read_cell(struct coder *c, struct code_editor *editor, struct buf *cell)
{
    char first[40], more[40];
    bool pasted = false;
    (void)snprintf(first, sizeof first, "%s> ", c->language);
    (void)snprintf(more, sizeof more, "%*s> ", (int)strlen(c->language), "..");
    for (;;) {
        size_t before = cell->n;
        switch (code_editor_read(editor, before ? more : first, cell, &pasted)) {
        case CODE_EDITED_END:
            return false;
        case CODE_EDITED_INTERRUPT:
            cell->n = 0;
            continue;
        case CODE_EDITED_LINE:
            break;
        }
        if (!pasted && code_is_whole(c->language, buf_str(cell)))
            return true;
        buf_addc(cell, '\n');
    }
}

static int code_repl(struct coder *c, struct err *err)
{
    struct code_editor *editor = code_editor_new();
    int code = 0;
    fprintf(stderr, "%s in sandbox %s. Ctrl-C interrupts a cell, Ctrl-D ends.\n", c->language, c->id);
    for (;;) {
        _cleanup_buf_ struct buf cell = {0};
        if (!code_read_cell(c, editor, &cell))
            break;
        if (cell.n == 0 || buf_str(&cell)[strspn(buf_str(&cell), " \t\n")] == '\0')
            continue;
        code = code_run(c, buf_str(&cell), err);
        if (code < 0)
            fprintf(stderr, "hutch: %s\n", err->msg); /* the next cell may work */
        else if (code == CODE_INTERRUPTED)
            fputs("interrupted\n", stderr);
        else if (code > CODE_INTERRUPTED)
            break;
    }
    code_editor_free(editor);
    return code > CODE_INTERRUPTED ? code : 0;
}

/* --- the command ---------------------------------------------------------------------------------------------------- */

static const char *code_language_of(const char *file)
{
    static const struct {
        const char *extension, *language;
    } known[] = {{".py", "python"}, {".js", "javascript"}, {".mjs", "javascript"}, {".ts", "typescript"}, {".r", "r"},
                 {".java", "java"}, {".jsh", "java"},      {".sh", "bash"},        {".bash", "bash"}};
    const char *dot = file ? strrchr(file, '.') : NULL;
    for (size_t i = 0; dot && i < ARRAY_LEN(known); i++)
        if (strcasecmp(known[i].extension, dot) == 0)
            return known[i].language;
    return "python";
}

static int code_read_file(const char *file, struct buf *ret, struct err *err)
{
    _cleanup_close_ int fd = strcmp(file, "-") == 0 ? dup(STDIN_FILENO) : open(file, O_RDONLY | O_CLOEXEC);
    char room[64 * 1024];
    ssize_t n = -1;
    while (fd >= 0 && (n = read(fd, room, sizeof room)) > 0 && ret->n <= CODE_MAX)
        buf_add(ret, room, (size_t)n);
    if (n < 0)
        return err_set(err, ERR_USAGE, errno, "code: read %s", file);
    if (strlen(buf_str(ret)) != ret->n)
        return err_set(err, ERR_USAGE, 0, "code: %s is not text: it has a NUL", file);
    return 0;
}

static int code_block_signals(void)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static const char usage[] =
    "usage: hutch code [options] ID [FILE]\n\n"
    "Runs code in the interpreter of a sandbox; variables stay for the next cell. FILE is one cell (-: standard "
    "input).\n"
    "Without FILE and -c cells are typed, one after the other, with a history. Pictures are drawn by terminals that "
    "can,\n"
    "otherwise saved. The exit code is 1 if the cell ended with an error.\n\n"
    "  -c, --code CODE       run this cell\n"
    "  -l, --language NAME   python, javascript, typescript, r, java or bash (by FILE's ending, else python)\n"
    "      --context ID      run it in this context instead of the default one of the language\n"
    "  -e, --env NAME=VALUE  set a variable for the cell\n"
    "  -t, --timeout SECONDS interrupt a cell that runs longer\n"
    "      --no-network      make no socket\n"
    "      --ro              change no file\n"
    "      --write PATH      change files below these paths only; repeat it\n"
    "      --output-limit N  end a cell that writes more, like 1M\n"
    "      --images HOW      kitty, iterm, sixel, or files (what the terminal is known to do)\n"
    "  -o, --output DIR      save pictures there (the current directory), as result-1.png and so on\n"
    "      --json            print the lines of the answer as they come\n"
    "      --url URL         the node (HUTCH_URL)\n\n"
    "examples:\n"
    "  id=$(hutch create code-interpreter)\n"
    "  hutch code $id -c 'x = 6; x * 7'\n"
    "  hutch code $id plot.py\n"
    "  hutch code $id\n";

static void code_rights_done(struct exec_rights_options *o) { strv_done(&o->write); }

int cmd_code(int argc, char **argv)
{
    const char *cell = NULL, *images = NULL;
    struct strv env __attribute__((cleanup(strv_done))) = {0};
    struct coder c = {.env = &env, .view.images = code_images_of_terminal()};
    struct exec_rights_options less __attribute__((cleanup(code_rights_done))) = {.who = "code"};
    const struct node_option options[] = {{"code", 'c', NULL, &cell, NULL},
                                          {"language", 'l', NULL, &c.language, NULL},
                                          {"context", 0, NULL, &c.context, NULL},
                                          {"env", 'e', NULL, NULL, &env},
                                          {"timeout", 't', NULL, &c.timeout, NULL},
                                          {"images", 0, NULL, &images, NULL},
                                          {"output", 'o', NULL, &c.view.dir, NULL},
                                          {"no-network", 0, &less.no_network, NULL, NULL},
                                          {"ro", 0, &less.read_only, NULL, NULL},
                                          {"write", 0, NULL, NULL, &less.write},
                                          {"output-limit", 0, NULL, &less.output_limit, NULL},
                                          {0}};
    const struct node_command command = {"code", usage, options, 1, 2, false};
    _cleanup_buf_ struct buf text = {0};
    struct node_call call;
    struct err err;
    int code;
    if (node_begin(&command, argc, argv, &call, &code))
        return code;
    const char *file = call.args[1];
    if (images && !code_images_read(images, &c.view.images))
        return err_set(&err, ERR_USAGE, 0, "code: --images is kitty, iterm, sixel or files"), cli_fail(&err);
    if ((cell && file) || (c.context && c.language))
        return err_set(&err, ERR_USAGE, 0, "code: %s",
                       cell && file ? "give FILE or -c, not both" : "give --context or --language, not both"),
               cli_fail(&err);
    c.language = c.language ? c.language : code_language_of(file);
    if (node_take_id(&call, 0, &err) < 0)
        return cli_fail(&err);
    _cleanup_free_ char *rights = NULL;
    if (exec_rights_text(&call.api, &less, &rights, &err) < 0)
        return cli_fail(&err);
    c.rights = rights;
    c.api = &call.api;
    c.id = call.args[0];
    c.view.json = call.json;
    _cleanup_close_ int signals = code_block_signals();
    c.signals = signals;
    if (!cell && !file && isatty(STDIN_FILENO))
        return code_repl(&c, &err);
    if (!cell && code_read_file(file ? file : "-", &text, &err) < 0)
        return cli_fail(&err);
    code = code_run(&c, cell ? cell : buf_str(&text), &err);
    return code < 0 ? cli_fail(&err) : code;
}
