#!/usr/bin/env python3
"""run.py - the real client packages, and a browser, against a real daemon; prints TAP.

Packages are pinned (package.json, requirements.txt) and cached in build-clients/ by the digest of those files. Where the
package index cannot be reached the programs that need it are skipped, with that reason.
"""
import contextlib
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
sys.path.insert(0, str(TOP / "tests/lib"))
sys.dont_write_bytecode = True
from code_template import CODE, READY, build_code_template  # noqa: E402
from daemon import Daemon  # noqa: E402
from packages import CACHE, agents_npm, daytona_npm, daytona_python, framework_packages, inspect_packages, node_of, npm_packages, python_packages  # noqa: E402

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


def frameworks(how, env):
    venv, why = framework_packages()
    if venv:
        program(f"agent frameworks ({how})", [venv / "bin/python", HERE / "frameworks.py"], env)
    elif not ONLY:
        tell(True, f"agent frameworks ({how})", skip=f"the package index cannot be reached: {' '.join(why.split())[-200:]}")


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
            frameworks(how, env)
        if tls:
            program(f"browser ({how})", [venv / "bin/python", HERE / "browser.py"], env)
    elif not ONLY:
        tell(True, f"Python package ({how})", skip=f"the package index cannot be reached: {' '.join(why.split())[-200:]}")


SOAK = os.environ.get("HUTCH_SOAK") == "1"


def code_clients(daemon, name="code-interpreter-v1"):
    """The packages for code interpreters. Their default template has this name."""
    if ONLY and "(code" not in ONLY:
        return
    try:
        why = build_code_template(daemon, name)
    except subprocess.CalledProcessError as e:
        tell(False, "code: the template is built", why=e.stdout + e.stderr)
        return
    if why:
        tell(True, "code interpreter", skip=why)
        return
    env = {**daemon.env(True), "TEMPLATE": name}
    npm, venv = npm_packages()[0], python_packages()[0]
    if SOAK and venv:
        code_full(daemon, env, venv)
    program("native code (code, http)", [sys.executable, HERE / "code_native.py"],
            {**env, "HUTCH": daemon.hutch, "HUTCH_URL": daemon.url, "HUTCH_API_KEY": daemon.key, "HUTCH_DAEMON_PID": str(daemon.proc.pid)})
    if npm:
        program("npm @e2b/code-interpreter (code, https)", [node_of(npm), npm / "code.mjs"], env)
    if venv:
        program("python e2b-code-interpreter (code, https)", [venv / "bin/python", HERE / "code.py"], env)


def own_clients(daemon):
    """Our own clients' backends for frameworks (clients/)."""
    if ONLY and "(own" not in ONLY:
        return
    env = {"HUTCH_URL": daemon.url, "HUTCH_API_KEY": daemon.key, "TEMPLATE": "base", "HUTCH_SDK": str(TOP / "clients/python/src")}
    venv, why = daytona_python()  # it has deepagents and the suite
    if venv:
        program("deepagents, our Python backend (own)", [venv / "bin/python", HERE / "own_deepagents.py"], env)
    elif not ONLY:
        tell(True, "deepagents, our Python backend (own)", skip=f"the package index cannot be reached: {' '.join(why.split())[-200:]}")
    if SOAK:
        venv, why = inspect_packages()
        if venv:
            program("Inspect (own)", [venv / "bin/python", HERE / "own_inspect.py"], env)
        else:
            tell(True, "Inspect (own)", skip=f"the package index cannot be reached: {' '.join(why.split())[-200:]}")
    agents_program("our JavaScript client and deepagents backend (own)", "own.mjs", env)


def agents_program(name, file, env):
    """A program that finds deepagents for JavaScript and our own package."""
    if ONLY not in (None, name):
        return
    npm, why = agents_npm()
    if not npm:
        tell(True, name, skip=f"the npm registry cannot be reached: {' '.join(why.split())[-200:]}")
        return
    for one in (file, "tap.mjs", "scripted.mjs"):
        shutil.copy(HERE / one, npm)
    shutil.rmtree(npm / "node_modules/hutch-sdk", ignore_errors=True)
    shutil.copytree(TOP / "clients/javascript", npm / "node_modules/hutch-sdk")
    program(name, [node_of(npm), npm / file], env)


