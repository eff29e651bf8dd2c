"""The others of bench/state: what can make a copy of a tree, an image of a container, a tree of an image.

A peer has a method for each operation that it has something comparable for. Such a method does one round and returns the measured
milliseconds (and bytes) by name; what it does before and after the clock runs is not counted. begin() and end() are around all rounds
of an operation with one load. Everything a peer makes lies below the folder it was given.
"""
import contextlib
import json
import os
import pathlib
import resource
import shutil
import subprocess
import time

LONGEST = 1800  # seconds for one command
BOX = "hutch-bench-box"
BASE, MADE, KEPT, BUILT = (f"hutch-bench-{name}:1" for name in ("base", "made", "kept", "built"))


def call(*words, **how):
    """Runs a command; its standard output. A failure is a RuntimeError with the last line that it said."""
    done = subprocess.run(list(map(str, words)), text=True, stdin=subprocess.DEVNULL, capture_output=True, check=False,
                          timeout=LONGEST, **how)
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()
        raise RuntimeError(f"{words[0]}: {lines[-1][:300]}")
    return done.stdout.strip()


def script(text, *words):
    return call("bash", "-o", "pipefail", "-c", text, "bench", *words)


@contextlib.contextmanager
def clock(into, name):
    begin = time.monotonic_ns()
    yield
    into[name] = (time.monotonic_ns() - begin) / 1e6


def du(*paths):
    """Bytes that are allocated below, a file with several names once."""
    lines = call("du", "-s", "-c", "-B1", *paths).splitlines()
    return int(lines[-1].split()[0])


def used(place):
    """Bytes in use of the file system, which must be nobody else's."""
    call("sync", "-f", place)
    s = os.statvfs(place)
    return (s.f_blocks - s.f_bfree) * s.f_frsize


class Loop:
    """A file system of its own in a sparse file, mounted; gone afterwards."""
    MAKE = {"xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"], "btrfs": ["mkfs.btrfs", "-q"]}
    OPTIONS = {"xfs": ["loop,prjquota", "loop"], "btrfs": ["loop"]}  # not every kernel has quotas for xfs

    def __init__(self, folder, name, kind, size):
        self.file, self.place, self.kind, self.size = folder / f"{name}.image", folder / name, kind, size

    def __enter__(self):
        self.place.mkdir()
        with open(self.file, "wb") as f:
            f.truncate(self.size)
        call(*self.MAKE[self.kind], self.file)
        for options in self.OPTIONS[self.kind]:
            try:
                call("mount", "-o", options, self.file, self.place)
                return self.place
            except RuntimeError as error:
                reason = error
        raise RuntimeError(f"cannot mount {self.kind}: {reason}")

    def __exit__(self, *_):
        for _ in range(50):
            if not os.path.ismount(self.place):
                break
            if subprocess.run(["umount", self.place], stderr=subprocess.DEVNULL, check=False).returncode != 0:
                time.sleep(0.1)
        self.file.unlink(missing_ok=True)


class Peer:
    """What all have: a name, why it is not here, what its numbers do not contain."""
    name, note = "", ""
    ours = False

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.count = 0

    def missing(self):
        return ""

    def begin(self, operation, load):
        pass

    def end(self, operation):
        pass

    def close(self):
        pass

    def fresh(self):
        self.count += 1
        return self.folder / f"copy-{self.count}"


def lacks(*programs):
    absent = [p for p in programs if not shutil.which(p)]
    return f"not on this machine: {', '.join(absent)}" if absent else ""


# --- copies of trees -----------------------------------------------------------------------------------------------------

class Cp(Peer):
    name, note = "cp -a", "on the file system of the node's state; a tree, nothing runs in it, nothing is synced"
    command, after, cheap = ["cp", "-a"], [], False

    def begin(self, operation, load):
        self.folder.mkdir(exist_ok=True)
        self.tree = self.folder / "tree"
        call("cp", "-a", load.tree, self.tree)

    def end(self, operation):
        shutil.rmtree(self.tree, ignore_errors=True)

    def copies(self, into, name, n=1):
        made = [self.fresh() for _ in range(n)]
        with clock(into, name):
            for to in made:
                call(*self.command, self.tree, to)
                if self.after:
                    call(*self.after, to)
        return made

    def drop(self, made):
        for to in made:
            shutil.rmtree(to)

    def size(self, made, before):
        return du(*made)

    def before(self):
        return 0

    def snapshot(self, load):
        found, before = {}, self.before()
        made = self.copies(found, "ms")
        found["disk"] = self.size(made, before)
        self.drop(made)
        return found

    def restore(self, load):
        found = {}
        self.drop(self.copies(found, "ms"))
        return found

    def fork(self, load):
        found = {}
        for n in (1,) if load.large and not self.cheap else (1, 10):  # ten take ten times as long, and minutes
            self.drop(self.copies(found, f"fork{n}", n))
        return found

    def history(self, load):
        found = {}
        self.drop(self.copies(found, "generation"))
        return found


