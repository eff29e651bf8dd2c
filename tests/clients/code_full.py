"""The whole template code-interpreter: every language answers, keeps variables and is interrupted; chart data agree with what matplotlib drew
and with what E2B's package makes of it. Prints TAP. PICTURES: a directory for the pictures and their data, to look at."""
import base64
import json
import math
import os
import pathlib

from e2b_code_interpreter import Sandbox
from tap import finish, test

TEMPLATE, PICTURES = os.environ["TEMPLATE"], os.environ.get("PICTURES")

# language: (sets, reads, what is read, fails, its error, never ends, variables stay after an interrupt)
LANGUAGES = {
    "python": ("x = 41", "x + 1", "42", "1 / 0", "ZeroDivisionError", "while True: pass", True),
    "bash": ("x=41", "echo $((x + 1))", "42", "false", "ExitCode", "while :; do sleep 0.1; done", True),
    "r": ("x <- 41", "x + 1", "[1] 42", "stop('no')", "ERROR", "while (TRUE) Sys.sleep(0.1)", True),
    "javascript": ("let x = 41", "x + 1", "42", "throw new TypeError('no')", "TypeError", "while (true) {}", False),
    "typescript": ("let y: number = 41", "y + 1", "42", "throw new TypeError('no')", "TypeError", "while (true) {}", False),
    "java": ("int x = 41;", "x + 1", "42", "throw new RuntimeException(\"no\");", "RuntimeException", "while (true) Thread.sleep(100);", True),
}


def run(s, code, language, **more):
    return s.run_code(code, language=language, **more)


def text_of(r):
    found = [x.text for x in r.results if x.text] + r.logs.stdout
    return "".join(found).strip()


def language(s, name):
    sets, reads, value, fails, error, endless, stays = LANGUAGES[name]
    r = run(s, sets, name)
    assert not r.error, r
    r = run(s, reads, name)
    assert text_of(r) == value, r
    r = run(s, fails, name)
    assert r.error and error in r.error.name, r
    try:
        run(s, endless, name, timeout=2)
        raise AssertionError("no time-out")
    except Exception as e:
        assert "imeout" in type(e).__name__, repr(e)
    r = run(s, reads, name)
    assert text_of(r) == value if stays else r.error, r


def variables(s):
    for name, code in (("python", "import os; os.environ['V']"), ("bash", "echo $V"), ("r", "Sys.getenv('V')"), ("java", "System.getProperty(\"V\")"),
                       ("javascript", "process.env.V"), ("typescript", "process.env.V")):
        r = s.run_code(code, language=name, envs={"V": "a'b\"c"})
        assert text_of(r).replace("\\", "").strip("\"`").endswith("a'b\"c"), (name, r)


def places(s):
    for name, code in (("javascript", "process.cwd()"), ("r", "getwd()"), ("java", "System.getProperty(\"user.dir\")"), ("bash", "pwd")):
        assert "/home/user" in text_of(s.run_code(code, language=name)), name


def packages(s):
    r = s.run_code("import numpy, pandas, matplotlib, scipy, sklearn, seaborn, sympy, PIL, openpyxl, requests; 'all'")
    assert r.text == "all", r
    r = s.run_code("import pandas as pd, numpy as np\npd.DataFrame({'n': [1, 2.5, np.nan], 't': pd.to_datetime(['2024-01-02', None, '2024-03-04']), 's': ['a', None, 'c']})")
    assert r.results[0].data["n"] == [1, 2.5, None] and r.results[0].data["t"] == ["2024-01-02T00:00:00", "NaT", "2024-03-04T00:00:00"], r.results[0].data
    r = s.run_code("[1, {'a': np.float64(2)}, float('inf')]")
    assert r.results[0].json == [1, {"a": 2.0}, None], r.results[0].json
    [r] = s.run_code("from PIL import Image\nImage.new('RGB', (8, 8), 'red')").results
    assert base64.b64decode(r.png).startswith(b"\x89PNG"), r


HEAD = "import matplotlib.pyplot as plt, numpy as np, datetime, pandas as pd, seaborn as sns\nplt.close('all')\nf, ax = plt.subplots()\n"
CHARTS = {
    "line": "ax.plot([1, 2, 3], [4, 5, 6.5], label='a'); ax.plot([1, 3], [6, 4])\nax.set(title='T', xlabel='time (s)', ylabel='v [km/h]')",
    "dates": "ax.plot([datetime.date(2024, 1, d) for d in (1, 2, 3)], [1, 3, 2], label='d')",
    "log": "ax.scatter([1, 2, 3], [1, 10, 100], label='s'); ax.set_yscale('log')",
    "bar": "ax.bar(['x', 'y', 'z'], [1, 3, 2], label='g'); ax.set_ylabel('n (kg)')",
    "grouped": "x = np.arange(2); ax.bar(x - .2, [1, 2], .4, label='m'); ax.bar(x + .2, [3, 4], .4, label='w'); ax.set_xticks(x, ['A', 'B'])",
    "barh": "ax.barh(['x', 'y'], [3, 1]); ax.set(xlabel='n', ylabel='who')",
    "pie": "ax.pie([1, 2, 1], labels=['a', 'b', 'c'])",
    "box": "ax.boxplot([[1, 2, 3, 4, 20], [2, 3, 4, 5, 6]], tick_labels=['p', 'q'])",
    "patch": "ax.boxplot([[1, 2, 3, 4, 20], [2, 3, 4, 5, 6]], tick_labels=['p', 'q'], patch_artist=True)",
    "seaborn": "sns.boxplot(data=pd.DataFrame({'p': [1, 2, 3, 4, 20], 'q': [2, 3, 4, 5, 6]}), ax=ax)",
    "wide": "ax.boxplot([[1, 2, 3, 4, 5.5, 30], [2, 3, 5, 6, 9]], tick_labels=['p', 'q'], patch_artist=True)",  # E2B's fails without a whisker
    "super": "plt.close('all'); f, (a, b) = plt.subplots(1, 2); f.suptitle('S'); a.plot([1, 2]); b.pie([1, 1], labels=['u', 'v'])",
    "words": "ax.plot(['mon', 'tue'], [1, 2])",
    "unknown": "ax.imshow(np.arange(9).reshape(3, 3))",
}


