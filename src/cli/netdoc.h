/* netdoc.h - network documents on the command line: a word, a file of YAML or JSON, and hosts to allow. */
#ifndef HUTCH_CLI_NETDOC_H
#define HUTCH_CLI_NETDOC_H

#include <jansson.h>

#include "base/err.h"
#include "base/strv.h"

/* what: "public", "off", the path of a document, or NULL (nothing but `allow`). refusals: "readable", "closed", or NULL: as
 * the document says. A new reference; NULL with *err. */
json_t *netdoc_read(const char *what, const struct strv *allow, const char *refusals, struct err *err);
/* The value of --refusals (NULL: it was not given). */
int netdoc_check_refusals(const char *command, const char *word, struct err *err);

#endif
