#include "db/vfs.h"

#include <sqlite3.h>
#include <string.h>

static int vfs_keep_name(sqlite3_vfs *vfs, const char *name, int room, char *ret)
{
    (void)vfs;
    if (strlen(name) >= (size_t)room)
        return SQLITE_CANTOPEN;
    memcpy(ret, name, strlen(name) + 1);
    return SQLITE_OK;
}

const char *db_vfs(void)
{
    static sqlite3_vfs vfs; /* SQLite keeps a pointer to it */
    if (!vfs.zName) {
        vfs = *sqlite3_vfs_find("unix");
        vfs.zName = "hutch";
        vfs.pNext = NULL;
        vfs.xFullPathname = vfs_keep_name;
        (void)sqlite3_vfs_register(&vfs, 0);
    }
    return vfs.zName;
}
