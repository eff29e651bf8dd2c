#!/usr/bin/env python3
"""The red-team run: attempts inside a sandbox, positive controls outside, layer removal, host canaries, leak accounting.

    run.py --hutch build/hutch --test-hutch build/tests/hutch-without --probe build/hutch-probe [--user NAME]

Prints one line per attempt: id, attempt, observed, expected, verdict, and the layers shown to be responsible. An attempt
counts as proven only if the same attempt gets through, in this very run, with its layers removed; where no layer of ours is
responsible the line says who is, with the evidence (proofs.py); otherwise it says `unproven` and why. Exit code 0 if nothing
got through that should not, 1 otherwise.
"""
import argparse
import contextlib
import io
import json
import multiprocessing
import os
import pty
import re
import select
import subprocess
import sys
import time
import traceback

import hostside
import proofs as proofs_mod
import stage as stage_mod
from stage import Stage, census, kernel_log, residue, sha

A_LIMITS, A_ALONE, A_INSIDE, A_ROOTFS, A_STDIN_FILE, A_STDIN_DIR, A_TTY, A_LIMITATION, A_NA = (1 << i for i in range(9))
SPECIAL = A_ALONE | A_STDIN_FILE | A_STDIN_DIR | A_TTY
LIMITS = ["--memory", "128M", "--pids", "64", "--disk", "32M", "--inodes", "2000", "--open-files", "256", "--timeout", "60s",
          "--no-cwd", "--chdir", "/tmp"]  # a disk limit cannot bind a host directory
# Where no cgroup can be had, a typed limit is an error; rlimits still hold the rest.
LIMITS_FEWER = LIMITS[4:]
MEET_SECONDS = 3600  # that one caller waits for the other; only a run that hangs uses them up
# In a root of its own the same words mean something else: writes land in the private upper layer.
CONTAINER_ALSO = {"F-02c": " success", "F-03a": " success", "P-13": " success"}


def word(observed):
    return re.split("[: ]", observed, maxsplit=1)[0]


def through(observed):
    return word(observed) in ("success", "reached", "leak")


def by_themselves(alone, untold):
    """What the removal of single layers of a set showed; of those that gave no answer nothing is claimed."""
    if alone:
        return f" ({', '.join(alone)} alone)"
    return f" (no answer without {', '.join(untold)} alone)" if untold else " (each also stopped by the others)"


