"""`hutch doctor`: what it finds, what it says when something is missing, and that it leaves nothing."""
import json
import os
import pathlib
import shutil

from hutch_test import HUTCH, check, check_equal, check_in, check_one_line, hutch, run, skip


def probes(r):
    report = json.loads(r.out)
    return report, {p["id"]: p for p in report["probes"]}


def test_host_can_run(who):
    "this host can enforce everything that run needs"
    r = hutch("doctor", "--json", who=who)
    check_equal(r.code, 0, r)
    report, found = probes(r)
    check(report["can_run"] and report["tier"] in ("process", "container"), r)
    check_equal(report["root"], who == "root", r)
    for name in ("ns.user", "ns.procfs", "fs.mount-api", "landlock.abi", "seccomp.filter"):
        check_equal(found[name]["state"], "ok", found[name])


def test_every_gap_has_a_remedy(who):
    "whatever is not ok says how to change it, and how it was tested"
    _, found = probes(hutch("doctor", "--json", who=who))
    for probe in found.values():
        check(probe["tested"], probe)
        check((probe["state"] == "ok") == (probe["remedy"] is None), probe)


def test_table_is_readable(who):
    "the table has a line per probe and ends with the tier and a verdict"
    r = hutch("doctor", who=who)
    _, found = probes(hutch("doctor", "--json", who=who))
    for probe in found.values():
        check_in(probe["title"], r.out, r)
    check(r.out.splitlines()[-3].startswith("tier: "), r)


def test_verdict_agrees(who):
    "the verdict at the end says nothing else than the lines above it: what a limit, --root and a node lack is named there too"
    r = hutch("doctor", who=who)
    report, found = probes(hutch("doctor", "--json", who=who))
    run_line, node_line = r.out.splitlines()[-2:]
    check_equal("everything enforced" in run_line, found["cgroup.limits"]["state"] != "missing", r)
    lacking = [p["title"] for p in found.values() if p["state"] == "missing" and p["needed_for"] == "container"]
    check_equal("also with --root" in run_line, not lacking, r)
    for title in lacking:
        check_in(f"`{title}`", run_line, r)
    check_equal("does not work" in node_line, report["tier"] != "container", r)


def test_capacity():
    "it counts how many sandboxes the kernel's tables carry, and names the limit that ends first: also when another one is the smallest"
    r = hutch("doctor", "--json")
    report, found = probes(r)
    c = report["capacity"]
    limits = c["limits"]
    check_equal(limits["kernel.pid_max"], int(pathlib.Path("/proc/sys/kernel/pid_max").read_text()), r)
    check_equal(limits["fs.file-max"], int(pathlib.Path("/proc/sys/fs/file-max").read_text()), r)
    tasks = min(limits["kernel.pid_max"], limits["kernel.threads-max"]) - 1024
    want = min(tasks // 2, (limits["fs.file-max"] - 8192) // 32, (limits["nofile"] - 256) // 4)
    check_equal((c["at_rest"], c["full"]), (want, min(tasks // 512, (limits["fs.file-max"] - 8192) // 8192, (limits["nofile"] - 256) // 4)), c)
    check_in(f"{c['at_rest']} at rest ({c['at_rest_bound_by']} ends first)", found["limits.capacity"]["detail"])
    check_in(found["limits.capacity"]["detail"], hutch("doctor").out)
    few = run("prlimit", "--nofile=1256:1256", HUTCH, "doctor", "--json")
    c = json.loads(few.out)["capacity"]
    check_equal((c["at_rest"], c["at_rest_bound_by"]), (250, "nofile"), few)
    check_in("ulimit", probes(few)[1]["limits.capacity"]["remedy"])


def test_container_tier_needs_ids():
    "a user without subordinate ids is told the usermod command"
    if os.geteuid() != 0:
        skip("needs root to become a user without a name")
    if not shutil.which("setpriv"):
        skip("setpriv (util-linux) is not installed")
    r = run("setpriv", "--reuid", "64321", "--regid", "64321", "--clear-groups", HUTCH, "doctor", "--json")
    report, found = probes(r)
    check_equal((r.code, report["tier"]), (0, "process"), r)
    check_equal(found["ids.newuidmap"]["state"], "missing", r)
    check_in("usermod --add-subuids", found["ids.newuidmap"]["remedy"])


def test_without_user_namespaces():
    "inside a sandbox that forbids user namespaces it reports the nested tier and exits with 122"
    if os.geteuid() != 0:
        skip("needs root to lower the limit in a namespace of its own")
    script = f"echo 0 >/proc/sys/user/max_user_namespaces && exec {HUTCH} doctor --json"
    r = run("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script)
    report, found = probes(r)
    check_equal((r.code, report["tier"], report["can_run"]), (122, "nested", False), r)
    check_equal(found["ns.user"]["state"], "missing", r)
    check_in("max_user_namespaces", found["ns.user"]["remedy"])
    check_equal(found["ns.procfs"]["remedy"], "fix user namespaces first")


def test_covered_procfs():
    "where /proc is partly covered, the procfs probe fails and says why"
    if os.geteuid() != 0:
        skip("needs root to cover /proc in a mount namespace of its own")
    script = f"mount -t tmpfs none /proc/sys/fs && exec {HUTCH} doctor --json"
    r = run("unshare", "--mount", "sh", "-c", script)
    _, found = probes(r)
    check_equal((r.code, found["ns.procfs"]["state"]), (122, "missing"), r)
    check_in("covered", found["ns.procfs"]["detail"])


def test_bad_arguments(who):
    "an unknown option is one line and code 120"
    for args in (("--jason",), ("extra",)):
        r = hutch("doctor", *args, who=who)
        check_equal((r.code, r.out), (120, ""), r)
        check_one_line(r.err, r)


def test_full_output():
    "a full standard output is an error, not silence"
    r = run("sh", "-c", f"{HUTCH} doctor >/dev/full")
    check_equal(r.code, 125, r)
