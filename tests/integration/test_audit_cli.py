"""`hutch audit`: the log of what sandboxes sent out, read from its files."""
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

from hutch_test import HUTCH, check, check_equal, check_in, check_one_line, clean_env, hutch, identity, workspace

NOTHING = "sha256:" + "0" * 64


def digest(line):
    return "sha256:" + hashlib.sha256(line.encode()).hexdigest()


class Log:
    """Writes a log the way docs/audit.md describes it, without any of our code."""

    def __init__(self, folder):
        self.folder, self.prev, self.number, self.seq = pathlib.Path(folder), NOTHING, 0, 0

    def path(self, number=None):
        return self.folder / f"audit-{number or self.number:08}.ndjson"

    def add(self, **fields):
        line = json.dumps({"ts": "2026-01-02T03:04:05.678901Z", "v": 1, **fields, "prev": self.prev}, separators=(",", ":"))
        with open(self.path(), "a", encoding="utf-8") as file:
            file.write(line + "\n")
        self.prev = digest(line)
        return self.prev

    def start(self):
        self.number += 1
        return self.add(kind="started", file=self.number)

    def request(self, sandbox="box1", tenant="acme", host="example.org", path="/x", verdict="allow", **more):
        self.seq += 1
        fields = {"kind": "http", "sandbox": sandbox, "tenant": tenant, "epoch": 1, "method": "GET", "host": host, "port": 443,
                  "path": path, "status": 200 if verdict == "allow" else 403, "verdict": verdict}
        if verdict == "deny":
            fields.update(kind="deny", reason="path_not_allowed", rule="forge")
        else:
            fields.update(bytes_up=100, bytes_down=2048)
        return self.add(**{**fields, **more, "seq": self.seq})


def sample(folder):
    log = Log(folder)
    for _ in range(3):
        log.start()
        for i in range(4):
            log.request(path=f"/item/{i}")
    return log


def audit(*args, folder, **kwargs):
    return hutch("audit", *args, "--dir", folder, **kwargs)


def lines(folder, number):
    return (pathlib.Path(folder) / f"audit-{number:08}.ndjson").read_text().splitlines(keepends=True)


def test_whole_log(who):
    "a log that was left alone is whole, and verify prints the last hash"
    with workspace(who) as ws:
        log = sample(ws)
        r = audit("verify", folder=ws, who=who)
        check_equal(r.code, 0, r)
        check_in("whole: 15 lines in 3 files", r.out, r)
        check_in("last: " + log.prev, r.out, r)


def test_default_directory(who):
    "without --dir the log is STATE/audit"
    with workspace(who) as ws:
        (ws / "audit").mkdir()
        sample(ws / "audit")
        r = hutch("audit", "verify", who=who, env={"HUTCH_STATE": str(ws)})
        check_equal(r.code, 0, r)
        check_in("whole: 15 lines", r.out, r)


def test_tampering_is_found(who):
    "a changed byte, a removed, inserted or moved line and a missing file end with 1 and name the place"
    def change(folder):
        text = (folder / "audit-00000002.ndjson").read_text()
        (folder / "audit-00000002.ndjson").write_text(text.replace("/item/1", "/item/9"))

    def edit(fn):
        def run_it(folder):
            all_lines = lines(folder, 2)
            fn(all_lines)
            (folder / "audit-00000002.ndjson").write_text("".join(all_lines))
        return run_it

    def swap(v):
        v[1], v[2] = v[2], v[1]

    def missing(folder):
        os.unlink(folder / "audit-00000002.ndjson")

    cases = [(change, "audit-00000002.ndjson, line 4"), (edit(lambda v: v.pop(2)), "audit-00000002.ndjson, line 3"),
             (edit(lambda v: v.insert(2, v[1])), "audit-00000002.ndjson, line 3"), (edit(swap), "audit-00000002.ndjson, line 2"),
             (edit(lambda v: v.pop()), "audit-00000003.ndjson, line 1"),
             (edit(lambda v: v.append("not a line\n")), "audit-00000002.ndjson, line 6"),
             (missing, "audit-00000002.ndjson: this file is missing")]
    for tamper, place in cases:
        with workspace(who) as ws:
            sample(ws)
            tamper(ws)
            r = audit("verify", folder=ws, who=who)
            check_equal((r.code, r.err), (1, ""), r)
            check_in("broken: ", r.out, r)
            check_in(place, r.out, r)


