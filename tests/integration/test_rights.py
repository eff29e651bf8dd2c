"""Commands with fewer rights than their sandbox: what they cannot do, the same attempts without the layer, and what their limits end."""
import base64
import json
import os
import threading
import time

from hutch_test import check, check_equal, check_in, eventually, is_root, skip
from node_client import ask, create, py, run, sh, start, to_box
from node import hit
from shared import shared_node

CLOSED = {"network": "off", "write": "none"}
COLUMNS = ("computer", "strict") if is_root() else ("strict",)

# The wider sibling: holds everything open that a narrow command could ask for help.
SIBLING = r"""
import ctypes, os, pty, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
os.makedirs("/tmp/sib", exist_ok=True)
keep = []
def listen(family, kind, address):
    s = socket.socket(family, kind); s.bind(address)
    if kind == socket.SOCK_STREAM: s.listen(16)
    keep.append(s)
listen(socket.AF_UNIX, socket.SOCK_STREAM, "/tmp/sib/stream")
listen(socket.AF_UNIX, socket.SOCK_DGRAM, "/tmp/sib/dgram")
listen(socket.AF_UNIX, socket.SOCK_STREAM, "\0sib-stream")
listen(socket.AF_UNIX, socket.SOCK_DGRAM, "\0sib-dgram")
listen(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 7001))
listen(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 7002))
os.mkfifo("/tmp/sib/fifo"); keep.append(os.open("/tmp/sib/fifo", os.O_RDWR))
open("/tmp/sib/script", "w").write("#!/bin/sh\n"); os.chmod("/tmp/sib/script", 0o755)
shm = libc.shmget(0x5157, 4096, 0o1600)
sem = libc.semget(0x5157, 1, 0o1600)
msg = libc.msgget(0x5157, 0o1600)
open("/dev/shm/sib", "wb").write(b"secret")
master, slave = pty.openpty(); keep += [master, slave]
with open("/tmp/sib/facts.new", "w") as f: f.write(repr({"pid": os.getpid(), "tty": os.ttyname(slave), "shm": shm, "fd": keep[-3], "at": id(keep)}))
os.rename("/tmp/sib/facts.new", "/tmp/sib/facts")
time.sleep(600)
"""

