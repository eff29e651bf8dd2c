/* filter-rules.c - the filter's tables: why calls are refused, and which arguments matter. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "policy/run/filter-int.h"

/* Reasons complete the sentence "NAME is refused: ...". */
/* clang-format off */
const struct category_info categories[CAT_MAX] = {
    [CAT_NONE] = {"none", GRANT_ALLOW, false, 0,
        "it is allowed"},
    [CAT_MOUNT] = {"mount", GRANT_NEVER, true, 0,
        "mounts are the wall itself and are fixed before the command starts"},
    [CAT_CHROOT] = {"chroot", GRANT_COMPUTER, true, FILTER_COMPUTER,
        "changing the root directory needs a capability the command does not have"},
    [CAT_NAMESPACE] = {"namespace", GRANT_NEVER, true, 0,
        "new namespaces would give the command powers over the kernel that the wall takes away"},
    [CAT_CLONE3] = {"namespace", GRANT_NEVER, false, 0,
        "its flags lie in memory where a filter cannot see them; the C library falls back to clone"},
    [CAT_KEYS] = {"keys", GRANT_NEVER, true, 0,
        "kernel keyrings are shared with processes outside"},
    [CAT_BPF] = {"bpf", GRANT_NEVER, true, 0,
        "programs in the kernel act outside the sandbox"},
    [CAT_PERF] = {"perf", GRANT_ALLOW, true, 0,
        "performance counters observe more than the sandbox"},
    [CAT_TRACE] = {"trace", GRANT_DEBUGGER, true, FILTER_DEBUGGER,
        "tracing other processes is kept for the debugger profile"},
    [CAT_INSPECT] = {"inspect", GRANT_ALLOW, false, 0,
        "it looks into other processes or past path checks and is rarely needed"},
    [CAT_HANDLE] = {"handle", GRANT_NEVER, true, 0,
        "file handles bypass every path rule"},
    [CAT_ADMIN] = {"admin", GRANT_NEVER, true, 0,
        "it administers the whole machine"},
    [CAT_CLOCK] = {"clock", GRANT_NEVER, true, 0,
        "the clock belongs to the whole machine"},
    [CAT_HOSTNAME] = {"hostname", GRANT_NEVER, true, 0,
        "the host name is fixed before the command starts"},
    [CAT_NUMA] = {"numa", GRANT_ALLOW, false, 0,
        "memory placement affects other users of the machine"},
    [CAT_LDT] = {"ldt", GRANT_ALLOW, false, 0,
        "16-bit segments are a rich source of kernel defects"},
    [CAT_PERSONALITY] = {"personality", GRANT_ALLOW, true, 0,
        "this execution domain switches protections such as address randomisation off"},
    [CAT_IO_URING] = {"io_uring", GRANT_NEVER, false, 0,
        "rings perform calls that no filter sees; programs fall back to plain calls"},
    [CAT_MEMORY] = {"memory", GRANT_ALLOW, false, 0,
        "it has served many kernel exploits and has a fallback"},
    [CAT_SOCKET] = {"socket", GRANT_NEVER, true, 0,
        "only unix, IPv4, IPv6 and routing netlink sockets are available"},
    [CAT_PROTOCOL] = {"socket", GRANT_NEVER, true, 0,
        "only TCP, UDP and ICMP echo are available"},
    [CAT_FILE_FLAGS] = {"file-flags", GRANT_NEVER, false, 0,
        "inode flags outlive the sandbox"},
    [CAT_OBSOLETE] = {"obsolete", GRANT_NEVER, false, 0,
        "the kernel itself no longer has it, or only for itself"},
    [CAT_TERMINAL] = {"terminal", GRANT_NEVER, false, 0,
        "it could type into or reprogram the caller's terminal"},
    [CAT_PRCTL] = {"prctl", GRANT_NEVER, false, 0,
        "it rewrites what /proc says about the process"},
    [CAT_LISTENER] = {"listener", GRANT_NEVER, false, 0,
        "a second listener could answer calls in the supervisor's place"},
    [CAT_DEVICE] = {"device", GRANT_NEVER, true, 0,
        "device nodes and whiteouts reach past the wall; FIFOs and sockets can be made"},
    [CAT_SETID] = {"setid", GRANT_NEVER, false, 0,
        "a setuid or setgid file in a host directory would outlive the sandbox with the host's owner"},
    [CAT_AIO] = {"aio", GRANT_ALLOW, true, 0,
        "all sandboxes would share one table of such contexts (fs.aio-max-nr); programs fall back to plain calls"},
    [CAT_NETLINK] = {"netlink", GRANT_ALLOW, true, 0,
        "no limit counts the memory of routing sockets, so the supervisor makes them: 32 at a time, none without one"},
    [CAT_SOCKET_FILTER] = {"socket-filter", GRANT_ALLOW, true, 0,
        "the kernel's memory for compiled filters is shared with the whole machine"},
    [CAT_LEASE] = {"lease", GRANT_ALLOW, true, 0,
        "a lease holds up processes outside that open the file"},
    [CAT_CUSTOM] = {"policy", GRANT_ALLOW, false, 0,
        "the policy denies it"},
};
/* clang-format on */

