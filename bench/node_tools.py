"""What the parts of bench/node share: the load client, a node, processor time and memory, nginx."""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/lib"))
import measure  # noqa: E402
from daemon import Daemon, free_port  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")


def say(text):
    print(text, flush=True)


class Load:
    """Builds node-load.c once and runs it."""

    def __init__(self, folder):
        self.program = folder / "node-load"
        subprocess.run(["gcc", "-std=gnu17", "-D_GNU_SOURCE", "-O2", "-static", "-pthread", "-o", self.program,
                        TOP / "bench/node-load.c"], check=True)

    def command(self, node, mode, *command, runs=1, parallel=1, boxes=(), prefix=()):
        to = ["-p", str(node.port), "-k", node.key] if node else []
        return [*prefix, str(self.program), *to, "-n", str(runs), "-j", str(parallel),
                *(word for box in boxes for word in ("-b", box)), mode, *map(str, command)]

    def run(self, node, mode, *command, lines=None, **how):
        """Rows of the words behind "run" or "box", wall time in ms, failures, the first failure's text."""
        done = subprocess.run(self.command(node, mode, *command, **how), text=True, capture_output=True, check=False,
                              input=lines)
        words = [line.split() for line in done.stdout.splitlines()]
        last = [row for row in words if row[0] == "all"]
        if not last:
            raise RuntimeError(f"node-load {mode}: {done.stderr.strip()}")
        rows = [row[1:] for row in words if row[0] in ("run", "box")]
        return rows, int(last[0][1]) / 1e6, int(last[0][2]), done.stderr.strip()


def cpu_ms(pids):
    """Processor time that these processes have used; that of children they have waited for is not in it."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            words = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(words[11]) + int(words[12])
    return total * 1000 / TICK


def node_pids(node):
    return {"front": node.children("front"), "keeper": node.children("keeper")}


def meminfo():
    """KiB. What can be given back at once counts as available."""
    text = pathlib.Path("/proc/meminfo").read_text()
    return {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}


def used_kib():
    """Memory that is not available, and what it is made of."""
    now = meminfo()
    return {"all": now["MemTotal"] - now["MemAvailable"], "slab": now["SUnreclaim"], "percpu": now.get("Percpu", 0),
            "stacks": now["KernelStack"], "tables": now["PageTables"], "anonymous": now["AnonPages"], "shared": now["Shmem"]}


def calm(seconds=0.5):
    """Deferred freeing in the kernel would be counted as somebody's memory."""
    os.sync()
    time.sleep(seconds)


def summary(values):
    found = measure.summary(values)
    if values:
        found["p25"] = measure.percentile(values, 25)
    return found


def ratio_of_rounds(ours, theirs):
    """Median over rounds of the quotient within a round."""
    found = [a / b for a, b in zip(ours, theirs) if a and b]
    return statistics.median(found) if found else None


@contextlib.contextmanager
def node(hutch, config="", log_level="info"):
    with Daemon(hutch=hutch, config=f"log:\n  level: {log_level}\n{config}") as daemon:
        yield daemon


# --- nginx --------------------------------------------------------------------------------------------------------------

NGINX = """worker_processes 1;
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
    access_log {log};
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size 0;
    keepalive_requests 1000000000;
    sendfile on;
    tcp_nodelay on;
    {rest}
}}
"""
SERVICE = 'server {{ listen 127.0.0.1:{port}; location / {{ return 200 "hello from inside\\n"; }} }}'
PROXY = """upstream service {{ server 127.0.0.1:{upstream}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{port};
        location /files/ {{ root {folder}; dav_methods PUT; create_full_put_path on; }}
        location / {{ proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}"""


def service_config(folder, port):
    """The service that is reached through the proxies, inside a sandbox and outside."""
    return NGINX.format(folder=folder, log="off", rest=SERVICE.format(port=port))


class Nginx:
    """with Nginx(folder, text) as n: ...; `text` is the whole configuration, it listens on `port`."""

    def __init__(self, folder, text, port):
        self.port = port
        self.config = folder / "nginx.conf"
        self.config.write_text("user root;\n" * (os.geteuid() == 0) + text)

    def __enter__(self):
        self.proc = subprocess.Popen([nginx_program(), "-c", self.config], stderr=subprocess.DEVNULL)
        stop = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return self
            if time.monotonic() > stop or self.proc.poll() is not None:
                self.__exit__()
                raise RuntimeError("nginx did not start")
            time.sleep(0.05)

    def pids(self):
        found = subprocess.run(["pgrep", "-P", str(self.proc.pid)], text=True, capture_output=True, check=False).stdout
        return list(map(int, found.split()))

    def __exit__(self, *_):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
        self.proc.wait()


def nginx_program():
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")
