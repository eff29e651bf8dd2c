#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"
#include "os/title.h"

extern char **environ;

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
    {"discard", cmd_discard, "forget a transaction"},
    {"policy", cmd_policy, "check, show, explain and trust policies"},
    {"doctor", cmd_doctor, "what this host can enforce, and how to get the rest"},
    {"selftest", cmd_selftest, "attack a sandbox of this host and report what holds"},

    {"A node that keeps sandboxes, for operators:", NULL, NULL},
    {"serve", cmd_serve, "start the node: sandboxes over HTTP, for E2B's clients too"},
    {"config", cmd_config, "check and show the node's configuration"},
    {"key", cmd_key, "make, list and remove API keys"},
    {"tenant", cmd_tenant, "make, list and remove tenants and their quotas"},
    {"template", cmd_template, "build, import and list what sandboxes are made from"},
    {"stop", cmd_stop, "end all sandboxes of the node"},
    {"gc", cmd_gc, "what is left of sandboxes that nobody knows"},
    {"store", cmd_store, "what the node keeps on disk: how much, is it whole, what may go"},
    {"audit", cmd_audit, "what sandboxes sent out, and whether the log of it is whole"},

    {"Sandboxes of a node:", NULL, NULL},
    {"create", cmd_create, "make one and print its id"},
    {"ls", cmd_ls, "list them"},
    {"info", cmd_info, "everything about one"},
    {"exec", cmd_exec, "run a command in one"},
    {"shell", cmd_shell, "open a terminal in one"},
    {"cp", cmd_cp, "copy a file in or out"},
    {"logs", cmd_logs, "what happened to one"},
    {"top", cmd_top, "what they use"},
    {"kill", cmd_kill, "end them"},
    {"pause", cmd_pause, "let them stand still, with their memory or as files"},
    {"resume", cmd_resume, "let paused ones go on"},
    {"snapshot", cmd_snapshot, "keep the files of one: create, ls, restore, rm"},
    {"fork", cmd_fork, "make more with the same files"},
    {"history", cmd_history, "the past of one's files: list, compare, go back"},
    {"try", cmd_try, "run a command on a copy of one's files, look, then commit or discard"},
    {"network", cmd_network, "what one may reach: show, set, allow, deny"},
    {"url", cmd_url, "a link to a port of one, or make the port public"},
    {"volume", cmd_volume, "directories that outlive sandboxes and that several share"},
    {"secret", cmd_secret, "values that sandboxes use and never hold"},
    {"approvals", cmd_approvals, "decide what sandboxes ask to reach"},
    {"env", cmd_env, "variables that point an E2B client at the node"},

    {"Your shell:", NULL, NULL},
    {"completion", cmd_completion, "print completions for bash, zsh or fish"},
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
        if (commands[i].run)
            fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].help);
        else
            fprintf(to, "%s%s\n", i ? "\n" : "", commands[i].name);
    fputs("\n`hutch COMMAND --help` explains one, with examples. `hutch --version` prints the version.\n"
          "First steps: hutch doctor, then hutch run -- sh. For a node: hutch serve, then hutch create host.\n",
          to);
}

static int unknown(const char *word)
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

/* A missing standard stream would be taken by the next thing that is opened, and handed to the command as its own. */
static void fill_streams(void)
{
    /* What is read from or written to a stream that is missing must fail, but what stderr would have said is not missed. */
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

/* A result that did not arrive is a failure, whatever the command thinks of it. */
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
        return code; /* it said why */
    (void)err_set(&err, ERR_INTERNAL, errno, "the result could not be written to standard output");
    return cli_fail(&err);
}

static int main_run(int argc, char **argv)
{
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
    if (strcmp(argv[1], "lay") == 0)
        return cmd_lay(argc - 1, argv + 1);
    if (strcmp(argv[1], "keeper") == 0)
        return cmd_keeper(argc - 1, argv + 1);
    if (strcmp(argv[1], "volume-op") == 0)
        return cmd_volume_op(argc - 1, argv + 1);
    if (strcmp(argv[1], "stock") == 0)
        return cmd_stock(argc - 1, argv + 1);
    for (unsigned i = 0; i < COMMANDS; i++)
        if (commands[i].run && strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    return unknown(argv[1]);
}

int main(int argc, char **argv)
{
    title_note(argv, environ);
    fill_streams();
    return main_end_output(main_run(argc, argv));
}
