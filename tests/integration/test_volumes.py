"""Volumes: shared by sandboxes, kept when everything dies, limited, and closed to everybody else; the content API; the command line."""
import concurrent.futures
import json
import os
import pathlib
import shutil
import socket
import urllib.parse

from hutch_test import check, check_equal, check_in, eventually, run
from node import needs_root, node, patiently, restart
from node_client import ask, call, patient, py, sh
from shared import shared_node
from small import small_templates

MIB = 1 << 20


def make(d, name="data", key=None, **quota):
    a = ask(d, "POST", "/v1/volumes", {"name": name, **({"quota": quota} if quota else {})}, key=key)
    check_equal(a.status, 201, a)
    v = ask(d, "GET", "/volumes/" + a.json["id"], key=key)
    check_equal((v.status, v.json["volumeID"]), (200, a.json["id"]), v)
    return v.json


def content(d, v, method, what, body=None, token=None, timeout=60, **query):
    token = v["token"] if token is None else token
    return ask(d, method, f"/volumecontent/{v['volumeID']}/{what}?" + urllib.parse.urlencode(query), body, key="",
               headers={"Authorization": "Bearer " + token} if token else {}, kind="application/octet-stream", timeout=timeout)


def box_with(d, *mounts, template="small", key=None, **more):
    a = patient(d, "POST", "/v1/sandboxes", {"template": template, "volumes": [
        {"name": n, "path": p, **({"readOnly": True} if ro else {})} for n, p, *ro in mounts], **more}, key=key)
    check_equal(a.status, 201, a)
    return a.json


def kill(d, box):
    check_equal(ask(d, "DELETE", "/sandboxes/" + box["sandboxID"]).status, 204)


def good(done, out=None):
    check_equal(done.code, 0, done)
    if out is not None:
        check_equal(done.out, out, done)
    return done


def test_volume_is_shared():
    "two sandboxes see each other's writes at once, share locks and mapped memory; read-only means it; pausing keeps it"
    needs_root()
    with shared_node(templates=True) as d:
        make(d)
        one, two = box_with(d, ("data", "/mnt/data")), box_with(d, ("data", "/srv/deep/er"))
        ro = box_with(d, ("data", "/data", True))
        good(sh(d, one, "echo first > /mnt/data/f; mkdir /mnt/data/d"))
        good(sh(d, two, "cat /srv/deep/er/f; echo second >> /srv/deep/er/f"), b"first\n")
        good(sh(d, one, "cat /mnt/data/f"), b"first\nsecond\n")
        good(sh(d, ro, "cat /data/f"), b"first\nsecond\n")
        for change in ("echo x > /data/f", "rm /data/f", "mkdir /data/x", "mv /data/f /data/g", "chmod 600 /data/f"):
            check(sh(d, ro, change, user="root").code != 0, change)
        check(sh(d, ro, "mount -o remount,rw /data || mount -o remount,bind,rw /data; echo x > /data/f", user="root").code != 0)
        # Both add to one number, each under the lock.
        a, b = (box_with(d, ("data", "/home/user/v"), template="host") for _ in "ab")
        good(sh(d, one, "echo 0 > /mnt/data/n; chmod 666 /mnt/data/n; touch /mnt/data/lock"))
        add = ("import fcntl, os\nos.chdir('/home/user/v')\nfor i in range(200):\n    with open('lock') as f:\n"
               "        fcntl.flock(f, fcntl.LOCK_EX)\n        n = int(open('n').read())\n        open('n','w').write(f'{n+1}\\n')\n"
               "open('done%d','w')\n")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for done in pool.map(lambda x: py(d, *x), ((a, add % 1), (b, add % 2))):
                good(done)
        good(sh(d, one, "cat /mnt/data/n"), b"400\n")
        # Mapped memory is the same memory.
        good(py(d, a, "open('/home/user/v/m','wb').write(bytes(4096))"))
        hold = ("import mmap,time\nf=open('/home/user/v/m','r+b'); m=mmap.mmap(f.fileno(),4096)\n"
                "stop=time.time()+100\nwhile m[0]==0 and time.time()<stop: time.sleep(.01)\nm[1]=m[0]+1\n")
        good(sh(d, a, f"python3 -c \"{hold}\" > /dev/null 2>&1 &"))
        good(py(d, b, "import mmap,time\nf=open('/home/user/v/m','r+b'); m=mmap.mmap(f.fileno(),4096)\nm[0]=41\n"
                      "stop=time.time()+100\nwhile m[1]==0 and time.time()<stop: time.sleep(.01)\nprint(m[1])"), b"42\n")
        # What a sandbox has is shown, and is there again after a pause as files.
        shown = ask(d, "GET", "/sandboxes/" + ro["sandboxID"]).json["volumeMounts"]
        check_equal(shown, [{"name": "data", "path": "/data", "readOnly": True}])
        check_equal(ask(d, "POST", f"/sandboxes/{one['sandboxID']}/pause", {"memory": False}).status, 204)
        for box in (two, ro, a, b):
            kill(d, box)
        refused = ask(d, "DELETE", "/volumes/data")
        check_equal((refused.status, refused.json["error_code"]), (409, "volume_in_use"), refused)
        check_equal(ask(d, "POST", f"/sandboxes/{one['sandboxID']}/connect", {"timeout": 60}, timeout=60).status, 201)
        good(sh(d, one, "cat /mnt/data/n"), b"400\n")


