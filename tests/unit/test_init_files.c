/* Files, watches and ports of a real sandbox, through the API that front uses. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "await.h"
#include "init-scene.h"
#include "tests/lib/unit.h"

/* The last answer. */
static struct {
    bool done;
    struct link_status st;
    int fd;
    struct file_sink *sink;
    char name[256], path[512], owner[64], group[64], target[512], meta[512];
    enum file_type type;
    uint64_t size;
    mode_t mode;
    size_t n;
    char list[4096];
} got;

static void reset(void)
{
    memset(&got, 0, sizeof got);
    got.fd = -1;
}

static void keep(const struct file_info *i)
{
    if (!i)
        return;
    (void)snprintf(got.name, sizeof got.name, "%s", i->name);
    (void)snprintf(got.path, sizeof got.path, "%s", i->path);
    (void)snprintf(got.owner, sizeof got.owner, "%s", i->owner);
    (void)snprintf(got.group, sizeof got.group, "%s", i->group);
    (void)snprintf(got.target, sizeof got.target, "%s", i->target ? i->target : "-");
    for (size_t m = 0; m < i->nmeta; m++)
        (void)snprintf(got.meta + strlen(got.meta), sizeof got.meta - strlen(got.meta), "%s=%s ", i->meta[m].key,
                       i->meta[m].value);
    got.type = i->type;
    got.size = i->size;
    got.mode = i->mode;
}

static void on_opened(void *arg, const struct link_status *st, int fd, const struct file_info *i)
{
    (void)arg;
    got.st = *st;
    got.fd = fd;
    keep(i);
    got.done = true;
}
static void on_created(void *arg, const struct link_status *st, struct file_sink *sink, const struct file_info *i)
{
    (void)arg;
    got.st = *st;
    got.sink = sink;
    keep(i);
    got.done = true;
}
static void on_info(void *arg, const struct link_status *st, const struct file_info *i)
{
    (void)arg;
    got.st = *st;
    keep(i);
    got.done = true;
}
static void on_done(void *arg, const struct link_status *st)
{
    (void)arg;
    got.st = *st;
    got.done = true;
}
static void on_listed(void *arg, const struct link_status *st, const struct file_info *v, size_t n)
{
    (void)arg;
    got.st = *st;
    got.n = n;
    for (size_t i = 0; i < n && strlen(got.list) < sizeof got.list - 600; i++)
        (void)snprintf(got.list + strlen(got.list), sizeof got.list - strlen(got.list), "%s ", v[i].path);
    got.done = true;
}
static void on_dialed(void *arg, const struct link_status *st, int fd)
{
    (void)arg;
    got.st = *st;
    got.fd = fd;
    got.done = true;
}

static enum link_code wait_code(void)
{
    assert_true(world_wait(&w, &got.done, AWAIT_MS));
    return got.st.code;
}

static void expect(enum link_code code, const char *text)
{
    enum link_code c = wait_code();
    if (c != code)
        print_message("%d %s\n", (int)c, got.st.text);
    assert_int_equal(c, code);
    if (text)
        assert_string_equal(got.st.text, text);
}

#define STAT(p)                                                        \
    do {                                                               \
        reset();                                                       \
        (void)files_stat(w.links, WORLD_ID, NULL, (p), on_info, NULL); \
    } while (0)

/* Writes the same bytes so many times; the code of the first failure. */
static enum link_code pour(const char *p, size_t n, int times)
{
    for (int i = 0; i < times; i++) {
        got.done = false;
        sink_write(got.sink, p, n, on_done, NULL);
        if (wait_code() != LINK_OK)
            break;
    }
    return got.st.code;
}

static void expect_finished(enum link_code code)
{
    got.done = false;
    sink_finish(got.sink, on_done, NULL);
    expect(code, NULL);
    sink_free(got.sink);
    got.sink = NULL;
}

static void write_file(const char *path, const char *text)
{
    reset();
    (void)files_create(w.links, WORLD_ID, NULL, path, NULL, 0, on_created, NULL);
    expect(LINK_OK, NULL);
    assert_int_equal(pour(text, strlen(text), 1), LINK_OK);
    expect_finished(LINK_OK);
}

static void read_file(const char *path, char *buf, size_t size)
{
    reset();
    (void)files_open(w.links, WORLD_ID, NULL, path, on_opened, NULL);
    expect(LINK_OK, NULL);
    size_t n = 0;
    (void)fcntl(got.fd, F_SETFL, 0); /* over a byte stream it is a socket */
    for (ssize_t r; n < size - 1 && (r = read(got.fd, buf + n, size - 1 - n)) > 0;)
        n += (size_t)r;
    buf[n] = '\0';
    (void)close(got.fd);
}

static void sh(const char *script, const char *out)
{
    struct capture c;
    world_sh(&w, script, &c);
    assert_true(c.ended);
    if (out && strcmp(c.text[1], out) != 0)
        print_message("%s: %s\n", script, c.text[2]);
    if (out)
        assert_string_equal(c.text[1], out);
}

