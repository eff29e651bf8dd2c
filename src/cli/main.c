#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"run", cmd_run, "run one command behind a wall"},
    {"policy", cmd_policy, "check, show, explain and trust policies"},
    {"doctor", cmd_doctor, "what this host can enforce, and how to get the rest"},
    {"selftest", cmd_selftest, "attack a sandbox of this host and report what holds"},
    {"serve", cmd_serve, "daemon: serve sandboxes over HTTP"},
    {"config", cmd_config, "daemon: check and show its configuration"},
    {"create", cmd_create, "daemon: make a sandbox"},
    {"ls", cmd_ls, "daemon: list sandboxes"},
    {"info", cmd_info, "daemon: everything about one"},
    {"exec", cmd_exec, "daemon: run a command in one"},
    {"shell", cmd_shell, "daemon: a terminal in one"},
    {"cp", cmd_cp, "daemon: copy a file in or out"},
    {"logs", cmd_logs, "daemon: what happened to one"},
    {"top", cmd_top, "daemon: what they use"},
    {"kill", cmd_kill, "daemon: end sandboxes"},
    {"stop", cmd_stop, "daemon: end all sandboxes of the node"},
    {"env", cmd_env, "daemon: variables that point an E2B client at it"},
    {"key", cmd_key, "daemon: API keys"},
    {"tenant", cmd_tenant, "daemon: tenants and quotas"},
    {"template", cmd_template, "daemon: what sandboxes are made from"},
    {"gc", cmd_gc, "what is left of sandboxes that nobody knows"},
    {"completion", cmd_completion, "print shell completions (bash, zsh, fish)"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

int cli_fail(const struct err *err)
{
    fprintf(stderr, "hutch: %s\n", err->msg);
    return err->code ? err->code : ERR_INTERNAL;
}

static void help(FILE *to)
{
    fputs("hutch: every AI agent gets its own computer\n\nusage: hutch COMMAND [options]\n\n", to);
    for (unsigned i = 0; i < COMMANDS; i++)
        fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].help);
    fputs("\n`hutch COMMAND --help` explains one. First steps: hutch doctor, then hutch run -- sh\n", to);
}

static int unknown(const char *word)
{
    const char *names[COMMANDS + 1];
    struct err err = {0};
    for (unsigned i = 0; i < COMMANDS; i++)
        names[i] = commands[i].name;
    names[COMMANDS] = NULL;
    const char *near = text_nearest(word, names);
    if (near)
        (void)err_set(&err, ERR_USAGE, 0, "unknown command %s; did you mean %s?", word, near);
    else
        (void)err_set(&err, ERR_USAGE, 0, "unknown command %s; `hutch --help` lists all", word);
    return cli_fail(&err);
}

/* A missing standard stream would be taken by the next thing that is opened, and handed to the command as its own. */
static void fill_streams(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) /* inherited: it is a standard stream */
            _exit(ERR_SETUP);
}

int main(int argc, char **argv)
{
    fill_streams();
    if (argc < 2) {
        help(stderr);
        return ERR_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        puts("hutch " HUTCH_VERSION);
        return 0;
    }
    if (strcmp(argv[1], "keeper") == 0)
        return cmd_keeper(argc - 1, argv + 1);
    for (unsigned i = 0; i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    return unknown(argv[1]);
}
