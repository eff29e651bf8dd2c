/* keeper's pure parts: requests, journal records, claims of id ranges. */
#include <fcntl.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "keeper/journal.h"
#include "keeper/keeper-int.h"
#include "keeper/request.h"
#include "tests/lib/unit.h"

static struct keeper_create good(void)
{
    struct keeper_create c = {.head = {.version = KEEPER_VERSION, .type = KEEPER_CREATE, .request = 7},
                              .id = "box-1_A",
                              .template = "host",
                              .hostname = "a.b-c",
                              .deadline_ms = 1};
    return c;
}

static void refused(const void *p, size_t n, const char *names)
{
    union keeper_request q;
    struct err err = {0};
    assert_int_equal(keeper_request_parse(p, n, &q, &err), -1);
    if (!strstr(err.msg, names))
        fail_msg("\"%s\" does not name %s", err.msg, names);
}

static void test_good_requests(void **state)
{
    union keeper_request q;
    struct err err = {0};
    struct keeper_create c = good();
    struct keeper_simple s = {.head = {.version = KEEPER_VERSION, .type = KEEPER_KILL}, .id = "x"};
    (void)state;
    assert_int_equal(keeper_request_parse(&c, sizeof c, &q, &err), 0);
    assert_string_equal(q.create.id, "box-1_A");
    c.memory = KEEPER_MEMORY_MIN;
    c.flags = KEEPER_STRICT | KEEPER_BEST_EFFORT | KEEPER_BUILD | KEEPER_WISH;
    c.hostname[0] = '\0';
    memcpy(c.driver, "layers", sizeof "layers");
    c.nvolumes = 2;
    c.volume[0] = (struct keeper_volume){.id = "vol-1", .place = "/data", .flags = KEEPER_VOLUME_RO};
    c.volume[1] = (struct keeper_volume){.id = "host-models", .place = "/device/proc/..x"};
    assert_int_equal(keeper_request_parse(&c, sizeof c, &q, &err), 0);
    assert_int_equal(keeper_request_parse(&s, sizeof s, &q, &err), 0);
    s.head.type = KEEPER_PAUSE;
    assert_int_equal(keeper_request_parse(&s, sizeof s, &q, &err), 0);
    for (uint32_t type = KEEPER_RESUME; type <= KEEPER_RELEASE; type++) {
        s.head.type = type;
        assert_int_equal(keeper_request_parse(&s, sizeof s, &q, &err), 0);
    }
    s.head.type = KEEPER_LIST;
    s.id[0] = '\0';
    assert_int_equal(keeper_request_parse(&s, sizeof s, &q, &err), 0);
}

static void test_refused_requests(void **state)
{
    struct keeper_create c = good();
    struct keeper_limit l = {
        .head = {.version = KEEPER_VERSION, .type = KEEPER_LIMIT}, .id = "x", .number = 1, .memory = 64 << 20};
    struct keeper_deadline d = {.head = {.version = KEEPER_VERSION, .type = KEEPER_DEADLINE}, .id = "x"};
    (void)state;
    refused(&c, 3, "no head");
    refused(&c, sizeof c - 1, "bytes");
    refused(&c, sizeof c + 1, "bytes");
    refused(&d, sizeof d, "deadline_ms");
    union keeper_request q;
    struct err err;
    assert_int_equal(keeper_request_parse(&l, sizeof l, &q, &err), 0);
    l.memory = 1 << 20;
    refused(&l, sizeof l, "memory");
    l.memory = 64 << 20;
    l.number = 0;
    refused(&l, sizeof l, "number");
    l.number = 1;
    l.id[0] = '/';
    refused(&l, sizeof l, "id");
    c.head.version = KEEPER_VERSION - 1;
    refused(&c, sizeof c, "version");
    c = good();
    c.head.type = KEEPER_REPLY;
    refused(&c, sizeof c, "type");
    c = good();
    c.deadline_ms = 0;
    refused(&c, sizeof c, "deadline_ms");
    c = good();
    c.flags = 16;
    refused(&c, sizeof c, "flags");
    c = good();
    c.memory = 1;
    refused(&c, sizeof c, "memory");
    c = good();
    c.disk = UINT64_MAX;
    refused(&c, sizeof c, "disk");
    c = good();
    c.pids = 1;
    refused(&c, sizeof c, "pids");
    c = good();
    c.cpu_milli = UINT32_MAX;
    refused(&c, sizeof c, "cpu_milli");
}

