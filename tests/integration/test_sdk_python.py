"""clients/python: our own client in Python against a node. Everything that it has words for, and connections that break."""
import io
import sys
import threading
import time
import traceback

from hutch_test import TOP, check, check_equal, check_in, eventually
from node import hit, needs_root, node
from shared import shared_node, shared_world
from small import small_templates

sys.path.insert(0, str(TOP / "clients/python/src"))
from hutch_sdk import (  # noqa: E402
    ApiError, BadRequest, CommandFailed, CommandTimeout, Conflict, ConnectionLost, Hutch, HutchError, NotFound, SandboxEnded, Unauthenticated)


def client(d, **more):
    return Hutch(d.url, d.key, **more)


def raised(kind, call, *args, **kw):
    """The exception of this kind that the call raises."""
    try:
        value = call(*args, **kw)
    except kind as e:
        return e
    except Exception as e:  # pylint: disable=broad-exception-caught
        raise AssertionError("".join(traceback.format_exception(e))) from e
    raise AssertionError(f"no {kind.__name__} was raised; it returned {value!r}")


def test_commands():
    "commands: output, streams, stdin, terminal, signals, time-outs, rights, exit codes"
    needs_root()
    with shared_node(templates=True) as d, client(d) as h, h.create("small", env={"FROM": "create"}) as box:
        r = box.run("echo out; echo err >&2; echo $FROM $HERE; pwd; exit 3", env={"HERE": "now"}, cwd="/tmp")
        check_equal((r.exit_code, r.stdout, r.stderr, r.ok, r.signal), (3, "out\ncreate now\n/tmp\n", "err\n", False, None))
        check(r.usage["wallMs"] >= 0 and not r.omitted, r)
        check_equal(box.run(["printf", "%s|", "a b", "$FROM"]).stdout, "a b|$FROM|")
        check_equal(box.run("id -un", user="root").stdout, "root\n")
        check_in("exit code 7: gone wrong", str(raised(CommandFailed, box.run, "echo gone wrong >&2; exit 7", check=True)))
        check_equal(box.run("kill -9 $$").exit_code, 137)
        check_equal(box.run("cat", stdin="x" * 3_000_000).stdout_bytes, b"x" * 3_000_000)
        check_equal(box.run("true", stdin="x" * 300_000).exit_code, 0, "a command that does not read")
        cut = box.run("head -c 100000 /dev/zero", keep=1000)
        check_equal((len(cut.stdout_bytes), cut.omitted), (1000, {"stdout": 99000}))
        shown = []
        box.run("echo a; sleep 0.2; echo b", on_stdout=shown.append)
        check_equal("".join(shown), "a\nb\n")
        late = raised(CommandTimeout, box.run, "echo before; sleep 1000", timeout=1)
        check_equal(late.stdout, "before\n")
        eventually(lambda: not box.commands(), 20, "the command that took too long is killed")
        refused = box.run("echo x > /tmp/x", rights={"write": "none"})
        check(refused.exit_code != 0 and refused.denials[0]["kind"] == "right", refused)
        check_in("rights", raised(BadRequest, box.run, "true", rights={"nothing": 1}).message)
        check_equal(raised(ApiError, box.run, "true", user="nobody-of-this-name").status, 401)
        with box.start("stty size; read line; echo \"got $line\"", pty=(100, 30)) as c:
            c.resize(90, 20)
            c.send("typed\n")
            r = c.wait()
        check_in("got typed", r.stdout)
        with box.start("sleep 1000") as c:
            check_equal([p["pid"] for p in box.commands()], [c.pid])
            check(c.kill("TERM"))
            check_equal(c.wait().signal, 15)
            check_equal(c.kill(), False)
        c = box.start("echo kept; sleep 0.3; exit 4")
        c.close()
        r = box.attach(c.pid).wait()
        check_equal((r.exit_code, r.stdout), (4, "kept\n"))


