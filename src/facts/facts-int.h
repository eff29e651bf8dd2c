/* facts-int.h - what an engine implements below facts.h, and what the implementations share. */
#ifndef HUTCH_FACTS_FACTS_INT_H
#define HUTCH_FACTS_FACTS_INT_H

#include "base/buf.h"
#include "facts/facts.h"

enum {
    FACTS_AGAIN_MS = 1000,     /* between two tries of a watch to read the state; also: */
    FACTS_STALE_MS = 30 * 1000 /* without success: on_stale */
};

/* --- facts of an answer: rows.c
 * --------------------------------------------------------------------------------------- */

struct facts_rows {
    struct facts_fact *v; /* key and value lie in one block, owned */
    size_t n, cap;
    size_t bytes; /* of all keys and values */
};
/* Copies. value NULL: removed. */
void facts_rows_add(struct facts_rows *r, const struct facts_fact *f);
void facts_rows_done(struct facts_rows *r);

/* Where a prefix ends: the first key behind all that begin with it. `ret` has FACTS_KEY_MAX + 2 bytes; "" for the
 * prefix "": no end. */
void facts_prefix_end(const char *prefix, char *ret);
bool facts_key_is_valid(const char *key, size_t n);

/* --- what an engine does
 * ---------------------------------------------------------------------------------------------- */

/* Callbacks of a raw watch, from the loop. */
struct facts_follow_events {
    /* Changes in order, whole revisions; through `revision` all is told. n may be 0. */
    void (*on_changes)(void *arg, const struct facts_rows *rows, uint64_t revision);
    /* The position is forgotten, or lies before the engine's time. No further callback but those of a new follow. */
    void (*on_lost)(void *arg);
    void (*on_trouble)(void *arg, const char *why); /* the changes do not come at present; may be called often */
};

struct facts_call_in {
    facts_done *done;
    void *arg;
};

/* Arguments were checked by facts.c; each calls `done` later. */
struct facts_ops {
    void (*close)(struct facts *f);
    void (*get)(struct facts *f, const char *key, unsigned flags, struct facts_call_in in);
    void (*range)(struct facts *f, const struct facts_page *p, struct facts_call_in in);
    void (*change)(struct facts *f, const struct facts_test *tests, size_t ntests, const struct facts_write *writes,
                   size_t nwrites, struct facts_call_in in);
    void (*lease)(struct facts *f, unsigned ttl_s, struct facts_call_in in);
    void (*lease_keep)(struct facts *f, uint64_t lease, struct facts_call_in in);
    void (*lease_end)(struct facts *f, uint64_t lease, struct facts_call_in in);
    void (*compact)(struct facts *f, uint64_t revision, struct facts_call_in in);
    /* Changes from a revision on. The returned handle is given to unfollow, after which no callback comes. */
    void *(*follow)(struct facts *f, const char *prefix, uint64_t from, const struct facts_follow_events *events,
                    void *arg);
    void (*unfollow)(struct facts *f, void *follow);
};

struct facts_later;
/* The head of each engine's own struct. */
struct facts {
    const struct facts_ops *ops;
    struct loop *loop;
    char *engine; /* owned */
    struct facts_watch *watches;
    size_t nwatches;
    struct facts_later *later; /* answers that facts.c gives by itself */
    loop_id later_timer;
};

/* Answers from the loop, without the engine. `why` is copied. */
void facts_answer_later(struct facts *f, enum facts_result result, const char *why, struct facts_call_in in);
/* Frees the head, when the engine has closed. */
void facts_head_done(struct facts *f);

/* watch.c, for facts_close(). */
void facts_watches_free(struct facts *f);

#endif
