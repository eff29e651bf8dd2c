"""Unmodified programs in a sandbox against servers on the loopback, through the proxy that looks into TLS: each trusts what it
must, gets what is allowed and can read the refusal of what is not."""
import base64
import contextlib
import hashlib
import io
import json
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import zipfile

from daemon import Daemon
from hutch_test import SOAK, check_equal, check_in, skip
from internet import Internet
from node_client import patient, sh
from shared import end_sandboxes, share


def wheel(root):
    """A package index with one wheel."""
    d = root / "simple/tinything"
    d.mkdir(parents=True)
    name = "tinything-1.0-py3-none-any.whl"
    with zipfile.ZipFile(d / name, "w") as z:
        z.writestr("tinything.py", "print('tiny')\n")
        z.writestr("tinything-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinything\nVersion: 1.0\n")
        z.writestr("tinything-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("tinything-1.0.dist-info/RECORD", "")
    (d / "index.html").write_text(f"<a href='{name}'>{name}</a>")


def tarball(root):
    """An npm registry with one package."""
    (root / "npm").mkdir()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as t:
        text = json.dumps({"name": "tinything", "version": "1.0.0", "main": "i.js"}).encode()
        for path, data in (("package/package.json", text), ("package/i.js", b"module.exports = 42\n")):
            info = tarfile.TarInfo(path)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    data = raw.getvalue()
    (root / "npm/tinything-1.0.0.tgz").write_bytes(data)
    dist = {"tarball": "https://files.test/f/npm/tinything-1.0.0.tgz", "integrity": "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()}
    (root / "npm/tinything").mkdir()
    (root / "npm/tinything/index.html").write_text(json.dumps({"name": "tinything", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {
        "name": "tinything", "version": "1.0.0", "dist": dist}}}))


def repository(root):
    """A git repository for plain HTTP."""
    work = root / "work"
    work.mkdir()
    (work / "a").write_text("from git\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(work)]
    for args in (["init", "-q"], ["add", "a"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *args], check=True, capture_output=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(root / "repo.git")], check=True, capture_output=True)
    subprocess.run(["git", "-C", str(root / "repo.git"), "update-server-info"], check=True)


def packages(root):
    """A Debian repository with nothing in it but its lists."""
    d = root / "debian/dists/test/main/binary-amd64"
    d.mkdir(parents=True)
    entry = "Package: tinything\nVersion: 1.0\nArchitecture: all\nMaintainer: T <t@t>\nFilename: pool/tinything.deb\nSize: 0\nDescription: tiny\n\n"
    (d / "Packages").write_text(entry)
    digest = hashlib.sha256(entry.encode()).hexdigest()
    (root / "debian/dists/test/Release").write_text(
        f"Origin: t\nSuite: test\nCodename: test\nDate: Sun, 01 Nov 2026 00:00:00 UTC\nArchitectures: amd64\nComponents: main\nSHA256:\n {digest} {len(entry)} main/binary-amd64/Packages\n")


def cargo():
    """The program itself, also if rustup's stands in its place; None: there is none that knows sparse registries."""
    found = shutil.which("cargo")
    if found and shutil.which("rustup"):
        r = subprocess.run(["rustup", "which", "cargo"], capture_output=True, text=True)
        found = r.stdout.strip() if r.returncode == 0 else found
    version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout.split()[1:2] if found else []
    return found if version and tuple(map(int, version[0].split(".")[:2])) >= (1, 68) else None


def crates(root):
    """A sparse registry with one crate, and cargo itself: where rustup put it, no sandbox sees it."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as t:
        for path, data in (("Cargo.toml", b'[package]\nname = "tinything"\nversion = "1.0.0"\nedition = "2021"\n'), ("src/lib.rs", b"pub const TINY: u8 = 42;\n")):
            info = tarfile.TarInfo("tinything-1.0.0/" + path)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    (root / "index/ti/ny").mkdir(parents=True)
    (root / "index/config.json").write_text(json.dumps({"dl": "https://files.test/f/crates/{crate}-{version}.crate"}))
    (root / "index/ti/ny/tinything").write_text(json.dumps({"name": "tinything", "vers": "1.0.0", "deps": [], "features": {}, "yanked": False,
                                                            "cksum": hashlib.sha256(raw.getvalue()).hexdigest()}) + "\n")
    (root / "crates").mkdir()
    (root / "crates/tinything-1.0.0.crate").write_bytes(raw.getvalue())
    if cargo():
        (root / "cargo").symlink_to(cargo())


@contextlib.contextmanager
def world():
    """An internet with these files, and a node."""
    root = pathlib.Path(tempfile.mkdtemp(prefix="hutch-www-"))
    try:
        for make in (wheel, tarball, repository, packages, crates):
            make(root)
        with Internet(files=root) as net, Daemon(config=net.config()) as d:
            yield d
    finally:
        shutil.rmtree(root, ignore_errors=True)


def inside(program, script, timeout=400):
    """What the script printed in a sandbox that may reach two hosts."""
    if not shutil.which(program):
        skip(f"{program} is not installed on this machine")
    rules = [{"id": "files", "hosts": ["files.test"], "http": [{"methods": ["GET", "HEAD"], "paths": ["/f/**"]}]},
             {"id": "api", "hosts": ["api.test"], "http": [{"methods": ["GET", "POST"], "paths": ["/echo"]}]}]
    with share("clients", world, end_sandboxes) as d:
        a = patient(d, "POST", "/v1/sandboxes", {"template": "host", "network": {"rules": rules}, "timeout": 1200})
        check_equal(a.status, 201, a)
        return sh(d, a.json, script, timeout=timeout)


def test_curl_and_wget():
    "curl and wget get what is allowed and print the refusal of the rest"
    r = inside("curl", "curl -sS https://api.test/echo | head -c 60; echo; curl -sS https://files.test/other")
    check_in('"method": "GET"', r.text, r)
    check_in("path_not_allowed", r.text, r)
    if shutil.which("wget"):
        check_in('"/echo"', inside("wget", "wget -qO- https://api.test/echo").text)


def test_git():
    "git clones over https"
    r = inside("git", "rm -rf repo; git clone -q https://files.test/f/repo.git repo && cat repo/a")
    check_equal(r.text.strip(), "from git", r)


def test_python():
    "Python's urllib verifies and reads, and a refusal is an HTTPError with the reason"
    r = inside("python3", """python3 - <<'X'
import json, urllib.request, urllib.error
print(json.load(urllib.request.urlopen("https://api.test/echo", timeout=60))["method"])
try: urllib.request.urlopen("https://other.test/", timeout=60)
except urllib.error.HTTPError as e: print(e.code, json.load(e)["error"]["reason"])
X""")
    check_equal(r.text.split(), ["GET", "403", "host_not_allowed"], r)


def test_pip():
    "pip downloads from an index over https"
    r = inside("pip3", "rm -rf w; PIP_CONFIG_FILE=/dev/null python3 -m pip download -q --no-deps --disable-pip-version-check -i https://files.test/f/simple/ -d w tinything && ls w")
    check_in("tinything-1.0-py3-none-any.whl", r.text, r)


def test_node_and_npm():
    "Node's fetch and https, and npm install"
    r = inside("node", """node -e 'fetch("https://api.test/echo").then(r => r.json()).then(j => { console.log(j.method)
  require("https").get("https://api.test/echo", (r) => { console.log(r.statusCode); r.resume() }) })'""")
    check_equal(r.text.split(), ["GET", "200"], r)
    r = inside("npm", """rm -rf n; mkdir n && cd n && echo '{}' >package.json && npm_config_userconfig=/dev/null npm install --no-audit --no-fund --silent --cache /tmp/npm-cache \\
  --registry https://files.test/f/npm/ tinything && node -p 'require("tinything")'""")
    check_in("42", r.text, r)


