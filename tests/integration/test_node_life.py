"""The life of sandboxes and of the node: deadlines, stops and starts, big files, slow readers, many sandboxes."""
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import signal
import sqlite3
import threading
import time

from e2bwire import WireError
from hutch_test import PATIENCE, SOAK, check, check_equal, check_in, eventually
from node import Traces, hit, needs_root, node, patiently
from node_client import ask, patient

MIB = 1 << 20


def rss(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Peak:
    """The largest resident size of a process while the block runs, over what it was before."""

    def __init__(self, pid):
        self.pid, self.before, self.most, self.stop = pid, rss(pid), 0, threading.Event()

    def _look(self):
        while not self.stop.wait(0.02):
            self.most = max(self.most, rss(self.pid))

    def __enter__(self):
        self.thread = threading.Thread(target=self._look)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    @property
    def growth(self):
        return self.most - self.before


# --- deadlines, stops and starts --------------------------------------------------------------------------------------

def test_deadlines(who):
    "deadlines hold while front is stopped, across kill -9 of keeper and supervisor, and when the node was down; moved ones too"
    with node(who) as (d, api):
        traces = Traces(d, who)
        api.create()
        begun = time.monotonic()
        dies, moved = api.create(life=2), None
        for life in (2, 10, 60):  # it must be moved before it is over
            with contextlib.suppress(WireError):
                moved = api.create(life=life)
                api.ask("POST", f"/sandboxes/{moved.id}/timeout", {"timeout": 1000})
                break
        hit(d, "keeper")
        front = d.children("front")[0]
        os.kill(front, signal.SIGSTOP)
        try:
            eventually(lambda: len(traces.inits()) == 2, 8, "keeper ends it without front, although it did not make it")
            check(time.monotonic() - begun > 1.9, "it ended early")
        finally:
            os.kill(front, signal.SIGCONT)
        eventually(lambda: dies.id not in patiently(api.list), 5, "front knows")
        eventually(lambda: "timeout" in api.ask("GET", f"/v1/sandboxes/{dies.id}/events")[1].decode(), 10, "it is an event")
        late = api.create(life=1)
        hit(d, "supervisor")
        d.stop(sandboxes=False)
        time.sleep(1.2)
        d.start()
        eventually(lambda: late.id not in patiently(api.list), 5, "the deadline passed while the node was down")
        check_equal(moved.run("echo well")[1], b"well\n")


def test_cut_create_with_a_key():
    "a keyed create that was cut is not answered before keeper knows its sandbox; what never was is made anew, under the same key"
    with node() as (d, api):
        keeper, answers = d.children("keeper")[0], []

        def create():
            with contextlib.suppress(OSError, http.client.HTTPException):
                answers.append(ask(d, "POST", "/sandboxes", {"templateID": "host"}, headers={"Idempotency-Key": "once"}))

        def row_is_there():
            with contextlib.closing(sqlite3.connect(f"file:{d.state}/front/store.db?mode=ro", uri=True)) as db:
                return db.execute("SELECT count(*) FROM idem").fetchone()[0] == 1
        os.kill(keeper, signal.SIGSTOP)
        first = threading.Thread(target=create)
        first.start()
        eventually(row_is_there, 30, "its row")
        hit(d, "front")
        first.join(60)
        check_equal(answers, [], "the client of the front that was killed")
        second = threading.Thread(target=create)
        second.start()
        second.join(2)
        check(second.is_alive() or answers[0].status == 503, answers)
        hit(d, "keeper")
        second.join(60)
        answer = answers[0] if answers[0].status != 503 else patient(d, "POST", "/sandboxes", {"templateID": "host"},
                                                                     headers={"Idempotency-Key": "once"})
        check_equal(answer.status, 201, answer)
        check_equal(ask(d, "GET", f"/sandboxes/{answer.json['sandboxID']}").status, 200)


def test_restart_and_stop(who):
    "SIGTERM leaves sandboxes and commands alone, the next serve has them at once; stop --all ends every one and counts right"
    with node(who) as (d, api):
        traces, boxes = Traces(d, who), [api.create() for _ in range(5)]
        pids = [b.start(f"echo {i} > /tmp/n; sleep 100").pid for i, b in enumerate(boxes)]
        inits = traces.inits()
        check_equal(len(inits), 5)
        for _ in range(3):
            d.stop(sandboxes=False)
            check_equal(traces.inits(), inits, "SIGTERM touched a sandbox")
            d.start()
            check_equal(patiently(api.list), {b.id for b in boxes})
        for i, (b, pid) in enumerate(zip(boxes, pids)):
            check_equal(patiently(lambda: b.get("/tmp/n")), f"{i}\n".encode())  # noqa: B023
            check_in(pid, b.processes())
        d.stop(sandboxes=False)
        d.start()  # no wait: what front has not met yet is ended all the same
        check_in("5 sandboxes ended", d.cli("stop", "--all").stdout)
        check_equal(api.list(), set())
        traces.check_none()
        check_in("0 sandboxes ended", d.cli("stop", "--all").stdout)


# --- much data --------------------------------------------------------------------------------------------------------

def available():
    return int(pathlib.Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) * 1024


def test_big_file():
    "a file of 1 GiB goes up and down again unchanged, and front does not grow"
    needs_root()
    size = 1024 * MIB if available() > 6 << 30 else 512 * MIB
    with node(config="sandboxes: {disk: 2GiB, memory: 3GiB}") as (d, api):
        box, front = api.create(), d.children("front")[0]
        block, up, down = os.urandom(4 * MIB), hashlib.blake2b(), hashlib.blake2b()

        def parts():
            for i in range(size // len(block)):
                part = i.to_bytes(8, "big") + block[8:]
                up.update(part)
                yield part
        with Peak(front) as peak:
            begun = time.monotonic()
            box.put("/tmp/big", parts(), size)
            middle = time.monotonic()
            c, r = box.open("/tmp/big")
            while part := r.read(MIB):
                down.update(part)
            c.close()
        print(f"        {size // MIB} MiB: up {middle - begun:.1f} s, down {time.monotonic() - middle:.1f} s, "
              f"front grew {peak.growth >> 10} KiB", flush=True)
        check_equal(down.hexdigest(), up.hexdigest())
        check(peak.growth < 64 * MIB, f"front grew by {peak.growth} bytes")


def test_upload_is_charged():
    "an uploaded file counts as the sandbox's memory; more than it may have is 507, and the sandbox goes on; so does one left half way"
    needs_root()
    with node(config="sandboxes: {disk: 1GiB, memory: 160MiB}") as (d, api):
        box, block = api.create(), os.urandom(MIB)

        def used():
            return json.loads(api.ask("GET", "/metrics", headers=box.headers())[1])["mem_used"]

        def refused():
            try:
                box.put("/tmp/more", (block for _ in range(400)), 400 * MIB)
            except WireError as e:
                return e.status, str(e)
            return 200, ""
        lives, before = box.start("sleep 100").pid, used()
        box.put("/tmp/kept", (block for _ in range(96)), 96 * MIB)
        eventually(lambda: 95 * MIB < used() - before < 104 * MIB, 5, "96 MiB are the sandbox's")
        for _ in range(3):
            status, text = refused()
            check_equal(status, 507, text)
            check_in("memory", text)
            check_equal(box.run("ls -A /tmp; stat -c %s /tmp/kept")[1], f"kept\n{96 * MIB}\n".encode())
        check_in(lives, box.processes())
        c = api.connect(60)
        c.putrequest("POST", "/files?path=/tmp/half")
        for name, value in {"Content-Type": "application/octet-stream", "Content-Length": str(99 * MIB), **box.headers()}.items():
            c.putheader(name, value)
        c.endheaders(block * 4)
        half = lambda: box.run("stat -c %s /tmp/.hutch-upload-*; ls -A /tmp | wc -l; pgrep -c hutch-init")[1].split()  # noqa: E731
        eventually(lambda: half() == [b"%d" % (4 * MIB), b"2", b"3"], PATIENCE, "what came is written as it comes")
        c.close()
        eventually(lambda: half() == [b"1", b"1"], PATIENCE, "nothing of it stays, and none of the helpers")


def test_slow_reader():
    "clients that read a 100 MB download and endless output slowly neither slow others down nor make front grow"
    with node() as (d, api):
        box, front = api.create(), d.children("front")[0]
        box.run("head -c 100M /dev/zero > /tmp/big")

        def quick():
            begun = time.monotonic()
            check_equal(box.run("echo well")[1], b"well\n")
            return time.monotonic() - begun
        for _ in range(5):  # what others do on this machine meanwhile may slow it down, too
            alone = sorted(quick() for _ in range(20))
            with Peak(front) as peak:
                slow = [box.open("/tmp/big") for _ in range(4)]
                streams = [box.start("cat /dev/zero") for _ in range(4)]
                for _, r in slow:
                    r.read(1000)
                beside = sorted(quick() for _ in range(40))
                for s in streams:
                    s.close()
                for c, _ in slow:
                    c.close()
            print(f"        median {alone[10] * 1000:.0f} ms alone, {beside[20] * 1000:.0f} ms beside; "
                  f"front grew {peak.growth >> 10} KiB", flush=True)
            check(peak.growth < 32 * MIB, f"front grew by {peak.growth} bytes")
            if beside[20] < alone[10] * 5 + 0.1:
                break
        check(beside[20] < alone[10] * 5 + 0.1, f"{alone[10]} {beside[20]}")


def test_many_idle():
    "200 idle sandboxes cost front no descriptor and keeper no more than a pidfd each"
    needs_root()
    n = 1000 if SOAK else 200
    with node(config=f"sandboxes: {{max: {n + 10}}}") as (d, api):
        api.create()
        front, keeper = d.children("front")[0], d.children("keeper")[0]
        before = {p: (descriptors(p), rss(p)) for p in (front, keeper)}
        begun = time.monotonic()
        boxes = [api.create() for _ in range(n)]
        made = time.monotonic() - begun
        eventually(lambda: descriptors(front) <= before[front][0] + 2, 20, f"front holds {descriptors(front)} descriptors")
        for name, p in (("front", front), ("keeper", keeper)):
            print(f"        {name}: {descriptors(p) - before[p][0]} descriptors and {(rss(p) - before[p][1]) >> 10} KiB more "
                  f"for {n} sandboxes", flush=True)
        print(f"        created in {made:.1f} s", flush=True)
        eventually(lambda: descriptors(keeper) <= before[keeper][0] + n + 2, 20, f"keeper holds {descriptors(keeper)} descriptors")
        check_equal(boxes[0].run("echo well")[1] + boxes[-1].run("echo well")[1], b"well\nwell\n")
        begun = time.monotonic()
        check_in(f"{n + 1} sandboxes ended", d.cli("stop", "--all").stdout)
        print(f"        ended in {time.monotonic() - begun:.1f} s", flush=True)
        Traces(d, "root").check_none()


def test_explained_refusals(who):
    "a refused call is named in the end of its command and in the sandbox's events, with the reason; the others are not blamed"
    for privilege in ("computer", "strict"):
        with node(who, config=f"sandboxes:\n  privilege: {privilege}\n") as (_, api):
            box = api.create()
            end = box.start("unshare -U true; unshare -U true; python3 -c 'import ctypes; ctypes.CDLL(None).syscall(165, 0, 0)'"
                            ).read_all().end
            told = {d["subject"]: d for d in end.get("denials", [])}
            check_equal(told["unshare"]["count"], 2)
            check_equal(told["unshare"]["errno"], "EPERM")
            check_in("namespace", told["unshare"]["reason"])
            check_equal(told["mount"]["errno"], "EPERM")
            check("denials" not in box.start("true").read_all().end, "a command that was refused nothing")
            eventually(lambda: "mount" in api.ask("GET", f"/v1/sandboxes/{box.id}/events?follow=false")[1].decode(), 10, "it is an event")  # noqa: B023
            box.kill()


def test_command_timeout(who):
    "a command's timeout is kept although its client left and front was killed"
    with node(who) as (d, api):
        box = api.create()
        s = box.start("sleep 300", deadline_ms=2000)
        s.close()
        hit(d, "front")
        eventually(lambda: not patiently(box.processes), 8, "the end of the command")


def test_info_is_whole():
    "hutch info prints values to their last letter"
    with node("root" if os.geteuid() == 0 else "user") as (d, _):
        long = "m" * 3000 + "-end"
        box = d.cli("create", "-m", f"note={long}", "host").stdout.strip()
        shown = d.cli("info", box).stdout
        check_in(long, shown)
        check("..." not in shown, shown)


def test_https_ports():
    "a service inside that speaks TLS itself is reached when its port is listed in httpsPorts"
    with node() as (d, api):
        box = api.create(network={"httpsPorts": [8443]})
        check_equal(box.run("openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 1 -subj /CN=inside")[0], 0)
        box.put("/home/user/s.py", b"""
import http.server, ssl
for_all = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
for_all.load_cert_chain('c.pem', 'k.pem')
s = http.server.HTTPServer(('127.0.0.1', 8443), http.server.SimpleHTTPRequestHandler)
s.socket = for_all.wrap_socket(s.socket, server_side=True)
s.serve_forever()
""")
        box.put("/home/user/hello.txt", b"over TLS")
        box.start("cd /home/user && exec python3 s.py").close()

        def fetch():
            c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=60)
            c.request("GET", "/hello.txt", headers={"Host": f"8443-{box.id}.{d.domain}"})
            r = c.getresponse()
            return r.status, r.read()
        eventually(lambda: fetch() == (200, b"over TLS"), 10, "the page")
