"""The red team's book-keeping: a proof that does not hold is a failure, and a verdict follows from its evidence."""
import json
import sys

from hutch_test import TOP, check, check_equal, check_in

sys.path.insert(0, str(TOP / "tests/redteam"))
import proofs  # noqa: E402


class Stage:
    is_root = False


class Suite:
    """Attempts stopped by given layers, each alone; `None`: whatever is removed, the kernel refuses; or a function that says
    what is observed without a set of layers."""

    def __init__(self, stopped_by, outside, flags=0):
        self.stage, self.stopped_by, self.outside, self.removed = Stage(), stopped_by, outside, []
        self.by_id = {i: {"id": i, "flags": flags, "control": "root", "why": "because", "strict": "EPERM EACCES survived"}
                      for i in stopped_by}

    def one(self, i, gone):
        by = self.stopped_by[i]
        if callable(by):
            return by(gone)
        return "EPERM" if by is None or by - gone else "success"

    def removal_batch(self, ids, layers, _limited):
        self.removed.append(layers)
        return {i: self.one(i, set(layers.split(","))) for i in ids}

    def control_as_root(self, ids):
        return {i: self.outside[i] for i in ids}


def judged(sets, stopped_by, outside=None, observed="EPERM", flags=0, settled=(), search=False):
    """(what was found, what is stale) for attempts with these entries of proofs.json; `sets` is what a search writes."""
    outside = outside or dict.fromkeys(stopped_by, "success")
    book = proofs.Proofs(Suite(stopped_by, outside, flags), {})
    book.sets, book.write = sets, lambda: sets.update(book.sets)
    real, proofs.os.getuid = proofs.os.getuid, lambda: 0
    try:
        asked = [i for i in stopped_by if i not in settled]
        return book.run(dict.fromkeys(asked, observed), search, settled), book.stale
    finally:
        proofs.os.getuid = real


NO_ANSWERS = ("not-started: exit 1, no", "not-run", "not tried", "skipped: no --var x given", "hang",
              "exit 1 without a word", "")


def both_or(text):
    """Gets through without landlock and seccomp; what is seen with one of them only is `text`."""
    return lambda gone: "success" if {"landlock", "seccomp"} <= gone else text if gone & {"landlock", "seccomp"} else "EPERM"


def test_set_that_holds():
    "a set without which an attempt gets through, and not with any one of its members, is the proof"
    found, stale = judged({"A": "landlock,seccomp"}, {"A": {"landlock", "seccomp"}})
    check_equal((found, stale), ({"A": ("layers", "landlock and seccomp, each alone")}, []))


def test_stale_sets():
    "a set that is too small, too big, or names what does not exist is a failure and proves nothing"
    for entry, layers, what in (("landlock", {"landlock", "seccomp"}, "although"),
                                ("landlock,seccomp", {"landlock"}, "too big"),
                                ("landlock,moat", {"landlock"}, "no layer")):
        found, stale = judged({"A": entry}, {"A": layers})
        check("A" not in found, found)
        check_equal(len(stale), 1)
        check_in(what, stale[0])
    found, stale = judged({"Z": "landlock"}, {"A": {"caps"}})
    check_in("does not exist", " ".join(stale))


def test_kept_member_must_be_seen_to_stop():
    "a run with one member kept that did not start, was skipped or hangs does not show that this member stops anything"
    for text in NO_ANSWERS:
        found, stale = judged({"A": "landlock,seccomp"}, {"A": both_or(text)})
        check("A" not in found, f"{text}: {found}")
        check_in("not shown that landlock", " ".join(stale))
        written = {}
        found, stale = judged(written, {"A": both_or(text)}, search=True)
        check_equal((found, stale, written), ({}, [], {}))
    found, stale = judged({"A": "landlock,seccomp"}, {"A": both_or("EACCES")})
    check_equal((found["A"][0], stale), ("layers", []))
    # A limited attempt that goes on is not limited.
    found, stale = judged({"A": "landlock,seccomp"}, {"A": both_or("hang")}, flags=proofs.A_LIMITS)
    check_in("too big", " ".join(stale))


def test_search():
    "a search writes the smallest set that holds, also if starts with most layers removed fail"
    written = {}
    found, stale = judged(written, {"A": {"landlock", "seccomp"}}, search=True)
    check_equal((written, found["A"][0], stale), ({"A": "landlock,seccomp"}, "layers", []))

    def late(gone):
        return "EPERM" if "seccomp" not in gone else "not-started" if len(gone) > 10 and "mounts" not in gone else "success"
    written = {}
    found, stale = judged(written, {"A": late}, search=True)
    check_equal((written, found["A"], stale), ({"A": "seccomp"}, ("layers", "seccomp"), []))


def test_unneeded_entries():
    "an entry of an attempt that is proven without it, or that refuses nothing, is stale: nothing would verify it"
    found, stale = judged({"A": "landlock"}, {"A": {"landlock"}, "B": None}, settled={"A"})
    check_equal((len(stale), "B" in found), (1, True))
    check_in("A: proven without its entry", stale[0])
    _, stale = judged({"A": "landlock"}, {"A": {"landlock"}}, observed="survived: 3")
    check_in("nothing is refused", " ".join(stale))


def test_kernel_needs_answers():
    "the kernel refuses only if the attempt was really made, by root outside too, and fails as behind the wall"
    for text in NO_ANSWERS:
        check_equal(judged({}, {"A": None}, {"A": text})[0], {})
        check_equal(judged({}, {"A": lambda _, t=text: t})[0], {})
        check_equal(judged({}, {"A": lambda _, t=text: t}, flags=proofs.A_LIMITS)[0], {})
    # Another error than those of the row: without the layer that refused it something else is missing.
    check_equal(judged({}, {"A": lambda _: "ENOENT"})[0], {})
    check_equal(judged({}, {"A": lambda _: "ENOENT"}, {"A": "ENOENT"})[0]["A"][0], "absent")
    check_equal(judged({}, {"A": lambda _: "EACCES: elsewhere"})[0]["A"][0], "kernel")
    check_equal(judged({}, {"A": lambda _: "EACCES"}, flags=proofs.A_LIMITS)[0], {})


def test_verdict_says_what_was_removed():
    "the user namespace is kept, and of a limited attempt only what limits is removed: the line does not say more"
    check_in("without every layer but userns: EPERM", judged({}, {"A": None})[0]["A"][1])
    text = judged({}, {"A": None}, flags=proofs.A_LIMITS)[0]["A"][1]
    check_in("without rlimits+cgroup+watch", text)
    check("every layer" not in text, text)


def test_verdict_follows_from_evidence():
    "kernel and absent need what root sees outside; without a set in the file nothing is proven"
    check_equal(judged({}, {"A": {"caps", "seccomp"}})[0], {})
    found, _ = judged({}, {"A": None})
    check_equal(found["A"][0], "kernel")
    check_in("outside, as root: success", found["A"][1])
    found, _ = judged({}, {"A": None}, {"A": "EPERM"})
    check_in("refuses everybody", found["A"][1])
    found, stale = judged({"A": "landlock"}, {"A": None}, {"A": "ENOENT"})
    check_equal((found["A"][0], stale), ("absent", []))
    check_equal(judged({}, {"A": None}, observed="survived: 3")[0]["A"][0], "duty")


def test_file_names_layers_that_exist():
    "every set of proofs.json is made of layers of this source"
    known = proofs.all_layers()
    check(len(known) > 30, known)
    for who, sets in json.loads(proofs.FILE.read_text()).items():
        for attempt, text in sets.items():
            check(set(text.split(",")) <= set(known), f"{who} {attempt}: {text}")
