/* completion.c - `hutch completion bash|zsh|fish`: scripts made from the same table that parses `hutch run`. */
#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/run/options.h"

struct word {
    const char *name, *help;
    const char *next; /* words that may follow; a first '@' adds ids of running sandboxes, '=' adds files */
};

#define WORD_ID    "@ "
#define WORD_FILES "= "

static const char *words_of(const struct word *w) { return w->next + (strchr("@=", w->next[0]) ? 2 : 0); }

/* Options of every command that talks to a node. */
#define NODE " --url --profile --ca --cert --key --json --help"

static const struct word commands[] = {
    {"run", "run a command behind the wall", NULL},
    {"tx", "transactions that wait for a decision", "ls --help"},
    {"diff", "what a transaction would change", "--help"},
    {"apply", "make the changes of a transaction on the host", "--allow-protected --force --help"},
    {"discard", "drop a transaction", "--help"},
    {"policy", "check, show and explain policies", "check show explain trust --help"},
    {"doctor", "what this host can enforce, and how to get the rest", "--json --quiet --help"},
    {"selftest", "attack the wall on this host and print what happened", "--json --group --help"},
    {"serve", "start a node",
     "--config --state --run --listen --listen-tls --domain --tls-cert --tls-key --tls-dev --no-base --help"},
    {"config", "check and show the configuration of a node", "check show --help"},
    {"key", "API keys of a node", "create ls rm --tenant --name --scope --expires" NODE},
    {"tenant", "tenants and quotas of a node",
     "create set info ls rm --name --sandboxes --memory --disk --cpus --storage --files --rate" NODE},
    {"template", "what sandboxes are made from",
     "ls inspect rm set build import export restore --file --tag --cpu --memory --build-arg --target --ready "
     "--no-cache "
     "--username --password-stdin --output --history --public" NODE},
    {"stop", "end all sandboxes of the node", "--all" NODE},
    {"gc", "show and remove what orphaned sandboxes left behind", "--remove --run --state --help"},
    {"store", "what the node keeps on disk", "df gc verify --dry-run" NODE},
    {"cluster", "the engine of a cluster", "check --engine --help"},
    {"audit", "what sandboxes sent out",
     "tail query verify --follow --lines --sandbox --tenant --host --verdict --since --until --last --json --dir "
     "--help"},
    {"create", "make a sandbox",
     "base host --timeout --env --metadata --network --allow --preset --publish --refusals --secret --volume "
     "--history --name --memory --cpus --disk --label --rm --stdin --tty" NODE},
    {"ls", "list sandboxes", "--quiet --state --template --label --watch" NODE},
    {"info", "everything about a sandbox", WORD_ID NODE},
    {"exec", "run a command in a sandbox",
     WORD_ID "--stdin --tty --detach --env --workdir --chdir --user --no-network --ro --write --own-user --timeout "
             "--output-limit --memory" NODE},
    {"code", "run code in a sandbox's interpreter",
     WORD_ID "--code --language --context --env --timeout --images --output --no-network "
             "--ro --write --output-limit" NODE},
    {"shell", "a terminal in a sandbox", WORD_ID "--user" NODE},
    {"cp", "copy a file into or out of a sandbox", WORD_FILES "--recursive --user" NODE},
    {"logs", "what happened to a sandbox", WORD_ID "--follow" NODE},
    {"top", "what sandboxes use", "--once" NODE},
    {"timeout", "set how long a sandbox lives from now", WORD_ID NODE},
    {"kill", "end sandboxes", WORD_ID "--all" NODE},
    {"rm", "end sandboxes, like kill", WORD_ID "--all" NODE},
    {"pause", "pause sandboxes", WORD_ID "--files" NODE},
    {"resume", "resume paused sandboxes", WORD_ID "--timeout --files" NODE},
    {"snapshot", "keep the files of a sandbox", "create ls restore rm --name --sandbox --timeout" NODE},
    {"fork", "make sandboxes with the files of one", WORD_ID "--count --timeout" NODE},
    {"history", "the past of a sandbox's files", "ls save diff cat undo --text" NODE},
    {"try", "run a command on a copy of a sandbox's files", "run ls show commit discard" NODE},
    {"network", "what a sandbox may reach",
     "show set allow deny denials stats usage learned check --allow --refusals --secret --method" NODE},
    {"url", "a link to a port of a sandbox", WORD_ID "--expires --path --public --private --localhost --revoke" NODE},
    {"volume", "directories that outlive sandboxes",
     "create resize ls inspect rm put get --quota --entries --force" NODE},
    {"secret", "values that sandboxes use and never hold",
     "set ls rm --value-file --host --path --method --bearer --header --format --basic --query --env --placeholder "
     "--spec "
     "--keep-value" NODE},
    {"approvals", "decide what sandboxes ask to reach", "ls allow deny --for --always" NODE},
    {"env", "variables that point an E2B client at the node", "--http --https" NODE},
    {"mcp", "tools of the node for an agent", "--url --profile --ca --cert --key --help"},
    {"login", "use a node on another machine", "--name --key-file --ca --cert --key --plain --json --help"},
    {"logout", "forget a node and its key", "--json --help"},
    {"profile", "nodes that you logged in to", "ls use show --json --help"},
    {"completion", "print a completion script", "bash zsh fish"},
};

