"""The stage of a red-team run: what is planted on the host before, and what is counted before and after."""
import ctypes
import hashlib
import os
import pty
import pwd
import secrets
import shutil
import socket
import stat
import struct
import subprocess
import tempfile
import threading

MARK = "HUTCH-" + "CANARY-"
LIBC = ctypes.CDLL(None, use_errno=True)

HOME_SECRETS = [".ssh/id_ed25519", ".aws/credentials", ".bash_history", ".netrc", ".config/gh/hosts.yml", ".docker/config.json",
                ".kube/config", ".npmrc", ".mozilla/firefox/x.default/logins.json", ".gnupg/private-keys-v1.d/key",
                ".config/gcloud/credentials.db", ".git-credentials", ".pypirc"]
TOKEN_VARS = ["GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "NPM_TOKEN"]


def canary():
    return MARK + secrets.token_hex(12)


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, mode)
    return path


def sha(path):
    if not os.path.exists(path):
        return "missing"
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


class Listener:
    """Accepts and records; a sandbox must never appear here. `allow` is set while the positive control runs."""

    def __init__(self, family, address, kind=socket.SOCK_STREAM):
        self.sock = socket.socket(family, kind)
        self.sock.bind(address)
        if kind == socket.SOCK_STREAM:
            self.sock.listen(64)
        self.kind, self.heard = kind, 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                if self.kind == socket.SOCK_DGRAM:
                    self.sock.recv(64)
                else:
                    self.sock.accept()[0].close()
            except OSError:
                return
            self.heard += 1

    def close(self):
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.sock.close()


