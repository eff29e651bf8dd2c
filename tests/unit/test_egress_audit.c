#include "await.h"
#include "tests/lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "egress/audit/audit.h"

static char folder[64];
static int dir;
static struct loop *loop;
static struct audit *audit;
static struct esb sandbox = {.id = "sandbox-1", .tenant = "acme", .epoch = 7};

/* In place of the C library's: counts, and fails if it is told to. */
static unsigned syncs;
static bool sync_fails;
int fdatasync(int fd)
{
    assert_true(fd >= 0);
    (void)__atomic_fetch_add(&syncs, 1, __ATOMIC_SEQ_CST);
    errno = EIO;
    return sync_fails ? -1 : 0;
}

static int start(void **state)
{
    syncs = 0;
    sync_fails = false;
    (void)state;
    struct err err = {0};
    (void)snprintf(folder, sizeof folder, "/tmp/hutch-audit.XXXXXX");
    assert_non_null(mkdtemp(folder));
    dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(dir >= 0);
    assert_int_equal(loop_new(&loop, &err), 0);
    audit = NULL;
    sandbox.audit_seq = 0;
    return 0;
}

static int stop(void **state)
{
    (void)state;
    struct err err;
    _cleanup_free_ uint32_t *files = NULL;
    size_t n = 0;
    audit_close(audit);
    loop_free(loop);
    assert_int_equal(audit_files(dir, &files, &n, &err), 0);
    for (size_t i = 0; i < n; i++) {
        char name[64];
        audit_file_name(files[i], name);
        (void)unlinkat(dir, name, 0);
    }
    free(files);
    assert_int_equal(audit_kept_files(dir, &files, &n, &err), 0);
    for (size_t i = 0; i < n; i++) {
        char name[64];
        audit_kept_name(files[i], name);
        (void)unlinkat(dir, name, 0);
    }
    (void)close(dir);
    assert_int_equal(rmdir(folder), 0);
    return 0;
}

static void begin(bool block)
{
    struct err err = {0};
    if (audit_open(loop, dir, block, &audit, &err) < 0)
        fail_msg("%s", err.msg);
}

static void end(void)
{
    audit_close(audit);
    audit = NULL;
}

static void turn(void)
{
    struct err err = {0};
    for (int i = 0; i < 3; i++)
        assert_int_equal(loop_step(loop, 0, &err), 0);
}

static void write_path(const char *path)
{
    struct audit_record r = {.kind = "http",
                             .sandbox = &sandbox,
                             .host = "example.org",
                             .port = 443,
                             .method = "GET",
                             .path = path,
                             .status = 200,
                             .verdict = "allow",
                             .rule = "one"};
    audit_write(audit, &r);
}

static void write_lines(unsigned n)
{
    char path[32];
    for (unsigned i = 0; i < n; i++) {
        (void)snprintf(path, sizeof path, "/%u", i);
        write_path(path);
    }
    turn();
}

/* --- what the log says
 * ------------------------------------------------------------------------------------------------ */

static bool collect(void *arg, const char *line, size_t n)
{
    buf_add(arg, line, n);
    buf_addc(arg, '\n');
    return true;
}

static void all_lines(struct buf *out)
{
    struct err err = {0};
    if (audit_each(dir, false, collect, out, &err) < 0)
        fail_msg("%s", err.msg);
}

static uint64_t whole(void)
{
    struct audit_problem problem = {0};
    struct err err = {0};
    char last[AUDIT_HASH];
    uint64_t lines = 0;
    int r = audit_verify_known(dir, NULL, NULL, &lines, last, &problem, &err);
    if (r != 0)
        fail_msg("%s:%llu %s%s", problem.file, (unsigned long long)problem.line, problem.text, err.msg);
    return lines;
}

static struct audit_problem broken(void)
{
    struct audit_problem problem = {0};
    struct err err = {0};
    char last[AUDIT_HASH];
    uint64_t lines = 0;
    assert_int_equal(audit_verify_known(dir, NULL, NULL, &lines, last, &problem, &err), 1);
    return problem;
}

