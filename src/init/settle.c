/* settle.c - INIT_SETTLE: asks each watch of the connection to report what the kernel has queued for it. The reply goes
 * over the same connection, so it arrives after these events. */
#include <sys/socket.h>

#include "init/init-int.h"

void settle_start(struct init *g, const struct asker *who)
{
    uint64_t turn = ++g->settle_turn;
    struct settle *s = NULL;
    for (unsigned i = 0; i < SETTLES_MAX && !s; i++)
        if (!g->settle[i].used)
            s = &g->settle[i];
    if (!s) {
        (void)conn_reply(g, who, INIT_LIMIT, "too many requests wait for the watches of this sandbox");
        return;
    }
    *s = (struct settle){.used = true, .who = *who, .turn = turn};
    for (unsigned i = 0; i < WORKERS_TABLE; i++) {
        struct worker *w = &g->worker[i];
        if (w->pid == 0 || w->type != INIT_WATCH || !w->replied || w->closed || w->who.conn != who->conn ||
            w->who.gen != who->gen)
            continue;
        if (send(w->sock, &turn, sizeof turn, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof turn)
            w->asked_turn = turn;
    }
    settle_flush(g);
}

static bool settle_waits(const struct init *g, const struct settle *s)
{
    for (unsigned i = 0; i < WORKERS_TABLE; i++) {
        const struct worker *w = &g->worker[i];
        if (w->pid != 0 && w->asked_turn >= s->turn && w->told_turn < s->turn && w->who.conn == s->who.conn &&
            w->who.gen == s->who.gen)
            return true;
    }
    return false;
}

void settle_flush(struct init *g)
{
    for (unsigned i = 0; i < SETTLES_MAX; i++) {
        struct settle *s = &g->settle[i];
        if (s->used && !settle_waits(g, s) && conn_reply(g, &s->who, INIT_OK, ""))
            s->used = false;
    }
}
