/* sqlite.c - facts in SQLite, the loop's side: jobs for the thread, leases, watches.
 *
 * Leases end by the loop's clock. A watch asks for the changes since its position whenever something has changed; so it
 * cannot miss any, however fast they come.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/random.h"
#include "db/vfs.h"
#include "facts/sqlite-int.h"

struct sqlite_follow {
    struct sqlite_follow *next;
    struct sqlite_facts *s;
    char *prefix;
    uint64_t at; /* the next revision to tell */
    const struct facts_follow_events *events;
    void *arg;
    struct job *asked; /* under way */
    bool again;        /* something changed meanwhile */
    bool lost;
};

/* --- jobs
 * ------------------------------------------------------------------------------------------------------------- */

void sqlite_job_free(struct job *j)
{
    free(j->key);
    free(j->after);
    for (size_t i = 0; i < j->ntests; i++)
        free((char *)(uintptr_t)j->tests[i].key);
    for (size_t i = 0; i < j->nwrites; i++) {
        free((char *)(uintptr_t)j->writes[i].key);
        free((void *)(uintptr_t)j->writes[i].value);
    }
    free(j->tests);
    free(j->writes);
    facts_rows_done(&j->rows);
    free(j);
}

static struct job *sqlite_job_new(enum job_kind kind, struct facts_call_in in)
{
    struct job *j = xcalloc(1, sizeof *j);
    j->kind = kind;
    j->in = in;
    return j;
}

static void sqlite_job_send(struct sqlite_facts *s, struct job *j)
{
    if (s->waiting >= FACTS_CALLS_MAX && j->in.done) {
        _cleanup_free_ char *why = xasprintf("%s: %zu calls wait already", s->head.engine, s->waiting);
        facts_answer_later(&s->head, FACTS_DOWN, why, j->in);
        sqlite_job_free(j);
        return;
    }
    s->waiting++;
    (void)pthread_mutex_lock(&s->lock);
    *s->last = j;
    s->last = &j->next;
    (void)pthread_cond_signal(&s->wake);
    (void)pthread_mutex_unlock(&s->lock);
}

/* Under the lock. */
static struct job *sqlite_take_batch(struct sqlite_facts *s)
{
    struct job *list = s->first, **end = &s->first;
    for (size_t n = 0; *end && n < SQLITE_FACTS_BATCH; n++)
        end = &(*end)->next;
    s->first = *end;
    *end = NULL;
    if (!s->first)
        s->last = &s->first;
    return list;
}

