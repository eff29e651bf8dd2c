#!/usr/bin/env python3
"""Results of bench/node as text. `bench/node_report.py results-node.json` writes them anew."""
import json
import pathlib
import sys

GOALS = [
    ("create -> first output of `echo` over HTTP / fork+exec", "<= 2 with a warm pool (there is none yet)",
     lambda r: pick(r, "starts", "hutch serve", 1, "first_over_plain"), lambda v: v <= 2),
    ("create + exec + kill per second, 8 at a time", ">= 300",
     lambda r: pick(r, "starts", "hutch serve", 8, "per_s", "median"), lambda v: v >= 300),
    ("exec round trip / fork+exec", "<= 1.5",
     lambda r: pick(r, "exec", "exec over HTTP", 1, "end_over_plain"), lambda v: v <= 1.5),
    ("KiB per idle sandbox, kernel included", "<= 512", lambda r: parts_of(r.get("many")), lambda v: v <= 512),
    ("gateway / nginx, requests per CPU-second", ">= 1",
     lambda r: r.get("gateway", {}).get("cpu_ratio"), lambda v: v >= 1),
]


PARTS = ("slab", "percpu", "stacks", "tables", "anonymous")


def parts_of(many):
    """KiB per sandbox, added up. What else runs on the machine, its files in memory above all, moves MemAvailable far more."""
    return sum(many["kib"][name] for name in PARTS) if many and "kib" in many else None


def pick(results, part, name, parallel, *path):
    rows = results.get(part)
    for row in rows if isinstance(rows, list) else []:
        if row["name"] == name and row["parallel"] == parallel:
            for key in path:
                row = (row or {}).get(key)
            return row
    return None


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def three(found, between=" | "):
    """p25, median and p99 of a summary."""
    names = ("p25", "median", "p99")
    return between.join(number(found[name]) if found and found.get("n") else "-" for name in names)


# --- lines while it runs --------------------------------------------------------------------------------------------------

def line(row):
    first, end = row["first_ms"], row["end_ms"]
    text = f"  {row['name']:16} x{row['parallel']}"
    if first.get("n"):
        text += f"  first {first['median']:7.2f} ms  end {end['median']:7.2f} ms"
        text += f"  {row['per_s']['median']:6.0f}/s  n {row['runs']}"
    if row.get("first_over_plain"):
        text += f"  x{row['first_over_plain']:.2f} first, x{row['end_over_plain']:.2f} end"
    return text + (f"  {row['failures']} failed: {row['message']}" if row["failures"] else "")


def many_line(r):
    failures = f"{r['failures']}, {r['exec_failures']}, {r['kill_failures']} {r['message']}"
    return (f"  {r['count']} made in {r['make_s']:.1f} s, {parts_of(r):.0f} KiB each, "
            f"exec {number(r['exec_ms'].get('median'))} ms, all killed in {r['kill_s']:.1f} s; failures {failures}")


def streams_line(r):
    return (f"  {r['count']} streams over {r['boxes']} sandboxes in {number(r['open_s'], 1)} s, "
            f"{r['kib_per_stream']:.1f} KiB of front each, {r['idle_cpu_ms_per_s']:.1f} ms CPU per idle second, "
            f"failures {r['failures']}")


def files_line(r):
    return (f"  up {r['hutch up']['mib_per_s']['median']:.0f} MiB/s (x{r['up_ratio']:.2f} of nginx), "
            f"down {r['hutch down']['mib_per_s']['median']:.0f} MiB/s (x{r['down_ratio']:.2f})")


def gateway_line(r):
    text = f"  {r['hutch']['per_s']['median']:.0f}/s, x{number(r['ratio'])} of nginx; per CPU-second x{number(r['cpu_ratio'])}"
    return text + "".join(f"\n  {complaint}" for complaint in r["complaints"])


# --- Markdown -------------------------------------------------------------------------------------------------------------

