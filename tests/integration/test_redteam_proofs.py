"""The red team's book-keeping: a proof that does not hold is a failure, and a verdict follows from its evidence."""
import json
import sys

from hutch_test import TOP, check, check_equal, check_in

sys.path.insert(0, str(TOP / "tests/redteam"))
import proofs  # noqa: E402


class Stage:
    is_root = False


class Suite:
    """Attempts stopped by given layers, each alone; `None`: whatever is removed, the kernel refuses."""

    def __init__(self, stopped_by, outside):
        self.stage, self.stopped_by, self.outside, self.removed = Stage(), stopped_by, outside, []
        self.by_id = {i: {"id": i, "flags": 0, "control": "root", "why": "because"} for i in stopped_by}

    def removal_batch(self, ids, layers, _limited):
        self.removed.append(layers)
        gone = set(layers.split(","))
        return {i: "EPERM" if self.stopped_by[i] is None or self.stopped_by[i] - gone else "success" for i in ids}

    def control_as_root(self, ids):
        return {i: self.outside[i] for i in ids}


def judged(sets, stopped_by, outside=None, observed="EPERM"):
    """(what was found, what is stale) for attempts with these entries of proofs.json."""
    outside = outside or dict.fromkeys(stopped_by, "success")
    book = proofs.Proofs(Suite(stopped_by, outside), {})
    book.sets = sets
    real, proofs.os.getuid = proofs.os.getuid, lambda: 0
    try:
        return book.run(dict.fromkeys(stopped_by, observed)), book.stale
    finally:
        proofs.os.getuid = real


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
