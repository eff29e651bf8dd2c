/* term.h - the caller's terminal on one side, the command's own pseudo-terminal on the other.
 *
 * The caller's terminal never goes inside. While a command runs on a terminal of its own, this relay carries bytes both
 * ways, unmodified, between the outer terminal (in raw mode) and the master of the inner one. It is driven by the
 * caller's poll loop and never blocks there: each direction has one bounded buffer, and a full buffer stops the reading
 * side. Single-threaded; one relay per process.
 *
 * States, and what is true in them:
 *   foreground   our process group owns the outer terminal; it is raw; input is relayed
 *   background   we do not own it (`hutch run -- x &`, `bg`); its modes are untouched; nothing is read from it; output
 *                is relayed; a slow timer looks whether we were brought to the foreground, because shells do not tell
 *   hung up      the outer terminal is gone: the master is closed, so the kernel has sent SIGHUP inside; output is
 *                dropped; callers see it in `hung_up` and end what does not end by itself
 *
 * The outer terminal's modes are restored by term_suspend(), term_stop(), exit(3) and term_restore(); the last is
 * async-signal-safe. After SIGKILL the guard (wall/stubs.h) does it, by term_after_death(). What the user changed with stty
 * while the job was stopped is kept.
 */
#ifndef HUTCH_CLI_RUN_TERM_H
#define HUTCH_CLI_RUN_TERM_H

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <termios.h>

#include "base/err.h"

enum {
    TERM_POLLFDS = 4,
    TERM_BUF_BYTES = 64 * 1024,
    TERM_TICK_MS = 200, /* how late coming to the foreground, or a re-opened inner terminal, may be noticed */
};

struct term_buf {
    char *p; /* owned, TERM_BUF_BYTES */
    size_t head, tail;
};

struct term {
    int in, out;     /* outer terminal: descriptions of our own where they can be had, else the caller's */
    bool in_is_ours; /* close it, rather than give its flags back */
    bool out_is_ours;
    int in_flags, out_flags;   /* of the caller's descriptions; used only if they are not ours */
    int master;                /* inner terminal, owned; -1 after hang-up */
    int timer;                 /* owned timerfd, armed in the background or while the inner terminal is not open */
    struct term_buf up, down;  /* keyboard to command; command to screen */
    struct termios saved;      /* outer modes to go back to */
    struct termios fresh;      /* inner modes at the start, to see whether the command has set its own */
    volatile sig_atomic_t raw; /* the outer terminal has our modes */
    bool saved_valid, inherited, background, inner_closed, hung_up;
    pid_t owner; /* process that started the relay; a fork of it must not restore anything */
};

/* Whether the command should get a terminal of its own: both descriptors are terminals. */
bool term_wanted(int in, int out);

/* Starts the relay between the outer terminal (in, out: borrowed) and `master` (owned from here on, on failure too).
 * Gives the inner terminal the outer one's size and, once in the foreground, its modes. Call it before the command is
 * released, or the command may see the terminal before it has its modes. Errors: ERR_SETUP; then nothing has changed. */
int term_start(struct term *t, int in, int out, int master, struct err *err);

/* Fills in exactly TERM_POLLFDS entries; those with nothing to wait for have fd -1. */
void term_pollfds(const struct term *t, struct pollfd out[TERM_POLLFDS]);
/* Moves what can be moved after poll(2) filled in the same entries. Does a bounded amount of work. */
void term_handle(struct term *t, const struct pollfd fds[TERM_POLLFDS]);

/* On SIGWINCH. */
void term_resize(struct term *t);
/* On "the command was stopped": gives the outer terminal back and stops our process group, as Ctrl-Z would have done.
 * Returns when continued (at once if no shell could continue us); the caller then continues the command. */
void term_suspend(struct term *t);
/* On SIGCONT: takes the outer terminal if it is ours again. Harmless at any other time. */
void term_resume(struct term *t);
/* On SIGHUP: hangs the inner terminal up. */
void term_hangup(struct term *t);

/* After the command's processes have ended: writes out what they left in the pty. Blocks for max_ms at most, also when
 * the outer terminal takes nothing. */
void term_drain(struct term *t, unsigned max_ms);
/* Restores the outer terminal and releases everything. Safe on a zeroed struct and when called twice. */
void term_stop(struct term *t);
/* Restores the outer terminal of the relay that runs, if one does. Async-signal-safe; for fatal paths. */
void term_restore(void);
/* In a process that shares the memory of a killed one, with the terminal as `in` and `out`: restores the terminal as
 * term_stop() would have done, if its modes are still those of the relay. Async-signal-safe. */
void term_after_death(int in, int out);

#endif
