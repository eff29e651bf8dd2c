"""Timing and numbers: running the spawn program, waiting for a quiet machine, medians, percentiles, bootstrap."""
import contextlib
import dataclasses
import os
import pathlib
import random
import statistics
import subprocess
import time

TIMEOUT = 120  # seconds for one run of one contender; longer is a failure


@dataclasses.dataclass
class Batch:
    """What one call of spawn has measured; times in milliseconds, memory in KiB."""
    wall: list
    maxrss: list
    failures: int
    statuses: list
    total_wall: float
    cpu: float  # of everything reaped, all runs together
    left: int
    stderr: str


class Spawner:
    """Builds spawn.c once and runs it. `folder` must be traversable by every user who runs things."""

    def __init__(self, folder, top):
        self.program = folder / "spawn"
        self.log = folder / "stderr"
        subprocess.run(["gcc", "-std=gnu17", "-D_GNU_SOURCE", "-O2", "-static", "-o", self.program, top / "bench/spawn.c"],
                       check=True)

    def command(self, argv, runs, parallel, who, prefix=()):
        """The command line that measures argv as that user."""
        user = ["-u", f"{who.uid}:{who.gid}"] if who.uid != os.geteuid() else []
        return [*prefix, str(self.program), "-n", str(runs), "-j", str(parallel), "-t", str(TIMEOUT), *user, "--",
                *map(str, argv)]

    @contextlib.contextmanager
    def start(self, command, cwd, who):
        """The running spawn program; if the measurement is interrupted it kills what it has started before it ends."""
        with open(self.log, "wb") as log:
            proc = subprocess.Popen(command, cwd=cwd, env=who.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                    stderr=log, text=True)
        try:
            yield proc
        except BaseException:
            proc.terminate()
            raise
        finally:
            proc.wait()
            proc.stdout.close()

    def run(self, argv, cwd, who, runs=1, parallel=1, prefix=()):
        with self.start(self.command(argv, runs, parallel, who, prefix), cwd, who) as proc:
            output = proc.communicate()[0]
        stderr = self.log.read_text(errors="replace").strip()
        lines = [line.split() for line in output.splitlines()]
        rows = [[int(word) for word in line[1:]] for line in lines if line and line[0] == "run"]
        last = [[int(word) for word in line[1:]] for line in lines if line and line[0] == "all"]
        if proc.returncode != 0 or not last:
            return Batch([], [], runs, [proc.returncode], 0.0, 0.0, 0, stderr)
        good = [row for row in rows if row[4] == 0]
        wall, user, system, _, left = last[0]
        return Batch([row[0] / 1e6 for row in good], [row[3] for row in good], len(rows) - len(good),
                     [row[4] for row in rows if row[4] != 0], wall / 1e6, (user + system) / 1e3, left, stderr)


# --- a quiet machine ----------------------------------------------------------------------------------------------------

def busy_share(seconds):
    """Share of all processors that was busy during that time."""
    def read():
        words = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        values = list(map(int, words))
        return sum(values), values[3] + values[4]  # idle, iowait
    total, idle = read()
    time.sleep(seconds)
    total2, idle2 = read()
    return 1 - (idle2 - idle) / max(1, total2 - total)


class Quiet:
    """Waits, for a bounded time, until nothing else runs, and counts how often that was in vain."""

    def __init__(self, patience):
        self.patience, self.waits, self.vain = patience, 0, 0

    def round(self):
        """Before a round: a longer look, a longer wait."""
        self._wait(0.2, 0.10, self.patience)

    def batch(self):
        """Before a contender: what the one before has left to the kernel (dying namespaces) must not be this one's cost."""
        self._wait(0.05, 0.25, min(1.0, self.patience))

    def _wait(self, look, share, patience):
        self.waits += 1
        end = time.monotonic() + patience
        while busy_share(look) > share:
            if time.monotonic() >= end:
                self.vain += 1
                return


# --- numbers ------------------------------------------------------------------------------------------------------------

def percentile(values, share):
    """Nearest rank: a value that was really measured."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * share // 100) - 1))]


def summary(values):
    if not values:
        return {"n": 0}
    return {"n": len(values), "min": min(values), "p10": percentile(values, 10), "median": statistics.median(values),
            "p90": percentile(values, 90), "p99": percentile(values, 99), "max": max(values)}


def bootstrap(values, level=0.95, draws=4000):
    """Percentile bootstrap interval of the median; the seed is fixed so that the same data give the same interval."""
    if len(values) < 2:
        return [None, None]
    source = random.Random(20)
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(draws))
    edge = (1 - level) / 2
    return [medians[int(edge * draws)], medians[min(draws - 1, int((1 - edge) * draws))]]


# --- memory of a whole tree ---------------------------------------------------------------------------------------------

def descendants(root):
    """(pid, name) of everything below root."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = pathlib.Path(f"/proc/{entry}/stat").read_text()
        except OSError:
            continue
        name = text[text.index("(") + 1:text.rindex(")")]
        parents[int(entry)] = (int(text[text.rindex(")") + 2:].split()[1]), name)
    found, grown = {root}, True
    while grown:
        more = {pid for pid, (parent, _) in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return [(pid, parents[pid][1]) for pid in found if pid != root and pid in parents]


def pss_kib(pid):
    """None if the process may not be looked at; 0 if it is gone."""
    try:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except OSError:
        return None
    return 0


def tree_memory(spawner, argv, cwd, who, prefix=()):
    """(Pss of all processes in KiB, number of processes) while a `sleep` runs in the sandbox.

    None if it never ran, or if a process of the tree may not be looked at: a sum without it would flatter."""
    result = None
    with spawner.start(spawner.command(argv, 1, 1, who, prefix), cwd, who) as proc:
        while proc.poll() is None:
            tree = descendants(proc.pid)
            if any(name == "sleep" for _, name in tree):
                time.sleep(0.1)
                tree = descendants(proc.pid)
                shares = [pss_kib(pid) for pid, _ in tree]
                result = None if None in shares else (sum(shares), len(tree))
                break
            time.sleep(0.02)
    return result if result and result[0] else None
