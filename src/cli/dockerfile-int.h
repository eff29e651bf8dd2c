/* dockerfile-int.h - inside of dockerfile*.c: a file that is being read. */
#ifndef HUTCH_CLI_DOCKERFILE_INT_H
#define HUTCH_CLI_DOCKERFILE_INT_H

#include "cli/dockerfile.h"

struct reader {
    struct dockerfile *d;
    const struct strv *given;
    struct dockerfile_vars vars;
    struct strv outer; /* ARG before the first FROM */
    char escape;
    unsigned line;
    const char *word;            /* the instruction */
    size_t stage;                /* being read; d->nstages is 0 before the first */
    struct dockerfile_made made; /* what it leaves so far, but for its variables */
};

/* dockerfile.c */
struct dockerfile_step *dockerfile_add(struct reader *r, enum dockerfile_type type, struct err *err);
int dockerfile_add_one(struct reader *r, enum dockerfile_type type, const char *arg, struct err *err);
void dockerfile_note(struct reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Takes "--name=value" off the beginning. 1 there was one, 0 none. */
int dockerfile_flag(const char **text, char *flag, size_t room, struct err *err);
bool dockerfile_is_flag(const char *flag, const char *name, const char **value);

/* dockerfile-stages.c */
int dockerfile_from(struct reader *r, const char *text, struct err *err);
int dockerfile_arg(struct reader *r, const char *text, struct err *err);
/* The stage that --from=VALUE means; one is added for an image. */
int dockerfile_copy_from(struct reader *r, const char *value, int *ret, struct err *err);
/* The file was read: leaves the stages that `target` (NULL: the last one) needs, it being the last; r->made is its. */
int dockerfile_choose(struct reader *r, const char *target, struct err *err);
void dockerfile_made_done(struct dockerfile_made *m);
bool dockerfile_is_name(const char *s, size_t n);
/* The node reads "\$" as a dollar; here the value itself is wanted. New string. */
char *dockerfile_unescape(const char *s);

#endif
