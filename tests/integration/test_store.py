"""The store's own work: one layer of many, what goes and what stays, what is damaged, differences, going back.

A bare keeper makes the sandboxes, a bare stock beside it does what is asked over its socket (src/layers/proto.h).
"""
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import initc  # noqa: E402
import stock as st  # noqa: E402
from hutch_test import (SOAK, HUTCH, check, check_equal, check_in, eventually, hutch, identity, is_root,  # noqa: E402
                        skip)
from node import node  # noqa: E402
from test_keeper import a_keeper, must, template  # noqa: E402

CAPTURE, DROP = st.CAPTURE, st.DROP
DIFF, OPEN, APPLY, FLATTEN, VERIFY, GC, DF, USAGE = range(9, 17)
OK, BAD_REQUEST, NOT_FOUND, NO_HOST, NO_SPACE, CONFLICT = (st.OK, st.BAD_REQUEST, st.NOT_FOUND, st.NO_HOST, st.NO_SPACE,
                                                           st.CONFLICT)
FREEZE, DRY, BACK = 1, 2, 16
ADDED, REMOVED, CHANGED = 1, 2, 3
GRACE = 61


def ok(answer):
    check_equal(answer.error, OK, answer)
    return answer


def lines(answer):
    return answer.data.decode().splitlines()


class Stock(st.Stock):
    """A stock beside a keeper; can be killed and started again."""

    def __init__(self, k, who="root"):
        self.k, self.ids = k, identity(who)[0]
        self.start()

    def start(self):
        (self.k.run / "stock.sock").unlink(missing_ok=True)
        super().__init__(HUTCH, keeper=self.k, ids=self.ids)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.sock.close()

    def copy_stack(self, stack):
        """The same layers under another name."""
        name = new_stack()
        shutil.copy(self.store / "stacks" / stack, self.store / "stacks" / name)
        shutil.chown(self.store / "stacks" / name, *owner_of(self.store / "stacks" / stack))
        return name

    def problems(self, **fields):
        return lines(ok(self.ask(VERIFY, **fields)))

    def differences(self, **fields):
        """{path: (kind, what)}"""
        data, at, found = ok(self.ask(DIFF, **fields)).data, 0, {}
        while True:
            magic, kind, what, length = struct.unpack_from("<IIII", data, at)
            check_equal(magic, 0x31666448)
            at += 72
            if kind == 0:
                check_equal(struct.unpack_from("<Q", data, at - 24)[0], len(found))
                return found
            found[data[at:at + length].decode()] = kind, what
            at += length


def owner_of(path):
    st = os.stat(path)
    return st.st_uid, st.st_gid


def new_stack():
    return "st-" + secrets.token_hex(8)


def fill_template(k, who):
    """The template `tiny`: a shell, a user, a file."""
    template(k, who)
    ids, entry = identity(who)
    root = k.state / "templates/tiny/root"
    for name in ("sh", "cat", "ls", "rm", "mv", "mkdir", "ln", "chmod", "chown", "dd", "mkfifo"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "data").mkdir()
    (root / "tmp").mkdir()
    os.chmod(root / "tmp", 0o1777)
    (root / "data/old").write_text("old\n")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n")
    for path in (root / "data", root / "data/old", root / "tmp", root / "etc/passwd"):
        if ids:
            os.chown(path, entry.pw_uid, entry.pw_gid)


@contextlib.contextmanager
def a_store(who="root"):
    with a_keeper(who) as k:
        fill_template(k, who)
        k.client().list()
        s = Stock(k, who)
        try:
            yield k, s
        finally:
            if s.process.poll() is None:
                s.close()


def sh(k, box, script):
    init = initc.Init(k.run / f"{box}.sock")
    try:
        with contextlib.suppress(initc.Failure):  # done before
            init.bind()
        exited, code, out, err, _ = init.run("/bin/sh", "-c", script, user="root")
        check(exited and code == 0, (code, out, err))
        return out
    finally:
        init.close()


