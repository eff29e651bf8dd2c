/* mcp.h - the Model Context Protocol at /mcp: tools and resources for agents, over streamable HTTP, in both of its eras.
 *
 * Legacy (up to 2025-11-25) opens with `initialize` and may name a session; modern (2026-07-28) has neither, and each request
 * carries version and capabilities in its _meta and headers. The era follows from these alone, never from the method.
 * Each POST is one call; it lives until mcp_answer(), mcp_refuse() or a function of tools.c ends it, also when its client
 * left meanwhile (r is NULL then, and the answer is dropped). docs/mcp.md describes what clients see.
 */
#ifndef HUTCH_API_MCP_MCP_H
#define HUTCH_API_MCP_MCP_H

#include <jansson.h>

#include "api/api.h"
#include "base/json.h"

extern const struct api_dialect mcp_dialect; /* route.c */

enum {
    MCP_BODY_MAX = 4 << 20,       /* bytes of one message */
    MCP_TEXT_MAX = 16 << 10,      /* bytes of output that a result shows; the rest has a handle */
    MCP_KEPT_MAX = 256 << 10,     /* bytes of each stream that are kept of a command */
    MCP_FILE_MAX = 1 << 20,       /* bytes of a file that are read or edited as a whole */
    MCP_LIST_MAX = 1000,          /* entries of one list of files */
    MCP_CHANGES_MAX = 200,        /* of a transaction that are shown */
    MCP_CALLS_PER_TENANT_MAX = 64 /* under way at once */
};
enum { MCP_SESSION_NAME_MAX = 32 + 1 };
#define MCP_MODERN_VERSION "2026-07-28"
#define MCP_LEGACY_VERSION "2025-11-25"

/* Codes of JSON-RPC, and those that the modern era adds. */
enum mcp_code {
    MCP_NOT_JSON = -32700,
    MCP_NO_REQUEST = -32600,
    MCP_NO_METHOD = -32601,
    MCP_BAD_PARAMS = -32602,
    MCP_BAD_HEADER = -32020,
    MCP_NO_RESOURCE = -32002,
    MCP_NO_CAPABILITY = -32021,
    MCP_BAD_VERSION = -32022,
    MCP_BUSY = -32000,
};

/* message.c: one JSON-RPC message, as it was read. */
enum mcp_era { MCP_LEGACY, MCP_MODERN };
enum mcp_kind { MCP_REQUEST, MCP_NOTIFICATION, MCP_RESPONSE };
struct mcp_message {
    enum mcp_era era;
    enum mcp_kind kind;
    json_t *id, *params, *meta; /* borrowed; params and meta are objects or NULL */
    const char *method;         /* NULL: a response */
    json_t *capabilities;       /* of the client, modern only */
};
/* The headers that a message must agree with; each may be NULL. */
struct mcp_headers {
    const char *version, *method, *name;
};
struct mcp_fault {
    unsigned status; /* HTTP */
    enum mcp_code code;
    char text[300];
    json_t *data; /* owned; NULL: none */
};
/* Borrows from root. -1: *fault says why; ret->id and ret->era are set as far as they could be read. */
int mcp_message_read(json_t *root, const struct mcp_headers *h, struct mcp_message *ret, struct mcp_fault *fault);
/* Whether a legacy version is one that we speak. */
bool mcp_version_is_legacy(const char *version);

/* One request under way. */
enum { MCP_STATE_MAX = 64 };
struct mcp_tool;
struct mcp_call {
    struct http_req *r; /* NULL once the client left */
    struct api *api;
    struct principal who;
    json_t *root; /* owned */
    struct mcp_message m;
    const struct mcp_tool *tool;
    json_t *args;                       /* of the tool; borrowed, checked against its schema */
    char session[MCP_SESSION_NAME_MAX]; /* the random part of its name; "": none */
    char state[MCP_STATE_MAX];          /* that a repeated call brought back, unsealed; "": none */
    bool confirmed;                     /* a person said yes to what it does */
    bool streams;                       /* the client takes an event stream */
    bool streaming;                     /* and it has begun */
    char used[SANDBOX_ID_MAX];          /* counts as in use while the call runs; "": none */
    struct buf data;                    /* of the tool's structured result */
    struct json j;
    /* The tool's own: what to do when the client cancels or leaves, and its state, freed with the call. */
    void (*cancel)(struct mcp_call *k);
    void *own;
    void (*own_done)(void *own);
    void (*then)(struct mcp_call *k, struct sandbox *b); /* while its sandbox wakes */
    /* Waits for the client's answer to a request of ours (legacy): mcp_ask(). */
    char asked[40];
    void (*told)(struct mcp_call *k, json_t *result);
    uint64_t until; /* and no longer */
    loop_id ping;
    json_t *wants; /* of subscriptions/listen: borrowed from the message */
    struct mcp_call *next, **at;
};

