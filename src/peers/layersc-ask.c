/* layersc-ask.c - makes the messages of front's requests to the layer store. */
#include <stdio.h>

#include "peers/layersc.h"

/* Text that does not fit is cut off: the layer store knows no such name. */
#define PUT(m, member, text) ((void)snprintf((m)->member, sizeof(m)->member, "%s", text))
#define HEAD(kind)     \
    {                  \
        .type = (kind) \
    }

static layersc_call layersc_ask_stack(struct layersc *s, const struct layersc_to *to, enum layers_type type,
                                      const char *stack)
{
    struct layers_stack m = {.head = HEAD(type)};
    PUT(&m, stack, stack);
    return layersc_ask(s, to, &m.head, sizeof m, -1);
}

static layersc_call layersc_ask_volume(struct layersc *s, const struct layersc_to *to, struct layers_volume *m,
                                       const char *volume)
{
    PUT(m, volume, volume);
    return layersc_ask(s, to, &m->head, sizeof *m, -1);
}

layersc_call layersc_capture(struct layersc *s, const struct layersc_to *to, const char *sandbox, const char *stack,
                             const char *earlier, uint32_t flags)
{
    struct layers_capture m = {.head = {.type = LAYERS_CAPTURE, .flags = flags}};
    PUT(&m, sandbox, sandbox);
    PUT(&m, stack, stack);
    PUT(&m, other, earlier);
    return layersc_ask(s, to, &m.head, sizeof m, -1);
}

layersc_call layersc_drop(struct layersc *s, const struct layersc_to *to, const char *stack)
{
    return layersc_ask_stack(s, to, LAYERS_DROP, stack);
}

layersc_call layersc_import(struct layersc *s, const struct layersc_to *to, const char *stack, const char *ref,
                            bool private_registry, int archive)
{
    struct layers_import m = {.head = {.type = LAYERS_IMPORT, .flags = private_registry ? LAYERS_PRIVATE : 0}};
    PUT(&m, stack, stack);
    PUT(&m, ref, ref);
    return layersc_ask(s, to, &m.head, sizeof m, archive);
}

layersc_call layersc_restore(struct layersc *s, const struct layersc_to *to, const char *stack, int archive)
{
    struct layers_restore m = {.head = HEAD(LAYERS_RESTORE)};
    PUT(&m, stack, stack);
    return layersc_ask(s, to, &m.head, sizeof m, archive);
}

layersc_call layersc_export(struct layersc *s, const struct layersc_to *to, const char *stack)
{
    struct layers_export m = {.head = HEAD(LAYERS_EXPORT)};
    PUT(&m, stack, stack);
    return layersc_ask(s, to, &m.head, sizeof m, -1);
}

layersc_call layersc_convert(struct layersc *s, const struct layersc_to *to, const char *blob, uint64_t bytes, int tar)
{
    struct layers_convert m = {.head = HEAD(LAYERS_CONVERT), .bytes = bytes};
    PUT(&m, blob, blob);
    return layersc_ask(s, to, &m.head, sizeof m, tar);
}

layersc_call layersc_blob(struct layersc *s, const struct layersc_to *to, const char *blob)
{
    struct layers_blob m = {.head = HEAD(LAYERS_BLOB)};
    PUT(&m, blob, blob);
    return layersc_ask(s, to, &m.head, sizeof m, -1);
}

static layersc_call layersc_ask_change(struct layersc *s, const struct layersc_to *to, struct layers_head head,
                                       const char *sandbox, const char *stack, const char *other)
{
    struct layers_change m = {.head = head};
    PUT(&m, sandbox, sandbox);
    PUT(&m, stack, stack);
    PUT(&m, other, other);
    return layersc_ask(s, to, &m.head, sizeof m, -1);
}

layersc_call layersc_diff(struct layersc *s, const struct layersc_to *to, const char *stack, const char *other,
                          const char *sandbox)
{
    struct layers_head head = HEAD(LAYERS_DIFF);
    return layersc_ask_change(s, to, head, other ? "" : sandbox, stack, other ? other : "");
}

layersc_call layersc_apply(struct layersc *s, const struct layersc_to *to, const char *sandbox, const char *stack,
                           const char *other, bool back)
{
    struct layers_head head = {.type = LAYERS_APPLY, .flags = back ? LAYERS_BACK : 0};
    return layersc_ask_change(s, to, head, sandbox, stack, other);
}

layersc_call layersc_open(struct layersc *s, const struct layersc_to *to, const char *stack, const char *path)
{
    struct layers_open m = {.head = HEAD(LAYERS_OPEN)};
    PUT(&m, stack, stack);
    PUT(&m, path, path);
    return layersc_ask(s, to, &m.head, sizeof m, -1);
}

layersc_call layersc_flatten(struct layersc *s, const struct layersc_to *to, const char *stack)
{
    return layersc_ask_stack(s, to, LAYERS_FLATTEN, stack);
}

layersc_call layersc_verify(struct layersc *s, const struct layersc_to *to, const char *stack)
{
    return layersc_ask_stack(s, to, LAYERS_VERIFY, stack);
}

layersc_call layersc_gc(struct layersc *s, const struct layersc_to *to, bool dry)
{
    struct layers_simple m = {.head = {.type = LAYERS_GC, .flags = dry ? LAYERS_DRY : 0}};
    return layersc_ask(s, to, &m.head, sizeof m, -1);
}

layersc_call layersc_df(struct layersc *s, const struct layersc_to *to)
{
    struct layers_simple m = {.head = HEAD(LAYERS_DF)};
    return layersc_ask(s, to, &m.head, sizeof m, -1);
}

layersc_call layersc_usage(struct layersc *s, const struct layersc_to *to, const char *stack)
{
    return layersc_ask_stack(s, to, LAYERS_USAGE, stack);
}

layersc_call layersc_of_stacks(struct layersc *s, const struct layersc_to *to, const char *stack)
{
    return layersc_ask_stack(s, to, LAYERS_OF_STACKS, stack);
}

layersc_call layersc_volume_make(struct layersc *s, const struct layersc_to *to, const char *volume, uint64_t bytes,
                                 uint64_t entries)
{
    struct layers_volume m = {.head = HEAD(LAYERS_VOLUME_MAKE), .bytes = bytes, .entries = entries};
    return layersc_ask_volume(s, to, &m, volume);
}

layersc_call layersc_volume_drop(struct layersc *s, const struct layersc_to *to, const char *volume)
{
    struct layers_volume m = {.head = HEAD(LAYERS_VOLUME_DROP)};
    return layersc_ask_volume(s, to, &m, volume);
}

layersc_call layersc_volume_stat(struct layersc *s, const struct layersc_to *to, const char *volume)
{
    struct layers_volume m = {.head = HEAD(LAYERS_VOLUME_STAT)};
    return layersc_ask_volume(s, to, &m, volume);
}

layersc_call layersc_volume_resize(struct layersc *s, const struct layersc_to *to, const char *volume, uint64_t bytes,
                                   uint64_t entries, bool keep)
{
    struct layers_volume m = {
        .head = {.type = LAYERS_VOLUME_RESIZE, .flags = keep ? LAYERS_KEEP : 0}, .bytes = bytes, .entries = entries};
    return layersc_ask_volume(s, to, &m, volume);
}
