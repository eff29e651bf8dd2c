"""A node behind an HTTP proxy, and behind a server that asks for client certificates: what the proxy learns, when none is asked, and what is
said when something is wrong. tinyproxy and nginx where they are installed."""
import contextlib
import http.server
import select
import shutil
import socket
import ssl
import subprocess
import threading

from daemon import free_port
from hutch_test import PATIENCE, check, check_equal, check_in, eventually, hutch, skip, workspace, write
from internet import Authority, openssl
from shared import shared_node

KEY = "e2b_secret"


def own_address():
    """An address of this machine that is no loopback, as another machine's would be: a proxy is asked for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            skip("this machine has no address but the loopback's")
        return s.getsockname()[0]


def cli(ws, *args, who="root", stdin=None, **env):
    return hutch(*args, who=who, cwd=ws, stdin=stdin, env={"HOME": str(ws), "SSL_CERT_FILE": "", **env})


def leaf(ca, name, address):
    return ca.leaf(name, f"{name}.example,IP:{address}")


class Node(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.heads.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_):
        pass


class Proxy(http.server.BaseHTTPRequestHandler):
    """CONNECT and absolute requests; notes heads and the bytes that pass. server.says: the status of all answers."""
    protocol_version = "HTTP/1.1"

    def note(self):
        self.server.heads.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        if self.server.says:
            self.send_response(self.server.says)
            self.send_header("Content-Length", "0")
            self.end_headers()
        return not self.server.says

    def do_CONNECT(self):
        if not self.note():
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port))) as far:
            self.wfile.write(b"HTTP/1.1 200 ok\r\n\r\n")
            ends = {self.connection: far, far: self.connection}
            while all(data := [(end, end.recv(65536)) for end in select.select(list(ends), [], [])[0]]) and all(d for _, d in data):
                for end, got in data:
                    self.server.passed += got
                    ends[end].sendall(got)
        self.close_connection = True

    def do_GET(self):
        if self.note():
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(handler, address="127.0.0.1", context=None):
    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

        def handle_error(self, *_):
            pass
    server = Server((address, 0), handler)
    server.heads, server.passed, server.says, server.port = [], b"", 0, server.server_address[1]
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def server_context(pem, clients=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    return context


@contextlib.contextmanager
def program(*args, port, address="127.0.0.1"):
    p = subprocess.Popen([str(a) for a in args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def up():
        with contextlib.suppress(OSError), socket.create_connection((address, port), 1):
            return True
        check(p.poll() is None, f"{args[0]} ended")
        return False
    try:
        eventually(up, PATIENCE, f"{args[0]} listens")
        yield p
    finally:
        p.terminate()
        p.wait()


def client_files(ws, made, who):
    """An authority for clients; cert.pem, key.pem and both.pem in ws, and the key of another certificate."""
    ca = Authority(made / "clients", "Clients")
    ca.leaf("agent"), ca.leaf("other")
    key, cert = (ca.dir / "agent.key").read_text(), (ca.dir / "agent.crt").read_text()
    write(ws / "cert.pem", cert, who)
    for name, text in (("key.pem", key), ("both.pem", key + cert), ("other.pem", (ca.dir / "other.key").read_text())):
        write(ws / name, text, who, 0o600)
    return ca


NGINX = """daemon off; pid {dir}/pid; error_log {dir}/error.log; user root; worker_processes 1; events {{}}
http {{
  access_log off; client_max_body_size 0; proxy_request_buffering off; proxy_buffering off;
  client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  server {{
    listen {address}:{port} ssl; ssl_certificate {pem}; ssl_certificate_key {pem};
    ssl_client_certificate {clients}; ssl_verify_client on;
    location / {{ proxy_pass http://127.0.0.1:{node}; proxy_http_version 1.1; proxy_set_header Host $http_host; proxy_set_header Connection ""; }}
  }}
}}
"""
TINYPROXY = """Port {port}
Listen 127.0.0.1
Timeout 60
MaxClients 20
LogFile "{log}"
LogLevel Info
BasicAuth agent pass-1
ConnectPort {node}
"""


def test_tinyproxy_and_nginx(who):
    "login, create, exec and ls work through a real proxy with a password to a real server that demands a client certificate, which the profile keeps"
    if not shutil.which("nginx") or not shutil.which("tinyproxy"):
        skip("nginx or tinyproxy is not installed")
    address = own_address()
    with shared_node() as d, workspace(who) as ws, workspace() as made:
        ca, clients = Authority(made / "ca", "Far"), client_files(ws, made, who)
        write(ws / "ca.crt", ca.cert.read_text(), who)
        port, via, log = free_port(), free_port(), made / "tiny.log"
        write(made / "nginx.conf", NGINX.format(dir=made, address=address, port=port, pem=leaf(ca, "far", address), clients=clients.cert, node=d.port))
        write(made / "tiny.conf", TINYPROXY.format(port=via, log=log, node=port))
        with program("nginx", "-c", made / "nginx.conf", port=port, address=address), program("tinyproxy", "-d", "-c", made / "tiny.conf", port=via):
            url, proxy = f"https://{address}:{port}", {"HTTPS_PROXY": f"http://agent:pass%2D1@127.0.0.1:{via}"}
            bare = cli(ws, "ls", "--url", url, "--ca", "ca.crt", who=who, HUTCH_API_KEY=d.key, **proxy)
            check_in("No required SSL certificate was sent", bare.err)
            r = cli(ws, "login", "--ca", "ca.crt", "--cert", "cert.pem", "--key", "key.pem", url, who=who, stdin=d.key, **proxy)
            check_equal(r.code, 0, r)
            for name in ("cert.pem", "key.pem", "ca.crt"):
                (ws / name).unlink()
            box = cli(ws, "create", "host", who=who, **proxy).out.strip()
            r = cli(ws, "exec", "-i", box, "--", "sh", "-c", "cat; exit 7", who=who, stdin="in " * 100_000, **proxy)
            check_equal((r.code, r.out), (7, "in " * 100_000))
            check_equal(cli(ws, "kill", box, who=who, **proxy).code, 0)
            check_in(f"CONNECT {address}:{port}", log.read_text())
            shown = cli(ws, "profile", "show", who=who)
            check("PRIVATE" not in shown.out and "a certificate and its key are kept there" in shown.out, shown)
            wrong = cli(ws, "ls", who=who, HTTPS_PROXY=f"http://agent:geheim@127.0.0.1:{via}")
            check_equal((wrong.code, "does not take this user and password" in wrong.err, "geheim" in wrong.err), (122, True, False), wrong)
            asked = cli(ws, "ls", who=who, HTTPS_PROXY=f"http://127.0.0.1:{via}")
            check_in("asks for a user and a password; HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT", asked.err)


def test_what_a_proxy_learns():
    "over https the proxy sees host and port, never the key or a path; over http whole requests; user, password and IPv6 address of a proxy are understood"
    address = own_address()
    with workspace() as ws, serving(Proxy, "::1") as proxy:
        ca = Authority(ws / "ca", "Far")
        with serving(Node, address, server_context(leaf(ca, "far", address))) as far:
            r = cli(ws, "ls", "--url", f"https://{address}:{far.port}", "--ca", ca.cert, HUTCH_API_KEY=KEY, https_proxy=f"http://u:p@[::1]:{proxy.port}",
                    HTTPS_PROXY="http://127.0.0.1:1")
            check_equal((r.code, [h["x-api-key"] for _, h in far.heads[:1]]), (0, [KEY]), r)
            check_equal([(m, p, h.get("proxy-authorization")) for m, p, h in proxy.heads[:1]], [("CONNECT", f"{address}:{far.port}", "Basic dTpw")])
            check(all("x-api-key" not in h for _, _, h in proxy.heads) and KEY.encode() not in proxy.passed and b"/sandboxes" not in proxy.passed, "the proxy saw the key")
            check(all("proxy-authorization" not in h for _, h in far.heads), "the node saw the proxy's password")
        proxy.heads.clear()
        r = cli(ws, "ls", "--url", "http://node.example", HUTCH_API_KEY=KEY, HTTP_PROXY=f"http://[::1]:{proxy.port}")
        check_equal((r.code, proxy.heads[0][:2][0], proxy.heads[0][1].startswith("http://node.example:80/")), (0, "GET", True), r)
        proxy.heads.clear()
        for how in ({"NO_PROXY": "a.example, 0.0.0.0/0"}, {"no_proxy": "*", "NO_PROXY": "x"}, {"REQUEST_METHOD": "GET"}):
            with serving(Node, address) as far:
                r = cli(ws, "ls", "--url", f"http://{address}:{far.port}", HUTCH_API_KEY=KEY, HTTP_PROXY=f"http://[::1]:{proxy.port}", **how)
                check_equal((r.code, len(proxy.heads), len(far.heads) > 0), (0, 0, True), r)


def test_this_machine_needs_no_proxy():
    "the node of this machine is asked directly whatever the variables say, by each of its names"
    dead = {name: "http://u:geheim@127.0.0.1:1" for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy")}
    with workspace() as ws, serving(Node) as here:
        for host in ("127.0.0.1", "localhost", "node.localhost", "0.0.0.0", "[::ffff:127.0.0.1]"):
            r = cli(ws, "ls", "--url", f"http://{host}:{here.port}", HUTCH_API_KEY=KEY, **dead)
            check_equal(r.code, 0, r)


def test_proxies_that_fail():
    "a proxy that is down, that refuses, that is none, or that is written badly: each says what it is, without the password"
    with workspace() as ws, serving(Proxy) as proxy, socket.create_server(("127.0.0.1", 0)) as s:
        def ls(**env):
            r = cli(ws, "ls", "--url", "https://node.example", HUTCH_API_KEY=KEY, **env)
            check_equal((KEY in r.err, "geheim" in r.err, r.err.count("\n")), (False, False, 1), r)
            return r
        gone = free_port()
        check_in(f"the proxy 127.0.0.1:{gone} of HTTPS_PROXY does not answer", ls(HTTPS_PROXY=f"http://127.0.0.1:{gone}").err)
        proxy.says = 403
        check_in(f"the proxy 127.0.0.1:{proxy.port} of https_proxy refused a connection to node.example:443: status 403", ls(https_proxy=f"127.0.0.1:{proxy.port}").err)
        check_in("no such host: x", ls(HTTPS_PROXY="http://" + "x" * 70 + ".example:1").err)

        def rude():
            with contextlib.suppress(OSError):
                c, _ = s.accept()
                with c:
                    c.recv(4096)
                    c.sendall(b"SSH-2.0-OpenSSH\r\n\r\n")
        thread = threading.Thread(target=rude, daemon=True)
        thread.start()
        check_in("is no HTTP proxy", ls(HTTPS_PROXY=f"http://127.0.0.1:{s.getsockname()[1]}").err)
        thread.join(PATIENCE)
        for value, text in (("socks5://u:geheim@127.0.0.1:1", "proxies of the kind 'socks5' are not supported"), ("http://u:geheim@", "HTTPS_PROXY must be http://"),
                            ("http://geheim%@p:1", "a '%' that is no escape")):
            r = ls(HTTPS_PROXY=value)
            check_equal((r.code, text in r.err), (120, True), r)


def test_client_certificates(who):
    "a client certificate goes to a server that asks for one, from files, one file or variables; a wrong key, one that others may read, or a missing one is said"
    with workspace(who) as ws, workspace() as made:
        clients, ca = client_files(ws, made, who), Authority(made / "ca", "Far")
        write(ws / "ca.crt", ca.cert.read_text(), who)
        openssl("pkey", "-in", "agent.key", "-aes256", "-passout", "pass:x", "-out", "locked.key", cwd=clients.dir)
        write(ws / "locked.pem", (clients.dir / "locked.key").read_text(), who, 0o600)
        write(ws / "open.pem", (ws / "key.pem").read_text(), who, 0o640)
        with serving(Node, context=server_context(ca.leaf("far", "far.localhost"), str(clients.cert))) as far:
            def ls(*args, **env):
                return cli(ws, "ls", "--url", f"https://far.localhost:{far.port}", "--ca", "ca.crt", *args, who=who, HUTCH_API_KEY=KEY, **env)
            bad = ((("--cert", "cert.pem", "--key", "other.pem"), "--cert cert.pem, --key other.pem: the key is not the certificate's"),
                   (("--cert", "cert.pem", "--key", "open.pem"), "open.pem holds a private key that other users may read"),
                   (("--cert", "cert.pem", "--key", "locked.pem"), "the key has a passphrase"),
                   (("--cert", "cert.pem", "--key", "ca.crt"), "ca.crt holds a private key that other users may read"),
                   (("--cert", "key.pem", "--key", "key.pem"), "the certificate cannot be used"),
                   (("--cert", "cert.pem", "--key", "gone.pem"), "--key: cannot read gone.pem"),
                   (("--cert", "gone.pem", "--key", "key.pem"), "--cert: cannot read gone.pem"),
                   (("--cert", "cert.pem", "--key", "/dev/null"), "/dev/null is not a regular file"),
                   (("--key", "key.pem"), "--key is for the client certificate that --cert names"))
            for args, text in bad:
                r = ls(*args)
                check_equal((r.code, text in r.err, far.heads), (120, True, []), r)
            r = ls()
            check_equal((r.code, "certificate required" in r.err and "give a client certificate with --cert FILE --key FILE" in r.err, far.heads), (122, True, []), r)
            for args, env in ((("--cert", "cert.pem", "--key", "key.pem"), {}), (("--cert", "both.pem"), {}), ((), {"HUTCH_CERT": "cert.pem", "HUTCH_KEY": "key.pem"})):
                far.heads.clear()
                r = ls(*args, **env)
                check_equal((r.code, len(far.heads) > 0), (0, True), r)
            r = cli(ws, "--cert", "both.pem", "--ca=ca.crt", "ls", "--url", f"https://far.localhost:{far.port}", who=who, HUTCH_API_KEY=KEY)
            check_equal(r.code, 0, r)
