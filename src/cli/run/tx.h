/* tx.h - transactions of `hutch run --tx`: shows what a command wrote into private layers, then keeps, applies or drops it.
 *
 * The layers are overlay's upper directories; the command chose the names, modes and links in them. Code here walks them and
 * the host by descriptor and never follows a link. It never makes anything on the host that is set-uid or set-gid, and copies
 * no attributes but access lists and user.*. An existing file keeps its attributes unless the command changed them.
 */
#ifndef HUTCH_CLI_RUN_TX_H
#define HUTCH_CLI_RUN_TX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/map.h"
#include "base/strv.h"
#include "wall/learn.h"

struct policy;

enum {
    TX_DEPTH_MAX = 1024,     /* deeper entries are set apart (tx-apart.c) */
    TX_KEPT_MAX = 100,       /* transactions that may wait for a decision */
    TX_SHOWN_MAX = 200,      /* lines of a summary */
    TX_TEXT_MAX = 256 << 10, /* a file up to this size is compared line by line */
    TX_ID_MAX = 16,          /* "tx-" and eight hexadecimal digits */
    TX_TEMP_MAX = 32,        /* of a name on the host while something is applied */
    TX_FD_PATH = 32,         /* of "/proc/self/fd/N" */
    TX_PLACES_MAX = LEARN_PLACES_MAX,
    TX_BELOW_MAX = 300000,     /* entries below removed directories that are written down, */
    TX_BELOW_BYTES = 32 << 20, /* and bytes of their paths; beyond, only file times are compared */
};

enum tx_kind { TX_ADDED = 'A', TX_CHANGED = 'M', TX_REMOVED = 'D' };

/* The host's entry when the command had ended. tx_apply() refuses to replace a different one. */
struct tx_seen {
    bool there;
    mode_t mode;
    ino_t ino;
    off_t size;
    struct timespec ctime;
    struct timespec mtime; /* when tx_apply() looked for conflicts; not written down */
};
struct tx_change {
    unsigned place;
    char *path; /* below the place; owned */
    enum tx_kind kind;
    mode_t mode; /* with type, as it is in the layer; 0 if removed */
    off_t size;
    bool content, attributes; /* TX_CHANGED: what */
    char *attrs;              /* see tx-attr.c; NULL: as they are on the host. Owned */
    struct tx_seen seen;
};
struct tx_entry {
    unsigned place;
    char *path; /* below the place; owned */
    struct tx_seen seen;
    char *attrs; /* of a change; owned */
};
struct tx_entries {
    struct tx_entry *v; /* owned */
    size_t n, cap;
};
struct tx_place {
    char *src;       /* on the host; owned */
    int layer, host; /* directories */
};
struct tx {
    char id[TX_ID_MAX]; /* "" until it is applied or kept */
    bool kept;          /* then `dir` is its directory */
    int dir;
    struct tx_place place[TX_PLACES_MAX];
    size_t nplaces;
    struct tx_change *changes;
    size_t n, cap;
    uid_t shift;             /* of owners in the layers */
    bool root;               /* owners are set on the host */
    int64_t started_ns;      /* CLOCK_REALTIME: later changes on the host come from other programs */
    int64_t checked_ns;      /* CLOCK_REALTIME_COARSE: when tx_apply() had looked for conflicts */
    struct tx_entries below; /* what was on the host in directories that the changes remove */
    size_t below_bytes;
    bool below_cut; /* there were more than fit */
    bool consent;   /* protected names may be applied, because the policy protects none */
    bool unseen;    /* the host was not compared; see tx_rescue() */
    int apart_dir;  /* if has_apart: entries of the layers that lie too deep, as "0", "1" ... */
    bool has_apart;
    struct tx_entries apart;  /* where they were */
    struct tx_entries opened; /* see tx-mend.c */
    char *blind;              /* a directory of the host that cannot be read, or NULL */
    struct tx_entries modes;  /* entries of the layers that were made readable; seen.mode is the command's mode */
    const struct policy *
        policy; /* of the run, borrowed; NULL when a kept one is loaded. Names that it does not protect are not refused */
    char *command;                /* for people */
    struct strv notes;            /* fit to print */
    struct strv left;             /* the same, of what tx_apply() could not do */
    const struct tx_entries *was; /* when a kept one is compared again: the changes as they were written down */
};

/* After the run: opens the layers in the vault (see wall/learn.h). On ERR_POLICY and ERR_SETUP call tx_rescue(); call tx_done()
 * in any case. */
