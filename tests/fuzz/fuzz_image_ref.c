/* fuzz_image_ref.c - any bytes as the name of an image, as an address and as a challenge: what is accepted can be put into a request. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "image/fetch-int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_clean(const char *s, size_t room)
{
    if (strlen(s) >= room)
        abort();
    for (; *s; s++)
        if (*s <= ' ' || *s >= 0x7f)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_free_ char *text = xstrndup((const char *)data, size);
    struct image_ref r;
    struct web_url u, v;
    struct auth_challenge c;
    struct err err = {0};
    if (ref_parse(text, &r, &err) == 0) {
        check_clean(r.host, sizeof r.host);
        check_clean(r.name, sizeof r.name);
        check_clean(r.tag, sizeof r.tag);
        check_clean(r.digest, sizeof r.digest);
        if (!r.host[0] || !r.name[0] || (!r.tag[0] && !r.digest[0]) || strstr(r.name, "..") || r.name[0] == '/')
            abort();
    }
    if (web_url_parse(text, NULL, &u, &err) == 0) {
        check_clean(u.authority, sizeof u.authority);
        check_clean(u.target, sizeof u.target);
        if (u.port == 0 || u.target[0] != '/' || !u.host[0])
            abort();
        if (web_url_parse("/x", &u, &v, &err) < 0 || strcmp(u.authority, v.authority) != 0)
            abort();
    }
    auth_parse(text, &c);
    if (strlen(c.realm) >= sizeof c.realm || strlen(c.scope) >= sizeof c.scope)
        abort();
    return 0;
}
