/* count.c - counts the requests under way to the services of each sandbox. */
#include <stdlib.h>
#include <string.h>

#include "api/gateway/gateway-int.h"
#include "base/map.h"
#include "base/mem.h"

struct count {
    char id[SANDBOX_ID_MAX];
    unsigned n;
};

/* Sandboxes with at least one request, by id. */
static struct map counts;

unsigned gateway_count(const char *id)
{
    const struct count *c = map_get(&counts, id);
    return c ? c->n : 0;
}

void gateway_count_up(const char *id)
{
    struct count *c = map_get(&counts, id);
    if (!c) {
        c = xcalloc(1, sizeof *c);
        (void)memccpy(c->id, id, '\0', sizeof c->id - 1);
        (void)map_put(&counts, c->id, c);
    }
    c->n++;
}

void gateway_count_down(const char *id)
{
    struct count *c = map_get(&counts, id);
    if (!c || --c->n > 0)
        return;
    (void)map_del(&counts, c->id);
    free(c);
    if (counts.n == 0)
        map_done(&counts);
}
