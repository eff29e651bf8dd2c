/* api-world-init.c - the inits of sandboxes as front's clients of them see it: commands that do what the test says, files of a
 * temporary directory, ports that nothing listens on. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api-world.h"
#include "base/fd.h"
#include "base/mem.h"

/* ---- links: commands ---- */

static struct link_status next_status(void)
{
    struct link_status st = {.code = world.next_code};
    (void)snprintf(st.text, sizeof st.text, "%s", world.next_text);
    world.next_code = LINK_OK;
    return st;
}

/* Answers come later, from the loop, as the real ones do, and can be cancelled. */
struct later {
    struct later *next;
    link_call id;
    enum { L_DONE, L_OPENED, L_CREATED, L_INFO, L_LISTED, L_PROCS, L_DIALED } kind;
    union {
        link_done *done;
        files_opened *opened;
        files_created *created;
        files_info *info;
        files_listed *listed;
        exec_listed *procs;
        link_dialed *dialed;
    } fn;
    void *arg;
    struct link_status st;
    int fd;
    char path[300];
};
static struct later *laters;
static link_call last_call;

static struct file_info info_of(const char *path);
static struct file_sink *sink_of(int fd);

/* A socket with the bytes of the small file behind *fd, in its place. How many they are. */
static size_t relay_fd(int *fd)
{
    char bytes[64];
    int pair[2];
    ssize_t n = read(*fd, bytes, sizeof bytes);
    if (n < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0 ||
        send(pair[1], bytes, (size_t)n, MSG_NOSIGNAL) != n)
        abort();
    (void)close(pair[1]);
    (void)close(*fd);
    *fd = pair[0];
    return (size_t)n;
}

static void call_later(struct later *l)
{
    static const char *const args[] = {"-c", "x", NULL}, *const env[] = {"A=b=c", NULL};
    struct exec_info one = {.pid = 7, .cmd = "/bin/sh", .cwd = "/", .tag = "t", .args = args, .env = env};
    struct file_info info = info_of(l->path);
    switch (l->kind) {
    case L_DONE:
        l->fn.done(l->arg, &l->st);
        break;
    case L_OPENED:
        if (world.relayed && l->fd >= 0) {
            info.size = (uint64_t)relay_fd(&l->fd) + world.missing;
            info.sized = true;
        }
        l->fn.opened(l->arg, &l->st, l->fd, &info);
        break;
    case L_CREATED:
        l->fn.created(l->arg, &l->st, l->st.code == LINK_OK ? sink_of(l->fd) : NULL, &info);
        break;
    case L_INFO:
        l->fn.info(l->arg, &l->st, &info);
        break;
    case L_LISTED:
        l->fn.listed(l->arg, &l->st, &info, 1);
        break;
    case L_PROCS:
        l->fn.procs(l->arg, &l->st, &one, 1);
        break;
    case L_DIALED:
        l->fn.dialed(l->arg, &l->st, -1);
        break;
    }
}

static void run_later(void *arg)
{
    struct later *mine = arg;
    for (struct later **at = &laters; *at; at = &(*at)->next)
        if (*at == mine) {
            *at = mine->next;
            call_later(mine);
            break;
        }
    free(mine); /* cancelled or done */
}

static struct later *later(int kind, const char *path, void *arg)
{
    struct later *l = xcalloc(1, sizeof *l);
    l->kind = kind;
    l->id = ++last_call;
    l->arg = arg;
    l->st = next_status();
    l->fd = -1;
    (void)snprintf(l->path, sizeof l->path, "%s", path);
    l->next = laters;
    laters = l;
    loop_defer(world.loop, run_later, l);
    return l;
}

void link_cancel(struct links *ls, link_call c)
{
    (void)ls;
    for (struct later **at = &laters; *at; at = &(*at)->next)
        if ((*at)->id == c) {
            if ((*at)->fd >= 0)
                (void)close((*at)->fd);
            *at = (*at)->next;
            return;
        }
}

