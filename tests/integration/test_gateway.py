"""Ports of a sandbox as visitors see them: who may enter, signed links, what services are told, pages; real development
servers inside."""
import contextlib
import http.client
import io
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tarfile
import tempfile
import time
import urllib.parse
import uuid

from daemon import Daemon
from hutch_test import check, check_equal, check_in, eventually, skip
from node import needs_root
from node_client import Answer, ask, create, open_stream, patient, put, sh, start
from packages import server_packages
from shared import shared_node
from websocket import WebSocket

# Answers with what it was asked, as JSON; /to redirects, /cookie sets cookies, an upgrade is granted and told its head.
ECHO = r"""
import base64, hashlib, http.server, json, socketserver, sys, urllib.parse
port = int(sys.argv[1])
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        told = json.dumps({"path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}}).encode()
        if self.headers.get("Upgrade", "") == "websocket":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Upgrade", "websocket"); self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.end_headers()
            self.wfile.write(b"\x81" + (bytes([len(told)]) if len(told) < 126 else b"\x7e" + len(told).to_bytes(2, "big")) + told)
            self.close_connection = True
            return
        to = urllib.parse.unquote(self.path.split("=", 1)[1]) if self.path.startswith("/to?u=") else None
        self.send_response(302 if to else 200)
        if to: self.send_header("Location", to)
        if self.path == "/cookie":
            for c in ("a=1; Domain=.hutch.localhost; Path=/x", "b=2; HttpOnly; domain=localhost", "c=3; Path=/", "hutch-port=9", "__Host-hutch-port=9"):
                self.send_header("Set-Cookie", c)
        self.send_header("Content-Length", str(len(told))); self.end_headers(); self.wfile.write(told)
    do_POST = do_GET
    def log_message(self, *a): pass
class S(socketserver.ThreadingMixIn, http.server.HTTPServer):
    allow_reuse_address = daemon_threads = True
s = S(("127.0.0.1", port), H); print("up", flush=True); s.serve_forever()
"""
HTML = {"Accept": "text/html,application/xhtml+xml"}


def native(d, **more):
    a = patient(d, "POST", "/v1/sandboxes", {"template": "host", **more})
    check_equal(a.status, 201, a)
    return a.json


def serve(d, box, *argv, envs=None, cwd=None):
    """Start a program inside that runs as long as the returned stream is open."""
    return open_stream(d, box, start(argv[0], argv[1:], envs, cwd))


@contextlib.contextmanager
def echo(d, box, *ports):
    streams = [serve(d, box, "/usr/bin/python3", "-c", ECHO, str(p)) for p in ports]
    for p in ports:
        eventually(lambda p=p: sh(d, box, f"curl -s -o /dev/null http://127.0.0.1:{p}/").code == 0, 20, f"port {p} inside")
    try:
        yield
    finally:
        for s in streams:
            s.close()


def host_of(d, box, port):
    return f"{port}-{box['sandboxID']}.{d.domain}"


def visit(d, box, port, path="/", headers=None, method="GET", tls=False):
    """A request of a visitor, who has no key. Redirections are not followed."""
    name = host_of(d, box, port)
    if tls:
        c = http.client.HTTPSConnection("127.0.0.1", d.tls_port, timeout=60, context=ssl._create_unverified_context())
    else:
        c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=60)
    try:
        c.request(method, path, headers={"Host": name, **(headers or {})})
        r = c.getresponse()
        return Answer(r.status, r.headers, r.read())
    finally:
        c.close()


def link(d, box, port, **words):
    """A link's path and query, as the API makes it."""
    a = ask(d, "POST", f"/v1/sandboxes/{box['sandboxID']}/ports/{port}/link", words)
    check_equal(a.status, 201, a)
    url = urllib.parse.urlsplit(a.json["url"])
    check_equal((url.scheme, url.netloc), ("https" if d.tls else "http", host_of(d, box, port)))
    return f"{url.path}?{url.query}"


