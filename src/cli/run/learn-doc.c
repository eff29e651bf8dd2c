/* learn-doc.c - turns what was seen into the smallest grants. Pure: asks the host only through struct learn_host.
 *
 * Grants are found from the root downwards, and each is merged into the policy before the next change is judged. So a
 * change that an earlier grant covers needs no line, and one that a wider grant does not open (in a hidden directory, at a
 * protected name) is still refused and gets its own.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "cli/run/learn.h"
#include "policy/net/netpol.h"
#include "policy/node.h"

enum { PASSES = 3, SAFE = 400 };

struct writer {
    const struct learn_in *in;
    struct strv grants[2]; /* allow_write, allow_read */
    struct strv comments;
    struct err *err;
    bool failed;
};
enum { WRITE, READ };
static const enum file_verb verbs[] = {FILE_ALLOW_WRITE, FILE_ALLOW_READ};

void learn_seen_done(struct learn_seen *seen)
{
    for (size_t i = 0; i < seen->n; i++)
        free(seen->changes[i].path);
    free(seen->changes);
    strv_done(&seen->moved);
    strv_done(&seen->reads);
    strv_done(&seen->calls);
    strv_done(&seen->refused);
    strv_done(&seen->hosts);
    strv_done(&seen->missing);
    strv_done(&seen->notes);
    *seen = (struct learn_seen){0};
}

static enum plan_type type_of(const struct writer *w, const char *path)
{
    return w->in->host->type(w->in->host->ctx, path);
}

static void doc_add_comment(struct writer *w, const char *before, const char *path, const char *after)
{
    struct buf b = {0};
    buf_adds(&b, before);
    text_add_safe(&b, path, SAFE);
    buf_adds(&b, after);
    if (w->comments.n < LEARN_GRANTS_MAX && !strv_has(&w->comments, buf_str(&b)))
        strv_add(&w->comments, buf_str(&b));
    buf_done(&b);
}

/* --- lines ---------------------------------------------------------------------------------------------------------- */

/* Spells a path for a document: "~" for the home directory, "\" before characters of patterns. */
static void add_path(const struct writer *w, const char *path, struct buf *out)
{
    _cleanup_buf_ struct buf text = {0};
    const char *home = w->in->where.home;
    if (home && strcmp(home, "/") != 0 && path_under(path, home)) {
        buf_addc(&text, '~');
        path += strlen(home);
    }
    for (; *path; path++) {
        if (strchr("*?[\\", *path))
            buf_addc(&text, '\\');
        buf_addc(&text, *path);
    }
    node_add_scalar(out, buf_str(&text));
}

/* Some names cannot stand in a rule: bytes that are not UTF-8, and "x:/y", which would be read as two paths. */
static bool can_be_written(const char *path)
{
    _cleanup_buf_ struct buf safe = {0};
    text_add_safe(&safe, path, strlen(path) + 1);
    return strcmp(buf_str(&safe), path) == 0 && !strstr(path, ":/") && !strstr(path, ":~") && !strstr(path, ":$");
}

static bool doc_add_grant(struct writer *w, int kind, const char *path)
{
    _cleanup_buf_ struct buf text = {0};
    if (!can_be_written(path)) {
        doc_add_comment(w, "no rule can name ", path, "; rename it, or grant the directory above it");
        return false;
    }
    if (strv_has(&w->grants[kind], path) || w->grants[kind].n == LEARN_GRANTS_MAX) {
        if (w->grants[kind].n == LEARN_GRANTS_MAX)
            doc_add_comment(w, "there was more than fits in this document, such as ", path, "");
        return false;
    }
    buf_addf(&text, "files: {%s: [", file_verb_name(verbs[kind]));
    add_path(w, path, &text);
    buf_adds(&text, "]}\n");
    if (policy_parse(buf_str(&text), text.n, "what was learnt", LEVEL_FLAGS, &w->in->where, w->in->policy, w->err) <
        0) {
        w->failed = true;
        return false;
    }
    strv_add(&w->grants[kind], path);
    return true;
}

/* --- writes --------------------------------------------------------------------------------------------------------- */

/* The nearest existing directory above `path`. New string. */
static char *nearest_dir(const struct writer *w, const char *path)
{
    char *dir = path_parent(path);
    while (strcmp(dir, "/") != 0 && type_of(w, dir) != TYPE_DIR) {
        char *up = path_parent(dir);
        free(dir);
        dir = up;
    }
    return dir;
}

static bool may_write(const struct writer *w, const char *path)
{
    return policy_may_write(w->in->policy, path, NULL, NULL);
}

