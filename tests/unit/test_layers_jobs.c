/* the layer store as a process: its answers, its jobs and how they end, who waits for whom, what the next one finds of the one
 * before.
 *
 * LAYERS_CONVERT is played here: a job that does what comes over the descriptor it was given. Needs root.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "layers-wire.h"
#include "layers/layers-int.h"
#include "os/cgroup.h"
#include "tests/lib/unit.h"

enum { PATIENCE_MS = 120000 };

/* --- the job ------------------------------------------------------------------------------------------------------ */

static unsigned count_fds(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    (void)closedir(d);
    return n - 3; /* ".", "..", and of this directory */
}

static int answer_where(struct job *j)
{
    struct stat st;
    if (stat("/proc/self/ns/net", &st) < 0)
        return -1;
    j->reply.bytes = st.st_ino;
    j->reply.entries = count_fds();
    struct rlimit r;
    j->reply.bytes2 = getrlimit(RLIMIT_AS, &r) == 0 ? r.rlim_cur : 0;
    return 0;
}

int job_convert(struct job *j, struct err *err)
{
    char c = 0, name[LAYERS_TMP_NAME];
    if (write(j->fds[0], "S", 1) != 1)
        return err_set(err, ERR_INTERNAL, errno, "say that the job has begun");
    while (read(j->fds[0], &c, 1) == 1)
        switch (c) {
        case 'o':
            return 0;
        case 'w':
            return answer_where(j);
        case 't':
            (void)close(job_tmp(j, true, name, err));
            (void)write(j->fds[0], "T", 1);
            break;
        case 'p':
            job_progress(j, 3, 9, "half");
            break;
        case 'k':
            (void)raise(SIGKILL);
            break;
        case 'x':
            _exit(3);
        case 'n':
            return err_set(err, ERR_SETUP, ENOSPC, "write");
        case 'l':
            return err_set(err, ERR_LIMIT, 0, "too long");
        case 'u':
            return err_set(err, ERR_USAGE, 0, "not right");
        case 'h':
            return err_set(err, ERR_HOST, 0, "not here");
        case 'c':
            return job_fail(j, LAYERS_CONFLICT, err, "%s", "both changed");
        default:
            break;
        }
    return err_set(err, ERR_INTERNAL, 0, "nobody says what to do");
}

/* --- the scene ---------------------------------------------------------------------------------------------------- */

struct scene {
    char dir[40];
    int top, run, state, listener, conn;
    pid_t pid;
    uint64_t next;
};

static void start(struct scene *s)
{
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid > 0)
        return;
    struct err err = {0};
    struct layers_config c = {.image_uid = (uid_t)-1, .image_gid = (gid_t)-1, .front_gid = (gid_t)-1};
    int fds[3] = {s->listener, s->run, s->state};
    for (int i = 0; i < 3; i++)
        fds[i] = fcntl(fds[i], F_DUPFD, 100);
    for (int i = 0; i < 3; i++)
        (void)dup2(fds[i], LAYERS_FD_SOCKET + i);
    if (layers_run(&c, &err) < 0)
        (void)fprintf(stderr, "stock: %s\n", err.msg);
    _exit(err.code ? 1 : 0);
}

static void stop(struct scene *s)
{
    int status;
    if (s->pid <= 0)
        return;
    assert_int_equal(kill(s->pid, SIGTERM), 0);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    s->pid = 0;
    assert_int_equal(status, 0);
}

static void connect_to(struct scene *s)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s/run/" LAYERS_SOCKET, s->dir);
    s->conn = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(s->conn, (const struct sockaddr *)&a, sizeof a), 0);
}

