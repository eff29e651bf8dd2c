"""What tests of a hostile sandbox share: the internet, a node and a sandbox on it; attacks that run inside; what may not be heard outside."""
import contextlib
import json
import pathlib
import socket
import threading

from daemon import Daemon
from hutch_test import Failed, check_equal
from internet import NETWORK, Internet
from node_client import patient, py

ATTACKER = pathlib.Path(__file__).with_name("attacker.py").read_text()
LOOKED_INTO = [{"methods": ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"]}]


@contextlib.contextmanager
def node(config=""):
    """An internet and a node on it, of one test alone; others take shared_world()."""
    with Internet() as net, Daemon(config=net.config() + config) as d:
        yield net, d


def allow(*hosts, **more):
    """A document that allows these hosts, looked into."""
    return {"rules": [{"id": "ok", "hosts": list(hosts), "ports": [80, 443], "http": LOOKED_INTO, **more}]}


def box(d, doc=None, **more):
    """A sandbox with this network document."""
    a = patient(d, "POST", "/v1/sandboxes", {"template": "host", "network": allow("api.test") if doc is None else doc, **more})
    check_equal(a.status, 201, a)
    return a.json


def inside(d, b, code, timeout=180, **more):
    """Runs code behind the attacker's text in the sandbox; the JSON value that it printed last. NETWORK + ".1" is api.test's address."""
    r = py(d, b, f"{ATTACKER}\nNETWORK = {NETWORK!r}\n{code}", timeout=timeout, **more)
    try:
        return json.loads(r.text.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise Failed(f"the attack printed no result: code {r.code}, error {r.error}, {r.text[-300:]!r}\n{r.err.decode(errors='replace')[-1500:]}") from None


def network(d, b, doc):
    a = patient(d, "PUT", f"/v1/sandboxes/{b['sandboxID']}/network", doc)
    check_equal(a.status, 200, a)


def denials(d, b):
    """The refusals that the node tells about, newest last."""
    return patient(d, "GET", f"/v1/sandboxes/{b['sandboxID']}/network/denials").json["denials"]


class Canary:
    """A listener on the host that must hear nothing: TCP and UDP on these addresses, one port."""

    def __init__(self, *addresses, port=0):
        self.heard, self.socks = [], []
        self.port = port
        for a in addresses:
            family = socket.AF_INET6 if ":" in a else socket.AF_INET
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                s = socket.socket(family, kind)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                s.bind((a, self.port))
                self.port = self.port or s.getsockname()[1]
                if kind == socket.SOCK_STREAM:
                    s.listen(64)
                self.socks.append((s, kind, a))

    def listen(self, s, kind, a):
        while True:
            try:
                if kind == socket.SOCK_STREAM:
                    c, peer = s.accept()
                    self.heard.append((a, "tcp", peer))
                    c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\ncanary")
                    c.close()
                else:
                    _, peer = s.recvfrom(2048)
                    if not peer:  # shut down
                        return
                    self.heard.append((a, "udp", peer))
                    s.sendto(b"canary", peer)
            except OSError:
                return

    def __enter__(self):
        for one in self.socks:
            threading.Thread(target=self.listen, args=one, daemon=True).start()
        return self

    def __exit__(self, *_):
        for s, _, _ in self.socks:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()

    def control(self):
        """It hears what is said to it from the host; then forgets that."""
        for s, kind, a in self.socks:
            with socket.socket(s.family, kind) as c:
                c.settimeout(60)
                c.connect((a, self.port))
                c.send(b"x")
                if b"canary" not in c.recv(200):
                    raise Failed("the canary is deaf")
        self.heard.clear()


def own_address():
    """An address of this machine that is not loopback; None if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))
            a = s.getsockname()[0]
        except OSError:
            return None
    return None if a.startswith("127.") else a


def status(pid):
    """/proc/PID/status: kilobytes of VmRSS and VmHWM, threads; and open descriptors."""
    import os
    out = {}
    for line in open(f"/proc/{pid}/status"):
        key, _, value = line.partition(":")
        if key in ("VmRSS", "VmHWM", "VmLck", "Threads"):
            out[key] = int(value.split()[0])
    out["fds"] = len(os.listdir(f"/proc/{pid}/fd"))
    return out
