/* Commands in a real sandbox, through the API that front uses. */
#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "await.h"
#include "init-scene.h"
#include "init/proto.h"
#include "rpc/frame.h"
#include "tests/lib/unit.h"

/* As if the node had been started by a shell in the background, or by nohup. */
static int up_deaf(void **state)
{
    (void)state;
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGQUIT, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    int r = world_up(&w, false);
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGQUIT, SIG_DFL);
    (void)signal(SIGHUP, SIG_DFL);
    return r;
}

static long now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void sh_expect(const char *script, int code, const char *out)
{
    struct capture c;
    world_sh(&w, script, &c);
    if (c.failed)
        print_message("%s: %d %s\n", script, (int)c.st.code, c.st.text);
    assert_true(c.ended);
    assert_true(c.end.exited);
    if (c.end.code != code || (out && strcmp(c.text[1], out) != 0))
        print_message("%s: code %d, stderr: %s\n", script, c.end.code, c.text[2]);
    assert_int_equal(c.end.code, code);
    if (out)
        assert_string_equal(c.text[1], out);
}

static void commands(void **state)
{
    (void)state;
    struct capture c;
    sh_expect("echo hello", 0, "hello\n");
    sh_expect("exit 3", 3, "");
    sh_expect("id -un; id -G; pwd; hostname", 0, "user\n1000 1234\n/home/user\nbox\n");
    sh_expect("echo $HOME $USER $LOGNAME $E2B_SANDBOX $FROM_BIND $PATH", 0,
              "/home/user user user true 1 /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n");
    sh_expect("ls /proc/self/fd | wc -l", 0, "4\n"); /* 0 1 2 and the directory itself */
    sh_expect("echo by-name > /proc/self/fd/1", 0, "by-name\n");
    sh_expect("cat /proc/self/oom_score_adj", 0, "300\n");
    sh_expect("cat; echo end", 0, "end\n"); /* stdin is /dev/null */
    world_sh(&w, "echo out; echo err >&2; kill -9 $$", &c);
    assert_true(c.ended && !c.end.exited && c.end.code == 9);
    assert_string_equal(c.text[1], "out\n");
    assert_string_equal(c.text[2], "err\n");
    /* A zombie factory leaves nothing. */
    sh_expect("for i in $(seq 200); do (sleep 0.01 &) ; done; sleep 0.3; ls -d /proc/[0-9]* | wc -l", 0, NULL);
    sh_expect("grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l", 0, "0\n");
}

static void ignored_outside(void **state)
{
    (void)state;
    sh_expect("grep SigIgn /proc/self/status", 0, "SigIgn:\t0000000000000000\n");
}

static void init_is_out_of_reach(void **state)
{
    (void)state;
    sh_expect("cat /proc/1/environ 2>/dev/null; echo $?", 0, "1\n");
    sh_expect("ls /proc/1/fd 2>/dev/null; ls /proc/1/root/ 2>/dev/null; echo x", 0, "x\n");
    sh_expect("for s in $(seq 1 31); do kill -$s 1 2>/dev/null; done; echo alive", 0, "alive\n");
    sh_expect("unshare -U true 2>/dev/null; mount -t tmpfs x /tmp 2>/dev/null; echo x", 0, "x\n");
    sh_expect("grep -E 'Seccomp:|NoNewPrivs|CapEff' /proc/self/status | tr -d '\\t\\n'", 0, NULL);
}

struct failure {
    struct exec_spec spec;
    enum link_code code;
    const char *text;
};

