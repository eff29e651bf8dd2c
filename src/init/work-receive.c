/* work-receive.c - a long-lived helper that writes what comes over a socket into a file. It runs inside so that the
 * memory is charged to the sandbox, not to front. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "init/work.h"

enum { PIECE = 256 * 1024, SMALL_PIECE = 32 * 1024, SMALL = 1 << 20, IDLE_MS = 10 * 60 * 1000 };
enum { TOO_LATE = -1, CUT_OFF = -2 }; /* beside the numbers of errno */

/* Copies until the end of the stream or `max` bytes; *ended says which. 0, errno, TOO_LATE or CUT_OFF. */
static int receive_copy_stream(int from, int to, size_t piece, uint64_t max, bool *ended)
{
    static char buf[PIECE];
    *ended = false;
    for (uint64_t done = 0; done < max;) {
        struct pollfd p = {.fd = from, .events = POLLIN};
        ssize_t n = recv(from, buf, piece, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) {
            int ready = poll(&p, 1, IDLE_MS);
            if (ready == 0)
                return TOO_LATE;
            if (ready < 0 && errno != EINTR)
                return errno;
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == ECONNRESET ? CUT_OFF : errno;
        if (n == 0) { /* all of it, or front is gone */
            *ended = true;
            return 0;
        }
        if (fd_write_all(to, buf, (size_t)n) < 0)
            return errno;
        done += (uint64_t)n;
    }
    return 0;
}

/* Sends code and text in the form of INIT_REPLY. */
static void receive_report(struct work *w, int sock, enum init_code code, const char *text) __attribute__((noreturn));
static void receive_report(struct work *w, int sock, enum init_code code, const char *text)
{
    struct wire_out o = work_begin(w);
    wire_put_u32(&o, code);
    wire_put_str(&o, text);
    if (!o.bad)
        (void)send(sock, w->out + sizeof(struct init_head), o.n, MSG_NOSIGNAL);
    (void)shutdown(sock, SHUT_RDWR); /* the guard may hold it a moment longer */
    _exit(0);
}

static void report_errno(struct work *w, int sock, int eno) __attribute__((noreturn));
static void report_errno(struct work *w, int sock, int eno)
{
    char text[INIT_TEXT_MAX];
    switch (eno) {
    case 0:
        receive_report(w, sock, INIT_OK, "");
    case ENOSPC:
    case EDQUOT:
        receive_report(w, sock, INIT_NO_SPACE, "not enough disk space in the sandbox");
    case ENOMEM:
        receive_report(w, sock, INIT_NO_SPACE, "not enough memory in the sandbox for the file");
    case EFBIG:
        receive_report(w, sock, INIT_NO_SPACE, "the file is larger than a file may be in this sandbox");
    case EEXIST:
        receive_report(w, sock, INIT_EXISTS, "the path exists already");
    case CUT_OFF:
        receive_report(w, sock, INIT_IO, "the upload was cut off; nothing was changed");
    case TOO_LATE:
        receive_report(w, sock, INIT_TIMEOUT, "nothing more of the file came for 10 minutes");
    default:
        (void)snprintf(text, sizeof text, "the file cannot be written: %s", strerror(eno));
        receive_report(w, sock, INIT_IO, text);
    }
}

/* When the sandbox's memory is full the kernel kills the writer. So a second, smaller process waits beside it, removes
 * the partial file, which frees the memory, and reports the failure. */
static void receive_start_guard(struct work *w, const int pair[2], const struct upload *u)
{
    int alive[2];
    char byte;
    if (pipe2(alive, O_CLOEXEC) < 0)
        return;
    pid_t pid = _Fork();
    if (pid != 0) {
        (void)close(alive[0]); /* the other end closes with this process, written to or not */
        w->guard = alive[1];
        return;
    }
    (void)close(alive[1]);
    (void)close(pair[1]);
    (void)close(w->sock); /* its end tells init that the writer is gone */
    ssize_t n;
    do
        n = read(alive[0], &byte, 1);
    while (n < 0 && errno == EINTR);
    if (n != 0)
        _exit(0);
    work_upload_drop(u);
    (void)!ftruncate(u->fd, 0);
    receive_report(w, pair[0], INIT_NO_SPACE,
                   "the file does not fit in the memory that the sandbox has left; nothing was changed");
}

/* Tells a complete upload from a broken one: front closes only its sending direction when all bytes are sent. */
static bool sender_is_gone(int sock)
{
    struct pollfd p = {.fd = sock};
    return poll(&p, 1, 0) < 0 || (p.revents & (POLLHUP | POLLERR));
}

void work_receive(struct work *w, const struct init_info *i, struct upload *u)
{
    int pair[2];
    bool ended;
    w->guard = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        work_fail_errno(w, errno, w->path);
    receive_start_guard(w, pair, u);
    work_reply_info(w, i, pair[1]);
    (void)close(pair[1]);
    int eno = receive_copy_stream(pair[0], u->fd, SMALL_PIECE, SMALL, &ended);
    if (eno == 0 && !ended)
        eno = receive_copy_stream(pair[0], u->fd, PIECE, UINT64_MAX, &ended);
    if (eno == 0 && sender_is_gone(pair[0]))
        eno = CUT_OFF;
    if (eno == 0 && (u->rooted ? work_rooted_publish(w, u) : work_upload_publish(w, u)) < 0)
        eno = errno;
    if (eno != 0)
        work_upload_drop(u);
    if (w->guard >= 0)
        (void)!write(w->guard, "", 1);
    if (close(u->fd) < 0 && errno != EINTR && eno == 0)
        eno = errno;
    report_errno(w, pair[0], eno);
}
