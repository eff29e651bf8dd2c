/* resolve.c - runs c-ares on the loop and caches its answers.
 *
 * An entry is a name, either being asked for or answered (until `expires`). Entries are in the order of their last use;
 * when the cache is full the oldest answered ones are dropped. /etc/hosts is not used: after the start no file can be
 * opened.
 */
#include "egress/resolve.h"

#include <ares.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"

enum { SOCKETS_MAX = 256, ASK_TIMEOUT_MS = 2000, ASK_TRIES = 3 };

struct entry {
    struct resolver *owner;
    struct entry *older, *newer;
    struct resolve *waiters;
    struct entry *next_ready;
    bool asking, ready; /* ready: in the list of entries whose waiters are notified next */
    bool telling;       /* entry_tell() is on the stack */
    uint64_t expires_ms;
    struct resolve_answer answer;
    char name[];
};

struct resolve {
    struct resolve *next, **prev; /* of the entry */
    struct entry *entry;
    resolve_done *done;
    void *arg;
};

struct resolver {
    struct egress *g;
    ares_channel channel;
    struct {
        int fd;
        loop_id watch;
    } sockets[SOCKETS_MAX];
    size_t nsockets;
    loop_id timer;
    struct map entries;
    struct entry *oldest, *newest;
    struct entry *ready;
    size_t pending;
    bool telling, closed; /* telling: resolver_tell_ready() is scheduled; it frees a closed resolver */
};

/* --- c-ares on the loop ------------------------------------------------------------------------------------------- */

static void resolver_on_timer(void *arg);

static void resolver_set_timer(struct resolver *v)
{
    struct timeval tv, *t = ares_timeout(v->channel, NULL, &tv);
    loop_timer_del(v->g->loop, v->timer);
    v->timer =
        t ? loop_timer(v->g->loop, (uint64_t)t->tv_sec * 1000 + (uint64_t)t->tv_usec / 1000 + 1, resolver_on_timer, v)
          : 0;
}

