/* A box that is being made: boxes-ask.c takes what was asked for and waits for its template, boxes-create.c makes it. It
 * belongs to the list of front's boxes from box_create() on, and is freed when everybody was answered and no call of store,
 * keeper, egress or init is under way any more.
 */
#ifndef HUTCH_FRONT_BOXES_CREATION_H
#define HUTCH_FRONT_BOXES_CREATION_H

#include "front/boxes-int.h"
#include "front/nets.h"

struct asker {
    struct asker *next;
    box_created *done;
    void *arg;
};
struct creation {
    struct creation *next, **link; /* among all */
    struct front *front;
    struct tenant *tenant;
    struct box_own *box;  /* NULL until it is admitted */
    struct box_spec spec; /* strings owned */
    char *template, *mask_host, *idem_key;
    struct box_source from;
    char parent[SANDBOX_ID_MAX];
    struct box_mount *mounts; /* owned until the box has it */
    struct start_run *start;
    struct net_doc net; /* document NULL: off */
    uint32_t https_ports[8];
    char digest[72];
    struct asker *askers;
    uint64_t wait_until;
    loop_id timer;
    bool row_done, bound, at_keeper, over, freeing;
    bool forked, started;       /* nothing is to be resolved; the start command has been run */
    bool net_pending;           /* egress has not said yet that the network is in force */
    struct box_failure failure; /* status 0: none */
};

/* The template is there: quotas, the box, its rows, keeper. */
void creation_start(struct creation *c);

/* Answers everybody who asked. Frees nothing. */
void creation_tell(struct creation *c, struct box *b, const struct box_failure *failure);
void creation_maybe_free(struct creation *c);

/* Why it cannot be; creation_fail(), which the loop may call too, undoes what was done and answers with it. */
__attribute__((format(printf, 5, 6))) void creation_refuse(struct creation *c, unsigned status, unsigned retry,
                                                           const char *code, const char *fmt, ...);
void creation_fail(void *c);

#endif
