#include "policy/run/syscalls.h"

#include <stddef.h>
#include <string.h>

const char *const syscall_names[] = {
#define SYSCALL(nr, name, answer, category) #name,
#include "policy/run/syscalls.def"
#undef SYSCALL
    NULL,
};

static const char *const by_number[] = {
#define SYSCALL(nr, name, answer, category) [nr] = #name,
#include "policy/run/syscalls.def"
#undef SYSCALL
};

_Static_assert(sizeof by_number / sizeof by_number[0] == SYSCALL_MAX + 1, "SYSCALL_MAX is the last number of the list");

int syscall_number(const char *name)
{
    for (int nr = 0; nr <= SYSCALL_MAX; nr++)
        if (by_number[nr] && strcmp(by_number[nr], name) == 0)
            return nr;
    return -1;
}

const char *syscall_name(int nr) { return nr >= 0 && nr <= SYSCALL_MAX ? by_number[nr] : NULL; }