def test_volume_content():
    "files go in and out without a sandbox of one's own; links lead nowhere; what is wrong is named by a word"
    needs_root()
    with shared_node(templates=True) as d:
        v = make(d)
        made = content(d, v, "POST", "dir", path="/a/b", uid=1000, gid=1000, mode=0o750, force="true")
        check_equal((made.status, made.json["uid"], made.json["mode"], made.json["type"]), (201, 1000, 0o750, "directory"), made)
        wrote = content(d, v, "PUT", "file", b"hello", path="/a/b/f ü+%.txt", mode=0o600, uid=7)
        check_equal((wrote.status, wrote.json["name"], wrote.json["size"], wrote.json["uid"]), (201, "f ü+%.txt", 5, 7), wrote)
        check_equal(content(d, v, "GET", "file", path="a/b/f ü+%.txt").body, b"hello")
        again = content(d, v, "PUT", "file", b"longer than before", path="/a/b/f ü+%.txt")
        check_equal((again.status, again.json["mode"], again.json["uid"]), (201, 0o600, 7), "owner and mode of a replaced file stay")
        part = ask(d, "GET", f"/volumecontent/{v['volumeID']}/file?path=/a/b/f%20%C3%BC%2B%25.txt", key="",
                   headers={"Authorization": "Bearer " + v["token"], "Range": "bytes=0-5"})
        check_equal((part.status, part.body), (206, b"longer"))
        big = os.urandom(1 << 20) * 24
        check_equal(content(d, v, "PUT", "file", big, path="/big").status, 201)
        check(content(d, v, "GET", "file", path="/big").body == big, "24 MiB come back as they went in")
        check_equal(content(d, v, "PUT", "file", b"", path="/empty").json["size"], 0)
        check_equal(content(d, v, "GET", "file", path="/empty").body, b"")
        names = [e["path"] for e in content(d, v, "GET", "dir", path="/").json]
        check_equal(names, ["/a", "/big", "/empty"])
        deep = [e["path"] for e in content(d, v, "GET", "dir", path="/", depth=3).json]
        check_equal(deep, ["/a", "/a/b", "/a/b/f ü+%.txt", "/big", "/empty"])
        changed = ask(d, "PATCH", f"/volumecontent/{v['volumeID']}/path?path=/big", {"uid": 5, "mode": 0o640}, key="",
                      headers={"Authorization": "Bearer " + v["token"]})
        check_equal((changed.status, changed.json["uid"], changed.json["mode"]), (200, 5, 0o640), changed)
        links(d, v)
        wrongs(d, v)
        check_equal(content(d, v, "DELETE", "path", path="/a").status, 204)
        check_equal(content(d, v, "GET", "path", path="/a").json["code"], "not_found")
        # An upload that breaks off leaves nothing, not even of the file that it was to replace.
        s = socket.create_connection(("127.0.0.1", d.port), timeout=60)
        s.sendall(f"PUT /volumecontent/{v['volumeID']}/file?path=/empty HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
                  f"{v['token']}\r\nContent-Length: 1000000\r\n\r\n".encode() + b"x" * 400000)
        s.close()
        eventually(lambda: '"path":"/volumecontent' in d.log(), 5)
        eventually(lambda: [(e["path"], e["size"]) for e in content(d, v, "GET", "dir", path="/").json if e["path"] != "/links"] ==
                   [("/big", len(big)), ("/empty", 0)], 10, "nothing is left of it")


