"""keeper: sandboxes whose journal record or socket was removed or damaged, and those that no keeper watches any more."""
import contextlib
import os
import pathlib
import shutil
import signal

import initc
import keeper as kp
from hutch_test import check, check_equal, check_in, eventually, hutch
from test_keeper import a_keeper, alive, must, nothing_left

GRACE = "--grace=1"


def bound(k, box):
    init = initc.Init(k.run / f"{box}.sock")
    init.bind()
    return init


def says(k, box, word):
    """Asks a bound sandbox over the socket that is in the run directory now."""
    init = initc.Init(k.run / f"{box}.sock")
    check_equal(init.run("/bin/echo", word)[:3], (True, 0, word + "\n"))
    init.close()


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def test_damaged_record(who):
    "a sandbox whose journal record is damaged goes on under the next keeper, which says so; its id range, cgroup and deadline are as they were"
    with a_keeper(who) as k:
        client = k.client()
        pids = {box: must(client.create(box, seconds=900)).init_pid for box in ("one", "two", "three")}
        bound(k, "one").close()
        before = {box: item.deadline_ms for box, item in client.list().items()}
        whole = (k.run / "journal/one").read_bytes()
        k.kill9()
        damage(k.run / "journal/one")
        (k.run / "journal/two").write_bytes(b"")
        (k.run / "journal/three").unlink()
        k.start()
        client = k.client()
        check_equal({box: (item.alive, item.deadline_ms) for box, item in client.list().items()}, {box: (1, at) for box, at in before.items()})
        check_equal((k.run / "journal/one").read_bytes(), whole)
        for box, how in (("one", "damaged"), ("two", "damaged"), ("three", "removed")):
            check_in(f"sandbox {box} goes on: its journal record was {how}", k.log_text())
        says(k, "one", "here")
        for box, pid in pids.items():
            must(client.kill(box))
            check(not alive(pid), f"{box} lives after the answer to its kill")
        nothing_left(k, pids.values())


def test_run_directory_removed(who):
    "after everything in the run directory was removed the next keeper finds its sandboxes, and they can be reached, also a paused one"
    with a_keeper(who) as k:
        client = k.client()
        pids = {box: must(client.create(box)).init_pid for box in ("one", "two")}
        bound(k, "one").close()
        bound(k, "two").close()
        paused = client.pause("two").error == kp.OK  # without a freezer it is refused
        k.kill9()
        st = os.stat(k.run)
        shutil.rmtree(k.run)
        k.run.mkdir(mode=0o710)
        os.chown(k.run, st.st_uid, st.st_gid)
        k.start()
        client = k.client()
        check_equal({box: (item.alive, item.frozen) for box, item in client.list().items()}, {"one": (1, 0), "two": (1, int(paused))})
        says(k, "one", "here")
        if paused:
            must(client.resume("two"))
        says(k, "two", "there")
        k.kill9()  # what was written again is as good as the first
        k.start()
        client = k.client()
        says(k, "one", "again")
        for box in pids:
            must(client.kill(box))
        nothing_left(k, pids.values())


def keeps(pid):
    """Init takes what it keeps with keeper's commit, which it may read after the create was answered."""
    eventually(lambda: "hutch-keepsake" in os.readlink(f"/proc/{pid}/fd/10"), 20, f"what {pid} keeps")


# Has init's name, a file of the form of init's at its place, and listens under the name of a sandbox that is not there.
IMITATOR = r"""
import ctypes, fcntl, os, signal, socket, sys
size = int(sys.argv[1])
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind("/tmp/ghost.sock")
s.listen()
f = os.memfd_create("hutch-keepsake", os.MFD_ALLOW_SEALING)
os.truncate(f, size)
fcntl.fcntl(f, 1033, 1 | 2 | 4)  # F_ADD_SEALS: SEAL, SHRINK, GROW
high = fcntl.fcntl(s.fileno(), fcntl.F_DUPFD, 100)
os.dup2(f, 10); os.dup2(high, 3)
ctypes.CDLL(None).prctl(15, b"hutch-init", 0, 0, 0)
if os.fork() == 0:
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2): os.dup2(null, fd)
    signal.pause()
"""


def imitators(init):
    """Host pids of processes that have init's name, but are not it, in the sandbox with this init."""
    namespace = os.readlink(f"/proc/{init}/ns/pid")
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if int(name) != init and os.readlink(f"/proc/{name}/ns/pid") == namespace and \
                    pathlib.Path(f"/proc/{name}/comm").read_text() == "hutch-init\n" and os.path.exists(f"/proc/{name}/fd/10"):
                yield int(name)


def test_imitated_init(who):
    "a process inside that offers what an init offers, even the same bytes, is taken for none: its sandbox goes on, and no other appears"
    with a_keeper(who) as k:
        client = k.client()
        pid = must(client.create("one")).init_pid
        init = bound(k, "one")
        kept = pathlib.Path(f"/proc/{pid}/fd/10").read_bytes()
        check_equal(init.run("/usr/bin/python3", "-c", IMITATOR, str(len(kept)))[:2], (True, 0))
        init.close()
        (imitator,) = imitators(pid)
        with open(f"/proc/{imitator}/fd/10", "r+b") as f:
            f.write(kept)
        k.kill9()
        k.start()
        client = k.client()
        check_equal({box: item.alive for box, item in client.list().items()}, {"one": 1})
        check(alive(pid) and alive(imitator), k.log_text())
        says(k, "one", "here")
        said = hutch("gc", "--run", k.run, "--state", k.state, who=who).out
        check(f" {imitator}:" not in said, said)
        must(client.kill("one"))
        nothing_left(k, (pid, imitator))