# Each line of the answer: "name errno" or "name ok".
ATTEMPTS = r"""
import ctypes, errno, os, signal, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
def call(n, *a):
    r = libc.syscall(n, *a)
    if r < 0: raise OSError(ctypes.get_errno(), "")
    return r
def tell(name, f):
    try: f(); r = "ok"
    except OSError as e: r = errno.errorcode.get(e.errno, str(e.errno))
    print(name, r, flush=True)
sib = eval(open("/tmp/sib/facts").read())
pid = sib["pid"]
def connect(family, kind, to, bind=None):
    s = socket.socket(family, kind)
    s.connect(to)
def pair(kind, to):
    a, b = socket.socketpair(socket.AF_UNIX, kind)
    a.sendto(b"x", to)
tell("unix-path", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "/tmp/sib/stream"))
tell("unix-dgram", lambda: connect(socket.AF_UNIX, socket.SOCK_DGRAM, "/tmp/sib/dgram"))
tell("unix-abstract", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0sib-stream"))
tell("unix-abstract-dgram", lambda: connect(socket.AF_UNIX, socket.SOCK_DGRAM, "\0sib-dgram"))
tell("pair-dgram", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
def listening():
    s = socket.socket(socket.AF_UNIX); s.bind("/tmp/sib/mine-%d" % os.getpid()); s.listen()
tell("unix-listen", listening)
tell("tcp", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 7001)))
tell("udp", lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 7002)))
tell("tcp6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
tell("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
tell("shm-sysv", lambda: call(29, 0x5157, 4096, 0o600))
def attach():
    if libc.shmat(sib["shm"], 0, 0) == ctypes.c_void_p(-1).value: raise OSError(ctypes.get_errno(), "")
tell("shm-attach", attach)
tell("sem", lambda: call(64, 0x5157, 1, 0o600))
tell("msg", lambda: call(68, 0x5157, 0o600))
tell("mq", lambda: call(240, b"sib%d" % os.getpid(), os.O_CREAT | os.O_RDWR, 0o600, 0))
tell("shm-posix", lambda: os.open("/dev/shm/sib", os.O_RDWR))
tell("fifo", lambda: os.open("/tmp/sib/fifo", os.O_WRONLY))
tell("tty", lambda: os.open(sib["tty"], os.O_RDWR | os.O_NOCTTY))
tell("write", lambda: os.open("/tmp/sib/script", os.O_WRONLY))
tell("append", lambda: open("/tmp/sib/script", "a").write("id"))
tell("truncate", lambda: os.truncate("/tmp/sib/script", 4))
tell("open-truncate", lambda: os.open("/tmp/sib/script", os.O_RDONLY | os.O_TRUNC))
tell("open-truncate-mode-3", lambda: os.open("/tmp/sib/script", os.O_ACCMODE | os.O_TRUNC))
tell("priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 1))
tell("affinity", lambda: os.sched_setaffinity(pid, os.sched_getaffinity(0)))
tell("create", lambda: open("/tmp/sib/new-%d" % os.getpid(), "w"))
tell("tmpfile", lambda: os.open("/tmp/sib", os.O_TMPFILE | os.O_RDWR))
tell("mkdir", lambda: os.mkdir("/tmp/sib/dir-%d" % os.getpid()))
tell("symlink", lambda: os.symlink("x", "/tmp/sib/symlink-%d" % os.getpid()))
tell("link", lambda: os.link("/tmp/sib/script", "/tmp/sib/link-%d" % os.getpid()))
tell("mknod", lambda: os.mkfifo("/tmp/sib/fifo-%d" % os.getpid()))
tell("rename", lambda: (os.rename("/tmp/sib/script", "/tmp/sib/s2"), os.rename("/tmp/sib/s2", "/tmp/sib/script")))
tell("chmod", lambda: os.chmod("/tmp/sib/script", 0o755))
def fchmod():
    os.fchmod(os.open("/tmp/sib/script", os.O_RDONLY), 0o755)
tell("fchmod", fchmod)
tell("fchmodat2", lambda: call(452, -100, b"/tmp/sib/script", 0o755, 0))
tell("chown", lambda: os.chown("/tmp/sib/script", os.getuid(), os.getgid()))
tell("utime", lambda: os.utime("/tmp/sib/script"))
tell("cron", lambda: open(os.path.expanduser("~/.profile"), "a").close())
tell("proc-comm", lambda: open("/proc/%d/comm" % pid, "w").write("x"))
tell("proc-mem", lambda: os.pread(os.open("/proc/%d/mem" % pid, os.O_RDONLY), 8, sib["at"]))
tell("proc-mem-write", lambda: os.open("/proc/%d/mem" % pid, os.O_RDWR))
tell("proc-root", lambda: os.stat("/proc/%d/root/etc" % pid))
tell("proc-cwd", lambda: os.stat("/proc/%d/cwd/." % pid))
tell("proc-fd", lambda: os.open("/proc/%d/fd/%d" % (pid, sib["fd"]), os.O_RDWR))
tell("proc-environ", lambda: open("/proc/%d/environ" % pid, "rb").read(1))
tell("proc-maps", lambda: open("/proc/%d/maps" % pid, "rb").read(1))
tell("prlimit", lambda: call(302, pid, 4, struct.pack("QQ", 0, 0), None))
tell("signal-0", lambda: os.kill(pid, 0))
tell("signal", lambda: os.kill(pid, signal.SIGCONT))
tell("pidfd-signal", lambda: call(424, call(434, pid, 0), signal.SIGCONT, None, 0))
"""
# Closed without this layer as well: by mounts, and in a strict sandbox by the Landlock domain that each command has there.
WALL = {"mq", "proc-comm", "proc-mem-write"}
STRICT = {"proc-mem", "proc-root", "proc-cwd", "proc-fd", "proc-environ", "proc-maps"}


def rights(**r):
    return {"HUTCH_RIGHTS": json.dumps(r)}


def node(privilege):
    return shared_node(config=f"sandboxes:\n  privilege: {privilege}\n")


def attempts(d, b, envs=None, user="user"):
    r = py(d, b, ATTEMPTS, user=user, envs=envs)
    check_equal(r.code, 0, r)
    return dict(line.split(" ") for line in r.text.splitlines())


