"""A template that is nothing but busybox: a root of its own in no time, for tests that are not about what is in it."""
import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile

from hutch_test import identity, skip

PASSWD = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n"
GROUP = "root:x:0:\nuser:x:1000:\n"


def fill(root):
    if not os.path.exists("/bin/busybox"):
        skip("/bin/busybox is missing: apt-get install busybox-static")
    for folder in ("bin", "etc", "home/user", "root", "usr/bin", "var", "tmp", "proc", "dev", "sys", "run"):
        (root / folder).mkdir(parents=True)
    os.chmod(root / "tmp", 0o1777)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    os.chmod(root / "bin/busybox", 0o755)
    for name in subprocess.run(["/bin/busybox", "--list"], text=True, capture_output=True, check=True).stdout.split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    (root / "bin/bash").unlink(missing_ok=True)
    (root / "bin/bash").write_text('#!/bin/sh\nexec /bin/sh "$@"\n')
    os.chmod(root / "bin/bash", 0o755)
    (root / "etc/passwd").write_text(PASSWD)
    (root / "etc/group").write_text(GROUP)
    (root / "etc/motd").write_text("first line\nsecond line\n")


@contextlib.contextmanager
def small_templates(who="root"):
    """A directory of templates with `small` in it; its user owns it."""
    ids, entry = identity(who)
    top = pathlib.Path(tempfile.mkdtemp(prefix="hutch-small-"))
    try:
        os.chmod(top, 0o755)
        root = top / "small/root"
        root.mkdir(parents=True)
        fill(root)
        os.chown(root / "home/user", 1000, 1000) if who == "root" and os.geteuid() == 0 else None
        if who != "root":
            for folder, _, files in os.walk(top):
                for p in [folder, *(os.path.join(folder, f) for f in files)]:
                    os.chown(p, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
        yield top
    finally:
        shutil.rmtree(top)