def chain(k, s, client, scripts, first="tiny"):
    """One sandbox after another, each from what the one before left. The stacks."""
    stacks, source = [], first
    for i, script in enumerate(scripts):
        box = f"chain{secrets.token_hex(4)}"
        must(client.create(box, source))
        sh(k, box, script)
        stacks.append(new_stack())
        r = s.ask(CAPTURE, flags=FREEZE, box=box, stack=stacks[-1])
        if r.error == NO_HOST and "freezer" in r.text:
            skip(f"this user's sandboxes cannot stand still: {r.text}")
        ok(r)
        client.kill(box)
        source = stacks[-1]
    return stacks


MANY = ("mkdir -p /work/deep/down && echo one >/work/a && echo two >/work/deep/down/b && ln -s a /work/link",
        "mv /work/deep /work/moved && rm /data/old && echo three >>/work/a && ln /work/a /work/hard "
        "&& mkfifo /work/fifo",
        "rm -r /work/moved && mkdir /work/moved && echo four >/work/moved/new && chmod 700 /work && chown 5:6 /work/a")


def test_flatten(who):
    "the layers of a stack become one, and nothing in it is different; who lives from it does not notice"
    with a_store(who) as (k, s):
        client = k.client()
        stack = chain(k, s, client, MANY)[-1]
        check_equal(len(s.layers_of(stack)), 3)
        before = s.copy_stack(stack)
        must(client.create("lives", stack))
        earlier = new_stack()
        ok(s.ask(CAPTURE, flags=FREEZE, box="lives", stack=earlier))
        ok(s.ask(FLATTEN, stack=stack))
        check_equal(len(s.layers_of(stack)), 1)
        check_equal(s.differences(stack=earlier, box="lives"), {})
        check_equal(s.differences(stack=before, other=stack), {})
        check_equal(s.problems(), [])
        check_equal(sh(k, "lives", "cat /work/moved/new /work/hard; ls /work/moved"), "four\none\nthree\nnew\n")
        must(client.create("after", stack))
        check_equal(sh(k, "after", "cat /work/moved/new /work/hard; ls /data"), "four\none\nthree\n")
        sh(k, "lives", "echo five >/work/five")
        both = new_stack()
        ok(s.ask(CAPTURE, flags=FREEZE, box="lives", stack=both))
        check_equal(s.differences(stack=stack, other=both), {"work/five": (ADDED, 0)})
        ok(s.ask(FLATTEN, stack=stack))
        check_equal(s.ask(FLATTEN, stack=new_stack()).error, NOT_FOUND)
        eventually(lambda: s.names("tmp") == [], 10, "tmp is empty")


def test_made_by_hand(who):
    "without a sandbox that could stand still: layers of any origin become one, and a living sandbox shows the same"
    with a_store(who) as (k, s):
        _, entry = identity(who)

        def layer(fill):
            name = secrets.token_hex(32)
            root = s.store / "layers" / name / "root"
            root.mkdir(parents=True)
            fill(root)
            for folder, _, files in os.walk(root.parent):
                for path in [folder, *(os.path.join(folder, f) for f in files)]:
                    os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
            return name

        def lower(root):
            (root / "data").mkdir()
            (root / "data/one").write_text("1\n")
            (root / "data/both").write_text("lower\n")

        def upper(root):
            (root / "data").mkdir()
            (root / "data/both").write_text("upper\n")
            (root / "more").mkdir(mode=0o700)
        names = [layer(upper), layer(lower)]
        body = struct.pack("<8sII72s", b"hstack1", 1, 2, b"tiny")
        body += b"".join(bytes.fromhex(name) for name in names).ljust(64 * 32, b"\0")
        stack = new_stack()
        path = s.store / "stacks" / stack
        path.write_bytes(body + hashlib.sha256(body).digest())
        os.chown(path, entry.pw_uid, entry.pw_gid)
        before = s.copy_stack(stack)
        check_equal(ok(s.ask(OPEN, stack=stack, path="data/both")).data, b"upper\n")
        ok(s.ask(FLATTEN, stack=stack))
        check_equal(len(s.layers_of(stack)), 1)
        check_equal(s.differences(stack=before, other=stack), {})
        check_equal(s.problems(stack=stack), [])
        must(k.client().create("lives", stack))
        check_equal(sh(k, "lives", "cat /data/both /data/one /data/old"), "upper\n1\nold\n")
        sh(k, "lives", "echo x >/data/both && rm /data/one")
        check_equal({p: kind for p, (kind, _) in s.differences(stack=before, box="lives").items()},
                    {"data/both": CHANGED, "data/one": REMOVED})