def links(d, v):
    box = box_with(d, ("data", "/v"))
    good(sh(d, box, "mkdir /v/links; cd /v/links; ln -s /etc/passwd abs; ln -s ../../../../etc/passwd up; ln -s /proc/self/environ p;"
                    "ln -s /.hutch/hutch h; ln -s / root; ln -s loop loop; ln -s /a/b inside; mkfifo fifo", user="root"))
    for name in ("abs", "up", "p", "h", "root/etc/passwd"):
        check_equal(content(d, v, "GET", "file", path="/links/" + name).status, 404, name)
    for name in ("abs", "p", "h"):
        a = content(d, v, "PUT", "file", b"x", path="/links/" + name)
        check_equal((a.status, a.json["code"]), (400, "invalid"), name)
    check_equal(content(d, v, "GET", "path", path="/links/abs").json["target"], "/etc/passwd")
    check_equal(content(d, v, "GET", "dir", path="/links/root").json[0]["path"], "/links/root/a")
    check_equal(content(d, v, "GET", "file", path="/links/loop").json["code"], "invalid")
    check_equal(content(d, v, "GET", "file", path="/links/fifo").json["code"], "invalid")
    check_equal(content(d, v, "PUT", "file", b"through", path="/links/inside/new").status, 201)
    check_equal(content(d, v, "GET", "file", path="/a/b/new").body, b"through")
    check_equal(content(d, v, "DELETE", "path", path="/links/inside").status, 204, "the link goes, not what it leads to")
    check_equal(content(d, v, "GET", "file", path="/a/b/new").body, b"through")
    kill(d, box)


def wrongs(d, v):
    for method, what, query, status, code in (
            ("GET", "path", {}, 400, "invalid"), ("GET", "path", {"path": ""}, 400, "invalid"),
            ("GET", "path", {"path": "x" * 5000}, 400, "invalid"), ("GET", "path", {"path": "/no"}, 404, "not_found"),
            ("GET", "path", {"path": "/" + "n" * 300}, 400, "invalid"), ("GET", "path", {"path": "/big/x"}, 400, "not_dir"),
            ("GET", "dir", {"path": "/big"}, 400, "not_dir"), ("GET", "dir", {"path": "/", "depth": 0}, 400, "invalid"),
            ("GET", "dir", {"path": "/", "depth": "x"}, 400, "invalid"), ("GET", "file", {"path": "/a"}, 400, "is_dir"),
            ("GET", "file", {"path": "/no"}, 404, "not_found"), ("POST", "dir", {"path": "/a"}, 409, "exists"),
            ("POST", "dir", {"path": "/no/no"}, 404, "not_found"), ("POST", "dir", {"path": "/big/x", "force": "true"}, 400, "not_dir"),
            ("POST", "dir", {"path": "/q", "uid": -1}, 400, "invalid"), ("POST", "dir", {"path": "/q", "mode": 9999}, 400, "invalid"),
            ("POST", "dir", {"path": "/q", "force": "yes"}, 400, "invalid"), ("PUT", "file", {"path": "/a"}, 400, "is_dir"),
            ("PUT", "file", {"path": "/no/no", "force": "false"}, 404, "not_found"), ("PUT", "file", {}, 400, "invalid"),
            ("PUT", "file", {"path": "/big", "force": "false"}, 409, "exists"), ("DELETE", "path", {"path": "/"}, 400, "invalid"),
            ("DELETE", "path", {"path": "/no"}, 404, "not_found"), ("GET", "path", {"path": "/../../etc/passwd"}, 404, "not_found")):
        a = content(d, v, method, what, b"x" * 200000 if method == "PUT" else None, **query)
        check_equal((a.status, a.json["code"]), (status, code), f"{method} {what} {query}: {a}")
        check(a.json["message"], a)
    for body in (b"{", b"[]", b'{"uid":"x"}', b'{"mode":-1}', b'{"uid":70000}'):
        a = content(d, v, "PATCH", "path", body, path="/big")
        check_equal((a.status, a.json["code"]), (400, "invalid"), f"{body} {a}")


def test_volume_quota():
    "a full volume gives ENOSPC inside and 507 outside and loses nothing; so does one with too many files; removing makes room"
    needs_root()
    with shared_node(templates=True) as d:
        v = make(d, bytes=32 * MIB)
        box = box_with(d, ("data", "/v"))
        full = sh(d, box, "dd if=/dev/zero of=/v/fill bs=1M count=100")
        check(full.code != 0 and b"No space" in full.err, full)
        a = content(d, v, "PUT", "file", b"y" * 4 * MIB, path="/more")
        check_equal((a.status, a.json["code"]), (507, "no_space"), a)
        check_equal([e["name"] for e in content(d, v, "GET", "dir", path="/").json], ["fill"])
        shown = ask(d, "GET", "/v1/volumes/data").json
        check_equal((shown["quota"]["bytes"], shown["mounts"], shown["mountedBy"]), (32 * MIB, 1, [box["sandboxID"]]))
        check(shown["used"]["bytes"] > 20 * MIB and shown["enforcedBy"] != "none", shown)
        check_equal(content(d, v, "DELETE", "path", path="/fill").status, 204)
        check_equal(content(d, v, "PUT", "file", b"y" * 4 * MIB, path="/more").status, 201)
        few = make(d, "few", bytes=32 * MIB, entries=200)
        other = box_with(d, ("few", "/v"))
        many = sh(d, other, "for i in $(seq 2000); do : > /v/$i || exit 1; done")
        check(many.code != 0 and b"No space" in many.err, many)
        a = content(d, few, "PUT", "file", b"y", path="/more")
        check_equal((a.status, a.json["code"]), (507, "no_space"), a)
        check_equal(sh(d, box, "echo unhurt > /v/x").code, 0)


