"""What users of Daytona's Python SDK and of langchain-daytona do, against the node that the environment names. Prints TAP."""
import asyncio
import hashlib
import os
import pathlib
import re
import threading
import time

import daytona_api_client
import daytona_toolbox_api_client
import httpx
import httpx_ws
import socketio
from daytona import (CreateSandboxFromImageParams, CreateSandboxFromSnapshotParams, Daytona, DaytonaConfig, DaytonaError, FileUpload, ListSandboxesQuery, SessionExecuteRequest, VolumeMount)
from daytona.common.pty import PtySize
from langchain_daytona import DaytonaSandbox
from tap import finish, test, until

TEMPLATE = os.environ["TEMPLATE"]
HEAD = {"Authorization": "Bearer " + os.environ["DAYTONA_API_KEY"]}
ROOT = os.environ["DAYTONA_API_URL"].removesuffix("/daytona")


def call(method, path, key=None, headers=None, timeout=60, **more):
    """One request without the SDK."""
    head = {**HEAD, **(headers or {}), **({"Authorization": "Bearer " + key} if key else {})}
    return httpx.request(method, os.environ["DAYTONA_API_URL"] + path, headers=head, timeout=timeout, **more)


def raises(fn, *words):
    try:
        fn()
    except DaytonaError as e:
        assert all(w in str(e).lower() for w in words), e
        return e
    raise AssertionError("no DaytonaError")


def commands(s):
    r = s.process.exec("echo out; echo err >&2; pwd; echo $A", env={"A": "ü b"})
    assert (r.exit_code, r.result) == (0, "out\nerr\n/home/user\nü b\n"), r
    assert s.process.exec("exit 3").exit_code == 3
    assert s.process.exec("pwd", cwd="/tmp").result == "/tmp\n"
    assert s.process.exec("printf 'a\\0b'").result == "a\0b"
    raises(lambda: s.process.exec("sleep 30", timeout=1), "timeout")
    assert s.process.code_run("import sys; print(6 * 7); print('e', file=sys.stderr)").result == "42\ne\n"
    assert s.process.code_run("raise SystemExit(4)").exit_code == 4


def limits(s):
    """What a command may do ends with its time, its client and its size."""
    began = time.monotonic()
    raises(lambda: s.process.exec("echo $$ >/tmp/late; sleep 4321 & sleep 4321", timeout=1), "timeout")
    assert time.monotonic() - began < 5
    until(lambda: s.process.exec("pgrep -f '[s]leep 4321'").exit_code == 1, "the end of all that the late command started")
    try:
        call("POST", f"/toolbox/{s.id}/process/execute", json={"command": "sleep 5432 & sleep 5432"}, timeout=1.5)
        raise AssertionError("it answered")
    except httpx.ReadTimeout:
        pass
    until(lambda: s.process.exec("pgrep -f '[s]leep 5432'").exit_code == 1, "the end of a command whose client left")
    many = s.process.exec("head -c 3000000 /dev/zero").result
    assert many.startswith("\0" * (1 << 20)) and many[1 << 20:] == "\n[hutch: 1951424 more bytes of output were dropped]\n", many[-80:]
    assert s.process.exec(": " + "x" * 131069).exit_code == 0
    for path, body in (("execute", {"command": "x" * 131072}), ("code-run", {"code": "x" * 131072}), ("execute", {"command": "true", "envs": {"A": "x" * 131072}})):
        r = call("POST", f"/toolbox/{s.id}/process/{path}", json=body)
        assert r.status_code == 400 and "1310" in r.json()["message"], r.text


def paths(s):
    """Relative paths and ~ begin at home; names that look like options, and what cannot be read, harm nothing."""
    s.fs.create_folder("~/rel/-dir", "755")
    s.fs.upload_file(b"one needle\n", "rel/-dir/-v")
    s.process.exec("mkdir -m 0 /home/user/rel/closed; mkfifo /home/user/rel/pipe")
    for place in ("rel", "~/rel", "/home/user/rel"):
        assert [h.file.endswith("rel/-dir/-v") for h in s.fs.find_files(place, "needle")] == [True]
        assert [f.endswith("rel/-dir/-v") for f in s.fs.search_files(place, "-v").files] == [True]
    [h] = s.fs.find_files("/home/user/rel/-dir/-v", "needle")
    assert (h.file, h.line, h.content) == ("/home/user/rel/-dir/-v", 1, "one needle"), h
    s.fs.move_files("rel/-dir/-v", "-x")
    assert s.fs.download_file("/home/user/-x") == b"one needle\n"
    s.fs.set_file_permissions("-x", mode="600")
    assert s.fs.get_file_info("-x").permissions == "0600"
    s.fs.delete_file("-x")
    raises(lambda: s.fs.get_file_info("~/-x"), "not found")
    raises(lambda: s.fs.find_files("rel/none", "x"), "not found")
    s.process.exec("rmdir rel/closed")
    s.fs.delete_file("rel", recursive=True)


