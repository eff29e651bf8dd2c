"""How a refused connection looks inside a sandbox: an answer in words, or a connection that fails; never what is refused."""
import json

from daemon import Daemon
from hutch_test import HUTCH_TEST, check, check_equal, check_in, eventually, hutch_record, workspace, write
from internet import Internet
from node_client import ask, create, patient, sh
from shared import shared_world
from small import small_templates

CURL = "curl -sS --max-time 60 -o /dev/null -w '%{http_code}' "
ONLY_API = {"allowOut": ["api.test"], "denyOut": ["0.0.0.0/0"]}
TLS_FAILED, NO_ANSWER = 35, 52  # exit codes of curl


def ends(d, b, *urls):
    """Exit code and status of curl for each URL; a plain 0 and 200 for what was reached."""
    out = []
    for url in urls:
        r = sh(d, b, CURL + url)
        out.append((r.code, r.text.strip()))
    return out


READABLE = [(0, "200"), (0, "403"), (0, "403")]
CLOSED = [(0, "200"), (TLS_FAILED, "000"), (NO_ANSWER, "000")]
URLS = ("https://api.test/", "https://other.test/", "http://other.test/")


def in_force(d, b):
    """What the answers say about it: E2B's, ours, the whole document."""
    e2b = ask(d, "GET", f"/sandboxes/{b['sandboxID']}").json
    ours = patient(d, "GET", f"/v1/sandboxes/{b['sandboxID']}/network").json
    return {e2b["network"]["refusals"], e2b["hutch"]["refusals"], ours["refusals"], ours["effective"]["refusals"]}


def native(d, method, b, body):
    return patient(d, method, f"/v1/sandboxes/{b['sandboxID']}/network", body)


def make(d, **body):
    a = patient(d, "POST", "/v1/sandboxes", {"template": "host", **body})
    check_equal(a.status, 201, a)
    return a.json


def test_dialects():
    "E2B's dialect fails a refused connection, ours answers it; both record it with its grant, and a word switches each"
    with shared_world(refusals=None) as (net, d):
        b = create(d, network=ONLY_API)
        check_equal((b["hutch"]["refusals"], in_force(d, b)), ("closed", {"closed"}), b)
        check_equal(ends(d, b, *URLS), CLOSED)
        outside = patient(d, "GET", f"/v1/sandboxes/{b['sandboxID']}/network/denials").json["denials"]
        mine = {x["layer"]: x for x in outside if x["host"] == "other.test" and x["layer"] != "dns"}
        check_equal((mine["tls"]["reason"], mine["tls"]["grant"]), ("host_not_allowed", {"hosts": ["other.test"]}), outside)
        check_equal((mine["http"]["path"], mine["http"]["grant"]["hosts"]), ("/", ["other.test"]), outside)
        eventually(lambda: d.cli("audit", "query", "--verdict", "deny", "--json").stdout.count('"other.test"') >= 2, 10, "it is in the log")
        r = sh(d, b, CURL + "https://third.test/")
        check_in("third.test", json.dumps(r.end.get("denials")), r.end)
        check_equal(net.seen("other.test"), [])
        # Inside, the list of refusals tells it all the same.
        inside = json.loads(sh(d, b, "curl -sS http://sandbox.internal/v1/egress/denials").text)
        check("other.test" in json.dumps(inside), inside)
        # One sandbox: our PATCH switches it, E2B's PUT leaves it alone unless it says a word.
        check_equal(native(d, "PATCH", b, {"set": {"refusals": "readable"}}).json["refusals"], "readable")
        check_equal((in_force(d, b), ends(d, b, *URLS)), ({"readable"}, READABLE))
        path = f"/sandboxes/{b['sandboxID']}/network"
        check_equal(patient(d, "PUT", path, ONLY_API).status, 204)
        check_equal(ends(d, b, *URLS), READABLE)
        check_equal(patient(d, "PUT", path, {**ONLY_API, "refusals": "closed"}).status, 204)
        check_equal((in_force(d, b), ends(d, b, *URLS)), ({"closed"}, CLOSED))
        a = ask(d, "PUT", path, {"refusals": "silent"})
        check_equal(a.status, 400, a)
        check_in('must be "readable" or "closed", not "silent"', a.json["message"])
        b = create(d, network={**ONLY_API, "refusals": "readable"})
        check_equal((in_force(d, b), ends(d, b, *URLS)), ({"readable"}, READABLE))
        check_equal(native(d, "PATCH", b, {"set": {"refusals": None}}).json["refusals"], "closed", "taken out: what its dialect has")
        # Ours.
        b = make(d, network={"allow": ["api.test"]})
        check_equal((b["hutch"]["refusals"], in_force(d, b), ends(d, b, *URLS)), ("readable", {"readable"}, READABLE))
        b = make(d, network={"allow": ["api.test"], "refusals": "closed"})
        check_equal((in_force(d, b), ends(d, b, *URLS)), ({"closed"}, CLOSED))
        check_equal(native(d, "PATCH", b, {"set": {"refusals": None}}).json["refusals"], "readable", "taken out: what its dialect has")


