/* facts-suite.h - the promises of src/facts/facts.h as tests that run over any engine. A test program opens its engine
 * in facts_world_open() and gives facts_suite to cmocka. */
#ifndef HUTCH_TESTS_UNIT_FACTS_SUITE_H
#define HUTCH_TESTS_UNIT_FACTS_SUITE_H

#include "await.h"
#include "facts/facts-int.h"
#include "tests/lib/unit.h"

extern struct loop *loop;
extern struct facts *facts;
/* The program's: opens `facts` on `loop`. */
void facts_world_open(void);

extern const struct CMUnitTest facts_suite[];
extern const size_t facts_suite_n;

/* What came of a call. */
struct reply {
    int calls;
    enum facts_result result;
    char why[1024];
    uint64_t revision, lease;
    unsigned ttl_s;
    bool more;
    struct facts_rows rows;
};
void reply_done(void *arg, const struct facts_answer *a);
/* Waits for the one call, and forgets the rows of an earlier one. */
void reply_start(struct reply *r);
void reply_wait(struct reply *r);
void reply_free(struct reply *r);
#define _cleanup_reply_ _cleanup_(reply_free)

/* A key or prefix of this test: "test/N/NAME"; from a ring of a few. */
const char *key_of(const char *name);
void new_keys(void);

enum facts_result put(const char *key, const char *value); /* without a test */
uint64_t put_ok(const char *key, const char *value);       /* its revision */
enum facts_result put_if(const char *key, uint64_t revision, const char *value);
void remove_ok(const char *key);
/* The value as text, "" if there is none; borrowed until the next call. */
const char *get(const char *key);
uint64_t revision_of(const char *key);

/* A watch that keeps what it was told. */
struct mirror {
    struct facts_watch *watch;
    int restarts, currents, stales, told, free_at;
    uint64_t revision, last; /* last: of a change */
    struct facts_rows rows;  /* the state, in no order */
    struct buf log;          /* "+key=value ", "-key ", "| " for on_current, "! " for a restart */
};
extern const struct facts_events mirror_events;
void mirror_start(struct mirror *m, const char *prefix, uint64_t from);
void mirror_free(struct mirror *m);
#define _cleanup_mirror_ _cleanup_(mirror_free)
const char *mirror_value(const struct mirror *m, const char *key); /* NULL: there is none */
/* Compares with what the engine says now. */
void mirror_assert_true(struct mirror *m, const char *prefix);

#define WAIT_UNTIL(condition) AWAIT_STEPS(loop, condition)

#endif
