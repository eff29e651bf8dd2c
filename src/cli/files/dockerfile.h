/* dockerfile.h - turns a Dockerfile into the steps of a template build. Pure: it touches no file and no node.
 *
 * An unsupported instruction is an error with its line and what to write instead; one without meaning for a template
 * (EXPOSE, LABEL ...) is a note. Variables that the file declares are expanded here; others are left to the node, which
 * knows those of the image.
 */
#ifndef HUTCH_CLI_FILES_DOCKERFILE_H
#define HUTCH_CLI_FILES_DOCKERFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/strv.h"

enum {
    DOCKERFILE_MAX = 1 << 20,      /* bytes of the file */
    DOCKERFILE_LINE_MAX = 1 << 16, /* of one instruction, continued lines joined */
    DOCKERFILE_STEPS_MAX = 200,
    DOCKERFILE_WORDS_MAX = 512,
    DOCKERFILE_STAGES_MAX = 32, /* images that COPY --from names included */
};

enum dockerfile_type { DOCKERFILE_RUN, DOCKERFILE_COPY, DOCKERFILE_ENV, DOCKERFILE_WORKDIR, DOCKERFILE_USER };
struct dockerfile_step {
    enum dockerfile_type type;
    struct strv args; /* as the API takes them; COPY: source, destination, owner, mode */
    unsigned line;
    int from; /* COPY --from: the stage; -1: the context */
};
/* The result of a stage, inherited by stages that start from it. */
struct dockerfile_made {
    struct strv env; /* "K=V" */
    struct strv entry, cmd;
    bool entry_shell, cmd_shell, has_entry, has_cmd, user_set, workdir_set;
};
struct dockerfile_stage {
    char *name;     /* of AS; NULL: none */
    char *from;     /* image, "base", "hutch/NAME"; NULL: from_stage */
    int from_stage; /* an earlier one; -1 */
    unsigned line;  /* of its FROM, or of the COPY --from that names an image */
    bool image;     /* what COPY --from names, without a FROM: no steps */
    size_t end;     /* index behind its last step; its first is the previous stage's end */
    struct dockerfile_made made;
};
struct dockerfile {
    struct dockerfile_stage *stages; /* the needed ones; the last one is the template */
    size_t nstages, stages_cap;
    struct dockerfile_step *steps; /* of all stages, one after the other */
    size_t nsteps, cap;
    char *start;       /* of ENTRYPOINT and CMD; NULL: none */
    struct strv notes; /* "line 4: EXPOSE ..." */
};

/* args: "K=V" of --build-arg; target: name or number of the stage to build; NULL: the last one. Errors are ERR_USAGE
 * and begin with "NAME:LINE: ". */
int dockerfile_parse(const char *text, size_t n, const char *name, const struct strv *args, const char *target,
                     struct dockerfile *ret, struct err *err);
void dockerfile_done(struct dockerfile *d);
const char *dockerfile_type_name(enum dockerfile_type t);

/* --- dockerfile-lex.c --------------------------------------------------------------------------------------------- */

/* Reads instructions line by line: joins continued lines, skips comments. */
struct dockerfile_lines {
    const char *at, *end;
    unsigned line; /* of `at` */
    char escape;   /* '\\', or '`' if the file says so */
};
void dockerfile_lines_start(struct dockerfile_lines *l, const char *text, size_t n);
/* 1: the next instruction and its line; 0: the end; -1: it is too long or holds NUL. */
int dockerfile_lines_next(struct dockerfile_lines *l, struct buf *ret, unsigned *line, struct err *err);

/* Variables that the file declares. */
struct dockerfile_vars {
    struct strv env, args; /* "K=V"; args: in force for RUN, unless ENV has the same name */
};
void dockerfile_vars_set(struct strv *v, const char *name, size_t n, const char *value);
const char *dockerfile_vars_get(const struct strv *v, const char *name, size_t n);
/* Splits into words by the rules of the shell: quotes, escapes; $VAR, ${VAR}, ${VAR:-x}, ${VAR:+x}. vars NULL: no
 * expansion. A literal dollar becomes "\\$" and an unknown variable "${NAME}", for the node to expand. */
int dockerfile_words(const char *text, char escape, const struct dockerfile_vars *vars, struct strv *ret,
                     struct err *err);
/* Reads a JSON array of strings. 1: it is one; 0: it does not begin with '['; -1: it is malformed. */
int dockerfile_json(const char *text, struct strv *ret, struct err *err);
/* Quotes the words and joins them to one shell command. */
void dockerfile_quote(const struct strv *words, struct buf *out);

#endif
