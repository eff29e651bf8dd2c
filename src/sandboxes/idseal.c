#include "sandboxes/idseal.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/random.h"
#include "db/keyfile.h"

struct idseal {
    EVP_CIPHER_CTX *seal, *open;
    uint32_t node;
    uint16_t epoch;
    uint64_t seq;
};

int idseal_new(const uint8_t key[IDSEAL_KEY], uint32_t node, uint16_t epoch, struct idseal **ret, struct err *err)
{
    struct idseal *s = xcalloc(1, sizeof *s);
    s->node = node;
    s->epoch = epoch;
    s->seal = EVP_CIPHER_CTX_new();
    s->open = EVP_CIPHER_CTX_new();
    if (!s->seal || !s->open || EVP_EncryptInit_ex2(s->seal, EVP_aes_128_ecb(), key, NULL, NULL) != 1 ||
        EVP_DecryptInit_ex2(s->open, EVP_aes_128_ecb(), key, NULL, NULL) != 1) {
        idseal_free(s);
        return err_set(err, ERR_INTERNAL, 0, "OpenSSL refuses AES-128 for ids");
    }
    (void)EVP_CIPHER_CTX_set_padding(s->seal, 0);
    (void)EVP_CIPHER_CTX_set_padding(s->open, 0);
    *ret = s;
    return 0;
}

bool idseal_missing(int dir) { return faccessat(dir, IDSEAL_FILE, F_OK, 0) < 0 && errno == ENOENT; }

int idseal_open(int dir, uint32_t node, uint16_t epoch, struct idseal **ret, struct err *err)
{
    uint8_t key[IDSEAL_KEY];
    if (keyfile_open(dir, IDSEAL_FILE, key, sizeof key, err) < 0)
        return -1;
    int rc = idseal_new(key, node, epoch, ret, err);
    OPENSSL_cleanse(key, sizeof key);
    return rc;
}

void idseal_free(struct idseal *s)
{
    if (!s)
        return;
    EVP_CIPHER_CTX_free(s->seal);
    EVP_CIPHER_CTX_free(s->open);
    free(s);
}

void idseal_make(struct idseal *s, char ret[ID_TEXT + 1])
{
    struct id_fields f = {.version = ID_VERSION, .node = s->node, .epoch = s->epoch, .seq = ++s->seq};
    uint8_t block[ID_BYTES], sealed[ID_BYTES];
    int n = 0;
    random_bytes(&f.random, sizeof f.random);
    id_pack(&f, block);
    if (EVP_EncryptUpdate(s->seal, sealed, &n, block, ID_BYTES) != 1 || n != ID_BYTES)
        abort();
    id_spell(sealed, ret);
}

bool idseal_check(const struct idseal *s, const char *id, struct id_fields *ret)
{
    uint8_t sealed[ID_BYTES], block[ID_BYTES * 2];
    struct id_fields f;
    int n = 0;
    if (!id_read(id, sealed) || EVP_DecryptUpdate(s->open, block, &n, sealed, ID_BYTES) != 1 || n != ID_BYTES)
        return false;
    return id_unpack(block, ret ? ret : &f);
}
