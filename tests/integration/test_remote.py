"""A node on another machine: TLS and what can be wrong with it, keys and where they go, profiles, all kinds of commands over HTTPS."""
import contextlib
import fcntl
import http.server
import json
import os
import pathlib
import pty
import re
import shutil
import socket
import ssl
import stat
import struct
import subprocess
import termios
import threading
import time

from daemon import Daemon, free_port
from hutch_test import HUTCH, PATIENCE, check, check_equal, check_in, eventually, hutch, identity, is_root, clean_env, run, skip, workspace, write
from internet import Authority
from shared import shared_node
from small import small_templates


def url_of(d):
    return f"https://hutch.localhost:{d.tls_port}"


@contextlib.contextmanager
def far_node(who):
    """A node with TLS and its development authority; a home of `who` with that authority's certificate in it."""
    with shared_node(tls=True) as d, workspace(who) as ws:
        write(ws / "ca.crt", (d.state / "tls/ca.crt").read_text(), who=who)
        yield d, ws


def cli(ws, *args, who="root", **env):
    stdin = env.pop("stdin", None)
    return hutch(*args, who=who, cwd=ws, stdin=stdin, env={"HOME": str(ws), "SSL_CERT_FILE": "", **env})


def logged_in(d, ws, who, *more):
    r = cli(ws, "login", "--ca", ws / "ca.crt", *more, url_of(d), who=who, stdin=d.key + "\n")
    check_equal(r.code, 0, r)
    return r


@contextlib.contextmanager
def started(ws, *args, **kw):
    _, entry = identity("root")
    p = subprocess.Popen([HUTCH, *map(str, args)], cwd=ws, env=clean_env(entry, {"HOME": str(ws), "TERM": "xterm"}), **kw)
    try:
        yield p
    finally:
        p.kill()
        p.wait()


def read_until(fd, text, seconds=PATIENCE):
    got, stop = b"", time.monotonic() + seconds
    os.set_blocking(fd, False)
    while text not in got:
        check(time.monotonic() < stop, f"{text} is not in {got[-2000:]}")
        with contextlib.suppress(BlockingIOError):
            got += os.read(fd, 65536)
            continue
        time.sleep(0.01)
    return got


# ---- the commands ----

def test_commands(who):
    "create, exec with input, cp of a file and a directory, info, logs and kill work over HTTPS, for root and an ordinary user"
    with far_node(who) as (d, ws):
        logged_in(d, ws, who)
        box = cli(ws, "create", "host", who=who).out.strip()
        r = cli(ws, "exec", "-i", box, "--", "sh", "-c", "cat; exit 7", who=who, stdin="in " * 100_000)
        check_equal((r.code, r.out), (7, "in " * 100_000))
        data = os.urandom(3_000_000)
        write(ws / "data", "", who=who)
        (ws / "data").write_bytes(data)
        check_equal(cli(ws, "cp", "data", f"{box}:there", who=who).code, 0)
        check_equal(cli(ws, "cp", f"{box}:there", "back", who=who).code, 0)
        check_equal((ws / "back").read_bytes(), data)
        check_in("running", cli(ws, "info", box, who=who).out)
        check_in("created", cli(ws, "logs", box, who=who).out)
        listed = json.loads(cli(ws, "ls", "--json", who=who).out)
        check_equal([b["sandboxID"] for b in listed if b["sandboxID"] == box], [box])
        check_equal(cli(ws, "kill", box, who=who).code, 0)


def test_choice_before_the_command():
    "--url, --ca and --profile also stand before the command; a command that talks to no node refuses them"
    with far_node("root") as (d, ws):
        r = cli(ws, "--url", url_of(d), f"--ca={ws}/ca.crt", "ls", HUTCH_API_KEY=d.key)
        check_equal(r.code, 0, r)
        check_in("`hutch run` talks to no node", cli(ws, "--url", url_of(d), "run", "true").err)
        check_in("a command must follow", cli(ws, "--url", url_of(d)).err)
        check_in("both name a node", cli(ws, "--url", url_of(d), "--profile", "x", "ls").err)


