"""hutch run --tx: the host is untouched until somebody says so, and then it is exactly what the command left."""
import json
import os
import pathlib
import shutil
import stat
import subprocess

from hutch_test import HUTCH, check, check_equal, check_in, clean_env, hutch, identity, is_root, run, skip, write
from outer_terminal import Outer
from test_learn import home_workspace

JOB = """set -e
echo changed >> keep.txt
echo new > made.txt
mkdir -p dir/sub && echo deep > dir/sub/deep.txt
rm gone.txt
rm -rf old && mkdir old old/sub && echo fresh > old/fresh && echo fresh > old/sub/fresh
chmod 755 mode.sh
mv moved here
ln -s keep.txt link
mkfifo pipe
rm -rf tree
echo file > was-dir-now-file.tmp && rm -rf swap && mv was-dir-now-file.tmp swap
"""


def furnish(stage):
    for path in ("keep.txt", "gone.txt", "old/stale", "old/sub/stale", "old/deep/z", "mode.sh", "moved/a", "moved/b", "tree/x/y", "swap/inner"):
        write(stage.ws / path, "first\n", stage.who)
    os.chmod(stage.ws / "mode.sh", 0o644)


def look(top):
    """Every path with what it is, without times."""
    seen = {}
    for folder, dirs, files in os.walk(top):
        for name in dirs + files:
            path = os.path.join(folder, name)
            st = os.lstat(path)
            kind = stat.S_IFMT(st.st_mode)
            content = pathlib.Path(path).read_text() if kind == stat.S_IFREG else os.readlink(path) if kind == stat.S_IFLNK else ""
            seen[os.path.relpath(path, top)] = (kind, stat.S_IMODE(st.st_mode), st.st_uid, content)
    return seen


def tx(stage, *args, **kwargs):
    return hutch(*args, who=stage.who, cwd=stage.ws, env={"HOME": str(stage.home)}, **kwargs)


def expected(stage):
    """What the same job does without any wall."""
    copy = stage.home / "copy"
    shutil.copytree(stage.ws, copy, symlinks=True)
    _, entry = identity(stage.who)
    subprocess.run(["chown", "-R", f"{entry.pw_uid}:{entry.pw_gid}", copy], check=True)
    subprocess.run(["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups", "sh", "-c", JOB], cwd=copy, check=True)
    want = look(copy)
    shutil.rmtree(copy)
    return want


def test_kept_then_applied(who):
    "nothing changes on the host until the transaction is applied; then it is what the command would have left without a wall"
    with home_workspace(who) as stage:
        furnish(stage)
        want, before = expected(stage), look(stage.ws)
        r = stage.run("--tx", "--json", "../../record.json", "--", "sh", "-c", JOB)
        check_equal(r.code, 0, r)
        check_equal(look(stage.ws), before, "the host changed before anybody decided")
        check_in("M keep.txt", r.err, r)
        check_in("D gone.txt", r.err, r)
        check_in("A made.txt", r.err, r)
        check_in("M mode.sh (mode 0644 -> 0755)", r.err, r)
        check_equal(json.loads((stage.ws / "../../record.json").read_text())["tx"], "kept")
        name = r.err.split("kept as ")[1].split(";")[0]
        diff = tx(stage, "diff", name)
        check_equal(diff.code, 0, diff)
        check_in("--- a/keep.txt\n+++ b/keep.txt\n@@ -1,1 +1,2 @@\n first\n+changed\n", diff.out, diff)
        check_in("-first\n", diff.out.split("a/gone.txt")[1], diff)
        check_in(name, tx(stage, "tx", "ls").out)
        done = tx(stage, "apply")  # the only one
        check_equal(done.code, 0, done)
        check_equal(look(stage.ws), want)
        check_equal(tx(stage, "tx", "ls").out, "")
        check_equal(tx(stage, "apply", name).code, 120)


