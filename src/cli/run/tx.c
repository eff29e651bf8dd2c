/* tx.c - keeps, lists, loads and drops transactions that wait for a decision. */
#include "cli/run/tx.h"

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
#include "trees/tree.h"

#define META    "tx.json"
#define APART   "apart"
#define DB_LOCK "tx.lock" /* beside the directory of transactions */
#define TX_LOCK "lock"
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

/* The command may have denied its owner access to the layer's root; that mode is not a change. */
static int open_layer(int parent, const char *name)
{
    const int how = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(parent, name, how);
    return fd < 0 && errno == EACCES && fchmodat(parent, name, 0700, 0) == 0 ? openat(parent, name, how) : fd;
}

/* Follows no links: the path had none when the command ran. A link that exists now came later, perhaps from another
 * command, and may lead to a place that this one had no right to write. */
static int open_host(const char *src)
{
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    return (int)syscall(SYS_openat2, AT_FDCWD, src, &how, sizeof how);
}

static int tx_add_place(struct tx *tx, const char *src, int parent, const char *layer, struct err *err)
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

/* Continues after a failure, so that the changes in the other places are not lost. */
int tx_open_vault(struct tx *tx, const struct wall_learn *places, int vault, struct err *err)
{
    char name[32];
    int r = 0;
    for (size_t i = 0; i < places->n; i++) {
        struct err why = {0};
        (void)snprintf(name, sizeof name, "L%zu/u", i);
        if (tx_add_place(tx, places->place[i].src, vault, name, &why) < 0 && r == 0) {
            *err = why;
            r = -1;
        }
    }
    tx->apart_dir = openat(vault, "L0/a", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    tx->has_apart = tx->apart_dir >= 0;
    return r;
}

/* --- where they are kept ------------------------------------------------------------------------------------------ */

/* NULL: neither variable is set. */
static char *db_path(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state && state[0] == '/')
        return path_join(state, "hutch/tx");
    return home && home[0] == '/' ? path_join(home, ".local/state/hutch/tx") : NULL;
}

const char *tx_where(const struct tx *tx)
{
    _cleanup_free_ char *db = db_path(), *path = path_join(db ? db : "", tx->id);
    return tx_shown(path);
}