static void round_trip(void **state)
{
    (void)state;
    char buf[256];
    write_file("a/b/hello.txt", "hello\n");
    assert_string_equal(got.path, "/home/user/a/b/hello.txt");
    assert_string_equal(got.name, "hello.txt");
    assert_string_equal(got.owner, "user");
    assert_int_equal(got.mode, S_IFREG | 0644);
    sh("stat -c '%U %a' a a/b a/b/hello.txt; cat a/b/hello.txt", "user 755\nuser 755\nuser 644\nhello\n");
    read_file("~/a/b/../b/hello.txt", buf, sizeof buf);
    assert_string_equal(buf, "hello\n");
    assert_int_equal(got.size, 6);
    write_file("/home/user/a/b/hello.txt", "x"); /* truncated */
    read_file("a/b/hello.txt", buf, sizeof buf);
    assert_string_equal(buf, "x");
    reset();
    (void)files_open(w.links, WORLD_ID, NULL, "nope", on_opened, NULL);
    expect(LINK_NOT_FOUND, "path '/home/user/nope' does not exist");
    reset();
    (void)files_open(w.links, WORLD_ID, NULL, "a", on_opened, NULL);
    expect(LINK_IS_DIR, NULL);
    reset();
    (void)files_create(w.links, WORLD_ID, NULL, "a", NULL, 0, on_created, NULL);
    expect(LINK_IS_DIR, NULL);
    reset();
    (void)files_create(w.links, WORLD_ID, NULL, "a/b/hello.txt/x", NULL, 0, on_created, NULL);
    expect(LINK_NOT_DIR, NULL);
    reset();
    (void)files_stat(w.links, WORLD_ID, "ghost", "a", on_info, NULL);
    expect(LINK_NO_USER, "invalid username: 'ghost'");
    sh("rm -r a", "");
}

static void kernel_files(void **state)
{
    (void)state;
    char buf[4096];
    read_file("/proc/sys/kernel/hostname", buf, sizeof buf);
    assert_string_equal(buf, "box\n");
    read_file("/proc/meminfo", buf, sizeof buf);
    assert_non_null(strstr(buf, "MemTotal"));
    static const char *const bad[] = {"/proc/1/environ", "/proc/1/mem", "/proc/1/root/etc/passwd", "/proc/self/fd/3"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        reset();
        (void)files_open(w.links, WORLD_ID, NULL, bad[i], on_opened, NULL);
        assert_int_not_equal(wait_code(), LINK_OK);
        assert_int_equal(got.fd, -1);
    }
    reset();
    (void)files_create(w.links, WORLD_ID, NULL, "/proc/sys/kernel/hostname", NULL, 0, on_created, NULL);
    assert_int_not_equal(wait_code(), LINK_OK);
    sh("mkfifo fifo", "");
    reset();
    (void)files_open(w.links, WORLD_ID, NULL, "fifo", on_opened, NULL);
    expect(LINK_INVALID, NULL);
    reset();
    (void)files_create(w.links, WORLD_ID, NULL, "fifo", NULL, 0, on_created, NULL);
    assert_int_not_equal(wait_code(), LINK_OK);
    reset();
    (void)files_create(w.links, WORLD_ID, NULL, "/dev/null", NULL, 0, on_created, NULL);
    assert_int_not_equal(wait_code(), LINK_OK);
}

static void links_and_info(void **state)
{
    (void)state;
    sh("mkdir -p d/e; echo 12345 > d/f; ln -s f d/l; ln -s /nowhere d/broken; ln -s e d/le; chmod 600 d/f", "");
    STAT("d/l");
    expect(LINK_OK, NULL);
    assert_int_equal(got.type, FILE_REGULAR);
    assert_int_equal(got.mode, S_IFLNK | 0600);
    assert_int_equal(got.size, 6);
    assert_string_equal(got.target, "/home/user/d/f");
    STAT("d/broken");
    expect(LINK_OK, NULL);
    assert_int_equal(got.type, FILE_UNSPECIFIED);
    assert_string_equal(got.target, "-");
    STAT("");
    expect(LINK_OK, NULL);
    assert_string_equal(got.path, "/home/user");
    STAT("/");
    expect(LINK_OK, NULL);
    assert_string_equal(got.name, "/");
    STAT("../../../etc/passwd");
    expect(LINK_OK, NULL);
    assert_string_equal(got.path, "/etc/passwd");
    assert_string_equal(got.owner, "root");
    STAT("d/none");
    expect(LINK_NOT_FOUND, NULL);
    reset();
    (void)files_list(w.links, WORLD_ID, NULL, "d", 1, on_listed, NULL);
    expect(LINK_OK, NULL);
    assert_string_equal(got.list, "/home/user/d/broken /home/user/d/e /home/user/d/f /home/user/d/l /home/user/d/le ");
    sh("touch d/e/x; ln -s d ld", "");
    reset();
    (void)files_list(w.links, WORLD_ID, NULL, "ld", 3, on_listed, NULL);
    expect(LINK_OK, NULL);
    assert_string_equal(got.list, "/home/user/ld/broken /home/user/ld/e /home/user/ld/e/x /home/user/ld/f "
                                  "/home/user/ld/l /home/user/ld/le ");
    reset();
    (void)files_list(w.links, WORLD_ID, NULL, "d/f", 1, on_listed, NULL);
    expect(LINK_NOT_DIR, NULL);
    reset();
    (void)files_list(w.links, WORLD_ID, NULL, "d/zzz", 1, on_listed, NULL);
    expect(LINK_NOT_FOUND, NULL);
    sh("rm -r d ld", "");
}

