/* options.h - one table of the options of `hutch run`, used by the parser, --help, completions and the man page's check. */
#ifndef HUTCH_CLI_RUN_OPTIONS_H
#define HUTCH_CLI_RUN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/strv.h"
#include "policy/run/policy.h"

struct run_option {
    const char *name; /* without dashes */
    char short_name;  /* 0 = none */
    const char *arg;  /* what it takes, NULL = nothing */
    const char *help;
    const char *key;   /* policy key it sets; NULL = none, see options.c */
    const char *group; /* heading in --help */
};
extern const struct run_option run_options[]; /* ended by name == NULL */

struct run_args {
    struct policy_flag *flags; /* owned, texts in `texts` */
    size_t nflags, cap;
    struct strv texts;
    struct strv policies; /* --policy FILE */
    struct strv secrets, secret_files;
    const char *settings; /* --settings FILE */
    const char *chdir, *root, *json, *learn, *audit, *hostname;
    bool quiet, explain, trace_start, no_cwd, help, version;
    bool tx, commit; /* --tx, --commit-on-success */
    int keep_fds[16];
    size_t nkeep;
    char **command; /* borrowed from argv, NULL-terminated; NULL if none was given */
};

/* Reads the options up to "--" or the first word that is not one. ERR_USAGE names the word and the nearest option. */
int run_args_parse(int argc, char **argv, struct run_args *ret, struct err *err);
void run_args_done(struct run_args *a);
/* The text of `hutch run --help`. */
void run_help(void);

#endif