def cookie_of(a):
    return a.headers["Set-Cookie"].split(";")[0]


def ports(d, box, **words):
    a = ask(d, "PUT", f"/v1/sandboxes/{box['sandboxID']}/ports", words)
    check_equal(a.status, 200, a)
    return a.json


def test_private_by_default():
    "ports of a native sandbox need its token in either header; chosen ports are public; E2B's sandboxes are public; a restart changes nothing"
    with Daemon() as d:
        b = native(d, publicPorts=[8001])
        with echo(d, b, 8000, 8001):
            check_equal(visit(d, b, 8000).status, 403)
            token = b["trafficAccessToken"]
            for name in ("Hutch-Traffic-Token", "E2B-Traffic-Access-Token"):
                a = visit(d, b, 8000, headers={name: token})
                check_equal(a.status, 200, a)
                check(token.encode() not in a.body, "the token reaches the service")
                check_equal(visit(d, b, 8000, headers={name: token[:-1] + "x"}).status, 403)
            check_equal(visit(d, b, 8001).status, 200)
            check_equal(ports(d, b, publicPorts=[8000])["publicPorts"], [8000])
            check_equal((visit(d, b, 8000).status, visit(d, b, 8001).status), (200, 403))
            d.kill9("front")
            eventually(d.alive, 20, "front is there again")
            check_equal((visit(d, b, 8000).status, visit(d, b, 8001).status), (200, 403), "after a restart")
            check_equal(ports(d, b, publicTraffic=True)["publicTraffic"], True)
            check_equal(visit(d, b, 8001).status, 200)
            for bad, word in (({"publicPorts": [0]}, "publicPorts[0]"), ({"publicPorts": [49983]}, "49983"), ({"publicPort": [1]}, "publicPort"),
                              ({"portHosts": {"1": "x"}}, "preserve"), ({"publicPorts": list(range(1, 40))}, "32")):
                a = ask(d, "PUT", f"/v1/sandboxes/{b['sandboxID']}/ports", bad)
                check_equal(a.status, 400, a)
                check_in(word, a.json["message"])
        e = create(d)
        with echo(d, e, 8000):
            check_equal(visit(d, e, 8000).status, 200)
            told = ports(d, e, publicTraffic=False)
            check_equal(visit(d, e, 8000).status, 403)
            check_equal(visit(d, e, 8000, headers={"Hutch-Traffic-Token": told["trafficAccessToken"]}).status, 200)


