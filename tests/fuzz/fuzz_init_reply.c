/* Messages of a hostile init, as links read them. The first byte says what was asked, and by its highest bit whether over a
 * byte stream, where a connection that takes a ticket hears the same messages; the rest is one message after the
 * other: two bytes of length, the bytes. The right request number is put in where the message leaves it 0. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "init/proto.h"
#include "peers/exec.h"
#include "peers/files.h"
#include "rpc/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct loop *loop;
static struct links *links;
static int run_dir, listeners[2]; /* of packets, of a stream */
static const char *const ids[2] = {"box", "stream"};
static const char *id;
static char dir[] = "/tmp/hutch-fuzz-XXXXXX";

static void clean(void)
{
    (void)unlinkat(run_dir, "box.sock", 0);
    (void)unlinkat(run_dir, "stream.sock", 0);
    (void)rmdir(dir);
}

static void prepare(void)
{
    struct err err;
    if (!mkdtemp(dir))
        abort();
    run_dir = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < 2; i++) {
        struct sockaddr_un sa = {.sun_family = AF_UNIX};
        listeners[i] = socket(AF_UNIX, (i ? SOCK_STREAM : SOCK_SEQPACKET) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)snprintf(sa.sun_path, sizeof sa.sun_path, "%s/%s.sock", dir, ids[i]);
        if (bind(listeners[i], (struct sockaddr *)&sa, sizeof sa) < 0 || listen(listeners[i], 4) < 0)
            abort();
    }
    if (loop_new(&loop, &err) < 0 || links_new(loop, run_dir, &links, &err) < 0)
        abort();
    (void)atexit(clean);
}

static int over;
static void done(void *arg, const struct link_status *st)
{
    (void)arg;
    (void)st;
    over++;
}
static void opened(void *arg, const struct link_status *st, int fd, const struct file_info *i)
{
    if (fd >= 0)
        (void)close(fd);
    if ((st->code == LINK_OK) != (i != NULL))
        abort();
    done(arg, st);
}
static void info(void *arg, const struct link_status *st, const struct file_info *i) { opened(arg, st, -1, i); }
static void listed(void *arg, const struct link_status *st, const struct file_info *v, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t m = 0; m < v[i].nmeta; m++)
            sum += strlen(v[i].meta[m].value) + strlen(v[i].path);
    if (sum > INIT_BIG_REPLY)
        abort();
    done(arg, st);
}
static void commands(void *arg, const struct link_status *st, const struct exec_info *v, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t a = 0; v[i].args[a]; a++)
            sum += strlen(v[i].args[a]);
    if (sum > INIT_BIG_REPLY)
        abort();
    done(arg, st);
}
static void started(void *arg, uint32_t pid, const char *tag)
{
    (void)arg;
    (void)pid;
    (void)tag;
}
static bool output(void *arg, enum exec_stream s, uint64_t offset, const void *p, size_t n)
{
    (void)arg;
    (void)s;
    (void)offset;
    (void)p;
    (void)n;
    return true;
}
static void ended(void *arg, const struct exec_end *end)
{
    (void)arg;
    (void)end;
    over++;
}
static const struct exec_ops exec_ops = {started, output, ended, done};
static void watching(void *arg) { (void)arg; }
static void event(void *arg, enum file_event t, const char *name, const struct file_info *i)
{
    (void)arg;
    (void)t;
    (void)name;
    (void)i;
}
static const struct file_watch_ops watch_ops = {watching, event, done};

static void ask(uint8_t what)
{
    struct exec_spec s = {.cmd = "x"};
    struct exec_select who = {.pid = 1};
    switch (what % 8) {
    case 0:
        (void)exec_start(links, id, &s, &exec_ops, NULL);
        break;
    case 1:
        (void)files_open(links, id, NULL, "p", opened, NULL);
        break;
    case 2:
        (void)files_stat(links, id, NULL, "p", info, NULL);
        break;
    case 3:
        (void)files_list(links, id, NULL, "p", 1, listed, NULL);
        break;
    case 4:
        (void)exec_list(links, id, commands, NULL);
        break;
    case 5:
        (void)files_watch(links, id, NULL, "p", true, true, false, &watch_ops, NULL);
        break;
    case 6:
        (void)exec_input(links, id, &who, "abc", 3, done, NULL);
        break;
    default:
        (void)link_hello(links, id, done, NULL);
        break;
    }
}

/* Sends the messages of the input. */
static void say_all(int peer, bool stream, uint64_t request, const uint8_t *data, size_t size)
{
    static unsigned char msg[FRAME_HEAD + INIT_MSG_MAX];
    struct init_head h;
    for (size_t at = 1; at + 2 <= size;) {
        size_t n = (size_t)data[at] | (size_t)data[at + 1] << 8;
        at += 2;
        n = n < size - at ? n : size - at;
        frame_put_head(msg, n);
        memcpy(msg + FRAME_HEAD, data + at, n);
        at += n;
        if (n >= sizeof h) {
            memcpy(&h, msg + FRAME_HEAD, sizeof h);
            h.request = h.request == 0 ? request : h.request;
            memcpy(msg + FRAME_HEAD, &h, sizeof h);
        }
        (void)send(peer, stream ? msg : msg + FRAME_HEAD, stream ? FRAME_HEAD + n : n, MSG_NOSIGNAL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char msg[INIT_MSG_MAX];
    struct err err;
    struct init_head h = {0};
    if (size < 1)
        return 0;
    if (!loop)
        prepare();
    over = 0;
    bool stream = data[0] & 0x80;
    int listener = listeners[stream];
    id = ids[stream];
    ask(data[0]);
    int peer = -1;
    for (int i = 0; i < 20 && peer < 0; i++) {
        (void)loop_step(loop, 1, &err);
        peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    }
    size_t skip = stream ? FRAME_HEAD : 0;
    if (peer < 0 || recv(peer, msg, sizeof msg, 0) < (ssize_t)(skip + sizeof h))
        abort();
    memcpy(&h, msg + skip, sizeof h);
    say_all(peer, stream, h.request, data, size);
    for (int i = 0; i < 3; i++)
        (void)loop_step(loop, 0, &err);
    for (int taker; (taker = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
        say_all(taker, true, h.request, data, size);
        (void)loop_step(loop, 0, &err);
        (void)close(taker);
    }
    (void)close(peer);
    for (int i = 0; i < 20 && over == 0; i++)
        (void)loop_step(loop, 1, &err);
    if (over != 1)
        abort(); /* exactly once */
    links_gone(links, id);
    return 0;
}
