"""Results of bench/state as Markdown tables and plots."""
import html
import math
import statistics

import measure

P99_FROM = 100  # rounds; with fewer the largest value is shown
# operation: (title, what it is, [(metric, its name)])
TITLES = {
    "snapshot": (
        "Snapshot",
        "`POST /sandboxes/{id}/snapshots` of a running sandbox, until the answer. A file was changed before each. "
        "*Frozen* is how long the sandbox stood still (`hutch.frozenUs`). What hutch has answered is on disk "
        "(`syncfs`); of the others only the one that says so.",
        [("ms", "time"), ("frozen", "time frozen"), ("disk", "bytes on disk")]),
    "restore": (
        "Restore",
        "A new sandbox from a snapshot, from the request until the first byte that a command in it has read from a "
        "restored file. podman: `podman run IMAGE cat`; the rest make a tree and run nothing.",
        [("ms", "time")]),
    "fork": (
        "Fork",
        "`POST /sandboxes/{id}/fork`, until all children run. podman: `commit`, then that many `run -d` at once; the "
        "rest make that many trees.",
        [("fork1", "one child"), ("fork10", "ten children")]),
    "pause": (
        "Pause and resume in memory",
        "`POST /pause` and `POST /connect` of a sandbox whose processes stay, over one connection. podman: `pause`, `unpause`.",
        [("pause", "pause"), ("resume", "resume")]),
    "files": (
        "Pause as files, resume from files",
        '`POST /pause {"memory": false}`; `POST /connect` until the first byte of output of a command. *Again*: a '
        "second pause after one file was changed. podman: `stop -t 0`; `start` and `exec`, which keep the layer where "
        "it is.",
        [("pause", "pause"), ("resume", "resume"), ("pause2", "pause again"), ("resume2", "resume again")]),
    "wake": (
        "Wake by traffic",
        "A request to a web server in a sandbox that is paused in memory and may be woken, until the answer; and the "
        "same request to the running sandbox. Each opens a connection of its own.",
        [("wake", "paused"), ("running", "running")]),
    "history": (
        "History",
        "A generation after one file was changed, and going back to it after one more change (which makes a "
        "generation too). The others copy the whole tree.",
        [("generation", "generation"), ("frozen", "time frozen"), ("undo", "undo")]),
    "importing": (
        "Import of an image",
        "An OCI archive with one uncompressed layer that holds busybox and the files. hutch: `hutch template import`, "
        "on disk when it is done. podman: `load`. umoci: `unpack` of the layout.",
        [("ms", "time")]),
    "build": (
        "Build of a Dockerfile",
        "One `COPY` of the files, one `RUN`. *Cold*: one file of the context is new, so it is uploaded and everything "
        "is run. *Cached*: the same again. hutch: `hutch template build`. podman: `build --isolation=chroot`.",
        [("cold", "cold"), ("cached", "cached")]),
}
OURS = ["#c2410c", "#ea580c", "#f59e0b", "#b91c1c", "#db2777"]
OTHERS = ["#1d4ed8", "#0891b2", "#059669", "#7c3aed", "#475569", "#65a30d", "#0f766e", "#4338ca", "#94a3b8"]
INK, PALE = "#1f2937", "#d1d5db"


def values(row, metric):
    return [found[metric] for found in row["rounds"] if found.get(metric) is not None]


def worst(found):
    return measure.percentile(found, 99) if len(found) >= P99_FROM else max(found)


def ms(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def amount(value):
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} B"


def line(row):
    """One line for the terminal."""
    parts = [f"{name} {amount(statistics.median(v)) if metric == 'disk' else ms(statistics.median(v)) + ' ms'}"
             for metric, name in TITLES[row["operation"]][2] if (v := values(row, metric))]
    return f"{row['contender']:16} n={len(row['rounds'])}  " + ", ".join(parts)


def unique(rows, key):
    return list(dict.fromkeys(row[key] for row in rows))


