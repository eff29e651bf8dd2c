/* tx.h - transactions of `hutch run --tx`: what a command wrote into private layers, shown, and then kept, applied or
 * dropped.
 *
 * The layers are overlay's upper directories, written on behalf of the command: names, modes and links in them are the
 * command's. Only descriptors are used to get around in them and on the host, links are never followed, and nothing is
 * ever made on the host that is set-uid, set-gid or carries attributes of the layers but access lists and user.*. What is only
 * changed there keeps its own, unless the command changed them.
 */
#ifndef HUTCH_CLI_TX_H
#define HUTCH_CLI_TX_H

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
    TX_DEPTH_MAX = 1024,     /* what lies deeper is kept, but apart */
    TX_KEPT_MAX = 100,       /* transactions that wait for a decision; with more none is begun */
    TX_SHOWN_MAX = 200,      /* lines of a summary */
    TX_TEXT_MAX = 256 << 10, /* a file up to this size is compared line by line */
    TX_ID_MAX = 16,          /* "tx-" and eight hexadecimal digits */
    TX_TEMP_MAX = 32,        /* of a name on the host while something is applied */
    TX_PLACES_MAX = LEARN_PLACES_MAX,
    TX_BELOW_MAX = 300000,     /* entries below directories that go, written down one by one, */
    TX_BELOW_BYTES = 32 << 20, /* and their paths together; of more only the time is looked at */
};

enum tx_kind { TX_ADDED = 'A', TX_CHANGED = 'M', TX_REMOVED = 'D' };

/* What was on the host when the command had ended; later it must still be so. */
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
    bool kept;          /* it was, and this is: */
    int dir;
    struct tx_place place[TX_PLACES_MAX];
    size_t nplaces;
    struct tx_change *changes;
    size_t n, cap;
    uid_t shift;             /* of owners in the layers */
    bool root;               /* owners are set on the host */
    int64_t started_ns;      /* CLOCK_REALTIME: what changed on the host later was changed by somebody else */
    int64_t checked_ns;      /* CLOCK_REALTIME_COARSE: when tx_apply() had looked for conflicts */
    struct tx_entries below; /* what was on the host in directories that go */
    size_t below_bytes;
    bool below_cut; /* there was more */
    bool consent;   /* names that are refused otherwise may be applied: the policy protects none */
    bool unseen;    /* what was on the host is not known, see tx_rescue() */
    int apart_dir;  /* if has_apart: entries of the layers that lie too deep, as "0", "1" ... */
    bool has_apart;
    struct tx_entries apart;  /* where they were */
    struct tx_entries opened; /* see tx-mend.c */
    char *blind;              /* a directory that cannot be looked into on the host, if there is one */
    struct tx_entries
        modes; /* in the layers: of what its owner may not read. They were opened up, seen.mode is what counts */
    const struct policy
        *policy;   /* of the run, borrowed; NULL when a kept one is loaded. What it does not protect is not refused */
    char *command; /* for people */
    struct strv notes;            /* fit to print */
    struct strv left;             /* the same, of what tx_apply() could not do */
    const struct tx_entries *was; /* when a kept one is compared again: the changes as they were written down */
};

/* After the run: the layers in the vault (see wall/learn.h). ERR_POLICY, ERR_SETUP: then tx_rescue(), and tx_done() in any
 * case. */
int tx_open_vault(struct tx *tx, const struct wall_learn *places, int vault, struct err *err);
/* tx-diff.c: fills `changes`, in order of the paths, directories before what is in them. Opens up in the layers what an
 * ordinary user could not read there, and sets apart what lies too deep. */
