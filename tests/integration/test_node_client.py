"""A hostile client: what the node answers to requests that nobody should send, and that it goes on serving the others."""
import base64
import concurrent.futures
import contextlib
import hashlib
import http.client
import json
import re
import socket
import ssl
import struct
import time

from daemon import Daemon
from hutch_test import check, check_equal, check_in, eventually
from node_client import (ENVD, ask, call, create, get, memory, open_stream, patient, put, py, query, raw, run, sh, start, to_box)
from shared import shared_node

UNKNOWN = "a" * 26


def key_of(d, tenant, scopes=("sandboxes",), **more):
    a = ask(d, "POST", "/v1/keys", {"tenant": tenant, "name": "test", "scopes": list(scopes), **more})
    check_equal(a.status, 201, a)
    return a.json["key"]


def tenant(d, name, **quota):
    a = ask(d, "POST", "/v1/tenants", {"id": name, "name": name, "quota": quota})
    check(a.status in (200, 201), a)


def alive(d):
    check_equal(ask(d, "GET", "/health", key="").status, 204, "the node still serves")


def same_fronts(d, before):
    check_equal(d.children("front"), before, "front died:\n" + d.log())


# ---- files ----

TRAPS = r"""cd /home/user; ln -s /etc/passwd out; ln -s loop2 loop1; ln -s loop1 loop2; mkfifo fifo; ln -s /proc/self/root magic
ln -s /dev/zero zero; ln -s /proc/self/fd/3 fd3; ln -s /dev/tty tty; ln -s /proc/1/root/etc/passwd p1; ln -s /proc/1/environ env1
mkdir dir; truncate -s 1T hole; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'"""


def test_paths():
    "no path of the files API leads out, through a magic link, or to something that could block; each refusal says why"
    with shared_node(config="sandboxes:\n  privilege: strict\n") as d:
        b = create(d)
        check_equal(sh(d, b, TRAPS).code, 0)
        inside = get(d, b, "/etc/passwd").body
        check(inside.count(b"\n") == 3 and b"user:x:1000:" in inside, inside)
        for path in ("../../../../../etc/passwd", "/../etc/passwd", "dir/../../../etc/passwd", "out",
                     "/tmp/./..//etc/passwd"):
            check_equal(get(d, b, path).body, inside, path)
        for path in ("%2e%2e/%2e%2e/etc/passwd", "....//etc", "~root/x", "\\..\\etc", "..%2fetc", "dir\uff0fx"):
            check_equal(get(d, b, path).status, 404, path)
        refused = {"/proc/self/root/etc/passwd": 400, "/proc/1/root/etc/passwd": 403, "/proc/1/environ": 403,
                   "/proc/1/mem": 403,
                   "/proc/self/mem": 403, "/proc/kmsg": 403, "/proc/self/fd/3": 400, "/dev/stdin": 400, "/dev/zero": 400,
                   "/dev/ptmx": 400, "/dev/tty": 400, "loop1": 400, "fifo": 400, "magic": 400, "magic/etc/passwd": 400,
                   "zero": 400,
                   "fd3": 400, "sock": 400, "tty": 400, "dir": 400, "p1": 403, "env1": 403, "/etc/shadow": 403,
                   "x" * 300: 400,
                   "y/" * 3000: 400, "a\0b": 400}
        for path, status in refused.items():
            a = get(d, b, path)
            check_equal(a.status, status, (path, a))
            check_equal(a.json["code"], status, path)
        refused = {"/etc/passwd": 403, "out": 403, "loop1": 400, "fifo": 400, "magic": 400, "magic/tmp/x": 400, "zero": 400,
                   "sock": 400, "tty": 400, "dir": 400, "/": 400, "/dev/null": 400, "/dev/ptmx": 400,
                   "/proc/self/oom_score_adj": 403,
                   "/proc/sys/kernel/core_pattern": 403, "/proc/1/comm": 403, "/proc/self/fd/3": 400, "/sys/x": 403,
                   "a\0b": 400,
                   "x" * 256: 400, "p1": 403, "/etc/hosts": 403}
        for path, status in refused.items():
            a = put(d, b, path, b"data")
            check_equal(a.status, status, (path, a))
            check("Invalid argument" not in a.json["message"], (path, a))
        fs = "filesystem.Filesystem/"
        for method, message, status in (
                ("ListDir", {"path": "magic"}, 400), ("ListDir", {"path": "/proc/1/fd"}, 403),
                ("ListDir", {"path": "fifo"}, 400),
                ("MakeDir", {"path": "magic/tmp/y"}, 400), ("MakeDir", {"path": "/proc/x"}, 404),
                ("Remove", {"path": "/"}, 400),
                ("Remove", {"path": "/proc"}, 403), ("Remove", {"path": "/etc"}, 403),
                ("Remove", {"path": "/usr/bin/env"}, 403),
                ("Move", {"source": "/etc/passwd", "destination": "/tmp/p"}, 403),
                ("Move", {"source": "magic/etc/passwd", "destination": "/tmp/p"}, 400),
                ("Move", {"source": "fifo", "destination": "/dev/shm/f"}, None),
                ("CreateWatcher", {"path": "fifo"}, 400), ("Stat", {"path": 5}, 400), ("Stat", {"path": {"a": 1}}, 400),
                ("Stat", [], 400),
                ("Stat", {"path": "a\0b"}, 400), ("ListDir", {"path": "/", "depth": -1}, 400),
                ("ListDir", {"path": "/", "depth": 65}, 400),
                ("ListDir", {"path": "/", "depth": 1e300}, 400)):
            a = call(d, b, fs + method, message)
            check(status is None or a.status == status, (method, message, a))
            check_equal(isinstance(a.json, dict), True)
        # What a link is may be said; where a magic link leads may not.
        a = call(d, b, fs + "Stat", {"path": "magic"})
        check("symlinkTarget" not in a.json["entry"] or a.json["entry"]["symlinkTarget"] in ("", "/proc/self/root"), a)
        # A hole of 1 TiB is served piece by piece.
        a = ask(d, "GET", "/files?path=hole", key="", headers={**to_box(b), "Range": "bytes=1099511627770-"})
        check_equal((a.status, a.body), (206, b"\0" * 6))
        front = d.children("front")[0]
        before = memory(front)
        with socket.create_connection(("127.0.0.1", d.port)) as s:  # and nobody reads it
            h = "".join(f"{k}: {v}\r\n" for k, v in to_box(b).items())
            s.sendall(f"GET /files?path=hole HTTP/1.1\r\nHost: localhost\r\n{h}\r\n".encode())
            time.sleep(0.5)
            check(memory(front) - before < 8 << 20, "front reads ahead of its client")


# ---- JSON ----

