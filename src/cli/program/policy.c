/* policy.c - `hutch policy`: check, show, explain and trust. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/run/options.h"
#include "os/dnsask.h"
#include "os/own.h"
#include "policy/run/explain.h"
#include "policy/run/filter.h"
#include "policy/run/policy.h"
#include "policy/run/syscalls.h"
#include "policy/run/trust.h"

static const char help_text[] =
    "usage: hutch policy check [OPTION...] [FILE...]\n"
    "       hutch policy show [--json] [OPTION...]\n"
    "       hutch policy explain [OPTION...] PATH|HOST|URL|SYSCALL...\n"
    "       hutch policy trust [FILE] | --list | --revoke [FILE]\n"
    "\n"
    "check    reads the documents and says what is wrong with them; exit code 0 or 121\n"
    "show     prints the merged policy and where each line came from\n"
    "explain  says whether something is allowed, which rule decides, and the smallest grant that would change it\n"
    "trust    lets a project document (./.hutch.yaml) widen the policy, until its text changes\n"
    "\n"
    "OPTION is any option of `hutch run` that changes the policy: --policy FILE, --settings FILE, --rw DIR, --ro DIR,\n"
    "--deny PATH, --memory SIZE ... Try `hutch policy check --help` and so on.\n"
    "\n"
    "examples:\n"
    "  hutch policy show --rw ../cache\n"
    "  hutch policy explain ~/.ssh/id_ed25519 mount\n"
    "  hutch policy check .hutch.yaml\n";

static const char check_help[] =
    "usage: hutch policy check [OPTION...] [FILE...]\n"
    "\n"
    "Reads each FILE the way `hutch run` would: the system's and the user's document and a .hutch.yaml in their "
    "places,\n"
    "anything else as if given with --policy. Without FILE, checks the documents that hold in this directory.\n"
    "Prints nothing but \"ok\" lines, or one line naming file, line and what would be right, and exits with 121.\n"
    "\n"
    "  hutch policy check\n"
    "  hutch policy check ci.yaml --memory 2G\n";

static const char show_help[] =
    "usage: hutch policy show [--json] [OPTION...]\n"
    "\n"
    "Prints the merged policy of this directory as a document; behind each line stands the rule's id and the file and\n"
    "line, or the option, that it came from. --json prints the same for programs.\n"
    "\n"
    "  hutch policy show --rw ./out\n"
    "  hutch policy show --json | jq .limits.memory\n";

static const char explain_help[] =
    "usage: hutch policy explain [OPTION...] [--path|--host|--syscall] WHAT...\n"
    "\n"
    "Says of a path whether it can be read and written, of a host or a URL whether it can be reached, of a system "
    "call\n"
    "whether it can be made; which rule decides, where that rule stands, and the smallest grant that would change it.\n"
    "WHAT is a URL if it begins with http:// or https:// (a method may stand before it: \"POST https://...\"), a path "
    "if\n"
    "it contains \"/\" or exists, a system call if there is one of that name, else a host, or HOST:PORT.\n"
    "\n"
    "  hutch policy explain ~/.ssh/id_ed25519\n"
    "  hutch policy explain --rw ./out ./out/.git/hooks/pre-commit\n"
    "  hutch policy explain ptrace api.example.com\n"
    "  hutch policy explain --policy net.yaml 'POST https://api.example.com/v1/messages'\n";

static const char trust_help[] =
    "usage: hutch policy trust [FILE]\n"
    "       hutch policy trust --list\n"
    "       hutch policy trust --revoke [FILE]\n"
    "\n"
    "A project document may only narrow the policy, until you have read it and said so here. What is stored is its\n"
    "path and the hash of its text: a change needs to be trusted again. FILE is ./.hutch.yaml if not given.\n";

struct place {
    char cwd[PATH_MAX];
    struct policy_where where;
};

static int find_place(struct place *ret, struct err *err)
{
    const char *home = getenv("HOME");
    *ret = (struct place){0};
    if (!getcwd(ret->cwd, sizeof ret->cwd))
        return err_set(err, ERR_USAGE, errno, "cannot tell the current directory");
    ret->where = (struct policy_where){.cwd = ret->cwd, .home = home && home[0] == '/' ? home : NULL};
    return 0;
}

static bool policy_wants_help(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

/* Removes a word from argv; false if it is not there. */
static bool take_word(int *argc, char **argv, const char *word)
{
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], word) != 0)
            continue;
        memmove(&argv[i], &argv[i + 1], (size_t)(*argc - i) * sizeof argv[0]);
        (*argc)--;
        return true;
    }
    return false;
}

