/* front drops all privileges before it reads the first byte from outside, and verifies that they are gone. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "node/procs.h"
#include "os/daemon.h"

int front_drop(struct err *err)
{
    const struct daemon_filter filter = {0};
    _cleanup_buf_ struct buf status = {0};
    char bounding[20] = "";
    struct log_line l;
    if (daemon_limits(err) < 0 || daemon_confine(&filter, err) < 0)
        return -1;
    if (fd_read_file(AT_FDCWD, "/proc/self/status", 1 << 16, &status) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot read /proc/self/status");
    if (daemon_prove("front", buf_str(&status), err) < 0)
        return -1;
    const char *bnd = strstr(buf_str(&status), "CapBnd:\t");
    if (bnd)
        (void)sscanf(bnd + 8, "%19[0-9a-f]", bounding);
    if (log_start(&l, LOG_LEVEL_INFO, "no capabilities, no_new_privs, own system call filter")) {
        log_u64(&l, "uid", geteuid());
        log_u64(&l, "gid", getegid());
        log_str(&l, "bounding", bounding);
        log_end(&l);
    }
    return 0;
}