def test_commit_on_success(who):
    "--commit-on-success applies after exit code 0, says so, and keeps after any other"
    with home_workspace(who) as stage:
        furnish(stage)
        r = stage.run("--commit-on-success", "--", "sh", "-c", "echo x > fine.txt; exit 3")
        check_equal(r.code, 3, r)
        check(not (stage.ws / "fine.txt").exists(), "applied although the command failed")
        check_equal(tx(stage, "discard").code, 0)
        r = stage.run("--commit-on-success", "--", "sh", "-c", "echo x > fine.txt")
        check_in("hutch: 1 change applied", r.err)
        check_equal(r.code, 0, r)
        check_equal((stage.ws / "fine.txt").read_text(), "x\n")
        check_equal(tx(stage, "tx", "ls").out, "")
        r = stage.run("--tx", "--", "true")
        check_in("changed no files", r.err, r)
        check_equal(tx(stage, "tx", "ls").out, "", "nothing to decide about was kept")


def test_conflict(who):
    "a file that was changed on the host meanwhile stops the whole transaction, unless it is forced"
    with home_workspace(who) as stage:
        furnish(stage)
        r = stage.run("--tx", "--", "sh", "-c", "echo mine > keep.txt; echo y > other.txt")
        check_equal(r.code, 0, r)
        write(stage.ws / "keep.txt", "somebody else's\n", who)
        no = tx(stage, "apply")
        check_equal(no.code, 121, no)
        check_in("keep.txt", no.err, no)
        check(not (stage.ws / "other.txt").exists(), "half of it was applied")
        check_equal((stage.ws / "keep.txt").read_text(), "somebody else's\n")
        yes = tx(stage, "apply", "--force")
        check_equal(yes.code, 0, yes)
        check_equal((stage.ws / "keep.txt").read_text(), "mine\n")


def test_alternatives(who):
    "two transactions over the same directory do not see each other, and either can be chosen"
    with home_workspace(who) as stage:
        furnish(stage)
        a = stage.run("--tx", "--", "sh", "-c", "echo left > choice.txt")
        b = stage.run("--tx", "--", "sh", "-c", "test ! -e choice.txt && echo right > choice.txt")
        check_equal((a.code, b.code), (0, 0), f"{a} {b}")
        both = tx(stage, "apply")
        check_equal(both.code, 120, both)
        check_in("say which", both.err, both)
        name = b.err.split("kept as ")[1].split(";")[0]
        check_equal(tx(stage, "apply", name).code, 0)
        check_equal((stage.ws / "choice.txt").read_text(), "right\n")
        late = tx(stage, "apply")
        check_equal(late.code, 121, late)
        check_equal(tx(stage, "discard").code, 0)


def test_walls_stand(who):
    "with --tx hidden files stay hidden, protected names stay protected, and nothing set-uid reaches the host"
    with home_workspace(who) as stage:
        furnish(stage)
        write(stage.home / ".ssh/config", "secret\n", who)
        subprocess.run(["git", "init", "-q", "."], cwd=stage.ws, check=True)
        _, entry = identity(who)
        subprocess.run(["chown", "-R", f"{entry.pw_uid}:{entry.pw_gid}", stage.ws], check=True)
        r = stage.run("--commit-on-success", "--", "sh", "-c",
                      "cat ../.ssh/config && exit 9; echo evil > .git/hooks/pre-commit && exit 8; echo x > /etc/hutch-tx && exit 7;"
                      "cp /bin/true suid && chmod 4755 suid && exit 6; mkdir -m 2777 sgid 2>/dev/null; echo fine > ok.txt")
        check_equal(r.code, 0, r)
        check_equal((stage.ws / "ok.txt").read_text(), "fine\n")
        check(not (stage.ws / ".git/hooks/pre-commit").exists(), "a hook came through")
        for path in stage.ws.rglob("*"):
            check(not path.lstat().st_mode & 0o6000, f"{path} is set-uid or set-gid")


def test_bad_input(who):
    "what cannot be done is refused with the reason"
    with home_workspace(who) as stage:
        write(stage.ws / "single", "x", who)
        for args, code, word in ((("--tx", "--learn", "p.yaml"), 120, "exclude"), (("--tx", "--root", "/"), 120, "--root"),
                                 (("--tx", "--no-cwd"), 120, "no directory"), (("--tx", "--rw", "single"), 120, "is not one")):
            r = stage.run(*args, "--", "true")
            check_equal(r.code, code, r)
            check_in(word, r.err, r)
        for args, word in ((("apply", "tx-zz"), "not the id of a transaction"), (("apply", "tx-00000000"), "no transaction tx-00000000"),
                           (("diff", "a", "b"), "one transaction"), (("tx", "rm"), "usage")):
            r = tx(stage, *args)
            check_equal(r.code, 120, r)
            check_in(word, r.err, r)


