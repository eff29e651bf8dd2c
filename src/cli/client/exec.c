/* exec.c - hutch exec, shell: commands in a sandbox of the node, with their output, input, signals and exit code. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/fields.h"
#include "base/json.h"
#include "cli/client/commands.h"
#include "cli/client/exec.h"
#include "cli/client/node.h"

enum { INPUT_BYTES = 32 * 1024, END_LOOKS = 20, EXEC_LIMIT_CODE = 124 };

struct session {
    const struct api *api;
    const struct exec_request *request;
    long pid; /* 0 until it is known */
    bool pty, input_open;
    int signals;       /* signalfd */
    int code;          /* exit code, -1 until the end */
    const char *limit; /* the option whose limit ended it; NULL: none */
    bool oom;          /* the sandbox ran out of memory, which killed it or a process of it */
    bool own_oom;      /* it ran out of its own */
    int hung_up;       /* the signal, or SIGHUP, after which our terminal is gone; 0 */
};

static struct termios saved_modes;
static bool modes_saved;

static void restore_modes(void)
{
    if (modes_saved)
        (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &saved_modes);
}

static void raw_modes(void)
{
    struct termios t;
    if (tcgetattr(STDIN_FILENO, &saved_modes) < 0)
        return;
    modes_saved = true;
    (void)atexit(restore_modes);
    t = saved_modes;
    cfmakeraw(&t);
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &t);
}

static void add_selector(struct json *j, long pid)
{
    json_obj(j, "process");
    json_i64(j, "pid", pid);
    json_end_obj(j);
}

static void add_size(struct json *j)
{
    struct winsize w;
    if (ioctl(STDIN_FILENO, TIOCGWINSZ, &w) < 0 || w.ws_col == 0)
        w = (struct winsize){.ws_col = 80, .ws_row = 24};
    json_obj(j, "pty");
    json_obj(j, "size");
    json_u64(j, "cols", w.ws_col);
    json_u64(j, "rows", w.ws_row);
    json_end_obj(j);
    json_end_obj(j);
}

static int send_input(struct session *s, const void *p, size_t n, struct err *err)
{
    _cleanup_buf_ struct buf body = {0}, data = {0};
    struct json j;
    base64_encode(&data, p, n);
    json_start(&j, &body);
    json_obj(&j, NULL);
    add_selector(&j, s->pid);
    json_obj(&j, "input");
    json_str(&j, s->pty ? "pty" : "stdin", buf_str(&data));
    json_end_obj(&j);
    json_end_obj(&j);
    return api_rpc(s->api, "process.Process/SendInput", buf_str(&body), NULL, err);
}

static int exec_call_process(struct session *s, const char *method, const char *signal_name, bool size, struct err *err)
{
    _cleanup_buf_ struct buf body = {0};
    struct json j;
    json_start(&j, &body);
    json_obj(&j, NULL);
    add_selector(&j, s->pid);
    if (signal_name)
        json_str(&j, "signal", signal_name);
    if (size)
        add_size(&j);
    json_end_obj(&j);
    return api_rpc(s->api, method, buf_str(&body), NULL, err);
}

/* Our terminal is gone, or a signal ends us: hang up the command. A command that ignores SIGHUP lives on, as in a shell. */
static void hang_up(struct session *s, int signal_number)
{
    struct err ignored;
    if (exec_call_process(s, "process.Process/SendSignal", "SIGNAL_SIGHUP", false, &ignored) < 0)
        (void)exec_call_process(s, "process.Process/SendSignal", "SIGNAL_SIGKILL", false, &ignored); /* an older node */
    s->hung_up = signal_number;
}

/* A signal to us ends the command. If that has ended already, processes that it started hold its output: leave them. */
static void exec_end_command(struct session *s, int signal_number)
{
    struct err err;
    if (exec_call_process(s, "process.Process/SendSignal", "SIGNAL_SIGTERM", false, &err) == 0 ||
        !strstr(err.msg, "not found"))
        return;
    (void)fputs("hutch: the command has ended; processes that it started hold its output, and run on\n", stderr);
    s->hung_up = signal_number;
}

