/* fuzz_http_ws.c - a client's frames to a WebSocket that we serve, in pieces. No message may be above the limit, the caller hears
 * of the end exactly once, and nothing comes after it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "http/ws-serve.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MESSAGE_MAX = 300 };

static struct ws *ws;
static bool over, hung_up, ended, aborted;

static void carrier_set(struct http_req *r, const char *name, const char *value) { (void)r, (void)name, (void)value; }
static bool carrier_write(struct http_req *r, const void *p, size_t n)
{
    (void)r, (void)p;
    if (n == 0 || ended)
        abort();
    return true;
}
static void carrier_end(struct http_req *r)
{
    (void)r;
    if (ended)
        abort();
    ended = true;
}
static void carrier_abort(struct http_req *r)
{
    (void)r;
    aborted = true;
}
static void carrier_pause(struct http_req *r, bool on) { (void)r, (void)on; }
static bool carrier_upgrade(struct http_req *r)
{
    (void)r;
    return true;
}
static size_t carrier_queued(const struct http_req *r)
{
    (void)r;
    return 0;
}

static void on_message(void *arg, bool text, const void *p, size_t n)
{
    const struct http_req *r = arg;
    if (over || hung_up || n > MESSAGE_MAX || !r->user)
        abort();
    hung_up = n > 0 && *(const char *)p == 'q';
    if (hung_up)
        ws_hang_up(ws, WS_NORMAL, "as asked");
    else
        (void)ws_send(ws, text, p, n);
}
static void on_closed(void *arg)
{
    (void)arg;
    if (over || hung_up)
        abort();
    over = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct http_stream_ops ops = {.set = carrier_set,
                                               .write = carrier_write,
                                               .end = carrier_end,
                                               .abort = carrier_abort,
                                               .pause = carrier_pause,
                                               .upgrade = carrier_upgrade,
                                               .queued = carrier_queued};
    static const struct http_field fields[] = {{"connection", "upgrade"},
                                               {"upgrade", "websocket"},
                                               {"sec-websocket-version", "13"},
                                               {"sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="}};
    static const struct ws_events events = {on_message, NULL, on_closed};
    struct err err;
    const char *why;
    struct loop *loop;
    if (size < 1 || loop_new(&loop, &err) < 0)
        return 0;
    struct http_req r = {
        .method = "GET", .path = "/", .fields = {fields, ARRAY_LEN(fields)}, .version = 11, .loop = loop, .ops = &ops};
    over = hung_up = ended = aborted = false;
    ws = ws_serve(&r, NULL, MESSAGE_MAX, &events, &r, &why);
    if (!ws)
        abort();
    size_t step = data[0] ? data[0] : size;
    for (size_t i = 1; i < size; i += step)
        r.on_data(&r, data + i, size - i < step ? size - i : step);
    r.on_closed(&r);
    if (!over && !hung_up)
        abort();
    loop_free(loop);
    return 0;
}