class Suite:
    def __init__(self, args, stage):
        self.args, self.stage = args, stage
        out = subprocess.run([args.probe, "--list", "--json"], capture_output=True, text=True, check=True).stdout
        self.table = [json.loads(line) for line in out.splitlines()]
        self.by_id = {a["id"]: a for a in self.table}
        self.limits, self.messages = LIMITS, ""
        self.starts = 0
        self.become = stage.become

    # --- starting the probe ---------------------------------------------------------------------------------------------

    def hutch_argv(self, options, without=None):
        binary = self.args.test_hutch if without else self.args.hutch
        return [binary, "run"] + options + ["--"]

    def probe_argv(self, ids, privilege=None, rootfs=False, **more):
        values = {**self.stage.vars, **more}
        if privilege:
            values["privilege"] = privilege
        argv = ["/bin/probe" if rootfs else self.stage.probe, "--json"]
        for k, v in values.items():
            argv += ["--var", f"{k}={v}"]
        return argv + ids

    def start(self, argv, without=None, stdin=None, timeout=400, leak_fd=False):
        """Runs as the caller. With leak_fd a host directory is left open at 7, as a careless parent would."""
        env = self.stage.env(**({"HUTCH_WITHOUT": without} if without else {}))
        fd = os.open(self.stage.outside, os.O_RDONLY | os.O_DIRECTORY) if leak_fd else -1
        if fd >= 0:
            os.dup2(fd, 77, inheritable=True)
        self.starts += 1
        try:
            with subprocess.Popen(argv, env=env, cwd=self.stage.ws, stdin=stdin if stdin is not None else subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=self.become,
                                  pass_fds=[77] if leak_fd else []) as p:
                try:
                    out, err = p.communicate(timeout=timeout)
                except subprocess.TimeoutExpired:
                    done = hostside.finish(p, 0.1)
                    out, err = done.stdout, done.stderr + b"\nred team: timed out"
        finally:
            if fd >= 0:
                os.close(77)
                os.close(fd)
        return p.returncode, out.decode(errors="replace"), err.decode(errors="replace")

    @staticmethod
    def parse(out):
        seen = {}
        for line in out.splitlines():
            if line.startswith('{"id"'):
                r = json.loads(line)
                seen[r["id"]] = r["observed"]
        return seen

    def batch(self, ids, wrap, without=None, **kw):
        """One start for many attempts; those that need a start of their own get it. wrap(argv) puts it into its place."""
        seen, together = {}, [i for i in ids if not self.by_id[i]["flags"] & SPECIAL]
        if together:
            rc, out, err = self.start(wrap(self.probe_argv(together, **kw)), without, leak_fd=True)
            seen.update(self.parse(out))
            self.messages += err
            for i in together:
                seen.setdefault(i, f"not-started: exit {rc}, {(err.strip().splitlines() or [''])[-1][:150]}")
        for i in ids:
            if self.by_id[i]["flags"] & SPECIAL:
                seen[i] = self.alone(i, wrap, without, **kw)
        return seen

    def alone(self, i, wrap, without=None, **kw):
        flags = self.by_id[i]["flags"]
        argv = wrap(self.probe_argv([i], **kw))
        if flags & A_TTY:
            return self.on_terminal(i, argv, without)
        stdin = None
        if flags & A_STDIN_FILE:
            stdin = os.open(self.stage.vars["rofile"], os.O_RDONLY)
        elif flags & A_STDIN_DIR:
            stdin = os.open(self.stage.home if i == "P-08c" else self.stage.outside, os.O_RDONLY | os.O_DIRECTORY)
        try:
            rc, out, err = self.start(argv, without, stdin)
        finally:
            if stdin is not None:
                os.close(stdin)
        self.messages += err
        if rc >= 128 and i not in self.parse(out):
            return f"signal {rc - 128}"
        if rc == 124 and flags & A_LIMITS and i not in self.parse(out):
            return f"signal from the limit: {(err.strip().splitlines() or [''])[-1][:100]}"
        return self.parse(out).get(i, f"not-started: exit {rc}, {(err.strip().splitlines() or [''])[-1][:150]}")

    def on_terminal(self, i, argv, without=None):
        """The caller sits on a terminal; afterwards the terminal's input queue must be empty."""
        pid, master = pty.fork()
        if pid == 0:
            self.stage.become()
            os.chdir(self.stage.ws)
            os.execve(argv[0], argv, self.stage.env(**({"HUTCH_WITHOUT": without} if without else {})))
        self.starts += 1
        out, end = b"", time.monotonic() + 120
        while time.monotonic() < end:
            if not select.select([master], [], [], 0.2)[0]:
                continue
            try:
                data = os.read(master, 65536)
            except OSError:
                break
            if not data:
                break
            out += data
        os.close(master)
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            pass
        os.waitpid(pid, 0)
        text = out.decode(errors="replace").replace("\r", "")
        # "!" is what the attempt types; a terminal echoes what was typed into it.
        self.typed = getattr(self, "typed", False) or (argv[0] == self.args.hutch and "!" in re.sub(r'"[^"]*"', "", text))
        m = re.search(r'"observed":"([^"]*)"', text)
        return m.group(1) if m else "not-started: " + text.strip()[-150:]

    # --- the places -----------------------------------------------------------------------------------------------------

    def inside(self, options=(), without=None):
        return lambda argv: self.hutch_argv(list(options), without) + argv

    @staticmethod
    def outside(argv):
        return argv

    @staticmethod
    def bare_ns(argv):
        return ["unshare", "--user", "--map-root-user", "--keep-caps", "--mount", "--pid", "--fork", "--net", "--ipc", "--uts",
                "--cgroup", "--mount-proc", "--"] + argv

    def pick(self, *controls, flags=0, no_flags=0):
        return [a["id"] for a in self.table if a["control"] in controls and a["strict"] and not a["flags"] & (A_NA | no_flags) and
                (not flags or a["flags"] & flags)]

    def controls(self):
        """Every attempt where nothing stops it: outside as the same caller, or in a bare user namespace."""
        st = self.stage
        kinds = ("outside", "allowed") + (("root",) if st.is_root else ())
        seen = self.batch(self.pick(*kinds, no_flags=A_LIMITS | A_INSIDE), self.outside, target=st.sentinel.pid)
        st.restore()
        seen.update(self.batch(self.pick("ns", no_flags=A_LIMITS), self.bare_ns))
        st.restore()
        return seen

    def control_as_root(self, ids):
        """The same outside, as real root, whoever the caller of the others is."""
        self.become = None
        try:
            return self.batch(ids, self.outside, target=self.stage.sentinel.pid)
        finally:
            self.become = self.stage.become
            self.stage.restore()

    def strict(self):
        runnable = [a["id"] for a in self.table if a["control"] != "host" and not a["flags"] & (A_NA | A_ROOTFS | A_LIMITS)]
        seen = self.batch(runnable, self.inside())
        limited = [a["id"] for a in self.table if a["flags"] & A_LIMITS]
        rc, _, err = self.start(self.hutch_argv(LIMITS) + ["/bin/true"])
        if rc != 0:
            self.limits = LIMITS_FEWER
            print(f"note: memory and pids limits cannot be had here ({err.strip()[:160]}); R rows run with the others only")
        skip = {"R-01", "R-02", "R-03", "R-04", "R-29", "R-28", "D-05", "R-25"} if self.limits is LIMITS_FEWER else set()
        for i in limited:  # one start each: an OOM kill must not take the others along
            seen[i] = ("skipped: no memory or pids limit on this host for this caller" if i in skip else
                       self.alone(i, self.inside(self.limits)))
        return seen

    def removal(self, results, controls):
        """One start per set of layers, then one per single layer for attempts that several layers stop."""
        sets, singles, proof = {}, {}, {}
        for a in self.table:
            if not a["layers"] or a["id"] not in results or a["flags"] & A_NA or a["control"] == "allowed":
                continue
            if a["id"] == "P-07b":
                continue
            sets.setdefault((a["layers"], bool(a["flags"] & A_LIMITS)), []).append(a["id"])
            layers = a["layers"].split(",")
            for layer in layers if len(layers) > 1 else []:
                singles.setdefault((layer, bool(a["flags"] & A_LIMITS)), []).append(a["id"])
        for (layers, limited), ids in sets.items():
            seen = self.removal_batch(ids, layers, limited)
            for i in ids:
                proof[i] = {"layers": layers.split(","), "observed": seen.get(i, "not-run"), "alone": [], "untold": []}
        self.remove_userns(proof, singles, controls)
        for (layer, limited), ids in singles.items():
            ids = [i for i in ids if proofs_mod.through(self.by_id[i], proof[i]["observed"])]
            seen = self.removal_batch(ids, layer, limited) if ids else {}
            for i in ids:
                if proofs_mod.through(self.by_id[i], seen.get(i, "")):
                    proof[i]["alone"].append(layer)
                elif not proofs_mod.real(self.by_id[i], seen.get(i, "")):
                    proof[i]["untold"].append(layer)
        return proof

    def remove_userns(self, proof, singles, controls):
        """What the kernel keeps for root of the initial user namespace: there the user namespace is the layer. Without it an
        attempt can do what it can do outside, so only those are tried that root has made outside in this run."""
        again = {}
        for i, p in proof.items():
            if self.stage.is_root and not through(p["observed"]) and through(controls.get(i, "")):
                again.setdefault((",".join([*p["layers"], "userns"]), bool(self.by_id[i]["flags"] & A_LIMITS)), []).append(i)
        for (layers, limited), ids in again.items():
            seen = self.removal_batch(ids, layers, limited)
            for i in ids:
                if not through(seen.get(i, "")):
                    continue
                if len(proof[i]["layers"]) == 1:
                    singles.setdefault((proof[i]["layers"][0], limited), []).append(i)
                singles.setdefault(("userns", limited), []).append(i)
                proof[i] = {"layers": layers.split(","), "observed": seen[i], "alone": [], "untold": []}

    def removal_batch(self, ids, layers, limited):
        if limited:
            seen = {i: self.alone(i, self.inside(self.limits, layers), layers) for i in ids}
        else:
            seen = self.batch(ids, self.inside((), layers), layers)
        self.stage.restore()
        return seen

    # --- the container tier ---------------------------------------------------------------------------------------------

    def make_root(self):
        root = self.stage.path("root")
        for d in ("bin", "dev", "etc", "proc", "sys", "tmp", "home", "run", "usr", "work"):
            os.makedirs(os.path.join(root, d), exist_ok=True)
        subprocess.run(["cp", self.stage.probe, root + "/bin/probe"], check=True)
        stage_mod.write(root + "/etc/passwd", "root:x:0:0::/:/bin/probe\nuser:x:1000:1000::/home:/bin/probe\n")
        stage_mod.write(root + "/etc/group", "root:x:0:\nuser:x:1000:\n")
        self.stage.own(root)
        if os.getuid() == 0:
            for name in ("suidws", "fcapws"):
                subprocess.run(["cp", "-a", self.stage.vars[name], root + "/work/"], check=True)
        return root

    def container(self, privilege):
        """None and a reason if this binary or host has no --root."""
        root = self.make_root()
        options = ["--root", root, "--chdir", "/work"] + (["--privilege", privilege] if privilege != "strict" else [])
        rc, _, err = self.start(self.hutch_argv(options) + ["/bin/probe", "--whoami"])
        if rc != 0:
            return None, (err.strip().splitlines() or [f"exit {rc}"])[-1]
        no = A_NA | A_LIMITS | A_STDIN_FILE | A_STDIN_DIR | A_TTY
        ids = [a["id"] for a in self.table if a["control"] != "host" and not a["flags"] & no and a["topic"] != "protected names"
               and a["id"][:4] not in ("F-10", "F-12", "F-39", "C-01", "F-19", "S-28")]
        seen = self.batch(ids, self.inside(options), privilege=privilege, rootfs=True, rootdir=root, suidws="/work/suidws",
                          fcapws="/work/fcapws")
        return seen, None


