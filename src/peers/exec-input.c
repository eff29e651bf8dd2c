/* exec-input.c - sends input in pieces that fit a message, each when init has taken the one before; lists commands. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "peers/exec.h"
#include "peers/link-int.h"

struct input {
    uint32_t pid;
    char tag[INIT_TAG_MAX + 1];
    size_t n, at;
    unsigned char bytes[];
};

static void exec_put_input(struct wire_out *o, const void *arg)
{
    const struct input *in = arg;
    size_t n = in->n - in->at < INIT_INPUT_MAX ? in->n - in->at : INIT_INPUT_MAX;
    wire_put_u32(o, in->pid);
    wire_put_str(o, in->tag);
    wire_put_bytes(o, in->bytes + in->at, n);
}

static enum call_next exec_on_input_reply(struct call *c, struct link_msg *m)
{
    struct input *in = c->object;
    struct link_status st;
    if (m->type != INIT_REPLY || m->nfds || !link_call_status(&m->in, &st) || !wire_done(&m->in))
        return CALL_BROKEN;
    in->at += in->n - in->at < INIT_INPUT_MAX ? in->n - in->at : INIT_INPUT_MAX;
    if (st.code == LINK_OK && in->at < in->n) {
        link_call_again(c, INIT_INPUT, exec_put_input, in);
        return CALL_KEEP;
    }
    ((link_done *)c->fn)(c->arg, &st);
    return CALL_DONE;
}

link_call exec_input(struct links *ls, const char *id, const struct exec_select *who, const void *p, size_t n,
                     link_done *done, void *arg)
{
    struct input *in = xmalloc(sizeof *in + n);
    *in = (struct input){.pid = who->pid, .n = n};
    if (!who->pid && who->tag) {
        size_t len = strnlen(who->tag, INIT_TAG_MAX);
        memcpy(in->tag, who->tag, len);
    }
    if (n > 0)
        memcpy(in->bytes, p, n);
    struct call *c = link_call_new(ls, id, INIT_INPUT, exec_put_input, in);
    c->message = exec_on_input_reply;
    c->failed = link_call_failed_done;
    c->fn = CALL_FN(done);
    c->arg = arg;
    c->object = in;
    c->owned = in;
    return c->id;
}

/* --- list --------------------------------------------------------------------------------------------------------- */

struct strings {
    const char **v;
    size_t n, cap;
};

/* Appends the strings of a vector and a NULL; returns the index of the first. */
static size_t exec_take_strv(struct wire_in *in, struct strings *s, size_t max)
{
    size_t at = s->n;
    uint32_t n = wire_u32(in);
    if (n > max)
        in->bad = true;
    for (uint32_t i = 0; i < n && !in->bad; i++) {
        MEM_GROW(s->v, s->n, s->cap);
        s->v[s->n++] = wire_str(in, INIT_BIG_MAX);
    }
    MEM_GROW(s->v, s->n, s->cap);
    s->v[s->n++] = NULL;
    return at;
}

static bool exec_parse_list(struct wire_in *in, uint32_t n, struct exec_info *v, struct strings *s)
{
    size_t starts[2 * INIT_COMMANDS_MAX] = {0};
    for (uint32_t i = 0; i < n && !in->bad; i++) {
        v[i].pid = wire_u32(in);
        v[i].pty = wire_bool(in);
        v[i].cmd = wire_str(in, INIT_PATH_MAX);
        v[i].cwd = wire_str(in, INIT_PATH_MAX);
        v[i].tag = wire_str(in, INIT_TAG_MAX);
        if (v[i].tag[0] == '\0')
            v[i].tag = NULL;
        starts[2 * i] = exec_take_strv(in, s, INIT_ARGS_MAX);
        starts[2 * i + 1] = exec_take_strv(in, s, INIT_ENV_MAX);
    }
    if (!wire_done(in))
        return false;
    for (uint32_t i = 0; i < n; i++) { /* only now: s->v moves while it grows */
        v[i].args = s->v + starts[2 * i];
        v[i].env = s->v + starts[2 * i + 1];
    }
    return true;
}

static enum call_next exec_on_list_reply(struct call *c, struct link_msg *m)
{
    struct link_status st;
    struct strings s = {0};
    if (m->type != INIT_REPLY || m->nfds || !link_call_status(&m->in, &st))
        return CALL_BROKEN;
    if (st.code != LINK_OK) {
        if (!wire_done(&m->in))
            return CALL_BROKEN;
        ((exec_listed *)c->fn)(c->arg, &st, NULL, 0);
        return CALL_DONE;
    }
    uint32_t n = wire_u32(&m->in);
    if (n > INIT_COMMANDS_MAX)
        return CALL_BROKEN;
    _cleanup_free_ struct exec_info *v = xcalloc(n, sizeof *v);
    bool ok = exec_parse_list(&m->in, n, v, &s);
    if (ok)
        ((exec_listed *)c->fn)(c->arg, &st, v, n);
    free(s.v);
    return ok ? CALL_DONE : CALL_BROKEN;
}

static void exec_on_list_failed(struct call *c, const struct link_status *st)
{
    ((exec_listed *)c->fn)(c->arg, st, NULL, 0);
}

link_call exec_list(struct links *ls, const char *id, exec_listed *done, void *arg)
{
    struct call *c = link_call_new(ls, id, INIT_LIST, NULL, NULL);
    c->message = exec_on_list_reply;
    c->failed = exec_on_list_failed;
    c->fn = CALL_FN(done);
    c->arg = arg;
    return c->id;
}