/* Requests with a root see it as "/", and no link leads out of it. */
static void below_a_root(void **state)
{
    struct files_root r = {
        .path = "/home/user/v", .uid = FILES_UNCHANGED, .gid = FILES_UNCHANGED, .mode = FILES_UNCHANGED};
    (void)state;
    sh("mkdir -p v/d; echo in > v/d/f; ln -s /etc/passwd v/abs; ln -s ../../../../etc/passwd v/up; ln -s /d/f v/in",
       "");
    for (size_t i = 0; i < 2; i++) {
        reset();
        (void)files_open_below(w.links, WORLD_ID, &r, i ? "/abs" : "/up", on_opened, NULL);
        expect(LINK_NOT_FOUND, NULL);
        reset();
        (void)files_create_below(w.links, WORLD_ID, &r, i ? "/abs" : "/up", on_created, NULL);
        expect(LINK_INVALID, NULL);
    }
    reset();
    (void)files_open_below(w.links, WORLD_ID, &r, "/in", on_opened, NULL);
    expect(LINK_OK, NULL);
    assert_string_equal(got.path, "/d/f");
    (void)close(got.fd);
    reset();
    (void)files_stat_below(w.links, WORLD_ID, &r, "/abs", on_info, NULL);
    expect(LINK_OK, NULL);
    assert_int_equal(got.type, FILE_SYMLINK);
    assert_string_equal(got.target, "/etc/passwd");
    reset();
    (void)files_create_below(w.links, WORLD_ID, &r, "/in", on_created, NULL);
    expect(LINK_EXISTS, NULL);
    reset();
    (void)files_mkdir_below(w.links, WORLD_ID, &r, "/x/y", on_info, NULL);
    expect(LINK_NOT_FOUND, NULL);
    reset();
    (void)files_remove_below(w.links, WORLD_ID, &r, "/x/y", on_done, NULL);
    expect(LINK_NOT_FOUND, NULL);
    r.force = true;
    r.uid = 7;
    r.mode = 0750;
    reset();
    (void)files_mkdir_below(w.links, WORLD_ID, &r, "/x/y", on_info, NULL);
    expect(LINK_OK, NULL);
    assert_string_equal(got.owner, "7");
    assert_int_equal(got.mode, S_IFDIR | 0750);
    reset();
    (void)files_list_below(w.links, WORLD_ID, &r, "/", 2, on_listed, NULL);
    expect(LINK_OK, NULL);
    assert_string_equal(got.list, "/abs /d /d/f /in /up /x /x/y ");
    r.path = "/home/user/none";
    reset();
    (void)files_stat_below(w.links, WORLD_ID, &r, "/", on_info, NULL);
    expect(LINK_IO, NULL);
    r.mode = 07777 + 1;
    reset();
    (void)files_set_below(w.links, WORLD_ID, &r, "/", on_info, NULL);
    expect(LINK_INVALID, NULL);
    sh("sudo rm -rf v 2> /dev/null || rm -rf v", "");
}

static void make_move_remove(void **state)
{
    (void)state;
    reset();
    (void)files_mkdir(w.links, WORLD_ID, NULL, "m/n/o", on_info, NULL);
    expect(LINK_OK, NULL);
    assert_int_equal(got.type, FILE_DIRECTORY);
    assert_string_equal(got.owner, "user");
    reset();
    (void)files_mkdir(w.links, WORLD_ID, NULL, "m/n", on_info, NULL);
    expect(LINK_EXISTS, NULL);
    write_file("m/file", "content");
    reset();
    (void)files_mkdir(w.links, WORLD_ID, NULL, "m/file", on_info, NULL);
    expect(LINK_INVALID, NULL);
    reset();
    (void)files_move(w.links, WORLD_ID, NULL, "m/file", "p/q/file", on_info, NULL);
    expect(LINK_OK, NULL);
    assert_string_equal(got.path, "/home/user/p/q/file");
    reset();
    (void)files_move(w.links, WORLD_ID, NULL, "m/file", "x", on_info, NULL);
    expect(LINK_NOT_FOUND, NULL);
    /* To another file system, a whole tree. */
    sh("mkdir -p p/q/r; echo deep > p/q/r/s; ln -s file p/q/link; chmod 750 p/q/r", "");
    reset();
    (void)files_move(w.links, WORLD_ID, NULL, "p", "/tmp/moved", on_info, NULL);
    expect(LINK_OK, NULL);
    sh("ls p 2>/dev/null; cat /tmp/moved/q/r/s /tmp/moved/q/link; stat -c '%U %a' /tmp/moved/q/r",
       "deep\ncontentuser 750\n");
    reset();
    (void)files_remove(w.links, WORLD_ID, NULL, "never-was", on_done, NULL);
    expect(LINK_OK, NULL);
    sh("echo keep > keep; ln -s /home/user/keep m/n/out; ln -s /home/user m/dir", "");
    reset();
    (void)files_remove(w.links, WORLD_ID, NULL, "m", on_done, NULL);
    expect(LINK_OK, NULL);
    sh("cat keep; ls -d m 2>/dev/null; rm keep", "keep\n");
    reset();
    (void)files_remove(w.links, WORLD_ID, NULL, "/", on_done, NULL);
    expect(LINK_INVALID, NULL);
    sh("i=0; while [ $i -lt 150 ]; do mkdir d; cd d; i=$((i+1)); done", "");
    reset();
    (void)files_remove(w.links, WORLD_ID, NULL, "d", on_done, NULL);
    expect(LINK_OK, NULL);
    sh("ls -d d 2>/dev/null", "");
}