static const char usage[] = "usage: hutch completion bash|zsh|fish\n"
                            "\n"
                            "Prints a completion script. For the running shell:\n"
                            "\n"
                            "  bash   source <(hutch completion bash)\n"
                            "  zsh    hutch completion zsh >\"${fpath[1]}/_hutch\"\n"
                            "  fish   hutch completion fish >~/.config/fish/completions/hutch.fish\n";

/* How to complete the value of an option, derived from its placeholder in --help. */
enum value_kind { VALUE_NONE, VALUE_FREE, VALUE_DIR, VALUE_FILE, VALUE_WORDS };

static enum value_kind completion_value_kind(const char *arg)
{
    if (!arg)
        return VALUE_NONE;
    if (strchr(arg, '|') && islower((unsigned char)arg[0]))
        return VALUE_WORDS;
    if (strncmp(arg, "DIR", 3) == 0)
        return VALUE_DIR;
    if (strstr(arg, "FILE") || strstr(arg, "PATH") || strstr(arg, "SRC"))
        return VALUE_FILE;
    return VALUE_FREE;
}

/* "off|public|host" becomes "off public host". */
static void add_words(struct buf *out, const char *arg)
{
    for (; *arg; arg++)
        buf_addc(out, *arg == '|' ? ' ' : *arg);
}

/* Text between single quotes; characters in `special` get a backslash. */
static void add_quoted(struct buf *out, const char *text, const char *special)
{
    for (; *text; text++) {
        if (*text == '\'')
            buf_adds(out, "'\\''");
        else if (strchr(special, *text))
            buf_addf(out, "\\%c", *text);
        else
            buf_addc(out, *text);
    }
}

/* --- bash ----------------------------------------------------------------------------------------------------------- */

static void bash_values(struct buf *out)
{
    for (const struct run_option *o = run_options; o->name; o++) {
        enum value_kind kind = completion_value_kind(o->arg);
        if (kind == VALUE_NONE)
            continue;
        buf_addf(out, "    --%s", o->name);
        if (o->short_name)
            buf_addf(out, " | -%c", o->short_name);
        buf_adds(out, ")\n        ");
        if (kind == VALUE_WORDS) {
            buf_adds(out, "COMPREPLY=($(compgen -W '");
            add_words(out, o->arg);
            buf_adds(out, "' -- \"$cur\"))\n");
        } else if (kind == VALUE_FREE) {
            buf_adds(out, "COMPREPLY=()\n");
        } else {
            buf_addf(out, "compopt -o filenames 2>/dev/null\n        COMPREPLY=($(compgen -%c -- \"$cur\"))\n",
                     kind == VALUE_DIR ? 'd' : 'f');
        }
        buf_adds(out, "        return ;;\n");
    }
}

