"""The code interpreter through Hutch's own API, hutch code and MCP, against the daemon and the template that the environment names: python
and bash are enough. Prints TAP."""
import base64
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import finish, test, until  # noqa: E402

TEMPLATE, HUTCH, URL, KEY = (os.environ[x] for x in ("TEMPLATE", "HUTCH", "HUTCH_URL", "HUTCH_API_KEY"))
PORT = urllib.parse.urlsplit(URL).port
PIXEL = base64.b64encode(bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0000003010100c9fe92ef"
                                       "0000000049454e44ae426082")).decode()


def connect():
    return http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)


def ask(method, path, body=None, key=KEY):
    c = connect()
    h = {"X-API-Key": key, **({"Content-Type": "application/json"} if body is not None else {})}
    c.request(method, path, body if isinstance(body, (bytes, type(None))) else json.dumps(body), h)
    r = c.getresponse()
    text = r.read().decode()
    c.close()
    return r.status, json.loads(text) if text and "ndjson" not in r.headers.get("content-type", "") else text


def create(template=TEMPLATE, **more):
    status, box = ask("POST", "/v1/sandboxes", {"template": template, "timeout": 900, **more})
    assert status == 201, box
    return box["sandboxID"]


def lines(box, code, **more):
    status, text = ask("POST", f"/v1/sandboxes/{box}/code", {"code": code, **more})
    assert status == 200, text
    found = [json.loads(x) for x in text.splitlines() if x]
    assert found[-1] == {"type": "end_of_execution"}, found[-1]
    return [x for x in found[:-1] if x["type"] != "keepalive"]


def value(box, code, **more):
    return "".join(x.get("text", "") for x in lines(box, code, **more) if x["type"] == "result")


def printed(box, code, **more):
    return "".join(x["text"] for x in lines(box, code, **more) if x["type"] == "stdout")


def error(box, code, **more):
    return [x["name"] for x in lines(box, code, **more) if x["type"] == "error"]


def refused(method, path, body=None, key=KEY):
    status, a = ask(method, path, body, key)
    assert status >= 400 and a["message"], (status, a)
    return status, a.get("error_code"), a["message"]


# --- the API -------------------------------------------------------------------------------------------------------------------------

def cells(box):
    assert lines(box, "x = 41")[0] == {"type": "number_of_executions", "execution_count": 1}
    assert value(box, "x + 1") == "42"
    assert printed(box, "echo $A", language="bash", env={"A": "a'b$(id)"}) == "a'b$(id)\n"
    assert error(box, "while True: pass", timeout=0.5) == ["ExecutionTimeout"] and value(box, "x") == "41"
    c = connect()
    code = "import os, time\nprint('early', flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)"
    c.request("POST", f"/v1/sandboxes/{box}/code", json.dumps({"code": code}), {"X-API-Key": KEY})
    r = c.getresponse()
    assert [json.loads(r.readline())["type"] for _ in range(2)] == ["number_of_executions", "stdout"]
    printed(box, "touch /tmp/go", language="bash")
    assert json.loads(r.read().splitlines()[-1])["type"] == "end_of_execution"


def contexts(box):
    path = f"/v1/sandboxes/{box}/contexts"
    status, one = ask("POST", path, {"language": "python", "cwd": "/tmp"})
    assert (status, one["language"], one["cwd"]) == (201, "python", "/tmp"), one
    other = ask("POST", path, {})[1]
    met = "import os, time\nopen('/tmp/{0}', 'w')\nwhile not os.path.exists('/tmp/{1}'): time.sleep(0.01)\n'met'"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        both = [pool.submit(value, box, met.format(*w), contextID=c["contextID"]) for w, c in ((("m", "n"), one), (("n", "m"), other))]
        assert [b.result(60) for b in both] == ["met", "met"]
    assert {one["contextID"], other["contextID"]} <= {x["contextID"] for x in ask("GET", path)[1]}
    value(box, "y = 1", contextID=one["contextID"])
    assert ask("POST", f"{path}/{one['contextID']}/restart")[0] == 204
    assert error(box, "y", contextID=one["contextID"]) == ["NameError"]
    for c in (one, other):
        assert ask("DELETE", f"{path}/{c['contextID']}")[0] == 204
    assert refused("DELETE", f"{path}/{one['contextID']}")[:2] == (404, "context_not_found")


