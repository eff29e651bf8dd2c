/* test_learn.c - from what a command did to the document, and from an upper layer to what it did. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "policy-harness.h"

#include "cli/run/learn.h"

/* --- a host as a table ---------------------------------------------------------------------------------------------- */

static const char *const dirs[] = {
    "/etc",
    "/srv",
    "/srv/data",
    "/srv/data/deep",
    "/home/u",
    "/home/u/.cache",
    "/home/u/work",
    "/home/u/.ssh",
    "/home/u/work/.git",
    "/home/u/work/.git/hooks",
    "/home/u/.config",
    "/home/u/.config/autostart",
    "/root",
    "/srv/a*b",
    "/srv/c:",
    "/srv/c:/d",
    NULL,
};
static const char *const files[] = {
    "/etc/motd",
    "/srv/data/f",
    "/home/u/.ssh/config",
    "/home/u/.ssh/id",
    "/home/u/.bashrc",
    "/home/u/work/.envrc",
    "/home/u/work/.git/hooks/pre-commit",
    "/root/secret",
    NULL,
};

static bool listed(const char *const *v, const char *path)
{
    for (; *v; v++)
        if (strcmp(*v, path) == 0)
            return true;
    return false;
}

static enum plan_type table_type(void *ctx, const char *path)
{
    (void)ctx;
    return listed(dirs, path) ? TYPE_DIR : listed(files, path) ? TYPE_FILE : TYPE_NONE;
}

static bool table_open(void *ctx, const char *path)
{
    (void)ctx;
    return strncmp(path, "/root", 5) != 0;
}

static const struct learn_host table = {.type = table_type, .open_to_all = table_open};

/* --- the document --------------------------------------------------------------------------------------------------- */

/* `did`: words of "w:PATH" (changed in place), "n:PATH" (name made, removed, replaced), "r:PATH", "c:CALL", "x:CALL". */
static void see(struct learn_seen *seen, const char *did)
{
    _cleanup_free_ char *copy = xstrdup(did);
    for (char *s = copy, *next; s && *s; s = next) {
        next = strchr(s, ' ');
        if (next)
            *next++ = '\0';
        if (s[0] == 'w' || s[0] == 'n') {
            MEM_GROW(seen->changes, seen->n, seen->cap);
            seen->changes[seen->n++] = (struct learn_change){.path = xstrdup(s + 2), .name = s[0] == 'n'};
        } else {
            strv_add(s[0] == 'r' ? &seen->reads : s[0] == 'c' ? &seen->calls : &seen->refused, s + 2);
        }
    }
}

static void learnt(const char *did, bool root, struct buf *out)
{
    struct learn_seen seen = {0};
    struct err err = {0};
    _cleanup_policy_ struct policy *p = policy_new(), *again = policy_new();
    policy_add_defaults(&place, p);
    see(&seen, did);
    struct learn_in in = {.seen = &seen, .policy = p, .where = place, .host = &table, .root = root};
    if (learn_document(&in, out, &err) < 0)
        fail_msg("%s: %s", did, err.msg);
    learn_seen_done(&seen);
    if (policy_parse(buf_str(out), out->n, "p.yaml", LEVEL_FLAGS, &place, again, &err) < 0)
        fail_msg("%s: does not read back: %s\n%s", did, err.msg, buf_str(out));
}

/* The lines that are no comments, joined with "|". */
static char *lines_of(const struct buf *text)
{
    struct buf b = {0};
    for (const char *s = buf_str(text); *s;) {
        size_t n = strcspn(s, "\n");
        if (*s != '#') {
            if (b.n)
                buf_addc(&b, '|');
            const char *from = s + strspn(s, " ");
            buf_add(&b, from, n - (size_t)(from - s));
        }
        s += n + (s[n] == '\n');
    }
    return b.p ? b.p : xstrdup("");
}

