/* test_facts_etcd.c - the suite of all engines over etcd, and what is etcd's alone: members that stop, hang and come back, users,
 * TLS, and keys of others. It starts a real etcd (Debian's etcd-server). */
#include <arpa/inet.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "facts-suite.h"

enum { MEMBERS = 3 };

static struct member {
    pid_t pid; /* 0: none */
    int port, peer_port;
    char name[8];
} member[MEMBERS];
static size_t nmembers;
static char dir[64], urls[200];
static struct facts_etcd spec;

static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
                getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    (void)close(fd);
    return ntohs(a.sin_port);
}

static void member_exec(const struct member *m, const char *cluster, bool tls)
{
    _cleanup_free_ char *data = xasprintf("%s/%s", dir, m->name), *log = xasprintf("%s/%s.log", dir, m->name);
    _cleanup_free_ char *client = xasprintf("http%s://127.0.0.1:%d", tls ? "s" : "", m->port),
                        *peer = xasprintf("http://127.0.0.1:%d", m->peer_port);
    _cleanup_free_ char *cert = xasprintf("%s/cert.pem", dir), *key = xasprintf("%s/key.pem", dir);
    const char *const argv[] = {"etcd",
                                "--name",
                                m->name,
                                "--data-dir",
                                data,
                                "--listen-client-urls",
                                client,
                                "--advertise-client-urls",
                                client,
                                "--listen-peer-urls",
                                peer,
                                "--initial-advertise-peer-urls",
                                peer,
                                "--initial-cluster",
                                cluster,
                                "--unsafe-no-fsync",
                                "--heartbeat-interval",
                                "50",
                                "--election-timeout",
                                "500",
                                "--logger",
                                "zap",
                                "--log-level",
                                "error",
                                tls ? "--cert-file" : NULL,
                                cert,
                                "--key-file",
                                key,
                                NULL};
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)dup2(fd, 1);
    (void)dup2(fd, 2);
    execvp("etcd", (char *const *)(uintptr_t)argv);
    _exit(127);
}

static void member_start(struct member *m, const char *cluster, bool tls)
{
    m->pid = fork();
    if (m->pid == 0)
        member_exec(m, cluster, tls);
    assert_true(m->pid > 0);
}

static void member_end(struct member *m)
{
    if (m->pid <= 0)
        return;
    (void)kill(m->pid, SIGCONT);
    (void)kill(m->pid, SIGKILL);
    (void)waitpid(m->pid, NULL, 0);
    m->pid = 0;
}

void facts_world_open(void)
{
    struct err err = {0};
    if (facts_etcd_open(loop, &spec, &facts, &err) < 0)
        fail_msg("%s", err.msg);
}

static void reopen(void)
{
    facts_close(facts);
    facts_world_open();
}

/* Waits until the engine takes changes. */
static void await_engine(void)
{
    enum facts_result r = FACTS_DOWN;
    for (int i = 0; i < 100 && r != FACTS_OK; i++)
        r = put("ready", "1");
    assert_int_equal(r, FACTS_OK);
}

static char cluster_text[400];
static void cluster_start(size_t n, bool tls)
{
    size_t at = 0, shown = 0;
    nmembers = n;
    for (size_t i = 0; i < n; i++) {
        struct member *m = &member[i];
        *m = (struct member){.port = free_port(), .peer_port = free_port()};
        (void)snprintf(m->name, sizeof m->name, "m%zu", i);
        at += (size_t)snprintf(cluster_text + at, sizeof cluster_text - at, "%s%s=http://127.0.0.1:%d", i ? "," : "",
                               m->name, m->peer_port);
        shown += (size_t)snprintf(urls + shown, sizeof urls - shown, "%shttp%s://127.0.0.1:%d", i ? "," : "",
                                  tls ? "s" : "", m->port);
    }
    for (size_t i = 0; i < n; i++)
        member_start(&member[i], cluster_text, tls);
    spec = (struct facts_etcd){.urls = urls};
}

static int remove_one(const char *p, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(p);
}

static int begin(void)
{
    struct err err;
    (void)snprintf(dir, sizeof dir, FAST_DIR "/hutch-etcd-XXXXXX");
    return mkdtemp(dir) && loop_new(&loop, &err) == 0 ? 0 : -1;
}

