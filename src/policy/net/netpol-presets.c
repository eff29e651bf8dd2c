/* netpol-presets.c - lists of rules with a name: files NAME.yaml. The user's come before the operator's, these before those
 * that came with hutch. A name that no file has may be an alias of one. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/strv.h"
#include "policy/net/netpol.h"

enum { NAME_BYTES = NETPOL_PRESET_NAME - 1, PLACES_MAX = 3 };
static const char suffix[] = ".yaml";

/* Where presets are, seen from the directory of the running program: installed as bin/ or libexec/hutch/, or in a build
 * directory of the source tree. */
static const char *const beside[] = {"../share/hutch/presets", "../../share/hutch/presets", "../share/presets",
                                     "../../share/presets"};

/* Open directories, in the order in which they are searched. */
struct places {
    int fds[PLACES_MAX];
    bool user[PLACES_MAX]; /* its files are checked: what everyone can write is no preset */
    size_t n;
};

static void places_done(struct places *p)
{
    for (size_t i = 0; i < p->n; i++)
        (void)close(p->fds[i]);
}

static void places_add(struct places *p, const char *path, bool user)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    p->user[p->n] = user;
    p->fds[p->n++] = fd;
}

static void places_add_beside(struct places *p)
{
    char program[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    size_t before = p->n;
    if (n <= 0)
        return;
    program[n] = '\0';
    char *slash = strrchr(program, '/');
    if (slash)
        *slash = '\0';
    for (size_t i = 0; i < ARRAY_LEN(beside) && p->n == before; i++) {
        _cleanup_free_ char *path = xasprintf("%s/%s", program, beside[i]);
        places_add(p, path, false);
    }
}

static void places_open(struct places *p, const char *home)
{
    *p = (struct places){0};
    if (home) {
        _cleanup_free_ char *own = path_join(home, ".config/hutch/presets");
        places_add(p, own, true);
    }
    places_add(p, "/etc/hutch/presets", false);
    places_add_beside(p);
}

static bool preset_name_ok(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= NAME_BYTES && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

static int preset_read(int dir, bool user, const char *name, struct node **ret, struct err *err)
{
    char file[NAME_BYTES + sizeof suffix];
    struct stat st;
    _cleanup_buf_ struct buf text = {0};
    (void)snprintf(file, sizeof file, "%s%s", name, suffix);
    if (user && fstatat(dir, file, &st, 0) == 0 && (st.st_mode & 0002))
        return err_set(err, ERR_POLICY, 0,
                       "preset %s can be written by everyone; run: chmod o-w ~/.config/hutch/presets/%s", name, file);
    if (fd_read_file(dir, file, NODE_TEXT_MAX, &text) < 0)
        return err_set(err, ERR_POLICY, errno, "cannot read preset %s", file);
    return node_read(buf_str(&text), text.n, file, 0, ret, err);
}

static bool preset_is_there(int dir, const char *name)
{
    char file[NAME_BYTES + sizeof suffix];
    (void)snprintf(file, sizeof file, "%s%s", name, suffix);
    return faccessat(dir, file, F_OK, 0) == 0;
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

/* The names in a directory, sorted, without those that an earlier one has. */
static void place_list(int dir, const struct strv *before, struct strv *ret)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d && fd >= 0)
        (void)close(fd);
    for (struct dirent *e; d && ret->n < NETPOL_PRESET_FILES_MAX && (e = readdir(d));) {
        size_t n = strlen(e->d_name), s = sizeof suffix - 1;
        if (n <= s || strcmp(e->d_name + n - s, suffix) != 0)
            continue;
        _cleanup_free_ char *name = xstrndup(e->d_name, n - s);
        if (preset_name_ok(name) && !strv_has(before, name))
            strv_add(ret, name);
    }
    if (d)
        (void)closedir(d);
    strv_sort(ret);
}

static void places_visit(const struct places *p, netpol_preset_visit *visit, void *arg)
{
    _cleanup_strv_ struct strv seen = {0};
    bool stop = false;
    for (size_t i = 0; i < p->n && !stop; i++) {
        _cleanup_strv_ struct strv names = {0};
        place_list(p->fds[i], &seen, &names);
        for (size_t k = 0; k < names.n && !stop; k++) {
            _cleanup_node_ struct node *doc = NULL;
            struct err ignored = {0};
            strv_add(&seen, names.v[k]);
            if (preset_read(p->fds[i], p->user[i], names.v[k], &doc, &ignored) == 0)
                stop = visit(arg, names.v[k], doc);
        }
    }
}

void netpol_presets_visit(const char *home, netpol_preset_visit *visit, void *arg)
{
    struct places p;
    places_open(&p, home);
    places_visit(&p, visit, arg);
    places_done(&p);
}

/* --- one of them -------------------------------------------------------------------------------------------------- */

bool netpol_preset_has_word(const struct node *doc, const char *key, const char *word)
{
    for (size_t i = 0; doc->kind == NODE_MAP && i < doc->n; i += 2) {
        const struct node *v = doc->items[i + 1];
        if (strcmp(doc->items[i]->text, key) != 0)
            continue;
        if (v->kind == NODE_SCALAR)
            return strcmp(v->text, word) == 0;
        for (size_t k = 0; v->kind == NODE_LIST && k < v->n; k++)
            if (v->items[k]->kind == NODE_SCALAR && strcmp(v->items[k]->text, word) == 0)
                return true;
    }
    return false;
}

struct alias_search {
    const char *alias;
    char found[NAME_BYTES + 1];
};

static bool alias_visit(void *arg, const char *name, const struct node *doc)
{
    struct alias_search *s = arg;
    if (!netpol_preset_has_word(doc, "aliases", s->alias))
        return false;
    (void)snprintf(s->found, sizeof s->found, "%s", name);
    return true;
}

/* real: the name of its file. */
static int places_find(const struct places *p, const char *name, char real[NETPOL_PRESET_NAME], struct node **ret,
                       struct err *err)
{
    struct alias_search s = {.alias = name};
    if (!preset_name_ok(name))
        return err_set(err, ERR_POLICY, 0, "a preset's name has small letters, digits and -, at most %d", NAME_BYTES);
    for (int again = 0; again < 2; again++) {
        (void)snprintf(real, NETPOL_PRESET_NAME, "%s", again ? s.found : name);
        for (size_t i = 0; i < p->n; i++)
            if (preset_is_there(p->fds[i], real))
                return preset_read(p->fds[i], p->user[i], real, ret, err);
        if (!again)
            places_visit(p, alias_visit, &s);
        if (!s.found[0])
            break;
    }
    return err_set(err, ERR_POLICY, 0,
                   "there is no preset \"%s\" in /etc/hutch/presets or among those of hutch; `hutch run --preset list` "
                   "lists all",
                   name);
}

int netpol_preset_file(void *dirfd, const char *name, struct node **ret, struct err *err)
{
    struct places p = {.n = 1};
    char real[NETPOL_PRESET_NAME];
    if (!dirfd)
        return netpol_preset_of_user(NULL, name, ret, err);
    p.fds[0] = *(const int *)dirfd; /* borrowed */
    return places_find(&p, name, real, ret, err);
}

int netpol_preset_find(const char *home, const char *name, char real[NETPOL_PRESET_NAME], struct node **ret,
                       struct err *err)
{
    struct places p;
    places_open(&p, home);
    int r = places_find(&p, name, real, ret, err);
    places_done(&p);
    return r;
}

int netpol_preset_of_user(void *home, const char *name, struct node **ret, struct err *err)
{
    char real[NETPOL_PRESET_NAME];
    return netpol_preset_find(home, name, real, ret, err);
}
