"""The build: the program's shape, rules of the source, generated files, man page, completions."""
import re
import shutil
import subprocess

from hutch_test import HUTCH, TOP, check, check_equal, check_in, check_one_line, hutch, run, workspace


def readelf(*args):
    return subprocess.run(["readelf", "-W", *args, HUTCH], capture_output=True, text=True, check=True).stdout


def run_options():
    """Long options that `hutch run --help` lists."""
    r = hutch("run", "--help")
    check_equal(r.code, 0, r)
    found = re.findall(r"^\s*(?:-\w, )?--([a-z][a-z-]+)", r.out, re.M)
    check(len(found) > 10, f"too few options in the help: {r}")
    return found


def test_program_is_static():
    "the program needs no interpreter and no library"
    headers = readelf("-l")
    check("INTERP" not in headers, headers)
    check("(NEEDED)" not in readelf("-d"), readelf("-d"))


def test_program_is_hardened():
    "the program is position-independent, RELRO, without executable stack or writable code"
    check_in("DYN", readelf("-h"))
    headers = readelf("-l")
    check_in("GNU_RELRO", headers)
    stack = next(line for line in headers.splitlines() if "GNU_STACK" in line)
    check(" RWE" not in stack and "RW " in stack, stack)
    check(not [line for line in headers.splitlines() if "LOAD" in line and "RWE" in line], headers)


def test_release_cannot_remove_layers(who):
    "the released program refuses to run when it is asked to leave a layer out"
    r = hutch("run", "--", "true", who=who, env={"HUTCH_WITHOUT": "seccomp"})
    check_equal((r.code, r.out), (120, ""), r)
    check_one_line(r.err, r)
    check_in("HUTCH_WITHOUT", r.err, r)


def test_include_graph():
    "folders use only what stands before them in the include order"
    r = run(TOP / "tools/check-includes", cwd=TOP)
    check_equal((r.code, r.out), (0, ""), r)


def test_include_check_can_fail():
    "the include check refuses an upward include"
    with workspace() as ws:
        (ws / "base").mkdir()
        (ws / "base/x.c").write_text('#include "os/mount.h"\n')
        r = run(TOP / "tools/check-includes", ws)
        check_equal(r.code, 1, r)
        check_in("base/ may not use os/", r.out)


def test_source_check_can_fail():
    "the source check sees a banned call and a descriptor without CLOEXEC, but not in comments or strings"
    with workspace() as ws:
        (ws / "tools").mkdir()
        (ws / "src").mkdir()
        shutil.copy(TOP / "tools/check-source", ws / "tools")
        (ws / "src/x.c").write_text('/* strcpy(a, b) */ char *s = "atoi(x)";\nint f(void) { strcpy(a, b); return open(p, 0); }\n')
        r = run(ws / "tools/check-source")
        check_equal(r.code, 1, r)
        check_equal([line.split(" ")[1] for line in r.out.splitlines()], ["strcpy()", "open()"], r)


def test_all_tests_are_built():
    "every unit test and fuzz driver in the tree is in tests/meson.build"
    listed = (TOP / "tests/meson.build").read_text()
    for path in sorted(TOP.glob("tests/unit/test_*.c")) + sorted(TOP.glob("tests/fuzz/fuzz_*.c")):
        check_in(f"'{path.stem.split('_', 1)[1]}'", listed, f"{path.name} is not listed")


def test_generated_page_is_fresh():
    "docs/syscalls.md is what the filter's tables say"
    r = run(TOP / "build/src/policy/gen-filters", "--docs")
    check_equal(r.code, 0, r)
    check(r.out == (TOP / "docs/syscalls.md").read_text(), "regenerate: build/src/policy/gen-filters --docs >docs/syscalls.md")


def test_man_page_is_clean():
    "the man page formats without a warning and names every option of run"
    r = run("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", TOP / "man/hutch.1", env={"MANROFFSEQ": ""})
    check_equal((r.code, r.err.strip()), (0, ""), r.err)
    text = (TOP / "man/hutch.1").read_text().replace("\\-", "-")
    missing = [name for name in run_options() if f"--{name}" not in text]
    check_equal(missing, [], "options without a line in man/hutch.1")


def test_completions_cover_run():
    "every option that the help lists is completed in every shell, and the bash script parses"
    for shell, form in (("bash", "--{}"), ("zsh", "--{}"), ("fish", "-l {}")):
        r = hutch("completion", shell)
        check_equal(r.code, 0, r)
        missing = [name for name in run_options() if name != "help" and form.format(name) not in r.out]
        check_equal(missing, [], f"not completed by {shell}")
    r = run("bash", "-n", stdin=hutch("completion", "bash").out)
    check_equal((r.code, r.err), (0, ""), r)


def test_bash_completion_works():
    "bash offers the values of --network and commands behind --"
    script = hutch("completion", "bash").out + """
COMP_WORDS=(hutch run --network ""); COMP_CWORD=3; _hutch; echo "${COMPREPLY[@]}"
COMP_WORDS=(hutch run -- mkdi); COMP_CWORD=3; _hutch; echo "${COMPREPLY[@]}"
"""
    r = run("bash", stdin=script)
    check_in("host", r.out.splitlines()[0], r)
    check_in("mkdir", r.out, r)


def test_install():
    "make install puts the program, man page, completions and docs below DESTDIR"
    with workspace() as ws:
        r = run(TOP / "tools/install", ws, "/usr", cwd=TOP)
        check_equal(r.code, 0, r)
        for name in ("bin/hutch", "share/man/man1/hutch.1", "share/bash-completion/completions/hutch",
                     "share/zsh/site-functions/_hutch", "share/fish/vendor_completions.d/hutch.fish",
                     "share/doc/hutch/copyright"):
            check((ws / "usr" / name).is_file(), f"{name} is missing")
        r = run(ws / "usr/bin/hutch", "--version")
        check_equal(r.code, 0, r)


def test_version():
    "hutch --version prints the version of the build files"
    version = re.search(r"version: '([^']+)'", (TOP / "meson.build").read_text()).group(1)
    r = hutch("--version")
    check_equal((r.code, r.out.strip()), (0, f"hutch {version}"), r)


def test_links_in_documents():
    "every relative link in the documents leads to a file"
    for page in [*TOP.glob("*.md"), *TOP.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            check((page.parent / target).exists(), f"{page.relative_to(TOP)} links to {target}")