class CpSynced(Cp):
    name, note = "cp -a, sync -f", "the same, and on disk when it is done, as hutch's layers are"
    after = ["sync", "-f"]


class Reflink(Cp):
    name, note = "cp --reflink", "on xfs; a tree, nothing is synced"
    command, cheap = ["cp", "-a", "--reflink=always"], True

    def before(self):
        return used(self.folder)

    def size(self, made, before):
        return max(0, used(self.folder) - before)


class Subvolume(Reflink):
    name, note = "btrfs snapshot", "`btrfs subvolume snapshot`; a tree"
    command = ["btrfs", "-q", "subvolume", "snapshot"]

    def missing(self):
        return lacks("btrfs")

    def begin(self, operation, load):
        self.folder.mkdir(exist_ok=True)
        self.tree = self.folder / "tree"
        call("btrfs", "-q", "subvolume", "create", self.tree)
        call("cp", "-a", f"{load.tree}/.", self.tree)

    def drop(self, made):
        call("btrfs", "-q", "subvolume", "delete", *made)

    def end(self, operation):
        self.drop([self.tree])


class TarZstd(Peer):
    name, note = "tar, zstd -1", "a compressed archive and back; a tree, nothing is synced"

    def missing(self):
        return lacks("zstd")

    def begin(self, operation, load):
        self.folder.mkdir(exist_ok=True)
        self.tree, self.file = load.tree, self.folder / "archive"
        if operation == "restore":
            self.pack()

    def end(self, operation):
        self.file.unlink(missing_ok=True)

    def pack(self):
        script('tar -C "$1" -c . | zstd -q -1 -f -o "$2"', self.tree, self.file)

    def snapshot(self, load):
        found = {}
        with clock(found, "ms"):
            self.pack()
        return {**found, "disk": du(self.file)}

    def restore(self, load):
        found, to = {}, self.fresh()
        to.mkdir()
        with clock(found, "ms"):
            script('zstd -q -d -c "$1" | tar -C "$2" -x', self.file, to)
        shutil.rmtree(to)
        return found


class Tar(Peer):
    name, note = "tar -x", "the image's one layer, unpacked; a tree, nothing is checked or synced"

    def begin(self, operation, load):
        self.folder.mkdir(exist_ok=True)

    def importing(self, load):
        found, to = {}, self.fresh()
        to.mkdir()
        with clock(found, "ms"):
            call("tar", "-C", to, "-xf", load.layer)
        shutil.rmtree(to)
        return found


# --- images -------------------------------------------------------------------------------------------------------------

class Umoci(Peer):
    name, note = "umoci", "`repack` makes a compressed layer of a tree, `unpack` a tree of an image"

    def missing(self):
        return lacks("umoci")

    def begin(self, operation, load):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.layout, self.bundle = self.folder / "layout", self.folder / "bundle"
        if operation == "importing":
            return
        call("umoci", "init", "--layout", self.layout)
        call("umoci", "new", "--image", f"{self.layout}:base")
        call("umoci", "unpack", "--image", f"{self.layout}:base", self.bundle)
        call("cp", "-a", f"{load.tree}/.", self.bundle / "rootfs")
        if operation == "restore":
            call("umoci", "repack", "--image", f"{self.layout}:kept", self.bundle)

    def end(self, operation):
        shutil.rmtree(self.folder, ignore_errors=True)

    def snapshot(self, load):
        found, before = {}, du(self.layout)
        with clock(found, "ms"):
            call("umoci", "repack", "--image", f"{self.layout}:made", self.bundle)
        found["disk"] = du(self.layout) - before
        call("umoci", "rm", "--image", f"{self.layout}:made")
        call("umoci", "gc", "--layout", self.layout)
        return found

    def unpack(self, image):
        found, to = {}, self.fresh()
        with clock(found, "ms"):
            call("umoci", "unpack", "--image", image, to)
        shutil.rmtree(to)
        return found

    def restore(self, load):
        return self.unpack(f"{self.layout}:kept")

    def importing(self, load):
        return self.unpack(f"{load.layout}:image")


