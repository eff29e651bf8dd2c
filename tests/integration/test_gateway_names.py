"""Services that answer only to localhost, through the gateway, with nobody telling it: Vite and Jupyter themselves are in test_gateway.py."""
import json

from hutch_test import check_equal, eventually
from shared import shared_node
from test_gateway import host_of, native, ports, serve, sh, visit

# Refuses every Host but localhost, as the first part of the path says; /seen lists what came: method, path and Host.
STRICT = r"""
import http.server, json, sys
seen = []
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        host, kind = self.headers["Host"], self.path.split("/")[1]
        body = json.dumps(seen).encode() if kind == "seen" else b"" if self.command == "HEAD" else b"Blocked request. This host is not allowed."
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        local = host.startswith("localhost:")
        if kind != "seen": seen.append([self.command, self.path, "localhost" if local else host])
        self.send_response_only(200 if kind == "seen" or local and kind != "never" else 403)
        if kind == "jupyter": self.send_header("Server", "TornadoServer/6.5"); self.send_header("Content-Type", "text/html")
        elif kind == "nginx": self.send_header("Server", "nginx")
        elif kind == "page": self.send_header("Content-Type", "text/html")
        else: self.send_header("Content-Type", "text/plain;charset=utf-8")
        self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    do_POST = do_HEAD = do_GET
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
"""


def strict(d, b, port):
    s = serve(d, b, "/usr/bin/python3", "-c", STRICT, str(port))
    eventually(lambda: sh(d, b, f"curl -s http://localhost:{port}/seen").code == 0, 20, "the service listens")
    return s


def seen(d, b, port):
    return json.loads(sh(d, b, f"curl -s http://localhost:{port}/seen").text)


def test_known_refusals():
    "a service that refuses the visitor's name as Vite or Jupyter do is asked once more as localhost, and from then on always"
    with shared_node() as d:
        b = native(d, publicTraffic=True)
        for port, kind in ((8000, "vite"), (8001, "jupyter")):
            name = host_of(d, b, port)
            s = strict(d, b, port)
            check_equal(visit(d, b, port, f"/{kind}/post", method="POST").status, 403, "what is not sent twice is refused")
            check_equal(visit(d, b, port, f"/{kind}/1").status, 200)
            check_equal(visit(d, b, port, f"/{kind}/2").status, 200)
            check_equal(visit(d, b, port, f"/{kind}/post", method="POST").status, 200, "the port is known now")
            check_equal(seen(d, b, port), [["POST", f"/{kind}/post", name], ["GET", f"/{kind}/1", name], ["GET", f"/{kind}/1", "localhost"],
                                           ["GET", f"/{kind}/2", "localhost"], ["POST", f"/{kind}/post", "localhost"]])
            s.close()


def test_other_refusals():
    "another 403 is passed on as it is, one that stays is asked twice at most, and `preserve` keeps the visitor's name"
    with shared_node() as d:
        b = native(d, publicTraffic=True)
        name = host_of(d, b, 8000)
        s = strict(d, b, 8000)
        for kind in ("nginx", "page"):
            check_equal(visit(d, b, 8000, f"/{kind}/").status, 403)
        check_equal(seen(d, b, 8000), [["GET", f"/{kind}/", name] for kind in ("nginx", "page")])
        for _ in range(2):
            a = visit(d, b, 8000, "/never/")
            check_equal((a.status, a.body), (403, b"Blocked request. This host is not allowed."))
        check_equal(seen(d, b, 8000)[2:], [["GET", "/never/", name], ["GET", "/never/", "localhost"]] * 2)
        ports(d, b, portHosts={"8000": "preserve"})
        check_equal(visit(d, b, 8000, "/vite/").status, 403)
        check_equal(visit(d, b, 8000, "/vite/", method="HEAD").status, 403)
        ports(d, b, portHosts={})
        check_equal(visit(d, b, 8000, "/vite/", method="HEAD").status, 200)
        s.close()
