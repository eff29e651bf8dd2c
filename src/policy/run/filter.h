/* filter.h - policy -> seccomp filter: which system calls a command may make, as classic BPF.
 *
 * Two tables decide: syscalls.def (every call with its plain answer) and the checks in filter-rules.c (answers that
 * depend on arguments). filter_compile() turns them into a program; it is a pure function and runs twice: at build
 * time for every combination of profile and flags that needs no custom rules, at run time only for policies that name
 * calls themselves.
 *
 * Properties of every program, tested by test_filter:
 *  1. x86-64 only: another architecture or an x32 number kills the process.
 *  2. An unknown number answers ENOSYS, a known and refused one the errno of its row.
 *  3. int arguments are compared in their low 32 bits, so garbage in the upper halves changes nothing (but the key of
 *     FILTER_KEYED).
 *  4. A call that is allowed whatever its arguments never loads one: the kernel then answers it from its bitmap
 *     without running the program.
 *  5. A notified call is refused with the errno that filter_answer() gives, or done by the supervisor in the caller's
 *     place, or one of the path calls of FILTER_EXPLAIN and FILTER_LEARN, which are always continued: nothing is decided
 *     by looking at memory. (Under FILTER_LEARN the supervisor also continues calls whose number or constant arguments
 *     alone a policy could have allowed.)
 *
 * Nothing here blocks. Only filter_build() and filter_compile() allocate; the rest may be used after clone.
 */
#ifndef HUTCH_POLICY_RUN_FILTER_H
#define HUTCH_POLICY_RUN_FILTER_H

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "policy/run/policy.h"

enum filter_flag {
    /* Writable mounts carry the host's ids: no setuid or setgid bit in any mode argument, and no openat2, whose mode is
     * out of sight. File capabilities are not visible here (xattr names are memory): CAP_SETFCAP must be out of the
     * bounding set. Not with FILTER_COMPUTER. */
    FILTER_HOST_IDS = 1 << 0,
    /* Rare, surprising refusals go to the listener, which records them and answers with the same errno. Without a
     * listener the kernel answers ENOSYS. */
    FILTER_NOTIFY = 1 << 1,
    FILTER_EXPLAIN =
        1 << 2, /* opens, and calls that mean to write to a path, go to the listener too; implies FILTER_NOTIFY */
    FILTER_LEARN = 1 << 3,    /* also exec; implies FILTER_EXPLAIN */
    FILTER_COMPUTER = 1 << 4, /* privilege "computer": chroot is allowed */
    FILTER_DEBUGGER = 1 << 5, /* profile "debugger": ptrace, process_vm_*, personality(ADDR_NO_RANDOMIZE) */
    FILTER_NO_UNIX = 1 << 6,  /* profile "no-unix": no AF_UNIX sockets but connected pairs */
    /* The listener is behind the filter itself: with the key in the high halves of arguments 0 and 1 it makes netlink
     * sockets, sets buffers and takes descriptors. filter_set_key() must come before the load. Not with FILTER_HOST_IDS
     * and FILTER_EXPLAIN; implies FILTER_NOTIFY. */
    FILTER_KEYED = 1 << 7,
    FILTER_FLAG_ALL = (1 << 8) - 1,
};

/* Placeholders for the key in a keyed program. */
#define FILTER_KEY_FIRST  0xc6a4a793U
#define FILTER_KEY_SECOND 0x5bd1e995U

struct filter {
    const struct sock_filter *insns;
    size_t n;       /* instructions */
    unsigned flags; /* enum filter_flag, completed: what filter_answer() wants */
    bool owned;     /* insns is allocated; else it is one of the programs in the binary */
};

/* The program for a policy. Adds the profile's flag and the implied ones. Errors: ERR_POLICY with the origin for a name
 * that is no system call, an allow that can never be granted, a deny without which no command starts; ERR_INTERNAL for
 * flags that contradict each other. */
int filter_build(const struct policy *p, unsigned flags, struct filter *ret, struct err *err);
void filter_done(struct filter *f);
#define _cleanup_filter_ __attribute__((cleanup(filter_done)))

/* Replaces the placeholders in a copy of a keyed program with a secret that no process behind the filter can guess.
 * Returns the number of words replaced: 6 in every keyed program without rules of a policy, 0 in others. */
size_t filter_set_key(struct sock_filter *insns, size_t n, const uint32_t key[2]);

/* What the supervisor does with a notified call. `flags` is that of the filter. */
enum filter_task {
    FILTER_CONTINUE = 0,      /* only the path calls of FILTER_EXPLAIN and FILTER_LEARN, whatever comes in */
    FILTER_MAKE_NETLINK = -1, /* make the socket for the caller, or refuse as filter_denial_of() says (os/notified.h) */
    FILTER_SET_BUFFER = -2,   /* set the size for the caller */
};
/* An errno > 0, or enum filter_task. */
int filter_answer(unsigned flags, const struct seccomp_data *d);

/* --- for people --------------------------------------------------------------------------------------------------- */

enum filter_verdict {
    FILTER_UNKNOWN, /* no such number: ENOSYS */
    FILTER_ALLOWED,
    FILTER_CHECKED, /* depends on the arguments */
    FILTER_REFUSED,
};

/* The verdict for one call under a policy. *reason is set to a sentence part (static), *eno to the errno of a refusal
 * or 0; both may be NULL. *rule is set to the policy's own rule that decided, or NULL for the built-in profile. */
enum filter_verdict filter_verdict_of(const struct policy *p, unsigned flags, int nr, const char **reason, int *eno,
                                      const struct syscall_rule **rule);

/* How a refused call can be had; for hints. */
enum filter_grant {
    GRANT_NEVER,    /* the wall depends on it, or it needs privilege no sandbox has */
    GRANT_ALLOW,    /* syscalls.allow: [NAME] */
    GRANT_DEBUGGER, /* syscalls.profile: debugger (or allow) */
    GRANT_COMPUTER, /* privilege: computer */
};

struct filter_denial {
    int eno;
    const char *category; /* stable word for records: "mount", "namespace", "socket" */
    const char *reason;   /* sentence part, static */
    enum filter_grant grant;
    const char *word; /* what syscalls.allow takes in place of the call's name; NULL: the name */
};

/* Why a call with these arguments is refused. false if it is not. `flags` as in struct filter. */
bool filter_denial_of(unsigned flags, const struct seccomp_data *d, struct filter_denial *ret);

/* Words that syscalls.allow takes besides names of calls: part of a call that is refused by default. NULL-terminated. */
extern const char *const filter_words[];
bool filter_is_word(const char *name);

/* The reference page docs/syscalls.md. */
void filter_add_docs(struct buf *out);

#endif