def test_cut_end_needs_a_known_hash(who):
    "lines cut off the end are seen by who kept the last hash, and only then"
    with workspace(who) as ws:
        log = sample(ws)
        known = log.prev
        log.request()
        r = audit("verify", "--last", known, folder=ws, who=who)
        check_equal(r.code, 0, r)
        check_in("the line of --last is there", r.out, r)
        check_equal(audit("verify", "--last", known.split(":")[1], folder=ws, who=who).code, 0)
        log.path().write_text("".join(lines(ws, 3)[:-2]))
        check_equal(audit("verify", folder=ws, who=who).code, 0)
        r = audit("verify", "--last", known, folder=ws, who=who)
        check_equal(r.code, 1, r)
        check_in("no line has the hash " + known, r.out, r)


def test_unfinished_last_line(who):
    "a line that is being written is not there yet"
    with workspace(who) as ws:
        log = sample(ws)
        with open(log.path(), "a", encoding="utf-8") as file:
            file.write('{"ts":"2026-')
        r = audit("verify", folder=ws, who=who)
        check_equal(r.code, 0, r)
        check_in("whole: 15 lines", r.out, r)


def test_old_files_were_removed(who):
    "a log whose oldest files were removed to make room is whole, and verify says where it begins"
    with workspace(who) as ws:
        sample(ws)
        os.unlink(ws / "audit-00000001.ndjson")
        r = audit("verify", folder=ws, who=who)
        check_equal(r.code, 0, r)
        check_in("begins with file 2", r.out, r)


def test_tail(who):
    "tail prints the last lines, over the ends of files, for people or as they are"
    with workspace(who) as ws:
        sample(ws)
        r = audit("tail", "-n", "6", folder=ws, who=who)
        check_equal((r.code, len(r.out.splitlines())), (0, 6), r)
        check(r.out.splitlines()[0].startswith("2026-01-02T03:04:05  box1 "), r)
        check_in("GET example.org:443/item/3  200", r.out, r)
        check_in("log started", r.out, r)
        r = audit("tail", "-n", "2", "--json", folder=ws, who=who)
        check_equal(r.out, "".join(lines(ws, 3)[-2:]), r)
        check_equal(len(audit("tail", folder=ws, who=who).out.splitlines()), 15)


def test_follow(who):
    "tail -f prints lines as they come, also when the log goes on in a new file"
    ids, entry = identity(who)
    with workspace(who) as ws:
        log = Log(ws)
        log.start()
        # A reader that stands behind the end of what is there.
        proc = subprocess.Popen([HUTCH, "audit", "tail", "-f", "-n", "1", "--json", "--dir", ws], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=clean_env(entry), **ids)
        try:
            check_in('"kind":"started","file":1', proc.stdout.readline())
            log.request(path="/first")
            check_in("/first", proc.stdout.readline())
            log.start()
            check_in('"file":2', proc.stdout.readline())
            log.request(path="/second")
            check_in("/second", proc.stdout.readline())
            check(proc.poll() is None, "it ended")
        finally:
            proc.send_signal(signal.SIGTERM)
            proc.communicate(timeout=60)


