/* procs.h - the processes of a node, and the descriptors that supervisor gives them.
 *
 * supervisor (`hutch-node serve`) makes directories, sockets and keys. It starts keeper (`hutch keeper`), the
 * layer store (`hutch stock`), egress (`hutch-node egress`, see egress/proto.h), front (`hutch-node front`) and, if
 * the template base is missing, the builder. It watches and restarts them and does nothing else.
 */
#ifndef HUTCH_NODE_PROCS_H
#define HUTCH_NODE_PROCS_H

#include <sys/types.h>

#include "base/err.h"
#include "config/config.h"

/* Descriptors of front. Unused ones are closed. */
enum {
    FRONT_FD_CONFIG = 3, /* the configuration in force, as text */
    FRONT_FD_RUN,        /* runtime directory */
    FRONT_FD_DB,         /* front's own directory: STATE/front */
    FRONT_FD_TEMPLATES,
    FRONT_FD_LISTEN,
    FRONT_FD_LISTEN_TLS,
    FRONT_FD_TLS_CERT, /* copies in memory, so that front needs no access to the files */
    FRONT_FD_TLS_KEY,
    FRONT_FD_READY,          /* one byte is written when requests are served */
    FRONT_FD_PRESETS,        /* directory: rules for networks that come with the program */
    FRONT_FD_NETWORK,        /* sandboxes.network, if it is a file: a copy in memory */
    FRONT_FD_WEBHOOK_SECRET, /* approvals.secret_file, the same */
    FRONT_FD_WEBHOOK_TRUST,  /* roots for approvals.webhook and oauth.jwks, if one is https */
    FRONT_FD_END,
};

/* Root certificates for checking servers, unless egress.trust names others. */
#define NODE_SYSTEM_TRUST "/etc/ssl/certs/ca-certificates.crt"
enum { NODE_TRUST_MAX = 8 << 20 };

#define ADMIN_KEY   "admin.key"
#define LISTEN_FILE "listen" /* one URL per line: where clients on this machine may send that key */

/* What egress gets: its user, its sockets, and copies in memory of the installation's keys. */
struct node_egress {
    bool on; /* false: sandboxes have no network; `trouble` says why */
    char trouble[512];
    uid_t uid;
    gid_t gid;
    bool made_user;
    int config, keeper, front, ca_cert, ca_key, sealed_key, audit, trust;
};

/* What supervisor holds for its children. Descriptors are its own; -1: not there. */
struct node_files {
    uid_t uid; /* of front */
    gid_t gid;
    bool drop;      /* started by root: front changes to uid and gid */
    bool made_user; /* the uid was chosen, no such user exists */
    int state_lock, run_lock;
    int ranges; /* the lock file of id ranges, kept open to notice its removal; if `drop` */
    int state, run, db, templates, presets, network, webhook_secret, webhook_trust;
    int keeper_socket, layers_socket, listen, listen_tls;
    uid_t image_uid; /* of image workers, which the layer store starts; if `drop` */
    gid_t image_gid;
    int tls_cert, tls_key;
    char admin_key[64], admin_digest[72];
    bool first_start;      /* the key was made now */
    bool pool;             /* STATE/stock is a mount of ours */
    char files_driver[16]; /* what keeper makes sandboxes' files with */
    char files_why[640];
    struct node_egress egress;
};
/* clang-format off */
#define NODE_FILES_INIT \
    {.state_lock = -1, .run_lock = -1, .ranges = -1, .state = -1, .run = -1, .db = -1, .templates = -1, .presets = -1, \
     .network = -1, .webhook_secret = -1, .webhook_trust = -1, \
     .keeper_socket = -1, .layers_socket = -1, .listen = -1, .listen_tls = -1, .tls_cert = -1, .tls_key = -1, \
     .egress = {.config = -1, .keeper = -1, .front = -1, .ca_cert = -1, .ca_key = -1, .sealed_key = -1, .audit = -1, \
                .trust = -1}}
/* clang-format on */

/* supervisor-setup.c: opens everything that the children need. Errors name the object and the remedy. */
int node_files_open(const struct config *c, struct node_files *ret, struct err *err);
void node_files_close(struct node_files *n);
/* A sealed file in memory with these bytes, for a process that may not open the original. */
int node_memory_file(const char *name, const void *p, size_t n, struct err *err);

/* Opens a directory; makes every missing one of the path. The last one gets owner and mode, even if it existed. */
int node_open_dir(const char *path, uid_t uid, gid_t gid, mode_t mode, struct err *err);
/* The user of that name; else the free uid that owns `dir` already, else the first free one that is not `taken`. */
int node_choose_user(const char *key, const char *name, const char *dir, uid_t taken, uid_t *ret_uid, gid_t *ret_gid,
                     bool *ret_made, struct err *err);
/* A unix socket that listens in RUN. gid (gid_t)-1: for the owner only. */
int node_listen(int run, const char *name, int type, gid_t gid, struct err *err);

/* supervisor-egress.c: opens what egress needs; called by node_files_open(). If the operator turned egress off, `on`
 * stays false and `trouble` says so; -1: something that the operator must repair. */
int node_egress_open(const struct config *c, struct node_files *n, struct err *err);
/* Opens its two sockets in n->run. */
int node_egress_listen(struct node_files *n, struct err *err);
void node_egress_close(struct node_files *n);

/* supervisor-run.c: opens the run directory and its sockets. */
int node_run_open(const struct config *c, struct node_files *n, struct err *err);
/* Whether the directory was replaced, or a file that the node needs in it was removed. */
bool node_run_lost(const struct config *c, const struct node_files *n);
/* Makes directory and sockets again and closes the old descriptors. On failure the old ones stay open. */
int node_run_renew(const struct config *c, struct node_files *n, struct err *err);
/* Opens the lock file of root's id ranges. Does nothing without root. */
int node_ranges_open(struct node_files *n, struct err *err);
bool node_ranges_lost(const struct node_files *n);
int node_take_lock(int dir, const char *path, struct err *err);

/* supervisor-launch.c */
struct node_user {
    uid_t uid;
    gid_t gid;
};
/* Forks; the child places the descriptors from 3 on, resets signals, sets its death signal and executes. user NULL:
 * our own. */
pid_t node_launch(const char *program, char **argv, int *fds, int nfds, const struct node_user *user);

/* supervisor-pool.c: mounts the pool, or finds out why there is none (pool/diskpool.h). Blocks; an older store is copied. */
int node_pool_attach(const char *hutch, const struct config *c, struct node_files *n, struct err *err);
/* Unmounts it. Living sandboxes keep the file system until they end. */
void node_pool_detach(const char *hutch, struct node_files *n);

/* supervisor-say.c */
/* Writes LISTEN_FILE, of the sockets that listen, if it says something else. On a full disk it is removed, and the log
 * says so. */
void node_record_listen(const struct config *c, const struct node_files *n);
void node_say_ready(const struct config *c, const struct node_files *n);
void node_notify(const char *state); /* systemd's protocol; nothing without NOTIFY_SOCKET */
/* Checks that x.DOMAIN resolves to this machine; `ret` gets the remedy, or "" if it does. Blocks (name service). */
void node_check_domain(const char *domain, char ret[512]);

/* supervisor.c: runs until a signal stops it. */
int node_supervise(const struct config *c, struct node_files *n, struct err *err);

/* front-main.c: the program of front. */
int front_main(int argc, char **argv);
/* front-drop.c: drops all privileges and verifies it: no capability, no_new_privs, own system call filter. Call
 * before any thread is started. */
int front_drop(struct err *err);

#endif
