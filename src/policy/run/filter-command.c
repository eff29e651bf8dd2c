#include "policy/run/filter-command.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "base/cleanup.h"

/* Newer than the headers of Debian 12. */
enum { NR_FCHMODAT2 = 452, NR_SETXATTRAT = 463, NR_REMOVEXATTRAT = 466, NR_FILE_SETATTR = 469 };
enum { IOPRIO_WHO_PROCESS = 1 }; /* not in the headers that a program may include */
enum { TYPE_MASK = 0xf };        /* of a socket's type: without SOCK_CLOEXEC and SOCK_NONBLOCK */

struct command_program {
    struct sock_filter *v;
    size_t n;
};

#define LOW(arg)  ((unsigned)(offsetof(struct seccomp_data, args) + sizeof(uint64_t) * (arg)))
#define HIGH(arg) (LOW(arg) + 4U)
#define REFUSE(e) (SECCOMP_RET_ERRNO | (unsigned)(e))

static void command_put_op(struct command_program *p, unsigned code, uint32_t k, unsigned jt, unsigned jf)
{
    assert(p->n < FILTER_COMMAND_MAX);
    p->v[p->n++] = (struct sock_filter){.code = (uint16_t)code, .jt = (uint8_t)jt, .jf = (uint8_t)jf, .k = k};
}

static void command_put_load(struct command_program *p, unsigned at)
{
    command_put_op(p, BPF_LD | BPF_W | BPF_ABS, at, 0, 0);
}

static void command_put_answer(struct command_program *p, uint32_t answer)
{
    command_put_op(p, BPF_RET | BPF_K, answer, 0, 0);
}

/* Equal: goes on; otherwise skips. */
static void command_put_unless_equal(struct command_program *p, uint32_t k, unsigned skip)
{
    command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, k, 0, skip);
}

/* All of these calls get one answer: they jump to it. */
static void command_put_calls(struct command_program *p, const int *nrs, size_t n, int eno)
{
    for (size_t i = 0; i < n; i++)
        command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)nrs[i], (unsigned)(n - i - 1), i + 1 == n);
    command_put_answer(p, REFUSE(eno));
}

/* A pair of datagram sockets is not closed: either end can be sent from, or connected, to another address. */
static void command_put_pairs(struct command_program *p)
{
    command_put_unless_equal(p, SYS_socketpair, 6);
    command_put_load(p, LOW(1));
    command_put_op(p, BPF_ALU | BPF_AND | BPF_K, TYPE_MASK, 0, 0);
    command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, SOCK_STREAM, 2, 0);
    command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, SOCK_SEQPACKET, 1, 0);
    command_put_answer(p, REFUSE(EACCES));
    command_put_answer(p, SECCOMP_RET_ALLOW);
}

static void command_put_unix(struct command_program *p)
{
    command_put_unless_equal(p, SYS_socket, 4);
    command_put_load(p, LOW(0));
    command_put_unless_equal(p, AF_UNIX, 1);
    command_put_answer(p, REFUSE(EACCES));
    command_put_answer(p, SECCOMP_RET_ALLOW);
}

/* Sockets that wait for connections: socket(AF_UNIX, SOCK_STREAM), bind, listen. */
static void command_put_server(struct command_program *p)
{
    static const int connecting[] = {SYS_connect};
    command_put_calls(p, connecting, ARRAY_LEN(connecting), EACCES);
    command_put_unless_equal(p, SYS_socket, 9);
    command_put_load(p, LOW(0));
    command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 4, 0);
    command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 0, 4);
    command_put_load(p, LOW(1));
    command_put_op(p, BPF_ALU | BPF_AND | BPF_K, TYPE_MASK, 0, 0);
    command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, SOCK_STREAM, 2, 1);
    command_put_answer(p, REFUSE(EOPNOTSUPP)); /* libzmq looks for interfaces, and aborts at another one */
    command_put_answer(p, REFUSE(EACCES));
    command_put_answer(p, SECCOMP_RET_ALLOW);
}

/* prlimit(other, .., new limits): the same user may set them, and no Landlock looks. */
static void command_put_limits(struct command_program *p)
{
    command_put_unless_equal(p, SYS_prlimit64, 8);
    command_put_load(p, LOW(0));
    command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 5, 0);
    command_put_load(p, LOW(2));
    command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 2);
    command_put_load(p, HIGH(2));
    command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
    command_put_answer(p, REFUSE(EPERM));
    command_put_answer(p, SECCOMP_RET_ALLOW);
}

/* These calls change how a process runs; only the calling one (0) is allowed. */
static void command_put_own(struct command_program *p, const int *nrs, size_t n, unsigned arg)
{
    for (size_t i = 0; i < n; i++)
        command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)nrs[i], (unsigned)(n - i - 1), i + 1 == n ? 4 : 0);
    command_put_load(p, LOW(arg));
    command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
    command_put_answer(p, REFUSE(EPERM));
    command_put_answer(p, SECCOMP_RET_ALLOW);
}

/* A thread names itself by its number when it takes the ordinary scheduler, which those of libzmq do, or they abort. */
static void command_put_scheduler(struct command_program *p)
{
    command_put_unless_equal(p, SYS_sched_setscheduler, 6);
    command_put_load(p, LOW(0));
    command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 3, 0);
    command_put_load(p, LOW(1));
    command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, SCHED_OTHER, 1, 0);
    command_put_answer(p, REFUSE(EPERM));
    command_put_answer(p, SECCOMP_RET_ALLOW);
}