def test_query(who):
    "query prints the lines that fit everything that was asked for"
    with workspace(who) as ws:
        log = Log(ws)
        log.start()
        log.request(sandbox="box1", host="a.example.org", path="/one")
        log.request(sandbox="box2", host="b.example.org", path="/two", verdict="deny")
        log.request(sandbox="box2", host="example.org", path="/three", tenant="other", ts="2026-02-01T00:00:00.000000Z")
        log.request(sandbox="box1", host="badexample.org", path="/deny", ts="2026-03-01T00:00:00.000000Z")

        def paths(*args):
            r = audit("query", *args, "--json", folder=ws, who=who)
            check_equal(r.code, 0, r)
            return [json.loads(line).get("path") for line in r.out.splitlines()]

        check_equal(paths("--sandbox", "box1"), ["/one", "/deny"])
        check_equal(paths("--tenant", "other"), ["/three"])
        check_equal(paths("--host", "example.org"), ["/three"])
        check_equal(paths("--host", ".example.org"), ["/one", "/two", "/three"])
        check_equal(paths("--verdict", "deny"), ["/two"])
        check_equal(paths("--verdict", "allow", "--sandbox", "box2"), ["/three"])
        check_equal(paths("--since", "2026-02-01"), ["/three", "/deny"])
        check_equal(paths("--since", "2026-01-15T00:00:00Z", "--until", "2026-02-01"), ["/three"])
        check_equal(paths("--host", "nobody.example.org"), [])
        r = audit("query", "--verdict", "deny", folder=ws, who=who)
        check_in("box2", r.out, r)
        check_in("GET b.example.org:443/two  403  path_not_allowed  rule forge", r.out, r)


def test_since_a_while_ago(who):
    "a time may be how long ago"
    with workspace(who) as ws:
        log = Log(ws)
        log.start()
        log.request(path="/old")
        log.request(path="/new", ts=time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime()))
        r = audit("query", "--since", "1h", "--json", folder=ws, who=who)
        check_equal([json.loads(line)["path"] for line in r.out.splitlines()], ["/new"], r)


def test_hostile_texts_are_harmless(who):
    "what a sandbox put into a path cannot move the cursor of who reads the table"
    with workspace(who) as ws:
        log = Log(ws)
        log.start()
        log.request(path="/\u001b[2J\u0007\u009b31m", host="\u202eexample.org")
        r = audit("tail", folder=ws, who=who)
        check_equal(r.code, 0, r)
        check("\x1b" not in r.out and "\x07" not in r.out and "\x9b" not in r.out, r)


def test_wrong_command_lines(who):
    "a wrong command line ends with 120 and says what would be right"
    with workspace(who) as ws:
        for args, part in [(("query", "--since", "yesterday"), "2026-01-31"), (("query", "--verdict", "no"), "would_deny"),
                           (("verify", "--last", "abc"), "64 digits"), (("tail", "-n", "x"), "number of lines"),
                           (("tail", "--sandbox", "x"), "--sandbox"), (("verify", "word"), "word")]:
            r = audit(*args, folder=ws, who=who)
            check_equal((r.code, r.out), (120, ""), r)
            check_one_line(r.err, r)
            check_in(part, r.err, r)
        check_equal(hutch("audit", who=who).code, 120)
        check_equal(hutch("audit", "--help", who=who).code, 0)
        check_in("usage: hutch audit tail", hutch("audit", "tail", "--help", who=who).out)


def test_no_log(who):
    "a directory that is not there is named, with what to do; an empty one is a whole log"
    with workspace(who) as ws:
        r = audit("tail", folder=ws / "none", who=who)
        check_equal(r.code, 122, r)
        check_one_line(r.err, r)
        check_in("--dir", r.err, r)
        r = audit("verify", folder=ws, who=who)
        check_equal(r.code, 0, r)
        check_in("last: " + NOTHING, r.out, r)


def test_pipe_that_ends():
    "a reader that has seen enough ends the command quietly"
    with workspace() as ws:
        log = Log(ws)
        log.start()
        for _ in range(2000):
            log.request()
        head = shutil.which("head")
        r = subprocess.run(f"{HUTCH} audit query --dir {ws} | {head} -n 1", shell=True, capture_output=True, text=True, check=False,
                           timeout=120)
        check_equal(len(r.stdout.splitlines()), 1, r)
        check_equal(r.stderr, "", r)
