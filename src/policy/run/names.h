/* names.h - file names that programs outside the sandbox execute or trust: one table, with the reason for each.
 *
 * Two classes. A *refused* name is read and executed by a program without the user's doing, so a command cannot write it. A
 * *reported* one makes programs execute something as well, but commands write it for good reasons: it stays writable, and
 * what changed is listed (`host_may_execute` of the record). docs/policy.md shows the table; a test compares the two.
 *
 * A name is refused only where its program reads it; `enum name_place` says where that is.
 */
#ifndef HUTCH_POLICY_RUN_NAMES_H
#define HUTCH_POLICY_RUN_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

struct policy;

enum name_class { NAME_NONE, NAME_REFUSED, NAME_REPORTED };

enum name_place {
    NAME_IN_PROJECT,    /* at writable roots; in repositories below them if it exists */
    NAME_IN_REPOSITORY, /* the same, where there is a ".git" */
    NAME_IN_GIT,        /* in git directories; the name begins with ".git/" */
    NAME_IN_HOME, /* in home directories, and where a link there leads; hidden names also at writable roots that have them */
};

/* What happens to a refused name that does not exist. */
enum name_absent {
    NAME_STUB,      /* a stub keeps it from coming into being; if its directory is missing, one for that */
    NAME_STUB_NEAR, /* a stub if its directory exists */
    NAME_LEAVE,     /* it may come into being, and is listed then: its program gives up on a stub */
};

struct known_name {
    const char *name; /* "name" or "dir/name" */
    bool is_dir;
    enum name_class class;
    enum name_place place;
    enum name_absent absent;
    const char *id;     /* in records and explanations */
    const char *reason; /* what reads it, and what it executes then */
};

/* The table; static. */
const struct known_name *names_known(size_t *ret_n);

struct name_verdict {
    enum name_class class;
    const char *name, *id, *reason; /* NULL if the class is NAME_NONE; of the table or borrowed from the policy */
};

enum name_base { NAME_BELOW_ROOT, NAME_BELOW_HOME };

/* The verdict of the table, and of the policy's own protected names if p is not NULL, about a clean path relative to a
 * writable root or home directory. A name refused at the root is only reported further down, where it depends on the
 * existing repositories. A name that the policy no longer protects is reported. Uses the text alone. */
struct name_verdict name_judge(const struct policy *p, enum name_base base, const char *path);

/* For tests: the table that docs/policy.md must have. */
void names_add_docs(struct buf *out);

#endif
