"""Nothing is left: no process, mount, cgroup, runtime file, stub or temporary file, however a run ends."""
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

from hutch_test import HUTCH, PATIENCE, SOAK, check, check_equal, clean_env, eventually, hutch, identity, skip, workspace
from leaks import dead_leaves, marked_processes

LOOP_SECONDS = 300 if SOAK else 5


def mounts():
    return sorted(line.split(" ", 3)[3] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines())


def runtime_files(who):
    _, entry = identity(who)
    found = set()
    for folder in ("/run/hutch", f"/run/user/{entry.pw_uid}/hutch"):
        if os.path.isdir(folder):
            found |= {str(p) for p in pathlib.Path(folder).rglob("*") if "lock" not in p.name}
    return found


def temporary_files(who):
    _, entry = identity(who)
    return {e.path for folder in ("/tmp", "/dev/shm") for e in os.scandir(folder) if e.name.startswith("hutch-run")}


class Scene:
    """The host before; same() waits until the host is as it was."""

    def __init__(self, who, ws):
        self.who, self.ws = who, ws
        self.mark = f"residue-{os.getpid()}-{random.getrandbits(48):x}"
        self.before = self.look()

    def look(self):
        return {"cgroups": dead_leaves(), "mounts": mounts(), "runtime": runtime_files(self.who), "tmp": temporary_files(self.who)}

    def start(self, *args, **kwargs):
        ids, entry = identity(self.who)
        return subprocess.Popen([HUTCH, "run", *map(str, args)], cwd=self.ws, env=clean_env(entry, {"HUTCH_MARK": self.mark}),
                                stdin=subprocess.DEVNULL, stdout=kwargs.pop("stdout", subprocess.DEVNULL),
                                stderr=subprocess.DEVNULL, start_new_session=True, **ids, **kwargs)

    def left(self, keep=()):
        now, lines = self.look(), []
        for kind, seen in now.items():
            if kind == "mounts":
                lines += [f"mount {m}" for m in seen if m not in self.before["mounts"]]
            else:
                lines += [f"{kind} {x}" for x in seen - self.before[kind]]
        lines += [f"process {p}" for p in marked_processes(self.mark)]
        lines += [f"file {n}" for n in os.listdir(self.ws) if n not in keep]
        return lines

    def same(self, what, keep=(), seconds=PATIENCE):
        end = time.monotonic() + seconds
        while self.left(keep):
            if time.monotonic() > end:
                raise AssertionError(f"left after {what}: {self.left(keep)}")
            time.sleep(0.02)


OPTIONS = {"root": ["--memory", "256M", "--pids", "50"], "user": []}


def test_after_a_normal_end(who):
    "nothing is left after a normal end, a failure, a signal, a timeout and a command that does not exist, at once"
    with workspace(who) as ws:
        scene = Scene(who, ws)
        for options, command in ((OPTIONS[who], ["true"]), ([], ["sh", "-c", "exit 3"]), ([], ["sh", "-c", "kill -9 $$"]),
                                 (["-t", "100ms"], ["sleep", "9"]), ([], ["no-such-command"]), (["--rw", "/none"], ["true"]),
                                 (OPTIONS[who], ["sh", "-c", "sleep 100 & sleep 100 &"])):
            scene.start("-q", *options, "--env", f"HUTCH_MARK={scene.mark}", "--", *command).wait(120)
            check_equal(scene.left(), [], f"{options} {command}")


def test_after_a_container(who):
    "nothing is left after a run with a root of its own and limits"
    if not os.path.exists("/bin/busybox"):
        skip("/bin/busybox is missing: apt-get install busybox-static")
    if who == "user" and not shutil.which("newuidmap"):
        skip("newuidmap is missing: apt-get install uidmap")
    with workspace(who) as ws:
        os.makedirs(ws / "img/bin")
        shutil.copy("/bin/busybox", ws / "img/bin/sh")
        scene = Scene(who, ws)
        check_equal(scene.start(*OPTIONS[who], "--root", ws / "img", "--", "/bin/sh", "-c", "exit 4").wait(120), 4)
        check_equal(scene.left(keep=("img",)), [])


def sleeper(mark):
    for pid in marked_processes(mark):
        with contextlib.suppress(OSError):  # it has just ended
            if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x0077.25\x00":
                return pid
    return None


def test_after_the_command_is_killed(who):
    "nothing is left after the command is killed from outside"
    with workspace(who) as ws:
        scene = Scene(who, ws)
        proc = scene.start(*OPTIONS[who], "--env", f"HUTCH_MARK={scene.mark}", "--", "sh", "-c", "echo go; exec sleep 77.25", stdout=subprocess.PIPE)
        check_equal(proc.stdout.readline(), b"go\n")
        eventually(lambda: sleeper(scene.mark), 5, "the command sleeps")
        os.kill(sleeper(scene.mark), signal.SIGKILL)
        check_equal(proc.wait(120), 137)
        proc.stdout.close()
        check_equal(scene.left(), [])


