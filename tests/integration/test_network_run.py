"""`hutch run` with network rules: what is allowed gets through, everything else is refused with words, nothing else leaves."""
import json
import os
import socket
import threading

from hutch_test import HUTCH_TEST, check, check_equal, check_in, eventually, hutch, hutch_record, workspace, write
from internet import Internet

CURL = ("curl", "-sS", "--max-time", "60")


def go(net, who, ws, *args, policy=None, **kw):
    extra = ["--policy", str(write(ws / "policy.yaml", policy, who))] if policy else []
    return hutch_record(*extra, *args, binary=HUTCH_TEST, who=who, cwd=ws, env=net.env(), **kw)


def test_allowed(who):
    "a host that is allowed is reached by http and https, with its own certificate when nothing has to be looked into"
    with Internet() as net, workspace(who) as ws:
        net.ca.cert.chmod(0o644), net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        for url in ("http://api.test/echo", "https://api.test/echo"):
            r = go(net, who, ws, "--allow-host", "api.test", "--", *CURL, url)
            check_equal(r.code, 0, r)
            check_equal(json.loads(r.out)["path"], "/echo", r)
        check_equal(r.record["network"]["hosts"]["api.test"]["denied"], 0, r.record)
        check(r.record["network"]["bytes_down"] > 0, r.record)
        check_equal(r.record["denials"], [], r.record)


def test_log(who):
    "the record lists what left: each request that could be seen, each stream that could not, and no value of a query"
    with Internet() as net, workspace(who) as ws:
        net.ca.cert.chmod(0o644), net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        script = "curl -sS -o /dev/null http://api.test/one?token=abc; curl -sS -d xyz -o /dev/null http://api.test/two; curl -sS -o /dev/null https://api.test/three; curl -sS -o /dev/null http://other.test/"
        r = go(net, who, ws, "--allow-host", "api.test", "--", "sh", "-c", script)
        check_equal(r.code, 0, r)
        log = r.record["network"]["log"]
        check_equal([(x["kind"], x.get("method"), x["host"], x["port"], x.get("path"), x.get("status")) for x in log],
                    [("http", "GET", "api.test", 80, "/one", 200), ("http", "POST", "api.test", 80, "/two", 200), ("tunnel", None, "api.test", 443, None, None)], log)
        check(log[1]["bytes_up"] >= 3 and log[2]["bytes_down"] > 0 and all(x["verdict"] == "allow" and x["ms"] > 0 for x in log), log)
        check("abc" not in json.dumps(r.record["network"]), "the value of a query")
        many = """import concurrent.futures as f, http.client as h
def some(n):
    c = h.HTTPConnection("api.test")
    for i in range(20): c.request("GET", "/%d" % (20 * n + i)); c.getresponse().read()
list(f.ThreadPoolExecutor(15).map(some, range(15)))"""
        r = go(net, who, ws, "--allow-host", "api.test", "--", "python3", "-c", many)
        check_equal((len(r.record["network"]["log"]), r.record["network"]["log_left_out"], r.record["network"]["requests"]), (256, 44, 300), r)


def test_refused(who):
    "a host that is not allowed answers 403 with JSON over http and https, the record names it and the grant, and nobody hears of it"
    with Internet() as net, workspace(who) as ws:
        net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        for url in ("http://other.test/secret?x=1", "https://other.test/secret"):
            net.forget()
            r = go(net, who, ws, "--allow-host", "api.test", "--", *CURL, "-w", "\n%{http_code}", url)
            check_equal(r.code, 0, r)
            body, code = r.out.rsplit("\n", 1)
            check_equal(code, "403", r)
            error = json.loads(body)["error"]
            check_equal((error["reason"], error["host"]), ("host_not_allowed", "other.test"), error)
            denial = [d for d in r.record["denials"] if d["kind"] == "network"]
            check(denial and "other.test" in denial[0]["subject"], r.record["denials"])
            check_in("other.test", denial[0]["grant"]["flag"], denial)
            check_equal((net.seen(), net.names.asked), ([], []), "somebody outside was asked")


def test_paths_and_methods(who):
    "methods and paths of a rule are checked inside TLS; tricks with dots and encodings are judged by what the server would see"
    rules = """network:
  rules:
    - id: read
      hosts: [api.test]
      http: [{methods: [GET], paths: ["/pub/**", "/echo"]}]
"""
    with Internet() as net, workspace(who) as ws:
        net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        tries = [("GET", "/pub/x", "200"), ("POST", "/pub/x", "403"), ("GET", "/priv", "403"), ("GET", "/pub/../priv", "403"),
                 ("GET", "/pub/%2e%2e/priv", "403"), ("GET", "/pub/..%2fpriv", "403"), ("GET", "/pub/%252e%252e/priv", "400")]
        script = "\n".join(f"curl -sS --path-as-is -o /dev/null -w '%{{http_code}} ' -X {m} 'https://api.test{p}'" for m, p, _ in tries)
        r = go(net, who, ws, "--", "sh", "-c", script, policy=rules)
        check_equal(r.out.split(), [c for _, _, c in tries], r)
        check_equal([x["path"] for x in net.seen("api.test")], ["/pub/x"], net.seen())


