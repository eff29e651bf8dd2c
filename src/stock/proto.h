/* proto.h - what front may ask stock: fixed-layout messages over SEQPACKET, one struct each way, every string
 * NUL-terminated inside its array, descriptors by SCM_RIGHTS where it says so. A request is answered by one
 * STOCK_REPLY, before which STOCK_PROGRESS may come. Requests are repeated after a restart of either side; each says
 * why that does no harm.
 */
#ifndef HUTCH_STOCK_PROTO_H
#define HUTCH_STOCK_PROTO_H

#include <stdint.h>

#include "keeper/place.h"

enum {
    STOCK_VERSION = 1,
    STOCK_BOX_MAX = 40,
    STOCK_TEXT_MAX = 400,
    STOCK_REF_MAX = 512,
    STOCK_PATH_MAX = 4096,
    STOCK_LIST_MAX = 256,
    STOCK_BLOB_OWNER = 16,
    STOCK_JOBS_MAX = 64, /* at once; more are answered STOCK_BUSY */
    STOCK_PULL_MAX = 4,  /* imports from a registry at once: they wait for others' machines */
    STOCK_HEAVY_MAX =
        2, /* transfers (import, convert, export, restore) at once, and as many of upkeep (flatten, verify);
                            more wait, each kind for its own */
};
#define STOCK_SOCKET "stock.sock"

enum stock_type {
    STOCK_CAPTURE = 1, /* box, stack (new), other (a stack of the same box whose top layer is an earlier capture, or
                          ""): stack = box's layers + its upper. Flags STOCK_FREEZE: freeze and thaw it (not if it is
                          paused already). The stack exists already: success at once. bytes, entries: of the upper; bytes2: so
                          much of it is shared with `other`'s; entries2: its layers, which a descriptor lists as
                          STOCK_LAYERS does */
    STOCK_DROP,    /* stack: nobody needs it any more (a living sandbox keeps it until it ends). Not there: success */
    STOCK_LIST,    /* answered by STOCK_ITEMS, the last with more == 0 */
    STOCK_IMPORT,  /* stack (new). ref "": one descriptor, an archive (docker save, OCI layout as tar; any compression),
                      path: which of several images in it, or "". ref: an image in a registry,  path: its platform
                      ("linux/arm64") or ""; one descriptor or none: a memfd with the registry's credentials
                      "user\npassword". Flags STOCK_PRIVATE: the registry may be in a private network, and without
                      TLS; on this machine only if stock was started with it in its list. bytes: limit, or 0. Answer: a
                      descriptor with the image's configuration as JSON (untrusted). The stack exists already: success at
                      once, without one */
    STOCK_CONVERT, /* blob: sha256 of nothing we know, 64 hex chosen by the client; one descriptor: a tar, compressed or
                      not. Makes blobs/<name> as lay stream. bytes: limit of all blobs together whose names begin with the same
                      STOCK_BLOB_OWNER digits, this one included, or 0. There: success */
    STOCK_BLOB,    /* blob -> a descriptor of blobs/<name> for reading; STOCK_NOT_FOUND */
    STOCK_EXPORT, /* stack -> a descriptor of the archive for reading, a file that has no name any more. bytes: limit, or
                      0. Whoever takes it may take his time: the job is over */
    STOCK_RESTORE, /* stack (new); one descriptor: an archive that STOCK_EXPORT made; refused if its sums are wrong. The
                      bottom template must be here with the same digest */
    STOCK_DIFF,    /* stack, and other or box (the living sandbox as it is) -> a descriptor with struct diff_record */
    STOCK_OPEN,    /* stack, path -> a descriptor of that regular file, for reading */
    STOCK_APPLY, /* box, stack, other: what differs between other and stack is done to the sandbox's files (frozen meanwhile),
                    STOCK_CONFLICT if it has changed one of those since other; a descriptor with the conflicting paths, one per
                    line. Flags STOCK_BACK: its files become those of the stack, whatever it changed; other, a capture of what
                    there was, is of this one request. It is done as a whole: once begun it is gone on with when it is asked for
                    again, and what was done is success at once, until the stack (STOCK_BACK: other) is dropped; STOCK_BUSY:
                    begun and not over, ask again. entries, entries2, bytes2: files added, changed, removed */
    STOCK_FLATTEN, /* stack: its layers become one; done in place by a new stack file with the same id */
    STOCK_VERIFY,  /* everything, or one stack -> a descriptor with text lines, one per problem; entries: problems,
                      bytes: read */
    STOCK_GC,    /* flags STOCK_DRY: only tell -> descriptor with text lines; bytes, entries: removed; bytes2, entries2:
                    will be, after the grace */
    STOCK_DF,    /* -> a descriptor with struct stock_usage for the whole and each stack */
    STOCK_USAGE, /* stack -> bytes, entries of layers that it alone names; bytes2, entries2: of all its layers */
    STOCK_VOLUME_MAKE, /* volume, bytes, entries: quota (0: none). There: success */
    STOCK_VOLUME_DROP,
    STOCK_VOLUME_STAT, /* volume -> bytes, entries used; quota in bytes2, entries2; text: the quota in force */
    STOCK_CANCEL, /* request in `cancel`: its job ends, it is answered STOCK_CANCELLED. This one: STOCK_NOT_FOUND if it
                     has been answered */
    STOCK_LAYERS, /* stack, or "": all -> a descriptor with struct stock_layer, those of one stack together */
    STOCK_VOLUME_RESIZE, /* volume, bytes, entries: its quota from now on (0: none). Flags STOCK_KEEP: the entries are those
                            that it has, where such a volume has a number of its own. Answer as of STAT. STOCK_CONFLICT if it
                            holds more than that: bytes, entries. STOCK_BUSY if it must not be in use for that and is. Again:
                            the same once more */
    STOCK_REPLY = 100,
    STOCK_PROGRESS,
    STOCK_ITEMS,
};
enum { STOCK_FREEZE = 1, STOCK_DRY = 2, STOCK_PRIVATE = 4, STOCK_KEEP = 8, STOCK_BACK = 16 };

