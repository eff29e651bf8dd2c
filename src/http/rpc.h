/* rpc.h - the Connect protocol with JSON messages, as E2B's clients speak it: unary calls are plain POSTs, streams
 * carry envelopes (a flags byte, a 32-bit big-endian length, the message) and close with an end envelope.
 *
 * An error of a stream must be in its end envelope, with status 200: clients ignore the body of any other status.
 */
#ifndef HUTCH_HTTP_RPC_H
#define HUTCH_HTTP_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "http/http.h"

enum {
    RPC_MESSAGE_MAX = 4 * 1024 * 1024,
    RPC_HEAD = 5, /* bytes before a message */
    RPC_KEEPALIVE_DEFAULT_S = 90,
    RPC_KEEPALIVE_MAX_S = 3600,
};
enum { RPC_FLAG_COMPRESSED = 1, RPC_FLAG_END = 2 };

enum rpc_code {
    RPC_CANCELED = 1,
    RPC_UNKNOWN,
    RPC_INVALID_ARGUMENT,
    RPC_DEADLINE_EXCEEDED,
    RPC_NOT_FOUND,
    RPC_ALREADY_EXISTS,
    RPC_PERMISSION_DENIED,
    RPC_RESOURCE_EXHAUSTED,
    RPC_FAILED_PRECONDITION,
    RPC_ABORTED,
    RPC_OUT_OF_RANGE,
    RPC_UNIMPLEMENTED,
    RPC_INTERNAL,
    RPC_UNAVAILABLE,
    RPC_DATA_LOSS,
    RPC_UNAUTHENTICATED,
};
const char *rpc_code_name(enum rpc_code code);
unsigned rpc_code_status(enum rpc_code code);

/* Reads envelopes from a stream of bytes. Zero-initialised; rpc_reader_done() frees. */
struct rpc_reader {
    uint8_t head[RPC_HEAD];
    size_t have;   /* of head */
    uint32_t size; /* of the message, once the head is complete */
    struct buf message;
};
/* `p` is NUL-terminated behind n and valid during the call. -1 with *err stops the reading. */
typedef int rpc_message_fn(void *arg, unsigned flags, const char *p, size_t n, struct err *err);
/* Fails (ERR_USAGE) on a message above RPC_MESSAGE_MAX, a compressed one, or an unknown flag. */
int rpc_read(struct rpc_reader *r, const void *p, size_t n, rpc_message_fn *fn, void *arg, struct err *err);
/* The body has ended: fails if that was inside an envelope. */
int rpc_read_end(const struct rpc_reader *r, struct err *err);
void rpc_reader_done(struct rpc_reader *r);

/* Appends one envelope. n is at most RPC_MESSAGE_MAX. */
void rpc_envelope(struct buf *out, unsigned flags, const void *p, size_t n);
/* Appends {"code":...,"message":...}. */
void rpc_error_json(struct buf *out, enum rpc_code code, const char *message);

/* Unary: each ends the request. `json` is a whole message, "{}" if it is empty. */
void rpc_reply(struct http_req *r, const char *json, size_t n);
void rpc_error(struct http_req *r, enum rpc_code code, const char *message);

/* Stream: start, any number of sends, then end or error, which end the request. */
void rpc_stream_start(struct http_req *r);
/* False: above high water; stop until on_writable. */
bool rpc_stream_send(struct http_req *r, const char *json, size_t n);
void rpc_stream_end(struct http_req *r);
void rpc_stream_error(struct http_req *r, enum rpc_code code, const char *message);
/* start and error in one, for what fails before the first message. */
void rpc_stream_refuse(struct http_req *r, enum rpc_code code, const char *message);

/* Connect-Timeout-Ms: 1 and *ms, 0 if absent (no deadline), -1 if it is not 1 to 10 digits. */
int rpc_timeout(const struct http_fields *f, uint64_t *ms, struct err *err);
/* Keepalive-Ping-Interval in milliseconds; the default if absent, unreadable or zero; at most RPC_KEEPALIVE_MAX_S. */
uint64_t rpc_keepalive_ms(const struct http_fields *f);

#endif