static int make(void **state)
{
    struct scene *s = calloc(1, sizeof *s);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)signal(SIGPIPE, SIG_IGN);
    (void)snprintf(s->dir, sizeof s->dir, "/tmp/hutch-stock.XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    s->top = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(mkdirat(s->top, "run", 0700), 0);
    assert_int_equal(mkdirat(s->top, "state", 0700), 0);
    s->run = openat(s->top, "run", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    s->state = openat(s->top, "state", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s/run/" LAYERS_SOCKET, s->dir);
    s->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s->listener, (const struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s->listener, 8), 0);
    s->conn = -1;
    s->next = 1;
    *state = s;
    return 0;
}

static int setup(void **state)
{
    (void)make(state);
    struct scene *s = *state;
    if (geteuid() == 0) {
        start(s);
        connect_to(s);
    }
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;
    char command[80];
    stop(s);
    int fds[] = {s->conn, s->listener, s->run, s->state, s->top};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    (void)snprintf(command, sizeof command, "rm -rf %s", s->dir);
    assert_int_equal(system(command), 0);
    free(s);
    return 0;
}

#define NEEDS_ROOT()    \
    if (geteuid() != 0) \
    skip()

static struct layers_request request(struct scene *s, enum layers_type type)
{
    return (struct layers_request){.version = LAYERS_VERSION, .type = (uint32_t)type, .request = s->next++};
}

static void send_to(struct scene *s, const struct layers_request *q, int fd)
{
    struct layers_wire w = layers_wire_of(q);
    assert_int_equal(fd_send(s->conn, &w.m, w.n, &fd, fd >= 0), 0);
}

static void wait_for(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
}

static struct layers_reply answer_to(struct scene *s, uint64_t request, int *fd)
{
    struct layers_reply r;
    int got = -1;
    size_t n = 1;
    wait_for(s->conn);
    assert_int_equal(fd_recv(s->conn, &r, sizeof r, &got, &n), sizeof r);
    assert_int_equal(r.version, LAYERS_VERSION);
    assert_int_equal(r.request, request);
    if (fd)
        *fd = n ? got : -1;
    else
        assert_int_equal(n, 0);
    return r;
}

static void nothing_from(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 100), 0);
}

/* Asks for a job; returns our end of its line. `blob`: one hexadecimal digit. */
static int begin(struct scene *s, char blob, uint64_t *ret)
{
    int pair[2];
    struct layers_request q = request(s, LAYERS_CONVERT);
    memset(q.blob, blob, 64);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    send_to(s, &q, pair[1]);
    (void)close(pair[1]);
    *ret = q.request;
    return pair[0];
}

static void expect_byte(int line, char want)
{
    char c = 0;
    wait_for(line);
    assert_int_equal(read(line, &c, 1), 1);
    assert_int_equal(c, want);
}

/* One that runs. */
static int begin_running(struct scene *s, char blob, uint64_t *ret)
{
    int line = begin(s, blob, ret);
    expect_byte(line, 'S');
    return line;
}

static struct layers_reply do_one(struct scene *s, const char *what)
{
    uint64_t id;
    _cleanup_close_ int line = begin_running(s, 'a', &id);
    assert_int_equal(write(line, what, strlen(what)), (ssize_t)strlen(what));
    return answer_to(s, id, NULL);
}

