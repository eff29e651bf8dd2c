"""The pool: a btrfs in a file of the node's own, on which sandboxes write and layers are kept. What it survives, and that nothing of it stays behind."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess

from daemon import Daemon, lives
from hutch_test import check, check_equal, check_in, eventually, identity, skip
from node import hit, needs_root
from node_client import ask, patient, sh
from small import small_templates

GIB = 1 << 30
POOL = "files: pool\npool:\n  size: {size}\nsandboxes:\n  memory: 512MiB\n  disk: {disk}\n"


def needs_pool():
    needs_root()
    if not shutil.which("mkfs.btrfs") or not os.path.exists("/dev/loop-control"):
        skip("no mkfs.btrfs or no loop devices")


def mounted(d):
    """Mounts below the node's directory, in the host's mount namespace."""
    return [line for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if f" {d.dir}/" in line]


def devices(d):
    """Loop devices of the pool's file, also after it was removed."""
    text = subprocess.run(["losetup", "-a"], text=True, capture_output=True, check=True).stdout
    return [line for line in text.splitlines() if str(d.dir) in line]


def nothing_left(d):
    eventually(lambda: not mounted(d) and not devices(d), 30, f"no mount and no loop device: {mounted(d)} {devices(d)}")


@contextlib.contextmanager
def pool_node(templates, size="2GiB", disk="1GiB", config=None, home=None, base=False):
    d = Daemon(config=config or POOL.format(size=size, disk=disk), templates=templates, home=home, base=base)
    try:
        with d:
            yield d
    finally:
        try:
            nothing_left(d)
        finally:
            for line in mounted(d):  # a failed test must not leave any
                subprocess.run(["umount", "-l", line.split()[4]], check=False)
            shutil.rmtree(d.dir, ignore_errors=True)


def a_box(d, template="small", **more):
    a = patient(d, "POST", "/v2/sandboxes", {"templateID": template, **more})
    check_equal(a.status, 201, a)
    return a.json


def of(box, rest=""):
    return f"/sandboxes/{box['sandboxID']}{rest}"


def df(d):
    return json.loads(d.cli("store", "df", "--json").stdout)


def kill_everything(d):
    """kill -9 of all processes of the node; sandboxes live on."""
    pids = [d.proc.pid] + [p for name in ("keeper", "layers", "egress", "front", "pool") for p in d.children(name)]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    d.proc.wait()
    eventually(lambda: not any(map(lives, pids)), 20, "their end")


def test_more_than_memory():
    "a sandbox of 512 MiB writes 1 GiB to disk; a snapshot of it and a sandbox from that have all of it; a clean stop leaves nothing"
    needs_pool()
    with small_templates() as templates, pool_node(templates, size="4GiB", disk="2GiB") as d:
        check_equal(len(devices(d)), 1)
        check_in("nosuid,nodev,noatime", mounted(d)[0])
        box = a_box(d)
        r = sh(d, box, "dd if=/dev/zero of=/home/user/big bs=1M count=1024 2>&1 && sync && wc -c </home/user/big", timeout=300)
        check_equal((r.code, r.text.split()[-1]), (0, str(GIB)), r)
        one = ask(d, "POST", of(box, "/snapshots"), {}, timeout=300)
        check_equal(one.status, 201, one)
        copy = a_box(d, one.json["snapshotID"])
        check_equal(sh(d, copy, "wc -c </home/user/big").text.strip(), str(GIB))
        told = df(d)
        check_equal(told["files"]["driver"], "btrfs")
        check_in("pool.img", told["files"]["why"])
        check_equal(told["pool"]["maxBytes"], 4 * GIB)
        check(GIB <= told["pool"]["usedBytes"] < 1.5 * GIB, told)
        caps = ask(d, "GET", "/v1/capabilities").json["state"]
        check_equal(caps["driver"], "btrfs")
        check_in("btrfs", caps["quota"])
        text = d.cli("store", "df").stdout
        check_in("files of sandboxes: btrfs; the pool is", text)
        check_equal(d.cli("store", "verify").returncode, 0)


def test_limit():
    "a sandbox gets an error when it writes more than its disk limit, another one goes on writing"
    needs_pool()
    with small_templates() as templates, pool_node(templates, disk="64MiB") as d:
        box, other = a_box(d), a_box(d)
        r = sh(d, box, "dd if=/dev/zero of=/home/user/big bs=1M count=200 2>&1; wc -c </home/user/big", timeout=120)
        check_in("uota exceeded", r.text)
        check(int(r.text.split()[-1]) <= 64 << 20, r)
        check_equal(sh(d, other, "dd if=/dev/zero of=/home/user/big bs=1M count=40").code, 0)


