"""What happens to sandboxes, commands and clients when processes of the node are killed or resources run out."""
import collections
import contextlib
import hashlib
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import threading
import time

from daemon import Daemon
from e2bwire import BROKEN, Api, Box, WireError
from hutch_test import SOAK, check, check_equal, check_in, eventually, identity, is_root, skip

ROUNDS = 12 if SOAK else 1


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


def patiently(call, seconds=20, also=()):
    """The call's value; while processes are being replaced, connections break and 502, 503 are answered."""
    stop = time.monotonic() + seconds
    while True:
        try:
            return call()
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
        eventually(lambda: d.children(victim) not in ([], before), 15, f"{victim} is started again")


# --- a stream across deaths -------------------------------------------------------------------------------------------

def counter(lines):
    return "".join(f"{i}\n" for i in range(1, lines + 1)).encode()


def follow(d, box, victim, times, lines):
    """Reads a counter at full speed while `victim` dies `times` times: (all bytes, how often it was attached anew)."""
    s = box.start(f"seq 1 {lines}; exit 3")
    pid, got, anew = s.pid, bytearray(), 0
    marks = [(i + 1) * 5_000_000 // (times + 1) for i in range(times)]
    while True:
        try:
            e = s.event()
            if e is None:
                break
            if s.first:
                check_equal(s.first["stdout"] + len(s.data["stdout"]), s.offsets["stdout"], "a gap inside one stream")
                check_equal(s.first["stdout"], len(got), f"{victim}: bytes before and after")
            if marks and s.offsets.get("stdout", 0) > marks[0]:
                marks.pop(0)
                hit(d, victim)
        except BROKEN:
            got += s.data["stdout"]
            s.close()
            s = patiently(lambda: box.attach(pid, {"stdout": len(got), "stderr": 0}))  # noqa: B023
            anew += 1
    got += s.data["stdout"]
    check_equal(marks, [], "deaths that did not happen")
    check_equal(s.end["exitCode"], 3, s.end)
    check("stdoutOmitted" not in s.end["usage"], s.end)
    return bytes(got), anew


def test_streams_survive(who):
    "kill -9 of front, keeper, supervisor, and a restart, amid 6 MB of output: with its offset a client gets every byte once"
    with node(who) as (d, api):
        box = api.create()
        box.put("/tmp/before", b"kept")
        # The last one is longer than what fits into the buffers on the way, or front would hand it all over before it goes.
        for victim, times, lines in (("front", 3, 900_000), ("keeper", 2, 900_000), ("supervisor", 1, 900_000), ("upgrade", 1, 3_000_000)):
            got, anew = follow(d, box, victim, times, lines)
            check(got == counter(lines), f"{victim}: {len(got)} bytes")
            check((anew == 0) == (victim == "keeper"), f"{victim}: attached anew {anew} times")
            check_equal(patiently(lambda: box.get("/tmp/before")), b"kept")
        check_equal(api.list(), {box.id})


def test_end_is_kept(who):
    "a command that ends while the node is down: its output and its exit code are there afterwards"
    with node(who) as (d, api):
        box = api.create()
        s = box.start("echo first; sleep 0.7; echo last; exit 9")
        while not s.out:
            s.event()
        d.proc.kill()
        d.proc.wait()
        time.sleep(1)
        d.start()
        t = patiently(lambda: box.attach(s.pid, s.offsets)).read_all()
        check_equal((s.out + t.out, t.end["exitCode"]), (b"first\nlast\n", 9))
        check(s.pid not in box.processes())


# --- deaths amid work -------------------------------------------------------------------------------------------------

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
        """The user namespace was made by that user: its own id is in the map."""
        maps = [list(map(int, line.split())) for line in (folder / "uid_map").read_text().splitlines()]
        return any(outside <= self.entry.pw_uid < outside + n for _, outside, n in maps if n < 1 << 31)

    def cgroups(self):
        return {p for p, _, _ in os.walk("/sys/fs/cgroup") if self._ours(os.path.basename(p))}

    def files(self):
        run = {str(p) for p in self.d.run.rglob("*") if p.is_socket() or "journal" in str(p.parent)}
        return {p for p in run if not p.endswith(("keeper.sock", "supervisor.sock"))}

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
        eventually(lambda: not self.inits() and not self.cgroups(), 15, f"left: {self.inits()} {self.cgroups()}")
        check_equal(self.files(), set())
        check_equal(self.mounts(), [])
        check_equal(self.gc(), [])


class Work:
    """Threads that create, upload, run, download and kill, and know what was promised to them."""

    def __init__(self, api, threads=4, live=24):
        self.api, self.live = api, live
        self.lock, self.stop = threading.Lock(), threading.Event()
        self.made, self.killed, self.wrong = {}, set(), []
        self.count = collections.Counter()
        self.threads = [threading.Thread(target=self._loop, args=(i,)) for i in range(threads)]

    def _note(self, e, what):
        text = str(e)
        if isinstance(e, WireError) and (e.status not in (502, 503, "unavailable") or "was not found" in text):
            self.wrong.append(f"{what}: {text}")
        else:
            self.count["broken"] += 1

    def _use(self, box, data):
        box.put("/tmp/f", data)
        self.made[box.id] = (box, data)
        code, out = box.run("sha256sum < /tmp/f")
        check_equal((code, out.split()[:1]), (0, [hashlib.sha256(data).hexdigest().encode()]), box.id)
        check(box.get("/tmp/f") == data, "download")
        self.count["used"] += 1

    def _kill(self, box):
        with self.lock:
            self.made.pop(box.id, None)  # whatever the answer will be, it is not promised any more
        self.count["kills"] += 1
        check(box.kill(), f"{box.id} was not there any more")
        self.killed.add(box.id)

    def _loop(self, seed):
        chance = random.Random(seed)
        while not self.stop.is_set():
            what = "create"
            try:
                self.count["creates"] += 1
                box = self.api.create(timeout=30)
                with self.lock:
                    self.made[box.id] = (box, None)
                what = f"use of {box.id}"
                self._use(box, chance.randbytes(chance.randrange(1, 300_000)))
                if chance.random() < 0.5 or len(self.made) > self.live:
                    what = f"kill of {box.id}"
                    self._kill(box)
            except (*BROKEN, WireError) as e:
                self._note(e, what)
                time.sleep(0.05)
            except Exception as e:  # pylint: disable=broad-except - told by the test
                self.wrong.append(f"{what}: {e}")

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for t in self.threads:
            t.join(60)


def after_chaos(d, api, work, traces):
    eventually(d.alive, 20, "it serves")
    check_equal(work.wrong[:5], [], f"{len(work.wrong)} answers")
    for box, data in work.made.values():
        got = patiently(lambda: box.get("/tmp/f") if data else box.run("echo ok")[1])  # noqa: B023
        check(got == (data or b"ok\n"), f"{box.id}: its file")
    listed = api.list()
    check(not work.killed & listed, f"killed, but listed: {work.killed & listed}")
    check_equal(set(work.made) - listed, set(), "lost")
    # A create or a kill whose answer was lost may have come true or not; anything else is not there.
    eventually(lambda: len(traces.inits()) == len(api.list()), 15, f"{len(traces.inits())} inits, {len(api.list())} listed")
    check_equal(traces.gc(), [])


def test_deaths_amid_work(who):
    "kill -9 of front, keeper, supervisor in a loop while clients create, run, upload, kill: no promise is broken, nothing is left"
    seconds = (12 if who == "root" else 5) * ROUNDS
    with node(who) as (d, api):
        traces, chance = Traces(d, who), random.Random(1)
        for victim in ("front", "keeper", "supervisor"):
            hits, stop = 0, time.monotonic() + seconds
            with Work(api) as work:
                while time.monotonic() < stop:
                    time.sleep(chance.uniform(0.1, 0.9))
                    d.kill9(victim) if victim != "supervisor" else restart(d)
                    hits += 1
            print(f"        {victim} killed {hits} times: {dict(work.count)}", flush=True)
            check(work.count["used"] > 0, work.count)
            after_chaos(d, api, work, traces)
        r = d.cli("stop", "--all")
        check_equal(api.list(), set(), r)
        traces.check_none()
