"""The commands of hutch that talk to a node: what they do to files, to their output, and when their terminal goes."""
import contextlib
import fcntl
import os
import pathlib
import signal
import stat
import subprocess
import tempfile
import termios
import threading

from hutch_test import PATIENCE, check, check_equal, check_in, eventually
from node import needs_root, node
from small import small_templates

HALF = 8 << 20  # of an upload: more than all buffers on its way together


@contextlib.contextmanager
def one_sandbox():
    """A node, a sandbox, and a directory to work in."""
    needs_root()
    with node() as (d, api), tempfile.TemporaryDirectory() as place:
        box = api.create(timeout=600)
        yield d, box, pathlib.Path(place)


def started(d, *args, **kw):
    env = {**os.environ, "HUTCH_URL": d.url, "HUTCH_API_KEY": d.key, **kw.pop("env", {})}
    return subprocess.Popen([d.hutch, *args], env=env, **kw)


def test_cp_out_keeps_what_the_target_is():
    "cp out of a sandbox writes into devices, pipes and links, and replaces a file with its mode and owner"
    with one_sandbox() as (d, box, place):
        box.put("new", b"new content\n")
        plain, link, fifo = place / "plain", place / "link", place / "fifo"
        plain.write_text("old")
        plain.chmod(0o640)
        os.chown(plain, 1234, 1235)
        d.cli("cp", f"{box.id}:new", str(plain))
        seen = plain.stat()
        check_equal((plain.read_text(), stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid), ("new content\n", 0o640, 1234, 1235))
        (place / "far").write_text("old and longer")
        link.symlink_to("far")
        os.link(place / "far", place / "second")
        d.cli("cp", f"{box.id}:new", str(link))
        check(link.is_symlink(), "the link is a file now")
        check_equal((place / "second").read_text(), "new content\n")
        d.cli("cp", f"{box.id}:new", str(place / "second"))
        check_equal((place / "second").stat().st_nlink, 2)
        os.mkfifo(fifo)
        got = []
        reader = threading.Thread(target=lambda: got.append(fifo.read_text()))
        reader.start()
        d.cli("cp", f"{box.id}:new", str(fifo))
        reader.join(PATIENCE)
        check_equal(got, ["new content\n"])
        check(stat.S_ISFIFO(fifo.stat().st_mode), "the pipe is a file now")
        null = place / "null"
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        d.cli("cp", f"{box.id}:new", str(null))
        check(stat.S_ISCHR(null.stat().st_mode), "the device is a file now")
        r = d.cli("cp", f"{box.id}:new", "/dev/stdout")
        check_equal(r.stdout, "new content\n")
        check(os.path.islink("/dev/stdout"), "/dev/stdout is a file now")
        d.cli("cp", f"{box.id}:new", str(place))
        check_equal((place / "new").read_text(), "new content\n")
        r = d.cli("cp", f"{box.id}:new", "/dev/full", check=False)
        check(r.returncode != 0 and "No space left" in r.stderr, r)
        check_equal([p.name for p in place.iterdir() if "part" in p.name], [])


def said(box, command):
    return box.run(command)[1].decode()


