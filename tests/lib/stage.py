"""The host around the tests: one run at a time, a temporary directory, an ordinary user, the programs where that user can reach them; and
the look afterwards at what is left."""
import contextlib
import ctypes
import fcntl
import os
import pathlib
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import leaks

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
USER = os.environ.setdefault("HUTCH_TEST_USER", "hutchtest")
PR_SET_CHILD_SUBREAPER = 36


def remove_user(name=USER):
    """The user, its processes, its home and its id ranges. Nothing happens if it does not exist."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return

    def living():
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                state = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                if os.stat(f"/proc/{pid}").st_uid == entry.pw_uid and state != "Z":
                    os.kill(int(pid), signal.SIGKILL)
                    found.append(pid)
        return found
    end = time.monotonic() + 10
    while living() and time.monotonic() < end:
        reap()
        time.sleep(0.05)
    subprocess.run(["userdel", "--remove", "--force", name], check=False, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


def free_range(path, size=65536):
    """A start of `size` subordinate ids that nobody has yet."""
    taken = [100000]
    with contextlib.suppress(OSError):
        for line in pathlib.Path(path).read_text().splitlines():
            parts = line.split(":")
            if len(parts) == 3:
                taken.append(int(parts[1]) + int(parts[2]))
    return max(taken)


def make_user(name=USER):
    """Make the ordinary user; returns its ids as (first, count) ranges."""
    remove_user(name)
    subprocess.run(["useradd", "--create-home", "--user-group", "--shell", "/bin/sh", name], check=True,
                   stdout=subprocess.DEVNULL)
    entry = pwd.getpwnam(name)
    ranges = [(entry.pw_uid, 1)]
    own = [line for line in pathlib.Path("/etc/subuid").read_text().splitlines() if line.startswith(name + ":")]
    if not own:
        start = max(free_range("/etc/subuid"), free_range("/etc/subgid"))
        span = f"{start}-{start + 65535}"
        subprocess.run(["usermod", "--add-subuids", span, "--add-subgids", span, name], check=True)
        ranges.append((start, 65536))
    for line in own:
        ranges.append((int(line.split(":")[1]), int(line.split(":")[2])))
    return ranges


@contextlib.contextmanager
def stage():
    """Lock, temporary directory, ordinary user, binaries where everybody can reach them; all gone afterwards."""
    lock = open(f"/tmp/.hutch-tests-{USER}.lock", "w")  # noqa: SIM115 - held until the end
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit("tests/run: another run with the same test user is going on")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    mark = secrets.token_hex(8)
    os.environ["HUTCH_TEST_RUN"] = mark
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    before = leaks.Host(mark=mark, everyone=True).snapshot()
    tmp = pathlib.Path(tempfile.mkdtemp(prefix="hutch-test."))
    ranges = []
    try:
        tmp.chmod(0o755)
        shared = tmp / "tmp"
        shared.mkdir()
        shared.chmod(0o1777)
        os.environ["TMPDIR"] = tempfile.tempdir = str(shared)
        if os.geteuid() == 0:
            ranges = make_user()
        copy_programs(tmp / "bin")
        shutil.copytree(TOP / "share/presets", tmp / "share/hutch/presets")
        yield before, leaks.Host(ranges, mark)
    finally:
        if os.geteuid() == 0:
            remove_user()
        shutil.rmtree(tmp, ignore_errors=True)
        os.unlink(lock.name)


def copy_programs(target):
    """An ordinary user may not be able to enter the source tree, so the programs are tried from a public place."""
    target.mkdir()
    wanted = {"HUTCH_BIN": ("build/hutch", "hutch"), "HUTCH_NODE_BIN": ("build/hutch-node", "hutch-node"),
              "HUTCH_CLIENT_BIN": ("build/hutch-client", "hutch-client"), "HUTCH_TEST_BIN": ("build/tests/hutch-without", "hutch-without"),
              "HUTCH_ASAN_BIN": ("build-asan/hutch", "hutch-asan"), "HUTCH_ASAN_NODE_BIN": ("build-asan/hutch-node", "hutch-node-asan"),
              "HUTCH_MCP_NODE_BIN": ("build/tests/hutch-node-mcp", "hutch-node-mcp"),
              "HUTCH_CODE_BIN": ("build/hutch-code", "hutch-code"), "HUTCH_PROBE": ("build/hutch-probe", "hutch-probe")}
    for variable, (source, name) in wanted.items():
        if (TOP / source).exists():
            shutil.copy(TOP / source, target / name)
            (target / name).chmod(0o755)
            os.environ[variable] = str(target / name)


def reap():
    """Collect orphans that ended; they are ours because the runner is a subreaper."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def remove_ranges(before):
    """The lock file of id ranges stays until the machine starts again, as the file of a lock must. Tests that made it remove it when no
    lock in it is held; one that is held is a sandbox that was left, and anything else in the directory is one, too."""
    ranges = pathlib.Path("/run/hutch/ranges")
    if f"file {ranges}" in before or not ranges.exists() or f":{ranges.stat().st_ino} " in pathlib.Path("/proc/locks").read_text():
        return
    with contextlib.suppress(OSError):
        ranges.unlink()
        ranges.parent.rmdir()


def account(report, before, host):
    """The last test: nothing is left."""
    end = time.monotonic() + 60  # processes that were told to end may take a moment
    while True:
        reap()
        if os.geteuid() == 0:
            remove_ranges(before)
        left = leaks.compare(before, host.snapshot())
        # What the runner itself still holds is removed after this.
        own = (os.environ["TMPDIR"].rsplit("/", 1)[0], f".hutch-tests-{USER}.lock")
        left = [line for line in left if not any(o in line for o in own)]
        if not left or time.monotonic() > end:
            break
        time.sleep(0.1)
    inside = sorted(p.name for place in pathlib.Path(os.environ["TMPDIR"]).parent.glob("tmp*") for p in place.iterdir())
    left += [f"left behind: temporary {name}" for name in inside]
    if left:
        report.fail("nothing is left on the host", "\n".join(left))
    else:
        report.ok("nothing is left on the host: processes, mounts, namespaces, cgroups, files, sockets")
