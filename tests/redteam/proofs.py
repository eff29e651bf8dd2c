"""What stops an attempt that no removal of the layers named in its row lets through.

Four answers, each with its evidence in the line:

  set        several layers stop it, each alone. The smallest set whose removal lets it through stands in proofs.json; a run
             only verifies it: without all of them the attempt gets through, with any one of them kept it does not.
  kernel     the kernel refuses by itself: with every layer removed the attempt still fails, and root outside the wall either
             gets through (the capability is wanted in the initial user namespace) or is refused like everybody.
  absent     this host does not have the thing: root outside the wall does not find it either. Counted as skipped.
  duty       nothing is refused here: the row says what must keep working, or what is let through and documented.

What is none of these stays `unproven`. An entry of proofs.json that does not hold any more is a failure. `run.py --search`
finds the sets anew and writes the file.
"""
import json
import os
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "proofs.json"
LAYERS_H = HERE.parents[1] / "src/wall/layers.h"
A_LIMITS, A_INSIDE, A_TTY = 1 << 0, 1 << 2, 1 << 6
ABSENT = {"ENOENT", "ENOSYS", "ENODEV", "ENXIO", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "ENETUNREACH", "empty"}
DUTIES = {"survived", "reaped", "absolute", "inside", "already"}
# Attempts that use something up have 20 s each, and must not use up the host's: only these layers come into question.
OF_LIMITS = ["rlimits", "cgroup", "watch", "disk", "tmpfs-inodes", "seccomp", "landlock", "caps"]


def word(observed):
    return re.split("[: ]", observed, maxsplit=1)[0]


def through(row, observed):
    """A limited attempt that is still going on after 20 s is not limited any more."""
    return word(observed) in ("success", "reached", "leak") or (bool(row["flags"] & A_LIMITS) and word(observed) == "hang")


def count(observed):
    found = re.search(r"after (\d+) ", observed)
    return int(found[1]) if found else None


def all_layers():
    return re.findall(r'X\([A-Z_]+, "([a-z-]+)"\)', LAYERS_H.read_text())


