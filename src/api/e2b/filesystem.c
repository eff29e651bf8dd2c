/* filesystem.c - RPC methods of filesystem.Filesystem but watching: stat, list, make, move, remove. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "api/e2b/envd.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"

void fs_permissions(const struct file_info *info, char ret[16])
{
    static const char rwx[] = "rwxrwxrwx";
    size_t n = 0;
    bool link = info->target || info->type == FILE_SYMLINK || S_ISLNK(info->mode);
    if (link)
        ret[n++] = 'L';
    else if (info->type == FILE_DIRECTORY)
        ret[n++] = 'd';
    if (!link && (info->mode & S_ISUID))
        ret[n++] = 'u';
    if (!link && (info->mode & S_ISGID))
        ret[n++] = 'g';
    if (!link && (info->mode & S_ISVTX))
        ret[n++] = 't';
    if (n == 0)
        ret[n++] = '-';
    for (unsigned i = 0; i < 9; i++)
        ret[n++] = link || (info->mode & (0400u >> i)) ? rwx[i] : '-';
    ret[n] = 0;
}

static const char *fs_type_name(enum file_type t)
{
    return t == FILE_REGULAR     ? "FILE_TYPE_FILE"
           : t == FILE_DIRECTORY ? "FILE_TYPE_DIRECTORY"
           : t == FILE_SYMLINK   ? "FILE_TYPE_SYMLINK"
                                 : "FILE_TYPE_UNSPECIFIED";
}

void fs_add_entry(struct json *j, const char *key, const struct file_info *info)
{
    char perms[16], when[REPLY_TIME_MAX], size[24];
    fs_permissions(info, perms);
    reply_time((uint64_t)info->mtime.tv_sec * 1000 + (uint64_t)info->mtime.tv_nsec / 1000000, when);
    (void)snprintf(size, sizeof size, "%llu", (unsigned long long)info->size);
    json_obj(j, key);
    json_str(j, "name", info->name);
    json_str(j, "type", fs_type_name(info->type));
    json_str(j, "path", info->path);
    json_str(j, "size", size); /* a string, as protobuf's JSON encodes 64 bits */
    json_u64(j, "mode", info->mode & 0777);
    json_str(j, "permissions", perms);
    json_str(j, "owner", info->owner);
    json_str(j, "group", info->group);
    json_str(j, "modifiedTime", when);
    if (info->target)
        json_str(j, "symlinkTarget", info->target);
    if (info->nmeta) {
        json_obj(j, "metadata");
        for (size_t i = 0; i < info->nmeta; i++)
            json_str(j, info->meta[i].key, info->meta[i].value);
        json_end_obj(j);
    }
    json_end_obj(j);
}

const char *fs_path(struct envd *e, json_t *msg, const char *field, bool empty_ok)
{
    const char *path = "";
    struct err err;
    if (field_str(msg, field, &path, &err) < 0)
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
    else if (!*path && !empty_ok)
        envd_fail(e, RPC_INVALID_ARGUMENT, "field '%s' is required", field);
    else if (strlen(path) >= FILES_PATH_MAX)
        envd_fail(e, RPC_INVALID_ARGUMENT, "field '%s' must be shorter than %d bytes", field, FILES_PATH_MAX);
    else
        return path;
    return NULL;
}

static void fs_on_entry(void *arg, const struct link_status *st, const struct file_info *info)
{
    struct envd *e = arg;
    e->call = 0;
    if (st->code != LINK_OK) {
        envd_fail_status(e, st);
        return;
    }
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    fs_add_entry(&j, "entry", info);
    json_end_obj(&j);
    envd_ok(e, &out);
}

void fs_stat(struct envd *e, json_t *msg)
{
    const char *path = fs_path(e, msg, "path", true);
    if (path)
        e->call = files_stat(e->api->peers->links, e->id, e->user, path, fs_on_entry, e);
}

void fs_make_dir(struct envd *e, json_t *msg)
{
    const char *path = fs_path(e, msg, "path", false);
    if (path)
        e->call = files_mkdir(e->api->peers->links, e->id, e->user, path, fs_on_entry, e);
}

void fs_move(struct envd *e, json_t *msg)
{
    const char *from = fs_path(e, msg, "source", false);
    const char *to = from ? fs_path(e, msg, "destination", false) : NULL;
    if (to)
        e->call = files_move(e->api->peers->links, e->id, e->user, from, to, fs_on_entry, e);
}

void fs_remove(struct envd *e, json_t *msg)
{
    const char *path = fs_path(e, msg, "path", false);
    if (path)
        e->call = files_remove(e->api->peers->links, e->id, e->user, path, envd_done, e);
}

static void fs_on_listed(void *arg, const struct link_status *st, const struct file_info *v, size_t n)
{
    struct envd *e = arg;
    e->call = 0;
    if (st->code != LINK_OK) {
        envd_fail_status(e, st);
        return;
    }
    struct err err;
    if (reply_may_list(n, &err) < 0) {
        envd_fail(e, RPC_RESOURCE_EXHAUSTED, "%s", err.msg);
        return;
    }
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_arr(&j, "entries");
    for (size_t i = 0; i < n; i++)
        fs_add_entry(&j, NULL, &v[i]);
    json_end_arr(&j);
    json_end_obj(&j);
    envd_ok(e, &out);
}

void fs_list_dir(struct envd *e, json_t *msg)
{
    int64_t depth = 1;
    struct err err;
    const char *path = fs_path(e, msg, "path", true);
    if (!path)
        return;
    if (field_int(msg, "depth", 0, 64, &depth, &err) < 0)
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
    else
        e->call = files_list(e->api->peers->links, e->id, e->user, path, depth ? (unsigned)depth : 1, fs_on_listed, e);
}
