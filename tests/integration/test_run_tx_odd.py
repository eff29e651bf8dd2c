"""hutch run --tx with what commands, other programs and power cuts leave: nothing is lost, and nothing is where it should not be."""
import os

from hutch_test import check, check_equal, hutch, write
from test_learn import home_workspace


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
