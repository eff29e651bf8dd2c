#include "policy/run/names.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "policy/run/policy.h"

#define GIT(is_dir, absent, id, name, reason)                                      \
    {                                                                              \
        name, is_dir, NAME_REFUSED, NAME_IN_GIT, absent, "builtin.git-" id, reason \
    }
#define PROJECT(is_dir, absent, id, name, reason)                                  \
    {                                                                              \
        name, is_dir, NAME_REFUSED, NAME_IN_PROJECT, absent, "builtin." id, reason \
    }
#define HOME(is_dir, id, name, reason)                                             \
    {                                                                              \
        name, is_dir, NAME_REFUSED, NAME_IN_HOME, NAME_STUB, "builtin." id, reason \
    }
#define REPORT(is_dir, id, name, reason)                                                \
    {                                                                                   \
        name, is_dir, NAME_REPORTED, NAME_IN_PROJECT, NAME_LEAVE, "builtin." id, reason \
    }

#define GIT_CONFIG  "every git command reads it and runs programs that it names (core.fsmonitor, core.sshCommand)"
#define SHELL_START "a shell runs it when it starts"
#define CODING_TOOL "a coding tool started there runs hooks and servers that it names"
#define VIM_START   "vim and neovim run it when they start there, with `exrc` set"
#define HOME_BIN    "programs in it are found by name: it is in PATH"

