/* code-edit.c - reads lines from a terminal: keys for moving and deleting, a history that is kept in a file, pasted text of
 * several lines as one.
 */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/strv.h"
#include "cli/code/code.h"

enum { HISTORY_MAX = 1000, HISTORY_BYTES_MAX = 1 << 20, LINE_MAX_BYTES = 1 << 20, ESCAPE_MAX = 16 };

struct code_editor {
    bool terminal; /* standard input is one */
    struct termios before;
    struct strv history;
    char *path; /* of the history; NULL: none is kept */
    struct buf line;
    size_t at;      /* the cursor, in bytes */
    size_t looking; /* the entry of the history that is shown; history.n: what was typed */
    struct buf typed;
    bool pasting;
};

/* --- history -------------------------------------------------------------------------------------------------------- */

static char *code_history_path(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *dir = state && state[0] == '/' ? xasprintf("%s/hutch", state)
                : home && home[0] == '/' ? xasprintf("%s/.local/state/hutch", home)
                                         : NULL;
    if (!dir)
        return NULL;
    for (char *p = dir + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            (void)mkdir(dir, 0700);
            *p = '/';
        }
    (void)mkdir(dir, 0700);
    char *path = xasprintf("%s/code_history", dir);
    free(dir);
    return path;
}

static void code_history_load(struct code_editor *e)
{
    _cleanup_buf_ struct buf text = {0};
    e->path = code_history_path();
    if (!e->path || fd_read_file(AT_FDCWD, e->path, HISTORY_BYTES_MAX, &text) < 0)
        return;
    for (size_t at = 0; at < text.n;) {
        size_t n = strcspn(text.p + at, "\n");
        strv_take(&e->history, xstrndup(text.p + at, n));
        at += n + 1;
    }
}

static void code_history_save(const struct code_editor *e)
{
    _cleanup_buf_ struct buf text = {0};
    size_t from = e->history.n > HISTORY_MAX ? e->history.n - HISTORY_MAX : 0;
    for (size_t i = from; i < e->history.n; i++)
        buf_addf(&text, "%s\n", e->history.v[i]);
    _cleanup_close_ int fd = e->path ? open(e->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    if (fd >= 0)
        (void)fd_write_all(fd, buf_str(&text), text.n);
}

static void code_history_add(struct code_editor *e)
{
    const char *line = buf_str(&e->line);
    if (line[strspn(line, " \t")] && (e->history.n == 0 || strcmp(e->history.v[e->history.n - 1], line) != 0))
        strv_add(&e->history, line);
}

/* Keys come as they are typed and unseen, from the first line to the end, so that what is typed while a cell runs is there for
 * the next line. `signals`: while a cell runs Ctrl-C is a signal. */
static void code_edit_set_terminal(const struct code_editor *e, bool signals)
{
    struct termios raw = e->before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | IEXTEN | (signals ? 0 : ISIG));
    raw.c_iflag &= ~(tcflag_t)(IXON | ICRNL);
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
}

struct code_editor *code_editor_new(void)
{
    struct code_editor *e = xcalloc(1, sizeof *e);
    (void)setlocale(LC_CTYPE, "");
    code_history_load(e);
    e->terminal = tcgetattr(STDIN_FILENO, &e->before) == 0;
    return e;
}

void code_editor_free(struct code_editor *e)
{
    code_history_save(e);
    if (e->terminal)
        (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &e->before);
    strv_done(&e->history);
    buf_done(&e->line);
    buf_done(&e->typed);
    free(e->path);
    free(e);
}

/* --- the screen ----------------------------------------------------------------------------------------------------- */

/* Bytes of the character at p, and its columns. */
static size_t code_edit_step(const char *p, size_t n, int *columns)
{
    wchar_t c;
    mbstate_t state = {0};
    size_t len = mbrtowc(&c, p, n, &state);
    if (len == 0 || len > n) {
        *columns = 1;
        return 1;
    }
    int w = wcwidth(c);
    *columns = w < 0 ? 1 : w;
    return len;
}

static int code_edit_columns(const char *p, size_t n)
{
    int all = 0;
    for (size_t i = 0; i < n;) {
        int w;
        i += code_edit_step(p + i, n - i, &w);
        all += w;
    }
    return all;
}

