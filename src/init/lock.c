/* lock.c - irreversible steps: drops rights of init and of the processes that it starts. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "init/init-int.h"
#include "os/caps.h"
#include "os/landlock.h"
#include "os/seccomp.h"
#include "os/title.h"
#include "policy/run/filter.h"

enum { PLACES_MAX = 128 };

#define CAP(name) (1ULL << CAP_##name)
/* SYS_PTRACE is for os/notified.h: init takes a descriptor of a command to set its buffer. */
#define INIT_CAPS                                                                                          \
    (CAP(SETUID) | CAP(SETGID) | CAP(SETPCAP) | CAP(CHOWN) | CAP(DAC_OVERRIDE) | CAP(FOWNER) | CAP(KILL) | \
     CAP(SYS_PTRACE))

/* Protects init from the processes that it starts; the commands' filter, which holds for both, refuses the rest. */
#define NUMBER    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define ANSWER(v) BPF_STMT(BPF_RET | BPF_K, (v))

/* Root inside has init's uid and could set init's limits: with limits of 0 pid 1 could do nothing. */
#define NOT_ON_INIT(nr)                                                             \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##nr, 0, 4),                            \
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])), \
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 1), ANSWER(SECCOMP_RET_ERRNO | EPERM), ANSWER(SECCOMP_RET_ALLOW)

static const struct sock_filter own_filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
    ANSWER(SECCOMP_RET_KILL_PROCESS),
    NUMBER,
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1), /* x32 */
    ANSWER(SECCOMP_RET_KILL_PROCESS),
    NOT_ON_INIT(prlimit64),
    NOT_ON_INIT(sched_setaffinity),
    NOT_ON_INIT(sched_setscheduler),
    NOT_ON_INIT(sched_setparam),
    NOT_ON_INIT(sched_setattr),
    ANSWER(SECCOMP_RET_ALLOW),
};

void lock_begin(void)
{
    sigset_t all;
    struct rlimit files;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL);
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    (void)prctl(PR_SET_NAME, "hutch-init", 0, 0, 0);
    title_forget("hutch-init"); /* keeper's command line and environment */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    (void)umask(022);
}

/* Opened with init's rights and applied after these are dropped: a place may lie where the user cannot look. */
static struct landlock_rule rules[PLACES_MAX];
static size_t nrules;

int lock_open_places(const struct init *g)
{
    const struct init_args *a = g->args;
    nrules = 0;
    for (size_t i = 0; i < a->nplaces; i++) {
        int fd = nrules < PLACES_MAX ? open(a->places[i].path, O_PATH | O_CLOEXEC) : -1;
        if (fd < 0)
            return -1;
        rules[nrules++] = (struct landlock_rule){.fd = fd, .rights = a->places[i].rights};
    }
    return 0;
}

static int apply_landlock(const struct init_args *a, struct err *err)
{
    unsigned flags = LANDLOCK_UNSCOPED | (a->flags & INIT_FREE_READS ? LANDLOCK_FREE_READS : 0U);
    int r = nrules ? landlock_apply(rules, nrules, flags, err) : 0;
    for (size_t i = 0; i < nrules; i++)
        (void)close(rules[i].fd);
    nrules = 0;
    return r;
}

/* Loads the commands' filter in init, once: one listener serves the whole sandbox, and without no_new_privs, which
 * would break sudo, only init may load it. */
static int load_keyed(struct init *g, struct err *err)
{
    const struct init_args *a = g->args;
    size_t size = a->nfilter * sizeof a->filter[0];
    struct sock_filter *own = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED)
        return err_set(err, ERR_SETUP, errno, "copy the filter");
    if (getrandom(g->key, sizeof g->key, 0) != sizeof g->key)
        return err_set(err, ERR_SETUP, errno, "make the key of the filter");
    memcpy(own, a->filter, size);
    (void)filter_set_key(own, a->nfilter, g->key);
    g->notified = (struct notified){.key = g->key, .others = -1};
    int r = seccomp_load(own, a->nfilter, SECCOMP_LOAD_LISTENER, &g->notify, err);
    (void)munmap(own, size);
    return r;
}

static int lock_load_filter(struct init *g, struct err *err)
{
    const struct init_args *a = g->args;
    if (!(a->filter_flags & FILTER_KEYED))
        return seccomp_load(a->filter, a->nfilter, 0, NULL, err);
    if (load_keyed(g, err) < 0)
        return -1;
    (void)seccomp_sync_wake(g->notify);
    if (init_watch(g, g->notify, EPOLLIN, KIND_NOTIFY, 0, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "listen to refused calls");
    return 0;
}

static int take_privileges(struct init *g, struct err *err)
{
    const struct init_args *a = g->args;
    bool strict = a->flags & INIT_STRICT;
    if (seccomp_load(own_filter, ARRAY_LEN(own_filter), 0, NULL, err) < 0)
        return -1;
    /* Without no_new_privs, which would break sudo, the restrictions for commands hold for init as well. */
    if (!strict && lock_open_places(g) < 0)
        return err_set(err, ERR_SETUP, errno, "open the places for Landlock");
    if (!strict && apply_landlock(a, err) < 0)
        return -1;
    if (a->nfilter && lock_load_filter(g, err) < 0)
        return -1;
    /* init never execs, so the bounding set matters to its children only. */
    if (caps_bound(strict ? CAPS_NONE : caps_computer()) < 0)
        return err_set(err, ERR_SETUP, errno, "drop the capability bounding set");
    if (caps_lock_securebits(!strict) < 0)
        return err_set(err, ERR_SETUP, errno, "lock the securebits");
    if (caps_set(INIT_CAPS) < 0)
        return err_set(err, ERR_SETUP, errno, "drop capabilities");
    return 0;
}

int lock_bound(struct init *g, char *text, size_t size)
{
    struct err err = {0};
    if (take_privileges(g, &err) == 0)
        return 0;
    (void)snprintf(text, size, "%.240s", err.msg);
    return -1;
}

int lock_become(const struct init *g, const struct user *u, const char **step)
{
    bool one = g->args->flags & INIT_ONE_ID;
    *step = "setgroups";
    if (!one && setgroups(u->ngroups, u->groups) < 0)
        return -1;
    *step = "setgid";
    if (setresgid(u->gid, u->gid, u->gid) < 0)
        return -1;
    *step = "setuid";
    if (setresuid(u->uid, u->uid, u->uid) < 0)
        return -1;
    /* Under strict the change of ids takes nothing away (securebits), so that this works for every id; without, an exec
     * as root gets back what the bounding set has. */
    *step = "capabilities";
    if (caps_set(CAPS_NONE) < 0)
        return -1;
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    return 0;
}

int lock_strict(const struct init *g, const char **step)
{
    struct err err = {0};
    if (!(g->args->flags & INIT_STRICT))
        return 0;
    *step = "no_new_privs";
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    *step = "landlock";
    if (apply_landlock(g->args, &err) < 0) {
        errno = err.eno ? err.eno : EPERM;
        return -1;
    }
    return 0;
}