def downloads(s):
    """Of a file of many terabytes the client takes as much as it wants; other requests go on meanwhile."""
    s.process.exec("truncate -s 2T /tmp/huge; head -c 3000000 /dev/urandom >/tmp/some")
    base = os.environ["DAYTONA_API_URL"]
    with httpx.stream("POST", f"{base}/toolbox/{s.id}/files/bulk-download", headers=HEAD, json={"paths": ["/tmp/huge"]}) as r:
        got = 0
        for piece in r.iter_bytes():
            got += len(piece)
            if got > 8 << 20:
                began = time.monotonic()
                assert s.process.exec("echo there").result == "there\n" and time.monotonic() - began < 5
                break
    both = s.fs.download_file("/tmp/some")
    assert len(both) == 3000000 and s.process.exec("sha256sum /tmp/some").result.split()[0] == hashlib.sha256(both).hexdigest()


def credentials(s):
    """A password is neither in an argument nor changed on its way to git."""
    if s.process.exec("command -v git").exit_code:
        return
    server = """import base64, http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if 'Authorization' in self.headers: open('/tmp/basic', 'w').write(base64.b64decode(self.headers['Authorization'].split()[1]).decode())
        self.send_response(403 if 'Authorization' in self.headers else 401); self.send_header('WWW-Authenticate', 'Basic realm="r"'); self.end_headers()
http.server.HTTPServer(('127.0.0.1', 8123), H).serve_forever()"""
    s.fs.upload_file(server.encode(), "/tmp/server.py")
    s.process.create_session("server")
    s.process.execute_session_command("server", SessionExecuteRequest(command="python3 /tmp/server.py", run_async=True))
    until(lambda: s.process.exec("python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8123))'").exit_code == 0, "the server")
    secret = "p\\n$(id) `x` 'q' \"  -n"
    raises(lambda: s.git.clone("http://127.0.0.1:8123/x.git", "/tmp/never", username="u$HOME", password=secret))
    assert s.process.exec("cat /tmp/basic").result == "u$HOME:" + secret
    s.process.delete_session("server")


def readers(d, s):
    """A key that reads metadata sees no values, and starts nothing."""
    key = httpx.post(ROOT + "/v1/keys", headers=HEAD, json={"tenant": "default", "name": "reader", "scopes": ["sandboxes", "read"]}).json()["key"]
    contents = httpx.post(ROOT + "/v1/keys", headers=HEAD, json={"tenant": "default", "name": "contents", "scopes": ["sandboxes", "read", "files"]}).json()["key"]
    x = d.create(CreateSandboxFromSnapshotParams(snapshot=TEMPLATE, env_vars={"SECRET": "value"}))
    assert call("GET", f"/sandbox/{x.id}").json()["env"]["SECRET"] == "value"
    assert call("GET", f"/sandbox/{x.id}", key=key).json()["env"] == {}
    assert call("GET", f"/toolbox/{x.id}/work-dir", key=key).status_code == 403
    assert call("GET", f"/toolbox/{x.id}/work-dir", key=contents).json()["dir"] == "/home/user"
    assert call("POST", f"/sandbox/{x.id}/pause").status_code == 200
    r = call("GET", f"/toolbox/{x.id}/work-dir", key=contents)
    assert r.status_code == 409 and "only reads" in r.json()["message"], r.text
    assert call("GET", f"/sandbox/{x.id}").json()["state"] == "paused"
    x.delete()


