/* tx-attr.c - extended attributes that a file's owner may set: access lists and user.*. Others are not copied: the system sets
 * its own labels, and a rewritten program has no capabilities.
 *
 * All attributes of a file are handled as one text: the kinds it covers (a layer on an old kernel has no user.*; then the
 * host's stay), then the attributes in order of their names.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/run/tx.h"

#define ACCESS  "system.posix_acl_access"
#define DEFAULT "system.posix_acl_default"
enum { KIND_USER = 1, KIND_LISTS = 2, LIST_MAX = 64 << 10, VALUE_MAX = 64 << 10 };

/* 0: not handled here. */
static unsigned attr_kind(const char *name)
{
    if (strcmp(name, ACCESS) == 0 || strcmp(name, DEFAULT) == 0)
        return KIND_LISTS;
    return strncmp(name, "user.", 5) == 0 && strncmp(name, "user.overlay.", 13) != 0 ? KIND_USER : 0;
}

static bool attr_is_supported(int fd, const char *name)
{
    return fgetxattr(fd, name, NULL, 0) >= 0 || errno != ENOTSUP;
}

unsigned tx_attrs_kinds(int layer)
{
    return (attr_is_supported(layer, "user.hutch") ? KIND_USER : 0) |
           (attr_is_supported(layer, ACCESS) ? KIND_LISTS : 0);
}

/* --- read --------------------------------------------------------------------------------------------------------- */

/* A version, then entries of tag, permissions and id; only named users and groups have an id. */
static bool shift_list(unsigned char *v, size_t n, uid_t shift)
{
    enum { HEAD = 4, ENTRY = 8, NAMED_USER = 2, NAMED_GROUP = 8 };
    for (size_t at = HEAD; at + ENTRY <= n; at += ENTRY) {
        unsigned tag = v[at] | (unsigned)v[at + 1] << 8;
        uint32_t id;
        memcpy(&id, v + at + 4, sizeof id);
        if (tag != NAMED_USER && tag != NAMED_GROUP)
            continue;
        if (id < shift)
            return false;
        id -= shift;
        memcpy(v + at + 4, &id, sizeof id);
    }
    return true;
}

/* Adds the name with its NUL, the size and the value. */
static bool attr_pack(const char *path, const char *name, uid_t shift, struct buf *ret)
{
    static unsigned char value[VALUE_MAX];
    ssize_t n = getxattr(path, name, value, sizeof value);
    uint32_t size = (uint32_t)n;
    if (n < 0)
        return errno == ENODATA;
    if (attr_kind(name) == KIND_LISTS && !shift_list(value, size, shift))
        return false;
    buf_add(ret, name, strlen(name) + 1);
    buf_add(ret, &size, sizeof size);
    buf_add(ret, value, size);
    return true;
}

static char *as_text(unsigned kinds, const struct buf *packed)
{
    struct buf text = {0};
    buf_addf(&text, "%u:", kinds);
    base64_encode(&text, packed->p, packed->n);
    return text.p;
}

char *tx_attrs_read(int dir, const char *name, unsigned kinds, uid_t shift)
{
    static char list[LIST_MAX];
    char path[TX_FD_PATH];
    _cleanup_buf_ struct buf packed = {0};
    _cleanup_free_ char **names = NULL;
    size_t n = 0, cap = 0;
    _cleanup_close_ int fd = dir < 0 ? -1 : openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    ssize_t all = fd < 0 ? 0 : listxattr(tx_fd_path(fd, path), list, sizeof list);
    if (all < 0 && errno != ENOTSUP)
        return NULL;
    for (char *p = list; p < list + all; p += strlen(p) + 1)
        if (attr_kind(p) & kinds) {
            MEM_GROW(names, n, cap);
            names[n++] = p;
        }
    if (n > 1)
        qsort(names, n, sizeof *names, strv_compare);
    for (size_t i = 0; i < n; i++)
        if (!attr_pack(path, names[i], shift, &packed))
            return NULL;
    return as_text(kinds, &packed);
}

