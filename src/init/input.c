/* input.c - bytes for the standard input or the terminal of a command. A request is answered when all of it was taken;
 * requests for one command are written in the order in which they came. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "init/init-int.h"

static struct input *next_of(struct init *g, uint32_t command)
{
    struct input *first = NULL;
    for (uint32_t i = 0; i < INPUTS_MAX; i++) {
        struct input *in = &g->input[i];
        if (in->used && !in->done && in->command == command && (!first || in->serial < first->serial))
            first = in;
    }
    return first;
}

static void close_input(struct init *g, struct command *c)
{
    if (c->input < 0)
        return;
    init_unwatch(g, c->input);
    (void)close(TAKE_FD(c->input));
    c->input_watched = false;
}

void input_fail_all(struct init *g, const struct command *c)
{
    for (uint32_t i = 0; i < INPUTS_MAX; i++) {
        struct input *in = &g->input[i];
        if (in->used && !in->done && in->command == (uint32_t)(c - g->command)) {
            in->done = true;
            in->code = INIT_STATE;
        }
    }
}

static void input_pump(struct init *g, struct command *c)
{
    uint32_t index = (uint32_t)(c - g->command);
    for (struct input *in; c->input >= 0 && (in = next_of(g, index));) {
        ssize_t n = in->n > in->at ? write(c->input, in->bytes + in->at, in->n - in->at) : 0;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (!c->input_watched)
                c->input_watched = init_watch(g, c->input, EPOLLOUT, KIND_INPUT, index, c->gen) == 0;
            return;
        }
        if (n < 0) { /* no reader is left */
            input_fail_all(g, c);
            close_input(g, c);
            return;
        }
        in->at += (size_t)n;
        if (in->at == in->n) {
            in->done = true;
            in->code = INIT_OK;
        }
    }
    if (c->input_watched && c->input >= 0)
        init_unwatch(g, c->input);
    c->input_watched = false;
}

void input_event(struct init *g, uint32_t index, uint32_t gen)
{
    struct command *c = &g->command[index];
    if (c->state == COMMAND_RUNNING && c->gen == gen)
        input_pump(g, c);
}

void input_flush(struct init *g)
{
    for (uint32_t i = 0; i < INPUTS_MAX; i++) {
        struct input *in = &g->input[i];
        if (in->used && in->done &&
            conn_reply(g, &in->who, in->code, in->code == INIT_OK ? "" : "stdin of the process is closed"))
            in->used = false;
    }
}

/* Returns the running command with an open input, or NULL after an error reply. */
static struct command *input_find_writable(struct init *g, const struct asker *who, const struct init_request *r)
{
    struct command *c = command_find(g, r->pid, r->tag);
    if (!c || c->state != COMMAND_RUNNING || c->reaped)
        (void)conn_reply(g, who, INIT_NOT_FOUND, "process not found");
    else if (c->input < 0)
        (void)conn_reply(g, who, INIT_STATE, "stdin of the process is closed");
    else
        return c;
    return NULL;
}

void command_input(struct init *g, const struct asker *who, const struct init_request *r)
{
    struct command *c = input_find_writable(g, who, r);
    if (!c)
        return;
    for (uint32_t i = 0; i < INPUTS_MAX; i++) {
        struct input *in = &g->input[i];
        if (in->used)
            continue;
        in->used = true;
        in->done = false;
        in->command = (uint32_t)(c - g->command);
        in->serial = ++g->serial;
        in->who = *who;
        in->n = r->nbytes;
        in->at = 0;
        memcpy(in->bytes, r->bytes, r->nbytes);
        input_pump(g, c);
        return;
    }
    (void)conn_reply(g, who, INIT_LIMIT, "too much input waits for processes that do not read (64 requests)");
}

void command_close_input(struct init *g, const struct asker *who, const struct init_request *r)
{
    struct command *c = command_find(g, r->pid, r->tag);
    if (!c || c->state != COMMAND_RUNNING || c->reaped) {
        (void)conn_reply(g, who, INIT_NOT_FOUND, "process not found");
        return;
    }
    if (c->pty) {
        (void)conn_reply(g, who, INIT_STATE, "stdin of a terminal cannot be closed; send Ctrl-D (0x04) instead");
        return;
    }
    if (next_of(g, (uint32_t)(c - g->command))) {
        (void)conn_reply(g, who, INIT_STATE, "input is still being written");
        return;
    }
    close_input(g, c);
    (void)conn_reply(g, who, INIT_OK, "");
}
