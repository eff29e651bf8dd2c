/* The result record: valid whatever a sandbox puts into names, silent when all went well, exact about what is not
 * known. */
#include "tests/lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"
#include "cli/run/denials-int.h"
#include "cli/run/hostexec.h"
#include "cli/run/record.h"
#include "policy/run/syscalls.h"

/* --- a strict reader of JSON: the grammar of RFC 8259 and valid UTF-8, nothing else ------------------------------- */

static const unsigned char *value(const unsigned char *s, unsigned depth);

static const unsigned char *utf8(const unsigned char *s)
{
    unsigned more = *s < 0x80                 ? 0
                    : *s >= 0xc2 && *s < 0xe0 ? 1
                    : (*s & 0xf0) == 0xe0     ? 2
                    : *s >= 0xf0 && *s < 0xf5 ? 3
                                              : 9;
    if (more == 9 || (*s == 0xe0 && s[1] < 0xa0) || (*s == 0xed && s[1] > 0x9f))
        return NULL;
    for (s++; more > 0; more--, s++)
        if ((*s & 0xc0) != 0x80)
            return NULL;
    return s;
}

static const unsigned char *string(const unsigned char *s)
{
    if (*s++ != '"')
        return NULL;
    while (s && *s != '"') {
        if (*s < 0x20)
            return NULL;
        if (*s != '\\') {
            s = utf8(s);
            continue;
        }
        s++;
        if (*s == 'u') {
            for (int i = 1; i <= 4; i++)
                if (!strchr("0123456789abcdefABCDEF", s[i]) || s[i] == '\0')
                    return NULL;
            s += 5;
        } else if (*s && strchr("\"\\/bfnrt", *s)) {
            s++;
        } else {
            return NULL;
        }
    }
    return s ? s + 1 : NULL;
}

static const unsigned char *number(const unsigned char *s)
{
    if (*s == '-')
        s++;
    size_t n = strspn((const char *)s, "0123456789");
    if (n == 0 || (n > 1 && *s == '0'))
        return NULL;
    s += n;
    if (*s != '.')
        return s;
    n = strspn((const char *)++s, "0123456789");
    return n == 0 ? NULL : s + n;
}

static const unsigned char *members(const unsigned char *s, bool object, unsigned depth)
{
    const unsigned char end = object ? '}' : ']';
    if (*++s == end)
        return s + 1;
    for (;;) {
        if (object && (!(s = string(s)) || *s++ != ':'))
            return NULL;
        if (!(s = value(s, depth + 1)))
            return NULL;
        if (*s == end)
            return s + 1;
        if (*s++ != ',')
            return NULL;
    }
}

static const unsigned char *value(const unsigned char *s, unsigned depth)
{
    static const char *const words[] = {"true", "false", "null"};
    if (depth > 16)
        return NULL;
    if (*s == '{' || *s == '[')
        return members(s, *s == '{', depth);
    if (*s == '"')
        return string(s);
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strncmp((const char *)s, words[i], strlen(words[i])) == 0)
            return s + strlen(words[i]);
    return number(s);
}

static void assert_json(const struct buf *b)
{
    const unsigned char *end = value((const unsigned char *)buf_str(b), 0);
    if (!end || *end)
        fail_msg("not JSON: %s", buf_str(b));
    assert_int_equal(strlen(buf_str(b)), b->n);
}

static void the_reader_itself_refuses_bad_json(void **state)
{
    (void)state;
    static const char *const bad[] = {"{",       "[1,]",    "\"\n\"",           "\"\xff\"", "01",
                                      "{\"a\"}", "\"\\x\"", "\"\xed\xa0\x80\"", ""};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        const unsigned char *end = value((const unsigned char *)bad[i], 0);
        assert_false(end && !*end);
    }
}

/* --- records ------------------------------------------------------------------------------------------------------ */

struct world {
    struct policy *policy;
    struct plan plan;
    struct denials *denials;
    struct outcome outcome;
    struct wall_spec spec;
    struct filter filter;
    struct strv born, notes, dropped;
    char *argv[3];
    struct record_in in;
    struct buf json, tail;
};

static int set_up(void **state)
{
    struct world *w = xcalloc(1, sizeof *w);
    struct policy_where where = {.cwd = "/work"};
    w->policy = policy_new();
    policy_add_defaults(&where, w->policy);
    w->denials = denials_new(w->policy, &w->plan, FILTER_NOTIFY);
    w->argv[0] = "make";
    w->argv[1] = "test";
    w->filter.flags = FILTER_NOTIFY;
    w->spec = (struct wall_spec){.filter = &w->filter, .open_files = 4096, .disk_bytes = 1 << 20, .disk_inodes = 100};
    w->in = (struct record_in){.outcome = &w->outcome,
                               .denials = w->denials,
                               .policy = w->policy,
                               .plan = &w->plan,
                               .spec = &w->spec,
                               .host_may_execute = &w->born,
                               .notes = &w->notes,
                               .env_dropped = &w->dropped,
                               .argv = w->argv};
    w->outcome.wall_us = 1234567;
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;
    denials_free(w->denials);
    policy_free(w->policy);
    strv_done(&w->plan.layers);
    strv_done(&w->born);
    strv_done(&w->notes);
    strv_done(&w->dropped);
    buf_done(&w->json);
    buf_done(&w->tail);
    free(w);
    return 0;
}