def sibling(d, b, user="user"):
    r = run(d, b, "/bin/sh", "-c", "/usr/bin/python3 -c \"$S\" >/dev/null 2>/tmp/sib.err & ", envs={"S": SIBLING}, user=user)
    check_equal(r.code, 0, r)
    eventually(lambda: sh(d, b, "test -f /tmp/sib/facts", user=user).code == 0, 20, "the sibling is ready")


def test_the_sibling_is_no_way_around():
    "a closed command reaches nothing through a wider process of the same user; each attempt succeeds without the layer"
    for privilege in COLUMNS:
        with node(privilege) as d:
            b = create(d)
            sibling(d, b)
            closed, control = attempts(d, b, rights(**CLOSED)), attempts(d, b)
            check_equal({k: v for k, v in closed.items() if v == "ok"}, {}, privilege)
            others = WALL | (STRICT if privilege == "strict" else set())
            check_equal({k: v for k, v in control.items() if v != "ok" and k not in others}, {}, privilege)
            check(len(closed) > 45, closed)


def test_each_right_alone():
    "network: off leaves files alone, write: none leaves the network alone, and neither has a unix socket, tracing or signals"
    with node("strict") as d:
        b = create(d)
        sibling(d, b)
        off, none = attempts(d, b, rights(network="off")), attempts(d, b, rights(write="none"))
        for name in ("write", "create", "chmod", "fchmod", "utime", "rename", "link", "mknod", "truncate", "fifo", "tty", "shm-posix"):
            check_equal((name, off[name]), (name, "ok"))
            check_equal((name, none[name]), (name, "EACCES"))
        for name in ("tcp", "udp", "tcp6", "netlink"):
            check_equal((name, off[name], none[name]), (name, "EACCES", "ok"))
        for name in ("unix-path", "unix-dgram", "unix-abstract", "pair-dgram", "shm-attach", "msg", "sem", "proc-root", "signal", "prlimit"):
            check(off[name] != "ok" and none[name] != "ok", (name, off[name], none[name]))


def test_a_user_of_its_own():
    "a command with a user of its own has a uid of no one else and no files; a second one has another; the same attempts fail for it"
    with node(COLUMNS[0]) as d:
        b = create(d)
        sibling(d, b)
        ids = [sh(d, b, "id -u; id -G; echo $HOME", envs=rights(user="own")).text.split() for _ in range(2)]
        check(ids[0][0] != ids[1][0] and all(i[0] == i[1] and 61184 <= int(i[0]) < 65280 and i[2] == "/tmp" for i in ids), ids)
        own = attempts(d, b, rights(user="own"))
        for name in ("signal", "pidfd-signal", "write", "append", "chmod", "utime", "proc-mem", "proc-fd", "prlimit", "tty", "shm-posix", "fifo",
                     "shm-attach", "msg", "sem", "unix-path", "rename"):
            check(own[name] != "ok", (name, own[name]))
        check_equal(own["tcp"], "ok")  # it is a user, not a network
        r = sh(d, b, "touch /tmp/own && rm /tmp/own && mkdir /tmp/own.d", envs=rights(user="own", write=["/tmp"]))
        check_equal(r.code, 0, r)


def test_write_paths():
    "a command writes below its paths and nowhere else, by whatever name; devices and its own output work"
    with node("strict") as d:
        b = create(d)
        sh(d, b, "mkdir -p /tmp/w/a /tmp/w/b; ln -s ../b /tmp/w/a/out; echo old > /tmp/w/b/f; ln -s a /tmp/w/link")
        script = ("cd /tmp/w; echo 1 > a/x; echo 2 > b/f; echo 3 > a/out/f; echo 4 > /tmp/w/b/../b/new; mv a/x b/x; ln b/f a/hard; "
                  "echo n > /dev/null; echo out > /dev/stdout; echo err > /dev/stderr; touch a/t; chmod 600 a/t; rm a/t; "
                  "cat a/x b/f; ls b")
        r = sh(d, b, script, envs=rights(write=["/tmp/w/a"]))
        check_equal((r.code, r.text), (0, "out\n1\nold\nf\n"), r)
        r = sh(d, b, "echo 1 > a/y && cd a && echo 2 > z && ! echo 3 > ../b/y && echo right", envs=rights(write=["link"]), cwd="/tmp/w")
        check_equal((r.code, r.text), (0, "right\n"), r)
        r = sh(d, b, "cat /tmp/w/b/f; echo x > /tmp/w/b/f", envs=rights(write="none"))
        check_equal((r.code, r.text), (2, "old\n"), r)
        denials = r.end["denials"]
        check_equal([(x["kind"], x["subject"], x["certain"]) for x in denials], [("right", "write", False)])
        check_in("--write", denials[0]["hint"])
        check("denials" not in sh(d, b, "true", envs=rights(write="none")).end)
        for path, word in (("/tmp/w/none", "does not exist"), ("/proc/self/fd/3", "cannot be opened"), ("/proc/1/cwd", "cannot be opened")):
            r = sh(d, b, "true", envs=rights(write=[path]))
            check(r.code is None and path in r.error["message"] and word in r.error["message"], (path, r))


