"""The programs that are compared: how each is called so that its isolation is as close to hutch's as it can be.

Every contender shows the host's root read-only, the current directory writable, a private /tmp, no network but loopback,
and its own processes. What it does not do is in `lacks` and ends up beside the numbers.
"""
import dataclasses
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess

import workloads

SRT_PACKAGE, SRT_VERSION = "@anthropic-ai/sandbox-runtime", "0.0.83"
NODE_FOR_SRT, NODE_VERSION = (22, 12), "22.23.3"  # what srt asks for; the npm package `node` if the machine's is older


@dataclasses.dataclass
class Contender:
    """`argv(workload, cwd)` gives the command line. `weight` divides the number of runs of slow ones."""
    name: str
    who: str
    version: str = ""
    missing: str = ""  # why it cannot be measured here
    lacks: str = ""
    flags: str = ""    # how it was called, for the reader
    weight: int = 1
    prefix: tuple = ()

    @property
    def key(self):
        return f"{self.name} ({self.who})"

    def argv(self, workload, cwd):
        raise NotImplementedError

    def command(self, workload):
        return workloads.SLEEP if workload == "sleep" else workloads.STARTS[workload][0]


def version_of(*argv):
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\d+(\.\d+)+[\w.+~-]*", done.stdout)
    return found.group(0) if found else done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""


class Plain(Contender):
    """No sandbox: fork and exec."""

    def argv(self, workload, cwd):
        return self.command(workload)


class Hutch(Contender):
    def argv(self, workload, cwd):
        return [self.program, "run", "--", *self.command(workload)]


class Bwrap(Contender):
    def argv(self, workload, cwd):
        return ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--bind", cwd, cwd,
                "--chdir", cwd, "--unshare-all", "--die-with-parent", "--new-session", *self.command(workload)]


class Firejail(Contender):
    def argv(self, workload, cwd):
        return ["firejail", "--quiet", "--noprofile", "--net=none", "--ipc-namespace", "--private-tmp", "--private-dev",
                "--read-only=/", f"--read-write={cwd}", "--caps.drop=all", "--nonewprivs", "--seccomp",
                *self.command(workload)]


class Srt(Contender):
    def argv(self, workload, cwd):
        return [*self.program, "--settings", self.settings, "--", *self.command(workload)]


class Oci(Contender):
    """crun and runc: one bundle per workload, host root as the bundle's read-only root file system.

    The root is bound in a mount namespace of its own, around the whole batch, so nothing can be left mounted.
    """

    def prepare(self, folder):
        self.folder = folder / self.name
        (self.folder / "rootfs").mkdir(parents=True)
        (self.folder / "state").mkdir()
        script = f'mount --rbind / "{self.folder}/rootfs" && exec "$@"'
        if self.name == "crun" and os.path.ismount("/sys/fs/cgroup/unified"):
            # crun will not start on a hybrid hierarchy; without the v2 mount in sight it takes the host for v1.
            script = f"umount /sys/fs/cgroup/unified && {script}"
            self.flags += "; the cgroup2 mount of this hybrid host hidden from it, else it refuses to start"
        self.prefix = ("unshare", "--mount", "--propagation", "private", "--", "sh", "-c", script, "sh")

    def argv(self, workload, cwd):
        bundle = self.folder / workload
        if not bundle.exists():
            bundle.mkdir()
            (bundle / "config.json").write_text(json.dumps(self.config(workload, cwd)))
        return [self.name, "--root", self.folder / "state", "run", "--bundle", bundle, f"hutch-bench-{self.name}-{{}}"]

    def config(self, workload, cwd):
        def mount(destination, kind, *options, source=None):
            return {"destination": destination, "type": kind, "source": source or kind, "options": list(options)}
        return {
            "ociVersion": "1.0.2", "hostname": "bench", "root": {"path": str(self.folder / "rootfs"), "readonly": True},
            "process": {"terminal": False, "user": {"uid": 0, "gid": 0}, "args": self.command(workload), "cwd": str(cwd),
                        "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"],
                        "capabilities": {"bounding": [], "effective": [], "permitted": []}, "noNewPrivileges": True},
            "mounts": [mount("/proc", "proc"), mount("/dev", "tmpfs", "nosuid", "mode=755", "size=65536k"),
                       mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
                       mount("/tmp", "tmpfs", "nosuid", "nodev"),
                       mount(str(cwd), "bind", "bind", "rw", source=str(cwd))],
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
                      "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
                      "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]}}


# --- finding and installing ---------------------------------------------------------------------------------------------