WRONG = [  # field, wrong values, words of the answer
    ("templateID", [None, "", 5, [], {}, True, "x" * 300], "templateID"),
    ("timeout", ["5", 1.5, 0, -1, [], {}, True, 2**31, 10**18], "timeout"),
    ("metadata", [5, "x", [], True, {"a": 5}, {"a": None}, {"k" * 257: "v"}, {"k": "v" * 4097},
                  {f"k{i}": "v" for i in range(65)}, {f"k{i}": "v" * 4000 for i in range(5)}], "metadata"),
    ("envVars", [5, "x", [], True, {"a": 5}, {"": "v"}, {"a=b": "v"}, {f"k{i}": "v" for i in range(257)},
                 {"k": "v" * 50000}], "envVars"),
    ("secure", [1, "true", []], "secure"),
    ("allow_internet_access", ["yes", 1], "allow_internet_access"),
    ("network", [1, [], "x", {"allowPublicTraffic": 1}, {"maskRequestHost": 5}, {"maskRequestHost": "a\r\nb: c"},
                 {"maskRequestHost": "a" * 300}, {"httpsPorts": [0]}, {"httpsPorts": [70000]}, {"httpsPorts": "x"},
                 {"httpsPorts": list(range(1, 20))}, {"allowOut": ["http://1.1.1.1/"]}, {"denyOut": ["a.test"]}, {"rules": {"a": 1}}], ""),
    ("autoPause", [1, "x"], "autoPause"),
    ("autoPauseMemory", [1, "x"], "autoPauseMemory"),
    ("autoResume", [1, {"enabled": 1}], ""),
    ("iam", [{"a": 1}, "x", 1, True], "iam"),
    ("mcp", [1, "x", [], True], "mcp"),
    ("volumeMounts", [[{"name": "x"}]], "volumeMounts"),
]


def test_compose():
    "files that are put together stay, by whatever path a source leads to the result; one that fails leaves nothing behind"
    with shared_node() as d:
        b = create(d)
        check_equal(sh(d, b, "mkdir run dir; ln -s run way; printf 1 > run/log; printf 2 > part").code, 0)
        a = call(d, b, "files/compose", {"source_paths": ["way/log", "part"], "destination": "run/log"})
        check_equal(a.status, 200, a)
        check_equal(get(d, b, "run/log").body, b"12")
        check_equal(get(d, b, "part").status, 404)
        a = call(d, b, "files/compose", {"source_paths": ["run/log", "dir"], "destination": "run/log"})
        check_equal(a.status, 400, a)
        check_equal(sh(d, b, "ls -A run; cat run/log").out, b"log\n12")


def test_create_fields():
    "a wrong value of any field of a create is a 400 that names the field, and makes nothing"
    with shared_node() as d:
        for field, values, word in WRONG:
            for value in values:
                for path in ("/v2/sandboxes", "/sandboxes"):
                    a = ask(d, "POST", path, {"templateID": "host", **{field: value}})
                    check_equal(a.status, 400, (field, str(value)[:80], a))
                    check_in(word, a.json["message"])
        for name in ("nope", "host/..", "host/../..", "host\n", "/etc", "a" * 100, "host:other", ".", "..", "host/",
                     ":default"):
            a = ask(d, "POST", "/v2/sandboxes", {"templateID": name})
            check(a.status in (400, 404), (name, a))
        for value in ("x" * 129, " ", "a b", "\x7f"):
            a = ask(d, "POST", "/v2/sandboxes", {"templateID": "host"}, headers={"Idempotency-Key": value})
            check_equal(a.status, 400, (value, a))
        # E2B's SDKs send it and start the gateway themselves.
        a = patient(d, "POST", "/v2/sandboxes", {"templateID": "host", "mcp": {"github/acme/tool": {"runCmd": "x", "envs": {"K": "v"}}}})
        check_equal((a.status, a.headers.get("Hutch-Ignored-Fields")), (201, None), a)
        check_equal(ask(d, "DELETE", f"/sandboxes/{a.json['sandboxID']}").status, 204)
        # Names of unknown fields are reported in a header: nothing in them may break it.
        a = patient(d, "POST", "/v2/sandboxes", {"templateID": "host", "x\r\nSet-Cookie: a=b": 1, "\u00e9\u2028": 2,
                                                 **{f"f{i}": 1 for i in range(500)}})
        check_equal(a.status, 201, a)
        check("set-cookie" not in {k.lower() for k in a.headers}, a.headers.items())
        check_equal(len(ask(d, "GET", "/v2/sandboxes").json), 1)


def test_json():
    "bodies that are too long, too deep, double or not JSON are refused with a place; front neither grows nor falls"
    with shared_node() as d:
        front = d.children("front")
        deep = b'{"templateID":"host","x":' + b"[" * 100000 + b"]" * 100000 + b"}"
        bad = {b"": 400, b"{": 400, b"nul": 400, b"[]": 400, b'"x"': 400, b"5": 400, b"null": 400, deep: 400,
               b"[" * 500000: 400,
               b'{"templateID":"host","templateID":"base"}': 400, b'{"templateID":"host","timeout":1e400}': 400,
               b'{"templateID":"host","timeout":99999999999999999999999}': 400, b'{"templateID":"host",}': 400,
               b'{"templateID":"host"}x': 400, b'\xef\xbb\xbf{"templateID":"host"}': 400, b'{"templateID":"ho\xffst"}': 400,
               b'{"templateID":"ho\\ud800st"}': 400, b'{"templateID":"host\\u0000"}': 400, b'{"templateID":NaN}': 400,
               b"{'templateID':'host'}": 400, b'{"templateID":"host" /* x */}': 400, b"\0": 400,
               b'{"x":"' + b"a" * (2 << 20) + b'"}': 413}
        for body, status in bad.items():
            try:
                a = ask(d, "POST", "/v2/sandboxes", body)
            except ConnectionError:  # refused before all of it was sent
                check_equal(status, 413, body[:60])
                continue
            check_equal(a.status, status, (body[:60], a))
            check(len(a.json["message"]) < 400, a)
        many = b'{"templateID":"host","metadata":{' + b",".join(b'"%d":""' % i for i in range(50000)) + b"}}"
        check(ask(d, "POST", "/v2/sandboxes", many).status in (400, 413))
        a = patient(d, "POST", "/v2/sandboxes", b'{"templateID":"host"}', kind="text/plain")
        check(a.status in (201, 415), a)
        same_fronts(d, front)
        check(memory(front[0]) < 128 << 20, memory(front[0]))
        b = create(d)
        # Envelopes of a stream: lengths that lie.
        for body in (b"", b"\0", b"\0\xff\xff\xff\xff", struct.pack(">BI", 0, 100) + b"{}",
                     struct.pack(">BI", 1, 2) + b"{}",
                     struct.pack(">BI", 0, 2) + b"{}" + struct.pack(">BI", 0, 2) + b"{}", struct.pack(">BI", 0, 0),
                     b"\0\0\0\0\1[" * 50):
            a = ask(d, "POST", "/process.Process/Start", body, key="", headers=to_box(b), kind="application/connect+json")
            check(a.status in (200, 400, 413), (body[:40], a))
            check(b"error" in a.body or a.status != 200, (body[:40], a))
        for process in ({}, {"cmd": ""}, {"cmd": 5}, {"cmd": "x" * 10000}, {"cmd": "a", "args": "x"},
                        {"cmd": "a", "args": [5]},
                        {"cmd": "a", "envs": {"a=b": "c"}}, {"cmd": "a", "envs": {"": "c"}}, {"cmd": "a", "envs": []},
                        {"cmd": "a", "cwd": 5}, {"cmd": "/bin/true", "args": ["x"] * 100000},
                        {"cmd": "/bin/true", "args": ["x" * (1 << 20)]}):
            text = json.dumps({"process": process}).encode()
            a = ask(d, "POST", "/process.Process/Start", struct.pack(">BI", 0, len(text)) + text, key="", headers=to_box(b),
                    kind="application/connect+json")
            check(a.status != 200 or b'"error"' in a.body, (str(process)[:80], a))
        check_equal(sh(d, b, "echo ok").text, "ok\n")
        same_fronts(d, front)


