"""hutch mcp: the tools over a pipe, of a node that is named or of a private one that ends with the pipe."""
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

from daemon import lives
from hutch_test import HUTCH, check, check_equal, check_in, eventually, identity, is_root
from node import needs_root, node
from small import small_templates

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"


class Bridge:
    def __init__(self, env, preexec=None):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HUTCH_URL", "HUTCH_STATE", "HUTCH_API_KEY", "E2B_", "XDG_"))}
        self.p = subprocess.Popen([HUTCH, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**clean, **env},
                                  preexec_fn=preexec)
        self.n = 0

    def say(self, text):
        self.p.stdin.write(text if isinstance(text, bytes) else json.dumps(text).encode() + b"\n")
        self.p.stdin.flush()

    def hear(self):
        line = self.p.stdout.readline()
        check(line.endswith(b"\n"), (line, self.p.poll(), self.p.stderr.read() if self.p.poll() is not None else ""))
        return json.loads(line)

    def ask(self, method, params=None, modern=False):
        self.n += 1
        params = dict(params or {})
        if modern:
            params["_meta"] = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}
        self.say({"jsonrpc": "2.0", "id": self.n, "method": method, "params": params})
        while (m := self.hear()).get("id") != self.n:
            check("method" in m, m)
        return m

    def tool(self, name, modern=False, **args):
        r = self.ask("tools/call", {"name": name, "arguments": args}, modern)["result"]
        check(not r["isError"], (name, args, r))
        return r["structuredContent"]

    def close(self):
        """Closes the pipe; the exit code."""
        self.p.stdin.close()
        check_equal(self.p.stdout.read(), b"")
        return self.p.wait(60)


@contextlib.contextmanager
def bridge(env, preexec=None):
    b = Bridge(env, preexec)
    try:
        yield b
    finally:
        b.p.terminate()
        b.p.wait(60)


def of_place(folder):
    """Processes whose command line names that directory: supervisor and keeper of a private node."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in path.read_bytes() and lives(int(path.parent.name)):
                found.append(path.parent.name)
    return found


@contextlib.contextmanager
def home(who):
    """A directory for the state of that user, and what makes a process that user's."""
    _, entry = identity(who)

    def become():
        if who == "user" and is_root():
            os.setgroups([])
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
    with tempfile.TemporaryDirectory(prefix="hutch-mcp-") as folder:
        os.chmod(folder, 0o755)
        with small_templates(who) as t:  # as `base`, which a private node would build otherwise
            os.makedirs(f"{folder}/s/templates")
            os.rename(f"{t}/small", f"{folder}/s/templates/base")
        for path in (folder, f"{folder}/s", f"{folder}/s/templates") if is_root() else ():
            os.chown(path, entry.pw_uid, entry.pw_gid)
        yield folder, {"HUTCH_STATE": f"{folder}/s", "HOME": entry.pw_dir}, become


def test_private_node(who):
    "without a node there is a private one, with all tools; it ends with the pipe, its sandboxes too"
    with home(who) as (folder, env, become), bridge(env, become) as b:
        r = b.ask("initialize", HELLO)["result"]
        check_equal(r["protocolVersion"], "2025-11-25")
        b.say({"jsonrpc": "2.0", "method": "notifications/initialized"})
        names = [t["name"] for t in b.ask("tools/list")["result"]["tools"]]
        check_equal("request_grant" in names, "no tool request_grant" not in r["instructions"], r["instructions"])
        check_equal("no tool fork" in r["instructions"], "fork" not in names, r["instructions"])
        check(who == "user" or "fork" in names, "root has a freezer")
        check(len(names) >= 12, names)
        box = b.tool("create_sandbox", history=True)["sandbox"]
        check_equal(b.tool("run", sandbox=box, command="echo one >/tmp/a; cat /tmp/a")["stdout"], "one\n")
        b.tool("write_file", modern=True, sandbox=box, path="/tmp/ä b", content="x")
        r = b.ask("resources/read", {"uri": f"hutch://sandboxes/{box}/files/tmp/ä b"}, modern=True)
        check_equal(r["result"]["contents"][0]["text"], "x")
        if "fork" in names:
            state(b, box, b.tool("fork", sandbox=box)["sandboxes"][0])
        else:  # what is not listed is not there
            check_in("no such tool", b.ask("tools/call", {"name": "fork", "arguments": {"sandbox": box}})["error"]["message"])
        with bridge(env, become) as other:  # a second agent at the same time has a node of its own
            check_equal(other.tool("list_sandboxes")["sandboxes"], [])
            check_equal(other.close(), 0)
        check(of_place(folder), "where is the node?")
        check_equal(b.close(), 0)
        eventually(lambda: not of_place(folder), 20, "the private node ended")


