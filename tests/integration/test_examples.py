"""The examples do what their pages say."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

from daemon import free_port
from hutch_test import HUTCH, TOP, check, check_equal, is_root, run, skip, workspace, write

SCRIPT = TOP / "examples/js/hutch.js"


def copy_example(ws, who):
    return write(ws / "hutch.js", SCRIPT.read_text(), who)


def test_javascript_wrapper(who):
    "the JavaScript example passes input, output and exit code, and reads the record"
    if not shutil.which("node"):
        skip("node is not installed")
    with workspace(who) as ws:
        copy_example(ws, who)
        main = """
const { run, grants } = require('./hutch.js');
run(['sh', '-c', 'cat; echo err >&2; exit 3'], { input: 'in' }).then((r) =>
  console.log(JSON.stringify({ code: r.code, stdout: r.stdout, stderr: r.stderr, record: r.record, grants: grants(r.record) })));
"""
        r = run("node", "-e", main, who=who, cwd=ws, env={"HUTCH_BIN": HUTCH})
        check_equal(r.code, 0, r)
        got = json.loads(r.out)
        check_equal((got["code"], got["stdout"], got["stderr"]), (3, "in", "err\n"), r)
        check(got["record"] and "usage" in got["record"] and "death" in got["record"], r)


def test_demo_into_one_file():
    "what `make run` says of its node is all there when both of its streams go to one file"
    if not is_root():
        skip("needs root")
    if not shutil.which("curl"):
        skip("curl is not installed")
    with tempfile.TemporaryDirectory() as place:
        log = pathlib.Path(place, "log")
        env = {**os.environ, "HUTCH_DEMO_BASE": "off", "HUTCH_DEMO_PORT": str(free_port())}
        with log.open("wb") as f:
            code = subprocess.run([TOP / "tools/demo-node", HUTCH, place + "/run"], stdin=subprocess.DEVNULL, stdout=f, stderr=f, env=env, cwd=TOP,
                                  timeout=300, check=False).returncode
        text = log.read_text()
        check_equal(code, 0, text)
        for number in (6, 7, 8, 9, 10):
            check(f"== {number}. " in text, f"part {number} is not in the file:\n{text}")
        check("hutch cp $id:answer -\n42\n" in text, text)
