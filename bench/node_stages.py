"""Where the time of one exec goes, from the kernel's own trace: system calls of the processes that take part, forks, execs."""
import contextlib
import pathlib
import re
import statistics

TRACING = pathlib.Path("/sys/kernel/tracing")
EVENTS = ("raw_syscalls/sys_enter", "raw_syscalls/sys_exit", "sched/sched_process_fork", "sched/sched_process_exec")
COMMS = ("hutch-init", "hutch-node", "node-load", "echo")
READ, WRITE, READV, RECVFROM, SENDMSG, RECVMSG, WAIT4, EXIT_GROUP = 0, 1, 19, 45, 46, 47, 61, 231
LINE = re.compile(r"\s*(.+)-(\d+)\s+\[\d+\] \S+\s+(\d+\.\d+): (\w+): (.*)")

# (what a stage is, who ends it, the event that does, its system call); in the order in which they happen.
STAGES = [
    ("client -> front: TCP, wake-up", "node", "sys_exit", RECVFROM),
    ("front: HTTP, who may, the message to init", "node", "sys_enter", SENDMSG),
    ("link: socket, wake-up of init", "init", "sys_exit", RECVMSG),
    ("init: pipes, rings, fork", "init", "sched_process_fork", None),
    ("child: user, limits, exec", "child", "sched_process_exec", None),
    ("the program: loader, first write", "child", "sys_enter", WRITE),
    ("init reads the output", "init", "sys_exit", READV),
    ("init -> front -> client: the output", "load", "sys_exit", READ),
    ("the program ends", "child", "sys_enter", EXIT_GROUP),
    ("kernel takes it apart, init reaps", "init", "sys_exit", WAIT4),
    ("init -> front -> client: the end", "load", "sys_exit", READ),
]


@contextlib.contextmanager
def tracing():
    """An instance of its own, so that nobody else's tracing is touched. Yields a function that returns the text."""
    folder = TRACING / "instances" / "hutch-bench"
    folder.mkdir()
    try:
        (folder / "buffer_size_kb").write_text("32768")
        which = " || ".join(f'comm == "{name}"' for name in COMMS)
        for event in EVENTS:
            if event.startswith("raw"):
                (folder / "events" / event / "filter").write_text(which)
            (folder / "events" / event / "enable").write_text("1")
        yield lambda: (folder / "trace").read_text(errors="replace")
    finally:
        (folder / "tracing_on").write_text("0")
        for event in EVENTS:
            (folder / "events" / event / "enable").write_text("0")
        folder.rmdir()


def parse(text):
    """(comm, pid, microseconds, event, system call or None, result or child)"""
    rows = []
    for line in text.splitlines():
        found = LINE.match(line)
        if not found:
            continue
        comm, pid, when, event, rest = found.groups()
        call = value = None
        if event.startswith("sys_"):
            call = int(rest.split()[1])
            value = int(rest.rsplit("= ", 1)[1]) if event == "sys_exit" else None
        elif event == "sched_process_fork":
            value = int(rest.rsplit("child_pid=", 1)[1])
        rows.append((comm, int(pid), float(when) * 1e6, event, call, value))
    return rows


def one_run(rows, start, end, front):
    """Microseconds of each stage, or None if an event is missing (the trace lost it, or it came in another order)."""
    times, child, at, init = [start], None, 0, None
    window = [row for row in rows if start < row[2] <= end]
    for i, (_, who, event, call) in enumerate(STAGES):
        last = i == len(STAGES) - 1
        for at in range(at, len(window)):
            comm, pid, when, kind, number, value = window[at]
            if kind != event or (call is not None and number != call) or (kind == "sys_exit" and value <= 0):
                continue
            role = ("load" if comm == "node-load" else "node" if pid == front else "child" if child == pid
                    else "init" if comm == "hutch-init" and pid in (init, init or pid) else None)
            if role != who:
                continue
            if kind == "sched_process_fork":
                child, init = value, pid
            times.append(when)
            at += 1
            break
        else:
            return None
        if last:
            times[-1] = max(row[2] for row in window if row[0] == "node-load" and row[3] == "sys_exit" and row[4] == READ)
    return [b - a for a, b in zip(times, times[1:])]


def breakdown(text, front):
    """[(stage, median microseconds)], and how many runs the trace showed whole."""
    rows = parse(text)
    starts = [row[2] for row in rows if row[0] == "node-load" and row[3] == "sys_enter" and row[4] == WRITE]
    runs = [one_run(rows, a, b, front) for a, b in zip(starts, starts[1:])]
    runs = [run for run in runs if run]
    if not runs:
        return [], 0
    return [(STAGES[i][0], statistics.median(run[i] for run in runs)) for i in range(len(STAGES))], len(runs)