static void read_file(uint32_t number, struct buf *ret)
{
    char name[64];
    audit_file_name(number, name);
    assert_int_equal(fd_read_file(dir, name, 1 << 26, ret), 0);
}

static void put_file(uint32_t number, const void *p, size_t n)
{
    char name[64];
    audit_file_name(number, name);
    _cleanup_close_ int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, p, n), 0);
}

/* The start of line `i` (0 is the first). */
static char *line_at(const struct buf *b, unsigned i)
{
    char *p = b->p;
    while (i-- > 0)
        p = strchr(p, '\n') + 1;
    return p;
}

/* --- tests
 * ------------------------------------------------------------------------------------------------------------ */

static void every_line_carries_the_hash_of_the_one_before(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    char hash[AUDIT_HASH];
    begin(false);
    write_lines(5);
    end();
    assert_int_equal(whole(), 6);
    read_file(1, &b);
    for (unsigned i = 0; i < 5; i++) {
        char *line = line_at(&b, i), *next = line_at(&b, i + 1), *tail = strchr(next, '\n') - (AUDIT_HASH - 1) - 2;
        audit_hash(line, (size_t)(next - line) - 1, hash);
        assert_memory_equal(tail, hash, AUDIT_HASH - 1);
    }
    assert_non_null(strstr(b.p, AUDIT_NO_HASH));
}

static void fields_stand_in_one_order_and_queries_lose_their_values(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct flow flow = {.id = 12, .port = 443, .sni = "api.example.org"};
    struct in6_addr up;
    struct audit_secret secret = {"forge", "header:authorization"};
    assert_true(netpol_literal("203.0.113.9", 11, &up));
    assert_true(netpol_literal("198.18.0.9", 10, &flow.dst));
    struct audit_record r = {.kind = "http",
                             .sandbox = &sandbox,
                             .flow = &flow,
                             .request_id = "r1",
                             .host = "api.example.org",
                             .port = 443,
                             .tls = "intercept",
                             .alpn = "h2",
                             .method = "POST",
                             .path = "/a/b",
                             .query = "token=hunter2&ref=main&&flag",
                             .status = 201,
                             .verdict = "allow",
                             .rule = "forge",
                             .upstream = &up,
                             .upstream_port = 443,
                             .reused = true,
                             .bytes_up = 10,
                             .bytes_down = 20,
                             .secrets = &secret,
                             .nsecrets = 1,
                             .redactions = 3};
    begin(false);
    audit_write(audit, &r);
    turn();
    read_file(1, &b);
    const char *line = line_at(&b, 1);
    assert_null(strstr(line, "hunter2"));
    assert_non_null(
        strstr(line, "\"kind\":\"http\",\"sandbox\":\"sandbox-1\",\"tenant\":\"acme\",\"epoch\":7,\"conn\":\"c12\","
                     "\"req\":\"r1\",\"dst\":\"198.18.0.9:443\",\"sni\":\"api.example.org\",\"tls\":\"intercept\","
                     "\"alpn\":\"h2\",\"method\":\"POST\",\"host\":\"api.example.org\",\"port\":443,"
                     "\"path\":\"/a/b\",\"query_keys\":[\"token\",\"ref\",\"flag\"],\"status\":201,"
                     "\"verdict\":\"allow\",\"rule\":\"forge\",\"up_addr\":\"203.0.113.9:443\","
                     "\"up_reused\":true,\"bytes_up\":10,\"bytes_down\":20,"));
    assert_non_null(strstr(line, "\"secrets\":[{\"name\":\"forge\",\"at\":\"header:authorization\"}],\"redactions\":3,"
                                 "\"seq\":1,\"prev\":\"sha256:"));
}

static void lines_of_a_sandbox_are_numbered(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    begin(false);
    write_lines(3);
    all_lines(&b);
    assert_non_null(strstr(line_at(&b, 1), "\"seq\":1,"));
    assert_non_null(strstr(line_at(&b, 3), "\"seq\":3,"));
}