def test_killed():
    "kill -9 of every process of the node, then of the sandboxes: the next start finds the mount, the device, and all files"
    needs_pool()
    with small_templates() as templates, pool_node(templates) as d:
        box = a_box(d)
        check_equal(sh(d, box, "echo kept > /home/user/f; sync").code, 0)
        one = ask(d, "POST", of(box, "/snapshots"), {}, timeout=60).json["snapshotID"]
        for victim in ("pool", "layers", "keeper"):
            hit(d, victim)
        kill_everything(d)
        check_equal(len(mounted(d)), 1)
        d.start()
        check_equal((len(mounted(d)), len(devices(d))), (1, 1))
        check_equal(sh(d, box, "cat /home/user/f; echo more >> /home/user/f").text, "kept\n")
        # A clean stop with a living sandbox: the mount goes, the device stays with the sandbox, and is found again.
        d.stop(sandboxes=False)
        check_equal((len(mounted(d)), len(devices(d))), (0, 1))
        d.start()
        check_equal((len(mounted(d)), len(devices(d))), (1, 1))
        check_equal(sh(d, box, "cat /home/user/f").text, "kept\nmore\n")
        check_equal(sh(d, a_box(d, one), "cat /home/user/f").text, "kept\n")
        # As after a boot: nothing is mounted, no device, no sandbox.
        d.stop()
        nothing_left(d)
        shutil.rmtree(d.run)
        d.start()
        check_equal(sh(d, a_box(d, one), "cat /home/user/f").text, "kept\n")
        check_equal(d.cli("store", "verify").returncode, 0)


def test_full_pool():
    "a full pool is ENOSPC inside, a commit is 507; the node answers, and what is removed can be written again"
    needs_pool()
    with small_templates() as templates, pool_node(templates, size="1GiB", disk="8GiB") as d:
        box = a_box(d)
        tx = ask(d, "POST", f"/v1/sandboxes/{box['sandboxID']}/tx", {"command": "head -c 40000000 /dev/urandom > /home/user/tried"}, timeout=60)
        check_equal(tx.status, 201, tx)
        r = sh(d, box, "dd if=/dev/zero of=/home/user/big bs=1M count=1500 2>&1", timeout=300)
        check_in("No space left", r.text)
        commit = f"/v1/sandboxes/{box['sandboxID']}/tx/{tx.json['id']}/commit"
        full = ask(d, "POST", commit, {}, timeout=60)
        check_equal(full.status, 507, full)
        check_in("disk of the node is full", full.json["message"])
        check_equal(sh(d, box, "ls /home/user").text, "big\n")
        check_equal(ask(d, "GET", "/v1/capabilities").status, 200)
        check(df(d)["pool"]["freeBytes"] < 64 << 20, df(d))
        check_equal(sh(d, box, "rm /home/user/big && sync && echo fine > /home/user/small && cat /home/user/small").text, "fine\n")
        eventually(lambda: df(d)["pool"]["freeBytes"] > 512 << 20, 60, "room")
        check_equal(ask(d, "POST", commit, {}, timeout=60).status, 200)
        check_equal(sh(d, box, "dd if=/dev/zero of=/home/user/big bs=1M count=300", timeout=120).code, 0)
        check_equal(sh(d, a_box(d), "echo new > /home/user/f").code, 0)


@contextlib.contextmanager
def small_disk(path, size):
    """An ext4 of that size on a device of its own."""
    image = pathlib.Path(f"{path}.disk")
    path.mkdir()
    image.touch()
    os.truncate(image, size)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)
        image.unlink()
        path.rmdir()


