/* files.c - files of a sandbox, one at a time: list, look, read, make, move, change, remove; search and replace. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "api/daytona/daytona.h"
#include "api/reply.h"
#include "api/send-file.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "peers/files.h"

enum { DEPTH_MAX = 32, REPLACE_MAX = 1000 };

/* --- what the links answer ------------------------------------------------------------------------------------------ */

struct looking {
    struct api_wait wait;
    char *path; /* owned */
};

static struct looking *daytona_files_wait(struct api_call *c, const char *path)
{
    struct looking *w = api_wait_for(c->req, sizeof *w);
    w->path = xstrdup(path);
    return w;
}

/* The request, or NULL if it has been answered with the failure or its client left. */
static struct http_req *daytona_files_over(void *arg, const struct link_status *st)
{
    _cleanup_free_ char *path = ((struct looking *)arg)->path;
    struct http_req *r = api_wait_over(arg);
    if (r && st->code != LINK_OK) {
        daytona_link_error(r, st, path);
        return NULL;
    }
    return r;
}

static void daytona_files_add(struct json *j, const struct file_info *f)
{
    char when[REPLY_TIME_MAX], mode[11] = "-rwxrwxrwx", octal[8];
    mode[0] = f->type == FILE_DIRECTORY ? 'd' : f->target || f->type == FILE_SYMLINK ? 'l' : '-';
    for (unsigned i = 0; i < 9; i++)
        if (!(f->mode & (0400u >> i)))
            mode[i + 1] = '-';
    (void)snprintf(octal, sizeof octal, "%04o", (unsigned)f->mode & 07777u);
    reply_time((uint64_t)f->mtime.tv_sec * 1000 + (uint64_t)f->mtime.tv_nsec / 1000000, when);
    json_obj(j, NULL);
    json_str(j, "name", f->name);
    json_str(j, "path", f->path);
    json_bool(j, "isDir", f->type == FILE_DIRECTORY);
    json_u64(j, "size", f->size);
    json_str(j, "modTime", when);
    json_str(j, "mode", mode);
    json_str(j, "permissions", octal);
    json_str(j, "owner", f->owner ? f->owner : "");
    json_str(j, "group", f->group ? f->group : "");
    json_end_obj(j);
}

static void daytona_files_on_listed(void *arg, const struct link_status *st, const struct file_info *v, size_t n)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    struct http_req *r = daytona_files_over(arg, st);
    if (!r)
        return;
    struct err err;
    if (reply_may_list(n, &err) < 0) {
        daytona_error(r, 429, NULL, "%s", err.msg);
        return;
    }
    json_start(&j, &out);
    json_arr(&j, NULL);
    for (size_t i = 0; i < n; i++)
        daytona_files_add(&j, &v[i]);
    json_end_arr(&j);
    reply_json(r, 200, &out);
}

static void daytona_files_in(struct api_call *c, struct sandbox *b)
{
    _cleanup_buf_ struct buf path = {0}, text = {0};
    uint64_t depth = 1;
    if (!daytona_query(c, "path", false, &path) || !daytona_query(c, "depth", false, &text))
        return;
    if (text.n && (!num_u64(buf_str(&text), &depth) || depth < 1 || depth > DEPTH_MAX)) {
        daytona_error(c->req, 400, NULL, "query parameter 'depth' must be a number from 1 to %d", DEPTH_MAX);
        return;
    }
    (void)files_list(c->api->peers->links, b->id, NULL, buf_str(&path), (unsigned)depth, daytona_files_on_listed,
                     daytona_files_wait(c, buf_str(&path)));
}

static void daytona_files_on_info(void *arg, const struct link_status *st, const struct file_info *info)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    struct http_req *r = daytona_files_over(arg, st);
    if (!r)
        return;
    json_start(&j, &out);
    daytona_files_add(&j, info);
    reply_json(r, 200, &out);
}

