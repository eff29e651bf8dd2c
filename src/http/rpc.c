#include "http/rpc.h"

#include <assert.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/num.h"

static const struct {
    const char *name;
    unsigned status;
} codes[] = {
    [RPC_CANCELED] = {"canceled", 499},
    [RPC_UNKNOWN] = {"unknown", 500},
    [RPC_INVALID_ARGUMENT] = {"invalid_argument", 400},
    [RPC_DEADLINE_EXCEEDED] = {"deadline_exceeded", 504},
    [RPC_NOT_FOUND] = {"not_found", 404},
    [RPC_ALREADY_EXISTS] = {"already_exists", 409},
    [RPC_PERMISSION_DENIED] = {"permission_denied", 403},
    [RPC_RESOURCE_EXHAUSTED] = {"resource_exhausted", 429},
    [RPC_FAILED_PRECONDITION] = {"failed_precondition", 400},
    [RPC_ABORTED] = {"aborted", 409},
    [RPC_OUT_OF_RANGE] = {"out_of_range", 400},
    [RPC_UNIMPLEMENTED] = {"unimplemented", 501},
    [RPC_INTERNAL] = {"internal", 500},
    [RPC_UNAVAILABLE] = {"unavailable", 503},
    [RPC_DATA_LOSS] = {"data_loss", 500},
    [RPC_UNAUTHENTICATED] = {"unauthenticated", 401},
};

const char *rpc_code_name(enum rpc_code code)
{
    assert(code >= RPC_CANCELED && code < ARRAY_LEN(codes));
    return codes[code].name;
}

unsigned rpc_code_status(enum rpc_code code)
{
    assert(code >= RPC_CANCELED && code < ARRAY_LEN(codes));
    return codes[code].status;
}

/* ---- envelopes ---- */

static int rpc_on_head(struct rpc_reader *r, struct err *err)
{
    r->size = (uint32_t)r->head[1] << 24 | (uint32_t)r->head[2] << 16 | (uint32_t)r->head[3] << 8 | r->head[4];
    if (r->head[0] & RPC_FLAG_COMPRESSED)
        return err_set(err, ERR_USAGE, 0,
                       "the message is compressed, which was not agreed; send it as it is (flags 0)");
    if (r->head[0] & ~RPC_FLAG_END)
        return err_set(err, ERR_USAGE, 0, "unknown envelope flags 0x%02x; expected 0x00 or 0x02", r->head[0]);
    if (r->size > RPC_MESSAGE_MAX)
        return err_set(err, ERR_USAGE, 0, "a message of %u bytes; at most %d are taken", r->size, RPC_MESSAGE_MAX);
    return 0;
}

static int rpc_on_message(struct rpc_reader *r, rpc_message_fn *fn, void *arg, struct err *err)
{
    _cleanup_buf_ struct buf message = r->message;
    unsigned flags = r->head[0];
    r->message = (struct buf){0};
    r->have = 0;
    return fn(arg, flags, buf_str(&message), message.n, err);
}

int rpc_read(struct rpc_reader *r, const void *bytes, size_t n, rpc_message_fn *fn, void *arg, struct err *err)
{
    const uint8_t *p = bytes;
    while (n > 0) {
        if (r->have < RPC_HEAD) {
            r->head[r->have++] = *p++;
            n--;
            if (r->have < RPC_HEAD)
                continue;
            if (rpc_on_head(r, err) < 0)
                return -1;
        }
        size_t take = r->size - r->message.n;
        if (take > n)
            take = n;
        if (take > 0)
            buf_add(&r->message, p, take);
        p += take;
        n -= take;
        if (r->message.n == r->size && rpc_on_message(r, fn, arg, err) < 0)
            return -1;
    }
    return 0;
}

