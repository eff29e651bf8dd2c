/* forbidden.h - system calls that no daemon of ours makes once it has read a foreign byte: front and egress load filters
 * that end whoever tries. Each adds what it alone can do without.
 */
#ifndef HUTCH_OS_FORBIDDEN_H
#define HUTCH_OS_FORBIDDEN_H

#include <sys/syscall.h>

/* clang-format off */
#define FORBIDDEN_CALLS \
    SYS_execve, SYS_execveat, SYS_ptrace, SYS_setns, SYS_unshare, SYS_mount, SYS_umount2, SYS_pivot_root, \
    SYS_chroot, SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_mount_setattr, \
    SYS_bpf, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_kexec_file_load, \
    SYS_process_vm_readv, SYS_process_vm_writev, SYS_perf_event_open, SYS_userfaultfd, SYS_add_key, SYS_request_key, \
    SYS_keyctl, SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setgroups, \
    SYS_setfsuid, SYS_setfsgid, SYS_capset, SYS_io_uring_setup, SYS_reboot, SYS_swapon, SYS_swapoff, SYS_acct, \
    SYS_quotactl, SYS_personality, SYS_mknod, SYS_mknodat, SYS_open_by_handle_at, SYS_pidfd_getfd, SYS_kcmp, \
    SYS_vhangup, SYS_syslog, SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_sethostname, SYS_setdomainname, \
    SYS_iopl, SYS_ioperm, SYS_process_madvise
/* clang-format on */

#endif
