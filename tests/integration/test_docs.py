"""Every example on every page of the documentation does what its page says. tests/lib/pages.py says what an example is."""
import re

import pages
from hutch_test import HUTCH, TOP, Failed, check, check_equal, check_in, is_root, run, skip
from reader import compare, shared_desk


def read(page):
    if not is_root():
        skip("needs root")
    with shared_desk() as desk, desk.reader(page) as reader:
        reader.read()


def make_test(page):
    def test():
        read(page)
    test.__doc__ = f"the examples of {page} do what it says"
    test.__module__ = __name__
    return test


for _page in pages.pages():
    globals()["test_" + re.sub(r"\W", "_", _page)] = make_test(_page)


def wrong(text):
    try:
        return pages.markdown("page.md", text)
    except pages.Wrong as error:
        return str(error)


def test_markers():
    "an example that is neither run nor marked with a reason is an error that names page and line"
    check_in("page.md:1: a block of yaml says", wrong("```yaml\na: 1\n```\n"))
    check_in("page.md:1: no language of an example: rust", wrong("```rust\n1\n```\n"))
    check_in("page.md:2: unknown marker: run: tomorrow", wrong("<!-- run: tomorrow -->\n```sh\ntrue\n```\n"))
    check_in("page.md:1: a fence in `text` contains commands", wrong("```text\n$ true\n```\n"))
    check_in("page.md:1: the fence has no end", wrong("```sh\ntrue\n"))
    [e] = wrong("words\n\n<!-- not run: needs a model key -->\n\n    agent\n")
    check_equal((e.line, e.text, e.reason), (5, "agent\n", "needs a model key"))
    [e] = wrong("<!-- before: touch a -->\n<!-- run: ends with 2 -->\n```sh\nfalse\n```\n")
    check_equal((e.before, e.how, e.line), ("touch a", "ends with 2", 3))


def test_reasons():
    "a reason that names a test or a program of the tests names one that exists"
    for page in pages.pages():
        for e in pages.examples(page):
            for name in re.findall(r"\b(test_\w+\.py|\w+_guest\.sh|tests/[\w/.]+\.py)", e.reason):
                check(any((TOP / folder / name).exists() for folder in ("", "tests/integration")), f"{e}: {name}")


def test_commands():
    "lines below a prompt are what a command prints; a command goes on over lines"
    check_equal(pages.commands("$ a 'b\nc'\nout 1\nout 2\n$ d\n"), [("a 'b\nc'", "out 1\nout 2"), ("d", None)])
    check_equal(pages.commands("a \\\n  b\ncat >f <<X\ntext\nX\n"), [("a \\\n  b", None), ("cat >f <<X\ntext\nX", None)])


def test_comparison():
    "ids, times and sizes may differ from the page, words and numbers may not"
    page = "ID ap_8c0b512d7680f042  2s\nup 27 B\n...\nend\n"
    same = compare(page, "ID ap_0123456789abcdef  14 s\nup 3.5 KiB\nmore\nand more\nend\n")
    check_equal(same, {"ap_8c0b512d7680f042": "ap_0123456789abcdef"})
    for other in ("ID ap_0123456789abcdef  14 s\nup 27 X\nend\n", "up 27 B\nend\n", "ID ap_0123456789abcdef 2s\nup 27 B\nend\nmore\n"):
        check(compare(page, other) is None, other)
    check(compare("403", "404") is None and compare("42", "42\n") == {})


class Page:
    """What a reader makes of a page of the test."""

    def __init__(self, text):
        self.text = text

    def read(self):
        if not is_root():
            skip("needs root")
        with shared_desk() as desk, desk.reader("page.md") as reader:
            try:
                reader.read(pages.markdown("page.md", self.text))
            except Failed as error:
                return str(error)
        return ""


def test_reader():
    "a page whose example fails, prints something else or would change this machine is not passed over"
    check_equal(Page("    $ echo a\n    a\n").read(), "")
    check_in("page.md:1: it ends with 7", Page("    sh -c 'exit 7'\n").read())
    check_in("the page prints", Page("    $ echo a\n    b\n").read())
    check_in("it changes this machine", Page("    sudo apt-get install jq\n").read())
    check_in("it changes this machine", Page("    hutch serve\n").read())
    check_in("the answer is an error", Page('```sh\neval "$(hutch env)"\ncurl -s $E2B_API_URL/v1/node\n```\n').read())


def test_every_command_has_a_row():
    "docs/cli.md lists every command of `hutch --help`, and no other"
    helped = re.findall(r"^  ([a-z]+) {2,}", run(HUTCH, "--help").out, re.M)
    listed = set()
    for cell in re.findall(r"^\| (`.*?) \|", (TOP / "docs/cli.md").read_text().partition("## Which node")[0], re.M):
        for word in re.findall(r"`([a-z]+)[^`]*`", cell)[:1] + re.findall(r", `(rm) ID", cell):
            listed.add(word)
    covered = {"diff", "apply", "discard"}  # in the row of tx
    check_equal(sorted(set(helped) - listed - covered), [], "commands without a row")
    check_equal(sorted(listed - set(helped)), [], "rows without a command")


def anchor(heading):
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def test_links():
    "every link between pages leads to a file that exists, and to a heading in it"
    found = [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md"), *(TOP / "examples").rglob("*.md"), *(TOP / "clients").rglob("*.md")]
    broken = []
    for page in found:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            name, _, part = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if link.startswith(("http:", "https:")):
                continue
            headings = map(anchor, re.findall(r"^#+ (.*)$", target.read_text(), re.M)) if target.suffix == ".md" and target.exists() else []
            if not target.exists() or (part and part not in headings):
                broken.append(f"{page.relative_to(TOP)}: {link}")
    check_equal(broken, [])
