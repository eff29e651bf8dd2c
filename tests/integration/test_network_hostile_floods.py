"""A sandbox that uses everything up: connections, handshakes, heads, bodies, names, refusals. Its neighbour is served all the while, the
process in between keeps its memory and descriptors, and the sandbox itself is served again afterwards."""
import contextlib
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

from hutch_test import SOAK, check, check_equal, check_in, eventually, skip
from internet import at
from netattack import allow, box, denials, inside, node, status
from node import Traces
from node_client import ask, sh

MB = 1024  # of what /proc counts in


class Neighbour:
    """Asks all the time; a second sandbox on the same node."""

    def __init__(self, d):
        self.d, self.box, self.codes, self.stop = d, box(d, allow("www.test")), [], threading.Event()
        self.peak = {"VmRSS": 0, "fds": 0}
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.is_set():
            self.codes.append(sh(self.d, self.box, "curl -sS --max-time 90 -o /dev/null -w '%{http_code}' https://www.test/").text)
            with contextlib.suppress(OSError, IndexError):
                now = status(self.d.children("egress")[0])
                self.peak = {k: max(v, now[k]) for k, v in self.peak.items()}
            self.stop.wait(0.05)

    def __enter__(self):
        self.pid, self.before = self.d.children("egress")[0], status(self.d.children("egress")[0])
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def check(self, memory, fds):
        """Was served, by the same process, which never had more than that."""
        so_far = len(self.codes)
        eventually(lambda: len(self.codes) >= so_far + 3, 120, "the neighbour is served")
        self.__exit__()
        check_equal(set(self.codes), {"200"}, "the neighbour")
        check_equal(self.d.children("egress"), [self.pid], "egress died")
        now = status(self.pid)
        check(now["VmHWM"] - self.before["VmHWM"] < memory, f"memory: {self.before} then {now}, peak {self.peak}")
        check(self.peak["fds"] < self.before["fds"] + fds, f"descriptors: {self.before} then {now}, peak {self.peak}")
        check(self.d.alive(), "front")


def ended(d, b, before):
    """When the attack is over its descriptors are given back, and the sandbox is served."""
    eventually(lambda: sh(d, b, "curl -sS --max-time 10 -o /dev/null -w '%{http_code}' https://api.test/after").text == "200", 120, "it is served again")
    pid = d.children("egress")[0]
    eventually(lambda: status(pid)["fds"] <= before["fds"] + 40, 45, f"descriptors are given back: {before} {status(pid)}")


def test_connections():
    "ten thousand connections, idle and half-open, at the proxy, at names and at addresses: so many are held as the limit says"
    with node() as (net, d):
        b = box(d, {**allow("api.test"), "limits": {"connections": 200, "new_conn_per_s": 5000}})
        before = status(d.children("egress")[0])
        with Neighbour(d) as n:
            got = inside(d, b, """
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE); resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held, made, failed = [], 0, 0
targets = [(GATE, 3128), (GATE, 1080), ("api.test", 443), ("api.test", 80), ("1.2.3.4", 443), (GATE, 80), ("198.18.0.77", 443)]
starts = [b"", b"\\x16\\3\\1\\2\\0", b"GET / HT", b"CONNECT api.t", b"\\5\\1", b"\\5", b"POST /x HTTP/1.1\\r\\nHost: api.test\\r\\nContent-Length: 99\\r\\n\\r\\nx"]
for i in range(10000):
    s = socket.socket(); s.setblocking(False)
    try:
        s.connect(targets[i % 7] if targets[i % 7][0] != "api.test" else (socket.gethostbyname("api.test"), targets[i % 7][1]))
    except BlockingIOError: pass
    except OSError: failed += 1
    made += 1
    try: s.send(starts[i % 7])
    except OSError: pass
    held.append(s)
    if len(held) > 900: held.pop(0).close()
    if i % 500 == 0: time.sleep(0.05)
say([made, failed])""", timeout=400)
            check_equal(got[0], 10000)
            n.check(memory=30 * MB, fds=230)
        ended(d, b, before)


