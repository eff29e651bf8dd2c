/*
 * spawn - start one command many times and print what each start cost.
 *
 *     spawn [-n RUNS] [-j AT_A_TIME] [-u UID:GID] [-t SECONDS] -- COMMAND [ARGUMENT...]
 *
 * "{}" in an argument becomes a word that is different in every run. stdin and stdout of the command are /dev/null, stderr
 * is inherited. Output, times in nanoseconds and microseconds, memory in KiB:
 *
 *     run WALL_NS USER_US SYSTEM_US MAXRSS_KIB STATUS        one line per run; STATUS as a shell would say it
 *     all WALL_NS USER_US SYSTEM_US ORPHANS LEFT             once; CPU of everything that was reaped
 *
 * Wall time runs from just before fork() until the command was reaped. CPU and memory come from the kernel's own count of
 * the command and of the descendants it waited for. This program is a subreaper, so that the CPU of descendants which
 * nobody waited for is in the last line; LEFT of them were still alive two seconds after the last run and were killed.
 *
 * SIGTERM or SIGINT kills what runs, waits for it and ends the program with 130, so that nothing outlives a measurement.
 *
 * The program is static and small because a child's peak memory starts with what it has inherited from fork().
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PARALLEL = 64, MAX_ARGS = 256, MAX_WORD = 64, SETTLE_MS = 2000, STEP_MS = 10, STATUS_TIMEOUT = 999 };

struct options {
    long runs, parallel, seconds;
    uid_t uid;
    gid_t gid;
    int switch_user;
    char **command;
};

struct slot {
    pid_t pid; /* 0: free */
    long long start_ns;
    int timed_out;
};

static struct slot slots[MAX_PARALLEL];
static long orphans;
static volatile sig_atomic_t stopping;

static void die(const char *what)
{
    fprintf(stderr, "spawn: %s: %s\n", what, strerror(errno));
    exit(125);
}

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static long long micros(struct timeval t) { return t.tv_sec * 1000000LL + t.tv_usec; }

/* A non-negative number up to the end of the text or up to `stop`; *end is set behind it. */
static long number(const char *text, char stop, const char **end)
{
    char *behind;
    errno = 0;
    long value = strtol(text, &behind, 10);
    if (errno || behind == text || value < 0 || (*behind && *behind != stop)) {
        fprintf(stderr, "spawn: '%s' is not a number that fits here\n", text);
        exit(120);
    }
    if (end)
        *end = behind;
    return value;
}

static void parse(int argc, char **argv, struct options *o)
{
    int c;
    const char *end;
    *o = (struct options){.runs = 1, .parallel = 1, .seconds = 120};
    while ((c = getopt(argc, argv, "+n:j:u:t:")) != -1) {
        switch (c) {
        case 'n':
            o->runs = number(optarg, 0, NULL);
            break;
        case 'j':
            o->parallel = number(optarg, 0, NULL);
            break;
        case 't':
            o->seconds = number(optarg, 0, NULL);
            break;
        case 'u':
            o->uid = (uid_t)number(optarg, ':', &end);
            o->gid = *end ? (gid_t)number(end + 1, 0, NULL) : o->uid;
            o->switch_user = 1;
            break;
        default:
            exit(120);
        }
    }
    if (optind == argc || argc - optind >= MAX_ARGS || o->parallel < 1 || o->parallel > MAX_PARALLEL) {
        fprintf(stderr, "usage: spawn [-n RUNS] [-j 1..%d] [-u UID:GID] [-t SECONDS] -- COMMAND...\n", MAX_PARALLEL);
        exit(120);
    }
    o->command = argv + optind;
}

/* Before anything is timed, so that every contender starts from the same identity for free. */
static void become(const struct options *o)
{
    if (o->switch_user &&
        (setgroups(1, &o->gid) || setresgid(o->gid, o->gid, o->gid) || setresuid(o->uid, o->uid, o->uid)))
        die("change user");
    /* Dropping the user id made the process undumpable, which would hide /proc/self from what it starts. */
    prctl(PR_SET_DUMPABLE, 1);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1))
        die("become subreaper");
}