static void *sqlite_thread_main(void *arg)
{
    static const uint64_t one = 1;
    struct sqlite_facts *s = arg;
    (void)pthread_mutex_lock(&s->lock);
    while (!s->stop || s->first) {
        if (!s->first) {
            (void)pthread_cond_wait(&s->wake, &s->lock);
            continue;
        }
        struct job *list = sqlite_take_batch(s);
        (void)pthread_mutex_unlock(&s->lock);
        sqlite_run_batch(s, list);
        (void)pthread_mutex_lock(&s->lock);
        *s->finished_last = list;
        while (*s->finished_last)
            s->finished_last = &(*s->finished_last)->next;
        (void)!write(s->done_fd, &one, sizeof one);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* --- leases
 * ----------------------------------------------------------------------------------------------------------- */

static struct lease **sqlite_lease_find(struct sqlite_facts *s, uint64_t id)
{
    struct lease **at = &s->leases;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

static void sqlite_lease_on_timer(void *arg)
{
    struct lease *l = arg;
    struct job *j = sqlite_job_new(JOB_LEASE_END, (struct facts_call_in){NULL, NULL});
    l->timer = 0;
    l->ending = true;
    j->lease = l->id;
    sqlite_job_send(l->s, j);
}

static void sqlite_lease_start(struct sqlite_facts *s, uint64_t id, unsigned ttl_s)
{
    struct lease *l = xcalloc(1, sizeof *l);
    *l = (struct lease){.next = s->leases, .s = s, .id = id, .ttl_s = ttl_s};
    l->timer = loop_timer(s->head.loop, (uint64_t)ttl_s * 1000, sqlite_lease_on_timer, l);
    s->leases = l;
    s->nleases++;
}

static void sqlite_lease_drop(struct sqlite_facts *s, uint64_t id)
{
    struct lease **at = sqlite_lease_find(s, id), *l = *at;
    if (!l)
        return;
    *at = l->next;
    s->nleases--;
    loop_timer_del(s->head.loop, l->timer);
    free(l);
}

static void sqlite_lease_new(struct facts *f, unsigned ttl_s, struct facts_call_in in)
{
    struct sqlite_facts *s = (struct sqlite_facts *)f;
    if (s->nleases >= SQLITE_FACTS_LEASES) {
        _cleanup_free_ char *why = xasprintf("%s: there are %d leases already", f->engine, SQLITE_FACTS_LEASES);
        facts_answer_later(f, FACTS_FULL, why, in);
        return;
    }
    struct job *j = sqlite_job_new(JOB_LEASE, in);
    random_bytes(&j->lease, sizeof j->lease);
    j->lease = (j->lease >> 1) | 1; /* a positive number of SQLite's, and never 0 */
    j->ttl_s = ttl_s;
    sqlite_job_send(s, j);
}

static void sqlite_lease_keep(struct facts *f, uint64_t lease, struct facts_call_in in)
{
    struct sqlite_facts *s = (struct sqlite_facts *)f;
    struct lease *l = *sqlite_lease_find(s, lease);
    if (!l || l->ending) {
        _cleanup_free_ char *why = xasprintf("%s: there is no such lease", f->engine);
        facts_answer_later(f, FACTS_GONE, why, in);
        return;
    }
    loop_timer_del(f->loop, l->timer);
    l->timer = loop_timer(f->loop, (uint64_t)l->ttl_s * 1000, sqlite_lease_on_timer, l);
    struct job *j = sqlite_job_new(JOB_LEASE_KEPT, in);
    j->lease = lease;
    j->ttl_s = l->ttl_s;
    sqlite_job_send(s, j);
}

static void sqlite_lease_end(struct facts *f, uint64_t lease, struct facts_call_in in)
{
    struct job *j = sqlite_job_new(JOB_LEASE_END, in);
    j->lease = lease;
    sqlite_job_send((struct sqlite_facts *)f, j);
}

/* --- watches
 * ---------------------------------------------------------------------------------------------------------- */

static void sqlite_follow_ask(struct sqlite_follow *w)
{
    w->again = w->asked != NULL;
    if (w->asked || w->lost)
        return;
    w->asked = sqlite_job_new(JOB_FOLLOW, (struct facts_call_in){NULL, NULL});
    w->asked->key = xstrdup(w->prefix);
    w->asked->revision = w->at;
    w->asked->follow = w;
    sqlite_job_send(w->s, w->asked);
}

/* The callbacks may end the watch; j->follow is NULL then. */
static void sqlite_follow_on_job(struct job *j)
{
    struct sqlite_follow *w = j->follow;
    if (j->result == FACTS_COMPACTED) {
        w->asked = NULL;
        w->lost = true;
        w->events->on_lost(w->arg);
        return;
    }
    bool more = w->again || j->more;
    if (j->result == FACTS_OK) {
        w->at = j->now + 1;
        w->events->on_changes(w->arg, &j->rows, j->now);
    } else {
        w->events->on_trouble(w->arg, j->why);
    }
    if (!j->follow)
        return;
    w->asked = NULL;
    w->again = false;
    if (more)
        sqlite_follow_ask(w);
}

static void *sqlite_follow(struct facts *f, const char *prefix, uint64_t from, const struct facts_follow_events *events,
                           void *arg)
{
    struct sqlite_facts *s = (struct sqlite_facts *)f;
    struct sqlite_follow *w = xcalloc(1, sizeof *w);
    *w = (struct sqlite_follow){
        .next = s->follows, .s = s, .prefix = xstrdup(prefix), .at = from, .events = events, .arg = arg};
    s->follows = w;
    sqlite_follow_ask(w);
    return w;
}

static void sqlite_unfollow(struct facts *f, void *follow)
{
    struct sqlite_follow *w = follow;
    for (struct sqlite_follow **at = &((struct sqlite_facts *)f)->follows; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    if (w->asked)
        w->asked->follow = NULL;
    free(w->prefix);
    free(w);
}

/* --- answers
 * ---------------------------------------------------------------------------------------------------------- */

static void sqlite_on_job(struct sqlite_facts *s, struct job *j)
{
    struct facts_answer a = {.result = j->result,
                             .why = j->why,
                             .revision = j->now,
                             .v = j->rows.v,
                             .n = j->rows.n,
                             .more = j->more,
                             .lease = j->lease,
                             .ttl_s = j->ttl_s};
    if (j->kind == JOB_LEASE && j->result == FACTS_OK)
        sqlite_lease_start(s, j->lease, j->ttl_s);
    if (j->kind == JOB_LEASE_END && (j->result == FACTS_OK || j->result == FACTS_GONE))
        sqlite_lease_drop(s, j->lease);
    if (j->kind == JOB_FOLLOW && j->follow)
        sqlite_follow_on_job(j);
    if (j->in.done)
        j->in.done(j->in.arg, &a);
}

/* A lease whose end could not be written is ended again later. */
static void sqlite_lease_retry(struct sqlite_facts *s, const struct job *j)
{
    struct lease *l = *sqlite_lease_find(s, j->lease);
    if (l && l->ending && !l->timer)
        l->timer = loop_timer(s->head.loop, FACTS_AGAIN_MS, sqlite_lease_on_timer, l);
}

static void sqlite_on_done_fd(void *arg, int fd, unsigned events)
{
    struct sqlite_facts *s = arg;
    uint64_t count;
    bool changed = false;
    (void)events;
    (void)!read(fd, &count, sizeof count);
    (void)pthread_mutex_lock(&s->lock);
    struct job *list = s->finished;
    s->finished = NULL;
    s->finished_last = &s->finished;
    (void)pthread_mutex_unlock(&s->lock);
    while (list) {
        struct job *j = list;
        list = j->next;
        s->waiting--;
        changed |= j->changed;
        sqlite_on_job(s, j);
        if (j->kind == JOB_LEASE_END && j->result != FACTS_OK)
            sqlite_lease_retry(s, j);
        sqlite_job_free(j);
    }
    for (struct sqlite_follow *w = s->follows; changed && w; w = w->next)
        sqlite_follow_ask(w);
}

/* --- calls
 * ------------------------------------------------------------------------------------------------------------ */

static void sqlite_get(struct facts *f, const char *key, unsigned flags, struct facts_call_in in)
{
    struct job *j = sqlite_job_new(JOB_GET, in);
    (void)flags;
    j->key = xstrdup(key);
    sqlite_job_send((struct sqlite_facts *)f, j);
}

static void sqlite_range(struct facts *f, const struct facts_page *p, struct facts_call_in in)
{
    struct job *j = sqlite_job_new(JOB_RANGE, in);
    j->key = xstrdup(p->prefix);
    j->after = p->after ? xstrdup(p->after) : NULL;
    j->limit = p->limit;
    j->revision = p->revision;
    sqlite_job_send((struct sqlite_facts *)f, j);
}

static void *sqlite_copy(const void *p, size_t n)
{
    void *copy = xmalloc(n ? n : 1);
    if (n > 0)
        memcpy(copy, p, n);
    return copy;
}

static void sqlite_change(struct facts *f, const struct facts_test *tests, size_t ntests,
                          const struct facts_write *writes, size_t nwrites, struct facts_call_in in)
{
    struct job *j = sqlite_job_new(JOB_CHANGE, in);
    j->tests = xcalloc(ntests + 1, sizeof *tests);
    j->writes = xcalloc(nwrites, sizeof *writes);
    for (; j->ntests < ntests; j->ntests++)
        j->tests[j->ntests] = (struct facts_test){xstrdup(tests[j->ntests].key), tests[j->ntests].revision};
    for (; j->nwrites < nwrites; j->nwrites++) {
        const struct facts_write *w = &writes[j->nwrites];
        j->writes[j->nwrites] = (struct facts_write){xstrdup(w->key), w->value ? sqlite_copy(w->value, w->n) : NULL,
                                                     w->value ? w->n : 0, w->lease};
    }
    sqlite_job_send((struct sqlite_facts *)f, j);
}

static void sqlite_compact(struct facts *f, uint64_t revision, struct facts_call_in in)
{
    struct job *j = sqlite_job_new(JOB_COMPACT, in);
    j->revision = revision;
    sqlite_job_send((struct sqlite_facts *)f, j);
}

/* --- life
 * ------------------------------------------------------------------------------------------------------------- */

static void sqlite_close(struct facts *f)
{
    struct sqlite_facts *s = (struct sqlite_facts *)f;
    (void)pthread_mutex_lock(&s->lock);
    s->stop = true;
    (void)pthread_cond_signal(&s->wake);
    (void)pthread_mutex_unlock(&s->lock);
    if (s->started)
        (void)pthread_join(s->thread, NULL);
    for (struct job *j = s->finished, *next; j; j = next) {
        next = j->next;
        sqlite_job_free(j);
    }
    while (s->leases)
        sqlite_lease_drop(s, s->leases->id);
    loop_fd_del(f->loop, s->watch);
    if (s->done_fd >= 0)
        (void)close(s->done_fd);
    (void)sqlite3_close(s->db);
    (void)pthread_mutex_destroy(&s->lock);
    (void)pthread_cond_destroy(&s->wake);
    facts_head_done(f);
    free(s);
}

static const struct facts_ops sqlite_ops = {
    .close = sqlite_close,
    .get = sqlite_get,
    .range = sqlite_range,
    .change = sqlite_change,
    .lease = sqlite_lease_new,
    .lease_keep = sqlite_lease_keep,
    .lease_end = sqlite_lease_end,
    .compact = sqlite_compact,
    .follow = sqlite_follow,
    .unfollow = sqlite_unfollow,
};

/* The holders of leases may still live: each lease begins anew. */
static int sqlite_open_leases(struct sqlite_facts *s, struct err *err)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(s->db, "SELECT id, ttl FROM leases", -1, &st, NULL);
    while (rc == SQLITE_OK && (rc = sqlite3_step(st)) == SQLITE_ROW) {
        sqlite_lease_start(s, (uint64_t)sqlite3_column_int64(st, 0), (unsigned)sqlite3_column_int64(st, 1));
        rc = SQLITE_OK;
    }
    (void)sqlite3_finalize(st);
    return rc == SQLITE_DONE ? 0 : sqlite_facts_error(s, "its leases cannot be read", err);
}

static int sqlite_open_thread(struct sqlite_facts *s, struct err *err)
{
    sigset_t all, was;
    s->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->watch = s->done_fd < 0 ? 0 : loop_fd_add(s->head.loop, s->done_fd, LOOP_IN, sqlite_on_done_fd, s);
    if (!s->watch)
        return err_set(err, ERR_SETUP, errno, "%s: an eventfd cannot be watched", s->head.engine);
    /* Signals belong to the loop's thread. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &was);
    int eno = pthread_create(&s->thread, NULL, sqlite_thread_main, s);
    (void)pthread_sigmask(SIG_SETMASK, &was, NULL);
    s->started = eno == 0;
    return s->started ? 0 : err_set(err, ERR_SETUP, eno, "%s: a thread cannot be started", s->head.engine);
}

/* Makes the file if there is none, so that its mode is right from the start; SQLite gives the files beside it the same
 * one. A file that is there is not opened here: closing it again would drop the locks that this process has on it. */
static int sqlite_make_file(struct sqlite_facts *s, int dir, struct err *err)
{
    struct stat st;
    int fd = openat(dir, FACTS_FILE, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        return close(fd);
    if (errno == EEXIST && fstatat(dir, FACTS_FILE, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
        return 0;
    return err_set(err, ERR_SETUP, errno == EEXIST ? 0 : errno, "%s: " FACTS_FILE " cannot be opened%s", s->head.engine,
                   errno == EEXIST ? ": it is not a regular file" : "");
}

static int sqlite_open_file(struct sqlite_facts *s, int dir, struct err *err)
{
    _cleanup_free_ char *path = xasprintf("/proc/self/fd/%d/" FACTS_FILE, dir);
    if (sqlite_make_file(s, dir, err) < 0)
        return -1;
    if (sqlite3_open_v2(path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, db_vfs()) != SQLITE_OK)
        return sqlite_facts_error(s, "cannot be opened", err);
    return sqlite_facts_prepare(s, err);
}

int facts_sqlite_open(struct loop *l, int dir, const char *shown, struct facts **ret, struct err *err)
{
    struct sqlite_facts *s = xcalloc(1, sizeof *s);
    s->head = (struct facts){.ops = &sqlite_ops, .loop = l, .engine = xasprintf("SQLite in %s", shown)};
    s->last = &s->first;
    s->finished_last = &s->finished;
    s->done_fd = -1;
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->wake, NULL);
    if (sqlite_open_file(s, dir, err) < 0 || sqlite_open_leases(s, err) < 0 || sqlite_open_thread(s, err) < 0) {
        sqlite_close(&s->head);
        return -1;
    }
    *ret = &s->head;
    return 0;
}
