"""The packages that agents use to speak MCP, npm @modelcontextprotocol/client and PyPI mcp, call every tool over HTTP and over a pipe."""
import json
import os
import shutil
import subprocess

from hutch_test import HUTCH, check, check_equal, check_in, skip
from node import needs_root, node
from packages import CLIENTS, mcp_node, mcp_packages
from small import small_templates

BOX = {"sandbox": "$box"}
# run_code needs a template with kernels: test_code.py.
ELSEWHERE = {"run_code"}
# Tool, arguments, what is kept for later steps, and a part of the text that must come back.
STEPS = [
    ("create_sandbox", {"template": "small", "timeout_s": 600, "history": True}, {"box": "sandbox"}, "running"),
    ("list_sandboxes", {}, {}, "running"),
    ("run", {**BOX, "command": "mkdir -p /tmp/d; yes | head -c 40000; echo end"}, {"handle": "stdout_handle"}, "bytes left out"),
    ("read_output", {"handle": "$handle", "offset": 39998, "limit": 6}, {}, "y\nend\n"),
    ("write_file", {**BOX, "path": "/tmp/d/ä b", "content": "one\ntwo\n"}, {}, ""),
    ("edit_file", {**BOX, "path": "/tmp/d/ä b", "edits": [{"old_text": "two", "new_text": "zwei"}]}, {}, ""),
    ("read_file", {**BOX, "path": "/tmp/d/ä b"}, {}, "one\nzwei\n"),
    ("list_files", {**BOX, "path": "/tmp/d"}, {}, "ä b"),
    ("search", {**BOX, "path": "/tmp/d", "text": "zwei"}, {}, "ä b"),
    ("fork", {**BOX}, {"child": "sandboxes.0"}, "sandboxes"),
    ("read_file", {"sandbox": "$child", "path": "/tmp/d/ä b"}, {}, "zwei"),
    ("kill_sandbox", {"sandbox": "$child"}, {}, "killed"),
    ("snapshot", {**BOX}, {"template": "template"}, "template"),
    ("run", {**BOX, "command": "cat '/tmp/d/ä b'"}, {}, "zwei"),
    ("run", {**BOX, "command": "echo gone >'/tmp/d/ä b'"}, {}, ""),
    ("history", {**BOX}, {}, "generations"),
    ("undo", {**BOX}, {}, "changed"),
    ("read_file", {**BOX, "path": "/tmp/d/ä b"}, {}, "zwei"),
    ("try", {**BOX, "command": "echo tried >/tmp/d/new"}, {"tx": "transaction"}, "/tmp/d/new"),
    ("commit", {**BOX, "transaction": "$tx"}, {}, "committed"),
    ("expose_port", {**BOX, "port": 8000}, {}, "hutch-link="),
    ("request_grant", {**BOX, "host": "example.org"}, {}, "granted"),
    ("kill_sandbox", {**BOX}, {}, "killed"),
]


def program(kind):
    """The command that runs the client."""
    place, why = mcp_packages(kind)
    if not place:
        skip(f"the index of packages cannot be reached: {' '.join(why.split())[-200:]}")
    if kind == "python":
        return [place / "bin/python", CLIENTS / "mcp/client.py"]
    shutil.copy(CLIENTS / "mcp/client.mjs", place / "client.mjs")
    return [mcp_node(place), place / "client.mjs"]


def walk(d, kind, era, pipe):
    steps = d.dir / "steps.json"
    steps.write_text(json.dumps([{"tool": t, "args": a, "keep": k} for t, a, k, _ in STEPS]))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HUTCH_URL", "HUTCH_API_KEY", "MCP_"))}
    env |= {"MCP_STEPS": str(steps), "MCP_ERA": era}
    env |= {"MCP_COMMAND": HUTCH, "HUTCH_URL": d.url, "HUTCH_API_KEY": d.key} if pipe else {"MCP_URL": f"{d.url}/mcp", "MCP_KEY": d.key}
    r = subprocess.run([str(x) for x in program(kind)], env=env, text=True, capture_output=True, timeout=200, check=False)
    check_equal(r.returncode, 0, (kind, era, pipe, r.stdout[-500:], r.stderr[-3000:]))
    seen = json.loads(r.stdout)
    check_equal(len(seen["results"]), len(STEPS))
    for (name, args, _, part), result in zip(STEPS, seen["results"]):
        check(not result["error"], (kind, era, pipe, name, args, result))
        check_in(part, result["text"], (kind, era, pipe, name))
    check_equal(set(seen["tools"]) - {s[0] for s in STEPS} - ELSEWHERE, set())
    check_equal(seen["asked"], 1, "the person in front of the client is asked once")


def test_npm_client():
    "npm @modelcontextprotocol/client: every tool, over HTTP and a pipe, in both eras"
    needs_root()
    with small_templates() as t, node(templates=t) as (d, _):
        for era, pipe in (("modern", False), ("legacy", False), ("legacy", True), ("modern", True)):
            walk(d, "npm", era, pipe)


def test_python_client():
    "PyPI mcp: every tool, over HTTP and a pipe"
    needs_root()
    with small_templates() as t, node(templates=t) as (d, _):
        for era, pipe in (("modern", False), ("legacy", True)):
            walk(d, "python", era, pipe)
