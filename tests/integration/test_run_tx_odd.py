"""hutch run --tx with what commands, other programs and power cuts leave: nothing is lost, and nothing is where it should not be."""
import os
import subprocess

from hutch_test import HUTCH, check, check_equal, check_in, clean_env, hutch, identity, run, write
from test_learn import home_workspace
from test_run_tx import tx


def kept(r):
    check_equal(r.code, 0, r)
    return r.err.split("kept as ")[1].split(";")[0]


# --- where they wait ------------------------------------------------------------------------------------------------

def test_no_command_writes_where_they_wait(who):
    "a command that may write to the home directory cannot make up a transaction, wherever they wait"
    for there in (False, True):
        with home_workspace(who) as stage:
            env = {"HOME": str(stage.home), "XDG_STATE_HOME": str(stage.home / "state")}
            if there:
                write(stage.home / "state/hutch/tx/file", "x\n", who)
            job = "mkdir -p state/hutch/tx/tx-00000000 && exit 9; mv state other && exit 8; echo x > fine"
            for args in ((), ("--commit-on-success",)):
                r = hutch("run", *args, "--", "sh", "-c", job, who=who, cwd=stage.home, env=env)
                check_equal((r.code, (stage.home / "fine").exists()), (0, True), r)
                check(not (stage.home / "state/hutch/tx/tx-00000000").exists(), "it was made")
                os.unlink(stage.home / "fine")


# --- what is shown --------------------------------------------------------------------------------------------------

def test_the_diff_hides_nothing(who):
    "a line that holds a NUL is not shown as if it ended there, and a diff that cannot be written is an error"
    with home_workspace(who) as stage:
        write(stage.ws / "long", "line\n" * 5000, who)
        kept(stage.run("--tx", "--", "sh", "-c", "printf 'echo fine\\0; evil\\n' >> long"))
        r = tx(stage, "diff")
        check_equal(r.out, "long differs (not text)\n")
        _, entry = identity(who)
        with open("/dev/full", "w", encoding="ascii") as full:
            r = subprocess.run([HUTCH, "diff"], cwd=stage.ws, env=clean_env(entry, {"HOME": str(stage.home)}), stdout=full,
                               stderr=subprocess.PIPE, text=True, check=False, **identity(who)[0])
        check_equal(r.returncode, 123, r.stderr)
        check_in("No space left on device", r.stderr)