static void resolver_on_timer(void *arg)
{
    struct resolver *v = arg;
    v->timer = 0;
    ares_process_fd(v->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
    resolver_set_timer(v);
}

static void resolver_on_socket(void *arg, int fd, unsigned events)
{
    struct resolver *v = arg;
    bool in = events & (LOOP_IN | LOOP_HUP), out = events & (LOOP_OUT | LOOP_HUP);
    ares_process_fd(v->channel, in ? fd : ARES_SOCKET_BAD, out ? fd : ARES_SOCKET_BAD);
    resolver_set_timer(v);
}

static void resolver_on_socket_state(void *arg, ares_socket_t fd, int readable, int writable)
{
    struct resolver *v = arg;
    unsigned events = (readable ? LOOP_IN : 0) | (writable ? LOOP_OUT : 0);
    for (size_t i = 0; i < v->nsockets; i++) {
        if (v->sockets[i].fd != fd)
            continue;
        if (events) {
            loop_fd_set(v->g->loop, v->sockets[i].watch, events);
        } else {
            loop_fd_del(v->g->loop, v->sockets[i].watch);
            v->sockets[i] = v->sockets[--v->nsockets];
        }
        return;
    }
    if (!events || v->nsockets == SOCKETS_MAX)
        return; /* a question on an unwatched socket times out */
    v->sockets[v->nsockets].fd = fd;
    v->sockets[v->nsockets++].watch = loop_fd_add(v->g->loop, fd, events, resolver_on_socket, v);
}

/* --- entries ------------------------------------------------------------------------------------------------------ */

static void entry_unlink(struct resolver *v, struct entry *e)
{
    *(e->older ? &e->older->newer : &v->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &v->newest) = e->older;
}

static void entry_link(struct resolver *v, struct entry *e)
{
    e->older = v->newest;
    e->newer = NULL;
    *(v->newest ? &v->newest->newer : &v->oldest) = e;
    v->newest = e;
}

static void entry_drop(struct resolver *v, struct entry *e)
{
    entry_unlink(v, e);
    (void)map_del(&v->entries, e->name);
    free(e);
}

static void resolver_make_room(struct resolver *v)
{
    for (struct entry *e = v->oldest, *next; e && v->entries.n >= RESOLVE_CACHE; e = next) {
        next = e->newer;
        if (!e->asking && !e->waiters && !e->ready && !e->telling)
            entry_drop(v, e);
    }
}

static struct entry *entry_get(struct resolver *v, const char *name)
{
    struct entry *e = map_get(&v->entries, name);
    if (e) {
        entry_unlink(v, e);
        entry_link(v, e);
        return e;
    }
    resolver_make_room(v);
    size_t n = strlen(name) + 1;
    e = xcalloc(1, sizeof *e + n);
    memcpy(e->name, name, n);
    e->owner = v;
    entry_link(v, e);
    (void)map_put(&v->entries, e->name, e);
    return e;
}

/* A callback may cancel any other waiter, so each round starts from the head of the list. */
static void entry_tell(struct entry *e)
{
    struct resolver *v = e->owner;
    e->telling = true;
    while (e->waiters && !e->asking) {
        struct resolve *r = e->waiters;
        struct resolve_answer a = e->answer;
        uint64_t now = loop_now(v->g->loop);
        a.ttl = e->expires_ms > now ? (uint32_t)((e->expires_ms - now) / 1000) : 0;
        e->waiters = r->next;
        if (r->next)
            r->next->prev = &e->waiters;
        resolve_done *done = r->done;
        void *arg = r->arg;
        free(r);
        done(arg, &a);
    }
    e->telling = false;
}

static void resolver_tell_ready(void *arg)
{
    struct resolver *v = arg;
    if (v->closed) {
        free(v);
        return;
    }
    v->telling = false;
    while (v->ready) {
        struct entry *e = v->ready;
        v->ready = e->next_ready;
        e->ready = false;
        entry_tell(e);
    }
}

static void entry_tell_later(struct entry *e)
{
    struct resolver *v = e->owner;
    e->ready = true;
    e->next_ready = v->ready;
    v->ready = e;
    if (!v->telling) {
        v->telling = true;
        loop_defer(v->g->loop, resolver_tell_ready, v);
    }
}

static void entry_keep(struct entry *e, uint32_t ttl)
{
    if (ttl > RESOLVE_TTL_MAX_S)
        ttl = RESOLVE_TTL_MAX_S;
    if (e->answer.status != RESOLVE_OK)
        ttl = RESOLVE_NEGATIVE_S;
    e->expires_ms = loop_now(e->owner->g->loop) + (uint64_t)ttl * 1000;
    e->asking = false;
    e->owner->pending--;
    if (!e->ready)
        entry_tell_later(e);
}

/* --- questions ---------------------------------------------------------------------------------------------------- */

static void resolve_add_address(struct resolve_answer *a, const struct ares_addrinfo_node *n)
{
    if (a->n == RESOLVE_ADDRS_MAX)
        return;
    struct in6_addr *to = &a->addrs[a->n];
    if (n->ai_family == AF_INET6) {
        struct sockaddr_in6 sin6;
        memcpy(&sin6, n->ai_addr, sizeof sin6);
        *to = sin6.sin6_addr;
    } else if (n->ai_family == AF_INET) {
        struct sockaddr_in sin;
        memcpy(&sin, n->ai_addr, sizeof sin);
        memset(to, 0, sizeof *to);
        to->s6_addr[10] = to->s6_addr[11] = 0xff;
        memcpy(to->s6_addr + 12, &sin.sin_addr, 4);
    } else {
        return;
    }
    a->n++;
}

static void entry_on_answer(void *arg, int status, int timeouts, struct ares_addrinfo *ai)
{
    struct entry *e = arg;
    struct resolve_answer *a = &e->answer;
    unsigned cnames = 0, ttl = RESOLVE_TTL_MAX_S;
    (void)timeouts;
    *a = (struct resolve_answer){0};
    for (struct ares_addrinfo_cname *c = ai ? ai->cnames : NULL; c; c = c->next, cnames++)
        if (c->ttl >= 0 && (unsigned)c->ttl < ttl)
            ttl = (unsigned)c->ttl;
    for (struct ares_addrinfo_node *n = ai && status == ARES_SUCCESS ? ai->nodes : NULL; n; n = n->ai_next) {
        if (n->ai_ttl >= 0 && (unsigned)n->ai_ttl < ttl)
            ttl = (unsigned)n->ai_ttl;
        resolve_add_address(a, n);
    }
    if (ai)
        ares_freeaddrinfo(ai);
    if (cnames > RESOLVE_CNAMES_MAX) {
        a->status = RESOLVE_FAILED;
        a->text = "the chain of CNAMEs is too long";
    } else if (status == ARES_ENOTFOUND || status == ARES_ENODATA || (status == ARES_SUCCESS && !a->n)) {
        a->status = RESOLVE_NO_NAME;
        a->text = status == ARES_ENOTFOUND ? "there is no such name" : "the name has no address";
    } else if (status != ARES_SUCCESS) {
        a->status = RESOLVE_FAILED;
        a->text = ares_strerror(status);
    }
    entry_keep(e, ttl);
}

static void entry_ask(struct resolver *v, struct entry *e)
{
    const struct ares_addrinfo_hints hints = {
        .ai_flags = ARES_AI_NOSORT, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    e->asking = true;
    v->pending++;
    if (v->pending > RESOLVE_PENDING) {
        e->answer = (struct resolve_answer){.status = RESOLVE_FAILED, .text = "too many names are being resolved"};
        entry_keep(e, 0);
        return;
    }
    ares_getaddrinfo(v->channel, e->name, NULL, &hints, entry_on_answer, e);
    resolver_set_timer(v);
}

struct resolve *resolve_start(struct egress *g, const char *name, resolve_done *done, void *arg)
{
    struct resolver *v = g->resolver;
    struct entry *e = entry_get(v, name);
    struct resolve *r = xcalloc(1, sizeof *r);
    *r = (struct resolve){.entry = e, .done = done, .arg = arg, .next = e->waiters, .prev = &e->waiters};
    if (r->next)
        r->next->prev = &r->next;
    e->waiters = r;
    if (e->asking || e->ready)
        return r;
    if (e->expires_ms > loop_now(g->loop))
        entry_tell_later(e);
    else
        entry_ask(v, e);
    return r;
}

void resolve_cancel(struct resolve *r)
{
    if (!r)
        return;
    *r->prev = r->next;
    if (r->next)
        r->next->prev = r->prev;
    free(r);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static const char *const no_domains[] = {NULL};

int resolve_setup(struct egress *g, struct err *err)
{
    struct resolver *v = xcalloc(1, sizeof *v);
    char lookups[] = "b";
    struct ares_options o = {
        .flags = ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES,
        .timeout = ASK_TIMEOUT_MS,
        .tries = ASK_TRIES,
        .lookups = lookups,
        .sock_state_cb = resolver_on_socket_state,
        .sock_state_cb_data = v,
        .domains = (char **)(uintptr_t)no_domains,
        .resolvconf_path = g->config.resolv_conf,
    };
    int mask = ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_LOOKUPS | ARES_OPT_SOCK_STATE_CB |
               ARES_OPT_DOMAINS;
    if (g->config.resolv_conf[0])
        mask |= ARES_OPT_RESOLVCONF;
    v->g = g;
    int rc = ares_library_init(ARES_LIB_INIT_ALL);
    if (rc == ARES_SUCCESS)
        rc = ares_init_options(&v->channel, &o, mask);
    if (rc != ARES_SUCCESS) {
        free(v);
        return err_set(err, ERR_SETUP, 0, "cannot start the resolver: %s", ares_strerror(rc));
    }
    g->resolver = v;
    if (g->config.servers[0] && (rc = ares_set_servers_ports_csv(v->channel, g->config.servers)) != ARES_SUCCESS) {
        resolve_teardown(g);
        return err_set(err, ERR_SETUP, 0, "the resolvers %s are not ADDRESS:PORT,...: %s", g->config.servers,
                       ares_strerror(rc));
    }
    return 0;
}

void resolve_teardown(struct egress *g)
{
    struct resolver *v = g->resolver;
    if (!v)
        return;
    ares_destroy(v->channel); /* calls entry_on_answer() for every pending question */
    ares_library_cleanup();
    loop_timer_del(g->loop, v->timer);
    while (v->oldest) {
        while (v->oldest->waiters)
            resolve_cancel(v->oldest->waiters);
        entry_drop(v, v->oldest);
    }
    map_done(&v->entries);
    g->resolver = NULL;
    v->closed = true;
    if (!v->telling)
        free(v);
}
