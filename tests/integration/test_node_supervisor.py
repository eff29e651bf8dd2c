"""The processes of a node: what each may do, and that none of them is missed for long when it dies."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from daemon import Daemon
from hutch_test import PATIENCE, TOP, check, check_equal, check_in, eventually, hutch, identity, is_root, skip


def ask(d, method, path, body=None, key=None, headers=None, timeout=70):
    """(status, decoded body, headers)"""
    c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=timeout)
    h = {"X-API-KEY": key or d.key, **(headers or {})}
    if body is not None:
        h["content-type"] = "application/json"
    c.request(method, path, None if body is None else json.dumps(body), h)
    r = c.getresponse()
    text = r.read()
    c.close()
    return r.status, json.loads(text) if text[:1] in (b"{", b"[") else text, r.headers


def patient(d, *args, **more):
    """As ask(); while processes are being replaced connections break, and a 503 says that it may be tried again."""
    stop = time.monotonic() + PATIENCE
    while True:
        try:
            answer = ask(d, *args, **more)
            if answer[0] not in (502, 503) or time.monotonic() > stop:
                return answer
        except (OSError, http.client.HTTPException):
            if time.monotonic() > stop:
                raise
        time.sleep(0.1)


def create(d, **more):
    status, body, _ = patient(d, "POST", "/v2/sandboxes", {"templateID": "host", **more})
    check_equal(status, 201, body)
    return body["sandboxID"]


def ids(d):
    status, body, _ = patient(d, "GET", "/v2/sandboxes")
    check_equal(status, 200, body)
    return {s["sandboxID"] for s in body}


def kept(d, box):
    """What the sandbox wrote is there; who asks while processes are being replaced may have to ask again."""
    eventually(lambda: "kept" in d.cli("exec", box, "--", "cat", "/tmp/f", check=False).stdout, 20, "its file")


def needs_root():
    if not is_root():
        skip("needs root")


def status_of(pid):
    return dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)


def inits(d):
    """Pids of the inits that this daemon's keeper made since it started."""
    keeper = str(d.children("keeper")[0])
    return {int(p) for p in subprocess.run(["pgrep", "-P", keeper, "-x", "hutch-init"], text=True, capture_output=True).stdout.split()}


def lives(pid):
    try:
        return status_of(pid)["State"][0] != "Z"
    except (OSError, KeyError):
        return False


def test_front_holds_nothing():
    "front is an ordinary process: other user, no capability, no_new_privs, a filter; its directories are closed to others"
    needs_root()
    with Daemon() as d:
        s = status_of(d.children("front")[0])
        check(s["Uid"].split()[0] != "0" and len(set(s["Uid"].split())) == 1, s["Uid"])
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            check_equal(int(s[name], 16), 0, name)
        check_equal(s["NoNewPrivs"].strip(), "1")
        check_equal(s["Seccomp"].strip(), "2")
        check_equal(s["Groups"].strip(), "")
        for pid in [d.proc.pid, *d.children("keeper")]:
            check_equal(status_of(pid)["NoNewPrivs"].strip(), "0", "sudo must work inside sandboxes")
        check_equal(oct(d.state.stat().st_mode & 0o7777), "0o700")
        check_equal(oct(d.run.stat().st_mode & 0o7777), "0o710")
        check_equal(oct((d.state / "admin.key").stat().st_mode & 0o7777), "0o600")
        check_equal(oct((d.state / "front/store.db").stat().st_mode & 0o7777), "0o600")
        check_equal(oct((d.run / "keeper.sock").stat().st_mode & 0o7777), "0o660")
        # Nobody but front's group reaches the socket.
        code = f"import socket; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect('{d.run}/keeper.sock')"
        d.dir.chmod(0o755)
        r = subprocess.run(["/usr/bin/python3", "-c", code], user=65534, group=65534, extra_groups=[], capture_output=True, text=True)
        check_in("PermissionError", r.stderr)


