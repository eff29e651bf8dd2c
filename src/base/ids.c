#include "base/ids.h"

#include <string.h>

enum { MAGIC = 0x4875 }; /* "Hu" */

static const char alphabet[] = "0123456789abcdefghijklmnopqrstuv";

static void id_put_bits(uint8_t *block, unsigned *bit, uint64_t value, unsigned bits)
{
    for (unsigned i = bits; i-- > 0; (*bit)++)
        if ((value >> i) & 1)
            block[*bit / 8] = (uint8_t)(block[*bit / 8] | 0x80U >> (*bit % 8));
}

static uint64_t id_take_bits(const uint8_t *block, unsigned *bit, unsigned bits)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bits; i++, (*bit)++)
        value = value << 1 | (block[*bit / 8] >> (7 - *bit % 8) & 1);
    return value;
}

void id_pack(const struct id_fields *f, uint8_t ret[ID_BYTES])
{
    unsigned bit = 0;
    memset(ret, 0, ID_BYTES);
    id_put_bits(ret, &bit, MAGIC, 16);
    id_put_bits(ret, &bit, f->version, 4);
    id_put_bits(ret, &bit, f->provider, 8);
    id_put_bits(ret, &bit, f->node, 20);
    id_put_bits(ret, &bit, f->epoch, 16);
    id_put_bits(ret, &bit, f->seq, 40);
    id_put_bits(ret, &bit, f->random, 24);
}

bool id_unpack(const uint8_t block[ID_BYTES], struct id_fields *ret)
{
    unsigned bit = 0;
    if (id_take_bits(block, &bit, 16) != MAGIC)
        return false;
    ret->version = (uint8_t)id_take_bits(block, &bit, 4);
    ret->provider = (uint8_t)id_take_bits(block, &bit, 8);
    ret->node = (uint32_t)id_take_bits(block, &bit, 20);
    ret->epoch = (uint16_t)id_take_bits(block, &bit, 16);
    ret->seq = id_take_bits(block, &bit, 40);
    ret->random = (uint32_t)id_take_bits(block, &bit, 24);
    return ret->version == ID_VERSION;
}

void id_spell(const uint8_t block[ID_BYTES], char ret[ID_TEXT + 1])
{
    unsigned bit = 0;
    for (unsigned i = 0; i < ID_TEXT - 1; i++)
        ret[i] = alphabet[id_take_bits(block, &bit, 5)];
    ret[ID_TEXT - 1] = alphabet[id_take_bits(block, &bit, 3) << 2];
    ret[ID_TEXT] = '\0';
}

bool id_read(const char *text, uint8_t ret[ID_BYTES])
{
    unsigned bit = 0;
    memset(ret, 0, ID_BYTES);
    for (unsigned i = 0; i < ID_TEXT; i++) {
        const char *at = text[i] ? strchr(alphabet, text[i]) : NULL;
        if (!at)
            return false;
        uint64_t value = (uint64_t)(at - alphabet);
        if (i < ID_TEXT - 1)
            id_put_bits(ret, &bit, value, 5);
        else if (value & 3)
            return false;
        else
            id_put_bits(ret, &bit, value >> 2, 3);
    }
    return text[ID_TEXT] == '\0';
}
