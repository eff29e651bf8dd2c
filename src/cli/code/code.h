/* code.h - hutch code: what its parts share. */
#ifndef HUTCH_CLI_CODE_CODE_H
#define HUTCH_CLI_CODE_CODE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

/* code-image.c: how the terminal shows pictures. */
enum code_images { CODE_IMAGES_FILES, CODE_IMAGES_KITTY, CODE_IMAGES_ITERM, CODE_IMAGES_SIXEL };
/* What this terminal is known to show; CODE_IMAGES_FILES if standard output is none. */
enum code_images code_images_of_terminal(void);
/* A word of --images. False: unknown. */
bool code_images_read(const char *word, enum code_images *ret);
/* Appends what makes the terminal draw it. False: it cannot be drawn, so save it. `png`: else it is a JPEG. */
bool code_image_add(enum code_images how, const void *bytes, size_t n, bool png, struct buf *out);
/* code-png.c: the pixels of a PNG as RGB on white, for sixels. NULL: not one, too large, or a kind that is not read. */
unsigned char *code_png_read(const unsigned char *p, size_t n, unsigned *ret_width, unsigned *ret_height);

/* code-view.c: shows the lines of cells. */
struct code_view {
    enum code_images images;
    const char *dir; /* where pictures are saved */
    bool json;       /* lines as they come */
    bool failed;     /* the cell ended with an error */
    bool ended;      /* its last line came */
    unsigned saved;  /* number of the last picture */
    /* Of this cell; a sandbox that sends pictures without end fills no disk. */
    unsigned pictures;
    uint64_t picture_bytes;
    bool left_out;
};
/* Before the lines of a cell. */
void code_view_begin(struct code_view *v);
/* One line of the answer, without its newline. -1: output cannot be written. */
int code_view_line(struct code_view *v, const char *line, size_t n, struct err *err);

/* code-edit.c: lines of a terminal, with a history. */
struct code_editor;
struct code_editor *code_editor_new(void);
void code_editor_free(struct code_editor *e);
enum code_edited { CODE_EDITED_LINE, CODE_EDITED_INTERRUPT, CODE_EDITED_END };
/* Appends one line, without its newline. *ret_more: it was pasted, and more of the same follows. */
enum code_edited code_editor_read(struct code_editor *e, const char *prompt, struct buf *out, bool *ret_more);
/* code-whole.c: whether a cell can be run, or the next line belongs to it. */
bool code_is_whole(const char *language, const char *text);

#endif