def test_doctor_knows_whether_directories_go(who):
    "a directory that was there can be removed, or hutch doctor has said that it cannot"
    report = json.loads(hutch("doctor", "--json", who=who).out)
    found = [p["state"] for p in report["probes"] if p["id"] == "fs.overlay-remove"]
    with home_workspace(who) as stage:
        write(stage.ws / "old/file", "x\n", who)
        r = tx(stage, "run", "--tx", "--", "rm", "-r", "old")
        check_equal(found, ["ok" if r.code == 0 else "missing"], r)


def test_owner_with_a_large_id():
    "the changes of a user of a directory service, whose id no layer could hold, are kept and applied as everybody's"
    if not is_root() or not shutil.which("setpriv"):
        skip("needs root and setpriv (util-linux), to become a user who has no entry")
    number, top = 200001, pathlib.Path(f"/var/lib/hutch-tx-{os.getpid()}")
    try:
        for path in (top, top / "ws", top / "ws/d"):
            path.mkdir(mode=0o755)
        (top / "ws/d/f").write_text("first\n")
        for path in (top, *top.rglob("*")):
            os.chown(path, number, number)

        def as_user(*args):
            return run("setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups", HUTCH, *args, cwd=top / "ws",
                       env={"HOME": str(top)})

        r = as_user("run", "--tx", "--", "sh", "-c", "echo more >> d/f; mkdir e; echo new > e/g; ln -s g e/l")
        check_equal(r.code, 0, r)
        check_in("kept as tx-", r.err, r)
        done = as_user("apply")
        check_equal(done.code, 0, done)
        check_equal(((top / "ws/d/f").read_text(), (top / "ws/e/g").read_text()), ("first\nmore\n", "new\n"))
        check_equal((top / "ws/e/g").stat().st_uid, number)
    finally:
        shutil.rmtree(top)


READ_ONLY = """set -e
mkdir -p made/deep && echo x > made/deep/file && ln -s file made/deep/link && chmod 555 made/deep made
chmod 755 was-closed was-closed/in && echo x > was-closed/in/new && rm was-closed/old && chmod 555 was-closed/in was-closed
echo x > was-open/new && chmod 555 was-open
chmod 755 opened && echo x > opened/new
chmod 755 gone && rm -r gone
"""


def set_modes(stage, mode):
    """Of the host's directories; a runner that is not root could not remove them otherwise."""
    for name in ("was-closed/in", "was-closed", "opened", "gone", "made", "made/deep", "was-open"):
        if (stage.ws / name).is_dir() and (mode == 0o755 or name in ("was-closed/in", "was-closed", "opened", "gone")):
            os.chmod(stage.ws / name, mode)


def test_read_only_directories(who):
    "directories that their owner may not write to, before or after, take what the command put there, and end as it left them"
    with home_workspace(who) as stage:
        furnish(stage)
        for path in ("was-closed/in/stays", "was-closed/old", "was-open/file", "opened/file", "gone/file"):
            write(stage.ws / path, "first\n", who)
        set_modes(stage, 0o555)
        r = stage.run("--tx", "--", "sh", "-c", READ_ONLY)
        check_equal(r.code, 0, r)
        done = tx(stage, "apply")
        check_equal(done.code, 0, done)
        after = look(stage.ws)
        for name, mode in (("made", 0o555), ("made/deep", 0o555), ("was-closed", 0o555), ("was-closed/in", 0o555), ("was-open", 0o555),
                           ("opened", 0o755)):
            check_equal(oct(after[name][1]), oct(mode), name)
        for name in ("made/deep/file", "made/deep/link", "was-closed/in/new", "was-closed/in/stays", "was-open/new", "opened/new"):
            check_in(name, after)
        check(not {"was-closed/old", "gone"} & set(after), "what the command removed is there")
        set_modes(stage, 0o755)


