"""Volumes as users of the E2B Python SDK use them, sync and async. Prints TAP."""
import asyncio
import os

import e2b
from e2b import AsyncSandbox, AsyncVolume, Sandbox, Volume
from tap import finish, test

TEMPLATE = os.environ.get("TEMPLATE", "host")
PLACE = "/home/user/data"


def raises(kind, fn, *args, **kw):
    try:
        fn(*args, **kw)
    except kind as e:
        return e
    raise AssertionError(f"no {kind}")


def manage(v):
    assert any(x.volume_id == v.volume_id for x in Volume.list())
    assert Volume.connect(v.volume_id).token == v.token
    raises(e2b.VolumeException, Volume.create, v.name)
    raises(e2b.NotFoundException, Volume.connect, "vol-aaaaaaaaaaaaaaaaaaaa")


def files(v):
    d = v.make_dir("/d/e", uid=1000, gid=1000, mode=0o750, force=True)
    assert (d.name, d.mode, d.uid) == ("e", 0o750, 1000), d
    f = v.write_file("/d/e/ü.txt", "häl", mode=0o640)
    assert (f.path, f.size, f.mode) == ("/d/e/ü.txt", 4, 0o640), f
    assert v.read_file("/d/e/ü.txt") == "häl"
    assert bytes(v.read_file("/d/e/ü.txt", format="bytes")) == "häl".encode()
    assert b"".join(v.read_file("/d/e/ü.txt", format="stream")) == "häl".encode()
    assert [e.path for e in v.list("/", depth=3)] == ["/d", "/d/e", "/d/e/ü.txt"]
    assert v.update_metadata("/d/e", mode=0o700).mode == 0o700
    assert v.exists("/d") and not v.exists("/nope")
    raises(e2b.NotFoundException, v.read_file, "/nope")
    raises(e2b.VolumeException, v.write_file, "/d/e/ü.txt", "x", force=False)
    v.write_file("/big", b"x" * (8 << 20))
    assert len(v.read_file("/big", format="bytes")) == 8 << 20
    v.remove("/d")
    assert not v.exists("/d")


def mounted(v):
    boxes = [Sandbox.create(TEMPLATE, timeout=600, volume_mounts={PLACE: v}) for _ in range(2)]
    try:
        boxes[0].commands.run(f"echo one > {PLACE}/shared")
        assert boxes[1].commands.run(f"cat {PLACE}/shared").stdout == "one\n"
        assert v.read_file("/shared") == "one\n"
        raises(e2b.VolumeException, Volume.destroy, v.volume_id)
    finally:
        for b in boxes:
            b.kill()


def destroy(v):
    assert Volume.destroy(v.volume_id) is True
    assert Volume.destroy(v.volume_id) is False


async def run_async():
    v = await AsyncVolume.create(f"pya-{os.getpid()}")
    try:
        await asyncio.gather(*[v.write_file(f"/f{i}", str(i) * 1000) for i in range(50)])
        assert await v.read_file("/f7") == "7" * 1000
        assert len(await v.list("/")) == 50
        s = await AsyncSandbox.create(TEMPLATE, timeout=600, volume_mounts={PLACE: v})
        assert (await s.commands.run(f"ls {PLACE} | wc -l")).stdout.strip() == "50"
        await s.kill()
    finally:
        assert await AsyncVolume.destroy(v.volume_id) is True


def main():
    v = Volume.create(f"py-{os.getpid()}")
    for fn in (manage, files, mounted, destroy):
        test(f"volumes: sync {fn.__name__}", fn, v)
    test("volumes: async", run_async)
    finish()


main()
