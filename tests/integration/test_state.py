"""Sandboxes that are paused, resumed, woken, copied: what a client sees, and what is left when processes die in the middle."""
import os
import struct
import threading
import time

from e2bwire import BROKEN, WireError
from hutch_test import SOAK, check, check_equal, check_in, eventually
from node import Traces, hit, node, patiently
from node_client import ask, get, patient, put, sh
from shared import shared_node
from small import small_templates

FAULT_SECONDS = 120 if SOAK else 12


def a_box(d, **more):
    a = patient(d, "POST", "/v2/sandboxes", {"templateID": "small", **more})
    check_equal(a.status, 201, a)
    return a.json


def of(box, rest=""):
    return f"/sandboxes/{box['sandboxID']}{rest}"


def state(d, box):
    a = ask(d, "GET", of(box))
    return a.json["state"] if a.status == 200 else a.status


def life(d, box):
    return ask(d, "GET", f"/v1/sandboxes/{box['sandboxID']}/lifecycle").json["state"]


def pause(d, box, **body):
    a = ask(d, "POST", of(box, "/pause"), body, timeout=60)
    check_equal(a.status, 204, a)


def connect(d, box, status=201, **body):
    a = ask(d, "POST", "/v2" + of(box, "/connect"), body, timeout=60)
    check_equal(a.status, status, a)
    return a.json


def ticking(d, box):
    """A process that counts, and its pid."""
    r = sh(d, box, "(i=0; while :; do i=$((i+1)); echo $i > /tmp/n; sleep 0.05; done) >/dev/null 2>&1 & echo $!")
    check_equal(r.code, 0, r)
    eventually(lambda: get(d, box, "/tmp/n").status == 200, 5, "it counts")
    return int(r.text)


def counts(d, box):
    """Pids are given again: whether it is the same process shows in what it does."""
    if get(d, box, "/tmp/n").status != 200:
        return False
    before = number(d, box)
    time.sleep(0.3)
    return number(d, box) != before


def number(d, box):
    return int(get(d, box, "/tmp/n").body or b"0")


def test_memory_pause(who):
    "a pause with memory: nothing runs, pids and files are the same afterwards, a second pause is a conflict, time does not run"
    with small_templates(who) as templates, node(who, templates=templates) as (d, _):
        box = a_box(d, timeout=300, envVars={"A": "1"})
        pid = ticking(d, box)
        a = ask(d, "POST", of(box, "/pause"), {})
        if a.status == 501:
            check_in("cannot be frozen", a.json["message"])
            check_equal(state(d, box), "running")
            return
        check_equal(a.status, 204, a)
        check_equal((state(d, box), life(d, box)), ("paused", "frozen"))
        check_equal(ask(d, "POST", of(box, "/pause"), {}).status, 409)
        check_equal(ask(d, "POST", of(box, "/timeout"), {"timeout": 5}).status, 409)
        dead = get(d, box, "/tmp/n")
        check_equal((dead.status, dead.json["message"]), (502, "The sandbox was not found"))
        check_equal([b["sandboxID"] for b in ask(d, "GET", "/v2/sandboxes?state=paused").json], [box["sandboxID"]])
        check_equal(ask(d, "GET", "/v2/sandboxes?state=running").json, [])
        back = connect(d, box, timeout=120)
        check_equal(back["envdAccessToken"], box["envdAccessToken"])
        check_equal(sh(d, box, f"kill -0 {pid}; echo $A").text, "1\n")
        before = number(d, box)
        eventually(lambda: number(d, box) > before, 5, "it counts on")
        connect(d, box, 200)
        check_equal(ask(d, "DELETE", of(box)).status, 204)


def test_memory_stands_still():
    "while it is paused its counter does not move, and an attached client hears that it was paused"
    with small_templates() as templates, node(templates=templates) as (d, api):
        box = a_box(d)
        ticking(d, box)
        before, n = time.monotonic(), number(d, box)
        pause(d, box)
        paused = time.monotonic()
        time.sleep(0.7)
        resumed = time.monotonic()
        connect(d, box)
        counted = number(d, box) - n
        most = (paused - before + time.monotonic() - resumed) / 0.05 + 3  # it counts at most twenty a second
        check(counted < max(12, most), f"it went on while it was paused: {counted}")


