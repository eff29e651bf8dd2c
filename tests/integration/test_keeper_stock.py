"""keeper: roots made of layers, writable layers that can be taken, pauses, volumes, and what is each sandbox's own."""
import contextlib
import fcntl
import hashlib
import os
import pathlib
import secrets
import shutil
import signal
import stat
import subprocess
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import initc  # noqa: E402
import keeper as kp  # noqa: E402
from hutch_test import check, check_equal, check_in, eventually, identity, is_root, skip  # noqa: E402
from test_keeper import a_keeper, alive, helper, made_by, must, nothing_left, status, template  # noqa: E402

INIT_FD_UPPER = 9
PASSWD = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n"


def give(k, who, path):
    """What is below path belongs to the keeper of that user."""
    ids, entry = identity(who)
    if ids:
        for folder, _, files in os.walk(path):
            for p in [folder, *(os.path.join(folder, f) for f in files)]:
                os.chown(p, entry.pw_uid, entry.pw_gid, follow_symlinks=False)


def store(k, who):
    """The directories of the store; keeper makes them when it starts."""
    k.client().list()
    return k.state / "stock"


def layer(k, who, fill):
    name = hashlib.sha256(secrets.token_bytes(8)).hexdigest()
    root = store(k, who) / "layers" / name / "root"
    root.mkdir(parents=True)
    fill(root)
    give(k, who, root.parent)
    return name


def stack(k, who, layers, base=""):
    """A stack file as src/keeper/place.h has it; its id."""
    body = struct.pack("<8sII72s", b"hstack1", 1, len(layers), base.encode())
    body += b"".join(bytes.fromhex(name) for name in layers).ljust(64 * 32, b"\0")
    name = "st-" + secrets.token_hex(8)
    path = store(k, who) / "stacks" / name
    path.write_bytes(body + hashlib.sha256(body).digest())
    give(k, who, path.parent)
    ids, entry = identity(who)
    if ids:
        os.chown(path, entry.pw_uid, entry.pw_gid)
    return name


