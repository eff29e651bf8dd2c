"""What all sandboxes of a machine share in its kernel, and what one of them can take of it."""
import json
import os
import pathlib
import shutil

from daemon import Daemon
from hutch_test import HUTCH, TOP, check, check_equal, check_in, hutch, hutch_record, is_root, run, skip, workspace, write
from node_client import create, py, put, run as run_in, sh

# Processes that open netlink sockets, make their buffers as large as they can, and ask without ever reading the answers. What
# the kernel holds for them is in the fifth column of /proc/net/netlink.
HOLD = r"""
import errno, json, os, socket, struct, sys
processes, sockets, asked = map(int, sys.argv[1:4])
ask = struct.pack("=IHHII", 32, 18, 1, 1, 0) + struct.pack("=BBHiII", 0, 0, 0, 1, 0, 0)  # RTM_GETLINK of lo
pipes = []
try: socket.socket(40, 1, 0)  # AF_VSOCK: another refusal of the same call, to be told apart
except OSError: pass
for _ in range(processes):
    r, w = os.pipe()
    stay_r, stay_w = os.pipe()
    if os.fork() == 0:
        os.close(stay_w)
        mine, why = [], ""
        for _ in range(sockets):
            try:
                s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
            except OSError as e:
                why = errno.errorcode[e.errno]
                continue
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            mine.append(s)
        for s in mine:
            for _ in range(asked): s.send(ask)
        os.write(w, json.dumps([len(mine), why]).encode())
        os.read(stay_r, 1)
        os._exit(0)
    os.close(w); os.close(stay_r)
    pipes.append((r, stay_w))
told = [json.loads(os.read(r, 100)) for r, _ in pipes]
held = sum(int(line.split()[4]) for line in open("/proc/net/netlink").readlines()[1:])
print(json.dumps({"sockets": sum(n for n, _ in told), "why": sorted({w for _, w in told}), "held": held}))
"""
MOST = 8 << 20
NETLINK_MAX = 32

# Every way to ask for the interfaces that is on the machine, as (name, argv, what it prints).
JAVA = 'import java.net.*; public class I { public static void main(String[] a) throws Exception { System.out.println(NetworkInterface.getByName("lo").getName()); } }'
GO = 'package main\nimport ("fmt"; "net")\nfunc main() { l, err := net.Interfaces(); fmt.Println(l[0].Name, err) }\n'


def held(text):
    seen = json.loads(text.strip().splitlines()[-1])
    check_equal((seen["sockets"], seen["why"]), (NETLINK_MAX, ["ENOBUFS"]), seen)
    check(seen["held"] <= MOST, seen)


def test_netlink_memory(who):
    "unread answers of netlink sockets, which no limit counts, hold at most 8 MiB; without the limit the same program holds more"
    with workspace(who) as ws:
        write(ws / "hold.py", HOLD, who)
        r = hutch_record("-q", "--memory", "128M", "--", "python3", "hold.py", "4", "100", "300", who=who, cwd=ws)
        held(r.out)
        denial = [d for d in r.record["denials"] if d["category"] == "netlink"]
        check_equal([(d["subject"], d["errno"], d["grant"]["policy"]) for d in denial],
                    [("socket AF_NETLINK NETLINK_ROUTE", "ENOBUFS", "syscalls: {allow: [netlink]}")], r.record["denials"])
        r = hutch("run", "-q", "--allow-syscall", "netlink", "--", "python3", "hold.py", "1", "64", "300", who=who, cwd=ws)
        seen = json.loads(r.out)
        check(seen["sockets"] == 64 and seen["held"] > MOST, r)


