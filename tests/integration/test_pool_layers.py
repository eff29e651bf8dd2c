"""Snapshots in the pool are layers as they are: nothing is copied. What they cost, what they show, and that none is lost or left behind."""
import json
import os
import pathlib
import socket
import subprocess
import time

from hutch_test import SOAK, check, check_equal, check_in, eventually
from node import Traces, hit
from node_client import ask, sh
from small import small_templates
from test_pool import a_box, df, kill_everything, needs_pool, of, pool_node
from test_templates import FILES, built, step

MIB = 1 << 20


def snapshot(d, box):
    began = time.monotonic()
    r = ask(d, "POST", of(box, "/snapshots"), {}, timeout=300)
    check_equal(r.status, 201, r)
    return r.json["snapshotID"], time.monotonic() - began


def layers(d):
    return {p.name: os.stat(p).st_ino == 256 for p in (d.state / "stock/layers").iterdir() if not p.name.startswith(".")}


def kept(d):
    return sum(layers(d).values())


def subvolumes(d):
    """Directories of STATE/stock, tmp/ and layers that are being removed included, that are subvolumes."""
    return [str(p) for where in ("tmp", "layers", "uppers") for p in (d.state / "stock" / where).glob("*") if os.stat(p).st_ino == 256]


def same_numbers(d, box, where="/home/user"):
    """Names of different files that the sandbox sees under one number."""
    text = sh(d, box, f"cd {where} && find . -type f -exec stat -c '%d:%i %n' {{}} +").text
    seen = {}
    for line in text.splitlines():
        number, name = line.split(" ", 1)
        seen.setdefault(number, []).append(name)
    return len(seen), [v for v in seen.values() if len(v) > 1]


def test_nothing_is_copied():
    "a snapshot of much data costs no room, takes little time, and what is made from it has the files; the last one removed frees the room"
    needs_pool()
    with small_templates() as templates, pool_node(templates, size="4GiB", disk="2GiB") as d:
        box = a_box(d)
        check_equal(sh(d, box, "dd if=/dev/urandom of=/home/user/big bs=1M count=300 && sync", timeout=300).code, 0)
        before = df(d)["pool"]["usedBytes"]
        ids = [snapshot(d, box)[0] for _ in range(3)]
        check_equal(kept(d), 3)
        check(df(d)["pool"]["usedBytes"] < before + 60 * MIB, (before, df(d)))
        copy = a_box(d, ids[0])
        check_equal(sh(d, copy, "sha256sum /home/user/big").text, sh(d, box, "sha256sum /home/user/big").text)
        check_equal(d.cli("store", "verify").returncode, 0)
        if not SOAK:  # a layer goes after two minutes in which no stack names it
            return
        for each in (copy, box):
            check_equal(ask(d, "DELETE", of(each)).status, 204)
        for one in ids:
            check_equal(ask(d, "DELETE", f"/templates/{one}").status, 204)
        eventually(lambda: d.cli("store", "gc").returncode == 0 and not subvolumes(d), 300, f"no subvolume: {subvolumes(d)}")
        eventually(lambda: df(d)["pool"]["usedBytes"] < 100 * MIB, 60, "the room is free again")


