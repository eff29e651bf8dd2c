/* cp.h - the parts of hutch cp. */
#ifndef HUTCH_CLI_CLIENT_CP_H
#define HUTCH_CLI_CLIENT_CP_H

#include "cli/client/api.h"

/* cp-tree.c: a whole directory into the sandbox, or out of it. Into an existing directory, else as a new one: like cp -r. */
int cp_tree_upload(const struct api *a, const char *from, const char *to, struct err *err);
int cp_tree_download(const struct api *a, const char *from, const char *to, struct err *err);
/* Whether a path of the sandbox is a directory. */
int cp_tree_is_directory(const struct api *a, const char *path, bool *ret, struct err *err);

#endif
