"""What is run inside: commands, and the files they need, generated the same way every time."""
import io
import json
import os
import pathlib
import random
import shutil
import subprocess
import tarfile

PYTHON = "/usr/bin/python3"
REPOSITORY_FILES = 10_000
CHECKOUT_FILES, CHECKOUT_FOLDERS = 1_800, 80
PACKAGES, FILES_PER_PACKAGE = 50, 100
SOURCES = 30

# Name, command, folder of the identity's workspace in which it runs. The starts: fresh sandbox + command.
STARTS = {
    "true": (["/bin/true"], "empty"),
    "python": ([PYTHON, "-c", "pass"], "empty"),
    "checkout": (["/bin/true"], "checkout"),  # what a start costs where people work
    "git": (["git", "status"], "repo"),
}
SLEEP = ["sleep", "1"]

# Work that goes on for a while inside; "reset" is deleted before each run, outside the clock.
COMPILE = "mkdir out && for f in *.c; do gcc -O1 -c \"$f\" -o \"out/${f%.c}.o\" || exit 1; done && gcc -o out/prog out/*.o"
UNPACK = ("mkdir stage node_modules && tar -xf ../packages.tar -C stage && chmod -R go-w stage && "
          "mv stage/* node_modules && rmdir stage")
WORK = {
    "compile": {"argv": ["sh", "-c", COMPILE], "folder": "project", "reset": ["out"],
                "what": f"{SOURCES} generated C files, one `gcc -O1 -c` each, and a link"},
    # Directories that only root may enter make find fail for everybody else, inside and outside.
    "find": {"argv": ["sh", "-c", "find /usr -size +1024k 2>/dev/null; true"], "folder": "empty", "reset": [],
             "what": "`find /usr -size +1024k`: a stat of every file below /usr"},
    "npm-ls": {"argv": ["npm", "ls", "--all", "--offline"], "folder": "tree", "reset": [],
               "what": f"`npm ls --all` in a tree of {PACKAGES} generated packages"},
    "unpack": {"argv": ["sh", "-c", UNPACK], "folder": "unpack", "reset": ["stage", "node_modules"],
               "what": f"tar of {PACKAGES * FILES_PER_PACKAGE:,} small files unpacked, chmod of each, rename of each package"},
    "npm-install": {"argv": ["npm", "install", "--offline", "--no-audit", "--no-fund", "--cache", ".npm"],
                    "folder": "install", "reset": ["node_modules", ".npm", "package-lock.json"],
                    "what": f"real `npm install` of {PACKAGES} local tarballs with {PACKAGES * FILES_PER_PACKAGE:,} files"},
}


def source_text(number):
    body = "\n".join(
        f"static int step_{number}_{i}(int x)\n{{\n    for (int k = 0; k < {i + 3}; k++)\n"
        f"        x = x * {i * 7 + 3} + (x >> {i % 5 + 1}) - k;\n    return x ^ {number * 31 + i};\n}}" for i in range(40))
    calls = "\n".join(f"    x = step_{number}_{i}(x);" for i in range(40))
    return (f"#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <sys/types.h>\n\n{body}\n\n"
            f"int part_{number}(int x);\nint part_{number}(int x)\n{{\n{calls}\n    return x;\n}}\n")


def make_project(folder):
    folder.mkdir()
    for i in range(SOURCES):
        (folder / f"part{i:02}.c").write_text(source_text(i))
    uses = "".join(f"int part_{i}(int x);\n" for i in range(SOURCES))
    calls = "".join(f"    x = part_{i}(x);\n" for i in range(SOURCES))
    (folder / "main.c").write_text(f"#include <stdio.h>\n{uses}int main(void)\n{{\n    int x = 1;\n{calls}"
                                   '    printf("%d\\n", x);\n    return 0;\n}\n')


def make_repository(folder, place):
    """`place` lists the files. They have old times, so that `git status` never has to look into one that might have changed
    since the index."""
    folder.mkdir()
    for i, name in enumerate(place):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"file {i}\n")
        os.utime(path, (1_600_000_000, 1_600_000_000))
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    for command in (["init", "-q", "-b", "main"], ["add", "."],
                    ["-c", "user.name=bench", "-c", "user.email=bench@example.invalid", "-c", "gc.auto=0",
                     "commit", "-qm", "all"]):
        subprocess.run(["git", *command], cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)


