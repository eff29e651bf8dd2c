/* attach.c - attachments: which connection follows which command. An attachment is told of new output once, and again
 * after it acknowledged; stream ends are state, not messages, so a slow reader delays only its own command. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "init/init-int.h"

static bool asker_is_same(const struct asker *a, const struct asker *b)
{
    return a->conn == b->conn && a->gen == b->gen && a->request == b->request;
}

static struct attachment *attachment_find(struct init *g, const struct asker *who)
{
    for (uint32_t i = 0; i < g->nattachments; i++)
        if (g->attachment[i].used && asker_is_same(&g->attachment[i].who, who))
            return &g->attachment[i];
    return NULL;
}

struct attachment *attach_new(struct init *g, const struct asker *who, const struct command *c)
{
    if (attachment_find(g, who)) /* the number is in use */
        return NULL;
    for (uint32_t i = 0; i < INIT_ATTACH_MAX; i++) {
        struct attachment *a = &g->attachment[i];
        if (a->used)
            continue;
        if (i >= g->nattachments)
            g->nattachments = i + 1;
        memset(a, 0, sizeof *a);
        a->used = true;
        a->who = *who;
        a->command = (uint32_t)(c - g->command);
        return a;
    }
    return NULL;
}

/* An acknowledgement means that front has the bytes, not yet its client: after front's death the client asks for the
 * difference again. So half of the ring keeps acknowledged bytes. */
uint64_t attach_limit(const struct init *g, const struct command *c, int s)
{
    const struct ring *r = &c->stream[s].ring;
    uint64_t low = c->hold_ms ? c->held[s] : UINT64_MAX;
    for (uint32_t i = 0; i < g->nattachments; i++) {
        const struct attachment *a = &g->attachment[i];
        if (a->used && a->command == (uint32_t)(c - g->command) && a->acked[s] < low)
            low = a->acked[s];
    }
    if (low == UINT64_MAX && c->keep)
        low = r->seen > r->tail ? r->seen : r->tail;
    return low == UINT64_MAX ? UINT64_MAX : low + r->size / 2;
}

void attach_started(struct init *g, const struct command *c, const struct spawn_report *failure)
{
    for (uint32_t i = 0; i < g->nattachments; i++) {
        struct attachment *a = &g->attachment[i];
        if (!a->used || a->command != (uint32_t)(c - g->command))
            continue;
        a->reply_due = true;
        if (failure)
            a->failure = *failure;
    }
}

/* Detaches from a removed command; an attachment with an unreported failure stays until that is reported. */
void attach_drop_command(struct init *g, const struct command *c)
{
    for (uint32_t i = 0; i < g->nattachments; i++) {
        struct attachment *a = &g->attachment[i];
        if (!a->used || a->command != (uint32_t)(c - g->command))
            continue;
        if (a->reply_due && a->failure.code != INIT_OK)
            a->command = COMMANDS_TABLE;
        else
            a->used = false;
    }
}

/* Front died without detaching, so its clients will come back: keep the output for them. */
static void attachment_hold_output(struct init *g, struct command *c, const struct attachment *a)
{
    if (c->state != COMMAND_RUNNING)
        return;
    for (int s = 1; s < INIT_STREAMS; s++)
        if (!c->hold_ms || a->acked[s] < c->held[s])
            c->held[s] = a->acked[s];
    c->hold_ms = g->now_ms + INIT_HOLD_MS;
}

void attach_drop_conn(struct init *g, uint32_t conn, uint32_t gen)
{
    for (uint32_t i = 0; i < g->nattachments; i++) {
        struct attachment *a = &g->attachment[i];
        if (!a->used || a->who.conn != conn || a->who.gen != gen)
            continue;
        a->used = false;
        if (a->command >= COMMANDS_TABLE)
            continue;
        attachment_hold_output(g, &g->command[a->command], a);
        command_resume(g, &g->command[a->command]);
    }
}

void command_attach(struct init *g, const struct asker *who, const struct init_request *r)
{
    struct command *c = command_find(g, r->pid, r->tag);
    if (!c) {
        (void)conn_reply(g, who, INIT_NOT_FOUND, "process not found");
        return;
    }
    struct attachment *a = attach_new(g, who, c);
    if (!a) {
        (void)conn_reply(g, who, INIT_LIMIT, "too many attachments in this sandbox (512)");
        return;
    }
    for (int s = 1; s < INIT_STREAMS; s++) {
        const struct ring *ring = &c->stream[s].ring;
        uint64_t from = r->offset[s];
        from = from > ring->head ? ring->head : from < ring->tail ? ring->tail : from;
        a->acked[s] = a->told[s] = from;
    }
    c->hold_ms = 0;
    command_resume(g, c);
    a->reply_due = true;
}

void command_ack(struct init *g, const struct asker *who, const struct init_request *r)
{
    struct attachment *a = attachment_find(g, who);
    if (!a || a->command >= COMMANDS_TABLE)
        return;
    struct command *c = &g->command[a->command];
    a->waits = false;
    for (int s = 1; s < INIT_STREAMS; s++) {
        struct ring *ring = &c->stream[s].ring;
        if (r->offset[s] > a->acked[s] && r->offset[s] <= ring->head)
            a->acked[s] = r->offset[s];
        if (a->acked[s] > ring->seen)
            ring->seen = a->acked[s];
    }
    command_resume(g, c);
}

void command_detach(struct init *g, const struct asker *who, bool seen)
{
    struct attachment *a = attachment_find(g, who);
    conn_closed(g, who);
    if (!a)
        return;
    a->used = false;
    if (a->command >= COMMANDS_TABLE)
        return;
    struct command *c = &g->command[a->command];
    if (seen && c->state == COMMAND_ENDED)
        c->seen_ms = g->now_ms;
    command_resume(g, c);
}

