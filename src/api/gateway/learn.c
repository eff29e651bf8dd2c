/* learn.c - services that answer only to localhost. Vite, webpack's server and Jupyter refuse a Host that they do not
 * know, against pages that point their own name at the visitor's machine. Through the gateway no such name arrives:
 * when a service refuses like that, the request is repeated as localhost:PORT, and the port is remembered.
 */
#include <stdlib.h>
#include <string.h>

#include "api/gateway/gateway-int.h"
#include "base/map.h"
#include "base/mem.h"

struct learned {
    char id[SANDBOX_ID_MAX];
    uint32_t ports[SANDBOX_PORTS_MAX];
    size_t n;
};

/* Sandboxes with at least one such port, by id. A restart forgets them. */
static struct map learned;

bool gateway_learned(const char *id, uint32_t port)
{
    const struct learned *l = map_get(&learned, id);
    for (size_t i = 0; l && i < l->n; i++)
        if (l->ports[i] == port)
            return true;
    return false;
}

void gateway_learn(const char *id, uint32_t port)
{
    struct learned *l = map_get(&learned, id);
    if (gateway_learned(id, port) || (l && l->n == SANDBOX_PORTS_MAX))
        return;
    if (!l) {
        l = xcalloc(1, sizeof *l);
        (void)memccpy(l->id, id, '\0', sizeof l->id - 1);
        (void)map_put(&learned, l->id, l);
    }
    l->ports[l->n++] = port;
}

void gateway_unlearn(const char *id)
{
    free(map_del(&learned, id));
    if (learned.n == 0)
        map_done(&learned);
}

bool gateway_refuses_host(unsigned status, const struct http_fields *f)
{
    const char *server = http_field(f, "server"), *type = http_field(f, "content-type");
    if (status != 403)
        return false;
    if (server)
        return strncmp(server, "TornadoServer/", 14) == 0; /* Jupyter */
    return !type || strncmp(type, "text/plain", 10) == 0;  /* webpack's server; Vite */
}
