"""What happens when somebody outside replaces a hidden or protected file while a command runs."""
import json
import os
import signal
import time

from hutch_test import check, check_equal, check_in, eventually, hutch_started, run, workspace, write

# Answers one request after the other until it is told to stop: a request is a line of shell, its answer a file.
SERVANT = """
touch ready
while [ ! -e stop ]; do
    for q in ask.*; do
        [ -e "$q" ] || continue
        n=${q#ask.}
        sh "$q" >"part.$n" 2>&1; mv "part.$n" "answer.$n"; rm -f "$q"
    done
    sleep 0.02
done
"""


class Inside:
    """A run that executes lines of shell on request."""

    def __init__(self, ws, who, *options):
        self.ws, self.who, self.n = ws, who, 0
        self.proc = hutch_started("--json", "1", "-q", *options, "--", "sh", "-c", SERVANT, who=who, cwd=ws)
        eventually(lambda: (ws / "ready").exists(), what="the command runs")
        time.sleep(1)  # the watch stands by then

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.proc.poll() is None:
            self.proc.kill()
            self.proc.communicate()

    def ask(self, line):
        self.n += 1
        write(self.ws / "next", line, who=self.who)
        os.rename(self.ws / "next", self.ws / f"ask.{self.n}")
        answer = self.ws / f"answer.{self.n}"
        eventually(answer.exists, what=f"an answer to {line!r}")
        return answer.read_text()

    def becomes_read_only(self, name):
        eventually(lambda: "no" in self.ask(f"test -w {name} || echo no"), what=f"{name} is not writable")
        check_in("read-only", self.ask(f"echo x >>{name}").lower())

    def end(self):
        (self.ws / "stop").touch()
        return self.record()

    def record(self):
        return json.loads(self.proc.communicate(timeout=120)[0])


def replace_git_config(ws, text, who):
    """As git does."""
    write(ws / ".git/config.lock", text, who=who)
    os.rename(ws / ".git/config.lock", ws / ".git/config")


def replace(path, text, who):
    """As editors do."""
    write(f"{path}.tmp", text, who=who)
    os.rename(f"{path}.tmp", path)


def notes_of(record, path):
    return [n for n in record["notes"] if n.startswith(f"{path},")]


def test_replaced_files_are_covered_again(who):
    "a hidden and a protected file that are replaced by rename during a run are covered again, and the record says so"
    with workspace(who) as ws:
        check_equal(run("git", "init", "-q", ".", who=who, cwd=ws).code, 0)
        write(ws / ".env", "KEY=old-secret\n", who=who)
        with Inside(ws, who) as box:
            check("old-secret" not in box.ask("cat .env"))
            for i in range(3):
                replace(ws / ".env", f"KEY=new-secret-{i}\n", who)
                replace(ws / ".git/config", f"[a]\n\tb = outside{i}\n", who)
                eventually(lambda: "denied" in box.ask("cat .env").lower(), what="the new .env is hidden")
                box.becomes_read_only(".git/config")
                check_in("outside", box.ask("cat .git/config"))
                answer = box.ask("rm -f .env; mv .git/config .git/c; mv .git g; cat .env")
                check("new-secret" not in answer, answer)
            record = box.end()
            check_equal((ws / ".env").read_text(), "KEY=new-secret-2\n")
            for name in (".env", ".git/config"):
                notes = notes_of(record, ws / name)
                check_equal(len(notes), 1, record["notes"])
                check_in("3 times and covered again within", notes[0])
            check_in("a hidden name", notes_of(record, ws / ".env")[0])
            check_in(str(ws / ".git/config"), record["host_may_execute"])
            check_equal(record["death"]["cause"], "exit", record["death"])


def test_removed_and_made_again(who):
    "a hidden file that is removed and written anew from outside is covered again"
    with workspace(who) as ws:
        write(ws / ".env", "KEY=old\n", who=who)
        with Inside(ws, who) as box:
            os.unlink(ws / ".env")
            write(ws / ".env", "KEY=anew\n", who=who)
            eventually(lambda: "denied" in box.ask("cat .env").lower(), what="the new .env is hidden")
            os.link(ws / ".env", ws / "other")
            os.unlink(ws / ".env")
            os.rename(ws / "other", ws / ".env")
            eventually(lambda: "denied" in box.ask("cat .env").lower(), what=".env is hidden under its old name")
            check_equal(len(notes_of(box.end(), ws / ".env")), 1)


