/* volume.c - hutch volume: directories that outlive sandboxes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"
#include "cli/client/progress.h"

struct said {
    const char *quota, *entries;
    bool force;
};

static void add_escaped(struct buf *out, const char *text, const char *keep)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~";
    for (; *text; text++)
        if (strchr(plain, *text) || strchr(keep, *text))
            buf_addc(out, *text);
        else
            buf_addf(out, "%%%02X", (unsigned char)*text);
}

static char *volume_api_path(const char *volume)
{
    _cleanup_buf_ struct buf out = {0};
    buf_adds(&out, "/v1/volumes/");
    add_escaped(&out, volume, "");
    return xstrdup(buf_str(&out));
}

static void print_size(const json_t *v, const char *none)
{
    _cleanup_buf_ struct buf size = {0};
    if (json_is_integer(v))
        num_add_size(&size, (uint64_t)json_integer_value(v));
    (void)printf("%s", size.n ? buf_str(&size) : none);
}

static long long volume_integer(const json_t *o, const char *key)
{
    return (long long)json_integer_value(json_object_get(o, key));
}

/* --- ls, create, inspect, rm --------------------------------------------------------------------------------------- */

static int volume_list(const struct node_call *call, struct err *err)
{
    _cleanup_json_ json_t *j = NULL;
    int rc = node_get(call, "/v1/volumes", &j, err);
    if (rc <= 0)
        return rc;
    struct node_table t = node_table_with("NAME", "ID", "QUOTA", "MOUNTS", "CREATED", NULL);
    const json_t *all = json_object_get(j, "volumes");
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *v = json_array_get(all, i), *bytes = json_object_get(json_object_get(v, "quota"), "bytes");
        _cleanup_buf_ struct buf size = {0};
        if (json_is_integer(bytes))
            num_add_size(&size, (uint64_t)json_integer_value(bytes));
        node_cell(&t, "%s", field_text(v, "name"));
        node_cell(&t, "%s", field_text(v, "id"));
        node_cell(&t, "%s", size.n ? buf_str(&size) : "-");
        node_cell(&t, "%lld", volume_integer(v, "mounts"));
        node_cell(&t, "%s", field_text(v, "createdAt"));
    }
    node_print_table(&t);
    return 0;
}

static int volume_make(const struct node_call *call, const struct said *s, struct err *err)
{
    _cleanup_buf_ struct buf body = {0};
    _cleanup_json_ json_t *answer = NULL;
    uint64_t bytes = 0, entries = 0;
    struct json j;
    if (s->quota && strcmp(s->quota, "none") != 0 && (!num_size(s->quota, &bytes) || bytes == 0))
        return err_set(err, ERR_USAGE, 0, "volume: --quota wants a size such as 10GiB, or none, not '%.40s'", s->quota);
    if (s->entries && (!num_u64(s->entries, &entries) || entries == 0))
        return err_set(err, ERR_USAGE, 0, "volume: --entries wants a number of files, not '%.40s'", s->entries);
    json_start(&j, &body);
    json_obj(&j, NULL);
    json_str(&j, "name", call->args[0]);
    if (s->quota || s->entries) {
        json_obj(&j, "quota");
        if (s->quota)
            json_u64(&j, "bytes", bytes);
        if (s->entries)
            json_u64(&j, "entries", entries);
        json_end_obj(&j);
    }
    json_end_obj(&j);
    if (api_call(&call->api, "POST", "/v1/volumes", buf_str(&body), &answer, NULL, err) < 0)
        return -1;
    if (call->json)
        node_print_json(answer);
    else
        (void)printf("%s\n", field_text(answer, "id"));
    return 0;
}

static int volume_change_quota(const struct node_call *call, const struct said *s, struct err *err)
{
    _cleanup_buf_ struct buf body = {0};
    _cleanup_json_ json_t *answer = NULL;
    _cleanup_free_ char *path = volume_api_path(call->args[0]);
    const char *size = call->nargs > 1 ? call->args[1] : NULL;
    uint64_t bytes = 0, entries = 0;
    struct json j;
    if (!size && !s->entries)
        return err_set(err, ERR_USAGE, 0, "volume: resize wants a size, --entries N or both");
    if (size && strcmp(size, "none") != 0 && (!num_size(size, &bytes) || bytes == 0))
        return err_set(err, ERR_USAGE, 0, "volume: resize wants a size such as 10GiB, or none, not '%.40s'", size);
    if (s->entries && (!num_u64(s->entries, &entries) || entries == 0))
        return err_set(err, ERR_USAGE, 0, "volume: --entries wants a number of files, not '%.40s'", s->entries);
    json_start(&j, &body);
    json_obj(&j, NULL);
    json_obj(&j, "quota");
    if (size)
        json_u64(&j, "bytes", bytes);
    if (s->entries)
        json_u64(&j, "entries", entries);
    json_end_obj(&j);
    json_end_obj(&j);
    if (api_call(&call->api, "PATCH", path, buf_str(&body), &answer, NULL, err) < 0)
        return -1;
    if (call->json)
        node_print_json(answer);
    return 0;
}

