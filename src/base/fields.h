/* fields.h - readers of the members of a JSON object. The strict ones are for what clients wrote: every message names the
 * field and what it should be. They know nothing about what is read.
 */
#ifndef HUTCH_BASE_FIELDS_H
#define HUTCH_BASE_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* 1 if the member is there, 0 if it is absent or null (*ret stays as it is), -1 if its type is wrong. */
int field_str(json_t *o, const char *name, const char **ret, struct err *err); /* without NUL; borrowed from o */
int field_bool(json_t *o, const char *name, bool *ret, struct err *err);
int field_int(json_t *o, const char *name, int64_t min, int64_t max, int64_t *ret, struct err *err);
int field_obj(json_t *o, const char *name, json_t **ret, struct err *err);
int field_arr(json_t *o, const char *name, json_t **ret, struct err *err);
/* Lenient, for what our own processes wrote: "" or 0 if the member is absent or has another type. */
const char *field_text(const json_t *o, const char *name); /* borrowed from o */
int64_t field_number(const json_t *o, const char *name);
const char *field_type_name(const json_t *v); /* "a string", "an array", ... */
/* -1 if a member's name is not in `known`, a list that ends with NULL; `where` begins the message. */
int fields_check_known(json_t *o, const char *where, const char *const *known, struct err *err);
/* Whether a JSON text has at most that many values ('{', '[' and ',' outside of strings) and levels: look before a text of
 * others is parsed, since a value of two bytes takes a hundred in memory. The text need not be valid. */
bool fields_text_is_small(const char *p, size_t n, size_t values, size_t levels);
/* The root as an object. An absent body becomes an empty object that the caller frees: json_decref(*tmp). */
json_t *fields_root(json_t *root, json_t **tmp, struct err *err);

static inline void fields_drop_json(json_t **j) { json_decref(*j); }
#define _cleanup_json_ __attribute__((cleanup(fields_drop_json)))

#endif
