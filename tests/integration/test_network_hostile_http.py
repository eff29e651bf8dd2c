"""Requests that two readers would understand differently: framing, targets, HTTP/2, and servers that answer with the like. What is judged
must be what is sent, and what is not clear must not be sent at all."""
import re
import socket
import threading

from hutch_test import SOAK, check, check_equal, check_in, eventually, skip
from internet import at
from netattack import allow, box, inside, network
from node_client import sh
from shared import shared_world

# name -> bytes after "POST /a HTTP/1.1\r\nHost: api.test\r\n"; each tries to make a reader see a request for /smuggled.
INNER = "GET /smuggled HTTP/1.1\\r\\nHost: api.test\\r\\n\\r\\n"
SMUGGLING = {
    "CL and TE": f"Content-Length: {5 + len(INNER) - INNER.count(chr(92)) // 2 * 2}\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n{INNER}",
    "TE and CL": f"Transfer-Encoding: chunked\\r\\nContent-Length: 4\\r\\n\\r\\n1\\r\\nx\\r\\n0\\r\\n\\r\\n{INNER}",
    "two CL": f"Content-Length: 0\\r\\nContent-Length: 60\\r\\n\\r\\n{INNER}",
    "two equal CL": f"Content-Length: 0\\r\\nContent-Length: 0\\r\\n\\r\\n{INNER}",
    "CL list": f"Content-Length: 0, 0\\r\\n\\r\\n{INNER}",
    "CL plus": f"Content-Length: +0\\r\\n\\r\\n{INNER}",
    "CL minus": f"Content-Length: -1\\r\\n\\r\\n{INNER}",
    "CL hex": f"Content-Length: 0x0\\r\\n\\r\\n{INNER}",
    "CL huge": f"Content-Length: 18446744073709551616\\r\\n\\r\\n{INNER}",
    "CL space inside": f"Content-Length: 0 0\\r\\n\\r\\n{INNER}",
    "TE identity": f"Transfer-Encoding: identity\\r\\n\\r\\n{INNER}",
    "TE chunked, identity": f"Transfer-Encoding: chunked, identity\\r\\n\\r\\n0\\r\\n\\r\\n{INNER}",
    "TE identity, chunked": f"Transfer-Encoding: identity, chunked\\r\\n\\r\\n0\\r\\n\\r\\n{INNER}",
    "TE twice": f"Transfer-Encoding: chunked\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n{INNER}",
    "TE xchunked": f"Transfer-Encoding: xchunked\\r\\n\\r\\n{INNER}",
    "TE quoted": f'Transfer-Encoding: \\"chunked\\"\\r\\n\\r\\n{INNER}',
    "TE tab": f"Transfer-Encoding:\\x0bchunked\\r\\n\\r\\n0\\r\\n\\r\\n{INNER}",
    "TE space before colon": f"Transfer-Encoding : chunked\\r\\n\\r\\n0\\r\\n\\r\\n{INNER}",
    "TE folded": f"Transfer-Encoding:\\r\\n chunked\\r\\n\\r\\n0\\r\\n\\r\\n{INNER}",
    "TE underscore": f"Transfer_Encoding: chunked\\r\\nContent-Length: 0\\r\\nX: y\\n\\r\\n{INNER}",
    "folded field": f"X-A: b\\r\\n\\tc\\r\\nContent-Length: 0\\r\\n\\r\\n{INNER}",
    "bare LF in head": f"X-A: b\\nContent-Length: 0\\r\\n\\r\\n{INNER}",
    "bare LF all": f"Content-Length: 0\\n\\n{INNER}",
    "bare CR": f"X-A: b\\rTransfer-Encoding: chunked\\r\\nContent-Length: 0\\r\\n\\r\\n{INNER}",
    "NUL in value": f"X-A: b\\0c\\r\\nContent-Length: 0\\r\\n\\r\\n{INNER}",
    "no colon": f"GET /smuggled HTTP/1.1\\r\\nContent-Length: 0\\r\\n\\r\\n{INNER}",
    "empty name": f": x\\r\\nContent-Length: 0\\r\\n\\r\\n{INNER}",
    "space first": f" X: y\\r\\nContent-Length: 0\\r\\n\\r\\n{INNER}",
    "chunk extension": f"Transfer-Encoding: chunked\\r\\n\\r\\n1;a=\\nx\\r\\nx\\r\\n0\\r\\n\\r\\n{INNER}",
    "chunk LF": f"Transfer-Encoding: chunked\\r\\n\\r\\n1\\nx\\n0\\n\\n{INNER}",
    "chunk size sign": f"Transfer-Encoding: chunked\\r\\n\\r\\n+1\\r\\nx\\r\\n0\\r\\n\\r\\n{INNER}",
    "chunk size 0x": f"Transfer-Encoding: chunked\\r\\n\\r\\n0x1\\r\\nx\\r\\n0\\r\\n\\r\\n{INNER}",
    "chunk size huge": f"Transfer-Encoding: chunked\\r\\n\\r\\n10000000000000001\\r\\nx\\r\\n0\\r\\n\\r\\n{INNER}",
    "chunk too long": f"Transfer-Encoding: chunked\\r\\n\\r\\n1\\r\\nxyz\\r\\n0\\r\\n\\r\\n{INNER}",
    "chunk size empty": f"Transfer-Encoding: chunked\\r\\n\\r\\n\\r\\nx\\r\\n0\\r\\n\\r\\n{INNER}",
    "trailer smuggles length": f"Transfer-Encoding: chunked\\r\\n\\r\\n0\\r\\nContent-Length: 70\\r\\n\\r\\n{INNER}",
}