def test_streams():
    "what is typed while a command runs arrives at once over TLS, and its answer comes back; logs -f ends with the sandbox"
    with far_node("root") as (d, ws):
        logged_in(d, ws, "root")
        box = cli(ws, "create", "host").out.strip()
        with started(ws, "logs", "-f", box, stdout=subprocess.PIPE) as logs, \
                started(ws, "exec", "-i", box, "--", "cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
            for word in (b"one\n", b"two\n", b"three\n"):
                p.stdin.write(word)
                p.stdin.flush()
                read_until(p.stdout.fileno(), word)
            p.stdin.close()
            check_equal(p.wait(PATIENCE), 0)
            read_until(logs.stdout.fileno(), b"created")
            check_equal(cli(ws, "kill", box).code, 0)
            read_until(logs.stdout.fileno(), b"killed")


def test_terminal():
    "a shell over HTTPS has a terminal: its size follows ours, keys arrive, its exit code comes back"
    with far_node("root") as (d, ws):
        logged_in(d, ws, "root")
        box = cli(ws, "create", "host").out.strip()
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))

        def lead():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        with started(ws, "exec", "-it", box, "--", "bash", "--norc", stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=lead) as p:
            os.close(theirs)
            os.write(ours, b"stty size; echo $((6 * 7)).\r")
            read_until(ours, b"42.")
            fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 101, 0, 0))
            eventually(lambda: os.write(ours, b"stty size\r") and b"44 101" in read_until(ours, b"\r\n"), PATIENCE, "the new size arrives")
            os.write(ours, b"exit 5\r")
            check_equal(p.wait(PATIENCE), 5)
        os.close(ours)
        cli(ws, "kill", box)


