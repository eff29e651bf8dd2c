/* The table of names that programs outside execute: verdicts about paths, what a plan does with them, and the docs. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/path.h"
#include "policy-harness.h"
#include "policy/run/names.h"
#include "policy/run/plan.h"

static void each_name_is_listed_once_per_place_with_a_reason(void **state)
{
    (void)state;
    size_t n;
    const struct known_name *known = names_known(&n);
    for (size_t i = 0; i < n; i++) {
        assert_true(known[i].class == NAME_REFUSED || known[i].class == NAME_REPORTED);
        assert_true(strlen(known[i].reason) > 10 && !strchr(known[i].reason, '|'));
        assert_int_equal(strncmp(known[i].id, "builtin.", 8), 0);
        assert_int_equal(known[i].place == NAME_IN_GIT, strncmp(known[i].name, ".git/", 5) == 0);
        for (size_t k = i + 1; k < n; k++)
            if (known[i].place == known[k].place && strcmp(known[i].name, known[k].name) == 0)
                fail_msg("%s is listed twice", known[i].name);
    }
}

static void paths_get_the_class_of_their_name(void **state)
{
    static const struct {
        const char *path;
        enum name_class root, home;
    } rows[] = {
        {"src/main.c", NAME_NONE, NAME_NONE},
        {".envrc", NAME_REFUSED, NAME_REFUSED},
        {".envrcx", NAME_NONE, NAME_NONE},
        {".hg/hgrc", NAME_REFUSED, NAME_REFUSED},
        {".hg/store/data", NAME_NONE, NAME_NONE},
        {".jj/repo/config.toml", NAME_REFUSED, NAME_REFUSED},
        {".jj/working_copy/tree_state", NAME_NONE, NAME_NONE},
        {".nvimrc", NAME_REFUSED, NAME_REFUSED},
        {".vimrc", NAME_REFUSED, NAME_REFUSED},
        {".exrc", NAME_REFUSED, NAME_REFUSED},
        {".Rprofile", NAME_REFUSED, NAME_REFUSED},
        {".zed/tasks.json", NAME_REFUSED, NAME_REFUSED},
        {".git/rebase-merge/git-rebase-todo", NAME_REFUSED, NAME_REFUSED},
        {".git/config", NAME_REFUSED, NAME_REFUSED},
        {".git/index", NAME_NONE, NAME_NONE},
        {".git/modules/a/b/hooks/post-checkout", NAME_REFUSED, NAME_REFUSED},
        {".git/modules/hooks/HEAD", NAME_REFUSED, NAME_REFUSED}, /* may be a git directory of that name */
        {".git/worktrees/w/config.worktree", NAME_REFUSED, NAME_REFUSED},
        {".git/modules/a/index", NAME_NONE, NAME_NONE},
        {".npmrc", NAME_REPORTED, NAME_REPORTED},
        {"pkg/a/.npmrc", NAME_REPORTED, NAME_REPORTED},
        {".yarnrc.yml", NAME_REPORTED, NAME_REPORTED},
        {".cargo/config.toml", NAME_REPORTED, NAME_REPORTED},
        {".devcontainer/devcontainer.json", NAME_REPORTED, NAME_REPORTED},
        {"sub/.vscode/tasks.json", NAME_REPORTED, NAME_REPORTED}, /* refused only in repositories that exist */
        {"sub/.git/hooks/pre-commit", NAME_REPORTED, NAME_REPORTED},
        {".bashrc", NAME_NONE, NAME_REFUSED},
        {"sub/.bashrc", NAME_NONE, NAME_NONE},
        {".cargo/env", NAME_NONE, NAME_REFUSED},
        {".nvm/nvm.sh", NAME_NONE, NAME_REFUSED},
        {".config/nvim/init.lua", NAME_NONE, NAME_REFUSED},
        {".vim/plugin/x.vim", NAME_NONE, NAME_REFUSED},
        {".config/hutch/policy.yaml", NAME_NONE, NAME_REFUSED},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct name_verdict root = name_judge(NULL, NAME_BELOW_ROOT, rows[i].path);
        struct name_verdict home = name_judge(NULL, NAME_BELOW_HOME, rows[i].path);
        if (root.class != rows[i].root || home.class != rows[i].home)
            fail_msg("%s: %d at a root, %d in a home", rows[i].path, (int)root.class, (int)home.class);
        assert_int_equal(root.class == NAME_NONE, root.reason == NULL);
    }
}