def test_framing():
    "a request whose end two readers would put in different places is refused before a byte of it is sent; the next one is judged by itself"
    with shared_world() as (net, d):
        # /smuggled is not allowed, so that whoever sees it in the server's list has got around the rules.
        b = box(d, {"rules": [{"id": "a", "hosts": ["api.test"], "ports": [80, 443], "http": [{"methods": ["GET", "POST"], "paths": ["/a", "/ok"]}]}]})
        code = "cases = {" + ", ".join(f'"{k}": b"{v}"' for k, v in SMUGGLING.items()) + "}\n" + """
out = {}
def judged(got):  # refused, or the one that follows is answered too
    seen = Http(got).all
    return len(seen) > 1 or seen[:1] and seen[0] >= 400
for name, rest in cases.items():
    for port in (80, 443):
        try:
            s = dial("api.test", port)
            if port == 443: s = tls(s)
            s.sendall(b"POST /a HTTP/1.1\\r\\nHost: api.test\\r\\n" + rest)
            out[name + " " + str(port)] = Http(read_until(s, judged)).all
            s.close()
        except OSError as e: out[name + " " + str(port)] = [type(e).__name__]
    time.sleep(0.05)
lines = {"0.9": b"GET /a\\r\\n\\r\\n", "version 2": b"GET /a HTTP/2.0\\r\\nHost: api.test\\r\\n\\r\\n", "version 1.2": b"GET /a HTTP/1.2\\r\\nHost: api.test\\r\\n\\r\\n", "lower": b"GET /a http/1.1\\r\\nHost: api.test\\r\\n\\r\\n", "two spaces": b"GET  /a HTTP/1.1\\r\\nHost: api.test\\r\\n\\r\\n",
         "tab": b"GET\\t/a\\tHTTP/1.1\\r\\nHost: api.test\\r\\n\\r\\n", "space in target": b"GET /a b HTTP/1.1\\r\\nHost: api.test\\r\\n\\r\\n", "LF first": b"\\nGET /a HTTP/1.1\\r\\nHost: api.test\\r\\n\\r\\n", "CRLF first": b"\\r\\nGET /a HTTP/1.1\\r\\nHost: api.test\\r\\n\\r\\n",
         "1.0 chunked": b"POST /a HTTP/1.0\\r\\nHost: api.test\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n", "proxy protocol": b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\\r\\nGET /a HTTP/1.1\\r\\nHost: api.test\\r\\n\\r\\n", "proxy protocol 2": b"\\r\\n\\r\\n\\0\\r\\nQUIT\\n!\\x11\\0\\x0c" + b"\\x7f\\0\\0\\1" * 3,
         "CONNECT": b"CONNECT other.test:443 HTTP/1.1\\r\\nHost: other.test:443\\r\\n\\r\\n", "TRACE": get("/a", method=b"TRACE"), "PRI": b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\nxxxx", "get": get("/a", method=b"get"), "star": get("*"), "fragment": get("/a#x"), "no slash": get("a"), "odd method": get("/a", method=b"GE\\"T")}
out["lines"] = {k: http(v, timeout=2).all for k, v in lines.items()}
two = http(get("/a").replace(b"Connection: close\\r\\n", b"") + get("/smuggled"))
out["pipelined"] = two.all
out["ok"] = [http(get("/a")).status, http(get("/ok"), port=80).status, http(b"POST /ok HTTP/1.1\\r\\nHost: api.test\\r\\nConnection: close\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n3;x=y\\r\\nabc\\r\\n0\\r\\nT: v\\r\\n\\r\\n").status,
             http(b"POST /ok HTTP/1.1\\r\\nHost: api.test\\r\\nConnection: close\\r\\nContent-Length: 3\\r\\n\\r\\nabc").status]
say(out)"""
        got = inside(d, b, code, timeout=400)
        for name in SMUGGLING:
            for port in ("80", "443"):
                value = got[f"{name} {port}"]
                # Refused, or read in one way: then what follows was judged by itself, and refused for its path.
                check(value and value[0] in (400, 501, 413, 431) or value in ([200, 403], [200, 400]), (name, port, value))
        for name, value in got["lines"].items():
            check(not value or value[0] in (400, 403, 405, 421, 501, 505), (name, value))
        check_equal((got["pipelined"], got["ok"]), ([200, 403], [200] * 4), got)
        seen = net.seen()
        check_equal({r["path"] for r in seen} - {"/a", "/ok"}, set(), "something was smuggled")
        for r in seen:
            check(not ("content-length" in r["headers"] and "transfer-encoding" in r["headers"]), r)
        check_equal([r["body"] for r in seen if r["path"] == "/ok" and r["method"] == "POST"], [b"abc", b"abc"])
        # The same bytes do smuggle where nobody is in between: this server is one that falls for it.
        fell = []
        for name, rest in SMUGGLING.items():
            net.forget()
            with socket.create_connection((at(1), 80)) as s:
                s.settimeout(60)
                s.sendall(b"POST /a HTTP/1.1\r\nHost: api.test\r\n" + eval('b"' + rest + '"'))  # pylint: disable=eval-used
                s.shutdown(socket.SHUT_WR)  # it ends when it has read everything
                try:
                    while s.recv(65536):
                        pass
                except OSError:
                    pass
            if any(r["path"] == "/smuggled" for r in net.seen()):
                fell.append(name)
        check(len(fell) >= 8, f"the control is weak: only {fell}")


