/* template-import.c - sends an image to the node from a file, a directory or standard input, or has the node fetch it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fields.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/path.h"
#include "base/text.h"
#include "cli/client/progress.h"
#include "cli/client/template.h"
#include "cli/files/context.h"
#include "http/url.h"

enum { BAR = 30, LINE_BYTES_MAX = 1 << 16, PASSWORD_MAX = 4096 };

int template_temp(struct err *err)
{
    const char *dir = getenv("TMPDIR");
    dir = dir && *dir ? dir : "/tmp";
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
    _cleanup_free_ char *path = xasprintf("%s/hutch-XXXXXX", dir);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "cannot make a temporary file in %s", dir);
    (void)unlink(path);
    return fd;
}

char *template_path(const char *route, const char *name)
{
    _cleanup_buf_ struct buf path = {0};
    const char *colon = strrchr(name, ':');
    if (colon && strchr(colon, '/'))
        colon = NULL;
    buf_addf(&path, "%s?name=", route);
    url_encode(&path, name, colon ? (size_t)(colon - name) : strlen(name), "");
    if (colon) {
        buf_adds(&path, "&tag=");
        url_encode(&path, colon + 1, strlen(colon + 1), "");
    }
    return xstrdup(buf_str(&path));
}

/* --- what the node says meanwhile --------------------------------------------------------------------------------- */

static void import_show_progress(const json_t *p, char last[LINE_BYTES_MAX / 64])
{
    uint64_t done = (uint64_t)json_integer_value(json_object_get(p, "done")),
             total = (uint64_t)json_integer_value(json_object_get(p, "total"));
    const char *text = field_text(p, "text");
    _cleanup_buf_ struct buf line = {0}, safe = {0};
    text_add_safe(&safe, text, 60);
    if (!isatty(STDERR_FILENO)) {
        if (safe.n && strcmp(last, buf_str(&safe)) != 0)
            (void)fprintf(stderr, "%s\n", buf_str(&safe));
        (void)snprintf(last, LINE_BYTES_MAX / 64, "%s", buf_str(&safe));
        return;
    }
    if (total) {
        unsigned full = (unsigned)(done >= total ? BAR : done * BAR / total);
        buf_addc(&line, '[');
        for (unsigned i = 0; i < BAR; i++)
            buf_addc(&line, i < full ? '#' : '.');
        buf_adds(&line, "] ");
    }
    num_add_size(&line, done);
    if (total) {
        buf_adds(&line, " of ");
        num_add_size(&line, total);
    }
    (void)fprintf(stderr, "\r%s  %s\033[K", buf_str(&line), buf_str(&safe));
}

/* Handles one line of the answer. 1: it was the last one. */
static int import_take_line(const struct node_call *call, const char *text, size_t n, char *last, struct err *err)
{
    json_error_t bad;
    _cleanup_json_ json_t *j = json_loadb(text, n, 0, &bad);
    const json_t *t = json_object_get(j, "template"), *e = json_object_get(j, "error");
    if (json_object_get(j, "progress")) {
        import_show_progress(json_object_get(j, "progress"), last);
        return 0;
    }
    if (isatty(STDERR_FILENO))
        (void)fputs("\r\033[K", stderr);
    if (e)
        return err_set(err, ERR_HOST, 0, "%s", field_text(e, "message"));
    if (!t)
        return err_set(err, ERR_HOST, 0, "the node's answer is not what was expected");
    if (call->json)
        node_print_json(t);
    else
        (void)printf("%s:%s\n", field_text(t, "name"), field_text(t, "tag"));
    return 1;
}

static int import_follow(const struct node_call *call, struct blocking *s, struct err *err)
{
    _cleanup_buf_ struct buf pending = {0};
    char room[4096], last[LINE_BYTES_MAX / 64] = "";
    ssize_t n;
    while ((n = api_read(s, room, sizeof room, -1, NULL, err)) > 0) {
        buf_add(&pending, room, (size_t)n);
        const char *nl;
        while (pending.n && (nl = memchr(pending.p, '\n', pending.n))) {
            size_t len = (size_t)(nl - pending.p);
            int rc = import_take_line(call, pending.p, len, last, err);
            if (rc)
                return rc < 0 ? -1 : 0;
            pending.n -= len + 1;
            memmove(pending.p, pending.p + len + 1, pending.n);
        }
        if (pending.n > LINE_BYTES_MAX)
            return err_set(err, ERR_HOST, 0, "the node's answer is not what was expected");
    }
    return n < 0 ? -1 : err_set(err, ERR_HOST, 0, "the node's answer ended too early");
}

int template_follow(const struct node_call *call, const char *path, const char *type, int fd, uint64_t length,
                    const char *body, struct err *err)
{
    struct api_request q = {.method = "POST",
                            .path = path,
                            .type = type,
                            .body = body,
                            .length = body ? strlen(body) : length,
                            .body_fd = body ? -1 : fd,
                            .progress = progress_bytes,
                            .progress_what = "sent"};
    struct blocking s;
    if (api_send(&call->api, &q, &s, err) < 0)
        return -1;
    int rc = s.answer.status >= 400 ? api_refused(&s, err) : import_follow(call, &s, err);
    blocking_close(&s);
    return rc;
}

