#!/usr/bin/env python3
"""A command behind the wall has a terminal of its own, and it behaves like the user's.

Every test sits where the user sits: on the master side of an outer terminal, typing bytes and reading the screen. Run
on its own, this file drives the relay alone and `hutch run`, whichever are built; arguments select tests by name.
"""
import hashlib
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)),
                os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib")]
from hutch_test import SOAK, skip  # noqa: E402
from outer_terminal import (BASH, HARNESS, PATIENCE, SLOW, WAYS, Outer, Tmux, execute, in_foreground, inside_pid,  # noqa: E402
                            on_terminal, processes_with, program, shell_program, until, via, workspace)

BIG = 50_000_000
CTRL_C, CTRL_D, CTRL_Z, CTRL_BACKSLASH = b"\x03", b"\x04", b"\x1a", b"\x1c"


# --- what the command finds ---------------------------------------------------------------------------------------


def test_size_at_start(who):
    """The command finds the window size of the outer terminal."""
    with on_terminal(who, "stty", "size", size=(37, 101)) as outer:
        assert outer.state() == "0"
        outer.expect(rb"37 101\r\n", 1)


def test_resize_is_seen_inside(who):
    """A resize of the outer window arrives inside as SIGWINCH and as the new size."""
    script = "import os, signal, time\n" \
             "signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b'got %d %d.' % os.get_terminal_size()))\n" \
             "os.write(1, b'ready')\nwhile True: time.sleep(1)\n"
    with on_terminal(who, "python3", "-c", script) as outer:
        outer.expect("ready")
        outer.resize(50, 132)
        outer.expect("got 132 50")
        outer.resize(10, 20)
        outer.expect("got 20 10")
        outer.send(CTRL_C)
        assert outer.state() == "130"


def test_terminal_has_a_name(who):
    """tty prints a name in the command's own devpts, and the command can open its terminal by that name."""
    with on_terminal(who, "bash", "-c", "tty; echo by-name > $(tty); echo by-tty > /dev/tty") as outer:
        assert outer.state() == "0", outer.screen
        name = outer.expect(rb"(/dev/pts/\d+)\r\n", 1).group(1).decode()
        outer.expect("by-name", 1)
        outer.expect("by-tty", 1)
        assert via() != "hutch" or name == "/dev/pts/0", name


def test_refusals_are_explained(who):
    """--explain, whose filter asks about each open for writing, does not wait for itself when it opens the terminal."""
    if via() != "hutch":
        skip("is about hutch run")
    with Outer([*program()[:-1], "--explain", "--", "sh", "-c", "echo x >/etc/hutch-x; tty"], who=who) as outer:
        assert outer.state() == "0", outer.screen
        outer.expect("/dev/pts/", 1)
        outer.expect("hutch: refused: write to /etc/hutch-x", 1)


def test_modes_come_in(who):
    """The outer terminal's stty settings are those the command starts with."""
    def change(attributes):
        attributes[0] &= ~termios.IXON
        attributes[3] &= ~termios.ECHOE
        attributes[6][termios.VERASE] = b"\x08"
        attributes[6][termios.VINTR] = b"\x07"
    with on_terminal(who, "stty", "-a", modes=change) as outer:
        assert outer.state() == "0"
        for word in (rb"intr = \^G;", rb"erase = \^H;", rb"-ixon\b", rb"-echoe\b"):
            assert re.search(word, outer.screen), (word, outer.screen)


def test_command_is_in_the_foreground_of_its_terminal(who):
    """The command leads the foreground process group of its controlling terminal."""
    script = "import os; print(os.tcgetpgrp(0) == os.getpgrp() == os.getpid(), os.ttyname(0) == os.ttyname(2))"
    with on_terminal(who, "python3", "-c", script) as outer:
        assert outer.state() == "0", outer.screen
        outer.expect("True True", 1)