def test_what_is_sent():
    "what the server gets is written anew: one Host, no hop-by-hop fields, no proxy fields, one framing"
    with shared_world() as (net, d):
        raw = net.start_raw("raw.test", at(30), lambda s, head: s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\nAlt-Svc: h3=\":443\"\r\nX-A: b\r\n\r\nok"))
        b = box(d, {"rules": [{"id": "r", "hosts": ["raw.test"], "ports": [80], "http": [{"methods": ["GET", "POST"]}]}]})
        got = inside(d, b, """
a = http(b"GET /x?y=1 HTTP/1.1\\r\\nhost:   raw.test  \\r\\nConnection: close, X-Secret-Hop, keep-alive\\r\\nX-Secret-Hop: 1\\r\\nProxy-Authorization: Basic eDp5\\r\\nProxy-Connection: keep-alive\\r\\nKeep-Alive: 5\\r\\nTE: trailers, gzip;q=0.5\\r\\nUpgrade: h2c\\r\\nHTTP2-Settings: AAMAAABkAAQAAP__\\r\\n"
         b"X-Forwarded-For: 127.0.0.1\\r\\nX-Kept: \\t yes \\r\\n\\r\\n", "raw.test", 80)
e = http(b"GET http://raw.test/abs HTTP/1.1\\r\\nHost: raw.test\\r\\nConnection: close\\r\\nProxy-Connection: x\\r\\n\\r\\n", "raw.test", 3128, to=GATE)
say([a.status, a.raw, e.status])""")
        check_equal((got[0], got[2]), (200, 200), got)
        check("alt-svc" not in got[1].lower() and "x-a: b" in got[1].lower(), got[1])
        first, second = (bytes(x).decode("latin1").lower() for x in raw.logs[:2])
        check(first.startswith("get /x?y=1 http/1.1\r\n") and second.startswith("get /abs http/1.1\r\n"), (first, second))
        for text in (first, second):
            check_equal(len(re.findall(r"\r\nhost: *raw\.test\r\n", text)), 1, text)
            for name in ("x-secret-hop", "proxy-", "keep-alive:", "gzip", "upgrade", "http2-settings", "transfer-encoding", "content-length"):
                check(name not in text, (name, text))
        # That trailers are welcome is egress's own word, said only if the client said so.
        check_equal([re.findall(r"\r\nte: *([^\r]*)", text) for text in (first, second)], [["trailers"], []], (first, second))
        check("x-kept: yes\r\n" in first, first)