# ---- HTTP ----

def status_of(reply):
    m = re.match(rb"HTTP/1\.[01] (\d+)", reply)
    return int(m[1]) if m else None


def test_http():
    "malformed and ambiguous requests end in 4xx and a closed connection; no second request is ever found inside one"
    with shared_node() as d:
        front = d.children("front")
        ok = f"Host: localhost\r\nX-API-KEY: {d.key}\r\n"
        smuggled = "GET /v1/node HTTP/1.1\r\n" + ok + "\r\n"
        silent = 0
        bad = {
            "two lengths": f"POST /v2/sandboxes HTTP/1.1\r\n{ok}Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "length list": f"POST /v2/sandboxes HTTP/1.1\r\n{ok}Content-Length: 5, 6\r\n\r\n",
            "negative": f"POST /v2/sandboxes HTTP/1.1\r\n{ok}Content-Length: -1\r\n\r\n",
            "plus": f"POST /v2/sandboxes HTTP/1.1\r\n{ok}Content-Length: +5\r\n\r\n",
            "overflow": f"POST /v2/sandboxes HTTP/1.1\r\n{ok}Content-Length: 18446744073709551621\r\n\r\n",
            "both": f"POST /v2/sandboxes HTTP/1.1\r\n{ok}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
            "te.te": f"POST /v2/sandboxes HTTP/1.1\r\n{ok}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + smuggled,
            "xchunked": f"POST /v2/sandboxes HTTP/1.1\r\n{ok}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + smuggled,
            "te tab": f"POST /v2/sandboxes HTTP/1.1\r\n{ok}Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + smuggled,
            "space name": f"POST /v2/sandboxes HTTP/1.1\r\n{ok}Content-Length : 5\r\n\r\n",
            "te 1.0": f"POST /v2/sandboxes HTTP/1.0\r\n{ok}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
            "fold": f"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n c\r\n\r\n",
            "no host": "GET /health HTTP/1.1\r\n\r\n",
            "two hosts": "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
            "nul": "GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
            "cr": "GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n",
            "bad name": "GET /health HTTP/1.1\r\nHost: localhost\r\nX(y): 1\r\n\r\n",
            "no colon": "GET /health HTTP/1.1\r\nHost: localhost\r\nfoo\r\n\r\n",
            "0.9": "GET /health\r\n\r\n",
            "2.0": "GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n",
            "9.9": "GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
            "method": "G@T /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "target": "GET health HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "spaces": "GET /hea lth HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "long line": "GET /" + "a" * 200000 + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "long header": "GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + "a" * 200000 + "\r\n\r\n",
            "many headers": "GET /health HTTP/1.1\r\nHost: localhost\r\n" + "X: a\r\n" * 10000 + "\r\n",
            "bad chunk": f"POST /v2/sandboxes HTTP/1.1\r\n{ok}Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            "huge chunk": f"POST /v2/sandboxes HTTP/1.1\r\n{ok}Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n",
            "long chunk line": f"POST /v2/sandboxes HTTP/1.1\r\n{ok}Transfer-Encoding: chunked\r\n\r\n5;" + "a" * 100000 + "\r\n",
            "garbage": "\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + "x" * 600 + "\r\n\r\n",
        }
        for name, text in bad.items():
            got = raw(d, text.encode("latin-1"))
            silent += got == b""
            check(status_of(got) in (400, 401, 408, 413, 414, 417, 431, 501, 505) or got == b"", (name, got[:200]))
            check_equal(len(re.findall(rb"HTTP/1\.[01] \d", got)) <= 1, True, (name, got))
            check(b'"sandboxes"' not in got, (name, got))
        check(silent <= 3, f"{silent} of {len(bad)} got no answer at all")
        check_equal(status_of(raw(d, f"GET /v1/node HTTP/1.1\r\n{ok}Connection: close\r\n\r\n".encode())), 200,
                    "a good one")
        # Hosts and origins of pages elsewhere: a name of theirs that leads here is no key.
        for host in ("evil.example", "localhost.evil.example", "hutch.localhost.evil", "127.0.0.1.nip.io",
                     "xhutch.localhost", "a..b",
                     "2130706433", "0x7f.1", "@localhost", "localhost@evil", "evil#localhost"):
            got = raw(d, f"GET /v2/sandboxes HTTP/1.1\r\nHost: {host}\r\nX-API-KEY: {d.key}\r\nConnection: close\r\n\r\n".encode())
            check(status_of(got) in (400, 421), (host, got))
        for origin in ("http://evil.example", "null", "https://localhost.evil.example", "file://",
                       "http://3000-abc.hutch.localhost"):
            a = ask(d, "GET", "/v2/sandboxes", headers={"Origin": origin})
            check_equal(a.status, 403, (origin, a))
            check("access-control-allow-origin" not in {k.lower() for k in a.headers}, origin)
        got = raw(d, f"GET http://evil.example/v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: {d.key}\r\nConnection: close\r\n\r\n".encode())
        check(status_of(got) in (400, 421), got)
        for method in ("TRACE", "CONNECT", "PURGE", "PROPFIND", "get", "X" * 40):
            target = "localhost:80" if method == "CONNECT" else "/v2/sandboxes"
            got = raw(d, f"{method} {target} HTTP/1.1\r\n{ok}Connection: close\r\n\r\n".encode())
            check(status_of(got) in (400, 405, 501), (method, got))
            check(d.key.encode() not in got, "TRACE must not echo")
        a = ask(d, "POST", "/v2/sandboxes", {}, headers={"X-HTTP-Method-Override": "GET"})
        check_equal(a.status, 400, a)
        # Ids are a pattern; other things are not looked for anywhere.
        for i in ("..", "%2e%2e", "%2F", "..%2f..%2fetc", "A" * 26, "a" * 300, "%00", "a%0ab", "*", "'", "%ff", "-", "1-",
                  "%"):
            a = ask(d, "GET", f"/sandboxes/{i}")
            check(a.status in (400, 404), (i, a))
            check(a.json["code"] == a.status, a)
        for name, value in (("E2b-Sandbox-Port", "70000"), ("E2b-Sandbox-Port", "-1"), ("E2b-Sandbox-Port", "1e3"),
                            ("E2b-Sandbox-Id", "../x"),
                            ("E2b-Sandbox-Id", "A"), ("E2b-Sandbox-Id", "a" * 400)):
            a = ask(d, "GET", "/x", headers={"E2b-Sandbox-Id": UNKNOWN, "E2b-Sandbox-Port": "80", name: value})
            check_equal(a.status, 400, (name, value, a))
        check_equal(ask(d, "GET", "/x", headers={"E2b-Sandbox-Id": UNKNOWN}).status, 400)
        for q in ("limit=0", "limit=-1", "limit=99999999999", "limit=x", "nextToken=x", "nextToken=%00",
                  "nextToken=" + "a" * 3000, "state=x",
                  "order=x", "startedAfter=x", "metadata=%zz"):
            a = ask(d, "GET", "/v2/sandboxes?" + q)
            check(a.status in (200, 400), (q, a))
            check(a.status == 400 or q.startswith(("metadata", "limit=9")), (q, a))
        same_fronts(d, front)


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def test_http2():
    "floods, bombs and bad fields of HTTP/2 end the stream or the connection, and front stays as small as it was"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with Daemon(tls=True) as d:
        front = d.children("front")
        head = b"".join(literal(*f) for f in ((b":method", b"GET"), (b":path", b"/v2/sandboxes"), (b":scheme", b"https"),
                                              (b":authority", b"hutch.localhost")))

        def connect(seconds=0.4):
            s = context.wrap_socket(socket.create_connection(("127.0.0.1", d.tls_port)), server_hostname="hutch.localhost")
            s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
            s.settimeout(seconds)
            return s

        def answer(s, want=None):
            got = b""
            try:
                while want is None or want not in got:
                    piece = s.recv(65536)
                    if not piece:
                        break
                    got += piece
            except OSError:
                pass
            return got

        def cut(what, pieces):
            with connect() as s:
                try:
                    for piece in pieces:
                        s.sendall(piece)
                except OSError:
                    return
            check(False, f"{what}: never stopped")
        with connect(60) as s:
            s.sendall(frame(1, 5, 1, head))
            check_in(b'"code":401', answer(s, b'"code":401'))
        cut("rapid reset", (frame(1, 5, i, head) + frame(3, 0, i, b"\0\0\0\x08") for i in range(1, 40001, 2)))
        cut("continuation", (frame(1, 1, 1, head) if i == 0 else frame(9, 0, 1,
                literal(b"x-a", b"y" * 100) * 50) for i in range(20000)))
        big = b"\x40\x03x-b\x7f" + bytes([0x80 | (3773 & 0x7f),
                                          3773 >> 7]) + b"z" * 3900  # once in the table, then by its number
        with connect() as s:
            s.sendall(frame(1, 5, 1, head + big + b"\xbe" * 16000))
            check(b"200" not in answer(s), "a bomb is no request")
        for bad in (literal(b"x\r\ny", b"1"), literal(b"x", b"1\r\ny: 2"), literal(b"connection", b"close"),
                    literal(b"X-Up", b"a"),
                    literal(b"transfer-encoding", b"chunked"), literal(b":path", b"/x"), literal(b"host", b"evil.example")):
            with connect() as s:
                s.sendall(frame(1, 5, 1, head + bad))
                check(b'"code":401' not in answer(s), bad)
        for piece in (frame(6, 0, 0, b"12345678"), frame(4, 0, 0,
                b"\0\4\0\1\0\0")):  # pings, settings: answers nobody reads
            with connect() as s, contextlib.suppress(OSError):
                for _ in range(200):
                    s.sendall(piece * 100)
        check(memory(front[0]) < 64 << 20, memory(front[0]))
        alive(d)
        same_fronts(d, front)


