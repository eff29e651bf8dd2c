/*
 * node-load - one client of a node, fast enough not to be what is measured.
 *
 *     node-load [-p PORT] [-k KEY] [-n RUNS] [-j AT_A_TIME] [-b ID:TOKEN]... MODE [COMMAND [ARGUMENT...]]
 *
 *     life   create a sandbox, run the command in it, kill it        run CREATE FIRST END KILL
 *     exec   run the command in the sandboxes of -b, in turn          run 0 FIRST END 0
 *     fork   the command by fork and exec, without any node           run 0 FIRST END 0; "{}" in an argument: a word of the run's own
 *     make   create sandboxes and leave them alive                    sandbox ID TOKEN NS
 *     kill   kill the sandboxes of -b, or those on stdin as "ID:TOKEN" lines
 *     hold   start the command RUNS times and keep the streams open; "ready NS" once all have started, then until stdin ends
 *
 * Every worker is a thread with a keep-alive connection of its own and blocking calls. Times are in nanoseconds: CREATE is the
 * whole request; FIRST runs from before the request (life: before the create) to the first byte of output, END to the end of
 * the stream (fork: until the process is reaped); KILL is the whole request. The last line is "all WALL_NS FAILURES".
 * The first failure is quoted on stderr; failed runs print no line.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 64 * 1024, SANDBOXES_MAX = 16384, THREADS_MAX = 256 };

struct sandbox {
    char id[64], token[64];
};
struct http {
    int fd;
    size_t at, n; /* unread bytes of in[] */
    char in[ROOM];
};
struct reply {
    int status;
    bool close;
    size_t n; /* of body[], cut to its size */
    char body[ROOM];
    long long first; /* when the first output of a command was seen; 0: never */
};

static struct {
    int port;
    const char *key, *mode;
    long runs, parallel;
    char **command;
    char start[ROOM]; /* a Start request with its envelope */
    size_t nstart;
} o = {.port = 3000, .key = "", .runs = 1, .parallel = 1};

static struct sandbox sandboxes[SANDBOXES_MAX];
static long nboxes;
static _Atomic long next_run, failures;
static pthread_mutex_t out = PTHREAD_MUTEX_INITIALIZER;

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* A number from 0; what stands behind it is not looked at: lines of HTTP end in their own way. */
static long number(const char *text)
{
    long value = strtol(text, NULL, 10);
    return value < 0 ? 0 : value;
}

__attribute__((noreturn)) static void die(const char *what)
{
    fprintf(stderr, "node-load: %s: %s\n", what, strerror(errno));
    exit(125);
}

__attribute__((format(printf, 1, 2))) static void failed(const char *fmt, ...)
{
    if (atomic_fetch_add(&failures, 1) > 0)
        return;
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "node-load: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
}

/* --- HTTP/1.1, as little as is needed ----------------------------------------------------------------------------------- */

