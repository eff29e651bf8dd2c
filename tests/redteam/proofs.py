"""What stops an attempt that no removal of the layers named in its row lets through.

Four answers, each with its evidence in the line:

  set        several layers stop it, each alone. The smallest set whose removal lets it through stands in proofs.json; a run
             only verifies it: without all of them the attempt gets through, with any one of them kept it does not.
  kernel     the kernel refuses by itself: with the layers removed that the line names (all but the user namespace, if that
             can be) the attempt still gets an answer that its row expects, and root outside the wall either gets through (the
             capability is wanted in the initial user namespace) or is refused like everybody.
  absent     this host does not have the thing: root outside the wall does not find it either. Counted as skipped.
  duty       nothing is refused here: the row says what must keep working, or what is let through and documented.

What is none of these stays `unproven`. Only an answer to the attempt is evidence: a run that did not start, was skipped or
hangs shows nothing. An entry of proofs.json that does not hold any more, cannot be shown or is not needed is a failure.
`run.py --search` finds the sets anew and writes the file.
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
# What is seen when the attempt itself was not made, or gave no answer.
NO_ANSWER = {"", "not", "not-run", "not-started", "skipped", "exit"}
DUTIES = {"survived", "reaped", "absolute", "inside", "already"}
# Attempts that use something up have 20 s each, and must not use up the host's: only these layers come into question.
OF_LIMITS = ["rlimits", "cgroup", "watch", "disk", "tmpfs-inodes", "seccomp", "landlock", "caps"]


def word(observed):
    return re.split("[: ]", observed, maxsplit=1)[0]


def through(row, observed):
    """A limited attempt that is still going on after 20 s is not limited any more."""
    return word(observed) in ("success", "reached", "leak") or (bool(row["flags"] & A_LIMITS) and word(observed) == "hang")


def real(row, observed):
    """Whether the attempt was made and answered. Only a limited one may hang: that says that nothing limits it."""
    return word(observed) not in NO_ANSWER and (word(observed) != "hang" or bool(row["flags"] & A_LIMITS))


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
        self.found, self.stale, self.as_root, self.bare, self.base, self.strict = {}, [], {}, {}, {}, {}
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
                for i in good:
                    if self.gone(i, held[i]):
                        self.stale.append(f"{i}: gets through without {text} even with {kept}: "
                                          "the set in proofs.json is too big")
                    elif not real(self.row(i), held[i]):
                        self.stale.append(f"{i}: without {text} but with {kept}: {held[i]}: "
                                          f"not shown that {kept} stops it alone")
            for i in good:
                proof = f"{' and '.join(layers)}, each alone" if len(layers) > 1 else text
                self.found[i] = ("layers", proof if through(self.row(i), seen[i]) else f"{proof} (without: {seen[i][:40]})")
        for entry in self.stale:
            self.found.pop(entry.split(":")[0], None)

    def search(self, ids):
        """Finds sets, writes those that hold, and judges by them. A set whose members cannot be shown to be needed is none."""
        left = {i: tuple(x for x in self.every if x in self.base[i]) for i in ids if self.gone(i, self.bare.get(i, ""))}
        before = None
        while left != before:  # again, because a start that failed with more layers removed may succeed with fewer
            before = dict(left)
            self.keep_more(left)
        self.sets = {i: ",".join(layers) for i, layers in left.items()}
        self.verify(ids)
        self.sets = {i: text for i, text in self.sets.items() if i in self.found}
        self.stale = []
        self.write()

    def keep_more(self, left):
        """Keeps one layer after the other, for all attempts together: what remains needs every one of its members."""
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

    def write(self):
        self.file[self.who] = dict(sorted(self.sets.items()))
        FILE.write_text(json.dumps(dict(sorted(self.file.items())), indent=1) + "\n")

    # --- verdicts ---------------------------------------------------------------------------------------------------------

    def is_duty(self, i, observed):
        return through(self.row(i), observed) or word(observed) in DUTIES

    def removed(self, i):
        """What was removed for .bare, as text."""
        kept = [x for x in self.every if x not in self.base[i]]
        if len(kept) > 2:
            return "without " + "+".join(self.base[i])
        return "without every layer" + (f" but {' and '.join(kept)}" if kept else "")

    def judge(self, i, observed):
        """(kind, text), or None: unproven."""
        row, root, bare = self.row(i), self.as_root.get(i), self.bare.get(i)
        why = row["why"] or ""
        if self.is_duty(i, observed):
            return "duty", ("let through: " if through(row, observed) else "nothing to refuse: ") + why
        if bare is None or self.gone(i, bare) or not real(row, bare):
            return None
        if row["flags"] & A_LIMITS:
            return ("kernel", f"the same {self.removed(i)}: {bare}; {why}") if word(bare) == word(observed) else None
        if root is None or not real(row, root):
            return None
        if word(root) in ABSENT:
            return "absent", f"outside, as root: {root}; {why}"
        if word(bare) not in (row["strict"] or "").split():  # another error: one of ours stopped it, now its object is gone
            return None
        own = self.controls.get(i, "")
        who = "as root" if through(row, root) or not through(row, own) else "where nothing stops it"
        seen = own if who == "where nothing stops it" else root
        refuses = "the kernel refuses" if through(row, seen) else "the kernel refuses everybody"
        return "kernel", f"{refuses}: {self.removed(i)}: {bare[:40]}; outside, {who}: {seen[:40]}; {why}"

    def unneeded(self, observed, settled):
        """Entries that nothing reads: they would never be verified."""
        for i in sorted(self.sets):
            if i not in self.suite.by_id:
                self.stale.append(f"{i}: proofs.json names an attempt that does not exist")
            elif i in settled:
                self.stale.append(f"{i}: proven without its entry in proofs.json")
            elif i in observed and self.is_duty(i, observed[i]):
                self.stale.append(f"{i}: {observed[i]}: nothing is refused, although proofs.json says what refuses it")

    def run(self, observed, search=False, settled=()):
        """observed: id -> what the strict run saw, for the rows that need an answer; settled: ids that have one already."""
        self.strict = observed
        ids = [i for i in observed if not self.is_duty(i, observed[i])]
        if not search:
            self.unneeded(observed, settled)
            self.verify(ids)
        rest = [i for i in ids if i not in self.found]
        self.gather(rest)
        if search:
            self.search(rest)
        for i in observed:
            answer = None if i in self.found else self.judge(i, observed[i])
            if answer:
                self.found[i] = answer
        # A set for something that this host does not have is not stale.
        self.stale = [s for s in self.stale if self.found.get(s.split(":")[0], ("",))[0] != "absent"]
        for s in self.stale:
            self.found.pop(s.split(":")[0], None)
        return self.found
