/* remove.c - removes and syncs whole trees. See tree.h. */
#include <errno.h>
#include <unistd.h>

#include "os/wipe.h"
#include "trees/tree.h"

int tree_remove(int dir, const char *name, struct err *err) { return wipe_tree(dir, name, err); }

int tree_sync(int fd, struct err *err)
{
    if (syncfs(fd) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot sync the file system of a layer");
    return 0;
}
