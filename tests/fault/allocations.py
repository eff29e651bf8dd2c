#!/usr/bin/env python3
"""Every allocation of a run fails once: clean error, nothing left. Needs the build that honours HUTCH_MEM_FAIL_AT."""
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fault_lib import SOAK, TOP, Tap, identities, judge, stage  # noqa: E402

BINARY = os.environ.get("HUTCH_TEST_BIN", str(TOP / "build/tests/hutch-without"))
SECONDS = 600 if SOAK else 15
DIFFER = 64  # allocations by which runs differ: one that failed may leave an empty cgroup, which the next one finds and removes


def main():
    tap = Tap()
    for who in identities():
        with stage(who) as s:
            code, baseline, err = s.run(s.command(BINARY))
            if code != 0:
                tap.result(False, f"a run without faults works as {who}", [f"code {code}: {err}"])
                continue
            low, high = 1, 1
            while s.run(s.command(BINARY), {"HUTCH_MEM_FAIL_AT": str(high)})[0] == 125 and high < 1 << 22:
                low, high = high, high * 2
            while low + 1 < high:
                middle = (low + high) // 2
                if s.run(s.command(BINARY), {"HUTCH_MEM_FAIL_AT": str(middle)})[0] == 125:
                    low = middle
                else:
                    high = middle
            total, wrong, done = low, [], 0
            # The early ones read the policy and are many; the late ones happen while something is set up. Late first.
            order = list(range(total, 0, -1))
            end = time.monotonic() + SECONDS
            for n in order[:total // 4] + order[total // 4::7 if not SOAK else 1]:
                if time.monotonic() > end:
                    break
                code, out, err = s.run(s.command(BINARY), {"HUTCH_MEM_FAIL_AT": str(n)})
                done += 1
                # While the command runs a notification, and after it the record, may be what memory lacks for.
                late = code == 125 and baseline.startswith(out)
                why = judge(s, BINARY, code, "" if late else out, err, baseline, codes=(125,))
                if code == 0 and n <= total - DIFFER:
                    why = "the fault was not seen"
                if why:
                    wrong.append(f"allocation {n}: {why}")
            tap.result(total > 100 and not wrong, f"each allocation may fail, as {who}: {done} of {total} tried", wrong[:20])
    tap.end()


main()
