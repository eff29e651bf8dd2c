/* config.h - the operator's configuration: one YAML file, overridden by flags of `hutch serve`. An unknown key is an
 * error that suggests the nearest known one. Reads and checks values; opens nothing but the file itself. See
 * docs/config.md.
 */
#ifndef HUTCH_CONFIG_CONFIG_H
#define HUTCH_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define CONFIG_PATH "/etc/hutch/config.yaml" /* read if it is there and no other file is named */

enum { CONFIG_PORT = 7070, CONFIG_TLS_PORT = 7443 };
#define CONFIG_POOL_MIN (UINT64_C(1) << 30)

/* The longest life there is, four years: what a timeout of 0, "until killed", means. */
enum { CONFIG_UNTIL_KILLED_S = 35040 * 3600 };

enum { CONFIG_KEYS_MAX = 128 };

struct config {
    char *state;      /* directory: store, templates, keys */
    char *run;        /* directory: sockets, journal */
    char *listen;     /* ADDR:PORT */
    char *listen_tls; /* ADDR:PORT or NULL */
    char *domain;     /* NAME[:PORT] */
    char *tls_cert, *tls_key;
    bool tls_dev;
    char *user;         /* front's user when started by root */
    char *files;        /* where sandboxes write: a driver as os/upper.h names it, "auto" or "pool" (pool/diskpool.h) */
    uint64_t pool_size; /* at most; 0: half of what is free when it is made */
    /* sandboxes */
    uint32_t default_cpu_milli, default_pids, default_open_files;
    uint64_t default_memory, default_disk, default_inodes;
    uint32_t default_timeout_s, max_timeout_s;
    uint32_t max_sandboxes; /* of the node */
    bool best_effort;
    bool strict;                                /* privilege inside; default computer */
    char *templates;                            /* directory of templates; default STATE/templates */
    uint32_t templates_per_tenant;              /* rows of one tenant that are more than snapshots */
    char *build_base;                           /* which of the node's own templates to make: "auto", "slim" or "off" */
    char *mirror_apt, *mirror_pip, *mirror_npm; /* the operator's package sources for them; NULL: none */
    char *network;  /* policy of sandboxes created without one: "public", "off" or a path; NULL: the API decides */
    char *refusals; /* of networks that do not set it: "readable", "closed", or "auto": the API decides */
    /* egress */
    bool egress;       /* false: sandboxes have no network */
    char *egress_user; /* user of the process egress when started by root */
    char *trust;       /* PEM bundle of roots for upstreams; NULL: the system's */
    char *resolvers;   /* "ADDR:PORT,..."; NULL: resolv.conf */
    char *private;     /* private networks that rules may open: "CIDR,..." or NULL */
    char *infra;       /* networks that no sandbox reaches: "CIDR,..." or NULL */
    bool audit_drop;   /* if the log cannot be written: drop lines instead of refusing requests */
    char *audit_sync;  /* when the log is synced to the disk: off, interval, each */
    char *loopback;    /* tests only: networks that count as public although they are not */
    /* template builds and images */
    uint64_t build_upload_max; /* bytes of one uploaded context or image */
    uint64_t build_disk;       /* bytes that the sandbox of a build may write */
    uint32_t build_max;        /* builds at the same time */
    bool build_offline;        /* commands of a build have no network */
    bool image_pull;           /* images that are not here may be fetched from a registry */
    char *image_registries;    /* private or without TLS, and yet allowed to tenants: "HOST[:PORT],..." or NULL */
    char *ecr_endpoint;        /* NULL: Amazon's */
    uint64_t uploads_bytes;    /* of all uploads of a tenant for COPY steps; 0: eight times build_upload_max */
    /* what a tenant without a quota of its own may keep; 0: no limit */
    uint32_t state_snapshots;
    uint64_t state_bytes, state_entries;
    /* volumes */
    uint32_t volumes_per_tenant;
    uint64_t volume_bytes; /* quota of a volume created without one; 0: none */
    char *host_dirs;       /* directories of this machine that sandboxes may mount: "NAME=PATH[:ro],..." or NULL */
    /* approvals */
    char *webhook, *webhook_secret; /* URL, path of a file; NULL: none */
    uint32_t webhook_timeout_s;
    /* tokens of another issuer at /mcp; all three or none */
    char *oauth_issuer, *oauth_jwks, *oauth_audience;
    char *oauth_tenant; /* of tokens that name none; NULL: such tokens are refused */
    /* limits of the HTTP side */
    uint32_t max_connections, max_connections_per_peer;
    uint32_t answer_timeout_s; /* of services inside sandboxes */
    uint64_t max_upload;       /* bytes of one file upload; 0 = the sandbox's disk decides */
    /* logs */
    char *log_level;
    bool given[CONFIG_KEYS_MAX]; /* i: the file or a flag sets key i of the table */
};

/* How many bytes of uploads for COPY steps one tenant may keep. */
static inline uint64_t config_uploads_bytes(const struct config *c)
{
    return c->uploads_bytes ? c->uploads_bytes : 8 * c->build_upload_max;
}

/* Reads the file over the defaults and completes the rest. path NULL: CONFIG_PATH if it exists, else defaults only. */
int config_load(const char *path, struct config *ret, struct err *err);
void config_done(struct config *c);

/* The same in steps, for flags on top: start, file, text or set in any order, then finish. Errors name the place. */
void config_start(struct config *c);
int config_file(struct config *c, const char *path, struct err *err);
int config_text(struct config *c, const char *text, size_t n, const char *name, struct err *err);
/* key as in the file, with dots: "sandboxes.memory". Messages name `where` ("--listen"). */
int config_set(struct config *c, const char *key, const char *value, const char *where, struct err *err);
/* Fills in missing values and checks that the values fit together. */
int config_finish(struct config *c, struct err *err);

/* Whether the operator set this key: a host that cannot enforce a default may drop it, but never what the operator
 * set. */
/* Sets default_disk and build_disk, unless they are given, by the driver of what sandboxes write (os/upper.h): memory
 * is dearer than a disk. NULL: memory. */
void config_settle_disk(struct config *c, const char *driver);
bool config_given(const struct config *c, const char *key);

/* Writes a file that reads back as the same configuration. With comments: every key, its meaning, default and range.
 * Without: only keys that differ from the defaults. */
void config_show(const struct config *c, bool comments, struct buf *out);
/* The table of docs/config.md. */
void config_docs(struct buf *out);

/* "ADDR:PORT", "[V6]:PORT", ":PORT" (all addresses) or "PORT" (loopback). host is written without brackets. */
bool config_address(const char *text, char host[64], uint16_t *port);

struct config_url {
    bool tls;
    char host[256]; /* name, or address without brackets */
    bool is_literal;
    unsigned char literal[16]; /* IPv6, or IPv4 as ::ffff:a.b.c.d */
    uint16_t port;
    char authority[272], target[1024]; /* as they go into a request */
};
/* http://HOST[:PORT][/PATH] or https://...; no user, no fragment. */
bool config_url(const char *text, struct config_url *ret);

#endif
