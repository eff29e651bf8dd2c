"""`hutch run --learn`: the hosts that a command would have needed."""
import json

from hutch_test import HUTCH_TEST, check, check_equal, check_in, hutch, hutch_record, workspace
from internet import Internet, at

CURL = "curl -sS --max-time 60 -o /dev/null"
SCRIPT = f"{CURL} http://api.test/a; {CURL} https://other.test/b; {CURL} http://files.test:8080/; {CURL} http://{at(1)}/; true"


def learn(net, who, ws, *args):
    r = hutch("run", "--learn", "out.yaml", *args, "--", "sh", "-c", SCRIPT, binary=HUTCH_TEST, who=who, cwd=ws, env=net.env(), timeout=300)
    check_equal(r.code, 0, r)
    return r, (ws / "out.yaml").read_text()


def test_nothing_leaves(who):
    "without a network the hosts are learnt and nobody outside hears of it; with the document the same run passes"
    with Internet() as net, workspace(who) as ws:
        net.ca.cert.chmod(0o644), net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        r, text = learn(net, who, ws)
        check_equal((net.seen(), net.names.asked), ([], []), "somebody outside was asked")
        check_in("there is no network", r.err, r)
        check(text.endswith("network:\n  allow:\n    - api.test\n    - \"files.test:8080\"\n    - other.test\n"), text)
        r = hutch_record("--policy", "out.yaml", "--", "sh", "-c", f"{CURL} http://api.test/a; {CURL} https://other.test/b; {CURL} -w '%{{http_code}}' https://h2.test/",
                         binary=HUTCH_TEST, who=who, cwd=ws, env=net.env(), timeout=300)
        check_equal((r.out, len(net.seen("api.test")), len(net.seen("other.test"))), ("403", 1, 1), r)


def test_with_rules(who):
    "the document replaces the rules of others, so it holds those of the run and the hosts that were missing; nothing missing, no section"
    with Internet() as net, workspace(who) as ws:
        net.ca.cert.chmod(0o644), net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        _, text = learn(net, who, ws, "--allow-host", "api.test")
        check(text.endswith("  allow:\n    - \"files.test:8080\"\n    - other.test\n"), text)
        check_in('"api.test"', text.split("  rules:\n")[1].split("  allow:\n")[0])
        check_equal(len(net.seen("api.test")), 1, net.seen())
        r = hutch("run", "--learn", "same.yaml", "--allow-host", "api.test", "--", "sh", "-c", f"{CURL} http://api.test/a",
                  binary=HUTCH_TEST, who=who, cwd=ws, env=net.env(), timeout=300)
        check_equal((r.code, "network:" in (ws / "same.yaml").read_text()), (0, False), r)
        r = hutch("run", "--learn", "quiet.yaml", "--", "true", binary=HUTCH_TEST, who=who, cwd=ws, env=net.env(), timeout=300)
        check("network:" not in (ws / "quiet.yaml").read_text(), r)
        check_in(", 0 hosts", r.err, json.dumps(r.err))