static void refusals(void **state)
{
    (void)state;
    static const struct failure cases[] = {
        {{.cmd = "no-such-command"}, LINK_NOT_FOUND, "command 'no-such-command' not found in PATH"},
        {{.cmd = "/no/such"}, LINK_NOT_FOUND, "command '/no/such' not found"},
        {{.cmd = "true", .cwd = "/nowhere"}, LINK_INVALID, "cwd '/nowhere' does not exist"},
        {{.cmd = "true", .cwd = "/proc/self/fd/3"}, LINK_INVALID, NULL},
        {{.cmd = "true", .user = "nobody-here"}, LINK_NO_USER, "invalid username: 'nobody-here'"},
        {{.cmd = "/etc/passwd"}, LINK_DENIED, NULL},
        {{.cmd = ""}, LINK_INVALID, "the command is empty"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct capture c = {0};
        c.x = exec_start(w.links, WORLD_ID, &cases[i].spec, &capture_ops, &c);
        assert_true(world_wait(&w, &c.over, AWAIT_MS));
        assert_true(c.failed && !c.started);
        if (c.st.code != cases[i].code)
            print_message("%zu: %d %s\n", i, (int)c.st.code, c.st.text);
        assert_int_equal(c.st.code, cases[i].code);
        if (cases[i].text)
            assert_string_equal(c.st.text, cases[i].text);
    }
}

static void as_root(void **state)
{
    (void)state;
    struct capture c = {0};
    const char *const args[] = {
        "-c", "id -u; echo $HOME; echo x > /etc/new && cat /etc/new; grep CapEff /proc/self/status", NULL};
    struct exec_spec s = {.cmd = "sh", .args = args, .user = "root"};
    c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
    assert_true(world_wait(&w, &c.over, AWAIT_MS) && c.ended);
    assert_string_equal(c.text[1], "0\n/root\nx\nCapEff:\t00000000200405fb\n");
}

static void as_root_strict(void **state)
{
    (void)state;
    struct capture c = {0};
    const char *const args[] = {"-c", "id -u; grep -E 'CapEff|NoNewPrivs|CapBnd' /proc/self/status", NULL};
    struct exec_spec s = {.cmd = "sh", .args = args, .user = "root"};
    c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
    assert_true(world_wait(&w, &c.over, AWAIT_MS));
    assert_true(c.ended);
    assert_string_equal(c.text[1], "0\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\n");
}

static void input(void **state)
{
    (void)state;
    struct capture c = {0};
    struct status_sandbox b = {0};
    struct exec_spec s = {.cmd = "wc", .args = (const char *const[]){"-c", NULL}, .stdin_open = true, .tag = "counter"};
    struct exec_select who = {.tag = "counter"};
    c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
    assert_true(world_wait(&w, &c.started, AWAIT_MS));
    size_t n = 1000000;
    char *p = calloc(1, n);
    (void)exec_input(w.links, WORLD_ID, &who, p, n, status_done, &b);
    free(p);
    assert_true(world_wait(&w, &b.done, AWAIT_MS));
    assert_int_equal(b.st.code, LINK_OK);
    b.done = false;
    (void)exec_close_input(w.links, WORLD_ID, &who, status_done, &b);
    assert_true(world_wait(&w, &b.done, AWAIT_MS) && b.st.code == LINK_OK);
    assert_true(world_wait(&w, &c.over, AWAIT_MS) && c.ended);
    assert_string_equal(c.text[1], "1000000\n");
    b.done = false;
    (void)exec_input(w.links, WORLD_ID, &who, "x", 1, status_done, &b);
    assert_true(world_wait(&w, &b.done, AWAIT_MS));
    assert_int_equal(b.st.code, LINK_NOT_FOUND);
}

static void signals(void **state)
{
    (void)state;
    struct capture c = {0};
    struct status_sandbox b = {0};
    struct exec_spec s = {.cmd = "sh", .args = (const char *const[]){"-c", "sleep 1000 & echo $!; wait", NULL}};
    c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
    assert_true(world_wait(&w, &c.started, AWAIT_MS));
    struct exec_select who = {.pid = c.pid};
    while (c.n[1] == 0)
        (void)world_wait(&w, &c.over, 10);
    (void)exec_signal(w.links, WORLD_ID, &who, SIGKILL, status_done, &b);
    assert_true(world_wait(&w, &b.done, AWAIT_MS) && b.st.code == LINK_OK);
    /* Its child still holds the pipe; the end does not wait for that. */
    assert_true(world_wait(&w, &c.over, AWAIT_MS) && c.ended);
    assert_true(!c.end.exited && c.end.code == SIGKILL);
    char script[64];
    (void)snprintf(script, sizeof script, "kill -0 %u 2>/dev/null; echo $?", c.pid);
    sh_expect(script, 0, "1\n");
    b.done = false;
    (void)exec_signal(w.links, WORLD_ID, &who, SIGKILL, status_done, &b);
    assert_true(world_wait(&w, &b.done, AWAIT_MS) && b.st.code == LINK_NOT_FOUND);
}

static void waits_for_pipes(void **state)
{
    (void)state;
    struct capture c;
    long t = now_ms();
    world_sh(&w, "(sleep 0.5; echo late) & exit 0", &c);
    assert_true(c.ended && c.end.exited && c.end.code == 0);
    assert_string_equal(c.text[1], "late\n");
    assert_true(now_ms() - t >= 450);
}

static void terminal(void **state)
{
    (void)state;
    struct capture c = {0};
    struct status_sandbox b = {0};
    struct exec_spec s = {
        .cmd = "bash", .args = (const char *const[]){"--norc", "-i", NULL}, .pty = true, .cols = 80, .rows = 24};
    c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
    assert_true(world_wait(&w, &c.started, AWAIT_MS));
    struct exec_select who = {.pid = c.pid};
    (void)exec_input(w.links, WORLD_ID, &who, "stty size\n", 10, status_done, &b);
    AWAIT (strstr(c.text[3], "24 80"))
        (void)world_wait(&w, &c.over, 20);
    assert_non_null(strstr(c.text[3], "24 80"));
    b.done = false;
    (void)exec_resize(w.links, WORLD_ID, &who, 100, 40, status_done, &b);
    assert_true(world_wait(&w, &b.done, AWAIT_MS) && b.st.code == LINK_OK);
    (void)exec_input(w.links, WORLD_ID, &who, "stty size; tty; exit 7\n", 23, status_done, &b);
    assert_true(world_wait(&w, &c.over, AWAIT_MS) && c.ended);
    assert_non_null(strstr(c.text[3], "40 100"));
    assert_non_null(strstr(c.text[3], "/dev/pts/"));
    assert_int_equal(c.end.code, 7);
}

/* A gigabyte through one ring, nothing lost. */
static void much_output(void **state)
{
    (void)state;
    struct capture c;
    long t = now_ms();
    uint64_t bytes = getenv("HUTCH_QUICK") ? 64 << 20 : 1 << 30;
    char script[64];
    (void)snprintf(script, sizeof script, "head -c %lu /dev/zero", (unsigned long)bytes);
    world_sh(&w, script, &c);
    assert_true(c.ended && c.end.code == 0);
    assert_int_equal(c.total[1], bytes);
    assert_int_equal(c.gap, 0);
    print_message("%lu MiB in %ld ms\n", (unsigned long)(bytes >> 20), now_ms() - t);
}

static void slow_reader(void **state)
{
    (void)state;
    struct capture c = {.pause_after = 100000};
    struct exec_spec s = {.cmd = "sh",
                          .args = (const char *const[]){"-c", "head -c 3000000 /dev/zero; echo done >&2", NULL}};
    c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
    assert_true(world_wait(&w, &c.paused, AWAIT_MS));
    bool never = false;
    (void)world_wait(&w, &never, 300);
    assert_true(c.total[1] < 200000 && c.n[2] == 0); /* it stands still */
    c.pause_after = 0;
    exec_resume(c.x);
    assert_true(world_wait(&w, &c.over, AWAIT_MS) && c.ended);
    assert_int_equal(c.total[1], 3000000);
    assert_int_equal(c.gap, 0);
}

static void nobody_listens(void **state)
{
    (void)state;
    /* Without keep_output the oldest bytes go and the command runs on. */
    struct capture c = {0}, d = {0};
    static const char script[] = "until [ -e /tmp/q1 ]; do sleep 0.02; done; head -c 1000000 /dev/zero; echo; "
                                 "touch /tmp/q2; until [ -e /tmp/q3 ]; do sleep 0.02; done; echo end";
    struct exec_spec s = {.cmd = "sh", .args = (const char *const[]){"-c", script, NULL}, .tag = "quiet"};
    struct exec_select who = {.tag = "quiet"};
    c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
    assert_true(world_wait(&w, &c.started, AWAIT_MS));
    exec_detach(c.x);
    sh_expect("touch /tmp/q1; while [ ! -e /tmp/q2 ]; do sleep 0.02; done", 0, "");
    const uint64_t from[4] = {0};
    d.x = exec_attach(w.links, WORLD_ID, &who, from, &capture_ops, &d);
    assert_true(world_wait(&w, &d.started, AWAIT_MS));
    sh_expect("touch /tmp/q3", 0, "");
    assert_true(world_wait(&w, &d.over, AWAIT_MS) && d.ended);
    assert_true(d.started && d.pid == c.pid);
    assert_int_equal(d.next[1], 1000005);
    assert_int_equal(d.first[1], 1000001 - INIT_RING_DEFAULT);
    assert_int_equal(d.end.omitted[1], 1000001 - INIT_RING_DEFAULT);
}

static void attach_again(void **state)
{
    (void)state;
    struct capture c = {0}, d = {0}, e = {0};
    static const char script[] = "echo one; while [ ! -e /tmp/two ]; do sleep 0.02; done; echo two; sleep 0.2";
    struct exec_spec s = {.cmd = "sh", .args = (const char *const[]){"-c", script, NULL}, .keep_output = true};
    c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
    while (c.n[1] < 4)
        (void)world_wait(&w, &c.over, 10);
    struct exec_select who = {.pid = c.pid};
    exec_detach(c.x);
    const uint64_t from[4] = {0, 4, 0, 0}, live[4] = {0, UINT64_MAX, UINT64_MAX, UINT64_MAX}, all[4] = {0};
    d.x = exec_attach(w.links, WORLD_ID, &who, from, &capture_ops, &d);
    e.x = exec_attach(w.links, WORLD_ID, &who, live, &capture_ops, &e);
    assert_true(world_wait(&w, &d.started, AWAIT_MS) && world_wait(&w, &e.started, AWAIT_MS));
    sh_expect("touch /tmp/two", 0, "");
    assert_true(world_wait(&w, &d.over, AWAIT_MS) && d.ended);
    assert_true(world_wait(&w, &e.over, AWAIT_MS) && e.ended);
    assert_string_equal(d.text[1], "two\n");
    assert_string_equal(e.text[1], "two\n");
    /* The end is kept: a third one sees all of it. */
    memset(&d, 0, sizeof d);
    d.x = exec_attach(w.links, WORLD_ID, &who, all, &capture_ops, &d);
    assert_true(world_wait(&w, &d.over, AWAIT_MS) && d.ended);
    assert_string_equal(d.text[1], "one\ntwo\n");
    who.pid = 99999;
    memset(&d, 0, sizeof d);
    d.x = exec_attach(w.links, WORLD_ID, &who, all, &capture_ops, &d);
    assert_true(world_wait(&w, &d.over, AWAIT_MS) && d.failed);
    assert_int_equal(d.st.code, LINK_NOT_FOUND);
}

/* front dies and another one comes: nothing is lost. */
static void reader_dies(void **state)
{
    (void)state;
    struct capture c = {0}, d = {0};
    struct err err;
    struct exec_spec s = {
        .cmd = "sh",
        .args = (const char *const[]){"-c", "for i in $(seq 1 500); do echo $i; done; sleep 0.3; echo last", NULL},
        .keep_output = true};
    c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
    while (c.n[1] < 100)
        (void)world_wait(&w, &c.over, 10);
    struct exec_select who = {.pid = c.pid};
    uint64_t from[4] = {0, c.next[1], 0, 0};
    exec_detach(c.x);
    links_free(w.links);
    assert_int_equal(links_new(w.loop, w.run_dir, &w.links, &err), 0);
    d.x = exec_attach(w.links, WORLD_ID, &who, from, &capture_ops, &d);
    assert_true(world_wait(&w, &d.over, AWAIT_MS) && d.ended);
    assert_int_equal(d.first[1], from[1]);
    assert_int_equal(d.next[1], 1892 + 5);
    assert_int_equal(d.gap, 0);
}

struct listed {
    bool done;
    size_t n;
    char text[512];
};
static void on_list(void *arg, const struct link_status *st, const struct exec_info *v, size_t n)
{
    struct listed *l = arg;
    assert_int_equal(st->code, LINK_OK);
    l->n = n;
    if (n > 0)
        (void)snprintf(l->text, sizeof l->text, "%s %s %s %s %s %d", v[0].cmd, v[0].args[0], v[0].env[0], v[0].cwd,
                       v[0].tag, v[0].pty);
    l->done = true;
}

static void lists(void **state)
{
    (void)state;
    struct capture c = {0};
    struct listed l = {0};
    struct status_sandbox b = {0};
    struct exec_spec s = {.cmd = "sleep",
                          .args = (const char *const[]){"100", NULL},
                          .env = (const char *const[]){"A=b", NULL},
                          .cwd = "/tmp",
                          .tag = "sleeper"};
    c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
    assert_true(world_wait(&w, &c.started, AWAIT_MS));
    (void)exec_list(w.links, WORLD_ID, on_list, &l);
    assert_true(world_wait(&w, &l.done, AWAIT_MS));
    assert_int_equal(l.n, 1);
    assert_string_equal(l.text, "sleep 100 A=b /tmp sleeper 0");
    struct exec_select who = {.tag = "sleeper"};
    (void)exec_signal(w.links, WORLD_ID, &who, SIGTERM, status_done, &b);
    assert_true(world_wait(&w, &c.over, AWAIT_MS) && c.ended && !c.end.exited && c.end.code == SIGTERM);
}

/* Long arguments travel in a memfd. */
static void long_command(void **state)
{
    (void)state;
    struct capture c = {0};
    size_t n = 120000;
    char *script = malloc(n + 1);
    memset(script, ' ', n);
    memcpy(script + n - 11, "echo at-end", 12);
    world_sh(&w, script, &c);
    free(script);
    assert_true(c.ended && c.end.code == 0);
    assert_string_equal(c.text[1], "at-end\n");
}

static void many_commands(void **state)
{
    (void)state;
    enum { N = 40 };
    static struct capture c[N];
    struct exec_spec s = {.cmd = "sh", .args = (const char *const[]){"-c", "sleep 0.1; echo $$", NULL}};
    memset(c, 0, sizeof c);
    long t = now_ms();
    for (int i = 0; i < N; i++)
        c[i].x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c[i]);
    for (int i = 0; i < N; i++) {
        assert_true(world_wait(&w, &c[i].over, AWAIT_MS) && c[i].ended);
        char pid[16];
        (void)snprintf(pid, sizeof pid, "%u\n", c[i].pid);
        assert_string_equal(c[i].text[1], pid);
    }
    print_message("%d commands in %ld ms\n", N, now_ms() - t);
    t = now_ms();
    for (int i = 0; i < 100; i++)
        sh_expect("exit 0", 0, "");
    print_message("100 commands one after the other in %ld ms\n", now_ms() - t);
}

