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
from hutch_test import HUTCH, HUTCH_TEST, SOAK, check, check_equal, check_in, eventually, skip  # noqa: E402
from test_keeper import a_keeper, must  # noqa: E402
from test_keeper_stock import bound, file_system, sh, store as store_of, tiny  # noqa: E402


@contextlib.contextmanager
def both(who, program=HUTCH):
    """A keeper with its stock."""
    with a_keeper(who) as k:
        s = st.Stock(k, program).start()
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


@contextlib.contextmanager
def held(k, stage):
    """The next job that comes to this stage (job_hold() of src/stock) stops there until the block ends; stock must be of HUTCH_TEST. The
    value, a function of the client and its request, waits until the job is there."""
    asked, there = k.run / f"hold-{stage}", k.run / f"hold-{stage}-reached"
    owner = os.stat(k.run)
    asked.touch()
    os.chown(asked, owner.st_uid, owner.st_gid)

    def reached(client, number):
        eventually(lambda: there.exists() or select.select([client.sock], [], [], 0)[0], 60, f"the job is at the stage {stage}")
        if not there.exists():
            good(client.wait(number))
            check(False, f"the job was answered before it came to the stage {stage}")
    try:
        yield reached
    finally:
        asked.unlink(missing_ok=True)
        there.unlink(missing_ok=True)


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
        check_equal(k.holders("one"), set())


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
        s = st.Stock(k, HUTCH_TEST).start()
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


@contextlib.contextmanager
def begun_large(k, s, box):
    """Begins the capture of a sandbox with many files. In the block its snapshot is there, nothing is copied yet, and it runs again."""
    store, name = s.client(), st.new_stack()
    with held(k, "thawed") as reached:
        number = store.send(st.CAPTURE, box=box, stack=name, flags=st.FREEZE)
        reached(store, number)
        check(subvolumes(k.state / "stock/tmp"), "it is copied without a snapshot")
        check(not k.holders(box), "it stands still")
        yield store, number, name


FILL = "cd /data; for i in $(/bin/busybox seq 3000); do echo $i > f$i; done; cat /bin/busybox > large"


def test_capture_on_btrfs():
    "on btrfs a sandbox stands still for a snapshot only; its files are copied while it runs, and the snapshot goes"
    with on_btrfs() as (k, s):
        client = k.client()
        must(client.create("one", tiny(k, "root"), disk=128 << 20))
        with bound(k, "one") as init:
            sh(init, FILL + "; rm /data/gone; chown user /data/f1", user="root")
            with begun_large(k, s, "one") as (store, number, name):
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
            with begun_large(k, s, "one"):
                s.kill9()
            s.start()
            s.client().list()
            top = k.state / "stock"
            eventually(lambda: not [n for n in os.listdir(top) if n.startswith(".gone-")] and not os.listdir(top / "tmp"), 30)
            check_equal(sh(init, "cat /data/old"), "old\n")
            capture(s.client(), "one")


LARGE = FILL + "; /bin/busybox dd if=/dev/urandom of=/data/random bs=1M count=80 2>/dev/null; rm /data/gone; chown user /data/f1; ln /data/f2 /data/l2"


def test_capture_through_memory(who):
    "without reflinks a sandbox stands still while its files are copied to memory, many too, and the layer is made while it runs"
    with both(who, HUTCH_TEST) as (k, s):
        client = k.client()
        must(client.create("one", tiny(k, who), driver="layers"))
        with bound(k, "one") as init:
            sh(init, LARGE, user="root")
            want = sh(init, "cd /data; /bin/busybox md5sum random f3000; stat -c '%u %h %a' f1 f2 l2; ls | /bin/busybox wc -l")
            store, name = s.client(), st.new_stack()
            with held(k, "filled") as reached:
                number = store.send(st.CAPTURE, box="one", stack=name, flags=st.FREEZE)
                reached(store, number)
                check(k.holders("one"), "it does not stand still")
                tmp = k.state / "stock/tmp"
                check_equal([n for t in os.listdir(tmp) for n in os.listdir(tmp / t / "root")], [], "its layer grows while it stands still")
            good(store.wait(number))
        must(client.create("two", name, driver="layers"))
        with bound(k, "two") as init:
            check_equal(sh(init, "cd /data; /bin/busybox md5sum random f3000; stat -c '%u %h %a' f1 f2 l2; ls | /bin/busybox wc -l"), want)


