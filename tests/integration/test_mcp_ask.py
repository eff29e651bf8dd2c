"""What a tool asks the person in front of a client, in both eras: answers, refusals, forgeries, and clients that leave in between."""
import http.client
import json
import os

from daemon import sanitized
from hutch_test import check, check_equal, check_in, eventually
from node import needs_root, node
from node_client import ask
from test_mcp import META, good, last, rpc, text

ASKS = {META + "clientCapabilities": {"elicitation": {}}}


def grant(d, box, host="example.org", key=None, **more):
    """A modern call of request_grant by a client that can ask its person."""
    a = rpc(d, "tools/call", {"name": "request_grant", "arguments": {"sandbox": box, "host": host}, "_meta": ASKS, **more}, key=key, modern=True)
    return last(a)


def hosts(d, box):
    return json.dumps(ask(d, "GET", f"/v1/sandboxes/{box}/network").json)


def test_modern():
    "the call ends with what it needs and is repeated with the answer; the state between is good for that call of that tenant alone"
    needs_root()
    with node() as (d, _):
        box = good(d, "create_sandbox", template="host")["sandbox"]
        r = grant(d, box)["result"]
        check_equal((r["resultType"], r["inputRequests"]["confirm"]["method"]), ("input_required", "elicitation/create"))
        check_in("example.org, port 443", r["inputRequests"]["confirm"]["params"]["message"])
        check("example.org" not in hosts(d, box), "opened before the answer")
        state, yes = r["requestState"], {"confirm": {"action": "accept", "content": {}}}
        for wrong in (state + "0", "0" + state, state[:-1], "", "a.b.c", 7, [state], "x" * 100000):
            check_equal(grant(d, box, inputResponses=yes, requestState=wrong)["error"]["code"], -32602, wrong)
        check_equal(grant(d, box, host="evil.test", inputResponses=yes, requestState=state)["error"]["code"], -32602, "for another host")
        check_equal(ask(d, "POST", "/v1/tenants", {"id": "other", "name": "o"}).status, 201)
        other = ask(d, "POST", "/v1/keys", {"tenant": "other", "name": "k", "scopes": ["sandboxes"]}).json["key"]
        check_equal(grant(d, box, key=other, inputResponses=yes, requestState=state)["error"]["code"], -32602, "of another tenant")
        check_equal(grant(d, box, inputResponses=yes)["result"]["resultType"], "input_required", "an answer that was not asked for")
        for answer in ({}, {"confirm": "accept"}, {"confirm": []}):
            check_equal(grant(d, box, inputResponses=answer, requestState=state)["result"]["resultType"], "input_required", answer)
        for action in ("decline", "cancel", 5):
            r = grant(d, box, inputResponses={"confirm": {"action": action}}, requestState=state)["result"]
            check(r["isError"] and "the person" in text(r), r)
        check("example.org" not in hosts(d, box), "opened by a no")
        r = grant(d, box, inputResponses=yes, requestState=state)["result"]
        check_equal(r["structuredContent"]["state"], "granted")
        check_in("example.org", hosts(d, box))
        r = last(rpc(d, "tools/call", {"name": "request_grant", "arguments": {"sandbox": box, "host": "two.test"}}, modern=True))["result"]
        check_equal(r["structuredContent"]["state"], "asked", "a client that cannot ask")


class Legacy:
    """A session whose client can ask, and one call of request_grant in it."""

    def __init__(self, d, box, key=None):
        self.d = d
        hello = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": {"name": "t", "version": "1"}}
        self.session = rpc(d, "initialize", hello, key=key).headers["mcp-session-id"]
        self.c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=60)
        body = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "request_grant", "arguments": {"sandbox": box, "host": "legacy.test"}}}
        self.c.request("POST", "/mcp", json.dumps(body), {"X-API-Key": d.key, "Accept": "application/json, text/event-stream",
                                                          "Mcp-Session-Id": self.session})
        self.stream = self.c.getresponse()

    def hear(self):
        while line := self.stream.readline():
            if line.startswith(b"data: "):
                return json.loads(line[6:])
        return None

    def tell(self, ident, answer, key=None):
        headers = {"Mcp-Session-Id": self.session} if key is None else {}
        return ask(self.d, "POST", "/mcp", {"jsonrpc": "2.0", "id": ident, **answer}, key=key, headers=headers).status


def test_legacy():
    "the request comes on the call's stream and its answer by a POST of its own; a client that leaves or cancels leaves nothing behind"
    needs_root()
    with sanitized() as (hutch, env), node(hutch=hutch, environ=env) as (d, _):
        box = good(d, "create_sandbox", template="host")["sandbox"]
        call = Legacy(d, box)
        asked = call.hear()
        check_equal(asked["method"], "elicitation/create")
        yes = {"result": {"action": "accept", "content": {}}}
        check_equal(call.tell("0" * 32, yes), 202, "an id of no request is taken and dropped")
        check_equal(ask(d, "POST", "/v1/tenants", {"id": "other", "name": "o"}).status, 201)
        other = ask(d, "POST", "/v1/keys", {"tenant": "other", "name": "k", "scopes": ["sandboxes"]}).json["key"]
        check_equal(call.tell(asked["id"], yes, key=other), 202)
        check("legacy.test" not in hosts(d, box), "another tenant answered")
        check_equal(call.tell(asked["id"], yes), 202)
        check_equal(call.hear()["result"]["structuredContent"]["state"], "granted")
        for answer in ({"error": {"code": -1, "message": "no"}}, {"result": {}}, {"result": {"action": "decline"}}, {"result": 7}):
            call = Legacy(d, box)
            call.tell(call.hear()["id"], answer)
            check(call.hear()["result"]["isError"], answer)
        call = Legacy(d, box)
        call.hear()
        body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}}
        ask(d, "POST", "/mcp", body, headers={"Mcp-Session-Id": call.session})
        check(call.hear()["result"]["isError"], "cancelled")
        (front,) = d.children("front")
        before = len(os.listdir(f"/proc/{front}/fd"))
        for _ in range(2):  # more at once than the tenant may have, if those who left counted on
            calls = [Legacy(d, box) for _ in range(40)]
            for call in calls:
                check_equal(call.hear()["method"], "elicitation/create")
                call.c.close()
                call.stream.close()
            eventually(lambda: len(os.listdir(f"/proc/{front}/fd")) <= before + 1, 20, "front let go of those who left")
        check_equal(rpc(d, "tools/list").status, 200)
        check_equal(good(d, "list_sandboxes")["sandboxes"][0]["sandbox"], box)
