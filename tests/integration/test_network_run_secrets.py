"""`hutch run --secret`: the command uses a key that it never has. The value is random and is searched for in everything that the
command can see, and in everything that leaves for another place."""
import json
import os
import secrets

from hutch_test import HUTCH_TEST, check, check_equal, check_in, hutch, hutch_record, run, workspace, write
from internet import Internet

CURL = "curl -sS --max-time 60"


def go(net, who, ws, *args, env=None, **kw):
    return hutch_record(*args, binary=HUTCH_TEST, who=who, cwd=ws, env={**net.env(), **(env or {})}, timeout=300, **kw)


def refused(net, who, ws, *args, env=None):
    r = hutch("run", *args, binary=HUTCH_TEST, who=who, cwd=ws, env={**net.env(), **(env or {})}, timeout=300)
    check(r.code in (120, 121), r)
    return r


def opened(net):
    net.ca.cert.chmod(0o644), net.dir.chmod(0o755), net.ca.dir.chmod(0o755)


def test_used_and_not_had(who):
    "the bound host gets the value, in a header, as a password and in a query; inside there is a placeholder, in the answer too"
    value = "sk-" + secrets.token_hex(20)
    with Internet() as net, workspace(who) as ws:
        opened(net)
        script = f"""echo "$KEY"; {CURL} -H "Authorization: Bearer $KEY" https://api.test/echo; echo
{CURL} -o /dev/null -u "me:$KEY" https://api.test/echo; {CURL} -o /dev/null "https://api.test/echo?k=$KEY"; env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; true"""
        r = go(net, who, ws, "--secret", "KEY=api.test", "--", "sh", "-c", script, env={"KEY": value})
        check_equal(r.code, 0, r)
        check(value not in r.out + r.err + json.dumps(r.record), "the value is visible inside or in the record")
        holder = r.out.split("\n")[0]
        check(holder.startswith("sbx-") and len(holder) == 36, r)
        seen = net.seen("api.test")
        check_equal(len(seen), 3, seen)
        check_in(f"Bearer {value}", str(seen[0]), "the header")
        check_in(value, str(seen[2]), "the query")
        check(all(holder not in str(x) for x in seen), "a placeholder left")
        check_in(holder, r.out.split("\n")[1], "the answer holds the placeholder where the server echoed the value")


def test_nowhere_else(who):
    "another host, another port and http get neither the value nor the placeholder; a second secret goes to its own host only"
    one, two = "sk-" + secrets.token_hex(20), "gh-" + secrets.token_hex(20)
    with Internet() as net, workspace(who) as ws:
        opened(net)
        script = "\n".join(f"{CURL} -o /dev/null -w '%{{http_code}} ' -H \"X-Key: ${k}\" {u}" for k, u in
                           (("ONE", "https://api.test/"), ("TWO", "https://other.test/"), ("ONE", "https://other.test/"), ("TWO", "https://api.test/"),
                            ("ONE", "http://api.test/"), ("ONE", "https://files.test/")))
        r = go(net, who, ws, "--secret", "ONE=api.test", "--secret", "TWO=other.test", "--allow-host", "files.test", "--allow-host", "api.test", "--", "sh", "-c", script, env={"ONE": one, "TWO": two})
        check_equal(r.code, 0, r)
        check_equal(r.out.split()[:5], ["200", "200", "403", "403", "403"], r)
        seen = str(net.seen())
        check_equal((seen.count(one), seen.count(two), len(net.seen("api.test")), len(net.seen("other.test"))), (1, 1, 1, 1), seen)
        check(one not in str(net.seen("files.test")), "the value left for a host that is not its own")
        check(any("secret" in json.dumps(d) for d in r.record["denials"]), r.record["denials"])


def test_file(who):
    "the value can come from a file, which is then hidden from the command"
    value = "sk-" + secrets.token_hex(20)
    with Internet() as net, workspace(who) as ws:
        opened(net)
        write(ws / "key.txt", value + "\n", who)
        script = f'{CURL} -H "X-Key: $KEY" https://api.test/echo -o /dev/null; cat key.txt; ls -l key.txt; echo "$KEY"'
        r = go(net, who, ws, "--secret", "KEY=api.test", "--secret-file", "KEY=key.txt", "--", "sh", "-c", script)
        check(value not in r.out + r.err, r)
        check_in(value, str(net.seen("api.test")), r)
        check_equal((ws / "key.txt").read_text(), value + "\n")
        os.mkdir(ws / "sub"), os.chmod(ws / "sub", 0o777)
        r = refused(net, who, ws / "sub", "--secret", "KEY=api.test", "--secret-file", f"KEY={ws}/key.txt", "--ro", f"{ws}:/mnt", "--", "true")
        check_in("would see it", r.err, r)
        r = run("bash", "-c", f"exec {HUTCH_TEST} run --secret KEY=api.test --secret-file KEY=/dev/stdin -- cat <key.txt", who=who, cwd=ws, env=net.env())
        check(r.code != 0 and value not in r.out, r)
        check_in("standard input", r.err, r)
        shell = f'exec {HUTCH_TEST} run --secret KEY=api.test --secret-file KEY=<(printf %s {value}) -- sh -c \'{CURL} -H "X-Pipe: $KEY" https://api.test/\''
        r = run("bash", "-c", shell, who=who, cwd=ws, env=net.env())
        check_in(f"'x-pipe': '{value}'", str(net.seen("api.test")), r)