def daytona_clients(daemon):
    """Daytona's SDKs, pointed at the node by their two variables."""
    if ONLY and "(daytona" not in ONLY:
        return
    env = {**dict(re.findall(r"^export ([A-Z_]+)='([^']*)'$", daemon.cli("env", "daytona").stdout, re.M)), "TEMPLATE": "base"}
    venv, why = daytona_python()
    if venv:
        python = venv / "bin/python"
        program("python daytona (daytona)", [python, HERE / "daytona_sdk.py"], env)
        program("python langchain-daytona, deepagents (daytona)", [python, HERE / "daytona_agent.py"], env)
        if SOAK:
            program("langchain-tests (daytona)", [python, HERE / "daytona_suite.py"], env)
    else:
        tell(True, "Daytona's Python packages", skip=f"the package index cannot be reached: {' '.join(why.split())[-200:]}")
    npm, why = daytona_npm()
    if npm:
        shutil.copy(HERE / "daytona.mjs", npm)
        for sdk in ("sdk-old", "sdk-new"):
            program(f"npm @daytonaio/sdk, {sdk} (daytona)", [node_of(npm), npm / "daytona.mjs"], {**env, "DAYTONA_SDK": sdk})
        agents_program("npm @langchain/daytona, deepagents (daytona)", "daytona_agent.mjs", env)
    else:
        tell(True, "Daytona's npm packages", skip=f"the npm registry cannot be reached: {' '.join(why.split())[-200:]}")


def code_full(daemon, env, venv):
    """The template as it ships, which needs a network; then the same from its export, under another name."""
    with tempfile.TemporaryDirectory(prefix="hutch-code-full-") as d:
        context, archive = f"{d}/context", f"{d}/archive"
        shutil.copytree(TOP / "share/templates/code-interpreter", context)
        shutil.copy(CODE, f"{context}/hutch-code")
        r = daemon.cli("template", "build", "-t", "code-full", "--memory", "2G", "--ready", READY, context, check=False, timeout=2400)
        if r.returncode:
            tell(False, "code: the full template is built", why=r.stdout + r.stderr)
            return
        program("all languages (code full, https)", [venv / "bin/python", HERE / "code_full.py"], {**env, "TEMPLATE": "code-full"})
        daemon.cli("template", "export", "-o", archive, "code-full", timeout=1200)
        daemon.cli("template", "restore", "-t", "code-restored", archive, timeout=1200)
        box = daemon.cli("create", "code-restored").stdout.strip()
        r = daemon.cli("code", box, "-c", "import pandas; 6 * 7", check=False)
        tell(r.stdout == "42\n", "code: the full template works from one file", why=r.stderr)
        daemon.cli("kill", box)


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
    """True once the template is built; it is kept for the next run. Only `make soak` builds the real one, whose packages take minutes;
    otherwise `base` is a copy of `slim`, which the same builder makes."""
    templates = CACHE / "templates"
    if not SOAK and not (templates / "base").exists():
        if subprocess.run([daemon.hutch, "template", "wait", "slim"], env={**os.environ, **daemon.env(False), "HUTCH_URL": daemon.url,
                                                                           "HUTCH_API_KEY": daemon.key}, timeout=seconds).returncode:
            return False
        subprocess.run(["cp", "-a", templates / "slim", templates / ".copy"], check=True)
        (templates / ".copy").rename(templates / "base")
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        state = [line.split()[1] for line in daemon.cli("template", "ls").stdout.splitlines() if line.startswith("base ")]
        if state != ["building"] and state != ["missing"]:
            return state == ["ready"]
        time.sleep(1)
    return False


def main():
    CACHE.mkdir(exist_ok=True)
    program("package managers in hutch run", [sys.executable, HERE / "registries.py"], {})
    with Daemon(tls=True, base="auto" if SOAK else "slim", templates=CACHE / "templates") as d:
        clients(d, "host", False)
        clients(d, "host", True)
        npm, _ = npm_packages()
        if npm:
            with killing_front(d):
                program("npm e2b, front killed (host, http)", [node_of(npm), npm / "killed.mjs"],
                        {**d.env(False), "TEMPLATE": "host"})
        if ONLY and not any(word in ONLY for word in ("(base", "(code", "(daytona", "(own")):
            pass
        elif wait_for_base(d):
            clients(d, "base", True)
            code_clients(d)
            daytona_clients(d)
            own_clients(d)
        else:
            tell(False, "base: built by mmdebstrap", why=d.log())
    print(f"1..{count}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
