#include "layers/request.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/cleanup.h"
#include "keeper/request.h"

_Static_assert((int)LAYERS_SANDBOX_MAX == (int)KEEPER_ID_MAX, "a box is a sandbox of keeper");

#define BYTES_MAX (UINT64_C(1) << 50)
enum { ENTRIES_MAX = 1 << 30 };

/* Fields that a request must not leave empty. */
enum {
    SANDBOX = 1 << 0,
    STACK = 1 << 1,
    OTHER = 1 << 2,
    VOLUME = 1 << 3,
    BLOB = 1 << 4,
    REF = 1 << 5,
    PATH = 1 << 6,
    BYTES = 1 << 7,
    ENTRIES = 1 << 8,
    CANCEL = 1 << 9,
};

/* Where a field of a message goes. */
struct field {
    uint16_t from, to, size;
};
#define FIELD(message, member)                                                     \
    {                                                                              \
        offsetof(struct message, member), offsetof(struct layers_request, member), \
            sizeof(((struct message *)0)->member)                                  \
    }

/* The messages: their lengths and fields. */
static const struct shape {
    size_t size;
    struct field fields[5]; /* size 0: no more */
} simple = {sizeof(struct layers_simple), {{0}}}, stack = {sizeof(struct layers_stack), {FIELD(layers_stack, stack)}},
  export = {sizeof(struct layers_export), {FIELD(layers_export, stack), FIELD(layers_export, bytes)}},
  capture = {sizeof(struct layers_capture),
             {FIELD(layers_capture, sandbox), FIELD(layers_capture, stack), FIELD(layers_capture, other),
              FIELD(layers_capture, bytes), FIELD(layers_capture, entries)}},
  import = {sizeof(struct layers_import),
            {FIELD(layers_import, stack), FIELD(layers_import, ref), FIELD(layers_import, path),
             FIELD(layers_import, bytes), FIELD(layers_import, entries)}},
  restore = {sizeof(struct layers_restore),
             {FIELD(layers_restore, stack), FIELD(layers_restore, bytes), FIELD(layers_restore, entries)}},
  convert = {sizeof(struct layers_convert),
             {FIELD(layers_convert, blob), FIELD(layers_convert, bytes), FIELD(layers_convert, entries)}},
  blob = {sizeof(struct layers_blob), {FIELD(layers_blob, blob)}},
  change = {sizeof(struct layers_change),
            {FIELD(layers_change, sandbox), FIELD(layers_change, stack), FIELD(layers_change, other)}},
  open_file = {sizeof(struct layers_open), {FIELD(layers_open, stack), FIELD(layers_open, path)}},
  volume = {sizeof(struct layers_volume),
            {FIELD(layers_volume, volume), FIELD(layers_volume, bytes), FIELD(layers_volume, entries)}},
  cancel = {sizeof(struct layers_cancel), {FIELD(layers_cancel, cancel)}};

static const struct rule {
    const char *name;
    const struct shape *shape;
    unsigned must;
    uint32_t flags;
    unsigned fds_min, fds_max;
} rules[] = {
    [LAYERS_CAPTURE] = {"capture", &capture, SANDBOX | STACK, LAYERS_FREEZE, 0, 0},
    [LAYERS_DROP] = {"drop", &stack, STACK, 0, 0, 0},
    [LAYERS_LIST] = {"list", &simple, 0, 0, 0, 0},
    [LAYERS_IMPORT] = {"import", &import, STACK, LAYERS_PRIVATE, 0, 1},
    [LAYERS_CONVERT] = {"convert", &convert, BLOB, 0, 1, 1},
    [LAYERS_BLOB] = {"blob", &blob, BLOB, 0, 0, 0},
    [LAYERS_EXPORT] = {"export", &export, STACK, 0, 0, 0},
    [LAYERS_RESTORE] = {"restore", &restore, STACK, 0, 1, 1},
    [LAYERS_DIFF] = {"diff", &change, STACK, 0, 0, 0},
    [LAYERS_OPEN] = {"open", &open_file, STACK | PATH, 0, 0, 0},
    [LAYERS_APPLY] = {"apply", &change, SANDBOX | STACK | OTHER, LAYERS_BACK, 0, 0},
    [LAYERS_FLATTEN] = {"flatten", &stack, STACK, 0, 0, 0},
    [LAYERS_VERIFY] = {"verify", &stack, 0, 0, 0, 0},
    [LAYERS_GC] = {"gc", &simple, 0, LAYERS_DRY, 0, 0},
    [LAYERS_DF] = {"df", &simple, 0, 0, 0, 0},
    [LAYERS_DIGEST] = {"digest", &simple, 0, 0, 0, 0},
    [LAYERS_USAGE] = {"usage", &stack, STACK, 0, 0, 0},
    [LAYERS_VOLUME_MAKE] = {"volume make", &volume, VOLUME, 0, 0, 0},
    [LAYERS_VOLUME_DROP] = {"volume drop", &volume, VOLUME, 0, 0, 0},
    [LAYERS_VOLUME_STAT] = {"volume stat", &volume, VOLUME, 0, 0, 0},
    [LAYERS_OF_STACKS] = {"layers", &stack, 0, 0, 0, 0},
    [LAYERS_CANCEL] = {"cancel", &cancel, CANCEL, 0, 0, 0},
    [LAYERS_VOLUME_RESIZE] = {"volume resize", &volume, VOLUME, LAYERS_KEEP, 0, 0},
};