def test_slow():
    "hellos, heads, proxies and bodies that come a byte at a time are cut off, and hold nothing meanwhile but their connection"
    if not SOAK:
        skip("takes a quarter of a minute; `make soak` runs it")
    with node() as (net, d):
        b = box(d, {**allow("api.test"), "limits": {"connections": 256, "new_conn_per_s": 1000}})
        before = status(d.children("egress")[0])
        with Neighbour(d) as n:
            got = inside(d, b, """
hello = record(hello_bytes("api.test"))
kinds = {"hello": (443, hello), "head": (80, b"GET / HTTP/1.1\\r\\nHost: api.test\\r\\nX-Slow: " + b"a" * 500), "connect": (3128, b"CONNECT api.test:443 HTTP/1.1\\r\\nHost: api.test:443\\r\\nX: " + b"a" * 500), "socks": (1080, b"\\5\\1\\0"), "nothing": (443, b"")}
conns, at = [], socket.gethostbyname("api.test")
for name, (port, data) in kinds.items():
    for _ in range(45):
        s = socket.create_connection((GATE if port in (3128, 1080) else at, port)); s.setblocking(False)
        conns.append([name, s, data, 0])
ends = {}
stop = time.monotonic() + 40
while conns and time.monotonic() < stop:
    for c in list(conns):
        name, s, data, at = c
        gone = False
        try:
            if at < len(data): s.send(data[at:at + 1]); c[3] += 1
            if name != "socks" and not s.recv(4096): gone = True
            elif name == "socks" and not (s.recv(4096) if at else b"x"): gone = True
        except BlockingIOError: pass
        except OSError: gone = True
        if gone:
            conns.remove(c); ends[name] = ends.get(name, 0) + 1
    time.sleep(0.4)
say([ends, len(conns)])""", timeout=120)
            n.check(memory=30 * MB, fds=280)
        check_equal(got[0], {"hello": 45, "head": 45, "connect": 45, "socks": 45, "nothing": 45}, got)
        ended(d, b, before)


def test_names():
    "five thousand names, allowed and denied, at once: none is asked for outside, few are kept, and the one that matters still works"
    with node() as (net, d):
        b = box(d, {**allow("api.test", "*.wild.test"), "limits": {"new_conn_per_s": 1000}})
        with Neighbour(d) as n:
            net.names.asked.clear()
            got = inside(d, b, """
import select
s = socket.socket(2, 2); s.connect((GATE, 53)); s.setblocking(False)
codes, lost, began = {}, 0, time.monotonic()
def drain():
    while True:
        try: a = s.recv(600)
        except OSError: return
        codes[a[3] & 15] = codes.get(a[3] & 15, 0) + 1
def q(name):
    try: s.send(b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + b"".join(bytes([len(x)]) + x for x in name.encode().split(b".")) + b"\\0\\0\\1\\0\\1")
    except OSError: time.sleep(0.01)
for i in range(5000):
    q("n%d.%s" % (i, "wild.test" if i % 2 else "evil%d.example" % i)); drain()
    while i - lost - sum(codes.values()) > 100:  # more than that no socket holds: whoever is slow would throw them away
        if select.select([s], [], [], 0.5)[0]: drain()
        else: lost = i - sum(codes.values())
time.sleep(0.5); drain()
took, slow = time.monotonic() - began, 0
for i in range(300):  # slowly enough to be answered: the table of names turns over
    slow += dns("m%d.wild.test" % i)[0] == 0; time.sleep(0.011)
say([codes, slow, took])""", timeout=300)
            # A hundred at once and a hundred in each second are answered, the others told to be patient.
            check(sum(got[0].values()) > 3000 and got[0].get("0", 0) < 400 + 120 * got[2] and got[1] > 200, got)
            check_equal([x for x in net.names.asked if x not in ("www.test", "api.test")], [])
            n.check(memory=20 * MB, fds=60)
        check_equal(sh(d, b, "curl -sS -o /dev/null -w '%{http_code}' https://api.test/").text, "200")


