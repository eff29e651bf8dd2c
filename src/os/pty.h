/* pty.h - pseudo-terminals of one particular devpts instance.
 *
 * Every function returns 0 or -1 with errno, allocates nothing and calls only async-signal-safe functions, so all of
 * them may be used between clone and exec.
 *
 * How the pieces make a session with job control (pid 1 inside leads it, the command is its foreground job; were the
 * command itself the leader, its process group would be orphaned and the kernel would discard Ctrl-Z):
 *
 *     pid 1:    pty_open_at() -> the master goes outside, and is closed here -> setsid() -> pty_make_controlling(slave)
 *     command:  pty_take_foreground(slave) -> slave becomes 0, 1 and 2 -> exec
 */
#ifndef HUTCH_OS_PTY_H
#define HUTCH_OS_PTY_H

#include <sys/ioctl.h>
#include <sys/types.h>

/* Opens a new pair from the devpts mounted at `pts` next to `ptmx` in the directory `devfd` (a descriptor of /dev, or
 * AT_FDCWD with the process standing in it). Both ends are close-on-exec and neither becomes a controlling terminal.
 * The slave is reached through the master, never by name, so nothing in /dev can redirect it. The caller owns both. */
int pty_open_at(int devfd, int *ret_master, int *ret_slave);

/* Makes uid the owner of the slave's node, mode 0620, so that the command can open its terminal by name as well. */
int pty_give(int slave, uid_t uid, gid_t gid);

/* The N of /dev/pts/N. Fails with ENOTTY for anything that is not the master of a pair: the test to make on a
 * descriptor that was received from elsewhere. */
int pty_number(int master, unsigned *ret);

/* Rows and columns; both ends accept these. Setting a different size sends SIGWINCH to the foreground job. */
int pty_get_size(int tty, struct winsize *ret);
int pty_set_size(int tty, const struct winsize *size);

/* Makes the slave the controlling terminal of the calling session leader (setsid() is the caller's act). */
int pty_make_controlling(int slave);

/* Puts the calling process in a process group of its own, in the foreground of its controlling terminal `slave`. */
int pty_take_foreground(int slave);

#endif