static void render(struct world *w)
{
    buf_done(&w->json);
    buf_done(&w->tail);
    record_json(&w->in, &w->json);
    record_tail(&w->in, &w->tail);
    assert_json(&w->json);
    size_t lines = 0;
    for (const char *s = buf_str(&w->tail); *s; s = strchr(s, '\n') + 1) {
        assert_int_equal(strncmp(s, "hutch: ", 7), 0);
        assert_non_null(strchr(s, '\n'));
        lines++;
    }
    assert_in_range(lines, 0, 15);
}

static void has(const struct buf *b, const char *text)
{
    if (!strstr(buf_str(b), text))
        fail_msg("lacks %s: %s", text, buf_str(b));
}

static void lacks(const struct buf *b, const char *text)
{
    if (strstr(buf_str(b), text))
        fail_msg("has %s: %s", text, buf_str(b));
}

static void a_good_end_prints_nothing_and_guesses_nothing(void **state)
{
    struct world *w = *state;
    render(w);
    assert_int_equal(w->tail.n, 0);
    has(&w->json, "\"version\":1,");
    has(&w->json, "\"command\":[\"make\",\"test\"]");
    has(&w->json, "\"tier\":\"process\"");
    has(&w->json, "\"exit_code\":0,\"exit\":0,\"signal\":null");
    has(&w->json, "\"wall_ms\":1234.567");
    has(&w->json, "\"cause\":\"exit\"");
    has(&w->json, "\"denials\":[],\"denials_omitted\":0");
    static const char *const unknown[] = {"memory_peak", "max_rss",      "io_read", "pids_peak",
                                          "throttled",   "output_bytes", "oom"};
    for (size_t i = 0; i < ARRAY_LEN(unknown); i++)
        lacks(&w->json, unknown[i]);
}

static void limits_say_what_enforces_them(void **state)
{
    struct world *w = *state;
    w->policy->limits[LIMIT_MEMORY] = (struct limit){.set = true, .value = 128 << 20};
    render(w);
    has(&w->json, "\"memory\":{\"value\":134217728,\"text\":\"128 MiB\",\"enforced_by\":\"none\"");
    has(&w->json, "\"pids\":{\"value\":1024,\"text\":\"1024\",\"enforced_by\":\"none\"");
    has(&w->json, "\"enforced_by\":\"rlimit\"");
    w->in.memory_watched = true;
    w->spec.pids = 1024;
    render(w);
    has(&w->json, "\"text\":\"128 MiB\",\"enforced_by\":\"watcher\"");
    has(&w->json, "\"text\":\"1024\",\"enforced_by\":\"rlimit\"");
    w->in.cgroup_backend = "v2";
    w->outcome.cg.have = CGROUP_HAVE_MEMORY_PEAK | CGROUP_HAVE_PIDS_PEAK;
    render(w);
    has(&w->json, "\"text\":\"1024\",\"enforced_by\":\"rlimit\""); /* the default is not written to a cgroup */
    w->policy->limits[LIMIT_PIDS].typed = true;
    render(w);
    has(&w->json, "\"text\":\"128 MiB\",\"enforced_by\":\"cgroup\"");
    has(&w->json, "\"text\":\"1024\",\"enforced_by\":\"cgroup\"");
    has(&w->json, "\"cgroup\":\"v2\"");
}

static void an_oom_kill_names_limit_process_and_peak(void **state)
{
    struct world *w = *state;
    struct outcome *o = &w->outcome;
    w->policy->limits[LIMIT_MEMORY] = (struct limit){.set = true, .value = 128 << 20};
    *o = (struct outcome){.cause = END_OOM, .exit_code = 124, .signal = SIGKILL, .status = SIGKILL, .oom_seen = true};
    o->oom.count = 1;
    o->oom.last = (struct oom_line){.kind = OOM_KILLED, .pid = 3, .comm = "python3", .anon_rss_kb = 126 * 1024};
    o->cg.have = CGROUP_HAVE_MEMORY_PEAK;
    o->cg.memory_peak = 128 << 20;
    render(w);
    assert_string_equal(buf_str(&w->tail),
                        "hutch: memory limit 128 MiB reached: python3 (pid 3) had 126 MiB; peak 128 MiB\n");
    has(&w->json,
        "\"oom\":{\"peak\":134217728,\"limit\":134217728,\"process\":\"python3\",\"pid\":3,\"rss\":132120576}");
    has(&w->json, "\"signal\":\"SIGKILL\"");
    o->oom = (struct oom_kill){0};
    render(w);
    assert_string_equal(buf_str(&w->tail), "hutch: memory limit 128 MiB reached: peak 128 MiB\n");
    lacks(&w->json, "\"process\":");
}

