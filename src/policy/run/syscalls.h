/* syscalls.h - names and numbers of the x86-64 system calls, independent of the headers of the build machine.
 *
 * The list is closed: it ends with what Linux 6.18 has, also when the C library is older. Nothing allocates or fails.
 */
#ifndef HUTCH_POLICY_RUN_SYSCALLS_H
#define HUTCH_POLICY_RUN_SYSCALLS_H

/* NR_read, NR_write, ... */
enum syscall_nr {
#define SYSCALL(nr, name, answer, category) NR_##name = (nr),
#include "policy/run/syscalls.def"
#undef SYSCALL
    SYSCALL_MAX = 469 /* the highest number in the list */
};

/* The number of a call, or -1 if there is no call of that name. */
int syscall_number(const char *name);
/* The name of a call (static), or NULL if the number is not in the list. */
const char *syscall_name(int nr);
/* Every known name in the order of the numbers, NULL-terminated; for text_nearest(). */
extern const char *const syscall_names[];

#endif