static void test_names(void **state)
{
    static const char *const bad[] = {"",         "-a",     "a/b", "a.b",   "..",     "a b",   "a\n",
                                      "\xc3\xa4", "keeper", "api", "front", "egress", "a\x01", "%s"};
    struct keeper_create c = good();
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        (void)snprintf(c.id, sizeof c.id, "%s", bad[i]);
        refused(&c, sizeof c, "id");
    }
    memset(c.id, 'a', sizeof c.id); /* not ended */
    refused(&c, sizeof c, "id");
    c = good();
    memset(c.template, 'a', sizeof c.template);
    refused(&c, sizeof c, "template");
    static const char *const templates[] = {"", "..", "a/b", "Host", "-x", "a.b"};
    for (size_t i = 0; i < ARRAY_LEN(templates); i++) {
        (void)snprintf(c.template, sizeof c.template, "%s", templates[i]);
        refused(&c, sizeof c, "template");
    }
    c = good();
    memset(c.hostname, 'a', sizeof c.hostname);
    refused(&c, sizeof c, "hostname");
    (void)snprintf(c.hostname, sizeof c.hostname, "a\nb");
    refused(&c, sizeof c, "hostname");
}

static void test_volumes_that_are_refused(void **state)
{
    static const char *const places[] = {"",    "/",     "data",   "/proc", "/proc/1", "/dev",  "/sys/x",
                                         "/a/", "/a//b", "/a/./b", "/..",   "/a/../",  "/a\nb", "/a\x7f"};
    static const char *const ids[] = {"", "one", "vol", "vol-/", "host-a.b", "VOL-1"};
    struct keeper_create c = good();
    (void)state;
    c.nvolumes = 1;
    c.volume[0] = (struct keeper_volume){.id = "vol-1", .place = "/data"};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        (void)snprintf(c.volume[0].place, sizeof c.volume[0].place, "%s", places[i]);
        refused(&c, sizeof c, "volume");
    }
    memset(c.volume[0].place, '/', 1);
    memset(c.volume[0].place + 1, 'a', sizeof c.volume[0].place - 1); /* not ended */
    refused(&c, sizeof c, "volume");
    (void)snprintf(c.volume[0].place, sizeof c.volume[0].place, "/data");
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        (void)snprintf(c.volume[0].id, sizeof c.volume[0].id, "%s", ids[i]);
        refused(&c, sizeof c, "volume");
    }
    (void)snprintf(c.volume[0].id, sizeof c.volume[0].id, "vol-1");
    c.volume[0].flags = 2;
    refused(&c, sizeof c, "volume");
    c = good();
    c.nvolumes = KEEPER_VOLUMES_MAX + 1;
    refused(&c, sizeof c, "volume");
    c = good();
    memset(c.driver, 'a', sizeof c.driver);
    refused(&c, sizeof c, "driver");
    (void)snprintf(c.driver, sizeof c.driver, "../x");
    refused(&c, sizeof c, "driver");
}

struct seen {
    unsigned records, broken;
};

static void count(void *arg, const char *name, const struct journal_record *r)
{
    struct seen *s = arg;
    (void)name;
    s->records += r != NULL;
    s->broken += r == NULL;
}

static void test_journal(void **state)
{
    char dir[] = "/tmp/hutch-journal.XXXXXX";
    struct err err = {0};
    struct journal_record r = {.state = JOURNAL_STARTING, .id = "one", .template = "host", .cgroup = "1 /a\n"}, back;
    struct seen seen = {0};
    (void)state;
    assert_non_null(mkdtemp(dir));
    int run = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), journal = journal_open(run, &err);
    assert_true(journal >= 0);
    assert_int_equal(journal_write(journal, &r, &err), 0);
    assert_int_equal(journal_read(journal, "one", &back), 0);
    assert_memory_equal(&r, &back, sizeof r);
    r.state = JOURNAL_LIVE;
    r.pid = 12;
    assert_int_equal(journal_update(journal, &r, &err), 0);
    assert_int_equal(journal_read(journal, "one", &back), 0);
    assert_int_equal(back.pid, 12);
    /* One bit, a cut record, another name: none is believed. */
    int fd = openat(journal, "one", O_RDWR);
    back.deadline_ms ^= 1;
    assert_int_equal(pwrite(fd, &back, sizeof back, 0), sizeof back);
    assert_int_equal(journal_read(journal, "one", &back), -1);
    assert_int_equal(ftruncate(fd, 100), 0);
    assert_int_equal(journal_read(journal, "one", &back), -1);
    (void)close(fd);
    assert_int_equal(journal_write(journal, &r, &err), 0);
    assert_int_equal(linkat(journal, "one", journal, "two", 0), 0);
    assert_int_equal(journal_read(journal, "two", &back), -1);
    assert_int_equal(journal_each(journal, count, &seen, &err), 0);
    assert_int_equal(seen.records, 1);
    assert_int_equal(seen.broken, 1);
    journal_remove(journal, "one");
    journal_remove(journal, "two");
    assert_int_equal(journal_read(journal, "one", &back), -1);
    (void)unlinkat(run, "journal", AT_REMOVEDIR);
    (void)close(journal);
    (void)close(run);
    (void)rmdir(dir);
}