static int open_db(struct err *err)
{
    _cleanup_free_ char *path = db_path();
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

static void list_ids(int db, struct strv *ret)
{
    int own = openat(db, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = own < 0 ? NULL : fdopendir(own);
    if (!d) {
        if (own >= 0)
            (void)close(own);
        return;
    }
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        if (id_valid(e->d_name))
            strv_add(ret, e->d_name);
    strv_sort(ret);
}

/* The caller holds the exclusive lock, so no process is at work: a partial transaction was left by a killed one. Removes it. */
static void tx_remove_partial(int db)
{
    struct err ignored = {0};
    int own = openat(db, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = own < 0 ? NULL : fdopendir(own);
    if (!d && own >= 0)
        (void)close(own);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
        if (e->d_name[0] == '.' && id_valid(e->d_name + 1))
            (void)tree_remove(db, e->d_name, &ignored);
}

/* Opens the directory of transactions for a change; the caller closes *ret_lock afterwards. The lock is a file beside it:
 * sandboxed commands may open the directory itself and could hold a lock on it for ever. */
static int lock_store(int *ret_lock, struct err *err)
{
    _cleanup_close_ int db = open_db(err);
    if (db < 0)
        return -1;
    *ret_lock = lock_open(db, "../" DB_LOCK);
    if (*ret_lock < 0)
        return err_set(err, ERR_SETUP, errno, "open %s beside the transactions", DB_LOCK);
    if (flock(*ret_lock, LOCK_EX | LOCK_NB) == 0)
        tx_remove_partial(db);
    if (lock_take(*ret_lock, LOCK_SH, LOCK_WAIT_MS, "the directory of transactions", err) < 0) {
        (void)close(TAKE_FD(*ret_lock));
        return -1;
    }
    return TAKE_FD(db);
}

/* from -1: the layer cannot be read; keeps an empty one. */
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
    _cleanup_free_ char *path = db_path();
    _cleanup_strv_ struct strv ids = {0};
    _cleanup_close_ int db = path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (db >= 0)
        list_ids(db, &ids);
    return ids.n < TX_KEPT_MAX ? 0
                               : err_set(err, ERR_LIMIT, 0,
                                         "%zu transactions wait already, which is the limit: see "
                                         "`hutch tx ls`, then `hutch apply` or `hutch discard`",
                                         ids.n);
}

/* Renames the transaction to its id only when all of it is on the disk: the copy in memory goes next, and after a power cut a
 * transaction with empty files would be applied like any other. */
static int tx_publish(const struct tx *tx, int db, int dir, const char *temp, struct err *err)
{
    if (syncfs(dir) < 0 || renameat(db, temp, db, tx->id) < 0)
        return err_set(err, ERR_SETUP, errno, "keep the transaction");
    (void)fsync(db); /* sync the name; a failure is not fatal */
    return 0;
}

int tx_keep(struct tx *tx, struct err *err)
{
    struct err ignored = {0};
    char temp[TX_ID_MAX + 8];
    _cleanup_buf_ struct buf meta = {0};
    _cleanup_close_ int lock = -1;
    _cleanup_close_ int db = lock_store(&lock, err);
    if (db < 0)
        return -1;
    tx_choose_id(tx);
    (void)snprintf(temp, sizeof temp, ".%s", tx->id);
    if (mkdirat(db, temp, 0700) < 0)
        return err_set(err, ERR_SETUP, errno, "keep the transaction");
    _cleanup_close_ int dir = openat(db, temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
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
        r = tx_publish(tx, db, dir, temp, err);
    if (r < 0)
        (void)tree_remove(db, temp, &ignored);
    return r;
}

/* --- and found again ---------------------------------------------------------------------------------------------- */

static int open_places(struct tx *tx, const struct strv *places, int dir, struct err *err)
{
    for (size_t i = 0; i < places->n; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "L%zu", i);
        if (tx_add_place(tx, places->v[i], dir, name, err) < 0)
            return -1;
    }
    return 0;
}

/* Replaces what is on the host now by what was there when the command ended: conflicts are judged by that. */
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

static int tx_choose(int db, const char *id, char ret[TX_ID_MAX], struct err *err)
{
    _cleanup_strv_ struct strv ids = {0};
    if (id && !id_valid(id))
        return err_set(err, ERR_USAGE, 0,
                       "%s is not the id of a transaction, like tx-0123abcd, `hutch tx ls` lists them", id);
    list_ids(db, &ids);
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

/* HOME may lead root to another user's home: refuse a transaction that another user owns or can write. */
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
    _cleanup_close_ int db = open_db(err);
    _cleanup_buf_ struct buf text = {0};
    _cleanup_strv_ struct strv places = {0};
    _cleanup_entries_ struct tx_entries seen = {0};
    if (db < 0 || tx_choose(db, id, ret->id, err) < 0)
        return -1;
    _cleanup_close_ int dir = openat(db, ret->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
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
    _cleanup_close_ int db = open_db(err);
    if (db < 0 || tx_choose(db, id, chosen, err) < 0)
        return -1;
    _cleanup_close_ int dir = openat(db, chosen, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return err_set(err, ERR_SETUP, errno, "open transaction %s", chosen);
    _cleanup_close_ int lock = lock_open(dir, TX_LOCK);
    _cleanup_free_ char *what = xasprintf("transaction %s", chosen);
    if (lock < 0)
        return err_set(err, ERR_SETUP, errno, "open the lock of transaction %s", chosen);
    return lock_take(lock, LOCK_EX, 0, what, err) < 0 ? -1 : TAKE_FD(lock);
}

/* Renames it first, so that a partly removed transaction is never listed. */
int tx_drop(const char *id, struct err *err)
{
    char chosen[TX_ID_MAX], temp[TX_ID_MAX + 8];
    _cleanup_close_ int lock = -1;
    _cleanup_close_ int db = lock_store(&lock, err);
    if (db < 0 || tx_choose(db, id, chosen, err) < 0)
        return -1;
    (void)snprintf(temp, sizeof temp, ".%s", chosen);
    if (renameat(db, chosen, db, temp) < 0)
        return err_set(err, ERR_SETUP, errno, "remove transaction %s", chosen);
    return tree_remove(db, temp, err);
}

static int tx_print_all(struct err *err)
{
    _cleanup_strv_ struct strv ids = {0};
    _cleanup_close_ int db = open_db(err);
    if (db < 0)
        return -1;
    list_ids(db, &ids);
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
             "shows it, `hutch apply` makes its changes on the host, `hutch discard` drops it.");
        return 0;
    }
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "ls") != 0)) {
        (void)err_set(&err, ERR_USAGE, 0, "usage: hutch tx ls");
        return cli_fail(&err);
    }
    return tx_print_all(&err) < 0 ? cli_fail(&err) : 0;
}
