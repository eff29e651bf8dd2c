"""hutch run --tx: locks and signals. Nothing waits for ever, and a command inside cannot make others wait."""
import fcntl
import os
import signal
import subprocess

from hutch_test import HUTCH, check, check_equal, check_in, clean_env, eventually, hutch_started, identity
from outer_terminal import Outer
from test_learn import home_workspace
from test_run_tx import tx
from test_run_tx_odd import kept


HOLD = """
import fcntl, os, sys, time
for folder, dirs, files in os.walk(sys.argv[1]):
    for path in [folder] + [os.path.join(folder, f) for f in files]:
        try:
            fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
        except OSError as e:
            print(path, e, flush=True)
open("held", "w").close()
time.sleep(600)
"""


def test_locks_from_inside(who):
    "a command that locks whatever it can open where transactions are kept stops no other run, apply or discard"
    with home_workspace(who) as stage:
        name = kept(stage.run("--tx", "--", "sh", "-c", "echo x > first"))
        kept(stage.run("--tx", "--", "sh", "-c", "echo x > second"))
        check_equal(tx(stage, "discard", name).code, 0)  # every lock file is there
        holder = hutch_started("-q", "--", "python3", "-c", HOLD, stage.home / ".local/state/hutch", who=who,
                               cwd=stage.ws)
        try:
            eventually((stage.ws / "held").exists, what="the locks are held")
            kept(stage.run("--tx", "--", "sh", "-c", "echo x > third", timeout=60))
            names = [line.split()[0] for line in tx(stage, "tx", "ls").out.splitlines()]
            check_equal(len(names), 2)
            for command, name in zip(("apply", "discard"), names):
                r = tx(stage, command, name, timeout=60)
                check_equal(r.code, 0, r)
        finally:
            holder.terminate()
            holder.communicate(timeout=60)


def test_lock_of_another_program(who):
    "a lock that a program outside holds is waited for a while, and the message names the program; SIGTERM ends the wait"
    with home_workspace(who) as stage:
        name = kept(stage.run("--tx", "--", "sh", "-c", "echo x > first"))
        lock, one = stage.home / ".local/state/hutch/tx.lock", stage.home / f".local/state/hutch/tx/{name}/lock"
        with open(lock, "w", encoding="utf-8") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            r = tx(stage, "discard", timeout=60)
            check_equal(r.code, 121, r)
            check_in(f"is locked by process {os.getpid()} (", r.err, r)
            ids, entry = identity(who)
            proc = subprocess.Popen([HUTCH, "run", "--tx", "--", "sh", "-c", "echo x > second"], cwd=stage.ws, text=True,
                                    env=clean_env(entry, {"HOME": str(stage.home)}), stderr=subprocess.PIPE,
                                    stdin=subprocess.DEVNULL, **ids)
            while "none of them on the host yet" not in proc.stderr.readline():
                check(proc.poll() is None, "it ended")
            proc.send_signal(signal.SIGTERM)
            err = proc.communicate(timeout=60)[1]
            check_in("interrupted while the directory of transactions was locked", err)
        with open(one, "w", encoding="utf-8") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            r = tx(stage, "apply", name)
            check_in(f"transaction {name} is locked by process {os.getpid()} (", r.err, r)
        check_equal(tx(stage, "apply", name).code, 0)


def test_signal_at_the_question(who):
    "SIGTERM while it is asked what becomes of the changes keeps them and ends the program"
    with home_workspace(who) as stage:
        command = f"cd {stage.ws} && echo $$ >../pid && HOME={stage.home} exec {HUTCH} run --tx -- sh -c 'echo x > good'"
        with Outer(["sh", "-c", command], who=who) as outer:
            outer.expect("discard: ")
            os.kill(int((stage.home / "pid").read_text()), signal.SIGTERM)
            outer.expect("kept as tx-")
            check_equal(outer.state(), "0")
        check_equal(tx(stage, "apply").code, 0)
        check((stage.ws / "good").exists())
