/* policy.h - the policy document, after parsing and merging: what a command may read, write, call and use up.
 *
 * A document comes from one *level*. Levels are merged in this order, later ones win where single values clash, and lists
 * add up: built-in < system (/etc/hutch/policy.yaml) < user (~/.config/hutch/policy.yaml) < project (./.hutch.yaml)
 * < command line. Every value keeps its *origin*, so that errors, `hutch policy show` and denial records can say which
 * line of which file decided. A `ceiling:` may stand in the system and user documents only; nothing below may widen it,
 * flags included. A project document may only narrow, unless its hash is trusted.
 *
 * Paths: the longest matching rule wins; at equal length deny wins. Reads are allowed unless a rule denies, writes are
 * denied unless a rule allows.
 *
 * Everything in a struct policy is owned by it; policy_free() releases it. Not thread-safe; nothing blocks but the
 * loaders that read files.
 */
#ifndef HUTCH_POLICY_RUN_POLICY_H
#define HUTCH_POLICY_RUN_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/strv.h"
#include "policy/run/names.h"

struct netpol;

enum policy_level { LEVEL_BUILTIN, LEVEL_SYSTEM, LEVEL_USER, LEVEL_PROJECT, LEVEL_SETTINGS, LEVEL_FLAGS, LEVEL_MAX };

struct origin {
    enum policy_level level;
    const char *file; /* owned by the policy; NULL for built-in; the flag's text ("--rw ./out") for LEVEL_FLAGS */
    unsigned line;    /* 1-based, 0 if there is none */
};

/* --- files ---------------------------------------------------------------------------------------------------------- */

enum file_verb {
    FILE_DENY_READ,   /* not readable: shown as an inode of mode 0000 */
    FILE_ALLOW_READ,  /* readable again inside a denied directory; for a root caller also: readable as the caller */
    FILE_ALLOW_WRITE, /* writable host directory or file; implies readable */
    FILE_DENY_WRITE,  /* read-only inside a writable tree, also while it does not exist */
    FILE_READ_ONLY,   /* mounted read-only, possibly at another place (src:dest) */
    FILE_TMPFS,       /* an empty private directory at this path */
    FILE_SOCKET,      /* a host unix socket that stays reachable */
    FILE_DEVICE,      /* a host device that is shown in /dev */
    FILE_VERB_MAX
};

enum {
    FILE_TRY = 1 << 0,     /* skipped silently if the path does not exist (--try) */
    FILE_MAKE = 1 << 2,    /* a directory that is made if it does not exist (--rw-make) */
    FILE_LITERAL = 1 << 1, /* of a policy_flag: a path that no person wrote, in which no character is special */
};

struct file_rule {
    enum file_verb verb;
    char *path; /* where inside: absolute and clean, or a glob (deny rules only) */
    char *src;  /* host path if it differs from path, else NULL */
    unsigned flags;
    bool is_glob;
    char *id; /* stable name in records: "builtin.ssh-keys", "files.allow_write[0]" */
    struct origin origin;
};

/* A file name (not a path) that stays protected from writes where its program reads it (names.h): "name" or "dir/name",
 * e.g. ".git/hooks", ".bashrc", ".vscode". */
struct protected_name {
    char *name;
    bool is_dir; /* what a stub for it looks like while it does not exist */
    enum name_place place;
    enum name_absent absent;
    const char *reason; /* static */
    char *id;
    struct origin origin;
};

/* --- limits --------------------------------------------------------------------------------------------------------- */

enum limit_id {
    LIMIT_CPU,    /* thousandths of a CPU */
    LIMIT_MEMORY, /* bytes */
    LIMIT_PIDS,
    LIMIT_DISK,       /* bytes of the private writable parts (tmp, upper) */
    LIMIT_INODES,     /* inodes of the same */
    LIMIT_OPEN_FILES, /* per process */
    LIMIT_WALL_TIME,  /* ms */
    LIMIT_CPU_TIME,   /* ms, of all processes together */
    LIMIT_OUTPUT,     /* bytes written to stdout and stderr together */
    LIMIT_MAX
};

struct limit {
    bool set;
    bool typed; /* asked for above the built-in level: if it cannot be enforced, that is an error */
    uint64_t value;
    struct origin origin;
};

/* --- the rest ------------------------------------------------------------------------------------------------------- */

enum privilege { PRIVILEGE_STRICT, PRIVILEGE_COMPUTER };
enum enforcement { ENFORCE_REQUIRED, ENFORCE_BEST_EFFORT };
enum network_mode {
    NETWORK_OFF,
    NETWORK_HOST,
    NETWORK_RULES /* what policy->netpol says */
};
enum denial_action { DENIAL_REPORT, DENIAL_FREEZE, DENIAL_KILL };

/* A syscall named in allow or deny. */
struct syscall_rule {
    char *name;
    bool allow;
    struct origin origin;
};

struct env_rule {
    enum { ENV_PASS, ENV_SET, ENV_DENY } verb;
    char *name;  /* "*" stands for any characters in pass and deny */
    char *value; /* ENV_SET only */
    struct origin origin;
};

struct policy {
    struct file_rule *files;
    size_t nfiles, files_cap;
    struct protected_name *names;
    size_t nnames, names_cap;
    struct limit limits[LIMIT_MAX];
    const char *profile; /* syscall profile: "default", "debugger" or "no-unix" (static string) */
    struct origin profile_origin;
    struct syscall_rule *syscalls;
    size_t nsyscalls, syscalls_cap;
    struct env_rule *env;
    size_t nenv, env_cap;
    enum network_mode network;
    struct netpol *netpol; /* NETWORK_RULES: the rules, else NULL */
    char *network_text;    /* the same as JSON, presets resolved; NULL like netpol */
    struct origin network_origin;
    enum privilege privilege;
    struct origin privilege_origin;
    enum enforcement enforcement;
    struct origin enforcement_origin;
    struct {
        uint64_t after; /* number of denials, 0 = never */
        enum denial_action action;
        struct origin origin;
    } on_denial;
    unsigned search_depth; /* how deep below a writable root repositories are looked for, 1..10 */
    struct origin search_depth_origin;
    struct strv homes;   /* the caller's home directory first, then those of /etc/passwd that people have */
    struct strv strings; /* storage behind origin.file */
    struct strv sources; /* documents that took part, in merge order, for `show` */
    struct strv presets; /* names of the files of --preset, with those that they include */
    /* Bounds from `ceiling:` in the system and the user document, NULL if there is none. In the same form; a single
     * value counts only if its origin has a file. */
    struct policy *ceiling[2];
    struct origin write_ceiling;   /* in a ceiling: files.allow_write was given here, even if empty */
    struct origin syscall_ceiling; /* in a ceiling: syscalls was given here, even if empty */
};

/* An empty policy: nothing built in, nothing loaded. */
struct policy *policy_new(void);
void policy_free(struct policy *p);

/* What the loaders need to know about the caller; borrowed. */
struct policy_where {
    const char *cwd;          /* absolute, real */
    const char *home;         /* absolute or NULL */
    const char *system_file;  /* NULL = /etc/hutch/policy.yaml */
    const char *user_file;    /* NULL = ~/.config/hutch/policy.yaml */
    const char *project_file; /* NULL = <cwd>/.hutch.yaml */
    const char *trust_file;   /* NULL = ~/.local/state/hutch/trusted */
    bool container;           /* own root (--root): the host deny list and the current directory do not apply */
    bool no_workspace;        /* --no-cwd: the current directory does not become writable by itself */
};

/* Changes asked for on the command line, in the order given: ("files.allow_write", "./out", "--rw ./out"). Keys are the
 * document's own; list keys add, others replace. `flags` ORs into file_rule.flags. */
struct policy_flag {
    const char *key, *value, *text;
    unsigned flags;
};

/* Builds the merged policy. `extra_files` are documents given with --policy (level flags), `settings` a sandbox-runtime
 * settings file or NULL. On failure *err (ERR_POLICY or ERR_USAGE) names file, line and what would be right. */
int policy_load(const struct policy_where *where, const char *const *extra_files, const char *settings,
                const struct policy_flag *flags, size_t nflags, struct policy **ret, struct err *err);

/* The built-in level alone, as every merge starts with it. */
void policy_add_defaults(const struct policy_where *where, struct policy *p);
/* Hides in every known home directory what the built-in level hides in the caller's: for a tree that is shown to others
 * than the caller. Call after policy_load(). */
void policy_hide_homes(struct policy *p);

/* Reads one document from memory (a name for messages, its level) and merges it into p, which can only be freed after a
 * failure. A project document is taken as not trusted. */
int policy_parse(const char *text, size_t n, const char *name, enum policy_level level,
                 const struct policy_where *where, struct policy *p, struct err *err);
/* For tests: the same for a sandbox-runtime settings file. */
int policy_parse_settings(const char *text, size_t n, const char *name, const struct policy_where *where,
                          struct policy *p, struct err *err);

/* The verdict for one clean absolute path inside: the rule that decides (NULL = the default: reads allowed, writes
 * denied). A later level's rule for the same path has replaced the earlier one by then; at the same depth a plain path
 * is more special than a glob. *ret_name is set if a protected name decides; looking for repositories may stat(2). Any
 * ret may be NULL. */
bool policy_may_read(const struct policy *p, const char *path, const struct file_rule **ret_rule);
bool policy_may_write(const struct policy *p, const char *path, const struct file_rule **ret_rule,
                      const struct protected_name **ret_name);

/* Bounds of what a command's environment may become. */
enum { ENV_COUNT_MAX = 4096, ENV_BYTES_MAX = 1 << 20 };
/* The command's environment: "NAME=value" entries in ret, the names (never the values) of what stayed outside in
 * ret_dropped, which may be NULL. A variable is passed if a pass rule names it and no deny rule does; a rule for exactly
 * this name beats a pattern of the same or an earlier level.
 * Set variables come first; passed ones that no longer fit the bounds are dropped. -1 with E2BIG if the set ones alone
 * do not fit. */
int policy_environment(const struct policy *p, char *const *environment, struct strv *ret, struct strv *ret_dropped);

/* Prints for people: the merged document with the origin of each line. The text is itself a valid document. */
void policy_show(const struct policy *p, struct buf *out);
/* The same as one JSON object, for programs. */
void policy_show_json(const struct policy *p, struct buf *out);
/* The document's own words: "allow_write", "memory", "off" ... Static strings. */
const char *file_verb_name(enum file_verb verb);
const char *limit_id_name(enum limit_id id);
const char *network_name(enum network_mode mode);
const char *privilege_name(enum privilege privilege);
const char *enforcement_name(enum enforcement enforcement);
const char *denial_action_name(enum denial_action action);
/* "512 MiB", "1.5", "30 s": a limit's value in its own unit. */
void limit_add_value(struct buf *out, enum limit_id id, uint64_t value);
/* "built-in", "/etc/hutch/policy.yaml:12", "--rw ./out". */
void origin_add(struct buf *out, const struct origin *o);

#endif