int tx_compare(struct tx *tx, struct err *err);
/* tx-apart.c: how deep the layers can be walked through; raises the limit on open files for it. */
unsigned tx_depth(void);
/* Takes an entry of a layer to where it is kept, but not applied from. ERR_LIMIT in a transaction that was kept already. */
int tx_set_apart(struct tx *tx, unsigned place, int dir, const char *name, const char *path, struct err *err);
/* The same with what lies too deep in what was set apart. */
int tx_flatten_apart(struct tx *tx, struct err *err);
/* One line per change, at most `max`; then how many more. What programs outside run comes first, under a heading. */
void tx_list(const struct tx *tx, size_t max, struct buf *out);
/* The first part of it alone; nothing if there are none. */
void tx_list_running(const struct tx *tx, size_t max, struct buf *out);
/* tx-names.c: whether a program outside executes or believes the new file without the user's doing. Refused: it is where rules
 * protect it, or was on the host before; it is applied only if that was asked for. Reported: it came with something new. */
enum tx_class { TX_PLAIN, TX_REPORTED, TX_REFUSED };
enum tx_class tx_judge(const struct tx *tx, const struct tx_change *c);
size_t tx_count_class(const struct tx *tx, enum tx_class least);
/* A unified diff of everything that is text, a line for the rest; what programs outside run first. -1 with errno if it cannot
 * be written. */
int tx_diff(const struct tx *tx, int fd);
/* A path as it may stand in a message; valid until the fourth call from now. */
const char *tx_shown(const char *path);
struct tx_seen tx_seen_of(const struct stat *host);
/* tx-below.c: writes down what is in directories that go; `max` is TX_BELOW_MAX. */
void tx_survey(struct tx *tx, size_t max);
/* Whether the change takes a directory of the host away. */
bool tx_takes_dir(const struct tx_change *c);
/* Whether there is something else now, or was changed while the command ran. A directory that stays changes its times with
 * everything in it: what counts is that it still is one, with its mode. One that `goes` must be the same, and must not have
 * got or lost anything while the command ran: what was moved in with a directory has the times it always had. */
bool tx_changed(const struct tx *tx, const struct tx_seen *s, const struct stat *st, bool goes);
/* The same since tx_apply() looked for conflicts. Not by ctime: what it applied meanwhile may have been another name of the
 * same file. */
bool tx_changed_again(const struct tx_seen *s, const struct stat *st, bool goes);
/* Calls `found` for what is there now in the directory of such a change and must not go unasked. `known`: `below`, indexed.
 * again: that came since tx_apply() looked for conflicts, and where the directory is meanwhile. */
typedef void tx_found(void *arg, const char *path);
struct tx_at {
    int dir;
    const char *name;
};
void tx_look_below(const struct tx *tx, const struct tx_change *c, const struct map *known, const struct tx_at *again,
                   tx_found *found, void *arg);
/* The directory that holds `path`, and its name there. No link is followed: a directory of the host that became one since is
 * an error. -1 with errno. */
int tx_open_parent(int root, const char *path, const char **name);
/* tx-apply.c: on the host. Looks for conflicts first; then, without `force`, nothing is done: ERR_POLICY names them. */
int tx_apply(struct tx *tx, bool force, struct err *err);
/* tx-put.c: makes in `dir`, as `temp`, what `layer` holds as `from`: a file, link or pipe, `l` in the layer. A file gets the
 * attributes of the one at `name`, if there is one, but for those that `attrs` tells of. -1 with errno; `temp` may be there
 * then. */
struct tx_put {
    const struct tx *tx;
    const struct stat *l;
    int layer, dir;
    const char *from, *name, *temp, *attrs;
    struct strv *left;
};
int tx_put(const struct tx_put *p);
/* fchown() and fchmod() that also take an O_PATH descriptor. -1 with errno. */
int tx_set_owner(const struct tx *tx, int fd, const struct stat *l);
int tx_set_mode(int fd, mode_t mode);
/* tx-attr.c: the kinds of attributes that files of this layer can have. */
unsigned tx_attrs_kinds(int layer);
unsigned tx_attrs_kinds_of(const char *text);
/* Those of an entry, of such kinds, with ids minus `shift`. dir -1: it has none. NULL if they cannot be told. The caller
 * frees. */
