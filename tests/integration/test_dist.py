"""What needs no compiler: the archive and its installer, the wheel, the npm package; each made from build/, installed without a network,
and used. On a fresh machine: fresh_root.sh."""
import base64
import csv
import functools
import hashlib
import io
import json
import pathlib
import re
import shutil
import zipfile

from hutch_test import SOAK, TOP, check, check_equal, check_in, eventually, is_root, run, skip, switches_in, workspace, write
from node import node


@functools.cache
def made():
    """The archive, the wheel and the npm package, made once for all tests of this file."""
    if not (TOP / "build/dist-hutch-node").exists():
        skip("build/dist-hutch-node is missing; `tools/deps dist && tools/build dist` makes it")
    return build(TOP / "build/dist-tests")


def build(out):
    r = run(TOP / "packaging/build-dist", "--here", out, cwd=TOP, env={"HUTCH_DIST_LEVEL": "1"})
    check_equal(r.code, 0, r)
    check_equal(run("sha256sum", "-c", "SHA256SUMS", cwd=out).code, 0)
    return [next(out.glob(pattern)) for pattern in ("*.tar.gz", "*.whl", "*.tgz")]


def unpacked(ws, who="root"):
    r = run("tar", "-xz", "-C", ws, who=who, stdin=made()[0].read_bytes())
    check_equal(r.code, 0, r)
    return next(ws.glob("hutch-*"))


def install(tree, prefix, *more, who="root", code=0):
    r = run(tree / "install.sh", "--prefix", prefix, *more, who=who, cwd=prefix.parent)
    check_equal(r.code, code, r)
    return r


def uninstall(prefix, *more, who="root", code=0):
    r = run(prefix / "libexec/hutch/install.sh", "uninstall", *more, who=who, cwd=prefix.parent)
    check_equal(r.code, code, r)
    return r


def works(program, ws, who="root"):
    """The program runs a command, and finds hutch-node and the presets."""
    r = run(program, "run", "--enforcement", "best-effort", "--", "sh", "-c", "echo $((6 * 7))", who=who, cwd=ws)
    check_equal((r.code, r.out), (0, "42\n"), r)
    write(ws / "net.yaml", "network:\n  presets: [python]\n", who)
    r = run(program, "policy", "explain", "--policy", "net.yaml", "GET https://pypi.org/simple/", who=who, cwd=ws)
    check_equal((r.code, "python/index" in r.out), (0, True), r)  # allowed, or refused because of what the name stands for here
    r = run(program, "run", "--enforcement", "best-effort", "--allow-host", "pypi.test", "--", "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}",
            "https://example.test/", who=who, cwd=ws)
    check_equal((r.code, r.out), (0, "403"), r)


def files_below(place):
    return sorted(str(p.relative_to(place)) for p in place.rglob("*") if not p.is_dir())


def test_archive_in_place(who):
    "the archive runs where it is unpacked; its programs need glibc only, and none has a switch of the tests"
    with workspace(who) as ws:
        tree = unpacked(ws, who)
        works(tree / "bin/hutch", ws, who)
        for program in (tree / "bin/hutch", *(tree / "libexec/hutch").glob("hutch-*")):
            check_equal(switches_in(program), [], program.name)
            needed = set(re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", program).out))
            check(needed <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}, f"{program.name}: {needed}")
        # A link of the documentation leads to a page that is there.
        docs = tree / "share/doc/hutch"
        for page in docs.rglob("*.md"):
            for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
                if "://" not in link and not (page.parent / link).exists():
                    check(link.startswith(("../tests", "../bench", "tests/", "bench/", "../../")), f"{page.relative_to(docs)} links to {link}")


def test_installer(who):
    "the installer verifies, installs, upgrades and removes its own files and nothing else"
    with workspace(who) as ws:
        tree, prefix = unpacked(ws, who), ws / "a prefix"
        run("mkdir", "-p", prefix / "share/hutch/presets", who=who)
        run("touch", prefix / "share/hutch/presets/own.yaml", who=who)
        check_in(f'export PATH="{prefix}/bin:$PATH"', install(tree, prefix, who=who).out)
        works(prefix / "bin/hutch", ws, who)
        listed = (prefix / "share/hutch/files").read_text().splitlines()
        there = files_below(prefix)
        check_equal(sorted(set(listed) - set(there)), ["lib/systemd/system/hutch.service"], "a unit is for the whole machine only")
        check_equal(sorted(set(there) - set(listed)), ["share/hutch/files", "share/hutch/presets/own.yaml"])
        # An upgrade removes what the former version had beside.
        run("sh", "-c", 'echo >"$1/share/hutch/presets/former.yaml"; echo share/hutch/presets/former.yaml >>"$1/share/hutch/files"', "-", prefix, who=who)
        check_in("(it was hutch ", install(tree, prefix, who=who).out)
        check_equal(files_below(prefix), there)
        uninstall(prefix, who=who)
        check_equal(files_below(prefix), ["share/hutch/presets/own.yaml"])
        check(not (prefix / "libexec/hutch").exists(), "an empty directory of ours is left")
        check_in("no Hutch is installed", run(tree / "install.sh", "uninstall", "--prefix", prefix, who=who).err)


