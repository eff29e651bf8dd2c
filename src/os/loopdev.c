#include "os/loopdev.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/num.h"

enum { ATTACH_TRIES = 64, DIRECT_BLOCK = 4096 };

void loopdev_close(struct loopdev *d)
{
    if (d->fd >= 0)
        (void)close(d->fd);
    d->fd = -1;
}

static int device_open(int n, struct loopdev *ret)
{
    (void)snprintf(ret->path, sizeof ret->path, "/dev/loop%d", n);
    ret->fd = open(ret->path, O_RDWR | O_CLOEXEC);
    return ret->fd;
}

/* The kernel gives the device number in the old 32-bit layout or in its own 64-bit one, depending on its age. */
static bool same_device(uint64_t told, dev_t dev)
{
    unsigned maj = major(dev), min = minor(dev);
    return told == dev || told == ((uint64_t)maj << 20 | min) ||
           told == ((min & 0xffU) | (uint64_t)maj << 8 | (uint64_t)(min & ~0xffU) << 12);
}

/* Keeps the device open, so that what the kernel says of it stays true. */
static bool device_is_of(struct loopdev *d, const struct stat *img)
{
    struct loop_info64 info;
    memset(&info, 0, sizeof info);
    return ioctl(d->fd, LOOP_GET_STATUS64, &info) == 0 && info.lo_inode == img->st_ino &&
           same_device(info.lo_device, img->st_dev) && !(info.lo_flags & LO_FLAGS_READ_ONLY) && info.lo_offset == 0;
}

int loopdev_find(int img, struct loopdev *ret, struct err *err)
{
    struct stat st;
    if (fstat(img, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "image: stat");
    _cleanup_closedir_ DIR *d = opendir("/dev"); /* not /sys: keeper's own root has none */
    if (!d)
        return err_set(err, ERR_HOST, errno, "loop devices: /dev");
    const struct dirent *e;
    while ((e = readdir(d))) {
        int n;
        if (strncmp(e->d_name, "loop", 4) != 0 || !num_int(e->d_name + 4, 0, LOOPDEV_MAX, &n) ||
            device_open(n, ret) < 0)
            continue;
        if (device_is_of(ret, &st))
            return 0;
        loopdev_close(ret);
    }
    return 1;
}

int loopdev_attach(int img, unsigned flags, struct loopdev *ret, struct err *err)
{
    *ret = (struct loopdev)LOOPDEV_INIT;
    int found = loopdev_find(img, ret, err);
    if (found <= 0)
        return found;
    _cleanup_close_ int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0)
        return err_set(err, ERR_HOST, errno, "loop devices: /dev/loop-control");
    bool direct = flags & LOOPDEV_DIRECT;
    struct loop_config c = {.fd = (uint32_t)img, .block_size = direct ? DIRECT_BLOCK : 0};
    c.info.lo_flags = LO_FLAGS_AUTOCLEAR | (direct ? LO_FLAGS_DIRECT_IO : 0);
    for (int i = 0; i < ATTACH_TRIES; i++) {
        int n = ioctl(control, LOOP_CTL_GET_FREE);
        if (n < 0)
            return err_set(err, ERR_HOST, errno, "loop devices: none is free");
        if (n > LOOPDEV_MAX)
            return err_set(err, ERR_LIMIT, 0, "loop devices: more than %d are in use", (int)LOOPDEV_MAX);
        if (device_open(n, ret) < 0)
            return err_set(err, ERR_HOST, errno, "loop devices: %s", ret->path);
        if (ioctl(ret->fd, LOOP_CONFIGURE, &c) == 0)
            return 0;
        int eno = errno; /* EBUSY: another process attached it first */
        loopdev_close(ret);
        if (eno == EINVAL && (c.info.lo_flags & LO_FLAGS_DIRECT_IO)) { /* this file system cannot */
            c.info.lo_flags = LO_FLAGS_AUTOCLEAR;
            continue;
        }
        if (eno != EBUSY)
            return err_set(err, ERR_HOST, eno, "loop devices: LOOP_CONFIGURE of %s", ret->path);
    }
    return err_set(err, ERR_HOST, EBUSY, "loop devices: others took every free one");
}

bool loopdev_is_direct(const struct loopdev *d)
{
    struct loop_info64 info;
    memset(&info, 0, sizeof info);
    return ioctl(d->fd, LOOP_GET_STATUS64, &info) == 0 && (info.lo_flags & LO_FLAGS_DIRECT_IO);
}

int loopdev_resized(const struct loopdev *d, struct err *err)
{
    if (ioctl(d->fd, LOOP_SET_CAPACITY, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "%s: LOOP_SET_CAPACITY", d->path);
    return 0;
}