static void the_policy_adds_names_and_turns_refused_ones_into_reported_ones(void **state)
{
    (void)state;
    _cleanup_policy_ struct policy *p =
        accepted_at(LEVEL_USER, "files: {protect_builtin: false, protect: [Makefile, .npmrc, ~/notes]}");
    assert_int_equal(name_judge(p, NAME_BELOW_ROOT, "Makefile").class, NAME_REFUSED);
    assert_int_equal(name_judge(p, NAME_BELOW_ROOT, ".npmrc").class, NAME_REFUSED);
    assert_int_equal(name_judge(p, NAME_BELOW_ROOT, ".envrc").class, NAME_REPORTED);
    assert_int_equal(name_judge(p, NAME_BELOW_ROOT, "notes").class, NAME_NONE);
    assert_int_equal(name_judge(p, NAME_BELOW_HOME, "notes/x").class, NAME_REFUSED);
    assert_int_equal(name_judge(p, NAME_BELOW_HOME, ".bashrc").class, NAME_REFUSED);
    assert_string_equal(name_judge(p, NAME_BELOW_ROOT, "Makefile").id, "files.protect[0]");
}

/* --- on a real tree ----------------------------------------------------------------------------------------------- */

struct tree {
    char root[64];
    struct policy *policy;
    struct plan *plan;
};