static void compose(void **state)
{
    (void)state;
    char buf[64];
    write_file("c1", "one ");
    write_file("c2", "two");
    const char *const from[] = {"c1", "c2"}, *const missing[] = {"c1", "c3"};
    reset();
    (void)files_compose(w.links, WORLD_ID, NULL, missing, 2, "whole", on_info, NULL);
    expect(LINK_NOT_FOUND, "path '/home/user/c3' does not exist");
    reset();
    (void)files_compose(w.links, WORLD_ID, NULL, from, 2, "sub/whole", on_info, NULL);
    expect(LINK_OK, NULL);
    assert_int_equal(got.size, 7);
    read_file("sub/whole", buf, sizeof buf);
    assert_string_equal(buf, "one two");
    sh("ls c1 c2 2>/dev/null; ls -A sub", "whole\n");
}

static void compose_where_a_source_is_the_result(void **state)
{
    (void)state;
    char buf[64];
    sh("mkdir same; ln -s same way; echo -n 1 > same/whole; echo -n 2 > part", "");
    sh("ln same/whole hard; ln -s same/whole soft", "");
    const char *const by_link[] = {"way/whole", "part"}, *const itself[] = {"same/whole", "part"},
                      *const others[] = {"hard", "soft", "part"};
    reset();
    (void)files_compose(w.links, WORLD_ID, NULL, by_link, 2, "same/whole", on_info, NULL);
    expect(LINK_OK, NULL);
    assert_int_equal(got.size, 2);
    read_file("same/whole", buf, sizeof buf);
    assert_string_equal(buf, "12");
    sh("ls part 2>/dev/null; ls -A same; echo -n 3 > part", "whole\n");
    reset();
    (void)files_compose(w.links, WORLD_ID, NULL, itself, 2, "way/whole", on_info, NULL);
    expect(LINK_OK, NULL);
    read_file("same/whole", buf, sizeof buf);
    assert_string_equal(buf, "123");
    write_file("part", "4");
    reset(); /* other names of what was there are sources like any: they go, and the result stays */
    (void)files_compose(w.links, WORLD_ID, NULL, others, 3, "same/whole", on_info, NULL);
    expect(LINK_OK, NULL);
    read_file("same/whole", buf, sizeof buf);
    assert_string_equal(buf, "11234");
    sh("ls hard soft part 2>/dev/null; ls -A same; rm -r same way", "whole\n");
}

static void compose_that_fails_leaves_nothing(void **state)
{
    (void)state;
    sh("mkdir left left/dir; echo -n 1 > left/one; mkfifo left/fifo; echo -n kept > left/whole", "");
    static const struct {
        const char *from[3];
        enum link_code code;
    } cases[] = {
        {{"left/one", "left/dir"}, LINK_IS_DIR},
        {{"left/one", "left/fifo"}, LINK_INVALID},
        {{"left/one", "/proc/sys/kernel/hostname"}, LINK_INVALID},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        reset();
        (void)files_compose(w.links, WORLD_ID, NULL, cases[i].from, 2, "left/whole", on_info, NULL);
        expect(cases[i].code, NULL);
        sh("ls -A left; cat left/one left/whole", "dir\nfifo\none\nwhole\n1kept");
    }
    sh("rm -r left", "");
}

static void metadata(void **state)
{
    (void)state;
    const struct file_meta v[] = {{"author", "me"}, {"x-1", "two words"}};
    reset();
    (void)files_create(w.links, WORLD_ID, NULL, "tagged", v, 2, on_created, NULL);
    if (wait_code() == LINK_STATE) {
        assert_non_null(strstr(got.st.text, "xattrs")); /* tmpfs before Linux 6.6 */
        return;
    }
    assert_int_equal(got.st.code, LINK_OK);
    expect_finished(LINK_OK);
    STAT("tagged");
    expect(LINK_OK, NULL);
    assert_true(strstr(got.meta, "author=me ") && strstr(got.meta, "x-1=two words "));
    reset();
    (void)files_create(w.links, WORLD_ID, NULL, "tagged", v + 1, 1, on_created, NULL);
    expect(LINK_OK, NULL);
    expect_finished(LINK_OK);
    assert_string_equal(got.meta, "x-1=two words ");
}