static const struct {
    const char *did, *want, *comment; /* comment: part of the text, or NULL */
    bool root;
} cases[] = {
    /* nothing needed */
    {"", "", "needs nothing", false},
    {"n:/home/u/work/out w:/home/u/work/x/y n:/tmp/t n:/var/tmp/t n:/run/x", "", "needs nothing", false},
    /* nearest directory that is there, nested ones merged, files alone where that is enough */
    {"n:/home/u/.cache/x", "files:|allow_write:|- \"~/.cache\"", NULL, false},
    {"n:/srv/data/new/deeper/f", "files:|allow_write:|- /srv/data", NULL, false},
    {"w:/srv/data/f", "files:|allow_write:|- /srv/data/f", NULL, false},
    {"w:/srv/data/f n:/srv/data/deep/x n:/srv/data/g", "files:|allow_write:|- /srv/data", NULL, false},
    {"w:/srv/data/f n:/srv/data/deep/x", "files:|allow_write:|- /srv/data/deep|- /srv/data/f", NULL, false},
    {"n:/new", "", "never writable", false},
    {"n:/home/u/.new", "files:|allow_write:|- \"~\"", "whole home directory", false},
    /* barriers inside what a grant opens */
    {"n:/home/u/x n:/home/u/.config/autostart/a", "files:|allow_write:|- \"~\"|- \"~/.config/autostart\"", NULL, false},
    {"n:/home/u/x n:/home/u/.ssh/known_hosts", "files:|allow_write:|- \"~\"|- \"~/.ssh\"", NULL, false},
    {"n:/home/u/x w:/home/u/.bashrc", "files:|allow_write:|- \"~\"|- \"~/.bashrc\"", NULL, false},
    /* protected names */
    {"w:/home/u/work/.envrc", "files:|allow_write:|- \"~/work/.envrc\"", NULL, false},
    {"n:/home/u/work/.envrc", "files:|allow_write:|- \"~/work/.envrc\"", "removed or replaced", false},
    {"n:/home/u/work/.git/hooks/new", "files:|allow_write:|- \"~/work/.git/hooks\"", NULL, false},
    {"w:/home/u/work/.git/hooks/pre-commit", "files:|allow_write:|- \"~/work/.git/hooks/pre-commit\"", NULL, false},
    {"n:/home/u/work/.vscode", "", "protect_builtin", false},
    /* reads */
    {"r:/home/u/.ssh/config", "files:|allow_read:|- \"~/.ssh/config\"", NULL, false},
    {"r:/home/u/.ssh r:/home/u/.ssh/config", "files:|allow_read:|- \"~/.ssh\"", NULL, false},
    {"r:/home/u/.ssh/not-there", "", "needs nothing", false},
    {"r:/home/u/.ssh/config n:/home/u/.ssh/new", "files:|allow_write:|- \"~/.ssh\"", NULL, false},
    {"r:/root/secret", "", "needs nothing", false},
    {"r:/root/secret r:/etc/motd", "files:|allow_read:|- /root/secret", NULL, true},
    /* calls */
    {"c:ptrace c:ptrace c:perf_event_open", "syscalls:|allow:|- perf_event_open|- ptrace", NULL, false},
    {"x:mount\n/mnt", "", "no policy can allow the call mount\\n/mnt", false},
    /* names that need care */
    {"n:/srv/a*b/x", "files:|allow_write:|- \"/srv/a\\\\*b\"", NULL, false},
    {"n:/srv/c:/x", "files:|allow_write:|- \"/srv/c:\"", NULL, false},
    {"n:/srv/c:/d/x", "", "no rule can name /srv/c:/d", false},
};

static void each_run_gives_the_smallest_document(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_buf_ struct buf text = {0};
        learnt(cases[i].did, cases[i].root, &text);
        _cleanup_free_ char *got = lines_of(&text);
        if (strcmp(got, cases[i].want) != 0)
            fail_msg("\"%s\"\n gives  %s\n not    %s\n%s", cases[i].did, got, cases[i].want, buf_str(&text));
        if (cases[i].comment && !strstr(buf_str(&text), cases[i].comment))
            fail_msg("\"%s\" lacks the comment \"%s\":\n%s", cases[i].did, cases[i].comment, buf_str(&text));
    }
}

