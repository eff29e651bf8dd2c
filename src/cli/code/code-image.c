/* code-image.c - pictures on a terminal: the protocols of kitty and iTerm2, which take a file as it is, and sixels, which take
 * pixels of few colours.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "cli/code/code.h"

enum { KITTY_CHUNK = 4096, SIXEL_LEVELS = 6 /* of each colour */, SIXEL_COLOURS = 216, SIXEL_ROWS = 6 };

static bool code_env_has(const char *name, const char *part)
{
    const char *value = getenv(name);
    return value && strstr(value, part);
}

enum code_images code_images_of_terminal(void)
{
    if (!isatty(STDOUT_FILENO) || code_env_has("TERM", "tmux") || code_env_has("TERM", "screen"))
        return CODE_IMAGES_FILES; /* they take the sequences away */
    if (getenv("KITTY_WINDOW_ID") || code_env_has("TERM", "kitty") || code_env_has("TERM", "ghostty") ||
        code_env_has("TERM_PROGRAM", "ghostty"))
        return CODE_IMAGES_KITTY;
    if (code_env_has("TERM_PROGRAM", "iTerm") || code_env_has("TERM_PROGRAM", "WezTerm") ||
        code_env_has("TERM_PROGRAM", "vscode") || code_env_has("LC_TERMINAL", "iTerm"))
        return CODE_IMAGES_ITERM;
    if (code_env_has("TERM", "sixel") || code_env_has("TERM", "foot") || code_env_has("TERM", "mlterm") ||
        code_env_has("TERM", "contour"))
        return CODE_IMAGES_SIXEL;
    return CODE_IMAGES_FILES;
}

bool code_images_read(const char *word, enum code_images *ret)
{
    static const char *const words[] = {"files", "kitty", "iterm", "sixel"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strcmp(words[i], word) == 0) {
            *ret = (enum code_images)i;
            return true;
        }
    return false;
}

static void code_image_add_kitty(const void *bytes, size_t n, struct buf *out)
{
    _cleanup_buf_ struct buf text = {0};
    base64_encode(&text, bytes, n);
    for (size_t at = 0; at < text.n; at += KITTY_CHUNK) {
        size_t part = text.n - at < KITTY_CHUNK ? text.n - at : KITTY_CHUNK;
        bool more = at + part < text.n;
        if (at == 0)
            buf_addf(out, "\x1b_Ga=T,f=100,q=2,m=%d;", more);
        else
            buf_addf(out, "\x1b_Gm=%d;", more);
        buf_add(out, text.p + at, part);
        buf_adds(out, "\x1b\\");
    }
    buf_addc(out, '\n');
}

static void code_image_add_iterm(const void *bytes, size_t n, struct buf *out)
{
    buf_addf(out, "\x1b]1337;File=inline=1;size=%zu:", n);
    base64_encode(out, bytes, n);
    buf_adds(out, "\a\n");
}

/* --- sixels --------------------------------------------------------------------------------------------------------- */

static unsigned char code_sixel_colour(const unsigned char *rgb)
{
    unsigned level[3];
    for (int i = 0; i < 3; i++)
        level[i] = (rgb[i] * (SIXEL_LEVELS - 1) + 127u) / 255u;
    return (unsigned char)((level[0] * SIXEL_LEVELS + level[1]) * SIXEL_LEVELS + level[2]);
}

static void code_sixel_add_run(struct buf *out, char c, unsigned n)
{
    if (n > 3)
        buf_addf(out, "!%u%c", n, c);
    else
        while (n-- > 0)
            buf_addc(out, c);
}

/* One colour of a band of six rows. */
static void code_sixel_add_band(struct buf *out, const unsigned char *band, unsigned width, unsigned rows,
                                unsigned colour)
{
    char last = 0;
    unsigned run = 0;
    buf_addf(out, "#%u", colour);
    for (unsigned x = 0; x < width; x++) {
        unsigned bits = 0;
        for (unsigned y = 0; y < rows; y++)
            bits |= (unsigned)(band[y * width + x] == colour) << y;
        char c = (char)('?' + bits);
        if (c != last && run > 0)
            code_sixel_add_run(out, last, run), run = 0;
        last = c;
        run++;
    }
    code_sixel_add_run(out, last, run);
    buf_addc(out, '$');
}

static bool code_image_add_sixel(const void *bytes, size_t n, struct buf *out)
{
    unsigned width, height;
    _cleanup_free_ unsigned char *rgb = code_png_read(bytes, n, &width, &height);
    if (!rgb)
        return false;
    for (size_t i = 0; i < (size_t)width * height; i++)
        rgb[i] = code_sixel_colour(rgb + 3 * i); /* never ahead of what is read */
    buf_addf(out, "\x1bPq\"1;1;%u;%u", width, height);
    for (unsigned i = 0; i < SIXEL_COLOURS; i++)
        buf_addf(out, "#%u;2;%u;%u;%u", i, i / 36 * 20, i / 6 % 6 * 20, i % 6 * 20);
    for (unsigned y = 0; y < height; y += SIXEL_ROWS) {
        const unsigned char *band = rgb + (size_t)y * width;
        unsigned rows = height - y < SIXEL_ROWS ? height - y : SIXEL_ROWS;
        bool used[SIXEL_COLOURS] = {0};
        for (size_t i = 0; i < (size_t)rows * width; i++)
            used[band[i]] = true;
        for (unsigned i = 0; i < SIXEL_COLOURS; i++)
            if (used[i])
                code_sixel_add_band(out, band, width, rows, i);
        buf_addc(out, '-');
    }
    buf_adds(out, "\x1b\\\n");
    return true;
}

bool code_image_add(enum code_images how, const void *bytes, size_t n, bool png, struct buf *out)
{
    if (how == CODE_IMAGES_ITERM)
        code_image_add_iterm(bytes, n, out);
    else if (how == CODE_IMAGES_KITTY && png)
        code_image_add_kitty(bytes, n, out);
    else
        return how == CODE_IMAGES_SIXEL && png && code_image_add_sixel(bytes, n, out);
    return true;
}