/* Enough for an answer in a memfd; and many requests at once. */
static void large(void **state)
{
    (void)state;
    sh("mkdir big; cd big; seq -f 'file-with-a-long-name-%05g' 5000 | xargs touch", "");
    reset();
    (void)files_list(w.links, WORLD_ID, NULL, "big", 1, on_listed, NULL);
    expect(LINK_OK, NULL);
    assert_int_equal(got.n, 5000);
    enum { N = 200 };
    static struct status_sandbox b[N];
    memset(b, 0, sizeof b);
    for (int i = 0; i < N; i++) {
        char path[64];
        (void)snprintf(path, sizeof path, "big/file-with-a-long-name-%05d", i + 1);
        (void)files_remove(w.links, WORLD_ID, NULL, path, status_done, &b[i]);
    }
    for (int i = 0; i < N; i++) {
        assert_true(world_wait(&w, &b[i].done, AWAIT_MS));
        assert_int_equal(b[i].st.code, LINK_OK);
    }
    sh("ls big | wc -l; rm -r big", "4800\n");
}

static void create(const char *path)
{
    reset();
    (void)files_create(w.links, WORLD_ID, NULL, path, NULL, 0, on_created, NULL);
    expect(LINK_OK, NULL);
}

static char piece[1 << 20];

/* Waits until no upload is under way there. */
#define NO_STAGE(dir)                                                                                    \
    "for i in $(seq 300); do ls -A " dir " | grep -q hutch-upload || break; sleep 0.1; done; ls -A " dir \
    " | grep hutch-up"

static bool read_whole(int fd, char *p, size_t n)
{
    (void)fcntl(fd, F_SETFL, 0);
    for (ssize_t r; n > 0; p += r, n -= (size_t)r)
        if ((r = read(fd, p, n)) <= 0)
            return false;
    return true;
}

/* What the file is stays: its mode, its other names, where a link leads; only its bytes are others. */
static void uploads_over_something(void **state)
{
    (void)state;
    sh("mkdir o; cd o; echo -n was > plain; chmod 640 plain; setfattr -n user.mine -v 1 plain 2>/dev/null; "
       "echo -n was > one; ln one two; echo -n longer than that > far; chmod 600 far; ln -s far link; ln -s new "
       "nowhere",
       "");
    write_file("o/plain", "now");
    write_file("o/two", "now");
    write_file("o/link", "now");
    write_file("o/nowhere", "now");
    sh("cd o; for f in plain one far new; do cat $f; stat -c ' %a %U %h' $f; done; readlink link nowhere; ls -A",
       "now 640 user 1\nnow 644 user 2\nnow 600 user 1\nnow 644 user 1\nfar\nnew\n"
       "far\nlink\nnew\nnowhere\none\nplain\ntwo\n");
    for (int cut = 0; cut < 4; cut++) {
        create(((const char *const[]){"o/plain", "o/two", "o/link", "o/fresh"})[cut]);
        assert_int_equal(pour(piece, sizeof piece, cut % 2 ? 2 : 1), LINK_OK);
        sink_free(got.sink);
    }
    sh(NO_STAGE("o") "; cd o; cat plain one far; ls -A", "nownownowfar\nlink\nnew\nnowhere\none\nplain\ntwo\n");
    sh("rm -r o", "");
}

static void uploads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof piece; i++)
        piece[i] = (char)(i * 7 + i / 251);
    create("/tmp/up");
    assert_int_equal(pour(piece, sizeof piece - 1, 9), LINK_OK);
    expect_finished(LINK_OK);
    reset();
    (void)files_open(w.links, WORLD_ID, NULL, "/tmp/up", on_opened, NULL);
    expect(LINK_OK, NULL);
    static char back[sizeof piece];
    for (int i = 0; i < 9; i++) {
        assert_true(read_whole(got.fd, back, sizeof piece - 1));
        assert_memory_equal(back, piece, sizeof piece - 1);
    }
    (void)close(got.fd);
    create("/tmp/up"); /* nothing at all */
    expect_finished(LINK_OK);
    write_file("/tmp/up", "old");
    create("/tmp/up"); /* given up: nothing was changed, nothing is left */
    assert_int_equal(pour(piece, sizeof piece, 3), LINK_OK);
    sink_free(got.sink);
    sh(NO_STAGE("/tmp") "; cat /tmp/up", "old");
    create("/tmp/never");
    assert_int_equal(pour(piece, 1000, 1), LINK_OK);
    sink_free(got.sink);
    sh(NO_STAGE("/tmp") "; ls /tmp/never 2>/dev/null; cat /tmp/up", "old");
    create("/tmp/up");
    (void)pour(piece, sizeof piece, 40); /* /tmp has 32 MiB */
    expect_finished(LINK_NO_SPACE);
    assert_string_equal(got.st.text, "not enough disk space in the sandbox");
    sh(NO_STAGE("/tmp") "; cat /tmp/up; rm /tmp/up", "old");
}

struct waiting {
    bool done;
    struct link_status st;
    struct file_sink *sink;
};
static void on_late(void *arg, const struct link_status *st, struct file_sink *sink, const struct file_info *i)
{
    struct waiting *l = arg;
    (void)i;
    l->st = *st;
    l->sink = sink;
    l->done = true;
}

