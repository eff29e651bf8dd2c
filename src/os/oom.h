/* oom.h - facts about OOM kills, from the kernel's log.
 *
 * Counters (cgroup_stat) say that a kill happened; who died and how big it was stands only in /dev/kmsg, which root may
 * read. The reader is opened before a run, standing at the end of the log, and read after it. Records are matched by
 * the name of the leaf cgroup; lines written into the log by user space are ignored, so nothing in a sandbox can forge
 * one.
 */
#ifndef HUTCH_OS_OOM_H
#define HUTCH_OS_OOM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum oom_line_kind {
    OOM_OTHER,  /* nothing of interest, or written by user space */
    OOM_CHOSEN, /* "oom-kill:...": memcg, comm and pid are filled */
    OOM_KILLED, /* "Killed process ...": pid, comm and sizes are filled */
};

struct oom_line {
    enum oom_line_kind kind;
    pid_t pid;       /* in the initial pid namespace */
    char comm[64];   /* as the kernel printed it (non-printing bytes as \xNN); escape before printing */
    char memcg[512]; /* path of the cgroup whose limit was hit, as the kernel names it; "/" for the whole host */
    uint64_t total_vm_kb, anon_rss_kb, file_rss_kb, shmem_rss_kb;
};

struct oom_kill {
    unsigned count;       /* kills in our leaf since the reader was opened */
    struct oom_line last; /* the last of them with sizes; valid if count > 0 and last.kind == OOM_KILLED */
};

/* Pure: one record as read from /dev/kmsg, "prio,seq,time,flags;text". */
void oom_parse_line(const char *text, size_t n, struct oom_line *ret);

/* Opens the log at its end, non-blocking, CLOEXEC. Descriptor, or -1 with errno (EPERM, EACCES, ENOENT are common). */
int oom_open(void);
/* Reads everything new. `leaf` is the last component of the sandbox's cgroups (struct cgroup.name). Records the log
 * lost are lost here too: *ret then counts fewer than the cgroup's counter. 0, or -1 with errno. Does not block. */
int oom_read(int fd, const char *leaf, struct oom_kill *ret);

#endif