const char *const category_words[CAT_MAX] = {
    [CAT_NETLINK] = "netlink", [CAT_SOCKET_FILTER] = "socket-filters", [CAT_LEASE] = "leases"};

static const struct {
    bool known;
    int eno;
    enum category cat;
} plain[SYSCALL_MAX + 1] = {
#define ALLOW                               ANSWER_ALLOW
#define SYSCALL(nr, name, answer, category) [nr] = {true, answer, CAT_##category},
#include "policy/run/syscalls.def"
#undef SYSCALL
#undef ALLOW
};

/* --- values ------------------------------------------------------------------------------------------------------- */

/* Headers of Debian 12 lack some of these, and kernel and C library headers do not always mix: numbers are the
 * contract. */
static const uint32_t af_unix[] = {AF_UNIX};
static const uint32_t af_inet[] = {AF_INET, AF_INET6};
static const uint32_t af_netlink[] = {AF_NETLINK};
static const uint32_t zero[] = {0};
static const uint32_t sol_socket[] = {1 /* SOL_SOCKET */};
static const uint32_t receive_buffer[] = {8 /* SO_RCVBUF; SO_RCVBUFFORCE needs a capability */};
static const uint32_t attach_filter[] = {26 /* SO_ATTACH_FILTER */, 50 /* SO_ATTACH_BPF */,
                                         51 /* SO_ATTACH_REUSEPORT_CBPF */, 52 /* SO_ATTACH_REUSEPORT_EBPF */};
static const uint32_t set_lease[] = {1024 /* F_SETLEASE */, 1040 /* F_SETDELEG, of directories */};
static const uint32_t one[] = {1};
static const uint32_t pair_types[] = {SOCK_STREAM, SOCK_SEQPACKET};
/* Type is listed too because a type alone (SOCK_SEQPACKET, SOCK_PACKET) makes the kernel load SCTP or switch the
 * family. */
static const uint32_t inet_types[] = {SOCK_STREAM, SOCK_DGRAM};
static const uint32_t inet_protocols[] = {0, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMP, IPPROTO_ICMPV6};
static const uint32_t raw_types[] = {SOCK_RAW, SOCK_PACKET};
static const uint32_t personalities[] = {0, PER_LINUX32, UNAME26, UNAME26 | PER_LINUX32, 0xffffffff /* query */};
static const uint32_t no_randomize[] = {ADDR_NO_RANDOMIZE};
static const uint32_t set_mm[] = {35 /* PR_SET_MM */};
static const uint32_t device_types[] = {S_IFCHR, S_IFBLK};
static const uint32_t terminal_requests[] = {
    0x5412 /* TIOCSTI */,    0x541c /* TIOCLINUX */,    0x541d /* TIOCCONS */,     0x5423 /* TIOCSETD */,
    0x4b3a /* KDSETMODE */,  0x4b45 /* KDSKBMODE */,    0x4b47 /* KDSKBENT */,     0x4b49 /* KDSKBSENT */,
    0x4b4b /* KDSKBDIACR */, 0x4b4d /* KDSETKEYCODE */, 0x4bfb /* KDSKBDIACRUC */,
};
static const uint32_t file_flag_requests[] = {
    0x40086602 /* FS_IOC_SETFLAGS */,
    0x40046602 /* FS_IOC32_SETFLAGS */,
    0x401c5820 /* FS_IOC_FSSETXATTR */,
    0x40087602 /* FS_IOC_SETVERSION */,
    0x40047602 /* FS_IOC32_SETVERSION */,
    0x40806685 /* FS_IOC_ENABLE_VERITY */,
    0x800c6613 /* FS_IOC_SET_ENCRYPTION_POLICY */,
    0x50009401 /* BTRFS_IOC_SNAP_CREATE: subvolumes do not count against the limit of the one they are in */,
    0x5000940e /* BTRFS_IOC_SUBVOL_CREATE */,
    0x50009417 /* BTRFS_IOC_SNAP_CREATE_V2 */,
    0x50009418 /* BTRFS_IOC_SUBVOL_CREATE_V2 */,
};
static const uint32_t namespace_requests[] = {0xb701 /* NS_GET_USERNS */, 0xb702 /* NS_GET_PARENT */};