def test_after_init_is_killed(who):
    "nothing is left after the sandbox's pid 1 is killed from outside, and the code is 137"
    with workspace(who) as ws:
        scene = Scene(who, ws)
        proc = scene.start(*OPTIONS[who], "--", "sh", "-c", "echo go; sleep 999", stdout=subprocess.PIPE)
        check_equal(proc.stdout.readline(), b"go\n")
        children = [int(p) for p in pathlib.Path(f"/proc/{proc.pid}/task/{proc.pid}/children").read_text().split()]
        inits = [p for p in children if len([x for x in pathlib.Path(f"/proc/{p}/status").read_text().splitlines() if x.startswith("NSpid")][0].split()) > 2]
        check_equal(len(inits), 1, children)
        os.kill(inits[0], signal.SIGKILL)
        check_equal(proc.wait(120), 137)
        proc.stdout.close()
        check_equal(scene.left(), [])


def kill_loop(who, kill, what):
    """Kills hutch at random moments of set-up and run, until the time is over.

    The guard stands before anything is put on the host but the cgroup, which init is cloned into. A kill in the moment
    between the two leaves an empty cgroup, and the next run takes it, with limits or without. Nothing else ever stays.
    """
    rng = random.Random(1)
    with workspace(who) as ws:
        scene = Scene(who, ws)
        end = time.monotonic() + LOOP_SECONDS
        rounds = late = 0
        while time.monotonic() < end or rounds <= 10:
            running = rounds % 3 == 0
            proc = scene.start(*(OPTIONS[who] if rounds % 2 else []), "--env", f"HUTCH_MARK={scene.mark}", "--", "sh", "-c",
                               "sleep 500 & setsid sleep 500 & echo go; sleep 500", stdout=subprocess.PIPE)
            if running:
                check_equal(proc.stdout.readline(), b"go\n")
            else:
                time.sleep(rng.choice((rng.uniform(0, 0.012), rng.uniform(0, 0.05))))
            kill(proc)
            proc.wait(120)
            proc.stdout.close()
            eventually(lambda: not marked_processes(scene.mark), 8, f"{what}: every process is gone")
            if running:
                scene.same(f"{what} while the command ran, round {rounds}")
            elif not settles(scene):
                late += 1
                check(all(x.startswith("cgroups ") for x in scene.left()), f"{what}: {scene.left()}")
                check_equal(hutch("run", "-q", "--", "true", who=who, cwd=ws).code, 0)
                scene.same(f"{what} during set-up and one more run, round {rounds}")
            rounds += 1
        print(f"        {what} as {who}: {rounds} rounds in {LOOP_SECONDS} s, {late} left to the next run", flush=True)
        check(rounds > 10, "too few rounds to tell")


def settles(scene):
    """Whether everything is gone within a moment. Whoever cleans up may be slow; an empty cgroup is all that may wait for the next run."""
    end = time.monotonic() + PATIENCE
    while [x for x in scene.left() if not x.startswith("cgroups ")] and time.monotonic() < end:
        time.sleep(0.01)
    end = time.monotonic() + 0.7
    while scene.left():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_after_kill_9(who):
    "nothing is left after hutch is killed with SIGKILL at random moments of set-up and run"
    kill_loop(who, lambda proc: proc.kill(), "kill -9 of hutch")


def test_after_kill_9_of_the_group(who):
    "nothing is left after the whole process group of hutch is killed with SIGKILL"
    kill_loop(who, lambda proc: os.killpg(proc.pid, signal.SIGKILL), "kill -9 of the group")


def guard_of(pid):
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if pathlib.Path(f"/proc/{child}/comm").read_text().strip() == "hutch-guard":
            return int(child)
    return None


def test_next_run_cleans_up(who):
    "if even the guard was killed, no process is left, and the next run in the directory removes stubs and cgroups, though it has no limits"
    with workspace(who) as ws:
        scene = Scene(who, ws)
        proc = scene.start(*OPTIONS[who], "--env", f"HUTCH_MARK={scene.mark}", "--", "sh", "-c", "echo go; setsid sleep 500 & sleep 500",
                           stdout=subprocess.PIPE)
        check_equal(proc.stdout.readline(), b"go\n")
        eventually(lambda: guard_of(proc.pid), 5, "there is a guard")
        proc.send_signal(signal.SIGSTOP)  # so that it cannot notice
        os.kill(guard_of(proc.pid), signal.SIGKILL)
        proc.kill()
        proc.wait(120)
        proc.stdout.close()
        eventually(lambda: not marked_processes(scene.mark), 5, "everything inside is dead")
        check(who == "user" or dead_leaves() - scene.before["cgroups"], "there is a cgroup to be removed")
        r = hutch("run", "-q", "--", "sh", "-c", "echo evil > .envrc; true", who=who, cwd=ws)
        check_equal(r.code, 0, r)
        scene.same("guard and hutch were killed, and one more run")


def test_terminal_is_not_needed(who):
    "a run whose session leader is gone ends cleanly when hutch is told to"
    with workspace(who) as ws:
        scene = Scene(who, ws)
        proc = scene.start("--env", f"HUTCH_MARK={scene.mark}", "--", "sh", "-c", "echo go; exec sleep 600", stdout=subprocess.PIPE)
        check_equal(proc.stdout.readline(), b"go\n")
        proc.send_signal(signal.SIGHUP)
        check_equal(proc.wait(120), 128 + signal.SIGHUP)
        proc.stdout.close()
        check_equal(scene.left(), [])
