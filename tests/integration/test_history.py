"""Generations of a sandbox's files, and transactions: what changed is told exactly, going back goes back, nothing else moves."""
import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time

from e2bwire import BROKEN, WireError
from hutch_test import SOAK, check, check_equal, check_in, eventually, skip
from node import Traces, hit, node, patiently
from node_client import ask, call, get, patient, put, run, sh
from shared import shared_node
from small import small_templates


def a_box(d, **more):
    a = patient(d, "POST", "/v1/sandboxes", {"template": "small", **more})
    check_equal(a.status, 201, a)
    return a.json


def past(d, box):
    return ask(d, "GET", f"/v1/sandboxes/{box['sandboxID']}/history").json["generations"]


def changes(answer):
    return {c["path"]: c["change"] for c in answer.json["changes"]}


def test_history():
    "every command of a sandbox with history opens a generation; differences, old files and going back are exact"
    with shared_node(templates=True) as d:
        box = a_box(d, history=True)
        url = f"/v1/sandboxes/{box['sandboxID']}/history"
        one = sh(d, box, "echo one > /home/user/f; mkdir /home/user/d; echo x > /home/user/d/x")
        check_equal(one.code, 0, one)
        check_equal(one.end["generation"], 1)
        two = sh(d, box, "echo two >> /home/user/f; rm -r /home/user/d; chmod 600 /home/user/f", user="root")
        check_equal(two.end["generation"], 2)
        check_equal([g["number"] for g in past(d, box)], [1, 2])
        check_in("echo one", past(d, box)[0]["command"])
        diff = ask(d, "GET", url + "/diff?from=1&to=2")
        check_equal(changes(diff), {"/home/user/f": "changed", "/home/user/d": "removed", "/home/user/d/x": "removed"}, diff)
        f = [c for c in diff.json["changes"] if c["path"] == "/home/user/f"][0]
        check_equal((set(f["what"]) >= {"content", "mode"}, f["mode"], f["sizeBefore"], f["size"]), (True, "0600", 4, 8), f)
        check_equal(ask(d, "GET", url + "/1/file?path=/home/user/f").body, b"one\n")
        check_equal(ask(d, "GET", url + "/1/file?path=/etc/motd").body, b"first line\nsecond line\n")
        check_equal(ask(d, "GET", url + "/2/file?path=/home/user/d/x").status, 404)
        # Commands that end together have one each.
        ends = []
        crowd = [threading.Thread(target=lambda: ends.append(sh(d, box, "sleep 0.2").end)) for _ in range(4)]
        for t in crowd:
            t.start()
        for t in crowd:
            t.join()
        check_equal(sorted(e.get("generation", 0) for e in ends), [3, 4, 5, 6], ends)
        # What did not change since the one before is not counted again: else few large files would push out the history.
        sh(d, box, "head -c 4000000 /dev/urandom > /tmp/large; mv /tmp/large /home/user/large")
        sh(d, box, "true")
        sh(d, box, "rm /home/user/large")
        sizes = [g["bytes"] for g in past(d, box)[6:]]
        check(sizes[0] >= 4000000 and max(sizes[1:]) < 1000000, sizes)
        # Without `to` it is compared with now; only below `path` if that is given.
        ask(d, "POST", url, {"command": "by hand"})
        put(d, box, "/home/user/late", b"late")
        now = ask(d, "GET", url + "/diff?from=2")
        check_equal(changes(now), {"/home/user/late": "added"}, now)
        check_equal(changes(ask(d, "GET", url + "/diff?from=1&path=/home/user/d")), {"/home/user/d": "removed", "/home/user/d/x": "removed"})
        # Back to the first, and from there back to where it was.
        undone = ask(d, "POST", url + "/undo", {"to": 1})
        check_equal(undone.status, 200, undone)
        check_equal(get(d, box, "/home/user/d/x").body, b"x\n")
        check_equal(get(d, box, "/home/user/f").body, b"one\n")
        check_equal(get(d, box, "/home/user/late").status, 404)
        # Back to before the last command is back to this, not to what there was before it.
        sh(d, box, "echo three > /home/user/f")
        check_equal(ask(d, "POST", url + "/undo", {}).status, 200)
        check_equal((get(d, box, "/home/user/f").body, get(d, box, "/home/user/late").status), (b"one\n", 404))
        before = [g for g in past(d, box) if "before going back" in g["command"]][0]["number"]
        check_equal(ask(d, "POST", url + "/undo", {"to": before}).status, 200)
        check_equal(get(d, box, "/home/user/late").body, b"late")
        check_equal(get(d, box, "/home/user/d/x").status, 404)