def test_no_other_way(who):
    "addresses, other resolvers, UDP, ping, the metadata service and the host's loopback lead nowhere"
    with Internet() as net, workspace(who) as ws, socket.socket() as host:
        net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        host.bind(("127.0.0.1", 0))
        host.listen()
        port = host.getsockname()[1]
        script = f"""
curl -sS --max-time 60 -o /dev/null -w '%{{http_code}} ' http://93.184.216.34/
curl -sS --max-time 60 -o /dev/null -w '%{{http_code}} ' http://169.254.169.254/latest/
curl -sS --max-time 60 -o /dev/null -w '%{{http_code}} ' http://metadata.test/ ; curl -sS --max-time 60 http://127.0.0.1:{port}/ 2>/dev/null; echo "$? "
curl -sS --max-time 60 -k https://93.184.216.34/ -o /dev/null -w '%{{http_code}} '
python3 - <<'X'
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(60)
s.connect(("9.9.9.9", 443)); s.send(b"x")
try: s.recv(1); print("answered")
except ConnectionRefusedError: print("udp refused")
X"""
        r = go(net, who, ws, "--allow-host", "api.test", "--allow-host", "metadata.test", "--", "sh", "-c", script, timeout=400)
        check_equal(r.out.split(), ["403", "403", "403", "7", "403", "udp", "refused"], r)
        check_equal(net.seen(), [], "somebody outside was reached")


def test_tcp_and_proxies(who):
    "a tcp rule carries a protocol in which the server speaks first; the explicit HTTP and SOCKS proxies obey the same rules"
    rules = """network:
  allow: [api.test]
  rules:
    - {id: ssh, proto: tcp, hosts: [ssh.test], ports: [22]}
"""
    with Internet() as net, workspace(who) as ws:
        net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        script = """python3 -c '
import socket
s = socket.create_connection(("ssh.test", 22), 60); print(s.recv(20).decode().strip()); s.sendall(b"ping"); print(s.recv(9).decode())'
curl -sS -x http://10.255.0.1:3128 -o /dev/null -w '%{http_code} ' https://api.test/echo
curl -sS -x http://10.255.0.1:3128 -o /dev/null -w '%{http_code} ' http://api.test/echo
curl -sS -x http://10.255.0.1:3128 -o /dev/null -w '%{http_code} ' http://other.test/echo
curl -sS -x socks5h://10.255.0.1:1080 -o /dev/null -w '%{http_code} ' https://api.test/echo
curl -sS -x socks5h://10.255.0.1:1080 -o /dev/null -w '%{http_code} ' https://other.test/echo"""
        r = go(net, who, ws, "--", "sh", "-c", script, policy=rules)
        check_equal(r.out.split(), ["SSH-2.0-test", "ping", "200", "200", "403", "200", "000"], r)


def test_egress_dies(who):
    "kill -9 of the proxy closes the only way out at once: connections end, new ones lead nowhere, the command lives on"
    with Internet() as net, workspace(who) as ws:
        net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        script = """curl -sS --max-time 60 -o /dev/null -w '%{http_code} ' http://api.test/
touch up; for i in $(seq 1000); do [ -e down ] && break; sleep 0.1; done
curl -sS --max-time 3 -o /dev/null -w '%{http_code} ' http://api.test/; echo still here"""
        done = {}
        t = threading.Thread(target=lambda: done.update(r=go(net, who, ws, "--allow-host", "api.test", "--", "sh", "-c", script)))
        t.start()
        eventually((ws / "up").exists, 90, "the first request")
        run = [p for p in os.listdir("/proc") if p.isdigit() and str(ws) in links(p, "cwd") and "run" in cmdline(p)[:2]]
        killed = [p for p in os.listdir("/proc") if p.isdigit() and cmdline(p)[:2] == ["hutch-node", "egress"] and parent(p) in run]
        check(killed, "no egress process is running")
        for p in killed:
            os.kill(int(p), 9)
        write(ws / "down", "", who)
        t.join()
        check_equal(done["r"].out.split()[0], "200", done["r"])
        check_equal(done["r"].out.split()[1:], ["000", "still", "here"], done["r"])


def cmdline(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="latin1") as f:
            return f.read().split("\0")
    except OSError:
        return []


def parent(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="latin1") as f:
            return f.read().rsplit(")", 1)[1].split()[1]
    except OSError:
        return ""


def links(pid, name):
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""