static void hostile_names_stay_inside_their_comment(void **state)
{
    (void)state;
    struct learn_seen seen = {0};
    struct err err = {0};
    _cleanup_buf_ struct buf text = {0};
    _cleanup_policy_ struct policy *p = policy_new();
    policy_add_defaults(&place, p);
    seen.changes = xcalloc(2, sizeof *seen.changes);
    seen.changes[seen.n++] = (struct learn_change){.path = xstrdup("/\nfiles: {allow_write: [/etc]}"), .name = true};
    seen.changes[seen.n++] = (struct learn_change){.path = xstrdup("/srv/data/\x1b]0;x\xff\n"), .name = false};
    struct learn_in in = {.seen = &seen, .policy = p, .where = place, .host = &table};
    assert_int_equal(learn_document(&in, &text, &err), 0);
    _cleanup_free_ char *lines = lines_of(&text);
    assert_string_equal(lines, "");
    assert_null(strchr(buf_str(&text), 0x1b));
    learn_seen_done(&seen);
}

/* `rules`: the run's own network section; `reached` and `missing`: hosts, separated by spaces. */
static char *network_learnt(const char *rules, const char *reached, const char *missing, struct buf *out)
{
    struct learn_seen seen = {0};
    struct err err = {0};
    _cleanup_policy_ struct policy *p = policy_new(), *again = policy_new();
    policy_add_defaults(&place, p);
    if (policy_parse(rules, strlen(rules), "p.yaml", LEVEL_USER, &place, p, &err) < 0)
        fail_msg("%s", err.msg);
    const char *lists[] = {reached, missing, missing};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        for (const char *s = lists[i]; *s; s += strspn(s, " ")) {
            size_t n = strcspn(s, " ");
            strv_take(i < 2 ? &seen.hosts : &seen.missing, xstrndup(s, n));
            s += n;
        }
    struct learn_in in = {.seen = &seen, .policy = p, .where = place, .host = &table};
    if (learn_document(&in, out, &err) < 0)
        fail_msg("%s: %s", rules, err.msg);
    learn_seen_done(&seen);
    if (policy_parse(buf_str(out), out->n, "l.yaml", LEVEL_FLAGS, &place, again, &err) < 0)
        fail_msg("%s: does not read back: %s\n%s", rules, err.msg, buf_str(out));
    return again->network_text ? xstrdup(again->network_text) : NULL;
}

/* The section replaces the rules of other documents, so it must not be wider than they were. */
static void rules_of_the_network_are_kept(void **state)
{
    static const char narrow[] =
        "network: {rules: [{id: mine, hosts: [a.test], http: [{methods: [GET], paths: [/x]}]}]}\n";
    static const char mostly[] = "network: {default: public, deny: [x.test]}\n";
    (void)state;
    _cleanup_buf_ struct buf none = {0}, more = {0}, wide = {0}, all = {0}, off = {0};
    _cleanup_free_ char *got = network_learnt(narrow, "a.test", "", &none);
    assert_null(got);
    assert_non_null(strstr(buf_str(&none), "needs nothing"));
    _cleanup_free_ char *kept = network_learnt(narrow, "a.test", "b.test:8080", &more);
    assert_non_null(kept);
    assert_non_null(strstr(kept, "\"mine\""));
    assert_non_null(strstr(kept, "/x"));
    assert_non_null(strstr(kept, "b.test"));
    _cleanup_free_ char *closed = network_learnt(mostly, "a.test", "", &wide);
    assert_non_null(closed);
    assert_non_null(strstr(closed, "\"default\":\"deny\""));
    assert_non_null(strstr(closed, "x.test"));
    assert_non_null(strstr(closed, "a.test"));
    _cleanup_free_ char *named = network_learnt("network: public\n", "a.test", "", &all);
    assert_non_null(named);
    assert_string_equal(buf_str(&all), "network:\n  allow:\n    - a.test\n");
    _cleanup_free_ char *first = network_learnt("network: off\n", "", "a.test", &off);
    assert_non_null(first);
    assert_string_equal(buf_str(&off), "network:\n  allow:\n    - a.test\n");
}

