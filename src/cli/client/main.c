/* hutch-client: the commands that talk to a node, on this machine or another. `hutch` executes it; help and the list
 * of all commands are hutch's. It is dynamically linked: TLS and names need libraries that a static program does
 * without. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"create", cmd_create},
    {"ls", cmd_ls},
    {"info", cmd_info},
    {"exec", cmd_exec},
    {"code", cmd_code},
    {"shell", cmd_shell},
    {"cp", cmd_cp},
    {"logs", cmd_logs},
    {"top", cmd_top},
    {"timeout", cmd_timeout},
    {"kill", cmd_kill},
    {"rm", cmd_kill},
    {"pause", cmd_pause},
    {"resume", cmd_resume},
    {"snapshot", cmd_snapshot},
    {"fork", cmd_fork},
    {"history", cmd_history},
    {"try", cmd_try},
    {"network", cmd_network},
    {"url", cmd_url},
    {"volume", cmd_volume},
    {"secret", cmd_secret},
    {"approvals", cmd_approvals},
    {"env", cmd_env},
    {"mcp", cmd_mcp},
    {"key", cmd_key},
    {"tenant", cmd_tenant},
    {"template", cmd_template},
    {"stop", cmd_stop},
    {"store", cmd_store},
    {"login", cmd_login},
    {"logout", cmd_logout},
    {"profile", cmd_profile},
};

int main(int argc, char **argv)
{
    struct err err;
    cli_fill_streams();
    int n = node_take_choice(argc - 1, argv + 1, &err);
    if (n < 0)
        return cli_fail(&err);
    argc -= n;
    argv += n;
    for (size_t i = 0; argc > 1 && i < ARRAY_LEN(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return cli_end_output(commands[i].run(argc - 1, argv + 1));
    (void)err_set(&err, ERR_USAGE, 0, "hutch-client is started by hutch, and has no command %.80s; see hutch --help",
                  argc > 1 ? argv[1] : "without a name");
    return cli_fail(&err);
}
