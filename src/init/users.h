/* users.h - looks users up in the sandbox's own /etc/passwd and /etc/group. The tenant owns these files: they are read
 * without following magic links, completely or not at all, and malformed lines are skipped. Memory maps live as long as
 * the (short-lived) process; nothing else is allocated. */
#ifndef HUTCH_INIT_USERS_H
#define HUTCH_INIT_USERS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "init/proto.h"

enum { USERS_FILE_MAX = 1 << 20, USERS_GROUPS_MAX = 256 };

struct user {
    uid_t uid;
    gid_t gid;
    char name[INIT_USER_MAX + 1];
    char home[INIT_PATH_MAX];
    gid_t groups[USERS_GROUPS_MAX]; /* supplementary, with the primary one */
    size_t ngroups;
};

/* Text of one of the files; empty if it cannot be read. */
struct users_file {
    const char *p;
    size_t n;
};

/* Pure parsers. */
bool users_by_name(struct users_file passwd, const char *name, struct user *ret);
bool users_name_of(struct users_file passwd, uid_t uid, char *ret, size_t size);
bool users_group_of(struct users_file group, gid_t gid, char *ret, size_t size);
void users_groups(struct users_file group, struct user *u);

struct users_file users_read(const char *path);
/* Looks the user up, groups too. */
bool users_find(const char *name, struct user *ret);

#endif