class Proofs:
    """For the rows of one caller that are not proven yet; the answers are in .found, id -> (kind, text)."""

    def __init__(self, suite, controls):
        self.suite, self.controls = suite, controls
        self.who = "root" if suite.stage.is_root else "user"
        self.every = all_layers()
        self.found, self.stale, self.as_root, self.bare, self.strict = {}, [], {}, {}, {}
        self.file = json.loads(FILE.read_text()) if FILE.exists() else {}
        self.sets = dict(self.file.get(self.who, {}))

    # --- evidence ---------------------------------------------------------------------------------------------------------

    def row(self, i):
        return self.suite.by_id[i]

    def gone(self, i, seen):
        """Whether the attempt gets through, or, where one is counted, gets more than twice as far as behind the wall."""
        before, after = count(self.strict.get(i, "")), count(seen)
        return through(self.row(i), seen) or (before is not None and after is not None and after > 2 * before)

    def without(self, ids, layers):
        """What is observed with these layers removed; rows with limits get a start each."""
        layers, seen = [x for x in self.every if x in layers], {}
        if not layers or not ids:
            return dict.fromkeys(ids, "not tried")
        for limited in (False, True):
            some = [i for i in ids if bool(self.row(i)["flags"] & A_LIMITS) == limited]
            if some:
                seen.update(self.suite.removal_batch(some, ",".join(layers), limited))
        return seen

    def gather(self, ids):
        """Outside as real root, and inside with every layer removed. Root keeps the user namespace here: without it the
        attempt would be one of root outside, which is tried only if that one got through."""
        tried = [i for i in ids if not self.row(i)["flags"] & (A_LIMITS | A_INSIDE | A_TTY)]
        if os.getuid() == 0:
            known = {i: self.controls[i] for i in tried if self.suite.stage.is_root and i in self.controls
                     and self.row(i)["control"] != "ns"}
            more = [i for i in tried if i not in known]
            self.as_root = {**known, **(self.suite.control_as_root(more) if more else {})}
        most = [x for x in self.every if x != "userns"]
        ours = [x for x in most if x != "pidns"]  # pid 1 is then still our init, and attempts on it mean something
        safe = [i for i in ids if not self.row(i)["flags"] & (A_INSIDE | A_TTY)]
        plain = [i for i in safe if not self.row(i)["flags"] & A_LIMITS]
        self.bare = self.without(plain, most)
        self.base = dict.fromkeys(plain, most)
        limited = [i for i in safe if i not in plain]
        self.bare.update(self.without(limited, OF_LIMITS))
        self.base.update(dict.fromkeys(limited, OF_LIMITS))
        self.try_also(plain, ours)
        if self.suite.stage.is_root:
            self.try_also([i for i in plain if through(self.row(i), self.as_root.get(i, ""))], self.every)

    def try_also(self, ids, layers):
        ids = [i for i in ids if not self.gone(i, self.bare[i])]
        for i, seen in self.without(ids, layers).items():
            if self.gone(i, seen):
                self.bare[i], self.base[i] = seen, layers

    # --- sets -------------------------------------------------------------------------------------------------------------

    def verify(self, ids):
        """Each set as a whole, then with one member kept; one start for all attempts that have the same set."""
        ids = [i for i in ids if i in self.sets]
        by_set = {}
        for i in ids:
            by_set.setdefault(self.sets[i], []).append(i)
        for text, same in by_set.items():
            layers = text.split(",")
            unknown = [x for x in layers if x not in self.every]
            if unknown:
                self.stale += [f"{i}: proofs.json names {unknown[0]}, which is no layer" for i in same]
                continue
            seen = self.without(same, layers)
            bad = [i for i in same if not self.gone(i, seen[i])]
            self.stale += [f"{i}: without {text}: {seen[i]}, although proofs.json says that it gets through" for i in bad]
            good = [i for i in same if i not in bad]
            for kept in layers if len(layers) > 1 else []:
                held = self.without(good, [x for x in layers if x != kept])
                for i in [i for i in good if self.gone(i, held[i])]:
                    self.stale.append(f"{i}: gets through without {text} even with {kept}: the set in proofs.json is too big")
            for i in good:
                proof = f"{' and '.join(layers)}, each alone" if len(layers) > 1 else text
                self.found[i] = ("layers", proof if through(self.row(i), seen[i]) else f"{proof} (without: {seen[i][:40]})")
        for entry in self.stale:
            self.found.pop(entry.split(":")[0], None)

    def search(self, ids):
        """Keeps one layer after the other, for all attempts together: what remains needs every one of its members."""
        left = {i: tuple(x for x in self.every if x in self.base[i]) for i in ids if self.gone(i, self.bare.get(i, ""))}
        for layer in self.every:
            groups = {}
            for i, layers in left.items():
                if layer in layers:
                    groups.setdefault(layers, []).append(i)
            for layers, same in groups.items():
                fewer = tuple(x for x in layers if x != layer)
                seen = self.without(same, fewer)
                for i in [i for i in same if self.gone(i, seen[i])]:
                    left[i] = fewer
        self.sets = {i: ",".join(layers) for i, layers in left.items()}

    def write(self):
        self.file[self.who] = dict(sorted(self.sets.items()))
        FILE.write_text(json.dumps(dict(sorted(self.file.items())), indent=1) + "\n")

    # --- verdicts ---------------------------------------------------------------------------------------------------------

    def is_duty(self, i, observed):
        return through(self.row(i), observed) or word(observed) in DUTIES

    def judge(self, i, observed):
        """(kind, text), or None: unproven."""
        row, root, bare = self.row(i), self.as_root.get(i), self.bare.get(i)
        why = row["why"] or ""
        if self.is_duty(i, observed):
            return "duty", ("let through: " if through(row, observed) else "nothing to refuse: ") + why
        if bare is None or self.gone(i, bare) or word(bare) in ("not-started", "not", "skipped"):
            return None
        if row["flags"] & A_LIMITS:
            return ("kernel", f"the same without our limits: {bare}; {why}") if word(bare) == word(observed) else None
        if root is None:
            return None
        if word(root) in ABSENT:
            return "absent", f"outside, as root: {root}; {why}"
        own = self.controls.get(i, "")
        who = "as root" if through(row, root) or not through(row, own) else "where nothing stops it"
        seen = own if who == "where nothing stops it" else root
        refuses = "the kernel refuses" if through(row, seen) else "the kernel refuses everybody"
        return "kernel", f"{refuses}: without every layer: {bare[:40]}; outside, {who}: {seen[:40]}; {why}"

    def run(self, observed, search=False):
        """observed: id -> what the strict run saw, for the rows that need an answer."""
        self.strict = observed
        ids = [i for i in observed if not self.is_duty(i, observed[i])]
        for i in sorted(set(self.sets) - set(self.suite.by_id)):
            self.stale.append(f"{i}: proofs.json names an attempt that does not exist")
        if not search:
            self.verify(ids)
        rest = [i for i in ids if i not in self.found]
        self.gather(rest)
        if search:
            self.search(rest)
            self.write()
            self.verify(rest)
            rest = [i for i in ids if i not in self.found]
        for i in observed:
            answer = None if i in self.found else self.judge(i, observed[i])
            if answer:
                self.found[i] = answer
        # A set for something that this host does not have is not stale.
        self.stale = [s for s in self.stale if self.found.get(s.split(":")[0], ("",))[0] != "absent"]
        for s in self.stale:
            self.found.pop(s.split(":")[0], None)
        return self.found
