/* defaults.c - the built-in level, as tables. Every entry has an id that records and `explain` show.
 *
 * Denied for reading is what lets its reader act as the user elsewhere, or reveals what the user did. Names protected
 * from writing, because programs outside the sandbox run or trust them, are in names.c.
 */
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "policy/run/doc.h"

struct path_default {
    const char *id, *path; /* "~/" stands for the home directory, "./" for the working directory */
    bool glob;
};

static const struct path_default deny_read[] = {
    /* keys */
    {"builtin.ssh", "~/.ssh", false},
    {"builtin.gnupg", "~/.gnupg", false},
    {"builtin.ssh-host-keys", "/etc/ssh/ssh_host_*_key", true},
    {"builtin.tls-private", "/etc/ssl/private", false},
    {"builtin.age", "~/.config/sops", false},
    {"builtin.age", "~/.age", false},
    /* the host's own secrets */
    {"builtin.shadow", "/etc/shadow", false},
    {"builtin.shadow", "/etc/shadow-", false},
    {"builtin.shadow", "/etc/gshadow", false},
    {"builtin.shadow", "/etc/gshadow-", false},
    {"builtin.sudoers", "/etc/sudoers", false},
    {"builtin.sudoers", "/etc/sudoers.d", false},
    {"builtin.kubernetes-node", "/etc/kubernetes", false},
    {"builtin.kubernetes-node", "/etc/rancher", false},
    {"builtin.krb5", "/etc/krb5.keytab", false},
    {"builtin.network-manager", "/etc/NetworkManager/system-connections", false},
    {"builtin.wireguard", "/etc/wireguard", false},
    /* clouds */
    {"builtin.aws", "~/.aws", false},
    {"builtin.azure", "~/.azure", false},
    {"builtin.gcloud", "~/.config/gcloud", false},
    {"builtin.gcloud", "~/.boto", false},
    {"builtin.oci", "~/.oci", false},
    {"builtin.hutch", "~/.config/hutch/profiles.json", false},
    {"builtin.digitalocean", "~/.config/doctl", false},
    {"builtin.heroku", "~/.config/heroku", false},
    {"builtin.fly", "~/.fly", false},
    {"builtin.kube", "~/.kube", false},
    {"builtin.helm", "~/.config/helm", false},
    {"builtin.terraform", "~/.terraform.d", false},
    {"builtin.terraform", "~/.terraformrc", false},
    {"builtin.pulumi", "~/.pulumi", false},
    {"builtin.vault", "~/.vault-token", false},
    {"builtin.rclone", "~/.config/rclone", false},
    {"builtin.s3cfg", "~/.s3cfg", false},
    {"builtin.databricks", "~/.databrickscfg", false},
    {"builtin.kaggle", "~/.kaggle", false},
    {"builtin.kaggle", "~/.config/kaggle", false},
    {"builtin.cloudflared", "~/.cloudflared", false},
    /* registries and forges */
    {"builtin.docker", "~/.docker/config.json", false},
    {"builtin.containers", "~/.config/containers/auth.json", false},
    {"builtin.npm", "~/.npmrc", false},
    {"builtin.yarn", "~/.yarnrc.yml", false},
    {"builtin.pypi", "~/.pypirc", false},
    {"builtin.pip", "~/.config/pip/pip.conf", false},
    {"builtin.pip", "~/.pip/pip.conf", false},
    {"builtin.cargo", "~/.cargo/credentials", false},
    {"builtin.cargo", "~/.cargo/credentials.toml", false},
    {"builtin.gem", "~/.gem/credentials", false},
    {"builtin.gem", "~/.local/share/gem/credentials", false},
    {"builtin.maven", "~/.m2/settings.xml", false},
    {"builtin.maven", "~/.m2/settings-security.xml", false},
    {"builtin.gradle", "~/.gradle/gradle.properties", false},
    {"builtin.composer", "~/.config/composer/auth.json", false},
    {"builtin.nuget", "~/.nuget/NuGet/NuGet.Config", false},
    {"builtin.huggingface", "~/.cache/huggingface/token", false},
    {"builtin.netrc", "~/.netrc", false},
    {"builtin.git-credentials", "~/.git-credentials", false},
    {"builtin.git-credentials", "~/.config/git/credentials", false},
    {"builtin.gh", "~/.config/gh", false},
    {"builtin.glab", "~/.config/glab-cli", false},
    {"builtin.hub", "~/.config/hub", false},
    /* data bases */
    {"builtin.pgpass", "~/.pgpass", false},
    {"builtin.my-cnf", "~/.my.cnf", false},
    {"builtin.my-cnf", "~/.mylogin.cnf", false},
    /* what lets its reader act on this machine as the user */
    {"builtin.xauthority", "~/.Xauthority", false},
    {"builtin.erlang", "~/.erlang.cookie", false},
    {"builtin.erlang", "~/.config/erlang/.erlang.cookie", false},
    /* coding tools */
    {"builtin.claude", "~/.claude/.credentials.json", false},
    {"builtin.claude", "~/.claude.json", false},
    {"builtin.codex", "~/.codex/auth.json", false},
    {"builtin.gemini", "~/.gemini/oauth_creds.json", false},
    {"builtin.copilot", "~/.config/github-copilot", false},
    {"builtin.opencode", "~/.local/share/opencode/auth.json", false},
    {"builtin.aider", "~/.aider", false},
    {"builtin.cursor", "~/.config/Cursor", false},
    {"builtin.preset-state", "~/.local/share/hutch-run", false}, /* of agents in runs with a preset */
    /* browsers and mail */
    {"builtin.browser", "~/.mozilla", false},
    {"builtin.browser", "~/.config/google-chrome", false},
    {"builtin.browser", "~/.config/chromium", false},
    {"builtin.browser", "~/.config/BraveSoftware", false},
    {"builtin.browser", "~/.config/microsoft-edge", false},
    {"builtin.browser", "~/.config/vivaldi", false},
    {"builtin.browser", "~/.config/opera", false},
    {"builtin.browser", "~/snap/firefox", false},
    {"builtin.browser", "~/snap/chromium", false},
    {"builtin.browser", "~/.var/app", false},
    {"builtin.mail", "~/.thunderbird", false},
    /* password stores */
    {"builtin.pass", "~/.password-store", false},
    {"builtin.keyring", "~/.local/share/keyrings", false},
    {"builtin.keyring", "~/.local/share/kwalletd", false},
    {"builtin.onepassword", "~/.config/op", false},
    {"builtin.bitwarden", "~/.config/Bitwarden", false},
    {"builtin.bitwarden", "~/.config/Bitwarden CLI", false},
    {"builtin.keepass", "~/.config/keepassxc", false},
    /* what the user did */
    {"builtin.history", "~/.bash_history", false},
    {"builtin.history", "~/.zsh_history", false},
    {"builtin.history", "~/.histfile", false},
    {"builtin.history", "~/.local/share/fish/fish_history", false},
    {"builtin.history", "~/.local/share/atuin", false},
    {"builtin.history", "~/.sh_history", false},
    {"builtin.history", "~/.ash_history", false},
    {"builtin.history", "~/.zhistory", false},
    {"builtin.history", "~/.local/share/mcfly", false},
    {"builtin.history", "~/.config/nushell/history.txt", false},
    {"builtin.history", "~/.config/nushell/history.sqlite3", false},
    {"builtin.history", "~/.local/share/powershell/PSReadLine", false},
    {"builtin.history", "~/.local/state/bash/history", false},
    {"builtin.history", "~/.local/state/zsh/history", false},
    {"builtin.history", "~/.python_history", false},
    {"builtin.history", "~/.psql_history", false},
    {"builtin.history", "~/.mysql_history", false},
    {"builtin.history", "~/.sqlite_history", false},
    {"builtin.history", "~/.rediscli_history", false},
    {"builtin.history", "~/.node_repl_history", false},
    {"builtin.history", "~/.irb_history", false},
    {"builtin.history", "~/.pry_history", false},
    {"builtin.history", "~/.php_history", false},
    {"builtin.history", "~/.Rhistory", false},
    {"builtin.history", "~/.julia/logs/repl_history.jl", false},
    {"builtin.history", "~/.mongodb/mongosh", false},
    {"builtin.history", "~/.dbshell", false},
    {"builtin.history", "~/.duckdb_history", false},
    {"builtin.history", "~/.ipython/profile_default/history.sqlite", false},
    {"builtin.history", "~/.local/share/nvim/shada", false},
    {"builtin.history", "~/.local/state/nvim/shada", false},
    {"builtin.history", "~/.local/state/python_history", false},
    {"builtin.history", "~/.local/state/psql_history", false},
    {"builtin.history", "~/.local/state/mycli", false},
    {"builtin.history", "~/.local/state/lesshst", false},
    {"builtin.history", "~/.local/state/less/history", false},
    {"builtin.history", "~/.wget-hsts", false},
    {"builtin.history", "~/.lesshst", false},
    {"builtin.history", "~/.viminfo", false},
    {"builtin.history", "~/.local/share/recently-used.xbel", false},
    /* the workspace's own; ".env.example" and its like hold no secrets and stay readable, see below */
    {"builtin.dotenv", "./.env", false},
    {"builtin.dotenv", "./.env.*", true},
    /* sockets that are as good as root; /run is private anyway */
    {"builtin.container-socket", "/var/lib/docker", false},
    {"builtin.container-socket", "/var/lib/containerd", false},
    {"builtin.container-socket", "~/.docker/run", false},
    {"builtin.container-socket", "/var/snap/lxd/common/lxd/unix.socket", false},
    {"builtin.container-socket", "/var/lib/lxd/unix.socket", false},
    {"builtin.container-socket", "/var/lib/incus/unix.socket", false},
};

