/* profiles.h - nodes that this user logged in to: their URLs, keys and authorities, in ~/.config/hutch/profiles.json.
 *
 * The file holds keys: it is read only if it is a regular file of this user with mode 0600 in a directory that no
 * other user can write to. It is replaced as a whole, under a lock on its directory. {"current": NAME, "profiles":
 * {NAME: {"url", "key", "ca",
 * "cert", "cert_key"}}} */
#ifndef HUTCH_CLI_CLIENT_PROFILES_H
#define HUTCH_CLI_CLIENT_PROFILES_H

#include <jansson.h>

#include "base/err.h"

enum { PROFILES_MAX = 100, PROFILES_BYTES_MAX = 20 << 20, PROFILE_NAME_MAX = 63, PROFILE_CA_MAX = 64 * 1024 };

/* All of them; an empty document if there is no file. A new reference. */
int profiles_load(json_t **ret, struct err *err);
/* Calls `change` with the document as it is now and writes it if that returns 0. */
int profiles_change(int (*change)(void *arg, json_t *root, struct err *err), void *arg, struct err *err);
/* The same for a document whose profiles may be bad, to remove one. */
int profiles_mend(int (*change)(void *arg, json_t *root, struct err *err), void *arg, struct err *err);

/* A profile by its name; NULL: there is none. `name` NULL: the current one. Borrowed. */
json_t *profiles_find(json_t *root, const char *name);
/* The one for exactly this URL; NULL: none. */
json_t *profiles_find_url(json_t *root, const char *url);
/* "" if none is current. */
const char *profiles_current(const json_t *root);
int profile_check_name(const char *name, struct err *err);
/* The file's path, for messages; new string. NULL: neither HOME nor XDG_CONFIG_HOME is set. */
char *profiles_path(void);

#endif
