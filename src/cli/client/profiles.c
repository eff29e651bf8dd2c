#include "cli/client/profiles.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/fields.h"
#include "base/mem.h"

#define PROFILES_FILE "profiles.json"

static char *profiles_dir(void)
{
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (xdg && *xdg == '/')
        return xasprintf("%s/hutch", xdg);
    return home && *home == '/' ? xasprintf("%s/.config/hutch", home) : NULL;
}

char *profiles_path(void)
{
    _cleanup_free_ char *dir = profiles_dir();
    return dir ? xasprintf("%s/" PROFILES_FILE, dir) : NULL;
}

/* --- the place ---------------------------------------------------------------------------------------------------- */

static int profiles_make_dir(const char *dir, struct err *err)
{
    for (const char *p = dir + 1; p; p = *p ? p + 1 : NULL) {
        p += strcspn(p, "/");
        _cleanup_free_ char *part = xstrndup(dir, (size_t)(p - dir));
        if (mkdir(part, 0700) < 0 && errno != EEXIST)
            return err_set(err, ERR_SETUP, errno, "cannot make the directory %s", part);
    }
    return 0;
}

/* The directory, opened; -1 with errno ENOENT in err->eno if it is not there. Another user who can write to it could
 * put a profile of his own there, and get what is sent to its node. */
static int profiles_open_dir(const char *dir, struct err *err)
{
    struct stat st;
    _cleanup_close_ int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot open %s", dir);
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return err_set(err, ERR_USAGE, 0,
                       "%s belongs to uid %u, and this is uid %u: profiles are read from a directory of one's own "
                       "(set XDG_CONFIG_HOME, or name the node with --url)",
                       dir, st.st_uid, geteuid());
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return err_set(err, ERR_USAGE, 0, "other users can write to %s (mode %04o), which holds keys; chmod 700 %s",
                       dir, st.st_mode & 07777, dir);
    return TAKE_FD(fd);
}