enum {
    /* CLONE_NEWTIME shares its bit with the exit signal: clone cannot ask for it. */
    NAMESPACE_FLAGS =
        CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP,
    CREATE_FLAGS = O_CREAT | (O_TMPFILE & ~O_DIRECTORY),
    SETID_BITS = S_ISUID | S_ISGID,
    TYPE_MASK = 0xf,       /* SOCK_TYPE_MASK */
    NEW_LISTENER = 1 << 3, /* SECCOMP_FILTER_FLAG_NEW_LISTENER */
};

/* clang-format off */
#define WHOLE             0xffffffffU
#define IN(arg, list)     {COND_IN, arg, WHOLE, list, ARRAY_LEN(list)}
#define IN_MASKED(arg, mask, list) {COND_IN, arg, mask, list, ARRAY_LEN(list)}
#define BITS(arg, mask)   {COND_BITS, arg, mask, NULL, 0}
#define KEY               {COND_KEY, 0, WHOLE, NULL, 0} /* see filter_set_key() */
#define ALLOW             {ANSWER_ALLOW, CAT_NONE}
#define TELL              {ANSWER_TELL, CAT_NONE}

/* Mode bits are 16 bits wide in the kernel, so masks are right whatever is above them. */
#define NO_SETID(name, arg) \
    {NR_##name, FILTER_HOST_IDS, 0, {BITS(arg, SETID_BITS)}, {EPERM, CAT_SETID}, \
     "setuid or setgid bit, host directories"}
#define NO_SETID_OPEN(name, flags, mode)                                                                            \
    {NR_##name, FILTER_HOST_IDS, 0, {BITS(flags, CREATE_FLAGS), BITS(mode, SETID_BITS)}, {EPERM, CAT_SETID},        \
     "setuid or setgid bit for a new file, host directories"}
