#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/text.h"
#include "cli/cli.h"
#include "os/title.h"

extern char **environ;

/* What concerns the file of the pool works without a node. */
static int main_store(int argc, char **argv)
{
    static const char *const pool[] = {"grow", "shrink", "check"};
    for (size_t i = 0; argc > 1 && i < ARRAY_LEN(pool); i++)
        if (strcmp(argv[1], pool[i]) == 0)
            return cmd_store_pool(argc, argv);
    return cmd_client(argc, argv);
}

static const struct {
    const char *name;
    int (*run)(int argc, char **argv); /* NULL: a heading */
    const char *help;
} commands[] = {
    {"One command behind a wall, without a node:", NULL, NULL},
    {"run", cmd_run, "run a command that reads no secrets, writes only here, has no network"},
    {"tx", cmd_tx, "list what `run --tx` kept for a decision"},
    {"diff", cmd_diff, "show what a transaction would change"},
    {"apply", cmd_apply, "make the changes of a transaction on the host"},
    {"discard", cmd_discard, "drop a transaction"},
    {"policy", cmd_policy, "check, show, explain and trust policies"},
    {"doctor", cmd_doctor, "show what this host can enforce, and how to get the rest"},
    {"selftest", cmd_selftest, "attack a sandbox of this host and report what holds"},

    {"A node that keeps sandboxes, for operators:", NULL, NULL},
    {"serve", cmd_serve, "start the node: sandboxes over HTTP, for E2B's clients too"},
    {"config", cmd_config, "check and show the node's configuration"},
    {"key", cmd_client, "make, list and remove API keys"},
    {"tenant", cmd_client, "make, list and remove tenants and their quotas"},
    {"template", cmd_client, "build, import and list what sandboxes are made from"},
    {"stop", cmd_client, "end all sandboxes of the node"},
    {"gc", cmd_gc, "show and remove what orphaned sandboxes left behind"},
    {"store", main_store, "check, measure, clean and resize what the node keeps on disk"},
    {"cluster", cmd_serve, "check the engine that a cluster keeps its facts in"},
    {"audit", cmd_audit, "read and verify the log of what sandboxes sent out"},

    {"Sandboxes of a node:", NULL, NULL},
    {"create", cmd_client, "make one and print its id"},
    {"ls", cmd_client, "list them"},
    {"info", cmd_client, "show everything about one"},
    {"exec", cmd_client, "run a command in one"},
    {"code", cmd_client, "run code in one's interpreter: a file, an argument, or typed"},
    {"shell", cmd_client, "open a terminal in one"},
    {"cp", cmd_client, "copy a file in or out"},
    {"logs", cmd_client, "show what happened to one"},
    {"top", cmd_client, "show what they use"},
    {"timeout", cmd_client, "set how long one lives from now"},
    {"kill", cmd_client, "end them"},
    {"rm", cmd_client, "the same as kill"},
    {"pause", cmd_client, "pause them, with their memory or as files"},
    {"resume", cmd_client, "resume paused ones"},
    {"snapshot", cmd_client, "keep the files of one: create, ls, restore, rm"},
    {"fork", cmd_client, "make more with the same files"},
    {"history", cmd_client, "list, compare and restore generations of one's files"},
    {"try", cmd_client, "run a command on a copy of one's files, look, then commit or discard"},
    {"network", cmd_client, "show and change what one may reach"},
    {"url", cmd_client, "make a link to a port of one, or the port public"},
    {"volume", cmd_client, "make and fill directories that outlive sandboxes"},
    {"secret", cmd_client, "set values that sandboxes use and cannot read"},
    {"approvals", cmd_client, "decide what sandboxes ask to reach"},
    {"env", cmd_client, "print variables that point an E2B client at the node"},
    {"mcp", cmd_client, "serve all of this as tools to an agent, over MCP on standard input and output"},

    {"Nodes on other machines:", NULL, NULL},
    {"login", cmd_client, "take the key of a node and use that node from then on"},
    {"logout", cmd_client, "forget a node and its key"},
    {"profile", cmd_client, "list, choose and show the nodes that you logged in to"},

    {"Your shell:", NULL, NULL},
    {"completion", cmd_completion, "print completions for bash, zsh or fish"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void main_print_help(FILE *to)
{
    fputs("hutch: every AI agent gets its own computer\n\nusage: hutch COMMAND [options]\n\n", to);
    for (unsigned i = 0; i < COMMANDS; i++)
        if (commands[i].run)
            fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].help);
        else
            fprintf(to, "%s%s\n", i ? "\n" : "", commands[i].name);
    fputs("\n`hutch help COMMAND` explains one, with examples. `hutch version` prints the version.\n"
          "First steps: hutch doctor, then hutch run -- sh. For a node: hutch serve, then hutch create host.\n",
          to);
}