/* The end of what fits into so many columns, from a character on. Counts each character once: a pasted line is long. */
static size_t code_edit_fits(const char *p, size_t from, size_t end, int room)
{
    int w;
    for (size_t step; from < end; from += step, room -= w) {
        step = code_edit_step(p + from, end - from, &w);
        if (w > room)
            break;
    }
    return from;
}

/* Draws prompt and line; a line that is too long scrolls, so that the cursor is seen. */
static void code_edit_draw(const struct code_editor *e, const char *prompt)
{
    struct winsize size = {0};
    _cleanup_buf_ struct buf out = {0};
    const char *p = buf_str(&e->line);
    int width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    int room = width - (int)strlen(prompt) - 1;
    size_t from = 0, to;
    for (int left = code_edit_columns(p, e->at), w; room > 0 && from < e->at && left > room; left -= w)
        from += code_edit_step(p + from, e->line.n - from, &w);
    to = code_edit_fits(p, from, e->line.n, room);
    to = to < e->at ? e->at : to;
    buf_addf(&out, "\r%s", prompt);
    for (size_t i = from; i < to; i++)
        buf_addc(&out, (unsigned char)p[i] < ' ' ? ' ' : p[i]);
    buf_addf(&out, "\x1b[K\r\x1b[%dC", (int)strlen(prompt) + code_edit_columns(p + from, e->at - from));
    (void)fd_write_all(STDOUT_FILENO, out.p, out.n);
}

/* --- keys ----------------------------------------------------------------------------------------------------------- */

static void code_edit_remove(struct code_editor *e, size_t from, size_t to)
{
    if (from >= to)
        return;
    memmove(e->line.p + from, e->line.p + to, e->line.n - to);
    e->line.n -= to - from;
    e->line.p[e->line.n] = '\0';
    e->at = from;
}

static void code_edit_insert(struct code_editor *e, char c)
{
    if (e->line.n >= LINE_MAX_BYTES)
        return;
    buf_addc(&e->line, c);
    memmove(e->line.p + e->at + 1, e->line.p + e->at, e->line.n - 1 - e->at);
    e->line.p[e->at++] = c;
}

static size_t code_edit_left(const struct code_editor *e)
{
    size_t at = e->at;
    while (at > 0 && ((unsigned char)e->line.p[--at] & 0xc0) == 0x80)
        ;
    return at;
}

static size_t code_edit_right(const struct code_editor *e)
{
    int w;
    return e->at < e->line.n ? e->at + code_edit_step(e->line.p + e->at, e->line.n - e->at, &w) : e->at;
}

static size_t code_edit_word(const struct code_editor *e)
{
    size_t at = e->at;
    while (at > 0 && e->line.p[at - 1] == ' ')
        at--;
    while (at > 0 && e->line.p[at - 1] != ' ')
        at--;
    return at;
}

/* Shows another entry of the history. */
static void code_edit_look(struct code_editor *e, bool back)
{
    if (back ? e->looking == 0 : e->looking == e->history.n)
        return;
    if (e->looking == e->history.n) {
        e->typed.n = 0;
        buf_adds(&e->typed, buf_str(&e->line));
    }
    e->looking += back ? (size_t)-1 : 1;
    e->line.n = 0;
    buf_adds(&e->line, e->looking == e->history.n ? buf_str(&e->typed) : e->history.v[e->looking]);
    e->at = e->line.n;
}

static bool code_edit_byte(unsigned char *ret)
{
    ssize_t n;
    do
        n = read(STDIN_FILENO, ret, 1);
    while (n < 0 && errno == EINTR);
    return n == 1;
}

