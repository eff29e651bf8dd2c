#include "cli/client/progress.h"

#include <stdio.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/num.h"
#include "base/text.h"
#include "http/http1.h"

enum { BAR = 24, EVERY_MS = 100, WIDTH = 80, NAME_SHOWN = 40 };

static bool progress_shown;

static uint64_t progress_now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void progress_add_bar(struct buf *b, uint64_t done, uint64_t all)
{
    uint64_t full = done >= all ? BAR : (uint64_t)((double)done * BAR / (double)all);
    buf_addc(b, '[');
    for (uint64_t i = 0; i < BAR; i++)
        buf_addc(b, i < full ? '#' : '.');
    buf_adds(b, "] ");
}

/* Cut to the terminal: a line that wraps cannot be taken away. */
static void progress_put(const struct buf *line, bool last)
{
    struct winsize w;
    size_t width = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 1 ? (size_t)w.ws_col - 1 : WIDTH;
    (void)fprintf(stderr, "\r\033[K%.*s%s", (int)(line->n < width ? line->n : width), buf_str(line), last ? "\n" : "");
    progress_shown = !last;
}

void progress_bytes(const char *what, uint64_t done, uint64_t all, bool last)
{
    static uint64_t shown_ms;
    _cleanup_buf_ struct buf b = {0};
    uint64_t now;
    if (!isatty(STDERR_FILENO) || ((now = progress_now_ms()) - shown_ms < EVERY_MS && !last))
        return;
    shown_ms = now;
    if (all && all != HTTP_UNKNOWN)
        progress_add_bar(&b, done, all);
    num_add_size(&b, done);
    if (all && all != HTTP_UNKNOWN)
        buf_addf(&b, " (%u %%)", (unsigned)(done >= all ? 100 : (double)done * 100 / (double)all));
    buf_adds(&b, "  ");
    text_add_safe(&b, what, NAME_SHOWN);
    progress_put(&b, last);
}

void progress_steps(const char *what, unsigned done, unsigned all)
{
    _cleanup_buf_ struct buf b = {0};
    if (!isatty(STDERR_FILENO) || all == 0)
        return;
    progress_add_bar(&b, done, all);
    buf_addf(&b, "%u of %u  ", done, all);
    text_add_safe(&b, what, WIDTH);
    progress_put(&b, false);
}

void progress_clear(void)
{
    if (progress_shown)
        (void)fputs("\r\033[K", stderr);
    progress_shown = false;
}