def flat_names():
    return (f"dir{i // 100:03}/file{i % 100:03}.txt" for i in range(REPOSITORY_FILES))


def checkout_names():
    """As in a project: folders of a few dozen files, up to four levels deep."""
    folders = [f"part{i % 8}" + f"/area{i // 8 % 5}" * (i >= 8) + "/inner" * (i >= 48) for i in range(CHECKOUT_FOLDERS)]
    return (f"{folders[i % CHECKOUT_FOLDERS]}/f{i:04}.c" for i in range(CHECKOUT_FILES))


def package_files(number):
    """(path, bytes) of one generated package; sizes like those of real ones: many small files, a few larger."""
    source = random.Random(number)
    manifest = {"name": f"package-{number:02}", "version": "1.0.0", "main": "index.js", "license": "MIT"}
    yield "package.json", json.dumps(manifest, indent=2).encode()
    for i in range(FILES_PER_PACKAGE - 1):
        size = source.choice([300, 700, 1500, 1500, 4000, 12000])
        line = f"exports.value{i} = {source.random()};\n".encode()
        yield f"lib/part{i // 20}/module{i:03}.js", (line * (size // len(line) + 1))[:size]


def write_tar(path, members, mode):
    with tarfile.open(path, mode) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), 0o644, 1_600_000_000
            tar.addfile(info, io.BytesIO(data))


def make_packages(base):
    """packages.tar; a tree as if installed; a project that installs the same packages from local tarballs."""
    names = [f"package-{i:02}" for i in range(PACKAGES)]
    write_tar(base / "packages.tar", ((f"{name}/{path}", data) for i, name in enumerate(names)
                                      for path, data in package_files(i)), "w")
    tree, install = base / "tree", base / "install"
    for folder in (tree, install, base / "unpack"):
        folder.mkdir()
    (install / "tgz").mkdir()
    for i, name in enumerate(names):
        write_tar(install / f"tgz/{name}.tgz", ((f"package/{path}", data) for path, data in package_files(i)), "w:gz")
        for path, data in package_files(i):
            target = tree / "node_modules" / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    manifest = {"name": "bench", "version": "1.0.0", "private": True}
    (tree / "package.json").write_text(json.dumps({**manifest, "dependencies": {name: "1.0.0" for name in names}}))
    (install / "package.json").write_text(json.dumps(
        {**manifest, "dependencies": {name: f"file:tgz/{name}.tgz" for name in names}}))


def make_workspace(base, who, starts, work):
    """Everything that the chosen workloads need, owned by `who`."""
    base.mkdir()
    (base / "empty").mkdir()
    if "git" in starts:
        make_repository(base / "repo", flat_names())
    if "checkout" in starts:
        make_repository(base / "checkout", checkout_names())
    if "compile" in work:
        make_project(base / "project")
    if {"npm-ls", "unpack", "npm-install"} & set(work):
        make_packages(base)
    if who.uid != os.geteuid():
        for folder, folders, files in os.walk(base):
            for name in [".", *folders, *files]:
                os.lchown(os.path.join(folder, name), who.uid, who.gid)
    if "git" in starts:  # the index holds owners: the first status by the owner rewrites it, later ones do not
        user = {"user": who.uid, "group": who.gid, "extra_groups": []} if who.uid != os.geteuid() else {}
        subprocess.run(["git", "status"], cwd=base / "repo", env=who.env, check=True, stdout=subprocess.DEVNULL, **user)


def reset(base, work):
    """Bring a work folder back to what it was before a run."""
    for name in WORK[work]["reset"]:
        path = base / WORK[work]["folder"] / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def strays(folder, before):
    """Names that came into being in a folder since `before` (a listing of it); they are removed."""
    found = sorted(set(os.listdir(folder)) - before)
    for name in found:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return found


def index_identity(base):
    """Changes when somebody rewrote the repository's index: then `git status` did more work than it should have."""
    try:
        state = pathlib.Path(base / "repo/.git/index").stat()
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns
