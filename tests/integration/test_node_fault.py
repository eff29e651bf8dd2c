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

LINES = 900_000
WHOLE = hashlib.sha256("".join(f"{i}\n" for i in range(1, LINES + 1)).encode()).hexdigest()


def follow(d, box, victim, times):
    """Reads a counter of 6 MB at full speed while `victim` dies `times` times: (all bytes, how often it was attached anew)."""
    s = box.start(f"seq 1 {LINES}; exit 3")
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
        for victim, times, cut in (("front", 3, True), ("keeper", 2, False), ("supervisor", 1, True), ("upgrade", 1, True)):
            got, anew = follow(d, box, victim, times)
            check_equal(hashlib.sha256(got).hexdigest(), WHOLE, f"{victim}: {len(got)} bytes")
            check(anew >= (1 if cut else 0), f"{victim}: attached anew {anew} times")
            check(cut or anew == 0, f"{victim}: the stream broke although front lived")
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