static bool change_is_allowed(const struct writer *w, const struct learn_change *c)
{
    if (!may_write(w, c->path))
        return false;
    if (!c->name)
        return true;
    _cleanup_free_ char *dir = nearest_dir(w, c->path);
    return may_write(w, dir);
}

/* The topmost refused directory on the way to `path`, below a writable one; NULL if nothing above is writable. */
static char *find_barrier(const struct writer *w, const char *path)
{
    char *at = xstrdup(path);
    for (;;) {
        _cleanup_free_ char *up = path_parent(at);
        if (strcmp(up, "/") == 0) {
            free(at);
            return NULL;
        }
        if (may_write(w, up))
            return at;
        free(at);
        at = TAKE_PTR(up);
    }
}

static void explain_barrier(struct writer *w, const char *wall)
{
    const struct protected_name *name = NULL;
    (void)policy_may_write(w->in->policy, wall, NULL, &name);
    doc_add_comment(w, "", wall,
                    name ? " is protected and does not exist: create it outside and learn again, or drop all built-in "
                           "protected names with files: {protect_builtin: false}"
                         : " must not be written and does not exist: create it outside and learn again");
}

static void grant_change(struct writer *w, const struct learn_change *c)
{
    _cleanup_free_ char *dir = nearest_dir(w, c->path), *wall = may_write(w, c->path) ? NULL : find_barrier(w, c->path);
    const char *target = c->name ? dir : c->path;
    if (wall && !path_under(target, wall)) {
        if (type_of(w, c->path) == TYPE_NONE) {
            explain_barrier(w, wall);
            return;
        }
        target = c->path; /* grant the file alone: it can be written, but not moved or removed */
    }
    if (strcmp(target, "/") == 0) {
        doc_add_comment(w, "", c->path, " lies in the root directory itself, which is never writable");
        return;
    }
    if (target == c->path && c->name && doc_add_grant(w, WRITE, target))
        doc_add_comment(w, "", target, " was removed or replaced; granted is writing to it where it is");
    else if (target == dir || !c->name)
        (void)doc_add_grant(w, WRITE, target);
    if (w->in->where.home && strcmp(target, w->in->where.home) == 0)
        doc_add_comment(w, "the whole home directory is needed for ", c->path,
                        "; create its directory outside and learn again for less");
}

static int by_depth(const void *a, const void *b)
{
    const struct learn_change *x = *(struct learn_change *const *)a, *y = *(struct learn_change *const *)b;
    size_t i = path_depth(x->path) + !x->name, k = path_depth(y->path) + !y->name;
    return i != k ? (i < k ? -1 : 1) : strcmp(x->path, y->path);
}

static bool change_is_guarded(const struct writer *w, const struct learn_change *c)
{
    return w->in->guard && strcmp(c->path, w->in->guard) == 0;
}

static void grant_writes(struct writer *w)
{
    const struct learn_seen *seen = w->in->seen;
    const struct learn_change **order = xcalloc(seen->n + 1, sizeof *order);
    for (size_t i = 0; i < seen->n; i++)
        order[i] = &seen->changes[i];
    qsort(order, seen->n, sizeof *order, by_depth);
    /* A grant may bring barriers below it into force. */
    for (int pass = 0; pass < PASSES && !w->failed; pass++)
        for (size_t i = 0; i < seen->n && !w->failed; i++)
            if (!change_is_guarded(w, order[i]) && !change_is_allowed(w, order[i]))
                grant_change(w, order[i]);
    free(order);
}

/* --- reads ---------------------------------------------------------------------------------------------------------- */

/* For a root caller: whether a rule already shows it with the caller's rights. */
static bool shown_as_caller(const struct policy *p, const char *path)
{
    for (size_t i = 0; i < p->nfiles; i++) {
        const struct file_rule *r = &p->files[i];
        bool shows = r->verb == FILE_ALLOW_READ || r->verb == FILE_ALLOW_WRITE || r->verb == FILE_READ_ONLY;
        if (shows && !r->is_glob && !r->src && path_under(path, r->path))
            return true;
    }
    return false;
}

static bool may_read(const struct writer *w, const char *path)
{
    return policy_may_read(w->in->policy, path, NULL) &&
           (!w->in->root || shown_as_caller(w->in->policy, path) || w->in->host->open_to_all(w->in->host->ctx, path));
}

static int by_path_depth(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    size_t i = path_depth(x), k = path_depth(y);
    return i != k ? (i < k ? -1 : 1) : strcmp(x, y);
}

