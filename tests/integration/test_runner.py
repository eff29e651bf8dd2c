"""The runner itself: what its look at the host counts, and what it makes of tests that fail."""
import os
import pathlib
import subprocess
import tempfile

import leaks
from hutch_test import check, check_equal, is_root, skip

NUMBER = 2345678  # of a user that is none


def lines_about(before, host, *names):
    return [line for line in leaks.compare(before, host.snapshot()) if any(n in line for n in names)]


def test_what_was_there_is_not_left_behind():
    "a file or process from before the run does not count when its owner's number becomes the test user's; a new one does"
    if not is_root():
        skip("needs root")
    made = []

    def make():
        path = tempfile.mkdtemp(prefix="before-or-after-", dir="/var/tmp")
        os.chown(path, NUMBER, NUMBER)
        p = subprocess.Popen(["sleep", "1000"], user=NUMBER, group=NUMBER, extra_groups=[], env={})
        made.append((path, p))
        return path, f"process {p.pid} sleep"
    try:
        old = make()
        before = leaks.Host(everyone=True).snapshot()
        host = leaks.Host([(NUMBER, 1)])
        check_equal(lines_about(before, host, *old), [])
        new = make()
        check_equal(len(lines_about(before, host, *new)), 2, lines_about(before, host, *new))
        check_equal(lines_about(before, leaks.Host([(NUMBER + 1, 1)]), new[0]), [])
    finally:
        for path, p in made:
            p.kill()
            p.wait()
            pathlib.Path(path).rmdir()
    check(not lines_about(before, host, *new), "it is gone again")
