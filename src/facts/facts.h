/* facts.h - the facts of a cluster: small values under names, in an engine that all its processes share.
 *
 * One machine has its facts in SQLite (facts_sqlite_open), a cluster in etcd (facts_etcd_open). Every engine keeps the
 * same promises, and one suite of tests runs over any of them (tests/unit/facts-suite.c):
 *
 *  1. Every change has a revision, a number that grows. A change tests some facts and writes some: all of it or
 *     nothing.
 *  2. What facts_get() and facts_range() answer was true at one moment after the call began (FACTS_MAY_BE_OLD: before
 *     it, too).
 *  3. A watch tells all changes, in their order and without a gap. If the engine has forgotten where the watch stood,
 *     the watch tells everything anew and says so.
 *  4. A lease that is not kept ends by itself, and what was written with it is removed.
 *  5. A change whose answer got lost is FACTS_UNKNOWN: it may have been made, now or a moment later. Nothing here
 *     repeats it; the caller reads the facts and decides.
 *
 * Nothing blocks. Each call ends with exactly one call of its `done`, from the loop and never from inside the call;
 * after facts_close() none comes. What is given to a call is copied. Callbacks may call anything here, facts_close()
 * excepted.
 */
#ifndef HUTCH_FACTS_FACTS_H
#define HUTCH_FACTS_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "loop/loop.h"

enum {
    FACTS_KEY_MAX = 512,            /* bytes of a key: printable ASCII without space */
    FACTS_VALUE_MAX = 384 * 1024,   /* bytes of a value: a network document of 256 KiB as JSON */
    FACTS_TESTS_MAX = 32,           /* of one change; */
    FACTS_WRITES_MAX = 32,          /* each key once */
    FACTS_CHANGE_MAX = 1024 * 1024, /* bytes of its keys and values together */
    FACTS_PAGE_MAX = 500,           /* facts in one answer of facts_range() */
    FACTS_TTL_MIN = 2,              /* seconds of a lease */
    FACTS_TTL_MAX = 7 * 24 * 3600,
    FACTS_CALLS_MAX = 10000, /* that wait for their answers; more are FACTS_DOWN */
    FACTS_WATCHES_MAX = 64,
};

enum facts_result {
    FACTS_OK,
    FACTS_DIFFERS,   /* a test of the change failed; nothing was written */
    FACTS_GONE,      /* there is no such lease; nothing was written */
    FACTS_COMPACTED, /* that revision is forgotten, or has not been yet: begin anew */
    FACTS_REFUSED,   /* the call cannot be right: a key, a size, a number. Nothing was written */
    FACTS_FULL,      /* the engine has no room; nothing was written */
    FACTS_DENIED,    /* the engine does not take our credentials, or is that of another cluster; nothing was written */
    FACTS_DOWN,      /* the engine cannot be reached, or does not answer; nothing was written */
    FACTS_UNKNOWN,   /* changes, facts_lease() and facts_lease_end() only: it may have happened, or may still happen */
};
/* "ok", "differs", ... Static. */
const char *facts_result_name(enum facts_result r);

struct facts_fact {
    const char *key;
    const void *value; /* never NULL, except where a watch tells that the fact was removed */
    size_t n;
    uint64_t revision, created; /* of the last change of it, and of the first since it was absent */
    uint64_t lease;             /* 0: none */
};

struct facts_answer {
    enum facts_result result;
    const char *why;   /* "" if FACTS_OK; else one sentence that names the engine. All pointers: for the call only */
    uint64_t revision; /* FACTS_OK: of the engine when it answered. A change: its own, or the present one if it changed
                                 * nothing */
    const struct facts_fact *v; /* facts_get(): none or one; facts_range(): in the order of their keys' bytes */
    size_t n;
    bool more;      /* facts_range(): there are facts behind the last one */
    uint64_t lease; /* facts_lease() */
    unsigned ttl_s; /* facts_lease(), facts_lease_keep(): in force now */
};
typedef void facts_done(void *arg, const struct facts_answer *a);

struct facts;

/* Keeps facts in a file of a directory (borrowed until facts_close()); `shown` is its path for messages. One process at
 * a time may have it open. Leases of an earlier process begin anew. Blocks while it opens. Errors (ERR_SETUP) say what
 * to do. */
