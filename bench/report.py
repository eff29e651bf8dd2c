"""Tables, goals and the sentences between them: results (see `run`) in, Markdown out."""
import json
import re
import statistics

import measure
import workloads

PLACES = {"git": f" in a repository of {workloads.REPOSITORY_FILES:,} files",
          "checkout": f" in a repository of {workloads.CHECKOUT_FILES:,} files in {workloads.CHECKOUT_FOLDERS} folders"}
TITLES = {name: " ".join(argv) for name, (argv, _) in workloads.STARTS.items()}
EXPLAIN_LOADS = ("npm-install", "unpack")  # the first one that was measured decides
WITHIN = 1.03
ENOUGH = 5  # rounds; with fewer no goal is called met or missed
TOO_FEW = "too few rounds to say"


def dump(results):
    """JSON with one line per list of numbers instead of one per number."""
    text = json.dumps(results, indent=1)
    return re.sub(r"\[[\s\d.,eE+null-]+\]", lambda m: re.sub(r"\s+", " ", m.group(0)), text) + "\n"


def cell_of(results, key, workload, parallel):
    for cell in results["starts"]:
        if (cell["contender"], cell["workload"], cell["parallel"]) == (key, workload, parallel) and cell["wall_ms"]["n"]:
            return cell
    return None


def ratio(results, slow, fast, workload, parallel):
    """How many times faster: median over rounds of the ratio of that round's medians, with its interval."""
    a, b = cell_of(results, slow, workload, parallel), cell_of(results, fast, workload, parallel)
    if not a or not b:
        return None
    pairs = [x / y for x, y in zip(a["round_medians_ms"], b["round_medians_ms"]) if x and y]
    if not pairs:
        return None
    return {"median": statistics.median(pairs), "ci95": measure.bootstrap(pairs), "rounds": len(pairs)}


def number(value, digits=2):
    return "-" if value is None else f"{value:,.{digits}f}"


def interval(found, digits=2):
    low, high = found["ci95"]
    return "" if low is None else f" ({low:.{digits}f}-{high:.{digits}f})"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


# --- goals --------------------------------------------------------------------------------------------------------------

def reference(results, name):
    """The contender of that name that hutch of the same identity is compared with."""
    return [entry for entry in results["contenders"] if entry["name"] == name]


def speed_goals(results):
    """(goal, found, verdict) for each start-up goal and identity."""
    rows = []
    for name, workload, goal in (("bwrap", "true", 2), ("bwrap", "checkout", 1.5), ("crun", "true", 4), ("srt", "true", 100)):
        for entry in reference(results, name):
            title = f"`/bin/true`{PLACES.get(workload, '')} at least {goal} times as fast as {entry['key']}"
            found = ratio(results, entry["key"], f"hutch ({entry['who']})", workload, 1)
            if not found:
                rows.append((title, entry["missing"] or "not measured", "unknown"))
                continue
            low, high = found["ci95"]
            verdict = "met" if found["median"] >= goal else "missed"
            if found["rounds"] < ENOUGH:
                verdict = TOO_FEW
            elif low is not None and low < goal <= high:
                verdict += ", within the noise"
            rows.append((title, f"{found['median']:.2f} times{interval(found)}", verdict))
    return rows


def judge(found):
    if not found["n"]:
        return "unknown"
    if found["n"] < ENOUGH:
        return TOO_FEW
    low, high = found["ci95"]
    verdict = "met" if found["median"] <= WITHIN else "missed"
    return verdict + (", within the noise" if low is not None and low <= WITHIN < high else "")


def percent(found):
    """A ratio as the change it means."""
    low, high = found["ci95"]
    text = f"{(found['median'] - 1) * 100:+.1f} %"
    return text if low is None else f"{text} ({(low - 1) * 100:+.1f} to {(high - 1) * 100:+.1f})"


def work_goals(results):
    return [(f"{row['work']} as {row['who']} within 3 % of no sandbox",
             percent(row["inside"]["wall"]) if row["inside"]["wall"]["n"] else row["message"] or "not measured",
             judge(row["inside"]["wall"])) for row in results["work"]]