def test_stale_quotas():
    "a collection removes the qgroups of subvolumes that are gone, once the snapshots that held their data are gone too"
    needs_pool()
    with small_templates() as templates, pool_node(templates) as d:
        stock = d.state / "stock"

        def btrfs(*args):
            return subprocess.run(["btrfs", *map(str, args)], text=True, capture_output=True, check=True).stdout

        def stale():
            known = {line.split()[1] for line in btrfs("subvolume", "list", stock).splitlines()} | {"5"}
            return [q.split()[0] for q in btrfs("qgroup", "show", stock).splitlines() if q.startswith("0/") and q.split()[0][2:] not in known]
        box = a_box(d)
        for name in ("one", "two"):
            btrfs("subvolume", "create", stock / name)
            (stock / name / "f").write_bytes(os.urandom(MIB))
            os.sync()
            btrfs("subvolume", "snapshot", stock / name, stock / f"{name}-kept")
            btrfs("subvolume", "delete", "-c", stock / name)
        btrfs("subvolume", "delete", "-c", stock / "one-kept")
        btrfs("subvolume", "sync", stock)
        check(len(stale()) >= 2, stale())  # that of `one-kept` as well if it counts something as it goes

        def swept():
            d.cli("store", "gc")
            return len(stale()) == 1
        eventually(swept, 60, "only that of `two` is there")
        btrfs("subvolume", "delete", "-c", stock / "two-kept")
        check_equal(sh(d, box, "head -c 1000 /dev/zero > /home/user/f; wc -c < /home/user/f").text, "1000\n")


def test_numbers():
    "no two files of a sandbox have the same inode number, however many snapshots of snapshots it is made from"
    needs_pool()
    with small_templates() as templates, pool_node(templates) as d:
        box = a_box(d)
        total = 0
        for step in range(4):
            check_equal(sh(d, box, f"for i in $(seq 1 200); do echo {step} > /home/user/f{step}-$i; done").code, 0)
            total += 200
            n, twice = same_numbers(d, box)
            check_equal((n >= total, twice), (True, []))
            one, _ = snapshot(d, box)
            box = a_box(d, one)
        check_equal(kept(d), 4)
        # Their digests are made, and what only kept numbers apart is gone: the numbers stay apart.
        check_equal(d.cli("store", "verify").returncode, 0)
        eventually(lambda: not list((d.state / "stock/layers").glob("*/below")), 60, "layers hold only their own")
        box = a_box(d, one)
        check_equal(sh(d, box, "for i in $(seq 1 200); do echo x > /home/user/x$i; done").code, 0)
        check_equal(same_numbers(d, box)[1], [])


def test_content():
    "links, whiteouts, modes, pipes and holes are in a kept snapshot as they were; a file that was written right after is as it was"
    needs_pool()
    with small_templates() as templates, pool_node(templates) as d:
        box = a_box(d)
        check_equal(sh(d, box, "cd /home/user && echo a > a && ln a b && ln -s a c && mkfifo p && chmod 751 a && truncate -s 1G hole &&"
                               " mkdir -p d/e && echo x > d/e/f && rm -f /etc/hostname-that-is-not").code, 0)
        one, _ = snapshot(d, box)
        sh(d, box, "echo b > /home/user/a; rm -r /home/user/d")
        two, _ = snapshot(d, box)
        show = "cd /home/user && stat -c '%n %h %a %F %s' a b c p hole d 2>&1 | grep -v annot; cat a"
        first, second = a_box(d, one), a_box(d, two)
        check_equal(sh(d, first, show).text.splitlines()[:3],
                    ["a 2 751 regular file 2", "b 2 751 regular file 2", "c 1 777 symbolic link 1"])
        check_equal(sh(d, first, "cat /home/user/a /home/user/d/e/f").text, "a\nx\n")
        check_equal(sh(d, second, "cat /home/user/b; ls -d /home/user/d 2>/dev/null").text, "b\n")
        check_equal(kept(d), 2)


def listen(pid, *paths):
    """Makes sockets in the sandbox of this init, as its root."""
    own = os.fork()
    if own == 0:
        try:
            os.chdir(f"/proc/{pid}/root")
            os.setegid(os.stat(f"/proc/{pid}").st_gid)
            os.seteuid(os.stat(f"/proc/{pid}").st_uid)
            for path in paths:
                socket.socket(socket.AF_UNIX).bind(path)
            os._exit(0)
        finally:
            os._exit(1)
    check_equal(os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]), 0, "the sockets")


