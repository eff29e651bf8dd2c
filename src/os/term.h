/* term.h - SIGTERM for a process that waits in one place only: it comes there, and nothing is left half done. */
#ifndef HUTCH_OS_TERM_H
#define HUTCH_OS_TERM_H

#include <signal.h>
#include <stdbool.h>

/* Holds the signal back from now on. *ret is the mask for the wait (ppoll, epoll_pwait), in which it may come. */
void term_hold(sigset_t *ret);
/* Whether it has come. */
bool term_came(void);

#endif
