"""What only an observer outside can see: canaries, owners, residue, races against the start, whole-run behaviour.

Each function returns one observation in the words of the probe's table ("untouched", "gone", "leak: ...").
"""
import glob
import json
import os
import random
import signal
import socket
import subprocess
import time

from stage import census, kernel_log, residue, sha, write


def leak(text):
    return "leak: " + str(text)[:160]


def spawn(suite, argv, options=(), cwd=None, **kw):
    suite.starts += 1
    return subprocess.Popen(suite.hutch_argv(list(options)) + argv, cwd=cwd or suite.stage.ws, env=suite.stage.env(),
                            preexec_fn=suite.stage.become, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **kw)


def finish(p, timeout):
    """Waits for p. One that hangs is ended with everything below it, so that no open pipe holds the suite up."""
    try:
        out, err = p.communicate(timeout=timeout)
        return subprocess.CompletedProcess(p.args, p.returncode, out, err)
    except subprocess.TimeoutExpired:
        for pid in descendants(p.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        out, err = p.communicate(timeout=60)
        return subprocess.CompletedProcess(p.args, "timeout", out, err)


def run(suite, argv, options=(), timeout=180, **kw):
    """Starts hutch as the caller and waits; returncode is "timeout" if it hangs."""
    with spawn(suite, argv, options, **kw) as p:
        return finish(p, timeout)


def descendants(pid):
    found, todo = [], [pid]
    while todo:
        p = todo.pop()
        found.append(p)
        for t in glob.glob(f"/proc/{p}/task/*/children"):
            try:
                with open(t) as f:
                    todo += [int(x) for x in f.read().split()]
            except OSError:
                pass
    return found


def fresh(suite, name):
    d = suite.stage.path(name)
    os.mkdir(d)
    os.chown(d, suite.stage.uid, suite.stage.gid)
    return d


def pids_with(text):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if text.encode() in f.read().replace(b"\0", b" "):
                    found.append(int(pid))
        except OSError:
            pass
    return found


def holders(fd):
    """Processes besides us that hold the pipe behind fd: exactly those of this one start, whatever they call themselves."""
    pipe, found = os.readlink(f"/proc/self/fd/{fd}"), set()
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(link) == pipe:
                found.add(int(link.split("/")[2]))
        except OSError:
            pass
    return sorted(found - {os.getpid()})


def gone_within(text, seconds=60):
    end = time.monotonic() + seconds
    while pids_with(text):
        if time.monotonic() > end:
            return leak(f"{len(pids_with(text))} processes {seconds} s later")
        time.sleep(0.02)
    return "gone"


# --- after the main run -----------------------------------------------------------------------------------------------------


def after_run(suite, ws_before):
    st, seen = suite.stage, {}
    bits = st.set_id_inodes(st.ws)
    seen["F-41z"] = leak(bits) if bits else "none"
    new = [p for p in st.listing(st.ws) if p not in ws_before and not os.path.basename(p).startswith("rt-")]
    lost = [p for p in ws_before if not os.path.lexists(os.path.join(st.ws, p))]
    seen["F-43"] = leak(f"new {new[:5]} lost {lost[:5]}") if new or lost else "intact"
    raw = [c for c in suite.messages if ord(c) < 32 and c not in "\n\t"]
    seen["P-13z"] = leak(f"{len(raw)} control characters") if raw else "clean"
    seen["P-05z"] = leak("the attempt's character was echoed") if getattr(suite, "typed", False) else "nothing"
    seen["P-07z"] = "alive" if st.sentinel.poll() is None else leak("the sentinel is dead")
    heard = {k: v.heard for k, v in st.listeners.items() if v.heard}
    seen["L-03"] = leak(heard) if heard else "nothing"
    changed = [p for p, h in st.hashes.items() if sha(p) != h]
    seen["L-02"] = leak(changed) if changed else "unchanged"
    return seen


def f42_owner(suite):
    d = fresh(suite, "own")
    r = run(suite, ["/bin/sh", "-c", "echo x >file; mkdir dir; ln -s x link; echo y >dir/inner"], cwd=d)
    if r.returncode != 0:
        return leak(f"exit {r.returncode} {r.stderr[-100:]}")
    for name in ("file", "dir", "link", "dir/inner"):
        s = os.lstat(os.path.join(d, name))
        if (s.st_uid, s.st_gid) != (suite.stage.uid, suite.stage.gid):
            return leak(f"{name} belongs to {s.st_uid}:{s.st_gid}")
    return "caller"


def f13_race(suite, seconds):
    """A protected directory changes places with a link to a host directory while sandboxes start there."""
    d, target = fresh(suite, "race"), suite.stage.path("outside", "swapcanary")
    os.mkdir(d + "/.claude")
    os.symlink(target, d + "/link")
    suite.stage.own(d)
    before = suite.stage.listing(target), sha(target + "/keep")
    swap = subprocess.Popen([suite.stage.probe, "--swap", d + "/.claude", d + "/link", str(seconds)], stdout=subprocess.PIPE,
                            preexec_fn=suite.stage.become)
    starts, codes = 0, {}
    while swap.poll() is None:
        code = run(suite, ["/bin/sh", "-c", "echo x >.claude/settings.json; echo x >.claude/x"], cwd=d).returncode
        codes[code] = codes.get(code, 0) + 1
        starts += 1
    swaps = swap.stdout.read().decode().strip()
    swap.stdout.close()
    if before != (suite.stage.listing(target), sha(target + "/keep")):
        return leak(f"{suite.stage.listing(target)} after {starts} starts, {swaps} swaps")
    return f"untouched: {starts} starts against {swaps} swaps, exit codes {codes}"


def f16b_odd_names(suite):
    d = fresh(suite, "odd")
    os.mkfifo(d + "/.bashrc")
    os.symlink("loop2", d + "/loop1")
    os.symlink("loop1", d + "/loop2")
    os.symlink("loop1", d + "/.vscode")
    os.symlink("/nonexistent/" + "n" * 200, d + "/.profile")
    sock = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(d)
    sock.bind(".envrc")
    os.chdir(here)
    suite.stage.own(d)
    r = run(suite, ["/bin/true"], cwd=d)
    sock.close()
    return f"ends: exit {r.returncode}" if r.returncode in (0, 121, 122, 123) else leak(f"exit {r.returncode} {r.stderr[-120:]}")


def f25_deep(suite):
    d = fresh(suite, "deep")
    subprocess.run(["/bin/sh", "-c", 'd=d; i=0; while [ $i -lt 6 ]; do d=$d/$d; i=$((i+1)); done; i=0; '
                    'while [ $i -lt 80 ]; do mkdir -p $d && cd -P $d || exit; i=$((i+1)); done'], cwd=d, check=False)
    t = time.monotonic()
    r = run(suite, ["/bin/true"], cwd=d, timeout=120)
    return f"ends: {time.monotonic() - t:.2f} s" if r.returncode == 0 else leak(f"exit {r.returncode} {r.stderr[-120:]}")


def f26_wide(suite):
    d = fresh(suite, "wide")
    for i in range(20000):
        os.close(os.open(f"{d}/{i}", os.O_CREAT | os.O_WRONLY, 0o644))
    suite.stage.own(d)
    t = time.monotonic()
    r = run(suite, ["/bin/true"], cwd=d, timeout=120)
    return f"ends: {time.monotonic() - t:.2f} s" if r.returncode == 0 else leak(f"exit {r.returncode} {r.stderr[-120:]}")


def listed(suite, script, needle, tag="", repository=None):
    d = fresh(suite, "born-" + needle.strip(".") + tag)
    if repository:
        made = os.path.join(d, repository, ".git")
        os.makedirs(made)
        for folder, _, _ in os.walk(d):
            os.chown(folder, suite.stage.uid, suite.stage.gid)
    record = suite.stage.path(f"record-{needle.strip('.')}{tag}.json")
    os.close(os.open(record, os.O_CREAT | os.O_WRONLY, 0o666))
    os.chown(record, suite.stage.uid, suite.stage.gid)
    run(suite, ["/bin/sh", "-c", script], ["--json", record], cwd=d)
    made = [p for p in suite.stage.listing(d) if os.path.basename(p) == needle]
    try:
        with open(record) as f:
            names = json.load(f).get("host_may_execute", [])
    except (OSError, ValueError) as e:
        return leak(f"no record: {e}")
    if not made:
        return "listed: refused outright"
    return "listed" if any(needle in json.dumps(n) for n in names) else leak(f"{made} is not in {names}")


def p09b_chdir(suite):
    fd = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    os.dup2(fd, 78, inheritable=True)
    r = run(suite, ["/bin/pwd"], ["--chdir", "/proc/self/fd/78"], pass_fds=[78])
    os.close(78)
    os.close(fd)
    if r.returncode in (120, 121, 122, 123):
        return f"refused: exit {r.returncode}"
    return f"refused: started in {r.stdout.decode().strip()}" if r.stdout.decode().startswith("/") else leak(r.stdout)


def p11_daemon(suite):
    mark = f"9{random.randrange(10 ** 7):07d}"
    run(suite, ["/bin/sh", "-c", f"(trap '' TERM HUP INT; setsid sh -c \"trap '' TERM HUP INT; sleep {mark}\" & ) ; sleep 0.2"])
    return gone_within(f"sleep {mark}")


def p12_stopped(suite):
    mark = f"8{random.randrange(10 ** 7):07d}"
    t = time.monotonic()
    run(suite, ["/bin/sh", "-c", f"sleep {mark} & kill -STOP $!; kill -STOP $$"], ["--timeout", "1s"], timeout=180)
    took = time.monotonic() - t
    state = gone_within(f"sleep {mark}")
    return state if took < 90 else leak(f"the deadline of 1 s took {took:.0f} s")


def n17_host_uids(suite):
    p = spawn(suite, ["/bin/sh", "-c", "echo go; sleep 600 & sleep 600"])
    p.stdout.readline()
    own_userns, inside, bad, end = os.readlink("/proc/self/ns/user"), 0, [], time.monotonic() + 60
    while inside < 2 and time.monotonic() < end:  # a new one may be just coming
        inside, bad = 0, []
        for pid in descendants(p.pid):
            try:
                if os.readlink(f"/proc/{pid}/ns/user") == own_userns:
                    continue
                with open(f"/proc/{pid}/status") as f:
                    uids = [line.split()[1:] for line in f if line.startswith("Uid:")][0]
            except OSError:
                continue
            inside += 1
            if "0" in uids:
                bad.append((pid, uids))
    finish(p, 0.1)
    if not inside:
        return leak("no process of the sandbox was found from outside")
    return leak(bad) if bad else f"never-0: {inside} processes"


def s27_kill_hutch(suite):
    mark, before = f"7{random.randrange(10 ** 7):07d}", suite.stage.listing(suite.stage.ws)
    p = spawn(suite, ["/bin/sh", "-c", f"trap '' TERM; echo go; sleep {mark}; sleep {mark}"])
    p.stdout.readline()
    below = descendants(p.pid)
    p.kill()
    state = gone_within(f"sleep {mark}")
    for pid in below if state != "gone" else []:
        subprocess.run(["kill", "-9", str(pid)], stderr=subprocess.DEVNULL, check=False)
    p.communicate(timeout=60)
    end = time.monotonic() + 60
    while (stubs := [x for x in suite.stage.listing(suite.stage.ws) if x not in before]) and time.monotonic() < end:
        time.sleep(0.05)
    return leak(f"left behind: {stubs[:5]}") if stubs and state == "gone" else state


# --- system calls -----------------------------------------------------------------------------------------------------------


def verdicts(suite, abi, fill):
    r = run(suite, [suite.stage.probe, "--syscalls", abi, fill], timeout=600)
    return dict(line.split(" ", 1) for line in r.stdout.decode().splitlines() if " " in line)


def recorded(suite, fill, record):
    name = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"syscalls-{fill}.txt")
    got = verdicts(suite, "native", fill)
    if len(got) != 601:
        return leak(f"{len(got)} of 601 verdicts")
    want = {}
    if os.path.exists(name):
        with open(name) as f:
            want = dict(line.split() for line in f)
    if record:
        # Where callers differ (fchown of the caller's own stdin, say) the kernel decides, and both words are right.
        both = {k: want[k] if k in want and v in want[k].split("|") else "|".join(filter(None, (want.get(k), v)))
                for k, v in got.items()}
        write(name, "".join(f"{k} {v}\n" for k, v in both.items()))
        return f"as-recorded: written to {os.path.basename(name)}"
    if not want:
        return leak(f"no table {os.path.basename(name)}; make it with --record")
    diff = [f"{k}: {want[k]} -> {got[k]}" for k in want if got.get(k) not in want[k].split("|")]
    return leak(diff[:6]) if diff else "as-recorded"