def test_links():
    "a signed link leaves a cookie and leads to the same address without it; neither reaches the service; it ends, can be revoked, and opens nothing else"
    with Daemon() as d:
        b, other = native(d), native(d)
        with echo(d, b, 8000, 8001), echo(d, other, 8000):
            path = link(d, b, 8000, path="/deep/page?x=1&y=%20", expiresIn=600)
            a = visit(d, b, 8000, path)
            check_equal((a.status, a.headers["Location"]), (303, f"http://{host_of(d, b, 8000)}/deep/page?x=1&y=%20"), a)
            given = a.headers["Set-Cookie"]
            age = re.match(r"hutch-port=\S+; Path=/; Max-Age=(\d+); HttpOnly; SameSite=Lax$", given)
            check(age and 500 < int(age[1]) <= 600, given)
            check_equal((a.headers["Cache-Control"], a.headers["Referrer-Policy"]), ("no-store", "no-referrer"))
            cookie = cookie_of(a)
            a = visit(d, b, 8000, "/deep/page?x=1", headers={"Cookie": f"own=1; {cookie}; more=a b"})
            check_equal((a.status, a.json["path"], a.json["headers"]["cookie"]), (200, "/deep/page?x=1", "own=1; more=a b"))
            a = visit(d, b, 8000, headers={"Cookie": cookie})
            check("cookie" not in a.json["headers"], a)
            # curl as a person would: the jar does the rest
            jar = d.dir / "jar"
            r = subprocess.run(["curl", "-sSL", "-c", jar, "-b", jar, "--resolve", f"*:{d.port}:127.0.0.1", f"http://{host_of(d, b, 8000)}{path}"],
                               text=True, capture_output=True, timeout=120, check=False)
            check_equal(json.loads(r.stdout)["path"], "/deep/page?x=1&y=%20", r)
            # other methods and upgrades go on at once, without our parameter
            a = visit(d, b, 8000, path, method="POST")
            check_equal((a.status, a.json["path"]), (200, "/deep/page?x=1&y=%20"), a)
            with WebSocket(d.port, path, {"Host": host_of(d, b, 8000)}) as w:
                check_equal((w.status, json.loads(w.recv())["path"]), (101, "/deep/page?x=1&y=%20"))
            # a path of two slashes is no host
            a = visit(d, b, 8000, "//evil.test/" + path[len("/deep/page"):])
            check(a.headers["Location"].startswith(f"http://{host_of(d, b, 8000)}//evil.test/"), a.headers)
            # nothing else is opened
            for where, port in ((b, 8001), (other, 8000)):
                a = visit(d, where, port, path)
                check_equal(a.status, 403, (port, a))
                check_in("not valid for this port", a.json["message"])
                check_equal(visit(d, where, port, headers={"Cookie": cookie}).status, 403)
            head, mac = path.rsplit(".", 1)
            forged = [head + "." + ("B" if mac[0] == "A" else "A") + mac[1:], head + ".", head, path + "x",
                      re.sub(r"hutch-link=(\d+)", lambda m: f"hutch-link={int(m[1]) + 1000}", path), path[:-3],
                      "/?hutch-link=", "/?hutch-link=99999999999999999999999.AAAA", "/?hutch-link=" + "9" * 5000]
            for bad in forged:
                a = visit(d, b, 8000, bad)
                check_equal(a.status, 403, (bad, a))
                check("Set-Cookie" not in a.headers, bad)
            # the end of one
            for seconds in (1, 5, 30):  # it must be used before that
                short = link(d, b, 8000, expiresIn=seconds)
                first = visit(d, b, 8000, short)
                if "Set-Cookie" in first.headers:
                    break
            kept = cookie_of(first)
            eventually(lambda: visit(d, b, 8000, short).status == 403, 10, "the link expires")
            check_in("expired", visit(d, b, 8000, short).json["message"])
            check_in("expired", visit(d, b, 8000, headers={"Cookie": kept}).json["message"])
            # the key is still the same after a restart; the revocation is too
            d.kill9("front")
            eventually(d.alive, 20, "front is there again")
            check_equal(visit(d, b, 8000, headers={"Cookie": cookie}).status, 200)
            check_equal(ask(d, "DELETE", f"/v1/sandboxes/{b['sandboxID']}/links").status, 204)
            check_equal((visit(d, b, 8000, path).status, visit(d, b, 8000, headers={"Cookie": cookie}).status), (403, 403))
            new = link(d, b, 8000)
            check_equal(visit(d, b, 8000, new).status, 303)
            d.kill9("front")
            eventually(d.alive, 20, "front is there again")
            check_equal((visit(d, b, 8000, path).status, visit(d, b, 8000, new).status), (403, 303), "after a restart")
            for bad, word in (({"expiresIn": 0}, "expiresIn"), ({"expiresIn": 10 ** 9}, "expiresIn"), ({"path": "x"}, "path"), ({"path": "/ü"}, "path"),
                              ({"ttl": 1}, "ttl")):
                a = ask(d, "POST", f"/v1/sandboxes/{b['sandboxID']}/ports/8000/link", bad)
                check_equal(a.status, 400, a)
                check_in(word, a.json["message"])
            for port in ("0", "49983", "x", "70000"):
                check_equal(ask(d, "POST", f"/v1/sandboxes/{b['sandboxID']}/ports/{port}/link", {}).status, 400)


