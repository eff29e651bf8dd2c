"""The Model Context Protocol at /mcp: every tool, both eras, scopes, cancellation, and what is no message."""
import http.client
import json
import socket
import threading
import time

from daemon import lives
from hutch_test import SOAK, check, check_equal, check_in, eventually
from internet import Internet
from node import needs_root, node
from node_client import ask, memory
from small import small_templates

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"


def rpc(d, method, params=None, key=None, modern=False, headers=None, **more):
    params, h = dict(params or {}), {"Accept": "application/json, text/event-stream", **(headers or {})}
    if modern:
        params["_meta"] = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}, **params.get("_meta", {})}
        h = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, **h}
        if name := params.get("name") or params.get("uri"):
            h.setdefault("Mcp-Name", name)
    return ask(d, "POST", "/mcp", {"jsonrpc": "2.0", "id": 7, "method": method, "params": params, **more}, key=key, headers=h)


def last(a):
    """The answer itself; a call that takes longer than a second is answered by a stream that ends with it."""
    return json.loads(a.body.decode().rstrip().rpartition("data: ")[2])


def tool(d, name, key=None, modern=False, **args):
    a = rpc(d, "tools/call", {"name": name, "arguments": args}, key=key, modern=modern)
    check_equal(a.status, 200, a)
    return last(a)["result"]


def good(d, name, modern=False, **args):
    r = tool(d, name, modern=modern, **args)
    check(not r["isError"], (name, args, r))
    return r.get("structuredContent", {})


def text(r):
    return r["content"][0]["text"]


def test_every_tool():
    "each tool does what it says, on one sandbox, in both eras"
    needs_root()
    with small_templates() as t, node(templates=t) as (d, _):
        names = [x["name"] for x in rpc(d, "tools/list").json["result"]["tools"]]
        check_equal(len(names), 19)
        box = good(d, "create_sandbox", template="small", timeout_s=600, history=True)["sandbox"]
        check_in(box, [s["sandbox"] for s in good(d, "list_sandboxes", modern=True)["sandboxes"]])
        r = good(d, "run", sandbox=box, command="echo out; echo err >&2; exit 3")
        check_equal((r["exit_code"], r["stdout"], r["stderr"], r["timed_out"]), (3, "out\n", "err\n", False))
        check_in("wallMs", r["usage"])
        check_equal(good(d, "run", sandbox=box, command="sleep 9", timeout_s=1)["timed_out"], True)
        r = tool(d, "run_code", sandbox=box, code="1")
        check(r["isError"] and "no_interpreter" in text(r) and "code-interpreter" in text(r), r)
        files(d, box)
        state(d, box)
        check_in("hutch-link=", good(d, "expose_port", sandbox=box, port=8000)["url"])
        check_equal(good(d, "request_grant", sandbox=box, host="example.org")["state"], "asked")
        check_equal(good(d, "kill_sandbox", sandbox=box)["killed"], box)
        r = tool(d, "run", sandbox=box, command="true")
        check(r["isError"] and "create_sandbox" in text(r), r)


