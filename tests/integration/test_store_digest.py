"""Layers have a name when they are made and a digest later: in the background, before an export, or from `hutch store verify`."""
import contextlib
import hashlib
import io
import json
import os
import struct
import sys
import tarfile

sys.path.insert(0, os.path.dirname(__file__))
import stock as st  # noqa: E402
from hutch_test import HUTCH_TEST, TOP, check, check_equal, eventually, identity  # noqa: E402
from test_keeper import a_keeper, must  # noqa: E402
from test_stock_capture import held  # noqa: E402
from test_store import CAPTURE, DF, FLATTEN, FREEZE, GC, VERIFY, Stock, chain, fill_template, new_stack, ok, sh  # noqa: E402

NONE = bytes(32)


class TestStock(Stock):
    """The test program, whose jobs wait where held() says, with image workers."""

    def __init__(self, k, program=HUTCH_TEST):
        self.program = program
        super().__init__(k)

    def start(self):
        (self.k.run / "stock.sock").unlink(missing_ok=True)
        node = (os.environ.get("HUTCH_NODE_BIN") or str(TOP / "build/hutch-node"))
        st.Stock.__init__(self, self.program, arguments=("--node", node), keeper=self.k, ids=identity("root")[0])

    def meta(self, layer):
        """(naming, entries, digest)"""
        data = (self.store / "layers" / layer / "meta").read_bytes()
        _, naming, _, _, entries, _ = struct.unpack_from("<8sIIQQq", data)
        return naming, entries, data[40:72]


@contextlib.contextmanager
def a_store():
    with a_keeper("root") as k:
        fill_template(k, "root")
        s = TestStock(k)
        try:
            yield k, s
        finally:
            if s.process.poll() is None:
                s.close()


def digested(s, layer):
    return s.meta(layer)[2] != NONE


def test_background():
    "a capture is answered before its layer is digested; the store does that by itself, and kill -9 amid it only delays it"
    with a_store() as (k, s):
        client = k.client()
        with held(k, "digested"):
            stack = chain(k, s, client, ["mkdir /d && echo 1 >/d/file && ln -s file /d/link && mkfifo /d/pipe && rm /data/old"])[0]
            layer = s.layers_of(stack)[0]
            naming, entries, digest = s.meta(layer)
            check_equal((naming, digest), (2, NONE))
            check(entries >= 6, entries)
            must(client.create("early", stack))
            check_equal(sh(k, "early", "cat /d/file"), "1\n", "a layer is used before it has a digest")
            there = k.run / "hold-digested-reached"
            eventually(there.exists, 30, "the store digests by itself")
            s.kill()
            check_equal(s.meta(layer)[2], NONE, "it has no digest, or a whole one")
        s.start()
        eventually(lambda: digested(s, layer), 30, "the next store digests what the one before left")
        check_equal(s.meta(layer)[1], entries, "the size that was told stays")
        check(s.meta(layer)[2].hex() != layer, "the name stays")
        eventually(lambda: s.names("tmp") == [], 10, "tmp is empty")
        check_equal((s.problems(), ok(s.ask(VERIFY)).entries2), ([], 0))
        # What was changed after that is found.
        (s.store / "layers" / layer / "root/d/file").write_text("2\n")
        found = s.problems()
        check(len(found) == 1 and found[0].startswith(f"layer {layer}: something in it was changed: its digest is now "), found)


def test_verify_digests():
    "verify tells how many layers had no digest yet, and they have one then; df, gc, diff and flatten need none"
    with a_store() as (k, s):
        with held(k, "digested"):
            stacks = chain(k, s, k.client(), ["echo 1 >/1", "echo 2 >/2"])
            layers = s.layers_of(stacks[1])
            eventually((k.run / "hold-digested-reached").exists, 30, "the store's own job waits")
            check_equal([digested(s, name) for name in layers], [False, False])
            check_equal(s.differences(stack=stacks[0], other=stacks[1]), {"2": (1, 0)})
            ok(s.ask(DF))
            ok(s.ask(GC))
            r = ok(s.ask(VERIFY))
            check_equal((r.entries, r.entries2), (0, 2))
            check_equal([digested(s, name) for name in layers], [True, True])
            check_equal(ok(s.ask(VERIFY)).entries2, 0)
            ok(s.ask(FLATTEN, stack=stacks[1]))
            check_equal(len(s.layers_of(stacks[1])), 1)
            check_equal(s.meta(s.layers_of(stacks[1])[0])[0], 1, "what is made of many is digested at once")


