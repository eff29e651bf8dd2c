/* test_cli_lay.c - `hutch lay`, one COPY of a build, in a root of its own. */
#include <sys/wait.h>

#include "tree-world.h"

#include "cli/cli.h"

/* main.c has it, which is no part of the library. */
int cli_fail(const struct err *err)
{
    (void)fprintf(stderr, "hutch: %s\n", err->msg);
    return err->code;
}

static struct lay_out out;
static int stream = -1;

static void begin(void)
{
    stream = stream_new();
    lay_out_start(&out, stream);
}

static void put(enum lay_type type, uint32_t mode, const char *path, const char *content)
{
    struct lay_record r = {.type = type, .mode = mode, .uid = 501, .gid = 20, .mtime_sec = 1000000000};
    bool file = type == LAY_FILE;
    r.size = file ? strlen(content) : 0;
    WORKS(lay_out_record(&out, &r, path, file ? NULL : content, NULL, 0));
    if (file)
        WORKS(lay_out_bytes(&out, content, strlen(content)));
}

/* Runs it with the world as its root; what it wrote to stderr in said. */
static int lay(char said[400], const char *src, const char *dest, const char *more)
{
    char words[400], *argv[16] = {"lay", "--src", (char *)src, "--dest", (char *)dest};
    int argc = 5, pipes[2], status;
    (void)snprintf(words, sizeof words, "%s", more);
    for (char *save = NULL, *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    WORKS(lay_out_end(&out));
    assert_int_equal(lseek(stream, 0, SEEK_SET), 0);
    WORKS(pipe2(pipes, O_CLOEXEC));
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (dup2(stream, 0) < 0 || dup2(pipes[1], 2) < 0 || chroot(world_dir) < 0 || chdir("/") < 0)
            _exit(99);
        _exit(cmd_lay(argc, argv));
    }
    (void)close(pipes[1]);
    ssize_t n = read(pipes[0], said, 399);
    said[n > 0 ? n : 0] = '\0';
    (void)close(pipes[0]);
    (void)close(stream);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void works(const char *src, const char *dest, const char *more)
{
    char said[400];
    int code = lay(said, src, dest, more);
    if (code != 0)
        fail_msg("exit code %d: %s", code, said);
}

static bool there(const char *path) { return faccessat(world, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0; }

/* A context: two files beside each other, one deeper, one in a directory of its own. */
static void context(void)
{
    begin();
    put(LAY_DIR, 0755, "src", NULL);
    put(LAY_FILE, 0640, "src/a.txt", "a");
    put(LAY_FILE, 0755, "src/b.txt", "b");
    put(LAY_FILE, 0644, "src/deep/c.txt", "c");
    put(LAY_SYMLINK, 0777, "src/link", "a.txt");
}

static int fresh(void **state)
{
    if (world_clean(state) < 0)
        return -1;
    (void)close(dir_at("etc"));
    file_at(world, "etc/passwd", "root:x:0:0::/:/bin/sh\nuser:x:1000:1001::/home/user:/bin/sh\n");
    file_at(world, "etc/group", "root:x:0:\nuser:x:1002:\nstaff:x:50:\n");
    return 0;
}

static int nothing_left(void **state)
{
    struct dirent *e;
    DIR *d = opendir(world_dir);
    int r = 0;
    (void)state;
    while (d && (e = readdir(d)))
        r |= strncmp(e->d_name, ".hutch", 6) == 0;
    (void)closedir(d);
    return r ? -1 : 0;
}

static void a_directory_means_what_is_in_it(void **state)
{
    (void)state;
    context();
    works("src", "/app", "");
    holds(world, "app/a.txt", "a");
    holds(world, "app/deep/c.txt", "c");
    assert_false(there("app/src"));
    struct stat st = stat_of(world, "app/a.txt");
    assert_int_equal(st.st_mode, S_IFREG | 0640);
    assert_int_equal(st.st_uid, 0); /* not that of the context */
    assert_int_equal(st.st_mtim.tv_sec, 1000000000);
    assert_true(S_ISLNK(stat_of(world, "app/link").st_mode));
    context();
    works(".", "/whole/", "");
    holds(world, "whole/src/b.txt", "b");
}

static void one_file_gets_the_name_or_the_directory_of_the_destination(void **state)
{
    (void)state;
    context();
    works("./src/a.txt", "/x/y/name", "");
    holds(world, "x/y/name", "a");
    context();
    works("src/a.txt", "/d/", "");
    holds(world, "d/a.txt", "a");
    context();
    works("src/b.txt", "/d", ""); /* is a directory by now */
    holds(world, "d/b.txt", "b");
    context();
    works("src/a.txt", ".", "--workdir /work/here");
    holds(world, "work/here/a.txt", "a");
    context();
    works("src/a.txt", "sub/new", "--workdir /work");
    holds(world, "work/sub/new", "a");
    context();
    works("src/b.txt", "/x/y/name", ""); /* replaced */
    holds(world, "x/y/name", "b");
}

static void a_pattern_keeps_what_lies_below_its_directory(void **state)
{
    (void)state;
    context();
    works("src/**", "/app", "");
    holds(world, "app/deep/c.txt", "c");
    holds(world, "app/b.txt", "b");
    begin();
    put(LAY_FILE, 0644, "package.json", "{}");
    works("package*.json", "/p/package.json", "");
    holds(world, "p/package.json", "{}");
    begin();
    put(LAY_FILE, 0644, "package.json", "{}");
    put(LAY_FILE, 0644, "package-lock.json", "[]");
    works("package*.json", "./", "--workdir /w");
    holds(world, "w/package-lock.json", "[]");
}

static void owners_are_those_of_the_sandbox_and_modes_are_for_all(void **state)
{
    char said[400];
    struct stat st;
    (void)state;
    context();
    works("src", "/home/user/app", "--owner user --mode 750");
    st = stat_of(world, "home/user/app/deep/c.txt");
    assert_int_equal(st.st_uid, 1000);
    assert_int_equal(st.st_gid, 1002);
    assert_int_equal(st.st_mode, S_IFREG | 0750);
    assert_int_equal(stat_of(world, "home/user/app/deep").st_mode, S_IFDIR | 0750);
    assert_int_equal(stat_of(world, "home/user").st_uid, 1000); /* made on the way */
    assert_int_equal(stat_of(world, "home/user/app/link").st_uid, 1000);
    context();
    works("src/a.txt", "/f", "--owner 12:staff --mode 4711");
    st = stat_of(world, "f");
    assert_int_equal(st.st_uid, 12);
    assert_int_equal(st.st_gid, 50);
    assert_int_equal(st.st_mode, S_IFREG | 04711);
    context();
    assert_int_equal(lay(said, "src", "/n", "--owner nobody-here"), ERR_USAGE);
    assert_non_null(strstr(said, "there is no user nobody-here in /etc/passwd"));
    context();
    assert_int_equal(lay(said, "src", "/n", "--mode 0999"), ERR_USAGE);
    assert_false(there("n"));
}

static void directories_are_merged_and_keep_their_own(void **state)
{
    (void)state;
    (void)close(dir_at("app"));
    (void)close(dir_at("app/deep"));
    WORKS(fchmodat(world, "app/deep", 01777, 0));
    WORKS(fchownat(world, "app/deep", 7, 7, 0));
    file_at(world, "app/deep/old", "old");
    file_at(world, "app/a.txt", "old");
    context();
    works("src/", "/app", "--owner user");
    holds(world, "app/deep/old", "old");
    holds(world, "app/deep/c.txt", "c");
    holds(world, "app/a.txt", "a");
    struct stat st = stat_of(world, "app/deep");
    assert_int_equal(st.st_mode, S_IFDIR | 01777);
    assert_int_equal(st.st_uid, 7);
}

static void links_to_directories_are_followed_and_links_to_files_replaced(void **state)
{
    (void)state;
    (void)close(dir_at("usr"));
    (void)close(dir_at("usr/lib"));
    WORKS(symlinkat("usr/lib", world, "lib"));
    WORKS(symlinkat("/etc/passwd", world, "usr/lib/f"));
    begin();
    put(LAY_FILE, 0644, "root/lib/f", "new");
    works("root", "/", "");
    assert_true(S_ISLNK(stat_of(world, "lib").st_mode));
    assert_true(S_ISREG(stat_of(world, "usr/lib/f").st_mode));
    holds(world, "usr/lib/f", "new");
    context();
    works("src/a.txt", "/lib/sub/", "");
    holds(world, "usr/lib/sub/a.txt", "a");
}

static void files_and_directories_do_not_take_each_others_place(void **state)
{
    char said[400];
    (void)state;
    (void)close(dir_at("app"));
    (void)close(dir_at("app/a.txt"));
    context();
    assert_int_equal(lay(said, "src", "/app", ""), ERR_USAGE);
    assert_non_null(strstr(said, "'/app/a.txt': is a file to be copied, and a directory is there"));
    file_at(world, "file", "x");
    context();
    assert_int_equal(lay(said, "src", "/file", ""), ERR_USAGE);
    assert_non_null(strstr(said, "'/file': is not a directory"));
}

static void another_file_system_is_copied_to(void **state)
{
    (void)state;
    (void)close(dir_at("m"));
    _cleanup_free_ char *place = xasprintf("%s/m", world_dir);
    WORKS(mount("none", place, "tmpfs", 0, NULL));
    file_at(world, "m/a.txt", "old");
    context();
    works("src", "/m", "--owner user");
    holds(world, "m/a.txt", "a");
    holds(world, "m/deep/c.txt", "c");
    struct stat st = stat_of(world, "m/b.txt");
    assert_int_equal(st.st_mode, S_IFREG | 0755);
    assert_int_equal(st.st_uid, 1000);
    assert_int_equal(st.st_mtim.tv_sec, 1000000000);
    assert_true(S_ISLNK(stat_of(world, "m/link").st_mode));
    WORKS(umount2(place, 0));
}

static void a_source_that_was_not_sent_is_named(void **state)
{
    char said[400];
    (void)state;
    context();
    assert_int_equal(lay(said, "other", "/app", ""), ERR_USAGE);
    assert_string_equal(said, "hutch: copy: 'other': is not among the files that were sent\n");
    context();
    assert_int_equal(lay(said, "src", "", ""), ERR_USAGE);
    begin();
    put(LAY_FILE, 0644, "../out", "x");
    assert_int_equal(lay(said, ".", "/app", ""), ERR_USAGE);
    assert_non_null(strstr(said, "has a part \"..\""));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh, nothing_left)
    const struct CMUnitTest tests[] = {
        TEST(a_directory_means_what_is_in_it),
        TEST(one_file_gets_the_name_or_the_directory_of_the_destination),
        TEST(a_pattern_keeps_what_lies_below_its_directory),
        TEST(owners_are_those_of_the_sandbox_and_modes_are_for_all),
        TEST(directories_are_merged_and_keep_their_own),
        TEST(links_to_directories_are_followed_and_links_to_files_replaced),
        TEST(files_and_directories_do_not_take_each_others_place),
        TEST(another_file_system_is_copied_to),
        TEST(a_source_that_was_not_sent_is_named),
    };
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