def files(d, box):
    good(d, "write_file", sandbox=box, path="/tmp/d/a.txt", content="one\ntwo\nthree\n")
    check_equal(text(tool(d, "read_file", sandbox=box, path="/tmp/d/a.txt")), "one\ntwo\nthree\n")
    part = tool(d, "read_file", sandbox=box, path="/tmp/d/a.txt", offset=4, limit=3)
    check_equal((text(part), part["structuredContent"]["next_offset"]), ("two", 7))
    good(d, "edit_file", sandbox=box, path="/tmp/d/a.txt", edits=[{"old_text": "two", "new_text": "2"}])
    r = tool(d, "edit_file", sandbox=box, path="/tmp/d/a.txt", edits=[{"old_text": "one", "new_text": "1"}, {"old_text": "two\n", "new_text": ""}])
    check(r["isError"], r)
    check_equal([(x["edit"], x["matches"]) for x in r["structuredContent"]["not_matched"]], [(1, 0)])
    check_equal(text(tool(d, "read_file", sandbox=box, path="/tmp/d/a.txt")), "one\n2\nthree\n")
    check_equal([e["path"] for e in good(d, "list_files", sandbox=box, path="/tmp/d")["entries"]], ["/tmp/d/a.txt"])
    good(d, "write_file", sandbox=box, path="/tmp/d/b", content="AAH/", base64=True)
    check_equal(text(tool(d, "read_file", sandbox=box, path="/tmp/d/b")), "AAH/")
    for args in ({"text": "thr"}, {"glob": "a.*"}):
        r = tool(d, "search", sandbox=box, path="/tmp/d", **args)
        check_equal((r["isError"], r["structuredContent"]["found"]), (False, 1), r)
        check_in("a.txt", r["structuredContent"]["matches"][0])
    check_equal(good(d, "search", sandbox=box, path="/tmp/d", text="nowhere")["matches"], [])
    check(tool(d, "search", sandbox=box, path="/tmp/none", text="x")["isError"], "searched in nothing")
    uri = f"hutch://sandboxes/{box}/files/tmp/d/a.txt"
    for modern in (False, True):
        r = rpc(d, "resources/read", {"uri": uri}, modern=modern).json["result"]
        check_equal(r["contents"][0]["text"], "one\n2\nthree\n")
    check_in("created", rpc(d, "resources/read", {"uri": f"hutch://sandboxes/{box}/log"}).json["result"]["contents"][0]["text"])
    r = tool(d, "run", sandbox=box, command="i=0; while [ $i -lt 9000 ]; do echo line $i; i=$((i+1)); done")
    handle = r["structuredContent"]["stdout_handle"]
    check(len(text(r)) < 17000 and handle in text(r), len(text(r)))
    check_in("line 4500\n", text(tool(d, "read_output", handle=handle, offset=0, limit=262144)))


def state(d, box):
    child = good(d, "fork", sandbox=box)["sandboxes"][0]
    check_equal(text(tool(d, "read_file", sandbox=child, path="/tmp/d/a.txt")), "one\n2\nthree\n")
    good(d, "kill_sandbox", sandbox=child)
    again = good(d, "create_sandbox", template=good(d, "snapshot", sandbox=box)["template"])["sandbox"]
    check_equal(text(tool(d, "read_file", sandbox=again, path="/tmp/d/a.txt")), "one\n2\nthree\n")
    good(d, "kill_sandbox", sandbox=again)
    good(d, "run", sandbox=box, command="echo gone >/tmp/d/a.txt")
    check(good(d, "history", sandbox=box)["generations"], "no generation")
    good(d, "undo", sandbox=box)
    check_equal(text(tool(d, "read_file", sandbox=box, path="/tmp/d/a.txt")), "one\n2\nthree\n")
    t = good(d, "try", sandbox=box, command="echo tried >/tmp/d/new")
    check(tool(d, "read_file", sandbox=box, path="/tmp/d/new")["isError"], "try changed the sandbox")
    good(d, "commit", sandbox=box, transaction=t["transaction"])
    check_equal(text(tool(d, "read_file", sandbox=box, path="/tmp/d/new")), "tried\n")
    t = good(d, "try", sandbox=box, command="rm /tmp/d/new")
    good(d, "commit", sandbox=box, transaction=t["transaction"], discard=True)
    check(tool(d, "commit", sandbox=box, transaction=t["transaction"])["isError"], "committed twice")