def test_stock_holds_what_it_needs():
    "stock may do with files and mounts what it must, and nothing with the network, the clock or the kernel"
    needs_root()
    with Daemon() as d:
        s = status_of(d.children("layers")[0])
        chown, kill, setpcap, net_bind, net_admin, net_raw, module, boot, time_, admin = 0, 5, 8, 10, 12, 13, 16, 22, 25, 21
        caps = int(s["CapEff"], 16)
        for bit in (chown, kill, setpcap, admin):
            check(caps >> bit & 1, bit)
        for bit in (net_bind, net_admin, net_raw, module, boot, time_):
            check(not caps >> bit & 1, bit)
        check_equal(int(s["CapBnd"], 16), caps)
        check_equal(int(s["CapInh"], 16) | int(s["CapAmb"], 16), 0)
        check_equal(s["NoNewPrivs"].strip(), "1")
        check_equal(oct((d.run / "stock.sock").stat().st_mode & 0o7777), "0o660")
        check_equal(oct((d.state / "stock").stat().st_mode & 0o7777), "0o700")
        pid = d.children("layers")[0]
        check(os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"))
        d.stop()
        check(not (d.run / "stock.sock").exists())


def test_deaths():
    "kill -9 of front, keeper, stock and supervisor: the sandbox lives on with its files, and new ones can be made"
    with Daemon() as d:
        box = create(d)
        d.cli("exec", box, "--", "sh", "-c", "echo kept > /tmp/f")
        for victim in ("front", "keeper", "layers", "front", "keeper", "layers"):
            before = d.children(victim)
            d.kill9(victim)
            eventually(lambda: d.children(victim) not in ([], before), 10, f"{victim} is started again")
            eventually(lambda: box in ids(d), 10, "the sandbox is there")
            kept(d, box)
            other = create(d)
            check_equal(patient(d, "DELETE", f"/sandboxes/{other}")[0], 204)
        children = d.children("front") + d.children("keeper") + d.children("layers")
        d.proc.kill()
        d.proc.wait()
        eventually(lambda: not any(map(lives, children)), 10,
                   "the others go with supervisor")
        d.start()
        check_equal(ids(d), {box})
        kept(d, box)


def kill_first_egress(d):
    """Kills the first egress that this daemon starts as soon as it is there."""
    stop = time.monotonic() + PATIENCE
    while time.monotonic() < stop:
        with contextlib.suppress(OSError, AttributeError):  # there is no daemon yet, or a child has just ended
            for pid in pathlib.Path(f"/proc/{d.proc.pid}/task/{d.proc.pid}/children").read_text().split():
                if b"egress" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    os.kill(int(pid), signal.SIGKILL)
                    return
        time.sleep(0.001)


def test_egress_killed_at_once():
    "egress that is killed while it starts for the first time is started again, and sandboxes have their network"
    for _ in range(10):
        d = Daemon()
        killer = threading.Thread(target=kill_first_egress, args=(d,))
        killer.start()
        with d:
            killer.join()
            log = d.log_path.read_text()
            said = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
            ends = [i for i, m in enumerate(said) if m["message"] == "child ended" and m.get("child") == "egress"]
            fronts = [i for i, m in enumerate(said) if m["message"] == "started" and m.get("child") == "front"]
            check(fronts, log)
            if not ends or ends[0] > fronts[0]:
                continue  # it was ready before it was killed
            check_equal(said[ends[0]]["signal"], signal.SIGKILL)
            check("sandboxes have no network" not in log, log)
            check_equal(len(d.children("egress")), 1)
            check("--no-egress" not in pathlib.Path(f"/proc/{d.children('front')[0]}/cmdline").read_text())
            status, body, _ = patient(d, "POST", "/v2/sandboxes", {"templateID": "host", "allow_internet_access": True})
            check_equal(status, 201, body)
            return
    check(False, "egress was never killed in time")


def test_stop_says_nothing_odd():
    "a node that is told to stop says so, and no process of it complains or says an empty error"
    with Daemon() as d:
        create(d)
        before = len(d.log_path.read_text())
        d.stop(sandboxes=False)
        check_equal(d.proc.returncode, 0)
        said = d.log_path.read_text()[before:]
        check_in("told to stop", said)
        for line in said.splitlines():
            check(line.startswith('{"time"') and json.loads(line)["level"] == "info", line)
        d.start()


def test_stop_while_front_waits():
    "a front that is told to stop while it waits for egress ends with 0, without having served"
    with Daemon() as d:
        egress = d.children("egress")[0]
        os.kill(egress, signal.SIGSTOP)
        try:
            before = len(d.log_path.read_text())
            old = d.children("front")[0]
            d.kill9("front")
            eventually(lambda: d.children("front") and d.children("front")[0] != old, what="another front")
            front = d.children("front")[0]
            eventually(lambda: int(status_of(front)["SigBlk"], 16) >> (signal.SIGTERM - 1) & 1, what="its loop takes signals")
            os.kill(front, signal.SIGTERM)
            eventually(lambda: not lives(front), what="it ends")
        finally:
            os.kill(egress, signal.SIGCONT)
        said = [json.loads(line) for line in d.log_path.read_text()[before:].splitlines() if line.startswith("{")]
        ends = [m for m in said if m["message"] == "child ended" and m.get("child") == "front"]
        check_equal(ends[-1].get("code"), 0, ends)
        eventually(d.alive, what="the next one serves")


def test_stop_leaves_sandboxes():
    "SIGTERM stops the node at once and no sandbox; the next start finds them; requests under way are finished"
    with Daemon() as d:
        box = create(d)
        started = time.monotonic()
        d.stop(sandboxes=False)
        check(time.monotonic() - started < 60, "took too long")
        check_equal(d.proc.returncode, 0)
        d.start()
        check_equal(ids(d), {box})
        check_equal(ask(d, "DELETE", f"/sandboxes/{box}")[0], 204)
        check_equal(ids(d), set())


def test_crash_loop_is_slowed():
    "a front that keeps dying is started again ever more slowly, and at once again after a quiet time"
    with Daemon() as d:
        pids = set()
        stop = time.monotonic() + 4
        while time.monotonic() < stop or (len(pids) < 2 and time.monotonic() < stop + PATIENCE):
            pids.update(d.children("front"))
            d.kill9("front")
            time.sleep(0.02)
        check(2 <= len(pids) <= 12, f"{len(pids)} starts in 4 s")
        eventually(d.alive, 15, "it serves again")


def test_closed_directory():
    "a node whose program lies below a directory that is closed to other users, as /root is"
    if not is_root():
        skip("needs root, whose front is another user")
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o700)
        for program in ("hutch", "hutch-client", "hutch-node"):
            shutil.copy2(TOP / "build" / program, top)
        with Daemon(hutch=f"{top}/hutch", home=top) as d:
            box = d.cli("create", "host").stdout.strip()
            check_equal(d.cli("exec", box, "--", "echo", "there").stdout, "there\n")