def test_replaced_directory(who):
    "a repository that is made anew from outside is protected and pinned again, with what is in it"
    with workspace(who) as ws:
        check_equal(run("git", "init", "-q", ".", who=who, cwd=ws).code, 0)
        with Inside(ws, who) as box:
            check_equal(run("sh", "-c", "rm -rf .git && git init -q .", who=who, cwd=ws).code, 0)
            box.becomes_read_only(".git/config")
            check_in("busy", box.ask("LC_ALL=C mv .git other").lower())
            os.rename(ws / ".git", ws / "git.old")
            check_equal(run("git", "init", "-q", ".", who=who, cwd=ws).code, 0)
            box.becomes_read_only(".git/config")
            check(notes_of(box.end(), ws / ".git"))


def test_number_given_again(who):
    "a configuration that git replaces twice at once, so that the new file has the number of the former one, ends no command"
    with workspace(who) as ws:
        check_equal(run("git", "init", "-q", ".", who=who, cwd=ws).code, 0)
        with Inside(ws, who) as box:
            replace_git_config(ws, "[a]\n\tb = 1\n", who)
            box.becomes_read_only(".git/config")
            number = (ws / ".git/config").stat().st_ino
            os.kill(box.proc.pid, signal.SIGSTOP)  # it notices all of them together
            for i in range(8):
                replace_git_config(ws, f"[a]\n\tb = {i + 2}\n", who)
                if (ws / ".git/config").stat().st_ino == number:
                    break
            os.kill(box.proc.pid, signal.SIGCONT)
            box.becomes_read_only(".git/config")
            check_in(f"b = {i + 2}", box.ask("cat .git/config"))
            check_equal(box.end()["death"]["cause"], "exit")


def test_stub_replaced(who):
    "a protected name that did not exist and is made from outside during a run is read-only inside"
    with workspace(who) as ws:
        write(ws / "file", "", who=who)
        with Inside(ws, who, "--deny", ws / "later") as box:
            replace(ws / ".envrc", "echo outside\n", who)
            replace(ws / "later", "secret\n", who)
            box.becomes_read_only(".envrc")
            eventually(lambda: "denied" in box.ask("cat later").lower(), what="later is hidden")
            check_in("echo outside", box.ask("cat .envrc"))
            box.end()
            check_equal((ws / ".envrc").read_text(), "echo outside\n")
            check_equal((ws / "later").read_text(), "secret\n")


def test_replaced_by_a_link(who):
    "a hidden file that is replaced by a link is hidden under both names"
    with workspace(who) as ws:
        write(ws / ".env", "KEY=old\n", who=who)
        write(ws / "real", "KEY=linked\n", who=who)
        with Inside(ws, who) as box:
            os.symlink("real", ws / "link")
            os.rename(ws / "link", ws / ".env")
            eventually(lambda: "linked" not in box.ask("cat .env"), what="the new .env is hidden")
            check("linked" not in box.ask("cat real"))
            box.end()


def test_replaced_by_a_link_higher_up(who):
    "a directory of hidden files that is replaced by a link to another one does not show what is there"
    with workspace(who) as ws:
        write(ws / "sub/.secret", "old\n", who=who)
        write(ws / "new/.secret", "linked\n", who=who)
        with Inside(ws, who, "--deny", ws / "sub/.secret") as box:
            os.rename(ws / "sub", ws / "was")
            os.symlink("new", ws / "sub")
            eventually(lambda: "denied" in box.ask("cat sub/.secret").lower(), what="it is hidden")
            check("linked" not in box.ask("cat new/.secret"))
            check_in("denied", box.ask("cat was/.secret").lower())
            box.end()


def test_cannot_be_covered_again():
    "a command is ended if a hidden file was replaced and cannot be covered again, unless best effort was asked for"
    def replaced(options, end):
        with workspace("user") as ws:
            write(ws / ".env", "KEY=old\n", who="user")
            with Inside(ws, "user", *options) as box:
                run("prlimit", "--pid", box.proc.pid, "--nproc=0", who="user")  # so that it cannot start a helper
                replace(ws / ".env", "KEY=new\n", "user")
                record = end(box)
                return record, notes_of(record, ws / ".env")
    record, notes = replaced((), Inside.record)
    check_equal(record["death"]["cause"], "cover", record)
    check_in("could not be covered again", notes[0])
    for pause in (0.1, 3, 15):  # nothing tells that it was noticed, so that a slow machine may need another try
        def end(box, pause=pause):
            box.ask("true")
            time.sleep(pause)
            return box.end()
        record, notes = replaced(("--enforcement", "best-effort"), end)
        check_equal(record["death"]["cause"], "exit", record)
        if notes:
            break
    check(notes, record)
    check_in("could not be covered again", notes[0])


