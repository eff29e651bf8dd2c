"""A reader of the documentation: one shell per page, in a project of its own, on a node and an internet of the test.

    with shared_desk() as desk, desk.reader("docs/state.md") as reader:
        reader.read()           # runs every example of the page; raises with all that do not do what the page says

What the pages take for granted is in PROJECT (files in the current directory) and NAMES (hosts that exist on the internet). Ids, times and sizes
may differ from what is printed; an id that a page prints stands for the one that was really printed, also in later commands.
"""
import contextlib
import json
import os
import pathlib
import re
import select
import shutil
import subprocess
import tempfile
import time

import pages
from daemon import Daemon
from hutch_test import HUTCH_TEST, SOAK, TOP, Failed, skip
from internet import Internet, WebServer, at
from node_client import ask
from packages import framework_packages, node_of, npm_packages, python_packages
from shared import end_secrets, end_volumes, share
from small import fill

NAMES = ("pypi.org", "files.pythonhosted.org", "example.org", "api.llm.example", "api.model.example", "paste.example", "api.example", "policy.example",
         "code.example", "uploads.code.example", "registry.npmjs.org", "deb.debian.org")
HUTCH_NODE = os.environ.get("HUTCH_NODE_BIN", str(TOP / "build/hutch-node"))
SECONDS = 60  # for one command
REFUSED = re.compile(r'^\{"code": ?[45]\d\d\b|"egress_denied"', re.M)  # curl ends with 0 then
# What changes the machine of the test. Inside a sandbox it may.
MACHINE = re.compile(r"^(?!hutch (exec|create|run|try)\b).*\b(sudo|apt|apt-get|systemctl|systemd-run|journalctl|user(add|del|mod)|mmdebstrap|docker|"
                     r"hutch (serve|gc)|rm -rf /|make (deb|dist|install|uninstall|run|test)|install\.sh|pip3? install|npm (i|install)|npx|uvx)\b")

