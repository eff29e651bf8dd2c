/* tool-search.c - finds text in files, or files by name, with the sandbox's own grep and find. */
#include <string.h>

#include "api/mcp/mcp.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "sandboxes/session.h"

enum { SEARCH_S = 60, SEARCH_STANDARD = 100 };

static void mcp_search_on_ended(struct mcp_call *k, const struct session_output *o, const struct session_end *end)
{
    const struct buf *out = &o->kept[EXEC_STDOUT], *wrong = &o->kept[EXEC_STDERR];
    size_t most = (size_t)mcp_arg_int(k, "limit", SEARCH_STANDARD), n = 0;
    /* Both programs report what they could not read, and go on; grep ends with 1 if it found nothing. */
    if (!out->n && (!end->exec->exited || end->exec->code > 1)) {
        mcp_fail(k, "the search failed: %.400s", wrong->n ? buf_str(wrong) : "grep or find ended early");
        return;
    }
    struct json *j = mcp_data(k);
    json_arr(j, "matches");
    for (const char *p = buf_str(out), *e; *p; p = e + 1) {
        e = strchr(p, '\n');
        if (!e)
            break; /* cut off */
        if (n++ >= most)
            continue;
        _cleanup_free_ char *line = xstrndup(p, (size_t)(e - p) < 500 ? (size_t)(e - p) : 500);
        json_str(j, NULL, line);
    }
    json_end_arr(j);
    json_u64(j, "found", n);
    json_bool(j, "truncated", n > most || o->omitted[EXEC_STDOUT] > 0);
    mcp_done(k, NULL);
}

static void mcp_search_in(struct mcp_call *k, struct sandbox *b)
{
    const char *text = mcp_arg(k, "text"), *glob = mcp_arg(k, "glob"), *path = mcp_arg(k, "path");
    _cleanup_free_ char *include = glob ? xasprintf("--include=%s", glob) : NULL;
    path = path ? path : ".";
    const char *const find[] = {"find", path, "-name", glob, NULL};
    const char *grep[8] = {"grep", mcp_arg_bool(k, "regex") ? "-rnIE" : "-rnIF"};
    size_t n = 2;
    if (include)
        grep[n++] = include;
    grep[n++] = "-e";
    grep[n++] = text;
    grep[n++] = "--";
    grep[n++] = path;
    mcp_exec(k, b, text ? (const char *const *)grep : find, SEARCH_S, mcp_search_on_ended);
}

void mcp_search(struct mcp_call *k)
{
    const char *path = mcp_arg(k, "path");
    if (!mcp_arg(k, "text") && !mcp_arg(k, "glob")) {
        mcp_fail(k, "search: give 'text' to look for in files, 'glob' for names of files, or both");
        return;
    }
    if (path && path[0] == '-') {
        mcp_fail(k, "search: 'path' must not begin with '-'; write ./%.100s", path);
        return;
    }
    struct sandbox *b = mcp_sandbox(k);
    if (b)
        mcp_awake(k, b, mcp_search_in);
}