def test_cargo():
    "cargo reads a sparse registry and downloads a crate over https"
    if not cargo():
        skip("no cargo of version 1.68 or later is installed on this machine")
    r = inside("curl", """rm -rf c; mkdir -p c/.cargo c/src && cd c && curl -sSo cargo https://files.test/f/cargo && chmod +x cargo && touch src/lib.rs
printf '[registries.tiny]\\nindex = "sparse+https://files.test/f/index/"\\n' >.cargo/config.toml
printf '[package]\\nname = "x"\\nversion = "0.1.0"\\nedition = "2021"\\n[dependencies]\\ntinything = {version = "1", registry = "tiny"}\\n' >Cargo.toml
CARGO_HOME=$PWD/home ./cargo vendor 2>&1; cat vendor/tinything/src/lib.rs
sed -i 's/index = .*/index = "sparse+https:\\/\\/other.test\\/"/' .cargo/config.toml; CARGO_NET_RETRY=0 CARGO_HOME=$PWD/home2 ./cargo vendor 2>&1""")
    check_in("TINY: u8 = 42", r.text, r)
    check_in("403", r.text, r)
    check_in("host_not_allowed", r.text, r)


def test_apt():
    "apt reads a repository over https"
    r = inside("apt-get", """rm -rf a; mkdir -p a/state/lists/partial a/cache/archives/partial a/etc; echo 'deb [trusted=yes] https://files.test/f/debian test main' >a/etc/s.list
O="-o Dir::State=$PWD/a/state -o Dir::Cache=$PWD/a/cache -o Dir::Etc::SourceList=$PWD/a/etc/s.list -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::Parts=/dev/null -o Dir::State::status=/dev/null -o APT::Sandbox::User= -o Dir::Log=$PWD/a"
apt-get $O update 2>&1 | tail -3; apt-cache $O policy tinything""")
    check_in("Candidate: 1.0", r.text, r)