static bool is_empty(int dir, const char *path, const char *start)
{
    bool found = false;
    DIR *d = fdopendir(openat(dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        found |= strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
                 strncmp(e->d_name, start, strlen(start)) == 0;
    (void)closedir(d);
    return !found;
}

static void until_empty(int dir, const char *path, const char *start)
{
    for (int waited = 0; !is_empty(dir, path, start); waited += 10) {
        assert_true(waited < PATIENCE_MS);
        (void)usleep(10000);
    }
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

/* The layer that stack files name which nobody filled in. */
static void make_zero_layer(const struct layers_place *p)
{
    assert_int_equal(mkdirat(p->layers, "0000000000000000000000000000000000000000000000000000000000000000", 0755), 0);
}

static void test_a_list_names_stacks_and_volumes(void **state)
{
    struct scene *s = *state;
    static struct layers_items m;
    struct layers_place place;
    struct err err = {0};
    NEEDS_ROOT();
    struct layers_request q = request(s, LAYERS_LIST);
    send_to(s, &q, -1);
    wait_for(s->conn);
    assert_int_equal(recv(s->conn, &m, sizeof m, 0), sizeof m);
    assert_int_equal(m.type, LAYERS_ITEMS);
    assert_int_equal(m.n, 0);
    assert_int_equal(layers_place_open(s->state, -1, &place, &err), 0);
    struct stack_file f = {.n = 3};
    make_zero_layer(&place);
    for (int i = 0; i < 300; i++) {
        char id[STACK_ID_MAX];
        (void)snprintf(id, sizeof id, "st-%08d", i);
        assert_int_equal(stack_write(&place, id, &f, &err), 0);
    }
    assert_int_equal(mkdirat(place.volumes, "vol-abcdefgh", 0700), 0);
    assert_int_equal(mkdirat(place.volumes, "not one of ours", 0700), 0);
    assert_int_equal(mkdirat(place.volumes, ".gone-abcdefgh", 0700), 0);
    assert_int_equal(mknodat(place.volumes, "vol-image000.img", S_IFREG | 0600, 0), 0); /* os/upper.h */
    layers_place_close(&place);
    q = request(s, LAYERS_LIST);
    send_to(s, &q, -1);
    unsigned n = 0, volumes = 0;
    do {
        wait_for(s->conn);
        assert_int_equal(recv(s->conn, &m, sizeof m, 0), sizeof m);
        assert_int_equal(m.request, q.request);
        for (unsigned i = 0; i < m.n; i++) {
            bool volume = strcmp(m.item[i].id, "vol-abcdefgh") == 0 || strcmp(m.item[i].id, "vol-image000") == 0;
            volumes += volume;
            assert_int_equal(m.item[i].nlayers, volume ? 0 : 3);
            assert_true(m.item[i].created_unix > 0);
        }
        n += m.n;
    } while (m.more);
    assert_int_equal(n, 302);
    assert_int_equal(volumes, 2);
}

static void test_a_dropped_stack_is_gone_and_dropping_it_again_is_no_error(void **state)
{
    struct scene *s = *state;
    struct layers_place place;
    struct err err = {0};
    NEEDS_ROOT();
    struct layers_request q = request(s, LAYERS_LIST);
    static struct layers_items m;
    send_to(s, &q, -1);
    wait_for(s->conn);
    assert_int_equal(recv(s->conn, &m, sizeof m, 0), sizeof m); /* it is there by now */
    assert_int_equal(layers_place_open(s->state, -1, &place, &err), 0);
    struct stack_file f = {.n = 1};
    make_zero_layer(&place);
    assert_int_equal(stack_write(&place, "st-abcdefgh", &f, &err), 0);
    for (int i = 0; i < 2; i++) {
        q = request(s, LAYERS_DROP);
        (void)snprintf(q.stack, sizeof q.stack, "st-abcdefgh");
        send_to(s, &q, -1);
        struct layers_reply r = answer_to(s, q.request, NULL);
        assert_int_equal(r.error, LAYERS_OK);
        assert_int_equal(stack_read(&place, "st-abcdefgh", &f, &err), -1);
        assert_int_equal(err.eno, ENOENT);
    }
    layers_place_close(&place);
}

static void test_a_blob_comes_as_a_descriptor(void **state)
{
    struct scene *s = *state;
    struct layers_place place;
    struct err err = {0};
    NEEDS_ROOT();
    struct layers_request q = request(s, LAYERS_BLOB);
    memset(q.blob, 'a', 64);
    send_to(s, &q, -1);
    struct layers_reply r = answer_to(s, q.request, NULL);
    assert_int_equal(r.error, LAYERS_NOT_FOUND);
    assert_int_equal(layers_place_open(s->state, -1, &place, &err), 0);
    _cleanup_close_ int fd = openat(place.blobs, q.blob, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(fd_write_all(fd, "stream", 6), 0);
    layers_place_close(&place);
    q.request = s->next++;
    send_to(s, &q, -1);
    _cleanup_close_ int got = -1;
    r = answer_to(s, q.request, &got);
    assert_int_equal(r.error, LAYERS_OK);
    assert_int_equal(r.bytes, 6);
    char text[8] = "";
    assert_int_equal(read(got, text, sizeof text), 6);
    assert_string_equal(text, "stream");
}

static void test_what_is_wrong_with_a_request_is_said(void **state)
{
    struct scene *s = *state;
    NEEDS_ROOT();
    struct layers_request q = request(s, LAYERS_DROP);
    (void)snprintf(q.stack, sizeof q.stack, "../../etc");
    send_to(s, &q, -1);
    struct layers_reply r = answer_to(s, q.request, NULL);
    assert_int_equal(r.error, LAYERS_BAD_REQUEST);
    assert_non_null(strstr(r.text, "stack: must be"));
    int memory = memfd_create("x", MFD_CLOEXEC);
    q = request(s, LAYERS_LIST);
    send_to(s, &q, memory);
    (void)close(memory);
    r = answer_to(s, q.request, NULL);
    assert_int_equal(r.error, LAYERS_BAD_REQUEST);
    q = request(s, LAYERS_CAPTURE);
    (void)snprintf(q.stack, sizeof q.stack, "st-abcdefgh");
    (void)snprintf(q.sandbox, sizeof q.sandbox, "nobody");
    q.flags = LAYERS_FREEZE;
    send_to(s, &q, -1);
    r = answer_to(s, q.request, NULL);
    assert_int_equal(r.error, LAYERS_NOT_FOUND);
    assert_non_null(strstr(r.text, "nobody"));
    q = request(s, LAYERS_CANCEL);
    q.cancel = 999;
    send_to(s, &q, -1);
    assert_int_equal(answer_to(s, q.request, NULL).error, LAYERS_NOT_FOUND);
}

/* --- jobs --------------------------------------------------------------------------------------------------------- */

static void test_failures_have_their_class(void **state)
{
    struct scene *s = *state;
    static const struct {
        const char *what;
        uint32_t error;
        const char *text;
    } cases[] = {{"o", LAYERS_OK, ""},
                 {"n", LAYERS_NO_SPACE, "write: No space left on device"},
                 {"l", LAYERS_TOO_LARGE, "too long"},
                 {"u", LAYERS_BAD_DATA, "not right"},
                 {"h", LAYERS_HOST, "not here"},
                 {"c", LAYERS_CONFLICT, "both changed"},
                 {"k", LAYERS_FAILED, "the job was ended by signal 9 (KILL)"},
                 {"x", LAYERS_FAILED, "the job ended without an answer, with code 3"}};
    NEEDS_ROOT();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct layers_reply r = do_one(s, cases[i].what);
        assert_int_equal(r.type, LAYERS_REPLY);
        assert_string_equal(r.text, cases[i].text);
        assert_int_equal(r.error, cases[i].error);
    }
}

static void test_progress_is_passed_on(void **state)
{
    struct scene *s = *state;
    uint64_t id;
    NEEDS_ROOT();
    _cleanup_close_ int line = begin_running(s, 'a', &id);
    assert_int_equal(write(line, "p", 1), 1);
    struct layers_reply r = answer_to(s, id, NULL);
    assert_int_equal(r.type, LAYERS_PROGRESS);
    assert_int_equal(r.bytes, 3);
    assert_int_equal(r.bytes2, 9);
    assert_string_equal(r.text, "half");
    assert_int_equal(write(line, "o", 1), 1);
    assert_int_equal(answer_to(s, id, NULL).type, LAYERS_REPLY);
}

static void test_a_job_has_no_network_and_no_descriptors_of_others(void **state)
{
    struct scene *s = *state;
    struct stat st;
    uint64_t id;
    NEEDS_ROOT();
    assert_int_equal(stat("/proc/self/ns/net", &st), 0);
    _cleanup_close_ int other = begin_running(s, 'b', &id); /* another job under way, whose line must not be seen */
    struct layers_reply r = do_one(s, "w");
    assert_true(r.bytes != 0 && r.bytes != st.st_ino);
    /* 0 to 2, eight directories of the database, the run directory, the line to the layer store, the request's own. */
    assert_int_equal(r.entries, 3 + 8 + 1 + 1 + 1);
#ifndef __SANITIZE_ADDRESS__
    assert_int_equal(r.bytes2, UINT64_C(2) << 30); /* of memory, no more */
#endif
    assert_int_equal(write(other, "o", 1), 1);
    (void)answer_to(s, id, NULL);
}

static void test_what_a_dead_job_left_is_removed_before_it_is_answered(void **state)
{
    struct scene *s = *state;
    static const char *const ends[] = {"tk", "tx", "tto", "tn"};
    NEEDS_ROOT();
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        uint64_t id;
        _cleanup_close_ int line = begin_running(s, 'a', &id);
        assert_int_equal(write(line, ends[i], 1), 1);
        expect_byte(line, 'T');
        assert_false(is_empty(s->state, "stock/tmp", "t"));
        assert_true(write(line, ends[i] + 1, strlen(ends[i]) - 1) > 0);
        (void)answer_to(s, id, NULL);
        if (i < 2)
            assert_true(is_empty(s->state, "stock/tmp", "t"));
        else
            until_empty(s->state, "stock/tmp", "t"); /* it had an answer of its own */
    }
}

static void test_a_cancelled_job_ends_and_leaves_nothing(void **state)
{
    struct scene *s = *state;
    uint64_t id;
    NEEDS_ROOT();
    _cleanup_close_ int line = begin_running(s, 'a', &id);
    assert_int_equal(write(line, "t", 1), 1);
    expect_byte(line, 'T');
    struct layers_request q = request(s, LAYERS_CANCEL);
    q.cancel = id;
    send_to(s, &q, -1);
    assert_int_equal(answer_to(s, q.request, NULL).error, LAYERS_OK);
    struct layers_reply r = answer_to(s, id, NULL);
    assert_int_equal(r.error, LAYERS_CANCELLED);
    assert_true(is_empty(s->state, "stock/tmp", "t"));
    char c;
    assert_int_equal(read(line, &c, 1), 0);
}

static void test_a_waiting_job_is_cancelled_without_having_begun(void **state)
{
    struct scene *s = *state;
    uint64_t first, second;
    NEEDS_ROOT();
    _cleanup_close_ int a = begin(s, 'a', &first), b = begin(s, 'a', &second);
    expect_byte(a, 'S');
    nothing_from(b);
    struct layers_request q = request(s, LAYERS_CANCEL);
    q.cancel = second;
    send_to(s, &q, -1);
    assert_int_equal(answer_to(s, q.request, NULL).error, LAYERS_OK);
    assert_int_equal(answer_to(s, second, NULL).error, LAYERS_CANCELLED);
    assert_int_equal(write(a, "o", 1), 1);
    assert_int_equal(answer_to(s, first, NULL).error, LAYERS_OK);
}

static void test_two_jobs_for_one_blob_come_one_after_the_other(void **state)
{
    struct scene *s = *state;
    uint64_t first, second;
    NEEDS_ROOT();
    _cleanup_close_ int a = begin(s, 'a', &first), b = begin(s, 'a', &second);
    expect_byte(a, 'S');
    nothing_from(b);
    assert_int_equal(write(a, "k", 1), 1);
    assert_int_equal(answer_to(s, first, NULL).error, LAYERS_FAILED);
    expect_byte(b, 'S');
    assert_int_equal(write(b, "o", 1), 1);
    assert_int_equal(answer_to(s, second, NULL).error, LAYERS_OK);
}

static void test_only_so_many_long_jobs_run_at_once(void **state)
{
    struct scene *s = *state;
    uint64_t id[3];
    int line[3];
    NEEDS_ROOT();
    for (int i = 0; i < 3; i++)
        line[i] = begin(s, (char)('a' + i), &id[i]);
    expect_byte(line[0], 'S');
    expect_byte(line[1], 'S');
    nothing_from(line[2]);
    /* A short one does not wait behind them. */
    struct layers_request q = request(s, LAYERS_BLOB);
    memset(q.blob, 'f', 64);
    send_to(s, &q, -1);
    assert_int_equal(answer_to(s, q.request, NULL).error, LAYERS_NOT_FOUND);
    assert_int_equal(write(line[1], "o", 1), 1);
    (void)answer_to(s, id[1], NULL);
    expect_byte(line[2], 'S');
    for (int i = 0; i < 3; i += 2) {
        assert_int_equal(write(line[i], "o", 1), 1);
        (void)answer_to(s, id[i], NULL);
    }
    for (int i = 0; i < 3; i++)
        (void)close(line[i]);
}

static void test_upkeep_does_not_wait_behind_transfers(void **state)
{
    struct scene *s = *state;
    uint64_t id[2];
    int line[2];
    NEEDS_ROOT();
    for (int i = 0; i < 2; i++) {
        line[i] = begin(s, (char)('a' + i), &id[i]);
        expect_byte(line[i], 'S');
    }
    struct layers_request q = request(s, LAYERS_FLATTEN);
    (void)snprintf(q.stack, sizeof q.stack, "st-notthere");
    send_to(s, &q, -1);
    assert_int_not_equal(answer_to(s, q.request, NULL).error, LAYERS_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(write(line[i], "o", 1), 1);
        (void)answer_to(s, id[i], NULL);
        (void)close(line[i]);
    }
}

static void test_more_than_the_limit_is_answered_busy(void **state)
{
    struct scene *s = *state;
    uint64_t id[LAYERS_JOBS_MAX], more;
    int line[LAYERS_JOBS_MAX];
    NEEDS_ROOT();
    for (int i = 0; i < LAYERS_JOBS_MAX; i++)
        line[i] = begin(s, 'a', &id[i]);
    expect_byte(line[0], 'S');
    _cleanup_close_ int last = begin(s, 'b', &more);
    assert_true(last >= 0); /* held open until the end */
    assert_int_equal(answer_to(s, more, NULL).error, LAYERS_BUSY);
    for (int i = 0; i < LAYERS_JOBS_MAX; i++)
        (void)close(line[i]); /* nobody says what to do: each one fails in turn */
    for (int i = 0; i < LAYERS_JOBS_MAX; i++)
        assert_int_equal(answer_to(s, id[i], NULL).error, LAYERS_FAILED);
}

static void test_jobs_end_when_front_is_gone(void **state)
{
    struct scene *s = *state;
    uint64_t first, second;
    char c;
    NEEDS_ROOT();
    _cleanup_close_ int a = begin(s, 'a', &first), b = begin(s, 'a', &second);
    expect_byte(a, 'S');
    assert_int_equal(write(a, "t", 1), 1);
    expect_byte(a, 'T');
    (void)close(s->conn);
    wait_for(a);
    assert_int_equal(read(a, &c, 1), 0);
    wait_for(b); /* it has never begun */
    assert_int_equal(read(b, &c, 1), 0);
    until_empty(s->state, "stock/tmp", "t");
    connect_to(s);
    assert_int_equal(do_one(s, "o").error, LAYERS_OK);
}

/* --- death and life ----------------------------------------------------------------------------------------------- */

static void test_jobs_die_with_layers_and_the_next_one_sweeps(void **state)
{
    struct scene *s = *state;
    uint64_t id;
    char c;
    NEEDS_ROOT();
    _cleanup_close_ int line = begin_running(s, 'a', &id);
    assert_int_equal(write(line, "t", 1), 1);
    expect_byte(line, 'T');
    assert_int_equal(kill(s->pid, SIGKILL), 0);
    assert_int_equal(waitpid(s->pid, NULL, 0), s->pid);
    wait_for(line);
    assert_int_equal(read(line, &c, 1), 0);
    assert_false(is_empty(s->state, "stock/tmp", "t"));
    (void)close(s->conn);
    start(s);
    connect_to(s);
    assert_int_equal(do_one(s, "o").error, LAYERS_OK);
    assert_true(is_empty(s->state, "stock/tmp", "t"));
    until_empty(s->state, "stock", LAYERS_GONE);
}

static void test_two_never_run(void **state)
{
    struct scene *s = *state;
    int status;
    NEEDS_ROOT();
    assert_int_equal(do_one(s, "o").error, LAYERS_OK);
    pid_t first = s->pid;
    start(s);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    s->pid = first;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 0);
    assert_int_equal(do_one(s, "o").error, LAYERS_OK);
}

/* A sandbox as far as the journal knows it: a process that sleeps in a cgroup, frozen. */
static void frozen_sandbox(const struct scene *s, const char *sandbox, bool paused, struct cgroup *cg, pid_t *pid)
{
    static struct cgroup_info host;
    struct journal_record r = {.state = JOURNAL_LIVE, .frozen = paused, .volume = {"vol-another0", "vol-abcdefgh"}};
    _cleanup_buf_ struct buf saved = {0};
    struct err err = {0};
    assert_int_equal(cgroup_probe(&host), 0);
    if (cgroup_create(&host, &(struct cgroup_limits){0}, CGROUP_FREEZER, cg, &err) < 0)
        fail_msg("%s", err.msg);
    *pid = fork();
    if (*pid == 0) {
        (void)pause();
        _exit(0);
    }
    r.pid = (uint32_t)*pid;
    assert_true(cgroup_start_time(*pid, &r.start));
    journal_boot_id(r.boot);
    assert_int_equal(cgroup_attach(cg, *pid, false, &err), 0);
    assert_int_equal(cgroup_freeze(cg, true, PATIENCE_MS, &err), 0);
    cgroup_save(cg, &saved);
    (void)snprintf(r.id, sizeof r.id, "%s", sandbox);
    (void)snprintf(r.template, sizeof r.template, "base");
    (void)snprintf(r.cgroup, sizeof r.cgroup, "%s", buf_str(&saved));
    _cleanup_close_ int journal = journal_open(s->run, &err);
    assert_int_equal(journal_write(journal, &r, &err), 0);
}

static void end_sandbox(struct cgroup *cg, pid_t pid)
{
    struct err err = {0};
    assert_int_equal(cgroup_kill(cg, 5000, &err), 0);
    (void)waitpid(pid, NULL, 0);
    assert_int_equal(cgroup_destroy(cg), 0);
}

/* Changes one byte of the record, or back. */
static void tear_record(const struct scene *s, const char *sandbox)
{
    char path[80];
    (void)snprintf(path, sizeof path, "journal/%s", sandbox);
    _cleanup_close_ int fd = openat(s->run, path, O_RDWR | O_CLOEXEC);
    char c = 0;
    assert_int_equal(pread(fd, &c, 1, 200), 1);
    c = (char)(c ^ 1);
    assert_int_equal(pwrite(fd, &c, 1, 200), 1);
}

static void test_a_record_that_is_being_written_is_read_once_it_is_whole(void **state)
{
    struct scene *s = *state;
    struct cgroup cg = CGROUP_INIT;
    struct journal_record r;
    struct err err = {0};
    pid_t pid;
    NEEDS_ROOT();
    frozen_sandbox(s, "one", false, &cg, &pid);
    _cleanup_close_ int journal = journal_open(s->run, &err);
    int got = -1;
    for (int i = 0; i < 100 && got < 0; i++) { /* who writes may be late, and is not waited for long */
        tear_record(s, "one");
        pid_t writer = fork();
        if (writer == 0) {
            (void)usleep(3000);
            tear_record(s, "one");
            _exit(0);
        }
        got = journal_read_beside(journal, "one", &r);
        assert_int_equal(waitpid(writer, NULL, 0), writer);
    }
    assert_int_equal(got, 0);
    end_sandbox(&cg, pid);
}

static void test_a_volume_that_a_sandbox_uses_is_not_dropped(void **state)
{
    struct scene *s = *state;
    struct cgroup cg = CGROUP_INIT;
    pid_t pid;
    NEEDS_ROOT();
    assert_int_equal(do_one(s, "o").error, LAYERS_OK); /* its directories are there now */
    assert_int_equal(mkdirat(s->state, "stock/volumes/vol-abcdefgh", 0700), 0);
    frozen_sandbox(s, "one", false, &cg, &pid);
    struct layers_request q = request(s, LAYERS_VOLUME_DROP);
    (void)snprintf(q.volume, sizeof q.volume, "vol-abcdefgh");
    send_to(s, &q, -1);
    struct layers_reply r = answer_to(s, q.request, NULL);
    assert_int_equal(r.error, LAYERS_BUSY);
    assert_non_null(strstr(r.text, "one uses the volume vol-abcdefgh"));
    assert_int_equal(faccessat(s->state, "stock/volumes/vol-abcdefgh", F_OK, 0), 0);
    end_sandbox(&cg, pid);
    q = request(s, LAYERS_VOLUME_DROP);
    (void)snprintf(q.volume, sizeof q.volume, "vol-abcdefgh");
    send_to(s, &q, -1);
    assert_int_equal(answer_to(s, q.request, NULL).error, LAYERS_OK);
    assert_int_equal(faccessat(s->state, "stock/volumes/vol-abcdefgh", F_OK, 0), -1);
}

static void test_a_sandbox_that_runs_or_is_gone_does_not_stand_still(void **state)
{
    struct scene *s = *state;
    struct job j = {0};
    struct job_sandbox b = JOB_SANDBOX_INIT;
    struct err err = {0};
    pid_t pid;
    NEEDS_ROOT();
    frozen_sandbox(s, "one", true, &b.cgroup, &pid);
    assert_int_equal(job_sandbox_still(&j, &b, true, "it was copied", &err), 0);
    assert_int_equal(cgroup_freeze(&b.cgroup, false, PATIENCE_MS, &err), 0);
    assert_int_equal(job_sandbox_still(&j, &b, false, "it was copied", &err), -1);
    assert_int_equal(j.reply.error, LAYERS_BUSY);
    j.reply.error = LAYERS_OK;
    end_sandbox(&b.cgroup, pid);
    assert_int_equal(job_sandbox_still(&j, &b, false, "it was copied", &err), -1);
    assert_int_equal(j.reply.error, LAYERS_BUSY);
}

/* --- keeper, as a job sees it ------------------------------------------------------------------------------------- */

static int keeper_take(int listener)
{
    struct keeper_death told = {.head = {.version = KEEPER_VERSION, .type = KEEPER_DIED}, .id = "another"};
    int fd = accept(listener, NULL, NULL);
    return send(fd, &told, sizeof told, MSG_NOSIGNAL) == sizeof told ? fd : -1;
}

static bool keeper_is_asked(int fd, uint32_t type, struct keeper_reply *reply)
{
    struct keeper_simple q;
    if (recv(fd, &q, sizeof q, 0) != sizeof q || q.head.type != type || strcmp(q.id, "one") != 0)
        return false;
    reply->head = (struct keeper_head){.version = KEEPER_VERSION, .type = KEEPER_REPLY, .request = q.head.request};
    return true;
}

/* Is killed when it is asked first; its successor answers; the third one knows no such sandbox any more. */
static int keeper_three_times(int listener)
{
    struct keeper_reply ok = {.since_us = 1}, gone = {.error = KEEPER_NO_SANDBOX};
    int fd = keeper_take(listener);
    if (!keeper_is_asked(fd, KEEPER_HOLD, &ok))
        return 1;
    (void)close(fd);
    fd = keeper_take(listener);
    if (!keeper_is_asked(fd, KEEPER_HOLD, &ok) || send(fd, &ok, sizeof ok, MSG_NOSIGNAL) != sizeof ok)
        return 2;
    (void)close(fd);
    fd = keeper_take(listener);
    return keeper_is_asked(fd, KEEPER_RELEASE, &gone) && send(fd, &gone, sizeof gone, MSG_NOSIGNAL) > 0 ? 0 : 3;
}

static void test_a_job_asks_keeper_to_hold_and_release(void **state)
{
    struct scene *s = *state;
    struct layers_request ask = {.sandbox = "one"};
    struct job j = {.run_dir = s->run, .ask = &ask};
    struct job_sandbox b = JOB_SANDBOX_INIT;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct err err = {0};
    int status;
    pid_t pid;
    NEEDS_ROOT();
    frozen_sandbox(s, "one", false, &b.cgroup, &pid);
    (void)snprintf(b.record.id, sizeof b.record.id, "one");
    _cleanup_close_ int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    (void)snprintf(a.sun_path, sizeof a.sun_path, "/proc/self/fd/%d/" KEEPER_SOCKET, s->run);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(listener, 4), 0);
    pid_t keeper = fork();
    if (keeper == 0)
        _exit(keeper_three_times(listener));
    assert_int_equal(job_sandbox_freeze(&j, &b, &err), 0);
    assert_true(b.frozen && b.since_us == 1);
    assert_int_equal(job_sandbox_thaw(&j, &b, &err), 0); /* it has ended, and so does not stand still */
    assert_false(b.frozen);
    assert_true(j.reply.frozen_us > 0 && j.reply.error == LAYERS_OK);
    assert_int_equal(waitpid(keeper, &status, 0), keeper);
    assert_int_equal(status, 0);
    end_sandbox(&b.cgroup, pid);
    job_sandbox_close(&b);
}

