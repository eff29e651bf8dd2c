"""`hutch run` seen from outside: exit codes, signals, streams, environment, working directory."""
import os
import pathlib
import re
import select
import signal
import subprocess
import tempfile
import time

from hutch_test import (HUTCH, check, check_equal, check_in, check_one_line, clean_env, eventually, hutch, identity, run,
                        workspace, write)


def start(*args, who, cwd, **kwargs):
    """hutch run in the background."""
    ids, entry = identity(who)
    kwargs.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.Popen([HUTCH, "run", *map(str, args)], cwd=cwd, env=clean_env(entry), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, start_new_session=True, **ids, **kwargs)


def test_exit_codes(who):
    "the exit code of the command is the exit code of hutch"
    with workspace(who) as ws:
        for code in (0, 1, 7, 119, 125, 255):
            r = hutch("run", "--", "sh", "-c", f"exit {code}", who=who, cwd=ws)
            check_equal((r.code, r.out, r.err), (code, "", ""), r)


def test_not_run(who):
    "a missing command is 127, one that cannot be executed 126, each with one line"
    with workspace(who) as ws:
        write(ws / "plain", "text\n", who)
        write(ws / "broken", "#!/no/such/interpreter\n", who, 0o755)
        for words, code in ((["no-such-command-x"], 127), ([ws / "none"], 127), ([ws / "plain"], 126), ([ws], 126),
                            ([ws / "broken"], 127)):
            r = hutch("run", "--", *words, who=who, cwd=ws)
            check_equal(r.code, code, r)
            check_one_line(r.err, r)


def test_death_by_signal(who):
    "a command that a signal ended gives 128+n"
    with workspace(who) as ws:
        for sig in (signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL, signal.SIGPIPE):
            r = hutch("run", "-q", "--", "sh", "-c", f"ulimit -c 0; kill -{int(sig)} $$", who=who, cwd=ws)
            check_equal(r.code, 128 + sig, r)


def test_signals_reach_the_command(who):
    "SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 sent to hutch reach the command, and only the command"
    script = """import os, signal, sys, time
child = os.fork()
if child == 0:
    for s in (1, 2, 10, 12, 15): signal.signal(s, lambda *_: os.write(1, b'CHILD '))
    time.sleep(600)
for s in (1, 2, 10, 12, 15): signal.signal(s, lambda s, f: os.write(1, b'got%d ' % s))
os.write(1, b'ready ')
end = time.time() + 600
while time.time() < end: time.sleep(0.05)
"""
    with workspace(who) as ws:
        proc = start("--", "python3", "-c", script, who=who, cwd=ws)
        got = proc.stdout.read1(100)
        check_equal(got, b"ready ")
        for sig in (1, 2, 10, 12, 15):
            proc.send_signal(sig)
            check_equal(proc.stdout.read1(100), f"got{sig} ".encode())
        proc.kill()
        rest = proc.communicate()[0]
        check_equal(rest, b"")
        eventually(lambda: not os.listdir(ws), 5, "the guard has cleaned up")


def test_signal_ends_the_command(who):
    "a command that does not catch SIGTERM is ended by it: 143"
    with workspace(who) as ws:
        proc = start("--", "sh", "-c", "echo go; exec sleep 300", who=who, cwd=ws)
        check_equal(proc.stdout.readline(), b"go\n")
        proc.terminate()
        check_equal(proc.wait(120), 143)
        proc.communicate()


def test_streams_are_the_same(who):
    "stdin, stdout and stderr are the very pipes hutch was given"
    with workspace(who) as ws:
        ids, entry = identity(who)
        pairs = [os.pipe() for _ in range(3)]
        names = [f"pipe:[{os.fstat(p[0]).st_ino}]" for p in pairs]
        script = ("import os; t = ' '.join(os.readlink('/proc/self/fd/%d' % i) for i in (0, 1, 2)); "
                  "os.write(1, t.encode())")
        proc = subprocess.Popen([HUTCH, "run", "--", "python3", "-c", script], cwd=ws, env=clean_env(entry),
                                stdin=pairs[0][0], stdout=pairs[1][1], stderr=pairs[2][1], **ids)
        os.close(pairs[1][1])
        os.close(pairs[2][1])
        with os.fdopen(pairs[1][0]) as out, os.fdopen(pairs[2][0]) as err:
            seen = out.read()
            check_equal(err.read(), "")
        os.close(pairs[0][0])
        os.close(pairs[0][1])
        check_equal(proc.wait(120), 0)
        check_equal(seen, " ".join(names))


