/* init-world.h - a real sandbox for the tests of init and of links, without keeper: namespaces, a small root made of the
 * host's /usr, and init in it. Needs root. */
#ifndef HUTCH_TESTS_INIT_WORLD_H
#define HUTCH_TESTS_INIT_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "loop/loop.h"
#include "peers/exec.h"
#include "peers/files.h"
#include "peers/link.h"

#define WORLD_ID "test-box"

struct world {
    struct loop *loop;
    struct links *links;
    int run_dir;
    char dir[64];
    pid_t pid;
    int sync;
};

/* Of the listener of the next world: SOCK_SEQPACKET, or SOCK_STREAM for init over a byte stream. */
extern int world_socket_type;
/* Runs all tests over packets, and over a byte stream in a process of its own: init inherits what a test program has touched.
 * The number of failures. */
int world_run_twice(int (*run_all)(void));
/* strict: privilege strict; ring: bytes per stream, 0 default. Returns false if this machine cannot. */
bool world_start(struct world *w, bool strict, uint32_t ring);
void world_commit(struct world *w);
void world_bind(struct world *w);
void world_stop(struct world *w);

/* Runs the loop until *flag, at most ms. False: time is over. */
bool world_wait(struct world *w, const bool *flag, unsigned ms);

/* Collects what an attachment says. */
struct capture {
    bool started, ended, failed, over; /* over: ended or failed */
    uint32_t pid;
    char text[4][8192];
    size_t n[4];
    uint64_t total[4], first[4];
    uint64_t gap; /* bytes that were skipped */
    uint64_t next[4];
    size_t pause_after; /* output() says stop after so many bytes; 0: never */
    bool paused;
    struct exec_end end;
    struct link_status st;
    struct exec *x;
};
extern const struct exec_ops capture_ops;

/* sh -c script; waits for its end. */
void world_sh(struct world *w, const char *script, struct capture *ret);
/* A call answered by a status; waits. */
struct status_sandbox {
    bool done;
    struct link_status st;
};
void status_done(void *arg, const struct link_status *st);

/* All of it: started, committed and bound. 0, or -1; for cmocka's set-up functions. */
int world_up(struct world *w, bool strict);

#endif
