"""stock: what a living sandbox wrote becomes a layer, whoever is killed meanwhile."""
import contextlib
import fcntl
import os
import select
import stat
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import keeper as kp  # noqa: E402
import stockd as st  # noqa: E402
from hutch_test import HUTCH, SOAK, check, check_equal, check_in, eventually, skip  # noqa: E402
from test_keeper import a_keeper, must  # noqa: E402
from test_keeper_stock import bound, file_system, sh, store as store_of, tiny  # noqa: E402


@contextlib.contextmanager
def both(who):
    """A keeper with its stock."""
    with a_keeper(who) as k:
        s = st.Stock(k, HUTCH).start()
        try:
            yield k, s
            eventually(lambda: not os.listdir(k.state / "stock" / "tmp"), 20)
        finally:
            s.close()


def good(reply):
    if reply.error == st.HOST and b"freezer" in reply.text:
        skip("no freezer: this user has no cgroup of its own")
    check_equal(reply.error, st.OK, reply.text.decode())
    return reply


def capture(client, box, flags=st.FREEZE, **fields):
    name = st.new_stack()
    reply = good(client.ask(st.CAPTURE, box=box, stack=name, flags=flags, **fields))
    if reply.fd is not None:  # what it is made of: a thousand of them are more than a process should hold
        os.close(reply.fd)
    return name, reply


def pause(client, box):
    reply = client.pause(box)
    if reply.error == kp.HOST:
        skip("no freezer: this user has no cgroup of its own")
    must(reply)


def test_capture(who):
    "what a sandbox wrote, removed and replaced is in the layer; sandboxes made from it see the same; the first one goes on"
    with both(who) as (k, s):
        client, store = k.client(), s.client()
        must(client.create("one", tiny(k, who)))
        with bound(k, "one") as init:
            sh(init, "echo new > /data/new; rm /data/gone; chmod 640 /data/old; chown user /data/old;"
                     "mv /home/user /home/other; mkdir /etc2; ln /data/new /data/linked || true", user="root")
            name, reply = capture(store, "one")
            check(reply.bytes > 0 and reply.entries > 0 and reply.frozen_us > 0, (reply.bytes, reply.entries))
            check_equal(sh(init, "cat /data/new"), "new\n")
        root = k.state / "stock" / "layers" / reply.layer.decode() / "root"
        gone = os.lstat(root / "data/gone")
        check(stat.S_ISCHR(gone.st_mode) and gone.st_rdev == 0, gone)
        again = good(store.ask(st.CAPTURE, box="one", stack=name, flags=st.FREEZE))
        check_equal((again.layer, again.frozen_us, again.entries2), (reply.layer, 0, 2))
        check_equal(store.list()[name].nlayers, 2)
        must(client.create("two", name))
        with bound(k, "two") as init:
            check_equal(sh(init, "cat /data/new; ls /data /home; stat -c '%a %u' /data/old", user="root"),
                        "new\n/data:\nlinked\nnew\nold\n\n/home:\nother\n640 1000\n")
        sh_names = {p.name for p in (k.run / "stock-frozen").iterdir()}
        check_equal(sh_names, set())


def test_capture_of_a_capture(who):
    "layers are put on layers, and one that is the same is kept once"
    with both(who) as (k, s):
        client, store = k.client(), s.client()
        must(client.create("one", tiny(k, who)))
        with bound(k, "one") as init:
            sh(init, "echo 1 > /data/1", user="root")
        first, a = capture(store, "one")
        must(client.create("two", first))
        with bound(k, "two") as init:
            sh(init, "echo 2 > /data/2", user="root")
        second, _ = capture(store, "two")
        check_equal(store.list()[second].nlayers, 3)
        third, b = capture(store, "one", other=first)
        check_equal(a.layer, b.layer)
        check(third != first)
        must(client.create("three", second))
        with bound(k, "three") as init:
            check_equal(sh(init, "cat /data/1 /data/2"), "1\n2\n")


def test_capture_of_a_paused_one(who):
    "a paused sandbox is captured as it stands, and stays paused"
    with both(who) as (k, s):
        client, store = k.client(), s.client()
        must(client.create("one", tiny(k, who)))
        with bound(k, "one") as init:
            sh(init, "echo 1 > /data/1", user="root")
        name = st.new_stack()
        reply = store.ask(st.CAPTURE, box="one", stack=name)
        check_equal(reply.error, st.BAD_REQUEST, reply.text)
        check_in("not paused", reply.text.decode())
        pause(client, "one")
        good(store.ask(st.CAPTURE, box="one", stack=name))
        _, reply = capture(store, "one")
        check_equal(reply.frozen_us, 0)
        check_equal(client.list()["one"].frozen, 1)
        must(client.resume("one"))


