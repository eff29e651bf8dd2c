/* output.c - keeps the output that did not fit into an answer, for a while: the newest of each tenant, in memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/mcp/mcp.h"
#include "base/random.h"

enum { OUTPUTS_MAX = 64, OUTPUTS_PER_TENANT_MAX = 16 };

struct output {
    char handle[MCP_HANDLE_MAX], sandbox[SANDBOX_ID_MAX], tenant[40];
    struct buf text;
    uint64_t made; /* counts up; 0: the place is free */
};
static struct output outputs[OUTPUTS_MAX]; /* front has one loop */
static uint64_t last;

static bool mcp_output_is_of(const struct output *o, const struct mcp_call *k)
{
    return o->made && strcmp(o->tenant, k->who.tenant->id) == 0;
}

/* A free place; else the tenant's oldest if it has its share; else the oldest of all. */
static struct output *mcp_output_place(const struct mcp_call *k)
{
    struct output *oldest = &outputs[0], *own = NULL, *spare = NULL;
    size_t n = 0;
    for (struct output *o = outputs; o < outputs + OUTPUTS_MAX; o++) {
        if (!o->made)
            spare = o;
        if (o->made < oldest->made)
            oldest = o;
        if (!mcp_output_is_of(o, k))
            continue;
        n++;
        if (!own || o->made < own->made)
            own = o;
    }
    return n >= OUTPUTS_PER_TENANT_MAX ? own : spare ? spare : oldest;
}

void mcp_output_keep(const struct mcp_call *k, const char *sandbox, const struct buf *text, char ret[MCP_HANDLE_MAX])
{
    struct output *o = mcp_output_place(k);
    char number[17];
    buf_done(&o->text);
    random_hex(number, 8);
    (void)snprintf(o->handle, sizeof o->handle, "out-%s", number);
    (void)snprintf(o->sandbox, sizeof o->sandbox, "%s", sandbox);
    (void)snprintf(o->tenant, sizeof o->tenant, "%s", k->who.tenant->id);
    buf_add(&o->text, text->p, text->n);
    o->made = ++last;
    memcpy(ret, o->handle, MCP_HANDLE_MAX);
}

const struct buf *mcp_output_find(const struct mcp_call *k, const char *handle)
{
    for (const struct output *o = outputs; o < outputs + OUTPUTS_MAX; o++)
        if (mcp_output_is_of(o, k) && strcmp(o->handle, handle) == 0)
            return &o->text;
    return NULL;
}

void mcp_outputs_each(const struct mcp_call *k,
                      void (*fn)(void *arg, const char *sandbox, const char *handle, size_t n), void *arg)
{
    for (const struct output *o = outputs; o < outputs + OUTPUTS_MAX; o++)
        if (mcp_output_is_of(o, k))
            fn(arg, o->sandbox, o->handle, o->text.n);
}

/* Moves a cut to the beginning of a character, so that no half of one is shown. */
static size_t mcp_output_cut(const struct buf *text, size_t at)
{
    while (at > 0 && at < text->n && ((unsigned char)text->p[at] & 0xc0) == 0x80)
        at--;
    return at;
}

void mcp_output_shorten(const struct buf *text, const char *handle, struct buf *out)
{
    if (text->n <= MCP_TEXT_MAX) {
        buf_add(out, text->p, text->n);
        return;
    }
    size_t head = mcp_output_cut(text, MCP_TEXT_MAX / 4 * 3), tail = mcp_output_cut(text, text->n - MCP_TEXT_MAX / 4);
    buf_add(out, text->p, head);
    buf_addf(out, "\n[%zu bytes left out; read_output with handle %s, offset %zu has them]\n", tail - head, handle,
             head);
    buf_add(out, text->p + tail, text->n - tail);
}
