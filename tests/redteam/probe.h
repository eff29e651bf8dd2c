/* probe.h - hutch-probe: one static program that tries to get out, and says what happened.
 *
 * Each attempt is a row of a table: what it tries, what a strict and what a computer sandbox must answer, which layers are
 * responsible, and how to show that the attempt itself works when nothing stops it (the positive control). An attempt runs
 * in its own forked child with a deadline, so kills, crashes and hangs are observations like any other.
 *
 * An observation is one word, optionally followed by ": detail". The words "success", "reached" and "leak" mean that the
 * attempt got through; "success" may still be what is expected (some rows prove that ordinary work is not broken).
 * Attempts undo their own effect: the same code also runs outside any sandbox, as the control.
 */
#ifndef HUTCH_TESTS_PROBE_H
#define HUTCH_TESTS_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct seen {
    char text[256];
};

/* How to know that an attempt would work if nothing stopped it. */
enum control {
    CTL_OUTSIDE, /* gets through outside, as the same user */
    CTL_ROOT,    /* gets through outside for root; for others the kernel itself refuses */
    CTL_NS,      /* gets through in a bare user namespace with every capability in it */
    CTL_KERNEL,  /* nothing on this kernel lets it through; `why` says what refuses */
    CTL_ALLOWED, /* ordinary work that must succeed in both places */
    CTL_HOST,    /* done by run.py from outside; the probe only lists it */
    CTL_NONE,    /* does not apply to a sandbox without a daemon, or only inside a limited one; `why` says so */
};

enum {
    A_LIMITS = 1 << 0,     /* only with memory, pids and disk limits around it, never outside */
    A_ALONE = 1 << 1,      /* own sandbox start: it may take the others down or disturb them */
    A_INSIDE = 1 << 2,     /* never run outside */
    A_ROOTFS = 1 << 3,     /* needs --root */
    A_STDIN_FILE = 1 << 4, /* stdin is a host file opened for reading */
    A_STDIN_DIR = 1 << 5,  /* stdin is a host directory */
    A_TTY = 1 << 6,        /* the caller has a controlling terminal */
    A_LIMITATION = 1 << 7, /* known to get through, documented: reported as a limitation, not as a failure */
    A_NA = 1 << 8,         /* not applicable here; `why` says why */
};

struct attempt {
    const char *id;                                       /* "F-04", sub-attempts "F-04a" */
    const char *what;                                     /* one line */
    void (*run)(const struct attempt *a, struct seen *s); /* NULL: CTL_HOST or A_NA */
    const char *arg;                                      /* path or other text for shared functions */
    long num;                                             /* number for shared functions */
    const char *strict;   /* words that are right in a strict sandbox, separated by spaces */
    const char *computer; /* the same for `computer`; NULL = as strict */
    const char *layers;   /* names for HUTCH_WITHOUT that together let it through; "" if none can */
    enum control control;
    unsigned flags;
    const char *why; /* reason for CTL_KERNEL, A_NA, A_LIMITATION or an attempt no removal can prove; else NULL */
};

struct attempt_table {
    const char *topic;
    const struct attempt *rows;
    size_t n;
};

extern const struct attempt_table probe_files, probe_names, probe_proc, probe_ns, probe_sys, probe_sock, probe_kernfs,
    probe_dev, probe_net, probe_res, probe_cred, probe_catalog;

/* --- what attempts use (probe-main.c) --------------------------------------------------------------------------------- */

/* "success" if rc >= 0, else the name of errno. */
void seen_rc(struct seen *s, long rc);
void seen_text(struct seen *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "success", or "reached: ERRNO" if errno is one the kernel gives only after its permission checks (`past`), else errno. */
void seen_past(struct seen *s, long rc, const int *past, size_t npast);
/* A --var NAME=VALUE of the command line, or NULL. */
const char *probe_var(const char *name);
/* The same as a number, or -1. */
long probe_var_num(const char *name);
/* Fills s with "skipped: no NAME given" and returns NULL if the variable is missing. */
const char *probe_need(struct seen *s, const char *name);
bool probe_is_computer(void);
/* "$home/suffix" in a static buffer; home is --var home, else $HOME. */
const char *probe_home(const char *suffix);
/* The process to attack: --var target, else 1. */
pid_t probe_target(void);
/* Descriptors above 2 that were open when the program started, as text; "" if none. */
const char *probe_first_fds(void);
/* Reads at most n-1 bytes, NUL-terminates. -1 with errno. */
ssize_t probe_slurp(const char *path, char *buf, size_t n);
/* Creates or truncates a file with this text. -1 with errno. */
int probe_put(const char *path, const char *text);
/* Runs a program and captures what it prints; -1 with errno if it could not be started. */
int probe_exec(char *const argv[], char *out, size_t n);
/* Text that marks a planted secret, not present as such in this binary. */
const char *probe_canary_mark(void);
double probe_now(void);
bool probe_runnable(pid_t pid); /* it waits for a processor, or has one */

/* System calls by number, and through the other two entry points of x86-64. */
long probe_i386(long nr, long a, long b, long c);
long probe_x32(long nr, long a, long b, long c);

/* --- modes other than attempts (probe-modes.c) ------------------------------------------------------------------------ */

int mode_syscalls(const char *abi, long fill);
int mode_swap(const char *a, const char *b, double seconds);
int mode_fuzz(double seconds, unsigned seed);
int mode_flood(double seconds, int procs);
int mode_whoami(void);

#define SEEN_PAST(s, rc, ...)                                        \
    do {                                                             \
        static const int past_[] = {__VA_ARGS__};                    \
        seen_past((s), (rc), past_, sizeof past_ / sizeof past_[0]); \
    } while (0)
#define ROWS(a) (sizeof(a) / sizeof((a)[0]))

#endif
