"""Hostile clients of the Daytona dialect's WebSockets, and users of a sandbox who want what its toolbox writes. front is the sanitizer build."""
import base64
import contextlib
import os
import random
import socket
import struct

from daemon import Daemon, sanitized
from hutch_test import check, check_equal, check_in, eventually
from node_client import ask, create, sh
from websocket import WebSocket

CHANNEL = "/daytona/socket.io/?EIO=4&transport=websocket"
CONNECTING_MAX = 100


@contextlib.contextmanager
def world():
    with sanitized() as (hutch, environ), Daemon(hutch=hutch, environ=environ) as d:
        front = d.children("front")
        yield d
        check_equal(d.children("front"), front, d.log())


def toolbox(d, box, method, path, body=None):
    return ask(d, method, f"/daytona/toolbox/{box['sandboxID']}/process{path}", body, headers={"Authorization": f"Bearer {d.key}"}, key="")


def frame(opcode, data, n=None):
    n = len(data) if n is None else n
    head = bytes([opcode, 0x80 | n]) if n < 126 else struct.pack(">BBH", opcode, 0xfe, n) if n < 65536 else struct.pack(">BBQ", opcode, 0xff, n)
    return head + bytes(4) + data


def test_frames_of_clients_without_a_key():
    "the event channel without a key: frames of any shape, before and after its close, end at most their own connection"
    with world() as d:
        chance = random.Random(1)
        for i in range(150):
            w = WebSocket(d.port, CHANNEL, {"Host": "127.0.0.1"})
            check_equal(w.status, 101)
            data = frame(0x81, chance.choice([b"40{}", b"\xff\xff", b"2probe", b"40/x", b""])) if i % 3 else b""
            for _ in range(chance.randrange(1, 6)):
                n = chance.choice([0, 1, 2, 125, 126, 400, 4096, 70000])
                data += frame(chance.choice([0x00, 0x01, 0x08, 0x80, 0x81, 0x82, 0x88, 0x89, 0x8a, 0x8f, 0xc1]), os.urandom(n), chance.choice([n, n, n, 1 << 40, 1 << 63]))
            with contextlib.suppress(OSError):
                w.s.sendall(data)
            if i % 2:
                w.s.shutdown(socket.SHUT_WR)
            w.s.close()
        # Clients without a key take no place from clients that show one.
        silent = [WebSocket(d.port, CHANNEL, {"Host": "127.0.0.1"}) for _ in range(CONNECTING_MAX + 5)]
        try:
            check_in("0{", silent[0].recv())
            try:
                silent[0].recv()
                check(False, "the oldest is still there")
            except ConnectionError as e:
                check_in("too many clients", str(e))
            w = WebSocket(d.port, CHANNEL, {"Host": "127.0.0.1"})
            w.recv()
            w.send('40{"token":"%s"}' % d.key)
            check_in("sid", w.recv())
            w.s.close()
        finally:
            for s in silent:
                s.s.close()


def test_a_directory_that_another_user_made():
    "a directory for sessions and terminals that another user of the sandbox made, or a link in its place, is not used"
    with world() as d:
        box = create(d)
        who = toolbox(d, box, "POST", "/execute", {"command": "id -un"}).json["result"].strip()
        other = "root" if who != "root" else "user"
        for plant in ("mkdir -m 777 /tmp/.daytona && mkdir -m 777 /tmp/.daytona/p-t /tmp/.daytona/s-s && ln -s /tmp/aim /tmp/.daytona/p-t/size",
                      "mkdir -m 777 /tmp/mine && ln -s /tmp/mine /tmp/.daytona"):
            check_equal(sh(d, box, plant, user=other).code, 0)
            for method, path, body in (("POST", "/session", {"sessionId": "a"}), ("POST", "/pty", {"id": "b"})):
                a = toolbox(d, box, method, path, body)
                check_equal(a.status, 409, a)
                check_in("belongs to another user", a.json["message"])
            for method, path, body in (("POST", "/pty/t/resize", {"cols": 9, "rows": 9}), ("GET", "/session/s", None)):
                check_equal(toolbox(d, box, method, path, body).status, 404)
            check(sh(d, box, "test -e /tmp/aim").code != 0)
            check_equal(sh(d, box, "rm -rf /tmp/.daytona /tmp/mine", user=other).code, 0)
        check_equal(toolbox(d, box, "POST", "/session", {"sessionId": "a"}).status, 201)
        check_equal(toolbox(d, box, "POST", "/pty", {"id": "b"}).status, 201)


def test_clients_of_terminals_that_leave():
    "clients of a terminal and of logs who leave at any moment, read nothing or flood, while the sandbox ends"
    with world() as d:
        box = create(d)
        headers = {"Host": "127.0.0.1", "Authorization": f"Bearer {d.key}"}
        root = f"/daytona/toolbox/{box['sandboxID']}/process"
        check_equal(toolbox(d, box, "POST", "/session", {"sessionId": "s"}).status, 201)
        command = toolbox(d, box, "POST", "/session/s/exec", {"command": "yes abcdefgh", "runAsync": True}).json["cmdId"]
        logs = f"{root}/session/s/command/{command}/logs?follow=true"
        kept = []
        for i in range(12):
            with socket.create_connection(("127.0.0.1", d.port)) as s:  # left before, or while, it is answered
                path = logs if i % 2 else f"{root}/pty/create-connect?id=gone{i}"
                s.sendall((f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {d.key}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                           f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n\r\n").encode())
                s.settimeout(0.02 * i)
                with contextlib.suppress(OSError):
                    s.recv(10)
        for i in range(3):
            w = WebSocket(d.port, f"{root}/pty/create-connect?id=t{i}", headers)
            check_equal(w.status, 101)
            w.send("yes\n" * 1000)
            kept += [w, WebSocket(d.port, f"{root}/pty/t{i}/connect", headers), WebSocket(d.port, logs, headers)]
        kept[1].send("x" * 60000)
        kept[4].s.close()
        check_equal(toolbox(d, box, "DELETE", "/session/s").status, 204)
        check_equal(ask(d, "DELETE", f"/daytona/sandbox/{box['sandboxID']}", headers=headers, key="").status, 200)
        eventually(lambda: ask(d, "GET", f"/daytona/sandbox/{box['sandboxID']}", headers=headers, key="").status == 404, seconds=30)
        for w in kept:
            w.s.close()
        check_equal(ask(d, "GET", "/daytona/sandbox", headers=headers, key="").status, 200)
