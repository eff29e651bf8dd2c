/* tool-files.c - files of a sandbox: read, write, replace text exactly, list. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/mcp/mcp.h"
#include "base/base64.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "peers/files.h"

enum { READ_STANDARD = 64 << 10, EDITS_MAX = 100 };

/* --- reading -------------------------------------------------------------------------------------------------------- */

struct slurp {
    struct mcp_call *k;
    void (*then)(struct mcp_call *k, const struct buf *bytes, bool whole);
};

static void mcp_slurp_on_opened(void *arg, const struct link_status *st, int got, const struct file_info *info)
{
    struct slurp w = *(struct slurp *)arg;
    _cleanup_close_ int fd = got;
    _cleanup_buf_ struct buf bytes = {0};
    struct stat s;
    (void)info;
    free(arg);
    if (st->code != LINK_OK) {
        mcp_fail(w.k, "the file cannot be read: %s", st->text);
        return;
    }
    if (fstat(fd, &s) < 0 || !S_ISREG(s.st_mode)) {
        mcp_fail(w.k, "this is no regular file; `run` can read it, e.g. with cat");
        return;
    }
    size_t from = (size_t)mcp_arg_int(w.k, "offset", 0);
    buf_reserve(&bytes, MCP_FILE_MAX + 1);
    while (bytes.n <= MCP_FILE_MAX) {
        char part[32 << 10];
        ssize_t n = pread(fd, part, sizeof part, (off_t)(from + bytes.n));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        buf_add(&bytes, part, (size_t)n);
    }
    bool whole = bytes.n <= MCP_FILE_MAX;
    if (!whole)
        bytes.n = MCP_FILE_MAX;
    w.then(w.k, &bytes, whole);
}

void mcp_slurp(struct mcp_call *k, struct sandbox *b, const char *path,
               void (*then)(struct mcp_call *k, const struct buf *bytes, bool whole))
{
    struct slurp *w = xcalloc(1, sizeof *w);
    *w = (struct slurp){k, then};
    (void)files_open(k->api->peers->links, b->id, NULL, path, mcp_slurp_on_opened, w);
}

static void mcp_read_file_on_bytes(struct mcp_call *k, const struct buf *bytes, bool whole)
{
    size_t limit = (size_t)mcp_arg_int(k, "limit", READ_STANDARD), from = (size_t)mcp_arg_int(k, "offset", 0);
    size_t n = bytes->n < limit ? bytes->n : limit;
    bool more = n < bytes->n || !whole;
    _cleanup_buf_ struct buf part = {0}, coded = {0};
    while (more && n > 0 && ((unsigned char)bytes->p[n] & 0xc0) == 0x80 && limit - n < 4)
        n--; /* no half of a character */
    buf_add(&part, bytes->p, n);
    struct json *j = mcp_data(k);
    bool text = !memchr(buf_str(&part), 0, part.n) && json_may_hold(buf_str(&part));
    json_str(j, "path", mcp_arg(k, "path"));
    json_str(j, "encoding", text ? "utf-8" : "base64");
    json_u64(j, "offset", from);
    json_u64(j, "bytes", n);
    json_bool(j, "truncated", more);
    if (more)
        json_u64(j, "next_offset", from + n);
    if (!text)
        base64_encode(&coded, part.p, part.n);
    mcp_done(k, text ? buf_str(&part) : buf_str(&coded));
}

static void mcp_read_file_in(struct mcp_call *k, struct sandbox *b)
{
    mcp_slurp(k, b, mcp_arg(k, "path"), mcp_read_file_on_bytes);
}

void mcp_read_file(struct mcp_call *k)
{
    struct sandbox *b = mcp_sandbox(k);
    if (b)
        mcp_awake(k, b, mcp_read_file_in);
}

/* --- writing -------------------------------------------------------------------------------------------------------- */

/* Bytes on their way into a file; the call's `own`. */
struct writing {
    struct buf bytes;
    struct file_sink *sink;
    size_t replaced; /* edits */
};

static void mcp_writing_free(void *own)
{
    struct writing *w = own;
    if (w->sink)
        sink_free(w->sink);
    buf_done(&w->bytes);
    free(w);
}

