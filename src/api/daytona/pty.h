/* pty.h - terminals of the toolbox: pty.c keeps and lists them, pty-connect.c joins one to a WebSocket.
 *
 * A terminal is a directory /tmp/.daytona/p-NAME in the sandbox: `info` with what it was made with, `size`, and `pid` of its
 * shell once that runs. Front remembers nothing, so terminals outlive it; one whose shell has ended is gone.
 */
#ifndef HUTCH_API_DAYTONA_PTY_H
#define HUTCH_API_DAYTONA_PTY_H

#include "api/daytona/shell.h"

enum { DAYTONA_PTYS_MAX = 64, DAYTONA_PTY_SIZE_MAX = 1000 };

/* What a client asks for, and what `info` says. */
struct daytona_pty {
    char *name, *cwd; /* owned; "" of cwd: the home directory */
    json_t *envs;     /* owned; an object of strings */
    uint32_t pid;     /* of its shell; 0: not started yet */
    uint16_t cols, rows;
    bool lazy; /* its shell starts with the first client */
    uint64_t made_unix_ms;
};
void daytona_pty_done(struct daytona_pty *t);
#define _cleanup_daytona_pty_ __attribute__((cleanup(daytona_pty_done)))

/* Sets the size; 0 means the usual one. False: out of range, and `err` says so. */
bool daytona_pty_set_size(struct daytona_pty *t, int64_t cols, int64_t rows, struct err *err);
/* Takes envs over if they are right: an object of strings whose keys can be names of variables; NULL is none. */
bool daytona_pty_set_envs(struct daytona_pty *t, json_t *envs, struct err *err);
/* Runs the script that makes the directory and prints the terminal; `then` reads it with daytona_pty_read(). */
void daytona_pty_make(struct api_call *c, struct sandbox *b, const struct daytona_pty *t, daytona_ran_fn *then);
/* Runs the script that prints the one that param 1 names. */
void daytona_pty_find(struct api_call *c, struct sandbox *b, daytona_ran_fn *then);
/* The next terminal in the output of a script. False: there is none. */
bool daytona_pty_read(const struct buf *out, size_t *at, struct daytona_pty *ret);
/* The terminal that a script printed; what failed is answered, and it is false. */
bool daytona_pty_take(struct http_req *r, const struct daytona_ran *ran, struct daytona_pty *ret);

#endif