/* Whether all members run and take changes. Another program may have taken a port that was free a moment before. */
static bool cluster_is_up(void)
{
    for (int i = 0; i < 100; i++) {
        for (size_t k = 0; k < nmembers; k++)
            if (waitpid(member[k].pid, NULL, WNOHANG) == member[k].pid) {
                member[k].pid = 0;
                return false;
            }
        if (put("ready", "1") == FACTS_OK)
            return true;
    }
    return false;
}

static int open_cluster(size_t n, const char *authorities)
{
    for (int i = 0; i < 3; i++) {
        cluster_start(n, authorities != NULL);
        spec.authorities = authorities;
        facts_world_open();
        if (cluster_is_up())
            return 0;
        facts_close(facts);
        for (size_t k = 0; k < n; k++) {
            _cleanup_free_ char *data = xasprintf("%s/%s", dir, member[k].name);
            member_end(&member[k]);
            (void)nftw(data, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        }
    }
    return -1;
}

static int set_up(void **state)
{
    (void)state;
    return begin() < 0 ? -1 : open_cluster(1, NULL);
}

static int set_up_three(void **state)
{
    (void)state;
    return begin() < 0 ? -1 : open_cluster(MEMBERS, NULL);
}

static int tear_down(void **state)
{
    (void)state;
    facts_close(facts);
    facts = NULL;
    loop_free(loop);
    for (size_t i = 0; i < nmembers; i++)
        member_end(&member[i]);
    return nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* --- members that fail ---------------------------------------------------------------------------------------------- */

static void an_engine_that_is_away_is_down_and_a_watch_goes_on_when_it_is_back(void **state)
{
    (void)state;
    new_keys();
    _cleanup_mirror_ struct mirror m = {0};
    _cleanup_free_ char *prefix = xstrdup(key_of(""));
    put_ok(key_of("k"), "before");
    mirror_start(&m, prefix, 0);
    member_end(&member[0]);
    assert_int_equal(put(key_of("k"), "lost"), FACTS_DOWN); /* nothing was sent: the connection was seen to end */
    _cleanup_reply_ struct reply r = {0};
    facts_get(facts, key_of("k"), 0, reply_done, &r);
    reply_wait(&r);
    assert_int_equal(r.result, FACTS_DOWN);
    assert_non_null(strstr(r.why, "etcd at 127.0.0.1:"));
    assert_non_null(strstr(r.why, "refused"));
    member_start(&member[0], cluster_text, false);
    await_engine();
    assert_string_equal(get(key_of("k")), "before");
    put_ok(key_of("k"), "after");
    WAIT_UNTIL(mirror_value(&m, key_of("k")) && strcmp(mirror_value(&m, key_of("k")), "after") == 0);
    assert_int_equal(m.restarts, 1);
}

static void a_change_whose_answer_does_not_come_is_unknown(void **state)
{
    (void)state;
    new_keys();
    put_ok(key_of("k"), "before");
    assert_int_equal(kill(member[0].pid, SIGSTOP), 0);
    _cleanup_reply_ struct reply change = {0}, read = {0};
    facts_change(facts, NULL, 0, &(struct facts_write){key_of("k"), "after", 5, 0}, 1, reply_done, &change);
    facts_get(facts, key_of("k"), 0, reply_done, &read);
    reply_wait(&change);
    reply_wait(&read);
    assert_int_equal(change.result, FACTS_UNKNOWN);
    assert_int_equal(read.result, FACTS_DOWN);
    assert_int_equal(kill(member[0].pid, SIGCONT), 0);
    await_engine();
    const char *now = get(key_of("k")); /* who waits for the answer reads, and decides */
    assert_true(strcmp(now, "after") == 0 || strcmp(now, "before") == 0);
}

/* Each member is killed in its turn while counters are raised by changes with tests: no raise is lost or made twice. */
static void members_may_die_one_after_the_other(void **state)
{
    (void)state;
    new_keys();
    _cleanup_mirror_ struct mirror m = {0};
    _cleanup_free_ char *prefix = xstrdup(key_of(""));
    unsigned made = 0, unknown = 0;
    char value[12];
    put_ok(key_of("n"), "0");
    mirror_start(&m, prefix, 0);
    for (size_t i = 0; i < MEMBERS; i++) {
        for (int j = 0; j < 30; j++) {
            unsigned now = 0;
            if (j == 10)
                member_end(&member[i]);
            _cleanup_reply_ struct reply r = {0};
            facts_get(facts, key_of("n"), 0, reply_done, &r);
            reply_wait(&r);
            if (r.result != FACTS_OK)
                continue;
            now = (unsigned)strtoul(r.rows.v[0].value, NULL, 10);
            assert_true(now >= made && now <= made + unknown);
            unknown -= now - made;
            made = now;
            (void)snprintf(value, sizeof value, "%u", now + 1);
            enum facts_result put = put_if(key_of("n"), r.rows.v[0].revision, value);
            made += put == FACTS_OK;
            unknown += put == FACTS_UNKNOWN;
            assert_true(put == FACTS_OK || put == FACTS_UNKNOWN || put == FACTS_DIFFERS || put == FACTS_DOWN);
        }
        member_start(&member[i], cluster_text, false);
        await_engine();
    }
    unsigned last = (unsigned)strtoul(get(key_of("n")), NULL, 10);
    assert_true(last >= made && last <= made + unknown && made > 60);
    put_ok(key_of("end"), "1");
    WAIT_UNTIL(mirror_value(&m, key_of("end")));
    mirror_assert_true(&m, prefix);
    assert_int_equal(m.restarts, 1);
    const char *at = buf_str(&m.log); /* each raise was told once, in order */
    for (unsigned i = 1; i <= last; i++) {
        (void)snprintf(value, sizeof value, "+n=%u ", i);
        assert_non_null(at = strstr(at, value));
    }
}

/* The member that the watch hangs on hangs itself: the pulse finds out. */
static void a_watch_leaves_a_member_that_hangs(void **state)
{
    (void)state;
    new_keys();
    _cleanup_mirror_ struct mirror m = {0};
    _cleanup_free_ char *prefix = xstrdup(key_of(""));
    mirror_start(&m, prefix, 0);
    put_ok(key_of("a"), "1");
    WAIT_UNTIL(mirror_value(&m, key_of("a")));
    assert_int_equal(kill(member[0].pid, SIGSTOP), 0); /* the first endpoint, where all begins */
    await_engine();
    put_ok(key_of("b"), "1");
    WAIT_UNTIL(mirror_value(&m, key_of("b")));
    assert_int_equal(m.restarts, 1);
    assert_int_equal(kill(member[0].pid, SIGCONT), 0);
}

static void without_a_majority_only_old_facts_can_be_read(void **state)
{
    (void)state;
    new_keys();
    put_ok(key_of("k"), "1");
    nanosleep(&(struct timespec){.tv_nsec = 500 * 1000 * 1000}, NULL); /* until the member that stays has it, too */
    member_end(&member[1]);
    member_end(&member[2]);
    _cleanup_reply_ struct reply change = {0}, read = {0}, old = {0};
    facts_change(facts, NULL, 0, &(struct facts_write){key_of("k"), "2", 1, 0}, 1, reply_done, &change);
    facts_get(facts, key_of("k"), 0, reply_done, &read);
    facts_get(facts, key_of("k"), FACTS_MAY_BE_OLD, reply_done, &old);
    reply_wait(&change);
    reply_wait(&read);
    reply_wait(&old);
    assert_true(change.result == FACTS_UNKNOWN || change.result == FACTS_DOWN);
    assert_int_equal(read.result, FACTS_DOWN);
    assert_int_equal(old.result, FACTS_OK);
    assert_string_equal(old.rows.v[0].value, "1");
}

/* --- others in the same etcd ---------------------------------------------------------------------------------------- */

/* curl, as an administrator would. */
static void raw(const char *path, const char *body)
{
    _cleanup_free_ char *command =
        xasprintf("curl -sSf -m 20 -o /dev/null -d '%s' http://127.0.0.1:%d/v3/%s", body, member[0].port, path);
    if (system(command) != 0) /* NOLINT(cert-env33-c) */
        fail_msg("%s", command);
}

static void keys_of_others_are_passed_over(void **state)
{
    (void)state;
    new_keys();
    _cleanup_mirror_ struct mirror m = {0};
    put_ok("zz/good", "1");
    mirror_start(&m, "zz/", 0);
    /* "hutch/zz/ bad", "hutch/zz/\xff" */
    raw("kv/put", "{\"key\":\"aHV0Y2gvenovIGJhZA==\",\"value\":\"eA==\"}");
    raw("kv/put", "{\"key\":\"aHV0Y2gvenov/w==\",\"value\":\"eA==\"}");
    put_ok("zz/good", "2");
    WAIT_UNTIL(strcmp(mirror_value(&m, "zz/good"), "2") == 0);
    assert_int_equal(m.rows.n, 1);
    _cleanup_reply_ struct reply r = {0};
    struct facts_page p = {.prefix = "zz/", .limit = 1};
    facts_range(facts, &p, reply_done, &r); /* the first page of etcd's has the bad key alone */
    reply_wait(&r);
    assert_int_equal(r.result, FACTS_OK);
    assert_int_equal(r.rows.n, 1);
    assert_string_equal(r.rows.v[0].key, "zz/good");
    remove_ok("zz/good");
    WAIT_UNTIL(m.rows.n == 0);
}

static void prefixes_keep_clusters_apart(void **state)
{
    (void)state;
    new_keys();
    put_ok(key_of("k"), "1");
    spec.prefix = "other/";
    reopen();
    assert_string_equal(get(key_of("k")), "");
    put_ok(key_of("k"), "2");
    spec.prefix = NULL;
    reopen();
    assert_string_equal(get(key_of("k")), "1");
}

static void an_engine_with_users_wants_the_right_password(void **state)
{
    (void)state;
    new_keys();
    put_ok(key_of("k"), "1");
    raw("auth/role/add", "{\"name\":\"root\"}");
    raw("auth/user/add", "{\"name\":\"root\",\"password\":\"a b\"}");
    raw("auth/user/grant", "{\"user\":\"root\",\"role\":\"root\"}");
    raw("auth/enable", "{}");
    assert_int_equal(put(key_of("k"), "2"), FACTS_DENIED);
    for (int right = 0; right < 2; right++) {
        spec.user = "root";
        spec.password = right ? "a b" : "wrong";
        reopen();
        assert_int_equal(put(key_of("k"), "3"), right ? FACTS_OK : FACTS_DENIED);
    }
    _cleanup_mirror_ struct mirror m = {0};
    _cleanup_free_ char *prefix = xstrdup(key_of(""));
    mirror_start(&m, prefix, 0);
    put_ok(key_of("k"), "4");
    WAIT_UNTIL(strcmp(mirror_value(&m, key_of("k")), "4") == 0);
    member_end(&member[0]); /* a new life knows no token of before */
    member_start(&member[0], cluster_text, false);
    await_engine();
    put_ok(key_of("k"), "5");
    WAIT_UNTIL(strcmp(mirror_value(&m, key_of("k")), "5") == 0);
    assert_int_equal(m.restarts, 1);
}

static void members_of_another_cluster_are_refused(void **state)
{
    (void)state;
    new_keys();
    put_ok(key_of("k"), "1");
    _cleanup_free_ char *data = xasprintf("%s/m0", dir);
    struct member *m = &member[0];
    member_end(m);
    (void)nftw(data, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    m->peer_port = free_port(); /* an id of a cluster is made of its members' addresses */
    (void)snprintf(cluster_text, sizeof cluster_text, "new=http://127.0.0.1:%d", m->peer_port);
    (void)snprintf(m->name, sizeof m->name, "new");
    member_start(m, cluster_text, false);
    enum facts_result r = FACTS_DOWN;
    for (int i = 0; i < 100 && r == FACTS_DOWN; i++)
        r = put(key_of("k"), "2");
    assert_int_equal(r, FACTS_DENIED);
    reopen();
    assert_string_equal(get(key_of("k")), "");
}

/* --- TLS ------------------------------------------------------------------------------------------------------------ */

static char *read_file(const char *name)
{
    static char text[16384];
    _cleanup_free_ char *path = xasprintf("%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    text[n] = 0;
    return text;
}

static int set_up_tls(void **state)
{
    (void)state;
    if (begin() < 0)
        return -1;
    _cleanup_free_ char *command =
        xasprintf("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=etcd "
                  "-addext subjectAltName=IP:127.0.0.1 -keyout %s/key.pem -out %s/cert.pem 2>/dev/null",
                  dir, dir);
    if (system(command) != 0) /* NOLINT(cert-env33-c) */
        return -1;
    return open_cluster(1, read_file("cert.pem"));
}

static void tls_trusts_the_named_authority_only(void **state)
{
    (void)state;
    new_keys();
    put_ok(key_of("k"), "1");
    _cleanup_mirror_ struct mirror m = {0};
    _cleanup_free_ char *prefix = xstrdup(key_of(""));
    mirror_start(&m, prefix, 0);
    put_ok(key_of("k"), "2");
    WAIT_UNTIL(strcmp(mirror_value(&m, key_of("k")), "2") == 0);
    facts_watch_free(m.watch);
    m.watch = NULL;
    spec.authorities = NULL; /* the system's */
    reopen();
    _cleanup_reply_ struct reply r = {0};
    facts_get(facts, key_of("k"), 0, reply_done, &r);
    reply_wait(&r);
    assert_int_equal(r.result, FACTS_DOWN);
    if (!strstr(r.why, "certificate"))
        fail_msg("%s", r.why);
}

/* --- what is not etcd ----------------------------------------------------------------------------------------------- */

#define STATUS "{\"header\":{\"cluster_id\":\"18446744073709551615\",\"revision\":\"7\"}}"

/* Answers each request on a connection with what stands for its path; to the end of the connection. */
static void false_serve(int fd, bool closes)
{
    static const char *const answers[][2] = {
        {"/v3/maintenance/status", STATUS},
        {"/v3/kv/txn", "{\"succeeded\":true}"},
        {"/v3/lease/grant", "{\"header\":{\"revision\":\"7\"},\"ID\":\"-1\",\"TTL\":\"99999999999999999999\"}"},
        {"/v3/kv/range",
         "{\"header\":{\"revision\":\"7\"},\"more\":true,\"kvs\":[{\"key\":\"aHV0Y2gveA==\",\"value\":3},"
         "[],{\"key\":\"aHV0Y2gveA==\",\"mod_revision\":-5}]}"},
        {"/v3/lease/keepalive", "[\"\\u0041\"]"},
    };
    char text[4096] = "";
    size_t have = 0;
    for (ssize_t n; (n = read(fd, text + have, sizeof text - 1 - have)) > 0;) {
        const char *answer = "{}", *body;
        text[have += (size_t)n] = 0;
        if (!(body = strstr(text, "\r\n\r\n")) || !strchr(body, '}'))
            continue;
        for (size_t i = 0; i < ARRAY_LEN(answers); i++)
            answer = strstr(text, answers[i][0]) ? answers[i][1] : answer;
        (void)dprintf(fd, "HTTP/1.1 200 OK\r\n%sContent-Length: %zu\r\n\r\n%s", closes ? "Connection: close\r\n" : "",
                      strlen(answer), answer);
        have = 0;
    }
    _exit(0);
}

static void false_start(bool closes)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 20) == 0 &&
                getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    nmembers = 1;
    if ((member[0].pid = fork()) == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)signal(SIGCHLD, SIG_IGN);
        for (int one; (one = accept(fd, NULL, NULL)) >= 0; (void)close(one))
            if (fork() == 0)
                false_serve(one, closes);
        _exit(0);
    }
    (void)close(fd);
    (void)snprintf(urls, sizeof urls, "http://127.0.0.1:%d", ntohs(a.sin_port));
    spec = (struct facts_etcd){.urls = urls};
    facts_world_open();
}

static int set_up_false(void **state)
{
    if (begin() < 0)
        return -1;
    false_start(*state != NULL);
    return 0;
}

static void answers_of_another_shape_are_no_facts(void **state)
{
    (void)state;
    _cleanup_reply_ struct reply change = {0}, lease = {0}, keep = {0}, one = {0}, page = {0};
    facts_change(facts, NULL, 0, &(struct facts_write){"k", "1", 1, 0}, 1, reply_done, &change);
    facts_lease(facts, 5, reply_done, &lease);
    facts_lease_keep(facts, 5, reply_done, &keep);
    facts_get(facts, "k", 0, reply_done, &one);
    facts_range(facts, &(struct facts_page){.prefix = "", .limit = 9}, reply_done, &page);
    struct reply *const all[] = {&change, &lease, &keep, &one, &page};
    static const struct {
        enum facts_result result;
        const char *says;
    } want[] = {{FACTS_UNKNOWN, "no revision"},
                {FACTS_UNKNOWN, "no lease"},
                {FACTS_DOWN, "not in JSON"},
                {FACTS_DOWN, "not asked for"},
                {FACTS_DOWN, "in no order"}};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        reply_wait(all[i]);
        assert_int_equal(all[i]->calls, 1);
        assert_int_equal(all[i]->result, want[i].result);
        if (!strstr(all[i]->why, want[i].says))
            fail_msg("\"%s\" does not say \"%s\"", all[i]->why, want[i].says);
    }
}

