"""The runner itself: what its look at the host counts, and what it makes of tests that fail."""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile

import leaks
from hutch_test import TOP, check, check_equal, check_in, is_root, skip
from report import AGAIN_MAX, FLAKY_MAX, SLOWEST, Report, read_tap

NUMBER = 2345678  # of a user that is none


def lines_about(before, host, *names):
    return [line for line in leaks.compare(before, host.snapshot()) if any(n in line for n in names)]


def test_what_was_there_is_not_left_behind():
    "a file or process from before the run does not count when its owner's number becomes the test user's; a new one does"
    if not is_root():
        skip("needs root")
    made = []

    def make():
        path = tempfile.mkdtemp(prefix="before-or-after-", dir="/var/tmp")
        os.chown(path, NUMBER, NUMBER)
        p = subprocess.Popen(["sleep", "1000"], user=NUMBER, group=NUMBER, extra_groups=[], env={})
        made.append((path, p))
        return path, f"process {p.pid} sleep"
    try:
        old = make()
        before = leaks.Host(everyone=True).snapshot()
        host = leaks.Host([(NUMBER, 1)])
        check_equal(lines_about(before, host, *old), [])
        new = make()
        check_equal(len(lines_about(before, host, *new)), 2, lines_about(before, host, *new))
        check_equal(lines_about(before, leaks.Host([(NUMBER + 1, 1)]), new[0]), [])
    finally:
        for path, p in made:
            p.kill()
            p.wait()
            pathlib.Path(path).rmdir()
    check(not lines_about(before, host, *new), "it is gone again")


def finished(report):
    """(exit code, what end() printed)"""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = report.end()
    return code, said.getvalue()


def a_run(*failures):
    """A report with one test that passed and these (name, again) that did not."""
    report = Report()
    with contextlib.redirect_stdout(io.StringIO()):
        report.ok("good")
        for name, again in failures:
            report.fail(name, f"first output of {name}", again)
    return report


def rerun(report, passes):
    """Runs everything again; `passes` are the specs that do. Returns what was run."""
    ran = []

    def run(second, spec):
        ran.append(spec)
        if spec in passes:
            second.ok(spec[1])
        else:
            second.fail(spec[1], "second output")
    with contextlib.redirect_stdout(io.StringIO()):
        report.run_again(run)
    return ran


def test_flaky():
    "a failed test that passes when it is run again is listed with its first output and fails nothing; others stay failed"
    report = a_run(("chance", ["x", "chance"]), ("broken", ["x", "broken"]), ("attack", None))
    check_equal(rerun(report, [["x", "chance"]]), [["x", "chance"], ["x", "broken"]])
    code, text = finished(report)
    check_equal((code, report.passed, report.failed), (1, 2, 2), text)
    check_in("\nflaky:\n  chance\n        first output of chance\n", text)
    check("  broken" in text.split("flaky:")[0] and "  attack" in text.split("flaky:")[0], text)
    report = a_run(("chance", ["x", "chance"]))
    rerun(report, [["x", "chance"]])
    code, text = finished(report)
    check_equal((code, text.splitlines()[-1]), (0, "2 passed, 0 failed, 0 skipped"), text)


def test_flaky_has_a_limit():
    "more than three flaky tests fail the run; so many failures that it is not chance are not run again; a quiet run lists none"
    for n in (FLAKY_MAX, FLAKY_MAX + 1):
        specs = [["x", f"t{i}"] for i in range(n)]
        report = a_run(*[(s[1], s) for s in specs])
        check_equal(rerun(report, specs), specs)
        code, text = finished(report)
        check_equal(code, int(n > FLAKY_MAX), text)
    specs = [["x", f"t{i}"] for i in range(AGAIN_MAX + 1)]
    check_equal(rerun(a_run(*[(s[1], s) for s in specs]), specs), [])
    report = a_run()
    check_equal(rerun(report, []), [])
    check_in("\nflaky: none\n", finished(report)[1])


def test_one_program_is_run_again_once():
    "several failures of one program are one run of it; its bad end is forgiven with them; a test that fails only then is flaky too"
    spec, first, second = ["unit", "p"], Report(), Report()
    with contextlib.redirect_stdout(io.StringIO()):
        read_tap(first, "p", "1..4\nnot ok 1 - a\nnot ok 2 - b\nok 3 - c\n", 1, lambda _: spec)
        read_tap(second, "p", "1..4\nok 1 - a\nok 2 - b\nok 3 - c\nok 4 - d\n", 0)
        check_equal([f[0] for f in first.failures], ["p: a", "p: b", "p: planned 4 tests, ended after 3"])
        again = Report()
        again.add(first.lines())
        again.run_again(lambda r, _: r.add(second.lines()))
        check_equal(([n for n, _ in again.flaky], again.failed), (["p: a", "p: b", "p: planned 4 tests, ended after 3"], 0))
        third = Report()
        read_tap(third, "p", "1..3\nok 1 - a\nok 2 - b\nnot ok 3 - c\n", 1)
        first.run_again(lambda r, _: r.add(third.lines()))
    check_equal(([n for n, _ in first.flaky], [f[0] for f in first.failures]), (["p: a", "p: b", "p: c"], ["p: planned 4 tests, ended after 3"]))