def test_files_pause(who):
    "a pause of files: processes end, files, token, environment and metadata stay, over and over, and over a restart of everything"
    with small_templates(who) as templates, node(who, templates=templates) as (d, _):
        box = a_box(d, envVars={"A": "1"}, metadata={"k": "v"})
        ticking(d, box)
        for i in range(3):
            put(d, box, f"/home/user/f{i}", f"{i}".encode())
            a = ask(d, "POST", of(box, "/pause"), {"memory": False}, timeout=60)
            if a.status == 501:
                return
            check_equal(a.status, 204, a)
            check_equal((state(d, box), life(d, box)), ("paused", "stored"))
            eventually(lambda: not Traces(d, who).inits(), 10, "nothing of it lives")
            if i == 1:
                d.stop(sandboxes=False)
                d.start()
            back = patiently(lambda: ok(ask(d, "POST", "/v2" + of(box, "/connect"), {}), (201,))).json
            check_equal(back["envdAccessToken"], box["envdAccessToken"])
            check(not counts(d, box), "a process came back")
            for k in range(i + 1):
                check_equal(get(d, box, f"/home/user/f{k}").body, f"{k}".encode())
            check_equal(sh(d, box, "echo $A").text, "1\n")
            check_equal(ask(d, "GET", of(box)).json["metadata"], {"k": "v"})
        pause(d, box, memory=False)
        check_equal(ask(d, "DELETE", of(box)).status, 204)
        check_equal(ask(d, "DELETE", of(box)).status, 404)
        eventually(lambda: not stacks(d), 100, "its stack is dropped")


# What a sandbox has that is still ending when it is dropped goes with the next collection, a minute later.
def stacks(d):
    return [n for n in os.listdir(d.state / "stock/stacks") if "." not in n]


def test_connect_without_memory():
    "a connect that ignores the memory starts it anew from its files"
    with shared_node(templates=True) as d:
        box = a_box(d)
        ticking(d, box)
        put(d, box, "/home/user/f", b"kept")
        pause(d, box)
        connect(d, box, memory=False)
        check_equal(get(d, box, "/home/user/f").body, b"kept")
        check(not counts(d, box), "a process came back")


def test_wake_by_traffic():
    "traffic wakes a sandbox that may be woken, many requests at once wake it once; others answer as if there were none"
    with shared_node(templates=True) as d:
        asleep, light = a_box(d), a_box(d, autoResume={"enabled": True})
        for b in (asleep, light):
            put(d, b, "/home/user/f", b"kept")
            pause(d, b)
        check_equal(get(d, asleep, "/home/user/f").status, 502)
        check_equal(state(d, asleep), "paused")
        health = ask(d, "GET", "/health", headers={"E2b-Sandbox-Id": light["sandboxID"], "E2b-Sandbox-Port": "49983"})
        check_equal(health.status, 502, "a look woke it")
        stranger = dict(light, envdAccessToken="0" * 40)
        check(get(d, stranger, "/home/user/f").status in (401, 502), "a stranger was served")
        check_equal(state(d, light), "paused", "a stranger woke it")
        got = []
        crowd = [threading.Thread(target=lambda: got.append(get(d, light, "/home/user/f").body)) for _ in range(8)]
        for t in crowd:
            t.start()
        for t in crowd:
            t.join()
        check_equal(got, [b"kept"] * 8)
        check_equal(state(d, light), "running")
        check_equal(sh(d, light, "echo yes").text, "yes\n")


def test_auto_pause():
    "at its end a sandbox is paused if it asked for that, also when front was down at the time; an idle one is paused and comes back"
    with small_templates() as templates, node(templates=templates) as (d, _):
        box, doomed = a_box(d, timeout=2, autoPause=True), a_box(d, timeout=2)
        check_equal(ask(d, "GET", of(box)).json["lifecycle"], {"autoResume": False, "onTimeout": "pause"})
        eventually(lambda: state(d, box) == "paused", 10, "it is paused at its end")
        eventually(lambda: state(d, doomed) == 404, 10, "the other one ended")
        connect(d, box, timeout=2)
        d.proc.kill()
        d.proc.wait()
        time.sleep(3)
        d.start()
        eventually(lambda: patiently(lambda: state(d, box)) == "paused", 15, "it is paused although front was down")
        idle = patient(d, "POST", "/v1/sandboxes", {"template": "small", "idleTimeout": 1}).json
        put(d, idle, "/home/user/f", b"kept")
        eventually(lambda: state(d, idle) == "paused", 10, "it is paused without traffic")
        check_equal(get(d, idle, "/home/user/f").body, b"kept")


