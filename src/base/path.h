/* path.h - paths as text. Never touches the file system. */
#ifndef HUTCH_BASE_PATH_H
#define HUTCH_BASE_PATH_H

#include <stdbool.h>
#include <stddef.h>

/* Absolute, without "//", "." and trailing "/"; ".." is resolved lexically and stops at "/". A relative path is taken
 * from `base` (absolute). Returns a new string. */
char *path_clean(const char *base, const char *path);
/* dir + "/" + name without doubling the slash. New string. */
char *path_join(const char *dir, const char *name);
/* True if `path` is `dir` or lies below it. Both clean. */
bool path_under(const char *path, const char *dir);
/* Last component of a clean path; "" for "/". Borrowed. */
const char *path_name(const char *path);
/* Parent of a clean path, "/" for "/". New string. */
char *path_parent(const char *path);
/* Number of components; 0 for "/". */
size_t path_depth(const char *path);
/* `*` and `?` match within one component, `**` over components, `[a-z]` one character. */
bool path_match(const char *glob, const char *path);
bool path_is_glob(const char *path);

#endif