def test_open():
    "a file of a stack is read as a process inside would find it, and only a regular one"
    with a_store() as (k, s):
        stack = chain(k, s, k.client(), ["echo text >/file && ln -s /file /abs && ln -s ../../../../file /up "
                                         "&& mkfifo /fifo && ln -s /etc/shadow /out && ln -s loop /loop"])[0]
        for path in ("file", "/file", "abs", "up", "data/../file"):
            r = ok(s.ask(OPEN, stack=stack, path=path))
            check_equal((r.data, r.bytes), (b"text\n", 5), path)
        check_equal(ok(s.ask(OPEN, stack=stack, path="data/old")).data, b"old\n")
        for path, error in (("missing", NOT_FOUND), ("out", NOT_FOUND), ("file/x", NOT_FOUND), ("data", BAD_REQUEST),
                            ("fifo", BAD_REQUEST), ("loop", BAD_REQUEST), ("/proc/self/fd/3", NOT_FOUND)):
            check_equal(s.ask(OPEN, stack=stack, path=path).error, error, path)
        check_equal(s.ask(OPEN, stack=new_stack(), path="file").error, NOT_FOUND)


def test_diff_box(who):
    "a living sandbox is compared with a stack as it is"
    with a_store(who) as (k, s):
        client = k.client()
        stack = chain(k, s, client, MANY)[-1]
        must(client.create("lives", stack))
        check_equal(s.differences(stack=stack, box="lives"), {})
        sh(k, "lives", "echo x >/new && rm -r /work/moved && chmod 755 /work && echo more >>/work/a && echo t >/tmp/t")
        found = s.differences(stack=stack, box="lives")
        check_equal({p: kind for p, (kind, _) in found.items()},
                    {"new": ADDED, "tmp/t": ADDED, "work": CHANGED, "work/a": CHANGED, "work/moved": REMOVED,
                     "work/moved/new": REMOVED})
        check_equal(s.ask(DIFF, stack=stack, box="nobody").error, NOT_FOUND)


def undo(s, box, stack, was=None):
    was = was or new_stack()
    ok(s.ask(CAPTURE, box=box, stack=was, flags=FREEZE))
    return ok(s.ask(APPLY, box=box, stack=stack, other=was, flags=BACK))


def test_undo(who):
    "the files of a living sandbox become those of a stack again: content, names, owners, modes, links"
    with a_store(who) as (k, s):
        client = k.client()
        stack = chain(k, s, client, MANY)[-1]
        must(client.create("lives", stack))
        sh(k, "lives", "echo x >/new && mkdir /more && echo y >/more/y && rm -r /work/moved && echo file >/work/moved "
                       "&& chmod 755 /work && rm /work/a /work/link && mkdir /work/link && chown 7 /data "
                       "&& rm -r /home")
        check(s.differences(stack=stack, box="lives"))
        r = undo(s, "lives", stack)
        check(r.frozen_us > 0)
        check_equal(s.differences(stack=stack, box="lives"), {})
        check_equal(sh(k, "lives", "cat /work/moved/new /work/hard && echo on >/work/on && cat /work/on"),
                    "four\none\nthree\non\n")
        was = new_stack()
        undo(s, "lives", stack, was)
        check_equal(s.differences(stack=stack, box="lives"), {})
        sh(k, "lives", "echo later >/later")
        check_equal(undo(s, "lives", stack, was).bytes2, 1, "what was done says what it did")
        check_equal(sh(k, "lives", "cat /later"), "later\n", "what was done is not done again")
        eventually(lambda: s.names("tmp") == [], 10, "tmp is empty")
        ok(s.ask(DROP, stack=was))
        check_equal([n for n in s.names("stacks") if n in (was, was + ".done")], [])