def state(b, box, child):
    check_equal(b.tool("run", sandbox=child, command="cat /tmp/a")["stdout"], "one\n")
    b.tool("snapshot", sandbox=box)
    b.tool("run", sandbox=box, command="echo two >/tmp/a")
    b.tool("undo", sandbox=box)
    check_equal(b.tool("run", sandbox=box, command="cat /tmp/a")["stdout"], "one\n")
    t = b.tool("try", sandbox=box, command="echo three >/tmp/a")["transaction"]
    b.tool("commit", sandbox=box, transaction=t)
    check_equal(b.tool("run", sandbox=box, command="cat /tmp/a")["stdout"], "three\n")


def test_private_node_signals():
    "a bridge that is told to end takes its node along; what one that was killed left, the next one ends"
    needs_root()
    with home("root") as (folder, env, become):
        with bridge(env) as b:
            b.tool("create_sandbox")
            b.p.send_signal(signal.SIGTERM)
            check_equal(b.p.wait(30), 0)
            eventually(lambda: not of_place(folder), 20, "the node ended")
        with bridge(env) as b:
            b.tool("create_sandbox")
            b.p.kill()
            b.p.wait()
            eventually(lambda: not [p for p in of_place(folder) if b"serve" in pathlib.Path(f"/proc/{p}/cmdline").read_bytes()], 30,
                       "the node ended with a bridge that was killed")
        with bridge(env) as b:
            check_equal(b.tool("list_sandboxes")["sandboxes"], [])
            check_equal(b.close(), 0)
        eventually(lambda: not of_place(folder), 20, "nothing is left")


def test_named_node():
    "HUTCH_URL names the node: nothing else is started, its sandboxes stay; a node that is not there is said so"
    needs_root()
    with small_templates() as t, node(templates=t) as (d, _), tempfile.TemporaryDirectory(prefix="hutch-mcp-") as folder:
        env = {"HUTCH_URL": d.url, "HUTCH_API_KEY": d.key, "HUTCH_STATE": f"{folder}/s"}
        with bridge(env) as b:
            b.ask("initialize", HELLO)
            box = b.tool("create_sandbox", template="small")["sandbox"]
            check_equal(b.close(), 0)
        check(not os.listdir(folder), "a private node was prepared")
        with bridge(env) as b:
            check_in(box, [s["sandbox"] for s in b.tool("list_sandboxes", modern=True)["sandboxes"]])
            misuse(b, box)
        ours, theirs = socket.socketpair()  # as Node.js gives its children
        with ours, theirs:
            p = subprocess.Popen([HUTCH, "mcp"], stdin=theirs, stdout=theirs, env={**os.environ, **env})
            ours.sendall(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
            check_in(b'"result":{}', ours.recv(4096))
            ours.shutdown(socket.SHUT_WR)
            check_equal(p.wait(30), 0)
        with bridge({**env, "HUTCH_API_KEY": "e2b_" + "0" * 40}) as b:
            check_in("401", b.ask("tools/list")["error"]["message"])
        with bridge({**env, "HUTCH_URL": "http://127.0.0.1:1"}) as b:
            check_in("no node answers", b.ask("tools/list")["error"]["message"])


def misuse(b, box):
    for line, code in ((b"{\n", -32700), (b"[]\n", -32600), (b"x" * ((4 << 20) + 1) + b"\n", -32600), (b'{"jsonrpc":"2.0","id":"a","method":5}\n', -32600)):
        b.say(line)
        check_equal(b.hear()["error"]["code"], code, line[:40])
    b.say(b"\n \n")
    check_equal(b.tool("run", sandbox=box, command="echo alive")["stdout"], "alive\n")
    # A long call delays no other, and ends when it is cancelled: it is never answered, and its command is gone.
    b.say({"jsonrpc": "2.0", "id": "long", "method": "tools/call", "params": {"name": "run", "arguments": {"sandbox": box, "command": "sleep 79; true"}}})
    look = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done"

    def there():
        return "sleep 79 " in b.tool("run", sandbox=box, command=look)["stdout"].splitlines()
    eventually(there, what="the command began")
    b.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "other"}})
    check(there(), "another id cancelled it")
    b.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "long"}})
    begun = time.monotonic()
    eventually(lambda: not there(), 20, "the command ended")
    check(time.monotonic() - begun < 15, "only its time limit ended it")
