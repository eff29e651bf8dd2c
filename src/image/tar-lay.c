/* tar-lay.c - converts the entries of a tar to records of a lay stream: checks names, translates whiteouts, leaves out
 * what a sandbox cannot have.
 */
#include <archive_entry.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "image/image-int.h"

enum { ID_MAX = 65535 };
#define ENTRIES_MAX (UINT64_C(4) << 20)

#define WH          ".wh."
#define WH_META     ".wh..wh."
#define WH_OPQ      ".wh..wh..opq"

struct work {
    struct tar tar;
    struct stream *stream;
    struct lay_out *out;
    struct tar_lay *l;
    struct seen seen;
    struct buf xattrs;
    uint64_t max_bytes, max_entries, max_file;
    char path[LAY_PATH_MAX + sizeof WH_OPQ]; /* with room for the name of a whiteout */
};

static int lay_refuse(const struct work *w, const char *raw, const char *why, struct err *err)
{
    return image_fail(err, IMAGE_BAD_DATA, "%s: the entry \"%s\" is refused: %s", w->stream->what, image_shown(raw),
                      why);
}

static int lay_refuse_name(const struct work *w, const char *raw, const char *why, struct err *err)
{
    char text[120];
    (void)snprintf(text, sizeof text, "its name %s", why);
    return lay_refuse(w, raw, text, err);
}

static int lay_put(struct work *w, struct lay_record *r, const char *path, const char *target, struct err *err)
{
    bool keep = r->type == LAY_DIR || r->type == LAY_FILE || r->type == LAY_META;
    if (lay_out_record(w->out, r, path, target, keep ? w->xattrs.p : NULL, keep ? w->xattrs.n : 0) < 0)
        return image_fail(err, IMAGE_HOST, "the job takes no more: %s", strerror(errno));
    return 0;
}

/* --- extended attributes ------------------------------------------------------------------------------------------ */

/* Keeps attributes that mean the same in every sandbox. Overlay's own marks must never come from an archive. */
static bool lay_keeps_attribute(const char *name)
{
    if (strncmp(name, "user.overlay.", 13) == 0)
        return false;
    return strncmp(name, "user.", 5) == 0 || strcmp(name, "security.capability") == 0 ||
           strcmp(name, "system.posix_acl_access") == 0 || strcmp(name, "system.posix_acl_default") == 0;
}

static int lay_hex_digit(char c)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* libarchive encodes special characters of attribute names as %XX when it writes, but does not decode them when it
 * reads. Other tools do not encode, so only our own exports are decoded. More than LAY_NAME_MAX: too long. */
static size_t lay_attribute_name(const struct work *w, const char *raw, char ret[LAY_NAME_MAX + 2])
{
    size_t n = 0;
    for (; *raw && n <= LAY_NAME_MAX; n++) {
        int high = w->l->export && raw[0] == '%' ? lay_hex_digit(raw[1]) : -1,
            low = high >= 0 ? lay_hex_digit(raw[2]) : -1;
        bool coded = low >= 0 && high + low > 0;
        ret[n] = coded ? (char)(high * 16 + low) : raw[0];
        raw += coded ? 3 : 1;
    }
    ret[n] = '\0';
    return n;
}

static int lay_take_xattrs(struct work *w, struct archive_entry *e, struct err *err)
{
    char name[LAY_NAME_MAX + 2];
    const char *raw;
    const void *value;
    size_t n;
    w->xattrs.n = 0;
    (void)archive_entry_xattr_reset(e);
    while (archive_entry_xattr_next(e, &raw, &value, &n) == ARCHIVE_OK) {
        size_t len = raw ? lay_attribute_name(w, raw, name) : 0;
        if (len == 0 || !lay_keeps_attribute(name)) {
            w->l->xattrs++;
            continue;
        }
        struct {
            uint16_t name_len, zero;
            uint32_t value_len;
        } head = {(uint16_t)len, 0, (uint32_t)n};
        if (len > LAY_NAME_MAX || n > LAY_XATTRS_MAX || w->xattrs.n + sizeof head + len + n > LAY_XATTRS_MAX)
            return lay_refuse(w, archive_entry_pathname(e), "its extended attributes are larger than 64 KiB", err);
        buf_add(&w->xattrs, &head, sizeof head);
        buf_add(&w->xattrs, name, len);
        buf_add(&w->xattrs, value, n);
    }
    return 0;
}

