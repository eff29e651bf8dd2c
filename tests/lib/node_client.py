"""A client of a node that can be as rude as a test needs: whole requests, raw bytes, and the sandbox's own calls."""
import base64
import http.client
import json
import socket
import struct
import time
import urllib.parse

ENVD = 49983


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"{self.status} {self.body[:300]!r}"


def ask(d, method, path, body=None, key=None, headers=None, timeout=60, kind="application/json"):
    """A whole request. body: bytes as they are, anything else as JSON. key="" sends none."""
    c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=timeout)
    h = dict(headers or {})
    if key != "":
        h.setdefault("X-API-KEY", key or d.key)
    if body is not None:
        h.setdefault("Content-Type", kind)
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        c.request(method, path, body, h)
        r = c.getresponse()
        return Answer(r.status, r.headers, r.read())
    finally:
        c.close()


def patient(d, method, path, body=None, seconds=60, **more):
    """As ask(), but a 503, by which a node that is busy says that it may be asked again, is no answer yet."""
    stop = time.monotonic() + seconds
    while (a := ask(d, method, path, body, **more)).status == 503 and time.monotonic() < stop:
        time.sleep(0.1)
    return a


def create(d, key=None, **more):
    """The whole answer to the creation of a sandbox from the template host."""
    a = patient(d, "POST", "/v2/sandboxes", {"templateID": "host", **more}, key=key)
    if a.status != 201:
        raise AssertionError(f"create: {a}")
    return a.json


def to_box(box, port=ENVD, token=True, user="user"):
    """Headers that lead to a port of the sandbox."""
    h = {"E2b-Sandbox-Id": box["sandboxID"], "E2b-Sandbox-Port": str(port)}
    if token and port == ENVD:
        h["X-Access-Token"] = token if isinstance(token, str) else box["envdAccessToken"]
    if user and port == ENVD:
        h["Authorization"] = "Basic " + base64.b64encode(f"{user}:".encode()).decode()
    return h


def call(d, box, method, message, token=True, user="user", timeout=70):
    """A unary call: ("filesystem.Filesystem/Stat", {...}) -> Answer"""
    return ask(d, "POST", "/" + method, message, key="", headers=to_box(box, token=token, user=user), timeout=timeout)


def envelopes(data):
    """The messages of a stream: (flags, object)"""
    while len(data) >= 5:
        flags, n = struct.unpack(">BI", data[:5])
        yield flags, json.loads(data[5:5 + n])
        data = data[5 + n:]


class Done:
    """How a command ended: code (None: killed or not started), out and err as bytes, error of the stream."""

    def __init__(self):
        self.code, self.out, self.err, self.end, self.error = None, b"", b"", None, None

    @property
    def text(self):
        return self.out.decode(errors="replace")

    def __repr__(self):
        return f"code {self.code} end {self.end} error {self.error} out {self.out[:1500]!r} err {self.err[:1500]!r}"


def start(cmd, args=(), envs=None, cwd=None, **more):
    """A Start request as bytes."""
    process = {"cmd": cmd, "args": list(args), "envs": envs or {}}
    if cwd:
        process["cwd"] = cwd
    text = json.dumps({"process": process, **more}).encode()
    return struct.pack(">BI", 0, len(text)) + text


def run(d, box, *argv, user="user", timeout=180, envs=None, cwd=None):
    """Run a command in the sandbox and wait for its end."""
    a = ask(d, "POST", "/process.Process/Start", start(argv[0], argv[1:], envs, cwd), key="",
            headers=to_box(box, user=user), kind="application/connect+json", timeout=timeout)
    done = Done()
    if a.status != 200:
        done.error = a.body
        return done
    for flags, m in envelopes(a.body):
        event = m.get("event", {})
        data = event.get("data", {})
        done.out += base64.b64decode(data.get("stdout", "")) + base64.b64decode(data.get("pty", ""))
        done.err += base64.b64decode(data.get("stderr", ""))
        if "end" in event:
            done.end = event["end"]
            done.code = event["end"].get("exitCode", 0) if event["end"].get("exited", True) else None
        if flags & 2 and m.get("error"):
            done.error = m["error"]
    return done


def open_stream(d, box, body, method="process.Process/Start"):
    """Send a streaming request and read nothing: the socket."""
    s = socket.create_connection(("127.0.0.1", d.port), timeout=60)
    fields = "".join(f"{k}: {v}\r\n" for k, v in to_box(box).items())
    s.sendall(f"POST /{method} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Type: application/connect+json\r\n"
              f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return s


def sh(d, box, script, **more):
    return run(d, box, "/bin/sh", "-c", script, **more)


def py(d, box, code, **more):
    return run(d, box, "/usr/bin/python3", "-c", code, **more)


def put(d, box, path, data, user="user", timeout=60):
    return ask(d, "POST", "/files?" + query(path=path, username=user), data, key="", headers=to_box(box, user=None),
               kind="application/octet-stream", timeout=timeout)


def get(d, box, path, user="user", token=True, timeout=60):
    return ask(d, "GET", "/files?" + query(path=path, username=user), key="", headers=to_box(box, user=None, token=token),
               timeout=timeout)


def query(**pairs):
    return urllib.parse.urlencode(pairs)


def raw(d, data, timeout=20, half_close=False, most=1 << 20, first=None):
    """Send bytes as they are; what came back until the end, or until nothing came for `timeout` seconds. first: seconds for the first bytes
    to come, where something must come."""
    with socket.create_connection(("127.0.0.1", d.port), timeout=60) as s:
        s.settimeout(first or timeout)
        got = b""
        try:
            s.sendall(data)
            if half_close:
                s.shutdown(socket.SHUT_WR)
            while len(got) < most:
                piece = s.recv(65536)
                if not piece:
                    break
                got += piece
                s.settimeout(timeout)
        except (TimeoutError, ConnectionError):
            pass
        return got


def memory(pid):
    """Resident bytes of a process."""
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * 4096
