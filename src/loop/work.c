/* work.c - calls posted from other threads, and the worker threads for blocking calls. */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"
#include "loop/loop-int.h"

struct job {
    struct job *next;
    struct loop *loop;
    loop_fn *work, *done;
    void *arg;
};

struct loop_workers {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct job *first, **last;
    bool stopping;
    unsigned n;
    pthread_t thread[LOOP_WORKERS];
};

static void loop_on_posted(void *arg, int fd, unsigned events)
{
    struct loop *l = arg;
    uint64_t count;
    (void)events;
    (void)!read(fd, &count, sizeof count);
    (void)pthread_mutex_lock(&l->lock);
    struct calls batch = l->posted;
    l->posted = l->taken;
    l->posted.n = 0;
    (void)pthread_mutex_unlock(&l->lock);
    l->taken = (struct calls){0};
    for (size_t i = 0; i < batch.n; i++)
        batch.v[i].fn(batch.v[i].arg);
    l->taken = batch;
}

int posts_open(struct loop *l, struct err *err)
{
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->wake_fd < 0)
        return err_set(err, ERR_INTERNAL, errno, "eventfd");
    l->wake_watch = loop_fd_add(l, l->wake_fd, LOOP_IN, loop_on_posted, l);
    return l->wake_watch == 0 ? err_set(err, ERR_INTERNAL, errno, "watch eventfd") : 0;
}

static void job_free_unrun(loop_fn *fn, void *arg);

void posts_close(struct loop *l)
{
    for (size_t i = 0; i < l->posted.n; i++)
        job_free_unrun(l->posted.v[i].fn, l->posted.v[i].arg);
    if (l->wake_fd >= 0)
        (void)close(l->wake_fd);
    free(l->posted.v);
    free(l->taken.v);
}

void loop_post(struct loop *l, loop_fn *fn, void *arg)
{
    static const uint64_t one = 1;
    (void)pthread_mutex_lock(&l->lock);
    bool wake = l->posted.n == 0;
    calls_add(&l->posted, fn, arg);
    (void)pthread_mutex_unlock(&l->lock);
    if (wake)
        (void)!write(l->wake_fd, &one, sizeof one);
}

static void job_done(void *arg)
{
    struct job job = *(struct job *)arg;
    free(arg);
    if (job.done)
        job.done(job.arg);
}

/* Frees a finished job whose `done` will never be called: no other posted argument is ours. */
static void job_free_unrun(loop_fn *fn, void *arg)
{
    if (fn == job_done)
        free(arg);
}

static void *worker_main(void *arg)
{
    struct loop_workers *w = arg;
    (void)pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->first && !w->stopping)
            (void)pthread_cond_wait(&w->more, &w->lock);
        if (w->stopping)
            break;
        struct job *job = w->first;
        w->first = job->next;
        if (!w->first)
            w->last = &w->first;
        (void)pthread_mutex_unlock(&w->lock);
        job->work(job->arg);
        loop_post(job->loop, job_done, job);
        (void)pthread_mutex_lock(&w->lock);
    }
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Workers take no signals: those belong to the loop's thread. */
static struct loop_workers *workers_start(void)
{
    struct loop_workers *w = xcalloc(1, sizeof *w);
    sigset_t all, old;
    w->last = &w->first;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->more, NULL);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    while (w->n < LOOP_WORKERS && pthread_create(&w->thread[w->n], NULL, worker_main, w) == 0)
        w->n++;
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return w;
}

void workers_stop(struct loop *l)
{
    struct loop_workers *w = l->workers;
    if (!w)
        return;
    (void)pthread_mutex_lock(&w->lock);
    w->stopping = true;
    (void)pthread_cond_broadcast(&w->more);
    (void)pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->n; i++)
        (void)pthread_join(w->thread[i], NULL);
    for (struct job *job = w->first, *next; job; job = next) {
        next = job->next;
        free(job);
    }
    (void)pthread_cond_destroy(&w->more);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
    l->workers = NULL;
}

void loop_work(struct loop *l, loop_fn *work, loop_fn *done, void *arg)
{
    struct job *job = xcalloc(1, sizeof *job);
    *job = (struct job){.loop = l, .work = work, .done = done, .arg = arg};
    if (!l->workers)
        l->workers = workers_start();
    struct loop_workers *w = l->workers;
    if (w->n == 0) { /* no thread could be made: block the loop rather than drop the work */
        work(arg);
        loop_post(l, job_done, job);
        return;
    }
    (void)pthread_mutex_lock(&w->lock);
    *w->last = job;
    w->last = &job->next;
    (void)pthread_cond_signal(&w->more);
    (void)pthread_mutex_unlock(&w->lock);
}
