"""Leak accounting: what exists on the host before the tests must be what exists after them.

Other programs live on the machine too, so only traces that can be ours count: descendants of the runner (it is a
subreaper, so orphans come back to it), processes with the test user's ids or with ids of sandbox ranges, processes that
carry the run's mark in their environment; and by name everything called hutch.
"""
import os
import pathlib
import re

RANGE_START = 1 << 29  # uid ranges of sandboxes start here


LEAF = re.compile(r"hutch-[0-9a-f]+-(\d+)-\d+-[0-9a-f]+$")  # what cgroup_create() calls a leaf; the number is its owner


def dead_leaves():
    """Leaves whose owner is gone; those of the living belong to somebody else's run."""
    found = set()
    for path, _, _ in os.walk("/sys/fs/cgroup"):
        leaf = LEAF.match(os.path.basename(path))
        if leaf and not os.path.exists(f"/proc/{leaf.group(1)}"):
            found.add(path)
    return found


def marked_processes(mark):
    """Processes that carry the mark in their environment or command line (init and guard are copies of hutch)."""
    found = []
    for pid in _processes():
        state = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1]
        text = _read(f"/proc/{pid}/environ") + _read(f"/proc/{pid}/cmdline")
        if mark.encode() in text and state not in ([], [b"Z"]) and pid != os.getpid():
            found.append(pid)
    return found


def _processes():
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            yield int(entry)


def _read(path):
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:
        return b""


def _status(pid):
    text = _read(f"/proc/{pid}/status").decode(errors="replace")
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


class Host:
    """Looks at the host; `ids` are the (first, count) ranges of the test user, `mark` the run's environment mark. `everyone`: what is seen
    belongs to all users. That is the look before the tests: the test user's number may be one that was somebody's before, and what
    that one left is not ours."""

    def __init__(self, ids=(), mark=None, everyone=False):
        self.ids, self.mark, self.everyone = list(ids), mark, everyone

    def ours(self, uid):
        return self.everyone or uid >= RANGE_START and uid < 0xFFFFFFF0 or any(a <= uid < a + n for a, n in self.ids)

    def processes(self):
        """{identity: description} of every live process that can be ours, the runner itself and its ancestors left out."""
        status = {pid: _status(pid) for pid in _processes()}
        parent = {pid: int(s.get("PPid", "0")) for pid, s in status.items()}

        def descends(pid):
            while pid in parent and pid != os.getpid():
                pid = parent[pid]
            return pid == os.getpid()
        found = {}
        for pid, s in status.items():
            if pid == os.getpid() or "Uid" not in s:
                continue
            uid = int(s["Uid"].split()[0])
            marked = self.mark and f"HUTCH_TEST_RUN={self.mark}".encode() in _read(f"/proc/{pid}/environ").split(b"\0")
            ancestor = pid in self._ancestors(parent)
            if (descends(pid) or self.ours(uid) or marked) and not ancestor:
                began = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[19:20]
                found[f"process {pid} {began}"] = f"process {pid} {s.get('Name', '?')} (uid {uid}, {s.get('State', '?')})"
        return found

    @staticmethod
    def _ancestors(parent):
        pid, found = os.getpid(), set()
        while pid in parent and pid != 0:
            found.add(pid)
            pid = parent[pid]
        return found

    def namespaces(self):
        """Namespaces that a bind mount keeps alive; those of processes are covered by processes()."""
        return {f"namespace mount {m}" for m in self._mounts() if " nsfs " in m}

    @staticmethod
    def _mounts():
        lines = _read("/proc/self/mountinfo").decode(errors="replace").splitlines()
        # Id, parent and device number change when something else is mounted; place, type and source do not.
        return {" ".join(line.split(" ")[3:5] + line.split(" - ")[1].split(" ")[:2]) for line in lines if " - " in line}

    def mounts(self):
        return {f"mount {m}" for m in self._mounts()}

    @staticmethod
    def cgroups():
        return {f"cgroup {path}" for path, _, _ in os.walk("/sys/fs/cgroup") if "hutch" in os.path.basename(path)}

    def files(self):
        """Entries of the shared directories that are named after us or belong to us, and runtime state."""
        found = set()
        for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/dev/mqueue"):
            try:
                entries = list(os.scandir(folder))
            except OSError:
                continue
            for entry in entries:
                try:
                    uid = entry.stat(follow_symlinks=False).st_uid
                except OSError:
                    continue
                if "hutch" in entry.name or self.ours(uid):
                    found.add(f"file {entry.path}")
        for folder in ("/run/hutch", "/var/lib/hutch"):
            found |= {f"file {p}" for p in pathlib.Path(folder).rglob("*") if not p.is_dir()}
        return found

    def sockets(self):
        """Listening TCP ports owned by our ids, and abstract unix sockets named after us."""
        found = set()
        for kind in ("tcp", "tcp6", "udp", "udp6"):
            for line in _read(f"/proc/net/{kind}").decode().splitlines()[1:]:
                field = line.split()
                if (field[3] == "0A" or kind.startswith("udp")) and self.ours(int(field[7])):
                    found.add(f"socket {kind} {field[1]} of uid {field[7]}")
        for line in _read("/proc/net/unix").decode(errors="replace").splitlines()[1:]:
            match = re.search(r"\s(\S*hutch\S*)$", line)
            if match:
                found.add(f"socket unix {match.group(1)}")
        return found

    @staticmethod
    def ipc():
        """System V objects of the host's ipc namespace."""
        found = set()
        for kind in ("shm", "sem", "msg"):
            for line in _read(f"/proc/sysvipc/{kind}").decode().splitlines()[1:]:
                found.add(f"ipc {kind} {line.split()[1]}")
        return found

    def snapshot(self):
        """{identity: description}."""
        found = self.namespaces() | self.mounts() | self.cgroups() | self.files() | self.sockets() | self.ipc()
        return {x: x for x in found} | self.processes()


def compare(before, after):
    """What appeared and what disappeared, as printable lines. Disappeared mounts are damage too."""
    lines = [f"left behind: {after[x]}" for x in sorted(after.keys() - before.keys())]
    lines += [f"gone: {before[x]}" for x in sorted(before.keys() - after.keys()) if x.startswith("mount ")]
    return lines
