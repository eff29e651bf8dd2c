"""What the Python programs of this folder share: tests that are told in TAP, waiting, and an end."""
import asyncio
import os
import time
import traceback

count = failed = 0


def report(name, error=None):
    global count, failed
    count += 1
    print(f"{'not ok' if error else 'ok'} {count} - {name}", flush=True)
    if error:
        failed += 1
        for line in "".join(traceback.format_exception(error)).splitlines()[-12:]:
            print(f"# {line}", flush=True)


def test(name, fn, *args):
    """Calls fn, a coroutine too, and reports how it went."""
    try:
        r = fn(*args)
        if asyncio.iscoroutine(r):
            asyncio.run(r)
        report(name)
    except BaseException as e:  # noqa: B036
        report(name, e)


def until(cond, what, seconds=15):
    stop = time.monotonic() + max(seconds, 60)  # a slow machine has a minute
    while not cond():
        assert time.monotonic() < stop, f"waited for {what}"
        time.sleep(0.05)


def finish():
    print(f"1..{count}", flush=True)
    os._exit(1 if failed else 0)  # the SDK's own threads now and then abort an interpreter that ends in the ordinary way
