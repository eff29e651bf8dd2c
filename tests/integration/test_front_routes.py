"""Every route of a node, asked by those who may not and with what is no request: front, in its sanitizer build, answers and lives."""
import json
import re

from daemon import TOP, lives, sanitized
from hutch_test import check, check_equal, check_in
from node import needs_root, node
from node_client import ENVD, ask, create, to_box
from small import small_templates

MALFORMED = (b"", b"x", b"{", b"[]", b"null", b'"\\u0000"', b"\xff\xfe", b'{"a":1,"a":2}', b"[" * 100 + b"]" * 100,
             b'{"timeout":{},"name":[],"command":5,"tags":"x","public":7,"scopes":1,"quota":[],"to":"x","decision":1,"value":[],"rules":{}}')


def routes():
    """Of the control plane: (method, pattern, what is said about it). A unit test compares openapi.json with the table in the program."""
    paths = json.loads((TOP / "docs/openapi.json").read_text())["paths"]
    return [(m.upper(), p, op) for p, methods in paths.items() for m, op in methods.items()]


def agent_paths():
    """Of a sandbox's agent: RPC methods, and the other paths that its program compares with."""
    text = (TOP / "src/api/e2b/envd.c").read_text()
    rpcs = re.findall(r'\{"(/[\w.]+/\w+)", ', text)
    inside = re.search(r"control_paths\[\] = \{(.*?)\};", text, re.S)[1]
    return rpcs, sorted({*re.findall(r'strcmp\(r->path, "(/[^"]*)"\)', text), *re.findall(r'"(/[^"]*)"', inside)})


class Walk:
    """A node, and the process that must be the same at the end."""

    def __init__(self, d):
        self.d, (self.front,) = d, d.children("front")
        self.asked = 0

    def ask(self, method, path, body=None, **more):
        a = ask(self.d, method, path, body, **more)
        self.asked += 1
        check(lives(self.front), f"front died of {method} {path} {body!r} {more}:\n{self.d.log()}")
        check(a.status < 500 or a.status == 503, (method, path, body, more, a))
        if a.status >= 400 and method != "HEAD" and ENVD != more.get("port"):
            check_in("message", a.json.get("error", a.json), (method, path))  # JSON-RPC has it inside
        return a


def fill(pattern, ids):
    """The pattern with parameters that are there, and a path that needs no stream."""
    path = re.sub(r"\{(\w+)\}", lambda m: ids.get((pattern.split("/{")[0], m[1])) or ids.get(m[1], "x"), pattern)
    return path + ("?follow=false" if path.endswith("/events") else "")


def new_key(d, tenant, *scopes):
    a = ask(d, "POST", "/v1/keys", {"tenant": tenant, "name": "walk", "scopes": scopes})
    check_equal(a.status, 201, a)
    return a.json["key"]


def things(d):
    """A sandbox and a volume, and what paths call them."""
    box = create(d, templateID="small")
    volume = ask(d, "POST", "/volumes", {"name": "walked"}).json
    ids = {"id": box["sandboxID"], "name": "walked", "tx": "0" * 24, "number": "1", "port": "80", "alias": "small", "hash": "0" * 64,
           "build": "0" * 32}
    for where in ("/volumes", "/v1/volumes", "/volumecontent"):
        ids[where, "id"] = volume["volumeID"]
    for where in ("/templates", "/v2/templates", "/v1/templates"):
        ids[where, "id"] = "small"
    return box, volume, ids


def walk_unknown(w, ids):
    """Requests without a key, and with one that the node does not know."""
    for key in ("", "e2b_" + "0" * 40):
        for method, pattern, op in routes():
            for body in (None, b"x", b"{}"):
                a = w.ask(method, fill(pattern, ids), body, key=key)
                if pattern.startswith("/volumecontent/"):
                    check_equal(a.status, 404 if key else 401, (method, pattern, a))
                elif op.get("security") != []:
                    check_equal(a.status, 401, (method, pattern, a))


def walk_foreign(w, ids):
    """With a key of another tenant."""
    key = new_key(w.d, "other", "sandboxes", "templates")
    for method, pattern, op in routes():
        if "{" not in pattern or pattern.startswith(("/templates", "/v2/templates", "/v1/templates", "/v1/secrets", "/secrets")):
            continue
        for body in (None, *MALFORMED[2:4], b'{"timeout":5,"command":"true"}'):
            a = w.ask(method, fill(pattern, ids), body, key=key)
            check(a.status in (400, 401, 403, 404), (method, pattern, body, a))
            check(op["x-hutch-scopes"] != ["admin"] or a.status == 403, (method, pattern, a))


def walk_readers(w, ids):
    """With keys that may only read, whatever else they may."""
    for scopes in (("read",), ("read", "sandboxes", "templates"), ("read", "files"), ("admin", "read")):
        key = new_key(w.d, "default", *scopes)
        for method, pattern, op in routes():
            for body in (None, b"{}", b"{"):
                a = w.ask(method, fill(pattern, ids), body, key=key)
                lacks = op["x-hutch-access"] == "change" or (op["x-hutch-access"] == "contents" and "files" not in scopes)
                if op.get("security") != [] and lacks:
                    check_equal(a.status, 403, (scopes, method, pattern, a))
                elif op["x-hutch-scopes"] == ["admin"]:
                    check_equal(a.status == 403, "admin" not in scopes, (scopes, method, pattern, a))


def walk_malformed(w, ids):
    """With the operator's key, with bodies that are none. Routes that take no body do what they are asked to: those come last."""
    taking = [r for r in routes() if "requestBody" in r[2]]
    others = [r for r in routes() if "requestBody" not in r[2]]
    for method, pattern, _ in taking + sorted(others, key=lambda r: (r[0] == "DELETE", r[1] == "/v1/stop-all")):
        for body in MALFORMED:
            w.ask(method, fill(pattern, ids), body)


def walk_agent(w, box):
    """The agent of a sandbox: without a token, with a wrong one, with the right one and a body that is none."""
    rpcs, plain = agent_paths()
    check(len(rpcs) >= 17 and "/files" in plain and "/init" in plain, (rpcs, plain))
    for path in rpcs + plain:
        for token in (False, "wrong", True):
            for method, kind in (("POST", "application/json"), ("POST", "application/connect+json"), ("GET", "x/y"), ("PUT", "x/y")):
                for body in (*MALFORMED, b"\0\0\0\0\5{}{}{", b"\2\0\0\0\0", b"\0\xff\xff\xff\xff"):
                    w.ask(method, path, body, key="", kind=kind, headers=to_box(box, token=token))


def test_every_route_answers():
    "every route, without a key, with foreign, read-only and unknown keys and with malformed bodies: answered, and front is the same"
    needs_root()
    with small_templates() as templates, sanitized() as (hutch, environ), node(templates=templates, hutch=hutch, environ=environ) as (d, _):
        box, volume, ids = things(d)
        check(ask(d, "POST", "/v1/tenants", {"id": "other", "name": "other"}).status in (200, 201))
        w = Walk(d)
        w.ask("PUT", "/volumecontent/x/file", b"x", key="")
        w.ask("PUT", f"/volumecontent/{volume['volumeID']}/file?path=/f", b"x", key="")
        walk_unknown(w, ids)
        walk_foreign(w, ids)
        walk_readers(w, ids)
        walk_agent(w, box)
        walk_malformed(w, ids)
        check_equal(d.children("front"), [w.front], d.log())
        check(w.asked > 10 * len(routes()), w.asked)
