/* Transactions that wait for a decision: kept, listed, found again, dropped. */
#include "cli/tx.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "cli/cli.h"
#include "os/lock.h"
#include "stock/tree.h"

#define META       "tx.json"
#define APART      "apart"
#define STORE_LOCK "tx.lock" /* beside the store */
#define TX_LOCK    "lock"
enum { META_MAX = 1 << 30 };

void tx_forget_changes(struct tx *tx)
{
    for (size_t i = 0; i < tx->n; i++) {
        free(tx->changes[i].path);
        free(tx->changes[i].attrs);
    }
    tx->n = 0;
}

void tx_done(struct tx *tx)
{
    for (size_t i = 0; i < tx->nplaces; i++) {
        free(tx->place[i].src);
        if (tx->place[i].layer >= 0)
            (void)close(tx->place[i].layer);
        if (tx->place[i].host >= 0)
            (void)close(tx->place[i].host);
    }
    tx_forget_changes(tx);
    free(tx->changes);
    tx_entries_done(&tx->below);
    tx_entries_done(&tx->modes);
    tx_entries_done(&tx->apart);
    tx_entries_done(&tx->opened);
    free(tx->blind);
    if (tx->kept)
        (void)close(tx->dir);
    if (tx->has_apart)
        (void)close(tx->apart_dir);
    free(tx->command);
    strv_done(&tx->notes);
    strv_done(&tx->left);
    *tx = (struct tx){0};
}

/* The command may have closed it to its own owner; its own mode is not among the changes. */
static int open_layer(int parent, const char *name)
{
    const int how = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(parent, name, how);
    return fd < 0 && errno == EACCES && fchmodat(parent, name, 0700, 0) == 0 ? openat(parent, name, how) : fd;
}

/* The path had no links in it when the command ran. One that is there now was put there since, perhaps by another command,
 * and leads to where this one had no right to write. */
static int open_host(const char *src)
{
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    return (int)syscall(SYS_openat2, AT_FDCWD, src, &how, sizeof how);
}

static int add_place(struct tx *tx, const char *src, int parent, const char *layer, struct err *err)
{
    struct tx_place *p = &tx->place[tx->nplaces++];
    p->src = xstrdup(src);
    p->layer = open_layer(parent, layer);
    int eno = errno;
    p->host = open_host(src);
    if (p->layer < 0)
        return err_set(err, ERR_SETUP, eno, "open the layer of %s", tx_shown(src));
    if (p->host < 0 && errno == ELOOP)
        return err_set(err, ERR_POLICY, 0, "%s has become a symbolic link, or lies behind one, since the command ran",
                       tx_shown(src));
    return p->host < 0 ? err_set(err, ERR_SETUP, errno, "open %s", tx_shown(src)) : 0;
}

/* All of them, also after a failure: what is in the others must not be lost by it. */
int tx_open_vault(struct tx *tx, const struct wall_learn *places, int vault, struct err *err)
{
    char name[32];
    int r = 0;
    for (size_t i = 0; i < places->n; i++) {
        struct err why = {0};
        (void)snprintf(name, sizeof name, "L%zu/u", i);
        if (add_place(tx, places->place[i].src, vault, name, &why) < 0 && r == 0) {
            *err = why;
            r = -1;
        }
    }
    tx->apart_dir = openat(vault, "L0/a", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    tx->has_apart = tx->apart_dir >= 0;
    return r;
}

/* --- where they are kept ------------------------------------------------------------------------------------------ */

/* NULL: nobody says. */
static char *store_path(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state && state[0] == '/')
        return path_join(state, "hutch/tx");
    return home && home[0] == '/' ? path_join(home, ".local/state/hutch/tx") : NULL;
}

const char *tx_where(const struct tx *tx)
{
    _cleanup_free_ char *store = store_path(), *path = path_join(store ? store : "", tx->id);
    return tx_shown(path);
}

