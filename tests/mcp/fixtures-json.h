/* fixtures-json.h - fixtures.json, embedded. */
#ifndef HUTCH_TESTS_MCP_FIXTURES_JSON_H
#define HUTCH_TESTS_MCP_FIXTURES_JSON_H
extern const char mcp_fixtures_json[];
extern const unsigned long mcp_fixtures_json_size;
#endif
