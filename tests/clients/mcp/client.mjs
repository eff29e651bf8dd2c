// client.mjs - @modelcontextprotocol/client calls tools by a list of steps (tests/integration/test_mcp_clients.py), and prints what it saw.
import { readFileSync } from "node:fs";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

const steps = JSON.parse(readFileSync(process.env.MCP_STEPS, "utf8"));
const era = process.env.MCP_ERA;
const client = new Client({ name: "hutch-test", version: "1" }, {
  capabilities: { elicitation: { form: {} } },
  versionNegotiation: { mode: era === "legacy" ? "legacy" : { pin: "2026-07-28" } },
});
let asked = 0;
client.setRequestHandler("elicitation/create", async () => {
  asked++;
  return { action: "accept", content: {} };
});
const transport = process.env.MCP_URL
  ? new StreamableHTTPClientTransport(new URL(process.env.MCP_URL), { requestInit: { headers: { Authorization: `Bearer ${process.env.MCP_KEY}` } } })
  : new StdioClientTransport({ command: process.env.MCP_COMMAND, args: ["mcp"], env: { ...process.env } });
await client.connect(transport);
const { tools } = await client.listTools();
const kept = {};
const results = [];
for (const { tool, args, keep } of steps) {
  const filled = JSON.parse(JSON.stringify(args).replace(/\$(\w+)/g, (_, name) => kept[name] ?? `$${name}`));
  const r = await client.callTool({ name: tool, arguments: filled });
  for (const [name, path] of Object.entries(keep ?? {})) kept[name] = path.split(".").reduce((v, p) => v?.[p], r.structuredContent ?? {});
  results.push({ tool, error: r.isError === true, text: r.content[0].text, data: r.structuredContent ?? null });
}
const { resources } = await client.listResources();
await client.close();
console.log(JSON.stringify({ tools: tools.map((t) => t.name), results, resources: resources.length, asked }));
