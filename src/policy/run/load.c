/* load.c - finds the documents, reads them in order, and treats flags as one more document. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/path.h"
#include "base/text.h"
#include "policy/run/doc.h"
#include "policy/run/plan.h"
#include "policy/run/trust.h"

static int parse_document(const char *text, size_t n, const char *name, enum policy_level level, bool trusted,
                          const struct policy_where *where, struct policy *p, struct err *err)
{
    _cleanup_node_ struct node *root = NULL;
    _cleanup_free_ char *dir = NULL;
    struct doc d = {.where = where, .level = level, .p = p, .err = err};
    if (node_read(text, n, name, 0, &root, err) < 0)
        return -1;
    if (level == LEVEL_PROJECT && where->project_file)
        dir = path_parent(where->project_file);
    d.base = dir ? dir : level == LEVEL_SYSTEM || level == LEVEL_USER ? NULL : where->cwd;
    d.name = doc_keep(p, name);
    d.may_widen = level != LEVEL_PROJECT || trusted;
    strv_add(&p->sources, name);
    return doc_read_tree(&d, root);
}

int policy_parse(const char *text, size_t n, const char *name, enum policy_level level,
                 const struct policy_where *where, struct policy *p, struct err *err)
{
    return parse_document(text, n, name, level, false, where, p, err);
}

/* Reads a document into b. *found is false if it does not exist and need not. */
static int load_read_document(const char *file, enum policy_level level, struct buf *b, bool *found, struct err *err)
{
    struct stat st;
    _cleanup_buf_ struct buf name = {0};
    bool required = level == LEVEL_FLAGS || level == LEVEL_SETTINGS;
    text_add_safe(&name, file, 512);
    *found = stat(file, &st) == 0;
    /* An unreachable file, or a stub of a running sandbox, counts as no document. The system's document is the
     * exception: its ceiling must not vanish behind a closed directory. */
    bool hidden = !*found && errno == EACCES && level != LEVEL_SYSTEM;
    if (!*found && (errno == ENOENT || errno == ENOTDIR || hidden) && !required)
        return 0;
    if (*found && !required && plan_is_stub(&st)) {
        *found = false;
        return 0;
    }
    if (!*found)
        return err_set(err, ERR_POLICY, errno, "cannot read policy %s", buf_str(&name));
    if (!S_ISREG(st.st_mode) && required && !S_ISDIR(st.st_mode))
        ; /* a pipe from the shell, <(...), is fine where the caller named it */
    else if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_POLICY, 0, "policy %s is not a regular file", buf_str(&name));
    if (S_ISREG(st.st_mode) && (st.st_mode & 0002))
        return err_set(err, ERR_POLICY, 0, "policy %s can be written by everyone; run: chmod o-w %s", buf_str(&name),
                       buf_str(&name));
    if (fd_read_file(AT_FDCWD, file, NODE_TEXT_MAX, b) < 0)
        return err_set(err, ERR_POLICY, errno == EFBIG ? 0 : errno,
                       errno == EFBIG ? "policy %s is larger than 1 MiB" : "cannot read policy %s", buf_str(&name));
    if (!S_ISREG(st.st_mode) && b->n == 0)
        return err_set(err, ERR_POLICY, 0, "nothing could be read from policy %s (a pipe needs a writer first)",
                       buf_str(&name));
    return 0;
}

static int load_level(const char *file, enum policy_level level, const struct policy_where *where, struct policy *p,
                      struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    bool found = false, trusted = false;
    if (load_read_document(file, level, &text, &found, err) < 0)
        return -1;
    if (!found)
        return 0;
    if (level == LEVEL_PROJECT) {
        _cleanup_free_ char *trust = trust_file_of(where);
        if (trust && trust_check(trust, file, buf_str(&text), text.n, &trusted, err) < 0)
            return -1;
    }
    return parse_document(buf_str(&text), text.n, file, level, trusted, where, p, err);
}

static int load_standard(const struct policy_where *where, struct policy *p, struct err *err)
{
    _cleanup_free_ char *user = where->user_file ? xstrdup(where->user_file)
                                : where->home    ? path_join(where->home, ".config/hutch/policy.yaml")
                                                 : NULL;
    _cleanup_free_ char *project =
        where->project_file ? xstrdup(where->project_file) : path_join(where->cwd, ".hutch.yaml");
    const char *system = where->system_file ? where->system_file : "/etc/hutch/policy.yaml";
    if (load_level(system, LEVEL_SYSTEM, where, p, err) < 0)
        return -1;
    if (user && load_level(user, LEVEL_USER, where, p, err) < 0)
        return -1;
    return load_level(project, LEVEL_PROJECT, where, p, err);
}

/* --- flags -------------------------------------------------------------------------------------------------------- */

static bool is_list_key(const char *key)
{
    static const char *const lists[] = {"files.search_depth", "files.protect_builtin", "syscalls.profile"};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        if (strcmp(key, lists[i]) == 0)
            return false;
    return strncmp(key, "files.", 6) == 0 || strncmp(key, "syscalls.", 9) == 0 || strcmp(key, "env.pass") == 0 ||
           strcmp(key, "env.deny") == 0 || strcmp(key, "network.allow") == 0 || strcmp(key, "network.deny") == 0 ||
           strcmp(key, "network.rule") == 0 || strcmp(key, "network.private") == 0;
}