def test_history_survives_and_is_bounded():
    "the history outlives kill -9 of front, keeper and stock, is bounded, and goes with the sandbox"
    with small_templates() as templates, node(templates=templates) as (d, _):
        box = a_box(d)
        url = f"/v1/sandboxes/{box['sandboxID']}/history"
        check_equal(past(d, box), [], "history is off unless it is asked for")
        check("generation" not in sh(d, box, "true").end, "a generation that nobody asked for")
        for i in range(3):
            put(d, box, "/home/user/f", str(i).encode())
            check_equal(ask(d, "POST", url, {}).json["number"], i + 1)
        for victim in ("front", "layers", "keeper"):
            d.kill9(victim)
        got = patiently(lambda: _ok(ask(d, "GET", url + "/2/file?path=/home/user/f")))
        check_equal(got.body, b"1")
        for _ in range(40):
            patiently(lambda: _ok(ask(d, "POST", url, {}), 201))
        numbers = [g["number"] for g in past(d, box)]
        check_equal(len(numbers), 32, numbers)
        check_equal(numbers[-1], 43)
        check_equal(ask(d, "GET", url + "/1/file?path=/home/user/f").status, 404)
        check_equal(ask(d, "DELETE", f"/sandboxes/{box['sandboxID']}").status, 204)
        check_equal(ask(d, "GET", url).status, 404)
        eventually(lambda: not [n for n in os.listdir(d.state / "stock/stacks") if ".gone-" not in n], 10, "the stacks of its history are dropped")


def _ok(answer, status=200):
    if answer.status != status:
        raise WireError(answer.status, answer.body.decode(errors="replace"))
    return answer


def test_transactions():
    "a transaction runs on a copy, several stand side by side, a commit applies exactly what was shown, a conflict applies nothing"
    with shared_node(templates=True) as d:
        box = a_box(d)
        url = f"/v1/sandboxes/{box['sandboxID']}/tx"
        put(d, box, "/home/user/f", b"first\n")
        sh(d, box, "sleep 1000 >/dev/null 2>&1 & echo $! > /home/user/pid")
        left = ask(d, "POST", url, {"command": "echo left > /home/user/f; echo $V; echo oops >&2; exit 3", "envs": {"V": "value"}})
        check_equal(left.status, 201, left)
        check_equal((left.json["exitCode"], left.json["stdout"], left.json["stderr"]), (3, "value\n", "oops\n"), left)
        check_equal(changes(left), {"/home/user/f": "changed"}, left)
        nul = ask(d, "POST", url, {"command": r"printf 'a\000b\377c'"}).json
        check_equal(nul["stdout"], "a\ufffdb\ufffdc", nul)
        check_equal(ask(d, "DELETE", f"{url}/{nul['id']}").status, 204)
        right = ask(d, "POST", url, {"command": "cat /home/user/f; echo right > /home/user/f; mkdir /home/user/n; echo 1 > /home/user/n/1"})
        check_equal(right.json["stdout"], "first\n", "one transaction sees the other")
        check_equal(get(d, box, "/home/user/f").body, b"first\n", "the original changed before the commit")
        check_equal({t["id"] for t in ask(d, "GET", url).json}, {left.json["id"], right.json["id"]})
        done = ask(d, "POST", f"{url}/{right.json['id']}/commit", {})
        check_equal(done.status, 200, done)
        check_equal(get(d, box, "/home/user/f").body, b"right\n")
        check_equal(get(d, box, "/home/user/n/1").body, b"1\n")
        check_equal(sh(d, box, "kill -0 $(cat /home/user/pid)").code, 0, "a process of the original ended")
        late = ask(d, "POST", f"{url}/{left.json['id']}/commit", {})
        check_equal(late.status, 409, late)
        check_equal(late.json["conflicts"], ["/home/user/f"], late)
        check_equal(get(d, box, "/home/user/f").body, b"right\n")
        check_equal(ask(d, "DELETE", f"{url}/{left.json['id']}").status, 204)
        check_equal(ask(d, "GET", f"{url}/{left.json['id']}").status, 404)
        check_equal(ask(d, "GET", url).json, [])
        lists = ask(d, "GET", "/v2/sandboxes").json
        check_equal([b["sandboxID"] for b in lists], [box["sandboxID"]], "a hidden sandbox is in the list")