def wrong(box):
    path = f"/v1/sandboxes/{box}/code"
    for body, status, code, words in (
            ({}, 400, "bad_request", "'code' is missing"), ({"code": 1}, 400, "bad_request", "must be a string"), ([], 400, None, "object"),
            ({"code": "1", "language": "cobol"}, 400, "unknown_language", "python, javascript"),
            ({"code": "1", "language": "java"}, 409, "language_not_installed", "language java is not installed"),
            ({"code": "1", "timeout": "1"}, 400, "bad_request", "number of seconds"), ({"code": "1", "timeout": -1}, 400, "bad_request", "from 0"),
            ({"code": "1", "env": {"A": 1}}, 400, "bad_request", "strings"), ({"code": "1", "env": {"A B": "1"}}, 400, "bad_request", "names"),
            ({"code": "1", "cod": 1}, 400, "bad_request", "knows no field 'cod'"), (b"{", 400, None, ""),
            ({"code": "1", "language": "python", "contextID": "a"}, 400, "bad_request", "not both"),
            ({"code": "1", "contextID": "0000"}, 404, "context_not_found", "not known")):
        got = refused("POST", path, body)
        assert got[0] == status and (code is None or got[1] == code) and words in got[2], (body, got)
    assert refused("POST", f"/v1/sandboxes/{box}/contexts", {"cwd": "/no/such"})[:2] == (400, "bad_request")
    assert refused("DELETE", f"/v1/sandboxes/{box}/contexts/..%2Fx")[:2] == (404, "context_not_found")
    huge = connect()
    huge.putrequest("POST", path)
    for k, v in (("X-API-Key", KEY), ("Content-Type", "application/json"), ("Content-Length", str(100 << 20))):
        huge.putheader(k, v)
    huge.endheaders()
    r = huge.getresponse()
    assert (r.status, json.loads(r.read())["error_code"]) == (413, "too_large")
    huge.close()


def rights(box):
    """A sandbox of another tenant does not exist, its contexts neither; a key that may only read runs nothing."""
    def cli(*args):
        return subprocess.run([HUTCH, *args], text=True, capture_output=True, check=True).stdout.split()
    name = f"code-{os.getpid()}"
    cli("tenant", "create", name)
    try:
        stranger = next(w for w in cli("key", "create", "--tenant", name) if w.startswith("e2b_"))
        reader = next(w for w in cli("key", "create", "--scope", "read") if w.startswith("e2b_"))
        context = ask("GET", f"/v1/sandboxes/{box}/contexts")[1][0]["contextID"]
        for method, path, body in (("POST", "code", {"code": "1"}), ("GET", "contexts", None), ("POST", f"contexts/{context}/restart", None),
                                   ("DELETE", f"contexts/{context}", None), ("POST", "code", {"code": "1", "contextID": context})):
            assert refused(method, f"/v1/sandboxes/{box}/{path}", body, stranger)[0] == 404
        assert refused("POST", f"/v1/sandboxes/{box}/code", {"code": "1"}, reader)[0] == 403
        assert ask("GET", f"/v1/sandboxes/{box}/contexts", key=reader)[0] == 200
    finally:
        cli("tenant", "rm", name)


def less(_):
    """A cell with fewer rights, through the API, hutch code and MCP, as the sandbox's own walls let it be made."""
    box = create()
    try:
        less_in(box)
    finally:
        ask("DELETE", f"/sandboxes/{box}")


def less_in(box):
    tcp, write = "__import__('socket').create_connection(('127.0.0.1', 49999), 5)", "open('/tmp/by-a-cell', 'w')"
    off, none = {"network": "off"}, {"network": "off", "write": "none"}
    assert error(box, write) == [] and error(box, tcp) == []
    assert error(box, tcp, rights=off) == ["PermissionError"] and error(box, write, rights=off) == []
    assert error(box, tcp, rights=none) == ["PermissionError"] and error(box, write, rights=none) == ["PermissionError"]
    assert value(box, "6 * 7", rights=none) == "42"
    for what in ("environ", "maps", "mem"):  # of the service
        assert error(box, f"import os; open('/proc/%d/{what}' % os.getppid(), 'rb').read(1)", rights=none) in (["PermissionError"], ["OSError"]), what
    path = f"/v1/sandboxes/{box}"
    status, made = ask("POST", f"{path}/contexts", {"rights": none})
    assert (status, made["rights"]) == (201, none), made
    assert made["contextID"] in [c["contextID"] for c in ask("GET", f"{path}/contexts")[1] if c.get("rights") == none]
    assert error(box, tcp, contextID=made["contextID"]) == ["PermissionError"]
    assert refused("POST", f"{path}/code", {"code": "1", "contextID": made["contextID"], "rights": off})[:2] == (409, "rights_differ")
    for wrong_rights in ({"memoryMB": 64}, {"user": "own"}, {"network": "of"}, {"x": 1}, [], {"write": ["/absent"]}):
        assert refused("POST", f"{path}/code", {"code": "1", "rights": wrong_rights})[:2] == (400, "bad_request"), wrong_rights
    r = code("--no-network", "--ro", box, "-c", tcp)
    assert r.returncode == 1 and "Permission denied" in r.stdout + r.stderr, r
    r = code("--write", "/tmp", box, "-c", write + "; print('wrote')")
    assert (r.returncode, r.stdout) == (0, "wrote\n"), r
    r = mcp("run_code", sandbox=box, code=write, rights=none)
    assert r["isError"] and r["structuredContent"]["error"]["name"] == "PermissionError", r
    r = mcp("run_code", sandbox=box, code="1", rights={"memoryMB": 64})
    assert r["isError"] and "only that of a command can" in r["content"][0]["text"], r


