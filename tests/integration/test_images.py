"""Images in and out: archives of every kind, registries, hostile ones, exports and what comes back from them.

A bare stock does the work, asked over its socket (src/layers/proto.h); the archives are made here, or by skopeo and umoci.
"""
import contextlib
import gzip
import hashlib
import io
import json
import os
import pathlib
import secrets
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import zlib

sys.path.insert(0, os.path.dirname(__file__))
import images as im  # noqa: E402
import stock as st  # noqa: E402
from hutch_test import HUTCH, SOAK, TOP, check, check_equal, check_in, eventually, identity, skip, workspace  # noqa: E402
from test_keeper import a_keeper  # noqa: E402

NODE = os.environ.get("HUTCH_NODE_BIN", str(TOP / "build/hutch-node"))


@contextlib.contextmanager
def a_stock(who="root", registries=(), infra=""):
    """A stock; that of an ordinary user lives in the user namespace of a keeper. `registries`: those that the operator lists."""
    with contextlib.ExitStack() as stack:
        keeper, ids = None, identity(who)[0]
        if who != "root":
            keeper = stack.enter_context(a_keeper(who))
            stack.callback(keeper.client().close)  # it is there
        lists = [f"--registries={','.join(registries)}", f"--infra={infra}"]
        s = st.Stock(HUTCH, ["--node", NODE, *lists], keeper, ids)
        stack.callback(s.close)
        yield s


def stack_id():
    return "st-" + secrets.token_hex(8)


def bring(s, data, kind=st.IMPORT, **fields):
    """(answer, stack)"""
    name = stack_id()
    with im.a_file(data) as fd:
        return s.ask(kind, [fd], stack=name, **fields), name


def bring_ok(s, data, kind=st.IMPORT, **fields):
    answer, name = bring(s, data, kind, **fields)
    check_equal(answer.error, st.OK, answer)
    return answer, name


def send_out(s, stack):
    answer = s.ask(st.EXPORT, stack=stack)
    check_equal(answer.error, st.OK, answer)
    return answer.data


def clean(s):
    """Whatever failed, nothing of it is left."""
    eventually(lambda: s.names("tmp") == [], 10, "an empty tmp/")


def merged(s, stack):
    """path -> content of the files that a sandbox would see."""
    seen = {}
    for root in reversed(s.roots_of(stack)):
        for path, folders, files in os.walk(root):
            here = pathlib.Path(path).relative_to(root)
            if "trusted.overlay.opaque" in os.listxattr(path):
                seen = {p: v for p, v in seen.items() if not p.is_relative_to(here)}
            for name in files + folders:
                info = os.lstat(os.path.join(path, name))
                if stat.S_ISCHR(info.st_mode):
                    seen = {p: v for p, v in seen.items() if not p.is_relative_to(here / name)}
                elif stat.S_ISREG(info.st_mode):
                    seen[here / name] = pathlib.Path(path, name).read_bytes()
    return {str(p): v for p, v in seen.items()}


LOWER = im.tar(("./", "d"), ("./etc", "d"), ("etc/a", "f", b"one"), ("etc/b", "h", "etc/a"), ("etc/gone", "f", b"x"),
               ("full", "d"), ("full/old", "f", b"y"), ("link", "l", "etc/a"), ("dev/null", "c"), ("pipe", "p"),
               ("\u00e9\u00df", "f", b"utf"))
UPPER = im.tar(("etc/.wh.gone", "f"), ("full/.wh..wh..opq", "f"), ("full/new", "f", b"z"), ("etc/a", "f", b"two"))
BOTH = {"etc/a": b"two", "etc/b": b"one", "full/new": b"z", "\u00e9\u00df": b"utf"}


# --- what can be brought in -------------------------------------------------------------------------------------------

def test_docker_archive(who):
    "an archive of docker save becomes a stack of its layers; whiteouts hide, devices are left out, the configuration comes back"
    with a_stock(who) as s:
        answer, name = bring_ok(s, im.docker(LOWER, UPPER))
        check_equal(len(s.layers_of(name)), 2)
        check_in("1 device nodes", answer.text)
        check_equal(json.loads(answer.data)["config"], {"Env": ["A=1"]})
        if who == "root":
            check_equal(merged(s, name), BOTH)
            top, bottom = s.roots_of(name)
            check(stat.S_ISCHR(os.lstat(top / "etc/gone").st_mode), "a whiteout is a device 0:0")
            check_equal(os.getxattr(top / "full", "trusted.overlay.opaque"), b"y")
            check_equal(os.stat(bottom / "etc/a").st_nlink, 2)
            check_equal(os.readlink(bottom / "link"), "etc/a")
            check(stat.S_ISFIFO(os.lstat(bottom / "pipe").st_mode), "the pipe")
            check(not (bottom / "dev/null").exists(), "a device was made")
        again, other = bring_ok(s, im.oci(LOWER, UPPER, pack=gzip.compress))
        check_equal(s.layers_of(other), s.layers_of(name), "the same layers have the same names")
        clean(s)


def test_every_compression():
    "layers and whole archives may be plain, gzip, zstd, xz or bzip2, in docker's form and as an OCI layout"
    with a_stock() as s:
        names = set()
        for pack in im.PACKERS.values():
            for archive in (im.docker(LOWER, UPPER, pack=pack), pack(im.oci(LOWER, UPPER, pack=pack))):
                names.add(tuple(s.layers_of(bring_ok(s, archive)[1])))
        check_equal(len(names), 1)


def test_archive_from_a_pipe():
    "an archive may come through a pipe"
    with a_stock() as s:
        name, archive = stack_id(), im.docker(LOWER, UPPER)
        r, w = os.pipe()
        number = s.send(st.IMPORT, [r], stack=name)
        os.close(r)
        with os.fdopen(w, "wb") as f:
            f.write(archive)
        answer = s.wait(number)
        check_equal(answer.error, st.OK, answer)
        check_equal(merged(s, name), BOTH)