char *tx_attrs_read(int dir, const char *name, unsigned kinds, uid_t shift);
/* Takes away lists that were inherited. O_PATH will do, as for the next. */
void tx_attrs_bare(int fd);
/* Makes them those of `text` (NULL: leaves them); what the file system does not take is told in `left`. The mode that the
 * entry may get then. */
mode_t tx_attrs_set(int fd, const char *text, mode_t mode, const char *shown, struct strv *left);
/* Gives a file those of the one at `name`, `but` for these kinds. -1 with errno: without its access list, what the list gave
 * away to some would be the whole group's. */
int tx_attrs_keep(int dir, const char *name, unsigned but, int to);
/* tx-mend.c: what an `apply` that was killed leaves, and how the next one finds it. */
void tx_choose_id(struct tx *tx);
/* The name of what is not in its place yet, or not any more. */
void tx_name_temp(const struct tx *tx, char ret[TX_TEMP_MAX]);
/* Removes it, but for a directory with something in it. -1 with errno. */
int tx_drop_temp(int dir, const char *temp);
/* Undoes what was half done on the host. `seen`: as it was written down. */
void tx_mend(const struct tx *tx, const struct tx_entries *seen);
/* A directory is about to be opened to its owner: seen.mode is what it gets at the end, seen.size the mode until then. */
int tx_note_opened(const struct tx *tx, const struct tx_entry *e);
bool tx_still_open(const struct tx_entry *e, const struct stat *st);
/* All of them have their modes. */
void tx_forget_opened(const struct tx *tx);
void tx_read_opened(struct tx *tx);
void tx_forget_changes(struct tx *tx);
void tx_done(struct tx *tx);

/* tx.c: kept in STATE/hutch/tx ($XDG_STATE_HOME, else ~/.local/state). */
int tx_keep(struct tx *tx, struct err *err);
/* Before a run: ERR_LIMIT if too many wait. */
int tx_room(struct err *err);
/* The directory of a kept one, fit to print; valid until the fourth call of tx_shown() from now. */
const char *tx_where(const struct tx *tx);
/* id NULL: the only one there is. mend: tx_mend(), for who applies. ERR_POLICY if it is somebody else's. */
int tx_load(const char *id, bool mend, struct tx *ret, struct err *err);
/* A descriptor; until it is closed no other process gets it. ERR_POLICY if one has it. For applying and dropping. */
int tx_lock(const char *id, struct err *err);
int tx_drop(const char *id, struct err *err);

/* tx-meta.c: tx.json. Reads it into root, started_ns, command, unseen, below, modes and apart of `tx` and the rest beside it;
 * false: it is damaged. */
void tx_meta_write(const struct tx *tx, struct buf *out);
bool tx_meta_read(const char *text, size_t n, struct tx *tx, struct strv *places, struct tx_entries *seen);
/* One entry as a line, and such lines again, up to the first that is none. */
void tx_meta_put(struct buf *out, const char *kind, const struct tx_entry *e);
void tx_meta_take(const char *text, size_t n, struct tx *tx);
void tx_entries_done(struct tx_entries *e);
#define _cleanup_entries_ __attribute__((cleanup(tx_entries_done)))
/* The entries by path, for each place; they must stay where they are meanwhile. `index` is zeroed. */
void tx_index(const struct tx_entries *e, struct map index[TX_PLACES_MAX]);
void tx_index_done(struct map index[TX_PLACES_MAX]);

/* run-tx.c: the end of a run. */
enum tx_end { TX_END_NOTHING, TX_END_APPLIED, TX_END_KEPT, TX_END_DROPPED };
/* When the layers cannot be compared with the host, for the reason that is in `err`: keeps them as they are, and says where.
 * Always -1. */
int tx_rescue(struct tx *tx, enum tx_end *ret, struct err *err);
int tx_decide(struct tx *tx, bool commit, bool quiet, enum tx_end *ret, struct err *err);
const char *tx_end_name(enum tx_end e);
/* `hutch diff tx-...`; NULL: the only one. Exit code. */
int tx_cmd_diff(const char *id);

#endif
