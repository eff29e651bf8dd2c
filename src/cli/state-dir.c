/* state-dir.c - where the state of this user's node lies. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"

void cli_state_dir(char *ret, size_t room)
{
    const char *given = getenv("HUTCH_STATE"), *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (given && *given)
        (void)snprintf(ret, room, "%s", given);
    else if (geteuid() == 0)
        (void)snprintf(ret, room, "/var/lib/hutch");
    else if (xdg && *xdg)
        (void)snprintf(ret, room, "%s/hutch", xdg);
    else
        (void)snprintf(ret, room, "%s/.local/state/hutch", home ? home : "");
}
