/* cli.h - the sub-commands. Each takes its own argv (argv[0] is the sub-command's name) and returns the exit code. */
#ifndef HUTCH_CLI_CLI_H
#define HUTCH_CLI_CLI_H

#include "base/err.h"

int cmd_run(int argc, char **argv);
int cmd_policy(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_selftest(int argc, char **argv);
int cmd_completion(int argc, char **argv);

/* Prints "hutch: <msg>" on stderr, once, and returns the exit code that belongs to the error. */
int cli_fail(const struct err *err);

#endif
