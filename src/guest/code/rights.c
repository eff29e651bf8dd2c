#include "guest/code/rights.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "os/landlock.h"
#include "os/seccomp.h"
#include "policy/run/filter-command.h"

enum {
    TEXT_MAX = 64 * 1024,
    PATH_BYTES_MAX = 4095,
    SECONDS_MAX = 86400,
    LANDLOCK_TCP_ABI = 4,
    LANDLOCK_TRUNCATE_ABI = 3,
};

/* --- what a client says --------------------------------------------------------------------------------------------- */

static int rights_check_names(json_t *o, struct err *err)
{
    static const char *const known[] = {"network", "write", "timeoutSeconds", "outputBytes", "user", "memoryMB"};
    const char *name;
    json_t *value;
    json_object_foreach(o, name, value)
    {
        bool found = false;
        for (size_t i = 0; i < ARRAY_LEN(known); i++)
            found |= strcmp(known[i], name) == 0;
        if (!found)
            return err_set(err, ERR_USAGE, 0,
                           "rights: no member '%.40s'; there are network, write, timeoutSeconds, outputBytes", name);
    }
    return 0;
}

/* Rights of commands that a process without privileges cannot put in force. */
static int rights_check_others(json_t *o, struct err *err)
{
    json_t *memory = json_object_get(o, "memoryMB"), *user = json_object_get(o, "user");
    const char *word = json_string_value(user);
    if (memory && !json_is_null(memory))
        return err_set(err, ERR_USAGE, 0, "rights: a cell cannot have memoryMB, only a command can");
    if (user && !json_is_null(user) && !(word && strcmp(word, "same") == 0))
        return err_set(err, ERR_USAGE, 0, "rights: a cell cannot have a user of its own, only a command can");
    return 0;
}

static int rights_read_network(json_t *o, struct kernel_rights *r, struct err *err)
{
    json_t *v = json_object_get(o, "network");
    const char *word = json_string_value(v);
    if (v && !json_is_null(v) && !(word && (strcmp(word, "off") == 0 || strcmp(word, "on") == 0)))
        return err_set(err, ERR_USAGE, 0, "rights: network must be \"off\" or \"on\"");
    r->no_network = word && strcmp(word, "off") == 0;
    if (r->no_network)
        (void)json_object_set(r->said, "network", v);
    return 0;
}

static int rights_compare_paths(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorted, with the home in the place of "~": the same paths make the same text. */
static int rights_read_paths(json_t *list, struct kernel_rights *r, struct err *err)
{
    const char *home = getenv("HOME"), *path[RIGHTS_PATHS_MAX];
    size_t n = json_array_size(list);
    if (n > RIGHTS_PATHS_MAX)
        return err_set(err, ERR_USAGE, 0, "rights: write has at most %d paths", RIGHTS_PATHS_MAX);
    for (size_t i = 0; i < n; i++) {
        json_t *v = json_array_get(list, i);
        path[i] = json_string_value(v);
        if (!path[i] || !path[i][0] || json_string_length(v) > PATH_BYTES_MAX ||
            strlen(path[i]) != json_string_length(v))
            return err_set(err, ERR_USAGE, 0, "rights: write must hold paths of 1 to %d bytes without NUL",
                           PATH_BYTES_MAX);
    }
    qsort(path, n, sizeof *path, rights_compare_paths);
    json_t *sorted = json_array();
    for (size_t i = 0; i < n; i++) {
        bool below = path[i][0] == '~' && (path[i][1] == '\0' || path[i][1] == '/');
        _cleanup_free_ char *whole = below ? xasprintf("%s%s", home ? home : "/", path[i] + 1) : xstrdup(path[i]);
        (void)json_array_append_new(sorted, json_string(whole));
        r->write[i] = json_string_value(json_array_get(sorted, i));
    }
    r->nwrite = n;
    (void)json_object_set_new(r->said, "write", sorted);
    return 0;
}

static int rights_read_write(json_t *o, struct kernel_rights *r, struct err *err)
{
    json_t *v = json_object_get(o, "write");
    const char *word = json_string_value(v);
    if (!v || json_is_null(v) || (word && strcmp(word, "all") == 0))
        return 0;
    r->limit_write = true;
    if (json_is_array(v))
        return rights_read_paths(v, r, err);
    if (!word || strcmp(word, "none") != 0)
        return err_set(err, ERR_USAGE, 0, "rights: write must be \"none\", \"all\" or an array of paths");
    (void)json_object_set(r->said, "write", v);
    return 0;
}

static int rights_read_limit(json_t *o, const char *name, json_int_t most, uint64_t *ret, struct err *err)
{
    json_t *v = json_object_get(o, name);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > most)
        return err_set(err, ERR_USAGE, 0, "rights: %s must be a whole number from 1 to %lld", name, (long long)most);
    *ret = (uint64_t)json_integer_value(v);
    return 0;
}

static int rights_read_object(json_t *o, struct cell_rights *r, struct err *err)
{
    uint64_t seconds = 0;
    if (rights_check_names(o, err) < 0 || rights_check_others(o, err) < 0 ||
        rights_read_network(o, &r->kernel, err) < 0 || rights_read_write(o, &r->kernel, err) < 0 ||
        rights_read_limit(o, "timeoutSeconds", SECONDS_MAX, &seconds, err) < 0 ||
        rights_read_limit(o, "outputBytes", INT64_MAX, &r->output_max, err) < 0)
        return -1;
    r->time_ms = seconds * 1000;
    return 0;
}

