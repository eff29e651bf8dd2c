/* fuzz_http_sigv4.c - any target and headers: what is signed is well-formed, and a canonical query is its own
 * canonical form. Input: lines: the target, then "name:value" each. */
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "http/sigv4.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_query(const char *query)
{
    _cleanup_buf_ struct buf once = {0}, twice = {0};
    sigv4_query(query, &once);
    sigv4_query(buf_str(&once), &twice);
    if (strcmp(buf_str(&once), buf_str(&twice)) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const services[] = {"s3", "lambda"};
    _cleanup_free_ char *text = xstrndup((const char *)data, size);
    struct http_field fields[SIGV4_FIELDS_MAX] = {{"host", "h"}};
    size_t n = 1;
    char *save = NULL, *target = strtok_r(text, "\n", &save);
    if (!target)
        return 0;
    for (char *line; n < SIGV4_FIELDS_MAX && (line = strtok_r(NULL, "\n", &save));) {
        char *colon = strchr(line, ':');
        if (!colon)
            continue;
        *colon = '\0';
        fields[n++] = (struct http_field){line, colon + 1};
    }
    for (size_t i = 0; i < ARRAY_LEN(services); i++) {
        const struct sigv4 s = {.access_key_id = "A",
                                .region = "r",
                                .service = services[i],
                                .secret = "key",
                                .secret_n = 3,
                                .unix_time = size * 100000,
                                .method = "GET",
                                .target = target,
                                .signed_fields = fields,
                                .nfields = n,
                                .payload = "UNSIGNED-PAYLOAD"};
        _cleanup_buf_ struct buf out = {0};
        if (!sigv4_authorization(&s, &out)) {
            if (out.n > 0)
                abort();
            continue;
        }
        const char *signature = strstr(out.p, ", Signature=");
        if (!signature || strlen(out.p) < 12 + 64)
            abort();
        for (const char *p = out.p + out.n - 64; *p; p++)
            if (!isxdigit((unsigned char)*p))
                abort();
    }
    check_query(strchr(target, '?'));
    return 0;
}