/* --- whiteouts ---------------------------------------------------------------------------------------------------- */

/* A whiteout hides entries of lower layers, never those of its own layer, in whatever order they come. */
static int lay_put_opaque(struct work *w, const char *path, struct err *err)
{
    struct lay_record r = {.type = LAY_OPAQUE};
    dirs_take(&w->l->dirs, path, true);
    return lay_put(w, &r, path, "", err);
}

/* Notes a directory that has no entry of its own, only contents. If lower layers have it, its attributes there are
 * kept; if this layer whited it out, it becomes a new directory. as: SEEN_DIR, or SEEN_MARKED, which a whiteout may
 * still hide. */
static int lay_note_dir(struct work *w, const char *path, size_t n, enum seen_kind as, struct err *err)
{
    char dir[LAY_PATH_MAX];
    enum seen_kind kind = image_seen_get(&w->seen, path, n);
    if (n == 0 || (kind != SEEN_WHITEOUT && kind != SEEN_NOTHING && kind != SEEN_MARKED))
        return 0;
    memcpy(dir, path, n);
    dir[n] = '\0';
    image_seen_put(&w->seen, dir, kind == SEEN_WHITEOUT ? SEEN_DIR : as);
    struct lay_record r = {.type = LAY_DIR, .mode = 0755};
    w->xattrs.n = 0;
    bool below = kind == SEEN_NOTHING && dirs_get(&w->l->dirs, dir, &r, &w->xattrs);
    if ((below || kind == SEEN_WHITEOUT) && lay_put(w, &r, dir, "", err) < 0)
        return -1;
    return kind == SEEN_WHITEOUT ? lay_put_opaque(w, dir, err) : 0;
}

static int lay_note_parents(struct work *w, const char *path, enum seen_kind as, struct err *err)
{
    for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/'))
        if (lay_note_dir(w, path, (size_t)(slash - path), as, err) < 0)
            return -1;
    return 0;
}

static int lay_put_whiteout(struct work *w, const char *raw, char *path, char *name, struct err *err)
{
    struct lay_record r = {.type = LAY_WHITEOUT};
    bool opaque = strcmp(name, WH_OPQ) == 0, meta = !opaque && strncmp(name, WH_META, sizeof WH_META - 1) == 0;
    if (opaque)
        name[name == path ? 0 : -1] = '\0';
    else if (!meta)
        memmove(name, name + sizeof WH - 1, strlen(name + sizeof WH - 1) + 1);
    const char *wrong = !opaque && !name[0] ? "stands for no file"
                        : path[0]           ? lay_path_wrong(path, strlen(path))
                                            : NULL;
    if (wrong)
        return lay_refuse_name(w, raw, wrong, err);
    if (meta)
        return 0;
    if (lay_note_parents(w, path, SEEN_MARKED, err) < 0)
        return -1;
    if (opaque)
        return lay_note_dir(w, path, strlen(path), SEEN_MARKED, err) < 0 ? -1 : lay_put_opaque(w, path, err);
    switch (image_seen_get(&w->seen, path, strlen(path))) {
    case SEEN_DIR:
        return lay_put_opaque(w, path, err);
    case SEEN_FILE:
    case SEEN_OTHER:
        return 0;
    default:
        image_seen_put(&w->seen, path, SEEN_WHITEOUT);
        dirs_take(&w->l->dirs, path, false);
        return lay_put(w, &r, path, "", err);
    }
}

/* --- entries ------------------------------------------------------------------------------------------------------ */

static void lay_put_seen(struct work *w, const char *path, enum seen_kind kind)
{
    image_seen_put(&w->seen, path, kind);
    dirs_replace(&w->l->dirs, path);
}

