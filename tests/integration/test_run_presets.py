"""`hutch run --preset`: real package managers in a fresh home against registries of the test's own internet, presets of a user, and
directories that are made."""
import base64
import contextlib
import hashlib
import io
import json
import os
import pathlib
import shutil
import stat
import subprocess
import tarfile
import zipfile

from hutch_test import HUTCH_TEST, check, check_equal, check_in, hutch, identity, run, skip, workspace, write
from internet import Internet, at

STATE, CACHE = ".local/share/hutch-run", ".cache/hutch-run"


def npm_pages():
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as t:
        text = json.dumps({"name": "tinything", "version": "1.0.0", "main": "i.js"}).encode()
        for path, data in (("package/package.json", text), ("package/i.js", b"module.exports = 42\n")):
            info = tarfile.TarInfo(path)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    data, tgz = raw.getvalue(), "/tinything/-/tinything-1.0.0.tgz"
    dist = {"tarball": "https://registry.npmjs.org" + tgz, "integrity": "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()}
    about = {"name": "tinything", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"name": "tinything", "version": "1.0.0", "dist": dist}}}
    return {"/tinything": (json.dumps(about), 200, "application/json"), tgz: (data, 200, "application/octet-stream"),
            ("PUT", "/tinything"): ("taken", 200, "text/plain")}


