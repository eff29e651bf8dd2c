"""What an attacker tried, and what must come of it: each of these got through once."""
import json
import os
import subprocess

from hutch_test import (HUTCH, HUTCH_TEST, check, check_equal, check_in, clean_env, eventually, hutch, hutch_started,
                        identity, run, workspace, write)


def test_directory_of_somebody_else(who):
    "in a directory that the caller cannot write to, the command runs and cannot write either"
    r = hutch("run", "--", "sh", "-c", "echo ran; touch /etc/x .envrc", who=who, cwd="/usr/share")
    check_equal((r.code, r.out), (1, "ran\n"), r)
    check(not os.path.lexists("/usr/share/.envrc"), "a file was made")


def test_link_at_the_name_of_the_record(who):
    "a link that the command leaves at the record's name is replaced, never followed"
    with workspace(who) as ws:
        victim = ws.parent / (ws.name + ".victim")
        write(victim, "mine\n", who)
        try:
            plant = f"ln -sf {victim} r.json; echo '{{\"forged\":1}}' > f.json; rm f.json; ln -s {victim} f.json"
            for name in ("r.json", "f.json"):
                r = hutch("run", "-q", "--json", name, "--", "sh", "-c", plant, who=who, cwd=ws)
                check_equal(r.code, 0, r)
                check(not (ws / name).is_symlink(), "the link is still there")
                check_equal(json.loads((ws / name).read_text())["exit_code"], 0)
                other = ws / ("f.json" if name == "r.json" else "r.json")
                other.unlink()
            check_equal(victim.read_text(), "mine\n")
            os.symlink(victim, ws / "again.json")
            r = hutch("run", "--json", "again.json", "--", "true", who=who, cwd=ws)
            check_equal((r.code, victim.read_text()), (120, "mine\n"), r)
        finally:
            victim.unlink()


def test_file_on_stdin_is_read_only(who):
    "a file on stdin can be read to where the command stops, and not be changed through its descriptor"
    with workspace(who) as ws:
        outside = ws.parent / (ws.name + ".input")
        write(outside, "one\ntwo\n", who, 0o644)
        try:
            script = ("read x; echo got $x; (echo bad > /proc/self/fd/0) 2>/dev/null && echo written; "
                      "python3 -c 'import os; os.fchmod(0, 0o777)' 2>/dev/null && echo changed; true")
            r = run("sh", "-c", '("$0" run -q -- sh -c "$1"; cat) < "$2"', HUTCH, script, outside, who=who, cwd=ws)
            check_equal(r.out, "got one\ntwo\n", r)
            check_equal((outside.read_text(), outside.stat().st_mode & 0o777), ("one\ntwo\n", 0o644))
            r = run("sh", "-c", '"$0" run -q --learn p.yaml -- sh -c "echo bad > /proc/self/fd/0" < "$1"', HUTCH, outside,
                    who=who, cwd=ws)
            check_equal(outside.read_text(), "one\ntwo\n", r)
        finally:
            outside.unlink()


def test_directory_on_stdin_is_refused(who):
    "a directory on stdin would lead around the rules about paths, so it is refused"
    with workspace(who) as ws:
        r = run("sh", "-c", '"$0" run -- ls < "$1"', HUTCH, ws, who=who, cwd=ws)
        check_equal(r.code, 120, r)
        check_in("is a directory", r.err, r)


def test_lock_on_the_workspace(who):
    "a command that locks directories of its workspace neither stops other runs there nor keeps their stubs alive"
    with workspace(who) as ws:
        write(ws / "sub" / "file", "x", who)
        os.chown(ws / "sub", *(os.stat(ws).st_uid, os.stat(ws).st_gid))
        holder = hutch_started("-q", "--", "python3", "-c",
                       "import fcntl,os,time; f=os.open('sub',os.O_RDONLY); fcntl.flock(f,fcntl.LOCK_EX); open('held','w'); "
                       "time.sleep(600)", who=who, cwd=ws)
        try:
            eventually(lambda: (ws / "held").exists(), what="the lock is held")
            r = hutch("run", "-q", "--", "true", who=who, cwd=ws / "sub")
            check_equal(r.code, 0, r)
            check_equal(sorted(os.listdir(ws / "sub")), ["file"])
        finally:
            holder.kill()
            holder.communicate()
            eventually(lambda: sorted(os.listdir(ws)) == ["held", "sub"], what="the guard has removed the stubs")