static link_call later_done(link_done *done, void *arg)
{
    struct later *l = later(L_DONE, "", arg);
    l->fn.done = done;
    return l->id;
}
link_call link_hello(struct links *ls, const char *id, link_done *done, void *arg)
{
    (void)ls, (void)id;
    return later_done(done, arg);
}
link_call link_dial(struct links *ls, const char *id, uint16_t port, link_dialed *done, void *arg)
{
    (void)ls, (void)port;
    struct later *l = later(L_DIALED, "", arg);
    l->fn.dialed = done;
    l->st.code = world.dial_paused ? LINK_PAUSED : LINK_NOT_FOUND;
    if (world.dial_paused)
        world_find(id)->state = SANDBOX_FROZEN;
    world.dial_paused = false;
    return l->id;
}
static struct exec *remember(const struct exec_ops *o, void *arg)
{
    world.ops = o;
    world.ops_arg = arg;
    world.detached = false;
    return (struct exec *)&world;
}
struct exec *exec_start(struct links *ls, const char *id, const struct exec_spec *spec, const struct exec_ops *o,
                        void *arg)
{
    (void)ls, (void)id;
    free(world.cmd);
    world.cmd = xstrdup(spec->cmd);
    free(world.cwd);
    world.cwd = spec->cwd ? xstrdup(spec->cwd) : NULL;
    free(world.user);
    world.user = spec->user ? xstrdup(spec->user) : NULL;
    strv_done(&world.args);
    strv_done(&world.env);
    for (size_t i = 0; spec->args[i]; i++)
        strv_add(&world.args, spec->args[i]);
    for (size_t i = 0; spec->env[i]; i++)
        strv_add(&world.env, spec->env[i]);
    world.pty = spec->pty;
    world.stdin_open = spec->stdin_open;
    return remember(o, arg);
}
struct exec *exec_attach(struct links *ls, const char *id, const struct exec_select *who, const uint64_t from[4],
                         const struct exec_ops *o, void *arg)
{
    (void)ls, (void)id, (void)who;
    memcpy(world.from, from, sizeof world.from);
    return remember(o, arg);
}
void exec_resume(struct exec *x) { (void)x; }
void exec_detach(struct exec *x)
{
    (void)x;
    world.detached = true;
}
link_call exec_signal(struct links *ls, const char *id, const struct exec_select *who, int sig, link_done *done,
                      void *arg)
{
    (void)ls, (void)id, (void)who;
    world.signal = sig;
    return later_done(done, arg);
}
link_call exec_input(struct links *ls, const char *id, const struct exec_select *who, const void *p, size_t n,
                     link_done *done, void *arg)
{
    (void)ls, (void)id, (void)who;
    buf_add(&world.input, p, n);
    return later_done(done, arg);
}
link_call exec_close_input(struct links *ls, const char *id, const struct exec_select *who, link_done *done, void *arg)
{
    return exec_input(ls, id, who, "", 0, done, arg);
}
link_call exec_resize(struct links *ls, const char *id, const struct exec_select *who, uint16_t cols, uint16_t rows,
                      link_done *done, void *arg)
{
    (void)cols, (void)rows;
    return exec_input(ls, id, who, "", 0, done, arg);
}
link_call exec_list(struct links *ls, const char *id, exec_listed *done, void *arg)
{
    (void)ls, (void)id;
    struct later *l = later(L_PROCS, "", arg);
    l->fn.procs = done;
    return l->id;
}

/* ---- links: files ---- */

