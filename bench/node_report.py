"""Results of bench/node as text."""

GOALS = [
    ("create -> first output of `echo` over HTTP / fork+exec", "<= 2 with a warm pool (there is none yet)",
     lambda r: pick(r, "starts", "hutch serve", 1, "first_over_plain"), lambda v: v <= 2),
    ("create + exec + kill per second, 8 at a time", ">= 300",
     lambda r: pick(r, "starts", "hutch serve", 8, "per_s", "median"), lambda v: v >= 300),
    ("exec round trip / fork+exec", "<= 1.5", lambda r: pick(r, "exec", "exec over HTTP", 1, "end_over_plain"), lambda v: v <= 1.5),
    ("KiB per idle sandbox, kernel included", "<= 512", lambda r: r.get("many", {}).get("kib", {}).get("all"), lambda v: v <= 512),
    ("gateway / nginx, requests per CPU-second", ">= 1", lambda r: r.get("gateway", {}).get("cpu_ratio"), lambda v: v >= 1),
]


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


def three(found, digits=2):
    """p25, median and p99 of a summary."""
    if not found or not found.get("n"):
        return "- | - | -"
    return f"{found['p25']:.{digits}f} | {found['median']:.{digits}f} | {found['p99']:.{digits}f}"


def line(row):
    first, end = row["first_ms"], row["end_ms"]
    text = f"  {row['name']:16} x{row['parallel']}"
    if first.get("n"):
        text += f"  first {first['median']:7.2f} ms  end {end['median']:7.2f} ms  {row['per_s']['median']:6.0f}/s  n {row['runs']}"
    if row.get("first_over_plain"):
        text += f"  x{row['first_over_plain']:.2f} first, x{row['end_over_plain']:.2f} end"
    return text + (f"  {row['failures']} failed: {row['message']}" if row["failures"] else "")


def many_line(r):
    return (f"  {r['count']} made in {r['make_s']:.1f} s, {r['kib']['all']:.0f} KiB each, exec {number(r['exec_ms'].get('median'))} ms, "
            f"all killed in {r['kill_s']:.1f} s; failures {r['failures']}, {r['exec_failures']}, {r['kill_failures']} {r['message']}")


def streams_line(r):
    return (f"  {r['count']} streams over {r['boxes']} sandboxes in {number(r['open_s'], 1)} s, {r['kib_per_stream']:.1f} KiB of front each, "
            f"{r['idle_cpu_ms_per_s']:.1f} ms CPU per idle second, failures {r['failures']}")


def files_line(r):
    return (f"  up {r['hutch up']['mib_per_s']['median']:.0f} MiB/s (x{r['up_ratio']:.2f} of nginx), "
            f"down {r['hutch down']['mib_per_s']['median']:.0f} MiB/s (x{r['down_ratio']:.2f})")


def gateway_line(r):
    return (f"  {r['hutch']['per_s']['median']:.0f}/s, x{number(r['ratio'])} of nginx; per CPU-second x{number(r['cpu_ratio'])}"
            + "".join(f"\n  {text}" for text in r["complaints"]))


def head(meta):
    versions = ", ".join(f"{name} {version or '-'}" for name, version in meta["versions"].items())
    return ["# The node, measured", "",
            f"Made by `{meta['command']}` on {meta['date']}, {meta['minutes']:.0f} minutes, {meta['rounds']} rounds.",
            f"Linux {meta['kernel']}, {meta['cores']} cores, {meta['memory_kib'] / (1 << 20):.0f} GiB; {versions}.",
            f"Load average {meta['load_before']:.1f} before, {meta['load_after']:.1f} after; of {meta['waits']} waits for a quiet machine "
            f"{meta['waits_in_vain']} were given up" + (", so other work ran beside these numbers: trust the ratios, which are made "
                                                        "within a round, and the lower quartiles before the medians and p99."
                                                        if meta["waits_in_vain"] * 4 > meta["waits"] else "."),
            *(["", "**A quick run: it shows that everything works, not how fast it is.**"] if meta["quick"] else []), ""]


def goals(results):
    rows = ["## Goals", "", "| what | goal | reached | |", "|---|---|---|---|"]
    for what, goal, get, good in GOALS:
        value = get(results)
        rows.append(f"| {what} | {goal} | {number(value)} | {'' if value is None else 'yes' if good(value) else 'no'} |")
    return [*rows, ""]


