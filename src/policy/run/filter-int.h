/* filter-int.h - the filter's tables and compiler, for filter*.c, the generator and their test.
 *
 * A decision is the ordered list of check rows for a number whose flags match, then the plain answer of syscalls.def.
 * rules_decide() walks it for one call, filter_compile() turns it into instructions; test_filter compares the two.
 */
#ifndef HUTCH_POLICY_RUN_FILTER_INT_H
#define HUTCH_POLICY_RUN_FILTER_INT_H

#include <stdint.h>

#include "policy/run/filter.h"
#include "policy/run/syscalls.h"

enum category {
    CAT_NONE,
    CAT_MOUNT,
    CAT_CHROOT,
    CAT_NAMESPACE,
    CAT_CLONE3,
    CAT_KEYS,
    CAT_BPF,
    CAT_PERF,
    CAT_TRACE,
    CAT_INSPECT,
    CAT_HANDLE,
    CAT_ADMIN,
    CAT_CLOCK,
    CAT_HOSTNAME,
    CAT_NUMA,
    CAT_LDT,
    CAT_PERSONALITY,
    CAT_IO_URING,
    CAT_MEMORY,
    CAT_SOCKET,
    CAT_PROTOCOL,
    CAT_FILE_FLAGS,
    CAT_OBSOLETE,
    CAT_TERMINAL,
    CAT_PRCTL,
    CAT_LISTENER,
    CAT_DEVICE,
    CAT_SETID,
    CAT_AIO,
    CAT_NETLINK,
    CAT_SOCKET_FILTER,
    CAT_LEASE,
    CAT_CUSTOM,
    CAT_MAX
};

struct category_info {
    const char *name;
    enum filter_grant grant;
    bool notify;     /* a refusal goes to the listener under FILTER_NOTIFY */
    unsigned opened; /* flags that turn the refusal of a whole call into permission */
    const char *reason;
};

extern const struct category_info categories[CAT_MAX];
/* The word in syscalls.allow that permits the rows of a category; NULL: none. */
extern const char *const category_words[CAT_MAX];

/* Errno of a plain answer, or what the listener does: TELL continues the call, NETLINK makes the socket (without a listener:
 * EAFNOSUPPORT), BUFFER sets the size. */
enum { ANSWER_ALLOW = 0, ANSWER_TELL = -1, ANSWER_NETLINK = -2, ANSWER_BUFFER = -3 };

struct answer {
    int eno; /* > 0, or one of the above */
    enum category cat;
};

enum cond_op { COND_END, COND_IN, COND_BITS, COND_KEY };

/* IN: (argument & mask) is one of the values. BITS: argument & mask is not 0. Low 32 bits only. KEY: the key is in the high
 * ones of arguments 0 and 1, which the kernel ignores in an int. */
struct cond {
    enum cond_op op;
    unsigned arg;
    uint32_t mask;
    const uint32_t *values;
    size_t nvalues;
};

enum { COND_MAX = 4 };

struct check {
    int nr;
    unsigned with, without; /* flags that must all be set, must all be clear */
    struct cond conds[COND_MAX + 1];
    struct answer answer;
    const char *text; /* what matches, for the reference page */
};

extern const struct check checks[];
extern const size_t nchecks;

/* Changes that a policy asks for: by name (the index is the number), and by word. */
enum override { OVERRIDE_NONE, OVERRIDE_ALLOW, OVERRIDE_DENY };
struct overrides {
    unsigned char of[SYSCALL_MAX + 1];
    unsigned char word[CAT_MAX];
};

/* Adds implied flags. */
unsigned rules_complete_flags(unsigned flags);
/* Whether a check row takes part. */
bool rules_applies(const struct check *c, int nr, unsigned flags);
/* The answer if no check row matches; ENOSYS for unknown numbers. */
struct answer rules_plain(int nr, unsigned flags, const struct overrides *o);
/* The answer of a row that matches: its own, or what the policy says with its category's word. */
struct answer rules_answer(const struct check *c, const struct overrides *o);
/* Whether overrides leave the check rows of this call in force. */
bool rules_checked(int nr, const struct overrides *o);
/* The answer for one call, without BPF. Architecture is not looked at. */
struct answer rules_decide(const struct seccomp_data *d, unsigned flags, const struct overrides *o);
/* The SECCOMP_RET_ value of an answer. */
uint32_t rules_action(struct answer a, unsigned flags);

/* Compiles; `o` may be NULL. The array is allocated and never empty. */
struct sock_filter *filter_compile(unsigned flags, const struct overrides *o, size_t *ret_n);

/* Programs made at build time (filter-builtin.c, written by tools/gen-filters). */
struct filter_builtin {
    unsigned flags;
    const struct sock_filter *insns;
    size_t n;
};
extern const struct filter_builtin filter_builtins[];
extern const size_t nfilter_builtins;
/* Whether a completed set of flags gets a built-in program. */
bool rules_builtin_flags(unsigned flags);

#endif
