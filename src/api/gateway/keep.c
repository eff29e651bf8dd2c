/* keep.c - keeps idle connections to services for reuse: a new connection costs a process inside the
 * sandbox. */
#include <stdlib.h>
#include <string.h>

#include "api/gateway/gateway-int.h"
#include "api/gateway/gateway.h"
#include "base/mem.h"

enum { KEEP_MS = 4000 /* most servers keep theirs for 5 s or longer */, KEPT_MAX = 512, KEPT_PER_SANDBOX_MAX = 64 };

struct kept {
    struct kept *next, **link;
    struct loop *loop;
    struct client *client;
    loop_id timer;
    char id[SANDBOX_ID_MAX];
    uint32_t port;
    bool tls;
};

/* All kept connections, newest first, because the newest is the most likely to be still open. */
static struct kept *all;
static unsigned nall;

/* Removes k from the list and returns its connection. */
static struct client *gateway_kept_take(struct kept *k)
{
    struct client *c = k->client;
    loop_timer_del(k->loop, k->timer);
    *k->link = k->next;
    if (k->next)
        k->next->link = k->link;
    free(k);
    nall--;
    return c;
}

static void gateway_kept_on_timeout(void *arg)
{
    struct kept *k = arg;
    k->timer = 0;
    client_free(gateway_kept_take(k));
}

void gateway_keep(struct loop *l, const char *id, uint32_t port, bool tls, struct client *c)
{
    unsigned same = 0;
    for (const struct kept *k = all; k; k = k->next)
        same += strcmp(k->id, id) == 0;
    if (nall >= KEPT_MAX || same >= KEPT_PER_SANDBOX_MAX) {
        client_free(c);
        return;
    }
    struct kept *k = xcalloc(1, sizeof *k);
    *k = (struct kept){.next = all, .link = &all, .loop = l, .client = c, .port = port, .tls = tls};
    (void)memccpy(k->id, id, '\0', sizeof k->id - 1);
    if (all)
        all->link = &k->next;
    all = k;
    nall++;
    k->timer = loop_timer(l, KEEP_MS, gateway_kept_on_timeout, k);
}

struct client *gateway_kept(const char *id, uint32_t port, bool tls)
{
    for (struct kept *k = all, *next; k; k = next) {
        next = k->next;
        if (k->port != port || k->tls != tls || strcmp(k->id, id) != 0)
            continue;
        struct client *c = gateway_kept_take(k);
        if (client_reusable(c))
            return c;
        client_free(c);
    }
    return NULL;
}

void gateway_forget(const char *id)
{
    for (struct kept *k = all, *next; k; k = next) {
        next = k->next;
        if (strcmp(k->id, id) == 0)
            client_free(gateway_kept_take(k));
    }
}