def test_stubs_of_different_runs(who):
    "the last run in a directory removes the stubs of all, whatever names they protected"
    with workspace(who) as ws:
        first = hutch_started("-q", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done", who=who, cwd=ws)
        eventually(lambda: (ws / ".envrc").is_socket(), what="the first run has made its stubs")
        r = hutch("run", "-q", "--protect", "./extra.cfg", "--", "true", who=who, cwd=ws)
        check_equal(r.code, 0, r)
        write(ws / "go", "", who)
        first.communicate(timeout=120)
        check_equal(os.listdir(ws), ["go"])


def test_reader_that_does_not_read(who):
    "a reader of limited output that stalls does not keep the time limit from ending the command"
    with workspace(who) as ws:
        ids, entry = identity(who)
        proc = subprocess.Popen([HUTCH, "run", "-q", "--output-bytes", "50M", "--timeout", "1s", "--", "yes"], cwd=ws,
                                env=clean_env(entry), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **ids)
        check_equal(proc.wait(120), 124)
        proc.stdout.close()


def test_git_changed_from_outside(who):
    "a protected file that is replaced from outside while the command runs is listed in the result"
    with workspace(who) as ws:
        r = run("git", "init", "-q", ".", who=who, cwd=ws)
        check_equal(r.code, 0, r)
        proc = hutch_started("--json", "1", "-q", "--", "sh", "-c", "touch ready; while [ ! -e go ]; do sleep 0.05; done", who=who, cwd=ws)
        eventually(lambda: (ws / "ready").exists(), what="the command runs")
        r = run("git", "config", "a.b", "c", who=who, cwd=ws)
        check_equal(r.code, 0, r)
        write(ws / "go", "", who)
        record = json.loads(proc.communicate(timeout=120)[0])
        check_in(".git/config", " ".join(map(str, record["host_may_execute"])))


def test_git_behind_a_link_to_a_file(who):
    "where .git is a link to a file, the git directory that the file names is protected"
    with workspace(who) as ws:
        for line in ("git init -q --separate-git-dir store work", "mkdir work/sub && mv work/.git gitfile",
                     "echo 'gitdir: ../store' >gitfile && ln -s ../gitfile work/.git", "git -C work config a.b c"):
            r = run("sh", "-c", line, who=who, cwd=ws)
            check_equal(r.code, 0, r)
        r = hutch("run", "-q", "--", "sh", "-c", "echo x >>store/config; echo x >store/hooks/pre-commit; echo x >gitfile; "
                  "rm work/.git; git -C work status --short", who=who, cwd=ws)
        check_equal((r.code, r.err.lower().count("read-only"), r.err.count("busy")), (0, 3, 1), r)


def test_git_configuration_names_writable_places(who):
    "a hook or a configuration in a writable place that a protected .git/config names is listed in the result"
    with workspace(who) as ws:
        for args in (["init", "-q", "."], ["config", "core.hooksPath", ".githooks"], ["config", "include.path", "../team.cfg"]):
            r = run("git", *args, who=who, cwd=ws)
            check_equal(r.code, 0, r)
        r = run("sh", "-c", "mkdir .githooks other; echo x > .githooks/kept; echo > team.cfg; sleep 0.1", who=who, cwd=ws)
        check_equal(r.code, 0, r)
        quiet = hutch("run", "--json", "1", "-q", "--", "touch", "other/file", who=who, cwd=ws)
        check_equal(json.loads(quiet.out)["host_may_execute"], [])
        r = hutch("run", "--json", "1", "-q", "--", "sh", "-c", "echo evil > .githooks/kept; echo > team.cfg", who=who, cwd=ws)
        check_equal(json.loads(r.out)["host_may_execute"], [str(ws / ".githooks/kept"), str(ws / "team.cfg")])
        run("sleep", "0.1", who=who, cwd=ws)  # what was written in the tick of the start counts as changed
        r = hutch("run", "--json", "1", "-q", "--", "sh", "-c", "echo evil > .githooks/pre-commit", who=who, cwd=ws)
        check_equal(json.loads(r.out)["host_may_execute"], [str(ws / ".githooks")])


def test_first_process_has_forgotten_its_caller(who):
    "pid 1 inside shows neither the command line nor the environment of the caller, from the first moment on"
    look = "cat /proc/1/cmdline | tr '\\0' '.'; cat /proc/1/environ 2>/dev/null | tr '\\0' '.'"
    with workspace(who) as ws:
        for _ in range(20):
            r = hutch("run", "-q", "--env", "SECRET=s3cret-canary", "--", "sh", "-c", look, "arg-canary", who=who, cwd=ws)
            check_equal(r.code, 0, r)
            check_equal(r.out.strip("."), "hutch-init", r)
        # Without the layer that keeps /proc/1 closed to the inside there is still nothing to be seen.
        r = run("env", "HUTCH_WITHOUT=dumpable", "TOKEN=env-canary", HUTCH_TEST, "run", "-q", "--", "sh", "-c", look,
                who=who, cwd=ws)
        check_equal(r.out.strip("."), "hutch-init", r)
