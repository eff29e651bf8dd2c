"""keeper: sandboxes survive its death, end when told or when their time is over, and leave nothing."""
import contextlib
import ctypes
import fcntl
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import time

import initc
import keeper as kp
from hutch_test import HUTCH, SOAK, check, check_equal, check_in, eventually, hutch, identity, is_root, skip

RANGE_START = 1 << 29
NS_GET_USERNS, NS_GET_OWNER_UID = 0xB701, 0xB704
SO_COOKIE = 57


def groups():
    """Leaves in the group of all keepers whose maker is one of ours; see cgroup_make_name()."""
    return {path for path, _, _ in os.walk("/sys/fs/cgroup") if "/hutch/hutch-" in path and os.path.basename(path).startswith("hutch-")}


def made_by(pids):
    return {g for g in groups() if int(os.path.basename(g).split("-")[2]) in pids}


@contextlib.contextmanager
def a_keeper(who="root", *arguments):
    ids, entry = identity(who)

    def demote():
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    other = bool(ids)
    k = kp.Keeper(HUTCH, arguments, owner=(entry.pw_uid, entry.pw_gid) if other else None, demote=demote if other else None,
                  home=entry.pw_dir if who != "root" else None)
    k.pids = set()
    start = k.start

    def started():
        start()
        k.pids.add(k.process.pid)
        return k
    k.start = started
    k.start()
    try:
        yield k
    finally:
        k.close()
    check_equal(made_by(k.pids), set(), "cgroups are left")


def must(reply):
    check(reply.error == kp.OK, reply.text.decode())
    return reply


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def descriptors(k):
    return len(os.listdir(f"/proc/{k.process.pid}/fd"))


def nothing_left(k, pids):
    check_equal(sorted(os.listdir(k.run)), ["journal", "keeper.sock"])
    check_equal([n for n in os.listdir(k.run / "journal") if n[0] != "."], [])
    check_equal([p for p in pids if alive(p)], [])
    check_equal(made_by(k.pids), set())


def test_older_kernels(who):
    "where a tree that hangs nowhere cannot be copied, the host's stays mounted in keeper's own namespace"
    with a_keeper(who, "--attached") as k:
        client = k.client()
        for box in ("one", "two"):
            pid = must(client.create(box)).init_pid
            if is_root():
                check_equal(stat.S_IMODE(os.stat(f"/proc/{pid}/root/etc/shadow").st_mode), 0)
                check_equal(os.listdir(f"/proc/{pid}/root/home"), ["user"])
        check_in(" /host ", pathlib.Path(f"/proc/{k.process.pid}/mountinfo").read_text())


def test_kill_and_restart(who):
    "three sandboxes survive kill -9 of keeper; the next one knows them, ends them, and nothing is left"
    with a_keeper(who) as k:
        client = k.client()
        pids = {box: must(client.create(box)).init_pid for box in ("one", "two", "three")}
        check(all(alive(p) for p in pids.values()), pids)
        check_equal(client.create("one").error, kp.EXISTS)
        k.kill9()
        check(all(alive(p) for p in pids.values()), "a sandbox died with keeper")
        k.start()
        client = k.client()
        check_equal({b: i.alive for b, i in client.list().items()}, {b: 1 for b in pids})
        again = client.create("two")
        check_equal((again.error, again.init_pid), (kp.EXISTS, pids["two"]))
        for box, pid in pids.items():
            must(client.kill(box))
            check(not alive(pid), f"{box} lives after the answer to its kill")
        check_equal(client.kill("one").error, kp.NO_SANDBOX)
        check_equal(client.list(), {})
        nothing_left(k, pids.values())


def test_creator_is_gone(who):
    "a sandbox whose creator is gone before it is ready is ended: no answer names it, nor the list that the next client was given"
    with a_keeper(who) as k:
        client = k.client()
        must(client.create("kept"))
        for i in range(10):
            gone = k.client()
            gone.list()
            os.kill(k.process.pid, signal.SIGSTOP)  # what follows is there all at once
            gone.begin(f"orphan-{i}")
            gone.close()
            asked = client.send(kp.Simple(), kp.LIST_TYPE)
            os.kill(k.process.pid, signal.SIGCONT)
            items = client.wait(asked)
            check_equal([x.id for x in items.item[:items.n]], [b"kept"])
        eventually(lambda: [n for n in os.listdir(k.run / "journal") if n[0] != "."] == ["kept"], 20, "nothing of the others is kept")
        check_equal(set(client.list()), {"kept"})
        check_equal(len({os.path.basename(g) for g in made_by(k.pids)}), min(1, len(made_by(k.pids))), "cgroups")
        must(client.kill("kept"))
        nothing_left(k, ())