def foreign(suite, abi):
    got = verdicts(suite, abi, "zeros")
    other = [k for k, v in got.items() if v != "SIGSYS"]
    if len(got) != 601:
        return leak(f"{len(got)} of 601 verdicts")
    if other and abi == "x32" and all(got[k] == "ENOSYS" for k in other):
        return "all-SIGSYS: ENOSYS from a kernel without x32"
    return leak(f"{len(other)} others, such as {other[:5]}") if other else "all-SIGSYS"


def s03_fuzz(suite, seconds):
    r = run(suite, [suite.stage.probe, "--fuzz", str(seconds), str(random.randrange(1 << 20))], timeout=seconds + 200,
            cwd=fresh(suite, "fuzz"))
    return f"survived: {r.stdout.decode().strip()}" if r.returncode == 0 else leak(f"exit {r.returncode} {r.stderr[-120:]}")


def s25_flood(suite, seconds):
    t = time.monotonic()
    r = run(suite, [suite.stage.probe, "--flood", str(seconds), "20"], ["--explain"], timeout=seconds + 200)
    text = f"{r.stdout.decode().strip()}, {time.monotonic() - t:.1f} s"
    return f"ends: {text}" if r.returncode == 0 and time.monotonic() - t < seconds + 100 else leak(f"exit {r.returncode} {text}")


