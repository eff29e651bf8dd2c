"""The webhook for approvals: who is told what sandboxes ask for, and may decide at once."""
import contextlib
import hashlib
import hmac
import http.server
import json
import pathlib
import ssl
import tempfile
import threading
import time

from daemon import Daemon
from hutch_test import check, check_equal, eventually
from internet import Internet
from node_client import ask, patient, sh

CODE = "curl -sS --max-time 150 -o /dev/null -w '%{http_code}' "
SECRET = "a secret of at least sixteen bytes"
ASKING = {"on_miss": "ask", "ask_hold": 120}


class Hook(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        with self.server.lock:
            self.server.heard.append((dict((k.lower(), v) for k, v in self.headers.items()), body, self.path))
            status, answer = self.server.answer(json.loads(body), len(self.server.heard))
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def hook(answer, context=None, address="127.0.0.1"):
    server = http.server.ThreadingHTTPServer((address, 0), Hook)
    server.handle_error = lambda *_: None  # who has waited long enough hangs up
    server.daemon_threads, server.heard, server.lock, server.answer = True, [], threading.Lock(), answer
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    t = threading.Thread(target=server.serve_forever, args=(0.05,))
    t.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        t.join()


@contextlib.contextmanager
def node(net, url, secret=SECRET, timeout="60s"):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "secret")
        path.write_text((secret or "") + "\n")
        path.chmod(0o600)  # of root: front could not read it
        config = f"approvals:\n  webhook: {url}\n  timeout: {timeout}\n" + (f"  secret_file: {path}\n" if secret else "")
        with Daemon(config=net.config() + config) as d:
            yield d


def box(d, doc=None):
    a = patient(d, "POST", "/v1/sandboxes", {"template": "host", "network": doc or ASKING})
    check_equal(a.status, 201, a)
    return a.json


def get(d, b, url):
    return sh(d, b, CODE + url).text


def waiting(d):
    return ask(d, "GET", "/v1/approvals").json["approvals"]


def test_it_decides():
    "the webhook hears what is asked, signed, and its answer is the decision: once, for a time, for the sandbox, or no"
    def answer(q, _):
        return 200, {"api.test": {"decision": "allow"}, "www.test": {"decision": "allow", "scope": "time", "ttl": 120},
                     "files.test": {"decision": "allow", "scope": "sandbox"}}.get(q["host"], {"decision": "deny"})
    with Internet() as net, hook(answer) as h, node(net, f"http://127.0.0.1:{h.server_port}/hook?x=1") as d:
        b = box(d)
        check_equal(get(d, b, "'https://api.test/a?token=abc'"), "200")
        headers, body, path = h.heard[0]
        q = json.loads(body)
        check_equal(path, "/hook?x=1")
        check_equal((q["type"], q["sandbox"], q["tenant"], q["host"], q["port"], q["method"], q["path"]),
                    ("network.approval_requested", b["sandboxID"], "default", "api.test", 443, "GET", "/a"), q)
        check_equal(q["grant"], {"hosts": ["api.test"], "ports": [443], "http": [{"methods": ["GET"], "paths": ["/a"]}]}, q)
        check(q["approve_url"].endswith(f"/v1/approvals/{q['id']}") and q["approve_url"].startswith("http://api."), q)
        check("abc" not in body.decode(), "the query was told")
        t, v1 = (x.split("=", 1)[1] for x in headers["x-hutch-signature"].split(","))
        check_equal(v1, hmac.new(SECRET.encode(), f"{t}.".encode() + body, hashlib.sha256).hexdigest())
        check(abs(time.time() - int(t)) < 60, t)
        check_equal(get(d, b, "https://www.test/"), "200")
        check_equal(get(d, b, "https://other.test/"), "403")
        check_equal(get(d, b, "https://files.test/"), "200")
        rules = json.dumps(ask(d, "GET", f"/v1/sandboxes/{b['sandboxID']}/network").json)
        check("expires" in rules and "api.test" not in rules, rules)
        n = len(h.heard)
        check_equal(get(d, b, "https://files.test/"), "200", "allowed for the sandbox")
        check_equal(len(h.heard), n, "nobody was asked again")
        check_equal(net.seen("other.test"), [])
        check_equal(waiting(d), [])