def test_volume_resize():
    "a volume grows and shrinks, never below what it holds; an image only while no sandbox has it; what is in it stays"
    needs_root()
    with shared_node(templates=True) as d:
        v = make(d, bytes=32 * MIB)
        check_equal(content(d, v, "PUT", "file", b"y" * 20 * MIB, path="/kept").status, 201)

        def resize(**quota):
            return ask(d, "PATCH", "/v1/volumes/data", {"quota": quota}, timeout=300)
        a = resize(bytes=128 * MIB)  # the hidden sandbox that wrote is no obstacle
        check_equal((a.status, a.json["quota"]["bytes"]), (200, 128 * MIB), a)
        box = box_with(d, ("data", "/v"))
        good(sh(d, box, "dd if=/dev/zero of=/v/more bs=1M count=60"))
        image = a.json["enforcedBy"] == "image"
        if image:
            a = resize(bytes=256 * MIB)
            check_equal((a.status, a.json["error_code"]), (409, "volume_in_use"), a)
            check_in(box["sandboxID"], a.json["message"])
            check_equal(resize(entries=1000).status, 501)
            kill(d, box)
        a = resize(bytes=64 * MIB)
        check_equal((a.status, a.json["error_code"]), (409, "quota_below_use"), a)
        check_in(str(64 * MIB), a.json["message"])
        check_equal(ask(d, "GET", "/v1/volumes/data").json["quota"]["bytes"], 128 * MIB)
        check_equal(content(d, v, "DELETE", "path", path="/more").status, 204)
        a = resize(bytes=48 * MIB)
        check_equal((a.status, a.json["quota"]["bytes"]), (200, 48 * MIB), a)
        check_equal(content(d, v, "GET", "file", path="/kept").body, b"y" * 20 * MIB)
        box = box_with(d, ("data", "/v"))
        full = sh(d, box, "dd if=/dev/zero of=/v/more bs=1M count=60")
        check(full.code != 0 and b"No space" in full.err, full)
        for wrong in ({}, {"bytes": 5}, {"bytes": -1}, {"bytes": "much"}, {"entries": 1}, {"size": 1}):
            check_equal(resize(**wrong).status, 400, wrong)
        check_equal(ask(d, "PATCH", "/v1/volumes/data", {"name": "x"}).status, 400)
        check_equal(ask(d, "PATCH", "/v1/volumes/nope", {"quota": {"bytes": 64 * MIB}}).status, 404)


def test_volume_is_its_owners():
    "another tenant finds neither its name nor its id nor opens it with any token; names are free for everybody"
    needs_root()
    with small_templates() as templates, node(templates=templates) as (d, _):
        keys = []
        for name in ("ann", "bob"):
            check(ask(d, "POST", "/v1/tenants", {"id": name, "name": name}).status in (200, 201))
            keys.append(ask(d, "POST", "/v1/keys", {"tenant": name, "name": "k", "scopes": ["sandboxes"]}).json["key"])
        ann, bob = keys
        mine, theirs = make(d, "same", key=ann), make(d, "same", key=bob)
        secret = make(d, "anns", key=ann)
        check(mine["volumeID"] != theirs["volumeID"])
        check_equal(content(d, mine, "PUT", "file", b"of ann", path="/f").status, 201)
        check_equal(content(d, mine, "GET", "file", path="/f", token=theirs["token"]).status, 404)
        check_equal(content(d, mine, "GET", "file", path="/f", token=mine["token"][:-1]).status, 404)
        check_equal(content(d, mine, "GET", "file", path="/f", token="").status, 401)
        check_equal(content(d, mine, "GET", "file", path="/f", token=bob).status, 404)
        check_equal(content(d, mine, "GET", "file", path="/f", token=ann).body, b"of ann", "a key of the owner opens it, too")
        for path in (mine["volumeID"], "anns", secret["volumeID"]):
            for base in ("/volumes/", "/v1/volumes/"):
                check_equal(ask(d, "GET", base + path, key=bob).status, 404, path)
                check_equal(ask(d, "DELETE", base + path, key=bob).status, 404, path)
        check_equal([x["name"] for x in ask(d, "GET", "/volumes", key=bob).json], ["same"])
        check(all("token" not in x for x in ask(d, "GET", "/volumes", key=bob).json), "no tokens in lists")
        a = ask(d, "POST", "/v2/sandboxes", {"templateID": "small", "volumeMounts": [{"name": "anns", "path": "/v"}]}, key=bob)
        check_equal(a.status, 404, a)
        check_in("anns", a.json["message"])
        a = ask(d, "POST", "/v2/sandboxes", {"templateID": "small", "volumeMounts": [{"name": secret["volumeID"], "path": "/v"}]}, key=bob)
        check_equal(a.status, 404, a)
        box = box_with(d, ("same", "/v"), key=bob)
        good(sh(d, box, "ls /v"), b"")
        # With its tenant everything of it goes.
        check_equal(ask(d, "DELETE", "/v1/tenants/ann").status, 204)
        kept = pathlib.Path(d.state) / "stock/volumes"
        eventually(lambda: not any(p.name.startswith((mine["volumeID"], secret["volumeID"], ".gone")) for p in kept.iterdir()), 10,
                   "the files of a removed tenant are gone")
        check_equal(content(d, mine, "GET", "file", path="/f").status, 404)