/* {section: {key: value}} as a tree, so that flags go the same way as documents. NULL if the value cannot be split. */
static struct node *flag_tree(const struct policy_flag *flag)
{
    const char *dot = strchr(flag->key, '.');
    struct node *root = node_new(NODE_MAP, NULL, 0), *at = root, *value = node_new(NODE_SCALAR, flag->value, 0);
    if (dot) {
        _cleanup_free_ char *section = xstrndup(flag->key, (size_t)(dot - flag->key));
        struct node *inner = node_new(NODE_MAP, NULL, 0);
        node_take(root, node_new(NODE_SCALAR, section, 0));
        node_take(root, inner);
        at = inner;
    }
    node_take(at, node_new(NODE_SCALAR, dot ? dot + 1 : flag->key, 0));
    if (is_list_key(flag->key)) {
        struct node *list = node_new(NODE_LIST, NULL, 0);
        node_take(list, value);
        value = list;
    } else if (strcmp(flag->key, "env.set") == 0) {
        size_t n = strcspn(flag->value, "=");
        _cleanup_free_ char *name = xstrndup(flag->value, n);
        struct node *map = node_new(NODE_MAP, NULL, 0);
        node_free(value);
        node_take(map, node_new(NODE_SCALAR, name, 0));
        node_take(map, node_new(NODE_SCALAR, flag->value[n] ? flag->value + n + 1 : "", 0));
        value = map;
    }
    node_take(at, value);
    return root;
}

static int load_flag(const struct policy_flag *flag, const struct policy_where *where, struct policy *p,
                     struct err *err)
{
    struct doc d = {.where = where, .level = LEVEL_FLAGS, .base = where->cwd, .p = p, .may_widen = true, .err = err};
    d.name = doc_keep(p, flag->text);
    d.file_flags = flag->flags;
    if (strlen(flag->value) > NODE_SCALAR_MAX)
        return doc_fail(&d, 0, "the value is longer than %d bytes", NODE_SCALAR_MAX);
    if (strcmp(flag->key, "preset") == 0)
        return preset_apply(&d, flag->value);
    _cleanup_node_ struct node *tree = flag_tree(flag);
    return doc_read_tree(&d, tree);
}

static int load_settings(const char *file, bool network_off, const struct policy_where *where, struct policy *p,
                         struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    bool found;
    if (load_read_document(file, LEVEL_SETTINGS, &text, &found, err) < 0)
        return -1;
    return settings_parse(buf_str(&text), text.n, file, where, network_off ? SETTINGS_NETWORK_OFF : 0, p, err);
}

/* Home directories of people: HOME may name another place (a clean start, sudo) while the command runs in a real one.
 * System accounts are left out: their homes are places like / and /var/mail. */
static void add_homes(struct policy *p)
{
    enum { PASSWD_BYTES = 256 << 10, HOMES_MAX = 64, FIRST_PERSON = 1000, NOBODY = 65534 };
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(AT_FDCWD, "/etc/passwd", PASSWD_BYTES, &text) < 0)
        return;
    char *save = NULL;
    for (char *line = strtok_r(text.p, "\n", &save); line && p->homes.n < HOMES_MAX;
         line = strtok_r(NULL, "\n", &save)) {
        char *field[6] = {line}; /* name, password, uid, gid, real name, home */
        size_t n = 1;
        for (char *s = line; n < ARRAY_LEN(field) && (s = strchr(s, ':')); s++) {
            *s = '\0';
            field[n++] = s + 1;
        }
        int uid;
        if (n < ARRAY_LEN(field) || !num_int(field[2], 0, INT_MAX, &uid) || (uid != 0 && uid < FIRST_PERSON) ||
            uid == NOBODY)
            continue;
        field[5][strcspn(field[5], ":")] = '\0';
        _cleanup_free_ char *home = field[5][0] == '/' ? path_clean("/", field[5]) : NULL;
        if (home && strcmp(home, "/") != 0 && !strv_has(&p->homes, home))
            strv_take(&p->homes, TAKE_PTR(home));
    }
}

/* Presets come first, so that every other option can change what they say; --allow-private speaks of the hosts that everything
 * else allows. */
static int flag_turn(const struct policy_flag *flag)
{
    return strcmp(flag->key, "preset") == 0 ? 0 : strcmp(flag->key, "network.private") == 0 ? 2 : 1;
}

static int load_all(const struct policy_where *where, const char *const *extra_files, const char *settings,
                    const struct policy_flag *flags, size_t nflags, struct policy *p, struct err *err)
{
    bool network_off = false;
    for (size_t i = 0; i < nflags; i++)
        if (strcmp(flags[i].key, "network") == 0)
            network_off = strcmp(flags[i].value, "off") == 0;
    policy_add_defaults(where, p);
    add_homes(p);
    if (load_standard(where, p, err) < 0)
        return -1;
    if (settings && load_settings(settings, network_off, where, p, err) < 0)
        return -1;
    for (; extra_files && *extra_files; extra_files++)
        if (load_level(*extra_files, LEVEL_FLAGS, where, p, err) < 0)
            return -1;
    for (int turn = 0; turn < 3; turn++)
        for (size_t i = 0; i < nflags; i++)
            if (flag_turn(&flags[i]) == turn && load_flag(&flags[i], where, p, err) < 0)
                return -1;
    return ceiling_apply(p, err) < 0 ? -1 : merge_aliases(p, err);
}

int policy_load(const struct policy_where *where, const char *const *extra_files, const char *settings,
                const struct policy_flag *flags, size_t nflags, struct policy **ret, struct err *err)
{
    struct policy *p = policy_new();
    if (load_all(where, extra_files, settings, flags, nflags, p, err) < 0) {
        policy_free(p);
        return -1;
    }
    *ret = p;
    return 0;
}