def test_netlink_comes_back(who):
    "sockets that are closed make room, in whatever process they were; the size of other sockets' buffers can still be set"
    code = (
        "import os, socket\n"
        "nl = lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)\n"
        "for i in range(100):\n if os.fork() == 0: x = [nl() for _ in range(20)]; os._exit(0)\n os.wait()\n"
        "a, b = socket.socketpair()\n"
        "for i in range(32): s = nl(); socket.send_fds(a, [b'x'], [s.fileno()]); s.close()\n"  # alive, although no process has it open
        "try: nl(); print('more than 32')\nexcept OSError as e: print(e.strerror)\n"
        "a.close(); b.close()\n"
        "s = nl(); s.setsockopt(1, 8, 1 << 20); print(s.getsockopt(1, 8), s.get_inheritable(), s.getblocking())\n"
        "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.setsockopt(1, 8, 50000); print(u.getsockopt(1, 8))\n"
        "for fd in (999, 0):\n try: socket.socket(fileno=os.dup(u.fileno())).detach(); import ctypes; l = ctypes.CDLL(None, use_errno=True);"
        " print(l.setsockopt(fd, 1, 8, ctypes.byref(ctypes.c_int(9)), 4), os.strerror(ctypes.get_errno()))\n except OSError as e: print(e)\n")
    want = "No buffer space available\n65536 False False\n100000\n-1 Bad file descriptor\n-1 Socket operation on non-socket\n"
    with workspace(who) as ws:
        write(ws / "back.py", code, who)
        for options in ((), ("--network", "host"), ("--explain",)):
            r = hutch("run", "-q", *options, "--", "python3", "back.py", who=who, cwd=ws)
            check_equal((r.out, r.code), (want, 0), r)


def go():
    return shutil.which("go", path=os.environ["PATH"] + ":/usr/local/go/bin")


# Go compiles its library first, for a minute: that is kept.
GO_ENV = {"GOCACHE": str(TOP / "build-cache/go"), "GO111MODULE": "off", "CGO_ENABLED": "0"}
BUILT = {}  # compiled once, for root and the user


def build_programs():
    with workspace("root") as ws:
        if shutil.which("javac"):
            write(ws / "I.java", JAVA)
            check_equal(run("javac", "-d", ws, ws / "I.java").code, 0)
            BUILT["I.class"] = (ws / "I.class").read_bytes()
        if go():
            write(ws / "i.go", GO)
            r = run(go(), "build", "-o", ws / "i", ws / "i.go", env=GO_ENV)
            check_equal(r.code, 0, r)
            BUILT["i"] = (ws / "i").read_bytes()


def programs():
    """(name, argv, what it prints); those of BUILT lie in the working directory."""
    if not BUILT:
        build_programs()
    yield "python", ["python3", "-c", "import socket; print([n for _, n in socket.if_nameindex()])"], "lo"
    yield "getaddrinfo", ["python3", "-c", "import socket; print(socket.getaddrinfo('localhost', 80, flags=socket.AI_ADDRCONFIG)[0][4][0])"], ""
    if shutil.which("ip"):
        yield "ip", ["ip", "addr"], "lo:"
    if shutil.which("node"):
        yield "node", ["node", "-e", "console.log(Object.keys(require('os').networkInterfaces()))"], "lo"
    if shutil.which("chromium"):
        yield "chromium", ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir=/tmp/c", "--dump-dom",
                           "data:text/html,<p>alive</p>"], "<p>alive</p>"
    if "I.class" in BUILT:
        yield "java", ["java", "-cp", ".", "I"], "lo"
    if "i" in BUILT:
        yield "go", ["./i"], "lo <nil>"


def test_interfaces_of_a_run(who):
    "python, ip, node, java, go and chromium find the network interfaces in a run"
    with workspace(who) as ws:
        for name, argv, want in programs():
            for file, data in BUILT.items():
                (ws / file).write_bytes(data)
                (ws / file).chmod(0o755)
            r = hutch("run", "--", *argv, who=who, cwd=ws)
            check(r.code == 0 and want in r.out and "--allow-syscall netlink" not in r.err, (name, r))


def test_nested_netlink(who):
    "in the nested tier, where no supervisor makes netlink sockets, they are refused, the record says so, and the word grants them"
    code = "import socket\ntry: print(socket.if_nameindex()[0][1])\nexcept OSError as e: print(e.strerror)"
    with workspace(who) as ws:
        for words, want in (((), "Address family not supported by protocol\n"), (("--allow-syscall", "netlink"), "lo\n")):
            r = hutch("run", "-q", "--ro", HUTCH, "--", HUTCH, "run", "-q", "--enforcement", "best-effort", "--json", "record", *words, "--",
                      "python3", "-c", code, who=who, cwd=ws)
            check_equal((r.out, r.code), (want, 0), r)
            check_in("netlink sockets are refused (--allow-syscall netlink)", " ".join(json.loads((ws / "record").read_text())["notes"]))


# A lease on a file of one's own, and a filter on a socket: each prints an errno or "ok".
WORDS = r"""
import ctypes, errno, fcntl, socket, struct
def tell(f):
    try: f(); print("ok")
    except OSError as e: print(errno.errorcode[e.errno])
open("f", "w").close()
with open("f") as f: tell(lambda: fcntl.fcntl(f, 1024, fcntl.F_RDLCK))
code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xffff))
tell(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).setsockopt(1, 26, struct.pack("HxxxxxxP", 1, ctypes.addressof(code))))
"""


