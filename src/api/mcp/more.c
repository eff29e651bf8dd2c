/* more.c - the product has no entries but its own; the program of the conformance tests has others in this place. */
#include "api/mcp/mcp.h"

const struct mcp_set mcp_more = {0};