def test_slow():
    "clients that are slow, silent, many or never read cost the others nothing and front no memory"
    with Daemon(config="http:\n  max_connections: 600\nsandboxes:\n  privilege: strict\n") as d:
        front = d.children("front")
        b = create(d)
        before = memory(front[0])
        slow = []
        h = "".join(f"{k}: {v}\r\n" for k, v in to_box(b).items())
        for i in range(120):
            s = socket.create_connection(("127.0.0.1", d.port))
            s.sendall([b"GET /hea", b"POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-A: ",
                       f"POST /files?path=slow{i} HTTP/1.1\r\nHost: localhost\r\n{h}Content-Length: 1000000\r\n"
                       "Content-Type: application/octet-stream\r\n\r\nabc".encode(), b""][i % 4])
            slow.append(s)
        # Streams that nobody reads: the command writes for ever, front keeps nothing of it.
        body = start("/bin/sh", ["-c", "yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"])
        for i in range(8):
            s = open_stream(d, b, body)
            slow.append(s)
        time.sleep(1.5)
        grown = memory(front[0]) - before
        check(grown < 48 << 20, f"front grew by {grown >> 20} MiB")
        started = time.monotonic()
        check_equal(sh(d, b, "echo ok").text, "ok\n")
        check(time.monotonic() - started < 45, "others wait")
        # More than may be open: the ones above the limit are turned away, the node lives.
        crowd = []
        for i in range(900):
            s = socket.socket()
            s.setblocking(False)
            s.connect_ex(("127.0.0.1", d.port))
            crowd.append(s)
        time.sleep(0.3)
        for s in slow + crowd:
            s.close()
        eventually(lambda: ask(d, "GET", "/health", key="").status == 204, 5, "served again")
        check_equal(sh(d, b, "echo ok").text, "ok\n")
        same_fronts(d, front)
        fds = lambda: len(__import__("os").listdir(f"/proc/{front[0]}/fd"))
        eventually(lambda: fds() < 60, 5, "descriptors of the gone are given back")


# ---- keys and tenants ----

