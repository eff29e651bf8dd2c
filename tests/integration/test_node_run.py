"""A node whose run directory, or the lock file of id ranges, is removed while it lives."""
import contextlib
import ctypes
import fcntl
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import traceback

from daemon import Daemon
from hutch_test import TOP, check, check_equal, check_in, eventually
from node import needs_root, node
from test_node_supervisor import ask, create, ids, kept

RANGES = pathlib.Path("/run/hutch/ranges")
RANGE_FIRST, RANGE_COUNT, RANGE_MAX = 1 << 29, 65536, 4096
CLONE_NEWNS, F_OFD_SETLK = 0x20000, 37


def with_own_run(body):
    """Runs it in a child with a /run of its own: nodes beside this test use the real one."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) < 0:
                raise OSError(ctypes.get_errno(), "unshare")
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "hutch-test", "/run"], check=True)
            body()
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        finally:
            sys.stdout.flush()
            os._exit(code)
    check_equal(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0, "see above")


def runs(d, box):
    with contextlib.suppress(Exception):
        return d.cli("exec", box, "--", "echo", "here", check=False).stdout == "here\n"
    return False


def range_of(box):
    """The number of its id range, as the kernel says."""
    for path in pathlib.Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text() == "hutch-init\n" and box.encode() in (path.parent / "fd/10").read_bytes():
                return (int((path.parent / "uid_map").read_text().split()[1]) - RANGE_FIRST) // RANGE_COUNT
    raise AssertionError(f"no init of {box}")


@contextlib.contextmanager
def locked_but(numbers):
    """Takes every range but these, as other nodes would."""
    fd = os.open(RANGES, os.O_RDWR)
    try:
        for n in range(RANGE_MAX):
            if n not in numbers:
                with contextlib.suppress(BlockingIOError):  # another sandbox has it
                    fcntl.fcntl(fd, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, n, 1, 0))
        yield
    finally:
        os.close(fd)


def test_run_removed(who):
    "a node whose run directory was removed makes it again: creates work, and the sandboxes that lived can be reached as before"
    with node(who) as (d, _):
        box = create(d)
        d.cli("exec", box, "--", "sh", "-c", "echo kept > /tmp/f")
        for what in (lambda: shutil.rmtree(d.run), lambda: [shutil.rmtree(p) if p.is_dir() else p.unlink() for p in d.run.iterdir()],
                     lambda: shutil.rmtree(d.run / "journal")):
            what()
            eventually(lambda: (d.run / "keeper.sock").exists() and (d.run / "journal" / box).exists(), 60, "the run directory")
            kept(d, box)
            other = create(d)
            eventually(lambda: runs(d, other), 60, "a new sandbox")  # noqa: B023
            check_equal(ids(d), {box, other})
            d.cli("kill", other)
        check_in("was removed; it is made again", d.log_path.read_text())
        d.cli("kill", box)
        check_equal(ids(d), set())


def test_ranges_removed():
    "after /run/hutch was removed two nodes make sandboxes again, and neither gets ids that a sandbox of the other has"
    needs_root()

    def body():
        a, b = Daemon(), Daemon()
        a.run = pathlib.Path("/run/hutch")  # where a node of the package has it
        with a, b:
            box = create(a)
            mine = range_of(box)
            shutil.rmtree("/run/hutch")
            eventually(lambda: RANGES.exists() and (a.run / "keeper.sock").exists(), 60, "a new lock file")
            eventually(lambda: runs(a, box), 60, "the sandbox that lived")
            other = create(b)
            check(range_of(other) != mine)
            b.cli("kill", other)
            with locked_but({mine}):  # the only one that no other node holds is in use
                status, answer, _ = ask(b, "POST", "/v2/sandboxes", {"templateID": "host"})
                check(status != 201, answer)
                check_in("uid ranges are in use", answer["message"])
            other, another = create(b), create(a)
            check_equal(len({mine, range_of(other), range_of(another)}), 3)
            check(runs(a, box) and runs(a, another) and runs(b, other))
    with_own_run(body)


def test_purge():
    "purging the package leaves directories that a living node or sandbox uses, and says so; without one it takes everything"
    needs_root()

    def body():
        copy = pathlib.Path("/run/etc")
        shutil.copytree("/etc", copy, symlinks=True)
        subprocess.run(["mount", "--bind", copy, "/etc"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "hutch-test", "/var/lib"], check=True)
        places = [pathlib.Path(p) for p in ("/var/lib/hutch", "/run/hutch", "/etc/hutch")]

        def purge():
            for place in places:
                place.mkdir(exist_ok=True)
            done = subprocess.run(["sh", TOP / "packaging/postrm", "purge"], text=True, capture_output=True, check=True)
            return [str(p) for p in places if p.exists()], done.stderr
        with Daemon() as d:
            box = create(d)
            check_equal(purge()[0], ["/run/hutch"])
            check_in("/run/hutch is left: a node or a sandbox that lives uses /run/hutch/ranges", purge()[1])
            d.stop(sandboxes=False)  # its sandbox lives
            check_equal(purge()[0], ["/run/hutch"])
            d.start()
            check_equal(ids(d), {box})
            d.cli("kill", box)
        d = Daemon()
        d.state, d.run = places[:2]
        with d:
            check_equal(purge()[0], ["/var/lib/hutch", "/run/hutch", "/etc/hutch"])
            check_in("/var/lib/hutch is left", purge()[1])
        check_equal(purge(), ([], ""))
    with_own_run(body)