def test_redirected_stderr_stays_outside_the_terminal(who):
    """stderr that is a file is passed through; only stdin and stdout are the terminal."""
    with tempfile.NamedTemporaryFile() as file:
        with on_terminal(who, "sh", "-c", "test -t 2 || echo no-tty >&2; echo out", redirect={2: file.name}) as outer:
            assert outer.state() == "0"
            outer.expect("out\r\n", 1)
            assert file.read() == b"no-tty\n"


# --- keys ---------------------------------------------------------------------------------------------------------


def test_ctrl_c_gives_130(who):
    """Ctrl-C ends the command; the exit code is 130."""
    with on_terminal(who, "sh", "-c", "echo ready; exec sleep 100") as outer:
        outer.expect("ready")
        outer.wait_raw()
        outer.send(CTRL_C)
        assert outer.state() == "130"
        assert outer.modes() == outer.modes_at_start


def test_ctrl_backslash_gives_131(who):
    """Ctrl-\\ ends the command; the exit code is 131."""
    with on_terminal(who, "sh", "-c", "ulimit -c 0; echo ready; exec sleep 100") as outer:
        outer.expect("ready")
        outer.wait_raw()
        outer.send(CTRL_BACKSLASH)
        assert outer.state() == "131"


def test_ctrl_d_is_end_of_file(who):
    """Ctrl-D on an empty line is end of file for cat, which ends with 0."""
    with on_terminal(who, "cat") as outer:
        outer.wait_raw()
        outer.send("one line\n")
        outer.expect("one line\r\none line\r\n")
        outer.send(CTRL_D)
        assert outer.state() == "0"


def test_ctrl_c_reaches_a_handler_and_not_us(who):
    """A command that handles SIGINT goes on after Ctrl-C."""
    script = "trap 'echo caught' INT; echo ready; read line; echo line=$line"
    with on_terminal(who, "bash", "-c", script) as outer:
        outer.expect("ready")
        outer.wait_raw()
        outer.send(CTRL_C)
        outer.expect("caught")
        outer.send("x\n")
        outer.expect("line=x")
        assert outer.state() == "0"


# --- job control --------------------------------------------------------------------------------------------------


def test_shell_inside_has_job_control(who):
    """bash inside: Ctrl-Z, bg, fg and Ctrl-C work on its jobs, without a warning about job control."""
    with on_terminal(who, *BASH) as outer:
        outer.expect(r"[$#] ")
        outer.send("PS1='IN'\"> \"\n")
        outer.expect("IN> ")
        mark = f"9500.{os.getpid()}"
        name = re.escape("sleep " + mark)
        outer.send(f"sleep {mark}\n")
        outer.expect(name)
        job = inside_pid(outer, mark)
        until(lambda: in_foreground(job), 10, "the job is in the foreground")
        outer.send(CTRL_Z)
        outer.expect(rf"Stopped +{name}")
        outer.expect("IN> ")
        outer.send("bg\n")
        outer.expect(rf"{name} &")
        outer.expect("IN> ")
        outer.send("jobs\n")
        outer.expect(rf"Running +{name}")
        outer.send("fg\n")
        outer.expect(rf"fg\r\n.*{name}\r\n")
        until(lambda: in_foreground(job), 10, "the job is in the foreground again")
        outer.send(CTRL_C)
        outer.expect("IN> ")
        outer.send("echo code=$?\n")
        outer.expect("code=130")
        outer.send("exit 7\n")
        assert outer.state() == "7"
        assert b"job control" not in outer.screen, outer.screen
        assert outer.modes() == outer.modes_at_start


def test_ctrl_z_returns_to_the_outer_shell(who):
    """Ctrl-Z of a plain command gives the outer terminal back; fg goes on where it was."""
    with on_terminal(who, "cat") as outer:
        outer.wait_raw()
        outer.send("before\n")
        outer.expect("before\r\nbefore\r\n")
        for turn in (b"one", b"two"):
            outer.send(CTRL_Z)
            assert outer.state() == "stopped"
            assert outer.modes() == outer.modes_at_start
            outer.foreground()
            outer.wait_raw()
            outer.send(turn + b"\n")
            outer.expect(turn + b"\r\n" + turn + b"\r\n")
        outer.send(CTRL_D)
        assert outer.state() == "0"
        assert outer.modes() == outer.modes_at_start


