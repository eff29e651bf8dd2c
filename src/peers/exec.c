#include "peers/exec.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "peers/link-int.h"

enum { PTY_CHUNK_MAX = 16 * 1024, TURN_MAX = 512 * 1024 /* bytes before other work has its turn */ };

struct exec {
    struct links *ls;
    struct loop *loop;
    struct call *call; /* NULL: gone */
    const struct exec_ops *ops;
    void *arg;
    bool started, paused, ended, dead, owes_ack;
    unsigned busy;
    loop_id timer;
    uint32_t size;
    bool has[INIT_STREAMS];
    unsigned char *piece; /* over a byte stream, instead of rings: the last npiece bytes that came */
    size_t npiece;
    int ring[INIT_STREAMS];
    uint64_t at[INIT_STREAMS], end[INIT_STREAMS]; /* offsets: delivered up to, available up to */
    struct exec_end fin;
};

static void exec_free(struct exec *x)
{
    if (x->busy > 0)
        return;
    loop_timer_del(x->loop, x->timer);
    for (int s = 1; s < INIT_STREAMS; s++)
        if (x->ring[s] >= 0)
            (void)close(x->ring[s]);
    free(x->piece);
    free(x);
}

/* --- output ------------------------------------------------------------------------------------------------------- */

static void exec_put_offsets(struct wire_out *o, const void *arg)
{
    const struct exec *x = arg;
    for (int s = 1; s < INIT_STREAMS; s++)
        wire_put_u64(o, x->at[s]);
}

static void exec_put_true(struct wire_out *o, const void *arg)
{
    (void)arg;
    wire_put_u32(o, 1);
}

static void exec_put_false(struct wire_out *o, const void *arg)
{
    (void)arg;
    wire_put_u32(o, 0);
}

static bool exec_has_more(const struct exec *x)
{
    return x->at[1] < x->end[1] || x->at[2] < x->end[2] || x->at[3] < x->end[3];
}

/* Delivers one piece of one stream. False: the ring cannot be read as it should. */
static bool exec_deliver_piece(struct exec *x, int s, size_t *budget)
{
    static char piece[EXEC_CHUNK_MAX];
    uint64_t left = x->end[s] - x->at[s];
    size_t pos = (size_t)(x->at[s] & (x->size - 1)), n = s == EXEC_PTY ? PTY_CHUNK_MAX : EXEC_CHUNK_MAX;
    if (n > left)
        n = (size_t)left;
    if (x->piece)
        memcpy(piece, x->piece + (x->npiece - (size_t)left), n);
    else if (n > x->size - pos)
        n = x->size - pos;
    if (!x->piece && pread(x->ring[s], piece, n, (off_t)pos) != (ssize_t)n)
        return false;
    uint64_t offset = x->at[s];
    x->at[s] += n;
    x->owes_ack = true;
    *budget -= n < *budget ? n : *budget;
    if (!x->ops->output(x->arg, (enum exec_stream)s, offset, piece, n))
        x->paused = true;
    return true;
}

static void exec_finish(struct exec *x)
{
    struct call *c = x->call;
    x->call = NULL;
    x->dead = true;
    link_call_drop(c, INIT_DETACH, exec_put_true, NULL);
    x->ops->ended(x->arg, &x->fin);
}

static void exec_go_on(void *arg);

/* Delivers what is available, acknowledges it, and ends the attachment after the last byte. x may be freed afterwards.
 * False: init's message does not match the ring. */
static bool exec_deliver(struct exec *x)
{
    size_t budget = TURN_MAX;
    bool ok = true;
    if (x->busy > 0) /* called from a callback; the outer call continues */
        return true;
    x->busy++;
    while (ok && !x->dead && !x->paused && budget > 0 && exec_has_more(x))
        for (int s = 1; ok && s < INIT_STREAMS && !x->dead && !x->paused; s++)
            if (x->at[s] < x->end[s])
                ok = exec_deliver_piece(x, s, &budget);
    if (ok && !x->dead) {
        /* Over a byte stream an acknowledgement asks for the next piece. */
        bool ack = !x->piece || !exec_has_more(x);
        if (x->owes_ack && ack && !x->ended)
            link_call_note(x->call, INIT_ACK, exec_put_offsets, x);
        x->owes_ack = x->owes_ack && !ack;
        if (x->ended && !exec_has_more(x))
            exec_finish(x);
        else if (!x->paused && exec_has_more(x) && !x->timer)
            x->timer = loop_timer(x->loop, 0, exec_go_on, x);
    }
    x->busy--;
    if (x->dead)
        exec_free(x);
    return ok;
}