def test_unchanged():
    "a capture that differs in nothing from an earlier one is that layer; any difference makes another"
    with a_store() as (k, s):
        client = k.client()
        must(client.create("one", "tiny"))
        sh(k, "one", "mkdir -p /d/e && echo 1 >/d/file && ln /d/file /d/hard && ln -s file /d/link && rm /data/old")
        names = [new_stack()]
        ok(s.ask(CAPTURE, flags=FREEZE, box="one", stack=names[0]))
        for change in ("true", "chmod 700 /d/e", "ln -sf hard /d/link", "touch -d @7 /d/e", "echo 2 >/d/file", "rm /d/hard", "chown 5 /d/e"):
            sh(k, "one", change)
            names.append(new_stack())
            r = ok(s.ask(CAPTURE, flags=FREEZE, box="one", stack=names[-1], other=names[-2]))
            same = s.layers_of(names[-1]) == s.layers_of(names[-2])
            check_equal(same, change == "true", change)
            check_equal(s.differences(stack=names[-1], box="one"), {}, change)
            check(r.bytes2 == r.bytes if same else r.bytes2 <= r.bytes, (change, r.bytes, r.bytes2))
        check_equal(s.problems(), [])


def test_export_of_a_fresh_capture():
    "an export digests what has no digest yet; what is restored from it is named by its digest"
    with a_store() as (k, s):
        with held(k, "digested"):
            stack = chain(k, s, k.client(), ["mkdir /d && echo 1 >/d/file"])[0]
            layer = s.layers_of(stack)[0]
            eventually((k.run / "hold-digested-reached").exists, 30, "the store's own job waits")
            check(not digested(s, layer))
            r = ok(s.ask(st.EXPORT, stack=stack))
            check(digested(s, layer))
        with tarfile.open(fileobj=io.BytesIO(r.data)) as tar:
            told = json.load(tar.extractfile("hutch.json"))
        check_equal(told["layers"][-1]["layer"], "sha256:" + s.meta(layer)[2].hex())
        again = new_stack()
        archive = os.memfd_create("archive")
        os.write(archive, r.data)
        os.lseek(archive, 0, os.SEEK_SET)
        ok(s.ask(st.RESTORE, fds=[archive], stack=again))
        os.close(archive)
        restored = s.layers_of(again)[0]
        check_equal((s.meta(restored)[0], s.meta(restored)[2].hex()), (1, restored))
        check_equal(s.differences(stack=stack, other=again), {})


def as_before(s, stack):
    "Makes of the topmost layer of a stack what stores had before layers had names: a directory, a meta and a stack that say its digest."
    layer = s.layers_of(stack)[0]
    meta = s.store / "layers" / layer / "meta"
    data = bytearray(meta.read_bytes())
    digest = bytes(data[40:72])
    struct.pack_into("<I", data, 8, 1)
    data[104:136] = hashlib.sha256(data[:104]).digest()
    meta.write_bytes(data)
    os.rename(s.store / "layers" / layer, s.store / "layers" / digest.hex())
    path = s.store / "stacks" / stack
    data = bytearray(path.read_bytes())
    data[88:120] = digest
    data[-32:] = hashlib.sha256(data[:-32]).digest()
    path.write_bytes(data)
    return digest.hex()


def test_old_store():
    "layers of an older store, which are named by their digest, go on as they are, under and beside new ones"
    with a_store() as (k, s):
        client = k.client()
        stack = chain(k, s, client, ["mkdir /d && echo 1 >/d/file"])[0]
        ok(s.ask(VERIFY))
        s.kill()
        name = as_before(s, stack)
        s.start()
        r = ok(s.ask(VERIFY))
        check_equal((r.entries, r.entries2, s.layers_of(stack)), (0, 0, [name]))
        must(client.create("on", stack))
        check_equal(sh(k, "on", "cat /d/file; echo 2 >/d/file"), "1\n")
        after = new_stack()
        ok(s.ask(CAPTURE, flags=FREEZE, box="on", stack=after))
        check_equal(s.layers_of(after)[1], name)
        eventually(lambda: digested(s, s.layers_of(after)[0]), 30)
        check_equal((s.problems(), s.meta(name)[0]), ([], 1))
        ok(s.ask(FLATTEN, stack=after))
        check_equal(s.differences(stack=after, box="on"), {})
        (s.store / "layers" / name / "root/d/file").write_text("9\n")
        check(s.problems()[0].startswith(f"layer {name}: something in it was changed"), "it is still compared with its digest")