def test_what_was_set_while_stopped_is_kept(who):
    """Modes and size that the user changes while the job is stopped are restored, and seen inside, later."""
    script = "trap 'stty size' WINCH; while :; do read -r line && echo got-$line; done"
    with on_terminal(who, "bash", "-c", script) as outer:
        outer.wait_raw()
        outer.send("a\n")
        outer.expect("got-a")
        outer.send(CTRL_Z)
        assert outer.state() == "stopped"
        changed = outer.modes()
        changed[6][termios.VERASE] = b"\x08"
        termios.tcsetattr(outer.fd, termios.TCSANOW, changed)
        outer.resize(33, 44)
        outer.foreground()
        outer.wait_raw()
        outer.send("b\n")
        outer.expect("33 44")
        outer.expect("got-b")
        outer.send(CTRL_C)
        assert outer.state() == "130"
        assert outer.modes()[6][termios.VERASE] == b"\x08"
        assert not outer.is_raw()


def test_sigstop_and_continue(who):
    """After SIGSTOP from elsewhere and fg, the relay works and ends with the modes of the start."""
    with on_terminal(who, "cat") as outer:
        outer.wait_raw()
        os.kill(outer.job, signal.SIGSTOP)
        assert outer.state() == "stopped"
        cooked = outer.modes_at_start
        termios.tcsetattr(outer.fd, termios.TCSANOW, cooked)
        outer.foreground()
        outer.wait_raw()
        outer.send("still here\n")
        outer.expect("still here\r\nstill here\r\n")
        outer.send(CTRL_D)
        assert outer.state() == "0"
        assert outer.modes() == cooked


def test_ctrl_z_without_a_shell_does_not_freeze(who):
    """Where nobody could continue us, Ctrl-Z leaves the command running."""
    work = workspace(who)
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(work)
        execute(program() + ["sh", "-c", "echo ready; exec cat"], who)
    screen = b""

    def wait_for(text):
        nonlocal screen
        deadline = time.monotonic() + PATIENCE * SLOW
        while text not in screen:
            assert time.monotonic() < deadline, screen
            if select.select([fd], [], [], 0.2)[0]:
                screen += os.read(fd, 4096)
    try:
        wait_for(b"ready")
        os.write(fd, CTRL_Z)
        time.sleep(0.5)
        os.write(fd, b"alive\n")
        wait_for(b"alive\r\nalive\r\n")
        os.write(fd, CTRL_D)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        pid = 0
    finally:
        os.close(fd)
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.rmdir(work)


def test_suspend_of_a_shell_inside(who):
    """`suspend` in the shell inside returns to the outer one; fg brings the shell back."""
    with on_terminal(who, *BASH) as outer:
        outer.expect(r"[$#] ")
        outer.send("suspend\n")
        assert outer.state() == "stopped"
        assert outer.modes() == outer.modes_at_start
        outer.foreground()
        outer.wait_raw()
        outer.send("echo back$((40+2))\n")
        outer.expect("back42")
        outer.send("exit 3\n")
        assert outer.state() == "3"


