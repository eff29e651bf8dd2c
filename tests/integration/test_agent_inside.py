"""clients/agent-inside: an agent in a sandbox works with a model whose key is nowhere in the sandbox."""
import os
import pathlib
import re
import secrets
import subprocess
import sys
import tempfile
import threading

from daemon import Daemon
from hutch_test import TOP, check, check_equal, check_in, eventually
from internet import Internet, at
from node_client import ask, patient, put, sh

sys.path.insert(0, str(TOP / "clients/agent-inside"))
import model_stub  # noqa: E402

VALUE = "mk-" + secrets.token_hex(16)  # not in this file, which the sandbox may see


def processes_of(netns):
    """Pids of the host whose network namespace this is: everything in the sandbox, init too."""
    for p in os.listdir("/proc"):
        try:
            if p.isdigit() and os.readlink(f"/proc/{p}/ns/net") == netns:
                yield int(p)
        except OSError:
            continue


def memory_has(pid, needle):
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
            for line in maps:
                m = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
                if not m or "[v" in line:
                    continue
                start, end = int(m[1], 16), int(m[2], 16)
                try:
                    mem.seek(start)
                    if needle in mem.read(end - start):
                        return True
                except (OSError, ValueError, OverflowError):
                    continue
    except OSError:
        pass
    return False


def browse(url):
    with tempfile.TemporaryDirectory() as home:
        r = subprocess.run(["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={home}",
                            "--timeout=120000", "--dump-dom", url],
                           text=True, capture_output=True, timeout=300, check=False, env={**os.environ, "TMPDIR": home})
        return r.stdout or r.stderr


def test_agent_inside():
    "the agent finishes its task in a browser through the gateway; files, environments and memory inside hold no key"
    with Internet() as net:
        net.hosts["api.model.test"] = at(20)
        model = model_stub.server(at(20), 443, net.ca.leaf("api.model.test"), VALUE)
        threading.Thread(target=model.serve_forever, daemon=True).start()
        try:
            with Daemon(config=net.config()) as d:
                scene(d, model)
        finally:
            model.shutdown()
            model.server_close()


def scene(d, model):
    a = ask(d, "POST", "/v1/secrets", {"name": "model", "value": VALUE, "spec": {
        "env": "MODEL_API_KEY", "placeholder": "mk-{rand:32}", "bind": [{"hosts": ["api.model.test"], "methods": ["POST"], "paths": ["/v1/messages"]}],
        "inject": {"type": "replace", "in": ["header"]}}})
    check(a.status in (200, 201), a)
    doc = {"rules": [{"id": "model", "hosts": ["api.model.test"], "ports": [443], "http": [{"methods": ["POST"], "paths": ["/v1/messages"]}], "secrets": ["model"]}]}
    a = patient(d, "POST", "/v1/sandboxes", {"template": "host", "network": doc, "publicTraffic": True})
    check_equal(a.status, 201, a)
    b = a.json
    put(d, b, "agent.py", (TOP / "clients/agent-inside/agent.py").read_bytes())
    netns = sh(d, b, "MODEL_URL=https://api.model.test nohup python3 agent.py >log 2>&1 & readlink /proc/self/ns/net").text.strip()
    eventually(lambda: "200" in sh(d, b, "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8000/").text, 20, "the agent listens")
    page = browse(f"http://8000-{b['sandboxID']}.{d.domain}/?task=count+these+four")
    check_in("Done. The computer said: 3 user 1", page, page)
    check(model.RequestHandlerClass.served >= 2 and model.RequestHandlerClass.refused == 0, "the model was not asked with its key")
    inside = list(processes_of(netns))
    check(len(inside) >= 2, f"no process found in {netns}")
    shape = sh(d, b, "printf %s \"$MODEL_API_KEY\"").text
    check(re.fullmatch(r"mk-[A-Za-z0-9_-]{32}", shape) and shape != VALUE, shape)
    check(any(memory_has(p, shape.encode()) for p in inside), "the search finds nothing at all")
    check(not any(memory_has(p, VALUE.encode()) for p in inside), "the key is in the memory of a process inside")
    root = pathlib.Path(f"/proc/{inside[0]}/root")
    found = subprocess.run(["grep", "-rlsa", "--exclude-dir=proc", "--exclude-dir=sys", "--exclude-dir=usr", "--exclude-dir=lib", VALUE, str(root)],
                           text=True, capture_output=True, check=False).stdout
    check_equal(found.replace(str(root), ""), "", "the key is in a file inside")
    check_equal(sh(d, b, f"cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -c {VALUE[:20]}").text.strip(), "0")
