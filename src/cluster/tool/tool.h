/* tool.h - `hutch cluster`: the engine that the facts of a cluster are in. docs/cluster.md describes it. */
#ifndef HUTCH_CLUSTER_TOOL_TOOL_H
#define HUTCH_CLUSTER_TOOL_TOOL_H

#include "base/err.h"
#include "facts/facts.h"
#include "loop/loop.h"

/* `hutch cluster COMMAND ...`; argv[0] is "cluster". Returns the exit code. */
int cluster_main(int argc, char **argv);

/* --- which engine: engine.c ------------------------------------------------------------------------------------------- */

#define ENGINE_SQLITE "sqlite:" /* before a directory */

struct engine {
    const char *url; /* "sqlite:DIR", or URLs of etcd. All texts: borrowed from argv, NULL if they are not given */
    const char *prefix, *ca, *cert, *key, *user, *password_file;
    int dir; /* of "sqlite:"; -1: none */
};
#define ENGINE_INIT \
    {               \
        .dir = -1   \
    }
/* Takes the options of the engine out of a command's arguments: the number of those that are left, in their order from
 * argv[1] on. -1: an option is wrong. */
int engine_take_options(struct engine *e, int argc, char **argv, struct err *err);
int engine_open(struct engine *e, struct loop *l, struct facts **ret, struct err *err);
void engine_done(struct engine *e); /* after facts_close() */
/* The lines of a usage text about these options. */
extern const char engine_usage[];

/* --- whether it can be used: check.c ---------------------------------------------------------------------------------- */

/* Tries every promise of facts.h on facts of its own, which it removes again, and prints a line for each. Blocks. The
 * number of promises that do not hold. */
int cluster_check(struct loop *l, struct facts *f);

#endif
