/* reply.h - answers that every dialect shares. Each ends the request. Error bodies are always
 * {"code":<status>,"message":...}, because clients look for the number in the body, not only at the status line. It
 * never decides what to answer.
 */
#ifndef HUTCH_API_REPLY_H
#define HUTCH_API_REPLY_H

#include <stdint.h>

#include <jansson.h>

#include "base/buf.h"
#include "http/http.h"

void reply_json(struct http_req *r, unsigned status, const struct buf *body);
/* No body: 204, or "content-length: 0" with any other status. */
void reply_empty(struct http_req *r, unsigned status);
/* The message may hold client bytes; they are escaped. */
void reply_error(struct http_req *r, unsigned status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* With E2B's "error_code" (may be NULL) and Retry-After in seconds (0: none). */
void reply_refuse(struct http_req *r, unsigned status, const char *error_code, unsigned retry_after,
                  const char *message);

/* A change that failed: the status follows from err->eno; the message leaves out the text of errno. */
struct err;
void reply_err(struct http_req *r, const struct err *err);

/* An operation on a sandbox, its state or its files that failed. */
struct state_failure;
void reply_state_failure(struct http_req *r, const struct state_failure *failure);

/* A change that the database did not record: it is in force only until the node restarts. */
struct db;
void reply_not_stored(struct http_req *r, const struct db *s);

/* Whether a list of n entries may be answered: 0, or -1 with what to say. Long ones are refused while clients leave too
 * many bytes of answers unread: together they could fill the node's memory. */
int reply_may_list(size_t n, struct err *err);

/* Adds a parsed value to an answer. It recurses, so the parser must have limited the depth of v. */
struct json;
void reply_add(struct json *j, const char *key, const json_t *v);
/* The same from JSON text that was validated when it was stored. */
void reply_add_text(struct json *j, const char *key, const char *text);

enum { REPLY_TIME_MAX = 32 };
/* RFC 3339 in UTC with milliseconds: "2026-01-02T03:04:05.678Z". */
void reply_time(uint64_t unix_ms, char ret[REPLY_TIME_MAX]);
/* Reads RFC 3339 (and a date alone); a time without a zone is UTC. */
bool reply_time_parse(const char *s, uint64_t *ret_unix_ms);

/* Sets a header field; everything but printable ASCII becomes '?', so the value cannot break out of its line. */
void reply_set_safe(struct http_req *r, const char *name, const char *value);

#endif
