/* guard.h - accepts from a listener that the sandbox shares and may make blocking at any moment. */
#ifndef HUTCH_EGRESS_GUARD_H
#define HUTCH_EGRESS_GUARD_H

/* accept4() that returns within half a millisecond even if the listener blocks. -1 with EINTR: it blocked, so the
 * sandbox made it blocking. The descriptor is non-blocking and CLOEXEC. Only from the main thread; uses SIGALRM and
 * ITIMER_REAL. */
int guard_accept(int listener);

#endif
