/* say.c - sends the worker's messages to its job, and keeps the class of a failure in struct err. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/text.h"
#include "image/image-int.h"

enum { PROGRESS_MS = 200, SHOWN = 4 };

/* struct err has no member for our classes, so they are kept in its stage. */
static const char *const stages[] = {
    [IMAGE_BAD_DATA] = "bad data", [IMAGE_TOO_LARGE] = "too large", [IMAGE_NOT_FOUND] = "not found",
    [IMAGE_DENIED] = "denied",     [IMAGE_NETWORK] = "network",     [IMAGE_HOST] = "host",
};

int image_fail(struct err *err, enum image_failure f, const char *fmt, ...)
{
    va_list ap;
    err->code = f == IMAGE_TOO_LARGE ? ERR_LIMIT : f == IMAGE_HOST ? ERR_HOST : ERR_USAGE;
    err->eno = 0;
    (void)snprintf(err->stage, sizeof err->stage, "%s", stages[f]);
    va_start(ap, fmt);
    (void)vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return -1;
}

enum image_failure image_failure_of(const struct err *err)
{
    for (size_t i = IMAGE_BAD_DATA; i < ARRAY_LEN(stages); i++)
        if (strcmp(err->stage, stages[i]) == 0)
            return (enum image_failure)i;
    return err->code == ERR_USAGE ? IMAGE_BAD_DATA : err->code == ERR_LIMIT ? IMAGE_TOO_LARGE : IMAGE_HOST;
}

const char *image_shown(const char *name)
{
    static char shown[SHOWN][IMAGE_NAME_SHOWN + 16];
    static unsigned turn;
    char *ret = shown[turn++ % SHOWN];
    _cleanup_buf_ struct buf b = {0};
    text_add_safe(&b, name ? name : "", IMAGE_NAME_SHOWN);
    (void)snprintf(ret, sizeof shown[0], "%s", buf_str(&b));
    return ret;
}

static int send_message(struct image_message *m, int fd)
{
    m->version = IMAGE_VERSION;
    return fd_send(IMAGE_FD_CONTROL, m, sizeof *m, &fd, fd >= 0 ? 1 : 0);
}

int say_layer(uint32_t index, uint32_t count, const uint8_t diff_id[SHA256_BYTES], struct err *err)
{
    struct image_message m = {.type = IMAGE_LAYER, .index = index, .count = count}, answer;
    size_t nfds = 0;
    memcpy(m.diff_id, diff_id, SHA256_BYTES);
    if (send_message(&m, -1) < 0)
        return image_fail(err, IMAGE_HOST, "cannot tell the job about layer %u", index + 1);
    ssize_t n = fd_recv(IMAGE_FD_CONTROL, &answer, sizeof answer, NULL, &nfds);
    if (n != (ssize_t)sizeof answer || answer.version != IMAGE_VERSION || answer.type != IMAGE_GO)
        return image_fail(err, IMAGE_HOST, "the job did not answer about layer %u", index + 1);
    return 0;
}

int say_config(const char *text, size_t n, struct err *err)
{
    struct image_message m = {.type = IMAGE_CONFIG, .total = n};
    _cleanup_close_ int fd = memfd_create("image-config", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || fd_write_all(fd, text, n) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0 ||
        send_message(&m, fd) < 0)
        return image_fail(err, IMAGE_HOST, "cannot hand over the image's configuration: %s", strerror(errno));
    return 0;
}

void say_progress(uint64_t done, uint64_t total, const char *text)
{
    static int64_t last = -PROGRESS_MS;
    struct timespec now;
    struct image_message m = {.type = IMAGE_PROGRESS, .done = done, .total = total};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    if (ms - last < PROGRESS_MS)
        return;
    last = ms;
    (void)snprintf(m.text, sizeof m.text, "%s", text);
    m.version = IMAGE_VERSION;
    /* Never block: the job may be busy reading our output. */
    struct iovec iov = {.iov_base = &m, .iov_len = sizeof m};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    (void)sendmsg(IMAGE_FD_CONTROL, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int say_done(const struct image_message *m, struct err *err)
{
    struct image_message copy = *m;
    copy.type = IMAGE_DONE;
    return send_message(&copy, -1) < 0 ? image_fail(err, IMAGE_HOST, "the job is gone") : 0;
}

void say_failed(const struct err *err)
{
    struct image_message m = {.type = IMAGE_FAILED, .failure = image_failure_of(err)};
    (void)snprintf(m.text, sizeof m.text, "%.*s", (int)sizeof m.text - 1, err->msg);
    /* Close the output first: the job reads control only after the end of the stream. */
    (void)close(IMAGE_FD_OUT);
    (void)send_message(&m, -1);
}