/* Passes on keys, end of input and signals. Errors are ignored: if the command has ended, the stream says so. */
static void own_side(struct session *s)
{
    struct err ignored;
    struct signalfd_siginfo info;
    struct pollfd p[2] = {{.fd = s->signals, .events = POLLIN}, {.fd = s->input_open ? 0 : -1, .events = POLLIN}};
    if (poll(p, 2, 0) <= 0)
        return;
    if (p[0].revents && read(s->signals, &info, sizeof info) == sizeof info) {
        if ((info.ssi_signo == SIGHUP || info.ssi_signo == SIGTERM) && s->pty)
            hang_up(s, (int)info.ssi_signo);
        else if (info.ssi_signo == SIGWINCH && s->pty)
            (void)exec_call_process(s, "process.Process/Update", NULL, true, &ignored);
        else if (!s->pty && (info.ssi_signo == SIGINT || info.ssi_signo == SIGTERM || info.ssi_signo == SIGHUP))
            exec_end_command(s, (int)info.ssi_signo);
    }
    if (p[1].revents) {
        char room[INPUT_BYTES];
        ssize_t n = read(STDIN_FILENO, room, sizeof room);
        if (n > 0 && send_input(s, room, (size_t)n, &ignored) == 0)
            return;
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        s->input_open = false;
        if (s->pty && !s->hung_up) /* in raw mode, end of input means that the terminal is gone */
            hang_up(s, SIGHUP);
        else if (n == 0 && !s->pty)
            (void)exec_call_process(s, "process.Process/CloseStdin", NULL, false, &ignored);
    }
}

/* One descriptor that is readable when stdin or a signal is. -2: stdin is a file, which is always ready. */
static int wait_fd(const struct session *s)
{
    int ep = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN};
    if (ep < 0)
        return -1;
    (void)epoll_ctl(ep, EPOLL_CTL_ADD, s->signals, &e);
    if (s->input_open && epoll_ctl(ep, EPOLL_CTL_ADD, STDIN_FILENO, &e) < 0) {
        int eno = errno;
        (void)close(ep);
        return eno == EPERM ? -2 : -1;
    }
    return ep;
}

static int exec_put_output(const struct session *s, int fd, const json_t *data, struct err *err)
{
    const char *text = json_string_value(data);
    _cleanup_buf_ struct buf bytes = {0};
    if (!text)
        return 0;
    if (!base64_decode(&bytes, text, strlen(text)))
        return err_set(err, ERR_HOST, 0, "the node sent output that is not base64");
    if (fd == 1 && s->request->output)
        return s->request->output(s->request->arg, bytes.p, bytes.n, err);
    if (bytes.n && fd_write_all(fd, bytes.p, bytes.n) < 0)
        return err_set(err, ERR_INTERNAL, errno, "write the command's output");
    return 0;
}

static int end_code(const json_t *end)
{
    const char *status = field_text(end, "status");
    int code = (int)json_integer_value(json_object_get(end, "exitCode"));
    const json_t *death = json_object_get(end, "death");
    if (json_is_true(json_object_get(end, "exited")))
        return code;
    int sig = (int)json_integer_value(json_object_get(death, "signal"));
    if (sig > 0)
        return 128 + sig;
    return strstr(status, "killed") ? 137 : 128 + 15;
}

static int exec_on_event(struct session *s, const json_t *m, struct err *err)
{
    const json_t *e = json_object_get(m, "event"), *data = json_object_get(e, "data"), *end = json_object_get(e, "end");
    if (json_object_get(e, "start"))
        s->pid = (long)json_integer_value(json_object_get(json_object_get(e, "start"), "pid"));
    if (end) {
        s->code = end_code(end);
        const char *cause = field_text(json_object_get(end, "death"), "cause");
        s->oom = strcmp(cause, "oom") == 0;
        s->own_oom = strcmp(cause, "memory_limit") == 0;
        s->limit = strcmp(cause, "time_limit") == 0     ? "--timeout"
                   : strcmp(cause, "output_limit") == 0 ? "--output-limit"
                                                        : NULL;
    }
    if (data && (exec_put_output(s, 1, json_object_get(data, "stdout"), err) < 0 ||
                 exec_put_output(s, 1, json_object_get(data, "pty"), err) < 0 ||
                 exec_put_output(s, 2, json_object_get(data, "stderr"), err) < 0))
        return -1;
    return 0;
}

