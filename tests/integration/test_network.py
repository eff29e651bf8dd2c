"""The network of a node's sandboxes: rules, refusals, secrets, approvals, the audit log, and egress that dies under load."""
import contextlib
import json
import sqlite3
import threading
import time

from daemon import Daemon
from hutch_test import check, check_equal, check_in, eventually
from internet import Internet, at
from node import node
from node_client import ask, create, patient, sh
from shared import shared_world

CODE = "curl -sS --max-time 60 -o /dev/null -w '%{http_code} ' "


def codes(d, b, *args, code=CODE):
    r = sh(d, b, "\n".join(code + a for a in args))
    return r.text.split()


def soon(d, b, *args):
    """The same for who asks until it is right: one that hangs, because somebody died, is given up early."""
    return codes(d, b, *args, code=CODE.replace("60", "10"))


def native(d, method, b, path, body=None):
    return patient(d, method, f"/v1/sandboxes/{b['sandboxID']}/{path}", body)


def test_e2b_fields():
    "allowOut, denyOut and allow_internet_access mean what they mean at E2B, at creation and by PUT"
    with shared_world() as (net, d):
        both = ("https://api.test/", "https://other.test/")
        b = create(d)
        check_equal(codes(d, b, *both), ["200", "200"], "no field: the public internet")
        b = create(d, allow_internet_access=False)
        check_equal(codes(d, b, *both), ["403", "403"])
        b = create(d, network={"allowOut": ["api.test"], "denyOut": ["0.0.0.0/0"]})
        check_equal(codes(d, b, *both), ["200", "403"])
        check_equal(ask(d, "GET", f"/sandboxes/{b['sandboxID']}").json["network"]["allowOut"], ["api.test"])
        a = patient(d, "PUT", f"/sandboxes/{b['sandboxID']}/network", {"allowOut": ["other.test"], "denyOut": ["0.0.0.0/0"]})
        check_equal(a.status, 204, a)
        check_equal(codes(d, b, *both), ["403", "200"])
        a = patient(d, "PUT", f"/sandboxes/{b['sandboxID']}/network", {})
        check_equal((a.status, codes(d, b, *both)), (204, ["200", "200"]))
        for bad, word in (({"allowOut": ["http://x/"]}, "allowOut"), ({"denyOut": ["some.host"]}, "denyOut"), ({"allowOut": "x"}, "allowOut")):
            a = ask(d, "PUT", f"/sandboxes/{b['sandboxID']}/network", bad)
            check_equal(a.status, 400, a)
            check_in(word, a.json["message"], a)


def test_policy_change_cuts():
    "a change of the rules takes effect at once: open tunnels and streams that are no longer allowed are cut"
    with shared_world() as (net, d):
        b = create(d, network={"allowOut": ["api.test"], "denyOut": ["0.0.0.0/0"]})
        out = {}
        t = threading.Thread(target=lambda: out.update(r=sh(d, b, "curl -sS -N --max-time 300 'https://api.test/sse?2000' | tail -c 20; echo; echo cut",
                                                            timeout=400)))
        t.start()
        eventually(lambda: net.seen("api.test"), 20, "the stream began")
        began = time.monotonic()
        check_equal(patient(d, "PUT", f"/sandboxes/{b['sandboxID']}/network", {"denyOut": ["0.0.0.0/0"]}).status, 204)
        t.join()
        check(time.monotonic() - began < 120, "the stream went on")
        check_in("cut", out["r"].text, out["r"])
        check_equal(codes(d, b, "https://api.test/"), ["403"])


def test_denials_are_told():
    "a refusal is told inside, in the result of the command, in the events and in the audit log, and each names the grant"
    with Internet() as net, Daemon(config=net.config()) as d:
        b = create(d, network={"allowOut": ["api.test"], "denyOut": ["0.0.0.0/0"]})
        r = sh(d, b, "curl -sS https://other.test/x?token=xyzzy")
        error = json.loads(r.text)["error"]
        check_equal((error["reason"], error["host"], error["path"]), ("host_not_allowed", "other.test", "/x"), error)
        check_in("other.test", json.dumps(error.get("grant")), error)
        mine = [x for x in r.end.get("denials", []) if x.get("kind") == "network"]
        check(mine and "other.test" in json.dumps(mine), r.end)
        inside = json.loads(sh(d, b, "curl -sS http://sandbox.internal/v1/egress/denials").text)
        check_equal([x["host"] for x in inside["denials"] if x["layer"] == "http"], ["other.test"], inside)
        outside = native(d, "GET", b, "network/denials")
        check_equal([x["host"] for x in outside.json["denials"] if x["layer"] == "http"], ["other.test"], outside)
        eventually(lambda: b"network.denied" in native(d, "GET", b, "events?follow=false").body, 10, "it is an event")

        def denied():
            return d.cli("audit", "query", "--verdict", "deny", "--json").stdout
        eventually(lambda: '"other.test"' in denied(), 10, "it is in the log")  # which is written when the answer is already on its way
        audit = denied()
        lines = [json.loads(x) for x in audit.splitlines()]
        check_equal([(x["host"], x["path"]) for x in lines if x["kind"] in ("http", "deny")], [("other.test", "/x")], audit)
        check("xyzzy" not in audit, "the value of a query is in the log")  # no digest or id has these letters
        check_equal(d.cli("audit", "verify").returncode, 0)
        check_equal(net.seen("other.test"), [])


