/* upper-int.h - the drivers behind upper.h, for upper*.c only. A driver's functions get a readable descriptor of
 * `dir`. */
#ifndef HUTCH_OS_UPPER_INT_H
#define HUTCH_OS_UPPER_INT_H

#include "os/upper.h"

#define UPPER_NEW ".new-" /* images that are being made; a process that died leaves them */
enum { UPPER_NAME_MAX = 200, UPPER_DEPTH_MAX = 128, UPPER_NEW_SECONDS = 600 };

/* upper-btrfs.c */
bool upper_btrfs_is_subvolume(int fd); /* the root of one */
/* Whether quotas are on; `enable` switches them on. *ret_simple: which kind (btrfs.h). 0, or -1 with errno. */
int upper_btrfs_quota(int dir, bool enable, bool *ret_simple);
int upper_btrfs_open(int dir, const char *name, int from, bool quota, uint64_t disk, struct upper *ret,
                     struct err *err);
int upper_btrfs_stat(int root, struct upper_usage *ret, struct err *err);
/* 0, or -1 with errno: ENOTEMPTY if there are subvolumes in it. */
int upper_btrfs_destroy(int dir, const char *name);

/* upper-from.c. Puts away what a snapshot of a layer holds. 0, or -1 with errno. */
int upper_from_tidy(int place);

/* upper-project.c. 0 if limits of projects are enforced, else -1 with errno. */
int upper_project_probe(int dir);
int upper_project_open(int dir, const char *name, bool quota, uint64_t disk, uint64_t inodes, struct upper *ret,
                       struct err *err);
int upper_project_limit(int root, uint64_t disk, uint64_t inodes, struct err *err);
int upper_project_stat(int root, uint64_t count_max, struct upper_usage *ret, struct err *err);
/* Finds the project of the place, 0 if it is not one of Hutch's; removes its limits after the place is gone, so that
 * another place can get it. */
uint32_t upper_project_of(int dir, const char *name);
void upper_project_forget(int dir, uint32_t id);

/* upper-image.c. NULL if images can be used, else what is missing. */
const char *upper_image_missing(void);
int upper_image_open(int dir, const char *name, uint64_t disk, uint64_t inodes, bool quick, struct upper *ret,
                     struct err *err);
/* The number of files changes with it. */
int upper_image_resize(int dir, const char *name, uint64_t disk, struct err *err);

#endif
