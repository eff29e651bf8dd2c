/* tools-json.h - tools.json, embedded: names, descriptions and schemas as clients see them. */
#ifndef HUTCH_API_MCP_TOOLS_JSON_H
#define HUTCH_API_MCP_TOOLS_JSON_H
extern const char mcp_tools_json[];
extern const unsigned long mcp_tools_json_size;
#endif
