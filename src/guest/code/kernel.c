#include "guest/code/kernel-int.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/text.h"

enum {
    ASK_AGAIN_MS = 250,
    LAST_WORDS_MS = 100, /* between the end of the process and the last look at its sockets */
    MESSAGES_PER_ROUND = 500,
    BYTES_PER_ROUND = 8 * 1024 * 1024, /* timers and clients wait no longer than these take */
    IOPUB_QUEUE = 10 * 1000,           /* messages; a publisher drops what its subscriber has no room for */
};

static void kernel_pump(void *arg);

static void kernel_send(struct kernel *k, int which, const char *id, const char *type, json_t *content)
{
    struct wire_out out;
    wire_encode(k->key, k->session, id, type, content, &out);
    (void)zmq_send(k->socket[which], "<IDS|MSG>", 9, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    (void)zmq_send(k->socket[which], out.signature, 64, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    for (int i = 0; i < 4; i++)
        (void)zmq_send(k->socket[which], buf_str(&out.frame[i]), out.frame[i].n,
                       ZMQ_DONTWAIT | (i < 3 ? ZMQ_SNDMORE : 0));
    wire_out_done(&out);
    /* Sending may have taken the note that something came: look. */
    if (!k->again) {
        k->again = true;
        loop_defer(k->world->loop, kernel_pump, k);
    }
}

void kernel_execute(struct kernel *k, const char *id, const char *code, bool silent)
{
    /* stop_on_error would also stop what puts the variables back. */
    json_t *content = json_pack("{ss sb sb s{} sb sb}", "code", code, "silent", silent, "store_history", !silent,
                                "user_expressions", "allow_stdin", 0, "stop_on_error", 0);
    kernel_send(k, SHELL, id, "execute_request", content);
}

bool kernel_interrupt(struct kernel *k)
{
    char id[WIRE_ID + 1];
    if (k->language->interrupt == INTERRUPT_RESTART)
        return false;
    if (k->by_message || k->language->interrupt == INTERRUPT_MESSAGE) {
        random_hex(id, WIRE_ID / 2);
        kernel_send(k, CONTROL, id, "interrupt_request", json_object());
        return true;
    }
    return kill(-k->pid, SIGINT) == 0;
}

static void kernel_on_message(struct kernel *k, int which, const struct wire_msg *m, const char *why)
{
    k->heard |= which == IOPUB;
    k->answered |= which == SHELL;
    if (k->ready) {
        k->events->message(k->arg, m, why);
    } else if (k->heard && k->answered) {
        k->ready = true;
        loop_timer_del(k->world->loop, k->ask);
        loop_timer_del(k->world->loop, k->deadline);
        k->events->ready(k->arg);
    }
}

static void kernel_read(struct kernel *k, int which, const struct wire_part *part, size_t n)
{
    struct wire_msg m;
    struct err err;
    if (k->ready && which == IOPUB) {
        const char *id = k->events->wanted(k->arg);
        if (!id || !wire_has_parent(part, n, id))
            return;
    }
    if (wire_decode(k->key, part, n, &m, &err) == 0)
        kernel_on_message(k, which, &m, NULL);
    else if (m.header)
        kernel_on_message(k, which, &m, err.msg);
    else
        log_text(LOG_LEVEL_WARN, "%s: %s", k->language->name, err.msg);
    wire_msg_done(&m);
}

/* Takes one message from a socket and says how long it was; 0: there is none. */
static size_t kernel_receive(struct kernel *k, int which)
{
    zmq_msg_t frame[WIRE_FRAMES_MAX];
    struct wire_part part[WIRE_FRAMES_MAX];
    size_t n = 0, bytes = 0;
    int more = 1;
    while (more && n < WIRE_FRAMES_MAX) {
        (void)zmq_msg_init(&frame[n]);
        if (zmq_msg_recv(&frame[n], k->socket[which], ZMQ_DONTWAIT) < 0) {
            (void)zmq_msg_close(&frame[n]);
            break;
        }
        part[n] = (struct wire_part){zmq_msg_data(&frame[n]), zmq_msg_size(&frame[n])};
        bytes += part[n].n + 1;
        more = zmq_msg_more(&frame[n++]);
    }
    for (char rest[1]; n > 0 && more && zmq_recv(k->socket[which], rest, sizeof rest, ZMQ_DONTWAIT) >= 0;) {
        size_t size = sizeof more;
        (void)zmq_getsockopt(k->socket[which], ZMQ_RCVMORE, &more, &size);
    }
    if (n > 0)
        kernel_read(k, which, part, n);
    while (n > 0)
        (void)zmq_msg_close(&frame[--n]);
    return bytes;
}

static bool kernel_has_input(struct kernel *k, int which)
{
    int events = 0;
    size_t n = sizeof events;
    return zmq_getsockopt(k->socket[which], ZMQ_EVENTS, &events, &n) == 0 && (events & ZMQ_POLLIN) != 0;
}

/* libzmq's descriptors tell once that something came: everything must be taken, or looked for again. */
static void kernel_pump(void *arg)
{
    struct kernel *k = arg;
    size_t left = BYTES_PER_ROUND;
    int budget = MESSAGES_PER_ROUND;
    k->again = false;
    for (int i = 0; i < SOCKETS; i++)
        while (!k->dead && budget > 0 && left > 0 && kernel_has_input(k, i)) {
            size_t n = kernel_receive(k, i);
            left -= n < left ? n : left;
            budget = n > 0 ? budget - 1 : 0;
        }
    if (!k->dead && (budget <= 0 || left == 0) && !k->again) {
        k->again = true;
        loop_defer(k->world->loop, kernel_pump, k);
    }
}

static void kernel_on_socket(void *arg, int fd, unsigned events)
{
    (void)fd;
    (void)events;
    kernel_pump(arg);
}

static void kernel_on_ask(void *arg)
{
    struct kernel *k = arg;
    char id[WIRE_ID + 1];
    random_hex(id, WIRE_ID / 2);
    k->ask = loop_timer(k->world->loop, ASK_AGAIN_MS, kernel_on_ask, k);
    kernel_send(k, SHELL, id, "kernel_info_request", json_object());
}

static void kernel_on_deadline(void *arg)
{
    struct kernel *k = arg;
    char why[KERNEL_WHY];
    k->deadline = 0;
    (void)snprintf(why, sizeof why, "the kernel of %s was not ready within %d s", k->language->name,
                   KERNEL_START_MS / 1000);
    k->events->gone(k->arg, false, why);
}

/* Keeps the end of what it writes to its own stderr: the reason, if it does not start. */
static void kernel_on_said(void *arg, int fd, unsigned events)
{
    struct kernel *k = arg;
    char piece[TAIL];
    ssize_t n = read(fd, piece, sizeof piece);
    (void)events;
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN)
            loop_fd_set(k->world->loop, k->watch_said, 0);
        return;
    }
    size_t keep = k->ntail + (size_t)n > TAIL ? TAIL - (size_t)n : k->ntail;
    memmove(k->tail, k->tail + k->ntail - keep, keep);
    memcpy(k->tail + keep, piece, (size_t)n);
    k->ntail = keep + (size_t)n;
}

