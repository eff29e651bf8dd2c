"""cli.py NODE DIR - what users of @e2b/cli do. Prints TAP."""
import json
import os
import pty
import re
import select
import subprocess
import sys
import time

NODE, DIR = sys.argv[1:3]
TEMPLATE = os.environ["TEMPLATE"]
count = failed = 0


def e2b(*args, code=0, stdin=None):
    r = subprocess.run([NODE, f"{DIR}/node_modules/@e2b/cli/dist/index.js", *args], text=True, capture_output=True,
                       timeout=300, input=stdin, check=False)
    assert code is None or r.returncode == code, f"{args}: code {r.returncode}\n{r.stdout}{r.stderr}"
    return r.stdout + r.stderr


def check(name, fn):
    global count, failed
    count += 1
    try:
        fn()
        print(f"ok {count} - {name}", flush=True)
    except Exception as e:  # pylint: disable=broad-except
        failed += 1
        print(f"not ok {count} - {name}", flush=True)
        for line in f"{type(e).__name__}: {e}".splitlines()[-15:]:
            print(f"# {line}", flush=True)


def ids():
    return [s["sandboxId"] for s in json.loads(re.search(r"\[.*\]", e2b("sandbox", "list", "--format", "json"), re.S)[0])]


def detached():
    out = e2b("sandbox", "create", TEMPLATE, "--detach")
    return re.search(r"\b([a-z0-9]{20,40})\b", out)[1]


def life():
    one = detached()
    assert one in ids()
    assert one in e2b("sandbox", "info", one)
    e2b("sandbox", "kill", one)
    assert one not in ids()


def run_commands():
    one = detached()
    try:
        assert "hi there" in e2b("sandbox", "exec", one, "echo", "hi there")
        e2b("sandbox", "exec", one, "--", "sh", "-c", "exit 5", code=5)
        assert "piped" in e2b("sandbox", "exec", one, "cat", stdin="piped\n")
    finally:
        e2b("sandbox", "kill", one)


def terminal():
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(NODE if "/" in NODE else "/usr/bin/env", [NODE, f"{DIR}/node_modules/@e2b/cli/dist/index.js", "sandbox",
                 "create", TEMPLATE] if "/" in NODE else ["env", NODE, f"{DIR}/node_modules/@e2b/cli/dist/index.js",
                 "sandbox", "create", TEMPLATE])
    out, stop, sent = b"", time.monotonic() + 180, 0
    while time.monotonic() < stop:
        if select.select([fd], [], [], 0.2)[0]:
            try:
                out += os.read(fd, 65536)
            except OSError:
                break
        if sent == 0 and (b"$ " in out or b"# " in out):
            os.write(fd, b"echo in-$((6*7)); exit\n")
            sent = 1
    os.waitpid(pid, 0)
    assert b"in-42" in out, out[-800:]


def listing():
    assert TEMPLATE in e2b("template", "list")


check("create, list, info, kill", life)
check("exec: output, exit code, piped stdin", run_commands)
check("create opens a terminal", terminal)
check("template list", listing)
print(f"1..{count}")
sys.exit(1 if failed else 0)
