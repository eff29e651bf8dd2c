"""The commands of hutch that talk to a node: what they do to files, to their output, and when their terminal goes."""
import contextlib
import fcntl
import json
import os
import pathlib
import re
import signal
import stat
import struct
import subprocess
import tempfile
import termios
import threading

from hutch_test import PATIENCE, check, check_equal, check_in, eventually, hutch
from node import needs_root, node
from node_client import ask
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


def test_create_is_closed():
    "hutch create makes a sandbox without internet and with private ports; options open it, E2B's route stays open, and each answer says so"
    needs_root()
    with node() as (d, api):
        def made(*args):
            return json.loads(d.cli("create", "--json", *args, "host").stdout)

        def limits(box):
            return box["hutch"]["internet"], box["hutch"]["ports"]
        closed = made()
        check_equal(limits(closed), ("off", "private"), closed)
        check(closed["trafficAccessToken"], closed)
        check_equal(limits(made("--network", "public")), ("public", "private"))
        check_equal(limits(made("--allow", "pypi.org", "-p", "all")), ("rules", "public"))
        presets = made("--preset", "debian,python", "--preset", "node", "-p", "8000")
        check_equal(limits(presets), ("rules", "private"))
        effective = json.loads(d.cli("network", "show", presets["sandboxID"], "--json").stdout)
        check_equal(effective["policy"]["presets"], ["debian", "python", "node"])
        check_equal(limits(made("--preset", "pip")), ("rules", "private"))  # an alias
        ports = ask(d, "GET", f"/v1/sandboxes/{presets['sandboxID']}/ports", None).json
        check_equal((ports["publicTraffic"], ports["publicPorts"]), (False, [8000]))
        check_equal(limits(made("--refusals", "closed")), ("off", "private"))
        e2b = ask(d, "POST", "/v2/sandboxes", {"templateID": "host"}).json
        check_equal(limits(e2b), ("public", "public"), e2b)
        for wrong in ("0", "65536", "every"):
            r = d.cli("create", "-p", wrong, "host", check=False)
            check_equal((r.returncode, "--publish wants a port" in r.stderr), (120, True), r)
        shown = on_terminal(d, "create", "host")
        check_in("hutch: no internet (--network public, --allow HOST, --preset NAME), private ports (--publish PORT)", shown)


def test_options_that_are_not_there():
    "a mistyped option is named with the one that was meant, a value too many is said; nothing is asked of a node"
    for args, want in ((("ls", "--jsno"), "hutch: ls: unknown option '--jsno' (did you mean --json?); see hutch ls --help\n"),
                       (("exec", "--usr=root", "x"), "hutch: exec: unknown option '--usr=root' (did you mean --user?); see hutch exec --help\n"),
                       (("ls", "--json=x"), "hutch: ls: option '--json' takes no value; see hutch ls --help\n"),
                       (("ls", "--" + "z" * 90), f"hutch: ls: unknown option '--{'z' * 90}'; see hutch ls --help\n")):
        r = hutch(*args)
        check_equal((r.code, r.err), (120, want), r)


def test_timeouts():
    "--timeout 0 lives until it is killed, unless the operator has a limit; hutch timeout changes the time; one that ended says when and why"
    needs_root()
    with node() as (d, api):
        def left(box):
            return next(line for line in d.cli("ls").stdout.splitlines() if box in line)
        box = d.cli("create", "--timeout", "0", "host").stdout.strip()
        check_in("until killed", left(box))
        d.cli("timeout", box, "2h")
        check(re.search("1h 59m|2h 0m", left(box)), left(box))
        d.cli("pause", box)
        d.cli("resume", box)
        check(re.search("1h 59m|2h 0m", left(box)), left(box))
        d.cli("timeout", box, "0")
        check_in("until killed", left(box))
        r = d.cli("create", "--timeout", "1ms", "host", check=False)
        check_equal((r.returncode, "at least 1s" in r.stderr), (120, True), r)
        d.cli("kill", box)
        r = d.cli("exec", box, "true", check=False)
        check(r.returncode == 120 and f"sandbox {box} ended" in r.stderr and "it was killed through the API" in r.stderr, r)
        short = d.cli("create", "--timeout", "2s", "host").stdout.strip()
        r = d.cli("exec", short, "sleep", "60", check=False)
        check("s ago: its time was over after 2 s; `hutch timeout ID 1h`" in r.stderr and r.returncode != 0, r)
        other = ask(d, "GET", f"/sandboxes/{'a' * 26}", None)
        check_equal((other.status, "doesn't exist or you don't have access" in other.body.decode()), (404, True), other)
    with node(config="sandboxes:\n  max_timeout: 1h\n") as (d, api):
        r = d.cli("create", "--timeout", "0", "host", check=False)
        check(r.returncode == 120 and "0, until killed, is not allowed here; at most 3600 seconds" in r.stderr, r)


