/* probe-capacity.c - how many sandboxes the tables of this machine carry, and which table ends first. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "os/probe/probe-int.h"

/* What the rest of the machine and each sandbox need. An idle sandbox has init and one command; a full one as many
 * processes as sandboxes.pids allows. egress holds two sockets per sandbox, and two per connection. */
enum {
    HOST_TASKS = 1024,
    HOST_FILES = 8192,
    HOST_DESCRIPTORS = 256,
    REST_TASKS = 2,
    REST_FILES = 32,
    REST_DESCRIPTORS = 4,
    WANTED = 1000, /* sandboxes.max of a node */
};

static uint64_t left_for(uint64_t limit, uint64_t host, uint64_t each)
{
    return limit > host ? (limit - host) / each : 0;
}

static void bind_at(uint64_t *count, const char **by, uint64_t candidate, const char *name)
{
    if (*by && candidate >= *count)
        return;
    *count = candidate;
    *by = name;
}

void probe_count_capacity(struct probe_capacity *c)
{
    const struct {
        uint64_t limit, host, rest, full;
        const char *name;
    } tables[] = {
        {c->pid_max, HOST_TASKS, REST_TASKS, PROBE_FULL_TASKS, "kernel.pid_max"},
        {c->threads_max, HOST_TASKS, REST_TASKS, PROBE_FULL_TASKS, "kernel.threads-max"},
        {c->file_max, HOST_FILES, REST_FILES, PROBE_FULL_TASKS * (uint64_t)REST_FILES / REST_TASKS, "fs.file-max"},
        {c->nofile, HOST_DESCRIPTORS, REST_DESCRIPTORS, REST_DESCRIPTORS, "nofile"},
    };
    c->at_rest = c->full = 0;
    c->at_rest_by = c->full_by = NULL;
    for (size_t i = 0; i < ARRAY_LEN(tables); i++) {
        bind_at(&c->at_rest, &c->at_rest_by, left_for(tables[i].limit, tables[i].host, tables[i].rest), tables[i].name);
        bind_at(&c->full, &c->full_by, left_for(tables[i].limit, tables[i].host, tables[i].full), tables[i].name);
    }
}

int probe_read_capacity(struct probe_capacity *ret)
{
    struct rlimit files = {0};
    *ret = (struct probe_capacity){0};
    if (fd_read_u64(AT_FDCWD, "/proc/sys/kernel/pid_max", &ret->pid_max) < 0 ||
        fd_read_u64(AT_FDCWD, "/proc/sys/kernel/threads-max", &ret->threads_max) < 0 ||
        fd_read_u64(AT_FDCWD, "/proc/sys/fs/file-max", &ret->file_max) < 0 || getrlimit(RLIMIT_NOFILE, &files) < 0)
        return -1;
    ret->nofile = files.rlim_max;
    probe_count_capacity(ret);
    return 0;
}

static const char *capacity_remedy(const char *by)
{
    static const struct {
        const char *by, *remedy;
    } remedies[] = {
        {"kernel.pid_max", "sysctl -w kernel.pid_max=4194304"},
        {"kernel.threads-max", "sysctl -w kernel.threads-max=1000000, if there is memory for as many"},
        {"fs.file-max", "sysctl -w fs.file-max=4000000, if there is memory for as many"},
        {"nofile", "ulimit -Hn 524288 before `hutch serve`; the unit of the package has it"},
    };
    for (size_t i = 0; i < ARRAY_LEN(remedies); i++)
        if (strcmp(remedies[i].by, by) == 0)
            return remedies[i].remedy;
    return "";
}

void probe_capacity(const struct probe *p, struct probe_result *r)
{
    struct probe_capacity c;
    char text[160];
    (void)p;
    if (probe_read_capacity(&c) < 0) {
        probe_advice(r, "mount /proc", "could not be looked for: %s", strerror(errno));
        return;
    }
    (void)snprintf(text, sizeof text, "%llu at rest (%s ends first), %llu with %d processes each (%s)",
                   (unsigned long long)c.at_rest, c.at_rest_by, (unsigned long long)c.full, PROBE_FULL_TASKS,
                   c.full_by);
    if (c.at_rest >= WANTED && c.full >= WANTED)
        probe_ok(r, "%s", text);
    else
        probe_advice(r, capacity_remedy(c.at_rest < WANTED ? c.at_rest_by : c.full_by), "%s", text);
}
