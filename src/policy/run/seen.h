/* seen.h - what the search for repositories saw of the directories that it read.
 *
 * The same directories are of interest again when the command has ended (cli/hostexec.h). One whose time of change is still the
 * same, and older than the search, holds the same entries: it need not be read a second time. Programs cannot set that time.
 * Only file systems of this machine are relied on, see facts.c; of others nothing is kept.
 */
#ifndef HUTCH_POLICY_RUN_SEEN_H
#define HUTCH_POLICY_RUN_SEEN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <time.h>

#include "base/strv.h"

struct seen_dir {
    char *name; /* in its directory; of a root, its path. Owned */
    dev_t dev;
    ino_t ino; /* 0: there may be a directory of that name, of which nothing is known */
    struct timespec changed;
    bool read;         /* what follows is all that is in it */
    unsigned entries;  /* also "." and ".." */
    size_t first, n;   /* its subdirectories, but for ".git" and "node_modules", in dirs */
    struct strv names; /* entries that begin with one of the bytes that matter */
};

struct seen {
    bool starts[256];      /* bytes with which names begin that matter */
    struct timespec since; /* before the search */
    struct seen_dir *dirs;
    size_t n, cap;
    size_t *roots; /* those of dirs that are */
    size_t nroots, roots_cap;
};

/* Each returns the position in dirs. st may be NULL. */
size_t seen_add_root(struct seen *s, const char *path, const struct stat *st);
size_t seen_add(struct seen *s, const char *name, const struct stat *st);
/* The last listing of this root, or NULL. */
const struct seen_dir *seen_root(const struct seen *s, const char *path);
/* The subdirectory of that name. `guess`, a position among the subdirectories, is where it is looked for first; it is set
 * behind it. NULL if there was none, or `dir` is NULL or was not read. */
const struct seen_dir *seen_sub(const struct seen *s, const struct seen_dir *dir, const char *name, size_t *guess);
/* Whether that is the directory that was seen. NULL is not. */
bool seen_is(const struct seen_dir *dir, const struct stat *st);
/* The same, and it holds what it held then. */
bool seen_unchanged(const struct seen *s, const struct seen_dir *dir, const struct stat *st);
/* Reads directories that the search passed over because they have no subdirectories, in the order of a walk, until `max`
 * entries of a root are known. When the caller has nothing else to do. */
void seen_read(struct seen *s, unsigned max);
void seen_done(struct seen *s); /* for tests */

#endif