/* More than are written at once wait, and keep nobody else out. */
static void upload_limit(void **state)
{
    (void)state;
    struct file_sink *v[48];
    write_file("/tmp/many", "x");
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        create("/tmp/many");
        v[i] = got.sink;
    }
    struct waiting late[3] = {0};
    link_call call[3];
    for (int i = 0; i < 3; i++)
        call[i] = files_create(w.links, WORLD_ID, NULL, "/tmp/late", NULL, 0, on_late, &late[i]);
    for (int i = 0; i < 3; i++) {
        STAT("/tmp/many");
        expect(LINK_OK, NULL);
    }
    assert_false(late[0].done || late[1].done || late[2].done);
    link_cancel(w.links, call[0]);
    sink_free(v[0]);
    assert_true(world_wait(&w, &late[1].done, AWAIT_MS));
    assert_int_equal(late[1].st.code, LINK_OK);
    assert_false(late[2].done);
    for (size_t i = 1; i < ARRAY_LEN(v); i++)
        sink_free(v[i]);
    assert_true(world_wait(&w, &late[2].done, AWAIT_MS));
    assert_int_equal(late[2].st.code, LINK_OK);
    sink_free(late[1].sink);
    sink_free(late[2].sink);
    assert_false(late[0].done);
    write_file("/tmp/many", "x");
}

static void children_of(pid_t pid, char text[256])
{
    char path[64];
    memset(text, 0, 256);
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)!read(fd, text, 255);
    (void)close(fd);
}

/* As the kernel does when the memory is full. The writer is the child of init that has a child; others are about to be
 * reaped. */
static void kill_writer(void)
{
    char text[256], below[256];
    pid_t writer = 0;
    children_of(w.pid, text);
    for (char *p = text, *next; (next = strchr(p, ' ')); p = next + 1) {
        pid_t pid = (pid_t)strtol(p, NULL, 10);
        children_of(pid, below);
        if (below[0])
            writer = pid;
    }
    assert_true(writer > 0 && kill(writer, SIGKILL) == 0);
}

static void writer_killed(void **state)
{
    (void)state;
    write_file("/tmp/kept", "old");
    for (int large = 0; large < 2; large++) {
        create("/tmp/kept");
        assert_int_equal(pour(piece, large ? sizeof piece : 1000, large ? 4 : 1), LINK_OK);
        kill_writer();
        expect_finished(LINK_NO_SPACE);
        assert_non_null(strstr(got.st.text, "nothing was changed"));
        sh(NO_STAGE("/tmp") "; cat /tmp/kept", "old");
    }
    sh("rm /tmp/kept", "");
}

static void as_the_user(void **state)
{
    (void)state;
    /* A file of his in a directory that is not: nothing can be put beside it. */
    sh("mkdir shut; echo -n old > shut/mine; echo -n old > shut/locked; chmod 400 shut/locked; chmod 500 shut", "");
    create("shut/mine");
    assert_int_equal(pour(piece, 1000, 1), LINK_OK);
    sink_free(got.sink);
    sh("cat shut/mine", "old");
    write_file("shut/mine", "new");
    reset();
    (void)files_create(w.links, WORLD_ID, NULL, "shut/locked", NULL, 0, on_created, NULL);
    expect(LINK_DENIED, NULL);
    sh("cat shut/mine shut/locked; ls -A shut; chmod 700 shut; rm -r shut", "newoldlocked\nmine\n");
    reset();
    (void)files_create(w.links, WORLD_ID, NULL, "/etc/mine", NULL, 0, on_created, NULL);
    expect(LINK_DENIED, NULL);
    reset();
    (void)files_open(w.links, WORLD_ID, NULL, "/proc/1/environ", on_opened, NULL);
    expect(LINK_DENIED, NULL);
}

static struct {
    bool started, failed;
    struct link_status st;
    char text[4096];
} seen;
static void w_started(void *arg)
{
    (void)arg;
    seen.started = true;
}
static void w_event(void *arg, enum file_event t, const char *name, const struct file_info *info)
{
    static const char letter[] = "?CWRNA";
    (void)arg;
    if (strlen(seen.text) < sizeof seen.text - 300)
        (void)snprintf(seen.text + strlen(seen.text), sizeof seen.text - strlen(seen.text), "%c:%s%s ", letter[t], name,
                       info ? "+" : "");
}
static void w_failed(void *arg, const struct link_status *st)
{
    (void)arg;
    seen.st = *st;
    seen.failed = true;
}
static const struct file_watch_ops watch_ops = {w_started, w_event, w_failed};

static void until(const char *text)
{
    bool never = false;
    AWAIT (strstr(seen.text, text))
        (void)world_wait(&w, &never, 20);
    if (!strstr(seen.text, text))
        print_message("seen: %s\n", seen.text);
    assert_non_null(strstr(seen.text, text));
}

