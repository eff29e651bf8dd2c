"""The wall clock of a node is set by a day while it works. What is a length of time must not notice; what is a time of day must."""
import base64
import contextlib
import datetime
import hashlib
import json
import os
import pathlib
import shutil
import struct
import tempfile
import time
import urllib.parse

from e2bwire import Api, Box, WireError
from hutch_test import TOP, check, check_equal, check_in, eventually
from node import hit, node, patiently

DAY = 86400


class Clock:
    """The wall clock of the processes of one node."""

    def __init__(self, folder):
        self.file, self.off = pathlib.Path(folder) / "clock", 0
        self.set(0)
        self.file.chmod(0o644)
        shutil.copy(TOP / "build/tests/clock-shift.so", folder)
        self.environ = {"LD_PRELOAD": f"{folder}/clock-shift.so", "HUTCH_TEST_CLOCK": str(self.file)}

    def set(self, off):
        self.off = off
        with open(self.file, "r+b" if self.file.exists() else "wb") as f:
            f.write(struct.pack("q", off))

    def now(self):
        return time.time() + self.off


@contextlib.contextmanager
def clocked(who, **kw):
    with tempfile.TemporaryDirectory(prefix="hutch-clock-") as folder:
        os.chmod(folder, 0o755)
        clock = Clock(folder)
        with node(who, environ=clock.environ, **kw) as (d, api):
            yield clock, d, api


def info(api, box):
    return json.loads(api.ask("GET", f"/sandboxes/{box.id}")[1])


def left(clock, api, box):
    """Seconds until the end as a client works them out."""
    end = datetime.datetime.fromisoformat(info(api, box)["endAt"].replace("Z", "+00:00"))
    return end.timestamp() - clock.now()


def status(call):
    try:
        return call()[0]
    except WireError as e:
        return e.status


def events(api, box):
    """With their numbers as "seq"."""
    text = api.ask("GET", f"/v1/sandboxes/{box.id}/events?follow=false")[1].decode()
    found = [dict(line.split(":", 1) for line in part.splitlines()) for part in text.split("\n\n") if "data:" in part]
    return [{"seq": int(e["id"]), **json.loads(e["data"])} for e in found]


def key_of(api, **more):
    return json.loads(api.ask("POST", "/v1/keys", {"tenant": "default", "name": "t", "scopes": ["sandboxes"], **more})[1])["key"]


def stamp(seconds):
    return datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def signed(api, box, path, expiry):
    digest = hashlib.sha256(f"{path}:read:user:{box.token}:{expiry}".encode()).digest()
    query = urllib.parse.urlencode({"path": path, "username": "user", "signature_expiration": expiry,
                                    "signature": "v1_" + base64.b64encode(digest).decode().rstrip("=")})
    to = {"E2b-Sandbox-Id": box.id, "E2b-Sandbox-Port": "49983"}
    return status(lambda: api.ask("GET", "/files?" + query, headers=to))


def create_with(api, key):
    h = {"X-API-KEY": api.key, "Idempotency-Key": key, "Content-Type": "application/json"}
    return Box(api, json.loads(api.ask("POST", "/v2/sandboxes", {"templateID": "host", "timeout": 3600}, headers=h)[1]))


def lengths(jump, clock, d, api):
    """Lives, time-outs and what is left of them."""
    short, long = api.create(life=600), api.create(life=3600)
    command = long.start("sleep 300", deadline_ms=4000)
    stays = long.start("sleep 2; echo there")
    clock.set(jump)
    check_equal(info(api, long)["state"], "running")
    check(3500 < left(clock, api, long) <= 3600, f"left: {left(clock, api, long)}")
    api.ask("POST", f"/v2/sandboxes/{long.id}/connect", {"timeout": 60})
    check(3500 < left(clock, api, long) <= 3600, "a connect never shortens")
    api.ask("POST", f"/v2/sandboxes/{long.id}/connect", {"timeout": 7200})
    check(7100 < left(clock, api, long) <= 7200, "a connect prolongs")
    api.ask("POST", f"/sandboxes/{long.id}/refreshes", {"duration": 20})
    for _ in range(10):  # on a machine that stands still for seconds it may be less
        api.ask("POST", f"/sandboxes/{short.id}/timeout", {"timeout": 10})
        api.ask("POST", f"/sandboxes/{short.id}/refreshes", {"duration": 0})  # 15 s, the least
        rest = left(clock, api, short)
        if rest > 10:
            break
    check(10 < rest <= 15, f"left: {rest}")
    begun = time.monotonic()
    api.ask("POST", f"/sandboxes/{short.id}/timeout", {"timeout": 3})
    check_equal(stays.read_all().out, b"there\n")
    eventually(lambda: command.pid not in long.processes(), 10, "the command's time-out")
    eventually(lambda: short.id not in api.list(), 15, "the end of the sandbox's life")
    check(time.monotonic() - begun > 2.9, "it ended early")
    end = events(api, short)[-1]
    check_equal((end["type"], end["data"]["cause"]), ("died", "timeout"), end)
    check(2900 < end["data"]["alive_ms"] < 600_000, end)
    hit(d, "front")
    check(7000 < patiently(lambda: left(clock, api, long)) <= 7200, "after a start of front too")
    return long


