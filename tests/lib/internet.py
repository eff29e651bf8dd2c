"""A small internet on the loopback: names, an authority, and servers behind them, for tests of what leaves a sandbox.

    with Internet() as net:
        net.config()            # lines for `hutch serve`'s configuration: resolver, authority, addresses that count as public
        net.seen("api.test")    # the requests that arrived there
Names end in .test. Every server stands on its own loopback address, at(N), on the usual ports, so that the runner must be root. Each
lane of tests/run has a network of its own (127.8.0.0/16, 127.9.0.0/16, ...), so that lanes never wait for each other. Nothing here is
reachable from a sandbox but through the node's proxy.
"""
import base64
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import socket
import socketserver
import ssl
import struct
import subprocess
import tempfile
import threading
import time

LANE = int(os.environ.get("HUTCH_TEST_LANE", "0"))
NETWORK = f"127.{8 + LANE}.0"
PUBLIC = f"{NETWORK}.0/16"


def at(number):
    """An address of this lane's internet."""
    return f"{NETWORK}.{number}"


HOSTS = {  # name -> address
    "api.test": at(1), "www.test": at(1), "other.test": at(2), "deep.sub.wild.test": at(2), "files.test": at(3),
    "ssh.test": at(4), "expired.test": at(5), "wrong.test": at(6), "unknown-ca.test": at(7), "h2.test": at(8),
    "private.test": "10.1.2.3", "metadata.test": "169.254.169.254", "loop.test": "127.0.0.1", "mapped.test": "::ffff:169.254.169.254",
    "nobody.test": at(99),
}


def openssl(*args, cwd, text=None):
    subprocess.run(["openssl", *args], cwd=cwd, check=True, capture_output=True, input=text)


class Authority:
    """ca.crt and leaves, made by openssl. A process makes each of them once: all its internets have the same authority, so that a node
    that several tests share trusts every one of them."""
    MADE = {}  # (authority, leaf) -> {file name: its bytes}

    def __init__(self, directory, name="Test Internet"):
        self.dir, self.name = pathlib.Path(directory), name
        self.dir.mkdir(exist_ok=True)
        self.cert = self.dir / "ca.crt"
        self.once((name,), ("ca.key", "ca.crt"), self._make)

    def once(self, key, names, make, *args):
        if key not in self.MADE:
            make(*args)
            self.MADE[key] = {name: (self.dir / name).read_bytes() for name in names}
        for name, data in self.MADE[key].items():
            (self.dir / name).write_bytes(data)

    def _make(self):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key", "-out", "ca.crt",
                "-days", "30", "-subj", f"/CN={self.name}", cwd=self.dir)

    def leaf(self, name, *names, days="10"):
        """PEM file with key, leaf and authority."""
        self.once((self.name, name, names, days), (f"{name}.key", f"{name}.crt"), self._make_leaf, name, names, days)
        out = self.dir / f"{name}.pem"
        out.write_bytes((self.dir / f"{name}.key").read_bytes() + (self.dir / f"{name}.crt").read_bytes() + self.cert.read_bytes())
        return out

    def _make_leaf(self, name, names, days):
        key, csr, crt, ext = (f"{name}.{x}" for x in ("key", "csr", "crt", "ext"))
        (self.dir / ext).write_text("subjectAltName=" + ",".join(f"DNS:{n}" for n in names or (name,)) + "\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", csr, "-subj", f"/CN={name}", cwd=self.dir)
        openssl("x509", "-req", "-in", csr, "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", crt, "-days", days, "-extfile", ext, cwd=self.dir)