def test_two_nodes():
    "a second serve on the same directories or port is refused with the reason, and the first one is not disturbed"
    with Daemon() as d:
        r = hutch("serve", "--state", str(d.state), "--run", str(d.dir / "run2"), "--listen", "127.0.0.1:1", "--no-base")
        check_equal(r.code, 123, r)
        check_in(f"pid {d.proc.pid} already uses {d.state}", r.err)
        r = hutch("serve", "--state", str(d.dir / "s2"), "--run", str(d.run), "--no-base")
        check_equal(r.code, 123, r)
        check_in(f"already uses {d.run}", r.err)
        r = hutch("serve", "--state", str(d.dir / "s3"), "--run", str(d.dir / "r3"), "--listen", f"127.0.0.1:{d.port}", "--no-base")
        check_equal(r.code, 123, r)
        check_in("--listen ADDR:PORT takes another port", r.err)
        create(d)


def test_store_and_world_disagree():
    "rows without a sandbox are removed and sandboxes without a row are killed when front and keeper meet"
    needs_root()
    with Daemon() as d:
        dies = create(d)
        pid = inits(d).pop()
        stray = create(d)
        stray_pid = (inits(d) - {pid}).pop()
        d.stop(sandboxes=False)
        os.kill(pid, signal.SIGKILL)
        import sqlite3
        with sqlite3.connect(d.state / "front/store.db") as db:
            db.execute("DELETE FROM boxes WHERE id=?", (stray,))
        db.close()
        for name in ("store.db-wal", "store.db-shm"):  # made by us as root; front could not open them
            (d.state / "front" / name).unlink(missing_ok=True)
        d.start()
        eventually(lambda: ids(d) == set(), 10, "the row is gone")
        eventually(lambda: not lives(stray_pid), 10, "the stray is gone")
        eventually(lambda: b"died" in ask(d, "GET", f"/v1/sandboxes/{dies}/events")[1], 10, "its death is an event")
        check_equal(ask(d, "GET", f"/sandboxes/{dies}")[0], 404)