/* Follows the stream to the command's end. */
static int exec_follow(struct session *s, struct blocking *stream, struct err *err)
{
    _cleanup_buf_ struct buf pending = {0};
    for (;;) {
        bool woken = false;
        json_t *m = NULL;
        _cleanup_close_ int extra = s->pid ? wait_fd(s) : -1;
        if (extra == -2) {
            own_side(s);
            continue;
        }
        int r = api_message(stream, &pending, extra, &woken, &m, err);
        if (woken) {
            own_side(s);
            if (s->hung_up) {
                s->code = 128 + s->hung_up;
                return 0;
            }
            continue;
        }
        if (r <= 0)
            return r < 0 ? -1 : s->code < 0 ? err_set(err, ERR_HOST, 0, "the stream ended before the command did") : 0;
        r = exec_on_event(s, m, err);
        json_decref(m);
        if (r < 0)
            return -1;
    }
}

/* The node's API carries UTF-8: other bytes would be changed on the way. */
static int exec_check_text(const struct exec_request *q, struct err *err)
{
    char text[32];
    for (size_t i = 0; q->command[i]; i++) {
        (void)snprintf(text, sizeof text, "argument %zu", i);
        if (!json_may_hold(q->command[i]))
            return err_set(err, ERR_USAGE, 0,
                           "exec: %s is not UTF-8, and only text can be passed; send other bytes with -i or hutch cp",
                           i ? text : "the command");
    }
    for (size_t i = 0; q->env && i < q->env->n; i++)
        if (!json_may_hold(q->env->v[i]))
            return err_set(err, ERR_USAGE, 0, "exec: --env '%.*s' is not UTF-8, and only text can be passed",
                           (int)strcspn(q->env->v[i], "="), q->env->v[i]);
    if (q->cwd && !json_may_hold(q->cwd))
        return err_set(err, ERR_USAGE, 0, "exec: --chdir is not UTF-8, and only text can be passed");
    return 0;
}

/* A stream that breaks because the sandbox ended: the node knows when and why, at the latest a moment after the break. */
static int exec_explain_end(const struct api *api, struct err *err)
{
    static const struct timespec moment = {.tv_nsec = 50 * 1000 * 1000};
    for (int i = 0; err->code == ERR_HOST && i < END_LOOKS; i++) {
        struct api look = *api;
        struct err why;
        look.sandbox[0] = '\0';
        if (api_sandbox(&look, api->sandbox, &why) < 0) {
            if (strstr(why.msg, " ended "))
                *err = why;
            break;
        }
        (void)nanosleep(&moment, NULL);
    }
    return -1;
}

static int exec_add_request(struct buf *body, const struct exec_request *q, struct err *err)
{
    struct json j;
    json_start(&j, body);
    json_obj(&j, NULL);
    json_obj(&j, "process");
    json_str(&j, "cmd", q->command[0]);
    json_arr(&j, "args");
    for (size_t i = 1; q->command[i]; i++)
        json_str(&j, NULL, q->command[i]);
    json_end_arr(&j);
    json_obj(&j, "envs");
    for (size_t i = 0; q->env && i < q->env->n; i++) {
        char *eq = strchr(q->env->v[i], '=');
        if (!eq)
            return err_set(err, ERR_USAGE, 0, "--env wants NAME=VALUE, not '%.80s'", q->env->v[i]);
        *eq = '\0';
        if (q->rights && strcmp(q->env->v[i], "HUTCH_RIGHTS") == 0)
            return err_set(err, ERR_USAGE, 0, "--env HUTCH_RIGHTS excludes --no-network and its kin");
        json_str(&j, q->env->v[i], eq + 1);
        *eq = '=';
    }
    if (q->rights)
        json_str(&j, "HUTCH_RIGHTS", q->rights);
    json_end_obj(&j);
    if (q->cwd)
        json_str(&j, "cwd", q->cwd);
    json_end_obj(&j);
    if (q->pty)
        add_size(&j);
    json_bool(&j, "stdin", q->input);
    json_end_obj(&j);
    return 0;
}

/* Starts a command and leaves it alone: what it writes is dropped. Prints its pid inside. */
static int exec_detach(struct session *s, struct blocking *stream, struct err *err)
{
    _cleanup_buf_ struct buf pending = {0};
    while (!s->pid) {
        bool woken = false;
        json_t *m = NULL;
        int r = api_message(stream, &pending, -1, &woken, &m, err);
        if (r <= 0)
            return r < 0 ? -1 : err_set(err, ERR_HOST, 0, "the stream ended before the command began");
        r = exec_on_event(s, m, err);
        json_decref(m);
        if (r < 0)
            return -1;
    }
    (void)printf(s->request->json ? "{\"pid\":%ld}\n" : "%ld\n", s->pid);
    s->code = 0;
    return 0;
}