class Names(socketserver.BaseRequestHandler):
    """A name server: A, AAAA, and nothing else; counts what was asked."""

    def handle(self):
        data, sock = self.request
        if len(data) < 17:
            return
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1:at + 1 + data[at]])
            at += 1 + data[at]
        qtype = struct.unpack(">H", data[at + 1:at + 3])[0]
        name = b".".join(labels).decode().lower()
        self.server.asked.append(name)
        known, aliases = self.server.hosts.get(name), []
        while callable(known) or isinstance(known, tuple):
            if isinstance(known, tuple):  # ("cname", name)
                aliases.append(known[1])
            known = known() if callable(known) else self.server.hosts.get(known[1])
        answers = [a for a in ([known] if isinstance(known, str) else known or []) if (":" in a) == (qtype == 28) and qtype in (1, 28)]
        flags = 0x8180 if known else 0x8183
        head = data[:2] + struct.pack(">HHHHH", flags, 1, len(aliases) + len(answers), 0, 0) + data[12:at + 5]
        owner = b"\xc0\x0c"
        for alias in aliases:
            raw = b"".join(bytes([len(x)]) + x.encode() for x in alias.split(".")) + b"\0"
            head, owner = head + owner + struct.pack(">HHIH", 5, 1, 1, len(raw)) + raw, raw
        for a in answers:
            raw = socket.inet_pton(socket.AF_INET6 if ":" in a else socket.AF_INET, a)
            head += owner + struct.pack(">HHIH", qtype, 1, 1, len(raw)) + raw
        sock.sendto(head, self.client_address)


class Web(http.server.BaseHTTPRequestHandler):
    """/echo says what arrived; /sse, /bytes/N, /status/N, /redirect?URL, /slow/N; /f/... are files, if there are any; a WebSocket
    anywhere echoes; anything else is a short text."""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def log_message(self, *_):
        pass

    def answer(self, body, status=200, kind="text/plain", **fields):
        body = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for k, v in fields.items():
            self.send_header(k.replace("_", "-"), v)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self):
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            out = b""
            while True:
                n = int(self.rfile.readline().split(b";")[0], 16)
                out += self.rfile.read(n)
                self.rfile.readline()
                if n == 0:
                    return out
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def websocket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8:
                break
            n = head[1] & 127
            n = struct.unpack(">H", self.rfile.read(2))[0] if n == 126 else n
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(n)))
            self.wfile.write(bytes([0x81]) + (bytes([n]) if n < 126 else bytes([126]) + struct.pack(">H", n)) + data)
            self.wfile.flush()
        self.close_connection = True

    def serve(self):
        path, _, query = self.path.partition("?")
        headers = {k.lower(): v for k, v in self.headers.items()}
        if headers.get("upgrade", "").lower() == "websocket":
            self.server.note(self, b"")
            return self.websocket()
        body = self.body()
        self.server.note(self, body)
        parts = path.strip("/").split("/")
        if path == "/echo":
            return self.answer(json.dumps({"method": self.command, "path": self.path, "headers": headers, "tls": self.server.tls,
                                           "body": body.decode("latin1")[:4096], "length": len(body)}), kind="application/json")
        if path == "/sse":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for i in range(int(query or 5)):
                data = f"data: {i}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
                time.sleep(0.1)
            return self.wfile.write(b"0\r\n\r\n")
        if parts[0] == "bytes":
            return self.answer(b"x" * int(parts[1]), kind="application/octet-stream")
        if parts[0] == "status":
            return self.answer("status\n", int(parts[1]))
        if parts[0] == "redirect":
            return self.answer("", 302, Location=query)
        if parts[0] == "slow":
            time.sleep(float(parts[1]))
        if self.server.pages is not None:
            page = self.server.pages.get((self.command, path)) or self.server.pages.get(path)
            return self.answer(*page) if page else self.answer("no such page\n", 404)
        if self.server.files and parts[0] == "f":
            name = self.server.files / "/".join(parts[1:])
            name = name / "index.html" if name.is_dir() else name
            if not name.is_file():
                return self.answer("no such file\n", 404)
            kind = {".html": "text/html", ".json": "application/json"}.get(name.suffix, "application/octet-stream")
            return self.answer(name.read_bytes(), kind=kind)
        return self.answer(f"hello from {headers.get('host')}\n")

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = serve


class WebServer(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads = True, True
    request_queue_size = 128

    def __init__(self, address, context=None, files=None):
        self.tls, self.context, self.files, self.requests, self.lock = bool(context), context, files, [], threading.Lock()
        self.pages = None
        super().__init__(address, Web)

    def note(self, r, body):
        with self.lock:
            self.requests.append({"method": r.command, "path": r.path, "body": body, "host": (r.headers.get("Host") or "").split(":")[0],
                                  "headers": {k.lower(): v for k, v in r.headers.items()}})

    def finish_request(self, request, client_address):
        if self.context:
            request.settimeout(60)
            request = self.context.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, *_):
        pass


