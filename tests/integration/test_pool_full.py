"""An undo and a commit where the disk is full: done, or refused with 507, and the files as they were. In the pool, where what a snapshot holds is never
freed, and on a btrfs whose quotas are full ones, where a change is begun and taken back."""
import contextlib
import os
import shutil
import subprocess

from hutch_test import SOAK, check, check_equal, check_in, eventually, skip
from node import node
from node_client import ask, call, sh
from small import small_templates
from test_pool import a_box, df, needs_pool, pool_node

MIB = 1 << 20
LOOK = "cd /home/user; find . | sort | while read n; do stat -c '%n %s %f %u %Y' $n; done; find . -type f | sort | xargs md5sum"


@contextlib.contextmanager
def btrfs_node(templates, disk):
    """A node on a btrfs of the host, whose quotas become full ones: a snapshot is copied there, and what is removed is free at once."""
    needs_pool()
    place = templates.parent / f"{templates.name}-btrfs"
    image = f"{place}.disk"
    place.mkdir()
    with open(image, "wb") as f:
        f.truncate(512 * MIB)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    try:
        with node(templates=templates, config=f"files: btrfs\nsandboxes: {{disk: {disk}}}\n", home=place) as (d, _):
            check_in("btrfs", df(d)["files"]["driver"])
            yield d
    finally:
        subprocess.run(["umount", place], check=True)
        os.unlink(image)
        place.rmdir()


NODES = (lambda t: pool_node(t, disk="48MiB"), lambda t: btrfs_node(t, "48MiB"))


def test_undo():
    "an undo that does not fit is 507, names what is full, and leaves files and history as they were; with room it is done"
    needs_pool()
    for start in NODES:
        with small_templates() as templates, start(templates) as d:
            box = a_box(d)
            url = f"/v1/sandboxes/{box['sandboxID']}/history"
            sh(d, box, "cd /home/user; echo 1 > a; head -c 20000000 /dev/urandom > big; echo 1 > c")
            check_equal(ask(d, "POST", url, {}).status, 201)
            sh(d, box, "cd /home/user; rm big; echo 2 > a; rm c; sync; head -c 20000000 /dev/urandom > filler; head -c 20000000 /dev/urandom > more; sync")
            before, past = sh(d, box, LOOK).out, ask(d, "GET", url).json["generations"]
            full = ask(d, "POST", url + "/undo", {"to": 1}, timeout=120)
            check_equal(full.status, 507, full)
            check_in("the disk of the sandbox is full", full.json["message"])
            check_equal(sh(d, box, LOOK).out, before)
            check_equal(ask(d, "GET", url).json["generations"], past)
            if start is NODES[0] and not SOAK:  # the room of a dropped generation is free after two minutes
                continue
            sh(d, box, "rm /home/user/filler /home/user/more")

            def undone():
                d.cli("store", "gc")
                return ask(d, "POST", url + "/undo", {"to": 1}, timeout=120).status == 200
            eventually(undone, 300, "with room it is done")
            check_equal(sh(d, box, "cd /home/user; cat a c; ls").out, b"1\n1\na\nbig\nc\n")


def test_commit():
    "a commit that does not fit is 507 and leaves the sandbox as it was and the transaction open; with room it is done"
    needs_pool()
    for start in NODES:
        with small_templates() as templates, start(templates) as d:
            box = a_box(d)
            url = f"/v1/sandboxes/{box['sandboxID']}/tx"
            sh(d, box, "cd /home/user; echo 1 > f; echo 1 > gone; head -c 15000000 /dev/urandom > big")
            alike = "cd /home/user; echo 2 > f; rm gone; "
            tx = ask(d, "POST", url, {"command": alike + "rm big; echo 2 > a; head -c 24000000 /dev/urandom > zz"}, timeout=60)
            check_equal((tx.status, tx.json["exitCode"]), (201, 0), tx)
            sh(d, box, alike + "head -c 30000000 /dev/urandom > filler; sync")
            before = sh(d, box, LOOK).out
            full = ask(d, "POST", f"{url}/{tx.json['id']}/commit", {}, timeout=120)
            check_equal(full.status, 507, full)
            check_in("the disk of the sandbox is full", full.json["message"])
            check_equal(sh(d, box, LOOK).out, before)
            check_equal([t["state"] for t in ask(d, "GET", url).json], ["open"])
            sh(d, box, "rm /home/user/filler; sync")
            done = ask(d, "POST", f"{url}/{tx.json['id']}/commit", {}, timeout=120)
            check_equal(done.status, 200, done)
            check_equal(sh(d, box, "cd /home/user; cat f a; ls; wc -c < zz").out, b"2\n2\na\nf\nzz\n24000000\n")
            r = sh(d, box, "cd /home/user; head -c 60000000 /dev/zero > over; wc -c < over")  # the limit is in force again
            check(int(r.out) < 48 * MIB, r)


def test_attributes():
    "a commit for whose attributes there is no room in the pool is 507, and done with its attributes when there is"
    needs_pool()
    for start in NODES:
        with small_templates() as templates:
            tagged = templates / "small/root/home/user/tagged"
            for i in range(200):
                one = tagged.with_name(f"tagged{i}")
                one.write_text("x")
                os.chown(one, 1000, 1000)
                os.setxattr(one, "user.e2b.tag", b"t" * 3600)
            with start(templates) as d:
                box = a_box(d)
                url = f"/v1/sandboxes/{box['sandboxID']}/tx"
                if start is NODES[0]:  # what is removed frees nothing, and does not fit again
                    sh(d, box, "head -c 15000000 /dev/urandom > /home/user/big")
                tx = ask(d, "POST", url, {"command": "cd /home/user; rm -f big; for i in tagged*; do ln $i new$i; done"}, timeout=60)
                check_equal((tx.status, tx.json["exitCode"]), (201, 0), tx)
                sh(d, box, "cd /home/user; for n in 1000000 100000 10000; do i=0; while head -c $n /dev/urandom > fill$n-$i && sync fill$n-$i; do"
                           " i=$((i+1)); done; rm -f fill$n-$i; done 2>/dev/null; sync", timeout=120)
                before = sh(d, box, "cd /home/user; ls -l --full-time .").out
                full = ask(d, "POST", f"{url}/{tx.json['id']}/commit", {}, timeout=120)
                check_equal(full.status, 507, full)
                check_in("the disk of the sandbox is full", full.json["message"])
                check_equal(sh(d, box, "cd /home/user; ls -l --full-time .").out, before)
                sh(d, box, "rm /home/user/fill*; sync")
                done = ask(d, "POST", f"{url}/{tx.json['id']}/commit", {}, timeout=120)
                check_equal(done.status, 200, done)
                for i in (0, 199):
                    entry = call(d, box, "filesystem.Filesystem/Stat", {"path": f"/home/user/newtagged{i}"}).json["entry"]
                    check_equal(entry["metadata"], {"tag": "t" * 3600})