static void http_open(struct http *h)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)o.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    h->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    h->at = h->n = 0;
    if (h->fd < 0 || connect(h->fd, (struct sockaddr *)&a, sizeof a) < 0)
        die("connect");
    setsockopt(h->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

static bool http_fill(struct http *h)
{
    if (h->at > 0) {
        memmove(h->in, h->in + h->at, h->n - h->at);
        h->n -= h->at;
        h->at = 0;
    }
    ssize_t r = h->n < ROOM ? read(h->fd, h->in + h->n, ROOM - h->n) : -1;
    if (r > 0)
        h->n += (size_t)r;
    return r > 0;
}

/* The next line without its end; NULL: the connection broke. */
static char *http_line(struct http *h)
{
    size_t seen = 0;
    for (;;) {
        char *from = h->in + h->at, *end = memmem(from + seen, h->n - h->at - seen, "\r\n", 2);
        if (end) {
            *end = 0;
            h->at += (size_t)(end - from) + 2;
            return from;
        }
        seen = h->n - h->at > 0 ? h->n - h->at - 1 : 0;
        if (!http_fill(h))
            return NULL;
    }
}

static bool http_bytes(struct http *h, size_t want, struct reply *r)
{
    while (want > 0) {
        if (h->at == h->n && !http_fill(h))
            return false;
        size_t n = h->n - h->at < want ? h->n - h->at : want;
        if (!r->first && memmem(h->in + h->at, n, "\"stdout\"", 8))
            r->first = now_ns();
        if (n <= sizeof r->body - 1 - r->n) {
            memcpy(r->body + r->n, h->in + h->at, n);
            r->n += n;
        }
        h->at += n;
        want -= n;
    }
    r->body[r->n] = 0;
    return true;
}

static bool read_chunks(struct http *h, struct reply *r, bool only_first)
{
    for (;;) {
        char *line = http_line(h);
        size_t n = line ? strtoul(line, NULL, 16) : 0;
        if (!line || !http_bytes(h, n, r) || !(line = http_line(h)))
            return false;
        if (n == 0 || only_first)
            return true;
    }
}

/* only_first: stop after the first chunk of a stream. */
static bool http_reply(struct http *h, struct reply *r, bool only_first)
{
    char *line = http_line(h);
    long length = -1;
    bool chunked = false;
    r->n = 0;
    r->first = 0;
    r->close = false;
    r->body[0] = 0;
    if (!line || sscanf(line, "HTTP/1.1 %d", &r->status) != 1)
        return false;
    while ((line = http_line(h)) && *line) {
        if (strncasecmp(line, "content-length:", 15) == 0)
            length = number(line + 15);
        else if (strncasecmp(line, "transfer-encoding:", 18) == 0)
            chunked = strstr(line, "chunked");
        else if (strncasecmp(line, "connection:", 11) == 0)
            r->close = strstr(line, "close");
    }
    if (!line)
        return false;
    if (chunked)
        return read_chunks(h, r, only_first);
    return length <= 0 || http_bytes(h, (size_t)length, r);
}

static bool http_send(struct http *h, const char *head, size_t nhead, const char *body, size_t n)
{
    char all[2 * ROOM];
    if (nhead + n > sizeof all)
        return false;
    memcpy(all, head, nhead);
    memcpy(all + nhead, body, n);
    for (size_t at = 0; at < nhead + n;) {
        ssize_t w = write(h->fd, all + at, nhead + n - at);
        if (w <= 0)
            return false;
        at += (size_t)w;
    }
    return true;
}

static bool http_do(struct http *h, const char *head, size_t nhead, const char *body, size_t n, struct reply *r)
{
    bool good = http_send(h, head, nhead, body, n) && http_reply(h, r, false);
    if (!good || r->close) {
        close(h->fd);
        http_open(h);
    }
    return good;
}

/* --- what a client does -------------------------------------------------------------------------------------------------- */

static bool take(const char *body, const char *field, char *ret, size_t room)
{
    char name[64];
    int n = snprintf(name, sizeof name, "\"%s\":\"", field);
    const char *from = strstr(body, name);
    const char *end = from ? strchr(from + n, '"') : NULL;
    if (!end || (size_t)(end - from - n) >= room)
        return false;
    memcpy(ret, from + n, (size_t)(end - from - n));
    ret[end - from - n] = 0;
    return true;
}

static bool create(struct http *h, struct reply *r, struct sandbox *ret)
{
    static const char body[] = "{\"templateID\":\"host\",\"timeout\":3000}";
    char head[512];
    int n =
        snprintf(head, sizeof head,
                 "POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: %s\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\n\r\n",
                 o.key, sizeof body - 1);
    if (http_do(h, head, (size_t)n, body, sizeof body - 1, r) && r->status == 201 &&
        take(r->body, "sandboxID", ret->id, sizeof ret->id) &&
        take(r->body, "envdAccessToken", ret->token, sizeof ret->token))
        return true;
    failed("create: %d %.300s", r->status, r->body);
    return false;
}

static bool kill_sandbox(struct http *h, struct reply *r, const struct sandbox *b)
{
    char head[512];
    int n = snprintf(head, sizeof head, "DELETE /sandboxes/%s HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: %s\r\n\r\n",
                     b->id, o.key);
    if (http_do(h, head, (size_t)n, "", 0, r) && r->status == 204)
        return true;
    failed("kill: %d %.300s", r->status, r->body);
    return false;
}

static size_t start_head(const struct sandbox *b, char *ret, size_t room)
{
    return (size_t)snprintf(ret, room,
                            "POST /process.Process/Start HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: %s\r\n"
                            "E2b-Sandbox-Port: 49983\r\nX-Access-Token: %s\r\nAuthorization: Basic dXNlcjo=\r\n"
                            "Content-Type: application/connect+json\r\nContent-Length: %zu\r\n\r\n",
                            b->id, b->token, o.nstart);
}

static bool start(struct http *h, struct reply *r, const struct sandbox *b)
{
    char head[1024];
    size_t n = start_head(b, head, sizeof head);
    if (http_do(h, head, n, o.start, o.nstart, r) && r->status == 200 && memmem(r->body, r->n, "\"end\"", 5))
        return true;
    failed("start: %d %.300s", r->status, r->n > 5 ? r->body + 5 : r->body);
    return false;
}

static void tell(long long create_ns, long long first, long long end, long long kill_ns)
{
    pthread_mutex_lock(&out);
    printf("run %lld %lld %lld %lld\n", create_ns, first, end, kill_ns);
    pthread_mutex_unlock(&out);
}

static void life(struct http *h, struct reply *r)
{
    struct sandbox b;
    long long t0 = now_ns();
    if (!create(h, r, &b))
        return;
    long long t1 = now_ns();
    bool good = start(h, r, &b);
    long long first = r->first, t2 = now_ns();
    if (kill_sandbox(h, r, &b) && good)
        tell(t1 - t0, first ? first - t0 : 0, t2 - t0, now_ns() - t2);
}

static void exec_one(struct http *h, struct reply *r, long serial)
{
    long long t0 = now_ns();
    if (start(h, r, &sandboxes[serial % nboxes]))
        tell(0, r->first ? r->first - t0 : 0, now_ns() - t0, 0);
}

static void run_command(long serial)
{
    char word[64];
    snprintf(word, sizeof word, "%d-%ld", (int)getppid(), serial);
    for (int i = 0; o.command[i]; i++) {
        char *at = strstr(o.command[i], "{}"), *with = NULL;
        if (at && asprintf(&with, "%.*s%s%s", (int)(at - o.command[i]), o.command[i], word, at + 2) > 0)
            o.command[i] = with; /* the child's own copy */
    }
    execvp(o.command[0], o.command);
    _exit(127);
}

/* A pipe, fork, exec, read to the end, reap: what a program does that needs no sandbox. */
static void fork_one(long serial)
{
    int p[2];
    char text[4096];
    long long t0 = now_ns(), first = 0;
    if (pipe2(p, O_CLOEXEC) < 0)
        die("pipe");
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0) {
        dup2(p[1], 1);
        run_command(serial);
    }
    close(p[1]);
    while (read(p[0], text, sizeof text) > 0)
        first = first ? first : now_ns();
    close(p[0]);
    int status;
    if (waitpid(pid, &status, 0) == pid && status == 0)
        tell(0, first ? first - t0 : 0, now_ns() - t0, 0);
    else
        failed("fork: status %d", status);
}

