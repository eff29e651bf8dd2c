"""What happens to sandboxes, commands and clients when processes of the node are killed or resources run out."""
import collections
import contextlib
import hashlib
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import threading
import time

from daemon import Daemon
from e2bwire import BROKEN, Api, WireError
from hutch_test import PATIENCE, SOAK, Failed, check, check_equal, check_in, eventually, skip
from node import Traces, hit, needs_root, node, patiently, restart
from node_client import ask

ROUNDS = 12 if SOAK else 1


# --- a stream across deaths -------------------------------------------------------------------------------------------

def counter(lines):
    return "".join(f"{i}\n" for i in range(1, lines + 1)).encode()


def follow(d, box, victim, times, lines):
    """Reads a counter at full speed while `victim` dies `times` times: (all bytes, how often it was attached anew)."""
    s = box.start(f"seq 1 {lines}; exit 3")
    pid, got, anew = s.pid, bytearray(), 0
    marks = [(i + 1) * 5_000_000 // (times + 1) for i in range(times)]
    while True:
        try:
            e = s.event()
            if e is None:
                break
            if s.first:
                check_equal(s.first["stdout"] + len(s.data["stdout"]), s.offsets["stdout"], "a gap inside one stream")
                check_equal(s.first["stdout"], len(got), f"{victim}: bytes before and after")
            if marks and s.offsets.get("stdout", 0) > marks[0]:
                marks.pop(0)
                hit(d, victim)
        except BROKEN:
            got += s.data["stdout"]
            s.close()
            s = patiently(lambda: box.attach(pid, {"stdout": len(got), "stderr": 0}))  # noqa: B023
            anew += 1
    got += s.data["stdout"]
    check_equal(marks, [], "deaths that did not happen")
    check_equal(s.end["exitCode"], 3, s.end)
    check("stdoutOmitted" not in s.end["usage"], s.end)
    return bytes(got), anew


def test_streams_survive(who):
    "kill -9 of front, keeper, supervisor, and a restart, amid 6 MB of output: with its offset a client gets every byte once"
    with node(who) as (d, api):
        box = api.create()
        box.put("/tmp/before", b"kept")
        # The last one is longer than what fits into the buffers on the way, or front would hand it all over before it goes.
        # A slow reader has more of it in them when somebody is killed.
        for victim, times, lines in (("front", 3, 1_800_000), ("keeper", 2, 900_000), ("supervisor", 1, 1_800_000),
                                     ("upgrade", 1, 3_000_000)):
            got, anew = follow(d, box, victim, times, lines)
            check(got == counter(lines), f"{victim}: {len(got)} bytes")
            check((anew == 0) == (victim == "keeper"), f"{victim}: attached anew {anew} times")
            check_equal(patiently(lambda: box.get("/tmp/before")), b"kept")
        check_equal(api.list(), {box.id})


def test_end_is_kept(who):
    "a command that ends while the node is down: its output and its exit code are there afterwards"
    with node(who) as (d, api):
        box = api.create()
        for pause in (0.7, 5, 30):  # it must not have ended before the node was killed
            begun = time.monotonic()
            s = box.start(f"echo first; sleep {pause}; echo last; exit 9")
            while not s.out:
                s.event()
            d.proc.kill()
            d.proc.wait()
            if time.monotonic() - begun < pause:
                break
            d.start()
        time.sleep(pause + 0.3)
        d.start()
        t = patiently(lambda: box.attach(s.pid, s.offsets)).read_all()
        check_equal((s.out + t.out, t.end["exitCode"]), (b"first\nlast\n", 9))
        check(s.pid not in box.processes())


def test_nobody_comes_back():
    "output whose reader was lost with front stops a command for 30 s at most; a client that leaves stops nothing"
    if not SOAK:
        skip("takes 35 s; HUTCH_SOAK=1 or tests/run --soak runs it")
    with node() as (d, api):
        box = api.create()
        box.start("seq 1 900000; touch /tmp/done").close()
        eventually(lambda: box.run("test -e /tmp/done")[0] == 0, 10, "it goes on without its client")
        box.start("sleep 0.5; seq 1 900000; touch /tmp/waited")
        hit(d, "front")
        time.sleep(5)
        check_equal(patiently(lambda: box.run("test -e /tmp/waited")[0]), 1, "it waits")
        eventually(lambda: box.run("test -e /tmp/waited")[0] == 0, 40, "it goes on in the end")


# --- deaths amid work -------------------------------------------------------------------------------------------------

class Work:
    """Threads that create, upload, run, download and kill, and know what was promised to them."""

    def __init__(self, api, threads=4, live=24):
        self.api, self.live = api, live
        self.lock, self.stop = threading.Lock(), threading.Event()
        self.made, self.killed, self.wrong = {}, set(), []
        self.count = collections.Counter()
        self.threads = [threading.Thread(target=self._loop, args=(i,)) for i in range(threads)]

    def _note(self, e, what):
        text = str(e)
        if isinstance(e, WireError) and (e.status not in (502, 503, "unavailable") or "was not found" in text):
            self.wrong.append(f"{what}: {text}")
        else:
            self.count["broken"] += 1

    def _use(self, box, data):
        box.put("/tmp/f", data)
        self.made[box.id] = (box, data)
        code, out = box.run("sha256sum < /tmp/f")
        check_equal((code, out.split()[:1]), (0, [hashlib.sha256(data).hexdigest().encode()]), box.id)
        check(box.get("/tmp/f") == data, "download")
        self.count["used"] += 1

    def _kill(self, box):
        with self.lock:
            self.made.pop(box.id, None)  # whatever the answer will be, it is not promised any more
        self.count["kills"] += 1
        check(box.kill(), f"{box.id} was not there any more")
        self.killed.add(box.id)

    def _loop(self, seed):
        chance = random.Random(seed)
        while not self.stop.is_set():
            what = "create"
            try:
                self.count["creates"] += 1
                box = self.api.create(timeout=30, patience=0)
                with self.lock:
                    self.made[box.id] = (box, None)
                what = f"use of {box.id}"
                self._use(box, chance.randbytes(chance.randrange(1, 300_000)))
                if chance.random() < 0.5 or len(self.made) > self.live:
                    what = f"kill of {box.id}"
                    self._kill(box)
            except (*BROKEN, WireError) as e:
                self._note(e, what)
                time.sleep(0.05)
            except Exception as e:  # pylint: disable=broad-except - told by the test
                self.wrong.append(f"{what}: {e}")

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for t in self.threads:
            t.join(300)


def after_chaos(d, api, work, traces):
    eventually(d.alive, 20, "it serves")
    check_equal(work.wrong[:5], [], f"{len(work.wrong)} answers")
    for box, data in work.made.values():
        got = patiently(lambda: box.get("/tmp/f") if data else box.run("echo ok")[1])  # noqa: B023
        check(got == (data or b"ok\n"), f"{box.id}: its file")
    listed = patiently(api.list)
    check(not work.killed & listed, f"killed, but listed: {work.killed & listed}")
    check_equal(set(work.made) - listed, set(), "lost")
    # A create or a kill whose answer was lost may have come true or not; anything else is not there.
    eventually(lambda: len(traces.inits()) == len(patiently(api.list)), 15, f"{len(traces.inits())} inits, {len(listed)} listed")
    traces.check_gc()


def test_deaths_amid_work(who):
    "kill -9 of front, keeper, supervisor in a loop while clients create, run, upload, kill: promises hold, nothing is left"
    seconds = (5 if who == "root" else 3) * ROUNDS
    with node(who) as (d, api):
        traces, chance = Traces(d, who), random.Random(1)
        for victim in ("front", "keeper", "supervisor"):
            hits, stop = 0, time.monotonic() + seconds
            with Work(api) as work:
                while time.monotonic() < stop:
                    time.sleep(chance.uniform(0.1, 0.9))
                    d.kill9(victim) if victim != "supervisor" else restart(d)
                    hits += 1
                with contextlib.suppress(Failed):  # a slow machine gets nothing done in between
                    eventually(lambda: work.count["used"], PATIENCE)  # noqa: B023
            print(f"        {victim} killed {hits} times: {dict(work.count)}", flush=True)
            check(work.count["used"] > 0, work.count)
            after_chaos(d, api, work, traces)
        r = d.cli("stop", "--all")
        check_equal(api.list(), set(), r)
        traces.check_none()


def test_backup(who):
    "the store is copied while the node runs, as the manual says: what is written after it survives kill -9, the copy is whole"
    with node(who) as (d, api):
        store = d.state / "front/store.db"
        script = f".backup {d.dir}/copy.db"
        for i in range(3):
            check_equal(subprocess.run(["sqlite3", store, script], check=False).returncode, 0)
            name = f"after-{i}"
            check_equal(ask(d, "POST", "/v1/tenants", {"id": name, "name": name, "quota": {}}).status // 100, 2)
            restart(d)
            names = [t["id"] for t in ask(d, "GET", "/v1/tenants").json["tenants"]]
            check_in(name, names)
        check_equal(subprocess.run(["sqlite3", f"{d.dir}/copy.db", "PRAGMA integrity_check; SELECT id FROM tenants WHERE id LIKE 'after-%'"],
                                   check=False, capture_output=True, text=True).stdout.split(), ["ok", "after-0", "after-1"])


# --- resources that run out -------------------------------------------------------------------------------------------

def fill(path):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with contextlib.suppress(OSError):
        while os.write(fd, b"x" * 4096):
            pass
    os.close(fd)


def test_state_disk_full():
    "a full disk under the state directory: creates are refused cleanly, what runs runs on, and room makes all well again"
    needs_root()
    d = Daemon()
    d.state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "hutch-test", d.state], check=True)
    try:
        with d:
            api = Api(d.port, d.key)
            box = api.create()
            fill(d.state / "filler")
            good, bad = [], []
            for _ in range(40):
                try:
                    good.append(api.create(metadata={"k": "v" * 3000}, patience=0))
                except WireError as e:
                    bad.append(e)
            print(f"        {len(good)} creates answered 201, {len(bad)} were refused", flush=True)
            check(bad, "40 creates fit on a full disk")
            check_equal({e.status for e in bad}, {507}, bad[0])
            check_in(b"disk is full", bad[0].body)
            check_equal(box.run("echo still")[1], b"still\n")
            check_equal(api.list(), {b.id for b in [box, *good]}, "answered 201, and nothing else")
            d.kill9("keeper")
            eventually(lambda: d.children("keeper") and d.alive(), 15, "keeper comes back on a full disk")
            check_equal(patiently(lambda: box.run("echo still")[1]), b"still\n")
            (d.state / "filler").unlink()
            patiently(api.create)
            d.cli("stop", "--all")
            check_equal(api.list(), set())
            d.stop()
    finally:
        subprocess.run(["umount", "-l", d.state], check=True)
        shutil.rmtree(d.dir, ignore_errors=True)


