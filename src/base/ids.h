/* ids.h - the layout and the spelling of a sandbox id: 128 bits, written as 26 characters of base32hex in lower case, so
 * that "49983-<id>.domain" is a valid host name. What is spelled is the sealed block (sandboxes/idseal.h); the fields are only
 * seen by those who hold the id key.
 */
#ifndef HUTCH_BASE_IDS_H
#define HUTCH_BASE_IDS_H

#include <stdbool.h>
#include <stdint.h>

enum { ID_BYTES = 16, ID_TEXT = 26, ID_VERSION = 1 };
enum { SANDBOX_ID_MAX = 40 }; /* of the text, with its NUL: ids of other nodes may be longer than ours */

struct id_fields {
    uint8_t version;  /* 4 bits */
    uint8_t provider; /* 8 bits; 0 = Hutch itself */
    uint32_t node;    /* 20 bits */
    uint16_t epoch;   /* one more for each start of a front, so that seq may begin anew */
    uint64_t seq;     /* 40 bits */
    uint32_t random;  /* 24 bits */
};

/* Fields wider than their place are cut. */
void id_pack(const struct id_fields *f, uint8_t ret[ID_BYTES]);
/* False: the magic or the version is not ours, so the block was not sealed with our key. */
bool id_unpack(const uint8_t block[ID_BYTES], struct id_fields *ret);

void id_spell(const uint8_t block[ID_BYTES], char ret[ID_TEXT + 1]);
/* Strict: exactly 26 characters of the alphabet in the one spelling that id_spell() gives. */
bool id_read(const char *text, uint8_t ret[ID_BYTES]);

#endif
