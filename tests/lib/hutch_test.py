"""What integration tests import.

A test module is tests/integration/test_<topic>.py. Each function whose name starts with `test_` is one test; its
docstring is the sentence that is printed. A function with a parameter named `who` runs twice, as "root" and as "user"
(the ordinary user that the runner makes). A test fails by raising, and skips by calling skip(reason).

    from hutch_test import check_equal, hutch, workspace

    def test_exit_code(who):
        "the exit code of the command is the exit code of hutch"
        with workspace(who) as ws:
            r = hutch("run", "--", "sh", "-c", "exit 7", who=who, cwd=ws)
            check_equal(r.code, 7, r)
"""
import contextlib
import http.client
import json
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
USER = os.environ.get("HUTCH_TEST_USER", "hutchtest")
HUTCH = os.environ.get("HUTCH_BIN", str(TOP / "build/hutch"))
HUTCH_TEST = os.environ.get("HUTCH_TEST_BIN", str(TOP / "build/tests/hutch-without"))
# What only programs for tests may read.
TEST_SWITCHES = ["HUTCH_MEM_FAIL_AT", "HUTCH_TEST_", "HUTCH_WITHOUT"]
# What only the node of the conformance suite offers.
TEST_TOOLS = "test_input_required_result"
PROBE = os.environ.get("HUTCH_PROBE", str(TOP / "build/hutch-probe"))
SOAK = os.environ.get("HUTCH_SOAK") == "1"
PATIENCE = 60  # seconds that anything may take on a machine with a slow disk and processors that others use; only failures use them up


class Skip(Exception):
    """Raised by skip(); the runner prints the reason and counts it."""


class Failed(AssertionError):
    """Raised by the check functions."""


class Left(Failed):
    """Something is left on the host. The runner never runs such a test again: a leak that shows only once is still one."""


def skip(reason):
    """Leave the test; a reason is required and printed."""
    raise Skip(reason)


class Result:
    """How a command ended: code (negative signal number if killed), out and err as text, seconds."""

    def __init__(self, args, code, out, err, seconds):
        self.args, self.code, self.out, self.err, self.seconds = args, code, out, err, seconds
        self.record = None

    def __str__(self):
        def cut(text):
            return text if len(text) < 2000 else text[:1000] + "\n[...]\n" + text[-1000:]
        return f"$ {' '.join(map(str, self.args))}\ncode {self.code}\nstdout: {cut(self.out)}\nstderr: {cut(self.err)}"


def is_root():
    return os.geteuid() == 0


def identity(who):
    """Arguments of subprocess that start a process as that user, and its passwd entry."""
    if who == "root":
        if not is_root():
            skip("needs root")
        return {}, pwd.getpwuid(0)
    if not is_root():
        return {}, pwd.getpwuid(os.geteuid())
    try:
        entry = pwd.getpwnam(USER)
    except KeyError:
        skip(f"the ordinary user {USER} does not exist; tests/run makes it")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}, entry


def clean_env(entry, extra=None):
    env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": entry.pw_dir,
           "USER": entry.pw_name, "LOGNAME": entry.pw_name, "LANG": "C.UTF-8", "TERM": "dumb"}
    env.update({k: os.environ[k] for k in ("TMPDIR", "HUTCH_TEST_RUN") if k in os.environ})
    env.update(extra or {})
    return env


def run(*args, who="root", cwd="/", env=None, stdin=None, timeout=180, pass_fds=(), **kwargs):
    """Run any program as `who` and return its Result. A timeout kills its process group and fails the test."""
    ids, entry = identity(who)
    args = [str(a) for a in args]
    start = time.monotonic()
    proc = subprocess.Popen(args, cwd=cwd, env=clean_env(entry, env), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, start_new_session=True, pass_fds=pass_fds, **ids, **kwargs)
    data = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        out, err = proc.communicate(data, timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(proc.pid, signal.SIGKILL)
        out, err = proc.communicate()
        raise Failed(f"no end after {timeout} s: " + str(
            Result(args, proc.returncode, out.decode(errors="replace"), err.decode(errors="replace"), timeout)))
    return Result(args, proc.returncode, out.decode(errors="replace"), err.decode(errors="replace"),
                  time.monotonic() - start)


def hutch(*args, binary=None, **kwargs):
    """Run hutch. binary=HUTCH_TEST takes the build that honours HUTCH_WITHOUT."""
    return run(binary or HUTCH, *args, **kwargs)


def hutch_started(*args, who, cwd, **kwargs):
    """`hutch run` in the background, in a session of its own; the caller waits for it."""
    ids, entry = identity(who)
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([HUTCH, "run", *map(str, args)], cwd=cwd, env=clean_env(entry), start_new_session=True, **ids,
                            **{**streams, **kwargs})


def hutch_record(*args, who="root", **kwargs):
    """`hutch run` with --json: the Result, with the parsed record in .record."""
    with tempfile.TemporaryDirectory(prefix="hutch-record.") as folder:
        os.chmod(folder, 0o777)
        path = os.path.join(folder, "record.json")
        r = hutch("run", "--json", path, *args, who=who, **kwargs)
        try:
            r.record = json.loads(pathlib.Path(path).read_text())
        except (OSError, ValueError) as error:
            raise Failed(f"no readable record ({error}): {r}") from error
    return r


@contextlib.contextmanager
def workspace(who="root", prefix="hutch-ws."):
    """A temporary directory that belongs to `who`; removed afterwards, whatever is in it."""
    _, entry = identity(who)
    path = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=os.environ.get("TMPDIR")))
    try:
        os.chmod(path, 0o755)
        if is_root():
            os.chown(path, entry.pw_uid, entry.pw_gid)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=False)


def write(path, text, who="root", mode=0o644):
    """Make a file (and its parents inside the workspace) that belongs to `who`."""
    _, entry = identity(who)
    path = pathlib.Path(path)
    missing = [p for p in reversed(path.parents) if not p.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    if is_root():
        for p in [*missing, path]:
            os.chown(p, entry.pw_uid, entry.pw_gid)
    return path


def check(condition, what="condition does not hold"):
    if not condition:
        raise Failed(str(what))


def check_equal(got, want, what=""):
    if got != want:
        raise Failed(f"got {got!r}, want {want!r}\n{what}")


def check_in(part, whole, what=""):
    if part not in whole:
        raise Failed(f"{part!r} is not in {whole!r}\n{what}")


def check_one_line(text, what=""):
    """An error message is exactly one line."""
    if len(text.strip().splitlines()) != 1:
        raise Failed(f"want one line, got {text!r}\n{what}")


def switches_in(program):
    """The words of TEST_SWITCHES and TEST_TOOLS that a program contains."""
    content = pathlib.Path(program).read_bytes()
    return [word for word in (*TEST_SWITCHES, TEST_TOOLS) if word.encode() in content]


def eventually(condition, seconds=5, what="condition", strict=False):
    """Wait until condition() is true. A connection that breaks meanwhile, as those to a process that is being replaced do, and a file or a
    process that is gone mean: not yet. `seconds` is what a machine with nothing else to do needs at most; a slow one has PATIENCE, unless
    `strict` says that what is tested is the time itself."""
    seconds = seconds if strict else max(seconds, PATIENCE)
    end, last = time.monotonic() + seconds, ""
    while True:
        try:
            if condition():
                return
        except (OSError, http.client.HTTPException) as error:
            last = f" ({type(error).__name__}: {error})"
        if time.monotonic() > end:
            raise Failed(f"{what}: not true after {seconds} s{last}")
        time.sleep(0.01)
