/* commands.h - the commands of hutch-client. Each takes its own argv (argv[0] is its name), returns the exit code. */
#ifndef HUTCH_CLI_CLIENT_COMMANDS_H
#define HUTCH_CLI_CLIENT_COMMANDS_H

int cmd_create(int argc, char **argv);
int cmd_ls(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_exec(int argc, char **argv);
int cmd_code(int argc, char **argv);
int cmd_shell(int argc, char **argv);
int cmd_cp(int argc, char **argv);
int cmd_logs(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_timeout(int argc, char **argv);
int cmd_kill(int argc, char **argv);
int cmd_pause(int argc, char **argv);
int cmd_resume(int argc, char **argv);
int cmd_snapshot(int argc, char **argv);
int cmd_fork(int argc, char **argv);
int cmd_history(int argc, char **argv);
int cmd_try(int argc, char **argv);
int cmd_network(int argc, char **argv);
int cmd_url(int argc, char **argv);
int cmd_volume(int argc, char **argv);
int cmd_secret(int argc, char **argv);
int cmd_approvals(int argc, char **argv);
int cmd_login(int argc, char **argv);
int cmd_logout(int argc, char **argv);
int cmd_profile(int argc, char **argv);
int cmd_env(int argc, char **argv);
int cmd_mcp(int argc, char **argv);
int cmd_key(int argc, char **argv);
int cmd_tenant(int argc, char **argv);
int cmd_template(int argc, char **argv);
int cmd_stop(int argc, char **argv);
int cmd_store(int argc, char **argv);

#endif