def test_create_option():
    "hutch create --history makes a sandbox that keeps a generation after each command; an undo says how many files it changed"
    with small_templates() as templates, node(templates=templates) as (d, _):
        with_it, without = (d.cli("create", *more, "small").stdout.strip() for more in (["--history"], []))
        for box in (with_it, without):
            for command in ("echo 1 > /tmp/f", "echo 2 > /tmp/f; echo 2 > /tmp/g"):
                check_equal(d.cli("exec", box, "--", "sh", "-c", command).returncode, 0)
        check_equal([len(past(d, {"sandboxID": box})) for box in (with_it, without)], [2, 0])
        check_in("0 added, 1 changed, 1 removed", d.cli("history", "undo", with_it, "1").stdout)
        env = {**os.environ, "HUTCH_URL": d.url, "HUTCH_STATE": str(d.state), **({"HUTCH_API_KEY": d.key} if d.key else {})}
        with open("/dev/full", "w") as full:
            r = subprocess.run([d.hutch, "history", "cat", with_it, "1", "/tmp/f"], env=env, text=True, stdout=full, stderr=subprocess.PIPE, timeout=60)
        check_equal(r.returncode, 123, r)
        check_in("cannot write to stdout", r.stderr)


def test_of_a_template():
    "hutch template set --history gives every sandbox made from it a history; a directory of the node has no such switch, and nonsense is said"
    with small_templates() as templates, node(templates=templates) as (d, _):
        made = ask(d, "POST", f"/sandboxes/{a_box(d)['sandboxID']}/snapshots", {"name": "kept"}, timeout=120)
        check_equal(made.status, 201, made)

        def generations(**more):
            box = _ok(patient(d, "POST", "/v1/sandboxes", {"template": "kept", **more}), 201).json
            check_equal(d.cli("exec", box["sandboxID"], "--", "true").returncode, 0)
            return len(past(d, box))

        check_equal(generations(), 0)
        check_equal(d.cli("template", "set", "kept", "--history", "on").returncode, 0)
        check_equal((generations(), ask(d, "GET", "/v1/templates/kept").json["config"]["history"]), (1, True))
        check_equal(generations(history=False), 0, "who wants none has none")
        hit(d, "front")
        check_equal(patiently(generations), 1, "a new front knows")
        check_equal(d.cli("template", "set", "kept", "--history", "off", "--public", "on").returncode, 0)
        check_equal((generations(), ask(d, "GET", "/v1/templates/kept").json["public"]), (0, True))
        for args, why in ((("kept",), "--history on|off"), (("kept", "--history", "yes"), "on or off, not 'yes'"),
                          (("small", "--history", "on"), "directory of the node"), (("kept:default", "--public", "on"), "without ':TAG'"), (("none", "--public", "on"), "not found")):
            refused = d.cli("template", "set", *args, check=False)
            check(refused.returncode != 0 and why in refused.stderr, refused)
        for body, why in (({}, "nothing to change"), ({"history": "on"}, "history"), ({"histroy": True}, "histroy"), ([], "object")):
            a = ask(d, "PATCH", "/v1/templates/kept", body)
            check_equal(a.status, 400, a)
            check_in(why, a.json["message"])


def test_transactions_survive():
    "transactions wait through a restart of front and of everything, with what they wrote, and count; a commit says how much it changed"
    with small_templates() as templates, node(templates=templates) as (d, _):
        box = a_box(d)
        url = f"/v1/sandboxes/{box['sandboxID']}/tx"
        put(d, box, "/home/user/f", b"first\n")
        put(d, box, "/home/user/g", b"goes\n")
        tx = ask(d, "POST", url, {"command": "echo said; echo second > /home/user/f; rm /home/user/g; echo 1 > /home/user/n", "timeout": 60}, timeout=120)
        check_equal(tx.status, 201, tx)
        shown = ask(d, "GET", f"{url}/{tx.json['id']}").json
        for victim in ("front", "upgrade"):
            hit(d, victim)
            again = patiently(lambda: _ok(ask(d, "GET", f"{url}/{tx.json['id']}"))).json
            check_equal(again, shown, victim)
        check_equal(again["state"], "open")
        done = patiently(lambda: _ok(ask(d, "POST", f"{url}/{tx.json['id']}/commit", {}, timeout=60)))
        check_equal([done.json[k] for k in ("added", "changed", "removed")], [1, 1, 1], done)
        check_equal(get(d, box, "/home/user/f").body, b"second\n")
        check_equal(get(d, box, "/home/user/g").status, 404)
        check_equal(ask(d, "GET", url).json, [])
        hit(d, "front")
        check_equal(patiently(lambda: _ok(ask(d, "GET", url))).json, [], "a decided one came back")
        eventually(lambda: not [n for n in os.listdir(d.state / "stock/stacks") if ".gone-" not in n], 20, "its stacks are dropped")


