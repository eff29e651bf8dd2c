"""Bad input: one precise line, the right exit code, nothing half set up."""
import os

from hutch_test import HUTCH, check, check_equal, check_in, check_one_line, hutch, hutch_record, run, workspace, write


def refused(code, *args, who, cwd, says=None, env=None):
    """hutch run must end with this code and one line, and leave nothing in the directory."""
    before = sorted(os.listdir(cwd))
    r = hutch("run", *args, who=who, cwd=cwd, env=env)
    check_equal(r.code, code, r)
    check_one_line(r.err, r)
    check(r.err.startswith("hutch: "), r)
    check_equal(r.out, "", r)
    if says:
        check_in(says, r.err, r)
    check_equal(sorted(os.listdir(cwd)), before, r)


def test_usage(who):
    "wrong options are 120 and name what would be right"
    with workspace(who) as ws:
        for words, says in (([], "no command"), (["--"], "no command"), (["--memroy", "1G", "--", "true"], "--memory"), (["--nonsense-x"], "--help"),
                            (["-Z", "true"], "-Z"), (["--quiet=yes", "true"], "takes no value"), (["--fd", "1", "true"], "3 to 1023"),
                            (["--fd", "9999", "true"], "3 to 1023"), (["--", ""], "empty"), (["--rw"], "needs"), (["--try", "--", "true"], "--try"),
                            (["--json", "99", "true"], "not open"), (["--json", "/none/x", "true"], "/none/x"), (["--hostname", "", "true"], "hostname")):
            refused(120, *words, who=who, cwd=ws, says=says)


def test_policy_documents(who):
    "unreadable, malformed and contradictory policies are 121, with file and line"
    with workspace(who) as ws:
        texts = {"unknown.yaml": ("fiels: {}\n", "files"), "nested.yaml": ("files:\n  allow_wirte: [/x]\n", "allow_write"),
                 "syntax.yaml": ("files: [\n", "syntax.yaml"), "type.yaml": ("limits: {memory: [1]}\n", "memory"),
                 "clash.yaml": ("files: {allow_write: [/usr], deny_read: [/usr]}\n", "/usr"), "root.yaml": ("files: {allow_write: [/]}\n", "/"),
                 "ceiling.yaml": ("ceiling: {limits: {memory: 1G}}\n", "ceiling"), "glob.yaml": ("files: {allow_write: ['/u*']}\n", "u*"),
                 "syscall.yaml": ("syscalls: {allow: [opne]}\n", "open"), "twice.yaml": ("limits: {pids: 5}\nlimits: {pids: 6}\n", "limits"),
                 "word.yaml": ("privilege: root\n", "privilege"), "binary.yaml": ("\x01\x02", "binary.yaml")}
        for name, (text, says) in texts.items():
            path = write(ws / name, text, who)
            refused(121, "--policy", path, "--", "true", who=who, cwd=ws, says=says)
        refused(121, "--policy", ws / "none.yaml", "--", "true", who=who, cwd=ws, says="none.yaml")
        refused(121, "--policy", ws, "--", "true", who=who, cwd=ws)
        r = run("bash", "-c", f"exec {HUTCH} run --policy <(sleep 0.2; echo 'fiels: 1') -- true", who=who, cwd=ws)
        check_equal(r.code, 121, r)  # a pipe that is slow must not be taken for an empty document
        if who == "user":
            write(ws / "secret.yaml", "limits: {}\n", who, 0)
            refused(121, "--policy", ws / "secret.yaml", "--", "true", who=who, cwd=ws, says="ermission")


def test_project_policy(who):
    "a project file that widens is refused until it is trusted; one that narrows works; a link or a loop is handled"
    with workspace(who) as ws:
        write(ws / ".hutch.yaml", "files: {allow_write: [/usr/local]}\n", who)
        refused(121, "--", "true", who=who, cwd=ws, says=".hutch.yaml:1")
        write(ws / ".hutch.yaml", "limits: {pids: 40}\nfiles: {deny_read: [secret]}\n", who)
        write(ws / "secret", "s", who)
        r = hutch("run", "-q", "--", "cat", "secret", who=who, cwd=ws)
        check(r.code == 1 and "Permission denied" in r.err, r)
        os.unlink(ws / ".hutch.yaml")
        os.symlink(".hutch.yaml", ws / ".hutch.yaml")
        refused(121, "--", "true", who=who, cwd=ws, says=".hutch.yaml")


