/* netdoc.h - network documents on the command line: a word, a file of YAML or JSON, and hosts to allow. */
#ifndef HUTCH_CLI_NETDOC_H
#define HUTCH_CLI_NETDOC_H

#include <jansson.h>

#include "base/err.h"
#include "base/strv.h"

/* what: "public", "off", the path of a document, or NULL (nothing but `allow`). A new reference; NULL with *err. */
json_t *netdoc_read(const char *what, const struct strv *allow, struct err *err);

#endif