static int place_load_policy(const struct place *place, const struct run_args *args, struct policy **ret,
                             struct err *err)
{
    struct policy_where where = place->where;
    where.container = args->root != NULL;
    where.no_workspace = args->no_cwd;
    return policy_load(&where, (const char *const *)args->policies.v, args->settings, args->flags, args->nflags, ret,
                       err);
}

static int policy_print_text(const struct buf *out)
{
    struct err err;
    if (fd_write_all(STDOUT_FILENO, buf_str(out), out->n) == 0)
        return 0;
    (void)err_set(&err, ERR_INTERNAL, errno, "cannot write to stdout");
    return cli_fail(&err);
}

/* --- check -------------------------------------------------------------------------------------------------------- */

/* Only building the filter shows that a document allows a call that no sandbox may make. */
static int check_filter(const struct policy *p, struct err *err)
{
    _cleanup_filter_ struct filter f = {0};
    return filter_build(p, p->privilege == PRIVILEGE_COMPUTER ? FILTER_COMPUTER : FILTER_HOST_IDS, &f, err);
}

static int check_loaded(const struct place *place, const struct run_args *args, const char *what, struct err *err)
{
    _cleanup_buf_ struct buf out = {0};
    struct policy *p = NULL;
    int r = place_load_policy(place, args, &p, err);
    if (r == 0)
        r = check_filter(p, err);
    if (r == 0) {
        text_add_safe(&out, what, PATH_MAX);
        buf_adds(&out, ": ok\n");
        r = policy_print_text(&out) == 0 ? 0 : -1;
    }
    policy_free(p);
    return r;
}

/* Checks FILE at the level its path gives it (system, user, project), else as --policy. */
static int policy_check_file(const struct place *place, struct run_args *args, const char *file, struct err *err)
{
    struct place at = *place;
    _cleanup_free_ char *path = path_clean(place->cwd, file), *dir = path_parent(path);
    _cleanup_free_ char *user = at.where.home ? path_join(at.where.home, ".config/hutch/policy.yaml") : NULL;
    struct stat st;
    if (stat(path, &st) < 0)
        return err_set(err, ERR_POLICY, errno, "cannot read policy %s", path);
    if (strcmp(path, "/etc/hutch/policy.yaml") == 0 || (user && strcmp(path, user) == 0))
        return check_loaded(&at, args, path, err);
    if (strcmp(path_name(path), ".hutch.yaml") == 0) {
        at.where.project_file = path;
        at.where.cwd = dir;
        return check_loaded(&at, args, path, err);
    }
    strv_add(&args->policies, file);
    int r = check_loaded(&at, args, path, err);
    free(args->policies.v[--args->policies.n]);
    args->policies.v[args->policies.n] = NULL;
    return r;
}

static int run_check(const struct place *place, struct run_args *args)
{
    struct err err;
    if (!args->command)
        return check_loaded(place, args, "policy", &err) < 0 ? cli_fail(&err) : 0;
    int code = 0;
    for (char **file = args->command; *file; file++)
        if (policy_check_file(place, args, *file, &err) < 0)
            code = cli_fail(&err);
    return code;
}

/* --- show and explain --------------------------------------------------------------------------------------------- */

static int run_show(const struct place *place, const struct run_args *args, bool as_json)
{
    _cleanup_buf_ struct buf out = {0};
    struct err err;
    struct policy *p = NULL;
    if (args->command) {
        (void)err_set(&err, ERR_USAGE, 0,
                      "policy show takes no argument; to look at one thing use `hutch policy explain`");
        return cli_fail(&err);
    }
    if (place_load_policy(place, args, &p, &err) < 0)
        return cli_fail(&err);
    if (as_json)
        policy_show_json(p, &out);
    else
        policy_show(p, &out);
    policy_free(p);
    return policy_print_text(&out);
}

enum subject { ANY, PATH, HOST, SYSCALL };

