/* idmap.h - uid and gid maps of user namespaces: written, checked, and the ranges /etc/subuid gives to users.
 *
 * No map that contains host id 0 is ever written, and every map is read back and compared after writing.
 * Functions return 0 or -1 with *err. Nothing is kept between calls.
 */
#ifndef HUTCH_OS_IDMAP_H
#define HUTCH_OS_IDMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

enum { IDMAP_EXTENTS_MAX = 8 };

struct idmap_extent {
    uint32_t inside, outside, count;
};
struct idmap {
    struct idmap_extent e[IDMAP_EXTENTS_MAX];
    size_t n;
};

/* Appends an extent; false if the map is full, the extent is empty, wraps, or holds outside id 0. */
bool idmap_add(struct idmap *m, uint32_t inside, uint32_t outside, uint32_t count);
/* Writes both maps of the user namespace of `pid` (a child of ours that waits) directly; `deny_setgroups` first, as the
 * kernel demands of callers without privilege. */
int idmap_write(pid_t pid, const struct idmap *uids, const struct idmap *gids, bool deny_setgroups, struct err *err);
/* The same through newuidmap and newgidmap, for an ordinary user who maps more ids than one. Blocks until they end. */
int idmap_write_rootless(pid_t pid, const struct idmap *uids, const struct idmap *gids, struct err *err);

/* What /etc/subuid and /etc/subgid give one user. */
struct idmap_subids {
    uint32_t uid_base, uid_count, gid_base, gid_count;
};
/* Finds ranges of at least `count` ids for `uid` (listed by number or by its name in /etc/passwd). ERR_HOST with the
 * command that fixes it if there are none or newuidmap is not installed. */
int idmap_subids(uid_t uid, uint32_t count, struct idmap_subids *ret, struct err *err);
/* Pure part: the first range of at least `count` ids for uid or name (may be NULL) in the text of such a file. */
bool idmap_parse_subids(const char *text, uid_t uid, const char *name, uint32_t count, uint32_t *ret_base,
                        uint32_t *ret_count);
/* Name of a uid in the text of a passwd file; false if it is not there or longer than room. */
bool idmap_parse_passwd(const char *text, uid_t uid, char *ret, size_t room);

/* All ranges that /etc/subuid and /etc/subgid give to users; sandboxes of root must not use them. */
struct idmap_reserved {
    struct idmap_extent *v; /* owned; `inside` is unused */
    size_t n, cap;
};
void idmap_reserved_load(struct idmap_reserved *r);
bool idmap_reserved_overlaps(const struct idmap_reserved *r, uint32_t base, uint32_t count);
void idmap_reserved_done(struct idmap_reserved *r);

#endif
