#include "http/router.h"

#include <stdio.h>
#include <string.h>

#include "http/url.h"

const char *route_param(const struct route_params *p, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < p->n; i++)
        if (strncmp(p->name[i], name, n) == 0 && p->name[i][n] == '}')
            return p->value[i];
    return NULL;
}

/* Why the escapes of a path cannot be decoded; NULL if they can. */
static const char *route_bad_escape(const char *path)
{
    for (const char *p = path; (p = strchr(p, '%')); p += 3) {
        if (url_hex_digit(p[1]) < 0 || url_hex_digit(p[2]) < 0)
            return "the path has a '%' that is not followed by two hexadecimal digits";
        if (p[1] == '0' && p[2] == '0')
            return "the path has an encoded NUL";
    }
    return NULL;
}

/* Decodes s[0..n), whose escapes have been checked, into `to`; returns its length with NUL. */
static size_t route_decode(char *to, const char *s, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '%') {
            to[k++] = (char)((unsigned)url_hex_digit(s[i + 1]) << 4 | (unsigned)url_hex_digit(s[i + 2]));
            i += 2;
        } else {
            to[k++] = s[i];
        }
    }
    to[k++] = '\0';
    return k;
}

/* Both begin with '/'. A parameter takes one segment that is not empty. */
static bool route_fits(const char *pattern, const char *path, struct route_params *params)
{
    size_t used = 0;
    params->n = 0;
    while (*pattern == '/' && *path == '/') {
        pattern++;
        path++;
        size_t a = strcspn(pattern, "/"), b = strcspn(path, "/");
        if (a > 2 && pattern[0] == '{' && pattern[a - 1] == '}') {
            if (b == 0 || params->n == ROUTER_PARAMS_MAX)
                return false;
            params->name[params->n] = pattern + 1;
            params->value[params->n++] = params->bytes + used;
            used += route_decode(params->bytes + used, path, b);
        } else if (a != b || memcmp(pattern, path, a) != 0) {
            return false;
        }
        pattern += a;
        path += b;
    }
    return *pattern == '\0' && *path == '\0';
}

/* Of two patterns that fit the same path: below 0 if the first difference is a word in `a` and a parameter in `b`,
 * above 0 if it is the other way round, 0 if they have parameters in the same places. */
static int route_compare_patterns(const char *a, const char *b)
{
    while (*a == '/' && *b == '/') {
        bool any_a = a[1] == '{', any_b = b[1] == '{';
        if (any_a != any_b)
            return any_a ? 1 : -1;
        a += 1 + strcspn(a + 1, "/");
        b += 1 + strcspn(b + 1, "/");
    }
    return 0;
}

static void route_add_allow(struct route_match *m, const char *method)
{
    size_t n = strlen(m->allow), len = strlen(method);
    const char *at = strstr(m->allow, method);
    if (at && (at[len] == ',' || at[len] == '\0') && (at == m->allow || at[-1] == ' '))
        return;
    if (n + len + 3 <= sizeof m->allow)
        (void)snprintf(m->allow + n, sizeof m->allow - n, "%s%s", n ? ", " : "", method);
}

void route_find(const struct route *table, size_t n, const char *method, const char *path, struct route_match *ret,
                struct route_params *params)
{
    const struct route *get = NULL;
    const char *closest = NULL; /* the pattern with most words: its methods are allowed */
    *ret = (struct route_match){.result = ROUTE_NOT_FOUND};
    params->n = 0;
    if (strlen(path) > ROUTER_PATH_MAX)
        ret->why = "the path is longer than 4 KiB";
    else
        ret->why = route_bad_escape(path);
    if (ret->why) {
        ret->result = ROUTE_BAD;
        return;
    }
    bool head = strcmp(method, "HEAD") == 0;
    for (size_t i = 0; i < n && !ret->route; i++) {
        if (!route_fits(table[i].pattern, path, params))
            continue;
        if (strcmp(table[i].method, method) == 0)
            ret->route = &table[i];
        else if (head && !get && strcmp(table[i].method, "GET") == 0)
            get = &table[i];
        int order = closest ? route_compare_patterns(table[i].pattern, closest) : -1;
        if (order > 0)
            continue;
        if (order < 0)
            ret->allow[0] = '\0';
        closest = table[i].pattern;
        route_add_allow(ret, table[i].method);
        if (strcmp(table[i].method, "GET") == 0)
            route_add_allow(ret, "HEAD");
    }
    if (!ret->route && get) {
        ret->route = get;
        (void)route_fits(get->pattern, path, params);
    }
    if (ret->route)
        ret->result = ROUTE_FOUND;
    else if (ret->allow[0])
        ret->result = ROUTE_METHOD;
    if (ret->result != ROUTE_FOUND)
        params->n = 0;
}