def test_holes(who):
    "a file that seems to have terabytes costs what is in it: captured, made one layer, taken back"
    with a_store(who) as (k, s):
        client = k.client()
        holes = "dd if=/dev/zero of=/work/holes bs=1 count=0 seek=15393162788864 2>/dev/null"  # 14 TiB
        stack = chain(k, s, client, [*MANY, f"{holes} && echo end >>/work/holes", "echo more >/work/more"])[-1]
        free = os.statvfs(s.store)
        ok(s.ask(FLATTEN, stack=stack))
        check_equal(len(s.layers_of(stack)), 1)
        check_equal(s.problems(), [])
        must(client.create("lives", stack))
        sh(k, "lives", "rm /work/holes && echo short >/work/holes")
        undo(s, "lives", stack)
        check_equal(s.differences(stack=stack, box="lives"), {})
        check_equal(sh(k, "lives", "ls -l /work/holes | { read -r a b c d size rest; echo $size; }"),
                    f"{15393162788864 + 4}\n")
        now = os.statvfs(s.store)
        check((free.f_bavail - now.f_bavail) * now.f_frsize < 1 << 30, (free, now))


def test_merge(who):
    "only what differs between two stacks is taken over; what the sandbox changed elsewhere stays"
    with a_store(who) as (k, s):
        client = k.client()
        start, end = chain(k, s, client, ["mkdir /w /w/d && echo 1 >/w/a && echo 1 >/w/b && echo 1 >/w/c "
                                          "&& echo 1 >/w/d/e",
                                          "echo 2 >/w/a && rm /w/b && rm -r /w/d && echo 2 >/w/n"])
        must(client.create("lives", start))
        sh(k, "lives", "echo mine >/w/c && echo mine >/w/m && echo 2 >/w/n")
        ok(s.ask(APPLY, box="lives", stack=end, other=start))
        check_equal(sh(k, "lives", "cd /w && ls && cat a c m n"), "a\nc\nm\nn\n2\nmine\nmine\n2\n")
        ok(s.ask(APPLY, box="lives", stack=end, other=start))
        check_equal(sh(k, "lives", "cd /w && ls && cat a c m n"), "a\nc\nm\nn\n2\nmine\nmine\n2\n")


def test_conflict(who):
    "what both sides changed is told, path by path, and nothing is changed"
    with a_store(who) as (k, s):
        client = k.client()
        start, end = chain(k, s, client, ["mkdir /w /w/d /w/f && echo 1 >/w/a && echo 1 >/w/b && echo 1 >/w/c "
                                          "&& echo 1 >/w/f/g",
                                          "echo 2 >/w/a && echo 2 >/w/b && rm -r /w/d && echo 2 >/w/f/h"])
        must(client.create("lives", start))
        sh(k, "lives", "echo mine >/w/a && echo mine >/w/d/mine && rm -r /w/f && echo mine >/w/c && chmod 700 /w")
        before = s.differences(stack=start, box="lives")
        r = s.ask(APPLY, box="lives", stack=end, other=start)
        check_equal((r.error, sorted(lines(r))), (CONFLICT, ["w", "w/a", "w/d/mine", "w/f/h"]), r.text)
        check_equal(s.differences(stack=start, box="lives"), before)
        check_equal(sh(k, "lives", "cat /w/a"), "mine\n")