def test_commit_is_never_half():
    "kill -9 of front, keeper and stock amid commits: all of it or nothing, as the node says; nothing else touches the files until it is settled"
    names = [f"/home/user/d/{i}" for i in range(12)]
    with small_templates() as templates, node(templates=templates) as (d, _):
        box = a_box(d, timeout=3600)
        url = f"/v1/sandboxes/{box['sandboxID']}/tx"
        sh(d, box, "mkdir -p /home/user/d")
        for n in names:
            put(d, box, n, b"-" * (1 << 20))
        now, stop, rounds, new = "-", time.monotonic() + (120 if SOAK else 12), 0, 0
        while time.monotonic() < stop or rounds < 8:
            next_one = "abcdefghijklmnopqrstuvwxyz"[rounds % 26]
            check_equal(patiently(lambda c=next_one: put(d, box, "/home/user/next", c.encode() * (1 << 20))).status, 200)
            command = "for i in 0 1 2 3 4 5 6 7 8 9 10 11; do cat /home/user/next > /home/user/d/$i; done"
            tx = patiently(lambda: _ok(ask(d, "POST", url, {"command": command}, timeout=120), 201)).json
            check_equal(tx["exitCode"], 0, tx)
            victim = ("layers", "front", "keeper", None)[rounds % 4]

            def commit():
                with contextlib.suppress(*BROKEN):
                    ask(d, "POST", f"{url}/{tx['id']}/commit", {}, timeout=60)  # noqa: B023
                return not patiently(lambda: _ok(ask(d, "GET", url))).json
            if victim:
                killer = threading.Timer(0.015 * (rounds * 7 % 10), lambda v=victim: hit(d, v))
                killer.start()
                commit()
                killer.join()
            else:  # on a slow machine somebody may die amid every other one: this one must go through
                eventually(commit, 120, "it is committed")

            def settled():
                left = patiently(lambda: _ok(ask(d, "GET", url))).json
                return not any(t["state"] == "committing" for t in left)
            eventually(settled, 60, "it is settled")
            left = patiently(lambda: _ok(ask(d, "GET", url))).json
            now, new = (now, new) if left else (next_one, new + 1)
            for n in names:
                got = patiently(lambda n=n: _ok(get(d, box, n))).body
                check(got == now.encode() * (1 << 20), f"{victim} died amid a commit: {n} is {got[:1]!r} ({len(got)} bytes), and should be {now}")
            for t in left:
                check_equal(patiently(lambda t=t: ask(d, "DELETE", f"{url}/{t['id']}")).status, 204)
            rounds += 1
        print(f"{rounds} rounds, {new} committed")
        check(new > 0, "nothing was ever committed")


def children(pid):
    with contextlib.suppress(OSError):
        return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def kill_amid(d, names, began, ended):
    """kill -9 of these as soon as began() is true; "job" is the process of stock that changes the files. Whether that was before its end."""
    pids = {n: [d.proc.pid] if n == "supervisor" else d.children("layers" if n == "job" else n) for n in names}
    stop = time.monotonic() + 60
    while not began() and time.monotonic() < stop:
        pass
    for name in names:
        for pid in children(pids[name][0]) if name == "job" else pids[name]:
            os.kill(pid, signal.SIGKILL)
    amid = not ended()
    if "supervisor" in names:
        d.proc.wait()
        d.start()
    return amid


