/* fuzz_dockerfile.c - any bytes as a Dockerfile: read or refused with a line, and what is read keeps the limits. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/files/context.h"
#include "cli/files/dockerfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dockerfile d;
    struct err err = {0};
    struct strv args = {0}, patterns = {0};
    strv_add(&args, "A=$B");
    int rc = dockerfile_parse((const char *)data, size, "f", &args, NULL, &d, &err);
    if (rc < 0 ? strncmp(err.msg, "f:", 2) != 0
               : d.nstages == 0 || d.nstages > DOCKERFILE_STAGES_MAX || d.nsteps > DOCKERFILE_STEPS_MAX || d.nsteps < 2)
        abort();
    for (size_t i = 0; rc == 0 && i < d.nsteps; i++) {
        const struct dockerfile_step *s = &d.steps[i];
        if (s->from >= (int)d.nstages - 1) /* one before the last */
            abort();
        if (s->args.n == 0 || (s->type == DOCKERFILE_COPY && s->args.n != 4) ||
            (s->type == DOCKERFILE_ENV && s->args.n % 2))
            abort();
        if (s->type == DOCKERFILE_COPY && (s->args.v[0][0] == '/' || strncmp(s->args.v[0], "../", 3) == 0))
            abort();
    }
    dockerfile_done(&d);
    _cleanup_free_ char *text = xstrndup((const char *)data, size);
    context_ignore_read(text, &patterns);
    (void)context_ignored(&patterns, "a/b/c");
    strv_done(&patterns);
    strv_done(&args);
    return 0;
}
