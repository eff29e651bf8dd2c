#include "wall/layers.h"

#ifdef HUTCH_LAYER_REMOVAL
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"

/* Fault tests count the allocations of a whole run, so the countdown starts before main. */
static __attribute__((constructor)) void read_fail_at(void)
{
    const char *text = getenv("HUTCH_MEM_FAIL_AT");
    uint64_t n;
    if (text && num_u64(text, &n))
        mem_fail_at(n);
}

int layers_removed(layer_set *ret, struct err *err)
{
    static const char *const names[] = {
#define LAYER_NAME(id, name) name,
        LAYER_LIST(LAYER_NAME)
#undef LAYER_NAME
    };
    const char *s = getenv("HUTCH_WITHOUT");
    *ret = 0;
    while (s && *s) {
        size_t n = strcspn(s, ","), i = 0;
        while (i < LAYER_MAX && !(strlen(names[i]) == n && strncmp(names[i], s, n) == 0))
            i++;
        if (i == LAYER_MAX)
            return err_set(err, ERR_USAGE, 0, "HUTCH_WITHOUT: no layer is named %.*s", (int)n, s);
        *ret |= 1ULL << i;
        s += n + (s[n] == ',');
    }
    return 0;
}
#else
int layers_removed(layer_set *ret, struct err *err)
{
    (void)err;
    *ret = 0;
    return 0;
}
#endif
