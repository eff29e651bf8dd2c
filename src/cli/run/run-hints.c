#include "cli/run/run-hints.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "cli/run/run-preset.h"

enum { SAFE = 200, GRANTS_MAX = 6, WORDS_MAX = 256, WORD_MAX = 1024, TEXT_MAX = 16384 };

static bool run_failed(const struct outcome *o) { return o->cause == END_NOT_RUN || o->exit_code != 0; }

/* --- what a private directory covers ------------------------------------------------------------------------------ */

/* A path of the command line that exists on the host and that the command does not see, because a directory of its own stands
 * there. Says so; false if not. */
static bool hint_covered(const struct prepared *p, const char *path, struct buf *out)
{
    struct stat st;
    _cleanup_free_ char *clean = path_clean(p->cwd, path), *real = realpath(clean, NULL);
    const struct plan_op *op = real ? plan_op_for(p->plan, real) : NULL;
    if (!op || (op->kind != OP_TMPFS && op->kind != OP_SKELETON) || strcmp(op->path, real) == 0 || stat(real, &st) < 0)
        return false;
    buf_adds(out, "hutch: ");
    text_add_safe(out, op->path, SAFE);
    buf_adds(out, " is private in here, so the command does not see ");
    text_add_safe(out, real, SAFE);
    buf_adds(out, "; show it with --ro ");
    text_add_safe(out, real, SAFE);
    buf_addc(out, '\n');
    return true;
}

/* Paths in one word, which may be a script for a shell. */
static bool hint_covered_in(const struct prepared *p, const char *word, struct buf *out)
{
    static const char ends[] = " \t\n'\"`;|&<>()=";
    if (strnlen(word, TEXT_MAX) == TEXT_MAX)
        return false;
    for (const char *s = word; *s;) {
        size_t n = strcspn(s, ends);
        if (n > 1 && n < WORD_MAX && s[0] == '/') {
            _cleanup_free_ char *path = xstrndup(s, n);
            if (hint_covered(p, path, out))
                return true;
        }
        s += n + (s[n] != '\0');
    }
    return false;
}

static bool hint_program(const struct prepared *p, struct buf *out)
{
    for (size_t i = 0; i < p->exec_paths.n; i++)
        if (hint_covered(p, p->exec_paths.v[i], out))
            return true;
    return false;
}

/* --- options that would help -------------------------------------------------------------------------------------- */

static bool hint_preset(const struct prepared *p, struct buf *out)
{
    if (p->args->root)
        return false;
    _cleanup_free_ char *preset = run_preset_suggest(p->policy, p->home, p->args->command[0]);
    if (!preset)
        return false;
    buf_adds(out, "hutch: ");
    text_add_safe(out, path_name(p->args->command[0]), SAFE);
    buf_addf(out, " has a preset: `hutch run --preset %s` opens its hosts and gives it a cache and state\n", preset);
    return true;
}

static void hint_grants(const struct denials *denials, struct buf *out)
{
    const char *flags[GRANTS_MAX];
    size_t n = denials_grants(denials, flags, GRANTS_MAX);
    if (n < 2) /* a single one stands behind its refusal */
        return;
    buf_adds(out, "hutch: try again with");
    for (size_t i = 0; i < n; i++) {
        buf_addc(out, ' ');
        text_add_safe(out, flags[i], 4 * SAFE);
    }
    buf_addc(out, '\n');
}

void run_hints(const struct prepared *p, const struct outcome *o, const struct denials *denials, struct buf *out)
{
    bool failed = run_failed(o), said = false;
    if (!failed && denials_total(denials) == 0)
        return;
    if (o->cause == END_NOT_RUN && hint_program(p, out))
        return;
    if (failed)
        for (size_t i = 0; p->args->command[i] && i < WORDS_MAX && !said; i++)
            said = hint_covered_in(p, p->args->command[i], out);
    if ((o->cause == END_NOT_RUN && o->exec_errno == ENOENT) || hint_preset(p, out) || !failed)
        return;
    hint_grants(denials, out);
}
