"""The container tier: --root with a small busybox root, as root and as an ordinary user."""
import contextlib
import os
import pathlib
import shutil
import stat

from hutch_test import check, check_equal, check_in, check_one_line, hutch, hutch_record, identity, is_root, run, skip, workspace, write

BUSYBOX = "/bin/busybox"


@contextlib.contextmanager
def image(who, *names):
    """A workspace with one busybox root and further empty layers."""
    if not os.path.exists(BUSYBOX):
        skip("/bin/busybox is missing: apt-get install busybox-static")
    if who == "user" and not shutil.which("newuidmap"):
        skip("newuidmap is missing: apt-get install uidmap")
    with workspace(who) as ws:
        root = ws / "img"
        for folder in ("bin", "etc", "tmp", "root"):
            (root / folder).mkdir(parents=True)
        shutil.copy(BUSYBOX, root / "bin/busybox")
        for applet in ("sh", "cat", "ls", "id", "mv", "mkdir", "rm", "touch", "chmod", "wc", "head", "stat", "ln", "mount", "chown", "hostname", "test", "su"):
            (root / "bin" / applet).symlink_to("busybox")
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\n")
        (root / "etc/old").write_text("old\n")
        for name in names:
            (ws / name).mkdir()
        chown_tree(ws, who)
        yield ws


def chown_tree(top, who):
    _, entry = identity(who)
    if is_root():
        for folder, folders, files in os.walk(top):
            for name in ["."] + folders + files:
                os.lchown(os.path.join(folder, name), entry.pw_uid, entry.pw_gid)


def listing(top):
    """Everything below top as it is on disk, to compare before and after."""
    found = {}
    for path in sorted(pathlib.Path(top).rglob("*")):
        st = path.lstat()
        found[str(path)] = (st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_mtime_ns, st.st_ino)
    return found


def inside(ws, script, *options, who, root="img", **kwargs):
    return hutch("run", "-q", "--root", ":".join(str(ws / r) for r in root.split(":")), *options, "--", "/bin/sh", "-c", script, who=who, cwd=ws,
                 **kwargs)


def test_own_root(who):
    "the command sees the image as its root, not the host"
    with image(who) as ws:
        r = inside(ws, "pwd; ls /; cat /etc/passwd | wc -l; test -e /usr/bin/python3 || echo no host; hostname", who=who)
        check_equal(r.code, 0, r)
        words = r.out.split()
        check_equal(words[0], "/", r)
        for name in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            check_in(name, words, r)
        check(r.out.endswith("2\nno host\nhutch\n"), r)


def test_upper_is_private(who):
    "whatever the command changes is gone afterwards and the image is untouched, to the inode"
    with image(who) as ws:
        before = listing(ws)
        r = inside(ws, "echo new > /etc/new && echo x >> /etc/old && rm /etc/passwd && mkdir /d && mv /d /e && mv /etc /etc2 && chmod 700 /bin && cat /etc2/old",
                   who=who)
        check_equal((r.code, r.out), (0, "old\nx\n"), r)
        check_equal(listing(ws), before)
        r = inside(ws, "ls /etc", who=who)
        check_equal(r.out.split(), ["group", "old", "passwd"], r)


def test_layers(who):
    "layers lie over each other, the first uppermost"
    with image(who, "top", "middle") as ws:
        write(ws / "top/etc/old", "top\n", who)
        write(ws / "middle/etc/old", "middle\n", who)
        write(ws / "middle/etc/mid", "middle\n", who)
        r = inside(ws, "cat /etc/old /etc/mid /etc/group", who=who, root="top:middle:img")
        check_equal(r.out, "top\nmiddle\nroot:x:0:\n", r)
        r = inside(ws, "cat /etc/old", who=who, root="middle:top:img")
        check_equal(r.out, "middle\n", r)


def test_directories_are_shared(who):
    "--rw and --ro bring host directories in, and what is written belongs to the caller"
    _, entry = identity(who)
    with image(who, "out", "in") as ws:
        write(ws / "in/f", "given\n", who)
        r = inside(ws, "cat /in/f; echo x > /out/g; echo y > /in/h", "--rw", f"{ws}/out:/out", "--ro", f"{ws}/in:/in", who=who)
        check_equal(r.out, "given\n", r)
        check_in("Read-only", r.err, r)
        st = os.stat(ws / "out/g")
        check_equal((st.st_uid, st.st_gid), (entry.pw_uid, entry.pw_gid))
        check_equal(os.listdir(ws / "in"), ["f"])


