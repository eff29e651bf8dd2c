/* api-routes.c - joins the routes of all dialects in one table and finds the route of a request in it. */
#include <stdlib.h>

#include "api/api.h"
#include "base/mem.h"
#include "http/router.h"

void api_routes_join(struct api *api)
{
    size_t n = 0;
    for (size_t i = 0; i < api->ndialects; i++)
        n += api->dialects[i]->nroutes;
    api->routes = xcalloc(n, sizeof *api->routes);
    api->patterns = xcalloc(n, sizeof *api->patterns);
    for (size_t i = 0; i < api->ndialects; i++)
        for (size_t k = 0; k < api->dialects[i]->nroutes; k++) {
            const struct api_route *route = &api->dialects[i]->routes[k];
            api->patterns[api->nroutes] = (struct route){.method = route->method, .pattern = route->pattern};
            api->routes[api->nroutes++] = route;
        }
}

enum api_match api_match(const struct api *api, const char *method, const char *path, const struct api_route **ret,
                         char *param[API_PARAMS_MAX], struct buf *allow)
{
    static struct route_params params; /* large; front has one loop */
    struct route_match m;
    route_find(api->patterns, api->nroutes, method, path, &m, &params);
    switch (m.result) {
    case ROUTE_NOT_FOUND:
        return API_NO_PATH;
    case ROUTE_METHOD:
        buf_adds(allow, m.allow);
        return API_NO_METHOD;
    case ROUTE_BAD:
        return API_BAD_PATH;
    case ROUTE_FOUND:
        break;
    }
    *ret = api->routes[m.route - api->patterns];
    for (size_t i = 0; i < params.n && i < API_PARAMS_MAX; i++)
        param[i] = xstrdup(params.value[i]);
    return API_MATCHED;
}
