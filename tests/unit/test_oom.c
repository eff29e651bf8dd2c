/* Records of the kernel's log. That a real OOM kill is found in the real log is tested with the memory limit in
 * test_cgroup. */
#include "tests/lib/unit.h"

#include "os/oom.h"

#define CHOSEN "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
#define KILLED "3,2,3,-;Memory cgroup out of memory: Killed process "

static struct oom_line parse(const char *text)
{
    struct oom_line l;
    oom_parse_line(text, strlen(text), &l);
    return l;
}

static void chosen_victims_have_cgroup_name_and_pid(void **state)
{
    (void)state;
    struct oom_line l =
        parse(CHOSEN "oom_memcg=/a/hutch-1,task_memcg=/a/hutch-1/b,task=python3,pid=77,uid=5\n SUBSYSTEM=x\n");
    assert_int_equal(l.kind, OOM_CHOSEN);
    assert_int_equal(l.pid, 77);
    assert_string_equal(l.comm, "python3");
    assert_string_equal(l.memcg, "/a/hutch-1");
    l = parse(CHOSEN "global_oom,task_memcg=/x,task=y,pid=3,uid=0");
    assert_int_equal(l.kind, OOM_CHOSEN);
    assert_string_equal(l.memcg, "/");
}

static void sizes_come_from_the_kill_record(void **state)
{
    (void)state;
    struct oom_line l =
        parse(KILLED "9 (a b) total-vm:100kB, anon-rss:50kB, file-rss:3kB, shmem-rss:4kB, UID:0 pgtables:1kB\n");
    assert_int_equal(l.kind, OOM_KILLED);
    assert_int_equal(l.pid, 9);
    assert_string_equal(l.comm, "a b");
    assert_true(l.total_vm_kb == 100 && l.anon_rss_kb == 50 && l.file_rss_kb == 3 && l.shmem_rss_kb == 4);
}

static void hostile_names_do_not_move_the_fields(void **state)
{
    (void)state;
    struct oom_line l = parse(CHOSEN "oom_memcg=/h,task_memcg=/h,task=a,pid=1,uid=0,pid=8,uid=5");
    assert_int_equal(l.pid, 8);
    assert_string_equal(l.comm, "a,pid=1,uid=0");
    l = parse(CHOSEN "oom_memcg=/h,task_memcg=/h,task=,oom_memcg=/x,pid=8,uid=5");
    assert_string_equal(l.memcg, "/h");
    assert_int_equal(l.pid, 8);
    l = parse(KILLED "9 () total-vm:1kB) total-vm:100kB, anon-rss:50kB, file-rss:0kB, shmem-rss:0kB, UID:0");
    assert_int_equal(l.kind, OOM_KILLED);
    assert_true(l.total_vm_kb == 100);
    assert_string_equal(l.comm, ") total-vm:1kB");
}

static void lines_of_user_space_and_broken_ones_are_ignored(void **state)
{
    (void)state;
    static const char *const others[] = {
        "",
        ";",
        "6",
        "x,1,2,-;oom-kill:",
        "6,1,2,-;hello",
        "6,1,2,-;oom-kill:",
        "6,1,2,-;oom-kill:,task_memcg=,task=,pid=",
        "12,1,2,-;oom-kill:constraint=C,oom_memcg=/h,task_memcg=/h,task=a,pid=5,uid=0", /* facility "user" */
        CHOSEN "oom_memcg=/h,task_memcg=/h,task=a,pid=0,uid=0",
        CHOSEN "oom_memcg=/h,task_memcg=/h,task=a,pid=99999999999,uid=0",
        CHOSEN "oom_memcg=/h,task_memcg=/h,pid=4,task=a",
        KILLED "9 (a) total-vm:1kB, anon-rss:xkB, file-rss:0kB, shmem-rss:0kB",
        KILLED "9 (a total-vm:1kB",
        KILLED "(a) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB",
    };
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        assert_int_equal(parse(others[i]).kind, OOM_OTHER);
    struct oom_line l;
    oom_parse_line("6,1,2,-;oom\0-kill:", 18, &l);
    assert_int_equal(l.kind, OOM_OTHER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chosen_victims_have_cgroup_name_and_pid),
        cmocka_unit_test(sizes_come_from_the_kill_record),
        cmocka_unit_test(hostile_names_do_not_move_the_fields),
        cmocka_unit_test(lines_of_user_space_and_broken_ones_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
