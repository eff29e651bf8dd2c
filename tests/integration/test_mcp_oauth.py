"""Tokens of a real OAuth issuer at /mcp: whose they are, what they allow, which are refused, and what happens when keys change."""
import base64
import contextlib
import json
import subprocess
import urllib.parse
import urllib.request

from daemon import free_port, sanitized
from hutch_test import check, check_equal, check_in, skip
from node import needs_root, node
from node_client import ask
from packages import CLIENTS, mcp_node, mcp_packages

AUDIENCE = "https://hutch.example/mcp"


@contextlib.contextmanager
def issuer(port):
    """npm oidc-provider, with keys that no earlier one had."""
    npm, why = mcp_packages("npm")
    if not npm:
        skip(f"the npm registry cannot be reached: {' '.join(why.split())[-200:]}")
    (npm / "issuer.mjs").write_text((CLIENTS / "mcp/issuer.mjs").read_text())
    p = subprocess.Popen([mcp_node(npm), npm / "issuer.mjs", str(port), AUDIENCE], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        lines = []
        while not lines or b"ready" not in lines[-1]:
            lines.append(p.stdout.readline())
            check(lines[-1], b"".join(lines))
        yield
    finally:
        p.kill()
        p.communicate()


def token(port, client="RS256.default", scope="hutch:sandboxes", resource=AUDIENCE):
    form = {"grant_type": "client_credentials", "scope": scope, "resource": resource}
    basic = base64.b64encode(f"{urllib.parse.quote(client)}:secret".encode()).decode()
    r = urllib.request.Request(f"http://127.0.0.1:{port}/token", urllib.parse.urlencode(form).encode(), {"Authorization": f"Basic {basic}"})
    with urllib.request.urlopen(r, timeout=20) as answer:
        return json.load(answer)["access_token"]


def call(d, bearer, tool="list_sandboxes", path="/mcp", **args):
    headers = {"Accept": "application/json", "Authorization": f"Bearer {bearer}"} if bearer else {}
    return ask(d, "POST", path, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": args}},
               key="", headers=headers)


def refused(a, status, error, part):
    check_equal(a.status, status, a)
    challenge = a.headers["www-authenticate"]
    check_in('resource_metadata="https://hutch.example/.well-known/oauth-protected-resource/mcp"', challenge)
    check_equal(error, error and challenge.partition('error="')[2].partition('"')[0])
    check_in(part, a.json["message"])


def changed(part, old, new):
    """A part of a token with other bytes in it."""
    plain = base64.urlsafe_b64decode(part + "==")
    check_in(old, plain)
    return base64.urlsafe_b64encode(plain.replace(old, new)).decode().rstrip("=")


def config(port):
    return f"oauth:\n  issuer: http://127.0.0.1:{port}\n  jwks: http://127.0.0.1:{port}/jwks\n  audience: {AUDIENCE}\n"


def test_tokens():
    "a token of the issuer is a caller with its tenant and scopes; any other is refused, and the answer says why"
    needs_root()
    port = free_port()
    with issuer(port), node(config=config(port)) as (d, _):
        check_equal(ask(d, "POST", "/v1/tenants", {"id": "other", "name": "o"}).status, 201)
        refused(call(d, None), 401, None, "token of its issuer")
        for path in ("/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"):
            a = ask(d, "GET", path, key="")
            check_equal((a.json["resource"], a.json["authorization_servers"]), (AUDIENCE, [f"http://127.0.0.1:{port}"]))
        for alg in ("RS256", "ES256", "EdDSA"):
            a = call(d, token(port, f"{alg}.default"))
            check_equal((a.status, a.json["result"]["isError"]), (200, False), (alg, a))
        good = token(port)
        box = call(d, good, "create_sandbox", template="host").json["result"]["structuredContent"]["sandbox"]
        check_in(box, json.dumps(call(d, d.key).json), "a key and a token of the same tenant see the same")
        check(box not in json.dumps(call(d, token(port, "RS256.other")).json), "another tenant sees it")
        reader = token(port, scope="hutch:read mail")
        check_in(box, json.dumps(call(d, reader).json))
        check_in("may only read", json.dumps(call(d, reader, "run", sandbox=box, command="true").json))
        refused(call(d, token(port, scope="mail")), 403, "insufficient_scope", "hutch:sandboxes")
        refused(call(d, token(port, resource="https://elsewhere.example/mcp")), 401, "invalid_token", "audience")
        refused(call(d, token(port, "RS256.none-such")), 401, "invalid_token", 'no tenant "none-such"')
        refused(call(d, token(port, "RS256.-")), 401, "invalid_token", "hutch_tenant")
        refused(call(d, token(port, "PS256.default")), 401, "invalid_token", "RS256, ES256 or EdDSA")
        head, body, signature = good.split(".")
        forged = base64.urlsafe_b64encode(base64.urlsafe_b64decode(body + "==").replace(b'"default"', b'"other"')).decode().rstrip("=")
        refused(call(d, f"{head}.{forged}.{signature}"), 401, "invalid_token", "signature")
        none = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
        refused(call(d, f"{none}.{body}."), 401, "invalid_token", "must be signed")
        refused(call(d, f"{head}.{body}.{'A' * 9000}"), 401, "invalid_token", "8 KiB")
        check_equal(ask(d, "GET", "/v1/approvals", key="", headers={"Authorization": f"Bearer {good}"}).status, 401, "a token for /mcp alone")


def test_rotation():
    "new keys are fetched when a token names one; old keys are good while the issuer is away, and none are without it"
    needs_root()
    port = free_port()
    with sanitized() as (hutch, env), node(hutch=hutch, environ=env, config=config(port)) as (d, _):
        with issuer(port):
            old = token(port)
            check_equal(call(d, old).status, 200)
        check_equal(call(d, old).status, 200, "the issuer is away, its keys are known")
        head, body, signature = old.split(".")
        unknown = changed(head, b'"kid":"', b'"kid":"x')
        check_equal(call(d, f"{unknown}.{body}.{signature}").status, 503, "a key that may be new, and no issuer to ask")
        with issuer(port):
            check_equal(call(d, token(port)).status, 200, "a new key")
            refused(call(d, old), 401, "invalid_token", "does not publish")
            new = token(port)
        d.kill9("front")
        a = call(d, new)
        while a.status in (0, 502):
            a = call(d, new)
        check_equal(a.status, 503, a)
        check_in("cannot be fetched", a.json["message"])
        check("retry-after" in a.headers, a.headers)
        head, body, signature = new.split(".")
        elsewhere = changed(body, b"hutch.example", b"other.example")
        refused(call(d, f"{head}.{elsewhere}.{signature}"), 401, "invalid_token", "audience")
        check_equal(call(d, d.key).status, 200, "keys of the node need no issuer")
