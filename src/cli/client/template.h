/* template.h - shared by template*.c, the sub-commands of `hutch template`. */
#ifndef HUTCH_CLI_CLIENT_TEMPLATE_H
#define HUTCH_CLI_CLIENT_TEMPLATE_H

#include "cli/client/node.h"

/* What the options say; NULL: not given. */
struct template_options {
    const char *file, *tag, *cpu, *memory, *output, *username, *target, *ready, *history, *public;
    struct strv build_args;
    bool no_cache, password_stdin;
};

/* Each returns the exit code, or -1 with *err. */
/* template-wait.c */
int template_wait(const struct node_call *call, struct err *err);
int template_build(const struct node_call *call, const struct template_options *o, struct err *err);
int template_import(const struct node_call *call, const struct template_options *o, struct err *err);
int template_restore(const struct node_call *call, const struct template_options *o, struct err *err);

/* An unnamed temporary file: an upload must know its length before it begins. */
int template_temp(struct err *err);
/* Sends a body (fd, from its beginning; length HTTP_UNKNOWN: until its end), shows the progress in the answer and prints the
 * template at its end. */
int template_follow(const struct node_call *call, const char *path, const char *type, int fd, uint64_t length,
                    const char *body, struct err *err);
/* "/v1/templates/import?name=N&tag=T" for NAME[:TAG]. New string. */
char *template_path(const char *route, const char *name);

#endif