static long init_status_kb(const char *key)
{
    char path[64], line[256];
    long kb = -1;
    (void)snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)w.pid);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0)
            (void)sscanf(line + strlen(key), " %ld", &kb);
    (void)fclose(f);
    return kb;
}

/* What the kernel holds for the output that init keeps; init maps it only while a command runs. */
static long init_rings_kb(void)
{
    char path[64], name[64];
    struct stat st;
    long kb = 0;
    for (int fd = 0; fd < 4096; fd++) {
        (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)w.pid, fd);
        ssize_t n = readlink(path, name, sizeof name - 1);
        name[n > 0 ? n : 0] = '\0';
        if (strstr(name, "memfd:output") && stat(path, &st) == 0)
            kb += (long)st.st_blocks / 2;
    }
    return kb;
}

static void on_count(void *arg, const struct link_status *st, const struct exec_info *v, size_t n)
{
    struct listed *l = arg;
    (void)v;
    assert_int_equal(st->code, LINK_OK);
    l->n = n;
    l->done = true;
}

/* The dead keep their ends, in numbers and bytes that are bounded. */
static void records(void **state)
{
    (void)state;
    enum { N = 300 };
    static struct capture c[N];
    struct exec_spec s = {.cmd = "sh",
                          .args = (const char *const[]){"-c", "sleep 0.1; head -c 200000 /dev/zero", NULL}};
    memset(c, 0, sizeof c);
    print_message("init's own memory: %ld KiB\n", init_status_kb("Private_Dirty:"));
    for (int i = 0; i < N; i++) {
        c[i].x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c[i]);
        assert_true(world_wait(&w, &c[i].started, AWAIT_MS));
        if (c[i].x)
            exec_detach(c[i].x); /* nobody will ever acknowledge it */
    }
    struct listed l = {.n = 1};
    AWAIT (l.n == 0) { /* until a busy machine has run them all */
        l.done = false;
        (void)exec_list(w.links, WORLD_ID, on_count, &l);
        assert_true(world_wait(&w, &l.done, AWAIT_MS));
    }
    assert_int_equal(l.n, 0);
    long kb = init_rings_kb() + init_status_kb("Private_Dirty:");
    print_message("with %d dead commands: %ld KiB\n", N, kb);
    assert_true(kb > 4096 && kb < 20000);
    const uint64_t from[4] = {0};
    struct capture d = {0};
    struct exec_select who = {.pid = c[N - 1].pid};
    d.x = exec_attach(w.links, WORLD_ID, &who, from, &capture_ops, &d);
    assert_true(world_wait(&w, &d.over, AWAIT_MS) && d.ended && d.end.exited && d.end.code == 0);
    assert_int_equal(d.total[1], 200000);
    memset(&d, 0, sizeof d);
    who.pid = c[N - 200].pid; /* its bytes are gone, its end is not */
    d.x = exec_attach(w.links, WORLD_ID, &who, from, &capture_ops, &d);
    assert_true(world_wait(&w, &d.over, AWAIT_MS) && d.ended && d.end.exited);
    assert_int_equal(d.total[1], 0);
    assert_int_equal(d.end.omitted[1], 200000);
    memset(&d, 0, sizeof d);
    who.pid = c[0].pid;
    d.x = exec_attach(w.links, WORLD_ID, &who, from, &capture_ops, &d);
    assert_true(world_wait(&w, &d.over, AWAIT_MS) && d.failed && d.st.code == LINK_NOT_FOUND);
}