PATHS = {  # sent -> what the server gets; None: refused as malformed; False: refused as not allowed
    "/pub/a": "/pub/a", "/pub/./a": "/pub/a", "/pub/../pub/a": "/pub/a", "//pub///a": "/pub/a", "/pub/%61": "/pub/a", "/%70ub/a": "/pub/a", "/pub/a%2a": "/pub/a%2A", "/pub/a?x=/../secret": "/pub/a?x=/../secret",
    "/secret": False, "/pub/../secret": False, "/pub/%2e%2e/secret": False, "/pub/.%2e/secret": False, "/pub/%2E%2E/secret": False, "/pub/..;/secret": False, "/pub/..;x=y/secret": False, "/pub;/../secret": False, "/pub/..%2fsecret": False,
    "/pub/%2e%2e%2fsecret": False, "/pub/x/../../secret": False, "/PUB/a": False, "/pubx/a": False, "/pub/private/k": False, "/pub/%70rivate/k": False, "/pub//private/k": False, "/pub/x/../private/k": False, "/pub/private%2fk": False,
    "/pub/private;v=1/k": False, "/pub%2fprivate/k": False, "/pub/./private/./k": False, "/pub/a/%2e%2e/private/k": False,
    "/pub/%252e%252e/secret": None, "/pub/..%252fsecret": None, "/pub/..%5csecret": None, "/pub/..\\\\secret": None, "/pub/%00": None, "/pub/a%00.txt": None, "/pub/a%0d%0aX:y": None, "/pub/%zz": None, "/pub/%": None, "/../secret": None,
    "/pub/../../secret": None, "/pub/%c0%ae%c0%ae/secret": "/pub/%C0%AE%C0%AE/secret", "/pub/\\xc3\\xa4": None, "/pub/a\\x7f": None, "/pub/%2e%2e%5c": None,
}


def test_paths():
    "a path is judged in the form in which it is sent, in every reading that servers have of it; what nobody reads alike is refused"
    with shared_world() as (net, d):
        b = box(d, {"rules": [{"id": "p", "hosts": ["api.test"], "ports": [80, 443], "http": [{"methods": ["GET"], "paths": ["/pub/**"]}], "deny": [{"paths": ["/pub/private/**"]}]}]})
        code = "paths = [" + ", ".join(f'b"{p}"' for p in PATHS) + "]\n" + """
out = []
for p in paths:
    h1 = http(get(p), port=80)
    h = H2(); h.request(1, "api.test", p)
    out.append([list(h1), h.answer(1)])
    time.sleep(0.03)
out.append([list(http(get(b"/" + b"a" * 17000))), [http(get(b"/pub/" + b"a" * 15000)).status, ""]])
say(out)"""
        got = inside(d, b, code, timeout=400)
        for (path, want), (h1, h2) in zip(PATHS.items(), got):
            if want is None:
                check(h1[0] == 400 and h2[0] in (400, -1), (path, h1, h2))
            elif want is False:
                check_equal((h1[0], h2[0]), (403, 403), (path, h1, h2))
            else:
                check_equal((h1[0], h2[0]), (200, 200), (path, h1, h2))
        check(got[-1][0][0] in (400, 414) and got[-1][1][0] == 200, got[-1])
        want = {v for v in PATHS.values() if v}
        check_equal({r["path"] for r in net.seen() if len(r["path"]) < 1000}, want)
        network(d, b, allow("api.test"))
        got = inside(d, b, "say([http(get(p)).status for p in ('/secret', '/pub/private/k', '/pub/..;/secret')])")
        check_equal(got, [200] * 3, "allowed, the same pass")


def test_methods():
    "methods are compared as they are, also those that a header names instead"
    with shared_world() as (net, d):
        b = box(d, {"rules": [{"id": "m", "hosts": ["api.test"], "http": [{"methods": ["GET", "POST"]}]}]})
        got = inside(d, b, """
out = {}
for m in ("GET", "POST", "DELETE", "get", "PUT", "HEAD", "OPTIONS", "PROPFIND", "X"):
    out[m] = list(http(get("/", method=m.encode(), more=b"Content-Length: 0\\r\\n")))
for h in ("X-HTTP-Method-Override", "x-http-method", "X-Method-Override"):
    for m in ("DELETE", "delete", "GET", "TRACE", " DELETE", "POST, DELETE", "\\x01"):
        out[h + " " + m] = list(http(get("/", method=b"POST", more=b"Content-Length: 0\\r\\n%s: %s\\r\\n" % (h.encode(), m.encode()))))
h = H2(); h.request(1, "api.test", "/", "DELETE"); h.request(3, "api.test", "/", "POST", more=[("x-http-method-override", "DELETE")]); h.request(5, "api.test", "/", "GET")
out["h2"] = [h.answer(i)[0] for i in (1, 3, 5)]
say(out)""")
        check_equal((got["GET"][0], got["POST"][0], got["h2"]), (200, 200, [403, 403, 200]), got)
        for key, value in got.items():
            if key not in ("GET", "POST", "h2") and not key.endswith(" GET"):
                check(value[0] in (400, 403, 405), (key, value))
        check_equal({r["method"] for r in net.seen()}, {"GET", "POST"})
        check(all((r["headers"].get("x-http-method-override") or "GET") == "GET" for r in net.seen()), net.seen())