def test_which_image():
    "of several platforms linux/amd64 is taken, of several images the one that is named; without a name they are listed"
    layout = im.Layout()

    def one(text, arch=None, name=None, **changes):
        fields = {"platform": {"os": "linux", "architecture": arch}} if arch else {}
        if name:
            fields["annotations"] = {"org.opencontainers.image.ref.name": name}
        return layout.image(im.tar(("which", "f", text)), fields=fields, **changes)
    arm, amd = one(b"arm", "arm64", architecture="arm64"), one(b"amd", "amd64")
    nested = layout.put({"schemaVersion": 2, "manifests": [arm, amd]}, im.Layout.INDEX)
    with a_stock() as s:
        for manifests in ((arm, amd), (nested,)):
            check_equal(merged(s, bring_ok(s, layout.archive(*manifests))[1]), {"which": b"amd"})
        answer, _ = bring(s, layout.archive(arm))
        check_equal(answer.error, st.NOT_FOUND, answer)
        check_in("linux/arm64", answer.text)
        two = layout.archive(one(b"1", name="example/a:1"), one(b"2", name="b"))
        check_equal(merged(s, bring_ok(s, two, path="b")[1]), {"which": b"2"})
        check_equal(merged(s, bring_ok(s, two, path="example/a:1")[1]), {"which": b"1"})
        answer, _ = bring(s, two)
        check_in("several images (example/a:1, b)", answer.text)
        answer, _ = bring(s, two, path="c")
        check_equal(answer.error, st.NOT_FOUND, answer)


def test_other_machines_are_refused():
    "an image for another processor or system is refused, whatever an index says of it"
    with a_stock() as s:
        for changes, word in (({"architecture": "arm64"}, "linux/arm64"), ({"os": "windows"}, "windows/amd64")):
            answer, _ = bring(s, im.oci(LOWER, **changes))
            check_equal(answer.error, st.BAD_DATA, answer)
            check_in(word, answer.text)


def test_many_layers():
    "more layers than a stack holds are brought in all the same: the lowest become one; the same layer twice is one"
    layers = [im.tar((f"f{i}", "f", str(i).encode()), ("same", "f", str(i).encode()), *([(f".wh.f{i - 1}", "f")] if i % 2 else []))
              for i in range(100)]
    with a_stock() as s:
        name = bring_ok(s, im.docker(*layers))[1]
        check_equal(len(s.layers_of(name)), 64)
        check_equal(merged(s, name), {**{f"f{i}": str(i).encode() for i in range(1, 100, 2)}, "same": b"99"})
        empty = im.tar()
        name = bring_ok(s, im.docker(empty, layers[0], empty, layers[1], empty))[1]
        check_equal(len(s.layers_of(name)), 3)
        answer, _ = bring(s, im.docker(*[empty] * 129))
        check_equal(answer.error, st.TOO_LARGE, answer)
        check_in("129 layers; at most 128", answer.text)


def test_marks_after_the_files_of_their_layer():
    "whiteouts and opaque marks spare what their own layer brings, whichever comes first, also where layers are made into one"
    lower = im.tar(("d", "d"), ("d/old", "f", b"1"), ("d/s", "d"), ("d/s/old", "f", b"1"), ("a", "d"), ("a/old", "f", b"1"))
    upper = im.tar(("d", "d"), ("d/.bashrc", "f", b"2"), ("d/s/new", "f", b"2"), ("d/l", "l", "x"), ("d/.wh..wh..opq", "f"),
                   ("a", "d"), ("a/x", "f", b"2"), (".wh.a", "f"))
    more = [im.tar((f"f{i}", "f", b"3")) for i in range(64)]
    want = {"d/.bashrc": b"2", "d/s/new": b"2", "a/x": b"2"}
    with a_stock() as s:
        check_equal(merged(s, bring_ok(s, im.docker(lower, upper))[1]), want)
        name = bring_ok(s, im.docker(lower, upper, *more))[1]
        check_equal(len(s.layers_of(name)), 64)
        check_equal(merged(s, name), {**want, **{f"f{i}": b"3" for i in range(64)}})
        check_equal(os.readlink(s.roots_of(name)[-1] / "d/l"), "x")


def test_a_layer_that_hides_everything():
    "an opaque mark in the root of a layer hides all layers below: they are not in the stack, for overlay would show them"
    layers = [im.tar(("old", "f", b"1"), ("d/x", "f", b"1")), im.tar(("d/y", "f", b"2"), (".wh..wh..opq", "f")),
              im.tar(("top", "f", b"3"))]
    more = [im.tar((f"f{i}", "f", b"4")) for i in range(64)]
    with a_stock() as s:
        name = bring_ok(s, im.docker(*layers))[1]
        check_equal(merged(s, name), {"d/y": b"2", "top": b"3"})
        check_equal(len(s.layers_of(name)), 2)
        name = bring_ok(s, im.docker(*more, *layers))[1]
        check_equal((merged(s, name), len(s.layers_of(name))), ({"d/y": b"2", "top": b"3"}, 2))


def test_parents_keep_what_they_are():
    "a layer that names a file without the directory above it leaves that directory as the layers below made it"
    lower = im.tar(("home", "d"), ("home/user", "d", None, {"mode": 0o700, "uid": 1000, "gid": 1000}))
    with a_stock() as s:
        top = s.roots_of(bring_ok(s, im.docker(lower, im.tar(("home/user/x/y", "f", b"1"))))[1])[0]
        info = os.stat(top / "home/user")
        check_equal((stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid), (0o700, 1000, 1000))
        check_equal(stat.S_IMODE(os.stat(top / "home/user/x").st_mode), 0o755)


def test_parents_in_a_layer_that_comes_twice():
    "a layer that is in an image twice does not bring back what a directory was the first time"
    layer, between = im.tar(("data/x", "f", b"1")), im.tar(("data", "d", None, {"mode": 0o700, "uid": 7}))
    with a_stock() as s:
        top = s.roots_of(bring_ok(s, im.docker(layer, between, layer))[1])[0]
        info = os.stat(top / "data")
        check_equal((stat.S_IMODE(info.st_mode), info.st_uid, (top / "data/x").read_bytes()), (0o700, 7, b"1"))


