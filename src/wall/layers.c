#include "wall/layers.h"

#include <stdlib.h>
#include <string.h>

int layers_removed(layer_set *ret, struct err *err)
{
    const char *s = getenv("HUTCH_WITHOUT");
    *ret = 0;
    if (!s || !*s)
        return 0;
#ifdef HUTCH_LAYER_REMOVAL
    static const char *const names[] = {
#define LAYER_NAME(id, name) name,
        LAYER_LIST(LAYER_NAME)
#undef LAYER_NAME
    };
    while (*s) {
        size_t n = strcspn(s, ","), i = 0;
        while (i < LAYER_MAX && !(strlen(names[i]) == n && strncmp(names[i], s, n) == 0))
            i++;
        if (i == LAYER_MAX)
            return err_set(err, ERR_USAGE, 0, "HUTCH_WITHOUT: no layer is named %.*s", (int)n, s);
        *ret |= 1ULL << i;
        s += n + (s[n] == ',');
    }
    return 0;
#else
    return err_set(err, ERR_USAGE, 0, "HUTCH_WITHOUT is set, but this build cannot remove layers; unset it");
#endif
}
