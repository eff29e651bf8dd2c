/* The run directory, and the lock file of id ranges. Both are on a tmpfs that users sometimes clear while the node and
 * its sandboxes live, and no file can be made in a removed directory. supervisor notices that, makes them again and
 * restarts its children, which find the sandboxes (keeper/recover.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "egress/core/proto.h"
#include "keeper/proto.h"
#include "layers/proto.h"
#include "node/procs.h"
#include "os/idrange.h"

#define RUN_LOCK    "lock"
#define RUN_JOURNAL "journal"

int node_run_open(const struct config *c, struct node_files *n, struct err *err)
{
    gid_t front = n->drop ? n->gid : (gid_t)-1;
    if ((n->run = node_open_dir(c->run, geteuid(), n->gid, n->drop ? 0710 : 0700, err)) < 0 ||
        (n->run_lock = node_take_lock(n->run, c->run, err)) < 0)
        return -1;
    if (mkdirat(n->run, RUN_JOURNAL, 0700) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "cannot make %s/" RUN_JOURNAL, c->run);
    if ((n->keeper_socket = node_listen(n->run, KEEPER_SOCKET, SOCK_SEQPACKET, front, err)) < 0)
        return -1;
    n->layers_socket = node_listen(n->run, LAYERS_SOCKET, SOCK_SEQPACKET, front, err);
    return n->layers_socket < 0 ? -1 : 0;
}

static bool run_is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

bool node_run_lost(const struct config *c, const struct node_files *n)
{
    struct stat path, held;
    const char *const names[] = {RUN_JOURNAL, KEEPER_SOCKET, LAYERS_SOCKET, n->egress.on ? EGRESS_KEEPER_SOCKET : NULL,
                                 n->egress.on ? EGRESS_SOCKET : NULL};
    if (fstat(n->run, &held) < 0 || lstat(c->run, &path) < 0 || !run_is_same(&path, &held) ||
        fstat(n->run_lock, &held) < 0 || fstatat(n->run, RUN_LOCK, &path, AT_SYMLINK_NOFOLLOW) < 0 ||
        !run_is_same(&path, &held))
        return true;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (names[i] && fstatat(n->run, names[i], &path, AT_SYMLINK_NOFOLLOW) < 0)
            return true;
    return false;
}

int node_run_renew(const struct config *c, struct node_files *n, struct err *err)
{
    struct node_files fresh = NODE_FILES_INIT;
    fresh.drop = n->drop;
    fresh.gid = n->gid;
    struct stat path, held;
    /* The directory is the same, only files in it are gone: release our lock on it before we take it again. */
    bool same = fstat(n->run, &held) == 0 && lstat(c->run, &path) == 0 && run_is_same(&path, &held) &&
                fstat(n->run_lock, &held) == 0 && fstatat(n->run, RUN_LOCK, &path, AT_SYMLINK_NOFOLLOW) == 0 &&
                run_is_same(&path, &held);
    if (same) {
        (void)close(n->run_lock);
        n->run_lock = -1;
    }
    int *const old[] = {&n->run,           &n->run_lock,      &n->keeper_socket,
                        &n->layers_socket, &n->egress.keeper, &n->egress.front};
    int *const now[] = {&fresh.run,           &fresh.run_lock,      &fresh.keeper_socket,
                        &fresh.layers_socket, &fresh.egress.keeper, &fresh.egress.front};
    int r = node_run_open(c, &fresh, err);
    if (r == 0 && n->egress.on)
        r = node_egress_listen(&fresh, err);
    for (size_t i = 0; i < ARRAY_LEN(old); i++) {
        int out = r == 0 ? *old[i] : *now[i];
        if (r == 0)
            *old[i] = *now[i];
        if (out >= 0)
            (void)close(out);
    }
    return r;
}

int node_ranges_open(struct node_files *n, struct err *err)
{
    if (!n->drop)
        return 0;
    if (mkdir(IDRANGE_DIR, 0710) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "cannot make " IDRANGE_DIR ", where nodes agree on id ranges");
    int fd = open(IDRANGE_FILE, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "cannot open " IDRANGE_FILE);
    if (n->ranges >= 0)
        (void)close(n->ranges);
    n->ranges = fd;
    return 0;
}

bool node_ranges_lost(const struct node_files *n)
{
    struct stat path, held;
    return n->drop && (fstat(n->ranges, &held) < 0 || lstat(IDRANGE_FILE, &path) < 0 || !run_is_same(&path, &held));
}
