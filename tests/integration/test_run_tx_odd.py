"""hutch run --tx with what commands, other programs and power cuts leave: nothing is lost, and nothing is where it should not be."""
import contextlib
import os
import pathlib
import shutil
import stat
import struct
import subprocess

from hutch_test import HUTCH, check, check_equal, check_in, clean_env, eventually, hutch, identity, is_root, run, skip, write
from outer_terminal import Outer
from test_learn import home_workspace
from test_run_tx import JOB, READ_ONLY, expected, furnish, look, set_modes, tx


def own(path, who):
    _, entry = identity(who)
    os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)


def mode(path):
    return oct(stat.S_IMODE(os.lstat(path).st_mode))


def kept(r):
    check_equal(r.code, 0, r)
    return r.err.split("kept as ")[1].split(";")[0]


# --- what is in a layer ---------------------------------------------------------------------------------------------

CLOSED = """set -e
echo x > good
mkdir d d/in e && echo y > d/in/f && echo y > e/f
chmod 0 d/in/f d/in d && chmod 300 e
echo z > blind && chmod 200 blind
chmod 0 was/file was
chmod 0 .
"""


def test_closed_to_its_owner(who):
    "directories and files that their owner may not read are kept, shown and applied as others are, with their modes"
    for how in ("--tx", "--commit-on-success"):
        with home_workspace(who) as stage:
            write(stage.ws / "was/file", "first\n", who)
            write(stage.ws / "stays/file", "first\n", who)
            os.chmod(stage.ws / "stays/file", 0)
            r = stage.run(how, "--", "sh", "-c", CLOSED)
            check_equal(r.code, 0, r)
            if how == "--tx":
                kept(r)
                diff = tx(stage, "diff")
                check_equal(diff.code, 0, diff)
                check_in("+++ b/d/in/f\n@@ -0,0 +1,1 @@\n+y\n", diff.out, diff)
                done = tx(stage, "apply")
                check_equal(done.code, 0, done)
            for path, want in (("d", 0), ("e", 0o300), ("blind", 0o200), ("was", 0), ("stays/file", 0)):
                check_equal(mode(stage.ws / path), oct(want), path)
            os.chmod(stage.ws / "d", 0o700)
            check_equal(mode(stage.ws / "d/in"), oct(0))
            os.chmod(stage.ws / "d/in", 0o700)
            check_equal(mode(stage.ws / "d/in/f"), oct(0))
            for path in ("d/in/f", "e", "blind", "was", "was/file"):
                os.chmod(stage.ws / path, 0o700)
            for path, text in (("good", "x\n"), ("d/in/f", "y\n"), ("e/f", "y\n"), ("blind", "z\n"), ("was/file", "first\n")):
                check_equal((stage.ws / path).read_text(), text, path)


def test_closed_on_the_host():
    "changes in a directory of the host that its owner may not read wait, which is said, until he may"
    with home_workspace("user") as stage:
        write(stage.ws / "u/file", "first\n", "user")
        os.chmod(stage.ws / "u", 0)
        r = stage.run("--tx", "--", "sh", "-c", "chmod 700 u; echo x > u/new; echo x > good")
        os.chmod(stage.ws / "u", 0)
        kept(r)
        check_in("u cannot be looked into on the host", r.err, r)
        for args in ((), ("--force",)):
            no = tx(stage, "apply", *args)
            check_equal((no.code, (stage.ws / "good").exists()), (121, False), no)
            check_in("u cannot be looked into on the host, so what the command did there cannot be applied", no.err, no)
        os.chmod(stage.ws / "u", 0o700)
        check_equal(tx(stage, "apply", "--force").code, 0)
        check_equal(((stage.ws / "good").read_text(), sorted(os.listdir(stage.ws / "u"))), ("x\n", ["file", "new"]))


def test_attributes_do_not_stand_in_the_way(who):
    "a layer with attributes that the user's file system cannot hold is kept; they stay behind, which is said"
    script = ("import os,sys; open('f', 'w').write('x'); os.mkdir('d')\n"
              "try: [os.setxattr(p, 'user.big', b'x' * 60000) for p in 'fd']\n"
              "except OSError: sys.exit(5)")
    with home_workspace(who) as stage:
        r = stage.run("--tx", "--", "python3", "-c", script)
        if r.code == 5:
            skip("needs a tmpfs with user attributes: Linux 6.6")
        kept(r)
        done = tx(stage, "apply")
        check_equal(done.code, 0, done)
        check_equal((stage.ws / "f").read_text(), "x")
        if not os.listxattr(stage.ws / "f"):  # some can
            check_in("f cannot have the attribute user.big there", done.err)


