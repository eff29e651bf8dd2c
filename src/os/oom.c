#include "os/oom.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/num.h"

enum { RECORD_MAX = 8192, RECORDS_PER_READ = 100000 };

/* Copies s[0..n) into a fixed field; false if it does not fit. */
static bool oom_copy_field(char *ret, size_t room, const char *s, size_t n)
{
    if (n >= room)
        return false;
    memcpy(ret, s, n);
    ret[n] = '\0';
    return true;
}

static bool oom_read_number(const char *s, size_t n, uint64_t *ret)
{
    char text[24];
    return oom_copy_field(text, sizeof text, s, n) && num_u64(text, ret);
}

static bool pid_number(const char *s, pid_t *ret)
{
    uint64_t v;
    if (!oom_read_number(s, strspn(s, "0123456789"), &v) || v == 0 || v > INT32_MAX)
        return false;
    *ret = (pid_t)v;
    return true;
}

static const char *last_of(const char *text, const char *what)
{
    const char *found = NULL;
    for (const char *p = strstr(text, what); p; p = strstr(p + 1, what))
        found = p;
    return found;
}

/* "constraint=...,oom_memcg=PATH,task_memcg=PATH,task=COMM,pid=N,uid=N". The name is chosen by the process and may hold
 * commas: what stands before it is searched from the front, what stands behind it from the back. */
static bool parse_chosen(const char *s, struct oom_line *ret)
{
    const char *memcg = strstr(s, ",oom_memcg="), *task_memcg = strstr(s, ",task_memcg=");
    if (!task_memcg)
        return false;
    const char *task = strstr(task_memcg, ",task="), *pid = last_of(task_memcg, ",pid=");
    if (!task || !pid || pid < task + strlen(",task=") || !pid_number(pid + strlen(",pid="), &ret->pid))
        return false;
    task += strlen(",task=");
    if (!oom_copy_field(ret->comm, sizeof ret->comm, task, (size_t)(pid - task)))
        return false;
    if (!memcg || memcg > task_memcg) /* ",global_oom": the whole host was out of memory */
        return oom_copy_field(ret->memcg, sizeof ret->memcg, "/", 1);
    memcg += strlen(",oom_memcg=");
    return oom_copy_field(ret->memcg, sizeof ret->memcg, memcg, (size_t)(task_memcg - memcg));
}

static bool size_after(const char *s, const char *key, uint64_t *ret)
{
    const char *p = strstr(s, key);
    if (!p)
        return false;
    p += strlen(key);
    size_t n = strspn(p, "0123456789");
    return strncmp(p + n, "kB", 2) == 0 && oom_read_number(p, n, ret);
}

/* "N (COMM) total-vm:1kB, anon-rss:2kB, file-rss:3kB, shmem-rss:4kB, UID:..." */
static bool parse_killed(const char *s, struct oom_line *ret)
{
    const char *open = strchr(s, '('), *sizes = last_of(s, ") total-vm:");
    if (!open || !sizes || sizes < open || !pid_number(s, &ret->pid))
        return false;
    return oom_copy_field(ret->comm, sizeof ret->comm, open + 1, (size_t)(sizes - open - 1)) &&
           size_after(sizes, "total-vm:", &ret->total_vm_kb) && size_after(sizes, "anon-rss:", &ret->anon_rss_kb) &&
           size_after(sizes, "file-rss:", &ret->file_rss_kb) && size_after(sizes, "shmem-rss:", &ret->shmem_rss_kb);
}

/* The text of a record that the kernel itself wrote, cut at the end of its first line; NULL otherwise. */
static const char *kernel_text(const char *text, size_t n, char room[RECORD_MAX])
{
    uint64_t prio;
    const char *end = memchr(text, '\n', n);
    size_t len = end ? (size_t)(end - text) : n;
    if (memchr(text, '\0', len) || !oom_copy_field(room, RECORD_MAX, text, len))
        return NULL;
    const char *body = strchr(room, ';');
    if (!body || !oom_read_number(room, strspn(room, "0123456789"), &prio) || prio > 7)
        return NULL; /* above 7: a facility other than "kern", so user space wrote it */
    return body + 1;
}

void oom_parse_line(const char *text, size_t n, struct oom_line *ret)
{
    static const char chosen[] = "oom-kill:", killed[] = "Killed process ";
    char room[RECORD_MAX];
    memset(ret, 0, sizeof *ret);
    const char *s = kernel_text(text, n, room);
    if (!s)
        return;
    const char *k = strstr(s, killed);
    struct oom_line got = {0};
    if (strncmp(s, chosen, strlen(chosen)) == 0) {
        if (parse_chosen(s + strlen(chosen), &got))
            got.kind = OOM_CHOSEN;
    } else if (k) {
        if (parse_killed(k + strlen(killed), &got))
            got.kind = OOM_KILLED;
    }
    if (got.kind != OOM_OTHER)
        *ret = got;
}

int oom_open(void)
{
    int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd >= 0 && lseek(fd, 0, SEEK_END) < 0) {
        int saved = errno;
        (void)close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

static bool is_leaf(const char *memcg, const char *leaf)
{
    const char *slash = strrchr(memcg, '/');
    return slash && strcmp(slash + 1, leaf) == 0;
}

int oom_read(int fd, const char *leaf, struct oom_kill *ret)
{
    pid_t ours = 0; /* chosen in our leaf, sizes still to come */
    memset(ret, 0, sizeof *ret);
    for (int i = 0; i < RECORDS_PER_READ; i++) {
        char record[RECORD_MAX];
        struct oom_line line;
        ssize_t n = read(fd, record, sizeof record); /* one record per read */
        if (n < 0 && (errno == EPIPE || errno == EINTR || errno == EINVAL))
            continue; /* EPIPE: records were overwritten; EINVAL: one larger than any that matters here */
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n <= 0)
            return n < 0 ? -1 : 0;
        oom_parse_line(record, (size_t)n, &line);
        if (line.kind == OOM_CHOSEN) {
            ours = is_leaf(line.memcg, leaf) ? line.pid : 0;
            if (ours) {
                ret->count++;
                ret->last = line;
            }
        } else if (line.kind == OOM_KILLED && ours && line.pid == ours) {
            memcpy(line.memcg, ret->last.memcg, sizeof line.memcg);
            ret->last = line;
            ours = 0;
        }
    }
    return 0;
}
