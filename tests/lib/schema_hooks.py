"""What schemathesis cannot know (loaded by it, see tests/integration/test_openapi.py): names of things that are there, in HUTCH_SCHEMA_IDS,
put into two of three requests, and what would leave the machine or never end."""
import json
import os
import zlib

import schemathesis

IDS = json.loads(os.environ["HUTCH_SCHEMA_IDS"])
# These change what a sandbox is, or end it: they have one of their own.
RISKY = ("/timeout", "/refreshes", "/connect", "/pause", "/resume", "/fork", "/snapshots", "/lifecycle")


def chance(value, n=3):
    """The same for the same value: true in all but one of n cases."""
    return zlib.crc32(repr(value).encode()) % n != 0


def real(path, method):
    """The parameters of a path that are there, by name."""
    if path.startswith(("/volumes", "/v1/volumes", "/volumecontent")):
        return {"id": IDS["volume"]} if method != "delete" or path.startswith("/volumecontent") else {}
    if path.startswith(("/templates", "/v1/templates", "/v2/templates")):
        return {"id": "small", "alias": "small"}
    if path.startswith("/v1/tenants"):
        return {"id": "other"} if method != "delete" else {}
    if path.startswith("/secrets"):
        return {"id": IDS["secret"]} if method != "delete" else {}
    if path.startswith("/v1/secrets"):
        return {"name": "known"} if method != "delete" else {}
    if "sandboxes/{id}" in path and (method != "delete" or path.endswith(("/links", "/tx/{tx}"))):
        return {"id": IDS["risk" if path.endswith(RISKY) else "box"], "number": "1", "tx": IDS["tx"], "port": "80"}
    return {}


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    if path_parameters and chance(path_parameters):
        known = real(context.operation.path, context.operation.method.lower())
        return {k: known.get(k, v) for k, v in path_parameters.items()}
    return path_parameters


@schemathesis.hook
def before_call(_context, case, _kwargs):
    """A stream of events ends only with its sandbox."""
    if case.operation.path.endswith("/events"):
        case.query = {**(case.query or {}), "follow": "false"}


@schemathesis.hook
def map_body(context, body):
    """Templates that are there, and no image from outside."""
    if not isinstance(body, dict):
        return body
    body = dict(body)
    for name in ("templateID", "template"):
        if isinstance(body.get(name), str) and chance(body):
            body[name] = "small"
    if isinstance(body.get("image"), str):
        body["image"] = "127.0.0.1:9/none:1"
    if context.operation.path == "/v1/volumes/{id}" and isinstance(body.get("quota"), dict) and not chance(body, 2):
        body["quota"] = {"entries": 1000}  # 501 where the volume is an image
    if "fromImage" in body and isinstance(body["fromImage"], str):
        body["fromImage"] = "127.0.0.1:9/none:1"
    return body


@schemathesis.deserializer("application/x-ndjson")
def last_line(_context, response):
    """Lines of progress, then the outcome, which is what is looked at."""
    return json.loads(response.content.strip().splitlines()[-1])
