"""The code interpreter: hutch-code with real kernels (ipykernel, bash_kernel), as its clients see it."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from hutch_test import SOAK, check, check_equal, check_in, skip
from packages import kernel_packages

CODE = os.environ.get("HUTCH_CODE_BIN", "build/hutch-code")


class Service:
    def __init__(self, home, kernels, warm):
        self.home, self.kernels, self.warm = home, kernels, warm
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.start()

    def start(self):
        env = {**os.environ, "HOME": self.home, "IPYTHONDIR": self.home, "TMPDIR": self.home, "HISTFILE": "/dev/null", "FROM_START": "start"}
        self.process = subprocess.Popen([CODE, "--port", str(self.port), "--kernels", self.kernels, "--cwd", self.home, "--warm", self.warm], env=env)

    def await_health(self):
        for _ in range(600):
            with contextlib.suppress(OSError):
                if self.ask("GET", "/health")[0] == 200:
                    return
            time.sleep(0.1)
        raise AssertionError(f"not ready: {self.ask('GET', '/health')}")

    def unhealthy(self):
        for _ in range(600):
            with contextlib.suppress(OSError):
                return self.ask("GET", "/health")
            time.sleep(0.1)
        raise AssertionError("no answer")

    def end(self):
        """Ends the service; nothing of it may stay."""
        kernels = children(self.process.pid)
        self.process.terminate()
        check_equal(self.process.wait(20), 0)
        for pid in kernels:
            check(has_ended(pid), "a kernel outlived the service")
        check_equal([x for x in os.listdir(self.home) if x.startswith("hutch-code-")], [])

    def ask(self, method, path, body=None, timeout=60):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        c.request(method, path, body if isinstance(body, (bytes, type(None))) else json.dumps(body))
        r = c.getresponse()
        text = r.read()
        c.close()
        return r.status, text.decode()

    def lines(self, code, **more):
        status, text = self.ask("POST", "/execute", {"code": code, **more})
        check_equal(status, 200)
        found = [json.loads(line) for line in text.splitlines()]
        check_equal(found[-1], {"type": "end_of_execution"})
        return [x for x in found[:-1] if x["type"] != "keepalive"]

    def of(self, kind, code, **more):
        return [x for x in self.lines(code, **more) if x["type"] == kind]

    def value(self, code, **more):
        return [x["text"] for x in self.of("result", code, **more)]

    def printed(self, code, **more):
        return "".join(x["text"] for x in self.of("stdout", code, **more))

    def error(self, code, **more):
        return [x["name"] for x in self.of("error", code, **more)]


@contextlib.contextmanager
def service(kernels=None, warm="python", ready=True):
    if not kernels:
        packages, why = kernel_packages()
        if not packages:
            skip(f"kernels cannot be installed from PyPI: {why}")
        kernels = str(packages / "share/jupyter/kernels")
    with tempfile.TemporaryDirectory() as home:
        s = Service(home, kernels, warm)
        try:
            if ready:
                s.await_health()
            yield s
            s.end()
        finally:
            if s.process.poll() is None:
                s.process.kill()
                s.process.wait()


def children(pid):
    try:
        return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def has_ended(pid):
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


def test_cells():
    "cells share variables; results, output, errors, the counter and files of the directory arrive as clients expect them"
    with service() as s:
        check_equal(s.lines("x = 41"), [{"type": "number_of_executions", "execution_count": 1}])
        check_equal(s.value("x + 1"), ["42"])
        check_equal(s.value("'quoted'"), ["quoted"])
        [r] = s.of("result", "from IPython.display import HTML; HTML('<b>')")
        check_equal((r["html"], r["is_main_result"], r["extra"]), ("<b>", True, {}))
        [r] = s.of("result", "from IPython.display import display; display({'a/b': 'c', 'text/plain': 't'}, raw=True)")
        check_equal((r["is_main_result"], r["extra"], r["a/b"], r["text"]), (False, {"a/b": "c"}, "c", "t"))
        both = s.lines("import sys; print('out'); print('err', file=sys.stderr)")
        check_equal({(x["type"], x["text"]) for x in both[1:]}, {("stdout", "out\n"), ("stderr", "err\n")})
        check(all(x["timestamp"].endswith("Z") for x in both[1:]), str(both))
        [e] = s.of("error", "def f():\n    return 1 / 0\nf()")
        check_equal((e["name"], e["value"]), ("ZeroDivisionError", "division by zero"))
        check_in("return 1 / 0", e["traceback"])
        check("\x1b" not in e["traceback"], "colours in a traceback")
        check_equal(s.value("1 + 1"), ["2"])
        check_equal(s.error("input()"), ["StdinNotImplementedError"])
        check_equal(s.value("__import__('os').getcwd() == __import__('os').environ['HOME']"), ["True"])


def test_environment():
    "variables of one call are set for it alone, and no value of theirs is read as code"
    odd = "a'b\"c\\d$(id)`id`\n\u20ac"
    read = "import os; [os.environ.get('A'), os.environ.get('FROM_START')]"
    with service() as s:
        check_equal(s.value(read, env_vars={"A": odd, "FROM_START": "call"}), [repr([odd, "call"])])
        check_equal(s.value(read), ["[None, 'start']"])
        check_equal(s.value(read, env_vars=None, context_id=None), ["[None, 'start']"])
        check_equal(s.ask("POST", "/execute", {"code": "1", "env_vars": {"A B": "1"}})[0], 400)


def test_contexts():
    "contexts have variables and directories of their own, run beside each other, restart and are deleted"
    with service() as s, tempfile.TemporaryDirectory() as place:
        status, text = s.ask("POST", "/contexts", {"language": "python", "cwd": place})
        one = json.loads(text)
        check_equal((status, one["language"], one["cwd"]), (200, "python", place))
        check_equal(s.value("import os; os.getcwd()", context_id=one["id"]), [place])
        s.lines("x = 'default'")
        s.lines("x = 'one'", context_id=one["id"])
        check_equal(s.value("x") + s.value("x", context_id=one["id"]), ["default", "one"])
        check_equal(sorted(c["cwd"] == place for c in json.loads(s.ask("GET", "/contexts")[1])), [False, True])
        check_equal(s.ask("POST", f"/contexts/{one['id']}/restart"), (200, "null"))
        check_equal(s.error("x", context_id=one["id"]), ["NameError"])
        check_equal(s.value("import os; os.getcwd()", context_id=one["id"]), [place])
        check_equal(s.ask("DELETE", f"/contexts/{one['id']}"), (200, "null"))
        for method, path in (("DELETE", ""), ("POST", "/restart")):
            check_equal(s.ask(method, f"/contexts/{one['id']}{path}")[0], 404)
        check_equal(s.ask("POST", "/execute", {"code": "1", "context_id": one["id"]})[0], 404)
        check_equal(s.value("x"), ["default"])


def test_bad_requests():
    "a wrong request gets a status and a text that says what would be right"
    with service() as s:
        for body, status, word in ((b"{", 400, ""), (b"[]", 400, "object"), ({}, 400, "code is missing"), ({"code": 1}, 400, "string"),
                                   ({"code": "1", "language": "cobol"}, 400, "python"), ({"code": "1", "timeout": -1}, 400, "seconds"),
                                   ({"code": "1", "language": "python", "context_id": "x"}, 400, "Only one"),
                                   ({"code": "1", "language": "java"}, 500, "language java is not installed")):
            got = s.ask("POST", "/execute", body)
            check_equal(got[0], status)
            check_in(word, got[1])
        with socket.create_connection(("127.0.0.1", s.port)) as c:
            c.sendall(b"POST /execute HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n")
            check_in(b" 413 ", c.recv(100))
        check_equal(s.ask("POST", "/contexts", {"cwd": "/no/such/place"})[0], 400)
        check_equal((s.ask("GET", "/no")[0], s.ask("PUT", "/execute")[0]), (404, 405))
        check_equal(s.value("1 + 1"), ["2"])


def test_output():
    "gigabytes, a million small prints, a huge image, bytes that are not text: all arrive, or end in a typed error; variables stay"
    with service() as s:
        s.lines("x = 1")
        [e] = s.of("error", "while True: print('x' * 1000000)")
        check_equal(e["name"], "OutputLimitExceeded")
        check_in("64 MiB", e["value"])
        check_equal(s.error("from IPython.display import display; display({'image/png': 'A' * (200 << 20)}, raw=True)"),
                    ["OutputLimitExceeded"])
        check_equal(s.value("x"), ["1"])
        count = 1000000 if SOAK else 200000
        check_equal(len(s.printed(f"for i in range({count}): print(i)").splitlines()), count)
        check_equal(s.printed("import os; _ = os.system(r\"printf 'a\\377b'\")"), "a\ufffdb")
        [r] = s.value("'a\\udc80b\\ud83d'")
        check(r.isprintable(), repr(r))
        check_equal(s.printed("print('a\\0b')"), "a\0b\n")
        check_in("thread", s.printed("import threading; t = threading.Thread(target=print, args=['thread']); t.start(); t.join()"))
        check_equal(s.value("x"), ["1"])


def test_misbehaviour():
    "a cell that does not end, or ends its kernel, has a typed error that says whether variables are lost; the next one works"
    with service() as s:
        s.lines("x = 1")
        began = time.monotonic()
        [e] = s.of("error", "while True: pass", timeout=1)
        check_equal((e["name"], "lost" in e["value"]), ("ExecutionTimeout", False))
        check(time.monotonic() - began < 6, "the cell was not interrupted")
        check_equal(s.value("x"), ["1"])
        for end in ("__import__('os')._exit(3)", "import ctypes; ctypes.string_at(0)", "raise SystemExit"):
            [e] = s.of("error", end)
            if end != "raise SystemExit":
                check_equal((e["name"], "lost" in e["value"]), ("ContextRestarting", True))
                check_equal(s.error("x"), ["NameError"])
        stubborn = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
        [e] = s.of("error", stubborn, timeout=1)
        check_equal((e["name"], "lost" in e["value"]), ("ExecutionTimeout", True))
        check_equal(s.value("1 + 1"), ["2"])
        bomb = "import resource as r; r.setrlimit(r.RLIMIT_AS, (2 << 30, 2 << 30)); a = bytearray(4 << 30)"
        check_equal(s.error(bomb), ["MemoryError"])
        check_equal(s.value("1 + 1"), ["2"])


def test_idle_kernel_killed():
    "a kernel that ends while no cell runs: the next cell is told that variables are lost"
    with service() as s:
        s.lines("x = 1")
        [pid] = children(s.process.pid)
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.5)
        found = s.lines("x")
        check_in("ended with signal KILL; its variables are lost", found[0]["text"])
        check_equal((found[0]["type"], found[-1]["name"]), ("stderr", "NameError"))
        check_equal([x["type"] for x in s.lines("1")], ["number_of_executions", "result"])


def test_parallel():
    "cells of two contexts run at the same time, those of one after each other, and output arrives while a cell runs"
    with service() as s:
        other = json.loads(s.ask("POST", "/contexts", {})[1])["id"]
        wait = "import os, time\nopen('{0}', 'w')\nwhile not os.path.exists('{1}'): time.sleep(0.01)\n'met'"
        with concurrent.futures.ThreadPoolExecutor() as pool:
            met = [pool.submit(s.value, wait.format("a", "b")), pool.submit(s.value, wait.format("b", "a"), context_id=other)]
            check_equal([m.result(30) for m in met], [["met"], ["met"]])
            done = [pool.submit(s.value, f"time.sleep(0.2); n = globals().get('n', 0) + 1; n") for _ in range(4)]
            check_equal(sorted(d.result(30)[0] for d in done), ["1", "2", "3", "4"])
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        c.request("POST", "/execute", json.dumps({"code": "print('early', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)"}))
        r = c.getresponse()
        check_equal([json.loads(r.readline())["type"] for _ in range(2)], ["number_of_executions", "stdout"])
        s.lines("open('go', 'w')", context_id=other)
        check_equal(json.loads(r.read().splitlines()[-1])["type"], "end_of_execution")
        c.close()


def test_client_gone():
    "a client that goes interrupts its cell, and variables stay"
    with service() as s:
        s.lines("x = 7")
        body = json.dumps({"code": "import time\ntime.sleep(1000)"}).encode()
        with socket.create_connection(("127.0.0.1", s.port)) as c:
            c.sendall(b"POST /execute HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            c.recv(100)
            time.sleep(1)
        began = time.monotonic()
        check_equal(s.value("x"), ["7"])
        check(time.monotonic() - began < 10, "the cell went on without its client")


def test_kernel_killed():
    "a kernel that is killed in mid-cell ends the cell, is started again, and nothing of it stays"
    with service() as s:
        [pid] = children(s.process.pid)
        p = subprocess.Popen(["sh", "-c", f"sleep 2; kill -KILL {pid}"])
        check_equal(s.error("import time; time.sleep(1000)"), ["ContextRestarting"])
        p.wait()
        check_equal(s.value("1 + 1"), ["2"])
        check_equal(len(children(s.process.pid)), 1)


def test_service_killed():
    "kernels end with the service, whatever ends it; the next one removes what it left and knows nothing of its contexts"
    with service() as s:
        [one] = json.loads(s.ask("GET", "/contexts")[1])
        [pid] = children(s.process.pid)
        s.process.kill()
        s.process.wait()
        check(has_ended(pid), "the kernel outlived the service")
        left = Path(s.home, f"hutch-code-{s.port}")
        before = {x.name for x in left.iterdir()}
        (left / "old").touch()
        s.start()
        s.await_health()
        check(before and not (left / "old").exists(), "files of the killed service stay")
        status, text = s.ask("POST", "/execute", {"code": "1", "context_id": one["id"]})
        check_equal(status, 404)
        check_in("lost when the service was restarted", text)
        check_equal(s.value("1 + 1"), ["2"])


def test_unhealthy():
    "a service whose first kernel does not start is not healthy and says why; so does the cell"
    with tempfile.TemporaryDirectory() as kernels:
        with service(kernels, ready=False) as s:
            status, text = s.unhealthy()
            check_equal(status, 503)
            check_in("language python is not installed", text)
        Path(kernels, "python3").mkdir()
        Path(kernels, "python3", "kernel.json").write_text(json.dumps({"argv": ["sh", "-c", "echo no disk >&2; exit 4"]}))
        with service(kernels, ready=False) as s:
            while "is starting" in (text := s.unhealthy()[1]):
                time.sleep(0.1)
            check_in("ended with code 4: no disk", text)
            check_equal(s.error("1"), ["KernelStartFailed"])


def test_bash():
    "bash: state, exit codes as errors, variables of a call, time-outs"
    with service(warm="bash") as s:
        s.lines("x=5", language="bash")
        check_equal(s.printed("echo $x", language="bash"), "5\n")
        [e] = s.of("error", "false", language="bash")
        check_equal((e["name"], e["value"]), ("ExitCode", "1"))
        check_equal(s.printed("echo \"$A\"", language="bash", env_vars={"A": "a'b$(id)"}), "a'b$(id)\n")
        check_equal(s.printed("echo \"<$A>\"", language="bash"), "<>\n")
        check_equal(s.error("while :; do sleep 0.1; done", language="bash", timeout=1), ["ExecutionTimeout"])
        check_equal(s.printed("echo $x", language="bash"), "5\n")


# Attempts of a cell to get around its rights. What its service can do, it may not.
ATTEMPTS = r"""
import ctypes, os, signal, socket, struct, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
done = []
def tell(name, f):
    try:
        f()
        done.append(name)
    except OSError:
        pass
