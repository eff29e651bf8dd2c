"""E2B's wire protocol in plain Python: create and kill, streams of commands with offsets, files.

    api = Api(daemon.port, daemon.key)
    box = api.create()                        # Box: .id, .token
    s = box.start("seq 1 100")                # Stream: iterate over events, or s.read_all()
    s = box.attach(s.pid, s.offsets)          # goes on where s stopped
    box.put("/tmp/f", data); box.get("/tmp/f")

Errors of HTTP are WireError with .status and .body; a broken connection is any OSError or http.client.HTTPException.
"""
import base64
import http.client
import json
import struct
import time
import urllib.parse

ENVD = 49983
BROKEN = (OSError, http.client.HTTPException, EOFError)


class WireError(Exception):
    def __init__(self, status, body):
        super().__init__(f"{status} {body!r:.300}")
        self.status, self.body = status, body


class Stream:
    """One Start or Connect. Keeps what was received per stream in .data and the next offset in .offsets."""

    def __init__(self, connection, response):
        self.connection, self.response = connection, response
        self.pid, self.end, self.data = None, None, {"stdout": bytearray(), "stderr": bytearray(), "pty": bytearray()}
        self.first, self.offsets, self.gaps = {}, {}, 0

    def _exactly(self, n):
        data = b""
        while len(data) < n:
            part = self.response.read(n - len(data))
            if not part:
                raise EOFError("the stream was cut")
            data += part
        return data

    def event(self):
        """The next event, None after the last one; cut streams raise."""
        flags, n = struct.unpack(">BI", self._exactly(5))
        message = json.loads(self._exactly(n) or b"{}")
        if flags & 2:
            self.close()
            if "error" in message:
                raise WireError(message["error"]["code"], message["error"])
            return None
        e = message["event"]
        if "start" in e:
            self.pid = e["start"]["pid"]
        elif "data" in e:
            for name in self.data:
                if name in e["data"]:
                    part, at = base64.b64decode(e["data"][name]), e["data"]["offset"]
                    self.first.setdefault(name, at)
                    self.gaps += at != self.offsets.get(name, at)
                    self.offsets[name] = at + len(part)
                    self.data[name] += part
        elif "end" in e:
            self.end = e["end"]
        return e

    def __iter__(self):
        while (e := self.event()) is not None:
            yield e

    def read_all(self):
        for _ in self:
            pass
        return self

    @property
    def out(self):
        return bytes(self.data["stdout"])

    def close(self):
        self.response.close()
        self.connection.close()


class Box:
    def __init__(self, api, made):
        self.api, self.id, self.token = api, made["sandboxID"], made.get("envdAccessToken")

    def headers(self, user=None, port=ENVD):
        h = {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": str(port)}
        if self.token:
            h["X-Access-Token"] = self.token
        if user:
            h["Authorization"] = "Basic " + base64.b64encode(f"{user}:".encode()).decode()
        return h

    def call(self, method, message, **kw):
        """A unary call; `method` is Service/Method without the package."""
        package = {"Process": "process", "Filesystem": "filesystem"}[method.split("/")[0]]
        return json.loads(self.api.ask("POST", f"/{package}.{method}", message, headers=self.headers(), **kw)[1] or b"{}")

    def _stream(self, method, message, timeout, user=None, deadline_ms=None):
        body = json.dumps(message).encode()
        c = self.api.connect(timeout)
        c.request("POST", f"/process.Process/{method}", struct.pack(">BI", 0, len(body)) + body,
                  {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1", **self.headers(user),
                   **({"Connect-Timeout-Ms": str(deadline_ms)} if deadline_ms else {})})
        r = c.getresponse()
        if r.status != 200:
            text = r.read()
            c.close()
            raise WireError(r.status, text)
        s = Stream(c, r)
        s.event()  # always the start, or the error
        return s

    def start(self, command, timeout=60, user=None, deadline_ms=None, **more):
        process = {"cmd": "/bin/bash", "args": ["-c", command]}
        return self._stream("Start", {"process": process, "stdin": False, **more}, timeout, user, deadline_ms)

    def attach(self, pid, offsets=None, timeout=60):
        message = {"process": {"pid": pid}}
        if offsets is not None:
            message["offsets"] = offsets
        return self._stream("Connect", message, timeout)

    def run(self, command, timeout=60, user=None):
        """(exit code, stdout); stderr is in the stream of start()."""
        s = self.start(command, timeout, user).read_all()
        return s.end.get("exitCode", 0), s.out

    def processes(self):
        return {p["pid"] for p in self.call("Process/List", {}).get("processes", [])}

    def put(self, path, data, length=None, timeout=120):
        """data: bytes, or an iterator of them with their length."""
        h = {"Content-Type": "application/octet-stream", **self.headers()}
        if length is not None:
            h["Content-Length"] = str(length)
        where = "/files?" + urllib.parse.urlencode({"path": path})
        return self.api.ask("POST", where, data, headers=h, timeout=timeout, raw=True)

    def open(self, path, timeout=120):
        """(connection, response) of a download; the caller reads and closes."""
        c = self.api.connect(timeout)
        c.request("GET", "/files?" + urllib.parse.urlencode({"path": path}), headers=self.headers())
        r = c.getresponse()
        if r.status != 200:
            text = r.read()
            c.close()
            raise WireError(r.status, text)
        return c, r

    def get(self, path, timeout=120):
        c, r = self.open(path, timeout)
        try:
            return r.read()
        finally:
            c.close()

    def kill(self):
        """False: there was none."""
        try:
            self.api.ask("DELETE", f"/sandboxes/{self.id}")
            return True
        except WireError as e:
            if e.status == 404:
                return False
            raise


class Api:
    def __init__(self, port, key, host="127.0.0.1"):
        self.host, self.port, self.key = host, port, key

    def connect(self, timeout=60):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None, timeout=60, raw=False):
        """(status, body bytes, headers) of a good answer; WireError for the others."""
        h = {"X-API-KEY": self.key} if headers is None else dict(headers)
        if body is not None and not raw:
            body = json.dumps(body)
            h.setdefault("Content-Type", "application/json")
        c = self.connect(timeout)
        try:
            c.request(method, path, body, h)
            r = c.getresponse()
            text = r.read()
        finally:
            c.close()
        if r.status >= 300:
            raise WireError(r.status, text)
        return r.status, text, r.headers

    def create(self, template="host", timeout=60, life=None, patience=60, **more):
        """timeout: of the request; life: seconds until the sandbox ends; patience: how long a 503, which says that it may be tried again, is."""
        if life is not None:
            more["timeout"] = life
        stop = time.monotonic() + patience
        while True:
            try:
                return Box(self, json.loads(self.ask("POST", "/v2/sandboxes", {"templateID": template, **more}, timeout=timeout)[1]))
            except WireError as e:
                if e.status != 503 or time.monotonic() > stop:
                    raise
                time.sleep(0.1)

    def list(self):
        """Ids of all living sandboxes."""
        found, token = set(), ""
        while True:
            _, text, h = self.ask("GET", "/v2/sandboxes?limit=100" + (f"&nextToken={token}" if token else ""))
            found |= {s["sandboxID"] for s in json.loads(text)}
            token = h.get("x-next-token")
            if not token:
                return found