static int lay_put_content(struct work *w, uint64_t size, struct err *err)
{
    uint64_t offset = 0;
    const void *p;
    ssize_t n;
    while ((n = tar_data(&w->tar, size, &offset, &p, err)) > 0) {
        if (lay_out_bytes(w->out, p, (size_t)n) < 0)
            return image_fail(err, IMAGE_HOST, "the job takes no more: %s", strerror(errno));
        say_progress(w->stream->src->done, w->l->total, "unpacking");
    }
    return n < 0 ? -1 : 0;
}

static int lay_put_file(struct work *w, struct archive_entry *e, struct lay_record *r, const char *path,
                        struct err *err)
{
    int64_t size = archive_entry_size_is_set(e) ? archive_entry_size(e) : 0;
    const char *raw = archive_entry_pathname(e);
    if (size < 0)
        return lay_refuse(w, raw, "its size is negative", err);
    r->size = (uint64_t)size;
    if (r->size > w->max_file || w->l->bytes + r->size > w->max_bytes)
        return image_fail(err, IMAGE_TOO_LARGE, "%s: with \"%s\" (%lld bytes) it is larger than %llu bytes",
                          w->stream->what, image_shown(raw), (long long)size, (unsigned long long)w->max_bytes);
    w->l->bytes += r->size;
    if (lay_put(w, r, path, "", err) < 0)
        return -1;
    lay_put_seen(w, path, SEEN_FILE);
    return lay_put_content(w, r->size, err);
}

static int lay_put_hardlink(struct work *w, const char *raw, const char *link, const char *path, struct err *err)
{
    struct lay_record r = {.type = LAY_HARDLINK};
    char target[LAY_PATH_MAX], why[LAY_NAME_MAX + 64];
    const char *wrong = tar_name(link, target);
    if (wrong || target[0] == '\0') {
        (void)snprintf(why, sizeof why, "it is a hard link to \"%.100s\", which %s", image_shown(link),
                       wrong ? wrong : "is the root");
        return lay_refuse(w, raw, why, err);
    }
    if (strcmp(target, path) == 0)
        return 0; /* to itself: it is there already */
    enum seen_kind kind = image_seen_get(&w->seen, target, strlen(target));
    if (kind != SEEN_FILE && kind != SEEN_OTHER) {
        (void)snprintf(why, sizeof why,
                       "it is a hard link to \"%.100s\", which is not a file before it in the same layer",
                       image_shown(link));
        return lay_refuse(w, raw, why, err);
    }
    lay_put_seen(w, path, kind);
    return lay_put(w, &r, path, target, err);
}

static int lay_fill_record(const struct work *w, struct archive_entry *e, struct lay_record *r, struct err *err)
{
    int64_t uid = archive_entry_uid(e), gid = archive_entry_gid(e);
    if (uid < 0 || uid > ID_MAX || gid < 0 || gid > ID_MAX) {
        char why[120];
        (void)snprintf(why, sizeof why, "its owner is %lld:%lld; a sandbox has the ids 0 to %d", (long long)uid,
                       (long long)gid, ID_MAX);
        return lay_refuse(w, archive_entry_pathname(e), why, err);
    }
    *r = (struct lay_record){.mode = archive_entry_perm(e) & 07777, .uid = (uint32_t)uid, .gid = (uint32_t)gid};
    if (archive_entry_mtime_is_set(e)) {
        long nsec = archive_entry_mtime_nsec(e);
        r->mtime_sec = archive_entry_mtime(e);
        r->mtime_nsec = nsec >= 0 && nsec < 1000000000 ? (uint32_t)nsec : 0;
    }
    return 0;
}

