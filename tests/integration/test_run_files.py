"""Files, seen from outside: what can be written and read, who owns it, what stays protected, what is left."""
import contextlib
import json
import os
import pathlib
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
import time

from hutch_test import (HUTCH, check, check_equal, check_in, check_one_line, clean_env, eventually, hutch,
                        hutch_record, identity, is_root, run, skip, workspace, write)


def start(*args, who, cwd):
    ids, entry = identity(who)
    return subprocess.Popen([HUTCH, "run", *map(str, args)], cwd=cwd, env=clean_env(entry), stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **ids)


def end(proc):
    proc.stdin.close()
    proc.wait(120)
    proc.stdout.close()
    proc.stderr.close()


@contextlib.contextmanager
def outside(who):
    """A directory of `who` that no private /tmp covers."""
    if not is_root():
        skip("needs root to make a directory outside /tmp")
    _, entry = identity(who)
    path = pathlib.Path(tempfile.mkdtemp(prefix="hutch-test.", dir="/srv"))
    try:
        os.chmod(path, 0o755)
        os.chown(path, entry.pw_uid, entry.pw_gid)
        yield path
    finally:
        shutil.rmtree(path)


def sh(script, *options, who, cwd, **kwargs):
    return hutch("run", "-q", *options, "--", "sh", "-c", script, who=who, cwd=cwd, **kwargs)


def test_writes(who):
    "the current directory and /tmp can be written, nothing else"
    with workspace(who) as ws, outside(who) as other:
        r = sh(f"echo a > a && mkdir d && echo b > d/b && mv d e && ln e/b hard && ln -s e/b soft && rm a && echo ok; "
               f"echo x > {other}/f; echo x > /etc/hutch-x; echo x > /usr/hutch-x; echo x > $HOME/hutch-x; "
               "echo x > /tmp/t && echo x > /var/tmp/t && echo x > /dev/shm/t && echo private", who=who, cwd=ws)
        check_equal(r.out, "ok\nprivate\n", r)
        check_equal(sorted(os.listdir(ws)), ["e", "hard", "soft"])
        check_equal(os.listdir(other), [])
        check(not os.path.exists("/tmp/t") and not os.path.exists("/dev/shm/t"), "a private directory leaked")
        check_equal(r.err.count("Read-only file system") + r.err.count("Permission denied") + r.err.count("nonexistent"), 4, r)


def test_owner(who):
    "what the command writes belongs to the caller afterwards"
    _, entry = identity(who)
    with workspace(who) as ws:
        sh("touch f; mkdir d; ln -s x l; mkfifo p; touch d/g", who=who, cwd=ws)
        for name in ("f", "d", "l", "p", "d/g"):
            st = os.lstat(ws / name)
            check_equal((st.st_uid, st.st_gid), (entry.pw_uid, entry.pw_gid), name)


def test_own_files_can_be_read(who):
    "files of mode 0600 and 0700 directories of the caller work inside a writable directory"
    with workspace(who) as ws:
        write(ws / "secret/f", "mine\n", who, 0o600)
        os.chmod(ws / "secret", 0o700)
        r = sh("cat secret/f && echo more >> secret/f && chmod 640 secret/f", who=who, cwd=ws)
        check_equal((r.code, r.out), (0, "mine\n"), r)
        check_equal(stat.S_IMODE((ws / "secret/f").stat().st_mode), 0o640)


SETID = """import os, stat
def attempt(name, action):
    try: action()
    except OSError: pass
open('f', 'w').close(); open('g', 'w').close(); os.mkdir('d')
attempt('chmod', lambda: os.chmod('f', 0o4755))
attempt('chmod', lambda: os.chmod('g', 0o2755))
attempt('fchmod', lambda: os.fchmod(os.open('f', os.O_RDONLY), 0o6755))
attempt('fchmodat', lambda: os.chmod('f', 0o4755, dir_fd=os.open('.', os.O_RDONLY)))
attempt('chmod dir', lambda: os.chmod('d', 0o2755))
attempt('mkdir', lambda: os.mkdir('d2', 0o2755))
attempt('open', lambda: os.open('h', os.O_CREAT | os.O_WRONLY, 0o6755))
attempt('openat', lambda: os.open('h2', os.O_CREAT | os.O_WRONLY, 0o4755, dir_fd=os.open('.', os.O_RDONLY)))
attempt('mknod', lambda: os.mknod('n', stat.S_IFREG | 0o6755))
attempt('mkfifo', lambda: os.mkfifo('p', 0o6755))
attempt('xattr', lambda: os.setxattr('f', 'security.capability', bytes.fromhex('0100000200040000000000000000000000000000')))
attempt('xattr3', lambda: os.setxattr('f', 'security.capability', bytes.fromhex('010000030004000000000000000000000000000000000000')))
import ctypes
c = ctypes.CDLL(None, use_errno=True)
c.syscall(437, -100, b'o2', ctypes.c_char_p((0o101).to_bytes(8, 'little') + (0o4755).to_bytes(8, 'little') + bytes(8)), 24)
c.syscall(452, -100, b'f', 0o4755, 0)
print('done')
"""