static void every_cause_has_its_word_and_one_line(void **state)
{
    struct world *w = *state;
    static const struct {
        enum end_cause cause;
        const char *word;
        bool silent;
    } causes[] = {
        {END_EXIT, "exit", true},          {END_SIGNAL, "signal", true},      {END_OOM, "oom", false},
        {END_DEADLINE, "deadline", false}, {END_CPU_TIME, "cpu_time", false}, {END_OUTPUT, "output", false},
        {END_DENIALS, "denials", false},   {END_NOT_RUN, "not_run", true},    {END_UNKNOWN, "unknown", false},
    };
    w->policy->limits[LIMIT_WALL_TIME] = (struct limit){.set = true, .value = 30000};
    for (size_t i = 0; i < ARRAY_LEN(causes); i++) {
        w->outcome = (struct outcome){.cause = causes[i].cause, .exec_errno = ENOENT};
        render(w);
        _cleanup_free_ char *want = xasprintf("\"cause\":\"%s\"", causes[i].word);
        has(&w->json, want);
        assert_int_equal(w->tail.n == 0, causes[i].silent);
        if (causes[i].cause == END_DEADLINE)
            assert_string_equal(buf_str(&w->tail), "hutch: time limit 30 s reached\n");
    }
    w->outcome = (struct outcome){.cause = END_EXIT, .status = 1 << 8, .exit_code = 1, .disk_full = true};
    render(w);
    has(&w->json, "\"cause\":\"disk_full\"");
    has(&w->tail, "disk limit 1 GiB reached");
    w->outcome.status = 0;
    render(w);
    has(&w->json, "\"cause\":\"exit\"");
}

static void stages_last_until_the_next_one_reached(void **state)
{
    struct world *w = *state;
    w->outcome.stage_ns[STAGE_CLONE] = 1000000;
    w->outcome.stage_ns[STAGE_CGROUP] = 1250000;
    w->outcome.stage_ns[STAGE_MOUNTS] = 1250500;
    render(w);
    _cleanup_free_ char *want = xasprintf("\"stages_us\":{\"%s\":250.0,\"%s\":0.5}", wall_stage_name(STAGE_CLONE),
                                          wall_stage_name(STAGE_CGROUP));
    has(&w->json, want);
}

/* Every byte that a path, a process name or a variable can have, in every place that takes one. */
static void hostile_bytes_never_break_the_record(void **state)
{
    struct world *w = *state;
    char all[256], cut[] = "\xe2\x82"; /* half a character, as cutting leaves it */
    for (int i = 1; i < 256; i++)
        all[i - 1] = (char)i;
    all[255] = '\0';
    struct seccomp_data call = {.nr = NR_mount};
    denials_call_refused(w->denials, &call, all);
    denials_call_refused(w->denials, &call, cut);
    denials_call_refused(w->denials, &call, "\",\"x\":\"\x1b]0;title\a");
    strv_add(&w->born, all);
    strv_add(&w->notes, all);
    strv_add(&w->dropped, all);
    w->argv[1] = all;
    w->outcome = (struct outcome){.cause = END_OOM, .oom_seen = true};
    w->outcome.oom.count = 1;
    w->outcome.oom.last.kind = OOM_KILLED;
    memcpy(w->outcome.oom.last.comm, all + 120, 63);
    memcpy(w->outcome.sender, all + 100, 95);
    render(w);
    lacks(&w->json, "\x1b");
    for (const char *s = buf_str(&w->tail); *s; s++)
        assert_true(*s == '\n' || ((unsigned char)*s >= 0x20 && *s != 0x7f));
    for (int round = 0; round < 2000; round++) { /* arbitrary bytes, reproducibly */
        unsigned x = 12345U + (unsigned)round * 7919U;
        for (int i = 0; i < 255; i++) {
            x = x * 1103515245U + 12345U;
            all[i] = (char)(1 + (x >> 16) % 255);
        }
        denials_free(w->denials);
        w->in.denials = w->denials = denials_new(w->policy, &w->plan, FILTER_NOTIFY);
        denials_call_refused(w->denials, &call, all);
        render(w);
    }
}

/* --- what the host may execute ------------------------------------------------------------------------------------ */

struct tree {
    char root[64];
    struct policy *policy;
    struct plan *plan;
    struct strv found;
    bool searched;    /* the search before the run is made, and what it saw is used */
    struct seen seen; /* by it */
};

