/* proto.h - the requests of front to the layer store: fixed-layout messages over SEQPACKET, every string NUL-terminated
 * inside its array, descriptors by SCM_RIGHTS where noted. A request is one of the structs below, each for a few types; one
 * LAYERS_REPLY answers it, and LAYERS_PROGRESS may come before that. front repeats requests after a restart of either side;
 * each type says why that does no harm.
 *
 * Front and the layer store come from one installation. A request of another version is answered LAYERS_BAD_REQUEST with the
 * version of its sender, which therefore understands it: layers_reply begins the same in all versions.
 */
#ifndef HUTCH_LAYERS_PROTO_H
#define HUTCH_LAYERS_PROTO_H

#include <stdint.h>

#include "keeper/place.h"

enum {
    LAYERS_VERSION = 2,
    LAYERS_SANDBOX_MAX = 40,
    LAYERS_TEXT_MAX = 400,
    LAYERS_REF_MAX = 512,
    LAYERS_PATH_MAX = 4096,
    LAYERS_LIST_MAX = 256,
    LAYERS_BLOB_OWNER = 16,
    LAYERS_JOBS_MAX = 64, /* at once; more are answered LAYERS_BUSY */
    LAYERS_PULL_MAX = 4,  /* imports from a registry at once: they mostly wait for the network */
    LAYERS_HEAVY_MAX =
        2, /* transfers (import, convert, export, restore) at once, and as many of upkeep (flatten, verify);
                            more wait, each kind for its own */
};
#define LAYERS_SOCKET "stock.sock"

