"""Image archives made by hand, right and wrong ones, and registries on loopback to get them from."""
import base64
import bz2
import contextlib
import gzip
import hashlib
import http.client
import http.server
import io
import json
import lzma
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.parse

from daemon import free_port  # also for who imports this


def zstd(data):
    return subprocess.run(["zstd", "-q", "-1", "-c"], input=data, stdout=subprocess.PIPE, check=True).stdout


PACKERS = {"plain": bytes, "gzip": gzip.compress, "zstd": zstd, "xz": lzma.compress, "bzip2": bz2.compress}


def tar(*entries, format=tarfile.PAX_FORMAT):
    """Entries are (name, kind, content or target, {fields of TarInfo}); kinds f d l h c p."""
    out = io.BytesIO()
    kinds = {"f": tarfile.REGTYPE, "d": tarfile.DIRTYPE, "l": tarfile.SYMTYPE, "h": tarfile.LNKTYPE, "c": tarfile.CHRTYPE,
             "p": tarfile.FIFOTYPE}
    with tarfile.open(fileobj=out, mode="w", format=format) as t:
        for name, kind, *rest in entries:
            info, data = tarfile.TarInfo(name), b""
            info.type, info.mtime, info.mode = kinds[kind], 1000, 0o755 if kind == "d" else 0o644
            if kind == "f":
                data = rest[0] if rest else b""
                info.size = len(data)
            elif kind in "lh":
                info.linkname = rest[0]
            elif kind == "c":
                info.devmajor, info.devminor = 1, 3
            for key, value in (rest[1] if len(rest) > 1 else {}).items():
                setattr(info, key, value)
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def config_of(layers, **changes):
    return json.dumps({"architecture": "amd64", "os": "linux", "config": {"Env": ["A=1"]},
                       "rootfs": {"type": "layers", "diff_ids": [digest(x) for x in layers]}, **changes}).encode()


def docker(*layers, pack=bytes, tag="test:1", **changes):
    """As `docker save` writes it, layers bottom first."""
    config = config_of(layers, **changes)
    names = [f"{i:064x}/layer.tar" for i in range(len(layers))]
    manifest = [{"Config": digest(config)[7:] + ".json", "RepoTags": [tag], "Layers": names}]
    return tar(*[(n, "f", pack(x)) for n, x in zip(names, layers)], (manifest[0]["Config"], "f", config),
               ("manifest.json", "f", json.dumps(manifest).encode()))


class Layout:
    """Blobs and the documents that name them."""
    INDEX, MANIFEST = "application/vnd.oci.image.index.v1+json", "application/vnd.oci.image.manifest.v1+json"

    def __init__(self):
        self.blobs = {}

    def put(self, data, media="application/octet-stream", **fields):
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.blobs[digest(data)] = data
        return {"mediaType": media, "digest": digest(data), "size": len(data), **fields}

    def image(self, *layers, pack=bytes, fields=None, **changes):
        config = self.put(config_of(layers, **changes), "application/vnd.oci.image.config.v1+json")
        return self.put({"schemaVersion": 2, "mediaType": self.MANIFEST, "config": config,
                         "layers": [self.put(pack(x)) for x in layers]}, self.MANIFEST, **(fields or {}))

    def archive(self, *manifests):
        index = {"schemaVersion": 2, "manifests": list(manifests)}
        return tar(("oci-layout", "f", b'{"imageLayoutVersion":"1.0.0"}'), ("index.json", "f", json.dumps(index).encode()),
                   *[("blobs/sha256/" + name[7:], "f", data) for name, data in self.blobs.items()])


def oci(*layers, **arguments):
    layout = Layout()
    return layout.archive(layout.image(*layers, **arguments))


@contextlib.contextmanager
def a_file(data):
    with tempfile.TemporaryFile() as f:
        f.write(data)
        f.flush()
        f.seek(0)
        yield f.fileno()


# --- registries ---------------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def a_registry(user=None, password=None):
    """Debian's docker-registry on loopback: "127.0.0.1:PORT"."""
    folder, port = pathlib.Path(tempfile.mkdtemp(prefix="hutch-registry-")), free_port()
    auth = ""
    if user:
        import crypt
        salt = crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=16)
        (folder / "htpasswd").write_text(f"{user}:{crypt.crypt(password, salt)}\n")
        auth = f"auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}\n"
    (folder / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\n{auth}"
        f"storage: {{filesystem: {{rootdirectory: {folder}/data}}}}\nhttp: {{addr: 127.0.0.1:{port}}}\n")
    process = subprocess.Popen(["docker-registry", "serve", folder / "config.yml"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as c:
                c.request("GET", "/v2/")
                c.getresponse().read()
                break
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("docker-registry did not start")
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


@contextlib.contextmanager
def serving(handler, address="127.0.0.1"):
    """A handler(path, headers) -> (status, headers, body) on loopback: "127.0.0.1:PORT"."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, headers, body = handler(self.path, self.headers)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "content-length" not in headers:
                self.send_header("content-length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_):
            pass
    server = Server((address, 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class TokenRegistry:
    """What large registries do: a token from another place, blobs from a third one. `seen` keeps who was told what."""

    def __init__(self, layout, manifest, user="me", password="secret", change=None):
        self.layout, self.manifest, self.change, self.seen = layout, manifest, change or (lambda data: data), []
        self.basic = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        self.store = self.stack.enter_context(serving(self.on_store))
        self.auth = self.stack.enter_context(serving(self.on_auth))
        self.host = self.stack.enter_context(serving(self.on_registry))
        return self

    def __exit__(self, *_):
        self.stack.close()

    def on_auth(self, path, headers):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)
        self.seen.append(("auth", headers.get("authorization"), query))
        if headers.get("authorization") != self.basic:
            return 401, {}, b"{}"
        return 200, {}, json.dumps({"token": "the-token"}).encode()

    def on_registry(self, path, headers):
        self.seen.append(("registry", headers.get("authorization"), path))
        if headers.get("authorization") != "Bearer the-token":
            return 401, {"www-authenticate": f'Bearer realm="http://{self.auth}/token",service="test",'
                                             f'scope="repository:a/b:pull"'}, b""
        if "/manifests/" in path:
            return 200, {"content-type": Layout.MANIFEST}, self.layout.blobs[self.manifest["digest"]]
        return 307, {"location": f"http://{self.store}/blob/{path.rsplit('/', 1)[1]}?signature=x"}, b""

    def on_store(self, path, headers):
        self.seen.append(("store", headers.get("authorization"), path))
        name = path.rsplit("/", 1)[1].split("?")[0]
        return 200, {}, self.change(self.layout.blobs[name])
