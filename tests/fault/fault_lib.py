"""What the fault runs share: a workspace, a probe that tells every layer, and the account of what is left."""
import contextlib
import json
import os
import pathlib
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "tests/lib"))
from leaks import dead_leaves, marked_processes  # noqa: E402

USER = os.environ.get("HUTCH_TEST_USER", "hutchtest")
SOAK = os.environ.get("HUTCH_SOAK") == "1"
KEEP = {".env", "probe.sh", "record.json"}

# One word per layer that stands. The command runs only if all do.
PROBE = """
s=$(cat /proc/self/status)
has() { case "$s" in *"$1"*) printf '%s ' "$2";; esac; }
has 'Seccomp:	2' seccomp; has 'NoNewPrivs:	1' nnp; has 'CapBnd:	0000000000000000' bounding; has 'CapEff:	0000000000000000' caps
(echo x > OUTSIDE/written) 2>/dev/null || printf 'writes '
grep -q '^[0-9]* [0-9]* [^ ]* / / ro,' /proc/self/mountinfo && printf 'mounts '
(cat .env) >/dev/null 2>&1 || printf 'masks '
(echo x > .envrc) 2>/dev/null || printf 'stubs '
[ "$(cat /proc/net/dev | wc -l)" = 3 ] && printf 'netns '
[ $$ -lt 30 ] && [ -d /proc/1 ] && printf 'pidns '
[ "$(hostname)" = hutch ] && printf 'utsns '
[ "$(readlink /proc/self/ns/ipc)" != "HOSTIPC" ] && printf 'ipcns '
[ "$(ulimit -n)" = 100 ] && printf 'rlimits '
(cat /proc/kallsyms) >/dev/null 2>&1 || printf 'proc '
[ -z "$(ls /sys)" ] && printf 'sys '
[ -e /dev/kmsg ] || [ -e /dev/loop0 ] || printf 'dev '
[ -z "$(ls /tmp | grep -v HERE)" ] && printf 'tmp '
[ "$(ls /proc/self/fd | wc -l)" = 4 ] && printf 'fds '
[ -z "$GITHUB_TOKEN" ] && printf 'env '
[ "$(cat /proc/sys/user/max_user_namespaces)" = 0 ] && printf 'userns '
unshare -U true 2>/dev/null || printf 'nested '
echo
"""


def identity(who):
    """(arguments of subprocess, passwd entry)"""
    if who == "root" or os.geteuid() != 0:
        return {}, pwd.getpwuid(os.geteuid())
    entry = pwd.getpwnam(USER)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}, entry


def identities():
    if os.geteuid() != 0:
        return ["user"]
    try:
        pwd.getpwnam(USER)
    except KeyError:
        return ["root"]
    return ["root", "user"]


class Stage:
    """A workspace with a denied file, a directory outside that everybody may write, and the host as it was."""

    def __init__(self, who, ws, outside):
        self.who, self.ws, self.outside = who, ws, outside
        self.ids, self.entry = identity(who)
        self.mark = f"fault-{os.getpid()}-{who}"
        self.before = dead_leaves()
        (ws / ".env").write_text("SECRET\n")
        script = PROBE.replace("OUTSIDE", str(outside)).replace("HERE", str(ws).split("/")[2])
        script = script.replace("HOSTIPC", os.readlink("/proc/self/ns/ipc"))
        (ws / "probe.sh").write_text(script)
        for name in (".", ".env", "probe.sh"):
            os.chown(ws / name, self.entry.pw_uid, self.entry.pw_gid)

    def command(self, binary, *options):
        limits = ["--memory", "300M"] if self.who == "root" else []
        return [binary, "run", "-q", "--open-files", "100", "--json", str(self.ws / "record.json"), *limits, *options, "--", "sh", "probe.sh"]

    def run(self, args, env=None, seconds=240):
        """(code, stdout, stderr); code is None for a hang."""
        full = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.ws), "GITHUB_TOKEN": "t", "HUTCH_MARK": self.mark, **(env or {})}
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.ws / "record.json")
        proc = subprocess.Popen(args, cwd=self.ws, env=full, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                start_new_session=True, **self.ids)
        try:
            out, err = proc.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(proc.pid, 9)
            proc.communicate()
            return None, "", ""
        return proc.returncode, out.decode(errors="replace"), err.decode(errors="replace")

    def landlock(self):
        """The ABI that the record says was applied, or 0."""
        try:
            found = re.search(r'"landlock_abi": (\d+)', json.dumps(json.loads((self.ws / "record.json").read_text())))
            return int(found.group(1)) if found else 0
        except (OSError, ValueError):
            return 0

    def residue(self, binary):
        """What is left and not even the next run takes away; the number of times the next run had to."""
        def left():
            return ([f"file {n}" for n in os.listdir(self.ws) if n not in KEEP] + [f"cgroup {c}" for c in dead_leaves() - self.before]
                    + [f"process {p}" for p in marked_processes(self.mark)] + [f"outside {n}" for n in os.listdir(self.outside)])
        # Whoever cleans up may be slow; an empty cgroup is all that may wait for the next run (see test_residue.py).
        end = time.monotonic() + 60
        while [x for x in left() if not x.startswith("cgroup ")] and time.monotonic() < end:
            time.sleep(0.01)
        end = time.monotonic() + 1.0
        while left() and time.monotonic() < end:
            time.sleep(0.01)
        if not left():
            return [], 0
        late = [x for x in left() if not x.startswith("cgroup ")]
        self.run(self.command(binary))
        return late + left(), 1


@contextlib.contextmanager
def stage(who):
    ws = pathlib.Path(tempfile.mkdtemp(prefix="hutch-fault.", dir=os.environ.get("TMPDIR")))
    base = "/srv" if os.geteuid() == 0 else os.path.expanduser("~")
    outside = pathlib.Path(tempfile.mkdtemp(prefix="hutch-fault.", dir=base))
    try:
        ws.chmod(0o755)
        outside.chmod(0o777)
        yield Stage(who, ws, outside)
    finally:
        shutil.rmtree(ws, ignore_errors=True)
        shutil.rmtree(outside, ignore_errors=True)


class Tap:
    """Prints results as TAP; the plan comes last."""

    def __init__(self):
        self.n, self.bad = 0, 0

    def result(self, ok, name, notes=()):
        self.n += 1
        self.bad += not ok
        for note in notes:
            print(f"# {note}", flush=True)
        print(f"{'ok' if ok else 'not ok'} {self.n} - {name}", flush=True)

    def end(self):
        print(f"1..{self.n}")
        sys.exit(1 if self.bad else 0)


def judge(stage_, binary, code, out, err, baseline, codes=range(120, 126)):
    """Why this outcome is wrong, or None. A run either fails cleanly or is as tight as one without a fault."""
    if code is None or code == 97:
        return "hangs"
    if code == 0:
        if out != baseline:
            missing = set(baseline.split()) - set(out.split())
            return f"runs with a layer missing: {' '.join(sorted(missing)) or out!r}"
    elif code not in codes:
        return f"exit code {code}: {out[-200:]!r} {err[-300:]!r}"
    else:
        if out:
            return f"the command ran although the code is {code}: {out!r}"
        if len(err.strip().splitlines()) != 1 or not err.startswith("hutch: "):
            return f"code {code} with {err!r} instead of one line"
    left, _ = stage_.residue(binary)
    return f"left behind: {left}" if left else None
