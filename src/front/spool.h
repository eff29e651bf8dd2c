/* spool.h - the body of a request as a file without a name, for bodies that are too large for memory. */
#ifndef HUTCH_FRONT_SPOOL_H
#define HUTCH_FRONT_SPOOL_H

#include "base/buf.h"
#include "http/http.h"

enum {
    SPOOL_AT_ONCE = 64, /* bodies that are received, of all clients together */
    SPOOL_OF_OWNER = 8,
    SPOOL_OWNERS = SPOOL_AT_ONCE / SPOOL_OF_OWNER, /* that have all the bytes they may have */
    SPOOL_IDLE_MS = 60 * 1000,
    SPOOL_HEAD_MAX = 512 << 10
};

struct spool;
/* Called once, when the body was read or refused. Success: status 0; fd, the callee's, is open for reading at its beginning,
 * and s, likewise, counts until spool_free(), which is due when the file is not needed any more. Failure: s NULL, the status to
 * answer and one line for the client; the body is dropped by then, or will be if `more` (use api_refuse_body()). */
typedef void spool_done(struct http_req *r, struct spool *s, int fd, unsigned status, const char *error, bool more);

/* owner: who must not have more than SPOOL_OF_OWNER at a time, nor more bytes than builds.uploads_bytes (or one body of the
 * largest size), those counted that are whole and not yet freed. A client that sends nothing for SPOOL_IDLE_MS is cut. While it
 * collects, it owns the request's callbacks, as body_json() does. head, if not NULL: the body begins with "hutch-template 1
 * N\n" and N bytes, which go there (it must live until `done` or on_closed) and not into the file. */
void spool_body(struct http_req *r, const char *owner, struct buf *head, spool_done *done);
uint64_t spool_bytes(const struct spool *s);
void spool_free(struct spool *s); /* NULL is fine */

#endif
