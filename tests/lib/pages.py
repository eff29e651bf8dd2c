#!/usr/bin/env python3
"""pages.py - the examples on the pages of the documentation, and how the tests run each.

An example is a fenced block in a language, or an indented block. test_docs.py runs all of them, page by page, in one shell per page. A comment
above a block, or at the end of a table cell, changes that:

    <!-- not run: needs a model key -->     not run, and why
    <!-- run: config -->                    a configuration of a node (also: policy, network, secret: a document of that kind)
    <!-- run: frameworks -->                Python with deepagents, langchain-e2b and the OpenAI Agents SDK
    <!-- run: stop after 2 s -->            a command that does not end by itself
    <!-- run: ends with 2 -->               the exit code of its last command
    <!-- run: keys of FILE -->              JSON: FILE, which an example before wrote, has these keys
    <!-- before: COMMAND -->                what the example takes for granted: run before it

As a program it lists what is not run. A fence in `text` is no example; it may not contain commands.
"""
import dataclasses
import pathlib
import re
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
LANGUAGES = {"": "sh", "sh": "sh", "bash": "sh", "console": "sh", "python": "python", "py": "python", "js": "js", "json": "json", "yaml": "yaml"}
MARKER = re.compile(r"<!-- (not run|run): (.+?) -->")
BEFORE = re.compile(r"<!-- before: (.+?) -->")
HOW = re.compile(r"config|policy|network|secret|frameworks|stop after \d+ s|ends with \d+|keys of \S+")


class Wrong(Exception):
    """A page that cannot be read as one; the message names page and line."""


@dataclasses.dataclass
class Example:
    page: str
    line: int
    kind: str    # sh, python, js, json, yaml
    text: str
    how: str     # the words of a `run` marker, or ""
    reason: str  # of a `not run` marker, or ""
    before: str = ""

    def __str__(self):
        return f"{self.page}:{self.line}"


def pages():
    """Every page whose examples are run, by its path below the checkout."""
    found = [TOP / "README.md", *sorted((TOP / "docs").glob("*.md")), *sorted((TOP / "docs/recipes").glob("*.md")),
             *sorted((TOP / "examples").rglob("*.md")), *sorted((TOP / "clients").rglob("*.md")), TOP / "man/hutch.1"]
    return [str(p.relative_to(TOP)) for p in found]


def example(page, line, language, lines, marker):
    kind = LANGUAGES.get(language)
    if kind is None:
        raise Wrong(f"{page}:{line}: no language of an example: {language} (expected one of {', '.join(sorted(LANGUAGES))}, text)")
    how, reason = (marker[2], "") if marker and marker[1] == "run" else ("", marker[2] if marker else "")
    if how and not HOW.fullmatch(how):
        raise Wrong(f"{page}:{line}: unknown marker: run: {how} (tests/lib/pages.py lists them)")
    if kind in ("json", "yaml") and not how and not reason:
        raise Wrong(f"{page}:{line}: a block of {kind} says in a comment above it what it is: <!-- run: config -->, policy, network, secret, keys of FILE")
    return Example(page, line, kind, "\n".join(lines).rstrip() + "\n", how, reason)


def fenced(page, lines, at):
    """(language, the lines of the block, the line after it)"""
    indent, language = re.match(r"( *)```(\S*)", lines[at]).groups()
    end = at + 1
    while end < len(lines) and lines[end].strip() != "```":
        end += 1
    if end == len(lines):
        raise Wrong(f"{page}:{at + 1}: the fence has no end")
    block = [line.removeprefix(indent) for line in lines[at + 1:end]]
    if language == "text" and any(re.match(r"(\$ |hutch |sudo |curl )", line) for line in block):
        raise Wrong(f"{page}:{at + 1}: a fence in `text` contains commands: give it the language sh")
    return language, block, end + 1


def indented(lines, at):
    end = at
    while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
        end += 1
    return [line[4:] for line in lines[at:end]], end


def cells(page, number, line):
    """Examples in the last column of a table of commands (docs/cli.md): `command`."""
    found = re.fullmatch(r"\|.*\| `([^|`]+)` *(<!-- .* -->)? *\|", line)
    return [example(page, number, "sh", [found[1]], MARKER.search(found[2] or ""))] if found else []


def markdown(page, text):
    lines, out, at, marker, before = text.splitlines(), [], 0, None, ""
    commands = False  # in a table whose last column is "example"
    while at < len(lines):
        line = lines[at]
        if re.match(r" *```", line):
            language, block, end = fenced(page, lines, at)
            if language != "text":
                out.append(example(page, at + 1, language, block, marker))
        elif line.startswith("    ") and (at == 0 or not lines[at - 1].strip() or marker):
            block, end = indented(lines, at)
            out.append(example(page, at + 1, "", block, marker))
        else:
            end = at + 1
            commands = line.startswith("|") and (commands or page == "docs/cli.md" and line.rstrip(" |").endswith("example"))
            out += cells(page, at + 1, line) if commands else []
        if before and out and out[-1].line == at + 1:
            out[-1].before, before = before, ""
        before = found[1] if (found := BEFORE.fullmatch(line.strip())) else before
        found = MARKER.fullmatch(line.strip())
        marker = found or (marker if end == at + 1 and (not line.strip() or BEFORE.fullmatch(line.strip())) else None)
        at = end
    return out


def manual(page, text):
    """The commands of the section EXAMPLES, between .nf and .fi."""
    body = re.search(r"\.SH EXAMPLES\n(.*?)(?=^\.SH |\Z)", text, re.S | re.M)
    out, marker, inside = [], None, False
    for number, line in enumerate(body[1].splitlines() if body else [], text[:body.start(1)].count("\n") + 1 if body else 0):
        found = MARKER.search(line) if line.startswith('.\\"') else None
        if line in (".nf", ".fi"):
            inside = line == ".nf"
        elif inside and not line.startswith("."):
            out.append(example(page, number, "", [line.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\")], marker))
        marker = found
    return out


def examples(page):
    text = (TOP / page).read_text()
    return manual(page, text) if page.startswith("man/") else markdown(page, text)


def commands(text):
    """[(command, what the page prints below it or None)]. In a block with prompts, lines without one are output; other blocks are commands."""
    lines, out, at = text.splitlines(), [], 0
    prompts = any(line.startswith("$ ") for line in lines)
    while at < len(lines):
        if not lines[at].strip() and not out:
            at += 1
            continue
        command, at = [lines[at].removeprefix("$ ") if prompts else lines[at]], at + 1
        while at < len(lines) and unfinished("\n".join(command)):
            command, at = [*command, lines[at]], at + 1
        printed = []
        while prompts and at < len(lines) and not lines[at].startswith("$ "):
            printed, at = [*printed, lines[at]], at + 1
        if "".join(command).strip():
            out.append(("\n".join(command), "\n".join(printed).rstrip() or None))
    return out


def unfinished(command):
    if command.endswith("\\"):
        return True
    if not re.search(r"<<|['\"({]|\b(if|for|while|do|case)\b", command):
        return False
    r = subprocess.run(["bash", "-n"], input=command, text=True, capture_output=True, check=False)
    return "unexpected end of file" in r.stderr or "unexpected EOF" in r.stderr or "delimited by end-of-file" in r.stderr


def main():
    every = [e for page in pages() for e in examples(page)]
    left = [e for e in every if e.reason]
    for e in left:
        print(f"{e}: {e.reason}")
    print(f"{len(every)} examples, {len(left)} of them not run")


if __name__ == "__main__":
    sys.exit(main())
