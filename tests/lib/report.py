"""The results of a run: counted and printed as they come, tests that fail are run once more at the end, and a summary.

A failure carries what runs it again (`again`: a list that tests/run understands), or None where that would hide something: red team, faults
and leak checks fail at once. A test that passes alone the second time is flaky: it is listed with what it said first, and the run does not fail,
unless more than FLAKY_MAX are.
"""
import contextlib
import io
import re
import sys

FLAKY_MAX = 3
AGAIN_MAX = 20  # with more failures than this it is not chance
SLOWEST = 10
TAP = re.compile(r"^(not ok|ok) *\d* *-? *([^#]*?) *(?:# *(?i:skip)\S* *(.*))?$")
TOOK = re.compile(r"^# took ([0-9.]+) s: (.*)")


class Report:
    """Counts and prints. A name is printed once, when its result is known."""

    def __init__(self, pattern=None):
        self.pattern = re.compile(pattern) if pattern else None
        self.passed = self.failed = self.skipped = 0
        self.names, self.skips, self.failures, self.flaky, self.times = [], [], [], [], []

    def wants(self, name):
        return not self.pattern or self.pattern.search(name)

    def ok(self, name, note=""):
        self.passed += 1
        self.names.append(name)
        print(f"ok      {name}{'  ' + note if note else ''}", flush=True)

    def fail(self, name, why="", again=None):
        self.failed += 1
        lines = str(why).strip().splitlines()
        self.failures.append((name, lines[-60:], again))
        print(f"FAILED  {name}", flush=True)
        for line in lines[-60:]:
            print(f"        {line}", flush=True)

    def skip(self, name, reason):
        if not reason.strip():
            self.fail(name, "skipped without a reason")
            return
        self.skipped += 1
        self.skips.append((name, reason.strip()))
        print(f"skip    {name}: {reason.strip()}", flush=True)

    def took(self, name, seconds):
        self.times.append((seconds, name))

    def lines(self):
        """What another process needs to add these results to its own."""
        return vars(self) | {"pattern": None}

    def add(self, theirs):
        for key, value in theirs.items():
            if key != "pattern":
                setattr(self, key, getattr(self, key) + (value if isinstance(value, int) else [tuple(v) if isinstance(v, list) else v for v in value]))

    # --- once more ------------------------------------------------------------------------------------------------------

    def run_again(self, run):
        """Runs what failed once more, alone; run(report, again) does it. What passes now is flaky."""
        specs = []
        for _, _, again in self.failures:
            if again and again not in specs:
                specs.append(again)
        if len(specs) > AGAIN_MAX:
            print(f"\n{len(specs)} programs and tests failed: they are not run again", flush=True)
            return
        for again in specs:
            second, said = Report(), io.StringIO()
            print(f"\nagain   {' '.join(map(str, again))}", flush=True)
            with contextlib.redirect_stdout(said):
                try:
                    run(second, again)
                except Exception as e:  # pylint: disable=broad-except - the first failure stands then
                    second.fail("run again", repr(e))
            self._judge(again, second)
            if second.failed:
                sys.stdout.write(said.getvalue())

    def _judge(self, again, second):
        first = {name for name, _, spec in self.failures if spec == again}
        whole = second.passed and not second.failed  # also good for "exit code 1", which is the name of no test
        for entry in [f for f in self.failures if f[2] == again]:
            if entry[0] in second.names or whole:
                self.failures.remove(entry)
                self.failed -= 1
                self.passed += 1
                self.flaky.append(entry[:2])
        for name, lines, _ in second.failures:
            if name not in first and name in self.names:  # it passed before
                self.flaky.append((name, lines))

    # --- the end --------------------------------------------------------------------------------------------------------

    def end(self):
        if len(self.flaky) > FLAKY_MAX:
            self.fail(f"{len(self.flaky)} tests are flaky; at most {FLAKY_MAX} may be")
        if self.skips:
            print("\nskipped:")
            for name, reason in self.skips:
                print(f"  {name}: {reason}")
        if self.failures:
            print("\nfailed:")
            for name, lines, _ in self.failures:
                print("\n        ".join([f"  {name}", *(line[:300] for line in lines[-6:])]))
        print("\nflaky:" + ("" if self.flaky else " none"))
        for name, lines in self.flaky:
            print("\n        ".join([f"  {name}", *(line[:300] for line in lines[-20:])]))
        if self.times:
            print("\nslowest:")
            for seconds, name in sorted(self.times, reverse=True)[:SLOWEST]:
                print(f"  {seconds:6.1f} s  {name}")
        print(f"\n{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        return 1 if self.failed or not self.passed else 0


def read_tap(report, prefix, text, code, again=None):
    """Adds the results of a TAP text; a program that ends early or badly without saying so is a failure. again(title) is for Report.fail();
    where the sanitizer found a leak nothing is run again."""
    if not again or "LeakSanitizer" in text:
        again = lambda title: None  # noqa: E731
    left_out = re.search(r"^1\.\.0 *# *(?i:skip)\S* *(.*)", text, re.M)
    if left_out:
        report.skip(prefix, left_out.group(1))
        return
    # A test may run its whole program again under other conditions, so there can be several plans.
    planned = sum(map(int, re.findall(r"^1\.\.(\d+)", text, re.M)))
    seen, bad, notes = 0, False, []
    for line in text.splitlines():
        took = TOOK.match(line)
        if took:
            report.took(f"{prefix}: {took.group(2)}", float(took.group(1)))
            continue
        match = TAP.match(line)
        if not match:
            notes.append(line)
            continue
        seen += 1
        title, reason = match.group(2), match.group(3)
        if reason is not None and not title:
            # cmocka puts the name where TAP wants the reason; the reason is what the test printed before.
            title, reason = reason, notes[-1] if notes else ""
        name = f"{prefix}: {title.replace('_', ' ')}"
        if reason is not None:
            report.skip(name, reason)
        elif match.group(1) == "ok":
            report.ok(name)
        else:
            bad = True
            report.fail(name, "\n".join(notes), again(title))
        notes = []
    if planned and planned != seen:
        report.fail(f"{prefix}: planned {planned} tests, ended after {seen}", f"exit code {code}\n{text[-3000:]}", again(""))
    elif code != 0 and not bad:
        report.fail(f"{prefix}: exit code {code}", text[-3000:], again(""))
    elif seen == 0:
        report.fail(f"{prefix}: no test ran", text[-3000:], again(""))