def test_h2_attacks():
    "HTTP/2: requests that cannot be written as one HTTP/1 request, and floods, end their stream or connection; nothing of them is sent on"
    with shared_world() as (net, d):
        b = box(d, allow("api.test"))
        got = inside(d, b, """
out = {}
P = [(":method", "GET"), (":scheme", "https"), (":authority", "api.test"), (":path", "/bad")]
cases = {
 "crlf in value": (P, [("x-a", b"b\\r\\nX-Injected: 1")]), "lf in value": (P, [("x-a", b"b\\nX-Injected: 1")]), "nul in value": (P, [("x-a", b"b\\0c")]), "crlf in name": (P, [(b"x-a\\r\\nX-Injected", "1")]), "upper name": (P, [("X-A", "b")]), "space name": (P, [("x a", "b")]), "colon name": (P, [("x:a", "b")]),
 "crlf in path": ([(":method", "GET"), (":scheme", "https"), (":authority", "api.test"), (":path", b"/bad HTTP/1.1\\r\\nX-Injected: 1\\r\\n\\r\\nGET /smuggled")], []), "space in path": ([P[0], P[1], P[2], (":path", "/bad x")], []), "empty path": ([P[0], P[1], P[2], (":path", "")], []), "no slash": ([P[0], P[1], P[2], (":path", "bad")], []), "absolute path": ([P[0], P[1], P[2], (":path", "https://other.test/bad")], []),
 "crlf in method": ([(":method", b"GET /smuggled HTTP/1.1\\r\\nX: "), P[1], P[2], P[3]], []), "crlf in authority": ([P[0], P[1], (":authority", b"api.test\\r\\nX-Injected: 1"), P[3]], []), "userinfo": ([P[0], P[1], (":authority", "api.test@other.test"), P[3]], []), "userinfo2": ([P[0], P[1], (":authority", "x@api.test"), P[3]], []),
 "two authorities": (P + [(":authority", "other.test")], []), "two paths": (P + [(":path", "/smuggled")], []), "no method": (P[1:], []), "no path": (P[:3], []), "no scheme": ([P[0]] + P[2:], []), "late pseudo": (P[:3], [("x", "y"), (":path", "/bad")]), "unknown pseudo": (P + [(":x", "y")], []), "protocol": ([(":method", "CONNECT"), (":protocol", "websocket")] + P[1:], []),
 "connect": ([(":method", "CONNECT"), (":authority", "other.test:443")], []), "connection": (P, [("connection", "close")]), "transfer-encoding": (P, [("transfer-encoding", "chunked")]), "upgrade": (P, [("upgrade", "h2c")]), "te": (P, [("te", "gzip")]), "proxy-connection": (P, [("proxy-connection", "x")]), "keep-alive": (P, [("keep-alive", "x")]),
 "length lie": (P, [("content-length", "5")]), "two lengths": (P, [("content-length", "0"), ("content-length", "5")]), "bad length": (P, [("content-length", "-1")]), "host other": (P, [("host", "other.test")]), "two hosts": (P, [("host", "api.test"), ("host", "other.test")]), "trace": ([(":method", "TRACE")] + P[1:], []),
 "scheme": ([P[0], (":scheme", "gopher")] + P[2:], []), "scheme http": ([P[0], (":scheme", "http")] + P[2:], []),
}
for name, (pseudo, more) in cases.items():
    h = H2(); h.request(1, "", pseudo=pseudo, more=more); a = h.answer(1)
    h.s.close()
    out[name] = a
    time.sleep(0.03)
h = H2(); h.request(1, "api.test", "/ok", more=[("x-a", "b"), ("cookie", "a=b"), ("cookie", "c=d")]); out["ok"] = h.answer(1)
# A body longer and shorter than said.
h = H2(); h.request(1, "api.test", "/body", "POST", more=[("content-length", "3")], end=False); h.send(frame(0, 1, 1, b"xxxxxxGET /smuggled HTTP/1.1\\r\\n")); out["body too long"] = h.answer(1)
h = H2(); h.request(1, "api.test", "/body", "POST", more=[("content-length", "9")], end=False); h.send(frame(0, 1, 1, b"xxx")); out["body too short"] = h.answer(1)
say(out)""", timeout=400)
        check_equal(got.pop("ok"), [200, ""])
        schemes = got.pop("scheme http"), got.pop("scheme")  # the connection says what it is, whatever these say
        for name, value in got.items():
            check(value[0] in (-1, 400, 403, 405, 421, 501), (name, value))
        check(all(x[0] in (-1, 200, 400) for x in schemes), schemes)
        for r in net.seen():
            check("x-injected" not in r["headers"] and r["path"] in ("/ok", "/bad", "/body") and r["method"] in ("GET", "POST"), r)
        check_equal([r["path"] for r in net.seen() if r["path"] == "/smuggled"], [])
        floods = inside(d, b, """
out = {}
def alive(h):
    stop = time.monotonic() + 30
    while not h.closed and h.goaway is None and time.monotonic() < stop: h.pump(seconds=0.4)
    return [h.closed, h.goaway]
def flood(name, data, first=b""):
    h = H2()
    h.send(first)
    h.s.settimeout(3)  # nothing is read; an end, and a peer that stops reading, both end it
    for _ in range(2000):
        if h.closed: break
        h.send(data)
    out[name] = [h.closed, None]
    h.s.close()
block = b"".join(field(k, v) for k, v in [(":method", "GET"), (":scheme", "https"), (":authority", "api.test"), (":path", "/flood")])
h = H2()
for i in range(3000):
    if h.closed: break
    h.send(frame(1, 5, 2 * i + 1, block) + frame(3, 0, 2 * i + 1, struct.pack(">I", 8)))
out["rapid reset"] = alive(h)
flood("settings", frame(4, 0, 0) * 500)
flood("ping", frame(6, 0, 0, b"12345678") * 500)
flood("empty data", frame(0, 0, 1) * 500, frame(1, 4, 1, block.replace(b"GET", b"PUT")))
flood("priority", frame(2, 0, 1, struct.pack(">IB", 3, 1)) * 500)
flood("window", frame(8, 0, 0, struct.pack(">I", 1 << 30)) * 4)
h = H2(); h.send(frame(1, 1, 1, block))
for _ in range(4000):
    if h.closed: break
    h.send(frame(9, 0, 1, field("x-" + "a" * 20, "b" * 1000)) )
out["continuation"] = alive(h)
h = H2(); h.send(frame(1, 1, 1, block) + frame(6, 0, 0, b"12345678")); out["interleaved"] = alive(h)
# A block that grows: one entry of 4 KiB in the table, named a thousand times.
bomb = block + b"\\x40\\x01a" + b"\\x7f" + varint(3500 - 127) + b"v" * 3500 + b"\\xbe" * 12000
h = H2(); h.send(frame(1, 5, 1, bomb)); out["hpack bomb"] = [h.answer(1)[0], h.closed]
h = H2(); h.send(frame(1, 5, 1, block + b"".join(field("x-%d" % i, "v") for i in range(900)))); out["many fields"] = [h.answer(1)[0], h.closed]
h = H2(); h.send(frame(1, 5, 1, b"\\xff\\xff\\xff\\xff\\xff\\x7f")); out["bad index"] = alive(h)
h = H2(); h.send(frame(0, 0, 0, b"x")); out["data on 0"] = alive(h)
h = H2(); h.send(b"\\xff\\xff\\xff\\0\\0\\0\\0\\0\\1" + b"x" * 20000); out["huge frame"] = alive(h)
h = H2(); h.send(frame(5, 4, 1, struct.pack(">I", 2) + block)); out["push"] = alive(h)
h = H2(); h.request(2, "api.test", "/even"); out["even stream"] = alive(h)
streams = H2()
for i in range(400): streams.request(2 * i + 1, "api.test", "/slow/1")
streams.pump(seconds=12)
out["streams"] = sorted({str(v["status"] or v["reset"]) for k, v in streams.streams.items() if k})
out["after"] = http(get("/after")).status
say(out)""", timeout=400)
        for name in ("rapid reset", "settings", "ping", "continuation", "interleaved", "bad index", "data on 0", "huge frame", "push", "even stream", "window"):
            check(floods[name][0] or floods[name][1] is not None, (name, floods))
        for name in ("hpack bomb", "many fields"):
            check(floods[name][0] in (-1, 400, 431) or floods[name][1], (name, floods))
        check_equal(floods["after"], 200, floods)
        check(d.children("egress") and "exited" not in d.log(), d.log())
        check_equal([r for r in net.seen() if r["path"] == "/even"], [])
        check(len([r for r in net.seen() if r["path"] == "/flood"]) < 2000, "reset requests were all sent")


