/* fuzz_oauth_token.c - any bytes as a set of keys and, behind the first empty line, a token: what is refused says why, in one line. The
 * corpus has a set with one key of each kind, and tokens that these signed. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "oauth/oauth.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct jwt_rules rules = {
        .issuer = "https://issuer", .audience = "https://node/mcp", .now = 1800000000};
    _cleanup_free_ char *text = xstrndup((const char *)data, size);
    char *token = strstr(text, "\n\n");
    struct jwks *set = NULL;
    struct jwt_claims c;
    struct err err = {0};
    if (jwks_read(text, token ? (size_t)(token - text) : strlen(text), &set, &err) < 0) {
        if (!err.msg[0] || strchr(err.msg, '\n'))
            abort();
        return 0;
    }
    if (token && jwt_check(token + 2, set, &rules, &c, &err) < 0 && (!err.msg[0] || strchr(err.msg, '\n')))
        abort();
    jwks_free(set);
    return 0;
}
