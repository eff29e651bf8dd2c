/* session.h - the names of legacy sessions. */
#ifndef HUTCH_API_MCP_SESSION_H
#define HUTCH_API_MCP_SESSION_H

#include "api/api.h"

enum { MCP_SESSION_MAX = 32 + 1 + 64 + 1 };
/* The name says whether the client can ask its person something. */
void mcp_session_make(const struct api *api, const struct tenant *t, bool elicits, char ret[MCP_SESSION_MAX]);
bool mcp_session_elicits(const char *name);

#endif