static void watches(void **state)
{
    (void)state;
    sh("mkdir -p wd/sub", "");
    memset(&seen, 0, sizeof seen);
    struct file_watch *f = files_watch(w.links, WORLD_ID, NULL, "wd", true, true, false, &watch_ops, NULL);
    assert_true(world_wait(&w, &seen.started, AWAIT_MS));
    sh("echo x > wd/new", "");
    until("C:new+ ");
    until("W:new+ ");
    sh("chmod 600 wd/new; mv wd/new wd/sub/other; rm wd/sub/other", "");
    until("A:new");
    until("N:new ");
    until("C:sub/other");
    until("R:sub/other ");
    sh("mkdir -p wd/deep/er; echo y > wd/deep/er/file", "");
    until("C:deep+ ");
    until("C:deep/er/file");
    sh("echo z >> wd/deep/er/file", "");
    until("W:deep/er/file+ ");
    sh("mv wd/deep wd/moved; echo z >> wd/moved/er/file", "");
    until("W:moved/er/file+ ");
    files_unwatch(f);
    bool never = false;
    (void)world_wait(&w, &never, 50);
    assert_false(seen.failed);
    memset(&seen, 0, sizeof seen);
    (void)files_watch(w.links, WORLD_ID, NULL, "nowhere", false, false, false, &watch_ops, NULL);
    assert_true(world_wait(&w, &seen.failed, AWAIT_MS));
    assert_int_equal(seen.st.code, LINK_NOT_FOUND);
    memset(&seen, 0, sizeof seen);
    (void)files_watch(w.links, WORLD_ID, NULL, "/etc/passwd", false, false, false, &watch_ops, NULL);
    assert_true(world_wait(&w, &seen.failed, AWAIT_MS));
    assert_int_equal(seen.st.code, LINK_NOT_DIR);
    memset(&seen, 0, sizeof seen);
    (void)files_watch(w.links, WORLD_ID, NULL, "wd", false, false, false, &watch_ops, NULL);
    assert_true(world_wait(&w, &seen.started, AWAIT_MS));
    sh("rm -r wd", "");
    assert_true(world_wait(&w, &seen.failed, AWAIT_MS));
    assert_int_equal(seen.st.code, LINK_NOT_FOUND);
    sh("for i in $(seq 300); do n=$(grep -l hutch-init /proc/[0-9]*/comm | wc -l); [ $n = 1 ] && break; sleep 0.1; "
       "done; echo $n",
       "1\n"); /* no helper is left */
}

static void settle(void)
{
    struct status_sandbox b = {0};
    (void)files_settle(w.links, WORLD_ID, status_done, &b);
    assert_true(world_wait(&w, &b.done, AWAIT_MS));
    assert_int_equal(b.st.code, LINK_OK);
}

/* What E2B's own tests count: three events of a new file, a write of one that was there; none of the file's name before it
 * was complete. All of them come before the answer that comes after the write. */
static void events_of_an_upload(void **state)
{
    (void)state;
    sh("mkdir ev; echo -n x > ev/there; echo -n y > ev/shared; ln ev/shared other", "");
    memset(&seen, 0, sizeof seen);
    struct file_watch *f = files_watch(w.links, WORLD_ID, NULL, "ev", false, false, false, &watch_ops, NULL);
    struct file_watch *g = files_watch(w.links, WORLD_ID, NULL, "/tmp", true, false, false, &watch_ops, NULL);
    assert_true(world_wait(&w, &seen.started, AWAIT_MS));
    assert_true(files_are_watched(w.links, WORLD_ID));
    for (int i = 0; i < 100; i++) {
        seen.text[0] = '\0';
        write_file("ev/new", "x");
        settle();
        assert_string_equal(seen.text, "C:new A:new W:new ");
        seen.text[0] = '\0';
        write_file("ev/there", "x");
        settle();
        assert_string_equal(seen.text, "W:there ");
        sh("rm ev/new", "");
        settle();
    }
    seen.text[0] = '\0';
    create("ev/large");
    assert_int_equal(pour(piece, sizeof piece, 3), LINK_OK);
    settle();
    assert_string_equal(seen.text, "");
    expect_finished(LINK_OK);
    settle();
    assert_string_equal(seen.text, "C:large A:large W:large ");
    seen.text[0] = '\0';
    write_file("ev/shared", "x");
    settle();
    assert_true(strncmp(seen.text, "W:shared ", 9) == 0);
    seen.text[0] = '\0';
    const char *const from[] = {"ev/there"};
    reset();
    (void)files_compose(w.links, WORLD_ID, NULL, from, 1, "ev/whole", on_info, NULL);
    expect(LINK_OK, NULL);
    settle();
    assert_string_equal(seen.text, "C:whole A:whole W:whole R:there ");
    files_unwatch(f);
    files_unwatch(g);
    assert_false(files_are_watched(w.links, WORLD_ID));
    settle(); /* nothing to wait for */
    sh("rm -r ev other", "");
}

/* A watch that ended by itself while it was being closed: init answers both, and neither is nonsense. */
static void a_watch_ends_while_it_is_closed(void **state)
{
    (void)state;
    struct capture c;
    struct exec_spec s = {.cmd = "sh", .args = (const char *const[]){"-c", "sleep 0.2; rm -r /home/user/ends", NULL}};
    struct file_watch *f;
    int tries = 0;
    do { /* on a machine with much to do the end may have come too early */
        assert_true(tries++ < 10);
        sh("mkdir -p ends", "");
        memset(&seen, 0, sizeof seen);
        memset(&c, 0, sizeof c);
        f = files_watch(w.links, WORLD_ID, NULL, "ends", false, false, false, &watch_ops, NULL);
        assert_true(world_wait(&w, &seen.started, AWAIT_MS));
        c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
        assert_true(world_wait(&w, &c.started, AWAIT_MS));
    } while (seen.failed && (world_wait(&w, &c.over, AWAIT_MS), true));
    (void)sleep(1); /* its end waits in the socket */
    files_unwatch(f);
    sh("echo still here", "still here\n"); /* its answer comes after both */
    assert_true(world_wait(&w, &c.over, AWAIT_MS) && c.ended);
    assert_false(seen.failed);
}

