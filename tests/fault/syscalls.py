#!/usr/bin/env python3
"""Every system call of the set-up fails once, in the caller and in init: a clean error, or a sandbox with every layer.

inject.c does the failing. Calls and errors are taken in a fixed shuffled order until the time is over; `make soak` takes
all of them. ENOENT and EACCES are left out: for a path they are true answers about the host, not faults.
"""
import errno
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fault_lib import SOAK, TOP, Tap, identities, judge, stage  # noqa: E402

BINARY = os.environ.get("HUTCH_BIN", str(TOP / "build/hutch"))
SECONDS = 3600 if SOAK else 18
ERRORS = [errno.EIO, errno.ENOMEM, errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.EMFILE]


def build(folder):
    path = os.path.join(folder, "inject")
    subprocess.run([shutil.which("cc") or "gcc", "-std=gnu17", "-D_GNU_SOURCE", "-O1", "-w", "-o", path, str(TOP / "tests/fault/inject.c")],
                   check=True)
    return path


def names():
    """{number: name} of system calls."""
    found = {}
    for path in ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"):
        if os.path.exists(path):
            for line in open(path, encoding="ascii"):
                words = line.split()
                if len(words) == 3 and words[1].startswith("__NR_"):
                    found[words[2]] = words[1][5:]
    return found


def cases(listing):
    calls = [line.split() for line in listing.splitlines()]
    found = [(who, n, nr, e) for who, n, nr in calls for e in ERRORS]
    if not SOAK:
        random.Random(7).shuffle(found)
    return len(calls), found


def main():
    tap = Tap()
    known = names()
    only = os.environ.get("HUTCH_FAULT_ONLY")  # "init 117 5": one case, for looking into it
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        inject = build(folder)
        for who in identities():
            with stage(who) as s:
                code, baseline, err = s.run(s.command(BINARY))
                if code != 0 or len(baseline.split()) < 18:
                    tap.result(False, f"a run without faults has every layer as {who}", [f"code {code}: {baseline!r} {err}"])
                    continue
                with tempfile.TemporaryFile("w+") as calls:
                    subprocess.run([inject, "list", *s.command(BINARY)], cwd=s.ws, stdin=subprocess.DEVNULL, stdout=calls,
                                   stderr=subprocess.DEVNULL, check=False, **s.ids)
                    calls.seek(0)
                    listing = "".join(x for x in calls if x.split()[:1] and x.split()[0] in ("caller", "init") and len(x.split()) == 3)
                total, todo = cases(listing)
                if only:
                    role, n, e = only.split()
                    todo = [c for c in todo if (c[0], c[1], str(c[3])) == (role, n, e)]
                wrong, tried, clean, same = [], set(), 0, 0
                end = time.monotonic() + SECONDS
                for role, n, nr, e in todo:
                    if time.monotonic() > end:
                        break
                    code, out, err = s.run([inject, role, n, str(e), *s.command(BINARY)])
                    if only:
                        print(f"# code {code} out {out!r} err {err!r}")
                    if code == 99:
                        continue
                    tried.add((role, n))
                    clean += code != 0
                    same += code == 0
                    why = judge(s, BINARY, code, out, err, baseline)
                    if code == 0 and not s.landlock():
                        why = why or "no record of Landlock"
                    if why:
                        wrong.append(f"{role} call {n} ({known.get(nr, nr)}) fails with {errno.errorcode[e]}: {why}")
                tap.result(total > 200 and not wrong,
                           f"each call of the set-up may fail, as {who}: {len(tried)} of {total} calls tried, {clean + same} faults, "
                           f"{clean} clean errors, {same} without effect", wrong[:40])
    tap.end()


main()
