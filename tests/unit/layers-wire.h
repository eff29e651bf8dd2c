/* layers-wire.h - messages to the layer store, for tests that play front or the layer store: made from, and read into, the one
 * struct that the layer store itself works with. */
#ifndef HUTCH_TEST_LAYERS_WIRE_H
#define HUTCH_TEST_LAYERS_WIRE_H

#include "layers/request.h"
#include "tests/lib/unit.h"

struct layers_wire {
    size_t n;
    union {
        struct layers_head head;
        struct layers_stack stack;
        struct layers_export export;
        struct layers_capture capture;
        struct layers_import import;
        struct layers_restore restore;
        struct layers_convert convert;
        struct layers_blob blob;
        struct layers_change change;
        struct layers_open open;
        struct layers_volume volume;
        struct layers_cancel cancel;
    } m;
};

#define WIRE_SIZE(member)    w.n = sizeof w.m.member
#define WIRE_TEXT(of, field) memcpy(w.m.of.field, q->field, sizeof w.m.of.field)
#define WIRE_QUOTA(of)       w.m.of.bytes = q->bytes, w.m.of.entries = q->entries

static inline struct layers_wire layers_wire_of(const struct layers_request *q)
{
    struct layers_wire w = {.n = sizeof w.m.head};
    w.m.head = (struct layers_head){
        .version = q->version, .type = q->type, .request = q->request, .trace = q->trace, .flags = q->flags};
    switch (q->type) {
    case LAYERS_DROP:
    case LAYERS_FLATTEN:
    case LAYERS_USAGE:
    case LAYERS_VERIFY:
    case LAYERS_OF_STACKS:
        WIRE_SIZE(stack), WIRE_TEXT(stack, stack);
        break;
    case LAYERS_EXPORT:
        WIRE_SIZE(export), WIRE_TEXT(export, stack), w.m.export.bytes = q->bytes;
        break;
    case LAYERS_CAPTURE:
        WIRE_SIZE(capture), WIRE_TEXT(capture, sandbox), WIRE_TEXT(capture, stack), WIRE_TEXT(capture, other);
        WIRE_QUOTA(capture);
        break;
    case LAYERS_IMPORT:
        WIRE_SIZE(import), WIRE_TEXT(import, stack), WIRE_TEXT(import, ref), WIRE_TEXT(import, path),
            WIRE_QUOTA(import);
        break;
    case LAYERS_RESTORE:
        WIRE_SIZE(restore), WIRE_TEXT(restore, stack), WIRE_QUOTA(restore);
        break;
    case LAYERS_CONVERT:
        WIRE_SIZE(convert), WIRE_TEXT(convert, blob), WIRE_QUOTA(convert);
        break;
    case LAYERS_BLOB:
        WIRE_SIZE(blob), WIRE_TEXT(blob, blob);
        break;
    case LAYERS_DIFF:
    case LAYERS_APPLY:
        WIRE_SIZE(change), WIRE_TEXT(change, sandbox), WIRE_TEXT(change, stack), WIRE_TEXT(change, other);
        break;
    case LAYERS_OPEN:
        WIRE_SIZE(open), WIRE_TEXT(open, stack), WIRE_TEXT(open, path);
        break;
    case LAYERS_VOLUME_MAKE:
    case LAYERS_VOLUME_DROP:
    case LAYERS_VOLUME_STAT:
    case LAYERS_VOLUME_RESIZE:
        WIRE_SIZE(volume), WIRE_TEXT(volume, volume), WIRE_QUOTA(volume);
        break;
    case LAYERS_CANCEL:
        WIRE_SIZE(cancel), w.m.cancel.cancel = q->cancel;
        break;
    default:
        break;
    }
    return w;
}

/* Of a request as layersc_ask() gets it, without version and number. */
static inline struct layers_request layers_wire_read(const struct layers_head *m, size_t size)
{
    struct layers_wire w = {.n = size};
    struct layers_request q;
    struct err err = {0};
    assert_true(size <= sizeof w.m);
    memcpy(&w.m, m, size);
    w.m.head.version = LAYERS_VERSION;
    if (layers_request_read(&w.m, size, &q, &err) < 0)
        fail_msg("%s", err.msg);
    return q;
}

#endif
