"""`hutch run --audit FILE`: everything that leaves is a line, each line holds the one before, and the command cannot touch them."""
import json
import os
import re

from hutch_test import HUTCH_TEST, check, check_equal, check_in, hutch, hutch_record, run, workspace, write
from internet import Internet

CURL = "curl -sS --max-time 60 -o /dev/null"


def go(net, who, ws, *args, **kw):
    return hutch_record(*args, binary=HUTCH_TEST, who=who, cwd=ws, env={**net.env(), "KEY": "0123456789abcdef"}, timeout=300, **kw)


def verify(who, path, *args):
    return hutch("audit", "verify", *args, str(path), binary=HUTCH_TEST, who=who)


def lines(path):
    return [json.loads(x) for x in path.read_text().splitlines()]


def test_written(who):
    "requests, refusals and secrets are lines of one chain that goes on from run to run; a line that was changed is found"
    with Internet() as net, workspace(who) as ws:
        net.ca.cert.chmod(0o644), net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        log = ws / "log.ndjson"
        script = f'{CURL} http://api.test/one?x=1; {CURL} http://other.test/; {CURL} -H "X-Key: $KEY" https://api.test/two'
        r = go(net, who, ws, "--audit", "log.ndjson", "--secret", "KEY=api.test", "--allow-host", "api.test", "--", "sh", "-c", script)
        check_equal(r.code, 0, r)
        got = [(x["kind"], x.get("host"), x.get("path"), x.get("verdict")) for x in lines(log)]
        check_equal(got[0][0], "started", got)
        check(("http", "api.test", "/one", "allow") in got and ("http", "api.test", "/two", "allow") in got, got)
        check(any(k == "deny" and h == "other.test" for k, h, _, _ in got), got)
        check_in("header:x-key", log.read_text())
        check("0123456789abcdef" not in log.read_text(), "the value is in the log")
        check_equal(len([x for x in r.record["network"]["log"] if x["kind"] == "http"]), 2, r.record["network"])
        first = len(lines(log))
        check_equal(log.stat().st_mode & 0o777, 0o640)
        r = verify(who, log)
        check_equal((r.code, r.out.split("\n")[0]), (0, f"whole: {first} lines"), r)
        last = re.search("last: (sha256:[0-9a-f]{64})", r.out)[1]
        go(net, who, ws, "--audit", str(log), "--allow-host", "api.test", "--", "sh", "-c", f"{CURL} http://api.test/three")
        check_equal([x["kind"] for x in lines(log)[first:]], ["started", "http"], log.read_text())
        check_equal(verify(who, log, "--last", last).code, 0)
        text = log.read_text()
        write(ws / "changed", text.replace("/one", "/0ne"), who)
        check_equal(verify(who, ws / "changed").code, 1)
        write(ws / "cut", "".join(text.splitlines(True)[:1] + text.splitlines(True)[2:]), who)
        check_equal(verify(who, ws / "cut").code, 1)
        write(log, text + '{"ts":"torn', who)
        go(net, who, ws, "--audit", str(log), "--allow-host", "api.test", "--", "true")
        check_equal(lines(log)[-1]["kind"], "resumed", log.read_text())
        check_equal(verify(who, log).code, 0)


def test_not_from_inside(who):
    "the command can neither write, cut, remove nor replace its log, wherever it stands; where that cannot be held there is no run"
    with Internet() as net, workspace(who) as ws:
        net.ca.cert.chmod(0o644), net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        os.mkdir(ws / "d"), os.mkdir(ws / "root")
        if who != "root":
            run("chmod", "-R", "a+rwX", str(ws))
        script = """for f in d/log; do (echo x >>$f) 2>/dev/null && echo appended; (: >$f) 2>/dev/null && echo cut; rm -f $f 2>/dev/null && [ ! -e $f ] && echo removed
mv $f d/other 2>/dev/null && echo renamed; mv d e 2>/dev/null && echo moved; ln -f $f d/link 2>/dev/null && echo linked; echo y >d/tmp; mv -f d/tmp $f 2>/dev/null && echo replaced; done; echo end"""
        r = go(net, who, ws, "--audit", "d/log", "--allow-host", "api.test", "--", "sh", "-c", script)
        check_equal((r.code, r.out), (0, "end\n"), r)
        check_equal([x["kind"] for x in lines(ws / "d/log")], ["started"])
        check_equal([r.record["host_may_execute"], "log" in r.err], [[], False], r)
        r = go(net, who, ws, "--audit", "d/log", f"--rw={ws}:/mnt", "--allow-host", "api.test", "--", "sh", "-c", "cd /mnt; " + script)
        check_equal((r.code in (0, 120), r.out), (True, "end\n" if r.code == 0 else ""), r)
        check(all(x["kind"] == "started" for x in lines(ws / "d/log")), (ws / "d/log").read_text())
        for args, word in ((("--fd", "3", "--audit", "d/log"), "--fd"), (("--rw", "d/log", "--audit", "d/log"), "log")):
            r = run("bash", "-c", 'exec "$@" 3>>d/log', "-", HUTCH_TEST, "run", "--allow-host", "api.test", *args, "--", "true", who=who, cwd=ws, env=net.env())
            check_equal(r.code in (120, 121), True, r)
            check_in(word, r.err, r)
        r = hutch("run", "--root", "root", "--rw", f"{ws}/d:/d", "--audit", "d/log", "--allow-host", "api.test", "--", "true", binary=HUTCH_TEST, who=who, cwd=ws, env=net.env())
        check(r.code in (120, 121, 122), r)
        check_equal(verify(who, ws / "d/log").code, 0)


