/* command.c - commands: start, output, end. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "init/init-int.h"
#include "os/pty.h"

enum { PUMP_MAX = 64 * 1024 };

static uint32_t index_of(const struct init *g, const struct command *c) { return (uint32_t)(c - g->command); }

static void command_close_fd(struct init *g, int *fd)
{
    if (*fd < 0)
        return;
    init_unwatch(g, *fd);
    (void)close(TAKE_FD(*fd));
}

static void close_streams(struct init *g, struct command *c)
{
    for (int s = 1; s < INIT_STREAMS; s++) {
        command_close_fd(g, &c->stream[s].fd);
        c->stream[s].watched = false;
    }
    command_close_fd(g, &c->input);
    c->input_watched = false;
}

static void drop_body(struct command *c)
{
    if (c->body)
        (void)munmap(c->body, c->nbody);
    c->body = NULL;
}

void command_free(struct init *g, struct command *c)
{
    attach_drop_command(g, c);
    input_fail_all(g, c);
    close_streams(g, c);
    group_close(&c->cgroup);
    command_close_fd(g, &c->report);
    for (int s = 1; s < INIT_STREAMS; s++)
        ring_close(&c->stream[s].ring);
    drop_body(c);
    c->state = COMMAND_FREE;
    while (g->ncommands > 0 && g->command[g->ncommands - 1].state == COMMAND_FREE)
        g->ncommands--;
}

/* Returns the oldest ended command without an attachment; its record is dropped first. *ret_n: how many have ended. */
static struct command *oldest_record(struct init *g, unsigned *ret_n)
{
    bool attached[COMMANDS_TABLE + 1] = {0};
    struct command *oldest = NULL;
    *ret_n = 0;
    for (uint32_t i = 0; i < g->nattachments; i++)
        if (g->attachment[i].used)
            attached[g->attachment[i].command] = true;
    for (uint32_t i = 0; i < g->ncommands; i++) {
        struct command *c = &g->command[i];
        if (c->state != COMMAND_ENDED)
            continue;
        ++*ret_n;
        if (!attached[i] && (!oldest || c->end_serial < oldest->end_serial))
            oldest = c;
    }
    return oldest;
}

static void trim_records(struct init *g)
{
    unsigned n;
    for (struct command *c; (c = oldest_record(g, &n)) && n > INIT_RECORDS_MAX;)
        command_free(g, c);
}

/* A free place, or NULL. */
static struct command *command_new(struct init *g)
{
    struct command *spare = NULL;
    unsigned living = 0;
    for (uint32_t i = 0; i < g->ncommands; i++) {
        struct command *c = &g->command[i];
        if (c->state == COMMAND_FREE)
            spare = spare ? spare : c;
        else if (c->state != COMMAND_ENDED)
            living++;
    }
    if (!spare && g->ncommands < COMMANDS_TABLE)
        spare = &g->command[g->ncommands];
    if (living >= INIT_COMMANDS_MAX || !spare)
        return NULL;
    if (spare == &g->command[g->ncommands])
        g->ncommands++;
    uint32_t gen = spare->gen + 1;
    memset(spare, 0, sizeof *spare);
    spare->gen = gen;
    spare->report = spare->input = -1;
    spare->cgroup = (struct command_group){.enter = -1, .events = -1, .peak = -1};
    for (int s = 0; s < INIT_STREAMS; s++)
        spare->stream[s].fd = spare->stream[s].ring.fd = -1;
    spare->serial = ++g->serial;
    return spare;
}

struct command *command_find(struct init *g, uint32_t pid, const char *tag)
{
    struct command *found = NULL;
    for (uint32_t i = 0; i < g->ncommands; i++) {
        struct command *c = &g->command[i];
        if (c->state != COMMAND_RUNNING && c->state != COMMAND_ENDED)
            continue;
        if (pid ? (uint32_t)c->pid != pid : tag[0] == '\0' || strcmp(c->tag, tag) != 0)
            continue;
        /* Prefer running commands, then the newest: pids and tags are reused. */
        if (!found || (c->state == COMMAND_RUNNING) > (found->state == COMMAND_RUNNING) ||
            (c->state == found->state && c->serial > found->serial))
            found = c;
    }
    return found;
}

/* --- start -------------------------------------------------------------------------------------------------------- */

static int make_pipe(int *ret_ours, int *ret_theirs, bool ours_reads)
{
    int p[2];
    if (pipe2(p, O_CLOEXEC) < 0)
        return -1;
    *ret_ours = ours_reads ? p[0] : p[1];
    *ret_theirs = ours_reads ? p[1] : p[0];
    return fcntl(*ret_ours, F_SETFL, O_NONBLOCK);
}