static void make_one(struct http *h, struct reply *r)
{
    struct sandbox b;
    long long t0 = now_ns();
    if (!create(h, r, &b))
        return;
    pthread_mutex_lock(&out);
    printf("box %s %s %lld\n", b.id, b.token, now_ns() - t0);
    pthread_mutex_unlock(&out);
}

static void hold_one(struct reply *r, long serial)
{
    static struct http *h; /* what is read at once is never more than the first message */
    char head[1024];
    h = h ? h : malloc(sizeof *h);
    http_open(h);
    size_t n = start_head(&sandboxes[serial % nboxes], head, sizeof head);
    if (!http_send(h, head, n, o.start, o.nstart) || !http_reply(h, r, true) || r->status != 200 ||
        !memmem(r->body, r->n, "\"start\"", 7))
        failed("hold: %d %.300s", r->status, r->n > 5 ? r->body + 5 : r->body);
}

static void *work(void *arg)
{
    struct http *h = malloc(sizeof *h);
    struct reply *r = calloc(1, sizeof *r);
    bool fork_mode = strcmp(o.mode, "fork") == 0, hold = strcmp(o.mode, "hold") == 0;
    if (!fork_mode && !hold)
        http_open(h);
    for (long i; (i = atomic_fetch_add(&next_run, 1)) < o.runs;) {
        if (fork_mode)
            fork_one(i);
        else if (hold)
            hold_one(r, i);
        else if (strcmp(o.mode, "life") == 0)
            life(h, r);
        else if (strcmp(o.mode, "exec") == 0)
            exec_one(h, r, i);
        else if (strcmp(o.mode, "make") == 0)
            make_one(h, r);
        else
            (void)kill_sandbox(h, r, &sandboxes[i]);
    }
    free(h);
    free(r);
    return arg;
}

