/* languages.h - what is known of each language: its kernel, how a cell is interrupted, how its variables are set. Which kernels
 * there are is read from the kernelspecs that are installed. */
#ifndef HUTCH_GUEST_CODE_LANGUAGES_H
#define HUTCH_GUEST_CODE_LANGUAGES_H

#include <jansson.h>
#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"

enum language_interrupt {
    INTERRUPT_SIGNAL,  /* SIGINT to its process group */
    INTERRUPT_MESSAGE, /* interrupt_request */
    INTERRUPT_RESTART, /* it can only be ended: variables are lost */
};

struct language {
    const char *name;
    const char *aliases; /* "js,javascript"; NULL: none */
    const char *kernels; /* names of kernelspecs, the best first: "python3,python" */
    const char *how;     /* how to add it to a template */
    enum language_interrupt interrupt;
    bool terminal; /* the kernel opens one, which a kernel that may not write cannot */
    bool ipc;      /* the kernel can use sockets in a directory instead of ports */
};

/* By name or alias, in either case; NULL: unknown. */
const struct language *language_find(const char *word);
/* "python, javascript, ... or bash". */
void language_add_names(struct buf *b);

/* The kernelspec of a language: argv, env, interrupt_mode. `path` is a list of directories that hold kernels ("a:b").
 * Owned by the caller. ERR_HOST: none is installed; the message says how to add it. */
json_t *language_spec(const struct language *l, const char *path, struct err *err);

/* Whether text may be the name of a variable. */
bool language_is_variable(const char *name);
/* Appends code that sets a variable, or unsets it (value NULL). Whatever the value holds, it stays a value. */
void language_add_variable(const struct language *l, const char *name, const char *value, struct buf *code);

#endif