bool layers_volume_valid(const char *id)
{
    if (strncmp(id, "vol-", 4) != 0)
        return false;
    size_t n = strnlen(id + 4, 33);
    return n >= 8 && n <= 32 && strspn(id + 4, "abcdefghijklmnopqrstuvwxyz0123456789") == n;
}

static bool sandbox_valid(const char *s) { return keeper_id_valid(s); }
static bool stack_valid(const char *s) { return stack_id_valid(s); }
static bool volume_valid(const char *s) { return layers_volume_valid(s); }
static bool blob_valid(const char *s) { return strlen(s) == 64 && strspn(s, "0123456789abcdef") == 64; }
/* Only checks that a reference is printable; the image worker parses it. */
static bool ref_valid(const char *s)
{
    for (; *s; s++)
        if (*s <= ' ' || *s > '~')
            return false;
    return true;
}
static bool path_valid(const char *s)
{
    (void)s;
    return true;
}

struct text_field {
    unsigned bit;
    const char *name;
    char *text;
    size_t room;
    bool (*valid)(const char *s);
    const char *right;
};

static int request_check_text(const struct rule *r, const struct text_field *f, struct err *err)
{
    size_t n = strnlen(f->text, f->room);
    if (n == f->room)
        return err_set(err, ERR_USAGE, 0, "%s: is not ended within its %zu bytes", f->name, f->room);
    memset(f->text + n, 0, f->room - n);
    if (n == 0)
        return r->must & f->bit ? err_set(err, ERR_USAGE, 0, "%s: must be given with %s", f->name, r->name) : 0;
    if (!f->valid(f->text))
        return err_set(err, ERR_USAGE, 0, "%s: must be %s", f->name, f->right);
    return 0;
}

