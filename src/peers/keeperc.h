/* keeperc.h - front's client of keeper: asynchronous, over one SEQPACKET connection. When keeper restarts, it connects
 * again and repeats pending calls (each is idempotent by sandbox id). It decides nothing by itself.
 */
#ifndef HUTCH_PEERS_KEEPERC_H
#define HUTCH_PEERS_KEEPERC_H

#include "keeper/proto.h"
#include "loop/loop.h"

struct keeperc;

struct keeperc_ops {
    /* Connected (again): time to compare keeperc_list() with the database. */
    void (*up)(void *arg);
    void (*down)(void *arg);
    /* A sandbox ended by itself (TTL, its init died, OOM). keeper repeats it until keeperc_forget(). */
    void (*died)(void *arg, const struct keeper_death *d);
};

/* path: of keeper's socket, reached through run_dir (borrowed): "keeper.sock". */
int keeperc_new(struct loop *l, int run_dir, const struct keeperc_ops *ops, void *arg, struct keeperc **ret,
                struct err *err);
void keeperc_free(struct keeperc *k);

/* status 0 or an enum keeper_error with text. */
typedef void keeperc_done(void *arg, const struct keeper_reply *r);
void keeperc_create(struct keeperc *k, const struct keeper_create *c, keeperc_done *done, void *arg);
void keeperc_kill(struct keeperc *k, const char *id, keeperc_done *done, void *arg); /* done when nothing is left */
/* When pause is done, all processes in it are frozen. Both are idempotent. KEEPER_HOST: this host cannot freeze. */
void keeperc_pause(struct keeperc *k, const char *id, keeperc_done *done, void *arg);
void keeperc_resume(struct keeperc *k, const char *id, keeperc_done *done, void *arg);
void keeperc_deadline(struct keeperc *k, const char *id, uint64_t boottime_ms, keeperc_done *done, void *arg);
void keeperc_usage(struct keeperc *k, const char *id, keeperc_done *done, void *arg);
/* init gets a cgroup, under this number, in which one command has so many bytes of memory. KEEPER_HOST: it cannot be had. */
void keeperc_limit(struct keeperc *k, const char *id, uint64_t number, uint64_t memory, keeperc_done *done, void *arg);
void keeperc_forget(struct keeperc *k, const char *id); /* the death was recorded */
typedef void keeperc_listed(void *arg, const struct keeper_item *v, size_t n);
void keeperc_list(struct keeperc *k, keeperc_listed *done, void *arg);

#endif