def test_keys():
    "no key, a wrong, an expired, a removed, a read-only one: 401 or 403, the same for every route; nothing of a key is in the log"
    with Daemon() as d:
        tenant(d, "t1")
        good = key_of(d, "t1")
        reader = key_of(d, "t1", ["read"])
        for ahead in (2, 10, 60):  # a time that is over before the key is made is refused
            end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + ahead))
            expired = ask(d, "POST", "/v1/keys", {"tenant": "t1", "name": "test", "scopes": ["sandboxes"], "expiresAt": end})
            if expired.status == 201:
                break
        expired = expired.json["key"]
        b = create(d, key=good)
        for key in ("", "e2b_" + "0" * 40, good[:-1], good + "0", good.upper(), " ", "x" * 5000, "e2b_",
                    "'; drop table keys; --", d.key[:-1] + "g"):
            for how in ({"X-API-KEY": key}, {"Authorization": "Bearer " + key}):
                a = ask(d, "GET", "/v2/sandboxes", key="", headers=how)
                check_equal(a.status, 401, (key, a))
                check(len(key) < 4 or key.encode() not in a.body, a)
        check_equal(ask(d, "GET", "/v2/sandboxes", key=reader).status, 200)
        for method, path, body in (("POST", "/v2/sandboxes", {"templateID": "host"}),
                                   ("DELETE", f"/sandboxes/{b['sandboxID']}", None),
                                   ("POST", f"/sandboxes/{b['sandboxID']}/timeout", {"timeout": 5})):
            check_equal(ask(d, method, path, body, key=reader).status, 403, (method, path))
        for method, path in (("GET", "/v1/node"), ("GET", "/v1/tenants"), ("POST", "/v1/tenants"), ("GET", "/v1/keys"),
                             ("POST", "/v1/keys"),
                             ("POST", "/v1/stop-all"), ("DELETE", "/v1/keys/x"), ("DELETE", "/v1/tenants/t1")):
            for key in (good, reader):
                check_equal(ask(d, method, path, {} if method == "POST" else None, key=key).status, 403, (method, path))
        eventually(lambda: ask(d, "GET", "/v2/sandboxes", key=expired).status == 401, 90, "the key expires")
        listed = ask(d, "GET", "/v1/keys")
        check(good.encode() not in listed.body and d.key.encode() not in listed.body, "keys are shown once")
        for i in [k["id"] for k in listed.json["keys"] if k["tenant"] == "t1"]:
            check_equal(ask(d, "DELETE", f"/v1/keys/{i}").status, 204)
        check_equal(ask(d, "GET", "/v2/sandboxes", key=good).status, 401)
        for body in ({"tenant": "nope", "name": "x", "scopes": ["sandboxes"]},
                     {"tenant": "t1", "name": "x", "scopes": ["root"]},
                     {"tenant": "t1", "name": "x", "scopes": "admin"},
                     {"tenant": "t1", "name": "x" * 5000, "scopes": ["read"]},
                     {"tenant": "t1", "name": "x", "scopes": ["read"], "expiresAt": "soon"}, {"tenant": 5}, []):
            check(ask(d, "POST", "/v1/keys", body).status in (400, 404), body)
        for name in ("../x", "", "A" * 200, "a b", "a\n", 5, None):
            check_equal(ask(d, "POST", "/v1/tenants", {"id": name, "name": "x"}).status, 400, name)
        for quota in ({"sandboxes": -1}, {"sandboxes": "x"}, {"memoryBytes": 2**70}, {"requestsPerSecond": 1.5}, []):
            check_equal(ask(d, "POST", "/v1/tenants", {"id": "t9", "name": "x", "quota": quota}).status, 400, quota)
        log = "".join(line for line in d.log_path.read_text().splitlines() if line.startswith("{"))  # not the first start's greeting
        check_in("/v2/sandboxes", log)
        for secret in (good, reader, expired, d.key, b["envdAccessToken"]):
            check(secret not in log, "a secret is in the log")


def routes(d):
    """(method, path with {..}) of everything the node says it serves."""
    doc = ask(d, "GET", "/v1/openapi.json", key="").json
    return [(m.upper(), p) for p, methods in doc["paths"].items() for m in methods if m in ("get", "post", "put", "patch",
            "delete")]


def test_tenants_apart():
    "over every route another tenant's sandbox answers byte for byte as one that never was"
    with Daemon() as d:
        tenant(d, "t1")
        tenant(d, "t2")
        k1, k2 = key_of(d, "t1"), key_of(d, "t2")
        mine = create(d, key=k1, metadata={"secret": "canary"}, envVars={"CANARY": "1"})
        theirs, tried = mine["sandboxID"], 0
        bodies = {"timeout": {"timeout": 10}, "connect": {"timeout": 10}, "refreshes": {"duration": 10}}
        for method, pattern in routes(d):
            if "{" not in pattern or "/templates" in pattern or pattern.startswith(("/v1/tenants", "/v1/keys", "/v1/approvals", "/v1/secrets", "/secrets",
                                                                                   "/volumecontent", "/v1/uploads")):
                continue
            answers = []
            for i in (theirs, UNKNOWN):
                path = re.sub(r"\{[^}]*\}", i, pattern)
                body = bodies.get(path.rsplit("/", 1)[1], {}) if method not in ("GET", "DELETE") else None
                a = ask(d, method, path, body, key=k2)
                h = sorted((k.lower(), v) for k, v in a.headers.items() if k.lower() not in ("x-request-id",
                        "x-e2b-trace-id", "date"))
                answers.append((a.status, h, a.body.replace(i.encode(), b"ID")))
            check_equal(answers[0], answers[1], (method, pattern))
            check(answers[0][0] in (404, 501), (method, pattern, answers[0]))
            tried += 1
        check(tried >= 10, f"only {tried} routes have an id")
        check_equal(ask(d, "GET", f"/sandboxes/{theirs}", key=k1).json["metadata"], {"secret": "canary"})
        for path in ("/v2/sandboxes", "/sandboxes", f"/sandboxes/metrics?sandbox_ids={theirs}",
                     "/v2/sandboxes?metadata=secret%3Dcanary", "/teams"):
            a = ask(d, "GET", path, key=k2)
            check(theirs.encode() not in a.body and b"canary" not in a.body and b"t1" not in a.body, (path, a))
        check_equal(ask(d, "GET", "/v2/sandboxes", key=k2).json, [])
        # Of a dead one, too: history belongs to its tenant.
        check_equal(ask(d, "DELETE", f"/sandboxes/{theirs}", key=k1).status, 204)
        for path in (f"/sandboxes/{theirs}/logs", f"/v2/sandboxes/{theirs}/logs", f"/v1/sandboxes/{theirs}/events",
                     f"/sandboxes/{theirs}"):
            a, u = ask(d, "GET", path, key=k2), ask(d, "GET", path.replace(theirs, UNKNOWN), key=k2)
            check_equal((a.status, a.body.replace(theirs.encode(), b"ID")),
                        (u.status, u.body.replace(UNKNOWN.encode(), b"ID")), path)
        # The tail of a token of the other's list is no way in.
        ids = [create(d, key=k1)["sandboxID"] for _ in range(3)]
        a = ask(d, "GET", "/v2/sandboxes?limit=1", key=k1)
        token = a.headers["x-next-token"]
        a = ask(d, "GET", "/v2/sandboxes?" + query(nextToken=token), key=k2)
        check(not any(i.encode() in a.body for i in ids), a)


