"""Limits of an ordinary user, through a scope of the user's own systemd."""
import json
import os
import shutil

from hutch_test import HUTCH, TOP, USER, check, check_equal, check_in, identity, is_root, run, skip

SCENE = TOP / "tests/lib/scope-scene.sh"


def scene(*command):
    """Runs a command as the ordinary user with a systemd manager of its own."""
    if not is_root():
        skip("needs root to make a cgroup for the user")
    for program in ("/lib/systemd/systemd", "/usr/bin/systemd-run"):
        if not os.path.exists(program):
            skip(f"{program} is missing: apt-get install systemd")
    if not shutil.which("setpriv"):
        skip("setpriv is missing: apt-get install util-linux")
    identity("user")
    return run("unshare", "-m", "sh", SCENE, USER, *command, timeout=400)


def test_scope_for_limits():
    "with limits, hutch starts again in a delegated scope of the user's systemd, once, and the command does not see it"
    inner = "while [ ! -e go ]; do sleep 0.05; done; env | grep -c HUTCH_SCOPE"
    # The record goes to descriptor 3: it is passed on through systemd-run like everything else.
    r = scene("sh", "-c", f"{HUTCH} run -q --enforcement best-effort --memory 100M --json 3 -- sh -c '{inner}' 3>record.json & "
              "pid=$!; for i in $(seq 3000); do grep -q scope /proc/$pid/cgroup && break; sleep 0.02; done; "
              "grep ^0: /proc/$pid/cgroup; touch go; wait $pid; cat record.json; rm record.json go")
    lines = r.out.strip().splitlines()
    check(any("/manager/app.slice/run-" in line and line.endswith(".scope") for line in lines), r)
    check_in("0", lines, r)  # the variable against a third start is not there
    record = json.loads(lines[-1])
    check_in("INVOCATION_ID", record["env_dropped"])
    controllers = open("/sys/fs/cgroup/cgroup.controllers", encoding="ascii").read() \
        if os.path.exists("/sys/fs/cgroup/cgroup.controllers") else ""
    if "memory" in controllers and "pids" in controllers:
        check_equal(record["limits"]["memory"]["enforced_by"], "cgroup", record)


def test_no_scope_without_limits():
    "without limits, and where the user says HUTCH_SCOPE=0, there is no scope"
    r = scene("sh", "-c", f"{HUTCH} run -q --json 1 -- true; HUTCH_SCOPE=0 {HUTCH} run -q --memory 100M --json 1 -- true")
    for line in r.out.strip().splitlines():
        check("INVOCATION_ID" not in json.loads(line)["env_dropped"], r)
    check_equal(len(r.out.strip().splitlines()), 2, r)