def test_streams_carry_everything(who):
    "64 MB of binary data pass through stdin and stdout unchanged, and their ends are seen"
    with workspace(who) as ws:
        r = run("sh", "-c", "head -c 67108864 /dev/urandom > in.bin; cat in.bin | $0 run -- cat | cmp - in.bin && echo same",
                HUTCH, who=who, cwd=ws)
        check_equal((r.code, r.out), (0, "same\n"), r)


def test_end_of_output_is_seen(who):
    "a reader sees the end of the output when the command closes it, not when hutch ends"
    with workspace(who) as ws:
        begin = time.monotonic()
        proc = start("--", "sh", "-c", "echo x; exec >&- 2>&-; sleep 120", who=who, cwd=ws)
        check_equal(proc.stdout.read(), b"x\n")
        early, code = time.monotonic() - begin, proc.poll()
        proc.terminate()
        proc.wait(120)
        proc.communicate()
        check(early < 100 and code is None, f"the end of the output came after {early:.1f} s, code {code}")


def test_end_of_input_is_seen(who):
    "a writer gets SIGPIPE when the command closes its input, although hutch still runs"
    with workspace(who) as ws:
        proc = start("--", "sh", "-c", "exec <&-; echo go; sleep 300", who=who, cwd=ws, stdin=subprocess.PIPE)
        check_equal(proc.stdout.readline(), b"go\n")
        def closed():
            try:
                return os.write(proc.stdin.fileno(), b"x") != 1
            except BrokenPipeError:
                return True
        try:
            eventually(closed, 5, "the pipe has no reader")
            check_equal(proc.poll(), None)
        finally:
            proc.terminate()
            proc.stdout.close()
            proc.stderr.close()
            proc.wait(120)


def test_closed_pipe(who):
    "a command that writes to a closed pipe gets SIGPIPE as without hutch"
    with workspace(who) as ws:
        r = run("bash", "-c", "$0 run -q -- yes | head -1; echo ${PIPESTATUS[0]}", HUTCH, who=who, cwd=ws)
        check_equal(r.out.split(), ["y", "141"], r)


def test_closed_streams(who):
    "hutch started without stdin, stdout or stderr still runs the command, and lends it nothing of its own"
    with workspace(who) as ws:
        for closed in ("0<&- 1>&- 2>&-", "0<&-", "1>&-", "0<&- 1>&-") * 3:
            r = run("sh", "-c", f'"$0" run -- sh -c "readlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 > f" {closed}', HUTCH, who=who, cwd=ws)
            check_equal(r.code, 0, r)
            seen = (ws / "f").read_text()
            check("socket:" not in seen and "anon_inode" not in seen, f"the command got a descriptor of hutch: {seen}")