def scores_of(k, s, box, flags):
    """Captures it, and what its jobs say when its files are copied of whether they are to be ended first when there is no memory left."""
    store, scores = s.client(), set()
    with held(k, "filled") as reached:
        number = store.send(st.CAPTURE, box=box, stack=st.new_stack(), flags=flags)
        reached(store, number)
        for pid in open(f"/proc/{s.process.pid}/task/{s.process.pid}/children").read().split():
            scores.add(int(open(f"/proc/{pid}/oom_score_adj").read()))
    good(store.wait(number))
    return scores


def test_memory_of_captures(who):
    "a job that has the files of a sandbox in memory is the first to go when there is none left; those of a paused one go to the disk at once"
    with both(who, HUTCH_TEST) as (k, s):
        client = k.client()
        must(client.create("one", tiny(k, who), driver="layers"))
        with bound(k, "one") as init:
            sh(init, LARGE, user="root")
            check_in(1000, scores_of(k, s, "one", st.FREEZE))
        pause(client, "one")
        scores = scores_of(k, s, "one", 0)
        check(scores and 1000 not in scores, f"it went through memory: {scores}")
        must(client.resume("one"))


def test_capture_of_what_grows(who):
    "files that appear between the look at how large they are and the moment it stands still do not fit in memory: they are copied all the same"
    with both(who, HUTCH_TEST) as (k, s):
        client, store = k.client(), s.client()
        must(client.create("one", tiny(k, who), driver="layers"))

        def sizes(reply):
            folder = k.state / "stock/layers" / reply.layer.decode() / "root/data"
            return [(folder / n).stat().st_size >> 20 if (folder / n).exists() else None for n in ("whole", "f")]
        with bound(k, "one") as init:
            sh(init, "cd /data; /bin/busybox dd if=/dev/zero bs=1M count=60 2>/dev/null | /bin/busybox tr '\\0' x > whole", user="root")
            check_equal(sizes(capture(store, "one")[1]), [60, None])
            for script, want in (("cat whole whole > f", [60, 120]), ("rm f; cat whole > f", [60, 60]), ("rm f", [60, None]), ("cat whole whole whole > f", [60, 180])):
                with held(k, "sized") as reached:
                    number = store.send(st.CAPTURE, box="one", stack=st.new_stack(), flags=st.FREEZE)
                    reached(store, number)
                    sh(init, f"cd /data; {script}", user="root")
                reply = good(store.wait(number))
                os.close(reply.fd) if reply.fd is not None else None
                check_equal(sizes(reply), want, script)


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
    "a sandbox that stood still when the layer store was killed goes on at once, without the next one"
    with both(who, HUTCH_TEST) as (k, s):
        client, store = k.client(), s.client()
        must(client.create("one", tiny(k, who)))
        with bound(k, "one") as init:
            sh(init, "cd /data; for i in 1 2 3 4 5 6 7 8 9; do mkdir $i; for j in 1 2 3 4 5 6 7 8 9; do"
                     " cat /bin/busybox > $i/$j; done; done", user="root")
            capture(store, "one")
            name = st.new_stack()
            with held(k, "filled") as reached:
                number = store.send(st.CAPTURE, box="one", stack=name, flags=st.FREEZE)
                reached(store, number)
                check(k.holders("one"), "it does not stand still")
                s.kill9()
            s.start()
            store = s.client()
            store.list()
            eventually(lambda: not [p for p in (k.state / "stock").iterdir() if p.name.startswith(".gone-")], 20)
            good(store.ask(st.CAPTURE, box="one", stack=name, flags=st.FREEZE))


def test_keeper_killed_during_capture():
    "a keeper that is killed while a sandbox is copied leaves it still for the job; the next one thaws it when the job says so"
    with both("root") as (k, s):
        client, store = k.client(), s.client()
        must(client.create("one", tiny(k, "root")))
        with bound(k, "one") as init:
            sh(init, "cd /data; for i in 1 2 3 4 5 6 7 8 9; do mkdir $i; for j in 1 2 3 4 5 6 7 8 9; do"
                     " cat /bin/busybox > $i/$j; done; done", user="root")
            capture(store, "one")
            for _ in range(5):
                name, end = st.new_stack(), time.monotonic() + 60
                number = store.send(st.CAPTURE, box="one", stack=name, flags=st.FREEZE)
                while not k.holders("one") and not (k.state / "stock/stacks" / name).exists() and time.monotonic() < end:
                    pass
                k.kill9()
                k.start()
                check(good(store.wait(number)).frozen_us > 0)
                eventually(lambda: not k.holders("one"), 10)
                check_equal(sh(init, "cat /data/old"), "old\n")


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