def on_disk(d, v):
    "what the answer to an upload says is on the disk: in the file of an image, whatever the kernel still has in memory"
    image, copy = pathlib.Path(d.state) / f"stock/volumes/{v['volumeID']}.img", pathlib.Path(d.dir) / "cut.img"
    for path, more in (("/new/deep/f", {"force": "true"}), ("/g2", {}), ("/g2", {})):
        text = os.urandom(8).hex()
        check_equal(content(d, v, "PUT", "file", text.encode(), path=path, **more).status, 201)
        if image.exists() and shutil.which("debugfs"):
            run("cp", "--sparse=always", str(image), str(copy))
            check_equal(run("debugfs", "-R", "cat " + path, str(copy)).out, text, path)
            check_in("Links: 1 ", run("debugfs", "-R", "stat " + path, str(copy)).out)


def test_volume_files_that_are_replaced():
    "a client that reads or writes a file that a sandbox replaces all the time meets one of them, and nothing gets another name"
    needs_root()
    with shared_node(templates=True) as d:
        v = make(d)
        box = box_with(d, ("data", "/v"))
        good(sh(d, box, "cd /v; echo x > a; echo x > b; echo x > f; (while [ ! -e stop ]; do ln a n; mv n f; ln b n; mv n f; done; echo > gone)"
                        " > /dev/null 2>&1 &", user="root"))
        for _ in range(50):
            a = content(d, v, "GET", "file", path="/f")
            check_equal((a.status, a.body in (b"x\n", b"y")), (200, True), a)
        for _ in range(20):
            check_equal(content(d, v, "PUT", "file", b"y", path="/f").status, 201)
        good(sh(d, box, "cd /v; touch stop; while [ ! -e gone ]; do sleep .1; done; cat a b", user="root"), b"x\nx\n")
        check_equal([e["name"] for e in content(d, v, "GET", "dir", path="/").json], ["a", "b", "f", "gone", "stop"])


def test_volume_list_is_bounded():
    "a list with too many entries, or with paths too long for one answer, is refused with the word for that; any depth can be removed"
    needs_root()
    with shared_node(templates=True) as d:
        v = make(d, bytes=256 * MIB, entries=60000)
        box = box_with(d, ("data", "/home/user/v"), template="host")
        name = "d" * 250
        # No path of these is short enough for the kernel, so they are made from one descriptor to the next.
        down = ("import os\nfd = os.open('/home/user/v', os.O_RDONLY)\nfor _ in range(%d):\n    os.mkdir(n := '%s', dir_fd=fd)\n"
                "    deeper = os.open(n, os.O_RDONLY, dir_fd=fd)\n    os.close(fd)\n    fd = deeper\n"
                "for i in range(%d):\n    os.close(os.open(f'f{i}', os.O_CREAT | os.O_WRONLY, dir_fd=fd))\n")
        good(py(d, box, down % (60, name, 1200)))
        a = content(d, v, "GET", "dir", path="/", depth=64)
        check_equal((a.status, a.json["code"]), (413, "limit"), a.body[:200])
        a = content(d, v, "GET", "dir", path="/", depth=60)
        check_equal((a.status, len(a.json), a.json[-1]["path"]), (200, 60, ("/" + name) * 60))
        check_equal(content(d, v, "DELETE", "path", path="/" + name).status, 204)
        good(py(d, box, down % (2000, "dir", 1)))
        check_equal(content(d, v, "DELETE", "path", path="/dir").status, 204)
        check_equal(content(d, v, "GET", "dir", path="/").json, [])
        good(sh(d, box, "mkdir v/many; cd v/many; for i in $(seq 10001); do : > $i; done"))
        a = content(d, v, "GET", "dir", path="/many")
        check_equal((a.status, a.json["code"]), (413, "limit"), a.body[:200])
        good(sh(d, box, "rm v/many/1"))
        check_equal(len(content(d, v, "GET", "dir", path="/many").json), 10000)