def test_environment(who):
    "harmless variables are passed, secrets are dropped, flags set and pass more"
    extra = {"GITHUB_TOKEN": "t0", "AWS_SECRET_ACCESS_KEY": "t1", "OPENAI_API_KEY": "t2", "MY_PASSWORD": "t3", "LD_PRELOAD": "",
             "SSH_AUTH_SOCK": "/x", "CUSTOM": "c"}
    with workspace(who) as ws:
        r = hutch("run", "--", "env", who=who, cwd=ws, env=extra)
        for name in ("GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "MY_PASSWORD", "SSH_AUTH_SOCK"):
            check(f"{name}=" not in r.out, f"{name} was passed: {r}")
        check_in("PATH=", r.out, r)
        check_in("HOME=", r.out, r)
        r = hutch("run", "--env", "A=b c", "-e", "CUSTOM=d", "--pass-env", "GITHUB_TOKEN", "--", "env", who=who, cwd=ws,
                  env=extra)
        lines = r.out.splitlines()
        check_in("A=b c", lines, r)
        check_in("CUSTOM=d", lines, r)
        check_in("GITHUB_TOKEN=t0", lines, r)


def test_environment_in_init_is_hidden(who):
    "the environment and the command line of hutch cannot be read inside through /proc/1"
    with workspace(who) as ws:
        r = hutch("run", "--ro", "/usr:/mnt", "--", "sh", "-c", "cat /proc/1/environ; tr '\\0' ' ' </proc/1/cmdline", who=who,
                  cwd=ws, env={"GITHUB_TOKEN": "t0k3n"})
        check("t0k3n" not in r.out and "--ro" not in r.out, r)


def test_working_directory(who):
    "the command starts where hutch was started, or where --chdir says"
    with workspace(who) as ws:
        write(ws / "sub/f", "x", who)
        r = hutch("run", "--", "pwd", who=who, cwd=ws)
        check_equal(r.out, f"{ws}\n", r)
        r = hutch("run", "--chdir", "sub", "--", "sh", "-c", "pwd; cat f", who=who, cwd=ws)
        check_equal(r.out, f"{ws}/sub\nx", r)
        r = hutch("run", "-C", "/usr", "--", "pwd", who=who, cwd=ws)
        check_equal(r.out, "/usr\n", r)
        r = hutch("run", "--chdir", "/none", "--", "pwd", who=who, cwd=ws)
        check(r.code in (120, 121, 123), r)
        check_one_line(r.err, r)


def test_descriptors(who):
    "the command has 0, 1 and 2 only, unless --fd keeps one"
    with workspace(who) as ws:
        with tempfile.TemporaryFile() as f:
            f.write(b"through the descriptor")
            f.flush()
            f.seek(0)
            os.set_inheritable(f.fileno(), True)
            fd = f.fileno()
            r = hutch("run", "--", "sh", "-c", "ls /proc/self/fd | wc -l", who=who, cwd=ws, pass_fds=(fd,))
            check_equal(r.out, "4\n", r)  # ls opens one for the directory
            r = hutch("run", "--fd", fd, "--", "bash", "-c", f"cat <&{fd}", who=who, cwd=ws, pass_fds=(fd,))  # sh takes one digit only
            check_equal(r.out, "through the descriptor", r)
        r = hutch("run", "--fd", "77", "--", "true", who=who, cwd=ws)
        check_equal(r.code, 120, r)
        check_one_line(r.err, r)


def test_host_name(who):
    "the host name is hutch, or what --hostname says"
    with workspace(who) as ws:
        check_equal(hutch("run", "--", "hostname", who=who, cwd=ws).out, "hutch\n")
        check_equal(hutch("run", "--hostname", "box7", "--", "hostname", who=who, cwd=ws).out, "box7\n")
        r = hutch("run", "--hostname", "x" * 65, "--", "hostname", who=who, cwd=ws)
        check_equal(r.code, 120, r)


def test_long_command_line(who):
    "ten thousand arguments of a hundred bytes arrive"
    with workspace(who) as ws:
        words = ["a" * 100] * 10000
        r = hutch("run", "--", "sh", "-c", "echo $# $10000", "sh", *words, who=who, cwd=ws)
        check_equal(r.code, 0, r.err)
        check(r.out.startswith("10000 "), r.out[:100])


def test_deep_directory(who):
    "a current directory a thousand levels deep either works or is refused in one line"
    with workspace(who) as ws:
        ids, entry = identity(who)
        script = ("import os, subprocess, sys\n"
                  "for i in range(1000): os.mkdir('d'); os.chdir('d')\n"
                  "r = subprocess.run([sys.argv[1], 'run', '--', 'sh', '-c', 'echo x > f; pwd | wc -c'], capture_output=True)\n"
                  "print(r.returncode, r.stdout.decode().strip(), r.stderr.decode().count('\\n'), os.path.exists('f'))\n")
        r = run("python3", "-c", script, HUTCH, who=who, cwd=ws)
        run("rm", "-rf", ws / "d", who=who)
        check(r.out.startswith("0 2") or r.out.split()[0] in ("120", "123"), r)
        if r.out.split()[0] == "0":
            check(r.out.strip().endswith("0 True"), r)


def alive(marker):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if marker.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
        except OSError:
            pass
    return [p for p in found if p != os.getpid()]


def test_daemons_die_with_the_command(who):
    "double-forked daemons that ignore every signal are gone when hutch returns"
    script = """import os, signal, sys, time
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        for s in range(1, 65):
            try: signal.signal(s, signal.SIG_IGN)
            except (OSError, ValueError): pass
        os.closerange(0, 3)
        time.sleep(300)
time.sleep(0.3)
"""
    marker = f"daemon-marker-{os.getpid()}-{who}"
    with workspace(who) as ws:
        r = hutch("run", "--", "python3", "-c", script, marker, who=who, cwd=ws)
        check_equal(r.code, 0, r)
        check_equal(alive(marker), [], "still alive")


def test_strange_commands(who):
    "a command that closes all descriptors, stops itself or changes its group is handled"
    with workspace(who) as ws:
        r = hutch("run", "--", "python3", "-c", "import os; os.closerange(0, 65536); os._exit(9)", who=who, cwd=ws)
        check_equal(r.code, 9, r)
        r = hutch("run", "--", "python3", "-c", "import os; os.setsid() if os.getpid() != os.getpgid(0) else 0; os._exit(3)", who=who,
                  cwd=ws)
        check_equal(r.code, 3, r)
        proc = start("--", "sh", "-c", "echo go; kill -STOP $$; echo on; exit 5", who=who, cwd=ws)
        check_equal(proc.stdout.readline(), b"go\n")
        time.sleep(0.2)
        check_equal(proc.poll(), None)
        for _ in range(300):  # it may not have stopped yet
            proc.send_signal(signal.SIGCONT)
            if select.select([proc.stdout], [], [], 0.2)[0]:
                break
        check_equal(proc.stdout.readline(), b"on\n")
        check_equal(proc.wait(120), 5)
        proc.communicate()


def test_pid_one_is_not_the_command(who):
    "the command is not pid 1, sees only its own processes, and orphans are reaped"
    with workspace(who) as ws:
        r = hutch("run", "--", "sh", "-c", "echo $$; (sh -c 'exit 0' & ) ; for i in $(seq 300); do sleep 0.1; ls -d /proc/[0-9]* | wc -l >n; read c <n; "
                  "[ $c -le 4 ] && break; done; echo $c", who=who, cwd=ws)
        pid, count = map(int, r.out.split())
        check(pid > 1, r)
        check(count <= 4, r)


def test_concurrent_runs(who):
    "twenty runs at a time in one directory all succeed"
    with workspace(who) as ws:
        procs = [start("--", "sh", "-c", f"echo {i} > out{i}; exit {i}", who=who, cwd=ws) for i in range(20)]
        codes = [p.wait(180) for p in procs]
        for p in procs:
            p.communicate()
        check_equal(codes, list(range(20)))
        eventually(lambda: sorted(os.listdir(ws)) == sorted(f"out{i}" for i in range(20)), 2, "only the outputs are left")


def test_trace_start(who):
    "--trace-start prints each step with its microseconds, also those inside, after the command's own output"
    with workspace(who) as ws:
        r = hutch("run", "-q", "--trace-start", "--", "sh", "-c", "echo out; echo own >&2", who=who, cwd=ws)
        check_equal((r.code, r.out), (0, "out\n"), r)
        lines = r.err.splitlines()
        check_equal(lines[:1], ["own"], r)
        steps = [re.fullmatch(r"hutch: trace +(\d+\.\d) +(\d+\.\d) (.*)", line) for line in lines[2:]]
        check(all(steps), r)
        names = [step[3].strip() for step in steps]
        for name in ("policy", "rules", "search", "plan", "clone", "stubs", "inside: mounts", "inside: network", "inside: seccomp",
                     "inside: exec", "command", "list", "clean-up"):
            check(name in names, (name, names))
        outer = [(float(step[1]), float(step[2])) for step in steps if not step[3].startswith(" ")]
        check(all(abs(a + took - b) < 0.3 for (a, took), (b, _) in zip(outer, outer[1:])), outer)
        r = hutch("run", "-q", "--", "true", who=who, cwd=ws)
        check_equal(r.err, "", r)
