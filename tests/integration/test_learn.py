"""--learn: nothing is kept, and the document is enough and not more than enough."""
import hashlib
import os
import pathlib
import shutil
import socket
import stat
import subprocess
import threading

from hutch_test import (HUTCH, check, check_equal, check_in, check_one_line, clean_env, eventually, hutch, identity, run, skip,
                        workspace, write)

# Programs of the system alone: a root caller's own Python would be one more thing to learn.
JOB = """#!/bin/sh
set -e
mkdir -p "$HOME/.cache/learn-x"
echo 1 > "$HOME/.cache/learn-x/y"
echo 1 > ./out
grep -q . "$HOME/.ssh/config"
rm "$HOME/.keep/old"
/usr/bin/perl -e 'exit(syscall(101, 0, 0, 0, 0) == 0 ? 0 : 3)'
"""


def fingerprint(*tops):
    """Everything about the trees that a command could have changed."""
    h = hashlib.sha256()
    for top in tops:
        for folder, dirs, files in os.walk(top):
            dirs.sort()
            for name in [".", *sorted(files)]:
                path = os.path.join(folder, name)
                st = os.lstat(path)
                h.update(f"{path} {st.st_mode} {st.st_uid} {st.st_size} {st.st_mtime_ns} {st.st_ctime_ns}\n".encode())
                if stat.S_ISREG(st.st_mode):
                    h.update(pathlib.Path(path).read_bytes())
    return h.hexdigest()


class Stage:
    """A home directory of its own and a workspace, for one caller."""

    def __init__(self, top, who):
        self.who, self.home, self.ws = who, top / "home", top / "home/ws"
        self.policy = self.ws / "p.yaml"
        self.reset()

    def reset(self):
        for path in (".ssh/config", ".keep/old", ".cache/hold"):
            write(self.home / path, "x\n", self.who)
        shutil.rmtree(self.home / ".cache/learn-x", ignore_errors=True)
        self.job = write(self.ws / "job", JOB, self.who, 0o755)
        (self.ws / "out").unlink(missing_ok=True)

    def run(self, *args, **kwargs):
        return hutch("run", *args, who=self.who, cwd=self.ws, env={"HOME": str(self.home)}, **kwargs)

    def passes(self, text):
        self.reset()
        path = write(self.ws / "try.yaml", text, self.who)
        self.last = self.run("--quiet", "--policy", path, "--", "./job")
        return self.last.code == 0


class home_workspace:
    """Outside the private /tmp, where a real home directory is; as root it is closed to others, as /root is."""

    def __init__(self, who):
        self.who = who

    def __enter__(self):
        _, entry = identity(self.who)
        self.top = pathlib.Path(f"/var/lib/hutch-learn-{os.getpid()}-{self.who}")
        if os.geteuid() != 0:
            self.top = pathlib.Path(entry.pw_dir) / f"hutch-learn-{os.getpid()}"
        self.top.mkdir(mode=0o755)
        (self.top / "home").mkdir(mode=0o700)
        if os.geteuid() == 0:
            for path in (self.top, self.top / "home"):
                os.chown(path, entry.pw_uid, entry.pw_gid)
        return Stage(self.top, self.who)

    def __exit__(self, *_):
        shutil.rmtree(self.top)