def fill_tiny(root):
    if not os.path.exists("/bin/busybox"):
        skip("/bin/busybox is missing: apt-get install busybox-static")
    for folder in ("bin", "etc", "home/user", "data"):
        (root / folder).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    os.chmod(root / "bin/busybox", 0o755)
    for name in ("sh", "cat", "ls", "sleep", "id", "rm", "mv", "mkdir", "touch", "stat", "tr", "true", "chmod", "chown"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc/passwd").write_text(PASSWD)
    (root / "data/old").write_text("old\n")
    (root / "data/gone").write_text("gone\n")


def tiny(k, who):
    return stack(k, who, [layer(k, who, fill_tiny)])


@contextlib.contextmanager
def bound(k, box):
    init = initc.Init(k.run / f"{box}.sock")
    try:
        init.bind()
        yield init
    finally:
        init.close()


def sh(init, script, user="user", fails=False):
    exited, code, out, err, _ = init.run("/bin/sh", "-c", script, user=user)
    check(exited and (code != 0) == fails, (code, out, err))
    return out if not fails else err


def record(k, box):
    """device and inode of the upper layer, driver, quota, shift, frozen."""
    data = (k.run / "journal" / box).read_bytes()
    at = len(data) - 8 - 2816 - 8 * 40 - 64
    dev, ino, driver, quota, shift, frozen = struct.unpack_from("<QQ16s24sII", data, at)
    return dev, ino, driver.rstrip(b"\0").decode(), quota.rstrip(b"\0").decode(), shift, frozen


def upper_of(pid):
    return pathlib.Path(f"/proc/{pid}/fd/{INIT_FD_UPPER}")


def test_stack(who):
    "a root is made of the layers of a stack, uppermost first, with their whiteouts, over a template at the bottom"
    with a_keeper(who) as k:
        image = template(k, who)
        (image / "bottom").write_text("bottom\n")
        give(k, who, k.state / "templates")

        def top(root):
            (root / "data").mkdir()
            (root / "data/new").write_text("new\n")
            os.mknod(root / "data/gone", stat.S_IFCHR, 0)
        lower, upper = layer(k, who, fill_tiny), layer(k, who, top)
        client = k.client()
        reply = must(client.create("plain", stack(k, who, [upper, lower])))
        check_equal((reply.tier, reply.driver, reply.quota), (b"container", b"tmpfs", b"tmpfs"))
        with bound(k, "plain") as init:
            check_equal(sh(init, "ls /data; cat /data/old"), "new\nold\nold\n")
            check_equal(sh(init, "ls / | tr '\\n' ' '"), "bin data dev etc home proc sys tmp ")
            sh(init, "rm -r /data && mkdir /data && mv /home/user /home/other", user="root")
        must(client.create("based", stack(k, who, [upper, lower], base="tiny")))
        with bound(k, "based") as init:
            check_equal(sh(init, "cat /bottom /data/new"), "bottom\nnew\n")
        layers = k.state / "stock/layers"
        check((layers / lower / "root/data/gone").exists() and (layers / upper / "root/data/new").exists())
        reply = client.create("none", "st-0123456789")
        check_equal(reply.error, kp.NO_TEMPLATE, reply.text)
        check_in("st-0123456789", reply.text.decode())
        broken = stack(k, who, [upper])
        path = k.state / "stock/stacks" / broken
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        reply = client.create("none", broken)
        check_equal(reply.error, kp.FAILED, reply.text)
        check_in("damaged", reply.text.decode())
        for box in ("plain", "based"):
            must(client.kill(box))
        nothing_left(k, ())


def test_many_layers():
    "sixty-four layers make a root"
    with a_keeper() as k:
        def one(number):
            def fill(root):
                (root / "n").mkdir()
                (root / "n" / str(number)).write_text(str(number))
                (root / "top").write_text(str(number))
            return fill
        layers = [layer(k, "root", one(i)) for i in range(63)] + [layer(k, "root", fill_tiny)]
        must(k.client().create("deep", stack(k, "root", layers)))
        with bound(k, "deep") as init:
            check_equal(len(sh(init, "ls /n").split()), 63)
            check_equal(sh(init, "cat /top"), "0")


def test_upper_is_kept(who):
    "the first process keeps the writable layer for whoever makes a snapshot; the record says which it is; no command has it"
    with a_keeper(who) as k:
        reply = must(k.client().create("box", tiny(k, who)))
        dev, ino, driver, quota, shift, frozen = record(k, "box")
        with bound(k, "box") as init:
            sh(init, "echo hello >/tmp/mine; echo x >/home/user/file", user="root")
            fds = sh(init, "ls -l /proc/self/fd").strip().splitlines()
            check(all(line.split()[8] in ("0", "1", "2", "3") for line in fds if "->" in line), fds)
            check_in("denied", sh(init, "ls /proc/1/fd/9/", user="root", fails=True).lower())
        check_equal((driver, quota, frozen), ("tmpfs", "tmpfs", 0))
        if not is_root():
            skip("looking at the descriptors of a sandbox needs root")
        upper = upper_of(reply.init_pid)
        st = os.stat(upper / "u")
        check_equal((st.st_dev, st.st_ino), (dev, ino))
        check_equal(sorted(os.listdir(upper)), ["u", "w"])
        first = int(status(reply.init_pid)["Uid"].split()[0])
        check_equal(shift, first if who == "root" else 0)
        check_equal((upper / "u/tmp/mine").read_text(), "hello\n")
        check_equal(stat.S_IMODE(os.stat(upper / "u/tmp").st_mode), 0o1777)
        with open(upper / "u/tmp/mine") as f:
            flags = os.fstatvfs(f.fileno()).f_flag
            check(flags & os.ST_RDONLY and flags & os.ST_NOEXEC and flags & os.ST_NODEV, flags)
        reply = must(k.client().create("host"))
        check_equal((reply.driver, record(k, "host")[:3]), (b"", (0, 0, "")))
        check(not os.path.isdir(upper_of(reply.init_pid)), "a sandbox of the host template keeps a directory")


def counter(init, path="/tmp/n"):
    init.spawn("/bin/sh", "-c", f"i=0; while true; do i=$((i+1)); echo $i >{path}.new; mv {path}.new {path}; sleep 0.001; done")


def freezer_or_skip(k, box):
    reply = k.client().pause(box)
    if reply.error == kp.HOST:
        check_in("freezer", reply.text.decode())
        check_equal(k.client().list()[box].frozen, 0)
        skip("no cgroup with a freezer here: " + reply.text.decode())
    must(reply)


def test_pause(who):
    "everything in a paused sandbox stands still, also for the next keeper, until it is resumed; its first process is the same"
    with a_keeper(who) as k:
        client = k.client()
        pid = must(client.create("box", tiny(k, who))).init_pid
        count = pathlib.Path(f"/proc/{pid}/root/tmp/n")
        with bound(k, "box") as init:
            counter(init)
            freezer_or_skip(k, "box")
            must(client.pause("box"))
            check_equal((client.list()["box"].frozen, record(k, "box")[5]), (1, 1))
            before = count.read_text() if count.exists() else ""
            time.sleep(0.2)
            check_equal(count.read_text() if count.exists() else "", before)
            k.kill9()
            k.start()
            client = k.client()
            check_equal((client.list()["box"].frozen, client.list()["box"].alive), (1, 1))
            check_equal(count.read_text() if count.exists() else "", before)
            must(client.resume("box"))
            must(client.resume("box"))
            check_equal((client.list()["box"].frozen, record(k, "box")[5]), (0, 0))
            eventually(lambda: count.exists() and count.read_text() not in ("", before), 10, "the counter goes on")
        check_equal(must(client.usage("box")).init_pid, pid)
        check_equal(client.pause("other").error, kp.NO_SANDBOX)
        must(client.kill("box"))
        check_equal(client.resume("box").error, kp.NO_SANDBOX)
        nothing_left(k, (pid,))


HOLDER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import keeper
client = keeper.Client(sys.argv[2])
reply = client.hold(sys.argv[3])
print(reply.error, reply.since_us > 0, flush=True)
sys.stdin.read()
keeper.Client(sys.argv[2]).release(sys.argv[3]) if sys.argv[4] == "release" else time.sleep(600)
print("released", flush=True)
"""


def a_holder(k, box, how):
    """A process that holds the sandbox; at the end of its input it releases it over a new connection, or sleeps."""
    return subprocess.Popen([sys.executable, "-c", HOLDER, os.path.dirname(kp.__file__), str(k.run / "keeper.sock"), box, how],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Count:
    """A counter in the sandbox, seen from outside."""

    def __init__(self, pid):
        self.path = pathlib.Path(f"/proc/{pid}/root/tmp/n")

    def text(self):
        return self.path.read_text() if self.path.exists() else ""

    def stands(self):
        before = self.text()
        time.sleep(0.2)
        return self.text() == before

    def goes_on(self):
        before = self.text()
        eventually(lambda: self.text() not in ("", before), 10, "the counter goes on")


def test_hold(who):
    "a sandbox stands still while one holds it, and goes on when all have released it or are gone, unless it is paused"
    with a_keeper(who) as k:
        client = k.client()
        pid = must(client.create("box", tiny(k, who))).init_pid
        count = Count(pid)
        with bound(k, "box") as init:
            counter(init)
            freezer_or_skip(k, "box")
            must(client.resume("box"))
            count.goes_on()
            one, two = k.client(), k.client()
            check(must(one.hold("box")).since_us > 0)
            must(one.hold("box"))
            must(two.hold("box"))
            check_equal((k.holders("box"), client.list()["box"].frozen, record(k, "box")[5]), ({os.getpid()}, 0, 0))
            check(count.stands())
            must(two.release("box"))
            check(count.stands(), "the first one still holds it")
            must(one.release("box"))
            must(one.release("box"))
            count.goes_on()
            must(two.hold("box"))
            two.close()
            eventually(lambda: not k.holders("box"), 10, "its connection has ended")
            count.goes_on()
            must(one.hold("box"))
            must(client.pause("box"))
            must(one.release("box"))
            check(count.stands(), "it is paused")
            check_equal(must(one.hold("box")).since_us, 0)
            must(client.resume("box"))
            check(count.stands(), "it is held")
            check_equal(client.list()["box"].frozen, 0)
            one.close()
            count.goes_on()
        three = k.client()
        must(three.hold("box"))
        check_equal(three.pause("box").error, kp.BAD_REQUEST)
        check_equal(three.hold("other").error, kp.NO_SANDBOX)
        must(client.kill("box"))
        check_equal(three.release("box").error, kp.NO_SANDBOX)
        nothing_left(k, (pid,))


def test_hold_and_the_next_keeper():
    "the next keeper goes on with the hold of a process that lives, and thaws the sandbox of one that does not"
    with a_keeper() as k:
        client, kind = k.client(), tiny(k, "root")
        pids = {box: must(client.create(box, kind)).init_pid for box in ("released", "killed", "gone", "stopped")}
        counts = {box: Count(pid) for box, pid in pids.items()}
        for box in pids:
            with bound(k, box) as init:
                counter(init)
            freezer_or_skip(k, box)
            must(client.resume(box))
        holders = {box: a_holder(k, box, "release" if box == "released" else "sleep") for box in pids}
        try:
            for holder in holders.values():
                check_equal(holder.stdout.readline(), "0 True\n")
            k.kill9()
            holders["gone"].kill()
            holders["gone"].wait()
            check(counts["gone"].stands(), "there is no keeper")
            k.start()
            counts["gone"].goes_on()
            check(all(counts[box].stands() for box in ("released", "killed", "stopped")))
            holders["released"].stdin.close()
            check_equal(holders["released"].stdout.readline(), "released\n")
            counts["released"].goes_on()
            holders["killed"].kill()
            counts["killed"].goes_on()
            check_equal([k.holders(box) for box in ("released", "killed", "gone")], [set()] * 3)
            check(counts["stopped"].stands())
            k.process.terminate()
            check_equal(k.process.wait(), 0)
            counts["stopped"].goes_on()
            k.start()
        finally:
            for holder in holders.values():
                holder.kill()
                holder.wait()
        client = k.client()
        for box in pids:
            must(client.kill(box))
        nothing_left(k, pids.values())


def test_markers_of_older_versions():
    "what a layer store of an older version left frozen, with a marker in RUN, is thawed once; a paused sandbox stays paused"
    with a_keeper() as k:
        client, kind = k.client(), tiny(k, "root")
        pids = {box: must(client.create(box, kind)).init_pid for box in ("one", "paused")}
        counts = {box: Count(pid) for box, pid in pids.items()}
        for box in pids:
            with bound(k, box) as init:
                counter(init)
            freezer_or_skip(k, box)
        check_equal((record(k, "one")[5], record(k, "paused")[5]), (1, 1))
        k.kill9()
        # As if the job had frozen the first one itself: the journal knows nothing of it.
        path = k.run / "journal/one"
        data = bytearray(path.read_bytes())
        at = len(data) - 8 - 2816 - 8 * 40 - 4
        data[at:at + 4] = bytes(4)
        total = 0xCBF29CE484222325
        for byte in data[:-8]:
            total = ((total ^ byte) * 0x100000001B3) & (2**64 - 1)
        data[-8:] = total.to_bytes(8, "little")
        path.write_bytes(data)
        (k.run / "stock-frozen").mkdir(mode=0o700)
        for name in ("one", "paused", "ended"):
            (k.run / "stock-frozen" / name).touch()
        check(counts["one"].stands())
        k.start()
        client = k.client()
        check_equal({b: i.frozen for b, i in client.list().items()}, {"one": 0, "paused": 1})
        counts["one"].goes_on()
        check(counts["paused"].stands())
        check(not (k.run / "stock-frozen").exists())
        for box in pids:
            must(client.kill(box))
        nothing_left(k, pids.values())


def test_paused_and_killed():
    "a paused sandbox can be killed, and ends at its deadline; nothing is left of either"
    with a_keeper() as k:
        client, kind = k.client(), tiny(k, "root")
        pids = [must(client.create(box, kind)).init_pid for box in ("one", "two", "three")]
        for box in ("one", "two", "three"):
            with bound(k, box) as init:
                counter(init)
            freezer_or_skip(k, box)
        must(client.kill("one"))
        check(not alive(pids[0]), "it lives after the answer to its kill")
        must(client.deadline("two", kp.boottime_ms() + 100))
        check_equal(kp.CAUSES[client.wait_death("two").cause], "ttl")
        k.kill9()
        os.kill(pids[2], signal.SIGKILL)  # pending until it is thawed
        k.start()
        client = k.client()
        for box in ("two", "three"):
            must(client.kill(box))
        nothing_left(k, pids)


CERTIFICATE = "-----BEGIN CERTIFICATE-----\nbm90IHJlYWxseSBhIGNlcnRpZmljYXRl\n-----END CERTIFICATE-----\n"


def test_trust_over_stack(who):
    "the installation's certificate is added to the bundle that all layers together show, and stacks that show the same share it"
    with a_keeper(who) as k:
        def low(root):
            fill_tiny(root)
            for name in ("pki/tls/certs", "ssl/certs"):
                (root / "etc" / name).mkdir(parents=True)
            (root / "etc/pki/tls/certs/ca-bundle.crt").write_text("# low\n")
            (root / "etc/ssl/certs/ca-certificates.crt").write_text("# removed\n")

        def top(root):
            (root / "etc/pki/tls/certs").mkdir(parents=True)
            (root / "etc/pki/tls/certs/ca-bundle.crt").write_text("# top\n")
            (root / "etc/ssl/certs").mkdir(parents=True)
            os.mknod(root / "etc/ssl/certs/ca-certificates.crt", stat.S_IFCHR, 0)

        def other(root):
            (root / "elsewhere").write_text("x")
        (k.state / "egress").mkdir()
        (k.state / "egress/trusted.crt").write_text(CERTIFICATE)
        layers = [layer(k, who, top), layer(k, who, low)]
        client = k.client()
        for box, of in (("one", layers), ("two", [layer(k, who, other), *layers])):
            must(client.create(box, stack(k, who, of)))
            with bound(k, box) as init:
                check_equal(sh(init, "cat /etc/pki/tls/certs/ca-bundle.crt"), "# top\n" + CERTIFICATE)
                check("removed" not in sh(init, "cat /etc/ssl/certs/* 2>/dev/null || true"), "a removed bundle is back")
        check_equal(len([n for n in os.listdir(k.state / "trust") if n[0] != "."]), 1)


def test_own_ids(who):
    "every sandbox has a machine id and a boot id of its own, which anybody in it can read"
    with a_keeper(who) as k:
        client, kind, seen = k.client(), tiny(k, who), []
        real = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text()
        for box, of in (("one", kind), ("two", kind), ("three", "host"), ("four", "host")):
            must(client.create(box, of))
            with bound(k, box) as init:
                boot = sh(init, "cat /proc/sys/kernel/random/boot_id")
                machine = sh(init, "cat /etc/machine-id") if of == kind or os.path.exists("/etc/machine-id") else None
                sh(init, "echo x >/proc/sys/kernel/random/boot_id", user="root", fails=True)
            check_equal((len(boot), [len(p) for p in boot.strip().split("-")]), (37, [8, 4, 4, 4, 12]))
            check(boot != real, "the host's boot id")
            check(machine is None or (len(machine) == 33 and set(machine.strip()) <= set("0123456789abcdef")), machine)
            seen += [boot, machine] if machine else [boot]
        check_equal(len(set(seen)), len(seen), seen)
        if is_root():
            root = pathlib.Path(f"/proc/{client.create('one', kind).init_pid}/root")
            check_equal(stat.S_IMODE(os.stat(root / "etc/machine-id").st_mode), 0o444)


def test_tmp():
    "/tmp is part of the root: made if the root has none, left as it is if it has one"
    with a_keeper() as k:
        def with_tmp(root):
            fill_tiny(root)
            (root / "tmp").mkdir(mode=0o700)
            (root / "tmp/old").write_text("old\n")
        client = k.client()
        must(client.create("none", tiny(k, "root")))
        with bound(k, "none") as init:
            sh(init, "touch /tmp/x")
            check_equal(sh(init, "stat -c %a /tmp"), "1777\n")
        must(client.create("own", stack(k, "root", [layer(k, "root", with_tmp)])))
        with bound(k, "own") as init:
            check_equal(sh(init, "stat -c %a /tmp; cat /tmp/old", user="root"), "700\nold\n")
            must(client.kill("own"))


def test_volumes(who):
    "a volume is seen by two sandboxes at once, written by one; on disk are the ids that sandboxes see"
    with a_keeper(who) as k:
        folder = store(k, who) / "volumes" / "vol-one"
        folder.mkdir()
        give(k, who, folder)
        os.chmod(folder, 0o777)
        client, kind = k.client(), tiny(k, who)
        must(client.create("writer", kind, volumes=[("vol-one", "/mnt/deep/data", 0)]))
        must(client.create("reader", kind, volumes=[("vol-one", "/data", kp.VOLUME_RO)]))
        over = "host" if who == "root" else kind  # without root the ids over the host's tree are others
        must(client.create("host", over, flags=kp.STRICT, volumes=[("vol-one", "/home/user/data", 0)]))
        if who != "root":
            check_equal(client.create("none", "host", volumes=[("vol-one", "/home/user/data", 0)]).error, kp.HOST)
        with bound(k, "writer") as writer, bound(k, "reader") as reader, bound(k, "host") as host:
            sh(writer, "echo hello >/mnt/deep/data/file; chmod 4755 /mnt/deep/data/file; id -u >/mnt/deep/data/id")
            sh(writer, "echo root >/mnt/deep/data/root", user="root")
            check_equal(sh(reader, "cat /data/file; stat -c '%u %a' /data/file /data/root"), "hello\n1000 4755\n0 644\n")
            check_in("Read-only", sh(reader, "touch /data/x", fails=True))
            sh(host, "echo three >/home/user/data/three")
            check_equal(sh(writer, "cat /mnt/deep/data/three; stat -c %u /mnt/deep /mnt/deep/data/three"), "three\n0\n1000\n")
            lines = sh(writer, "cat /proc/self/mountinfo").splitlines()
            options = next(line for line in lines if " /mnt/deep/data " in line).split(" ")[5].split(",")
            check("nosuid" in options and "nodev" in options, options)
        if who == "root":
            check_equal([os.stat(folder / name).st_uid for name in ("file", "root", "three")], [1000, 0, 1000])
        for box in ("writer", "reader", "host"):
            must(client.kill(box))
        check_equal((folder / "file").read_text(), "hello\n")
        nothing_left(k, ())


def test_volume_refusals(who):
    "places that are the kernel's, the root or inside one another, and volumes that are not there, are refused by name"
    with a_keeper(who) as k:
        def links(root):
            fill_tiny(root)
            (root / "sly").symlink_to("/proc/self")
            (root / "top").symlink_to("/")
            (root / "loose").symlink_to("/nowhere/at/all")
            (root / "plain").write_text("x")
        for name in ("vol-one", "vol-two"):
            (store(k, who) / "volumes" / name).mkdir()
        give(k, who, k.state / "stock/volumes")
        client, kind = k.client(), stack(k, who, [layer(k, who, links)])
        for volumes in ([("vol-one", p, 0)] for p in ("/", "//", "data", "/proc", "/proc/self", "/dev/x", "/sys", "/a/../b", "/a//b",
                                                        "/a/.", "/sly/x", "/top", "/loose", "/plain", "/plain/x", "/sly/root/data")):
            reply = client.create("box", kind, volumes=volumes)
            check_equal(reply.error, kp.BAD_REQUEST, (volumes, reply.text))
            check_in("volume", reply.text.decode())
        for volumes in ([("vol-none", "/data", 0)], [("host-none", "/data", 0)], [("one", "/data", 0)],
                        [("vol-one", "/a/b", 0), ("vol-two", "/a/b/c", 0)], [("vol-one", "/a", 0), ("vol-two", "/top/a", 0)],
                        [("vol-one", "/data", 2)]):
            reply = client.create("box", kind, volumes=volumes)
            check_equal(reply.error, kp.BAD_REQUEST, (volumes, reply.text))
        reply = client.create("box", "host", volumes=[("vol-one", "/usr/data", 0)])
        check_equal(reply.error, kp.BAD_REQUEST if who == "root" else kp.HOST, reply.text)
        must(client.create("box", kind, volumes=[("vol-one", "/top/data", 0), ("vol-two", "/other", 0)]))
        must(client.kill("box"))
        check_equal(client.list(), {})
        nothing_left(k, ())


def test_host_directories():
    "a directory of the operator's table is read-only, but for strict sandboxes if the operator said nothing else"
    with contextlib.ExitStack() as after:
        folder = pathlib.Path("/run/hutch-given-" + secrets.token_hex(4))
        folder.mkdir()
        after.callback(shutil.rmtree, folder)
        os.chmod(folder, 0o777)
        (folder / "file").write_text("given\n")
        k = after.enter_context(a_keeper("root", f"--host-dir=open={folder}", f"--host-dir=closed={folder}:ro"))
        client, kind = k.client(), tiny(k, "root")
        volumes = [("host-open", "/open", 0), ("host-closed", "/closed", 0)]
        for box, flags, writable in (("computer", 0, ""), ("strict", kp.STRICT, "open")):
            must(client.create(box, kind, flags=flags, volumes=volumes))
            with bound(k, box) as init:
                check_equal(sh(init, "cat /open/file /closed/file"), "given\ngiven\n")
                for place in ("open", "closed"):
                    sh(init, f"touch /{place}/{box}", fails=place != writable)
        check_equal(sorted(os.listdir(folder)), ["file", "strict"])
        check(os.stat(folder / "strict").st_uid >= 1 << 29, "an id of the host's own")


def test_uppers_on_disk(who):
    "a writable layer on disk holds the ids that the sandbox sees, is used through all of overlay, and goes with its sandbox"
    with a_keeper(who, "--driver=layers") as k:
        client, kind = k.client(), tiny(k, who)
        uppers = store(k, who) / "uppers"
        refused = client.create("limited", kind, disk=64 << 20)
        if refused.error == kp.HOST:
            check_in("disk", refused.text.decode())
            reply = must(client.create("box", kind))
            check_in("disk: not limited", reply.degraded.decode())
        else:
            reply = must(client.create("box", kind))
        check_equal(reply.driver, b"layers")
        with bound(k, "box") as init:
            sh(init, "chown 1000:1000 /home/user", user="root")
            sh(init, "echo user >/home/user/mine; mkdir /tmp/d; echo x >/tmp/d/e; mv /tmp/d /tmp/f; cat /tmp/f/e")
            sh(init, "rm -r /data; mkdir /data; mv /home /house; touch /data/n; chown 7:8 /data/n", user="root")
            check_equal(sh(init, "ls /data /house; cat /house/user/mine; stat -c '%u %g' /data/n"), "/data:\nn\n\n/house:\nuser\nuser\n7 8\n")
        if is_root():
            check_equal(os.listdir(uppers), ["box"])
            shift = 0 if who == "root" else os.stat(uppers / "box/u/house/user/mine").st_uid - 1000
            check_equal(os.stat(uppers / "box/u/house/user/mine").st_uid, 1000 + shift)
            if who == "root":
                n = os.stat(uppers / "box/u/data/n")
                check_equal((n.st_uid, n.st_gid), (7, 8))
                check_equal(record(k, "box")[4], 0)
                dev, ino = record(k, "box")[:2]
                st = os.stat(upper_of(reply.init_pid) / "u")
                check_equal((st.st_dev, st.st_ino, os.stat(upper_of(reply.init_pid) / "u/data/n").st_uid), (dev, ino, 7))
        must(client.create("memory", kind, driver="tmpfs"))
        must(client.kill("box"))
        check_equal([n for n in os.listdir(uppers) if n[0] != "."], [])
        pid = must(client.create("lost", kind)).init_pid
        k.kill9()
        (k.run / "journal/lost").unlink()
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not alive(pid), 5, "its end")
        k.start()
        client = k.client()
        check_equal(list(client.list()), ["memory"])
        check_equal([n for n in os.listdir(uppers) if n[0] != "."], [])
        reply = client.create("bad", kind, driver="nonsense")
        check_equal(reply.error, kp.BAD_REQUEST)
        check_in("nonsense", reply.text.decode())
        must(client.kill("memory"))
        for group in made_by(k.pids):
            with contextlib.suppress(OSError):
                os.rmdir(group)


def test_older_drivers():
    "a sandbox has no image of its own any more, which keeper says; reflink is an older name of layers"
    with a_keeper() as k:
        client, kind = k.client(), tiny(k, "root")
        reply = client.create("box", kind, driver="image", disk=16 << 20)
        check_equal(reply.error, kp.BAD_REQUEST)
        check_in("no image of its own any more", reply.text.decode())
        reply = must(client.create("older", kind, driver="reflink"))
        check_equal(reply.driver, b"layers")
        uppers = store(k, "root") / "uppers"
        (uppers / "of-an-older-keeper.img").write_bytes(b"an upper of a sandbox that has ended")
        must(client.kill("older"))
        k.kill9()
        k.start()
        k.client().list()
        check_equal([n for n in os.listdir(uppers) if n[0] != "."], [])


@contextlib.contextmanager
def file_system(place, make, *options):
    """A new file system of 400 MB, mounted there."""
    if not shutil.which(make[0]):
        skip(f"{make[0]} is not installed")
    image = pathlib.Path(f"/var/tmp/hutch-fs-{secrets.token_hex(4)}")
    try:
        with open(image, "wb") as f:
            f.truncate(400 << 20)
        subprocess.run([*make, str(image)], check=True, capture_output=True)
        mounted = subprocess.run(["mount", "-o", ",".join(("loop", *options)), str(image), str(place)], capture_output=True, text=True)
        if mounted.returncode:
            skip(f"{make[0]}: {mounted.stderr.strip()}")
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", str(place)], check=True)
    finally:
        image.unlink()


def on_file_system(make, options, driver, quota):
    with contextlib.ExitStack() as after:
        k = after.enter_context(a_keeper("root", "--driver=auto"))
        uppers = store(k, "root") / "uppers"
        k.kill9()
        after.enter_context(file_system(uppers, make, *options))
        k.start()
        client, kind = k.client(), tiny(k, "root")
        reply = must(client.create("box", kind, disk=32 << 20))
        check_equal((reply.driver, reply.quota, reply.degraded), (driver, quota, b""))
        with bound(k, "box") as init:
            sh(init, "echo x >/tmp/mine; rm -r /data; mkdir /data; mv /home /house; mkdir /tmp/d; mv /tmp/d /tmp/e", user="root")
            check_equal(sh(init, "ls /house /data; stat -c %u /tmp/mine"), "/data:\n\n/house:\nuser\n0\n")
            sh(init, "/bin/busybox dd if=/dev/zero of=/tmp/big bs=1M count=64 && /bin/busybox sync", fails=True)
        check_equal(os.stat(uppers / "box/u/tmp/mine").st_uid, 0)
        eventually(lambda: must(client.usage("box")).usage.disk_used > 1 << 20, 10, "what was written is counted")
        usage = must(client.usage("box")).usage
        check(usage.disk_used <= 33 << 20, usage.disk_used)
        must(client.kill("box"))
        check_equal([n for n in os.listdir(uppers) if n[0] != "."], [])
        k.kill9()


def test_on_btrfs():
    "on btrfs a writable layer is a subvolume with a limit that holds"
    on_file_system(["mkfs.btrfs", "-q"], (), b"btrfs", b"btrfs qgroup")


def test_on_xfs():
    "on xfs with project quotas a writable layer is a directory with a limit that holds"
    on_file_system(["mkfs.xfs", "-q"], ("prjquota",), b"layers", b"project quota")


def test_image_volume():
    "a volume in an image is mounted for two sandboxes at once"
    with a_keeper() as k:
        image = store(k, "root") / "volumes" / "vol-image.img"
        with open(image, "wb") as f:
            f.truncate(16 << 20)
        if not shutil.which("mkfs.ext4") or subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", image]).returncode:
            skip("mkfs.ext4 is not installed")
        client, kind = k.client(), tiny(k, "root")
        for box in ("one", "two"):
            reply = client.create(box, kind, volumes=[("vol-image", "/data", 0)])
            if reply.error == kp.HOST:
                skip(reply.text.decode())
            must(reply)
        with bound(k, "one") as one, bound(k, "two") as two:
            sh(one, "echo shared >/data/file; chown 1000 /data/file", user="root")
            check_equal(sh(two, "cat /data/file; stat -c %u /data/file"), "shared\n1000\n")
        for box in ("one", "two"):
            must(client.kill(box))
        nothing_left(k, ())


@contextlib.contextmanager
def image_volume(k):
    """The path of an image with a file system, vol-image in the store."""
    image = store(k, "root") / "volumes" / "vol-image.img"
    with open(image, "wb") as f:
        f.truncate(16 << 20)
    make = ["mkfs.ext4", "-q", "-O", "^has_journal,^metadata_csum", str(image)]
    if not shutil.which("mkfs.ext4") or subprocess.run(make).returncode:
        skip("mkfs.ext4 is not installed")
    yield image


def checkers(image):
    """Processes that hold the image open and are not this one."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if int(pid) != os.getpid() and any(os.path.samefile(f"/proc/{pid}/fd/{fd}", image) for fd in os.listdir(f"/proc/{pid}/fd")):
                found.append(int(pid))
    return found


def test_image_that_takes_long():
    "while somebody holds an image keeper makes other sandboxes, and no process waits for it"
    with a_keeper() as k, image_volume(k) as image:
        client, kind = k.client(), tiny(k, "root")
        with open(image, "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)  # as one who checks or resizes it
            numbers = [client.begin(f"box{i}", kind, volumes=[("vol-image", "/data", 0)]) for i in range(6)]
            must(client.create("other", kind))
            check_equal(set(client.list()), {"other"})
            must(client.kill("box5"))
            eventually(lambda: checkers(image) == [], 10, "no process waits for it")  # keeper looks now and then whether it is free
            more = [client.begin(f"more{i}", kind, volumes=[("vol-image", "/data", 0)]) for i in range(12)]
            check_equal(client.wait(more[11]).error, kp.CAPACITY)  # sixteen may wait for one
            for i in range(11):
                must(client.kill(f"more{i}"))
        for number in numbers[:5]:
            must(client.wait(number))
        check_equal(client.wait(numbers[5]).error, kp.FAILED)
        check_equal(set(client.list()), {"other", "box0", "box1", "box2", "box3", "box4"})
        for i in range(5):
            must(client.kill(f"box{i}"))
        with open(image, "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            client.begin("last", kind, volumes=[("vol-image", "/data", 0)])
            must(client.create("next", kind))
            k.kill9()
        k.start()
        check_equal(set(k.client().list()), {"other", "next"})


@contextlib.contextmanager
def no_namespaces(k, client, kind):
    """Those that keeper had in stock, 4 of them, are used, and nobody makes more until the end of this."""
    maker = helper(k)

    def full():  # it waits in recvfrom (on x86-64, on arm64)
        return pathlib.Path(f"/proc/{maker}/syscall").read_text().split()[:2] in (["45", "0x3"], ["207", "0x3"])
    eventually(full, 10, "a full stock")
    os.kill(maker, signal.SIGSTOP)
    try:
        for i in range(4):
            must(client.create(f"used{i}", kind))
            must(client.kill(f"used{i}"))
        yield
    finally:
        os.kill(maker, signal.SIGCONT)
    eventually(full, 10, "a full stock")


def test_image_that_is_taken_meanwhile():
    "a create that finds an image held when its network namespace has come waits once more, and is made"
    with a_keeper("root", "--max-sandboxes=4") as k, image_volume(k) as image:
        client, kind = k.client(), tiny(k, "root")
        with open(image, "rb") as held:
            with no_namespaces(k, client, kind):
                number = client.begin("box", kind, volumes=[("vol-image", "/data", 0)])
                check_equal(set(client.list()), set())
                fcntl.flock(held, fcntl.LOCK_EX)
            must(client.create("other", kind))
            check_equal(set(client.list()), {"other"})
        must(client.wait(number))
        must(client.kill("box"))


def test_image_that_is_damaged():
    "an image that was not closed is checked before a sandbox gets it; one that cannot be put in order is said so"
    with a_keeper() as k, image_volume(k) as image:
        client, kind = k.client(), tiny(k, "root")

        def put(offset, data):
            with open(image, "r+b") as f:
                f.seek(offset)
                f.write(data)
        put(1024 + 0x3a, b"\0\0")  # in use when its machine stopped
        must(client.create("one", kind, volumes=[("vol-image", "/data", 0)]))
        must(client.kill("one"))
        put(1024 + 0x3a, b"\0\0")
        put(1024 + 0x38, b"no")  # the magic of an ext4
        reply = client.create("two", kind, volumes=[("vol-image", "/data", 0)])
        check_equal(reply.error, kp.FAILED, reply.text)
        check_in("e2fsck", reply.text.decode())
        check_equal(set(client.list()), set())


def test_build_tools(who):
    "a sandbox for builds has our own program at /.hutch, from a layer of its own that is not part of what it writes"
    with a_keeper(who) as k:
        client, kind = k.client(), tiny(k, who)
        pids = [must(client.create(box, kind, flags=kp.BUILD)).init_pid for box in ("one", "two")]
        with bound(k, "one") as init:
            check_equal(sh(init, "ls -A /.hutch; stat -c '%a %u' /.hutch/hutch"), "hutch\n555 0\n")
            sh(init, "/.hutch/hutch nonsense", fails=True)
        if is_root():
            check(not (upper_of(pids[0]) / "u/.hutch").exists(), "it is in the writable layer")
            tools = k.state / "stock/tools"
            check_equal(len([n for n in os.listdir(tools) if n[0] != "."]), 1)
        must(client.create("three", kind))
        with bound(k, "three") as init:
            check_equal(sh(init, "ls -A / | tr '\\n' ' '"), "bin data dev etc home proc sys tmp ")
        check_equal(client.create("four", "host", flags=kp.BUILD).error, kp.BAD_REQUEST)


def test_copied_upper():
    "a writable layer that is copied without overlay's origin marks is one more layer over the same layers"
    with a_keeper() as k:
        low = layer(k, "root", fill_tiny)
        client = k.client()
        reply = must(client.create("first", stack(k, "root", [low]), driver="layers"))
        with bound(k, "first") as init:
            sh(init, "rm /data/gone; echo more >>/data/old; mv /home /house; mkdir /etc/new; echo t >/tmp/t", user="root")
        must(client.pause("first"))

        def copy(root):
            os.rmdir(root)
            subprocess.run(["cp", "-a", f"{upper_of(reply.init_pid)}/u", root], check=True)
            for path, folders, files in os.walk(root):
                for p in [path, *(os.path.join(path, n) for n in folders + files)]:
                    for name in ("origin", "impure", "uuid"):
                        with contextlib.suppress(OSError):
                            os.removexattr(p, f"trusted.overlay.{name}", follow_symlinks=False)
        top = layer(k, "root", copy)
        must(client.kill("first"))
        must(client.create("second", stack(k, "root", [top, low])))
        with bound(k, "second") as init:
            check_equal(sh(init, "ls /data; cat /data/old /tmp/t; ls /house; ls -d /home /etc/new 2>/dev/null || true"),
                        "old\nold\nmore\nt\nuser\n/etc/new\n")


def test_record_before():
    "a sandbox that the version before made is adopted; it has no writable layer that could be taken, and is not paused"
    with a_keeper() as k:
        client = k.client()
        pid = must(client.create("box", tiny(k, "root"))).init_pid
        k.kill9()
        path = k.run / "journal/box"
        data = bytearray(path.read_bytes())
        at = len(data) - 8 - 2816 - 8 * 40 - 64
        old = b"hutchJ2\0" + bytes(data[8:at]) + bytes(data[-8 - 2816:-8])
        total = 0xCBF29CE484222325
        for byte in old:
            total = ((total ^ byte) * 0x100000001B3) & (2**64 - 1)
        path.write_bytes(old + total.to_bytes(8, "little"))
        k.start()
        client = k.client()
        check_equal({b: (i.alive, i.frozen) for b, i in client.list().items()}, {"box": (1, 0)})
        must(client.deadline("box", kp.boottime_ms() + 500000))
        check_equal(record(k, "box"), (0, 0, "", "", 0, 0))
        check_equal(path.stat().st_size, len(data))
        must(client.kill("box"))
        nothing_left(k, (pid,))
