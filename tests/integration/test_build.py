"""The build: the program's shape, rules of the source, generated files, man page, completions."""
import collections
import re
import shutil
import subprocess

from hutch_test import HUTCH, HUTCH_TEST, TEST_SWITCHES, TEST_TOOLS, TOP, check, check_equal, check_in, hutch, run, switches_in, workspace


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
    "the program that ships keeps every layer when it is asked to leave one out; the test program leaves it out"
    for binary, mode in ((HUTCH, "2"), (HUTCH_TEST, "0")):
        r = hutch("run", "-q", "--", "sed", "-n", "s/^Seccomp:[[:space:]]*//p", "/proc/self/status", binary=binary, who=who, env={"HUTCH_WITHOUT": "seccomp"})
        check_equal((r.code, r.out.strip()), (0, mode), r)


def test_release_has_no_switches():
    "what ships contains no word of the switches that tests use; the test program contains them"
    for name in ("hutch", "hutch-client", "hutch-node", "hutch-probe"):
        check_equal(switches_in(TOP / "build" / name), [], f"build/{name}")
    check_equal(switches_in(TOP / "build/tests/hutch-without"), TEST_SWITCHES)
    check_equal(switches_in(TOP / "build/tests/hutch-node-mcp"), [TEST_TOOLS])


def test_names_are_unique():
    "no two sources define the same name, so that unit tests can link all of them"
    archives = sorted((TOP / "build-asan").glob("**/lib*.a"))
    names = run("nm", "-g", "--defined-only", *archives).out.splitlines()
    defined = [line.split()[2] for line in names if len(line.split()) == 3 and not line.split()[2].startswith("__odr_asan")]
    check(len(defined) > 2000, f"too few names in {archives}")
    check_equal(sorted({n for n, count in collections.Counter(defined).items() if count > 1}), [])


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


def test_unused_check_can_fail():
    "a function of other files must be used, beyond prototypes, its own body, comments and tests, or be there for tests"
    with workspace() as ws:
        (ws / "a").mkdir()
        (ws / "a/x.h").write_text("""void used(void);
void macro_used(void);
#define USE() macro_used()
void unused(int n) __attribute__((nonnull));
/* For tests: resets. */
void hook(void);
int inside(void); /* for tests */
void named(void);
""")
        (ws / "a/x.c").write_text("""__attribute__((cold)) static int helper(void) { return 1; }
void used(void) { helper(); }
void macro_used(void) { used(); /* unused(1) */ }
void unused(int n)
{
    if (n)
        unused(n - 1);
    puts("unused(2)");
}
void hook(void) {}
int inside(void) { return x->named + y.named; }
void named(void) {}
""")
        r = run(TOP / "tools/shape", "--unused", ws)
        check_equal(r.code, 1, r)
        check_equal(r.out.splitlines(), ["a/x.c: nothing in src/ uses unused()", "a/x.c: nothing in src/ uses named()"], r)


def test_a_room_may_wait_for_its_user_until_there_is_one():
    "functions of a room that awaits its user need none, and the entry is refused once another room uses it"
    with workspace() as ws:
        for room in ("a", "b"):
            (ws / "src" / room).mkdir(parents=True)
        (ws / "src/a/x.h").write_text("#ifndef HUTCH_A_X_H\n#define HUTCH_A_X_H\nvoid unused(void);\n#endif\n")
        (ws / "src/a/x.c").write_text('#include "a/x.h"\nvoid unused(void) {}\n')
        table = "[a]\nowns = x\nnever = y\nuses =\n{}\n[b]\nowns = x\nnever = y\nuses = {}\n"
        for entry, code in (("", 1), ("awaits = b", 0)):
            (ws / "rooms").write_text(table.format(entry, ""))
            r = run(TOP / "tools/shape", "--unused", "--rooms", ws / "rooms", ws / "src")
            check_equal(r.code, code, r)
        check_equal(run(TOP / "tools/check-includes", ws / "src", ws / "rooms").code, 0)
        (ws / "src/b/y.c").write_text('#include "a/x.h"\n')
        (ws / "rooms").write_text(table.format("awaits = b", "a"))
        r = run(TOP / "tools/check-includes", ws / "src", ws / "rooms")
        check_equal((r.code, r.out), (1, "tools/rooms: [a] is in use; it awaits b no longer\n"), r)


def test_name_check_can_fail():
    "the name check refuses a static name in a fourth file, however it is declared, and counts no prototype"
    with workspace() as ws:
        for i in range(4):
            (ws / f"{i}.c").write_text("static int twice(int n) __attribute__((const));\n\n"
                                       "__attribute__((const)) static int twice(int n)\n{\n    return 2 * n;\n}\n"
                                       "extern void __asan_init(void) __attribute__((weak, visibility(\"default\")));\n"
                                       + ("static int thrice(int n) { return 3 * n; }\n" if i else ""))
        r = run(TOP / "tools/shape", "--static-limit", "3", ws)
        check_equal((r.code, r.out), (1, "twice() is static in 4 files (0.c, 1.c, 2.c, 3.c); give each its topic\n"), r)
        check_equal(run(TOP / "tools/shape", "--static-limit", "4", ws).code, 0)
        check_in("| 4 | 31 | 7 |", run(TOP / "tools/shape", ws).out)