def explain_verdict(results):
    """Whether collecting refused writes may be the default, in one sentence."""
    for name in EXPLAIN_LOADS:
        rows = [row for row in results["work"] if row["work"] == name and row["explain_over_inside"]["n"]]
        if not rows:
            continue
        costs = "; ".join(f"{percent(row['explain_over_inside'])} as {row['who']}" for row in rows)
        fits = all(row["explain_over_inside"]["median"] <= WITHIN for row in rows)
        sure = all((row["explain_over_inside"]["ci95"][1] or 9) <= WITHIN for row in rows)
        answer = "it stays an option"
        if any(row["explain_over_inside"]["n"] < ENOUGH for row in rows):
            answer = TOO_FEW
        elif fits:
            answer = "it may be the default" + ("" if sure else " by the median, but the interval reaches over 3 %")
        return f"On `{name}`, `--explain` adds to the time inside without it: {costs}. The limit is 3 %: {answer}."
    return "Whether `--explain` may be the default was not measured."


def goals_text(results):
    lines = [f"{verdict:26} {goal}: {found}" for goal, found, verdict in speed_goals(results) + work_goals(results)]
    return "\n".join(lines + [explain_verdict(results)])


def goals_section(results):
    rows = [(goal, found, f"**{verdict}**" if verdict.startswith("missed") else verdict)
            for goal, found, verdict in speed_goals(results) + work_goals(results)]
    met = sum(verdict.startswith("met") for _, _, verdict in rows)
    missed = sum(verdict.startswith("**missed") for _, _, verdict in rows)
    unknown = len(rows) - met - missed
    return "\n\n".join([
        "## Goals",
        f"{met} of {len(rows)} met, {missed} missed, {unknown} open. Ratios are medians over rounds, with a 95 % "
        "bootstrap interval in brackets; a verdict whose interval contains the goal says so. Same identity on both sides.",
        table(("goal", "found", "verdict"), rows), explain_verdict(results)])


# --- sections -----------------------------------------------------------------------------------------------------------

def machine_section(results):
    meta, host = results["meta"], results["meta"]["machine"]
    tools = [f"{name} {version}" for name, version in meta["versions"].items()]
    rows = [("made by", f"`{meta['command']}`, {meta['date']}, {meta['minutes']:.0f} minutes"),
            ("machine", f"{host['processor']}, {host['cores']} cores, {host['memory_kib'] / 1048576:.1f} GiB"),
            ("system", f"{host['system']}, Linux {host['kernel']}, cgroups {host['cgroups']}, {host['mounts']} mounts, "
                       f"files on {host['file_system']}"),
            ("tools inside", ", ".join(tools)),
            ("rounds", f"{meta['rounds']} of starts, {meta['work_rounds']} of work, contenders interleaved and rotated"),
            ("quiet", f"{meta['waits_in_vain']} of {meta['waits']} waits for an idle machine were given up; nothing was "
                      f"dropped; load at the end {meta['load_at_end']:.1f}")]
    text = table(("", ""), rows)
    if meta["quick"]:
        text += "\n\n**A quick run: it shows that everything works. The numbers are too few to mean anything.**"
    return text


def contender_section(results):
    rows = [(entry["key"], entry["version"] or "-", entry["missing"] or "yes", entry["flags"], entry["lacks"] or "-")
            for entry in results["contenders"]]
    return "## Contenders\n\n" + table(("contender", "version", "measured", "called with", "does not do"), rows)


def start_row(results, cell, memory):
    wall, key = cell["wall_ms"], cell["contender"]
    if not wall["n"]:
        return (key, "-", "-", "-", "-", "-", "-", "-", "-", "-", "0", f"{cell['failures']}: {cell['message']}")
    who = key[key.index("("):]
    against = ratio(results, key, f"hutch {who}", cell["workload"], cell["parallel"])
    failures = f"{cell['failures']}: {cell['message']}" if cell["failures"] else "0"
    pss = memory.get(key, {}).get("pss_kib")
    return (key, number(wall["median"]), number(wall["p99"]), number(wall["p10"]), number(wall["min"]),
            f"{against['median']:.2f}{interval(against)}" if against else "-", number(cell["cpu_ms_per_start"]),
            number(cell["rate_per_s"], 0), number(cell["max_rss_kib"] / 1024, 1), number(pss / 1024 if pss else None, 1),
            str(wall["n"]), failures)


