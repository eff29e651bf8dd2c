/* The pool (pool/diskpool.h): supervisor has it mounted before the first child starts, and unmounted after the last one
 * ended. The work is done by `hutch pool`, a child that ends before anything else happens. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/strv.h"
#include "node/procs.h"

enum { ANSWER_MAX = 2000 };

/* Runs `hutch pool VERB ...`; what it says is in `answer`. Its exit code, or -1. */
static int node_pool_run(const char *hutch, struct strv *argv, const struct node_files *n, char answer[ANSWER_MAX],
                         struct err *err)
{
    int status;
    _cleanup_close_ int said = memfd_create("pool", MFD_CLOEXEC);
    if (said < 0)
        return err_set(err, ERR_SETUP, errno, "cannot make a file in memory");
    int fds[] = {n->state, n->run, said};
    pid_t pid = node_launch(hutch, argv->v, fds, ARRAY_LEN(fds), NULL);
    if (pid < 0)
        return err_set(err, ERR_SETUP, errno, "cannot start %s", hutch);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return err_set(err, ERR_SETUP, errno, "cannot wait for %s", hutch);
    ssize_t got = pread(said, answer, ANSWER_MAX - 1, 0);
    answer[got > 0 ? got : 0] = '\0';
    return WIFEXITED(status) ? WEXITSTATUS(status) : err_set(err, ERR_SETUP, 0, "%s pool was killed", hutch);
}

int node_pool_attach(const char *hutch, const struct config *c, struct node_files *n, struct err *err)
{
    _cleanup_strv_ struct strv argv = {0};
    char answer[ANSWER_MAX];
    strv_add(&argv, "hutch");
    strv_add(&argv, "pool");
    strv_add(&argv, "attach");
    strv_take(&argv, xasprintf("--files=%s", c->files));
    strv_take(&argv, xasprintf("--size=%llu", (unsigned long long)c->pool_size));
    if (config_given(c, "files"))
        strv_add(&argv, "--given");
    if (strcmp(c->files, "pool") == 0)
        node_notify("EXTEND_TIMEOUT_USEC=3600000000"); /* an older store may have to be copied */
    int code = node_pool_run(hutch, &argv, n, answer, err);
    if (code < 0)
        return -1;
    char *why = strchr(answer, '\n');
    if (why)
        *why++ = '\0';
    if (code != 0 || !why)
        return err_set(err, code >= ERR_USAGE && code <= ERR_INTERNAL ? (enum err_code)code : ERR_SETUP, 0, "%s",
                       answer);
    why[strcspn(why, "\n")] = '\0';
    n->pool = answer[0] == '+';
    (void)snprintf(n->files_driver, sizeof n->files_driver, "%s", answer + n->pool);
    (void)snprintf(n->files_why, sizeof n->files_why, "%s", why);
    log_text(LOG_LEVEL_INFO, "files of sandboxes: %s; %s", n->files_driver, n->files_why);
    return 0;
}

void node_pool_detach(const char *hutch, struct node_files *n)
{
    _cleanup_strv_ struct strv argv = {0};
    struct err err = {0};
    char answer[ANSWER_MAX];
    if (!n->pool)
        return;
    n->pool = false;
    strv_add(&argv, "hutch");
    strv_add(&argv, "pool");
    strv_add(&argv, "detach");
    int code = node_pool_run(hutch, &argv, n, answer, &err);
    if (code == 1)
        log_text(LOG_LEVEL_WARN, "the pool stays mounted: another process uses a file in it");
    else if (code != 0)
        log_text(LOG_LEVEL_WARN, "the pool stays mounted: %s", code < 0 ? err.msg : answer);
}