def chart_of(s, name):
    r = s.run_code(HEAD + CHARTS[name] + "\nplt.show()")
    assert not r.error, r.error
    [shown] = [x for x in r.results if x.png]
    if PICTURES:
        pathlib.Path(PICTURES, f"{name}.png").write_bytes(base64.b64decode(shown.png))
        pathlib.Path(PICTURES, f"{name}.json").write_text(json.dumps(shown.chart.to_dict() if shown.chart else None, indent=1))
    return shown.chart.to_dict()


def charts(s):
    c = chart_of(s, "line")
    assert (c["type"], c["title"], c["x_unit"], c["y_unit"], c["x_scale"]) == ("line", "T", "s", "km/h", "linear"), c
    assert c["elements"] == [{"label": "a", "points": [[1, 4], [2, 5], [3, 6.5]]}, {"label": "Line 1", "points": [[1, 6], [3, 4]]}], c
    assert len(c["x_ticks"]) == len(c["x_tick_labels"]) and [float(t) for t in c["x_tick_labels"]] == c["x_ticks"], c
    c = chart_of(s, "dates")
    assert c["x_scale"] == "datetime" and c["elements"][0]["points"][0] == ["2024-01-01", 1] and c["x_ticks"][0].startswith("2024-01-01T"), c
    c = chart_of(s, "log")
    assert (c["type"], c["y_scale"], c["elements"]) == ("scatter", "log", [{"label": "s", "points": [[1, 1], [2, 10], [3, 100]]}]), c
    c = chart_of(s, "bar")
    assert c["elements"] == [{"label": x, "group": "g", "value": v} for x, v in (("x", 1), ("y", 3), ("z", 2))] and c["y_unit"] == "kg", c
    c = chart_of(s, "grouped")
    assert [(e["label"], e["group"], e["value"]) for e in c["elements"]] == [("A", "m", 1), ("B", "m", 2), ("A", "w", 3), ("B", "w", 4)], c
    c = chart_of(s, "barh")
    assert [(e["label"], e["value"]) for e in c["elements"]] == [("x", 3), ("y", 1)] and c["y_label"] == "n", c
    c = chart_of(s, "pie")
    assert [(e["label"], e["angle"], e["radius"]) for e in c["elements"]] == [("a", 90, 1), ("b", 180, 1), ("c", 90, 1)], c
    for name in ("box", "patch", "seaborn"):
        c = chart_of(s, name)
        assert c["type"] == "box_and_whisker" and c["elements"] == [
            {"label": "p", "min": 1, "first_quartile": 2, "median": 3, "third_quartile": 4, "max": 4, "outliers": [20]},
            {"label": "q", "min": 2, "first_quartile": 3, "median": 4, "third_quartile": 5, "max": 6, "outliers": []}], (name, c)
    c = chart_of(s, "super")
    assert (c["type"], c["title"], [e["type"] for e in c["elements"]]) == ("superchart", "S", ["line", "pie"]), c
    assert chart_of(s, "words")["x_scale"] == "categorical"
    assert chart_of(s, "unknown")["type"] == "unknown"


def as_e2b(s):
    """E2B's own extractor, on the same figures: where it reads a chart, ours reads the same."""
    r = s.run_code("import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pip', 'install', '-q', '--target', '/tmp/e2b', '--no-deps', 'e2b-charts', "
                   "'pydantic', 'pydantic-core', 'annotated-types', 'typing-inspection', 'typing-extensions'], capture_output=True, text=True)")
    if "returncode=0" not in (r.text or ""):
        print("# e2b-charts cannot be installed in the sandbox; compared without it")
        return
    for name in ("line", "dates", "log", "bar", "grouped", "barh", "pie", "wide", "super", "words"):
        r = s.run_code("import sys; sys.path.append('/tmp/e2b')\n" + HEAD + CHARTS[name] + "\nimport e2b_charts, hutch_charts, json\nf.canvas.draw()\n"
                       "json.dumps([json.loads(json.dumps(x, default=str)) for x in (e2b_charts.chart_figure_to_dict(f), hutch_charts.figure_chart(f))])")
        assert not r.error, (name, r.error)
        theirs, ours = json.loads(next(x.text for x in r.results if x.is_main_result))
        assert same(theirs, ours), f"{name}:\n{json.dumps(theirs)}\n{json.dumps(ours)}"


def same(a, b):
    if isinstance(a, dict):
        return all(same(v, b.get(k)) for k, v in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-6)
    return a == b


def main():
    s = Sandbox.create(TEMPLATE, timeout=1800)
    try:
        for name in LANGUAGES:
            test(f"code: {name}: variables, errors, interrupts", language, s, name)
        for name, fn in (("variables of a call in each language", variables), ("the directory in each language", places), ("packages, tables, lists, pictures", packages),
                         ("charts agree with what was drawn", charts), ("charts agree with E2B's extractor", as_e2b)):
            test(f"code: {name}", fn, s)
    finally:
        s.kill()
    finish()


main()