def test_upgrades():
    "an upgrade to WebSocket passes where it is allowed; h2c and other upgrades, and a server that switches unasked, do not"
    with shared_world() as (net, d):
        rogue = net.start_raw("rogue.test", at(31), lambda s, head: s.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nfree bytes") or True)
        b = box(d, {"rules": [{"id": "ws", "hosts": ["api.test", "rogue.test"], "ports": [80, 443], "http": [{"methods": ["GET"], "paths": ["/ws", "/x"]}]}]})
        got = inside(d, b, """
WS = b"Connection: Upgrade\\r\\nUpgrade: websocket\\r\\nSec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n"
def up(path, more, host="api.test", port=443):
    data = b"GET %s HTTP/1.1\\r\\nHost: %s\\r\\n%s\\r\\n" % (path, host.encode(), more)
    s = dial(host, port)
    if port == 443: s = tls(s, host)
    s.sendall(data); s.settimeout(60)
    try: a = s.recv(4096)
    except OSError as e: a = b"!" + str(e).encode()
    return s, a
out = {}
s, a = up(b"/ws", WS); out["ws"] = Http(a).status
s.sendall(b"\\x81\\x85\\0\\0\\0\\0hello"); s.settimeout(60); out["echo"] = s.recv(100)
out["ws denied"] = Http(up(b"/no", WS)[1]).status
out["h2c"] = Http(up(b"/x", b"Connection: Upgrade, HTTP2-Settings\\r\\nUpgrade: h2c\\r\\nHTTP2-Settings: AAMAAABkAAQAAP__\\r\\n")[1]).status
out["other"] = Http(up(b"/x", b"Connection: Upgrade\\r\\nUpgrade: TLS/1.0\\r\\n")[1]).status
s, a = up(b"/x", b"", "rogue.test", 80); out["unasked"] = [Http(a).status, b"free bytes" in a]
s, a = up(b"/x", WS, "rogue.test", 80); out["no accept"] = [Http(a).status, b"free bytes" in a + (read_all(s, 1) if Http(a).status == 101 else b"")]
h = H2(); h.request(1, "api.test", "/ws", more=[("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")]); out["h2"] = h.answer(1)[0]
say(out)""")
        check_equal((got["ws"], got["echo"], got["ws denied"]), (101, "\x81\x05hello", 403), got)
        check(got["h2c"] in (200, 400) and got["other"] in (200, 400), got)
        check(all("upgrade" not in r["headers"] for r in net.seen() if r["path"] == "/x"), net.seen())
        check(not got["unasked"][1] and got["unasked"][0] != 101, got)
        check(not got["no accept"][1], got)
        check(rogue.logs, "the rogue was reached")


def test_servers_that_lie():
    "answers that two readers would end differently, or that never end, are not passed on; the next request gets its own answer"
    if not SOAK:
        skip("takes a quarter of a minute; `make soak` runs it")
    answers = {
        "/cl-te": b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nX-Forged: 1\r\n\r\n",
        "/two-cl": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 30\r\n\r\nHTTP/1.1 200 OK\r\nX-Forged: 1\r\n\r\n",
        "/extra": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nX-Forged: 1\r\nContent-Length: 6\r\n\r\nforged",
        "/fold": b"HTTP/1.1 200 OK\r\nX-A: b\r\n X-Forged: 1\r\nContent-Length: 0\r\n\r\n",
        "/lf": b"HTTP/1.1 200 OK\nX-Forged: 1\nContent-Length: 0\n\n",
        "/nul": b"HTTP/1.1 200 OK\r\nX-A: a\0b\r\nContent-Length: 0\r\n\r\n",
        "/garbage": b"\x00\x01\x02\x03 not http at all\r\n\r\n",
        "/status": b"HTTP/1.1 99999 OK\r\n\r\n",
        "/204": b"HTTP/1.1 204 No Content\r\nContent-Length: 33\r\n\r\nHTTP/1.1 200 OK\r\nX-Forged: 1\r\n\r\n",
        "/short": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        "/badchunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX\r\n0\r\n\r\n",
        "/bighead": b"HTTP/1.1 200 OK\r\n" + b"X-Big: " + b"a" * 200000 + b"\r\n\r\n",
        "/manyfields": b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(5000)) + b"Content-Length: 0\r\n\r\n",
        "/continues": b"HTTP/1.1 100 Continue\r\n\r\n" * 2000 + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "/good": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood",
    }

    def talk(s, log):
        path = re.findall(rb"(?:GET|POST) (/\S*) HTTP", log)[-1].decode()
        s.sendall(answers.get(path, answers["/good"]))
        return path in ("/good", "/extra", "/two-cl", "/cl-te", "/204", "/continues")
    with shared_world() as (net, d):
        net.start_raw("liar.test", at(32), talk)
        b = box(d, {"rules": [{"id": "l", "hosts": ["liar.test"], "ports": [80], "http": [{"methods": ["GET"]}]}]})
        got = inside(d, b, f"""
out = {{}}
for path in {list(answers)!r}:
    s = dial("liar.test", 80)
    s.sendall(b"GET %s HTTP/1.1\\r\\nHost: liar.test\\r\\n\\r\\n" % path.encode())
    a = read_until(s, lambda got: b"\\r\\n\\r\\n" in got)
    s.close()
    n = http(get("/good", "liar.test"), "liar.test", 80)
    out[path] = [Http(a).all, b"forged" in a.lower(), n.status, n.raw.endswith(b"good")]
say(out)""", timeout=150)
        for path, (statuses, forged, after, good) in got.items():
            check(not forged, (path, got[path]))
            check(after == 200 and good, (path, "the next answer", got[path]))
            if path in ("/cl-te", "/two-cl", "/fold", "/lf", "/nul", "/garbage", "/status", "/bighead", "/manyfields"):
                check(statuses and statuses[0] == 502, (path, statuses))
        check_equal(got["/good"][0], [200])