static void test_a_capture_and_a_collection_do_not_run_together(void **state)
{
    (void)state;
    assert_true(job_type_of(LAYERS_CAPTURE)->adds);
    assert_true(job_type_of(LAYERS_GC)->removes);
}

static void test_a_front_of_another_version_is_told_so_in_its_own(void **state)
{
    struct scene *s = *state;
    static const unsigned char rest[5000];
    const struct layers_head old = {.version = LAYERS_VERSION - 1, .type = LAYERS_LIST, .request = 77};
    unsigned char message[sizeof old + sizeof rest];
    struct layers_reply r;
    memcpy(message, &old, sizeof old);
    memcpy(message + sizeof old, rest, sizeof rest);
    assert_int_equal(fd_send(s->conn, message, sizeof message, NULL, 0), 0);
    wait_for(s->conn);
    assert_int_equal(fd_recv(s->conn, &r, sizeof r, NULL, NULL), sizeof r);
    assert_int_equal(r.version, LAYERS_VERSION - 1);
    assert_int_equal(r.type, LAYERS_REPLY);
    assert_int_equal(r.request, 77);
    assert_int_equal(r.error, LAYERS_BAD_REQUEST);
    assert_non_null(strstr(r.text, "start the node again"));
    struct layers_request q = request(s, LAYERS_CANCEL); /* the connection goes on */
    q.cancel = 12345;
    send_to(s, &q, -1);
    assert_int_equal(answer_to(s, q.request, NULL).error, LAYERS_NOT_FOUND);
}

