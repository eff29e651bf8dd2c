/* Archives that come through a pipe, and image workers that an archive has taken over: this program plays them. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "layers/import.h"
#include "layers/worker.h"
#include "tests/lib/unit.h"
#include "trees/tree.h"

struct scene {
    struct layers_request ask;
    struct job job;
    int ends[2];
    char dir[40];
};

static int begin(void **state)
{
    static struct scene s;
    s = (struct scene){.dir = "/tmp/hutch-import.XXXXXX"};
    (void)signal(SIGPIPE, SIG_IGN);
    assert_non_null(mkdtemp(s.dir));
    s.job = (struct job){.ask = &s.ask, .sock = -1, .reply_fd = -1};
    s.job.place.tmp = open(s.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(pipe2(s.ends, O_CLOEXEC), 0);
    *state = &s;
    return 0;
}

static int end(void **state)
{
    const struct scene *s = *state;
    (void)close(s->ends[0]);
    (void)close(s->ends[1]);
    (void)close(s->job.place.tmp);
    return rmdir(s->dir); /* nothing is left in it */
}

static void what_came_through_a_pipe_is_a_file(void **state)
{
    struct scene *s = *state;
    struct err err = {0};
    char got[8] = "";
    assert_int_equal(write(s->ends[1], "archive", 7), 7);
    (void)close(s->ends[1]);
    s->ends[1] = -1;
    int fd = import_seekable(&s->job, s->ends[0], &err);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, got, sizeof got, 0), 7);
    assert_string_equal(got, "archive");
    (void)close(fd);
}

static void refused(struct scene *s)
{
    struct err err = {0};
    assert_int_equal(import_seekable(&s->job, s->ends[0], &err), -1);
    assert_int_equal(s->job.reply.error, LAYERS_BAD_DATA);
    assert_non_null(strstr(err.msg, "does not come"));
}

static void a_pipe_into_which_nobody_writes_is_given_up(void **state)
{
    const struct import_pace usual = import_pace;
    import_pace = (struct import_pace){.silence_ms = 20, .total_ms = 600000};
    refused(*state);
    import_pace = usual;
}

static void *trickle(void *arg)
{
    while (write(*(const int *)arg, "x", 1) == 1)
        (void)usleep(2000);
    return NULL;
}

static void a_pipe_into_which_little_is_written_for_ever_is_given_up(void **state)
{
    const struct import_pace usual = import_pace;
    struct scene *s = *state;
    pthread_t writer;
    assert_int_equal(pthread_create(&writer, NULL, trickle, &s->ends[1]), 0);
    import_pace = (struct import_pace){.silence_ms = 600000, .total_ms = 50};
    refused(s);
    (void)close(s->ends[0]);
    s->ends[0] = -1;
    assert_int_equal(pthread_join(writer, NULL), 0);
    import_pace = usual;
}

/* --- workers ------------------------------------------------------------------------------------------------------ */

/* A layer of its own each time, of one more than there are so far. */
static bool say_one_more(uint32_t index)
{
    static struct lay_out out;
    struct image_message m = {.version = IMAGE_VERSION, .type = IMAGE_LAYER, .index = index, .count = index + 1}, go;
    struct lay_record r = {.type = LAY_FIFO, .mode = 0644};
    char name[12];
    (void)snprintf(name, sizeof name, "%u", index);
    memcpy(m.diff_id, &index, sizeof index);
    if (fd_send(IMAGE_FD_CONTROL, &m, sizeof m, NULL, 0) < 0 || recv(IMAGE_FD_CONTROL, &go, sizeof go, 0) <= 0)
        return false;
    lay_out_start(&out, IMAGE_FD_OUT);
    return lay_out_record(&out, &r, name, "", NULL, 0) == 0 && lay_out_end(&out) == 0;
}