int exec_in_sandbox(const struct api *api, const struct exec_request *q, struct err *err)
{
    if (exec_check_text(q, err) < 0)
        return -1;
    _cleanup_buf_ struct buf body = {0};
    struct session s = {.api = api, .request = q, .pty = q->pty, .input_open = q->input, .code = -1};
    if (exec_add_request(&body, q, err) < 0)
        return -1;
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGHUP);
    (void)sigaddset(&set, SIGWINCH);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    _cleanup_close_ int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    s.signals = signals;
    struct blocking stream;
    if (api_rpc_stream(api, "process.Process/Start", buf_str(&body), &stream, err) < 0)
        return -1;
    if (q->pty)
        raw_modes();
    int r = q->detach ? exec_detach(&s, &stream, err) : exec_follow(&s, &stream, err);
    restore_modes();
    blocking_close(&stream);
    if (r < 0)
        return exec_explain_end(api, err);
    if (s.oom)
        (void)fprintf(
            stderr,
            "hutch: the sandbox ran out of memory (%lu MiB), and a process of this command was killed; `hutch create "
            "--memory SIZE` gives more\n",
            api->memory_mb);
    if (s.own_oom)
        (void)fprintf(stderr, "hutch: a process of this command was killed: the command's --memory was used up\n");
    if (s.limit)
        (void)fprintf(stderr, "hutch: the command and what it started were ended: its %s is reached\n", s.limit);
    return s.limit ? EXEC_LIMIT_CODE : s.code;
}

/* Exit codes of a shell: 127 not found, 126 not executable. */
int exec_fail_code(const struct err *err)
{
    int code = cli_fail(err);
    if (strncmp(err->msg, "command '", 9) == 0 && strstr(err->msg, "' not found"))
        return 127;
    return strncmp(err->msg, "cannot execute '", 16) == 0 ? 126 : code;
}

static void exec_rights_done(struct exec_rights_options *o) { strv_done(&o->write); }