def test_scopes_and_tenants():
    "a key that only reads changes nothing and sees no contents; a sandbox of another tenant is none"
    needs_root()
    with small_templates() as t, node(templates=t) as (d, _):
        box = good(d, "create_sandbox", template="small")["sandbox"]
        check_equal(ask(d, "POST", "/v1/tenants", {"id": "other", "name": "o"}).status, 201)
        keys = {}
        for name, tenant, scopes in (("read", "default", ["read"]), ("other", "other", ["sandboxes"])):
            a = ask(d, "POST", "/v1/keys", {"tenant": tenant, "name": name, "scopes": scopes})
            check_equal(a.status, 201, a)
            keys[name] = a.json["key"]
        for name, args in (("run", {"command": "true"}), ("write_file", {"path": "x", "content": ""}), ("kill_sandbox", {}),
                           ("read_file", {"path": "/etc/passwd"})):
            r = tool(d, name, key=keys["read"], sandbox=box, **args)
            check(r["isError"] and "this API key" in text(r), (name, r))
            r = tool(d, name, key=keys["other"], sandbox=box, **args)
            check(r["isError"] and "there is no sandbox" in text(r), (name, r))
        for name in (x["name"] for x in rpc(d, "tools/list").json["result"]["tools"]):
            r = tool(d, name, key=keys["read"])
            check_equal(r["isError"] and "this API key" in text(r), name not in ("list_sandboxes", "history"), (name, r))
        check_in(box, json.dumps(tool(d, "list_sandboxes", key=keys["read"])))
        check(box not in json.dumps(tool(d, "list_sandboxes", key=keys["other"])), "seen by another tenant")
        check_equal(rpc(d, "tools/list", key="").status, 401)


def test_eras_and_bad_messages():
    "the era follows from meta and headers; what is no message gets a typed error, and front lives"
    needs_root()
    with node() as (d, _):
        (front,) = d.children("front")
        a = rpc(d, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}})
        check_equal(a.json["result"]["protocolVersion"], "2025-11-25")
        session = a.headers["mcp-session-id"]
        check_equal(rpc(d, "ping", headers={"Mcp-Session-Id": session}).status, 200)
        check_equal(rpc(d, "ping", headers={"Mcp-Session-Id": session[:-1] + "x"}).status, 404)
        check_equal(rpc(d, "server/discover", modern=True).json["result"]["supportedVersions"], [MODERN])
        for method in ("initialize", "ping", "nothing"):
            a = rpc(d, method, modern=True)
            check_equal((a.status, a.json["error"]["code"]), (404, -32601), method)
        a = rpc(d, "tools/list", {"_meta": {META + "protocolVersion": "1900-01-01"}}, modern=True, headers={"MCP-Protocol-Version": "1900-01-01"})
        check_equal((a.status, a.json["error"]["code"], a.json["error"]["data"]["supported"]), (400, -32022, [MODERN]))
        a = rpc(d, "tools/list", modern=True, headers={"Mcp-Method": "tools/call"})
        check_equal((a.status, a.json["error"]["code"]), (400, -32020))
        for body, code in ((b"{", -32700), (b"[]", -32600), (b'{"jsonrpc":"1.0"}', -32600), (b'{"jsonrpc":"2.0","id":{},"method":"x"}', -32600),
                           (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}', -32602), (b"[" * 200, -32700), (b"\xff", -32700),
                           (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":' + b"[" * 100000 + b"]" * 100000 + b"}}", -32700),
                           (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":' + b'{"a":' * 3000 + b"1" + b"}" * 3002, -32700),
                           (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600), (b'{"jsonrpc":"2.0","id":1,"method":{}}', -32600),
                           (b'{"jsonrpc":"2.0","id":1,"method":"a\\u0000b"}', -32700)):
            a = ask(d, "POST", "/mcp", body)
            check_equal((a.status, a.json["error"]["code"]), (400, code), body)
        with socket.create_connection(("127.0.0.1", d.port), 20) as s:
            s.sendall(f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {d.key}\r\nContent-Length: {(4 << 20) + 1}\r\n\r\n{{".encode())
            check_in(" 413 ", s.recv(4096).decode().splitlines()[0])
        check_equal(rpc(d, "tools/call", {"name": "none"}).json["error"]["code"], -32602)
        for args, word in (({"sandbox": 5, "command": "x"}, "type string"), ({"sandbox": "x"}, "missing"),
                           ({"sandbox": "x", "command": "x", "timeout_s": 0}, "from 1 to 600"), ({"bad": 1}, "no argument")):
            r = rpc(d, "tools/call", {"name": "run", "arguments": args}).json["result"]
            check(r["isError"] and word in text(r), r)
        for h in ({"Origin": "http://evil.example.com"}, {"Host": "evil.example.com"}):
            check(400 <= rpc(d, "tools/list", headers=h).status < 500, h)
        check_equal(ask(d, "GET", "/mcp").status, 405)
        check(lives(front), "front died")


def commands(d, box):
    """All command lines in the sandbox; the pattern does not find its own."""
    return good(d, "run", sandbox=box, command="for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done")["stdout"].splitlines()


def begin(d, box, command, session=""):
    """A run whose answer is not awaited: its connection."""
    c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=60)
    c.request("POST", "/mcp", json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {
        "name": "run", "arguments": {"sandbox": box, "command": command}}}),
        {"X-API-Key": d.key, "Accept": "application/json, text/event-stream", **({"Mcp-Session-Id": session} if session else {})})
    return c