static bool attachment_send_reply(struct init *g, struct conn *k, struct attachment *a, const struct command *c)
{
    struct wire_out o = msg_begin(g);
    int fds[MSG_FDS_MAX];
    size_t n = 0;
    wire_put_u32(&o, INIT_OK);
    wire_put_str(&o, "");
    wire_put_u32(&o, (uint32_t)c->pid);
    wire_put_u32(&o, c->pty);
    wire_put_str(&o, c->tag);
    wire_put_u32(&o, g->ring_size);
    for (int s = 1; s < INIT_STREAMS; s++) {
        if (a->acked[s] < c->stream[s].ring.tail) /* forgotten since it asked */
            a->acked[s] = a->told[s] = c->stream[s].ring.tail;
        wire_put_u64(&o, a->acked[s]);
        if (c->stream[s].ring.fd >= 0 && !conn_is_stream(k))
            fds[n++] = c->stream[s].ring.fd;
    }
    return msg_send(g, k, INIT_REPLY, a->who.request, &o, fds, n);
}

static bool send_exit(struct init *g, struct conn *k, const struct attachment *a, const struct command *c)
{
    struct wire_out o = msg_begin(g);
    struct init_end e = {
        .exited = WIFEXITED(c->status),
        .code = (uint32_t)(WIFEXITED(c->status) ? WEXITSTATUS(c->status) : WTERMSIG(c->status)),
        .core = WIFSIGNALED(c->status) && WCOREDUMP(c->status),
        .oom = c->oom,
        .wall_ms = c->ended_ms - c->began_ms,
        .usage = c->usage,
    };
    for (int s = 1; s < INIT_STREAMS; s++) {
        wire_put_u64(&o, c->stream[s].ring.head);
        e.omitted[s] = c->stream[s].ring.omitted;
    }
    e.ndenied = c->ndenied;
    memcpy(e.denied, c->denied, sizeof e.denied);
    init_put_end(&o, &e);
    if (c->has_rights)
        wire_put_u32(&o, c->limit);
    return msg_send(g, k, INIT_EXITED, a->who.request, &o, NULL, 0);
}

static bool send_output(struct init *g, struct conn *k, struct attachment *a, const struct command *c)
{
    struct wire_out o = msg_begin(g);
    for (int s = 1; s < INIT_STREAMS; s++) {
        a->told[s] = c->stream[s].ring.head;
        wire_put_u64(&o, a->told[s]);
    }
    return msg_send(g, k, INIT_OUTPUT, a->who.request, &o, NULL, 0);
}

/* Over a byte stream: sends the bytes themselves, some of one stream of the command, the streams in turn. */
static bool attachment_send_bytes(struct init *g, struct conn *k, struct attachment *a, const struct command *c)
{
    static unsigned char bytes[INIT_INLINE_MAX];
    for (int i = 1; i < INIT_STREAMS; i++) {
        uint32_t s = (a->turn + (uint32_t)i - 1) % (INIT_STREAMS - 1) + 1;
        const struct ring *r = &c->stream[s].ring;
        if (a->told[s] < r->tail) /* forgotten; the end says how much was omitted */
            a->told[s] = r->tail;
        uint64_t at = a->told[s], pos = at & (r->size - 1);
        size_t n = r->head - at < sizeof bytes ? (size_t)(r->head - at) : sizeof bytes;
        n = n < r->size - pos ? n : (size_t)(r->size - pos);
        if (n == 0)
            continue;
        struct wire_out o = msg_begin(g);
        wire_put_u32(&o, s);
        wire_put_u64(&o, at);
        if (pread(r->fd, bytes, n, (off_t)pos) != (ssize_t)n)
            g->stop = true; /* init's own memory */
        wire_put_bytes(&o, bytes, n);
        if (!msg_send(g, k, INIT_OUTPUT, a->who.request, &o, NULL, 0))
            return false;
        a->told[s] = at + n;
        a->turn = s;
        return true;
    }
    return false;
}

static bool has_news(const struct attachment *a, const struct command *c)
{
    for (int s = 1; s < INIT_STREAMS; s++)
        if (c->stream[s].ring.head > a->told[s])
            return true;
    return false;
}

static void attachment_flush(struct init *g, struct attachment *a)
{
    struct conn *k = conn_of(g, &a->who);
    if (!k || conn_is_blocked(k))
        return;
    if (a->reply_due && a->failure.code != INIT_OK) {
        a->used = !conn_reply(g, &a->who, (enum init_code)a->failure.code, a->failure.text);
        return;
    }
    const struct command *c = &g->command[a->command];
    if (a->reply_due)
        a->reply_due = !attachment_send_reply(g, k, a, c);
    if (!a->used || a->reply_due || c->state == COMMAND_STARTING || conn_is_blocked(k))
        return;
    if (conn_is_stream(k)) { /* the end comes after the bytes */
        if (!a->waits && has_news(a, c))
            a->waits = attachment_send_bytes(g, k, a, c);
        if (!a->used || a->waits || has_news(a, c))
            return;
    }
    if (c->state == COMMAND_ENDED && !a->exit_told)
        a->exit_told = send_exit(g, k, a, c);
    else if (c->state == COMMAND_RUNNING && !a->waits && has_news(a, c))
        a->waits = send_output(g, k, a, c);
}

void attach_flush(struct init *g)
{
    for (uint32_t i = 0; i < g->nattachments; i++)
        if (g->attachment[i].used)
            attachment_flush(g, &g->attachment[i]);
    while (g->nattachments > 0 && !g->attachment[g->nattachments - 1].used)
        g->nattachments--;
}
