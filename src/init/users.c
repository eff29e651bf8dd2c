#include "init/users.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

enum { FIELDS_MAX = 7 };
struct field {
    const char *p;
    size_t n;
};

/* The next line, split at colons. Returns its number of fields, 0 for a line that is no record, -1 at the end. */
static int users_next_record(struct users_file f, size_t *at, struct field *v)
{
    if (*at >= f.n)
        return -1;
    const char *line = f.p + *at;
    const char *end = memchr(line, '\n', f.n - *at);
    size_t len = end ? (size_t)(end - line) : f.n - *at;
    *at += len + 1;
    if (memchr(line, '\0', len) || len == 0 || line[0] == '#')
        return 0;
    int n = 0;
    for (size_t i = 0, start = 0; i <= len; i++) {
        if (i < len && line[i] != ':')
            continue;
        if (n == FIELDS_MAX)
            return 0;
        v[n++] = (struct field){.p = line + start, .n = i - start};
        start = i + 1;
    }
    return n;
}

static bool field_is(struct field f, const char *s) { return strlen(s) == f.n && memcmp(f.p, s, f.n) == 0; }

static bool field_id(struct field f, uint32_t *ret)
{
    uint64_t v = 0;
    if (f.n == 0 || f.n > 10)
        return false;
    for (size_t i = 0; i < f.n; i++) {
        if (f.p[i] < '0' || f.p[i] > '9')
            return false;
        v = v * 10 + (uint64_t)(f.p[i] - '0');
    }
    if (v >= UINT32_MAX)
        return false;
    *ret = (uint32_t)v;
    return true;
}

static bool field_copy(struct field f, char *ret, size_t size)
{
    if (f.n == 0 || f.n >= size)
        return false;
    memcpy(ret, f.p, f.n);
    ret[f.n] = '\0';
    return true;
}

bool users_by_name(struct users_file passwd, const char *name, struct user *ret)
{
    struct field v[FIELDS_MAX];
    size_t at = 0;
    for (int n; (n = users_next_record(passwd, &at, v)) >= 0;) {
        if (n != 7 || !field_is(v[0], name) || !field_id(v[2], &ret->uid) || !field_id(v[3], &ret->gid))
            continue;
        if (!field_copy(v[0], ret->name, sizeof ret->name))
            continue;
        if (v[5].n == 0 || v[5].p[0] != '/' || !field_copy(v[5], ret->home, sizeof ret->home))
            memcpy(ret->home, "/", 2);
        return true;
    }
    return false;
}

bool users_name_of(struct users_file passwd, uid_t uid, char *ret, size_t size)
{
    struct field v[FIELDS_MAX];
    size_t at = 0;
    uint32_t id;
    for (int n; (n = users_next_record(passwd, &at, v)) >= 0;)
        if (n == 7 && field_id(v[2], &id) && id == uid && field_copy(v[0], ret, size))
            return true;
    return false;
}

bool users_group_of(struct users_file group, gid_t gid, char *ret, size_t size)
{
    struct field v[FIELDS_MAX];
    size_t at = 0;
    uint32_t id;
    for (int n; (n = users_next_record(group, &at, v)) >= 0;)
        if (n == 4 && field_id(v[2], &id) && id == gid && field_copy(v[0], ret, size))
            return true;
    return false;
}

static bool is_member(struct field list, const char *name)
{
    size_t len = strlen(name);
    for (size_t at = 0; at < list.n;) {
        const char *comma = memchr(list.p + at, ',', list.n - at);
        size_t n = comma ? (size_t)(comma - (list.p + at)) : list.n - at;
        if (n == len && memcmp(list.p + at, name, n) == 0)
            return true;
        at += n + 1;
    }
    return false;
}

void users_groups(struct users_file group, struct user *u)
{
    struct field v[FIELDS_MAX];
    size_t at = 0;
    uint32_t id;
    u->groups[0] = u->gid;
    u->ngroups = 1;
    for (int n; (n = users_next_record(group, &at, v)) >= 0;)
        if (n == 4 && u->ngroups < USERS_GROUPS_MAX && field_id(v[2], &id) && id != u->gid && is_member(v[3], u->name))
            u->groups[u->ngroups++] = id;
}

struct users_file users_read(const char *path)
{
    struct users_file none = {.p = "", .n = 0};
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, .resolve = RESOLVE_NO_MAGICLINKS};
    _cleanup_close_ int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size <= 0 || st.st_size > USERS_FILE_MAX)
        return none;
    size_t size = (size_t)st.st_size, got = 0;
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return none;
    while (got < size) {
        ssize_t r = read(fd, p + got, size - got);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            break;
        got += (size_t)r;
    }
    return (struct users_file){.p = p, .n = got};
}

bool users_find(const char *name, struct user *ret)
{
    struct users_file passwd = users_read("/etc/passwd");
    if (!users_by_name(passwd, name, ret)) {
        if (passwd.n > 0 || strcmp(name, "root") != 0)
            return false;
        *ret = (struct user){.name = "root", .home = "/root"}; /* exists even in a root without /etc/passwd */
    }
    users_groups(users_read("/etc/group"), ret);
    return true;
}