def test_volume_modes():
    "every bit of a mode, any owner and times are set and shown as they are on the disk; a link has no mode of its own"
    needs_root()
    with shared_node(templates=True) as d:
        v = make(d)
        wrote = content(d, v, "PUT", "file", b"x", path="/f", uid=1000, gid=1001, mode=0o6755)
        check_equal((wrote.status, wrote.json["mode"], wrote.json["gid"]), (201, 0o6755, 1001), wrote)
        again = content(d, v, "PUT", "file", b"yy", path="/f")
        check_equal((again.json["mode"], again.json["uid"], again.json["size"]), (0o6755, 1000, 2), again)
        made = content(d, v, "POST", "dir", path="/d", gid=1001, mode=0o3775)
        check_equal((made.status, made.json["mode"]), (201, 0o3775), made)
        box = box_with(d, ("data", "/v"))
        good(sh(d, box, "stat -c '%a %u %g' /v/f /v/d; ln -s f /v/l; ln /v/f /v/g; touch -d '2001-02-03 04:05:06' /v/f", user="root"),
             b"6755 1000 1001\n3775 0 1001\n")
        check_equal(content(d, v, "GET", "path", path="/f").json["mtime"], "2001-02-03T04:05:06.000Z")
        through = content(d, v, "PUT", "file", b"zzz", path="/l")
        check_equal((through.status, through.json["path"], through.json["type"], through.json["size"]), (201, "/l", "file", 3), through)
        check_equal(content(d, v, "GET", "path", path="/l").json["type"], "symlink", "it is written through the link")
        check_equal((content(d, v, "GET", "file", path="/f").body, content(d, v, "GET", "file", path="/g").body), (b"zzz", b"yy"),
                    "the other name keeps the old file")
        a = content(d, v, "PATCH", "path", b'{"mode": 511}', path="/l")
        check_equal((a.status, a.json["code"]), (400, "invalid"), a)
        check_equal(content(d, v, "PATCH", "path", b'{"uid": 7}', path="/l").json["uid"], 7)


def test_volume_outlives_everything():
    "what is in a volume is there after kill -9 of every process and a restart of the node; what was deleted is gone"
    needs_root()
    with small_templates() as templates, node(templates=templates) as (d, _):
        v, gone = make(d), make(d, "gone")
        box = box_with(d, ("data", "/v"), timeout=600)
        good(sh(d, box, "echo kept > /v/f; sync /v/f"))
        check_equal(content(d, v, "PUT", "file", b"through the API", path="/g").status, 201)
        on_disk(d, v)
        for victim in ("front", "keeper", "layers"):
            before = d.children(victim)
            d.kill9(victim)
            eventually(lambda: d.children(victim) not in ([], before), 60, f"{victim} is started again")  # noqa: B023
            check_equal(patiently(lambda: content(d, v, "GET", "file", path="/f")).body, b"kept\n", victim)
        eventually(lambda: sh(d, box, "cat /v/f").out == b"kept\n", 20, "the sandbox is there")
        restart(d)
        eventually(lambda: sh(d, box, "cat /v/g").out == b"through the API", 20, "the sandbox is there again")
        d.stop()
        d.start()
        check_equal(patiently(lambda: content(d, v, "GET", "file", path="/f")).body, b"kept\n")
        check_equal(sorted(x["name"] for x in ask(d, "GET", "/volumes").json), ["data", "gone"])
        check_equal(ask(d, "DELETE", "/volumes/" + gone["volumeID"]).status, 204)
        check_equal(ask(d, "DELETE", "/volumes/" + gone["volumeID"]).status, 404)
        kept = pathlib.Path(d.state) / "stock/volumes"
        eventually(lambda: [p.name.split(".")[0] for p in kept.iterdir()] == [v["volumeID"]], 10, "its files are gone")
        again = make(d, "gone")
        check_equal(content(d, again, "GET", "dir", path="/").json, [])
        # One that is in use by the content API alone can be removed.
        check_equal(ask(d, "DELETE", "/volumes/gone").status, 204)