static void tree_put(const struct tree *t, const char *path)
{
    _cleanup_free_ char *full = path_join(t->root, path);
    for (char *s = strchr(full + 1, '/'); s; s = strchr(s + 1, '/')) {
        *s = '\0';
        (void)mkdir(full, 0755);
        *s = '/';
    }
    if (path[strlen(path) - 1] == '/')
        return;
    int fd = open(full, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    (void)close(fd);
}

/* A tree that is a workspace, and a home as well or not. */
static void tree_plan(struct tree *t, const char *const *files, bool home)
{
    struct err err = {0};
    (void)snprintf(t->root, sizeof t->root, "/opt/names.XXXXXX");
    assert_non_null(mkdtemp(t->root));
    for (; *files; files++)
        tree_put(t, *files);
    const char *where_home = home ? t->root : "/home/u";
    struct policy_where where = {.cwd = t->root, .home = where_home};
    struct plan_caller who = {.uid = 1000, .gid = 1000, .cwd = t->root, .home = where_home};
    t->policy = policy_new();
    policy_add_defaults(&where, t->policy);
    if (plan_make(t->policy, &who, &plan_host_facts, &t->plan, &err) < 0 || plan_check(t->plan, &err) < 0)
        fail_msg("%s", err.msg);
}

static void tree_done(struct tree *t)
{
    _cleanup_free_ char *rm = xasprintf("rm -rf -- '%s'", t->root);
    assert_int_equal(system(rm), 0);
    plan_free(t->plan);
    policy_free(t->policy);
}

/* What the plan does at a path: 'p'rotect, 's'tub, 'w'ritable. The explanation must say the same. */
static char at(const struct tree *t, const char *path)
{
    _cleanup_free_ char *full = path_join(t->root, path);
    const struct plan_op *op = plan_op_for(t->plan, full);
    char kind = !op                      ? '-'
                : op->kind == OP_PROTECT ? 'p'
                : op->kind == OP_STUB    ? 's'
                : op->kind == OP_BIND_RW ? 'w'
                                         : '?';
    bool may = policy_may_write(t->policy, full, NULL, NULL);
    if (may != (kind == 'w'))
        fail_msg("%s: the plan says %c, the policy %s", path, kind, may ? "writable" : "refused");
    return kind;
}

static void names_are_stubbed_only_where_they_are_read(void **state)
{
    static const char *const empty[] = {"x", NULL};
    static const char *const with_hg[] = {
        ".hg/store/",     ".jj/repo/config.toml", ".git/config", ".git/rebase-merge/done",
        "sub/.hg/store/", "sub/.vscode/",         NULL};
    struct tree t;
    (void)state;
    tree_plan(&t, empty, false);
    static const char *const free_here[] = {".bashrc",
                                            ".profile",
                                            ".gitconfig",
                                            ".ripgreprc",
                                            ".gitmodules",
                                            ".hg/hgrc",
                                            ".jj/repo/config.toml",
                                            ".npmrc",
                                            ".cargo/config.toml",
                                            ".devcontainer/x"};
    static const char *const kept[] = {".envrc", ".vscode/tasks.json", ".zed/tasks.json", ".vimrc", ".nvimrc",
                                       ".exrc",  ".Rprofile",          ".mcp.json"};
    for (size_t i = 0; i < ARRAY_LEN(free_here); i++)
        if (at(&t, free_here[i]) != 'w')
            fail_msg("%s is not free", free_here[i]);
    for (size_t i = 0; i < ARRAY_LEN(kept); i++)
        if (at(&t, kept[i]) != 's')
            fail_msg("%s has no stub", kept[i]);
    tree_done(&t);

    tree_plan(&t, with_hg, false);
    assert_int_equal(at(&t, ".hg/hgrc"), 's');
    assert_int_equal(at(&t, ".hg/store"), 'w');
    assert_int_equal(at(&t, ".jj/repo/config.toml"), 'p');
    assert_int_equal(at(&t, ".gitmodules"), 's');
    assert_int_equal(at(&t, ".git/rebase-merge/git-rebase-todo"), 'p');
    assert_int_equal(at(&t, "sub/.hg/hgrc"), 's');
    assert_int_equal(at(&t, "sub/.vscode/x"), 'p');
    assert_int_equal(at(&t, "sub/.envrc"), 'w');
    tree_done(&t);
}

static void a_rebase_of_the_command_can_be_made(void **state)
{
    static const char *const files[] = {".git/config", NULL};
    struct tree t;
    (void)state;
    tree_plan(&t, files, false);
    assert_int_equal(at(&t, ".git/rebase-merge/git-rebase-todo"), 'w');
    assert_int_equal(at(&t, ".git/hooks/pre-commit"), 's');
    tree_done(&t);
}

static void home_names_are_kept_in_homes_and_elsewhere_if_they_exist(void **state)
{
    static const char *const files[] = {".bashrc", ".config/x", ".cargo/registry/", NULL};
    static const char *const kept[] = {".profile",          ".zshrc",     ".gitconfig",  ".cargo/env",
                                       ".nvm/nvm.sh",       ".vim/vimrc", ".vimrc",      ".config/nvim/x",
                                       ".config/systemd/x", "bin/ls",     ".local/bin/x"};
    struct tree t;
    (void)state;
    tree_plan(&t, files, true);
    assert_int_equal(at(&t, ".bashrc"), 'p');
    for (size_t i = 0; i < ARRAY_LEN(kept); i++)
        if (at(&t, kept[i]) != 's')
            fail_msg("%s has no stub", kept[i]);
    assert_int_equal(at(&t, ".config/x"), 'w');
    assert_int_equal(at(&t, ".cargo/registry/x"), 'w');
    tree_done(&t);
    tree_plan(&t, files, false);
    assert_int_equal(at(&t, ".bashrc"), 'p'); /* a link in a home may lead here */
    assert_int_equal(at(&t, ".profile"), 'w');
    assert_int_equal(at(&t, "bin/ls"), 'w');
    tree_done(&t);
    static const char *const project[] = {"bin/tool", NULL};
    tree_plan(&t, project, false);
    assert_int_equal(at(&t, "bin/tool"), 'w');
    tree_done(&t);
}

/* --- few questions ------------------------------------------------------------------------------------------------ */

static unsigned looks;

static int counting_look(void *ctx, const char *path, struct plan_fact *ret)
{
    looks++;
    return plan_host_facts.look(ctx, path, ret);
}

/* Makes the plan of a home with a project in it, and counts how often a single path was asked for. */
static unsigned looks_of(struct tree *t, const char *const *files, const char *project)
{
    struct err err = {0};
    struct plan_facts facts = plan_host_facts;
    facts.look = counting_look;
    (void)snprintf(t->root, sizeof t->root, "/opt/names.XXXXXX");
    assert_non_null(mkdtemp(t->root));
    for (; *files; files++)
        tree_put(t, *files);
    _cleanup_free_ char *cwd = path_join(t->root, project);
    struct policy_where where = {.cwd = cwd, .home = t->root};
    struct plan_caller who = {.uid = 1000, .gid = 1000, .cwd = cwd, .home = t->root};
    t->policy = policy_new();
    policy_add_defaults(&where, t->policy);
    looks = 0;
    if (plan_make(t->policy, &who, &facts, &t->plan, &err) < 0 || plan_check(t->plan, &err) < 0)
        fail_msg("%s", err.msg);
    return looks;
}

static char kind_at(const struct tree *t, const char *path)
{
    _cleanup_free_ char *full = path_join(t->root, path);
    const struct plan_op *op = plan_op_for(t->plan, full);
    return !op ? '-' : op->kind == OP_PROTECT ? 'p' : op->kind == OP_MASK ? 'm' : op->kind == OP_STUB ? 's' : '?';
}

static void names_that_are_not_there_are_not_asked_for_one_by_one(void **state)
{
    static const char *const files[] = {"work/a",    ".ssh/id",          ".netrc",      ".config/gh/hosts.yml",
                                        ".config/x", ".config/rclone/y", "work/.vimrc", NULL};
    struct tree t;
    (void)state;
    unsigned n = looks_of(&t, files, "work");
    if (n > 70)
        fail_msg("%u paths were looked at", n);
    assert_int_equal(kind_at(&t, ".ssh/id"), 'm');
    assert_int_equal(kind_at(&t, ".netrc"), 'm');
    assert_int_equal(kind_at(&t, ".config/gh/hosts.yml"), 'm');
    assert_int_equal(kind_at(&t, ".config/rclone/y"), 'm');
    assert_int_equal(kind_at(&t, "work/.vimrc"), 'p');
    assert_int_equal(kind_at(&t, "work/.envrc"), 's');
    tree_done(&t);
}

/* A directory with too many names, or with names that a file system may fold in ways of its own, is not relied on. */
static void directories_that_cannot_be_listed_whole_hide_nothing(void **state)
{
    static const char *const odd[] = {"work/a", "Téléchargements/x", ".ssh/id", NULL};
    struct tree t;
    (void)state;
    assert_true(looks_of(&t, odd, "work") > 100);
    assert_int_equal(kind_at(&t, ".ssh/id"), 'm');
    tree_done(&t);

    char names[1100][16];
    const char *many[1102] = {0};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        (void)snprintf(names[i], sizeof names[i], "n%zu", i);
        many[i] = names[i];
    }
    many[500] = ".ssh/id";
    many[501] = "work/a";
    assert_true(looks_of(&t, many, "work") > 100);
    assert_int_equal(kind_at(&t, ".ssh/id"), 'm');
    tree_done(&t);
}