# --- report ---------------------------------------------------------------------------------------------------------------


class Report:
    COUNTS = ("passed", "failed", "skipped", "unproven", "kernel", "duty", "limitations", "not applicable")

    def __init__(self):
        self.n = dict.fromkeys(self.COUNTS, 0)
        self.failures, self.rows = [], []

    def row(self, kind, i, what, observed, expected, verdict, proof):
        print(f"{i:<7}{what[:64]:<65}{observed[:44]:<45}{(expected or '-')[:34]:<35}{verdict:<9}{proof}")
        self.rows.append({"run": kind, "id": i, "attempt": what, "observed": observed, "expected": expected, "verdict": verdict,
                          "proof": proof})
        if verdict == "FAIL":
            self.n["failed"] += 1
            self.failures.append(f"{kind} {i}: {what}: observed {observed}, expected {expected}")

    def judge(self, a, observed, expected):
        if observed.startswith("skipped"):
            self.n["skipped"] += 1
            return "skipped"
        if a["flags"] & A_LIMITATION and through(observed):
            self.n["limitations"] += 1
            return "limit"
        if word(observed) in expected.split():
            self.n["passed"] += 1
            return "ok"
        return "FAIL"

    def answered(self, kind, text):
        """A row for which proofs.py has found out who is responsible."""
        if kind == "absent":
            self.n["passed"] -= 1
            self.n["skipped"] += 1
        elif kind != "layers":
            self.n[kind] += 1
        return text if kind == "layers" else f"{kind}: {text}"

    def proof(self, a, control, p, verdict, answer):
        if a["control"] == "allowed" or verdict in ("skipped", "limit", "FAIL"):
            return a["why"] if verdict == "limit" else "-"
        if answer:
            return self.answered(*answer)
        if p and proofs_mod.through(a, p["observed"]):
            text = "+".join(p["layers"])
            if len(p["layers"]) > 1:
                text += by_themselves(p["alone"], p["untold"])
            return text
        self.n["unproven"] += 1
        tried = f"without {'+'.join(p['layers'])}: {p['observed'][:60]}; " if p else ""
        outside = "" if control is None else f"outside: {control[:30]}; "
        return f"unproven: {tried}{outside}{a['why'] or 'no layer can be removed for it'}"

    @staticmethod
    def as_expected(suite, seen):
        return {i for i, a in suite.by_id.items() if i in seen and word(seen[i]) in (a["strict"] or "").split()}

    @classmethod
    def unanswered(cls, suite, seen, proofs):
        """Rows that are as they should be, and for which no removal of their layers has shown why."""
        right = cls.as_expected(suite, seen)
        return {i: seen[i] for i, a in suite.by_id.items() if i in right and a["control"] != "allowed" and
                not (a["flags"] & A_LIMITATION and through(seen[i])) and
                not (i in proofs and proofs_mod.through(a, proofs[i]["observed"]))}

    def table(self, kind, suite, seen, column, controls, proofs, answers=None):
        print(f"\n== {kind}")
        for a in suite.table:
            if a["id"] not in seen:
                continue
            expected = a[column] + (CONTAINER_ALSO.get(a["id"], "") if proofs is None else "")
            verdict = self.judge(a, seen[a["id"]], expected)
            proof = (self.proof(a, controls.get(a["id"]), proofs.get(a["id"]), verdict, (answers or {}).get(a["id"]))
                     if proofs is not None else "")
            if proof.startswith("absent: "):
                verdict = "absent"
            self.row(kind, a["id"], a["attempt"], seen[a["id"]], a[column], verdict, proof)

    def control_table(self, suite, controls):
        bad = [i for i, o in controls.items() if not through(o)]
        print(f"\n== positive controls: {len(controls) - len(bad)} of {len(controls)} get through where nothing stops them")
        for i in bad:
            a = suite.by_id[i]
            print(f"{i:<7}{a['attempt'][:64]:<65}{controls[i][:60]:<61}{a['why'] or 'NO REASON GIVEN'}")
            if not a["why"] and not controls[i].startswith("skipped"):
                self.n["failed"] += 1
                self.failures.append(f"control {i}: {a['attempt']}: {controls[i]} where nothing stops it")

    def host(self, kind, suite, observed):
        print(f"\n== {kind}: seen from outside")
        for a in suite.table:
            if a["control"] != "host":
                continue
            got = observed.get(a["id"], "skipped: not run")
            verdict = self.judge(a, got, a["strict"])
            self.row(kind, a["id"], a["attempt"], got, a["strict"], verdict, "")

    def not_applicable(self, suite):
        print("\n== not applicable here")
        for a in suite.table:
            if a["flags"] & A_NA:
                self.n["not applicable"] += 1
                print(f"{a['id']:<7}{a['attempt'][:64]:<65}not applicable here: {a['why']}")