static void too_many(void **state)
{
    (void)state;
    enum { N = 257 };
    static struct capture c[N];
    struct status_sandbox b = {0};
    struct exec_spec s = {.cmd = "sleep", .args = (const char *const[]){"100", NULL}};
    memset(c, 0, sizeof c);
    for (int i = 0; i < N; i++) {
        c[i].x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c[i]);
        assert_true(world_wait(&w, i < N - 1 ? &c[i].started : &c[i].over, AWAIT_MS));
    }
    assert_true(c[N - 1].failed);
    assert_int_equal(c[N - 1].st.code, LINK_LIMIT);
    for (int i = 0; i < N - 1; i++) {
        struct exec_select who = {.pid = c[i].pid};
        b.done = false;
        (void)exec_signal(w.links, WORLD_ID, &who, SIGKILL, status_done, &b);
        assert_true(world_wait(&w, &c[i].over, AWAIT_MS) && c[i].ended);
    }
    sh_expect("echo room", 0, "room\n");
}

static int raw_connect(void)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, world_socket_type | SOCK_CLOEXEC, 0);
    (void)snprintf(sa.sun_path, sizeof sa.sun_path, "%s/%s.sock", w.dir, WORLD_ID);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    return fd;
}

/* Sends one message whole, as the socket has it: a packet, or a frame. */
static ssize_t raw_send(int fd, const struct init_head *h, int flags)
{
    unsigned char msg[FRAME_HEAD + sizeof *h];
    bool stream = world_socket_type == SOCK_STREAM;
    frame_put_head(msg, sizeof *h);
    memcpy(msg + FRAME_HEAD, h, sizeof *h);
    size_t skip = stream ? 0 : FRAME_HEAD;
    ssize_t n = send(fd, msg + skip, sizeof msg - skip, flags | MSG_NOSIGNAL);
    assert_true(n < 0 || (size_t)n == sizeof msg - skip);
    return n < 0 ? -1 : (ssize_t)sizeof *h;
}

