"""A node that was stopped and is started on a full disk: it comes up, answers, and lets its sandboxes be ended."""
import contextlib
import os
import pathlib
import shutil
import subprocess

from daemon import Daemon
from hutch_test import check, check_equal, check_in, eventually
from node import needs_root
from test_node_supervisor import create, ids, kept, patient


def fill(path):
    """Nothing more fits, not even a byte."""
    for size in (1 << 20, 4096, 1):
        with contextlib.suppress(OSError), open(path, "ab", buffering=0) as f:
            while f.write(b"x" * size):
                pass
    os.sync()


@contextlib.contextmanager
def small_disk(path, megabytes=24):
    """An ext4 of that size, as a state directory has it."""
    image = pathlib.Path(f"{path}.img")
    path.mkdir(mode=0o700)
    image.touch()
    os.truncate(image, megabytes << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, path], check=True)
    shutil.rmtree(path / "lost+found")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def test_starts_on_full_disk():
    "a node that is started on a full disk comes up, shows and ends its sandboxes, and works as before when there is room again"
    needs_root()
    d = Daemon()
    try:
        with small_disk(d.state), d:
            box, other = create(d), create(d)
            d.cli("exec", box, "--", "sh", "-c", "echo kept > /tmp/f")
            d.stop(sandboxes=False)
            half = d.state / "stock/tmp/half"  # a job was killed before the disk was full
            (half / "a/b").mkdir(parents=True)
            fill(d.state / "filler")
            d.start()
            check_equal(ids(d), {box, other})
            eventually(lambda: not half.exists() and not list((d.state / "stock").glob(".gone-*")), 20, "what the job left")
            kept(d, box)
            check_equal(patient(d, "DELETE", f"/sandboxes/{other}")[0], 204)
            eventually(lambda: ids(d) == {box}, 20, "its end")
            d.stop(sandboxes=False)
            d.start()  # once more, on a disk that is as full as before
            check_equal(ids(d), {box})
            check_equal([len(d.children(name)) for name in ("keeper", "layers", "egress", "front")], [1, 1, 1, 1])
            (d.state / "filler").unlink()
            third = create(d)
            check_equal(ids(d), {box, third})
            d.stop()
    finally:
        shutil.rmtree(d.dir, ignore_errors=True)


def test_trust_is_kept():
    "what sandboxes trust is not written again if it is the same; if it cannot be, the old file stays, with a warning"
    needs_root()
    d = Daemon()
    roots = d.dir / "roots.pem"
    trusted = d.state / "egress/trusted.crt"
    try:
        with small_disk(d.state), d:
            d.stop()
            shutil.copy(trusted, roots)
            d.config.write_text(d.config.read_text() + f"\negress:\n  trust: {roots}\n")
            old = trusted.read_bytes()
            fill(d.state / "filler")
            with contextlib.suppress(RuntimeError):
                d.start()
            check_in("cannot write egress/trusted.crt", d.log_path.read_text())
            check_in("sandboxes trust what they trusted before", d.log_path.read_text())
            check_equal(trusted.read_bytes(), old)
            check(not (trusted.parent / "trusted.crt.tmp").exists())
            (d.state / "filler").unlink()
            if d.proc.poll() is None:
                d.stop()
            d.start()
            check_equal(trusted.read_bytes(), (trusted.parent / "ca.crt").read_bytes() + roots.read_bytes())  # not the host's own
            when = trusted.stat().st_mtime_ns
            d.stop()
            d.start()
            check_equal(trusted.stat().st_mtime_ns, when, "written though it is the same")
    finally:
        shutil.rmtree(d.dir, ignore_errors=True)