def test_usage():
    "what a stack needs is told apart from what it shares"
    with a_store() as (k, s):
        one, two = chain(k, s, k.client(), ["dd if=/dev/urandom of=/big bs=64k count=16 2>&1", "echo small >/small"])
        r = ok(s.ask(USAGE, stack=two))
        check(0 < r.bytes < 65536 and r.bytes2 > 1 << 20, (r.bytes, r.bytes2))
        ok(s.ask(DROP, stack=one))
        check(ok(s.ask(USAGE, stack=two)).bytes > 1 << 20)
        data, found = ok(s.ask(DF)).data, {}
        for at in range(0, len(data), 72):
            name, own, own_n, shared, shared_n = struct.unpack_from("<40sQQQQ", data, at)
            found[name.rstrip(b"\0").decode()] = own, own_n, shared, shared_n
        check_equal(sorted(found), ["", "@unused", "@uploads", two])
        check(found[""][0] == found[two][0] > 1 << 20, found)
        check_equal(found["@unused"][0], 0)


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    times = os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns
    with open(path, "r+b") as f:
        f.write(data)
    os.utime(path, ns=times)


def test_verify():
    "a flipped bit, a missing file, another mode, a lost layer, a damaged stack: each is found, and nothing else"
    with a_store() as (k, s):
        client = k.client()
        check_equal(s.problems(), [])
        stacks = [chain(k, s, client, [f"mkdir /d && echo {i} >/d/file && chmod 640 /d/file"])[0] for i in range(6)]
        check_equal(s.problems(), [])
        layers = [s.layers_of(stack)[0] for stack in stacks]
        roots = [s.store / "layers" / name / "root" for name in layers]
        damage(roots[0] / "d/file")
        (roots[1] / "d/file").unlink()
        os.chmod(roots[2] / "d/file", 0o644)
        shutil.rmtree(roots[3].parent)
        damage(s.store / "stacks" / stacks[4])
        damage(roots[5].parent / "meta")
        r = ok(s.ask(VERIFY))
        found = sorted(lines(r))
        check_equal(r.entries, 6, found)
        for i in (0, 1, 2):
            check([line for line in found if line.startswith(f"layer {layers[i]}: something in it was changed")], found)
        check([line for line in found if line == f"stack {stacks[3]}: its layer {layers[3]} is missing"], found)
        check([line for line in found if line.startswith(f"stack {stacks[4]}:") and "is damaged" in line], found)
        check([line for line in found if line.startswith(f"layer {layers[5]}:") and "is damaged" in line], found)
        check_equal(ok(s.ask(VERIFY, stack=stacks[2])).entries, 1)
        check_equal(s.ask(VERIFY, stack=new_stack()).error, NOT_FOUND)


