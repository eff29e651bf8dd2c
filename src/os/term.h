/* term.h - delivers SIGTERM only while the process waits in its loop, so that no work is interrupted half-way. */
#ifndef HUTCH_OS_TERM_H
#define HUTCH_OS_TERM_H

#include <signal.h>
#include <stdbool.h>

/* Blocks the signal from now on. *ret is the mask for the wait (ppoll, epoll_pwait), during which it may come. */
void term_hold(sigset_t *ret);
/* Whether it has come. */
bool term_came(void);

#endif