def test_time_is_over(who):
    "keeper ends a sandbox at its deadline with nobody connected, also one that it adopted, and tells until forgotten"
    with a_keeper(who) as k:
        client = k.client()
        first = must(client.create("short", seconds=0.3)).init_pid
        second = must(client.create("later", seconds=600)).init_pid
        client.close()
        eventually(lambda: not alive(first), 5, "the end of the sandbox")
        client = k.client()
        death = client.wait_death("short")
        check_equal(kp.CAUSES[death.cause], "ttl")
        check(abs(death.at_unix_ms / 1000 - time.time()) < 60, death.at_unix_ms)
        k.kill9()
        k.start()
        client = k.client()
        check_equal(kp.CAUSES[client.wait_death("short").cause], "ttl")
        must(client.deadline("later", kp.boottime_ms() + 200))
        check_equal(kp.CAUSES[client.wait_death("later").cause], "ttl")
        check(not alive(second))
        items = client.list()
        check_equal({b: (i.alive, kp.CAUSES[i.cause]) for b, i in items.items()}, {"short": (0, "ttl"), "later": (0, "ttl")})
        client.forget("short")
        must(client.kill("later"))
        check_equal(client.list(), {})
        nothing_left(k, (first, second))


def test_deadline_passed_while_down():
    "a deadline that passed while no keeper ran is kept at once by the next one"
    with a_keeper() as k:
        for life in (500, 5000, 30000):  # on a slow machine keeper may have kept it before it could be killed
            client = k.client()
            pid = must(client.create("box")).init_pid
            end = kp.boottime_ms() + life
            must(client.deadline("box", end))
            k.kill9()
            if kp.boottime_ms() < end:
                break
            k.start()
            must(k.client().kill("box"))
        time.sleep(max(0, end - kp.boottime_ms()) / 1000 + 0.3)
        check(alive(pid))
        k.start()
        check_equal(kp.CAUSES[k.client().wait_death("box").cause], "ttl")
        check(not alive(pid))


def test_unasked_deaths():
    "a sandbox whose init is killed is reported, with a cause that is known or said to be unknown"
    with a_keeper() as k:
        client = k.client()
        pid = must(client.create("own")).init_pid
        os.kill(pid, signal.SIGKILL)
        death = client.wait_death("own")
        check_equal((kp.CAUSES[death.cause], death.status), ("unknown", signal.SIGKILL))
        pid = must(client.create("while-down")).init_pid
        k.kill9()
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not alive(pid))
        k.start()
        client = k.client()
        check_equal(kp.CAUSES[client.wait_death("while-down").cause], "unknown")
        for box in ("own", "while-down"):
            must(client.kill(box))
        nothing_left(k, ())


