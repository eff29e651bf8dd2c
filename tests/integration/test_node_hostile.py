"""Hostile code in a sandbox of a node: what it can do to its first process, to the node, to the host and to its neighbours."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time

from daemon import Daemon
from hutch_test import PROBE, check, check_equal, check_in, eventually, is_root, skip
from node_client import ask, call, create, get, memory, open_stream, put, py, run, sh, start

SMALL = "sandboxes:\n  privilege: {}\n  memory: 256MiB\n  disk: 64MiB\n  inodes: 3000\n  pids: 64\n  open_files: 256\n"

# Attempts as root of a `computer` (or the user of a strict sandbox); each prints "name errno" or "name ok".
ATTACK = r"""
import ctypes, errno, os, signal, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(n, *a):
    r = libc.syscall(n, *a)
    if r < 0: raise OSError(ctypes.get_errno(), "")
def tell(name, f):
    try: f(); r = "ok"
    except OSError as e: r = errno.errorcode.get(e.errno, str(e.errno))
    print(name, r, flush=True)
buf = ctypes.create_string_buffer(4096)
class iov(ctypes.Structure): _fields_ = [("b", ctypes.c_void_p), ("n", ctypes.c_size_t)]
here, there = iov(ctypes.cast(buf, ctypes.c_void_p), 64), iov(0x400000, 64)
zero = ctypes.create_string_buffer(struct.pack("QQ", 0, 0))
tell("ptrace-attach", lambda: call(101, 16, 1, 0, 0))
tell("ptrace-seize", lambda: call(101, 0x4206, 1, 0, 0))
tell("vm-read", lambda: call(310, 1, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
tell("vm-write", lambda: call(311, 1, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
pidfd = libc.syscall(434, 1, 0)
for i in range(3, 9): tell("getfd-%d" % i, lambda: call(438, pidfd, i, 0))
tell("prlimit", lambda: call(302, 1, 7, zero, None))
tell("affinity", lambda: call(203, 1, 8, ctypes.byref(ctypes.c_ulong(1))))
tell("scheduler", lambda: call(144, 1, 3, ctypes.byref(ctypes.c_int(0))))
for f in ("mem", "environ", "maps", "auxv", "stack", "syscall", "io", "pagemap", "smaps", "task/1/mem"):
    tell("read-" + f, lambda: open("/proc/1/" + f, "rb").read(1))
for f in ("fd", "ns", "map_files", "fdinfo"): tell("list-" + f, lambda: os.listdir("/proc/1/" + f))
for f in ("root", "cwd", "exe"): tell("link-" + f, lambda: os.readlink("/proc/1/" + f))
for f in ("mem", "comm", "oom_score_adj", "clear_refs", "uid_map", "setgroups", "coredump_filter", "timerslack_ns"):
    tell("write-" + f, lambda: os.write(os.open("/proc/1/" + f, os.O_WRONLY), b"0"))
tell("mount", lambda: call(165, b"none", b"/mnt", b"tmpfs", 0, None))
tell("remount", lambda: call(165, None, b"/", None, 0x1020, None))
tell("umount", lambda: call(166, b"/proc", 2))
tell("umount-sys", lambda: call(166, b"/sys", 2))
for name, flag in (("user", 0x10000000), ("mnt", 0x20000), ("pid", 0x20000000), ("net", 0x40000000), ("ipc", 0x8000000), ("uts", 0x4000000), ("cgroup", 0x2000000), ("time", 0x80)):
    tell("unshare-" + name, lambda: call(272, flag))
tell("clone-user", lambda: call(56, 0x10000011, 0, 0, 0, 0))
tell("setns", lambda: call(308, os.open("/proc/self/ns/uts", os.O_RDONLY), 0))
for name, n in (("open_tree", 428), ("move_mount", 429), ("fsopen", 430), ("fsmount", 432), ("mount_setattr", 442), ("bpf", 321), ("perf", 298), ("userfaultfd", 323),
                ("io_uring", 425), ("keyctl", 250), ("add_key", 248), ("request_key", 249), ("handle", 304), ("kexec", 246), ("module", 175), ("reboot", 169), ("swapon", 167),
                ("acct", 163), ("iopl", 172), ("fanotify", 300), ("pivot_root", 155)):
    tell(name, lambda: call(n, 0, 0, 0, 0, 0))
tell("syslog", lambda: call(103, 3, buf, 100))
tell("sethostname", lambda: call(170, b"evil", 4))
tell("clock", lambda: call(227, 0, ctypes.byref(buf)))
tell("mknod-mem", lambda: os.mknod("/tmp/mem", 0o20666, os.makedev(1, 1)))
tell("mknod-disk", lambda: os.mknod("/tmp/disk", 0o60666, os.makedev(254, 0)))
tell("mknod-whiteout", lambda: os.mknod("/tmp/wh", 0o20666, 0))
open("/tmp/f", "w").close()
tell("setcap", lambda: os.setxattr("/tmp/f", "security.capability", bytes.fromhex("0100000200200000000000000000000000000000")))
tell("trusted", lambda: os.setxattr("/tmp/f", "trusted.overlay.opaque", b"y"))
for name, a in (("vsock", (40, 1, 0)), ("netlink-audit", (16, 3, 9)), ("netlink-nf", (16, 3, 12)), ("netlink-kobj", (16, 3, 15)), ("packet", (17, 3, 3)), ("raw", (2, 3, 1)), ("alg", (38, 5, 0)),
                ("key", (15, 3, 2)), ("xdp", (44, 3, 0))):
    tell("socket-" + name, lambda: socket.socket(*a))
for p in ("/dev/null", "/dev/zero", "/dev", "/proc", "/sys"): tell("chmod-" + p, lambda: os.chmod(p, 0o777))
for p in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger", "/proc/sys/kernel/ns_last_pid", "/proc/self/oom_score_adj"):
    tell("write-" + p, lambda: os.write(os.open(p, os.O_WRONLY), b"0"))
for p in ("/proc/kmsg", "/proc/kcore", "/proc/timer_list", "/proc/slabinfo", "/proc/vmallocinfo", "/dev/mem", "/dev/kmsg", "/dev/fuse", "/dev/vsock", "/dev/net/tun", "/dev/vda", "/dev/kvm"):
    tell("read-" + p, lambda: open(p, "rb").read(1))
for p in ("/proc/kallsyms", "/proc/cmdline", "/proc/keys", "/proc/interrupts", "/proc/iomem"):  # covered: nothing is in them
    tell("bytes-" + p, lambda: (_ for _ in ()).throw(OSError(errno.ENODATA, "")) if not open(p, "rb").read(1) else None)
"""


def privilege(name, **more):
    return Daemon(config=f"sandboxes:\n  privilege: {name}\n", **more)


def base_templates():
    """A directory with the template `base`, if somebody has built one (HUTCH_TEST_TEMPLATES), else None."""
    where = os.environ.get("HUTCH_TEST_TEMPLATES")
    return where if where and pathlib.Path(where, "base/root").is_dir() else None


def columns():
    """(privilege, template, user, templates directory) to attack from."""
    yield "strict", "host", "user", None
    if is_root():
        yield "strict", "host", "root", None  # init's own uid, but nothing else of it
        yield "computer", "host", "root", None
        if base_templates():
            yield "computer", "base", "root", base_templates()


def test_attempts():
    "none of more than a hundred attempts on pid 1, namespaces, mounts, devices, sockets and the kernel gets through, also as root inside"
    for how, template, user, templates in columns():
        with privilege(how, templates=templates) as d:
            b = create(d, templateID=template)
            r = py(d, b, ATTACK, user=user)
            seen = dict(line.split(" ") for line in r.text.splitlines())
            check(r.code == 0 and len(seen) > 110, (how, r))
            check_equal({k: v for k, v in seen.items() if v == "ok"}, {}, (how, template, user))
            check_equal(sh(d, b, "echo alive", user=user).text, "alive\n")


def test_signals():
    "every signal to pid 1, kill -1 and a command that kills its helpers: init lives, the neighbour notices nothing"
    for how, template, user, templates in columns():
        with privilege(how, templates=templates) as d:
            a, b = create(d, templateID=template), create(d, templateID=template)
            sh(d, b, "setsid sleep 300 >/dev/null 2>&1 & echo $! > /tmp/pid")
            sh(d, a, "for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; for s in STOP KILL; do kill -$s 1 2>/dev/null; done; true", user=user)
            check_equal(sh(d, a, "echo alive").text, "alive\n", how)
            r = py(d, a, "import os, signal; os.kill(-1, signal.SIGKILL)", user=user)
            check(r.code != 0 or r.code is None, r)
            check_equal(sh(d, a, "echo alive").text, "alive\n", how)
            check_equal(sh(d, b, "kill -0 $(cat /tmp/pid) && echo alive").text, "alive\n", how)
            # A process that kills whatever appears, while files are asked for: each request ends, none hangs.
            hunter = threading.Thread(target=lambda: py(d, a,
                    "import os, time\nend = time.time() + 2\nwhile time.time() < end:\n"
                                                        " for p in os.listdir('/proc'):\n  if p.isdigit() and int(p) not in (1, os.getpid()):\n"
                                                        "   for s in (19, 9):\n    try: os.kill(int(p), s)\n    except OSError: pass", user=user))
            hunter.start()
            for i in range(30):
                answer = call(d, a, "filesystem.Filesystem/ListDir", {"path": "/etc"}, timeout=60)
                check(answer.status in (200, 429, 500, 503), answer)
            hunter.join()
            check_equal(sh(d, a, "echo alive").text, "alive\n", how)
            check_equal(ask(d, "GET", f"/sandboxes/{a['sandboxID']}").json["state"], "running")


def test_host_is_not_there():
    "through the host template: no key, store or socket of the node, no process, environment, name or loopback service of the host"
    if not is_root():
        skip("needs root: an ordinary user's node reads what that user reads")
    top = pathlib.Path(tempfile.mkdtemp(prefix="hutch-hostile-", dir="/var/lib"))  # where a sandbox can look, unlike /tmp
    os.environ["HUTCH_CANARY"] = "canary-in-the-environment"
    try:
        top.chmod(0o755)
        public = socket.socket(socket.AF_UNIX)
        public.bind(str(top / "socket"))
        public.listen()
        (top / "socket").chmod(0o777)
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind("\0hutch-hostile")
        abstract.listen()
        for how, user in (("strict", "user"), ("computer", "root")):
            with privilege(how, home=top) as d:
                d.dir.chmod(0o755)
                late = socket.socket(socket.AF_UNIX)  # bound after the node started
                late.bind(str(d.dir / "late"))
                late.listen()
                (d.dir / "late").chmod(0o777)
                time.sleep(1)
                a, b = create(d, envVars={"OTHER": "canary-of-the-other"}), create(d)
                put(d, a, "/tmp/canary", b"canary-of-the-other")
                code = f"""
import os, socket
def tell(name, f):
    try: print(name, "ok", f())
    except OSError as e: print(name, e.strerror)
state, run = {str(d.state)!r}, {str(d.run)!r}
for p in ("admin.key", "front/store.db", "front/id.key", "templates", "front"): tell(p, lambda: open(os.path.join(state, p), "rb").read(10))
tell("state", lambda: os.listdir(state)); tell("run", lambda: os.listdir(run)); tell("write", lambda: open(os.path.join({str(d.dir)!r}, "x"), "w"))
def connect(kind, where):
    s = socket.socket(socket.AF_UNIX, kind); s.connect(where)
for n in ("keeper.sock",) + tuple({[str(p.relative_to(d.run)) for p in d.run.rglob("*") if p.is_socket()]!r}):
    for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM): tell("socket " + n, lambda: connect(kind, os.path.join(run, n)))
tell("public socket", lambda: connect(socket.SOCK_STREAM, {str(top / "socket")!r}))
tell("late socket", lambda: connect(socket.SOCK_STREAM, {str(d.dir / "late")!r}))
tell("abstract socket", lambda: connect(socket.SOCK_STREAM, "\\0hutch-hostile"))
for port in ({d.port}, 22, 53, 80): tell("port %d" % port, lambda: socket.create_connection(("127.0.0.1", port), 1))
print("interfaces", [n for _, n in socket.if_nameindex()])
print("processes", sorted(open("/proc/%s/comm" % p).read().strip() for p in os.listdir("/proc") if p.isdigit()))
print("environ", b"".join(open("/proc/%s/environ" % p, "rb").read() for p in os.listdir("/proc") if p == str(os.getpid())))
print("hostname", socket.gethostname()); print("unix", open("/proc/net/unix").read().count("/")); print("mounts", open("/proc/mounts").read())
print("cgroup", open("/proc/self/cgroup").read().count("hutch")); print("fds", sorted(os.listdir("/proc/self/fd"))[:3], len(os.listdir("/proc/self/fd")))
for p in ("/tmp/canary", "/home/user/canary", "/root/.bashrc", "/etc/shadow", "/run/hutch", "/root/.ssh"): tell(p, lambda: open(p, "rb").read(10))
"""
                r = py(d, b, code, user=user)
                check_equal(r.code, 0, r)
                lines = r.text.splitlines()
                check_equal([line for line in lines if " ok" in line], [], how)
                check_in("interfaces ['lo']", lines)
                check_in("processes ['hutch-init', 'python3']", lines)
                check_in("cgroup 0", lines)
                check_in("fds ['0', '1', '2'] 4", lines)
                check_in(f"hostname {b['sandboxID']}", lines)
                for secret in ("canary-in", "canary-of", d.key, socket.gethostname() + "\n", str(d.dir) + " ",
                               a["sandboxID"], a["envdAccessToken"]):
                    check(secret not in "".join(line for line in lines if not line.startswith("socket ")), (secret, r))
                # As seen from outside: no process of a sandbox is host root, and none can be traced back to a file.
                keeper = str(d.children("keeper")[0])
                for pid in subprocess.run(["pgrep", "-P", keeper, "-x", "hutch-init"], text=True,
                                          capture_output=True).stdout.split():
                    uids = re.search(r"^Uid:\t(.*)$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)[1].split()
                    check("0" not in uids, uids)
        check_equal(sorted(p.name for p in top.iterdir()), ["socket"], "something was left or written")
    finally:
        del os.environ["HUTCH_CANARY"]
        shutil.rmtree(top)


def test_catalogue():
    "the red-team suite's own attempts, inside sandboxes of a node: each ends as it does under hutch run"
    probe = pathlib.Path(PROBE)
    if not probe.exists():
        skip(f"{probe} is not built")
    listed = subprocess.run([str(probe), "--list", "--json"], capture_output=True, text=True, check=True).stdout
    table = {a["id"]: a for a in map(json.loads, listed.splitlines())}
    limits, alone, stdin_file, stdin_dir, tty, limitation, unfit = (1 << i for i in (0, 1, 4, 5, 6, 7, 8))
    # Every address leads to egress, which answers for the network (test_network_hostile), and low ports are the sandbox's own.
    captured = {"W-01a", "W-01b", "W-02a", "W-02b", "W-02c", "W-03", "W-04a", "W-04b", "W-10a"}
    check_equal(captured - set(table), set(), "these are no longer in the catalogue")
    picked = [i for i, a in table.items() if i not in captured and a["control"] != "host" and a["topic"] != "protected names" and
              not a["flags"] & (limits | alone | stdin_file | stdin_dir | tty | unfit)]
    for how, template, user, templates in columns():
        with privilege(how, templates=templates) as d:
            b = create(d, templateID=template)
            check_equal(put(d, b, "/tmp/probe", probe.read_bytes(), user=user).status, 200)
            check_equal(sh(d, b, "chmod 755 /tmp/probe && mkdir /tmp/ws", user=user).code, 0)
            r = run(d, b, "/tmp/probe", "--json", "--var", "ws=/tmp/ws", "--var", f"privilege={how}", *picked, user=user,
                    cwd="/tmp/ws", timeout=500)
            seen = {o["id"]: o["observed"] for o in map(json.loads, re.findall(r'^\{"id".*$', r.text, re.M))}
            check_equal(set(picked) - set(seen), set(), r)
            wrong, held = [], 0
            for i, observed in seen.items():
                a, word = table[i], re.split("[: ]", observed, maxsplit=1)[0]
                if word in (a[how] or "").split():
                    held += 1
                elif word != "skipped" and not a["flags"] & limitation and not (i == "F-01a" and template == "base"):
                    wrong.append((i, a["attempt"], observed, a[how]))
            check_equal(wrong, [], (how, template))
            check(held > 250, f"only {held} attempts were made")


# ---- exhaustion ----

@contextlib.contextmanager
def small(how="strict"):
    """A node with small sandboxes: the daemon, the victim of its own code, a neighbour."""
    with Daemon(config=SMALL.format(how)) as d:
        yield d, create(d), create(d)


def well(d, b):
    """It answers as one that is not concerned: what waits for an attacker would wait for as long as that one likes."""
    started = time.monotonic()
    check_equal(sh(d, b, "echo alive").text, "alive\n")
    check(time.monotonic() - started < 45, f"slow: {time.monotonic() - started:.1f} s")


def test_processes():
    "fork bombs, thread bombs and zombies stay inside pids; the client is told, the neighbour untouched, and after the kill all is well"
    with small() as (d, a, b):
        bomb = start("/usr/bin/python3", ["-c", "import os\nwhile True:\n try: os.fork()\n except OSError: pass"],
                     tag="bomb")
        with open_stream(d, a, bomb):
            time.sleep(0.7)
            answer = call(d, a, "filesystem.Filesystem/Stat", {"path": "/"}, timeout=60)
            check(answer.status in (200, 429), answer)
            check(answer.status == 200 or "limit on processes" in answer.json["message"], answer)
            r = sh(d, a, "echo x", timeout=60)
            check(r.text == "x\n" or "process" in str(r.error), r)
            well(d, b)
            answer = call(d, a, "process.Process/SendSignal", {"process": {"tag": "bomb"}, "signal": "SIGNAL_SIGKILL"})
            check(answer.status in (200, 404), answer)
        check_equal(ask(d, "DELETE", f"/sandboxes/{a['sandboxID']}").status, 204)
        a = create(d)
        r = py(d, a, "import threading, time\nn = 0\ntry:\n while True: threading.Thread(target=time.sleep, args=(600,), daemon=True).start(); n += 1\n"
                     "except RuntimeError: print(n, flush=True)\nimport os; os._exit(0)")
        check(20 < int(r.text) <= 64, r)
        # Orphans without end: pid 1 takes them all.
        r = py(d, a, """
import os, time
for i in range(1500):
    while True:
        try: child = os.fork()
        except OSError: time.sleep(0.01); continue  # pid 1 has not had the time yet
        break
    if child == 0:
        try: os.fork()
        except OSError: pass
        os._exit(0)
    os.waitpid(child, 0)
def zombies():
    n = 0
    for p in os.listdir("/proc"):
        try: n += p.isdigit() and open(f"/proc/{p}/stat").read().rsplit(")")[-1].split()[0] == "Z"
        except OSError: pass
    return n
stop = time.monotonic() + 60
while (left := zombies()) and time.monotonic() < stop: time.sleep(0.05)
print(left)""")
        check_equal(r.text.strip(), "0", r)
        well(d, a)
        well(d, b)


def test_memory_and_files():
    "memory, descriptors, disk and inodes end at their limits: an error inside, a typed answer outside, and room again afterwards"
    with small() as (d, a, b):
        r = py(d, a, "x = []\nwhile True: x.append(bytearray(8 << 20))")
        check(r.code != 0, r)
        check("MemoryError" in r.err.decode() or (r.end and r.end.get("death", {}).get("cause") in ("oom", "signal",
                "memory")), r)
        well(d, a)
        r = py(d, a, "import os\nn = 0\ntry:\n while True: os.open('/dev/null', 0); n += 1\nexcept OSError as e: print(n, e.strerror)")
        check_in("Too many open files", r.text)
        check(int(r.text.split()[0]) <= 256, r)
        r = sh(d, a, "dd if=/dev/zero of=/tmp/full bs=1M 2>&1; echo; df /tmp | tail -1")
        check_in("No space left on device", r.text)
        answer = put(d, a, "/tmp/more", b"x" * (1 << 20))
        check_equal(answer.status, 507, answer)
        answer = put(d, a, "/home/user/more", b"x" * (1 << 20))
        check_equal(answer.status, 507, answer)
        answer = call(d, a, "filesystem.Filesystem/MakeDir", {"path": "/tmp/still/there"})
        check(answer.status in (200, 429), answer)
        well(d, a)
        check_equal(call(d, a, "filesystem.Filesystem/Remove", {"path": "/tmp/full"}).status, 200)
        check_equal(put(d, a, "/tmp/more", b"x" * (1 << 20)).status, 200)
        r = py(d, a, "import os\nos.mkdir('/tmp/many'); n = 0\ntry:\n while True: os.close(os.open('/tmp/many/%d' % n, os.O_CREAT)); n += 1\n"
                     "except OSError as e: print(n, e.strerror)")
        check_in("No space left on device", r.text)
        check(int(r.text.split()[0]) <= 3000, r)
        check_equal(put(d, a, "/tmp/new", b"x").status, 507)
        listed = call(d, a, "filesystem.Filesystem/ListDir", {"path": "/tmp/many"})
        check_equal(len(listed.json["entries"]), int(r.text.split()[0]))
        check_equal(call(d, a, "filesystem.Filesystem/Remove", {"path": "/tmp/many"}).status, 200)
        check_equal(put(d, a, "/tmp/new", b"x").status, 200)
        # Memory held in other ways counts as well.
        r = py(d, a, "import os, mmap\nfd = os.memfd_create('x')\nb = b'x' * (1 << 20)\nfor i in range(1000): os.write(fd, b)\nprint('held')")
        check("held" not in r.text, r)
        well(d, a)
        well(d, b)
        r = py(d, a, "import os\nfs = [os.pipe() for _ in range(100)]\nn = 0\nfor i, o in fs:\n os.set_blocking(o, False)\n try:\n  while True: n += os.write(o, b'x' * 65536)\n"
                     " except BlockingIOError: pass\nprint(n)")
        check(r.code == 0 or r.code is None, r)
        well(d, b)


def test_output():
    "output without end for nobody, one endless line, thousands of commands and their leftovers: bounded inside and in front"
    with small() as (d, a, b):
        front = d.children("front")
        before = memory(front[0])
        body = start("/bin/sh", ["-c", "head -c 1500000000 /dev/zero; echo; echo done >&2"], tag="flood")
        s = open_stream(d, a, body)
        s.recv(1000)
        s.close()  # nobody is left
        time.sleep(0.5)
        well(d, a)
        eventually(lambda: "flood" not in call(d, a, "process.Process/List", {}).body.decode(), 120,
                   "nobody's output is thrown away and the command ends")
        check(memory(front[0]) - before < 32 << 20, "front grew")
        # Short commands one after the other and at once.
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            codes = list(pool.map(lambda _: run(d, a, "/bin/true").code, range(600)))
        check_equal(codes.count(0), 600, [c for c in codes if c != 0][:5])
        eventually(lambda: not call(d, a, "process.Process/List", {}).json.get("processes", []), 10, "none is listed")
        eventually(lambda: int(sh(d, a, "ls -d /proc/[0-9]* | wc -l").text) <= 4, 10, "nothing is left besides init, sh, ls, wc")
        check(memory(front[0]) - before < 32 << 20, "front grew")
        init = subprocess.run(["pgrep", "-P", str(d.children("keeper")[0]), "-x", "hutch-init"], text=True,
                              capture_output=True).stdout.split()
        if is_root():
            for pid in init:
                check(len(os.listdir(f"/proc/{pid}/fd")) < 600, "the last 256 ended commands are kept, no more")
                check(memory(pid) < 32 << 20, memory(pid))
        well(d, b)
        check_equal(d.children("front"), front)


def test_watch_flood():
    "events without end, a watcher nobody asks, hundreds of watchers: limits, not growth"
    with small() as (d, a, b):
        front = d.children("front")[0]
        sh(d, a, "mkdir /tmp/w")
        ids = []
        for _ in range(40):
            answer = call(d, a, "filesystem.Filesystem/CreateWatcher", {"path": "/tmp/w", "recursive": True})
            check(answer.status in (200, 429), answer)
            ids += [answer.json["watcherId"]] if answer.status == 200 else []
        check(8 <= len(ids) <= 32, len(ids))
        before = memory(front)
        py(d, a, "import os, time\nend = time.time() + 1.5\nwhile time.time() < end:\n for i in range(50): os.close(os.open('/tmp/w/' + 'x' * 200 + str(i), os.O_CREAT)); os.unlink('/tmp/w/' + 'x' * 200 + str(i))")
        check(memory(front) - before < 64 << 20, f"front grew by {(memory(front) - before) >> 20} MiB")
        for w in ids:
            check(call(d, a, "filesystem.Filesystem/RemoveWatcher", {"watcherId": w}).status in (200, 404), w)
        well(d, a)
        well(d, b)


# ---- files that lie ----

def test_trees():
    "huge directories, deep trees, link loops and directories swapped for links while they are listed, written and removed"
    with Daemon(config="sandboxes:\n  privilege: computer\n" if is_root() else "sandboxes:\n  privilege: strict\n") as d:
        a = create(d)
        fs = "filesystem.Filesystem/"
        r = py(d, a, """
import os
os.makedirs("/tmp/deep"); os.chdir("/tmp/deep")
for i in range(5000):
    os.mkdir("d"); os.chdir("d")
os.mkdir("/tmp/wide")
for i in range(30000): os.close(os.open("/tmp/wide/%d" % i, os.O_CREAT))
os.makedirs("/tmp/loop/a"); os.symlink("..", "/tmp/loop/a/up"); os.symlink(".", "/tmp/loop/self"); os.symlink("/", "/tmp/loop/root")
""")
        check_equal(r.code, 0, r)
        answer = call(d, a, fs + "ListDir", {"path": "/tmp/wide"})
        check_equal((answer.status, len(answer.json["entries"])), (200, 30000))
        answer = call(d, a, fs + "ListDir", {"path": "/tmp/deep", "depth": 64})
        check_equal((answer.status, len(answer.json["entries"])), (200, 64))
        answer = call(d, a, fs + "ListDir", {"path": "/tmp/loop", "depth": 64})
        check_equal((answer.status, len(answer.json["entries"])), (200, 4), "links are not followed")
        answer = call(d, a, fs + "Remove", {"path": "/tmp/deep"})
        check(answer.status in (200, 429), answer)
        check_equal(call(d, a, fs + "Remove", {"path": "/tmp/wide"}).status, 200)
        check_equal(call(d, a, fs + "Remove", {"path": "/tmp/loop"}).status, 200)
        check_equal(sh(d, a, "ls / | wc -l").text.strip() != "0", True)
        # A directory that is a link half of the time. Whatever is hit, the target outside the tree keeps its content.
        race = start("/usr/bin/python3", ["-c", """
import ctypes, os
os.makedirs("/tmp/r/dir/sub"); os.makedirs("/tmp/victim/sub")
open("/tmp/victim/keep", "w").write("kept"); open("/tmp/victim/sub/keep", "w").write("kept"); os.symlink("/tmp/victim", "/tmp/r/link")
libc = ctypes.CDLL(None)
while True:
    libc.renameat2(-100, b"/tmp/r/dir", -100, b"/tmp/r/link", 2)
    if not os.path.lexists("/tmp/r/dir"): os.makedirs("/tmp/r/dir/sub", exist_ok=True)
    if not os.path.lexists("/tmp/r/link"): os.symlink("/tmp/victim", "/tmp/r/link")
"""])
        with open_stream(d, a, race):
            eventually(lambda: sh(d, a, "test -e /tmp/r/link").code == 0, 10, "it is at work")
            end = time.monotonic() + 3
            while time.monotonic() < end:
                for answer in (call(d, a, fs + "ListDir", {"path": "/tmp/r", "depth": 5}),
                               put(d, a, "/tmp/r/dir/up", b"x" * 1000),
                               get(d, a, "/tmp/r/dir/up"), call(d, a, fs + "Remove", {"path": "/tmp/r/dir"})):
                    check(answer.status < 500 or answer.status in (500, 507), answer)
            check_equal(sh(d, a, "cat /tmp/victim/keep /tmp/victim/sub/keep").text, "keptkept",
                        "a removal went through the link")


HOSTILE_PASSWD = [
    b"", b"\n" * 100000, b"user", b"x" * (3 << 20), b"user:x:0:0::/:/bin/sh\n", b"user:x:-1:-1::/:/bin/sh\n",
    b"user:x:4294967295:4294967295::/:/bin/sh\n",
    b"user:x:99999999999999999999:0::/:/bin/sh\n", b"user:x:70000:70000::/:/bin/sh\n",
    b"user:x:1000:1000::" + b"/a" * 5000 + b":/bin/sh\n",
    b"user:x:1000:1000::/proc/self/root:/bin/sh\n", b"user:x:1000:1000::../../..:/bin/sh\n",
    b"user:x:1000:1000::/tmp/no:/bin/sh\n", b"user:x:1000\0:1000::/:/bin/sh\n",
    b"user:x:1000:1000::/home/user\x1b[31m\xff:/bin/sh\n", b"\xff" * 4096, b":" * 100000,
    b"user:x:1000:1000::/fifo:/bin/sh",
]


def test_passwd():
    "a replaced /etc/passwd cannot crash or hang anything: users are found or refused, files are still served, a good one heals it"
    if not is_root():
        skip("needs root: a computer is made from ids of its own")
    templates = base_templates()
    if not templates:
        skip("needs a writable /etc: a directory with the template base in HUTCH_TEST_TEMPLATES")
    with privilege("computer", templates=templates) as d:
        a, b = create(d, templateID="base"), create(d, templateID="base")
        good = get(d, a, "/etc/passwd", user="root").body
        for text in HOSTILE_PASSWD:
            fresh = create(d, templateID="base")
            check_equal(put(d, fresh, "/etc/passwd", text, user="root").status, 200)
            for answer in (call(d, fresh, "filesystem.Filesystem/Stat", {"path": "/tmp"}),
                           call(d, fresh, "filesystem.Filesystem/ListDir", {"path": ""}),
                           get(d, fresh, "/etc/hostname"), put(d, fresh, "~/x", b"x")):
                check(answer.status in (200, 400, 401, 403, 404), (text[:60], answer))
                answer.json if answer.body[:1] == b"{" else None
            r = sh(d, fresh, "id -u; pwd")
            check(r.code == 0 or r.error, (text[:60], r))
            check(not r.text.startswith("0\n") or b":0:0:" in text, (text[:60], r))
            check_equal(ask(d, "DELETE", f"/sandboxes/{fresh['sandboxID']}").status, 204)
        for what in ("rm /etc/passwd; mkfifo /etc/passwd", "rm /etc/passwd; ln -s /dev/zero /etc/passwd",
                     "rm /etc/passwd; ln -s passwd /etc/passwd",
                     "rm /etc/passwd; ln -s /proc/self/root/etc/group /etc/passwd", "rm /etc/passwd; mkdir /etc/passwd",
                     "rm /etc/passwd; truncate -s 1T /etc/passwd",
                     "rm /etc/group; mkfifo /etc/group", "rm -rf /etc", "rm -rf /home/user; ln -s / /home/user"):
            fresh = create(d, templateID="base")
            sh(d, fresh, what, user="root")
            for user in ("user", "root"):
                started = time.monotonic()
                answer = call(d, fresh, "filesystem.Filesystem/Stat", {"path": "/tmp"}, user=user, timeout=60)
                check(answer.status in (200, 401), (what, answer))
                r = sh(d, fresh, "echo x", user=user, timeout=60)
                check(r.text == "x\n" or r.error, (what, r))
                check(time.monotonic() - started < 45, what)
            ask(d, "DELETE", f"/sandboxes/{fresh['sandboxID']}")
        check_equal(put(d, b, "/etc/passwd", good, user="root").status, 200)
        well(d, b)