def pip_pages():
    name, raw = "tinything-1.0-py3-none-any.whl", io.BytesIO()
    with zipfile.ZipFile(raw, "w") as z:
        z.writestr("tinything.py", "print('tiny')\n")
        z.writestr("tinything-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinything\nVersion: 1.0\n")
        z.writestr("tinything-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("tinything-1.0.dist-info/RECORD", "")
    link = f"<a href='https://files.pythonhosted.org/packages/{name}'>{name}</a>"
    return {"/simple/tinything/": (link, 200, "text/html"), f"/packages/{name}": (raw.getvalue(), 200, "application/octet-stream")}


def gem_pages(where):
    """A gem that `gem build` makes, with the indexes that gem and bundler read."""
    (where / "lib").mkdir(parents=True)
    (where / "lib/tinything.rb").write_text("puts 'tiny'\n")
    (where / "tinything.gemspec").write_text("Gem::Specification.new { |s| s.name = 'tinything'; s.version = '1.0'; s.summary = 'tiny'; s.authors = ['a']; "
                                             "s.files = ['lib/tinything.rb'] }\n")
    script = "Gem.load_yaml; s = Gem::Specification.load('tinything.gemspec'); File.binwrite('rz', Zlib::Deflate.deflate(Marshal.dump(s))); " \
             "Zlib::GzipWriter.open('specs') { |f| f.write(Marshal.dump([[s.name, s.version, 'ruby']])) }"
    for command in (("gem", "build", "-q", "tinything.gemspec"), ("ruby", "-rrubygems", "-rzlib", "-e", script)):
        subprocess.run(command, cwd=where, check=True, capture_output=True)
    data = (where / "tinything-1.0.gem").read_bytes()
    info = f"---\n1.0 |checksum:{hashlib.sha256(data).hexdigest()}\n"
    versions = f"created_at: 2024-01-01T00:00:00Z\n---\ntinything 1.0 {hashlib.md5(info.encode()).hexdigest()}\n"
    indexes = {f"/{x}specs.4.8.gz": ((where / "specs").read_bytes(), 200, "application/octet-stream") for x in ("", "latest_", "prerelease_")}
    return {**indexes, "/versions": (versions, 200, "text/plain"), "/info/tinything": (info, 200, "text/plain"),
            "/gems/tinything-1.0.gem": (data, 200, "application/octet-stream"),
            "/quick/Marshal.4.8/tinything-1.0.gemspec.rz": ((where / "rz").read_bytes(), 200, "application/octet-stream")}


def composer_pages():
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as z:
        z.writestr("tiny-thing-1/composer.json", json.dumps({"name": "tiny/thing", "autoload": {"files": ["t.php"]}}))
        z.writestr("tiny-thing-1/t.php", "<?php echo 'tiny';\n")
    data, zipball = raw.getvalue(), "/repos/tiny/thing/zipball/abc"
    dist = {"type": "zip", "url": "https://api.github.com" + zipball, "reference": "abc", "shasum": hashlib.sha1(data).hexdigest()}
    about = {"name": "tiny/thing", "version": "1.0.0", "version_normalized": "1.0.0.0", "type": "library", "dist": dist, "autoload": {"files": ["t.php"]}}
    json_page = lambda j: (json.dumps(j), 200, "application/json")
    return {"/packages.json": json_page({"packages": [], "metadata-url": "/p2/%package%.json"}), zipball: (data, 200, "application/zip"),
            "/p2/tiny/thing.json": json_page({"packages": {"tiny/thing": [about]}})}


def fresh(ws, who):
    """An empty home and a project beside it."""
    for name in ("home", "project"):
        write(ws / name / ".keep", "", who).unlink()
    return {"HOME": str(ws / "home")}, ws / "project"


@contextlib.contextmanager
def outside_tmp():
    """A directory in the home of the ordinary user: /tmp is another one inside."""
    _, entry = identity("user")
    path = pathlib.Path(entry.pw_dir) / f"presets-{os.getpid()}"
    write(path / ".keep", "", "user").unlink()
    os.chown(path, entry.pw_uid, entry.pw_gid)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def opened(net):
    for p in (net.dir, net.ca.dir):
        p.chmod(0o755)
    net.ca.cert.chmod(0o644)


def test_npm(who):
    "npm install works in a fresh home with --preset npm, its cache is the sandbox's own, publishing is refused; without it the preset is named"
    if not shutil.which("npm"):
        skip("npm is not installed")
    with Internet() as net, workspace(who) as ws:
        opened(net)
        site = net.start_site(["registry.npmjs.org"], at(10), npm_pages())
        env, project = fresh(ws, who)
        env |= net.env()
        r = hutch("run", "--", "npm", "no-such-word", binary=HUTCH_TEST, who=who, cwd=project, env=env)
        check(r.code != 0, r)
        check_in("hutch: npm has a preset: `hutch run --preset npm`", r.err)
        check_equal((os.listdir(ws / "home"), site.requests), ([], []), r)
        r = hutch("run", "--preset", "npm", "--", "npm", "install", "tinything", binary=HUTCH_TEST, who=who, cwd=project, env=env)
        check_equal(r.code, 0, r)
        check("hutch:" not in r.err, r)
        check((project / "node_modules/tinything/i.js").exists(), r)
        check_equal(sorted(str(p.relative_to(ws / "home")) for p in (ws / "home").glob("**/hutch-run/*")), [CACHE + "/node"], r)
        check_equal(os.listdir(ws / "home"), [".cache"], r)
        made = (ws / "home" / CACHE).stat()
        check_equal((stat.S_IMODE(made.st_mode), made.st_uid), (0o700, ws.stat().st_uid), "the cache's directory")
        site.requests.clear()
        r = hutch("run", "--preset", "npm", "--", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", "PUT", "https://registry.npmjs.org/tinything",
                  binary=HUTCH_TEST, who=who, cwd=project, env=env)
        check_equal((r.out, site.requests), ("403", []), r)


def test_pip(who):
    "pip installs without a venv into a place of the sandbox's own, where the next run with the preset finds it and other runs cannot look"
    if run("/usr/bin/python3", "-m", "pip", "--version", who=who).code != 0:
        skip("python3 has no pip")
    with Internet() as net, workspace(who) as ws:
        opened(net)
        net.start_site(["pypi.org", "files.pythonhosted.org"], at(10), pip_pages())
        env, project = fresh(ws, who)
        env |= net.env()

        def go(*args):
            return hutch("run", *args, binary=HUTCH_TEST, who=who, cwd=project, env=env)

        r = go("--preset", "pip", "--", "/usr/bin/python3", "-m", "pip", "install", "--no-warn-script-location", "tinything")
        check_equal(r.code, 0, r)
        check_in("Successfully installed tinything-1.0", r.out)
        r = go("--preset", "python", "--", "sh", "-c", "mkdir -p $PIP_CACHE_DIR/x/.git/hooks && echo x >$PIP_CACHE_DIR/x/.git/hooks/post-commit")
        check("new or changed" not in r.err, r)
        r = go("--preset", "python", "--", "/usr/bin/python3", "-c", "import tinything")
        check_equal((r.code, r.out), (0, "tiny\n"), r)
        r = go("--", "ls", ws / "home" / STATE)
        check(r.code != 0 and "python" not in r.out, r)
        check((ws / "home" / STATE / "python").is_dir(), "it is there, outside")


def test_ruby(who):
    "gem and bundler install in a fresh home with --preset gem, and the next run finds the gems; nothing else of the home is written"
    if not shutil.which("bundle"):
        skip("bundler is not installed")
    with Internet() as net, workspace(who) as ws, workspace() as made:
        opened(net)
        site = net.start_site(["rubygems.org", "index.rubygems.org"], at(10), gem_pages(made / "gem"))
        env, project = fresh(ws, who)
        env |= net.env()

        def go(*args):
            return hutch("run", *args, binary=HUTCH_TEST, who=who, cwd=project, env=env)

        check_in("hutch: gem has a preset: `hutch run --preset gem`", go("--", "gem", "no-such-word").err)
        r = go("--preset", "gem", "--", "gem", "install", "--no-document", "tinything")
        check_equal((r.code, "hutch:" in r.err), (0, False), r)
        check_equal(go("--preset", "ruby", "--", "ruby", "-e", "require 'tinything'").out, "tiny\n")
        check_equal(sorted(os.listdir(ws / "home")), [".cache", ".local"], "the home")
        shutil.rmtree(ws / "home")
        fresh(ws, who)
        write(project / "Gemfile", "source 'https://rubygems.org'\ngem 'tinything'\n", who)
        r = go("--preset", "bundler", "--", "bundle", "install")
        check_equal((r.code, "hutch:" in r.err), (0, False), r)
        check_equal(go("--preset", "bundler", "--", "bundle", "exec", "ruby", "-e", "require 'tinything'").out, "tiny\n")
        check_equal(sorted(os.listdir(ws / "home")), [".cache", ".local"], "the home")
        site.requests.clear()
        r = go("--preset", "gem", "--", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", "https://rubygems.org/api/v1/gems")
        check_equal((r.out, site.requests), ("403", []), r)


def test_composer(who):
    "composer installs from packagist and GitHub in a fresh home with --preset composer, which brings the preset github along"
    if not shutil.which("composer"):
        skip("composer is not installed")
    with Internet() as net, workspace(who) as ws:
        opened(net)
        net.start_site(["repo.packagist.org", "packagist.org", "api.github.com"], at(10), composer_pages())
        env, project = fresh(ws, who)
        env |= net.env()
        r = hutch("run", "--preset", "composer", "--", "composer", "require", "--no-interaction", "tiny/thing", binary=HUTCH_TEST, who=who, cwd=project, env=env)
        check_equal((r.code, "hutch:" in r.err), (0, False), r)
        r = hutch("run", "--", "php", "-r", "require 'vendor/autoload.php';", who=who, cwd=project, env=env)
        check_equal(r.out, "tiny", r)
        check_equal(sorted(os.listdir(ws / "home")), [".cache", ".local"], "the home")


def maven_pages():
    """What `mvn validate` of a project with one plugin reads: a parent that only the repository has."""
    parent = "<project><modelVersion>4.0.0</modelVersion><groupId>tiny</groupId><artifactId>thing</artifactId><version>1</version><packaging>pom</packaging></project>"
    where = "/maven2/tiny/thing/1/thing-1.pom"
    return {where: (parent, 200, "text/xml"), where + ".sha1": (hashlib.sha1(parent.encode()).hexdigest(), 200, "text/plain")}


def test_maven(who):
    "Java trusts the sandbox's authority: Maven reads Maven Central with --preset maven, with settings of its own where yours are hidden"
    if not shutil.which("mvn"):
        skip("maven is not installed")
    with Internet() as net, workspace(who) as ws:
        opened(net)
        net.start_site(["repo.maven.apache.org"], at(10), maven_pages())
        env, project = fresh(ws, who)
        env |= net.env()
        write(ws / "home/.m2/settings.xml", "<settings><no/>", who)
        write(project / "pom.xml", "<project><modelVersion>4.0.0</modelVersion><parent><groupId>tiny</groupId><artifactId>thing</artifactId><version>1</version>"
              "<relativePath/></parent><artifactId>own</artifactId><packaging>pom</packaging></project>", who)
        r = hutch("run", "--preset", "maven", "--", "mvn", "-B", "-q", "validate", binary=HUTCH_TEST, who=who, cwd=project, env=env)
        check_equal((r.code, "hutch:" in r.err), (0, False), r)
        check((ws / "home" / CACHE / "java/.m2/repository/tiny/thing/1/thing-1.pom").exists(), r)
        check_equal(sorted(os.listdir(ws / "home")), [".cache", ".m2"], "the home")
        check_equal(os.listdir(ws / "home/.m2"), ["settings.xml"], "the user's own")
        r = hutch("run", "--preset", "maven", "--", "keytool", "-list", "-keystore", "/run/hutch/cacerts", "-storepass", "changeit", "-alias", "hutch",
                  binary=HUTCH_TEST, who=who, cwd=project, env=env)
        check_equal((r.code, "trustedCertEntry" in r.out), (0, True), r)


def test_conda():
    "the preset conda points conda, micromamba and pixi at directories of the sandbox's own, which are made"
    with workspace("user") as ws:
        env, project = fresh(ws, "user")
        script = "echo x >$MAMBA_ROOT_PREFIX/x && echo x >$XDG_CACHE_HOME/x && echo $CONDA_PKGS_DIRS $CONDA_ENVS_DIRS $PIXI_HOME $PIXI_CACHE_DIR"
        for name in ("conda", "mamba", "micromamba", "pixi"):
            r = hutch("run", "--preset", name, "--network", "off", "--", "sh", "-c", script, who="user", cwd=project, env=env)
            check_equal((r.code, r.out.split()), (0, [f"{ws}/home/{x}/conda/{y}" for x, y in ((CACHE, "pkgs"), (STATE, "envs"), (STATE, "pixi"), (CACHE, "pixi"))]), r)
        check((ws / "home" / STATE / "conda/x").exists(), r)


def test_agents():
    "presets of agents point them at directories of their own; the user's own settings and keys stay out of reach"
    with workspace("user") as ws:
        env, project = fresh(ws, "user")
        for name in (".claude/settings.json", ".claude/.credentials.json", ".codex/auth.json"):
            write(ws / "home" / name, "secret", "user")
        script = "echo $CLAUDE_CONFIG_DIR; echo {} >$CLAUDE_CONFIG_DIR/s.json; echo x >~/.claude/settings.json; cat ~/.claude/.credentials.json"
        r = hutch("run", "--preset", "claude", "--network", "off", "--", "sh", "-c", script, who="user", cwd=project, env=env)
        check_equal(r.out, f"{ws}/home/{STATE}/claude\n", r)
        check_equal((ws / "home" / STATE / "claude/s.json").read_text(), "{}\n", r)
        check_equal((ws / "home/.claude/settings.json").read_text(), "secret", r)
        r = hutch("run", "--preset", "codex", "--network", "off", "--", "sh", "-c", f"ls {ws}/home/{STATE}/claude; echo $CODEX_HOME; echo x >$CODEX_HOME/x",
                  who="user", cwd=project, env=env)
        check_equal((r.code, r.out), (0, f"{ws}/home/{STATE}/codex\n"), r)
        check("s.json" not in r.out, r)


def test_list_and_show(who):
    "--preset list names every preset with its aliases; policy show and explain take --preset; a wrong name is a usage error"
    with workspace(who) as ws:
        env, project = fresh(ws, who)
        out = hutch("run", "--preset", "list", who=who, cwd=project, env=env)
        check_equal(out.code, 0, out)
        names = {line.split()[0].strip(",") for line in out.out.splitlines() if line[:1].islower()}
        check(names >= {"anthropic", "debian", "gemini", "go", "node", "openai", "python", "rust"}, out)
        check_in("node, npm, npx, pnpm, yarn", out.out)
        shown = hutch("policy", "show", "--preset", "cargo", who=who, cwd=project, env=env)
        check_in(f"CARGO_HOME: {ws}/home/{CACHE}/rust  # preset rust:", shown.out)
        check_in(f"  make_write:\n    - {ws}/home/{CACHE}/rust", shown.out)
        again = write(ws / "again.yaml", "\n".join(x for x in shown.out.splitlines() if not x.startswith("#")), who)
        check_equal(hutch("policy", "check", "--policy", again, who=who, cwd=project, env=env).code, 0, shown)
        check(not (ws / "home/.cache").exists(), "looking makes nothing")
        explained = hutch("policy", "explain", "--preset", "npm", "GET https://registry.npmjs.org/x", "PUT https://registry.npmjs.org/x", who=who, cwd=project, env=env)
        check_in("PUT https://registry.npmjs.org/x: denied\n  rule    node/registry", explained.out)
        bad = hutch("run", "--preset", "nmp", "--", "true", who=who, cwd=project, env=env)
        check_equal(bad.code, 120, bad)
        check_in('there is no preset "nmp"', bad.err)
        check_in("--preset list", bad.err)


MINE = """version: 1
description: tools of ours
aliases: [ours]
rules:
  - {id: mirror, hosts: [mirror.test], access: read-only}
run:
  commands: [our-tool]
  make: [~/.cache/ours/deep]
  write: [~/absent]
  read: [~/tools]
  env: {OURS: ~/.cache/ours/deep, PLAIN: a b}
  presets: [npm, mine]
"""


def test_own_presets(who):
    "a user writes presets: found first, by alias too, including others; what is wrong in one is named with its line, and options go before it"
    with workspace(who) as ws:
        env, project = fresh(ws, who)
        own = ws / "home/.config/hutch/presets"
        write(own / "mine.yaml", MINE, who)

        def go(*args, **kw):
            return hutch("run", "--network", "off", *args, who=who, cwd=project, env=env, **kw)

        r = go("--preset", "ours", "--", "sh", "-c", "echo x >$OURS/f; echo $PLAIN; echo $npm_config_cache")
        check_equal((r.code, r.out), (0, f"a b\n{ws}/home/{CACHE}/node/npm\n"), r)
        check_equal((ws / "home/.cache/ours/deep/f").read_text(), "x\n")
        r = go("--preset", "mine", "--env", "OURS=else", "--", "sh", "-c", "echo $OURS")
        check_equal(r.out, "else\n", r)
        check_in("mine, ours", hutch("run", "--preset", "list", who=who, cwd=project, env=env).out)
        tool = write(project / "our-tool", "#!/bin/sh\nexit 3\n", who, 0o755)
        check_in("hutch: our-tool has a preset: `hutch run --preset mine`", go("--", tool).err)
        check("preset" not in go("--preset", "mine", "--", tool).err, "in force already")
        wrong = {"run: {make: [~]}": "must begin with ~/ or /", "run: {make: ['~/']}": "home directory as a whole", "run: {write: [/]}": "home directory as a whole",
                 f"run: {{read: [{ws}]}}": "home directory as a whole", "run: {make: [x]}": "must begin with ~/ or /", "run: {env: {a b: c}}": "not a variable's name",
                 "run: {caches: [~/x]}": 'unknown key "caches"', "run: {commands: [/bin/x]}": "must be the name of a command", "run: {presets: [gone]}": 'no preset "gone"',
                 "run: [x]": "run", "rules: [{hosts: ['*.com']}]": "preset bad"}
        for text, want in wrong.items():
            write(own / "bad.yaml", f"version: 1\n{text}\n", who)
            r = go("--preset", "bad", "--", "true")
            check(r.code in (120, 121) and r.err.count("\n") == 1, r)
            check_in(want, r.err)
        write(own / "bad.yaml", "version: 1\n", who, 0o666).chmod(0o666)
        check_in("can be written by everyone", go("--preset", "bad", "--", "true").err)
        write(own / "node.yaml", "version: 1\nrun: {env: {OURS: mine}}\n", who)
        check_equal(go("--preset", "node", "--", "sh", "-c", "echo $OURS$npm_config_cache").out, "mine\n", "the user's replaces the one that comes with hutch")


def test_rw_make(who):
    "--rw-make makes what is missing, with mode 0700 and the caller's name, and nothing through a file or in another user's directory"
    with workspace(who) as ws:
        env, project = fresh(ws, who)

        def go(*args):
            return hutch("run", "--no-cwd", *args, who=who, cwd=project, env=env)

        r = go("--rw-make", "~/a/b/c", "--rw-make", "d", "--", "sh", "-c", "echo x >~/a/b/c/f && echo y >d/f; echo z >~/a/g")
        check_equal(((ws / "home/a/b/c/f").read_text(), (project / "d/f").read_text(), (ws / "home/a/g").exists()), ("x\n", "y\n", False), r)
        for path in ("home/a", "home/a/b/c", "project/d"):
            st = (ws / path).stat()
            check_equal((stat.S_IMODE(st.st_mode), st.st_uid), (0o700, ws.stat().st_uid), path)
        check_equal(go("--rw-make", "~/a/b/c", "--", "rm", f"{ws}/home/a/b/c/f").code, 0, "it exists already")
        write(ws / "home/file", "", who)
        for path in ("~/file", "~/file/x"):
            r = go("--rw-make", path, "--", "true")
            check_equal((r.code, r.err.count("\n")), (123, 1), r)
        r = go("--rw", "~/absent", "--", "true")
        check_equal(r.code, 121, r)
        check_in("--rw-make in place of --rw", r.err)
        (ws / "home/dangling").symlink_to(ws / "home/nowhere")
        check_equal(go("--rw-make", "~/dangling/x", "--", "true").code, 123, "through a link that leads nowhere")
        check(not (ws / "home/nowhere").exists(), "nothing is made behind a link")
    if who == "root":
        with workspace(who) as ws: # a link below the home leads root nowhere, a directory of another user neither
            env, project = fresh(ws, who)
            (ws / "elsewhere").mkdir()
            (ws / "home/link").symlink_to(ws / "elsewhere")
            (ws / "home/theirs").mkdir()
            os.chown(ws / "home/theirs", 65534, 65534)
            for path, why in (("~/link/x", "symbolic link"), ("~/theirs/x", "another user")):
                r = hutch("run", "--no-cwd", "--rw-make", path, "--", "true", who=who, cwd=project, env=env)
                check_equal(r.code, 123, r)
                check_in(why, r.err)
            check_equal((os.listdir(ws / "elsewhere"), os.listdir(ws / "home/theirs")), ([], []))
        with workspace("user") as ws:
            r = hutch("run", "--no-cwd", "--rw-make", ws / "x", "--", "true", who="root", cwd="/")
            check_equal(r.code, 123, r)
            check_in("belongs to another user", r.err)
            check(not (ws / "x").exists(), r)


def test_hints(who):
    "a run that failed ends with what to try; private /tmp is said where it hides a program; nothing is said of a run that went well"
    with workspace(who) as ws:
        env, project = fresh(ws, who)
        tool = pathlib.Path("/tmp") / f"hutch-hint-{os.getpid()}"

        def go(*args):
            return hutch("run", *args, who=who, cwd=project, env=env)

        try:
            write(tool, "#!/bin/sh\necho ran\n", who, 0o755)
            said = f"hutch: /tmp is private in here, so the command does not see {tool}; show it with --ro {tool}\n"
            for command in ((tool,), ("sh", "-c", f"'{tool}' x"), ("python3", tool)):
                r = go("--", *command)
                check(r.code != 0, r)
                check_in(said, r.err)
            check_equal(go("--ro", tool, "--", tool).out, "ran\n")
            check("private" not in go("--", "echo", tool).err, "it went well")
            check("private" not in go("-q", "--", tool).err.split("\n", 1)[1], "--quiet")
            r = go("--explain", "--", "cat", tool)
            check_in(f"hutch: refused: read of {tool} (this directory is private in here", r.err)
            check_in(f"allow it with --ro {tool}", r.err)
        finally:
            tool.unlink(missing_ok=True)


def test_grants():
    "--explain records refused reads and suggests the narrowest grant: a missing directory is made, the home is never opened as a whole"
    with outside_tmp() as ws:
        env, project = fresh(ws, "user")
        home = ws / "home"
        write(home / ".netrc", "secret", "user")
        write(home / "there", "", "user")
        script = "cat ~/.netrc; mkdir ~/.cache; echo x >~/.toolrc; rm -f ~/there; chmod 700 ~; mkdir /etc/hutch-no; exit 1"
        r = hutch("run", "--explain", "--json", project / "r.json", "--", "sh", "-c", script, who="user", cwd=project, env=env)
        record = json.loads((project / "r.json").read_text())
        grants = {(d["access"], d["subject"]): (d["grant"] or {}).get("flag") for d in record["denials"] if d["kind"] == "file"}
        want = {("read", f"{home}/.netrc"): f"--allow-read {home}/.netrc", ("write", f"{home}/.cache"): f"--rw-make {home}/.cache",
                ("write", f"{home}/.toolrc"): f"--rw {home}/.toolrc", ("write", f"{home}/there"): None, ("write", str(home)): None,
                ("write", "/etc/hutch-no"): "--rw-make /etc/hutch-no"}
        check_equal({k: grants.get(k) for k in want}, want, record["denials"])
        check(not any(g and g.endswith((str(home), " ~")) for g in grants.values()), grants)
        check_in(f"hutch: try again with --allow-read {home}/.netrc --rw-make {home}/.cache", r.err)
        r = hutch("policy", "explain", "~/.npm/x", who="user", cwd=project, env=env)
        check_in(f"flag    --rw-make {home}/.npm\n", r.out)
