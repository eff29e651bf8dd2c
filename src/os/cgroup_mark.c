/* cgroup_mark.c - a locked file that exists as long as leaves do.
 *
 * A run that is killed together with its guard, or before the guard exists, leaves empty leaves, and searching for them
 * is too expensive for a run without limits. So the owner of leaves holds a lock on a file beside the locks of stubs
 * (wall/stubs.c), which every run sees when it sweeps: an unlocked one means that leaves may be left to remove.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/cgroup-int.h"

enum { TRIES = 3, PATH_SIZE = 64 + CGROUP_NAME_MAX };

static void cgroup_mark_path(const struct cgroup *cg, char ret[PATH_SIZE])
{
    (void)snprintf(ret, PATH_SIZE, "/dev/shm/.hutch-%u-" CGROUP_MARK "%s", geteuid(), cg->name);
}

void cgroup_mark(struct cgroup *cg)
{
    char path[PATH_SIZE];
    struct stat st;
    cgroup_mark_path(cg, path);
    for (int i = 0; i < TRIES && !cg->marked; i++) {
        int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
            return; /* then the next run with limits finds the leaves */
        /* A sweep may have removed the file between the two calls. */
        cg->marked = flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &st) == 0 && st.st_nlink > 0;
        if (cg->marked)
            cg->mark = fd;
        else
            (void)close(fd);
    }
}

void cgroup_unmark(struct cgroup *cg, bool gone)
{
    char path[PATH_SIZE];
    if (!cg->marked)
        return;
    cgroup_mark_path(cg, path);
    if (gone)
        (void)unlink(path);
    (void)close(cg->mark);
    cg->marked = false;
}
