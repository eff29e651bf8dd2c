/* multipart.h - streaming reader of multipart/form-data (RFC 7578, in the dialect that browsers and SDKs write).
 *
 * The caller feeds it bytes, and it calls back; it never waits and never keeps a part's content, only an incomplete
 * part header (at most MULTIPART_HEADER_MAX). How the bytes are cut into feeds changes only the sizes given to
 * part_data. It refuses bare LF line ends, folded header lines, a part without a form-data disposition or name, a
 * boundary followed by anything but "--" or a line end, and a body that ends before the closing boundary.
 */
#ifndef HUTCH_HTTP_MULTIPART_H
#define HUTCH_HTTP_MULTIPART_H

#include <stddef.h>

#include "base/err.h"
#include "http/http.h"

enum {
    MULTIPART_HEADER_MAX = 8 * 1024,
    MULTIPART_PARTS_MAX = 10000,
    MULTIPART_FIELDS_MAX = 32,          /* header fields of one part */
    MULTIPART_PREAMBLE_MAX = 64 * 1024, /* bytes before the first boundary */
};

struct multipart_part {
    const char *name;
    const char *filename;      /* with its directories, decoded; NULL if there is none */
    const char *content_type;  /* NULL if there is none */
    struct http_fields fields; /* all header fields of the part, names in lower case */
};

/* Each returns 0, or -1 with *err set: reading stops and multipart_feed() returns that. What `part` points to is valid
 * during the call only. Any of them may be NULL. */
struct multipart_events {
    int (*part_begin)(void *arg, const struct multipart_part *part, struct err *err);
    int (*part_data)(void *arg, const void *p, size_t n, struct err *err);
    int (*part_end)(void *arg, struct err *err);
    int (*end)(void *arg, struct err *err);
};

struct multipart;

/* `content_type` is the request's, with its boundary parameter; `events` is borrowed. ERR_USAGE for everything that the
 * client did wrong, here and below. */
int multipart_new(const char *content_type, const struct multipart_events *events, void *arg, struct multipart **ret,
                  struct err *err);
/* After a failure nothing more may be fed. */
int multipart_feed(struct multipart *m, const void *p, size_t n, struct err *err);
/* The body has ended; an error unless the closing boundary was seen. */
int multipart_finish(struct multipart *m, struct err *err);
void multipart_free(struct multipart *m);

#endif