@contextlib.contextmanager
def small_ext4(place, size="48M"):
    """A file system of its own on a file; what the directory lies in is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="hutch-ext4-") as tmp, contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, place.parent, ignore_errors=True)
        image = pathlib.Path(tmp, "image")
        subprocess.run(["truncate", "-s", size, image], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, place], check=True)
        stack.callback(subprocess.run, ["umount", "-l", place], check=True)
        yield


def test_front_comes_back_on_a_full_disk():
    "a front that is killed on a full disk comes back: it shows, kills and removes, refuses the rest with 507, and room makes all well"
    needs_root()
    d = Daemon()
    d.state.mkdir(mode=0o700)
    with small_ext4(d.state):
        with d:
            api, front = Api(d.port, d.key), d.state / "front"
            boxes = [api.create() for _ in range(8)]
            check_equal(ask(d, "PUT", "/v1/secrets/token", {"value": "v"}).status, 200)
            key = ask(d, "POST", "/v1/keys", {"tenant": "default", "name": "k", "scopes": ["read"]}).json
            for _ in range(2):
                fill(d.state / "filler")
                hit(d, "front")
                check_equal(patiently(api.list), {b.id for b in boxes})
                check_equal(patiently(lambda: boxes[-1].run("echo still")[1]), b"still\n")
                for method, path, body in (("POST", "/sandboxes", {"templateID": "host"}), ("PUT", "/v1/secrets/other", {"value": "v"}),
                                           ("POST", "/v1/keys", {"tenant": "default", "name": "other", "scopes": ["read"]}), ("POST", "/v1/tenants", {"id": "acme"}),
                                           ("PUT", f"/v1/sandboxes/{boxes[-1].id}/ports", {"publicPorts": [8080]})):
                    a = ask(d, method, path, body)
                    check_equal((path, a.status, a.json.get("error_code")), (path, 507, "disk_full"), a)
                gone = boxes.pop(0)
                check_equal(ask(d, "DELETE", f"/sandboxes/{gone.id}").status, 204)
                check_equal(api.list(), {b.id for b in boxes})
            check_equal(ask(d, "DELETE", "/v1/secrets/token").status, 204)
            check_equal(ask(d, "DELETE", f"/v1/keys/{key['id']}").status, 204)
            hit(d, "front")
            check_equal(patiently(lambda: ask(d, "GET", "/v1/secrets/token")).status, 404, "it came back")
            check_equal(patiently(api.list), {b.id for b in boxes})
            (d.state / "filler").unlink()
            boxes.append(patiently(api.create))
            check_equal(ask(d, "PUT", "/v1/secrets/token", {"value": "v"}).status, 200)
            check((front / "store.reserve").stat().st_blocks * 512 >= 4 << 20, "the reserve was not made again")
            hit(d, "front")
            check_equal(patiently(api.list), {b.id for b in boxes})
            d.stop()


def test_descriptors_run_out():
    "front with 64 descriptors and 55 clients: what fails, fails cleanly, and when they leave everything works"
    needs_root()
    with node() as (d, api):
        box, front = api.create(), d.children("front")[0]
        uid = os.stat(f"/proc/{front}").st_uid  # root may lack CAP_SYS_RESOURCE; the same user may do it
        subprocess.run(["/usr/bin/prlimit", f"--pid={front}", "--nofile=64:64"], user=uid, group=uid, extra_groups=[],
                       check=True)
        streams, failed = [], collections.Counter()
        idle = [api.connect(2) for _ in range(15)]
        for c in idle:
            with contextlib.suppress(OSError):
                c.connect()
        for _ in range(40):
            try:
                streams.append(box.start("sleep 30", timeout=0.3))
            except WireError as e:
                failed[e.status] += 1
            except BROKEN as e:
                failed[type(e).__name__] += 1
        print(f"        {len(streams)} streams, failed: {dict(failed)}", flush=True)
        check(failed, "nothing ran out")
        check_equal({s for s in failed if isinstance(s, int) and s not in (429, 500, 502, 503)}, set())
        for c in [*idle, *streams]:
            c.close()
        check_equal(patiently(lambda: box.run("echo well", timeout=20)[1]), b"well\n")
        patiently(lambda: api.create(timeout=20))
        check_equal(d.children("front"), [front], "front did not die of it")


def test_memory_of_a_command():
    "a command that takes too much memory ends with cause oom, and its sandbox lives on"
    needs_root()
    with node(config="sandboxes: {memory: 64MiB}") as (_, api):
        box = api.create()
        s = box.start("exec python3 -c 'x = bytearray(300 << 20)'").read_all()
        check_equal((s.end["exited"], s.end["death"]["cause"]), (False, "oom"), s.end)
        check_equal(box.run("echo well")[1], b"well\n")
        s = box.start("head -c 200M /dev/zero | tail -c 200M | wc -c; exit 5").read_all()
        check_equal(s.end["exitCode"], 5, s.end)
        check_equal(s.end["death"]["cause"], "oom", "a grandchild of the shell was killed; the shell went on")


def test_memory_of_a_sandbox():
    "a sandbox whose files fill its whole memory stays answerable, or dies with cause oom; its neighbour notices nothing"
    needs_root()
    with node(config="sandboxes: {memory: 64MiB, disk: 1GiB}") as (d, api):
        box, other = api.create(), api.create()
        for i in range(4):
            with contextlib.suppress(WireError, *BROKEN):
                box.start(f"cat /dev/zero > /tmp/fill{i}", timeout=10).read_all()
            check_equal(other.run("echo well")[1], b"well\n")
        said = ""
        try:
            s = box.start("echo well").read_all()
            said = f"{s.end}"
            lived = s.out == b"well\n" or s.end["death"]["cause"] == "oom"
        except (WireError, *BROKEN) as e:  # its init was the one that was killed, perhaps just now
            said, lived = f"{type(e).__name__}: {e}", False
        if lived:
            print(f"        the sandbox lived on; {s.end['status']}", flush=True)
            check(box.kill())
        else:
            eventually(lambda: box.id not in api.list(), 10, f"neither well nor dead: {said}")
            def died():
                text = api.ask("GET", f"/v1/sandboxes/{box.id}/events")[1].decode()
                return [line for line in text.splitlines() if '"type":"died"' in line]
            print(f"        the sandbox died; {said}", flush=True)
            eventually(died, 10, "its death is an event")
            died = died()
            check_equal(len(died), 1)
            check_in("out_of_memory", died[0])
        check_equal(other.run("echo well")[1], b"well\n")
