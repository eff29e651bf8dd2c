"""Runs inside a sandbox: sockets, TLS, HTTP/1, HTTP/2, DNS and SOCKS by hand, as nobody sane would use them.

tests put its text in front of their own code (inside() in netattack.py), which prints one JSON value with say(). Outside it is only read.
"""
import json
import os
import re
import socket
import ssl
import struct
import time

GATE, PROXY, SOCKS = "10.255.0.1", ("10.255.0.1", 3128), ("10.255.0.1", 1080)


def say(value):
    print(json.dumps(value, default=lambda b: b.decode("latin1")))


def errno_of(f, *args):
    """The name of the errno that f ends with, or "success"."""
    import errno
    try:
        f(*args)
    except TimeoutError:
        return "timeout"
    except OSError as e:
        return errno.errorcode.get(e.errno, type(e).__name__ + " " + str(e))
    return "success"


def read_all(s, timeout=30, most=1 << 20):
    """What comes until the end, or until nothing came for `timeout` seconds."""
    s.settimeout(timeout)
    got = b""
    try:
        while len(got) < most:
            piece = s.recv(65536)
            if not piece:
                break
            got += piece
    except OSError as e:
        return got + (b"" if isinstance(e, TimeoutError) or got else b"!" + type(e).__name__.encode())
    return got


def read_until(s, enough, timeout=30):
    """What comes until enough(bytes), and what comes within half a second after that; the end, or nothing for `timeout` seconds, is enough too."""
    s.settimeout(timeout)
    got = b""
    try:
        while not enough(got):
            piece = s.recv(65536)
            if not piece:
                return got
            got += piece
    except OSError as e:
        return got + (b"" if isinstance(e, TimeoutError) or got else b"!" + type(e).__name__.encode())
    more = read_all(s, 0.5)
    return got + (b"" if more.startswith(b"!") else more)


