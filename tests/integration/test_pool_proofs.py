"""What the pool is for: work that is larger than a sandbox's memory, tenants beside each other, and hosts on which there cannot be a pool."""
import os
import pathlib
import shutil
import subprocess
import tempfile

from daemon import TOP, Daemon
from hutch_test import HUTCH, SOAK, check, check_equal, check_in, identity, skip
from node import needs_root
from node_client import ask, patient, sh
from small import small_templates
from test_base import inside, need, wait_for
from test_pool import a_box, df, mounted, needs_pool, nothing_left, of, pool_node, refused

MIB, GIB = 1 << 20, 1 << 30
LARGE = """next@15 @next/swc-linux-x64-musl@15 googleapis aws-sdk aws-cdk-lib monaco-editor react-icons @tabler/icons @oven/bun-linux-x64
 @oven/bun-linux-x64-baseline typescript @swc/core three date-fns"""


def test_npm_install():
    "npm installs about a gigabyte in a sandbox of 2 GiB; a snapshot of it and a sandbox from that have all of it"
    needs_pool()
    if not SOAK:
        skip("builds base, which takes minutes; `make soak` runs it")
    network = need("deb.debian.org", "registry.npmjs.org")
    with pool_node(None, config="files: pool\npool: {size: 24GiB}\nsandboxes: {memory: 2GiB}\n" + network, base="auto") as d:
        check_equal(wait_for(d, "base", 1500)[0], "ready")
        b = d.cli("create", "--network", "public", "--timeout", "60m", "base").stdout.strip()
        inside(d, b, f"mkdir n && cd n && npm install --silent --force --no-audit --no-fund {' '.join(LARGE.split())}")
        size = int(inside(d, b, "du -sm n | cut -f1"))
        print(f"# {size} MiB of packages in {inside(d, b, 'find n -type f | wc -l').strip()} files")
        check(size > 900, f"{size} MiB")
        one = ask(d, "POST", f"/sandboxes/{b}/snapshots", {}, timeout=300)
        check_equal(one.status, 201, one)
        copy = d.cli("create", one.json["snapshotID"]).stdout.strip()
        count = "cd n && find . -type f | sort | xargs -d '\\n' stat -c '%n %s' | sha256sum"
        check_equal(inside(d, copy, count), inside(d, b, count))
        inside(d, copy, "cd n && node -e 'require(\"typescript\"); require(\"three\"); require(\"googleapis\")'")


def test_large_template():
    "a template of 3 GB is built in sandboxes of 2 GiB, and sandboxes made from it have all of it"
    needs_pool()
    if not SOAK:
        skip("writes 3 GB; `make soak` runs it")
    with small_templates() as templates, tempfile.TemporaryDirectory() as place:
        with pool_node(templates, config="files: pool\npool: {size: 16GiB}\nsandboxes: {memory: 2GiB}\n") as d:
            steps = "".join(f"RUN head -c 1000000000 /dev/urandom > part{i} && sha256sum part{i} >> sums\n" for i in range(3))
            pathlib.Path(place, "Dockerfile").write_text(f"FROM hutch/small\nWORKDIR /data\n{steps}")
            r = d.cli("template", "build", "-t", "large", "--memory", "2GiB", place, check=False, timeout=900)
            check_equal(r.returncode, 0, r)
            check_equal(sh(d, a_box(d, "large"), "cd /data; sha256sum -c sums; cat part* | wc -c", timeout=300).text,
                        "part0: OK\npart1: OK\npart2: OK\n3000000000\n")
            check_equal(d.cli("store", "verify", timeout=900).returncode, 0)