def test_volume_bad_input():
    "names, places, quotas and counts that cannot be are refused with words that name them"
    needs_root()
    with small_templates() as templates, node(templates=templates, config="volumes:\n  per_tenant: 2\n") as (d, _):
        for body in ({}, [], {"name": ""}, {"name": "a b"}, {"name": "a/b"}, {"name": "ü"}, {"name": "x" * 128}, {"name": 5}, {"name": ".."}):
            check_equal(ask(d, "POST", "/volumes", body).status, 400, body)
        for quota in ({"bytes": -1}, {"bytes": 5}, {"bytes": "1GiB"}, {"entries": 1}, {"bytes": 1 << 60}, {"more": 1}, 7):
            check_equal(ask(d, "POST", "/v1/volumes", {"name": "q", "quota": quota}).status, 400, quota)
        check_equal(ask(d, "POST", "/v1/volumes", {"name": "q", "size": 5}).status, 400)
        many = ask(d, "POST", "/v1/volumes", {"name": "q", "quota": {"bytes": 16 * MIB, "entries": 1 << 30}})
        if many.status == 201:  # a project quota limits both as they are
            check_equal(ask(d, "DELETE", "/volumes/q").status, 204)
        else:
            check_equal(many.status, 400, many)
            check_in("files and directories", many.json["message"])
        check_equal(ask(d, "GET", "/v1/volumes").json, {"volumes": []})
        make(d)
        again = ask(d, "POST", "/volumes", {"name": "data"})
        check_equal(again.status, 409, again)
        make(d, "two")
        third = ask(d, "POST", "/volumes", {"name": "three"})
        check_equal((third.status, third.json["error_code"]), (429, "quota_exceeded"), third)
        for place in ("", "v", "/", "/proc/x", "/dev", "/sys/v", "/a/../b", "/v\n", "/" + "x" * 300, 7, None):
            a = ask(d, "POST", "/v2/sandboxes", {"templateID": "small", "volumeMounts": [{"name": "data", "path": place}]})
            check_equal(a.status, 400, f"{place!r} {a}")
            check_in("path", a.json["message"])
        for list_ in ([{"name": "data", "path": "/v"}, {"name": "two", "path": "/v/x"}],
                      [{"name": "data", "path": "/v"}, {"name": "two", "path": "/v"}],
                      [{"name": "data", "path": f"/v{i}"} for i in range(9)], "data", ["data"], [{}], [{"name": "data"}]):
            check_equal(ask(d, "POST", "/v2/sandboxes", {"templateID": "small", "volumeMounts": list_}).status, 400, list_)
        a = ask(d, "POST", "/sandboxes", {"templateID": "small", "volumeMounts": [{"name": "nope", "path": "/v"}]})
        check_equal(a.status, 404, a)
        a = ask(d, "POST", "/v1/sandboxes", {"template": "small", "hostDirs": [{"name": "nope", "path": "/v"}]})
        check_equal(a.status, 400, a)
        check_in("nope", a.json["message"])
        # A place that is a file, or in the way of a link that leads to the kernel's trees, is refused by the sandbox itself.
        a = ask(d, "POST", "/v2/sandboxes", {"templateID": "small", "volumeMounts": [{"name": "data", "path": "/etc/passwd"}]})
        check_equal(a.status, 400, a)
        # Two places for the same volume, spelled sloppily, are fine.
        box = box_with(d, ("data", "//v//one/"), ("data", "/v/./two"))
        good(sh(d, box, "echo x > /v/one/f; cat /v/two/f"), b"x\n")


def test_volume_host_directory():
    "a directory of the operator's table is there with the host's own files, and read-only where it was said"
    needs_root()
    with small_templates() as templates:
        shared = pathlib.Path(templates) / "shared"
        shared.mkdir()
        (shared / "model").write_text("weights\n")
        with node(templates=templates, config=f"volumes:\n  host_dirs: models={shared}:ro\n") as (d, _):
            a = patient(d, "POST", "/v1/sandboxes", {"template": "small", "hostDirs": [{"name": "models", "path": "/models"}]})
            check_equal(a.status, 201, a)
            good(sh(d, a.json, "cat /models/model"), b"weights\n")
            check(sh(d, a.json, "echo x > /models/x", user="root").code != 0)
            check_equal(sorted(p.name for p in shared.iterdir()), ["model"])


