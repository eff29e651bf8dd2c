#include "os/caps.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int caps_bound(uint64_t keep)
{
    for (unsigned cap = 0; cap < 64; cap++) {
        if (keep & (1ULL << cap))
            continue;
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0) {
            /* EINVAL on reading too marks the end: this kernel has no such capability. */
            if (errno == EINVAL && prctl(PR_CAPBSET_READ, cap, 0, 0, 0) < 0)
                return 0;
            return -1;
        }
    }
    return 0;
}

int caps_lock_securebits(int keep_root)
{
    unsigned long bits = SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED | SECBIT_KEEP_CAPS_LOCKED;
    if (!keep_root)
        bits |= SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED;
    return prctl(PR_SET_SECUREBITS, bits, 0, 0, 0);
}

int caps_set(uint64_t keep)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    for (unsigned i = 0; i < 2; i++) {
        data[i].effective = data[i].permitted = (uint32_t)(keep >> (32 * i));
        data[i].inheritable = 0;
    }
    return (int)syscall(SYS_capset, &head, data);
}

int caps_keep_all(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &head, data) < 0)
        return -1;
    for (unsigned i = 0; i < 2; i++)
        data[i].inheritable = data[i].permitted;
    if (syscall(SYS_capset, &head, data) < 0)
        return -1;
    for (unsigned cap = 0; cap < 64; cap++)
        if (data[cap / 32].permitted & (1U << cap % 32))
            (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0);
    return 0;
}

uint64_t caps_computer(void)
{
    static const unsigned caps[] = {
        CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER,     CAP_FSETID,      CAP_SETUID,           CAP_SETGID,
        CAP_KILL,  CAP_SETPCAP,      CAP_SYS_CHROOT, CAP_AUDIT_WRITE, CAP_NET_BIND_SERVICE,
    };
    uint64_t set = 0;
    for (unsigned i = 0; i < sizeof caps / sizeof caps[0]; i++)
        set |= 1ULL << caps[i];
    return set;
}