def test_parents_of_marks_keep_what_they_are():
    "a layer that only removes something leaves the directories above it as the layers below made them"
    private = {"mode": 0o700, "uid": 1000, "gid": 1000}
    lower = im.tar(("a", "d", None, private), ("a/x", "f"), ("b", "d", None, private), ("b/c", "d", None, private), ("b/c/x", "f"))
    with a_stock() as s:
        name = bring_ok(s, im.docker(lower, im.tar(("a/.wh.x", "f"), ("b/c/.wh..wh..opq", "f"))))[1]
        check_equal(merged(s, name), {})
        for path in ("a", "b", "b/c"):
            info = os.stat(s.roots_of(name)[0] / path)
            check_equal((stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid), (0o700, 1000, 1000), path)


def test_parents_keep_their_attributes():
    "nor does such a layer take a directory's attributes away, a default ACL for one, where it is laid out and where it is made into one"
    entries = ((1, 7, 0xffffffff), (2, 7, 1000), (4, 5, 0xffffffff), (16, 7, 0xffffffff), (32, 5, 0xffffffff))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)
    headers = {"SCHILY.xattr.system.posix_acl_default": acl.decode(errors="surrogateescape"), "SCHILY.xattr.user.note": "hello"}
    lower, upper = im.tar(("d", "d", None, {"pax_headers": headers})), im.tar(("d/x/y", "f", b"1"))
    more = [im.tar((f"f{i}", "f")) for i in range(64)]
    with a_stock() as s:
        for layers, at in (((lower, upper), 0), ((lower, upper, *more), -1)):
            root = s.roots_of(bring_ok(s, im.docker(*layers))[1])[at]
            check_equal(os.getxattr(root / "d", "system.posix_acl_default"), acl)
            check_equal(os.getxattr(root / "d", "user.note"), b"hello")
            check_equal((os.listxattr(root / "d/x"), os.listxattr(root / "d/x/y")), ([], []))


def test_hard_links_to_links(who):
    "a symbolic link or a pipe may have several names; the link is not followed, and an export brings them back"
    layer = im.tar(("a", "l", "/etc/passwd"), ("b", "h", "a"), ("p", "p"), ("q", "h", "p"))
    with a_stock(who) as s:
        name = bring_ok(s, im.docker(layer))[1]
        if who == "root":
            root = s.roots_of(name)[0]
            check_equal((os.readlink(root / "b"), os.lstat(root / "b").st_ino), ("/etc/passwd", os.lstat(root / "a").st_ino))
            check(stat.S_ISFIFO(os.lstat(root / "q").st_mode), "the pipe")
        check_equal(s.layers_of(bring_ok(s, send_out(s, name), st.RESTORE)[1]), s.layers_of(name))


def test_attributes():
    "file capabilities and user attributes come along; overlay's own marks in an archive do not"
    capability = b"\x01\x00\x00\x02\x00\x04\x00\x00" + bytes(12)
    headers = {"SCHILY.xattr.user.note": "hello", "SCHILY.xattr.trusted.overlay.opaque": "y",
               "SCHILY.xattr.trusted.overlay.redirect": "/etc", "SCHILY.xattr.security.capability": capability.decode("latin-1")}
    layer = im.tar(("d", "d", None, {"pax_headers": headers}), ("p", "f", b"", {"pax_headers": headers, "mode": 0o4755}))
    with a_stock() as s:
        answer, name = bring_ok(s, im.docker(layer))
        root = s.roots_of(name)[0]
        check_in("extended attributes left out", answer.text)
        check_equal(os.listxattr(root / "d"), ["user.note"] if "security.capability" not in os.listxattr(root / "d")
                    else ["security.capability", "user.note"])
        check_equal(os.getxattr(root / "p", "user.note"), b"hello")
        check_in("security.capability", os.listxattr(root / "p"))
        check_equal(stat.S_IMODE(os.stat(root / "p").st_mode), 0o4755)