def cancel(d, session=""):
    a = ask(d, "POST", "/mcp", {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}},
            headers={"Mcp-Session-Id": session} if session else {})
    check_equal(a.status, 202, a)


def test_prompts_and_completion():
    "prompts carry their arguments as they are, wrong ones are refused, and ids are completed of one's own sandboxes only"
    needs_root()
    with node() as (d, _):
        box = good(d, "create_sandbox", template="host", timeout_s=600)["sandbox"]
        can = rpc(d, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}).json["result"]["capabilities"]
        check_equal((can["prompts"], can["completions"], "logging" in can), ({}, {}, False))
        names = [p["name"] for p in rpc(d, "prompts/list").json["result"]["prompts"]]
        check_equal(names, ["run_untrusted", "try_change", "explain_denials"])
        for modern in (False, True):
            def get(name, modern=modern, **args):
                return rpc(d, "prompts/get", {"name": name, "arguments": args}, modern=modern).json
            r = get("run_untrusted", command="echo {sandbox} {command}\n")["result"]["messages"]
            check(len(r) == 1 and r[0]["role"] == "user" and r[0]["content"]["text"].endswith("\n\necho {sandbox} {command}\n"), r)
            check_in('{"network":"off","write":"none"', r[0]["content"]["text"])
            check_in("create_sandbox", r[0]["content"]["text"])
            r = get("explain_denials", sandbox=box)["result"]["messages"][0]["content"]["text"]
            check_in(f"hutch://sandboxes/{box}/log", r)
            for name, args, word in (("nothing", {}, "no such prompt"), ("try_change", {"sandbox": box}, "'task' is missing"),
                                     ("run_untrusted", {"command": 7}, "must be a string"), ("run_untrusted", {"command": "x", "z": ""}, "no argument 'z'"),
                                     ("run_untrusted", {"command": "x" * 16385}, "16 KiB"), ("run_untrusted", {"command": "a\0b"}, "")):
                a = get(name, **args)
                check(a["error"]["code"] in (-32602, -32700, -32600) and word in a["error"]["message"], (name, args, a))

        def complete(ref, name, value, key=None):
            return rpc(d, "completion/complete", {"ref": ref, "argument": {"name": name, "value": value}}, key=key).json
        prompt, place = {"type": "ref/prompt", "name": "try_change"}, {"type": "ref/resource", "uri": "hutch://sandboxes/{sandbox}/log"}
        for ref in (prompt, place):
            check_equal(complete(ref, "sandbox", box[:4])["result"]["completion"], {"values": [box], "total": 1, "hasMore": False})
            check_equal(complete(ref, "sandbox", "!")["result"]["completion"]["values"], [])
        check_equal(complete(prompt, "task", "")["result"]["completion"]["values"], [])
        for ref in ({"type": "ref/prompt", "name": "x"}, {"type": "ref/resource", "uri": "x"}, {"type": 7}, None, []):
            check_equal(complete(ref, "sandbox", "")["error"]["code"], -32602, ref)
        check_equal(rpc(d, "completion/complete", {"ref": prompt, "argument": {"name": 1}}).json["error"]["code"], -32602)
        check_equal(ask(d, "POST", "/v1/tenants", {"id": "other", "name": "o"}).status, 201)
        key = ask(d, "POST", "/v1/keys", {"tenant": "other", "name": "other", "scopes": ["sandboxes"]}).json["key"]
        check_equal(complete(prompt, "sandbox", "", key=key)["result"]["completion"]["values"], [], "another tenant's")


