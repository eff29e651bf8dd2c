/* tx-mend.c - undoes what a killed `apply` left half done on the host.
 *
 * Two things are half done for moments. An entry has the name of the transaction (`.hutch-tx-...`) before it is put in its
 * place or after it was taken out of it; the next apply finds it beside the change. A directory that denies its owner to
 * write is unlocked until everything is in it; its path is written to "opened" of the kept transaction before.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/random.h"
#include "cli/run/tx.h"

#define OPENED "opened"
enum { OPENED_MAX = 256 << 20 };

void tx_choose_id(struct tx *tx)
{
    if (tx->id[0])
        return;
    (void)snprintf(tx->id, sizeof tx->id, "tx-");
    random_hex(tx->id + 3, 4);
}

/* --- names -------------------------------------------------------------------------------------------------------- */

void tx_name_temp(const struct tx *tx, char ret[TX_TEMP_MAX]) { (void)snprintf(ret, TX_TEMP_MAX, ".hutch-%s", tx->id); }

int tx_drop_temp(int dir, const char *temp)
{
    return unlinkat(dir, temp, 0) == 0 || unlinkat(dir, temp, AT_REMOVEDIR) == 0 ? 0 : -1;
}

/* Puts a directory back that was taken out of its place: the killed process may not yet have checked whether it was changed at
 * the last moment. The directory in its place is new and empty. */
static void mend_put_back(int dir, const char *temp, const char *name)
{
    if (syscall(SYS_renameat2, dir, temp, dir, name, RENAME_EXCHANGE) == 0)
        (void)tx_drop_temp(dir, temp);
    else
        (void)syscall(SYS_renameat2, dir, temp, dir, name, RENAME_NOREPLACE);
}

static size_t parent_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) : 0;
}

void tx_mend(const struct tx *tx, const struct tx_entries *seen)
{
    char temp[TX_TEMP_MAX];
    tx_name_temp(tx, temp);
    for (int pass = 0; pass < 2; pass++) { /* first pass: put old directories back */
        const struct tx_entry *clean = NULL;
        for (size_t i = 0; i < seen->n; i++) {
            const struct tx_entry *e = &seen->v[i];
            const char *name;
            struct stat st;
            size_t n = parent_length(e->path);
            if (clean && clean->place == e->place && parent_length(clean->path) == n &&
                strncmp(clean->path, e->path, n) == 0)
                continue;
            _cleanup_close_ int dir = tx_open_parent(tx->place[e->place].host, e->path, &name);
            clean = dir < 0 || fstatat(dir, temp, &st, AT_SYMLINK_NOFOLLOW) < 0 ? e : NULL;
            if (!clean && pass == 1)
                (void)tx_drop_temp(dir, temp);
            else if (!clean && S_ISDIR(st.st_mode) && e->seen.there && st.st_ino == e->seen.ino)
                mend_put_back(dir, temp, name);
        }
    }
}

/* --- modes -------------------------------------------------------------------------------------------------------- */

int tx_note_opened(const struct tx *tx, const struct tx_entry *e)
{
    _cleanup_buf_ struct buf line = {0};
    if (!tx->kept) /* the layers of an unkept transaction end with this process */
        return 0;
    _cleanup_close_ int fd = openat(tx->dir, OPENED, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    tx_meta_put(&line, OPENED, e);
    return fd < 0 ? -1 : fd_write_all(fd, line.p, line.n);
}

bool tx_still_open(const struct tx_entry *e, const struct stat *st)
{
    return S_ISDIR(st->st_mode) && st->st_ino == e->seen.ino && (off_t)(st->st_mode & 07777) == e->seen.size;
}

void tx_forget_opened(const struct tx *tx)
{
    if (tx->kept)
        (void)unlinkat(tx->dir, OPENED, 0);
}

void tx_read_opened(struct tx *tx)
{
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(tx->dir, OPENED, OPENED_MAX, &text) == 0)
        tx_meta_take(buf_str(&text), text.n, tx);
}