int tx_open_vault(struct tx *tx, const struct wall_learn *places, int vault, struct err *err);
/* tx-diff.c: fills `changes`, in order of the paths, directories before their entries. Makes entries of the layers
 * readable for an ordinary user, and sets apart what lies too deep. */
int tx_compare(struct tx *tx, struct err *err);
/* tx-apart.c: how deep the layers can be walked; raises the limit on open files for it. */
unsigned tx_depth(void);
/* Moves an entry of a layer to where it is kept but not applied. ERR_LIMIT if the transaction was kept already. */
int tx_set_apart(struct tx *tx, unsigned place, int dir, const char *name, const char *path, struct err *err);
/* Sets apart again what lies too deep within a part. */
int tx_flatten_apart(struct tx *tx, struct err *err);
/* One line per change, at most `max`, then the number of the others. Changes that programs outside run come first, under a
 * heading. */
void tx_list(const struct tx *tx, size_t max, struct buf *out);
/* Only the changes that programs outside run; nothing if there are none. */
void tx_list_running(const struct tx *tx, size_t max, struct buf *out);
/* tx-names.c: whether a program outside executes or trusts the new file without the user's doing. Refused: rules protect the
 * name there, or it was on the host before; applied only with --allow-protected. Reported: it came with something new. */
enum tx_class { TX_PLAIN, TX_REPORTED, TX_REFUSED };
enum tx_class tx_judge(const struct tx *tx, const struct tx_change *c);
size_t tx_count_class(const struct tx *tx, enum tx_class least);
/* A unified diff of everything that is text, a line for the rest; what programs outside run first. -1 with errno if it cannot
 * be written. */
int tx_diff(const struct tx *tx, int fd);
/* A path as it may stand in a message; valid until the fourth call from now. */
const char *tx_shown(const char *path);
struct tx_seen tx_seen_of(const struct stat *host);
/* tx-below.c: writes down what is in directories that the changes remove; `max` is TX_BELOW_MAX. */
void tx_survey(struct tx *tx, size_t max);
/* Whether the change removes a directory of the host. */
bool tx_takes_dir(const struct tx_change *c);
/* Whether the host's entry was replaced, or changed while the command ran. Times of a directory change with its
 * entries, so a directory that stays must only still be one, with the same mode. A directory that `goes` must be the
 * same inode and must not have gained or lost entries while the command ran: times of entries do not show that they
 * were moved in. */
bool tx_changed(const struct tx *tx, const struct tx_seen *s, const struct stat *st, bool goes);
/* The same, since tx_apply() looked for conflicts. Ignores ctime: tx_apply() may meanwhile have changed another hard link of
 * the file. */
bool tx_changed_again(const struct tx_seen *s, const struct stat *st, bool goes);
/* Calls `found` for each entry now in the removed directory that must not be removed without --force. `known`: `below`,
 * indexed. again: looks only for changes since tx_apply() looked for conflicts; says where the directory is meanwhile. */
typedef void tx_found(void *arg, const char *path);
struct tx_at {
    int dir;
    const char *name;
};
void tx_look_below(const struct tx *tx, const struct tx_change *c, const struct map *known, const struct tx_at *again,
                   tx_found *found, void *arg);
/* Opens the directory that holds `path`; *name is its name there. Follows no link: a directory of the host that became one
 * since is an error. -1 with errno. */
int tx_open_parent(int root, const char *path, const char **name);
/* tx-apply.c: makes the changes on the host. Looks for conflicts first; if there are any, without `force`, does nothing and
 * returns ERR_POLICY, which names them. */
int tx_apply(struct tx *tx, bool force, struct err *err);
/* tx-put.c: copies the file, link or pipe `from` of `layer`, with stat `l`, to `temp` in `dir`. A file gets the attributes of
 * the one at `name`, if there is one, except the kinds that `attrs` covers. -1 with errno; `temp` may exist then. */
struct tx_put {
    const struct tx *tx;
    const struct stat *l;
    int layer, dir;
    const char *from, *name, *temp, *attrs;
    struct strv *left;
};
int tx_put(const struct tx_put *p);
/* "/proc/self/fd/N", for calls that take no O_PATH descriptor. Returns ret. */
const char *tx_fd_path(int fd, char ret[TX_FD_PATH]);
/* fchown() and fchmod() that also take an O_PATH descriptor. -1 with errno. */
int tx_set_owner(const struct tx *tx, int fd, const struct stat *l);
int tx_set_mode(int fd, mode_t mode);
/* tx-attr.c: the kinds of attributes that files of this layer can have. */
unsigned tx_attrs_kinds(int layer);
unsigned tx_attrs_kinds_of(const char *text);
/* The attributes of an entry, of these kinds, with ids minus `shift`. dir -1: it has none. NULL if they cannot be read. The
 * caller frees. */