#define FACTS_FILE "facts.db"
int facts_sqlite_open(struct loop *l, int dir, const char *shown, struct facts **ret, struct err *err);
/* Keeps facts in etcd, 3.4 or newer, through its JSON gateway. Nothing is asked while it opens: an engine that cannot be
 * reached answers FACTS_DOWN. All is copied. Errors: ERR_USAGE, ERR_SETUP. */
#define FACTS_ETCD_PREFIX "hutch/"
struct facts_etcd {
    const char *urls;            /* "https://a:2379,https://b:2379", up to 16 */
    const char *prefix;          /* before all keys; NULL: FACTS_ETCD_PREFIX. Several clusters may share an etcd */
    const char *authorities;     /* https: PEM, the only ones that are trusted; NULL: the system's */
    const char *cert, *key;      /* https: paths of our own; NULL: none */
    const char *user, *password; /* NULL: none */
};
int facts_etcd_open(struct loop *l, const struct facts_etcd *spec, struct facts **ret, struct err *err);
/* Frees all watches. SQLite: writes first what waits. NULL is fine. */
void facts_close(struct facts *f);
/* For messages: "SQLite in /var/lib/hutch". Borrowed. */
const char *facts_engine(const struct facts *f);

enum { FACTS_MAY_BE_OLD = 1 /* answer even if the engine has lost its majority: what one member knows */ };
void facts_get(struct facts *f, const char *key, unsigned flags, facts_done *done, void *arg);
struct facts_page {
    const char *prefix; /* "": all */
    const char *after;  /* the last key of the page before; NULL: the first page */
    size_t limit;       /* 1 to FACTS_PAGE_MAX */
    uint64_t revision;  /* as of this revision (that of the first page); 0: now */
    unsigned flags;
};
/* A page can have fewer facts than its limit although `more` is set. */
void facts_range(struct facts *f, const struct facts_page *p, facts_done *done, void *arg);

struct facts_test {
    const char *key;
    uint64_t revision; /* that of the fact now; 0: there must be none */
};
struct facts_write {
    const char *key;
    const void *value; /* NULL: remove it, if it is there */
    size_t n;
    uint64_t lease; /* 0: none */
};
void facts_change(struct facts *f, const struct facts_test *tests, size_t ntests, const struct facts_write *writes,
                  size_t nwrites, facts_done *done, void *arg);

/* FACTS_UNKNOWN: there may be a lease without a holder; it ends by itself. */
void facts_lease(struct facts *f, unsigned ttl_s, facts_done *done, void *arg);
void facts_lease_keep(struct facts *f, uint64_t lease, facts_done *done, void *arg);
/* Ends it now. FACTS_GONE: it has ended before. */
void facts_lease_end(struct facts *f, uint64_t lease, facts_done *done, void *arg);

/* Lets the engine forget what facts were before a revision. etcd does this by itself if it is told to
 * (--auto-compaction-retention), and SQLite always; so this is for tests. */
void facts_compact(struct facts *f, uint64_t revision, facts_done *done, void *arg);

/* Between two calls of on_current the facts that were told are not yet those of one moment: parts of a change may be
 * missing. */
struct facts_events {
    /* The state is told anew: each fact by on_put. What was not told when on_current comes is no more. */
    void (*on_restart)(void *arg);
    void (*on_put)(void *arg, const struct facts_fact *f);
    void (*on_remove)(void *arg, const char *key, uint64_t revision);
    /* All changes up to this revision were told: a new watch may begin at revision + 1. */
    void (*on_current)(void *arg, uint64_t revision);
    /* For a while nothing could be learned; what was told may be old. The next on_current ends that. May be NULL. */
    void (*on_stale)(void *arg, const char *why);
};
struct facts_watch;
/* Tells the changes of facts whose keys begin with `prefix`, from a revision on; from 0: restarts with the state of
 * now. `events` is borrowed. NULL: there are FACTS_WATCHES_MAX, or the prefix is not one. */
struct facts_watch *facts_watch(struct facts *f, const char *prefix, uint64_t from, const struct facts_events *events,
                                void *arg);
/* No callback follows. NULL is fine. */
void facts_watch_free(struct facts_watch *w);

#endif