static void at(const char *path, char ret[300])
{
    (void)snprintf(ret, 300, "%s/%s", world.dir, path[0] == '/' ? path + 1 : path);
}
static struct file_info info_of(const char *path)
{
    static char absolute[320];
    const char *slash = strrchr(path, '/');
    (void)snprintf(absolute, sizeof absolute, "%s%s", path[0] == '/' ? "" : "/home/user/", path);
    return (struct file_info){.name = slash ? slash + 1 : path,
                              .path = absolute,
                              .type = FILE_REGULAR,
                              .mode = S_IFREG | 0644,
                              .owner = "user",
                              .group = "user"};
}
static struct later *open_at(int kind, const char *path, int flags, void *arg)
{
    char full[300];
    struct later *l = later(kind, path, arg);
    at(path, full);
    if (l->st.code == LINK_OK && (l->fd = open(full, flags | O_CLOEXEC, 0644)) < 0) {
        l->st.code = LINK_NOT_FOUND;
        (void)snprintf(l->st.text, sizeof l->st.text, "path '%.100s' does not exist", path);
    }
    return l;
}
link_call files_open(struct links *ls, const char *id, const char *user, const char *path, files_opened *done,
                     void *arg)
{
    (void)ls, (void)id, (void)user;
    struct later *l = open_at(L_OPENED, path, O_RDONLY, arg);
    l->fn.opened = done;
    return l->id;
}
link_call files_create(struct links *ls, const char *id, const char *user, const char *path,
                       const struct file_meta *meta, size_t nmeta, files_created *done, void *arg)
{
    (void)ls, (void)id, (void)user, (void)meta, (void)nmeta;
    struct later *l = open_at(L_CREATED, path, O_WRONLY | O_CREAT | O_TRUNC, arg);
    l->fn.created = done;
    return l->id;
}
struct file_sink {
    int fd;
    link_call call;
};
static struct file_sink *sink_of(int fd)
{
    struct file_sink *s = xcalloc(1, sizeof *s);
    s->fd = fd;
    return s;
}
/* world.sink_code: what the next writes and finishes answer. */
static void sink_answer(struct file_sink *s, link_done *done, void *arg)
{
    if (world.sink_code != LINK_OK) {
        world.next_code = world.sink_code;
        (void)snprintf(world.next_text, sizeof world.next_text, "%s", "the sink says no");
    }
    s->call = later_done(done, arg);
}
void sink_write(struct file_sink *s, const void *p, size_t n, link_done *done, void *arg)
{
    if (fd_write_all(s->fd, p, n) < 0)
        abort();
    sink_answer(s, done, arg);
}
void sink_finish(struct file_sink *s, link_done *done, void *arg) { sink_answer(s, done, arg); }
void sink_free(struct file_sink *s)
{
    if (!s)
        return;
    link_cancel(NULL, s->call);
    (void)close(s->fd);
    free(s);
}
static link_call answer_info(const char *path, files_info *done, void *arg)
{
    struct later *l = later(L_INFO, path, arg);
    l->fn.info = done;
    return l->id;
}
link_call files_stat(struct links *ls, const char *id, const char *user, const char *path, files_info *done, void *arg)
{
    (void)ls, (void)id, (void)user;
    return answer_info(path, done, arg);
}
link_call files_mkdir(struct links *ls, const char *id, const char *user, const char *path, files_info *done, void *arg)
{
    return files_stat(ls, id, user, path, done, arg);
}
link_call files_move(struct links *ls, const char *id, const char *user, const char *from, const char *to,
                     files_info *done, void *arg)
{
    (void)from;
    return files_stat(ls, id, user, to, done, arg);
}
link_call files_compose(struct links *ls, const char *id, const char *user, const char *const *from, size_t n,
                        const char *to, files_info *done, void *arg)
{
    (void)from, (void)n;
    return files_stat(ls, id, user, to, done, arg);
}
link_call files_remove(struct links *ls, const char *id, const char *user, const char *path, link_done *done, void *arg)
{
    (void)ls, (void)id, (void)user, (void)path;
    return later_done(done, arg);
}
link_call files_list(struct links *ls, const char *id, const char *user, const char *path, unsigned depth,
                     files_listed *done, void *arg)
{
    (void)ls, (void)id, (void)user, (void)depth;
    struct later *l = later(L_LISTED, path, arg);
    l->fn.listed = done;
    return l->id;
}
/* With a root: as without. */
link_call files_open_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                           files_opened *done, void *arg)
{
    (void)root;
    return files_open(ls, id, NULL, path, done, arg);
}
link_call files_create_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                             files_created *done, void *arg)
{
    (void)root;
    return files_create(ls, id, NULL, path, NULL, 0, done, arg);
}
link_call files_stat_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                           files_info *done, void *arg)
{
    (void)root;
    return files_stat(ls, id, NULL, path, done, arg);
}
link_call files_mkdir_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                            files_info *done, void *arg)
{
    return files_stat_below(ls, id, root, path, done, arg);
}
link_call files_set_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                          files_info *done, void *arg)
{
    return files_stat_below(ls, id, root, path, done, arg);
}
link_call files_remove_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                             link_done *done, void *arg)
{
    (void)root;
    return files_remove(ls, id, NULL, path, done, arg);
}
link_call files_list_below(struct links *ls, const char *id, const struct files_root *root, const char *path,
                           unsigned depth, files_listed *done, void *arg)
{
    (void)root;
    return files_list(ls, id, NULL, path, depth, done, arg);
}
struct file_watch *files_watch(struct links *ls, const char *id, const char *user, const char *path, bool recursive,
                               bool with_info, bool network_mounts, const struct file_watch_ops *o, void *arg)
{
    (void)ls, (void)id, (void)user, (void)path, (void)recursive, (void)with_info, (void)network_mounts;
    world.watch = o;
    world.watch_arg = arg;
    world.unwatched = false;
    return (struct file_watch *)&world;
}
bool files_are_watched(struct links *ls, const char *id)
{
    (void)ls, (void)id;
    return world.watch && !world.unwatched;
}
link_call files_settle(struct links *ls, const char *id, link_done *done, void *arg)
{
    (void)ls, (void)id;
    world.settled++;
    return later_done(done, arg);
}
void files_unwatch(struct file_watch *w)
{
    (void)w;
    world.unwatched = true;
}

/* ---- links: life ---- */

link_call link_bind(struct links *ls, const char *id, const struct link_bind *b, link_done *done, void *arg)
{
    (void)ls, (void)id, (void)b;
    return later_done(done, arg);
}
void links_gone(struct links *ls, const char *id) { (void)ls, (void)id; }
void links_paused(struct links *ls, const char *id) { (void)ls, (void)id; }
