#include "base/path.h"

#include <fnmatch.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"

char *path_clean(const char *base, const char *path)
{
    _cleanup_free_ char *full = *path == '/' ? xstrdup(path) : xasprintf("%s/%s", base, path);
    char *out = xmalloc(strlen(full) + 2);
    size_t n = 0;
    for (const char *p = full; *p;) {
        while (*p == '/')
            p++;
        size_t len = strcspn(p, "/");
        if (len == 0)
            break;
        if (len == 2 && p[0] == '.' && p[1] == '.') {
            while (n > 0 && out[n - 1] != '/')
                n--;
            if (n > 0)
                n--;
        } else if (!(len == 1 && p[0] == '.')) {
            out[n++] = '/';
            memcpy(out + n, p, len);
            n += len;
        }
        p += len;
    }
    if (n == 0)
        out[n++] = '/';
    out[n] = '\0';
    return out;
}

char *path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir), len = strlen(name), slash = n > 0 && dir[n - 1] == '/' ? 0 : 1;
    char *out = xmalloc(n + slash + len + 1);
    memcpy(out, dir, n);
    out[n] = '/';
    memcpy(out + n + slash, name, len + 1);
    return out;
}

bool path_under(const char *path, const char *dir)
{
    size_t n = 0; /* asked thousands of times for a plan, and the answer is mostly no after a few bytes */
    while (dir[n] && dir[n] == path[n])
        n++;
    return dir[n] == '\0' && (path[n] == '\0' || path[n] == '/' || (n == 1 && dir[0] == '/'));
}

const char *path_name(const char *path)
{
    const char *s = strrchr(path, '/');
    return s ? s + 1 : path;
}

char *path_parent(const char *path)
{
    const char *s = strrchr(path, '/');
    return !s || s == path ? xstrdup("/") : xstrndup(path, (size_t)(s - path));
}

size_t path_depth(const char *path)
{
    size_t n = 0;
    for (const char *p = path; *p; p++)
        n += *p == '/' && p[1] != '\0';
    return n;
}

bool path_is_glob(const char *path) { return strpbrk(path, "*?[") != NULL; }

bool path_match(const char *glob, const char *path)
{
    for (;;) {
        size_t gl = strcspn(glob, "/"), pl = strcspn(path, "/");
        if (gl == 2 && glob[0] == '*' && glob[1] == '*') {
            if (glob[2] == '\0')
                return true;
            for (const char *p = path;;) {
                if (path_match(glob + 3, p))
                    return true;
                p = strchr(p, '/');
                if (!p)
                    return false;
                p++;
            }
        }
        _cleanup_free_ char *g = xstrndup(glob, gl), *c = xstrndup(path, pl);
        if (fnmatch(g, c, 0) != 0)
            return false;
        glob += gl;
        path += pl;
        if (*glob == '\0' || *path == '\0')
            return *glob == *path;
        glob++;
        path++;
    }
}