def dial(host, port=443, via=None, timeout=60):
    """A TCP stream to host:port: by the resolver and a connect (None), by CONNECT or by SOCKS ("connect", "socks5", "socks4a"). host may be
    bytes for proxies. What the proxy said, if it was not yes, is raised."""
    raw = host if isinstance(host, bytes) else host.encode("latin1")
    if via is None:
        return socket.create_connection((host, port), timeout=timeout)
    s = socket.create_connection(PROXY if via == "connect" else SOCKS, timeout=timeout)
    if via == "connect":
        s.sendall(b"CONNECT %s:%d HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (raw, port, raw, port))
        got = b""
        while b"\r\n\r\n" not in got:
            piece = s.recv(1)
            if not piece:
                break
            got += piece
        if not got.startswith(b"HTTP/1.1 200"):
            raise ConnectionError((got + read_all(s, 3)).decode("latin1"))
    elif via == "socks4a":
        s.sendall(struct.pack(">BBH", 4, 1, port) + b"\0\0\0\1" + b"u\0" + raw + b"\0")
        got = s.recv(8)
        if got[1:2] != b"\x5a":
            raise ConnectionError("socks4 %r" % got)
    else:
        s.sendall(b"\5\1\0")
        s.recv(2)
        if via == "socks5":
            where = b"\3" + bytes([len(raw)]) + raw
        else:  # an address
            family = socket.AF_INET6 if b":" in raw else socket.AF_INET
            where = (b"\4" if family == socket.AF_INET6 else b"\1") + socket.inet_pton(family, raw.decode())
        s.sendall(b"\5\1\0" + where + struct.pack(">H", port))
        got = s.recv(64)
        if got[1:2] != b"\0":
            raise ConnectionError("socks5 %r" % got)
    return s


def tls(s, sni="api.test", alpn=None, lowest=None, highest=None):
    """TLS over it without a look at the certificate; sni None sends none."""
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    if alpn:
        c.set_alpn_protocols(alpn)
    if highest:
        c.maximum_version = highest
    return c.wrap_socket(s, server_hostname=sni)


def hello_bytes(sni, alpn=None):
    """The ClientHello that OpenSSL would send: a handshake message without its record."""
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    if alpn:
        c.set_alpn_protocols(alpn)
    out = ssl.MemoryBIO()
    t = c.wrap_bio(ssl.MemoryBIO(), out, server_hostname=sni)
    try:
        t.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()[5:]


def record(message, version=b"\3\1"):
    return b"\x16" + version + struct.pack(">H", len(message)) + message


def with_extensions(message, change):
    """The hello with its list of (type, body) changed by change(list) -> list."""
    at = 4 + 2 + 32
    at += 1 + message[at]
    at += 2 + struct.unpack(">H", message[at:at + 2])[0]
    at += 1 + message[at]
    rest, found = message[at + 2:], []
    while rest:
        kind, n = struct.unpack(">HH", rest[:4])
        found.append((kind, rest[4:4 + n]))
        rest = rest[4 + n:]
    body = b"".join(struct.pack(">HH", k, len(b)) + b for k, b in change(found))
    inner = message[4:at] + struct.pack(">H", len(body)) + body
    return b"\1" + struct.pack(">I", len(inner))[1:] + inner


def sni_extension(*names):
    entries = b"".join(b"\0" + struct.pack(">H", len(n)) + n for n in names)
    return struct.pack(">H", len(entries)) + entries


def answer_to_hello(host, data, port=443, via=None, timeout=60):
    """What comes back to a hello: "server" (it goes on), "alert N", "reset", "closed"."""
    try:
        s = dial(host, port, via)
    except ConnectionError as e:
        return "refused " + str(e)[:80]
    try:
        for piece in data if isinstance(data, list) else [data]:
            s.sendall(piece)
        got = read_all(s, timeout, 6)
    except OSError as e:
        return "reset " + type(e).__name__
    finally:
        s.close()
    if got[:1] == b"\x16":
        return "server"
    if got[:1] == b"\x15":
        return "alert %d" % got[6]
    return "reset" if got[:1] == b"!" else "closed" if not got else "other " + got[:40].decode("latin1")


def split_tls(s, sni, cut_records, cut_segments):
    """A complete handshake whose hello is cut into records and segments; returns a function that sends a request and reads its answer."""
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    inc, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    t = c.wrap_bio(inc, out, server_hostname=sni)
    first = True
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        try:
            t.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            done = False
        data = out.read()
        if first and data:
            message, data = data[5:], b""
            for i in range(0, len(message), cut_records):
                data += record(message[i:i + cut_records])
            for i in range(0, len(data), cut_segments):
                s.sendall(data[i:i + cut_segments])
            first = False
        elif data:
            s.sendall(data)
        if done:
            break
        piece = s.recv(65536)
        if not piece:
            raise ConnectionError("closed in the handshake")
        inc.write(piece)

    def request(data):
        t.write(data)
        s.sendall(out.read())
        got = b""
        s.settimeout(60)
        while b"\r\n\r\n" not in got:
            piece = s.recv(65536)
            if not piece:
                break
            inc.write(piece)
            try:
                while more := t.read(65536):
                    got += more
                break
            except ssl.SSLWantReadError:
                pass
        return got
    return request


class Http:
    """An answer: status (0: none), reason of a refusal, everything that came."""

    def __init__(self, raw):
        self.raw = raw
        self.all = [int(x) for x in re.findall(rb"(?:^|\n|[^\n])HTTP/1\.[01] (\d\d\d) ", raw)]
        self.status = self.all[0] if self.all else 0
        m = re.search(rb'"reason": ?"([a-z_]+)"', raw)
        self.reason = m.group(1).decode() if m else ""

    def __iter__(self):
        return iter((self.status, self.reason))


def http(data, host="api.test", port=443, via=None, sni=True, timeout=30, to=None):
    """Bytes to host in TLS (port 443) or plain; what came back. sni: True: the host's. to: another address to connect to."""
    try:
        s = dial(to or host, port, via)
        if sni is not False and port == 443:
            s = tls(s, host if sni is True else sni)
        s.sendall(data)
        return Http(read_all(s, timeout))
    except (OSError, UnicodeError) as e:
        a = Http(str(e).encode())
        a.raw = (type(e).__name__ + " " + str(e)).encode()
        return a


def get(path, host="api.test", more=b"", method=b"GET"):
    path = path if isinstance(path, bytes) else path.encode()
    return b"%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s\r\n" % (method, path, host.encode(), more)


# --- HTTP/2 ---

def field(name, value, huff=False):
    """A literal that is never indexed; any bytes."""
    name, value = (x if isinstance(x, bytes) else x.encode() for x in (name, value))

    def text(b):
        return bytes([len(b)]) + b if len(b) < 127 else b"\x7f" + varint(len(b) - 127) + b
    return b"\x10" + text(name) + text(value)


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def frame(kind, flags, stream, body=b""):
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


DIGITS = {"00000": "0", "00001": "1", "00010": "2", "011001": "3", "011010": "4", "011011": "5", "011100": "6", "011101": "7", "011110": "8",
          "011111": "9"}


def status_of(block):
    while block and block[0] & 0xe0 == 0x20:
        block = block[1:]
    known = {8: 200, 9: 204, 10: 206, 11: 304, 12: 400, 13: 404, 14: 500}
    if block[:1] and block[0] & 0x80:
        return known.get(block[0] & 0x7f, -1)
    n, raw = block[1] & 0x7f, block[2:2 + (block[1] & 0x7f)]
    if not block[1] & 0x80:
        return int(raw)
    bits, out, word = "".join(f"{b:08b}" for b in raw), "", ""
    for b in bits:
        word += b
        if word in DIGITS:
            out, word = out + DIGITS[word], ""
            if len(out) == 3:
                break
    return int(out) if len(out) == 3 else -n


class H2:
    """One connection; answers are collected by stream: [status, body, "reset N"]."""

    def __init__(self, host="api.test", sni=None, via=None, to=None):
        self.s = tls(dial(to or host, 443, via), sni or host, ["h2"])
        self.alpn, self.streams, self.goaway, self.buf, self.closed = self.s.selected_alpn_protocol(), {}, None, b"", False
        self.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, struct.pack(">HI", 1, 0)))

    def send(self, data):
        try:
            self.s.sendall(data)
        except OSError:
            self.closed = True

    def request(self, stream, authority, path="/", method="GET", scheme="https", more=(), end=True, pseudo=None):
        head = pseudo if pseudo is not None else [(":method", method), (":scheme", scheme), (":authority", authority), (":path", path)]
        block = b"".join(field(k, v) for k, v in [*head, *more] if v is not None)
        self.send(frame(1, 4 | (1 if end else 0), stream, block))

    def pump(self, until=(), seconds=30):
        """Read until these streams ended, or the connection did."""
        stop = time.monotonic() + seconds
        self.s.settimeout(0.3)
        while not self.closed and time.monotonic() < stop and not (until and all(self.streams.get(i, {}).get("end") for i in until)):
            try:
                piece = self.s.recv(65536)
                if not piece:
                    self.closed = True
                self.buf += piece
            except TimeoutError:
                continue
            except OSError:
                self.closed = True
            while len(self.buf) >= 9:
                n = struct.unpack(">I", b"\0" + self.buf[:3])[0]
                if len(self.buf) < 9 + n:
                    break
                kind, flags, stream = self.buf[3], self.buf[4], struct.unpack(">I", self.buf[5:9])[0]
                body, self.buf = self.buf[9:9 + n], self.buf[9 + n:]
                st = self.streams.setdefault(stream, {"status": 0, "body": b"", "end": False, "reset": None})
                if kind == 1 and not st["status"]:
                    st["status"] = status_of(body)
                elif kind == 0:
                    st["body"] += body
                elif kind == 3:
                    st["reset"], st["end"] = struct.unpack(">I", body)[0], True
                elif kind == 4 and not flags & 1:
                    self.send(frame(4, 1, 0))
                elif kind == 7:
                    self.goaway = struct.unpack(">I", body[4:8])[0]
                if kind in (0, 1) and flags & 1:
                    st["end"] = True
        return self

    def answer(self, stream):
        """(status, reason of the refusal); a reset stream or connection has a negative status."""
        self.pump((stream,))
        st = self.streams.get(stream)
        if not st or not st["status"]:
            return (-1, "reset %s" % st["reset"] if st and st["reset"] is not None else "goaway %s" % self.goaway)
        m = re.search(rb'"reason": ?"([a-z_]+)"', st["body"])
        return (st["status"], m.group(1).decode() if m else "")