def test_slowest():
    "the report ends with the slowest tests, before its last line"
    report = a_run()
    for i in range(SLOWEST + 5):
        report.took(f"test {i}", i)
    with contextlib.redirect_stdout(io.StringIO()):
        read_tap(report, "clients run", "# took 99.5 s: npm\nok 1 - npm: x\n1..1\n", 0)
    lines = finished(report)[1].splitlines()
    check_equal([line.split("  ")[-1] for line in lines[-2 - SLOWEST:-2]], ["clients run: npm", *(f"test {i}" for i in range(SLOWEST + 4, 5, -1))])


FIRST_TIME = """if not pathlib.Path(f"{here}/seen-{name}").exists():
    pathlib.Path(f"{here}/seen-{name}").touch()
    bad = True"""


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def a_tree(place):
    """Tests of each kind that can be run again: each fails once, then passes."""
    start = f"#!/usr/bin/env python3\nimport os, pathlib, sys\nhere, name, bad = {str(place)!r}, %r, False\n{FIRST_TIME}\n"
    write_program(place / "build/tests/test_once", start % "unit" + "print('1..1')\nprint('not ok' if bad else 'ok', 1, '- a_unit_test')\nsys.exit(bad)\n")
    write_program(place / "build-asan/tests/fuzz_once", start % "corpus" + "print('3 inputs')\nsys.exit('HUTCH_CORPUS_VERBOSE' in os.environ or bad)\n")
    write_program(place / "build/tests/test_leak", start % "leak" + "print('1..1')\nprint('LeakSanitizer: detected memory leaks' if bad else '')\n"
                  "print('not ok' if bad else 'ok', 1, '- a_leak')\nsys.exit(bad)\n")
    write_program(place / "tests/integration/guest_once.sh", start % "guests" + "print('not ok' if bad else 'ok', 1, '- boots')\n")
    write_program(place / "tools/check", start % "lint" + "print('FAILED  format' if bad else 'ok      format')\nsys.exit(bad)\n")
    (place / "tests/fuzz/corpus/once").mkdir(parents=True)
    write_program(place / "tests/clients/run.py", start % "clients" + "only = os.environ.get('HUTCH_CLIENT_PROGRAM')\n"
                  "for p in ('npm', 'python'):\n    if only in (None, p):\n        print('not ok' if bad and p == 'npm' else 'ok', f'1 - {p}: works')\n")
    body = f"import pathlib\ndef test_it():\n    'it works'\n    here, name, bad = {str(place)!r}, %r, False\n" + "".join(
        f"    {line}\n" for line in FIRST_TIME.splitlines()) + "    assert not bad\n"
    for name in ("test_once", "test_node_hostile", "test_node_fault", "test_residue"):
        write_program(place / f"tests/integration/{name}.py", body % name)
    write_program(place / "tests/integration/test_left.py", "from hutch_test import Left\n" + (body % "left").replace(
        "assert not bad", "if bad: raise Left('a process')"))


def the_runner():
    loader = importlib.machinery.SourceFileLoader("the_runner", str(TOP / "tests/run"))
    runner = importlib.util.module_from_spec(importlib.util.spec_from_loader("the_runner", loader))
    loader.exec_module(runner)
    return runner


def test_every_kind_is_run_again():
    "lint, unit programs, inputs of fuzzers, functions, guests and client programs are run again alone; attacks, faults and leaks never are"
    runner = the_runner()
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        runner.TOP = pathlib.Path(place)
        a_tree(runner.TOP)
        report = Report("once|leak|hostile|fault|residue|clients|it works")
        runner.suite_lint(report, None)
        runner.suite_unit(report, None)
        runner.suite_guests(report, None)
        runner.suite_corpus(report, None)
        runner.suite_clients(report, None)
        for path in sorted(runner.TOP.glob("tests/integration/test_*.py")):
            runner.integration_file(report, path)
        told = report.failed
        report.run_again(runner.run_again)
    check_equal(told, 11 + 1, report.failures)  # and the folder without programs for ASan
    check_equal(sorted(n for n, _ in report.flaky), ["clients run: npm: works", "corpus once", "guests guest_once: boots", "lint: format", "once: it works",
                                                     "unit [product] once: a unit test"])
    check_equal(sorted(f[0] for f in report.failures),
                ["left: it works", "node_fault: it works", "node_hostile: it works", "residue: it works", "unit [asan]", "unit [product] leak: a leak"],
                report.failures)


SHARED = """import contextlib, sys
import shared
made, gone, cleaned = [], [], []
@contextlib.contextmanager
def thing():
    made.append(len(made))
    try:
        yield made[-1]
    finally:
        gone.append(made[-1])
def use():
    return shared.share("thing", thing, cleaned.append)
def test_a():
    with use() as n: assert n == 0
def test_b():
    with use() as n: assert n == 0; raise ValueError("bad")
def test_c():
    with use() as n: assert n == 1 and gone == [0]
def test_d():
    with use() as n: assert n == 1
sys.the_lists = made, gone, cleaned
"""


def test_shared_by_a_file():
    "what tests of a file share is made once and ends with the file; a test that fails ends it at once, and a test run again has its own"
    runner = the_runner()
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        path = pathlib.Path(place) / "test_sharing.py"
        path.write_text(SHARED)
        report = Report()
        runner.integration_file(report, path)
        check_equal((report.passed, report.failed), (3, 1), report.failures)
        check_equal(sys.the_lists, ([0, 1], [0, 1], [0, 1, 1]))
        again = Report()
        runner.integration_file(again, path, ("test_a", None))
        check_equal((again.passed, sys.the_lists), (1, ([0], [0], [0])))
    del sys.the_lists
