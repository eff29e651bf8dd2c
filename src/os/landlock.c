#include "os/landlock.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

/* The structure and values of ABI 6 to 7; the kernel accepts a shorter structure and zeroes behind what it knows. */
struct ruleset_attr {
    uint64_t handled_access_fs;
    uint64_t handled_access_net; /* ABI 4 */
    uint64_t scoped;             /* ABI 6 */
};

enum {
    NET_BIND_TCP = 1 << 0,
    NET_CONNECT_TCP = 1 << 1,
    SCOPE_ABSTRACT_UNIX = 1 << 0,
    SCOPE_SIGNAL = 1 << 1,
    LOG_SAME_EXEC_OFF = 1 << 0,
    LOG_NEW_EXEC_ON = 1 << 1,
    LOG_SUBDOMAINS_OFF = 1 << 2,
};

#define FILE_RIGHTS                                                                              \
    (LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_READ_FILE | \
     LANDLOCK_ACCESS_FS_TRUNCATE | LANDLOCK_ACCESS_FS_IOCTL_DEV | LANDLOCK_ACCESS_FS_RESOLVE_UNIX)

static int create_ruleset(const struct ruleset_attr *attr, size_t size, unsigned flags)
{
    return (int)syscall(SYS_landlock_create_ruleset, attr, size, flags);
}

int landlock_abi(void)
{
    int abi = create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    return abi > 0 ? abi : 0;
}

/* File rights by the ABI that brought them. */
static uint64_t known_rights(int abi)
{
    uint64_t rights = LANDLOCK_ACCESS_FS_REFER - 1;
    if (abi >= 2)
        rights |= LANDLOCK_ACCESS_FS_REFER;
    if (abi >= 3)
        rights |= LANDLOCK_ACCESS_FS_TRUNCATE;
    if (abi >= 5)
        rights |= LANDLOCK_ACCESS_FS_IOCTL_DEV;
    if (abi >= 9)
        rights |= LANDLOCK_ACCESS_FS_RESOLVE_UNIX;
    return rights;
}

static unsigned log_flags(unsigned flags, int abi)
{
    if (abi < 7)
        return 0;
    /* By default a refusal logs nothing: a tenant must not be able to fill the host's audit log. */
    return flags & LANDLOCK_LOG ? LOG_NEW_EXEC_ON : LOG_SAME_EXEC_OFF | LOG_SUBDOMAINS_OFF;
}

static int ruleset_add_rule(int ruleset, const struct landlock_rule *rule, uint64_t handled, struct err *err)
{
    struct stat st;
    if (fstat(rule->fd, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "landlock: cannot look at descriptor %d of a rule", rule->fd);
    struct landlock_path_beneath_attr attr = {.allowed_access = rule->rights & handled, .parent_fd = rule->fd};
    if (!S_ISDIR(st.st_mode))
        attr.allowed_access &= FILE_RIGHTS; /* directory rights on a file are EINVAL */
    if (attr.allowed_access == 0)
        return 0; /* no rights at all are ENOMSG */
    if (syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &attr, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "landlock: cannot add the rule for descriptor %d", rule->fd);
    return 0;
}

int landlock_apply_abi(const struct landlock_rule *rules, size_t n, unsigned flags, int abi, struct err *err)
{
    if (abi < 1)
        return err_set(err, ERR_HOST, 0,
                       "this kernel has no Landlock; it needs CONFIG_SECURITY_LANDLOCK and \"landlock\" in lsm=");
    if ((flags & LANDLOCK_DENY_TCP) && abi < 4)
        return err_set(err, ERR_HOST, 0, "Landlock ABI %d cannot refuse TCP; it takes ABI 4 (Linux 6.7)", abi);
    struct ruleset_attr attr = {.handled_access_fs = known_rights(abi)};
    if (flags & LANDLOCK_FREE_READS)
        attr.handled_access_fs &= ~(uint64_t)LANDLOCK_READ;
    if (flags & LANDLOCK_DENY_TCP)
        attr.handled_access_net = NET_BIND_TCP | NET_CONNECT_TCP;
    if (abi >= 6 && !(flags & LANDLOCK_UNSCOPED))
        attr.scoped = SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL;
    _cleanup_close_ int ruleset = create_ruleset(&attr, sizeof attr, 0);
    if (ruleset < 0)
        return err_set(err, ERR_SETUP, errno, "landlock: cannot create a ruleset for ABI %d", abi);
    for (size_t i = 0; i < n; i++)
        if (ruleset_add_rule(ruleset, &rules[i], attr.handled_access_fs, err) < 0)
            return -1;
    if (syscall(SYS_landlock_restrict_self, ruleset, log_flags(flags, abi)) == 0)
        return 0;
    if (errno == E2BIG)
        return err_set(err, ERR_HOST, errno,
                       "landlock: 16 layers are in force already, this sandbox is nested too deeply");
    return err_set(err, ERR_SETUP, errno, "landlock: cannot restrict the process");
}

int landlock_apply(const struct landlock_rule *rules, size_t n, unsigned flags, struct err *err)
{
    return landlock_apply_abi(rules, n, flags, landlock_abi(), err);
}