static int profiles_check_file(const struct stat *st, const char *dir, struct err *err)
{
    if (!S_ISREG(st->st_mode))
        return err_set(err, ERR_USAGE, 0, "%s/" PROFILES_FILE " is not a regular file", dir);
    if (st->st_uid != geteuid())
        return err_set(err, ERR_USAGE, 0, "%s/" PROFILES_FILE " belongs to uid %u, and this is uid %u", dir, st->st_uid,
                       geteuid());
    if (st->st_mode & 077)
        return err_set(err, ERR_USAGE, 0,
                       "%s/" PROFILES_FILE
                       " holds keys, and its mode is %04o instead of 0600: change keys that other users may "
                       "have read, then chmod 600 %s/" PROFILES_FILE,
                       dir, st->st_mode & 07777, dir);
    return 0;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static int profiles_parse(const struct buf *text, const char *dir, bool strict, json_t **ret, struct err *err)
{
    json_error_t why;
    _cleanup_json_ json_t *j = json_loadb(buf_str(text), text->n, JSON_REJECT_DUPLICATES, &why);
    const char *name;
    json_t *p, *all = json_object_get(j, "profiles");
    if (!j)
        return err_set(err, ERR_USAGE, 0, "%s/" PROFILES_FILE ":%d: %s", dir, why.line, why.text);
    if (!json_is_object(all))
        return err_set(err, ERR_USAGE, 0, "%s/" PROFILES_FILE ": \"profiles\" must be an object", dir);
    json_object_foreach(all, name, p)
    {
        if (!strict)
            break;
        if (profile_check_name(name, err) < 0 || !*field_text(p, "url") || !*field_text(p, "key"))
            return err_set(err, ERR_USAGE, 0,
                           "%s/" PROFILES_FILE ": the profile '%.80s' must have a name of letters and "
                           "digits, \"url\" and \"key\"; remove it with `hutch logout`",
                           dir, name);
    }
    *ret = json_incref(j);
    return 0;
}

/* strict: each profile must be good. */
static int profiles_read(int dirfd, const char *dir, bool strict, json_t **ret, struct err *err)
{
    struct stat st;
    _cleanup_buf_ struct buf text = {0};
    _cleanup_free_ char *self = NULL;
    _cleanup_close_ int fd = openat(dirfd, PROFILES_FILE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        *ret = json_pack("{s:{}}", "profiles");
        return 0;
    }
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(err, ERR_USAGE, errno, "cannot open %s/" PROFILES_FILE, dir);
    if (profiles_check_file(&st, dir, err) < 0)
        return -1;
    self = xasprintf("/proc/self/fd/%d", fd);
    buf_reserve(&text, (size_t)st.st_size + 2); /* no copies of keys stay behind */
    int rc = fd_read_file(AT_FDCWD, self, PROFILES_BYTES_MAX, &text) < 0
                 ? err_set(err, ERR_USAGE, errno, "cannot read %s/" PROFILES_FILE, dir)
                 : profiles_parse(&text, dir, strict, ret, err);
    explicit_bzero(text.p, text.n);
    return rc;
}

int profiles_load(json_t **ret, struct err *err)
{
    _cleanup_free_ char *dir = profiles_dir();
    struct stat st;
    if (!dir || (stat(dir, &st) < 0 && errno == ENOENT)) {
        *ret = json_pack("{s:{}}", "profiles");
        return 0;
    }
    _cleanup_close_ int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && faccessat(fd, PROFILES_FILE, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT) {
        *ret = json_pack("{s:{}}", "profiles"); /* a directory with a policy only may be as it likes */
        return 0;
    }
    _cleanup_close_ int own = profiles_open_dir(dir, err);
    return own < 0 ? -1 : profiles_read(own, dir, true, ret, err);
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static int profiles_write(int dirfd, const char *dir, const json_t *root, struct err *err)
{
    char part[64];
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS);
    (void)snprintf(part, sizeof part, "." PROFILES_FILE ".%d", (int)getpid());
    (void)unlinkat(dirfd, part, 0);
    _cleanup_close_ int fd = openat(dirfd, part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool ok = text && fd >= 0 && fd_write_all(fd, text, strlen(text)) == 0 && fd_write_all(fd, "\n", 1) == 0 &&
              fsync(fd) == 0 && renameat(dirfd, part, dirfd, PROFILES_FILE) == 0;
    int eno = errno;
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
    if (ok)
        return 0;
    (void)unlinkat(dirfd, part, 0);
    return err_set(err, ERR_SETUP, eno, "cannot write %s/" PROFILES_FILE, dir);
}

static int profiles_rewrite(bool strict, int (*change)(void *arg, json_t *root, struct err *err), void *arg,
                            struct err *err)
{
    _cleanup_free_ char *dir = profiles_dir();
    _cleanup_json_ json_t *root = NULL;
    if (!dir)
        return err_set(err, ERR_SETUP, 0, "profiles lie in ~/.config/hutch, and HOME is not set");
    if (profiles_make_dir(dir, err) < 0)
        return -1;
    _cleanup_close_ int fd = profiles_open_dir(dir, err);
    if (fd < 0)
        return -1;
    if (flock(fd, LOCK_EX) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot lock %s", dir);
    if (profiles_read(fd, dir, strict, &root, err) < 0 || change(arg, root, err) < 0)
        return -1;
    return profiles_write(fd, dir, root, err);
}

int profiles_change(int (*change)(void *arg, json_t *root, struct err *err), void *arg, struct err *err)
{
    return profiles_rewrite(true, change, arg, err);
}

int profiles_mend(int (*change)(void *arg, json_t *root, struct err *err), void *arg, struct err *err)
{
    return profiles_rewrite(false, change, arg, err);
}

/* --- the document ------------------------------------------------------------------------------------------------- */

const char *profiles_current(const json_t *root) { return field_text(root, "current"); }

json_t *profiles_find(json_t *root, const char *name)
{
    return json_object_get(json_object_get(root, "profiles"), name ? name : profiles_current(root));
}

json_t *profiles_find_url(json_t *root, const char *url)
{
    const char *name;
    json_t *p;
    json_object_foreach(json_object_get(root, "profiles"), name, p)
    {
        if (strcmp(field_text(p, "url"), url) == 0)
            return p;
    }
    return NULL;
}

int profile_check_name(const char *name, struct err *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = strlen(name);
    if (n == 0 || n > PROFILE_NAME_MAX || strspn(name, letters) != n || name[0] == '-' || name[0] == '.')
        return err_set(
            err, ERR_USAGE, 0,
            "'%.80s' is not the name of a profile: 1 to %d letters, digits, '.', '_', '-', beginning with a letter, "
            "digit or '_'",
            name, PROFILE_NAME_MAX);
    return 0;
}
