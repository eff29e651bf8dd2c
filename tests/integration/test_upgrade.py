"""An older program's node, with everything a node can hold, is taken over by the program of this tree.

The older program is built once from the commit named in UPGRADE_FROM into build-old/ (minutes; `make soak` does it); a machine that
has it runs the test in `make test`, too. A later release adds its own commit here and keeps the older ones that users may have.
"""
import os
import subprocess
import urllib.parse

from hutch_test import SOAK, TOP, check, check_equal, eventually, skip
from internet import Internet
from node import node, patiently
from node_client import ask, get, patient, put, sh
from small import small_templates
from test_state import connect, number, of, pause, state, ticking

UPGRADE_FROM = "e110d49a19bc33e69f6d3013936e143ea2fba425"
SECRET = "sk-live-7d20c1e5b3a94f68"


def old_program():
    """build/hutch of the older commit."""
    tree = TOP / "build-old" / UPGRADE_FROM[:12]
    program = tree / "build/hutch"
    if program.exists():
        return program
    if not SOAK:
        skip("builds an older program, which takes minutes; `make soak` does it")
    if subprocess.run(["git", "-C", TOP, "cat-file", "-e", UPGRADE_FROM], capture_output=True, check=False).returncode:
        skip(f"this checkout has no commit {UPGRADE_FROM[:12]}: fetch the whole history")
    tree.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "-C", TOP, "archive", UPGRADE_FROM], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
    built = subprocess.run(["tools/build", "release"], cwd=tree, text=True, capture_output=True, check=False)
    check_equal(built.returncode, 0, built.stderr[-2000:])
    return program


def made(answer, *good):
    check(answer.status in (good or (200, 201)), answer)
    return answer.json


def a_sandbox(d, **more):
    return made(patient(d, "POST", "/v1/sandboxes", {"template": "small", "timeout": 600, **more}))


def volume_file(d, v, method, path, body=None):
    return ask(d, method, f"/volumecontent/{v['volumeID']}/file?" + urllib.parse.urlencode({"path": path}), body, key="",
               headers={"Authorization": f"Bearer {v['token']}"}, kind="application/octet-stream")


def fill(d):
    """Everything a node can hold, made by the older program."""
    made(ask(d, "POST", "/v1/secrets", {"name": "llm", "value": SECRET, "spec": {
        "bind": [{"hosts": ["api.test"], "paths": ["/echo"]}], "env": "LLM_KEY", "inject": {"type": "replace", "in": ["header"]}}}))
    rules = {"rules": [{"id": "llm", "hosts": ["api.test"], "secrets": ["llm"]}]}
    volume = made(ask(d, "GET", "/volumes/" + made(ask(d, "POST", "/v1/volumes", {"name": "data"}))["id"]))
    check(volume_file(d, volume, "PUT", "/kept", b"in the volume").status < 300)
    there = {"volume": volume, "key": made(ask(d, "POST", "/v1/keys", {"tenant": "default", "name": "old", "scopes": ["sandboxes"]}))}
    there["online"] = a_sandbox(d, template="host", network=rules)
    for name in ("living", "frozen", "stored"):
        box = there[name] = a_sandbox(d, metadata={"name": name}, volumes=[{"name": "data", "path": "/data"}] if name == "living" else [],
                                      **({"history": True} if name == "stored" else {}))
        check_equal(put(d, box, "/home/user/own", name.encode()).status, 200)
    there["pid"] = ticking(d, there["living"]), ticking(d, there["frozen"])
    check_equal(sh(d, there["stored"], "echo second > /home/user/later").code, 0)
    pause(d, there["frozen"])
    there["snapshot"] = made(ask(d, "POST", of(there["living"], "/snapshots"), {"name": "ready"}, timeout=60))
    there["history"] = made(ask(d, "GET", f"/v1/sandboxes/{there['stored']['sandboxID']}/history"))
    pause(d, there["stored"], memory=False)
    there["placeholder"] = sh(d, there["online"], 'printf %s "$LLM_KEY"').text
    check(len(there["placeholder"]) > 20, there["placeholder"])
    there["listed"] = sorted(b["sandboxID"] for b in ask(d, "GET", "/v2/sandboxes?state=running,paused").json)
    return there


def compare(d, net, there):
    """The same, as the program of this tree shows it."""
    listed = sorted(b["sandboxID"] for b in patiently(lambda: ask(d, "GET", "/v2/sandboxes?state=running,paused")).json)
    check_equal(listed, there["listed"])
    living, frozen, stored = (there[name] for name in ("living", "frozen", "stored"))
    check_equal([state(d, box) for box in (living, frozen, stored)], ["running", "paused", "paused"])
    # what lives: the same process counts on, files, volume, secret
    before = number(d, living)
    eventually(lambda: number(d, living) > before, 20, "the living sandbox's process counts on")
    check_equal(sh(d, living, f"kill -0 {there['pid'][0]} && cat /home/user/own /data/kept").text, "livingin the volume")
    # the secret: the same placeholder inside, the value at the server it is bound to
    check_equal(sh(d, there["online"], 'printf %s "$LLM_KEY"').text, there["placeholder"])
    call = "curl -sS --max-time 20 -H \"Authorization: Bearer $LLM_KEY\" https://api.test/echo"
    eventually(lambda: there["placeholder"] in sh(d, there["online"], call).text, 60, "its network is in force")
    check_equal(net.seen("api.test")[-1]["headers"]["authorization"], f"Bearer {SECRET}")
    # what was paused, with memory and as files
    connect(d, frozen, timeout=300)
    before = number(d, frozen)
    eventually(lambda: number(d, frozen) > before, 20, "the frozen sandbox's process counts on")
    connect(d, stored, timeout=300)
    check_equal(sh(d, stored, "cat /home/user/own /home/user/later").text, "storedsecond\n")
    history = made(ask(d, "GET", f"/v1/sandboxes/{stored['sandboxID']}/history"))
    check(len(str(history)) >= len(str(there["history"])), history)
    # what outlives sandboxes
    copy = made(patient(d, "POST", "/v2/sandboxes", {"templateID": there["snapshot"]["snapshotID"]}))
    check_equal(get(d, copy, "/home/user/own").body, b"living")
    check_equal(volume_file(d, there["volume"], "GET", "/kept").body, b"in the volume")
    check_equal([s["name"] for s in made(ask(d, "GET", "/v1/secrets")).get("secrets", [])] or ["llm"], ["llm"])
    check_equal(ask(d, "GET", f"/sandboxes/{living['sandboxID']}", key=there["key"]["key"]).status, 200)
    check(SECRET.encode() not in b"".join(p.read_bytes() for p in d.state.rglob("*") if p.is_file() and p.stat().st_size < 1 << 24))


def test_upgrade_in_place():
    "a node of an older program with living, frozen, stored and snapshotted sandboxes, a volume, a secret and a key loses nothing"
    program = old_program()
    with small_templates() as templates, Internet() as net:
        config = net.config().replace("sandboxes:\n", "sandboxes:\n  driver: tmpfs\n", 1)  # the name that the older program knows
        upgrade(program, templates, net, config)


def upgrade(program, templates, net, config):
    with node(templates=templates, hutch=program, config=config) as (d, _):
        there = fill(d)
        d.stop(sandboxes=False)
        d.hutch = os.environ.get("HUTCH_BIN") or str(TOP / "build/hutch")
        d.start()
        compare(d, net, there)
        # and once more, by the same program: what the first start of it wrote is read as well
        d.stop(sandboxes=False)
        d.start()
        check_equal(state(d, there["living"]), "running")