static void a_line_stays_within_its_limit_whatever_a_sandbox_sends(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    _cleanup_free_ char *path = xmalloc(60001), *query = xmalloc(60001);
    memset(path, 1, 60000); /* six bytes each in JSON */
    memset(query, '&', 60000);
    for (size_t i = 0; i < 60000; i += 400)
        memset(query + i, 2, 399);
    path[60000] = query[60000] = '\0';
    begin(false);
    struct audit_record r = {.kind = "http",
                             .sandbox = &sandbox,
                             .host = path,
                             .method = path,
                             .path = path,
                             .query = query,
                             .verdict = "deny",
                             .reason = "host_not_allowed"};
    audit_write(audit, &r);
    end();
    read_file(1, &b);
    assert_true(strlen(line_at(&b, 1)) <= AUDIT_LINE_MAX);
    assert_int_equal(whole(), 2);
}

static void a_new_start_goes_on_with_the_chain_in_a_new_file(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    begin(false);
    write_lines(2);
    end();
    begin(false);
    write_lines(2);
    end();
    assert_int_equal(whole(), 6);
    read_file(2, &b);
    assert_non_null(strstr(b.p, "\"kind\":\"started\",\"file\":2"));
}

/* Old files are removed off the loop. */
static void room_is_made(void)
{
    struct err err;
    AWAIT (!audit_making_room(audit))
        assert_int_equal(loop_step(loop, 20, &err), 0);
}

struct seen_lines {
    int quiet, loud, notes;
};
static bool see_line(void *arg, const char *line, size_t n)
{
    struct seen_lines *s = arg;
    _cleanup_free_ char *text = xstrndup(line, n);
    s->quiet += strstr(text, "\"tenant\":\"quiet\"") != NULL;
    s->loud += strstr(text, "\"tenant\":\"loud\"") != NULL;
    s->notes += strstr(text, "\"kind\":\"kept\"") != NULL;
    return true;
}
static void write_as(const char *tenant, unsigned n)
{
    (void)snprintf(sandbox.tenant, sizeof sandbox.tenant, "%s", tenant);
    write_lines(n);
    (void)snprintf(sandbox.tenant, sizeof sandbox.tenant, "acme");
}
static void flood(int rounds)
{
    for (int i = 0; i < rounds; i++) {
        write_as("loud", 40);
        write_as("quiet", 1);
        room_is_made();
    }
}

static void a_flood_pushes_out_its_own_lines_and_not_those_of_others(void **state)
{
    (void)state;
    struct err err = {0};
    struct audit_problem problem = {0};
    struct seen_lines kept = {0}, newest = {0};
    uint64_t lines = 0;
    begin(false);
    audit_limits(audit, 16384, 3);
    flood(20);
    assert_int_equal(audit_each_kept(dir, see_line, &kept, &err), 0);
    assert_int_equal(audit_each(dir, false, see_line, &newest, &err), 0);
    assert_true(kept.notes > 1);
    assert_int_equal(kept.quiet + newest.quiet, 20);
    assert_true(kept.quiet > 5);
    assert_int_equal(kept.loud, 0);
    assert_true(newest.loud > 0);
    assert_true(whole() > 10);
    assert_int_equal(audit_verify_kept(dir, &lines, &problem, &err), 0);
    assert_int_equal(lines, (uint64_t)(kept.quiet + kept.notes));
}