def test_capture_refused(who):
    "no such sandbox, the host's tree, a layer that is too large: each is said, and nothing is left"
    with both(who) as (k, s):
        client, store = k.client(), s.client()
        reply = store.ask(st.CAPTURE, box="nobody", stack=st.new_stack(), flags=st.FREEZE)
        check_equal(reply.error, st.NOT_FOUND, reply.text)
        must(client.create("host", "host"))
        reply = store.ask(st.CAPTURE, box="host", stack=st.new_stack(), flags=st.FREEZE)
        check_equal(reply.error, st.BAD_REQUEST, reply.text)
        check_in("host", reply.text.decode())
        must(client.create("one", tiny(k, who)))
        with bound(k, "one") as init:
            sh(init, "cat /bin/busybox /bin/busybox > /data/large", user="root")
            good(store.ask(st.CAPTURE, box="one", stack=st.new_stack(), flags=st.FREEZE))
            reply = store.ask(st.CAPTURE, box="one", stack=st.new_stack(), flags=st.FREEZE, bytes=1 << 20)
            check_equal(reply.error, st.TOO_LARGE, reply.text)
            check_equal(sh(init, "cat /data/old"), "old\n")
        check_equal(len(store.list()), 2)


def line(client, store, k, stack, boxes, captures):
    """A line of sandboxes, each made from the last capture of the one before; the names of all captures."""
    names, layers = [], []
    for box in range(boxes):
        must(client.create(f"line{box}", stack))
        with bound(k, f"line{box}") as init:
            for _ in range(captures):
                n = len(names)
                sh(init, f"echo {n} > /data/last; echo {n} > /data/f{n}; rm -f /data/f{n - 1}", user="root")
                name, reply = capture(store, f"line{box}")
                names.append(name)
                layers.append(reply.entries2)
        stack = names[-1]
        must(client.kill(f"line{box}"))
    return names, layers


def check_restored(client, k, name, n):
    must(client.create("restored", name))
    with bound(k, "restored") as init:
        check_equal(sh(init, "cd /data; cat last old; echo f*"), f"{n}\nold\nf{n}\n")
    must(client.kill("restored"))


def test_capture_on_sixty_four_layers():
    "a sandbox made from as many layers as there may be is captured all the same: they become one"
    with both("root") as (k, s):
        client, store = k.client(), s.client()
        names, layers = line(client, store, k, tiny(k, "root"), 66, 1)
        check_equal(max(layers), 64)
        at = layers.index(64)
        check(layers[at + 1] < 5, layers)
        for n in (0, at, at + 1, len(names) - 1):
            check_restored(client, k, names[n], n)


def test_a_thousand_snapshots():
    "a thousand captures of one line are made, several are restored, the others are dropped and collected"
    if not SOAK:
        skip("takes minutes; `make soak` runs it")
    with both("root") as (k, s):
        client, store = k.client(), s.client()
        store.sock.settimeout(600)
        names, _ = line(client, store, k, tiny(k, "root"), 250, 4)
        kept = (0, 1, 333, 500, 998, 999)
        for n in kept:
            check_restored(client, k, names[n], n)
        for n, name in enumerate(names):
            if n not in kept:
                good(store.ask(st.DROP, stack=name))
        folder = k.state / "stock/layers"
        end = time.monotonic() + 600
        while len(os.listdir(folder)) > 64 * len(kept) and time.monotonic() < end:
            os.close(good(store.ask(st.GC)).fd)
            time.sleep(16)
        check(len(os.listdir(folder)) <= 64 * len(kept), len(os.listdir(folder)))
        eventually(lambda: not [n for n in os.listdir(folder) if n.startswith(".dead-")], 120)
        for n in kept:
            check_restored(client, k, names[n], n)


@contextlib.contextmanager
def on_btrfs():
    """The same, with all of the store on a btrfs."""
    with contextlib.ExitStack() as after:
        k = after.enter_context(a_keeper("root", "--driver=btrfs"))
        place = store_of(k, "root")
        k.kill9()
        after.enter_context(file_system(place, ["mkfs.btrfs", "-q"]))
        k.start()
        s = st.Stock(k, HUTCH).start()
        try:
            yield k, s
        finally:
            for box in k.client().list():
                k.client().kill(box)
            s.close()
            k.kill9()


