/* group.c - cgroups of single commands, which keeper makes below that of the sandbox and hands to init. A command enters its
 * own before anything else; all that it starts is in it, and nothing inside can leave it or change its limit. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "init/init-int.h"

/* The number behind `key` in a file of counters; a file that is only a number has no key. */
static uint64_t group_count(int fd, const char *key)
{
    char text[512];
    uint64_t v = 0;
    ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    const char *p = text;
    if (*p < '0' || *p > '9') {
        p = strstr(text, key);
        p = p ? p + strlen(key) : "";
    }
    for (; *p >= '0' && *p <= '9'; p++)
        v = v * 10 + (uint64_t)(*p - '0');
    return v;
}

/* "oom_kill N" is the same line in memory.events (v2) and memory.oom_control (v1). */
uint64_t group_kills(int fd) { return group_count(fd, "oom_kill "); }

uint64_t init_oom_kills(const struct init *g)
{
    char first = 0;
    if (g->args->oom < 0)
        return 0;
    uint64_t v = group_kills(INIT_FD_OOM), inner = g->group_kills;
    if (pread(INIT_FD_OOM, &first, 1, 0) != 1 ||
        first != 'l') /* only v2, which begins with "low", counts groups below */
        return v;
    for (uint32_t i = 0; i < g->ncommands; i++)
        inner += g->command[i].cgroup.events >= 0 ? group_kills(g->command[i].cgroup.events) : 0;
    return v > inner ? v - inner : 0;
}

void group_close(struct command_group *p)
{
    int *const fds[] = {&p->enter, &p->events, &p->peak};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (*fds[i] >= 0)
            (void)close(*fds[i]);
        *fds[i] = -1;
    }
    p->number = 0;
}

void group_take(struct init *g, const struct init_group *m, const int fds[INIT_GROUP_FDS])
{
    struct command_group *at = &g->group[0];
    for (size_t i = 0; i < GROUPS_MAX; i++)
        if (g->group[i].serial < at->serial)
            at = &g->group[i];
    if (at->number) /* the oldest, whose asker has ended meanwhile */
        group_close(at);
    *at = (struct command_group){.number = m->number,
                                 .memory = m->memory,
                                 .serial = ++g->serial,
                                 .enter = fds[0],
                                 .events = fds[1],
                                 .peak = fds[2]};
}

static struct command_group *group_find(struct init *g, uint64_t number)
{
    for (size_t i = 0; i < GROUPS_MAX; i++)
        if (g->group[i].number == number)
            return &g->group[i];
    return NULL;
}

bool group_give(struct init *g, uint64_t number, struct command *c)
{
    struct command_group *p = group_find(g, number);
    /* It was sent before the request, but over another socket. */
    for (int i = 0; !p && i < GROUPS_MAX; i++) {
        life_sync_event(g);
        p = group_find(g, number);
    }
    if (!p)
        return false;
    c->cgroup = *p;
    *p = (struct command_group){0};
    return true;
}

int group_enter(const struct command *c) { return c->cgroup.enter < 0 || write(c->cgroup.enter, "0", 1) == 1 ? 0 : -1; }

/* Whether its own limit was reached, and not that of the sandbox. v1 has only the most that it ever had. */
static bool group_was_full(const struct command_group *p)
{
    enum { SLACK = 1 << 20 };
    char first = 0;
    uint64_t n = group_count(p->peak, "oom ");
    bool v2 = pread(p->peak, &first, 1, 0) == 1 && first == 'l';
    return v2 ? n > 0 : n + SLACK >= p->memory;
}

void group_ended(struct init *g, struct command *c)
{
    uint64_t kills = group_kills(c->cgroup.events);
    if (kills > 0 && group_was_full(&c->cgroup))
        c->limit = c->limit ? c->limit : INIT_LIMIT_MEMORY;
    else if (kills > 0)
        c->oom = true;
    g->group_kills += kills;
    group_close(&c->cgroup);
}
