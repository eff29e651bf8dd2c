/* build-int.h - the parts of the builder of `slim` and `base`. */
#ifndef HUTCH_NODE_BUILD_INT_H
#define HUTCH_NODE_BUILD_INT_H

#include "base/err.h"
#include "base/strv.h"
#include "config/names.h"

#define FETCHED ".fetched" /* in TEMPLATES: what was downloaded, until all templates are there */

enum { BUILD_LINE_MAX = 512, MIRROR_FILE_MAX = 1 << 16 };

struct recipe {
    const char *name;
    const char *packages; /* as mmdebstrap wants them, with commas */
    bool node;            /* Node.js and npm, from npm's registry */
    bool lists;           /* keep apt's lists, so that apt-get install works without an update */
};

/* The operator's package sources; "": the host's for apt, the public ones for pip and npm. */
struct mirrors {
    const char *apt, *pip, *npm;
};

struct builder {
    int dirfd;
    const char *dir; /* of the templates, absolute */
    struct mirrors mirrors;
    const struct recipe *recipe;
    /* progress */
    unsigned from, to;    /* the step that runs, in percent of the whole */
    unsigned said;        /* what was last written */
    const char *step;     /* its text */
    unsigned done, total; /* packages, while they are installed */
    char line[BUILD_LINE_MAX];
    size_t n;
    char error[BUILD_LINE_MAX]; /* the last line that looks like an error, else the last line */
    bool sure;
    char *tmp; /* owned: temporary files of an ordinary user; NULL: none */
};

/* --- build-run.c -------------------------------------------------------------------------------------------------- */
void builder_set_progress(int dirfd, const char *name, const char *state, const char *text);
/* Begins a step that takes the build from one percentage to another. */
void builder_begin_step(struct builder *b, unsigned from, unsigned to, const char *text);
/* Runs a program to its end and follows what it says. in: its input; -1: none. out: its output; -1: the same as its
 * messages. */
int builder_run_program(struct builder *b, const struct strv *argv, int in, int out, struct err *err);
/* Prefixes a command of an ordinary user with unshare, so that it runs with the same id mapping that keeper uses. */
void builder_add_namespace(struct strv *argv);

/* --- build-fetch.c ------------------------------------------------------------------------------------------------ */
/* Downloads packages, and Node.js if the recipe wants it, into FETCHED; what is there is not fetched again. */
int builder_fetch(struct builder *b, struct err *err);
/* Arguments of mmdebstrap. */
void builder_add_apt_sources(const struct mirrors *m, struct strv *argv);
void builder_add_apt_settings(const struct mirrors *m, struct strv *argv);
/* The operator's files for pip and npm, and apt's directory, may be read by every sandbox: one with a password is
 * refused. */
int builder_check_mirrors(const struct mirrors *m, struct err *err);

/* finish-root.sh, embedded */
extern const char finish_root[];
extern const unsigned long finish_root_size;

#endif
