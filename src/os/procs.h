/* procs.h - the processes of a sandbox, found from outside without a cgroup.
 *
 * Everything in a pid namespace descends from its pid 1, and orphans return to it, so a walk down from pid 1 finds all
 * of them, nested namespaces included. The walk follows /proc/PID/task/TID/children (cost: the sandbox's own processes)
 * where the kernel has it, else one scan of /proc builds the tree (cost: the host's processes). Both are bounded.
 * Processes come and go during a walk; the answer is a sample, good for limits and reports, not for killing by number.
 */
#ifndef HUTCH_OS_PROCS_H
#define HUTCH_OS_PROCS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { PROCS_LIST_MAX = 32768 };

struct procs_entry {
    pid_t pid;           /* as this process sees it */
    char comm[17];       /* raw bytes chosen by the process: escape before printing */
    uint64_t rss_bytes;  /* resident, shared pages counted in each process */
    uint64_t anon_bytes; /* resident without pages of files and shared memory */
};

struct procs_usage {
    size_t count;
    uint64_t rss_bytes, anon_bytes; /* sums; compare anon_bytes + shmem_bytes with a limit: little is counted twice */
    uint64_t shmem_bytes;           /* shared memory mapped by the one process that maps most of it; not summed up */
    struct procs_entry biggest;     /* by anon_bytes; pid 0 if there is none */
    bool truncated;                 /* more than PROCS_LIST_MAX processes */
};

enum procs_how { PROCS_AUTO, PROCS_CHILDREN, PROCS_SCAN };

/* Sums up the namespace whose pid 1 is `init` (outside number). 0, or -1 with errno (ESRCH if it is gone). */
int procs_usage(pid_t init, struct procs_usage *ret);
/* For tests: lists it; *ret is owned by the caller. `how` forces a way; PROCS_AUTO picks. */
int procs_list(pid_t init, enum procs_how how, struct procs_entry **ret, size_t *ret_n, bool *ret_truncated);

/* Pure: name and parent from the text of /proc/PID/stat. False if it is not such a line. */
bool procs_parse_stat(const char *text, char ret_comm[17], pid_t *ret_ppid);

#endif
