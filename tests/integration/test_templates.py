"""Template builds, the Dockerfile builder, imported images: what is built is what sandboxes start with, and nothing is left."""
import base64
import contextlib
import gzip
import hashlib
import hmac
import http.client
import http.server
import io
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.parse

import images as im
from daemon import Daemon
from hutch_test import PATIENCE, check, check_equal, check_in, eventually, skip
from node_client import ask, patient, sh
from shared import shared_node
from small import fill, small_templates


def tar(files):
    """{name: bytes, or None for a directory} as a gzipped tar"""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.mode = 0o755 if data is None else 0o640
            info.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            info.size = len(data or b"")
            t.addfile(info, io.BytesIO(data or b""))
    return gzip.compress(out.getvalue(), mtime=0)


def upload(d, template, files, key=None):
    data = tar(files)
    name = hashlib.sha256(data).hexdigest()
    a = ask(d, "GET", f"/templates/{template}/files/{name}", key=key)
    check_equal(a.status, 201, a)
    if not a.json["present"]:
        url = urllib.parse.urlsplit(a.json["url"])
        r = ask(d, "PUT", f"{url.path}?{url.query}", data, key="", kind="application/octet-stream")
        check_equal(r.status, 200, r)
    return name


def promise(d, name, key=None, **more):
    a = ask(d, "POST", "/v3/templates", {"name": name, **more}, key=key)
    check_equal(a.status, 202, a)
    return a.json["templateID"], a.json["buildID"]


def wait(d, template, build, key=None, seconds=300):
    """(last answer, all messages)"""
    said, stop = [], time.monotonic() + seconds
    while True:
        a = ask(d, "GET", f"/templates/{template}/builds/{build}/status?logsOffset={len(said)}", key=key)
        check_equal(a.status, 200, a)
        said += [e["message"] for e in a.json["logEntries"]]
        if not a.json["logEntries"] and a.json["status"] in ("ready", "error"):
            return a.json, said
        check(time.monotonic() < stop, (a, said))
        time.sleep(0.1)


def build(d, name, steps, key=None, files=None, **more):
    template, number = promise(d, name, key=key)
    for s in steps:
        if s["type"] == "COPY":
            s["filesHash"] = upload(d, template, files, key=key)
    more.setdefault("fromTemplate", "small")
    a = ask(d, "POST", f"/v2/templates/{template}/builds/{number}", {"steps": steps, **more}, key=key)
    check_equal((a.status, a.body, a.headers["Content-Length"]), (202, b"", "0"), a)
    return wait(d, template, number, key=key)


def built(*args, **more):
    end, said = build(*args, **more)
    check_equal(end["status"], "ready", (end, said))
    return said


def step(kind, *args):
    return {"type": kind, "args": list(args), "force": False}


def a_box(d, template, key=None):
    a = patient(d, "POST", "/v2/sandboxes", {"templateID": template}, key=key)
    check_equal(a.status, 201, a)
    return a.json


def running(d):
    return [b["sandboxID"] for b in ask(d, "GET", "/v2/sandboxes").json]


STEPS = [step("ENV", "A", "1", "B", "$A-$(id)"), step("USER", "agent"), step("WORKDIR", "/srv/app"),
         step("COPY", "src", "data/", "", ""), step("RUN", "cat data/x > seen; id -un >> seen; echo $B >> seen"),
         step("RUN", "id -un > /as-root", "root")]
FILES = {"src": None, "src/x": b"from the client\n", "src/deep": None, "src/deep/y": b"y"}


def test_build():
    "steps of a build change the files and settings that sandboxes start with; the second build of the same is cached"
    with small_templates() as templates, Daemon(templates=templates) as d:
        said = built(d, "mine:v1", STEPS, files=FILES)
        check(not any("CACHED" in s for s in said), said)
        box = a_box(d, "mine:v1")
        r = sh(d, box, "cat seen; pwd; id -un; echo $A; stat -c '%U %a' data/x; cat data/deep/y; cat /as-root; "
               "ls -d /.hutch", user=None)
        check_equal(r.text, "from the client\nagent\n-$(id)\n/srv/app\nagent\n1\nagent 640\nyroot\n", r)
        check_equal(running(d), [box["sandboxID"]], "sandboxes of builds are in no list")
        again = built(d, "other", STEPS, files=FILES)
        check_equal(len([s for s in again if s.startswith("CACHED")]), 5, again)
        forced = built(d, "other", STEPS, files=FILES, force=True)
        check(not any("CACHED" in s for s in forced), forced)
        listed = {t["templateID"]: t for t in ask(d, "GET", "/templates").json}
        check_in("mine", [n for t in listed.values() for n in t["names"]])
        check_equal(ask(d, "GET", "/templates/aliases/mine").status, 200)
        check_equal(ask(d, "GET", "/templates/aliases/nobody").json["code"], 404)