def test_java():
    "Java trusts the sandbox's authority through its own trust store"
    r = inside("java", """cat >Fetch.java <<'X'
public class Fetch { public static void main(String[] a) throws Exception {
  var c = java.net.http.HttpClient.newHttpClient();
  var r = c.send(java.net.http.HttpRequest.newBuilder(java.net.URI.create("https://api.test/echo")).build(), java.net.http.HttpResponse.BodyHandlers.ofString());
  System.out.println(r.statusCode() + " " + r.version()); } }
X
java Fetch.java""")
    check_in("200", r.text, r)


def test_go():
    "Go's client verifies and speaks HTTP/2 to the proxy"
    if not SOAK:
        skip("compiling Go's network packages takes a minute; `make soak` does it")
    r = inside("go", f"PATH=$PATH:{pathlib.Path(shutil.which('go') or '/').resolve().parent}\n" + """mkdir -p g && cd g && cat >m.go <<'X'
package main
import ("fmt"; "net/http")
func main() { r, err := http.Get("https://api.test/echo"); if err != nil { fmt.Println(err); return }; fmt.Println(r.StatusCode, r.Proto) }
X
GOFLAGS=-mod=mod GO111MODULE=off GOCACHE=/tmp/gocache GOPATH=/tmp/gopath go run m.go""")
    check_equal(r.text.split(), ["200", "HTTP/2.0"], r)


def test_chromium():
    "a browser inside shows a page over http and, with the authority in its store, over https"
    if not shutil.which("certutil"):
        skip("certutil (libnss3-tools) is not installed on this machine")
    r = inside("chromium", """mkdir -p $HOME/.pki/nssdb && certutil -N -d sql:$HOME/.pki/nssdb --empty-password && certutil -A -d sql:$HOME/.pki/nssdb -t C,, -n hutch -i /etc/hutch/ca.pem
for u in http://api.test/echo https://api.test/echo https://other.test/; do
  timeout 150 chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir=/tmp/c --virtual-time-budget=5000 --dump-dom $u \\
    2>/dev/null | tr -d '\\n' | head -c 4000; echo; done""", timeout=500)
    lines = r.text.splitlines()
    check_in("/echo", lines[1], r)
    check_in("host_not_allowed", lines[2], r)