static void kernel_on_last(void *arg)
{
    struct kernel *k = arg;
    siginfo_t info = {0};
    char why[KERNEL_WHY];
    k->last = 0;
    kernel_pump(k);
    if (k->dead)
        return;
    (void)waitid(P_PID, (id_t)k->pid, &info, WEXITED | WNOHANG | WNOWAIT);
    const char *name = info.si_code == CLD_EXITED ? NULL : text_signal(info.si_status);
    if (name)
        (void)snprintf(why, sizeof why, "the kernel of %s ended with signal %s", k->language->name, name);
    else
        (void)snprintf(why, sizeof why, "the kernel of %s ended with code %d", k->language->name, info.si_status);
    if (!k->ready && k->ntail > 0) {
        _cleanup_buf_ struct buf safe = {0};
        size_t skip = k->ntail > 300 ? k->ntail - 300 : 0;
        k->tail[k->ntail] = '\0';
        text_add_safe(&safe, k->tail + skip, 380);
        (void)snprintf(why + strlen(why), sizeof why - strlen(why), ": %s", buf_str(&safe));
    }
    k->events->gone(k->arg, k->ready, why);
}

static void kernel_on_ended(void *arg, int fd, unsigned events)
{
    struct kernel *k = arg;
    (void)fd;
    (void)events;
    loop_fd_set(k->world->loop, k->watch_pid, 0);
    k->last = loop_timer(k->world->loop, LAST_WORDS_MS, kernel_on_last, k);
}

static int kernel_connect(struct kernel *k, struct err *err)
{
    static const int types[SOCKETS] = {ZMQ_DEALER, ZMQ_SUB, ZMQ_DEALER};
    int zero = 0, queue = IOPUB_QUEUE, soon = 20;
    for (int i = 0; i < SOCKETS; i++) {
        _cleanup_buf_ struct buf address = {0};
        int fd = -1;
        size_t n = sizeof fd;
        k->socket[i] = zmq_socket(k->world->zmq, types[i]);
        if (!k->socket[i])
            return err_set(err, ERR_SETUP, errno, "make a socket for the kernel");
        (void)zmq_setsockopt(k->socket[i], ZMQ_LINGER, &zero, sizeof zero);
        (void)zmq_setsockopt(k->socket[i], ZMQ_RECONNECT_IVL, &soon, sizeof soon);
        if (i == IOPUB) {
            (void)zmq_setsockopt(k->socket[i], ZMQ_RCVHWM, &queue, sizeof queue);
            (void)zmq_setsockopt(k->socket[i], ZMQ_SUBSCRIBE, "", 0);
        }
        kernel_add_address(k, i, &address);
        if (zmq_connect(k->socket[i], buf_str(&address)) < 0 || zmq_getsockopt(k->socket[i], ZMQ_FD, &fd, &n) < 0)
            return err_set(err, ERR_SETUP, errno, "connect to the kernel at %s", buf_str(&address));
        k->watch[i] = loop_fd_add(k->world->loop, fd, LOOP_IN, kernel_on_socket, k);
        if (k->watch[i] == 0)
            return err_set(err, ERR_SETUP, errno, "watch a socket of the kernel");
    }
    return 0;
}