AGENT = """#!/bin/sh
exec curl -s -H "Authorization: Bearer ${LLM_API_KEY:-$OPENAI_API_KEY}" https://api.llm.example/v1/models
"""
MAKEFILE = """all:
\techo built >built
clean:
\trm -f built
install: all
\tmkdir -p out && cp built out/
"""
GIT = "git init -q . && git config user.name me && git config user.email me@example.org && git add job.py && git commit -qm first"
PROJECT = {  # name -> (text, mode)
    "agent.py": ("from e2b import Sandbox\nprint(Sandbox.create('host').commands.run('id -un').stdout)\n", 0o644),
    "job.py": ("print('done')\n", 0o644),
    "untrusted.py": ("print('harmless')\n", 0o644),
    "requirements.txt": ("", 0o644),
    "package.json": ('{"name": "project", "scripts": {"test": "echo tested"}}\n', 0o644),
    "Makefile": (MAKEFILE, 0o644),
    "Dockerfile": ("FROM base\nCOPY job.py /app/\nRUN echo prepared >/app/state\n", 0o644),
    "agent": (AGENT, 0o755), "train": ("#!/bin/sh\necho trained >../cache/model\n", 0o755), "job": ("#!/bin/sh\necho done\n", 0o755),
    "upload": ('#!/bin/sh\nexec curl -sf -H "Authorization: Bearer $TOKEN" https://uploads.code.example:8443/\n', 0o755),
    "key.txt": ("sk-0123456789abcdef\n", 0o600),
    "refactor.sh": ("#!/bin/sh\necho new >refactored\n", 0o755),
    "weights.bin": ("0123456789\n", 0o644), "token.txt": ("token-0123456789abcdef\n", 0o600),
    "app/server.py": ("import http.server\nhttp.server.test(http.server.SimpleHTTPRequestHandler, port=8080)\n", 0o644),
    "app/requirements.txt": ("", 0o644),
}
# What is the same on no two days; the pages have one of them. The first two keep their meaning in later commands.
LOOSE = [re.compile(p) for p in (
    r"\b(?:ap|dn|key|tx|bld)_[0-9a-f]{16}\b", r"\b(?=[a-z]*[0-9])[0-9a-z]{26}\b", r"\bsbx-[A-Za-z0-9]{32}\b", r"\b[0-9a-f]{64}\b",
    r":\d{4,5}\b", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z?", r"\d+(?:\.\d+)? ?(?:ms|s|min|h)\b", r"\d+(?:\.\d+)? (?:B|KiB|MiB|GiB)\b", r"\.\.\.", r"\s+")]
IDS = 3  # of these


def loose(line):
    """(pattern, the ids in it): a line of a page as a regular expression."""
    out, ids, place, line = "", [], 0, line.rstrip()
    while place < len(line):
        for number, pattern in enumerate(LOOSE):
            found = pattern.match(line, place)
            if found and found[0]:
                out += {len(LOOSE) - 1: r"\s+", len(LOOSE) - 2: ".*"}.get(number, "(" + pattern.pattern + ")" if number < IDS else pattern.pattern)
                ids += [found[0]] if number < IDS else []
                place = found.end()
                break
        else:
            out, place = out + re.escape(line[place]), place + 1
    return out, ids


def compare(printed, got):
    """The ids of the page and what stands for them; None if the output is another. A line `...` stands for any lines."""
    want, pattern, ids = printed.splitlines(), "", []
    for line in want:
        part, more = loose(line.strip() if printed.startswith("{") else line)  # JSON may be broken into lines
        pattern += r"(?:.*\n)*?" if line.strip() == "..." else part + (r"\s*" if printed.startswith("{") else r"[ \t]*\n")
        ids += more
    found = re.fullmatch(pattern + r"\s*", got.rstrip() + "\n")
    return dict(zip(ids, found.groups())) if found else None


class Desk:
    """The node, the internet, the programs and templates that the readers of all pages share."""

    def __init__(self, stack):
        self.net = stack.enter_context(Internet())
        self.dir = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hutch-desk-")))
        os.chmod(self.dir, 0o755)
        self.serve_names()
        (self.dir / "bin").mkdir()
        shutil.copy(HUTCH_TEST, self.dir / "bin/hutch")  # `hutch run` of this build finds the internet of the test
        shutil.copy(HUTCH_NODE, self.dir / "bin/hutch-node")
        shutil.copy(os.environ.get("HUTCH_CLIENT_BIN") or TOP / "build/hutch-client", self.dir / "bin/hutch-client")
        shutil.copytree(TOP / "share/presets", self.dir / "share/hutch/presets")
        config = self.net.config(None) + "  private: 10.20.0.0/16\n"  # of `egress`, its last section
        self.daemon = stack.enter_context(Daemon(hutch=self.dir / "bin/hutch", templates=self.make_templates(), config=config))
        self.path = [str(self.dir / "bin")]
        venv, why = python_packages()
        npm, why_npm = npm_packages()
        if not venv or not npm:
            skip(f"the package index cannot be reached: {' '.join((why or why_npm).split())[-200:]}")
        self.npm = npm
        (self.dir / "bin/node").symlink_to(shutil.which(node_of(npm)))
        self.path.append(str(venv / "bin"))

    def serve_names(self):
        net = self.net
        net.hosts.update({name: at(30) for name in NAMES})
        pem = net.context(net.ca.leaf("docs.test", *NAMES))
        for port, context in ((80, None), (443, pem), (8443, pem)):
            net.web[at(30), port] = net.start_server(WebServer((at(30), port), context))

    def make_templates(self):
        """`base` as the clients have built it; `small`, busybox alone."""
        where = pathlib.Path(os.environ.get("HUTCH_TEST_TEMPLATES") or TOP / "build-clients/templates")
        if not (where / "base/root").is_dir():
            skip("the template base is not built yet; tests/run --suite clients does it")
        templates = self.dir / "templates"
        (templates / "small/root").mkdir(parents=True)
        fill(templates / "small/root")
        os.chown(templates / "small/root/home/user", 1000, 1000)
        for name in ("base", "slim"):
            subprocess.run(["cp", "-al" if os.stat(where).st_dev == os.stat(templates).st_dev else "-a", where / "base", templates / name], check=True)
        return templates

    @contextlib.contextmanager
    def reader(self, page):
        with tempfile.TemporaryDirectory(prefix="hutch-reader-") as home:
            os.chmod(home, 0o755)
            reader = Reader(self, page, pathlib.Path(home))
            try:
                yield reader
            finally:
                reader.leave()


class Reader:
    def __init__(self, desk, page, home):
        self.desk, self.page, self.home, self.known, self.wrong, self.count = desk, page, home, {}, [], 0
        self.project = home / "project"
        for name, (text, mode) in PROJECT.items():
            file = self.project / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(mode)
        (home / "cache").mkdir()
        (home / "mail").mkdir()
        (home / "work").mkdir()
        fill(self.project / "rootfs")
        subprocess.run(["sh", "-c", GIT], cwd=self.project, check=True)
        (self.project / "node_modules").symlink_to(desk.npm / "node_modules")
        if page.startswith("examples/"):
            shutil.copytree((TOP / page).parent, self.project, dirs_exist_ok=True)
        self.shell = self.start_shell()

    def start_shell(self):
        self.answers, answers = os.pipe()
        env = {"PATH": ":".join([*self.desk.path, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]), "HOME": str(self.home), "USER": "root",
               "LOGNAME": "root", "LANG": "C.UTF-8", "TERM": "dumb", "TMPDIR": str(self.home / "work"), "HUTCH_URL": self.desk.daemon.url,
               "HUTCH_STATE": str(self.desk.daemon.state), "KEY": "sk-0123456789abcdef", "REAL_KEY": "sk-0123456789abcdef",
               "LLM_API_KEY": "sk-0123456789abcdef", "OPENAI_API_KEY": "sk-0123456789abcdef", "TOKEN": "token-0123456789abcdef",
               "XDG_CACHE_HOME": str(self.home / ".cache"), "PYTHONDONTWRITEBYTECODE": "1", **self.desk.net.env()}
        shell = subprocess.Popen(["bash", "--norc", "--noprofile"], cwd=self.project, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, pass_fds=[answers], start_new_session=True, text=True)
        shell.stdin.write(f"answers={answers}; unset HISTFILE\n")
        os.close(answers)
        return shell

    def leave(self):
        self.shell.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.shell.pid, 9)
        self.shell.wait()
        os.close(self.answers)

    def do(self, command, seconds=SECONDS):
        """(exit code, what it printed) of a command, in the page's shell. None: it did not end, and was killed."""
        self.count += 1
        script, out = self.home / f"work/{self.count}.sh", self.home / f"work/{self.count}.out"
        script.write_text(command + "\n")
        out.touch()
        self.shell.stdin.write(f". {script} </dev/null >{out} 2>&1; echo $? >&$answers\n")
        self.shell.stdin.flush()
        if select.select([self.answers], [], [], seconds)[0]:
            code = int(os.read(self.answers, 100).decode() or "-1")
        else:
            code = None
            self.leave()
            self.shell = self.start_shell()
        return code, out.read_text(errors="replace")

    def read(self, examples=None):
        for e in examples or pages.examples(self.page):
            if e.reason:
                continue
            before = len(self.wrong)
            if e.before:
                self.expect(e, e.before)
            how = e.how.split()[0] if e.how else e.kind
            getattr(self, f"do_{how}")(e)
            if len(self.wrong) > before and e.kind == "sh":
                break  # what follows uses what this should have made
        if self.wrong:
            raise Failed("\n".join(self.wrong))

    def miss(self, e, command, what, got=""):
        self.wrong.append(f"{e}: {what}\n  $ {command}\n" + "".join(f"    {line}\n" for line in got.splitlines()[-30:]))

    def do_sh(self, e):
        """Each command; what is printed below it decides, else its exit code."""
        todo = pages.commands(e.text)
        last = int(e.how.split()[-1]) if e.how.startswith("ends") else 0
        for number, (command, printed) in enumerate(todo):
            if MACHINE.search(command):
                self.miss(e, command, "it changes this machine; mark it: <!-- not run: REASON -->")
                continue
            for page_id, real in self.known.items():
                command = command.replace(page_id, real)
            file = re.fullmatch(r"cat (\S+)", command)
            if file and printed and not (self.project / file[1]).exists():
                (self.project / file[1]).write_text(printed + "\n")  # the page shows a file that the reader makes
            code, got = self.do(command)
            if code is None:
                self.miss(e, command, f"it does not end within {SECONDS} s", got)
            elif printed:
                same = compare(printed, got)
                self.known.update(same or {})
                if same is None:
                    self.miss(e, command, f"the page prints\n    {printed}\n  but it prints (exit code {code}):", got)
            elif code != (last if number == len(todo) - 1 else 0):
                self.miss(e, command, f"it ends with {code}", got)
            elif REFUSED.search(got) and "curl" in command:
                self.miss(e, command, "the answer is an error", got)

    do_ends = do_sh

    def do_stop(self, e):
        """Commands that run until they are stopped."""
        seconds = int(e.how.split()[2])
        for command, _ in pages.commands(e.text):
            code, got = self.do(f"timeout -s INT {seconds} {command}")
            if code not in (0, 124, 130):
                self.miss(e, command, f"it ends with {code} although it should run until it is stopped", got)

    def program(self, e, name, runner):
        (self.project / name).write_text(e.text)
        code, got = self.do(f"{runner} {name}")
        if code:
            self.miss(e, f"{runner} {name}", f"it ends with {code}", got)

    def do_python(self, e):
        self.program(e, "example.py", f"PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={TOP}/clients/python/src python3")

    def do_frameworks(self, e):
        if not SOAK:
            return  # they take seconds to load; tests/clients/frameworks.py has them in every run
        venv, why = framework_packages()
        if not venv:
            skip(f"the package index cannot be reached: {' '.join(why.split())[-200:]}")
        self.program(e, "example.py", f"{venv}/bin/python")

    def do_js(self, e):
        self.program(e, "example.cjs" if "require(" in e.text else "example.mjs", "node")

    def do_config(self, e):
        (self.project / "example.yaml").write_text(e.text)
        self.expect(e, "hutch config check example.yaml")

    def do_policy(self, e):
        (self.project / "example.yaml").write_text(e.text)
        self.expect(e, "hutch policy check example.yaml")

    def do_network(self, e):
        (self.project / "example.yaml").write_text(e.text)
        self.expect(e, "hutch kill $(hutch create --network example.yaml small)")

    def expect(self, e, command):
        code, got = self.do(command)
        if code:
            self.miss(e, command, f"it ends with {code}", got)

    def do_secret(self, e):
        """One or more specifications of secrets."""
        d, decoder, text = self.desk.daemon, json.JSONDecoder(), e.text.strip()
        while text:
            spec, end = decoder.raw_decode(text)
            text = text[end:].lstrip()
            has = {} if spec.get("inject", {}).get("type") == "headers" else {"value": "value-0123456789"}
            made = ask(d, "POST", "/v1/secrets", {"name": "example", "spec": spec, **has})
            ask(d, "DELETE", "/v1/secrets/example")
            if made.status not in (200, 201):
                self.miss(e, "POST /v1/secrets", f"status {made.status}", str(made))

    def do_keys(self, e):
        file = self.project / e.how.split()[-1]
        missing = keys_missing(json.loads(e.text), json.loads(file.read_text()))
        if missing:
            self.miss(e, f"jq . {file.name}", f"it has no {', '.join(missing)}", file.read_text())


def keys_missing(want, got, path=""):
    """The keys of an object that another one has not, also of objects and first elements below."""
    if isinstance(want, dict):
        if not isinstance(got, dict):
            return [path]
        return [m for k, v in want.items() for m in (keys_missing(v, got[k], f"{path}.{k}") if k in got else [f"{path}.{k}"])]
    if isinstance(want, list) and want and isinstance(got, list):
        return keys_missing(want[0], got[0], path + "[0]") if got else []
    return []


@contextlib.contextmanager
def make_desk():
    with contextlib.ExitStack() as stack:
        desk = Desk(stack)
        yield desk


def clean_desk(desk):
    for t in ask(desk.daemon, "GET", "/v1/templates").json["templates"]:
        if t["kind"] != "directory":
            desk.daemon.cli("template", "rm", t["name"])
    end_volumes(desk.daemon)
    end_secrets(desk.daemon)


def shared_desk():
    return share(("desk",), make_desk, clean_desk)
