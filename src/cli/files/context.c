/* context.c - chooses and hashes the files of a build's context. */
#include "cli/files/context.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"

enum { IGNORE_MAX = 1 << 20, LINK_MAX_BYTES = 4096 };

/* --- .dockerignore ------------------------------------------------------------------------------------------------ */

void context_ignore_read(const char *text, struct strv *ret)
{
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3;
    while (*text && ret->n < CONTEXT_IGNORES_MAX) {
        size_t n = strcspn(text, "\n");
        const char *p = text, *end = text + n;
        text += n + (text[n] == '\n');
        if (*p == '#')
            continue;
        while (p < end && strchr(" \t\r", *p))
            p++;
        while (end > p && strchr(" \t\r", end[-1]))
            end--;
        bool not = p < end && *p == '!';
        p += not ;
        _cleanup_free_ char *raw = xstrndup(p, (size_t)(end - p)), *clean = path_clean("/", raw);
        if (*raw && clean[1])
            strv_take(ret, xasprintf("%s%s", not ? "!" : "", clean + 1));
    }
}

/* Whether the pattern matches the path or a directory above it. */
static bool ignore_covers(const char *pattern, const char *path)
{
    _cleanup_free_ char *part = xstrdup(path);
    for (;;) {
        if (path_match(pattern, part))
            return true;
        char *slash = strrchr(part, '/');
        if (!slash)
            return false;
        *slash = '\0';
    }
}

bool context_ignored(const struct strv *patterns, const char *path)
{
    bool ignored = false;
    for (size_t i = 0; i < patterns->n; i++) {
        const char *p = patterns->v[i];
        bool again = *p == '!';
        if (ignored == again && ignore_covers(p + again, path))
            ignored = !again;
    }
    return ignored;
}