class Callers:
    """Root and an ordinary user make their attempts side by side. What looks at the whole host has it to itself: the count of what is
    there before both begin, and, after both have made their attempts, the last checks of one and then of the other."""

    def __init__(self, users):
        context = multiprocessing.get_context("fork")
        self.users, self.context = users, context
        self.barrier, self.lock = context.Barrier(len(users)), context.Lock()

    def meet(self):
        self.barrier.wait(MEET_SECONDS)

    def child(self, args, user, pipe):
        report, said = Report(), io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                suite = run_one(args, user, report, self)
                if user is self.users[-1]:
                    report.not_applicable(suite)
        except BaseException:  # pylint: disable=broad-except - the other caller must not wait for this one
            self.barrier.abort()
            report.n["failed"] += 1
            report.failures.append(f"{user or 'root'}: the run broke off\n{traceback.format_exc()}")
        pipe.send((said.getvalue(), report.n, report.failures, report.rows))

    def run(self, args, report):
        running = []
        for user in self.users:
            receive, send = self.context.Pipe(duplex=False)
            process = self.context.Process(target=self.child, args=(args, user, send))
            process.start()
            send.close()
            running.append((user, process, receive))
        for user, process, receive in running:
            try:
                text, n, failures, rows = receive.recv()
            except EOFError:
                self.barrier.abort()
                text, n, failures, rows = "", {"failed": 1}, [f"{user or 'root'}: the run was killed"], []
            print(text, end="", flush=True)
            for name, value in n.items():
                report.n[name] += value
            report.failures += failures
            report.rows += rows
            process.join()


