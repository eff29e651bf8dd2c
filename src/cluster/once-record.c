/* The record of a key as text, and where it is kept. */
#include "cluster/once.h"

#include <string.h>

#include "base/fields.h"
#include "base/json.h"

#define RECORD_VERSION 1

uint64_t once_bucket(uint64_t now_ms) { return now_ms / ONCE_BUCKET_MS; }

void once_key(const char *tenant, const void *key, size_t n, struct buf *ret)
{
    char digest[SHA256_HEX];
    sha256_hex(key, n, digest);
    buf_addf(ret, "i/%s/%.32s", tenant, digest);
}

void once_record_write(const struct once_record *r, struct buf *ret)
{
    struct json j;
    json_start(&j, ret);
    json_obj(&j, NULL);
    json_u64(&j, "v", RECORD_VERSION);
    json_str(&j, "state", r->state == ONCE_DECIDED ? "decided" : "pending");
    json_str(&j, "id", r->at.id);
    json_u64(&j, "node", r->at.node);
    json_str(&j, "request", r->request);
    json_u64(&j, "until", r->until_ms);
    json_end_obj(&j);
}

/* A member that must be there: text of min to max bytes, all of which are of `alphabet`. */
static int record_text(json_t *o, const char *name, const char *alphabet, size_t min, size_t max, char *ret,
                       struct err *err)
{
    const char *text = "";
    if (field_str(o, name, &text, err) < 0)
        return -1;
    size_t n = strlen(text);
    if (n < min || n > max || strspn(text, alphabet) != n)
        return err_set(err, ERR_INTERNAL, 0, "%s is missing or not as it should be", name);
    memcpy(ret, text, n + 1);
    return 0;
}

static int record_number(json_t *o, const char *name, int64_t max, int64_t *ret, struct err *err)
{
    int there = field_int(o, name, 0, max, ret, err);
    return there > 0 ? 0 : there < 0 ? -1 : err_set(err, ERR_INTERNAL, 0, "%s is missing", name);
}

static int record_fields(json_t *o, struct once_record *ret, struct err *err)
{
    int64_t version = 0, node = 0, until = 0;
    char state[8];
    if (record_number(o, "v", INT64_MAX, &version, err) < 0)
        return -1;
    if (version != RECORD_VERSION)
        return err_set(err, ERR_INTERNAL, 0, "its version is %lld, not %d", (long long)version, RECORD_VERSION);
    if (record_text(o, "state", "abcdefghijklmnopqrstuvwxyz", 7, 7, state, err) < 0 ||
        record_text(o, "id", "abcdefghijklmnopqrstuvwxyz0123456789-", 1, sizeof ret->at.id - 1, ret->at.id, err) < 0 ||
        record_number(o, "node", UINT32_MAX, &node, err) < 0 ||
        record_text(o, "request", "0123456789abcdef", SHA256_HEX - 1, SHA256_HEX - 1, ret->request, err) < 0 ||
        record_number(o, "until", INT64_MAX, &until, err) < 0)
        return -1;
    if (strcmp(state, "pending") != 0 && strcmp(state, "decided") != 0)
        return err_set(err, ERR_INTERNAL, 0, "state is neither pending nor decided");
    ret->state = *state == 'p' ? ONCE_PENDING : ONCE_DECIDED;
    ret->at.node = (uint32_t)node;
    ret->until_ms = (uint64_t)until;
    return 0;
}

int once_record_read(const void *text, size_t n, struct once_record *ret, struct err *err)
{
    if (n > ONCE_VALUE_MAX || !fields_text_is_small(text, n, 64, 4))
        return err_set(err, ERR_INTERNAL, 0, "the record of a key is too large: %zu bytes", n);
    _cleanup_json_ json_t *o = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(o))
        return err_set(err, ERR_INTERNAL, 0, "the record of a key is not a JSON object");
    struct once_record r = {0};
    if (record_fields(o, &r, err) < 0)
        return err_wrap(err, "the record of a key");
    *ret = r;
    return 0;
}
