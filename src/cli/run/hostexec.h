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
 * wall/covers.h), so the command may have changed it after that.
 *
 * A configuration of git may take hooks (core.hooksPath) or further configuration (include.path) from a place that is
 * writable: of protected configurations, those of unprotected repositories and the caller's own, such places are listed if
 * they changed.
 *
 * Each writable directory is walked, to the depth in which repositories are looked for, and a name counts if its inode
 * changed since the start: the change time cannot be set by programs. A name that was changed within one tick of the
 * kernel's clock (4 ms) before the start may be listed, too. The names that are there are found while the command runs, once
 * it has done so for a moment; afterwards directories are only read if something was added to them, or to one above. That first
 * walk ends after HOSTEXEC_LOOK entries: then as many are read in the end in any case, and HOSTEXEC_THOROUGH for a command that
 * was quicker. What the search for repositories read before the run (seen.h) is not read again either, as long as nothing was
 * added to it: there the names are known already. In a bigger tree what comes into being is still found, a change in place of a
 * file that was there need not be.
 * A directory that changed and that the caller may not read is listed itself.
 */
#ifndef HUTCH_CLI_RUN_HOSTEXEC_H
#define HUTCH_CLI_RUN_HOSTEXEC_H

#include "base/strv.h"
#include "policy/run/plan.h"
#include "policy/run/policy.h"
#include "policy/run/seen.h"

enum {
    HOSTEXEC_MAX = 64,       /* paths listed; a last entry says if there may be more */
    HOSTEXEC_LOOK = 4000,    /* directory entries of a writable root that are read while a command runs */
    HOSTEXEC_THOROUGH = 256, /* entries that are always read after a shorter command */
};

struct hostexec;

/* Call it before the search for repositories, which gets `ret` as its context: notes the time and which names
 * matter. */
void hostexec_begin(const struct policy *policy, struct seen *ret);
/* Notes the time. policy, plan, home and seen (both may be NULL) are borrowed until hostexec_after. */
struct hostexec *hostexec_before(const struct policy *policy, const struct plan *plan, const char *home,
                                 const struct seen *seen);
/* Notes existing names in the writable directories, up to HOSTEXEC_LOOK entries of each. Call it at most once, while
 * the command runs and the caller is idle. */
void hostexec_look(struct hostexec *h);
/* Releases what hostexec_before() returned, if it is not used after all. */
void hostexec_drop(struct hostexec *h);
/* Appends the host paths found, new repositories as "DIR/.git", and releases h (may be NULL). Call it when nothing
 * inside can act any more; stubs are distinguished from files that the command made. */
void hostexec_after(struct hostexec *h, struct strv *ret);

#endif