def run_one(args, user, report, callers):
    kind = "root" if user is None and os.getuid() == 0 else (user or "user")
    st = Stage(args.dir, args.probe, user)
    try:
        suite = Suite(args, st)
        callers.meet()  # the stages of all are set
        before, log, binary = census(st.base), kernel_log(), sha(args.hutch)
        callers.meet()
        t0 = time.monotonic()
        controls = suite.controls()
        report.control_table(suite, controls)
        ws_before = st.listing(st.ws)
        seen = suite.strict()
        after_strict = hostside.after_run(suite, ws_before)
        t1 = time.monotonic()
        proofs = suite.removal(seen, controls) if args.test_hutch else {}
        more = proofs_mod.Proofs(suite, controls)
        ask = report.unanswered(suite, seen, proofs)
        answers = more.run(ask, args.search, report.as_expected(suite, seen) - set(ask)) if args.test_hutch else {}
        report.n["failed"] += len(more.stale)
        report.failures += [f"{kind} stale proof: {s}" for s in more.stale]
        t2 = time.monotonic()
        report.table(f"{kind}, strict, process tier", suite, seen, "strict", controls, proofs, answers)
        for privilege in ("strict", "computer"):
            boxed, reason = suite.container(privilege)
            if boxed is None:
                print(f"\n== {kind}, {privilege}, container tier: skipped: {reason}")
                report.n["skipped"] += 1
            else:
                report.table(f"{kind}, {privilege}, container tier", suite, boxed, privilege, {}, None)
        host = {**after_strict, **hostside.checks(suite, args)}
        callers.meet()  # the attempts of all are made
        with callers.lock:
            host.update(hostside.finals(suite, args, before, log, binary))
        report.host(kind, suite, host)
        print(f"\n{kind}: {suite.starts} sandboxes and controls started; attempts {t1 - t0:.0f} s, removal {t2 - t1:.0f} s, "
              f"rest {time.monotonic() - t2:.0f} s")
        return suite
    finally:
        st.close()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--hutch", required=True)
    ap.add_argument("--test-hutch", help="a build with layer removal; without it everything is unproven")
    ap.add_argument("--probe", required=True)
    ap.add_argument("--user", help="an ordinary user to run as, besides root")
    ap.add_argument("--only-user", action="store_true")
    ap.add_argument("--dir", default="/var/lib", help="where to set the stage: a place that a sandbox sees, not /tmp or /var/tmp")
    ap.add_argument("--record", action="store_true", help="write the table of system-call verdicts instead of comparing")
    ap.add_argument("--search", action="store_true", help="find the sets of proofs.json anew and write them")
    ap.add_argument("--seconds", type=float, default=3, help="time box of each race and storm")
    ap.add_argument("--json", help="write every row to this file")
    args = ap.parse_args()
    for name in ("hutch", "test_hutch", "probe"):
        value = getattr(args, name)
        if value and not os.access(value, os.X_OK):
            ap.error(f"--{name.replace('_', '-')} {value}: not an executable file")
        if value:
            setattr(args, name, os.path.abspath(value))
    report = Report()
    print(f"{'id':<7}{'attempt':<65}{'observed':<45}{'expected':<35}{'verdict':<9}layers proven")
    users = ([] if args.only_user else [None]) + ([args.user] if args.user else [])
    for group in [[u] for u in users] if args.record or args.search else [users]:  # those write files that the next one reads
        Callers(group).run(args, report)
    for f in report.failures:
        print("FAILED", f)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(report.rows, f, indent=1)
    print("red team: " + ", ".join(f"{v} {k}" for k, v in report.n.items()))
    print(f"{report.n['passed']} passed, {report.n['failed']} failed, {report.n['skipped']} skipped")
    return 1 if report.n["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