def test_bad_rules(who):
    "a document with a mistake in its network part is refused before anything runs, with file, line and what would be right"
    bad = {"network: {rules: [{hosts: [\"*\"]}]}": "broad", "network: {rules: [{hosts: [api.test], methds: [GET]}]}": "methds",
           "network: {allow: [\"http://api.test/\"]}": "http://api.test/", "network: {allow: [a.*.test]}": "a.*.test",
           "network: {rules: [{hosts: [api.test], tls: passthrough, http: [{methods: [GET]}]}]}": "passthrough"}
    with Internet() as net, workspace(who) as ws:
        for text, word in bad.items():
            write(ws / "policy.yaml", text + "\n", who)
            r = hutch("run", "--policy", "policy.yaml", "--", "true", binary=HUTCH_TEST, who=who, cwd=ws, env=net.env())
            check_equal(r.code, 121, r)
            check_in(word, r.err, r)
            check_in("policy.yaml:1", r.err, r)


def test_private_addresses(who):
    "a name with a private address is refused with the flag that opens it, and `policy explain` says the same; metadata and loopback have no flag"
    with Internet() as net, workspace(who) as ws:
        net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        hosts = ("private.test", "metadata.test", "loop.test", "mapped.test")
        allow = [x for h in hosts for x in ("--allow-host", h)]
        r = go(net, who, ws, *allow, "--", "sh", "-c", " ; ".join(f"curl -s -m 60 -o /dev/null http://{h}/" for h in hosts))
        grants = {d["subject"].split()[-1].split(":")[0]: (d["grant"] or {}).get("flag") for d in r.record["denials"] if d["kind"] == "network"}
        check_equal(grants, {"private.test": "--allow-private private.test", "metadata.test": None, "loop.test": None, "mapped.test": None}, r)
        check_in("hutch:   allow it with --allow-private private.test", r.err)
        check_in("10.1.2.3, which is not a public address", r.err)
        check_in("169.254.169.254, which is never reached from here", r.err)

        def explained(*flags, host="private.test"):
            out = hutch("policy", "explain", *flags, "--host", host, binary=HUTCH_TEST, who=who, cwd=ws, env=net.env()).out
            return out.splitlines()[0].split(": ")[1], out

        verdict, out = explained(*allow)
        check_equal(verdict, "denied", out)
        for part in ("reason  resolved_private", "address 10.1.2.3, which is not a public address", "flag    --allow-private private.test"):
            check_in(part, out)
        check_equal(explained(*allow, "--allow-private", "private.test")[0], "allowed")
        check_equal(explained("--allow-private", "private.test=10.1.0.0/16")[0], "allowed")
        check_equal(explained("--allow-private", "private.test=10.2.0.0/16")[0], "denied")
        check_equal(explained("--network", "public", "--allow-private", "*=10.0.0.0/8")[0], "allowed")
        verdict, out = explained("--allow-private", "metadata.test", host="http://metadata.test/latest")
        check_equal(verdict, "denied", out)
        check_in("169.254.169.254, which is never reached", out)
        check("--allow-private metadata.test\n" not in out.split("from")[1].split("\n", 1)[1], out)
        check_equal(explained("--allow-host", "api.test", host="api.test")[1].count("unreachable"), 0)
        check_in("address none", explained("--allow-host", "no-such.test", host="no-such.test")[1])
        bad = hutch("run", "--allow-private", "*", "--", "true", binary=HUTCH_TEST, who=who, cwd=ws)
        check_equal(bad.code, 120, bad)
        check_in("'*=198.18.0.0/15'", bad.err)
        bad = hutch("run", "--allow-private", "a.test=127.0.0.0/8", "--", "true", binary=HUTCH_TEST, who=who, cwd=ws)
        check_equal(bad.code, 120, bad)
        check_in("loopback, link-local and metadata are never reached", bad.err)


def test_unreachable(who):
    "an allowed host that is down, and an allowed name that does not exist, are unreachable, not refused; the answer inside says so, too"
    with Internet() as net, workspace(who) as ws:
        net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        r = go(net, who, ws, "--allow-host", "nobody.test", "--allow-host", "no-such.test", "--",
               "sh", "-c", "curl -s -m 60 http://nobody.test/x; curl -s -m 60 http://no-such.test/")
        answers = [json.loads(line)["error"] for line in r.out.splitlines()]
        check_equal([a["reason"] for a in answers], ["upstream_unreachable"] * 2, r)
        check(all("refused: " not in a["message"] and "failed: the policy allows it" in a["message"] for a in answers), answers)
        check_equal({d["category"] for d in r.record["denials"] if d["kind"] == "network"}, {"failed"}, r.record["denials"])
        check_in("hutch: unreachable: GET nobody.test:80/x (upstream_unreachable: ", r.err)
        check_in("Connection refused", r.err)
        check("hutch: refused" not in r.err, r)
