"""A node under test, its traces on the host, and the ways in which its processes go away."""
import contextlib
import os
import pathlib
import re
import time

from daemon import Daemon
from e2bwire import BROKEN, Api, WireError
from hutch_test import PATIENCE, Failed, Left, eventually, identity, is_root, skip


def needs_root():
    if not is_root():
        skip("needs root")


@contextlib.contextmanager
def node(who="root", **kw):
    """A daemon of that user and its API."""
    _, entry = identity(who)

    def become():
        if who == "user" and is_root():
            os.setgroups([])
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
            os.environ["HOME"] = entry.pw_dir
    d = Daemon(preexec=become, **kw)
    if is_root():
        for path in (d.dir, d.config):
            os.chown(path, entry.pw_uid, entry.pw_gid)
    with d:
        yield d, Api(d.port, d.key)


def patiently(call, seconds=60, also=()):
    """The call's value; while processes are being replaced, connections break and 502, 503 are answered. An Answer that says so is none."""
    stop = time.monotonic() + seconds
    while True:
        try:
            value = call()
            if getattr(value, "status", None) in (502, 503):
                raise WireError(value.status, value.body)
            return value
        except (*BROKEN, WireError) as e:
            if isinstance(e, WireError) and e.status not in (502, 503, "unavailable", *also):
                raise
            if time.monotonic() > stop:
                raise
            time.sleep(0.05)


def restart(d):
    """kill -9 of the supervisor; the next serve takes over."""
    d.proc.kill()
    d.proc.wait()
    d.start()


def hit(d, victim):
    if victim == "supervisor":
        restart(d)
    elif victim == "upgrade":
        d.stop(sandboxes=False)
        d.start()
    else:
        before = d.children(victim)
        d.kill9(victim)
        eventually(lambda: d.children(victim) not in ([], before), PATIENCE, f"{victim} is started again")


class Traces:
    """What of a daemon's sandboxes can be seen on the host, other nodes' left out."""

    def __init__(self, d, who):
        self.d, self.who, self.entry = d, who, identity(who)[1]
        self.read, self.keepers = 0, set()

    def _ours(self, cgroup):
        """A cgroup's name has the pid of the keeper that made it; the log has the pids of this daemon's keepers."""
        if self.read != self.d.log_path.stat().st_size:
            log = self.d.log_path.read_bytes()
            self.read = len(log)
            self.keepers = set(re.findall(r'"child":"keeper","pid":(\d+)', log.decode(errors="replace")))
        return not self.keepers.isdisjoint(re.findall(r"hutch-[0-9a-f]+-(\d+)-", cgroup))

    def inits(self):
        found = set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                folder = pathlib.Path("/proc") / pid
                if (folder / "comm").read_text() != "hutch-init\n" or "State:\tZ" in (folder / "status").read_text():
                    continue
                first = pathlib.Path(f"/proc/{pid}/status").read_text().split("NSpid:")[1].splitlines()[0].split()[-1] == "1"
                mine = self._ours((folder / "cgroup").read_text()) if self.who == "root" else self._of_user(folder)
                if first and mine:
                    found.add(int(pid))
        return found

    def _of_user(self, folder):
        """The ids of its user namespace are that user's: its own, or its subordinate ones."""
        own = [(self.entry.pw_uid, 1)]
        for line in pathlib.Path("/etc/subuid").read_text().splitlines():
            name, first, n = line.split(":")
            if name in (self.entry.pw_name, str(self.entry.pw_uid)):
                own.append((int(first), int(n)))
        maps = [list(map(int, line.split())) for line in (folder / "uid_map").read_text().splitlines()]
        return any(a <= outside < a + n for _, outside, count in maps for a, n in own if count < 1 << 31)

    def cgroups(self):
        return {p for p, _, _ in os.walk("/sys/fs/cgroup") if self._ours(os.path.basename(p))}

    def files(self):
        found = {str(p) for p in self.d.run.rglob("*") if p.is_socket() or p.parent.name == "journal"}
        return {p for p in found if not p.endswith(("/keeper.sock", "/stock.sock", "/egress.sock", "/egress-keeper.sock", "/journal/.groups"))}

    def mounts(self):
        return [line for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if str(self.d.dir) in line]

    def gc(self):
        """Lines of `hutch gc` about this daemon."""
        text = self.d.cli("gc", "--run", str(self.d.run), "--state", str(self.d.state), preexec_fn=self.d.preexec).stdout
        lines, inits = [], self.inits()
        for line in text.splitlines():
            pid = re.match(r"process +(\d+)", line)
            if self._ours(line) or str(self.d.run) in line or (pid and int(pid[1]) in inits):
                lines.append(line)
        return lines

    def check_none(self):
        def left():
            return self.inits() | self.cgroups() | self.files() | set(self.mounts())
        with contextlib.suppress(Failed):
            eventually(lambda: not left(), PATIENCE)
        if left():
            raise Left(f"left behind: {sorted(map(str, left()))}")
        self.check_gc()

    def check_gc(self):
        """Nothing is left for gc; what is being removed at this moment is not left."""
        with contextlib.suppress(Failed):
            eventually(lambda: not self.gc(), PATIENCE)
        if lines := self.gc():
            raise Left(f"`hutch gc` finds {lines}")