def test_root_inside():
    "root of a computer has its number and no capability in such a command; sudo and setuid programs give nothing"
    if not is_root():
        return skip("privilege computer needs root")
    with node("computer") as d:
        b = create(d)
        look = "grep -E '^(CapEff|CapPrm|CapBnd|NoNewPrivs)' /proc/self/status; id -u"
        r = sh(d, b, look, user="root", envs=rights(**CLOSED))
        seen = dict(l.split(":\t") for l in r.text.splitlines()[:-1])
        check_equal((seen["CapEff"], seen["CapPrm"], seen["NoNewPrivs"], r.text.splitlines()[-1]), ("0" * 16, "0" * 16, "1", "0"), r)
        check(not sh(d, b, look, user="root").text.startswith("CapPrm:\t" + "0" * 16), "the control has capabilities")
        r = sh(d, b, "echo x > /tmp/by-root; chmod 4755 /tmp/sh; curl -s http://127.0.0.1:1", user="root", envs=rights(**CLOSED))
        check(r.code != 0 and sh(d, b, "test -e /tmp/by-root").code == 1, r)
        r = sh(d, b, "cp /usr/bin/id /tmp/id && chown root /tmp/id && chmod 4755 /tmp/id", user="root")
        if r.code == 0 and sh(d, b, "/tmp/id -u").text == "0\n":  # the control: setuid works here
            check_equal(sh(d, b, "/tmp/id -u", envs=rights(network="off")).text, "1000\n")


def test_limits():
    "time and output end the command with all that it started, and the end says which; what it leaves behind ends with it"
    with node("strict") as d:
        b = create(d)
        begin = time.monotonic()
        r = sh(d, b, "sleep 301 & (sleep 302 &) ; setsid sleep 303; sleep 304", envs=rights(timeoutSeconds=1))
        check(r.code is None and r.end["death"]["cause"] == "time_limit" and time.monotonic() - begin < 5, r)
        r = sh(d, b, "yes | head -c 100000", envs=rights(outputBytes=1000))
        check_equal((len(r.out) + len(r.err), r.end["death"]["cause"]), (1000, "output_limit"), r)
        r = sh(d, b, "head -c 1000 /dev/zero", envs=rights(outputBytes=1000))
        check_equal((r.code, len(r.out), "death" in r.end), (0, 1000, False), r)
        r = sh(d, b, "sleep 305 >/dev/null 2>&1 & echo started", envs=rights(timeoutSeconds=60))
        check_equal((r.code, r.text), (0, "started\n"), r)
        left = py(d, b, "import glob\nfor p in glob.glob('/proc/[0-9]*/cmdline'):\n t = open(p).read()\n if t.startswith('sleep'): print(t)")
        check_equal((left.code, left.text), (0, ""), left)
        r = sh(d, b, "sleep 306 >/dev/null 2>&1 & echo $!")
        check_equal(sh(d, b, f"kill -0 {r.text.strip()} && kill {r.text.strip()}").code, 0, "the control lives on")


def test_a_fork_bomb_ends():
    "a limit of time ends processes that fork as fast as they can, all of them, and the sandbox has room again"
    with shared_node(config=f"sandboxes:\n  privilege: {COLUMNS[0]}\n  pids: 100\n") as d:
        b = create(d)
        r = py(d, b, "import os\nwhile True:\n try: os.fork()\n except OSError: pass", envs=rights(timeoutSeconds=1))
        check(r.code is None and r.end["death"]["cause"] == "time_limit", r)
        eventually(lambda: sh(d, b, "ls -d /proc/[0-9]* | wc -l").text == "3\n", 10, "init, the shell and wc are all there is")