def test_redirects_are_not_followed():
    "a redirect is handed to the client, and what it then asks is judged anew"
    with shared_world() as (net, d):
        b = box(d, allow("api.test"))
        got = sh(d, b, "for u in http://169.254.169.254/latest http://127.0.0.1:1/ https://other.test/x http://private.test/; do "
                       "curl -sS --max-time 60 -o /dev/null -w '%{http_code}:%{redirect_url} ' \"https://api.test/redirect?$u\"; "
                       "curl -sSL --max-time 60 -o /dev/null -w '%{http_code} ' \"https://api.test/redirect?$u\"; done 2>/dev/null; "
                       "curl -sSL --max-time 60 -w ' %{http_code}' 'https://api.test/redirect?https://api.test/landed'").text.split()
        check_equal(got[0], "302:http://169.254.169.254/latest", got)
        check(all(x in ("403", "000", "302") for x in got[1:8:2]), got)  # 302: its own loopback, where nobody listens
        check_equal(got[-1], "200", got)
        check_equal({r["host"] for r in net.seen()}, {"api.test"})
        check_in("/landed", {r["path"] for r in net.seen()})


def test_expect_and_half_close():
    "100-continue does not make a body pass unjudged, and half-closed connections get their answer"
    with shared_world() as (net, d):
        b = box(d, {"rules": [{"id": "a", "hosts": ["api.test"], "ports": [80, 443], "http": [{"methods": ["POST"], "paths": ["/echo"], "max_request_bytes": 1000}]}]})
        got = inside(d, b, """
out = {}
def post(path, n, body, expect=True, host="api.test"):
    s = dial(host, 80)
    s.sendall(b"POST %s HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n%s\\r\\n" % (path, host.encode(), n, b"Expect: 100-continue\\r\\n" if expect else b""))
    s.settimeout(60)
    first = s.recv(65536) if expect else b""
    if not expect or first.startswith(b"HTTP/1.1 100"):
        s.sendall(body); s.shutdown(1)
    return [Http(first).all[:1], Http(first + read_all(s)).all[-1:]]
out["ok"] = post(b"/echo", 5, b"hello")
out["path"] = post(b"/no", 5, b"hello")
out["host"] = post(b"/echo", 5, b"hello", host="other.test")
out["long"] = post(b"/echo", 5000, b"h" * 5000)
out["plain"] = post(b"/echo", 5, b"hello", False)
out["odd"] = http(b"POST /echo HTTP/1.1\\r\\nHost: api.test\\r\\nExpect: 200-ok\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n").status
out["chunked long"] = http(b"POST /echo HTTP/1.1\\r\\nHost: api.test\\r\\nTransfer-Encoding: chunked\\r\\nConnection: close\\r\\n\\r\\n" + b"100\\r\\n" + b"x" * 256 + b"\\r\\n" + (b"100\\r\\n" + b"x" * 256 + b"\\r\\n") * 10 + b"0\\r\\n\\r\\n", port=80).all
say(out)""")
        check_equal((got["ok"], got["plain"][1]), ([[100], [200]], [200]), got)
        check_equal((got["path"][0], got["host"][0]), ([403], [403]), got)
        check(got["long"][0] in ([413], [403]) and got["odd"] in (200, 417, 400), got)
        check(200 not in got["chunked long"], got)
        check(all(len(r["body"]) <= 1000 and r["path"] == "/echo" and r["host"] == "api.test" for r in net.seen()), [(r["path"], len(r["body"])) for r in net.seen()])