def test_large_bodies_give_their_memory_back():
    "what front holds for large messages that arrive together is given back after them"
    needs_root()
    with node() as (d, _):
        front = d.children("front")[0]
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "run", "arguments": {"sandbox": "x", "command": "y" * ((4 << 20) - 4096)}}}

        def burst(n):
            sent = [threading.Thread(target=lambda: codes.append(ask(d, "POST", "/mcp", message).status)) for _ in range(n)]
            for t in sent:
                t.start()
            for t in sent:
                t.join()
        codes = []
        burst(1)
        before = memory(front)
        burst(16)  # 64 MiB together
        check_equal(codes, [200] * 17)
        eventually(lambda: memory(front) < before + (32 << 20), 20, f"front had {before >> 20} MiB before")
        # The same of bodies of the API, which are refused after they were read.
        body = {"metadata": {"a": "b" * ((1 << 20) - 4096)}}
        for _ in range(48):
            check_equal(ask(d, "POST", "/v1/sandboxes", body).status // 100, 4)
        eventually(lambda: memory(front) < before + (32 << 20), 20, f"front had {before >> 20} MiB before requests of the API")


def test_progress_and_cancel():
    "a long command reports progress; a client that cancels or leaves ends its command, and only its own"
    needs_root()
    with small_templates() as t, node(templates=t) as (d, _):
        box = good(d, "create_sandbox", template="small")["sandbox"]
        a = rpc(d, "tools/call", {"name": "run", "arguments": {"sandbox": box, "command": "sleep 3"}, "_meta": {"progressToken": "p"}})
        frames = [json.loads(x[6:]) for x in a.body.decode().splitlines() if x.startswith("data: ")]
        steps = [f["params"]["progress"] for f in frames if f.get("method") == "notifications/progress"]
        check(len(steps) >= 2 and steps == sorted(set(steps)), frames)
        check_equal(frames[-1]["result"]["structuredContent"]["exit_code"], 0)
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        first, second = (rpc(d, "initialize", hello).headers["mcp-session-id"] for _ in range(2))
        c = begin(d, box, "sleep 77; true", first)
        eventually(lambda: "sleep 77 " in commands(d, box), what="the command began")
        for other in ("", second):
            cancel(d, other)
        time.sleep(0.5)
        check_in("sleep 77 ", commands(d, box), "cancelled by another session that used the same id")
        cancel(d, first)
        check_in("cancelled", c.getresponse().read().decode())
        c.close()
        check("sleep 77 " not in commands(d, box), "its children live on")
        c = begin(d, box, "sleep 78; true")
        eventually(lambda: "sleep 78 " in commands(d, box), what="the command began")
        c.close()
        begun = time.monotonic()
        eventually(lambda: "sleep 78 " not in commands(d, box), what="the command ended with its client")
        check(time.monotonic() - begun < 30, "only its time limit ended it")


def test_limits():
    "what a client can make large has a limit, and the answer says so"
    needs_root()
    with small_templates() as t, node(templates=t) as (d, _):
        box = good(d, "create_sandbox", template="small")["sandbox"]
        handles = [good(d, "run", sandbox=box, command=f"yes {i} | head -c 20000")["stdout_handle"] for i in range(17)]
        r = tool(d, "read_output", handle=handles[0])
        check(r["isError"] and "any more" in text(r), r)
        check_in("16\n16\n", text(tool(d, "read_output", handle=handles[16])))
        r = good(d, "run", sandbox=box, command="yes | head -c 600000")
        check(r["stdout_dropped"] >= 600000 - (256 << 10), r["stdout_dropped"])
        good(d, "run", sandbox=box, command="mkdir /tmp/many /tmp/big; cd /tmp/many; for i in $(seq 1100); do : >$i; done; yes | head -c 1100000 >/tmp/big/a")
        r = good(d, "list_files", sandbox=box, path="/tmp/many")
        check_equal((len(r["entries"]), r["total"], r["truncated"]), (1000, 1100, True))
        r = tool(d, "edit_file", sandbox=box, path="/tmp/big/a", edits=[{"old_text": "y", "new_text": "n"}])
        check(r["isError"] and "larger than 1 MiB" in text(r), r)
        (front,) = d.children("front")
        good(d, "write_file", sandbox=box, path="/tmp/big/y", content="y" * 1000000)
        r = tool(d, "edit_file", sandbox=box, path="/tmp/big/y", edits=[{"old_text": "y", "new_text": "n" * 1000000, "all": True}])
        check(r["isError"] and "larger than 4 MiB" in text(r), r)
        check(lives(front), "an edit that grows without end ended front")
        r = good(d, "try", sandbox=box, command="cd /tmp/big; for i in $(seq 300); do : >$i; done")
        check_equal((len(r["changes"]), r["truncated"]), (200, True))
        check(r["total"] >= 300, r["total"])
        edits = [{"old_text": "y", "new_text": "n"}] * 101
        check_in("1 to 100", text(tool(d, "edit_file", sandbox=box, path="/tmp/big/a", edits=edits)))
        listening = []
        meta = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}
        for i in range(64):
            c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=60)
            c.request("POST", "/mcp", json.dumps({"jsonrpc": "2.0", "id": i, "method": "subscriptions/listen", "params": {
                "notifications": {"toolsListChanged": True}, "_meta": meta}}), {
                "X-API-Key": d.key, "Accept": "text/event-stream", "MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"})
            check_equal(c.getresponse().status, 200)
            listening.append(c)
        a = rpc(d, "tools/list")
        check_equal((a.status, a.json["error"]["code"]), (429, -32000), a)
        for c in listening:
            c.close()