/* --- command line --------------------------------------------------------------------------------------------------------- */

static void add_sandbox(const char *text)
{
    if (nboxes == SANDBOXES_MAX ||
        sscanf(text, "%63[^:]:%63[^: \n]", sandboxes[nboxes].id, sandboxes[nboxes].token) != 2) {
        fprintf(stderr, "node-load: '%s' is not ID:TOKEN, or is one too many\n", text);
        exit(120);
    }
    nboxes++;
}

/* Adds to the request behind its envelope; its new length. */
__attribute__((format(printf, 2, 3))) static size_t add_text(size_t at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(o.start + 5 + at, sizeof o.start - 5 - at, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof o.start - 5 - at) {
        fprintf(stderr, "node-load: the command is too long\n");
        exit(120);
    }
    return at + (size_t)n;
}

static void make_start(void)
{
    size_t n = add_text(0, "{\"process\":{\"cmd\":\"%s\",\"args\":[", o.command[0]);
    for (int i = 1; o.command[i]; i++)
        n = add_text(n, i > 1 ? ",\"%s\"" : "\"%s\"", o.command[i]);
    n = add_text(n, "%s", "]}}");
    o.start[3] = (char)(n >> 8);
    o.start[4] = (char)n;
    o.nstart = n + 5;
}

static void parse(int argc, char **argv)
{
    int c;
    while ((c = getopt(argc, argv, "+p:k:n:j:b:")) != -1) {
        if (c == 'p')
            o.port = (int)number(optarg);
        else if (c == 'k')
            o.key = optarg;
        else if (c == 'n')
            o.runs = number(optarg);
        else if (c == 'j')
            o.parallel = number(optarg);
        else if (c == 'b')
            add_sandbox(optarg);
        else
            exit(120);
    }
    if (optind == argc || o.parallel < 1 || o.parallel > THREADS_MAX) {
        fprintf(stderr, "usage: node-load [-p PORT] [-k KEY] [-n RUNS] [-j 1..%d] [-b ID:TOKEN] MODE [COMMAND...]\n",
                THREADS_MAX);
        exit(120);
    }
    o.mode = argv[optind];
    o.command = argv + optind + 1;
    if (o.command[0])
        make_start();
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS_MAX];
    char line[256];
    parse(argc, argv);
    bool from_stdin = nboxes == 0 && (strcmp(o.mode, "kill") == 0 || strcmp(o.mode, "exec") == 0);
    while (from_stdin && fgets(line, sizeof line, stdin))
        add_sandbox(line);
    if (strcmp(o.mode, "kill") == 0)
        o.runs = nboxes;
    bool one_thread = o.parallel == 1 || strcmp(o.mode, "hold") == 0;
    long long t0 = now_ns();
    for (long i = 0; i < (one_thread ? 0 : o.parallel); i++)
        if (pthread_create(&threads[i], NULL, work, NULL) != 0)
            die("start a thread");
    if (one_thread)
        work(NULL);
    for (long i = 0; i < (one_thread ? 0 : o.parallel); i++)
        pthread_join(threads[i], NULL);
    long long wall = now_ns() - t0;
    if (strcmp(o.mode, "hold") == 0) {
        printf("ready %lld\n", wall);
        fflush(stdout);
        while (fgets(line, sizeof line, stdin))
            ;
    }
    printf("all %lld %ld\n", wall, (long)failures);
    return 0;
}
