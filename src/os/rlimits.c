#include "os/rlimits.h"

#include <stddef.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

enum {
    MEMLOCK_BYTES = 64 << 10,   /* a key or two; enough for what is locked against swapping */
    MSGQUEUE_BYTES = 800 << 10, /* the kernel's own default */
    SIGPENDING_COUNT = 8192,    /* queued signals and POSIX timers, which hold unaccounted kernel memory */
};

static int rlimit_lower(int resource, rlim_t value)
{
    struct rlimit now; /* prlimit: glibc's setrlimit() wants an enum that other libraries do not have */
    if (syscall(SYS_prlimit64, 0, resource, NULL, &now) < 0)
        return -1;
    if (now.rlim_max != RLIM_INFINITY && value > now.rlim_max)
        value = now.rlim_max;
    return (int)syscall(SYS_prlimit64, 0, resource, &(struct rlimit){value, value}, NULL);
}

int rlimits_apply(const struct rlimits *want, const char **ret_which)
{
    const struct {
        const char *name;
        int resource;
        int always;
        uint64_t value;
    } table[] = {
        {"RLIMIT_CORE", RLIMIT_CORE, 1, 0},
        {"RLIMIT_MEMLOCK", RLIMIT_MEMLOCK, 1, MEMLOCK_BYTES},
        {"RLIMIT_MSGQUEUE", RLIMIT_MSGQUEUE, 1, MSGQUEUE_BYTES},
        {"RLIMIT_SIGPENDING", RLIMIT_SIGPENDING, 1, SIGPENDING_COUNT},
        {"RLIMIT_RTPRIO", RLIMIT_RTPRIO, 1, 0},
        {"RLIMIT_NICE", RLIMIT_NICE, 1, 0},
        {"RLIMIT_NOFILE", RLIMIT_NOFILE, 0, want->open_files},
        {"RLIMIT_NPROC", RLIMIT_NPROC, 0, want->processes},
        {"RLIMIT_FSIZE", RLIMIT_FSIZE, 0, want->file_size},
        {"RLIMIT_DATA", RLIMIT_DATA, 0, want->data},
        {"RLIMIT_CPU", RLIMIT_CPU, 0, want->cpu_s},
    };
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if ((!table[i].always && table[i].value == 0) || rlimit_lower(table[i].resource, table[i].value) == 0)
            continue;
        if (ret_which)
            *ret_which = table[i].name;
        return -1;
    }
    return 0;
}