/* Nobody reads for a while: the watch fails and says why, and init lives on. */
static void watch_overflow(void **state)
{
    (void)state;
    struct capture c = {0};
    struct exec_spec s = {
        .cmd = "python3",
        .args = (const char *const[]){
            "-c", "for i in range(30000):\n open('/home/user/of/%d'%i,'w').write('x')\nopen('/home/user/of.done','w')",
            NULL}};
    char done[64];
    sh("mkdir of", "");
    memset(&seen, 0, sizeof seen);
    (void)files_watch(w.links, WORLD_ID, NULL, "of", true, true, false, &watch_ops, NULL);
    assert_true(world_wait(&w, &seen.started, AWAIT_MS));
    c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
    assert_true(world_wait(&w, &c.started, AWAIT_MS));
    (void)snprintf(done, sizeof done, "/proc/%d/root/home/user/of.done", (int)w.pid);
    AWAIT (access(done, F_OK) == 0)
        (void)usleep(20000);
    assert_true(world_wait(&w, &c.over, AWAIT_MS) && c.ended);
    assert_true(world_wait(&w, &seen.failed, AWAIT_MS));
    assert_int_equal(seen.st.code, LINK_LIMIT);
    sh("rm -r of of.done", "");
}

static void ports(void **state)
{
    (void)state;
    struct capture c = {0};
    struct status_sandbox b = {0};
    reset();
    (void)link_dial(w.links, WORLD_ID, 4321, on_dialed, NULL);
    expect(LINK_NOT_FOUND, "nothing listens on port 4321");
    const char *program =
        "import socket,sys\ns=socket.socket(socket.AF_INET6 if sys.argv[1]=='6' else socket.AF_INET)\n"
        "s.bind(('::1' if sys.argv[1]=='6' else '127.0.0.1',4321));s.listen();print('up',flush=True)\n"
        "c,_=s.accept();c.sendall(b'served')\nc.close()";
    for (int v6 = 0; v6 < 2; v6++) {
        memset(&c, 0, sizeof c);
        struct exec_spec s = {.cmd = "python3", .args = (const char *const[]){"-c", program, v6 ? "6" : "4", NULL}};
        c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
        while (c.n[1] < 3 && !c.over)
            (void)world_wait(&w, &c.over, 10);
        reset();
        (void)link_dial(w.links, WORLD_ID, 4321, on_dialed, NULL);
        expect(LINK_OK, NULL);
        char buf[16] = "";
        (void)fcntl(got.fd, F_SETFL, 0);
        assert_int_equal(recv(got.fd, buf, sizeof buf, MSG_WAITALL), 6);
        assert_string_equal(buf, "served");
        (void)close(got.fd);
        assert_true(world_wait(&w, &c.over, AWAIT_MS));
    }
    (void)b;
}

static int run_all(void)
{
    const struct CMUnitTest computer[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(kernel_files),
        cmocka_unit_test(links_and_info),
        cmocka_unit_test(below_a_root),
        cmocka_unit_test(make_move_remove),
        cmocka_unit_test(compose),
        cmocka_unit_test(compose_where_a_source_is_the_result),
        cmocka_unit_test(compose_that_fails_leaves_nothing),
        cmocka_unit_test(metadata),
        cmocka_unit_test(large),
        cmocka_unit_test(watches),
        cmocka_unit_test(events_of_an_upload),
        cmocka_unit_test(a_watch_ends_while_it_is_closed),
        cmocka_unit_test(watch_overflow),
        cmocka_unit_test(ports),
        cmocka_unit_test(uploads),
        cmocka_unit_test(uploads_over_something),
        cmocka_unit_test(upload_limit),
        cmocka_unit_test(writer_killed),
    };
    const struct CMUnitTest strict[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(kernel_files),
        cmocka_unit_test(links_and_info),
        cmocka_unit_test(make_move_remove),
        cmocka_unit_test(compose),
        cmocka_unit_test(compose_where_a_source_is_the_result),
        cmocka_unit_test(compose_that_fails_leaves_nothing),
        cmocka_unit_test(metadata),
        cmocka_unit_test(as_the_user),
        cmocka_unit_test(watches),
        cmocka_unit_test(events_of_an_upload),
        cmocka_unit_test(ports),
        cmocka_unit_test(uploads),
        cmocka_unit_test(uploads_over_something),
        cmocka_unit_test(upload_limit),
        cmocka_unit_test(writer_killed),
    };
    int r = cmocka_run_group_tests_name("computer", computer, up, down);
    return r + cmocka_run_group_tests_name("strict", strict, up_strict, down);
}

/* The same over packets and over a byte stream. */
int main(void)
{
    if (geteuid() != 0) {
        print_message("skipped: needs root\n");
        return 0;
    }
    return world_run_twice(run_all);
}