def test_no_setuid_through_a_share(who):
    "no set-uid file can be left in a shared directory"
    with image(who, "out") as ws:
        inside(ws, "cat /bin/busybox > /out/b; chmod 4755 /out/b; chmod 2755 /out/b; chmod 6711 /out/b; mkdir -m 2755 /out/d; chmod 755 /out/b", "--rw", f"{ws}/out:/out",
               who=who)
        for path in [ws / "out", *(ws / "out").rglob("*")]:
            check_equal(stat.S_IMODE(path.lstat().st_mode) & 0o6000, 0, path)


def test_strict(who):
    "inside there is no capability, no_new_privs and a filter, and only loopback"
    with image(who) as ws:
        r = inside(ws, "cat /proc/self/status; ls /sys; mount -t tmpfs x /tmp || echo no mount; cat /proc/net/dev | wc -l", who=who)
        check_in("CapBnd:\t0000000000000000", r.out, r)
        check_in("NoNewPrivs:\t1", r.out, r)
        check_in("Seccomp:\t2", r.out, r)
        check(r.out.endswith("no mount\n3\n"), r)


def test_computer(who):
    "privilege computer: uid 0 inside with a bounded set of capabilities, chown works, the host is unreachable"
    with image(who) as ws:
        before = listing(ws)
        r = inside(ws, "id -u; touch /f; chown 1000:1000 /f; stat -c %u:%g /f; chmod 4755 /f; stat -c %a /f; cat /proc/self/status; "
                   "mount -t tmpfs x /tmp || echo no mount; su user -c 'id -u'", "--privilege", "computer", who=who)
        check_equal(r.code, 0, r)
        check(r.out.startswith("0\n1000:1000\n4755\n"), r)
        check(r.out.endswith("no mount\n1000\n"), r)
        check_in("Seccomp:\t2", r.out, r)
        bounding = int(next(line for line in r.out.splitlines() if line.startswith("CapBnd")).split()[1], 16)
        check(bounding and not bounding & (1 << 21 | 1 << 12 | 1 << 16 | 1 << 19 | 1 << 27), f"{bounding:x}")
        check_equal(listing(ws), before)
        r = inside(ws, "true", "--privilege", "computer", "--rw", f"{ws}:/out", who=who)
        check_equal(r.code, 121, r)
        check_one_line(r.err, r)
        r = hutch("run", "--privilege", "computer", "--", "true", who=who, cwd=ws)
        check_equal(r.code, 121, r)


def test_disk_limit(who):
    "--disk holds for the upper layer"
    with image(who) as ws:
        r = inside(ws, "head -c 20000000 /dev/zero > /big; head -c 20000000 /dev/zero > /tmp/big; head -c 20000000 /dev/zero > /dev/shm/big; "
                   "cat /big /tmp/big /dev/shm/big | wc -c", "--disk", "8M", who=who)
        check(4 << 20 < int(r.out) <= 8 << 20, r)


HOSTILE = {
    "a link": lambda p, victim: p.symlink_to(victim),
    "a relative link": lambda p, victim: p.symlink_to("../" * 20 + str(victim)[1:]),
    "a fifo": lambda p, victim: os.mkfifo(p),
    "a file": lambda p, victim: p.write_text("file"),
    "a link to itself": lambda p, victim: p.symlink_to(p.name),
}


def test_hostile_images(who):
    "an image whose /dev, /proc, /sys or /tmp is a link, a fifo or a file is refused or harmless; nothing outside changes"
    _, entry = identity(who)
    for name in ("dev", "proc", "sys", "tmp"):
        for kind, make in HOSTILE.items():
            with image(who, "victim") as ws:
                write(ws / "victim/keep", "keep", who)
                path = ws / "img" / name
                if path.is_dir():
                    path.rmdir()
                make(path, ws / "victim")
                before = listing(ws / "victim")
                r = inside(ws, "echo ran; cat /proc/self/status | head -1; echo x > /dev/null; cat /tmp/keep", who=who, timeout=90)
                check(r.code in (0, 1, 123), f"{name} is {kind}: {r}")
                if r.code == 123:
                    check_one_line(r.err, f"{name} is {kind}: {r}")
                check("keep" not in r.out, f"{name} is {kind}: {r}")
                check_equal(listing(ws / "victim"), before, f"{name} is {kind}")