int main(void)
{
#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_list_names_stacks_and_volumes),
        TEST(test_a_dropped_stack_is_gone_and_dropping_it_again_is_no_error),
        TEST(test_a_blob_comes_as_a_descriptor),
        TEST(test_a_front_of_another_version_is_told_so_in_its_own),
        TEST(test_what_is_wrong_with_a_request_is_said),
        TEST(test_failures_have_their_class),
        TEST(test_progress_is_passed_on),
        TEST(test_a_job_has_no_network_and_no_descriptors_of_others),
        TEST(test_what_a_dead_job_left_is_removed_before_it_is_answered),
        TEST(test_a_cancelled_job_ends_and_leaves_nothing),
        TEST(test_a_waiting_job_is_cancelled_without_having_begun),
        TEST(test_two_jobs_for_one_blob_come_one_after_the_other),
        TEST(test_only_so_many_long_jobs_run_at_once),
        TEST(test_upkeep_does_not_wait_behind_transfers),
        TEST(test_more_than_the_limit_is_answered_busy),
        TEST(test_jobs_end_when_front_is_gone),
        TEST(test_jobs_die_with_layers_and_the_next_one_sweeps),
        TEST(test_two_never_run),
        TEST(test_a_volume_that_a_sandbox_uses_is_not_dropped),
        cmocka_unit_test(test_a_capture_and_a_collection_do_not_run_together),
        cmocka_unit_test_setup_teardown(test_a_job_asks_keeper_to_hold_and_release, make, teardown),
        cmocka_unit_test_setup_teardown(test_a_record_that_is_being_written_is_read_once_it_is_whole, make, teardown),
        cmocka_unit_test_setup_teardown(test_a_sandbox_that_runs_or_is_gone_does_not_stand_still, make, teardown),
    };
    return cmocka_run_group_tests_name("stock jobs", tests, NULL, NULL);
}