/* Its connections carry no call: all calls end all the same, also those that no connection failed for. */
static void calls_end_when_each_connection_is_closed(void **state)
{
    enum { CALLS = 100 };
    static struct reply r[CALLS];
    (void)state;
    for (size_t i = 0; i < CALLS; i++)
        facts_get(facts, "k", 0, reply_done, &r[i]);
    for (size_t i = 0; i < CALLS; i++) {
        reply_wait(&r[i]);
        assert_int_equal(r[i].calls, 1);
        assert_int_equal(r[i].result, FACTS_DOWN);
        assert_non_null(strstr(r[i].why, "closes its connections"));
        reply_free(&r[i]);
    }
}

/* --- opening -------------------------------------------------------------------------------------------------------- */

static void what_cannot_be_right_is_said(void **state)
{
    static const struct {
        struct facts_etcd spec;
        const char *says;
    } cases[] = {
        {{.urls = ""}, "no endpoint"},
        {{.urls = "ftp://a:1"}, "'ftp://a:1' is no endpoint"},
        {{.urls = "http://a:1/path"}, "is no endpoint"},
        {{.urls = "http://a:1,https://b:1"}, "all http or all https"},
        {{.urls = "http://a:1", .prefix = "a b"}, "the prefix has 1 to 100"},
        {{.urls = "http://a:1", .cert = "x", .key = "y"}, "need endpoints with https"},
        {{.urls = "https://a:1", .cert = "x"}, "given together"},
        {{.urls = "http://a:1", .user = "x"}, "given together"},
        {{.urls = "https://a:1", .authorities = "none"}, "no certificate in PEM"},
        {{.urls = "https://a:1", .cert = "/none", .key = "/none"}, "certificate /none"},
    };
    struct err err;
    struct facts *f;
    (void)state;
    assert_int_equal(loop_new(&loop, &err), 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(facts_etcd_open(loop, &cases[i].spec, &f, &err), -1);
        if (!strstr(err.msg, cases[i].says))
            fail_msg("\"%s\" does not say \"%s\"", err.msg, cases[i].says);
    }
    loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest own[] = {
        cmocka_unit_test(what_cannot_be_right_is_said),
        cmocka_unit_test_setup_teardown(an_engine_that_is_away_is_down_and_a_watch_goes_on_when_it_is_back, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_change_whose_answer_does_not_come_is_unknown, set_up, tear_down),
        cmocka_unit_test_setup_teardown(keys_of_others_are_passed_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(prefixes_keep_clusters_apart, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_engine_with_users_wants_the_right_password, set_up, tear_down),
        cmocka_unit_test_setup_teardown(members_of_another_cluster_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(tls_trusts_the_named_authority_only, set_up_tls, tear_down),
        cmocka_unit_test_setup_teardown(answers_of_another_shape_are_no_facts, set_up_false, tear_down),
        cmocka_unit_test_prestate_setup_teardown(calls_end_when_each_connection_is_closed, set_up_false, tear_down,
                                                 &nmembers),
        cmocka_unit_test_setup_teardown(members_may_die_one_after_the_other, set_up_three, tear_down),
        cmocka_unit_test_setup_teardown(a_watch_leaves_a_member_that_hangs, set_up_three, tear_down),
        cmocka_unit_test_setup_teardown(without_a_majority_only_old_facts_can_be_read, set_up_three, tear_down),
    };
    int failed = _cmocka_run_group_tests("facts in etcd", facts_suite, facts_suite_n, set_up, tear_down);
    return failed + cmocka_run_group_tests_name("etcd itself", own, NULL, NULL);
}
