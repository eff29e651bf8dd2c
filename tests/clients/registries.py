"""registries.py - package managers and agents in `hutch run --preset`, from their real registries, each in a fresh home, as root and as the
ordinary user. Prints TAP. What cannot be reached, or is not installed, is skipped with that reason. HUTCH_SOAK=1: more tools, and agents."""
import ipaddress
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
from hutch_test import HUTCH, SOAK, Skip, identity  # noqa: E402

count = failed = 0
HOSTS = {"npm": ["registry.npmjs.org"], "pip": ["pypi.org", "files.pythonhosted.org"], "go": ["proxy.golang.org"],
         "cargo": ["index.crates.io", "static.crates.io"]}
reached = {}


def flags_for(host):
    """What a run needs to reach the host from this machine: nothing, or its private address. Raises OSError where it is out of reach."""
    if host not in reached:
        address = socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM)[0][4][0]
        with socket.create_connection((address, 443), 10) as s:
            ssl.create_default_context().wrap_socket(s, server_hostname=host).close()
        reached[host] = [] if ipaddress.ip_address(address).is_global else ["--allow-private", f"{host}={address}"]
    return reached[host]


class Place:
    """A fresh home and a project of one user, outside of /tmp, which is another one inside."""

    def __init__(self, who):
        self.ids, entry = identity(who)
        base = "/var/lib" if who == "root" else entry.pw_dir
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="hutch-registries-", dir=base))
        self.home, self.project = self.top / "home", self.top / "project"
        for p in (self.top, self.home, self.project):
            p.mkdir(exist_ok=True)
            os.chown(p, entry.pw_uid, entry.pw_gid)
        self.env = {"HOME": str(self.home), "USER": entry.pw_name, "LANG": "C.UTF-8", "PATH": "/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin"}

    def run(self, preset, *command, more=()):
        hosts = [f for h in HOSTS.get(preset, HOSTS["npm"] if preset == "pnpm" else HOSTS["pip"] if preset == "uv" else []) for f in flags_for(h)]
        r = subprocess.run([HUTCH, "run", "--preset", preset, *hosts, *more, "--", *map(str, command)], cwd=self.project, env=self.env, text=True,
                           capture_output=True, timeout=400, stdin=subprocess.DEVNULL, check=False, **self.ids)
        assert r.returncode == 0, f"{preset}: code {r.returncode}\n{r.stdout[-800:]}\n{r.stderr[-1200:]}"
        return r.stdout

    def made(self):
        return sorted(p.name for p in self.home.iterdir())

    def wants(self, program):
        if not shutil.which(program, path=self.env["PATH"]):
            raise Skip(f"{program} is not installed where this user finds it")


def npm(p):
    p.wants("npm")
    name = "express" if SOAK else "is-odd"
    p.run("npm", "npm", "install", name)
    assert (p.project / "node_modules" / name / "package.json").exists()
    assert p.made() == [".cache"], p.made()


def pip(p):
    p.run("pip", "/usr/bin/python3", "-m", "pip", "install", "--no-warn-script-location", "cowsay")
    assert "hi" in p.run("pip", "/usr/bin/python3", "-c", "import cowsay; cowsay.cow('hi')")


def go(p):
    p.wants("go")
    program = 'package main\nimport "github.com/pkg/errors"\nfunc main() { println(errors.New("went").Error()) }\n'
    (p.project / "m.go").write_text(program)
    p.run("go", "sh", "-c", "go mod init x && GONOSUMDB=* GOFLAGS=-mod=mod go get github.com/pkg/errors && " + ("go run ." if SOAK else "go list -m all"))
    assert p.made() == [".cache"], p.made()


def cargo(p):
    p.wants("cargo")
    p.run("cargo", "sh", "-c", "cargo init -q --name x . && cargo add -q itoa && cargo run -q")
    assert p.made() == [".cache"], p.made()


def cargo_of_root(p):
    """Where rustup lives in root's home, which is not the fresh one."""
    real = pathlib.Path("/root")
    if not (real / ".cargo/bin/cargo").exists():
        raise Skip("root has no cargo of rustup")
    p.env |= {"PATH": f"{real}/.cargo/bin:/usr/bin:/bin", "RUSTUP_HOME": f"{real}/.rustup"}
    p.run("cargo", "sh", "-c", "cargo init -q --name x . && cargo add -q itoa && cargo run -q",
          more=("--allow-read", real / ".cargo/bin", "--allow-read", real / ".rustup"))
    assert p.made() == [".cache"], p.made()


def uv_and_pnpm(p):
    p.wants("npm")
    p.run("pip", "/usr/bin/python3", "-m", "venv", "v")
    p.run("uv", "sh", "-c", "v/bin/pip install -q uv && v/bin/uv venv -q u && v/bin/uv pip install -q --python u/bin/python flask && u/bin/python -c 'import flask'")
    p.run("pnpm", "sh", "-c", "npm init -y >/dev/null; npm install -q pnpm@10 && ./node_modules/.bin/pnpm --version")


def agents(p):
    p.wants("npm")
    p.run("npm", "npm", "install", "--silent", "@anthropic-ai/claude-code", "@openai/codex", "@google/gemini-cli")
    for name in ("claude", "codex", "gemini"):
        program = p.project / "node_modules/.bin" / name
        assert p.run(name, program, "--version").strip(), name
        assert "Usage" in p.run(name, program, "--help") or name == "codex", name
        assert (p.home / ".local/share/hutch-run" / name).is_dir(), name


def check(name, fn, who):
    global count, failed
    count += 1
    place, start = None, time.monotonic()
    try:
        place = Place(who)
        fn(place)
        print(f"ok {count} - {name} [{who}]", flush=True)
        print(f"# {time.monotonic() - start:.1f} s", flush=True)
    except (Skip, OSError) as e:
        why = str(e) if isinstance(e, Skip) else f"the registry cannot be reached: {e}"
        print(f"ok {count} - {name} [{who}] # skip {why}", flush=True)
    except Exception as e:  # pylint: disable=broad-except
        failed += 1
        print(f"not ok {count} - {name} [{who}]", flush=True)
        for line in f"{type(e).__name__}: {e}".splitlines()[-25:]:
            print(f"# {line}", flush=True)
    finally:
        if place:
            shutil.rmtree(place.top, ignore_errors=True)


for who in ("root", "user"):
    check("npm installs", npm, who)
    check("pip installs", pip, who)
    check("go gets a module", go, who)
    check("cargo adds a crate and runs", cargo_of_root if who == "root" else cargo, who)
    if SOAK:
        check("uv and pnpm install", uv_and_pnpm, who)
        check("Claude Code, Codex and Gemini CLI start", agents, who)
print(f"1..{count}")
sys.exit(1 if failed else 0)
