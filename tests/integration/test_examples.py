"""The examples do what their pages say."""
import json
import shutil

from hutch_test import HUTCH, TOP, check, check_equal, run, skip, workspace, write

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