def test_words(who):
    "leases and socket filters are refused and recorded with the word that grants them, and a policy with the words has them"
    with workspace(who) as ws:
        r = hutch_record("-q", "--", "python3", "-c", WORDS, who=who, cwd=ws)
        check_equal(r.out, "EACCES\nEPERM\n", r)
        check_equal([(d["subject"], d["category"], d["errno"], d["grant"]["flag"]) for d in r.record["denials"]],
                    [("fcntl F_SETLEASE", "lease", "EACCES", "--allow-syscall leases"),
                     ("setsockopt SO_ATTACH_FILTER", "socket-filter", "EPERM", "--allow-syscall socket-filters")], r.record["denials"])
        write(ws / "words.yaml", "syscalls:\n  allow: [leases, socket-filters]\n", who)
        r = hutch_record("-q", "--policy", "words.yaml", "--", "python3", "-c", WORDS, who=who, cwd=ws)
        check_equal((r.out, r.record["denials"]), ("ok\nok\n", []), r)
        r = hutch("run", "--allow-syscall", "lease", "--", "true", who=who, cwd=ws)
        check_equal(r.code, 120, r)
        check_in('did you mean "leases"?', r.err, r)


def mariadb():
    """The directory with Debian's server: the machine's, or a package that is fetched once and kept."""
    if os.path.exists("/usr/sbin/mariadbd"):
        return pathlib.Path("/")
    kept = TOP / "build-cache/mariadb"
    if not (kept / "usr/sbin/mariadbd").exists():
        kept.mkdir(parents=True, exist_ok=True)
        r = run("sh", "-c", "apt-get -q download mariadb-server-core && for f in *.deb; do dpkg -x $f . && rm $f; done", cwd=kept, timeout=170)
        if r.code != 0:
            skip(f"mariadb-server-core is not installed and cannot be fetched: {r.err.strip().splitlines()[-1:]}")
    r = run("ldd", kept / "usr/sbin/mariadbd")
    if "not found" in r.out:
        skip(f"libraries of mariadb-server-core are missing: {r.out}")
    return kept


def test_mariadb_without_aio(who):
    "MariaDB does without AIO contexts; the record names the word, and with it the context can be had"
    root = mariadb()
    sql = "create database t;\ncreate table t.x (a int primary key) engine=innodb;\ninsert into t.x values (1),(2);\n"
    with workspace(who) as ws:
        run("cp", root / "usr/sbin/mariadbd", ws / "server")
        run("cp", "-r", root / "usr/share/mysql", ws / "share")
        for words, denied in (((), ["io_setup"]), (("--allow-syscall", "io_setup"), [])):
            write(ws / "boot.sql", sql, who)
            command = ("mkdir data && ./server --no-defaults --bootstrap --user=$(id -un) --datadir=$PWD/data --lc-messages-dir=$PWD/share"
                       " --skip-grant-tables <boot.sql && ls -l data/t/x.ibd && rm -r data")
            r = hutch_record("-q", *words, "--", "sh", "-c", command, who=who, cwd=ws)
            check(r.code == 0 and "x.ibd" in r.out, r)
            check_equal([d["subject"] for d in r.record["denials"]], denied, r)
            check_equal("native AIO failed" in r.err, not words, r)


# Connections to itself that are written to and never read. Prints how many MiB the kernel holds for them, 96 at most.
UNREAD = r"""
import socket
listener, held, rest = socket.create_server(("127.0.0.1", 0), backlog=4096), 0, []
block = bytes(1 << 20)
for _ in range(300):
    s = socket.create_connection(listener.getsockname())
    rest += [s, listener.accept()[0]]
    s.setblocking(False)
    try:
        while held < 96 << 20: held += s.send(block)
    except BlockingIOError: pass
    if held >= 96 << 20: break
print(held >> 20, flush=True)
"""


