#include "base/text.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/mem.h"

enum { WORD_MAX = 63 };

/* Edit distance (insert, delete, replace, swap of neighbours) of two short words. */
static size_t text_distance(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    size_t row[3][WORD_MAX + 2];
    if (na > WORD_MAX || nb > WORD_MAX)
        return SIZE_MAX;
    for (size_t j = 0; j <= nb; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *cur = row[i % 3], *prev = row[(i + 2) % 3], *prev2 = row[(i + 1) % 3];
        cur[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = prev[j - 1] + (a[i - 1] != b[j - 1]);
            if (prev[j] + 1 < best)
                best = prev[j] + 1;
            if (cur[j - 1] + 1 < best)
                best = cur[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && prev2[j - 2] + 1 < best)
                best = prev2[j - 2] + 1;
            cur[j] = best;
        }
    }
    return row[na % 3][nb];
}

const char *text_nearest(const char *word, const char *const *known)
{
    const char *best = NULL;
    size_t best_d = strlen(word) / 3 + 2;
    for (; *known; known++) {
        size_t d = text_distance(word, *known);
        if (d < best_d) {
            best_d = d;
            best = *known;
        }
    }
    return best;
}

void text_add_choices(struct buf *b, const char *const *words)
{
    for (size_t i = 0; words[i]; i++)
        buf_addf(b, "%s%s", i == 0 ? "" : words[i + 1] ? ", " : " or ", words[i]);
}

void text_add_safe(struct buf *b, const char *s, size_t max)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (i >= max) {
            buf_adds(b, "...");
            return;
        }
        if (c == '\n')
            buf_adds(b, "\\n");
        else if (c == '\t')
            buf_adds(b, "\\t");
        else if (c < 0x20 || c == 0x7f || (c >= 0x80 && c < 0xa0))
            buf_addf(b, "\\x%02x", c);
        else
            buf_addc(b, (char)c);
    }
}

const char *text_errno(int eno)
{
#define NAME(e) \
    case e:     \
        return #e
    switch (eno) {
        NAME(EPERM);
        NAME(ENOENT);
        NAME(EAGAIN);
        NAME(ENOMEM);
        NAME(EACCES);
        NAME(EBUSY);
        NAME(EXDEV);
        NAME(ENODEV);
        NAME(EINVAL);
        NAME(ENOTTY);
        NAME(ENOSPC);
        NAME(EROFS);
        NAME(ENOSYS);
        NAME(EMFILE);
        NAME(ENOBUFS);
        NAME(EOPNOTSUPP);
        NAME(EAFNOSUPPORT);
        NAME(EPROTONOSUPPORT);
    default:
        return "?";
    }
#undef NAME
}

const char *text_signal(int sig)
{
    static const char *const names[] = {
        [SIGHUP] = "HUP",       [SIGINT] = "INT",   [SIGQUIT] = "QUIT",   [SIGILL] = "ILL",   [SIGTRAP] = "TRAP",
        [SIGABRT] = "ABRT",     [SIGBUS] = "BUS",   [SIGFPE] = "FPE",     [SIGKILL] = "KILL", [SIGUSR1] = "USR1",
        [SIGSEGV] = "SEGV",     [SIGUSR2] = "USR2", [SIGPIPE] = "PIPE",   [SIGALRM] = "ALRM", [SIGTERM] = "TERM",
        [SIGSTKFLT] = "STKFLT", [SIGCHLD] = "CHLD", [SIGCONT] = "CONT",   [SIGSTOP] = "STOP", [SIGTSTP] = "TSTP",
        [SIGTTIN] = "TTIN",     [SIGTTOU] = "TTOU", [SIGURG] = "URG",     [SIGXCPU] = "XCPU", [SIGXFSZ] = "XFSZ",
        [SIGVTALRM] = "VTALRM", [SIGPROF] = "PROF", [SIGWINCH] = "WINCH", [SIGPOLL] = "POLL", [SIGPWR] = "PWR",
        [SIGSYS] = "SYS",
    };
    return sig > 0 && (size_t)sig < ARRAY_LEN(names) ? names[sig] : NULL;
}

bool text_listed(const char *list, const char *word, size_t n)
{
    for (const char *p = list ? list : ""; *p;) {
        size_t k = strcspn(p, ",");
        if (k == n && strncasecmp(p, word, n) == 0)
            return true;
        p += k + (p[k] == ',');
    }
    return false;
}