/* IPython copies a README there if it is missing, with its mode, which a kernel that may not write cannot set. */
static int kernel_make_profile(const struct kernel *k, struct err *err)
{
    static const char *const dirs[] = {"profile_default", "profile_default/startup"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
        _cleanup_free_ char *dir = xasprintf("%s/%s", k->own, dirs[i]);
        if (mkdir(dir, 0700) < 0)
            return err_set(err, ERR_SETUP, errno, "make %s", dir);
    }
    _cleanup_free_ char *file = xasprintf("%s/%s/README", k->own, dirs[1]);
    _cleanup_close_ int fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return fd < 0 ? err_set(err, ERR_SETUP, errno, "make %s", file) : 0;
}

/* Its files are in a directory of its own, which is all that a kernel without the right to write may change. */
static int kernel_make_place(struct kernel *k, struct err *err)
{
    struct kernel_world *w = k->world;
    if (!k->rights->said) {
        k->file = xasprintf("%s/%u.json", w->dir, ++w->made);
        return 0;
    }
    k->own = xasprintf("%s/%u-%.8s", w->dir, ++w->made, k->session); /* a killed service may have left a number */
    k->file = xasprintf("%s/kernel.json", k->own);
    if (mkdir(k->own, 0700) < 0)
        return err_set(err, ERR_SETUP, errno, "make %s", k->own);
    return k->rights->limit_write ? kernel_make_profile(k, err) : 0;
}

int kernel_start(struct kernel_world *w, const struct language *l, const char *cwd, const struct kernel_rights *rights,
                 const struct kernel_events *events, void *arg, struct kernel **ret, struct err *err)
{
    json_t *spec = language_spec(l, w->path, err);
    if (!spec)
        return -1;
    struct kernel *k = xcalloc(1, sizeof *k);
    *k = (struct kernel){
        .world = w, .language = l, .rights = rights, .events = events, .arg = arg, .pidfd = -1, .said = -1};
    const char *mode = json_string_value(json_object_get(spec, "interrupt_mode"));
    k->by_message = mode && strcmp(mode, "message") == 0;
    random_hex(k->key, WIRE_KEY / 2);
    random_hex(k->session, WIRE_ID / 2);
    int result = kernel_make_place(k, err) < 0 || kernel_write_file(k, err) < 0 ||
                         kernel_spawn(k, spec, cwd, err) < 0 || kernel_connect(k, err) < 0
                     ? -1
                     : 0;
    json_decref(spec);
    if (result < 0) {
        kernel_free(k);
        return -1;
    }
    k->watch_pid = loop_fd_add(w->loop, k->pidfd, LOOP_IN, kernel_on_ended, k);
    k->watch_said = loop_fd_add(w->loop, k->said, LOOP_IN, kernel_on_said, k);
    k->deadline = loop_timer(w->loop, KERNEL_START_MS, kernel_on_deadline, k);
    kernel_on_ask(k);
    *ret = k;
    return 0;
}

static void kernel_on_free(void *arg)
{
    struct kernel *k = arg;
    free(k->file);
    free(k->own);
    free(k);
}

void kernel_free(struct kernel *k)
{
    if (!k || k->dead)
        return;
    struct loop *l = k->world->loop;
    k->dead = true;
    loop_timer_del(l, k->ask);
    loop_timer_del(l, k->deadline);
    loop_timer_del(l, k->last);
    loop_fd_del(l, k->watch_pid);
    loop_fd_del(l, k->watch_said);
    for (int i = 0; i < SOCKETS; i++) {
        loop_fd_del(l, k->watch[i]);
        if (k->socket[i])
            (void)zmq_close(k->socket[i]);
    }
    for (int i = 0; i < PORTS && kernel_uses_ipc(k); i++) {
        _cleanup_buf_ struct buf address = {0};
        kernel_add_address(k, i, &address);
        (void)unlink(buf_str(&address) + strlen("ipc://"));
    }
    (void)unlink(k->file);
    kernel_end_process(k);
    if (k->own)
        kernel_remove_own(k);
    loop_defer(l, kernel_on_free, k);
}
