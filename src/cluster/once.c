#include "cluster/once.h"

#include <string.h>

static void once_answer(struct once *o, enum once_answer answer)
{
    o->next = ONCE_ANSWER;
    o->answer = answer;
    o->wait = false;
    o->replay = o->keyed && strcmp(o->at.id, o->own.id) != 0;
}

static void once_go(struct once *o, enum once_do next)
{
    o->next = next;
    o->wait = false;
}

static void once_again(struct once *o, enum once_do next)
{
    o->next = next;
    o->wait = true;
}

/* The request goes to another node than this one. */
static void once_go_elsewhere(struct once *o, uint32_t node)
{
    for (uint32_t i = 0; i < o->n_tried; i++)
        if (o->tried[i] == node) {
            once_go(o, ONCE_CHOOSE); /* another request put the record there */
            return;
        }
    if (o->n_tried < PLACE_TRIED_MAX)
        o->tried[o->n_tried++] = node;
    if (o->n_tried < PLACE_TRIED_MAX)
        once_go(o, ONCE_CHOOSE);
    else
        once_answer(o, ONCE_FULL);
}

static void once_propose(struct once *o, enum once_state state, const struct once_place *at)
{
    o->write = (struct once_record){.state = state, .at = *at, .until_ms = o->until_ms, .revision = o->record.revision};
    memcpy(o->write.request, o->request, sizeof o->request);
    once_go(o, ONCE_WRITE);
}

/* The record is known: what it says is done next. */
static void once_follow(struct once *o)
{
    o->at = o->record.at;
    if (o->record.until_ms > o->until_ms)
        o->until_ms = o->record.until_ms;
    once_go(o, o->record.state == ONCE_DECIDED   ? ONCE_CONFIRM
               : o->record.state == ONCE_PENDING ? ONCE_MAKE
                                                 : ONCE_CHOOSE);
}

void once_start(struct once *o, const char *request, uint64_t now_ms)
{
    memset(o, 0, sizeof *o);
    o->keyed = request != NULL;
    if (request)
        strncpy(o->request, request, sizeof o->request - 1);
    o->until_ms = now_ms + ONCE_KEY_MS;
    once_go(o, o->keyed ? ONCE_READ : ONCE_CHOOSE);
}

void once_on_read(struct once *o, enum once_engine said, const struct once_record *record)
{
    if (said != ONCE_ENGINE_OK) {
        once_answer(o, said == ONCE_ENGINE_UNREADABLE ? ONCE_UNREADABLE : ONCE_AWAY);
        return;
    }
    memset(&o->record, 0, sizeof o->record);
    if (record)
        o->record = *record;
    if (record && strcmp(record->request, o->request) != 0)
        once_answer(o, ONCE_REUSED);
    else
        once_follow(o);
}

void once_on_chosen(struct once *o, const char *id, uint32_t node)
{
    memset(&o->own, 0, sizeof o->own);
    strncpy(o->own.id, id, sizeof o->own.id - 1);
    o->own.node = node;
    if (o->keyed) {
        once_propose(o, ONCE_PENDING, &o->own);
        return;
    }
    o->at = o->own;
    once_go(o, ONCE_MAKE);
}

void once_on_full(struct once *o) { once_answer(o, ONCE_FULL); }

void once_on_written(struct once *o, enum once_engine said, uint64_t revision)
{
    switch (said) {
    case ONCE_ENGINE_OK:
        o->record = o->write;
        o->record.revision = revision;
        once_follow(o);
        return;
    case ONCE_ENGINE_DIFFERS:
        once_go(o, ONCE_READ);
        return;
    case ONCE_ENGINE_UNKNOWN: /* it may still be made: whatever is read now, the next change tests the revision again */
        once_again(o, ONCE_READ);
        return;
    case ONCE_ENGINE_DOWN:
    case ONCE_ENGINE_UNREADABLE:
        once_answer(o, ONCE_AWAY);
        return;
    }
}

static void once_on_made(struct once *o, enum once_said said)
{
    switch (said) {
    case ONCE_SAID_YES:
        if (o->keyed)
            once_propose(o, ONCE_DECIDED, &o->at);
        else
            once_go(o, ONCE_CONFIRM);
        return;
    case ONCE_SAID_NOTHING:
        once_again(o, ONCE_MAKE);
        return;
    case ONCE_SAID_REAPED: /* the node is not to blame: nothing confirmed it in time */
        once_go(o, ONCE_CHOOSE);
        return;
    case ONCE_SAID_ENDED: /* so it was confirmed, and the record is another one now */
        if (o->keyed)
            once_again(o, ONCE_READ);
        else
            once_answer(o, ONCE_OVER);
        return;
    case ONCE_SAID_REFUSED:
    case ONCE_SAID_NEVER:
    case ONCE_SAID_NO_LEASE: /* if it was made after all, it is reaped */
        once_go_elsewhere(o, o->at.node);
        return;
    }
}

static void once_on_confirmed(struct once *o, enum once_said said)
{
    switch (said) {
    case ONCE_SAID_YES:
        once_answer(o, ONCE_MADE);
        return;
    case ONCE_SAID_ENDED:
        once_answer(o, ONCE_OVER);
        return;
    case ONCE_SAID_NEVER:
        once_answer(o, ONCE_LOST);
        return;
    case ONCE_SAID_REAPED: /* no request has answered with it, and none will */
        once_go(o, ONCE_CHOOSE);
        return;
    case ONCE_SAID_NOTHING:
    case ONCE_SAID_REFUSED:
        once_again(o, ONCE_CONFIRM);
        return;
    case ONCE_SAID_NO_LEASE: /* it may be confirmed and in use: only its node can say that it is not */
        once_answer(o, ONCE_STATE_UNKNOWN);
        return;
    }
}

void once_on_node(struct once *o, enum once_said said)
{
    if (o->next == ONCE_CONFIRM)
        once_on_confirmed(o, said);
    else
        once_on_made(o, said);
}

void once_on_deadline(struct once *o) { once_answer(o, o->next == ONCE_CONFIRM ? ONCE_STATE_UNKNOWN : ONCE_LATE); }

enum once_said once_life_step(enum once_life *life, enum once_life_event event)
{
    bool asked = event == ONCE_LIFE_MAKE || event == ONCE_LIFE_CONFIRM;
    if (event == ONCE_LIFE_MAKE && *life == ONCE_LIFE_NONE)
        *life = ONCE_LIFE_TRIAL;
    else if (event == ONCE_LIFE_CONFIRM && *life == ONCE_LIFE_TRIAL)
        *life = ONCE_LIFE_CONFIRMED;
    else if (!asked && *life == ONCE_LIFE_TRIAL)
        *life = ONCE_LIFE_REAPED;
    else if (event == ONCE_LIFE_END && *life == ONCE_LIFE_CONFIRMED)
        *life = ONCE_LIFE_ENDED;
    return *life == ONCE_LIFE_NONE     ? ONCE_SAID_NEVER
           : *life == ONCE_LIFE_REAPED ? ONCE_SAID_REAPED
           : *life == ONCE_LIFE_ENDED  ? ONCE_SAID_ENDED
                                       : ONCE_SAID_YES;
}
