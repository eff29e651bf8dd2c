/* sandbox.c - a job's access to a living sandbox: its journal record, its first process, its upper; freezing and thawing.
 *
 * keeper alone freezes and thaws. A job asks it to hold the sandbox; the hold ends with the job, however that ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "keeper/outer.h"
#include "layers/layers-int.h"
#include "wall/sandbox.h"

enum { STILL_WAIT_US = 1000, KEEPER_ANSWER_MS = 30000, KEEPER_AGAIN_US = 20000 };

static uint64_t sandbox_now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static int sandbox_read_record(int run_dir, const char *sandbox, struct journal_record *ret)
{
    struct err err = {0};
    _cleanup_close_ int journal = journal_open(run_dir, &err);
    if (journal < 0) {
        errno = EIO; /* not ENOENT, which would say that the sandbox is gone */
        return -1;
    }
    return journal_read_beside(journal, sandbox, ret);
}

/* --- open --------------------------------------------------------------------------------------------------------- */

/* Accepts the upper from the first process only if it is the inode that keeper recorded. */
static int sandbox_take_upper(struct job *j, struct job_sandbox *b, struct err *err)
{
    struct stat st;
    const struct journal_record *r = &b->record;
    if (strcmp(r->template, "host") == 0)
        return job_fail(
            j, LAYERS_BAD_REQUEST, err,
            "the files of a sandbox with the template host cannot be kept: what it shows is this machine, of "
            "which no copy is made; use a template with a root of its own, e.g. base");
    if (r->upper_ino == 0)
        return job_fail(j, LAYERS_HOST, err, "the sandbox %s was made by a version that cannot keep its files", r->id);
    _cleanup_close_ int dir = (int)syscall(SYS_pidfd_getfd, b->pidfd, WALL_SANDBOX_UPPER, 0);
    if (dir < 0 && errno == EPERM)
        return err_set(err, ERR_HOST, 0,
                       "this host does not let us take a descriptor from the sandbox's first process (pidfd_getfd); if "
                       "kernel.yama.ptrace_scope is 3, lower it");
    if (dir < 0 && errno == ESRCH)
        return job_fail(j, LAYERS_NOT_FOUND, err, "the sandbox %s has ended", r->id);
    if (dir < 0)
        return err_set(err, ERR_SETUP, errno, "take the writable layer of %s from its first process", r->id);
    b->upper = openat(dir, "u", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (b->upper < 0 || fstat(b->upper, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "open the writable layer of %s", r->id);
    if (st.st_dev != r->upper_dev || st.st_ino != r->upper_ino)
        return err_set(err, ERR_SETUP, 0, "the first process of %s holds another writable layer than it was given",
                       r->id);
    b->place = TAKE_FD(dir);
    return 0;
}

int job_sandbox_open(struct job *j, const char *sandbox, bool upper, struct job_sandbox *ret, struct err *err)
{
    char boot[JOURNAL_BOOT];
    *ret = (struct job_sandbox)JOB_SANDBOX_INIT;
    if (sandbox_read_record(j->run_dir, sandbox, &ret->record) < 0 || ret->record.state != JOURNAL_LIVE)
        return job_fail(j, LAYERS_NOT_FOUND, err, "there is no sandbox %s", sandbox);
    journal_boot_id(boot);
    ret->pidfd = adopt_pidfd(&ret->record, boot);
    if (ret->pidfd < 0)
        return job_fail(j, LAYERS_NOT_FOUND, err, "the sandbox %s has ended", sandbox);
    if (upper && sandbox_take_upper(j, ret, err) < 0)
        return -1;
    return cgroup_load(ret->record.cgroup, &ret->cgroup, err);
}

void job_sandbox_close(struct job_sandbox *b)
{
    if (b->pidfd >= 0)
        (void)close(b->pidfd);
    if (b->upper >= 0)
        (void)close(b->upper);
    if (b->place >= 0)
        (void)close(b->place);
    if (b->keeper >= 0)
        (void)close(b->keeper);
    b->pidfd = b->upper = b->place = b->keeper = -1;
    cgroup_close(&b->cgroup);
}

int job_sandbox_stack(struct job *j, const struct job_sandbox *b, struct stack_file *ret, struct err *err)
{
    const char *name = b->record.template;
    if (strcmp(name, "host") == 0)
        return job_fail(j, LAYERS_BAD_REQUEST, err, "a sandbox with the template host is made from no layers");
    if (stack_id_valid(name))
        return stack_read(&j->place, name, ret, err);
    *ret = (struct stack_file){.n = 0};
    (void)snprintf(ret->base, sizeof ret->base, "%s", name);
    stack_file_seal(ret);
    if (!stack_file_valid(ret))
        return err_set(err, ERR_INTERNAL, 0, "the sandbox %s has the template %s, which cannot be", b->record.id, name);
    return 0;
}

/* --- freeze ------------------------------------------------------------------------------------------------------- */

/* Sends one request and waits for its answer. -1 with errno: the connection failed. */
static int sandbox_ask_keeper(int fd, uint32_t type, const char *sandbox, struct keeper_reply *ret)
{
    struct keeper_simple q = {.head = {.version = KEEPER_VERSION, .type = type, .request = type}};
    union {
        struct keeper_head head;
        struct keeper_reply reply;
        struct keeper_death death; /* keeper tells every new connection of those that it knows */
    } m;
    memcpy(q.id, sandbox, strnlen(sandbox, sizeof q.id - 1));
    if (send(fd, &q, sizeof q, MSG_NOSIGNAL) != sizeof q)
        return -1;
    for (;;) {
        ssize_t n = recv(fd, &m, sizeof m, 0);
        if (n <= 0) {
            errno = n == 0 ? ECONNRESET : errno;
            return -1;
        }
        if (n != sizeof m.reply || m.head.type != KEEPER_REPLY || m.head.request != type)
            continue;
        *ret = m.reply;
        ret->text[sizeof ret->text - 1] = '\0';
        return 0;
    }
}

static int sandbox_dial_keeper(int run_dir)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const struct timeval patience = {.tv_sec = KEEPER_ANSWER_MS / 1000};
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    (void)snprintf(addr.sun_path, sizeof addr.sun_path, "/proc/self/fd/%d/" KEEPER_SOCKET, run_dir);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) < 0 ||
        connect(fd, (const struct sockaddr *)&addr, sizeof addr) < 0)
        return -1;
    return TAKE_FD(fd);
}

