/* files-read.c - GET /files: sends a file of a sandbox. */
#include <string.h>

#include "api/e2b/envd.h"
#include "api/reply.h"
#include "api/send-file.h"

static void files_read_on_opened(void *arg, const struct link_status *st, int fd, const struct file_info *info)
{
    struct envd *e = arg;
    struct http_req *r = e->r;
    e->call = 0;
    if (st->code != LINK_OK) {
        envd_http_fail(e, st);
        return;
    }
    const struct send_file_facts facts = {.size = info->size, .mtime = info->mtime.tv_sec};
    envd_free(e);
    api_send_file(r, fd, info->name, info->sized ? &facts : NULL);
}

void files_read(struct envd *e, const char *path)
{
    if (strlen(path) >= FILES_PATH_MAX) {
        struct http_req *r = e->r;
        envd_free(e);
        reply_error(r, 400, "query parameter 'path' must be shorter than %d bytes", FILES_PATH_MAX);
        return;
    }
    e->call = files_open(e->api->peers->links, e->id, e->user, path, files_read_on_opened, e);
}