def test_forged_keepsake():
    "an init whose copy of the record does not fit its process is ended, with a cause, and nothing of another sandbox goes with it"
    with a_keeper() as k:
        client = k.client()
        one, two = (must(client.create(box)).init_pid for box in ("one", "two"))
        for pid in (one, two):
            keeps(pid)
        other = pathlib.Path(f"/proc/{two}/fd/10").read_bytes()
        k.kill9()
        shutil.rmtree(k.run / "journal")
        path = f"/proc/{one}/fd/10"
        fd = os.open(path, os.O_RDWR)
        os.pwrite(fd, other, 0)  # it says that it is the other
        os.close(fd)
        k.start()
        client = k.client()
        eventually(lambda: not alive(one), 20, "the end of the one that says it is the other")
        check_equal(kp.CAUSES[client.wait_death("one").cause], "lost")
        check(alive(two) and client.list()["two"].alive)
        for box in ("one", "two"):
            must(client.kill(box))
        nothing_left(k, (one, two))


def forget(pid):
    """What it keeps is nothing that a keeper knows, as if it were of a version before."""
    keeps(pid)
    fd = os.open(f"/proc/{pid}/fd/10", os.O_RDWR)
    os.pwrite(fd, b"\0" * 8, 0)
    os.close(fd)


def test_without_keepsake():
    "an init that keeps nothing is adopted by its record; without that, or without its socket, it is ended with a cause, and nothing is left"
    with a_keeper() as k:
        client = k.client()
        pids = {box: must(client.create(box)).init_pid for box in ("whole", "damaged", "unreachable")}
        bound(k, "whole").close()
        k.kill9()
        for pid in pids.values():
            forget(pid)
        damage(k.run / "journal/damaged")
        (k.run / "unreachable.sock").unlink()
        k.start()
        client = k.client()
        for box in ("damaged", "unreachable"):
            check_equal(kp.CAUSES[client.wait_death(box).cause], "lost")
            check(not alive(pids[box]), f"{box} lives")
        check_in("sandbox damaged is ended (lost): its journal record is damaged or removed, and its init keeps no copy", k.log_text())
        check_in("sandbox unreachable is ended: its socket was removed, and its init, of an older version, takes no other", k.log_text())
        must(client.deadline("whole", kp.boottime_ms() + 600_000))
        says(k, "whole", "here")
        for box in pids:
            must(client.kill(box))
        nothing_left(k, pids.values())


def test_ends_itself():
    "a sandbox that no keeper watches ends itself some time after its deadline; extending it, also while it is paused, puts that off"
    with a_keeper("root", GRACE) as k:
        client = k.client()
        short, longer, paused = (must(client.create(box, seconds=2)).init_pid for box in ("short", "longer", "paused"))
        must(client.deadline("longer", kp.boottime_ms() + 600_000))
        must(client.pause("paused"))
        must(client.deadline("paused", kp.boottime_ms() + 600_000))
        k.kill9()
        eventually(lambda: not alive(short), 60, "the end of a sandbox without a keeper")
        k.start()
        client = k.client()
        must(client.resume("paused"))
        bound(k, "paused").close()
        bound(k, "longer").close()
        says(k, "paused", "still")
        says(k, "longer", "here")
        check(alive(longer) and alive(paused))
        check_equal(kp.CAUSES[client.wait_death("short").cause], "ttl")
        for box in ("short", "longer", "paused"):
            must(client.kill(box))
        nothing_left(k, (short, longer, paused))


def test_gc_finds_orphans():
    "gc names the sandboxes of a node that is gone, and ends them when asked; those of a node that is there are left alone"
    with a_keeper() as gone, a_keeper() as there:
        pid = must(gone.client().create("orphan")).init_pid
        other = must(there.client().create("known")).init_pid
        gone.kill9()
        there.kill9()  # it is stopped, and may start again
        arguments = ("--run", there.run, "--state", there.state)
        said = hutch("gc", "--remove", *arguments).out
        check(f"{pid}:" not in said and alive(pid), said)  # its state directory is there: it may come back
        shutil.rmtree(gone.state)
        said = hutch("gc", *arguments).out
        check_in(f"process  {pid}: the first process of sandbox orphan, whose node ({gone.state}) is gone", said)
        check(f" {other}:" not in said, said)
        check(alive(pid))
        said = hutch("gc", "--remove", *arguments).out
        check_in("(removed)", said)
        eventually(lambda: not alive(pid), 20, "the orphan's end")
        check(alive(other))
        there.start()
        gone.state.mkdir(mode=0o755)
        gone.start()
        must(gone.client().kill("orphan"))