def cell(row, metric):
    found = values(row, metric) if row else []
    if not found:
        return "–"
    if metric == "disk":
        return amount(statistics.median(found))
    return f"{ms(statistics.median(found))} ({ms(worst(found))})"


def table(rows, metric, name):
    rows = [row for row in rows if values(row, metric)]
    if not rows:
        return []
    loads = unique(rows, "load")
    out = [f"| {name}{'' if metric == 'disk' else ', ms'} | " + " | ".join(loads) + " |", "|---|" + "---:|" * len(loads)]
    for who in unique(rows, "contender"):
        own = {row["load"]: row for row in rows if row["contender"] == who}
        label = f"**{who}**" if next(iter(own.values()))["ours"] else who
        out.append(f"| {label} | " + " | ".join(cell(own.get(load), metric) for load in loads) + " |")
    return [*out, ""]


def ratio(ours, theirs, metric):
    """Median over rounds of the quotient within a round."""
    found = [a[metric] / b[metric] for a, b in zip(ours["rounds"], theirs["rounds"]) if a.get(metric) and b.get(metric)]
    return f"{statistics.median(found):.3g}" if found else "–"


def ratios(rows, metric, name):
    others = [who for who in unique([row for row in rows if not row["ours"] and values(row, metric)], "contender")]
    if not others or metric in ("disk", "frozen"):
        return []
    out = [f"| {name}: hutch divided by | " + " | ".join(others) + " |", "|---|" + "---:|" * len(others)]
    for row in rows:
        if row["ours"] and values(row, metric):
            same = {other["contender"]: other for other in rows if not other["ours"] and other["load"] == row["load"]}
            out.append(f"| {row['contender']}, {row['load']} | " +
                       " | ".join(ratio(row, same[who], metric) if who in same else "–" for who in others) + " |")
    return [*out, ""]


def section(operation, rows, plots):
    title, text, metrics = TITLES[operation]
    out = [f"## {title}", "", text, "", f"Rounds: {report_rounds(rows)}.", ""]
    for metric, name in metrics:
        out += table(rows, metric, name)
    for metric, name in metrics:
        out += ratios(rows, metric, name)
    return out + [f"![{title}](plots/{name})" for name in plots] + [""]


def report_rounds(rows):
    ours, others = ({len(row["rounds"]) for row in rows if row["ours"] is mine} for mine in (True, False))
    text = "/".join(map(str, sorted(ours)))
    return text if not others or others == ours else f"{text}, of the others {'/'.join(map(str, sorted(others)))}"


def head(results):
    m = results["meta"]
    out = ["# Files of sandboxes: snapshots, forks, pauses, history, images", "",
           f"Made by `{m['command']}` on {m['date']}, in {m['minutes']:.0f} minutes. Linux {m['kernel']}, {m['cores']} cores, "
           f"{m['memory_kib'] / (1 << 20):.0f} GiB. Load average {m['load_before']:.1f} before, {m['load_after']:.1f} after; "
           f"of {m['waits']} waits for a quiet machine {m['waits_in_vain']} were given up. "
           + ", ".join(f"{name} {version}" for name, version in m["versions"].items() if version) + ".", ""]
    if m["quick"]:
        out += ["**A quick run**: small loads and few rounds. It shows that everything works and which order of magnitude is to be "
                "expected, not how fast it is.", ""]
    if m.get("note"):
        out += [m["note"], ""]
    return out + ["Medians; in brackets the 99th percentile, with fewer than 100 rounds the largest value. Ratios are made within a "
                  "round, below 1 hutch is faster; the median over rounds is shown. Files of 1 MB unless a column says a number of "
                  "files: those have 1 KB each, 100 in a directory. Half of each file is random. [README](README.md) says how it is "
                  "measured, `results-state.json` has every single value.", "",
                  "| | what it is |", "|---|---|", *(f"| {name} | {note} |" for name, note in results["contenders"]), ""]