def sign(path, operation, user, token, expiry=None):
    text = f"{path}:{operation}:{user}:{token}" + (f":{expiry}" if expiry else "")
    return "v1_" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def test_tokens():
    "the token of one sandbox opens no other; signatures hold for one path, one user, one direction and their time"
    with shared_node() as d:
        a, b = create(d), create(d)
        calls = [("POST", "/" + m, {}, "application/json") for m in
                 ("process.Process/List", "filesystem.Filesystem/Stat", "filesystem.Filesystem/ListDir",
                  "filesystem.Filesystem/Remove",
                  "filesystem.Filesystem/Move", "filesystem.Filesystem/MakeDir", "filesystem.Filesystem/CreateWatcher",
                  "filesystem.Filesystem/GetWatcherEvents", "filesystem.Filesystem/RemoveWatcher",
                  "process.Process/SendSignal",
                  "process.Process/SendInput", "process.Process/Update", "process.Process/CloseStdin", "files/compose",
                  "nothing")]
        calls += [("POST", "/" + m, struct.pack(">BI", 0, 2) + b"{}", "application/connect+json") for m in
                  ("process.Process/Start", "process.Process/Connect", "process.Process/StreamInput",
                   "filesystem.Filesystem/WatchDir")]
        calls += [("GET", "/metrics", None, ""), ("GET", "/envs", None, ""), ("GET", "/files?path=/etc/hostname", None, ""),
                  ("POST", "/files?path=/tmp/x", b"x", "application/octet-stream"),
                  ("HEAD", "/files?path=/etc/hostname", None, "")]
        for token in (b["envdAccessToken"], "", "x", a["envdAccessToken"][:-1], a["envdAccessToken"] + "0", d.key):
            for method, path, body, kind in calls:
                h = to_box(a)
                h["X-Access-Token"] = token
                r = ask(d, method, path, body, headers=h, kind=kind)  # with the operator's API key, which is no token
                check_equal(r.status, 401, (method, path, token, r))
        for path in ("/init", "/freeze", "/upgrade", "/fsfreeze"):
            check_equal(ask(d, "POST", path, {}, headers=to_box(a)).status, 404, path)
        check_equal(put(d, a, "/tmp/f", b"mine").status, 200)
        token, now = a["envdAccessToken"], int(time.time())
        base = {"path": "/tmp/f", "username": "user"}
        good = {**base, "signature": sign("/tmp/f", "read", "user", token)}
        plain = {"E2b-Sandbox-Id": a["sandboxID"], "E2b-Sandbox-Port": str(ENVD)}
        check_equal(ask(d, "GET", "/files?" + query(**good), key="", headers=plain).body, b"mine")
        later = {**base, "signature": sign("/tmp/f", "read", "user", token, now + 60), "signature_expiration": now + 60}
        check_equal(ask(d, "GET", "/files?" + query(**later), key="", headers=plain).body, b"mine")
        forged = [{**good, "path": "/etc/hostname"}, {**good, "username": "root"}, {**good, "signature": "v1_"},
                  {**good, "signature": ""},
                  {**good, "signature": good["signature"][:-1]}, {**good, "signature": good["signature"] + "="},
                  {**good, "signature": sign("/tmp/f", "write", "user", token)},
                  {**good, "signature": sign("/tmp/f", "read", "user", "")}, {**good, "signature_expiration": now + 999},
                  {**later, "signature_expiration": now + 61},
                  {k: v for k, v in later.items() if k != "signature_expiration"},
                  {**base, "signature": sign("/tmp/f", "read", "user", token, now - 5), "signature_expiration": now - 5},
                  {**base, "signature": sign("/tmp/f", "read", "user", token, "1e99"), "signature_expiration": "1e99"},
                  {**base, "signature": sign("/tmp/f", "read", "user", token, -1), "signature_expiration": -1}]
        for q in forged:
            for h in (plain, {}):
                r = ask(d, "GET", "/files?" + query(**q), key="", headers=h)
                check_equal(r.status, 401, (q, h, r))
        other = {**good, "signature": sign("/tmp/f", "read", "user", b["envdAccessToken"])}
        check_equal(ask(d, "GET", "/files?" + query(**other), key="", headers=plain).status, 401)
        check_equal(ask(d, "GET", "/files?" + query(**other), key="").status, 404, "it leads to the other sandbox only")
        r = ask(d, "POST", "/files?" + query(**good), b"x", key="", headers=plain, kind="application/octet-stream")
        check_equal(r.status, 401, "a signature for reading writes nothing")
        check_equal(get(d, a, "/tmp/f").body, b"mine")
        # A private sandbox's ports want its traffic token, and only that.
        p = create(d, network={"allowPublicTraffic": False})
        for extra in ({}, {"E2B-Traffic-Access-Token": "x"}, {"E2B-Traffic-Access-Token": p["envdAccessToken"]},
                      {"X-Access-Token": p["envdAccessToken"]}):
            check_equal(ask(d, "GET", "/", headers={**to_box(p, 8000), **extra}).status, 403, extra)
        check_equal(ask(d, "GET", "/", headers={**to_box(p, 8000),
                                                "E2B-Traffic-Access-Token": p["trafficAccessToken"]}).status, 502)
        # Gone is gone.
        ask(d, "DELETE", f"/sandboxes/{a['sandboxID']}")
        check_equal(get(d, a, "/tmp/f").status, 502)


