/* projects DIRECTORY - prints "ID BYTES/LIMIT FILES/LIMIT" for each project that the quota of DIRECTORY's file system knows something
 * about, but for project 0, which is everything that is of none. */
#include <errno.h>
#include <fcntl.h>
#include <linux/quota.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443
#endif

int main(int argc, char **argv)
{
    int fd = argc == 2 ? open(argv[1], O_RDONLY | O_DIRECTORY) : -1;
    if (fd < 0) {
        perror("projects DIRECTORY");
        return 2;
    }
    struct if_nextdqblk q;
    for (unsigned id = 1;; id = q.dqb_id + 1) {
        memset(&q, 0, sizeof q);
        if (syscall(SYS_quotactl_fd, fd, QCMD(Q_GETNEXTQUOTA, PRJQUOTA), id, &q) < 0) {
            if (errno == ENOENT || errno == ESRCH)
                return 0;
            perror("quotactl_fd");
            return 1;
        }
        if (q.dqb_curspace || q.dqb_curinodes || q.dqb_bhardlimit || q.dqb_ihardlimit)
            printf("%#x %llu/%llu %llu/%llu\n", q.dqb_id, (unsigned long long)q.dqb_curspace,
                   (unsigned long long)q.dqb_bhardlimit * 1024, (unsigned long long)q.dqb_curinodes,
                   (unsigned long long)q.dqb_ihardlimit);
    }
}
