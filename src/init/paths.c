#include <string.h>

#include "init/init-int.h"

/* Appends one component; ".." takes the last one away. False if it does not fit. */
static bool path_add_component(char *out, size_t *n, const char *p, size_t len)
{
    if (len == 0 || (len == 1 && p[0] == '.'))
        return true;
    if (len == 2 && p[0] == '.' && p[1] == '.') {
        while (*n > 0 && out[--*n] != '/')
            ;
        return true;
    }
    if (*n + 1 + len >= INIT_PATH_MAX)
        return false;
    out[(*n)++] = '/';
    memcpy(out + *n, p, len);
    *n += len;
    return true;
}

static bool path_add_components(char *out, size_t *n, const char *path)
{
    while (*path) {
        size_t len = strcspn(path, "/");
        if (!path_add_component(out, n, path, len))
            return false;
        path += len;
        path += strspn(path, "/");
    }
    return true;
}

void paths_clean(char *ret, const char *base, const char *path)
{
    size_t n = 0;
    bool fits = path[0] == '/' || path_add_components(ret, &n, base);
    if (!fits || !path_add_components(ret, &n, path)) {
        ret[0] = '\0';
        return;
    }
    if (n == 0)
        ret[n++] = '/';
    ret[n] = '\0';
}

void paths_resolve(char *ret, const char *home, const char *workdir, const char *path)
{
    if (path[0] == '\0')
        paths_clean(ret, home, workdir && workdir[0] ? workdir : home);
    else if (path[0] == '~' && (path[1] == '\0' || path[1] == '/'))
        paths_clean(ret, home, path + 1 + strspn(path + 1, "/"));
    else
        paths_clean(ret, home, path);
}