def test_undo_is_never_half():
    "kill -9 of front, stock, both, keeper, the supervisor or the job amid an undo: it goes on by itself, to its end"
    many, half = 100, 0
    fill = f"cd /home/user/a && yes NUMBER | head -c 131072 | tee $(seq 100 {99 + many}) > /dev/null; cd .."
    with small_templates() as templates, node(templates=templates) as (d, _):
        box = a_box(d, timeout=3600)
        url = f"/v1/sandboxes/{box['sandboxID']}/history"
        files = pathlib.Path(f"/proc/{Traces(d, 'root').inits().pop()}/root/home/user")
        check_equal(sh(d, box, "mkdir /home/user/a /home/user/z; " + fill.replace("NUMBER", "1") + "; echo 1 > z/z").code, 0)
        check_equal(ask(d, "POST", url, {}).status, 201)
        for victims in (["front", "layers"], ["supervisor"], ["front"], ["layers"], ["keeper"], ["job"]):
            check_equal(patiently(lambda: sh(d, box, fill.replace("NUMBER", "2") + "; rm z/z; echo 2 > z/new")).code, 0)
            before, answers = (files / "a/101").stat().st_mtime_ns, []

            def undo():
                with contextlib.suppress(*BROKEN):
                    answers.append(ask(d, "POST", url + "/undo", {"to": 1}, timeout=60))  # noqa: B023
            thread = threading.Thread(target=undo)
            thread.start()

            def begun():
                with contextlib.suppress(FileNotFoundError):
                    return (files / "a/101").stat().st_mtime_ns != before  # noqa: B023
                return True
            half += kill_amid(d, victims, begun, lambda: not (files / "z/new").exists())
            thread.join()
            if not {"front", "supervisor"} & {*victims}:
                check_equal([a.status for a in answers], [200], victims)
                check_equal([answers[0].json[k] for k in ("added", "changed", "removed")], [1, many, 1], victims)
            # What needs all of the files waits for the undo.
            check_equal(patiently(lambda: ask(d, "POST", url, {})).status, 201)
            now = sh(d, box, "cd /home/user; cat a/* z/* | tr -d '\\n' | tr -s 12; echo; ls a | wc -l; ls z").out.split()
            check_equal(now, [b"1", str(many).encode(), b"z"], f"{victims} died amid an undo")
        print(f"{half} of 6 were killed in the middle")
        check(half > 0, "nothing was ever killed in the middle")


def test_undo_that_does_not_fit():
    "an undo that ends at a full disk is taken back"
    with shared_node(templates=True, config="sandboxes: {disk: 48MiB}") as d:
        box = a_box(d)
        url = f"/v1/sandboxes/{box['sandboxID']}/history"
        sh(d, box, "cd /home/user; echo 1 > a; head -c 30000000 /dev/urandom > big; echo 1 > c")
        check_equal(ask(d, "POST", url, {}).status, 201)
        sh(d, box, "cd /home/user; rm big; echo 2 > a; rm c; head -c 30000000 /dev/urandom > filler")
        look = "cd /home/user; find . | sort | while read n; do stat -c '%n %s %f %u %Y' $n; done; find . -type f | sort | xargs md5sum"
        before = sh(d, box, look).out
        full = ask(d, "POST", url + "/undo", {"to": 1}, timeout=60)
        check_equal(full.status, 507, full)
        check_in("as it was again", full.json["message"])
        check_equal(sh(d, box, look).out, before)
        sh(d, box, "rm /home/user/filler")
        check_equal(ask(d, "POST", url + "/undo", {"to": 1}, timeout=60).status, 200)
        check_equal(sh(d, box, "cd /home/user; cat a c; ls").out, b"1\n1\na\nbig\nc\n")


def test_commit_that_does_not_fit():
    "a commit that ends at a full disk is taken back: what the sandbox changed in the same way as the transaction is as it was too"
    with shared_node(templates=True, config="sandboxes: {disk: 48MiB}") as d:
        box = a_box(d)
        url = f"/v1/sandboxes/{box['sandboxID']}/tx"
        sh(d, box, "cd /home/user; echo 1 > f; echo 1 > g; echo 1 > gone; echo 1 > later; mkdir d; echo 1 > d/1")
        alike = "cd /home/user; echo 2 > f; rm gone; mkdir modules; echo x > modules/x; "
        tx = ask(d, "POST", url, {"command": alike + "rm -r d; echo 2 > g; touch later; echo 2 > a; head -c 24000000 /dev/urandom > zz"}, timeout=60)
        check_equal((tx.status, tx.json["exitCode"]), (201, 0), tx)
        sh(d, box, alike + "echo own > modules/.cache; echo own > later; head -c 30000000 /dev/urandom > filler")
        look = "cd /home/user; find . | sort | while read n; do stat -c '%n %s %f %u %Y' $n; done; find . -type f | sort | xargs md5sum"
        before = sh(d, box, look).out
        full = ask(d, "POST", f"{url}/{tx.json['id']}/commit", {}, timeout=60)
        check_equal(full.status, 507, full)
        check_in("as it was again", full.json["message"])
        check_equal(sh(d, box, look).out, before)
        sh(d, box, "rm /home/user/filler")
        done = ask(d, "POST", f"{url}/{tx.json['id']}/commit", {}, timeout=60)
        check_equal(done.status, 200, done)
        check_equal(sh(d, box, "cd /home/user; cat f g a modules/x modules/.cache later; ls").out,
                    b"2\n2\n2\nx\nown\nown\na\nf\ng\nlater\nmodules\nzz\n")