static void a_kept_line_that_was_changed_is_found(void **state)
{
    (void)state;
    _cleanup_free_ uint32_t *files = NULL;
    _cleanup_buf_ struct buf b = {0};
    struct err err = {0};
    struct audit_problem problem = {0};
    uint64_t lines = 0;
    size_t n = 0;
    char name[64];
    begin(false);
    audit_limits(audit, 16384, 3);
    flood(20);
    assert_int_equal(audit_kept_files(dir, &files, &n, &err), 0);
    assert_true(n > 1);
    audit_kept_name(files[0], name);
    assert_int_equal(fd_read_file(dir, name, 1 << 20, &b), 0);
    char *at = strstr(buf_str(&b), "quiet");
    assert_non_null(at);
    *at = 'Q';
    int fd = openat(dir, name, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_int_equal(fd_write_all(fd, b.p, b.n), 0);
    (void)close(fd);
    assert_int_equal(audit_verify_kept(dir, &lines, &problem, &err), 1);
}

static void a_removal_that_was_cut_is_done_again_without_a_line_twice(void **state)
{
    (void)state;
    struct err err = {0};
    struct audit_problem problem = {0};
    struct seen_lines kept = {0};
    uint64_t lines = 0;
    begin(false);
    write_as("quiet", 3);
    end();
    for (int i = 0; i < 2; i++)
        assert_int_equal(audit_keep(dir, 1, 1 << 20, &err), 0);
    assert_int_equal(audit_each_kept(dir, see_line, &kept, &err), 0);
    assert_int_equal(kept.quiet, 3);
    assert_int_equal(audit_verify_kept(dir, &lines, &problem, &err), 0);
    assert_int_equal(lines, 4);
}

static void a_file_that_is_full_is_followed_by_the_next_and_old_ones_go(void **state)
{
    (void)state;
    _cleanup_free_ uint32_t *files = NULL;
    struct err err = {0};
    size_t n = 0;
    begin(false);
    audit_limits(audit, 2000, 3);
    for (int i = 0; i < 20; i++)
        write_lines(4);
    room_is_made();
    assert_int_equal(audit_files(dir, &files, &n, &err), 0);
    assert_int_equal(n, 3);
    assert_true(files[0] > 1);
    assert_true(whole() > 10);
}

static void a_line_torn_by_a_kill_is_cut_and_the_log_says_so(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0}, second = {0};
    begin(false);
    write_lines(3);
    end();
    read_file(1, &b);
    put_file(1, b.p, b.n - 10);
    assert_int_equal(whole(), 3); /* the torn one is not there yet */
    begin(false);
    write_lines(1);
    end();
    assert_int_equal(whole(), 5);
    read_file(2, &second);
    assert_non_null(strstr(second.p, "\"kind\":\"resumed\",\"file\":2,\"cut\":"));
}

static void a_file_without_a_whole_line_is_used_again(void **state)
{
    (void)state;
    _cleanup_free_ uint32_t *files = NULL;
    struct err err = {0};
    size_t n = 0;
    begin(false);
    write_lines(1);
    end();
    put_file(2, "{\"ts\":", 6);
    begin(false);
    end();
    assert_int_equal(audit_files(dir, &files, &n, &err), 0);
    assert_int_equal(n, 2);
    assert_int_equal(whole(), 3);
}

static void a_writer_that_was_killed_leaves_a_log_that_goes_on(void **state)
{
    (void)state;
    int ready[2];
    char c;
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct err err = {0};
        struct loop *l;
        if (loop_new(&l, &err) < 0 || audit_open(l, dir, false, &audit, &err) < 0)
            _exit(1);
        for (unsigned i = 0;; i++) {
            write_path("/killed");
            if (i % 16 == 0)
                (void)loop_step(l, 0, &err);
            if (i == 1000 && write(ready[1], "x", 1) != 1)
                _exit(1);
        }
    }
    (void)close(ready[1]);
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    (void)close(ready[0]);
    begin(false);
    write_lines(1);
    end();
    assert_true(whole() > 900); /* at most a round's worth is missing */
}

static void two_writers_of_one_log_are_refused(void **state)
{
    (void)state;
    struct audit *other = NULL;
    struct err err = {0};
    begin(false);
    assert_int_equal(audit_open(loop, dir, false, &other, &err), -1);
    assert_non_null(strstr(err.msg, "another process"));
}