def test_background_start_leaves_the_terminal_alone(who):
    """Started with &, the command does not disturb the shell; brought to the foreground, it gets the keyboard."""
    with Outer(BASH, who=who) as outer:
        outer.expect(r"[$#] ")
        outer.send("PS1='OUT'\"> \"\n")
        outer.expect("OUT> ")
        outer.send(shell_program() + " cat &\n")
        outer.expect(r"\[1\] \d+")
        outer.expect("OUT> ")
        time.sleep(0.7)
        outer.send("echo shell$((1+1))\n")
        outer.expect("shell2\r\n")
        outer.expect("OUT> ")
        outer.send("stty -a\n")
        outer.expect(r" icanon")
        outer.expect("OUT> ")
        outer.send("fg\n")
        outer.expect(r"fg\r\n")
        outer.wait_raw()
        outer.send("to cat\n")
        outer.expect("to cat\r\nto cat\r\n")
        outer.send(CTRL_C)
        outer.expect("OUT> ")
        outer.send("echo code=$?\n")
        outer.expect("code=130")
        outer.send("exit\n")
        outer.state()


def test_ctrl_z_under_a_real_shell(who):
    """Under bash: Ctrl-Z shows the job as stopped, the prompt works, fg goes on."""
    with Outer(BASH, who=who) as outer:
        outer.expect(r"[$#] ")
        outer.send("PS1='OUT'\"> \"\n")
        outer.expect("OUT> ")
        outer.send(shell_program() + " cat\n")
        until(outer.is_raw, 10, "raw")
        time.sleep(0.3)
        outer.send("first\n")
        outer.expect("first\r\nfirst\r\n")
        outer.send(CTRL_Z)
        outer.expect("Stopped")
        outer.expect("OUT> ")
        outer.send("echo shell$((1+1))\n")
        outer.expect("shell2\r\n")
        outer.expect("OUT> ")
        outer.send("fg\n")
        outer.expect(r"fg\r\n[^\n]*cat\r\n")
        outer.wait_raw()
        outer.send("second\n")
        outer.expect("second\r\nsecond\r\n")
        outer.send(CTRL_D)
        outer.expect("OUT> ")
        outer.send("exit\n")
        outer.state()


# --- the way out --------------------------------------------------------------------------------------------------


def test_modes_after_exit(who):
    """The outer terminal is raw while the command runs and exactly as before when it has ended."""
    with on_terminal(who, "sh", "-c", "stty raw -echo; echo ready; read x; exit 5") as outer:
        outer.expect("ready")
        outer.wait_raw()
        outer.send("\n")
        assert outer.state() == "5"
        assert outer.modes() == outer.modes_at_start


def test_modes_after_kill_of_the_command(who):
    """A command that dies of SIGKILL leaves the outer terminal as it was."""
    with on_terminal(who, "sh", "-c", "stty raw -echo; echo ready; read x; kill -9 $$") as outer:
        outer.expect("ready")
        outer.wait_raw()
        outer.send("\n")
        assert outer.state() == "137"
        assert outer.modes() == outer.modes_at_start