def test_collect():
    "what nobody needs goes after the grace; what a sandbox lives from stays until it has ended"
    if not SOAK:
        skip("waits four times for what gc waits; `make soak` runs it")
    with a_store() as (k, s):
        client = k.client()
        used, unused, flat = (chain(k, s, client, [f"echo {i} >/file", f"echo {i} >/more"])[-1] for i in range(3))
        kept = chain(k, s, client, ["echo kept >/file"])[0]
        used_layers, unused_layers, flat_layers = s.layers_of(used), s.layers_of(unused), s.layers_of(flat)
        kept_layers = s.layers_of(kept)
        must(client.create("lives", used))
        must(client.create("old", flat))
        ok(s.ask(FLATTEN, stack=flat))
        blob = s.store / "blobs" / ("0" * 64)
        blob.write_text("new")
        os.makedirs(s.store / "uppers/nobody/u")
        for stack in s.names("stacks"):
            if stack not in (kept, flat) and "." not in stack:
                ok(s.ask(DROP, stack=stack))
        check_in(used, s.names("stacks"))
        check(unused not in s.names("stacks"))
        ok(s.ask(DROP, stack=unused))
        check_equal(s.ask(OPEN, stack=unused, path="file").error, NOT_FOUND)

        def gone(names):
            return [n for n in names if n not in s.names("layers")]
        time.sleep(GRACE)
        told = ok(s.ask(GC, flags=DRY))
        check(told.entries > 0 and "not done" in lines(told)[0], lines(told))
        check_equal(gone(unused_layers + used_layers + flat_layers), [])
        ok(s.ask(GC))
        check_equal(gone(used_layers + flat_layers + kept_layers), [])
        check_equal(gone(unused_layers), unused_layers)
        eventually(lambda: s.names("uppers") == [], 30)  # deleting goes on after the answer
        check(blob.exists())
        # A stack that names a layer again, between the two steps.
        again = new_stack()
        body = struct.pack("<8sII72s", b"hstack1", 1, 1, b"tiny")
        body += bytes.fromhex(unused_layers[0]).ljust(64 * 32, b"\0")
        (s.store / "stacks" / again).write_bytes(body + hashlib.sha256(body).digest())
        check_equal(sh(k, "lives", "cat /file /more"), "0\n0\n")
        client.kill("lives")
        client.kill("old")
        time.sleep(GRACE)
        r = ok(s.ask(GC))
        check_equal(gone(unused_layers), unused_layers[1:], lines(r))
        check_equal(gone(used_layers), [])
        eventually(lambda: not [n for n in s.names("layers") if unused_layers[1] in n], 30)
        check_equal(ok(s.ask(OPEN, stack=again, path="more")).data, b"1\n")
        check_equal(s.problems(), [])
        time.sleep(GRACE)
        ok(s.ask(GC))
        time.sleep(GRACE)
        ok(s.ask(GC))
        left = {n for stack in (kept, flat, again) for n in s.layers_of(stack)}
        eventually(lambda: set(s.names("layers")) == left, 30)
        check_equal(sorted(s.names("stacks")), sorted([kept, flat, again]))
        check_equal(s.problems(), [])


def test_doubt():
    "as long as one stack cannot be read, no layer goes"
    if not SOAK:
        skip("waits for what gc waits; `make soak` runs it")
    with a_store() as (k, s):
        client = k.client()
        one, two = (chain(k, s, client, [f"echo {i} >/file"])[0] for i in range(2))
        layer = s.layers_of(one)[0]
        ok(s.ask(DROP, stack=one))
        damage(s.store / "stacks" / two)
        time.sleep(GRACE)
        for _ in range(2):
            r = ok(s.ask(GC))
            check_in(f"none is removed, because stacks/{two} is damaged", "\n".join(lines(r)))
        check_in(layer, s.names("layers"))


def frozen(k, box):
    return sh(k, box, "echo here") != "here\n"


def test_kill():
    "kill -9 of stock in the middle of anything leaves the old or the new, whole; the next one cleans up"
    with a_store() as (k, s):
        client = k.client()
        stack = chain(k, s, client, [*MANY, "dd if=/dev/urandom of=/big bs=64k count=64 2>&1; i=0; "
                                            "while [ $i -lt 300 ]; do echo $i >/work/$i; i=$((i+1)); done"])[-1]
        before = s.copy_stack(stack)
        must(client.create("lives", stack))
        fresh = None
        for i in range(12):
            pause = 0.002 * 1.6 ** i
            kind = (FLATTEN, CAPTURE, APPLY, GC, VERIFY)[i % 5]
            victim = s.copy_stack(before)
            fresh = new_stack()
            if kind == APPLY:
                sh(k, "lives", "rm -rf /work && echo x >/new")
                ok(s.ask(CAPTURE, box="lives", stack=fresh, flags=FREEZE))
            fields = {FLATTEN: {"stack": victim}, CAPTURE: {"box": "lives", "stack": fresh, "flags": FREEZE},
                      APPLY: {"box": "lives", "stack": before, "other": fresh, "flags": BACK}, GC: {}, VERIFY: {}}[kind]
            s.send(kind, **fields)
            time.sleep(pause)
            s.kill()
            s.start()
            check_equal(s.problems(), [], kind)
            check_equal(s.differences(stack=before, other=victim), {}, kind)
            check(not frozen(k, "lives"), kind)
            if fresh in s.names("stacks"):
                check_equal(ok(s.ask(VERIFY, stack=fresh)).entries, 0)
            if kind == APPLY:
                ok(s.ask(APPLY, **fields))
                check_equal(s.differences(stack=before, box="lives"), {})
            eventually(lambda: s.names("tmp") == [] and not [n for n in os.listdir(s.store) if n[0] == "."], 20,
                       "tmp is empty")