static void put(const struct tree *t, const char *path, bool dir)
{
    _cleanup_free_ char *full = path_join(t->root, path);
    if (dir) {
        assert_int_equal(mkdir(full, 0755), 0);
        return;
    }
    int fd = open(full, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    assert_true(fd >= 0 && write(fd, "x", 1) == 1);
    (void)close(fd);
}

/* What was there before must be older than the clock tells that inodes are stamped with, and that one does not move every tick
 * on a busy machine. */
static void settle(void)
{
    struct timespec tick = {.tv_nsec = 5000000}, done, coarse;
    (void)clock_gettime(CLOCK_REALTIME, &done);
    do {
        (void)nanosleep(&tick, NULL);
        (void)clock_gettime(CLOCK_REALTIME_COARSE, &coarse);
    } while (coarse.tv_sec < done.tv_sec || (coarse.tv_sec == done.tv_sec && coarse.tv_nsec <= done.tv_nsec));
}

static void ignore_repo(void *arg, const char *dir)
{
    (void)arg;
    (void)dir;
}

/* The search, if it is to be made, comes before the command can write. */
static struct hostexec *begin(struct tree *t)
{
    struct plan_facts facts = plan_host_facts;
    if (!t->searched)
        return hostexec_before(t->policy, t->plan, NULL, NULL);
    seen_done(&t->seen);
    hostexec_begin(t->policy, &t->seen);
    facts.ctx = &t->seen;
    assert_int_equal(facts.find_repos(facts.ctx, t->root, 3, 20000, ignore_repo, NULL), 0);
    return hostexec_before(t->policy, t->plan, NULL, &t->seen);
}

static int plant(void **state)
{
    struct tree *t = xcalloc(1, sizeof *t);
    struct err err = {0};
    (void)snprintf(t->root, sizeof t->root, "/opt/hostexec.XXXXXX");
    assert_non_null(mkdtemp(t->root));
    static const char *const dirs[] = {"sub", "sub/deep", "repo", "repo/.git", "repo/.git/hooks"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        put(t, dirs[i], true);
    put(t, "repo/.git/config", false);
    put(t, "sub/.envrc", false);
    put(t, "sub/deep/.vimrc", false);
    struct policy_where where = {.cwd = t->root};
    struct plan_caller who = {.cwd = t->root};
    t->policy = policy_new();
    policy_add_defaults(&where, t->policy);
    if (plan_make(t->policy, &who, &plan_host_facts, &t->plan, &err) < 0)
        fail_msg("%s", err.msg);
    settle();
    *state = t;
    return 0;
}

static int plant_and_search(void **state)
{
    (void)plant(state);
    struct tree *t = *state;
    t->searched = true;
    return 0;
}

static int uproot(void **state)
{
    struct tree *t = *state;
    _cleanup_free_ char *rm = xasprintf("rm -rf -- '%s'", t->root);
    assert_int_equal(system(rm), 0);
    plan_free(t->plan);
    policy_free(t->policy);
    strv_done(&t->found);
    seen_done(&t->seen);
    free(t);
    return 0;
}

static bool listed(const struct tree *t, const char *path)
{
    _cleanup_free_ char *full = path_join(t->root, path);
    return strv_has(&t->found, full);
}

static void nothing_is_listed_if_nothing_changed(void **state)
{
    struct tree *t = *state;
    hostexec_after(begin(t), &t->found);
    assert_int_equal(t->found.n, 0);
    hostexec_after(NULL, &t->found);
}

static void new_repositories_and_changed_names_are_listed(void **state)
{
    struct tree *t = *state;
    struct hostexec *h = begin(t);
    put(t, "born", true);
    put(t, "born/.git", true);
    put(t, "born/.git/config", false);
    put(t, "sub/.vscode", true);
    put(t, "sub/deep/.vimrc", false); /* changed in place */
    put(t, "sub/file", false);        /* no protected name */
    put(t, "repo/.git/index", false); /* a known repository at work */
    hostexec_after(h, &t->found);
    assert_true(listed(t, "born/.git"));
    assert_true(listed(t, "sub/.vscode"));
    assert_true(listed(t, "sub/deep/.vimrc"));
    assert_int_equal(t->found.n, 3);
}

/* Protected names change from outside, and through links that were there; stubs and pins are replaced from outside. */
static void protected_names_that_are_not_the_same_are_listed(void **state)
{
    struct tree *t = *state;
    _cleanup_free_ char *repo = path_join(t->root, "repo"), *away = path_join(t->root, "away");
    struct hostexec *h = begin(t);
    put(t, "repo/.git/config", false);
    put(t, ".vimrc", false); /* there was a stub */
    hostexec_after(h, &t->found);
    assert_true(listed(t, "repo/.git/config"));
    assert_true(listed(t, ".vimrc"));
    assert_int_equal(t->found.n, 2);

    strv_done(&t->found);
    t->found = (struct strv){0};
    settle();
    h = begin(t);
    assert_int_equal(rename(repo, away), 0);
    put(t, "repo", true);
    hostexec_after(h, &t->found);
    assert_true(listed(t, "repo"));
}

static void a_hook_changed_through_another_link_is_listed(void **state)
{
    struct tree *t = *state;
    put(t, "repo/.git/hooks/pre-commit", false);
    _cleanup_free_ char *hook = path_join(t->root, "repo/.git/hooks/pre-commit"), *other = path_join(t->root, "other");
    assert_int_equal(link(hook, other), 0);
    settle();
    struct hostexec *h = begin(t);
    put(t, "other", false);
    hostexec_after(h, &t->found);
    assert_true(listed(t, "repo/.git/hooks/pre-commit"));
    assert_int_equal(t->found.n, 1);
}

/* A regular file of no size at which a reader waits until the kernel says something. */
static void an_included_file_of_the_kernel_is_not_waited_for(void **state)
{
    struct tree *t = *state;
    static const char text[] = "[include]\n\tpath = /proc/kmsg\n\tpath = ../../more\n";
    _cleanup_free_ char *config = path_join(t->root, "repo/.git/config");
    int fd = open(config, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    (void)close(fd);
    settle();
    struct hostexec *h = begin(t);
    put(t, "more", false);
    (void)alarm(120);
    hostexec_after(h, &t->found);
    (void)alarm(0);
    assert_true(listed(t, "more"));
    assert_int_equal(t->found.n, 1);
}

/* With a file "commondir", git takes configuration and hooks from elsewhere; and a stub there would break git. */
static void a_common_directory_is_listed(void **state)
{
    struct tree *t = *state;
    struct hostexec *h = begin(t);
    put(t, "repo/.git/commondir", false);
    hostexec_after(h, &t->found);
    assert_true(listed(t, "repo/.git/commondir"));
    assert_int_equal(t->found.n, 1);
}

static void a_bare_repository_is_listed(void **state)
{
    struct tree *t = *state;
    struct hostexec *h = begin(t);
    put(t, "HEAD", false);
    put(t, "objects", true);
    put(t, "sub/HEAD", false); /* with nothing else it is just a file */
    put(t, "sub/deep/HEAD", false);
    put(t, "sub/deep/commondir", false);
    hostexec_after(h, &t->found);
    assert_true(listed(t, "sub/deep"));
    assert_int_equal(t->found.n, 1);

    strv_done(&t->found);
    t->found = (struct strv){0};
    settle();
    h = begin(t);
    put(t, "refs", true);
    hostexec_after(h, &t->found);
    assert_true(strv_has(&t->found, t->root));
    assert_int_equal(t->found.n, 1);
}

/* A repository that the plan did not find: its ".git" does not change when a file in it is written in place. */
static void what_changed_in_an_unknown_repository_is_listed(void **state)
{
    struct tree *t = *state;
    static const char *const dirs[] = {"sub/deep/a", "sub/deep/a/b", "sub/deep/a/b/.git", "sub/deep/a/b/.git/hooks"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        put(t, dirs[i], true);
    put(t, "sub/deep/a/b/.git/config", false);
    put(t, "sub/deep/a/b/.git/hooks/pre-commit", false);
    settle();
    struct hostexec *h = begin(t);
    put(t, "sub/deep/a/b/.git/config", false);
    put(t, "sub/deep/a/b/.git/hooks/pre-commit", false);
    hostexec_after(h, &t->found);
    assert_true(listed(t, "sub/deep/a/b/.git/config"));
    assert_true(listed(t, "sub/deep/a/b/.git/hooks/pre-commit"));
    assert_int_equal(t->found.n, 2);
}

static void note_repo(void *arg, const char *dir) { strv_add(arg, dir); }

/* When the search ends early, what lies near the root was found. */
static void shallow_repositories_are_found_first(void **state)
{
    struct tree *t = *state;
    static const char *const dirs[] = {"a", "a/b", "a/b/.git", "z", "z/.git", "z/node_modules", "z/node_modules/.git"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        put(t, dirs[i], true);
    assert_int_equal(plan_host_facts.find_repos(NULL, t->root, 2, 1000, note_repo, &t->found), 0);
    assert_int_equal(t->found.n, 3);
    _cleanup_free_ char *deep = path_join(t->root, "a/b");
    assert_string_equal(t->found.v[2], deep);
    strv_done(&t->found);
    t->found = (struct strv){0};
    assert_int_equal(plan_host_facts.find_repos(NULL, t->root, 1, 1000, note_repo, &t->found), 0);
    assert_int_equal(t->found.n, 2);
    strv_done(&t->found);
    t->found = (struct strv){0};
    assert_int_equal(plan_host_facts.find_repos(NULL, t->root, 2, 5, note_repo, &t->found), 1);
}

/* Directories without subdirectories are not read, and neither are the deepest ones; what links to a repository is seen there. */
static void repositories_are_found_where_nothing_is_read(void **state)
{
    struct tree *t = *state;
    static const char *const dirs[] = {"plain", "worktree", "a", "a/worktree", "a/deep", "a/deep/.git", "a/deep/below"};
    static const char *const files[] = {"plain/git", "worktree/.git", "worktree/file", "a/worktree/.git"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        put(t, dirs[i], true);
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        put(t, files[i], false);
    for (unsigned depth = 1; depth <= 4; depth++) {
        unsigned wrong = 0, found = 0;
        assert_int_equal(plan_host_facts.find_repos(NULL, t->root, depth, 1000, note_repo, &t->found), 0);
        for (size_t i = 0; i < t->found.n; i++) {
            wrong += strstr(t->found.v[i], "/plain") || strstr(t->found.v[i], "/below");
            found += strstr(t->found.v[i], "worktree") || strstr(t->found.v[i], "/deep");
        }
        assert_int_equal(wrong, 0);
        assert_int_equal(found, depth == 1 ? 1 : 3);
        strv_done(&t->found);
        t->found = (struct strv){0};
    }
}

/* The command may open again what it closed before: that nothing could be seen there is told. */
static void a_closed_directory_is_told(void **state)
{
    struct tree *t = *state;
    _cleanup_free_ char *closed = path_join(t->root, "closed"), *inner = path_join(t->root, "sub/deep");
    put(t, "closed", true);
    put(t, "closed/repo", true);
    assert_int_equal(plan_host_facts.find_repos(NULL, t->root, 3, 1000, note_repo, &t->found), 0);
    strv_done(&t->found);
    t->found = (struct strv){0};
    for (int i = 0; i < 2; i++) { /* one that would be read, one without subdirectories */
        const char *path = i ? inner : closed;
        assert_int_equal(chown(path, 1, 1), 0);
        assert_int_equal(chown(t->root, 1, 1), 0);
        assert_int_equal(chmod(path, 0), 0);
        pid_t pid = fork();
        if (pid == 0)
            _exit(setresgid(1, 1, 1) < 0 || setresuid(1, 1, 1) < 0
                      ? 9
                      : plan_host_facts.find_repos(NULL, t->root, 3, 1000, note_repo, &t->found));
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(WEXITSTATUS(status), 1);
        assert_int_equal(chmod(path, 0755), 0);
    }
}

/* What the plan finds of git's directories in a real tree. */
static void git_directories_of_the_host_are_found(void **state)
{
    struct tree *t = *state;
    static const char *const dirs[] = {
        "repo/.git/modules",
        "repo/.git/modules/a",
        "repo/.git/modules/a/b",
        "repo/.git/modules/a/b/modules",
        "repo/.git/modules/a/b/modules/c",
        "repo/.git/worktrees",
        "repo/.git/worktrees/t",
        "tree",
        "store",
    };
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        put(t, dirs[i], true);
    put(t, "repo/.git/modules/a/config",
        false); /* a lure: it is no git directory, and b is to be found in spite of it */
    put(t, "repo/.git/modules/a/b/config", false);
    put(t, "repo/.git/modules/a/b/modules/c/HEAD", false);
    put(t, "repo/.git/worktrees/t/commondir", false);
    put(t, "repo/.git/worktrees/t/gitdir", false);
    _cleanup_free_ char *file = path_join(t->root, "tree/.git"), *lost = path_join(t->root, ".exrc");
    int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd >= 0 && write(fd, "gitdir: ../store\n", 17) == 17);
    (void)close(fd);
    assert_int_equal(symlink("sub/../nowhere", lost), 0);
    struct plan_caller who = {.cwd = t->root};
    struct err err = {0};
    plan_free(t->plan);
    if (plan_make(t->policy, &who, &plan_host_facts, &t->plan, &err) < 0)
        fail_msg("%s", err.msg);
    static const struct {
        const char *path;
        enum plan_op_kind kind;
    } want[] = {
        {"repo/.git/modules/a/b/config", OP_PROTECT},
        {"repo/.git/modules/a/b/hooks", OP_STUB},
        {"repo/.git/modules/a/b/modules/c/config", OP_STUB},
        {"repo/.git/modules/a/b/modules/c/hooks", OP_STUB},
        {"repo/.git/worktrees/t/commondir", OP_PROTECT},
        {"repo/.git/worktrees/t/gitdir", OP_PROTECT},
        {"tree/.git", OP_PROTECT},
        {"store/config", OP_STUB},
        {"store/hooks", OP_STUB},
        {".exrc", OP_PROTECT},
        {"nowhere", OP_STUB},
        {"repo/.envrc", OP_BIND_RW},
        {"repo/.git/index", OP_BIND_RW},
    };
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        _cleanup_free_ char *path = path_join(t->root, want[i].path);
        const struct plan_op *op = plan_op_for(t->plan, path);
        if (!op || op->kind != want[i].kind)
            fail_msg("%s: %d at %s", want[i].path, op ? (int)op->kind : -1, op ? op->path : "-");
    }
    assert_int_equal(plan_check(t->plan, &err), 0);
}

static void a_forged_time_does_not_hide_a_change(void **state)
{
    struct tree *t = *state;
    struct hostexec *h = begin(t);
    put(t, "sub/.vimrc", false);
    _cleanup_free_ char *full = path_join(t->root, "sub/.vimrc"), *sub = path_join(t->root, "sub");
    const struct timespec old[2] = {{1000000000, 0}, {1000000000, 0}};
    assert_int_equal(utimensat(AT_FDCWD, full, old, 0), 0);
    assert_int_equal(utimensat(AT_FDCWD, sub, old, 0), 0);
    hostexec_after(h, &t->found);
    assert_true(listed(t, "sub/.vimrc"));
}

static void a_name_moved_into_place_is_listed(void **state)
{
    struct tree *t = *state;
    _cleanup_free_ char *from = path_join(t->root, "sub/.envrc"), *to = path_join(t->root, "sub/deep/.envrc");
    struct hostexec *h = begin(t);
    assert_int_equal(rename(from, to), 0);
    hostexec_after(h, &t->found);
    assert_true(listed(t, "sub/deep/.envrc"));
}

/* More entries than are read in any case: unchanged directories are passed over, changed ones are not. */
static void a_name_born_in_a_big_tree_is_listed(void **state)
{
    struct tree *t = *state;
    for (int i = 0; i < 3 * HOSTEXEC_THOROUGH / 100; i++) {
        _cleanup_free_ char *dir = xasprintf("d%d", i);
        put(t, dir, true);
        for (int k = 0; k < 100; k++) {
            _cleanup_free_ char *file = xasprintf("d%d/%d", i, k);
            put(t, file, false);
        }
    }
    settle();
    struct hostexec *h = begin(t);
    for (int i = 0; i < 3 * HOSTEXEC_THOROUGH / 100; i++) {
        _cleanup_free_ char *file = xasprintf("d%d/.envrc", i);
        put(t, file, false);
    }
    hostexec_after(h, &t->found);
    assert_int_equal(t->found.n, 3 * HOSTEXEC_THOROUGH / 100);
}

/* In a tree that is too big to be read after a short command, names that are there are found while the command runs. */
static void changes_in_place_are_found_in_a_big_tree_that_was_looked_at(void **state)
{
    struct tree *t = *state;
    enum { DIRS = 20, FILES = HOSTEXEC_THOROUGH / 8 };
    for (int i = 0; i < DIRS; i++) {
        _cleanup_free_ char *dir = xasprintf("d%02d", i), *name = xasprintf("d%02d/.npmrc", i);
        put(t, dir, true);
        put(t, name, false);
        for (int k = 0; k < FILES; k++) {
            _cleanup_free_ char *file = xasprintf("d%02d/f%d", i, k);
            put(t, file, false);
        }
    }
    for (int looked = 0; looked < 2; looked++) {
        settle();
        struct hostexec *h = begin(t);
        if (looked)
            hostexec_look(h);
        for (int i = 0; i < DIRS; i++) {
            _cleanup_free_ char *name = xasprintf("d%02d/.npmrc", i);
            put(t, name, false);
        }
        put(t, looked ? "d00/.envrc" : "d01/.envrc", false);
        hostexec_after(h, &t->found);
        assert_true(listed(t, looked ? "d00/.envrc" : "d01/.envrc"));
        assert_true(looked ? t->found.n == DIRS + 1 : t->found.n < DIRS + 1);
        strv_done(&t->found);
        t->found = (struct strv){0};
    }
}

/* Directories with subdirectories that the search has read: what is in them is known, and what came of it is found. */
static void changes_in_directories_that_the_search_read_are_listed(void **state)
{
    struct tree *t = *state;
    static const char *const dirs[] = {"sub/more",     "sub/more/low", "other",    "other/in",
                                       "other/in/low", "third",        "third/low"};
    static const char *const files[] = {"sub/more/.npmrc", "other/in/.npmrc", "other/in/low/.npmrc", "third/.npmrc"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        put(t, dirs[i], true);
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        put(t, files[i], false);
    settle();
    struct hostexec *h = begin(t);
    for (size_t i = 0; i < t->seen.n; i++) { /* what has subdirectories was read, and is known to hold the names */
        const struct seen_dir *d = &t->seen.dirs[i];
        bool leaf = strcmp(d->name, "low") == 0 || strcmp(d->name, "deep") == 0 || strcmp(d->name, "repo") == 0;
        assert_int_equal(d->read, !leaf || strcmp(d->name, "repo") == 0);
        if (strcmp(d->name, "more") == 0 || strcmp(d->name, "third") == 0)
            assert_true(d->names.n == 1 && strcmp(d->names.v[0], ".npmrc") == 0 && d->entries == 4);
    }
    put(t, "sub/more/.npmrc", false); /* in place */
    _cleanup_free_ char *other = path_join(t->root, "other"), *moved = path_join(t->root, "moved");
    assert_int_equal(rename(other, moved), 0);
    put(t, "moved/in/.npmrc", false); /* in place, under another path, which none was known at */
    put(t, "moved/in/low/.npmrc", false);
    put(t, "third/low/.yarnrc.yml", false); /* in one that has no subdirectories */
    hostexec_after(h, &t->found);
    assert_true(listed(t, "sub/more/.npmrc"));
    assert_true(listed(t, "moved/in/.npmrc"));
    assert_true(listed(t, "moved/in/low/.npmrc"));
    assert_true(listed(t, "third/low/.yarnrc.yml"));
    assert_int_equal(t->found.n, 4);
}

/* Another directory in the place of one that the search read, and one that was away for a while. */
static void another_directory_under_a_known_path_is_read(void **state)
{
    struct tree *t = *state;
    static const char *const dirs[] = {"one", "one/in", "one/in/low", "two", "two/in", "two/in/low", "back", "back/in"};
    static const char *const files[] = {"one/in/.npmrc", "two/in/.npmrc", "two/in/low/.npmrc", "back/.npmrc"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        put(t, dirs[i], true);
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        put(t, files[i], false);
    settle();
    struct hostexec *h = begin(t);
    _cleanup_free_ char *one = path_join(t->root, "one/in"), *two = path_join(t->root, "two/in"),
                        *away = path_join(t->root, "away"), *back = path_join(t->root, "back");
    put(t, "two/in/.npmrc", false);
    put(t, "two/in/low/.npmrc", false);
    assert_int_equal(rename(one, away), 0);
    assert_int_equal(rename(two, one), 0);
    assert_int_equal(rename(away, two), 0);
    assert_int_equal(rename(back, away), 0);
    put(t, "away/.npmrc", false);
    assert_int_equal(rename(away, back), 0);
    hostexec_after(h, &t->found);
    assert_true(listed(t, "one/in/.npmrc"));
    assert_true(listed(t, "one/in/low/.npmrc"));
    assert_true(listed(t, "back/.npmrc"));
    assert_int_equal(t->found.n, 3);
}

static void the_list_is_bounded_and_says_so(void **state)
{
    struct tree *t = *state;
    struct hostexec *h = begin(t);
    for (int i = 0; i < HOSTEXEC_MAX + 10; i++) {
        _cleanup_free_ char *dir = xasprintf("d%d", i), *file = xasprintf("d%d/.vimrc", i);
        put(t, dir, true);
        put(t, file, false);
    }
    hostexec_after(h, &t->found);
    assert_int_equal(t->found.n, HOSTEXEC_MAX + 1);
    assert_int_equal(strncmp(t->found.v[HOSTEXEC_MAX], "...", 3), 0);
}

#define RECORD(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
#define TREE(test)   cmocka_unit_test_setup_teardown(test, plant, uproot)
/* The same, with what a search saw and without. */
#define SEEN(test) cmocka_unit_test_setup_teardown(test, plant_and_search, uproot), TREE(test)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reader_itself_refuses_bad_json),
        RECORD(a_good_end_prints_nothing_and_guesses_nothing),
        RECORD(limits_say_what_enforces_them),
        RECORD(an_oom_kill_names_limit_process_and_peak),
        RECORD(every_cause_has_its_word_and_one_line),
        RECORD(stages_last_until_the_next_one_reached),
        RECORD(hostile_bytes_never_break_the_record),
        SEEN(nothing_is_listed_if_nothing_changed),
        SEEN(new_repositories_and_changed_names_are_listed),
        SEEN(protected_names_that_are_not_the_same_are_listed),
        SEEN(a_hook_changed_through_another_link_is_listed),
        SEEN(an_included_file_of_the_kernel_is_not_waited_for),
        SEEN(a_common_directory_is_listed),
        SEEN(a_bare_repository_is_listed),
        SEEN(what_changed_in_an_unknown_repository_is_listed),
        TREE(shallow_repositories_are_found_first),
        TREE(repositories_are_found_where_nothing_is_read),
        TREE(a_closed_directory_is_told),
        TREE(git_directories_of_the_host_are_found),
        SEEN(a_forged_time_does_not_hide_a_change),
        SEEN(a_name_moved_into_place_is_listed),
        SEEN(a_name_born_in_a_big_tree_is_listed),
        SEEN(changes_in_place_are_found_in_a_big_tree_that_was_looked_at),
        SEEN(the_list_is_bounded_and_says_so),
        cmocka_unit_test_setup_teardown(changes_in_directories_that_the_search_read_are_listed, plant_and_search,
                                        uproot),
        SEEN(another_directory_under_a_known_path_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
