"""What users of PyPI's e2b-code-interpreter do, against the daemon and the template that the environment names. Prints TAP."""
import asyncio
import os
import threading
import time

from e2b_code_interpreter import AsyncSandbox, Sandbox
from tap import finish, test

TEMPLATE = os.environ["TEMPLATE"]


def cells(s):
    assert s.run_code("x = 20").error is None
    r = s.run_code("x += 1; x * 2")
    assert (r.text, r.execution_count) == ("42", 2), r
    e = s.run_code("1 / 0").error
    assert (e.name, e.value) == ("ZeroDivisionError", "division by zero") and "1 / 0" in e.traceback, e
    [html] = s.run_code("from IPython.display import HTML\nHTML('<b>b</b>')").results
    assert html.html == "<b>b</b>" and html.is_main_result, html
    assert "".join(s.run_code("!pwd").logs.stdout).strip() == "/home/user"


def streaming(s):
    out, err, results, errors, times = [], [], [], [], []
    s.run_code("import sys, time\nprint('a', flush=True)\ntime.sleep(1)\nprint('b', file=sys.stderr, flush=True)\ndisplay(1)\nraise KeyError('k')",
               on_stdout=lambda m: (out.append(m.line), times.append(time.monotonic())),
               on_stderr=lambda m: (err.append(m.line), times.append(time.monotonic())),
               on_result=lambda r: results.append(r.text), on_error=lambda e: errors.append(e.name))
    assert (out, err, results, errors) == (["a\n"], ["b\n"], ["1"], ["KeyError"]), (out, err, results, errors)
    assert times[1] - times[0] > 0.5, "both lines came at the end"


def data(s):
    shown = {"text/plain": "t", "image/png": "QUJD", "image/svg+xml": "<svg/>", "text/latex": "$x$", "application/json": [1], "e2b/data": {"a": [1, None]},
             "e2b/chart": {"type": "bar", "title": "T", "x_label": "l", "x_unit": None, "y_label": None, "y_unit": "s", "elements": [{"label": "x", "group": "g", "value": 1.5}]}}
    seen = []
    [r] = s.run_code(f"display({shown!r}, raw=True)", on_result=seen.append).results
    assert (r.text, r.png, r.svg, r.latex, r.json, r.data) == ("t", "QUJD", "<svg/>", "$x$", [1], {"a": [1, None]}), r.__dict__
    assert (r.chart.type.value, r.chart.title, r.chart.x_label, r.chart.elements[0].value) == ("bar", "T", "l", 1.5), r.chart
    assert len(seen) == 1 and not r.is_main_result


def contexts(s):
    s.files.make_dir("/home/user/place")
    c = s.create_code_context(cwd="/home/user/place", language="python")
    s.run_code("y = 'default'")
    s.run_code("y = 'own'", context=c)
    assert s.run_code("y").text == "default" and s.run_code("y", context=c).text == "own"
    assert s.run_code("import os; os.getcwd()", context=c).text == "/home/user/place"
    assert c.id in [x.id for x in s.list_code_contexts()]
    s.restart_code_context(c)
    assert s.run_code("y", context=c).error.name == "NameError"
    s.remove_code_context(c)
    assert c.id not in [x.id for x in s.list_code_contexts()]


def variables(s):
    assert s.run_code("import os; os.environ.get('V')", envs={"V": "a'b$(id)"}).text == "a'b$(id)"
    assert s.run_code("import os; os.environ.get('V')").text is None
    assert s.run_code("import os; os.environ.get('GLOBAL')").text == "of the sandbox"


def bash(s):
    r = s.run_code("n=7; echo $n", language="bash")
    assert r.logs.stdout == ["7\n"], r
    assert s.run_code("echo $n; false", language="bash").error.value == "1"


def missing(s):
    try:
        s.run_code("1", language="r")
    except Exception as e:
        assert "language r is not installed" in str(e), e
        return
    raise AssertionError("no error")


def gives_up(s):
    s.run_code("kept = 5")
    try:
        s.run_code("import time\nwhile True: time.sleep(1)", timeout=3)
        raise AssertionError("no time-out")
    except Exception as e:
        assert "imeout" in type(e).__name__, repr(e)
    begun = time.monotonic()
    assert s.run_code("kept").text == "5"
    assert time.monotonic() - begun < 10, "the cell was not interrupted"


def killed(s):
    s.run_code("lost = 1")
    timer = threading.Timer(1, lambda: s.commands.run("pkill -KILL -x hutch-code"))
    timer.start()
    try:
        r = s.run_code("import time; time.sleep(100)")
        assert r.error, r
    except AssertionError:
        raise
    except Exception:  # the connection ended in the middle
        pass
    timer.join()
    stop = time.monotonic() + 60
    while True:
        try:
            assert s.run_code("lost").error.name == "NameError"
            return
        except AssertionError:
            raise
        except Exception:
            assert time.monotonic() < stop, "the service did not come back"
            time.sleep(0.2)


def paused(s):
    s.run_code("alive = 'yes'")
    s.pause()
    again = Sandbox.connect(s.sandbox_id)
    assert again.run_code("alive").text == "yes"


async def parallel():
    s = await AsyncSandbox.create(TEMPLATE)
    try:
        other = await s.create_code_context()
        met = "import os, time\nopen('/tmp/{0}', 'w')\nwhile not os.path.exists('/tmp/{1}'): time.sleep(0.01)\n'met'"
        a, b = await asyncio.gather(s.run_code(met.format("a", "b")), s.run_code(met.format("b", "a"), context=other))
        assert (a.text, b.text) == ("met", "met"), (a, b)
    finally:
        await s.kill()


def main():
    s = Sandbox.create(TEMPLATE, envs={"GLOBAL": "of the sandbox"}, timeout=900)
    try:
        for name, fn in (("cells share variables; results, errors, the counter", cells), ("callbacks are called while the cell runs", streaming), ("charts, tables and other data", data),
                         ("contexts: own variables and directory, list, restart, remove", contexts), ("variables of a call and of the sandbox", variables),
                         ("bash", bash), ("a language that is not installed", missing), ("a client that gives up interrupts the cell", gives_up),
                         ("pause and resume keep variables", paused), ("the service is killed in mid-cell and comes back", killed)):
            test(f"code: {name}", fn, s)
    finally:
        s.kill()
    test("code: async, two contexts in parallel", parallel)
    finish()


main()
