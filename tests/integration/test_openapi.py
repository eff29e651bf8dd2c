"""docs/openapi.json against what a node answers: schemathesis makes requests from it, right ones and wrong ones, and compares."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from daemon import TOP, sanitized
from hutch_test import check, check_equal, skip
from node import needs_root, node
from node_client import ask, create
from packages import schema_packages
from small import small_templates

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "response_headers_conformance", "allow_header_conformance", "unsupported_method")
SECONDS = 600  # that a run may take on a busy machine; it needs one minute


def good(a, *statuses):
    check(a.status in (statuses or (200, 201, 204)), a)
    return a


def things(d):
    """Things that requests can name: see schema_hooks.py."""
    box = create(d, templateID="small", history=True, timeout=3600)["sandboxID"]
    risk = create(d, templateID="small", timeout=3600)["sandboxID"]
    good(ask(d, "POST", "/v1/tenants", {"id": "other", "name": "other"}))
    volume = good(ask(d, "POST", "/v1/volumes", {"name": "known", "quota": {"bytes": 32 << 20}})).json["id"]
    secret = good(ask(d, "POST", "/v1/secrets", {"name": "known", "value": "x"})).json["id"]
    good(ask(d, "POST", f"/v1/sandboxes/{box}/history", {}))
    tx = good(ask(d, "POST", f"/v1/sandboxes/{box}/tx", {"command": "echo a > /tmp/a"})).json["id"]
    good(ask(d, "POST", f"/sandboxes/{risk}/pause", {}))
    return {"box": box, "risk": risk, "volume": volume, "secret": secret, "tx": tx}


def host_cannot(folder):
    """A 501 says that this host cannot, and is an answer where openapi.json names it; every other 5xx fails, as everywhere."""
    config = pathlib.Path(folder, "schemathesis.toml")
    paths = json.loads((TOP / "docs/openapi.json").read_text())["paths"]
    config.write_text("".join(f'[[operations]]\ninclude-name = "{m.upper()} {p}"\nchecks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 501]\n'
                              for p, methods in paths.items() for m, op in methods.items() if "501" in op["responses"]))
    return config


def schemathesis(d, ids, *options):
    """One run with a fixed seed; what it says."""
    where, why = schema_packages()
    if not where:
        skip(f"the package index cannot be reached: {' '.join(why.split())[-200:]}")
    env = {**os.environ, "PYTHONPATH": str(TOP / "tests/lib"), "PYTHONDONTWRITEBYTECODE": "1", "SCHEMATHESIS_HOOKS": "schema_hooks",
           "HUTCH_SCHEMA_IDS": json.dumps(ids), "NO_COLOR": "1", "COLUMNS": "160"}
    with tempfile.TemporaryDirectory(prefix="hutch-schema-") as folder:  # it leaves files where it runs
        r = subprocess.run([where / "bin/python", "-m", "schemathesis.cli", "--config-file", host_cannot(folder), "run", TOP / "docs/openapi.json", "--url", d.url, "-H", f"X-API-KEY: {d.key}",
                            "--no-color", "--seed", os.environ.get("HUTCH_SCHEMA_SEED", "1"), "--generation-database", "none", "--continue-on-failure", "--request-timeout", "60",
                            "--checks", ",".join(CHECKS), *options], cwd=folder, env=env, text=True, capture_output=True, timeout=SECONDS, check=False)
    text = r.stdout + r.stderr
    found = re.search(r"=+ (?:ERRORS|FAILURES) =+.*?(?==+ WARNINGS|=+ SUMMARY)", text, re.S)
    return r.returncode, (found[0][:12000] if found else "") + text[-3000:]


def test_answers_fit_their_description():
    "answers of every route have a status, a type and a form that openapi.json names, none is a 5xx, and front is the same afterwards"
    needs_root()
    with small_templates() as templates, sanitized() as (hutch, environ):
        shutil.copytree(templates / "small", templates / "base", symlinks=True)  # what a create without a template gets
        with node(templates=templates, hutch=hutch, environ=environ) as (d, _):
            front = d.children("front")
            ids = things(d)
            everything = ("--phases", "examples,coverage,fuzzing", "--max-examples", "4")
            code, text = schemathesis(d, ids, *everything, "--exclude-path", "/v1/stop-all")
            check_equal(d.children("front"), front, f"front died:\n{text}\n{d.log()}")
            check_equal(code, 0, text)
            # It ends the sandboxes that the others ask.
            code, stopped = schemathesis(d, ids, *everything, "--include-path", "/v1/stop-all")
            check_equal(code, 0, stopped)
            routes = sum(len(m) for m in json.loads((TOP / "docs/openapi.json").read_text())["paths"].values())
            tested = [int(n) for t in (text, stopped) for n in re.findall(r"Tested: (\d+)", t)]
            check_equal(sum(tested), routes, text)
            check_equal(d.children("front"), front, d.log())