def test_lengths_of_time(who):
    "the wall clock jumps a day ahead or back: lives, time-outs, connects and endAt go on as if it had not"
    for jump in (DAY, -DAY):
        with clocked(who) as (clock, d, api):
            box = lengths(jump, clock, d, api)
            made = api.create(life=1000)
            check(900 < left(clock, api, made) <= 1000, f"left: {left(clock, api, made)}")
            check_equal(api.list(), {box.id, made.id})
            check_equal(box.run("echo well")[1], b"well\n")


def test_idempotency_and_rate():
    "the wall clock jumps a day ahead or back: an idempotency key is still known, and the rate limit forgets and punishes nobody"
    for jump in (DAY, -DAY):
        with clocked("root") as (clock, d, api):
            first = create_with(api, "once")
            api.ask("POST", "/v1/tenants", {"id": "slow", "name": "slow", "quota": {"requestsPerSecond": 1, "burst": 3}})
            slow = Api(d.port, key_of(api, tenant="slow"))
            ask = lambda: status(lambda: slow.ask("GET", "/v2/sandboxes"))  # noqa: E731, B023
            for _ in range(20):
                eventually(lambda: ask() == 429, 10, "the rate limit")  # noqa: B023
                begun = time.monotonic()
                clock.set(jump)
                got = [ask() for _ in range(3)]
                if 429 in got or time.monotonic() - begun < 1:  # in more time they may pass
                    break
                clock.set(0)
            check_in(429, got)
            eventually(lambda: ask() == 200, 10, "the rate limit ends")
            check_equal(create_with(api, "once").id, first.id)
            hit(d, "front")
            if jump < 0:  # ahead, a new front believes the clock that it finds
                check_equal(patiently(lambda: create_with(api, "once").id), first.id)


def test_times_of_day():
    "the wall clock jumps a day ahead or back: keys and signed URLs end at the time of day that they name"
    for jump in (DAY, -DAY):
        with clocked("root") as (clock, _, api):
            box = api.create(life=3600)
            box.put("/tmp/f", b"signed")
            key = Api(api.port, key_of(api, expiresAt=stamp(clock.now() + 3600)))
            until = int(clock.now() + 3600)
            for off, good in ((0, True), (jump, jump < 0), (0, True)):
                clock.set(off)
                check_equal(status(lambda: key.ask("GET", "/v2/sandboxes")), 200 if good else 401, off)  # noqa: B023
                check_equal(signed(api, box, "/tmp/f", until), 200 if good else 401, off)
            clock.set(jump)
            check_equal(status(lambda: api.ask("POST", "/v1/keys", {"tenant": "default", "name": "t", "scopes": ["read"],
                                                                  "expiresAt": stamp(clock.now() - 60)})), 400)


def test_events_in_order():
    "the wall clock jumps back: the events of a sandbox keep their order, numbers and times do not fall, a reader by time misses none"
    with clocked("root") as (clock, d, api):
        box = api.create(life=3600)
        from_time = int(clock.now() * 1000) - 1000
        for off in (0, -DAY, DAY, -3 * DAY):
            clock.set(off)
            api.ask("POST", f"/sandboxes/{box.id}/timeout", {"timeout": 3000})
        hit(d, "front")
        patiently(lambda: api.ask("POST", f"/sandboxes/{box.id}/timeout", {"timeout": 2000}))
        seen = [e for e in events(api, box) if e["type"] == "timeout_changed"]
        check_equal(len(seen), 5, seen)
        numbers, times = [e["seq"] for e in seen], [e["time"] for e in seen]
        check_equal(numbers, sorted(set(numbers)))
        check_equal(times, sorted(times))
        logs = json.loads(api.ask("GET", f"/v2/sandboxes/{box.id}/logs?cursor={from_time}&direction=forward")[1])["logs"]
        check_equal([e["message"] for e in logs].count("timeout_changed"), 5, logs)
