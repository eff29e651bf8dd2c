/* title.h - what the kernel shows of this process as its command line and environment.
 *
 * Both lie in one piece of memory at the top of the stack, and /proc reads them from there. A clone that never
 * executes another program (pid 1 of a sandbox) would show those of its maker to the sandbox, so it clears them.
 */
#ifndef HUTCH_OS_TITLE_H
#define HUTCH_OS_TITLE_H

/* First thing in main(), before the environment is changed. Without it title_forget() does nothing. */
void title_note(char *const *argv, char *const *envp);
/* Overwrites both for good; the command line reads `title` from now on. No pointer to an argument or to a variable of the
 * start may be used afterwards. Allocates nothing: may be called between clone and exec. */
void title_forget(const char *title);

#endif