def subvolumes(folder):
    """Names below it whose inode is that of every subvolume's root."""
    found = []
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            if os.stat(folder / name).st_ino == 256:
                found.append(name)
    return found


def begin_large(k, s, box):
    """Begins the capture of a sandbox with many files, and waits until its snapshot is there and it runs again."""
    store, tmp, marker = s.client(), k.state / "stock/tmp", k.run / "stock-frozen" / box
    for _ in range(5):  # whoever looks on a busy machine may have looked too late
        name, end = st.new_stack(), time.monotonic() + 120
        number = store.send(st.CAPTURE, box=box, stack=name, flags=st.FREEZE)
        while not (k.state / "stock/stacks" / name).exists():
            if subvolumes(tmp) and not marker.exists():
                return store, number, name
            check(time.monotonic() < end, "no capture")
        good(store.wait(number))
        good(store.ask(st.DROP, stack=name))
        eventually(lambda: not os.listdir(tmp), 30, "an empty tmp/")
    check(False, "it was copied without a snapshot, or while it stood still")
    return None


FILL = "cd /data; for i in $(/bin/busybox seq 3000); do echo $i > f$i; done; cat /bin/busybox > large"


def test_capture_on_btrfs():
    "on btrfs a sandbox stands still for a snapshot only; its files are copied while it runs, and the snapshot goes"
    with on_btrfs() as (k, s):
        client = k.client()
        must(client.create("one", tiny(k, "root"), disk=128 << 20))
        with bound(k, "one") as init:
            sh(init, FILL + "; rm /data/gone; chown user /data/f1", user="root")
            store, number, name = begin_large(k, s, "one")
            sh(init, "echo changed > /data/f3000; echo after > /data/after", user="root")
            reply = good(store.wait(number))
            check(reply.frozen_us > 0)
        eventually(lambda: not os.listdir(k.state / "stock/tmp"), 30)
        second, _ = capture(store, "one", other=name)
        must(client.create("two", name, disk=128 << 20))
        with bound(k, "two") as init:
            check_equal(sh(init, "cd /data; cat f3000; ls | /bin/busybox wc -l; stat -c %u f1 f2; ls after gone 2>&1 | /bin/busybox wc -l"),
                        "3000\n3002\n1000\n0\n2\n")
        must(client.create("three", second, disk=128 << 20))
        with bound(k, "three") as init:
            check_equal(sh(init, "cat /data/f3000 /data/after"), "changed\nafter\n")
        check_equal(sorted(subvolumes(k.state / "stock/uppers")), ["one", "three", "two"])


def test_resize_on_btrfs():
    "on btrfs a volume gets another limit while it is in use, but not one below what it holds"
    with on_btrfs() as (k, s):
        store, volume = s.client(), "vol-abcdefgh"

        def resize(mib, entries=0):
            return store.ask(st.VOLUME_RESIZE, volume=volume, bytes=mib << 20, entries=entries)
        check_equal(resize(64).error, st.NOT_FOUND)
        good(store.ask(st.VOLUME_MAKE, volume=volume, bytes=64 << 20))
        must(k.client().create("one", tiny(k, "root"), volumes=[(volume, "/data", 0)]))
        with bound(k, "one") as init:
            sh(init, "/bin/busybox dd if=/dev/zero of=/data/a bs=1M count=20", user="root")
            reply = resize(16)
            check_equal(reply.error, st.CONFLICT, reply.text)
            check(reply.bytes >= 20 << 20, reply.bytes)
            check_in(str(16 << 20), reply.text.decode())
            check_equal(good(resize(32)).bytes2, 32 << 20)
            sh(init, "/bin/busybox dd if=/dev/zero of=/data/b bs=1M count=20 && /bin/busybox sync", user="root", fails=True)
            check_equal(good(resize(96)).bytes2, 96 << 20)
            sh(init, "/bin/busybox dd if=/dev/zero of=/data/b bs=1M count=20 && /bin/busybox sync", user="root")
        check_equal(resize(96, 1000).error, st.HOST)
        check_equal(good(resize(0)).bytes2, 0)