static int lay_put_entry(struct work *w, struct archive_entry *e, char *path, struct err *err)
{
    struct lay_record r;
    const char *raw = archive_entry_pathname(e), *link = archive_entry_hardlink(e);
    mode_t type = archive_entry_filetype(e);
    if (lay_note_parents(w, path, SEEN_DIR, err) < 0)
        return -1;
    if (link)
        return path[0] ? lay_put_hardlink(w, raw, link, path, err)
                       : lay_refuse(w, raw, "the root cannot be a link", err);
    if (type != S_IFDIR && path[0] == '\0')
        return lay_refuse(w, raw, "the root is not a directory", err);
    if (lay_fill_record(w, e, &r, err) < 0 || lay_take_xattrs(w, e, err) < 0)
        return -1;
    bool whited = image_seen_get(&w->seen, path, strlen(path)) == SEEN_WHITEOUT;
    switch (type) {
    case S_IFDIR:
        r.type = path[0] ? LAY_DIR : LAY_META;
        image_seen_put(&w->seen, path, SEEN_DIR);
        if (!dirs_put(&w->l->dirs, path, &r, &w->xattrs))
            return image_fail(err, IMAGE_TOO_LARGE,
                              "%s: with \"%s\" the directories have more than %zu MiB of attributes", w->stream->what,
                              image_shown(raw), DIRS_XATTRS_MAX >> 20);
        return lay_put(w, &r, path, "", err) < 0 || (whited && lay_put_opaque(w, path, err) < 0) ? -1 : 0;
    case S_IFREG:
    case 0:
        r.type = LAY_FILE;
        return lay_put_file(w, e, &r, path, err);
    case S_IFLNK:
        r.type = LAY_SYMLINK;
        link = archive_entry_symlink(e);
        if (!link || !link[0] || strlen(link) >= LAY_PATH_MAX)
            return lay_refuse(w, raw, "the target of the symbolic link is empty or too long", err);
        lay_put_seen(w, path, SEEN_OTHER);
        return lay_put(w, &r, path, link, err);
    case S_IFIFO:
        r.type = LAY_FIFO;
        lay_put_seen(w, path, SEEN_OTHER);
        return lay_put(w, &r, path, "", err);
    default: /* devices and sockets: a sandbox has a /dev of its own */
        w->l->devices++;
        return 0;
    }
}

static int lay_convert_entry(struct work *w, struct archive_entry *e, struct err *err)
{
    const char *raw = archive_entry_pathname(e), *wrong = tar_trim(raw, w->path, sizeof w->path);
    if (wrong)
        return lay_refuse_name(w, raw, wrong, err);
    char *slash = strrchr(w->path, '/'), *name = slash ? slash + 1 : w->path;
    /* Of a whiteout only the hidden name is checked: with its prefix it may be longer than a name can be. */
    bool whiteout = w->l->oci && strncmp(name, WH, sizeof WH - 1) == 0;
    if (!whiteout && w->path[0] && (wrong = lay_path_wrong(w->path, strlen(w->path))))
        return lay_refuse_name(w, raw, wrong, err);
    if (++w->l->entries > w->max_entries)
        return image_fail(err, IMAGE_TOO_LARGE, "%s has more than %llu entries", w->stream->what,
                          (unsigned long long)w->max_entries);
    return whiteout ? lay_put_whiteout(w, raw, w->path, name, err) : lay_put_entry(w, e, w->path, err);
}

int tar_to_lay(struct stream *s, struct lay_out *o, struct tar_lay *l, struct err *err)
{
    struct archive_entry *e;
    struct work w = {.stream = s, .out = o, .l = l};
    w.max_bytes = l->limits.bytes ? l->limits.bytes : IMAGE_BYTES_MAX;
    w.max_entries = l->limits.entries ? l->limits.entries : ENTRIES_MAX;
    w.max_file = l->limits.file ? l->limits.file : w.max_bytes;
    image_seen_start(&w.seen);
    int rc = tar_open(&w.tar, s, err);
    while (rc == 0 && (rc = tar_next(&w.tar, &e, err)) > 0) {
        rc = lay_convert_entry(&w, e, err);
        say_progress(s->src->done, l->total, "unpacking");
    }
    l->dirs.layer++;
    tar_close(&w.tar);
    image_seen_done(&w.seen);
    buf_done(&w.xattrs);
    return rc < 0 ? -1 : 0;
}

void tar_lay_note(const struct tar_lay *l, char *ret, size_t room)
{
    ret[0] = '\0';
    if (l->devices)
        (void)snprintf(ret, room, "%llu device nodes and sockets left out", (unsigned long long)l->devices);
    if (l->xattrs)
        (void)snprintf(ret + strlen(ret), room - strlen(ret), "%s%llu extended attributes left out", ret[0] ? ", " : "",
                       (unsigned long long)l->xattrs);
}