def install_srt(cache):
    """srt and, if the machine's is too old, a Node for it. Returns (folder of the module, why not)."""
    module = cache / "node_modules" / SRT_PACKAGE
    lacking = [tool for tool in ("npm", "node", "rg", "socat", "bwrap") if not shutil.which(tool)]
    if lacking:
        return None, f"not on this machine: {', '.join(lacking)} (srt needs npm to install, the rest to run)"
    own = tuple(map(int, (version_of("node", "--version") or "0.0").split(".")[:2]))
    packages = [f"{SRT_PACKAGE}@{SRT_VERSION}"] + ([f"node@{NODE_VERSION}"] if own < NODE_FOR_SRT else [])
    stamp = cache / "installed"
    if not stamp.exists() or stamp.read_text() != " ".join(packages):
        try:
            cache.mkdir(exist_ok=True)
            stamp.unlink(missing_ok=True)
            (cache / "package.json").write_text('{"private": true}\n')
            done = subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--no-save", *packages], cwd=cache, text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                                  timeout=600)
        except OSError as error:
            return None, f"cannot be installed: {error}"
        except subprocess.TimeoutExpired:
            return None, f"npm could not install {' '.join(packages)} within 10 minutes"
        if done.returncode != 0:
            lines = [line for line in done.stdout.splitlines() if "error" in line.lower()]
            return None, f"npm could not install {' '.join(packages)}: {(lines or ['no message'])[0].strip()}"
        stamp.write_text(" ".join(packages))
    return module, ""


def make_srt(folder, top, who):
    """srt runs as the ordinary user, who may not be able to reach the source tree: it gets a copy."""
    srt = Srt("srt", who, weight=12, flags="settings: no domain allowed, writes only to the current directory",
              lacks="no Landlock, no resource limits")
    cache = top / "build-bench"  # ignored by git, removed by `make clean`, not looked at by `make check`
    _, srt.missing = install_srt(cache)
    if srt.missing:
        return srt
    copy = folder / "srt"
    shutil.copytree(cache / "node_modules", copy / "node_modules", symlinks=True)
    node = copy / "node_modules/node/bin/node"
    srt.program = [str(node) if node.exists() else shutil.which("node"),
                   str(copy / "node_modules" / SRT_PACKAGE / "dist/cli.js")]
    srt.settings = folder / "srt.json"
    srt.settings.write_text(json.dumps({"network": {"allowedDomains": [], "deniedDomains": []},
                                        "filesystem": {"denyRead": [], "allowWrite": ["."], "denyWrite": []}}))
    srt.version = f"{SRT_VERSION} on Node {version_of(srt.program[0], '--version')}"
    return srt


def make_oci(name, folder, is_root):
    weight = {"crun": 1, "runc": 4}[name]
    oci = Oci(name, "root", weight=weight,
              flags="bundle with the host's root read-only, no capabilities, own network namespace",
              lacks="no user namespace, seccomp filter, Landlock or hidden credentials in this bundle")
    if not shutil.which(name):
        oci.missing = "not on this machine"
    elif not is_root:
        oci.missing = "measured as root only"
    else:
        oci.version = version_of(name, "--version")
        oci.prepare(folder)
    return oci


NAMES = ("plain", "hutch", "bwrap", "crun", "runc", "firejail", "srt")


def find(folder, top, hutch, identities, wanted):
    """The contenders whose names are wanted, also those that cannot run here, in the order in which they are reported."""
    found = []
    for who in identities:
        plain = Plain("plain", who, version=f"Linux {platform.release()}", flags="fork and exec", lacks="everything")
        sandbox = Hutch("hutch", who, version=version_of(hutch, "--version"), flags="`hutch run --`, defaults")
        sandbox.program = hutch
        bwrap = Bwrap("bwrap", who, version=version_of("bwrap", "--version"),
                      flags="--ro-bind / / --dev --proc --tmpfs /tmp --bind CWD --unshare-all --die-with-parent --new-session",
                      lacks="no seccomp filter, Landlock, limits, protected names or hidden credentials with these flags")
        bwrap.missing = "" if shutil.which("bwrap") else "not on this machine"
        found += [plain, sandbox, bwrap]
    is_root = "root" in identities
    found += [make_oci(name, folder, is_root) for name in ("crun", "runc") if name in wanted]
    ordinary = "user" if "user" in identities else identities[0]
    firejail = Firejail("firejail", ordinary, version=version_of("firejail", "--version"), weight=4,
                        flags="--noprofile --net=none --ipc-namespace --private-tmp --private-dev --read-only=/ "
                              "--read-write=CWD --caps.drop=all --nonewprivs --seccomp",
                        lacks="a setuid root program; no user namespace, Landlock or limits")
    firejail.missing = "" if shutil.which("firejail") else "not on this machine"
    found += [firejail] + ([make_srt(folder, top, ordinary)] if "srt" in wanted else [])
    return [contender for contender in found if contender.name in wanted]


def left_cgroups():
    """cgroups of ours that a runtime has not removed; there should be none."""
    return [path for path in pathlib.Path("/sys/fs/cgroup").glob("**/hutch-bench-*") if path.is_dir()]
