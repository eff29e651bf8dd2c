/* xattr.c - the extended attributes that a layer can hold. See walk.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "trees/walk.h"

enum { LIST_MAX = 64 << 10, VALUE_MAX = 64 << 10 };

static bool xattr_has_prefix(const char *s, const char *prefix, const char **rest)
{
    size_t n = strlen(prefix);
    *rest = s + n;
    return strncmp(s, prefix, n) == 0;
}

static bool xattr_is_mark(const char *rest)
{
    const char *escaped;
    return strcmp(rest, "opaque") == 0 || strcmp(rest, "redirect") == 0 || strcmp(rest, "metacopy") == 0 ||
           strcmp(rest, "whiteout") == 0 || xattr_has_prefix(rest, "overlay.", &escaped);
}

bool xattr_kept(const char *name, enum xattr_view view)
{
    const char *rest;
    if (view == XATTR_TRUSTED && xattr_has_prefix(name, "trusted.overlay.", &rest))
        return xattr_is_mark(rest);
    if (view == XATTR_USER && xattr_has_prefix(name, "user.overlay.", &rest))
        return xattr_is_mark(rest);
    return xattr_has_prefix(name, "user.", &rest) || strcmp(name, "security.capability") == 0 ||
           strcmp(name, "system.posix_acl_access") == 0 || strcmp(name, "system.posix_acl_default") == 0;
}

/* Overlay's own notes, which mean nothing in a lower layer. */
static bool xattr_is_bookkeeping(const char *name, enum xattr_view view)
{
    static const char *const known[] = {"origin", "impure", "nlink", "uuid", "upper"};
    const char *rest;
    if (!xattr_has_prefix(name, view == XATTR_USER ? "user.overlay." : "trusted.overlay.", &rest))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strcmp(rest, known[i]) == 0)
            return true;
    return false;
}

static bool xattr_is_strange(const char *name, enum xattr_view view)
{
    const char *rest;
    bool label = xattr_has_prefix(name, "security.", &rest) || xattr_has_prefix(name, "btrfs.", &rest);
    return !xattr_kept(name, view) && !xattr_is_bookkeeping(name, view) && !label;
}

int xattr_check(int fd, enum xattr_view view, const char *path, struct err *err)
{
    ssize_t all = flistxattr(fd, NULL, 0);
    if (all == 0 || (all < 0 && errno == ENOTSUP))
        return 0;
    _cleanup_free_ char *list = xmalloc(LIST_MAX);
    if ((all = flistxattr(fd, list, LIST_MAX)) < 0)
        return walk_fail(err, ERR_SETUP, errno, path, "its extended attributes cannot be listed");
    for (const char *p = list; p < list + all; p += strlen(p) + 1)
        if (xattr_is_strange(p, view))
            return walk_fail(err, ERR_SETUP, 0, path, "has the attribute %.100s, which no layer holds", p);
    return 0;
}