def test_sockets():
    "sockets are not in a kept snapshot; a file of the template that one had replaced does not come back"
    needs_pool()
    with small_templates() as templates, pool_node(templates) as d:
        box = a_box(d)
        check_equal(sh(d, box, "rm /etc/motd && mkdir /etc/new && rm -r /var && mkdir /var && chmod 777 /etc", user="root").code, 0)
        listen(*Traces(d, "root").inits(), "etc/motd", "etc/new/s", "var/s", "etc/s")
        show = "ls /etc/motd /etc/s 2>/dev/null; ls -A /etc/new /var; stat -c %a /etc"
        check_equal(sh(d, box, show).text, "/etc/motd\n/etc/s\n/etc/new:\ns\n\n/var:\ns\n777\n")
        one, _ = snapshot(d, box)
        check_equal(kept(d), 1)
        check_equal(sh(d, a_box(d, one), show).text, "/etc/new:\n\n/var:\n777\n")
        check_equal(sh(d, box, "test -S /etc/motd && test -S /var/s").code, 0, "the sandbox has them still")


def test_unchanged():
    "a generation in which nothing changed is the layer of the one before; one that differs shows what"
    needs_pool()
    with small_templates() as templates, pool_node(templates) as d:
        box = a_box(d, history=True)
        for command, count in (("echo a > /home/user/a", 1), ("cat /home/user/a", 1), ("echo b >> /home/user/a", 2), ("true", 2)):
            check_equal(sh(d, box, command).code, 0)
            check_equal(kept(d), count, command)
        past = ask(d, "GET", f"/v1/sandboxes/{box['sandboxID']}/history")
        check_equal(len(past.json["generations"]), 4)
        diff = ask(d, "GET", f"/v1/sandboxes/{box['sandboxID']}/history/diff?from=1&to=4").json["changes"]
        check_equal([c["path"] for c in diff], ["/home/user/a"], diff)


def test_builds():
    "steps of a build are snapshots too: nothing is copied; another build goes on from a cached step, and no two files have one number"
    needs_pool()
    with small_templates() as templates, pool_node(templates, size="4GiB", disk="2GiB") as d:
        first = [step("RUN", "dd if=/dev/urandom of=/big bs=1M count=200 2>/dev/null; mkdir -p /n", "root"),
                 step("COPY", "src", "/from-client", "root", "")]
        write = [step("RUN", f"for i in 1 2 3 4 5 6 7 8; do echo {n} > /n/f{n}-$i; done; rm -f /n/f{n - 1}-1", "root") for n in range(3)]
        built(d, "one", first + write, files=FILES)
        check_equal((kept(d), len(layers(d))), (6, 6), "five steps and the end")
        before = df(d)["pool"]["usedBytes"]
        check(before < 300 * MIB, before)
        said = built(d, "two", first + write[:1] + [step("RUN", "echo two > /n/two; rm /from-client/x", "root")], files=FILES)
        check_equal(len([s for s in said if s.startswith("CACHED")]), 3, said)
        check_equal((kept(d), len(layers(d))), (8, 8), "one step more and the end")
        check_equal(d.cli("store", "verify").returncode, 0)
        eventually(lambda: not list((d.state / "stock/layers").glob("*/below")), 60, "layers hold only their own")
        for name, text in (("one", "2\n1\ny"), ("two", "0\ntwo\ny")):
            box = a_box(d, name)
            files = {"one": "/n/f2-1 /n/f1-2", "two": "/n/f0-1 /n/two"}[name]
            check_equal(sh(d, box, f"cat {files} /from-client/deep/y", user="root").text, text)
            check_equal(sh(d, box, "for i in $(seq 1 50); do echo x > /n/x$i; done", user="root").code, 0)
            check_equal(same_numbers(d, box, "/n")[1] + same_numbers(d, box, "/from-client")[1], [], name)
        check_equal(sh(d, box, "ls /n/f0-1 /n/f2-1 /from-client/x 2>/dev/null", user="root").text, "/n/f0-1\n")
        check(df(d)["pool"]["usedBytes"] < before + 30 * MIB, (before, df(d)))