def head(meta):
    versions = ", ".join(f"{name} {version or '-'}" for name, version in meta["versions"].items())
    noise = ""
    if meta["waits_in_vain"] * 4 > meta["waits"]:
        noise = (" Other work ran beside these numbers: trust the ratios, which are made within a round, and the lower quartiles "
                 "before the medians, and the p99 least.")
    quick = ["", "**A quick run: it shows that everything works, not how fast it is.**"] if meta["quick"] else []
    return ["# The node, measured", "",
            f"Made by `{meta['command']}` on {meta['date']}, {meta['minutes']:.0f} minutes, {meta['rounds']} rounds.",
            f"Linux {meta['kernel']}, {meta['cores']} cores, {meta['memory_kib'] / (1 << 20):.0f} GiB; {versions}.",
            f"Load average {meta['load_before']:.1f} before, {meta['load_after']:.1f} after; of {meta['waits']} waits for a quiet "
            f"machine {meta['waits_in_vain']} were given up.{noise}", *quick, ""]


def goals(results):
    rows = ["## Goals", "", "| what | goal | measured | |", "|---|---|---|---|"]
    for what, goal, get, good in GOALS:
        value = get(results)
        rows.append(f"| {what} | {goal} | {number(value)} | {'' if value is None else 'reached' if good(value) else 'not yet'} |")
    return [*rows, ""]