/* What follows an escape: "[D", "[3~", "[200~". */
static void code_edit_escape(struct code_editor *e)
{
    char seq[ESCAPE_MAX] = "";
    size_t n = 0;
    unsigned char c;
    while (n < sizeof seq - 1 && code_edit_byte(&c)) {
        seq[n++] = (char)c;
        if (n > 1 && c >= '@' && c <= '~')
            break;
    }
    if (strcmp(seq, "[200~") == 0 || strcmp(seq, "[201~") == 0)
        e->pasting = seq[3] == '0';
    else if (strcmp(seq, "[A") == 0 || strcmp(seq, "OA") == 0)
        code_edit_look(e, true);
    else if (strcmp(seq, "[B") == 0 || strcmp(seq, "OB") == 0)
        code_edit_look(e, false);
    else if (strcmp(seq, "[C") == 0 || strcmp(seq, "OC") == 0)
        e->at = code_edit_right(e);
    else if (strcmp(seq, "[D") == 0 || strcmp(seq, "OD") == 0)
        e->at = code_edit_left(e);
    else if (strcmp(seq, "[H") == 0 || strcmp(seq, "OH") == 0 || strcmp(seq, "[1~") == 0)
        e->at = 0;
    else if (strcmp(seq, "[F") == 0 || strcmp(seq, "OF") == 0 || strcmp(seq, "[4~") == 0)
        e->at = e->line.n;
    else if (strcmp(seq, "[3~") == 0)
        code_edit_remove(e, e->at, code_edit_right(e));
}

#define KEY_CTRL(c) ((c)&0x1f)

/* A key that moves or changes; true: it was one. */
static bool code_edit_key(struct code_editor *e, unsigned char c)
{
    switch (c) {
    case '\x1b':
        code_edit_escape(e);
        return true;
    case KEY_CTRL('A'):
        e->at = 0;
        return true;
    case KEY_CTRL('E'):
        e->at = e->line.n;
        return true;
    case KEY_CTRL('B'):
        e->at = code_edit_left(e);
        return true;
    case KEY_CTRL('F'):
        e->at = code_edit_right(e);
        return true;
    case KEY_CTRL('P'):
    case KEY_CTRL('N'):
        code_edit_look(e, c == KEY_CTRL('P'));
        return true;
    case KEY_CTRL('H'):
    case 127:
        code_edit_remove(e, code_edit_left(e), e->at);
        return true;
    case KEY_CTRL('U'):
        code_edit_remove(e, 0, e->at);
        return true;
    case KEY_CTRL('K'):
        code_edit_remove(e, e->at, e->line.n);
        return true;
    case KEY_CTRL('W'):
        code_edit_remove(e, code_edit_word(e), e->at);
        return true;
    case KEY_CTRL('L'):
        (void)fd_write_all(STDOUT_FILENO, "\x1b[H\x1b[2J", 7);
        return true;
    default:
        return false;
    }
}

/* Whether more keys wait: terminals that do not mark what is pasted would have a long line drawn once a byte. */
static bool code_edit_more(void)
{
    struct pollfd f = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&f, 1, 0) == 1 && f.revents == POLLIN;
}

static enum code_edited code_edit_loop(struct code_editor *e, const char *prompt)
{
    for (;;) {
        unsigned char c;
        if (!e->pasting && !code_edit_more())
            code_edit_draw(e, prompt);
        if (!code_edit_byte(&c) || (c == KEY_CTRL('D') && e->line.n == 0))
            return CODE_EDITED_END;
        if (c == KEY_CTRL('C'))
            return CODE_EDITED_INTERRUPT;
        if (c == '\r' || c == '\n')
            return CODE_EDITED_LINE;
        if (c == '\t') {
            for (int i = 0; i < 4; i++)
                code_edit_insert(e, ' ');
        } else if (!code_edit_key(e, c) && c >= ' ') {
            code_edit_insert(e, (char)c);
        }
    }
}

enum code_edited code_editor_read(struct code_editor *e, const char *prompt, struct buf *out, bool *ret_more)
{
    e->line.n = e->at = 0;
    buf_adds(&e->line, "");
    e->looking = e->history.n;
    if (!e->terminal)
        return CODE_EDITED_END;
    code_edit_set_terminal(e, false);
    (void)fd_write_all(STDOUT_FILENO, "\x1b[?2004h", 8);
    enum code_edited how = code_edit_loop(e, prompt);
    bool pasting = e->pasting;
    e->pasting = false;
    code_edit_draw(e, prompt);
    e->pasting = pasting;
    (void)fd_write_all(STDOUT_FILENO, how == CODE_EDITED_INTERRUPT ? "^C\r\n\x1b[?2004l" : "\r\n\x1b[?2004l",
                       how == CODE_EDITED_INTERRUPT ? 12 : 10);
    code_edit_set_terminal(e, true);
    if (how == CODE_EDITED_LINE) {
        code_history_add(e);
        buf_add(out, buf_str(&e->line), e->line.n);
    }
    *ret_more = e->pasting;
    return how;
}
