"""init in sandboxes that keeper made: commands, what they can reach, what memory limits do."""
import contextlib
import os
import socket

import initc
import keeper as kp
from hutch_test import HUTCH, check, check_equal, check_in, identity, skip


@contextlib.contextmanager
def a_keeper(who):
    ids, entry = identity(who)

    def demote():
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    other = bool(ids)
    k = kp.Keeper(HUTCH, owner=(entry.pw_uid, entry.pw_gid) if other else None, demote=demote if other else None,
                  home=entry.pw_dir if who != "root" else None).start()
    try:
        yield k
    finally:
        k.close()


@contextlib.contextmanager
def a_box(who, **fields):
    with a_keeper(who) as k:
        client = k.client()
        reply = client.create("box", **fields)
        check(reply.error == kp.OK, reply.text.decode())
        init = initc.Init(k.run / "box.sock")
        init.bind(env=["E2B_SANDBOX=true"])
        yield init, client
        init.close()
        client.close()


def sh(init, script, **options):
    exited, code, out, err, _ = init.run("sh", "-c", script, **options)
    check(exited and code == 0, f"{script}: {code} {err}")
    return out


def test_commands(who):
    "commands run as the user behind every wall, files are read and made as the user's, init is out of reach"
    for flags in (0, kp.STRICT):
        with a_box(who, flags=flags) as (init, _):
            check_equal(sh(init, "id -un; pwd; hostname; echo $E2B_SANDBOX"), "user\n/home/user\nbox\ntrue\n")
            check_equal(sh(init, "echo x > a; cat a; ls /proc/self/fd | wc -l"), "x\n4\n")
            check_equal(sh(init, "cat /proc/self/oom_score_adj"), "300\n")
            status = sh(init, "grep -E '^(NoNewPrivs|Seccomp|CapEff):' /proc/self/status")
            check_in("CapEff:\t0000000000000000", status)
            check_in("Seccomp:\t2", status)
            check_in(f"NoNewPrivs:\t{1 if flags else 0}", status)
            check_equal(sh(init, "cat /proc/1/environ 2>/dev/null || echo no"), "no\n")
            check_equal(sh(init, "ls /proc/1/fd 2>/dev/null || echo no"), "no\n")
            check_equal(sh(init, "touch /usr/x 2>/dev/null || echo no"), "no\n")
            data, fds = init.call(initc.OPEN, initc.text("") + initc.text("a"))
            check_equal(os.read(fds[0], 10), b"x\n")
            os.close(fds[0])
            data, fds = init.call(initc.CREATE, initc.text("") + initc.text("deep/b") + b"\0\0\0\0")
            with socket.socket(fileno=fds[0]) as sink:
                sink.sendall(b"made outside")
                sink.shutdown(socket.SHUT_WR)
                check_equal(sink.recv(100)[:4], b"\0\0\0\0", "the file is in its place")
            check_equal(sh(init, "stat -c %U deep deep/b; cat deep/b"), "user\nuser\nmade outside")
            for path in ("/proc/1/mem", "/proc/1/root/etc/passwd", "/dev/null"):
                try:
                    init.call(initc.OPEN, initc.text("") + initc.text(path))
                    check(False, f"{path} was opened")
                except initc.Failure:
                    pass


def test_notified_calls(who):
    "init makes netlink sockets for commands and sets the size of other sockets' buffers; it is not fooled by what stands in for its key"
    code = ("import ctypes, socket\nl = ctypes.CDLL(None)\n"
            "s = socket.socket(16, 3, 0); s.setsockopt(1, 8, 1 << 20)\n"
            "u = socket.socket(2, 2, 0); u.setsockopt(1, 8, 50000); print(s.getsockopt(1, 8), u.getsockopt(1, 8))\n"
            "key = lambda a, v: ctypes.c_ulong(a << 32 | v)\n"
            "v = ctypes.c_int(1 << 20)\n"
            "l.syscall(54, key(0xc6a4a793, s.fileno()), key(0x5bd1e995, 1), 8, ctypes.byref(v), 4)\n"
            "n = [l.syscall(41, key(0xc6a4a793, 16), key(0x5bd1e995, 3), 0) for _ in range(40)]\n"
            "print(s.getsockopt(1, 8), sum(x >= 0 for x in n))\n")
    for flags in (0, kp.STRICT):
        with a_box(who, flags=flags) as (init, _):
            exited, status, out, err, _ = init.run("python3", "-c", code)
            check_equal((exited, status, out), (True, 0, "65536 100000\n65536 0\n"), err)
            check_in(": lo:", sh(init, "ip -o link"))
            check_equal(sh(init, "for i in $(seq 40); do ip -o link || exit 1; done | wc -l"), "40\n")


def test_terminal(who):
    "a command with a terminal of the sandbox's own"
    with a_box(who) as (init, _):
        exited, code, out, _ = init.run("sh", "-c", "tty; stty size; exit 5", flags=initc.PTY)
        check(exited and code == 5, f"{code}")
        check_in("/dev/pts/", out)
        check_in("24 80", out)


def test_oom():
    "a command that takes too much memory is killed, told so, and init lives on"
    with a_box("root", memory=64 << 20) as (init, client):
        if not client.usage("box").usage.memory_limit:
            skip("no memory limit can be set here")
        hog = "x = bytearray(200 << 20); print(len(x))"
        exited, code, _, _, oom = init.run("python3", "-c", hog)
        check(not exited and code == 9, f"exited {exited} code {code}")
        check(oom, "the kill was not told as one for memory")
        check_equal(sh(init, "echo init lives"), "init lives\n")


def test_keeper_dies(who):
    "nothing of init depends on keeper"
    with a_keeper(who) as k:
        client = k.client()
        check_equal(client.create("box").error, kp.OK)
        init = initc.Init(k.run / "box.sock")
        init.bind()
        k.kill9()
        check_equal(sh(init, "echo still"), "still\n")
        init.close()
        init = initc.Init(k.run / "box.sock")
        check_equal(sh(init, "echo again"), "again\n")
        init.close()
        k.start()
        k.client().close()