int rpc_read_end(const struct rpc_reader *r, struct err *err)
{
    if (r->have == 0)
        return 0;
    if (r->have < RPC_HEAD)
        return err_set(err, ERR_USAGE, 0, "the body ended after %zu of the %d bytes of an envelope's head", r->have,
                       RPC_HEAD);
    return err_set(err, ERR_USAGE, 0, "the body ended after %zu of the %u bytes of a message", r->message.n, r->size);
}

void rpc_reader_done(struct rpc_reader *r)
{
    buf_done(&r->message);
    *r = (struct rpc_reader){0};
}

static void rpc_envelope_head(uint8_t head[RPC_HEAD], unsigned flags, size_t n)
{
    assert(n <= RPC_MESSAGE_MAX);
    head[0] = (uint8_t)flags;
    for (unsigned i = 0; i < 4; i++)
        head[1 + i] = (uint8_t)(n >> (24 - 8 * i));
}

void rpc_envelope(struct buf *out, unsigned flags, const void *p, size_t n)
{
    uint8_t head[RPC_HEAD];
    rpc_envelope_head(head, flags, n);
    buf_add(out, head, sizeof head);
    buf_add(out, p, n);
}

void rpc_error_json(struct buf *out, enum rpc_code code, const char *message)
{
    struct json j;
    json_start(&j, out);
    json_obj(&j, NULL);
    json_str(&j, "code", rpc_code_name(code));
    json_str(&j, "message", message);
    json_end_obj(&j);
}

/* ---- answers ---- */

void rpc_reply(struct http_req *r, const char *json, size_t n) { http_reply(r, 200, "application/json", json, n); }

void rpc_error(struct http_req *r, enum rpc_code code, const char *message)
{
    _cleanup_buf_ struct buf body = {0};
    rpc_error_json(&body, code, message);
    http_reply(r, rpc_code_status(code), "application/json", body.p, body.n);
}

void rpc_stream_start(struct http_req *r)
{
    http_set(r, "content-type", "application/connect+json");
    http_head(r, 200, HTTP_UNKNOWN);
}

bool rpc_stream_send(struct http_req *r, const char *json, size_t n)
{
    _cleanup_buf_ struct buf frame = {0};
    rpc_envelope(&frame, 0, json, n);
    return http_write(r, frame.p, frame.n);
}

static void rpc_send_end(struct http_req *r, const struct buf *json)
{
    _cleanup_buf_ struct buf frame = {0};
    rpc_envelope(&frame, RPC_FLAG_END, json->p, json->n);
    (void)http_write(r, frame.p, frame.n);
    http_end(r);
}

void rpc_stream_end(struct http_req *r)
{
    _cleanup_buf_ struct buf json = {0};
    buf_adds(&json, "{}");
    rpc_send_end(r, &json);
}

void rpc_stream_error(struct http_req *r, enum rpc_code code, const char *message)
{
    _cleanup_buf_ struct buf json = {0};
    buf_adds(&json, "{\"error\":");
    rpc_error_json(&json, code, message);
    buf_addc(&json, '}');
    rpc_send_end(r, &json);
}

void rpc_stream_refuse(struct http_req *r, enum rpc_code code, const char *message)
{
    rpc_stream_start(r);
    rpc_stream_error(r, code, message);
}

/* ---- request fields ---- */

int rpc_timeout(const struct http_fields *f, uint64_t *ms, struct err *err)
{
    const char *value = http_field(f, "connect-timeout-ms");
    if (!value)
        return 0;
    if (strlen(value) > 10 || !num_u64(value, ms))
        return err_set(err, ERR_USAGE, 0, "connect-timeout-ms: expected 1 to 10 digits");
    return 1;
}

uint64_t rpc_keepalive_ms(const struct http_fields *f)
{
    const char *value = http_field(f, "keepalive-ping-interval");
    uint64_t seconds;
    if (!value || !num_u64(value, &seconds) || seconds == 0)
        seconds = RPC_KEEPALIVE_DEFAULT_S;
    return (seconds > RPC_KEEPALIVE_MAX_S ? RPC_KEEPALIVE_MAX_S : seconds) * 1000;
}
