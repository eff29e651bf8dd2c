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
#include <unistd.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/fields.h"
#include "base/json.h"
#include "cli/client/node.h"

enum { INPUT_BYTES = 32 * 1024 };

struct session {
    const struct api *api;
    long pid; /* 0 until it is known */
    bool pty, input_open;
    int signals; /* signalfd */
    int code;    /* exit code, -1 until the end */
    int hung_up; /* the signal, or SIGHUP, after which our terminal is gone; 0 */
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
            (void)exec_call_process(s, "process.Process/SendSignal", "SIGNAL_SIGTERM", false, &ignored);
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

static int exec_put_output(int fd, const json_t *data, struct err *err)
{
    const char *text = json_string_value(data);
    _cleanup_buf_ struct buf bytes = {0};
    if (!text)
        return 0;
    if (!base64_decode(&bytes, text, strlen(text)))
        return err_set(err, ERR_HOST, 0, "the node sent output that is not base64");
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
    if (end)
        s->code = end_code(end);
    if (data && (exec_put_output(1, json_object_get(data, "stdout"), err) < 0 ||
                 exec_put_output(1, json_object_get(data, "pty"), err) < 0 ||
                 exec_put_output(2, json_object_get(data, "stderr"), err) < 0))
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
static int exec_check_text(char *const *command, const struct strv *env, const char *cwd, struct err *err)
{
    char text[32];
    for (size_t i = 0; command[i]; i++) {
        (void)snprintf(text, sizeof text, "argument %zu", i);
        if (!json_may_hold(command[i]))
            return err_set(err, ERR_USAGE, 0,
                           "exec: %s is not UTF-8, and only text can be passed; send other bytes with -i or hutch cp",
                           i ? text : "the command");
    }
    for (size_t i = 0; i < env->n; i++)
        if (!json_may_hold(env->v[i]))
            return err_set(err, ERR_USAGE, 0, "exec: --env '%.*s' is not UTF-8, and only text can be passed",
                           (int)strcspn(env->v[i], "="), env->v[i]);
    if (cwd && !json_may_hold(cwd))
        return err_set(err, ERR_USAGE, 0, "exec: --chdir is not UTF-8, and only text can be passed");
    return 0;
}

static int exec_run_command(struct api *api, char *const *command, const struct strv *env, const char *cwd, bool pty,
                            bool input, struct err *err)
{
    if (exec_check_text(command, env, cwd, err) < 0)
        return -1;
    _cleanup_buf_ struct buf body = {0};
    struct session s = {.api = api, .pty = pty, .input_open = input, .code = -1};
    struct json j;
    json_start(&j, &body);
    json_obj(&j, NULL);
    json_obj(&j, "process");
    json_str(&j, "cmd", command[0]);
    json_arr(&j, "args");
    for (size_t i = 1; command[i]; i++)
        json_str(&j, NULL, command[i]);
    json_end_arr(&j);
    json_obj(&j, "envs");
    for (size_t i = 0; i < env->n; i++) {
        char *eq = strchr(env->v[i], '=');
        if (!eq)
            return err_set(err, ERR_USAGE, 0, "--env wants NAME=VALUE, not '%.80s'", env->v[i]);
        *eq = '\0';
        json_str(&j, env->v[i], eq + 1);
    }
    json_end_obj(&j);
    if (cwd)
        json_str(&j, "cwd", cwd);
    json_end_obj(&j);
    if (pty)
        add_size(&j);
    json_bool(&j, "stdin", input);
    json_end_obj(&j);

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
    if (pty)
        raw_modes();
    int r = exec_follow(&s, &stream, err);
    restore_modes();
    blocking_close(&stream);
    return r < 0 ? -1 : s.code;
}

/* Exit codes of a shell: 127 not found, 126 not executable. */
static int exec_fail_code(const struct err *err)
{
    int code = cli_fail(err);
    if (strncmp(err->msg, "command '", 9) == 0 && strstr(err->msg, "' not found"))
        return 127;
    return strncmp(err->msg, "cannot execute '", 16) == 0 ? 126 : code;
}

int cmd_exec(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch exec [options] ID [--] COMMAND [ARG...]\n\n"
        "Runs a command in a sandbox. Output and exit code come back as they are; a signal gives 128 + its number.\n\n"
        "  -i, --stdin           pass standard input on\n"
        "  -t, --tty             give it a terminal (implies -i)\n"
        "  -e, --env NAME=VALUE  set a variable for this command\n"
        "  -C, --chdir DIR       start in this directory (the user's home)\n"
        "  -u, --user NAME       run it as this user (the template's user)\n"
        "      --url URL         the node (HUTCH_URL)\n\n"
        "examples:\n"
        "  hutch exec $id -- python3 -c 'print(6 * 7)'\n"
        "  hutch exec -u root -C / $id -- sh -c 'id; ls'\n"
        "  tar c src | hutch exec -i $id -- tar x\n";
    bool input = false, tty = false;
    const char *cwd = NULL, *user = NULL;
    struct strv env __attribute__((cleanup(strv_done))) = {0};
    const struct node_option options[] = {{"stdin", 'i', &input, NULL, NULL}, {"tty", 't', &tty, NULL, NULL},
                                          {"env", 'e', NULL, NULL, &env},     {"chdir", 'C', NULL, &cwd, NULL},
                                          {"user", 'u', NULL, &user, NULL},   {0}};
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
    if (tty && !isatty(STDIN_FILENO))
        return err_set(&err, ERR_USAGE, 0, "exec: --tty needs a terminal on standard input"), cli_fail(&err);
    if (api_sandbox(&call.api, call.args[0], &err) < 0)
        return cli_fail(&err);
    if (user && api_user(&call.api, user, &err) < 0)
        return cli_fail(&err);
    code = exec_run_command(&call.api, command, &env, cwd, tty, input || tty, &err);
    return code < 0 ? exec_fail_code(&err) : code;
}

int cmd_shell(int argc, char **argv)
{
    static const char usage[] = "usage: hutch shell ID\n\nOpens a login shell (/bin/bash) in a sandbox, with a "
                                "terminal of its own, as the template's "
                                "user.\n\nexample: hutch shell $(hutch create host)\n";
    const struct node_command c = {"shell", usage, NULL, 1, 1, false};
    static char *const shell[] = {(char *)"/bin/bash", (char *)"-i", (char *)"-l", NULL};
    struct strv env __attribute__((cleanup(strv_done))) = {0};
    struct node_call call;
    struct err err;
    int code;
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    if (!isatty(STDIN_FILENO))
        return err_set(&err, ERR_USAGE, 0, "shell needs a terminal; for scripts there is hutch exec"), cli_fail(&err);
    if (api_sandbox(&call.api, call.args[0], &err) < 0)
        return cli_fail(&err);
    const char *term = getenv("TERM");
    strv_add(&env, "LANG=C.UTF-8");
    char line[128];
    (void)snprintf(line, sizeof line, "TERM=%.100s", term ? term : "xterm-256color");
    strv_add(&env, line);
    code = exec_run_command(&call.api, shell, &env, NULL, true, true, &err);
    return code < 0 ? cli_fail(&err) : code;
}