def test_busy_directory(who):
    "many files made inside, in a directory with hidden ones, neither slow the watch down nor make it miss anything"
    with workspace(who) as ws:
        write(ws / ".env", "KEY=old\n", who=who)
        with Inside(ws, who) as box:
            box.ask("(while [ ! -e stop ]; do for i in 1 2 3 4 5 6 7 8; do : >f$i; mv f$i g$i; done; done) &")
            replace(ws / ".env", "KEY=busy\n", who)
            eventually(lambda: "denied" in box.ask("cat .env").lower(), what="the new .env is hidden")
            check_equal(len(notes_of(box.end(), ws / ".env")), 1)


# Spins until git outside makes its lock file, and then does with it what the argument says.
TAMPER = """
import os, sys, time
how, payload = sys.argv[1], b"\\n" * 400 + b"[core]\\n\\tfsmonitor = touch planted; false\\n"
open("spinning", "w").close()
while True:
    try:
        fd = os.open(".git/config.lock", {"path": os.O_PATH, "link": os.O_PATH}.get(how, os.O_WRONLY))
        break
    except FileNotFoundError:
        pass
if how == "held":  # writes when git has renamed it
    while os.path.exists(".git/config.lock"):
        pass
    time.sleep(0.3)
    os.pwrite(fd, payload, 0)
elif how == "before":  # git writes over the beginning, the rest stays; closed a moment later
    os.pwrite(fd, payload, 0)
    time.sleep(0.002)
    os.close(fd)
elif how == "path":  # opened for writing when the name has long been covered
    while os.path.exists(".git/config.lock"):
        pass
    time.sleep(0.5)
    new = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
    os.pwrite(new, payload, 0)
    os.close(new)
elif how == "swap":  # its own file instead of git's
    with open(".git/evil", "wb") as mine:
        mine.write(payload)
    os.rename(".git/evil", ".git/config.lock")
elif how == "link":
    os.link(".git/config.lock", ".git/elsewhere")  # .git is a mount of its own
    while os.path.exists(".git/config.lock"):
        pass
    time.sleep(0.3)
open("done", "w").close()
time.sleep(60)
"""

BY_GIT = "[core]\n\tbare = false\n[user]\n\tname = changed\n"
# As git does it, but slowly enough for the test to win each time.
AS_GIT = f"""
import os, time
fd = os.open(".git/config.lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
time.sleep(0.05)
os.write(fd, {BY_GIT.encode()})
time.sleep(0.05)
os.close(fd)
time.sleep(0.05)
os.rename(".git/config.lock", ".git/config")
"""


def check_lock_file_tampered(who, how, says, former=None):
    with workspace(who) as ws:
        check_equal(run("git", "init", "-q", ".", who=who, cwd=ws).code, 0)
        former = former or (ws / ".git/config").read_text()
        write(ws / "tamper.py", TAMPER, who=who)
        with Inside(ws, who) as box:
            box.ask(f"python3 tamper.py {how} >tamper.out 2>&1 &")
            eventually((ws / "spinning").exists, what="the command waits for git's lock file")
            check_equal(run("python3", "-c", AS_GIT, who=who, cwd=ws).code, 0)
            record = box.record()
        check_equal(record["death"]["cause"], "cover", record)
        notes = [n for n in record["notes"] if says in n]
        check_equal(len(notes), 1, record["notes"])
        check_equal((ws / ".git/config").read_text(), former, "the former file is not back")
        check_equal(os.stat(ws / ".git/config").st_nlink, 1)
        suspects = list((ws / ".git").glob("config.hutch-suspect-*"))
        check_equal(len(suspects), 1, notes)
        check_in(str(suspects[0]), notes[0])
        check(suspects[0].read_text() != former)
        check_equal(run("git", "status", who=who, cwd=ws).code, 0)
        check(not (ws / "planted").exists(), "git outside ran what the command wrote")


def test_lock_file_held_open(who):
    "a command that opened git's config.lock before git outside renamed it is ended, and the former config is back"
    check_lock_file_tampered(who, "held", "had it open for writing")


def test_lock_file_written_before_the_rename(who):
    "the same if it wrote to the lock file and closed it before git renamed it"
    check_lock_file_tampered(who, "before", "more than one process wrote to it")