def test_other_origins():
    "over https the cookie is __Host-; a page of another sandbox cannot use it, one of the same sandbox can"
    with shared_node(tls=True) as d:
        b, other = native(d), native(d)
        with echo(d, b, 8000):
            a = visit(d, b, 8000, link(d, b, 8000), tls=True)
            check(a.headers["Set-Cookie"].startswith("__Host-hutch-port=") and a.headers["Set-Cookie"].endswith("; Secure"), a.headers)
            cookie = {"Cookie": cookie_of(a)}
            check_equal(visit(d, b, 8000, headers=cookie, tls=True).status, 200)
            own, sibling = f"https://{host_of(d, b, 8000)}", f"https://{host_of(d, b, 3000)}"
            for origin in (own, sibling):
                check_equal(visit(d, b, 8000, headers={**cookie, "Origin": origin}, tls=True).status, 200, origin)
            for origin in (f"https://{host_of(d, other, 8000)}", "https://evil.test", "null", "", f"https://{d.domain}",
                           f"https://evil.test/{host_of(d, b, 8000)}"):
                a = visit(d, b, 8000, headers={**cookie, "Origin": origin}, tls=True, method="POST")
                check_equal(a.status, 403, (origin, a))
            with WebSocket(d.port, "/", {"Host": host_of(d, b, 8000), **cookie, "Origin": f"https://{host_of(d, other, 8000)}"}) as w:
                check_equal(w.status, 403)


def test_names():
    "a service is asked by the visitor's name or as localhost, the same for requests and WebSockets; what it answers leads back"
    with shared_node() as d:
        b = native(d, publicPorts=[8000], portHosts={"8001": "localhost", "8002": "preserve"}, publicTraffic=True)
        with echo(d, b, 8000, 8001):
            for port, local in ((8000, False), (8001, True)):
                name = host_of(d, b, port)
                sent = {"Origin": f"http://{name}", "Referer": f"http://{name}/page?a", "Forwarded": "for=6.6.6.6", "X-Forwarded-Port": "1"}
                want = f"localhost:{port}" if local else name
                with WebSocket(d.port, "/ws", {"Host": name, **sent}) as w:
                    check_equal(w.status, 101)
                    heads = [visit(d, b, port, headers=sent).json["headers"], json.loads(w.recv())["headers"]]
                for h in heads:
                    check_equal((h["host"], h["origin"], h["referer"]), (want, f"http://{want}", f"http://{want}/page?a"), h)
                    check_equal((h["x-forwarded-host"], h["x-forwarded-proto"], h["x-forwarded-for"], h["x-forwarded-port"]),
                                (name, "http", "127.0.0.1", str(d.port)))
                    check_equal(h["forwarded"], f'for=127.0.0.1;host="{name}";proto=http')
                h = visit(d, b, port, headers={"Origin": "http://elsewhere.test"}).json["headers"]
                check_equal(h["origin"], "http://elsewhere.test")
                for to, back in ((f"http://localhost:{port}/a?b#c", f"http://{name}/a?b#c"), (f"http://127.0.0.1:{port}", f"http://{name}"),
                                 ("/relative", "/relative"), (f"http://localhost:{port}1/", f"http://localhost:{port}1/"),
                                 (f"http://localhost:{port}.evil.test/", f"http://localhost:{port}.evil.test/"),
                                 ("https://elsewhere.test/", "https://elsewhere.test/"), (f"http://[::1]:{port}/v6", f"http://{name}/v6")):
                    check_equal(visit(d, b, port, f"/to?u={urllib.parse.quote(to)}").headers["Location"], back, to)
                cookies = visit(d, b, port, "/cookie").headers.get_all("Set-Cookie")
                check_equal(cookies, ["a=1; Path=/x", "b=2; HttpOnly", "c=3; Path=/"])