def test_names_as_messages():
    "names under a wildcard are few a minute: what a sandbox would say in them never reaches the name server"
    with node() as (net, d):
        b = box(d, {**allow("*.wild.test", "api.test"), "limits": {"new_names_per_min": 5, "new_conn_per_s": 1000}})
        net.names.asked.clear()
        got = inside(d, b, """
codes, reasons, began = {}, set(), time.monotonic()
for i in range(40):
    s = dial(socket.gethostbyname("m%d.wild.test" % i), 80)
    s.sendall(b"GET / HTTP/1.1\\r\\nHost: m%d.wild.test\\r\\nConnection: close\\r\\n\\r\\n" % i)
    data = b""
    while True:
        try: more = s.recv(4096)
        except OSError: break
        if not more: break
        data += more
    s.close()
    code = data.split(b" ")[1].decode(); codes[code] = codes.get(code, 0) + 1
    reasons |= set(re.findall(r'"reason": ?"([a-z_]+)"', data.decode("latin1")))
say([codes, sorted(reasons), time.monotonic() - began])""", timeout=300)
        outside = {x for x in net.names.asked if x.endswith(".wild.test")}
        check(1 <= len(outside) <= 8 + got[2] / 12 and len(outside) + got[0].get("429", 0) == 40, (got, outside))
        check_in("too_many_new_names", got[1], got)
        mine = [x for x in denials(d, b) if x["reason"] == "too_many_new_names"]
        check(mine and all(x["host"] not in outside for x in mine), mine)
        check_equal(sh(d, b, "curl -sS -o /dev/null -w '%{http_code}' https://api.test/").text, "200", "a name of its own is not counted")


def test_refusals():
    "thousands of refusals a second fill no list, log or ear; the log stays whole and says what was refused"
    with node() as (net, d):
        b = box(d, {"rules": [{"id": "a", "hosts": ["api.test"], "ports": [80, 443], "http": [{"methods": ["GET"], "paths": ["/ok", "/after"]}]}],
                    "limits": {"connections": 256, "new_conn_per_s": 100000, "rps": 100000, "burst": 100000}})
        front = d.children("front")[0]
        front_before, before = status(front), status(d.children("egress")[0])
        with Neighbour(d) as n:
            got = inside(d, b, """
began, refused, at = time.monotonic(), 0, socket.gethostbyname("api.test")
while time.monotonic() - began < 4 or (refused <= 1000 and time.monotonic() - began < 60):
    s = dial(at, 80)
    for i in range(0, 700, 100):
        s.sendall(b"".join(get("/no/%d" % k).replace(b"Connection: close\\r\\n", b"") for k in range(i, i + 100)))
        got = b""
        while got.count(b"HTTP/1.1 403 ") < 100:
            piece = s.recv(65536)
            if not piece: break
            got += piece
        refused += got.count(b"HTTP/1.1 403 ")
    s.close()
same = 0
for _ in range(200):
    same += http(get("/same"), port=80, to=at).status == 403
say([refused, same, time.monotonic() - began])""", timeout=300)
            check(got[0] > 1000 and got[1] == 200, f"too few refusals for a test: {got}")
            n.check(memory=30 * MB, fds=100)
        check(len(denials(d, b)) <= 256, "the list is bounded")
        check(status(front)["VmHWM"] - front_before["VmHWM"] < 60 * MB, (front_before, status(front)))
        size = sum(p.stat().st_size for p in (d.state / "audit").rglob("*") if p.is_file())
        check(size < 2000 * (got[0] + 1000), f"{size} bytes of audit for {got[0]} refusals")
        check_equal(d.cli("audit", "verify").returncode, 0)
        check_equal(ask(d, "GET", f"/v1/sandboxes/{b['sandboxID']}/events?follow=false").status, 200)
        check_equal([r["path"] for r in net.seen("api.test")], [])
        ended(d, b, before)


def test_heads():
    "heads that are too long, have too many fields or never end are refused with what they are, and cost nobody memory"
    with node() as (net, d):
        b = box(d, {**allow("api.test"), "limits": {"new_conn_per_s": 1000}})
        with Neighbour(d) as n:
            got = inside(d, b, """
def big(kind, port):
    s = dial("api.test", port)
    if port == 443: s = tls(s)
    s.sendall(b"GET / HTTP/1.1\\r\\nHost: api.test\\r\\n"); sent = 0
    piece = {"one": b"a" * 65536, "many": b"X-Field-%d: yyyyyyyyyyyyyyyyyyyyyy\\r\\n" * 1500, "line": b"a" * 65536}[kind]
    if kind == "one": s.sendall(b"X: ")
    try:
        for i in range(300):
            s.sendall(piece if kind != "many" else b"".join(b"X-Field-%d: yyyyyyyyyyyyyyyyyy\\r\\n" % j for j in range(1500))); sent += len(piece)
    except OSError: pass
    return [Http(read_all(s, 20)).status, sent]
def line():
    s = dial("api.test", 80); s.sendall(b"GET /"); sent = 0
    try:
        for _ in range(300): s.sendall(b"a" * 65536); sent += 65536
    except OSError: pass
    return [Http(read_all(s, 20)).status, sent]
out = {}
for kind in ("one", "many"):
    for port in (80, 443): out[kind + " %d" % port] = [big(kind, port) for _ in range(8)]
out["line"] = [line() for _ in range(8)]
out["ok"] = http(b"GET / HTTP/1.1\\r\\nHost: api.test\\r\\nConnection: close\\r\\nX: " + b"a" * 30000 + b"\\r\\n\\r\\n").status
say(out)""", timeout=400)
            n.check(memory=20 * MB, fds=100)
        check_equal(got.pop("ok"), 200)
        for name, tries in got.items():
            for code, sent in tries:
                check(code in (431, 414, 400, 0) and sent < 12 << 20, (name, tries))
            check(any(code in (431, 414) for code, _ in tries), (name, tries, "nobody was told"))


