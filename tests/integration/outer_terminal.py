"""The user's side of a terminal: an outer terminal to type on and to look at, with a command or a shell on it.

TERMINAL_VIA chooses what puts the command on a terminal of its own: "hutch" ($HUTCH_BIN run, default build/hutch) or
"harness" ($TERM_HARNESS, the same relay without a wall).
"""
import fcntl
import os
import pty
import pwd
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HUTCH = os.path.abspath(os.environ.get("HUTCH_BIN") or os.environ.get("HUTCH") or os.path.join(ROOT, "build", "hutch"))
HARNESS = os.path.abspath(os.environ.get("TERM_HARNESS", os.path.join(ROOT, "build", "tests", "term-harness")))
VIA = os.environ.get("TERMINAL_VIA", "hutch")
WAYS = {"harness": HARNESS, "hutch": HUTCH}
SLOW = float(os.environ.get("TEST_PATIENCE", "1"))
PATIENCE = 60  # what a machine with much else to do may need; only failures use it up
BASH = ["bash", "--norc", "--noprofile", "-i"]


def via(way=None):
    """What is driven; with an argument, changes it."""
    global VIA  # pylint: disable=global-statement
    VIA = way or VIA
    return VIA


def program():
    """The argv prefix that puts a command on a terminal of its own."""
    return [HARNESS] if VIA == "harness" else [HUTCH, "run", "--"]


def shell_program():
    return " ".join(program())


def entry_of(who):
    """The passwd entry behind "root" and "user"; the harness needs no particular user."""
    if who == "root" or os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    try:
        return pwd.getpwnam(os.environ.get("HUTCH_TEST_USER", "hutchtest"))
    except KeyError:
        return pwd.getpwnam("nobody")


def workspace(who):
    path = tempfile.mkdtemp(prefix="hutch-term-")
    os.chown(path, entry_of(who).pw_uid, entry_of(who).pw_gid)
    return path


def execute(argv, who):
    """Becomes the program, as that user. The terminal keeps its owner, as after su."""
    entry = entry_of(who)
    if os.geteuid() != entry.pw_uid:
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    keep = {k: v for k, v in os.environ.items() if k in ("PATH", "HUTCH_TEST_RUN", "ASAN_OPTIONS")}
    os.execvpe(argv[0], argv, {"PATH": "/usr/bin:/bin", **keep, "TERM": "xterm", "LANG": "C.UTF-8",
                               "HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name,
                               "SHELL": "/bin/bash"})


def until(condition, seconds, what):
    seconds = max(seconds, PATIENCE)
    deadline = time.monotonic() + seconds * SLOW
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(0.02)