def test_all_tests_are_built():
    "every unit test and fuzz driver in the tree is in tests/meson.build"
    listed = (TOP / "tests/meson.build").read_text()
    for path in sorted(TOP.glob("tests/unit/test_*.c")) + sorted(TOP.glob("tests/fuzz/fuzz_*.c")):
        check_in(f"'{path.stem.split('_', 1)[1]}'", listed, f"{path.name} is not listed")


def test_all_sources_are_built():
    "every source is in exactly one list of its folder's meson.build, and every list names files that exist"
    mains = re.search(r"# The programs are declared.*", (TOP / "meson.build").read_text(), re.S).group(0)
    for folder in sorted(p.parent for p in TOP.glob("src/**/meson.build")):
        listed = re.findall(r"'([^'/.][^'.]*\.c)'", re.sub(r"output: '[^']*'", "", (folder / "meson.build").read_text()))
        own = [str(p.relative_to(folder)) for p in sorted(folder.glob("*.c")) if f"'{p.relative_to(TOP)}'" not in mains]
        check_equal(sorted(listed), sorted(own), folder.name)
    for path in (TOP / "meson.build", *TOP.glob("src/**/meson.build"), *TOP.glob("tests/**/meson.build"), TOP / "completions/meson.build"):
        check("fs.exists" not in path.read_text(), f"{path}: a list that leaves out what is missing hides what is misspelt")


def test_generated_page_is_fresh():
    "docs/syscalls.md is what the filter's tables say"
    r = run(TOP / "build/src/policy/run/gen-filters", "--docs")
    check_equal(r.code, 0, r)
    check(r.out == (TOP / "docs/syscalls.md").read_text(), "regenerate: build/src/policy/run/gen-filters --docs >docs/syscalls.md")


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
    "make install puts the program, man page, completions and docs below DESTDIR; make uninstall takes all of it away and nothing else"
    with workspace() as ws:
        r = run(TOP / "tools/install", ws, "/usr", cwd=TOP)
        check_equal(r.code, 0, r)
        for name in ("bin/hutch", "share/man/man1/hutch.1", "share/bash-completion/completions/hutch",
                     "share/zsh/site-functions/_hutch", "share/fish/vendor_completions.d/hutch.fish",
                     "share/doc/hutch/copyright"):
            check((ws / "usr" / name).is_file(), f"{name} is missing")
        r = run(ws / "usr/bin/hutch", "--version")
        check_equal(r.code, 0, r)
        (ws / "usr/share/hutch/presets/own.yaml").write_text("of another\n")
        r = run(TOP / "tools/uninstall", ws, "/usr", cwd=TOP)
        check_equal((r.code, r.out), (0, ""), r)
        check_equal([str(p.relative_to(ws)) for p in ws.rglob("*") if not p.is_dir()], ["usr/share/hutch/presets/own.yaml"])
        (ws / "usr/share/hutch/presets/own.yaml").unlink()
        check_equal(run(TOP / "tools/uninstall", ws, "/usr", cwd=TOP).code, 0)
        check(not (ws / "usr/share/hutch").exists(), "an empty directory of ours is left")


def test_version():
    "hutch --version prints the version of the build files"
    version = re.search(r"version: '([^']+)'", (TOP / "meson.build").read_text()).group(1)
    for word in ("--version", "version"):
        r = hutch(word)
        check_equal((r.code, r.out.strip()), (0, f"hutch {version}"), r)


def test_help():
    "hutch help COMMAND is COMMAND --help, for every command; without one it is the list"
    check_equal(hutch("help").out, hutch("--help").out)
    names = re.findall(r"^  ([a-z]+) +[^ ]", hutch("help").out, re.M)
    check("create" in names and "rm" in names, names)
    for name in names:
        check_equal((hutch("help", name).out, hutch("help", name).code), (hutch(name, "--help").out, 0), name)
    r = hutch("help", "craete")
    check(r.code == 120 and "did you mean create" in r.err, r)


def test_links_in_documents():
    "every relative link in the documents leads to a file"
    for page in [*TOP.glob("*.md"), *TOP.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            check((page.parent / target).exists(), f"{page.relative_to(TOP)} links to {target}")


def test_walks_name_what_exists():
    "the walks through the code in ARCHITECTURE.md name files and functions that exist"
    text = (TOP / "ARCHITECTURE.md").read_text()
    walks = text[text.index("### Walks"):]
    pairs = re.findall(r"`(src/[\w/.-]+\.c)`\s+`(\w+)\(\)`", walks[:walks.index("Beside `src/`")])
    check(len(pairs) > 40, f"only {len(pairs)} names")
    missing = [f"{path} {name}()" for path, name in pairs
               if not (TOP / path).is_file() or not re.search(rf"^\w[\w *]*\b{name}\([^;]*\n?\{{", (TOP / path).read_text(), re.M)]
    check_equal(missing, [])