def call(n, *a):
    if libc.syscall(n, *[ctypes.c_long(x) if isinstance(x, int) else x for x in a]) < 0: raise OSError(ctypes.get_errno(), "")
parent, home, port, other = os.getppid(), %r, %d, %r
def connect(family, to, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as s: s.connect(to)
def dgram():
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b"x", other)
def raw():
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s: s.sendmsg([b"x"], [], 0, other)
def thread():
    r = []
    t = threading.Thread(target=lambda: tell("thread", lambda: connect(socket.AF_INET, ("127.0.0.1", port))))
    t.start(); t.join()
def child():
    if subprocess.run([sys.executable, "-c", "import socket; socket.create_connection(('127.0.0.1', %%d), 5)" %% port], capture_output=True).returncode:
        raise OSError
tell("tcp", lambda: connect(socket.AF_INET, ("127.0.0.1", port)))
tell("udp", lambda: connect(socket.AF_INET, ("127.0.0.1", port), socket.SOCK_DGRAM))
tell("tcp-listen", lambda: socket.create_server(("127.0.0.1", 0)).close())
tell("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close())
tell("kernel-socket", lambda: connect(socket.AF_UNIX, other))
tell("unix-dgram", dgram)
tell("unix-send", raw)
thread()
tell("child", child)
tell("io-uring", lambda: call(425, 1, ctypes.create_string_buffer(256)))
tell("proc-mem", lambda: os.close(os.open("/proc/%%d/mem" %% parent, os.O_RDWR)))
tell("proc-fd", lambda: os.readlink("/proc/%%d/fd/0" %% parent))
tell("proc-root", lambda: os.stat("/proc/%%d/root/etc" %% parent))
tell("pidfd-getfd", lambda: call(438, os.pidfd_open(parent), 0, 0))
tell("prlimit", lambda: call(302, parent, 4, struct.pack("QQ", 0, 0), None))
tell("signal", lambda: os.kill(parent, signal.SIGCONT))
tell("create", lambda: open(home + "/made", "w").close())
tell("append", lambda: open(home + "/file", "a").close())
tell("truncate", lambda: os.truncate(home + "/file", 0))
tell("rename", lambda: os.rename(home + "/file", home + "/file"))
tell("unlink", lambda: os.unlink(home + "/absent") if os.path.exists(home + "/absent") else os.mkdir(home + "/dir-%%d" %% os.getpid()))
tell("link", lambda: os.link(home + "/file", home + "/link-%%d" %% os.getpid()))
tell("symlink", lambda: os.symlink("x", home + "/symlink-%%d" %% os.getpid()))
tell("chmod", lambda: os.chmod(home + "/file", 0o600))
tell("utime", lambda: os.utime(home + "/file"))
tell("shm", lambda: os.close(os.open("/dev/shm/cell-%%d" %% os.getpid(), os.O_CREAT | os.O_RDWR)))
print(" ".join(done))
"""
NETWORK = {"tcp", "udp", "tcp-listen", "netlink", "thread", "child"}
WRITE = {"create", "append", "truncate", "rename", "unlink", "link", "symlink", "chmod", "utime", "shm"}
APART = {"kernel-socket", "proc-mem", "proc-fd", "proc-root", "pidfd-getfd", "prlimit", "signal"}


def attempts(s, other, **rights):
    [made] = s.printed(ATTEMPTS % (s.home, s.port, other), **({"rights": rights} if rights else {})).splitlines() or [""]
    for path in Path("/dev/shm").glob("cell-*"):
        path.unlink()
    return set(made.split())


def test_rights():
    "a cell with rights cannot get around them: by its service, other kernels, threads, children, /proc, sockets, files"
    with service() as s:
        Path(s.home, "file").write_text("whole")
        other = str(next(Path(s.home, f"hutch-code-{s.port}").glob("*-1")))  # the shell socket of the kernel with all rights
        free = attempts(s, other)
        check_equal((NETWORK | WRITE | APART) - free, set())
        Path(s.home, "file").write_text("whole")
        check_equal(attempts(s, other, network="off", write="none"), set())
        check_equal(attempts(s, other, network="off"), free & WRITE)
        check_equal(attempts(s, other, write="none"), free & NETWORK)
        os.mkdir(s.home + "/out")
        given = {"rights": {"write": [s.home + "/out"], "network": "off"}}
        check_equal(s.error("open('file', 'w')", **given), ["PermissionError"])
        check_equal(s.value("open('out/x', 'w').write('1')", **given), ["1"])
        check_equal(s.value("open('out/x').read()", **given), ["1"])


def test_rights_of_contexts():
    "cells of the same rights share variables, others do not; a context keeps its rights; restarts do too; nothing stays behind"
    with service() as s:
        off, ro = {"network": "off"}, {"write": "none"}
        s.lines("x = 1")
        s.lines("x = 2", rights=off)
        s.lines("x = 3", rights=ro)
        check_equal([s.value("x"), s.value("x", rights=off), s.value("x", rights={**ro, "network": None})], [["1"], ["2"], ["3"]])
        check_equal(s.value("x", env_vars={"HUTCH_RIGHTS": json.dumps(off)}), ["2"])
        check_equal(s.value("'HUTCH_RIGHTS' in __import__('os').environ", env_vars={"HUTCH_RIGHTS": json.dumps(off)}), ["False"])
        status, text = s.ask("POST", "/rights/contexts", {"rights": {"write": ["~/b", "/tmp"], "network": "off"}})
        check_equal(status, 400)
        check_in("make it first", text)
        status, text = s.ask("POST", "/rights/contexts", {"rights": {"write": ["/tmp", "~"], "network": "off"}})
        made = json.loads(text)
        check_equal((status, made["rights"]), (200, {"network": "off", "write": ["/tmp", s.home]}))
        check_equal(s.error("__import__('socket').socket()", context_id=made["id"]), ["PermissionError"])
        same = {"write": ["~", "/tmp"], "network": "off", "timeoutSeconds": 9}
        check_equal(s.value("1", context_id=made["id"], rights=same), ["1"])
        for wrong in (off, {**off, **ro}):
            status, text = s.ask("POST", "/rights/execute", {"code": "1", "context_id": made["id"], "rights": wrong})
            check_equal(status, 409)
            check_in("for its whole life", text)
        check_equal(s.ask("POST", f"/contexts/{made['id']}/restart")[0], 200)
        check_equal(s.error("__import__('socket').socket()", context_id=made["id"]), ["PermissionError"])
        check_equal(s.error("__import__('os')._exit(3)", context_id=made["id"]), ["ContextRestarting"])
        check_equal(s.error("__import__('socket').socket()", context_id=made["id"]), ["PermissionError"])
        check_equal(s.error("while True: pass", rights={**off, "timeoutSeconds": 1}), ["ExecutionTimeout"])
        check_equal(s.error("print('x' * 5000)", rights={**off, "outputBytes": 4000}), ["OutputLimitExceeded"])
        check_equal(s.value("x", rights=off), ["2"])
        s.lines("import os, tempfile; os.makedirs(tempfile.gettempdir() + '/deep/deep')", rights=ro)
        before = {x.name for x in Path(s.home, f"hutch-code-{s.port}").iterdir() if x.is_dir()}
        check_equal(s.ask("DELETE", f"/contexts/{made['id']}")[0], 200)
        for c in json.loads(s.ask("GET", "/contexts")[1]):
            if c.get("rights"):
                check_equal(s.ask("DELETE", f"/contexts/{c['id']}")[0], 200)
        for _ in range(100):
            if not [x for x in Path(s.home, f"hutch-code-{s.port}").iterdir() if x.is_dir()]:
                break
            time.sleep(0.05)
        else:
            raise AssertionError(f"directories of kernels stayed: {before}")


def test_wrong_rights():
    "rights that are not understood, or that a cell cannot have, run nothing and say what is right"
    with service() as s:
        for rights, says in (([], "an object"), ({"network": "of"}, '"off"'), ({"net": "off"}, "no member 'net'"), ({"write": "some"}, '"none"'),
                             ({"write": [1]}, "paths"), ({"write": ["a\0b"]}, "NUL"), ({"write": ["/x"] * 33}, "32"), ({"write": ["/absent"]}, "make it first"),
                             ({"memoryMB": 64}, "only a command"), ({"user": "own"}, "only a command"), ({"timeoutSeconds": 0}, "from 1"),
                             ({"outputBytes": "1"}, "whole number"), ({"network": "off", "write": 5}, "paths")):
            status, text = s.ask("POST", "/rights/execute", {"code": "open('ran', 'w')", "rights": rights})
            check_equal((rights, status), (rights, 400))
            check_in(says, text)
        for env in ("{", "x" * 70000, '{"network": "off", "network": "on"}'):
            status, text = s.ask("POST", "/execute", {"code": "open('ran', 'w')", "env_vars": {"HUTCH_RIGHTS": env}})
            check_equal(status, 400)
        twice = {"code": "open('ran', 'w')", "env_vars": {"HUTCH_RIGHTS": '{"network": "off"}'}, "rights": {"network": "off"}}
        check_equal(s.ask("POST", "/execute", twice)[0], 400)
        check_equal(s.ask("POST", "/rights/contexts", {"rights": {"outputBytes": 1}})[0], 400)
        status, text = s.ask("POST", "/rights/execute", {"code": "1", "language": "java", "rights": {"network": "off"}})
        check(status in (400, 500), text)
        check(not Path(s.home, "ran").exists(), "it ran")


def test_rights_of_bash():
    "the rights of a cell hold in bash"
    with service(warm="none", ready=False) as s:
        s.await_health()
        given = {"language": "bash", "rights": {"network": "off"}}
        check_in("denied", s.printed(f"x=1; (exec 3<>/dev/tcp/127.0.0.1/{s.port}) 2>&1", **given).lower())
        check_equal(s.printed("echo $x", **given), "1\n")
        status, text = s.ask("POST", "/rights/execute", {"code": "1", "language": "bash", "rights": {"write": "none"}})
        check_equal(status, 400)
        check_in("terminal", text)