static void mcp_write_on_finished(void *arg, const struct link_status *st)
{
    struct mcp_call *k = arg;
    const struct writing *w = k->own;
    if (st->code != LINK_OK) {
        mcp_fail(k, "the file was not written: %s", st->text);
        return;
    }
    struct json *j = mcp_data(k);
    json_str(j, "path", mcp_arg(k, "path"));
    json_u64(j, "bytes", w->bytes.n);
    if (w->replaced)
        json_u64(j, "replaced", w->replaced);
    mcp_done(k, NULL);
}

static void mcp_write_on_taken(void *arg, const struct link_status *st)
{
    struct mcp_call *k = arg;
    struct writing *w = k->own;
    if (st->code != LINK_OK)
        mcp_fail(k, "the file was not written: %s", st->text);
    else
        sink_finish(w->sink, mcp_write_on_finished, k);
}

static void mcp_write_on_created(void *arg, const struct link_status *st, struct file_sink *sink,
                                 const struct file_info *info)
{
    struct mcp_call *k = arg;
    struct writing *w = k->own;
    (void)info;
    w->sink = sink;
    if (st->code != LINK_OK)
        mcp_fail(k, "the file was not written: %s", st->text);
    else if (w->bytes.n)
        sink_write(sink, w->bytes.p, w->bytes.n, mcp_write_on_taken, k);
    else
        sink_finish(sink, mcp_write_on_finished, k);
}

static struct writing *mcp_writing_new(struct mcp_call *k)
{
    k->own = xcalloc(1, sizeof(struct writing));
    k->own_done = mcp_writing_free;
    return k->own;
}

static void mcp_write_in(struct mcp_call *k, struct sandbox *b)
{
    struct writing *w = mcp_writing_new(k);
    const char *text = mcp_arg(k, "content");
    bool coded = mcp_arg_bool(k, "base64");
    if (!coded)
        buf_adds(&w->bytes, text);
    if (coded && !base64_decode(&w->bytes, text, strlen(text)))
        mcp_fail(k, "write_file: with base64 true, 'content' must be base64");
    else
        (void)files_create(k->api->peers->links, b->id, NULL, mcp_arg(k, "path"), NULL, 0, mcp_write_on_created, k);
}

void mcp_write_file(struct mcp_call *k)
{
    struct sandbox *b = mcp_sandbox(k);
    if (b)
        mcp_awake(k, b, mcp_write_in);
}

/* --- editing -------------------------------------------------------------------------------------------------------- */

static size_t mcp_edit_count(const struct buf *in, const char *old)
{
    size_t n = 0;
    for (const char *p = buf_str(in); (p = strstr(p, old)); p += strlen(old))
        n++;
    return n;
}

static void mcp_edit_replace(struct buf *in, const char *old, const char *new)
{
    struct buf out = {0};
    const char *p = buf_str(in), *e;
    for (; (e = strstr(p, old)); p = e + strlen(old)) {
        buf_add(&out, p, (size_t)(e - p));
        buf_adds(&out, new);
    }
    buf_adds(&out, p);
    buf_done(in);
    *in = out;
}

/* Where the first line of a text that does not match occurs, so that the model sees what differs. */
static void mcp_edit_add_hint(struct json *j, const struct buf *in, const char *old)
{
    old += strspn(old, " \t\n");
    _cleanup_free_ char *line = xstrndup(old, strcspn(old, "\n"));
    const char *at = *line ? strstr(buf_str(in), line) : NULL;
    size_t number = 1;
    for (const char *p = buf_str(in); at && p < at; p++)
        number += *p == '\n';
    if (at)
        json_u64(j, "first_line_found_at", number);
    json_str(j, "hint",
             at ? "the first line of old_text is at this line; what follows, or the white space before it, differs: "
                  "read it again"
                : "not even the first line of old_text is in the file: read it again");
}