def tail(results):
    out = ["## Not measured", ""] if results["skipped"] or results["failures"] else []
    out += [f"- {one['contender']}: {' '.join(one['reason'].split())}" for one in results["skipped"]]
    out += [f"- {one['contender']}, {one['operation']}, {one['load']}: failed: {one['message']}" for one in results["failures"]]
    return out + [""] if out else out


# --- plots --------------------------------------------------------------------------------------------------------------

def words(x, y, text, size=12, anchor="start", weight="normal", fill=INK):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{fill}">'
            f"{html.escape(text)}</text>")


def plot(title, rows, metric):
    """Medians over loads: logarithmic, hutch in warm colours, the others in cold ones and dashed."""
    width, height, left, right, top, bottom = 860, 420, 70, 200, 56, 46
    rows = [row for row in rows if values(row, metric)]
    loads, who = unique(rows, "load"), unique(rows, "contender")
    at = {(row["contender"], row["load"]): max(1e-3, statistics.median(values(row, metric))) for row in rows}
    low = 10 ** math.floor(math.log10(min(at.values())))
    high = 10 ** math.ceil(math.log10(max(at.values()) * 1.001))
    xs = {load: left + (width - left - right) * (i + 0.5) / len(loads) for i, load in enumerate(loads)}

    def y(value):
        return height - bottom - (height - top - bottom) * math.log10(value / low) / math.log10(high / low)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="system-ui, sans-serif" role="img">', f"<title>{html.escape(title)}</title>",
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>', words(20, 28, title, 16, weight="bold"),
           words(20, 46, "median, logarithmic; full lines: hutch; dashed: others", 11, fill="#4b5563")]
    tick = low
    while tick <= high * 1.001:
        out += [f'<line x1="{left}" y1="{y(tick):.1f}" x2="{width - right}" y2="{y(tick):.1f}" stroke="{PALE}"/>',
                words(left - 6, y(tick) + 4, f"{tick:g} ms", 11, "end")]
        tick *= 10
    out += [words(x, height - bottom + 20, load, 12, "middle") for load, x in xs.items()]
    mine = {row["contender"] for row in rows if row["ours"]}
    warm, cold = iter(OURS * 3), iter(OTHERS * 3)
    for i, name in enumerate(who):
        colour, dash = (next(warm), "") if name in mine else (next(cold), ' stroke-dasharray="5 3"')
        points = [(xs[load], y(at[name, load])) for load in loads if (name, load) in at]
        # Numbers of files are another axis than bytes: no line leads there.
        joined = [(xs[load], y(at[name, load])) for load in loads if (name, load) in at and "files" not in load]
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2"{dash} points="'
                   + " ".join(f"{x:.1f},{v:.1f}" for x, v in joined) + '"/>')
        out += [f'<circle cx="{x:.1f}" cy="{v:.1f}" r="3.5" fill="{colour}"/>' for x, v in points]
        legend = top + 8 + i * 20
        out += [f'<line x1="{width - right + 14}" y1="{legend}" x2="{width - right + 40}" y2="{legend}" stroke="{colour}" '
                f'stroke-width="2"{dash}/>',
                words(width - right + 46, legend + 4, name, 12, weight="bold" if name in mine else "normal")]
    return "\n".join([*out, "</svg>"]) + "\n"


def write(results, folder):
    """RESULTS-STATE.md and the plots that it shows."""
    place = folder / "plots"
    place.mkdir(exist_ok=True)
    for old in place.glob("state-*.svg"):
        old.unlink()
    out = head(results)
    for operation, (title, _, metrics) in TITLES.items():
        rows = [row for row in results["rows"] if row["operation"] == operation]
        if not rows:
            continue
        names = []
        for metric, name in metrics:
            if metric != "disk" and any(values(row, metric) for row in rows):
                names.append(f"state-{operation}-{metric}.svg" if len(metrics) > 1 else f"state-{operation}.svg")
                (place / names[-1]).write_text(plot(title if name == "time" else f"{title}: {name}", rows, metric))
        out += section(operation, rows, names)
    (folder / "RESULTS-STATE.md").write_text("\n".join(out + tail(results)).rstrip() + "\n")
