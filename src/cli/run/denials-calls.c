/* denials-calls.c - describes refused system calls: the call, its telling argument, the reason, the grant. */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/run/denials-int.h"
#include "policy/run/explain.h"
#include "policy/run/filter.h"
#include "policy/run/syscalls.h"

struct word {
    uint64_t value;
    const char *name;
};

static const struct word families[] = {
    {AF_UNIX, "AF_UNIX"},       {AF_INET, "AF_INET"},
    {AF_INET6, "AF_INET6"},     {AF_NETLINK, "AF_NETLINK"},
    {AF_PACKET, "AF_PACKET"},   {AF_KEY, "AF_KEY"},
    {AF_ALG, "AF_ALG"},         {AF_VSOCK, "AF_VSOCK"},
    {AF_CAN, "AF_CAN"},         {AF_BLUETOOTH, "AF_BLUETOOTH"},
    {AF_TIPC, "AF_TIPC"},       {AF_RDS, "AF_RDS"},
    {AF_NFC, "AF_NFC"},         {AF_XDP, "AF_XDP"},
    {AF_SMC, "AF_SMC"},         {AF_RXRPC, "AF_RXRPC"},
    {AF_IB, "AF_IB"},           {AF_KCM, "AF_KCM"},
    {AF_QIPCRTR, "AF_QIPCRTR"}, {AF_APPLETALK, "AF_APPLETALK"},
    {AF_IPX, "AF_IPX"},         {AF_X25, "AF_X25"},
    {AF_LLC, "AF_LLC"},         {AF_PPPOX, "AF_PPPOX"},
    {AF_PHONET, "AF_PHONET"},   {AF_IEEE802154, "AF_IEEE802154"},
    {AF_CAIF, "AF_CAIF"},       {AF_MPLS, "AF_MPLS"},
};

static const struct word socket_types[] = {
    {SOCK_STREAM, "SOCK_STREAM"}, {SOCK_DGRAM, "SOCK_DGRAM"},         {SOCK_RAW, "SOCK_RAW"},
    {SOCK_RDM, "SOCK_RDM"},       {SOCK_SEQPACKET, "SOCK_SEQPACKET"}, {SOCK_PACKET, "SOCK_PACKET"},
};

static const struct word namespaces[] = {
    {CLONE_NEWUSER, "CLONE_NEWUSER"}, {CLONE_NEWNS, "CLONE_NEWNS"},   {CLONE_NEWPID, "CLONE_NEWPID"},
    {CLONE_NEWNET, "CLONE_NEWNET"},   {CLONE_NEWIPC, "CLONE_NEWIPC"}, {CLONE_NEWUTS, "CLONE_NEWUTS"},
    {0x02000000, "CLONE_NEWCGROUP"},
};
static const struct word time_namespace = {0x00000080, "CLONE_NEWTIME"};

static const struct word ptrace_requests[] = {
    {PTRACE_TRACEME, "PTRACE_TRACEME"},   {PTRACE_ATTACH, "PTRACE_ATTACH"},     {PTRACE_SEIZE, "PTRACE_SEIZE"},
    {PTRACE_PEEKTEXT, "PTRACE_PEEKTEXT"}, {PTRACE_PEEKDATA, "PTRACE_PEEKDATA"}, {PTRACE_POKEDATA, "PTRACE_POKEDATA"},
    {PTRACE_CONT, "PTRACE_CONT"},         {PTRACE_SYSCALL, "PTRACE_SYSCALL"},   {PTRACE_DETACH, "PTRACE_DETACH"},
    {PTRACE_GETREGS, "PTRACE_GETREGS"},   {PTRACE_SETREGS, "PTRACE_SETREGS"},
};

static const struct word netlink_protocols[] = {
    {0, "NETLINK_ROUTE"},       {4, "NETLINK_SOCK_DIAG"},  {6, "NETLINK_XFRM"},       {9, "NETLINK_AUDIT"},
    {10, "NETLINK_FIB_LOOKUP"}, {11, "NETLINK_CONNECTOR"}, {12, "NETLINK_NETFILTER"}, {15, "NETLINK_KOBJECT_UEVENT"},
    {16, "NETLINK_GENERIC"},    {21, "NETLINK_CRYPTO"},
};
static const struct word socket_options[] = {
    {26, "SO_ATTACH_FILTER"},
    {50, "SO_ATTACH_BPF"},
    {51, "SO_ATTACH_REUSEPORT_CBPF"},
    {52, "SO_ATTACH_REUSEPORT_EBPF"},
};
static const struct word file_commands[] = {{1024, "F_SETLEASE"}, {1040, "F_SETDELEG"}};

static void add_word(struct buf *b, const struct word *v, size_t n, uint64_t value)
{
    for (size_t i = 0; i < n; i++)
        if (v[i].value == value) {
            buf_addf(b, " %s", v[i].name);
            return;
        }
    buf_addf(b, " %#llx", (unsigned long long)value);
}