def without_empty_keys(text):
    """A list that lost its only entry goes with its keys."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for _ in range(2):
        after = [len(line) - len(line.lstrip()) for line in lines[1:]] + [0]
        lines = [line for line, next_indent in zip(lines, after)
                 if not line.endswith(":") or next_indent > len(line) - len(line.lstrip())]
    return "\n".join(lines) + "\n"


def grants(text):
    return [line for line in text.splitlines() if line.lstrip().startswith("- ")]


def test_learnt_policy_is_enough_and_minimal(who):
    "the host is unchanged, the learnt policy lets the command pass, and each of its lines is needed"
    with home_workspace(who) as stage:
        check(stage.run("--quiet", "--", "./job").code != 0, "the job passes without a policy: it tests nothing")
        stage.reset()
        before = fingerprint(stage.home)
        r = stage.run("--learn", "../../p.yaml", "--", "./job")
        check_equal(r.code, 0, r)
        check_in("rules that hide files are lifted", r.err, r)
        check_equal(fingerprint(stage.home), before, "learning changed the host")
        text = (stage.home.parent / "p.yaml").read_text()
        check_equal([g.strip("- \"") for g in grants(text)], ["~/.cache", "~/.keep", "~/.ssh/config", "ptrace"], text)
        check(stage.passes(text), f"the learnt policy is not enough:\n{text}{stage.last}")
        check_equal((stage.home / ".cache/learn-x/y").read_text(), "1\n")
        for line in grants(text):
            shorter = without_empty_keys(text.replace(line + "\n", "", 1))
            check(not stage.passes(shorter), f"{line} is not needed:\n{text}")
            check(stage.last.code not in range(120, 126), f"the shortened document is no document: {stage.last}")


def test_workspace_in_tmp_is_not_written(who):
    "in a workspace below /tmp nothing is kept, and nothing needs to be granted"
    with workspace(who) as ws:
        write(ws / "a", "1", who)
        out = ws.parent / f"learn-{os.getpid()}.yaml"
        try:
            before = fingerprint(ws)
            r = hutch("run", "--learn", out, "--", "sh", "-c", "echo 2 > a; echo 3 > b; mkdir -p d/e; mv a c; cat b c",
                      who=who, cwd=ws)
            check_equal((r.code, r.out), (0, "3\n2\n"), r)
            check_equal(fingerprint(ws), before, r)
            check_in("needs nothing", out.read_text())
        finally:
            out.unlink(missing_ok=True)


def test_grants_follow_how_a_file_was_changed(who):
    "a file changed in place is granted alone; one that is replaced needs its directory"
    with home_workspace(who) as stage:
        data = stage.home / "data"
        for name in ("in-place", "replaced", "other"):
            write(data / name, "1\n", who)
        out = stage.ws / "l.yaml"
        r = stage.run("--learn", "l.yaml", "--", "sh", "-c", "echo 2 >> ~/data/in-place")
        check_equal((r.code, [g.strip("- \"") for g in grants(out.read_text())]), (0, ["~/data/in-place"]), r)
        r = stage.run("--learn", "l.yaml", "--", "sh", "-c", "echo 2 > ~/data/new && mv ~/data/new ~/data/replaced")
        check_equal((r.code, [g.strip("- \"") for g in grants(out.read_text())]), (0, ["~/data"]), r)
        # A file that was copied up and then moved over another one remembers an origin, but not that one's.
        r = stage.run("--learn", "l.yaml", "--", "sh", "-c", "echo 2 >> ~/data/other; mv ~/data/other ~/data/replaced")
        check_equal((r.code, [g.strip("- \"") for g in grants(out.read_text())]), (0, ["~/data"]), r)


def test_protected_names_are_named(who):
    "a protected name that does not exist is a comment, one that exists a line"
    with home_workspace(who) as stage:
        write(stage.ws / ".bashrc", "#\n", who)
        r = stage.run("--learn", "l.yaml", "--", "sh", "-c", "mkdir .vscode; echo >> .bashrc")
        text = (stage.ws / "l.yaml").read_text()
        check_equal((r.code, [g.strip("- \"") for g in grants(text)]), (0, ["~/ws/.bashrc"]), text)
        check_in(".vscode is protected and does not exist", text)
        check(not (stage.ws / ".vscode").exists(), "a directory reached the host")


def test_only_its_own_file_is_replaced(who):
    "FILE is written only if it is absent, empty or learnt before, and --root is refused"
    with workspace(who) as ws:
        for name, text, code in (("mine.yaml", "files: {}\n", 120), ("empty.yaml", "", 0)):
            path = write(ws / name, text, who)
            r = hutch("run", "--quiet", "--learn", name, "--", "true", who=who, cwd=ws)
            check_equal(r.code, code, r)
            if code:
                check_one_line(r.err, r)
                check_equal(path.read_text(), text)
            else:
                check_equal(stat.S_IMODE(path.stat().st_mode), 0o644)
                check_equal(hutch("run", "--quiet", "--learn", name, "--", "true", who=who, cwd=ws).code, 0)
        r = hutch("run", "--quiet", "--learn", "x/y.yaml", "--", "true", who=who, cwd=ws)
        check_equal(r.code, 120, r)
        r = hutch("run", "--quiet", "--learn", "r.yaml", "--root", ws, "--", "true", who=who, cwd=ws)
        check_equal(r.code, 120, r)
        check_one_line(r.err, r)
        check_equal([p.name for p in ws.iterdir() if "XX" in p.name or p.name.startswith("r.yaml")], [])


def test_host_sockets_and_pipes_stay_apart(who):
    "while learning, neither a socket nor a named pipe of the host can be reached, even one made after the start"
    with home_workspace(who) as stage:
        ids, entry = identity(who)
        reached, stop, threads = [], threading.Event(), []

        def accept(s, name):
            while not stop.is_set():
                try:
                    s.accept()
                    reached.append(name)
                except TimeoutError:
                    pass
            s.close()

        def listen(name):
            s = socket.socket(socket.AF_UNIX)
            s.bind(str(stage.home / name))
            os.chmod(stage.home / name, 0o777)
            s.listen()
            s.settimeout(0.1)
            threads.append(threading.Thread(target=accept, args=(s, name)))
            threads[-1].start()

        os.mkfifo(stage.home / "pipe")
        if os.geteuid() == 0:
            os.chown(stage.home / "pipe", entry.pw_uid, entry.pw_gid)
        fd = os.open(stage.home / "pipe", os.O_RDWR | os.O_NONBLOCK)
        try:
            listen("early")
            script = """use IO::Socket::UNIX; $| = 1; print "started\\n"; <STDIN>;