def test_files():
    "files: bytes, text, ranges, uploads from files and iterators, entries, moves, and the errors of each"
    needs_root()
    with shared_node(templates=True) as d, client(d) as h, h.create("small") as box:
        f = box.files
        every = bytes(range(256)) * 9000
        f.write("deep/er/bytes", every)
        check_equal(f.read("deep/er/bytes"), every)
        check_equal(f.read("deep/er/bytes", start=1, end=4), b"\1\2\3")
        f.write("text", "zwölf\n")
        check_equal(f.read_text("/home/user/text"), "zwölf\n")
        f.write("from-file", io.BytesIO(every))
        f.write("from-parts", (bytes([i]) * 1000 for i in range(100)))
        check_equal((f.stat("from-file").size, f.stat("from-parts").size), (len(every), 100_000))
        with f.open("deep/er/bytes") as body:
            check_equal(b"".join(body), every)
        e = f.stat("text")
        check_equal((e.name, e.path, e.type, e.owner, e.mode), ("text", "/home/user/text", "file", "user", 0o644))
        box.run("ln -s text link")
        found = {x.path.removeprefix("/home/user/"): x.type for x in f.entries("/home/user", depth=3)}
        check_equal(found, {"deep": "directory", "deep/er": "directory", "deep/er/bytes": "file", "text": "file", "from-file": "file",
                            "from-parts": "file", "link": found["link"]})
        check_equal(f.move("text", "deep/moved").path, "/home/user/deep/moved")
        check_equal((f.exists("text"), f.exists("deep/moved")), (False, True))
        check_equal(f.make_dir("made/here").type, "directory")
        raised(Conflict, f.make_dir, "made/here")
        f.remove("made")
        for call in (f.read, f.stat, f.entries):
            raised(NotFound, call, "made/none")
        f.remove("made/none")
        check_in("directory", raised(BadRequest, f.read, "deep").message)
        raised(ApiError, f.write, "/etc/passwd/x", "y")


def test_state():
    "history, undo, trials with conflicts, forks, snapshots, pause, lists and info"
    needs_root()
    with shared_node(templates=True) as d, client(d) as h, h.create("small", history=True, metadata={"of": "sdk"}, name="first") as box:
        check_equal(box.run("echo one > plan").generation, 1)
        box.run("echo two > plan")
        check_equal([g["number"] for g in box.history.generations()], [1, 2])
        diff = box.history.diff(1, 2)
        check_equal([(c["path"], c["change"]) for c in diff["changes"]], [("/home/user/plan", "changed")])
        check_equal(box.history.read(1, "/home/user/plan"), b"one\n")
        check(box.history.undo()["changed"] >= 1)
        check_equal(box.files.read_text("plan"), "one\n")
        check_in("number", box.history.save("by hand"))
        trial = box.try_run("rm plan; echo new > other; exit 5", timeout=30)
        check_equal((trial.exit_code, {c["path"]: c["change"] for c in trial.changes}),
                    (5, {"/home/user/plan": "removed", "/home/user/other": "added"}))
        check(box.files.exists("plan") and box.trials()[0]["id"] == trial.id)
        check_equal(trial.commit()["removed"], 1)
        check(not box.files.exists("plan") and box.files.exists("other"))
        box.try_run("true").discard()
        trial = box.try_run("echo a > other")
        box.run("echo b > other")
        check_equal(raised(Conflict, trial.commit).body["conflicts"], ["/home/user/other"])
        check_equal(trial.sandbox, box.id)
        copies = box.fork(2)
        check_equal([c.files.read_text("other") for c in copies], ["b\n", "b\n"])
        check_equal(len(list(h.sandboxes(metadata={"of": "sdk"}))) >= 1, True)
        check_equal([c.kill() for c in copies] + [copies[0].kill()], [True, True, False])
        box.snapshot("kept")
        with h.create("kept") as again:
            check_equal(again.files.read_text("other"), "b\n")
        h.api.template_remove("kept")
        box.pause()
        check_equal(box.info()["state"], "paused")
        check_equal(h.connect(box.id, timeout=60).run("cat other").stdout, "b\n")
        box.set_timeout(500)
        check_equal([e.type for e in box.events(follow=False)][0], "created")


