/* cli.h - the sub-commands of hutch, and what they share with those of hutch-client (client/commands.h). Each takes
 * its own argv (argv[0] is the sub-command's name) and returns the exit code. Only a main.c calls them; no other room
 * uses cli. */
#ifndef HUTCH_CLI_CLI_H
#define HUTCH_CLI_CLI_H

#include <stddef.h>

#include "base/err.h"

int cmd_run(int argc, char **argv);
int cmd_tx(int argc, char **argv);
int cmd_diff(int argc, char **argv);
int cmd_apply(int argc, char **argv);
int cmd_discard(int argc, char **argv);
int cmd_policy(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_selftest(int argc, char **argv);
int cmd_completion(int argc, char **argv);
int cmd_gc(int argc, char **argv);
int cmd_store_pool(int argc, char **argv); /* grow, shrink, check: argv[1] is one of these */
int cmd_audit(int argc, char **argv);
int cmd_keeper(int argc, char **argv); /* started by `hutch serve` */
int cmd_layers(int argc, char **argv); /* the same */
int cmd_pool(int argc, char **argv);   /* the same */
int cmd_lay(int argc, char **argv);    /* run by a build inside a sandbox */

int cmd_serve(int argc, char **argv); /* also cluster: argv[0] says which */
int cmd_config(int argc, char **argv);

/* Commands that talk to a node: hutch-client has them. */
int cmd_client(int argc, char **argv);
/* How many arguments choose the node: --url, --profile or --ca with a value, before the command. */
int cli_count_choice(int argc, char **argv);

/* Finds a program of this installation, beside this one or in libexec. New string. */
int cli_find_program(const char *name, char **ret, struct err *err);
/* The state directory of this user's node: HUTCH_STATE, or the default. */
void cli_state_dir(char *ret, size_t room);

/* Opens the missing ones of the standard streams: the next open() would take their number. */
void cli_fill_streams(void);
/* Turns success into a failure if the output could not be written. */
int cli_end_output(int code);

/* Prints "hutch: <msg>" on stderr, once, and returns the exit code that belongs to the error. */
int cli_fail(const struct err *err);

/* Sets the remedy that cli_end_output() prints if, at the end, this command's output could not be written to standard
 * output. */
void cli_if_lost(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* audit.c: locks the file of `hutch run --audit`. Fails unless it is empty or such a log, has one hard link and is not full. */
int cli_audit_usable(int fd, const char *name, struct err *err);

#endif