unsigned tx_attrs_kinds_of(const char *text)
{
    return text[0] >= '0' && text[0] <= '3' ? (unsigned)(text[0] - '0') : 0;
}

/* --- set ---------------------------------------------------------------------------------------------------------- */

struct item {
    const char *name;
    const unsigned char *value;
    uint32_t n;
};

/* Reads the attribute at *at; false at the end or if it is malformed. */
static bool next_item(const struct buf *b, size_t *at, struct item *ret)
{
    const char *name = b->p + *at, *end = *at < b->n ? memchr(name, '\0', b->n - *at) : NULL;
    size_t left = end ? b->n - (size_t)(end + 1 - b->p) : 0;
    if (left < sizeof ret->n)
        return false;
    memcpy(&ret->n, end + 1, sizeof ret->n);
    if (left - sizeof ret->n < ret->n)
        return false;
    ret->name = name;
    ret->value = (const unsigned char *)end + 1 + sizeof ret->n;
    *at = (size_t)(ret->value - (const unsigned char *)b->p) + ret->n;
    return true;
}

static bool has_item(const struct buf *b, const char *name)
{
    struct item x;
    for (size_t at = 0; next_item(b, &at, &x);)
        if (strcmp(x.name, name) == 0)
            return true;
    return false;
}

static void remove_others(const char *path, unsigned kinds, const struct buf *wanted)
{
    static char list[LIST_MAX];
    ssize_t all = listxattr(path, list, sizeof list);
    for (const char *p = list; p < list + all; p += strlen(p) + 1)
        if ((attr_kind(p) & kinds) && !has_item(wanted, p))
            (void)removexattr(path, p);
}

void tx_attrs_bare(int fd)
{
    char path[TX_FD_PATH];
    (void)removexattr(tx_fd_path(fd, path), ACCESS);
    (void)removexattr(path, DEFAULT);
}

mode_t tx_attrs_set(int fd, const char *text, mode_t mode, const char *shown, struct strv *left)
{
    char path[TX_FD_PATH];
    _cleanup_buf_ struct buf packed = {0};
    struct item x;
    const char *colon = text ? strchr(text, ':') : NULL;
    if (!colon || !base64_decode(&packed, colon + 1, strlen(colon + 1)))
        return mode;
    remove_others(tx_fd_path(fd, path), tx_attrs_kinds_of(text), &packed);
    for (size_t at = 0; next_item(&packed, &at, &x);) {
        if (!attr_kind(x.name) || setxattr(path, x.name, x.value, x.n, 0) == 0)
            continue;
        strv_take(left, xasprintf("%s cannot have the attribute %s there; it stays behind", tx_shown(shown),
                                  tx_shown(x.name)));
        if (strcmp(x.name, ACCESS) == 0) /* the group bits of the mode are the list's mask */
            mode &= ~(mode_t)S_IRWXG;
    }
    return mode;
}

int tx_attrs_keep(int dir, const char *name, unsigned but, int to)
{
    static char list[LIST_MAX], value[VALUE_MAX];
    char path[TX_FD_PATH];
    struct stat st;
    _cleanup_close_ int from = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (from < 0 || fstat(from, &st) < 0)
        return errno == ENOENT ? 0 : -1;
    if (!S_ISREG(st.st_mode))
        return 0;
    ssize_t n = listxattr(tx_fd_path(from, path), list, sizeof list);
    if (n < 0)
        return errno == ENOTSUP ? 0 : -1;
    for (const char *p = list; p < list + n; p += strlen(p) + 1) {
        ssize_t size = attr_kind(p) & ~but ? getxattr(path, p, value, sizeof value) : -1;
        if (size >= 0 && fsetxattr(to, p, value, (size_t)size, 0) < 0)
            return -1;
    }
    return 0;
}