static int volume_inspect(const struct node_call *call, struct err *err)
{
    _cleanup_json_ json_t *v = NULL;
    _cleanup_free_ char *path = volume_api_path(call->args[0]);
    int rc = node_get(call, path, &v, err);
    if (rc <= 0)
        return rc;
    const json_t *used = json_object_get(v, "used"), *quota = json_object_get(v, "quota"),
                 *users = json_object_get(v, "mountedBy"), *entries = json_object_get(quota, "entries");
    (void)printf("name     %s\nid       %s\ncreated  %s\nused     ", field_text(v, "name"), field_text(v, "id"),
                 field_text(v, "createdAt"));
    print_size(json_object_get(used, "bytes"), "not known");
    (void)printf(" in %lld entries\nquota    ", volume_integer(used, "entries"));
    print_size(json_object_get(quota, "bytes"), "none");
    if (json_is_integer(entries))
        (void)printf(", %lld entries", (long long)json_integer_value(entries));
    (void)printf("\nenforced %s\nmounted  ", *field_text(v, "enforcedBy") ? field_text(v, "enforcedBy") : "not known");
    for (size_t i = 0; i < json_array_size(users); i++)
        (void)printf("%s%s", i ? " " : "", json_string_value(json_array_get(users, i)));
    (void)printf("%s\n", json_array_size(users) ? "" : "-");
    return 0;
}

static int volume_remove(const struct node_call *call, struct err *err)
{
    for (int i = 0; i < call->nargs; i++) {
        _cleanup_free_ char *path = volume_api_path(call->args[i]);
        if (api_call(&call->api, "DELETE", path, NULL, NULL, NULL, err) < 0)
            return -1;
    }
    return 0;
}

/* --- put, get ------------------------------------------------------------------------------------------------------ */

/* The content API goes by ids. */
static int content_path(const struct node_call *call, const char *inside, const char *more, char **ret, struct err *err)
{
    _cleanup_json_ json_t *v = NULL;
    _cleanup_free_ char *path = volume_api_path(call->args[0]);
    _cleanup_buf_ struct buf out = {0};
    if (api_call(&call->api, "GET", path, NULL, &v, NULL, err) < 0)
        return -1;
    buf_addf(&out, "/volumecontent/%s/file?path=", field_text(v, "id"));
    add_escaped(&out, inside, "/");
    buf_adds(&out, more);
    *ret = xstrdup(buf_str(&out));
    return 0;
}

