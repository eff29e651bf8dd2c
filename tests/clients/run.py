#!/usr/bin/env python3
"""run.py - the real client packages, and a browser, against a real daemon; prints TAP.

Packages are pinned (package.json, requirements.txt) and cached in build-clients/ by the digest of those files. Where the
package index cannot be reached the programs that need it are skipped, with that reason.
"""
import contextlib
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
sys.path.insert(0, str(TOP / "tests/lib"))
sys.dont_write_bytecode = True
from daemon import Daemon  # noqa: E402
from packages import CACHE, node_of, npm_packages, python_packages  # noqa: E402

count = failures = 0


def tell(ok, name, skip=None, why=""):
    global count, failures
    count += 1
    failures += not ok
    for line in why.strip().splitlines()[-25:]:  # before the result: tests/run takes them as its notes
        print(f"# {line}", flush=True)
    print(f"{'ok' if ok else 'not ok'} {count} - {name}{f' # skip {skip}' if skip else ''}", flush=True)


ONLY = os.environ.get("HUTCH_CLIENT_PROGRAM")  # the only program to run, by its label: tests/run runs one again that failed


def program(label, args, env, seconds=1200):
    """Runs one client program and passes its TAP on, renumbered."""
    if ONLY not in (None, label):
        return
    start = time.monotonic()
    try:
        r = subprocess.run([str(a) for a in args], env={**os.environ, **env}, text=True, capture_output=True,
                           timeout=seconds, check=False, stdin=subprocess.DEVNULL)
        text, code = r.stdout, r.returncode
        tail = r.stderr[-1500:]
    except subprocess.TimeoutExpired as e:
        text, code, tail = (e.stdout or b"").decode(errors="replace"), 1, f"no end after {seconds} s"
    seen, bad, name, why = 0, 0, None, []

    def flush():
        nonlocal seen, bad
        if name:
            seen += 1
            bad += not name[0]
            tell(name[0], f"{label}: {name[1]}", skip=name[2], why="\n".join(why))
    for line in text.splitlines():
        if line.startswith(("ok ", "not ok ")):
            flush()
            title, _, skip = line.split(" - ", 1)[1].partition(" # skip ")
            name, why = (line.startswith("ok"), title, skip or None), []
        elif line.startswith("# "):
            why.append(line[2:])
    flush()
    print(f"# took {time.monotonic() - start:.1f} s: {label}", flush=True)
    if not seen or (code and not bad):
        tell(False, f"{label}: runs to its end", why=f"exit code {code}\n{tail}")


def clients(daemon, template, tls):
    env = {**daemon.env(tls), "TEMPLATE": template}
    how = f"{template}, {'https' if tls else 'http'}"
    npm, why = npm_packages()
    if npm:
        node = node_of(npm)
        for f in HERE.glob("*.mjs"):
            shutil.copy(f, npm)
        # The old SDK knows no URL for sandboxes, only a domain.
        for sdk in ("e2b", "e2b-old") if tls else ("e2b",):
            program(f"npm {sdk} ({how})", [node, npm / "sdk.mjs"], {**env, "E2B_SDK": sdk})
        program(f"npm e2b volumes ({how})", [node, npm / "volume.mjs"], env)
        if template == "base":
            program(f"npm e2b state ({how})", [node, npm / "state.mjs"], env)
            program(f"npm e2b builds ({how})", [node, npm / "template.mjs"], env, seconds=2400)
        program(f"@e2b/cli ({how})", [sys.executable, HERE / "cli.py", node, npm], env)
    elif not ONLY:
        tell(True, f"npm packages ({how})", skip=f"the npm registry cannot be reached: {' '.join(why.split())[-200:]}")
    venv, why = python_packages()
    if venv:
        program(f"python e2b ({how})", [venv / "bin/python", HERE / "sdk.py"], env)
        program(f"python e2b volumes ({how})", [venv / "bin/python", HERE / "volume.py"], env)
        if template == "base":
            program(f"python e2b state ({how})", [venv / "bin/python", HERE / "state.py"], env)
            program(f"python e2b builds ({how})", [venv / "bin/python", HERE / "template.py"], env, seconds=2400)
        if tls:
            program(f"browser ({how})", [venv / "bin/python", HERE / "browser.py"], env)
    elif not ONLY:
        tell(True, f"Python package ({how})", skip=f"the package index cannot be reached: {' '.join(why.split())[-200:]}")


@contextlib.contextmanager
def killing_front(daemon, shortest=0.7, longest=3.5):
    """kill -9 of front, again and again, until the block ends. The pauses differ, so that a call which takes long on a busy
    machine is interrupted too, but not for ever."""
    stop = threading.Event()

    def run():
        while not stop.wait(random.uniform(shortest, longest)):
            daemon.kill9("front")
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def wait_for_base(daemon, seconds=2400):
    """True once the template is built; it is kept for the next run."""
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        state = [line.split()[1] for line in daemon.cli("template", "ls").stdout.splitlines() if line.startswith("base ")]
        if state != ["building"] and state != ["missing"]:
            return state == ["ready"]
        time.sleep(1)
    return False


def main():
    CACHE.mkdir(exist_ok=True)
    with Daemon(tls=True, base=True, templates=CACHE / "templates") as d:
        clients(d, "host", False)
        clients(d, "host", True)
        npm, _ = npm_packages()
        if npm:
            with killing_front(d):
                program("npm e2b, front killed (host, http)", [node_of(npm), npm / "killed.mjs"],
                        {**d.env(False), "TEMPLATE": "host"})
        if ONLY and "(base" not in ONLY:
            pass
        elif wait_for_base(d):
            clients(d, "base", True)
        else:
            tell(False, "base: built by mmdebstrap", why=d.log())
    print(f"1..{count}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