/* --- what to import ----------------------------------------------------------------------------------------------- */

static int import_ref(const struct node_call *call, const struct template_options *o, const char *ref, struct err *err)
{
    char password[PASSWORD_MAX] = "";
    _cleanup_json_ json_t *body = json_pack("{s:s}", "image", ref);
    if (o->tag) {
        const char *colon = strrchr(o->tag, ':');
        (void)json_object_set_new(body, "name",
                                  json_stringn(o->tag, colon ? (size_t)(colon - o->tag) : strlen(o->tag)));
        if (colon)
            (void)json_object_set_new(body, "tag", json_string(colon + 1));
    }
    if (o->username || o->password_stdin) {
        if (!o->username || !o->password_stdin)
            return err_set(err, ERR_USAGE, 0, "template: --username and --password-stdin belong together");
        if (!fgets(password, sizeof password, stdin))
            return err_set(err, ERR_USAGE, 0, "template: no password on standard input");
        password[strcspn(password, "\r\n")] = '\0';
        (void)json_object_set_new(body, "username", json_string(o->username));
        (void)json_object_set_new(body, "password", json_string(password));
        explicit_bzero(password, sizeof password);
    }
    char *text = json_dumps(body, JSON_COMPACT);
    int rc = text ? template_follow(call, "/v1/templates/import", "application/json", -1, 0, text, err)
                  : err_set(err, ERR_USAGE, 0, "template: '%.100s' is not UTF-8", ref);
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
    return rc;
}

/* The default name of a template: the file's, without its suffixes. */
static char *import_default_name(const char *path)
{
    _cleanup_free_ char *clean = path_clean("/", path);
    const char *name = path_name(clean);
    char *ret = xstrndup(name, strcspn(name, "."));
    for (char *p = ret; *p; p++)
        if (*p >= 'A' && *p <= 'Z')
            *p = (char)(*p - 'A' + 'a');
    return ret;
}

static int import_send_file(const struct node_call *call, const char *route, const char *name, int fd, struct err *err)
{
    struct stat st;
    _cleanup_free_ char *path = template_path(route, name);
    if (fstat(fd, &st) < 0)
        return err_set(err, ERR_USAGE, errno, "cannot stat the file to send");
    return template_follow(call, path, "application/octet-stream", fd,
                           S_ISREG(st.st_mode) ? (uint64_t)st.st_size : HTTP_UNKNOWN, NULL, err);
}

static int import_directory(const struct node_call *call, const char *name, int dir, const char *shown, struct err *err)
{
    if (faccessat(dir, "oci-layout", R_OK, 0) < 0)
        return err_set(err, ERR_USAGE, 0,
                       "%s has no file oci-layout, so it is not an image; `skopeo copy ... oci:DIR` makes one", shown);
    _cleanup_close_ int fd = template_temp(err);
    if (fd < 0 || context_tar_all(dir, fd, err) < 0)
        return -1;
    if (lseek(fd, 0, SEEK_SET) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot read the archive again");
    return import_send_file(call, "/v1/templates/import", name, fd, err);
}

int template_import(const struct node_call *call, const struct template_options *o, struct err *err)
{
    const char *what = call->args[0];
    if (strcmp(what, "-") == 0)
        return o->tag
                   ? import_send_file(call, "/v1/templates/import", o->tag, STDIN_FILENO, err)
                   : err_set(err, ERR_USAGE, 0, "template: an image from standard input needs a name: -t NAME[:TAG]");
    _cleanup_close_ int fd = open(what, O_RDONLY | O_CLOEXEC);
    bool path = what[0] == '/' || what[0] == '.';
    if (fd < 0 && (errno != ENOENT || path))
        return err_set(err, ERR_USAGE, errno, "cannot open %s", what);
    if (fd < 0)
        return import_ref(call, o, what, err);
    struct stat st;
    _cleanup_free_ char *name = o->tag ? xstrdup(o->tag) : import_default_name(what);
    if (fstat(fd, &st) < 0)
        return err_set(err, ERR_USAGE, errno, "cannot look at %s", what);
    if (S_ISDIR(st.st_mode))
        return import_directory(call, name, fd, what, err);
    return import_send_file(call, "/v1/templates/import", name, fd, err);
}

int template_restore(const struct node_call *call, const struct template_options *o, struct err *err)
{
    const char *what = call->args[0];
    if (!o->tag)
        return err_set(err, ERR_USAGE, 0, "template: say what it is to be called: -t NAME[:TAG]");
    if (strcmp(what, "-") == 0)
        return import_send_file(call, "/v1/templates/restore", o->tag, STDIN_FILENO, err);
    _cleanup_close_ int fd = open(what, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_USAGE, errno, "cannot open %s", what);
    return import_send_file(call, "/v1/templates/restore", o->tag, fd, err);
}