def starts(rows):
    text = ["## A sandbox for one command", "",
            "`POST /v2/sandboxes` (template `host`), a `Start` stream of `/bin/echo hi`, `DELETE`: one keep-alive connection per",
            "worker. first: from before the create to the first byte of output. total: until the sandbox is killed; for the",
            "others, which get the command line by fork and exec from the same client, until the process is reaped. Milliseconds.",
            "", "| | at a time | first p25 | median | p99 | total p25 | median | p99 | per second (best) | first / plain "
            "| total / plain | n |", "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        total = row["end_ms"]
        if row["kill_ms"].get("n"):
            total = {**total, **{key: total[key] + row["kill_ms"][key] for key in ("p25", "median", "p99")}}
        text.append(f"| {row['name']} | {row['parallel']} | {three(row['first_ms'])} | {three(total)} | "
                    f"{number(row['per_s'].get('median'), 0)} ({number(row['per_s'].get('max'), 0)}) | "
                    f"{number(row.get('first_over_plain'))} | {number(row.get('end_over_plain'))} | {row['runs']} |")
    for row in rows:
        if row["create_ms"].get("n"):
            text += ["", f"hutch, {row['parallel']} at a time, p25 / median / p99: create {three(row['create_ms'], ' / ')} ms, kill "
                     f"{three(row['kill_ms'], ' / ')} ms. Processor time per life: front {row['front_cpu_ms']:.2f} ms, keeper "
                     f"{row['keeper_cpu_ms']:.2f} ms. Failures: {row['failures']}. {row['message']}".rstrip()]
    return [*text, ""]


def execs(rows):
    text = ["## A command in a living sandbox", "",
            "A `Start` stream until its end, over a keep-alive connection, against fork, exec, read and wait in the client itself.", "",
            "| | at a time | first p25 | median | p99 | end p25 | median | p99 | per second | end / plain | n |",
            "|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        text.append(f"| {row['name']} | {row['parallel']} | {three(row['first_ms'])} | {three(row['end_ms'])} | "
                    f"{number(row['per_s'].get('median'), 0)} | {number(row.get('end_over_plain'))} | {row['runs']} |")
    return [*text, ""]


def stages(r):
    if not r["stages"]:
        return []
    rows = ["## Where the time of an exec goes", "",
            f"Medians over {r['whole']} of {r['runs']} runs, those that the kernel's trace shows whole; tracing itself costs a little",
            f"(median {r['end_ms']['median']:.2f} ms with it).", "", "| stage | microseconds |", "|---|---|"]
    rows += [f"| {name} | {value:.0f} |" for name, value in r["stages"]]
    return [*rows, f"| **sum** | {sum(value for _, value in r['stages']):.0f} |", ""]


def many(r):
    kib = " | ".join(f"{r['kib'][name]:.0f}" for name in PARTS)
    return [f"## {r['count']} sandboxes alive", "",
            f"Made two at a time in {r['make_s']:.1f} s (p25 / median / p99: {three(r['make_ms'], ' / ')} ms each), killed in "
            f"{r['kill_s']:.1f} s. Failures: {r['failures']} creates, {r['exec_failures']} commands, {r['kill_failures']} kills. "
            f"{r['message']}".rstrip(), "",
            f"A command in each of them, one after the other: {three(r['exec_ms'], ' / ')} ms (the first in that sandbox). "
            f"Idle, front and keeper use {r['idle_cpu_ms_per_s']:.1f} ms of processor time per second.", "",
            "| | sum | unreclaimable slab | per-CPU | kernel stacks | page tables | processes | of them front + keeper |",
            "|---|---|---|---|---|---|---|---|",
            f"| KiB per sandbox | {parts_of(r):.0f} | {kib} | {r['node_kib']:.1f} |", "",
            f"MemAvailable fell by {r['kib']['all']:.0f} KiB per sandbox meanwhile, tmpfs and shared memory of the whole machine grew by "
            f"{r['kib']['shared']:.0f}: what others free or take in these seconds is in both, and in the parts to a lesser degree.", ""]


def streams(r):
    return [f"## {r['count']} open streams", "",
            f"`sleep` commands in {r['boxes']} sandboxes, opened in {number(r['open_s'], 1)} s by one client, {r['failures']} failures.",
            f"Front grows by {r['kib_per_stream']:.1f} KiB per stream and uses {r['idle_cpu_ms_per_s']:.1f} ms of processor time per",
            "second while nothing happens on them.", ""]


def files(r):
    rows = [f"## Files of {r['bytes'] >> 20} MiB", "",
            "curl to `/files` of a sandbox, whose disk is memory, and PUT/GET of nginx on the host's disk.", "",
            "| | MiB/s | p25 | of nginx | CPU seconds per GiB |", "|---|---|---|---|---|"]
    for way in ("up", "down"):
        for name in ("hutch", "nginx"):
            one, ratio = r[f"{name} {way}"], number(r[f"{way}_ratio"]) if name == "hutch" else ""
            rows.append(f"| {name} {way} | {one['mib_per_s']['median']:.0f} | {one['mib_per_s']['p25']:.0f} | {ratio} | "
                        f"{one['cpu_s_per_gib']['median']:.2f} |")
    return [*rows, "", "CPU is that of front and of nginx's worker; what a sandbox's own processes use is not in it.", ""]


def gateway(r):
    rows = ["## Gateway", "",
            "wrk, 32 connections, to the same nginx service: inside a sandbox through the gateway, outside through nginx `proxy_pass`",
            "with kept connections. Both proxies log every request.", "",
            "| | requests/s | p25 | requests per CPU-second of the proxy |", "|---|---|---|---|"]
    for name in ("hutch", "nginx"):
        one = r[name]
        rows.append(f"| {name} | {one['per_s']['median']:.0f} | {one['per_s']['p25']:.0f} | {one['per_cpu_s']['median']:.0f} |")
    complaints = "".join(f" {text}." for text in r["complaints"])
    return [*rows, "", f"Ratio {number(r['ratio'])}; per CPU-second {number(r['cpu_ratio'])}.{complaints}", ""]


WRITERS = {"starts": starts, "exec": execs, "stages": stages, "many": many, "streams": streams, "files": files,
           "gateway": gateway}


def markdown(results):
    text = head(results["meta"]) + goals(results)
    for part, write in WRITERS.items():
        if part not in results:
            continue
        if isinstance(results[part], dict) and "missing" in results[part]:
            text += [f"## {part}", "", f"Not measured: {results[part]['missing']}", ""]
        else:
            text += write(results[part])
    return "\n".join(text).rstrip() + "\n"


if __name__ == "__main__":
    source = pathlib.Path(sys.argv[1])
    (source.parent / "RESULTS-NODE.md").write_text(markdown(json.loads(source.read_text())))