def test_usage():
    "what a tenant's sandboxes sent and received is counted together, also when they have ended, and nobody else sees it"
    with Internet() as net, Daemon(config=net.config()) as d:
        boxes = [create(d, network={"allowOut": ["api.test"], "denyOut": ["0.0.0.0/0"]}) for _ in range(2)]
        for b in boxes:
            check_equal(codes(d, b, "http://api.test/", "http://other.test/"), ["200", "403"])

        def usage():
            told = []
            eventually(lambda: told.append(d.cli("network", "usage", check=False)) or told[-1].returncode == 0, 10, "egress answers")
            return json.loads(told[-1].stdout)
        before = usage()
        check_equal((before["tenant"], before["sandboxes"], before["requests"], before["denied"]), ("default", 2, 4, 4), before)
        check(before["hosts"]["api.test"]["bytes_down"] > 0 and before["hosts"]["other.test"]["denied"] == 4, before)
        check_equal(ask(d, "DELETE", f"/sandboxes/{boxes[0]['sandboxID']}").status, 204)
        eventually(lambda: usage()["sandboxes_ended"] == 1, 10, "it ended")
        after = usage()
        check_equal((after["sandboxes"], after["requests"], after["hosts"]["api.test"]), (1, 4, before["hosts"]["api.test"]), after)
        check_equal(ask(d, "POST", "/v1/tenants", {"id": "other", "name": "other", "quota": {}}).status // 100, 2)
        key = ask(d, "POST", "/v1/keys", {"tenant": "other", "name": "k", "scopes": ["sandboxes"]})
        a = patient(d, "GET", "/v1/network/usage", headers={"X-API-KEY": key.json["key"]})
        check_equal((a.status, a.json["tenant"], a.json["requests"]), (200, "other", 0), a)


def test_usage_outlives():
    "counters of sandboxes, tenants and hosts survive the death of egress, of front and of the whole node; reading writes nothing"
    with Internet() as net, Daemon(config=net.config()) as d:
        b = create(d, network={"allowOut": ["api.test"], "denyOut": ["0.0.0.0/0"]})
        ended = create(d, network={"allowOut": ["api.test"], "denyOut": ["0.0.0.0/0"]})
        counters = ("requests", "denied", "bytes_up", "bytes_down")

        def usage():
            a = patient(d, "GET", "/v1/network/usage")
            return a.json if a.status == 200 else {}

        def numbers(u):
            return [[x.get(c) for c in counters] for x in (u, u.get("hosts", {}).get("api.test", {}))]

        def stats():
            a = native(d, "GET", b, "network/stats")
            return numbers(a.json if a.status == 200 else {})

        def use():
            eventually(lambda: soon(d, b, "-d hello http://api.test/", "http://other.test/") == ["200", "403"], 120, "it has a network")
        for box in (b, ended):
            check_equal(codes(d, box, "-d hello http://api.test/", "http://other.test/"), ["200", "403"])
        check_equal(ask(d, "DELETE", f"/sandboxes/{ended['sandboxID']}").status, 204)
        eventually(lambda: usage().get("sandboxes_ended") == 1, 30, "it ended")
        whole, mine = numbers(usage()), stats()
        check(min(whole[0] + mine[0]) > 0 and whole[0][0] == 4 and mine[0][0] == 2, (whole, mine))

        def rows():
            with contextlib.closing(sqlite3.connect(d.state / "front/store.db", timeout=30)) as db:
                return db.execute("SELECT rowid, tenant, sandbox, counters FROM usage ORDER BY sandbox").fetchall()

        def stored():  # the node's counters and this sandbox's have reached the disk
            have = {row[1:3]: numbers(json.loads(row[3])) for row in rows()}
            return have == {("default", ""): whole, ("default", b["sandboxID"]): mine}
        eventually(stored, 60, f"{whole} and {mine} are stored")
        stamp = rows()
        for _ in range(20):
            usage()
        time.sleep(0.5)
        check_equal(rows(), stamp)  # a row that is written again has another number
        for who in ("egress", "front"):
            old = d.children(who)
            d.kill9(who)
            eventually(lambda: d.children(who) and d.children(who) != old, 60, f"there is a new {who}")
            eventually(lambda: numbers(usage()) == whole and stats() == mine, 60, f"{who} is new, and {whole} is still counted")
            use()
            eventually(lambda: numbers(usage())[0][0] > whole[0][0], 30, "it is counted")
            whole, mine = numbers(usage()), stats()
        check_equal(patient(d, "GET", "/v1/network/usage").json["sandboxes_ended"], 1)
        check_equal(native(d, "GET", b, "network").json.get("usage", {}).get("requests"), mine[0][0])
        eventually(stored, 60, f"{whole} and {mine} are stored")
        d.proc.kill()
        d.proc.wait()
        d.start()
        eventually(lambda: numbers(usage()) == whole and stats() == mine, 60, f"{whole} is still counted")


def test_proxy_password():
    "a SOCKS5 proxy that wants a password gets it; no answer and no file of the node has it; a wrong one is refused in words"
    with Internet() as net, Daemon(config=net.config()) as d:
        proxy = net.start_socks("joe:pa55-of-joe")
        settings = {"address": "socks.test:1080", "username": "joe", "password": "pa55-of-joe"}
        b = create(d, network={"egressProxy": settings})
        check_equal(codes(d, b, "https://api.test/", "http://api.test/"), ["200", "200"])
        check_equal(sorted(proxy.targets), [(at(1), 80), (at(1), 443)])
        shown = [ask(d, "GET", f"/sandboxes/{b['sandboxID']}"), native(d, "GET", b, "network")]
        check_equal(shown[0].json["network"]["egressProxy"], {"address": "socks.test:1080", "username": "joe"}, shown[0])
        check_equal(shown[1].json["policy"]["upstream_proxy"], {"address": "socks.test:1080", "username": "joe"}, shown[1])
        check(not any(b"pa55" in a.body or b"sealed" in a.body or b"password" in a.body for a in shown), shown)
        d.kill9("egress")
        d.kill9("front")
        eventually(lambda: ask(d, "GET", "/v1/network/usage").status == 200 and soon(d, b, "http://api.test/") == ["200"], 120, "it goes on")
        for p in (d.state / "front").rglob("*"):
            check(not p.is_file() or b"pa55-of-joe" not in p.read_bytes(), p)
        # a change of rules keeps it, another document has another, and what front makes nobody else may give
        check_equal(native(d, "PATCH", b, "network", {"add": [{"id": "x", "hosts": ["other.test"], "access": "read-only"}]}).status, 200)
        check_equal(codes(d, b, "http://other.test/"), ["200"])
        wrong = native(d, "PUT", b, "network", {"default": "public", "upstream_proxy": {**settings, "password": "guess"}})
        check_equal(wrong.status, 200, wrong)
        r = sh(d, b, "curl -sS http://api.test/")
        error = json.loads(r.text)["error"]
        check_equal(error["reason"], "upstream_unreachable", error)
        check_in("does not accept the user name or the password", json.dumps(error), error)
        check_equal(proxy.logins[-1], "joe:guess")
        check(b"guess" not in native(d, "GET", b, "network").body and "guess" not in r.text)
        for field in ({"password_sealed": "AAAA"}, {"proxy_password": "AAAA"}):
            check_equal(native(d, "PUT", b, "network", {"upstream_proxy": {"address": "socks.test:1080", "username": "joe", **field}}).status, 400)
            check_equal(native(d, "PUT", b, "network", {"upstream_proxy": "socks.test:1080", **field}).status, 400)
        check_equal(native(d, "PUT", b, "network", {"upstream_proxy": {**settings, "password": "x" * 256}}).status, 400)


def test_secrets():
    "a secret reaches the server it is bound to and nobody else; inside there is only a placeholder; echoes are redacted"
    value = "sk-live-4f1c9a7be2d04ab5"
    with shared_world() as (net, d):
        a = ask(d, "POST", "/v1/secrets", {"name": "llm", "value": value, "spec": {
            "bind": [{"hosts": ["api.test"], "paths": ["/echo"]}], "env": "LLM_KEY",
            "inject": {"type": "replace", "in": ["header"]}}})
        check(a.status in (200, 201), a)
        check(value.encode() not in ask(d, "GET", "/v1/secrets").body, "the API gives the value back")
        doc = {"rules": [{"id": "llm", "hosts": ["api.test", "other.test"], "secrets": ["llm"]}]}
        b = create(d, network={"denyOut": ["0.0.0.0/0"]})
        check_equal(native(d, "PUT", b, "network", doc).status, 200)
        b2 = patient(d, "POST", "/v1/sandboxes", {"template": "host", "network": doc})
        check(b2.status == 201, b2)
        b = b2.json
        key = sh(d, b, "printf %s \"$LLM_KEY\"").text
        check(len(key) >= 20 and value not in key, key)
        r = sh(d, b, "curl -sS -H \"Authorization: Bearer $LLM_KEY\" https://api.test/echo")
        check_equal(net.seen("api.test")[-1]["headers"]["authorization"], f"Bearer {value}")
        check(value not in r.text and key in r.text, r.text)
        n = len(net.seen("other.test"))
        r = sh(d, b, "curl -sS -w '\\n%{http_code}' -H \"Authorization: Bearer $LLM_KEY\" https://other.test/echo")
        check_in("secret_violation", r.text, r)
        r = sh(d, b, "curl -sS -w '\\n%{http_code}' -H \"Authorization: Bearer $LLM_KEY\" http://api.test/echo")
        check("200" not in r.text.splitlines()[-1], r)
        check_equal(len(net.seen("other.test")), n)
        check(all(value not in json.dumps(x["headers"]) for x in net.seen() if x["path"] != "/echo"), "the value went elsewhere")
        store = (d.state / "front" / "store.db").read_bytes() + b"".join(p.read_bytes() for p in (d.state / "audit").glob("*"))
        check(value.encode() not in store, "the value is on disk in clear")


def test_e2b_header_rules():
    "E2B's header rules with ${e2b.secrets.NAME} set the header on the way out"
    with shared_world() as (net, d):
        a = ask(d, "POST", "/secrets", {"name": "Token", "value": "v-123456789"})
        check_equal(a.status, 201, a)
        check(a.json["secretID"].startswith("sec_") and a.json["name"] == "token" and "value" not in a.json, a)
        b = create(d, network={"rules": {"api.test": [{"transform": {"headers": {"X-Auth": "t ${e2b.secrets.token}"}}}]}})
        sh(d, b, "curl -sS -H 'X-Auth: forged' https://api.test/echo; curl -sS https://other.test/echo")
        check_equal(net.seen("api.test")[-1]["headers"].get("x-auth"), "t v-123456789", net.seen())
        check("x-auth" not in net.seen("other.test")[-1]["headers"], net.seen())
        check_equal(ask(d, "DELETE", "/secrets/token").status, 204)


def test_approvals():
    "a request that needs approval waits; allowed it goes on, denied it is refused; a grant for minutes ends"
    with shared_world() as (net, d):
        a = patient(d, "POST", "/v1/sandboxes", {"template": "host", "network": {"default": "deny", "on_miss": "ask", "ask_hold": 120}})
        check_equal(a.status, 201, a)
        b, out = a.json, {}

        def background(name, url):
            t = threading.Thread(target=lambda: out.update({name: sh(d, b, CODE + url)}))
            t.start()
            return t

        def waiting():
            return ask(d, "GET", "/v1/approvals").json["approvals"]
        t = background("yes", "https://api.test/")
        eventually(waiting, 20, "a request for approval")
        first = waiting()[0]
        check_equal((first["host"], first["method"]), ("api.test", "GET"), first)
        check_equal(ask(d, "POST", f"/v1/approvals/{first['id']}", {"decision": "allow_once"}).status, 200)
        t.join()
        check_equal(out["yes"].text.split(), ["200"], out)
        t = background("no", "https://other.test/")
        eventually(waiting, 20, "a request for approval")
        check_equal(d.cli("approvals", "deny", waiting()[0]["id"]).returncode, 0)
        t.join()
        check_equal(out["no"].text.split(), ["403"], out)
        check_equal(net.seen("other.test"), [])


def test_egress_killed():
    "kill -9 of egress under load fails closed and recovers: no request gets around it, and later ones succeed without a new sandbox"
    with Internet() as net, Daemon(config=net.config()) as d:
        b = create(d, network={"allowOut": ["api.test"], "denyOut": ["0.0.0.0/0"]})
        check_equal(codes(d, b, "https://api.test/"), ["200"])
        curl = "curl -sS --max-time 60 -o /dev/null -w '%{http_code} '"
        loop = f"""n=0; for i in $(seq 3000); do r=$({curl} https://api.test/$i); echo $r; {curl} https://other.test/
case $r in 200*) n=$((n + 1)) ;; esac
if [ $n -gt 20 ] && [ -e /tmp/over ]; then break; fi; done 2>/dev/null"""
        out = {}
        t = threading.Thread(target=lambda: out.update(r=sh(d, b, loop, timeout=400)))
        t.start()
        for _ in range(4):
            time.sleep(0.7)
            d.kill9("egress")
        check_equal(sh(d, b, "touch /tmp/over").code, 0)
        t.join()
        got = out["r"].text.split()
        check(set(got[1::2]) <= {"403", "000"}, got)
        check(got[0::2].count("200") > 20, got)
        check_equal(net.seen("other.test"), [])
        eventually(lambda: soon(d, b, "https://api.test/", "https://other.test/") == ["200", "403"], 120, "it recovered")
        check_equal(d.cli("audit", "verify").returncode, 0, "the chain survives kill -9")


def test_other_deaths():
    "the network outlives front, keeper and supervisor: rules still hold and connections still work after each was killed"
    with Internet() as net, Daemon(config=net.config()) as d:
        b = create(d, network={"allowOut": ["api.test"], "denyOut": ["0.0.0.0/0"]})
        for who in ("front", "keeper", "egress"):
            d.kill9(who)
            eventually(d.alive, 20, "front is back")
            eventually(lambda: soon(d, b, "https://api.test/", "https://other.test/") == ["200", "403"], 120, f"after {who} was killed")
        d.proc.kill()
        d.proc.wait()
        d.start()
        eventually(lambda: soon(d, b, "https://api.test/", "https://other.test/") == ["200", "403"], 120, "after all were killed")


def test_sandboxes_are_apart():
    "two sandboxes with the same addresses do not see each other, nor each other's policy, denials or names"
    with shared_world() as (net, d):
        a, b = create(d, network={"denyOut": ["0.0.0.0/0"]}), create(d)
        check_equal(codes(d, a, "https://api.test/"), ["403"])
        check_equal(codes(d, b, "https://api.test/"), ["200"])
        check_equal(json.loads(sh(d, b, "curl -sS http://sandbox.internal/v1/egress/denials").text)["denials"], [])
        sh(d, a, "(python3 -m http.server 8080 --bind 0.0.0.0 >/dev/null 2>&1 &) ; sleep 1")
        check(sh(d, b, "curl -sS --max-time 5 -o /dev/null -w '%{http_code}' http://10.255.0.2:8080/").text != "200", "b reaches a")


def test_bad_upstreams():
    "expired, unknown and wrong certificates and private addresses are refused with the reason, never passed on"
    with shared_world() as (net, d):
        doc = {"rules": [{"id": "all", "hosts": list(net.hosts), "ports": [80, 443], "http": [{"methods": ["GET"]}]}]}
        a = patient(d, "POST", "/v1/sandboxes", {"template": "host", "network": doc})
        check_equal(a.status, 201, a)
        b = a.json
        want = {"https://expired.test/": "upstream_cert", "https://wrong.test/": "upstream_cert", "https://unknown-ca.test/": "upstream_cert",
                "http://private.test/": "private", "http://metadata.test/": "private", "http://loop.test/": "private",
                "http://mapped.test/": "private", "http://nobody.test/": "upstream_unreachable"}
        for url, reason in want.items():
            r = sh(d, b, f"curl -sS --max-time 60 {url}")
            check_in(reason, json.loads(r.text)["error"]["reason"], (url, r))
        check_equal(net.seen(), [])


def test_ordinary_user():
    "a node of an ordinary user has the same network: rules, refusals in words, secrets, and it recovers from kill -9"
    with Internet() as net:
        for path in (net.dir, net.ca.dir):
            path.chmod(0o755)
        with node("user", config=net.config()) as (d, _):
            check_equal(ask(d, "POST", "/secrets", {"name": "t", "value": "v-123456789"}).status, 201)
            b = create(d, network={"allowOut": ["api.test"], "denyOut": ["0.0.0.0/0"], "rules": {
                "api.test": [{"transform": {"headers": {"X-Auth": "${e2b.secrets.t}"}}}]}})
            both = ("https://api.test/echo", "https://other.test/")
            check_equal(codes(d, b, *both), ["200", "403"], d.log())
            check_equal(net.seen("api.test")[-1]["headers"].get("x-auth"), "v-123456789")
            for who in ("egress", "keeper", "front"):
                d.kill9(who)
                eventually(d.alive, 20, "front is back")
                eventually(lambda: soon(d, b, *both) == ["200", "403"], 120, f"after {who} was killed")
            check_equal(net.seen("other.test"), [])
