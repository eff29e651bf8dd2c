/* front.h - the unprivileged process that speaks HTTP: what its parts share.
 *
 * front keeps no state of its own. Tenants, keys and the facts about sandboxes live in the store and are read into memory
 * at start; keeper says which sandboxes live; init holds what runs inside. After kill -9 the next front finds all of it.
 */
#ifndef HUTCH_FRONT_FRONT_H
#define HUTCH_FRONT_FRONT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "front/config.h"
#include "http/http.h"
#include "loop/loop.h"
#include "sandbox/keeperc.h"
#include "sandbox/link.h"

struct store;
struct boxes;
struct tenants;
struct events;
struct metrics;
struct idseal;
struct templates;
struct net_doc;
struct nets;
struct vault;
struct builds;
struct generations;
struct transactions;
struct tmpls;
struct stockc;
struct volumes;
struct webhook;

enum { FRONT_LINK_KEY = 32 };

struct front {
    struct loop *loop;
    const struct config *config;
    struct links *links;
    struct keeperc *keeper;
    struct stockc *stock; /* sandbox/stockc.h */
    struct store *store;
    struct tenants *tenants; /* tenants.h */
    struct boxes *boxes;     /* boxes.h */
    struct events *events;   /* events.h */
    struct metrics *metrics; /* metrics.h */
    struct idseal *ids;      /* idseal.h */
    struct templates *templates;
    struct tmpls *tmpls;               /* state.h */
    struct nets *nets;                 /* nets.h */
    struct vault *vault;               /* vault.h */
    struct builds *builds;             /* builds.h */
    struct generations *generations;   /* generations.h */
    struct transactions *transactions; /* transactions.h */
    struct volumes *volumes;           /* volumes.h */
    struct webhook *webhook;           /* webhook.h; NULL: none */
    struct net_doc *network;           /* of sandboxes whose creator names none; NULL: the API decides */
    struct net_doc *network_e2b;       /* the same for creates in E2B's words; there if network is */
    uint64_t started_ms;
    int own_dir; /* front's own directory: uploads become files without a name in it. Borrowed */
    unsigned char link_key[FRONT_LINK_KEY]; /* signs links to ports (gateway.h) */
    char admin_digest[72];                  /* SHA-256 of the operator's key; "" in tests */
    char admin_hint[12];
};

/* api.c: the handler of every request: gateway, envd, E2B REST, native API, by host, headers and path. */
void front_handle(void *ctx, struct http_req *r);

#endif