/* The command with every "{}" replaced; storage is static because only the child about to exec uses it. */
static char **expand(char **command, long serial)
{
    static char *args[MAX_ARGS];
    char word[MAX_WORD];
    snprintf(word, sizeof word, "%d-%ld", (int)getppid(), serial);
    int i = 0;
    for (; command[i]; i++) {
        char *at = strstr(command[i], "{}");
        args[i] = command[i];
        if (at && asprintf(&args[i], "%.*s%s%s", (int)(at - command[i]), command[i], word, at + 2) < 0)
            _exit(125);
    }
    args[i] = NULL;
    return args;
}

static void start(const struct options *o, struct slot *s, long serial, int null)
{
    *s = (struct slot){.start_ns = now_ns()};
    s->pid = fork();
    if (s->pid < 0)
        die("fork");
    if (s->pid == 0) {
        setpgid(0, 0); /* a deadline kills the group */
        if (dup2(null, 0) < 0 || dup2(null, 1) < 0)
            _exit(125);
        char **args = expand(o->command, serial);
        execvp(args[0], args);
        _exit(errno == ENOENT ? 127 : 126);
    }
}

static void finish(struct slot *s, int status, const struct rusage *r)
{
    int code = s->timed_out ? STATUS_TIMEOUT : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    printf("run %lld %lld %lld %ld %d\n", now_ns() - s->start_ns, micros(r->ru_utime), micros(r->ru_stime),
           r->ru_maxrss, code);
    s->pid = 0;
}

static void check_deadlines(long seconds)
{
    for (int i = 0; i < MAX_PARALLEL; i++) {
        int late = now_ns() - slots[i].start_ns > seconds * 1000000000LL;
        if (slots[i].pid && !slots[i].timed_out && (late || stopping)) {
            slots[i].timed_out = 1;
            kill(-slots[i].pid, SIGKILL);
            kill(slots[i].pid, SIGKILL);
        }
    }
}

/* Waits until one of the slots is free again; a tick of the interval timer interrupts it to look at the deadlines. */
static void wait_for_one(long seconds)
{
    for (;;) {
        int status;
        struct rusage r;
        pid_t pid = wait4(-1, &status, 0, &r);
        if (pid < 0 && errno != EINTR)
            die("wait");
        if (pid < 0) {
            check_deadlines(seconds);
            continue;
        }
        for (int i = 0; i < MAX_PARALLEL; i++) {
            if (slots[i].pid == pid) {
                finish(&slots[i], status, &r);
                return;
            }
        }
        orphans++;
    }
}

/* Kills every direct child: in a subreaper those are what the commands have left behind. */
static long kill_children(void)
{
    long count = 0;
    int pid;
    FILE *f = fopen("/proc/thread-self/children", "re");
    while (f && fscanf(f, "%d", &pid) == 1) {
        kill(pid, SIGKILL);
        count++;
    }
    if (f)
        fclose(f);
    return count;
}

/* Reaps what is left over; after a grace period it is killed. Returns how many had to be. */
static long settle(void)
{
    long left = 0;
    struct timespec step = {.tv_nsec = STEP_MS * 1000000L};
    for (int ms = 0; ms < 2 * SETTLE_MS; ms += STEP_MS) {
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            orphans++;
        if (pid < 0 && errno == ECHILD)
            break;
        if (ms >= SETTLE_MS) {
            long killed = kill_children();
            left = killed > left ? killed : left;
        }
        nanosleep(&step, NULL);
    }
    return left;
}

/* Interrupts wait4, which is all that a tick is for. */
static void on_signal(int sig)
{
    if (sig != SIGALRM)
        stopping = 1;
}

int main(int argc, char **argv)
{
    struct options o;
    parse(argc, argv, &o);
    become(&o);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        die("open /dev/null");
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGALRM, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_interval.tv_sec = 1, .it_value.tv_sec = 1}, NULL);

    long long begin = now_ns();
    long started = 0, running = 0;
    while ((started < o.runs && !stopping) || running > 0) {
        for (int i = 0; i < o.parallel && started < o.runs && !stopping; i++) {
            if (slots[i].pid == 0) {
                fflush(stdout); /* or the child's copy of the buffer would be one more thing to fork */
                start(&o, &slots[i], started++, null);
                running++;
            }
        }
        wait_for_one(o.seconds);
        running--;
    }
    long long wall = now_ns() - begin;
    long left = settle();
    if (stopping)
        return 130;
    struct rusage all;
    getrusage(RUSAGE_CHILDREN, &all);
    printf("all %lld %lld %lld %ld %ld\n", wall, micros(all.ru_utime), micros(all.ru_stime), orphans, left);
    return 0;
}
