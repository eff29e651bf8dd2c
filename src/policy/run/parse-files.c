/* parse-files.c - the section `files`. */
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/path.h"
#include "policy/run/doc.h"

static const char *const verb_names[FILE_VERB_MAX] = {
    [FILE_DENY_READ] = "deny_read",   [FILE_ALLOW_READ] = "allow_read", [FILE_ALLOW_WRITE] = "allow_write",
    [FILE_DENY_WRITE] = "deny_write", [FILE_READ_ONLY] = "read_only",   [FILE_TMPFS] = "tmpfs",
    [FILE_SOCKET] = "sockets",        [FILE_DEVICE] = "devices",
};

const char *file_verb_name(enum file_verb verb) { return verb_names[verb]; }

static bool is_deny(enum file_verb verb) { return verb == FILE_DENY_READ || verb == FILE_DENY_WRITE; }

/* Places that belong to the kernel or to the sandbox itself. */
static int check_place(struct doc *d, unsigned line, enum file_verb verb, const char *path)
{
    const char *key = verb_names[verb];
    if (strcmp(path, "/") == 0 && verb != FILE_ALLOW_READ)
        return doc_fail(d, line, "%s: \"/\" as a whole is not possible; name the directories that are meant", key);
    if (verb == FILE_DEVICE)
        return path_under(path, "/dev") && strcmp(path, "/dev") != 0
                   ? 0
                   : doc_fail(d, line, "%s: \"%s\" is not below /dev", key, doc_safe(path));
    if (is_deny(verb) || verb == FILE_ALLOW_READ)
        return 0;
    if (path_under(path, "/proc") || path_under(path, "/sys"))
        return doc_fail(d, line, "%s: \"%s\" lies in the kernel's own file system, which every sandbox gets anew", key,
                        doc_safe(path));
    if (path_under(path, "/dev") && !path_under(path, "/dev/shm"))
        return doc_fail(d, line, "%s: \"%s\" lies in /dev, which every sandbox gets anew; use devices", key,
                        doc_safe(path));
    return 0;
}

/* "SRC:DEST" is split where an absolute path follows the colon, so that other colons stay part of the name. */
static const char *find_dest(enum file_verb verb, const char *text)
{
    if (verb != FILE_READ_ONLY && verb != FILE_ALLOW_WRITE)
        return NULL;
    for (const char *s = strchr(text, ':'); s; s = strchr(s + 1, ':'))
        if (s[1] == '/' || s[1] == '~' || strncmp(s + 1, "$HOME", 5) == 0)
            return s;
    return NULL;
}

static int resolve_rule(struct doc *d, unsigned line, const char *text, bool literal, struct file_rule *rule)
{
    const char *key = verb_names[rule->verb], *colon = literal ? NULL : find_dest(rule->verb, text);
    _cleanup_free_ char *first = colon ? xstrndup(text, (size_t)(colon - text)) : xstrdup(text), *path = NULL,
                        *src = NULL;
    unsigned flags = (literal ? DOC_PATH_LITERAL : 0) | (is_deny(rule->verb) ? DOC_PATH_GLOB : 0);
    if (doc_path(d, line, key, first, flags, &path, &rule->is_glob) < 0)
        return -1;
    if (colon) {
        src = TAKE_PTR(path);
        if (doc_path(d, line, key, colon + 1, flags, &path, &rule->is_glob) < 0)
            return -1;
    }
    if (check_place(d, line, rule->verb, path) < 0)
        return -1;
    if (src && strcmp(src, path) != 0)
        rule->src = TAKE_PTR(src);
    rule->path = TAKE_PTR(path);
    return 0;
}

int doc_add_path(struct doc *d, unsigned line, enum file_verb verb, const char *text, bool literal, const char *id)
{
    struct file_rule rule = {.verb = verb, .flags = d->file_flags, .origin = doc_origin(d, line)};
    if (!d->may_widen && !is_deny(verb))
        return doc_fail_widens(d, line, verb_names[verb]);
    if (resolve_rule(d, line, text, literal, &rule) < 0)
        return -1;
    rule.id = xstrdup(id);
    return merge_file_rule(d->p, &rule, d->err);
}

/* Flags come one by one: number them among themselves. */
static unsigned flag_index(const struct doc *d, enum file_verb verb)
{
    unsigned n = 0;
    for (size_t i = 0; i < d->p->nfiles; i++)
        n += d->p->files[i].verb == verb && d->p->files[i].origin.level == LEVEL_FLAGS &&
             d->p->files[i].origin.line == 0;
    return n;
}

static int files_read_path(struct doc *d, const struct node *item, unsigned index, unsigned arg)
{
    enum file_verb verb = (enum file_verb)arg;
    bool flag = d->level == LEVEL_FLAGS && item->line == 0;
    _cleanup_free_ char *id = xasprintf("%s.%s[%u]",
                                        flag            ? "flag"
                                        : d->in_ceiling ? "ceiling.files"
                                                        : "files",
                                        verb_names[verb], flag ? flag_index(d, verb) : index);
    return doc_add_path(d, item->line, verb, item->text, d->file_flags & FILE_LITERAL, id);
}

static int files_read_paths(struct doc *d, const struct node *value, unsigned arg)
{
    if (d->in_ceiling && arg == FILE_ALLOW_WRITE)
        d->p->write_ceiling = doc_origin(d, value->line);
    return doc_list(d, value, verb_names[arg], files_read_path, arg);
}

