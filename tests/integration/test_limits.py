"""Limits: each is reached on purpose, and what the caller sees is checked. As root with cgroups, as a user without."""
import json
import time

from hutch_test import HUTCH, check, check_equal, check_in, check_one_line, hutch, hutch_record, run, workspace

EAT = "x = []\nwhile True: x.append(bytearray(1 << 20))"


def have_cgroup(who):
    """Whether this caller can limit processor time, asked of hutch itself."""
    r = hutch("run", "--cpus", "1", "--no-cwd", "-C", "/", "--", "true", who=who)
    return r.code == 0


def test_memory(who):
    "a command that takes more memory than it may is ended: 124, with the cause in the record"
    with workspace(who) as ws:
        r = hutch_record("--memory", "64M", "--", "python3", "-c", EAT, who=who, cwd=ws)
        check_equal(r.code, 124, r)
        text = json.dumps(r.record["death"]).lower()
        check("oom" in text or "memory" in text, r.record["death"])
        r = hutch("run", "--memory", "256M", "--", "python3", "-c", "x = bytearray(64 << 20); print(len(x))", who=who, cwd=ws)
        check_equal((r.code, r.out), (0, "67108864\n"), r)


def test_memory_of_many(who):
    "the memory limit holds for all processes together"
    script = ("import os, time\nfor _ in range(8):\n if os.fork() == 0:\n  x = bytearray(24 << 20)\n  for i in range(0, len(x), 4096): x[i] = 1\n"
              "  time.sleep(100)\n  os._exit(0)\nfor _ in range(8):\n if os.wait()[1]: raise SystemExit('a child died')\n")
    with workspace(who) as ws:
        begin = time.monotonic()
        r = hutch("run", "-q", "--memory", "100M", "--", "python3", "-c", script, who=who, cwd=ws)
        check(r.code != 0, r)
        check(time.monotonic() - begin < 90, "the limit did not hold")


def test_pids(who):
    "no more processes than --pids can live"
    script = ("import os, time\nn = 0\ntry:\n while n < 200:\n  if os.fork() == 0: time.sleep(30); os._exit(0)\n  n += 1\n"
              "except OSError as e: print('refused', e.errno, n < 40)\n")
    with workspace(who) as ws:
        r = hutch("run", "-q", "--pids", "30", "--", "python3", "-c", script, who=who, cwd=ws)
        check_equal(r.out, "refused 11 True\n", r)


def test_cpu(who):
    "--cpus slows a busy command down and the record counts it; without cgroups it is refused"
    with workspace(who) as ws:
        # Processor time that somebody else took may count as the command's, and a command that gets none is not slowed down: a few tries.
        script = "import time\nend = time.monotonic() + 1.0\nn = 0\nwhile time.monotonic() < end: n += 1\nprint(time.process_time())"
        r = hutch("run", "--cpus", "0.25", "--", "python3", "-c", script, who=who, cwd=ws)
        if not have_cgroup(who):
            check_equal(r.code, 122, r)
            check_one_line(r.err, r)
            check_in("cgroup", r.err, r)
            r = hutch_record("--cpus", "0.25", "--enforcement", "best-effort", "--", "true", who=who, cwd=ws)
            check_equal(r.code, 0, r)
            check_in("processor", json.dumps(r.record["notes"]), r.record)
            return
        for _ in range(5):
            check_equal(r.code, 0, r)
            if float(r.out) < 0.6:
                break
            r = hutch("run", "--cpus", "0.25", "--", "python3", "-c", script, who=who, cwd=ws)
        check(float(r.out) < 0.6, f"{r.out.strip()} s of processor time in 1 s with 0.25 processors")
        for _ in range(5):
            r = hutch_record("--cpus", "0.25", "--", "python3", "-c", script, who=who, cwd=ws)
            if any(v > 0 for k, v in flat(r.record["usage"]) if "throttled" in k):
                break
        check(any(v > 0 for k, v in flat(r.record["usage"]) if "throttled" in k), r.record["usage"])


def flat(value, prefix=""):
    """(path, number) of every number in a record."""
    if isinstance(value, dict):
        for k, v in value.items():
            yield from flat(v, f"{prefix}.{k}")
    elif isinstance(value, (int, float)):
        yield prefix, value


def test_disk(who):
    "/tmp, /var/tmp and /dev/shm together hold no more than --disk and --inodes"
    with workspace(who) as ws:
        r = hutch("run", "-q", "--no-cwd", "--disk", "8M", "--", "sh", "-c",
                  "head -c 5M /dev/zero > /tmp/a; head -c 5M /dev/zero > /var/tmp/b; head -c 5M /dev/zero > /dev/shm/c; "
                  "cat /tmp/a /var/tmp/b /dev/shm/c | wc -c", who=who, cwd=ws)
        check_in("No space left", r.err, r)
        check(5 << 20 <= int(r.out) <= 8 << 20, r)
        r = hutch("run", "-q", "--no-cwd", "--inodes", "200", "--", "sh", "-c",
                  "i=0; while [ $i -lt 300 ]; do touch /tmp/$i || break; i=$((i+1)); done 2>/dev/null; ls /tmp | wc -l", who=who, cwd=ws)
        check(50 < int(r.out) < 200, r)
        r = hutch("run", "--disk", "8M", "--", "true", who=who, cwd=ws)
        check_equal(r.code, 122, r)
        check_one_line(r.err, r)
        r = hutch("run", "--disk", "8M", "--enforcement", "best-effort", "--", "true", who=who, cwd=ws)
        check_equal(r.code, 0, r)


