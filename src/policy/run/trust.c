#include "policy/run/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/sha256.h"
#include "os/lock.h"

#define TRUST_LOCK "trusted.lock"

char *trust_file_of(const struct policy_where *where)
{
    if (where->trust_file)
        return xstrdup(where->trust_file);
    return where->home ? path_join(where->home, ".local/state/hutch/trusted") : NULL;
}

/* A line is "<64 digits> <absolute path>". */
static bool is_entry(const char *line)
{
    return strspn(line, "0123456789abcdef") == SHA256_HEX - 1 && line[SHA256_HEX - 1] == ' ' && line[SHA256_HEX] == '/';
}

static const char *trust_entry_path(const char *line) { return line + SHA256_HEX; }

static int parse_lines(const char *file, char *text, struct strv *ret, struct err *err)
{
    unsigned line = 0;
    for (char *s = text; *s;) {
        size_t n = strcspn(s, "\n");
        char *next = s[n] ? s + n + 1 : s + n;
        s[n] = '\0';
        line++;
        if (!is_entry(s))
            return err_set(err, ERR_POLICY, 0, "%s:%u: not a line of \"SHA256 PATH\"; remove it", file, line);
        strv_add(ret, s);
        s = next;
    }
    return 0;
}

int trust_list(const char *file, struct strv *ret, struct err *err)
{
    struct stat st;
    _cleanup_buf_ struct buf b = {0};
    _cleanup_close_ int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return 0;
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(err, ERR_POLICY, errno, "cannot read the trust file %s", file);
    if (!S_ISREG(st.st_mode) || (st.st_uid != geteuid() && st.st_uid != 0) || (st.st_mode & 022))
        return err_set(err, ERR_POLICY, 0,
                       "the trust file %s must be a regular file that only you can write: chmod 600 it", file);
    _cleanup_free_ char *self = xasprintf("/proc/self/fd/%d", fd);
    if (fd_read_file(AT_FDCWD, self, TRUST_FILE_MAX, &b) < 0)
        return err_set(err, ERR_POLICY, errno, "cannot read the trust file %s", file);
    return b.p ? parse_lines(file, b.p, ret, err) : 0;
}

int trust_check(const char *file, const char *path, const void *text, size_t n, bool *ret, struct err *err)
{
    char hex[SHA256_HEX];
    _cleanup_strv_ struct strv lines = {0};
    if (trust_list(file, &lines, err) < 0)
        return -1;
    sha256_hex(text, n, hex);
    _cleanup_free_ char *want = xasprintf("%s %s", hex, path);
    *ret = strv_has(&lines, want);
    return 0;
}

/* Makes the directory of `file` with mode 0700, and those above it as usual. *ret_lock is to be closed when all is done. */
static int trust_open_dir(const char *file, int *ret_lock, struct err *err)
{
    _cleanup_free_ char *dir = path_parent(file);
    for (char *s = strchr(dir + 1, '/');; s = strchr(s + 1, '/')) {
        if (s)
            *s = '\0';
        if (mkdir(dir, s ? 0755 : 0700) < 0 && errno != EEXIST)
            return err_set(err, ERR_POLICY, errno, "cannot make %s", dir);
        if (!s)
            break;
        *s = '/';
    }
    _cleanup_close_ int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *ret_lock = fd < 0 ? -1 : lock_open(fd, TRUST_LOCK);
    if (*ret_lock < 0)
        return err_set(err, ERR_POLICY, errno, "cannot lock %s", dir);
    return lock_take(*ret_lock, LOCK_EX, LOCK_WAIT_MS, dir, err) < 0 ? -1 : TAKE_FD(fd);
}

static int write_temporary(int dir, const char *temporary, const struct buf *text)
{
    _cleanup_close_ int fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -1;
    return fd_write_all(fd, buf_str(text), text->n) < 0 || fsync(fd) < 0 ? -1 : 0;
}

static int trust_replace_file(int dir, const char *file, const struct strv *lines, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    const char *name = path_name(file);
    _cleanup_free_ char *temporary = xasprintf(".%s.new", name);
    for (size_t i = 0; i < lines->n; i++)
        buf_addf(&text, "%s\n", lines->v[i]);
    (void)unlinkat(dir, temporary, 0); /* we hold the lock: a leftover is from a killed process */
    if (write_temporary(dir, temporary, &text) < 0 || renameat(dir, temporary, dir, name) < 0) {
        int eno = errno;
        (void)unlinkat(dir, temporary, 0);
        return err_set(err, ERR_POLICY, eno, "cannot write the trust file %s", file);
    }
    (void)fsync(dir);
    return 0;
}

/* Rewrites the file without `path` and with `entry` (or not, if NULL). *ret_found: path was there. */
static int trust_change_entry(const char *file, const char *path, const char *entry, bool *ret_found, struct err *err)
{
    _cleanup_strv_ struct strv old = {0}, new = {0};
    _cleanup_close_ int lock = -1;
    _cleanup_close_ int dir = trust_open_dir(file, &lock, err);
    if (dir < 0 || trust_list(file, &old, err) < 0)
        return -1;
    *ret_found = false;
    for (size_t i = 0; i < old.n; i++) {
        if (strcmp(trust_entry_path(old.v[i]), path) == 0)
            *ret_found = true;
        else
            strv_add(&new, old.v[i]);
    }
    if (entry)
        strv_add(&new, entry);
    if (new.n > TRUST_ENTRIES_MAX)
        return err_set(err, ERR_POLICY, 0, "more than %d trusted documents in %s; revoke some", TRUST_ENTRIES_MAX,
                       file);
    return trust_replace_file(dir, file, &new, err);
}

int trust_add(const char *file, const char *path, const void *text, size_t n, struct err *err)
{
    char hex[SHA256_HEX];
    bool found;
    if (path[0] != '/' || strchr(path, '\n'))
        return err_set(err, ERR_POLICY, 0, "a document can be trusted only under an absolute path without line breaks");
    sha256_hex(text, n, hex);
    _cleanup_free_ char *entry = xasprintf("%s %s", hex, path);
    return trust_change_entry(file, path, entry, &found, err);
}

int trust_revoke(const char *file, const char *path, bool *ret, struct err *err)
{
    return trust_change_entry(file, path, NULL, ret, err);
}
