/* mount.h - the new mount API, by descriptor. Every call is one or two system calls, allocates nothing and may run after
 * clone. Failures return -1 with errno; the wall turns them into sentences. */
#ifndef HUTCH_OS_MOUNT_H
#define HUTCH_OS_MOUNT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum mount_flag {
    MOUNT_RO = 1 << 0,
    MOUNT_NOSUID = 1 << 1,
    MOUNT_NODEV = 1 << 2,
    MOUNT_NOEXEC = 1 << 3,
    MOUNT_RECURSIVE = 1 << 4, /* mount_set, mount_clone: the whole tree below */
    MOUNT_PRIVATE = 1 << 5,   /* mount_set: no propagation in or out */
    MOUNT_NOFOLLOW = 1 << 6,  /* mount_clone: a final symlink is taken as it is */
};

/* A detached copy of what is mounted at path, as a descriptor. */
int mount_clone(int dirfd, const char *path, unsigned flags);
/* Sets (never clears) attributes of a mount given by descriptor, or by path if fd is AT_FDCWD. */
int mount_set(int fd, const char *path, unsigned flags);
/* Maps ids of a detached mount through the user namespace `userns`. */
int mount_idmap(int fd, int userns, unsigned flags);
/* Attaches a detached mount at the place `at` (an O_PATH descriptor). */
int mount_attach(int fd, int at);
/* Attaches it at a name in the directory `dir`; a link there is not followed. */
int mount_attach_at(int fd, int dir, const char *name);
/* A place by path below dirfd, symlinks refused anywhere in it (in_root: resolved inside dirfd instead). */
int mount_place(int dirfd, const char *path, bool in_root);

/* New file systems, detached. size and inodes 0 = the kernel's default. */
int mount_new_tmpfs(uint64_t size, uint64_t inodes, mode_t mode, unsigned flags);
/* Of one that is there already, whose bytes and inodes in use are fewer; 0 leaves a limit as it is. */
int mount_limit_tmpfs(int fd, uint64_t size, uint64_t inodes);
int mount_new_proc(unsigned flags);
/* Of the terminals that the whole machine has (kernel.pty.max) one instance gets at most these. */
enum { MOUNT_TERMINALS_MAX = 256 };
int mount_new_devpts(unsigned flags);
/* Overlay over `nlower` directories (uppermost first) with private upper and work directories; without an upper it is
 * read-only and needs two lower ones. */
int mount_new_overlay(const char *const *lower, size_t nlower, const char *upper, const char *work, bool userxattr,
                      unsigned flags);

/* Decodes, in place, the octal escapes ("\040") of a path from /proc/self/mountinfo. */
void mount_unescape(char *s);

#endif