def test_snapshot_after_kill():
    "a snapshot that a killed stock left on btrfs is removed by the next one"
    with on_btrfs() as (k, s):
        must(k.client().create("one", tiny(k, "root"), disk=128 << 20))
        with bound(k, "one") as init:
            sh(init, FILL, user="root")
            begin_large(k, s, "one")
            s.kill9()
            s.start()
            s.client().list()
            top = k.state / "stock"
            eventually(lambda: not [n for n in os.listdir(top) if n.startswith(".gone-")] and not os.listdir(top / "tmp"), 30)
            check_equal(sh(init, "cat /data/old"), "old\n")
            capture(s.client(), "one")


def watch_staging(k, s, box):
    """Captures it and looks where its files are put meanwhile: (the stack, whether it was seen standing still, and with a layer that grew)."""
    store, tmp, marker, name = s.client(), k.state / "stock/tmp", k.run / "stock-frozen" / box, st.new_stack()
    number, seen, grew = store.send(st.CAPTURE, box=box, stack=name, flags=st.FREEZE), False, False
    while not (k.state / "stock/stacks" / name).exists():
        before = marker.exists()
        names = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            names = [n for t in os.listdir(tmp) for n in os.listdir(tmp / t / "root")]
        if before and marker.exists():
            seen, grew = True, grew or bool(names)
        if store_has_answer(store):
            break
    good(store.wait(number))
    return name, seen, grew


def store_has_answer(client):
    return bool(select.select([client.sock], [], [], 0)[0])


LARGE = FILL + "; /bin/busybox dd if=/dev/urandom of=/data/random bs=1M count=80 2>/dev/null; rm /data/gone; chown user /data/f1; ln /data/f2 /data/l2"


def test_capture_through_memory(who):
    "without reflinks a sandbox stands still while its files are copied to memory, many too, and the layer is made while it runs"
    with both(who) as (k, s):
        client = k.client()
        must(client.create("one", tiny(k, who), driver="layers"))
        with bound(k, "one") as init:
            sh(init, LARGE, user="root")
            want = sh(init, "cd /data; /bin/busybox md5sum random f3000; stat -c '%u %h %a' f1 f2 l2; ls | /bin/busybox wc -l")
            for _ in range(8):
                name, seen, grew = watch_staging(k, s, "one")
                check(not grew, "its layer grew while it stood still")
                if seen:
                    break
            check(seen, "it was never seen standing still")
        must(client.create("two", name, driver="layers"))
        with bound(k, "two") as init:
            check_equal(sh(init, "cd /data; /bin/busybox md5sum random f3000; stat -c '%u %h %a' f1 f2 l2; ls | /bin/busybox wc -l"), want)


def scores_of(s, box, flags):
    """Captures it, and what its jobs say meanwhile of whether they are to be ended first when there is no memory left."""
    store, name, scores = s.client(), st.new_stack(), set()
    number = store.send(st.CAPTURE, box=box, stack=name, flags=flags)
    while not store_has_answer(store):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for pid in open(f"/proc/{s.process.pid}/task/{s.process.pid}/children").read().split():
                scores.add(int(open(f"/proc/{pid}/oom_score_adj").read()))
    good(store.wait(number))
    return scores


def test_memory_of_captures(who):
    "a job that has the files of a sandbox in memory is the first to go when there is none left; those of a paused one go to the disk at once"
    with both(who) as (k, s):
        client = k.client()
        must(client.create("one", tiny(k, who), driver="layers"))
        with bound(k, "one") as init:
            sh(init, LARGE, user="root")
            check_in(1000, scores_of(s, "one", st.FREEZE))
        pause(client, "one")
        check(1000 not in scores_of(s, "one", 0), "it went through memory")
        must(client.resume("one"))


def test_capture_of_what_grows(who):
    "files that appear between the look at how large they are and the moment it stands still do not fit in memory: they are copied all the same"
    with both(who) as (k, s):
        client, store, sizes = k.client(), s.client(), set()
        must(client.create("one", tiny(k, who), driver="layers"))
        with bound(k, "one") as init:
            sh(init, "cd /data; /bin/busybox dd if=/dev/zero bs=1M count=60 2>/dev/null | /bin/busybox tr '\\0' x > whole;"
                     "(while :; do cat whole whole > f; rm f; done) >/dev/null 2>&1 &", user="root")
            for _ in range(12):
                name, reply = capture(store, "one")
                file = k.state / "stock/layers" / reply.layer.decode() / "root/data/f"
                sizes.add(file.stat().st_size if file.exists() else 0)
                check_equal(file.parent.joinpath("whole").stat().st_size, 60 << 20)
        check(len(sizes) > 1, f"it did not change: {sizes}")