def test_settings(who):
    "a settings file that asks for what cannot be enforced is refused, naming it"
    with workspace(who) as ws:
        path = write(ws / "s.json", '{"network": {"allowedDomains": ["example.com"], "deniedDomains": []}, "filesystem": {"denyRead": [], '
                     '"allowWrite": ["."], "denyWrite": []}}', who)
        check_equal(hutch("run", "--settings", path, "--", "true", who=who, cwd=ws).code, 0)
        proxy = write(ws / "p.json", '{"network": {"allowedDomains": ["example.com"], "deniedDomains": [], "httpProxyPort": 8080}, "filesystem": '
                      '{"denyRead": [], "allowWrite": ["."], "denyWrite": []}}', who)
        r = hutch("run", "--settings", proxy, "--", "true", who=who, cwd=ws)
        check(r.code in (121, 122), r)
        check_one_line(r.err, r)
        r = hutch("run", "--settings", path, "--network", "off", "--", "true", who=who, cwd=ws)
        check_equal(r.code, 0, r)
        path = write(ws / "t.json", '{"filesystem": ', who)
        refused(121, "--settings", path, "--", "true", who=who, cwd=ws, says="t.json")


def test_paths(who):
    "links that loop, devices, kernel trees and the root as a whole are refused as shared directories"
    with workspace(who) as ws:
        os.symlink("loop", ws / "loop")
        os.symlink("/", ws / "all")
        os.mkfifo(ws / "fifo")
        for flag in ("--rw", "--ro"):
            refused(121, flag, ws / "loop", "--", "true", who=who, cwd=ws, says="loop")
            refused(121, flag, ws / "all", "--", "true", who=who, cwd=ws)
            refused(120, flag, "/", "--", "true", who=who, cwd=ws)
            refused(120, flag, "/proc/self", "--", "true", who=who, cwd=ws)
            refused(120, flag, "/sys/fs", "--", "true", who=who, cwd=ws)
            refused(121, flag, ws / "fifo", "--", "true", who=who, cwd=ws, says="fifo")
        refused(120, "--tmpfs", "/", "--", "true", who=who, cwd=ws)
        refused(120, "--dev", "/etc/passwd", "--", "true", who=who, cwd=ws)
        refused(121, "--protect", "*.lock", "--", "true", who=who, cwd=ws)


def test_place_that_does_not_exist(who):
    "a directory shown at a place that does not exist on a read-only root is refused, naming the place"
    with workspace(who) as ws:
        r = hutch("run", "--ro", f"{ws}:/no/such/place", "--", "true", who=who, cwd=ws)
        check(r.code in (121, 123), r)
        check_one_line(r.err, r)
        check_in("/no/such/place", r.err, r)


def test_current_directory_gone(who):
    "a current directory that was removed is refused"
    with workspace(who) as ws:
        r = run("sh", "-c", f"mkdir gone && cd gone && rmdir ../gone && exec {HUTCH} run -- true", who=who, cwd=ws)
        check_equal(r.code, 120, r)
        check_one_line(r.err, r)


def test_nested(who):
    "hutch inside hutch is refused with 122, and with best-effort runs the nested tier and says so"
    with workspace(who) as ws:
        share = ["--ro", HUTCH]
        r = hutch("run", "-q", *share, "--", HUTCH, "run", "--", "true", who=who, cwd=ws)
        check_equal(r.code, 122, r)
        check_one_line(r.err, r)
        check_in("best-effort", r.err, r)
        r = hutch("run", "-q", *share, "--", HUTCH, "run", "-q", "--enforcement", "best-effort", "--", "sh", "-c",
                  "echo x > f; echo y > /etc/hutch-x; grep -E 'Seccomp_filters|NoNewPrivs' /proc/self/status; exit 5", who=who, cwd=ws)
        check_equal(r.code, 5, r)
        check_in("Seccomp_filters:\t2", r.out, r)
        check((ws / "f").exists(), r)


def test_old_environment(who):
    "an environment without HOME and PATH, and one that is huge, are handled"
    with workspace(who) as ws:
        r = run("env", "-i", HUTCH, "run", "--", "sh", "-c", "echo on", who=who, cwd=ws)
        check_equal((r.code, r.out), (0, "on\n"), r)
        r = run("env", "-i", "HOME=relative", "PATH=", HUTCH, "run", "--", "/bin/sh", "-c", "echo on", who=who, cwd=ws)
        check_equal((r.code, r.out), (0, "on\n"), r)
        r = hutch("run", "--", "sh", "-c", "echo on", who=who, cwd=ws, env={f"LC_{i}": "v" * 1000 for i in range(1500)})
        check_equal((r.code, r.out), (0, "on\n"), r)


def test_record_of_a_failed_command(who):
    "a command that cannot be found still gets a record"
    with workspace(who) as ws:
        r = hutch_record("--", "no-such-command", who=who, cwd=ws)
        check_equal(r.code, 127, r)
        check_in("death", r.record, r.record)