static void changed_removed_inserted_and_swapped_lines_are_found(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0}, bad = {0};
    begin(false);
    write_lines(6);
    end();
    read_file(1, &b);
    char *three = line_at(&b, 3), *four = line_at(&b, 4), *five = line_at(&b, 5);

    char *status = strstr(three, "\"status\":200"); /* changed */
    status[11] = '4';
    put_file(1, b.p, b.n);
    assert_int_equal(broken().line, 5);
    status[11] = '0';

    buf_add(&bad, b.p, (size_t)(three - b.p)); /* removed */
    buf_adds(&bad, four);
    put_file(1, bad.p, bad.n);
    assert_int_equal(broken().line, 4);

    bad.n = 0;
    buf_add(&bad, b.p, (size_t)(four - b.p)); /* inserted: a copy */
    buf_adds(&bad, three);
    put_file(1, bad.p, bad.n);
    assert_int_equal(broken().line, 5);

    bad.n = 0;
    buf_add(&bad, b.p, (size_t)(four - b.p)); /* inserted: something else */
    buf_adds(&bad, "{\"kind\":\"http\"}\n");
    buf_adds(&bad, four);
    put_file(1, bad.p, bad.n);
    assert_int_equal(broken().line, 5);

    bad.n = 0;
    buf_add(&bad, b.p, (size_t)(three - b.p)); /* swapped */
    buf_add(&bad, four, (size_t)(five - four));
    buf_add(&bad, three, (size_t)(four - three));
    buf_adds(&bad, five);
    put_file(1, bad.p, bad.n);
    assert_int_equal(broken().line, 4);

    put_file(1, b.p, b.n);
    assert_int_equal(whole(), 7);
}

static void a_missing_file_and_a_cut_file_in_the_middle_are_found(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    for (int i = 0; i < 3; i++) {
        begin(false);
        write_lines(2);
        end();
    }
    read_file(2, &b);
    put_file(2, b.p, (size_t)(line_at(&b, 2) - b.p));
    assert_string_equal(broken().file, "audit-00000003.ndjson");
    put_file(2, b.p, b.n - 1);
    assert_string_equal(broken().file, "audit-00000002.ndjson");
    assert_int_equal(unlinkat(dir, "audit-00000002.ndjson", 0), 0);
    struct audit_problem p = broken();
    assert_string_equal(p.file, "audit-00000002.ndjson");
    assert_non_null(strstr(p.text, "missing"));
}

static void a_first_file_that_begins_in_the_middle_is_found(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    begin(false);
    write_lines(3);
    end();
    read_file(1, &b);
    const char *rest = line_at(&b, 2);
    put_file(1, rest, strlen(rest));
    assert_int_equal(broken().line, 1);
}

static void a_cut_end_is_seen_by_who_knows_the_last_hash(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct audit_problem problem = {0};
    struct err err = {0};
    char last[AUDIT_HASH], now[AUDIT_HASH];
    uint64_t lines;
    bool found;
    begin(false);
    write_lines(3);
    assert_int_equal(audit_verify_known(dir, NULL, NULL, &lines, last, &problem, &err), 0);
    write_lines(3); /* the log may go on */
    end();
    assert_int_equal(audit_verify_known(dir, last, &found, &lines, now, &problem, &err), 0);
    assert_true(found);
    read_file(1, &b);
    put_file(1, b.p, (size_t)(line_at(&b, 3) - b.p));
    assert_int_equal(audit_verify_known(dir, last, &found, &lines, now, &problem, &err), 0);
    assert_false(found);
}

static void no_log_is_a_whole_log(void **state)
{
    (void)state;
    assert_int_equal(whole(), 0);
    audit_write(NULL, &(struct audit_record){.kind = "http"});
    assert_false(audit_blocked(NULL));
}