def test_limits_of_a_tenant():
    "the same idempotency key 50 times at once is one sandbox; quota and rate are 429 with Retry-After and leave the others alone"
    with Daemon() as d:
        tenant(d, "t1", sandboxes=3)
        tenant(d, "t2", requestsPerSecond=1, burst=5)
        k1, k2 = key_of(d, "t1"), key_of(d, "t2")
        once = lambda _: patient(d, "POST", "/v2/sandboxes", {"templateID": "host"}, key=k1,
                                 headers={"Idempotency-Key": "only-once"})
        with concurrent.futures.ThreadPoolExecutor(50) as pool:
            answers = list(pool.map(once, range(50)))
        good = {a.json["sandboxID"] for a in answers if a.status == 201}
        check_equal(len(good), 1, [a.status for a in answers])
        check(all(a.status in (201, 409, 429, 503) for a in answers), [a.status for a in answers])
        check_equal(len(ask(d, "GET", "/v2/sandboxes", key=k1).json), 1)
        a = ask(d, "POST", "/v2/sandboxes", {"templateID": "host", "timeout": 77}, key=k1,
                headers={"Idempotency-Key": "only-once"})
        check_equal(a.status in (409, 422), True, a)
        a = patient(d, "POST", "/v2/sandboxes", {"templateID": "host"}, headers={"Idempotency-Key": "only-once"})
        check(a.status == 201 and a.json["sandboxID"] not in good, "another tenant's key is another key")
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda _: patient(d, "POST", "/v2/sandboxes", {"templateID": "host"}, key=k1), range(12)))
        check_equal(sorted(a.status for a in answers), [201] * 2 + [429] * 10)
        refused = [a for a in answers if a.status == 429]
        check(all(int(a.headers["Retry-After"]) >= 0 and "sandboxes" in a.json["message"] for a in refused), refused[0])
        answers = [ask(d, "GET", "/v2/sandboxes", key=k2) for _ in range(30)]
        limited = [a for a in answers if a.status == 429]
        check(10 <= len(limited) <= 25 and all(int(a.headers["Retry-After"]) >= 1 for a in limited), len(limited))
        check_equal(ask(d, "GET", "/v2/sandboxes", key=k1).status, 200)
        # create and delete and use at the same time: nothing is left over, nothing falls
        front = d.children("front")
        box = create(d)

        def storm(n):
            b = create(d) if n % 2 else box
            ask(d, "DELETE", f"/sandboxes/{b['sandboxID']}") if n % 2 else sh(d, b, "true")
            return ask(d, "GET", f"/sandboxes/{b['sandboxID']}").status
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            got = list(pool.map(storm, range(40)))
        check_equal({got[n] for n in range(1, 40, 2)}, {404})
        check_equal({got[n] for n in range(0, 40, 2)}, {200})
        same_fronts(d, front)


# ---- through the gateway ----

SERVICE = r"""
import socket, threading
def rest(s):
    s.settimeout(0.3)
    got = b""
    try:
        while True:
            p = s.recv(65536)
            if not p: break
            got += p
    except OSError: pass
    return got
def one(s):
    head = b""
    while b"\r\n\r\n" not in head:
        p = s.recv(65536)
        if not p: return
        head += p
    path = head.split(b" ")[1]
    H = b"HTTP/1.1 200 OK\r\n"
    if path == b"/echo":
        head += rest(s); s.sendall(H + b"Content-Length: %d\r\n\r\n" % len(head) + head)
    answers = {
        b"/split": H + b"X-A: b\rSet-Cookie: x=1\r\nContent-Length: 2\r\n\r\nok",
        b"/lf": b"HTTP/1.1 200 OK\nX-A: b\nContent-Length: 2\n\nok",
        b"/nul": H + b"X-A: a\0b\r\nContent-Length: 2\r\n\r\nok",
        b"/fold": H + b"X-A: a\r\n b\r\nContent-Length: 2\r\n\r\nok",
        b"/name": H + b"X A: a\r\nContent-Length: 2\r\n\r\nok",
        b"/both": H + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"/two": H + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"/negative": H + b"Content-Length: -2\r\n\r\nok",
        b"/long": H + b"X-A: " + b"a" * 1000000 + b"\r\n\r\n",
        b"/many": H + b"X-A: a\r\n" * 50000 + b"\r\n",
        b"/status": b"HTTP/1.1 99999 OK\r\n\r\n",
        b"/0": b"HTTP/1.1 000 OK\r\nContent-Length: 0\r\n\r\n",
        b"/reason": b"HTTP/1.1 200 " + b"a" * 100000 + b"\r\nContent-Length: 0\r\n\r\n",
        b"/http9": b"hello",
        b"/chunk": H + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        b"/extra": H + b"Content-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nEXTRA",
        b"/101": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nTUNNEL",
        b"/100": b"HTTP/1.1 100 Continue\r\n\r\n" * 5000 + H + b"Content-Length: 2\r\n\r\nok",
        b"/cut": H + b"Content-Length: 100\r\n\r\nok",
        b"/hop": H + b"Connection: close, X-Gone\r\nX-Gone: 1\r\nKeep-Alive: x\r\nX-Request-Id: forged\r\nContent-Length: 2\r\n\r\nok",
        b"/empty": b"",
    }
    if path in answers: s.sendall(answers[path])
    if path == b"/flood":
        s.sendall(H + b"\r\n")
        while True: s.sendall(b"x" * 65536)
    if path == b"/silent": rest(s); import time; time.sleep(600)
    s.close()
def safe(s):
    try: one(s)
    except OSError: pass
l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind(("127.0.0.1", 8000)); l.listen(200); print("up", flush=True)
while True:
    s, _ = l.accept(); threading.Thread(target=safe, args=(s,), daemon=True).start()
"""


def serve(d, b, code):
    """Start a program in the sandbox that says "up"; the open stream keeps it alive."""
    body = start("/usr/bin/python3", ["-c", code])
    c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=60)
    c.request("POST", "/process.Process/Start", body, {**to_box(b), "Content-Type": "application/connect+json"})
    r = c.getresponse()
    seen = b""
    while base64.b64encode(b"up\n") not in seen:
        piece = r.read1(65536)
        check(piece, seen)
        seen += piece
    return c


