/* config.h - what the operator decides: one YAML file with comments, flags of `hutch serve` on top. Unknown keys are errors
 * that suggest the nearest known one. See docs/config.md.
 */
#ifndef HUTCH_FRONT_CONFIG_H
#define HUTCH_FRONT_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct config {
    char *state;       /* directory: store, templates, keys */
    char *run;         /* directory: sockets, journal */
    char *listen;      /* ADDR:PORT */
    char *listen_tls;  /* ADDR:PORT or NULL */
    char *domain;      /* NAME[:PORT] */
    char *tls_cert, *tls_key;
    bool tls_dev;
    char *user;        /* front's user when started by root */
    /* sandboxes */
    uint32_t default_cpu_milli, default_pids, default_open_files;
    uint64_t default_memory, default_disk, default_inodes;
    uint32_t default_timeout_s, max_timeout_s;
    uint32_t max_sandboxes; /* of the node */
    bool best_effort;
    bool strict;       /* privilege inside; default computer */
    char *templates;   /* directory of templates; default STATE/templates */
    /* limits of the HTTP side */
    uint32_t max_connections, max_connections_per_peer;
    uint64_t max_upload; /* bytes of one file upload; 0 = the sandbox's disk decides */
    /* logs */
    char *log_level;
};

int config_load(const char *path /* NULL: built-in */, struct config *ret, struct err *err);
void config_done(struct config *c);

#endif