class Banner(socketserver.BaseRequestHandler):
    """Speaks first, as SSH and mail servers do, then echoes."""

    def handle(self):
        try:
            self.request.sendall(b"SSH-2.0-test\r\n")
            while data := self.request.recv(4096):
                self.request.sendall(data)
        except OSError:  # cut, as some tests want it
            pass


class Raw(socketserver.BaseRequestHandler):
    """Keeps the bytes as they came; server.talk(socket, head) answers, once a head is there."""

    def handle(self):
        log = bytearray()
        with self.server.lock:
            self.server.logs.append(log)
        try:
            s = self.server.context.wrap_socket(self.request, server_side=True) if self.server.context else self.request
            s.settimeout(60)
            while data := s.recv(65536):
                log += data
                if b"\r\n\r\n" in log:
                    if self.server.talk(s, bytes(log)) is not True:
                        if self.server.context:
                            s.unwrap()
                        break
        except OSError:
            pass


class Socks(socketserver.BaseRequestHandler):
    """A SOCKS5 proxy that wants server.login, "USER:PASSWORD", and connects to addresses. server.logins and server.targets: what it heard."""

    def exactly(self, n):
        out = b""
        while len(out) < n:
            data = self.request.recv(n - len(out))
            if not data:
                raise OSError("it left")
            out += data
        return out

    def handle(self):
        try:
            self.request.settimeout(60)
            methods = self.exactly(self.exactly(2)[1])
            if 2 not in methods:
                return self.request.sendall(b"\x05\xff")
            self.request.sendall(b"\x05\x02")
            user = self.exactly(self.exactly(2)[1])
            password = self.exactly(self.exactly(1)[0])
            self.server.logins.append((user + b":" + password).decode())
            if self.server.logins[-1] != self.server.login:
                return self.request.sendall(b"\x01\x01")
            self.request.sendall(b"\x01\x00")
            kind = self.exactly(4)[3]
            address = socket.inet_ntop(socket.AF_INET if kind == 1 else socket.AF_INET6, self.exactly(4 if kind == 1 else 16))
            port = struct.unpack(">H", self.exactly(2))[0]
            self.server.targets.append((address, port))
            with socket.create_connection((address, port), 60) as out:
                self.request.sendall(b"\x05\x00\x00\x01\0\0\0\0\0\0")
                back = threading.Thread(target=self.copy, args=(out, self.request), daemon=True)
                back.start()
                self.copy(self.request, out)
                back.join(60)
        except OSError:
            pass

    @staticmethod
    def copy(a, b):
        try:
            while data := a.recv(65536):
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def alone():
    """A lane has one such internet at a time, because its addresses and ports are fixed: a second one waits for the first."""
    lock, stop = socket.socket(socket.AF_UNIX), time.monotonic() + 400
    while True:
        try:
            lock.bind(f"\0the internet of tests on {NETWORK}")
            return lock
        except OSError:
            if time.monotonic() > stop:
                raise
            time.sleep(0.1)


