"""A copy of the store that is put back, as the manual says: what was made since the copy is not thrown away."""
import os
import subprocess

from hutch_test import check, check_equal, check_in, eventually, skip
from node import patiently
from node_client import ask, get, put
from small import small_templates
from test_node_clock import clocked
from test_state import a_box, connect, of, stacks
from test_volumes import content, make

HOUR = 3600


def log(d):
    return d.log_path.read_text(errors="replace")


def put_away(d, box):
    a = ask(d, "POST", of(box, "/pause"), {"memory": False}, timeout=60)
    if a.status == 501:
        skip(a.json["message"])
    check_equal(a.status, 204, a)


def front(d):
    return d.state / "front"


def kept(d):
    """What the processes that keep files have: names of stacks and volumes."""
    return set(stacks(d)) | {n.split(".")[0] for n in os.listdir(d.state / "stock/volumes") if n.startswith("vol-")}


def store_files(d):
    return {n: (front(d) / n).read_bytes() for n in ("store.db", "store.db-wal", "store.db-shm") if (front(d) / n).exists()}


def put_store(d, files):
    """While the node is stopped; the file stays the same, with its owner."""
    for name in ("store.db-wal", "store.db-shm"):
        (front(d) / name).unlink(missing_ok=True)
    owner = front(d).stat()
    for name, text in files.items():
        (front(d) / name).write_bytes(text)
        os.chown(front(d) / name, owner.st_uid, owner.st_gid)


def refused_start(d):
    try:
        d.start()
    except RuntimeError as e:
        return str(e)
    check(False, "it started")


def test_copy_put_back(who):
    "a copy of the store is put back: a volume, a snapshot, a paused sandbox made since stay, the log names them, the store of before has them again"
    with small_templates(who) as templates, clocked(who, templates=templates) as (clock, d, _):
        box, paused = a_box(d), a_box(d)
        eventually(lambda: "met the layer store" in log(d), 10)
        copy = d.dir / "copy.db"
        check_equal(subprocess.run(["sqlite3", front(d) / "store.db", f".backup {copy}"], check=False).returncode, 0)
        put(d, paused, "/home/user/f", b"paused")
        put_away(d, paused)
        check_equal(ask(d, "POST", of(box, "/snapshots"), {"name": "since"}, timeout=60).status, 201)
        volume = make(d)
        check_equal(content(d, volume, "PUT", "file", b"kept", path="/f").status, 201)
        there = kept(d)
        check_equal(len(there), 3, there)
        d.stop(sandboxes=False)
        newest = store_files(d)
        put_store(d, {"store.db": copy.read_bytes()})
        clock.set(HOUR)  # everything is old enough to be dropped
        met = log(d).count("met the layer store")
        d.start()
        eventually(lambda: log(d).count("met the layer store") > met, 20)
        check_equal(kept(d), there, "what was made after the copy is gone")
        eventually(lambda: "are kept although store.db names none of them" in log(d), 20, "it says what it keeps")
        check_in("a copy that was put back", log(d))
        line = next(x for x in log(d).splitlines() if "are kept although" in x)
        check_equal({n for n in there if n in line}, there, line)
        check_equal(ask(d, "GET", "/volumes").json, [])
        d.stop(sandboxes=False)
        said = log(d).count("are kept although")
        d.start()  # it is remembered
        eventually(lambda: log(d).count("are kept although") > said, 20)
        check_equal(log(d).count("a copy that was put back"), 1)
        check_equal(kept(d), there)
        d.stop(sandboxes=False)
        put_store(d, newest)
        d.start()
        check_equal(content(d, volume, "GET", "file", path="/f").body, b"kept")
        check_equal([s["snapshotID"] for s in ask(d, "GET", "/snapshots").json], ["default/since:default"])
        patiently(lambda: connect(d, paused))
        check_equal(get(d, paused, "/home/user/f").body, b"paused")


def test_lost_key(who):
    "without the key of ids, a store with paused sandboxes is not opened and no key is made; with it, or with them given up, all is well"
    with small_templates(who) as templates, clocked(who, templates=templates) as (clock, d, _):
        box = a_box(d)
        put(d, box, "/home/user/f", b"mine")
        put_away(d, box)
        there = kept(d)
        d.stop(sandboxes=False)
        key, away = front(d) / "id.key", front(d) / "away"
        key.rename(away)
        said = refused_start(d)
        check_in("id.key is missing, and the ids of 1 paused sandboxes in store.db cannot be read without it; put it back", said)
        check(not key.exists(), "a key was made")
        # Another one: the sandbox is not known any more, but it is not thrown away either.
        key.write_bytes(b"0123456789abcdef")
        os.chown(key, away.stat().st_uid, away.stat().st_gid)
        clock.set(HOUR)
        met = log(d).count("met the layer store")
        d.start()
        eventually(lambda: "was not made with this id.key" in log(d), 10)
        eventually(lambda: log(d).count("met the layer store") > met, 20)
        check_equal(kept(d), there)
        d.stop(sandboxes=False)
        away.rename(key)
        d.start()
        connect(d, box)
        check_equal(get(d, box, "/home/user/f").body, b"mine")
        put_away(d, box)
        d.stop(sandboxes=False)
        key.unlink()
        said = refused_start(d)
        remedy = said[said.rindex("DELETE FROM boxes"):].split("'")[0]
        check_equal(subprocess.run(["sqlite3", front(d) / "store.db", remedy], check=False).returncode, 0)
        for name in ("store.db", "store.db-wal", "store.db-shm"):  # sqlite3 ran as somebody else
            if (front(d) / name).exists():
                os.chown(front(d) / name, front(d).stat().st_uid, front(d).stat().st_gid)
        d.start()
        eventually(lambda: not kept(d), 100, "what was given up is dropped")