/* Where the URL starts behind a method, or NULL. */
static const char *url_of(const char *what)
{
    const char *space = strchr(what, ' '), *url = space ? space + 1 : what;
    return strncmp(url, "http://", 7) == 0 || strncmp(url, "https://", 8) == 0 ? url : NULL;
}

static enum subject subject_guess(const char *what)
{
    struct stat st;
    if (url_of(what))
        return HOST;
    if (strchr(what, '/') || what[0] == '~' || strcmp(what, ".") == 0 || strcmp(what, "..") == 0)
        return PATH;
    if (syscall_number(what) >= 0)
        return SYSCALL;
    return lstat(what, &st) == 0 ? PATH : HOST;
}

static void explain_path(const struct policy *p, const struct place *place, const char *what, struct buf *out)
{
    bool home = what[0] == '~' && (what[1] == '/' || what[1] == '\0') && place->where.home;
    _cleanup_free_ char *full = home ? path_join(place->where.home, what + 1) : xstrdup(what);
    _cleanup_free_ char *path = path_clean(place->cwd, full);
    (void)policy_explain_path(p, path, false, out);
    (void)policy_explain_path(p, path, true, out);
}

/* Rules are about names; what a name stands for on this machine may be refused all the same. */
static void explain_request(const struct policy *p, const char *method, const char *what, struct buf *out)
{
    static struct own_addresses own; /* large */
    struct in6_addr v[DNSASK_MAX];
    const char *servers = NULL;
#ifdef HUTCH_LAYER_REMOVAL
    servers = getenv("HUTCH_TEST_RESOLVERS");
#endif
    _cleanup_free_ char *name = policy_explain_name(p, method, what);
    int n = name ? dnsask(name, servers, v) : -1;
    (void)own_addresses_read(&own);
    const struct policy_addresses at = {.v = v, .n = n > 0 ? (size_t)n : 0, .own = own.v, .nown = own.n};
    (void)policy_explain_request(p, method, what, n >= 0 ? &at : NULL, out);
}

static int explain_one(const struct policy *p, const struct place *place, enum subject subject, const char *what,
                       struct buf *out, struct err *err)
{
    if (subject == ANY)
        subject = subject_guess(what);
    if (subject == PATH) {
        explain_path(p, place, what, out);
    } else if (subject == HOST) {
        const char *url = url_of(what);
        _cleanup_free_ char *method = xstrndup(what, url && url > what ? (size_t)(url - 1 - what) : 0);
        explain_request(p, *method ? method : "GET", url ? url : what, out);
    } else {
        int nr = syscall_number(what);
        const char *near = nr < 0 ? text_nearest(what, syscall_names) : NULL;
        if (nr < 0)
            return err_set(err, ERR_USAGE, 0, "there is no such system call%s%s%s", near ? "; did you mean \"" : "",
                           near ? near : "", near ? "\"?" : "");
        (void)policy_explain_syscall(p, nr, out);
    }
    return 0;
}

static int run_explain(const struct place *place, const struct run_args *args, enum subject subject)
{
    _cleanup_buf_ struct buf out = {0};
    struct err err;
    struct policy *p = NULL;
    if (!args->command) {
        (void)err_set(&err, ERR_USAGE, 0, "policy explain needs a path, a host or a system call");
        return cli_fail(&err);
    }
    int r = place_load_policy(place, args, &p, &err);
    for (char **what = args->command; r == 0 && *what; what++)
        r = explain_one(p, place, subject, *what, &out, &err);
    policy_free(p);
    return r < 0 ? cli_fail(&err) : policy_print_text(&out);
}

/* --- trust -------------------------------------------------------------------------------------------------------- */

static int add_trust(const char *trust, const char *path, const struct place *place, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    _cleanup_free_ char *dir = path_parent(path);
    struct policy_where where = place->where;
    struct policy *p = policy_new();
    if (fd_read_file(AT_FDCWD, path, 1 << 20, &text) < 0) {
        policy_free(p);
        return err_set(err, ERR_POLICY, errno, "cannot read %s", path);
    }
    where.project_file = path;
    where.cwd = dir;
    policy_add_defaults(&where, p);
    /* Parse it at the level of the command line, where it may widen the policy. */
    int r = policy_parse(buf_str(&text), text.n, path, LEVEL_FLAGS, &where, p, err);
    policy_free(p);
    return r < 0 ? -1 : trust_add(trust, path, buf_str(&text), text.n, err);
}