static void add_flags(struct buf *b, uint64_t value, bool with_time)
{
    char sep = ' ';
    for (size_t i = 0; i < ARRAY_LEN(namespaces); i++)
        if (value & namespaces[i].value) {
            buf_addf(b, "%c%s", sep, namespaces[i].name);
            sep = '|';
        }
    if (with_time && (value & time_namespace.value))
        buf_addf(b, "%c%s", sep, time_namespace.name);
}

static void add_string(struct buf *b, pid_t pid, uint64_t addr)
{
    char s[DENIALS_SUBJECT_MAX];
    if (pid != 0 && denials_read_string(pid, addr, s, sizeof s) && *s)
        buf_addf(b, " %s", s);
}

/* The number of the argument that holds a path or name, or -1. */
static int string_argument(int nr)
{
    switch (nr) {
    case NR_umount2:
    case NR_pivot_root:
    case NR_chroot:
    case NR_mknod:
    case NR_fsopen:
    case NR_swapon:
    case NR_swapoff:
    case NR_acct:
    case NR_add_key:
    case NR_request_key:
        return 0;
    case NR_mount:
    case NR_mknodat:
    case NR_open_tree:
    case NR_fspick:
    case NR_mount_setattr:
    case NR_name_to_handle_at:
        return 1;
    case NR_move_mount:
        return 3;
    default:
        return -1;
    }
}

void denials_call_subject(const struct seccomp_data *call, pid_t pid, struct buf *ret)
{
    const uint32_t arg = (uint32_t)call->args[0];
    const char *name = syscall_name(call->nr);
    int string = string_argument(call->nr);
    if (name)
        buf_adds(ret, name);
    else
        buf_addf(ret, "system call %d", call->nr);
    switch (call->nr) {
    case NR_socket:
    case NR_socketpair:
        add_word(ret, families, ARRAY_LEN(families), arg);
        if (arg == AF_INET || arg == AF_INET6)
            add_word(ret, socket_types, ARRAY_LEN(socket_types), call->args[1] & 0xf);
        if (arg == AF_NETLINK)
            add_word(ret, netlink_protocols, ARRAY_LEN(netlink_protocols), (uint32_t)call->args[2]);
        break;
    case NR_setsockopt:
        add_word(ret, socket_options, ARRAY_LEN(socket_options), (uint32_t)call->args[2]);
        break;
    case NR_fcntl:
        add_word(ret, file_commands, ARRAY_LEN(file_commands), (uint32_t)call->args[1]);
        break;
    case NR_unshare:
        add_flags(ret, arg, true);
        break;
    case NR_clone:
        add_flags(ret, arg, false);
        break;
    case NR_setns:
        add_flags(ret, (uint32_t)call->args[1], true);
        break;
    case NR_ptrace:
        add_word(ret, ptrace_requests, ARRAY_LEN(ptrace_requests), arg);
        break;
    case NR_personality:
    case NR_bpf:
    case NR_keyctl:
        buf_addf(ret, " %#x", arg);
        break;
    default:
        if (string >= 0)
            add_string(ret, pid, call->args[string]);
    }
}

/* Adds the line of a document that would allow the call, unless none can or a ceiling forbids it. */
static void call_add_grant(const struct denials *d, const struct seccomp_data *call, const struct filter_denial *why,
                           struct denial *x)
{
    _cleanup_buf_ struct buf line = {0}, flag = {0}, source = {0};
    const char *rule = NULL;
    policy_grant_for_syscall(d->policy, call->nr, why->word, &line, &flag, &rule, &source);
    x->rule = xstrdup(rule ? rule : "syscalls.profile");
    if (source.n == 0)
        origin_add(&source, &d->policy->profile_origin);
    x->source = xstrdup(buf_str(&source));
    switch (why->grant) {
    case GRANT_NEVER:
        buf_adds(&x->hint, "; no policy can allow it");
        return;
    case GRANT_COMPUTER:
        buf_adds(&x->grant_policy, "privilege: computer");
        buf_adds(&x->grant_flag, "--privilege computer");
        return;
    case GRANT_DEBUGGER:
        buf_adds(&x->hint, "; --profile debugger allows it and its kin");
        break;
    case GRANT_ALLOW:
        break;
    }
    buf_adds(&x->grant_policy, buf_str(&line));
    buf_adds(&x->grant_flag, buf_str(&flag));
}

void denials_call_refused(struct denials *d, const struct seccomp_data *call, const char *subject)
{
    struct filter_denial why;
    struct denial *x = denials_count(d, "syscall", "", subject, 1);
    if (!x)
        return;
    if (!filter_denial_of(d->flags, call, &why)) /* a call that the filter need not have reported */
        why = (struct filter_denial){EPERM, "unknown", "nothing is known about it", GRANT_NEVER, NULL};
    x->eno = why.eno;
    x->category = why.category;
    buf_adds(&x->hint, why.reason);
    call_add_grant(d, call, &why, x);
}