class Podman(Peer):
    name, note = "podman", "as root, overlay storage of its own, without network"
    REMOVE = ("rm", "-f", "-t", "0")
    DRIVERS, RUNTIMES = ("overlay", "vfs"), (("crun", "disabled"), ("crun", "enabled"), ("runc", "enabled"))

    def __init__(self, folder, base):
        super().__init__(folder)
        self.base = base  # the tree that all start from
        self.words, self.run_words = ["podman"], ["--network=none"]
        self.cgroup = f"/hutch-bench-{os.getpid()}"
        self.run = pathlib.Path(f"/run/hutch-bench-{os.getpid()}")  # podman allows 50 characters
        self.env = dict(os.environ)

    def tool(self, *words):
        return call(*self.words, *words, env=self.env)

    def missing(self):
        reason = lacks("podman")
        return reason or self.settle()

    def settle(self):
        """The first way in which it can run something here; why, if there is none."""
        self.folder.mkdir()
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        config = self.folder / "containers.conf"
        config.write_text(f'[containers]\ndefault_ulimits = ["nofile=1024:{hard}", "nproc=1024:1024"]\n'
                          '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n')
        self.env["CONTAINERS_CONF"] = str(config)
        reasons = []
        for driver in self.DRIVERS:
            self.words = ["podman", "--root", self.folder / "root", "--runroot", self.run, "--storage-driver", driver]
            try:
                script('tar -C "$1" -c . | CONTAINERS_CONF="$2" "${@:3}" import -q - hutch-bench-base:1', self.base, config,
                       *self.words)
            except RuntimeError as error:
                reasons.append(f"{driver}: {error}")
                continue
            for runtime, cgroups in self.RUNTIMES:
                self.words = [*self.words[:7], "--runtime", runtime]
                parent = [] if cgroups == "disabled" else ["--cgroup-parent", self.cgroup]
                self.run_words = ["--network=none", f"--cgroups={cgroups}", *parent]
                try:
                    self.tool("run", "--rm", *self.run_words, BASE, "/bin/true")
                    self.note = f"as root, {driver} storage of its own, {runtime}, --cgroups={cgroups}, --network=none"
                    return ""
                except RuntimeError as error:
                    reasons.append(f"{driver}, {runtime}, cgroups {cgroups}: {error}")
        return "cannot run here: " + "; ".join(reasons)

    def begin(self, operation, load):
        if operation in ("importing", "build"):
            return
        self.tool("run", "-d", "--name", BOX, *self.run_words, BASE, "/bin/sleep", "100000")
        self.tool("cp", load.tree, f"{BOX}:/home/user/load")
        if operation == "restore":
            self.commit(KEPT)

    def end(self, operation):
        if operation not in ("importing", "build"):
            self.tool(*self.REMOVE, BOX)
        with contextlib.suppress(RuntimeError):
            self.tool("rmi", "-f", KEPT)

    def commit(self, image):
        self.tool("commit", "-q", "--pause=true", BOX, image)

    def snapshot(self, load):
        found = {}
        before = du(self.folder / "root")
        with clock(found, "ms"):
            self.commit(MADE)
        found["disk"] = du(self.folder / "root") - before
        self.tool("rmi", "-f", MADE)
        return found

    def restore(self, load):
        found = {}
        with clock(found, "ms"):
            process = subprocess.Popen([*map(str, self.words), "run", "--rm", *self.run_words, KEPT, "/bin/cat",
                                        "/home/user/load/round"], env=self.env, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            first = process.stdout.read(1)
        process.communicate()
        if not first:
            raise RuntimeError("podman run: no output")
        return found

    def fork(self, load):
        found = {}
        for n in (1, 10):
            names = [f"{BOX}-{i}" for i in range(n)]
            with clock(found, f"fork{n}"):
                self.commit(MADE)
                runs = [subprocess.Popen([*map(str, self.words), "run", "-d", "--name", name, *self.run_words, MADE, "/bin/sleep",
                                          "1000"], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL) for name in names]
                codes = [run.wait() for run in runs]
            self.tool(*self.REMOVE, *names)
            self.tool("rmi", "-f", MADE)
            if any(codes):
                raise RuntimeError(f"podman run -d: status {max(codes)}")
        return found

    def pause(self, load):
        found = {}
        with clock(found, "pause"):
            self.tool("pause", BOX)
        with clock(found, "resume"):
            self.tool("unpause", BOX)
        return found

    def files(self, load):
        found = {}
        with clock(found, "pause"):
            self.tool("stop", "-t", "0", BOX)
        with clock(found, "resume"):
            self.tool("start", BOX)
            self.tool("exec", BOX, "/bin/cat", "/home/user/load/round")
        return found

    def importing(self, load):
        found = {}
        with clock(found, "ms"):
            said = self.tool("load", "-q", "-i", load.archive)
        self.tool("rmi", "-f", said.split(":", 1)[1].strip().split(",")[0])
        return found

    def build(self, load):
        found = {}
        file = self.folder / "Dockerfile"
        file.write_text("FROM hutch-bench-base:1\nCOPY load /srv/load\nRUN echo built > /srv/made\n")
        for name in ("cold", "cached"):
            with clock(found, name):
                self.tool("build", "-q", "--layers", "--isolation=chroot", "-f", file, "-t", BUILT, load.folder)
        self.tool("rmi", "-f", BUILT)
        with contextlib.suppress(RuntimeError):
            self.tool("image", "prune", "-f")
        return found

    def close(self):
        if not self.folder.exists():
            return
        with contextlib.suppress(RuntimeError):
            self.tool("rm", "-af", "-t", "0")
        mounts = [line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
        for place in reversed([m for m in mounts if m.startswith((f"{self.folder}/", f"{self.run}/"))]):
            subprocess.run(["umount", "-l", place], check=False)
        for _ in range(50):  # processes that were killed a moment ago may still be in them
            left = [top for top, _, _ in os.walk("/sys/fs/cgroup", topdown=False) if f"{self.cgroup}/" in f"{top}/"]
            if not left:
                break
            for top in left:
                with contextlib.suppress(OSError):
                    os.rmdir(top)
            time.sleep(0.1)
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.run, ignore_errors=True)


class Docker(Podman):
    name, note = "docker", "a dockerd of its own, as root, overlay2, without network"
    REMOVE = ("rm", "-f")

    def __init__(self, folder, base):
        super().__init__(folder, base)
        self.run, self.cgroup, self.daemon = pathlib.Path(f"/run/hutch-bench-{os.getpid()}d"), f"{self.cgroup}d", None

    def missing(self):
        reason = lacks("docker", "dockerd", "containerd")
        if reason:
            return reason
        self.folder.mkdir()
        self.run.mkdir()
        self.words, self.run_words = ["docker", "-H", f"unix://{self.run}/docker.sock"], ["--network=none"]
        self.env["DOCKER_BUILDKIT"] = "0"  # the daemon's own builder; the other one is a plugin that may be missing
        try:
            self.start()
            script('tar -C "$1" -c . | "${@:2}" import - hutch-bench-base:1', self.base, *self.words)
            self.tool("run", "--rm", *self.run_words, BASE, "/bin/true")
        except RuntimeError as error:
            return f"cannot run here: {error}"
        return ""

    def start(self):
        # Its containerd must not be the machine's either: what is left after a kill -9 would be in nobody's list.
        with open(self.folder / "log", "wb") as log:
            self.daemon = subprocess.Popen(["dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none", "--data-root", self.folder / "root", "--exec-root",
                                            self.run / "exec", "--pidfile", self.run / "pid", "--cgroup-parent", self.cgroup, "-H",
                                            f"unix://{self.run}/docker.sock"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        stop = time.monotonic() + 30
        while self.daemon.poll() is None and time.monotonic() < stop:
            with contextlib.suppress(RuntimeError):
                self.tool("version", "--format", "{{.Server.Version}}")
                return
            time.sleep(0.2)
        raise RuntimeError("dockerd: " + (self.folder / "log").read_text(errors="replace")[-300:])

    @property
    def importing(self):
        raise AttributeError("Debian's docker cannot load an OCI layout")

    def build(self, load):
        found = {}
        file = self.folder / "Dockerfile"
        file.write_text("FROM hutch-bench-base:1\nCOPY load /srv/load\nRUN echo built > /srv/made\n")
        for name in ("cold", "cached"):
            with clock(found, name):
                self.tool("build", "-q", "-f", file, "-t", BUILT, load.folder)
        self.tool("rmi", "-f", BUILT)
        return found

    def commit(self, image):
        self.tool("commit", "--pause=true", BOX, image)

    def close(self):
        if not self.folder.exists():
            return
        for words in ((*self.REMOVE, BOX), ("rmi", "-f", KEPT, MADE, BUILT, BASE)):
            with contextlib.suppress(RuntimeError):
                self.tool(*words)
        if self.daemon:
            self.daemon.terminate()
            self.daemon.wait()
        super().close()


def layout_of(folder, layer, digest, config_digest, manifest, config):
    """An OCI layout of one layer, whose file it hard-links."""
    blobs = folder / "blobs/sha256"
    shutil.rmtree(folder, ignore_errors=True)
    blobs.mkdir(parents=True)
    os.link(layer, blobs / digest)
    (blobs / config_digest).write_bytes(config)
    (blobs / manifest["digest"][7:]).write_bytes(manifest.pop("data"))
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