def test_snapshots():
    "a snapshot makes many sandboxes; it outlives its source; it is listed, named, removed; of paused ones too"
    with shared_node(templates=True) as d:
        box = a_box(d)
        put(d, box, "/home/user/f", b"one")
        one = ask(d, "POST", of(box, "/snapshots"), {}, timeout=60)
        check_equal(one.status, 201, one)
        check_equal(one.json["hutch"]["memory"], False)
        check_equal(state(d, box), "running")
        put(d, box, "/home/user/f", b"two")
        pause(d, box)
        named = ask(d, "POST", of(box, "/snapshots"), {"name": "ready"}, timeout=60)
        check_equal((named.status, named.json["names"]), (201, ["default/ready:default"]), named)
        check_equal(state(d, box), "paused")
        check_equal(ask(d, "DELETE", of(box)).status, 204)
        for template, want in ((one.json["snapshotID"], b"one"), ("ready", b"two"), ("default/ready:default", b"two")):
            for _ in range(2):
                made = patient(d, "POST", "/v2/sandboxes", {"templateID": template})
                check_equal(made.status, 201, made)
                check_equal(get(d, made.json, "/home/user/f").body, want)
        ids = [s["snapshotID"] for s in ask(d, "GET", "/snapshots").json]
        check_equal(ids, ["default/ready:default", one.json["snapshotID"]])
        check_equal(len(ask(d, "GET", f"/snapshots?sandboxID={box['sandboxID']}&limit=1").json), 1)
        gone = "/templates/" + one.json["snapshotID"].replace(":", "%3A")
        check_equal([ask(d, "DELETE", gone).status for _ in range(2)], [204, 404])
        check_equal(ask(d, "POST", "/v2/sandboxes", {"templateID": one.json["snapshotID"]}).status, 404)
        host = patient(d, "POST", "/v2/sandboxes", {"templateID": "host"}).json
        no = ask(d, "POST", of(host, "/snapshots"), {})
        check_equal(no.status, 400, no)
        check_in("no files of its own", no.json["message"])


def layers_of(d, stack):
    """The number of layers, as src/keeper/place.h has it; 0: dropped meanwhile."""
    try:
        return struct.unpack_from("<8sII", (d.state / "stock/stacks" / stack).read_bytes())[2]
    except FileNotFoundError:
        return 0


def test_long_chain():
    "a sandbox that is paused and resumed over and over keeps everything, and its layers are made into one"
    rounds = 80 if SOAK else 18
    with small_templates() as templates, node(templates=templates) as (d, _):
        box = a_box(d)
        for i in range(rounds):
            put(d, box, f"/home/user/f{i}", f"{i}".encode())
            sh(d, box, f"rm -f /home/user/f{i - 3}; mv /home/user/f{i - 1} /home/user/g{i - 1}; mkdir -p /home/user/d; echo {i} > /home/user/d/n")
            pause(d, box, memory=False)
            connect(d, box)
        pause(d, box, memory=False)
        mine = [n for n in stacks(d) if layers_of(d, n) > 0]
        eventually(lambda: all(layers_of(d, n) < 15 for n in mine), 120, "the chain is flattened")
        connect(d, box)
        check_equal(get(d, box, "/home/user/d/n").body, f"{rounds - 1}\n".encode())
        names = {n for n in sh(d, box, "ls /home/user").text.split()}
        check_equal(names, {"d", f"f{rounds - 1}"} | {f"g{i}" for i in range(rounds - 1)}, sorted(names))