static int list_trust(const char *trust, struct err *err)
{
    _cleanup_strv_ struct strv lines = {0};
    _cleanup_buf_ struct buf out = {0};
    if (trust_list(trust, &lines, err) < 0)
        return -1;
    for (size_t i = 0; i < lines.n; i++) {
        text_add_safe(&out, lines.v[i], PATH_MAX);
        buf_addc(&out, '\n');
    }
    return policy_print_text(&out) == 0 ? 0 : -1;
}

static int revoke_trust(const char *trust, const char *path, struct err *err)
{
    bool found = false;
    if (trust_revoke(trust, path, &found, err) < 0)
        return -1;
    return found ? 0 : err_set(err, ERR_POLICY, 0, "%s was not trusted", path);
}

static int run_trust(const struct place *place, int argc, char **argv)
{
    struct err err;
    bool list = take_word(&argc, argv, "--list"), revoke = take_word(&argc, argv, "--revoke");
    _cleanup_free_ char *trust = trust_file_of(&place->where);
    int r;
    if (argc > 2 || (list && (revoke || argc > 1)) || (argc == 2 && argv[1][0] == '-'))
        r = err_set(&err, ERR_USAGE, 0, "policy trust takes one FILE, --list, or --revoke [FILE]");
    else if (!trust)
        r = err_set(&err, ERR_USAGE, 0, "HOME is not set, so there is no place to remember trust");
    else if (list)
        r = list_trust(trust, &err);
    else {
        _cleanup_free_ char *path = path_clean(place->cwd, argc == 2 ? argv[1] : ".hutch.yaml");
        r = revoke ? revoke_trust(trust, path, &err) : add_trust(trust, path, place, &err);
    }
    return r < 0 ? cli_fail(&err) : 0;
}

/* --- the sub-commands --------------------------------------------------------------------------------------------- */

static int run_with_options(const struct place *place, const char *sub, int argc, char **argv)
{
    struct err err;
    struct run_args args = {0};
    bool as_json = strcmp(sub, "show") == 0 && take_word(&argc, argv, "--json");
    bool explain = strcmp(sub, "explain") == 0;
    enum subject subject = explain && take_word(&argc, argv, "--path")      ? PATH
                           : explain && take_word(&argc, argv, "--host")    ? HOST
                           : explain && take_word(&argc, argv, "--syscall") ? SYSCALL
                                                                            : ANY;
    int code;
    if (run_args_parse(argc, argv, &args, &err) < 0)
        code = cli_fail(&err);
    else if (explain)
        code = run_explain(place, &args, subject);
    else if (strcmp(sub, "show") == 0)
        code = run_show(place, &args, as_json);
    else
        code = run_check(place, &args);
    run_args_done(&args);
    return code;
}

int cmd_policy(int argc, char **argv)
{
    static const struct {
        const char *name, *help;
    } subs[] = {{"check", check_help}, {"show", show_help}, {"explain", explain_help}, {"trust", trust_help}};
    static const char *const names[] = {"check", "show", "explain", "trust", NULL};
    struct place place;
    struct err err;
    const char *sub = argc > 1 ? argv[1] : "";
    if (argc > 1 && (strcmp(sub, "--help") == 0 || strcmp(sub, "-h") == 0 || strcmp(sub, "help") == 0))
        return printf("%s", help_text) < 0;
    for (size_t i = 0; i < ARRAY_LEN(subs); i++) {
        if (strcmp(sub, subs[i].name) != 0)
            continue;
        if (policy_wants_help(argc - 1, argv + 1))
            return printf("%s", subs[i].help) < 0;
        if (find_place(&place, &err) < 0)
            return cli_fail(&err);
        return i == 3 ? run_trust(&place, argc - 1, argv + 1) : run_with_options(&place, sub, argc - 1, argv + 1);
    }
    const char *near = *sub ? text_nearest(sub, names) : NULL;
    _cleanup_buf_ struct buf safe = {0};
    text_add_safe(&safe, sub, 64);
    (void)err_set(&err, ERR_USAGE, 0, "policy: %s%s%s%s%s%s",
                  *sub ? "unknown command \"" : "check, show, explain or trust is wanted", buf_str(&safe),
                  *sub ? "\"" : "", near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
    return cli_fail(&err);
}