# Tells the head of one request as it came, byte for byte.
RAW = r"""
import socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(); print("up", flush=True)
while True:
    c, _ = s.accept(); head = b""
    while b"\r\n\r\n" not in head:
        more = c.recv(65536)
        if not more: break
        head += more
    body = head.split(b"\r\n\r\n")[0]
    c.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body); c.close()
"""


def test_spelling():
    "header names reach the service as an HTTP/1.1 client spelt them, replaced ones too; a masked host is Host; HTTP/2 has lower case"
    with shared_node(tls=True) as d:
        b, masked = native(d, publicTraffic=True), create(d, network={"maskRequestHost": "custom-host.example.com:${PORT}"})
        streams = [serve(d, x, "/usr/bin/python3", "-c", RAW, "8000") for x in (b, masked)]
        for x in (b, masked):
            eventually(lambda x=x: sh(d, x, "curl -s -o /dev/null http://127.0.0.1:8000/").code == 0, 20, "port 8000 inside")

        def told(box, *lines, body=""):
            s = socket.create_connection(("127.0.0.1", d.port), timeout=60)
            s.sendall(("\r\n".join(["POST /x HTTP/1.1", *lines, f"CONTENT-Length: {len(body)}", "Connection: close", "", body])).encode())
            answer = b"".join(iter(lambda: s.recv(65536), b"")).decode()
            s.close()
            return [x.split(":")[0] for x in answer.split("\r\n\r\n", 1)[1].split("\r\n")[1:]], answer
        sent = ("X-CamelCase: 1", "x-lower: 2", "X_ODD-name: 3", "Cookie: hutch-port=1; own=2")
        names, answer = told(b, f"HOST: {host_of(d, b, 8000)}", *sent, body="abc")
        for name in ("HOST", "X-CamelCase", "x-lower", "X_ODD-name", "Cookie", "CONTENT-Length"):
            check(name in names, (name, answer))
        check("hutch-port" not in answer, answer)
        names, answer = told(masked, f"host: {host_of(d, masked, 8000)}", *sent)
        check("Host" in names and "host" not in names and "Host: custom-host.example.com:8000" in answer, answer)
        name = host_of(d, b, 8000)
        r = subprocess.run(["curl", "-sk", "--http2", "--resolve", f"{name.split(':')[0]}:{d.tls_port}:127.0.0.1", "-H", "X-CamelCase: 1", f"https://{name}/"],
                           stdout=subprocess.PIPE, text=True, check=True)
        check("x-camelcase: 1" in r.stdout and f"Host: {name}" in r.stdout, r.stdout)
        for s in streams:
            s.close()


def test_pages_and_log():
    "people get a page without anything from elsewhere, programs get JSON; no preview is indexed; each request is one line of the log"
    with shared_node() as d:
        b = native(d, publicPorts=[8000, 8001])
        gone = {"sandboxID": "i" + "0" * (len(b["sandboxID"]) - 1)}
        with echo(d, b, 8000):
            for box, port, status, words in ((b, 8001, 502, "port is not open"), (b, 8002, 403, "private"), (gone, 80, 502, "was not found")):
                a = visit(d, box, port, headers=HTML)
                check_equal((a.status, a.headers["Content-Type"]), (status, "text/html; charset=utf-8"), a)
                text = a.body.decode()
                check_in(words, text)
                check_in(box["sandboxID"], text)
                check(not re.search(r"(?i)<script|<link|<img|url\(|https?://|@import", text), text)
                check_in("default-src 'none'", a.headers["Content-Security-Policy"])
                j = visit(d, box, port, headers={"Accept": "application/json"})
                check_equal((j.status, j.json["code"], j.json["sandboxId"]), (status, status, box["sandboxID"]), j)
                check_in(words, j.json["message"])
                check_equal((a.headers["X-Robots-Tag"], j.headers["X-Robots-Tag"]), ("noindex", "noindex"))
                check_equal(visit(d, box, port, headers={**HTML, "Sec-Fetch-Mode": "cors"}).headers["Content-Type"].split(";")[0], "application/json")
            check_equal(visit(d, b, 8000).headers["X-Robots-Tag"], "noindex")
            mark = uuid.uuid4().hex
            size = len(visit(d, b, 8000, f"/{mark}?secret=1", headers={"User-Agent": "tester/1 " + "x" * 5000}).body)
            with WebSocket(d.port, f"/ws{mark}", {"Host": host_of(d, b, 8000)}) as w:
                w.recv()

            def lines():
                return [json.loads(line) for line in d.log_path.read_text().splitlines() if mark in line]
            eventually(lambda: len(lines()) == 2, 10, "two lines")
            one, two = sorted(lines(), key=lambda x: x["status"], reverse=True)
            check_equal([one[k] for k in ("sandbox", "port", "method", "path", "status", "bytes", "peer")],
                        [b["sandboxID"], 8000, "GET", f"/{mark}", 200, size, "127.0.0.1"], one)
            check(one["agent"].startswith("tester/1 xxx") and len(one["agent"]) < 200 and "ms" in one and "secret" not in json.dumps(one), one)
            check_equal((two["status"], two["path"]), (101, f"/ws{mark}"), two)


