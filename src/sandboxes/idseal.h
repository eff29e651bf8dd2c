/* idseal.h - sandbox ids that only this node can make: the block of base/ids.h, encrypted with the node's id key
 * (AES-128, one block). A forged id fails here, before any table is searched. For hutch-node only (OpenSSL).
 */
#ifndef HUTCH_SANDBOXES_IDSEAL_H
#define HUTCH_SANDBOXES_IDSEAL_H

#include "base/err.h"
#include "base/ids.h"

struct idseal;

enum { IDSEAL_KEY = 16 };

/* epoch: differs at each start, so that no id is made twice. */
int idseal_new(const uint8_t key[IDSEAL_KEY], uint32_t node, uint16_t epoch, struct idseal **ret, struct err *err);
#define IDSEAL_FILE "id.key"
/* Whether DIR has no key. idseal_open() would make a new one, which cannot read ids sealed with the lost one. */
bool idseal_missing(int dir);
/* idseal_new() with the key of DIR/id.key; makes the file if it is missing. */
int idseal_open(int dir, uint32_t node, uint16_t epoch, struct idseal **ret, struct err *err);
void idseal_free(struct idseal *s);
void idseal_make(struct idseal *s, char ret[ID_TEXT + 1]);
/* False: not an id of ours. ret may be NULL. */
bool idseal_check(const struct idseal *s, const char *id, struct id_fields *ret);

#endif