def test_directory_taken_away_while_it_is_asked(who):
    "a directory that goes on the host while the question stands is a conflict, and nothing is applied"
    with home_workspace(who) as stage:
        furnish(stage)
        (stage.ws / "moved/b").unlink()
        command = f"cd {stage.ws} && HOME={stage.home} exec {HUTCH} run --tx -- sh -c 'echo x > first; echo x > moved/added; mkdir n; echo x > n/f'"
        with Outer(["sh", "-c", command], who=who) as outer:
            outer.expect("discard: ")
            shutil.rmtree(stage.ws / "moved")
            outer.send("a\n")
            outer.expect("moved/added.*nothing was applied")
            check_equal(outer.state(), "121")
        check(not (stage.ws / "first").exists(), "half of it was applied")
        no = tx(stage, "apply")
        check_equal(no.code, 121, no)
        check_in("moved", no.err, no)
        yes = tx(stage, "apply", "--force")
        check_equal(yes.code, 0, yes)
        check((stage.ws / "moved/added").exists() and (stage.ws / "n/f").exists(), "not all was applied")


def test_forced_over_another_type(who):
    "--force makes a file where there is a directory now, and a directory where there is a file"
    with home_workspace(who) as stage:
        furnish(stage)
        r = stage.run("--tx", "--", "sh", "-c", "echo mine > keep.txt; mkdir d; echo x > d/f")
        check_equal(r.code, 0, r)
        (stage.ws / "keep.txt").unlink()
        write(stage.ws / "keep.txt/inside", "theirs\n", who)
        write(stage.ws / "d", "theirs\n", who)
        no = tx(stage, "apply")
        check_equal(no.code, 121, no)
        yes = tx(stage, "apply", "--force")
        check_equal(yes.code, 0, yes)
        check_equal(((stage.ws / "keep.txt").read_text(), (stage.ws / "d/f").read_text()), ("mine\n", "x\n"))


def test_names_of_any_bytes(who):
    "names that are no UTF-8 are kept and applied as others are, also that of the directory itself"
    with home_workspace(who) as stage:
        stage.ws = stage.ws / os.fsdecode(b"w\xff")
        old, new = (stage.ws / os.fsdecode(name) for name in (b"old\xfe%41", b"new\xff"))
        write(old, "first\n", who)
        write(stage.ws / os.fsdecode(b"d\xff/x"), "first\n", who)
        r = stage.run("--tx", "--", "sh", "-c", "for f in old*; do echo more >> \"$f\"; done; echo x > \"$(printf 'new\\377')\"; rm d*/x")
        check_equal(r.code, 0, r)
        check(not new.exists(), "the host changed before anybody decided")
        done = tx(stage, "apply")
        check_equal(done.code, 0, done)
        check_equal((old.read_text(), new.read_text()), ("first\nmore\n", "x\n"))
        check(not (stage.ws / os.fsdecode(b"d\xff/x")).exists(), "it was not removed")
        r = stage.run("--tx", "--", "sh", "-c", "for f in old*; do echo more >> \"$f\"; done")
        check_equal(r.code, 0, r)
        write(old, "theirs\n", who)
        no = tx(stage, "apply")
        check_equal(no.code, 121, no)


# What somebody does on the host meanwhile in a directory that JOB takes away, and the name that has to be told. A directory
# that is moved in brings files whose times are old, and another text of the same size is another text.
MEANWHILE = {
    "added": (lambda stage: write(stage.ws / "tree/x/added", "theirs\n", stage.who), "tree/x/added"),
    "edited": (lambda stage: write(stage.ws / "tree/x/y", "other\n", stage.who), "tree/x/y"),
    "linked": (lambda stage: os.link(stage.ws / "job", stage.ws / "tree/x/linked"), "tree/x/linked"),
    "moved in": (lambda stage: os.rename(stage.ws / "elsewhere", stage.ws / "tree/x/elsewhere"), "tree/x/elsewhere"),
    "moved in over it": (lambda stage: (shutil.rmtree(stage.ws / "tree"), os.rename(stage.ws / "elsewhere", stage.ws / "tree")), "tree"),
    "in what was renamed": (lambda stage: write(stage.ws / "moved/a", "other\n", stage.who), "moved/a"),
    "in what became a file": (lambda stage: write(stage.ws / "swap/added", "theirs\n", stage.who), "swap/added"),
    "edited in what became a file": (lambda stage: write(stage.ws / "swap/inner", "other\n", stage.who), "swap/inner"),
    "in what was made anew": (lambda stage: write(stage.ws / "old/added", "theirs\n", stage.who), "old/added"),
    "below what was made anew": (lambda stage: write(stage.ws / "old/deep/z", "other\n", stage.who), "old/deep/z"),
    "in a part that was made anew": (lambda stage: write(stage.ws / "old/sub/added", "theirs\n", stage.who), "old/sub/added"),
}