def test_oom():
    "a sandbox whose memory limit killed its init died of that"
    with a_keeper() as k:
        client = k.client()
        pid = must(client.create("full", memory=16 << 20)).init_pid
        # Something outside eats the sandbox's memory, and its init is the first that the kernel picks.
        groups_of = [g for g in made_by(k.pids) if "/memory/" in g or os.path.exists(g + "/memory.max")]
        if not groups_of:
            skip("no memory controller")
        pathlib.Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
        eat = "dd if=/dev/zero of=/dev/null bs=20M count=100 & "  # each is smaller than what init seems to be now
        inner = groups_of[0] + "/main" if os.path.exists(groups_of[0] + "/main") else groups_of[0]
        script = f"echo $$ > {inner}/cgroup.procs; {eat * 3} wait"
        subprocess.run(["sh", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=180)
        death = client.wait_death("full")
        check_equal(kp.CAUSES[death.cause], "oom", death.usage.oom_kills)
        check(death.usage.oom_kills >= 1)
        client.kill("full")


def status(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def test_walls():
    "own ids, own namespaces, the host's tree read-only with secrets covered and keeper's directories out of sight"
    with a_keeper() as k:
        client = k.client()
        pids = [must(client.create(box, hostname="my-host")).init_pid for box in ("one", "two")]
        uids = [int(status(p)["Uid"].split()[0]) for p in pids]
        check(all(u >= RANGE_START and u % 65536 == 0 for u in uids) and uids[0] != uids[1], uids)
        for pid in pids:
            for kind in ("user", "mnt", "pid", "ipc", "uts", "net", "cgroup"):
                inside = os.readlink(f"/proc/{pid}/ns/{kind}")
                check(inside != os.readlink(f"/proc/self/ns/{kind}"), kind)
                check(inside not in [os.readlink(f"/proc/{p}/ns/{kind}") for p in pids if p != pid], kind)
        # Counts that the kernel keeps per user (inotify and others) are those of the namespace's owner.
        owners = []
        for pid in pids:
            with open(f"/proc/{pid}/ns/user") as ns:
                owners.append(struct.unpack("I", fcntl.ioctl(ns, NS_GET_OWNER_UID, b"\0" * 4))[0])
        check_equal(owners, uids)
        root = pathlib.Path(f"/proc/{pids[0]}/root")
        check_equal(stat.S_IMODE(os.stat(root / "etc/shadow").st_mode), 0)
        check_in("user:x:1000:1000", (root / "etc/passwd").read_text())
        check_in("my-host", (root / "etc/hosts").read_text())
        check_equal((root / "etc/hostname").read_text(), "my-host\n")
        check_equal(os.listdir(root / "home"), ["user"])
        check_equal(os.stat(root / "home/user").st_uid, uids[0] + 1000)
        check_equal([os.listdir(root / d) for d in ("tmp", "var/tmp", "run", "sys", "root")], [[], [], [], [], []])
        check(not (root / str(k.state)[1:]).exists() and not (root / str(k.run)[1:]).exists())
        for line in pathlib.Path(f"/proc/{pids[0]}/mountinfo").read_text().splitlines():
            options = line.split(" ")[5].split(",")
            check("nosuid" in options, line)
        check_equal(os.statvfs(root).f_flag & os.ST_RDONLY, os.ST_RDONLY)
        files = {os.readlink(f"/proc/{pids[0]}/fd/{n}") for n in os.listdir(f"/proc/{pids[0]}/fd")}
        check(not [f for f in files if "keeper" in f or "journal" in f or "pidfd" in f], files)
        check("keeper" not in pathlib.Path(f"/proc/{pids[0]}/cmdline").read_text())
        check_equal(stat.S_IMODE(os.stat(k.run / "one.sock").st_mode), 0o600)
        usage = must(client.usage("one")).usage
        check(0 < usage.memory < 4 << 20 and usage.pids == 1, (usage.memory, usage.pids))


def test_front_group():
    "the socket of a sandbox is for the group that was named, and nobody else"
    with a_keeper("root", "--front-gid", "12345") as k:
        must(k.client().create("one"))
        st = os.stat(k.run / "one.sock")
        check_equal((st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)), (0, 12345, 0o660))


def template(k, who, name="tiny"):
    root = k.state / "templates" / name / "root"
    if not os.path.exists("/bin/busybox"):
        skip("/bin/busybox is missing: apt-get install busybox-static")
    for folder in ("bin", "etc", "home/user"):
        (root / folder).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    os.chmod(root / "bin/busybox", 0o4755)
    (root / "link").symlink_to("/etc")
    _, entry = identity(who)
    if is_root():
        for path, _, files in os.walk(k.state / "templates"):
            for p in [path, *(os.path.join(path, f) for f in files)]:
                os.chown(p, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
        os.chmod(root / "bin/busybox", 0o4755)
    return root


def test_own_root(who):
    "a template is a root of its own: writable, its limit is the disk's, set-uid only without strict, the template untouched"
    with a_keeper(who) as k:
        image = template(k, who)
        before = sorted(os.listdir(image)), sorted(os.listdir(image / "etc"))
        client = k.client()
        for box, flags in (("computer", 0), ("strict", kp.STRICT)):
            reply = must(client.create(box, "tiny", disk=32 << 20, flags=flags))
            check_equal(reply.tier, b"container")
            lines = pathlib.Path(f"/proc/{reply.init_pid}/mountinfo").read_text().splitlines()
            options = next(line for line in lines if line.split(" ")[4] == "/").split(" ")[5].split(",")
            check_equal(("nosuid" in options, "nodev" in options, "rw" in options), (bool(flags), True, True))
            root = pathlib.Path(f"/proc/{reply.init_pid}/root")
            if is_root():
                check_equal(os.stat(root / "bin/busybox").st_uid, int(status(reply.init_pid)["Uid"].split()[0]))
                check_equal(os.statvfs(root).f_blocks * os.statvfs(root).f_bsize, 32 << 20)
                check_in("sandbox", (root / "etc/hosts").read_text())
            if who == "root":
                (root / "new").write_text("x")
        check_equal((sorted(os.listdir(image)), sorted(os.listdir(image / "etc"))), before)


def test_refusals(who):
    "wrong requests are refused by name, and none of them leaves anything"
    with a_keeper(who) as k:
        client = k.client()
        image = template(k, who, "sly")
        shutil.rmtree(image)
        image.symlink_to("/etc")
        for fields, error, text in (
                ({"template": "none"}, kp.NO_TEMPLATE, "none"), ({"template": "sly"}, kp.NO_TEMPLATE, "sly"),
                ({"template": "../x"}, kp.BAD_REQUEST, "template"), ({"memory": 1}, kp.BAD_REQUEST, "memory"),
                ({"flags": 64}, kp.BAD_REQUEST, "flags"), ({"hostname": "a b"}, kp.BAD_REQUEST, "hostname")):
            reply = client.create("box", **fields)
            check_equal(reply.error, error, reply.text)
            check_in(text, reply.text.decode())
        check_equal(client.create("../box").error, kp.BAD_REQUEST)
        check_equal(client.create("keeper").error, kp.BAD_REQUEST)
        for junk in (b"", b"x", b"\0" * 4096):
            if junk:
                client.sock.send(junk)
                client.receive()
        check_equal(client.list(), {})
        nothing_left(k, ())


def test_full():
    "a node that runs as many sandboxes as it may says so"
    with a_keeper("root", "--max-sandboxes", "2") as k:
        client = k.client()
        must(client.create("one"))
        must(client.create("two"))
        check_equal(client.create("three").error, kp.CAPACITY)
        must(client.kill("one"))
        must(client.create("three"))


def test_many_at_once():
    "creates and kills overlap; every one is answered and nothing is left"
    with a_keeper() as k:
        client = k.client()
        boxes = [f"box{i}" for i in range(300 if SOAK else 60)]
        numbers = [client.begin(box) for box in boxes]
        pids = [must(client.wait(n)).init_pid for n in numbers]
        check_equal(len(client.list()), len(boxes))
        eventually(lambda: descriptors(k) <= len(boxes) + 28, 10, f"{descriptors(k)} descriptors for {len(boxes)} sandboxes")
        numbers = [client.send(kp.Simple(id=box.encode()), kp.KILL) for box in boxes]
        for n in numbers:
            must(client.wait(n))
        nothing_left(k, pids)


def test_killed_while_creating(who):
    "keeper killed in the middle of creates: what was not acknowledged is swept or known, and nothing else is left"
    rounds = 40 if SOAK else 5
    with a_keeper(who) as k:
        for i in range(rounds):
            client = k.client()
            client.list()
            for n in range(6):
                client.begin(f"box-{i}-{n}")
            time.sleep(0.001 * (i * 3 % 17))
            k.kill9()
            client.close()
            k.start()
            client = k.client()
            known = client.list()
            eventually(lambda: {b for b, v in client.list().items() if v.alive} ==
                       {n[:-5] for n in os.listdir(k.run) if n.endswith(".sock") and n != "keeper.sock"}, 10, "sockets")
            for box in known:
                must(client.kill(box))
            eventually(lambda: not client.list(), 10, "the end of all")
        eventually(lambda: not made_by(k.pids), 10, "cgroups gone")
        nothing_left(k, ())


def test_one_keeper_only():
    "a second keeper on the same state directory does not run"
    with a_keeper() as k:
        k.client().list()
        first = k.process
        second = kp.Keeper(HUTCH)
        shutil.rmtree(second.state)
        second.state.symlink_to(k.state)
        second.start()
        try:
            check(second.process.wait(120) != 0)
            check_in("another keeper", second.log_text())
            check(first.poll() is None)
        finally:
            second.close()


def test_supervisor_gone():
    "keeper dies with whoever started it; its sandboxes do not"
    with a_keeper() as k:
        pid = must(k.client().create("box")).init_pid
        k.kill9()
        script = ("import sys,subprocess,time; sys.path.insert(0, sys.argv[1]); import keeper, pathlib\n"
                  "k = keeper.Keeper.__new__(keeper.Keeper); k.program, k.arguments, k.demote, k.home = sys.argv[2], [], None, None\n"
                  "k.dir = pathlib.Path(sys.argv[3]); k.run, k.state = k.dir / 'run', k.dir / 'state'; k.start()\n"
                  "c = k.client(); c.create('second'); print(k.process.pid, flush=True); time.sleep(600)")
        outer = subprocess.Popen(["python3", "-c", script, os.path.dirname(kp.__file__), HUTCH, str(k.dir)],
                                 stdout=subprocess.PIPE, text=True)
        inner = int(outer.stdout.readline())
        k.pids.add(inner)
        outer.kill()
        outer.wait()
        eventually(lambda: not alive(inner), 5, "keeper's end")
        check(alive(pid))
        k.start()
        check_equal(sorted(b for b, i in k.client().list().items() if i.alive), ["box", "second"])


def test_gc():
    "gc names what nobody knows and removes it when asked; what lives is never touched"
    with a_keeper() as k:
        client = k.client()
        pid = must(client.create("box")).init_pid
        arguments = ("--run", k.run, "--state", k.state)
        (k.run / "journal" / "junk").write_bytes(b"x")
        with contextlib.closing(kp.socket.socket(kp.socket.AF_UNIX, kp.socket.SOCK_SEQPACKET)) as s:
            s.bind(str(k.run / "orphan.sock"))
        k.kill9()
        uppers = k.state / "stock/uppers"
        for name in ("left/u", ".gone-0123/u", "box/u"):
            (uppers / name).mkdir(parents=True)
        r = hutch("gc", *arguments)
        for name in ("left", ".gone-0123"):
            check(re.search(rf"upper +{re.escape(name)}", r.out), r)
        check_equal(r.code, 0, r)
        check_in("orphan.sock", r.out, r)
        check_in("junk", r.out, r)
        check("box.sock" not in r.out and " box" not in r.out, r)
        r = hutch("gc", "--remove", *arguments)
        check_in("(removed)", r.out, r)
        check_equal(os.listdir(uppers), ["box"], "of a sandbox that lives")
        check(alive(pid))
        k.start()
        check_equal(list(k.client().list()), ["box"])
        must(k.client().kill("box"))
        r = hutch("gc", *arguments)
        check("orphan" not in r.out and "journal" not in r.out, r)


def test_group_removed():
    "the cgroup around all sandboxes is made again when somebody removed it"
    with a_keeper() as k:
        client = k.client()
        must(client.create("one"))
        must(client.kill("one"))
        for path, folders, _ in os.walk("/sys/fs/cgroup"):
            if "hutch" in folders:
                with contextlib.suppress(OSError):  # another keeper's sandboxes are in it
                    os.rmdir(os.path.join(path, "hutch"))
        must(client.create("two"))


def test_no_subids():
    "an ordinary user without a range of ids is told how to get one"
    with a_keeper() as k:
        path = k.dir / "x"
        k2 = kp.Keeper(HUTCH, demote=lambda: (os.setgroups([]), os.setgid(65534), os.setuid(65534)), owner=(65534, 65534))
        try:
            k2.start()
            check(k2.process.wait(120) != 0, path)
            check("usermod" in k2.log_text() or "uidmap" in k2.log_text(), k2.log_text())
        finally:
            k2.close()


def test_other_boot():
    "a record of another boot is a death by that, whatever its number is now; a broken one without a process is said to be lost"
    with a_keeper() as k:
        client = k.client()
        pid = must(client.create("box")).init_pid
        record = k.run / "journal" / "box"
        must(client.kill("box"))
        pid = must(client.create("box2")).init_pid
        data = bytearray((k.run / "journal" / "box2").read_bytes())
        k.kill9()
        os.kill(pid, signal.SIGKILL)
        boot = 8 + 4 + 4 + kp.ID + kp.TEMPLATE
        data[boot:boot + 4] = b"beef"
        total = 0xCBF29CE484222325
        for byte in data[:-8]:
            total = ((total ^ byte) * 0x100000001B3) & (2**64 - 1)
        data[-8:] = total.to_bytes(8, "little")
        (k.run / "journal" / "box2").write_bytes(data)
        record.write_bytes(b"half")
        k.start()
        client = k.client()
        check_equal(kp.CAUSES[client.wait_death("box2").cause], "boot")
        check_equal(kp.CAUSES[client.wait_death("box").cause], "lost")
        check_in("sandbox box is ended (lost): its journal record is damaged", k.log_text())
        for box in ("box", "box2"):
            must(client.kill(box))
        eventually(lambda: not alive(pid), 10, "the end of the one that was killed")
        nothing_left(k, (pid,))


# --- the network --------------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def an_egress(k, who="root"):
    ids, entry = identity(who)
    egress = kp.Egress(k.run, (entry.pw_uid, entry.pw_gid) if ids else None)
    try:
        yield egress
    finally:
        egress.close()


def bound(k, box):
    init = initc.Init(k.run / f"{box}.sock")
    init.bind()
    return init


def knock(init, address, port):
    exited, code, _, err, _ = init.run("/bin/bash", "-c", f"echo hello >/dev/tcp/{address}/{port}")
    check((exited, code) == (True, 0), err)


def helper(k, name="hutch-netpool"):
    for pid in pathlib.Path(f"/proc/{k.process.pid}/task/{k.process.pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has just ended
            if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == name:
                return int(pid)
    return None


def test_way_out(who):
    "a connection to any address arrives at whoever keeper gave the sockets to; after either restarts it gives them again"
    with a_keeper(who) as k, an_egress(k, who) as egress:
        client = k.client()
        pid = must(client.create("box")).init_pid
        egress.accept()
        check_equal(egress.receive(), (egress.ATTACH, "box"))
        init = bound(k, "box")
        knock(init, "93.184.216.34", 443)
        check_equal(egress.take("box"), ("93.184.216.34", 443, b"hello\n"))
        first = bytes(egress.boxes["box"][2])
        check_equal(egress.boxes["box"][0].getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8),
                    struct.pack("Q", egress.boxes["box"][2].tcp_cookie))
        k.kill9()
        check_equal(egress.receive(), None)
        knock(init, "1.1.1.1", 80)  # waits in the backlog meanwhile
        k.start()
        egress.accept()
        check_equal(egress.receive(), (egress.ATTACH, "box"))
        check_equal(bytes(egress.boxes["box"][2]), first)
        check_equal(egress.take("box"), ("1.1.1.1", 80, b"hello\n"))
        egress.close()
        client = k.client()
        must(client.create("late"))  # nobody to tell: it is made all the same
        knock(init, "10.255.0.1", 3128)
        egress.listen()
        egress.accept()
        check_equal(sorted([egress.receive(), egress.receive()]), [(egress.ATTACH, "box"), (egress.ATTACH, "late")])
        check_equal(egress.take("box"), ("10.255.0.1", 3128, b"hello\n"))
        init.close()
        must(client.kill("box"))
        check_equal(egress.receive(), (egress.DETACH, "box"))
        must(client.kill("late"))
        check_equal(egress.receive(), (egress.DETACH, "late"))
        egress.close()
        nothing_left(k, (pid,))


def test_gone_without_keeper():
    "a sandbox that ends while no keeper runs is detached by the next one"
    with a_keeper() as k, an_egress(k) as egress:
        client = k.client()
        pids = {box: must(client.create(box)).init_pid for box in ("one", "two")}
        egress.accept()
        check_equal(sorted([egress.receive(), egress.receive()]), [(egress.ATTACH, "one"), (egress.ATTACH, "two")])
        k.kill9()
        os.kill(pids["one"], signal.SIGKILL)
        eventually(lambda: not alive(pids["one"]), 5, "the end of the sandbox")
        k.start()
        egress.accept()
        check_equal(sorted([egress.receive(), egress.receive()]), [(egress.ATTACH, "two"), (egress.DETACH, "one")])


def test_network_is_keepers(who):
    "root in a sandbox has no power over its network, no command has its sockets, and low ports are everybody's"
    with a_keeper(who) as k:
        client = k.client()
        pid = must(client.create("box")).init_pid
        init = bound(k, "box")
        if is_root():
            owner = os.stat(f"/proc/{k.process.pid}/ns/user").st_ino
            with open(f"/proc/{pid}/ns/net") as ns:
                above = fcntl.ioctl(ns, NS_GET_USERNS)
                check_equal(os.fstat(above).st_ino, owner)
                os.close(above)
        script = "\n".join((
            "import errno, os, socket",
            "fds = [f'/proc/self/fd/{n}' for n in os.listdir('/proc/self/fd')]",
            "print([os.readlink(f) for f in fds if os.path.lexists(f) and os.readlink(f).startswith('socket')])",
            "for family, protocol in ((socket.AF_NETLINK, 0), (socket.AF_NETLINK, 12)):",
            "    try:",
            "        s = socket.socket(family, socket.SOCK_RAW, protocol)",
            "        link = bytes.fromhex('20000000100005000100000000000000' + '00000000010000000000000001000000')",
            "        begin = bytes.fromhex('14000000100001000000000000000000' + '0000000a')",
            "        table = bytes.fromhex('20000000020a05000100000000000000' + '01000000' + '0a000100687574636800' + '0000')",
            "        end = bytes.fromhex('14000000110001000000000000000000' + '0000000a')",
            "        s.send(begin + table + end if protocol else link)",
            "        print(errno.errorcode[-int.from_bytes(s.recv(4096)[16:20], 'little', signed=True)])",
            "    except OSError as e:",
            "        print(errno.errorcode[e.errno])",
            "socket.create_server(('127.0.0.1', 80))"))
        exited, code, out, err, _ = init.run("/usr/bin/python3", "-c", script, user="root" if who == "root" else "")
        check((exited, code) == (True, 0), err)
        lines = out.split("\n")
        check_equal(lines[:2], ["[]", "EPERM"])
        check(lines[2] in ("EPERM", "EPROTONOSUPPORT", "EAFNOSUPPORT"), lines[2])
        init.close()


def test_namespaces_run_out():
    "a create waits for the next network namespace, may be killed meanwhile, and whoever makes them is started again"
    with a_keeper() as k:
        client = k.client()
        must(client.create("first"))
        maker = helper(k)
        # It has made all it was asked for when it waits in recvfrom (on x86-64, on arm64) for its one socket.
        eventually(lambda: pathlib.Path(f"/proc/{maker}/syscall").read_text().split()[:2] in (["45", "0x3"], ["207", "0x3"]),
                   10, "a full stock")
        os.kill(maker, signal.SIGSTOP)
        boxes = [f"box{i}" for i in range(34)]  # two more than there can be in advance
        numbers = {box: client.begin(box) for box in boxes}
        must(client.kill(boxes[-1]))
        refused = client.wait(numbers.pop(boxes[-1]))
        check_equal((refused.error, refused.text), (kp.FAILED, b"killed before it was ready"))
        os.kill(maker, signal.SIGCONT)
        for number in numbers.values():
            must(client.wait(number))
        os.kill(maker, signal.SIGKILL)
        eventually(lambda: helper(k) not in (None, maker), 5, "another process that makes namespaces")
        must(client.create("last"))
        for box in client.list():
            must(client.kill(box))
        # What keeper holds does not grow with what it has made.
        eventually(lambda: descriptors(k) < 28, 10, f"{descriptors(k)} descriptors")


def test_no_namespaces():
    "a host that makes no network namespace says so in the answer to each create, and at once"
    libc = ctypes.CDLL(None)

    def forbid():
        if libc.unshare(0x10000000) != 0:  # a user namespace, in which the limit is ours to set; keeper's own is the one left
            os._exit(1)
        for name, value in (("self/setgroups", "deny"), ("self/uid_map", "0 0 1"), ("self/gid_map", "0 0 1"),
                            ("sys/user/max_net_namespaces", "1")):
            pathlib.Path("/proc", name).write_text(value)
    k = kp.Keeper(HUTCH, demote=forbid)
    try:
        client = k.start().client()
        for box in ("one", "two"):
            reply = client.create(box)
            check_equal(reply.error, kp.HOST)
            check_in("user.max_net_namespaces", reply.text.decode())
        check_equal(client.list(), {})
    finally:
        k.close()


def test_name_server(who):
    "every sandbox finds its resolver and sandbox.internal at the same address"
    with a_keeper(who) as k:
        image = template(k, who)
        (image / "etc/resolv.conf").symlink_to("../run/nowhere/resolv.conf")
        client = k.client()
        for box, kind in (("host", "host"), ("own", "tiny")):
            root = pathlib.Path(f"/proc/{must(client.create(box, kind)).init_pid}/root")
            if is_root():
                check_in("nameserver 10.255.0.1\n", (root / "etc/resolv.conf").read_text())
                check_in("10.255.0.1\tsandbox.internal\n", (root / "etc/hosts").read_text())
        check(os.path.islink(image / "etc/resolv.conf"), "the template was changed")


CERTIFICATE = """-----BEGIN CERTIFICATE-----
bm90IHJlYWxseSBhIGNlcnRpZmljYXRl
-----END CERTIFICATE-----
"""


def test_trust():
    "bundles of a root get the installation's certificate in a layer over it; the template stays; a new one is noticed"
    with a_keeper() as k:
        image = template(k, "root")
        bundle = image / "etc/pki/tls/certs/ca-bundle.crt"
        bundle.parent.mkdir(parents=True)
        bundle.write_text("# theirs")
        (image / "etc/ssl").mkdir()
        (image / "etc/ssl/certs").symlink_to("../pki/tls/certs")  # as some distributions have it
        (image / "usr/local").mkdir(parents=True)
        os.chmod(image / "etc/pki", 0o750)
        template(k, "root", "bare")
        (k.state / "egress").mkdir()
        authority = k.state / "egress/trusted.crt"
        client = k.client()

        def root_of(box, kind="tiny"):
            return pathlib.Path(f"/proc/{must(client.create(box, kind)).init_pid}/root")
        check(not (root_of("none") / "etc/hutch/ca.pem").exists())
        authority.write_text(CERTIFICATE)
        one = root_of("one")
        check_equal((one / "etc/pki/tls/certs/ca-bundle.crt").read_text(), "# theirs\n" + CERTIFICATE)
        check_equal((one / "etc/hutch/ca.pem").read_text(), CERTIFICATE)
        check_equal((one / "usr/local/share/ca-certificates/hutch.crt").read_text(), CERTIFICATE)
        check(os.path.islink(one / "etc/ssl/certs"), "a link became a directory")
        check_equal(stat.S_IMODE(os.stat(one / "etc/pki").st_mode), 0o750)
        check_equal(os.stat(one / "etc").st_uid, os.stat(one / "bin").st_uid)
        bare = root_of("bare", "bare")
        check_equal((bare / "etc/ssl/certs/ca-certificates.crt").read_text(), CERTIFICATE)
        authority.write_text("# another\n" + CERTIFICATE)
        check_equal((root_of("two") / "etc/hutch/ca.pem").read_text(), "# another\n" + CERTIFICATE)
        check_equal((one / "etc/hutch/ca.pem").read_text(), CERTIFICATE)
        (image / "etc/pki/tls/certs/ca-bundle.crt").write_text("# newer\n")
        time.sleep(1.1)  # templates are looked at once a second
        check_in("# newer\n", (root_of("three") / "etc/pki/tls/certs/ca-bundle.crt").read_text())
        check_equal((bundle.read_text(), (image / "etc/hutch").exists()), ("# newer\n", False))


def test_trust_is_bounded():
    "layers of certificates that nobody uses are collected, those of living sandboxes stay, and large bundles are left alone"
    with a_keeper() as k:
        image = template(k, "root")
        bundle = image / "etc/ssl/certs/ca-certificates.crt"
        bundle.parent.mkdir(parents=True)
        bundle.write_bytes(b"#" * ((1 << 20) + 1))
        (k.state / "egress").mkdir()
        authority = k.state / "egress/trusted.crt"
        authority.write_text(CERTIFICATE)
        client = k.client()
        first = must(client.create("kept", "tiny"))
        check_in("certificates: not added to bundles of the template above 1 MiB", first.degraded.decode())
        root = pathlib.Path(f"/proc/{first.init_pid}/root")
        check_equal((root / "etc/ssl/certs/ca-certificates.crt").stat().st_size, (1 << 20) + 1)
        layers = k.state / "trust"
        kept = os.listdir(layers)
        for i in range(66):
            authority.write_text(f"# {i}\n{CERTIFICATE}")
            must(client.create(f"box-{i}", "tiny"))
            must(client.kill(f"box-{i}"))
        names = os.listdir(layers)
        check_equal((len(names), kept[0] in names), (64, True))
        check_equal((root / "etc/hutch/ca.pem").read_text(), CERTIFICATE)
        check_equal(os.listdir(k.run / "trust"), ["kept"])
        must(client.create("again", "tiny"))  # the layer of the last one is still there


def test_trust_on_host():
    "over the host's tree the same, and nothing of the installation's own /etc/hutch"
    with a_keeper() as k:
        k.kill9()
        (k.state / "egress").mkdir()
        (k.state / "egress/trusted.crt").write_text(CERTIFICATE)
        k.start()
        client = k.client()
        root = pathlib.Path(f"/proc/{must(client.create('box')).init_pid}/root")
        check_equal(os.listdir(root / "etc/hutch"), ["ca.pem"])
        check_equal((root / "etc/hutch/ca.pem").read_text(), CERTIFICATE)
        bundle = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
        theirs = bundle.read_text() if bundle.exists() else ""
        check_equal((root / str(bundle)[1:]).read_text(), theirs + CERTIFICATE)
        java = pathlib.Path("/etc/ssl/certs/java/cacerts")
        if java.exists():
            store = (root / str(java)[1:]).read_bytes()
            check_in(b"not really a certificate", store)
            check(store[:4] == b"\xfe\xed\xfe\xed" and len(store) > len(java.read_bytes()), "not a trust store")
