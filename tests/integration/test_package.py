"""The Debian package: it asks for what its programs need. What it does on a fresh machine: package_guest.sh."""
import pathlib
import shutil
import subprocess
import tempfile

from hutch_test import TOP, check, check_equal, skip, switches_in


def output(*args, **kw):
    return subprocess.run([str(a) for a in args], check=True, capture_output=True, text=True, **kw).stdout


def test_dependencies():
    "every library that a program of the package is linked with is one of a package that it depends on; no program has a switch of the tests"
    if not (TOP / "build/hutch-node").exists() or not shutil.which("dpkg-deb") or not shutil.which("readelf"):
        skip("needs build/hutch-node, dpkg-deb and readelf")
    with tempfile.TemporaryDirectory() as d:
        # A copy: whoever builds a package here meanwhile keeps his.
        top = pathlib.Path(d) / "top"
        for part in ("packaging", "tools", "share", "man", "docs", "examples", "clients"):
            shutil.copytree(TOP / part, top / part)
        for file in ("meson.build", "LICENSE", *(p.name for p in TOP.glob("*.md"))):
            shutil.copy(TOP / file, top)
        (top / "build").mkdir()
        for program in ("hutch", "hutch-client", "hutch-node", "hutch-probe"):
            shutil.copy2(TOP / "build" / program, top / "build")
        shutil.copytree(TOP / "build/completions", top / "build/completions", ignore=shutil.ignore_patterns("*.p"))
        deb = top / output("packaging/build-deb", cwd=top).strip()
        depends = {d.split()[0] for d in output("dpkg-deb", "-f", deb, "Depends").split(",")}
        output("dpkg-deb", "-x", deb, top / "out")
        for page, words in (("README.md", "# Hutch gives every AI agent"), ("docs/install.md", "# Install"), ("SECURITY.md", "# ")):
            check((top / "out/usr/share/doc/hutch" / page).read_text().startswith(words), page)
        for field, words in (("Maintainer", "<maintainers@"), ("Homepage", "https://"), ("Description", "/usr/share/doc/hutch/README.md")):
            check(words in output("dpkg-deb", "-f", deb, field), field)
        programs = [top / "out/usr/bin/hutch", *sorted((top / "out/usr/libexec/hutch").iterdir())]
        check_equal([p.name for p in programs], ["hutch", "hutch-client", "hutch-node", "hutch-probe"])
        for program in programs:
            check_equal(switches_in(program), [], f"{program.name} of the package")
        needed = set()
        for program in programs:
            lines = output("readelf", "-d", program).splitlines()
            needed |= {line.split("[")[1].rstrip("]") for line in lines if "(NEEDED)" in line}
        check("libcrypto.so.3" in needed and "libarchive.so.13" in needed, needed)
        for library in needed:
            owners = {line.split(":")[0] for line in output("dpkg-query", "-S", f"*/{library}").splitlines()}
            check(owners & depends, f"{library} is of {owners}, the package depends on {depends}")
        check_equal(output("readelf", "-d", programs[0]).count("(NEEDED)"), 0, "hutch itself needs no library")