def test_ttl_without_front():
    "a sandbox ends at its time although front is stopped; front then says so"
    needs_root()
    with Daemon() as d:
        box = create(d, timeout=600)
        pid = inits(d).pop()
        front = d.children("front")[0]
        check_equal(ask(d, "POST", f"/sandboxes/{box}/timeout", {"timeout": 2})[0], 204)
        os.kill(front, signal.SIGSTOP)
        try:
            eventually(lambda: not lives(pid), 8, "keeper ends it")
        finally:
            os.kill(front, signal.SIGCONT)
        eventually(lambda: box not in ids(d), 5, "front knows")


def test_idempotent_create():
    "forty concurrent creates with one idempotency key make one sandbox, also across kill -9 of front"
    with Daemon() as d:
        def one(_):
            return patient(d, "POST", "/v2/sandboxes", {"templateID": "host"}, headers={"Idempotency-Key": "k1"})
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            got = list(pool.map(one, range(40)))
        check_equal({g[0] for g in got}, {201})
        check_equal(len({g[1]["sandboxID"] for g in got}), 1)
        d.kill9("front")
        eventually(d.alive, 10, "front is back")
        check_equal(one(0)[1]["sandboxID"], got[0][1]["sandboxID"])
        status, body, _ = ask(d, "POST", "/v2/sandboxes", {"templateID": "host", "timeout": 7}, headers={"Idempotency-Key": "k1"})
        check_equal(status, 422, body)
        check_equal(len(ids(d)), 1)


def test_capacity():
    "a full node answers 503 with a machine-readable reason and Retry-After, and takes new ones when there is room"
    with Daemon(config="sandboxes: {max: 2}") as d:
        first = create(d)
        create(d)
        status, body, headers = ask(d, "POST", "/v2/sandboxes", {"templateID": "host"})
        check_equal(status, 503, body)
        check_equal(body["error_code"], "sandbox_capacity_unavailable")
        check(int(headers["Retry-After"]) > 0)
        ask(d, "DELETE", f"/sandboxes/{first}")
        create(d)


def test_disk_full():
    "a full disk is a clean error for the create that meets it; with room again everything works"
    needs_root()
    with Daemon() as d:
        create(d)
        d.stop(sandboxes=False)
        front = d.state / "front"
        # The store moves to a small file system.
        backup = {p.name: p.read_bytes() for p in front.iterdir() if p.name != "store.reserve"}  # which is larger than that
        owner = front.stat()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size=400k,mode=700,uid={owner.st_uid},gid={owner.st_gid}", "hutch-test", front],
                       check=True)
        try:
            for name, data in backup.items():
                (front / name).write_bytes(data)
                os.chown(front / name, owner.st_uid, owner.st_gid)
            d.start()
            filler = front / "filler"
            fd = os.open(filler, os.O_WRONLY | os.O_CREAT)
            try:
                while os.write(fd, b"x" * 4096):
                    pass
            except OSError:
                pass
            os.close(fd)
            answers = [ask(d, "POST", "/v2/sandboxes", {"templateID": "host", "metadata": {"k": "v" * 2000}}) for _ in range(12)]
            check_equal({a[0] for a in answers} - {201, 507}, set())
            refused = [a for a in answers if a[0] == 507]
            check(refused, "nothing was refused")
            check_in("record", refused[0][1]["message"])
            good = [a for a in answers if a[0] == 201]
            check_equal(len(ids(d)), 1 + len(good))
            filler.unlink()
            create(d)
            d.stop()
        finally:
            subprocess.run(["umount", "-l", front], check=True)


def test_damaged_store():
    "a store that is damaged is named with the remedy, and serve ends instead of trying for ever"
    with Daemon() as d:
        d.stop()
        for name in ("store.db-wal", "store.db-shm"):
            (d.state / "front" / name).unlink(missing_ok=True)
        db = d.state / "front/store.db"
        db.write_bytes(b"not a database, but long enough to look at" * 200)
        try:
            d.start()
            check(False, "it started")
        except RuntimeError as e:
            check_in("move the file away", str(e))
        check_equal(d.proc.returncode, 123)
        db.unlink()
        d.start()