# --- resources of whole runs --------------------------------------------------------------------------------------------------


def r31_cpu(suite):
    """Processor time that somebody else had may be counted as the command's: a few tries."""
    for _ in range(4):
        said = r31_once(suite)
        if not said.startswith("leak"):
            break
    return said


def r31_once(suite):
    t = time.monotonic()
    p = run(suite, ["/bin/sh", "-c", "(while :; do :; done) & while :; do :; done"], ["--cpus", "0.5", "--timeout", "3s", "--json",
            "1"], timeout=180)
    wall = time.monotonic() - t
    if p.returncode == 122:
        return "skipped: no cpu controller for this caller"
    try:
        usage = json.loads(p.stdout.decode())["usage"]
        cpu_s = (usage["user_ms"] + usage["system_ms"]) / 1000
    except (ValueError, KeyError):
        return leak(f"exit {p.returncode}, no usage in the record")
    return f"held: {cpu_s:.2f} s of CPU in {wall:.1f} s" if cpu_s < 0.75 * wall else leak(f"{cpu_s:.2f} s of CPU in {wall:.1f} s")


def r37_output(suite):
    script = "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done"
    with spawn(suite, ["/bin/sh", "-c", script], ["--output-bytes", "1M", "--timeout", "120s"]) as p:
        got = 0
        while got < 4 << 20:
            data = os.read(p.stdout.fileno(), 1 << 16)
            if not data:
                break
            got += len(data)
        code = finish(p, 0.1 if got >= 4 << 20 else 60).returncode
    return f"ended: exit 124 after {got} bytes" if code == 124 and got <= 2 << 20 else leak(f"exit {code} after {got} bytes")