def test_volume_commands():
    "hutch volume makes, shows, fills, reads and removes; hutch create mounts"
    needs_root()
    with shared_node(templates=True) as d:
        name = d.cli("volume", "create", "data", "--quota", "64MiB").stdout.strip()
        check(name.startswith("vol-"), name)
        check_equal(ask(d, "GET", "/v1/capabilities").json["features"]["volumes"], True)
        check_in("data", d.cli("volume", "ls").stdout)
        source = pathlib.Path(d.dir) / "in"
        source.write_bytes(b"from a file\n")
        d.cli("volume", "put", "data", str(source), "/some/where", "--force")
        check_equal(d.cli("volume", "get", "data", "/some/where").stdout, "from a file\n")
        d.cli("volume", "put", "data", "-", "/piped", input="from a pipe\n")
        twice = d.cli("volume", "put", "data", "-", "/piped", input="x", check=False)
        check(twice.returncode != 0 and "exists" in twice.stderr, twice.stderr)
        box = d.cli("create", "--volume", "data:/v:ro", "small").stdout.strip()
        check_equal(d.cli("exec", box, "--", "cat", "/v/piped").stdout, "from a pipe\n")
        check(d.cli("exec", box, "--", "touch", "/v/x", check=False).returncode != 0)
        shown = d.cli("volume", "inspect", "data").stdout
        check_in(box, shown)
        check_in("64 MiB", shown)
        check_equal(json.loads(d.cli("volume", "inspect", name, "--json").stdout)["name"], "data")
        less = d.cli("volume", "resize", "data", "1MiB", check=False)
        check(less.returncode != 0 and "at least" in less.stderr, less.stderr)
        refused = d.cli("volume", "rm", "data", check=False)
        check(refused.returncode != 0 and box in refused.stderr, refused.stderr)
        d.cli("kill", box)
        d.cli("volume", "resize", "data", "96MiB")
        check_in("96 MiB", d.cli("volume", "inspect", "data").stdout)
        d.cli("volume", "rm", "data")
        check_equal(json.loads(d.cli("volume", "ls", "--json").stdout), {"volumes": []})
        for wrong in (["create"], ["create", "a b"], ["create", "x", "--quota", "much"], ["rm", "nope"], ["get", "nope", "/x"], ["resize", "x"],
                      ["resize", "nope", "1GiB"], ["resize", "x", "much"], ["walk"]):
            bad = d.cli("volume", *wrong, check=False)
            check(bad.returncode != 0 and bad.stderr.startswith("hutch: "), f"{wrong} {bad.stderr}")


def test_volume_without_root():
    "an ordinary user's node has volumes; a quota that nothing can enforce is refused with the reason, not ignored"
    with small_templates("user") as templates, node("user", templates=templates) as (d, _):
        v = make(d)
        box, other = box_with(d, ("data", "/v")), box_with(d, ("data", "/v", True))
        good(sh(d, box, "echo shared > /v/f"))
        good(sh(d, other, "cat /v/f; echo x > /v/f 2> /dev/null || echo refused"), b"shared\nrefused\n")
        check_equal(content(d, v, "PUT", "file", b"api", path="/g", uid=1000).status, 201)
        good(sh(d, box, "cat /v/g"), b"api")
        check_equal(content(d, v, "GET", "file", path="/f").body, b"shared\n")
        shown = ask(d, "GET", "/v1/volumes/data").json
        if shown["enforcedBy"] == "none":
            a = ask(d, "POST", "/v1/volumes", {"name": "q", "quota": {"bytes": 64 * MIB}})
            check_equal((a.status, a.json["error_code"]), (501, "quota_unavailable"), a)
            check_in("quota", a.json["message"])
        restart(d)
        check_equal(patiently(lambda: content(d, v, "GET", "file", path="/g")).body, b"api")


def test_volume_strict():
    "where sandboxes have no root, volumes work all the same: for their user, for the content API, for directories of the host"
    needs_root()
    with small_templates() as templates:
        shared = pathlib.Path(templates) / "shared"
        shared.mkdir()
        os.chmod(shared, 0o777)
        with node(templates=templates, config=f"sandboxes:\n  privilege: strict\nvolumes:\n  host_dirs: x={shared}\n") as (d, _):
            v = make(d)
            check_equal(content(d, v, "PUT", "file", b"x", path="/f", uid=1000, mode=0o600).json["uid"], 1000)
            box = box_with(d, ("data", "/v"), hostDirs=[{"name": "x", "path": "/x"}])
            good(sh(d, box, "cat /v/f; echo y > /v/g; echo z > /x/z; id -u"), b"x1000\n")
            check_equal(content(d, v, "GET", "path", path="/g").json["uid"], 1000)
            check_equal((shared / "z").read_text(), "z\n")


def test_volume_many():
    "more volumes than hidden sandboxes: all are served, and a volume's requests share one"
    needs_root()
    with shared_node(templates=True) as d:
        all_ = [make(d, f"v{i}", bytes=16 * MIB) for i in range(12)]
        for round_ in range(2):
            for i, v in enumerate(all_):
                check_equal(content(d, v, "PUT", "file", b"%d" % (i + round_), path="/f").status, 201)
        for i, v in enumerate(all_):
            check_equal(content(d, v, "GET", "file", path="/f").body, b"%d" % (i + 1))
        check_equal(ask(d, "GET", "/v2/sandboxes").json, [], "nobody sees them")
        log = pathlib.Path(d.log_path).read_text()
        check(log.count('"template":"st-00000000"') >= 12, "one each at least")
        a = call(d, {"sandboxID": "x", "envdAccessToken": "y"}, "filesystem.Filesystem/Stat", {"path": "/"})
        check(a.status >= 400, a)
