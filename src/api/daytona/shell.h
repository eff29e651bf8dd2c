/* shell.h - what the files of sessions (shell.c, logs.c) and terminals (pty.c) share: scripts in the sandbox that find them. */
#ifndef HUTCH_API_DAYTONA_SHELL_H
#define HUTCH_API_DAYTONA_SHELL_H

#include "api/daytona/daytona.h"

#define DAYTONA_SESSIONS "/tmp/.daytona"
/* Whether the directory of all is ours, so that no other user of the sandbox made what is in it: /tmp is everybody's. */
#define DAYTONA_OURS "[ -O " DAYTONA_SESSIONS " ] && [ ! -L " DAYTONA_SESSIONS " ]"
/* Makes it. */
#define DAYTONA_MAKE_OURS                                          \
    "mkdir -p -m 700 " DAYTONA_SESSIONS "; " DAYTONA_OURS " || { " \
    "echo \"CONFLICT " DAYTONA_SESSIONS " belongs to another user of the sandbox; remove it\" >&2; exit 1; }\n"
/* $1: session. Sets $d; fails if it is not there. */
#define DAYTONA_FIND_SESSION        \
    "d=" DAYTONA_SESSIONS "/s-$1\n" \
    "{ " DAYTONA_OURS " && [ -d \"$d\" ]; } || { echo \"PROCESS_NOT_FOUND session '$1' not found\" >&2; exit 1; }\n"
/* $2: command. Sets $c. */
#define DAYTONA_FIND_COMMAND \
    DAYTONA_FIND_SESSION     \
    "c=$d/c-$2\n"            \
    "[ -d \"$c\" ] || { echo \"PROCESS_NOT_FOUND command '$2' of session '$1' not found\" >&2; exit 1; }\n"
/* Whether the shell of $d runs: after a stop and start of the sandbox its pid belongs to another process, or to none. */
#define DAYTONA_MARK "HUTCH_S=$d/"
#define DAYTONA_ALIVE \
    "alive() { read -r p <\"$d/pid\" && grep -qsF \"" DAYTONA_MARK "\" \"/proc/$p/environ\"; } 2>/dev/null\n"

bool daytona_name_is_good(const char *s);
/* A script of ours without standard paths: args are $1, $2 ... */
void daytona_shell_script(struct api_call *c, struct sandbox *b, const char *script, const char *const *args,
                          uint64_t seconds, daytona_ran_fn *then);
/* Calls `then` if the command that the path names is there, after its names were checked; what fails is answered. */
void daytona_find_command(struct api_call *c, struct sandbox *b, daytona_ran_fn *then);
/* logs.c: answers with a WebSocket. */
void daytona_follow(struct api_call *c, struct sandbox *b);

#endif