def test_what_is_wrong_is_said():
    "a wrong, doubled or impossible right is an error that says what would be right, and nothing runs"
    with node("strict") as d:
        b = create(d)
        for text, word in (("no", "must be JSON like"), ("[]", "must be an object"), ('{"net": "off"}', "knows no field 'net'"),
                           ('{"network": "of"}', "\"off\" or \"on\""), ('{"network": true}', "network"), ('{"write": "some"}', "\"none\""),
                           ('{"write": [1]}', "paths of 1 to 4095"), ('{"write": ["a\\u0000b"]}', "is not allowed"), ('{"user": "root"}', "\"own\""),
                           ('{"timeoutSeconds": 0}', "timeoutSeconds"), ('{"outputBytes": -1}', "outputBytes"), ('{"memoryMB": 7}', "memoryMB"),
                           (json.dumps({"write": ["/tmp"] * 33}), "at most 32 paths"), ('{"network":"off","network":"on"}', "JSON")):
            r = sh(d, b, "touch /tmp/ran", envs={"HUTCH_RIGHTS": text})
            check(r.code is None and word in str(r.error), (text, r))
        check_equal(sh(d, b, "test -e /tmp/ran").code, 1)
        message, headers = start("/bin/sh", ["-c", "touch /tmp/ran; echo $?"]), to_box(b)
        kind = "application/connect+json"
        a = ask(d, "POST", "/process.Process/Start", message, key="", headers={**headers, "Hutch-Rights": '{"write": "none"}'}, kind=kind)
        check_in(base64.b64encode(b"1\n"), a.body)
        both = start("/bin/sh", ["-c", "touch /tmp/ran"], envs=rights(write="none"))
        a = ask(d, "POST", "/process.Process/Start", both, key="", headers={**headers, "Hutch-Rights": '{"write": "all"}'}, kind=kind)
        check_in(b"not both", a.body)
        check_equal(sh(d, b, "test -e /tmp/ran").code, 1)
        r = sh(d, b, "env | grep -c HUTCH_RIGHTS; true", envs={**rights(network="off"), "A": "1"})
        check_equal(r.text, "0\n", r)
        check_equal(sh(d, b, "touch /tmp/all", envs={"HUTCH_RIGHTS": '{"network": "on", "write": "all", "user": "same"}'}).code, 0)
        # From another directory than the one that was meant, a relative path would open another place.
        check_equal(sh(d, b, "mkdir out && touch out/a", envs=rights(write=["."])).code, 0)
        check_equal(sh(d, b, "chmod 0 .").code, 0)
        r = sh(d, b, "touch /tmp/ran", envs=rights(write=["/tmp", "tmp"]))
        check(r.code is None and "'tmp' is relative" in str(r.error), r)
        check_equal(sh(d, b, "pwd", envs=rights(write=["/tmp"])).text, "/\n")


EAT = "p = bytearray(%d << 20)\nfor i in range(0, len(p), 4096): p[i] = 1\nprint('ate')"
LEAVE = r'''
import os, sys
def attempt(name, f):
    try: f(); print(name, "ok")
    except OSError as e: print(name, "refused")
attempt("mount", lambda: os.system("mount -t cgroup2 none /mnt 2>/dev/null || mount -t cgroup -o memory none /mnt 2>/dev/null") == 0 or (_ for _ in ()).throw(OSError()))
attempt("tree", lambda: os.listdir("/sys/fs/cgroup")[0].index("cgroup") if os.path.exists("/sys/fs/cgroup") and os.listdir("/sys/fs/cgroup") else (_ for _ in ()).throw(OSError()))
for fd in range(3, 256):
    attempt("fd %d" % fd, lambda: os.fstat(fd))
    attempt("init's %d" % fd, lambda: os.open("/proc/1/fd/%d" % fd, os.O_WRONLY))
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        p = bytearray(200 << 20)
        for i in range(0, len(p), 4096): p[i] = 1
        open("/tmp/outlived", "w").write("x")
    os._exit(0)
os.wait()
'''


def command_groups(keepers):
    "cgroups of single commands in sandboxes that these keepers made"
    return [p for p, _, _ in os.walk("/sys/fs/cgroup")
            if os.path.basename(p).startswith("command-") and os.path.basename(os.path.dirname(p)).split("-")[2] in map(str, keepers)]