static const struct path_default allow_read[] = {
    {"builtin.dotenv-example", "./.env.example", false},
    {"builtin.dotenv-example", "./.env.sample", false},
    {"builtin.dotenv-example", "./.env.template", false},
};

static const struct path_default tmpfs[] = {
    {"builtin.tmp", "/tmp", false},
    {"builtin.var-tmp", "/var/tmp", false},
    {"builtin.run", "/run", false},
};

static const struct {
    enum limit_id id;
    uint64_t value;
} limits[] = {
    {LIMIT_PIDS, 1024},
    {LIMIT_OPEN_FILES, 4096},
    {LIMIT_DISK, 1ULL << 30},
    {LIMIT_INODES, 200000},
};

static const char *const env_pass[] = {
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TERM",
    "COLORTERM",
    "TERM_PROGRAM",
    "COLUMNS",
    "LINES",
    "EDITOR",
    "VISUAL",
    "PAGER",
    "LESS",
    "CI",
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR*",
    "DEBIAN_FRONTEND",
    "MAKEFLAGS",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
    "VIRTUAL_ENV",
    "NODE_ENV",
    "GOPATH",
    "GOROOT",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "JAVA_HOME",
    "NVM_DIR",
    "PYENV_ROOT",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "SOURCE_DATE_EPOCH",
};