def test_bodies():
    "bodies without end, toward a server that does not read and from one to a client that does not, are held back, not piled up"
    if not SOAK:
        skip("takes a quarter of a minute; `make soak` runs it")
    sending = []

    def endless(s, log):
        s.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece, total = b"10000\r\n" + b"x" * 65536 + b"\r\n", [0]
        sending.append(total)
        while total[0] < 1 << 30:
            s.sendall(piece)
            total[0] += 65536
        return False

    def deaf(s, log):
        time.sleep(15)
        return False
    with node() as (net, d):
        net.start_raw("endless.test", at(50), endless)
        net.start_raw("deaf.test", at(51), deaf)
        b = box(d, {**allow("api.test", "endless.test", "deaf.test"), "limits": {"connections": 256, "new_conn_per_s": 1000}})
        before = status(d.children("egress")[0])
        with Neighbour(d) as n:
            got = inside(d, b, """
down, up, there, deaf = [], [], socket.gethostbyname("endless.test"), socket.gethostbyname("deaf.test")
for i in range(60):
    s = dial(there, 80); s.setsockopt(1, 8, 65536); s.sendall(b"GET / HTTP/1.1\\r\\nHost: endless.test\\r\\n\\r\\n"); down.append(s)
for i in range(60):
    s = dial(deaf, 80); s.sendall(b"POST / HTTP/1.1\\r\\nHost: deaf.test\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n"); s.setblocking(False); up.append([s, 0])
stop = time.monotonic() + 10
piece = b"4000\\r\\n" + b"y" * 16384 + b"\\r\\n"
while time.monotonic() < stop:
    moved = False
    for c in up:
        try:
            c[1] += c[0].send(piece[c[1] % len(piece):]); moved = True
        except BlockingIOError: pass
        except OSError: c[1] += 0
    if not moved: time.sleep(0.05)
for s in down: s.settimeout(5)
first = sum(bool(s.recv(10)) for s in down)
say([first, max(c[1] for c in up), sum(c[1] for c in up)])""", timeout=100)
            check_equal(got[0], 60, "every download began")
            check(all(t[0] < 64 << 20 for t in sending), f"downloads nobody reads went on: {[t[0] for t in sending]}")
            check(got[1] < 64 << 20, f"an upload nobody reads went on: {got}")
            n.check(memory=100 * MB, fds=300)
        ended(d, b, before)
        # The control: read, the same server's bytes come in any amount.
        out = sh(d, b, "curl -sS --max-time 20 -N http://endless.test/ 2>/dev/null | head -c 100000000 | wc -c").text
        check_equal(out.strip(), "100000000")


