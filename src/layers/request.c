#include "layers/request.h"

#include <inttypes.h>
#include <string.h>

#include "base/cleanup.h"
#include "keeper/request.h"

_Static_assert((int)LAYERS_SANDBOX_MAX == (int)KEEPER_ID_MAX, "a box is a sandbox of keeper");

#define BYTES_MAX (UINT64_C(1) << 50)
enum { ENTRIES_MAX = 1 << 30 };

/* Fields of a request: those that must be there, and those that may. Everything else must be empty. */
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

static const struct rule {
    const char *name;
    unsigned must, may;
    uint32_t flags;
    unsigned fds_min, fds_max;
} rules[] = {
    [LAYERS_CAPTURE] = {"capture", SANDBOX | STACK, OTHER | BYTES | ENTRIES, LAYERS_FREEZE | LAYERS_DIGESTED, 0, 0},
    [LAYERS_DROP] = {"drop", STACK, 0, 0, 0, 0},
    [LAYERS_LIST] = {"list", 0, 0, 0, 0, 0},
    [LAYERS_IMPORT] = {"import", STACK, REF | PATH | BYTES | ENTRIES, LAYERS_PRIVATE, 0, 1},
    [LAYERS_CONVERT] = {"convert", BLOB, BYTES | ENTRIES, 0, 1, 1},
    [LAYERS_BLOB] = {"blob", BLOB, 0, 0, 0, 0},
    [LAYERS_EXPORT] = {"export", STACK, BYTES, 0, 0, 0},
    [LAYERS_RESTORE] = {"restore", STACK, BYTES | ENTRIES, 0, 1, 1},
    [LAYERS_DIFF] = {"diff", STACK, OTHER | SANDBOX, 0, 0, 0},
    [LAYERS_OPEN] = {"open", STACK | PATH, 0, 0, 0, 0},
    [LAYERS_APPLY] = {"apply", SANDBOX | STACK | OTHER, 0, LAYERS_BACK, 0, 0},
    [LAYERS_FLATTEN] = {"flatten", STACK, 0, 0, 0, 0},
    [LAYERS_VERIFY] = {"verify", 0, STACK, 0, 0, 0},
    [LAYERS_GC] = {"gc", 0, 0, LAYERS_DRY, 0, 0},
    [LAYERS_DF] = {"df", 0, 0, 0, 0, 0},
    [LAYERS_DIGEST] = {"digest", 0, 0, 0, 0, 0},
    [LAYERS_USAGE] = {"usage", STACK, 0, 0, 0, 0},
    [LAYERS_VOLUME_MAKE] = {"volume make", VOLUME, BYTES | ENTRIES, 0, 0, 0},
    [LAYERS_VOLUME_DROP] = {"volume drop", VOLUME, 0, 0, 0, 0},
    [LAYERS_VOLUME_STAT] = {"volume stat", VOLUME, 0, 0, 0, 0},
    [LAYERS_OF_STACKS] = {"layers", 0, STACK, 0, 0, 0},
    [LAYERS_CANCEL] = {"cancel", CANCEL, 0, 0, 0, 0},
    [LAYERS_VOLUME_RESIZE] = {"volume resize", VOLUME, BYTES | ENTRIES, LAYERS_KEEP, 0, 0},
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
    if (((r->must | r->may) & f->bit) == 0)
        return err_set(err, ERR_USAGE, 0, "%s: means nothing with %s", f->name, r->name);
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
        if (fields[i].value != 0 && ((r->must | r->may) & fields[i].bit) == 0)
            return err_set(err, ERR_USAGE, 0, "%s: means nothing with %s", fields[i].name, r->name);
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
    default:
        return 0;
    }
}

int layers_request_parse(const void *p, size_t n, size_t nfds, struct layers_request *ret, struct err *err)
{
    struct {
        uint32_t version, type;
        uint64_t request;
    } head;
    memset(ret, 0, sizeof *ret);
    if (n < sizeof head)
        return err_set(err, ERR_USAGE, 0, "a message of %zu bytes has no head", n);
    memcpy(&head, p, sizeof head);
    ret->request = head.request;
    if (head.version != LAYERS_VERSION)
        return err_set(err, ERR_USAGE, 0, "version: %" PRIu32 " is not %d", head.version, LAYERS_VERSION);
    const struct rule *r = head.type < ARRAY_LEN(rules) ? &rules[head.type] : NULL;
    if (!r || !r->name)
        return err_set(err, ERR_USAGE, 0, "type: %" PRIu32 " is no request", head.type);
    if (n != sizeof *ret)
        return err_set(err, ERR_USAGE, 0, "a request has %zu bytes, not %zu", sizeof *ret, n);
    memcpy(ret, p, n);
    if (ret->request == 0)
        return err_set(err, ERR_USAGE, 0, "request: must not be 0");
    if (ret->zero != 0)
        return err_set(err, ERR_USAGE, 0, "zero: must be 0");
    if (nfds < r->fds_min || nfds > r->fds_max)
        return err_set(err, ERR_USAGE, 0, "%zu descriptors came with %s, which takes %s%u", nfds, r->name,
                       r->fds_min < r->fds_max ? "at most " : "", r->fds_max);
    if (request_check_texts(r, ret, err) < 0 || request_check_numbers(r, ret, err) < 0)
        return -1;
    return request_check_together(ret, nfds, err);
}
