/* fuzz_egress_secret.c - any bytes as the spec of a secret: no crash, no leak, errors of one line that name something;
 * and as the shape of a placeholder, which is always one of letters, digits and "_-.". */
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/secrets/secrets.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_shape(const char *shape)
{
    char text[SECRET_PLACEHOLDER_MAX];
    secret_placeholder(shape, text, sizeof text);
    if (strlen(text) < 22)
        abort();
    for (const char *p = text; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("_-.", *p))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *spec =
        json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    _cleanup_free_ char *text = xstrndup((const char *)data, size);
    struct err err = {0};
    if (spec) {
        int r = secret_spec_check(spec, &err);
        if (r < 0 && (err.msg[0] == '\0' || strchr(err.msg, '\n') || !strchr(err.msg, ':')))
            abort();
        const json_t *shape = json_object_get(spec, "placeholder");
        if (r == 0 && shape)
            try_shape(json_string_value(shape));
        /* A value that fits the spec is never named. */
        if (r == 0 && secret_value_check(spec, "qz7Wsecret\n", 11, &err) < 0 && strstr(err.msg, "qz7W"))
            abort();
        json_decref(spec);
    }
    try_shape(text);
    (void)secret_name_valid(text);
    return 0;
}