static uint32_t u32_at(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void u32_put(unsigned char *p, uint32_t v)
{
    for (unsigned i = 0; i < 4; i++)
        p[i] = (unsigned char)(v >> i * 8);
}

bool xattr_capability(unsigned char *v, size_t *n, uid_t shift)
{
    enum { REVISION_MASK = 0xff000000, REVISION_2 = 0x02000000, REVISION_3 = 0x03000000, SIZE_2 = 20, SIZE_3 = 24 };
    if (*n != SIZE_3 || (u32_at(v) & REVISION_MASK) != REVISION_3)
        return true;
    if (u32_at(v + SIZE_2) != shift)
        return false;
    u32_put(v, (u32_at(v) & ~(uint32_t)REVISION_MASK) | REVISION_2);
    *n = SIZE_2;
    return true;
}

/* An ACL is a version and entries of tag, permissions, id; only named users and groups have an id. */
static bool xattr_shift_acl(unsigned char *v, size_t n, uid_t shift)
{
    enum { HEAD = 4, ENTRY = 8, NAMED_USER = 2, NAMED_GROUP = 8 };
    for (size_t at = HEAD; at + ENTRY <= n; at += ENTRY) {
        unsigned tag = v[at] | (unsigned)v[at + 1] << 8;
        uint32_t id = u32_at(v + at + 4);
        if (tag != NAMED_USER && tag != NAMED_GROUP)
            continue;
        if (id < shift || id - shift > LAY_ID_MAX)
            return false;
        u32_put(v + at + 4, id - shift);
    }
    return true;
}

static void xattr_pack(struct buf *ret, const char *name, const void *value, size_t n)
{
    uint16_t head[2] = {(uint16_t)strlen(name), 0};
    uint32_t size = (uint32_t)n;
    buf_add(ret, head, sizeof head);
    buf_add(ret, &size, sizeof size);
    buf_add(ret, name, head[0]);
    buf_add(ret, value, n);
}

/* Adds one attribute to ret; one that was removed meanwhile is skipped. */
static int xattr_collect_one(int fd, const char *name, enum xattr_view view, uid_t shift, const char *path,
                             unsigned char *value, struct buf *ret, bool *opaque, struct err *err)
{
    ssize_t got = fgetxattr(fd, name, value, VALUE_MAX);
    if (got < 0 && errno == ENODATA)
        return 0;
    if (got < 0)
        return walk_fail(err, ERR_SETUP, errno, path, "attribute %s cannot be read", name);
    size_t n = (size_t)got, before = ret->n;
    const char *mark = view == XATTR_TRUSTED ? "trusted.overlay.opaque" : "user.overlay.opaque";
    if (view != XATTR_MERGED && strcmp(name, mark) == 0 && n == 1 && value[0] == 'y') {
        *opaque = true;
        return 0;
    }
    if (strcmp(name, "security.capability") == 0 && !xattr_capability(value, &n, shift))
        return 0; /* of another namespace: they have no effect in this tree */
    if (strncmp(name, "system.posix_acl_", 17) == 0 && !xattr_shift_acl(value, n, shift))
        return walk_fail(err, ERR_SETUP, 0, path, "its ACL names a user or group outside %u..%u", shift,
                         shift + LAY_ID_MAX);
    xattr_pack(ret, name, value, n);
    if (ret->n > LAY_XATTRS_MAX) {
        ret->n = before;
        return walk_fail(err, ERR_LIMIT, 0, path, "more than %d bytes of extended attributes", LAY_XATTRS_MAX);
    }
    return 0;
}

int xattr_collect(int fd, enum xattr_view view, uid_t shift, const char *path, struct buf *ret, bool *opaque,
                  struct err *err)
{
    ret->n = 0;
    *opaque = false;
    ssize_t all = flistxattr(fd, NULL, 0); /* nearly always nothing: without a buffer first */
    if (all == 0 || (all < 0 && errno == ENOTSUP))
        return 0;
    _cleanup_free_ char *list = xmalloc(LIST_MAX);
    _cleanup_free_ unsigned char *value = NULL;
    _cleanup_free_ char **names = NULL;
    size_t n = 0, cap = 0;
    all = flistxattr(fd, list, LIST_MAX);
    if (all < 0)
        return walk_fail(err, ERR_SETUP, errno, path, "its extended attributes cannot be listed");
    for (char *p = list; p < list + all; p += strlen(p) + 1)
        if (xattr_kept(p, view)) {
            MEM_GROW(names, n, cap);
            names[n++] = p;
        }
    if (n == 0)
        return 0;
    qsort(names, n, sizeof *names, walk_by_bytes);
    value = xmalloc(VALUE_MAX);
    for (size_t i = 0; i < n; i++)
        if (xattr_collect_one(fd, names[i], view, shift, path, value, ret, opaque, err) < 0)
            return -1;
    return 0;
}

int xattr_set(int fd, const struct buf *packed, const char *path, struct err *err)
{
    struct xattr_item x;
    for (size_t at = 0; xattr_next((const unsigned char *)packed->p, packed->n, &at, &x) > 0;)
        if (fsetxattr(fd, x.name, x.value, x.n, 0) < 0)
            return walk_fail(err, ERR_SETUP, errno, path, "attribute %s cannot be set", x.name);
    return 0;
}

int xattr_mark_opaque(int fd, enum xattr_view view)
{
    return fsetxattr(fd, view == XATTR_USER ? "user.overlay.opaque" : "trusted.overlay.opaque", "y", 1, 0);
}

int xattr_clear(int fd)
{
    const char *rest;
    ssize_t all = flistxattr(fd, NULL, 0);
    if (all == 0 || (all < 0 && errno == ENOTSUP))
        return 0;
    _cleanup_free_ char *list = xmalloc(LIST_MAX);
    if ((all = flistxattr(fd, list, LIST_MAX)) < 0)
        return -1;
    for (char *p = list; p < list + all; p += strlen(p) + 1)
        if (xattr_kept(p, XATTR_MERGED) && !xattr_has_prefix(p, "user.overlay.", &rest) && fremovexattr(fd, p) < 0 &&
            errno != ENODATA)
            return -1;
    return 0;
}

int xattr_next(const unsigned char *block, size_t n, size_t *at, struct xattr_item *ret)
{
    uint16_t head[2];
    uint32_t size;
    if (*at == n)
        return 0;
    if (n - *at < sizeof head + sizeof size)
        return -1;
    memcpy(head, block + *at, sizeof head);
    memcpy(&size, block + *at + sizeof head, sizeof size);
    *at += sizeof head + sizeof size;
    if (head[1] != 0 || head[0] == 0 || head[0] >= sizeof ret->name || n - *at < head[0] || n - *at - head[0] < size ||
        memchr(block + *at, '\0', head[0]))
        return -1;
    memcpy(ret->name, block + *at, head[0]);
    ret->name[head[0]] = '\0';
    ret->value = block + *at + head[0];
    ret->n = size;
    *at += head[0] + size;
    return 1;
}
