"""The conformance suite of MCP against a node whose table of tools has the suite's fixtures beside the real ones; and the Inspector."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from hutch_test import HUTCH, TOP, check, check_equal, check_in, skip
from keyproxy import KeyProxy
from node import needs_root, node
from packages import mcp_node, mcp_packages

NODE = os.environ.get("HUTCH_MCP_NODE_BIN") or str(TOP / "build/tests/hutch-node-mcp")
SCORED = {"2025-11-25": 30, "2026-07-28": 37}


def packages():
    npm, why = mcp_packages("npm")
    if not npm:
        skip(f"the npm registry cannot be reached: {' '.join(why.split())[-200:]}")
    return npm


@contextlib.contextmanager
def fixtures():
    """A node with the suite's entries, and a proxy before it that adds the key, which the suite has no option for."""
    with tempfile.TemporaryDirectory(prefix="hutch-mcp-") as folder:
        os.chmod(folder, 0o755)
        shutil.copy(HUTCH, f"{folder}/hutch")
        shutil.copy(NODE, f"{folder}/hutch-node")
        shutil.copy(os.environ.get("HUTCH_CLIENT_BIN") or TOP / "build/hutch-client", f"{folder}/hutch-client")
        with node(hutch=f"{folder}/hutch") as (d, _), KeyProxy(d) as url:
            yield url, pathlib.Path(folder)


def program(npm, package, *args, folder):
    """Runs the program of an npm package with the Node.js that it wants; nothing is written to the user's home."""
    where = npm / "node_modules" / package
    names = json.loads((where / "package.json").read_text())["bin"]
    start = names if isinstance(names, str) else next(iter(names.values()))
    env = {**os.environ, "HOME": str(folder), "PATH": f"{mcp_node(npm).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}
    return subprocess.run([mcp_node(npm), where / start, *args], env=env, text=True, capture_output=True, timeout=300, check=False,
                          cwd=folder, stdin=subprocess.DEVNULL)


def test_conformance():
    "every scored scenario of both eras passes"
    needs_root()
    npm = packages()
    with fixtures() as (url, folder):
        for version, count in SCORED.items():
            r = program(npm, "@modelcontextprotocol/conformance", "server", "--url", f"{url}/mcp", "--requirements", version, folder=folder)
            ran, _, rest = r.stdout.rpartition("=== SUMMARY ===")[2].partition("Not scored")
            unscored = re.findall(r"[✓✗] ([\w-]+)", rest)
            results = {name: mark for mark, name in re.findall(r"^([✓✗]) ([\w-]+): .*$", ran, re.M) if name not in unscored}
            check_equal([name for name, mark in results.items() if mark == "✗"], [], r.stdout[-6000:])
            check_equal(r.returncode, 0, r.stdout[-6000:] + r.stderr[-2000:])
            check_equal(len(results), count, r.stdout[-3000:])


def test_inspector():
    "the Inspector's command line lists and calls tools in both eras"
    needs_root()
    npm = packages()
    with fixtures() as (url, folder):
        for era in ("legacy", "modern"):
            def inspect(*args, code=0, era=era):
                r = program(npm, "@modelcontextprotocol/inspector", "--cli", f"{url}/mcp", "--transport", "http", "--protocol-era", era,
                            "--format", "json", *args, folder=folder)
                check_equal(r.returncode, code, r.stdout + r.stderr)
                return r.stdout
            if era == "legacy":
                check_in('"create_sandbox"', inspect("--method", "tools/list"))
            check_in("there is no sandbox", inspect("--method", "tools/call", "--tool-name", "run", "--tool-arg", "sandbox=none",
                                                    "--tool-arg", "command=id", code=5))
