"""A daemon of its own for a test: `hutch serve` with fresh directories and a free port, gone without a trace afterwards."""
import collections
import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from hutch_test import Left

TOP = pathlib.Path(__file__).resolve().parent.parent.parent


GIVEN = collections.deque(maxlen=200)


def free_port():
    """A port of the loopback that nobody has. It is none of those that the kernel gives to whoever connects (from 32768 on): a daemon that
    was killed finds its port free again, whatever runs beside. Lanes of tests/run have ranges of their own."""
    first = 10000 + 4000 * (int(os.environ.get("HUTCH_TEST_LANE", "0")) % 5)
    while True:
        port = random.randrange(first, first + 4000)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in GIVEN:
            GIVEN.append(port)
            return port


def lives(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


@contextlib.contextmanager
def sanitized():
    """The program of a daemon whose hutch-node (front, egress) is the sanitizer build, and what its environment needs. What runs inside
    sandboxes is of the release: a sanitizer cannot follow a clone. Leaks are not looked for: that needs ptrace, which front gives up."""
    node = os.environ.get("HUTCH_ASAN_NODE_BIN") or str(TOP / "build-asan/hutch-node")
    if not os.path.exists(node):
        raise RuntimeError(f"{node} is missing; run: tools/build asan-ubsan")
    with tempfile.TemporaryDirectory(prefix="hutch-asan-") as folder:
        os.chmod(folder, 0o755)
        shutil.copy(os.environ.get("HUTCH_BIN") or TOP / "build/hutch", f"{folder}/hutch")
        shutil.copy(os.environ.get("HUTCH_CLIENT_BIN") or TOP / "build/hutch-client", f"{folder}/hutch-client")
        shutil.copy(node, f"{folder}/hutch-node")
        yield f"{folder}/hutch", {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"}


class Daemon:
    """with Daemon() as d: ... d.url, d.key, d.env() ... Sandboxes still alive at the end are killed by `hutch stop --all`."""

    def __init__(self, hutch=None, tls=False, templates=None, base=False, config="", args=(), log=None, preexec=None, home=None, environ=None):
        self.hutch = str(hutch or os.environ.get("HUTCH_BIN") or TOP / "build/hutch")
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="hutch-serve-", dir=home))
        self.state, self.run = self.dir / "state", self.dir / "run"
        self.port, self.tls_port = free_port(), free_port() if tls else None
        self.domain = f"hutch.localhost:{self.tls_port}" if tls else f"hutch.localhost:{self.port}"
        self.url = f"http://127.0.0.1:{self.port}"
        self.tls, self.args, self.preexec, self.environ = tls, list(args), preexec, environ or {}
        self.log_path = pathlib.Path(log) if log else self.dir / "log"
        self.proc, self.key = None, None
        self.config = self.dir / "config.yaml"
        if not re.search(r"^ *(files|driver):", config, re.M):
            config = "files: tmpfs\n" + config  # fast, and nothing to mount; the pool has tests of its own (test_pool.py)
        config += f"\ntemplates:\n  base: {(base if isinstance(base, str) else 'auto') if base else 'off'}\n" + (f"  dir: {templates}\n" if templates else "")
        self.config.write_text(config + "\n")

    def start(self, seconds=120):
        command = [self.hutch, "serve", "--config", str(self.config), "--state", str(self.state), "--run", str(self.run),
                   "--listen", f"127.0.0.1:{self.port}", "--domain", self.domain, *self.args]
        if self.tls:
            command += ["--tls-dev", "--listen-tls", f"127.0.0.1:{self.tls_port}"]
        with open(self.log_path, "ab") as log:
            self.proc = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=self.become)
        stop = time.monotonic() + seconds
        while True:
            if self.proc.poll() is not None:
                raise RuntimeError(f"hutch serve ended with {self.proc.returncode}:\n{self.log()}")
            if self.alive():
                break
            if time.monotonic() > stop:
                raise RuntimeError(f"hutch serve did not get ready:\n{self.log()}")
            time.sleep(0.05)
        self.key = (self.state / "admin.key").read_text().strip()
        return self

    def become(self):
        os.environ.update(self.environ)
        if self.preexec:
            self.preexec()

    def alive(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=10) as r:
                return r.status == 204
        except (OSError, urllib.error.URLError):
            return False

    def log(self):
        return self.log_path.read_text(errors="replace")[-4000:] if self.log_path.exists() else ""

    def env(self, tls=None):
        """What `hutch env` prints, as a dictionary."""
        how = ["--https"] if (self.tls if tls is None else tls) else ["--http"]
        text = self.cli("env", *how, env={"XDG_CACHE_HOME": str(self.dir)}).stdout  # nothing is left in the home
        return dict(re.findall(r"^export ([A-Z0-9_]+)='?([^'\n]*)'?$", text, re.M))

    def cli(self, *args, check=True, **kw):
        env = {**os.environ, "HUTCH_URL": self.url, "HUTCH_STATE": str(self.state), **kw.pop("env", {})}
        if self.key:
            env["HUTCH_API_KEY"] = self.key
        return subprocess.run([self.hutch, *args], env=env, text=True, capture_output=True, check=check, **{"timeout": 300, **kw})

    def children(self, name):
        """Pids of the daemon's processes: "front" or "keeper"."""
        found = []
        for pid in subprocess.run(["pgrep", "-P", str(self.proc.pid)], text=True, capture_output=True).stdout.split():
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:  # it has just ended
                continue
            if name.encode() in words[:2] or name.encode() in words[1:2]:
                found.append(int(pid))
        return found

    def kill9(self, name):
        """Comes back when they are dead: nobody is answered by one that was killed."""
        pids = self.children(name)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        stop = time.monotonic() + 60
        while any(map(lives, pids)) and time.monotonic() < stop:
            time.sleep(0.002)

    def stop(self, sandboxes=True, seconds=120):
        if sandboxes and self.key and self.proc.poll() is not None:
            self.start()  # it died or was killed; its sandboxes live on, and nobody else would end them
        if self.proc and self.proc.poll() is None:
            ended = self.cli("stop", "--all", check=False) if sandboxes else None
            self.proc.send_signal(signal.SIGTERM)
            try:
                self.proc.wait(seconds)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
                raise RuntimeError(f"hutch serve did not stop:\n{self.log()}") from None
            if sandboxes and self.left():
                raise Left(f"sandboxes live on: {self.left()}; `hutch stop --all` said {ended}\n{self.log()}")

    def left(self):
        """Processes in cgroups of this daemon's sandboxes. A cgroup's name has the pid of the keeper that made it, and the log has those."""
        log = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        keepers = set(re.findall(r'"child":"keeper","pid":(\d+)', log))
        found = set()
        for path, _, _ in os.walk("/sys/fs/cgroup"):
            leaf = re.fullmatch(r"hutch-[0-9a-f]+-(\d+)-\d+-[0-9a-f]+", os.path.basename(path))
            if leaf and leaf[1] in keepers:
                with contextlib.suppress(OSError):
                    found |= set(pathlib.Path(path, "cgroup.procs").read_text().split())
        return sorted(found)

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, _kind=None, error=None, _trace=None):
        if error is not None:
            error.add_note(f"what its node said last:\n{self.log()}")
        try:
            self.stop()
        finally:
            shutil.rmtree(self.dir, ignore_errors=True)