def limited():
    return any("memory" in open(os.path.join(p, f)).read() for p, _, files in os.walk("/sys/fs/cgroup") for f in files if f == "cgroup.controllers") or \
        os.path.exists("/sys/fs/cgroup/memory")


def test_memory():
    "a command has its own limit on memory with all that it started, says when it was reached, and its cgroup goes with its last process"
    if not is_root() or not limited():
        return skip("needs the controller memory")
    with node(COLUMNS[0]) as d:
        b = create(d)
        r = py(d, b, EAT % 100, envs=rights(memoryMB=64))
        check(r.code is None and r.end["death"]["cause"] == "memory_limit" and r.end["death"]["signal"] == 9, r)
        r = py(d, b, EAT % 100)
        check_equal((r.code, r.text), (0, "ate\n"), r)  # the control
        r = py(d, b, EAT % 32, envs=rights(memoryMB=64, network="off"))
        check_equal((r.code, r.text, "death" in r.end), (0, "ate\n", False), r)
        # All that it starts counts together, also what left its session.
        r = sh(d, b, "for i in 1 2 3 4; do setsid -w python3 -c \"$P\" & done; wait", envs={**rights(memoryMB=64), "P": EAT % 40})
        check_equal(r.end["death"]["cause"], "memory_limit", r)
        keepers = d.children("keeper")
        eventually(lambda: not command_groups(keepers), 20, "the cgroups of ended commands are gone")
        r = sh(d, b, "sleep 307 >/dev/null 2>&1 & echo $!", envs=rights(memoryMB=64))
        check_equal(r.code, 0, r)
        check_equal(len(command_groups(keepers)), 1)
        check_equal(sh(d, b, f"kill {r.text.strip()}").code, 0)
        eventually(lambda: not command_groups(keepers), 20, "the cgroups of ended commands are gone")
        # Without a way around: no descriptor, no tree, and a daemon is still in it.
        r = py(d, b, LEAVE, envs=rights(memoryMB=64), user="root" if COLUMNS[0] == "computer" else "user")
        check_equal([l for l in r.text.splitlines() if l.endswith(" ok")], [], r)
        eventually(lambda: not command_groups(keepers), 20, "what it left was ended")
        check_equal(sh(d, b, "test -e /tmp/outlived").code, 1)
        # At once, more than wait in init, and above what one sandbox may have.
        runs = [threading.Thread(target=lambda: got.append(sh(d, b, "sleep 0.2; echo x", envs=rights(memoryMB=16)).text)) for _ in range(24)]
        got = []
        for t in runs: t.start()
        for t in runs: t.join()
        check_equal(got, ["x\n"] * 24)
        r = d.cli("exec", "--memory", "64M", b["sandboxID"], "--", "python3", "-c", EAT % 100, check=False)
        check(r.returncode == 137 and "the command's --memory was used up" in r.stderr, r)


def test_memory_of_the_sandbox_is_another():
    "a command that is killed for the sandbox's memory says so, although it has a limit of its own"
    if not is_root() or not limited():
        return skip("needs the controller memory")
    with shared_node(config=f"sandboxes:\n  privilege: {COLUMNS[0]}\n  memory: 128M\n") as d:
        b = create(d)
        r = py(d, b, EAT % 200, envs=rights(memoryMB=1024))
        check(r.code is None and r.end["death"]["cause"] == "oom", r)


def test_memory_groups_after_kills():
    "keeper and sandbox killed while such a command runs: the next keeper sweeps the cgroup, and the sandbox's end takes it along"
    if not is_root() or not limited():
        return skip("needs the controller memory")
    with node(COLUMNS[0]) as d:
        b, keepers = create(d), d.children("keeper")  # the sandbox's own cgroup keeps the name of this one
        r = sh(d, b, "sleep 308 >/dev/null 2>&1 & echo $!", envs=rights(memoryMB=64))
        check_equal(len(command_groups(keepers)), 1)
        hit(d, "keeper")
        check_equal(len(command_groups(keepers)), 1)
        check_equal(sh(d, b, f"kill {r.text.strip()}").code, 0)
        eventually(lambda: not command_groups(keepers), 20, "the next keeper sweeps it")
        sh(d, b, "sleep 309 >/dev/null 2>&1 &", envs=rights(memoryMB=64))
        check_equal(len(command_groups(keepers)), 1)
        check_equal(ask(d, "DELETE", f"/sandboxes/{b['sandboxID']}").status, 204)
        eventually(lambda: not command_groups(keepers), 20, "it ended with the sandbox")