def test_between_connections():
    "requests of two sandboxes, and of two hosts, never share a connection to a server"
    conns, lock = {}, threading.Lock()

    def talk(s, log):
        heads = re.findall(rb"GET (/\S*) HTTP/1.1\r\n.*?host: *(\S+)", log, re.S | re.I)
        with lock:
            conns[id(s)] = [(p.decode(), h.decode()) for p, h in heads]
        s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        return True
    with shared_world() as (net, d):
        keep = []
        net.start_raw("one.test", at(33), lambda s, log: keep.append(s) or talk(s, log))
        net.hosts["two.test"] = at(33)
        boxes = [box(d, allow("one.test", "two.test")) for _ in range(2)]
        for i, b in enumerate(boxes * 2):
            got = inside(d, b, f"""
out = []
for n in range(4):
    for h in ("one.test", "two.test"):
        out.append(http(get("/%d/%d" % ({i % 2}, n), h), h, 80).status)
say(out)""")
            check_equal(got, [200] * 8)
        eventually(lambda: sum(len(v) for v in conns.values()) == 32, 5, "all requests")
        for v in conns.values():
            check_equal(len({(p.split("/")[1], h) for p, h in v}), 1, v)
        check(any(len(v) > 1 for v in conns.values()), "nothing was reused, so nothing was shown")
