/* interpreter-keep.c - keeps idle connections to code interpreters for the next cell: a new one costs a process inside the
 * sandbox, a third of a short cell. */
#include <stdlib.h>
#include <string.h>

#include "api/interpreter.h"
#include "base/mem.h"

enum { KEEP_MS = 4000 /* the service keeps its end longer */, KEPT_MAX = 256, KEPT_PER_SANDBOX_MAX = 4 };

struct kept_interpreter {
    struct kept_interpreter *next, **at;
    struct loop *loop;
    struct client *client;
    loop_id timer;
    char sandbox[SANDBOX_ID_MAX];
};

static struct kept_interpreter *all; /* front has one loop */

static struct client *interpreter_kept_take(struct kept_interpreter *k)
{
    struct client *c = k->client;
    loop_timer_del(k->loop, k->timer);
    if (k->next)
        k->next->at = k->at;
    *k->at = k->next;
    free(k);
    return c;
}

static void interpreter_kept_on_timeout(void *arg)
{
    struct kept_interpreter *k = arg;
    k->timer = 0;
    client_free(interpreter_kept_take(k));
}

void interpreter_keep(struct loop *l, const char *sandbox, struct client *c)
{
    unsigned n = 0, same = 0;
    for (const struct kept_interpreter *k = all; k; k = k->next, n++)
        same += strcmp(k->sandbox, sandbox) == 0;
    if (n >= KEPT_MAX || same >= KEPT_PER_SANDBOX_MAX) {
        client_free(c);
        return;
    }
    struct kept_interpreter *k = xcalloc(1, sizeof *k);
    *k = (struct kept_interpreter){.next = all, .at = &all, .loop = l, .client = c};
    memcpy(k->sandbox, sandbox, sizeof k->sandbox);
    if (all)
        all->at = &k->next;
    all = k;
    k->timer = loop_timer(l, KEEP_MS, interpreter_kept_on_timeout, k);
}

struct client *interpreter_kept(const char *sandbox)
{
    for (struct kept_interpreter *k = all, *next; k; k = next) {
        next = k->next;
        if (strcmp(k->sandbox, sandbox) != 0)
            continue;
        struct client *c = interpreter_kept_take(k);
        if (client_reusable(c))
            return c;
        client_free(c);
    }
    return NULL;
}

void interpreter_forget(const char *sandbox)
{
    for (struct kept_interpreter *k = all, *next; k; k = next) {
        next = k->next;
        if (strcmp(k->sandbox, sandbox) == 0)
            client_free(interpreter_kept_take(k));
    }
}