/* As a version before wrote it: without some fields between `head` bytes and the cgroups. */
static size_t as_before(const struct journal_record *r, const char magic[8], size_t head, unsigned char *ret)
{
    size_t n = head + sizeof r->cgroup;
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    memcpy(ret, r, head);
    memcpy(ret, magic, 8);
    memcpy(ret + head, r->cgroup, sizeof r->cgroup);
    for (size_t i = 0; i < n; i++)
        sum = (sum ^ ret[i]) * UINT64_C(0x100000001b3);
    memcpy(ret + n, &sum, sizeof sum);
    return n + sizeof sum;
}

static void test_record_of_the_version_before_is_converted(void **state)
{
    char dir[] = "/tmp/hutch-journal.XXXXXX";
    unsigned char bytes[sizeof(struct journal_record)];
    struct err err = {0};
    struct journal_record r = {.state = JOURNAL_LIVE, .id = "one", .template = "base", .cgroup = "1 /a\n", .pid = 77},
                          back;
    (void)state;
    r.udp_cookie = 5;
    assert_non_null(mkdtemp(dir));
    int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    size_t n = as_before(&r, "hutchJ2", offsetof(struct journal_record, upper_dev), bytes);
    int fd = openat(at, "one", O_RDWR | O_CREAT, 0600);
    assert_int_equal(write(fd, bytes, n), n);
    assert_int_equal(journal_read(at, "one", &back), 0);
    assert_int_equal(back.pid, 77);
    assert_int_equal(back.udp_cookie, 5);
    assert_string_equal(back.cgroup, "1 /a\n");
    assert_int_equal(back.upper_ino, 0);
    assert_int_equal(back.frozen, 0);
    assert_string_equal(back.driver, "");
    back.frozen = 1;
    assert_int_equal(journal_update(at, &back, &err), 0);
    assert_int_equal(journal_read(at, "one", &back), 0);
    assert_int_equal(back.frozen, 1);
    r.upper_ino = 9;
    n = as_before(&r, "hutchJ3", offsetof(struct journal_record, volume), bytes);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, bytes, n, 0), n);
    assert_int_equal(journal_read(at, "one", &back), 0);
    assert_int_equal(back.upper_ino, 9);
    assert_string_equal(back.volume[0], "");
    assert_string_equal(back.cgroup, "1 /a\n");
    bytes[20] ^= 1;
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, bytes, n, 0), n);
    assert_int_equal(journal_read(at, "one", &back), -1);
    (void)close(fd);
    (void)unlinkat(at, "one", 0);
    (void)close(at);
    (void)rmdir(dir);
}

/* init's shared lock and keeper's stand side by side; a write lock is refused until both are gone. */
static void test_claims(void **state)
{
    char dir[] = "/tmp/hutch-claims.XXXXXX", path[64];
    struct err err = {0};
    struct idrange range;
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(idrange_take_in(dir, &range, &err), 0);
    (void)snprintf(path, sizeof path, "%s/ranges", dir);
    int keeper = open(path, O_RDWR | O_CLOEXEC), next = open(path, O_RDWR | O_CLOEXEC),
        other = open(path, O_RDWR | O_CLOEXEC);
    struct flock want = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (range.base - IDRANGE_FIRST) / IDRANGE_COUNT, .l_len = 1};
    assert_int_equal(claims_hold(keeper, &range, range.base), 0);
    assert_int_equal(fcntl(other, F_OFD_SETLK, &want), -1);
    (void)close(keeper); /* killed */
    assert_int_equal(fcntl(other, F_OFD_SETLK, &want), -1);
    assert_int_equal(claims_hold(next, NULL, range.base), 0);
    idrange_release(&range); /* init died */
    assert_int_equal(fcntl(other, F_OFD_SETLK, &want), -1);
    claims_drop(next, range.base);
    assert_int_equal(fcntl(other, F_OFD_SETLK, &want), 0);
    (void)close(next);
    (void)close(other);
    (void)unlink(path);
    (void)rmdir(dir);
}