def test_api():
    "errors of the API, keys, pages, ports, volumes and templates by the methods of each route"
    needs_root()
    with shared_node(templates=True) as d, client(d) as h:
        raised(Unauthenticated, Hutch(d.url, "wrong").api.volume_list)
        raised(NotFound, h.connect, "ap_0000000000000000")
        check_in("template", raised(ApiError, h.create, "no such template").message)
        check_in("memoryMB", raised(BadRequest, h.create, "small", memoryMB="much").message)
        check_in("key", str(raised(HutchError, Hutch, d.url, "")))
        check_in("in clear", str(raised(HutchError, Hutch, "http://node.example", "k")))
        check_in("URL of a node", str(raised(HutchError, Hutch, "node.example", "k")))
        raised(ConnectionLost, Hutch("http://127.0.0.1:1", "k", retries=0).api.capabilities)
        check_equal(h.api.capabilities()["features"]["command_rights"], True)
        boxes = [h.create("small", metadata={"page": "yes"}) for _ in range(3)]
        check_equal({b["sandboxID"] for b in h.sandboxes(metadata={"page": "yes"})}, {b.id for b in boxes})
        first = h.api.sandbox_list(metadata="page=yes", limit=2)
        check(len(first) == 2 and first.next_token, first)
        check_equal(len(h.api.sandbox_list(metadata="page=yes", limit=2, next_token=first.next_token)), 1)
        v = h.api.volume_create({"name": "data"})
        with h.create("small", volumes=[{"name": "data", "path": "/data"}]) as box:
            check_equal(box.run("ls -d /data").stdout, "/data\n")
            check_in(box.id, box.url(8000))
            check_in("hutch-link=", box.link(8000, seconds=60))
        h.api.volume_remove(v["id"])
        check_in("small", [t["name"] for t in h.api.template_list()["templates"]])
        check_equal(list(h.api.store_gc(dry_run=True))[-1].get("error"), None)
        for b in boxes:
            b.kill()
        eventually(lambda: raised(ApiError, boxes[0].run, "true").status in (404, 502), 20, "it has ended")
        check(isinstance(raised(ApiError, boxes[0].files.read, "x"), (SandboxEnded, NotFound)))


def test_network():
    "grants with an end, checks, denials, secrets that are not inside, and documents"
    needs_root()
    curl = "curl -s -o /dev/null -w '%{http_code}' https://api.test/"
    with shared_world() as (net, d), client(d) as h:
        h.secrets.set("llm", "sk-real", hosts=["api.test"], env="LLM_KEY")
        with h.create("host", network={"rules": [{"id": "llm", "hosts": ["api.test"], "secrets": ["llm"]}]}) as box:
            shape = box.run("printf %s $LLM_KEY").stdout
            check(shape and shape != "sk-real", shape)
            box.run('curl -s -H "Authorization: Bearer $LLM_KEY" https://api.test/secret', check=True)
            check_in("Bearer sk-real", str([s for s in net.seen("api.test")]))
        check_equal([s["name"] for s in h.secrets.all()], ["llm"])
        check_equal(h.secrets.get("llm")["spec"]["env"], "LLM_KEY")
        with h.create("host") as box:
            check_equal((box.run(curl).stdout, box.network.check("https://api.test/")["verdict"]), ("403", "deny"))
            denial = box.network.denials()["denials"][-1]
            check_in("api.test", str(denial["grant"]), denial)
            grant = box.network.allow("api.test", methods=["GET"], seconds=3600)
            check_equal((box.run(curl).stdout, box.network.check("https://api.test/", "POST")["verdict"]), ("200", "deny"))
            box.network.remove(grant)
            check_equal(box.run(curl).stdout, "403")
            box.network.allow("api.test", seconds=1)
            eventually(lambda: box.run(curl).stdout == "403", 20, "the grant ends")
            box.network.allow("api.test", uses=1)
            check_equal([box.run(curl).stdout for _ in range(2)], ["200", "403"])
            epoch = box.network.replace("public")["epoch"]
            check_equal(box.run(curl).stdout, "200")
            raised(Conflict, box.network.replace, "off", expected_epoch=epoch - 1)
            box.network.replace("off", expected_epoch=epoch)
            check_in("needs a host", str(raised(HutchError, box.network.allow)))
            check_in("hosts", raised(BadRequest, box.network.allow, "not a host!").message)
        h.secrets.remove("llm")


def test_broken_connections():
    "while front is killed again and again, no output is lost or doubled, and no sandbox or command is made twice"
    needs_root()
    with small_templates() as templates, node(templates=templates) as (d, _), client(d, retries=10) as h, h.create("small") as box:
        stop = threading.Event()

        def kill():
            while not stop.wait(0.7):
                hit(d, "front")
        killer = threading.Thread(target=kill)
        running = box.start("i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo line $i; sleep 0.01; done")
        killer.start()
        try:
            r = running.wait()
        finally:
            stop.set()
            killer.join()
        check_equal(r.stdout, "".join(f"line {i}\n" for i in range(1, 401)))
        check_equal((r.exit_code, r.omitted), (0, {}))
        before = time.monotonic()
        d.kill9("front")
        with h.create("small", name="once") as other:
            check_equal(other.run("echo alive").stdout, "alive\n", f"after {time.monotonic() - before:.1f} s")
            check_equal([b["metadata"]["name"] for b in h.sandboxes(metadata={"name": "once"})], ["once"])
        d.kill9("front")
        box.files.write("f", b"whole")
        check_equal(box.files.read("f"), b"whole")