static void bash_script(struct buf *out)
{
    buf_adds(out, "# bash completion for hutch\n"
                  "_hutch_run() {\n"
                  "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} i\n"
                  "    for ((i = 2; i < COMP_CWORD; i++)); do\n"
                  "        if [[ ${COMP_WORDS[i]} == -- ]]; then\n"
                  "            if declare -F _command_offset >/dev/null; then _command_offset $((i + 1))\n"
                  "            else COMPREPLY=($(compgen -c -- \"$cur\")); fi\n"
                  "            return\n"
                  "        fi\n"
                  "    done\n"
                  "    case $prev in\n");
    bash_values(out);
    buf_adds(out, "    esac\n    COMPREPLY=($(compgen -W '--");
    for (const struct run_option *o = run_options; o->name; o++)
        buf_addf(out, " --%s", o->name);
    buf_adds(out, "' -- \"$cur\"))\n}\n"
                  "_hutch() {\n"
                  "    local cur=${COMP_WORDS[COMP_CWORD]}\n"
                  "    COMPREPLY=()\n"
                  "    if ((COMP_CWORD == 1)); then\n        COMPREPLY=($(compgen -W '--help --version");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        buf_addf(out, " %s", commands[i].name);
    buf_adds(out, "' -- \"$cur\"))\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n    run) _hutch_run ;;\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (commands[i].next && commands[i].next[0] == '=')
            buf_addf(out,
                     "    %s) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -W '%s' -- \"$cur\")) ;;\n",
                     commands[i].name, words_of(&commands[i]));
        else if (commands[i].next)
            buf_addf(out, "    %s) COMPREPLY=($(compgen -W '%s'%s -- \"$cur\")) ;;\n", commands[i].name,
                     words_of(&commands[i]), commands[i].next[0] == '@' ? "\" $(hutch ls -q 2>/dev/null)\"" : "");
    buf_adds(out, "    esac\n}\ncomplete -F _hutch hutch\n");
}

/* --- zsh ------------------------------------------------------------------------------------------------------------ */

static void zsh_option(struct buf *out, const struct run_option *o)
{
    enum value_kind kind = completion_value_kind(o->arg);
    buf_addf(out, "        '*--%s%s[", o->name, kind == VALUE_NONE ? "" : "=");
    add_quoted(out, o->help, "[]\\");
    buf_addc(out, ']');
    if (kind != VALUE_NONE) {
        buf_addc(out, ':');
        add_quoted(out, o->arg, ":\\");
        buf_addc(out, ':');
    }
    if (kind == VALUE_WORDS) {
        buf_addc(out, '(');
        add_words(out, o->arg);
        buf_addc(out, ')');
    } else if (kind == VALUE_DIR) {
        buf_adds(out, "_files -/");
    } else if (kind == VALUE_FILE) {
        buf_adds(out, "_files");
    }
    buf_adds(out, "' \\\n");
}

static void zsh_script(struct buf *out)
{
    buf_adds(out, "#compdef hutch\n"
                  "_hutch_run() {\n"
                  "    _arguments -s -S \\\n");
    for (const struct run_option *o = run_options; o->name; o++)
        zsh_option(out, o);
    buf_adds(out, "        '(-):command:_command_names -e' \\\n"
                  "        '*::arguments:_normal'\n"
                  "}\n"
                  "_hutch() {\n"
                  "    local -a commands=(\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        buf_addf(out, "        '%s:", commands[i].name);
        add_quoted(out, commands[i].help, ":\\");
        buf_adds(out, "'\n");
    }
    buf_adds(out, "    )\n"
                  "    if ((CURRENT == 2)); then _describe command commands; return; fi\n"
                  "    local command=${words[2]}\n"
                  "    shift words; ((CURRENT--))\n"
                  "    case $command in\n"
                  "    run) _hutch_run ;;\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (commands[i].next)
            buf_addf(out, "    %s) compadd -- %s%s ;;\n", commands[i].name, words_of(&commands[i]),
                     commands[i].next[0] == '@'   ? " ${(f)\"$(hutch ls -q 2>/dev/null)\"}"
                     : commands[i].next[0] == '=' ? "; _files"
                                                  : "");
    buf_adds(out, "    esac\n}\n_hutch \"$@\"\n");
}

/* --- fish ----------------------------------------------------------------------------------------------------------- */

static void fish_option(struct buf *out, const struct run_option *o)
{
    enum value_kind kind = completion_value_kind(o->arg);
    buf_addf(out, "complete -c hutch -n '__fish_seen_subcommand_from run' -l %s", o->name);
    if (o->short_name)
        buf_addf(out, " -s %c", o->short_name);
    if (kind == VALUE_WORDS) {
        buf_adds(out, " -x -a '");
        add_words(out, o->arg);
        buf_addc(out, '\'');
    } else if (kind == VALUE_DIR) {
        buf_adds(out, " -x -a '(__fish_complete_directories)'");
    } else if (kind == VALUE_FILE) {
        buf_adds(out, " -r -F");
    } else if (kind == VALUE_FREE) {
        buf_adds(out, " -x");
    }
    buf_adds(out, " -d '");
    add_quoted(out, o->help, "");
    buf_adds(out, "'\n");
}

static void fish_script(struct buf *out)
{
    buf_adds(out, "# fish completion for hutch\ncomplete -c hutch -f\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        buf_addf(out, "complete -c hutch -n __fish_use_subcommand -a %s -d '", commands[i].name);
        add_quoted(out, commands[i].help, "");
        buf_adds(out, "'\n");
        if (commands[i].next)
            buf_addf(out, "complete -c hutch -n '__fish_seen_subcommand_from %s'%s -a '%s%s'\n", commands[i].name,
                     commands[i].next[0] == '=' ? " -F" : "", words_of(&commands[i]),
                     commands[i].next[0] == '@' ? " (hutch ls -q 2>/dev/null)" : "");
    }
    for (const struct run_option *o = run_options; o->name; o++)
        fish_option(out, o);
    buf_adds(out, "complete -c hutch -n '__fish_seen_subcommand_from run' -x -a '(__fish_complete_subcommand)'\n");
}

int cmd_completion(int argc, char **argv)
{
    static const struct {
        const char *shell;
        void (*print)(struct buf *out);
    } shells[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};
    _cleanup_buf_ struct buf out = {0};
    struct err err;
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        buf_adds(&out, usage);
    for (size_t i = 0; argc == 2 && i < ARRAY_LEN(shells); i++)
        if (strcmp(argv[1], shells[i].shell) == 0)
            shells[i].print(&out);
    if (out.n == 0) {
        (void)err_set(&err, ERR_USAGE, 0,
                      "completion needs one of bash, zsh, fish; for example: hutch completion bash");
        return cli_fail(&err);
    }
    if (fd_write_all(STDOUT_FILENO, out.p, out.n) < 0) {
        (void)err_set(&err, ERR_INTERNAL, 0, "completion: standard output is closed or full");
        return cli_fail(&err);
    }
    return 0;
}