static void daytona_info_in(struct api_call *c, struct sandbox *b)
{
    _cleanup_buf_ struct buf path = {0};
    if (daytona_query(c, "path", true, &path))
        (void)files_stat(c->api->peers->links, b->id, NULL, buf_str(&path), daytona_files_on_info,
                         daytona_files_wait(c, buf_str(&path)));
}

static void daytona_files_on_opened(void *arg, const struct link_status *st, int fd, const struct file_info *info)
{
    struct http_req *r = daytona_files_over(arg, st);
    if (!r) {
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    const struct send_file_facts facts = {.size = info->size, .mtime = info->mtime.tv_sec};
    api_send_file(r, fd, info->name, info->sized ? &facts : NULL);
}

static void daytona_file_download_in(struct api_call *c, struct sandbox *b)
{
    _cleanup_buf_ struct buf path = {0};
    if (daytona_query(c, "path", true, &path))
        (void)files_open(c->api->peers->links, b->id, NULL, buf_str(&path), daytona_files_on_opened,
                         daytona_files_wait(c, buf_str(&path)));
}

void daytona_files(struct api_call *c) { daytona_toolbox(c, daytona_files_in); }
void daytona_file_info(struct api_call *c) { daytona_toolbox(c, daytona_info_in); }
void daytona_file_download(struct api_call *c) { daytona_toolbox(c, daytona_file_download_in); }

/* --- what scripts do ------------------------------------------------------------------------------------------------ */

/* $1 is a path. Clients look for these words. */
#define MUST_EXIST                \
    DAYTONA_PATHS "path \"$1\"\n" \
                  "[ -e \"$p\" ] || [ -L \"$p\" ] || { echo \"FILE_NOT_FOUND file not found: $1\" >&2; exit 1; }\n"
#define MUST_READ MUST_EXIST "[ -r \"$p\" ] || { echo \"FILE_ACCESS_DENIED permission denied: $1\" >&2; exit 1; }\n"
static const char script_folder[] =
    DAYTONA_PATHS "path \"$1\"; mkdir -p \"$p\" || { echo \"FILE_ACCESS_DENIED permission denied: $1\" >&2; exit 1; }\n"
                  "[ -z \"$2\" ] || chmod -- \"$2\" \"$p\"\n";
static const char script_move[] = MUST_EXIST "from=$p; path \"$2\"\n"
                                             "mkdir -p \"$(dirname \"$p\")\" && mv \"$from\" \"$p\"\n";
static const char script_remove[] =
    MUST_EXIST "if [ -d \"$p\" ] && [ ! -L \"$p\" ] && [ \"$2\" != true ]; then rmdir \"$p\" 2>/dev/null ||\n"
               "{ echo \"is a directory: $1; set recursive to remove it with what is in it\" >&2; exit 1; }; else rm "
               "-rf \"$p\"; fi\n"
               "[ ! -e \"$p\" ] || { echo \"FILE_ACCESS_DENIED permission denied: $1\" >&2; exit 1; }\n";
static const char script_permissions[] = MUST_EXIST "[ -z \"$2$3\" ] || chown -- \"$2${3:+:$3}\" \"$p\" 2>/dev/null || "
                                                    "sudo -n chown -- \"$2${3:+:$3}\" \"$p\" || exit 1\n"
                                                    "[ -z \"$4\" ] || chmod -- \"$4\" \"$p\"\n";
/* What is below and cannot be read is left out. */
static const char script_find[] = MUST_READ "grep -rnIFHsZ -e \"$2\" \"$p\"; [ $? -le 2 ]\n";
static const char script_search[] = MUST_READ "find \"$p\" -name \"$2\" -print0 2>/dev/null; [ $? -le 1 ]\n";

static void daytona_answer_done(struct http_req *r, const struct daytona_ran *ran, unsigned status)
{
    if (!daytona_script_failed(r, ran))
        reply_empty(r, status);
}
static void daytona_answer_200(struct http_req *r, const struct daytona_ran *ran) { daytona_answer_done(r, ran, 200); }
static void daytona_answer_201(struct http_req *r, const struct daytona_ran *ran) { daytona_answer_done(r, ran, 201); }
static void daytona_answer_204(struct http_req *r, const struct daytona_ran *ran) { daytona_answer_done(r, ran, 204); }

/* Runs a script with these query parameters as $1, $2 ...; the first `required` of them must be there. */
static void daytona_files_script(struct api_call *c, struct sandbox *b, const char *script, const char *const *names,
                                 size_t required, daytona_ran_fn *then)
{
    enum { ARGS = 4 };
    struct buf v[ARGS] = {{0}};
    const char *args[ARGS + 1] = {NULL};
    bool good = true;
    for (size_t i = 0; good && i < ARGS && names[i]; i++) {
        good = daytona_query(c, names[i], i < required, &v[i]);
        args[i] = buf_str(&v[i]);
    }
    if (good)
        daytona_script(c, b, script, args, then);
    for (size_t i = 0; i < ARGS; i++)
        buf_done(&v[i]);
}

static void daytona_folder_in(struct api_call *c, struct sandbox *b)
{
    static const char *const names[] = {"path", "mode", NULL};
    daytona_files_script(c, b, script_folder, names, 1, daytona_answer_201);
}
static void daytona_move_in(struct api_call *c, struct sandbox *b)
{
    static const char *const names[] = {"source", "destination", NULL};
    daytona_files_script(c, b, script_move, names, 2, daytona_answer_200);
}
static void daytona_remove_in(struct api_call *c, struct sandbox *b)
{
    static const char *const names[] = {"path", "recursive", NULL};
    daytona_files_script(c, b, script_remove, names, 1, daytona_answer_204);
}
static void daytona_permissions_in(struct api_call *c, struct sandbox *b)
{
    static const char *const names[] = {"path", "owner", "group", "mode", NULL};
    daytona_files_script(c, b, script_permissions, names, 1, daytona_answer_200);
}

/* "FILE\0LINE:TEXT\n" ... */
static void daytona_find_answer(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (daytona_script_failed(r, ran))
        return;
    json_start(&j, &out);
    json_arr(&j, NULL);
    for (const char *p = buf_str(ran->out), *e = p + ran->out->n, *nul, *end; p < e; p = end + 1) {
        nul = memchr(p, 0, (size_t)(e - p));
        end = nul ? memchr(nul, '\n', (size_t)(e - nul)) : NULL;
        if (!end)
            break;
        size_t digits = strcspn(nul + 1, ":\n");
        _cleanup_free_ char *line = xstrndup(nul + 1, digits);
        const char *text = nul + 1 + digits + (nul[1 + digits] == ':');
        uint64_t number = 0;
        (void)num_u64(line, &number);
        json_obj(&j, NULL);
        json_str(&j, "file", p);
        json_u64(&j, "line", number);
        json_text(&j, "content", text, (size_t)(end - text));
        json_end_obj(&j);
    }
    json_end_arr(&j);
    reply_json(r, 200, &out);
}

static void daytona_search_answer(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    size_t at = 0;
    if (daytona_script_failed(r, ran))
        return;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_arr(&j, "files");
    for (const char *p; (p = daytona_next_text(ran->out, &at));)
        json_str(&j, NULL, p);
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(r, 200, &out);
}

static void daytona_find_in(struct api_call *c, struct sandbox *b)
{
    static const char *const names[] = {"path", "pattern", NULL};
    daytona_files_script(c, b, script_find, names, 2, daytona_find_answer);
}
static void daytona_search_in(struct api_call *c, struct sandbox *b)
{
    static const char *const names[] = {"path", "pattern", NULL};
    daytona_files_script(c, b, script_search, names, 2, daytona_search_answer);
}

void daytona_folder(struct api_call *c) { daytona_toolbox(c, daytona_folder_in); }
void daytona_file_move(struct api_call *c) { daytona_toolbox(c, daytona_move_in); }
void daytona_file_remove(struct api_call *c) { daytona_toolbox(c, daytona_remove_in); }
void daytona_permissions(struct api_call *c) { daytona_toolbox(c, daytona_permissions_in); }
void daytona_find(struct api_call *c) { daytona_toolbox(c, daytona_find_in); }
void daytona_search(struct api_call *c) { daytona_toolbox(c, daytona_search_in); }

/* --- replace -------------------------------------------------------------------------------------------------------- */

/* Literal text; one answer per file, "FILE\0ERROR\0" (the error is empty if it went well). */
static const char script_replace[] = DAYTONA_PATHS
    "P=$1 N=$2; export P N; shift 2\n"
    "command -v perl >/dev/null || { echo 'this template has no perl, which replaces text' >&2; exit 1; }\n"
    "for f in \"$@\"; do e=; path \"$f\"\n"
    "if [ ! -f \"$p\" ]; then e='file not found'; else e=$(perl -0777 -pi -e 's/\\Q$ENV{P}\\E/$ENV{N}/g' -- \"$p\" "
    "2>&1); fi\n"
    "printf '%s\\0%s\\0' \"$f\" \"$e\"; done\n";

static void daytona_replace_answer(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    size_t at = 0;
    if (daytona_script_failed(r, ran))
        return;
    json_start(&j, &out);
    json_arr(&j, NULL);
    for (const char *p, *why; (p = daytona_next_text(ran->out, &at)) && (why = daytona_next_text(ran->out, &at));) {
        json_obj(&j, NULL);
        json_str(&j, "file", p);
        json_bool(&j, "success", !*why);
        json_str(&j, "error", why);
        json_end_obj(&j);
    }
    json_end_arr(&j);
    reply_json(r, 200, &out);
}

static void daytona_replace_on_body(struct api_call *c, json_t *body)
{
    json_t *files = json_object_get(body, "files"), *v;
    const char *pattern = daytona_text(body, "pattern"), *new = daytona_text(body, "newValue");
    struct strv argv = {0};
    size_t i;
    struct sandbox *b = daytona_same_sandbox(c);
    if (!b)
        return;
    static const char *const head[] = {"/bin/sh", "-c", script_replace, "hutch"};
    for (i = 0; i < ARRAY_LEN(head); i++)
        strv_add(&argv, head[i]);
    strv_add(&argv, pattern ? pattern : "");
    strv_add(&argv, new ? new : "");
    bool good = pattern && *pattern && new &&json_array_size(files) > 0 && json_array_size(files) <= REPLACE_MAX;
    json_array_foreach(files, i, v)
    {
        good = good && json_is_string(v);
        strv_add(&argv, json_is_string(v) ? json_string_value(v) : "");
    }
    const struct daytona_run what = {.argv = (const char *const *)argv.v,
                                     .timeout_ms = (uint64_t)DAYTONA_SCRIPT_S * 1000};
    if (good)
        daytona_run(c, b, &what, daytona_replace_answer);
    else
        daytona_error(c->req, 400, NULL, "the body needs 'files' (1 to %d paths), 'pattern' (not empty) and 'newValue'",
                      REPLACE_MAX);
    strv_done(&argv);
}

static void daytona_replace_in(struct api_call *c, struct sandbox *b)
{
    (void)b;
    daytona_body(c, daytona_replace_on_body);
}
void daytona_replace(struct api_call *c) { daytona_toolbox(c, daytona_replace_in); }

/* --- facts ---------------------------------------------------------------------------------------------------------- */

static void daytona_dir_answer(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (daytona_script_failed(r, ran))
        return;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_text(&j, "dir", ran->out->p, ran->out->n);
    json_end_obj(&j);
    reply_json(r, 200, &out);
}

static void daytona_work_dir_in(struct api_call *c, struct sandbox *b)
{
    bool home = strstr(c->route->pattern, "home") != NULL;
    daytona_script(c, b, home ? "printf %s \"$HOME\"" : "printf %s \"$PWD\"", NULL, daytona_dir_answer);
}
void daytona_work_dir(struct api_call *c) { daytona_toolbox(c, daytona_work_dir_in); }

void daytona_version(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    buf_addf(&out, "{\"version\":\"hutch %s\"}", HUTCH_VERSION);
    reply_json(c->req, 200, &out);
}