def test_gateway():
    "a service inside can neither split an answer nor make front grow; a client can smuggle nothing past the gateway"
    with shared_node(config="sandboxes:\n  privilege: strict\n") as d:
        front = d.children("front")
        b = create(d)
        stream = serve(d, b, SERVICE)
        to = to_box(b, 8000)
        for path in ("/split", "/nul", "/name", "/both", "/two", "/negative", "/long", "/many", "/status", "/0",
                     "/reason", "/http9", "/empty"):
            a = ask(d, "GET", path, headers=to)
            check_equal(a.status, 502, (path, a))
            check("set-cookie" not in {k.lower() for k in a.headers}, path)
            check(len(a.body) < 1000 and b["sandboxID"] in a.json["sandboxId"], (path, a))
        for path in ("/lf", "/fold"):
            a = ask(d, "GET", path, headers=to)
            check(a.status in (200, 502), (path, a))
        check_equal(ask(d, "GET", "/100", headers=to).status in (200, 502), True)
        head = "".join(f"{k}: {v}\r\n" for k, v in to.items())
        got = raw(d, f"GET /extra HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode(), timeout=0.5, first=60)
        check(b"EXTRA" not in got and got.count(b"HTTP/1.1") == 1, got)
        got = raw(d, f"GET /101 HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode(), timeout=0.5, first=60)
        check(b"TUNNEL" not in got and status_of(got) == 502, got)
        for path in ("/cut", "/chunk"):
            try:
                a = ask(d, "GET", path, headers=to)
                check_equal(a.status, 502, (path, a))
            except (http.client.IncompleteRead, ConnectionError):
                pass
        a = ask(d, "GET", "/hop", headers=to)
        names = [k.lower() for k in a.headers]
        check_equal(a.status, 200)
        check("x-gone" not in names and "keep-alive" not in names, names)
        # What the service sees is one request, written anew, without our key.
        a = ask(d, "POST", "/echo", b"body", headers={**to, "X-Forwarded-For": "6.6.6.6", "Forwarded": "for=6.6.6.6",
                "Connection": "X-Drop",
                                                      "X-Drop": "1", "E2B-Traffic-Access-Token": "t"})
        seen = a.body.lower()
        check(d.key.encode() not in a.body and b"6.6.6.6" not in seen and b"x-drop" not in seen and b"traffic-access" not in seen, a.body)
        a = ask(d, "GET", "/echo", key="", headers={**to, "Authorization": "Bearer " + d.key})
        check(d.key.encode() not in a.body, "the operator's key reaches the sandbox")
        ok = f"Host: localhost\r\n{head}"
        inner = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
        for text in (f"POST /echo HTTP/1.1\r\n{ok}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}",
                     f"POST /echo HTTP/1.1\r\n{ok}Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n",
                     f"POST /echo HTTP/1.1\r\n{ok}Transfer-Encoding: chunked\r\n\r\n2;a=\"\r\n\"\r\nok\r\n0\r\n\r\n{inner}",
                     f"GET /echo HTTP/1.1\r\n{ok}Content-Length: {len(inner)}\r\n\r\n{inner}",
                     f"GET /echo%0d%0aX-Evil:%201 HTTP/1.1\r\n{ok}\r\n",
                     f"GET /echo\rX-Evil: 1 HTTP/1.1\r\n{ok}\r\n",
                     f"GET /echo HTTP/1.1\r\n{ok}X: a\nX-Evil: 1\r\n\r\n"):
            got = raw(d, text.encode(), timeout=0.6)
            heads = got.split(b"\r\n\r\n")
            if status_of(got) == 200 and len(heads) > 1:
                check(b"\nX-Evil" not in heads[1] and b"GET /smuggled" not in heads[1], got)
        # Endless answers that nobody reads, and services that never answer: bounded, and others are served.
        before = memory(front[0])
        idle = []
        for i in range(40):
            s = socket.create_connection(("127.0.0.1", d.port))
            s.sendall(f"GET /{'flood' if i % 2 else 'silent'} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
            idle.append(s)
        time.sleep(1)
        check(memory(front[0]) - before < 40 << 20, f"front grew by {(memory(front[0]) - before) >> 20} MiB")
        check_equal(ask(d, "GET", "/hop", headers=to).status, 200)
        for i in range(180):
            s = socket.create_connection(("127.0.0.1", d.port))
            s.sendall(f"GET /silent HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
            idle.append(s)
        eventually(lambda: ask(d, "GET", "/hop", headers=to).status == 429, 10, "at most 200 at once")
        check_equal(sh(d, b, "echo ok").text, "ok\n")
        for s in idle:
            s.close()
        eventually(lambda: ask(d, "GET", "/hop", headers=to).status == 200, 10, "the places are given back")
        # WebSockets are only passed on, but the way there is ours.
        for extra in ("", "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"):
            got = raw(d, f"GET /echo HTTP/1.1\r\n{ok}Upgrade: websocket\r\nConnection: upgrade\r\n{extra}\r\n".encode(),
                      timeout=0.6)
            check(status_of(got) in (200, 400, None), got)
        same_fronts(d, front)
        stream.close()


def test_odd_bytes():
    "names with newlines, control characters and invalid UTF-8 come out of every answer as valid JSON and valid headers"
    with shared_node(config="sandboxes:\n  privilege: strict\n") as d:
        b = create(d)
        made = py(d, b, r"""
import os
os.mkdir(b"/home/user/odd"); os.chdir(b"/home/user/odd")
for n in (b"a\nb", b"a\rb", b"a\tb", b"\x1b[31mred", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b'"quote\\', b"-rf", b" ", b"\x7f", b"x" * 255, "\u2028".encode(), b"\xf0\x9f\x98\x80"):
    open(n, "w").close(); os.symlink(n, b"l" + n[:200])
os.symlink(b"\xff" * 4000, b"far")
""")
        check_equal(made.code, 0, made)
        a = call(d, b, "filesystem.Filesystem/ListDir", {"path": "/home/user/odd", "depth": 2})
        check_equal(a.status, 200, a)
        check_equal(len(a.json["entries"]), 29)
        for name in (e["name"] for e in a.json["entries"]):
            for answer in (get(d, b, "/home/user/odd/" + name),
                           call(d, b, "filesystem.Filesystem/Stat", {"path": "/home/user/odd/" + name})):
                check(answer.status in (200, 400, 404), answer)
                check(answer.status == 200 and "entry" not in answer.body[:12].decode(errors="replace") or answer.json,
                      answer)
        for path in (b"%ff%fe", b"%c3", b"a%0ab", b"a%0db", b"%1b%5b31mred", b"%ed%a0%80"):
            got = ask(d, "GET", "/files?path=/home/user/odd/" + path.decode(), key="", headers=to_box(b))
            check_equal(got.status, 200, (path, got))
            check("\n" not in got.headers["content-disposition"] and "\r" not in got.headers["content-disposition"],
                  got.headers.items())
            missing = ask(d, "GET", "/files?path=/nowhere/" + path.decode(), key="", headers=to_box(b))
            check_equal(missing.status, 404, missing)
            check_in("/nowhere/", missing.json["message"])
        # Output and the command's own words are bytes; what is said about them is JSON.
        r = run(d, b, "/usr/bin/printf", r"\377\376\0\n")
        check_equal(r.out, b"\xff\xfe\0\n")
        r = run(d, b, "/nonexistent\x1b[31m\n")
        check(r.code is None and r.error, r)
        odd = create(d, metadata={"k\n": "\x1b[31m\u2028\"", "": "x"}, envVars={"A\nB": "c\nd", "LD_PRELOAD": "/x"})
        a = ask(d, "GET", "/sandboxes/" + odd["sandboxID"])
        check_equal(a.json["metadata"], {"k\n": "\x1b[31m\u2028\"", "": "x"})
        for line in d.log_path.read_bytes().splitlines():
            if line.startswith(b"{"):
                json.loads(line.decode())
            check(b"\x1b" not in line, line)
