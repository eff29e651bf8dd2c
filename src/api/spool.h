/* spool.h - stores a request's body that is too large for memory in an unnamed file. It limits how many bodies and how
 * many bytes of them exist at a time, per owner and in total. It never looks into a body except for the head of an
 * export.
 */
#ifndef HUTCH_API_SPOOL_H
#define HUTCH_API_SPOOL_H

#include "base/buf.h"
#include "http/http.h"

enum {
    SPOOL_AT_ONCE = 64, /* bodies that are being received, of all clients together */
    SPOOL_OF_OWNER = 8,
    SPOOL_OWNERS = SPOOL_AT_ONCE / SPOOL_OF_OWNER, /* owners that can use their whole share at the same time */
    SPOOL_IDLE_MS = 60 * 1000,
    SPOOL_HEAD_MAX = 512 << 10
};

struct spool;
/* Called once, when the body was read or refused. Success: status 0; the callee owns fd, open for reading at its
 * beginning, and s, whose bytes count against the limits until the callee calls spool_free(). Failure: s NULL, the
 * status to answer and one line for the client; if `more`, a part of the body has not been read yet: answer with
 * api_refuse_body(). */
typedef void spool_done(struct http_req *r, struct spool *s, int fd, unsigned status, const char *error, bool more);

/* An owner may have at most SPOOL_OF_OWNER bodies at a time and builds.uploads_bytes of them (or one body of the
 * largest size), counting complete ones that are not freed yet. A client that sends nothing for SPOOL_IDLE_MS is
 * disconnected. Until `done` the spool owns the request's callbacks, as body_json() does. If head is not NULL, the
 * body begins with "hutch-template 1 N\n" and N bytes, which go into head (it must live until `done` or on_closed)
 * and not into the file. */
void spool_body(struct http_req *r, const char *owner, struct buf *head, spool_done *done);
uint64_t spool_bytes(const struct spool *s);
void spool_free(struct spool *s); /* NULL is fine */

#endif