def without(_):
    other = create("base")
    try:
        status, code, text = refused("POST", f"/v1/sandboxes/{other}/code", {"code": "1"})
        assert (status, code) == (409, "no_interpreter") and "code-interpreter" in text, text
    finally:
        ask("DELETE", f"/sandboxes/{other}")


# --- misbehaviour --------------------------------------------------------------------------------------------------------------------

def shell(box, command):
    return subprocess.run([HUTCH, "exec", box, "--", "sh", "-c", command], text=True, capture_output=True, check=False)


def bombs(box):
    """In a sandbox with little memory and few processes: the cell ends, typed, and the next one works."""
    found = error(box, "import os\nfor i in range(100000): os.fork() or __import__('time').sleep(1000)", timeout=60)
    assert found and found[0] in ("BlockingIOError", "ContextRestarting", "ExecutionTimeout", "MemoryError", "OSError"), found
    [context] = [c["contextID"] for c in ask("GET", f"/v1/sandboxes/{box}/contexts")[1] if c["language"] == "python"]
    assert ask("POST", f"/v1/sandboxes/{box}/contexts/{context}/restart")[0] == 204  # ends the children, too
    assert value(box, "1 + 1") == "2" and int(shell(box, "ls -d /proc/[0-9]* | wc -l").stdout) < 60
    found = error(box, "a = []\nwhile True: a.append(bytearray(64 << 20))", timeout=60)
    assert found and found[0] in ("MemoryError", "ContextRestarting"), found
    assert value(box, "1 + 1") == "2"


def odd(box):
    assert printed(box, "import subprocess; _ = subprocess.run('echo child; echo err >&2', shell=True)") == "child\n"
    many = "import threading\nfor i in range(200): threading.Thread(target=print, args=['t']).start()"
    assert printed(box, many).count("t") + printed(box, "import time; time.sleep(0.5)").count("t") == 200
    assert error(box, "import os, time\nif os.fork() == 0: os._exit(0)\nos.wait(); 1/0") == ["ZeroDivisionError"]
    assert error(box, "import os; os.kill(os.getpid(), 11)") == ["ContextRestarting"]
    assert error(box, "import os; os.close(1); os.close(2); os._exit(9)") == ["ContextRestarting"]
    assert error(box, "input()") == ["StdinNotImplementedError"]
    bytes_of_child = printed(box, "import os; _ = os.system(r\"printf 'a\\377b'\")")  # ipykernel may hand it in with the next cell
    assert bytes_of_child + printed(box, "import time; time.sleep(0.5)") == "a\ufffdb", bytes_of_child
    assert value(box, "1 + 1") == "2"


def floods(box):
    began = time.monotonic()
    for cell in ("while True: print('x' * 1000000)", "from IPython.display import display; display({'image/png': 'A' * (200 << 20)}, raw=True)"):
        found = error(box, cell)
        assert found in (["OutputLimitExceeded"], ["ContextRestarting"]), found  # the kernel holds much of it: memory may end first
    assert len(printed(box, "for i in range(100000): print(i)").splitlines()) == 100000
    assert value(box, "2") == "2" and time.monotonic() - began < 90


# --- what is killed ------------------------------------------------------------------------------------------------------------------