def test_file_names(who):
    "a file is hidden whatever characters its path has, and one with a second name is refused"
    value = "sk-" + secrets.token_hex(20)
    with Internet() as net, workspace(who) as ws:
        opened(net)
        for name in ("a[prod]", "b\\c", "d*", "e?", "f:"):
            os.mkdir(ws / name), os.chmod(ws / name, 0o777)
            write(ws / name / "token", value + "\n", who)
            r = go(net, who, ws, "--secret", "KEY=api.test", "--secret-file", f"KEY={name}/token", "--", "sh", "-c", 'cat "$1"; grep -rs sk- . ; true', "-", f"{name}/token")
            check(r.code == 0 and value not in r.out, (name, r))
            os.remove(ws / name / "token")
        write(ws / "one", value, who)
        os.link(ws / "one", ws / "two")
        check_in("hard links", refused(net, who, ws, "--secret", "KEY=api.test", "--secret-file", "KEY=one", "--", "cat", "two").err)
        os.remove(ws / "two")
        check_in("--secret-file of KEY", refused(net, who, ws, "--json", "one", "--secret", "KEY=api.test", "--secret-file", "KEY=one", "--", "true").err)
        check_equal((ws / "one").read_text(), value)


def test_copies(who):
    "a copy of the value in another variable of the caller's is dropped; in --env, a policy or the command's words it is an error"
    for value in ("sk-" + secrets.token_hex(20), "*" * 12, "%s%n%2f$(id)"):
        with Internet() as net, workspace(who) as ws:
            opened(net)
            env = {"KEY": value, "OTHER": f"x{value}y", "FINE": "nothing"}
            r = go(net, who, ws, "--pass-env", "OTHER", "--pass-env", "FINE", "--pass-env", "KEY", "--secret", "KEY=api.test", "--", "env", env=env)
            check_equal(r.code, 0, r)
            check(value not in r.out, r)
            check("OTHER=" not in r.out and "FINE=nothing" in r.out and "KEY=sbx-" in r.out, r)
            check(any("OTHER" in n and "KEY" in n for n in r.record["notes"]), r.record["notes"])
            policy = write(ws / "p.yaml", "env:\n  set:\n    COPY: '%s'\n" % value, who)
            for args in (("--env", f"COPY={value}", "--", "true"), ("--policy", str(policy), "--", "true"), ("--env", "KEY=other", "--", "true"), ("--", "echo", f"a{value}")):
                r = refused(net, who, ws, "--secret", "KEY=api.test", *args, env=env)
                check_in("KEY", r.err, r)
                check(value not in r.err, "an error quotes the value")


def test_mistakes(who):
    "a mistake in --secret is told before anything runs"
    with Internet() as net, workspace(who) as ws:
        opened(net)
        env = {"KEY": "0123456789", "SHORT": "1234567", "LINE": "01234567\n89", "LONG": "x" * 65537}
        many = [w for i in range(17) for w in ("--secret", f"K{i}=api.test")]
        for args, word in ((("--secret", "KEY"), "NAME=HOST"), (("--secret", "1K=api.test"), "NAME=HOST"), (("--secret", "KEY="), "host"), (("--secret", "KEY=api.test,"), "host"),
                           (("--secret", "NONE=api.test"), "--secret-file NONE="), (("--secret", "SHORT=api.test"), "7 bytes"), (("--secret", "LINE=api.test"), "control"),
                           (("--secret", "LONG=api.test"), "65537"), (("--secret", "KEY=*"), "KEY"), (("--secret", "KEY=*.com"), "com"), (("--secret-file", "KEY=/etc/passwd"), "no --secret"),
                           (("--secret", "KEY=api.test", "--secret-file", "KEY=/nonexistent"), "No such file"), (tuple(many), "at most 16"),
                           (("--secret", "KEY=" + ",".join(f"h{i}.test" for i in range(33))), "at most 32"), (("--secret", "KEY=api.test", "--learn", "out.yaml"), "--learn"),
                           (("--secret", "KEY=api.test", "--network", "off"), "--network off"), (("--network", "host", "--secret", "KEY=api.test"), "--network host")):
            r = refused(net, who, ws, *args, "--", "true", env=env)
            check_in(word, r.err, (args[:2], r))


def test_unverified(who):
    "a server whose certificate nobody can verify gets nothing"
    value = "sk-" + secrets.token_hex(20)
    with Internet() as net, workspace(who) as ws:
        opened(net)
        r = go(net, who, ws, "--secret", "KEY=unknown-ca.test,expired.test", "--", "sh", "-c",
               f"for h in unknown-ca expired; do {CURL} -o /dev/null -w '%{{http_code}} ' -H \"X-Key: $KEY\" https://$h.test/; done", env={"KEY": value})
        check_equal(r.out.split(), ["502", "502"], r)
        check(value not in str(net.seen()), "an unverified server was told")