def test_mcp():
    "hutch mcp --url https://... serves the tools of that node over its pipe"
    with far_node("root") as (d, ws):
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize",
                 "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}
        more = [{"jsonrpc": "2.0", "method": "notifications/initialized"}, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}]
        _, entry = identity("root")
        p = subprocess.Popen([HUTCH, "mcp", "--url", url_of(d), "--ca", ws / "ca.crt"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             env=clean_env(entry, {"HOME": str(ws), "HUTCH_API_KEY": d.key}))
        p.stdin.write(json.dumps(hello).encode() + b"\n")
        p.stdin.flush()
        check_in("serverInfo", json.loads(p.stdout.readline())["result"])
        for m in more:
            p.stdin.write(json.dumps(m).encode() + b"\n")
        p.stdin.flush()
        check(len(json.loads(p.stdout.readline())["result"]["tools"]) > 5)
        p.stdin.close()
        check_equal(p.wait(PATIENCE), 0)
        p.stdout.close()


def test_env():
    "hutch env for a node elsewhere names its URL and a bundle with the authority that the profile trusts"
    with far_node("root") as (d, ws):
        logged_in(d, ws, "root")
        for how in ("--http", "--https"):
            said = dict(re.findall(r"^export (\w+)='([^']*)'$", cli(ws, "env", how).out, re.M))
            check_equal(said.get("E2B_API_URL" if how == "--http" else "E2B_DOMAIN"), url_of(d) if how == "--http" else d.domain)
            check_in((ws / "ca.crt").read_text().strip(), pathlib.Path(said["SSL_CERT_FILE"]).read_text())


# ---- certificates ----

class Quiet(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.server.connections += 1

    def do_GET(self):
        self.server.heads.append(dict(self.headers))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        if self.server.rude and "nextToken" not in self.path:
            self.send_header("X-Next-Token", "2")
        self.end_headers()
        self.wfile.write(b"[]")
        self.close_connection = self.server.rude

    do_DELETE = do_GET

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def a_server(pem=None):
    """An HTTP server of this machine that is no node, with that certificate; its port, the heads of requests, and itself."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    server.heads, server.connections, server.rude = [], 0, False
    if pem:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.handle_error = lambda *_: None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], server.heads, server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_certificates(who):
    "an unknown authority, another authority than that of --ca, a wrong name, a wrong address, an expired certificate: each is refused by its name, and the key is not sent"
    with workspace(who) as ws, workspace() as made:
        mine, other = Authority(made / "mine", "Mine"), Authority(made / "other", "Other")
        for name, authority in (("mine", mine), ("other", other)):
            write(ws / f"{name}.crt", authority.cert.read_text(), who=who)
        key = {"HUTCH_API_KEY": "e2b_secret"}
        with a_server(mine.leaf("good.localhost", "good.localhost", "*.good.localhost")) as (port, heads, _):
            cases = (("good.localhost", (), f"good.localhost:{port} is signed by an unknown authority (/CN=Mine)"),
                     ("good.localhost", ("--ca", "other.crt"), "not signed by the authority in other.crt, but by /CN=Mine"),
                     ("bad.localhost", ("--ca", "mine.crt"), "is for good.localhost, *.good.localhost, not for bad.localhost"),
                     ("a.b.good.localhost", ("--ca", "mine.crt"), "not for a.b.good.localhost"),
                     ("127.0.0.1", ("--ca", "mine.crt"), "not for 127.0.0.1"))
            for host, more, text in cases:
                r = cli(ws, "ls", "--url", f"https://{host}:{port}", *more, who=who, **key)
                check_equal((r.code, text in r.err), (122, True), r)
            for file in ("missing.crt", "key"):
                r = cli(ws, "ls", "--url", f"https://good.localhost:{port}", who=who, **{**key, "SSL_CERT_FILE": str(ws / file)})
                check_equal((r.code, f"SSL_CERT_FILE: {ws}/{file} cannot be read" in r.err), (120, True), r)
            check_equal(heads, [], "a request reached a server that is not trusted")
            r = cli(ws, "ls", "--url", f"https://x.good.localhost:{port}", "--ca", "mine.crt", who=who, **key)
            check_equal((r.code, len(heads)), (0, 1), r)
            r = cli(ws, "ls", "--url", f"https://good.localhost:{port}", who=who, HUTCH_CA="mine.crt", **key)
            check_equal((r.code, len(heads)), (0, 2), r)
            r = cli(ws, "ls", "--url", f"https://good.localhost:{port}", who=who, **{**key, "SSL_CERT_FILE": str(ws / "mine.crt")})
            check_equal((r.code, len(heads)), (0, 3), r)
        with a_server(mine.leaf("expired.test", "old.localhost", days="-1")) as (port, heads, _):
            r = cli(ws, "ls", "--url", f"https://old.localhost:{port}", "--ca", "mine.crt", who=who, **key)
            check_equal((r.code, "has expired on 20" in r.err, heads), (122, True, []), r)
        write(ws / "empty.crt", "nothing\n", who=who)
        check_in("empty.crt has no certificate in PEM", cli(ws, "ls", "--url", "https://127.0.0.1:1", "--ca", "empty.crt", who=who, **key).err)
        check_in("cannot read none.crt", cli(ws, "ls", "--url", "https://127.0.0.1:1", "--ca", "none.crt", who=who, **key).err)


def test_foreign_authority():
    "a node whose certificate is of an authority that the machine trusts needs no --ca; with the certificate of another name it does not help"
    with workspace() as ws:
        ca = Authority(ws / "ca", "Company")
        ca.leaf("node", "hutch.localhost", "*.hutch.localhost")
        port = free_port()
        args = ("--tls-cert", str(ws / "ca/node.crt"), "--tls-key", str(ws / "ca/node.key"), "--listen-tls", f"127.0.0.1:{port}")
        for path in (ws, ws / "ca"):
            path.chmod(0o755)
        with Daemon(args=args) as d:
            r = cli(ws, "login", f"hutch.localhost:{port}", stdin=d.key, SSL_CERT_FILE=str(ca.cert))
            check_equal(r.code, 0, r)
            check_equal(cli(ws, "ls", SSL_CERT_FILE=str(ca.cert)).code, 0)
            check_in("unknown authority", cli(ws, "ls").err)
            r = cli(ws, "ls", "--url", f"https://node.localhost:{port}", SSL_CERT_FILE=str(ca.cert), HUTCH_API_KEY=d.key)
            check_in("is for hutch.localhost, *.hutch.localhost, not for node.localhost", r.err)


def test_no_connection():
    "a refused port, a name that does not exist, http where https is served and the other way round, a URL with a key: each says what it is"
    with far_node("root") as (d, ws):
        cases = ((f"https://127.0.0.1:{free_port()}", "Connection refused"),
                 ("https://" + "x" * 70 + ".localhost.example", "no such host: xxx"),
                 (f"https://127.0.0.1:{d.port}", f"does not speak TLS; is it http://127.0.0.1:{d.port}?"),
                 (f"http://127.0.0.1:{d.tls_port}", f"is it https://127.0.0.1:{d.tls_port}?"),
                 ("https://user:key@node.example", "no user or key in it"),
                 ("ftp://node.example", "must be https://HOST[:PORT] or http://HOST[:PORT]"),
                 ("https://node.example:99999", "must be https://HOST[:PORT]"),
                 ("https://node.example/path", "must be https://HOST[:PORT]"),
                 ("https://[::1", "must be https://HOST[:PORT]"))
        for url, text in cases:
            r = cli(ws, "ls", "--url", url, "--ca", ws / "ca.crt", HUTCH_API_KEY=d.key)
            check_equal((r.code in (120, 122), text in r.err, d.key in r.err), (True, True, False), r)


def test_silent_server():
    "a server that takes connections and says nothing is given up after ten seconds"
    if os.environ.get("HUTCH_SOAK") != "1":
        skip("takes ten seconds; make soak runs it")
    with workspace() as ws, socket.create_server(("127.0.0.1", 0)) as s:
        r = cli(ws, "ls", "--url", f"https://127.0.0.1:{s.getsockname()[1]}", HUTCH_API_KEY="k")
        check_equal((r.code, "is silent" in r.err, 9 < r.seconds < 15), (122, True, True), r)


def test_one_connection():
    "the calls of one command share a connection; one that the server closes without a word costs a new one, not the command"
    with workspace() as ws, a_server() as (port, heads, server):
        where = {"HUTCH_URL": f"http://127.0.0.1:{port}", "HUTCH_API_KEY": "k"}
        check_equal(cli(ws, "volume", "rm", *"abcde", **where).code, 0)
        check_equal((len(heads), server.connections), (5, 1))
        server.rude = True
        r = cli(ws, "ls", **where)
        check_equal((r.code, len(heads), server.connections), (0, 7, 3), r)


# ---- keys and profiles ----

def test_login(who):
    "a wrong key, no key and something that is no node are refused and nothing is kept; a right key is, readable by its owner only, and never printed"
    with far_node(who) as (d, ws):
        kept = ws / ".config/hutch/profiles.json"
        for text, why in (("e2b_wrong\n", "does not take this key"), ("", "no key was given"), ("a b\n", "this is no key")):
            r = cli(ws, "login", "--ca", "ca.crt", url_of(d), who=who, stdin=text)
            check_equal((r.code, why in r.err, kept.exists()), (120, True, False), r)
        with a_server() as (port, *_):
            r = cli(ws, "login", f"http://127.0.0.1:{port}", who=who, stdin="k")
            check_equal((r.code, "is not a node of Hutch" in r.err, kept.exists()), (122, True, False), r)
        r = cli(ws, "login", f"http://[::ffff:127.0.0.1]:{d.port}", who=who, stdin=d.key)
        check_equal((r.code, "the key could be read on the way" in r.err, kept.exists()), (120, True, False), r)
        write(ws / "key", d.key + "\n", who=who, mode=0o600)
        said = cli(ws, "login", "--ca", "ca.crt", "--name", "far", "--key-file", "key", url_of(d), who=who)
        check_equal((said.code, stat.S_IMODE(kept.stat().st_mode), stat.S_IMODE(kept.parent.stat().st_mode)), (0, 0o600, 0o700), said)
        check_equal(cli(ws, "ls", who=who).code, 0)
        outputs = said.out + said.err
        for args in (("profile", "ls"), ("profile", "show"), ("profile", "show", "far", "--json"), ("profile", "ls", "--json"), ("ls", "--json")):
            r = cli(ws, *args, who=who)
            check_equal(r.code, 0, r)
            outputs += r.out + r.err
        check(d.key not in outputs, "a key was printed")
        check_equal(json.loads(cli(ws, "profile", "show", "--json", who=who).out)["ca"], (ws / "ca.crt").read_text())
        check_in("removed profile far", cli(ws, "logout", who=who).out)
        check(d.key not in kept.read_text(), "logout left the key")
        check_equal(json.loads(cli(ws, "profile", "ls", "--json", who=who).out), [])


def test_login_terminal():
    "on a terminal the key is asked for and not shown"
    with far_node("root") as (d, ws):
        ours, theirs = pty.openpty()
        with started(ws, "login", "--ca", "ca.crt", url_of(d), stdin=theirs, stdout=theirs, stderr=theirs) as p:
            read_until(ours, b"it is not shown): ")
            eventually(lambda: not termios.tcgetattr(theirs)[3] & termios.ECHO, PATIENCE, "no echo")
            os.write(ours, d.key.encode() + b"\n")
            check_equal(p.wait(PATIENCE), 0)
            said = read_until(ours, b"as profile")
            check(d.key.encode() not in said, "the key was shown")
            check(termios.tcgetattr(theirs)[3] & termios.ECHO, "echo is back")
        os.close(theirs)
        os.close(ours)


def test_profile_file(who):
    "a profile file that others can read or write, of another user, a link, a broken one: refused with what would be right"
    with far_node(who) as (d, ws):
        logged_in(d, ws, who, "--name", "far")
        folder = ws / ".config/hutch"
        kept = folder / "profiles.json"
        text = kept.read_text()

        def refused(why):
            r = cli(ws, "ls", who=who)
            check_equal((r.code, why in r.err, d.key in r.err), (120, True, False), r)
        for mode in (0o644, 0o640, 0o620, 0o601):
            kept.chmod(mode)
            refused(f"its mode is {mode:04o} instead of 0600")
            check_equal(cli(ws, "ls", "--url", url_of(d), "--ca", "ca.crt", who=who, HUTCH_API_KEY=d.key).code, 0)
        kept.chmod(0o600)
        folder.chmod(0o777)
        refused("other users can write to")
        folder.chmod(0o700)
        (folder / "elsewhere").write_text(text)
        (folder / "elsewhere").chmod(0o600)
        kept.unlink()
        kept.symlink_to("elsewhere")
        refused("symbolic link")
        kept.unlink()
        for broken, why in (("{", "profiles.json:1:"), ('{"profiles": []}', "must be an object"), ('{"profiles": {"a/b": {}}}', "the profile 'a/b'"),
                            ('{"profiles": {}, "current": "x"}', "the current profile 'x' does not exist")):
            write(kept, broken, who=who, mode=0o600)
            refused(why)
        if is_root():
            write(kept, text, who=who, mode=0o600)
            os.chown(kept, 4321, 4321)
            refused("belongs to uid 4321" if who == "root" else "cannot open")
            kept.unlink()


def test_precedence():
    "a flag goes before a variable, a variable before the profile; --profile brings its own key"
    with far_node("root") as (d, ws), a_server() as (port, heads, _):
        elsewhere = f"http://127.0.0.1:{port}"
        logged_in(d, ws, "root", "--name", "far")
        check_equal(cli(ws, "ls", HUTCH_URL=elsewhere, HUTCH_API_KEY="mine").code, 0)
        check_equal(heads.pop()["x-api-key"], "mine")
        check_equal(cli(ws, "ls", "--url", elsewhere, HUTCH_URL=url_of(d), E2B_API_KEY="e2b").code, 0)
        check_equal(heads.pop()["x-api-key"], "e2b", "the profile's key is for its URL only")
        for choice in ({"HUTCH_PROFILE": "far"}, {}):
            check_equal(cli(ws, "ls", **choice).code, 0)
        check_equal(cli(ws, "ls", "--profile", "far", HUTCH_URL=elsewhere, HUTCH_API_KEY="wrong", HUTCH_CA="/nonexistent").code, 0)
        check_equal(cli(ws, "ls", HUTCH_API_KEY="wrong").code, 120, "a variable goes before the profile")
        check_equal(cli(ws, "ls", "--url", url_of(d)).code, 0, "the profile of this URL has the key and the authority")
        check_equal(cli(ws, "profile", "use", "-").code, 0)
        check_in("none is in use", cli(ws, "profile", "show").err)
        check_equal(cli(ws, "ls", HUTCH_PROFILE="far").code, 0)
        check_in("there is no profile 'near', which HUTCH_PROFILE names", cli(ws, "ls", HUTCH_PROFILE="near").err)
        check_in("there is no profile 'near';", cli(ws, "profile", "use", "near").err)
        check_equal(heads, [], "nothing else went there")


def test_operator_key_stays():
    "the key of this machine's node (admin.key) goes to where that node listens only, not to another port or address of this machine"
    with workspace() as ws, a_server() as (port, heads, _):
        (ws / "admin.key").write_text("operator\n")

        def sent(host):
            r = cli(ws, "ls", "--url", f"http://{host}:{port}", HUTCH_STATE=str(ws))
            check_equal((r.code, len(heads)), (0, 1), r)
            return heads.pop().get("x-api-key")
        check_equal(sent("127.0.0.1"), None, "the node recorded nothing, and this is not its usual address")
        for record in (f"http://127.0.0.1:{port + 1}\n", f"https://127.0.0.1:{port}\n", f"http://127.0.0.2:{port}\n", "x\n", f"http://127.0.0.1:{port}"):
            (ws / "listen").write_text(record)
            check_equal(sent("127.0.0.1"), None, record)
        (ws / "listen").write_text(f"https://[::1]:1\nhttp://127.0.0.1:{port}\n")
        for host, key in (("127.0.0.1", "operator"), ("a.localhost", "operator"), ("[::ffff:127.0.0.1]", None)):
            check_equal(sent(host), key, host)
    with shared_node(tls=True) as d, workspace() as ws:
        urls = [f"http://127.0.0.1:{d.port}", f"https://127.0.0.1:{d.tls_port}"]
        check_equal((d.state / "listen").read_text().split(), urls)
        for url in (urls[0], f"http://localhost:{d.port}"):
            check_equal(cli(ws, "ls", "--url", url, HUTCH_STATE=str(d.state)).code, 0)


def test_profile_names():
    "two nodes of one host have two profiles; one that cannot be read as valid can be removed; its authority counts with a key of another place"
    with far_node("root") as (d, ws):
        logged_in(d, ws, "root")
        plain = ("login", f"http://hutch.localhost:{d.port}")
        check_in(f"as profile hutch.localhost-{d.port}", cli(ws, *plain, stdin=d.key).out)
        check_in(f"as profile hutch.localhost-{d.port}", cli(ws, *plain, stdin=d.key).out, "again")
        kept = ws / ".config/hutch/profiles.json"
        all_ = json.loads(kept.read_text())
        check_equal({n: p["url"] for n, p in all_["profiles"].items()},
                    {"hutch.localhost": url_of(d), f"hutch.localhost-{d.port}": f"http://hutch.localhost:{d.port}"})
        check_equal(cli(ws, "ls", HUTCH_URL=url_of(d), HUTCH_API_KEY=d.key).code, 0, "the authority of the profile with that URL")
        all_["profiles"][f"hutch.localhost-{d.port}"]["url"] = "http://other.example"
        all_["profiles"]["a/b"] = {}
        kept.write_text(json.dumps(all_))
        check_in("remove it with `hutch logout`", cli(ws, "ls").err)
        check_in("removed profile a/b", cli(ws, "logout", "a/b").out)
        r = cli(ws, *plain, stdin=d.key)
        check_equal((r.code, "give --name" in r.err), (120, True), r)


# ---- what commands print ----

def test_json():
    "with --json stop, env and exec -d print objects, too; a build prints its log elsewhere"
    with small_templates() as templates, Daemon(templates=templates) as d, workspace() as ws:
        said = json.loads(d.cli("env", "--json").stdout)
        check_equal((said["E2B_API_KEY"], said["E2B_API_URL"]), (d.key, d.url))
        box = d.cli("create", "small").stdout.strip()
        check(json.loads(d.cli("exec", "-d", "--json", box, "--", "sleep", "60").stdout)["pid"] > 0)
        (ws / "Dockerfile").write_text("FROM hutch/small\nRUN echo one >a\nRUN echo two >b\n")
        r = d.cli("template", "build", "-t", "made", "--json", str(ws))
        check(json.loads(r.stdout)["buildID"], r)
        check_in("RUN echo two", r.stderr)
        check_equal(json.loads(d.cli("stop", "--all", "--json").stdout), {"stopped": 1, "failed": 0})


def test_export_without_devices():
    "a snapshot of a template that has device nodes, as `base` has, is exported without them, says so, and is restored"
    if not is_root():
        skip("needs root, who can make device nodes")
    with small_templates() as templates, workspace() as ws:
        for number, name in enumerate(("null", "zero")):
            os.mknod(templates / "small/root/dev" / name, 0o666 | stat.S_IFCHR, os.makedev(1, 3 + 2 * number))
        with Daemon(templates=templates) as d:
            box = d.cli("create", "small").stdout.strip()
            d.cli("exec", "-u", "root", "-w", "/home/user", box, "--", "sh", "-c", "echo kept >kept; rm /etc/motd")
            d.cli("snapshot", "create", "--name", "with-devices", box)
            r = d.cli("template", "export", "-o", str(ws / "out"), "with-devices")
            check_in("2 device nodes are left out: a sandbox has a /dev of its own", r.stderr)
            d.cli("template", "restore", "-t", "again", str(ws / "out"))
            there = d.cli("create", "again").stdout.strip()
            check_equal(d.cli("exec", there, "--", "sh", "-c", "cat kept; ls /etc/motd || echo gone; echo x >/dev/null && echo writes").stdout,
                        "kept\ngone\nwrites\n")


def test_progress():
    "on a terminal uploads, builds and exports show how far they are; elsewhere nothing of it is printed"
    with small_templates() as templates, Daemon(templates=templates) as d, workspace() as ws:
        (ws / "Dockerfile").write_text("FROM hutch/small\nCOPY data /data\nRUN sleep 1\nRUN true\n")
        (ws / "data").write_bytes(os.urandom(2 << 20))
        env = {"HUTCH_URL": d.url, "HUTCH_API_KEY": d.key}

        def shown(*args):
            ours, theirs = pty.openpty()
            _, entry = identity("root")
            with open(ws / "out", "wb") as out:
                p = subprocess.Popen([HUTCH, *map(str, args)], env=clean_env(entry, env), stdout=out, stderr=theirs, stdin=subprocess.DEVNULL)
            os.close(theirs)
            got = b""
            with contextlib.suppress(OSError):
                while data := os.read(ours, 65536):
                    got += data
            os.close(ours)
            check_equal(p.wait(PATIENCE), 0, got)
            return got.decode()
        said = shown("template", "build", "-t", "made", ws)
        check_in("2 MiB (100 %)  data", said)
        check(re.search(r"\[#+\.+\] \d of \d  RUN sleep 1", said), said)
        check_in("(100 %)", shown("template", "export", "-o", ws / "export", "made"))
        d.cli("volume", "create", "v")
        check_in("(100 %)", shown("volume", "put", "v", ws / "data", "/data"))
        check_in("(100 %)", shown("volume", "get", "v", "/data", ws / "back"))
        check_equal((ws / "back").read_bytes(), (ws / "data").read_bytes())
        check("%" not in d.cli("volume", "put", "--force", "v", str(ws / "data"), "/data").stderr)


# ---- the programs ----

def test_companion(who):
    "hutch executes the hutch-client of its own installation; without one it says which program is missing where, and run works"
    with workspace(who) as ws:
        for folder in ("bin", "libexec/hutch"):
            (ws / folder).mkdir(parents=True)
        ws.chmod(0o755)
        own = ws / "bin/hutch"
        shutil.copy(HUTCH, own)
        r = run(own, "ls", who=who)
        check_equal((r.code, f"hutch-client, which is a part of Hutch, is neither in {ws}/bin nor in {ws}/bin/../libexec/hutch" in r.err), (123, True), r)
        check_equal(run(own, "--version", who=who).code, 0)
        check_equal(run(own, "run", "-q", "--", "true", who=who, cwd=ws).code, 0)
        write(ws / "libexec/hutch/hutch-client", "#!/bin/sh\necho mine \"$@\"\n", who=who, mode=0o755)
        check_equal(run(own, "--url", "https://x", "ls", "-q", who=who).out, "mine --url https://x ls -q\n")


def test_every_command_is_there():
    "each command that hutch --help lists explains itself, so that the two programs have the same list"
    r = hutch("--help")
    names = re.findall(r"^  ([a-z]+) ", r.out, re.M)
    check(len(names) > 40 and "login" in names, names)
    for name in names:
        r = hutch("help", name)
        check_equal((r.code, "usage: hutch" in r.out), (0, True), r)