int context_open(struct context *c, const char *path, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    *c = (struct context){.dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (c->dir < 0)
        return err_set(err, ERR_USAGE, errno, "cannot open the directory %s", path);
    if (fd_read_file(c->dir, ".dockerignore", IGNORE_MAX, &text) < 0 && errno != ENOENT)
        return err_set(err, ERR_USAGE, errno, "cannot read %s/.dockerignore", path);
    context_ignore_read(buf_str(&text), &c->ignore);
    return 0;
}

void context_done(struct context *c)
{
    if (c->dir >= 0)
        (void)close(c->dir);
    c->dir = -1;
    strv_done(&c->ignore);
}

/* --- which files -------------------------------------------------------------------------------------------------- */

struct walk {
    const struct context *c;
    const char *pattern; /* NULL: everything below */
    struct strv *ret;
    struct err *err;
};

static bool has_exceptions(const struct strv *patterns)
{
    for (size_t i = 0; i < patterns->n; i++)
        if (patterns->v[i][0] == '!')
            return true;
    return false;
}

static int context_walk_dir(struct walk *w, const char *path, bool inside, unsigned depth);

static int context_walk_entry(struct walk *w, const char *path, bool inside, unsigned depth)
{
    struct stat st;
    bool ignored = context_ignored(&w->c->ignore, path);
    if (fstatat(w->c->dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_set(w->err, ERR_USAGE, errno, "cannot look at %s", path);
    inside = inside || (w->pattern && path_match(w->pattern, path));
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
        return inside && !ignored
                   ? err_set(w->err, ERR_USAGE, 0,
                             "%s is not a file, directory or link: leave it out with .dockerignore", path)
                   : 0;
    if (inside && !ignored) {
        if (w->ret->n >= CONTEXT_FILES_MAX)
            return err_set(w->err, ERR_USAGE, 0, "more than %d files", CONTEXT_FILES_MAX);
        strv_add(w->ret, path);
    }
    /* A "!" pattern may bring back something below an ignored directory. */
    if (S_ISDIR(st.st_mode) && (!ignored || has_exceptions(&w->c->ignore)))
        return context_walk_dir(w, path, inside, depth + 1);
    return 0;
}

static int context_walk_dir(struct walk *w, const char *path, bool inside, unsigned depth)
{
    if (depth > CONTEXT_DEPTH_MAX)
        return err_set(w->err, ERR_USAGE, 0, "%s lies deeper than %d directories", path, CONTEXT_DEPTH_MAX);
    int fd = openat(w->c->dir, *path ? path : ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        int eno = errno;
        if (fd >= 0)
            (void)close(fd);
        return err_set(w->err, ERR_USAGE, eno, "cannot read the directory %s", *path ? path : ".");
    }
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        _cleanup_free_ char *child = *path ? xasprintf("%s/%s", path, e->d_name) : xstrdup(e->d_name);
        if (context_walk_entry(w, child, inside, depth) < 0)
            return -1;
    }
    return 0;
}

int context_files(const struct context *c, const char *source, struct strv *ret, struct err *err)
{
    struct walk w = {.c = c, .ret = ret, .err = err};
    struct stat st;
    int rc;
    if (strcmp(source, ".") == 0)
        rc = context_walk_dir(&w, "", true, 0);
    else if (path_is_glob(source)) {
        w.pattern = source;
        rc = context_walk_dir(&w, "", false, 0);
    } else if (fstatat(c->dir, source, &st, AT_SYMLINK_NOFOLLOW) < 0)
        rc = err_set(err, ERR_USAGE, 0, "there is no %s in the context", source);
    else
        rc = context_walk_entry(&w, source, true, 0);
    if (rc < 0)
        return -1;
    if (ret->n == 0)
        return err_set(err, ERR_USAGE, 0, "%s matches no file of the context (see .dockerignore)", source);
    strv_sort(ret);
    return 0;
}

/* --- their hash --------------------------------------------------------------------------------------------------- */

static void hash_add_text(struct sha256 *h, const char *s) { sha256_add(h, s, strlen(s)); }

static int hash_content(const struct context *c, const char *path, struct sha256 *h, struct err *err)
{
    _cleanup_free_ char *room = xmalloc(1 << 16);
    _cleanup_close_ int fd = openat(c->dir, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = 0;
    while (fd >= 0 && (n = read(fd, room, 1 << 16)) > 0)
        sha256_add(h, room, (size_t)n);
    return fd < 0 || n < 0 ? err_set(err, ERR_USAGE, errno, "cannot read %s", path) : 0;
}

static int hash_one(const struct context *c, const char *path, struct sha256 *h, struct err *err)
{
    struct stat st;
    char number[32], target[LINK_MAX_BYTES];
    if (fstatat(c->dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_set(err, ERR_USAGE, errno, "cannot look at %s", path);
    hash_add_text(h, path);
    (void)snprintf(number, sizeof number, "%u", (unsigned)st.st_mode);
    hash_add_text(h, number);
    if (S_ISDIR(st.st_mode))
        return 0;
    (void)snprintf(number, sizeof number, "%lld", (long long)st.st_size);
    hash_add_text(h, number);
    if (S_ISREG(st.st_mode))
        return hash_content(c, path, h, err);
    ssize_t n = readlinkat(c->dir, path, target, sizeof target);
    if (n < 0)
        return err_set(err, ERR_USAGE, errno, "cannot read the link %s", path);
    sha256_add(h, target, (size_t)n);
    return 0;
}

int context_hash(const struct context *c, const char *source, const char *dest, const struct strv *files,
                 char ret[SHA256_HEX], struct err *err)
{
    struct sha256 h;
    uint8_t digest[SHA256_BYTES];
    sha256_start(&h);
    hash_add_text(&h, "COPY ");
    hash_add_text(&h, source);
    hash_add_text(&h, " ");
    hash_add_text(&h, dest);
    for (size_t i = 0; i < files->n; i++)
        if (hash_one(c, files->v[i], &h, err) < 0)
            return -1;
    sha256_end(&h, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", digest[i]);
    return 0;
}