def test_installer_refuses():
    "a damaged archive, a missing file and wrong arguments are refused before anything is written"
    with workspace() as ws:
        tree, prefix = unpacked(ws), ws / "p"
        page = tree / "share/man/man1/hutch.1"
        text = page.read_bytes()
        page.write_bytes(text + b"x")
        check_in("share/man/man1/hutch.1: FAILED", install(tree, prefix, code=1).err)
        page.unlink()
        check_in("differs from SHA256SUMS or is missing", install(tree, prefix, code=1).err)
        page.write_bytes(text)
        (tree / "SHA256SUMS").rename(tree / "sums")
        check_in("SHA256SUMS is missing", install(tree, prefix, code=1).err)
        (tree / "sums").rename(tree / "SHA256SUMS")
        for args, text in ((["--prefix", "relative"], "absolute path"), (["--prefix"], "needs a directory"), (["purge"], "unknown argument 'purge'")):
            r = run(tree / "install.sh", *args)
            check(r.code == 1 and text in r.err, r)
        check(not prefix.exists(), "something was written")


def test_without_glibc():
    "where there is no glibc and only busybox, the installer works, hutch run does, and the installer says what does not"
    if not is_root() or not pathlib.Path("/bin/busybox").exists():
        skip("needs root and busybox-static, for a root directory of its own")
    with workspace() as ws:
        tree, root = unpacked(ws), ws / "root"
        for name in ("bin", "dev", "etc", "proc", "root", "run", "sys", "tmp", "usr/local"):
            (root / name).mkdir(parents=True)
        shutil.copy("/bin/busybox", root / "bin")
        for name in run("/bin/busybox", "--list").out.split():
            if name != "busybox":
                (root / "bin" / name).symlink_to("busybox")
        shutil.move(tree, root / "tree")
        r = run("chroot", root, "/bin/sh", "/tree/install.sh", env={"PATH": "/bin:/usr/sbin", "HOME": "/root"})
        check_equal(r.code, 0, r)
        check_in("hutch-node does not start here: it needs glibc 2.", r.out)
        r = run("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", 'mount --bind "$1" "$1"; cd "$1"; mount --rbind /dev dev; '
                "mount --rbind /sys sys; mount -t proc proc proc; mkdir .old; pivot_root . .old; exec chroot . /bin/sh -c "
                "'umount -l /.old; cd /root && /usr/local/bin/hutch run --enforcement best-effort -- sh -c \"echo 42\"'", "-", root)
        check_equal((r.code, r.out), (0, "42\n"), r)
        r = run("chroot", root, "/bin/sh", "/usr/local/libexec/hutch/install.sh", "uninstall", env={"PATH": "/bin:/usr/sbin", "HOME": "/root"})
        check_equal((r.code, files_below(root / "usr/local")), (0, []), r)


def test_nodes_survive():
    "an upgrade keeps nodes and sandboxes and names the nodes to restart; a removal is refused while a node runs from there, and spares another's"
    if not is_root():
        skip("needs root: two nodes")
    with workspace() as ws:
        tree, one, two = unpacked(ws), ws / "one", ws / "two"
        install(tree, one)
        install(tree, two)
        with node(hutch=two / "bin/hutch") as (other, _):
            box = other.cli("create", "host").stdout.strip()
            check_equal(other.cli("exec", box, "--", "sh", "-c", "echo kept >own; cat own").stdout, "kept\n")
            with node(hutch=one / "bin/hutch") as (d, _):
                mine = d.cli("create", "host").stdout.strip()
                d.cli("exec", mine, "--", "sh", "-c", "echo mine >own")
                check_in(f"the node of process {d.proc.pid} still runs the former version", install(tree, one).out)
                check_equal(d.cli("exec", mine, "--", "cat", "own").stdout, "mine\n")
                d.stop(sandboxes=False)
                d.start()
                check_equal(d.cli("exec", mine, "--", "cat", "own").stdout, "mine\n")
                check_in(f"a node runs from {one} (process {d.proc.pid})", uninstall(one, code=1).err)
                check((one / "bin/hutch").exists(), "it was removed all the same")
            uninstall(one)
            check_equal(files_below(one), [])
            check_equal(other.cli("exec", box, "--", "cat", "own").stdout, "kept\n")
            # With force, and seen from another installation.
            uninstall(two, "--force")
            other.hutch = str(tree / "bin/hutch")
            eventually(other.alive, 5, "the node lives without its files")
            check_equal(other.cli("exec", box, "--", "cat", "own").stdout, "kept\n")