static int make_terminal(const struct init *g, struct command *c, struct child_fds *f)
{
    _cleanup_close_ int dev = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int master;
    if (dev < 0 || pty_open_at(dev, &master, &f->tty) < 0)
        return -1;
    c->stream[3].fd = master;
    c->input = fcntl(master, F_DUPFD_CLOEXEC, INIT_FD_NEXT);
    if (c->input < 0 || fcntl(master, F_SETFL, O_NONBLOCK) < 0)
        return -1;
    return ring_open(&c->stream[3].ring, g->ring_size);
}

static int make_pipes(const struct init *g, struct command *c, const struct init_request *r, struct child_fds *f)
{
    if ((r->flags & INIT_SPAWN_STDIN) && make_pipe(&c->input, &f->in, false) < 0)
        return -1;
    if (make_pipe(&c->stream[1].fd, &f->out, true) < 0 || make_pipe(&c->stream[2].fd, &f->err, true) < 0)
        return -1;
    if (ring_open(&c->stream[1].ring, g->ring_size) < 0)
        return -1;
    return ring_open(&c->stream[2].ring, g->ring_size);
}

static int keep_body(struct command *c, const struct init_head *h, const void *body)
{
    c->body = mmap(NULL, h->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (c->body == MAP_FAILED) {
        c->body = NULL;
        return -1;
    }
    memcpy(c->body, body, h->length);
    c->nbody = h->length;
    c->head = *h;
    return 0;
}

static void close_child_fds(const struct child_fds *f)
{
    const int fds[] = {f->in, f->out, f->err, f->tty, f->report};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
}

/* Ends everything that it started: none of it can have left the group. */
static void command_end_limited(struct command *c, enum init_limit why)
{
    c->limit = c->limit ? c->limit : why;
    (void)kill(-c->pid, SIGKILL); /* no such group before its setsid() */
    c->killed = kill(c->pid, SIGKILL) == 0;
}

static int command_launch(struct init *g, struct command *c, const struct init_request *r, const struct init_head *h,
                          const void *body)
{
    struct child_fds f = {-1, -1, -1, -1, -1};
    int eno = 0;
    c->pty = r->flags & INIT_SPAWN_PTY;
    c->keep = r->flags & INIT_SPAWN_KEEP;
    c->has_rights = r->has_rights;
    c->group = r->has_rights && rights_need_group(&r->rights);
    c->own_uid = r->has_rights && (r->rights.flags & INIT_RIGHTS_OWN_USER) ? rights_new_uid(g) : 0;
    c->output_max = r->has_rights ? r->rights.output_max : 0;
    (void)snprintf(c->tag, sizeof c->tag, "%s", r->tag);
    if (keep_body(c, h, body) < 0 || (c->pty ? make_terminal(g, c, &f) : make_pipes(g, c, r, &f)) < 0 ||
        make_pipe(&c->report, &f.report, true) < 0) {
        eno = errno;
    } else {
        c->began_ms = init_clock_ms();
        c->kill_ms = r->timeout_ms ? c->began_ms + r->timeout_ms : 0;
        c->limit_ms = c->has_rights && r->rights.time_ms ? c->began_ms + r->rights.time_ms : 0;
        c->oom_before = init_oom_kills(g);
        c->pid = init_fork(g, COMMAND_SCORE);
        if (c->pid == 0)
            child_run(g, c, r, &f);
        eno = c->pid < 0 ? errno : 0;
    }
    close_child_fds(&f);
    if (c->cgroup.enter >= 0)
        (void)close(TAKE_FD(c->cgroup.enter));
    errno = eno;
    return eno ? -1 : 0;
}

void command_spawn(struct init *g, const struct asker *who, const struct init_request *r, const struct init_head *h,
                   const void *body)
{
    char text[INIT_TEXT_MAX];
    struct command *c = command_new(g);
    if (!c) {
        (void)snprintf(text, sizeof text, "this sandbox is full: %d commands are running already", INIT_COMMANDS_MAX);
        (void)conn_reply(g, who, INIT_LIMIT, text);
        return;
    }
    c->state = COMMAND_STARTING;
    struct attachment *a = attach_new(g, who, c);
    if (!a) {
        command_free(g, c);
        (void)conn_reply(g, who, INIT_LIMIT, "too many attachments in this sandbox (512)");
        return;
    }
    if (r->group && !group_give(g, r->group, c)) {
        command_free(g, c);
        (void)conn_reply(g, who, INIT_STATE, "the cgroup for the memory of this command is not there: try again");
        return;
    }
    if (command_launch(g, c, r, h, body) < 0 ||
        init_watch(g, c->report, EPOLLIN, KIND_REPORT, index_of(g, c), c->gen) < 0) {
        int eno = errno;
        if (c->pid > 0)
            (void)kill(c->pid, SIGKILL);
        command_free(g, c);
        (void)snprintf(text, sizeof text, "cannot start a command: %s%s", strerror(eno),
                       eno == EAGAIN ? " (the sandbox's limit on processes is reached)" : "");
        (void)conn_reply(g, who, eno == EAGAIN || eno == EMFILE ? INIT_LIMIT : INIT_IO, text);
    }
}

/* --- output ------------------------------------------------------------------------------------------------------- */

static void watch_stream(struct init *g, struct command *c, int s)
{
    struct stream *st = &c->stream[s];
    if (st->fd < 0 || st->watched)
        return;
    if (init_watch(g, st->fd, EPOLLIN, KIND_STREAM, index_of(g, c) * INIT_STREAMS + (uint32_t)s, c->gen) == 0)
        st->watched = true;
}

static bool streams_done(const struct command *c)
{
    return c->stream[1].fd < 0 && c->stream[2].fd < 0 && c->stream[3].fd < 0;
}

static uint64_t kept_bytes(const struct command *c)
{
    uint64_t n = 0;
    for (int s = 1; s < INIT_STREAMS; s++)
        n += c->stream[s].ring.head - c->stream[s].ring.tail;
    return n;
}

/* Output of ended commands is kept up to a total: it is dropped first where the end was acknowledged, then from the
 * oldest. The records stay. */
static void trim_rings(struct init *g)
{
    for (;;) {
        struct command *first = NULL;
        uint64_t sum = 0;
        for (uint32_t i = 0; i < g->ncommands; i++) {
            struct command *c = &g->command[i];
            uint64_t n = c->state == COMMAND_ENDED ? kept_bytes(c) : 0;
            sum += n;
            if (n > 0 && (!first || (c->seen_ms != 0) > (first->seen_ms != 0) ||
                          ((c->seen_ms != 0) == (first->seen_ms != 0) && c->end_serial < first->end_serial)))
                first = c;
        }
        if (sum <= RECORD_BYTES_MAX)
            return;
        for (int s = 1; s < INIT_STREAMS; s++)
            ring_forget(&first->stream[s].ring);
    }
}

static void check_end(struct init *g, struct command *c)
{
    if (c->state != COMMAND_RUNNING || !c->reaped || !streams_done(c))
        return;
    input_fail_all(g, c);
    close_streams(g, c);
    drop_body(c);
    for (int s = 1; s < INIT_STREAMS; s++)
        ring_rest(&c->stream[s].ring);
    c->state = COMMAND_ENDED;
    c->ended_ms = g->now_ms;
    c->end_serial = ++g->serial;
    group_ended(g, c);
    c->oom |= init_oom_kills(g) > c->oom_before;
    trim_records(g);
    trim_rings(g);
}

/* Bytes that the command may still write. If there are none and it does, it ends with what it wrote until then. */
static uint64_t command_output_left(struct init *g, struct command *c, int fd)
{
    int waiting = 0;
    uint64_t n = 0;
    if (!c->output_max)
        return UINT64_MAX;
    for (int s = 1; s < INIT_STREAMS; s++)
        n += c->stream[s].ring.head;
    if (n < c->output_max)
        return c->output_max - n;
    if (n == c->output_max && (ioctl(fd, FIONREAD, &waiting) < 0 || waiting == 0))
        return 1; /* its end is to be read */
    if (c->reaped)
        c->limit = c->limit ? c->limit : INIT_LIMIT_OUTPUT;
    else
        command_end_limited(c, INIT_LIMIT_OUTPUT);
    input_fail_all(g, c);
    close_streams(g, c);
    check_end(g, c);
    return 0;
}

void command_pump(struct init *g, struct command *c, int s)
{
    struct stream *st = &c->stream[s];
    bool draining = c->reaped && c->killed;
    if (st->fd < 0)
        return;
    uint64_t limit = attach_limit(g, c, s), left = command_output_left(g, c, st->fd);
    if (left == 0)
        return;
    uint64_t room = limit == UINT64_MAX ? st->ring.size : limit > st->ring.head ? limit - st->ring.head : 0;
    room = room < left ? room : left;
    if (room == 0) { /* wait for the readers; command_resume() continues here */
        if (st->watched)
            init_unwatch(g, st->fd);
        st->watched = false;
        return;
    }
    ssize_t n = ring_fill(&st->ring, st->fd, room < PUMP_MAX ? (size_t)room : PUMP_MAX);
    if (n > 0) {
        if (draining)
            st->drained += (uint64_t)n;
        if (!draining || st->drained < DRAIN_MAX)
            return;
    }
    /* After a kill, read only what the pipes hold now: other processes may keep them open for ever. */
    if (n < 0 && errno == EAGAIN && !draining)
        return;
    command_close_fd(g, &st->fd);
    st->watched = false;
    check_end(g, c);
}

/* Continues to read streams that have room again. */
void command_resume(struct init *g, struct command *c)
{
    for (int s = 1; s < INIT_STREAMS && c->state == COMMAND_RUNNING; s++) {
        watch_stream(g, c, s);
        uint64_t before = UINT64_MAX;
        while (c->reaped && c->killed && c->stream[s].fd >= 0 && c->stream[s].ring.head != before) {
            before = c->stream[s].ring.head;
            command_pump(g, c, s);
        }
    }
}

void command_stream_event(struct init *g, uint32_t index, uint32_t gen)
{
    struct command *c = &g->command[index / INIT_STREAMS];
    if (c->state == COMMAND_RUNNING && c->gen == gen)
        command_pump(g, c, (int)(index % INIT_STREAMS));
}

/* --- started, ended ----------------------------------------------------------------------------------------------- */

static void command_on_started(struct init *g, struct command *c)
{
    c->state = COMMAND_RUNNING;
    attach_started(g, c, NULL);
    command_resume(g, c);
    check_end(g, c);
}

void command_report_event(struct init *g, uint32_t index, uint32_t gen)
{
    struct command *c = &g->command[index];
    struct spawn_report r = {0};
    if (c->state != COMMAND_STARTING || c->gen != gen || c->report < 0)
        return;
    ssize_t n = read(c->report, &r, sizeof r);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    command_close_fd(g, &c->report);
    if (n <= 0) {
        command_on_started(g, c);
        return;
    }
    if (n != (ssize_t)sizeof r || r.code == INIT_OK || r.code >= INIT_CODE_MAX)
        r = (struct spawn_report){.code = INIT_IO, .text = "the command could not be started"};
    r.text[sizeof r.text - 1] = '\0';
    attach_started(g, c, &r);
    c->failed = true;
    if (c->reaped)
        command_free(g, c);
}

void command_reaped(struct init *g, pid_t pid, int status, const struct rusage *usage)
{
    for (uint32_t i = 0; i < g->ncommands; i++) {
        struct command *c = &g->command[i];
        if ((c->state != COMMAND_STARTING && c->state != COMMAND_RUNNING) || c->pid != pid || c->reaped)
            continue;
        c->reaped = true;
        c->status = status;
        c->usage = *usage;
        if (WIFSIGNALED(status))
            c->killed = true;
        if (c->group)
            (void)kill(-pid, SIGKILL);
        if (c->failed) {
            command_free(g, c);
        } else if (c->state == COMMAND_RUNNING) {
            command_resume(g, c);
            check_end(g, c);
        }
        return;
    }
}

void command_tick(struct init *g)
{
    for (uint32_t i = 0; i < g->ncommands; i++) {
        struct command *c = &g->command[i];
        if (c->state == COMMAND_STARTING && !c->failed && g->now_ms > c->began_ms + SPAWN_DEADLINE_MS) {
            struct spawn_report r = {.code = INIT_TIMEOUT, .text = "the command did not start within 10 s"};
            (void)kill(c->pid, SIGKILL);
            command_close_fd(g, &c->report);
            attach_started(g, c, &r);
            c->failed = true;
            if (c->reaped)
                command_free(g, c);
        }
        if (c->kill_ms && g->now_ms >= c->kill_ms) {
            c->kill_ms = 0;
            if ((c->state == COMMAND_STARTING || c->state == COMMAND_RUNNING) && !c->reaped)
                c->killed = kill(c->pid, SIGKILL) == 0;
        }
        if (c->limit_ms && g->now_ms >= c->limit_ms) {
            c->limit_ms = 0;
            if ((c->state == COMMAND_STARTING || c->state == COMMAND_RUNNING) && !c->reaped)
                command_end_limited(c, INIT_LIMIT_TIME);
        }
        if (c->hold_ms && g->now_ms >= c->hold_ms) {
            c->hold_ms = 0;
            command_resume(g, c);
        }
        if (c->state == COMMAND_ENDED && c->seen_ms && g->now_ms - c->seen_ms >= INIT_RECORD_KEEP_MS)
            command_free(g, c);
    }
}

uint64_t command_deadline(const struct init *g)
{
    uint64_t at = UINT64_MAX;
    for (uint32_t i = 0; i < g->ncommands; i++) {
        const struct command *c = &g->command[i];
        uint64_t t = UINT64_MAX;
        if (c->state == COMMAND_STARTING && !c->failed)
            t = c->began_ms + SPAWN_DEADLINE_MS + 1;
        else if (c->state == COMMAND_ENDED && c->seen_ms)
            t = c->seen_ms + INIT_RECORD_KEEP_MS;
        else if (c->state == COMMAND_RUNNING && c->hold_ms)
            t = c->hold_ms;
        if (c->kill_ms && (c->state == COMMAND_STARTING || c->state == COMMAND_RUNNING) && c->kill_ms < t)
            t = c->kill_ms;
        if (c->limit_ms && (c->state == COMMAND_STARTING || c->state == COMMAND_RUNNING) && c->limit_ms < t)
            t = c->limit_ms;
        at = t < at ? t : at;
    }
    return at;
}

/* --- requests about commands -------------------------------------------------------------------------------------- */

/* Returns the running command that the request names, or NULL after an error reply. */
static struct command *command_find_living(struct init *g, const struct asker *who, const struct init_request *r)
{
    char text[INIT_TEXT_MAX];
    struct command *c = command_find(g, r->pid, r->tag);
    if (c && c->state == COMMAND_RUNNING && !c->reaped)
        return c;
    if (r->pid)
        (void)snprintf(text, sizeof text, "process with pid %u not found", r->pid);
    else
        (void)snprintf(text, sizeof text, "process with tag '%s' not found", r->tag);
    (void)conn_reply(g, who, INIT_NOT_FOUND, text);
    return NULL;
}

static void wait_dead(struct init *g, pid_t pid)
{
    const struct timespec pause = {.tv_nsec = 200000};
    for (unsigned i = 0; i < KILL_WAIT_STEPS; i++) {
        siginfo_t info = {0};
        if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT | WNOHANG) < 0 || info.si_pid != 0)
            break;
        (void)nanosleep(&pause, NULL);
    }
    init_reap(g);
}