/* Matters only when a document passes "*": these variables stay outside even then. */
static const char *const env_deny[] = {
    "LD_*",         "*TOKEN*",      "*SECRET*",     "*PASSWORD*",      "*PASSWD*",        "*_KEY",   "*_KEY_*",
    "*APIKEY*",     "*CREDENTIAL*", "*_AUTH",       "*_AUTH_*",        "*COOKIE*",        "AWS_*",   "AZURE_*",
    "GOOGLE_*",     "GCP_*",        "KUBE*",        "DOCKER_*",        "SSH_*",           "GPG_*",   "GIT_ASKPASS",
    "SUDO_*",       "DBUS_*",       "XAUTHORITY",   "XDG_RUNTIME_DIR", "WAYLAND_DISPLAY", "DISPLAY", "BASH_ENV",
    "ENV",          "BASH_FUNC_*",  "NODE_OPTIONS", "PYTHONSTARTUP",   "PERL5OPT",        "RUBYOPT", "*_DSN",
    "DATABASE_URL", "*_URI",        "*_WEBHOOK*",
};

/* --- into a policy ------------------------------------------------------------------------------------------------ */

static char *defaults_resolve_path(const struct policy_where *where, const struct path_default *def)
{
    const char *base = def->path[0] == '~' ? where->home : def->path[0] == '.' ? where->cwd : NULL;
    if (def->path[0] == '/')
        return xstrdup(def->path);
    if (!base)
        return NULL;
    if (!def->glob) /* both bases are clean, and so is what the table says */
        return path_join(base, def->path + 2);
    _cleanup_buf_ struct buf b = {0};
    for (const char *s = base; *s; s++) {
        if (strchr("*?[\\", *s))
            buf_addc(&b, '\\');
        buf_addc(&b, *s);
    }
    buf_adds(&b, def->path + 1);
    return path_clean("/", buf_str(&b));
}

/* Appends without checking for duplicates: the tables hold no path twice, and this runs before every command. */
static void add_paths(const struct policy_where *where, enum file_verb verb, const struct path_default *defs, size_t n,
                      struct policy *p)
{
    MEM_RESERVE(p->files, p->nfiles, p->files_cap, n);
    for (size_t i = 0; i < n; i++) {
        struct file_rule rule = {.verb = verb, .path = defaults_resolve_path(where, &defs[i]), .is_glob = defs[i].glob};
        if (!rule.path)
            continue;
        rule.id = xstrdup(defs[i].id);
        p->files[p->nfiles++] = rule;
    }
}