def test_a_long_build():
    "a build whose snapshots are made into one layer on the way has each step's files, with numbers of their own"
    needs_pool()
    with small_templates() as templates, pool_node(templates) as d:
        built(d, "long", [step("RUN", f"mkdir -p /n; echo {n} > /n/f{n}", "root") for n in range(27)])
        check_equal(kept(d) < len(layers(d)), True, "some were made into one")
        box = a_box(d, "long")
        check_equal(sh(d, box, "cd /n && for i in $(seq 0 26); do cat f$i; done").text, "".join(f"{n}\n" for n in range(27)))
        check_equal(same_numbers(d, box, "/n"), (27, []))
        check_equal(d.cli("store", "verify").returncode, 0)


def test_forks_write_alike():
    "two forks that write files with the same numbers, sizes and, if they are quick, times differ in these files"
    needs_pool()
    with small_templates() as templates, pool_node(templates) as d:
        box = a_box(d)
        one, _ = snapshot(d, box)
        ids = []
        for text in ("one", "two"):
            fork = a_box(d, one)
            check_equal(sh(d, fork, f"for i in 1 2 3 4 5 6 7 8 9; do echo {text} > /home/user/f$i; done").code, 0)
            ids.append(fork)
        for fork, text in zip(ids, ("one", "two")):
            again, _ = snapshot(d, fork)
            check_equal(sh(d, a_box(d, again), "cat /home/user/f[1-9]").text, f"{text}\n" * 9)


def test_odd_names():
    "a sandbox's own files below, old and root do not stand in the way of its forks; a file that no layer stream can hold is read once, not again and again"
    needs_pool()
    with small_templates() as templates, pool_node(templates) as d:
        box = a_box(d)
        for step in range(3):
            r = sh(d, box, f"rm -rf /below /old; echo {step} > /below && mkdir -p /old/root && echo {step} > /old/below && echo {step} > /root/f", user="root")
            check_equal(r.code, 0, r)
            if step == 1:
                r = sh(d, box, "truncate -s 2251799813685248 /home/user/huge")  # 2 PiB
                check_equal(r.code, 0, r)
            box = a_box(d, snapshot(d, box)[0])
            check_equal(sh(d, box, "cat /below /old/below /root/f", user="root").text, f"{step}\n" * 3)
        check_equal(kept(d), 3)
        eventually(lambda: list((d.state / "stock/layers").glob("*/no-digest")), 60, "the layer with the file is noted")
        check(not list((d.state / "stock/uppers").glob("*/no-digest")), "the note is not handed on")


def test_killed_in_the_middle():
    "kill -9 of the layer store, of keeper or of all again and again while snapshots are taken: each that was answered is whole, none is left half"
    needs_pool()
    with small_templates() as templates, pool_node(templates) as d:
        box = a_box(d)
        good = {}
        for i in range(12 if SOAK else 5):
            sh(d, box, f"echo {i} > /home/user/f; dd if=/dev/urandom of=/home/user/data bs=1M count=20 2>/dev/null")
            pid = os.fork()
            if pid == 0:
                time.sleep(0.01 * (i + 1))
                for victim in (("layers",), ("keeper",), ("layers", "keeper"))[i % 3]:
                    hit(d, victim)
                os._exit(0)
            r = ask(d, "POST", of(box, "/snapshots"), {}, timeout=120)
            os.waitpid(pid, 0)
            if r.status == 201:
                good[r.json["snapshotID"]] = i
        kill_everything(d)
        d.start()
        check_equal(sh(d, box, "echo alive").text, "alive\n")
        good[snapshot(d, box)[0]] = (12 if SOAK else 5) - 1
        for one, i in good.items():
            check_equal(sh(d, a_box(d, one), "cat /home/user/f; wc -c </home/user/data").text.split(), [str(i), str(20 * MIB)])
        check_equal(d.cli("store", "verify").returncode, 0)
        check_equal(os.listdir(d.state / "stock/tmp"), [])