char *tx_attrs_read(int dir, const char *name, unsigned kinds, uid_t shift);
/* Removes inherited access lists. Takes an O_PATH descriptor, as the next function does. */
void tx_attrs_bare(int fd);
/* Sets the attributes of `text` (NULL: changes none); reports in `left` what the file system refuses. Returns the mode that the
 * entry may get then. */
mode_t tx_attrs_set(int fd, const char *text, mode_t mode, const char *shown, struct strv *left);
/* Copies the attributes of the file at `name`, except the kinds in `but`. -1 with errno: without its access list, the rights
 * it gave to some would be the whole group's. */
int tx_attrs_keep(int dir, const char *name, unsigned but, int to);
/* tx-mend.c: finds and undoes what a killed `apply` left half done. */
void tx_choose_id(struct tx *tx);
/* The temporary name of an entry that is not yet, or no longer, in its place. */
void tx_name_temp(const struct tx *tx, char ret[TX_TEMP_MAX]);
/* Removes such an entry, unless it is a directory that is not empty. -1 with errno. */
int tx_drop_temp(int dir, const char *temp);
/* Undoes what is half done on the host. `seen`: as it was written down. */
void tx_mend(const struct tx *tx, const struct tx_entries *seen);
/* Writes down that a directory is about to be unlocked: seen.mode is its final mode, seen.size the mode until then. */
int tx_note_opened(const struct tx *tx, const struct tx_entry *e);
bool tx_still_open(const struct tx_entry *e, const struct stat *st);
/* After all of them got their final modes. */
void tx_forget_opened(const struct tx *tx);
void tx_read_opened(struct tx *tx);
void tx_forget_changes(struct tx *tx);
void tx_done(struct tx *tx);

/* tx.c: kept in STATE/hutch/tx ($XDG_STATE_HOME, else ~/.local/state). */
int tx_keep(struct tx *tx, struct err *err);
/* Before a run: ERR_LIMIT if TX_KEPT_MAX transactions wait. */
int tx_room(struct err *err);
/* The directory of a kept one, fit to print; valid until the fourth call of tx_shown() from now. */
const char *tx_where(const struct tx *tx);
/* id NULL: the only one. mend: calls tx_mend(); for callers that apply it. ERR_POLICY if it belongs to another user. */
int tx_load(const char *id, bool mend, struct tx *ret, struct err *err);
/* Locks the transaction until the descriptor is closed; needed to apply or drop it. ERR_POLICY if another process holds it. */
int tx_lock(const char *id, struct err *err);
int tx_drop(const char *id, struct err *err);

/* tx-meta.c: tx.json. Reads it into root, started_ns, command, unseen, below, modes and apart of `tx` and the rest beside it;
 * false: it is damaged. */
void tx_meta_write(const struct tx *tx, struct buf *out);
bool tx_meta_read(const char *text, size_t n, struct tx *tx, struct strv *places, struct tx_entries *seen);
/* Writes one entry as a line; reads such lines up to the first malformed one. */
void tx_meta_put(struct buf *out, const char *kind, const struct tx_entry *e);
void tx_meta_take(const char *text, size_t n, struct tx *tx);
void tx_entries_done(struct tx_entries *e);
#define _cleanup_entries_ __attribute__((cleanup(tx_entries_done)))
/* Indexes the entries by path, for each place; they must not move meanwhile. `index` is zeroed. */
void tx_index(const struct tx_entries *e, struct map index[TX_PLACES_MAX]);
void tx_index_done(struct map index[TX_PLACES_MAX]);

/* run-tx.c: the end of a run. */
enum tx_end { TX_END_NOTHING, TX_END_APPLIED, TX_END_KEPT, TX_END_DROPPED };
/* When the layers cannot be compared with the host, for the reason in `err`: keeps them unchanged, and adds to `err` where.
 * Always -1. */
int tx_rescue(struct tx *tx, enum tx_end *ret, struct err *err);
int tx_decide(struct tx *tx, bool commit, bool quiet, enum tx_end *ret, struct err *err);
const char *tx_end_name(enum tx_end e);
/* `hutch diff tx-...`; NULL: the only one. Exit code. */
int tx_cmd_diff(const char *id);

#endif