def starts_section(results):
    memory = {row["contender"]: row for row in results["memory"]}
    head = ("contender", "median ms", "p99", "p10", "min", "times hutch's", "CPU ms", "starts/s", "biggest MiB", "tree MiB",
            "n", "failures")
    parts = ["## A fresh sandbox and one command",
             "*times hutch's*: time of this contender over that of hutch as the same user, medians of rounds. *CPU*: user + "
             "system of everything reaped, per start; what the kernel does later in its own threads (dying network namespaces) "
             "is in nobody's number. *biggest*: peak resident memory of the largest process, the command included. *tree*: "
             "proportional share (Pss) of all processes while a `sleep` runs inside. With few runs p99 is the maximum."]
    for name in workloads.STARTS:
        for parallel in (1, 8):
            cells = [cell for cell in results["starts"] if (cell["workload"], cell["parallel"]) == (name, parallel)]
            if cells:
                parts += [f"### `{TITLES[name]}`{PLACES.get(name, '')}, {parallel} at a time",
                          table(head, [start_row(results, cell, memory) for cell in cells])]
    parts += notes(results)
    return "\n\n".join(parts) if len(parts) > 2 else ""


def notes(results):
    found = []
    for cell in results["starts"]:
        label = f"{cell['contender']}, `{TITLES[cell['workload']]}`, {cell['parallel']} at a time"
        if cell["left_processes"]:
            found.append(f"- {label}: {cell['left_processes']} processes were still alive two seconds later and were killed.")
        if cell["index_rewrites"]:
            found.append(f"- {label}: git rewrote its index in {cell['index_rewrites']} rounds; those starts did more work.")
        if cell["strays"]:
            found.append(f"- {label}: left in the current directory, and removed: {', '.join(cell['strays'][:8])}.")
    if results["meta"]["left_cgroups"]:
        found.append(f"- {results['meta']['left_cgroups']} cgroups were left by an OCI runtime and removed.")
    return ["\n".join(found)] if found else []


def work_section(results):
    if not results["work"]:
        return ""
    head = ("work", "as", "outside ms", "inside", "inside, CPU", "inside with --explain", "--explain over inside", "pairs")
    rows = []
    for row in results["work"]:
        if not row["inside"]["wall"]["n"]:
            rows.append((row["work"], row["who"], "-", row["message"] or "not measured", "-", "-", "-", "0"))
            continue
        explain = row["explain"]["wall"]
        rows.append((row["work"], row["who"], number(row["outside_ms"]["median"], 0), percent(row["inside"]["wall"]),
                     percent(row["inside"]["cpu"]), percent(explain) if explain["n"] else row["message"],
                     percent(row["explain_over_inside"]) if explain["n"] else "-", str(row["inside"]["wall"]["n"])))
    names = dict.fromkeys(row["work"] for row in results["work"])
    kinds = "\n".join(f"- **{name}**: {workloads.WORK[name]['what']}." for name in names)
    return "\n\n".join(["## Work inside against the same work outside",
                        "Change of wall time (and of CPU time) by `hutch run`, its start included: median of the ratios of "
                        "pairs that ran one after the other, 95 % bootstrap interval in brackets. A first pair fills the page "
                        "cache and is not counted.",
                        kinds, table(head, rows)])


def stages_section(results):
    if not results["stages"]:
        return ""
    parts = ["## Where the time of one `hutch run -- /bin/true` goes",
             "From `stages_us` of its own record, microseconds; a stage lasts until the next one begins. The start of the "
             "program itself, before the first stage, and its end are not in it."]
    for profile in results["stages"]:
        if not profile["records"]:
            parts.append(f"As {profile['who']}: no profile; {profile['message']}")
            continue
        rows = [(name, number(row["median"], 0), number(row["p10"], 0), number(row["p99"], 0), str(row["n"]))
                for name, row in profile["stages_us"].items()]
        total = profile["total_us"]
        rows.append(("**sum**", number(total["median"], 0), number(total["p10"], 0), number(total["p99"], 0), str(total["n"])))
        parts += [f"As {profile['who']}:", table(("stage", "median", "p10", "p99", "n"), rows)]
    return "\n\n".join(parts)


def markdown(results):
    parts = ["# Results",
             "Written by `bench/run`; do not edit. How it is measured: [README.md](README.md). Everything that was measured: "
             "[results.json](results.json). Milliseconds belong to this machine; the ratios are what carries over.",
             machine_section(results), "![medians, logarithmic scale](results.svg)", goals_section(results),
             starts_section(results), work_section(results), stages_section(results), contender_section(results)]
    return "\n\n".join(part for part in parts if part) + "\n"