/* Applies one edit; false: it does not fit, and the report says why. */
static bool mcp_edit_apply(struct json *j, struct buf *in, size_t i, json_t *edit, size_t *replaced)
{
    const char *old = json_string_value(json_object_get(edit, "old_text")),
               *new = json_string_value(json_object_get(edit, "new_text"));
    bool all = json_is_true(json_object_get(edit, "all"));
    size_t n = old && *old && new ? mcp_edit_count(in, old) : 0;
    bool fits = n == 1 || (n > 1 && all);
    /* One byte that occurs a million times can become gigabytes, so the size is known before anything is copied. */
    bool large = fits && in->n + n * strlen(new) > MCP_BODY_MAX + n * strlen(old);
    if (fits && !large) {
        mcp_edit_replace(in, old, new);
        *replaced += n;
        return true;
    }
    json_obj(j, NULL);
    json_u64(j, "edit", i);
    json_u64(j, "matches", n);
    if (!old || !*old || !new)
        json_str(j, "hint", "an edit has the strings old_text, not empty, and new_text");
    else if (large)
        json_str(j, "hint", "the file would become larger than 4 MiB; use run");
    else if (n)
        json_str(j, "hint", "old_text must occur once: add lines around it, or set all to true");
    else
        mcp_edit_add_hint(j, in, old);
    json_end_obj(j);
    return false;
}

static void mcp_edit_on_bytes(struct mcp_call *k, const struct buf *bytes, bool whole)
{
    json_t *edits = json_object_get(k->args, "edits"), *edit;
    struct writing *w = mcp_writing_new(k);
    size_t i, failed = 0;
    if (!whole || memchr(buf_str(bytes), 0, bytes->n)) {
        mcp_fail(k, "edit_file: the file is %s; use run", whole ? "binary" : "larger than 1 MiB");
        return;
    }
    buf_add(&w->bytes, bytes->p, bytes->n);
    struct json *j = mcp_data(k);
    json_arr(j, "not_matched");
    json_array_foreach(edits, i, edit) failed += !mcp_edit_apply(j, &w->bytes, i, edit, &w->replaced);
    json_end_arr(j);
    struct sandbox *b = mcp_sandbox_of(k, k->used);
    if (failed || !b) {
        json_str(j, "path", mcp_arg(k, "path"));
        json_u64(j, "replaced", 0);
        _cleanup_buf_ struct buf text = {0};
        buf_addf(&text, "nothing was written: %s\n%s}",
                 failed ? "these edits do not fit exactly" : "the sandbox has ended", buf_str(&k->data));
        mcp_done_with(k, json_pack("[{s:s,s:o}]", "type", "text", "text", mcp_text(text.p, text.n)), true);
        return;
    }
    (void)files_create(k->api->peers->links, b->id, NULL, mcp_arg(k, "path"), NULL, 0, mcp_write_on_created, k);
}

static void mcp_edit_in(struct mcp_call *k, struct sandbox *b)
{
    mcp_slurp(k, b, mcp_arg(k, "path"), mcp_edit_on_bytes);
}

void mcp_edit_file(struct mcp_call *k)
{
    size_t n = json_array_size(json_object_get(k->args, "edits"));
    if (n == 0 || n > EDITS_MAX) {
        mcp_fail(k, "edit_file: 'edits' must have 1 to %d entries", EDITS_MAX);
        return;
    }
    struct sandbox *b = mcp_sandbox(k);
    if (b)
        mcp_awake(k, b, mcp_edit_in);
}

/* --- listing -------------------------------------------------------------------------------------------------------- */

static void mcp_list_on_listed(void *arg, const struct link_status *st, const struct file_info *v, size_t n)
{
    static const char *const types[] = {"other", "file", "directory", "link"};
    struct mcp_call *k = arg;
    if (st->code != LINK_OK) {
        mcp_fail(k, "the directory cannot be listed: %s", st->text);
        return;
    }
    struct json *j = mcp_data(k);
    json_arr(j, "entries");
    for (size_t i = 0; i < n && i < MCP_LIST_MAX; i++) {
        json_obj(j, NULL);
        json_str(j, "path", v[i].path);
        json_str(j, "type", types[v[i].type <= FILE_SYMLINK ? v[i].type : 0]);
        json_u64(j, "bytes", v[i].size);
        json_end_obj(j);
    }
    json_end_arr(j);
    json_u64(j, "total", n);
    json_bool(j, "truncated", n > MCP_LIST_MAX);
    mcp_done(k, NULL);
}

static void mcp_list_in(struct mcp_call *k, struct sandbox *b)
{
    const char *path = mcp_arg(k, "path");
    (void)files_list(k->api->peers->links, b->id, NULL, path ? path : "", (unsigned)mcp_arg_int(k, "depth", 1),
                     mcp_list_on_listed, k);
}

void mcp_list_files(struct mcp_call *k)
{
    struct sandbox *b = mcp_sandbox(k);
    if (b)
        mcp_awake(k, b, mcp_list_in);
}