class Internet:
    def __init__(self, files=None):
        self.lock = alone()
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="hutch-internet-"))
        self.files, self.hosts, self.servers, self.procs = files, dict(HOSTS), [], []

    def start_server(self, server):
        self.servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def context(self, pem):
        c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        c.load_cert_chain(pem)
        return c

    def __enter__(self):
        try:
            self.ca, self.other_ca = Authority(self.dir / "ca"), Authority(self.dir / "other", "Unknown")
            names = socketserver.ThreadingUDPServer(("127.0.0.1", 9500 + LANE), Names)
            names.daemon_threads, names.hosts, names.asked = True, self.hosts, []
            self.names = self.start_server(names)
            good = self.context(self.ca.leaf("api.test", "api.test", "www.test", "other.test", "*.wild.test", "deep.sub.wild.test", "files.test"))
            self.web = {}
            for ip in (at(1), at(2), at(3)):
                self.web[ip, 80] = self.start_server(WebServer((ip, 80), files=self.files))
                self.web[ip, 443] = self.start_server(WebServer((ip, 443), good, files=self.files))
            bad = {at(5): self.ca.leaf("expired.test", days="-1"), at(6): self.ca.leaf("right.test"),
                   at(7): self.other_ca.leaf("unknown-ca.test")}
            for ip, pem in bad.items():
                self.web[ip, 443] = self.start_server(WebServer((ip, 443), self.context(pem)))
            socketserver.ThreadingTCPServer.allow_reuse_address = True
            banner = socketserver.ThreadingTCPServer((at(4), 22), Banner)
            banner.daemon_threads = True
            self.start_server(banner)
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        for p in self.procs:
            p.kill()
            p.wait()
        ends = [threading.Thread(target=s.shutdown) for s in self.servers]  # each waits until its server notices: all at once
        for wait in (threading.Thread.start, threading.Thread.join):
            for end in ends:
                wait(end)
        for s in self.servers:
            s.server_close()
        shutil.rmtree(self.dir, ignore_errors=True)
        self.lock.close()

    def start_raw(self, name, address, talk, port=80, tls=False):
        """A server that answers as it likes: talk(socket, bytes so far) after each piece, True to go on reading. Its .logs are the bytes
        of each connection."""
        self.hosts[name] = address
        context = self.context(self.ca.leaf(name)) if tls else None
        kind = type("RawServer", (socketserver.ThreadingTCPServer,), {"allow_reuse_address": True, "request_queue_size": 128})
        server = kind((address, port), Raw)
        server.daemon_threads, server.talk, server.logs, server.lock, server.context = True, talk, [], threading.Lock(), context
        return self.start_server(server)

    def start_site(self, names, address, pages):
        """An https server with names of the real world. pages: path, or (method, path) -> (body, status, type)."""
        for name in names:
            self.hosts[name] = address
        server = WebServer((address, 443), self.context(self.ca.leaf(names[0], *names)))
        server.pages = pages
        self.web[address, 443] = self.start_server(server)
        return server

    def start_socks(self, login, name="socks.test", address=at(20), port=1080):
        self.hosts[name] = address
        server = socketserver.ThreadingTCPServer((address, port), Socks)
        server.daemon_threads, server.login, server.logins, server.targets = True, login, [], []
        return self.start_server(server)

    def start_h2(self, docroot):
        """nghttpd on h2.test:443."""
        pem = self.ca.leaf("h2.test")
        key = self.ca.dir / "h2.test.key"
        chain = self.dir / "h2.crt"
        chain.write_bytes((self.ca.dir / "h2.test.crt").read_bytes())
        p = subprocess.Popen(["nghttpd", f"--address={at(8)}", "-d", str(docroot), "443", str(key), str(chain)], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
        self.procs.append(p)
        stop = time.monotonic() + 60
        while time.monotonic() < stop:
            with socket.socket() as s:
                if s.connect_ex((at(8), 443)) == 0:
                    return pem
            time.sleep(0.05)
        raise RuntimeError("nghttpd did not start")

    def resolver(self):
        return "127.0.0.1:%d" % self.names.server_address[1]

    def config(self, refusals="readable"):
        """Refusals in words, so that tests can read the reason in either dialect; None: the node's own default. More keys of
        egress may follow."""
        said = f"sandboxes:\n  refusals: {refusals}\n" if refusals else ""
        return f"{said}egress:\n  resolvers: {self.resolver()}\n  trust: {self.ca.cert}\n  test_loopback: {PUBLIC}\n"

    def env(self):
        """For `hutch run` of the test build."""
        return {"HUTCH_TEST_RESOLVERS": self.resolver(), "HUTCH_TEST_LOOPBACK": PUBLIC, "SSL_CERT_FILE": str(self.ca.cert)}

    def seen(self, name=None):
        out = []
        for s in self.web.values():
            with s.lock:
                out += [r for r in s.requests if name in (None, r["host"])]
        return out

    def forget(self):
        for s in self.web.values():
            with s.lock:
                s.requests.clear()
        self.names.asked.clear()