static int open_store(struct err *err)
{
    _cleanup_free_ char *path = store_path();
    if (!path)
        return err_set(err, ERR_USAGE, 0, "neither XDG_STATE_HOME nor HOME says where transactions can be kept");
    for (char *p = strchr(path + 1, '/');; p = strchr(p + 1, '/')) {
        if (p)
            *p = '\0';
        if (mkdir(path, 0700) < 0 && errno != EEXIST)
            return err_set(err, ERR_SETUP, errno, "make %s", path);
        if (!p)
            break;
        *p = '/';
    }
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? err_set(err, ERR_SETUP, errno, "open %s", path) : fd;
}

static bool id_valid(const char *id)
{
    return strncmp(id, "tx-", 3) == 0 && strlen(id) == 11 && strspn(id + 3, "0123456789abcdef") == 8;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void list_ids(int store, struct strv *ret)
{
    int own = openat(store, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = own < 0 ? NULL : fdopendir(own);
    if (!d) {
        if (own >= 0)
            (void)close(own);
        return;
    }
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        if (id_valid(e->d_name))
            strv_add(ret, e->d_name);
    if (ret->n)
        qsort(ret->v, ret->n, sizeof *ret->v, by_name);
}

/* What is half there when nobody is at work was left by somebody who was killed. */
static void sweep(int store)
{
    struct err ignored = {0};
    int own = openat(store, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = own < 0 ? NULL : fdopendir(own);
    if (!d && own >= 0)
        (void)close(own);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
        if (e->d_name[0] == '.' && id_valid(e->d_name + 1))
            (void)tree_remove(store, e->d_name, &ignored);
}

/* To change something in the store: *ret_lock is to be closed when that is done. Not the store itself is locked: commands may
 * open it, and could keep others from ever getting the lock. */
static int lock_store(int *ret_lock, struct err *err)
{
    _cleanup_close_ int store = open_store(err);
    if (store < 0)
        return -1;
    *ret_lock = lock_open(store, "../" STORE_LOCK);
    if (*ret_lock < 0)
        return err_set(err, ERR_SETUP, errno, "open %s beside the transactions", STORE_LOCK);
    if (flock(*ret_lock, LOCK_EX | LOCK_NB) == 0)
        sweep(store);
    if (lock_take(*ret_lock, LOCK_SH, LOCK_WAIT_MS, "the directory of transactions", err) < 0) {
        (void)close(TAKE_FD(*ret_lock));
        return -1;
    }
    return TAKE_FD(store);
}

/* from -1: it is not to be had, and empty. */
static int keep_layer(const struct tx *tx, int from, int dir, const char *name, struct err *err)
{
    if (mkdirat(dir, name, 0700) < 0)
        return err_set(err, ERR_SETUP, errno, "keep a layer");
    _cleanup_close_ int to = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct tree_copy c = {.from = from,
                          .to = to,
                          .prev = -1,
                          .shift = tx->shift,
                          .depth = TX_DEPTH_MAX,
                          .flags = TREE_USERXATTR | TREE_BARE | (tx->root ? 0U : TREE_NO_CHOWN)};
    if (to < 0)
        return err_set(err, ERR_SETUP, errno, "keep a layer");
    return from < 0 ? 0 : tree_copy(&c, err);
}

static int keep_layers(const struct tx *tx, int dir, struct err *err)
{
    char name[32];
    for (size_t i = 0; i < tx->nplaces; i++) {
        (void)snprintf(name, sizeof name, "L%zu", i);
        if (keep_layer(tx, tx->place[i].layer, dir, name, err) < 0)
            return -1;
    }
    return tx->has_apart && tx->apart.n ? keep_layer(tx, tx->apart_dir, dir, APART, err) : 0;
}

int tx_room(struct err *err)
{
    _cleanup_free_ char *path = store_path();
    _cleanup_strv_ struct strv ids = {0};
    _cleanup_close_ int store = path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (store >= 0)
        list_ids(store, &ids);
    return ids.n < TX_KEPT_MAX ? 0
                               : err_set(err, ERR_LIMIT, 0,
                                         "%zu transactions wait already, and one more is not begun: see "
                                         "`hutch tx ls`, then `hutch apply` or `hutch discard`",
                                         ids.n);
}

/* Under its name only when all of it is on the disk: the command's own copy, in memory, goes next, and a transaction that a
 * power cut left with empty files would be applied like any other. */
static int publish(const struct tx *tx, int store, int dir, const char *temp, struct err *err)
{
    if (syncfs(dir) < 0 || renameat(store, temp, store, tx->id) < 0)
        return err_set(err, ERR_SETUP, errno, "keep the transaction");
    (void)fsync(store); /* its name; it is kept all the same */
    return 0;
}

int tx_keep(struct tx *tx, struct err *err)
{
    struct err ignored = {0};
    char temp[TX_ID_MAX + 8];
    _cleanup_buf_ struct buf meta = {0};
    _cleanup_close_ int lock = -1;
    _cleanup_close_ int store = lock_store(&lock, err);
    if (store < 0)
        return -1;
    tx_choose_id(tx);
    (void)snprintf(temp, sizeof temp, ".%s", tx->id);
    if (mkdirat(store, temp, 0700) < 0)
        return err_set(err, ERR_SETUP, errno, "keep the transaction");
    _cleanup_close_ int dir = openat(store, temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_close_ int fd = dir < 0 ? -1 : openat(dir, META, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    tx_meta_write(tx, &meta);
    int r = 0;
    if (meta.n > META_MAX)
        r = err_set(err, ERR_LIMIT, 0, "the paths of its changes are more than %d MiB, the limit", META_MAX >> 20);
    else if (fd < 0 || fd_write_all(fd, meta.p, meta.n) < 0)
        r = err_set(err, ERR_SETUP, errno, "keep the transaction");
    if (r == 0)
        r = keep_layers(tx, dir, err);
    if (r == 0)
        r = publish(tx, store, dir, temp, err);
    if (r < 0)
        (void)tree_remove(store, temp, &ignored);
    return r;
}

/* --- and found again ---------------------------------------------------------------------------------------------- */

static int open_places(struct tx *tx, const struct strv *places, int dir, struct err *err)
{
    for (size_t i = 0; i < places->n; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "L%zu", i);
        if (add_place(tx, places->v[i], dir, name, err) < 0)
            return -1;
    }
    return 0;
}

/* What is on the host now may be something else than the command's end saw: that is what counts. */
static void take_seen(struct tx *tx, const struct tx_entries *seen)
{
    struct map index[TX_PLACES_MAX] = {0};
    tx_index(seen, index);
    for (size_t i = 0; i < tx->n; i++) {
        struct tx_change *c = &tx->changes[i];
        const struct tx_entry *e = map_get(&index[c->place], c->path);
        if (e)
            c->seen = e->seen;
        else
            c->seen.there = !c->seen.there;
    }
    tx_index_done(index);
}

static int choose(int store, const char *id, char ret[TX_ID_MAX], struct err *err)
{
    _cleanup_strv_ struct strv ids = {0};
    if (id && !id_valid(id))
        return err_set(err, ERR_USAGE, 0, "%s is no transaction; they look like tx-0123abcd, `hutch tx ls` lists them",
                       id);
    list_ids(store, &ids);
    if (!id && ids.n == 0)
        return err_set(err, ERR_USAGE, 0, "no transaction waits; `hutch run --tx` makes one");
    if (!id && ids.n > 1)
        return err_set(err, ERR_USAGE, 0, "%zu transactions wait: say which; `hutch tx ls` lists them", ids.n);
    id = id ? id : ids.v[0];
    if (!strv_has(&ids, id))
        return err_set(err, ERR_USAGE, 0, "there is no transaction %s; `hutch tx ls` lists those that wait", id);
    (void)snprintf(ret, TX_ID_MAX, "%s", id);
    return 0;
}

/* Root's store may lie where HOME says, in the home of a user who could put anything there. */
static int check_owner(int dir, const char *id, struct err *err)
{
    struct stat st;
    if (fstat(dir, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "look at transaction %s", id);
    if (st.st_uid == geteuid() && !(st.st_mode & (S_IWGRP | S_IWOTH)))
        return 0;
    return err_set(err, ERR_POLICY, 0, "transaction %s belongs to user %u, or others may write to it; it is not used",
                   id, st.st_uid);
}

int tx_load(const char *id, bool mend, struct tx *ret, struct err *err)
{
    _cleanup_close_ int store = open_store(err);
    _cleanup_buf_ struct buf text = {0};
    _cleanup_strv_ struct strv places = {0};
    _cleanup_entries_ struct tx_entries seen = {0};
    if (store < 0 || choose(store, id, ret->id, err) < 0)
        return -1;
    _cleanup_close_ int dir = openat(store, ret->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir >= 0 && check_owner(dir, ret->id, err) < 0)
        return -1;
    if (dir < 0 || fd_read_file(dir, META, META_MAX, &text) < 0)
        return err_set(err, ERR_SETUP, errno, "read transaction %s", ret->id);
    if (!tx_meta_read(buf_str(&text), text.n, ret, &places, &seen))
        return err_set(err, ERR_SETUP, 0, "transaction %s is damaged; `hutch discard %s` removes it", ret->id, ret->id);
    if (ret->root != (geteuid() == 0))
        return err_set(err, ERR_USAGE, 0, "transaction %s was made by %s; decide about it as the same user", ret->id,
                       ret->root ? "root" : "an ordinary user");
    if (open_places(ret, &places, dir, err) < 0)
        return -1;
    ret->dir = TAKE_FD(dir);
    ret->kept = true;
    tx_read_opened(ret);
    if (mend)
        tx_mend(ret, &seen);
    ret->was = &seen;
    int r = tx_compare(ret, err);
    ret->was = NULL;
    if (r < 0)
        return -1;
    take_seen(ret, &seen);
    return 0;
}

int tx_lock(const char *id, struct err *err)
{
    char chosen[TX_ID_MAX];
    _cleanup_close_ int store = open_store(err);
    if (store < 0 || choose(store, id, chosen, err) < 0)
        return -1;
    _cleanup_close_ int dir = openat(store, chosen, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return err_set(err, ERR_SETUP, errno, "open transaction %s", chosen);
    _cleanup_close_ int lock = lock_open(dir, TX_LOCK);
    _cleanup_free_ char *what = xasprintf("transaction %s", chosen);
    if (lock < 0)
        return err_set(err, ERR_SETUP, errno, "open the lock of transaction %s", chosen);
    return lock_take(lock, LOCK_EX, 0, what, err) < 0 ? -1 : TAKE_FD(lock);
}

/* Its name goes first: half of a transaction must not wait for anybody. */
int tx_drop(const char *id, struct err *err)
{
    char chosen[TX_ID_MAX], temp[TX_ID_MAX + 8];
    _cleanup_close_ int lock = -1;
    _cleanup_close_ int store = lock_store(&lock, err);
    if (store < 0 || choose(store, id, chosen, err) < 0)
        return -1;
    (void)snprintf(temp, sizeof temp, ".%s", chosen);
    if (renameat(store, chosen, store, temp) < 0)
        return err_set(err, ERR_SETUP, errno, "remove transaction %s", chosen);
    return tree_remove(store, temp, err);
}

static int list(struct err *err)
{
    _cleanup_strv_ struct strv ids = {0};
    _cleanup_close_ int store = open_store(err);
    if (store < 0)
        return -1;
    list_ids(store, &ids);
    for (size_t i = 0; i < ids.n; i++) {
        struct tx tx = {0};
        struct err why = {0};
        _cleanup_buf_ struct buf command = {0};
        int r = tx_load(ids.v[i], false, &tx, &why);
        text_add_safe(&command, r < 0 ? why.msg : tx.command, 120);
        printf("%s  %6zu change%s  %s  %s\n", ids.v[i], tx.n, tx.n == 1 ? " " : "s",
               tx.nplaces ? tx_shown(tx.place[0].src) : "-", buf_str(&command));
        tx_done(&tx);
    }
    return 0;
}

int cmd_tx(int argc, char **argv)
{
    struct err err = {0};
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        puts("usage: hutch tx ls\n\nLists transactions that wait for a decision. `hutch run --tx -- COMMAND` makes "
             "one; `hutch diff`\n"
             "shows it, `hutch apply` makes its changes on the host, `hutch discard` forgets it.");
        return 0;
    }
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "ls") != 0)) {
        (void)err_set(&err, ERR_USAGE, 0, "usage: hutch tx ls");
        return cli_fail(&err);
    }
    return list(&err) < 0 ? cli_fail(&err) : 0;
}