int cell_rights_read(json_t *o, struct cell_rights *ret, struct err *err)
{
    *ret = (struct cell_rights){0};
    if (!o || json_is_null(o))
        return 0;
    if (!json_is_object(o))
        return err_set(err, ERR_USAGE, 0, "rights must be an object like {\"network\": \"off\"}");
    ret->kernel.said = json_object();
    int result = rights_read_object(o, ret, err);
    if (result < 0 || json_object_size(ret->kernel.said) == 0)
        kernel_rights_done(&ret->kernel);
    return result;
}

int cell_rights_read_text(const char *text, struct cell_rights *ret, struct err *err)
{
    *ret = (struct cell_rights){0};
    json_t *o = strlen(text) > TEXT_MAX ? NULL : json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
    if (!o)
        return err_set(err, ERR_USAGE, 0, "HUTCH_RIGHTS must be JSON like {\"network\": \"off\"}, %d bytes at most",
                       TEXT_MAX);
    int result = cell_rights_read(o, ret, err);
    json_decref(o);
    return result;
}

void cell_rights_done(struct cell_rights *r) { kernel_rights_done(&r->kernel); }

bool kernel_rights_equal(const struct kernel_rights *a, const struct kernel_rights *b)
{
    return a->said && b->said ? json_equal(a->said, b->said) : a->said == b->said;
}

struct kernel_rights kernel_rights_copy(const struct kernel_rights *r)
{
    struct kernel_rights copy = *r;
    (void)json_incref(copy.said); /* nothing changes it after it was read */
    return copy;
}

void kernel_rights_done(struct kernel_rights *r)
{
    json_decref(r->said);
    *r = (struct kernel_rights){0};
}

int kernel_rights_check(const struct kernel_rights *r, const char *cwd, struct err *err)
{
    _cleanup_close_ int dir = open(cwd, O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct stat st;
    for (size_t i = 0; i < r->nwrite; i++)
        if (fstatat(dir, r->write[i], &st, 0) < 0)
            return err_set(err, ERR_USAGE, errno, "rights: write: '%.160s' cannot be found; make it first",
                           r->write[i]);
    return 0;
}

/* --- in the new process --------------------------------------------------------------------------------------------- */

static int rights_open(const char *path, uint64_t flags)
{
    /* No magic links: /proc/self/fd may hold descriptors of the service. */
    struct open_how how = {.flags = O_PATH | O_CLOEXEC | flags, .resolve = RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
}

static int rights_fail(const char *what, const char *why)
{
    (void)!write(2, what, strlen(what));
    (void)!write(2, why, strlen(why));
    (void)!write(2, "\n", 1);
    return -1;
}

static int rights_apply_landlock(const struct kernel_rights *r, const char *own, int abi)
{
    static const char *const devices[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"};
    struct landlock_rule rules[RIGHTS_PATHS_MAX + ARRAY_LEN(devices) + 1];
    struct err err = {0};
    size_t n = 0;
    for (size_t i = 0; r->limit_write && i < ARRAY_LEN(devices); i++) {
        struct stat st;
        int fd = rights_open(devices[i], O_NOFOLLOW);
        if (fd >= 0 && fstat(fd, &st) == 0 && S_ISCHR(st.st_mode))
            rules[n++] = (struct landlock_rule){.fd = fd, .rights = LANDLOCK_DEVICE};
    }
    for (size_t i = 0; i < r->nwrite; i++) {
        int fd = rights_open(r->write[i], 0);
        if (fd < 0)
            return rights_fail("rights: write: cannot be opened: ", r->write[i]);
        rules[n++] = (struct landlock_rule){.fd = fd, .rights = LANDLOCK_WRITE};
    }
    /* Who may write everywhere gets the layer for its domain. */
    int fd = rights_open(r->limit_write ? own : "/", O_DIRECTORY);
    if (fd < 0)
        return rights_fail("rights: its own directory is gone: ", own);
    rules[n++] = (struct landlock_rule){.fd = fd, .rights = LANDLOCK_WRITE};
    bool tcp = r->no_network && abi >= LANDLOCK_TCP_ABI;
    if (landlock_apply_abi(rules, n, LANDLOCK_FREE_READS | (tcp ? LANDLOCK_DENY_TCP : 0U), abi, &err) < 0)
        return rights_fail("rights: cannot be put in force: ", err.msg);
    return 0;
}

int kernel_rights_apply(const struct kernel_rights *r, const char *own)
{
    struct sock_filter program[FILTER_COMMAND_MAX];
    struct err err = {0};
    int abi = landlock_abi();
    unsigned flags = FILTER_COMMAND_APART |
                     (r->no_network ? FILTER_COMMAND_NO_NETWORK | FILTER_COMMAND_UNIX_SERVER : 0U) |
                     (r->limit_write && r->nwrite == 0 ? FILTER_COMMAND_READ_ONLY : 0U) |
                     (r->limit_write && abi < LANDLOCK_TRUNCATE_ABI ? FILTER_COMMAND_NO_TRUNCATE : 0U);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return rights_fail("rights: cannot be put in force: ", "no_new_privs");
    if (rights_apply_landlock(r, own, abi) < 0)
        return -1;
    if (seccomp_load(program, filter_command(flags, program), 0, NULL, &err) < 0)
        return rights_fail("rights: cannot be put in force: ", err.msg);
    return 0;
}