def test_modes_after_a_signal_to_us(who):
    """SIGTERM, SIGINT or SIGHUP to the outer process ends the command; the terminal is as it was."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with on_terminal(who, "sh", "-c", "echo ready; exec sleep 100") as outer:
            outer.expect("ready")
            outer.wait_raw()
            os.kill(outer.job, number)
            assert outer.state() == str(128 + number), number
            assert outer.modes() == outer.modes_at_start, number


def test_modes_after_we_are_killed(who):
    """SIGKILL to the outer process, also while it is stopped: the terminal comes back in the modes it had."""
    if via() == "harness":
        return  # it has no guard
    for stopped in (False, True):
        with on_terminal(who, "sh", "-c", "stty raw -echo; echo ready; exec sleep 100") as outer:
            outer.expect("ready")
            outer.wait_raw()
            if stopped:
                os.kill(outer.job, signal.SIGSTOP)
                assert outer.state() == "stopped"
            os.kill(outer.job, signal.SIGKILL)
            if stopped:
                outer.foreground()
            assert outer.state() == "137"
            until(lambda o=outer: o.modes() == o.modes_at_start, 20, "the modes of the start")


def test_passed_terminal_after_we_are_killed(who):
    """The same for a terminal that the command itself holds, because stdout is a pipe."""
    if via() == "harness":
        return
    script = shell_program() + " sh -c 'stty raw -echo; echo ready >&2; exec sleep 100' >/dev/null; cat >/dev/null"
    with Outer(["sh", "-c", script], who=who) as outer:
        outer.expect("ready")
        outer.wait_raw()
        with open(f"/proc/{outer.job}/task/{outer.job}/children") as children:
            os.kill(int(children.read().split()[0]), signal.SIGKILL)
        until(lambda: outer.modes() == outer.modes_at_start, 20, "the modes of the start")


def test_hangup_ends_everything(who):
    """When the outer terminal goes away, the command gets SIGHUP, and nothing is left even if it ignores that."""
    for index, script in enumerate(("exec sleep {}", "trap '' HUP; sleep {}; sleep {}")):
        mark = f"{9000 + index}.{os.getpid()}"
        with on_terminal(who, "sh", "-c", "echo ready; " + script.replace("{}", mark)) as outer:
            outer.expect("ready")
            outer.wait_raw()
            inside_pid(outer, mark)
            os.close(outer.fd)
            outer.fd = os.open("/dev/null", os.O_RDWR)
            until(lambda: not processes_with(mark), 15, "the command's end after the hang-up")


def test_end_with_a_blocked_screen(who):
    """A screen that takes nothing does not keep the command's end from being reported."""
    script = "import os, fcntl; fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK)\n" \
             "import time\nend = time.time() + 2\nwhile time.time() < end:\n" \
             "    try: os.write(1, b'x' * 4096)\n    except BlockingIOError: time.sleep(0.05)\n"
    with on_terminal(who, "python3", "-c", script) as outer:
        ready, _, _ = select.select([outer.report], [], [], PATIENCE * SLOW)
        assert ready, "the end was not reported while the screen was blocked"
        assert outer._line() == "0"
        assert outer.modes() == outer.modes_at_start


# --- bytes --------------------------------------------------------------------------------------------------------


def test_big_output_is_complete(who):
    """50 MB of every byte value arrive complete and unmangled, up to the last byte before the exit."""
    block = random.Random(2).randbytes(1_000_000)
    count = BIG // len(block)
    script = "import os, random, tty; tty.setraw(1); b = random.Random(2).randbytes(1000000)\n" \
             "os.write(1, b'BEGIN')\n" \
             f"for i in range({count}):\n    v = memoryview(b)\n    while v: v = v[os.write(1, v):]\n"
    with on_terminal(who, "python3", "-c", script) as outer:
        outer.expect("BEGIN")
        digest, got = hashlib.sha256(outer.screen[outer.seen:]), len(outer.screen) - outer.seen
        deadline = time.monotonic() + 400 * SLOW
        while got < count * len(block):
            assert time.monotonic() < deadline, f"{got} bytes of {count * len(block)}"
            ready, _, _ = select.select([outer.fd], [], [], PATIENCE * SLOW)
            assert ready, f"the output stops after {got} bytes of {count * len(block)}"
            data = os.read(outer.fd, 65536)
            digest.update(data)
            got += len(data)
        outer.screen, outer.seen = b"", 0
        assert outer.state() == "0"
        assert outer.screen == b"", outer.screen[:100]
        expected = hashlib.sha256()
        for _ in range(count):
            expected.update(block)
        assert got == count * len(block) and digest.digest() == expected.digest()


def test_output_before_exit_is_not_lost(who):
    """What a command writes just before it exits is on the screen, every time."""
    for _ in range(10):
        with on_terminal(who, "sh", "-c", "seq 1 2000; printf last") as outer:
            assert outer.state() == "0"
            assert outer.screen == b"".join(b"%d\r\n" % n for n in range(1, 2001)) + b"last", outer.screen[-100:]