enum stock_error {
    STOCK_OK,
    STOCK_BAD_REQUEST,
    STOCK_NOT_FOUND,
    STOCK_BUSY,      /* later */
    STOCK_HOST,      /* this host cannot do it; text says what is missing */
    STOCK_BAD_DATA,  /* an archive, an image or a file of the store is not right; text names the entry */
    STOCK_TOO_LARGE, /* one of our limits; text names it */
    STOCK_NO_SPACE,
    STOCK_CONFLICT,
    STOCK_DENIED, /* by the registry */
    STOCK_CANCELLED,
    STOCK_FAILED,
};

struct stock_request {
    uint32_t version, type;
    uint64_t request;
    uint32_t flags, zero;
    char box[STOCK_BOX_MAX];
    char stack[STACK_ID_MAX], other[STACK_ID_MAX];
    char volume[STOCK_BOX_MAX];
    char blob[SHA256_HEX];
    char ref[STOCK_REF_MAX];
    char path[STOCK_PATH_MAX];
    uint64_t bytes, entries, cancel;
};
struct stock_reply {
    uint32_t version, type; /* STOCK_REPLY, STOCK_PROGRESS */
    uint64_t request;
    uint32_t error, zero;
    char text[STOCK_TEXT_MAX];
    char layer[SHA256_HEX];                    /* of a capture */
    uint64_t bytes, entries, bytes2, entries2; /* progress: done and total (0: not known) */
    uint64_t frozen_us;                        /* capture, apply: how long the sandbox stood still */
};
struct stock_item {
    char id[STACK_ID_MAX]; /* of a stack, or of a volume ("vol-...") */
    uint32_t nlayers, zero;
    int64_t created_unix;
};
struct stock_items {
    uint32_t version, type;
    uint64_t request;
    uint32_t n, more;
    struct stock_item item[STOCK_LIST_MAX];
};
struct stock_usage {
    char id[STACK_ID_MAX];                 /* "": all layers, shared: those that several stacks name */
    uint64_t own_bytes, own_entries;       /* of layers that only this stack names */
    uint64_t shared_bytes, shared_entries; /* of the others */
};

struct stock_layer { /* of a stack; one without any has one record with nothing in it */
    char stack[STACK_ID_MAX];
    uint8_t digest[SHA256_BYTES];
    uint64_t bytes, entries;
};

/* As many as mke2fs gives a file system of that size: what a volume without a number of its own may have, and counts with. */
static inline uint64_t stock_volume_entries(uint64_t bytes)
{
    return bytes / (bytes < (UINT64_C(512) << 20) ? 4096 : 16384);
}

/* Besides stacks: layers that no stack names, and uploads. */
#define STOCK_DF_UNUSED "@unused"
#define STOCK_DF_BLOBS  "@uploads"

#endif
