/* rights.c - a command with fewer rights than its sandbox: one more Landlock layer and one more filter, in the child.
 *
 * no_new_privs makes them possible without capabilities, and keeps setuid programs from shedding them. The layer makes a
 * domain: processes outside of it cannot be traced or looked into (/proc/PID/mem, root, fd), and where the kernel can (ABI
 * 6) get no signals. What Landlock does not look at, the filter refuses.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "init/init-int.h"
#include "os/landlock.h"
#include "os/seccomp.h"
#include "policy/run/filter-command.h"

enum {
    OWN_UID_FIRST = 61184, /* no package of a distribution uses these: systemd gives them to services in the same way */
    OWN_UIDS = 4096,
    LANDLOCK_TCP_ABI = 4,
    LANDLOCK_TRUNCATE_ABI = 3,
    PLACES_MAX = INIT_WRITE_MAX + 8,
};

static bool rights_uid_lives(const struct init *g, uid_t uid)
{
    for (uint32_t i = 0; i < g->ncommands; i++)
        if (g->command[i].own_uid == uid && g->command[i].state != COMMAND_FREE && g->command[i].state != COMMAND_ENDED)
            return true;
    return false;
}

uid_t rights_new_uid(struct init *g)
{
    uint32_t start = 0;
    if (g->own_uid == 0) {
        (void)!getrandom(&start, sizeof start, 0);
        g->own_uid = OWN_UID_FIRST + start % OWN_UIDS;
    }
    for (int i = 0; i < OWN_UIDS; i++) { /* fewer commands can live */
        g->own_uid = OWN_UID_FIRST + (g->own_uid - OWN_UID_FIRST + 1) % OWN_UIDS;
        if (!rights_uid_lives(g, g->own_uid))
            break;
    }
    return g->own_uid;
}

bool rights_need_group(const struct init_rights *r) { return r->time_ms || r->output_max; }

static int rights_fail(struct spawn_report *ret, enum init_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int rights_fail(struct spawn_report *ret, enum init_code code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(ret->text, sizeof ret->text, fmt, ap);
    va_end(ap);
    ret->code = code;
    return -1;
}

static struct landlock_rule rules[PLACES_MAX];
static size_t nrules;

static int rights_open(const char *path, uint64_t flags)
{
    /* No magic links: /proc/self/fd is init's here. */
    struct open_how how = {.flags = O_PATH | O_CLOEXEC | flags, .resolve = RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
}

/* Devices without a memory: hardly a program works without them. */
static void rights_add_devices(int tty)
{
    static const char *const devices[] = {"/dev/null",   "/dev/zero",    "/dev/full",
                                          "/dev/random", "/dev/urandom", "/dev/tty"};
    for (size_t i = 0; i < ARRAY_LEN(devices); i++) {
        struct stat st;
        int fd = rights_open(devices[i], O_NOFOLLOW);
        if (fd >= 0 && fstat(fd, &st) == 0 && S_ISCHR(st.st_mode))
            rules[nrules++] = (struct landlock_rule){.fd = fd, .rights = LANDLOCK_DEVICE};
    }
    if (tty >= 0)
        rules[nrules++] = (struct landlock_rule){.fd = tty, .rights = LANDLOCK_DEVICE};
}

/* "~" and "~/x" are below the home; "~x" is a name like others. */
static bool rights_is_below_home(const char *path) { return path[0] == '~' && (path[1] == '\0' || path[1] == '/'); }

const char *rights_relative_path(const struct init_rights *r)
{
    for (size_t i = 0; i < r->nwrite; i++)
        if (r->write[i][0] != '/' && !rights_is_below_home(r->write[i]))
            return r->write[i];
    return NULL;
}

static int rights_add_paths(const struct init_rights *r, const char *home, struct spawn_report *ret)
{
    for (size_t i = 0; i < r->nwrite; i++) {
        char path[INIT_PATH_MAX];
        if (rights_is_below_home(r->write[i]))
            paths_resolve(path, home, NULL, r->write[i]);
        else
            (void)snprintf(path, sizeof path, "%s", r->write[i]);
        int fd = rights_open(path, 0);
        if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
            return rights_fail(ret, INIT_INVALID, "write: '%.160s' does not exist in the sandbox; make it first", path);
        if (fd < 0)
            return rights_fail(ret, INIT_DENIED, "write: '%.160s' cannot be opened: %s", path, strerror(errno));
        rules[nrules++] = (struct landlock_rule){.fd = fd, .rights = LANDLOCK_WRITE};
    }
    return 0;
}

/* Reading is not looked at. A command that may write everywhere gets the layer for its domain. */
static int rights_apply_landlock(const struct init_rights *r, const char *home, int tty, int abi,
                                 struct spawn_report *ret)
{
    struct err err = {0};
    bool tcp = (r->flags & INIT_RIGHTS_NO_NETWORK) && abi >= LANDLOCK_TCP_ABI;
    if (r->flags & INIT_RIGHTS_WRITE) {
        rights_add_devices(tty);
        if (rights_add_paths(r, home, ret) < 0)
            return -1;
    } else {
        int root = rights_open("/", 0);
        if (root < 0)
            return rights_fail(ret, INIT_IO, "open /: %s", strerror(errno));
        rules[nrules++] = (struct landlock_rule){.fd = root, .rights = LANDLOCK_WRITE};
    }
    if (landlock_apply_abi(rules, nrules, LANDLOCK_FREE_READS | (tcp ? LANDLOCK_DENY_TCP : 0U), abi, &err) < 0)
        return rights_fail(ret, INIT_STATE, "the rights of this command cannot be put in force: %.160s", err.msg);
    return 0;
}

static int rights_apply_filter(const struct init_rights *r, int abi, struct spawn_report *ret)
{
    struct sock_filter program[FILTER_COMMAND_MAX];
    struct err err = {0};
    bool write = r->flags & INIT_RIGHTS_WRITE, network = r->flags & INIT_RIGHTS_NO_NETWORK;
    unsigned flags = (write || network ? FILTER_COMMAND_APART : 0U) | (network ? FILTER_COMMAND_NO_NETWORK : 0U) |
                     (write && r->nwrite == 0 ? FILTER_COMMAND_READ_ONLY : 0U) |
                     (write && abi < LANDLOCK_TRUNCATE_ABI ? FILTER_COMMAND_NO_TRUNCATE : 0U) |
                     (rights_need_group(r) ? FILTER_COMMAND_ONE_GROUP : 0U);
    if (seccomp_load(program, filter_command(flags, program), 0, NULL, &err) < 0)
        return rights_fail(ret, INIT_STATE, "the rights of this command cannot be put in force: %.160s", err.msg);
    return 0;
}

int rights_apply_abi(const struct init_rights *r, const char *home, int tty, int abi, struct spawn_report *ret)
{
    bool domain = r->flags & (INIT_RIGHTS_WRITE | INIT_RIGHTS_NO_NETWORK);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return rights_fail(ret, INIT_IO, "no_new_privs: %s", strerror(errno));
    if (domain && rights_apply_landlock(r, home, tty, abi, ret) < 0)
        return -1;
    return rights_apply_filter(r, abi, ret);
}

int rights_apply(const struct init_rights *r, const char *home, int tty, struct spawn_report *ret)
{
    return rights_apply_abi(r, home, tty, landlock_abi(), ret);
}
