/* probe-dev.c - group D: devices. */
#include "probe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void d_list(const struct attempt *a, struct seen *s)
{
    static const char *const known[] = {".",   "..",  "null", "zero",  "full",   "random", "urandom", "tty",   "ptmx",
                                        "pts", "shm", "fd",   "stdin", "stdout", "stderr", "console", "mqueue"};
    DIR *d = opendir("/dev");
    size_t extra = 0;
    char first[64] = "";
    (void)a;
    for (struct dirent *e; d && (e = readdir(d));) {
        bool ok = false;
        for (size_t i = 0; i < ROWS(known); i++)
            ok |= strcmp(known[i], e->d_name) == 0;
        if (!ok && !extra++)
            (void)snprintf(first, sizeof first, "%.60s", e->d_name);
    }
    if (d)
        closedir(d);
    seen_text(s, extra ? "leak: %zu more, such as %s" : "exact", extra, first);
}

static void d_open(const struct attempt *a, struct seen *s)
{
    struct stat st;
    int fd = open(a->arg, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int eno = errno;
    if (fd < 0 && eno != ENOENT && stat(a->arg, &st) == 0)
        seen_text(s, "leak: there, open says %s", strerrorname_np(eno));
    else
        seen_rc(s, fd);
}

static void d_pts(const struct attempt *a, struct seen *s)
{
    int n = -1, others = 0;
    char own[16];
    (void)a;
    int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, TIOCGPTN, &n) < 0) {
        seen_rc(s, -1);
        return;
    }
    (void)snprintf(own, sizeof own, "%d", n);
    DIR *d = opendir("/dev/pts");
    for (struct dirent *e; d && (e = readdir(d));)
        others += e->d_name[0] >= '0' && e->d_name[0] <= '9' && strcmp(e->d_name, own) != 0;
    if (d)
        closedir(d);
    seen_text(s, others ? "leak: %d other terminals" : "own", others);
}

static void d_full(const struct attempt *a, struct seen *s)
{
    static char block[1 << 16];
    (void)a;
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC), rnd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < 64; i++)
        (void)!read(rnd, block, sizeof block);
    seen_rc(s, fd < 0 ? -1 : write(fd, block, sizeof block));
}

static void d_fuzz(const struct attempt *a, struct seen *s)
{
    static const char *const nodes[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/ptmx"};
    static char arg[4096];
    unsigned long n = 0;
    (void)a;
    srand(1);
    for (double end = probe_now() + 1; probe_now() < end; n++) {
        int fd = open(nodes[n % ROWS(nodes)], O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        unsigned long req = (unsigned long)rand();
        if (n % 3 == 0)
            req = 0x5400 + req % 128;
        (void)ioctl(fd, req, arg);
        close(fd);
    }
    seen_text(s, "survived: %lu requests in 1 s", n);
}

static void d_change(const struct attempt *a, struct seen *s)
{
    struct stat st;
    if (stat("/dev/null", &st) < 0) {
        seen_rc(s, -1);
        return;
    }
    switch (a->num) {
    case 0:
        seen_rc(s, chmod("/dev/null", st.st_mode & 07777));
        break;
    case 1:
        seen_rc(s, chown("/dev/null", st.st_uid, st.st_gid));
        break;
    default: {
        struct timespec ts[2] = {st.st_atim, st.st_mtim};
        seen_rc(s, utimensat(AT_FDCWD, "/dev/null", ts, 0));
    }
    }
}

#define DEV(id, path)                                                                                            \
    {                                                                                                            \
        id, "open " path, d_open, path, 0, "ENOENT", NULL, "dev", CTL_OUTSIDE, 0, "this host has no such device" \
    }
#define OWNER "host root owns the node and is not mapped"

static const struct attempt rows[] = {
    {"D-01", "list /dev", d_list, NULL, 0, "exact", NULL, "dev", CTL_OUTSIDE, 0, NULL},
    DEV("D-02a", "/dev/mem"),
    DEV("D-02b", "/dev/kmsg"),
    DEV("D-02c", "/dev/kvm"),
    DEV("D-02d", "/dev/fuse"),
    DEV("D-02e", "/dev/net/tun"),
    DEV("D-02f", "/dev/vda"),
    DEV("D-02g", "/dev/userfaultfd"),
    DEV("D-02h", "/dev/vhost-net"),
    DEV("D-02i", "/dev/vhost-vsock"),
    DEV("D-02j", "/dev/dri"),
    DEV("D-02k", "/dev/snd"),
    DEV("D-02l", "/dev/loop-control"),
    DEV("D-02m", "/dev/mapper/control"),
    DEV("D-02n", "/dev/autofs"),
    DEV("D-02o", "/dev/cpu/0/msr"),
    DEV("D-02p", "/dev/hwrng"),
    DEV("D-02q", "/dev/vsock"),
    DEV("D-02r", "/dev/tty0"),
    DEV("D-02s", "/dev/port"),
    {"S-12c", "open /dev/userfaultfd", d_open, "/dev/userfaultfd", 0, "ENOENT", NULL, "dev", CTL_OUTSIDE, 0,
     "this host has no such device"},
    {"D-03", "a new terminal comes from an own devpts", d_pts, NULL, 0, "own", NULL, "dev", CTL_OUTSIDE, 0, NULL},
    {"D-04", "/dev/full is full, /dev/urandom bounded", d_full, NULL, 0, "ENOSPC", NULL, "", CTL_KERNEL, 0,
     "a property of the device"},
    {"D-06", "random requests to the devices, 1 s", d_fuzz, NULL, 0, "survived", NULL, "", CTL_NONE, A_INSIDE,
     "looks for crashes and kernel warnings"},
    {"D-07a", "chmod /dev/null", d_change, NULL, 0, "EPERM EROFS EACCES", NULL, "dev,mounts,userns-range", CTL_ROOT, 0,
     OWNER},
    {"D-07b", "chown /dev/null", d_change, NULL, 1, "EPERM EROFS EACCES EINVAL", NULL, "dev,mounts,userns-range",
     CTL_ROOT, 0, OWNER},
    {"D-07c", "set the times of /dev/null", d_change, NULL, 2, "EPERM EROFS EACCES", NULL, "dev,mounts,userns-range",
     CTL_ROOT, 0, OWNER},
};

const struct attempt_table probe_dev = {"devices", rows, ROWS(rows)};
