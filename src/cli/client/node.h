/* node.h - shared by the sub-commands that talk to a node: options, paged lists, tables, JSON output. */
#ifndef HUTCH_CLI_CLIENT_NODE_H
#define HUTCH_CLI_CLIENT_NODE_H

#include <getopt.h>

#include "cli/cli.h"
#include "cli/client/api.h"

#define NODE_DEFAULT_URL "http://127.0.0.1:7070"

/* What the command line says about the node; NULL: not given. */
struct node_choice {
    const char *url, *profile, *ca, *cert, *key;
};
/* Takes what stands before the command, for node_begin(); returns how many arguments that is. */
int node_take_choice(int argc, char **argv, struct err *err);
/* Which node, key and authorities: choose.c. */
int node_choose(struct api *a, const struct node_choice *c, struct err *err);

/* Options that every such command has: --url, --profile, --ca, --cert, --key, --json, --help. A command lists its own;
 * `value` is where they go. */
struct node_option {
    const char *name;  /* without dashes; NULL ends the list */
    char short_name;   /* 0: none */
    bool *flag;        /* set to true; or */
    const char **text; /* takes one argument; or */
    struct strv *many; /* takes one argument, may be repeated */
};
struct node_command {
    const char *name, *usage; /* usage: the whole text of --help */
    const struct node_option *options;
    int min, max;         /* positional arguments; max -1: any number */
    bool rest_is_command; /* options end at the first positional argument */
};
struct node_call {
    struct api api;
    struct node_choice choice;
    bool json;
    char **args; /* positional; NULL-terminated */
    int nargs;
};
/* Parses the command line. 0: go on; 1: exit with *ret_code, after --help or a reported usage error. */
int node_begin(const struct node_command *c, int argc, char **argv, struct node_call *ret, int *ret_code);
/* The same without choosing a node. */
int node_begin_local(const struct node_command *c, int argc, char **argv, struct node_call *ret, int *ret_code);

/* Replaces a positional argument, the name of a sandbox or the beginning of its id, by the id. */
int node_take_id(struct node_call *call, int i, struct err *err);
/* GETs all pages of a list as one array; `path` must have a query. */
int node_pages(const struct api *a, const char *path, json_t **ret, struct err *err);

/* The strings as a new JSON array. */
json_t *node_json_strings(const struct strv *v);
/* Prints a JSON value to stdout, indented. */
void node_print_json(const json_t *j);
/* Prints what was done to one sandbox: its id, or with --json {"sandboxID", "state"}. */
void node_print_state(const struct node_call *call, const char *id, const char *state);
/* GETs what a command shows. 1: it is in *ret; 0: it was printed because of --json; -1. */
int node_get(const struct node_call *call, const char *path, json_t **ret, struct err *err);
/* A table: rows of cells, columns as wide as needed. Cells are escaped for the terminal; node_cell() cuts them at 120
 * bytes. On a terminal the heading is bold, and columns but the first are cut to its width. */
struct node_table {
    struct strv cells;
    size_t columns;
    bool head;  /* the first row is a heading */
    bool whole; /* a cell is never cut: node_cell_whole() */
};
/* A table with its heading: the names of the columns, ended by NULL. */
struct node_table node_table_with(const char *first, ...) __attribute__((sentinel));
void node_cell(struct node_table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void node_cell_whole(struct node_table *t, const char *text);
void node_print_table(struct node_table *t); /* and frees it */
/* Reads a --timeout: at least 1s, or 0: until killed. */
int node_read_timeout(const char *command, const char *text, uint64_t *ret_seconds, struct err *err);
/* "3m 20s" until (or since) an RFC 3339 time. */
void node_age(const char *rfc3339, bool until, char ret[24]);

#endif
