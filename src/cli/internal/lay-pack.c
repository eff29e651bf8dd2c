/* lay-pack.c - writes files of this sandbox as a lay stream, for COPY --from of a build. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "cli/internal/lay.h"
#include "trees/emit.h"

struct packing {
    struct emit emit;
    struct walk_path path; /* in the stream */
    char *parents;         /* the last directory whose record was written; "": the root, which has none */
};

static int pack_entry(struct packing *p, int dir, const char *name, bool follow, struct err *err);

static int pack_inside(struct packing *p, int fd, struct err *err)
{
    _cleanup_names_ struct walk_names names = {0};
    size_t old;
    if (walk_names_read(fd, p->path.text, &names, err) < 0)
        return -1;
    for (size_t i = 0; i < names.n; i++) {
        if (walk_push(&p->path, names.v[i], &old, err) < 0 || pack_entry(p, fd, names.v[i], false, err) < 0)
            return -1;
        walk_pop(&p->path, old);
    }
    return 0;
}

static int pack_dir(struct packing *p, int fd, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return walk_fail(err, ERR_SETUP, errno, p->path.text, "cannot be looked at");
    if (p->path.n && emit_dir(&p->emit, fd, p->path.text, &st, false, err) < 0)
        return -1;
    return pack_inside(p, fd, err);
}

/* Packs the entry; p->path is its path in the stream. */
static int pack_entry(struct packing *p, int dir, const char *name, bool follow, struct err *err)
{
    struct stat st;
    bool mounted = false;
    if (walk_stat(dir, name, &st, &mounted) < 0)
        return walk_fail(err, ERR_SETUP, errno, p->path.text, "cannot be looked at");
    if (mounted && !follow)
        return 0;
    if (S_ISDIR(st.st_mode)) {
        _cleanup_close_ int fd = walk_open_dir(dir, name);
        return fd < 0 ? walk_fail(err, ERR_SETUP, errno, p->path.text, "cannot be opened") : pack_dir(p, fd, err);
    }
    return emit_other(&p->emit, dir, name, p->path.text, &st, err);
}

/* Writes records of the directories above `path` that the previous path did not share. */
static int pack_parents(struct packing *p, const char *path, struct err *err)
{
    _cleanup_free_ char *parent = path_parent(path);
    for (size_t n = 1, next; parent[n - 1] && parent[1]; n = next + 1) {
        next = n + strcspn(parent + n, "/");
        struct lay_record r = {.type = LAY_DIR, .mode = 0755};
        _cleanup_free_ char *part = xstrndup(parent + 1, next - 1);
        size_t had = strlen(part);
        bool known = strncmp(p->parents, part, had) == 0 && (p->parents[had] == '\0' || p->parents[had] == '/');
        if (!known && p->emit.sink.record(p->emit.sink.arg, &r, part, NULL, NULL) < 0)
            return walk_fail(err, ERR_SETUP, errno, part, "cannot be written to the stream");
        if (!parent[next])
            break;
    }
    free(p->parents);
    p->parents = xstrdup(parent + 1);
    return 0;
}

/* Packs one absolute path. follow: follows a link there; the stream has its target under the link's name. */
static int pack_path(struct packing *p, const char *path, bool follow, struct err *err)
{
    _cleanup_free_ char *real = follow ? realpath(path, NULL) : xstrdup(path);
    if (!real)
        return walk_fail(err, ERR_USAGE, errno == ENOENT ? 0 : errno, path, "is not there");
    if (strlen(path) >= sizeof p->path.text)
        return walk_fail(err, ERR_LIMIT, 0, path, "is too long");
    if (pack_parents(p, path, err) < 0)
        return -1;
    p->path.n = strlen(path) - 1;
    memcpy(p->path.text, path + 1, p->path.n + 1);
    p->path.depth = 0;
    for (const char *c = path; path[1] && *c; c++)
        p->path.depth += *c == '/';
    _cleanup_free_ char *parent = path_parent(real);
    _cleanup_close_ int dir = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return walk_fail(err, ERR_SETUP, errno, parent, "cannot be opened");
    return pack_entry(p, dir, real[1] ? path_name(real) : ".", true, err);
}

static int pack_pattern(struct packing *p, const char *pattern, struct err *err)
{
    glob_t found = {0};
    int rc = glob(pattern, 0, NULL, &found), r = 0;
    if (rc == GLOB_NOMATCH || (rc == 0 && found.gl_pathc == 0))
        r = walk_fail(err, ERR_USAGE, 0, pattern, "matches no file");
    else if (rc != 0)
        r = walk_fail(err, ERR_SETUP, rc == GLOB_NOSPACE ? ENOMEM : 0, pattern, "cannot be looked for");
    else if (found.gl_pathc > LAY_PACK_MATCHES_MAX)
        r = walk_fail(err, ERR_LIMIT, 0, pattern, "matches more than %d names; copy their directory",
                      LAY_PACK_MATCHES_MAX);
    for (size_t i = 0; r == 0 && i < found.gl_pathc; i++)
        r = pack_path(p, found.gl_pathv[i], false, err);
    globfree(&found);
    return r;
}

int lay_pack(const char *source, int fd, struct err *err)
{
    struct lay_out out;
    struct packing p = {.parents = xstrdup("")};
    _cleanup_free_ char *path = path_clean("/", source);
    lay_out_start(&out, fd);
    emit_start(&p.emit, emit_to_stream(&out), XATTR_MERGED, 0);
    int r = strpbrk(source, "*?[") ? pack_pattern(&p, path, err) : pack_path(&p, path, true, err);
    if (r == 0 && lay_out_end(&out) < 0)
        r = err_set(err, ERR_SETUP, errno, "cannot write the stream");
    emit_done(&p.emit);
    free(p.parents);
    return r;
}
