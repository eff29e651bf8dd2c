#include "cli/run/run-preset.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "policy/net/netpol.h"

enum { WORDS_WIDTH = 30, DEPTH_MAX = 64, ABOUT_MAX = 200, ALIAS_MAX = 40 };

/* --- directories -------------------------------------------------------------------------------------------------- */

static int make_refused(const struct file_rule *r, const char *path, int eno, const char *why, struct err *err)
{
    _cleanup_buf_ struct buf where = {0};
    origin_add(&where, &r->origin);
    return err_set(err, ERR_SETUP, eno, "%s: cannot make the directory %s%s%s", buf_str(&where), path, why ? ": " : "",
                   why ? why : "");
}

/* Makes one name in an open directory, and opens it. If another process made it meanwhile, it must be a directory of ours. */
static int make_one(int parent, const char *name, const char *path, const struct file_rule *r, struct err *err)
{
    struct stat st;
    if (fstat(parent, &st) < 0)
        return make_refused(r, path, errno, NULL, err);
    if (geteuid() == 0 && st.st_uid != 0)
        return make_refused(r, path, 0, "the directory above it belongs to another user; make it as that user", err);
    if (mkdirat(parent, name, 0700) < 0 && errno != EEXIST)
        return make_refused(r, path, errno, NULL, err);
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        return make_refused(r, path, 0, "there is a symbolic link, or a file", err);
    if (fd < 0)
        return make_refused(r, path, errno, NULL, err);
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid())
        return fd;
    (void)close(fd);
    return make_refused(r, path, 0, "it belongs to another user", err);
}

/* Opens the deepest directory that exists, and makes the rest name by name below that descriptor. As root, all names below
 * the home are gone through that way, so that no link and no directory of another user leads elsewhere. */
static int make_path(const struct file_rule *r, const char *path, const char *home, struct err *err)
{
    size_t start = geteuid() == 0 && home && path_under(path, home) ? strlen(home) : SIZE_MAX;
    const char *missing[DEPTH_MAX];
    size_t n = 0;
    _cleanup_free_ char *text = xstrdup(path);
    _cleanup_close_ int at = -1;
    while ((strlen(text) > start ||
            ((at = open(text[0] ? text : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 && errno == ENOENT)) &&
           n < DEPTH_MAX) {
        char *slash = strrchr(text, '/');
        if (!slash)
            break;
        *slash = '\0';
        missing[n++] = path + (slash + 1 - text);
    }
    if (at < 0)
        return make_refused(r, path, n == DEPTH_MAX ? ENAMETOOLONG : errno, NULL, err);
    while (n-- > 0) {
        _cleanup_free_ char *name = xstrndup(missing[n], strcspn(missing[n], "/"));
        _cleanup_free_ char *whole = xstrndup(path, (size_t)(missing[n] - path) + strlen(name));
        int next = make_one(at, name, whole, r, err);
        if (next < 0)
            return -1;
        (void)close(at);
        at = next;
    }
    return 0;
}

int run_preset_make(const struct policy *p, const char *home, struct err *err)
{
    for (size_t i = 0; i < p->nfiles; i++) {
        const struct file_rule *r = &p->files[i];
        const char *path = r->src ? r->src : r->path;
        struct stat st;
        if (!(r->flags & FILE_MAKE) || r->verb != FILE_ALLOW_WRITE)
            continue;
        if (stat(path, &st) < 0 && (errno == ENOENT || errno == ENOTDIR) && make_path(r, path, home, err) < 0)
            return -1;
        if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode))
            return make_refused(r, path, 0, "there is something that is no directory; --rw opens a file", err);
    }
    return 0;
}

/* Directories of presets that come with hutch are ~/.cache/hutch-run/NAME and ~/.local/share/hutch-run/NAME. */
static bool preset_owns(const struct policy *p, const char *path)
{
    for (size_t i = 0; i < p->nfiles; i++) {
        const struct file_rule *r = &p->files[i];
        if ((r->flags & FILE_MAKE) && r->verb == FILE_ALLOW_WRITE && strstr(r->path, "/hutch-run/") &&
            path_under(path, r->path))
            return true;
    }
    return false;
}

void run_preset_leave_out(const struct policy *p, struct strv *names)
{
    size_t kept = 0;
    for (size_t i = 0; i < names->n; i++) {
        if (preset_owns(p, names->v[i]))
            free(names->v[i]);
        else
            names->v[kept++] = names->v[i];
    }
    if (names->v) {
        names->n = kept;
        names->v[kept] = NULL;
    }
}

/* --- the list ----------------------------------------------------------------------------------------------------- */

bool run_preset_wants_list(const struct policy_flag *flags, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(flags[i].key, "preset") == 0 && strcmp(flags[i].value, "list") == 0)
            return true;
    return false;
}

static const struct node *preset_get(const struct node *map, const char *key)
{
    for (size_t i = 0; map && map->kind == NODE_MAP && i < map->n; i += 2)
        if (strcmp(map->items[i]->text, key) == 0)
            return map->items[i + 1];
    return NULL;
}

static void preset_add_words(const struct node *list, struct buf *out)
{
    for (size_t i = 0; list && list->kind == NODE_LIST && i < list->n; i++)
        if (list->items[i]->kind == NODE_SCALAR) {
            buf_adds(out, ", ");
            text_add_safe(out, list->items[i]->text, ALIAS_MAX);
        }
}

static bool preset_print(void *arg, const char *name, const struct node *doc)
{
    const struct node *about = preset_get(doc, "description");
    _cleanup_buf_ struct buf words = {0}, safe = {0};
    (void)arg;
    buf_adds(&words, name);
    preset_add_words(preset_get(doc, "aliases"), &words);
    text_add_safe(&safe, about && about->kind == NODE_SCALAR ? about->text : "", ABOUT_MAX);
    printf("%-*s %s  %s\n", WORDS_WIDTH, buf_str(&words), preset_get(doc, "run") ? "run" : "   ", buf_str(&safe));
    return false;
}

void run_preset_list(const char *home)
{
    printf("%-*s %s  %s\n", WORDS_WIDTH, "NAME", "   ", "DESCRIPTION");
    netpol_presets_visit(home, preset_print, NULL);
    puts("\n\"run\": it also has directories and variables for its tools in `hutch run`; all others open hosts only.\n"
         "Yours are files in ~/.config/hutch/presets (docs/run.md).");
}

/* --- suggestions -------------------------------------------------------------------------------------------------- */

struct suggestion {
    const struct policy *policy;
    const char *command;
    char *found;
};

static bool suggestion_visit(void *arg, const char *name, const struct node *doc)
{
    struct suggestion *s = arg;
    const struct node *run = preset_get(doc, "run");
    if (!run || !netpol_preset_has_word(run, "commands", s->command))
        return false;
    if (!strv_has(&s->policy->presets, name))
        s->found = xstrdup(netpol_preset_has_word(doc, "aliases", s->command) ? s->command : name);
    return true;
}

char *run_preset_suggest(const struct policy *p, const char *home, const char *command)
{
    struct suggestion s = {.policy = p, .command = path_name(command)};
    netpol_presets_visit(home, suggestion_visit, &s);
    return s.found;
}