enum layers_type {
    LAYERS_CAPTURE =
        1,         /* sandbox, stack (new), other (a stack of the same sandbox whose top layer is an earlier capture, or
                          ""): stack = sandbox's layers + its upper. Flags LAYERS_FREEZE: freeze and thaw it (not if it is
                          paused already). The new layer gets its digest later. The stack exists already: success at
                          once. bytes, entries: of the upper; bytes2: so much of it is shared with `other`'s; entries2:
                          its layers, which a descriptor lists as LAYERS_OF_STACKS does */
    LAYERS_DROP,   /* stack: no longer needed (a living sandbox keeps it until it ends). Not there: success */
    LAYERS_LIST,   /* answered by LAYERS_ITEMS, the last with more == 0 */
    LAYERS_IMPORT, /* stack (new). ref "": one descriptor, an archive (docker save, OCI layout as tar; any compression),
                      path: which of several images in it, or "". ref: an image in a registry,  path: its platform
                      ("linux/arm64") or ""; one descriptor or none: a memfd with the registry's credentials
                      "user\npassword". Flags LAYERS_PRIVATE: the registry may be in a private network, and without
                      TLS; on this machine only if the layer store was started with it in its list. bytes: limit, or 0.
                      Answer: a
                      descriptor with the image's configuration as JSON (untrusted). The stack exists already: success at
                      once, without one */
    LAYERS_CONVERT, /* blob: its name, 64 hex digits that front chooses; one descriptor: a tar, compressed or
                      not. Makes blobs/<name> as lay stream. bytes: limit of all blobs together whose names begin with the same
                      LAYERS_BLOB_OWNER digits, this one included, or 0. There: success */
    LAYERS_BLOB,    /* blob -> a descriptor of blobs/<name> for reading; LAYERS_NOT_FOUND */
    LAYERS_EXPORT, /* stack -> a descriptor of the archive for reading, an unlinked file. bytes: limit, or 0. The job is
                      over then: the reader may be slow */
    LAYERS_RESTORE, /* stack (new); one descriptor: an archive that LAYERS_EXPORT made; refused if its sums are wrong. The
                      bottom template must be here with the same digest */
    LAYERS_DIFF, /* stack, and other or sandbox (the living sandbox as it is) -> a descriptor with struct diff_record */
    LAYERS_OPEN, /* stack, path -> a descriptor of that regular file, for reading */
    LAYERS_APPLY,   /* sandbox, stack, other: applies the difference between other and stack to the sandbox's files,
                    frozen meanwhile.
                    LAYERS_CONFLICT if the sandbox has changed one of them since other, with a descriptor that lists the
                    conflicting paths, one per line. Flags LAYERS_BACK: makes its files those of the stack, whatever it changed;
                    other is a capture from before, made for this request only. The change is done whole: a repeated request
                    continues a begun one, and is success at once after a completed one, until the stack (LAYERS_BACK: other) is
                    dropped; LAYERS_BUSY, LAYERS_HALF: begun, not over, ask again. entries, entries2,
                    bytes2: files added, changed, removed */
    LAYERS_FLATTEN, /* stack: merges its layers into one; a new stack file replaces the old one under the same id */
    LAYERS_VERIFY,  /* everything, or one stack -> a descriptor with text lines, one per problem; entries: problems,
                      bytes: read; entries2: layers that had no digest, and have one now */
    LAYERS_GC, /* flags LAYERS_DRY: only tell -> descriptor with text lines; bytes, entries: removed; bytes2, entries2:
                    will be, after the grace */
    LAYERS_DF, /* -> a descriptor with struct layers_usage for the whole and each stack */
    LAYERS_USAGE,       /* stack -> bytes, entries of layers that it alone names; bytes2, entries2: of all its layers */
    LAYERS_VOLUME_MAKE, /* volume, bytes, entries: quota (0: none). There: success */
    LAYERS_VOLUME_DROP,
    LAYERS_VOLUME_STAT, /* volume -> bytes, entries used; quota in bytes2, entries2; text: the quota in force */
    LAYERS_CANCEL, /* request in `cancel`: its job ends, it is answered LAYERS_CANCELLED. This one: LAYERS_NOT_FOUND if it
                     has been answered */
    LAYERS_OF_STACKS, /* stack, or "": all -> a descriptor with struct stack_layer, those of one stack together */
    LAYERS_VOLUME_RESIZE, /* volume, bytes, entries: its new quota (0: none). Flags LAYERS_KEEP: entries is its present limit;
                            ignore it where this kind of volume has none of its own. Answer as of STAT. LAYERS_CONFLICT if the
                            volume holds more (bytes, entries); LAYERS_BUSY if it is in use and cannot be resized then. Again:
                            sets the same quota */
    LAYERS_DIGEST, /* everything: gives each layer that has no digest yet its digest. The store asks itself for it after
                      captures; again: does what is left */
    LAYERS_REPLY = 100,
    LAYERS_PROGRESS,
    LAYERS_ITEMS,
};
enum { LAYERS_FREEZE = 1, LAYERS_DRY = 2, LAYERS_PRIVATE = 4, LAYERS_KEEP = 8, LAYERS_BACK = 16 };

enum layers_error {
    LAYERS_OK,
    LAYERS_BAD_REQUEST,
    LAYERS_NOT_FOUND,
    LAYERS_BUSY,      /* later */
    LAYERS_HOST,      /* this host cannot do it; text says what is missing */
    LAYERS_BAD_DATA,  /* an archive, an image or a file of the store is not right; text names the entry */
    LAYERS_TOO_LARGE, /* one of our limits; text names it */
    LAYERS_NO_SPACE,
    LAYERS_CONFLICT,
    LAYERS_DENIED, /* by the registry */
    LAYERS_CANCELLED,
    LAYERS_FAILED,
    LAYERS_HALF, /* as LAYERS_BUSY, because there is no room for either state of the files */
};