def test_full_host():
    "the disk under the pool fills up: writers inside get ENOSPC before it is full, nothing is damaged, and room outside is room inside again"
    needs_pool()
    with small_templates() as templates, small_disk(templates.parent / f"{templates.name}-host", 2 * GIB) as host:
        with pool_node(templates, size="8GiB", disk="8GiB", home=host) as d:
            told = df(d)["pool"]
            check(told["freeBytes"] < 2 * GIB < told["heldBytes"], told)
            filler = host / "filler"
            with open(filler, "wb") as f:
                os.posix_fallocate(f.fileno(), 0, 600 << 20)
            eventually(lambda: df(d)["pool"]["freeBytes"] < told["freeBytes"] - (500 << 20), 20, "the watcher sees it")
            box = a_box(d)
            r = sh(d, box, "dd if=/dev/zero of=/home/user/big bs=1M count=3000 2>&1", timeout=300)
            check_in("No space left", r.text)
            check(shutil.disk_usage(host).free > 64 << 20, shutil.disk_usage(host))
            check(not df(d)["pool"]["readOnly"])
            check_equal(sh(d, box, "rm /home/user/big; sync; echo $?").text, "0\n")
            filler.unlink()
            eventually(lambda: df(d)["pool"]["freeBytes"] > GIB, 60, "room again")
            check_equal(sh(d, box, "dd if=/dev/zero of=/home/user/big bs=1M count=400", timeout=120).code, 0)
            check_in("0 errors", d.cli("store", "check").stdout)