def test_lock_file_opened_again_later(who):
    "the same if it opens what it held by O_PATH for writing when the name has been covered"
    check_lock_file_tampered(who, "path", "written to in place", former=BY_GIT)


def test_lock_file_linked(who):
    "the same if it gave the lock file a further name"
    check_lock_file_tampered(who, "link", "a further name")


def test_lock_file_replaced(who):
    "the same if it put a file of its own in the place of the lock file, which git then renamed"
    check_lock_file_tampered(who, "swap", "in the place of git's lock file")


def test_young_run(who):
    "before the watches stand, a change in place of what git outside put there is found by looking, at the end at the latest"
    for pause in (0.3, 1.5):
        with workspace(who) as ws:
            check_equal(run("git", "init", "-q", ".", who=who, cwd=ws).code, 0)
            late = TAMPER.replace("time.sleep(0.5)", f"time.sleep({pause})").replace("time.sleep(60)", "")
            write(ws / "tamper.py", late, who=who)
            proc = hutch_started("--json", "1", "-q", "--", "python3", "tamper.py", "path", who=who, cwd=ws)
            eventually((ws / "spinning").exists, what="the command waits for git's lock file")
            check_equal(run("python3", "-c", AS_GIT, who=who, cwd=ws).code, 0)
            record = json.loads(proc.communicate(timeout=120)[0])
            check_equal(len([n for n in record["notes"] if "written to in place" in n]), 1, record)
            check_equal((ws / ".git/config").read_text(), BY_GIT)


# As vim does it.
AS_EDITOR = """
import os
os.rename(".git/config", ".git/config~")
with open(".git/config", "x") as new:
    new.write("[by]\\n\\teditor = 1\\n")
os.unlink(".git/config~")
"""


def test_editors_after_git(who):
    "an editor outside that saves the configuration, after git outside changed it, does not end the command"
    with workspace(who) as ws:
        check_equal(run("git", "init", "-q", ".", who=who, cwd=ws).code, 0)
        with Inside(ws, who) as box:
            for _ in range(3):
                for script in (AS_GIT, AS_EDITOR):
                    check_equal(run("python3", "-c", script, who=who, cwd=ws).code, 0)
                    box.becomes_read_only(".git/config")
                slow = "exec >.git/c.tmp; mv .git/c.tmp .git/config; echo '[by]'; sleep 0.2; echo 'editor = 1'"
                check_equal(run("python3", "-c", AS_GIT, who=who, cwd=ws).code, 0)
                box.becomes_read_only(".git/config")
                check_equal(run("sh", "-c", slow, who=who, cwd=ws).code, 0)
                box.becomes_read_only(".git/config")
            record = box.end()
            check_equal(record["death"]["cause"], "exit", record)
            check_equal(run("git", "config", "by.editor", who=who, cwd=ws).out, "1\n")


def test_git_outside_goes_on(who):
    "git outside may change the configuration during a run as often as it likes, while git inside works"
    with workspace(who) as ws:
        check_equal(run("git", "init", "-q", ".", who=who, cwd=ws).code, 0)
        with Inside(ws, who) as box:
            box.ask("(while [ ! -e stop ]; do git status; git add ready; done) >/dev/null 2>&1 &")
            done = 0
            for i in range(60):
                done += run("git", "config", "user.name", f"name{i}", who=who, cwd=ws).code == 0
                if i % 20 == 0:
                    box.becomes_read_only(".git/config")
            check_equal(done, 60)
            record = box.end()
            check_equal(record["death"]["cause"], "exit", record)
            check(not [n for n in record["notes"] if "look at it" in n], record["notes"])
            check_equal(run("git", "config", "user.name", who=who, cwd=ws).out, "name59\n")


def test_slow_writer_outside(who):
    "a protected file that a process outside is still writing, under its name or another, is no reason to end the command"
    with workspace(who) as ws:
        check_equal(run("git", "init", "-q", ".", who=who, cwd=ws).code, 0)
        write(ws / ".bashrc", "old\n", who=who)
        with Inside(ws, who) as box:
            for name in (".bashrc", ".git/config"):
                script = f"exec >{name}.tmp; mv {name}.tmp {name}; echo '[slow]'; sleep 0.5; echo 'b = written'"
                check_equal(run("sh", "-c", script, who=who, cwd=ws).code, 0)
                box.becomes_read_only(name)
            box.ask("true")
            time.sleep(0.3)
            record = box.end()
            check_equal(record["death"]["cause"], "exit", record)
            check_in("written", (ws / ".git/config").read_text())
            check_in("written", (ws / ".bashrc").read_text())
