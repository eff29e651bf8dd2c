/* hostexec.h - what a command left behind that programs outside may execute or trust.
 *
 * Names that the policy protects cannot appear where a plan protects them: at writable roots and in the repositories
 * that were there. They can in other directories and in repositories born inside, which is allowed and listed: git runs
 * the hooks of a repository, an editor the tasks of a folder, once a person opens it. A repository is listed by its
 * ".git", a bare one as the directory that it is, and in one that was there what changed: configuration, hooks, a
 * "commondir", and git directories of submodules and worktrees that were not there (".git/modules/...", ".git/worktrees/...").
 *
 * What the plan protects is listed, too, if it is not the same file as before or changed while the command ran: through
 * another hard link, or from outside. Replacing such a name from outside takes its protection away for a moment (see
 * wall/covers.h), so what is there now need not be what that somebody wrote.
 *
 * A configuration of git may take hooks (core.hooksPath) or further configuration (include.path) from a place that is
 * writable: of protected configurations, those of unprotected repositories and the caller's own, such places are listed if
 * they changed.
 *
 * Nothing is walked before the run. Afterwards each writable directory is, to the depth in which repositories are
 * looked for, and a name counts if its inode changed since the start: the change time cannot be set by programs. A name
 * that was changed within one tick of the kernel's clock (4 ms) before the start may be listed, too. A small tree costs
 * a few microseconds. In a big one, once HOSTEXEC_THOROUGH entries were read, directories are only read if something
 * was added to them: what comes into being is still found, a change in place of a file that was there need not be.
 */
#ifndef HUTCH_CLI_HOSTEXEC_H
#define HUTCH_CLI_HOSTEXEC_H

#include "base/strv.h"
#include "policy/plan.h"
#include "policy/policy.h"

enum {
    HOSTEXEC_MAX = 64,       /* paths listed; a last entry says if there may be more */
    HOSTEXEC_THOROUGH = 1000 /* directory entries of a writable root that are read in any case */
};

struct hostexec;

/* Notes the time. policy, plan and home (may be NULL) are borrowed until hostexec_after. */
struct hostexec *hostexec_before(const struct policy *policy, const struct plan *plan, const char *home);
/* Appends the host paths found, directories of new repositories with "/.git" at their end, and releases h (may be
 * NULL). Call it when the sandbox and its stubs are gone. */
void hostexec_after(struct hostexec *h, struct strv *ret);

#endif
