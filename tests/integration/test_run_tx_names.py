"""hutch run --tx: changes that programs outside run by themselves are shown first, and some are not applied unasked."""
from hutch_test import check, check_equal, check_in, run, write
from test_learn import home_workspace
from test_run_tx import tx
from test_run_tx_odd import kept

HEADING = "these run without your doing:\n"
DEEP = "deep/a/b/c/d"  # deeper than repositories are looked for
MANY = "i=0; while [ $i -lt 500 ]; do echo x >file$i; i=$((i+1)); done; "
NEW = "git init -q zz && echo evil >zz/.git/hooks/pre-commit && mkdir zz/.vscode && echo {} >zz/.vscode/tasks.json; "
OLD = f"printf '[core]\\n\\tfsmonitor = evil\\n' >>{DEEP}/.git/config; "


def deep_repository(stage):
    write(stage.ws / DEEP / "f", "x\n", stage.who)
    run("chown", "-R", f"--reference={stage.home}", stage.ws)
    check_equal(run("git", "init", "-q", DEEP, who=stage.who, cwd=stage.ws).code, 0)


def test_shown_first(who):
    "hooks, configuration of git and editor files are shown before everything else, by run, diff and apply"
    with home_workspace(who) as stage:
        deep_repository(stage)
        r = stage.run("--tx", "--", "sh", "-c", MANY + NEW + OLD)
        name = kept(r)
        for text in (r.err, tx(stage, "diff", name).err, tx(stage, "apply", name).err):
            check_in(HEADING, text)
            first = text.split(HEADING)[1].split("the rest:")[0]
            for line in ("A zz/.git/hooks/pre-commit", "A zz/.git/config", "A zz/.vscode/tasks.json", f"M {DEEP}/.git/config"):
                check_in(f"  {line}\n", first)
            check("file1" not in first and ".sample" not in first, first)
        diff = tx(stage, "diff", name).out
        check(0 <= diff.index("+evil") < diff.index("file0"), diff[:2000])


def test_not_applied_unasked(who):
    "a change to a protected name that was there needs --allow-protected; one that came with something new does not"
    with home_workspace(who) as stage:
        deep_repository(stage)
        before = (stage.ws / DEEP / ".git/config").read_text()
        r = stage.run("--commit-on-success", "--", "sh", "-c", OLD + "echo x >plain")
        check_in("not applied unasked: 1 of the changes", r.err, r)
        name = kept(r)
        for force in ((), ("--force",)):
            r = tx(stage, "apply", *force, name)
            check_equal(r.code, 121, r)
            check_in(f"hutch apply --allow-protected {name}", r.err, r)
        check_equal((stage.ws / DEEP / ".git/config").read_text(), before)
        check(not (stage.ws / "plain").exists())
        r = tx(stage, "apply", "--allow-protected", name)
        check_equal(r.code, 0, r)
        check_in("fsmonitor", (stage.ws / DEEP / ".git/config").read_text())
        r = stage.run("--commit-on-success", "--", "sh", "-c", f"echo evil >{DEEP}/.git/hooks/pre-commit; git init -q; echo x >.npmrc")
        check_in("not applied unasked: 1 of the changes", r.err, r)  # a hook in a repository that was there
        for line in (f"A {DEEP}/.git/hooks/pre-commit", "A .git/config", "A .npmrc"):
            check_in(f"  {line}\n", r.err.split(HEADING)[1].split("the rest:")[0])
        check_equal(tx(stage, "discard").code, 0)
        r = stage.run("--commit-on-success", "--", "sh", "-c", NEW)
        check_equal((r.code, (stage.ws / "zz/.git/hooks/pre-commit").exists()), (0, True), r)
        check_in(HEADING, r.err, r)
        r = tx(stage, "apply", "--allow-everything")
        check_equal(r.code, 120, r)


def test_opened_by_the_policy(who):
    "what the policy opened by its name, or does not protect, is applied without a further word, and shown first all the same"
    with home_workspace(who) as stage:
        write(stage.ws / ".vscode/settings.json", "{}\n", who)
        run("chown", "-R", f"--reference={stage.home}", stage.ws)
        r = stage.run("--commit-on-success", "--rw", "./.vscode", "--", "sh", "-c", "echo '{ }' >.vscode/settings.json; echo x >aa")
        check_equal((r.code, (stage.ws / ".vscode/settings.json").read_text()), (0, "{ }\n"), r)
        check_in("settings.json", r.err.split(HEADING)[1].split("the rest:")[0], r)
        write(stage.ws / "open.yaml", "version: 1\nfiles:\n  protect_builtin: false\n", who)
        r = stage.run("--policy", "open.yaml", "--commit-on-success", "--", "sh", "-c", "echo x >.envrc")
        check_equal((r.code, (stage.ws / ".envrc").exists()), (0, True), r)
        check_in(HEADING + "  A .envrc\n", r.err, r)


def test_links_on_the_way(who):
    "a link through which programs come to such names is one of them; bin in a project is not"
    with home_workspace(who) as stage:
        check_equal(run("git", "init", "-q", ".", who=who, cwd=stage.ws).code, 0)
        write(stage.ws / "bin/old", "x\n", who)
        run("chown", "-R", f"--reference={stage.home}", stage.ws)
        r = stage.run("--commit-on-success", "--", "sh", "-c", "echo x >bin/old; echo x >bin/new; mkdir e; ln -s e plain")
        check_equal((r.code, (stage.ws / "bin/new").exists(), HEADING in r.err), (0, True, False), r)
        r = stage.run("--commit-on-success", "--", "sh", "-c", "mkdir .jj; ln -s ../e .jj/repo; ln -s ../e .git/modules; echo x >e/config.toml")
        check_in(HEADING + "  A .git/modules\n  A .jj/repo\n", r.err, r)
        check_in("not applied unasked: 2 of the changes", r.err, r)
        check(not (stage.ws / ".git/modules").is_symlink(), r)