SOCKET = """import os, socket
for name in ("old", "stale", "new\\x1b[31m"):
    if os.path.lexists(name):
        os.unlink(name)
    socket.socket(socket.AF_UNIX).bind(name)
open("good", "w").write("x")
"""


def test_sockets(who):
    "a socket stays behind; what it took the place of goes, and that is no conflict"
    with home_workspace(who) as stage:
        write(stage.ws / "old", "first\n", who)
        subprocess.run(["python3", "-c", "import socket; socket.socket(socket.AF_UNIX).bind('stale')"], cwd=stage.ws, check=True)
        own(stage.ws / "stale", who)
        r = stage.run("--tx", "--", "python3", "-c", SOCKET)
        kept(r)
        check_in("D old", r.err, r)
        check_in("new\\x1b[31m is not a file", r.err, r)
        check("\x1b" not in r.err, "a name reached the terminal as it is")
        done = tx(stage, "apply")
        check_equal(done.code, 0, done)
        check(not {"old", "stale"} & set(os.listdir(stage.ws)) and (stage.ws / "good").exists(), str(os.listdir(stage.ws)))


def test_too_deep(who):
    "what lies deeper than anybody could name is kept apart, where it can be copied from, and the rest is applied"
    job = ("import os\nopen('good', 'w').write('x')\nfor i in range({}): os.mkdir('{}'); os.chdir('{}')\nopen('f', 'w').write('deep')\n"
           "os.chmod('f', 0); os.chmod('.', 0)")
    for name, count, apart in (("d", 150, False), ("d" * 200, 45, True)):
        with home_workspace(who) as stage:
            r = stage.run("--commit-on-success", "--", "python3", "-c", job.format(count, name, name))
            check_equal((r.code, (stage.ws / "good").read_text()), (0, "x"), r)
            if not apart:
                path = stage.ws / "/".join([name] * count)
                os.chmod(path, 0o700)
                os.chmod(path / "f", 0o600)
                check_equal((path / "f").read_text(), "deep")
                check("kept as" not in r.err, r)
                continue
            again = tx(stage, "apply")
            check_equal(again.code, 0, again)
            check_in("lies too deep to be applied; it is in ", again.err, again)
            where = [pathlib.Path(line.split("it is in ")[1]) for line in again.err.splitlines() if "it is in " in line]
            check_equal([f.read_text() for top in where for f in top.rglob("f")], ["deep"])
            check_equal(tx(stage, "discard").code, 0)
            check(not where[0].exists(), "it is still there")


def while_it_waits(stage, act):
    """The end of a run with --tx, in the middle of which something is done on the host."""
    ids, entry = identity(stage.who)
    with subprocess.Popen([HUTCH, "run", "--tx", "--", "sh", "-c", "echo x > made; echo done; read answer"], cwd=stage.ws,
                          env=clean_env(entry, {"HOME": str(stage.home)}), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, **ids) as proc:
        check_equal(proc.stdout.readline(), "done\n")
        act()
        _, err = proc.communicate("go\n", timeout=60)
    return proc.returncode, err


def test_no_directory_to_come_back_to(who):
    "what was written over a directory that somebody took away meanwhile is kept, and can be applied when it is there again"
    with home_workspace(who) as stage:
        code, err = while_it_waits(stage, lambda: (os.rename(stage.ws, stage.home / "aside"), os.symlink("aside", stage.ws)))
        check_equal(code, 121, err)
        check_in("has become a symbolic link", err)
        where = pathlib.Path(err.split(", in ")[1].strip())
        check_equal((where / "L0/made").read_text(), "x\n")
        os.unlink(stage.ws)
        os.rename(stage.home / "aside", stage.ws)
        no = tx(stage, "apply")
        check_equal((no.code, (stage.ws / "made").exists()), (121, False), no)
        check_in("is not known", no.err)
        check_equal(tx(stage, "apply", "--force").code, 0)
        check_equal((stage.ws / "made").read_text(), "x\n")