def r38_line(suite):
    r = run(suite, ["/bin/sh", "-c", "head -c 67108864 /dev/zero"])
    return "passed" if len(r.stdout) == 64 << 20 and r.returncode == 0 else leak(f"{len(r.stdout)} bytes, exit {r.returncode}")


def r39_bytes(suite):
    want = bytes(range(256)) + b"\x1b[2J\x1b]0;title\x07" * 10
    path = os.path.join(suite.stage.ws, "rt-bytes")
    with open(path, "wb") as f:
        f.write(want)
    os.chmod(path, 0o644)
    r = run(suite, ["/bin/cat", "rt-bytes"])
    os.unlink(path)
    return "unchanged" if r.stdout == want else leak(f"{len(r.stdout)} bytes of {len(want)}")


def settled(before, base):
    """Residue after everything had a moment to go."""
    end = time.monotonic() + 60
    while (left := residue(before, census(base))) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def r40_many(suite, seconds):
    before, n, end = census(suite.stage.base), 0, time.monotonic() + seconds
    ws = suite.stage.listing(suite.stage.ws)
    while time.monotonic() < end:
        if run(suite, ["/bin/true"]).returncode != 0:
            return leak(f"run {n} failed")
        n += 1
    left = settled(before, suite.stage.base)
    if suite.stage.listing(suite.stage.ws) != ws:
        left["workspace"] = sorted(set(suite.stage.listing(suite.stage.ws)) ^ set(ws))
    return leak(left) if left else f"no-residue: {n} runs"


def r42_kill_at_start(suite, seconds):
    before, ws = census(suite.stage.base), suite.stage.listing(suite.stage.ws)
    n, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        p = spawn(suite, ["/bin/sleep", "600"])
        time.sleep(random.random() * 0.02)
        p.send_signal(signal.SIGKILL)
        try:
            p.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            alive = holders(p.stdout.fileno())
            what = [(pid, open(f"/proc/{pid}/cmdline").read().replace("\0", " ")[:40]) for pid in alive]
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
            p.communicate(timeout=60)
            return leak(f"lived on a minute after kill {n}: {what[:3]}")
        n += 1
    left = settled(before, suite.stage.base)
    end = time.monotonic() + 60
    while (stubs := sorted(set(suite.stage.listing(suite.stage.ws)) ^ set(ws))) and time.monotonic() < end:
        time.sleep(0.1)
    if stubs:
        left["workspace"] = stubs[:8]
    return leak(left) if left else f"no-residue: {n} kills"