/* A known name is protected in the places and the way that the table says. */
static void take_known_place(struct protected_name *name)
{
    size_t n;
    const struct known_name *known = names_known(&n);
    for (size_t i = 0; i < n; i++)
        if (known[i].class == NAME_REFUSED && strcmp(known[i].name, name->name) == 0 &&
            (known[i].place == NAME_IN_HOME) == (name->place == NAME_IN_HOME)) {
            name->place = known[i].place;
            name->absent = known[i].absent;
            name->reason = known[i].reason;
        }
}

static int files_read_name(struct doc *d, const struct node *item, unsigned index, unsigned arg)
{
    bool home = strncmp(item->text, "~/", 2) == 0;
    const char *text = item->text + (home ? 2 : 0);
    size_t n = strlen(text);
    (void)arg;
    bool is_dir = n > 0 && text[n - 1] == '/';
    _cleanup_free_ char *bare = xstrndup(text, n - is_dir), *rooted = xasprintf("/%s", bare);
    _cleanup_free_ char *clean = path_clean("/", bare);
    if (n > DOC_NAME_MAX || strcmp(rooted, clean) != 0 || strcmp(clean, "/") == 0 || strpbrk(text, "*?[\\"))
        return doc_fail(d, item->line,
                        "protect: \"%s\" must be a name below a writable directory, like .vscode/ or .git/hooks, or "
                        "below the home directory, like ~/.profile, without \"..\", globs or a leading \"/\"",
                        doc_safe(item->text));
    for (const char *s = text; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            return doc_fail(d, item->line, "protect: control character in \"%s\"", doc_safe(text));
    if (d->p->nnames >= DOC_PROTECT_MAX)
        return doc_fail(d, item->line, "protect: more than %d protected names in all", DOC_PROTECT_MAX);
    struct protected_name name = {.name = TAKE_PTR(bare),
                                  .is_dir = is_dir,
                                  .place = home                             ? NAME_IN_HOME
                                           : strncmp(text, ".git/", 5) == 0 ? NAME_IN_GIT
                                                                            : NAME_IN_PROJECT,
                                  .reason = "the policy protects it",
                                  .id = xasprintf("files.protect[%u]", index),
                                  .origin = doc_origin(d, item->line)};
    take_known_place(&name);
    merge_protected_name(d->p, &name);
    return 0;
}

/* Directories that are writable, and made first if they do not exist. */
static int files_read_make(struct doc *d, const struct node *value, unsigned arg)
{
    unsigned before = d->file_flags;
    d->file_flags |= FILE_MAKE;
    int r = doc_list(d, value, "make_write", files_read_path, arg);
    d->file_flags = before;
    return r;
}

static int files_read_protect(struct doc *d, const struct node *value, unsigned arg)
{
    return doc_list(d, value, "protect", files_read_name, arg);
}

static int files_read_protect_builtin(struct doc *d, const struct node *value, unsigned arg)
{
    bool keep;
    (void)arg;
    if (doc_bool(d, value, "protect_builtin", &keep) < 0)
        return -1;
    if (keep)
        return 0;
    if (!d->may_widen)
        return doc_fail_widens(d, value->line, "protect_builtin: false");
    for (size_t i = d->p->nnames; i-- > 0;) /* names in home directories stay: hutch's own are among them */
        if (d->p->names[i].origin.level == LEVEL_BUILTIN && d->p->names[i].place != NAME_IN_HOME)
            merge_remove_name_at(d->p, i);
    return 0;
}

static int files_read_search_depth(struct doc *d, const struct node *value, unsigned arg)
{
    int depth;
    (void)arg;
    const char *text = doc_scalar(d, value, "search_depth");
    if (!text)
        return -1;
    if (!num_int(text, 1, DOC_SEARCH_DEPTH_MAX, &depth))
        return doc_fail(d, value->line, "search_depth must be a number from 1 to %d, not \"%s\"", DOC_SEARCH_DEPTH_MAX,
                        doc_safe(text));
    if (!d->may_widen && (unsigned)depth < d->p->search_depth)
        return doc_fail_widens(d, value->line, "a smaller search_depth");
    d->p->search_depth = (unsigned)depth;
    d->p->search_depth_origin = doc_origin(d, value->line);
    return 0;
}

static const struct doc_key file_keys[] = {
    {"deny_read", files_read_paths, FILE_DENY_READ},
    {"allow_read", files_read_paths, FILE_ALLOW_READ},
    {"allow_write", files_read_paths, FILE_ALLOW_WRITE},
    {"make_write", files_read_make, FILE_ALLOW_WRITE},
    {"deny_write", files_read_paths, FILE_DENY_WRITE},
    {"read_only", files_read_paths, FILE_READ_ONLY},
    {"tmpfs", files_read_paths, FILE_TMPFS},
    {"sockets", files_read_paths, FILE_SOCKET},
    {"devices", files_read_paths, FILE_DEVICE},
    {"protect", files_read_protect, 0},
    {"protect_builtin", files_read_protect_builtin, 0},
    {"search_depth", files_read_search_depth, 0},
    {NULL, NULL, 0},
};

static const struct doc_key ceiling_keys[] = {
    {"allow_write", files_read_paths, FILE_ALLOW_WRITE},
    {"deny_read", files_read_paths, FILE_DENY_READ},
    {NULL, NULL, 0},
};

int doc_read_files(struct doc *d, const struct node *value, unsigned arg)
{
    (void)arg;
    return doc_map(d, value, "files", file_keys);
}

int doc_read_ceiling_files(struct doc *d, const struct node *value, unsigned arg)
{
    (void)arg;
    return doc_map(d, value, "ceiling.files", ceiling_keys);
}
