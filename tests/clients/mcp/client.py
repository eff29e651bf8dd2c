"""The Python package mcp calls tools by a list of steps (tests/integration/test_mcp_clients.py), and prints what it saw."""
import asyncio
import json
import os
import re

import httpx2
import mcp.types as types
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

asked = 0


async def elicit(_context, _params):
    global asked
    asked += 1
    return types.ElicitResult(action="accept", content={})


def value(data, path):
    for part in path.split("."):
        data = data[int(part) if isinstance(data, list) else part]
    return data


async def walk(client):
    steps = json.load(open(os.environ["MCP_STEPS"], encoding="utf-8"))
    kept, results = {}, []
    tools = [t.name for t in (await client.list_tools()).tools]
    for step in steps:
        args = json.loads(re.sub(r"\$(\w+)", lambda m: kept.get(m[1], m[0]), json.dumps(step["args"])))
        r = await client.call_tool(step["tool"], args)
        for name, path in step.get("keep", {}).items():
            kept[name] = value(r.structured_content, path)
        results.append({"tool": step["tool"], "error": bool(r.is_error), "text": r.content[0].text, "data": r.structured_content})
    resources = (await client.list_resources()).resources
    print(json.dumps({"tools": tools, "results": results, "resources": len(resources), "asked": asked}))


async def main():
    mode = "legacy" if os.environ["MCP_ERA"] == "legacy" else "2026-07-28"
    if "MCP_URL" in os.environ:
        headers = {"Authorization": f"Bearer {os.environ['MCP_KEY']}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            async with Client(streamable_http_client(os.environ["MCP_URL"], http_client=http), mode=mode, elicitation_callback=elicit) as client:
                await walk(client)
    else:
        server = StdioServerParameters(command=os.environ["MCP_COMMAND"], args=["mcp"], env=dict(os.environ))
        async with Client(server, mode=mode, elicitation_callback=elicit) as client:
            await walk(client)


asyncio.run(main())