def refused(stage, r, name, before, what):
    check_equal(r.code, 121, f"{what}: {r}")
    check_in(name, r.err, f"{what}: {r}")
    check_equal(look(stage.ws), before, f"{what}: something was applied")


def test_added_below_what_goes(who):
    "what was added or changed on the host in a directory that the command removed, renamed or replaced stops the transaction"
    for what, (act, name) in MEANWHILE.items():
        with home_workspace(who) as stage:
            furnish(stage)
            want = expected(stage)
            write(stage.ws / "elsewhere/precious", "theirs\n", who)
            r = stage.run("--tx", "--", "sh", "-c", JOB)
            check_equal(r.code, 0, r)
            act(stage)
            refused(stage, tx(stage, "apply"), name, look(stage.ws), what)
            yes = tx(stage, "apply", "--force")
            check_equal(yes.code, 0, f"{what}: {yes}")
            after = {k: v for k, v in look(stage.ws).items() if not k.startswith("elsewhere")}
            check_equal(after, want, what)


def test_added_below_while_it_runs(who):
    "the same while the command runs, with --commit-on-success"
    ids, entry = identity(who)
    for what in ("added", "edited", "linked", "moved in", "moved in over it", "in what became a file", "below what was made anew"):
        act, name = MEANWHILE[what]
        with home_workspace(who) as stage:
            furnish(stage)
            write(stage.ws / "elsewhere/precious", "theirs\n", who)
            with subprocess.Popen([HUTCH, "run", "--commit-on-success", "--", "sh", "-c", JOB + "echo done; read answer"], cwd=stage.ws,
                                  env=clean_env(entry, {"HOME": str(stage.home)}), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, **ids) as proc:
                check_equal(proc.stdout.readline(), "done\n")
                act(stage)
                before = {k: v for k, v in look(stage.ws).items() if v[0] != stat.S_IFSOCK}  # hutch's own, until the end
                _, err = proc.communicate("go\n", timeout=60)
            check_equal(proc.returncode, 121, f"{what}: {err}")
            told = err.split("changed on the host since the command started: ")[1].split(";")[0]
            check(told == name or name.startswith(told + "/"), f"{what}: {err}")  # what holds it has changed as well
            check_equal(look(stage.ws), before, f"{what}: something was applied")
            check_in("tx-", tx(stage, "tx", "ls").out, what)


def test_gone_below_what_goes(who):
    "what somebody removed in a directory that goes anyway is no conflict, nor is what did not change"
    with home_workspace(who) as stage:
        furnish(stage)
        want = expected(stage)
        r = stage.run("--tx", "--", "sh", "-c", JOB)
        check_equal(r.code, 0, r)
        (stage.ws / "tree/x/y").unlink()
        shutil.rmtree(stage.ws / "old/deep")
        done = tx(stage, "apply")
        check_equal(done.code, 0, done)
        check_equal(look(stage.ws), want)


def test_on_the_disk_before_the_other_copy_goes():
    "a transaction has its name when it is on the disk, and goes when its changes are"
    if not is_root() or not shutil.which("strace"):
        skip("needs root and strace: apt-get install strace")
    with home_workspace("root") as stage:
        furnish(stage)

        def calls(*args):
            log = stage.home / "calls"
            r = run("strace", "-o", log, "-e", "trace=syncfs,fsync,renameat,renameat2,unlinkat", HUTCH, *args, cwd=stage.ws, env={"HOME": str(stage.home)})
            check_equal(r.code, 0, r)
            return log.read_text()

        kept = calls("run", "--tx", "--", "sh", "-c", "echo x > made.txt").split("syncfs(")
        check_equal(len(kept), 2, kept)
        check("renameat(" not in kept[0] and "fsync(" in kept[1].split(", \"tx-")[1], kept)
        applied = calls("apply").split("syncfs(")
        check_equal(len(applied), 2, applied)
        check("made.txt" in applied[0] and "unlinkat(" not in applied[0] and "tx.json" in applied[1], applied)
