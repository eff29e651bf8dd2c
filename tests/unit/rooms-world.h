/* rooms-world.h - the domain rooms of front, made, loaded and freed as the process does it, on a database in a
 * directory of the test's own. A world replaces the clients of other processes (keeperc_*, link_*, layersc_*,
 * exec_*) by functions of the same name; the rooms themselves are the real ones. builds-world.h adds the builds,
 * which need more of the clients.
 */
#ifndef HUTCH_TESTS_UNIT_ROOMS_WORLD_H
#define HUTCH_TESTS_UNIT_ROOMS_WORLD_H

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "await.h"
#include "config/config.h"
#include "db/db.h"
#include "network/networks.h"
#include "sandboxes/events.h"
#include "sandboxes/idseal.h"
#include "sandboxes/sandboxes.h"
#include "snapshots/snapshots.h"
#include "stacks/stacks.h"
#include "templates/templates.h"
#include "tenants/tenants.h"
#include "tests/lib/unit.h"
#include "volumes/volumes.h"

static struct {
    char dir[64]; /* database, key of ids, directories of templates, sockets of peers */
    int dir_fd;
    struct config config;
    struct loop *loop;
    struct peers peers; /* the world's own; NULL as long as it sets none */
    char admin_digest[72];
    bool with_egress; /* egress listens in `dir` */
    /* made by rooms_start(), freed by rooms_stop() */
    struct db *db;
    struct idseal *ids;
    struct tenants *tenants;
    struct stacks *stacks;
    struct templates *templates;
    struct events *events;
    struct sandboxes *sandboxes;
    struct networks *network;
    struct snapshots *snapshots;
    struct volumes *volumes;
} rooms;

/* The directory, the loop and the standard configuration, which the world may change before rooms_start(). */
static inline int rooms_prepare(const char *name)
{
    struct err err;
    memset(&rooms, 0, sizeof rooms);
    (void)snprintf(rooms.dir, sizeof rooms.dir, FAST_DIR "/hutch-%s-XXXXXX", name);
    if (!mkdtemp(rooms.dir) || loop_new(&rooms.loop, &err) < 0)
        return -1;
    rooms.dir_fd = open(rooms.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    config_start(&rooms.config);
    return rooms.dir_fd < 0 ? -1 : 0;
}

static inline void rooms_make(void)
{
    rooms.tenants = tenants_new(&(struct tenants_deps){
        .loop = rooms.loop, .db = rooms.db, .admin_digest = rooms.admin_digest, .admin_hint = ""});
    rooms.stacks = stacks_new(
        &(struct stacks_deps){.loop = rooms.loop, .config = &rooms.config, .db = rooms.db, .peers = &rooms.peers});
    rooms.templates = templates_new(&(struct templates_deps){.loop = rooms.loop,
                                                             .config = &rooms.config,
                                                             .db = rooms.db,
                                                             .stacks = rooms.stacks,
                                                             .tenants = rooms.tenants,
                                                             .dir = rooms.dir_fd});
    rooms.sandboxes = sandboxes_new(&(struct sandboxes_deps){.loop = rooms.loop,
                                                             .config = &rooms.config,
                                                             .db = rooms.db,
                                                             .peers = &rooms.peers,
                                                             .tenants = rooms.tenants,
                                                             .stacks = rooms.stacks,
                                                             .templates = rooms.templates,
                                                             .events = rooms.events,
                                                             .ids = rooms.ids});
    rooms.network = nets_new(&(struct nets_deps){.loop = rooms.loop,
                                                 .config = &rooms.config,
                                                 .db = rooms.db,
                                                 .tenants = rooms.tenants,
                                                 .sandboxes = rooms.sandboxes,
                                                 .events = rooms.events});
    rooms.snapshots = snapshots_new(&(struct snapshots_deps){.loop = rooms.loop,
                                                             .db = rooms.db,
                                                             .peers = &rooms.peers,
                                                             .stacks = rooms.stacks,
                                                             .templates = rooms.templates,
                                                             .sandboxes = rooms.sandboxes,
                                                             .events = rooms.events,
                                                             .ids = rooms.ids});
    rooms.volumes = volumes_new(&(struct volumes_deps){.loop = rooms.loop,
                                                       .config = &rooms.config,
                                                       .db = rooms.db,
                                                       .peers = &rooms.peers,
                                                       .tenants = rooms.tenants,
                                                       .stacks = rooms.stacks,
                                                       .sandboxes = rooms.sandboxes});
}

/* Opens the database and loads what it has, in the order of front_load(). */
static inline void rooms_start(void)
{
    struct err err = {0};
    uint64_t epoch;
    if (db_open(rooms.loop, rooms.dir_fd, rooms.dir, &rooms.db, &err) < 0 ||
        db_count_up(rooms.db, "epoch", &epoch, &err) < 0 ||
        idseal_open(rooms.dir_fd, 0, (uint16_t)epoch, &rooms.ids, &err) < 0 ||
        events_open(rooms.db, &rooms.events, &err) < 0)
        fail_msg("%s", err.msg);
    rooms_make();
    if (tenants_load(rooms.tenants, &err) < 0 || templates_load(rooms.templates, &err) < 0 ||
        sandboxes_load(rooms.sandboxes, &err) < 0 || nets_load(rooms.network, &err) < 0 ||
        snapshots_load(rooms.snapshots, &err) < 0 || volumes_load(rooms.volumes, &err) < 0 ||
        nets_open(rooms.network, rooms.dir_fd, !rooms.with_egress, &err) < 0)
        fail_msg("%s", err.msg);
}

/* As kill -9 would leave it: the database holds what was committed. In the order of front_take_down(). */
static inline void rooms_stop(void)
{
    loop_settle(rooms.loop);
    db_close(rooms.db);
    volumes_free(rooms.volumes);
    snapshots_free(rooms.snapshots);
    nets_free(rooms.network);
    sandboxes_free(rooms.sandboxes);
    templates_free(rooms.templates);
    stacks_free(rooms.stacks);
    tenants_free(rooms.tenants);
    events_free(rooms.events);
    idseal_free(rooms.ids);
}

static inline int rooms_remove_file(const char *p, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(p);
}

/* After rooms_stop(): what rooms_prepare() made. */
static inline int rooms_done(void)
{
    loop_free(rooms.loop);
    config_done(&rooms.config);
    (void)close(rooms.dir_fd);
    return nftw(rooms.dir, rooms_remove_file, 8, FTW_DEPTH | FTW_PHYS);
}

static inline void rooms_on_barrier(void *arg, const struct err *err)
{
    (void)err;
    ++*(int *)arg;
}
/* n turns of the loop. With more than two, what the database was given is decided after each of them, however long
 * that takes. */
static inline void rooms_step(int n, void (*turn)(void))
{
    static int asked, told_of;
    for (int i = 0; i < n; i++)
        turn();
    for (int i = 0; n > 2 && i < n; i++) {
        db_barrier(rooms.db, rooms_on_barrier, &told_of);
        asked++;
        AWAIT (told_of == asked)
            turn();
        assert_int_equal(told_of, asked);
    }
}

#endif