def killed(box):
    """The service in mid-cell: the stream says so and ends; contexts are lost; the next cell works."""
    context = ask("POST", f"/v1/sandboxes/{box}/contexts", {})[1]["contextID"]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        cell = pool.submit(lines, box, "lost = 1\nprint('on', flush=True)\nimport time; time.sleep(100)")
        time.sleep(2)
        shell(box, "pkill -KILL -x hutch-code")
        found = cell.result(60)
    assert found[-1]["name"] == "InterpreterLost", found
    until(lambda: ask("POST", f"/v1/sandboxes/{box}/code", {"code": "1"})[0] == 200, "the service comes back")
    assert error(box, "lost") == ["NameError"]
    assert refused("POST", f"/v1/sandboxes/{box}/code", {"code": "1", "contextID": context})[:2] == (404, "context_not_found")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        cell = pool.submit(error, box, "import time; time.sleep(100)")
        time.sleep(1.5)
        shell(box, "pkill -KILL -f ipykernel_launcher")
        assert cell.result(60) == ["ContextRestarting"]


def front_killed(box):
    """Variables live in the sandbox: a client that comes back finds them, and the cell of one that was cut is interrupted."""
    children = pathlib.Path(f"/proc/{os.environ['HUTCH_DAEMON_PID']}/task/{os.environ['HUTCH_DAEMON_PID']}/children").read_text().split()
    [front] = [int(p) for p in children if b"front" in pathlib.Path(f"/proc/{p}/cmdline").read_bytes().split(b"\0")[1]]
    value(box, "kept = 5")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        cell = pool.submit(lines, box, "import time\nwhile True: time.sleep(0.1)")
        time.sleep(1.5)
        os.kill(front, signal.SIGKILL)
        assert isinstance(cell.exception(60), (OSError, http.client.HTTPException, AssertionError)), cell.exception()

    def back():
        with contextlib.suppress(OSError, http.client.HTTPException):
            return ask("GET", f"/v1/sandboxes/{box}/contexts")[0] == 200
        return False
    until(back, "the node answers again")
    began = time.monotonic()
    assert value(box, "kept") == "5"
    assert time.monotonic() - began < 15, f"the cell of the killed front went on for {time.monotonic() - began:.0f} s"


def paused(box):
    value(box, "live = [1, 2]")
    subprocess.run([HUTCH, "pause", box], check=True, capture_output=True)
    assert value(box, "live.append(3); live") == "[1, 2, 3]"  # the cell wakes it


# --- hutch code ----------------------------------------------------------------------------------------------------------------------

def code(*args, **more):
    return subprocess.run([HUTCH, "code", *args], capture_output=True, text=True, check=False, timeout=120, **more)


SHOW = f"from IPython.display import display; display({{'image/png': '{PIXEL}'}}, raw=True)"


def command(box):
    r = code(box, "-c", "import os; print('out'); os.environ['V']", "-e", "V=v w")
    assert (r.returncode, r.stdout) == (0, "out\nv w\n"), r
    r = code(box, "-c", "1 / 0")
    assert r.returncode == 1 and r.stderr.endswith("ZeroDivisionError: division by zero\n"), r
    with tempfile.TemporaryDirectory() as d:
        pathlib.Path(d, "f.sh").write_text("echo from bash\n")
        assert code(box, f"{d}/f.sh").stdout == "from bash\n"
        assert code(box, input="print(7)").stdout == "7\n"
        r = code(box, "-c", SHOW, cwd=d)
        r = code(box, "-c", SHOW, cwd=d)
        assert r.stdout == "[saved as result-2.png]\n", r
        assert pathlib.Path(d, "result-2.png").read_bytes() == base64.b64decode(PIXEL)
    kitty, iterm, sixel = (code(box, "-c", SHOW, "--images", how).stdout for how in ("kitty", "iterm", "sixel"))
    assert kitty == f"\x1b_Ga=T,f=100,q=2,m=0;{PIXEL}\x1b\\\n", repr(kitty)
    assert iterm == f"\x1b]1337;File=inline=1;size={len(base64.b64decode(PIXEL))}:{PIXEL}\a\n", repr(iterm)
    assert sixel.startswith('\x1bPq"1;1;1;1#0;2;0;0;0') and sixel.endswith("#180@$-\x1b\\\n"), repr(sixel)  # one red pixel
    assert json.loads(code(box, "--json", "-c", "1").stdout.splitlines()[-1]) == {"type": "end_of_execution"}
    for args, words in ((("-c", "1", "-l", "cobol"), "choose python"), (("-c", "1", "--images", "x"), "--images"), (("-c", "1", "-t", "x"), "seconds"),
                        (("-c", "1", "-l", "bash", "--context", "a"), "not both"), (("/no/such",), "No such file")):
        r = code(box, *args)
        assert r.returncode > 1 and words in r.stderr, r