def test_limits():
    "a step has the memory that its build asks for, where the host can hold it to that; else the log says so"
    with shared_node(templates=True) as d:
        for size, enough in ((128, False), (1024, True)):
            template, number = promise(d, "limited", cpuCount=2, memoryMB=size)
            a = ask(d, "POST", f"/v2/templates/{template}/builds/{number}",
                    {"fromTemplate": "small", "steps": [step("RUN", "[ $(head -c 300m /dev/zero | tail -c 299m | wc -c) -gt 300000000 ]")]})
            check_equal(a.status, 202, a)
            end, said = wait(d, template, number, seconds=300)
            free = any("cannot hold the commands of builds" in x for x in said)
            check_equal(end["status"], "ready" if enough or free else "error", (end, said))
            if not enough and not free:
                check_in("memory of the build was used up", end["reason"]["message"])


def test_failures():
    "a step that fails is named by its number and in E2B's words; what was not uploaded or is not there is said"
    with small_templates() as templates, Daemon(templates=templates) as d:
        end, said = build(d, "bad", [step("ENV", "A", "b"), step("RUN", "echo seen; exit 3")])
        check_equal((end["status"], end["reason"]["step"]), ("error", "2"), end)
        check_equal(end["reason"]["message"], "failed to run command 'echo seen; exit 3': exit status 3")
        check_in("seen", said)
        end, _ = build(d, "bad", [step("RUN", "true", "root123")])
        check_in("failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'",
                 end["reason"]["message"])
        template, number = promise(d, "bad")
        missing = {**step("COPY", "a", "/b", "", ""), "filesHash": "ab" * 32}
        ask(d, "POST", f"/v2/templates/{template}/builds/{number}", {"fromTemplate": "small", "steps": [missing]})
        end, _ = wait(d, template, number)
        check_in("were not uploaded", end["reason"]["message"])
        end, _ = build(d, "bad", [], fromTemplate="nothing")
        check_equal((end["reason"]["step"], end["reason"]["message"]), ("base", "template 'nothing' not found"))
        end, _ = build(d, "bad", [], fromTemplate=None, fromImage="ubuntu:99.04")
        check_in("hutch template import ubuntu:99.04", end["reason"]["message"])
        check_equal(ask(d, "POST", "/v2/sandboxes", {"templateID": "bad"}).status, 404)
        eventually(lambda: not ask(d, "GET", "/v1/node").json["sandboxes"]["running"], what="sandboxes of failed builds end")


def test_tenants():
    "uploads, builds and templates of one tenant are not there for another, until they are public"
    with small_templates() as templates, Daemon(templates=templates) as d:
        keys = {}
        for t in ("one", "two"):
            check(ask(d, "POST", "/v1/tenants", {"id": t, "name": t}).status in (200, 201))
            keys[t] = ask(d, "POST", "/v1/keys", {"tenant": t, "name": "k", "scopes": ["sandboxes", "templates"]}).json["key"]
        steps = [step("COPY", "src", "/data/", "", "")]
        built(d, "shared", steps, key=keys["one"], files=FILES)
        name = hashlib.sha256(tar(FILES)).hexdigest()
        template, number = promise(d, "shared", key=keys["two"])
        check_equal(ask(d, "GET", f"/templates/{template}/files/{name}", key=keys["two"]).json["present"], False,
                    "an upload of another tenant cannot be seen")
        check_equal(ask(d, "GET", f"/templates/{template}/builds/{number}/status", key=keys["one"]).status, 404)
        check_equal(ask(d, "POST", "/v2/sandboxes", {"templateID": "shared"}, key=keys["two"]).status, 404)
        check_equal(ask(d, "GET", "/templates/aliases/shared", key=keys["two"]).status, 404)
        check_equal(ask(d, "PATCH", "/v2/templates/shared", {"public": True}, key=keys["one"]).status, 200)
        check_equal(ask(d, "POST", "/v2/sandboxes", {"templateID": "shared"}, key=keys["two"]).status, 404,
                    "a name alone is never another tenant's")
        box = a_box(d, "one/shared", key=keys["two"])
        check_equal(sh(d, box, "cat /data/x").text, "from the client\n")