static void grant_reads(struct writer *w)
{
    const struct strv *reads = &w->in->seen->reads;
    char **order = xcalloc(reads->n + 1, sizeof *order);
    for (size_t i = 0; i < reads->n; i++)
        order[i] = reads->v[i];
    qsort(order, reads->n, sizeof *order, by_path_depth);
    for (size_t i = 0; i < reads->n && !w->failed; i++)
        if (type_of(w, order[i]) != TYPE_NONE && !may_read(w, order[i]))
            (void)doc_add_grant(w, READ, order[i]);
    free(order);
}

/* --- text ----------------------------------------------------------------------------------------------------------- */

static void add_list(const struct writer *w, const char *key, struct strv *v, bool paths, struct buf *out)
{
    if (v->n == 0)
        return;
    strv_sort(v);
    buf_addf(out, "  %s:\n", key);
    for (size_t i = 0; i < v->n; i++) {
        buf_adds(out, "    - ");
        if (paths)
            add_path(w, v->v[i], out);
        else
            node_add_scalar(out, v->v[i]);
        buf_addc(out, '\n');
    }
}

/* The network section of a document replaces those of others. So write none if the rules were enough; else repeat the rules,
 * with their paths, methods and limits. Hosts that passed because of `public` are named one by one. */
static bool public_passes(const struct writer *w)
{
    const struct netpol *rules = w->in->policy->netpol;
    return rules && netpol_settings(rules)->otherwise == NETPOL_ALLOW_PUBLIC;
}

static const struct strv *hosts_of(const struct writer *w)
{
    return public_passes(w) ? &w->in->seen->hosts : &w->in->seen->missing;
}

static void add_rules(const struct writer *w, struct buf *out)
{
    static const char open[] = "  default: \"public\"\n", closed[] = "  default: \"deny\"\n";
    _cleanup_buf_ struct buf lines = {0};
    if (!w->in->policy->netpol || netpol_rules(w->in->policy->netpol) == 0)
        return;
    netpol_show_lines(w->in->policy->netpol, "  ", &lines);
    const char *at = strstr(buf_str(&lines), open);
    if (at) {
        buf_add(out, lines.p, (size_t)(at - lines.p));
        buf_adds(out, closed);
    }
    buf_adds(out, at ? at + strlen(open) : buf_str(&lines));
}

static void add_hosts(const struct writer *w, struct buf *out)
{
    const struct strv *hosts = hosts_of(w);
    if (hosts->n == 0)
        return;
    buf_adds(out, "network:\n");
    add_rules(w, out);
    buf_adds(out, "  allow:\n");
    for (size_t i = 0; i < hosts->n; i++) {
        buf_adds(out, "    - ");
        node_add_scalar(out, hosts->v[i]);
        buf_addc(out, '\n');
    }
}

static void doc_add_text(struct writer *w, struct buf *out)
{
    const struct learn_seen *seen = w->in->seen;
    _cleanup_strv_ struct strv calls = {0};
    for (size_t i = 0; i < seen->refused.n; i++)
        doc_add_comment(w, "no policy can allow the call ", seen->refused.v[i], "");
    for (size_t i = 0; i < w->comments.n; i++)
        buf_addf(out, "# %s\n", w->comments.v[i]);
    if (w->grants[WRITE].n + w->grants[READ].n + seen->calls.n == 0) {
        if (hosts_of(w)->n == 0)
            buf_adds(out, "# The run needs nothing beyond the policy it had.\n");
        return;
    }
    if (w->grants[WRITE].n + w->grants[READ].n > 0)
        buf_adds(out, "files:\n");
    add_list(w, file_verb_name(FILE_ALLOW_WRITE), &w->grants[WRITE], true, out);
    add_list(w, file_verb_name(FILE_ALLOW_READ), &w->grants[READ], true, out);
    for (size_t i = 0; i < seen->calls.n; i++)
        if (!strv_has(&calls, seen->calls.v[i]))
            strv_add(&calls, seen->calls.v[i]);
    if (calls.n > 0)
        buf_adds(out, "syscalls:\n");
    add_list(w, "allow", &calls, false, out);
}

int learn_document(const struct learn_in *in, struct buf *out, struct err *err)
{
    struct writer w = {.in = in, .err = err};
    grant_writes(&w);
    grant_reads(&w);
    if (!w.failed) {
        doc_add_text(&w, out);
        add_hosts(&w, out);
    }
    strv_done(&w.grants[WRITE]);
    strv_done(&w.grants[READ]);
    strv_done(&w.comments);
    if (w.failed) {
        err->code = ERR_INTERNAL;
        return -1;
    }
    return 0;
}
