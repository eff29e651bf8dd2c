/* sqlite-int.h - facts in SQLite: what its two files share. The loop's side (sqlite.c) queues jobs; one thread runs
 * them in order (sqlite-run.c), all that wait in one transaction of the database, and gives them back.
 */
#ifndef HUTCH_FACTS_SQLITE_INT_H
#define HUTCH_FACTS_SQLITE_INT_H

#include <pthread.h>
#include <sqlite3.h>

#include "facts/facts-int.h"

enum {
    SQLITE_FACTS_SCHEMA = 1,
    SQLITE_FACTS_HISTORY = 1000,         /* revisions that are remembered, at least */
    SQLITE_FACTS_BATCH = 128,            /* jobs in one transaction */
    SQLITE_FACTS_FOLLOW = 500,           /* changes in one answer to a watch, but whole revisions; */
    SQLITE_FACTS_FOLLOW_BYTES = 4 << 20, /* and so many bytes */
    SQLITE_FACTS_MIB = 2048,             /* of the file */
    SQLITE_FACTS_LEASES = 10000,
};

enum job_kind { JOB_GET, JOB_RANGE, JOB_CHANGE, JOB_LEASE, JOB_LEASE_KEPT, JOB_LEASE_END, JOB_COMPACT, JOB_FOLLOW };

struct sqlite_follow;
struct job {
    struct job *next;
    enum job_kind kind;
    struct facts_call_in in; /* done NULL: nothing waits for it */
    /* What is asked; keys and values are owned. */
    char *key, *after; /* JOB_RANGE, JOB_FOLLOW: key is the prefix */
    size_t limit;
    uint64_t revision, lease;
    unsigned ttl_s;
    struct facts_test *tests;
    struct facts_write *writes;
    size_t ntests, nwrites;
    struct sqlite_follow *follow; /* NULL: it was ended meanwhile; the loop's side only */
    /* What came of it. */
    enum facts_result result;
    char why[200];
    struct facts_rows rows;
    uint64_t now; /* revision */
    bool more, changed;
};

struct lease {
    struct lease *next;
    struct sqlite_facts *s;
    uint64_t id;
    unsigned ttl_s;
    bool ending;
    loop_id timer;
};

struct sqlite_facts {
    struct facts head; /* first */
    sqlite3 *db;       /* the thread's, once it runs; so are these: */
    uint64_t revision, compacted;
    struct lease *leases;
    size_t nleases;
    struct sqlite_follow *follows;
    size_t waiting; /* jobs that have not come back */
    pthread_t thread;
    bool started;
    int done_fd; /* an eventfd: jobs came back */
    loop_id watch;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* under the lock */
    struct job *first, **last;
    struct job *finished, **finished_last;
    bool stop;
};

void sqlite_job_free(struct job *j);

/* sqlite-run.c */
/* Makes or checks the tables and reads where the facts stand; before the thread runs. */
int sqlite_facts_prepare(struct sqlite_facts *s, struct err *err);
int sqlite_facts_error(struct sqlite_facts *s, const char *what, struct err *err);
/* Runs jobs in one transaction and notes their results. */
void sqlite_run_batch(struct sqlite_facts *s, struct job *list);

#endif