def test_addresses():
    "what E2B's own suites do: an address that is denied fails, one that is allowed is reached"
    with shared_world(refusals=None) as (net, d):
        b = create(d, network={"denyOut": ["8.8.8.8"]})
        check(sh(d, b, "curl --connect-timeout 3 --max-time 5 -Is https://8.8.8.8").code != 0)
        check(sh(d, b, "curl --connect-timeout 3 --max-time 5 -Is http://8.8.8.8").code != 0)
        check_equal(ends(d, b, "https://api.test/"), [(0, "200")])
        b = create(d, network={"denyOut": ["0.0.0.0/0"]})
        for url in ("https://1.1.1.1", "https://8.8.8.8", "https://api.test"):
            check(sh(d, b, f"curl --connect-timeout 3 --max-time 5 -Is {url}").code != 0, url)
        b = create(d, allow_internet_access=False)
        check(sh(d, b, "curl --connect-timeout 3 --max-time 5 -Is https://api.test").code != 0)


def test_requests_of_open_hosts():
    "with closed refusals a request that a rule forbids on a host that may be reached is still answered in words, over HTTP/2 too"
    rule = {"hosts": ["api.test"], "http": [{"methods": ["GET"], "paths": ["/open/**"]}]}
    with shared_world(refusals=None) as (net, d):
        b = make(d, network={"rules": [rule], "refusals": "closed"})
        check_equal(ends(d, b, "https://api.test/open/x", "https://api.test/shut", "--http2 https://api.test/shut", "https://other.test/"),
                    [(0, "200"), (0, "403"), (0, "403"), (TLS_FAILED, "000")])
        # Another name than the one that was looked up is as wrong as ever, in either layer.
        check_equal(ends(d, b, "-H 'Host: other.test' http://api.test/open/x", "--connect-to other.test:443:api.test:443 https://other.test/open/x"),
                    [(NO_ANSWER, "000"), (TLS_FAILED, "000")])
        check_equal(net.seen("other.test"), [])
        # A proxy's own words for a refusal fail the connection by themselves.
        r = sh(d, b, CURL + "-x http://10.255.0.1:3128 https://other.test/")
        check_equal(r.code, 56, r)
        r = sh(d, b, CURL + "-x socks5h://10.255.0.1:1080 https://other.test/")
        check_equal(r.code, 97, r)
        r = sh(d, b, CURL + "-x http://10.255.0.1:3128 http://other.test/")
        check_equal(r.code, NO_ANSWER, r)


def test_node_setting():
    "sandboxes.refusals holds for what does not say it, in both dialects; what says it is not touched"
    for word, want in (("closed", CLOSED), ("readable", READABLE)):
        with Internet() as net, Daemon(config=net.config(refusals=word)) as d:
            for b in (create(d, network=ONLY_API), make(d, network={"allow": ["api.test"]})):
                check_equal((in_force(d, b), ends(d, b, *URLS)), ({word}, want))
            check_equal(in_force(d, make(d)), {word})
            other = "readable" if word == "closed" else "closed"
            check_equal(in_force(d, create(d, network={**ONLY_API, "refusals": other})), {other})
            check_equal(in_force(d, make(d, network={"allow": ["api.test"], "refusals": other})), {other})
    with Internet() as net:
        extra = "sandboxes:\n  network: %s\n"
        document = net.dir / "document.yaml"
        document.write_text("allow: [api.test]\n")
        with Daemon(config=net.config(refusals=None) + extra % document) as d:
            check_equal([ends(d, b, *URLS) for b in (create(d), make(d), create(d, network={"refusals": "readable"}))],
                        [CLOSED, READABLE, READABLE])


