/* node.h - shared by the sub-commands that talk to a node: options, paged lists, tables, JSON output. */
#ifndef HUTCH_CLI_CLIENT_NODE_H
#define HUTCH_CLI_CLIENT_NODE_H

#include <getopt.h>

#include "cli/cli.h"
#include "cli/client/api.h"

#define NODE_DEFAULT_URL "http://127.0.0.1:7070"

/* The key from the environment or from admin.key; "" if there is none. */
void node_find_key(char *ret, size_t room);
/* The state directory of this user's node: HUTCH_STATE, or the default. */
void node_state_dir(char *ret, size_t room);

/* Options that every such command has: --url, --json, --help. A command lists its own; `value` is where they go. */
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
    bool json;
    char **args; /* positional; NULL-terminated */
    int nargs;
};
/* Parses the command line. 0: go on; 1: exit with *ret_code, after --help or a reported usage error. */
int node_begin(const struct node_command *c, int argc, char **argv, struct node_call *ret, int *ret_code);

/* GETs all pages of a list as one array; `path` must have a query. */
int node_pages(const struct api *a, const char *path, json_t **ret, struct err *err);

/* The strings as a new JSON array. */
json_t *node_json_strings(const struct strv *v);
/* Prints a JSON value to stdout, indented. */
void node_print_json(const json_t *j);
/* GETs what a command shows. 1: it is in *ret; 0: it was printed because of --json; -1. */
int node_get(const struct node_call *call, const char *path, json_t **ret, struct err *err);
/* A table: rows of cells, columns as wide as needed. Cells are escaped for the terminal; node_cell() cuts them at 120
 * bytes. */
struct node_table {
    struct strv cells;
    size_t columns;
};
/* A table with its heading: the names of the columns, ended by NULL. */
struct node_table node_table_with(const char *first, ...) __attribute__((sentinel));
void node_cell(struct node_table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void node_cell_whole(struct node_table *t, const char *text);
void node_print_table(struct node_table *t); /* and frees it */
/* "3m 20s" until (or since) an RFC 3339 time. */
void node_age(const char *rfc3339, bool until, char ret[24]);

#endif
