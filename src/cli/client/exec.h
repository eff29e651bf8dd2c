/* exec.h - runs commands in a sandbox, for hutch exec, shell and create. */
#ifndef HUTCH_CLI_CLIENT_EXEC_H
#define HUTCH_CLI_CLIENT_EXEC_H

#include "cli/client/api.h"

struct exec_request {
    char *const *command;   /* NULL-terminated */
    const struct strv *env; /* NAME=VALUE; NULL: none */
    const char *cwd;        /* NULL: the user's home */
    const char *rights;     /* JSON: what it may less than its sandbox; NULL: nothing */
    bool pty, input;
    bool detach, json;                                                  /* only start it, and print its pid, as JSON */
    int (*output)(void *arg, const void *p, size_t n, struct err *err); /* takes standard output; NULL: ours does */
    void *arg;
};
/* Follows the command to its end and returns its exit code (128 + the number of a signal), or -1. The sandbox is the one
 * that api_sandbox() chose. */
int exec_in_sandbox(const struct api *api, const struct exec_request *q, struct err *err);
/* Options of hutch exec that take rights away. */
struct exec_rights_options {
    bool no_network, read_only, own_user;
    struct strv write;
    const char *timeout, *output_limit, *memory;
    const char *who; /* begins messages; NULL: exec */
};
/* exec_request.rights as text that the caller frees, NULL for none. Asks the node whether it knows them. */
int exec_rights_text(const struct api *api, const struct exec_rights_options *o, char **ret, struct err *err);
/* Says on standard error what a command that failed was not allowed. */
void exec_rights_explain(const struct exec_rights_options *o);
/* A login shell on our terminal. */
int exec_shell(const struct api *api, struct err *err);
/* Reports an error of the two. Exit codes of a shell: 127 not found, 126 not executable. */
int exec_fail_code(const struct err *err);

#endif