def test_it_may_leave_it_to_others():
    "an answer without a decision leaves the question open, and the URL that was told decides it"
    def answer(_, n):
        return (200, b"thanks") if n % 2 else (204, b"")
    with Internet() as net, hook(answer) as h, node(net, f"http://127.0.0.1:{h.server_port}/", secret=None) as d:
        b, out = box(d), {}
        t = threading.Thread(target=lambda: out.update(code=get(d, b, "https://api.test/")))
        t.start()
        eventually(lambda: h.heard, 20, "the webhook is told")
        check("x-hutch-signature" not in h.heard[0][0], "signed with nothing")
        eventually(lambda: waiting(d), 5, "the question waits")
        url = json.loads(h.heard[0][1])["approve_url"]
        check_equal(ask(d, "POST", "/" + url.split("/", 3)[3], {"decision": "allow_once"}).status, 200, url)
        t.join()
        check_equal(out["code"], "200")
        check_equal(len(h.heard), 1, "it was told once")


def test_it_fails():
    "a webhook that fails is told again, the same question, and not for ever; what it says wrongly decides nothing"
    def answer(q, n):
        if q["host"] == "api.test":
            return (500, b"") if n < 3 else (200, {"decision": "allow"})
        if q["host"] == "www.test":
            return 404, {"decision": "allow"}
        if q["host"] == "files.test":
            return 200, b"x" * 100000
        return 200, {"decision": "allow", "scope": "everything"}
    with Internet() as net, hook(answer) as h, node(net, f"http://127.0.0.1:{h.server_port}/") as d:
        b = box(d)
        check_equal(get(d, b, "https://api.test/"), "200")
        check_equal(len(h.heard), 3)
        check_equal(len({json.loads(x[1])["id"] for x in h.heard}), 1)
        b = box(d, {**ASKING, "ask_hold": 2})
        for host in ("www.test", "files.test", "other.test"):
            n = len(h.heard)
            check_equal(get(d, b, f"https://{host}/"), "403")
            eventually(lambda n=n: len(h.heard) > n, 10, f"it is told of {host}")
            check_equal(len(h.heard), n + 1, host)
            check_equal(net.seen(host), [], host)
        check_equal(sorted(x["host"] for x in waiting(d)), ["files.test", "other.test", "www.test"], "the questions are there")
        eventually(lambda: "the webhook for approvals" in d.log_path.read_text(), 10, "the operator is told")


def test_it_is_not_there():
    "a webhook that hangs or does not exist holds up neither questions nor the node"
    def answer(*_):
        time.sleep(30)
        return 200, {"decision": "allow"}
    with Internet() as net, hook(answer) as h, node(net, f"http://127.0.0.1:{h.server_port}/", timeout="1s") as d:
        b = box(d, {**ASKING, "ask_hold": 2})
        check_equal(get(d, b, "https://api.test/"), "403")
        check_equal([x["host"] for x in waiting(d)], ["api.test"])
        check_equal(net.seen("api.test"), [], "an answer that came too late decided")
    with Internet() as net, node(net, "http://no-such-name.invalid/") as d:
        b = box(d, {**ASKING, "ask_hold": 1})
        for _ in range(3):
            check_equal(get(d, b, "https://api.test/"), "403")
        check_equal([x["host"] for x in waiting(d)], ["api.test"])
        check(d.alive(), "the node")


def test_tls():
    "an https webhook is spoken to only if its certificate is good"
    with Internet() as net:
        for name, want in (("api.test", "403"), ("localhost", "200")):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(net.ca.leaf("hook-" + name, name))
            with hook(lambda *_: (200, {"decision": "allow"}), context) as h, node(net, f"https://localhost:{h.server_port}/") as d:
                b = box(d, {**ASKING, "ask_hold": 120 if want == "200" else 2})
                check_equal(get(d, b, "https://api.test/"), want, name)
                check_equal(bool(h.heard), want == "200", name)