class Outer:
    """An outer terminal with one foreground job on it, led by a minimal shell (the leader process).

    The leader never touches the terminal's modes, so what the test sees is what the job left. It reports every change
    of the job's state ("stopped", or the exit code as the shell would give it) and continues it on request.
    """

    def __init__(self, argv, size=(24, 80), modes=None, redirect=None, who="root"):
        self.screen = b""
        self.seen = 0
        self.work = workspace(who)
        report_r, report_w = os.pipe()
        order_r, order_w = os.pipe()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.close(report_r)
                os.close(order_w)
                os.chdir(self.work)
                self._lead(argv, size, modes, redirect, who, report_w, order_r)
            finally:
                os._exit(99)
        os.close(report_w)
        os.close(order_r)
        self.report, self.order = report_r, order_w
        assert os.read(self.report, 1) == b"+"
        self.modes_at_start = self.modes()
        os.write(self.order, b"s")
        self.job = int(self._line())

    def _lead(self, argv, size, modes, redirect, who, report, order):
        for number in (signal.SIGTTOU, signal.SIGTSTP, signal.SIGTTIN):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        if modes:
            attributes = termios.tcgetattr(0)
            modes(attributes)
            termios.tcsetattr(0, termios.TCSANOW, attributes)
        os.write(report, b"+")
        os.read(order, 1)
        job = os.fork()
        if job == 0:
            os.setpgid(0, 0)
            os.tcsetpgrp(0, os.getpid())
            for number in (signal.SIGTTOU, signal.SIGTSTP, signal.SIGTTIN):
                signal.signal(number, signal.SIG_DFL)
            for number, path in (redirect or {}).items():
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), number)
            execute(argv, who)
        os.write(report, b"%d\n" % job)
        while True:
            _, status = os.waitpid(job, os.WUNTRACED)
            os.tcsetpgrp(0, os.getpgrp())
            if os.WIFSTOPPED(status):
                os.write(report, b"stopped\n")
            else:
                code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                os.write(report, b"%d\n" % code)
            if os.read(order, 1) != b"f":
                os._exit(0)
            os.tcsetpgrp(0, job)
            os.kill(-job, signal.SIGCONT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.fd < 0:
            return
        for fd in (self.order, self.fd, self.report):
            os.close(fd)
        self.fd = -1
        for pid in (-self.job, self.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        os.waitpid(self.pid, 0)
        shutil.rmtree(self.work, ignore_errors=True)

    def _line(self):
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self.report, 1)
            assert byte, "the leader died"
            line += byte
        return line.decode().strip()

    def modes(self):
        return termios.tcgetattr(self.fd)

    def is_raw(self):
        return not self.modes()[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def wait_raw(self):
        until(self.is_raw, 10, "the outer terminal goes raw")

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, data):
        data = data.encode() if isinstance(data, str) else data
        while data:
            self.pump(0)
            _, writable, _ = select.select([], [self.fd], [], PATIENCE)
            assert writable, "the outer terminal takes no input"
            data = data[os.write(self.fd, data[:1024]):]

    def pump(self, seconds):
        """Reads what is on the screen side; False when nothing came in time."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.screen += data
        return bool(data)

    def expect(self, pattern, seconds=15):
        """Waits until pattern is on the part of the screen that no earlier expect has consumed."""
        pattern = pattern.encode() if isinstance(pattern, str) else pattern
        deadline = time.monotonic() + max(seconds, PATIENCE) * SLOW
        while True:
            found = re.search(pattern, self.screen[self.seen:])
            if found:
                self.seen += found.end()
                return found
            left = deadline - time.monotonic()
            assert left > 0, f"no {pattern!r} on the screen, but {self.screen[self.seen:][-600:]!r}"
            self.pump(min(left, 0.5))

    def state(self, seconds=20):
        """The next change of the job's state, with the screen read meanwhile."""
        deadline = time.monotonic() + max(seconds, PATIENCE) * SLOW
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self.fd, self.report], [], [], 0.5)
            if self.report in ready:
                while self.pump(0):
                    pass
                return self._line()
            if self.fd in ready:
                self.pump(0)
        raise AssertionError(f"the job did not end; the screen says {self.screen[-600:]!r}")

    def foreground(self):
        os.write(self.order, b"f")


def on_terminal(who, *command, **options):
    return Outer(program() + list(command), who=who, **options)


def processes_with(mark):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if mark.encode() in file.read():
                        found.append(int(entry))
            except OSError:
                pass
    return found


def inside_pid(outer, mark):
    """The pid, seen from outside, of the process inside whose command line holds the mark, and nothing of ours."""
    ours = {outer.pid, outer.job}
    pids = []

    def look():
        pids[:] = [p for p in processes_with(mark) if p not in ours and parent_of(p) != outer.pid]
        return pids
    until(look, 10, f"a process with {mark}")
    return max(pids)


def in_foreground(pid):
    """Whether a process leads or belongs to the foreground of its terminal, and is not stopped."""
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as file:
            state, _, group, _, _, foreground = file.read().rsplit(")", 1)[1].split()[:6]
    except (OSError, ValueError):
        return False
    return state in "RSD" and group == foreground


def parent_of(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


class Tmux:
    def __init__(self):
        self.socket = f"hutch-test-{os.getpid()}"
        self.work = tempfile.mkdtemp(prefix="hutch-term-")
        self("-f", "/dev/null", "new-session", "-d", "-x", "90", "-y", "30", "-c", self.work,
             " ".join(BASH))

    def __call__(self, *arguments):
        environment = {k: v for k, v in os.environ.items() if k != "TMUX"}
        return subprocess.run(["tmux", "-L", self.socket, *arguments], check=True, stdout=subprocess.PIPE,
                              timeout=120, env=environment).stdout.decode()

    def keys(self, *keys):
        self("send-keys", *keys)

    def shows(self, pattern, seconds=15):
        until(lambda: re.search(pattern, self("capture-pane", "-p"), re.M), seconds,
              f"{pattern!r} in tmux")

    def close(self):
        self("kill-server")
        shutil.rmtree(self.work, ignore_errors=True)