def names(d):
    """Of many creates with one name one wins; a repeated one finds its own sandbox."""
    body = {"snapshot": TEMPLATE, "name": "daytona-once"}
    for _ in range(8):
        answers, start = [], threading.Barrier(5)

        def one():
            with httpx.Client(headers=HEAD) as client:
                client.get(ROOT + "/health")
                start.wait()
                answers.append(client.post(ROOT + "/daytona/sandbox", json=body))
        threads = [threading.Thread(target=one) for _ in range(5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert sorted(a.status_code for a in answers) == [200, 409, 409, 409, 409], [a.text for a in answers]
        assert all(a.json()["message"].startswith("the name 'daytona-once' is taken by sandbox ") and a.json()["statusCode"] == 409 for a in answers if a.status_code == 409)
        d.get("daytona-once").delete()
    sandbox = call("POST", "/sandbox", json=body).json()["id"]
    r = call("POST", "/sandbox", json={**body, "name": sandbox})
    assert r.status_code == 409 and "is the id of a sandbox" in r.json()["message"], r.text
    r = call("POST", "/sandbox", json={"snapshot": "no-such-template"})
    assert r.status_code == 404 and r.json()["statusCode"] == 404, r.text
    d.get("daytona-once").delete()
    twice = [call("POST", "/sandbox", json=body, headers={"Idempotency-Key": "once"}) for _ in range(2)]
    assert [a.status_code for a in twice] == [200, 200] and twice[0].json()["id"] == twice[1].json()["id"], [a.text for a in twice]
    d.get("daytona-once").delete()
    same = [httpx.post(ROOT + "/sandboxes", headers=HEAD, json={"templateID": TEMPLATE, "metadata": {"name": "two"}}).json()["sandboxID"] for _ in range(2)]
    r = call("DELETE", "/sandbox/two")
    assert r.status_code == 409 and "2 sandboxes" in r.json()["message"], r.text
    for one in same:
        assert call("DELETE", f"/sandbox/{one}").status_code == 200


def sessions_end(d):
    """After stop and start the pid of a session's shell may be another process; it is neither taken for the shell nor killed."""
    x = d.create(CreateSandboxFromSnapshotParams(snapshot=TEMPLATE))
    x.process.create_session("old")
    x.process.create_session("old2")
    x.stop()
    x.start()
    x.process.exec("setsid sleep 6543 >/dev/null 2>&1 & echo $! >/tmp/.daytona/s-old/pid")
    raises(lambda: x.process.execute_session_command("old", SessionExecuteRequest(command="true")), "ended")
    x.process.delete_session("old")
    assert x.process.exec("pgrep -f '[s]leep 6543'").exit_code == 0, "a process that is not the session's was killed"
    x.delete()


def sessions(s):
    s.process.create_session("work")
    raises(lambda: s.process.create_session("work"), "exists")
    r = s.process.execute_session_command("work", SessionExecuteRequest(command="cd /tmp; export A=1; echo out; echo err >&2"))
    assert (r.exit_code, r.stdout, r.stderr) == (0, "out\n", "err\n"), r
    r = s.process.execute_session_command("work", SessionExecuteRequest(command="echo $PWD $A; false"))
    assert (r.exit_code, r.stdout) == (1, "/tmp 1\n"), r
    a = s.process.execute_session_command("work", SessionExecuteRequest(command="read x; echo got $x", run_async=True))
    assert s.process.get_session_command("work", a.cmd_id).exit_code is None
    s.process.send_session_command_input("work", a.cmd_id, "line\n")
    until(lambda: s.process.get_session_command("work", a.cmd_id).exit_code == 0, "the end of a command in the background")
    logs = s.process.get_session_command_logs("work", a.cmd_id)
    assert (logs.stdout, logs.stderr) == ("got line\n", ""), logs
    assert [c.command for c in s.process.get_session("work").commands if c.id == a.cmd_id] == ["read x; echo got $x"]
    assert "work" in [x.session_id for x in s.process.list_sessions()]
    bad = s.process.execute_session_command("work", SessionExecuteRequest(command="if then"))
    assert bad.exit_code not in (0, None) and "syntax" in bad.stderr.lower(), bad
    gone = s.process.execute_session_command("work", SessionExecuteRequest(command="sleep 1000 & echo $!; exit 5"))
    assert gone.exit_code == 5, gone
    raises(lambda: s.process.execute_session_command("work", SessionExecuteRequest(command="true")), "ended")
    s.process.delete_session("work")
    raises(lambda: s.process.get_session("work"), "not found")
    assert s.process.exec(f"kill -0 {gone.stdout.strip()} 2>/dev/null || echo dead").result == "dead\n"


def files(s):
    data = bytes(range(256)) * 300
    s.fs.upload_file(data, "/home/user/deep/er/bytes")
    assert s.fs.download_file("/home/user/deep/er/bytes") == data
    names = ["/tmp/a b", "/tmp/ü\"q", "/tmp/empty"]
    s.fs.upload_files([FileUpload(source=n.encode() if n != "/tmp/empty" else b"", destination=n) for n in names])
    assert s.fs.download_file("/tmp/ü\"q") == "/tmp/ü\"q".encode()
    assert s.fs.download_file("/tmp/empty") == b""
    raises(lambda: s.fs.download_file("/tmp/none"), "not found")
    s.fs.create_folder("/tmp/d/e", "750")
    s.fs.create_folder("/tmp/d/e", "750")
    info = s.fs.get_file_info("/tmp/d/e")
    assert (info.is_dir, info.permissions, info.name) == (True, "0750", "e"), info
    s.fs.move_files("/tmp/a b", "/tmp/d/moved")
    assert sorted(f.name for f in s.fs.list_files("/tmp/d")) == ["e", "moved"]
    s.fs.set_file_permissions("/tmp/d/moved", mode="600")
    assert s.fs.get_file_info("/tmp/d/moved").mode == "-rw-------"
    s.fs.upload_file(b"one\ntwo needle.\n", "/tmp/d/text")
    hits = s.fs.find_files("/tmp/d", "needle.")
    assert [(h.file, h.line, h.content) for h in hits] == [("/tmp/d/text", 2, "two needle.")], hits
    assert s.fs.search_files("/tmp/d", "te*").files == ["/tmp/d/text"]
    raises(lambda: s.fs.delete_file("/tmp/d"), "directory")
    s.fs.delete_file("/tmp/d", recursive=True)
    raises(lambda: s.fs.get_file_info("/tmp/d"), "not found")
    raises(lambda: s.fs.delete_file("/tmp/$(touch /tmp/pwned)"), "not found")
    raises(lambda: s.fs.get_file_info("/tmp/pwned"), "not found")


def replacing(s):
    if s.process.exec("command -v perl").exit_code:
        return
    s.fs.upload_file(b"a.b axb a.b $1 \\E\n", "/tmp/r")
    out = s.fs.replace_in_files(["/tmp/r", "/tmp/none"], "a.b", "$& \\1")
    assert [(o.file, o.success) for o in out] == [("/tmp/r", True), ("/tmp/none", False)], out
    assert s.fs.download_file("/tmp/r") == b"$& \\1 axb $& \\1 $1 \\E\n"
    many = call("POST", f"/toolbox/{s.id}/files/replace", json={"files": ["/" + "n" * 1041] * 1000, "pattern": "a", "newValue": "b"})
    assert many.status_code == 200 and 980 < len(many.json()) < 1000, (many.status_code, len(many.text))
    assert all(m == many.json()[0] for m in many.json()), "a cut record is shown"


def git(s):
    if s.process.exec("command -v git").exit_code:
        return
    s.process.exec("git init -q -b main /tmp/repo")
    s.fs.upload_file(b"x", "/tmp/repo/a file")
    st = s.git.status("/tmp/repo")
    assert [(f.name, f.worktree) for f in st.file_status] == [("a file", "Untracked")], st
    s.git.add("/tmp/repo", ["."])
    sha = s.git.commit("/tmp/repo", "first", "A", "a@example.org").sha
    assert len(sha) == 40, sha
    s.git.create_branch("/tmp/repo", "other")
    s.git.checkout_branch("/tmp/repo", "other")
    assert s.git.status("/tmp/repo").current_branch == "other"
    assert sorted(s.git.branches("/tmp/repo").branches) == ["main", "other"]
    s.git.clone("/tmp/repo", "/tmp/copy", branch="main")
    assert s.fs.download_file("/tmp/copy/a file") == b"x"
    raises(lambda: s.git.status("/tmp"), "repository not found")


def life(d):
    s = d.create(CreateSandboxFromSnapshotParams(snapshot=TEMPLATE, name="daytona-life", labels={"k": "v"}, env_vars={"E": "1"}, auto_stop_interval=0))
    assert s.state == "started" and s.name == "daytona-life" and s.labels["k"] == "v", s
    assert s.process.exec("echo $E; echo kept >f").result == "1\n"
    assert [x.id for x in d.list(ListSandboxesQuery(labels={"k": "v"}))] == [s.id]
    assert [x.id for x in d.list(ListSandboxesQuery(labels={"k": "w"}))] == []
    raises(lambda: d.create(CreateSandboxFromSnapshotParams(snapshot=TEMPLATE, name="daytona-life")), "taken")
    assert d.get("daytona-life").id == s.id
    s.stop()
    assert d.get(s.id).state == "stopped"
    raises(lambda: s.process.exec("true"), "stopped")
    s.start()
    assert s.process.exec("cat f").result == "kept\n"
    s.set_autostop_interval(7)
    assert d.get(s.id).auto_stop_interval == 7
    link = s.get_preview_link(8000)
    assert "8000" in link.url and link.token, link
    s.delete()
    raises(lambda: d.get(s.id), "not found")


def volume(d):
    v = d.volume.get("daytona-data", create=True)
    assert d.volume.get("daytona-data").id == v.id
    a = d.create(CreateSandboxFromSnapshotParams(snapshot=TEMPLATE, volumes=[VolumeMount(volume_id=v.name, mount_path="/home/user/data")]))
    a.process.exec("echo shared >data/f")
    b = d.create(CreateSandboxFromSnapshotParams(snapshot=TEMPLATE, volumes=[VolumeMount(volume_id=v.id, mount_path="/home/user/data")], ephemeral=True))
    assert b.process.exec("cat data/f").result == "shared\n"
    b.stop()
    raises(lambda: d.get(b.id), "not found")
    a.delete()
    d.volume.delete(v)


def refusals(d, s):
    raises(lambda: d.create(CreateSandboxFromSnapshotParams(snapshot="no-such-template")), "not found")
    raises(lambda: d.create(CreateSandboxFromImageParams(image="debian:12")), "not found")
    raises(lambda: d.get("nothing"), "not found")
    other = Daytona(DaytonaConfig(api_key="wrong", api_url=os.environ["DAYTONA_API_URL"]))
    raises(lambda: other.get(s.id), "key")
    raises(s.archive, "not offered")
    raises(lambda: d.volume.delete(d.volume.get("never")), "not found")
    for method, path, key, status in (("GET", "/sandbox", "wrong", 401), ("GET", "/nowhere", None, 404), ("PATCH", "/sandbox", None, 405), ("GET", "/sandbox/%zz", None, 400)):
        r = call(method, path, key=key)
        assert (r.status_code, r.json()["statusCode"], r.json()["path"]) == (status, status, "/daytona" + path) and r.json()["message"], (path, r.text)
    base, head = os.environ["DAYTONA_API_URL"], HEAD
    r = call("POST", f"/toolbox/{s.id}/files/bulk-upload", content=b"x" * 3000000, headers={"content-type": "text/plain"})
    assert r.status_code == 400 and r.json()["statusCode"] == 400 and "content type" in r.json()["message"], r.text
    parts = b"".join(b'--b\r\nContent-Disposition: form-data; name="%s.path"\r\n\r\n/\r\n' % (b"n" * 900) for _ in range(5000)) + b"--b--\r\n"
    r = call("POST", f"/toolbox/{s.id}/files/bulk-upload", content=parts, headers={"content-type": "multipart/form-data; boundary=b"})
    assert r.status_code == 400 and "names and paths" in r.json()["message"], r.text
    for method, path, status in (("GET", "/organizations", 501), ("POST", f"/toolbox/{s.id}/lsp/start", 501), ("GET", f"/toolbox/{s.id}/nothing", 404),
                                 ("POST", f"/toolbox/{s.id}/process/execute", 400), ("GET", "/sandbox?limit=0", 400), ("GET", "/sandbox?labels=x", 400)):
        r = httpx.request(method, base + path, headers=head)
        assert r.status_code == status and r.json()["message"], (path, r.status_code, r.text)


def walk(s):
    """Each operation of the generated clients is served, or answers 501 by name. Requests are empty, so served ones may be 400 or 404 - but never
    for want of a route."""
    head = {"Authorization": "Bearer " + os.environ["DAYTONA_API_KEY"]}
    seen, absent = 0, 0
    for package, base in ((daytona_api_client, ""), (daytona_toolbox_api_client, f"/toolbox/{s.id}")):
        for source in sorted((pathlib.Path(package.__file__).parent / "api").glob("*.py")):
            for method, path in re.findall(r"method='(\w+)',\s*resource_path='([^']+)'", source.read_text()):
                if (method, path) == ("POST", "/sandbox"):
                    continue  # it needs nothing and would make one
                r = httpx.request(method, os.environ["DAYTONA_API_URL"] + base + re.sub(r"\{[^}]+\}", "nothing", path), headers=head)
                assert r.status_code < 500 or r.status_code == 501, (method, path, r.status_code, r.text)
                assert "no such route" not in r.text and r.status_code != 405, (method, path, r.text)
                seen += 1
                absent += r.status_code == 501
    assert seen > 260 and 150 < absent < seen - 50, (seen, absent)


def listen(key, seen):
    """A client of the event channel that appends what it hears."""
    c = socketio.Client(reconnection=False)
    c.on("*", lambda event, *data: seen.append((event, *data)))
    c.connect(ROOT, socketio_path="/daytona/socket.io", transports=["websocket"], auth={"token": key}, wait_timeout=10)
    return c


def events(d):
    """The channel tells a tenant of its sandboxes, for as long as the key holds; the SDK's own waits need no question."""
    admin = httpx.Client(base_url=ROOT, headers=HEAD)
    assert admin.post("/v1/tenants", json={"id": "daytona-other"}).status_code < 300
    other = admin.post("/v1/keys", json={"tenant": "daytona-other", "name": "k"}).json()["key"]
    made = admin.post("/v1/keys", json={"tenant": "default", "name": "brief"}).json()
    mine, theirs, brief = [], [], []
    clients = [listen(os.environ["DAYTONA_API_KEY"], mine), listen(other, theirs), listen(made["key"], brief)]
    for wrong in ("", "e2b_" + "0" * 40, "x" * 10000):
        try:
            listen(wrong, [])
            raise AssertionError("a wrong key was taken")
        except socketio.exceptions.ConnectionError:
            pass
    s = d.create(CreateSandboxFromSnapshotParams(snapshot=TEMPLATE, labels={"ev": "1"}))
    until(lambda: len(brief) == 1, "the first event")
    assert admin.delete("/v1/keys/" + made["id"]).status_code < 300
    s.stop()
    s.start()
    s.delete()
    until(lambda: mine and mine[-1][1].get("newState") == "destroyed", "the last event")
    told = [(e, x["sandbox"]["id"], x.get("oldState"), x.get("newState")) for e, x in mine]
    assert told[0] == ("sandbox.created", s.id, None, None) and mine[0][1]["sandbox"]["labels"]["ev"] == "1", told[0]
    states = [t[3] for t in told[1:]]
    assert [x for x in states if x in ("started", "stopped", "destroyed")] == ["stopped", "started", "destroyed"], told
    assert all(t[0] == "sandbox.state.updated" and t[1] == s.id for t in told[1:]), told
    assert [t[2] for t in told[2:]] == states[:-1], told
    assert theirs == [] and len(brief) == 1, (theirs, brief)
    until(lambda: not clients[2].connected, "the end of the channel of a removed key")
    for c in clients:
        c.disconnect()
    for query, words in (("EIO=3&transport=websocket", "EIO"), ("EIO=4&transport=polling", "long polling"), ("EIO=4&transport=websocket", "a WebSocket")):
        r = call("GET", "/socket.io/?" + query)
        assert r.status_code == 400 and words in r.json()["message"], (query, r.status_code, r.text)
    assert admin.delete("/v1/tenants/daytona-other").status_code < 300


def follow(s):
    """Logs of a command that runs: both streams as they come, with bytes that are no UTF-8; the reader goes with its client."""
    s.process.create_session("follow")
    script = "printf one; sleep 0.3; printf two >&2; sleep 0.3; printf 'three\\377'; head -c 300000 /dev/zero | tr '\\0' x"
    c = s.process.execute_session_command("follow", SessionExecuteRequest(command=script, run_async=True))
    out, err = [], []
    asyncio.run(s.process.get_session_command_logs_async("follow", c.cmd_id, out.append, err.append))
    assert "".join(out) == "onethree\ufffd" + "x" * 300000 and "".join(err) == "two", (len("".join(out)), out[:3], err)
    again = []
    asyncio.run(s.process.get_session_command_logs_async("follow", c.cmd_id, again.append, again.append))
    assert len("".join(again)) == 300012, len("".join(again))
    raises(lambda: asyncio.run(s.process.get_session_command_logs_async("follow", "none", print, print)))
    endless = s.process.execute_session_command("follow", SessionExecuteRequest(command="while echo tick; do sleep 0.05; done", run_async=True))
    url = f"{os.environ['DAYTONA_API_URL']}/toolbox/{s.id}/process/session/follow/command/{endless.cmd_id}/logs?follow=true"
    with httpx_ws.connect_ws(url, headers=dict(HEAD)) as ws:
        assert b"tick" in ws.receive_bytes(timeout=20) + ws.receive_bytes(timeout=20)
        assert s.process.exec("pgrep -f 'hutch follow'").exit_code == 0
    until(lambda: s.process.exec("pgrep -f '[h]utch follow'").exit_code == 1, "the end of a reader whose client left")
    s.process.delete_session("follow")


def terminals(s):
    """Terminals: input and output, size, environment, a second client, their end, and what is wrong."""
    h = s.process.create_pty_session("t1", cwd="/tmp", envs={"A": "ü b"}, pty_size=PtySize(cols=100, rows=30))
    seen = bytearray()
    h.send_input("stty size; echo $A; pwd; tty; exit 7\n")
    r = h.wait(on_data=seen.extend, timeout=60)
    assert r.exit_code == 7, (r, seen)
    for words in (b"30 100", "ü b".encode(), b"/tmp", b"/dev/pts/"):
        assert words in seen, seen
    until(lambda: s.process.list_pty_sessions() == [], "the end of a terminal")
    h = s.process.create_pty_session("t2")
    info = s.process.get_pty_session_info("t2")
    assert (info.id, info.active, info.cols, info.rows, info.cwd) == ("t2", True, 80, 24, "/home/user"), info
    error = raises(lambda: s.process.create_pty_session("t2"))
    assert error.status_code == 409, error
    assert h.resize(PtySize(cols=132, rows=50)).cols == 132
    h.send_input("stty size; sleep 4242 & echo $((40+2))up\n")
    h.disconnect()
    until(lambda: s.process.exec("pgrep -f '[s]leep 4242'").exit_code == 0, "a command in a terminal without a client")
    h = s.process.connect_pty_session("t2")
    h.wait_for_connection()
    seen = bytearray()
    for data in h:
        seen.extend(data)
        if b"42up" in seen:
            break
    assert b"50 132" in seen, seen
    with httpx_ws.connect_ws(f"{os.environ['DAYTONA_API_URL']}/toolbox/{s.id}/process/pty/t2/connect", headers=dict(HEAD)) as second:
        second.send_text("echo $((1+1))nd\n")
        seen = b""
        while b"2nd" not in seen:
            event = second.receive(timeout=20)
            seen += event.data.encode() if isinstance(event.data, str) else bytes(event.data)
    s.process.kill_pty_session("t2")
    assert h.wait(timeout=60).exit_code == 137
    assert s.process.exec("pgrep -f '[s]leep 4242'").exit_code == 1 and s.process.list_pty_sessions() == []
    made = call("POST", f"/toolbox/{s.id}/process/pty", json={"id": "lazy", "cols": 90, "rows": 20, "lazyStart": True, "envs": {"B": "1"}})
    assert (made.status_code, made.json()) == (201, {"sessionId": "lazy"}), made.text
    [info] = s.process.list_pty_sessions()
    assert (info.active, info.cols, info.envs) == (False, 90, {"B": "1"}), info
    h = s.process.connect_pty_session("lazy")
    h.send_input("echo B=$B; exit\n")
    seen = bytearray()
    assert h.wait(on_data=seen.extend, timeout=60).exit_code == 0 and b"B=1" in seen, seen
    for method, path, body, status in (("POST", "", {"id": "a/b"}, 400), ("POST", "", {"id": "x", "cols": 1001}, 400), ("POST", "", {"id": "x", "envs": {"A=": "1"}}, 400),
                                       ("POST", "", {"id": "x", "cwd": "/none"}, 404), ("GET", "/none", None, 404), ("DELETE", "/none", None, 404),
                                       ("POST", "/none/resize", {"cols": 80, "rows": 24}, 404), ("GET", "/none/connect", None, 400), ("GET", "/create-connect?id=x", None, 400)):
        r = call(method, f"/toolbox/{s.id}/process/pty{path}", json=body)
        assert r.status_code == status and r.json()["message"], (path, r.status_code, r.text)
    for i in range(64):
        assert call("POST", f"/toolbox/{s.id}/process/pty", json={"id": f"many{i}", "lazyStart": True}).status_code == 201
    r = call("POST", f"/toolbox/{s.id}/process/pty", json={"id": "toomany", "lazyStart": True})
    assert r.status_code == 409 and "64" in r.json()["message"], r.text
    s.process.exec("rm -rf /tmp/.daytona/p-*")


def copies(d):
    """Forks and snapshots of a sandbox, and settings of one that is there."""
    s = d.create(CreateSandboxFromSnapshotParams(snapshot=TEMPLATE, name="daytona-first", labels={"k": "v"}))
    s.process.exec("echo kept >f")
    child = s.fork(name="daytona-child")
    assert child.name == "daytona-child" and child.labels["k"] == "v" and child.process.exec("cat f").result == "kept\n"
    raises(lambda: s.fork(name="daytona-child"), "taken")
    nameless = s.fork()
    assert nameless.name == nameless.id
    assert {x["id"] for x in call("GET", f"/sandbox/{s.id}/forks").json()} == {child.id, nameless.id}
    assert call("GET", f"/sandbox/{child.id}/parent").json()["id"] == s.id
    grand = child.fork()
    assert [x["id"] for x in call("GET", f"/sandbox/{grand.id}/ancestors").json()] == [child.id, s.id]
    assert call("GET", f"/sandbox/{s.id}/parent").status_code == 404
    s.create_snapshot("daytona-snap")
    assert raises(lambda: s.create_snapshot("daytona-snap")).status_code == 409
    assert raises(lambda: s.create_snapshot("Not Good")).status_code == 400
    b = d.create(CreateSandboxFromSnapshotParams(snapshot="daytona-snap"))
    assert b.process.exec("cat f").result == "kept\n"
    d.snapshot.delete(d.snapshot.get("daytona-snap"))
    raises(lambda: d.snapshot.get("daytona-snap"), "not found")
    assert b.set_labels({"n": "1"}) == {"n": "1"}
    assert [x.id for x in d.list(ListSandboxesQuery(labels={"n": "1"}))] == [b.id]
    raises(lambda: b.set_labels({"name": "x"}), "reserved")
    b.set_auto_pause_interval(9)
    got = call("GET", f"/sandbox/{b.id}").json()
    assert (got["autoPauseInterval"], got["autoStopInterval"]) == (9, 0), got
    b.set_autostop_interval(8)
    got = call("GET", f"/sandbox/{b.id}").json()
    assert (got["autoPauseInterval"], got["autoStopInterval"]) == (0, 8), got
    assert raises(lambda: b.set_auto_delete_interval(5)).status_code == 501
    b.update_network_settings(network_block_all=True)
    assert d.get(b.id).network_block_all
    b.update_network_settings(domain_allow_list="example.com")
    assert not d.get(b.id).network_block_all
    assert call("POST", f"/sandbox/{b.id}/network-settings", json={}).status_code == 400
    b.set_auto_delete_interval(0)
    b.stop()
    raises(lambda: d.get(b.id), "not found")
    for x in (grand, nameless, child, s):
        x.delete()


def langchain(s):
    backend = DaytonaSandbox(sandbox=s)
    r = backend.execute("echo out; echo err >&2; exit 2")
    assert r.exit_code == 2 and "out" in r.output and "err" in r.output, r
    up = backend.upload_files([("/tmp/lc", b"content"), ("/tmp/lc2", b"2")])
    assert [u.error for u in up] == [None, None], up
    down = backend.download_files(["/tmp/lc", "/tmp/missing"])
    assert down[0].content == b"content" and down[1].error == "file_not_found", down


def main():
    d = Daytona()
    test("create, names, labels, stop, start, delete", lambda: life(d))
    s = d.create(CreateSandboxFromSnapshotParams(snapshot=TEMPLATE))
    for name, fn in (("exec and code_run", commands), ("sessions keep directory and variables", sessions), ("files", files), ("replace", replacing),
                     ("commands end with their time and client", limits), ("relative paths, odd names", paths), ("bulk downloads", downloads), ("credentials of git", credentials),
                     ("git", git), ("langchain-daytona", langchain)):
        test(name, lambda fn=fn: fn(s))
    test("what is wrong or absent is refused in Daytona's words", lambda: refusals(d, s))
    test("logs of a running command", lambda: follow(s))
    test("terminals", lambda: terminals(s))
    test("forks, snapshots, settings", lambda: copies(d))
    test("events of sandboxes", lambda: events(d))
    test("keys that only read", lambda: readers(d, s))
    test("a name is taken once", lambda: names(d))
    test("sessions end with a stop", lambda: sessions_end(d))
    test("volumes, ephemeral sandboxes", lambda: volume(d))
    test("every operation of the generated clients is served or answers 501", lambda: walk(s))
    s.delete()
    finish()


main()
