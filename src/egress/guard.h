/* guard.h - accepting from a listener that somebody else may make blocking at any moment. */
#ifndef HUTCH_EGRESS_GUARD_H
#define HUTCH_EGRESS_GUARD_H

/* accept4() that ends within half a millisecond whatever the listener is: -1 with EINTR says that it blocked, which one that
 * only we use never does. The descriptor is non-blocking and CLOEXEC. Only from the main thread; SIGALRM and ITIMER_REAL are
 * used for it. */
int guard_accept(int listener);

#endif