/* Each absent name costs a stub on the host and a mount inside per run, so only names that are executed are listed. */
static const struct known_name known[] = {
    GIT(true, NAME_STUB, "hooks", ".git/hooks", "git runs what is in it on commit, checkout, merge and push"),
    GIT(false, NAME_STUB, "config", ".git/config", GIT_CONFIG),
    GIT(false, NAME_STUB, "config", ".git/config.worktree", GIT_CONFIG),
    GIT(true, NAME_LEAVE, "rebase", ".git/rebase-merge", "`git rebase --continue` runs the `exec` lines of its list"),
    {".gitmodules", false, NAME_REFUSED, NAME_IN_REPOSITORY, NAME_STUB, "builtin.git-modules",
     "git fetches submodules from where it says, and runs update commands"},

    PROJECT(false, NAME_STUB_NEAR, "hg", ".hg/hgrc",
            "every hg command reads it and runs hooks and extensions it names"),
    PROJECT(false, NAME_LEAVE, "jj", ".jj/repo/config.toml",
            "jj reads it and runs tools and signing programs it names"),
    PROJECT(false, NAME_STUB, "direnv", ".envrc", "direnv runs it when a shell enters the directory"),
    PROJECT(true, NAME_STUB, "editor", ".vscode", "VS Code runs tasks and programs that its settings name"),
    PROJECT(true, NAME_STUB, "editor", ".idea", "JetBrains editors run configurations and tools that it names"),
    PROJECT(true, NAME_STUB, "editor", ".zed", "Zed runs tasks and language servers that it names"),
    PROJECT(false, NAME_STUB, "editor", ".exrc", VIM_START),
    PROJECT(false, NAME_STUB, "editor", ".vimrc", VIM_START),
    PROJECT(false, NAME_STUB, "editor", ".nvimrc", VIM_START),
    PROJECT(false, NAME_STUB, "editor", ".nvim.lua", VIM_START),
    PROJECT(false, NAME_STUB, "r", ".Rprofile", "R runs it when it starts there"),
    PROJECT(true, NAME_STUB, "agent", ".claude", CODING_TOOL),
    PROJECT(true, NAME_STUB, "agent", ".cursor", CODING_TOOL),
    PROJECT(true, NAME_STUB, "agent", ".codex", CODING_TOOL),
    PROJECT(true, NAME_STUB, "agent", ".gemini", CODING_TOOL),
    PROJECT(true, NAME_STUB, "agent", ".windsurf", CODING_TOOL),
    PROJECT(false, NAME_STUB, "agent", ".mcp.json", CODING_TOOL),
    PROJECT(false, NAME_STUB, "agent", ".aider.conf.yml", CODING_TOOL),
    PROJECT(false, NAME_STUB, "tool", ".hutch.yaml", "hutch takes the project's policy from it"),

    HOME(false, "shell", ".bashrc", SHELL_START),
    HOME(false, "shell", ".bash_profile", SHELL_START),
    HOME(false, "shell", ".bash_login", SHELL_START),
    HOME(false, "user-shell", ".bash_logout", "bash runs it when a login ends"),
    HOME(false, "user-shell", ".bash_aliases", "Debian's .bashrc runs it"),
    HOME(false, "shell", ".profile", SHELL_START),
    HOME(false, "shell", ".zshrc", SHELL_START),
    HOME(false, "shell", ".zshenv", SHELL_START),
    HOME(false, "shell", ".zprofile", SHELL_START),
    HOME(false, "user-shell", ".zlogin", SHELL_START),
    HOME(false, "user-shell", ".zlogout", "zsh runs it when a login ends"),
    HOME(false, "user-shell", ".inputrc", "shells bind keys to commands by it"),
    HOME(false, "user-shell", ".pam_environment", "logins take variables from it"),
    HOME(true, "user-fish", ".config/fish", SHELL_START),
    HOME(false, "user-cargo", ".cargo/env", "shell start-up files run it"),
    HOME(true, "user-nvm", ".nvm", "shell start-up files run nvm.sh in it"),
    HOME(false, "git-config", ".gitconfig", GIT_CONFIG),
    HOME(true, "user-git", ".config/git", GIT_CONFIG),
    HOME(false, "user-editor", ".vimrc", "vim runs it when it starts"),
    HOME(true, "user-editor", ".vim", "vim runs the plugins in it when it starts"),
    HOME(true, "user-editor", ".config/nvim", "neovim runs the configuration and plugins in it when it starts"),
    HOME(false, "user-tmux", ".tmux.conf", "tmux runs commands in it when it starts"),
    HOME(false, "tool", ".ripgreprc", "ripgrep runs a preprocessor that it names"),
    HOME(true, "autostart", ".config/autostart", "desktops start programs that it names"),
    HOME(true, "autostart", ".config/systemd", "the user's systemd starts units in it"),
    HOME(true, "autostart", ".config/environment.d", "the user's systemd sets variables from it"),
    HOME(true, "user-bin", ".local/bin", HOME_BIN),
    HOME(true, "user-bin", "bin", HOME_BIN),
    HOME(true, "user-bin", ".cargo/bin", HOME_BIN),
    HOME(true, "hutch-policy", ".config/hutch", "hutch takes your policy from it"),
    HOME(true, "hutch-state", ".local/state/hutch",
         "hutch keeps there which project policies you trust, and transactions"),

    REPORT(false, "npm", ".npmrc",
           "npm takes registries, shells and script settings from it; projects have one for theirs"),
    REPORT(false, "yarn", ".yarnrc.yml", "yarn runs the release and the plugins that it names; `yarn set` writes it"),
    REPORT(false, "cargo", ".cargo/config.toml",
           "cargo runs wrappers, linkers and runners that it names; builds need it"),
    REPORT(false, "cargo", ".cargo/config", "the older name of `.cargo/config.toml`"),
    REPORT(true, "devcontainer", ".devcontainer", "editors build and start it, and run its commands, when asked to"),
    REPORT(false, "devcontainer", ".devcontainer.json", "the same as one file"),
};

const struct known_name *names_known(size_t *ret_n)
{
    *ret_n = ARRAY_LEN(known);
    return known;
}