static int play_worker(void)
{
    struct image_message m = {.version = IMAGE_VERSION, .type = IMAGE_CONFIG};
    int config = memfd_create("config", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    uint32_t n = 0;
    while (n < STACK_LAYERS_MAX + 2 && say_one_more(n))
        n++;
    (void)fcntl(config, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    (void)fd_send(IMAGE_FD_CONTROL, &m, sizeof m, &config, 1);
    m.type = IMAGE_DONE;
    m.count = n;
    (void)fd_send(IMAGE_FD_CONTROL, &m, sizeof m, NULL, 0);
    return 0;
}

static int a_place(int at, const char *name)
{
    assert_int_equal(mkdirat(at, name, 0755), 0);
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static int begin_store(void **state)
{
    static const struct layers_config config = {.node_program = "/proc/self/exe", .image_uid = (uid_t)-1};
    (void)begin(state);
    struct scene *s = *state;
    int top = s->job.place.tmp;
    s->job.config = &config;
    s->job.place.root = top;
    s->job.place.tmp = a_place(top, "tmp");
    s->job.place.layers = a_place(top, "layers");
    s->job.place.stacks = a_place(top, "stacks");
    (void)snprintf(s->ask.stack, sizeof s->ask.stack, "st-0123456789");
    return 0;
}

static int end_store(void **state)
{
    struct scene *s = *state;
    struct layers_place *p = &s->job.place;
    struct err err = {0};
    static const char *const names[] = {"tmp", "layers", "stacks"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        assert_int_equal(tree_remove(p->root, names[i], &err), 0);
    (void)close(p->tmp);
    (void)close(p->layers);
    (void)close(p->stacks);
    p->tmp = p->root;
    return end(state);
}

/* Else there are more layers than a stack has room for. */
static void a_worker_may_not_say_another_number_of_layers(void **state)
{
    struct scene *s = *state;
    struct err err = {0};
    if (geteuid() != 0)
        skip();
    int archive = memfd_create("archive", MFD_CLOEXEC);
    assert_int_equal(import_archive(&s->job, archive, "", false, &err), -1);
    if (!strstr(err.msg, "lost count"))
        fail_msg("%s", err.msg);
    assert_int_equal(s->job.reply.error, LAYERS_BAD_DATA);
    assert_int_equal(faccessat(s->job.place.stacks, s->ask.stack, F_OK, 0), -1);
    (void)close(archive);
}

/* alarm() says how long the one before had to go. */
static void the_clock_of_a_worker_stands_while_it_is_not_waited_for(void **state)
{
    struct scene *s = *state;
    struct worker w = WORKER_INIT;
    struct image_message m;
    struct err err = {0};
    if (geteuid() != 0)
        skip();
    const struct worker_plan plan = {.args = {"unpack"}, .in = -1, .out = s->ends[1], .more = -1};
    assert_int_equal(worker_begin(&s->job, &plan, &w, &err), 0);
    assert_int_equal(alarm(0), 0);
    assert_int_equal(worker_next(&w, &m, NULL, &err), 0);
    assert_int_equal(m.type, IMAGE_LAYER);
    assert_int_equal(alarm(0), 0);
    assert_int_equal(worker_answer(&w, IMAGE_GO, &err), 0);
    assert_int_equal(alarm(0), 0);
    worker_waits(true);
    assert_true(alarm(0) > 0);
    worker_close(&w);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "image") == 0)
        _exit(play_worker());
#define IN_SCENE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        IN_SCENE(what_came_through_a_pipe_is_a_file),
        IN_SCENE(a_pipe_into_which_nobody_writes_is_given_up),
        IN_SCENE(a_pipe_into_which_little_is_written_for_ever_is_given_up),
        cmocka_unit_test_setup_teardown(a_worker_may_not_say_another_number_of_layers, begin_store, end_store),
        cmocka_unit_test_setup_teardown(the_clock_of_a_worker_stands_while_it_is_not_waited_for, begin_store,
                                        end_store),
    };
    return cmocka_run_group_tests_name("stock import", tests, NULL, NULL);
}