def test_many_snapshots():
    "many snapshots of one sandbox: each is its own, all are listed page by page, all can be removed"
    many = 1000 if SOAK else 40
    with small_templates() as templates, node(templates=templates) as (d, _):
        box = a_box(d, timeout=3600)
        ids = []
        for i in range(many):
            put(d, box, "/home/user/f", f"{i}".encode())
            a = ask(d, "POST", of(box, "/snapshots"), {}, timeout=60)
            check_equal(a.status, 201, a)
            ids.append(a.json["snapshotID"])
        for i in (0, many // 2, many - 1):
            made = patient(d, "POST", "/v2/sandboxes", {"templateID": ids[i]})
            check_equal(made.status, 201, made)
            check_equal(get(d, made.json, "/home/user/f").body, f"{i}".encode())
            check_equal(ask(d, "DELETE", of(made.json)).status, 204)
        listed, token = [], ""
        while True:
            page = ask(d, "GET", "/snapshots?limit=17" + (f"&nextToken={token}" if token else ""))
            listed += [s["snapshotID"] for s in page.json]
            token = page.headers.get("x-next-token")
            if not token:
                break
        check_equal(sorted(listed), sorted(ids))
        for name in ids:
            check_equal(ask(d, "DELETE", "/templates/" + name.replace(":", "%3A")).status, 204)
        check_equal(ask(d, "GET", "/snapshots").json, [])


def test_forks():
    "forks have their parent's files and lives of their own; their common copy goes with the last of them"
    with small_templates() as templates, node(templates=templates) as (d, _):
        box = a_box(d, metadata={"k": "v"}, envVars={"A": "1"})
        put(d, box, "/home/user/f", b"parent")
        pid = ticking(d, box)
        forked = ask(d, "POST", of(box, "/fork"), {"count": 4, "timeout": 200}, timeout=90)
        check_equal(forked.status, 201, forked)
        kids = [k["sandbox"] for k in forked.json]
        check_equal(len({k["sandboxID"] for k in kids} | {box["sandboxID"]}), 5)
        check_equal(len({k["envdAccessToken"] for k in kids} | {box["envdAccessToken"]}), 5)
        for i, k in enumerate(kids):
            check_equal(get(d, k, "/home/user/f").body, b"parent")
            put(d, k, "/home/user/f", f"child {i}".encode())
            check_equal(sh(d, k, "echo $A; hostname").text, f"1\n{k['sandboxID']}\n")
            check_equal(ask(d, "GET", of(k)).json["metadata"], {"k": "v"})
        check_equal(get(d, box, "/home/user/f").body, b"parent")
        check_equal([get(d, k, "/home/user/f").body for k in kids], [b"child 0", b"child 1", b"child 2", b"child 3"])
        check_equal(sh(d, box, f"kill -0 {pid}").code, 0, "the parent's process ended")
        check_equal(len(stacks(d)), 1)
        for k in kids:
            check_equal(ask(d, "DELETE", of(k)).status, 204)
        eventually(lambda: not stacks(d), 100, "the copy is dropped")
        pause(d, box)
        check_equal(ask(d, "POST", of(box, "/fork"), {}).status, 409)


def test_quota():
    "a tenant keeps no more than its quota allows, and is told which one"
    with small_templates() as templates, node(templates=templates) as (d, _):
        check_equal(ask(d, "POST", "/v1/tenants", {"id": "few", "quota": {"snapshots": 1}}).status, 201)
        key = ask(d, "POST", "/v1/keys", {"tenant": "few", "scopes": ["sandboxes"]}).json["key"]
        box = patient(d, "POST", "/v2/sandboxes", {"templateID": "small"}, key=key).json
        check_equal(ask(d, "POST", of(box, "/snapshots"), {}, key=key, timeout=60).status, 201)
        full = ask(d, "POST", of(box, "/snapshots"), {}, key=key)
        check_equal((full.status, full.json["error_code"]), (429, "quota_exceeded"), full)


def test_storage_quota():
    "what a tenant keeps is counted in layers, each once; what does not fit is refused and thrown away, and by itself costs nobody's work"
    mib = 1 << 20
    with small_templates() as templates, node(templates=templates) as (d, _):
        check_equal(d.cli("tenant", "add", "acme").returncode, 0)
        check_equal(d.cli("tenant", "set", "acme", "--storage", "10M").returncode, 0)
        key = ask(d, "POST", "/v1/keys", {"tenant": "acme", "scopes": ["sandboxes", "templates"]}).json["key"]

        def used():
            return patiently(lambda: ok(ask(d, "GET", "/v1/tenants/acme"), (200,))).json["used"]["storageBytes"]

        def near(n):
            check(n * mib <= used() < n * mib + mib, f"{used()} bytes are kept, not {n} MiB and a little")

        def make(template="small", **more):
            a = patient(d, "POST", "/v2/sandboxes", {"templateID": template, **more}, key=key)
            check_equal(a.status, 201, a)
            return a.json

        box = make()
        for i in (1, 2):
            put(d, box, f"/home/user/f{i}", os.urandom(2 * mib))
            check_equal(ask(d, "POST", of(box, "/pause"), {"memory": False}, key=key, timeout=60).status, 204)
            near(2 * i)
            check_equal(ask(d, "POST", "/v2" + of(box, "/connect"), {}, key=key, timeout=60).status, 201)
            near(2 * i)
        first = ask(d, "POST", of(box, "/snapshots"), {}, key=key, timeout=60).json["snapshotID"]
        child = make(first)
        put(d, child, "/home/user/f", os.urandom(3 * mib))
        check_equal(ask(d, "POST", of(child, "/snapshots"), {}, key=key, timeout=60).status, 201)
        near(7)
        for gone in (of(box), of(child), "/templates/" + first.replace(":", "%3A")):
            check_equal(ask(d, "DELETE", gone, key=key).status, 204, gone)
        near(7)
        hit(d, "front")
        eventually(lambda: 7 * mib <= used() < 8 * mib, 30, "a new front counts the same")
        # Four more do not fit. Asked for, it is refused; by itself, its memory is kept.
        big = make(autoPause=True, autoPauseMemory=False, timeout=600)
        put(d, big, "/home/user/f", os.urandom(4 * mib))
        for way in ("/snapshots", "/pause"):
            a = ask(d, "POST", of(big, way), {"memory": False} if way == "/pause" else {}, key=key, timeout=60)
            check_equal((a.status, a.json["error_code"]), (429, "quota_exceeded"), a)
            check_in("storage", a.json["message"])
        near(7)
        check_equal(ask(d, "POST", of(big, "/timeout"), {"timeout": 1}, key=key).status, 204)
        eventually(lambda: ask(d, "GET", f"/v1/sandboxes/{big['sandboxID']}/lifecycle", key=key).json["state"] == "frozen", 60, "it is frozen")
        shown = d.cli("tenant", "info", "acme").stdout
        check_in("of 10 MiB", shown)
        volume = ask(d, "POST", "/v1/volumes", {"name": "v", "quota": {"bytes": 64 * mib}}, key=key)
        check_equal((volume.status, volume.json["error_code"]), (429, "quota_exceeded"), volume)
        # The same for how many files there are.
        files = ask(d, "GET", "/v1/tenants/acme").json["used"]["storageEntries"]
        check_equal(d.cli("tenant", "set", "acme", "--storage", "0", "--files", str(files + 40)).returncode, 0)
        many = make()
        for i in range(25):
            put(d, many, f"/home/user/d/f{i}", b"")
        check_equal(ask(d, "POST", of(many, "/snapshots"), {}, key=key, timeout=60).status, 201)
        for i in range(25):
            put(d, many, f"/home/user/d/g{i}", b"")
        a = ask(d, "POST", of(many, "/snapshots"), {}, key=key, timeout=60)
        check_equal((a.status, a.json["error_code"]), (429, "quota_exceeded"), a)
        check_in(f"of {files + 40} are kept", a.json["message"])
        check_in(f"of {files + 40}", d.cli("tenant", "info", "acme").stdout)


def patient_state(d, box):
    def one():
        a = ask(d, "GET", of(box))
        if a.status not in (200, 404):
            raise WireError(a.status, a.body.decode(errors="replace"))
        return a.json["state"] if a.status == 200 else 404
    return patiently(one)


def try_ask(d, *args, **kw):
    """The answer, or None: the connection broke."""
    try:
        return ask(d, *args, **kw)
    except BROKEN:
        return None


def test_deaths_in_the_middle():
    "kill -9 of front, keeper, stock amid pauses, resumes and snapshots: the sandbox is what was last told, with all its files"
    with small_templates() as templates, node(templates=templates) as (d, _):
        box = a_box(d, timeout=3600)
        put(d, box, "/home/user/f", os.urandom(1 << 20))
        want, stop, rounds = get(d, box, "/home/user/f").body, time.monotonic() + FAULT_SECONDS, 0
        while time.monotonic() < stop:
            victim = ("front", "keeper", "layers")[rounds % 3]
            what = (("/pause", {}), ("/pause", {"memory": False}), ("/snapshots", {}))[rounds // 3 % 3]
            killer = threading.Timer(0.004 * (rounds % 9), lambda v=victim: hit(d, v))
            killer.start()
            try_ask(d, "POST", of(box, what[0]), what[1], timeout=60)
            killer.join()
            now = patient_state(d, box)
            check(now in ("running", "paused"), f"{victim} died amid {what}: {now}")
            patiently(lambda: ok(ask(d, "POST", "/v2" + of(box, "/connect"), {"timeout": 3600}, timeout=60), (200, 201)))
            check_equal(patiently(lambda: ok(get(d, box, "/home/user/f"), (200,))).body == want, True, f"{victim}, {what}")
            rounds += 1
        print(f"{rounds} rounds")
        check_equal(patiently(lambda: ask(d, "DELETE", of(box))).status, 204)
        for s in patiently(lambda: ask(d, "GET", "/snapshots")).json:
            ask(d, "DELETE", "/templates/" + s["snapshotID"].replace(":", "%3A"))


def ok(answer, statuses):
    if answer.status not in statuses:
        raise WireError(answer.status, answer.body.decode(errors="replace"))
    return answer