HOSTILE = """
import json, socketserver, time
LINES = {
    "deep": ['{"type":"result","text":"deep","chart":' + "[" * 70 + "]" * 70 + "}", '{"type":"stdout","text":"after"}'],
    "wide": ['{"type":"result","text":"wide","chart":[' + "0," * 20000 + '0]}', '{"type":"stdout","text":"[[[," }'],
    "nul": [json.dumps({"type": "result", "text": "a" + chr(0) + "b", "chart": {"title": chr(0)}}),
            json.dumps({"type": "result", "text": "c" + chr(0) + "d" * 300000}), json.dumps({"type": "result", "chart": {"x": 1}})],
    "error": [json.dumps({"type": "error", "name": "E" + chr(0), "value": "v" * 5000, "traceback": "t" * 100000 + "end", "more": [1] * 9000})],
    "silent": [],
}
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        method, path, _ = self.rfile.readline().decode().split()
        length = 0
        while (line := self.rfile.readline().strip()):
            name, _, value = line.decode().partition(":")
            length = int(value) if name.lower() == "content-length" else length
        body = json.loads(self.rfile.read(length) or "{}")
        code = body.get("code", "").rstrip()
        if code == "mute":
            time.sleep(600)
        status = "500 Broken" if code == "refuse" else "200 OK"
        self.wfile.write(("HTTP/1.1 %s\\r\\ncontent-type: text/plain\\r\\nconnection: close\\r\\n\\r\\n" % status).encode())
        while code == "refuse" or path == "/contexts":
            self.wfile.write(b"[" + b" " * 65536)
            time.sleep(0.01)
        if code == "silent":
            time.sleep(600)
        for line in LINES[code]:
            self.wfile.write(line.encode() + b"\\n")
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
Server(("0.0.0.0", 49999), Handler).serve_forever()
"""