@contextlib.contextmanager
def half_an_upload(d, box, path):
    """A cp that has sent half of its file and waits for more of its own input."""
    p = started(d, "cp", "-", f"{box.id}:{path}", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    p.stdin.write(b"x" * HALF)
    p.stdin.flush()
    try:
        eventually(lambda: "hutch-upload" in said(box, f"ls -A {os.path.dirname(path)}"), PATIENCE, "the upload has begun")
        yield p
    finally:
        p.kill()
        with contextlib.suppress(BrokenPipeError):
            p.stdin.close()
        p.wait()


def test_a_cut_upload_changes_nothing():
    "an upload whose client or whose node's front is killed in the middle leaves the old file, and nothing beside it"
    with one_sandbox() as (d, box, _):
        box.run("mkdir -p /home/user/w; echo -n old > /home/user/w/f; chmod 600 /home/user/w/f")
        for victim in ("client", "front"):
            with half_an_upload(d, box, "/home/user/w/f") as p:
                if victim == "client":
                    p.kill()
                else:
                    d.kill9("front")
                    eventually(d.alive, PATIENCE, "front is back")
                with contextlib.suppress(BrokenPipeError):
                    p.stdin.close()
                check(p.wait(PATIENCE) != 0, f"{victim}: cp ended with 0")
            eventually(lambda: said(box, "ls -A /home/user/w; cat /home/user/w/f") == "f\nold", PATIENCE, f"{victim}: the old file, alone")
        with half_an_upload(d, box, "/home/user/w/f") as p:
            p.stdin.close()
            check_equal(p.wait(PATIENCE), 0)
        check_equal(said(box, "ls -A /home/user/w; stat -c '%s %a' /home/user/w/f"), f"f\n{HALF} 600\n")


def test_events_of_an_upload(who):
    "an upload of a new file gives CREATE, CHMOD, WRITE, one over a file WRITE, all there when the upload is answered; so are a command's"
    with small_templates() as templates, node(who, templates=templates if who == "root" else None) as (_, api):
        for template in ("host", "small") if who == "root" else ("host",):
            box = api.create(template, timeout=600)
            box.run("mkdir /home/user/w")
            w = box.call("Filesystem/CreateWatcher", {"path": "/home/user/w"})

            def events():
                got = box.call("Filesystem/GetWatcherEvents", w).get("events", [])  # noqa: B023
                return [e["type"].removeprefix("EVENT_TYPE_") + " " + e["name"] for e in got]
            for i in range(50):
                box.put(f"w/f{i}", b"x" * (100 if i % 10 else 2 << 20))
                check_equal(events(), [f"CREATE f{i}", f"CHMOD f{i}", f"WRITE f{i}"], template)
                box.put(f"w/f{i}", b"y")
                check_equal(events(), [f"WRITE f{i}"], template)
                box.run(f"rm /home/user/w/f{i}")
                check_equal(events(), [f"REMOVE f{i}"], template)
            box.kill()


def test_lost_results_are_errors():
    "a command whose result cannot be written fails and says so; create names the sandbox it made, key create the key"
    with one_sandbox() as (d, box, place):
        box.put("f", b"content")
        commands = [("create", "host"), ("key", "create"), ("ls",), ("info", box.id), ("env",), ("logs", box.id), ("store", "df"), ("--help",),
                    ("cp", f"{box.id}:f", "-"), ("exec", box.id, "--", "echo", "x"), ("--version",), ("ls", "--json"), ("create", "--help"),
                    ("config", "show", str(d.config)), ("template", "ls"), ("completion", "bash")]
        for words in commands:
            check_equal(d.cli(*words, check=False).returncode, 0, words)
            for to in (">/dev/full", ">&-"):
                r = subprocess.run(["sh", "-c", f'"$@" {to}', "sh", d.hutch, *words], text=True, stderr=subprocess.PIPE, timeout=PATIENCE,
                                   env={**os.environ, "HUTCH_URL": d.url, "HUTCH_API_KEY": d.key})
                check(r.returncode != 0 and r.stderr.startswith("hutch: "), f"{words} {to}: {r}")
                if words[0] == "create" and words[1:] == ("host",):
                    made = r.stderr.split("sandbox ")[1].split()[0]
                    check_in("running", d.cli("info", made).stdout)
                if words[0] == "key":
                    unseen = r.stderr.split("hutch key rm ")[1].split()[0]
                    d.cli("key", "rm", unseen)
        # A missing input is no empty one.
        r = subprocess.run(["sh", "-c", '"$@" <&-', "sh", d.hutch, "cp", "-", f"{box.id}:f"], text=True, capture_output=True, timeout=PATIENCE,
                           env={**os.environ, "HUTCH_URL": d.url, "HUTCH_API_KEY": d.key})
        check(r.returncode != 0, r)
        check_equal(box.get("f"), b"content")


def test_exec_passes_text_or_refuses():
    "arguments, variables and the directory of exec arrive as they are; what is not UTF-8 is refused"
    with one_sandbox() as (d, box, _):
        odd = "a\"\\\n\t\x7f\x01 \u00e4\u20ac\U0001f600"
        r = d.cli("exec", "-e", f"V={odd}", box.id, "--", "sh", "-c", 'printf "%s|%s" "$1" "$V"', "sh", odd)
        check_equal(r.stdout, f"{odd}|{odd}")
        wrong = b"\xff\xfe"
        for words, said_why in (([box.id, "--", "printf", "%s", b"x" + wrong], "argument 2 is not UTF-8"), ([box.id, "--", wrong], "the command is not UTF-8"),
                                (["-e", b"V=" + wrong, box.id, "true"], "'V' is not UTF-8"), (["-C", b"/" + wrong, box.id, "true"], "--chdir is not UTF-8")):
            r = d.cli("exec", *words, check=False)
            check_equal(r.returncode, 120, r)
            check_in(said_why, r.stderr)
        r = d.cli("create", "-e", b"V=" + wrong, "host", check=False)
        check(r.returncode == 120 and "'V' is not UTF-8" in r.stderr, r)


def test_a_closed_terminal_hangs_up():
    "when the terminal of shell or exec -t goes, by its signal or without one, or the program is told to end, the command inside goes"
    with one_sandbox() as (d, box, _):
        for how in ("signal", "end", "SIGTERM"):
            for words in (["shell", box.id], ["exec", "-t", box.id, "--", "sh", "-c", "sleep 98765; :"]):
                master, slave = os.openpty()
                p = started(d, *words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if how != "end" else None)
                os.close(slave)
                try:
                    if words[0] == "shell":
                        os.write(master, b"sleep 98765\n")
                    eventually(lambda: "sleep 98765" in said(box, "ps -eo args | grep -v grep"), PATIENCE, "it runs")
                    if how == "SIGTERM":
                        p.terminate()
                        check_equal(p.wait(PATIENCE), 128 + signal.SIGTERM, (how, words))
                    os.close(master)
                    check(p.wait(PATIENCE) != 0, (how, words))
                finally:
                    p.kill()
                    p.wait()
                eventually(lambda: "sleep 98765" not in said(box, "ps -eo args | grep -v grep"), PATIENCE, f"{how} {words}: it is gone")