static int main_unknown_command(const char *word)
{
    const char *names[COMMANDS + 1];
    struct err err = {0};
    unsigned n = 0;
    for (unsigned i = 0; i < COMMANDS; i++)
        if (commands[i].run)
            names[n++] = commands[i].name;
    names[n] = NULL;
    const char *near = text_nearest(word, names);
    if (near)
        (void)err_set(&err, ERR_USAGE, 0, "unknown command %s; did you mean %s?", word, near);
    else
        (void)err_set(&err, ERR_USAGE, 0, "unknown command %s; `hutch --help` lists all", word);
    return cli_fail(&err);
}

/* hutch help [COMMAND]: the same as hutch COMMAND --help. */
static int main_help(const char *name)
{
    char help[] = "--help";
    for (unsigned i = 0; name && i < COMMANDS; i++)
        if (commands[i].run && strcmp(name, commands[i].name) == 0)
            return commands[i].run(2, (char *[]){(char *)name, help, NULL});
    if (name)
        return main_unknown_command(name);
    main_print_help(stdout);
    return 0;
}

/* hutch --url URL COMMAND: hutch-client takes these options there, too. */
static int main_run_with_choice(int n, int argc, char **argv)
{
    struct err err;
    if (n >= argc)
        return err_set(&err, ERR_USAGE, 0, "%s: a command must follow; `hutch --help` lists all", argv[0]),
               cli_fail(&err);
    for (unsigned i = 0; i < COMMANDS; i++)
        if (commands[i].run && strcmp(argv[n], commands[i].name) == 0 &&
            (commands[i].run == cmd_client || commands[i].run == main_store))
            return cmd_client(argc, argv);
    for (unsigned i = 0; i < COMMANDS; i++)
        if (commands[i].run && strcmp(argv[n], commands[i].name) == 0)
            return err_set(&err, ERR_USAGE, 0, "%s: `hutch %s` talks to no node", argv[0], argv[n]), cli_fail(&err);
    return main_unknown_command(argv[n]);
}

static int main_run(int argc, char **argv)
{
    int choice = cli_count_choice(argc - 1, argv + 1);
    if (choice > 0)
        return main_run_with_choice(choice, argc - 1, argv + 1);
    if (argc < 2) {
        main_print_help(stderr);
        return ERR_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0)
        return main_help(argv[1][0] == 'h' ? argv[2] : NULL);
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0 || strcmp(argv[1], "version") == 0) {
        puts("hutch " HUTCH_VERSION);
        return 0;
    }
    if (strcmp(argv[1], "lay") == 0)
        return cmd_lay(argc - 1, argv + 1);
    if (strcmp(argv[1], "keeper") == 0)
        return cmd_keeper(argc - 1, argv + 1);
    if (strcmp(argv[1], "layers") == 0)
        return cmd_layers(argc - 1, argv + 1);
    if (strcmp(argv[1], "pool") == 0)
        return cmd_pool(argc - 1, argv + 1);
    for (unsigned i = 0; i < COMMANDS; i++)
        if (commands[i].run && strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    return main_unknown_command(argv[1]);
}

int main(int argc, char **argv)
{
    title_note(argv, environ);
    cli_fill_streams();
    return cli_end_output(main_run(argc, argv));
}
