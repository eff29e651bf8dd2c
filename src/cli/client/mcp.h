/* mcp.h - the parts of `hutch mcp`: a bridge between an agent's pipe and a node's /mcp. */
#ifndef HUTCH_CLI_CLIENT_MCP_H
#define HUTCH_CLI_CLIENT_MCP_H

#include <jansson.h>
#include <sys/types.h>

#include "cli/client/api.h"

enum { MCP_SESSION_ROOM = 128 };

/* mcp-send.c: sends one message and writes what the node answers to `out`, a record a line: 'M' and a message, or 'S' and the
 * session's name. A request always gets an answer: if the node gives none, this function makes one. root may be NULL: the
 * line is no JSON, and the node says so. */
void mcp_send(const struct api *a, const char *session, const char *line, size_t n, json_t *root, int out);
/* Adds the error as an answer to the message of that id, without a newline. */
void mcp_add_error(struct buf *b, json_t *id, int code, const char *text);

/* mcp-node.c: a node of this user alone that ends with the bridge. */
struct mcp_node {
    pid_t pid; /* 0: there is none */
    int lock;  /* of its place */
    struct api api;
};
#define MCP_NODE_INIT \
    {                 \
        .lock = -1    \
    }
/* Returns when it answers. */
int mcp_node_start(struct mcp_node *n, struct err *err);
/* Ends its sandboxes and then itself. */
void mcp_node_end(struct mcp_node *n);

#endif
