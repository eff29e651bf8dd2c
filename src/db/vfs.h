/* vfs.h - how SQLite opens the files of a directory that is known by its descriptor only. */
#ifndef HUTCH_DB_VFS_H
#define HUTCH_DB_VFS_H

/* The name of a VFS for sqlite3_open_v2() that leaves file names as they are: SQLite resolves "/proc/self/fd/N/FILE"
 * otherwise, and the resolved path may lead through directories that this process may not search. */
const char *db_vfs(void);

#endif
