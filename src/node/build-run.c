/* build-run.c - runs the builder's programs and tells how far they are. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/text.h"
#include "node/build-int.h"

extern char **environ;

void builder_set_progress(int dirfd, const char *name, const char *state, const char *text)
{
    _cleanup_buf_ struct buf line = {0};
    char file[64], part[72];
    (void)snprintf(file, sizeof file, "%s" TEMPLATE_PROGRESS, name);
    (void)snprintf(part, sizeof part, "%s.tmp", file);
    buf_addf(&line, "%s ", state);
    text_add_safe(&line, text, BUILD_LINE_MAX);
    buf_addc(&line, '\n');
    _cleanup_close_ int fd = openat(dirfd, part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd >= 0 && fd_write_all(fd, line.p, line.n) == 0)
        (void)renameat(dirfd, part, dirfd, file);
}

/* part: of the step, 0 to 100 */
static void builder_say_progress(struct builder *b, unsigned part)
{
    char text[160];
    unsigned percent = b->from + (b->to - b->from) * (part < 100 ? part : 100) / 100;
    if (percent <= b->said)
        return;
    b->said = percent;
    (void)snprintf(text, sizeof text, "%u %% %s", percent, b->step);
    builder_set_progress(b->dirfd, b->recipe->name, "building", text);
}

void builder_begin_step(struct builder *b, unsigned from, unsigned to, const char *text)
{
    char line[160];
    b->from = b->said = from;
    b->to = to;
    b->step = text;
    b->error[0] = '\0';
    b->sure = false;
    (void)snprintf(line, sizeof line, "%u %% %s", from, text);
    builder_set_progress(b->dirfd, b->recipe->name, "building", line);
    log_text(LOG_LEVEL_INFO, "%s: %s", b->recipe->name, line);
}

static int builder_start_program(const struct strv *argv, int in_fd, int out_fd, int err_fd, pid_t *ret,
                                 struct err *err)
{
    posix_spawn_file_actions_t acts;
    posix_spawnattr_t attr;
    sigset_t none;
    (void)sigemptyset(&none);
    (void)posix_spawn_file_actions_init(&acts);
    (void)posix_spawnattr_init(&attr);
    (void)posix_spawnattr_setsigmask(&attr, &none);
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    if (in_fd < 0)
        (void)posix_spawn_file_actions_addopen(&acts, 0, "/dev/null", O_RDONLY, 0);
    else
        (void)posix_spawn_file_actions_adddup2(&acts, in_fd, 0);
    (void)posix_spawn_file_actions_adddup2(&acts, out_fd, 1);
    (void)posix_spawn_file_actions_adddup2(&acts, err_fd, 2);
    int eno = posix_spawnp(ret, argv->v[0], &acts, &attr, argv->v, environ);
    (void)posix_spawn_file_actions_destroy(&acts);
    (void)posix_spawnattr_destroy(&attr);
    if (eno == ENOENT)
        return err_set(err, ERR_HOST, 0, "%s is not installed; apt install %s", argv->v[0], argv->v[0]);
    return eno ? err_set(err, ERR_SETUP, eno, "cannot start %s", argv->v[0]) : 0;
}

static void builder_take_line(struct builder *b)
{
    b->line[b->n] = '\0';
    b->n = 0;
    const char *text = b->line;
    if (strncmp(text, "dlstatus:", 9) == 0) { /* apt: "dlstatus:3:12.5:Retrieving file 3 of 9" */
        unsigned percent;
        if (sscanf(text, "dlstatus:%*[^:]:%3u", &percent) == 1)
            builder_say_progress(b, percent);
    } else if (strncmp(text, "Unpacking ", 10) == 0 || strncmp(text, "Setting up ", 11) == 0) {
        b->done++;
        if (b->total)
            builder_say_progress(b, b->done * 50 / b->total);
    } else if (strncmp(text, "E: ", 3) == 0 || strncmp(text, "Err:", 4) == 0 || strncmp(text, "curl: ", 6) == 0 ||
               (*text && !b->sure)) {
        (void)snprintf(b->error, sizeof b->error, "%s", text);
        b->sure = *text == 'E' || *text == 'c';
    }
}

/* Reads the output of the program to its end. */
static void builder_follow_output(int fd, struct builder *b)
{
    char chunk[4096];
    for (ssize_t n; (n = read(fd, chunk, sizeof chunk)) > 0 || (n < 0 && errno == EINTR);)
        for (ssize_t i = 0; i < n; i++) {
            if (chunk[i] == '\n' || chunk[i] == '\r')
                builder_take_line(b);
            else if (b->n < sizeof b->line - 1)
                b->line[b->n++] = chunk[i];
        }
}

int builder_run_program(struct builder *b, const struct strv *argv, int in, int out, struct err *err)
{
    int fds[2], status;
    pid_t pid;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot make a pipe");
    int rc = builder_start_program(argv, in, out < 0 ? fds[1] : out, fds[1], &pid, err);
    (void)close(fds[1]);
    if (rc == 0) {
        builder_follow_output(fds[0], b);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            rc = err_set(err, ERR_SETUP, 0, "%s: %s failed%s%s", b->step, argv->v[0], *b->error ? ": " : "", b->error);
    }
    (void)close(fds[0]);
    return rc;
}

void builder_add_namespace(struct strv *argv)
{
    if (geteuid() == 0)
        return;
    strv_add(argv, "unshare");
    strv_add(argv, "--map-root-user");
    strv_add(argv, "--map-auto");
}
