/* digest-later.c - gives layers that were named before they were digested their digest: all of them in the background,
 * one by one, or a single one for a job that needs it now. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "layers/digest-later.h"
#include "layers/kept.h"
#include "layers/merged.h"
#include "layers/refs.h"

#define NO_DIGEST "no-digest" /* beside meta; upper-from.c removes it from what is made from the layer */

/* Not in the headers of Debian 12 that a program may include. */
enum { IOPRIO_WHO_PROCESS = 1, IOPRIO_IDLE = 3 << 13 };

int layer_digest(struct job *j, const char *name, struct layer_meta *ret, struct err *err)
{
    char path[LAYER_NAME + 8], tmp[LAYERS_TMP_NAME];
    struct tree_size size;
    if (layer_meta_read(&j->place, name, ret, err) < 0)
        return -1;
    if (layer_has_digest(ret))
        return 0;
    (void)snprintf(path, sizeof path, "%s/root", name);
    _cleanup_close_ int root = openat(j->place.layers, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root < 0)
        return err_set(err, ERR_SETUP, errno, "open the layer %.12s", name);
    if (tree_digest(root, j->tree_flags, ret->digest, &size, err) < 0)
        return err_wrap(err, "the layer %.12s", name);
    job_hold(j, "digested");
    ret->bytes = size.bytes;
    ret->entries = size.entries;
    job_tmp_name(j, tmp);
    return layer_note_digest(&j->place, name, tmp, ret, err);
}

/* A layer that no stream can hold, as one of its files is too large: each try would read it as a whole again. */
static bool digest_is_noted(const struct job *j, const char *name)
{
    char path[LAYER_NAME + 16];
    (void)snprintf(path, sizeof path, "%s/" NO_DIGEST, name);
    return faccessat(j->place.layers, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void digest_note_failure(const struct job *j, const char *name)
{
    char path[LAYER_NAME + 16];
    (void)snprintf(path, sizeof path, "%s/" NO_DIGEST, name);
    _cleanup_close_ int fd =
        openat(j->place.layers, path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0)
        log_text(LOG_LEVEL_WARN, "cannot note that the layer %.12s can have no digest", name);
}

/* Goes on with the other layers after a failure. */
static int digest_on_layer(void *arg, const char *name, struct err *err)
{
    struct layer_meta m;
    struct err one = {0};
    (void)err;
    /* ENOENT: a collection has set the layer aside meanwhile. */
    if (!layer_name_valid(name))
        return 0;
    if (!digest_is_noted(arg, name) && layer_digest(arg, name, &m, &one) < 0 && one.eno != ENOENT) {
        log_text(LOG_LEVEL_WARN, "a layer has no digest yet: %s", one.msg);
        if (one.code == ERR_LIMIT)
            digest_note_failure(arg, name);
    }
    one = (struct err){0};
    if (kept_trim(arg, name, &one) < 0 && one.eno != ENOENT)
        log_text(LOG_LEVEL_WARN, "a layer holds more than it needs: %s", one.msg);
    return 0;
}

int job_digest(struct job *j, struct err *err)
{
    (void)setpriority(PRIO_PROCESS, 0, 19);
    (void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_IDLE);
    return refs_each_name(j->place.layers, digest_on_layer, j, err);
}