/* Whether a path relative to the home directory is, or lies in, a name that is protected there. */
static bool in_protected_home(const struct policy *p, const char *path)
{
    for (size_t i = 0; i < p->nnames; i++) {
        size_t n = strlen(p->names[i].name);
        if (p->names[i].place == NAME_IN_HOME && strncmp(path, p->names[i].name, n) == 0 &&
            (path[n] == '\0' || path[n] == '/'))
            return true;
    }
    return false;
}

/* The working directory is writable unless that would open the whole host, the sandbox's places or what is denied. */
static void add_workspace(const struct policy_where *where, struct policy *p)
{
    static const char *const never[] = {"/proc", "/sys", "/dev", "/run", "/var/run"};
    const char *cwd = where->cwd;
    if (where->no_workspace || strcmp(cwd, "/") == 0 || strcmp(cwd, "/tmp") == 0 || strcmp(cwd, "/var/tmp") == 0)
        return;
    for (size_t i = 0; i < ARRAY_LEN(never); i++)
        if (path_under(cwd, never[i]))
            return;
    for (size_t i = 0; i < p->nfiles; i++)
        if (p->files[i].verb == FILE_DENY_READ && path_under(cwd, p->files[i].path))
            return;
    if (where->home && path_under(cwd, where->home) && strcmp(cwd, where->home) != 0 &&
        in_protected_home(p, cwd + strlen(where->home) + 1))
        return;
    const struct path_default workspace = {"builtin.workspace", cwd, false};
    add_paths(where, FILE_ALLOW_WRITE, &workspace, 1, p);
}

static void defaults_add_names(struct policy *p)
{
    size_t n;
    const struct known_name *known = names_known(&n);
    MEM_RESERVE(p->names, p->nnames, p->names_cap, n);
    for (size_t i = 0; i < n; i++)
        if (known[i].class == NAME_REFUSED)
            p->names[p->nnames++] = (struct protected_name){.name = xstrdup(known[i].name),
                                                            .is_dir = known[i].is_dir,
                                                            .place = known[i].place,
                                                            .absent = known[i].absent,
                                                            .reason = known[i].reason,
                                                            .id = xstrdup(known[i].id)};
}

static void add_env(int verb, const char *const *names, size_t n, struct policy *p)
{
    MEM_RESERVE(p->env, p->nenv, p->env_cap, n);
    for (size_t i = 0; i < n; i++) {
        p->env[p->nenv] = (struct env_rule){.name = xstrdup(names[i])};
        p->env[p->nenv++].verb = verb == ENV_PASS ? ENV_PASS : ENV_DENY;
    }
}

static bool defaults_has_rule(const struct policy *p, const char *path)
{
    for (size_t i = 0; i < p->nfiles; i++)
        if (strcmp(p->files[i].path, path) == 0)
            return true;
    return false;
}

void policy_hide_homes(struct policy *p)
{
    for (size_t h = 0; h < p->homes.n; h++) {
        struct policy_where where = {.home = p->homes.v[h]};
        _cleanup_free_ char *first = defaults_resolve_path(&where, &deny_read[0]);
        if (defaults_has_rule(p, first)) /* the caller's own */
            continue;
        for (size_t i = 0; i < ARRAY_LEN(deny_read); i++)
            if (deny_read[i].path[0] == '~')
                add_paths(&where, FILE_DENY_READ, &deny_read[i], 1, p);
    }
}

void policy_add_defaults(const struct policy_where *where, struct policy *p)
{
    enum { MOST = ARRAY_LEN(deny_read) + 32 /* the short tables, the caller's own */ };
    MEM_RESERVE(p->files, p->nfiles, p->files_cap, (size_t)MOST);
    MEM_RESERVE(p->env, p->nenv, p->env_cap, ARRAY_LEN(env_pass) + ARRAY_LEN(env_deny) + 8);
    if (!where->container) {
        add_paths(where, FILE_DENY_READ, deny_read, ARRAY_LEN(deny_read), p);
        add_paths(where, FILE_ALLOW_READ, allow_read, ARRAY_LEN(allow_read), p);
        add_paths(where, FILE_TMPFS, tmpfs, ARRAY_LEN(tmpfs), p);
    } else {
        add_paths(where, FILE_TMPFS, tmpfs, 1, p); /* /tmp; the rest is the image's own */
    }
    defaults_add_names(p);
    if (where->home)
        strv_add(&p->homes, where->home);
    if (!where->container)
        add_workspace(where, p);
    add_env(ENV_PASS, env_pass, ARRAY_LEN(env_pass), p);
    add_env(ENV_DENY, env_deny, ARRAY_LEN(env_deny), p);
    for (size_t i = 0; i < ARRAY_LEN(limits); i++)
        p->limits[limits[i].id] = (struct limit){.set = true, .value = limits[i].value};
}
