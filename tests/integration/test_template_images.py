"""Which image a build starts from: the one that it names, and none that is called nearly so."""
import io
import json
import os
import pathlib
import sys
import tarfile
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
import images as im  # noqa: E402
from daemon import Daemon  # noqa: E402
from hutch_test import check_equal, check_in  # noqa: E402
from node_client import ask, sh  # noqa: E402
from small import fill, small_templates  # noqa: E402
from test_templates import a_box, build, built, image  # noqa: E402


class Registry:
    """Images of one layer by repository and tag; what it was asked for."""
    def __init__(self, root):
        self.root, self.layout, self.tags, self.asked = root, im.Layout(), {}, []

    def put(self, repository, tag, word):
        """An image whose file /word holds that word; its digest."""
        (self.root / "word").write_text(word)
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as t:
            t.add(self.root, arcname=".", filter=lambda i: (setattr(i, "uid", 0), setattr(i, "gid", 0), i)[2])
        manifest = self.layout.image(layer.getvalue())
        self.tags[f"{repository}/manifests/{tag}"] = manifest["digest"]
        self.tags[f"{repository}/manifests/{manifest['digest']}"] = manifest["digest"]
        return manifest["digest"]

    def answer(self, path, headers):
        path = path.removeprefix("/v2/")
        self.asked.append(path)
        digest = path.split("/blobs/")[1] if "/blobs/" in path else self.tags.get(path)
        data = self.layout.blobs.get(digest)
        kind = self.layout.MANIFEST if "/manifests/" in path else "application/octet-stream"
        return (200, {"content-type": kind}, data) if data else (404, {}, b"{}")


def word_of(d, ref):
    """What a template that is built from this image has in its file, and what the build said."""
    said = built(d, "probe", [], fromTemplate=None, fromImage=ref)
    box = a_box(d, "probe")
    text = sh(d, box, "cat /word", user=None).text
    check_equal(ask(d, "DELETE", f"/sandboxes/{box['sandboxID']}").status, 204)
    return text, said


def test_alike():
    "images whose names look alike as templates are two; one that is named by its digest is that one, whatever its tags say"
    with small_templates() as templates, tempfile.TemporaryDirectory(prefix="hutch-image-") as tmp:
        root = pathlib.Path(tmp, "root")
        fill(root)
        r = Registry(root)
        slash = r.put("a/b", "1", "slash")
        r.put("a-b", "1", "dash")
        other = r.put("a/b", "2", "pinned")
        r.put("a/b", other[7:19], "movable")
        with im.serving(r.answer) as host, \
                Daemon(templates=templates, config=f"images:\n  pull: true\n  registries: {host}\n") as d:
            check_equal(word_of(d, f"{host}/a/b:1")[0], "slash")
            check_equal(word_of(d, f"{host}/a-b:1")[0], "dash")
            r.asked.clear()
            check_equal(word_of(d, f"{host}/a/b:1")[0], "slash")  # neither has replaced the other
            check_equal(word_of(d, f"{host}/a/b@{slash}")[0], "slash")  # the digest of what is there
            check_equal(r.asked, [])
            check_equal(word_of(d, f"{host}/a/b:{other[7:19]}")[0], "movable")
            check_equal(word_of(d, f"{host}/a/b@{other}")[0], "pinned")
            check_equal(word_of(d, f"{host}/a/b:{other[7:19]}")[0], "movable")


def test_own_names():
    "what somebody imported under a name is found by it, also by one that leaves out what others may share; a digest it is not"
    with small_templates() as templates, Daemon(templates=templates) as d, \
            tempfile.TemporaryDirectory(prefix="hutch-image-") as tmp:
        root, file = pathlib.Path(tmp, "root"), pathlib.Path(tmp, "tiny.tar")
        fill(root)
        (root / "word").write_text("own")
        file.write_bytes(image(root))
        d.cli("template", "import", "-t", "ghcr-io-a-b:1", str(file))
        text, said = word_of(d, "ghcr.io/a/b:1")
        check_equal(text, "own")
        check_in("ghcr.io/a/b:1 is taken from the template that a user named ghcr-io-a-b:1", said)
        end, _ = build(d, "no", [], fromTemplate=None, fromImage="ghcr.io/a/c:1")
        name = end["reason"]["message"].split("`-t ")[1].split("`")[0]
        d.cli("template", "import", "-t", name, str(file))
        text, said = word_of(d, "ghcr.io/a/c:1")
        check_equal((text, [s for s in said if "somebody" in s]), ("own", []))
        digest = "0123456789ab" * 5 + "cdef"
        d.cli("template", "import", "-t", f"tiny:{digest[:12]}", str(file))
        built(d, "yes", [], fromTemplate=None, fromImage=f"tiny:{digest[:12]}")
        end, _ = build(d, "no", [], fromTemplate=None, fromImage=f"tiny@sha256:{digest}")
        check_in("does not prove the digest", json.dumps(end))