/* Where a link stands in the way of a home's name, the name behind it is protected. */
static void a_link_to_a_directory_of_the_home_is_followed(void **state)
{
    static const char *const files[] = {"work/config/nvim/init.lua", "work/tools/x", "work/rc", NULL};
    struct tree t;
    struct err err = {0};
    (void)state;
    (void)looks_of(&t, files, "work");
    _cleanup_free_ char *link = path_join(t.root, ".config"), *cwd = path_join(t.root, "work");
    _cleanup_free_ char *bin = path_join(t.root, "bin"), *rc = path_join(t.root, ".zshrc");
    assert_int_equal(symlink("work/config", link), 0);
    assert_int_equal(symlink("work/tools", bin), 0);
    assert_int_equal(symlink("work/rc", rc), 0);
    plan_free(t.plan);
    struct plan_caller who = {.uid = 1000, .gid = 1000, .cwd = cwd, .home = t.root};
    assert_int_equal(plan_make(t.policy, &who, &plan_host_facts, &t.plan, &err), 0);
    assert_int_equal(kind_at(&t, "work/config/nvim/init.lua"), 'p');
    assert_int_equal(kind_at(&t, "work/config/systemd"), 's');
    assert_int_equal(kind_at(&t, "work/tools/x"), 'p');
    assert_int_equal(kind_at(&t, "work/rc"), 'p');
    tree_done(&t);
}