static bool raw_recv(int fd, unsigned char *buf, size_t size)
{
    uint32_t n;
    if (world_socket_type != SOCK_STREAM)
        return recv(fd, buf, size, 0) > 0;
    return recv(fd, &n, sizeof n, MSG_WAITALL) == sizeof n && n <= size && recv(fd, buf, n, MSG_WAITALL) == (ssize_t)n;
}

/* A front that asks and never reads: its own connection stands still, nobody else's. */
static void deaf_front(void **state)
{
    (void)state;
    struct init_head h = {.version = INIT_VERSION, .type = INIT_LIST};
    int fd = raw_connect();
    int sent = 0;
    while (sent < 100000) {
        h.request = (uint64_t)++sent;
        if (raw_send(fd, &h, MSG_DONTWAIT) < 0) {
            assert_int_equal(errno, EAGAIN);
            break;
        }
        if (sent % 64 == 0)
            (void)usleep(200);
    }
    assert_true(sent < 100000);
    sh_expect("echo still here", 0, "still here\n");
    /* It hears everything when it listens again, in order. */
    unsigned char buf[256];
    struct timeval t = {.tv_sec = AWAIT_S};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    for (int i = 1; i < sent; i++) {
        assert_true(raw_recv(fd, buf, sizeof buf));
        memcpy(&h, buf, sizeof h);
        assert_int_equal(h.request, i);
    }
    (void)close(fd);
}

