/* code-view.c - shows the lines of a cell: text as it is, pictures drawn or saved under a name that is free. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/fields.h"
#include "base/mem.h"
#include "cli/code/code.h"

enum {
    NAMES_MAX = 100000,
    PICTURES_MAX = 100,         /* of a cell */
    PICTURE_VALUES_MAX = 200000 /* of a line; charts have many */
};
#define PICTURE_BYTES_MAX ((uint64_t)256 << 20) /* of a cell's files */

static const struct kind {
    const char *key, *extension;
    bool base64, drawn;
} kinds[] = {
    {"png", "png", true, true},
    {"jpeg", "jpg", true, true},
    {"pdf", "pdf", true, false},
    {"svg", "svg", false, false},
};

static int code_view_write(int fd, const void *p, size_t n, struct err *err)
{
    return fd_write_all(fd, p, n) < 0 ? err_set(err, ERR_HOST, errno, "write the output") : 0;
}

static int code_view_save(struct code_view *v, const struct buf *bytes, const char *extension, struct err *err)
{
    _cleanup_free_ char *path = NULL;
    _cleanup_close_ int fd = -1;
    do {
        free(path);
        path = xasprintf("%s%sresult-%u.%s", v->dir ? v->dir : "", v->dir ? "/" : "", ++v->saved, extension);
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EEXIST && v->saved < NAMES_MAX);
    if (fd < 0 || fd_write_all(fd, bytes->p, bytes->n) < 0)
        return err_set(err, ERR_HOST, errno, "save a picture as %s", path);
    _cleanup_free_ char *line = xasprintf("[saved as %s]\n", path);
    return code_view_write(STDOUT_FILENO, line, strlen(line), err);
}

/* Bytes of a member; false: it is not base64. */
static bool code_view_bytes(const json_t *data, bool base64, struct buf *ret)
{
    const char *text = json_string_value(data);
    if (!base64) {
        buf_add(ret, text, json_string_length(data));
        return true;
    }
    _cleanup_buf_ struct buf plain = {0};
    for (; *text; text++)
        if (*text > ' ')
            buf_addc(&plain, *text);
    return base64_decode(ret, buf_str(&plain), plain.n);
}

void code_view_begin(struct code_view *v)
{
    v->failed = v->ended = v->left_out = false;
    v->pictures = 0;
    v->picture_bytes = 0;
}

/* Says once that there were too many. */
static int code_view_leave_out(struct code_view *v, struct err *err)
{
    static const char line[] = "[more pictures were left out]\n";
    if (v->left_out)
        return 0;
    v->left_out = true;
    return code_view_write(STDERR_FILENO, line, strlen(line), err);
}

/* 1: shown, saved or left out, 0: there is none of this kind. */
static int code_view_picture(struct code_view *v, const json_t *o, const struct kind *k, struct err *err)
{
    _cleanup_buf_ struct buf bytes = {0}, drawn = {0};
    const json_t *data = json_object_get(o, k->key);
    if (!json_is_string(data) || !code_view_bytes(data, k->base64, &bytes))
        return 0;
    if (v->pictures == PICTURES_MAX || bytes.n > PICTURE_BYTES_MAX - v->picture_bytes)
        return code_view_leave_out(v, err) < 0 ? -1 : 1;
    v->pictures++;
    v->picture_bytes += bytes.n;
    if (k->drawn && v->images != CODE_IMAGES_FILES &&
        code_image_add(v->images, bytes.p, bytes.n, strcmp(k->key, "png") == 0, &drawn))
        return code_view_write(STDOUT_FILENO, drawn.p, drawn.n, err) < 0 ? -1 : 1;
    return code_view_save(v, &bytes, k->extension, err) < 0 ? -1 : 1;
}

static int code_view_result(struct code_view *v, const json_t *o, struct err *err)
{
    const char *text = field_text(o, "text");
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        int r = code_view_picture(v, o, &kinds[i], err);
        if (r != 0)
            return r < 0 ? -1 : 0;
    }
    if (!text[0])
        text = field_text(o, "markdown");
    if (!text[0] && json_object_get(o, "html"))
        text = "[a result in HTML; --json shows it]";
    if (text[0] && (code_view_write(STDOUT_FILENO, text, strlen(text), err) < 0 ||
                    (text[strlen(text) - 1] != '\n' && code_view_write(STDOUT_FILENO, "\n", 1, err) < 0)))
        return -1;
    return 0;
}

static int code_view_error(struct code_view *v, const json_t *o, struct err *err)
{
    _cleanup_buf_ struct buf out = {0};
    const char *trace = field_text(o, "traceback"), *name = field_text(o, "name"), *value = field_text(o, "value");
    v->failed = true;
    buf_adds(&out, trace);
    if (!trace[0] || !strstr(trace, name))
        buf_addf(&out, "%s%s: %s", trace[0] ? "\n" : "", name, value);
    buf_addc(&out, '\n');
    return code_view_write(STDERR_FILENO, out.p, out.n, err);
}

int code_view_line(struct code_view *v, const char *line, size_t n, struct err *err)
{
    json_t *o = json_loadb(line, n, JSON_ALLOW_NUL, NULL);
    const char *type = field_text(o, "type");
    const json_t *text = json_object_get(o, "text");
    int r = 0;
    v->ended |= strcmp(type, "end_of_execution") == 0;
    if (v->json) {
        v->failed |= strcmp(type, "error") == 0;
        r = strcmp(type, "keepalive") == 0                                                                         ? 0
            : code_view_write(STDOUT_FILENO, line, n, err) < 0 || code_view_write(STDOUT_FILENO, "\n", 1, err) < 0 ? -1
                                                                                                                   : 0;
    } else if (strcmp(type, "stdout") == 0 && json_is_string(text)) {
        r = code_view_write(STDOUT_FILENO, json_string_value(text), json_string_length(text), err);
    } else if (strcmp(type, "stderr") == 0 && json_is_string(text)) {
        r = code_view_write(STDERR_FILENO, json_string_value(text), json_string_length(text), err);
    } else if (strcmp(type, "result") == 0) {
        r = code_view_result(v, o, err);
    } else if (strcmp(type, "error") == 0) {
        r = code_view_error(v, o, err);
    }
    json_decref(o);
    return r;
}