static int request_check_texts(const struct rule *r, struct layers_request *q, struct err *err)
{
    const struct text_field fields[] = {
        {SANDBOX, "box", q->sandbox, sizeof q->sandbox, sandbox_valid, "a sandbox's id: letters, digits, '-' and '_'"},
        {STACK, "stack", q->stack, sizeof q->stack, stack_valid, "\"st-\" and 8 to 32 of a-z and 0-9"},
        {OTHER, "other", q->other, sizeof q->other, stack_valid, "\"st-\" and 8 to 32 of a-z and 0-9"},
        {VOLUME, "volume", q->volume, sizeof q->volume, volume_valid, "\"vol-\" and 8 to 32 of a-z and 0-9"},
        {BLOB, "blob", q->blob, sizeof q->blob, blob_valid, "64 hexadecimal digits"},
        {REF, "ref", q->ref, sizeof q->ref, ref_valid, "printable characters without spaces"},
        {PATH, "path", q->path, sizeof q->path, path_valid, ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        if (request_check_text(r, &fields[i], err) < 0)
            return -1;
    return 0;
}

static int request_check_numbers(const struct rule *r, const struct layers_request *q, struct err *err)
{
    const struct {
        unsigned bit;
        const char *name;
        uint64_t value, max;
    } fields[] = {{BYTES, "bytes", q->bytes, BYTES_MAX},
                  {ENTRIES, "entries", q->entries, ENTRIES_MAX},
                  {CANCEL, "cancel", q->cancel, UINT64_MAX}};
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        if (fields[i].value == 0 && (r->must & fields[i].bit))
            return err_set(err, ERR_USAGE, 0, "%s: must be given with %s", fields[i].name, r->name);
        if (fields[i].value > fields[i].max)
            return err_set(err, ERR_USAGE, 0, "%s: %" PRIu64 " is more than %" PRIu64, fields[i].name, fields[i].value,
                           fields[i].max);
    }
    if (q->flags & ~r->flags)
        return err_set(err, ERR_USAGE, 0, "flags: 0x%" PRIx32 " has bits that mean nothing with %s", q->flags, r->name);
    return 0;
}

/* What one field demands of another. */
static int request_check_together(const struct layers_request *q, size_t nfds, struct err *err)
{
    switch (q->type) {
    case LAYERS_CAPTURE:
        if (strcmp(q->stack, q->other) == 0)
            return err_set(err, ERR_USAGE, 0, "other: must be an earlier stack, not the new one");
        return 0;
    case LAYERS_IMPORT:
        if (q->ref[0] == '\0' && nfds == 0)
            return err_set(err, ERR_USAGE, 0, "ref: must be given, or a descriptor of an archive");
        return 0;
    case LAYERS_DIFF:
        if ((q->sandbox[0] == '\0') == (q->other[0] == '\0'))
            return err_set(err, ERR_USAGE, 0, "other: must be given with diff, or else box");
        return 0;
    case LAYERS_VOLUME_DROP:
    case LAYERS_VOLUME_STAT:
        if (q->bytes || q->entries)
            return err_set(err, ERR_USAGE, 0, "%s: means nothing with %s", q->bytes ? "bytes" : "entries",
                           rules[q->type].name);
        return 0;
    default:
        return 0;
    }
}

int layers_request_read(const void *p, size_t n, struct layers_request *ret, struct err *err)
{
    struct layers_head head = {0};
    memset(ret, 0, sizeof *ret);
    if (n < offsetof(struct layers_head, trace))
        return err_set(err, ERR_USAGE, 0, "a message of %zu bytes has no head", n);
    memcpy(&head, p, n < sizeof head ? n : sizeof head);
    ret->version = head.version;
    ret->request = head.request;
    if (head.version != LAYERS_VERSION)
        return err_set(err, ERR_USAGE, 0,
                       "version: %" PRIu32 " is not %d; front and the layer store must come from one installation: "
                       "start the node again",
                       head.version, LAYERS_VERSION);
    const struct rule *r = head.type < ARRAY_LEN(rules) ? &rules[head.type] : NULL;
    if (!r || !r->name)
        return err_set(err, ERR_USAGE, 0, "type: %" PRIu32 " is no request", head.type);
    if (n != r->shape->size)
        return err_set(err, ERR_USAGE, 0, "a request %s has %zu bytes, not %zu", r->name, r->shape->size, n);
    if (head.zero != 0)
        return err_set(err, ERR_USAGE, 0, "zero: must be 0");
    ret->type = head.type;
    ret->trace = head.trace;
    ret->flags = head.flags;
    for (size_t i = 0; i < ARRAY_LEN(r->shape->fields) && r->shape->fields[i].size; i++) {
        const struct field *f = &r->shape->fields[i];
        memcpy((char *)ret + f->to, (const char *)p + f->from, f->size);
    }
    return 0;
}

int layers_request_parse(const void *p, size_t n, size_t nfds, struct layers_request *ret, struct err *err)
{
    if (layers_request_read(p, n, ret, err) < 0)
        return -1;
    const struct rule *r = &rules[ret->type];
    if (ret->request == 0)
        return err_set(err, ERR_USAGE, 0, "request: must not be 0");
    if (nfds < r->fds_min || nfds > r->fds_max)
        return err_set(err, ERR_USAGE, 0, "%zu descriptors came with %s, which takes %s%u", nfds, r->name,
                       r->fds_min < r->fds_max ? "at most " : "", r->fds_max);
    if (request_check_texts(r, ret, err) < 0 || request_check_numbers(r, ret, err) < 0)
        return -1;
    return request_check_together(ret, nfds, err);
}