for (map { "$ENV{HOME}/$_" } qw(early late)) {
    print IO::Socket::UNIX->new(Peer => $_) ? "in\\n" : -e $_ ? "out\\n" : "absent\\n";
}
open my $p, '+<', "$ENV{HOME}/pipe" or die; syswrite $p, 'x'; print "wrote\\n";"""
            with subprocess.Popen([HUTCH, "run", "--learn", "l.yaml", "--", "/usr/bin/perl", "-e", script], cwd=stage.ws,
                                  env=clean_env(entry, {"HOME": str(stage.home)}), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, start_new_session=True, **ids) as p:
                check_equal(p.stdout.readline(), "started\n")
                listen("late")
                out, err = p.communicate("\n", timeout=120)
            check_equal((p.returncode, out), (0, "out\nout\nwrote\n"), err)
            try:
                got = os.read(fd, 1)
            except BlockingIOError:
                got = b""
            check_equal((reached, got), ([], b""), "something outside was reached")
            with socket.socket(socket.AF_UNIX) as control:
                control.connect(str(stage.home / "late"))
                eventually(lambda: reached == ["late"], what="the listener sees a caller from outside")
        finally:
            stop.set()
            for t in threads:
                t.join()
            os.close(fd)


def test_home_holds_a_mount(who):
    "where something is mounted below the home directory, its parts can still be learnt and FILE says what cannot"
    if os.geteuid() != 0:
        skip("only root can mount")
    with home_workspace(who) as stage:
        _, entry = identity(who)
        job = f"echo 1 > {stage.home}/mnt/a && echo 1 > {stage.home}/.keep/n"
        r = run("unshare", "--mount", "sh", "-c",
                f"mkdir {stage.home}/mnt && mount -t tmpfs -o mode=1777 none {stage.home}/mnt && cd {stage.ws} && "
                f"exec setpriv --reuid {entry.pw_uid} --regid {entry.pw_gid} --clear-groups \"$@\"", "sh",
                HUTCH, "run", "--learn", "l.yaml", "--", "sh", "-c", job, env={"HOME": str(stage.home)})
        text = (stage.ws / "l.yaml").read_text()
        check_equal((r.code, [g.strip("- \"") for g in grants(text)]), (0, ["~/.keep", "~/mnt"]), f"{r}\n{text}")
        check_equal("home itself stays read-only" in text, who == "user", text)
        check(not (stage.home / ".keep/n").exists(), "a file reached the host")