static int volume_put_file(const struct node_call *call, const struct said *s, struct err *err)
{
    const char *from = call->args[1];
    _cleanup_free_ char *path = NULL;
    struct blocking answer;
    struct stat st;
    bool input = strcmp(from, "-") == 0;
    _cleanup_close_ int fd = input ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open(from, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(err, ERR_USAGE, errno, "cannot read %s", from);
    if (S_ISDIR(st.st_mode))
        return err_set(err, ERR_USAGE, 0, "%s is a directory; put one file at a time", from);
    if (content_path(call, call->args[2], s->force ? "&force=true" : "&force=false", &path, err) < 0)
        return -1;
    const struct api_request q = {.method = "PUT",
                                  .path = path,
                                  .type = "application/octet-stream",
                                  .length = S_ISREG(st.st_mode) && !input ? (uint64_t)st.st_size : HTTP_UNKNOWN,
                                  .body_fd = fd,
                                  .progress = progress_bytes,
                                  .progress_what = input ? "standard input" : from};
    if (api_send(&call->api, &q, &answer, err) < 0)
        return -1;
    int rc = answer.answer.status == 201 ? 0 : api_refused(&answer, err);
    blocking_close(&answer);
    return rc;
}

static int volume_get_file(const struct node_call *call, struct err *err)
{
    const char *to = call->nargs > 2 ? call->args[2] : "-";
    _cleanup_free_ char *path = NULL;
    struct blocking answer;
    char room[64 * 1024];
    ssize_t n = 0;
    uint64_t done = 0;
    if (content_path(call, call->args[1], "", &path, err) < 0)
        return -1;
    const struct api_request q = {.method = "GET", .path = path, .body_fd = -1};
    if (api_send(&call->api, &q, &answer, err) < 0)
        return -1;
    if (answer.answer.status != 200) {
        (void)api_refused(&answer, err);
        blocking_close(&answer);
        return -1;
    }
    _cleanup_close_ int fd = strcmp(to, "-") == 0 ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)
                                                  : open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int rc = fd < 0 ? err_set(err, ERR_USAGE, errno, "cannot write %s", to) : 0;
    while (rc == 0 && (n = api_read(&answer, room, sizeof room, -1, NULL, err)) > 0) {
        if (fd_write_all(fd, room, (size_t)n) < 0)
            rc = err_set(err, ERR_SETUP, errno, "write %s", to);
        progress_bytes(call->args[1], done += (uint64_t)n, answer.answer.length, false);
    }
    if (rc == 0 && n == 0)
        progress_bytes(call->args[1], done, answer.answer.length, true);
    blocking_close(&answer);
    return n < 0 ? -1 : rc;
}

int cmd_volume(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch volume create NAME [--quota SIZE|none] [--entries N]\n"
        "       hutch volume resize NAME SIZE|none [--entries N]\n"
        "       hutch volume ls | inspect NAME | rm NAME...\n"
        "       hutch volume put NAME FILE PATH [--force]     from a file, or from standard input: -\n"
        "       hutch volume get NAME PATH [FILE]             to a file, or to standard output\n\n"
        "A volume is a directory that outlives sandboxes and that several of them share:\n"
        "`hutch create --volume NAME:PATH[:ro]`. NAME may be the id, too.\n\n"
        "      --quota SIZE    bytes it may hold, like 10GiB; default: the node's configuration\n"
        "      --entries N     files and directories it may hold\n"
        "      --force         put: replace an existing file, make parent directories\n"
        "      --json          the node's whole answer\n\n"
        "examples:\n"
        "  hutch volume create models --quota 20GiB\n"
        "  hutch volume resize models 40GiB\n"
        "  hutch volume put models ./weights.bin /weights.bin\n"
        "  hutch create --volume models:/models:ro\n";
    struct said s = {0};
    const struct node_option options[] = {{"quota", 0, NULL, &s.quota, NULL},
                                          {"entries", 0, NULL, &s.entries, NULL},
                                          {"force", 'f', &s.force, NULL, NULL},
                                          {0}};
    const struct node_command c = {"volume", usage, options, 0, -1, false};
    const char *verb = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
    struct node_call call;
    struct err err;
    int code, rc = -1;
    if (node_begin(&c, *verb ? argc - 1 : argc, *verb ? argv + 1 : argv, &call, &code))
        return code;
    if (strcmp(verb, "create") == 0 && call.nargs == 1)
        rc = volume_make(&call, &s, &err);
    else if (strcmp(verb, "resize") == 0 && (call.nargs == 1 || call.nargs == 2))
        rc = volume_change_quota(&call, &s, &err);
    else if (strcmp(verb, "ls") == 0 && call.nargs == 0)
        rc = volume_list(&call, &err);
    else if (strcmp(verb, "inspect") == 0 && call.nargs == 1)
        rc = volume_inspect(&call, &err);
    else if (strcmp(verb, "rm") == 0 && call.nargs > 0)
        rc = volume_remove(&call, &err);
    else if (strcmp(verb, "put") == 0 && call.nargs == 3)
        rc = volume_put_file(&call, &s, &err);
    else if (strcmp(verb, "get") == 0 && (call.nargs == 2 || call.nargs == 3))
        rc = volume_get_file(&call, &err);
    else
        rc = err_set(&err, ERR_USAGE, 0,
                     "volume: create NAME, resize NAME SIZE, ls, inspect NAME, rm NAME, put NAME FILE PATH or get NAME "
                     "PATH; see "
                     "`hutch volume --help`");
    return rc < 0 ? cli_fail(&err) : 0;
}
