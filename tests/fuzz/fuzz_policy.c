/* fuzz_policy.c - any bytes as a policy document, at every level: no crash, no leak, and what was accepted can be shown,
 * and what is shown is a document again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "policy/run/explain.h"
#include "policy/run/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct policy_where where = {.cwd = "/home/u/work", .home = "/home/u"};

static void show_again(const struct policy *p)
{
    struct buf out = {0};
    struct err err;
    struct policy *again = policy_new();
    policy_show(p, &out);
    if (policy_parse(buf_str(&out), out.n, "shown", LEVEL_FLAGS, &where, again, &err) < 0 &&
        !strstr(err.msg, "more than"))
        abort();
    policy_free(again);
    buf_done(&out);
    policy_show_json(p, &out);
    (void)policy_explain_path(p, "/home/u/work/.git/hooks/x", true, &out);
    (void)policy_explain_host(p, "api.example.com", &out);
    buf_done(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum policy_level levels[] = {LEVEL_SYSTEM, LEVEL_USER, LEVEL_PROJECT, LEVEL_FLAGS};
    struct err err;
    if (size == 0)
        return 0;
    struct policy *p = policy_new();
    enum policy_level level = levels[data[0] % 4];
    policy_add_defaults(&where, p);
    /* The first byte chooses the level, and is part of the text too: corpus files stay plain documents. */
    if (policy_parse((const char *)data, size, "fuzz.yaml", level, &where, p, &err) == 0) {
        if (!p->ceiling[0] && !p->ceiling[1])
            show_again(p);
    } else if (err.msg[0] == '\0' || strchr(err.msg, '\n')) {
        abort();
    }
    policy_free(p);
    return 0;
}
