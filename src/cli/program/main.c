#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
    return cmd_store(argc, argv);
}

static const struct {
    const char *name;
    int (*run)(int argc, char **argv); /* NULL: a heading */
    const char *help;
} commands[] = {
    {"One command behind a wall, without a daemon:", NULL, NULL},
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
    {"key", cmd_key, "make, list and remove API keys"},
    {"tenant", cmd_tenant, "make, list and remove tenants and their quotas"},
    {"template", cmd_template, "build, import and list what sandboxes are made from"},
    {"stop", cmd_stop, "end all sandboxes of the node"},
    {"gc", cmd_gc, "show and remove what orphaned sandboxes left behind"},
    {"store", main_store, "check, measure, clean and resize what the node keeps on disk"},
    {"audit", cmd_audit, "read and verify the log of what sandboxes sent out"},

    {"Sandboxes of a node:", NULL, NULL},
    {"create", cmd_create, "make one and print its id"},
    {"ls", cmd_ls, "list them"},
    {"info", cmd_info, "show everything about one"},
    {"exec", cmd_exec, "run a command in one"},
    {"shell", cmd_shell, "open a terminal in one"},
    {"cp", cmd_cp, "copy a file in or out"},
    {"logs", cmd_logs, "show what happened to one"},
    {"top", cmd_top, "show what they use"},
    {"kill", cmd_kill, "end them"},
    {"pause", cmd_pause, "pause them, with their memory or as files"},
    {"resume", cmd_resume, "resume paused ones"},
    {"snapshot", cmd_snapshot, "keep the files of one: create, ls, restore, rm"},
    {"fork", cmd_fork, "make more with the same files"},
    {"history", cmd_history, "list, compare and restore generations of one's files"},
    {"try", cmd_try, "run a command on a copy of one's files, look, then commit or discard"},
    {"network", cmd_network, "show and change what one may reach"},
    {"url", cmd_url, "make a link to a port of one, or the port public"},
    {"volume", cmd_volume, "make and fill directories that outlive sandboxes"},
    {"secret", cmd_secret, "set values that sandboxes use and never hold"},
    {"approvals", cmd_approvals, "decide what sandboxes ask to reach"},
    {"env", cmd_env, "print variables that point an E2B client at the node"},

    {"Your shell:", NULL, NULL},
    {"completion", cmd_completion, "print completions for bash, zsh or fish"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

int cli_fail(const struct err *err)
{
    fprintf(stderr, "hutch: %s\n", err->msg);
    return err->code ? err->code : ERR_INTERNAL;
}

static void main_print_help(FILE *to)
{
    fputs("hutch: every AI agent gets its own computer\n\nusage: hutch COMMAND [options]\n\n", to);
    for (unsigned i = 0; i < COMMANDS; i++)
        if (commands[i].run)
            fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].help);
        else
            fprintf(to, "%s%s\n", i ? "\n" : "", commands[i].name);
    fputs("\n`hutch COMMAND --help` explains one, with examples. `hutch --version` prints the version.\n"
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

/* The next open() would take the number of a missing standard stream, and the command would inherit that file. */
static void fill_streams(void)
{
    /* Modes that let reads of stdin and writes to stdout fail; writes to stderr are discarded. */
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDWR};
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd]) != fd) /* inherited: it is a standard stream */
            _exit(ERR_SETUP);
}

static char lost_note[400];

void cli_if_lost(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(lost_note, sizeof lost_note, fmt, ap);
    va_end(ap);
}

/* Turns success into a failure if the output could not be written. */
static int main_end_output(int code)
{
    struct err err;
    errno = 0;
    bool lost = ferror(stdout); /* errno of that time is gone */
    if (fflush(stdout) != 0 || (close(STDOUT_FILENO) < 0 && errno != EBADF))
        lost = true;
    if (!lost)
        return code;
    if (lost_note[0])
        (void)fprintf(stderr, "hutch: %s\n", lost_note);
    if (code != 0)
        return code; /* the command has reported its error */
    (void)err_set(&err, ERR_INTERNAL, errno, "the result could not be written to standard output");
    return cli_fail(&err);
}

static int main_run(int argc, char **argv)
{
    if (argc < 2) {
        main_print_help(stderr);
        return ERR_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        main_print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        puts("hutch " HUTCH_VERSION);
        return 0;
    }
    if (strcmp(argv[1], "lay") == 0)
        return cmd_lay(argc - 1, argv + 1);
    if (strcmp(argv[1], "keeper") == 0)
        return cmd_keeper(argc - 1, argv + 1);
    if (strcmp(argv[1], "volume-op") == 0)
        return cmd_volume_op(argc - 1, argv + 1);
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
    fill_streams();
    return main_end_output(main_run(argc, argv));
}
