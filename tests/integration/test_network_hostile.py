"""A sandbox that tries to reach what it may not: around the proxy, by odd spellings of names and addresses, by names that lie, and by
TLS that says one thing and means another. Each attempt is also made where it is allowed, and must get through there."""
import os
import socket
import tempfile
import threading

from daemon import free_port
from hutch_test import check, check_equal, check_in, eventually
from internet import at
from netattack import Canary, allow, box, denials, inside, network, node, own_address
from node_client import ask, sh, to_box
from shared import shared_world

REFUSED = ("ECONNREFUSED", "ECONNRESET", "ENETUNREACH", "EHOSTUNREACH", "EPERM", "EACCES")


def test_no_way_around():
    "no address of the world, the host or its loopback is reached without the proxy, by TCP or UDP"
    own = own_address()
    with shared_world() as (net, d), Canary("127.0.0.1", "::1", *([own] if own else [])) as canary:
        canary.control()
        b = box(d, allow("api.test"))
        got = inside(d, b, f"""
out = {{}}
for a in ["127.0.0.1", "::1", "{own or '192.0.2.1'}", "10.255.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1", "192.168.0.1", "172.17.0.1", "169.254.169.254",
          "fd00:ec2::254", "::ffff:169.254.169.254", "8.8.8.8", "1.1.1.1", "2001:4860:4860::8888", NETWORK + ".1", "224.0.0.1", "255.255.255.255", "64:ff9b::7f00:1"]:
    for port in ({canary.port}, 80, 443):
        def tcp():
            with socket.create_connection((a, port), timeout=8) as s:
                s.sendall(b"GET / HTTP/1.1\\r\\nHost: " + (b"[%s]" % a.encode() if ":" in a else a.encode()) + b":%d\\r\\nConnection: close\\r\\n\\r\\n" % port)
                got = read_all(s, 12)
                if b"canary" in got or b"hello from" in got or (b" 200 " in got[:15] and a != GATE):
                    raise OSError(0, "answered " + repr(got[:60]))
                raise ConnectionRefusedError(111, "no answer of it")
        def udp():
            with socket.socket(socket.AF_INET6 if ":" in a else socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.settimeout(2)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                s.connect((a, port)); s.send(b"x"); s.send(b"y")
                s.recv(100)
        out[f"tcp {{a}} {{port}}"] = errno_of(tcp)
        out[f"udp {{a}} {{port}}"] = errno_of(udp)
scope = socket.socket(socket.AF_INET6, socket.SOCK_STREAM); scope.settimeout(5)
scope.connect(("fe80::1", {canary.port}, 0, 1)); scope.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
out["link-local"] = "success" if b"canary" in read_all(scope, 3) else "refused"
out["allowed"] = http(get("/")).status
say(out)
""", timeout=400)
        check_equal(got.pop("allowed"), 200, "the proxy itself works")
        wrong = {k: v for k, v in got.items() if v == "success" or v.startswith("OSError")}
        check_equal(wrong, {})
        check_equal([v for k, v in got.items() if k.startswith("udp") and v not in REFUSED + ("EINVAL", "ENETUNREACH", "EADDRNOTAVAIL", "timeout")], [], got)
        check_equal(canary.heard, [])
        check_equal({r["path"] for r in net.seen()}, {"/"}, "only the allowed request arrived")


