/* watchers.h - watches of directories that a client polls. A watcher lives as long as its sandbox, in this process: after a
 * restart of front it is not found, and the client makes a new one. It keeps events as text that its dialect writes, up to
 * a limit. Watches that a client follows as a stream need none of this: files_watch() of peers/files.h.
 */
#ifndef HUTCH_SANDBOXES_WATCHERS_H
#define HUTCH_SANDBOXES_WATCHERS_H

#include "base/buf.h"
#include "peers/files.h"
#include "sandboxes/sandboxes.h"

enum {
    WATCHERS_MAX = 32,           /* of one sandbox */
    WATCHER_BYTES_MAX = 1 << 20, /* of events that were not fetched yet */
    WATCHER_ID_MAX = 24,
};

/* Appends one event, in the dialect's words; watcher_take() has commas between them. */
typedef void watcher_write_fn(struct buf *out, enum file_event type, const char *name, const struct file_info *info);
struct watcher_spec {
    const char *user, *path; /* as in files_watch() */
    bool recursive, with_info, network_mounts;
    watcher_write_fn *write;
};

struct watcher;
/* Called once, when the watcher watches (id) or cannot (id NULL). */
typedef void watcher_made(void *arg, const char *id, const struct link_status *st);
/* NULL: *why says why not (no sandbox, too many watchers), and there is no callback. */
struct watcher *watcher_make(struct sandboxes *sb, const char *sandbox, const struct watcher_spec *spec,
                             watcher_made *done, void *arg, struct link_status *why);
/* Also before `done`, which is not called any more then. */
void watcher_remove(struct watcher *w);
/* One that watches or has ended. Valid until the caller returns to the loop. */
struct watcher *watcher_find(struct sandboxes *sb, const char *sandbox, const char *id);
/* Whether events may still be on their way to it: files_settle() waits for them. */
bool watcher_is_live(const struct watcher *w);
/* Takes the events so far, perhaps none. False: the watch has ended, and w is freed, or events were dropped; *why says
 * which. */
bool watcher_take(struct watcher *w, struct buf *ret, struct link_status *why);

#endif