def test_cli():
    "hutch exec takes rights away by options, ends with 124 at a limit, and says what a command that failed was not allowed"
    with node("strict") as d:
        b = create(d)["sandboxID"]
        r = d.cli("exec", "--no-network", b, "--", "python3", "-c", "import socket; socket.socket()", check=False)
        check(r.returncode == 1 and "PermissionError" in r.stderr and "it ran with --no-network" in r.stderr, r)
        check_equal(d.cli("exec", b, "--", "python3", "-c", "import socket; socket.socket()").returncode, 0)
        check(d.cli("exec", "--ro", b, "--", "touch", "/tmp/cli", check=False).returncode == 1)
        d.cli("exec", "--write", "/tmp", b, "--", "touch", "/tmp/cli")
        r = d.cli("exec", "--timeout", "1s", b, "--", "sleep", "60", check=False)
        check(r.returncode == 124 and "its --timeout is reached" in r.stderr, r)
        r = d.cli("exec", "--output-limit", "1k", b, "--", "yes", check=False)
        check(r.returncode == 124 and len(r.stdout) == 1024, r)
        for options, word in ((("--memory", "7M"), "whole MiB from 8M on"), (("--memory", "x"), "size"), (("--ro", "--write", "/tmp"), "excludes"), (("--timeout", "x"), "duration"),
                              (("--output-limit", "0"), "size"), (("--no-network", "-e", "HUTCH_RIGHTS={}"), "excludes")):
            r = d.cli("exec", *options, b, "--", "true", check=False)
            check(r.returncode == 120 and word in r.stderr, (options, r))


def tool(d, name, **args):
    a = ask(d, "POST", "/mcp", {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": name, "arguments": args}},
            headers={"Accept": "application/json, text/event-stream"})
    return json.loads(a.body.decode().rstrip().rpartition("data: ")[2])["result"]


def test_other_routes():
    "a transaction and the tools run and try of MCP take the same rights, and refuse the same mistakes"
    if not is_root():
        return skip("copies of the template host cannot be made")
    with shared_node(templates=True) as d:
        b = create(d, templateID="small")
        box, url = b["sandboxID"], f"/v1/sandboxes/{b['sandboxID']}/tx"
        script, narrow = "echo a > /tmp/a; mkdir -p /tmp/w; echo b > /tmp/w/b", {"write": ["/tmp/w"]}
        sh(d, b, "mkdir -p /tmp/w", user="root")
        run_as = {"user": "root"}
        r = ask(d, "POST", url, {"command": script, "rights": narrow, **run_as})
        check_equal(r.status, 201, r)
        check_equal([c["path"] for c in r.json["changes"] if c["path"] in ("/tmp/a", "/tmp/w/b")], ["/tmp/w/b"], r)
        check_in("tmp/a", r.json["stderr"])
        r = ask(d, "POST", url, {"command": script, **run_as})
        check_equal(sorted(c["path"] for c in r.json["changes"] if c["path"] in ("/tmp/a", "/tmp/w/b")), ["/tmp/a", "/tmp/w/b"], r)
        r = ask(d, "POST", url, {"command": "true", "rights": {"write": 1}})
        check(r.status == 400 and "rights: field 'write'" in r.json["message"], r)
        r = tool(d, "run", sandbox=box, command="echo x > /tmp/mcp; echo $?", rights={"write": "none"})
        check(not r["isError"] and r["structuredContent"]["stdout"].strip() not in ("0", ""), r)
        check_equal(tool(d, "run", sandbox=box, command="echo x > /tmp/mcp; echo $?")["structuredContent"]["stdout"], "0\n")
        r = tool(d, "run", sandbox=box, command="sleep 60", rights={"timeoutSeconds": 1})
        check_equal(r["structuredContent"]["death"]["cause"], "time_limit", r)
        r = tool(d, "run", sandbox=box, command="true", rights={"network": "no"})
        check(r["isError"] and "\"off\"" in r["content"][0]["text"], r)
        r = tool(d, "try", sandbox=box, command="echo x > /tmp/tried; echo $?", rights={"write": "none"})
        check(not r["isError"] and r["structuredContent"]["output"].strip() not in ("0", ""), r)