/* A file that may not grow any further stands for a disk that is full. */
static struct rlimit was;
static void disk_full(void)
{
    struct stat st;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(fstatat(dir, "audit-00000001.ndjson", &st, 0), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    struct rlimit now = {.rlim_cur = (rlim_t)st.st_size + 100, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
}
static void disk_free(void)
{
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    (void)signal(SIGXFSZ, SIG_DFL);
}

static uint64_t clock_ms;
static uint64_t test_clock(void *arg)
{
    (void)arg;
    return clock_ms;
}

static void a_full_disk_blocks_until_there_is_room_and_nothing_is_lost(void **state)
{
    (void)state;
    loop_set_clock(loop, test_clock, NULL);
    begin(true);
    write_lines(2);
    disk_full();
    write_lines(2);
    bool blocked = audit_blocked(audit);
    disk_free();
    assert_true(blocked);
    assert_int_equal(whole(), 3); /* nothing torn */
    clock_ms += AUDIT_RETRY_MS;
    turn();
    assert_false(audit_blocked(audit));
    assert_int_equal(audit_dropped(audit), 0);
    assert_int_equal(whole(), 5);
}

static void a_full_disk_does_not_block_where_lines_may_be_dropped_and_the_log_counts_them(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    char text[40];
    loop_set_clock(loop, test_clock, NULL);
    begin(false);
    disk_full();
    for (int i = 0; i < AUDIT_PENDING_MAX / 300; i++)
        write_path("/many/many/many/many/many/many/many/many/many/many/many/many/many");
    turn();
    bool blocked = audit_blocked(audit);
    uint64_t dropped = audit_dropped(audit);
    disk_free();
    assert_false(blocked);
    assert_true(dropped > 0);
    clock_ms += AUDIT_RETRY_MS;
    turn();
    write_lines(1);
    assert_true(whole() > 100);
    all_lines(&b);
    (void)snprintf(text, sizeof text, "\"lines\":%llu,", (unsigned long long)dropped);
    assert_non_null(strstr(b.p, "\"kind\":\"dropped\""));
    assert_non_null(strstr(b.p, text));
}

static void left_to_the_kernel_nothing_is_forced_to_the_disk(void **state)
{
    (void)state;
    begin(true);
    write_lines(5);
    end();
    assert_int_equal(syncs, 0);
}

static void each_batch_is_forced_to_the_disk_and_one_that_is_not_blocks(void **state)
{
    (void)state;
    loop_set_clock(loop, test_clock, NULL);
    begin(true);
    audit_set_sync(audit, AUDIT_SYNC_EACH);
    unsigned before = syncs;
    write_lines(3); /* one round */
    assert_int_equal(syncs, before + 1);
    turn(); /* nothing was written */
    assert_int_equal(syncs, before + 1);
    sync_fails = true;
    write_lines(1);
    assert_true(audit_blocked(audit));
    sync_fails = false;
    clock_ms += AUDIT_RETRY_MS;
    turn();
    assert_false(audit_blocked(audit));
    assert_int_equal(whole(), 5); /* and no line stands there twice */
}

static void at_an_interval_a_worker_forces_it_to_the_disk(void **state)
{
    (void)state;
    struct err err = {0};
    loop_set_clock(loop, test_clock, NULL);
    begin(true);
    audit_set_sync(audit, AUDIT_SYNC_INTERVAL);
    write_lines(3);
    write_lines(3);
    assert_int_equal(syncs, 0);
    clock_ms += AUDIT_SYNC_MS;
    AWAIT (__atomic_load_n(&syncs, __ATOMIC_SEQ_CST) != 0)
        assert_int_equal(loop_step(loop, 5, &err), 0);
    assert_int_equal(syncs, 1);
    for (int i = 0; i < 20; i++)
        assert_int_equal(loop_step(loop, 1, &err), 0);
    clock_ms += AUDIT_SYNC_MS;
    turn();
    assert_int_equal(syncs, 1); /* there was nothing new */
    write_lines(1);
    end();
    assert_int_equal(syncs, 2); /* the end does not wait for the interval */
}

static void keep_line(void *arg, const struct buf *line) { buf_addf(arg, "%s\n", line->p); }

static void without_files_lines_are_told_without_what_chains_them(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    audit = audit_tell(loop, keep_line, &b);
    write_lines(2);
    assert_false(audit_blocked(audit));
    assert_non_null(strstr(buf_str(&b), "\"path\":\"/1\""));
    assert_null(strstr(buf_str(&b), "\"prev\""));
    assert_null(strstr(buf_str(&b), "sandbox-1"));
}

static void the_last_lines_are_found_across_files(void **state)
{
    (void)state;
    struct err err = {0};
    static const struct {
        uint64_t last;
        unsigned want;
    } cases[] = {{0, 0}, {1, 1}, {3, 3}, {4, 4}, {6, 6}, {7, 7}, {9, 9}, {500, 9}};
    for (int i = 0; i < 3; i++) {
        begin(false);
        write_lines(2);
        end();
    }
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_buf_ struct buf b = {0};
        unsigned n = 0;
        assert_int_equal(audit_tail(dir, cases[i].last, false, collect, &b, &err), 0);
        for (size_t k = 0; k < b.n; k++)
            n += b.p[k] == '\n';
        assert_int_equal(n, cases[i].want);
    }
}

struct followed {
    unsigned n, want;
};
static bool count_to(void *arg, const char *line, size_t n)
{
    struct followed *f = arg;
    (void)line, (void)n;
    return ++f->n < f->want;
}

static void who_follows_hears_of_lines_in_files_that_begin_later(void **state)
{
    (void)state;
    pid_t pid = fork(); /* before the log is opened: its lock would be the child's too */
    assert_true(pid >= 0);
    if (pid == 0) {
        struct followed f = {.want = 24};
        struct err err = {0};
        (void)alarm(120);
        _exit(audit_each(dir, true, count_to, &f, &err) == 0 && f.n == 24 ? 0 : 1);
    }
    begin(false);
    write_lines(2);
    end();
    begin(false);
    write_lines(10);
    write_lines(10);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_line_carries_the_hash_of_the_one_before),
        TEST(fields_stand_in_one_order_and_queries_lose_their_values),
        TEST(lines_of_a_sandbox_are_numbered),
        TEST(a_line_stays_within_its_limit_whatever_a_sandbox_sends),
        TEST(a_new_start_goes_on_with_the_chain_in_a_new_file),
        TEST(a_file_that_is_full_is_followed_by_the_next_and_old_ones_go),
        TEST(a_flood_pushes_out_its_own_lines_and_not_those_of_others),
        TEST(a_kept_line_that_was_changed_is_found),
        TEST(a_removal_that_was_cut_is_done_again_without_a_line_twice),
        TEST(a_line_torn_by_a_kill_is_cut_and_the_log_says_so),
        TEST(a_file_without_a_whole_line_is_used_again),
        TEST(a_writer_that_was_killed_leaves_a_log_that_goes_on),
        TEST(two_writers_of_one_log_are_refused),
        TEST(changed_removed_inserted_and_swapped_lines_are_found),
        TEST(a_missing_file_and_a_cut_file_in_the_middle_are_found),
        TEST(a_first_file_that_begins_in_the_middle_is_found),
        TEST(a_cut_end_is_seen_by_who_knows_the_last_hash),
        TEST(no_log_is_a_whole_log),
        TEST(a_full_disk_blocks_until_there_is_room_and_nothing_is_lost),
        TEST(a_full_disk_does_not_block_where_lines_may_be_dropped_and_the_log_counts_them),
        TEST(left_to_the_kernel_nothing_is_forced_to_the_disk),
        TEST(each_batch_is_forced_to_the_disk_and_one_that_is_not_blocks),
        TEST(at_an_interval_a_worker_forces_it_to_the_disk),
        TEST(without_files_lines_are_told_without_what_chains_them),
        TEST(the_last_lines_are_found_across_files),
        TEST(who_follows_hears_of_lines_in_files_that_begin_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