/* Asks over b->keeper; ret->error is KEEPER_OK, or KEEPER_NO_SANDBOX if it has ended. A keeper that was killed is replaced
 * within moments, and the next one knows our hold by our pid: connect and ask again. */
static int sandbox_keeper(struct job *j, struct job_sandbox *b, uint32_t type, struct keeper_reply *ret,
                          struct err *err)
{
    for (uint64_t until = job_now_ms() + KEEPER_ANSWER_MS;;) {
        if (b->keeper < 0)
            b->keeper = sandbox_dial_keeper(j->run_dir);
        if (b->keeper >= 0 && sandbox_ask_keeper(b->keeper, type, b->record.id, ret) == 0)
            break;
        int saved = errno;
        if (b->keeper >= 0)
            (void)close(b->keeper);
        b->keeper = -1;
        if (job_now_ms() >= until)
            return err_set(err, ERR_SETUP, saved, "ask keeper to %s the sandbox %s",
                           type == KEEPER_HOLD ? "hold" : "release", b->record.id);
        (void)usleep(KEEPER_AGAIN_US);
    }
    if (ret->error != KEEPER_OK && ret->error != KEEPER_NO_SANDBOX)
        return err_set(err, ret->error == KEEPER_HOST ? ERR_HOST : ERR_INTERNAL, 0, "%s", ret->text);
    return 0;
}

int job_sandbox_freeze(struct job *j, struct job_sandbox *b, struct err *err)
{
    struct keeper_reply r;
    if (sandbox_read_record(j->run_dir, b->record.id, &b->record) < 0)
        return job_fail(j, LAYERS_NOT_FOUND, err, "there is no sandbox %s", j->ask->sandbox);
    if (b->record.frozen)
        return 0;
    if (sandbox_keeper(j, b, KEEPER_HOLD, &r, err) < 0)
        return -1;
    if (r.error == KEEPER_NO_SANDBOX)
        return job_fail(j, LAYERS_NOT_FOUND, err, "the sandbox %s has ended", b->record.id);
    b->frozen = true;
    b->since_us = r.since_us;
    return 0;
}

int job_sandbox_thaw(struct job *j, struct job_sandbox *b, struct err *err)
{
    struct keeper_reply r;
    if (!b->frozen)
        return 0;
    if (sandbox_keeper(j, b, KEEPER_RELEASE, &r, err) < 0)
        return -1;
    b->frozen = false;
    if (b->since_us)
        j->reply.frozen_us += sandbox_now_us() - b->since_us;
    return 0;
}

int job_sandbox_still(struct job *j, const struct job_sandbox *b, bool wait, const char *doing, struct err *err)
{
    uint64_t until = sandbox_now_us() + (wait ? CGROUP_FREEZE_MS * UINT64_C(1000) : 0);
    for (;;) {
        int r = cgroup_frozen(&b->cgroup);
        if (r == 1)
            return 0;
        if (r < 0)
            return job_fail(j, LAYERS_BUSY, err, "the sandbox %s ended while %s", b->record.id, doing);
        if (sandbox_now_us() >= until)
            return job_fail(j, LAYERS_BUSY, err, "the sandbox %s was running while %s", b->record.id, doing);
        (void)usleep(STILL_WAIT_US);
    }
}