def test_commit_without_room_for_attributes():
    "a commit for whose attributes there is no room is taken back, not told as done without them"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shm:
        try:
            os.setxattr(shm, "user.x", b"x")
        except OSError:
            skip("tmpfs has no user attributes here: Linux 6.6 or newer has")
    with small_templates() as templates:
        tagged = templates / "small/root/home/user/tagged"
        tagged.write_text("x")
        os.chown(tagged, 1000, 1000)
        os.setxattr(tagged, "user.e2b.tag", b"t" * 3600)
        with node(templates=templates, config="sandboxes: {inodes: 1000}") as (d, _):
            box = a_box(d)
            url = f"/v1/sandboxes/{box['sandboxID']}/tx"
            tx = ask(d, "POST", url, {"command": "cd /home/user; echo 2 > a; ln tagged new"}, timeout=60)
            check_equal((tx.status, tx.json["exitCode"]), (201, 0), tx)
            # Attributes count as files do, by 1024 bytes: there is room for some files and not for the attribute.
            sh(d, box, "cd /home/user; mkdir many; i=0; while touch many/$i; do i=$((i+1)); done; rm many/[0-3]")
            before = sh(d, box, "cd /home/user; ls -l --full-time . many").out
            full = ask(d, "POST", f"{url}/{tx.json['id']}/commit", {}, timeout=60)
            check_equal(full.status, 507, full)
            check_in("as it was again", full.json["message"])
            check_in("user.e2b.tag", full.json["message"])
            check_equal(sh(d, box, "cd /home/user; ls -l --full-time . many").out, before)
            sh(d, box, "rm -r /home/user/many")
            done = ask(d, "POST", f"{url}/{tx.json['id']}/commit", {}, timeout=60)
            check_equal(done.status, 200, done)
            entry = call(d, box, "filesystem.Filesystem/Stat", {"path": "/home/user/new"}).json["entry"]
            check_equal(entry["metadata"], {"tag": "t" * 3600})


def test_bad_input():
    "what cannot be done is refused with the reason"
    with shared_node(templates=True) as d:
        box = a_box(d)
        base = f"/v1/sandboxes/{box['sandboxID']}"
        for method, path, body, status, word in (
                ("GET", "/history/diff?from=x", None, 400, "number of a generation"), ("GET", "/history/diff?from=7", None, 404, "no generation 7"),
                ("GET", "/history/9/file?path=/x", None, 404, "no generation 9"), ("POST", "/history/undo", {}, 404, "no earlier"),
                ("POST", "/history/undo", {"to": "x"}, 400, "to"), ("POST", "/tx", {}, 400, "command"), ("POST", "/tx", {"command": "true", "x": 1}, 400, "'x'"),
                ("POST", "/tx", {"command": "true", "timeout": 100000}, 400, "timeout"), ("POST", "/tx", {"command": "true", "user": "nobody-here"}, 400, "user"),
                ("POST", "/tx/tx-0/commit", {}, 404, "tx-0")):
            a = ask(d, method, base + path, body)
            check_equal(a.status, status, (path, a))
            check_in(word, a.json["message"], path)
        host = patient(d, "POST", "/v1/sandboxes", {"template": "host"}).json
        a = ask(d, "POST", f"/v1/sandboxes/{host['sandboxID']}/history", {})
        check_equal(a.status, 400, a)
        check_in("host", a.json["message"])
        check_equal(run(d, host, "true").code, 0, "the refused one stands still")
