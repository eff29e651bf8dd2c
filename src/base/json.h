/* json.h - append-only JSON writer. Commas and nesting are kept by the writer; strings are escaped, and bytes that are
 * not UTF-8 become U+FFFD, so the output is always valid JSON whatever a sandbox put into a name. */
#ifndef HUTCH_BASE_JSON_H
#define HUTCH_BASE_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

struct json {
    struct buf *out; /* borrowed */
    unsigned depth;
    uint64_t comma; /* bit d: something was written at depth d */
};

void json_start(struct json *j, struct buf *out);
/* `key` is NULL inside arrays and at the top. */
void json_obj(struct json *j, const char *key);
void json_arr(struct json *j, const char *key);
void json_end_obj(struct json *j);
void json_end_arr(struct json *j);
void json_str(struct json *j, const char *key, const char *value);        /* NULL value writes null */
void json_text(struct json *j, const char *key, const char *p, size_t n); /* may hold NUL */
void json_u64(struct json *j, const char *key, uint64_t value);
void json_i64(struct json *j, const char *key, int64_t value);
void json_fixed(struct json *j, const char *key, uint64_t value, unsigned decimals); /* value / 10^decimals */
void json_bool(struct json *j, const char *key, bool value);
void json_none(struct json *j, const char *key); /* null; jansson has the name json_null */

/* Whether a text is UTF-8: json_str() writes such a one unchanged. */
bool json_may_hold(const char *text);

#endif
