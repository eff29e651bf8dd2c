/* volumes.c - directories that a sandbox gets besides its root: volumes of the database and those of the operator's table.
 *
 * A request carries only a name, and this file opens what it stands for. The tenant chooses the mount point, which the
 * sandbox's init resolves in its own root.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/path.h"
#include "keeper/keeper-int.h"

#define HOST_PREFIX "host-"

/* Opens a volume of the database: a directory, or an image, whose file system is mounted once more. */
static int open_stored(const struct keeper *k, const char *id, struct wall_sandbox_volume *ret, struct err *err)
{
    int dir = k->common->layers.volumes;
    char image[KEEPER_ID_MAX + 8];
    (void)snprintf(image, sizeof image, "%s.img", id);
    ret->dir = openat(dir, id, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (ret->dir >= 0)
        return 0;
    if (errno != ENOENT || faccessat(dir, image, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return err_set(err, ERR_USAGE, errno == ENOENT ? 0 : errno, "volume: there is no %s", id);
    const struct upper_info info = {.kind = UPPER_IMAGE, .quota = UPPER_QUOTA_IMAGE, .quick = true};
    struct upper u = UPPER_INIT;
    if (upper_open(&info, dir, id, 0, 0, &u, err) < 0)
        return err_wrap(err, "volume %s", id);
    ret->dir = u.root;
    ret->mounted = true;
    return 0;
}

/* Opens a directory of the host. Its ids are the host's, and a set-uid file left there works outside. So only a strict
 * sandbox, which cannot make such a file, may write to it, and without root no sandbox: there it acts as the user who
 * started us. */
static int volume_open_host(const struct keeper *k, const char *id, bool strict, struct wall_sandbox_volume *ret,
                            struct err *err)
{
    const struct keeper_config *c = k->config;
    for (size_t i = 0; i < c->nhost_dirs; i++) {
        if (strcmp(c->host_dirs[i].name, id + strlen(HOST_PREFIX)) != 0)
            continue;
        ret->dir = fcntl(k->common->world.host_dirs[i], F_DUPFD_CLOEXEC, 3);
        ret->host_ids = true;
        ret->ro |= c->host_dirs[i].ro || !strict || k->common->world.rootless;
        return ret->dir < 0 ? err_set(err, ERR_SETUP, errno, "keep a descriptor") : 0;
    }
    return err_set(err, ERR_USAGE, 0, "volume: the operator offers no directory %s", id + strlen(HOST_PREFIX));
}

/* Over the host's tree only private directories can be written to, and only there can a place be made. */
static int check_host_place(const struct keeper *k, const char *place, struct err *err)
{
    const struct plan *p = &k->common->world.plan;
    for (size_t i = 0; i < p->nops; i++)
        if (path_under(place, p->ops[i].path) && strcmp(place, p->ops[i].path) != 0)
            return 0;
    return err_set(err, ERR_USAGE, 0, "volume: %s: with the host template a place must be below /home or /tmp", place);
}

int volumes_open(const struct keeper *k, const struct keeper_create *c, bool host, struct volumes *ret, struct err *err)
{
    ret->n = 0;
    for (uint32_t i = 0; i < c->nvolumes; i++) {
        const struct keeper_volume *v = &c->volume[i];
        struct wall_sandbox_volume *to = &ret->v[i];
        *to = (struct wall_sandbox_volume){.dir = -1, .place = v->place, .ro = v->flags & KEEPER_VOLUME_RO};
        bool given = strncmp(v->id, HOST_PREFIX, strlen(HOST_PREFIX)) == 0;
        /* Rootless, id 0 is the user who started us; a sandbox over the host's tree does not have that id
         * (wall/sandbox.c). */
        if (host && !given && k->common->world.rootless)
            return err_set(err, ERR_HOST, 0,
                           "volume: without root the ids of the host template are others than those of volumes; use a "
                           "template with a root of its own");
        if ((host && check_host_place(k, v->place, err) < 0) ||
            (given ? volume_open_host(k, v->id, c->flags & KEEPER_STRICT, to, err) : open_stored(k, v->id, to, err)) <
                0)
            return -1;
        ret->n++;
    }
    return 0;
}

void volumes_close(struct volumes *v)
{
    while (v->n > 0)
        (void)close(v->v[--v->n].dir);
}