def test_upload_address():
    "an upload goes only to an address that was given, for its own content, in its size"
    with small_templates() as templates, Daemon(templates=templates, config="builds:\n  upload_max: 1MiB\n") as d:
        template, _ = promise(d, "x")
        a = ask(d, "GET", f"/templates/{template}/files/{'cd' * 32}")
        url = urllib.parse.urlsplit(a.json["url"])
        path = f"{url.path}?{url.query}"
        for wrong in (path[:-1] + ("0" if path[-1] != "0" else "1"), url.path, path.replace("expires=", "expires=1")):
            check_equal(ask(d, "PUT", wrong, b"x", key="").status, 403, wrong)
        check_equal(ask(d, "PUT", path, b"not a tar", key="").json["code"], 400)
        check_equal(ask(d, "PUT", path, b"x" * (2 << 20), key="").json["code"], 413)
        check_equal(ask(d, "GET", f"/templates/{template}/files/{'cd' * 32}").json["present"], False)


def test_tags():
    "tags are put, listed and removed; a sandbox is made from the one that is named"
    with shared_node(templates=True) as d:
        built(d, "t:v1", [step("RUN", "echo one > /v", "root")])
        built(d, "t:v2", [step("RUN", "echo two > /v", "root")])
        a = ask(d, "POST", "/templates/tags", {"target": "t:v1", "tags": ["default", "good"]})
        check_equal((a.status, a.json["tags"]), (201, ["default", "good"]), a)
        tags = {t["tag"]: t["buildID"] for t in ask(d, "GET", "/templates/t/tags").json}
        check_equal(sorted(tags), ["default", "good", "v1", "v2"])
        check_equal(tags["good"], tags["v1"])
        check_equal(sh(d, a_box(d, "t"), "cat /v").text, "one\n")
        check_equal(sh(d, a_box(d, "t:v2"), "cat /v").text, "two\n")
        check_equal(ask(d, "DELETE", "/templates/tags", {"name": "t", "tags": ["good", "v2"]}).status, 204)
        check_equal(ask(d, "DELETE", "/templates/tags", {"name": "t", "tags": ["v2"]}).json["code"], 404)
        check_equal(ask(d, "POST", "/v2/sandboxes", {"templateID": "t:v2"}).status, 404)
        check_equal(ask(d, "POST", "/templates/tags", {"target": "t:v1", "tags": ["a:b"]}).status, 400)


def test_start_command():
    "the start command is proved by the build and run by every sandbox; one that fails fails the build"
    with shared_node(templates=True) as d:
        said = built(d, "s", [], startCmd="touch /tmp/up; exec sleep 1000", readyCmd="test -e /tmp/up")
        check(any("memory is not part of a template" in s for s in said), said)
        box = a_box(d, "s")
        check_equal(sh(d, box, "ls /tmp/up; ps | grep -c '[s]leep 1000'").text, "/tmp/up\n1\n")
        end, _ = build(d, "s2", [], startCmd="exit 4")
        check_equal(end["reason"], {"message": "the start command ended before the template was ready: exit status 4",
                                    "step": "finalize"})


def test_interrupted():
    "after kill -9 of front a build under way is an error that says so, and its sandbox ends, also one that was just being made"
    with small_templates() as templates, Daemon(templates=templates) as d:
        sleep = f"sleep 1{os.getpid():07}"  # nobody else's on this machine
        for what in ("RUN", "begun"):  # the step is reached; its command runs
            template, number = promise(d, "long")
            ask(d, "POST", f"/v2/templates/{template}/builds/{number}",
                {"fromTemplate": "small", "steps": [step("RUN", "echo be''gun; " + sleep)]})
            eventually(lambda: any(what in e for e in ask(
                d, "GET", f"/templates/{template}/builds/{number}/status").json["logs"]), what=what)  # noqa: B023
            d.kill9("front")
            eventually(d.alive, 20, "front is back")
            a = ask(d, "GET", f"/templates/{template}/builds/{number}/status")
            check_equal((a.status, a.json["status"], a.json["reason"]["message"]),
                        (200, "error", "interrupted by a restart of the node"), a)
            eventually(lambda: not d.left(), 20, "the sandbox of the build ends")
            check_equal(subprocess.run(["pgrep", "-f", f"^{sleep}$"], capture_output=True).returncode, 1)
        built(d, "long", [step("RUN", "true")])