static void lost_front(void **state)
{
    (void)state;
    static const struct init_head bad[] = {
        {.version = 9, .type = INIT_HELLO, .request = 1},
        {.version = INIT_VERSION, .type = INIT_HELLO, .request = 0},
        {.version = INIT_VERSION, .type = INIT_HELLO, .request = 1, .length = 5},
        {.version = INIT_VERSION, .type = INIT_HELLO, .request = 1, .flags = INIT_F_MEMFD, .length = 5},
        {.version = INIT_VERSION, .type = INIT_HELLO, .request = 1, .zero = 1},
    };
    char c;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        int fd = raw_connect();
        assert_int_equal(raw_send(fd, &bad[i], 0), sizeof bad[i]);
        assert_int_equal(recv(fd, &c, 1, 0), 0); /* dropped */
        (void)close(fd);
    }
    /* More connections than it takes. */
    int fds[20];
    for (int i = 0; i < 20; i++)
        fds[i] = raw_connect();
    (void)usleep(50000);
    for (int i = 0; i < 20; i++)
        (void)close(fds[i]);
    sh_expect("echo fine", 0, "fine\n");
}

/* What the tenant can do to init and its helpers. */
static void hostile(void **state)
{
    (void)state;
    struct capture c;
    world_sh(&w, "kill -9 -1", &c); /* everything of this user, itself too on some systems */
    assert_true(c.ended);
    sh_expect("echo alive", 0, "alive\n");
    /* Somebody else's pipes, endless output after a kill, closed streams. */
    struct status_sandbox b = {0};
    struct exec_spec s = {.cmd = "sh", .args = (const char *const[]){"-c", "yes & exec yes", NULL}};
    memset(&c, 0, sizeof c);
    c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
    assert_true(world_wait(&w, &c.started, AWAIT_MS));
    struct exec_select who = {.pid = c.pid};
    (void)exec_signal(w.links, WORLD_ID, &who, SIGKILL, status_done, &b);
    assert_true(world_wait(&w, &c.over, AWAIT_MS) && c.ended);
    sh_expect("exec >&- 2>&-; sleep 0.2; exit 4", 4, "");
    /* A user database that is a FIFO, a directory, or gone. */
    const char *const spoil[] = {"mkfifo /etc/passwd", "mkdir /etc/passwd", "ln -s /proc/self/mem /etc/passwd", "true"};
    for (size_t i = 0; i < ARRAY_LEN(spoil); i++) {
        c.failed = false;
        for (unsigned ms = 300; !c.failed && ms < 30000; ms *= 3) { /* a busy machine may ask before or after that */
            char script[256];
            struct exec_spec r = {.cmd = "sh", .args = (const char *const[]){"-c", script, NULL}, .user = "root"};
            (void)snprintf(script, sizeof script,
                           "mv /etc/passwd /etc/p; %s; sleep %u.%u; rm -rf /etc/passwd; mv /etc/p /etc/passwd",
                           spoil[i], ms / 1000, ms % 1000 / 100);
            struct capture x = {0};
            x.x = exec_start(w.links, WORLD_ID, &r, &capture_ops, &x);
            assert_true(world_wait(&w, &x.started, AWAIT_MS));
            bool never = false;
            (void)world_wait(&w, &never, ms / 3);
            world_sh(&w, "true", &c);
            assert_true(world_wait(&w, &x.over, AWAIT_MS));
        }
        assert_true(c.failed && c.st.code == LINK_NO_USER);
    }
    sh_expect("echo again", 0, "again\n");
}

