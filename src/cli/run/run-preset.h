/* run-preset.h - what --preset and --rw-make do outside of the policy: directories that are made, the list of presets, and the
 * preset that a command's name suggests. */
#ifndef HUTCH_CLI_RUN_RUN_PRESET_H
#define HUTCH_CLI_RUN_RUN_PRESET_H

#include "base/err.h"
#include "policy/run/policy.h"

/* Makes the directories that rules with FILE_MAKE name and that do not exist, with all that is missing above them, mode 0700,
 * owned by the caller. Never through a symbolic link that it finds where it makes something; as root only in directories of
 * root, and through no link below the home (without links itself; NULL: none). Blocks on the file system. */
int run_preset_make(const struct policy *p, const char *home, struct err *err);
/* Takes the names out of the list that lie in directories which only runs with a preset use: programs outside do not look
 * there. */
void run_preset_leave_out(const struct policy *p, struct strv *names);
/* Whether --preset list stands among the options. */
bool run_preset_wants_list(const struct policy_flag *flags, size_t n);
/* Prints all presets that a run in this home directory finds. */
void run_preset_list(const char *home);
/* The preset for a command with this name or path, as --preset takes it (the command's own name if that is an alias). A new
 * string; NULL: none, or it is in force already. */
char *run_preset_suggest(const struct policy *p, const char *home, const char *command);

#endif