def test_no_setuid_is_left(who):
    "no set-uid, set-gid or file-capability inode can be left, by any call"
    with workspace(who) as ws:
        r = hutch("run", "-q", "--", "python3", "-c", SETID, who=who, cwd=ws)
        check_equal(r.out, "done\n", r)
        for folder, folders, files in os.walk(ws):
            for name in folders + files:
                path = os.path.join(folder, name)
                check_equal(os.lstat(path).st_mode & 0o6000, 0, path)
                check("security.capability" not in os.listxattr(path, follow_symlinks=False), f"{path} has a capability")


def test_nothing_inside_is_host_root(who):
    "no process inside has host uid 0 or a host capability, seen from outside"
    _, entry = identity(who)
    with workspace(who) as ws:
        proc = start("--", "sh", "-c", "sleep 600 & echo go; read x", who=who, cwd=ws)
        proc.stdout.readline()
        inside = namespace_processes(proc.pid)
        check(len(inside) >= 3, f"found only {inside}")
        for pid, status in inside.items():
            ids = [int(x) for x in status["Uid"].split() + status["Gid"].split()]
            check(0 not in ids, f"pid {pid} has {ids}")
            check_equal(int(status["CapEff"], 16) | int(status["CapPrm"], 16) | int(status["CapBnd"], 16), 0)
            check_equal((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"))
            if who == "user":
                check_equal(set(ids), {entry.pw_uid, entry.pw_gid})
        end(proc)


def read_status(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    return dict((k, v.strip()) for k, _, v in (line.partition(":") for line in text.splitlines()))


def namespace_processes(hutch_pid):
    """{pid: status} of everything below hutch that is in another pid namespace."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        status = read_status(pid)
        if status:
            parents[int(pid)] = status

    def below(pid):
        while pid in parents:
            if pid == hutch_pid:
                return True
            pid = int(parents[pid]["PPid"])
        return False
    return {p: s for p, s in parents.items() if len(s.get("NSpid", "").split()) > 1 and below(p)}


def test_ranges_are_not_shared():
    "two runs of root at the same time have uid ranges that do not overlap"
    if not is_root():
        return
    with workspace("root") as ws:
        procs = [start("--", "sh", "-c", "echo go; read x", who="root", cwd=ws) for _ in range(4)]
        bases = []
        for proc in procs:
            proc.stdout.readline()
            pid = next(iter(namespace_processes(proc.pid)))
            first, base, count = map(int, pathlib.Path(f"/proc/{pid}/uid_map").read_text().split())
            check_equal((first, count), (0, 65536))
            check(base >= 1 << 29, base)
            bases.append(base)
        check_equal(len(set(bases)), 4, bases)
        for proc in procs:
            end(proc)


def test_denied_reads(who):
    "denied files give EACCES, never emptiness, and cannot be opened, listed, linked, renamed or removed"
    _, entry = identity(who)
    with workspace(who) as ws:
        write(ws / ".env", "TOKEN=1\n", who)
        write(ws / "hide/inner", "x\n", who)
        write(ws / "hide2/inner", "x\n", who)
        r = sh("cat .env; cat hide/inner; ls hide; ln .env e2; mv .env e3; rm -f .env; cat < .env; rm -rf hide; mv hide h2; echo x > .env; "
               "cat hide2/inner", "--deny", ws / "hide", who=who, cwd=ws)
        check_equal(r.out, "x\n", r)
        check(r.err.count("Permission denied") >= 4, r)
        check_equal((ws / ".env").read_text(), "TOKEN=1\n")
        check_equal((ws / "hide/inner").read_text(), "x\n")
    with workspace(who) as ws, outside(who) as other:
        write(ws / ".env", "TOKEN=1\n", who)
        write(other / "hide/inner", "x\n", who)
        r = sh(f"cat {other}/hide/inner; ls {other}/hide; cat {other}/hide/none", "--deny", other / "hide", who=who, cwd=ws)
        check_equal((r.out, r.err.count("Permission denied")), ("", 3), r)
        r = hutch("run", "-q", "--", "python3", "-c",
                  "import os\ntry: os.open('.env', os.O_RDONLY)\nexcept OSError as e: print(e.errno)", who=who, cwd=ws)
        check_equal(r.out, "13\n", r)


def test_home_secrets(who):
    "keys in the home directory and the password file cannot be read"
    _, entry = identity(who)
    with outside(who) as ws:
        home = ws / "home"
        for name in (".ssh/id_ed25519", ".aws/credentials", ".netrc", ".bash_history", ".config/gh/hosts.yml"):
            write(home / name, "SECRET\n", who, 0o600)
        write(home / "plain", "fine\n", who)
        write(home / "work/x", "", who)
        r = sh("cd; cat .ssh/id_ed25519 .aws/credentials .netrc .bash_history .config/gh/hosts.yml /etc/shadow; ls .ssh; cat plain",
               who=who, cwd=home / "work", env={"HOME": str(home)})
        check("SECRET" not in r.out, r)
        check_in("fine", r.out, r)
        r = sh("cat .ssh/id_ed25519", "--allow-read", home / ".ssh/id_ed25519", "-C", home, who=who, cwd=home / "work",
               env={"HOME": str(home)})
        check_equal(r.out, "SECRET\n", r)


def test_binds(who):
    "--rw and --ro show directories, also at another place, and files"
    with workspace(who) as ws, workspace(who) as other:
        write(other / "f", "there\n", who)
        write(other / ".env", "plain\n", who)
        os.makedirs(ws / "at")
        if is_root():
            os.chown(ws / "at", os.stat(ws).st_uid, os.stat(ws).st_gid)
        r = sh(f"cat {other}/f; echo x > {other}/g", "--rw", other, who=who, cwd=ws)
        check_equal((r.code, r.out), (0, "there\n"), r)
        check((other / "g").exists(), r)
        r = sh(f"cat {other}/f; echo x > {other}/h", "--ro", other, who=who, cwd=ws)
        check((r.code != 0) and not (other / "h").exists(), r)
        r = sh("cat at/f; echo x > at/i", "--rw", f"{other}:{ws}/at", who=who, cwd=ws)
        check_equal((r.code, r.out), (0, "there\n"), r)
        check((other / "i").exists() and not (ws / "at/i").exists(), r)
        r = sh("cat at/f; echo x > at/k; echo; ls at", "--ro", f"{other}:{ws}/at", who=who, cwd=ws)
        check_in("Read-only", r.err, r)
        r = sh("cat /mnt/f", "--ro", f"{other}:/mnt", who=who, cwd=ws)
        check_equal(r.out, "there\n", r)
        r = sh(f"cat {other}/f; echo more >> {other}/f", "--rw", other / "f", who=who, cwd=ws)
        check_equal((r.code, (other / "f").read_text()), (0, "there\nmore\n"), r)


def test_binds_bring_no_secrets(who):
    "a directory shown at another place does not bring denied files or unprotected names along"
    _, entry = identity(who)
    with outside(who) as ws:
        home = ws / "home"
        write(home / ".ssh/id", "SECRET\n", who, 0o600)
        write(home / ".bashrc", "mine\n", who)
        write(home / "work/x", "", who)
        r = sh("cat /mnt/.ssh/id; echo evil >> /mnt/.bashrc; echo evil > /mnt/.profile; echo fine > /mnt/file; echo end", "--rw",
               f"{home}:/mnt", who=who, cwd=home / "work", env={"HOME": str(home)})
        check_equal(r.out, "end\n", r)
        check_equal((home / ".bashrc").read_text(), "mine\n")
        check(not (home / ".profile").exists(), "a protected name was made through the second place")
        check((home / "file").exists(), r)


def test_missing_paths(who):
    "a missing path is an error that says so; with --try it is skipped"
    with workspace(who) as ws:
        for flag in ("--rw", "--ro", "--tmpfs", "--unix-socket", "--dev"):
            path = "/dev/none" if flag == "--dev" else "/none/there"
            r = sh("true", flag, path, who=who, cwd=ws)
            check_equal(r.code, 121, r)
            check_one_line(r.err, r)
            check_in(path, r.err, r)
            r = sh("echo on", "--try", flag, path, who=who, cwd=ws)
            check_equal((r.code, r.out), (0, "on\n"), r)
        r = sh("true", "--try", who=who, cwd=ws)
        check_equal(r.code, 120, r)


def test_tmpfs(who):
    "--tmpfs covers a directory with an empty private one"
    with workspace(who) as ws, workspace(who) as other:
        write(other / "f", "x", who)
        write(ws / "sub/f", "x", who)
        r = sh(f"ls {other}; echo y > {other}/g && cat {other}/g; ls sub; echo z > sub/h", "--tmpfs", other, "--tmpfs", ws / "sub",
               who=who, cwd=ws)
        check_equal((r.code, r.out), (0, "y\n"), r)
        check_equal((os.listdir(other), os.listdir(ws / "sub")), (["f"], ["f"]))


def test_no_cwd(who):
    "--no-cwd keeps the current directory readable but not writable"
    with workspace(who) as ws:
        write(ws / "f", "x", who)
        r = sh("cat f; echo y > g", "--no-cwd", who=who, cwd=ws)
        check(r.out == "x" and r.code != 0, r)
        check_equal(os.listdir(ws), ["f"])


def test_devices(who):
    "/dev has the usual harmless devices; --dev adds one"
    with workspace(who) as ws:
        r = sh("for d in null zero full random urandom tty; do test -c /dev/$d || echo no $d; done; head -c 4 /dev/zero | wc -c; "
               "echo x > /dev/null; echo y > /dev/full; ls /dev | wc -w; test -e /dev/fuse && echo fuse; mknod n c 1 3 || echo no", who=who, cwd=ws)
        check_in("4\n", r.out, r)
        check("no null" not in r.out and "fuse" not in r.out, r)
        check(r.out.endswith("no\n"), r)
        if os.path.exists("/dev/fuse"):
            r = sh("test -c /dev/fuse && echo fuse", "--dev", "/dev/fuse", who=who, cwd=ws)
            check_equal(r.out, "fuse\n", r)


def listener(path):
    """A host socket at path that answers each connection with a word."""
    s = socket.socket(socket.AF_UNIX)
    s.bind(str(path))
    s.listen(8)
    os.chmod(path, 0o777)

    def serve():
        while True:
            try:
                c, _ = s.accept()
            except OSError:
                return
            c.sendall(b"host")
            c.close()
    threading.Thread(target=serve, daemon=True).start()
    return s


TALK = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ntry:\n s.connect(sys.argv[1])\n print(s.recv(9).decode())\nexcept OSError as e: print('refused', e.errno)"


def test_host_sockets(who):
    "a unix socket of the host is unreachable, in /tmp and elsewhere, until --unix-socket names it"
    with workspace(who) as ws, outside(who) as other:
        for folder in (ws, other):
            path = folder / "s"
            with listener(path) as s:
                r = hutch("run", "-q", "--", "python3", "-c", TALK, path, who=who, cwd=ws)
                check_in("refused", r.out, r)
                r = hutch("run", "-q", "--ro", other, "--", "python3", "-c", TALK, path, who=who, cwd=ws)
                check_in("refused", r.out, r)
                r = hutch("run", "-q", "--unix-socket", path, "--", "python3", "-c", TALK, path, who=who, cwd=ws)
                check_equal(r.out, "host\n", r)
                s.shutdown(socket.SHUT_RDWR)  # or the thread in accept() keeps it
            os.unlink(path)


def test_abstract_sockets(who):
    "an abstract socket of the host is unreachable, also with --network host"
    with workspace(who) as ws, socket.socket(socket.AF_UNIX) as s:
        name = f"hutch-test-{os.getpid()}-{who}"
        s.bind("\0" + name)
        s.listen()
        talk = TALK.replace("sys.argv[1]", f"'\\0{name}'")
        for network in ("off", "host"):
            r = hutch("run", "-q", "--network", network, "--", "python3", "-c", talk, who=who, cwd=ws)
            check_in("refused", r.out, r)


# --- protected names ----------------------------------------------------------------------------------------------------

def git(*args, who, cwd):
    r = run("git", "-c", "safe.directory=*", "-c", "user.email=a@b", "-c", "user.name=a", *args, who=who, cwd=cwd)
    check_equal(r.code, 0, r)
    return r


def make_repo(path, who):
    git("init", "-q", path, who=who, cwd="/")
    write(path / "f", "x\n", who)
    git("add", "f", who=who, cwd=path)
    git("commit", "-qm", "one", who=who, cwd=path)


def test_protected_names_present(who):
    "protected files and hooks that exist cannot be changed, replaced or moved, and nothing can be put in their place"
    with workspace(who) as ws:
        make_repo(ws, who)
        write(ws / ".bashrc", "mine\n", who)
        write(ws / ".vscode/settings.json", "{}\n", who)
        write(ws / ".git/hooks/pre-commit", "#!/bin/sh\n", who, 0o755)
        config = (ws / ".git/config").read_text()
        r = sh("echo evil >> .bashrc; rm -f .bashrc; mv .bashrc x; echo evil > .git/hooks/pre-commit; echo evil > .git/hooks/post-merge; "
               "mv .git/hooks .git/h2; mv .git g2; echo evil >> .git/config; git config core.pager evil; rm -rf .vscode; "
               "echo evil > .vscode/tasks.json; mv .vscode v2; ln -f x .bashrc; ln -sf x .bashrc; echo x > n; mv -f n .bashrc; "
               "truncate -s 0 .bashrc; chmod 777 .bashrc; touch ok", who=who, cwd=ws)
        check_equal((ws / ".bashrc").read_text(), "mine\n")
        check_equal((ws / ".git/config").read_text(), config)
        check_equal((ws / ".git/hooks/pre-commit").read_text(), "#!/bin/sh\n")
        check(not (ws / ".git/hooks/post-merge").exists(), "a hook was added")
        check_equal(os.listdir(ws / ".vscode"), ["settings.json"])
        check((ws / "ok").exists(), r)


def test_protected_names_absent(who):
    "protected names that do not exist cannot be made, by any means, and are not there afterwards"
    with workspace(who) as ws:
        r = sh("for n in .vimrc .envrc .Rprofile .mcp.json .hutch.yaml; do echo evil > $n; touch $n; ln -s /etc/passwd $n; ln f $n; mkdir $n; "
               "rm -f $n; mv f $n; done; for n in .vscode .claude; do mkdir $n; echo x > $n/s; rmdir $n; rm -rf $n; mv $n y; ln -s /tmp $n; done; "
               "echo x > f; mv f .vimrc; cp f .nvimrc; touch ok", who=who, cwd=ws)
        check_equal(sorted(os.listdir(ws)), ["f", "ok"] if (ws / "f").exists() else ["ok"], r)


def test_names_where_they_are_read(who):
    "names of home directories are refused there only, those of other version control where it is, and few stubs stand about"
    with outside(who) as top:
        ws, home = top / "ws", top / "home"
        write(ws / ".hg/store/x", "", who)
        write(ws / ".jj/repo/config.toml", "mine\n", who)
        write(home / ".cargo/x", "", who)
        write(home / ".config/x", "", who)
        env = {"HOME": str(home)}
        r = sh("for n in .bashrc .gitconfig .profile .npmrc .yarnrc.yml .devcontainer.json; do echo x > $n || echo $n; done; "
               "mkdir .cargo .devcontainer; echo x > .cargo/config.toml; for n in .vimrc .nvimrc .exrc .Rprofile .zed .hg/hgrc "
               ".jj/repo/config.toml; do echo x > $n && echo $n; done; ls -A | wc -l", who=who, cwd=ws, env=env)
        check(int(r.out) < 30 and r.out.count("\n") == 1, r)
        check_equal((ws / ".jj/repo/config.toml").read_text(), "mine\n")
        check_equal(sorted(os.listdir(ws)), [".bashrc", ".cargo", ".devcontainer", ".devcontainer.json", ".gitconfig", ".hg", ".jj",
                                             ".npmrc", ".profile", ".yarnrc.yml"], r)
        r = sh("for n in .bashrc .gitconfig .profile .cargo/env .nvm .config/nvim .vim .vimrc; do echo x > $n && echo $n; done; "
               "mkdir .nvm .vim .config/nvim; echo end", who=who, cwd=home, env=env)
        check_equal((r.out, sorted(os.listdir(home)), os.listdir(home / ".config")), ("end\n", [".cargo", ".config"], ["x"]), r)


def test_another_home_than_HOME_says(who):
    "a home directory of /etc/passwd is one, whatever HOME says"
    _, entry = identity(who)
    home = pathlib.Path(entry.pw_dir)
    if home == pathlib.Path("/root"):
        skip("root's home may hold anything here")
    before = sorted(os.listdir(home))
    r = sh("echo x > .bash_login && echo made; echo x > .zshenv && echo made; echo end", who=who, cwd=home, env={"HOME": "/nonexistent"})
    check_equal((r.out, sorted(os.listdir(home))), ("end\n", before), r)


def test_reported_names(who):
    "what programs act on but commands write for good reasons stays writable and is listed"
    with workspace(who) as ws:
        write(ws / "sub/.devcontainer/devcontainer.json", "{}\n", who)
        make_repo(ws, who)
        time.sleep(0.02)
        r = hutch("run", "-q", "--json", ws / "record.json", "--", "sh", "-c", "echo x > .npmrc; mkdir -p pkg/.cargo; echo x > pkg/.cargo/config.toml; "
                  "echo x >> sub/.devcontainer/devcontainer.json; echo x > pkg/.yarnrc.yml; echo x > pkg/.bashrc; mkdir .git/rebase-merge; "
                  "echo 'exec evil' > .git/rebase-merge/git-rebase-todo", who=who, cwd=ws)
        check_equal(r.code, 0, r)
        listed = json.loads((ws / "record.json").read_text())["host_may_execute"]
        check_equal(sorted(listed), sorted(str(ws / n) for n in (".git/rebase-merge", ".npmrc", "pkg/.cargo/config.toml", "pkg/.yarnrc.yml",
                                                                  "sub/.devcontainer/devcontainer.json")), listed)


def test_a_rebase(who):
    "git rebase works inside; one that is under way cannot be changed"
    with workspace(who) as ws:
        make_repo(ws, who)
        env = ["--env", "GIT_AUTHOR_NAME=a", "--env", "GIT_AUTHOR_EMAIL=a@b", "--env", "GIT_COMMITTER_NAME=a", "--env",
               "GIT_COMMITTER_EMAIL=a@b"]
        r = sh("set -e; git checkout -qb side; echo 2 > g; git add g; git commit -qm two; git checkout -q -; echo 3 > h; git add h; "
               "git commit -qm three; git rebase -q side; git log --format=%s", *env, who=who, cwd=ws)
        check_equal((r.code, r.out), (0, "three\ntwo\none\n"), r)
        write(ws / ".git/rebase-merge/git-rebase-todo", "noop\n", who)
        r = sh("echo 'exec evil' >> .git/rebase-merge/git-rebase-todo; mv .git/rebase-merge x; touch ok", who=who, cwd=ws)
        check_equal((ws / ".git/rebase-merge/git-rebase-todo").read_text(), "noop\n", r)
        check((ws / "ok").exists(), r)


def listed_after(script, who, ws):
    "What the record lists, below the workspace, of files that were there before."
    for name in ("a/sub/.envrc", "a/f"):
        write(ws / name, "old\n", who)
    run("chown", "-R", f"--reference={ws}", ws)
    time.sleep(0.02)
    r = hutch("run", "-q", "--json", "1", "--", "python3", "-c", "import os, time\n" + script, who=who, cwd=ws)
    check_equal(r.code, 0, r)
    return [n.removeprefix(f"{ws}/") for n in json.loads(r.out)["host_may_execute"]]


def test_no_change_is_hidden_from_the_list(who):
    "a file that was there is listed when it was changed, whatever was renamed or made while the tree was looked at"
    change = "open('{}/sub/.envrc', 'a').write('evil')\n"
    for script, name in (("time.sleep(.3); os.rename('a', 'b')\n" + change.format("b"), "b/sub/.envrc"),
                         ("os.rename('a', 'b'); time.sleep(.3); os.rename('b', 'a')\n" + change.format("a"), "a/sub/.envrc"),
                         ("many = ['0/%d' % i for i in range(5000)]; os.mkdir('0'); [os.mkdir(n) for n in many]; time.sleep(.3)\n"
                          "[os.rmdir(n) for n in many]; os.rmdir('0')\n" + change.format("a"), "a/sub/.envrc")):
        with workspace(who) as ws:
            check_equal(listed_after(script, who, ws), [name], script)


def test_unreadable_directory_is_listed(who):
    "a new directory in which nothing can be listed but files can be opened by their names is listed itself"
    with workspace(who) as ws:
        listed = listed_after("os.mkdir('q'); open('q/.envrc', 'w').write('evil'); os.chmod('q', 0o311)", who, ws)
        check_equal(listed, ["q/.envrc"] if who == "root" else ["q"])


def test_protected_ancestors(who):
    "a directory above a protected name cannot be renamed away to put another in its place"
    with workspace(who) as ws:
        write(ws / "a/.keep", "", who)
        make_repo(ws / "a/b", who)
        r = sh("mv a a2; mv a/b a/b2; mv a/b/.git a/b/g; mkdir -p a/b/.git/hooks && echo evil > a/b/.git/hooks/pre-commit; "
               "python3 -c 'import os; os.rename(\"a\", \"q\")'; touch ok", who=who, cwd=ws)
        check((ws / "a/b/.git/config").exists() and not (ws / "a/b/.git/hooks/pre-commit").exists(), r)
        check_equal(sorted(os.listdir(ws)), ["a", "ok"])


def test_protected_links(who):
    "a protected name that is a link keeps leading where it led, and its target is protected too"
    with workspace(who) as ws:
        write(ws / "dot/bashrc", "mine\n", who)
        os.symlink("dot/bashrc", ws / ".bashrc")
        os.symlink("/nowhere", ws / ".profile")
        r = sh("echo evil > .bashrc; echo evil > dot/bashrc; rm -f .bashrc; ln -sf /etc/passwd .bashrc; mv dot d2; rm -f .profile; touch ok", who=who, cwd=ws)
        check_equal((os.readlink(ws / ".bashrc"), (ws / "dot/bashrc").read_text()), ("dot/bashrc", "mine\n"), r)
        check_equal(os.readlink(ws / ".profile"), "/nowhere")
        check((ws / "ok").exists(), r)


def test_git_works(who):
    "git init, add -A, commit, status, log, clone, branch and stash work inside, and stubs are invisible to git"
    with workspace(who) as ws:
        make_repo(ws, who)
        env = ["--env", "GIT_AUTHOR_NAME=a", "--env", "GIT_AUTHOR_EMAIL=a@b", "--env", "GIT_COMMITTER_NAME=a", "--env",
               "GIT_COMMITTER_EMAIL=a@b"]
        r = sh("set -e; git status --porcelain; echo new > n; git add -A; git commit -qm two; git status --porcelain; "
               "git log --format=%s; git checkout -qb side; echo y >> f; git stash -q; git stash pop -q; git commit -qam three; "
               "git clone -q . sub; git -C sub log --format=%s | head -1; git init -q born; cd born; echo x > x; git add -A; "
               "git commit -qm first; git status --porcelain; git gc -q", *env, who=who, cwd=ws)
        check_equal((r.code, r.out), (0, "two\none\nthree\n"), r)
        files = git("ls-files", who=who, cwd=ws).out.split()
        check_equal(files, ["f", "n"])
        check_equal(sorted(os.listdir(ws)), [".git", "born", "f", "n", "sub"])


def test_git_directories_made_inside(who):
    "git directories of submodules and worktrees that a command makes in a known repository are listed, those that it uses are not"
    with workspace(who) as ws:
        make_repo(ws, who)
        git("worktree", "add", "-q", "there", who=who, cwd=ws)
        work = "cd there && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m more"
        r = hutch_record("--", "sh", "-c", work, who=who, cwd=ws)
        check_equal((r.code, r.record["host_may_execute"]), (0, []), r)
        r = hutch_record("--", "sh", "-c", "mkdir -p .git/modules/deep && git init -q --separate-git-dir .git/modules/deep/evil sub && git worktree add -q new && "
                                    "mkdir -p .git/modules/bare && printf '[core]\n\tfsmonitor = x\n' >.git/modules/bare/config",
                         who=who, cwd=ws)
        check_equal(r.code, 0, r)
        listed = r.record["host_may_execute"]
        for path in (".git/modules/deep/evil", ".git/worktrees/new", ".git/modules/bare/config", "sub/.git", "new/.git"):
            check_in(str(ws / path), listed, path)
        check(not [p for p in listed if "there" in p], listed)


def test_git_worktree_and_submodule(who):
    "the .git file of a worktree and the configuration of a submodule are protected"
    with workspace(who) as ws:
        make_repo(ws / "main", who)
        make_repo(ws / "lib", who)
        git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", ws / "lib", "sub", who=who, cwd=ws / "main")
        git("worktree", "add", "-q", "../wt", who=who, cwd=ws / "main")
        pointer = (ws / "wt/.git").read_text()
        config = (ws / "main/.git/modules/sub/config").read_text()
        sh("echo evil > wt/.git; rm -f wt/.git; echo evil >> main/.git/modules/sub/config; echo x > main/.git/modules/sub/hooks/pre-commit; "
           "echo evil > main/sub/.git; mv main/.git/modules m2; touch ok", who=who, cwd=ws)
        check_equal((ws / "wt/.git").read_text(), pointer)
        check_equal((ws / "main/.git/modules/sub/config").read_text(), config)
        check(not (ws / "main/.git/modules/sub/hooks/pre-commit").exists(), "a hook of a submodule was added")
        check((ws / "ok").exists())


def is_stub(path):
    return stat.S_ISSOCK(os.lstat(path).st_mode) and stat.S_IMODE(os.lstat(path).st_mode) == 0o1000


def test_shared_stubs(who):
    "runs in one directory share stubs; the last one removes them; killing one keeps the protection of the others"
    with workspace(who) as ws:
        first = start("--", "sh", "-c", "echo go; read x; echo evil > .vimrc; echo evil > .vscode/x; mkdir .claude; echo end", who=who, cwd=ws)
        first.stdout.readline()
        second = start("--", "sh", "-c", "echo go; read x", who=who, cwd=ws)
        second.stdout.readline()
        third = start("--", "sh", "-c", "echo go; read x", who=who, cwd=ws)
        third.stdout.readline()
        check(is_stub(ws / ".vimrc") and is_stub(ws / ".vscode"), os.listdir(ws))
        second.kill()
        second.wait()
        end(third)
        end(second)
        time.sleep(0.3)
        check(is_stub(ws / ".vimrc"), "the stubs went although a run still needs them")
        first.stdin.write("\n")
        first.stdin.flush()
        check_equal(first.stdout.readline(), "end\n")
        end(first)
        eventually(lambda: not os.listdir(ws), 3, f"stubs are left: {os.listdir(ws)}")


# --- network ------------------------------------------------------------------------------------------------------------

def test_network(who):
    "without a network there is only loopback and no host; with --network host there is"
    with workspace(who) as ws, socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen(8)
        port = s.getsockname()[1]
        script = ("import socket\nprint(' '.join(n for _, n in socket.if_nameindex()))\n"
                  f"s = socket.socket(); s.settimeout(60)\ntry: s.connect(('127.0.0.1', {port})); print('reached')\n"
                  "except OSError as e: print('no', e.errno)\n"
                  "a = socket.socket(); a.bind(('127.0.0.1', 0)); a.listen(); b = socket.socket(); b.connect(a.getsockname()); print('own')\n"
                  "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ntry: u.sendto(b'x', ('192.0.2.1', 9)); print('sent')\n"
                  "except OSError as e: print('unreachable')\n")
        r = hutch("run", "-q", "--", "python3", "-c", script, who=who, cwd=ws)
        check_equal(r.out, "lo\nno 111\nown\nunreachable\n", r)
        r = hutch("run", "-q", "--network", "host", "--", "python3", "-c", script, who=who, cwd=ws)
        check_in("reached\nown\n", r.out, r)