def test_answer_timeout():
    "a service that does not begin its answer in time is given up with 504; a stream that has begun is not"
    code = r"""
import socket, threading, time
def one(s):
    head = s.recv(65536)
    if b"/stream" in head:
        s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na"); time.sleep(3); s.sendall(b"b")
    else: time.sleep(30)
l = socket.create_server(("127.0.0.1", 8000))
while True: threading.Thread(target=one, args=(l.accept()[0],), daemon=True).start()
"""
    with Daemon(config="http:\n  answer_timeout: 1s\n") as d:
        b = native(d, publicTraffic=True)
        s = serve(d, b, "/usr/bin/python3", "-c", code)
        eventually(lambda: visit(d, b, 8000, "/stream").body == b"ab", 20, "the stream")
        a = visit(d, b, 8000, "/never")
        check_equal(a.status, 504, a)
        check_in("in time", a.json["message"])
        s.close()


def test_cli():
    "hutch url prints a link that works, makes ports public and private, and revokes"
    with shared_node() as d:
        b = native(d)
        with echo(d, b, 8000):
            url = d.cli("url", b["sandboxID"], "8000", "--expires", "10m", "--path", "/a?b=c").stdout.strip()
            parts = urllib.parse.urlsplit(url)
            check_equal(parts.netloc, host_of(d, b, 8000))
            a = visit(d, b, 8000, f"{parts.path}?{parts.query}")
            check_equal((a.status, a.headers["Location"]), (303, f"http://{parts.netloc}/a?b=c"), a)
            check(re.search("Max-Age=(600|5..)", a.headers["Set-Cookie"]), a.headers)
            check_equal(d.cli("url", b["sandboxID"], "8000", "--public").stdout, f"http://{parts.netloc}/\n")
            check_equal(visit(d, b, 8000).status, 200)
            check_equal(d.cli("url", b["sandboxID"], "8000", "--private", "--localhost").stdout, "")
            check_equal(visit(d, b, 8000).status, 403)
            a = visit(d, b, 8000, "/", headers={"Hutch-Traffic-Token": b["trafficAccessToken"]})
            check_equal(a.json["headers"]["host"], "localhost:8000")
            d.cli("url", b["sandboxID"], "--revoke")
            check_equal(visit(d, b, 8000, f"{parts.path}?{parts.query}").status, 403)
            for args, word in ((("x y", "8000"), "id or name of a sandbox"), ((b["sandboxID"], "0"), "port"), ((b["sandboxID"],), "--revoke"),
                               ((b["sandboxID"], "8000", "--expires", "soon"), "--expires"), ((b["sandboxID"], "8000", "--public", "--private"), "exclude")):
                r = d.cli("url", *args, check=False)
                check(r.returncode == 120 and word in r.stderr, (args, r))


# ---- real servers ----

