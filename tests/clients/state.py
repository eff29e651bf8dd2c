"""Pause, resume, snapshots and forks as users of the E2B Python SDK know them. Prints TAP."""
import os
import re

from e2b import Sandbox
from tap import finish, test, until

TEMPLATE = os.environ.get("TEMPLATE", "base")


def state(s):
    return str(getattr(s.get_info().state, "value", s.get_info().state))


def pause_keeps_the_process():
    s = Sandbox.create(TEMPLATE, timeout=900, envs={"A": "1"})
    h = s.commands.run("sleep 1000", background=True)
    assert s.pause() and not s.pause()
    assert state(s) == "paused" and not s.is_running()
    s = Sandbox.connect(s.sandbox_id, timeout=900)
    assert h.pid in [p.pid for p in s.commands.list()]
    assert s.commands.run("echo $A").stdout == "1\n"
    assert s.kill()


def pause_of_files():
    s = Sandbox.create(TEMPLATE, timeout=900)
    s.files.write("/home/user/f", "kept")
    h = s.commands.run("sleep 1000", background=True)
    for i in range(2):
        s.commands.run(f"echo {i} >> /home/user/log")
        assert s.pause(keep_memory=False)
        s.connect()
    assert s.files.read("/home/user/f") == "kept" and s.files.read("/home/user/log") == "0\n1\n"
    assert h.pid not in [p.pid for p in s.commands.list()]
    s.pause(keep_memory=False)
    assert s.kill() and not s.kill()


def lifecycle():
    s = Sandbox.create(TEMPLATE, timeout=2, lifecycle={"on_timeout": "pause", "auto_resume": True})
    s.files.write("/home/user/f", "kept")
    until(lambda: state(s) == "paused", "the pause")
    assert s.files.read("/home/user/f") == "kept"
    until(lambda: s.files.read("/home/user/f") == "kept" and state(s) == "running", "it runs")  # for two seconds again
    s.kill()


def snapshots():
    s = Sandbox.create(TEMPLATE, timeout=900)
    s.files.write("/home/user/f", "snapshot")
    snap = s.create_snapshot()
    s.files.write("/home/user/f", "later")
    made = [Sandbox.create(snap.snapshot_id, timeout=600) for _ in range(2)]
    assert [m.files.read("/home/user/f") for m in made] == ["snapshot"] * 2
    pages = s.list_snapshots()
    assert [x.snapshot_id for x in pages.next_items()] == [snap.snapshot_id]
    assert Sandbox.delete_snapshot(snap.snapshot_id) and not Sandbox.delete_snapshot(snap.snapshot_id)
    for m in (*made, s):
        m.kill()


def fork():
    s = Sandbox.create(TEMPLATE, timeout=900)
    s.files.write("/home/user/f", "parent")
    kids = s.fork(timeout=600, count=2)
    assert len(kids) == 2 and not any(isinstance(k, Exception) for k in kids), kids
    assert [k.files.read("/home/user/f") for k in kids] == ["parent"] * 2
    for k in (*kids, s):
        k.kill()


def refusals():
    s = Sandbox.create("host", timeout=600)
    try:
        s.create_snapshot()
        raise AssertionError("the host template was copied")
    except Exception as e:  # noqa: BLE001
        assert re.search("no files of its own", str(e)), e
    s.kill()


def main():
    for fn in (pause_keeps_the_process, pause_of_files, lifecycle, snapshots, fork, refusals):
        test(fn.__name__, fn)
    finish()


main()
