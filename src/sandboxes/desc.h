/* desc.h - the description of a sandbox: what was asked for, and what a pause, a fork and a restart of the node keep.
 *
 * An API reader fills it, sandbox_create() copies it and settles what the template decides, the sandbox holds it, its
 * row is written from it and read into it (desc.c), and a fork starts with a copy of it. ARCHITECTURE.md says how to
 * add a field.
 */
#ifndef HUTCH_SANDBOXES_DESC_H
#define HUTCH_SANDBOXES_DESC_H

#include "base/ids.h"
#include "base/strv.h"
#include "keeper/place.h"
#include "keeper/proto.h"
#include "templates/templates.h"

/* A volume that is mounted in the sandbox. */
enum { SANDBOX_MOUNTS_MAX = KEEPER_VOLUMES_MAX, SANDBOX_MOUNT_NAME_MAX = 128 };
struct sandbox_mount {
    char volume[KEEPER_ID_MAX];        /* "vol-..." or "host-..." */
    char name[SANDBOX_MOUNT_NAME_MAX]; /* the tenant's name for it */
    char place[KEEPER_PLACE_MAX];
    uint32_t flags; /* KEEPER_VOLUME_* */
};

/* Settings of single ports. Ports that are not listed have those of the sandbox. */
enum { SANDBOX_PORTS_MAX = 32 };
enum {
    SANDBOX_PORT_PUBLIC = 1,    /* open without a token, although the sandbox is private */
    SANDBOX_PORT_LOCALHOST = 2, /* the service sees the Host localhost:PORT, not the visitor's */
    SANDBOX_PORT_PRESERVE = 4,  /* the service sees the visitor's Host, even if it refuses that */
};
struct sandbox_port {
    uint32_t port, flags;
};
struct sandbox_ports {
    struct sandbox_port v[SANDBOX_PORTS_MAX];
    size_t n;
    uint64_t links; /* generation of links and cookies; those of earlier generations are refused */
};

/* Automatic pauses and resumes. */
struct sandbox_life {
    bool auto_pause;       /* at its end it is paused, not killed */
    bool auto_pause_files; /* automatic pauses keep the files only, not the memory */
    bool auto_resume;      /* traffic resumes it */
    uint32_t idle_s;       /* paused after so long without traffic; 0: never */
};

enum { SANDBOX_TEMPLATE_MAX = 256, SANDBOX_MASK_HOST_MAX = 256, SANDBOX_HTTPS_PORTS_MAX = 8 };
struct sandbox_desc {
    /* what its files are made from */
    char template[SANDBOX_TEMPLATE_MAX]; /* as asked for; once settled "base", "host", or the id of a row */
    char stack[STACK_ID_MAX];    /* the stack of that template; STORED: of its own files; "": a template's directory */
    char parent[SANDBOX_ID_MAX]; /* of a fork, or "": then template, stack, limits and config are settled already */
    char *image;                 /* owned: the reference that its template was fetched by, in full; NULL: none */
    uint64_t generation;         /* number of the newest generation of its files; 0: none */
    struct template_config *config; /* owned; NULL: none */
    struct sandbox_mount *mounts;   /* owned */
    size_t nmounts;
    /* limits. 0 in a request: the template's or the node's. With `hidden` a request only wishes for them: a host that
     * cannot enforce them drops them and reports that (`wished`) */
    uint32_t cpu_milli, pids;
    uint64_t memory, disk;
    bool wished;
    char tier[16]; /* what is in force, by keeper's word; "": not made yet */
    /* life */
    uint32_t timeout_s; /* the last one requested */
    struct sandbox_life life;
    bool history;    /* every exec opens a generation */
    bool no_history; /* in a request: overrides the template's setting */
    /* A sandbox of a template build (builds.h) or of a volume: it has no row (a restart of front ends it), no quota
     * and no events, is in no list, has our tools at /.hutch, and runs commands as root unless they name a user.
     * `template` may be the id of a stack. */
    bool hidden;
    bool counted; /* with `hidden`: it counts in the quotas of sandboxes nevertheless */
    /* who may reach it, and what it may reach (its network document stands apart: network/networks.h) */
    bool secure;                                   /* commands and files need its token */
    bool allow_public_traffic;                     /* ports are open without a token */
    bool allow_internet;                           /* as requested through E2B's API */
    char mask_host[SANDBOX_MASK_HOST_MAX];         /* Host sent to services inside; "" = as the client sent it */
    uint32_t https_ports[SANDBOX_HTTPS_PORTS_MAX]; /* services that speak TLS themselves */
    size_t nhttps_ports;
    struct sandbox_ports ports;
    struct strv metadata; /* labels: k, v, k, v ... Owned */
    struct strv env;      /* "K=V". Owned */
};

/* A copy that owns its parts; `from` stays as it is. */
void sandbox_desc_copy(struct sandbox_desc *ret, const struct sandbox_desc *from);
void sandbox_desc_done(struct sandbox_desc *d); /* frees the parts */
/* A label's value; NULL: it has no such label. */
const char *sandbox_desc_label(const struct sandbox_desc *d, const char *key);

#endif
