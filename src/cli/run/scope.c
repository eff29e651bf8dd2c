#include "cli/run/scope.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

bool scope_tried(void)
{
    bool tried = getenv(SCOPE_VARIABLE) != NULL;
    (void)unsetenv(SCOPE_VARIABLE);
    return tried;
}

bool scope_wanted(const struct scope_facts *f)
{
    const struct cgroup_limits *want = f->want;
    if (f->root || f->nested || f->tried || !f->available)
        return false;
    bool asked = want->memory || want->cpu_milli || want->pids || f->cpu_time;
    return asked && (!f->have->can_memory || !f->have->can_pids || (want->cpu_milli && !f->have->can_cpu));
}

void scope_argv(const char *self, char *const *argv, struct strv *ret)
{
    static const char *const before[] = {"systemd-run", "--user", "--scope",      "--quiet",
                                         "--collect",   "-p",     "Delegate=yes", "--"};
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++)
        strv_add(ret, before[i]);
    strv_add(ret, self);
    for (size_t i = 1; argv[0] && argv[i]; i++)
        strv_add(ret, argv[i]);
}

void scope_enter(char *const *argv)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0 || setenv(SCOPE_VARIABLE, "1", 1) < 0)
        return;
    self[n] = '\0';
    struct strv args = {0};
    scope_argv(self, argv, &args);
    (void)execv("/usr/bin/systemd-run", args.v);
    (void)execv("/bin/systemd-run", args.v);
    (void)unsetenv(SCOPE_VARIABLE);
    strv_done(&args);
}