def test_hostile_interpreter():
    "what a sandbox serves in place of the interpreter is measured before it is parsed, cut, and given up when it does not end"
    needs_root()
    with node() as (d, _):
        box = good(d, "create_sandbox", template="host")["sandbox"]
        good(d, "write_file", sandbox=box, path="/tmp/hostile.py", content=HOSTILE)
        good(d, "run", sandbox=box, command="setsid python3 /tmp/hostile.py >/tmp/hostile.log 2>&1 </dev/null &")
        for _ in range(50):
            r = tool(d, "run_code", sandbox=box, code="deep")
            if "no_interpreter" not in text(r):
                break
            time.sleep(0.1)
        for code, out in (("deep", "after"), ("wide", "[[[,")):
            r = tool(d, "run_code", sandbox=box, code=code)
            check_equal((r["structuredContent"]["stdout"], r["structuredContent"]["results"]), (out, []), r)
            check_in("1 outputs were left out", text(r))
        r = tool(d, "run_code", sandbox=box, code="nul")
        check_equal(r["structuredContent"]["results"], [{"main": False, "text": "a\ufffdb"}, {"main": False}, {"main": False, "chart": {"x": 1}}])
        check_in("a\ufffdb", text(r))
        check(len(json.dumps(r)) < 100000, "a NUL hides a long text")
        r = tool(d, "run_code", sandbox=box, code="error")
        check_equal(r["structuredContent"]["error"], {"name": "E\ufffd", "value": "v" * 1000})
        check(r["isError"] and text(r).count("t") > 16000 and len(text(r)) < 20000 and "tend" in text(r), text(r)[-2000:])
        check_in("interpreter_failed", text(tool(d, "run_code", sandbox=box, code="refuse")))
        a = ask(d, "GET", f"/v1/sandboxes/{box}/contexts")
        check_equal((a.status, "too long" in a.json["message"]), (502, True), a)
        if SOAK:
            check_in("interpreter_silent", text(tool(d, "run_code", sandbox=box, code="silent", timeout_s=300)))
        good(d, "kill_sandbox", sandbox=box)


def test_grant():
    "request_grant opens nothing: the request that follows waits until a person allows it"
    needs_root()
    with Internet() as net, node(config=net.config()) as (d, _):
        box = good(d, "create_sandbox", template="host")["sandbox"]
        get = "curl -sS -o /dev/null -w '%{http_code}' --max-time 60 https://api.test/"
        check_equal(good(d, "run", sandbox=box, command=get)["stdout"], "403")
        check_equal(good(d, "request_grant", sandbox=box, host="api.test")["state"], "asked")
        answer = []
        thread = threading.Thread(target=lambda: answer.append(good(d, "run", sandbox=box, command=get, timeout_s=90)))
        thread.start()
        eventually(lambda: ask(d, "GET", "/v1/approvals").json["approvals"], 20, "a request for approval")
        check(not answer, "it did not wait")
        one = ask(d, "GET", "/v1/approvals").json["approvals"][0]
        check_equal(ask(d, "POST", f"/v1/approvals/{one['id']}", {"decision": "allow_once"}).status, 200)
        thread.join(60)
        check_equal(answer[0]["stdout"], "200")
