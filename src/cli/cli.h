/* cli.h - the sub-commands and what they share. Each takes its own argv (argv[0] is the sub-command's name) and returns the
 * exit code. Only program/main.c calls them; no other room uses cli. */
#ifndef HUTCH_CLI_CLI_H
#define HUTCH_CLI_CLI_H

#include "base/err.h"

int cmd_run(int argc, char **argv);
int cmd_tx(int argc, char **argv);
int cmd_diff(int argc, char **argv);
int cmd_apply(int argc, char **argv);
int cmd_discard(int argc, char **argv);
int cmd_history(int argc, char **argv);
int cmd_try(int argc, char **argv);
int cmd_policy(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_selftest(int argc, char **argv);
int cmd_completion(int argc, char **argv);
int cmd_gc(int argc, char **argv);
int cmd_store(int argc, char **argv);
int cmd_store_pool(int argc, char **argv); /* grow, shrink, check: argv[1] is one of these */
int cmd_audit(int argc, char **argv);
int cmd_keeper(int argc, char **argv); /* started by `hutch serve` */
int cmd_layers(int argc, char **argv); /* the same */
int cmd_pool(int argc, char **argv);   /* the same */
int cmd_lay(int argc, char **argv);    /* run by a build inside a sandbox */

int cmd_serve(int argc, char **argv);
int cmd_config(int argc, char **argv);

/* Clients of a daemon. */
int cmd_create(int argc, char **argv);
int cmd_ls(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_exec(int argc, char **argv);
int cmd_shell(int argc, char **argv);
int cmd_cp(int argc, char **argv);
int cmd_logs(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_kill(int argc, char **argv);
int cmd_pause(int argc, char **argv);
int cmd_resume(int argc, char **argv);
int cmd_snapshot(int argc, char **argv);
int cmd_fork(int argc, char **argv);
int cmd_stop(int argc, char **argv);
int cmd_key(int argc, char **argv);
int cmd_tenant(int argc, char **argv);
int cmd_template(int argc, char **argv);
int cmd_env(int argc, char **argv);
int cmd_network(int argc, char **argv);
int cmd_url(int argc, char **argv);
int cmd_secret(int argc, char **argv);
int cmd_volume(int argc, char **argv);
int cmd_volume_op(int argc, char **argv);
/* volume-rm.c: removes a tree while sandboxes may be changing it. -1 with errno. */
int volume_remove_tree(int parent, const char *name);
int cmd_approvals(int argc, char **argv);

/* Finds hutch-node beside this program or in libexec. New string. */
int cli_find_node(char **ret, struct err *err);

/* Prints "hutch: <msg>" on stderr, once, and returns the exit code that belongs to the error. */
int cli_fail(const struct err *err);

/* Sets the remedy that main() prints if, at the end, this command's output could not be written to standard output. */
void cli_if_lost(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* audit.c: locks the file of `hutch run --audit`. Fails unless it is empty or such a log, has one hard link and is not full. */
int cli_audit_usable(int fd, const char *name, struct err *err);

#endif
