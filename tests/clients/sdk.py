"""What users of the E2B Python SDK do, sync and async, against the daemon that the environment names. Prints TAP."""
import asyncio
import inspect
import os
import re
import time
import urllib.error
import urllib.request

from e2b import AsyncSandbox, CommandExitException, Sandbox, SandboxException, SandboxQuery
from tap import finish, report, test, until

TEMPLATE = os.environ.get("TEMPLATE", "host")


def raises(kind, fn, text=""):
    try:
        fn()
    except kind as e:
        assert re.search(text, str(e)), f"{text!r} not in {e!r}"
        return e
    raise AssertionError(f"no {kind}")


def commands(s):
    r = s.commands.run("echo out; echo err >&2")
    assert (r.exit_code, r.stdout, r.stderr) == (0, "out\n", "err\n"), r
    e = raises(CommandExitException, lambda: s.commands.run("exit 3"))
    assert e.exit_code == 3
    assert s.commands.run("echo $A", envs={"A": "ü"}).stdout == "ü\n"
    assert s.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    raises(Exception, lambda: s.commands.run("sleep 20", timeout=1), "(?i)time|deadline")
    narrow = {"HUTCH_RIGHTS": '{"network": "off", "write": "none"}'}
    e = raises(CommandExitException, lambda: s.commands.run("echo x > /tmp/narrow", envs=narrow))
    assert "Permission denied" in e.stderr, e
    assert s.commands.run("echo x > /tmp/narrow; echo -$HUTCH_RIGHTS-").stdout == "--\n"
    raises(SandboxException, lambda: s.commands.run("true", envs={"HUTCH_RIGHTS": '{"write": 1}'}), "field 'write'")


def streaming(s):
    for _ in range(5):  # whoever stands still for a second gets it all at once
        seen = []
        s.commands.run("for i in 1 2 3; do echo $i; sleep 0.3; done", on_stdout=lambda d: seen.append((d, time.monotonic())))  # noqa: B023
        assert "".join(d for d, _ in seen) == "1\n2\n3\n", seen
        if seen[-1][1] - seen[0][1] > 0.3:
            break
    assert seen[-1][1] - seen[0][1] > 0.3, seen


def background(s):
    h = s.commands.run("cat", background=True, stdin=True)
    s.commands.send_stdin(h.pid, "hi\n")
    assert any(p.pid == h.pid for p in s.commands.list())
    assert s.commands.kill(h.pid) is True
    until(lambda: s.commands.kill(h.pid) is False, "its end")


def pty(s):
    from e2b.sandbox.commands.command_handle import PtySize
    h = s.pty.create(PtySize(rows=30, cols=90))
    s.pty.send_stdin(h.pid, b"stty size; exit\n")
    out = b""
    for _, _, data in h:
        out += data or b""
    assert b"30 90" in out, out


def files(s):
    s.files.write("p/a.txt", "häl")
    assert s.files.read("p/a.txt") == "häl"
    assert bytes(s.files.read("p/a.txt", format="bytes")) == "häl".encode()
    assert s.files.make_dir("p/d") is True and s.files.make_dir("p/d") is False
    assert [e.name for e in s.files.list("p")] == ["a.txt", "d"]
    assert s.files.exists("p/a.txt") and not s.files.exists("p/none")
    s.files.rename("p/a.txt", "p/b.txt")
    assert s.files.get_info("p/b.txt").path == "/home/user/p/b.txt"
    s.files.remove("p")
    raises(Exception, lambda: s.files.read("p/b.txt"), "not exist|not found")
    assert s.files.write_files([{"path": "x1", "data": "1"}, {"path": "x2", "data": b"2"}])[1].path == "/home/user/x2"


def watch(s):
    s.files.make_dir("w")
    h = s.files.watch_dir("w")
    s.files.write("w/f", "x")
    got = []
    until(lambda: got.extend(h.get_new_events()) or any(e.name == "f" for e in got), "an event")
    h.stop()


def signed(s):
    s.files.write("s.txt", "signed")
    assert urllib.request.urlopen(s.download_url("s.txt")).read() == b"signed"
    e = raises(urllib.error.HTTPError, lambda: urllib.request.urlopen(
        s.download_url("s.txt", use_signature_expiration=-100)))
    assert e.code == 401


def info(s):
    i = s.get_info()
    assert i.sandbox_id == s.sandbox_id and i.metadata == {"py": "1"}, i
    s.set_timeout(900)
    assert s.is_running()
    page = Sandbox.list(query=__import__("e2b").SandboxQuery(metadata={"py": "1"}))
    assert s.sandbox_id in [x.sandbox_id for x in page.next_items()]
    again = Sandbox.connect(s.sandbox_id)
    assert again.commands.run("echo again").stdout == "again\n"


def metrics(s):
    until(lambda: len(s.get_metrics()) > 0, "metrics", 30)


def network(_):
    s = Sandbox.create(TEMPLATE, timeout=600, network={"deny_out": ["0.0.0.0/0"], "allow_out": ["1.1.1.1"]})
    curl = "curl --connect-timeout 30 --max-time 60 -Is "
    for url in ("https://8.8.8.8", "http://8.8.8.8", "https://denied.example"):
        raises(CommandExitException, lambda url=url: s.commands.run(curl + url))
    s.update_network({"deny_out": ["8.8.4.4"]})
    raises(CommandExitException, lambda: s.commands.run(curl + "https://8.8.4.4"))
    assert s.kill() is True


def mcp(_):
    metadata = {"mcp": str(os.getpid())}
    raises(SandboxException, lambda: Sandbox.create(TEMPLATE, timeout=60, metadata=metadata, mcp={"exa": {}}), "Failed to start MCP gateway")
    assert Sandbox.list(query=SandboxQuery(metadata=metadata)).next_items() == []


async def both(s):
    r = await asyncio.gather(*[s.commands.run(f"echo {i}") for i in range(20)])
    assert [x.stdout for x in r] == [f"{i}\n" for i in range(20)]


async def async_files(s):
    await asyncio.gather(*[s.files.write(f"a/{i}", str(i) * 1000) for i in range(10)])
    assert await s.files.read("a/7") == "7" * 1000
    events = []
    h = await s.files.watch_dir("a", on_event=lambda e: events.append(e.name))
    await s.files.write("a/new", "x")
    for _ in range(1200):
        if "new" in events:
            break
        await asyncio.sleep(0.05)
    assert "new" in events, events
    await h.stop()


async def async_background(s):
    out = []
    h = await s.commands.run("echo one; sleep 0.3; echo two", background=True, on_stdout=out.append)
    r = await h.wait()
    assert r.exit_code == 0 and "".join(out) == "one\ntwo\n", out


async def run_async():
    s = await AsyncSandbox.create(TEMPLATE, timeout=900)
    for fn in (both, async_files, async_background):
        try:
            await asyncio.wait_for(fn(s), 300)
            report(f"async {fn.__name__}")
        except Exception as e:
            report(f"async {fn.__name__}", e)
    try:
        assert await s.kill() is True
        report("async kill")
    except Exception as e:
        report("async kill", e)


def main():
    s = Sandbox.create(TEMPLATE, timeout=900, metadata={"py": "1"})
    for fn in (commands, streaming, background, pty, files, watch, signed, info, metrics, network, mcp):
        assert not inspect.iscoroutinefunction(fn)
        test(f"sync {fn.__name__}", fn, s)
    try:
        assert s.kill() is True and s.kill() is False
        report("sync kill")
    except Exception as e:
        report("sync kill", e)
    asyncio.run(run_async())
    finish()


main()
