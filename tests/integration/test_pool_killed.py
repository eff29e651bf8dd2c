"""kill -9 of every process of a node, at many moments of what changes its pool: what was answered is there, whole, and nothing is left behind."""
import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import threading
import time

from daemon import lives
from e2bwire import BROKEN
from hutch_test import SOAK, check, check_equal, check_in, eventually
from node_client import ask, patient, sh
from small import small_templates
from test_pool import a_box, devices, df, mounted, needs_pool, nothing_left, of, pool_node

MIB, GIB = 1 << 20, 1 << 30


def descendants(pid):
    found = []
    with contextlib.suppress(OSError):
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def name_of(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def kill_all(d, *more):
    """kill -9 of everything that belongs to the node, jobs and commands included; sandboxes live on. The supervisor is the first: nothing starts again."""
    inits = {p for p in descendants(d.proc.pid) if name_of(p) == "hutch-init"}
    inside = {p for init in inits for p in descendants(init)}
    pids = [p for p in (d.proc.pid, *descendants(d.proc.pid), *more) if p not in inits | inside]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    d.proc.wait()
    eventually(lambda: not any(map(lives, pids)), 20, "their end")


def subvolumes(d):
    text = subprocess.run(["btrfs", "subvolume", "list", d.state / "stock"], text=True, capture_output=True, check=True).stdout
    return {line.split(" path ", 1)[1] for line in text.splitlines()}


def check_pool(d, boxes):
    """One mount, one device; behind a collection no subvolume but the seed, those of layers and of living sandboxes; nothing under way."""
    patient(d, "POST", "/v1/store/gc", {})
    check_equal((len(mounted(d)), len(devices(d))), (1, 1))

    def strangers():
        uppers = {f"uppers/{b['sandboxID']}" for b in boxes}
        return [s for s in subvolumes(d) if s != "seed" and s not in uppers and not re.fullmatch(r"layers/[0-9a-f]{64}", s)] + os.listdir(d.state / "stock/tmp")
    with contextlib.suppress(AssertionError):
        eventually(lambda: not strangers(), 30)
    check_equal(strangers(), [])
    ours = {"pool.img", "pool.lock", "stock"}
    check_equal([n for n in os.listdir(d.state) if n.startswith(("pool", "stock")) and n not in ours], [])



def in_background(call):
    """The thread of a request whose node may die."""
    answers = []

    def run():
        with contextlib.suppress(*BROKEN):
            answers.append(call())
    thread = threading.Thread(target=run)
    thread.start()
    return thread, answers


def test_work():
    "amid snapshots, commits, undos, drops and collections: every snapshot that was answered has its files, a commit is whole or not there"
    needs_pool()
    rounds, seed = (60, time.time_ns()) if SOAK else (6, 1)
    dice = random.Random(seed)
    print(f"seed {seed}")
    with small_templates() as templates, pool_node(templates, size="3GiB", disk="1GiB") as d:
        box = a_box(d, timeout=36000)
        url = f"/v1/sandboxes/{box['sandboxID']}"
        kept, text, spare = {}, "first", None
        fill = "cd /home/user; echo TEXT > f; for i in $(seq 1 300); do echo TEXT > n$i; done; head -c 8000000 /dev/urandom > data; sha256sum < data"
        for i in range(rounds):
            was, text = text, f"round{i}"
            kind = ("snapshot", "commit", "gc", "undo", "snapshot", "drop")[i % 6]
            if kind == "commit":
                tx = patient(d, "POST", url + "/tx", {"command": fill.replace("TEXT", text)}, timeout=120)
                check_equal((tx.status, tx.json["exitCode"]), (201, 0), tx)
            elif kind == "undo":
                check_equal(patient(d, "POST", url + "/history", {}, timeout=60).status, 201)
                past = ask(d, "GET", url + "/history").json["generations"][-1]["number"]
                total, was, text = sh(d, box, fill.replace("TEXT", text)).text, text, was
            else:
                total = sh(d, box, fill.replace("TEXT", text)).text
                check_in("-", total)
            if kind in ("gc", "drop"):
                spare = patient(d, "POST", of(box, "/snapshots"), {}, timeout=60).json["snapshotID"]
            if kind == "gc":
                check_equal(patient(d, "DELETE", f"/templates/{spare}").status, 204)
            call = {"snapshot": lambda: ask(d, "POST", of(box, "/snapshots"), {}, timeout=60), "gc": lambda: d.cli("store", "gc", check=False),
                    "commit": lambda: ask(d, "POST", f"{url}/tx/{tx.json['id']}/commit", {}, timeout=60),  # noqa: B023
                    "undo": lambda: ask(d, "POST", url + "/history/undo", {"to": past}, timeout=60),  # noqa: B023
                    "drop": lambda: ask(d, "DELETE", f"/templates/{spare}")}[kind]  # noqa: B023
            thread, answers = in_background(call)
            time.sleep(dice.uniform(0, 0.15 if kind in ("commit", "undo") else 0.05))
            kill_all(d)
            thread.join()
            d.start()
            if kind in ("commit", "undo"):
                eventually(lambda: patient(d, "POST", url + "/history", {}, timeout=60).status == 201, 60, "it is settled")  # noqa: B023
                now = set(sh(d, box, "cd /home/user; cat f n*").text.split())
                check(len(now) == 1 and now <= {was, text}, f"{kind} was done in part: {now}")
                if answers and answers[0].status == 200:
                    check_equal(now, {text}, "it was answered")
                text, total = now.pop(), sh(d, box, "sha256sum < /home/user/data").text
            check_equal(sh(d, box, "cat /home/user/f").text, f"{text}\n", kind)
            if kind == "snapshot" and answers and answers[0].status == 201:
                kept[answers[0].json["snapshotID"]] = (text, total)
            check_pool(d, [box])
        one = patient(d, "POST", of(box, "/snapshots"), {}, timeout=60)
        kept[one.json["snapshotID"]] = (text, total)
        r = d.cli("store", "verify", check=False)
        check_equal(r.returncode, 0, r)
        for snapshot, (text, total) in kept.items():
            copy = a_box(d, snapshot)
            check_equal(sh(d, copy, "cd /home/user; cat f n300; sha256sum < data").text, f"{text}\n{text}\n{total}", snapshot)
            check_equal(ask(d, "DELETE", of(copy)).status, 204)
        print(f"{len(kept)} snapshots of {rounds} rounds")


def test_resize():
    "amid grow and shrink: the pool has the old size or the new one, all files, and the next grow and shrink work"
    needs_pool()
    rounds, seed = (40, time.time_ns()) if SOAK else (4, 2)
    dice = random.Random(seed)
    print(f"seed {seed}")
    with small_templates() as templates, pool_node(templates, size="2GiB", disk="1GiB") as d:
        box = a_box(d, timeout=36000)
        sum_ = sh(d, box, "cd /home/user; head -c 60000000 /dev/urandom > data; echo kept > f; sync; sha256sum < data").text
        env = {**os.environ, "HUTCH_STATE": str(d.state)}
        for i in range(rounds):
            # New data beyond the small size: shrinking has to move it.
            sh(d, box, "cd /home/user; cp data copy; sync; rm data; mv copy data")
            grow = i % 2 == 0
            size = 3 * GIB if grow else GIB
            command = subprocess.Popen([d.hutch, "store", "grow" if grow else "shrink", str(size)], env=env, stderr=subprocess.DEVNULL)
            time.sleep(dice.uniform(0, 0.06 if grow else 0.25))
            if i % 3 == 2:
                kill_all(d, command.pid)
            else:
                command.kill()
            command.wait()
            if i % 3 == 2:
                d.start()
            check_equal((len(mounted(d)), len(devices(d))), (1, 1))
            check_equal(sh(d, box, "cat /home/user/f; sha256sum < /home/user/data").text, f"kept\n{sum_}", i)
            # The same once more, to its end.
            r = d.cli("store", "grow" if grow else "shrink", str(size), check=False)
            done = os.stat(d.state / "pool.img").st_size == size and f"{'larger' if grow else 'smaller'} size" in r.stderr
            check(r.returncode == 0 or done, r)
            check_equal(df(d)["pool"]["maxBytes"], size)
            file_system = os.statvfs(d.state / "stock")
            check_equal(file_system.f_blocks * file_system.f_frsize, size, "the file system is as large as the file")
        os.truncate(d.state / "pool.img", 4 * GIB)  # as a grow that was killed after its first step
        d.cli("store", "grow", "4GiB")
        file_system = os.statvfs(d.state / "stock")
        check_equal(file_system.f_blocks * file_system.f_frsize, 4 * GIB)
        check_in("0 errors", d.cli("store", "check").stdout)
        check_pool(d, [box])


def copying(d):
    """The process that copies the old store."""
    return [p for p in descendants(d.proc.pid) if name_of(p) == "cp"]


def test_copy():
    "amid the copy of an older store into a new pool: the old store stays, the next start copies it whole, no copy goes on by itself"
    needs_pool()
    rounds, seed = (20, time.time_ns()) if SOAK else (3, 3)
    dice = random.Random(seed)
    print(f"seed {seed}")
    with small_templates() as templates, pool_node(templates, config="files: tmpfs\nsandboxes: {memory: 1GiB, disk: 512MiB}\n") as d:
        box = a_box(d)
        total = sh(d, box, "cd /home/user; for i in $(seq 1 400); do head -c 100000 /dev/urandom > n$i; done; cat n* | sha256sum").text
        one = ask(d, "POST", of(box, "/snapshots"), {}, timeout=60).json["snapshotID"]
        d.cli("volume", "create", "data")
        d.stop()
        d.config.write_text(d.config.read_text().replace("files: tmpfs\n", "files: pool\npool: {size: 2GiB}\n"))
        amid = 0
        for i in range(rounds):
            starts = threading.Thread(target=start_quietly, args=(d,))
            before = d.proc
            starts.start()
            eventually(lambda: d.proc is not before, 20, "it starts")  # noqa: B023
            if i % 2:
                time.sleep(dice.uniform(0, 0.5))
            else:
                stop = time.monotonic() + 20
                while not copying(d) and time.monotonic() < stop and d.proc.poll() is None:
                    pass
            copies = copying(d)
            for pid in copies:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)  # one that outlives its parent is seen, however quick it is
            amid += bool(copies)
            os.kill(d.proc.pid, signal.SIGKILL)
            starts.join()
            try:
                eventually(lambda: not any(map(lives, copies)), 10, "the copy ends with the node")
            finally:
                for pid in filter(lives, copies):
                    os.kill(pid, signal.SIGKILL)
            if (d.state / "pool.img").exists():  # it was done
                break
            nothing_left(d)
        check(amid > 0, "it was never killed amid the copy")
        d.start()
        check_equal(df(d)["files"]["driver"], "btrfs")
        check((d.state / "stock.before-pool").is_dir())
        check(not (d.state / "pool.img.new").exists())
        check_equal(sh(d, a_box(d, one), "cd /home/user; cat n* | sha256sum").text, total)
        check_in("data", d.cli("volume", "ls").stdout)
        check_equal(d.cli("store", "verify").returncode, 0)


def start_quietly(d):
    with contextlib.suppress(RuntimeError):
        d.start()
