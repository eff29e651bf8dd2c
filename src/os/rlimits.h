/* rlimits.h - the fixed resource limits of a command: the only ones without a cgroup, a second line with one.
 *
 * rlimits_apply() is for the time between clone and exec: system calls only, no allocation. Both soft and hard limit
 * are set, so the command cannot raise them again. A limit that would have to be raised above the hard limit in force
 * stays at that hard limit: raising needs a privilege, and less is never unsafe.
 */
#ifndef HUTCH_OS_RLIMITS_H
#define HUTCH_OS_RLIMITS_H

#include <stdint.h>

/* What depends on the policy; 0 leaves a limit as it is. CORE, MEMLOCK, MSGQUEUE, SIGPENDING, NICE and RTPRIO are
 * fixed. */
struct rlimits {
    uint64_t open_files; /* RLIMIT_NOFILE */
    uint64_t processes;  /* RLIMIT_NPROC: counts per user, so only useful where the sandbox has ids of its own */
    uint64_t file_size;  /* RLIMIT_FSIZE, bytes */
    uint64_t data;       /* RLIMIT_DATA, bytes per process: the stand-in for a memory limit without cgroups */
    uint64_t cpu_s;      /* RLIMIT_CPU, seconds per process */
};

/* 0, or -1 with errno and in *ret_which (may be NULL) the name of the limit, a static string. */
int rlimits_apply(const struct rlimits *want, const char **ret_which);

#endif