/* The same where the first argument says what the second names: a process, its group or all of a user. */
static void command_put_priority(struct command_program *p, int nr, uint32_t process)
{
    command_put_unless_equal(p, (uint32_t)nr, 6);
    command_put_load(p, LOW(0));
    command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, process, 0, 2);
    command_put_load(p, LOW(1));
    command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
    command_put_answer(p, REFUSE(EPERM));
    command_put_answer(p, SECCOMP_RET_ALLOW);
}

/* open() that truncates and does not ask to write: for reading only, or with the fourth access mode, which is neither. */
static void command_put_open(struct command_program *p, int nr, unsigned arg)
{
    command_put_unless_equal(p, (uint32_t)nr, 6);
    command_put_load(p, LOW(arg));
    command_put_op(p, BPF_ALU | BPF_AND | BPF_K, O_TRUNC | O_ACCMODE, 0, 0);
    command_put_op(p, BPF_JMP | BPF_JEQ | BPF_K, O_TRUNC | O_RDONLY, 1, 0);
    command_put_unless_equal(p, O_TRUNC | O_ACCMODE, 1);
    command_put_answer(p, REFUSE(EACCES));
    command_put_answer(p, SECCOMP_RET_ALLOW);
}

static void command_put_files(struct command_program *p, unsigned flags)
{
    static const int metadata[] = {
        SYS_chmod,        SYS_fchmod,       SYS_fchmodat,    NR_FCHMODAT2,  SYS_chown,       SYS_fchown,
        SYS_lchown,       SYS_fchownat,     SYS_utime,       SYS_utimes,    SYS_futimesat,   SYS_utimensat,
        SYS_setxattr,     SYS_lsetxattr,    SYS_fsetxattr,   NR_SETXATTRAT, SYS_removexattr, SYS_lremovexattr,
        SYS_fremovexattr, NR_REMOVEXATTRAT, NR_FILE_SETATTR,
    };
    static const int truncation[] = {SYS_truncate};
    static const int hidden[] = {SYS_openat2}; /* its flags are in memory */
    if (flags & FILTER_COMMAND_READ_ONLY)
        command_put_calls(p, metadata, ARRAY_LEN(metadata), EACCES);
    if (flags & FILTER_COMMAND_NO_TRUNCATE) {
        command_put_calls(p, truncation, ARRAY_LEN(truncation), EACCES);
        command_put_calls(p, hidden, ARRAY_LEN(hidden), ENOSYS);
        command_put_open(p, SYS_open, 1);
        command_put_open(p, SYS_openat, 2);
    }
}

static void command_put_apart(struct command_program *p, unsigned flags)
{
    static const int objects[] = {
        SYS_shmget, SYS_shmat,  SYS_shmctl, SYS_semget, SYS_semop,   SYS_semtimedop, SYS_semctl,
        SYS_msgget, SYS_msgsnd, SYS_msgrcv, SYS_msgctl, SYS_mq_open, SYS_mq_unlink,
    };
    static const int rings[] = {SYS_io_uring_setup, SYS_io_uring_enter,
                                SYS_io_uring_register}; /* would pass all this by */
    static const int sockets[] = {SYS_socket, SYS_connect, SYS_bind, SYS_listen};
    static const int scheduling[] = {SYS_sched_setaffinity, SYS_sched_setparam, SYS_sched_setattr};
    command_put_calls(p, rings, ARRAY_LEN(rings), ENOSYS);
    command_put_calls(p, objects, ARRAY_LEN(objects), EACCES);
    if ((flags & FILTER_COMMAND_NO_NETWORK) && (flags & FILTER_COMMAND_UNIX_SERVER))
        command_put_server(p);
    else if (flags & FILTER_COMMAND_NO_NETWORK)
        command_put_calls(p, sockets, ARRAY_LEN(sockets), EACCES);
    else
        command_put_unix(p);
    command_put_pairs(p);
    command_put_limits(p);
    command_put_own(p, scheduling, ARRAY_LEN(scheduling), 0);
    command_put_scheduler(p);
    command_put_priority(p, SYS_setpriority, PRIO_PROCESS);
    command_put_priority(p, SYS_ioprio_set, IOPRIO_WHO_PROCESS);
}

size_t filter_command(unsigned flags, struct sock_filter ret[FILTER_COMMAND_MAX])
{
    static const int leaving[] = {SYS_setsid, SYS_setpgid};
    struct command_program p = {.v = ret};
    command_put_load(&p, offsetof(struct seccomp_data, arch));
    command_put_op(&p, BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
    command_put_answer(&p, SECCOMP_RET_KILL_PROCESS);
    command_put_load(&p, offsetof(struct seccomp_data, nr));
    command_put_op(&p, BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1); /* x32 */
    command_put_answer(&p, SECCOMP_RET_KILL_PROCESS);
    if (flags & FILTER_COMMAND_APART)
        command_put_apart(&p, flags);
    command_put_files(&p, flags);
    if (flags & FILTER_COMMAND_ONE_GROUP)
        command_put_calls(&p, leaving, ARRAY_LEN(leaving), EPERM);
    command_put_answer(&p, SECCOMP_RET_ALLOW);
    return p.n;
}