#define NO_DEVICE(name, arg) \
    {NR_##name, 0, 0, {IN_MASKED(arg, S_IFMT, device_types)}, {EPERM, CAT_DEVICE}, "character or block device"}
#define EXPLAINED(name)    {NR_##name, FILTER_EXPLAIN, 0, {{0}}, TELL, NULL}
#define LEARNED(name)      {NR_##name, FILTER_LEARN, 0, {{0}}, TELL, NULL}

/* Tried from top to bottom; the first row of a call whose conditions all hold answers. */
const struct check checks[] = {
    {NR_clone, 0, 0, {BITS(0, NAMESPACE_FLAGS)}, {EPERM, CAT_NAMESPACE}, "any namespace flag"},

    {NR_socket, 0, FILTER_NO_UNIX, {IN(0, af_unix)}, ALLOW, "AF_UNIX (not in profile no-unix)"},
    {NR_socket, 0, 0, {IN(0, af_inet), IN_MASKED(1, TYPE_MASK, inet_types), IN(2, inet_protocols)}, ALLOW,
     "AF_INET, AF_INET6 with TCP, UDP or ICMP echo"},
    {NR_socket, FILTER_KEYED, 0, {IN(0, af_netlink), IN(2, zero), KEY}, ALLOW, NULL},
    {NR_socket, 0, 0, {IN(0, af_netlink), IN(2, zero)}, {ANSWER_NETLINK, CAT_NETLINK}, "AF_NETLINK with NETLINK_ROUTE"},
    {NR_socket, 0, 0, {IN(0, af_inet), IN_MASKED(1, TYPE_MASK, raw_types)}, {EPERM, CAT_PROTOCOL},
     "raw and packet sockets"},
    {NR_socket, 0, 0, {IN(0, af_inet)}, {EPROTONOSUPPORT, CAT_PROTOCOL}, "other internet protocols (SCTP, MPTCP, ...)"},
    /* A datagram pair can be disconnected and aimed at any path: only the other types are as good as pipes. */
    {NR_socketpair, FILTER_NO_UNIX, 0, {IN(0, af_unix), IN_MASKED(1, TYPE_MASK, pair_types)}, ALLOW,
     "AF_UNIX stream and seqpacket (profile no-unix)"},
    {NR_socketpair, 0, FILTER_NO_UNIX, {IN(0, af_unix)}, ALLOW, "AF_UNIX"},

    {NR_setsockopt, 0, 0, {IN(1, sol_socket), IN(2, attach_filter)}, {EPERM, CAT_SOCKET_FILTER},
     "SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF and _EBPF"},
    {NR_setsockopt, FILTER_KEYED, 0, {IN(1, sol_socket), IN(2, receive_buffer), KEY}, ALLOW, NULL},
    {NR_setsockopt, FILTER_NOTIFY, 0, {IN(1, sol_socket), IN(2, receive_buffer)}, {ANSWER_BUFFER, CAT_NETLINK},
     "SO_RCVBUF"},
    {NR_fcntl, 0, 0, {IN(1, set_lease)}, {EACCES, CAT_LEASE}, "F_SETLEASE, F_SETDELEG"},
    {NR_pidfd_getfd, FILTER_KEYED, 0, {KEY}, ALLOW, NULL},

    {NR_ioctl, 0, 0, {IN(1, terminal_requests)}, {EPERM, CAT_TERMINAL},
     "TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD, console keyboard and mode (KDSK*, KDSET*)"},
    {NR_ioctl, 0, 0, {IN(1, file_flag_requests)}, {EPERM, CAT_FILE_FLAGS},
     "FS_IOC_SETFLAGS and its kin, new subvolumes of btrfs"},
    {NR_ioctl, 0, 0, {IN(1, namespace_requests)}, {EPERM, CAT_NAMESPACE}, "NS_GET_USERNS, NS_GET_PARENT"},
    {NR_prctl, 0, 0, {IN(0, set_mm)}, {EPERM, CAT_PRCTL}, "PR_SET_MM"},
    {NR_seccomp, 0, 0, {IN(0, one), BITS(1, NEW_LISTENER)}, {EPERM, CAT_LISTENER}, "SECCOMP_FILTER_FLAG_NEW_LISTENER"},
    {NR_personality, 0, 0, {IN(0, personalities)}, ALLOW, "PER_LINUX, PER_LINUX32, UNAME26, the query"},
    {NR_personality, FILTER_DEBUGGER, 0, {IN(0, no_randomize)}, ALLOW, "ADDR_NO_RANDOMIZE (profile debugger)"},

    NO_DEVICE(mknod, 1),
    NO_DEVICE(mknodat, 2),

    NO_SETID(chmod, 1),
    NO_SETID(fchmod, 1),
    NO_SETID(fchmodat, 2),
    NO_SETID(fchmodat2, 2),
    NO_SETID(creat, 1),
    NO_SETID(mkdir, 1),
    NO_SETID(mkdirat, 2),
    NO_SETID(mknod, 1),
    NO_SETID(mknodat, 2),
    NO_SETID_OPEN(open, 1, 2),
    NO_SETID_OPEN(openat, 2, 3),
    {NR_openat2, FILTER_HOST_IDS, 0, {{0}}, {ENOSYS, CAT_SETID}, "always, host directories: its mode is out of sight"},

    LEARNED(execve),
    LEARNED(execveat),
    EXPLAINED(open),
    EXPLAINED(openat),
    EXPLAINED(openat2), /* its flags are out of sight too, and few programs use it */
    EXPLAINED(creat),
    EXPLAINED(mkdir),
    EXPLAINED(mkdirat),
    EXPLAINED(mknod),
    EXPLAINED(mknodat),
    EXPLAINED(rename),
    EXPLAINED(renameat),
    EXPLAINED(renameat2),
    EXPLAINED(unlink),
    EXPLAINED(unlinkat),
    EXPLAINED(rmdir),
    EXPLAINED(link),
    EXPLAINED(linkat),
    EXPLAINED(symlink),
    EXPLAINED(symlinkat),
    EXPLAINED(truncate),
    EXPLAINED(chmod),
    EXPLAINED(fchmodat),
    EXPLAINED(fchmodat2),
    EXPLAINED(chown),
    EXPLAINED(lchown),
    EXPLAINED(fchownat),
    EXPLAINED(utime),
    EXPLAINED(utimes),
    EXPLAINED(futimesat),
    /* Without a path it is futimens(), which tar and cp call for every file they were able to open. */
    {NR_utimensat, FILTER_EXPLAIN, 0, {IN(1, zero)}, ALLOW, NULL},
    EXPLAINED(utimensat),
    EXPLAINED(setxattr),
    EXPLAINED(lsetxattr),
    EXPLAINED(setxattrat),
    EXPLAINED(removexattr),
    EXPLAINED(lremovexattr),
    EXPLAINED(removexattrat),
};
/* clang-format on */
const size_t nchecks = ARRAY_LEN(checks);

/* --- decisions ---------------------------------------------------------------------------------------------------- */

unsigned rules_complete_flags(unsigned flags)
{
    if (flags & FILTER_LEARN)
        flags |= FILTER_EXPLAIN;
    if (flags & (FILTER_EXPLAIN | FILTER_KEYED))
        flags |= FILTER_NOTIFY;
    return flags;
}

bool rules_builtin_flags(unsigned flags)
{
    const unsigned ids = FILTER_HOST_IDS | FILTER_COMPUTER, profile = FILTER_DEBUGGER | FILTER_NO_UNIX;
    const unsigned unkeyed = FILTER_HOST_IDS | FILTER_EXPLAIN | FILTER_LEARN;
    return (flags & ~(unsigned)FILTER_FLAG_ALL) == 0 && (flags & ids) != ids && (flags & profile) != profile &&
           ((flags & FILTER_KEYED) == 0 || (flags & unkeyed) == 0) && flags == rules_complete_flags(flags);
}

bool rules_applies(const struct check *c, int nr, unsigned flags)
{
    return c->nr == nr && (flags & c->with) == c->with && (flags & c->without) == 0;
}

struct answer rules_plain(int nr, unsigned flags, const struct overrides *o)
{
    if (nr < 0 || nr > SYSCALL_MAX || !plain[nr].known)
        return (struct answer){ENOSYS, CAT_NONE};
    if (o && o->of[nr] == OVERRIDE_DENY)
        return (struct answer){EPERM, CAT_CUSTOM};
    if ((o && o->of[nr] == OVERRIDE_ALLOW) || (flags & categories[plain[nr].cat].opened))
        return (struct answer){ANSWER_ALLOW, CAT_NONE};
    return (struct answer){plain[nr].eno, plain[nr].cat};
}

bool rules_checked(int nr, const struct overrides *o)
{
    return !o || nr < 0 || nr > SYSCALL_MAX || o->of[nr] == OVERRIDE_NONE;
}

struct answer rules_answer(const struct check *c, const struct overrides *o)
{
    enum override said = o ? (enum override)o->word[c->answer.cat] : OVERRIDE_NONE;
    if (said == OVERRIDE_DENY && c->answer.eno == ANSWER_NETLINK)
        return (struct answer){EAFNOSUPPORT, CAT_CUSTOM};
    /* Without netlink sockets, buffer sizes need no supervision. */
    if (said == OVERRIDE_ALLOW || (said == OVERRIDE_DENY && c->answer.eno == ANSWER_BUFFER))
        return (struct answer){ANSWER_ALLOW, CAT_NONE};
    return c->answer;
}

static bool cond_holds(const struct cond *c, const struct seccomp_data *d)
{
    uint32_t v = (uint32_t)d->args[c->arg] & c->mask;
    if (c->op == COND_KEY)
        return d->args[0] >> 32 == FILTER_KEY_FIRST && d->args[1] >> 32 == FILTER_KEY_SECOND;
    if (c->op == COND_BITS)
        return v != 0;
    for (size_t i = 0; i < c->nvalues; i++)
        if (c->values[i] == v)
            return true;
    return false;
}

static bool check_holds(const struct check *c, const struct seccomp_data *d)
{
    for (const struct cond *k = c->conds; k->op != COND_END; k++)
        if (!cond_holds(k, d))
            return false;
    return true;
}

struct answer rules_decide(const struct seccomp_data *d, unsigned flags, const struct overrides *o)
{
    if (rules_checked(d->nr, o))
        for (size_t i = 0; i < nchecks; i++)
            if (rules_applies(&checks[i], d->nr, flags) && check_holds(&checks[i], d))
                return rules_answer(&checks[i], o);
    return rules_plain(d->nr, flags, o);
}

uint32_t rules_action(struct answer a, unsigned flags)
{
    if (a.eno == ANSWER_ALLOW)
        return SECCOMP_RET_ALLOW;
    if (a.eno == ANSWER_NETLINK && !(flags & FILTER_NOTIFY))
        return SECCOMP_RET_ERRNO | EAFNOSUPPORT;
    if (a.eno < 0 || (categories[a.cat].notify && (flags & FILTER_NOTIFY)))
        return SECCOMP_RET_USER_NOTIF;
    return SECCOMP_RET_ERRNO | (uint32_t)a.eno;
}