/* Every request begins with it. */
struct layers_head {
    uint32_t version, type;
    uint64_t request; /* chosen by front; not 0 */
    uint64_t trace;   /* of the API call that it belongs to; 0: none. Carried, never looked at */
    uint32_t flags, zero;
};
struct layers_simple { /* LIST, GC, DF */
    struct layers_head head;
};
struct layers_stack { /* DROP, FLATTEN, USAGE; VERIFY and OF_STACKS, where "" is all */
    struct layers_head head;
    char stack[STACK_ID_MAX];
};
struct layers_export { /* EXPORT */
    struct layers_head head;
    uint64_t bytes;
    char stack[STACK_ID_MAX];
};
struct layers_capture { /* CAPTURE */
    struct layers_head head;
    uint64_t bytes, entries; /* limits of the upper, or 0 */
    char sandbox[LAYERS_SANDBOX_MAX];
    char stack[STACK_ID_MAX], other[STACK_ID_MAX];
};
struct layers_import { /* IMPORT */
    struct layers_head head;
    uint64_t bytes, entries;
    char stack[STACK_ID_MAX];
    char ref[LAYERS_REF_MAX];
    char path[LAYERS_PATH_MAX];
};
struct layers_restore { /* RESTORE */
    struct layers_head head;
    uint64_t bytes, entries;
    char stack[STACK_ID_MAX];
};
struct layers_convert { /* CONVERT */
    struct layers_head head;
    uint64_t bytes, entries;
    char blob[SHA256_HEX];
};
struct layers_blob { /* BLOB */
    struct layers_head head;
    char blob[SHA256_HEX];
};
struct layers_change { /* DIFF, APPLY */
    struct layers_head head;
    char sandbox[LAYERS_SANDBOX_MAX];
    char stack[STACK_ID_MAX], other[STACK_ID_MAX];
};
struct layers_open { /* OPEN */
    struct layers_head head;
    char stack[STACK_ID_MAX];
    char path[LAYERS_PATH_MAX];
};
struct layers_volume { /* VOLUME_MAKE, VOLUME_RESIZE, with a quota; VOLUME_DROP, VOLUME_STAT, without */
    struct layers_head head;
    uint64_t bytes, entries;
    char volume[LAYERS_SANDBOX_MAX];
};
struct layers_cancel { /* CANCEL */
    struct layers_head head;
    uint64_t cancel;
};
struct layers_reply {
    uint32_t version, type; /* LAYERS_REPLY, LAYERS_PROGRESS */
    uint64_t request;
    uint32_t error, zero;
    char text[LAYERS_TEXT_MAX];
    char layer[SHA256_HEX]; /* of a capture: its name */
    uint64_t bytes, entries, bytes2,
        entries2;       /* progress: done and total (0: not known); bytes2 of an export: devices left out */
    uint64_t frozen_us; /* capture, apply: how long the sandbox stood still */
};
struct layers_item {
    char id[STACK_ID_MAX]; /* of a stack, or of a volume ("vol-...") */
    uint32_t nlayers, zero;
    int64_t created_unix;
};
struct layers_items {
    uint32_t version, type;
    uint64_t request;
    uint32_t n, more;
    struct layers_item item[LAYERS_LIST_MAX];
};
struct layers_usage {
    char id[STACK_ID_MAX];                 /* "": all layers, shared: those that several stacks name */
    uint64_t own_bytes, own_entries;       /* of layers that only this stack names */
    uint64_t shared_bytes, shared_entries; /* of the others */
};

struct stack_layer { /* of a stack; one without any has one record with nothing in it */
    char stack[STACK_ID_MAX];
    uint8_t name[SHA256_BYTES];
    uint64_t bytes, entries;
};

/* The number of inodes that mke2fs gives a file system of that size: the limit of a volume that has none of its own. */
static inline uint64_t layers_volume_entries(uint64_t bytes)
{
    return bytes / (bytes < (UINT64_C(512) << 20) ? 4096 : 16384);
}

/* Besides stacks: layers that no stack names, and uploads. */
#define LAYERS_DF_UNUSED "@unused"
#define LAYERS_DF_BLOBS  "@uploads"
/* If there is a pool (diskpool.h): own_bytes used, shared_bytes free; own_entries bytes held by the ballast, shared_entries
 * 1 if it is read-only. And its file: own_bytes that it occupies, shared_bytes its size. */
#define LAYERS_DF_POOL      "@pool"
#define LAYERS_DF_POOL_FILE "@pool-file"

#endif