/* The log of the run is protected by a rule of the run's own, which a grant would contradict. */
static void nothing_is_granted_for_the_log(void **state)
{
    (void)state;
    static const char rule[] = "files: {deny_write: [/home/u/work/log]}\n";
    struct learn_seen seen = {0};
    struct err err = {0};
    _cleanup_buf_ struct buf text = {0};
    _cleanup_policy_ struct policy *p = policy_new();
    policy_add_defaults(&place, p);
    assert_int_equal(policy_parse(rule, strlen(rule), "--audit", LEVEL_FLAGS, &place, p, &err), 0);
    see(&seen, "w:/home/u/work/log n:/home/u/work/log n:/home/u/.cache/x");
    struct learn_in in = {.seen = &seen, .policy = p, .where = place, .host = &table, .guard = "/home/u/work/log"};
    if (learn_document(&in, &text, &err) < 0)
        fail_msg("%s", err.msg);
    _cleanup_free_ char *lines = lines_of(&text);
    assert_string_equal(lines, "files:|allow_write:|- \"~/.cache\"");
    learn_seen_done(&seen);
}

/* --- a layer -------------------------------------------------------------------------------------------------------- */

static enum plan_type real_type(void *ctx, const char *path)
{
    struct stat st;
    (void)ctx;
    if (lstat(path, &st) < 0)
        return TYPE_NONE;
    return S_ISDIR(st.st_mode) ? TYPE_DIR : S_ISLNK(st.st_mode) ? TYPE_SYMLINK : TYPE_FILE;
}

static const struct learn_change *change_of(const struct learn_seen *seen, const char *dir, const char *name)
{
    _cleanup_free_ char *path = xasprintf("%s/%s", dir, name);
    for (size_t i = 0; i < seen->n; i++)
        if (strcmp(seen->changes[i].path, path) == 0)
            return &seen->changes[i];
    return NULL;
}

static void make(const char *base, const char *name, char kind)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", base, name);
    if (kind == 'd')
        assert_int_equal(mkdir(path, 0755), 0);
    else if (kind == 'l')
        assert_int_equal(symlink("/etc", path), 0);
    else if (kind == 'w')
        assert_int_equal(mknod(path, S_IFCHR, makedev(0, 0)), 0);
    else
        write_file(path, "x");
}

static void a_layer_is_read_without_following_anything(void **state)
{
    (void)state;
    struct scratch s;
    struct learn_seen seen = {0};
    const struct learn_host real = {.type = real_type, .open_to_all = table_open};
    scratch_make(&s);
    const char *lower = s.home, *upper = s.work;
    for (const char *const *n = (const char *const[]){"both", "both/in", "gone", "again", NULL}; *n; n++)
        make(lower, *n, 'd');
    for (const char *const *n = (const char *const[]){"file", "turned", NULL}; *n; n++)
        make(lower, *n, 'f');
    make(upper, "both", 'd');
    make(upper, "both/in", 'd');
    make(upper, "both/in/new", 'f');
    make(upper, "gone", 'w');
    make(upper, "never", 'w');
    make(upper, "again", 'd');
    make(upper, "again/inner", 'f');
    make(upper, "file", 'f');
    make(upper, "turned", 'l');
    make(upper, "fresh", 'd');
    make(upper, "fresh/inner", 'f');
    char again[160];
    (void)snprintf(again, sizeof again, "%s/again", upper);
    bool xattrs = setxattr(again, "user.overlay.opaque", "y", 1, 0) == 0;
    int dir = open(upper, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(dir >= 0);
    learn_read_layer(dir, lower, &real, &seen);
    (void)close(dir);
    for (const char *const *n = (const char *const[]){"both/in/new", "gone", "file", "turned", "fresh", NULL}; *n;
         n++) {
        const struct learn_change *c = change_of(&seen, lower, *n);
        if (!c || !c->name)
            fail_msg("%s is not a change of a name", *n);
    }
    assert_null(change_of(&seen, lower, "both"));
    assert_null(change_of(&seen, lower, "both/in"));
    assert_null(change_of(&seen, lower, "never"));
    assert_null(change_of(&seen, lower, "fresh/inner"));
    if (xattrs)
        assert_non_null(change_of(&seen, lower, "again"));
    assert_false(seen.truncated);
    learn_seen_done(&seen);
    scratch_done(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_run_gives_the_smallest_document),
        cmocka_unit_test(rules_of_the_network_are_kept),
        cmocka_unit_test(nothing_is_granted_for_the_log),
        cmocka_unit_test(hostile_names_stay_inside_their_comment),
        cmocka_unit_test(a_layer_is_read_without_following_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