def bring(d, box, folder, where):
    """Copy a directory into the sandbox."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as t:
        t.add(folder, arcname=".")
    check_equal(put(d, box, "/tmp/bring.tar", data.getvalue(), timeout=300).status, 200)
    r = sh(d, box, f"mkdir -p {where} && tar xf /tmp/bring.tar -C {where} && rm /tmp/bring.tar", timeout=300)
    check_equal(r.code, 0, r)


def packages(kind):
    where, why = server_packages(kind)
    return where or skip(f"the package index cannot be reached: {' '.join(why.split())[-200:]}")


VITE = {
    "index.html": '<!doctype html><title>app</title><p id=out>-</p><script type="module" src="/main.js"></script>',
    "main.js": "import { word } from './word.js'\nconst say = (w) => { document.getElementById('out').textContent = w; fetch('/report/' + w) }\n"
               "say(word)\nimport.meta.hot.accept('./word.js', (m) => say(m.word))\n",
    "word.js": "export const word = 'first'\n",
    "vite.config.mjs": "import fs from 'node:fs'\nconst note = (w) => fs.appendFileSync('/tmp/reports', w + '\\n')\n"
                       "export default { plugins: [{ name: 'report', configureServer (s) {\n  s.ws.on('connection', () => note('socket'))\n"
                       "  s.middlewares.use('/report', (q, r) => { note(q.url); r.end() }) } }] }\n",
}


@contextlib.contextmanager
def chromium(url, rules):
    """A browser that stays on a page."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        p = subprocess.Popen(["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                              "--ignore-certificate-errors", f"--host-resolver-rules={rules}", f"--user-data-dir={home}", "--remote-debugging-port=0", url],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                             env={**os.environ, "TMPDIR": home})  # it is killed, and would leave its own
        try:
            yield p
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)
            p.wait()


def test_vite():
    "Vite's dev server behind a private link: its host check, modules, hot replacement over WebSocket, in a real browser"
    needs_root()
    npm = packages("npm")
    d = Daemon(tls=True)
    d.domain = f"preview.test:{d.tls_port}"
    with d:
        b = native(d, timeout=600)
        with tempfile.TemporaryDirectory() as t:
            app = pathlib.Path(t)
            for name, text in VITE.items():
                (app / name).write_text(text)
            bring(d, b, app, "/home/user/app")
        bring(d, b, npm / "node_modules", "/home/user/app/node_modules")
        node = "node_modules/node/bin/node" if (npm / "node_modules/node/bin/node").exists() else "node"
        s = serve(d, b, "/bin/sh", "-c", f"exec {node} node_modules/vite/bin/vite.js --port 5173 --strictPort >/tmp/vite.log 2>&1", cwd="/home/user/app")
        token = {"Hutch-Traffic-Token": b["trafficAccessToken"]}

        def get(path, **more):
            return visit(d, b, 5173, path, headers={**token, **more})
        ports(d, b, portHosts={"5173": "preserve"})
        eventually(lambda: get("/").status in (200, 403), 150, "vite listens")
        a = get("/")
        check_equal(a.status, 403, "vite refuses a name it does not know")
        check_in(b"preview.test", a.body, "and it is vite that says so")
        ports(d, b, portHosts={})
        a = get("/")
        check_equal(a.status, 200, a)
        check_in(b"/@vite/client", a.body)
        check_in(b"'first'", get("/word.js").body.replace(b'"', b"'"))
        key = re.search(rb'const wsToken = "([^"]+)"', get("/@vite/client").body)[1].decode()
        origin = f"https://{host_of(d, b, 5173)}"
        with WebSocket(d.port, f"/?token={key}", {"Host": host_of(d, b, 5173), "Origin": origin, **token}, protocol="vite-hmr") as w:
            check_equal((w.status, json.loads(w.recv())["type"]), (101, "connected"))
            sh(d, b, "sed -i s/first/second/ /home/user/app/word.js")
            message = json.loads(w.recv())
            while message["type"] == "ping":
                message = json.loads(w.recv())
            check(message["type"] in ("update", "full-reload"), message)
        eventually(lambda: b"second" in get("/word.js").body, 10, "the new module")
        if shutil.which("chromium"):
            reports = lambda: sh(d, b, "cat /tmp/reports 2>/dev/null").text.split()
            url = f"{origin}{link(d, b, 5173)}"
            with chromium(url, "MAP *.preview.test 127.0.0.1"):
                eventually(lambda: "/second" in reports() and reports().count("socket") >= 2, 120, "the page runs in the browser")
                sh(d, b, "sed -i s/second/third/ /home/user/app/word.js")
                eventually(lambda: "/third" in reports(), 90, "the page was updated where it stands")
            check_equal(reports().count("/second"), 1, "it was not loaded again")
        s.close()