def test_two_tenants():
    "two tenants in one pool: what fills the quota of one stops neither the other nor what it has"
    needs_pool()
    with small_templates() as templates, pool_node(templates, disk="64MiB") as d:
        keys = {}
        for tenant in ("full", "other"):
            check_equal(ask(d, "POST", "/v1/tenants", {"id": tenant}).status, 201)
            check_equal(d.cli("tenant", "set", tenant, "--storage", "30M").returncode, 0)
            keys[tenant] = ask(d, "POST", "/v1/keys", {"tenant": tenant, "scopes": ["sandboxes", "templates"]}).json["key"]
        boxes = {t: patient(d, "POST", "/v2/sandboxes", {"templateID": "small"}, key=k).json for t, k in keys.items()}

        def snapshot(tenant):
            sh(d, boxes[tenant], "head -c 20000000 /dev/urandom > /home/user/f$RANDOM; sync")
            return patient(d, "POST", of(boxes[tenant], "/snapshots"), {}, key=keys[tenant], timeout=60)
        first = snapshot("full")
        check_equal(first.status, 201, first)
        second = snapshot("full")
        check_equal((second.status, "30" in second.json["message"]), (429, True), second)
        check_equal(snapshot("other").status, 201)
        # Its sandbox writes up to the sandbox's limit, what it kept can be used, and the other's sandbox has its own limit.
        full = sh(d, boxes["full"], "dd if=/dev/zero of=/home/user/big bs=1M count=100 2>&1")
        check_in("uota exceeded", full.text)
        check_equal(sh(d, boxes["other"], "head -c 25000000 /dev/zero > /home/user/g; wc -c < /home/user/g").text, "25000000\n")
        again = patient(d, "POST", "/v2/sandboxes", {"templateID": first.json["snapshotID"]}, key=keys["full"])
        check_equal(again.status, 201, again)
        check_equal(sh(d, again.json, "ls /home/user | wc -l").text, "1\n")
        check_equal(ask(d, "POST", "/v2/sandboxes", {"templateID": first.json["snapshotID"]}, key=keys["other"]).status, 404)


def without(place, hide):
    """hutch in a mount namespace of its own in which a command hides what the pool needs."""
    program = pathlib.Path(place, "hutch-without-loop")
    program.write_text(f'#!/bin/sh\nexec unshare -m sh -c \'{hide}; exec {HUTCH} "$@"\' hutch "$@"\n')
    program.chmod(0o755)
    return program


HIDE = {
    "/dev/loop-control is not there": "mount -t tmpfs none /mnt && cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx /mnt/ &&"
                                      " mkdir /mnt/pts /mnt/shm && mount --bind /dev/pts /mnt/pts && mount --bind /dev/shm /mnt/shm && mount --move /mnt /dev",
}


def test_no_loop_device():
    "without loop devices a new node says so and writes to memory, `files: pool` is an error, and a pool that is there is not replaced by an empty store"
    needs_pool()
    for said, hide in HIDE.items():
        with small_templates() as templates, tempfile.TemporaryDirectory() as place:
            hidden = without(place, hide)
            d = Daemon(hutch=hidden, templates=templates)
            rest = d.config.read_text().replace("files: tmpfs\n", "")
            d.config.write_text(rest)
            try:
                with d:
                    told = df(d)["files"]
                    check_equal(told["driver"], "tmpfs")
                    check_in(said, told["why"])
                    check_in("modprobe loop", told["why"])
                    check_in(said, d.cli("doctor", check=False).stdout)
                    check_equal(sh(d, a_box(d), "echo x > /home/user/f; cat /home/user/f").text, "x\n")
                    d.stop()
                    d.config.write_text("files: pool\n" + rest)
                    try:
                        d.start()
                    except RuntimeError as e:
                        check_in(said, str(e))
                    else:
                        check(False, "it started")
                    d.config.write_text(rest)
            finally:
                shutil.rmtree(d.dir, ignore_errors=True)
            with pool_node(templates) as d:
                box = a_box(d)
                sh(d, box, "echo kept > /home/user/f")
                one = ask(d, "POST", of(box, "/snapshots"), {}, timeout=60).json["snapshotID"]
                d.stop()
                nothing_left(d)
                d.hutch, with_loop = str(hidden), d.hutch
                refused(d, "loop device", "modprobe loop")
                d.hutch = with_loop
                d.start()
                check_equal(sh(d, a_box(d, one), "cat /home/user/f").text, "kept\n")


def test_user_auto():
    "the node of an ordinary user with `files: auto` says which driver it has and why there is no pool"
    needs_root()
    _, entry = identity("user")

    def become():
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    with small_templates("user") as templates:
        d = Daemon(config="files: auto\n", preexec=become, templates=templates)
        for path in (d.dir, d.config):
            os.chown(path, entry.pw_uid, entry.pw_gid)
        with d:
            check_in("a pool needs root", df(d)["files"]["why"])
            check_equal(sh(d, a_box(d), "echo x > /tmp/f; cat /tmp/f").text, "x\n")
            told = df(d)["files"]
            check(told["driver"] in ("btrfs", "layers", "tmpfs"), told)  # on a disk that has a limit, else in memory
            check_in("a pool needs root", told["why"])
            check_equal("in memory" in told["why"], told["driver"] == "tmpfs")
            check_in(f"files of sandboxes: {told['driver']}; ", d.cli("store", "df").stdout)
            check_equal(ask(d, "GET", "/v1/capabilities").json["state"]["driver"], told["driver"])
            check_equal(mounted(d), [])