def test_too_many_wait(who):
    "a transaction that could not wait is not begun, and one that was begun is kept in any case"
    with home_workspace(who) as stage:
        store = stage.home / ".local/state/hutch/tx"

        def fill():
            for i in range(100):
                write(store / f"tx-{i:08x}/tx.json", "", who)

        code, err = while_it_waits(stage, fill)
        check_equal(code, 0, err)
        check_in("kept as tx-", err)
        r = stage.run("--tx", "--", "echo", "begun")
        check_equal((r.code, r.out), (124, ""), r)
        check_in("wait already", r.err)


# --- what comes to the host -----------------------------------------------------------------------------------------

def access_list(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, bits, name) for tag, bits, name in entries)


def test_attributes_of_the_host_stay(who):
    "a file that was changed keeps its access list, without which its group could do what only some were allowed, and its attributes"
    none = 0xffffffff
    with home_workspace(who) as stage:
        _, entry = identity(who)
        path = write(stage.ws / "shared", "first\n", who, 0o600)
        want = access_list((1, 6, none), (2, 6, entry.pw_uid), (4, 0, none), (16, 6, none), (32, 0, none))
        try:
            os.setxattr(path, "system.posix_acl_access", want)
            os.setxattr(path, "user.note", b"mine")
        except OSError as e:
            skip(f"needs access lists and attributes: {e}")
        r = stage.run("--commit-on-success", "--", "sh", "-c", "echo more >> shared; echo x > new")
        check_equal(r.code, 0, r)
        check_equal(pathlib.Path(path).read_text(), "first\nmore\n")
        check_equal(os.getxattr(path, "system.posix_acl_access"), want)
        check_equal(os.getxattr(path, "user.note"), b"mine")
        check_equal(os.listxattr(stage.ws / "new"), [])


LISTS = """import os, struct, sys
none = 0xffffffff
def acl(*e): return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *x) for x in e)
one = acl((1, 7, none), (2, 5, os.getuid()), (4, 0, none), (16, 5, none), (32, 0, none))
os.mkdir("new")
open("new/before", "w").write("x")
os.chmod("new/before", 0o660)
for path in ("f", "fresh", "d", "new"):
    if path == "fresh":
        open(path, "w").write("x")
    os.setxattr(path, "system.posix_acl_access", one)
for path in ("d", "new"):
    os.setxattr(path, "system.posix_acl_default", one)
open("new/after", "w").write("x")
os.removexattr("had", "system.posix_acl_access")
os.chmod("had", 0o600)
try:
    os.setxattr("noted", "user.note", b"theirs")
    os.removexattr("noted", "user.other")
except OSError:
    sys.exit(5)
"""


def test_lists_and_attributes_come_over(who):
    "access lists, also those for what will be made in a directory, and attributes are on the host what the command made of them"
    none = 0xffffffff
    for how in ("--tx", "--commit-on-success"):
        with home_workspace(who) as stage:
            _, entry = identity(who)
            one = access_list((1, 7, none), (2, 5, entry.pw_uid), (4, 0, none), (16, 5, none), (32, 0, none))
            for path in ("f", "d/file", "had", "noted", "same"):
                write(stage.ws / path, "first\n", who, 0o600)
            try:
                for path in ("had", "same"):
                    os.setxattr(stage.ws / path, "system.posix_acl_access", one)
                for name in ("user.note", "user.other"):
                    os.setxattr(stage.ws / "noted", name, b"mine")
            except OSError as e:
                skip(f"needs access lists and attributes: {e}")
            r = stage.run(how, "--", "python3", "-c", LISTS)
            if r.code == 5:
                skip("needs a tmpfs with user attributes: Linux 6.6")
            check_equal(r.code, 0, r)
            if how == "--tx":
                kept(r)
                check_in("M f (attributes)", r.err)
                check("same" not in r.err, r.err)
                done = tx(stage, "apply")
                check_equal((done.code, done.err), (0, ""), done)

            def attrs(path):
                return {name: os.getxattr(stage.ws / path, name) for name in os.listxattr(stage.ws / path) if "selinux" not in name}

            access, default = "system.posix_acl_access", "system.posix_acl_default"
            for path, want in (("f", {access: one}), ("fresh", {access: one}), ("d", {access: one, default: one}),
                               ("new", {access: one, default: one}), ("new/before", {}), ("had", {}), ("noted", {"user.note": b"theirs"}),
                               ("same", {access: one})):
                check_equal(attrs(path), want, f"{how} {path}")
            check_in(access, attrs("new/after"))
            check_equal(tx(stage, "tx", "ls").out, "")