def test_wheel():
    "pip installs the wheel without a network; `hutch` and `python -m hutch` are the program; removing it leaves no file"
    wheel = made()[1]
    with zipfile.ZipFile(wheel) as z:
        record = next(n for n in z.namelist() if n.endswith(".dist-info/RECORD"))
        rows = {name: (digest, size) for name, digest, size in csv.reader(io.StringIO(z.read(record).decode()))}
        check_equal(sorted(rows), sorted(z.namelist()))
        for name, (digest, size) in rows.items():
            body = z.read(name)
            check(name == record or digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
                  and int(size) == len(body), name)
    with workspace() as ws:
        made_venv = run("python3", "-m", "venv", ws / "v")
        if made_venv.code:
            skip(f"python3 -m venv does not work here: {made_venv.out.strip().splitlines()[:1]}")
        before = files_below(ws / "v")
        r = run(ws / "v/bin/pip", "install", "--quiet", "--no-compile", "--no-index", wheel)
        check_equal(r.code, 0, r)
        works(ws / "v/bin/hutch", ws)
        r = run(ws / "v/bin/python", "-B", "-m", "hutch", "run", "--", "sh", "-c", "exit 7", cwd=ws)
        check_equal(r.code, 7, r)
        r = run(ws / "v/bin/pip", "uninstall", "--quiet", "--yes", "hutch")
        check_equal(r.code, 0, r)
        check_equal([f for f in files_below(ws / "v") if "hutch" in f and f not in before], [])


def test_npm():
    "npm installs the package without a network, and npx runs it"
    if not shutil.which("npm"):
        skip("npm is not installed")
    with workspace() as ws:
        (ws / "package.json").write_text("{}")
        offline = {"HOME": str(ws), "npm_config_offline": "true", "npm_config_cache": str(ws / "cache"), "npm_config_update_notifier": "false"}
        r = run("npm", "install", "--no-audit", "--no-fund", made()[2], cwd=ws, env=offline)
        check_equal(r.code, 0, r)
        works(ws / "node_modules/.bin/hutch", ws)
        r = run("npx", "hutch", "run", "--", "sh", "-c", "exit 7", cwd=ws, env=offline)
        check_equal(r.code, 7, r)


def test_action_and_feature():
    "the scripts of the GitHub Action and of the devcontainer feature install the archive, and refuse a wrong digest and a URL without one"
    version = re.search(r"version: '([^']+)'", (TOP / "meson.build").read_text()).group(1)
    feature = json.loads((TOP / "packaging/devcontainer-feature/devcontainer-feature.json").read_text())
    check_equal(feature["version"], version)
    archive = made()[0]
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    with workspace() as ws:
        def step(**env):
            return run("sh", TOP / "packaging/github-action/setup.sh", cwd=ws, env={
                "HUTCH_ARCHIVE": str(archive), "HUTCH_PREFIX": str(ws / "p"), "GITHUB_PATH": str(ws / "path"), "GITHUB_OUTPUT": str(ws / "out"), **env})
        for wrong, words in (({"HUTCH_SHA256": "0" * 64}, "another digest"), ({"HUTCH_ARCHIVE": "https://files.test/x"}, "give its digest"),
                             ({"HUTCH_ARCHIVE": "http://files.test/x"}, "an https URL"), ({"HUTCH_ARCHIVE": str(ws / "none")}, "there is no archive")):
            r = step(**wrong)
            check(r.code == 1 and words in r.out, r)
        check(not (ws / "p").exists(), "something was written")
        r = step(HUTCH_SHA256=digest)
        check_equal((r.code, (ws / "path").read_text(), (ws / "out").read_text()), (0, f"{ws}/p/bin\n", f"version=hutch {version}\n"), r)
        script = TOP / "packaging/devcontainer-feature/install.sh"
        for wrong, words in (({}, "no archive lies beside"), ({"ARCHIVE": "https://files.test/x"}, "give its digest"), ({"ARCHIVE": "/x"}, "an https URL")):
            r = run("sh", script, env=wrong)
            check(r.code == 1 and words in r.err, r)


def test_same_bytes():
    "the same build makes the same archive, wheel and npm package"
    if not SOAK:
        skip("makes them once more, which takes some seconds; `make soak` does it")
    first = made()
    with workspace() as ws:
        for one, other in zip(first, build(ws / "again")):
            check_equal(hashlib.sha256(one.read_bytes()).hexdigest(), hashlib.sha256(other.read_bytes()).hexdigest(), one.name)