def test_tcp_memory():
    "unread data of TCP connections counts: with 64 MiB of memory they hold a part of it, or the program is ended"
    with workspace("root") as ws:
        r = hutch("run", "-q", "--memory", "64M", "--", "python3", "-c", UNREAD, who="root", cwd=ws)
        check(r.code == 124 or (r.code == 0 and int(r.out) <= 64), r)
    with Daemon(config="sandboxes:\n  memory: 128MiB\n") as d:
        b = create(d)
        r = py(d, b, UNREAD)
        check(r.code != 0 or int(r.text) <= 64, r)
        check_equal(sh(d, b, "sysctl -n net.ipv4.tcp_rmem net.ipv4.tcp_wmem | cut -f3").text, "2097152\n2097152\n")


# Sockets whose close() waits for an hour, closed while the listener of the filter sets the size of their buffer: it must never be the last
# to hold one. Each round asks it something else too.
LINGER = r"""
import ctypes, random, socket, struct, threading
libc = ctypes.CDLL(None)  # unlike those of the module, its calls let other threads run
size = ctypes.byref(ctypes.c_int(4096))
listener, go, todo = socket.create_server(("127.0.0.1", 0)), threading.Semaphore(0), []
def closer():
    while True:
        go.acquire()
        for _ in range(random.randrange(60)): pass
        libc.close(todo.pop())
threading.Thread(target=closer, daemon=True).start()
for _ in range(3000):
    s, other = socket.create_connection(listener.getsockname()), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer = listener.accept()[0]
    s.setblocking(False)
    try:
        while True: s.send(bytes(1 << 20))
    except BlockingIOError: pass
    s.setsockopt(1, 13, struct.pack("ii", 1, 3600))  # SO_LINGER
    fd = s.detach()
    todo.append(fd); go.release()
    libc.setsockopt(fd, 1, 8, size, 4)
    libc.setsockopt(other.fileno(), 1, 8, size, 4)
    peer.setsockopt(1, 13, struct.pack("ii", 1, 0))  # a reset ends the wait of close() if it was the closer's
    peer.close(); other.close()
print("answered", flush=True)
"""


def test_lingering_sockets(who):
    "a command cannot make its supervisor wait in close() by SO_LINGER, and so live beyond its time"
    with workspace(who) as ws:
        r = hutch("run", "-q", "--timeout", "100s", "--", "python3", "-c", LINGER, who=who, cwd=ws)
        check_equal((r.out, r.code), ("answered\n", 0), r)


def test_lingering_sockets_in_a_node():
    "nor can it make pid 1 of a node's sandbox wait"
    for how, user in privileges():
        with Daemon(config=f"sandboxes:\n  privilege: {how}\n") as d:
            b = create(d)
            check_equal(py(d, b, LINGER, user=user).text, "answered\n", (how, user))
            check_equal(sh(d, b, "echo here", user=user).text, "here\n", (how, user))


def privileges():
    yield "strict", "user"
    if is_root():
        yield "computer", "root"
        yield "computer", "user"


def test_netlink_in_a_node():
    "the same limit holds in a node's sandbox, where pid 1 makes the sockets; a refusal is told with the word that grants"
    for how, user in privileges():
        with Daemon(config=f"sandboxes:\n  privilege: {how}\n  memory: 256MiB\n") as d:
            b = create(d)
            put(d, b, "/tmp/hold.py", HOLD.encode())
            r = sh(d, b, "python3 /tmp/hold.py 4 100 300", user=user)
            check_equal(r.code, 0, r)
            held(r.text)
            told = [x for x in r.end["denials"] if x["category"] == "netlink"]
            check_equal([(x["subject"], x["errno"]) for x in told], [("socket", "ENOBUFS")], r.end)
            check_in("syscalls.allow: [netlink]", told[0]["hint"], told)
            r = sh(d, b, "python3 -c 'import socket; print(socket.if_nameindex())'; ip -o link", user=user)
            check(r.code == 0 and r.text.count("lo") >= 2, (how, user, r))
            code = ("import socket\ns = socket.socket(16, 3, 0); s.setsockopt(1, 8, 1 << 20)\n"
                    "u = socket.socket(2, 2, 0); u.setsockopt(1, 8, 50000); print(s.getsockopt(1, 8), u.getsockopt(1, 8))")
            check_equal(py(d, b, code, user=user).text, "65536 100000\n", (how, user))
            for name, argv, want in programs():
                for file, data in BUILT.items():
                    check_equal(put(d, b, f"/tmp/{file}", data).status, 200)
                r = run_in(d, b, "/bin/sh", "-c", "chmod -f 755 i; exec \"$@\"", "sh", *argv, cwd="/tmp", user=user)
                check(r.code == 0 and want in r.text, (name, how, user, r))