def test_outlives():
    "how refusals look survives the death of egress, of front and of the whole node, a pause, and goes on to forks"
    say = "printf 'GET / HTTP/1.0\\r\\nHost: other.test\\r\\n\\r\\n' | nc other.test 80 | head -n 1"
    with Internet() as net, small_templates() as templates, Daemon(config=net.config(refusals=None), templates=templates) as d:
        a = patient(d, "POST", "/v2/sandboxes", {"templateID": "small", "network": ONLY_API})
        check_equal(a.status, 201, a)
        closed = a.json
        readable = patient(d, "POST", "/v2/sandboxes", {"templateID": "small", "network": {**ONLY_API, "refusals": "readable"}}).json

        def right():
            return sh(d, closed, say).text == "" and " 403 " in sh(d, readable, say).text
        check(right(), "from the beginning")
        for who in ("egress", "front"):
            d.kill9(who)
            eventually(d.alive, 20, "front is back")
            eventually(right, 120, f"after {who} was killed")
        d.proc.kill()
        d.proc.wait()
        d.start()
        eventually(right, 120, "after all were killed")
        for b, want in ((closed, "closed"), (readable, "readable")):
            check_equal(ask(d, "POST", f"/sandboxes/{b['sandboxID']}/pause", {}, timeout=60).status, 204)
            check_equal(ask(d, "POST", f"/v2/sandboxes/{b['sandboxID']}/connect", {"timeout": 300}, timeout=60).status, 201)
            forked = ask(d, "POST", f"/sandboxes/{b['sandboxID']}/fork", {"count": 1}, timeout=90)
            check_equal((forked.status, in_force(d, b), in_force(d, forked.json[0]["sandbox"])), (201, {want}, {want}), forked)
        eventually(right, 60, "after the pause")


def test_cli():
    "hutch create and hutch network set take --refusals; another word is an error that names both"
    with shared_world(refusals=None) as (net, d):
        def made(*args):
            return {"sandboxID": d.cli("create", *args, "host").stdout.strip()}
        check_equal(in_force(d, made("--allow", "api.test")), {"readable"})
        check_equal(in_force(d, made("--allow", "api.test", "--refusals", "closed")), {"closed"})
        check_equal(in_force(d, made("--network", "public", "--refusals", "closed")), {"closed"})
        check_equal(in_force(d, made("--refusals", "closed")), {"closed"})
        b = made("--network", "public", "--refusals", "readable")
        check_equal(in_force(d, b), {"readable"})
        before = native(d, "GET", b, None).json["effective"]["rules"]
        d.cli("network", "set", b["sandboxID"], "--refusals", "closed")
        now = native(d, "GET", b, None).json
        check_equal((now["refusals"], now["effective"]["rules"], now["effective"]["default"]), ("closed", before, "public"), now)
        d.cli("network", "set", b["sandboxID"], "off", "--allow", "api.test", "--refusals", "closed")
        check_equal((in_force(d, b)), {"closed"})
        for args in (("create", "--refusals", "loud", "host"), ("network", "set", b["sandboxID"], "--refusals", "loud")):
            r = d.cli(*args, check=False)
            check_equal(r.returncode, 120, r)
            check_in("--refusals wants readable or closed, not 'loud'", r.stderr)


def test_run(who):
    "hutch run answers in words unless its policy says refusals: closed; the record has the refusal and its grant either way"
    with Internet() as net, workspace(who) as ws:
        net.ca.cert.chmod(0o644), net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        for word, code, status in ((None, 0, "403"), ("closed", TLS_FAILED, "000")):
            policy = "network:\n  allow: [api.test]\n" + (f"  refusals: {word}\n" if word else "")
            file = write(ws / "policy.yaml", policy, who)
            r = hutch_record("--policy", str(file), "--", "curl", "-sS", "--max-time", "60", "-o", "/dev/null", "-w", "%{http_code}",
                             "https://other.test/", binary=HUTCH_TEST, who=who, cwd=ws, env=net.env())
            check_equal((r.code, r.out), (code, status), r)
            mine = [x for x in r.record["denials"] if x["kind"] == "network"]
            check("other.test" in json.dumps(mine), r.record)
        check_equal(net.seen("other.test"), [])
