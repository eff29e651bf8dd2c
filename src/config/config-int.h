/* config-int.h - the table of configuration keys, which config*.c share. Private to config*.c: other files use
 * config.h. */
#ifndef HUTCH_CONFIG_CONFIG_INT_H
#define HUTCH_CONFIG_CONFIG_INT_H

#include <stddef.h>

#include "config/config.h"

enum config_kind {
    KEY_PATH,    /* char *; absolute; "" leaves it unset */
    KEY_ADDRESS, /* char * */
    KEY_DOMAIN,  /* char * */
    KEY_NAME,    /* char *; a user's name */
    KEY_SERVERS, /* char *; name servers: "ADDR:PORT,..." */
    KEY_CIDRS,   /* char *; networks: "ADDR/BITS,..." */
    KEY_DIRS,    /* char *; directories: "NAME=PATH[:ro],..." */
    KEY_HOSTS,   /* char *; registries: "HOST[:PORT],..." */
    KEY_NETWORK, /* char *; "public", "off" or an absolute path */
    KEY_URL,     /* char *; http or https */
    KEY_BOOL,    /* bool */
    KEY_WORD,    /* bool (index of two words) or char * (more than two) */
    KEY_CPUS,    /* uint32_t, thousandths */
    KEY_SIZE,    /* uint64_t, bytes */
    KEY_SECONDS, /* uint32_t */
    KEY_U32,
    KEY_U64,
};

struct config_key {
    const char *name; /* "section.key"; NULL ends the table */
    enum config_kind kind;
    size_t at;
    uint64_t min, max;        /* of numbers */
    const char *standard;     /* the default, as a file would say it; "" = none */
    const char *const *words; /* KEY_WORD */
    const char *help;
};
extern const struct config_key config_keys[];

/* "between 16MiB and 16TiB"; nothing for kinds without a range. */
void config_range(const struct config_key *k, struct buf *out);

#endif