def test_jupyter():
    "Jupyter's server behind a private port: its host and origin checks, its cookies, and a kernel that computes over WebSocket"
    needs_root()
    lib = packages("python") / "lib"
    with shared_node() as d:
        b = native(d, timeout=600)
        bring(d, b, lib, "/home/user/lib")
        env = {"PYTHONPATH": "/home/user/lib", "HOME": "/home/user"}
        s = serve(d, b, "/bin/sh", "-c", "exec /usr/bin/python3 -m jupyter_server --ip=127.0.0.1 --port=8888 --no-browser --IdentityProvider.token= "
                  ">/tmp/jupyter.log 2>&1", envs=env, cwd="/home/user")
        token = {"Hutch-Traffic-Token": b["trafficAccessToken"]}
        name = host_of(d, b, 8888)
        ports(d, b, portHosts={"8888": "preserve"})
        eventually(lambda: visit(d, b, 8888, "/api", headers=token).status in (200, 403), 180, "jupyter listens")
        check_in("Host", sh(d, b, "grep -i 'non-local' /tmp/jupyter.log").text, visit(d, b, 8888, "/api", headers=token))
        ports(d, b, portHosts={})
        a = visit(d, b, 8888, "/api", headers=token)
        check_equal(a.status, 200, (a, sh(d, b, "tail -20 /tmp/jupyter.log").text))
        check_in("version", a.json)
        opened = visit(d, b, 8888, link(d, b, 8888, path="/tree"))
        ours = cookie_of(opened)
        a = visit(d, b, 8888, "/login", headers={"Cookie": ours})
        jar = "; ".join([ours, *(c.split(";")[0] for c in a.headers.get_all("Set-Cookie") or [])])
        xsrf = re.search(r"_xsrf=([^;]+)", jar)
        check(xsrf, (a, jar))
        c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=120)
        c.request("POST", "/api/kernels", b"{}", {"Host": name, "Origin": f"http://{name}", "Cookie": jar, "X-XSRFToken": xsrf[1],
                                                   "Content-Type": "application/json"})
        r = c.getresponse()
        body = r.read()
        check_equal(r.status, 201, body)
        kernel, session = json.loads(body)["id"], uuid.uuid4().hex
        c.close()
        with WebSocket(d.port, f"/api/kernels/{kernel}/channels?session_id={session}", {"Host": name, "Origin": f"http://{name}", "Cookie": jar},
                       timeout=120) as w:
            check_equal(w.status, 101, w.head)
            w.send(json.dumps({"header": {"msg_id": "1", "username": "u", "session": session, "msg_type": "execute_request", "version": "5.3",
                                          "date": "2024-01-01T00:00:00Z"}, "parent_header": {}, "metadata": {}, "channel": "shell",
                               "content": {"code": "1+1", "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}}))
            stop = time.monotonic() + 120
            while True:
                m = json.loads(w.recv())
                if m["msg_type"] == "execute_result":
                    break
                check(time.monotonic() < stop, m)
            check_equal(m["content"]["data"]["text/plain"], "2")
        s.close()
