/* idseal.h - sandbox ids that only this node can make: the block of base/ids.h, encrypted with the node's id key (AES-128, one
 * block). An id that was made up fails here, without a look at any table. For hutch-node only (OpenSSL).
 */
#ifndef HUTCH_FRONT_IDSEAL_H
#define HUTCH_FRONT_IDSEAL_H

#include "base/err.h"
#include "base/ids.h"

struct idseal;

enum { IDSEAL_KEY = 16 };

/* epoch: differs at each start, so that numbers are never used twice. */
int idseal_new(const uint8_t key[IDSEAL_KEY], uint32_t node, uint16_t epoch, struct idseal **ret, struct err *err);
#define IDSEAL_FILE "id.key"
/* Whether DIR has none: idseal_open() would make one, and what was sealed with another cannot be read any more. */
bool idseal_missing(int dir);
/* The same with the key of DIR/id.key, which is made if it is missing. */
int idseal_open(int dir, uint32_t node, uint16_t epoch, struct idseal **ret, struct err *err);
void idseal_free(struct idseal *s);
void idseal_make(struct idseal *s, char ret[ID_TEXT + 1]);
/* False: not an id of ours. ret may be NULL. */
bool idseal_check(const struct idseal *s, const char *id, struct id_fields *ret);

#endif
