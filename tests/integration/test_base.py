"""The node's own templates: how `slim` and `base` are built, interrupted and continued, and what works inside `base`.

The builds need mmdebstrap and a mirror of Debian; `base` takes minutes and is built by `make soak`. Registries that this machine reaches at
reserved addresses (a proxy, split DNS) count as public for the node here."""
import json
import os
import shutil
import socket
import time

from daemon import Daemon
from hutch_test import check, check_equal, check_in, is_root, skip


def need(*hosts):
    """What the node's configuration has to say about these hosts, which must be reachable."""
    if not is_root():
        skip("needs root")
    if not shutil.which("mmdebstrap"):
        skip("needs mmdebstrap")
    networks = set()
    for host in hosts:
        try:
            address = socket.gethostbyname(host)
            socket.create_connection((address, 443), timeout=10).close()
        except OSError as e:
            skip(f"{host} cannot be reached: {e}")
        networks.add(".".join(address.split(".")[:3]) + ".0/24")
    return "egress:\n  test_loopback: " + ",".join(sorted(networks)) + "\n"


def state_of(d, name):
    rows = json.loads(d.cli("template", "ls", "--json").stdout)["templates"]
    return next(((t["state"], t.get("text", "")) for t in rows if t["name"] == name), ("", ""))


def wait_for(d, name, seconds, until=lambda state, text: state != "building"):
    stop, seen = time.monotonic() + seconds, []
    while time.monotonic() < stop:
        state, text = state_of(d, name)
        if not seen or seen[-1] != text:
            seen.append(text)
        if until(state, text):
            return state, seen
        time.sleep(0.5)
    raise AssertionError(f"{name}: {state_of(d, name)} after {seconds} s\n{d.log()}")


def inside(d, b, command, fails=False):
    r = d.cli("exec", b, "--", "bash", "-c", command, timeout=600, check=False)
    if not fails:
        check(r.returncode == 0, f"{command}: {r.returncode}\n{r.stdout[-1500:]}\n{r.stderr[-1500:]}")
    return r.stdout + r.stderr


def test_mirrors_with_passwords():
    "a mirror with a password is refused, with the line that has it, before anything is fetched"
    if not is_root():
        skip("needs root")
    with Daemon() as plain:
        home = plain.dir
        cases = {"pip": ("[global]\nindex-url = https://me:secret@pypi.example/simple\n", "line 2 of"),
                 "npm": ("# a comment with _auth\nregistry=https://npm.example/\n//npm.example/:_authToken=abc\n", "line 3 of")}
        for key, (text, want) in cases.items():
            file = home / f"{key}.conf"
            file.write_text(text)
            with Daemon(base="slim", config=f"mirrors:\n  {key}: {file}\n") as d:
                state, seen = wait_for(d, "slim", 30)
                check_equal(state, "error")
                check_in(f"mirrors.{key}: {want}", seen[-1])
                check("secret" not in seen[-1] and "abc" not in seen[-1], seen[-1])
                check(not (d.state / "templates/.fetched").exists(), "something was fetched")
        (home / "apt").mkdir()
        with Daemon(base="slim", config=f"mirrors:\n  apt: {home}/apt\n") as d:
            state, seen = wait_for(d, "slim", 30)
            check_in("has no file that ends in .list or .sources", seen[-1])


def test_slim_is_interrupted():
    "slim: the build tells how far it is, a node that is stopped in the middle leaves no mount, and the next one goes on with what it fetched"
    need("deb.debian.org")
    seen_outside = set()  # what apt keeps for a moment would stay if the builder were killed in that moment

    def installing(_, text):
        for _ in range(50):
            seen_outside.update(os.listdir(outside))
            time.sleep(0.01)
        return "installing" in text
    node = Daemon(base="slim")
    outside = node.dir / "tmpdir"
    outside.mkdir()
    node.environ = {"TMPDIR": str(outside)}
    with node as d:
        wait_for(d, "slim", 300, installing)
        check_equal(seen_outside, set())
        fetched = d.state / "templates/.fetched/archives"
        first = {f.name: f.stat().st_mtime_ns for f in fetched.glob("*.deb")}
        check(len(first) > 50, f"{len(first)} packages")
        d.stop()
        check(str(d.dir) not in "".join(m for m in open("/proc/mounts") if "templates" in m), "a mount is left")
        again = {f.name: f.stat().st_mtime_ns for f in fetched.glob("*.deb")}
        check_equal(again, first)
        d.start()
        state, seen = wait_for(d, "slim", 600)
        check_equal(state, "ready")
        steps = [int(s.split(" ")[0]) for s in seen if s]
        check_equal(steps, sorted(steps))
        check(len(set(steps)) > 5, f"{seen}")
        stop = time.monotonic() + 60  # what was downloaded is removed after the template is ready
        while (left := sorted(p.name for p in (d.state / "templates").iterdir())) != [".base.lock", "slim"] and time.monotonic() < stop:
            time.sleep(0.1)
        check_equal(left, [".base.lock", "slim"])
        check_equal(state_of(d, "base")[0], "missing")
        b = d.cli("create", "slim").stdout.strip()
        check_in("42", inside(d, b, "python3 -c 'print(6 * 7)' && sudo id -u && git --version"))


TOOLS = ("python3 python pip node npm npx gcc g++ make git curl wget vim nano jq unzip zip less ps ip file sqlite3 rg sudo ssh rsync tree "
         "strace lsof ping nc patch xz bzip2 gpg pkg-config")


def test_base_is_a_computer():
    "base: its tools are there; pip, npm and apt install in it; the operator's files for pip and npm hold inside"
    if os.environ.get("HUTCH_SOAK") != "1":
        skip("builds base, which takes minutes; `make soak` runs it")
    network = need("deb.debian.org", "pypi.org", "registry.npmjs.org")
    with Daemon() as other:
        (other.dir / "pip.conf").write_text("[global]\ntimeout = 61\n")
        (other.dir / "npmrc").write_text("registry=https://registry.npmjs.org/\nfund=false\n")
        with Daemon(base="auto", config="files: auto\n" + network + f"mirrors:\n  pip: {other.dir}/pip.conf\n  npm: {other.dir}/npmrc\n") as d:
            begun = time.monotonic()
            state, seen = wait_for(d, "base", 1500)
            check_equal((state, seen[-1:]), ("ready", [""]))
            print(f"# base took {time.monotonic() - begun:.0f} s", flush=True)
            b = d.cli("create", "--network", "public", "--timeout", "20m", "base").stdout.strip()
            check_equal(inside(d, b, f"for t in {TOOLS}; do command -v $t >/dev/null || echo $t; done"), "")
            check(int(inside(d, b, "node -p 'process.versions.node.split(\".\")[0]'")) >= 22, "node is old")
            check_in("timeout='61'", inside(d, b, "pip config list"))
            check_equal(inside(d, b, "npm config get fund").strip(), "false")
            inside(d, b, "pip install -q flask && flask --version")
            inside(d, b, "python -m venv v && v/bin/pip install -q idna && v/bin/python -c 'import idna'")
            inside(d, b, "mkdir n && cd n && npm install --silent express && node -e 'require(\"express\")'")
            inside(d, b, "npm install -g --silent cowsay && cowsay hi")
            inside(d, b, "node -e 'fetch(\"https://registry.npmjs.org/is-odd\").then(r => process.exit(r.ok ? 0 : 1))'")
            inside(d, b, "sudo apt-get install -y cowsay && /usr/games/cowsay hi")
            inside(d, b, "echo 'int main(void) { return 0; }' >x.c && gcc -o x x.c && ./x")
            d.cli("kill", b)