def test_input_bytes_survive(who):
    """Every byte value, UTF-8, and more input than any buffer holds arrive inside unchanged and in order."""
    data = bytes(range(256)) * 1024 + "žluťoučký 🐇\n".encode() * 100
    script = "import os, sys, time, tty, hashlib; tty.setraw(0); print('ready', flush=True)\n" \
             f"b = b''\nwhile len(b) < {len(data)}:\n    b += os.read(0, 3000); time.sleep(0.0005)\n" \
             "print(hashlib.sha256(b).hexdigest())\n"
    with on_terminal(who, "python3", "-c", script) as outer:
        outer.expect("ready")
        outer.wait_raw()
        outer.send(data)
        outer.expect(hashlib.sha256(data).hexdigest(), 60)
        assert outer.state() == "0"


def test_escape_sequences_pass_unmodified(who):
    """Escape sequences and UTF-8 reach the screen byte for byte."""
    text = "\x1b[2J\x1b[31;1mrot\x1b[0m\x1b]0;title\x07 \x1bP+q544e\x1b\\ žluť 🐇 \x9b".encode("utf-8")
    text += b"\xff\xfe\x80\x00."
    with on_terminal(who, "python3", "-c", f"import os; os.write(1, {text!r})") as outer:
        assert outer.state() == "0"
        assert outer.screen == text, outer.screen


def test_slow_screen_means_back_pressure(who):
    """A screen that is not read for a while loses nothing and holds the command back."""
    with on_terminal(who, "sh", "-c", "seq 1 200000; echo end") as outer:
        time.sleep(1.5)
        assert not select.select([outer.report], [], [], 0)[0], "the command ended although its output was not taken"
        assert outer.state(60) == "0"
        lines = outer.screen.split(b"\r\n")
        assert lines[:200000] == [b"%d" % n for n in range(1, 200001)] and lines[200000] == b"end"


def test_type_ahead_is_kept(who):
    """What was typed before the command was ready is its input."""
    with on_terminal(who, "sh", "-c", "read a; echo got-$a") as outer:
        outer.send("early\n")
        outer.expect("got-early")
        assert outer.state() == "0"


# --- what does not go in ------------------------------------------------------------------------------------------


def test_pipe_in_is_passed_through(who):
    """With a pipe as stdin there is no relay: data arrives, stdout is a terminal, the modes never change."""
    with Outer(["sh", "-c", "(echo data; sleep 1) | " + shell_program() +
                " sh -c 'cat; test -t 0 || echo stdin-pipe; test -t 1 && echo stdout-tty'"], who=who) as outer:
        outer.expect("data")
        assert outer.modes() == outer.modes_at_start
        outer.expect("stdin-pipe\r\nstdout-tty")
        assert outer.state() == "0"


def test_pipe_out_is_passed_through(who):
    """With a pipe as stdout the bytes are not touched by any terminal."""
    with Outer(["sh", "-c", shell_program() + " sh -c 'printf \"a\\nb\\n\"' | od -An -c"], who=who) as outer:
        assert outer.state() == "0"
        outer.expect(rb"a +\\n +b +\\n\r\n", 1)


def test_pushed_back_input_stays_inside(who):
    """Characters pushed with TIOCSTI never reach the shell outside."""
    script = "import fcntl, termios, os\n" \
             "for fd in (0, os.open('/dev/tty', os.O_RDWR)):\n" \
             "  for c in 'echo PWN$((6*7))\\n':\n" \
             "    try: fcntl.ioctl(fd, termios.TIOCSTI, c.encode())\n" \
             "    except OSError as e: print('refused', e.errno); break\n"
    with Outer(BASH, who=who) as outer:
        outer.expect(r"[$#] ")
        with open(os.path.join(outer.work, "push.py"), "w", encoding="ascii") as file:
            file.write(script)
        outer.send(shell_program() + " python3 push.py; echo done$((1+1))\n")
        outer.expect("done2")
        time.sleep(0.3)
        outer.send("echo after$((2+2))\n")
        outer.expect("after4")
        assert b"PWN42" not in outer.screen, outer.screen
        assert via() != "hutch" or outer.screen.count(b"refused 1\r\n") == 2, outer.screen
        outer.send("exit\n")
        outer.state()