def test_holes(who):
    "a file with holes has them on the host, too"
    size = 256 << 20
    with home_workspace(who) as stage:
        r = stage.run("--commit-on-success", "--", "sh", "-c",
                      f"truncate -s {size} empty; printf x | dd of=mid bs=1 seek={size // 2} status=none; truncate -s {size} mid; echo y >> mid")
        check_equal(r.code, 0, r)
        for name, length in (("empty", size), ("mid", size + 2)):
            st = (stage.ws / name).stat()
            check_equal(st.st_size, length, name)
            check(st.st_blocks * 512 < 1 << 20, f"{name} takes {st.st_blocks * 512} bytes")
        with open(stage.ws / "mid", "rb") as f:
            check_equal((f.read(1), f.seek(size // 2 - 1), f.read(3), f.seek(size), f.read()), (b"\0", size // 2 - 1, b"\0x\0", size, b"y\n"))


def test_modes_of_what_is_no_file(who):
    "pipes and sticky directories have the modes and owners that the command gave them"
    with home_workspace(who) as stage:
        r = stage.run("--commit-on-success", "--", "sh", "-c", "umask 0; mkfifo -m 666 pipe; mkdir -m 1777 sticky")
        check_equal(r.code, 0, r)
        check_equal((mode(stage.ws / "pipe"), mode(stage.ws / "sticky")), (oct(0o666), oct(0o1777)))
        check_equal(os.lstat(stage.ws / "pipe").st_uid, os.lstat(stage.ws / "sticky").st_uid)


def test_a_link_where_a_directory_was(who):
    "a transaction is not applied through a link that came to be where its directory was"
    with home_workspace(who) as stage:
        write(stage.ws / "out/file", "first\n", who)
        write(stage.ws / "deep/build/file", "first\n", who)
        ws = stage.ws
        for victim in ("deep/build", "deep"):
            stage.ws = ws / "deep/build"
            kept(stage.run("--tx", "--", "sh", "-c", "echo evil > authorized_keys"))
            stage.ws = ws
            os.rename(ws / victim, ws / "aside")
            (ws / "out/build").mkdir(exist_ok=True)
            os.symlink(ws / "out", ws / victim)
            for args in (("apply",), ("apply", "--force"), ("diff",)):
                r = tx(stage, *args)
                check_equal(r.code, 121, f"{victim}: {r}")
                check_in("symbolic link", r.err, r)
            check(not list((ws / "out").rglob("authorized_keys")), f"{victim}: written through the link")
            os.unlink(ws / victim)
            os.rename(ws / "aside", ws / victim)
            check_equal(tx(stage, "discard").code, 0)


def test_of_somebody_else():
    "root does not apply what another user has put where root's transactions wait"
    if not is_root():
        skip("needs root, to be somebody else")
    with home_workspace("root") as stage:
        name = kept(stage.run("--tx", "--", "sh", "-c", "echo x > good"))
        where = stage.home / ".local/state/hutch/tx" / name
        for owner, bits in ((65534, 0o700), (0, 0o777)):
            os.chown(where, owner, owner)
            os.chmod(where, bits)
            r = tx(stage, "apply")
            check_equal(r.code, 121, r)
            check_in("it is not used", r.err, r)
            check(not (stage.ws / "good").exists(), "it was applied")
        os.chmod(where, 0o700)
        check_equal(tx(stage, "apply").code, 0)


# --- while it is applied --------------------------------------------------------------------------------------------

def needs_strace():
    if not is_root() or not shutil.which("strace"):
        skip("needs root and strace: apt-get install strace")


def strace(stage, inject, *args, who=None, **kwargs):
    user = ["-u", identity(who)[1].pw_name] if who else []
    return run("strace", "-qq", *user, "-o", stage.home / "calls", "-e", f"trace={inject.split(':')[0]}", "-e", f"inject={inject}", HUTCH,
               *args, cwd=stage.ws, env={"HOME": str(stage.home)}, **kwargs)


def test_killed_half_way():
    "what was killed while it applied can be applied again, without force, and leaves nothing of its own"
    needs_strace()
    calls = [("sendfile", 1), ("fchownat", 2), ("mkdirat", 1), ("mkdirat", 2)]
    calls += [("renameat2", when) for when in (1, 2, 4, 7)] + [("unlinkat", when) for when in (1, 2, 5, 9)]
    for call, when in calls:
        with home_workspace("root") as stage:
            furnish(stage)
            want = expected(stage)
            kept(stage.run("--tx", "--", "sh", "-c", JOB))
            r = strace(stage, f"{call}:signal=KILL:when={when}", "apply")
            check(r.code != 0, f"{call} {when}: {r}")
            again = tx(stage, "apply")
            check_equal(again.code, 0, f"{call} {when}: {again}")
            check_equal(look(stage.ws), want, f"{call} {when}")
            check_equal(tx(stage, "tx", "ls").out, "")


def test_killed_with_open_directories():
    "directories that their owner may not write to do not stand in the way after that either, and end as the command left them"
    needs_strace()
    for call, when in (("renameat2", 1), ("renameat2", 3), ("renameat2", 6), ("unlinkat", 1)):
        with home_workspace("user") as stage:
            furnish(stage)
            for path in ("was-closed/in/stays", "was-closed/old", "was-open/file", "opened/file", "gone/file", "zero/file"):
                write(stage.ws / path, "first\n", "user")
            set_modes(stage, 0o555)
            kept(stage.run("--tx", "--", "sh", "-c", READ_ONLY + "echo x > zero/new; chmod 0 zero"))
            r = strace(stage, f"{call}:signal=KILL:when={when}", "apply", who="user")
            check(r.code != 0, f"{call} {when}: {r}")
            again = tx(stage, "apply")
            check_equal(again.code, 0, f"{call} {when}: {again}")
            after = look(stage.ws)
            for name, bits in (("made", 0o555), ("made/deep", 0o555), ("was-closed", 0o555), ("was-closed/in", 0o555), ("was-open", 0o555),
                               ("opened", 0o755), ("zero", 0)):
                check_equal(oct(after[name][1]), oct(bits), f"{call} {when}: {name}")
            for name in ("made/deep/file", "made/deep/link", "was-closed/in/new", "was-open/new", "opened/new", "zero/new"):
                check_in(name, after)
            check(not {"was-closed/old", "gone"} & set(after) and not [n for n in after if ".hutch-" in n], sorted(after))
            set_modes(stage, 0o755)


def slowly_applied(stage, name=""):
    """`hutch apply` that takes two seconds to put the first change in its place."""
    return subprocess.Popen(["strace", "-qq", "-o", stage.home / f"calls{name}", "-e", "trace=renameat2", "-e",
                             "inject=renameat2:delay_enter=2000000:when=1", HUTCH, "apply", *([name] if name else [])], cwd=stage.ws,
                            env=clean_env(identity("root")[1], {"HOME": str(stage.home)}), stderr=subprocess.PIPE, text=True)


def test_changed_at_the_last_moment():
    "what somebody changes between the last look at it and the moment in which it is replaced or removed stays as he left it"
    needs_strace()
    acts = {"edited": ("echo mine > a", lambda ws: (ws / "a").write_text("theirs\n")),
            "replaced": ("echo mine > a", lambda ws: os.replace(ws / "by", ws / "a")),
            "made": ("echo mine > new", lambda ws: (ws / "new").write_text("theirs\n")),
            "made a directory": ("echo mine > new", lambda ws: (ws / "new").mkdir()),
            "in what became a file": ("rm -r dir; echo mine > dir", lambda ws: (ws / "dir/in/more").write_text("theirs\n")),
            "what goes": ("rm a", lambda ws: (ws / "a").write_text("theirs\n")),
            "in what goes": ("rm -r dir", lambda ws: (ws / "dir/in/more").write_text("theirs\n"))}
    with home_workspace("root") as stage, contextlib.ExitStack() as all_of_them:
        top, running = stage.ws, []
        for what, (job, act) in acts.items():
            stage.ws = ws = top / what
            for path in ("a", "by", "dir/in/file"):
                write(ws / path, "first\n")
            name = kept(stage.run("--tx", "--", "sh", "-c", job))
            proc = all_of_them.enter_context(slowly_applied(stage, name))
            eventually(lambda n=name: "renameat2(" in (stage.home / f"calls{n}").read_text(), 60, "the first change to be ready")
            act(ws)
            running.append((what, ws, name, proc, look(ws)))
        for what, ws, name, proc, before in running:
            err = proc.communicate(timeout=60)[1]
            check_equal(proc.returncode, 121, f"{what}: {err}")
            check_in("just now", err, what)
            check_equal(look(ws), {k: v for k, v in before.items() if ".hutch-" not in k}, what)
            check_in(name, tx(stage, "tx", "ls").out, what)


def test_changed_while_it_is_applied():
    "what somebody changes on the host while a transaction is applied stops it there, and nothing of his goes"
    needs_strace()
    acts = {"edited": lambda ws: (ws / "z").write_text("other\n"), "replaced": lambda ws: os.replace(ws / "by", ws / "z"),
            "made": lambda ws: (ws / "zz").write_text("other\n"), "a directory": lambda ws: ((ws / "z").unlink(), (ws / "z").mkdir()),
            "in what goes": lambda ws: (ws / "zdir/in/more").write_text("other\n"),
            "edited in what goes": lambda ws: (ws / "zdir/in/file").write_text("other\n")}
    for what, act in acts.items():
        with home_workspace("root") as stage:
            for path in ("a", "by", "z", "zdir/in/file", "zdir/linked"):
                write(stage.ws / path, "first\n")
            os.link(stage.ws / "zdir/linked", stage.ws / "linked")  # applying one name must not make the other one a conflict
            kept(stage.run("--tx", "--", "sh", "-c", "echo mine > a; echo mine > linked; echo mine > z; echo mine > zz; rm -r zdir"))
            with slowly_applied(stage) as proc:
                eventually(lambda: list(stage.ws.glob(".hutch-tx-*")), 60, "the first file to be there under its own name")
                for command in ("apply", "discard"):
                    r = tx(stage, command)
                    check_equal(r.code, 121, r)
                    check_in("is locked by process", r.err, r)
                act(stage.ws)
                before = {k: v for k, v in look(stage.ws).items() if k.startswith("z")}
                err = proc.communicate(timeout=60)[1]
            check_equal(proc.returncode, 121, f"{what}: {err}")
            check_in("just now", err, what)
            check_equal((stage.ws / "a").read_text(), "mine\n")
            told = err.split("applied: ")[1].split(" was changed")[0]
            left = {k: v for k, v in look(stage.ws).items() if k.startswith(told.split("/")[0])}
            check_equal(left, {k: v for k, v in before.items() if k.startswith(told.split("/")[0])}, what)
            check(not list(stage.ws.glob(".hutch-tx-*")), "something of ours is left")
            check_in("tx-", tx(stage, "tx", "ls").out, what)


def test_other_names_of_a_file_are_no_conflict(who):
    "files that are one on the host, each changed or removed by the command, are applied one after the other"
    with home_workspace(who) as stage:
        for path in ("a", "dir/x", "gone/y"):
            write(stage.ws / path, "first\n", who)
        for path in ("b", "dir/b", "gone/b"):
            os.link(stage.ws / "a", stage.ws / path)
        kept(stage.run("--tx", "--", "sh", "-c", "echo mine > a; echo mine > b; rm -r dir; rm -r gone; echo mine > gone"))
        done = tx(stage, "apply")
        check_equal(done.code, 0, done)
        check_equal({k for k in look(stage.ws) if k not in ("job", "p.yaml")}, {"a", "b", "gone"})


def test_a_mode_that_somebody_set(who):
    "a directory whose mode was changed on both sides is a conflict"
    with home_workspace(who) as stage:
        write(stage.ws / "d/file", "first\n", who)
        os.chmod(stage.ws / "d", 0o755)
        kept(stage.run("--tx", "--", "chmod", "775", "d"))
        os.chmod(stage.ws / "d", 0o700)
        r = tx(stage, "apply")
        check_equal((r.code, mode(stage.ws / "d")), (121, oct(0o700)), r)


# --- where they wait ------------------------------------------------------------------------------------------------

def test_asked_again_if_it_cannot_be_kept(who):
    "who is there when changes cannot be kept is told, and can make room"
    with home_workspace(who) as stage:
        blocked = write(stage.home / ".local/state/hutch", "in the way\n", who)
        command = f"cd {stage.ws} && HOME={stage.home} exec {HUTCH} run --tx -- sh -c 'echo x > good'"
        with Outer(["sh", "-c", command], who=who) as outer:
            outer.expect("discard: ")
            outer.send("k\n")
            outer.expect("still there, but they cannot be kept")
            outer.expect("discard: ")
            os.unlink(blocked)
            outer.send("k\n")
            outer.expect("kept as tx-")
            check_equal(outer.state(), "0")
        check_equal(tx(stage, "apply").code, 0)
        check((stage.ws / "good").exists(), "it was not applied")
        os.rename(stage.home / ".local/state/hutch", stage.home / "aside")
        write(blocked, "in the way\n", who)
        r = stage.run("--tx", "--", "sh", "-c", "echo x > more")
        check_equal(r.code, 123, r)
        check_in("the changes are lost: they cannot be kept: ", r.err, r)


def test_half_of_one_does_not_wait():
    "what was killed while it kept or forgot a transaction is not listed, and goes with the next one"
    needs_strace()
    with home_workspace("root") as stage:
        store = stage.home / ".local/state/hutch/tx"
        for call, args in (("syncfs", ("run", "--tx", "--", "sh", "-c", "echo x > good")), ("unlinkat", ("discard",))):
            if args[0] == "discard":
                kept(stage.run("--tx", "--", "sh", "-c", "echo x > good; echo x > more"))
            r = strace(stage, f"{call}:signal=KILL:when={2 if call == 'unlinkat' else 1}", *args)
            check(r.code != 0, f"{call}: {r}")
            check_equal((tx(stage, "tx", "ls").out, len(list(store.iterdir()))), ("", 1), call)
            name = kept(stage.run("--tx", "--", "sh", "-c", "echo x > good"))
            check_equal([p.name for p in store.iterdir()], [name], call)
            check_equal(tx(stage, "discard").code, 0)
            check_equal(list(store.iterdir()), [], call)


def test_no_command_writes_where_they_wait(who):
    "a command that may write to the home directory cannot make up a transaction, wherever they wait"
    for there in (False, True):
        with home_workspace(who) as stage:
            env = {"HOME": str(stage.home), "XDG_STATE_HOME": str(stage.home / "state")}
            if there:
                write(stage.home / "state/hutch/tx/file", "x\n", who)
            job = "mkdir -p state/hutch/tx/tx-00000000 && exit 9; mv state other && exit 8; echo x > fine"
            for args in ((), ("--commit-on-success",)):
                r = hutch("run", *args, "--", "sh", "-c", job, who=who, cwd=stage.home, env=env)
                check_equal((r.code, (stage.home / "fine").exists()), (0, True), r)
                check(not (stage.home / "state/hutch/tx/tx-00000000").exists(), "it was made")
                os.unlink(stage.home / "fine")


# --- what is shown --------------------------------------------------------------------------------------------------

def test_the_diff_hides_nothing(who):
    "a line that holds a NUL is not shown as if it ended there, and a diff that cannot be written is an error"
    with home_workspace(who) as stage:
        write(stage.ws / "long", "line\n" * 5000, who)
        kept(stage.run("--tx", "--", "sh", "-c", "printf 'echo fine\\0; evil\\n' >> long"))
        r = tx(stage, "diff")
        check_equal(r.out, "long differs (not text)\n")
        _, entry = identity(who)
        with open("/dev/full", "w", encoding="ascii") as full:
            r = subprocess.run([HUTCH, "diff"], cwd=stage.ws, env=clean_env(entry, {"HOME": str(stage.home)}), stdout=full,
                               stderr=subprocess.PIPE, text=True, check=False, **identity(who)[0])
        check_equal(r.returncode, 123, r.stderr)
        check_in("No space left on device", r.stderr)