def test_names():
    "every command takes a name or the only beginning of an id; a name is taken once, an ambiguous word is refused"
    needs_root()
    with node() as (d, api), tempfile.TemporaryDirectory() as place:
        box = d.cli("create", "--name", "web", "-l", "job=42", "host").stdout.strip()
        r = d.cli("create", "--name", "web", "host", check=False)
        check(r.returncode == 120 and f"the name 'web' is taken by sandbox {box}" in r.stderr, r)
        starts, answers = threading.Barrier(5), []

        def one():
            starts.wait()
            answers.append(d.cli("create", "--name", "together", "host", check=False))
        for _ in range(5):
            del answers[:]
            threads = [threading.Thread(target=one) for _ in range(5)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            check_equal(sorted(r.returncode for r in answers), [0, 120, 120, 120, 120], [r.stderr for r in answers])
            d.cli("kill", "together")
        for wrong in ("-x", "a b", "a" * 64, "a" * 26):
            r = d.cli("create", f"--name={wrong}", "host", check=False)
            check(r.returncode == 120 and "field 'name'" in r.stderr, r)
        check_equal(d.cli("exec", "web", "echo", "hi").stdout, "hi\n")
        check_equal(d.cli("exec", box[:12], "echo", "hi").stdout, "hi\n")
        listed = next(line.split() for line in d.cli("ls").stdout.splitlines() if box in line)
        check_equal(listed[1], "web")
        check_equal(json.loads(d.cli("info", "web", "--json").stdout)["metadata"], {"job": "42", "name": "web"})
        (pathlib.Path(place) / "f").write_text("one\n")
        d.cli("cp", f"{place}/f", "web:f")
        check_equal(d.cli("cp", "web:f", "-").stdout, "one\n")
        for command in (["logs", "web"], ["timeout", "web", "1h"], ["pause", "web"], ["resume", "web"], ["network", "show", "web"],
                        ["url", "web", "80"]):
            d.cli(*command)
        other = d.cli("create", "host").stdout.strip()
        same = os.path.commonprefix([box, other])
        r = d.cli("exec", same or "nothing", "true", check=False)
        check_in("can mean 2 sandboxes" if same else "no sandbox is called", r.stderr)
        ask(d, "POST", "/v2/sandboxes", {"templateID": "host", "metadata": {"name": "web"}})
        check_in("'web' can mean 2 sandboxes", d.cli("kill", "web", check=False).stderr)
        r = d.cli("exec", "web/x", "true", check=False)
        check_in("is not the id or name of a sandbox", r.stderr)
        check_equal(d.cli("kill", other[:14]).stdout.strip(), other)


def test_create_with_limits_and_command():
    "create --memory --cpus --disk sets limits; create -- COMMAND runs it and ends with its code; --rm leaves no sandbox, exec -d leaves a command"
    needs_root()
    with node() as (d, api):
        box = json.loads(d.cli("create", "--json", "--memory", "96M", "--cpus", "0.5", "--disk", "64M", "host").stdout)["sandboxID"]
        info = json.loads(d.cli("info", box, "--json").stdout)
        check_equal((info["memoryMB"], info["cpuCount"], info["diskSizeMB"]), (96, 1, 64))
        r = d.cli("exec", box, "--", "python3", "-c", "x = bytearray(200 << 20)", check=False)
        check(r.returncode == 137 and "ran out of memory (96 MiB)" in r.stderr, r)
        for wrong in (["--memory", "1"], ["--memory", "8M"], ["--cpus", "0"], ["--cpus", "1000"], ["--disk", "much"], ["--rm"]):
            r = d.cli("create", *wrong, "host", check=False)
            check_equal(r.returncode, 120, r)
        pid = d.cli("exec", "-d", "-w", "/tmp", box, "sh", "-c", "pwd >/tmp/where; exec sleep 300").stdout.strip()
        eventually(lambda: d.cli("exec", box, "cat", "/tmp/where", check=False).stdout == "/tmp\n")
        check_equal(d.cli("exec", box, "--", "cat", f"/proc/{pid}/comm").stdout, "sleep\n")
        d.cli("kill", box)
        r = d.cli("create", "--rm", "-e", "WHO=you", "host", "--", "sh", "-c", "echo hello $WHO; exit 7", check=False)
        check_equal((r.returncode, r.stdout), (7, "hello you\n"), r)
        check_equal(d.cli("ls", "-q").stdout, "")
        r = d.cli("create", "host", "--", "nothing-like-this", check=False)
        check_equal((r.returncode, len(d.cli("ls", "-q").stdout.split())), (127, 1), r)
        check_in(f"sandbox {d.cli('ls', '-q').stdout.strip()} still runs", r.stderr)


def test_limits_outlive_a_pause():
    "limits that create asked for hold after a pause that kept the files only"
    with small_templates() as templates, node(templates=templates) as (d, api):
        box = d.cli("create", "--memory", "64M", "--timeout", "10m", "small").stdout.strip()
        d.cli("pause", "--files", box)
        d.cli("resume", box)
        r = d.cli("exec", box, "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1", check=False)
        check(r.returncode == 137 and "ran out of memory (64 MiB)" in r.stderr, r)


def test_ls_chooses():
    "ls shows only what --state, --template and --label want; --watch goes on; rm is kill, and kill and pause have --json"
    needs_root()
    with node() as (d, api):
        one = d.cli("create", "-m", "job=1", "-m", "who=me", "host").stdout.strip()
        two = d.cli("create", "-m", "job=2", "host").stdout.strip()
        check_equal(json.loads(d.cli("pause", "--json", two).stdout), {"sandboxID": two, "state": "paused"})

        def listed(*args):
            return set(d.cli("ls", "-q", *args).stdout.split())
        check_equal(listed(), {one, two})
        check_equal(listed("--state", "running"), {one})
        check_equal(listed("--state", "paused"), {two})
        check_equal(listed("-l", "job"), {one, two})
        check_equal(listed("-l", "job=2"), {two})
        check_equal(listed("-l", "job=2", "--label", "who"), set())
        check_equal(listed("--template", "base"), set())
        check_equal(listed("--template", "host", "-l", "who=me"), {one})
        check_equal([s["sandboxID"] for s in json.loads(d.cli("ls", "--json", "-l", "job=1").stdout)], [one])
        r = d.cli("ls", "--state", "dead", check=False)
        check(r.returncode == 120 and "running or paused" in r.stderr, r)
        p = started(d, "ls", "-q", "--watch", stdout=subprocess.PIPE, text=True)
        seen = [p.stdout.readline().strip() for _ in range(4)]
        p.terminate()
        p.wait(PATIENCE)
        check_equal((set(seen[:2]), set(seen[2:])), ({one, two}, {one, two}))
        check_equal(json.loads(d.cli("kill", "--json", one).stdout), {"sandboxID": one, "state": "ended"})
        check_equal(d.cli("rm", two).stdout.strip(), two)
        check_equal(listed(), set())


def test_network_allow_is_short():
    "network allow and deny print one line; --json prints the whole network"
    needs_root()
    with node() as (d, api):
        box = d.cli("create", "--name", "n", "host").stdout.strip()
        check_equal(d.cli("network", "allow", box, "pypi.org", "a.example").stdout, "allowed: pypi.org a.example\n")
        check_equal(d.cli("network", "deny", "n", "pypi.org").stdout, "denied: pypi.org\n")
        check_in("pypi.org", json.dumps(json.loads(d.cli("network", "allow", "n", "pypi.org", "--json").stdout)["policy"]))


def test_env_adds_an_authority():
    "env --https names a file with the node's authority and all that the caller trusted before; called again it changes nothing"
    needs_root()
    with node(tls=True) as (d, api), tempfile.TemporaryDirectory() as place:
        own, extra = pathlib.Path(place) / "own.pem", pathlib.Path(place) / "extra.pem"
        own.write_text("-----BEGIN CERTIFICATE-----\nown\n-----END CERTIFICATE-----\n")
        extra.write_text("-----BEGIN CERTIFICATE-----\nextra\n-----END CERTIFICATE-----\n")
        ca = (d.state / "tls/ca.crt").read_text()
        env = {"XDG_CACHE_HOME": place, "SSL_CERT_FILE": str(own), "NODE_EXTRA_CA_CERTS": str(extra)}

        def variables(env):
            p = started(d, "env", "--https", stdout=subprocess.PIPE, text=True, env=env)
            out = p.communicate(timeout=PATIENCE)[0]
            check_equal(p.returncode, 0, out)
            return dict(re.findall(r"^export (\w+)='(.*)'$", out, re.M))
        first = variables(env)
        for name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"):
            text = pathlib.Path(first[name]).read_text()
            for part in (own.read_text(), extra.read_text(), ca):
                check_in(part, text)
        again = variables({**env, **{k: first[k] for k in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")}})
        check_equal(again, first)
        check_equal(pathlib.Path(first["SSL_CERT_FILE"]).read_text().count(ca), 1)
        check_equal(sorted(p.name for p in (pathlib.Path(place) / "hutch").iterdir()), [pathlib.Path(first["SSL_CERT_FILE"]).name])


def test_cp_copies_directories():
    "cp -r takes a directory in and out: modes, links, empty directories, long names; into an existing directory or as a new one; devices stay"
    with one_sandbox() as (d, box, place):
        tree, deep = place / "tree", "x" * 120
        (tree / "empty").mkdir(parents=True)
        (tree / deep / deep).mkdir(parents=True)
        (tree / deep / deep / "f").write_bytes(os.urandom(3 << 20))
        (tree / "run").write_text("#!/bin/sh\necho ran\n")
        (tree / "run").chmod(0o755)
        (tree / "link").symlink_to("run")
        r = d.cli("cp", str(tree), f"{box.id}:", check=False)
        check(r.returncode == 120 and "hutch cp -r copies it" in r.stderr, r)
        d.cli("cp", "-r", str(tree), f"{box.id}:")
        check_equal(said(box, "cd tree && ls -A && ./link && readlink link"), "empty\nlink\nrun\n" + deep + "\nran\nrun\n")
        d.cli("cp", "-r", f"{tree}/", f"{box.id}:other")
        check_equal(said(box, "cd other && ./run"), "ran\n")
        said(box, "mkfifo tree/pipe")
        r = d.cli("cp", "-r", f"{box.id}:tree", str(place / "back"))
        check_in("1 devices, pipes or sockets were left out", r.stderr)
        check_equal(subprocess.run(["diff", "-r", "--no-dereference", tree, place / "back"], capture_output=True, text=True, check=False).stdout, "")
        check_equal((stat.S_IMODE((place / "back/run").stat().st_mode), os.readlink(place / "back/link")), (0o755, "run"))
        check((place / "back/empty").is_dir(), "the empty directory is missing")
        d.cli("cp", "-r", f"{box.id}:tree", str(place / "back"))
        check_equal((place / "back/tree/run").read_text(), (tree / "run").read_text())
        (place / "none").mkdir()
        d.cli("cp", "-r", str(place / "none"), f"{box.id}:")
        check_equal(said(box, "ls -A none && echo there"), "there\n")
        box.put("one", b"one\n")
        d.cli("cp", "-r", f"{box.id}:one", str(place / "one"))
        check_equal((place / "one").read_text(), "one\n")
        r = d.cli("cp", "-r", f"{box.id}:nothing", str(place / "x"), check=False)
        check(r.returncode == 120 and not (place / "x").exists(), r)


def test_exec_leaves_what_holds_its_output():
    "Ctrl-C ends a command; one that has ended while its children hold its output is left, and they run on"
    with one_sandbox() as (d, box, _):
        p = started(d, "exec", box.id, "--", "sh", "-c", "echo up; exec sleep 300", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        check_equal(p.stdout.readline(), "up\n")
        p.send_signal(signal.SIGINT)
        check_equal((p.wait(PATIENCE), p.stderr.read()), (143, ""))
        p = started(d, "exec", box.id, "--", "sh", "-c", "sleep 301 & echo $!", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        child = p.stdout.readline().strip()
        eventually(lambda: said(box, f"ps -o ppid= -p {child}").strip() == "1")  # the shell is gone
        p.send_signal(signal.SIGINT)
        check_equal(p.wait(PATIENCE), 130)
        check_in("the command has ended; processes that it started hold its output", p.stderr.read())
        check_equal(said(box, f"cat /proc/{child}/comm"), "sleep\n")


def test_cp_shows_progress():
    "on a terminal cp shows how much went up and came down"
    with one_sandbox() as (d, box, place):
        (place / "f").write_bytes(bytes(1 << 20))
        check_in("(100 %)", on_terminal(d, "cp", str(place / "f"), f"{box.id}:f"))
        check_in("(100 %)", on_terminal(d, "cp", f"{box.id}:f", str(place / "g")))


def test_tables_fit():
    "a table is as wide as the terminal and keeps its ids; without a terminal nothing is cut"
    needs_root()
    with node() as (d, api):
        box = d.cli("create", "--name", "n" * 38, "host").stdout.strip()
        check_in("n" * 38, d.cli("ls").stdout)
        check("\033" not in d.cli("ls").stdout, "control characters without a terminal")
        shown = on_terminal(d, "ls", columns=90)
        lines = re.sub(r"\033\[\dm", "", shown).replace("\r", "").splitlines()
        check(all(len(line) <= 90 for line in lines) and any(len(line) == 90 for line in lines), lines)
        check(box in shown and "nnn." in shown and shown.startswith("\033[1mID"), shown)
        check_in("n" * 38, on_terminal(d, "ls", columns=200))
        check_in('"name":"' + "n" * 38, on_terminal(d, "info", box, columns=40).replace(" ", ""))


def test_exec_explains_memory():
    "a command that was killed because its sandbox ran out of memory says so, and what the limit is"
    needs_root()
    with node(config="sandboxes:\n  memory: 64MiB\n") as (d, api):
        box = d.cli("create", "host").stdout.strip()
        r = d.cli("exec", box, "--", "python3", "-c", "x = bytearray(200 << 20)", check=False)
        check_equal(r.returncode, 137, r)
        check_in("the sandbox ran out of memory (64 MiB), and a process of this command was killed; `hutch create --memory SIZE` gives more", r.stderr)
        r = d.cli("exec", box, "--", "sh", "-c", "python3 -c 'x = bytearray(200 << 20)'; exit 0")
        check_in("a process of this command was killed", r.stderr)


def on_terminal(d, *args, columns=0):
    """What a command prints on a terminal."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    p = started(d, *args, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    out = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while chunk := os.read(ours, 65536):
            out += chunk
    os.close(ours)
    check_equal(p.wait(PATIENCE), 0)
    return out.decode()


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