/* Whether `path` is `name` or lies below it. */
static bool name_covers(const char *name, const char *path)
{
    size_t n = strlen(name);
    return strncmp(path, name, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

/* ".git/modules/a/b/hooks/x" -> "hooks/x": what a name of git's is compared with in the git directories of submodules and
 * worktrees. Every directory on the way may be one. */
static bool in_inner_git(const char *name, const char *path)
{
    const char *rest = name_covers(".git/modules", path)     ? path + strlen(".git/modules")
                       : name_covers(".git/worktrees", path) ? path + strlen(".git/worktrees")
                                                             : NULL;
    for (; rest && *rest; rest = strchr(rest + 1, '/'))
        if (name_covers(name + strlen(".git/"), rest + 1))
            return true;
    return false;
}

static bool name_matches(const char *name, enum name_place place, enum name_base base, const char *path)
{
    if (place == NAME_IN_HOME && base != NAME_BELOW_HOME)
        return false;
    return name_covers(name, path) || (place == NAME_IN_GIT && in_inner_git(name, path));
}

/* The verdict at one directory: names of the policy are refused; names of the table alone are reported, or refused if
 * there is no policy. */
static struct name_verdict judge_here(const struct policy *p, enum name_base base, const char *path)
{
    const struct known_name *found = NULL;
    for (size_t i = 0; i < ARRAY_LEN(known) && !found; i++)
        if (name_matches(known[i].name, known[i].place, base, path))
            found = &known[i];
    for (size_t i = 0; p && i < p->nnames; i++) {
        const struct protected_name *n = &p->names[i];
        if (name_matches(n->name, n->place, base, path))
            return (struct name_verdict){NAME_REFUSED, n->name, n->id, n->reason};
    }
    if (!found)
        return (struct name_verdict){.class = NAME_NONE};
    return (struct name_verdict){p ? NAME_REPORTED : found->class, found->name, found->id, found->reason};
}

struct name_verdict name_judge(const struct policy *p, enum name_base base, const char *path)
{
    struct name_verdict v = judge_here(p, base, path);
    while (v.class == NAME_NONE) {
        const char *slash = strchr(path, '/');
        if (!slash)
            return v;
        path = slash + 1;
        v = judge_here(p, NAME_BELOW_ROOT, path);
        if (v.class != NAME_NONE)
            v.class = NAME_REPORTED;
    }
    return v;
}

/* --- docs/policy.md ----------------------------------------------------------------------------------------------- */

static const char *place_words(const struct known_name *n)
{
    if (n->class == NAME_REPORTED)
        return "any directory";
    switch (n->place) {
    case NAME_IN_PROJECT:
        return "project";
    case NAME_IN_REPOSITORY:
        return "repository";
    case NAME_IN_GIT:
        return "git directory";
    case NAME_IN_HOME:
        return "home";
    }
    return "";
}

/* Names that stand one after the other for the same reason share a row. */
static bool same_row(const struct known_name *a, const struct known_name *b)
{
    return a->class == b->class && a->place == b->place && a->absent == b->absent && strcmp(a->reason, b->reason) == 0;
}

static void add_rows(struct buf *out, enum name_class class)
{
    for (size_t i = 0; i < ARRAY_LEN(known);) {
        size_t k = i;
        for (; k < ARRAY_LEN(known) && same_row(&known[i], &known[k]); k++)
            if (known[k].class == class)
                buf_addf(out, "%s`%s%s%s`", k == i ? "| " : ", ", known[k].place == NAME_IN_HOME ? "~/" : "",
                         known[k].name, known[k].is_dir ? "/" : "");
        if (known[i].class == class && class == NAME_REFUSED)
            buf_addf(out, " | %s | %s | %s |\n", place_words(&known[i]),
                     known[i].absent == NAME_LEAVE ? "listed" : "refused", known[i].reason);
        else if (known[i].class == class)
            buf_addf(out, " | %s | %s |\n", place_words(&known[i]), known[i].reason);
        i = k;
    }
}

void names_add_docs(struct buf *out)
{
    buf_adds(out, "| refused | where | a new one | why |\n|---|---|---|---|\n");
    add_rows(out, NAME_REFUSED);
    buf_adds(out, "\n| reported | where | why |\n|---|---|---|\n");
    add_rows(out, NAME_REPORTED);
}