int cmd_exec(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch exec [options] ID [--] COMMAND [ARG...]\n\n"
        "Runs a command in a sandbox. Output and exit code come back as they are; a signal gives 128 + its number.\n\n"
        "  -i, --stdin           pass standard input on\n"
        "  -t, --tty             give it a terminal (implies -i)\n"
        "  -d, --detach          start it, print its pid inside and return; its output is dropped\n"
        "  -e, --env NAME=VALUE  set a variable for this command\n"
        "  -w, --workdir DIR     start in this directory (the user's home); -C and --chdir are the same\n"
        "  -u, --user NAME       run it as this user (the template's user)\n"
        "      --no-network      it has no network\n"
        "      --ro              it changes no file; or\n"
        "      --write PATH      only files below this path (repeat for more)\n"
        "      --own-user        it runs as a user of its own, apart from all others\n"
        "      --timeout TIME    after it (30s, 5m) the command and all that it started end: exit code 124\n"
        "      --output-limit SIZE  the same after so much output (64k, 1M)\n"
        "      --memory SIZE     it and all that it started have so much memory (512M); what needs more is killed\n"
        "      --url URL         the node (docs/remote.md)\n\n"
        "The seven options before the last hold for the command and its children, and leave it no way back: sudo does "
        "not work.\n\n"
        "examples:\n"
        "  hutch exec --no-network --write /tmp $id -- ./untrusted\n"
        "  hutch exec $id -- python3 -c 'print(6 * 7)'\n"
        "  hutch exec -u root -w / $id -- sh -c 'id; ls'\n"
        "  tar c src | hutch exec -i $id -- tar x\n\n"
        "It returns when the command has ended and its output is closed. Processes that it leaves behind may hold "
        "that\n"
        "open: start them with -d, send their output elsewhere, or leave them with Ctrl-C.\n";
    bool input = false, tty = false, detach = false;
    const char *cwd = NULL, *user = NULL;
    struct exec_rights_options less __attribute__((cleanup(exec_rights_done))) = {0};
    struct strv env __attribute__((cleanup(strv_done))) = {0};
    const struct node_option options[] = {{"no-network", 0, &less.no_network, NULL, NULL},
                                          {"ro", 0, &less.read_only, NULL, NULL},
                                          {"write", 0, NULL, NULL, &less.write},
                                          {"own-user", 0, &less.own_user, NULL, NULL},
                                          {"timeout", 0, NULL, &less.timeout, NULL},
                                          {"output-limit", 0, NULL, &less.output_limit, NULL},
                                          {"memory", 0, NULL, &less.memory, NULL},
                                          {"stdin", 'i', &input, NULL, NULL},
                                          {"tty", 't', &tty, NULL, NULL},
                                          {"env", 'e', NULL, NULL, &env},
                                          {"chdir", 'C', NULL, &cwd, NULL},
                                          {"user", 'u', NULL, &user, NULL},
                                          {"workdir", 'w', NULL, &cwd, NULL},
                                          {"detach", 'd', &detach, NULL, NULL},
                                          {0}};
    const struct node_command c = {"exec", usage, options, 2, -1, true};
    struct node_call call;
    struct err err;
    int code;
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    char **command = call.args + 1;
    if (strcmp(command[0], "--") == 0)
        command++;
    if (!command[0])
        return err_set(&err, ERR_USAGE, 0, "exec: no command was given"), cli_fail(&err);
    if (detach && (input || tty))
        return err_set(&err, ERR_USAGE, 0, "exec: --detach excludes --stdin and --tty"), cli_fail(&err);
    if (tty && !isatty(STDIN_FILENO))
        return err_set(&err, ERR_USAGE, 0, "exec: --tty needs a terminal on standard input"), cli_fail(&err);
    if (node_take_id(&call, 0, &err) < 0 || api_sandbox(&call.api, call.args[0], &err) < 0)
        return cli_fail(&err);
    if (user && api_user(&call.api, user, &err) < 0)
        return cli_fail(&err);
    _cleanup_free_ char *rights = NULL;
    if (exec_rights_text(&call.api, &less, &rights, &err) < 0)
        return cli_fail(&err);
    const struct exec_request q = {.command = command,
                                   .env = &env,
                                   .cwd = cwd,
                                   .rights = rights,
                                   .pty = tty,
                                   .input = input || tty,
                                   .detach = detach,
                                   .json = call.json};
    code = exec_in_sandbox(&call.api, &q, &err);
    if (code > 0)
        exec_rights_explain(&less);
    return code < 0 ? exec_fail_code(&err) : code;
}

int exec_shell(const struct api *api, struct err *err)
{
    static char *const shell[] = {(char *)"/bin/bash", (char *)"-i", (char *)"-l", NULL};
    struct strv env __attribute__((cleanup(strv_done))) = {0};
    const char *term = getenv("TERM");
    char line[128];
    if (!isatty(STDIN_FILENO))
        return err_set(err, ERR_USAGE, 0, "a shell needs a terminal; for scripts there is hutch exec");
    strv_add(&env, "LANG=C.UTF-8");
    (void)snprintf(line, sizeof line, "TERM=%.100s", term ? term : "xterm-256color");
    strv_add(&env, line);
    const struct exec_request q = {.command = shell, .env = &env, .pty = true, .input = true};
    return exec_in_sandbox(api, &q, err);
}

int cmd_shell(int argc, char **argv)
{
    static const char usage[] = "usage: hutch shell [-u USER] ID\n\nOpens a login shell (/bin/bash) in a sandbox, with "
                                "a terminal of its own, as the template's "
                                "user.\n\n  -u, --user NAME   as this user\n\n"
                                "example: hutch shell $(hutch create host)\n";
    const char *user = NULL;
    const struct node_option options[] = {{"user", 'u', NULL, &user, NULL}, {0}};
    const struct node_command c = {"shell", usage, options, 1, 1, false};
    struct node_call call;
    struct err err;
    int code;
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    if (node_take_id(&call, 0, &err) < 0 || api_sandbox(&call.api, call.args[0], &err) < 0 ||
        (user && api_user(&call.api, user, &err) < 0))
        return cli_fail(&err);
    code = exec_shell(&call.api, &err);
    return code < 0 ? cli_fail(&err) : code;
}