static void exec_fail(struct exec *x, const struct link_status *st)
{
    x->call = NULL;
    x->dead = true;
    x->ops->failed(x->arg, st);
    exec_free(x);
}

static void exec_go_on(void *arg)
{
    struct exec *x = arg;
    x->timer = 0;
    if (exec_deliver(x))
        return;
    struct link_status st;
    struct call *c = x->call;
    link_status_set(&st, LINK_BROKEN, "the sandbox's output cannot be read");
    link_call_drop(c, INIT_DETACH, exec_put_false, NULL);
    exec_fail(x, &st);
}

void exec_resume(struct exec *x)
{
    if (x->dead)
        return;
    x->paused = false;
    if (!x->timer && x->started)
        x->timer = loop_timer(x->loop, 0, exec_go_on, x);
}

void exec_detach(struct exec *x)
{
    if (x->dead)
        return;
    x->dead = true;
    link_call_drop(x->call, INIT_DETACH, exec_put_false, NULL);
    x->call = NULL;
    exec_free(x);
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

/* Reads the new ends of the streams. They may only grow, and only by what the ring holds. */
static bool exec_take_ends(struct exec *x, struct wire_in *in)
{
    for (int s = 1; s < INIT_STREAMS; s++) {
        uint64_t end = wire_u64(in);
        if (in->bad || (!x->has[s] && end != 0))
            return false;
        if (x->piece) { /* only with the end: what was forgotten is not delivered */
            if (end < x->end[s])
                return false;
            continue;
        }
        if (x->has[s] && (end < x->end[s] || end - x->at[s] > x->size))
            return false;
        x->end[s] = end;
    }
    return true;
}

/* Takes the next bytes, over a byte stream. They come one piece at a time, and never go back. */
static bool exec_take_piece(struct exec *x, struct wire_in *in)
{
    size_t n = 0;
    uint32_t s = wire_u32(in);
    uint64_t offset = wire_u64(in);
    const void *p = wire_bytes(in, INIT_INLINE_MAX, &n);
    if (in->bad || s >= INIT_STREAMS || !x->has[s] || n == 0 || exec_has_more(x) || offset < x->end[s] ||
        offset > UINT64_MAX - n)
        return false;
    memcpy(x->piece, p, n);
    x->npiece = n;
    x->at[s] = offset;
    x->end[s] = offset + n;
    return true;
}

static bool exec_take_rings(struct exec *x, struct link_msg *m, bool pty)
{
    bool inline_output = link_call_is_stream(x->call);
    size_t want = inline_output ? 0 : pty ? 1 : 2;
    for (int s = 1; s < INIT_STREAMS; s++)
        x->has[s] = pty == (s == EXEC_PTY);
    if (inline_output)
        x->piece = xmalloc(INIT_INLINE_MAX);
    if (m->nfds != want || x->size < INIT_RING_MIN || x->size > INIT_RING_MAX || (x->size & (x->size - 1)))
        return false;
    for (size_t i = 0; i < want; i++)
        if (!link_fd_is_memory(m->fds[i], x->size))
            return false;
    for (size_t i = 0; i < want; i++)
        x->ring[pty ? EXEC_PTY : (int)i + EXEC_STDOUT] = TAKE_FD(m->fds[i]);
    return true;
}

static enum call_next exec_on_reply(struct exec *x, struct link_msg *m)
{
    struct link_status st;
    char tag[INIT_TAG_MAX + 1];
    if (x->started || !link_call_status(&m->in, &st))
        return CALL_BROKEN;
    if (st.code != LINK_OK) {
        if (m->nfds || !wire_done(&m->in))
            return CALL_BROKEN;
        exec_fail(x, &st);
        return CALL_DONE;
    }
    uint32_t pid = wire_u32(&m->in);
    bool pty = wire_bool(&m->in);
    const char *t = wire_str(&m->in, INIT_TAG_MAX);
    size_t len = strlen(t);
    memcpy(tag, t, len + 1);
    x->size = wire_u32(&m->in);
    for (int s = 1; s < INIT_STREAMS; s++)
        x->at[s] = x->end[s] = wire_u64(&m->in);
    if (!wire_done(&m->in) || pid == 0 || pid > INT32_MAX || !exec_take_rings(x, m, pty))
        return CALL_BROKEN;
    for (int s = 1; s < INIT_STREAMS; s++)
        if (!x->has[s] && x->at[s] != 0)
            return CALL_BROKEN;
    x->started = true;
    x->busy++;
    x->ops->started(x->arg, pid, tag[0] ? tag : NULL);
    x->busy--;
    if (x->dead)
        exec_free(x);
    return CALL_KEEP;
}

_Static_assert((int)EXEC_DENIED_MAX >= (int)INIT_DENIED_MAX, "all denied calls that init reports fit");

static enum exec_limit exec_take_limit(struct wire_in *in)
{
    uint32_t v = wire_u32(in);
    if (v >= INIT_LIMITS)
        in->bad = true;
    return in->bad ? EXEC_LIMIT_NONE : (enum exec_limit)v;
}

static enum call_next exec_on_message(struct call *c, struct link_msg *m)
{
    struct exec *x = c->object;
    if (m->type == INIT_REPLY)
        return exec_on_reply(x, m);
    if (!x->started || x->ended || m->nfds || (m->type != INIT_OUTPUT && m->type != INIT_EXITED) ||
        !(x->piece && m->type == INIT_OUTPUT ? exec_take_piece(x, &m->in) : exec_take_ends(x, &m->in)))
        return CALL_BROKEN;
    if (m->type == INIT_EXITED) {
        struct init_end e;
        init_get_end(&m->in, &e);
        x->ended = true;
        x->fin = (struct exec_end){.exited = e.exited,
                                   .code = (int)e.code,
                                   .core = e.core,
                                   .usage = e.usage,
                                   .wall_ms = e.wall_ms,
                                   .omitted = {0, e.omitted[1], e.omitted[2], e.omitted[3]},
                                   .oom = e.oom};
        if (m->in.at < m->in.n)
            x->fin.limit = exec_take_limit(&m->in);
        for (; x->fin.ndenied < e.ndenied; x->fin.ndenied++) {
            const struct init_denied *d = &e.denied[x->fin.ndenied];
            x->fin.denied[x->fin.ndenied] =
                (struct exec_denied){.nr = d->nr, .count = d->count, .args = {d->args[0], d->args[1], d->args[2]}};
        }
    }
    if (!wire_done(&m->in))
        return CALL_BROKEN;
    x->owes_ack = true;
    return exec_deliver(x) ? CALL_KEEP : CALL_BROKEN;
}

static void exec_on_failed(struct call *c, const struct link_status *st) { exec_fail(c->object, st); }

/* --- calls -------------------------------------------------------------------------------------------------------- */

static struct exec *exec_new(struct links *ls, const struct exec_ops *ops, void *arg, struct call *c)
{
    struct exec *x = xcalloc(1, sizeof *x);
    x->ls = ls;
    x->loop = links_loop(ls);
    x->ops = ops;
    x->arg = arg;
    for (int s = 0; s < INIT_STREAMS; s++)
        x->ring[s] = -1;
    x->call = c;
    c->message = exec_on_message;
    c->failed = exec_on_failed;
    c->object = x;
    return x;
}

static void exec_put_rights(struct wire_out *o, const struct exec_rights *r)
{
    struct init_rights put = {.flags = (r->no_network ? INIT_RIGHTS_NO_NETWORK : 0U) |
                                       (r->limit_write ? INIT_RIGHTS_WRITE : 0U) |
                                       (r->own_user ? INIT_RIGHTS_OWN_USER : 0U),
                              .time_ms = r->time_ms,
                              .output_max = r->output_max};
    for (; r->limit_write && r->write && put.nwrite < INIT_WRITE_MAX && r->write[put.nwrite]; put.nwrite++)
        put.write[put.nwrite] = r->write[put.nwrite];
    init_put_rights(o, &put);
}

static void exec_put_spawn(struct wire_out *o, const void *arg)
{
    const struct exec_spec *s = arg;
    if (s->rights && s->group)
        wire_put_u64(o, s->group);
    if (s->rights)
        exec_put_rights(o, s->rights);
    uint32_t flags = (s->pty ? INIT_SPAWN_PTY : 0U) | (s->stdin_open ? INIT_SPAWN_STDIN : 0U) |
                     (s->keep_output ? INIT_SPAWN_KEEP : 0U);
    wire_put_str(o, s->cmd);
    wire_put_strv(o, s->args, link_count_strings(s->args));
    wire_put_strv(o, s->env, link_count_strings(s->env));
    wire_put_u32(o, s->cwd != NULL);
    if (s->cwd)
        wire_put_str(o, s->cwd);
    wire_put_str(o, s->user);
    wire_put_str(o, s->tag);
    wire_put_u32(o, flags);
    wire_put_u32(o, s->cols);
    wire_put_u32(o, s->rows);
    wire_put_u64(o, s->timeout_ms);
}

/* Names the field that is too long for the protocol; NULL: none. */
static const char *exec_check_spec(const struct exec_spec *s)
{
    if (link_count_strings(s->args) > EXEC_ARGS_MAX)
        return "more than 1024 arguments";
    if (link_count_strings(s->env) > INIT_ENV_MAX)
        return "more than 1024 environment variables";
    if (strlen(s->cmd) >= INIT_PATH_MAX)
        return "the command is longer than 4095 bytes";
    if (s->cwd && strlen(s->cwd) >= INIT_PATH_MAX)
        return "cwd is longer than 4095 bytes";
    if (s->user && strlen(s->user) > INIT_USER_MAX)
        return "the user's name is longer than 64 bytes";
    if (s->tag && strlen(s->tag) > EXEC_TAG_MAX)
        return "the tag is longer than 128 bytes";
    const char *const *write = s->rights ? s->rights->write : NULL;
    for (size_t i = 0; write && write[i]; i++)
        if (i >= EXEC_WRITE_MAX || !*write[i] || strlen(write[i]) >= INIT_PATH_MAX)
            return "write: at most 32 paths of 1 to 4095 bytes";
    return NULL;
}

struct exec *exec_start(struct links *ls, const char *id, const struct exec_spec *spec, const struct exec_ops *ops,
                        void *arg)
{
    const char *wrong = exec_check_spec(spec);
    uint16_t type = !spec->rights ? INIT_SPAWN : spec->group ? INIT_SPAWN_LIMITED : INIT_SPAWN_RIGHTS;
    struct call *c =
        wrong ? link_call_refused(ls, type, LINK_INVALID, wrong) : link_call_new(ls, id, type, exec_put_spawn, spec);
    return exec_new(ls, ops, arg, c);
}

struct with_who {
    const struct exec_select *who;
    const uint64_t *from;
    uint32_t a, b;
    const void *p;
    size_t n;
};

static void exec_put_who(struct wire_out *o, const void *arg)
{
    const struct with_who *w = arg;
    wire_put_u32(o, w->who->pid);
    wire_put_str(o, w->who->pid ? "" : w->who->tag);
}

static void exec_put_attach(struct wire_out *o, const void *arg)
{
    const struct with_who *w = arg;
    exec_put_who(o, arg);
    for (int s = 1; s < INIT_STREAMS; s++)
        wire_put_u64(o, w->from[s]);
}

struct exec *exec_attach(struct links *ls, const char *id, const struct exec_select *who, const uint64_t from[4],
                         const struct exec_ops *ops, void *arg)
{
    struct with_who w = {.who = who, .from = from};
    return exec_new(ls, ops, arg, link_call_new(ls, id, INIT_ATTACH, exec_put_attach, &w));
}

static link_call exec_ask(struct links *ls, const char *id, uint16_t type, call_put *put, const void *w,
                          link_done *done, void *arg)
{
    struct call *c = link_call_new(ls, id, type, put, w);
    c->message = link_call_message_done;
    c->failed = link_call_failed_done;
    c->fn = CALL_FN(done);
    c->arg = arg;
    return c->id;
}

static void exec_put_number(struct wire_out *o, const void *arg)
{
    exec_put_who(o, arg);
    wire_put_u32(o, ((const struct with_who *)arg)->a);
}

static void exec_put_numbers(struct wire_out *o, const void *arg)
{
    exec_put_number(o, arg);
    wire_put_u32(o, ((const struct with_who *)arg)->b);
}

link_call exec_signal(struct links *ls, const char *id, const struct exec_select *who, int sig, link_done *done,
                      void *arg)
{
    struct with_who w = {.who = who, .a = (uint32_t)sig};
    return exec_ask(ls, id, INIT_SIGNAL, exec_put_number, &w, done, arg);
}

link_call exec_close_input(struct links *ls, const char *id, const struct exec_select *who, link_done *done, void *arg)
{
    struct with_who w = {.who = who};
    return exec_ask(ls, id, INIT_CLOSE_INPUT, exec_put_who, &w, done, arg);
}

link_call exec_resize(struct links *ls, const char *id, const struct exec_select *who, uint16_t cols, uint16_t rows,
                      link_done *done, void *arg)
{
    struct with_who w = {.who = who, .a = cols, .b = rows};
    return exec_ask(ls, id, INIT_RESIZE, exec_put_numbers, &w, done, arg);
}