@contextlib.contextmanager
def small_disk(k, size):
    """STATE/stock on a file system of its own."""
    image = k.dir / "disk.img"
    subprocess.run(["truncate", "-s", size, str(image)], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", str(image)], check=True)
    os.makedirs(k.state / "stock", exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(k.state / "stock")], check=True)
    try:
        yield
    finally:
        # Those who used it may still be ending.
        eventually(lambda: subprocess.run(["umount", str(k.state / "stock")], check=False).returncode == 0, 30, "it can be unmounted")


def test_disk_full():
    "a full disk is said to be full, what was begun is taken back, and what was there is whole"
    if not is_root() or not shutil.which("mkfs.ext4"):
        skip("needs root and mkfs.ext4")
    with a_keeper() as k:
        k.process.terminate()
        k.process.wait()
        with small_disk(k, "12M"):
            k.start()
            fill_template(k, "root")
            client = k.client()
            client.list()
            s = Stock(k)
            try:
                stacks = chain(k, s, client, ["dd if=/dev/urandom of=/one bs=64k count=70 2>&1",
                                              "dd if=/dev/urandom of=/two bs=64k count=70 2>&1"])
                r = s.ask(FLATTEN, stack=stacks[-1])
                check_equal(r.error, NO_SPACE, r.text)
                must(client.create("big", stacks[-1]))
                sh(k, "big", "dd if=/dev/urandom of=/three bs=64k count=90 2>&1")
                new = new_stack()
                r = s.ask(CAPTURE, flags=FREEZE, box="big", stack=new)
                check_equal(r.error, NO_SPACE, r.text)
                check(new not in s.names("stacks"))
                eventually(lambda: s.names("tmp") == [], 10, "tmp is empty")
                check_equal(s.problems(), [])
                check(not frozen(k, "big"))
            finally:
                s.close()
                for box in client.list():
                    client.kill(box)
                k.process.terminate()
                k.process.wait()


def test_commands():
    "hutch store: what there is, what may go, and exit code 1 with a line for each problem"
    with node() as (d, _):
        check_in("layers 0 B", d.cli("store", "df").stdout)
        check_equal(d.cli("store", "verify").stdout, "everything is as it was written (0 B)\n")
        check_in("0 B in 0 parts removed", d.cli("store", "gc").stdout)
        stack = new_stack()
        (d.state / "stock/stacks" / stack).write_bytes(b"nothing that was sealed")
        r = d.cli("store", "verify", check=False)
        check_equal((r.returncode, r.stdout.splitlines()[0]), (1, f"stack {stack}: stacks/{stack} is damaged"), r)
        check_equal(d.cli("store", "verify", stack, check=False).returncode, 1)
        check_in("none is removed, because", d.cli("store", "gc", "--dry-run").stdout)
        r = d.cli("store", "verify", new_stack(), check=False)
        check(r.returncode not in (0, 1) and "there is no stack" in r.stderr, r)
        check_equal(json.loads(d.cli("store", "df", "--json").stdout)["stacks"], [])
        key = d.cli("key", "create", "--name", "plain").stdout.strip()
        r = hutch("store", "df", env={"HUTCH_URL": d.url, "HUTCH_API_KEY": key})
        check(r.code != 0 and "403" in r.err, r)