def test_hostile_targets(who):
    "a bind whose place in the image is a link that leads outside stays inside"
    with image(who, "victim", "in") as ws:
        write(ws / "in/f", "given\n", who)
        (ws / "img/in").symlink_to("../" * 20 + str(ws / "victim")[1:])
        before = listing(ws / "victim")
        r = inside(ws, "cat /in/f", "--ro", f"{ws}/in:/in", who=who)
        check_equal(listing(ws / "victim"), before)
        check(r.code in (0, 123) and not os.listdir(ws / "victim"), r)


def test_overlay_marks_are_not_trusted(who):
    "files that look like overlay metadata in an image do not redirect reads to the host"
    with image(who) as ws:
        trick = ws / "img/etc/trick"
        trick.mkdir()
        for prefix in ("trusted", "user"):
            try:
                os.setxattr(trick, f"{prefix}.overlay.redirect", b"/root")
            except OSError:
                continue
        r = inside(ws, "ls /etc/trick; echo; ls -d /etc/trick", who=who)
        check(r.code in (0, 1, 123), r)
        check_equal([w for w in r.out.split() if w != "/etc/trick"], [], r)


def test_bad_roots(who):
    "a root that is missing, a file, / itself or inside another layer is refused in one line"
    with image(who) as ws:
        for root in (ws / "none", BUSYBOX, "/", f"{ws}/img:{ws}/img/etc", f"{ws}/img:", ""):
            r = hutch("run", "--root", root, "--", "/bin/sh", "-c", "true", who=who, cwd=ws)
            check_equal(r.code, 120, r)
            check_one_line(r.err, r)


def test_command_comes_from_the_image(who):
    "the command is looked up in the image: 127 for what only the host has"
    with image(who) as ws:
        r = hutch("run", "--root", ws / "img", "--", "python3", "-c", "1", who=who, cwd=ws)
        check_equal(r.code, 127, r)
        r = hutch("run", "--root", ws / "img", "--", "sh", "-c", "exit 6", who=who, cwd=ws)
        check_equal(r.code, 6, r)


def test_denied_paths_in_the_image(who):
    "--deny hides a path of the image, whether the host has it or not"
    with image(who) as ws:
        r = inside(ws, "cat /etc/old; ls /root; echo on", "--deny", "/etc/old", "--deny", "/root", who=who)
        check_equal(r.out, "on\n", r)
        check_equal(r.err.lower().count("permission denied"), 2, r)


def test_protected_paths_in_the_image(who):
    "--protect keeps a path of the image as it is, or from coming into being, and what is beside it writable"
    with image(who) as ws:
        before = listing(ws / "img")
        script = """echo x >/etc/old; rm -f /etc/old; mv /etc /e; mv /etc/old /etc/o; echo x >/etc/new/file; mv /etc/new /n
            cat /etc/old; echo y >/etc/passwd; cat /etc/passwd; echo z >/etc/other; cat /etc/other"""
        r = inside(ws, script, "--protect", "/etc/old", "--protect", "/etc/new/file", who=who)
        check_equal(r.out, "old\ny\nz\n", r)
        check_equal(len(r.err.strip().splitlines()), 6, r)
        check_equal(listing(ws / "img"), before)
        r = inside(ws, "true", "--protect", "/bin/sh", who=who)
        check_equal(r.code, 121, r)
        check_in("symbolic link", r.err, r)
        check_one_line(r.err, r)


def test_record_names_the_tier(who):
    "the record says which tier ran"
    with image(who) as ws:
        r = hutch_record("--root", ws / "img", "--", "/bin/sh", "-c", "true", who=who, cwd=ws)
        check_equal(r.code, 0, r)
        check_in("container", str(r.record), r.record)


def test_without_newuidmap():
    "without subordinate ids --root is refused as a user, with the command that gets them"
    if not is_root():
        skip("needs root to make a user without subordinate ids")
    with image("root") as ws:
        os.chmod(ws, 0o755)
        r = run("setpriv", "--reuid=64999", "--regid=64999", "--clear-groups", os.environ.get("HUTCH_BIN", "hutch"), "run", "--root", ws / "img", "--", "/bin/sh",
                "-c", "true", cwd=ws)
        check_equal(r.code, 122, r)
        check_one_line(r.err, r)
        check("usermod" in r.err or "uidmap" in r.err or "subuid" in r.err, r)