def test_cancelled():
    "Ctrl-C in template build ends the build on the node, whatever it does at that moment; so does the API, but only once"
    with small_templates() as templates, Daemon(templates=templates, config="builds:\n  max: 1\n") as d, tempfile.TemporaryDirectory() as place:
        sleep = f"sleep 2{os.getpid():07}"  # nobody else's on this machine
        pathlib.Path(place, "Dockerfile").write_text(f"FROM hutch/small\nRUN echo be''gun; {sleep}\n")
        for number in (signal.SIGINT, signal.SIGTERM):
            env = {**os.environ, "HUTCH_URL": d.url, "HUTCH_API_KEY": d.key}
            with subprocess.Popen([d.hutch, "template", "build", "-t", "long", place], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
                while "begun" not in (line := p.stdout.readline()):
                    check(line != "", p)
                p.send_signal(number)
                out, err = p.communicate(timeout=PATIENCE)
                check_equal(p.returncode, 128 + number, out + err)
                check_in("the build was cancelled", err)
            eventually(lambda: not d.left(), 20, "the sandbox of the build ends")
            check_equal(subprocess.run(["pgrep", "-f", f"^{sleep}$"], capture_output=True).returncode, 1)
        # Promised, waiting for another one, and at any moment of one that works.
        made = [promise(d, f"c{i}") for i in range(12)]
        for i, (template, number) in enumerate(made[1:]):
            ask(d, "POST", f"/v2/templates/{template}/builds/{number}", {"fromTemplate": "small", "steps": [step("RUN", f"echo {i} > f")] * 3})
        for template, number in made:
            time.sleep(0.05)
            check_in(ask(d, "DELETE", f"/v1/templates/{template}/builds/{number}").status, (204, 409))
            status = ask(d, "GET", f"/templates/{template}/builds/{number}/status").json
            if status["status"] == "error":
                check_equal(status["reason"]["message"], "cancelled", status)
            eventually(lambda: ask(d, "DELETE", f"/v1/templates/{template}/builds/{number}").status == 409, PATIENCE, "ended")  # noqa: B023
        check_equal(ask(d, "DELETE", f"/v1/templates/{made[0][0]}/builds/{made[1][1]}").status, 404)
        eventually(lambda: not d.left(), 20, "no sandbox of a build is left")
        built(d, "after", [step("RUN", "true")])
        check_equal(d.cli("store", "verify").returncode, 0)


DOCKERFILE = """# a comment
ARG GREETING=hello
FROM hutch/small
ARG GREETING=hello
ENV NAME=world \\
    OTHER="two words"
WORKDIR /app
COPY --chown=user . .
RUN echo "$GREETING $NAME" > /said && \\
    ls /app > /listed
EXPOSE 8080
USER user
CMD ["sleep", "1000"]
"""


def test_dockerfile():
    "hutch template build makes a template of a Dockerfile and its context; errors have their line"
    with shared_node(templates=True) as d, \
            tempfile.TemporaryDirectory(prefix="hutch-context-") as ctx:
        ctx = pathlib.Path(ctx)
        (ctx / "Dockerfile").write_text(DOCKERFILE)
        (ctx / ".dockerignore").write_text("*.log\nDockerfile\n.dockerignore\n")
        (ctx / "keep.txt").write_text("kept\n")
        (ctx / "drop.log").write_text("dropped\n")
        r = d.cli("template", "build", "-t", "app:v1", "--build-arg", "GREETING=good morning", str(ctx), check=False)
        check_equal(r.returncode, 0, (r.stdout, r.stderr))
        check_in("EXPOSE has no meaning", r.stderr)
        box = a_box(d, "app:v1")
        out = sh(d, box, "cat /said /listed; id -un; pwd; echo $OTHER; stat -c %U keep.txt; echo ${GREETING:-gone}",
                 user=None).text
        check_equal(out, "good morning world\nkeep.txt\nuser\n/app\ntwo words\nuser\ngone\n")
        again = d.cli("template", "build", "-t", "app:v1", "--build-arg", "GREETING=good morning", str(ctx))
        check_in("CACHED [builder", again.stdout)
        (ctx / "Dockerfile").write_text("FROM hutch/small\nRUN false\n")
        r = d.cli("template", "build", "-t", "app:v2", str(ctx), check=False)
        check_equal(r.returncode, 1, (r.stdout, r.stderr))
        check_in("failed to run command 'false': exit status 1", r.stderr)
        (ctx / "Dockerfile").write_text("FROM a\nFROM scratch\n")
        r = d.cli("template", "build", "-t", "app:v2", str(ctx), check=False)
        check_in("Dockerfile:2: FROM scratch has nothing", r.stderr)
        check_in("app", d.cli("template", "ls").stdout)
        shown = json.loads(d.cli("template", "inspect", "app:v1").stdout)
        check_equal((shown["kind"], shown["config"]["user"]), ("built", "user"), shown)
        d.cli("template", "rm", "app")
        check("app" not in d.cli("template", "ls").stdout.split())


STAGES = """\
ARG FIRST=hutch/small
FROM $FIRST AS build
ENV FLAVOUR=sweet
WORKDIR /src
COPY keep.txt .
RUN mkdir -p /out/deep && cp keep.txt /out/a.txt && echo b > /out/deep/b.txt && ln -s a.txt /out/link && \\
    ln -s /out/a.txt /named && chmod 0754 /out/a.txt && echo $FLAVOUR > /out/flavour
FROM hutch/small AS unused
RUN false
FROM build AS more
RUN echo $FLAVOUR > /out/more; pwd >> /out/more
FROM hutch/small AS last
COPY --from=build --chown=user /out /got/
COPY --from=0 /named /renamed
COPY --from=build /out/*.txt /globbed/
COPY --from=more /out/more /
COPY --from=hutch/small /etc/passwd /passwd
RUN cat /got/a.txt > /ran
FROM hutch/small
RUN echo the last one > /which
"""


def test_stages():
    "stages of a Dockerfile: only those that are needed are built, files go from one to another, all of it is cached"
    with shared_node(templates=True) as d, \
            tempfile.TemporaryDirectory(prefix="hutch-context-") as ctx:
        ctx = pathlib.Path(ctx)
        (ctx / "Dockerfile").write_text(STAGES)
        (ctx / "keep.txt").write_text("kept\n")

        def made(*more):
            r = d.cli("template", "build", "-t", "app", *more, str(ctx), check=False)
            check_equal(r.returncode, 0, (r.stdout, r.stderr))
            return r.stdout
        said = made("--target", "last")
        check("RUN false" not in said and "the last one" not in said, said)
        box = a_box(d, "app")
        out = sh(d, box, "cat /got/a.txt /got/link /got/deep/b.txt /got/flavour /renamed /more /ran; readlink /got/link; "
                 "stat -c '%U %a' /got/a.txt /renamed; ls /globbed; ls /passwd; ls -d /out /src; echo ${FLAVOUR:-gone}; id -un",
                 user=None).text
        check_equal(out, "kept\nkept\nb\nsweet\nkept\nsweet\n/src\nkept\na.txt\nuser 754\nroot 754\na.txt\n/passwd\n"
                    "gone\nuser\n", said)
        steps = [x for x in made("--target", "last").splitlines() if "[builder" in x and " ENV " not in x]
        check(all(x.startswith("CACHED") for x in steps), steps)
        (ctx / "keep.txt").write_text("changed\n")
        steps = [x for x in made("--target", "last").splitlines() if "COPY --from" in x]
        check(len(steps) == 5 and not any(x.startswith("CACHED") for x in steps), steps)
        check_equal(sh(d, a_box(d, "app"), "cat /ran /renamed", user=None).text, "changed\nchanged\n")
        said = made()
        check("COPY" not in said and "the last one" in said, said)
        for text, error in (("FROM hutch/small\nCOPY --from=1 /a /b\n", "Dockerfile:2: COPY --from=1: no earlier stage has this number"),
                            ("FROM hutch/small AS x\nCOPY --from=x /a /b\n", "Dockerfile:2: COPY --from=x names the stage"),
                            ("FROM hutch/small AS x\nFROM hutch/small AS X\n", "Dockerfile:2: a second stage 'X'")):
            (ctx / "Dockerfile").write_text(text)
            r = d.cli("template", "build", "-t", "bad", str(ctx), check=False)
            check_in(error, r.stderr)
        (ctx / "Dockerfile").write_text("FROM hutch/small AS x\nFROM hutch/small\nCOPY --from=x /not/there /b\n")
        r = d.cli("template", "build", "-t", "bad", str(ctx), check=False)
        check_equal(r.returncode, 1, r.stderr)
        check_in("'/not/there': is not there", r.stdout)
        check_in("COPY from another stage failed", r.stderr)
        eventually(lambda: len(running(d)) == 2, 20, "no sandbox of a build")


def image(root):
    """An archive as `docker save` makes it: one layer of the directory."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as t:
        t.add(root, arcname=".", filter=lambda i: (setattr(i, "uid", 0), setattr(i, "gid", 0), i)[2])
    layer = layer.getvalue()
    config = json.dumps({"architecture": "amd64", "os": "linux",
                         "config": {"Env": ["PATH=/bin", "FROM_IMAGE=yes"], "WorkingDir": "/etc"},
                         "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}}).encode()
    manifest = json.dumps([{"Config": "c.json", "RepoTags": ["tiny:1"], "Layers": ["l.tar"]}]).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        for name, data in (("c.json", config), ("l.tar", layer), ("manifest.json", manifest)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()


def test_import():
    "an imported image makes sandboxes with its settings, and builds start from it with a user of their own"
    with shared_node(templates=True) as d, \
            tempfile.TemporaryDirectory(prefix="hutch-image-") as tmp:
        root = pathlib.Path(tmp, "root")
        fill(root)
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\n")
        file = pathlib.Path(tmp, "tiny.tar")
        file.write_bytes(image(root))
        r = d.cli("template", "import", "-t", "tiny:1.0", str(file), check=False)
        check_equal((r.returncode, r.stdout.splitlines()[-1:]), (0, ["tiny:1.0"]), r.stderr)
        box = a_box(d, "tiny:1.0")
        check_equal(sh(d, box, "echo $FROM_IMAGE; pwd; id -un", user=None).text, "yes\n/etc\nroot\n")
        built(d, "on-tiny", [step("RUN", "id -un > who; echo $FROM_IMAGE >> who; pwd >> who")], fromTemplate=None,
              fromImage="tiny:1.0")
        check_equal(sh(d, a_box(d, "on-tiny"), "cat who", user=None).text, "user\nyes\n/home/user\n")
        d.cli("template", "import", "-t", "plain", str(file))
        for ref, name in (("plain", "on-plain"), ("tiny", "on-tiny-too")):
            built(d, name, [], fromTemplate=None, fromImage=ref)
        end, _ = build(d, "on-none", [], fromTemplate=None, fromImage="plain:2")
        check_in("not in the store", end["reason"]["message"])
        bad = pathlib.Path(tmp, "bad.tar")
        bad.write_bytes(b"no archive" * 1000)
        r = d.cli("template", "import", "-t", "bad", str(bad), check=False)
        check(r.returncode != 0 and "bad" not in d.cli("template", "ls").stdout.split(), r.stderr)
        out = pathlib.Path(tmp, "out")
        d.cli("template", "export", "-o", str(out), "on-tiny")
        d.cli("template", "restore", "-t", "again", str(out))
        check_equal(sh(d, a_box(d, "again"), "cat who", user=None).text, "user\nyes\n/home/user\n")
        out.write_bytes(out.read_bytes()[:-1000])
        r = d.cli("template", "restore", "-t", "short", str(out), check=False)
        check(r.returncode != 0 and "short" not in d.cli("template", "ls").stdout.split(), r.stderr)


def keys_of(d, *tenants):
    keys = []
    for t in tenants:
        check(ask(d, "POST", "/v1/tenants", {"id": t, "name": t}).status in (200, 201))
        keys.append(ask(d, "POST", "/v1/keys", {"tenant": t, "name": "k", "scopes": ["sandboxes", "templates"]}).json["key"])
    return keys


def hold_export(d, name, key):
    """Asks for an export and reads the beginning of the answer, no more."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(60)
    s.connect(("127.0.0.1", d.port))
    s.sendall(f"GET /v1/templates/{name}/export HTTP/1.1\r\nHost: 127.0.0.1:{d.port}\r\nX-API-KEY: {key}\r\n\r\n".encode())
    check_in(b"200", s.recv(20))
    return s


def test_slow_exports():
    "clients that take their exports slowly, or not at all, keep neither other tenants nor their own builds from working"
    with small_templates() as templates, Daemon(templates=templates) as d, contextlib.ExitStack() as held:
        one, two = keys_of(d, "one", "two")
        for key in (one, two):  # what cannot be compressed, and does not fit into any buffer
            built(d, "large", [step("RUN", "head -c 20000000 /dev/urandom > /home/user/f")], key=key)
            for _ in range(2):
                held.callback(hold_export(d, "large", key).close)
        a = ask(d, "GET", "/v1/templates/large/export", key=one)
        check_equal(a.status, 429, a)
        built(d, "next", [step("COPY", "src", "/data/", "", "")], key=one, files=FILES)
        held.close()
        eventually(lambda: ask(d, "GET", "/v1/templates/next/export", key=one).status == 200, 20, "a place for an export")


def test_registries_of_tenants():
    "no registry on this machine is fetched from but one that is listed, by the operator neither"
    seen = []

    def answer_all(path, headers):
        seen.append(path)
        return 404, {}, b""
    with small_templates() as templates, im.serving(answer_all) as closed, im.serving(answer_all) as listed, \
            Daemon(templates=templates, config=f"images:\n  pull: true\n  registries: {listed}\n") as d:
        key, = keys_of(d, "one")

        def fetch(host, who):
            return ask(d, "POST", "/v1/templates/import", {"image": f"{host}/x:1", "name": "x"}, key=who)
        a = fetch(closed, key)
        check_in("images.registries", a.body.decode())
        check_equal((a.json["code"], seen), (403, []), a)
        end, said = build(d, "from", [], key=key, fromTemplate=None, fromImage=f"{closed}/x:1")
        check_equal((end["status"], seen), ("error", []), end)
        check_in("images.registries", end["reason"]["message"])
        a = fetch(closed, None)
        check_in("images.registries", a.body.decode())
        check_equal((a.json["code"], seen), (403, []), a)
        for who in (key, None):
            a = fetch(listed, who)
            check_equal((a.json["code"], len(seen) > 0), (404, True), a)
            seen.clear()


def hmac256(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


@contextlib.contextmanager
def an_ecr(region, key_id, secret, password):
    """Amazon's GetAuthorizationToken on loopback, for one who signs right: ("127.0.0.1:PORT", what was asked for)"""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            asked.append((self.path, self.headers["x-amz-target"], body))
            head, when = self.headers["authorization"], self.headers["x-amz-date"]
            names = head.split("SignedHeaders=")[1].split(",")[0]
            canonical = "\n".join(["POST", self.path, "", *[f"{n}:{self.headers[n]}" for n in names.split(";")], "", names,
                                   hashlib.sha256(body).hexdigest()])
            scope = f"{when[:8]}/{region}/ecr/aws4_request"
            text = "\n".join(["AWS4-HMAC-SHA256", when, scope, hashlib.sha256(canonical.encode()).hexdigest()])
            key = b"AWS4" + secret.encode()
            for part in scope.split("/"):
                key = hmac256(key, part)
            good = head == (f"AWS4-HMAC-SHA256 Credential={key_id}/{scope}, SignedHeaders={names}, "
                            f"Signature={hmac256(key, text).hex()}") and "x-amz-target" in names and "host" in names
            token = base64.b64encode(f"AWS:{password}".encode()).decode()
            answer = {"authorizationData": [{"authorizationToken": token}]} if good else {"__type": "InvalidSignatureException"}
            answer = json.dumps(answer).encode()
            self.send_response(200 if good else 400)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass
    server = im.Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def push(host, name, tag, root, who):
    """An image with one layer, the directory, into a registry."""
    layer, layout = io.BytesIO(), im.Layout()
    with tarfile.open(fileobj=layer, mode="w") as t:
        t.add(root, arcname=".", filter=lambda i: (setattr(i, "uid", 0), setattr(i, "gid", 0), i)[2])
    manifest = layout.image(layer.getvalue())
    secret = "Basic " + base64.b64encode(who.encode()).decode()

    def send(method, path, body=b"", **fields):
        with contextlib.closing(http.client.HTTPConnection(host, timeout=60)) as c:
            c.request(method, path, body, {"authorization": secret, **fields})
            answer = c.getresponse()
            check(answer.status in (201, 202), (method, path, answer.status, answer.read()))
            return answer.headers
    for digest, data in layout.blobs.items():
        if digest == manifest["digest"]:
            send("PUT", f"/v2/{name}/manifests/{tag}", data, **{"content-type": layout.MANIFEST})
        else:
            at = urllib.parse.urlsplit(send("POST", f"/v2/{name}/blobs/uploads/")["location"])
            send("PUT", f"{at.path}?{at.query}&digest={digest}", data, **{"content-type": "application/octet-stream"})


def test_images_are_shown():
    "`template ls` and `template inspect` say as which image a tag was fetched, also where somebody named it otherwise"
    if not shutil.which("docker-registry"):
        skip("docker-registry is not installed: apt-get install docker-registry")
    with small_templates() as templates, tempfile.TemporaryDirectory(prefix="hutch-image-") as tmp, \
            im.a_registry() as host, Daemon(templates=templates, config=f"images:\n  registries: {host}\n") as d:
        root = pathlib.Path(tmp, "root")
        fill(root)
        push(host, "acme/x", "1", root, "nobody:nothing")
        image = f"{host}/acme/x:1"
        d.cli("template", "import", image)
        d.cli("template", "import", "-t", "mine", image)
        head, *rows = [line.split() for line in d.cli("template", "ls").stdout.splitlines()]
        check_equal(head[-1], "IMAGE")
        shown = {row[0]: row[-1] for row in rows}
        name, = (n for n in shown if n.startswith("127-0-0-1-"))
        check_equal((shown[name], shown["mine"], shown["small"]), (image, image, "-"), rows)
        for tag in ("1", "default"):
            one = json.loads(d.cli("template", "inspect", f"{name}:{tag}").stdout)
            check_equal((one["tag"], one["image"], [t["image"] for t in one["tags"]]), (tag, image, [image, image]), one)
        check_equal(json.loads(d.cli("template", "inspect", "mine").stdout)["image"], image)


def test_registries_of_clouds():
    "an image of a registry comes with a key of AWS, which ECR makes a password of, or with that of a service account of Google"
    if not shutil.which("docker-registry"):
        skip("docker-registry is not installed: apt-get install docker-registry")
    gcp = json.dumps({"type": "service_account", "private_key": "-----BEGIN\nMIIgoogle1\n", "client_email": "a@b"}, indent=1)
    secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    with small_templates() as templates, tempfile.TemporaryDirectory(prefix="hutch-image-") as tmp, \
            an_ecr("eu-central-1", "AKIDEXAMPLE", secret, "ecr-password") as (ecr, asked), \
            im.a_registry("AWS", "ecr-password") as amazon, im.a_registry("_json_key", gcp[:72]) as google:
        root = pathlib.Path(tmp, "root")
        fill(root)
        for host, who in ((amazon, "AWS:ecr-password"), (google, f"_json_key:{gcp}")):
            push(host, "x", "1", root, who)
        config = f"images:\n  pull: true\n  registries: {amazon},{google}\n  ecr_endpoint: http://{ecr}/\n"
        with Daemon(templates=templates, config=config) as d:
            key, = keys_of(d, "one")
            aws = {"type": "aws", "awsAccessKeyId": "AKIDEXAMPLE", "awsSecretAccessKey": secret, "awsRegion": "eu-central-1"}

            def from_registry(host, registry):
                return build(d, "cloud", [], key=key, fromTemplate=None, fromImage=f"{host}/x:1", fromImageRegistry=registry)
            end, said = from_registry(amazon, {**aws, "awsSecretAccessKey": "wrong"})
            check_equal(end["status"], "error", (end, said))
            check_in("refuses these credentials for AWS", end["reason"]["message"])
            end, said = from_registry(google, {"type": "gcp", "serviceAccountJson": '{"private_key": "other"}'})
            check_in("credentials", end["reason"]["message"])
            for host, registry in ((amazon, aws), (google, {"type": "gcp", "serviceAccountJson": gcp})):
                end, said = from_registry(host, registry)
                check_equal(end["status"], "ready", (end, said))
                check(secret not in str((end, said)) and "MIIgoogle1" not in str((end, said)), said)
            check_equal(asked[-1], ("/", "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken", b"{}"), asked)
            a_box(d, "cloud", key=key)
            kept = subprocess.run(["grep", "-rlaF", "-e", secret, "-e", "ecr-password", "-e", "MIIgoogle1", d.state],
                                  stdout=subprocess.PIPE, text=True).stdout
            check_equal(kept, "")
            check(secret not in d.log_path.read_text(errors="replace"), "the log has the key")
