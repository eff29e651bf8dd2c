/* end.c - how a program of commands begins and ends: standard streams, errors, output that could not be written. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/cli.h"

static char lost_note[400];

int cli_fail(const struct err *err)
{
    fprintf(stderr, "hutch: %s\n", err->msg);
    return err->code ? err->code : ERR_INTERNAL;
}

void cli_fill_streams(void)
{
    /* Modes that let reads of stdin and writes to stdout fail; writes to stderr are discarded. */
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDWR};
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd]) != fd) /* inherited: it is a standard stream */
            _exit(ERR_SETUP);
}

void cli_if_lost(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(lost_note, sizeof lost_note, fmt, ap);
    va_end(ap);
}

int cli_end_output(int code)
{
    struct err err;
    errno = 0;
    bool lost = ferror(stdout); /* errno of that time is gone */
    if (fflush(stdout) != 0 || (close(STDOUT_FILENO) < 0 && errno != EBADF))
        lost = true;
    if (!lost)
        return code;
    if (lost_note[0])
        (void)fprintf(stderr, "hutch: %s\n", lost_note);
    if (code != 0)
        return code; /* the command has reported its error */
    (void)err_set(&err, ERR_INTERNAL, errno, "the result could not be written to standard output");
    return cli_fail(&err);
}

int cli_count_choice(int argc, char **argv)
{
    static const char *const names[] = {"--url", "--profile", "--ca", "--cert", "--key"};
    int n = 0;
    for (size_t i = 0; n < argc && i < ARRAY_LEN(names);) {
        size_t len = strlen(names[i]);
        if (strncmp(argv[n], names[i], len) != 0 || (argv[n][len] && argv[n][len] != '=')) {
            i++;
            continue;
        }
        n += argv[n][len] ? 1 : 2;
        i = 0;
    }
    return n;
}
