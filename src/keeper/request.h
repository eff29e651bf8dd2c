/* request.h - checks one message of front: ids, numbers, flags and strings. A pure function of the bytes, so that it
 * can be fuzzed; opens nothing and trusts no length. */
#ifndef HUTCH_KEEPER_REQUEST_H
#define HUTCH_KEEPER_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "keeper/proto.h"

enum {
    KEEPER_CPU_MILLI_MAX = 1000000,
    KEEPER_PIDS_MIN = 8,
    KEEPER_PIDS_MAX = 4194304,
    KEEPER_FILES_MIN = 32,
    KEEPER_FILES_MAX = 1048576,
    KEEPER_INODES_MIN = 64,
};
#define KEEPER_MEMORY_MIN (UINT64_C(8) << 20)
#define KEEPER_DISK_MIN   (UINT64_C(1) << 20)
#define KEEPER_BYTES_MAX  (UINT64_C(1) << 50)

union keeper_request {
    struct keeper_head head;
    struct keeper_create create;
    struct keeper_simple simple;
    struct keeper_deadline deadline;
    struct keeper_limit limit;
};

/* Copies the message into *ret and checks it. On failure *err says which field is wrong and what would be right; ret->head
 * is valid if the message had one (else its request is 0), so that the answer finds its asker. */
int keeper_request_parse(const void *p, size_t n, union keeper_request *ret, struct err *err);

/* Letters, digits, "-" and "_", not first "-"; at most KEEPER_ID_MAX - 1 of them; no name of a socket of our own. */
bool keeper_id_valid(const char *id);
/* [a-z0-9_-]+ */
bool keeper_template_valid(const char *name);

#endif