# --- DNS ---

def dns(name, kind=1, server=GATE, timeout=20, cls=1, tcp=False, raw=None, flags=0x0100):
    """(rcode, [addresses or lengths], whole) of one question; rcode -1: no answer. name may be a list of labels in bytes."""
    labels = name if isinstance(name, list) else [x.encode() for x in name.split(".") if x]
    q = raw or (b"\x12\x34" + struct.pack(">HHHHH", flags, 1, 0, 0, 0) + b"".join(bytes([len(x)]) + x for x in labels) + b"\0" + struct.pack(">HH", kind, cls))
    try:
        if tcp:
            s = socket.create_connection((server, 53), timeout)
            s.sendall(struct.pack(">H", len(q)) + q)
            got = s.recv(4096)[2:]
        else:
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            s.settimeout(timeout)
            s.connect((server, 53))
            s.send(q)
            got = s.recv(4096)
        s.close()
    except OSError as e:
        return (-1, [type(e).__name__], b"")
    if len(got) < 12:
        return (-1, ["short"], got)
    count = struct.unpack(">H", got[6:8])[0]
    out = []
    if count and kind == 1:
        out = [socket.inet_ntoa(got[-16 * (count - i):][12:16]) for i in range(count)] if len(got) >= 16 * count else []
    return (got[3] & 15, out or [count], got)
