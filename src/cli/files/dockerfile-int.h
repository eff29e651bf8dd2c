/* dockerfile-int.h - the state of a Dockerfile that is being read; for dockerfile*.c only. */
#ifndef HUTCH_CLI_FILES_DOCKERFILE_INT_H
#define HUTCH_CLI_FILES_DOCKERFILE_INT_H

#include "cli/files/dockerfile.h"

struct reader {
    struct dockerfile *d;
    const struct strv *given;
    struct dockerfile_vars vars;
    struct strv outer; /* ARG before the first FROM */
    char escape;
    unsigned line;
    const char *word;            /* the instruction */
    size_t stage;                /* the one being read, if d->nstages > 0 */
    struct dockerfile_made made; /* its result so far, without its variables */
};

/* dockerfile.c */
struct dockerfile_step *dockerfile_add(struct reader *r, enum dockerfile_type type, struct err *err);
int dockerfile_add_one(struct reader *r, enum dockerfile_type type, const char *arg, struct err *err);
void dockerfile_note(struct reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Reads one "--name=value" from the beginning. 1: there was one; 0: none. */
int dockerfile_flag(const char **text, char *flag, size_t room, struct err *err);
bool dockerfile_is_flag(const char *flag, const char *name, const char **value);

/* dockerfile-stages.c */
int dockerfile_from(struct reader *r, const char *text, struct err *err);
int dockerfile_arg(struct reader *r, const char *text, struct err *err);
/* Finds the stage that --from=VALUE names; adds one for an image. */
int dockerfile_copy_from(struct reader *r, const char *value, int *ret, struct err *err);
/* After the whole file was read: drops all stages but `target` (NULL: the last one) and those it needs. `target` becomes the
 * last stage and r->made its result. */
int dockerfile_choose(struct reader *r, const char *target, struct err *err);
void dockerfile_made_done(struct dockerfile_made *m);
bool dockerfile_is_name(const char *s, size_t n);
/* Turns "\$", as the node reads a dollar, back into "$". New string. */
char *dockerfile_unescape(const char *s);

#endif
