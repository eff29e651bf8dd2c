/* Fuzz driver for multipart bodies: however the bytes are cut, the same parts, bytes and errors come out. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "http/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int begin(void *arg, const struct multipart_part *part, struct err *err)
{
    (void)err;
    buf_addf(arg, "\n[%s|%s|%s", part->name, part->filename ? part->filename : "-",
             part->content_type ? part->content_type : "-");
    for (size_t i = 0; i < part->fields.n; i++)
        buf_addf(arg, "|%s=%s", part->fields.v[i].name, part->fields.v[i].value);
    buf_addc(arg, ']');
    return 0;
}
static int content(void *arg, const void *p, size_t n, struct err *err)
{
    (void)err;
    if (n == 0)
        abort();
    buf_add(arg, p, n);
    return 0;
}
static int part_end(void *arg, struct err *err)
{
    (void)err;
    buf_adds(arg, "\n/");
    return 0;
}
static int end(void *arg, struct err *err)
{
    (void)err;
    buf_adds(arg, "\nend");
    return 0;
}

static void parse(const char *type, const char *p, size_t n, size_t step, struct buf *seen)
{
    static const struct multipart_events events = {begin, content, part_end, end};
    struct multipart *m;
    struct err err;
    int status = 0;
    if (multipart_new(type, &events, seen, &m, &err) < 0) {
        buf_adds(seen, err.msg);
        return;
    }
    for (size_t i = 0; i < n && status == 0; i += step)
        status = multipart_feed(m, p + i, n - i < step ? n - i : step, &err);
    if (status == 0)
        status = multipart_finish(m, &err);
    if (status < 0)
        buf_addf(seen, "\nerror: %s", err.msg);
    multipart_free(m);
}

/* The first line is the content type, its first byte the size of the pieces. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *line = memchr(data, '\n', size);
    struct buf type = {0}, whole = {0}, pieces = {0};
    if (!line || line == data)
        return 0;
    buf_add(&type, data + 1, (size_t)(line - data - 1));
    const char *body = (const char *)line + 1;
    size_t n = size - (size_t)(line + 1 - data);
    parse(buf_str(&type), body, n, n ? n : 1, &whole);
    parse(buf_str(&type), body, n, data[0] % 64 + 1U, &pieces);
    if (whole.n != pieces.n || (whole.n > 0 && memcmp(whole.p, pieces.p, whole.n) != 0))
        abort();
    buf_done(&type);
    buf_done(&whole);
    buf_done(&pieces);
    return 0;
}