# --- real programs ------------------------------------------------------------------------------------------------


def test_vim_edits_a_file(who):
    """vim starts, edits, saves and quits; the screen is restored."""
    with on_terminal(who, "vim", "-u", "NONE", "-i", "NONE", "-n", "note.txt") as outer:
        outer.expect("note.txt")
        outer.send("ihello from vim\x1b")
        outer.expect("hello from vim")
        outer.send(":wq\r")
        assert outer.state() == "0"
        with open(os.path.join(outer.work, "note.txt"), encoding="ascii") as file:
            assert file.read() == "hello from vim\n"
        assert outer.modes() == outer.modes_at_start


def test_tmux_session():
    """In tmux: size, resize, vim's full screen, Ctrl-Z and fg, and a usable shell at the end."""
    tmux = Tmux()
    try:
        tmux.shows(r"[$#]")
        tmux.keys("PS1='OUT> '; clear", "Enter")
        tmux.shows(r"^OUT>")
        tmux.keys(shell_program() + " bash --norc --noprofile -i", "Enter")
        tmux.keys("PS1='IN> '; stty size", "Enter")
        tmux.shows(r"^30 90$")
        tmux("resize-window", "-x", "70", "-y", "20")
        tmux.keys("clear; stty size", "Enter")
        tmux.shows(r"^20 70$")
        tmux.keys("vim -u NONE -i NONE -n t.txt", "Enter")
        tmux.shows(r"^~")
        tmux.keys("i", "from tmux", "Escape")
        tmux.shows("from tmux")
        tmux.keys("C-z")
        tmux.shows("Stopped")
        tmux.keys("fg", "Enter")
        tmux.shows(r"^~")
        tmux.keys(":wq", "Enter")
        tmux.shows("IN>")
        tmux.keys("clear; cat t.txt; exit", "Enter")
        tmux.shows(r"^from tmux$")
        tmux.shows(r"^OUT>")  # what is typed before is the ending shell's, as in any terminal
        tmux.keys("clear; echo outer$((3+4)); stty -a | grep -o ' icanon'", "Enter")
        tmux.shows(r"^outer7$")
        tmux.shows(r"^ icanon$")
    finally:
        tmux.close()


def test_relay_alone():
    """The relay passes all of these without a wall around the command as well."""
    if not SOAK:
        skip("takes half a minute and tells whose defect a failure of the others is; `make soak` runs it")
    if not os.access(HARNESS, os.X_OK):
        skip(f"{HARNESS} is not built")
    result = subprocess.run([sys.executable, os.path.abspath(__file__)], env={**os.environ, "TERMINAL_VIA": "harness"},
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False)
    failures = [line for line in result.stdout.decode(errors="replace").splitlines() if " ok   " not in line]
    assert result.returncode == 0, "\n".join(failures)


def run_one(name, function, who):
    begin = time.monotonic()
    try:
        function(*([who] if who else []))
        verdict = "ok  "
    except Exception as error:  # pylint: disable=broad-except
        verdict = f"FAIL {type(error).__name__}: {error}\n    "
    print(f"{via():7} {who:4} {verdict} {function.__doc__} ({name}, {time.monotonic() - begin:.1f} s)", flush=True)
    return verdict == "ok  "


def main(names):
    tests = [(n, f) for n, f in globals().items() if n.startswith("test_") and f is not test_relay_alone]
    chosen = os.environ.get("TERMINAL_VIA")
    ways = [way for way, path in WAYS.items() if chosen in (None, way) and os.access(path, os.X_OK)]
    if not ways:
        print("nothing to test is built: " + ", ".join(WAYS.values()), file=sys.stderr)
        return 1
    results = []
    for way in ways:
        via(way)
        for name, function in tests:
            if not names or any(n in name for n in names):
                for who in ("root", "user") if function.__code__.co_argcount else ("",):
                    results.append(run_one(name, function, who))
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