class Stage:
    """Everything planted for one caller (root or an ordinary user). close() takes all of it away."""

    def __init__(self, where, probe, user=None):
        self.pw = pwd.getpwnam(user) if user else pwd.getpwuid(os.getuid())
        self.uid, self.gid = self.pw.pw_uid, self.pw.pw_gid
        self.is_root = self.uid == 0
        self.extra, self.listeners, self.sentinel = [], {}, None
        self.base = tempfile.mkdtemp(prefix="hutch-redteam-", dir=where)
        os.chmod(self.base, 0o755)
        self.tag = os.path.basename(self.base)
        self.home, self.ws = self.path("home"), self.path("ws")
        self.outside, self.bin = self.path("outside"), self.path("bin")
        for d in (self.home, self.ws, self.outside, self.bin):
            os.mkdir(d)
        self.probe = os.path.join(self.bin, "hutch-probe")
        shutil.copy(probe, self.probe)
        os.chmod(self.probe, 0o755)
        self.vars = {"home": self.home, "hostname": socket.gethostname()}
        self._files()
        self.workspace(self.ws)
        self._ipc()
        self._sockets()
        self._sentinel()
        self.terminal = pty.openpty()  # one terminal of the host that nobody inside may see
        self.hashes = self.hash_all()

    def path(self, *parts):
        return os.path.join(self.base, *parts)

    def own(self, top):
        for d, _, files in os.walk(top):
            for p in [d] + [os.path.join(d, f) for f in files]:
                os.lchown(p, self.uid, self.gid)

    def _files(self):
        for name in HOME_SECRETS:
            write(os.path.join(self.home, name), canary() + "\n")
        self.own(self.home)
        self.vars["wwdir"] = self.outside
        os.chmod(self.outside, 0o777)
        self.vars["rofile"] = write(self.path("outside", "canary"), "host file\n", 0o666)
        write(self.path("outside", "victim"), "victim\n", 0o666)
        os.mkdir(self.path("outside", "swapcanary"), 0o777)
        os.chmod(self.path("outside", "swapcanary"), 0o777)
        write(self.path("outside", "swapcanary", "keep"), "keep\n", 0o666)
        self.own(self.outside)
        if os.getuid() == 0:
            self.vars["rootfile"] = write(self.path("rootfile"), canary() + "\n", 0o600)
            # For a root caller a file of root would change nothing; another owner shows whether the bit is honoured.
            owner = 12345 if self.is_root else 0
            self._special("suidhost", self.bin, lambda p: (os.chown(p, owner, owner), os.chmod(p, 0o4755)))
            self._special("fcaphost", self.bin, self._fcap)

    def _special(self, name, where, act):
        p = os.path.join(where, name)
        shutil.copy(self.probe, p)
        os.chmod(p, 0o755)
        act(p)
        self.vars[name] = p

    @staticmethod
    def _fcap(p):
        # Version 2, effective: CAP_DAC_OVERRIDE and CAP_NET_RAW.
        os.setxattr(p, "security.capability", struct.pack("<5I", 0x02000001, (1 << 1) | (1 << 13), 0, 0, 0))

    def workspace(self, ws):
        """A repository with hooks, one nested, one without hooks, a linked start-up file, an .env, set-id files."""
        for repo in ("", "a/b/repo", "nohooks"):
            git = os.path.join(ws, repo, ".git")
            write(git + "/HEAD", "ref: refs/heads/main\n")
            write(git + "/config", "[core]\n\trepositoryformatversion = 0\n")
            os.makedirs(git + "/objects", exist_ok=True)
            os.makedirs(git + "/refs/heads", exist_ok=True)
            if repo != "nohooks":
                os.makedirs(git + "/hooks", exist_ok=True)
        write(ws + "/.git/modules/sub/config", "[core]\n")
        write(ws + "/.git/modules/sub/HEAD", "ref: refs/heads/main\n")
        os.makedirs(ws + "/.git/modules/sub/hooks", exist_ok=True)
        write(ws + "/dotfiles/zshrc", "# mine\n")
        os.symlink("dotfiles/zshrc", ws + "/.zshrc")
        write(ws + "/.env", "TOKEN=" + canary() + "\n")
        os.link(os.path.join(self.home, ".ssh/id_ed25519"), ws + "/hardlink-made-earlier")
        self.own(ws)
        if os.getuid() == 0 and ws == self.ws:
            # chown clears the bit, so it is set afterwards.
            self._special("suidws", ws, lambda p: (os.chown(p, 12345, 12345), os.chmod(p, 0o4755)))
            self._special("fcapws", ws, lambda p: (os.chown(p, self.uid, self.gid), self._fcap(p)))

    def _ipc(self):
        key = secrets.randbelow(1 << 24) + 1
        self.shm = LIBC.shmget(key, 4096, 0o3666)  # IPC_CREAT | IPC_EXCL, readable and writable for all
        if self.shm >= 0:
            self.vars["shmkey"] = str(key)
        name = "/" + self.tag
        rt = ctypes.CDLL("librt.so.1", use_errno=True)
        self.mq = rt.mq_open(name.encode(), os.O_RDWR | os.O_CREAT, 0o666, None)
        if self.mq >= 0:
            self.vars["mqname"] = name
        self.mq_unlink = lambda: rt.mq_unlink(name.encode())
        for var, where in (("shmfile", "/dev/shm"), ("tmpfile", "/tmp"), ("runfile", "/run")):
            p = os.path.join(where, self.tag + "-file")
            try:
                self.vars[var] = write(p, canary() + "\n", 0o644)
                self.extra.append(p)
            except OSError:
                pass

    def _listen(self, name, var, family, address, kind=socket.SOCK_STREAM):
        try:
            lis = Listener(family, address, kind)
        except OSError:
            return
        self.listeners[name] = lis
        if family == socket.AF_INET:
            self.vars[var] = str(lis.sock.getsockname()[1])
        else:
            self.vars[var] = address.lstrip("\0")
            if not address.startswith("\0"):
                os.chmod(address, 0o777)
                self.extra.append(address)

    def _sockets(self):
        self._listen("tcp", "tcpport", socket.AF_INET, ("127.0.0.1", 0))
        self._listen("metadata", "metaport", socket.AF_INET, ("127.0.0.1", 0))
        self._listen("abstract", "abstract", socket.AF_UNIX, "\0" + self.tag)
        self._listen("path", "unixsock", socket.AF_UNIX, self.path("outside", "sock"))
        self._listen("datagram", "dgramsock", socket.AF_UNIX, self.path("outside", "dgram"), socket.SOCK_DGRAM)
        self._listen("run", "runsock", socket.AF_UNIX, f"/run/{self.tag}-sock")
        self._listen("tmp", "tmpsock", socket.AF_UNIX, f"/tmp/{self.tag}-sock")

    def _sentinel(self):
        """A process of the same caller, with secrets in its arguments and environment."""
        self.sentinel = subprocess.Popen([canary(), "100000"], executable="/bin/sleep", env=self.env(), cwd="/",
                                         preexec_fn=self.become)
        self.vars["hostpid"] = str(self.sentinel.pid)

    def become(self):
        if os.getuid() == 0 and not self.is_root:
            os.setgroups([self.gid])
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)

    def env(self, **more):
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": self.home, "LANG": "C.UTF-8",
               "USER": self.pw.pw_name}
        if not hasattr(self, "tokens"):
            self.tokens = {v: canary() for v in TOKEN_VARS}
        return {**env, **self.tokens, **more}

    def hash_all(self):
        files = [self.vars["rofile"], self.path("outside", "victim"), self.path("outside", "swapcanary", "keep"), self.probe,
                 "/etc/passwd", "/etc/group"] + [os.path.join(self.home, s) for s in HOME_SECRETS]
        return {p: sha(p) for p in files}

    def restore(self):
        """After a control or a removal run, which may really change the canaries."""
        write(self.vars["rofile"], "host file\n", 0o666)
        write(self.path("outside", "victim"), "victim\n", 0o666)
        for lis in self.listeners.values():
            lis.heard = 0
        for name in os.listdir(self.outside):
            if name not in ("canary", "victim", "swapcanary", "sock", "dgram"):
                p = self.path("outside", name)
                shutil.rmtree(p) if os.path.isdir(p) else os.unlink(p)
        self.own(self.outside)

    def set_id_inodes(self, top):
        """Set-id or file-capability inodes below top, other than the two planted ones."""
        found = []
        for d, _, files in os.walk(top):
            for p in [d] + [os.path.join(d, f) for f in files]:
                if os.path.basename(p) in ("suidws", "fcapws"):
                    continue
                st = os.lstat(p)
                if st.st_mode & (stat.S_ISUID | stat.S_ISGID) and not stat.S_ISLNK(st.st_mode):
                    found.append(p)
                try:
                    os.getxattr(p, "security.capability", follow_symlinks=False)
                    found.append(p + " (capability)")
                except OSError:
                    pass
        return found

    def listing(self, top):
        return sorted(os.path.relpath(os.path.join(d, f), top) for d, dirs, files in os.walk(top) for f in dirs + files)

    def close(self):
        if self.sentinel:
            self.sentinel.kill()
            self.sentinel.wait()
        for lis in self.listeners.values():
            lis.close()
        for fd in self.terminal:
            os.close(fd)
        for p in self.extra:
            if os.path.lexists(p):
                os.unlink(p)
        if self.shm >= 0:
            LIBC.shmctl(self.shm, 0, None)
        self.mq_unlink()
        subprocess.run(["rm", "-rf", self.base], check=False)  # shutil.rmtree recurses; F-25's tree is deeper than that


