/* probe-int.h - the probes of the table in probe.c and the child they run in. Only probe*.c include it; a probe leaves
 * nothing behind on the host. */
#ifndef HUTCH_OS_PROBE_PROBE_INT_H
#define HUTCH_OS_PROBE_PROBE_INT_H

#include <stdint.h>

#include "os/probe/probe.h"

void probe_ok(struct probe_result *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void probe_advice(struct probe_result *r, const char *remedy, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void probe_missing(struct probe_result *r, const char *remedy, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* What a probe's child found. */
struct probe_answer {
    int eno;        /* 0 = it worked; ETIMEDOUT or ECHILD if the child said nothing */
    char stage[32]; /* the call that failed */
    uint64_t value; /* whatever the probe reports */
    char text[160]; /* more about the failure, "" if there is nothing */
};

enum {
    PROBE_NEWUSER = 1 << 0, /* own user namespace, mapped: root a range of its own, others their one uid */
    PROBE_NEWNS = 1 << 1,   /* own mount namespace, everything private */
    PROBE_NEWPID = 1 << 2,  /* the function runs as pid 1 of its own pid namespace */
};

/* Runs fn in a child with those namespaces and returns what it filled in. The child dies with its parent. When userns_fd
 * is not NULL it receives a descriptor of the child's user namespace (-1 if there is none); the caller closes it. */
struct probe_answer probe_in_child(unsigned flags, void (*fn)(void *arg, struct probe_answer *a), void *arg,
                                   int *userns_fd);
/* Notes the failure of `stage` with the current errno. */
void probe_failed_at(struct probe_answer *a, const char *stage);

/* probe-ns.c */
void probe_userns(const struct probe *p, struct probe_result *r);
void probe_otherns(const struct probe *p, struct probe_result *r);
void probe_procfs(const struct probe *p, struct probe_result *r);
void probe_mount_api(const struct probe *p, struct probe_result *r);
void probe_idmap(const struct probe *p, struct probe_result *r);
void probe_overlay(const struct probe *p, struct probe_result *r);
void probe_overlay_remove(const struct probe *p, struct probe_result *r);
void probe_newuidmap(const struct probe *p, struct probe_result *r);
/* probe-net.c */
void probe_network(const struct probe *p, struct probe_result *r);
/* probe-kernel.c */
void probe_version(const struct probe *p, struct probe_result *r);
void probe_landlock(const struct probe *p, struct probe_result *r);
void probe_seccomp(const struct probe *p, struct probe_result *r);
void probe_notify(const struct probe *p, struct probe_result *r);
void probe_sync_wakeup(const struct probe *p, struct probe_result *r);
void probe_syscall(const struct probe *p, struct probe_result *r); /* arg: struct probe_call */
void probe_into_cgroup(const struct probe *p, struct probe_result *r);
void probe_ia32(const struct probe *p, struct probe_result *r);
/* probe-host.c */
void probe_cgroup(const struct probe *p, struct probe_result *r);
void probe_sysctl(const struct probe *p, struct probe_result *r); /* arg: struct probe_setting */
void probe_core_pattern(const struct probe *p, struct probe_result *r);
void probe_swap(const struct probe *p, struct probe_result *r);
void probe_uppers(const struct probe *p, struct probe_result *r);
/* probe-capacity.c */
void probe_capacity(const struct probe *p, struct probe_result *r);

/* A kernel setting with a number in it. */
struct probe_setting {
    const char *path;   /* below / */
    uint64_t min, max;  /* values that are fine */
    const char *risk;   /* what the wrong value lets happen */
    const char *remedy; /* the command */
    bool absent_ok;     /* no such file means the feature is not there at all */
};

/* A system call that fails in a telling way when its arguments are empty, and with ENOSYS when it does not exist. */
struct probe_call {
    long nr;
    const char *used_for;
    const char *fallback; /* NULL: required */
};

#endif
