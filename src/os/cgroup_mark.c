/* cgroup_mark.c - a file that says that there are leaves, as long as there are.
 *
 * A run that is killed together with its guard, or before that stands, leaves empty leaves behind, and looking for them
 * costs more than a run without limits should pay. So the owner of leaves holds a lock on a file beside the locks of stubs
 * (wall/stubs.c), which every run sees when it sweeps: one that nobody holds means that there may be something to do.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/cgroup-int.h"

enum { TRIES = 3, PATH_SIZE = 64 + CGROUP_NAME_MAX };

static void path_of(const struct cgroup *cg, char ret[PATH_SIZE])
{
    (void)snprintf(ret, PATH_SIZE, "/dev/shm/.hutch-%u-" CGROUP_MARK "%s", geteuid(), cg->name);
}

void cgroup_mark(struct cgroup *cg)
{
    char path[PATH_SIZE];
    struct stat st;
    path_of(cg, path);
    for (int i = 0; i < TRIES && !cg->marked; i++) {
        int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
            return; /* then a run with limits finds what this one leaves */
        /* Somebody who sweeps may have taken it between the two calls. */
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
    path_of(cg, path);
    if (gone)
        (void)unlink(path);
    (void)close(cg->mark);
    cg->marked = false;
}
