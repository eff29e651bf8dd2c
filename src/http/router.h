/* router.h - finds the function that answers a method and path. Pure: it calls none.
 *
 * The raw path is split at '/' first and each parameter is decoded afterwards, so an encoded slash stays inside its
 * parameter. Patterns are fixed segments and whole-segment parameters: "/sandboxes/{id}/timeout".
 */
#ifndef HUTCH_HTTP_ROUTER_H
#define HUTCH_HTTP_ROUTER_H

#include "http/http.h"

enum { ROUTER_PARAMS_MAX = 8, ROUTER_PATH_MAX = 4096 };

struct route_params {
    size_t n;
    const char *name[ROUTER_PARAMS_MAX];  /* points into the pattern, up to '}'; use route_param() */
    const char *value[ROUTER_PARAMS_MAX]; /* decoded, NUL-terminated */
    char bytes[ROUTER_PATH_MAX + ROUTER_PARAMS_MAX];
};
/* The decoded value of "{name}", or NULL. */
const char *route_param(const struct route_params *p, const char *name);

typedef void route_fn(void *ctx, struct http_req *r, const struct route_params *params);

struct route {
    const char *method; /* GET also answers HEAD unless HEAD has a route of its own */
    const char *pattern;
    route_fn *fn;
    unsigned flags; /* the caller's */
};

enum route_result {
    ROUTE_FOUND,
    ROUTE_NOT_FOUND, /* 404 */
    ROUTE_METHOD,    /* 405; `allow` names the methods the path has */
    ROUTE_BAD,       /* 400: an escape is not valid or stands for NUL; or the path is longer than ROUTER_PATH_MAX */
};
struct route_match {
    enum route_result result;
    const struct route *route; /* ROUTE_FOUND */
    const char *why;           /* ROUTE_BAD: one line, static */
    char allow[96];            /* ROUTE_METHOD: "GET, HEAD, POST" */
};
/* Finds the first route of table[0..n) that fits; a fixed segment listed before a parameter wins. OPTIONS gets
 * ROUTE_METHOD like any other method without a route. */
void route_find(const struct route *table, size_t n, const char *method, const char *path, struct route_match *ret,
                struct route_params *params);

#endif