def typed(box):
    """On a terminal: cells of several lines, keys, history over two runs, Ctrl-C in mid-cell, Ctrl-D."""
    with tempfile.TemporaryDirectory() as state:
        def session(*keys):
            pid, fd = pty.fork()
            if pid == 0:
                os.environ.update(XDG_STATE_HOME=state, TERM="xterm")
                os.execv(HUTCH, [HUTCH, "code", box])
            seen = b""

            def read(want):
                nonlocal seen
                stop = time.monotonic() + 20
                while not re.search(want, seen):
                    assert time.monotonic() < stop, (want, seen[-300:])
                    if select.select([fd], [], [], 1)[0]:
                        try:
                            seen += os.read(fd, 65536)
                        except OSError:
                            break
                seen = seen[re.search(want, seen).end():] if re.search(want, seen) else b""
            try:
                read(rb"python> ")
                for text, want in keys:
                    os.write(fd, text)
                    read(want)
                os.write(fd, b"\x04")
                stop = time.monotonic() + 30
                while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
                    assert time.monotonic() < stop, ("no end", seen)
                    time.sleep(0.05)
                assert os.waitstatus_to_exitcode(ended[1]) == 0
            except BaseException:
                os.kill(pid, signal.SIGKILL)
                raise
            finally:
                os.close(fd)
        session((b"x = 20\r", rb"\n.*python> "), (b"for i in range(2):\r", rb"\.\.> "), (b"    print(i + x)\r", rb"\.\.> "), (b"\r", rb"20\r\n21\r\n"),
                (b"print('ac')\x1b[D\x1b[D\x1b[Db\r", rb"labc\r\n"), (b"print('on'); __import__('time').sleep(100)\r", rb"lon\r\n"),
                (b"\x03", rb"interrupted\r\n.*python> "))
        session((b"\x10\x10", rb"print\('ab?c?"), (b"\x03", rb"python> "), (b"\x1b[200~a = 1\nb = 2\x1b[201~", rb"b = 2"), (b"\r", rb"python> "),
                (b"a + b\r", rb"l3\r\n"))
        pathlib.Path(state, "hutch/code_history").read_text().index("x = 20")


# --- MCP -----------------------------------------------------------------------------------------------------------------------------

def mcp(name, **args):
    c = connect()
    c.request("POST", "/mcp", json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": args}}),
              {"X-API-Key": KEY, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"})
    text = c.getresponse().read().decode().rstrip()
    c.close()
    return json.loads(text.rpartition("data: ")[2])["result"]


def tool(box):
    r = mcp("run_code", sandbox=box, code="print('p'); 6 * 7")
    assert not r["isError"] and r["content"][0]["text"] == "p\n42\n", r
    assert r["structuredContent"]["stdout"] == "p\n" and r["structuredContent"]["results"] == [{"main": True, "text": "42"}], r
    r = mcp("run_code", sandbox=box, code=SHOW)
    assert r["content"][1] == {"type": "image", "data": PIXEL, "mimeType": "image/png"}, r
    r = mcp("run_code", sandbox=box, code="1 / 0")
    assert r["isError"] and r["structuredContent"]["error"]["name"] == "ZeroDivisionError" and "1 / 0" in r["content"][0]["text"], r
    r = mcp("run_code", sandbox=box, code="while True: pass", timeout_s=1)
    assert r["isError"] and r["structuredContent"]["error"]["name"] == "ExecutionTimeout", r
    r = mcp("run_code", sandbox=box, code="print('x' * 100000)")
    rest = mcp("read_output", handle=r["structuredContent"]["stdout_handle"], offset=12288, limit=10)
    assert rest["content"][0]["text"] == "x" * 10, rest
    r = mcp("run_code", sandbox=box, code="1", language="cobol")
    assert r["isError"] and "unknown_language" in r["content"][0]["text"], r


def main():
    box = create()
    try:
        for name, fn in (("cells stream, with variables, time-outs and languages", cells), ("contexts: two in parallel, restart, remove", contexts),
                         ("wrong requests have typed errors that say what is right", wrong), ("other tenants and readers", rights),
                         ("cells with fewer rights", less),
                         ("a sandbox without an interpreter", without), ("hutch code: files, arguments, pictures", command),
                         ("hutch code: typed cells", typed), ("MCP: run_code", tool), ("threads, children, signals, bytes", odd),
                         ("floods of output", floods), ("fork and memory bombs", bombs), ("pause keeps variables, a cell resumes", paused),
                         ("the service and a kernel are killed in mid-cell", killed), ("front is killed in mid-cell", front_killed)):
            test(f"code: {name}", fn, box)
    finally:
        ask("DELETE", f"/sandboxes/{box}")
    finish()


main()