def test_only_a_log(who):
    "a file that holds something else is left as it is, as is one with a second name, a link, a pipe, and one that another run writes"
    with Internet() as net, workspace(who) as ws:
        net.ca.cert.chmod(0o644), net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        first = '{"ts":"2026-01-01T00:00:00.000000Z","v":1,"kind":"started","file":1,"prev":"sha256:' + "0" * 64 + '"}\n'
        for text in ("important\n", "{}\n", first[:-1], " " + first, first.replace("started", "http"), first.replace("0000000000", "1000000000")):
            write(ws / "other", text, who)
            r = hutch("run", "--allow-host", "api.test", "--audit", "other", "--", "true", binary=HUTCH_TEST, who=who, cwd=ws, env=net.env())
            check_equal(r.code, 120, (text, r))
            check_in("is not a log", r.err, r)
            check_equal((ws / "other").read_text(), text)
        write(ws / "named", first, who)
        os.link(ws / "named", ws / "again"), os.symlink("named", ws / "sym"), os.mkfifo(ws / "fifo"), os.chmod(ws / "fifo", 0o666)
        for name, word in (("named", "hard links"), ("sym", "--audit sym"), ("fifo", "regular"), ("none/x", "No such file"), (".", "--audit")):
            r = hutch("run", "--allow-host", "api.test", "--audit", name, "--", "true", binary=HUTCH_TEST, who=who, cwd=ws, env=net.env())
            check_equal(r.code, 120, (name, r))
            check_in(word, r.err, r)
        r = hutch("run", "--audit", "new", "--", "true", binary=HUTCH_TEST, who=who, cwd=ws, env=net.env())
        check_equal((r.code, (ws / "new").exists()), (120, False), r)
        inner = f"flock -x log {HUTCH_TEST} run --allow-host api.test --audit log -- true"
        write(ws / "log", "", who)
        r = run("bash", "-c", inner, who=who, cwd=ws, env=net.env())
        check_in("another run", r.err, r)
        with open(ws / "big", "w", encoding="ascii") as f:
            f.write(first)
            f.truncate((64 << 20) - 100)
        os.chmod(ws / "big", 0o666)
        r = hutch("run", "--allow-host", "api.test", "--audit", "big", "--", "true", binary=HUTCH_TEST, who=who, cwd=ws, env=net.env())
        check_in("the log is full", r.err, r)


def test_beside_others(who):
    "the record never takes the log's place; what a learnt command does to the log is not learnt; a log that was replaced is told"
    with Internet() as net, workspace(who) as ws:
        net.ca.cert.chmod(0o644), net.dir.chmod(0o755), net.ca.dir.chmod(0o755)
        check_equal(go(net, who, ws, "--audit", "log", "--allow-host", "api.test", "--", "true").code, 0)
        text = (ws / "log").read_text()
        for where in ("log", "./log", f"{ws}/log"):
            r = hutch("run", "--audit", "log", "--json", where, "--allow-host", "api.test", "--", "true", binary=HUTCH_TEST, who=who, cwd=ws, env=net.env())
            check_equal((r.code, (ws / "log").read_text()), (120, text), r)
            check_in("--audit", r.err, r)
        r = hutch("run", "--learn", "out.yaml", "--audit", "log", "--allow-host", "api.test", "--", "sh", "-c", "echo x >>log; rm -f log; echo y >log",
                  binary=HUTCH_TEST, who=who, cwd=ws, env=net.env(), timeout=300)
        check_equal((r.code, "log" in (ws / "out.yaml").read_text().split("wall_time")[1]), (0, False), r)
        check_equal(verify(who, ws / "log").code, 0)
        os.mkdir(ws / "a[b]"), os.chmod(ws / "a[b]", 0o777)
        r = go(net, who, ws, "--audit", "a[b]/log", "--allow-host", "api.test", "--", "sh", "-c", "echo x >>'a[b]/log'; true")
        check_equal((r.code, [x["kind"] for x in lines(ws / "a[b]/log")]), (0, ["started"]), r)
        shell = (f'{HUTCH_TEST} run --json record --audit log --allow-host api.test -- sh -c "echo ready; while [ ! -e done ]; do sleep 0.1; done"'
                 " | (read x; echo other >new; mv -f new log; : >done; cat)")
        r = run("bash", "-c", shell, who=who, cwd=ws, env=net.env())
        check_equal(json.loads((ws / "record").read_text())["host_may_execute"], [str(ws / "log")], r)
