/* list.c - lists the stacks and volumes of the store by name; opens one blob. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "layers/jobs.h"
#include "layers/request.h"
#include "os/statx.h"

static int list_flush(struct job *j, struct layers_items *m, bool more, struct err *err)
{
    m->more = more;
    if (fd_send(j->sock, m, sizeof *m, NULL, 0) < 0)
        return err_set(err, ERR_INTERNAL, errno, "send the list");
    *m = (struct layers_items){.version = LAYERS_VERSION, .type = LAYERS_ITEMS, .request = j->ask->request};
    return 0;
}

static int list_add_item(struct job *j, struct layers_items *m, int dir, const char *file, const char *id,
                         uint32_t nlayers, struct err *err)
{
    struct statx st;
    if (statx(dir, file, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &st) < 0)
        return 0; /* removed meanwhile */
    if (m->n == LAYERS_LIST_MAX && list_flush(j, m, true, err) < 0)
        return -1;
    struct layers_item *i = &m->item[m->n++];
    (void)snprintf(i->id, sizeof i->id, "%s", id);
    i->nlayers = nlayers;
    /* A volume's own time changes with what is in it. */
    i->created_unix = st.stx_mask & STATX_BTIME ? st.stx_btime.tv_sec : st.stx_mtime.tv_sec;
    return 0;
}

/* Lists damaged stacks too: their names are taken, and LAYERS_VERIFY reports the damage. */
static int list_add_stack(struct job *j, struct layers_items *m, int dir, const char *name, struct err *err)
{
    struct stack_file f;
    struct err ignored = {0};
    if (!stack_id_valid(name))
        return 0;
    return list_add_item(j, m, dir, name, name, stack_read(&j->place, name, &f, &ignored) == 0 ? f.n : 0, err);
}

static int list_add_volume(struct job *j, struct layers_items *m, int dir, const char *name, struct err *err)
{
    char id[STACK_ID_MAX];
    size_t n = strlen(name), image = n > 4 && strcmp(name + n - 4, ".img") == 0 ? 4 : 0; /* a file: os/upper.h */
    if (n - image >= sizeof id)
        return 0;
    memcpy(id, name, n - image);
    id[n - image] = '\0';
    return layers_volume_valid(id) ? list_add_item(j, m, dir, name, id, 0, err) : 0;
}

static int list_each(struct job *j, struct layers_items *m, int dir,
                     int (*fn)(struct job *, struct layers_items *, int, const char *, struct err *), struct err *err)
{
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *e;
    if (!d)
        return err_set(err, ERR_SETUP, errno, "read a directory of the store");
    while ((e = readdir(d)) != NULL)
        if (fn(j, m, dir, e->d_name, err) < 0)
            return -1;
    return 0;
}

int job_list(struct job *j, struct err *err)
{
    struct layers_items *m = xcalloc(1, sizeof *m); /* for the life of this process */
    *m = (struct layers_items){.version = LAYERS_VERSION, .type = LAYERS_ITEMS, .request = j->ask->request};
    if (list_each(j, m, j->place.stacks, list_add_stack, err) < 0 ||
        list_each(j, m, j->place.volumes, list_add_volume, err) < 0 || list_flush(j, m, false, err) < 0)
        return -1;
    j->reply.type = 0; /* the items were the answer: job_run() sends no reply */
    return 0;
}

int job_blob(struct job *j, struct err *err)
{
    struct stat st;
    j->reply_fd = openat(j->place.blobs, j->ask->blob, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (j->reply_fd < 0 && errno == ENOENT)
        return job_fail(j, LAYERS_NOT_FOUND, err, "there is no upload %.12s", j->ask->blob);
    if (j->reply_fd < 0 || fstat(j->reply_fd, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "open the upload %.12s", j->ask->blob);
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_SETUP, 0, "the upload %.12s is damaged", j->ask->blob);
    j->reply.bytes = (uint64_t)st.st_size;
    return 0;
}