/* --- hidden from reading ------------------------------------------------------------------------------------------ */

static const char *const secrets[] = {".ssh/id",
                                      ".Xauthority",
                                      ".config/pip/pip.conf",
                                      ".pip/pip.conf",
                                      ".databrickscfg",
                                      ".kaggle/kaggle.json",
                                      ".cloudflared/cert.pem",
                                      ".erlang.cookie",
                                      ".npmrc",
                                      ".bash_history",
                                      ".zsh_history",
                                      ".local/share/fish/fish_history",
                                      ".local/share/atuin/history.db",
                                      ".python_history",
                                      ".psql_history",
                                      ".mysql_history",
                                      ".node_repl_history",
                                      ".sqlite_history",
                                      ".ipython/profile_default/history.sqlite"};

static void secrets_of_the_home_are_hidden_and_a_projects_npmrc_is_not(void **state)
{
    (void)state;
    _cleanup_policy_ struct policy *p = accepted_at(LEVEL_USER, "");
    for (size_t i = 0; i < ARRAY_LEN(secrets); i++) {
        _cleanup_free_ char *path = path_join("/home/u", secrets[i]);
        if (policy_may_read(p, path, NULL))
            fail_msg("%s is readable", path);
    }
    assert_true(policy_may_read(p, "/home/u/work/.npmrc", NULL));
    assert_true(policy_may_write(p, "/home/u/work/.npmrc", NULL, NULL));
    assert_true(policy_may_read(p, "/home/u/.config/pip", NULL));
}

/* As for the template `host`, which others see than the user whose home it is. */
static void the_same_is_hidden_in_every_home(void **state)
{
    (void)state;
    _cleanup_policy_ struct policy *p = accepted_at(LEVEL_USER, "");
    strv_add(&p->homes, "/srv/people/v");
    assert_true(policy_may_read(p, "/srv/people/v/.ssh/id", NULL));
    policy_hide_homes(p);
    size_t n = p->nfiles;
    policy_hide_homes(p);
    assert_int_equal(p->nfiles, n);
    for (size_t i = 0; i < ARRAY_LEN(secrets); i++) {
        _cleanup_free_ char *path = path_join("/srv/people/v", secrets[i]);
        if (policy_may_read(p, path, NULL))
            fail_msg("%s is readable", path);
    }
    assert_true(policy_may_read(p, "/srv/people/v/notes", NULL));
}

/* --- docs --------------------------------------------------------------------------------------------------------- */

static void the_docs_show_the_table(void **state)
{
    static const char *const places[] = {"docs/policy.md", "../docs/policy.md", "../../docs/policy.md"};
    _cleanup_buf_ struct buf want = {0}, have = {0};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(places) && have.n == 0; i++)
        (void)fd_read_file(AT_FDCWD, places[i], 1 << 20, &have);
    assert_true(have.n > 0);
    names_add_docs(&want);
    if (!strstr(buf_str(&have), buf_str(&want)))
        fail_msg("docs/policy.md lacks this table:\n%s", buf_str(&want));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_name_is_listed_once_per_place_with_a_reason),
        cmocka_unit_test(paths_get_the_class_of_their_name),
        cmocka_unit_test(the_policy_adds_names_and_turns_refused_ones_into_reported_ones),
        cmocka_unit_test(names_are_stubbed_only_where_they_are_read),
        cmocka_unit_test(a_rebase_of_the_command_can_be_made),
        cmocka_unit_test(home_names_are_kept_in_homes_and_elsewhere_if_they_exist),
        cmocka_unit_test(names_that_are_not_there_are_not_asked_for_one_by_one),
        cmocka_unit_test(directories_that_cannot_be_listed_whole_hide_nothing),
        cmocka_unit_test(a_link_to_a_directory_of_the_home_is_followed),
        cmocka_unit_test(secrets_of_the_home_are_hidden_and_a_projects_npmrc_is_not),
        cmocka_unit_test(the_same_is_hidden_in_every_home),
        cmocka_unit_test(the_docs_show_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