# --- roots that lie ---------------------------------------------------------------------------------------------------------


def lying_root(suite, change):
    root = suite.make_root()
    target = suite.stage.path("outside", "swapcanary")
    before = suite.stage.listing(target), sha(target + "/keep")
    bad = root + "-bad"
    subprocess.run(["cp", "-a", root, bad], check=True)
    change(bad, target)
    r = run(suite, ["/bin/probe", "--whoami"], ["--root", bad, "--chdir", "/"], timeout=120)
    subprocess.run(["rm", "-rf", bad], check=True)
    if r.returncode == "timeout":
        return leak("hangs")
    if before != (suite.stage.listing(target), sha(target + "/keep")):
        return leak(f"{suite.stage.listing(target)}")
    return f"untouched: exit {r.returncode}"


def swap_in(kind):
    def change(root, target):
        if kind == "dev":
            os.rmdir(root + "/dev")
            os.symlink(target, root + "/dev")
        elif kind == "null":
            os.symlink("/proc/sysrq-trigger", root + "/dev/null")
        else:
            os.rmdir(root + "/proc")
            os.symlink(target, root + "/proc")
            os.rmdir(root + "/sys")
            os.mkfifo(root + "/sys")
            os.mkfifo(root + "/etc/resolv.conf")
            os.rmdir(root + "/tmp")
            os.symlink(target, root + "/tmp")
    return change


def checks(suite, args):
    s, seen = args.seconds, {}
    todo = {
        "F-13": lambda: f13_race(suite, s), "F-16b": lambda: f16b_odd_names(suite), "F-25": lambda: f25_deep(suite),
        "F-26": lambda: f26_wide(suite), "F-42": lambda: f42_owner(suite),
        "F-34b": lambda: listed(suite, "mkdir -p new/.git/hooks && echo x >new/.git/HEAD", ".git"),
        "F-38l": lambda: listed(suite, "echo x >a/b/repo/.envrc", ".envrc", "-nested", "a/b/repo"),
        "F-38m": lambda: listed(suite, "mkdir -p a/b/c/d/e && echo x >a/b/c/d/e/.envrc", ".envrc"),
        "P-09b": lambda: p09b_chdir(suite), "P-11": lambda: p11_daemon(suite), "P-12": lambda: p12_stopped(suite),
        "N-17": lambda: n17_host_uids(suite), "S-01a": lambda: recorded(suite, "zeros", args.record),
        "S-01b": lambda: foreign(suite, "i386"), "S-01c": lambda: foreign(suite, "x32"),
        "S-02": lambda: recorded(suite, "ones", args.record), "S-03": lambda: s03_fuzz(suite, s),
        "S-25": lambda: s25_flood(suite, s), "S-27": lambda: s27_kill_hutch(suite), "R-31": lambda: r31_cpu(suite),
        "R-37": lambda: r37_output(suite), "R-38": lambda: r38_line(suite), "R-39": lambda: r39_bytes(suite),
    }
    rc = run(suite, ["/bin/probe", "--whoami"], ["--root", suite.make_root(), "--chdir", "/"]).returncode
    for i, kind in (("F-14", "dev"), ("F-15", "null"), ("F-16a", "all")):
        if rc == 0:
            todo[i] = lambda k=kind: lying_root(suite, swap_in(k))
        else:
            seen[i] = f"skipped: --root does not work here (exit {rc})"
    return {**seen, **all_of(todo)}


def all_of(todo):
    seen = {}
    for i, fn in todo.items():
        try:
            seen[i] = fn()
        except (OSError, subprocess.SubprocessError, ValueError) as e:
            seen[i] = leak(f"the check itself failed: {e!r}")
    return seen


def finals(suite, args, before, log, binary):
    """What looks at the whole host: no other caller may be at work."""
    st = suite.stage
    seen = all_of({"R-40": lambda: r40_many(suite, args.seconds), "R-42": lambda: r42_kill_at_start(suite, args.seconds)})
    seen["L-01"] = leak(settled(before, st.base)) if settled(before, st.base) else "no-residue"
    if sha(suite.args.hutch) != binary:
        seen["L-02"] = leak("the hutch binary changed")
    now = kernel_log()
    if log is None or now is None:
        seen["L-04"] = "skipped: the kernel log cannot be read"
    else:
        bad = [x for x in now if x not in set(log) and any(w in x for w in ("WARNING:", "BUG:", "Oops", "KASAN", "lockdep"))]
        seen["L-04"] = leak(bad[:2]) if bad else "clean"
    return seen