/* The set-uid bit counts under `computer` alone. */
static void set_uid(void **state)
{
    const char *want = *state;
    struct capture c = {0};
    struct exec_spec s = {
        .cmd = "sh",
        .args = (const char *const[]){"-c", "cp /usr/bin/id /root-id; chmod 4755 /root-id; chmod 755 /root", NULL},
        .user = "root"};
    c.x = exec_start(w.links, WORLD_ID, &s, &capture_ops, &c);
    assert_true(world_wait(&w, &c.over, AWAIT_MS) && c.ended);
    sh_expect("/root-id -u", 0, want);
}

static void set_uid_computer(void **state)
{
    *state = (void *)(uintptr_t) "0\n";
    set_uid(state);
}
static void set_uid_strict(void **state)
{
    *state = (void *)(uintptr_t) "1000\n";
    set_uid(state);
}

static void uncommitted_dies(void **state)
{
    (void)state;
    struct world u;
    int status;
    assert_true(world_start(&u, false, 0));
    (void)close(u.sync);
    u.sync = -1;
    assert_int_equal(waitpid(u.pid, &status, 0), u.pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    u.pid = 0;
    struct status_sandbox b = {0};
    (void)link_hello(u.links, WORLD_ID, status_done, &b);
    assert_true(world_wait(&u, &b.done, AWAIT_MS));
    assert_int_equal(b.st.code, LINK_GONE);
    world_stop(&u);
}

static void phases(void **state)
{
    (void)state;
    struct world u;
    struct capture c;
    struct status_sandbox b = {0};
    assert_true(world_start(&u, false, 0));
    (void)link_hello(u.links, WORLD_ID, status_done, &b);
    assert_true(world_wait(&u, &b.done, AWAIT_MS) && b.st.code == LINK_STATE);
    world_sh(&u, "true", &c);
    assert_true(c.failed && c.st.code == LINK_STATE);
    world_commit(&u);
    world_bind(&u);
    b.done = false;
    (void)link_hello(u.links, WORLD_ID, status_done, &b);
    assert_true(world_wait(&u, &b.done, AWAIT_MS) && b.st.code == LINK_OK);
    struct link_bind again = {.hostname = "x", .user = "user"};
    b.done = false;
    (void)link_bind(u.links, WORLD_ID, &again, status_done, &b);
    assert_true(world_wait(&u, &b.done, AWAIT_MS) && b.st.code == LINK_STATE);
    /* The sandbox dies while a command runs. */
    memset(&c, 0, sizeof c);
    struct exec_spec s = {.cmd = "sleep", .args = (const char *const[]){"100", NULL}};
    c.x = exec_start(u.links, WORLD_ID, &s, &capture_ops, &c);
    assert_true(world_wait(&u, &c.started, AWAIT_MS));
    (void)kill(u.pid, SIGKILL);
    assert_true(world_wait(&u, &c.over, AWAIT_MS) && c.failed);
    assert_int_equal(c.st.code, LINK_GONE);
    world_stop(&u);
}

static int run_all(void)
{
    const struct CMUnitTest computer[] = {
        cmocka_unit_test(commands),
        cmocka_unit_test(init_is_out_of_reach),
        cmocka_unit_test(refusals),
        cmocka_unit_test(as_root),
        cmocka_unit_test(input),
        cmocka_unit_test(signals),
        cmocka_unit_test(waits_for_pipes),
        cmocka_unit_test(terminal),
        cmocka_unit_test(much_output),
        cmocka_unit_test(slow_reader),
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(attach_again),
        cmocka_unit_test(reader_dies),
        cmocka_unit_test(lists),
        cmocka_unit_test(long_command),
        cmocka_unit_test(many_commands),
        cmocka_unit_test(records),
        cmocka_unit_test(too_many),
        cmocka_unit_test(deaf_front),
        cmocka_unit_test(lost_front),
        cmocka_unit_test(hostile),
        cmocka_unit_test(set_uid_computer),
        cmocka_unit_test(uncommitted_dies),
        cmocka_unit_test(phases),
    };
    const struct CMUnitTest strict[] = {
        cmocka_unit_test(commands),       cmocka_unit_test(init_is_out_of_reach), cmocka_unit_test(refusals),
        cmocka_unit_test(as_root_strict), cmocka_unit_test(deaf_front),           cmocka_unit_test(set_uid_strict),
        cmocka_unit_test(terminal),
    };
    const struct CMUnitTest deaf[] = {cmocka_unit_test(ignored_outside)};
    int r = cmocka_run_group_tests_name("computer", computer, up, down);
    r += cmocka_run_group_tests_name("deaf", deaf, up_deaf, down);
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
