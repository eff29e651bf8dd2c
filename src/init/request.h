/* request.h - a request of front, checked. A pure function of the bytes, so that it can be fuzzed. */
#ifndef HUTCH_INIT_REQUEST_H
#define HUTCH_INIT_REQUEST_H

#include "init/wire.h"

/* Strings are borrowed from the body. Only the fields of the type are set. */
struct init_request {
    uint32_t type;
    uint64_t id;
    uint32_t pid;          /* who */
    struct init_root root; /* path NULL: none */
    const char *tag, *user, *path, *to, *cmd, *cwd, *hostname, *workdir;
    bool has_rights;
    uint64_t group;                     /* INIT_SPAWN_LIMITED */
    struct init_rights rights;          /* INIT_SPAWN_RIGHTS */
    uint64_t timeout_ms;                /* of a command; 0: none */
    uint32_t flags, cols, rows, number; /* number: signal, port, depth or boolean */
    uint64_t offset[INIT_STREAMS];
    const void *bytes;
    size_t nbytes;
    size_t nargs, nenv, nmeta;
    const char *args[INIT_ARGS_MAX + 2]; /* SPAWN: [0] is cmd, then the arguments. COMPOSE: sources */
    const char *env[INIT_ENV_MAX + 1];
    struct init_meta meta[INIT_META_MAX];
    enum init_code code; /* why it was refused */
    char why[INIT_TEXT_MAX];
};

/* Whether this can be a request at all; otherwise the connection is closed. */
bool init_head_ok(const struct init_head *h, size_t got, size_t nfds);
/* 0, or -1 with code and why for the answer. */
int init_request_parse(const struct init_head *h, const void *body, size_t n, struct init_request *r);

#endif