/* A keeper of which only the table and its clients work, and one client, who has asked for the list already. */
static struct keeper *keeper_of_the_dead(uint32_t n, int *ret_client)
{
    struct keeper *k = calloc(1, sizeof *k);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct keeper_simple list = {.head = {.version = KEEPER_VERSION, .type = KEEPER_LIST, .request = 5}};
    socklen_t size = sizeof a.sun_family; /* the kernel makes up a name */
    assert_non_null(k);
    int l = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(l, (struct sockaddr *)&a, size), 0);
    size = sizeof a;
    assert_int_equal(getsockname(l, (struct sockaddr *)&a, &size), 0);
    assert_int_equal(listen(l, 4), 0);
    if (l != KEEPER_FD_SOCKET) {
        assert_int_equal(dup2(l, KEEPER_FD_SOCKET), KEEPER_FD_SOCKET);
        (void)close(l);
    }
    k->epoll = epoll_create1(EPOLL_CLOEXEC);
    asker_begin(k);
    k->nentries = k->ndead = n;
    for (uint32_t i = 0; i < n; i++) {
        k->entries[i].life = LIFE_DEAD;
        (void)snprintf(k->entries[i].id, sizeof k->entries[i].id, "box-%u", i);
    }
    *ret_client = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(*ret_client, (struct sockaddr *)&a, size), 0);
    assert_int_equal(send(*ret_client, &list, sizeof list, 0), sizeof list);
    return k;
}

/* The next message to the client; keeper works while there is none. */
static size_t next_message(struct keeper *k, int client, void *p, size_t room)
{
    for (;;) {
        struct epoll_event ev;
        ssize_t n = recv(client, p, room, MSG_DONTWAIT);
        if (n == 0)
            fail_msg("the client was dropped");
        if (n > 0)
            return (size_t)n;
        assert_int_equal(epoll_wait(k->epoll, &ev, 1, 10000), 1);
        asker_event(k, 0, ev.events);
    }
}

static void test_more_deaths_than_may_wait_are_told_all(void **state)
{
    enum { DEAD = KEEPER_SANDBOXES_MAX - 1 };
    static union {
        struct keeper_head head;
        struct keeper_death death;
        struct keeper_items items;
    } m;
    char id[KEEPER_ID_MAX];
    int client;
    uint32_t listed = 0;
    (void)state;
    struct keeper *k = keeper_of_the_dead(DEAD, &client);
    k->entries[DEAD - 1].life = LIFE_LIVE;
    asker_accept(k);
    assert_true(k->conns[0].channel.fd >= 0);
    k->entries[DEAD - 1].life = LIFE_DEAD; /* meanwhile */
    asker_tell_death(k, &k->entries[DEAD - 1]);
    for (uint32_t i = 0; i < DEAD; i++) {
        assert_int_equal(next_message(k, client, &m, sizeof m), sizeof m.death);
        assert_int_equal(m.head.type, KEEPER_DIED);
        (void)snprintf(id, sizeof id, "box-%u", i);
        assert_string_equal(m.death.id, id);
    }
    do {
        assert_int_equal(next_message(k, client, &m, sizeof m), sizeof m.items);
        assert_int_equal(m.head.type, KEEPER_ITEMS);
        listed += m.items.n;
    } while (m.items.more);
    assert_int_equal(listed, DEAD);
    asker_tell_death(k, &k->entries[7]); /* from now on at once */
    assert_int_equal(next_message(k, client, &m, sizeof m), sizeof m.death);
    assert_string_equal(m.death.id, "box-7");
    (void)close(client);
    channel_close(&k->conns[0].channel);
    (void)close(k->epoll);
    (void)close(KEEPER_FD_SOCKET);
    free(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_requests),
        cmocka_unit_test(test_refused_requests),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_journal),
        cmocka_unit_test(test_claims),
        cmocka_unit_test(test_volumes_that_are_refused),
        cmocka_unit_test(test_record_of_the_version_before_is_converted),
        cmocka_unit_test(test_more_deaths_than_may_wait_are_told_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