/* answer.c. Both end the call; `result` and `data` are taken. */
void mcp_answer(struct mcp_call *k, json_t *result);
void mcp_refuse(struct mcp_call *k, unsigned status, enum mcp_code code, json_t *data, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Sends a notification on the call's own stream, if its client takes one; params is taken. */
void mcp_notify(struct mcp_call *k, const char *method, json_t *params);
/* If the client asked for it; message may be NULL. */
void mcp_progress(struct mcp_call *k, uint64_t progress, uint64_t total, const char *message);
/* Sends a request of ours to a legacy client and calls `told` with the result; params is taken. NULL: it answered with an
 * error, or not within ten minutes, or cancelled the call. */
void mcp_ask(struct mcp_call *k, const char *method, json_t *params, void (*told)(struct mcp_call *k, json_t *result));
/* Sends a comment on the call's stream, if its client takes one: only so a client that left is noticed. */
void mcp_keep_alive(struct mcp_call *k);
/* A response of the tenant's client to such a request. False: there is none of this id. */
bool mcp_told(const struct tenant *t, json_t *root, const struct mcp_message *m);
/* Cancels the tenant's call of that id in that session; ids are only unique within one. */
void mcp_cancel(const struct tenant *t, const char *session, json_t *id);
/* Tells all listeners of a tenant that wished for it (`filter` is a member of "notifications"). The product's lists never
 * change: for tests of conformance. */
void mcp_tell_listeners(const struct tenant *t, const char *filter, const char *method);
struct mcp_call *mcp_begin(struct api_call *c, json_t *root, const struct mcp_message *m, const char *session);
void mcp_listen(struct mcp_call *k);
/* Bytes as a JSON string: what is not UTF-8, and NUL, become U+FFFD. */
json_t *mcp_text(const char *p, size_t n);

/* inputs.c: what a tool asks of its client. */
/* Whether the client has that capability, e.g. "elicitation"; of a legacy client only that one is known. */
bool mcp_can(const struct mcp_call *k, const char *capability);
/* Modern. Ends the call with what it needs; requests is taken. The client repeats it with the answers, and k->state is `state`
 * then (MCP_STATE_MAX - 1 bytes at most, no '.'). */
void mcp_require(struct mcp_call *k, json_t *requests, const char *state);
/* Modern: the answer of that key, an object, or NULL. */
json_t *mcp_input(const struct mcp_call *k, const char *key);
/* Unseals the state that a repeated call brought. False: it is not ours, and the call has ended. */
bool mcp_state_read(struct mcp_call *k);
/* What elicitation/create asks; properties and required are taken. */
json_t *mcp_form(const char *message, json_t *properties, json_t *required);
/* Asks the person for a yes, in both eras: `told` gets {"action": "accept" | "decline" | "cancel"}, or NULL. */
void mcp_confirm(struct mcp_call *k, const char *message, void (*told)(struct mcp_call *k, json_t *result));

/* prompts.c. False: there is no such prompt of ours. */
bool mcp_own_prompt(struct mcp_call *k, const char *name, json_t *args);
void mcp_complete(struct mcp_call *k);

/* methods.c */
void mcp_dispatch(struct mcp_call *k);

/* tools.c */
typedef void mcp_tool_fn(struct mcp_call *k);
struct mcp_tool {
    const char *name;
    mcp_tool_fn *fn;
    unsigned flags; /* API_CHANGES, API_CONTENTS: what scope its caller needs */
    bool network;   /* useless on a node without a network */
};
/* A set of entries: the product has one, and the program of the conformance tests another one beside it. */
struct mcp_set {
    const char *json; /* {"tools":[...],"resources":[...],"resourceTemplates":[...],"prompts":[...]}; not terminated */
    const unsigned long *json_size;
    const struct mcp_tool *tools;
    size_t ntools;
    /* False: not one of this set. May be NULL. */
    bool (*read)(struct mcp_call *k, const char *uri);
    bool (*prompt)(struct mcp_call *k, const char *name, json_t *args);
    const char *const *methods; /* of the legacy era, answered with {}; ends with NULL */
    const char *const *capabilities;
};
extern const struct mcp_set mcp_own;  /* tools.c */
extern const struct mcp_set mcp_more; /* more.c: empty in the product */
/* The entries of all sets under that key, as a new list; the entries themselves are shared and stay as they are. */
json_t *mcp_entries(const char *key);
/* Why this node cannot do what a tool of that name is for; NULL: it can, or there is no such tool. */
const char *mcp_tool_lacking(const struct mcp_call *k, const char *name);
void mcp_tools_call(struct mcp_call *k);
/* The place for the members of the structured result. */
struct json *mcp_data(struct mcp_call *k);
/* Ends a tool's call. text NULL: the structured result as text. */
void mcp_done(struct mcp_call *k, const char *text);
void mcp_done_with(struct mcp_call *k, json_t *content /* a list; taken */, bool is_error);
/* A failure that a model can act on. */
void mcp_fail(struct mcp_call *k, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Arguments, checked by then: the string or NULL; the number or `otherwise`. */
const char *mcp_arg(const struct mcp_call *k, const char *name);
int64_t mcp_arg_int(const struct mcp_call *k, const char *name, int64_t otherwise);
bool mcp_arg_bool(const struct mcp_call *k, const char *name);
/* The sandbox of the argument "sandbox"; NULL: the call has failed. */
struct sandbox *mcp_sandbox(struct mcp_call *k);
struct sandbox *mcp_sandbox_of(struct mcp_call *k, const char *id);
/* Wakes it if it is paused, then calls on; or the call fails. */
void mcp_awake(struct mcp_call *k, struct sandbox *b, void (*then)(struct mcp_call *k, struct sandbox *b));

/* output.c: output that did not fit into an answer. Copies the bytes; ret gets the handle. */
enum { MCP_HANDLE_MAX = 24 };
void mcp_output_keep(const struct mcp_call *k, const char *sandbox, const struct buf *text, char ret[MCP_HANDLE_MAX]);
const struct buf *mcp_output_find(const struct mcp_call *k, const char *handle);
void mcp_outputs_each(const struct mcp_call *k,
                      void (*fn)(void *arg, const char *sandbox, const char *handle, size_t n), void *arg);
/* Shows at most MCP_TEXT_MAX bytes of it: beginning and end, with a line between them that names the handle. */
void mcp_output_shorten(const struct buf *text, const char *handle, struct buf *out);

/* resources.c */
void mcp_resources_list(struct mcp_call *k);
void mcp_resources_read(struct mcp_call *k);

/* The tools. */
mcp_tool_fn mcp_create_sandbox, mcp_list_sandboxes, mcp_kill_sandbox, mcp_expose_port,
    mcp_request_grant;                                                          /* tool-sandbox.c */
mcp_tool_fn mcp_run, mcp_read_output;                                           /* tool-run.c */
mcp_tool_fn mcp_run_code;                                                       /* tool-code.c */
mcp_tool_fn mcp_read_file, mcp_write_file, mcp_edit_file, mcp_list_files;       /* tool-files.c */
mcp_tool_fn mcp_search;                                                         /* tool-search.c */
mcp_tool_fn mcp_fork, mcp_snapshot, mcp_history, mcp_undo, mcp_try, mcp_commit; /* tool-state.c */
/* Reads a file as a whole, MCP_FILE_MAX bytes at most; `then` owns nothing of it. text NULL: it failed, and said so. */
void mcp_slurp(struct mcp_call *k, struct sandbox *b, const char *path,
               void (*then)(struct mcp_call *k, const struct buf *bytes, bool whole));
/* Runs a program of the node's own choice in the sandbox and collects its output. */
struct session_end;
struct session_output;
void mcp_exec(struct mcp_call *k, struct sandbox *b, const char *const *argv, uint64_t timeout_s,
              void (*then)(struct mcp_call *k, const struct session_output *o, const struct session_end *end));

#endif
