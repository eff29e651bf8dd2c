/* netdoc.h - builds a network document from command-line options: a word, a YAML or JSON file, hosts to allow. */
#ifndef HUTCH_CLI_CLIENT_NETDOC_H
#define HUTCH_CLI_CLIENT_NETDOC_H

#include <jansson.h>

#include "base/err.h"
#include "base/strv.h"

/* what: "public", "off", the path of a document, or NULL (nothing but `allow` and `presets`, which may be NULL; each of
 * those is one name or several with commas). refusals: "readable", "closed", or NULL: as
 * the document says. Returns a new reference, or NULL with *err. */
json_t *netdoc_read(const char *what, const struct strv *allow, const struct strv *presets, const char *refusals,
                    struct err *err);
/* Checks the value of --refusals (NULL: not given). */
int netdoc_check_refusals(const char *command, const char *word, struct err *err);

#endif