# --- leak accounting ------------------------------------------------------------------------------------------------------


def _namespaces():
    seen = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for kind in ("mnt", "net", "user", "pid", "ipc", "uts", "cgroup"):
            try:
                seen.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
            except OSError:
                pass
    return seen


def _hutch_dirs(top, depth=6):
    found = set()
    for d, dirs, _ in os.walk(top):
        if d.count("/") - top.count("/") >= depth:
            dirs.clear()
        found.update(os.path.join(d, x) for x in dirs if "hutch" in x)
    return found


def _processes(base):
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if base.encode() in f.read():
                    found.add(pid)
        except OSError:
            pass
    return found


def census(base):
    """What could be left behind. Differences of two of these are the residue. Other work on the host may add its own
    namespaces and mounts, so only entries that name hutch or our stage count there."""
    with open("/proc/self/mountinfo") as f:
        mounts = {line for line in f if base in line or "hutch" in line}
    tmp = {os.path.join(d, n) for d in ("/tmp", "/var/tmp", "/run", "/dev/shm") if os.path.isdir(d) for n in os.listdir(d)
           if "hutch" in n or n.startswith("rt-")}
    run = {os.path.join(d, f) for d, _, files in os.walk("/run/hutch") for f in files}
    return {"mounts": mounts, "cgroups": _hutch_dirs("/sys/fs/cgroup"), "processes": _processes(base), "temporary files": tmp,
            "/run/hutch": run}


def residue(before, after):
    return {k: sorted(after[k] - before[k]) for k in before if after[k] - before[k]}


def kernel_log():
    r = subprocess.run(["dmesg"], capture_output=True, text=True, check=False)
    return r.stdout.splitlines() if r.returncode == 0 else None