def test_real_tools():
    "what skopeo and umoci make is taken, and what is exported is read by skopeo"
    for tool in ("skopeo", "umoci"):
        if not shutil.which(tool):
            skip(f"{tool} is not installed: apt-get install {tool}")
    with a_stock() as s, workspace() as ws:
        def run(*args):
            subprocess.run(args, cwd=ws, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        run("umoci", "init", "--layout", "l")
        run("umoci", "new", "--image", "l:t")
        run("umoci", "unpack", "--image", "l:t", "b")
        (ws / "b/rootfs/dir").mkdir()
        (ws / "b/rootfs/dir/file").write_text("1")
        run("umoci", "repack", "--image", "l:t", "b")
        shutil.rmtree(ws / "b")
        run("umoci", "unpack", "--image", "l:t", "b")
        (ws / "b/rootfs/dir/file").unlink()
        (ws / "b/rootfs/dir/other").write_text("2")
        run("umoci", "repack", "--image", "l:t", "b")
        run("skopeo", "copy", "--insecure-policy", "oci:l:t", "oci-archive:o.tar:t")
        run("skopeo", "copy", "--insecure-policy", "oci:l:t", "docker-archive:d.tar:x/y:t")
        with tarfile.open(ws / "p.tar", "w") as t:
            t.add(ws / "l", ".")
        stacks = [bring_ok(s, (ws / name).read_bytes())[1] for name in ("o.tar", "d.tar", "p.tar")]
        for name in stacks:
            check_equal(merged(s, name), {"dir/other": b"2"})
        (ws / "e.tar").write_bytes(send_out(s, stacks[0]))
        run("skopeo", "copy", "--insecure-policy", "oci-archive:e.tar", "oci-archive:back.tar:t")
        check_equal(merged(s, bring_ok(s, (ws / "back.tar").read_bytes())[1]), {"dir/other": b"2"})


# --- registries -------------------------------------------------------------------------------------------------------

def needs_registry():
    for tool in ("docker-registry", "skopeo"):
        if not shutil.which(tool):
            skip(f"{tool} is not installed: apt-get install {tool}")


def push(archive, host, name, *args):
    with workspace() as ws:
        (ws / "i.tar").write_bytes(archive)
        subprocess.run(["skopeo", "copy", "-q", "--insecure-policy", "--dest-tls-verify=false", *args, f"oci-archive:{ws}/i.tar",
                        f"docker://{host}/{name}"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


PRIVATE = 4  # STOCK_PRIVATE


def fetch(s, ref, credentials=None, flags=PRIVATE):
    name = stack_id()
    if credentials is None:
        return s.ask(st.IMPORT, stack=name, ref=ref, flags=flags), name
    with im.a_file(credentials) as fd:
        return s.ask(st.IMPORT, [fd], stack=name, ref=ref, flags=flags), name


def test_registry(who):
    "an image comes from a registry by tag and by digest; what is not there is said, and nothing is left of it"
    needs_registry()
    closed = f"127.0.0.1:{im.free_port()}"
    with im.a_registry() as host, a_stock(who, [host, closed]) as s:
        push(im.oci(LOWER, UPPER, pack=gzip.compress), host, "x/y:1")
        answer, name = fetch(s, f"{host}/x/y:1")
        check_equal(answer.error, st.OK, answer)
        if who == "root":
            check_equal(merged(s, name), BOTH)
        again, other = fetch(s, f"{host}/x/y@sha256:{answer.layer}")
        check_equal(again.error, st.OK, again)
        check_equal(s.layers_of(other), s.layers_of(name))
        for ref, code, word in ((f"{host}/x/y:2", st.NOT_FOUND, "x/y:2"), (f"{host}/x/z", st.NOT_FOUND, "x/z:latest"),
                                (f"{host}/x/y@sha256:{'0' * 64}", st.NOT_FOUND, "0000"),
                                (f"https://{host}/x/y:1", st.FAILED, "TLS"),
                                (f"{closed}/x", st.FAILED, "refused"),
                                ("no.such.invalid/x", st.FAILED, "not known"), (f"{host}/X", st.BAD_DATA, "lower case")):
            answer, _ = fetch(s, ref)
            check_equal(answer.error, code, answer)
            check_in(word, answer.text)
        clean(s)


def test_registry_password():
    "a registry with a password is given it, and says so when it is wrong or missing"
    needs_registry()
    with im.a_registry("me", "sec:ret") as host, a_stock(registries=[host]) as s:
        push(im.oci(LOWER), host, "x/y:1", "--dest-creds", "me:sec:ret")
        answer, _ = fetch(s, f"{host}/x/y:1", b"me\nsec:ret")
        check_equal(answer.error, st.OK, answer)
        for credentials, word in ((None, "wants credentials"), (b"me\nwrong", "do not suffice"), (b"nonsense", "user and a password")):
            answer, _ = fetch(s, f"{host}/x/y:1", credentials)
            check_equal(answer.error, st.DENIED, answer)
            check_in(word, answer.text)


def test_registry_token():
    "a token is asked for where the registry says, with the password; where blobs lie nobody is told anything"
    layout = im.Layout()
    manifest = layout.image(LOWER, UPPER, pack=gzip.compress)
    with im.TokenRegistry(layout, manifest) as r, a_stock(registries=[r.host]) as s:
        answer, name = fetch(s, f"{r.host}/a/b:1", b"me\nsecret")
        check_equal(answer.error, st.OK, answer)
        check_equal(merged(s, name), BOTH)
        auth = [x for x in r.seen if x[0] == "auth"]
        check_equal([(x[1], x[2]) for x in auth], [(r.basic, {"scope": ["repository:a/b:pull"], "service": ["test"]})])
        check_equal({x[1] for x in r.seen if x[0] == "registry"}, {None, "Bearer the-token"})
        stores = [x for x in r.seen if x[0] == "store"]
        check_equal(len(stores), 3)
        check_equal({x[1] for x in stores}, {None}, "somebody else was told who we are")
        answer, _ = fetch(s, f"{r.host}/a/b:1", b"me\nwrong")
        check_equal(answer.error, st.DENIED, answer)
        check_in("refuses these credentials", answer.text)


def test_registry_token_without_tls():
    "a password does not go to another machine without TLS, whoever asks for it there"
    told = []

    def auth(path, headers):
        told.append(headers.get("authorization"))
        return 200, {}, b'{"token": "t"}'
    with im.serving(auth) as other:
        # Known as this machine by where it leads only.
        realm = f"http://[::ffff:127.0.0.1]:{other.rpartition(':')[2]}/token"

        def registry(path, headers):
            return 401, {"www-authenticate": f'Bearer realm="{realm}"'}, b""
        with im.serving(registry) as host, a_stock(registries=[host]) as s:
            answer, _ = fetch(s, f"{host}/a/b:1", b"me\nsecret")
            check_equal(answer.error, st.DENIED, answer)
            check_in("without TLS", answer.text)
            check_equal(told, [])
            fetch(s, f"{host}/a/b:1")
            check_equal(told, [None], "without a password there is nothing to be kept")


def test_registry_of_another_name():
    "a registry that only leads to another one, manifests included: that one is told what is wanted"
    layout = im.Layout()
    manifest = layout.image(LOWER)

    def real(path, headers):
        kind, name = path.split("/")[-2:]
        if kind == "blobs":
            return 200, {}, layout.blobs[name]
        if layout.MANIFEST not in headers.get("accept", ""):
            return 200, {}, b'{"schemaVersion": 1, "fsLayers": []}'  # for those who know of nothing else
        return 200, {"content-type": layout.MANIFEST}, layout.blobs[manifest["digest"]]
    with im.serving(real) as host, im.serving(lambda path, headers: (307, {"location": f"http://{host}{path}"}, b"")) as name, \
            a_stock(registries=[name]) as s:
        answer, _ = fetch(s, f"{name}/a/b:1")
        check_equal(answer.error, st.OK, answer)


def test_registry_lies():
    "what a registry changes, cuts off or adds to is found out"
    layout = im.Layout()
    manifest = layout.image(LOWER, pack=gzip.compress)
    for change, words in ((lambda d: d[:-1] + b"?", ("other bytes",)), (lambda d: d[:-1], ("bytes in the registry", "cut its answer")),
                          (lambda d: d + b"?", ("bytes in the registry",))):
        with im.TokenRegistry(layout, manifest, change=change) as r, a_stock(registries=[r.host]) as s:
            answer, _ = fetch(s, f"{r.host}/a/b:1", b"me\nsecret")
            check(answer.error in (st.BAD_DATA, st.FAILED), answer)
            check(any(w in answer.text for w in words), answer.text)
            clean(s)


def test_registry_leads_nowhere_else():
    "neither a reference nor a redirect reaches metadata services; circles end"
    def away(path, headers):
        return 307, {"location": "http://169.254.169.254/latest/"}, b""

    def circle(path, headers):
        return 307, {"location": path}, b""
    with im.serving(away) as one, im.serving(circle) as two, a_stock(registries=[one, two, "169.254.169.254"]) as s:
        for ref, code, word in (("http://169.254.169.254/x", st.DENIED, "reserved address"),
                                (f"{one}/x", st.DENIED, "reserved address"), (f"{two}/x", st.FAILED, "circles")):
            answer, _ = fetch(s, ref)
            check_equal(answer.error, code, answer)
            check_in(word, answer.text)


def test_registry_of_tenants():
    "without leave of the operator no registry is asked on this machine, in a private network or without TLS"
    seen = []

    def answer_all(path, headers):
        seen.append(path)
        return 404, {}, b""
    with im.serving(answer_all) as host, a_stock() as s, a_stock(registries=[host]) as opened:
        port = host.rpartition(":")[2]
        for ref, word in ((f"{host}/x", "without TLS"), (f"https://{host}/x", "images.registries"),
                          (f"https://localhost:{port}/x", "images.registries"), ("https://10.255.255.1/x", "images.registries"),
                          ("http://example.com/x", "without TLS")):
            answer, _ = fetch(s, ref, flags=0)
            check_equal(answer.error, st.DENIED, answer)
            check_in(word, answer.text)
        check_equal(seen, [])
        check_equal(fetch(opened, f"{host}/x")[0].error, st.NOT_FOUND)
        check(seen, "nothing was asked although it may be")


def own_address():
    """One more address of this machine: a public one, of a network (AS112) in which no such host is."""
    address = "192.31.196.250"
    subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    return address


def test_registry_on_this_machine_or_in_infra():
    "neither this machine's own addresses, public ones included, nor egress.infra are fetched from, not for the operator either"
    seen = []

    def answer_all(path, headers):
        seen.append(path)
        return 404, {}, b""

    def leads(path, headers):
        return 307, {"location": f"http://{own}:{port}{path}"}, b""
    own = own_address()
    try:
        with im.serving(answer_all, "0.0.0.0") as host, im.serving(leads) as away:
            port = host.rpartition(":")[2]
            with a_stock(registries=[away]) as s:
                for ref in (f"http://{own}:{port}/x", f"http://localhost:{port}/x", f"http://127.0.0.2:{port}/x", f"{away}/x"):
                    answer, _ = fetch(s, ref)
                    check_equal(answer.error, st.DENIED, answer)
                    check_in("images.registries", answer.text)
                check_equal(seen, [])
            with a_stock(registries=[f"{own}:{port}"]) as s:
                check_equal(fetch(s, f"http://{own}:{port}/x")[0].error, st.NOT_FOUND)
                check_equal(len(seen), 1)
            with a_stock(infra="10.20.0.0/16,203.0.112.0/24") as s:
                for ref in ("http://10.20.1.1/x", "https://203.0.112.7/x"):
                    answer, _ = fetch(s, ref)
                    check_equal(answer.error, st.DENIED, answer)
                    check_in("egress.infra", answer.text)
    finally:
        subprocess.run(["ip", "address", "del", f"{own}/32", "dev", "lo"], check=True)


# --- hostile archives -------------------------------------------------------------------------------------------------

HOSTILE = [
    ([("../x", "f")], '"../x" is refused: its name has a part ".."'),
    ([("a/../../x", "f")], 'has a part ".."'),
    ([("/../etc/x", "f")], 'has a part ".."'),
    ([("a/./b", "f")], 'has a part "."'),
    ([("a//b", "f")], "has an empty part"),
    ([("../\x1b[31m", "f")], "\\x1b[31m"),
    ([("/".join(["d"] * 1000), "f")], "more than 128 parts"),
    ([("a" * 300, "f")], "longer than 255 bytes"),
    ([("/".join(["a" * 200] * 30), "f")], "longer than 4095 bytes"),
    ([("a", "h", "../../../etc/shadow")], 'hard link to "../../../etc/shadow"'),
    ([("a", "h", "/etc/shadow")], "not a file before it"),
    ([("a", "h", "b"), ("b", "f")], "not a file before it"),
    ([("d", "d"), ("a", "h", "d")], "not a file before it"),
    ([("a", "f", b"", {"uid": 65536})], "its owner is 65536:0"),
    ([("a", "f", b"", {"gid": 1 << 30})], "0:1073741824"),
    ([(".wh...", "f")], 'has a part ".."'),
    ([(".wh.", "f")], "stands for no file"),
    ([("l", "l", "/etc"), ("l/x", "f", b"1")], "symbolic link"),
    ([("l", "l", "."), ("l/x", "d")], "symbolic link"),
    ([("", "f")], "is empty"),
    ([("./", "l", "/etc")], "root"),
]


def test_hostile_names(who):
    "names, links and owners that lead out of an image are refused with the name of the entry, and nothing is left"
    with a_stock(who) as s:
        for entries, word in HOSTILE:
            answer, name = bring(s, im.docker(im.tar(("first", "f", b"1"), *entries)))
            check_equal(answer.error, st.BAD_DATA, f"{entries}: {answer}")
            check_in(word, answer.text)
            check_equal(s.names("stacks"), [])
        check_equal(s.names("layers"), [])
        clean(s)


def test_the_last_of_a_name_wins():
    "an entry that comes again replaces the one before, be it a file, a link or a directory"
    layer = im.tar(("a", "f", b"1"), ("a", "f", b"22"), ("b", "l", "/etc"), ("b", "d"), ("b/x", "f", b"3"), ("c", "d"),
                   ("c/y", "f"), ("c", "f", b"4"))
    with a_stock() as s:
        check_equal(merged(s, bring_ok(s, im.docker(layer))[1]), {"a": b"22", "b/x": b"3", "c": b"4"})


def test_damaged_archives():
    "archives that are cut off, mixed up or none at all are refused with what is wrong"
    big = im.tar(("a", "f", os.urandom(20000)))
    layout = im.Layout()
    manifest = layout.image(big)
    wrong = {name: (data[:-1] + b"?" if len(data) > 20000 else data) for name, data in layout.blobs.items()}
    good, layout.blobs = layout.blobs, wrong
    changed, layout.blobs = layout.archive(manifest), good
    whole = im.oci(big, pack=gzip.compress)
    pax = im.tar(("a", "f", b"", {"pax_headers": {"comment": "x" * (8 << 20)}}))
    cases = [
        (changed, "is not what its name says"),
        (im.docker(big[:10000]), "not a whole tar"),
        (im.docker(gzip.compress(big)[:10000], pack=bytes), "cannot be decompressed"),
        (whole[:len(whole) // 2], "not a whole tar"),
        (gzip.compress(whole)[:10000], "cannot be decompressed"),
        (im.oci(big, rootfs={"type": "layers", "diff_ids": ["sha256:" + "0" * 64]}), "diff_id"),
        (im.oci(big, rootfs={"type": "layers", "diff_ids": []}), "its configuration names 0"),
        (im.tar(("manifest.json", "f", b"[]")), "no image"),
        (im.tar(("manifest.json", "f", b"[[[[")), "not JSON"),
        (im.tar(("manifest.json", "f", b"[" * 100000)), "not JSON"),
        (im.tar(("x", "f")), "holds no image"),
        (b"", "holds no image"),
        (b"hello" * 1000, "not a whole tar"),
        (os.urandom(5000), "not a whole tar"),
        (im.docker(pax), "header too large"),
    ]
    with a_stock() as s:
        for archive, word in cases:
            answer, _ = bring(s, archive)
            check(answer.error in (st.BAD_DATA, st.NOT_FOUND), f"{word}: {answer}")
            check_in(word, answer.text)
        check_equal((s.names("stacks"), s.names("layers")), ([], []))
        clean(s)


def bomb(pack):
    """A file of three gigabytes of zeros, packed as it is made."""
    info = tarfile.TarInfo("big")
    info.size = 3000 << 20
    zeros = bytes(1 << 20)
    if pack == "gzip":
        # What 20 MiB of zeros are packed to, over and over: nobody reads as far as to the sum at the end.
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        out = packer.compress(info.tobuf()) + packer.flush(zlib.Z_FULL_FLUSH)
        return out + (packer.compress(bytes(20 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)) * 150
    with tempfile.TemporaryFile() as out:
        p = subprocess.Popen(["zstd", "-q", "-1", "-c"], stdin=subprocess.PIPE, stdout=out)
        p.stdin.write(info.tobuf())
        for _ in range(3000):
            p.stdin.write(zeros)
        p.stdin.close()
        check_equal(p.wait(), 0)
        out.seek(0)
        return out.read()


def test_bombs():
    "a few bytes that grow to gigabytes are too large, packed either way; so is what has more bytes or entries than was allowed"
    with a_stock() as s:
        for pack in ("gzip", "zstd"):
            with im.a_file(bomb(pack)) as fd:
                answer = s.ask(st.CONVERT, [fd], blob="b" * 64)
            check_equal(answer.error, st.TOO_LARGE, answer)
            check_in("1000 times", answer.text)
        check_equal(s.names("blobs"), [])
        answer, _ = bring(s, im.docker(im.tar(("a", "f", bytes(6000))), im.tar(("b", "f", bytes(6000)))), bytes=10000)
        check_equal(answer.error, st.TOO_LARGE, answer)
        check_in('"b"', answer.text)
        answer, _ = bring(s, im.docker(im.tar(*[(f"f{i}", "f") for i in range(11)])), entries=10)
        check_equal(answer.error, st.TOO_LARGE, answer)
        check_equal(s.names("stacks"), [], "layers that no stack names are the garbage collection's")
        clean(s)


def test_many_entries():
    "tens of thousands of entries are no problem (`make soak`: a hundred thousand)"
    many = 100000 if SOAK else 20000
    layer = im.tar(*[(f"d{i % 100}/f{i}", "f", b"x") for i in range(many)], format=tarfile.USTAR_FORMAT)
    with a_stock() as s:
        root = s.roots_of(bring_ok(s, im.docker(layer))[1])[0]
        check_equal(sum(len(os.listdir(root / d)) for d in os.listdir(root)), many)


# --- the worker -------------------------------------------------------------------------------------------------------

def children(pid):
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            found += [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    return found


def find_worker(s):
    with contextlib.suppress(OSError):
        for job in children(s.process.pid):
            for pid in children(job):
                if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"hutch-node\0image\0") and \
                        "Seccomp:\t2" in pathlib.Path(f"/proc/{pid}/status").read_text():
                    return pid
    return None


def wait_for_worker(s):
    found = []
    eventually(lambda: found.append(find_worker(s)) or found[-1], 20, "a worker")
    return found[-1]


def ended(pid):
    """Whether somebody has waited for it already is not the worker's business."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_worker_is_confined(who):
    "an image worker has another uid, no capabilities, no files, no network and a filter; cancelled, it is gone"
    with a_stock(who) as s:
        r, w = os.pipe()
        number = s.send(st.CONVERT, [r], blob="c" * 64)
        os.close(r)
        pid = wait_for_worker(s)
        status = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
        uids = {int(x) for x in status["Uid"].split()}
        check(not uids & {0, os.stat(s.run).st_uid}, f"the worker is {uids}")
        for field in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            check_equal(int(status[field], 16), 0, field)
        check_equal((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"))
        check_equal(int(status["CapBnd"], 16) & ~(1 << 18), 0, "CapBnd")
        check_equal(os.listdir(f"/proc/{pid}/root"), [], "its root")
        check(os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"), "it sees the host's network")
        check(set(os.listdir(f"/proc/{pid}/fd")) <= set("0123456789"), "it has descriptors that it was not given")
        s.send(st.CANCEL, cancel=number)
        answer = s.wait(number)
        check_equal(answer.error, st.CANCELLED, answer)
        eventually(lambda: ended(pid), 10, "the end of the worker")
        os.close(w)
        check_equal(s.names("blobs"), [])
        clean(s)


def test_uploads_have_a_limit_together():
    "uploads whose names begin alike, those of one tenant, take so much together and not more; others are not concerned"
    with a_stock() as s:
        def upload(name, limit=100000):
            with im.a_file(im.tar(("a", "f", os.urandom(40000)))) as fd:
                return s.ask(st.CONVERT, [fd], blob=name, bytes=limit)
        one, two = "1" * 16, "2" * 16
        for name in (one + "a" * 48, one + "b" * 48):
            check_equal(upload(name).error, st.OK)
        answer = upload(one + "c" * 48)
        check_equal(answer.error, st.TOO_LARGE, answer)
        check_in("uploads may take 100000 bytes together (builds.uploads_bytes)", answer.text)
        check_equal(upload(one + "d" * 48, 80000).error, st.TOO_LARGE)
        check_equal(upload(two + "c" * 48).error, st.OK)
        check_equal(len(s.names("blobs")), 3)
        clean(s)


def test_worker_killed():
    "a worker that is killed is said to have been, and leaves nothing"
    with a_stock() as s:
        r, w = os.pipe()
        number = s.send(st.CONVERT, [r], blob="c" * 64)
        os.close(r)
        pid = wait_for_worker(s)
        os.kill(pid, 9)
        answer = s.wait(number)
        check_equal(answer.error, st.BAD_DATA, answer)
        check_in("SIGKILL", answer.text)
        os.close(w)
        clean(s)


def test_convert():
    "an uploaded tar becomes a blob, once; names that mean whiteouts in images are ordinary there"
    with a_stock() as s:
        name = "d" * 64
        for _ in range(2):
            with im.a_file(gzip.compress(im.tar(("a/.wh.b", "f", b"1"), ("c", "c")))) as fd:
                answer = s.ask(st.CONVERT, [fd], blob=name)
            check_equal(answer.error, st.OK, answer)
        check_in(b"a/.wh.b", (s.store / "blobs" / name).read_bytes())
        check_equal(s.names("blobs"), [name])
        clean(s)


# --- out, and back ----------------------------------------------------------------------------------------------------

def change_tar(data, change):
    """The archive with change(name, content) -> content, or None to leave the file out."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as source, tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as t:
        for info in source:
            content = change(info.name, source.extractfile(info).read())
            if content is not None:
                info.size = len(content)
                t.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_export_and_restore(who):
    "what is exported comes back layer for layer, on this node and on another one"
    with a_stock(who) as s:
        name = bring_ok(s, im.docker(LOWER, UPPER))[1]
        archive = send_out(s, name)
        again = bring_ok(s, archive, st.RESTORE)[1]
        check_equal(s.layers_of(again), s.layers_of(name))
        layers = s.layers_of(name)
        clean(s)
    with a_stock(who) as s:
        answer, name = bring_ok(s, archive, st.RESTORE)
        check_equal(s.layers_of(name), layers)
        check_equal(answer.data, None)
        check_equal(s.layers_of(bring_ok(s, archive)[1]), layers, "an export is an ordinary image too")


def test_hard_links_of_an_export():
    "a hard link in an export says what its file is: other tools give the file what the last of its names says"
    layer = im.tar(("a", "f", b"1", {"mode": 0o640, "uid": 7, "gid": 8, "mtime": 99}), ("b", "h", "a"))
    with a_stock() as s:
        whole = tarfile.open(fileobj=io.BytesIO(send_out(s, bring_ok(s, im.docker(layer))[1])))
        blobs = [whole.extractfile(m).read() for m in whole if m.name.startswith("blobs/")]
        packed = next(b for b in blobs if b.startswith(b"\x28\xb5\x2f\xfd"))
        plain = subprocess.run(["zstd", "-qdc"], input=packed, stdout=subprocess.PIPE, check=True).stdout
        seen = {m.name: m for m in tarfile.open(fileobj=io.BytesIO(plain))}
        check(seen["b"].islnk(), "b is no hard link")
        for name in "ab":
            check_equal((seen[name].mode, seen[name].uid, seen[name].gid, seen[name].mtime), (0o640, 7, 8, 99), name)


def test_export_of_nothing():
    "a stack that is not there cannot be exported"
    with a_stock() as s:
        answer = s.ask(st.EXPORT, stack="st-nosuchstack")
        check_equal(answer.error, st.NOT_FOUND, answer)


def test_export_takes_no_time_of_its_taker():
    "exports that nobody reads hold up no other job, and one that would be too large is refused"
    with a_stock() as s:
        name = bring_ok(s, im.docker(im.tar(("a", "f", os.urandom(3 << 20)))))[1]
        for _ in range(3):
            check_equal(s.ask(st.EXPORT, stack=name).error, st.OK)
        answer = s.ask(st.EXPORT, stack=name, bytes=1 << 20)
        check_equal(answer.error, st.TOO_LARGE, answer)
        check_in("larger than 1048576 bytes", answer.text)
        clean(s)


def test_export_with_a_template():
    "the template below is exported with the rest, as the lowest layer"
    with a_stock() as s:
        root = s.state / "templates/tiny/root"
        (root / "etc").mkdir(parents=True)
        (root / "etc/base").write_text("base")
        name = bring_ok(s, im.docker(LOWER))[1]
        path = s.store / "stacks" / name
        data = bytearray(path.read_bytes())
        data[16:16 + 72] = b"tiny".ljust(72, b"\0")
        data[-32:] = hashlib.sha256(data[:-32]).digest()
        path.write_bytes(data)
        back = bring_ok(s, send_out(s, name), st.RESTORE)[1]
        check_equal(len(s.layers_of(back)), 2)
        check_equal(merged(s, back)["etc/base"], b"base")


def test_tampered_exports():
    "an export that was changed, cut off, or whose layers were swapped is refused with what is wrong; an image is none"
    with a_stock() as s:
        archive = send_out(s, bring_ok(s, im.docker(LOWER, UPPER, im.tar(("x", "f", os.urandom(3000)))))[1])
        files = {}
        change_tar(archive, lambda n, c: files.setdefault(n, c))
        manifest = json.loads(files["blobs/sha256/" + json.loads(files["index.json"])["manifests"][0]["digest"][7:]])
        layers = ["blobs/sha256/" + x["digest"][7:] for x in manifest["layers"]]

        def swapped(name, content):
            return files[layers[1]] if name == layers[0] else files[layers[0]] if name == layers[1] else content

        def reordered(name, content):
            """The whole archive made anew by somebody who knows OCI and does not know the sum."""
            new = dict(manifest, layers=manifest["layers"][::-1])
            config = json.loads(files["blobs/sha256/" + manifest["config"]["digest"][7:]])
            config["rootfs"]["diff_ids"].reverse()
            layout = im.Layout()
            new["config"] = dict(manifest["config"], **layout.put(config))
            top = layout.put(new, im.Layout.MANIFEST)
            if name == "index.json":
                return json.dumps({"schemaVersion": 2, "manifests": [top]}).encode()
            if name == "oci-layout":
                extra.update(layout.blobs)
            return content
        extra = {}
        cases = [
            (change_tar(archive, lambda n, c: c[:-1] + bytes([c[-1] ^ 1]) if n == layers[2] else c), layers[2]),
            (change_tar(archive, lambda n, c: None if n == layers[1] else c), layers[1]),
            (change_tar(archive, swapped), layers[0]),
            (change_tar(archive, lambda n, c: c.replace(b'"sum":"sha256:', b'"sum":"sha256:0')[:-1] + b"}" if n == "hutch.json" else c),
             "sum in hutch.json"),
            (change_tar(archive, lambda n, c: None if n == "hutch.json" else c), "no hutch.json"),
            (archive[:len(archive) // 2], ""),
            (archive[:2000], ""),
        ]
        forged = change_tar(archive, reordered)
        out = io.BytesIO(forged)
        with tarfile.open(fileobj=out, mode="a") as t:
            for name, data in extra.items():
                info = tarfile.TarInfo("blobs/sha256/" + name[7:])
                info.size = len(data)
                t.addfile(info, io.BytesIO(data))
        cases.append((out.getvalue(), "was changed"))
        before = s.names("stacks")
        for data, word in cases:
            answer, _ = bring(s, data, st.RESTORE)
            check_equal(answer.error, st.BAD_DATA, f"{word}: {answer}")
            check_in(word, answer.text)
        answer, _ = bring(s, im.oci(LOWER), st.RESTORE)
        check_in("not an export", answer.text)
        check_equal(s.names("stacks"), before)
        clean(s)


def test_attributes_of_an_export():
    "attributes with any name come back from an export; in an image that others made a name is what it is"
    with a_stock() as s:
        names = ["user.a=b", "user.100%25", "user.two words", "user.\u00e9"]
        name = bring_ok(s, im.docker(im.tar(("f", "f"))))[1]
        for key in names:
            os.setxattr(s.roots_of(name)[0] / "f", key, b"v=1")
        back = s.roots_of(bring_ok(s, send_out(s, name), st.RESTORE)[1])[0] / "f"
        check_equal({k: os.getxattr(back, k) for k in os.listxattr(back)}, dict.fromkeys(names, b"v=1"))
        other = im.docker(im.tar(("f", "f", b"", {"pax_headers": {"SCHILY.xattr.user.100%25": "x"}})))
        check_equal(os.listxattr(s.roots_of(bring_ok(s, other)[1])[0] / "f"), ["user.100%25"])


def test_a_removed_file_with_a_long_name():
    "an export that removes a file with a name of 255 bytes can be restored"
    lower, upper = im.tar(("d/" + "n" * 255, "f", b"1"), ("d/x", "f", b"1")), im.tar((f"d/.wh.{'n' * 255}", "f"))
    with a_stock() as s:
        name = bring_ok(s, im.docker(lower, upper))[1]
        check_equal(merged(s, name), {"d/x": b"1"})
        check_equal(s.layers_of(bring_ok(s, send_out(s, name), st.RESTORE)[1]), s.layers_of(name))
        answer, _ = bring(s, im.docker(im.tar((f"d/.wh.{'n' * 256}", "f"))))
        check_equal(answer.error, st.BAD_DATA, answer)
        check_in("longer than 255 bytes", answer.text)


def test_names_that_cannot_go_out():
    "a file whose name means a whiteout in images makes an export fail by name, not silently go missing"
    with a_stock() as s:
        name = bring_ok(s, im.docker(im.tar(("d/x", "f", b"1"))))[1]
        (s.roots_of(name)[0] / "d/.wh.x").write_text("")
        answer = s.ask(st.EXPORT, stack=name)
        check_equal(answer.error, st.BAD_DATA, answer)
        check_in('"d/.wh.x" cannot be exported', answer.text)


def test_no_worker_program():
    "a stock without a program for image workers says so"
    s = st.Stock(HUTCH)
    try:
        answer, _ = bring(s, im.docker(LOWER))
        check_equal(answer.error, st.NO_HOST, answer)
        check_in("--node", answer.text)
    finally:
        s.close()
