/* Fuzz driver for what keeper reads: messages of front, and records of its journal. What passes must be what was promised. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "keeper/journal.h"
#include "keeper/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_create(const struct keeper_create *c)
{
    if (strnlen(c->id, sizeof c->id) == sizeof c->id ||
        strnlen(c->template, sizeof c->template) == sizeof c->template ||
        strnlen(c->hostname, sizeof c->hostname) == sizeof c->hostname)
        abort();
    if (strchr(c->id, '/') || strchr(c->id, '.') || strchr(c->template, '/') || strchr(c->template, '.') ||
        strchr(c->hostname, '\n') || c->deadline_ms == 0 || c->nvolumes > KEEPER_VOLUMES_MAX ||
        c->tier >= KEEPER_TIERS || strnlen(c->driver, sizeof c->driver) == sizeof c->driver || strchr(c->driver, '/'))
        abort();
    for (uint32_t i = 0; i < c->nvolumes; i++) {
        const struct keeper_volume *v = &c->volume[i];
        if (strnlen(v->place, sizeof v->place) == sizeof v->place || v->place[0] != '/' || !v->place[1] ||
            strstr(v->place, "/../") || strncmp(v->place, "/proc/", 6) == 0 || !keeper_id_valid(v->id))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    union keeper_request q;
    struct err err = {0};
    if (keeper_request_parse(data, size, &q, &err) == 0) {
        if (q.head.version != KEEPER_VERSION)
            abort();
        if (q.head.type == KEEPER_CREATE)
            check_create(&q.create);
        else if (q.head.type != KEEPER_LIST && !keeper_id_valid(q.simple.id))
            abort();
    } else if (err.msg[0] == '\0') {
        abort();
    }
    if (size >= sizeof(struct journal_record)) {
        struct journal_record r;
        memcpy(&r, data, sizeof r);
        if (journal_valid(&r) && (strnlen(r.cgroup, sizeof r.cgroup) == sizeof r.cgroup || !keeper_id_valid(r.id)))
            abort();
    }
    return 0;
}