def test_quota_and_rates():
    "bytes, requests and connections over the document's limits are refused with the limit's name, and only for that sandbox"
    with node() as (net, d):
        b = box(d, {**allow("api.test"), "limits": {"bytes_out": "200K", "rps": 2, "burst": 30, "connections": 8}})
        with Neighbour(d) as n:
            got = inside(d, b, """
h = H2()
for i in range(80): h.request(2 * i + 1, "api.test", "/r")
h.pump([2 * i + 1 for i in range(80)], 60)
codes = {}
for k, v in h.streams.items():
    if k: codes[v["status"]] = codes.get(v["status"], 0) + 1
reasons = set(re.findall(r'"reason": ?"([a-z_]+)"', "".join(v["body"].decode("latin1") for v in h.streams.values())))
h.s.close()
time.sleep(2)
held, reset, at = [], 0, socket.gethostbyname("api.test")
for _ in range(12):
    try: held.append(dial(at, 80))
    except OSError: reset += 1
stop = time.monotonic() + 60
while reset < 4 and time.monotonic() < stop:
    for s in list(held):
        s.settimeout(0.1)
        try: ended = s.recv(1) == b""
        except TimeoutError: ended = False
        except OSError: ended = True
        if ended: reset += 1; held.remove(s); s.close()
for s in held: s.close()
while http(get("/free")).status != 200 and time.monotonic() < stop + 60: time.sleep(0.2)  # their places are free, and a request may go
time.sleep(4)  # so may the next eight
body = b"x" * 60000
sizes = [list(http(get("/q", more=b"Content-Length: %d\\r\\n" % len(body), method=b"POST") + body)) for _ in range(6)]
say([codes, sorted(reasons), reset, sizes])""", timeout=300)
            n.check(memory=30 * MB, fds=200)
        check(got[0].get("200", 0) >= 20 and got[0].get("429", 0) >= 20 and got[1] == ["rate_limited"], got)
        check(3 <= got[2] <= 12, got)
        check_equal(got[3][0], [200, ""], got)
        check_equal(got[3][-1][1], "quota_bytes", got)
        check({"rate_limited", "too_many_connections", "quota_bytes"} <= {x["reason"] for x in denials(d, b)}, [x["reason"] for x in denials(d, b)])


def test_upstream_limits():
    "one sandbox cannot make the node open more connections to the world than it may have itself, nor keep them after it is gone"
    with node() as (net, d):
        slow = net.start_raw("slow.test", at(52), lambda s, log: time.sleep(8))
        b = box(d, {**allow("slow.test", "api.test"), "limits": {"connections": 64, "new_conn_per_s": 1000, "rps": 5000, "burst": 5000}})
        with Neighbour(d) as n:
            inside(d, b, """
conns = []
for i in range(20):
    s = dial(GATE, 3128); conns.append(s)
    s.sendall(b"GET http://slow.test/%d HTTP/1.1\\r\\nHost: slow.test\\r\\n\\r\\n" % i * 60)
hs = [H2("api.test") for _ in range(8)]
for h in hs:
    for i in range(120): h.request(2 * i + 1, "api.test", "/slow/3")
time.sleep(5)
say(0)""", timeout=180)
            n.check(memory=80 * MB, fds=700)
            check(len(slow.logs) <= 600, len(slow.logs))
        check_equal(ask(d, "DELETE", f"/sandboxes/{b['sandboxID']}").status, 204)
        pid = d.children("egress")[0]
        eventually(lambda: status(pid)["fds"] <= n.before["fds"] + 40, 30, "everything of it is closed")
        with socket.create_connection((at(1), 80)) as s:  # the server itself is well
            s.sendall(b"GET / HTTP/1.0\r\n\r\n")
            check(re.match(rb"HTTP/1.1 200", s.recv(200)), "the server")


TAKEN_OVER = """
import ctypes, fcntl, os, socket, sys
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
pidfd = libc.syscall(434, pid, 0)
for name in os.listdir(f"/proc/{pid}/fd"):
    fd = libc.syscall(438, pidfd, int(name), 0)
    try:
        s = socket.socket(fileno=fd)
        if s.family in (socket.AF_INET, socket.AF_INET6) and s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            break
    except OSError:
        pass
else:
    sys.exit("init has no listener")
print("ready", flush=True)
if os.fork() == 0:  # takes what egress is woken up for
    libc.prctl(1, 9, 0, 0, 0)  # ends with its parent
    while True:
        try:
            os.close(s._accept()[0])
        except OSError:
            pass
while True:
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
"""


def test_listener_made_blocking():
    "an init that was taken over makes its listener blocking and takes the connections itself: it loses its network, and its neighbour is served"
    with node() as (net, d):
        table = Traces(d, "root")
        others = table.inits()
        b = box(d, allow("api.test"))
        init = (table.inits() - others).pop()
        with Neighbour(d) as n:
            attacker = subprocess.Popen([sys.executable, "-c", TAKEN_OVER, str(init)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                check_equal(attacker.stdout.readline(), "ready\n")

                def dropped():
                    sh(d, b, "for i in $(seq 40); do curl -s --max-time 2 http://api.test/ >/dev/null & done; wait", timeout=180)
                    return "made blocking from inside" in d.log_path.read_text(errors="replace")
                eventually(dropped, 120, "the attack succeeds")
            finally:
                attacker.kill()
                attacker.wait()
            n.check(64 * MB, 200)
