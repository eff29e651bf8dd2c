/* wire.h - the elements that bodies are made of: packed little numbers and counted strings. No allocation.
 *
 * A reader never goes past its end: the first thing that is not right makes it `bad`, and everything read from then on is
 * 0 or "". Strings are borrowed from the buffer; they end with a NUL there and hold none. A writer without a buffer counts.
 */
#ifndef HUTCH_INIT_WIRE_H
#define HUTCH_INIT_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include "init/proto.h"

struct wire_in {
    const unsigned char *p;
    size_t n, at;
    bool bad;
};

uint32_t wire_u32(struct wire_in *in);
uint64_t wire_u64(struct wire_in *in);
/* At most `max` bytes without the NUL. */
const char *wire_str(struct wire_in *in, size_t max);
/* Bytes that may hold NUL. */
const void *wire_bytes(struct wire_in *in, size_t max, size_t *ret_n);
/* Fills v (room for max + 1) and ends it with NULL. Returns the number. */
size_t wire_strv(struct wire_in *in, const char **v, size_t max);
/* A boolean: 0 or 1, anything else is bad. */
bool wire_bool(struct wire_in *in);
/* Whether everything was right and nothing is left. */
bool wire_done(const struct wire_in *in);

struct wire_out {
    unsigned char *p; /* NULL: only count */
    size_t cap, n;
    bool bad; /* did not fit */
};

void wire_put_u32(struct wire_out *o, uint32_t v);
void wire_put_u64(struct wire_out *o, uint64_t v);
void wire_put_bytes(struct wire_out *o, const void *p, size_t n);
void wire_put_str(struct wire_out *o, const char *s); /* NULL is "" */
void wire_put_strv(struct wire_out *o, const char *const *v, size_t n);

enum { INIT_DENIED_MAX = 16 };
/* A call that the filter refused: its number and first arguments, the first time; how often. */
struct init_denied {
    uint32_t nr, count;
    uint64_t args[3];
};
/* How a command ended. */
struct init_end {
    uint32_t exited, code, core, oom;
    uint64_t wall_ms;
    uint64_t omitted[INIT_STREAMS];
    struct rusage usage;
    uint32_t ndenied;
    struct init_denied denied[INIT_DENIED_MAX];
};
void init_put_end(struct wire_out *o, const struct init_end *e);
void init_get_end(struct wire_in *in, struct init_end *ret);

struct init_meta {
    const char *key, *value;
};
/* What a request with a root tells of an entry beside its info, whose type, mode, size and target are then those of a
 * link itself. */
struct init_facts {
    uint32_t uid, gid;
    int64_t atime_s, ctime_s;
    uint32_t atime_ns, ctime_ns;
};
/* A directory entry. Strings are borrowed. */
struct init_info {
    const char *name, *path, *owner, *group;
    const char *target; /* NULL: none */
    uint32_t type;      /* enum init_file_type */
    uint32_t mode;
    uint64_t size;
    int64_t mtime_s;
    uint32_t mtime_ns;
    uint32_t nmeta;
    struct init_meta meta[INIT_META_MAX];
    struct init_facts facts; /* not part of the message's info */
};
void init_put_info(struct wire_out *o, const struct init_info *i);
void init_get_info(struct wire_in *in, struct init_info *ret);

/* The directory that a request about files sees as "/", and what it makes of the entry. */
struct init_root {
    const char *path;        /* NULL: the request has no root of its own */
    uint32_t flags;          /* INIT_ROOT_* */
    uint32_t uid, gid, mode; /* at most 65535, 65535 and 07777, or INIT_UNCHANGED */
};
void init_put_root(struct wire_out *o, const struct init_root *p);
void init_get_root(struct wire_in *in, struct init_root *ret);

/* What a command may less than others in its sandbox. */
struct init_rights {
    uint32_t flags;      /* INIT_RIGHTS_* */
    uint64_t time_ms;    /* after which it ends with all that it started; 0: never */
    uint64_t output_max; /* bytes of all its streams, after which the same happens; 0: no end */
    size_t nwrite;
    const char *write[INIT_WRITE_MAX + 1]; /* INIT_RIGHTS_WRITE */
};
void init_put_rights(struct wire_out *o, const struct init_rights *r);
void init_get_rights(struct wire_in *in, struct init_rights *ret);

void init_put_facts(struct wire_out *o, const struct init_facts *f);
void init_get_facts(struct wire_in *in, struct init_facts *ret);

#endif