def test_open_files(who):
    "--open-files bounds the descriptors of a process and cannot be raised inside"
    script = ("import os, resource\ntry: resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096)); print('raised')\n"
              "except (OSError, ValueError): pass\nn = 0\ntry:\n while n < 500: os.dup(0); n += 1\nexcept OSError as e: print(e.errno, n < 64)")
    with workspace(who) as ws:
        r = hutch("run", "-q", "--open-files", "64", "--", "python3", "-c", script, who=who, cwd=ws)
        check_equal(r.out, "24 True\n", r)


def test_timeout(who):
    "--timeout ends the command, politely first, for good a second later: 124"
    with workspace(who) as ws:
        begin = time.monotonic()
        r = hutch("run", "-q", "--timeout", "300ms", "--", "sleep", "100", who=who, cwd=ws)
        check_equal(r.code, 124, r)
        check(0.25 < time.monotonic() - begin < 60, "wrong time")
        for limit in ("300ms", "3s", "10s"):  # it must have begun by then, and has a second to say something
            r = hutch("run", "-q", "--timeout", limit, "--", "sh", "-c", "trap 'echo asked; exit 3' TERM; while :; do sleep 0.05; done", who=who, cwd=ws)
            check_equal(r.code, 124, r)
            if r.out:
                break
        check_equal(r.out, "asked\n", r)
        begin = time.monotonic()
        r = hutch("run", "-q", "-t", "300ms", "--", "python3", "-c",
                  "import signal, time, os\nfor s in range(1, 65):\n try: signal.signal(s, signal.SIG_IGN)\n except (OSError, ValueError): pass\n"
                  "os.fork()\nos.setsid() if os.getpgrp() != os.getpid() else 0\ntime.sleep(100)", who=who, cwd=ws)
        check_equal(r.code, 124, r)
        check(time.monotonic() - begin < 60, "a command that ignores SIGTERM lived on")
        r = hutch("run", "--timeout", "100s", "--", "true", who=who, cwd=ws)
        check_equal((r.code, r.err), (0, ""), r)
        r = hutch("run", "-q", "--timeout", "300ms", "--", "sh", "-c", "kill -STOP $$", who=who, cwd=ws)
        check_equal(r.code, 124, r)


def test_cpu_time(who):
    "--cpu-time ends a busy command, also when its children do the work; without cgroups it is refused"
    with workspace(who) as ws:
        begin = time.monotonic()
        r = hutch("run", "-q", "--cpu-time", "300ms", "--", "sh", "-c", "while :; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done",
                  who=who, cwd=ws)
        if not have_cgroup(who):
            check_equal(r.code, 122, r)
            check_one_line(r.err, r)
            return
        check_equal(r.code, 124, r)
        check(time.monotonic() - begin < 90, "too late")
        r = hutch("run", "--cpu-time", "60s", "--", "sleep", "0.5", who=who, cwd=ws)
        check_equal(r.code, 0, r)


def test_output(who):
    "--output-bytes passes exactly that many bytes, of stdout and stderr together, and then ends the command: 124"
    with workspace(who) as ws:
        r = hutch("run", "-q", "--output-bytes", "1000", "--", "sh", "-c", "yes", who=who, cwd=ws)
        check_equal((r.code, len(r.out)), (124, 1000), r)
        r = hutch("run", "-q", "--output-bytes", "1000", "--", "sh", "-c", "head -c 1000 /dev/zero; exit 4", who=who, cwd=ws)
        check_equal((r.code, len(r.out)), (4, 1000), r)
        r = hutch("run", "-q", "--output-bytes", "100", "--", "sh", "-c", "head -c 60 /dev/zero >&2; head -c 60 /dev/zero; sleep 5", who=who, cwd=ws)
        check_equal((r.code, len(r.out) + len(r.err)), (124, 100), r)
        r = hutch("run", "-q", "--output-bytes", "10M", "--", "sh", "-c", "head -c 3000000 /dev/zero; echo e >&2", who=who, cwd=ws)
        check_equal((r.code, len(r.out), r.err), (0, 3000000, "e\n"), r.code)


def test_bad_limits(who):
    "limits that make no sense are refused in one line"
    with workspace(who) as ws:
        for words in (["--memory", "lots"], ["--memory", "-1"], ["--cpus", "0"], ["--pids", "0"], ["--timeout", "5"], ["--timeout", "5 parsecs"],
                      ["--memory", "99999999999999999999"], ["--open-files", "1.5"], ["--memory"]):
            r = hutch("run", *words, *(["--", "true"] if len(words) > 1 else []), who=who, cwd=ws)
            check(r.code in (120, 121) or (words == ["--timeout", "5"] and r.code == 0), r)
            if r.code:
                check_one_line(r.err, r)


def test_usage_is_measured(who):
    "the record tells wall time, processor time, peak memory and the outcome"
    with workspace(who) as ws:
        r = hutch_record("--", "python3", "-c", "import time\nx = bytearray(40 << 20)\nend = time.process_time() + 0.3\n"
                         "while time.process_time() < end: pass", who=who, cwd=ws)
        usage = r.record["usage"]
        check(300 <= usage["user_ms"] + usage["system_ms"] < 60000, usage)
        check(usage["wall_ms"] >= 300, usage)
        check(40 << 20 <= usage["max_rss_bytes"] < 200 << 20, usage)


def test_group_of_hutch_is_not_hit(who):
    "a command that signals everything it can reach does not reach its caller"
    with workspace(who) as ws:
        r = run("sh", "-c", f"{HUTCH} run -q -- sh -c 'kill -TERM -1; kill -TERM 0; kill -KILL -1' ; echo alive $?", who=who, cwd=ws)
        check_in("alive 1", r.out, r)
        check(r.code == 0, r)