def test_capture_shares_with_an_earlier_one(who):
    "a file that an earlier capture has as it is is that very file, one that changed is not"
    with both(who) as (k, s):
        client, store = k.client(), s.client()
        must(client.create("one", tiny(k, who), driver="layers"))
        layers = k.state / "stock/layers"
        with bound(k, "one") as init:
            sh(init, "cd /data; echo a > a; echo b > b; ln a again", user="root")
            first, a = capture(store, "one")
            sh(init, "echo c > /data/b", user="root")
            _, b = capture(store, "one", other=first)
        old, new = (layers / r.layer.decode() / "root/data" for r in (a, b))
        check(os.path.samefile(old / "a", new / "a"))
        check_equal(os.stat(new / "a").st_nlink, 4)
        check_equal((new / "b").read_text(), "c\n")
        check_equal(os.stat(new / "b").st_nlink, 1)


def test_one_sweep_at_a_time():
    "a collection that finds another one removing what nobody needs leaves it to that one"
    with both("root") as (k, s):
        store, layers = s.client(), k.state / "stock/layers"
        dead = layers / (".dead-" + 64 * "a")
        (dead / "root").mkdir(parents=True)
        lock = os.open(layers, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            good(store.ask(st.GC))
            time.sleep(1)
            check(dead.exists(), "two of them removed it")
        finally:
            os.close(lock)
        good(store.ask(st.GC))
        eventually(lambda: not dead.exists(), 20, "the next one removes it")


def test_half_taken_over(who):
    "what was begun is not over, whatever fails: it is asked for again, and not forgotten with its stack while the sandbox lives"
    with both(who) as (k, s):
        client, store = k.client(), s.client()
        must(client.create("one", tiny(k, who)))
        with bound(k, "one") as init:
            first, _ = capture(store, "one")
            sh(init, "echo new > /data/new", user="root")
            second, _ = capture(store, "one")
            stacks = k.state / "stock/stacks"
            redo, owner = stacks / f"{second}.redo", os.stat(stacks)
            redo.write_bytes(b"no stream" + b"Hredo2\0\0" + b"one".ljust(40, b"\0") + bytes(24))
            os.chown(redo, owner.st_uid, owner.st_gid)
            for _ in range(2):
                check_equal(store.ask(st.APPLY, box="one", stack=second, other=first).error, st.BUSY)
                check_equal(store.ask(st.DROP, stack=second).error, st.BUSY)
            check(redo.exists() and (stacks / second).exists())
        must(client.kill("one"))
        eventually(lambda: store.ask(st.DROP, stack=second).error == st.OK, 20, "it goes when the sandbox is gone")
        check(not redo.exists() and not (stacks / second).exists())


def test_stock_killed(who):
    "a sandbox that stood still when stock was killed goes on when the next one is there"
    with both(who) as (k, s):
        client, store = k.client(), s.client()
        must(client.create("one", tiny(k, who)))
        with bound(k, "one") as init:
            sh(init, "cd /data; for i in 1 2 3 4 5 6 7 8 9; do mkdir $i; for j in 1 2 3 4 5 6 7 8 9; do"
                     " cat /bin/busybox > $i/$j; done; done", user="root")
            capture(store, "one")
            marker, name, end = k.run / "stock-frozen" / "one", st.new_stack(), time.monotonic() + 60
            store.send(st.CAPTURE, box="one", stack=name, flags=st.FREEZE)
            while not marker.exists() and not (k.state / "stock/stacks" / name).exists() and time.monotonic() < end:
                pass
            s.kill9()
            s.start()
            store = s.client()
            store.list()
            check(not marker.exists())
            check_equal(sh(init, "cat /data/old"), "old\n")
            eventually(lambda: not [p for p in (k.state / "stock").iterdir() if p.name.startswith(".gone-")], 20)
            good(store.ask(st.CAPTURE, box="one", stack=name, flags=st.FREEZE))


def test_keeper_killed(who):
    "keeper and stock find each other again, with sandboxes and without"
    with both(who) as (k, s):
        s.client().list()
        image = tiny(k, who)
        k.kill9()
        k.start()
        client = k.client()
        must(client.create("one", image))
        with bound(k, "one") as init:
            sh(init, "echo 1 > /data/1", user="root")
        capture(s.client(), "one")
        k.kill9()
        k.start()
        s.kill9()
        s.start()
        _, reply = capture(s.client(), "one")
        check(reply.frozen_us > 0)
        check_equal(s.stop(), 0, s.log_text())