def test_empty_store():
    "an empty store.db beside a node's other state is an error with two remedies; in a new state directory it is a new store"
    with Daemon() as d:
        d.stop()
        db = d.state / "front/store.db"
        whole, owner = db.read_bytes(), db.stat()
        aside = [db.parent / name for name in ("store.mark", "id.key")]
        for keep in aside:
            os.truncate(db, 0)
            for path in aside:
                if path != keep:
                    path.rename(d.dir / path.name)
            try:
                d.start()
                check(False, "it started")
            except RuntimeError as e:
                check_in(f"front/store.db is empty, although {keep.name} beside it shows that it was in use", str(e))
                check_in("put a copy of it back, or remove the empty file", str(e))
            check_equal((d.proc.returncode, db.stat().st_size), (123, 0))
            for path in aside:
                if path != keep:
                    (d.dir / path.name).rename(path)
        db.write_bytes(whole)
        d.start()
        d.stop()
        db.unlink()  # the other remedy
        d.start()
        d.stop()
        shutil.rmtree(d.state)
        db.parent.mkdir(parents=True)
        db.touch()  # killed in the first moment of its life
        for path in (db, db.parent):
            os.chown(path, owner.st_uid, owner.st_gid)
        d.start()


def test_systemd_protocol():
    "READY=1 comes when requests are served, STOPPING=1 when it stops"
    with Daemon() as d:
        d.stop()
        path = d.dir / "notify"
        said = []
        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        s.bind(str(path))
        s.settimeout(200)
        reader = threading.Thread(target=lambda: [said.append(s.recv(100)) for _ in range(2)])
        reader.start()
        os.environ["NOTIFY_SOCKET"] = str(path)
        try:
            d.start()
            eventually(lambda: said == [b"READY=1"], 5, "READY=1")
            d.stop()
            reader.join(200)
        finally:
            del os.environ["NOTIFY_SOCKET"]
        check_equal(said, [b"READY=1", b"STOPPING=1"])


def test_config_commands():
    "config check names line and remedy; config show reads back"
    with Daemon() as d:
        bad = d.dir / "bad.yaml"
        bad.write_text("listen: 127.0.0.1:1\nsandboxes:\n  memroy: 1GiB\n")
        r = hutch("config", "check", str(bad))
        check_equal(r.code, 120, r)
        check_in('bad.yaml:3: unknown key "memroy" in sandboxes; did you mean "memory"?', r.err)
        r = hutch("serve", "--config", str(bad))
        check_equal(r.code, 120, r)
        r = hutch("serve", "--listen", "nonsense")
        check_in("--listen: listen must be ADDR:PORT", r.err)
        shown = hutch("config", "show", str(d.config))
        check_equal(shown.code, 0, shown)
        good = d.dir / "good.yaml"
        good.write_text(shown.out)
        check_equal(hutch("config", "check", str(good)).code, 0)


def test_ordinary_user():
    "a node of an ordinary user: sandboxes survive its processes, what the host cannot enforce for a user is named"
    needs_root()
    _, entry = identity("user")

    def become():
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    d = Daemon(preexec=become)
    for path in (d.dir, d.config):
        os.chown(path, entry.pw_uid, entry.pw_gid)
    with d:
        check_equal(status_of(d.children("front")[0])["Uid"].split()[0], str(entry.pw_uid))
        check_equal(int(status_of(d.children("front")[0])["CapEff"], 16), 0)
        check_equal(oct(d.state.stat().st_mode & 0o7777), "0o700")
        box = create(d)
        for victim in ("front", "keeper"):
            d.kill9(victim)
            eventually(lambda: d.alive() and box in ids(d), 10, "the sandbox is there")
            eventually(lambda: "hello" in d.cli("exec", box, "--", "echo", "hello", check=False).stdout, 20, "it runs commands")
        children = d.children("front") + d.children("keeper") + d.children("layers")
        d.proc.kill()
        d.proc.wait()
        eventually(lambda: not any(map(lives, children)), 10, "the others go with supervisor")
        d.start()
        check_equal(ids(d), {box})
