/* fuzz_settings.c - any bytes as a sandbox-runtime settings file: no crash, no leak, one line for what is refused. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "policy/run/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct policy_where where = {.cwd = "/home/u/work", .home = "/home/u"};
    struct err err;
    struct policy *p = policy_new();
    policy_add_defaults(&where, p);
    if (policy_parse_settings((const char *)data, size, "fuzz.json", &where, p, &err) < 0 &&
        (err.msg[0] == '\0' || strchr(err.msg, '\n')))
        abort();
    policy_free(p);
    return 0;
}