def starts(rows):
    text = ["## A sandbox for one command", "",
            "`POST /v2/sandboxes` (template `host`), a `Start` stream of `/bin/echo hi`, `DELETE`: one keep-alive connection per worker.",
            "first: from before the create to the first byte of output. total: until the sandbox is killed, for the others until the",
            "process is reaped. They get the same command line by fork and exec from the same client. Milliseconds: p25, median, p99.", "",
            "| | at a time | first p25 | median | p99 | total p25 | median | p99 | per second | first / plain | total / plain | n |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        total = row["end_ms"]
        if row["kill_ms"].get("n"):
            total = {**total, **{key: total[key] + row["kill_ms"][key] for key in ("p25", "median", "p99")}}
        text.append(f"| {row['name']} | {row['parallel']} | {three(row['first_ms'])} | {three(total)} | "
                    f"{number(row['per_s'].get('median'), 0)} (best {number(row['per_s'].get('max'), 0)}) | "
                    f"{number(row.get('first_over_plain'))} | {number(row.get('end_over_plain'))} | {row['runs']} |")
    for row in rows:
        if row["create_ms"].get("n"):
            text.append(f"\nhutch, {row['parallel']} at a time: create {three(row['create_ms'])} ms, kill {three(row['kill_ms'])} ms; "
                        f"processor time per life: front {row['front_cpu_ms']:.2f} ms, keeper {row['keeper_cpu_ms']:.2f} ms.")
    return [*text, ""]


def execs(rows):
    text = ["## A command in a living sandbox", "", "A `Start` stream until its end, over a keep-alive connection, against fork, exec, "
            "read and wait in the client itself.", "",
            "| | at a time | first p25 | median | p99 | end p25 | median | p99 | per second | end / plain | n |",
            "|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        text.append(f"| {row['name']} | {row['parallel']} | {three(row['first_ms'])} | {three(row['end_ms'])} | "
                    f"{number(row['per_s'].get('median'), 0)} | {number(row.get('end_over_plain'))} | {row['runs']} |")
    return [*text, ""]


def many(r):
    k = r["kib"]
    return [f"## {r['count']} sandboxes alive", "",
            f"Made two at a time in {r['make_s']:.1f} s ({three(r['make_ms'])} ms each), killed in {r['kill_s']:.1f} s. "
            f"Failures: {r['failures']} creates, {r['exec_failures']} commands, {r['kill_failures']} kills. {r['message']}", "",
            f"A command in each of them, one after the other: {three(r['exec_ms'])} ms (the first in that sandbox). "
            f"Idle, front and keeper use {r['idle_cpu_ms_per_s']:.1f} ms of processor time per second.", "",
            "| KiB per sandbox | all (MemAvailable) | unreclaimable slab | per-CPU | kernel stacks | page tables | front + keeper |",
            "|---|---|---|---|---|---|---|",
            f"| | {k['all']:.0f} | {k['slab']:.0f} | {k['percpu']:.0f} | {k['stacks']:.0f} | {k['tables']:.0f} | {r['node_kib']:.1f} |", ""]


def streams(r):
    return [f"## {r['count']} open streams", "", f"`sleep` commands in {r['boxes']} sandboxes, opened in {number(r['open_s'], 1)} s by one "
            f"client, {r['failures']} failures. Front grows by {r['kib_per_stream']:.1f} KiB per stream and uses "
            f"{r['idle_cpu_ms_per_s']:.1f} ms of processor time per second while nothing happens on them.", ""]


def files(r):
    rows = [f"## Files of {r['bytes'] >> 20} MiB", "", "curl to `/files` of a sandbox, and PUT/GET of nginx on the host's disk.", "",
            "| | MiB/s | p25 | of nginx | CPU seconds per GiB |", "|---|---|---|---|---|"]
    for way in ("up", "down"):
        for name in ("hutch", "nginx"):
            one = r[f"{name} {way}"]
            rows.append(f"| {name} {way} | {one['mib_per_s']['median']:.0f} | {one['mib_per_s']['p25']:.0f} | "
                        f"{number(r[f'{way}_ratio']) if name == 'hutch' else ''} | {one['cpu_s_per_gib']['median']:.2f} |")
    return [*rows, "", "CPU is that of front and of nginx's worker; what a sandbox's own processes use is not in it.", ""]


def gateway(r):
    rows = ["## Gateway", "", "wrk, 32 connections, to the same nginx service: inside a sandbox through the gateway, outside through "
            "nginx `proxy_pass` with kept connections.", "", "| | requests/s | p25 | requests per CPU-second of the proxy |",
            "|---|---|---|---|"]
    for name in ("hutch", "nginx"):
        rows.append(f"| {name} | {r[name]['per_s']['median']:.0f} | {r[name]['per_s']['p25']:.0f} | {r[name]['per_cpu_s']['median']:.0f} |")
    return [*rows, "", f"Ratio {number(r['ratio'])}; per CPU-second {number(r['cpu_ratio'])}." + "".join(f" {text}." for text in r["complaints"]), ""]


WRITERS = {"starts": starts, "exec": execs, "many": many, "streams": streams, "files": files, "gateway": gateway}


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