void command_signal(struct init *g, const struct asker *who, const struct init_request *r)
{
    struct command *c = command_find_living(g, who, r);
    if (!c)
        return;
    if (kill(c->pid, (int)r->number) < 0) { /* not yet reaped, so the pid is still the command's */
        (void)conn_reply(g, who, errno == EPERM ? INIT_DENIED : INIT_IO, strerror(errno));
        return;
    }
    if (r->number == SIGKILL || r->number == SIGTERM)
        c->killed = true;
    /* Reply only after the process is gone: the client must not see a killed process alive. */
    if (r->number == SIGKILL)
        wait_dead(g, c->pid);
    (void)conn_reply(g, who, INIT_OK, "");
}

void command_resize(struct init *g, const struct asker *who, const struct init_request *r)
{
    struct command *c = command_find_living(g, who, r);
    struct winsize size = {.ws_col = (unsigned short)r->cols, .ws_row = (unsigned short)r->rows};
    if (!c)
        return;
    if (!c->pty)
        (void)conn_reply(g, who, INIT_STATE, "the process has no terminal");
    else if (c->input < 0 || pty_set_size(c->input, &size) < 0)
        (void)conn_reply(g, who, INIT_IO, "the terminal is closed");
    else
        (void)conn_reply(g, who, INIT_OK, "");
}

static void put_commands(struct init *g, struct wire_out *o)
{
    struct init_request *r = &g->request;
    uint32_t n = 0;
    for (int count = 1; count >= 0; count--) {
        for (uint32_t i = 0; i < g->ncommands; i++) {
            struct command *c = &g->command[i];
            if (c->state != COMMAND_RUNNING || c->reaped)
                continue;
            if (count) {
                n++;
                continue;
            }
            (void)init_request_parse(&c->head, c->body, c->nbody, r);
            wire_put_u32(o, (uint32_t)c->pid);
            wire_put_u32(o, c->pty);
            wire_put_str(o, r->cmd);
            wire_put_str(o, r->cwd);
            wire_put_str(o, c->tag);
            wire_put_strv(o, r->args + 1, r->nargs - 1);
            wire_put_strv(o, r->env, r->nenv);
        }
        if (count)
            wire_put_u32(o, n);
    }
}

void command_list(struct init *g, const struct asker *who) { (void)conn_reply_big(g, who, put_commands); }