def test_resize_and_check():
    "grow, shrink and check work while sandboxes write and while the node is stopped; wrong sizes are refused"
    needs_pool()
    with small_templates() as templates, pool_node(templates) as d:
        box = a_box(d)
        sh(d, box, "dd if=/dev/urandom of=/home/user/f bs=1M count=200; sync")
        sum_before = sh(d, box, "sha256sum /home/user/f").text
        d.cli("store", "grow", "3GiB")
        check_equal(df(d)["pool"]["maxBytes"], 3 * GIB)
        check(df(d)["pool"]["freeBytes"] > 2.5 * GIB, df(d))
        d.cli("store", "shrink", "1536MiB")
        check_equal(df(d)["pool"]["maxBytes"], 3 * GIB // 2)
        check_equal(os.stat(d.state / "pool.img").st_size, 3 * GIB // 2)
        check_equal(sh(d, box, "sha256sum /home/user/f").text, sum_before)
        check_in("in order", d.cli("store", "check").stdout)
        for args, said in ((("grow", "1GiB"), "larger size"), (("shrink", "2GiB"), "smaller size"), (("shrink", "1MiB"), "at least 1GiB"),
                           (("grow", "much"), "not a size"), (("grow",), "one SIZE"), (("check", "x"), "no argument")):
            r = d.cli("store", *args, check=False)
            check(r.returncode != 0 and said in r.stderr, (args, r))
        d.stop()
        nothing_left(d)
        d.cli("store", "grow", "4GiB")
        r = d.cli("store", "check", check=False)  # older programs do not understand simple quotas, and say so
        check(r.returncode == 0 or "unsupported" in r.stdout, r)
        nothing_left(d)
        d.start()
        check_equal(df(d)["pool"]["maxBytes"], 4 * GIB)


def test_damaged():
    "a damaged, cut off or foreign pool stops the start with what is wrong and a remedy; the file put right, all is there"
    needs_pool()
    with small_templates() as templates, pool_node(templates) as d:
        box = a_box(d)
        sh(d, box, "echo kept > /home/user/f")
        one = ask(d, "POST", of(box, "/snapshots"), {}, timeout=60).json["snapshotID"]
        d.stop()
        nothing_left(d)
        image = d.state / "pool.img"
        head = read_at(image, 64 << 10, 4096)
        for change, said in ((lambda: write_at(image, 64 << 10, bytes(4096)), "no superblock"),
                             (lambda: write_at(image, (64 << 10) + 80, b"\xff" * 16), "cannot be mounted"),
                             (lambda: os.truncate(image, GIB), "cut off")):
            change()
            refused(d, said)
            os.truncate(image, 2 * GIB)
            write_at(image, 64 << 10, head)
        d.start()
        check_equal(sh(d, a_box(d, one), "cat /home/user/f").text, "kept\n")


def read_at(path, at, n):
    with open(path, "rb") as f:
        return os.pread(f.fileno(), n, at)


def write_at(path, at, data):
    with open(path, "r+b") as f:
        os.pwrite(f.fileno(), data, at)
        os.fsync(f.fileno())


def refused(d, *said):
    try:
        d.start()
    except RuntimeError as e:
        for text in said:
            check_in(text, str(e))
        check_in("pool.img", str(e))
    else:
        check(False, "it started")
    nothing_left(d)


def test_older_store():
    "a node whose store is older than the pool keeps it with `auto`, and takes it along with `pool`: snapshots, volumes, templates"
    needs_pool()
    with small_templates() as templates, pool_node(templates, config="files: tmpfs\n") as d:
        box = a_box(d)
        sh(d, box, "echo kept > /home/user/f")
        one = ask(d, "POST", of(box, "/snapshots"), {}, timeout=60).json["snapshotID"]
        d.cli("volume", "create", "data")
        d.stop()
        rest = d.config.read_text().replace("files: tmpfs\n", "")
        d.config.write_text("files: auto\n" + rest)
        d.start()
        check(not (d.state / "pool.img").exists())
        check_in("stays as it is", df(d)["files"]["why"])
        check_equal(sh(d, a_box(d, one), "cat /home/user/f").text, "kept\n")
        d.stop()
        d.config.write_text("files: pool\npool:\n  size: 2GiB\n" + rest)
        d.start()
        check_equal(df(d)["files"]["driver"], "btrfs")
        check_equal(sh(d, a_box(d, one), "cat /home/user/f").text, "kept\n")
        check_in("data", d.cli("volume", "ls").stdout)
        check_equal(d.cli("store", "verify").returncode, 0)
        check((d.state / "stock.before-pool").is_dir())
        # With the pool there, another word moves only where sandboxes write.
        d.stop()
        d.config.write_text("files: tmpfs\n" + rest)
        d.start()
        check_equal(df(d)["files"]["driver"], "tmpfs")
        check_equal(sh(d, a_box(d, one), "cat /home/user/f").text, "kept\n")


def without_files(d):
    """The configuration without a word about files: the default."""
    d.config.write_text(d.config.read_text().replace("files: tmpfs\n", ""))


@contextlib.contextmanager
def default_node(templates, config="", home=None):
    d = Daemon(config=config, templates=templates, home=home)
    without_files(d)
    try:
        with d:
            yield d
    finally:
        try:
            nothing_left(d)
        finally:
            shutil.rmtree(d.dir, ignore_errors=True)


def test_default():
    "without a word in the configuration a new node of root has a pool, at its second start too"
    needs_pool()
    with small_templates() as templates, default_node(templates, config="pool:\n  size: 1GiB\n") as d:
        for _ in range(2):
            check_equal(df(d)["files"]["driver"], "btrfs")
            check((d.state / "pool.img").exists())
            check_equal(sh(d, a_box(d), "echo x > /home/user/f; cat /home/user/f").text, "x\n")
            d.stop()
            d.start()


def test_default_upgraded():
    "a node that has a store from the time when memory was the default, and no word in its configuration, keeps it and says so"
    needs_pool()
    with small_templates() as templates, pool_node(templates, config="files: tmpfs\n") as d:
        box = a_box(d)
        sh(d, box, "echo kept > /home/user/f")
        one = ask(d, "POST", of(box, "/snapshots"), {}, timeout=60).json["snapshotID"]
        d.stop()
        without_files(d)
        for _ in range(2):
            d.start()
            told = df(d)["files"]
            check_equal(told["driver"], "tmpfs")
            check_in("stays as it is", told["why"])
            check(not (d.state / "pool.img").exists())
            check_equal(sh(d, a_box(d, one), "cat /home/user/f").text, "kept\n")
            d.stop()
        d.start()


def test_default_user():
    "the node of an ordinary user writes to memory by default, and says why"
    needs_root()
    _, entry = identity("user")

    def become():
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    d = Daemon(preexec=become)
    without_files(d)
    for path in (d.dir, d.config):
        os.chown(path, entry.pw_uid, entry.pw_gid)
    with d:
        told = df(d)["files"]
        check_equal(told["driver"], "tmpfs")
        check_in("only root can make one", told["why"])


def test_no_room():
    "where a pool cannot be, the default is memory and `auto` another driver, both say why; `pool` is refused"
    needs_root()
    with small_templates() as templates, small_disk(templates.parent / f"{templates.name}-host", 600 << 20) as host:
        with default_node(templates, home=host) as d:
            told = df(d)["files"]
            check_equal(told["driver"], "tmpfs")
            check_in("in memory; no pool: less than 2 GiB are free", told["why"])
            rest = d.config.read_text()
            d.stop()
            d.config.write_text("files: auto\n" + rest)
            d.start()
            check_in("less than 2 GiB are free", df(d)["files"]["why"])
            check(not (d.state / "pool.img").exists())
            d.stop()
            d.config.write_text("files: pool\n" + rest)
            try:
                d.start()
            except RuntimeError as e:
                check_in("files: pool: less than 2 GiB", str(e))
            else:
                check(False, "it started")
            d.config.write_text("files: tmpfs\n" + rest)