def test_no_other_protocols():
    "raw, ICMP, SCTP, DCCP, packet and vsock sockets, routes, addresses and marks are refused; what is ordinary works"
    with shared_world() as (net, d):
        got = inside(d, box(d), """
out = {}
for name, args in {"raw": (2, 3, 255), "raw6": (10, 3, 255), "icmp raw": (2, 3, 1), "sctp": (2, 1, 132), "sctp6": (10, 1, 132), "sctp seq": (2, 5, 132), "dccp": (2, 6, 33), "udplite": (2, 2, 136),
                   "packet": (17, 3, 768), "vsock": (40, 1, 0), "xdp": (44, 3, 0), "nflog": (16, 3, 5), "netfilter": (16, 3, 12), "mptcp": (2, 1, 262)}.items():
    out[name] = errno_of(lambda: socket.socket(*args).close())
def ping():
    with socket.socket(2, 2, 1) as s:
        s.settimeout(2); s.connect(("8.8.8.8", 0)); s.send(b"\\x08\\0\\0\\0\\0\\0\\0\\0"); s.recv(100)
out["ping"] = errno_of(ping)
s = socket.socket(16, 3, 0)  # NETLINK_ROUTE
s.bind((0, 0)); s.settimeout(3)
def ask(kind, flags, body):
    s.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
    got = s.recv(65536)
    return struct.unpack("=IHHII", got[:16])[1], struct.unpack("=i", got[16:20])[0]
route = struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0) + struct.pack("=HHI", 8, 4, 1)
address = struct.pack("=BBBBI", 2, 24, 0, 0, 1) + struct.pack("=HH", 8, 2) + bytes([192, 168, 3, 3])
out["add route"] = ask(24, 0x605, route)
out["add address"] = ask(20, 0x605, address)
out["link down"] = ask(16, 5, struct.pack("=BBHiII", 0, 0, 0, 1, 0, 1))
out["list links"] = ask(18, 0x301, struct.pack("=BBHiII", 0, 0, 0, 0, 0, 0))[0]
t = socket.socket()
out["mark"] = errno_of(t.setsockopt, 1, 36, 7)
out["device"] = errno_of(t.setsockopt, 1, 25, b"lo")
out["transparent"] = errno_of(t.setsockopt, 0, 19, 1)
out["tun"] = errno_of(lambda: os.close(os.open("/dev/net/tun", os.O_RDWR)))
out["tcp"] = errno_of(lambda: socket.create_connection(("api.test", 80)).close())
say(out)""")
        refusals = ("EPERM", "EACCES", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EINVAL", "ENOPROTOOPT")
        for name in ("raw", "raw6", "icmp raw", "sctp", "sctp6", "sctp seq", "dccp", "packet", "vsock", "xdp", "nflog", "netfilter", "mptcp", "mark", "transparent"):
            check_in(got[name], refusals, (name, got))
        check(got["ping"] != "success", got)
        check_in(got["tun"], ("ENOENT", "EACCES", "EPERM"), got)
        for name in ("add route", "add address", "link down"):
            check_equal(got[name], [2, -1], (name, got))  # NLMSG_ERROR, EPERM
        check_equal((got["list links"], got["device"], got["tcp"]), (16, "success", "success"), got)


def test_unix_sockets_of_the_host():
    "sockets of the host, abstract or in the file system, are not found inside"
    with shared_world() as (net, d), tempfile.TemporaryDirectory(prefix="hutch-sock-") as folder:
        os.chmod(folder, 0o755)
        name, path, heard = f"\0hutch-canary-{os.getpid()}", f"{folder}/s", []
        listeners = []
        for a in (name, path):
            s = socket.socket(socket.AF_UNIX)
            s.bind(a)
            s.listen(8)
            listeners.append(s)
            threading.Thread(target=lambda s=s: heard.append(s.accept()), daemon=True).start()
        os.chmod(path, 0o777)
        code = f"""
out = []
for a in ({name!r}, {path!r}, "\\0/run/hutch", "{d.run}/keeper.sock", "{d.run}/egress.sock", "/run/dbus/system_bus_socket", "/var/run/docker.sock"):
    s = socket.socket(socket.AF_UNIX)
    out.append(errno_of(s.connect, a))
s = socket.socket(socket.AF_UNIX); s.bind("\\0own"); s.listen(1)
c = socket.socket(socket.AF_UNIX); out.append(errno_of(c.connect, "\\0own"))
say(out)"""
        got = inside(d, box(d), code)
        check(all(x in ("ECONNREFUSED", "ENOENT", "EACCES", "EPERM") for x in got[:-1]), got)
        check_equal(got[-1], "success", "its own works")
        check_equal(heard, [])
        for a in (name, path):  # they do answer outside
            with socket.socket(socket.AF_UNIX) as c:
                c.connect(a)
        eventually(lambda: len(heard) == 2, 5, "the canaries hear the host")
        for s in listeners:
            s.close()


def test_neighbours():
    "a sandbox hears nothing of another: not on its addresses, by broadcast, multicast or with a forged source"
    with shared_world() as (net, d):
        a, b = box(d, allow("api.test")), box(d, allow("api.test"))
        inside(d, a, """
if os.fork() == 0:
    os.setsid()
    log = open("/tmp/heard", "a", buffering=1)
    import threading
    def tcp(family, addr):
        s = socket.socket(family); s.setsockopt(1, 2, 1); s.bind((addr, 8080)); s.listen(16)
        while True:
            c, peer = s.accept(); log.write("tcp %s\\n" % (peer,)); c.close()
    def udp(family, addr):
        s = socket.socket(family, 2); s.bind((addr, 8080))
        while True:
            log.write("udp %s\\n" % (s.recvfrom(100),))
    for f, arg in ((tcp, (2, "0.0.0.0")), (udp, (2, "0.0.0.0"))):
        threading.Thread(target=f, args=arg, daemon=True).start()
    for fd in (0, 1, 2): os.close(fd)
    time.sleep(1000)
    os._exit(0)
while not all(":1F90 " in open("/proc/net/" + p).read() for p in ("tcp", "udp")): time.sleep(0.05)
say(0)""")
        attack = """
out = []
for addr in ("10.255.0.2", "10.255.0.1", "10.255.255.255", "255.255.255.255", "224.0.0.1", "fd00::2", "ff02::1"):
    family = socket.AF_INET6 if ":" in addr else socket.AF_INET
    for source in (None, "10.255.0.2" if family == 2 else "fd00::2", "127.0.0.1" if family == 2 else "::1"):
        with socket.socket(family, 2) as u:
            u.setsockopt(1, 6, 1)
            if source: errno_of(u.bind, (source, 0))
            errno_of(u.sendto, b"from the neighbour", (addr, 8080))
        with socket.socket(family) as t:
            t.settimeout(2)
            if source: errno_of(t.bind, (source, 0))
            out.append(errno_of(lambda: (t.connect((addr, 8080)), t.sendall(b"x"), t.recv(1))))
time.sleep(0.5)
say(out)"""
        check_equal(len(inside(d, b, attack, timeout=300)), 21)
        check_equal(sh(d, a, "cat /tmp/heard").text, "", "a heard b")
        sh(d, a, "python3 -c \"import socket; socket.create_connection(('10.255.0.2', 8080)); socket.socket(2,2).sendto(b'x', ('127.0.0.1', 8080))\"")

        def heard():
            return sh(d, a, "cat /tmp/heard").text
        eventually(lambda: "tcp" in heard() and "udp" in heard(), 10, "a hears itself")


def test_inbound_needs_the_api():
    "a server inside, on a low port too, is reached from outside through the API only, and there with its token if it has one"
    with shared_world() as (net, d):
        b = box(d)
        got = inside(d, b, """
s = socket.socket(); s.setsockopt(1, 2, 1)
r = errno_of(s.bind, ("0.0.0.0", 80))
s.listen(8)
if os.fork() == 0:
    os.setsid()
    for fd in (0, 1, 2): os.close(fd)
    stop = time.time() + 600
    while time.time() < stop:
        c, _ = s.accept(); c.recv(4096); c.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\nConnection: close\\r\\n\\r\\ninside"); c.close()
    os._exit(0)
say(r)""")
        check_equal(got, "success")
        a = ask(d, "GET", "/", key="", headers=to_box(b, port=80))
        check_equal(a.status, 403, a)
        a = ask(d, "GET", "/", key="", headers={**to_box(b, port=80), "Hutch-Traffic-Token": "x" * 40})
        check_equal(a.status, 403, a)
        a = ask(d, "GET", "/", key="", headers={**to_box(b, port=80), "Hutch-Traffic-Token": b["trafficAccessToken"]})
        check_equal((a.status, a.body), (200, b"inside"), a)
        for host in filter(None, (own_address(), "127.0.0.1")):
            with socket.socket() as s:
                s.settimeout(2)
                if s.connect_ex((host, 80)) == 0:
                    s.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    check(b"inside" not in s.recv(4096), "reachable around the API")


def test_dns_carries_nothing_out():
    "no lookup of any kind, name or rate makes the node ask anybody: a question is never a message"
    with shared_world() as (net, d):
        b = box(d, allow("api.test", "*.wild.test"))
        net.forget()
        got = inside(d, b, """
import random
random.seed(1)
label = lambda n: "".join(random.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(n))
out = {"answers": {}, "kinds": {}}
for i in range(200):
    r = dns(".".join(label(50) for _ in range(4)) + (".wild.test" if i % 2 else ".evil.example"))
    out["answers"][str(r[0])] = out["answers"].get(str(r[0]), 0) + 1
time.sleep(1.1)
for name, kind in dict(A=1, NS=2, CNAME=5, SOA=6, NULL=10, PTR=12, MX=15, TXT=16, AAAA=28, SRV=33, OPT=41, SVCB=64, HTTPS=65, AXFR=252, ANY=255, odd=4711).items():
    r = dns("x" + label(20) + ".wild.test", kind, timeout=2)
    out["kinds"][name] = [r[0], struct.unpack(">H", r[2][6:8])[0] if len(r[2]) > 8 else 0]
for server in ("8.8.8.8", NETWORK + ".1", "9.9.9.9"):
    out[server] = dns("api.test", 1, server)[:2]
out["tcp"] = dns("api.test", 1, "8.8.4.4", tcp=True)[0]
bad = {"chaos": dns("version.bind", 16, cls=3), "response": dns("api.test", 1, flags=0x8180, timeout=1), "two": dns("", raw=b"\\x12\\x34\\1\\0\\0\\2\\0\\0\\0\\0\\0\\0\\3api\\4test\\0\\0\\1\\0\\1\\3www\\4test\\0\\0\\1\\0\\1", timeout=1),
       "nul": dns([b"evil\\0", b"test"], timeout=1), "dot": dns([b"api.test"], timeout=1), "upper": dns("API.tEsT"), "pointer": dns("", raw=b"\\x12\\x34\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\xc0\\x0c\\0\\1\\0\\1", timeout=1),
       "long": dns([b"a" * 63] * 5, timeout=1), "short": dns("", raw=b"\\x12", timeout=1), "space": dns([b"a b", b"test"], timeout=1), "update": dns("api.test", flags=0x2800, timeout=1)}
out["bad"] = {k: v[:2] for k, v in bad.items()}
out["after"] = dns("api.test")[:2]
say(out)""")
        check_equal(net.names.asked, [], "a lookup went upstream")
        check_equal((got["8.8.8.8"][0], got["9.9.9.9"][0], got["tcp"], got["after"][0]), (0, 0, 0, 0), got)
        check_equal(got[at(1)], [-1, ["ConnectionRefusedError"]], "127/8 is the sandbox's own")
        check(got["after"][1][0].startswith("198.18."), got)
        check("-1" not in got["answers"] and "0" in got["answers"], got["answers"])
        for kind in ("NULL", "TXT", "MX", "SRV", "HTTPS", "SVCB", "AXFR", "ANY", "odd", "CNAME", "NS"):
            check_equal(got["kinds"][kind][1], 0, (kind, got["kinds"]))
        bad = got["bad"]
        check_equal(bad["upper"][0], 0, bad)
        for name in ("two", "nul", "dot", "pointer", "long", "space", "update", "chaos"):
            check(bad[name][0] != 0, (name, bad))
        # A request that is allowed does resolve: the server of names is one that would have heard it.
        check_equal(inside(d, b, "say(http(get('/')).status)"), 200)
        check_equal(set(net.names.asked), {"api.test"})


def test_host_spellings():
    "only the allowed name itself, whatever its case and with one final dot, passes; everything that resembles it does not"
    with shared_world() as (net, d):
        net.hosts.update(dict.fromkeys(("evilapi.test", "api.test.evil.test", "xwild.test", "wild.test", "bad.wild.test", "a.wild.test"), at(2)))
        doc = allow("api.test", "*.wild.test")
        doc["rules"].append({"id": "no", "effect": "deny", "hosts": ["bad.wild.test"]})
        b = box(d, doc)
        good = ["api.test", "API.test", "aPi.TeSt", "api.test.", "a.wild.test", "A.wild.test."]
        bad = ["evilapi.test", "api.test.evil.test", "xwild.test", "wild.test", "bad.wild.test", "bad.wild.test.", "BAD.Wild.TEST.", "other.test", "api.test..", ".api.test", "api..test", "api.test\\0.evil.test",
               "evil.test\\0.api.test", "api.test ", " api.test", "api.test\\t", "api.test\\r\\nHost: other.test", "api.test\\nX: y", "api.test:443", "%61pi.test", "api.test%2eevil.test", "api.test@evil.test", "user@api.test", "user:pw@api.test",
               "evil.test#api.test", "evil.test\\\\api.test", "api.test/", "api.test?x", "\\u0430pi.test", "api\\u3002test", "api\\uff0etest", "xn--pi-7kc.test", "\\xc3\\xa0pi.test", "api\\u200d.test", "api\\u202e.test", "\\xc1\\xa1pi.test",
               "a" * 64 + ".wild.test", ".".join(["a" * 60] * 5) + ".wild.test", "-a.wild.test", "*.wild.test", "*", "", "[api.test]", "api.test%00", "api.test;x"]
        code = f"""
good, bad = {good!r}, [{', '.join('"' + x + '"' for x in bad)}]
def tries(name):
    raw = name.encode("utf-8", "surrogatepass") if any(ord(c) > 255 for c in name) else name.encode("latin1")
    out = {{}}
    for via in ("connect", "socks5", "socks4a"):
        try:
            s = dial(raw, 443, via) if len(raw) < 256 else None
            out[via] = http(get("/" + via), "api.test" if b"api" in raw.lower() else "a.wild.test", to="never").status if s is None else 0
            s = tls(s, name.rstrip(".").lower() if name in good else "api.test")
            s.sendall(b"GET /%s HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\n\\r\\n" % (via.encode(), raw))
            out[via] = Http(read_all(s)).status
        except Exception as e:
            out[via] = "refused"
    s = dial(GATE, 3128)
    s.sendall(b"GET http://%s/absolute HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\n\\r\\n" % (raw, raw))
    out["absolute"] = Http(read_all(s)).status
    s.close()
    try:
        s = dial("api.test", 80)
        s.sendall(b"GET /host HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\n\\r\\n" % raw)
        out["host"] = Http(read_all(s)).status
    except Exception as e:
        out["host"] = "refused"
    time.sleep(0.04)
    return out
say([[(n, tries(n)) for n in good], [(n, tries(n)) for n in bad]])"""
        good_got, bad_got = inside(d, b, code, timeout=400)
        for name, got in good_got:
            want = {"connect": 200, "socks5": 200, "socks4a": 200, "absolute": 200, "host": 200 if "wild" not in name.lower() else 421}
            check_equal(got, want, name)
        for name, got in bad_got:
            if name.strip(" \t") == "api.test":  # blanks around the value of a field do not belong to it
                check_equal(got.pop("host"), 200, name)
            check(all(v in (400, 403, 421, 0, "refused") for v in got.values()), (name, got))
        check_equal({r["host"].lower() for r in net.seen()} - {"api.test", "a.wild.test"}, set(), "another host was reached")
        check(all(n in ("api.test", "a.wild.test") for n in net.names.asked), set(net.names.asked))
        network(d, b, allow("api.test", "other.test", "xwild.test", "wild.test", "evilapi.test"))
        check_equal(inside(d, b, "say([http(get('/', h), h).status for h in ('other.test', 'xwild.test', 'wild.test', 'evilapi.test')])"), [200, 502, 502, 502],
                    "allowed, they are reached (three have no certificate)")


def test_patterns_too_broad():
    "patterns that would open a whole zone, or nothing, are refused when they are given, and the policy in force stays"
    with shared_world() as (net, d):
        b = box(d, allow("api.test"))
        for bad in ("*", "*.", "*.com", "*.co.uk", "a.*.com", "*api.test", "api.test:0", "api.test:65536", "http://api.test", "api.test/x", "*.*.test", "a*.test", "127.1", "0x7f.1", "api..test", "", " "):
            a = ask(d, "PUT", f"/v1/sandboxes/{b['sandboxID']}/network", {"rules": [{"hosts": [bad]}]})
            check_equal(a.status, 400, (bad, a))
        for doc in ({"rules": [{"hosts": []}]}, {"rule": []}, {"rules": [{"hosts": ["a.b"], "http": []}]}, {"default": "allow"}, {"rules": [{"hosts": ["a.b"], "private": ["169.254.0.0/16"]}]},
                    {"rules": [{"hosts": ["a.b"], "private": ["127.0.0.0/8"]}]}, {"rules": [{"hosts": ["a.b"], "private": ["0.0.0.0/0"]}]}, {"rules": [{"hosts": ["a.b"], "cleartext": True, "tls": "passthrough", "secrets": ["x"]}]}):
            a = ask(d, "PUT", f"/v1/sandboxes/{b['sandboxID']}/network", doc)
            check_equal(a.status, 400, (doc, a))
        check_equal(inside(d, b, "say([http(get('/')).status, http(get('/', 'other.test'), 'other.test').status])"), [200, 403])
        network(d, b, {"rules": [{"hosts": ["*.sub.wild.test"], "http": [{"methods": ["GET"]}]}]})
        check_equal(inside(d, b, "say([http(get('/', 'deep.sub.wild.test'), 'deep.sub.wild.test').status, http(get('/')).status])"), [200, 403])


def test_nothing_allowed():
    "a document without rules, and one that denies what another part allows, let nothing pass"
    with shared_world() as (net, d):
        for doc in ("off", "none", {}, {"default": "deny"}, {"allow": []}, {"allow": ["www.test"]}, {"rules": [{"hosts": ["*"], "broad": True}], "deny": ["api.test"]}, {"default": "public", "deny": [".test"]}):
            b = box(d, doc)
            got = inside(d, b, "say([http(get('/')).status, http(get('/'), port=80).status, http(get('/'), via='connect').status, http(get('/'), via='socks5').status])")
            check(set(got) <= {0, 403}, (doc, got))
        check_equal(net.seen(), [])
        for deny in ("api.test", ".test", "*.test"):  # the rule would be dead, and whoever wrote it is told
            a = ask(d, "POST", "/v1/sandboxes", {"template": "host", "network": {"allow": ["api.test"], "deny": [deny]}})
            check_equal(a.status, 400, a)
        b = box(d, {"allow": ["api.test"], "deny": ["other.test"], "tls": {"intercept": "always"}})
        check_equal(inside(d, b, "say([http(get('/')).status, http(get('/', 'other.test'), 'other.test').status])"), [200, 403])


LITERALS = ["127.0.0.1", "127.1", "127.0.1", "0x7f.0.0.1", "0x7f000001", "0177.0.0.1", "017700000001", "2130706433", "0", "0.0.0.0", "127.0.0.1.", "127.0.0.1%00", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
            "[::127.0.0.1]", "169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[2002:7f00:1::]", "[fd00:ec2::254]",
            "[fe80::1%25lo]", "[fe80::1%lo]", "[fe80::1]", "[::ffff:1.2.3.4%x.api.test]", "fe80::1", "::1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1", "224.0.0.1", "255.255.255.255", "198.18.0.1", "198.19.0.1",
            "[2001:0:7f00:1::]", "[fc00::1]", "[fec0::1]", "[ff02::1]", "10.255.0.1", "10.255.0.2", "192.0.2.1", "240.0.0.1", "[100::1]", "[2001:db8::1]", "\\u2460\\u2461\\u2466.0.0.1"]


def test_address_spellings():
    "no spelling of an inner address reaches it, not by CONNECT, SOCKS, absolute targets or Host, even if every public name and address is allowed"
    with shared_world() as (net, d), Canary("127.0.0.1", "::1") as canary:
        canary.control()
        b = box(d, {"default": "public", "tls": {"intercept": "always"}, "rules": [{"id": "v4", "cidrs": ["0.0.0.0/0"], "ports": [80, canary.port]}, {"id": "v6", "cidrs": ["::/0"], "ports": [80, canary.port]}],
                    "limits": {"connections": 4000, "new_conn_per_s": 1000, "rps": 1000, "burst": 2000}})
        code = f"""
out = {{}}
for text in [{', '.join('"' + x + '"' for x in LITERALS)}]:
    raw = text.encode()
    bare = text.strip("[]")
    for port in ({canary.port}, 80):
        got = []
        s = dial(GATE, 3128); s.sendall(b"CONNECT %s:%d HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" % (raw, port)); a = s.recv(4096)
        if a.startswith(b"HTTP/1.1 200"):
            s.sendall(b"GET / HTTP/1.1\\r\\nHost: %s:%d\\r\\nConnection: close\\r\\n\\r\\n" % (raw, port)); a = read_all(s, 8)
        got.append(a)
        s = dial(GATE, 3128); s.sendall(b"GET http://%s:%d/ HTTP/1.1\\r\\nHost: %s:%d\\r\\nConnection: close\\r\\n\\r\\n" % (raw, port, raw, port)); got.append(read_all(s, 8))
        for via in ("socks5", "address"):
            try:
                s = dial(bare, port, via); s.sendall(b"GET / HTTP/1.1\\r\\nHost: %s:%d\\r\\nConnection: close\\r\\n\\r\\n" % (raw, port)); got.append(read_all(s, 8))
            except (OSError, ValueError, UnicodeError): pass
        try:
            s = socket.create_connection((bare, port), 8)
            if not bare.startswith("127.") and bare not in ("::1", "10.255.0.2", "0", "0.0.0.0", "::", "::ffff:127.0.0.1", "::ffff:7f00:1", "2130706433", "0x7f000001", "017700000001", "0177.0.0.1", "0x7f.0.0.1"):
                s.sendall(b"GET / HTTP/1.1\\r\\nHost: %s:%d\\r\\nConnection: close\\r\\n\\r\\n" % (raw, port)); got.append(read_all(s, 8))
        except (OSError, ValueError, UnicodeError): pass
        out[text + " " + str(port)] = [x[:12] for x in got if b" 200 " in x[:16] or b"canary" in x]
def judged(url): return json.loads(http(get("/v1/egress/check?url=" + url, "sandbox.internal"), "sandbox.internal", 80).raw.split(b"\\r\\n\\r\\n")[1]).get("verdict")
out["public"] = [judged("http://9.9.9.9/"), judged("http://127.0.0.1/"), judged("http://[2620:fe::9]/"), judged("http://[::ffff:127.0.0.1]/"), judged("http://[64:ff9b::7f00:1]/")]
out["name"] = http(get("/"), port=80).status
say(out)"""
        got = inside(d, b, code, timeout=400)
        public, name = got.pop("public"), got.pop("name")
        check_equal({k: v for k, v in got.items() if v and not k.startswith("10.255.0.1 80")}, {})
        check_equal(canary.heard, [])
        check_equal(public, ["allow", "deny", "allow", "deny", "deny"], "public addresses would be reached")
        check_equal((name, {r["host"] for r in net.seen()}), (200, {"api.test"}))


def test_names_that_lie():
    "an allowed name that resolves to an inner address is refused with every address checked, also behind aliases and in mixed answers"
    own = own_address()
    inner = {"a": "10.1.2.3", "b": "192.168.7.7", "c": "172.20.1.1", "d": "100.64.9.9", "e": "127.0.0.1", "f": "169.254.169.254", "g": "0.0.0.0", "h": "224.0.0.5", "i": "::1", "j": "fd00:ec2::254", "k": "fe80::5",
             "l": "::ffff:127.0.0.1", "m": "64:ff9b::7f00:1", "n": "2002:7f00:1::1", "o": "::7f00:1", "p": "fc00::9", "q": "198.18.0.1", "r": "255.255.255.255", "s": ["10.0.0.1", "127.0.0.1", "::1"], "t": "10.255.0.1",
             "u": "2001:0:1:1::80ff:fffe", "v": ("cname", "e.lie.test"), "w": ("cname", "v.lie.test"), "x": own or "127.0.0.2"}
    hosts = {f"{k}.lie.test": v for k, v in inner.items()}
    with node("  private: 10.1.2.0/24\n") as (net, d), Canary("127.0.0.1", "::1") as canary:
        canary.control()
        net.hosts.update(hosts)
        net.hosts["mixed.lie.test"] = ["127.0.0.1", at(2), "10.0.0.1"]
        net.hosts["alias.lie.test"] = ("cname", "api.test")
        net.hosts["v6in.lie.test"] = ["::1", at(1)]
        doc = {"rules": [{"id": "lie", "hosts": ["*.lie.test"], "ports": [80, canary.port], "cleartext": True, "http": [{"methods": ["GET"]}]}], "limits": {"new_conn_per_s": 1000}}
        b = box(d, doc)
        code = f"""
out = {{}}
for name in {sorted(hosts)!r}:
    for port in (80, {canary.port}):
        a = http(get("/", name + ("" if port == 80 else ":%d" % port)), name, port)
        out[name + " " + str(port)] = list(a)
for name in ("mixed.lie.test", "alias.lie.test", "v6in.lie.test"):
    out[name] = list(http(get("/ok", name), name, 80))
say(out)"""
        got = inside(d, b, code, timeout=300)
        for name in ("mixed.lie.test", "alias.lie.test", "v6in.lie.test"):
            check_equal(got.pop(name), [200, ""], (name, "the public member is used"))
        check_equal({k: v for k, v in got.items() if v not in ([403, "resolved_private"], [403, "private_address"])}, {})
        check_equal(canary.heard, [])
        check_equal({r["host"] for r in net.seen()}, {"mixed.lie.test", "alias.lie.test", "v6in.lie.test"})
        # What the operator opens is tried, nothing else.
        network(d, b, {"rules": [{**doc["rules"][0], "private": ["10.1.2.0/24"]}]})
        # Questions per second have a limit, which the names above may have used up.
        got = inside(d, b, """
def patient_http(host):
    end = time.monotonic() + 10
    while (got := http(get('/', host), host, 80, timeout=25)).raw.startswith(b"gaierror") and time.monotonic() < end: time.sleep(0.2)
    return list(got)
say([patient_http(h) for h in ('a.lie.test', 'b.lie.test', 'e.lie.test')])""")
        check(got[0][1] not in ("resolved_private", "private_address", "host_not_allowed"), got)  # whoever is there, or nobody
        check_equal([x[1] for x in got[1:]], ["resolved_private"] * 2, got)


def test_rebinding():
    "a name that is public when it is checked and inner when it is asked again leads nowhere inner"
    with shared_world() as (net, d), Canary("127.0.0.1") as canary:
        canary.control()
        now, asked = {"a": at(2)}, []
        net.hosts["turn.test"] = lambda: now["a"]
        net.hosts["each.test"] = lambda: asked.append(1) or (at(2) if len(asked) <= 2 else "127.0.0.1")
        doc = {"rules": [{"id": "turn", "hosts": ["turn.test", "each.test"], "ports": [80, canary.port], "cleartext": True, "http": [{"methods": ["GET"]}]}], "limits": {"new_conn_per_s": 1000}}
        b = box(d, doc)
        check_equal(inside(d, b, "say(list(http(get('/1', 'turn.test'), 'turn.test', 80)))"), [200, ""])
        now["a"] = "127.0.0.1"
        network(d, b, doc)  # the connection that was kept, to the address that was checked, goes
        got = inside(d, b, f"""
time.sleep(2.2)
say([list(http(get('/2', 'turn.test'), 'turn.test', 80)), list(http(get('/3', 'turn.test:{canary.port}'), 'turn.test', {canary.port}))])""")
        check_equal([x[1] for x in got], ["resolved_private"] * 2, got)
        got = inside(d, b, f"""
out = []
for i in range(12):
    out.append(http(get('/%d' % i, 'each.test:{canary.port}'), 'each.test', {canary.port}).reason)
    time.sleep(0.3)
say(out)""")
        check_equal(set(got) - {"resolved_private", "upstream_unreachable"}, set(), got)
        check_in("resolved_private", got)
        check_equal(canary.heard, [])
        now["a"] = at(2)
        got = inside(d, b, "time.sleep(6); say(http(get('/4', 'turn.test'), 'turn.test', 80).status)")
        check_equal((got, [r["path"] for r in net.seen("turn.test")]), (200, ["/1", "/4"]))


def test_own_resolver_and_hosts_file():
    "what a sandbox writes into its own hosts file or resolver changes where it connects, never where the request goes"
    with shared_world() as (net, d):
        b = box(d, allow("api.test"))
        got = inside(d, b, """
out = {"write": errno_of(lambda: open("/etc/hosts", "a").close()), "resolv": errno_of(lambda: open("/etc/resolv.conf", "a").close())}
# The same thing with a client that resolves by itself: connect anywhere, and say api.test or other.test.
for addr in (NETWORK + ".2", "1.2.3.4", "198.18.200.200", "2001:db8::1"):
    for port in (80, 443):
        out[addr + " api %d" % port] = list(http(get("/api"), "api.test", port, to=addr))
        out[addr + " other %d" % port] = list(http(get("/other", "other.test"), "other.test", port, to=addr))
say(out)""")
        check(all(v[0] != 200 for k, v in got.items() if " other" in k), got)
        check_equal(net.seen("other.test"), [])
        check(net.seen() and all(r["host"] == "api.test" for r in net.seen()), net.seen())
        check(net.web[at(2), 80].requests == [] and net.web[at(2), 443].requests == [], "a name was taken to another address")


def test_what_the_connection_says():
    "the name that was connected to, the one in TLS and the one in the request must agree, in every combination"
    with shared_world() as (net, d):
        b = box(d, allow("api.test", "www.test"))
        got = inside(d, b, """
E = "other.test"
out = {}
for via in (None, "connect", "socks5"):
    v = str(via)
    out[v + " ok"] = list(http(get("/ok"), via=via))
    out[v + " sni other"] = list(http(get("/x"), sni=E, via=via))
    out[v + " sni other, host other"] = list(http(get("/x", E), sni=E, via=via))
    out[v + " host other"] = list(http(get("/x", E), via=via))
    out[v + " sni www"] = list(http(get("/x"), sni="www.test", via=via))
    out[v + " host www"] = list(http(get("/x", "www.test"), via=via))
    out[v + " port"] = list(http(get("/x", "api.test:8443"), via=via))
    out[v + " same port"] = list(http(get("/ok", "api.test:443"), via=via))
    out[v + " absolute other"] = list(http(b"GET https://other.test/x HTTP/1.1\\r\\nHost: api.test\\r\\nConnection: close\\r\\n\\r\\n", via=via))
    out[v + " absolute other, host other"] = list(http(b"GET https://other.test/x HTTP/1.1\\r\\nHost: other.test\\r\\nConnection: close\\r\\n\\r\\n", via=via))
    out[v + " absolute same"] = list(http(b"GET https://api.test/ok HTTP/1.1\\r\\nHost: api.test\\r\\nConnection: close\\r\\n\\r\\n", via=via))
    out[v + " absolute userinfo"] = list(http(b"GET https://api.test@other.test/x HTTP/1.1\\r\\nHost: api.test@other.test\\r\\nConnection: close\\r\\n\\r\\n", via=via))
    out[v + " plain host other"] = list(http(get("/x", E), port=80, via=via))
    out[v + " plain ok"] = list(http(get("/ok"), port=80, via=via))
    out[v + " two hosts"] = list(http(b"GET /x HTTP/1.1\\r\\nHost: api.test\\r\\nHost: other.test\\r\\nConnection: close\\r\\n\\r\\n", via=via))
    out[v + " two hosts, same"] = list(http(b"GET /x HTTP/1.1\\r\\nHost: api.test\\r\\nHost: api.test\\r\\nConnection: close\\r\\n\\r\\n", via=via))
    out[v + " no host"] = list(http(b"GET /x HTTP/1.1\\r\\nConnection: close\\r\\n\\r\\n", via=via))
    out[v + " no sni"] = list(http(get("/x"), sni=None, via=via))
    s = tls(dial("api.test", 443, via)); s.sendall(get("/ok").replace(b"Connection: close\\r\\n", b"") + get("/x", E)); a = Http(read_all(s))
    out[v + " pipelined"] = a.all
    h = H2(via=via); h.request(1, "api.test", "/ok"); h.request(3, E, "/x"); h.request(5, "www.test", "/x"); h.request(7, "api.test", "/x", more=[("host", E)])
    h.request(9, None, "/x", more=[("host", E)]); h.request(11, "api.test:8443", "/x"); h.request(13, "api.test", "/ok")
    out[v + " h2"] = [h.answer(i) for i in (1, 3, 5, 7, 9, 11, 13)]
    try:
        h = H2(sni=E, via=via); h.request(1, "api.test", "/x"); h.request(3, E, "/x"); out[v + " h2 sni other"] = [h.answer(1), h.answer(3)]
    except OSError as e: out[v + " h2 sni other"] = [[0, str(e)]]
    time.sleep(0.2)
say(out)""", timeout=400)
        for key, value in got.items():
            via, _, what = key.partition(" ")
            if what in ("ok", "plain ok", "same port", "absolute same"):
                check_equal(value, [200, ""], key)
            elif what == "pipelined":
                check_equal(value, [200, 421], key)
            elif what == "h2":
                check_equal((value[0][0], value[6][0]), (200, 200), (key, value))
                check(all(v[0] in (421, 400, -1) for v in value[1:6]), (key, value))
                check_equal(value[1], [421, "host_mismatch"], key)
            elif what == "h2 sni other":
                check(all(v[0] in (421, 0, -1) for v in value), (key, value))
            else:
                check(value[0] in (400, 403, 421, 0), (key, value))
        for key in ("None host other", "connect host other", "socks5 host www"):
            check_equal(got[key], [421, "host_mismatch"], key)
        for key in ("connect sni other", "None sni other", "socks5 sni www"):
            check_equal(got[key], [421, "sni_mismatch"], key)
        check_equal({(r["host"], r["path"]) for r in net.seen()}, {("api.test", "/ok")})
        got = inside(d, b, "say([http(get('/w', 'www.test'), 'www.test').status])")
        check_equal(got, [200], "the other name by itself is allowed")


def test_hostile_hellos():
    "a ClientHello that cannot be read in one way only is refused; a strange but lawful one is not"
    with shared_world() as (net, d):
        b = box(d, allow("api.test"))
        got = inside(d, b, """
def change(f): return record(with_extensions(hello_bytes("api.test"), f))
def only_sni(*names, n=1): return lambda e: [(0, sni_extension(*names))] * n + [x for x in e if x[0]]
out = {"bad": {}, "good": {}}
B = {
 "two names": change(only_sni(b"api.test", b"other.test")), "two extensions": change(only_sni(b"api.test", n=2)),
 "other then own": change(lambda e: [(0, sni_extension(b"other.test"))] + e), "nul": change(only_sni(b"api.test\\0.evil.test")), "nul end": change(only_sni(b"api.test\\0")),
 "address": change(only_sni(NETWORK.encode() + b".1")), "v6": change(only_sni(b"::1")), "empty": change(only_sni(b"")), "space": change(only_sni(b"api.test ")), "long": change(only_sni(b"a." * 200 + b"test")),
 "utf8": change(only_sni("\\u0430pi.test".encode())), "wild": change(only_sni(b"*.test")), "port": change(only_sni(b"api.test:443")), "two dots": change(only_sni(b"api.test..")), "list length": change(lambda e: [(0, b"\\0\\xff\\0\\0\\x08api.test")] + [x for x in e if x[0]]),
 "type": change(lambda e: [(0, b"\\0\\x0b\\1\\0\\x08api.test")] + [x for x in e if x[0]]),
 "trailing": record(hello_bytes("api.test") + b"\\0"), "second message": record(hello_bytes("api.test") + hello_bytes("other.test")), "not hello": record(b"\\2" + hello_bytes("api.test")[1:]),
 "empty record": record(b"") + record(hello_bytes("api.test")), "huge": record(b"\\1\\0\\xff\\xff" + b"x" * 16000), "alert first": b"\\x15\\3\\1\\0\\2\\1\\0" + record(hello_bytes("api.test")),
 "sslv2": b"\\x80\\x2e\\1\\3\\1\\0\\x15\\0\\0\\0\\x10" + b"x" * 35, "ssh": b"SSH-2.0-x\\r\\n", "raw": b"\\0\\1\\2\\3" * 20, "http": get("/plain"),
 "version": record(hello_bytes("api.test"), b"\\2\\0"), "session id": record(hello_bytes("api.test")[:38] + b"\\xff" + hello_bytes("api.test")[39:]),
}
for name, data in B.items(): out["bad"][name] = answer_to_hello("api.test", data, timeout=60 if name == "http" else 4)  # silence is a no
G = {"plain": record(hello_bytes("api.test")), "upper": change(only_sni(b"API.TEST")), "dot": change(only_sni(b"api.test.")), "last": change(lambda e: [(0x5a5a, b"g")] + [x for x in e if x[0]] + [(0, sni_extension(b"api.test"))]),
     "padded": change(lambda e: [(21, b"\\0" * 9000)] + [x for x in e if x[0] != 21]), "grease": change(lambda e: [(0x0a0a, b""), (0xfafa, b"\\0")] + e), "old": record(hello_bytes("api.test"), b"\\3\\3"), "ech": change(lambda e: e + [(0xfe0d, b"\\0" * 40)])}
for name, data in G.items(): out["good"][name] = answer_to_hello("api.test", data)
out["good"]["segments"] = answer_to_hello("api.test", [G["plain"][i:i + 3] for i in range(0, len(G["plain"]), 3)])
out["good"]["split"] = "server" if split_tls(dial("api.test"), "api.test", 20, 1)(get("/split")).startswith(b"HTTP/1.1 200") else "no"
a = http(get("/tls80"), port=443, to="api.test"); out["control"] = a.status
try:
    s = tls(dial("api.test", 80)); s.sendall(get("/tls-on-80")); out["tls on 80"] = list(Http(read_all(s)))
except OSError as e: out["tls on 80"] = [0, type(e).__name__]
try:
    s = tls(dial("api.test"), alpn=["acme-tls/1"]); out["alpn"] = "server"
except OSError as e: out["alpn"] = "refused"
say(out)""", timeout=300)
        plain = got["bad"].pop("http")
        for name, value in got["bad"].items():
            check(value.startswith(("alert", "reset", "closed")), (name, value, got["bad"]))
        check(plain.startswith("other HTTP/1.1 4") or plain.startswith("other HTTP/1.1 2"), plain)
        check_equal({k: v for k, v in got["good"].items() if v != "server"}, {})
        check_equal((got["control"], got["alpn"]), (200, "refused"), got)
        seen = [r["path"] for r in net.seen()]
        check(set(seen) <= {"/split", "/tls80", "/plain", "/tls-on-80"}, seen)
        check_equal(net.seen("other.test"), [])


def test_encrypted_names():
    "where a stream is passed through unread, an encrypted ClientHello and a name other than the one connected to are refused"
    with shared_world() as (net, d):
        b = box(d, {"rules": [{"id": "pass", "hosts": ["api.test"], "tls": "passthrough"}, {"id": "db", "proto": "tcp", "hosts": ["ssh.test"], "ports": [22]}]})
        got = inside(d, b, """
def change(f): return record(with_extensions(hello_bytes("api.test"), f))
out = {"plain": answer_to_hello("api.test", record(hello_bytes("api.test"))), "ech": answer_to_hello("api.test", change(lambda e: e + [(0xfe0d, b"\\0" * 40)])),
       "other": list(http(get("/x", "other.test"), sni="other.test")), "own host": list(http(get("/x"), sni="other.test")), "none": list(http(get("/x"), sni=None)),
       "connect other": list(http(get("/x", "other.test"), sni="other.test", via="connect"))}
s = dial("ssh.test", 22); out["banner"] = s.recv(20)
try: out["ssh on 443"] = dial("ssh.test", 443).recv(10) or b"closed"
except OSError as e: out["ssh on 443"] = "refused"
out["request"] = http(get("/through")).status
say(out)""")
        check_equal((got["plain"], got["request"], got["banner"]), ("server", 200, "SSH-2.0-test\r\n"), got)
        check(got["ech"].startswith("alert"), got)
        check("SSH" not in got["ssh on 443"], got)
        check_equal([r["path"] for r in net.seen()], ["/through"])
        check_equal((got["other"], got["own host"], got["connect other"]), ([421, "sni_mismatch"],) * 3, got)
        check_equal(got["none"], [403, "sni_missing"], got)
        check_in("ech_not_allowed", {x["reason"] for x in denials(d, b)})


def test_proxy_ports():
    "ports in a target are one decimal number from 1 to 65535, and the rule's ports hold in every way to connect"
    with shared_world() as (net, d):
        b = box(d, allow("api.test"))
        got = inside(d, b, """
out = {}
for p in (b"443", b"", b"0", b"65536", b"-443", b"+443", b" 443", b"0443", b"443 ", b"443:443", b"4 43", b"0x1bb", b"443a", b"99999999999999999999"):
    s = dial(GATE, 3128); s.sendall(b"CONNECT api.test:%s HTTP/1.1\\r\\nHost: api.test:%s\\r\\n\\r\\n" % (p, p))
    out[p.decode()] = Http(s.recv(300)).status
    s = dial(GATE, 3128); s.sendall(b"GET http://api.test:%s/p HTTP/1.1\\r\\nHost: api.test:%s\\r\\nConnection: close\\r\\n\\r\\n" % (p.replace(b"443", b"80"), p.replace(b"443", b"80")))
    out["get " + p.decode()] = Http(read_all(s)).status
for port in (22, 25, 8080, 8443, 3128, 1080, 53): out["closed %d" % port] = list(http(get("/x", "api.test:%d" % port), "api.test", port, via="connect", sni=False))
say(out)""")
        check_equal((got["443"], got["get 443"]), (200, 200), got)
        for key, value in got.items():
            if key.startswith("closed"):
                check(value[0] in (403, 0), (key, value))
            elif key not in ("443", "get 443", "get ", "0443", "get 0443", "443 ", "get 443 "):
                check_equal(value, 400, (key, got))
        check(all(got[k] in (200, 400) for k in ("0443", "get 0443", "get ")), got)
        check(all(r["path"] == "/p" for r in net.seen()), net.seen())


def test_change_while_open():
    "what is taken out of the rules while streams, tunnels and idle connections are open is cut, and new requests on them are refused"
    with shared_world() as (net, d):
        b = box(d, {"rules": [{"id": "db", "proto": "tcp", "hosts": ["ssh.test"], "ports": [22]}, {"id": "pass", "hosts": ["other.test"], "tls": "passthrough"}, *allow("api.test")["rules"]]})
        out = {}
        t = threading.Thread(target=lambda: out.update(inside(d, b, """
a = dial("ssh.test", 22); a.recv(30)
p = tls(dial("other.test"), "other.test"); p.sendall(b"GET /keep HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n"); p.recv(4096)
k = tls(dial("api.test")); k.sendall(b"GET /keep HTTP/1.1\\r\\nHost: api.test\\r\\n\\r\\n"); k.recv(4096)
h = H2(); h.request(1, "api.test", "/keep"); first = h.answer(1)
open("/tmp/ready", "w").close()
while not os.path.exists("/tmp/go"): time.sleep(0.05)
got = {"first": first}
def echo():
    a.sendall(b"still there?"); return a.recv(20)
def one(f):
    try: return f().decode("latin1")
    except OSError as e: return type(e).__name__
got["tcp"] = one(echo)
def again(s, host):
    s.sendall(get("/again", host)); return read_all(s, 5) or b"closed"
got["tls"] = one(lambda: again(p, "other.test"))
got["kept"] = one(lambda: again(k, "api.test"))
h.request(3, "api.test", "/again"); got["h2"] = h.answer(3)
say(got)""")))
        t.start()
        eventually(lambda: sh(d, b, "test -e /tmp/ready").code == 0, 30, "the streams are open")
        check_equal({r["path"] for r in net.seen()}, {"/keep"})
        network(d, b, allow("www.test"))
        sh(d, b, "touch /tmp/go")
        t.join()
        check_equal(out["first"][0], 200, out)
        check("still" not in out["tcp"], out)
        check("200 OK" not in out["tls"] and "200 OK" not in out["kept"] and out["h2"][0] != 200, out)
        check_equal({r["path"] for r in net.seen()}, {"/keep"}, "a request went out after the change")
        check_equal(inside(d, b, "say(http(get('/', 'www.test'), 'www.test').status)"), 200)


def test_wrong_answers_look_alike():
    "whether an inner address has a listener cannot be told from the refusal of a name that resolves to it"
    port = free_port()
    with shared_world() as (net, d), Canary("127.0.0.1") as canary:
        net.hosts.update({"in.test": "127.0.0.1", "in2.test": "10.9.8.7"})
        b = box(d, {"rules": [{"id": "in", "hosts": ["in.test", "in2.test", "api.test"], "ports": [80, canary.port, port], "cleartext": True, "http": [{"methods": ["GET"]}]}]})
        got = inside(d, b, f"""
def ask(h, p):
    a = http(get("/", h + ":%d" % p if p != 80 else h), h, p)
    return [a.status, a.reason, re.sub(rb"[a-z]+_[0-9a-f]{{16}}|[0-9a-f-]{{16,}}|[0-9]+", b"#", a.raw).decode("latin1")]
say([ask("in.test", {canary.port}), ask("in.test", {port}), ask("in2.test", {canary.port}), ask("api.test", 80)])""")
        check_equal(got[0][:2], [403, "resolved_private"], got)
        check_equal(got[0], got[1], "an open and a closed port differ")
        check_equal(got[0][:2], got[2][:2], "loopback and another inner address differ")
        check_equal(got[3][0], 200)
        check_equal(canary.heard, [])
